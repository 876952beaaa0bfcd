import pytest

from holdfast.sources.process_tracker import RECENT_S, ProcessTracker, start_of

GONE = "its process is gone"


class Machine:
    """Processes and one cgroup on paper."""

    def __init__(self, root):
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.proc.mkdir()
        self.cgroups.mkdir()
        self.lives = ProcessTracker(self.proc, self.cgroups)

    def process(self, pid, start=500, *, cgroup="/a", words=("engine",), state="S"):
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        fields = [state, "1", *["0"] * 17, str(start), "0"]
        (folder / "stat").write_text(f"{pid} (an (engine) {state}) {' '.join(fields)}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "cmdline").write_text("\0".join(words) + "\0")

    def end(self, pid):
        folder = self.proc / str(pid)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    def kills(self, count, path="a"):
        folder = self.cgroups / path
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text("")
        (folder / "memory.events").write_text(f"oom_kill {count}\n")

    def remove_cgroup(self, path="a"):
        for file in (self.cgroups / path).iterdir():
            file.unlink()
        (self.cgroups / path).rmdir()

    def look(self, now=1.0, host_kills=0, **pids):
        self.lives.look(pids, host_kills, now)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_process_lives_and_ends_and_the_next_is_another_life(machine):
    machine.process(10, 500, words=("engine", "--model=/mnt/m"))
    machine.look(1, r=10)
    life = machine.lives.living("r")
    assert life.words[:2] == ("engine", "--model=/mnt/m")
    assert life.start_s == 5.0
    machine.look(2, r=10)
    assert machine.lives.living("r") is life
    machine.end(10)
    machine.look(3, r=10)
    assert machine.lives.living("r") is None
    assert machine.lives.ended("r") is life
    assert (life.ended_at, life.oom, life.reason) == (3, False, GONE)
    machine.look(4, r=10)
    assert life.ended_at == 3
    machine.process(10, 900)  # the kernel gave the same pid again
    machine.look(5, r=10)
    assert machine.lives.living("r").mark != life.mark
    assert machine.lives.ended("r") is life


def test_another_pid_between_two_looks_is_an_end_too(machine):
    machine.process(10)
    machine.process(11, 700)
    machine.look(1, r=10)
    machine.look(2, r=11)
    assert machine.lives.ended("r").pid == 10
    assert machine.lives.living("r").pid == 11


def test_a_kill_counted_in_its_cgroup_is_the_kernels(machine):
    machine.kills(2)
    machine.process(10)
    machine.look(1, r=10)
    machine.kills(3)
    machine.end(10)
    machine.look(2, r=10)
    assert machine.lives.ended("r").oom
    assert "OOM killer" in machine.lives.ended("r").reason


def test_an_old_count_is_not_held_against_anybody(machine):
    machine.kills(2)
    machine.process(10)
    machine.look(1, r=10)
    machine.end(10)
    machine.look(2, r=10)
    assert not machine.lives.ended("r").oom


@pytest.mark.parametrize(("later", "oom"), [(RECENT_S - 1, True), (RECENT_S + 1, False)])
def test_an_engine_that_follows_its_killed_child_died_of_memory(machine, later, oom):
    machine.kills(0)
    machine.process(10)
    machine.look(1, r=10)
    machine.kills(1)
    machine.look(2, r=10)
    machine.end(10)
    machine.look(2 + later, r=10)
    assert machine.lives.ended("r").oom is oom


def test_where_the_cgroup_went_too_the_hosts_count_is_the_witness(machine):
    machine.kills(0)
    machine.process(10)
    machine.look(1, host_kills=5, r=10)
    machine.end(10)
    machine.remove_cgroup()
    machine.look(2, host_kills=6, r=10)
    assert machine.lives.ended("r").oom
    assert "cannot be asked" in machine.lives.ended("r").reason


def test_one_kill_on_the_host_does_not_explain_two_ends(machine):
    machine.kills(0)
    machine.process(10)
    machine.process(11)
    machine.look(1, host_kills=5, r=10, s=11)
    machine.end(10)
    machine.end(11)
    machine.remove_cgroup()
    machine.look(2, host_kills=6, r=10, s=11)
    for name in ("r", "s"):
        assert not machine.lives.ended(name).oom
        assert "perhaps" in machine.lives.ended(name).reason


def test_a_host_that_does_not_count_accuses_nobody(machine):
    machine.process(10)
    machine.look(1, host_kills=None, r=10)
    machine.end(10)
    machine.look(2, host_kills=9, r=10)
    assert not machine.lives.ended("r").oom


def test_who_is_asked_for_no_longer_is_forgotten(machine):
    machine.process(10)
    machine.look(1, r=10)
    machine.look(2)
    machine.look(3, s=10)
    assert machine.lives.living("r") is None
    assert machine.lives.ended("r") is None


def test_zombies_and_nonsense_do_not_live(machine):
    machine.process(10, state="Z")
    assert start_of(10, machine.proc) is None
    (machine.proc / "10" / "stat").write_text("10 (x) S 1\n")
    assert start_of(10, machine.proc) is None
    assert start_of(11, machine.proc) is None
    machine.look(1, r=10, s=None)
    assert machine.lives.living("r") is None
