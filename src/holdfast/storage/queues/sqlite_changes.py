"""The changes of the SQLite queue: each runs inside a transaction that its caller began.

A change is a plain function of a connection and two times: ``now`` (queue time, which leases go by)
and ``wall`` (for people). It commits nothing, so many of them share one commit.
"""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.queue_port import (
    MAX_RECEIVES,
    EndedItem,
    ItemState,
    Lease,
    LeaseAnswer,
    LeasedItem,
    NewItem,
    Settlement,
    pause_s,
)
from holdfast.storage.queues import story
from holdfast.storage.queues.states import (
    CANCELLED,
    DEAD,
    DELAYED,
    NUMBER_OF,
    READY,
    right_of,
)

SWEPT_MAX: Final = 10_000  # timed items looked at by one call; the next call goes on

_INSERT: Final = """
INSERT OR IGNORE INTO items
    (queue, id, state, batch, tenant, priority, deadline, max_receives, until, enqueued_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SETTLE: Final = """
INSERT OR IGNORE INTO items
    (queue, id, state, batch, tenant, priority, deadline, max_receives, receives, owner,
     enqueued_at, ended_at, story)
VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?)
"""
_TAKE: Final = """
SELECT seq, id, token + 1, batch, tenant, priority, deadline, receives + 1, max_receives, story,
    (SELECT payload FROM payloads WHERE payloads.seq = items.seq)
FROM items WHERE queue = ? AND state = 0 ORDER BY priority, deadline, seq LIMIT ?
"""
_TAKEN: Final = """
UPDATE items SET state = 2, receives = receives + 1, token = token + 1, until = ?, owner = ?
WHERE seq = ?
"""
_END: Final = """
UPDATE items SET state = ?, ended_at = ?
WHERE queue = ? AND id = ? AND CAST(token AS TEXT) = ? AND state < 3 RETURNING seq
"""
_DUE: Final = """
SELECT seq, state, receives, max_receives, owner, story FROM items
WHERE state IN (1, 2) AND until <= ? ORDER BY until LIMIT ?
"""
_FIND: Final = """
SELECT seq, state, token, receives, max_receives, owner, story FROM items WHERE queue = ? AND id = ?
"""


@dataclass(slots=True, frozen=True)
class Moment:
    """When a change happens, by both clocks."""

    now: float  # queue time
    wall: float  # seconds since the epoch


@dataclass(slots=True, frozen=True)
class _Held:
    """An item that a caller has the right to change."""

    seq: int
    receives: int
    max_receives: int
    owner: str
    story: str


def enqueue(
    connection: sqlite3.Connection, moment: Moment, queue: str, items: Sequence[NewItem]
) -> list[bool]:
    """Add the items whose ids are not there."""
    added = []
    for item in items:
        delayed = item.delay_s > 0
        cursor = connection.execute(
            _INSERT,
            (
                queue,
                item.id,
                DELAYED if delayed else READY,
                item.group,
                item.tenant,
                item.priority,
                math.inf if item.deadline is None else item.deadline,
                item.max_receives,
                moment.now + item.delay_s if delayed else 0.0,
                moment.wall,
            ),
        )
        new = cursor.rowcount == 1
        if new:
            row = (cursor.lastrowid, item.payload)
            connection.execute("INSERT INTO payloads VALUES (?, ?)", row)
        added.append(new)
    return added


def lease(
    connection: sqlite3.Connection,
    moment: Moment,
    queue: str,
    count: int,
    visibility_s: float,
    owner: str,
) -> list[LeasedItem]:
    """Take the most urgent items."""
    sweep(connection, moment)
    rows = connection.execute(_TAKE, (queue, count)).fetchall()
    until = moment.now + visibility_s
    connection.executemany(_TAKEN, [(until, owner, row[0]) for row in rows])
    return [
        LeasedItem(
            lease=Lease(queue, row[1], str(row[2])),
            payload=row[10] or b"",
            group=row[3],
            tenant=row[4],
            priority=row[5],
            deadline=None if row[6] == math.inf else row[6],
            receives=row[7],
            max_receives=row[8],
            story=() if row[9] == "[]" else story.read(row[9]),
        )
        for row in rows
    ]


def extend(
    connection: sqlite3.Connection, moment: Moment, leases: Sequence[Lease], visibility_s: float
) -> list[LeaseAnswer]:
    """Prolong the leases that still hold."""
    held, answers = _find(connection, leases)
    until = moment.now + visibility_s
    connection.executemany(
        "UPDATE items SET state = 2, until = ? WHERE seq = ?",
        [(until, found.seq) for found in held if found is not None],
    )
    return answers


def ack(
    connection: sqlite3.Connection, moment: Moment, settlements: Sequence[Settlement]
) -> list[LeaseAnswer]:
    """Write the terminal records that are still to be written."""
    answers = []
    for settlement in settlements:  # one by one: the same lease may stand there twice
        own = settlement.lease
        values = (NUMBER_OF[settlement.state], moment.wall, own.queue, own.id, own.token)
        row = connection.execute(_END, values).fetchone()
        if row is None:
            ((_,), (answer,)) = _find(connection, [own])
            answers.append(answer)
            continue
        connection.execute("DELETE FROM payloads WHERE seq = ?", row)
        if settlement.result:
            connection.execute("INSERT INTO results VALUES (?, ?)", (*row, settlement.result))
        answers.append(LeaseAnswer.OK)
    return answers


def nack(
    connection: sqlite3.Connection,
    moment: Moment,
    leases: Sequence[Lease],
    note: str,
    delay_s: float | None,
    dead: bool,
) -> list[LeaseAnswer]:
    """Give failed items back, or make them dead letters."""
    answers = []
    for one in leases:
        (found,), (answer,) = _find(connection, [one])
        if found is not None:
            pause = pause_s(found.receives) if delay_s is None else delay_s
            told = story.entry(story.NACKED, found.receives, found.owner, moment.wall, note)
            _fail(connection, moment, found, told, pause, dead=dead)
        answers.append(answer)
    return answers


def release(
    connection: sqlite3.Connection, moment: Moment, leases: Sequence[Lease]
) -> list[LeaseAnswer]:
    """Give items back untried."""
    del moment  # nothing of this lasts
    held, answers = _find(connection, leases)
    connection.executemany(
        "UPDATE items SET state = 0, receives = max(receives - 1, 0), token = token + 1 "
        "WHERE seq = ?",
        [(found.seq,) for found in held if found is not None],
    )
    return answers


def reclaim(connection: sqlite3.Connection, moment: Moment, owner: str) -> int:
    """End the leases of one owner."""
    rows = connection.execute(
        "SELECT seq, receives, max_receives, owner, story FROM items "
        "WHERE state IN (1, 2) AND state = 2 AND owner = ?",
        (owner,),
    ).fetchall()
    for row in rows:
        found = _Held(*row)
        told = story.entry(story.RECLAIMED, found.receives, owner, moment.wall)
        _fail(connection, moment, found, told, 0.0)
    return len(rows)


def cancel(connection: sqlite3.Connection, moment: Moment, queue: str, group: str) -> int:
    """Cancel what nobody works on."""
    sweep(connection, moment)
    rows = connection.execute(
        "UPDATE items SET token = token + 1, state = ?, ended_at = ? "
        "WHERE queue = ? AND batch = ? AND state IN (0, 1) RETURNING seq",
        (CANCELLED, moment.wall, queue, group),
    ).fetchall()
    connection.executemany("DELETE FROM payloads WHERE seq = ?", rows)
    return len(rows)


def redrive(
    connection: sqlite3.Connection, moment: Moment, queue: str, ids: Sequence[str] | None
) -> int:
    """Make dead letters ready again."""
    del moment  # ready at once
    change = (
        "UPDATE items SET state = 0, receives = 0, ended_at = NULL, token = token + 1 "
        "WHERE queue = ? AND state = 5"
    )
    if ids is None:
        return connection.execute(change, (queue,)).rowcount
    return connection.executemany(
        f"{change} AND id = ?", [(queue, one) for one in dict.fromkeys(ids)]
    ).rowcount


def settle(
    connection: sqlite3.Connection, moment: Moment, queue: str, ended: Sequence[EndedItem]
) -> list[bool]:
    """Write the terminal records of another queue's items, where there are none yet."""
    added = []
    for one in ended:
        cursor = connection.execute(
            _SETTLE,
            (
                queue,
                one.id,
                NUMBER_OF[one.state],
                one.group,
                one.tenant,
                math.inf,
                MAX_RECEIVES,
                one.receives,
                one.owner,
                moment.wall,
                moment.wall,
                story.dumped(one.story),
            ),
        )
        new = cursor.rowcount == 1
        if new and one.payload:
            row = (cursor.lastrowid, one.payload)
            connection.execute("INSERT INTO payloads VALUES (?, ?)", row)
        if new and one.result:
            row = (cursor.lastrowid, one.result)
            connection.execute("INSERT INTO results VALUES (?, ?)", row)
        added.append(new)
    return added


def purge(
    connection: sqlite3.Connection,
    moment: Moment,
    queue: str,
    group: str | None,
    states: Sequence[ItemState] | None,
    ids: Sequence[str] | None,
) -> int:
    """Delete items with all that belongs to them."""
    del moment  # what is deleted has no time
    where, values = condition(queue, group, states)
    if ids is not None:
        where += " AND id IN (SELECT value FROM json_each(?))"
        values.append(story.dumped_texts(ids))
    seqs = f"(SELECT seq FROM items WHERE {where})"  # noqa: S608 placeholders only
    for table in ("payloads", "results"):
        connection.execute(f"DELETE FROM {table} WHERE seq IN {seqs}", values)  # noqa: S608 fixed
    change = f"DELETE FROM items WHERE {where}"  # noqa: S608 as above
    return connection.execute(change, values).rowcount


def condition(
    queue: str | None, group: str | None, states: Sequence[ItemState] | None
) -> tuple[str, list[Any]]:
    """The rows that a caller asks for."""
    parts: list[str] = []
    values: list[Any] = []
    if queue is not None:
        parts.append("queue = ?")
        values.append(queue)
    if group is not None:
        parts.append("batch = ?")
        values.append(group)
    if states is not None:
        numbers = ", ".join(str(NUMBER_OF[state]) for state in states)
        parts.append(f"state IN ({numbers})")
    return " AND ".join(parts) or "1", values


def sweep(connection: sqlite3.Connection, moment: Moment) -> None:
    """Take up what time has done: pauses that ended, leases that ran out."""
    for seq, state, receives, max_receives, owner, told in connection.execute(
        _DUE, (moment.now, SWEPT_MAX)
    ).fetchall():
        if state == DELAYED:
            connection.execute("UPDATE items SET state = 0 WHERE seq = ?", (seq,))
            continue
        happened = story.entry(story.RAN_OUT, receives, owner, moment.wall)
        found = _Held(seq, receives, max_receives, owner, told)
        # The token stays: until somebody takes the item, its late holder may still end it.
        _fail(connection, moment, found, happened, 0.0, fence=False)


def _find(
    connection: sqlite3.Connection, leases: Sequence[Lease]
) -> tuple[list[_Held | None], list[LeaseAnswer]]:
    """For each lease the item that it still has the right to, and the answer to its holder."""
    held: list[_Held | None] = []
    answers = []
    for one in leases:
        row = connection.execute(_FIND, (one.queue, one.id)).fetchone()
        answer = LeaseAnswer.GONE if row is None else right_of(one, row[1], row[2])
        held.append(_Held(row[0], *row[3:]) if answer is LeaseAnswer.OK else None)
        answers.append(answer)
    return held, answers


def _fail(
    connection: sqlite3.Connection,
    moment: Moment,
    found: _Held,
    happened: Mapping[str, Any],
    pause: float,
    *,
    dead: bool = False,
    fence: bool = True,
) -> None:
    """One receive failed: the item waits for the next one, or is a dead letter."""
    ended = dead or found.receives >= found.max_receives
    state = DEAD if ended else DELAYED if pause > 0 else READY
    connection.execute(
        "UPDATE items SET state = ?, token = token + ?, until = ?, ended_at = ?, story = ? "
        "WHERE seq = ?",
        (
            state,
            1 if fence else 0,
            moment.now + pause,
            moment.wall if ended else None,
            story.continued(found.story, happened),
            found.seq,
        ),
    )


__all__ = [
    "Moment",
    "ack",
    "cancel",
    "condition",
    "enqueue",
    "extend",
    "lease",
    "nack",
    "purge",
    "reclaim",
    "redrive",
    "release",
    "settle",
    "sweep",
]
