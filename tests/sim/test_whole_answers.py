"""Answers in one piece: nothing is shown before the end, so nothing is continued or half wrong."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.failure import Kind
from holdfast.core.messages import Answered, Dispatch, Finish, FirstContent, Silent
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import Replica, Request, nanos
from holdfast.sim.experiment import Experiment
from holdfast.sim.request_record import EngineRun, RequestRecord
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload, arrivals
from holdfast.sim.world import World

TRAFFIC = Workload(
    rate=6.0,
    prompt=Lengths(mean=50.0, law="constant"),
    output=Lengths(mean=40.0, law="constant"),
    stream=False,
)
SETUP = Experiment(
    tuple(Replica(f"r{place}", "m") for place in range(3)),
    duration_s=40.0,
    workloads=(("m", TRAFFIC),),
    loading=LoadingConfig(start_s=1.0, size_gb=0.0),
)


def run(*faults: Fault) -> tuple[World, list[Any], list[Any]]:
    events, actions = [], []

    def look(_now: int, machine: str, event: Any, done: Any) -> None:
        if machine == "flow":
            events.append(event)
            actions.extend(done)

    world = World(replace(SETUP, faults=FaultSchedule(faults)), 3, [look])
    world.run()
    return world, events, actions


def fault(kind: FaultKind, **more: Any) -> Fault:
    return Fault(kind, "r1", nanos(10.0), nanos(30.0), **more)


def test_requests_say_how_they_want_their_answers() -> None:
    request, _ = next(arrivals(TRAFFIC, "m", 1))
    assert request.whole
    request, _ = next(arrivals(replace(TRAFFIC, stream=True), "m", 1))
    assert not request.whole


def test_an_answer_comes_at_once_and_complete() -> None:
    world, events, actions = run()
    whole = [event for event in events if isinstance(event, Answered)]
    assert len(whole) == sum(isinstance(action, Finish) for action in actions) > 200
    assert {event.tokens for event in whole} == {40}
    assert not any(isinstance(event, FirstContent) for event in events)
    total = world.results.total()
    assert list(total.first_token) == list(total.latency)  # nothing of it was there before


@pytest.mark.parametrize("kind", [FaultKind.CRASH, FaultKind.HANG, FaultKind.STOP])
def test_what_a_replica_had_begun_is_begun_anew_elsewhere(kind: FaultKind) -> None:
    _, events, actions = run(fault(kind))
    again = [one for one in actions if isinstance(one, Dispatch) and one.attempt > 0]
    assert again
    assert all(one.resume_tokens == 0 for one in again)
    assert not any(isinstance(event, Silent) for event in events)
    assert {one.status for one in actions if isinstance(one, Finish)} == {200}


@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.RESET, FaultKind.STALL])
def test_what_breaks_streams_in_the_middle_finds_no_middle(kind: FaultKind) -> None:
    _, _, actions = run(fault(kind, tokens=3))
    assert not any(isinstance(one, Dispatch) and one.attempt > 0 for one in actions)
    assert {one.status for one in actions if isinstance(one, Finish)} == {200}


@pytest.mark.parametrize(("tokens", "ends_as"), [(0, Kind.RESET), (3, None)])
def test_what_breaks_before_the_first_token_breaks_them_too(
    tokens: int, ends_as: Kind | None
) -> None:
    unit = World(SETUP, 3).units["r1"]
    unit.faults = [fault(FaultKind.RESET, tokens=tokens)]
    unit.apply_faults(0)
    attempt = EngineRun(RequestRecord(Request(1, "m", 0, whole=True), 40), "r1", 0, 50, 40)
    unit.spoil(attempt)
    assert attempt.ends_as is ends_as


def test_a_wrong_answer_is_wrong_as_a_whole_and_a_discarded_one_harms_nobody() -> None:
    wrong = []

    def look(_now: int, machine: str, _event: Any, done: Any) -> None:
        if machine == "flow":
            wrong.extend(
                world.records[one.request_id].wrong for one in done if isinstance(one, Finish)
            )

    world = World(replace(SETUP, faults=FaultSchedule((fault(FaultKind.WRONG_OUTPUT),))), 3, [look])
    world.run()
    assert any(wrong)
    assert sum(wrong) < len(wrong) / 4
