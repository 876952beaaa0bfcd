"""``bench/diagnosis_sim.py`` in small: simulated faults are named as live ones are."""

import importlib
import json
from pathlib import Path

import pytest

from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import Replica
from holdfast.sim.experiment import Experiment
from holdfast.sim.incident_verdicts import RIGHT_CAUSES
from holdfast.sim.run import run_experiment
from holdfast.sim.workload import Lengths, Workload

BENCH = Path(__file__).parents[2] / "bench"
CHAT = Workload(rate=8.0, prompt=Lengths(mean=200.0), output=Lengths(mean=40.0, maximum=200))


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("diagnosis_sim")


def test_every_kind_of_fault_has_its_right_causes() -> None:
    assert set(RIGHT_CAUSES) == set(FaultKind)


def test_the_faults_are_those_of_the_live_gauntlet(bench) -> None:
    live = importlib.import_module("gauntlet_trials").TRIALS
    assert {name: (one.failure_class, one.cause, one.comparison) for name, one in live.items()} == {
        name: (one.failure_class, one.cause, one.comparison) for name, one in bench.GAUNTLET.items()
    }


@pytest.mark.parametrize("name", ["crash", "sigstop", "hang", "stall", "cut", "garbage", "oom"])
def test_a_simulated_fault_is_named_as_live(bench, name: str) -> None:
    live, named = bench.GAUNTLET[name], bench.gauntlet_trial(name, 0)
    assert (named.failure_class, named.cause) == (live.failure_class, live.cause)
    assert named.accused == ()


def test_a_seed_gives_one_schedule(bench) -> None:
    assert bench.schedule_of(5).fault == bench.schedule_of(5).fault
    kinds = {bench.schedule_of(seed).fault.kind for seed in range(300)}
    assert kinds == set(bench.KINDS)


def test_a_table_is_printed_and_counted(bench, capsys) -> None:
    status = bench.main(["--only", "schedules", "--count", "2", "--seeds", "2", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert sum(sum(row.values()) for row in told["schedules"]["matrix"].values()) == 2
    assert status == int(told["schedules"]["share"] < bench.SHARE_MIN)


def test_diagnosis_that_observes_changes_no_figure_and_no_event(bench) -> None:
    schedule = bench.schedule_of(2)
    plain = run_experiment(schedule.experiment, 2, log=True)
    watched = run_experiment(schedule.experiment, 2, log=True, diagnosis=True)
    told = watched.pop("incidents")
    assert watched == plain
    assert told["faults"][0]["fault"] == schedule.fault.kind.value


def test_a_run_without_faults_has_no_incidents() -> None:
    replicas = tuple(Replica(f"r{index}", "m") for index in range(3))
    quiet = Experiment(replicas, duration_s=30.0, workloads=(("m", CHAT),))
    account = run_experiment(quiet, 1, diagnosis=True)
    assert account["incidents"] == {"opened": [], "faults": []}
