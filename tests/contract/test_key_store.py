"""The promises of a key store, asked of the one in memory and of every adapter.

The servers (PostgreSQL, Valkey) are started by ``make test-stores`` only.
"""

import os
import sqlite3
from collections.abc import Iterator

import pytest

import key_store_promises as promises
from holdfast.core.request.idempotency.key_policy import KeyChange
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.ports import KeyStoreError
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys
from holdfast.testing.key_store import MemoryKeys
from holdfast.testing.store_servers import PostgresServer, ValkeyServer

EMPTY = """
DROP TABLE IF EXISTS holdfast_keys, holdfast_key_pieces, holdfast_key_usage, holdfast_key_owners,
    holdfast_key_purges
"""
SERVERS = ["postgres", "valkey"] if os.environ.get("HOLDFAST_STORES") else []


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", *SERVERS])
def opened(request, tmp_path):
    if request.param == "memory":
        shared = MemoryKeys()
        return lambda: shared
    if request.param == "sqlite":
        return lambda: SqliteKeys(tmp_path / "keys.db")
    server = request.getfixturevalue(request.param)
    if request.param == "postgres":
        import psycopg  # noqa: PLC0415 an extra

        from holdfast.storage.key_stores.postgres_keys import PostgresKeys  # noqa: PLC0415

        with psycopg.connect(server.url) as connection:
            connection.execute(EMPTY)
        return lambda: PostgresKeys(server.url)
    from holdfast.storage.key_stores.redis_keys import RedisKeys  # noqa: PLC0415 an extra

    return lambda: RedisKeys(server.url, prefix=f"{request.node.name}:")


@pytest.mark.parametrize("promise", promises.OF_ONE_STORE, ids=lambda p: p.__name__)
def test_a_store_keeps_its_promises(opened, promise):
    store = opened()
    promise(store)
    store.close()


@pytest.mark.parametrize("promise", promises.OF_SEVERAL, ids=lambda p: p.__name__)
def test_stores_of_several_gateways_agree(opened, promise):
    promise(opened)


# --- of the SQLite file alone ---------------------------------------------------------------------


def test_nobody_else_may_read_the_file(tmp_path):
    path = tmp_path / "below" / "keys.db"
    store = SqliteKeys(path)
    promises.a_new_store_is_empty(store)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert "keys.db" in modes
    store.close()


def test_a_purged_answer_is_not_left_in_the_file(tmp_path):
    path, secret = tmp_path / "keys.db", b"what the model said " * 20
    store = SqliteKeys(path)
    promises.one(store, promises.NAME, promises.claim())
    promises.one(store, promises.NAME, promises.finish(pieces=(secret,)))
    files = list(tmp_path.iterdir())
    assert any(secret in file.read_bytes() for file in files)
    store.purge("team")
    assert not any(secret in file.read_bytes() for file in tmp_path.iterdir())
    store.close()


def test_a_broken_file_is_refused_and_kept(tmp_path):
    path = tmp_path / "keys.db"
    path.write_bytes(b"this is no database " * 100)
    store = SqliteKeys(path)
    with pytest.raises(KeyStoreError, match=r"keys\.db"):
        store.usage()
    assert path.read_bytes().startswith(b"this is no database")


def test_a_file_of_a_later_version_is_refused(tmp_path):
    path = tmp_path / "keys.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(KeyStoreError, match="version 9"):
        SqliteKeys(path).usage()


def test_a_change_that_fails_leaves_nothing_of_its_batch(tmp_path):
    store = SqliteKeys(tmp_path / "keys.db")

    def fails(record, usage):
        raise RuntimeError("a policy's mistake")

    changes = [
        KeyChange(promises.NAME, promises.claim()),
        KeyChange(KeyName("team", "d2"), fails),
    ]
    with pytest.raises(RuntimeError):
        store.update(changes)
    assert store.usage() == {}
    assert promises.seen(store).record is None
    promises.one(store, promises.NAME, promises.claim())
    store.close()


def test_a_directory_that_cannot_be_written_is_an_error_of_the_store(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyStoreError):
        SqliteKeys(tmp_path / "file" / "keys.db").usage()


# --- of the servers alone -------------------------------------------------------------------------


@pytest.mark.skipif(not SERVERS, reason="make test-stores")
@pytest.mark.parametrize(
    ("settings", "word"),
    [({"aof": False}, "appendonly yes"), ({"policy": "allkeys-lru"}, "noeviction")],
)
def test_a_server_that_forgets_is_refused_with_the_setting_that_mends_it(settings, word):
    from holdfast.storage.key_stores.redis_keys import RedisKeys  # noqa: PLC0415 an extra

    with ValkeyServer(**settings) as server:
        store = RedisKeys(server.url)
        with pytest.raises(KeyStoreError, match=word):
            store.beat("g", 0)
        store.close()


@pytest.mark.skipif(not SERVERS, reason="make test-stores")
@pytest.mark.parametrize("kind", ["postgres", "valkey"])
def test_a_server_that_is_killed_is_an_error_and_back_with_all_it_had(kind):
    from holdfast.storage.key_stores.postgres_keys import PostgresKeys  # noqa: PLC0415 an extra
    from holdfast.storage.key_stores.redis_keys import RedisKeys  # noqa: PLC0415 an extra

    with PostgresServer() if kind == "postgres" else ValkeyServer() as server:
        store = PostgresKeys(server.url) if kind == "postgres" else RedisKeys(server.url)
        promises.one(store, promises.NAME, promises.claim())
        promises.one(store, promises.NAME, promises.finish())
        before = promises.seen(store)
        server.kill()
        with pytest.raises(KeyStoreError) as caught:
            store.usage()
        assert "Traceback" not in str(caught.value)
        server.start()
        assert promises.seen(store) == before
        assert promises.one(store, promises.NAME, promises.claim("e2")).outcome == "join"
        store.close()
