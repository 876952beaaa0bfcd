"""Statements of the PostgreSQL queue.

The tables are those of the SQLite file, with a prefix. Arrays carry many items in one statement, so
that a call is a handful of round trips however many items it names. Rows are locked in the order of
``seq``, so that two calls never wait for each other in a circle.
"""

from typing import Final

VERSION: Final = 1

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_queue_items (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL, id text NOT NULL,
    state smallint NOT NULL,
    batch text NOT NULL, tenant text NOT NULL,
    priority integer NOT NULL, deadline double precision NOT NULL,
    max_receives integer NOT NULL, receives integer NOT NULL DEFAULT 0,
    token bigint NOT NULL DEFAULT 0,
    until double precision NOT NULL DEFAULT 0,
    owner text NOT NULL DEFAULT '',
    enqueued_at double precision NOT NULL, ended_at double precision,
    story text NOT NULL DEFAULT '[]',
    UNIQUE (queue, id)
);
CREATE INDEX IF NOT EXISTS holdfast_queue_ready ON holdfast_queue_items
    (queue, priority, deadline, seq) WHERE state = 0;
CREATE INDEX IF NOT EXISTS holdfast_queue_timed ON holdfast_queue_items
    (until) WHERE state IN (1, 2);
CREATE INDEX IF NOT EXISTS holdfast_queue_open ON holdfast_queue_items
    (queue, enqueued_at) WHERE state < 3;
CREATE INDEX IF NOT EXISTS holdfast_queue_counted ON holdfast_queue_items (queue, batch, state);
CREATE TABLE IF NOT EXISTS holdfast_queue_payloads (
    seq bigint PRIMARY KEY, payload bytea NOT NULL
);
CREATE TABLE IF NOT EXISTS holdfast_queue_results (
    seq bigint PRIMARY KEY, result bytea NOT NULL
);
CREATE TABLE IF NOT EXISTS holdfast_queue_clock (
    only_row smallint PRIMARY KEY, now double precision NOT NULL, version integer NOT NULL
);
INSERT INTO holdfast_queue_clock VALUES (0, 0, 1) ON CONFLICT DO NOTHING
"""
# Two openers at once would both create what is not there, and one of them would fail.
SCHEMA_LOCK: Final = "SELECT pg_advisory_xact_lock(7251936402)"

READ_CLOCK: Final = "SELECT now, version FROM holdfast_queue_clock"
CARRY_CLOCK: Final = (
    "UPDATE holdfast_queue_clock SET now = greatest(now, %s) RETURNING now, version"
)
NOW: Final = "SELECT now FROM holdfast_queue_clock"

ENQUEUE: Final = """
INSERT INTO holdfast_queue_items
    (queue, id, state, batch, tenant, priority, deadline, max_receives, until, enqueued_at)
SELECT %(queue)s, id, state, batch, tenant, priority, deadline, max_receives, until, %(wall)s
FROM unnest(
    %(ids)s::text[], %(states)s::smallint[], %(batches)s::text[], %(tenants)s::text[],
    %(priorities)s::integer[], %(deadlines)s::double precision[], %(max_receives)s::integer[],
    %(untils)s::double precision[]
) WITH ORDINALITY
    AS given (id, state, batch, tenant, priority, deadline, max_receives, until, place)
ORDER BY place
ON CONFLICT (queue, id) DO NOTHING
RETURNING id, seq
"""
SETTLE: Final = """
INSERT INTO holdfast_queue_items
    (queue, id, state, batch, tenant, priority, deadline, max_receives, receives, owner,
     enqueued_at, ended_at, story)
SELECT %(queue)s, id, state, batch, tenant, 0, 'Infinity', %(max_receives)s, receives, owner,
    %(wall)s, %(wall)s, story
FROM unnest(
    %(ids)s::text[], %(states)s::smallint[], %(batches)s::text[], %(tenants)s::text[],
    %(receives)s::integer[], %(owners)s::text[], %(stories)s::text[]
) WITH ORDINALITY AS given (id, state, batch, tenant, receives, owner, story, place)
ORDER BY place
ON CONFLICT (queue, id) DO NOTHING
RETURNING id, seq
"""
KEEP_PAYLOADS: Final = """
INSERT INTO holdfast_queue_payloads SELECT * FROM unnest(%s::bigint[], %s::bytea[])
"""
KEEP_RESULTS: Final = """
INSERT INTO holdfast_queue_results SELECT * FROM unnest(%s::bigint[], %s::bytea[])
"""
DROP_PAYLOADS: Final = "DELETE FROM holdfast_queue_payloads WHERE seq = ANY (%s)"

DUE: Final = """
SELECT seq, state, receives, max_receives, owner, story FROM holdfast_queue_items
WHERE state IN (1, 2) AND until <= %s ORDER BY until LIMIT %s FOR UPDATE SKIP LOCKED
"""
PAUSE_ENDED: Final = "UPDATE holdfast_queue_items SET state = 0 WHERE seq = ANY (%s)"
FAILED: Final = """
UPDATE holdfast_queue_items AS items
SET state = given.state, token = token + %s, until = given.until, ended_at = given.ended_at,
    story = given.story
FROM unnest(
    %s::bigint[], %s::smallint[], %s::double precision[], %s::double precision[], %s::text[]
) AS given (seq, state, until, ended_at, story)
WHERE items.seq = given.seq
"""
TAKE: Final = """
WITH taken AS MATERIALIZED (
    SELECT seq FROM holdfast_queue_items WHERE queue = %s AND state = 0
    ORDER BY priority, deadline, seq LIMIT %s FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE holdfast_queue_items AS items
    SET state = 2, receives = receives + 1, token = token + 1, until = %s, owner = %s
    FROM taken WHERE items.seq = taken.seq
    RETURNING items.seq, id, token, batch, tenant, priority, deadline, receives, max_receives, story
)
SELECT changed.*, payload FROM changed LEFT JOIN holdfast_queue_payloads USING (seq)
ORDER BY priority, deadline, seq
"""
FIND: Final = """
SELECT queue, id, seq, state, token, receives, max_receives, owner, story
FROM holdfast_queue_items
WHERE (queue, id) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
ORDER BY seq FOR UPDATE
"""
EXTEND: Final = "UPDATE holdfast_queue_items SET state = 2, until = %s WHERE seq = ANY (%s)"
END: Final = """
UPDATE holdfast_queue_items AS items SET state = given.state, ended_at = %s
FROM unnest(%s::bigint[], %s::smallint[]) AS given (seq, state) WHERE items.seq = given.seq
"""
RELEASE: Final = """
UPDATE holdfast_queue_items
SET state = 0, receives = greatest(receives - 1, 0), token = token + 1 WHERE seq = ANY (%s)
"""
OWNED: Final = """
SELECT seq, receives, max_receives, owner, story FROM holdfast_queue_items
WHERE state IN (1, 2) AND state = 2 AND owner = %s ORDER BY seq FOR UPDATE
"""
CANCEL: Final = """
UPDATE holdfast_queue_items SET token = token + 1, state = 6, ended_at = %s
WHERE queue = %s AND batch = %s AND state IN (0, 1) RETURNING seq
"""
REDRIVE: Final = """
UPDATE holdfast_queue_items SET state = 0, receives = 0, ended_at = NULL, token = token + 1
WHERE queue = %s AND state = 5 AND (%s::text[] IS NULL OR id = ANY (%s::text[]))
"""
_FITTING: Final = """
(%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(batch)s::text IS NULL OR batch = %(batch)s)
AND (%(states)s::smallint[] IS NULL OR state = ANY (%(states)s::smallint[]))
"""
PURGE: Final = f"""
WITH gone AS (
    DELETE FROM holdfast_queue_items
    WHERE {_FITTING} AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s::text[])) RETURNING seq
),
    payloads AS (
        DELETE FROM holdfast_queue_payloads USING gone
        WHERE holdfast_queue_payloads.seq = gone.seq
    ),
    results AS (
        DELETE FROM holdfast_queue_results USING gone WHERE holdfast_queue_results.seq = gone.seq
    )
SELECT count(*) FROM gone
"""  # noqa: S608 fixed text
COUNTS: Final = f"""
SELECT queue, state, count(*), min(enqueued_at) FILTER (WHERE state < 3)
FROM holdfast_queue_items WHERE {_FITTING} GROUP BY queue, state
"""  # noqa: S608 fixed text
TOTAL: Final = "SELECT count(*) FROM holdfast_queue_items"
_VIEW: Final = """
SELECT queue, id, items.seq, state, batch, tenant, priority, deadline, receives, max_receives,
    enqueued_at, ended_at, owner, coalesce(payload, ''), coalesce(result, ''), story
FROM holdfast_queue_items AS items
    LEFT JOIN holdfast_queue_payloads AS payloads ON payloads.seq = items.seq
    LEFT JOIN holdfast_queue_results AS results ON results.seq = items.seq
"""
ITEMS: Final = f"{_VIEW} WHERE {_FITTING} AND items.seq > %(after)s ORDER BY items.seq LIMIT %(n)s"
ITEM: Final = f"{_VIEW} WHERE queue = %s AND id = %s"
