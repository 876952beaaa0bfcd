"""The promises of a key store, asked of the one in memory and of the SQLite file."""

import sqlite3

import pytest

import key_store_promises as promises
from holdfast.core.request.idempotency.key_policy import KeyChange
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.ports import KeyStoreError
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys
from holdfast.testing.key_store import MemoryKeys


@pytest.fixture(params=["memory", "sqlite"])
def opened(request, tmp_path):
    if request.param == "memory":
        shared = MemoryKeys()
        return lambda: shared
    return lambda: SqliteKeys(tmp_path / "keys.db")


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
