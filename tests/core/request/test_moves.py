from random import Random

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, Dispatch, Finish, FleetView, ReplicaView
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.life import Phase
from holdfast.core.request.moves import Moves
from holdfast.core.types import SECOND, Replica, Request, State

NOW = 100 * SECOND


def moves(*names: str, slots: int = 1) -> Moves:
    subject = Moves(FlowConfig(), Random)
    views = [ReplicaView(Replica(name, "m", slots=slots), State.READY, 1.0) for name in names]
    subject._book.apply(FleetView(1, tuple(views)), NOW)
    return subject


def opened(subject: Moves, name: str):
    return subject._desk.open(Request(name, "m", arrived=NOW), NOW)


def test_a_dispatch_claims_a_slot_and_files_the_wait():
    subject = moves("r1")
    life = opened(subject, "q1")
    lane = subject._lanes["m"]
    dispatch = subject._dispatch(life, lane, NOW)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.replica_id == "r1"
    assert life.phase is Phase.RUNNING
    assert lane.pool.inflight == 1
    assert len(subject._wheel) == 1
    assert subject._dispatch(opened(subject, "q2"), lane, NOW) is None


def test_what_is_called_back_frees_its_slot_for_who_waits():
    subject = moves("r1")
    lane = subject._lanes["m"]
    first, second = opened(subject, "q1"), opened(subject, "q2")
    subject._dispatch(first, lane, NOW)
    assert subject._enqueue(second, lane, NOW) == []
    actions: list = []
    subject._abort_all(first, lane, first.live, Kind.CLIENT_GONE, actions, NOW)
    assert [type(action) for action in actions] == [Abort]
    subject._serve_queue(lane, NOW, actions)
    assert actions[-1].request.id == "q2"
    assert second.phase is Phase.RUNNING


def test_the_faster_of_two_calls_the_other_back():
    subject = moves("r1", "r2")
    lane = subject._lanes["m"]
    life = opened(subject, "q1")
    subject._dispatch(life, lane, NOW)
    subject._dispatch(life, lane, NOW + SECOND, life.tried)
    actions: list = []
    subject._outrun(life, lane, life.live[1], actions, NOW + 2 * SECOND)
    assert [(action.attempt, action.kind) for action in actions] == [(0, Kind.SUPERSEDED)]
    assert len(life.live) == 1


def test_after_a_failure_nobody_can_mend_the_error_is_the_answer():
    subject = moves("r1")
    lane = subject._lanes["m"]
    life = opened(subject, "q1")
    subject._dispatch(life, lane, NOW)
    attempt = life.live[0]
    actions: list = []
    subject._abort_all(life, lane, [attempt], Kind.BAD_REQUEST, [], NOW)
    subject._after_failure(life, lane, attempt, Kind.BAD_REQUEST, 0, actions, NOW)
    assert [type(action) for action in actions] == [Finish]
    assert actions[0].status == 400
