"""Processes that are stopped by a signal, and run again."""

import pytest
from fleet_stage import Control, all_of, notices, stall

from holdfast.core.messages import DrainAsked, Exited, Frozen, Launch, Move, RunCanary, Stop
from holdfast.core.types import SECOND, State


def freeze(control: Control, *names: str) -> list:
    return [action for name in names for action in control.tell(Frozen(name, frozen=True))]


def thaw(control: Control, *names: str) -> list:
    return [action for name in names for action in control.tell(Frozen(name, frozen=False))]


def test_a_stopped_process_is_out_at_once_and_its_streams_are_moved_once_gateways_know():
    control = Control("r1", "r2", "r3")
    control.tally("r1", successes=1, inflight=4)
    actions = freeze(control, "r1")
    (notice,) = notices(actions)
    assert (notice.what, notice.reason) == ("quarantined", "its process is stopped")
    assert (control.share("r1"), control.firm("r1")) == (0.0, True)
    assert all_of(actions, Move) == []  # moved before the view, they could come back here
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1")]
    assert all_of(control.wait(5.0), Move) == []
    control.tally("r1", inflight=1)  # one was sent there meanwhile
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1")]


def test_streams_of_a_stopped_process_stay_where_nobody_else_could_go_on_with_them():
    control = Control("r1", "r2")
    control.join("o1", model="other")
    control.tally("r1", successes=1, inflight=4)
    freeze(control, "r2", "r1")
    assert all_of(control.wait(5.0), Move) == []
    thaw(control, "r2")
    assert all_of(control.wait(10.0), Move) == [Move("m", "r1")]


def test_stopped_processes_are_not_counted_against_the_bound():
    control = Control("r1", "r2", "r3", "r4")
    freeze(control, "r1", "r2", "r3")
    assert control.states() == [State.QUARANTINED] * 3 + [State.READY]
    assert control.published[-1].panic == ()
    control.tell(Frozen("r4", frozen=True))
    assert control.state("r4") is State.QUARANTINED


def test_a_stopped_process_is_not_brought_back_by_panic():
    control = Control("r1", "r2", "r3", "r4")
    freeze(control, "r1")
    for name in ("r2", "r3"):
        control.canary("r4", "pass")
        stall(control, name)
    assert control.published[-1].panic == ("m",)
    assert control.share("r1") == 0.0
    assert control.share("r2") > 0.0


def test_a_stopped_process_is_not_asked_and_no_answer_of_before_admits_it():
    control = Control("r1", "r2", "r3")
    freeze(control, "r1")
    asked = [canary.replica_id for canary in all_of(control.wait(20.0), RunCanary)]
    assert "r1" not in asked
    for _ in range(30):
        control.canary("r1", "pass")
    assert control.state("r1") is State.QUARANTINED


def test_a_process_that_runs_again_has_to_answer_right_a_few_times():
    control = Control("r1", "r2", "r3")
    freeze(control, "r1")
    control.canary("r1", "pass")  # was under way when it was stopped
    control.wait(20.0)
    (notice,) = notices(thaw(control, "r1"))
    assert (notice.what, "runs again" in notice.reason) == ("quarantined", True)
    assert control.share("r1") == 0.0
    assert not control.firm("r1")
    seen = [control.state("r1")]
    passes = 0
    while control.state("r1") is not State.READY:
        control.after(0.2)
        passes += len([c for c in all_of(control.tick(), RunCanary) if c.replica_id == "r1"])
        seen.append(control.state("r1"))
        assert len(seen) < 60
    assert passes == 3


def test_a_process_that_runs_again_has_the_time_of_a_quarantine_that_just_began():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    freeze(control, "r1")
    assert all_of(control.wait(59.0), Stop) == []
    thaw(control, "r1")
    assert all_of(control.wait(20.0), Stop) == []
    assert control.state("r1") is State.READY


def test_a_process_that_stays_stopped_is_replaced():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    freeze(control, "r1")
    actions = all_of(control.wait(61.0), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    assert control.state("r1") is State.READY


def test_news_of_a_stop_that_is_known_or_never_was_changes_nothing():
    control = Control("r1", "r2", "r3")
    assert thaw(control, "r1") == []
    freeze(control, "r1")
    assert freeze(control, "r1") == []
    control.answers["r2"] = "fail"
    stall(control, "r2")
    for _ in range(7):
        assert thaw(control, "r2") == []  # buys no time
        control.wait(10.0)
    assert control.fleet.members["r2"].health.incarnation == 1


@pytest.mark.parametrize("phase", [State.STARTING, State.LOADING, State.WARMING])
def test_a_process_stopped_before_it_served_loses_nothing(phase):
    control = Control("r2", "r3")
    control.join("r1", running=False)
    control.phase("r1", phase)
    freeze(control, "r1")
    assert control.state("r1") is phase
    control.canary("r1", "pass")
    control.canary("r1", "slow")
    assert control.state("r1") is phase
    thaw(control, "r1")
    control.phase("r1", State.WARMING)
    control.wait(0.4)
    assert control.state("r1") is State.READY


def test_a_stopped_process_that_ends_is_launched_anew_with_nothing_held_against_it():
    control = Control("r1", "r2", "r3")
    freeze(control, "r1")
    (launch,) = all_of(control.tell(Exited("r1", detail="killed by SIGKILL")), Launch)
    assert launch.reason == "exited: killed by SIGKILL"
    assert control.state("r1") is State.STARTING
    control.phase("r1", State.WARMING)
    control.wait(0.4)
    assert control.state("r1") is State.READY


def test_a_stopped_process_that_ends_while_it_leaves_stays_away():
    control = Control("r1", "r2")
    control.tally("r1", inflight=1)
    control.tell(DrainAsked("r1", "rollout"))
    freeze(control, "r1")
    assert all_of(control.wait(0.4), Move) == [Move("m", "r1")]
    control.tell(Exited("r1"))
    assert control.state("r1") is State.DEAD
    assert not control.fleet.members["r1"].health.frozen
    assert all_of(control.wait(120.0, every=SECOND), Launch | Stop | Move) == []
    assert freeze(control, "r1") == []


def test_a_stopped_peer_does_not_make_the_canaries_doubtful():
    control = Control("r1", "r2")
    control.answers = {"r1": None}
    control.wait(6.0)
    freeze(control, "r1")
    control.canary("r1", "timeout")
    actions = control.canary("r2", "fail")
    assert notices(actions, "canaries doubted") == []
    assert control.state("r2") is State.SUSPECT
