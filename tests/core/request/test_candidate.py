from random import Random

import pytest

from holdfast.core.failure import Kind
from holdfast.core.messages import Tally
from holdfast.core.request.admission.limit import GradientLimit, LimitConfig
from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import (
    FINISHES_MAX,
    OTHER_FINISH,
    SAMPLES_MAX,
    SCORES_MAX,
    UNLIMITED,
    Candidate,
)
from holdfast.core.stats import PeakEwma
from holdfast.core.types import SECOND, Replica, State


def candidate(replica: Replica | None = None, gradient: GradientLimit | None = None) -> Candidate:
    replica = replica or Replica("r1", "m", zone="zone-b", revision="2", weight=1.5)
    return Candidate(replica, Breaker(BreakerConfig(), Random(1)), PeakEwma(), gradient)


# --- what it starts from -------------------------------------------------------------------------


def test_a_candidate_starts_from_what_its_replica_declares():
    subject = candidate()
    assert (subject.id, subject.zone, subject.revision) == ("r1", "zone-b", "2")
    assert subject.weight == 1.5
    assert subject.inflight == 0
    assert subject.state is State.READY


def test_what_the_engine_did_not_report_is_unknown_and_neither_zero_nor_full():
    subject = candidate()
    assert subject.reported_tokens is None
    assert subject.waiting is None
    assert subject.kv_used is None
    assert subject.latency.value is None


def test_nothing_was_seen_of_a_new_candidate():
    subject = candidate()
    seen = (subject.successes, subject.failures, subject.backpressure, subject.tokens)
    assert seen == (0, 0, 0, 0)


def test_state_and_weight_can_be_set_by_health():
    subject = candidate()
    subject.state = State.SUSPECT
    subject.weight = 0.15
    assert subject.replica.weight == 1.5


def test_a_candidate_takes_no_field_it_does_not_know():
    with pytest.raises(AttributeError):
        candidate().mood = "good"


def test_a_candidate_shows_what_routing_sees():
    assert repr(candidate()) == "Candidate('r1', inflight=0, weight=1.5)"


# --- how much fits -------------------------------------------------------------------------------


def test_declared_slots_bound_what_is_sent_there_at_once():
    subject = candidate(Replica("r1", "m", slots=2))
    subject.inflight = 1
    assert subject.has_room()
    subject.inflight = 2
    assert not subject.has_room()


def test_undeclared_slots_leave_the_bound_to_the_adaptive_limit():
    subject = candidate(Replica("r1", "m"))
    assert subject.limit == UNLIMITED
    subject.inflight = 10_000
    assert subject.has_room()
    subject.limit = 10_000
    assert not subject.has_room()


def test_an_adaptive_limit_starts_from_the_declared_slots():
    replica = Replica("r1", "m", slots=3)
    subject = candidate(replica, GradientLimit(LimitConfig(), replica.slots))
    assert subject.limit == 3


def test_an_adaptive_limit_bounds_where_nothing_is_declared():
    subject = candidate(Replica("r1", "m"), GradientLimit(LimitConfig(initial=7)))
    assert subject.limit == 7


# --- what the engine says ------------------------------------------------------------------------


def test_an_engines_report_includes_what_was_sent_before_it():
    subject = candidate()
    subject.own_tokens = 400
    subject.take_report(1000, 3, 0.25)
    assert (subject.reported_tokens, subject.waiting, subject.kv_used) == (1000, 3, 0.25)
    assert (subject.own_tokens, subject.reports) == (0, 1)


def test_a_report_without_tokens_keeps_our_own_count():
    subject = candidate()
    subject.own_tokens = 400
    subject.take_report(None, 3, None)
    assert (subject.reported_tokens, subject.own_tokens, subject.reports) == (None, 400, 0)


# --- changed declarations ------------------------------------------------------------------------


def test_changed_declarations_are_taken_over_and_attempts_under_way_keep_their_place():
    subject = candidate(Replica("r1", "m", slots=8))
    subject.inflight = 3
    subject.update(Replica("r1", "m", slots=2, zone="zone-c", revision="3"))
    assert (subject.zone, subject.revision, subject.limit) == ("zone-c", "3", 2)
    assert subject.inflight == 3
    assert not subject.has_room()


def test_slots_that_are_no_longer_declared_bound_nothing():
    subject = candidate(Replica("r1", "m", slots=2))
    subject.update(Replica("r1", "m"))
    assert subject.limit == UNLIMITED


def test_what_the_adaptive_limit_has_learned_outlives_an_update():
    gradient = GradientLimit(LimitConfig(initial=20))
    subject = candidate(Replica("r1", "m"), gradient)
    gradient.on_backpressure(SECOND)
    subject.update(Replica("r1", "m", zone="zone-c"))
    assert subject.limit == gradient.limit == 16


def test_fewer_declared_slots_bound_at_once_whatever_was_learned():
    subject = candidate(Replica("r1", "m"), GradientLimit(LimitConfig(initial=20)))
    subject.update(Replica("r1", "m", slots=4))
    assert subject.limit == 4


# --- what control is told ------------------------------------------------------------------------


def test_without_traffic_there_is_no_tally():
    assert candidate().take_tally("m") is None


def test_a_tally_is_told_once():
    subject = candidate()
    subject.successes = 1
    subject.answered(7, "stop", (("logprob", -1.0),))
    subject.failed(Kind.RESET, fast=True)
    subject.failed(Kind.RESET, fast=False)
    subject.failed(None, fast=False)
    told = subject.take_tally("m")
    assert told == Tally(
        *("m", "r1", 1, 3, 0, 0, 0), {Kind.RESET: 2}, 1, {"stop": 1}, (7,), (-1.0,), (), prompts=0
    )
    assert subject.take_tally("m") is None
    subject.successes = 1
    assert subject.take_tally("m") == Tally("m", "r1", 1, 0, 0, 0, 0, prompts=0)
    assert told.finishes == {"stop": 1}  # what was handed over does not change any more


def test_scores_are_told_by_statistic_and_bounded():
    subject = candidate()
    for number in range(SAMPLES_MAX + 5):
        subject.answered(0, "", (("y.mean", float(number)), ("y.max", 1.0)))
    for number in range(20):
        subject.answered(0, "", ((f"z{number}.mean", 1.0),))
    subject.inflight = 1
    told = subject.take_tally("m")
    assert len(told.scores) == SCORES_MAX
    assert told.scores["y.mean"] == tuple(map(float, range(SAMPLES_MAX)))
    assert subject.take_tally("m").scores == {}


def test_samples_between_two_tallies_are_bounded():
    subject = candidate()
    for number in range(100):
        subject.answered(number + 1, "stop", (("norm", float(number)),))
        subject.answered(0, "", (("logprob", -float(number)),))
    subject.inflight = 1
    told = subject.take_tally("m")
    assert told.lengths == tuple(range(1, SAMPLES_MAX + 1))
    assert len(told.norms) == len(told.logprobs) == SAMPLES_MAX
    assert told.firsts == told.paces == ()
    assert told.finishes == {"stop": 100}


def test_reasons_that_an_engine_invents_are_told_as_others():
    subject = candidate()
    for number in range(FINISHES_MAX + 5):
        subject.answered(1, f"reason {number}", None)
    subject.answered(1, "reason 0", None)
    subject.inflight = 1
    finishes = subject.take_tally("m").finishes
    assert len(finishes) == FINISHES_MAX + 1
    assert (finishes["reason 0"], finishes[OTHER_FINISH]) == (2, 5)
