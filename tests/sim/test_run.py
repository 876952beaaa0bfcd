import json
from math import sqrt
from pathlib import Path

import pytest

from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import Replica, nanos
from holdfast.sim.experiment import Experiment
from holdfast.sim.invariants import Auditor, InvariantError
from holdfast.sim.run import Interval, Outcome, run_experiment, sweep
from holdfast.sim.scenario import Scenario, read_scenario
from holdfast.sim.workload import Workload

SCENARIO = """\
name: small
duration: 6s
models:
  - {name: m, replicas: 2, workload: {rate: 6, output: {mean: 20}}}
faults: [{kind: crash, target: m-0, at: 2s, until: 4s}]
variants:
  - {name: round robin, flow: {lane: {routing: round_robin}}}
  - {name: no canaries, canaries: false}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return read_scenario(path)


# --- intervals ------------------------------------------------------------------------------------


def test_a_single_seed_says_nothing_of_the_spread() -> None:
    assert Interval.of([3.0]) == Interval(3.0, 0.0, 1)


@pytest.mark.parametrize(
    ("count", "t"),
    [(2, 12.706), (3, 4.303), (6, 2.571), (11, 2.228), (21, 2.086), (31, 2.042), (32, 1.96)],
)
def test_the_interval_is_students(count: int, t: float) -> None:
    values = [float(value) for value in range(count)]
    found = Interval.of(values)
    assert found.mean == (count - 1) / 2
    deviation = sqrt(count * (count + 1) / 12)  # of 0, 1, … n - 1, with n - 1 below
    assert found.half == pytest.approx(t * deviation / sqrt(count))
    assert found.count == count
    assert (found.low, found.high) == (found.mean - found.half, found.mean + found.half)
    assert found.to_dict() == {"mean": found.mean, "low": found.low, "high": found.high}


def test_equal_values_have_no_interval() -> None:
    assert Interval.of([0.5] * 9) == Interval(0.5, 0.0, 9)


def test_any_iterable_of_values_will_do() -> None:
    assert Interval.of(value for value in (1.0, 3.0)).mean == 2.0


# --- one run --------------------------------------------------------------------------------------


def setup() -> Experiment:
    fleet = tuple(Replica(f"r{i}", "m") for i in range(3))
    hang = Fault(FaultKind.HANG, "r0", nanos(2.0), nanos(6.0))
    return Experiment(fleet, 8.0, (("m", Workload(rate=6.0)),), faults=FaultSchedule([hang]))


def test_the_account_of_a_run_is_plain_data() -> None:
    account = run_experiment(setup(), 1)
    assert json.loads(json.dumps(account)) == account
    assert account["seed"] == 1
    assert account["digest"] == ""
    assert account["events"] > 500
    assert set(account["phases"]) == {"before", "during", "after"}


def test_a_log_gives_the_run_a_name_and_changes_nothing() -> None:
    plain, logged = run_experiment(setup(), 1), run_experiment(setup(), 1, log=True)
    assert len(logged["digest"]) == 32
    assert {**logged, "digest": ""} == plain
    assert run_experiment(setup(), 1, log=True) == logged
    assert run_experiment(setup(), 2, log=True)["digest"] != logged["digest"]


def test_an_audit_changes_nothing_but_raises_where_a_promise_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_experiment(setup(), 1, audit=True, log=True) == run_experiment(setup(), 1, log=True)
    finished = []
    monkeypatch.setattr(Auditor, "finish", lambda _auditor, now: finished.append(now))
    run_experiment(setup(), 1, audit=True)
    assert len(finished) == 1

    def broken(_auditor: Auditor, now: int) -> None:
        raise InvariantError("as planned", "for the test", now)

    monkeypatch.setattr(Auditor, "check", broken)
    run_experiment(setup(), 1)
    with pytest.raises(InvariantError, match="as planned"):
        run_experiment(setup(), 1, audit=True)


# --- sweeps ---------------------------------------------------------------------------------------


def test_a_sweep_runs_every_variant_under_every_seed_in_that_order(scenario: Scenario) -> None:
    outcomes = sweep(scenario, [5, 3, 4], jobs=1)
    assert [outcome.variant for outcome in outcomes] == ["holdfast", "round robin", "no canaries"]
    for outcome in outcomes:
        assert [run["seed"] for run in outcome.runs] == [5, 3, 4]
    offered = [[run["total"]["offered"] for run in outcome.runs] for outcome in outcomes]
    assert offered[0] == offered[1] == offered[2]  # the same arrivals for all


def test_a_sweep_does_not_depend_on_how_many_processes_do_it(scenario: Scenario) -> None:
    steps: list[tuple[int, int]] = []
    many = sweep(scenario, range(2), jobs=2, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(done, 6) for done in range(7)]
    assert many == sweep(scenario, range(2), jobs=1)


def test_progress_is_told_within_one_process_too(scenario: Scenario) -> None:
    steps: list[tuple[int, int]] = []
    sweep(scenario, iter([1]), jobs=1, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_no_more_processes_are_started_than_there_are_tasks(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.sim.run.ProcessPoolExecutor", None)
    alone = scenario.model_copy(update={"variants": []})
    assert len(sweep(alone, [1], jobs=8)) == 1  # one task: it is done right here


# --- figures --------------------------------------------------------------------------------------


def test_a_figure_is_taken_over_all_runs_by_its_path() -> None:
    runs = tuple({"total": {"goodput": value, "latency_s": {"p99": None}}} for value in (1.0, 0.5))
    outcome = Outcome("holdfast", runs)
    assert outcome.figure("total", "goodput") == Interval.of([1.0, 0.5])
    assert outcome.figure("total", "latency_s", "p99") is None
    assert outcome.figure("phases", "during", "goodput") is None
    assert outcome.figure("total", "goodput", "p50") is None


def test_a_figure_measured_in_some_runs_only_counts_those() -> None:
    runs = ({"phases": {}}, {"phases": {"during": {"goodput": 0.25}}})
    assert Outcome("v", runs).figure("phases", "during", "goodput") == Interval(0.25, 0.0, 1)


def test_figures_of_a_real_sweep(scenario: Scenario) -> None:
    (outcome, *_) = sweep(scenario, range(3), jobs=1)
    goodput = outcome.figure("total", "goodput")
    assert goodput is not None
    assert 0.8 < goodput.mean <= 1.0
    assert goodput.count == 3
