from random import Random

import pytest

from holdfast.core.canary import CanaryConfig, CanaryVerdict
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import HealthConfig, ReplicaHealth, Signal
from holdfast.core.health.member import Member
from holdfast.core.health.view_publisher import Publisher
from holdfast.core.messages import FleetView, Launch, Notice, Publish
from holdfast.core.types import MILLISECOND, SECOND, Halt, Replica, State

START = 100 * SECOND
LONG_READY = START - 60 * SECOND


def a_member(name: str, *signals: Signal, model: str = "m", since: int = LONG_READY) -> Member:
    health = ReplicaHealth(HealthConfig(), name, model, since, Random(1))
    member = Member(Replica(name, model), health, CanaryConfig())
    for signal in (Signal.LOADED, Signal.CANARY_PASS, *signals):
        health.handle(signal, since)
    return member


class Pool:
    """Members, and a publisher that looks at them."""

    def __init__(self, *members: Member, epoch: int = 0) -> None:
        self.members = {member.replica.id: member for member in members}
        self.publisher = Publisher(FleetConfig(ramp_s=1.0, heartbeat_s=2.0), epoch)
        self.doubts: dict[str, str] = {}

    def look(self, now: int = START, *news) -> list:
        actions = list(news)
        self.publisher.look(self.members, self.doubts, actions, now)
        return actions[len(news) :]

    def view(self, now: int = START) -> FleetView:
        """Told because something moved."""
        *_, publish = self.look(now, Notice(now, "m", "r1", "moved", "x"))
        assert isinstance(publish, Publish)
        return publish.view


def test_the_first_look_tells_of_everybody():
    (publish,) = Pool(a_member("r1"), a_member("r2", Signal.STALLED), epoch=7).look()
    view = publish.view
    assert (view.version, view.epoch, view.panic) == (1, 7, ())
    told = [(row.replica.id, row.state, row.share) for row in view.replicas]
    assert told == [("r1", State.READY, 1.0), ("r2", State.QUARANTINED, 0.0)]
    assert "no token" in view.replicas[1].reason


def test_an_empty_fleet_is_told_of_too():
    pool = Pool()
    (publish,) = pool.look()
    assert (publish.view.version, publish.view.replicas) == (1, ())
    assert pool.look(START + SECOND) == []


def test_work_alone_is_no_news():
    pool = Pool(a_member("r1"))
    pool.look()
    assert pool.look(START + 1, Launch("r1", 0, "declared")) == []


def test_a_state_that_moved_is_told_at_once():
    pool = Pool(a_member("r1"), a_member("r2"))
    pool.look()
    pool.members["r1"].health.handle(Signal.CANARY_FAIL, START + 1)
    view = pool.view(START + 1)
    assert view.version == 2
    assert view.replicas[0].share == pytest.approx(0.1)


def test_growing_shares_are_told_once_a_second_and_not_more_often():
    pool = Pool(a_member("r1", since=START))
    pool.look()
    assert pool.look(START + 900 * MILLISECOND) == []
    (publish,) = pool.look(START + SECOND)
    assert publish.view.replicas[0].share == pytest.approx(0.13)


def test_an_unchanged_view_is_said_again_under_its_version():
    pool = Pool(a_member("r1"))
    (first,) = pool.look()
    assert pool.look(START + SECOND) == []
    (again,) = pool.look(START + 2 * SECOND)
    assert again.view is first.view
    assert pool.look(START + 3 * SECOND) == []


@pytest.mark.parametrize(
    ("signals", "halt"),
    [
        ((), None),
        ((Signal.STALLED,), Halt.STALLED),
        ((Signal.FROZEN,), Halt.STOPPED),
        ((Signal.FROZEN, Signal.THAWED), None),
        ((Signal.EXITED,), Halt.STOPPED),
        ((Signal.EXITED, Signal.RELAUNCH), Halt.STOPPED),
        ((Signal.NO_HEADROOM,), None),
        ((Signal.CANARY_WRONG, Signal.CANARY_WRONG), None),
        ((Signal.DRAIN,), None),
        ((Signal.DRAIN, Signal.UNDRAIN), None),
    ],
)
def test_a_view_says_where_nothing_will_be_answered(signals, halt):
    pool = Pool(a_member("r1", *signals), a_member("r2"))
    assert [row.halt for row in pool.view().replicas] == [halt, None]


@pytest.mark.parametrize(
    ("verdict", "halt"), [(CanaryVerdict.TIMEOUT, Halt.STALLED), (CanaryVerdict.FAIL, None)]
)
def test_one_that_kept_failing_is_stalled_where_its_canaries_get_no_answer(verdict, halt):
    member = a_member("r1", *[Signal.CANARY_FAIL] * 3)
    assert member.health.state is State.QUARANTINED
    member.canary_verdict = verdict
    assert Pool(member, a_member("r2")).view().replicas[0].halt is halt


def test_canary_times_go_out_with_the_next_view_and_by_themselves_where_they_changed_much():
    member = a_member("r1")
    pool = Pool(member)
    (first,) = pool.look()
    assert first.view.replicas[0].canary_s is None
    member.baseline.saw(200 * MILLISECOND)
    assert pool.look(START + SECOND) == []
    (second,) = pool.look(START + 2 * SECOND)
    assert (second.view.version, second.view.replicas[0].canary_s) == (2, 0.2)
    for _ in range(3):
        member.baseline.saw(250 * MILLISECOND)
    (same,) = pool.look(START + 4 * SECOND)
    assert same.view is second.view
    for _ in range(3):
        member.baseline.saw(500 * MILLISECOND)
    (third,) = pool.look(START + 6 * SECOND)
    assert third.view.replicas[0].canary_s == 0.5


def test_when_a_start_will_be_over_is_learned_from_earlier_ones():
    first, second = a_member("r1"), a_member("r2")
    pool = Pool(first, second)
    pool.look()
    first.health.handle(Signal.EXITED, START)
    first.health.handle(Signal.RELAUNCH, START)
    first.health.handle(Signal.LAUNCHED, START)
    assert [row.ready_in_s for row in pool.view(START).replicas] == [None, None]  # not known yet
    first.health.handle(Signal.LOADED, START + 18 * SECOND)
    pool.look(START + 19 * SECOND)
    first.health.handle(Signal.CANARY_PASS, START + 20 * SECOND)
    pool.view(START + 20 * SECOND)
    later = START + 100 * SECOND
    second.health.handle(Signal.EXITED, later)
    second.health.handle(Signal.RELAUNCH, later)
    second.health.load_deadline += 4 * SECOND  # a backoff before the start
    assert pool.view(later).replicas[1].ready_in_s == 24.0
    second.health.handle(Signal.LAUNCHED, later + 4 * SECOND)
    (update,) = [a for a in pool.look(later + 10 * SECOND) if isinstance(a, Publish)]
    assert update.view.replicas[1].ready_in_s == 14.0
    second.health.handle(Signal.LOADED, later + 20 * SECOND)
    assert pool.view(later + 60 * SECOND).replicas[1].ready_in_s == 0.0  # at any moment


def test_a_quarantined_replica_may_be_back_when_it_is_launched_anew():
    frozen = a_member("r1", Signal.FROZEN, since=START)
    full = a_member("r2", Signal.NO_HEADROOM)
    leaving = a_member("r3", Signal.EXITED)
    leaving.leaving = True
    pool = Pool(frozen, full, leaving)
    assert [row.ready_in_s for row in pool.view(START).replicas] == [60.0, 0.0, None]
    assert pool.view(START + 45 * SECOND).replicas[0].ready_in_s == 15.0


def test_a_quarantined_replica_that_answers_right_again_is_on_its_way():
    pool = Pool(a_member("r1", Signal.STALLED, Signal.CANARY_PASS, since=START), a_member("r2"))
    health = pool.members["r1"].health
    assert pool.view(START).replicas[0].ready_in_s == 4.0  # two further answers, two seconds apart
    health.handle(Signal.CANARY_FAIL, START)
    assert pool.view(START + 10 * SECOND).replicas[0].ready_in_s == 50.0


def test_a_replica_that_was_found_loaded_teaches_nothing_of_loading():
    pool = Pool(a_member("r1"))
    pool.look()
    starting = ReplicaHealth(HealthConfig(), "r2", "m", START, Random(1))
    pool.members["r2"] = Member(Replica("r2", "m"), starting, CanaryConfig())
    assert pool.view(START).replicas[1].ready_in_s is None


def test_a_member_that_left_is_no_longer_told_of():
    pool = Pool(a_member("r1"), a_member("r2"))
    pool.look()
    del pool.members["r1"]
    (publish,) = pool.look(START + SECOND)
    assert [row.replica.id for row in publish.view.replicas] == ["r2"]
    assert pool.publisher.shares == {"r2": 1.0}


def test_more_due_than_may_go_is_a_panic_that_is_told_once_and_ends():
    pool = Pool(a_member("r1", Signal.STALLED), a_member("r2", Signal.BOUND_HELD))
    panic, publish = pool.look()
    assert (panic.what, panic.model, panic.replica_id) == ("panic", "m", "")
    assert publish.view.panic == ("m",)
    assert [row.share for row in publish.view.replicas] == [0.1, 0.1]
    assert [row.firm for row in publish.view.replicas] == [False, False]
    assert pool.publisher.panics == {"m": panic.reason}
    assert pool.look(START + SECOND) == []
    for signal in [Signal.CANARY_PASS] * 3:
        pool.members["r1"].health.handle(signal, START + SECOND)
    over, publish = pool.look(START + 2 * SECOND)
    assert over.what == "panic over"
    assert publish.view.panic == ()


def test_a_panic_brings_back_neither_a_frozen_nor_a_lying_replica():
    liar = a_member("r3", Signal.CANARY_WRONG, Signal.CANARY_WRONG)
    frozen = a_member("r2", Signal.FROZEN)
    pool = Pool(a_member("r1", Signal.BOUND_HELD), frozen, liar, a_member("r4", Signal.STALLED))
    view = pool.view()
    assert view.panic == ("m",)
    assert [row.share for row in view.replicas] == [0.1, 0.0, 0.0, 0.1]
    assert [row.firm for row in view.replicas] == [False, True, True, False]


def test_frozen_replicas_alone_are_no_panic():
    pool = Pool(a_member("r1"), *(a_member(f"r{n}", Signal.FROZEN) for n in range(2, 6)))
    assert pool.view().panic == ()


def test_doubted_canaries_bring_back_whom_they_put_out():
    pool = Pool(a_member("r1", Signal.STALLED), a_member("r2"), a_member("r3"))
    pool.doubts["m"] = "all fail"
    view = pool.view()
    assert view.panic == ("m",)
    assert view.replicas[0].share == 0.1


def test_each_model_panics_for_itself():
    other = a_member("o1", Signal.STALLED, model="other")
    pool = Pool(a_member("r1"), a_member("r2", Signal.STALLED), other)
    view = pool.view()
    assert view.panic == ("other",)
    assert [row.share for row in view.replicas] == [1.0, 0.0, 0.1]


def test_a_panic_ends_with_the_model_it_was_about():
    pool = Pool(a_member("o1", Signal.STALLED, model="other"), a_member("r1"))
    pool.look()
    del pool.members["o1"]
    over, publish = pool.look(START + SECOND)
    assert (over.what, over.model) == ("panic over", "other")
    assert publish.view.panic == ()
