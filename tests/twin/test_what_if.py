from dataclasses import replace

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import ConfigError, nanos
from holdfast.sim.run import Interval
from holdfast.sim.workload import Lengths, Workload
from holdfast.twin.arms import Difference, Figure
from holdfast.twin.sweep import Axis, sweep_fleet
from holdfast.twin.what_if import Baseline, Change, RunPlan, duration_for, scaled, what_if
from twin_data import FLEET, LAW

RUSH = Workload(rate=14.0, prompt=Lengths(mean=100.0), output=Lengths(mean=40.0))
CALM = replace(RUSH, rate=3.0)
PLAN = RunPlan(duration_s=30.0, seeds=3, jobs=1, diagnosis=False)
REPLICAS = "models.llama.launch.replicas"


def baseline(traffic=RUSH, text=FLEET):
    return Baseline(text, traffic={"llama": traffic}, engines={"llama": LAW})


def rows(answer):
    return {one.figure.name: one for one in answer.differences}


def test_more_replicas_help_beyond_chance_and_the_diff_says_how():
    answer = what_if(baseline(), Change({REPLICAS: 4}), replace(PLAN, seeds=6))
    late = rows(answer)["first_token_p95_s"]
    assert late.clear
    assert late.change.high < 0
    assert late.change.mean == pytest.approx(late.after.mean - late.before.mean)
    assert answer.replicas == (2, 4)
    assert answer.cost_per_hour == (5.0, 10.0)
    assert "+      replicas: 4" in answer.diff


def test_under_common_random_numbers_no_change_is_no_difference():
    same = what_if(baseline(CALM), Change({"models.llama.slo_first_token": "2s"}), PLAN)
    for one in same.differences:
        if one.change is not None:
            assert (one.change.mean, one.change.half) == (0.0, 0.0), one.figure.name
            assert not one.clear


def test_traffic_grows_and_the_fleet_stays():
    answer = what_if(baseline(CALM), Change(traffic=3.0), PLAN)
    assert answer.rate == (3.0, 9.0)
    assert answer.diff == ""
    assert rows(answer)["per_token_mean_s"].change.low > 0


def test_faults_alone_are_compared_with_a_fleet_without_them_and_incidents_are_told():
    hang = Fault(FaultKind.HANG, "llama-1", nanos(10.0), nanos(40.0))
    plan = RunPlan(duration_s=60.0, seeds=1, jobs=1)
    answer = what_if(baseline(CALM), Change(faults=(hang,)), plan)
    told = answer.to_dict()
    assert told["incidents"]["before"] == []
    assert [one["cause"] for one in told["incidents"]["after"]] == ["hung"]
    assert rows(answer)["detect_s"].before is None
    assert rows(answer)["detect_s"].after.mean < 20.0
    # With a change the fault strikes both fleets: what does the change do to one in trouble?
    both = what_if(baseline(CALM), Change({REPLICAS: 3}, faults=(hang,)), replace(plan, seeds=1))
    assert both.to_dict()["incidents"]["before"] != []


SCALING = "models.llama.scaling"


def test_an_autoscaler_adds_what_a_rush_needs_and_that_is_paid_for():
    plan = replace(PLAN, duration_s=180.0, seeds=1)
    answer = what_if(baseline(), Change({SCALING: {"min": 2, "max": 4}}), plan)
    found = rows(answer)
    assert found["replicas"].before.mean == 2.0
    assert 2.5 < found["replicas"].after.mean < 4.0  # it began with two, and a start takes a while
    assert found["first_token_p95_s"].after.mean < found["first_token_p95_s"].before.mean
    assert found["failed"].after.mean == 0
    assert answer.replicas == (2, 2)
    assert answer.cost_per_hour[0] == 5.0
    assert answer.cost_per_hour[1] == pytest.approx(2.5 * found["replicas"].after.mean)
    assert "scaling" in answer.diff
    assert any("autoscaler decides as in the fleet, 2 to 4 replicas" in n for n in answer.notes)


def test_an_autoscaler_takes_away_what_nobody_needs_and_fails_nobody():
    calm = {"min": 1, "max": 4, "up_window_s": 5, "down_window_s": 30, "tokens_per_s": 5_000}
    edits = {REPLICAS: 4, SCALING: calm}
    plan = replace(PLAN, duration_s=120.0, seeds=1)
    answer = what_if(baseline(replace(RUSH, rate=1.0)), Change(edits), plan)
    found = rows(answer)
    assert found["replicas"].after.mean < 2.5
    assert found["failed"].after.mean == found["refused"].after.mean == 0


def test_an_autoscaler_that_begins_outside_of_its_bounds_is_refused():
    with pytest.raises(ConfigFileError, match="outside of what scaling allows"):
        what_if(baseline(), Change({SCALING: {"min": 3, "max": 4}}), PLAN)


def test_a_change_that_the_fleet_file_refuses_is_refused_with_its_field():
    with pytest.raises(ConfigFileError, match="routing: is 'nope'"):
        what_if(baseline(), Change({"models.llama.routing": "nope"}), PLAN)
    with pytest.raises(ConfigError, match=r"traffic: is 0; use 0\.01 to 100"):
        Change(traffic=0.0)
    with pytest.raises(ConfigError, match="seeds: is 0"):
        RunPlan(seeds=0)
    with pytest.raises(ConfigError, match="duration: is -1"):
        RunPlan(duration_s=-1.0)


def test_a_trace_goes_faster_where_traffic_grows():
    trace = Workload(trace="t.jsonl", speed=2.0)
    assert scaled({"m": trace}, 3.0)["m"].speed == 6.0
    assert scaled({"m": CALM}, 3.0)["m"].rate == 9.0


def test_a_run_is_as_long_as_some_thousand_requests_take():
    assert duration_for(10.0) == 300.0
    assert duration_for(0.001) == 3_600.0
    with pytest.raises(ConfigError, match="traffic"):
        duration_for(0.0)


@pytest.mark.parametrize(
    ("change", "clear"),
    [
        (Interval(1.0, 0.5, 5), True),
        (Interval(-1.0, 0.5, 5), True),
        (Interval(1.0, 1.5, 5), False),
        (Interval(1.0, 0.0, 1), False),  # one seed knows nothing of chance
        (None, False),
    ],
)
def test_only_an_interval_without_zero_is_beyond_chance(change, clear):
    figure = Figure("goodput", "answered well", "share", 1)
    assert Difference(figure, None, None, change).clear is clear


def test_a_sweep_marks_what_nothing_beats_and_sorts_by_cost():
    axes = [Axis("replicas", (REPLICAS,), (2, 3)), Axis("traffic", (), (1, 4))]
    seen = []
    answer = sweep_fleet(
        baseline(CALM),
        axes,
        Change(),
        replace(PLAN, seeds=1, duration_s=20.0),
        goal="first_token_p95_s",
        progress=lambda done, whole: seen.append((done, whole)),
    )
    assert seen[-1] == (4, 4)
    costs = [point.cost for point in answer.points]
    assert costs == [5.0, 5.0, 7.5, 7.5]
    best = [point for point in answer.points if point.best]
    served = [point.figures["first_token_p95_s"].mean for point in best]
    assert served == sorted(served, reverse=True)
    assert best[0].values == {"replicas": 2, "traffic": 1}
    place = next(n for n, point in enumerate(answer.points) if point.replicas == 3)
    assert "+      replicas: 3" in answer.diff(place)


def test_a_sweep_refuses_what_it_cannot_try_before_it_runs():
    plan = RunPlan(jobs=1)
    with pytest.raises(ConfigFileError, match="routing: is 'nope'"):
        sweep_fleet(
            baseline(),
            [Axis("routing", ("models.llama.routing",), ("power_of_two", "nope"))],
            Change(),
            plan,
            goal="goodput",
        )
    many = [Axis(str(n), (), tuple(range(1, 10))) for n in range(4)]
    with pytest.raises(ConfigError, match="6,561 combinations"):
        sweep_fleet(baseline(), many, Change(), plan, goal="goodput")
    with pytest.raises(ConfigError, match="vary: names nothing"):
        sweep_fleet(baseline(), [], Change(), plan, goal="goodput")
    with pytest.raises(ConfigError, match="axis x: has no value"):
        Axis("x", (), ())
