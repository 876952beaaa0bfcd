import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest

from holdfast.core.types import ConfigError
from holdfast.storage import history as module
from holdfast.storage.history import History, HistoryConfig, HistoryError, Past, Question
from holdfast.storage.history_file import HistoryFile
from holdfast.storage.recall import POINTS_MAX, matching

NOW = 1_800_000_000.0  # divisible by 900
READY, DEAD = 3.0, 8.0


class Clock:
    """A steady clock that goes with the times that a test puts."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept" / "history.sqlite"


@contextmanager
def opened(path, config=None, told=lambda what, reason: None, steady=None):
    history = History(path, config, told, steady or Clock())
    try:
        yield history
    finally:
        history.close(20)


def fill(history, name, values, begin=NOW, step=10.0, at_once=20):
    """One value every ten seconds."""
    clock = history._steady
    for number, value in enumerate(values):
        clock.now = begin + number * step
        assert history.put(begin + number * step, {name: value})
        if number % at_once == 0:
            assert history.flush(20)
    assert history.flush(20)


def ask(history, name, since, until, points=300, **more):
    return history.query([name], Question(since, until, points, **more)).series.get(name, [])


# --- what is kept ---------------------------------------------------------------------------------


def test_points_are_there_after_a_write_and_after_another_start(path):
    with opened(path) as history:
        fill(history, "model/m/ttft_s", [0.1, 0.2, 0.3])
        expected = [(NOW, 0.1), (NOW + 10, 0.2), (NOW + 20, 0.3)]
        assert ask(history, "model/m/ttft_s", NOW, NOW + 60) == expected
    with opened(path) as again:
        assert ask(again, "model/m/ttft_s", NOW, NOW + 60) == expected
        assert again.names() == ["model/m/ttft_s"]
        fill(again, "model/m/ttft_s", [0.4], NOW + 30)
        assert len(ask(again, "model/m/ttft_s", NOW, NOW + 60)) == 4


def test_unknown_is_a_gap_and_no_zero(path):
    with opened(path) as history:
        fill(history, "model/m/burn", [1.0, None, None, None, None, 2.0])
        told = ask(history, "model/m/burn", NOW, NOW + 60)
        assert told == [(NOW, 1.0), (NOW + 10, None), (NOW + 50, 2.0)]


def test_one_late_sample_is_no_gap(path):
    with opened(path) as history:
        fill(history, "model/m/burn", [1.0, None, 2.0])
        assert ask(history, "model/m/burn", NOW, NOW + 60) == [(NOW, 1.0), (NOW + 20, 2.0)]


def test_blocks_and_open_points_are_one_row_of_points(path):
    """After an hour most points are in blocks, and the last minutes are not."""
    values = [float(number) for number in range(360)]
    with opened(path) as history:
        fill(history, "fleet/all/tokens_s", values)
        told = ask(history, "fleet/all/tokens_s", NOW, NOW + 3_600, 400)
        assert [value for _, value in told] == values
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("SELECT count(*) FROM blocks WHERE tier = 0").fetchone()[0] >= 3
            assert file.execute("SELECT count(*) FROM log").fetchone()[0] <= 182
    with closing(Past(path)) as past:
        told = past.query(["fleet/all/tokens_s"], Question(NOW, NOW + 3_600, 400))
        assert [value for _, value in told.series["fleet/all/tokens_s"]] == values


def test_each_tier_holds_the_rows_of_all_points(path):
    values = [float(number % 60) for number in range(720)]
    name = "model/m/waiting"
    with opened(path) as history:
        fill(history, name, values)
        for step, width in ((60.0, 6), (900.0, 90)):
            for value, reduce in (("mean", None), ("min", min), ("max", max), ("last", None)):
                told = ask(history, name, NOW, NOW + 7_190, 2_000, step_s=step, value=value)
                groups = [values[at : at + width] for at in range(0, len(values), width)]
                if value == "mean":
                    expected = [sum(group) / len(group) for group in groups]
                elif value == "last":
                    expected = [group[-1] for group in groups]
                else:
                    expected = [reduce(group) for group in groups]
                assert [found for _, found in told] == pytest.approx(expected)


def test_fine_points_expire_and_coarse_rows_stay(path):
    short = HistoryConfig(fine_keep_s=600, minute_keep_s=1_800, turns=6)
    with opened(path, short) as history:
        fill(history, "model/m/ready", [1.0] * 720)
        assert len(ask(history, "model/m/ready", NOW, NOW + 7_200, 800, step_s=10.0)) < 120
        minutes = ask(history, "model/m/ready", NOW, NOW + 7_200, 800, step_s=60.0)
        assert 25 <= len(minutes) < 125
        assert len(ask(history, "model/m/ready", NOW, NOW + 7_200, 800, step_s=900.0)) == 8


# --- questions ------------------------------------------------------------------------------------


def test_the_finest_tier_that_reaches_back_and_fits_answers(path):
    short = HistoryConfig(fine_keep_s=600, minute_keep_s=3_600, turns=6, rows_per_block=10)
    with opened(path, short) as history:
        fill(history, "model/m/ready", [1.0] * 1_080)
        until = NOW + 10_800

        def step(since, points):
            return history.query(["model/m/ready"], Question(since, until, points)).step_s

        assert step(until - 600, 300) == 10.0
        assert step(until - 3_000, 300) == 60.0
        assert step(until - 3_000, 5) == 60.0
        many = {f"model/{number}/x": 1.0 for number in range(30)}
        history.put(until, many)
        history.flush()
        few = history.query(list(many), Question(until - 3_000, until, 5))
        assert few.step_s == 900.0
        assert step(NOW, 300) == 900.0


@pytest.mark.parametrize("points", [2, 7, 50, 400])
@pytest.mark.parametrize("name", ["model/m/x", "replica/r/state"])
def test_there_are_never_more_rows_than_twice_the_points(path, points, name):
    values = [float(number % 5) if number % 7 else None for number in range(700)]
    with opened(path) as history:
        fill(history, name, values)
        for since in (NOW - 86_400, NOW, NOW + 3_000):
            told = ask(history, name, since, NOW + 7_000, points)
            assert 0 < len(told) <= 2 * points
            assert [at for at, _ in told] == sorted(at for at, _ in told)


def test_fewer_points_are_means_of_more(path):
    with opened(path) as history:
        fill(history, "model/m/x", [float(number) for number in range(300)])
        told = ask(history, "model/m/x", NOW, NOW + 3_000, 11)
        assert [round(value) for _, value in told][:3] == [14, 44, 74]
        highest = ask(history, "model/m/x", NOW, NOW + 3_000, 11, value="max")
        assert highest[0][1] == 29.0


def test_a_state_is_told_when_it_changed_and_never_averaged(path):
    name = "replica/r/state"
    with opened(path) as history:
        fill(history, name, [READY] * 200)
        history.put(NOW + 1_003.25, {name: DEAD})
        history.put(NOW + 1_004.5, {name: READY})
        history.flush()
        told = ask(history, name, NOW, NOW + 2_000, 20)
        changes = [(NOW, READY), (NOW + 1_003.25, DEAD), (NOW + 1_004.5, READY)]
        assert told == [*changes, (NOW + 1_990, READY)]
        coarse = ask(history, name, NOW, NOW + 2_000, 200, step_s=60.0)
        assert DEAD in [value for _, value in coarse]
        assert {value for _, value in coarse} == {READY, DEAD}


def test_names_are_found_by_prefix_and_by_pattern():
    names = ["replica/a/b/state", "replica/a/b/share", "replica/c/state", "model/state"]
    assert matching(names, "replica/a/", "prefix") == ["replica/a/b/share", "replica/a/b/state"]
    found = ["replica/a/b/state", "replica/c/state"]
    assert matching(names, "replica/*/state", "pattern") == found
    assert matching(names, "model/state*state", "pattern") == []
    assert matching(names, "model/state", "exact") == ["model/state"]
    assert matching(names, "model", "exact") == []


def test_an_answer_holds_so_many_series_and_says_how_many_more_there_are(path):
    with opened(path) as history:
        history.put(NOW, {f"replica/r-{n:04}/share": 0.5 for n in range(700)})
        history.flush()
        found = history.query(["replica/"], Question(NOW, NOW + 10, POINTS_MAX), "prefix")
        assert (len(found.series), found.left_out) == (600, 100)


def test_rows_as_they_are_kept_are_never_cut_short_for_many_series(path):
    with opened(path) as history:
        for number in range(3):
            values = {f"replica/r-{n:03}/share": 0.5 for n in range(100)}
            history.put(NOW + 10 * number, values)
        history.flush()
        question = Question(NOW, NOW + 20, 1_000, step_s=10.0)
        found = history.query(["replica/"], question, "prefix")
        assert (len(found.series), found.left_out) == (45, 55)
        assert {len(told) for told in found.series.values()} == {3}


def test_nobody_knows_an_unknown_series(path):
    with opened(path) as history:
        history.put(NOW, {"a/b/c": 1.0})
        history.flush()
        assert history.query(["a/b/d"], Question(NOW, NOW + 10)).series == {}


# --- bounds ---------------------------------------------------------------------------------------


def test_values_that_are_no_numbers_and_names_too_long_are_counted(path):
    with opened(path) as history:
        nonsense = {"a": float("nan"), "b": float("inf"), "c": 1e39, "": 1.0, "x" * 301: 1.0}
        assert history.put(NOW, nonsense)
        assert history.snapshot()["refused"] == 5
        with pytest.raises(ValueError, match="a point has a time"):
            history.put(float("nan"), {"a": 1.0})
        with pytest.raises(ValueError, match="a point has a time"):
            history.put(-1.0, {"a": 1.0})


def test_a_stuck_disk_costs_points_and_no_time(path, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    monkeypatch.setattr("holdfast.storage.history_file._BUSY_S", 0.01)
    with opened(path, HistoryConfig(waiting_points_max=10)) as history:
        history.put(NOW, {"a/b/c": 1.0})
        assert history.flush()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            kept = [history.put(NOW + 10 * n, {"a/b/c": 1.0}) for n in range(1, 15)]
            assert kept == [True] * 10 + [False] * 4
            assert not history.flush(0.1)
            with history._changed:
                assert history._changed.wait_for(lambda: history.problem, 10) or history.problem
            other.execute("ROLLBACK")
        assert history.flush(20)
        told = history.snapshot()
        assert (told["dropped"], told["waiting"], told["problem"]) == (4, 0, None)
        assert len(ask(history, "a/b/c", NOW, NOW + 200)) == 11


def test_the_file_stays_within_its_bound_and_the_finest_goes_first(path):
    told = []
    config = HistoryConfig(max_bytes=2 << 20, turns=45)
    with opened(path, config, lambda what, reason: told.append(what)) as history:
        rng = random.Random(1)
        for number in range(360):
            history._steady.now = NOW + 10 * number
            values = {f"r/{n}/x": rng.random() for n in range(400)}
            history.put(NOW + 10 * number, values)
            if number % 4 == 3:
                assert history.flush(20)
                parts = [path, path.with_name(path.name + "-wal")]
                assert sum(part.stat().st_size for part in parts) <= config.max_bytes
        with closing(sqlite3.connect(path)) as file:
            oldest = dict(file.execute("SELECT tier, min(first) FROM blocks GROUP BY tier"))
        assert oldest[0] > oldest[2]
        assert oldest[2] == NOW
        assert told == ["the history is full"]


def test_series_that_nobody_tells_of_make_room_for_new_ones(path):
    config = HistoryConfig(series_max=3, turns=2)
    with opened(path, config) as history:
        fill(history, "old/1/x", [1.0])
        for number in range(1, 30):
            history._steady.now = NOW + 10 * number
            history.put(NOW + 10 * number, {"live/1/x": 1.0, "live/2/x": 1.0})
        assert history.flush()
        history.put(NOW + 300, {"new/1/x": 1.0, "live/1/x": 1.0, "live/2/x": 1.0})
        assert history.flush()
        assert history.names() == ["live/1/x", "live/2/x", "new/1/x"]
        history.put(NOW + 310, {"new/2/x": 1.0, "live/1/x": 1.0, "live/2/x": 1.0, "new/1/x": 2.0})
        assert history.flush()
        assert history.snapshot()["refused"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"step_s": 0.0},
        {"fine_keep_s": float("nan")},
        {"fine_keep_s": 1e6},
        {"max_bytes": 1_000},
        {"turns": 0},
        {"rows_per_block": 1},
        {"series_max": 0},
        {"fine_share": 0.7},
        {"minute_share": 0.0},
        {"step_s": 120.0},
    ],
)
def test_a_config_that_cannot_work_is_refused(wrong):
    with pytest.raises(ConfigError, match="history"):
        HistoryConfig(**wrong)


# --- clocks ---------------------------------------------------------------------------------------


def test_a_clock_set_back_is_told_and_its_points_are_read_in_order(path):
    told = []
    with opened(path, None, lambda what, reason: told.append((what, reason))) as history:
        fill(history, "m/m/x", [1.0] * 120)
        history._steady.now += 10
        steady = history._steady.now
        for number in range(200):
            history._steady.now = steady + 10 * number
            history.put(NOW - 3_600 + 10 * number, {"m/m/x": 2.0})
        assert history.flush(20)
        found = ask(history, "m/m/x", NOW - 4_000, NOW + 1_200, 600)
        assert [at for at, _ in found] == sorted(at for at, _ in found)
        assert [value for _, value in found if value is not None] == [2.0] * 200 + [1.0] * 120
        rows = ask(history, "m/m/x", NOW - 4_000, NOW + 1_200, 600, step_s=60.0)
        assert [at for at, _ in rows] == sorted({at for at, _ in rows})
    assert [what for what, _ in told] == ["the clock jumped"]
    assert "-4" in told[0][1]


def test_a_clock_that_leaps_ahead_and_comes_back_makes_nothing_expire(path):
    told = []
    config = HistoryConfig(turns=3)
    with opened(path, config, lambda what, reason: told.append(what)) as history:
        fill(history, "m/m/x", [1.0] * 30)
        steady = history._steady.now
        year = 365 * 86_400.0
        for number in range(12):
            history._steady.now = steady + 10 * (number + 1)
            history.put(NOW + year + 10 * number, {"m/m/x": 5.0})
        assert history.flush(20)
        history._steady.now += 10
        fill(history, "m/m/x", [2.0] * 10, NOW + 430)
        found = ask(history, "m/m/x", NOW, NOW + 1_000, 600)
        values = [value for _, value in found if value is not None]
        assert values == [1.0] * 30 + [2.0] * 10
    assert told == ["the clock jumped", "the clock jumped"]


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_file_is_set_aside_and_a_new_one_begins(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"this is no database" * 1_000)
    told = []
    with opened(path, None, lambda what, reason: told.append((what, reason))) as history:
        fill(history, "m/m/x", [1.0])
        assert ask(history, "m/m/x", NOW, NOW + 10) == [(NOW, 1.0)]
        assert history.set_aside.read_bytes().startswith(b"this is no")
    assert [what for what, _ in told] == ["the history was damaged"]
    assert "a new one begins" in told[0][1]


def test_only_the_last_broken_files_are_kept(path):
    for _ in range(4):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no database" * 1_000)
        with opened(path) as history:
            fill(history, "m/m/x", [1.0])
    assert len(list(path.parent.glob("*.broken-*"))) == 2


def test_a_file_that_breaks_while_it_is_written_is_replaced_with_the_last_minutes(path):
    told = []
    with opened(path, None, lambda what, reason: told.append(what)) as history:
        fill(history, "m/m/x", [1.0, 2.0])
        with closing(sqlite3.connect(path)) as other:
            other.execute("DROP TABLE log")
            other.commit()
        fill(history, "m/m/x", [3.0], NOW + 20)
        found = [value for _, value in ask(history, "m/m/x", NOW, NOW + 60)]
        assert found == [1.0, 2.0, 3.0]
        assert history.set_aside is not None
    assert told == ["the history was damaged"]


def test_a_file_of_another_version_is_set_aside(path):
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 9")
    with opened(path) as history:
        fill(history, "m/m/x", [1.0])
        assert history.set_aside is not None


def test_a_damaged_block_costs_itself_alone(path):
    with opened(path, HistoryConfig(turns=3)) as history:
        fill(history, "m/m/x", [float(number) for number in range(30)], at_once=1)
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE blocks SET data = x'00' WHERE tier = 0 AND first = ?", (NOW,))
            other.execute("UPDATE blocks SET data = x'00' WHERE tier = 1")
            other.execute("UPDATE log SET data = x'00' WHERE id = (SELECT max(id) FROM log)")
            other.commit()
        assert 20 < len(ask(history, "m/m/x", NOW, NOW + 400)) < 30
        fill(history, "m/m/x", [1.0] * 10, NOW + 300)
        assert ask(history, "m/m/x", NOW, NOW + 400, step_s=60.0)
    with opened(path) as again:
        assert ask(again, "m/m/x", NOW, NOW + 400)


def test_a_place_that_cannot_be_written_is_a_problem_and_no_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "OPEN_S", 0.05)
    taken = tmp_path / "file"
    taken.write_text("a file where a folder should be")
    with opened(taken / "history.sqlite") as history:
        history.put(NOW, {"a/b/c": 1.0})
        assert not history.flush(0.1)
        with pytest.raises(HistoryError):
            history.query(["a/b/c"], Question(NOW, NOW + 10))
        with pytest.raises(HistoryError):
            history.names()
        assert history.snapshot()["problem"]


def test_what_comes_after_the_end_is_counted(path):
    history = History(path, steady=Clock())
    assert history.close()
    assert not history.put(NOW, {"a/b/c": 1.0})
    assert history.dropped == 1
    with pytest.raises(HistoryError, match="not open"):
        history.query(["a/b/c"], Question(NOW, NOW + 10))


WRITER = """
import sys
from pathlib import Path
from holdfast.storage.history import History
clock = lambda: now
now = 0.0
history = History(Path(sys.argv[1]), steady=clock)
for number in range(100_000):
    now = 10.0 * number
    history.put(1_800_000_000.0 + now, {f"r/{n}/x": float(number) for n in range(20)})
    assert history.flush(30)
    if number == 150:
        print("written", flush=True)
"""


def test_what_was_written_survives_a_kill(path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "written\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
    with closing(Past(path)) as past:
        found = past.query(["r/7/x"], Question(NOW, NOW + 1_500, 400)).series["r/7/x"]
    assert found[:151] == [(NOW + 10 * number, float(number)) for number in range(151)]
    with opened(path) as history:
        last = ask(history, "r/7/x", NOW, NOW + 1e6, 5_000, step_s=10.0)[-1]
        fill(history, "r/7/x", [7.0], last[0] + 10)
        found = ask(history, "r/7/x", NOW, NOW + 1e6, 5_000, step_s=10.0)
        values = [value for _, value in found]
        assert values == [*map(float, range(len(found) - 1)), 7.0]
        assert history.set_aside is None


def test_the_past_of_nobody_is_an_error(path, tmp_path):
    with pytest.raises(HistoryError, match="there is no history"):
        Past(path)
    wrong = tmp_path / "wrong.sqlite"
    wrong.write_bytes(b"no database" * 100)
    with pytest.raises(HistoryError, match=r"wrong\.sqlite"):
        Past(wrong)


def test_questions_and_points_may_come_from_many_threads(path):
    with opened(path, HistoryConfig(turns=3)) as history:
        failures = []

        def look():
            try:
                for _ in range(40):
                    found = history.query(["r/"], Question(NOW, NOW + 4_000), "prefix")
                    for told in found.series.values():
                        values = [value for _, value in told if value is not None]
                        assert values == sorted(values)
            except AssertionError as error:
                failures.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(150):
            history._steady.now = 10.0 * number
            history.put(NOW + 10 * number, {f"r/{n}/x": float(number) for n in range(10)})
        for thread in threads:
            thread.join(30)
        assert not failures


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((100, 100, 500), 2),  # samples and minutes have less than their shares: they stay
        ((300, 100, 300), 0),
        ((100, 400, 200), 1),
        ((300, 400, 10), 0),
        ((0, 0, 0), 0),
    ],
)
def test_a_long_past_does_not_cost_the_last_hours(path, sizes, expected):
    """In a file of 768 KB samples keep 192, minutes 268."""
    path.parent.mkdir(parents=True)
    file = HistoryFile(path, HistoryConfig(max_bytes=1 << 20), lambda what, reason: None)
    add = "INSERT INTO blocks (tier, series, first, last, count, data) VALUES (?, 1, ?, ?, 1, ?)"
    for tier, size in enumerate(sizes):
        for number in range(size):
            file._connection.execute(add, (tier, NOW + number, NOW + number, b"x" * 944))
    assert file._fullest() == expected
    file.close()
