import sqlite3
from contextlib import closing

import pytest

from holdfast.storage import incidents as module
from holdfast.storage.incidents import IncidentRows
from holdfast.storage.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def store(path):
    found = SqliteStore(path)
    yield found
    found.close()


def put(store, number, stage="open", facts=None, **more):
    name = f"inc-{number:06}"
    store.put_incident(name, float(number), stage, {"id": name, "stage": stage, **more}, facts)


def ids(found):
    return [int(one["id"].partition("-")[2]) for one in found]


def test_incidents_are_there_at_once_after_a_write_and_after_another_start(store, path):
    for number in (1, 2, 3):
        put(store, number)
    assert ids(store.incidents()) == [3, 2, 1]
    assert store.flush()
    assert ids(store.incidents()) == [3, 2, 1]
    assert store.close()
    again = SqliteStore(path)
    assert ids(again.incidents(limit=2)) == [3, 2]
    assert again.incident("inc-000001")[0]["id"] == "inc-000001"
    again.close()


def test_an_incident_is_replaced_whether_it_is_written_or_not(store):
    put(store, 1)
    store.flush()
    put(store, 2)
    put(store, 1, "closed", action="restarted")
    assert ids(store.incidents(stage="open")) == [2]
    assert ids(store.incidents(stage="closed")) == [1]
    store.flush()
    assert ids(store.incidents(stage="open")) == [2]
    assert store.incident("inc-000001")[0]["action"] == "restarted"


def test_the_oldest_rows_go(store, monkeypatch):
    store._incidents.rows_max = 3
    for number in range(1, 8):
        put(store, number)
        store.flush()
    assert ids(store.incidents()) == [7, 6, 5]


def test_facts_are_kept_packed_and_for_fewer_incidents(store, monkeypatch):
    monkeypatch.setattr(module, "EXPORTS_MAX", 2)
    for number in (1, 2, 3):
        put(store, number, facts=b"packed")
        if number == 1:
            assert store.incident("inc-000001")[1] == b"packed"
        store.flush()
    assert store.incident("inc-000001")[1] is None
    assert store.incident("inc-000003")[1] == b"packed"


def test_nobody_knows_an_unknown_id(store):
    assert store.incident("inc-999999") == (None, None)


def test_a_stuck_disk_costs_the_oldest_and_is_counted(monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    rows = IncidentRows()
    for name in ("a", "b", "a", "c"):
        rows.put(name, 1.0, "open", {"id": name})
    assert (list(rows.waiting()), rows.dropped) == (["a", "c"], 1)


def test_what_changed_while_it_was_written_is_written_again():
    rows = IncidentRows()
    rows.put("a", 1.0, "open", {})
    rows.put_export("a", 1.0, b"1")
    taken = rows.take()
    rows.put("a", 1.0, "closed", {})
    rows.put_export("a", 1.0, b"2")
    rows.written(taken)
    assert rows.waiting()["a"][2] == "closed"
    assert rows.waiting_export("a") == b"2"
    rows.written(rows.take())
    assert not rows.take()


def test_a_file_that_cannot_be_read_still_gives_what_waits(store, path, monkeypatch):
    put(store, 1)
    store.flush()

    def no_reader():
        raise sqlite3.OperationalError("locked")

    monkeypatch.setattr(store, "_reader", no_reader)
    assert store.incidents() == []
    assert store.incident("inc-000001") == (None, None)


def test_a_store_of_before_gets_its_tables(path):
    first = SqliteStore(path)
    first.close()
    with closing(sqlite3.connect(path)) as old:
        old.executescript("DROP TABLE incidents; DROP TABLE exports")
    again = SqliteStore(path)
    put(again, 1)
    assert again.flush()
    assert ids(again.incidents()) == [1]
    again.close()
