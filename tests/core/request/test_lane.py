from random import Random

import pytest

from holdfast.core.failure import Kind, Outcome
from holdfast.core.messages import FleetView, ReplicaView, Tally
from holdfast.core.request.active_request import ActiveRequest, Attempt
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.breaker import BreakerConfig, BreakerState
from holdfast.core.request.candidate import SAMPLES_MAX
from holdfast.core.request.lane import LONG_TOKENS, Lane, LaneConfig, LaneTable
from holdfast.core.request.pool import TRIAL_REASON
from holdfast.core.types import MILLISECOND, SECOND, ConfigError, Priority, Replica, Request, State

BREAKER = BreakerConfig(jitter=0.0)
START = 100 * SECOND  # samples are merged ten seconds after time zero


def lane(*names: str, slots: int = 0, weights: dict[str, float] | None = None, **config) -> Lane:
    settings = {"routing": "round_robin", "breaker": BREAKER, **config}
    subject = Lane("m", LaneConfig(**settings), weights or {}, Random)
    views = [
        ReplicaView(Replica(name, "m", slots=slots), State.READY, 1.0) for name in names or ("r1",)
    ]
    subject.pool.apply(views, 0)
    subject.pool.ready(0)
    return subject


def active(
    prompt_tokens: int = 100, max_tokens: int = 50, arrived: int = 0, **more
) -> ActiveRequest:
    request = Request(
        "q1", "m", arrived=arrived, prompt_tokens=prompt_tokens, max_tokens=max_tokens, **more
    )
    return ActiveRequest(request, "m", 600 * SECOND)


def opened(
    subject: Lane, name: str = "r1", now: int = 0, **kwargs
) -> tuple[ActiveRequest, Attempt]:
    started = active(**kwargs)
    return started, subject.open(started, subject.pool.candidates[name], now)


def served(subject: Lane, name: str, now: int, took: int, **kwargs) -> None:
    """One whole answer whose first token took that long."""
    started, attempt = opened(subject, name, now, arrived=now, **kwargs)
    subject.first_content(started, attempt, now + took)
    subject.close(started, attempt, Outcome.SUCCESS, None, now + took)


def learned(*names: str, took: int = 100 * MILLISECOND, **config) -> Lane:
    """A lane that knows what a typical first token is."""
    subject = lane(*names, **config)
    for turn in range(30):
        served(subject, (names or ("r1",))[turn % len(names or ("r1",))], START, took)
    subject.deadlines.first_token(100, None, START + 2 * SECOND)  # takes the samples in
    return subject


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize("slo", [0.0, -1.0])
def test_a_promise_of_no_time_is_refused(slo):
    with pytest.raises(ConfigError, match=r"lane\.slo_first_token_s: is .*; use seconds above 0"):
        LaneConfig(slo_first_token_s=slo)


def test_an_unknown_routing_policy_is_refused_by_name():
    with pytest.raises(ConfigError, match="fastest"):
        lane(routing="fastest")


def test_settings_of_the_routing_policy_are_passed_on():
    subject = lane(routing="power_of_two", routing_options={"by": "inflight"})
    assert subject.pool.choose(active().request, (), 0) is not None
    with pytest.raises(ConfigError, match=r"power_of_two\.by"):
        lane(routing="power_of_two", routing_options={"by": "colour"})


def test_tenant_weights_reach_the_queue():
    subject = lane(weights={"gold": 10.0})
    for number in range(3):
        for tenant in ("tin", "gold"):
            request = Request(f"{tenant}{number}", "m", arrived=0, tenant=tenant)
            assert subject.queue.offer(request, 0, ready=True).refusal is None
    order = [subject.queue.pop(0).tenant for _ in range(6)]
    assert order == ["tin", "gold", "gold", "gold", "tin", "tin"]


def test_without_the_adaptive_limit_only_declared_slots_bound():
    subject = lane(slots=3, limit=LimitConfig(enabled=False))
    candidate = subject.pool.candidates["r1"]
    assert candidate.gradient is None
    served(subject, "r1", 0, SECOND)
    started, attempt = opened(subject)
    subject.close(started, attempt, Outcome.BACKPRESSURE, Kind.OVERLOADED, 1)
    assert candidate.limit == 3


# --- slots ---------------------------------------------------------------------------------------


def test_an_open_attempt_holds_a_slot_and_its_tokens_until_it_is_closed():
    subject = lane("r1", "r2", slots=2)
    started, attempt = opened(subject)
    candidate = subject.pool.candidates["r1"]
    assert (candidate.inflight, candidate.own_tokens, subject.pool.inflight) == (1, 150, 1)
    assert started.live == [attempt]
    subject.close(started, attempt, Outcome.SUCCESS, None, 1)
    assert (candidate.inflight, candidate.own_tokens, subject.pool.inflight) == (0, 0, 0)
    assert started.live == []


def test_a_prompt_waits_at_its_replica_until_its_first_token_or_its_end():
    subject = lane("r1", "r2", slots=4)
    candidate = subject.pool.candidates["r1"]
    answered, lost = opened(subject), opened(subject)
    prompt = answered[0].request.prompt_tokens
    assert candidate.prefill_tokens == 2 * prompt > 0
    subject.first_content(*answered, SECOND)
    assert candidate.prefill_tokens == prompt
    subject.close(*answered, Outcome.SUCCESS, None, 2 * SECOND)
    assert candidate.prefill_tokens == prompt
    subject.close(*lost, Outcome.CANCELLED, Kind.CLIENT_GONE, 2 * SECOND)
    assert candidate.prefill_tokens == 0
    assert candidate.unread == 0


def test_control_is_told_of_long_prompts_until_their_first_token_or_their_end():
    subject = lane("r1", slots=4)
    opened(subject, prompt_tokens=LONG_TOKENS - 1)
    answered, lost = (opened(subject, prompt_tokens=size) for size in (LONG_TOKENS, 100_000))
    (tally,) = subject.tallies()
    assert tally.unread == LONG_TOKENS + 100_000
    subject.first_content(*answered, SECOND)
    subject.close(*answered, Outcome.SUCCESS, None, 2 * SECOND)
    (tally,) = subject.tallies()
    assert tally.unread == 100_000
    subject.close(*lost, Outcome.FAILURE, Kind.RESET, 2 * SECOND)
    (tally,) = subject.tallies()
    assert (tally.inflight, tally.unread) == (1, 0)


def test_control_is_told_of_prompts_that_wait_and_of_those_of_answers_in_one_piece():
    subject = lane("r1", slots=4)
    streamed, whole = (
        opened(subject, prompt_tokens=30),
        opened(subject, prompt_tokens=7, whole=True),
    )
    (tally,) = subject.tallies()
    assert tally.prompts == 37
    subject.first_content(*streamed, SECOND)
    (tally,) = subject.tallies()
    assert tally.prompts == 7
    subject.close(*streamed, Outcome.SUCCESS, None, 2 * SECOND)
    subject.close(*whole, Outcome.FAILURE, Kind.RESET, 2 * SECOND)
    (tally,) = subject.tallies()
    assert (tally.inflight, tally.prompts) == (0, 0)


def test_tokens_that_an_engine_has_reported_are_not_counted_twice():
    subject = lane()
    candidate = subject.pool.candidates["r1"]
    before = opened(subject)
    candidate.take_report(500, 2, 0.5)
    after = opened(subject)
    assert candidate.own_tokens == 150
    subject.close(*before, Outcome.SUCCESS, None, 1)
    assert candidate.own_tokens == 150
    subject.close(*after, Outcome.SUCCESS, None, 1)
    assert candidate.own_tokens == 0


def test_a_queue_inside_the_engine_grows_with_what_is_sent_until_it_tells_again():
    subject = lane(limit=LimitConfig(enabled=False))
    candidate = subject.pool.candidates["r1"]
    opened(subject)
    assert candidate.queue() == 0  # nobody said
    candidate.take_report(None, 0, None)
    opened(subject)
    assert candidate.queue() == 0  # where nobody waits, more may be served at once
    ours = [opened(subject) for _ in range(3)]
    candidate.take_report(None, 2, None)
    ours += [opened(subject) for _ in range(3)]
    assert candidate.queue() == 5  # no slot was free
    candidate.take_report(None, 6, None)
    assert candidate.queue() == 6  # another gateway has sent one there
    for started, attempt in ours:
        subject.close(started, attempt, Outcome.SUCCESS, None, SECOND)
    assert candidate.queue() == 6  # others may have come instead
    candidate.take_report(None, 0, None)
    assert candidate.queue() == 0
    for _ in range(6):
        opened(subject)
    assert candidate.queue() == 0  # eight were there when it had a queue
    opened(subject)
    assert candidate.queue() == 1
    candidate.take_report(None, None, None)
    assert candidate.queue() == 0


def test_attempts_are_numbered_and_remember_whom_they_tried():
    subject = lane("r1", "r2")
    started, first = opened(subject, "r1")
    second = subject.open(started, subject.pool.candidates["r2"], 5)
    assert (first.number, second.number) == (0, 1)
    assert started.tried == ("r1", "r2")
    assert started.attempts == 2


def test_the_clock_of_the_first_token_starts_with_the_attempt():
    subject = lane()
    _, attempt = opened(subject, now=7)
    assert (attempt.started, attempt.first_due) == (7, 7 + 60 * SECOND)


# --- what is learned -----------------------------------------------------------------------------


def test_nothing_is_typical_before_there_are_samples():
    subject = lane()
    served(subject, "r1", 0, SECOND)
    assert subject.pool.candidates["r1"].latency.value is None


def test_latency_is_kept_as_a_multiple_of_what_is_typical():
    subject = learned("r1", "r2")
    served(subject, "r1", START + 3 * SECOND, 200 * MILLISECOND)
    assert subject.pool.candidates["r1"].latency.value == pytest.approx(2.0, rel=0.1)


def test_an_attempt_that_its_hedge_overtook_took_at_least_that_long():
    subject = learned("r1", "r2", took=100 * MILLISECOND)
    request, slow = opened(subject, "r1", now=0)
    subject.overtaken(request, [slow], 500 * MILLISECOND)
    assert slow.candidate.latency.value == pytest.approx(5.0, rel=0.1)
    fresh = lane("r1")
    request, slow = opened(fresh, "r1", now=0)
    fresh.overtaken(request, [slow], 500 * MILLISECOND)
    assert slow.candidate.latency.value is None  # nothing is typical yet


def test_a_fast_failure_never_looks_like_a_fast_answer():
    subject = learned("r1")
    started, attempt = opened(subject, now=START + 3 * SECOND)
    subject.close(started, attempt, Outcome.FAILURE, Kind.SERVER_ERROR, START + 3 * SECOND + 1)
    assert subject.pool.candidates["r1"].latency.value == 10.0


def test_backpressure_lowers_the_weight_without_blame():
    subject = lane(limit=LimitConfig(initial=10))
    candidate = subject.pool.candidates["r1"]
    for _ in range(20):
        started, attempt = opened(subject)
        subject.close(started, attempt, Outcome.BACKPRESSURE, Kind.OVERLOADED, 1)
    assert candidate.latency.value == 3.0
    assert candidate.limit < 10
    assert candidate.breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.CLIENT_ERROR])
def test_neutral_endings_say_nothing_about_the_replica(outcome):
    subject = lane()
    candidate = subject.pool.candidates["r1"]
    for _ in range(20):
        started, attempt = opened(subject)
        assert subject.close(started, attempt, outcome, Kind.CLIENT_GONE, 1) is None
    assert candidate.latency.value is None
    assert subject.tallies() == []


def test_the_adaptive_limit_follows_the_first_tokens():
    subject = lane(limit=LimitConfig(initial=8, round_samples_min=5))
    candidate = subject.pool.candidates["r1"]
    for turn in range(20):
        crowd = [opened(subject, now=turn * SECOND, arrived=turn * SECOND) for _ in range(8)]
        for started, attempt in crowd:
            subject.first_content(started, attempt, turn * SECOND + 50 * MILLISECOND)
        for started, attempt in crowd:
            subject.close(started, attempt, Outcome.SUCCESS, None, turn * SECOND + SECOND // 2)
    assert candidate.limit > 8


def test_declared_slots_are_knowledge_and_nothing_is_learned_beside_them():
    subject = lane(slots=8, limit=LimitConfig(round_samples_min=5))
    for turn in range(20):
        started, attempt = opened(subject, now=turn * SECOND)
        subject.close(started, attempt, Outcome.BACKPRESSURE, Kind.OVERLOADED, turn * SECOND)
    assert subject.pool.candidates["r1"].limit == 8


# --- breakers ------------------------------------------------------------------------------------


def test_a_refused_connection_opens_the_breaker_and_the_pool_leaves_it_out_at_once():
    subject = lane("r1", "r2")
    started, attempt = opened(subject)
    change = subject.close(started, attempt, Outcome.FAILURE, Kind.REFUSED, 1)
    assert change is not None
    assert (change.after, change.reason) == (BreakerState.OPEN, "connection refused")
    choices = [subject.pool.choose(active().request, (), 1) for _ in range(4)]
    assert [choice and choice[0].id for choice in choices] == ["r2"] * 4


def test_other_failures_open_it_only_in_a_row():
    subject = lane()
    changes = []
    for _ in range(5):
        started, attempt = opened(subject)
        changes.append(subject.close(started, attempt, Outcome.FAILURE, Kind.RESET, 1))
    assert changes[:4] == [None] * 4
    assert changes[4].reason == "5 failures in a row"


def on_trial(subject: Lane) -> tuple[ActiveRequest, Attempt, int]:
    started, attempt = opened(subject)
    subject.close(started, attempt, Outcome.FAILURE, Kind.REFUSED, 0)
    started, attempt = opened(subject, now=SECOND)
    assert attempt.trial
    return started, attempt, SECOND


def test_a_trial_has_passed_with_its_first_content():
    subject = lane("r1", "r2")
    started, attempt, now = on_trial(subject)
    change = subject.first_content(started, attempt, now + 1)
    assert change is not None
    assert (change.after, change.reason) == (BreakerState.CLOSED, "trial succeeded")
    assert subject.close(started, attempt, Outcome.FAILURE, Kind.CUT, now + 2) is None
    assert subject.pool.candidates["r1"].breaker.state is BreakerState.CLOSED


def test_an_ordinary_first_content_moves_no_breaker():
    subject = lane()
    started, attempt = opened(subject)
    assert subject.first_content(started, attempt, 1) is None


def test_a_trial_that_fails_opens_the_breaker_again():
    subject = lane("r1", "r2")
    started, attempt, now = on_trial(subject)
    change = subject.close(started, attempt, Outcome.FAILURE, Kind.RESET, now)
    assert change is not None
    assert change.reason == "trial failed"


def test_a_trial_that_says_nothing_is_handed_to_the_next_request():
    subject = lane("r1", "r2")
    started, attempt, now = on_trial(subject)
    assert subject.close(started, attempt, Outcome.CANCELLED, Kind.CLIENT_GONE, now) is None
    choice = subject.pool.choose(active().request, (), now)
    assert choice is not None
    assert (choice[0].id, choice[1]) == ("r1", TRIAL_REASON)


# --- what others are told ------------------------------------------------------------------------


def test_tallies_name_what_was_seen_since_the_last_ones():
    subject = lane("r1", "r2", "idle")
    served(subject, "r1", 0, 2 * SECOND)
    subject.pool.candidates["r1"].tokens += 12
    started, attempt = opened(subject, "r2")
    subject.close(started, attempt, Outcome.FAILURE, Kind.RESET, 1)
    opened(subject, "r2")
    assert subject.tallies() == [
        Tally("m", "r1", 1, 0, 0, 0, 112, firsts=(2.0,), prompts=0),
        Tally("m", "r2", 0, 1, 0, 1, 0, {Kind.RESET: 1}, 1, prompts=100),
    ]
    assert subject.tallies() == [Tally("m", "r2", 0, 0, 0, 1, 0, prompts=100)]


def test_seconds_to_the_first_token_are_those_of_streams_that_began_here():
    subject = lane()
    started, attempt = opened(subject)
    started.shown_tokens = 5  # its prompt is longer by what another has said already
    subject.first_content(started, attempt, SECOND)
    whole = ActiveRequest(Request("q2", "m", arrived=0, whole=True), "m", 600 * SECOND)
    one = subject.open(whole, subject.pool.candidates["r1"], 0)
    subject.first_content(whole, one, SECOND)
    assert subject.tallies()[0].firsts == ()
    for _ in range(2 * SAMPLES_MAX):
        served(subject, "r1", 0, SECOND)
    assert subject.tallies()[0].firsts == (1.0,) * SAMPLES_MAX
    assert subject.tallies()[0].firsts == ()


def test_a_replica_that_only_cancellations_emptied_is_told_of_once_more():
    subject = lane()
    started, attempt = opened(subject)
    assert subject.tallies() == [Tally("m", "r1", 0, 0, 0, 1, 0, prompts=100)]
    subject.close(started, attempt, Outcome.CANCELLED, Kind.CLIENT_GONE, 1)
    assert subject.tallies() == [Tally("m", "r1", 0, 0, 0, 0, 0, prompts=0)]
    assert subject.tallies() == []


def test_backpressure_is_tallied():
    subject = lane()
    started, attempt = opened(subject)
    subject.close(started, attempt, Outcome.BACKPRESSURE, Kind.OVERLOADED, 1)
    assert subject.tallies() == [Tally("m", "r1", 0, 0, 1, 0, 0, prompts=0)]


def test_saturation_is_utilisation_and_at_least_full_while_anybody_waits():
    subject = lane(slots=4)
    opened(subject)
    assert subject.saturation() == 0.25
    subject.queue.offer(Request("q9", "m", arrived=0), 0, ready=True)
    assert subject.saturation() == 1.0


def test_saturation_without_a_known_limit_is_unknown():
    subject = lane(limit=LimitConfig(enabled=False))
    assert subject.saturation() is None


def test_readings_are_shares_since_the_last_ones_and_unknown_without_traffic():
    subject = lane("r1", slots=4, slo_first_token_s=1.0)
    assert subject.readings() == (0.0, None, None)
    served(subject, "r1", 0, 500 * MILLISECOND)
    served(subject, "r1", 0, 1500 * MILLISECOND)
    started, attempt = opened(subject)
    subject.close(started, attempt, Outcome.FAILURE, Kind.RESET, 1)
    opened(subject)
    saturation, attained, errors = subject.readings()
    assert (saturation, attained) == (0.25, 0.5)
    assert errors == pytest.approx(1 / 3)
    assert subject.readings() == (0.25, None, None)


def test_time_in_the_queue_counts_against_the_promise():
    subject = lane(slo_first_token_s=1.0)
    started, attempt = opened(subject, now=5 * SECOND, arrived=0)
    subject.first_content(started, attempt, 5 * SECOND + 1)
    assert subject.readings()[1] == 0.0


def test_without_a_promise_no_first_token_is_late():
    subject = lane()
    served(subject, "r1", 0, 500 * SECOND)
    assert subject.readings()[1] == 1.0


# --- what an autoscaler reads --------------------------------------------------------------------


def rows(*shares: float) -> list[ReplicaView]:
    return [ReplicaView(Replica("r1", "m"), State.READY, share) for share in shares]


def streamed(subject: Lane, took: int, now: int = START, times: int = 20, **kwargs) -> None:
    for _ in range(times):
        served(subject, "r1", now, took, **kwargs)


def test_the_first_tokens_of_the_last_minute_have_a_p95_once_they_are_enough():
    subject = lane()
    streamed(subject, 100 * MILLISECOND, times=19)
    assert subject.first_token_p95(START + SECOND) is None
    streamed(subject, 5 * SECOND, times=1)  # one slow one is no p95
    now = START + 6 * SECOND
    assert subject.first_token_p95(now) == pytest.approx(100 * MILLISECOND, rel=0.05)
    streamed(subject, 5 * SECOND, times=5)
    assert subject.first_token_p95(now) == pytest.approx(5 * SECOND, rel=0.05)
    assert subject.first_token_p95(now + 70 * SECOND) is None


def test_waiting_for_a_model_that_starts_is_not_held_against_those_that_run():
    subject = lane()
    subject.follow([], START)
    subject.follow(rows(0.0), START + SECOND)  # it loads
    woken = START + 20 * SECOND
    subject.follow(rows(0.2), woken)
    subject.follow(rows(1.0), woken + SECOND)  # it was awake already
    for _ in range(20):
        started = active(arrived=START)
        attempt = subject.open(started, subject.pool.candidates["r1"], woken)
        subject.first_content(started, attempt, woken + SECOND)
    assert subject.first_token_p95(woken + SECOND) == pytest.approx(SECOND, rel=0.05)


def test_neither_whole_answers_nor_continuations_nor_batch_work_have_a_first_token():
    subject = lane()
    for number in range(60):
        started, attempt = opened(subject, "r1", START, arrived=START)
        if number % 3 == 0:
            started.request.whole = True
        elif number % 3 == 1:
            started.shown_tokens = 7
        else:
            started.request.priority = Priority.BATCH
        subject.first_content(started, attempt, START + SECOND)
    assert subject.first_token_p95(START + SECOND) is None


def test_what_was_served_is_taken_once_and_after_it_was_tallied():
    subject = lane()
    served(subject, "r1", START, MILLISECOND)
    subject.pool.candidates["r1"].tokens += 30  # of its answer
    opened(subject, "r1", START)  # and one runs still
    assert subject.take_served() == (0, 0)
    subject.tallies()
    assert (subject.take_served(), subject.take_served()) == ((2, 130), (0, 0))


# --- all lanes of a gateway ----------------------------------------------------------------------

STALE = 10 * SECOND


def lanes(**configs: LaneConfig) -> LaneTable:
    return LaneTable(LaneConfig(), configs, {}, STALE, Random)


def view(version: int, *replicas: ReplicaView, epoch: int = 0) -> FleetView:
    return FleetView(version, replicas, epoch=epoch)


def ready(name: str, model: str = "m") -> ReplicaView:
    return ReplicaView(Replica(name, model), State.READY, 1.0)


def test_a_view_makes_a_lane_for_each_model_with_its_own_config():
    table = lanes(b=LaneConfig(routing="round_robin"))
    assert table.apply(view(1, ready("r1", "a"), ready("r2", "b")), 0)
    assert set(table.by_model) == {"a", "b"}
    assert list(table.by_model["b"].pool.candidates) == ["r2"]


def test_every_model_of_the_config_has_a_lane_before_anybody_serves_it():
    table = lanes(b=LaneConfig(routing="round_robin"))
    lane = table.by_model["b"]
    assert (lane.pool.candidates, lane.pool.ready(0)) == ({}, False)
    table.apply(view(1, ready("r2", "b")), 0)
    assert table.by_model["b"] is lane


def test_a_late_frame_changes_nothing():
    table = lanes()
    table.apply(view(2, ready("r1")), 0)
    assert not table.apply(view(1, ready("r2")), 1)
    assert list(table.by_model["m"].pool.candidates) == ["r1"]


def test_a_control_that_took_over_is_followed_though_it_counts_from_one():
    table = lanes()
    table.apply(view(900, ready("r1")), 0)
    assert table.apply(view(1, ready("r2"), epoch=1), 1)
    assert list(table.by_model["m"].pool.candidates) == ["r2"]
    assert not table.apply(view(901, ready("r1")), 2)  # the old one, heard of late
    assert table.view == (1, 1)


def test_a_model_that_is_no_longer_named_keeps_its_lane_without_replicas():
    table = lanes()
    table.apply(view(1, ready("r1")), 0)
    table.apply(view(2), 1)
    assert table.by_model["m"].pool.candidates == {}


def test_what_was_only_suspected_is_doubted_when_control_is_silent():
    table = lanes()
    suspected = ReplicaView(Replica("r1", "m"), State.QUARANTINED, 0.0)
    known = ReplicaView(Replica("r2", "m"), State.QUARANTINED, 0.0, firm=True)
    table.apply(view(1, suspected, known), 0)
    assert table.doubt(STALE) == []
    assert [report.replica_id for report in table.doubt(STALE + 1)] == ["r1"]
    assert table.doubt(STALE + 2) == []  # said once


def test_before_any_view_there_is_nothing_to_doubt():
    assert lanes().doubt(100 * SECOND) == []


def test_tallies_of_all_lanes_come_together():
    table = lanes()
    table.apply(view(1, ready("r1", "a"), ready("r2", "b")), 0)
    table.by_model["b"].pool.candidates["r2"].successes = 3
    assert [(tally.replica_id, tally.successes) for tally in table.tallies(0)] == [("r2", 3)]
