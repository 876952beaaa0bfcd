"""What every store promises, asked of the one in memory and of the SQLite file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.ports import Store, StoredEvent, StoredOrder
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.store import MemoryStore


@pytest.fixture(params=["memory", "sqlite", "sqlite, written"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    kept = SqliteStore(tmp_path / "store.db")
    try:
        yield _Flushed(kept) if request.param == "sqlite, written" else kept
    finally:
        assert kept.close()


class _Flushed:
    """Writes all that was put before each question, so that answers come from the file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        if not name.startswith(("put", "add", "drop")):
            assert self._store.flush()
        return getattr(self._store, name)


def test_a_new_store_is_empty(store: Store) -> None:
    assert (store.replicas(), store.answers(), store.settings()) == ({}, {}, {})
    assert (store.events(), store.incidents(), store.incident("x")) == ([], [], (None, None))


def test_the_last_value_of_a_replica_counts_and_it_can_be_dropped(store: Store) -> None:
    store.put_replica("r1", {"port": 1})
    store.put_replica("r1", {"port": 2})
    store.put_replica("r2", {"port": 3})
    assert store.replicas() == {"r1": {"port": 2}, "r2": {"port": 3}}
    store.drop_replica("r1")
    store.drop_replica("nobody")
    assert store.replicas() == {"r2": {"port": 3}}


def test_answers_and_settings_are_kept_apart(store: Store) -> None:
    store.put_answers({"m": ["a"]})
    store.put_setting("scale/m", {"count": 2})
    store.put_setting("held", [])
    assert store.answers() == {"m": ["a"]}
    assert store.settings() == {"scale/m": {"count": 2}, "held": []}


def test_what_is_kept_is_a_copy_and_so_is_what_is_returned(store: Store) -> None:
    data = {"ports": [1]}
    store.put_replica("r1", data)
    data["ports"].append(2)
    store.replicas()["r1"]["ports"].append(3)
    assert store.replicas() == {"r1": {"ports": [1]}}


def test_events_come_oldest_first_and_of_one_replica_where_asked(store: Store) -> None:
    for at in range(5):
        assert store.add_event(float(at), "m", f"r{at % 2}", "dead", "it ended", "oom")
    assert [event.at for event in store.events()] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [event.at for event in store.events(2)] == [3.0, 4.0]
    assert [event.at for event in store.events(2, "r0")] == [2.0, 4.0]
    assert store.events(0) == []
    assert store.events(1) == [StoredEvent(4.0, "m", "r0", "dead", "it ended", "oom")]
    with pytest.raises(ValueError, match="time"):
        store.add_event(float("nan"), "m", "r0", "dead", "")


def test_orders_come_oldest_first_and_whole(store: Store) -> None:
    rows = [
        StoredOrder(float(at), "oncall", "POST /reload", "127.0.0.1", 200, "done", at == 3)
        for at in range(5)
    ]
    assert store.orders() == []
    for row in rows:
        assert store.add_order(row)
    assert store.orders() == rows
    assert store.orders(2) == rows[-2:]
    assert store.orders(0) == []


def test_incidents_come_newest_first_and_of_one_stage_where_asked(store: Store) -> None:
    for number, stage in enumerate(("closed", "open", "open")):
        store.put_incident(f"inc-{number}", float(number), stage, {"number": number})
    assert [one["number"] for one in store.incidents()] == [2, 1, 0]
    assert [one["number"] for one in store.incidents(1, "open")] == [2]
    store.put_incident("inc-2", 2.0, "closed", {"number": 2, "over": True})
    assert [one["number"] for one in store.incidents(10, "open")] == [1]
    assert store.incident("inc-2") == ({"number": 2, "over": True}, None)


def test_the_facts_of_an_incident_stay_until_others_are_given(store: Store) -> None:
    store.put_incident("inc-1", 1.0, "open", {}, b"facts")
    store.put_incident("inc-1", 1.0, "closed", {"over": True})
    assert store.incident("inc-1") == ({"over": True}, b"facts")
    store.put_incident("inc-1", 1.0, "closed", {}, b"more facts")
    assert store.incident("inc-1") == ({}, b"more facts")


def test_it_tells_how_it_fares(store: Store) -> None:
    assert set(store.snapshot()) == {
        *("path", "waiting", "events_dropped", "write_failures", "problem", "set_aside")
    }
