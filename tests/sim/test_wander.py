"""Engines whose speed varies from second to second."""

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from holdfast.core.types import SECOND, ConfigError, Replica
from holdfast.sim.clock import WORLD, Clock
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.hosts.placement import EnginePlacement
from holdfast.sim.hosts.wander import SpeedWander
from holdfast.sim.request_record import EngineRun
from holdfast.sim.run import run_experiment
from holdfast.sim.workload import Lengths, Workload

STEADY = EngineParameters(
    step_ms=10.0, per_sequence_ms=0.0, per_kv_token_ms=0.0, per_prompt_token_ms=0.0
)
VARYING = replace(STEADY, wander=0.3)


def done_at(law, *plan, host=None):
    """When requests (engine, time, tokens) were done, on engines of one host or of their own."""
    clock, done = Clock(), {}
    placement = EnginePlacement(
        clock,
        Random,
        lambda _run, _now: None,
        lambda run, now: done.__setitem__(run.attempt, now),
    )
    engines = [placement.engine(f"r{number}", law, host, routed=False) for number in range(2)]
    for number, (engine, at, tokens) in enumerate(plan):
        run = EngineRun(None, "r", number, 1, tokens)
        clock.at(at, WORLD, lambda it, now, e=engines[engine]: e.submit(it, now), run)
    clock.run(10**15)
    assert clock.steps <= 100 * len(plan)  # nothing is drawn for engines that do nothing
    return [done[number] for number in range(len(plan))]


def test_answers_take_longer_in_some_seconds_and_shorter_in_others():
    begins = range(0, 400, 2)
    plan = [(0, at * SECOND, 100) for at in begins]
    took = [end - at * SECOND for at, end in zip(begins, done_at(VARYING, *plan), strict=True)]
    assert fmean(took) == pytest.approx(SECOND, rel=0.05)
    assert min(took) < 0.8 * SECOND
    assert max(took) > 1.2 * SECOND
    assert len(set(took)) > 150


def test_engines_of_one_host_are_slow_together_only_where_that_is_said():
    plan = [(0, 0, 500), (1, 0, 500)]
    one, other = done_at(replace(VARYING, wander_shared=True), *plan, host="h")
    assert one == other
    one, other = done_at(VARYING, *plan, host="h")
    assert one != other


@pytest.mark.parametrize("routed", [True, False])
def test_what_requests_meet_on_average_is_kept(routed):
    """Over time where they have no choice; in proportion to speed where they have."""
    clock, factors = Clock(), []
    wander = SpeedWander(0.3, clock, Random(1), routed=routed)
    wander.drive(lambda factor, _now: factors.append(factor) or len(factors) < 20_000)
    wander.work_began(0)
    clock.run(10**18)
    met = 1.0 / fmean(1.0 / one for one in factors) if routed else fmean(factors)
    assert met == pytest.approx(1.0, abs=0.01)
    assert (fmean(factors) > 1.05) is routed


def test_it_is_drawn_once_a_second_and_while_work_is_done():
    clock, drawn = Clock(), []
    wander = SpeedWander(0.3, clock, Random(1), routed=False)
    wander.drive(lambda _factor, now: drawn.append(now) or len(drawn) in (1, 2))
    wander.work_began(0)
    wander.work_began(0)
    clock.run(10 * SECOND)
    assert drawn == [0, SECOND, 2 * SECOND]
    wander.work_began(clock.now)  # after a rest
    clock.run(20 * SECOND)
    assert drawn[3:] == [10 * SECOND]


def test_a_fleet_of_varying_engines_keeps_its_mean_and_has_longer_tails():
    def told(law):
        replicas = tuple(Replica(f"r{number}", "m") for number in range(4))
        traffic = (("m", Workload(rate=8.0, output=Lengths(80.0, 0.3))),)
        return run_experiment(Experiment(replicas, 300.0, traffic, engine=law), 1)["total"]

    steady, varying = told(STEADY)["latency_s"], told(VARYING)["latency_s"]
    assert varying["mean"] == pytest.approx(steady["mean"], rel=0.08)
    assert varying["p99"] > 1.05 * steady["p99"]


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_spread_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match=r"engine\.wander"):
        replace(STEADY, wander=value)
