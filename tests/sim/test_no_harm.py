"""A fleet in which nobody is sick is left alone by the shipped defaults, whatever else goes on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.failure import Kind
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import Abort, Dispatch, Notice, Report
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.request.breaker import BreakerState
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import Replica, State, nanos
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.scenario import Scenario, prepare, read_scenario
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("no-harm-*.yaml"))
LEARNING_S = 60.0  # deadlines are learned by then, and the slots are full
AFTER_S = 60.0  # what was begun before or during the trouble has ended
TROUBLE_S = 30.0

DEADLINES = (Kind.FIRST_TOKEN_TIMEOUT, Kind.BETWEEN_TOKENS_TIMEOUT, Kind.CONNECT_TIMEOUT)


def shortened(of: Scenario) -> Scenario:
    """The same load and the same trouble, in the middle of two and a half minutes."""
    window = {"at": LEARNING_S, "until": LEARNING_S + TROUBLE_S}
    faults = [fault.model_copy(update=window) for fault in of.faults]
    duration = LEARNING_S + TROUBLE_S + AFTER_S
    return of.model_copy(update={"duration": duration, "faults": faults})


def setup_of(name: str, *, slots: int = 0, seed: int = 1) -> Experiment:
    _, setup = prepare(shortened(read_scenario(EXAMPLES / name)), seed).variants[0]
    replicas = tuple(replace(replica, slots=slots) for replica in setup.replicas)
    return replace(setup, replicas=replicas)


def account(setup: Experiment, seed: int = 1) -> Counter[str]:
    """What was done to requests and to replicas."""
    world = World(setup, seed)
    seen: Counter[str] = Counter()

    def observe(_now: int, _whose: str, _event: Any, actions: Sequence[Any]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                seen["attempts"] += 1
            elif isinstance(action, Abort) and action.kind in DEADLINES:
                seen["given up"] += 1
            elif isinstance(action, Report) and action.what == BreakerState.OPEN:
                seen["breakers opened"] += 1
            elif isinstance(action, Notice) and action.what in set(State) - {State.READY}:
                seen["left ready"] += action.what != State.WARMING  # so all began

    world.add_observer(observe)
    results = world.run()
    total = results.total()
    seen["ejected"] = results.ejected
    seen["offered"], seen["good"] = total.offered, total.good
    seen["refused"], seen["failed"] = total.refused, total.failed
    seen["firings"] = sum(lane.deadlines.firings for lane in world.flow.lanes.values())
    return seen


def test_there_is_load_a_slowdown_and_a_pause():
    assert FILES == ["no-harm-load.yaml", "no-harm-pause.yaml", "no-harm-slowdown.yaml"]


@pytest.mark.parametrize("name", FILES)
def test_the_files_change_no_policy_and_break_nobody_alone(name):
    scenario = read_scenario(EXAMPLES / name)
    assert scenario.flow == FlowConfig()
    assert scenario.fleet == FleetConfig()
    assert scenario.variants == []
    assert scenario.duration == 600.0
    assert {fault.target for fault in scenario.faults} <= {"*"}
    assert all(model.slots == 0 for model in scenario.models)


def test_nobody_is_ejected_and_nothing_given_up(spread):
    cases = [(name, slots) for name in FILES for slots in (0, 32)]
    calls = [(setup_of(name, slots=slots),) for name, slots in cases]
    for case, seen in zip(cases, spread(account, calls), strict=True):
        assert seen["ejected"] == 0, case
        assert seen["left ready"] == 0, case
        assert seen["breakers opened"] == 0, case
        assert seen["given up"] == 0, case
        assert seen["attempts"] + seen["refused"] == seen["offered"], case  # no second attempt
        assert seen["failed"] == 0, case
        assert seen["good"] + seen["refused"] == seen["offered"], case


def test_at_nine_tenths_of_its_slots_a_fleet_refuses_nobody_and_no_wait_runs_out(spread):
    (seen,) = spread(account, [(setup_of("no-harm-load.yaml"),)])
    assert seen["good"] == seen["offered"] > 3000
    assert seen["firings"] == 0


def test_in_a_pause_waits_do_run_out_and_are_borne(spread):
    calls = [(setup_of("no-harm-pause.yaml", slots=slots, seed=2), 2) for slots in (0, 32)]
    for seen in spread(account, calls):
        assert seen["firings"] > 100
        assert seen["given up"] == seen["ejected"] == 0


def test_whoever_takes_the_load_of_a_lost_peer_may_queue_inside_its_engine(spread):
    """Engines of 64 slots that nobody declared; one of two is gone for six to ten seconds."""
    calls = []
    for rate, back_s, seed in ((30.0, 70.0, 1), (36.0, 70.0, 1), (40.0, 66.0, 2)):
        lengths = {"prompt": Lengths(mean=100.0, maximum=200), "output": Lengths(mean=150.0)}
        setup = Experiment(
            tuple(Replica(f"r{n}", "m") for n in range(2)),
            duration_s=120.0,
            engine=EngineParameters(batch_max=64),
            workloads=(("m", Workload(rate=rate, **lengths)),),
            faults=FaultSchedule((Fault(FaultKind.CRASH, "r0", nanos(60.0), nanos(back_s)),)),
        )
        calls.append((setup, seed))
    for seen in spread(account, calls):
        assert seen["given up"] == seen["firings"] == seen["failed"] == seen["refused"] == 0
        assert seen["breakers opened"] == 1  # of the one that was lost
        assert seen["good"] == seen["offered"]
