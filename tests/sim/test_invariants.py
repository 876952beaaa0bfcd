"""Each promise can be broken, and the auditor then says which one; a healthy run breaks none."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.failure import Kind
from holdfast.core.messages import (
    Abort,
    Arrived,
    Dispatch,
    Ended,
    Finish,
    FirstContent,
    FleetView,
    Publish,
    ReplicaView,
    Tick,
)
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import SECOND, Replica, Request, State, nanos
from holdfast.sim.clock import CONTROL
from holdfast.sim.experiment import Experiment
from holdfast.sim.invariants import SWEEP_EVERY, Auditor, InvariantError
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

FLEET = (
    Replica("r0", "m"),
    Replica("r1", "m"),
    Replica("r2", "m", revision="2"),
    Replica("r3", "m", slots=64),
    Replica("n0", "n"),  # another model, whose pool is its own
)
CHAT = Workload(rate=20.0, output=Lengths(mean=100.0))


def setup(*faults: Fault) -> Experiment:
    return Experiment(FLEET, 20.0, (("m", CHAT),), faults=FaultSchedule(faults))


def view(version: int = 1, **shares: float) -> FleetView:
    views = (ReplicaView(each, State.READY, shares.get(each.id, 1.0)) for each in FLEET)
    return FleetView(version, tuple(views))


class Desk:
    """An auditor to whom anything may be told."""

    def __init__(self) -> None:
        self.world = World(setup(), 1)
        self.world.view = view()
        self.auditor = Auditor(self.world)
        self.request = Request(1, "m", arrived=0)

    def tell(self, event: Any, *actions: Any, now: int = 0) -> None:
        self.auditor.observe(now, "flow", event, actions)

    def send(self, attempt: int, replica_id: str = "r0", resume_tokens: int = 0) -> None:
        action = Dispatch(self.request, "m", attempt, replica_id, "chosen", SECOND, resume_tokens)
        self.tell(Tick(), action)


def arrived() -> Desk:
    desk = Desk()
    desk.tell(Arrived(desk.request))
    return desk


def broken(name: str) -> Any:
    return pytest.raises(InvariantError, match=rf"^{name} at \d+ ns: ")


# --- what is told ---------------------------------------------------------------------------------


def test_an_ordinary_life_breaks_nothing() -> None:
    desk = arrived()
    desk.send(0, "r0")
    desk.tell(FirstContent(1, 0))
    desk.tell(Ended(1, 0, Kind.CUT, 10))
    desk.send(1, "r1", resume_tokens=10)
    desk.tell(FirstContent(1, 1))
    desk.tell(Ended(1, 1), Finish(1, 200, "ok", "answered"))
    desk.auditor.finish(SECOND)


def test_late_news_of_a_finished_request_is_no_breach() -> None:
    desk = arrived()
    desk.tell(Tick(), Finish(1, 503, "overloaded", "full"))
    desk.tell(FirstContent(1, 0))
    desk.tell(Ended(1, 0))
    desk.auditor.finish(SECOND)


def test_time_runs_forward() -> None:
    desk = Desk()
    desk.tell(Tick(), now=5)
    with broken("time runs forward") as caught:
        desk.tell(Tick(), now=4)
    assert caught.value.name == "time runs forward"


def test_no_continuation_crosses_a_revision() -> None:
    desk = arrived()
    desk.send(0, "r0")
    desk.tell(FirstContent(1, 0))
    desk.tell(Ended(1, 0, Kind.CUT, 10))
    desk.send(1, "r2", resume_tokens=10)
    with broken("no continuation across revisions"):
        desk.tell(FirstContent(1, 1))


def test_no_work_is_sent_out_after_the_answer() -> None:
    desk = arrived()
    desk.tell(Tick(), Finish(1, 503, "overloaded", "full"))
    with broken("no work after the answer"):
        desk.send(0)


def test_attempts_are_bounded() -> None:
    desk = arrived()
    retry = FlowConfig().retry
    allowed = retry.attempts + 1 + retry.continuations + retry.moves
    for attempt in range(allowed):
        desk.send(attempt)
    with broken("attempts are bounded"):
        desk.send(allowed)


def test_continuations_are_bounded() -> None:
    desk = arrived()
    for attempt in range(FlowConfig().retry.continuations):
        desk.send(attempt, resume_tokens=5)
    with broken("continuations are bounded"):
        desk.send(9, resume_tokens=5)


def test_only_routable_replicas_get_work() -> None:
    desk = arrived()
    desk.world.view = view(r1=0.0)
    desk.send(0, "r0")
    with broken("only routable replicas get work"):
        desk.send(1, "r1")


def test_before_the_first_view_nobody_is_routable() -> None:
    desk = arrived()
    desk.world.view = None
    with broken("only routable replicas get work"):
        desk.send(0, "r0")


def test_there_is_one_answer_per_request() -> None:
    desk = arrived()
    finish = Finish(1, 200, "ok", "answered")
    with broken("one answer per request"):
        desk.tell(Tick(), finish, finish)


def test_only_open_requests_end() -> None:
    with broken("only open requests end"):
        Desk().tell(Tick(), Finish(7, 200, "ok", "answered"))


def test_nothing_runs_for_a_finished_request() -> None:
    desk = arrived()
    desk.send(0)
    with broken("nothing runs for a finished request"):
        desk.tell(Tick(), Finish(1, 504, "deadline_exceeded", "out of time"))


@pytest.mark.parametrize(("request_id", "attempt"), [(1, 3), (8, 0)])
def test_only_live_attempts_are_aborted(request_id: int, attempt: int) -> None:
    desk = arrived()
    desk.send(0)
    desk.tell(Tick(), Abort(1, 0, "r0", Kind.DEADLINE))
    with broken("only live attempts are aborted"):
        desk.tell(Tick(), Abort(request_id, attempt, "r0", Kind.DEADLINE))


def test_views_never_grow_older() -> None:
    desk = Desk()
    desk.tell(Tick(), Publish(view(3)))
    desk.tell(Tick(), Publish(view(3)))  # a heartbeat
    with broken("views never grow older"):
        desk.tell(Tick(), Publish(view(2)))


def test_every_request_ends() -> None:
    desk = arrived()
    with broken("every request ends"):
        desk.auditor.finish(SECOND)


# --- what is seen ---------------------------------------------------------------------------------


def sabotaged(sabotage: Callable[[World, Auditor], None], at: float = 8.3) -> None:
    """A healthy run in which somebody tampers with the books once."""
    world = World(setup(), 1)
    auditor = Auditor.watch(world)
    world.clock.at(nanos(at), CONTROL, lambda _, _now: sabotage(world, auditor))
    world.run()
    auditor.finish(world.clock.now)


def busiest(world: World) -> Any:
    candidates = world.flow.lanes["m"].pool.candidates.values()
    found = max(candidates, key=lambda candidate: candidate.inflight)
    assert found.inflight > 0
    return found


def forget_a_slot(world: World, _: Auditor) -> None:
    world.flow.lanes["m"].pool.inflight -= 1


def invent_an_attempt(world: World, _: Auditor) -> None:
    busiest(world).inflight += 1


def owe_tokens(world: World, _: Auditor) -> None:
    busiest(world).own_tokens = -(10**9)


def owe_prompts(world: World, _: Auditor) -> None:
    busiest(world).prefill_tokens = -(10**9)


def keep_a_prompt_waiting(world: World, _: Auditor) -> None:
    busiest(world).prefill_tokens += 1


def declare_fewer_slots(world: World, _: Auditor) -> None:
    candidate = busiest(world)
    assert candidate.inflight > 4
    candidate.slots = 1


def cook_both_books(world: World, auditor: Auditor) -> None:
    world.flow.lanes["m"].pool.inflight += 1
    auditor._live += 1


def eject_three_of_four(world: World, _: Auditor) -> None:
    for name in ("r0", "r1", "r2"):
        world.fleet.members[name].health.state = State.QUARANTINED


@pytest.mark.parametrize(
    ("sabotage", "name"),
    [
        (forget_a_slot, "every slot has an attempt"),
        (invent_an_attempt, "a replica's slots are its attempts"),
        (owe_tokens, "a replica's slots are its attempts"),
        (owe_prompts, "a replica's slots are its attempts"),
        (keep_a_prompt_waiting, "in-flight returns to zero"),
        (declare_fewer_slots, "declared slots are kept"),
        (cook_both_books, "the auditor's own books agree"),
        (eject_three_of_four, "never past half of a pool on suspicion"),
    ],
)
def test_tampering_with_the_books_is_found(sabotage: Any, name: str) -> None:
    with broken(name):
        sabotaged(sabotage)


def test_a_run_that_nobody_tampers_with_passes() -> None:
    sabotaged(lambda _world, _auditor: None)


def test_the_share_of_the_ejected_may_grow_when_others_die() -> None:
    world = World(setup(), 1)
    auditor = Auditor(world)
    world.run()
    health = {name: member.health for name, member in world.fleet.members.items()}
    health["r0"].state = health["r1"].state = State.QUARANTINED
    auditor.sweep(0)  # two of four
    health["r2"].state = State.DEAD
    auditor.sweep(0)  # two of three, and none of it is an ejection
    health["r3"].state = State.QUARANTINED
    with broken("never past half of a pool on suspicion"):
        auditor.sweep(0)


def test_lies_are_no_suspicion() -> None:
    world = World(setup(), 1)
    auditor = Auditor(world)
    world.run()
    for name in ("r0", "r1", "r2", "r3"):
        member = world.fleet.members[name]
        member.health.state, member.health.wrong = State.QUARANTINED, True
    auditor.sweep(0)


def test_what_is_left_in_a_queue_is_found_at_the_end() -> None:
    world = World(setup(), 1)
    auditor = Auditor.watch(world)
    world.run()
    late = Request(10**9, "m", arrived=0)
    assert world.flow.lanes["m"].queue.offer(late, world.clock.now, ready=True).refusal is None
    with broken("in-flight returns to zero"):
        auditor.finish(world.clock.now)


@pytest.mark.parametrize(
    "faults",
    [
        (),
        (Fault(FaultKind.CRASH, "r0", nanos(5.0), nanos(9.0)),),
        (Fault(FaultKind.HANG, "r1", nanos(5.0)), Fault(FaultKind.OOM, "r3", nanos(6.0))),
        (Fault(FaultKind.ZONE_LOSS, "*", nanos(5.0), nanos(12.0)),),
    ],
)
def test_a_run_keeps_every_promise_and_is_looked_at_after_every_event(
    faults: tuple[Fault, ...],
) -> None:
    world = World(setup(*faults), 2)
    auditor = Auditor.watch(world)
    world.run()
    auditor.finish(world.clock.now)
    assert auditor.checks == world.clock.steps > 10 * SWEEP_EVERY
