"""A supervisor that is stopped or stuck is named by control; one that is well or late is not."""

import os

import pytest

from holdfast.control.gateways.serving_processes import ServingProcesses
from holdfast.control.gateways.supervisor_watch import BEAT_FILE, SupervisorWatch
from holdfast.core.health.process_watch import Condition, ProcessWatchConfig
from holdfast.core.types import SECOND
from holdfast.testing.store import MemoryStore

PID = 77
WALL = 1_000.0


class Machine:
    """A folder that looks like the kernel's, and a clock that a test moves."""

    def __init__(self, folder):
        self.folder = folder
        (folder / str(PID)).mkdir()
        self.now = 1_000 * SECOND
        self.cpu_ticks = 0
        self.beats = 0
        self.watch = SupervisorWatch(PID, folder / BEAT_FILE, ProcessWatchConfig(), folder)

    def second(self, state="S", *, beats=True, cpu_ticks=0, passed_s=1.0):
        """One second of a supervisor in this state; the row after it."""
        self.now += round(passed_s * SECOND)
        self.cpu_ticks += cpu_ticks
        words = ["0"] * 10 + [str(self.cpu_ticks), "0"]
        stat = f"{PID} (a ) name) {state} {' '.join(words)}\n"
        (self.folder / str(PID) / "stat").write_text(stat)
        if beats:
            self.beats += 1
            beat = self.folder / BEAT_FILE
            beat.touch()
            os.utime(beat, ns=(self.beats, self.beats))
        return self.watch.look(self.now, WALL)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_one_that_is_stopped_is_named_with_the_time_it_has_stood(machine):
    assert machine.second().condition == "turning"
    rows = [machine.second("T", beats=False) for _ in range(8)]
    assert [row.condition for row in rows] == ["stopped"] * 8
    assert [WALL - row.since for row in rows] == pytest.approx(list(range(8)))
    assert (rows[0].name, rows[0].pid) == ("supervisor", PID)
    assert machine.second("S").condition == "turning"


def test_one_that_does_not_turn_although_it_could_is_stuck(machine):
    machine.second()
    told = [machine.second("S", beats=False).condition for _ in range(40)]
    assert told[3] == "turning"
    assert told[10] == "late"
    assert told[-1] == "stuck"
    assert machine.second().condition == "turning"


@pytest.mark.parametrize(
    ("state", "cpu_ticks"),
    [("R", 0), ("D", 0)],  # it gets no CPU, or waits for a disk: its successor would, too
)
def test_a_busy_machine_makes_it_late_and_no_more(machine, state, cpu_ticks):
    machine.second()
    told = [machine.second(state, beats=False, cpu_ticks=cpu_ticks).condition for _ in range(60)]
    assert set(told) <= {"turning", "late"}


def test_a_control_that_slept_itself_knows_nothing_of_it(machine):
    machine.second()
    assert machine.second("T", beats=False).condition == "stopped"
    row = machine.second("T", beats=False, passed_s=60.0)
    assert WALL - row.since < 1.0


def test_without_a_heartbeat_file_only_the_kernel_is_believed(machine):
    told = {machine.second("S", beats=False).condition for _ in range(60)}
    assert told == {"starting"}
    assert machine.second("T", beats=False).condition == "stopped"
    (machine.folder / str(PID) / "stat").unlink()
    machine.now += SECOND
    assert machine.watch.look(machine.now, WALL).condition == "starting"


def test_it_is_told_like_the_processes_that_it_watches(machine, tmp_path):
    facts = []
    processes = ServingProcesses(tmp_path / "none", MemoryStore(), facts.append, lambda: WALL)
    processes.watch_supervisor(machine.watch)
    (machine.folder / str(PID) / "stat").write_text(f"{PID} (x) T {'0 ' * 12}\n")
    processes.look()
    (fact,) = facts
    assert (fact.process, fact.pid, fact.condition) == ("supervisor", PID, Condition.STOPPED)
    assert not fact.replaced
    assert processes.rows()[0]["condition"] == "stopped"
    assert processes.worries() == ["supervisor has been stopped for 0 s"]
    _, gauges = processes.metrics()
    assert list(gauges) == ['serving_process_late_seconds{process="supervisor"}']
