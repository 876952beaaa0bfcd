import os

import pytest

from holdfast.agent import logs as module
from holdfast.agent.logs import SCAN_EVERY_S, Logs
from holdfast.agent.settings import LogRule, ReplicaRule
from holdfast.core.diagnose.facts import Mark

OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory\n"
LOADING = "Loading safetensors checkpoint shards: 10% Completed\n"
SERVING = "Application startup complete.\n"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def follow(clock):
    made = []

    def make(*patterns, ids=("r1", "r2"), owner=""):
        rules = [LogRule(str(pattern), owner) for pattern in patterns]
        own = Logs(rules, [ReplicaRule(name, "m", "pid", "1", "vllm") for name in ids], clock)
        made.append(own)
        return own

    yield make
    for own in made:
        own.close()


def add(path, text):
    with path.open("a") as opened:
        opened.write(text)


def test_lines_that_were_there_before_tell_the_phase_and_nothing_else(follow, tmp_path):
    path = tmp_path / "r1.log"
    add(path, LOADING + OOM)
    own = follow(tmp_path / "{replica}.log")
    news = own.look()
    assert (news.marks, news.phases) == ([], [("r1", "loading")])
    assert own.spoken["r1"].phase == "loading"
    assert own.spoken["r1"].spoke_at == pytest.approx(path.stat().st_mtime, abs=0.01)
    add(path, OOM + "a line of no meaning\n" + SERVING)
    news = own.look()
    assert news.marks == [("r1", Mark.GPU_MEMORY_FULL, "")]
    assert news.phases == [("r1", "serving")]
    assert own.look().marks == []


def test_a_file_that_appears_later_is_new_from_its_first_line(follow, tmp_path, clock):
    own = follow(tmp_path / "{replica}.log")
    assert "no file is" in (own.look() and own.problem)
    add(tmp_path / "r2.log", OOM)
    assert own.look().marks == []
    clock.now += SCAN_EVERY_S
    assert own.look().marks == [("r2", Mark.GPU_MEMORY_FULL, "")]
    assert own.problem == ""


def test_a_rotation_by_name_loses_nothing_and_reads_nothing_twice(follow, tmp_path, clock):
    path = tmp_path / "r1.log"
    add(path, "begun\n")
    own = follow(tmp_path / "r1.log*")
    own.look()
    add(path, OOM)
    path.rename(tmp_path / "r1.log.1")
    add(path, "CUDA error: an illegal memory access was encountered\n")
    clock.now += SCAN_EVERY_S
    marks = [mark for _, mark, _ in own.look().marks]
    clock.now += SCAN_EVERY_S
    marks += [mark for _, mark, _ in own.look().marks]
    assert marks == [Mark.GPU_MEMORY_FULL, Mark.CUDA_CORRUPTED]


def test_a_file_that_was_emptied_in_place_is_read_from_its_beginning(follow, tmp_path):
    path = tmp_path / "r1.log"
    add(path, "x\n" * 1000)
    own = follow(path, owner="r1")
    own.look()
    os.truncate(path, 0)
    own.look()
    add(path, OOM)
    assert len(own.look().marks) == 1


@pytest.mark.parametrize(
    ("pattern", "name", "ids", "owner"),
    [
        ("{replica}/out.log", "r2/out.log", ("r1", "r2"), "r2"),
        ("*-{replica}.log", "x-r1.log", ("r1", "r2"), "r1"),
        ("*.log", "engine-r2.log", ("r1", "r2"), "r2"),
        ("*.log", "r1-a.log", ("r1", "r1-a"), "r1-a"),
        ("*.log", "whatever.log", ("r1",), "r1"),
        ("*.log", "r11.log", ("r1", "r2"), None),
        ("{replica}.log", "r9.log", ("r1", "r2"), None),
    ],
)
def test_whose_log_a_file_is(follow, tmp_path, pattern, name, ids, owner):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    add(path, SERVING)
    own = follow(tmp_path / pattern, ids=ids)
    own.look()
    heard = [one for one, spoken in own.spoken.items() if spoken.phase]
    assert heard == ([owner] if owner else [])
    if owner is None:
        assert "nobody knows whose log" in own.problem


def test_there_is_an_end_to_the_files_and_the_newest_are_read(follow, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FILES_MAX", 2)
    for number in range(4):
        path = tmp_path / f"r1-{number}.log"
        add(path, SERVING)
        os.utime(path, (number, number))
    own = follow(tmp_path / "r1-*.log")
    own.look()
    assert sorted(own._files) == [str(tmp_path / f"r1-{number}.log") for number in (2, 3)]
    assert "4 files fit" in own.problem


def test_a_file_that_went_away_is_let_go(follow, tmp_path, clock):
    path = tmp_path / "r1.log"
    add(path, SERVING)
    own = follow(path)
    own.look()
    path.unlink()
    clock.now += SCAN_EVERY_S
    own.look()
    assert own._files == {}
    assert own.spoken["r1"].phase == "serving"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_log_that_is_not_ours_to_read_is_said(follow, tmp_path):
    path = tmp_path / "r1.log"
    add(path, SERVING)
    path.chmod(0)
    own = follow(path)
    own.look()
    assert "cannot be read: Permission denied" in own.problem


def test_a_new_process_has_not_said_anything_yet(follow, tmp_path):
    path = tmp_path / "r1.log"
    add(path, SERVING)
    own = follow(path)
    own.look()
    own.began("r1")
    own.began("nobody")
    assert own.spoken["r1"].phase == ""
    add(path, SERVING)
    assert own.look().phases == [("r1", "serving")]


def test_what_came_faster_than_it_is_read_is_counted(follow, tmp_path):
    path = tmp_path / "r1.log"
    path.touch()
    own = follow(path)
    own.look()
    add(path, ("x" * 99 + "\n") * 50_000)
    own.look()
    assert own.skipped_bytes > 1 << 20
