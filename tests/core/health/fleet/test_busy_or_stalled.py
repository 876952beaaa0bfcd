"""A canary without an answer in time: its replica is busy, stalled, or nobody can tell."""

import pytest
from fleet_stage import Control, all_of, engine_says, notices

from holdfast.core.failure import Kind
from holdfast.core.messages import Exited, HurryCanary, Move, RunCanary, Seen, Summary, Tally
from holdfast.core.types import MILLISECOND, SECOND, State

# --- busy, stalled, unknown -----------------------------------------------------------------------


def test_a_canary_that_times_out_while_users_are_served_means_busy():
    control = Control("r1", "r2", "r3")
    for _ in range(10):
        assert notices(control.canary("r1", "timeout", running=8, progress=True)) == []
    assert control.state("r1") is State.READY


def test_a_canary_that_times_out_while_nothing_moves_means_stalled():
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "timeout", running=8, progress=False))
    assert notice.what == "quarantined"
    assert "8 requests running and no token emitted" in notice.reason


def test_what_stands_at_a_stalled_replica_is_moved_until_nothing_is_left():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8)
    actions = control.canary("r1", "timeout", running=8, progress=False)
    assert control.state("r1") is State.QUARANTINED
    assert all_of(actions, Move) == []
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1", stalled=True)]
    assert all_of(control.wait(0.2), Move) == []  # until a gateway says that something is left
    control.tally("r1", inflight=1)
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1", stalled=True)]
    control.tally("r1", inflight=0)
    assert all_of(control.wait(5.0), Move) == []


def test_what_stands_at_the_only_replica_that_there_is_stays():
    control = Control("r1", "r2")
    control.tell(Exited("r2", Kind.EXITED))
    control.tally("r1", inflight=8)
    control.canary("r1", "timeout", running=8, progress=False)
    assert all_of(control.wait(5.0), Move) == []


def test_what_runs_at_a_replica_that_is_out_for_another_reason_stays():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8)
    for _ in range(3):
        control.canary("r1", "wrong")
    assert control.state("r1") is State.QUARANTINED
    assert all_of(control.wait(5.0), Move) == []


def test_a_canary_that_was_over_before_anybody_could_tell_of_progress_means_nothing():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8, tokens=5)
    for _ in range(10):
        assert notices(control.canary("r1", "timeout", latency=SECOND, running=8)) == []
    assert control.state("r1") is State.READY


def test_it_means_stalled_where_its_requests_have_stood_for_long():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8)
    for _ in range(6):
        control.after(1.0)
        control.tally("r1", inflight=8)
    (notice,) = notices(control.canary("r1", "timeout", running=8))
    assert notice.what == "quarantined"
    assert "no token" in notice.reason


def overdue(control: Control, name: str) -> list:
    """A canary that was out for ten seconds, with requests beside it and no token."""
    return control.canary(name, "timeout", latency=10 * SECOND, running=8, progress=False)


def test_the_first_stalled_canary_of_a_silent_fleet_ejects_nobody():
    control = Control("r1", "r2", "r3")
    control.after(20.0)
    (notice,) = notices(overdue(control, "r1"), "verdict held")
    assert "may be everybody's" in notice.reason
    assert control.states() == [State.READY] * 3


@pytest.mark.parametrize("sign", ["canary", "user"])
def test_a_stalled_canary_ejects_where_a_peer_was_heard_of_meanwhile(sign):
    control = Control("r1", "r2", "r3")
    control.after(20.0)
    if sign == "canary":
        control.canary("r3", "wrong")  # not right, but there
    else:
        control.tally("r3", successes=1)
    overdue(control.after(5.0), "r1")
    assert control.state("r1") is State.QUARANTINED


@pytest.mark.parametrize("running", [0, None])
def test_a_canary_that_times_out_on_an_idle_replica_is_a_failure(running):
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "timeout", running=running))
    assert (notice.what, "idle" in notice.reason) == ("suspect", True)


def unanswered(control: Control, name: str) -> list:
    """A canary of an idle replica that got nothing for two seconds."""
    return control.after(2.0).canary(name, "timeout", latency=2 * SECOND, running=0)


def test_an_idle_replica_stays_in_while_none_of_its_peers_is_heard_of_either():
    """A switch that restarts silences everybody; who was asked first is no more ill than others."""
    control = Control("r1", "r2", "r3")
    control.after(20.0)
    for _ in range(5):
        (notice,) = notices(unanswered(control, "r1"))
        assert (notice.what, "may be everybody's" in notice.reason) == ("verdict held", True)
    assert control.states() == [State.READY] * 3
    control.canary("r2", "pass")
    control.after(1.0)
    unanswered(control, "r1")
    assert control.state("r1") is State.SUSPECT
    control.canary("r2", "pass")
    control.after(1.0)
    unanswered(control, "r1")
    unanswered(control, "r1")
    assert control.state("r1") is State.QUARANTINED


def test_an_idle_replica_is_not_silent_yet_where_its_peers_take_nearly_as_long():
    """Everybody became slow: its answer is late, and on its way."""
    control = Control("r1", "r2", "r3")
    for state in (State.READY, State.SUSPECT):  # the second time it is silent for twice as long
        control.after(1.6).canary("r2", "pass", latency=1_600 * MILLISECOND)
        told = control.after(1.4).canary("r1", "timeout", latency=3 * SECOND, running=0)
        (notice,) = notices(told)
        assert ("its peers take 1.6 s, too" in notice.reason) is (state is State.READY)
        assert control.state("r1") is state


def test_peers_heard_before_its_users_last_got_a_token_do_not_make_a_silence_its_own():
    """A canary that waited long began when all was well; then everybody stood still."""
    control = Control("r1", "r2", "r3")
    control.after(20.0).tally("r2", successes=1, inflight=8)
    control.after(4.0)
    silent = {"latency": 12 * SECOND, "running": 8, "progress": False}
    control.tell(Seen((Summary((Tally("m", "r1", 0, 0, 0, 8, 40),)),)))
    control.after(5.0)
    (notice,) = notices(control.canary("r1", "timeout", **silent))
    assert (notice.what, "may be everybody's" in notice.reason) == ("verdict held", True)
    control.tally("r2", successes=1, inflight=8)
    control.after(2.0).canary("r1", "timeout", **silent)
    assert control.state("r1") is State.QUARANTINED


def test_peers_are_asked_while_a_canary_is_late_so_that_its_silence_is_its_own_at_once():
    """Nobody else would be heard of meanwhile: idle replicas are asked every few seconds."""
    control = Control("r1", "r2", "r3")
    control.latencies = dict.fromkeys(("r1", "r2", "r3"), 100 * MILLISECOND)
    control.wait(30.0)
    control.answers["r1"] = None
    while not control.fleet.members["r1"].canary_out:
        control.wait(0.2)
    asked_at = control.now
    early = all_of(control.wait(1.6), RunCanary)  # what they answer is a second old at its end
    called = all_of(control.wait(0.2), RunCanary)
    assert {canary.replica_id for canary in called} | {c.replica_id for c in early} >= {"r2", "r3"}
    assert called
    control.wait(3.0 - (control.now - asked_at) / SECOND)
    (notice,) = notices(control.canary("r1", "timeout", latency=3 * SECOND, running=0))
    assert notice.what == "suspect"


class LastAtHome:
    """Two replicas of which users reach one; it stops, and a request in one piece waits there.

    Canaries of the stopped one time out when their time is over. A gateway tells once a second what
    is in flight, and that the request is overdue after 3, 6 and 12 s, as gateways do.
    """

    def __init__(self):
        self.control = Control("r1", "r2")
        self.control.latencies = dict.fromkeys(("r1", "r2"), 100 * MILLISECOND)
        self.control.wait(30.0)
        self.control.answers["r1"] = None
        self.out = None  # the canary under way there: when its time is over, when it was asked
        self.told = []

    def wait(self, seconds):
        control, began = self.control, self.control.now
        while control.now - began < seconds * SECOND:
            waited = control.now - began
            if waited % SECOND == 0:
                self.told += control.tally("r1", inflight=1)
            if waited in (3 * SECOND, 6 * SECOND, 12 * SECOND):
                self.told += control.overdue("r1")
            told = control.wait(0.2)
            self.told += told
            for action in all_of(told, RunCanary):
                if action.replica_id == "r1":
                    self.out = control.now + action.deadline, control.now
            for action in all_of(told, HurryCanary):
                self.out = min(self.out[0], control.now + action.deadline), self.out[1]
            if self.out and control.now >= self.out[0]:
                asked_at, self.out = self.out[1], None
                users = control.fleet.users_beside("r1", asked_at, control.now)
                self.told += control.canary(
                    "r1",
                    "timeout",
                    latency=control.now - asked_at,
                    running=users.running,
                    progress=users.progress,
                )


def test_the_last_replica_at_home_is_out_after_one_canary_that_users_call_for():
    stage = LastAtHome()
    stage.wait(9.0)  # 3 s until the request is overdue, and the 5.3 s of a canary beside it
    assert stage.control.state("r1") is State.QUARANTINED
    assert notices(stage.told, "verdict held") == []
    assert stage.control.state("r2") is State.READY


def test_a_silence_of_all_is_nobodys_though_users_wait_in_vain():
    stage = LastAtHome()
    stage.control.answers["r2"] = None
    stage.wait(20.0)
    assert notices(stage.told, "verdict held")
    assert stage.control.states() == [State.READY] * 2


def test_peers_are_not_asked_for_a_canary_that_is_late_beside_users():
    control = Control("r1", "r2", "r3")
    control.latencies = dict.fromkeys(("r1", "r2", "r3"), 100 * MILLISECOND)
    control.wait(30.0)
    usual = len(all_of(control.wait(30.0), RunCanary))
    control.tally("r1", successes=1, inflight=32)
    control.answers["r1"] = None
    assert len(all_of(control.wait(30.0), RunCanary)) <= usual


# --- long answers, drips and free slots -----------------------------------------------------------


@pytest.mark.parametrize(("waiting", "out"), [(0, True), (3, False), (None, False)])
def test_a_replica_that_drips_with_a_slot_free_is_not_busy_for_ever(waiting, out):
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = None
    for _ in range(8):
        control.wait(6.0)
        engine_says(control, "r1", waiting)
        control.tally("r1", successes=0, inflight=2, tokens=1)
        control.canary("r1", "timeout", latency=5 * SECOND, running=2, progress=True)
    assert (control.state("r1") is State.QUARANTINED) is out
    assert control.state("r2") is State.READY


def test_a_page_that_is_not_read_any_more_shows_no_free_slot():
    """Its queue may have filled since: what it said last is neither empty nor full."""
    control = Control("r1", "r2", "r3")
    engine_says(control, "r1", 0)
    control.answers["r1"] = None
    control.wait(20.0)
    for _ in range(8):
        control.wait(6.0)
        control.tally("r1", successes=0, inflight=2, tokens=1)
        control.canary("r1", "timeout", latency=5 * SECOND, running=2, progress=True)
    assert control.states() == [State.READY] * 3


def test_answers_in_one_piece_that_take_long_on_all_replicas_are_no_stall():
    control = Control("r1", "r2", "r3", slots=2)
    for second in range(1, 13):  # a short machine: every answer takes twelve seconds
        for name in ("r1", "r2", "r3"):
            control.tally(name, inflight=2)
        control.after(1.0)
        beside = control.fleet.users_beside("r3", control.now - 6 * SECOND, control.now)
        assert beside.progress is None, second
        assert beside.running == 2


@pytest.mark.parametrize(("slots", "seconds"), [(8, 6), (2, 31)])
def test_long_answers_of_peers_excuse_nobody_with_a_free_slot_and_nobody_for_ever(slots, seconds):
    control = Control("r1", "r2", slots=slots)
    for _ in range(seconds):
        for name in ("r1", "r2"):
            control.tally(name, inflight=2)
        control.after(1.0)
    beside = control.fleet.users_beside("r1", control.now - 5 * SECOND, control.now)
    assert beside.progress is False


def test_a_replica_whose_whole_answers_do_not_come_while_its_peers_do_stands():
    control = Control("r1", "r2", "r3", slots=2)
    for second in range(12):
        for name in ("r1", "r2"):
            control.tally(name, inflight=2, successes=second % 2, tokens=20 * (second % 2))
        control.tally("r3", inflight=2)
        control.after(1.0)
    beside = control.fleet.users_beside("r3", control.now - 6 * SECOND, control.now)
    assert beside.progress is False


def test_a_second_silence_in_a_row_is_judged_by_what_was_heard_since_the_first():
    control = Control("r1", "r2", "r3", slots=8)
    control.answers["r1"] = None
    control.wait(6.0)
    for _ in range(3):  # two seconds are too short to hear of a peer in their midst
        control.tally("r1", inflight=1)
        control.wait(2.0)
        control.canary("r1", "timeout", latency=2 * SECOND, running=1, progress=False)
    assert control.state("r1") is State.QUARANTINED
    assert [control.state(name) for name in ("r2", "r3")] == [State.READY] * 2


def test_tokens_that_move_now_and_then_do_not_begin_the_row_of_unanswered_canaries_anew():
    control = Control("r1", "r2", "r3", slots=8)
    control.answers["r1"] = None
    control.wait(6.0)
    control.tally("r1", inflight=1, tokens=1)
    for progress in (True, False, True):
        control.canary("r1", "timeout", latency=2 * SECOND, running=1, progress=progress)
        control.tally("r1", inflight=1, tokens=int(progress))
    assert control.state("r1") is State.SUSPECT
    assert "no canary's answer ends there" in control.fleet.members["r1"].health.reason


def test_a_busy_replica_whose_peers_do_not_answer_either_is_busy():
    control = Control("r1", "r2")
    for name in ("r1", "r2"):
        engine_says(control, name, 0)
        control.answers[name] = None
    for _ in range(8):
        control.wait(6.0)
        for name in ("r1", "r2"):
            control.tally(name, inflight=2, tokens=1)
            control.canary(name, "timeout", latency=5 * SECOND, running=2, progress=True)
    assert control.states() == [State.READY, State.READY]
