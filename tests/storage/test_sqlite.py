import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import pytest

from holdfast.ports import StoredEvent, StoreError
from holdfast.storage import sqlite as module
from holdfast.storage.sqlite import SqliteStore


@contextmanager
def opened(path, **options):
    store = SqliteStore(path, **options)
    try:
        yield store
    finally:
        store.close()


def add(store, number, replica="m-1", kind=None):
    return store.add_event(float(number), "m", replica, f"event {number}", "because", kind)


def until(condition, timeout_s=10.0):
    """The writer is a thread of its own; there is no event for each thing that it does."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextmanager
def locked(path):
    """Another process holds the file for writing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "store.db"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "BUSY_MS", 10)
    monkeypatch.setattr(module, "RETRY_S", 0.02)


# --- what is kept ---------------------------------------------------------------------------------


def test_what_was_put_is_there_at_once_and_after_another_start(path):
    with opened(path) as store:
        assert (store.replicas(), store.answers(), store.settings()) == ({}, {}, {})
        assert store.events() == []
        store.put_replica("m-1", {"pid": 7, "zone": "a"})
        store.put_replica("m-2", {"pid": 8})
        store.put_replica("m-1", {"pid": 9})
        store.drop_replica("m-2")
        store.drop_replica("nobody")
        store.put_answers({"keys": [1, 2]})
        store.put_setting("scale:m", 3)
        store.put_setting("note", None)
        assert add(store, 1, kind="oom")
        assert store.replicas() == {"m-1": {"pid": 9}}
        assert store.events() == [StoredEvent(1.0, "m", "m-1", "event 1", "because", "oom")]
        assert store.flush()
        assert store.close()
        assert store.close()
    with opened(path) as store:
        assert store.replicas() == {"m-1": {"pid": 9}}
        assert store.answers() == {"keys": [1, 2]}
        assert store.settings() == {"scale:m": 3, "note": None}
        assert store.events() == [StoredEvent(1.0, "m", "m-1", "event 1", "because", "oom")]
        assert store.set_aside is None


def test_what_the_caller_does_to_its_values_later_changes_nothing(path):
    with opened(path) as store:
        data = {"pid": 7}
        store.put_replica("m-1", data)
        data["pid"] = 8
        store.replicas()["m-1"]["pid"] = 9
        assert store.replicas() == {"m-1": {"pid": 7}}


def test_what_is_not_json_or_too_large_is_refused_where_it_is_put(path, monkeypatch):
    monkeypatch.setattr(module, "STATES_MAX", 1)
    with opened(path) as store:
        with pytest.raises(TypeError):
            store.put_replica("m-1", {"socket": object()})
        with pytest.raises(ValueError, match="at a time"):
            store.add_event(float("nan"), "m", "m-1", "ready", "")
        store.put_setting("one", 1)
        store.put_setting("one", 2)
        with pytest.raises(StoreError, match="more than 1 "):
            store.put_setting("two", 1)
        monkeypatch.setattr(module, "VALUE_BYTES_MAX", 10)
        with pytest.raises(StoreError, match="too large"):
            store.put_answers({"text": "a" * 20})
        assert store.settings() == {"one": 2}
        assert store.flush()


def test_a_text_that_no_file_can_hold_stops_nothing(path):
    with opened(path) as store:
        store.add_event(1.0, "m\ud800", "m-1\ud800", "w\x00", "r" * 5_000)
        store.put_replica("m-1\ud800", {})
        assert store.flush()
        assert store.events(replica="m-1\ud800")[0].replica == "m-1?"
    with opened(path) as store:
        (event,) = store.events(replica="m-1?")
        assert (event.model, event.what, len(event.reason)) == ("m?", "w\x00", 2_000)
        assert list(store.replicas()) == ["m-1?"]
        store.drop_replica("m-1\ud800")
        assert store.replicas() == {}


def test_others_of_the_machine_cannot_read_the_file(path):
    with opened(path) as store:
        store.put_setting("a", 1)
        assert store.flush()
        assert {part.stat().st_mode & 0o077 for part in path.parent.iterdir()} == {0}


# --- events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("recent", [3, 1_000])
def test_the_newest_events_come_oldest_first_and_by_replica(path, monkeypatch, recent):
    monkeypatch.setattr(module, "RECENT_MAX", recent)
    with opened(path) as store:
        for number in range(10):
            add(store, number, f"m-{number % 2}")
        assert store.flush()
        assert [event.at for event in store.events()] == list(range(10))
        assert [event.at for event in store.events(4)] == [6, 7, 8, 9]
        assert [event.at for event in store.events(2, "m-0")] == [6, 8]
        assert [event.at for event in store.events(100, "m-1")] == [1, 3, 5, 7, 9]
        assert store.events(0) == store.events(-1) == store.events(5, "nobody") == []


def test_events_not_yet_written_are_seen_once(path, impatient):
    with opened(path) as store:
        add(store, 1)
        assert store.flush()
        with locked(path):
            add(store, 2)
            assert [event.at for event in store.events()] == [1, 2]
        assert store.flush()
        assert [event.at for event in store.events()] == [1, 2]


def test_old_events_are_pruned(path):
    with opened(path, events_max=100) as store:
        for number in range(1_000):
            add(store, number)
            if number % 100 == 0:
                assert store.flush()
        assert store.flush()
        assert [event.at for event in store.events(5_000)] == list(range(900, 1_000))
        with closing(sqlite3.connect(path)) as reader:
            assert reader.execute("SELECT count(*) FROM events").fetchone()[0] <= 102
    with opened(path, events_max=10) as store:
        assert [event.at for event in store.events(5_000)] == list(range(990, 1_000))


def test_order_holds_when_the_clock_was_set_back(path, monkeypatch):
    with opened(path) as store:
        add(store, 1)
        monkeypatch.setattr(module.time, "time_ns", lambda: 1_000)
        add(store, 2)
    with opened(path) as store:
        add(store, 3)
        assert store.flush()
        assert [event.at for event in store.events()] == [1, 2, 3]


# --- when the disk does not follow ----------------------------------------------------------------


def test_a_full_queue_is_counted_and_blocks_nobody_and_loses_no_state(path, impatient):
    with opened(path, queue_max=5) as store:
        with locked(path):
            kept = [add(store, number) for number in range(20)]
            store.put_replica("m-1", {"pid": 7})
            for number in range(1_000):
                store.put_setting("scale:m", number)
            assert kept == [True] * 5 + [False] * 15
            assert store.events_dropped == 15
            assert store.snapshot()["waiting"] == 5 + 1 + 1_000
            assert not store.flush(0.01)
            until(lambda: store.write_failures)
            assert "locked" in store.snapshot()["problem"]
        assert store.flush()
        until(lambda: store.problem is None)
    with opened(path) as store:
        assert store.replicas() == {"m-1": {"pid": 7}}
        assert store.settings() == {"scale:m": 999}
        assert [event.at for event in store.events()] == [0, 1, 2, 3, 4]
        assert store.set_aside is None


def test_close_gives_up_on_a_disk_that_does_not_follow_and_says_so(path, impatient):
    with opened(path) as store, locked(path):
        add(store, 1)
        assert not store.close()


def test_any_failure_of_a_write_is_told_and_tried_again(path, impatient, monkeypatch):
    with opened(path) as store:
        commit = store._commit
        monkeypatch.setattr(store, "_commit", lambda *_: 1 / 0)
        add(store, 1)
        until(lambda: store.write_failures > 1)
        assert store.problem == "division by zero"
        monkeypatch.setattr(store, "_commit", commit)
        assert store.flush()


def test_a_place_where_no_file_can_be_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"store\.db"):
        SqliteStore(tmp_path / "file" / "store.db")
    (tmp_path / "store.db").mkdir()
    with pytest.raises(StoreError, match=r"store\.db"):
        SqliteStore(tmp_path / "store.db")


# --- broken files ---------------------------------------------------------------------------------


def fill(path):
    with opened(path) as store:
        for number in range(2_000):
            add(store, number)
        store.put_replica("m-1", {"pid": 7})


def garbage(path):
    path.write_bytes(b"this is no database" * 500)


def cut(path):
    os.truncate(path, path.stat().st_size // 2 + 100)


def holes(path):
    with path.open("r+b") as stream:
        for page in range(2, path.stat().st_size // 4096, 2):
            stream.seek(page * 4096)
            stream.write(b"\xff" * 4096)


def later_version(path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")


def other_tables(path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE state")
        other.execute("CREATE VIEW state AS SELECT 1")


@pytest.mark.parametrize("breaking", [garbage, cut, holes, later_version, other_tables])
def test_a_broken_file_is_set_aside_and_a_new_one_begins(path, breaking):
    fill(path)
    breaking(path)
    before = path.read_bytes()
    with opened(path) as store:
        assert store.set_aside is not None
        assert store.set_aside.parent == path.parent
        assert len(store.set_aside.read_bytes()) == len(before)
        assert (store.replicas(), store.events()) == ({}, [])
        store.put_replica("m-2", {})
        assert store.flush()
    with opened(path) as store:
        assert store.set_aside is None
        assert list(store.replicas()) == ["m-2"]


def test_only_a_few_broken_files_are_kept(path):
    for _ in range(6):
        path.parent.mkdir(exist_ok=True)
        garbage(path)
        with opened(path) as store:
            newest = store.set_aside
    kept = sorted(path.parent.glob("store.db.broken-*"))
    assert len(kept) == module.SET_ASIDE_MAX
    assert kept[-1] == newest


def test_a_value_that_is_no_json_is_left_out(path):
    with opened(path) as store:
        store.put_setting("good", 1)
        store.put_setting("bad", 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE state SET value = x'7b' WHERE name = 'bad'")
    with opened(path) as store:
        assert store.settings() == {"good": 1}


def test_a_file_that_breaks_while_in_use_is_written_anew_from_memory(path):
    with opened(path) as store:
        store.put_replica("m-1", {"pid": 7})
        store.put_answers({"known": True})
        add(store, 1)
        assert store.flush()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DROP TABLE events")
        assert [event.at for event in store.events()] == [1]  # and it does not raise
        add(store, 2)
        assert store.flush()
        assert store.set_aside is not None
        until(lambda: store.problem is None)
        assert store.write_failures == 1
    with opened(path) as store:
        assert store.replicas() == {"m-1": {"pid": 7}}
        assert store.answers() == {"known": True}
        assert [event.at for event in store.events()] == [1, 2]


def test_a_file_that_cannot_be_written_anew_yet_is_tried_again(path, impatient, monkeypatch):
    with opened(path) as store:
        store.put_replica("m-1", {"pid": 7})
        assert store.flush()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DROP TABLE state")
        allowed = threading.Event()
        move_aside = store._move_aside

        def sometimes():
            if not allowed.is_set():
                raise PermissionError(13, "not allowed")
            move_aside()

        monkeypatch.setattr(store, "_move_aside", sometimes)
        store.put_replica("m-2", {"pid": 8})
        until(lambda: store.problem is not None and "not allowed" in store.problem)
        allowed.set()
        assert store.flush()
        assert store.set_aside is not None
    with opened(path) as store:
        assert store.replicas() == {"m-1": {"pid": 7}, "m-2": {"pid": 8}}


# --- killed ---------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from holdfast.storage.sqlite import SqliteStore

store = SqliteStore(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    store.put_replica(f"m-{number % 50}", {"number": number})
    store.put_setting("number", number)
    store.add_event(float(number), "m", "m-1", "ready", "x" * 200)
    if number % 20 == 0 and store.flush(30):
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
"""


def test_what_flush_confirmed_survives_a_kill(path):
    """Killed at three moments of its own choosing, and taken up where it was each time."""
    for confirmations in (1, 3, 10):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        with writer:
            try:
                for _ in range(confirmations):
                    confirmed = int(writer.stdout.readline())
            finally:
                writer.send_signal(signal.SIGKILL)
                rest = writer.stdout.read()
            assert writer.wait(10) == -signal.SIGKILL
        told = [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        confirmed = max([confirmed, *told])
        with opened(path) as store:
            assert store.set_aside is None
            assert store.settings()["number"] >= confirmed
            newest = {event.at for event in store.events(confirmed + 10_000)}
            assert newest >= set(range(1, confirmed + 1))
            numbers = [data["number"] for data in store.replicas().values()]
            assert max(numbers) >= confirmed
