"""Replicas of one host slow each other down, and what lies outside of an engine delays nobody."""

from dataclasses import replace

import pytest

from holdfast.core.types import MILLISECOND, ConfigError, Replica
from holdfast.sim.clock import WORLD, Clock
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.hosts.shared_host import HostedEngine, SharedHost
from holdfast.sim.request_record import EngineRun
from holdfast.sim.run import run_experiment
from holdfast.sim.scenario import ModelSection
from holdfast.sim.workload import Lengths, Workload

PLAIN = EngineParameters(
    step_ms=10.0,
    per_sequence_ms=0.0,
    per_kv_token_ms=0.0,
    per_prompt_token_ms=0.0,
    host_room=1,
    neighbour_share=0.5,
)
STEP = 10 * MILLISECOND


def run_host(law, *plan):
    """Engines of one host; plan: (engine, time, tokens) of each request. When each was done."""
    clock, host, done = Clock(), SharedHost(law), {}
    engines = [
        HostedEngine(
            host,
            law,
            clock,
            lambda _run, _now: None,
            lambda run, now: done.__setitem__(run.attempt, now),
            lambda _engine, _now: None,
        )
        for _ in range(3)
    ]
    for number, (engine, at, tokens) in enumerate(plan):
        run = EngineRun(None, "r", number, 1, tokens)
        clock.at(at, WORLD, lambda it, now, e=engines[engine]: e.submit(it, now), run)
    clock.run(10**15)
    return [done[number] for number in range(len(plan))], engines


def test_a_replica_alone_runs_at_its_own_speed():
    assert run_host(PLAIN, (0, 0, 10))[0] == [10 * STEP]


def test_two_that_are_busy_together_take_longer_and_only_while_they_are():
    (first, second), _ = run_host(PLAIN, (0, 0, 10), (1, 0, 4))
    assert second == 4 * STEP * 3 // 2
    # The other one has its own speed back from the end of the step that runs then.
    assert first == 4 * STEP * 3 // 2 + 6 * STEP


def test_a_host_with_room_carries_as_many_at_full_speed():
    times, _ = run_host(replace(PLAIN, host_room=2), (0, 0, 10), (1, 0, 10))
    assert times == [10 * STEP, 10 * STEP]
    times, _ = run_host(replace(PLAIN, host_room=2), (0, 0, 10), (1, 0, 10), (2, 0, 10))
    assert times == [15 * STEP] * 3


def two_engines():
    """Two engines on one host; ``done`` gets the time at which each run ends, by its attempt."""
    clock, host, done = Clock(), SharedHost(PLAIN), {}
    told = (
        lambda _run, _now: None,
        lambda run, now: done.__setitem__(run.attempt, now),
        lambda _engine, _now: None,
    )
    one, other = (HostedEngine(host, PLAIN, clock, *told) for _ in range(2))
    return clock, done, one, other


def test_a_fault_that_slows_comes_on_top_and_a_crash_makes_room():
    clock, done, one, other = two_engines()
    one.pace(2.0, 0.0, 0)
    clock.at(0, WORLD, one.submit, EngineRun(None, "r", 0, 1, 6))
    clock.at(0, WORLD, other.submit, EngineRun(None, "r", 1, 1, 99))
    clock.at(3 * STEP, WORLD, lambda _, now: other.crash(now))
    clock.run(10**12)
    # Two steps beside the other, on a host with one and a half busy, then four alone.
    assert done[0] == 2 * 2 * STEP * 5 // 4 + 4 * 2 * STEP
    assert 1 not in done


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_one_that_waits_instead_of_working_leaves_its_neighbours_their_speed(how):
    clock, done, one, other = two_engines()
    clock.at(0, WORLD, one.submit, EngineRun(None, "r", 0, 1, 99))
    clock.at(0, WORLD, other.submit, EngineRun(None, "r", 1, 1, 10))
    if how == "hang":
        clock.at(3 * STEP, WORLD, lambda _, now: one.hang(now))
    else:
        clock.at(3 * STEP, WORLD, lambda _, now: one.pace(1.0, 10**15, now))
    clock.run(10**12)
    assert done == {1: 2 * STEP * 3 // 2 + 8 * STEP}  # at the next boundary it is alone


def test_replicas_of_a_scenario_share_hosts_as_it_says():
    assert ModelSection(name="m", replicas=3).hosts() == []
    assert ModelSection(name="m", replicas=3, per_host=2).hosts() == [
        ("m-0", "m/host-0"),
        ("m-1", "m/host-0"),
        ("m-2", "m/host-1"),
    ]


def test_a_world_with_hosts_and_overhead_answers_later_by_just_that():
    replicas = tuple(Replica(f"m-{n}", "m") for n in range(2))
    lengths = Lengths(mean=5.0, law="constant")
    traffic = (("m", Workload(rate=1.0, pattern="constant", prompt=lengths, output=lengths)),)
    law = replace(PLAIN, neighbour_share=0.0)

    def first(**how):
        setup = Experiment(replicas, 20.0, traffic, engine=law, canaries=False)
        told = run_experiment(replace(setup, **how), 1)["total"]
        assert told["goodput"] == 1.0
        return told["first_token_s"]["p50"]

    late = first(engine=replace(law, overhead_ms=7.0))
    assert late - first() == pytest.approx(0.007)
    hosts = (("m-0", "h"), ("m-1", "h"))
    assert first(engine=PLAIN, hosts=hosts) == first()  # one at a time: nobody is in the way


@pytest.mark.parametrize(
    ("field", "value"), [("overhead_ms", -1.0), ("neighbour_share", -0.1), ("host_room", 0)]
)
def test_a_bad_parameter_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"engine.{field}"):
        replace(PLAIN, **{field: value})
