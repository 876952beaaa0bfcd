import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.health.drain import (
    TRANSITIONS,
    Drain,
    DrainConfig,
    DrainError,
    DrainPhase,
    DrainSignal,
    DrainStep,
)
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

SERVING, WAITING = DrainPhase.SERVING, DrainPhase.WAITING
MOVING, STOPPED = DrainPhase.MOVING, DrainPhase.STOPPED


def draining(now: int = 0, config: DrainConfig | None = None) -> Drain:
    subject = Drain(config or DrainConfig())
    assert subject.start(now, "rollout")
    return subject


def moving() -> Drain:
    subject = draining()
    assert subject.decide(1, 30 * SECOND).phase is MOVING
    return subject


def test_a_replica_that_does_not_drain_serves_on():
    subject = Drain(DrainConfig())
    assert subject.phase is SERVING
    assert subject.decide(0, 10**15) == DrainStep(SERVING, "none", "not draining")


def test_in_flight_requests_may_finish_until_the_deadline():
    subject = draining(now=5)
    step = subject.decide(3, 5 + 30 * SECOND - 1)
    assert step == DrainStep(WAITING, "wait", "3 in flight; rollout")


def test_an_empty_replica_stops_early():
    subject = draining()
    now = 2 * SECOND
    assert subject.decide(0, now) == DrainStep(STOPPED, "stop", "nothing in flight; rollout")


def test_an_empty_replica_waits_for_gateways_that_have_not_told_yet():
    subject = draining(now=5)
    step = subject.decide(0, 5 + 2 * SECOND - 1)
    assert step == DrainStep(WAITING, "wait", "gateways may not have told all; rollout")
    assert subject.decide(1, 5 + 2 * SECOND).action == "wait"  # one had something, after all
    assert subject.decide(0, 5 + 3 * SECOND).action == "stop"


def test_one_that_never_served_is_empty_at_once():
    subject = Drain(DrainConfig())
    subject.start(7, "rollout", served=False)
    assert subject.decide(0, 7).action == "stop"


def test_who_moves_at_once_still_waits_for_what_gateways_tell():
    subject = draining(config=DrainConfig(deadline_s=0))
    assert subject.decide(1, 0).action == "move"
    assert subject.decide(0, 1) == DrainStep(
        MOVING, "wait", "gateways may not have told all; rollout"
    )
    assert subject.decide(0, 2 * SECOND).action == "stop"


def test_what_is_left_at_the_deadline_is_moved():
    subject = draining()
    step = subject.decide(2, 30 * SECOND)
    assert step == DrainStep(MOVING, "move", "2 past the deadline; rollout")


def test_moving_is_repeated_until_nothing_is_left():
    subject = moving()
    assert subject.decide(1, 31 * SECOND).action == "move"
    assert subject.decide(0, 32 * SECOND) == DrainStep(
        STOPPED, "stop", "nothing in flight; rollout"
    )


def test_what_cannot_be_moved_in_time_is_stopped():
    subject = moving()
    assert subject.decide(1, 40 * SECOND - 1).action == "move"
    step = subject.decide(1, 40 * SECOND)
    assert step == DrainStep(STOPPED, "stop", "1 could not be moved; rollout")


def test_a_driver_that_comes_late_still_gives_the_streams_their_time_to_move():
    subject = draining()
    assert subject.decide(1, 500 * SECOND).action == "move"
    assert subject.decide(1, 510 * SECOND - 1).action == "move"
    assert subject.decide(1, 510 * SECOND).action == "stop"


def test_stop_is_answered_once():
    subject = draining()
    assert subject.decide(0, 2 * SECOND).action == "stop"
    assert subject.decide(0, 3 * SECOND) == DrainStep(STOPPED, "none", "stopped")


def test_no_patience_at_all_moves_at_once():
    subject = draining(config=DrainConfig(deadline_s=0))
    assert subject.decide(1, 0).action == "move"


def test_no_time_to_move_stops_at_the_deadline():
    subject = draining(config=DrainConfig(move_s=0))
    assert subject.decide(1, 30 * SECOND - 1).action == "wait"
    assert subject.decide(1, 30 * SECOND).action == "stop"


def test_a_second_start_changes_nothing():
    subject = draining()
    before = (subject.phase, subject.reason, subject._wait_until, subject._move_until)
    refusal = subject.start(20 * SECOND, "impatience")
    assert not refusal
    assert refusal.reason == "already waiting: rollout"
    assert (subject.phase, subject.reason, subject._wait_until, subject._move_until) == before


def test_a_waiting_drain_can_be_called_off_and_begun_again():
    subject = draining()
    assert subject.abandon(SECOND).reason == "drain called off"
    assert subject.decide(0, SECOND).phase is SERVING
    assert subject.reason == ""
    assert subject.start(2 * SECOND, "again")
    assert subject.decide(1, 32 * SECOND - 1).action == "wait"
    assert subject.decide(1, 32 * SECOND).action == "move"


def test_a_drain_that_moves_streams_cannot_be_called_off():
    subject = moving()
    refusal = subject.abandon(31 * SECOND)
    assert not refusal
    assert refusal.reason == "cannot be called off while moving"
    assert subject.phase is MOVING


def test_nothing_is_called_off_where_nothing_drains():
    assert not Drain(DrainConfig()).abandon(0)


def test_an_unknown_transition_raises_and_tells_the_bounded_history():
    subject = Drain(DrainConfig())
    with pytest.raises(DrainError, match=r"empty while serving: .* it never moved"):
        subject._advance(DrainSignal.EMPTY, 0)
    for now in range(20):
        subject.start(now, "flap")
        subject.abandon(now)
    with pytest.raises(DrainError) as caught:
        subject._advance(DrainSignal.DEADLINE, 0)
    assert str(caught.value).count("->") == 8
    assert "at 19: waiting -> serving (abandoned)" in str(caught.value)


def test_every_phase_but_the_last_can_be_left_and_all_can_be_reached():
    assert {before for before, _ in TRANSITIONS} == set(DrainPhase) - {STOPPED}
    assert set(TRANSITIONS.values()) == set(DrainPhase)
    assert {signal for _, signal in TRANSITIONS} == set(DrainSignal)


@pytest.mark.parametrize("field", ["deadline_s", "move_s"])
@pytest.mark.parametrize("value", [-1.0, 86_401.0, float("nan"), float("inf")])
def test_a_bad_time_is_refused_with_its_field_and_fix(field, value):
    with pytest.raises(ConfigError) as caught:
        DrainConfig(**{field: value})
    assert caught.value.field == f"drain.{field}"
    assert caught.value.problem == f"is {value}"
    assert "to a day, 86400 s" in caught.value.fix


class DrainKeepsItsWord(RuleBasedStateMachine):
    """Any order of starts, cancellations, endings of requests and ticks of the timer."""

    CONFIG = DrainConfig(deadline_s=30.0, move_s=10.0)

    def __init__(self) -> None:
        super().__init__()
        self.subject = Drain(self.CONFIG)
        self.now = 0
        self.inflight = 4
        self.started: int | None = None
        self.moving_since: int | None = None
        self.stops = 0

    @rule(step=st.integers(0, 15 * SECOND))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule()
    def a_request_ends(self) -> None:
        self.inflight = max(0, self.inflight - 1)

    @rule()
    def somebody_starts_it(self) -> None:
        before = self.subject.phase
        assert self.subject.start(self.now, "rollout").allowed is (before is SERVING)
        if before is SERVING:
            self.started = self.now

    @rule()
    def somebody_calls_it_off(self) -> None:
        before = self.subject.phase
        assert self.subject.abandon(self.now).allowed is (before is WAITING)
        if before is WAITING:
            assert self.subject.phase is SERVING
            self.started = None

    @rule()
    def the_driver_asks(self) -> None:
        before = self.subject.phase
        step = self.subject.decide(self.inflight, self.now)
        assert step.phase is self.subject.phase
        assert step.reason
        if step.action == "stop":
            self.stops += 1
            waited_out = self.moving_since is not None and (
                self.now - self.moving_since >= 10 * SECOND
            )
            assert self.inflight == 0 or waited_out
        if step.action == "move":
            assert self.inflight > 0
            assert self.started is not None
            assert self.now - self.started >= 30 * SECOND
            self.moving_since = self.now if before is WAITING else self.moving_since
        if step.action == "wait":
            assert self.started is not None
            assert self.now - self.started < 30 * SECOND
        if step.action == "none":
            assert before in {SERVING, STOPPED}

    @invariant()
    def it_stops_at_most_once(self) -> None:
        assert self.stops <= 1
        assert (self.stops == 1) is (self.subject.phase is STOPPED)


DrainKeepsItsWord.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30)
TestDrainKeepsItsWord = DrainKeepsItsWord.TestCase
