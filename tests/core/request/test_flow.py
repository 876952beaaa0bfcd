from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.failure import MEANINGS, Kind
from holdfast.core.messages import (
    Abort,
    Answered,
    Arrived,
    ClientGone,
    Dispatch,
    Ended,
    Finish,
    FirstContent,
    FleetView,
    Leased,
    LoadReported,
    Quiet,
    ReplicaHalted,
    ReplicaView,
    Report,
    ReportCode,
    Silent,
    Summary,
    Tally,
    Tick,
    ViewChanged,
)
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.candidate import SAMPLES_MAX
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.degrade import DegradeConfig
from holdfast.core.request.failover import FailoverConfig
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.pool import TRIAL_REASON
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import MILLISECOND, SECOND, Halt, Priority, Replica, Request, State, nanos
from sampling import examples

START = 100 * SECOND
TICK = 10 * MILLISECOND
PATIENT = DeadlineConfig()
QUICK = DeadlineConfig(first_token_s=2.0, between_tokens_s=2.0)
HEDGING = HedgeConfig(enabled=True, samples_min=1)
NO_BACKOFF = RetryConfig(backoff="none")


def view(name: str, share: float = 1.0, *, firm: bool = False, **declared) -> ReplicaView:
    replica = Replica(name, **{"model": "m", "slots": 4, **declared})
    state = State.READY if share else State.QUARANTINED
    return ReplicaView(replica, state, share, firm)


def lane(**config) -> LaneConfig:
    plain = {
        "routing": "round_robin",
        "limit": LimitConfig(enabled=False),
        "breaker": BreakerConfig(jitter=0.0),
    }
    return LaneConfig(**{**plain, **config})


class Gateway:
    """Drives one flow as a gateway does: tells what happened, returns what is to be done."""

    def __init__(self, *views: ReplicaView | str, lane: LaneConfig = lane(), **config) -> None:  # noqa: B008
        self.flow = Flow(FlowConfig(lane=lane, **config), Random)
        self.now = START
        self.version = 0
        self.doubts: list[Report] = []  # reports of overdue attempts, apart: most tests wait long
        self.view(*(views or ("r1", "r2", "r3")))

    def tell(self, event) -> list:
        actions = self.flow.handle(event, self.now)
        doubts = [a for a in actions if isinstance(a, Report) and a.what == ReportCode.OVERDUE]
        self.doubts += doubts
        return [action for action in actions if action not in doubts]

    def view(self, *views: ReplicaView | str, version: int | None = None) -> list:
        self.version = self.version + 1 if version is None else version
        replicas = tuple(view(v) if isinstance(v, str) else v for v in views)
        return self.tell(ViewChanged(FleetView(self.version, replicas)))

    def arrive(self, request_id: str = "q1", model: str = "m", **kwargs) -> list:
        return self.tell(Arrived(Request(request_id, model, **{"arrived": self.now, **kwargs})))

    def first(self, request_id: str = "q1", attempt: int = 0) -> list:
        return self.tell(FirstContent(request_id, attempt))

    def end(
        self, request_id: str = "q1", attempt: int = 0, kind: Kind | None = None, tokens: int = 0
    ) -> list:
        return self.tell(Ended(request_id, attempt, kind, tokens, MILLISECOND))

    def silent(self, request_id: str = "q1", attempt: int = 0, tokens: int = 0) -> list:
        return self.tell(Silent(request_id, attempt, tokens))

    def gone(self, request_id: str = "q1") -> list:
        return self.tell(ClientGone(request_id))

    def tick(self) -> list:
        return self.tell(Tick())

    def after(self, delay_s: float) -> "Gateway":
        """Let time pass without a tick."""
        self.now += nanos(delay_s)
        return self

    def wait(self, delay_s: float, every: int = TICK) -> list:
        """Let time pass tick by tick; everything but the summaries."""
        actions, until = [], self.now + nanos(delay_s)
        while self.now < until:
            self.now = min(self.now + every, until)
            actions += self.tick()
        return [action for action in actions if not isinstance(action, Summary)]

    def serve(self, request_id: str, took_s: float = 0.1, **kwargs) -> Finish:
        """One whole answer."""
        only(self.arrive(request_id, **kwargs), Dispatch)
        self.after(took_s).first(request_id)
        return only(self.end(request_id, tokens=8), Finish)

    def candidate(self, name: str):
        return self.flow.lanes["m"].pool.candidates[name]

    def tallies(self) -> dict[str, Tally]:
        """What the next summary says, by replica."""
        actions = self.after(1.0).tick()
        told = [a for a in actions if isinstance(a, Summary)]
        return {tally.replica_id: tally for summary in told for tally in summary.tallies}


def only(actions: list, kind: type):
    """The one action there is, of that kind."""
    assert [type(action) for action in actions] == [kind], actions
    return actions[0]


def last(actions: list, kind: type):
    assert isinstance(actions[-1], kind), actions
    return actions[-1]


def all_of(actions: list, kind: type) -> list:
    return [action for action in actions if isinstance(action, kind)]


def events(finish: Finish) -> list[str]:
    return [what for _, what, _ in finish.story]


# --- the plain case ------------------------------------------------------------------------------


def test_a_request_is_sent_shown_and_answered():
    gateway = Gateway("r1")
    dispatch = only(gateway.arrive(prompt_tokens=10), Dispatch)
    assert (dispatch.replica_id, dispatch.model, dispatch.attempt) == ("r1", "m", 0)
    assert (dispatch.request.id, dispatch.resume_tokens) == ("q1", 0)
    assert dispatch.reason == "next in turn"
    assert dispatch.silence_max == 30 * SECOND
    assert gateway.after(0.1).first() == []
    finish = only(gateway.after(1.0).end(tokens=20), Finish)
    assert (finish.status, finish.code, finish.replica_id) == (200, "ok", "r1")
    assert (finish.attempts, finish.continued, finish.shown) == (1, 0, True)
    assert finish.model == "m"
    assert gateway.flow.lives == {}


def test_an_answer_that_came_in_one_piece_needs_no_first_content():
    gateway = Gateway("r1")
    gateway.arrive()
    assert only(gateway.end(tokens=3), Finish).status == 200


def test_requests_are_spread_over_the_replicas():
    gateway = Gateway("r1", "r2", "r3")
    used = [only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(3)]
    assert sorted(used) == ["r1", "r2", "r3"]


def test_a_model_that_nobody_ever_served_is_not_found():
    finish = only(Gateway("r1").arrive(model="nobody"), Finish)
    assert (finish.status, finish.code, finish.attempts) == (404, "model_not_found", 0)


def asleep(**queue) -> Gateway:
    """A gateway of a model that has no replica."""
    own = lane(queue=QueueConfig(**queue))
    gateway = Gateway(lane=own, lanes={"m": own})
    gateway.view()
    return gateway


def test_what_is_asked_of_a_model_at_zero_waits_until_it_is_woken():
    gateway = asleep()
    assert gateway.arrive() == []
    queue = gateway.flow.lanes["m"].queue
    assert (len(queue), queue.tokens > 0) == (1, False)
    assert gateway.wait(20.0) == []
    assert only(gateway.view("r1"), Dispatch).replica_id == "r1"


def test_before_the_first_view_a_model_of_the_config_is_at_zero_too():
    flow = Flow(FlowConfig(lanes={"m": lane()}), Random)
    assert flow.handle(Arrived(Request("q1", "m", arrived=START)), START) == []
    told = flow.handle(ViewChanged(FleetView(1, (view("r1"),))), START + SECOND)
    assert only(told, Dispatch).replica_id == "r1"


def test_who_waits_in_vain_for_a_model_at_zero_is_told_when_to_come_back():
    gateway = asleep(wait_no_replica_s=3.0)
    gateway.arrive()
    finish = only(gateway.wait(3.1), Finish)
    assert (finish.status, finish.code, finish.attempts) == (503, "no_ready_replica", 0)
    assert finish.retry_after_s > 0


def test_two_waits_for_a_replica_are_not_longer_than_one():
    """Its only replica comes back for a moment, fails it, and is away again."""
    gateway = asleep(wait_no_replica_s=10.0)
    gateway.arrive()
    assert gateway.wait(8.0) == []
    [dispatch] = gateway.view("r1")
    gateway.after(5.0).view(view("r1", 0.0))  # what an attempt takes is no waiting
    assert gateway.end("q1", dispatch.attempt, Kind.RESET) == []
    assert gateway.wait(1.9) == []
    finish = only(gateway.wait(0.3), Finish)
    assert (finish.status, finish.code, finish.attempts) == (503, "no_ready_replica", 1)
    assert "10 s" in finish.reason


def test_only_so_many_wait_for_a_model_at_zero():
    gateway = asleep(depth_max=1, batch_depth_max=0)
    assert gateway.arrive("q1") == []
    finish = only(gateway.arrive("q2"), Finish)
    assert (finish.status, finish.code) == (503, "queue_full")
    assert finish.retry_after_s > 0


def test_an_id_that_is_under_way_is_refused_loudly():
    gateway = Gateway("r1")
    gateway.arrive()
    with pytest.raises(ValueError, match="'q1' is already under way"):
        gateway.arrive()


def test_models_have_lanes_of_their_own():
    config = {"lanes": {"other": lane(deadlines=QUICK)}}
    gateway = Gateway("r1", view("o1", model="other"), **config)
    assert only(gateway.arrive("q1"), Dispatch).silence_max == 30 * SECOND
    dispatch = only(gateway.arrive("q2", model="other"), Dispatch)
    assert (dispatch.replica_id, dispatch.silence_max) == ("o1", 2 * SECOND)


def test_the_same_events_cause_the_same_actions():
    def run() -> str:
        gateway = Gateway("r1", "r2", "r3", lane=LaneConfig(deadlines=QUICK), hedge=HEDGING)
        said = []
        for n in range(30):
            said += gateway.arrive(f"q{n}", prompt_tokens=n)
            said += gateway.after(0.05).first(f"q{n}") if n % 3 else []
            said += gateway.end(f"q{n}", 0, Kind.RESET if n % 4 == 0 else None, n)
            said += gateway.wait(0.3)
        return repr(said)

    assert run() == run()


# --- late and doubled news -----------------------------------------------------------------------


def test_news_of_requests_and_attempts_that_are_no_more_is_ignored():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    assert gateway.first("q1", 7) == []
    assert gateway.end("q1", 7) == []
    assert gateway.silent("q1", 7) == []
    gateway.end(tokens=1)
    for late in (gateway.first, gateway.end, gateway.silent, gateway.gone):
        assert late("q1") == []
        assert late("never") == []


def test_a_second_first_content_says_nothing_new():
    gateway = Gateway("r1")
    gateway.arrive()
    gateway.after(0.1).first()
    assert gateway.after(5.0).first() == []
    assert only(gateway.end(), Finish).status == 200


# --- the queue -----------------------------------------------------------------------------------


def full(**config) -> Gateway:
    """One replica with one slot, taken by q1."""
    gateway = Gateway(view("r1", slots=1), **config)
    only(gateway.arrive("q1"), Dispatch)
    return gateway


def test_a_request_waits_while_everybody_is_full_and_is_served_when_room_appears():
    gateway = full()
    assert gateway.arrive("q2") == []
    finish, dispatch = gateway.after(1.0).end("q1", tokens=5)
    assert isinstance(finish, Finish)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.request.id, dispatch.replica_id) == ("q2", "r1")
    assert "queued" in events(only(gateway.end("q2"), Finish))


def test_who_comes_later_does_not_overtake_who_waits():
    gateway = full()
    gateway.arrive("q2")
    gateway.view(view("r1", slots=1), view("r2", slots=1))  # serves q2
    gateway.arrive("q3")
    gateway.arrive("q4")
    dispatched = all_of(gateway.end("q1") + gateway.end("q2"), Dispatch)
    assert [dispatch.request.id for dispatch in dispatched] == ["q3", "q4"]


def test_a_new_replica_serves_those_who_wait():
    gateway = full()
    gateway.arrive("q2")
    dispatch = only(gateway.view(view("r1", slots=1), view("r2", slots=1)), Dispatch)
    assert (dispatch.request.id, dispatch.replica_id) == ("q2", "r2")


def test_room_that_appears_by_itself_is_found_by_the_next_tick():
    gateway = full()
    gateway.arrive("q2")
    gateway.candidate("r1").limit = 2
    assert only(gateway.wait(0.01), Dispatch).request.id == "q2"


def test_a_full_queue_sheds_with_a_time_to_come_back():
    gateway = full(lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)))
    gateway.arrive("q2")
    finish = only(gateway.arrive("q3"), Finish)
    assert (finish.request_id, finish.status, finish.code) == ("q3", 503, "queue_full")
    assert finish.retry_after_s == 5.0
    assert finish.attempts == 0


def test_an_interactive_request_takes_the_place_of_a_batch_one():
    gateway = full(lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)))
    gateway.arrive("q2", priority=Priority.BATCH)
    finish = only(gateway.arrive("q3"), Finish)
    assert (finish.request_id, finish.code) == ("q2", "displaced")
    assert last(gateway.end("q1"), Dispatch).request.id == "q3"


def test_who_has_waited_too_long_is_told_so_and_never_sent():
    gateway = full()
    gateway.arrive("q2")
    assert gateway.wait(29.9, every=100 * MILLISECOND) == []
    finish = only(gateway.wait(0.2), Finish)
    assert (finish.request_id, finish.status, finish.code) == ("q2", 503, "queue_timeout")
    assert gateway.end("q1")[1:] == []


def test_a_wait_that_is_over_ends_though_room_appeared_before_the_tick():
    gateway = full()
    gateway.arrive("q2")
    gateway.wait(29.99, every=100 * MILLISECOND)
    only(gateway.after(0.015).end("q1"), Finish)  # q2 is overdue by now and is not sent
    finish = only(gateway.wait(0.02), Finish)
    assert (finish.request_id, finish.code) == ("q2", "queue_timeout")
    assert gateway.flow.lives == {}


def test_a_deadline_that_passed_in_the_queue_is_504_and_never_sent():
    gateway = full()
    gateway.arrive("q2", deadline=gateway.now + SECOND)
    finish = only(gateway.wait(1.1), Finish)
    assert (finish.status, finish.code, finish.attempts) == (504, "deadline_exceeded", 0)
    only(gateway.end("q1"), Finish)


def test_a_request_that_comes_after_its_deadline_is_not_queued():
    gateway = full()
    finish = only(gateway.arrive("q2", deadline=gateway.now), Finish)
    assert (finish.status, finish.code) == (504, "deadline_exceeded")


def test_without_a_ready_replica_requests_are_held_for_a_while_and_then_refused():
    gateway = Gateway("r1")
    gateway.view()
    assert gateway.arrive("q1") == []
    gateway.wait(5.0, every=SECOND)
    assert only(gateway.view("r1"), Dispatch).request.id == "q1"
    gateway.view()
    gateway.arrive("q2")
    finish = only(gateway.wait(31.0, every=SECOND), Finish)
    assert (finish.request_id, finish.status, finish.code) == ("q2", 503, "no_ready_replica")


def test_a_batch_request_gives_way_in_the_queue():
    gateway = full()
    gateway.arrive("q2", priority=Priority.BATCH)
    gateway.arrive("q3")
    assert last(gateway.end("q1"), Dispatch).request.id == "q3"
    assert last(gateway.end("q3"), Dispatch).request.id == "q2"


def test_a_nearly_full_other_region_keeps_requests_waiting_and_fails_none():
    gateway = Gateway(
        view("near", slots=1, region="home"),
        view("far", slots=20, region="away"),
        lane=lane(failover=FailoverConfig(home_region="home")),
    )
    for n in range(20):
        only(gateway.arrive(f"q{n}"), Dispatch)
    assert gateway.arrive("q20") == []
    assert gateway.wait(2.0) == []
    near = next(
        r for r, active in gateway.flow.lives.items() if active.live[0].candidate.id == "near"
    )
    assert last(gateway.end(near), Dispatch).request.id == "q20"


# --- retries -------------------------------------------------------------------------------------


def test_a_failed_attempt_is_tried_again_elsewhere_after_a_short_wait():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    assert gateway.end(kind=Kind.SERVER_ERROR) == []
    again = only(gateway.wait(0.06), Dispatch)
    assert (again.replica_id, again.attempt, again.resume_tokens) == ("r2", 1, 0)
    finish = only(gateway.end(attempt=1), Finish)
    assert (finish.status, finish.attempts, finish.replica_id) == (200, 2, "r2")


def test_the_wait_before_a_retry_is_drawn_from_the_backoff():
    gateway = Gateway("r1", "r2", retry=RetryConfig(backoff_base_s=10.0, backoff_max_s=10.0))
    waits = []
    for n in range(6):
        gateway.arrive(f"q{n}")
        gateway.end(f"q{n}", kind=Kind.SERVER_ERROR)
        began = gateway.now
        while not all_of(gateway.tick(), Dispatch):
            gateway.after(0.01)
        waits.append(gateway.now - began)
        gateway.end(f"q{n}", 1)
    assert max(waits) <= 10.1 * SECOND
    assert max(waits) - min(waits) > SECOND


@pytest.mark.parametrize("kind", [k for k in Kind if MEANINGS[k].free])
def test_an_attempt_that_did_no_work_is_repeated_at_once_for_free_and_only_once(kind):
    gateway = Gateway("r1", "r2", "r3", "r4")
    gateway.arrive()
    first = last(gateway.end(kind=kind), Dispatch)
    assert first.attempt == 1
    assert not all_of(gateway.end(attempt=1, kind=kind), Dispatch)  # this one has its wait
    assert only(gateway.wait(0.06), Dispatch).attempt == 2
    finish = last(gateway.end(attempt=2, kind=kind), Finish)
    assert (finish.status, finish.attempts) == (502, 3)
    assert finish.reason == f"{kind.value}: all attempts used"


def test_attempts_are_capped_and_the_error_is_honest():
    gateway = Gateway("r1", "r2", "r3", retry=NO_BACKOFF)
    gateway.arrive()
    only(gateway.end(kind=Kind.SERVER_ERROR), Dispatch)
    finish = only(gateway.end(attempt=1, kind=Kind.SERVER_ERROR), Finish)
    assert (finish.status, finish.code, finish.attempts) == (502, "upstream_failed", 2)
    assert finish.reason == "server_error: all attempts used"
    assert not finish.shown


def test_a_spent_budget_ends_all_retrying():
    retry = RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.1, backoff="none")
    gateway = Gateway("r1", "r2", retry=retry)  # one retry in ten seconds
    gateway.arrive("q1")
    gateway.arrive("q2")
    only(gateway.end("q1", kind=Kind.RESET), Dispatch)
    finish = only(gateway.end("q2", kind=Kind.RESET), Finish)
    assert (finish.status, finish.reason) == (502, "reset: retry budget spent")


def test_a_retry_that_would_come_after_the_deadline_is_not_made():
    gateway = Gateway("r1", "r2")
    gateway.arrive(deadline=gateway.now + SECOND)
    finish = only(gateway.after(1.0).end(kind=Kind.RESET), Finish)
    assert finish.reason == "reset: no time left before the deadline"


def test_a_clients_own_mistake_is_passed_on_and_not_repeated():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    finish = only(gateway.end(kind=Kind.BAD_REQUEST), Finish)
    assert (finish.status, finish.code) == (400, "bad_request")
    assert gateway.tallies() == {}


def test_a_retry_uses_a_tried_replica_when_there_is_no_other():
    gateway = Gateway("r1", retry=NO_BACKOFF)
    gateway.arrive()
    again = only(gateway.end(kind=Kind.RESET), Dispatch)
    assert (again.replica_id, again.attempt) == ("r1", 1)


def test_a_retry_waits_in_the_queue_while_the_others_are_full():
    gateway = Gateway(view("r1", slots=1), view("r2", slots=1), retry=NO_BACKOFF)
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    # r1 is free again but goes to q3, who came first; q1 finds r2 when q2 is done
    assert only(gateway.end("q1", kind=Kind.RESET), Dispatch).request.id == "q3"
    finish, again = gateway.end("q2")
    assert finish.request_id == "q2"
    assert (again.request.id, again.replica_id, again.attempt) == ("q1", "r2", 1)


def test_a_retry_that_finds_the_queue_full_is_shed():
    gateway = Gateway(
        view("r1", slots=1),
        view("r2", slots=1),
        retry=NO_BACKOFF,
        lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)),
    )
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    finish, dispatch = gateway.end("q1", kind=Kind.RESET)
    assert (finish.request_id, finish.code) == ("q1", "queue_full")
    assert dispatch.request.id == "q3"


def test_a_retry_may_push_out_a_request_that_is_due_at_the_same_tick():
    gateway = Gateway(
        view("r1", slots=1),
        view("r2", slots=1),
        lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)),
    )
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    assert only(gateway.end("q1", kind=Kind.RESET), Dispatch).request.id == "q3"
    gateway.arrive("q4", deadline=gateway.now + SECOND // 10)
    finish = only(gateway.wait(0.2, every=SECOND), Finish)  # q1 comes back, q4 is over
    assert (finish.request_id, finish.code) == ("q4", "deadline_exceeded")
    assert last(gateway.end("q2"), Dispatch).request.id == "q1"


def test_backpressure_is_retried_elsewhere_and_held_against_nobody():
    gateway = Gateway("r1", "r2", retry=RetryConfig(backoff="none", budget=False))
    for n in range(12):
        gateway.arrive(f"q{n}")
        again = only(gateway.end(f"q{n}", kind=Kind.OVERLOADED), Dispatch)
        gateway.end(f"q{n}", again.attempt)
    assert gateway.candidate("r1").breaker.state == "closed"
    tallies = gateway.tallies().values()
    assert sum(tally.backpressure for tally in tallies) == 12
    assert sum(tally.failures for tally in tallies) == 0


def test_an_overloaded_fleet_is_503_and_does_not_blame_the_caller():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive()
    gateway.end(kind=Kind.OVERLOADED)
    assert only(gateway.end(attempt=1, kind=Kind.OVERLOADED), Finish).status == 503


@pytest.mark.parametrize("kind", Kind)
def test_after_an_ending_of_any_kind_the_slots_are_free(kind):
    gateway = Gateway("r1", "r2", "r3", "r4", retry=NO_BACKOFF)
    gateway.arrive(prompt_tokens=100, max_tokens=50)
    attempt = 0
    while gateway.flow.lives:
        gateway.end(attempt=attempt, kind=kind)
        attempt += 1
    pool = gateway.flow.lanes["m"].pool
    assert pool.inflight == 0
    assert {c.inflight for c in pool.candidates.values()} == {0}
    assert {c.own_tokens for c in pool.candidates.values()} == {0}
    assert attempt <= 3


# --- breakers and trials -------------------------------------------------------------------------


def refused(gateway: Gateway, request_id: str = "q0") -> None:
    """r1 refuses a connection: its breaker opens for one second."""
    assert only(gateway.arrive(request_id), Dispatch).replica_id == "r1"
    report, again = gateway.end(request_id, kind=Kind.REFUSED)
    assert (report.what, report.replica_id, report.reason) == ("open", "r1", "connection refused")
    assert again.replica_id == "r2"
    gateway.end(request_id, 1)


def test_a_replica_whose_breaker_is_open_gets_nothing_until_its_cooldown_is_over():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    for n in range(1, 5):
        assert only(gateway.arrive(f"q{n}"), Dispatch).replica_id == "r2"
        gateway.end(f"q{n}")


def test_exactly_one_request_is_the_trial_and_its_first_content_closes_the_breaker():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    gateway.after(1.0)
    trial = only(gateway.arrive("q1"), Dispatch)
    assert (trial.replica_id, trial.reason) == ("r1", TRIAL_REASON)
    assert {only(gateway.arrive(f"o{n}"), Dispatch).replica_id for n in range(3)} == {"r2"}
    report = only(gateway.first("q1"), Report)
    assert (report.what, report.reason) == ("closed", "trial succeeded")
    assert {only(gateway.arrive(f"p{n}"), Dispatch).replica_id for n in range(4)} == {"r1", "r2"}


def test_those_who_wait_get_the_room_of_a_replica_whose_trial_passed():
    gateway = Gateway(view("r1", slots=2), view("r2", slots=1))
    refused(gateway)
    gateway.after(1.0)
    assert only(gateway.arrive("q1"), Dispatch).replica_id == "r1"
    assert only(gateway.arrive("q2"), Dispatch).replica_id == "r2"
    assert gateway.arrive("q3") == []
    report, dispatch = gateway.first("q1")
    assert report.what == "closed"
    assert (dispatch.request.id, dispatch.replica_id) == ("q3", "r1")


def test_a_failed_trial_opens_the_breaker_for_longer():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    gateway.after(1.0).arrive("q1")
    report = gateway.end("q1", kind=Kind.RESET)[0]
    assert (report.what, report.reason) == ("open", "trial failed")
    gateway.wait(1.9)
    assert only(gateway.arrive("q2"), Dispatch).replica_id == "r2"
    assert only(gateway.after(0.2).arrive("q3"), Dispatch).replica_id == "r1"


def test_a_retried_request_is_never_the_trial():
    gateway = Gateway("r1", "r2", "r3", retry=NO_BACKOFF)
    refused(gateway)
    first = only(gateway.arrive("q1"), Dispatch)
    again = only(gateway.after(1.0).end("q1", kind=Kind.RESET), Dispatch)
    assert {first.replica_id, again.replica_id} == {"r2", "r3"}
    assert again.reason != TRIAL_REASON


def test_a_trial_whose_client_left_goes_to_the_next_request():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    gateway.after(1.0).arrive("q1")
    gateway.gone("q1")
    assert only(gateway.arrive("q2"), Dispatch).reason == TRIAL_REASON


# --- content was shown ---------------------------------------------------------------------------


def shown(gateway: Gateway, **kwargs) -> Dispatch:
    dispatch = only(gateway.arrive("q1", **kwargs), Dispatch)
    gateway.after(0.1).first()
    return dispatch


def test_a_broken_stream_is_continued_elsewhere_from_where_the_client_is():
    gateway = Gateway("r1", "r2")
    shown(gateway)
    again = only(gateway.end(kind=Kind.CUT, tokens=7), Dispatch)
    assert (again.replica_id, again.attempt, again.resume_tokens) == ("r2", 1, 7)
    gateway.after(0.1).first(attempt=1)
    finish = only(gateway.end(attempt=1, tokens=5), Finish)
    assert (finish.status, finish.continued, finish.attempts) == (200, 1, 2)
    assert finish.shown


def test_tokens_of_several_continuations_add_up():
    gateway = Gateway("r1", "r2", "r3")
    shown(gateway)
    gateway.end(kind=Kind.CUT, tokens=7)
    gateway.first(attempt=1)
    again = only(gateway.end(attempt=1, kind=Kind.RESET, tokens=4), Dispatch)
    assert (again.resume_tokens, again.replica_id) == (11, "r3")


def test_a_stream_of_which_no_count_is_known_is_still_continued_and_never_started_again():
    gateway = Gateway("r1", "r2", "r3")
    shown(gateway)
    again = only(gateway.end(kind=Kind.CUT, tokens=0), Dispatch)
    assert again.resume_tokens > 0
    again = last(gateway.end(attempt=1, kind=Kind.REFUSED), Dispatch)
    assert again.resume_tokens > 0
    assert only(gateway.end(attempt=2), Finish).continued == 2


def test_a_continuation_that_fails_before_its_content_costs_a_continuation_too():
    gateway = Gateway("r1", "r2", "r3", "r4")
    shown(gateway)
    gateway.end(kind=Kind.CUT, tokens=7)
    again = last(gateway.end(attempt=1, kind=Kind.REFUSED), Dispatch)
    assert again.resume_tokens == 7
    finish = last(gateway.end(attempt=2, kind=Kind.REFUSED), Finish)
    assert (finish.continued, finish.shown) == (2, True)
    assert finish.reason == "refused: all continuations used"


def test_a_continuation_costs_retry_budget():
    gateway = Gateway("r1", "r2", retry=RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.0))
    shown(gateway)
    finish = only(gateway.end(kind=Kind.CUT, tokens=7), Finish)
    assert (finish.status, finish.reason) == (502, "cut: retry budget spent")


def test_a_stream_that_cannot_be_continued_ends_with_an_honest_error():
    gateway = Gateway("r1", "r2")
    shown(gateway, continuable=False)
    finish = only(gateway.end(kind=Kind.CUT, tokens=7), Finish)
    assert (finish.status, finish.shown, finish.continued) == (502, True, 0)
    assert finish.reason == "cut: this answer cannot be continued"


def test_a_stream_that_cannot_be_continued_is_retried_while_nothing_was_shown():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive(continuable=False)
    assert only(gateway.end(kind=Kind.RESET), Dispatch).resume_tokens == 0


def test_an_error_that_no_replica_can_mend_ends_a_stream_too():
    gateway = Gateway("r1", "r2", "r3")
    shown(gateway)
    gateway.end(kind=Kind.CUT, tokens=7)
    finish = only(gateway.end(attempt=1, kind=Kind.BAD_REQUEST), Finish)
    assert (finish.status, finish.code, finish.shown) == (400, "bad_request", True)


def test_a_continuation_never_crosses_a_revision():
    both = lane(failover=FailoverConfig(allowed_revisions=("1", "2")))
    gateway = Gateway(view("r1"), view("r2", revision="2"), lane=both)
    assert shown(gateway).replica_id == "r1"
    gateway.view(view("r2", revision="2"))  # r1 left
    finish = only(gateway.end(kind=Kind.RESET, tokens=3), Finish)
    assert (finish.status, finish.code, finish.shown) == (502, "upstream_failed", True)
    assert finish.reason == "cut: no replica of revision 1 is left to continue it"


def test_a_retry_without_content_is_bound_to_no_revision():
    both = lane(failover=FailoverConfig(allowed_revisions=("1", "2")))
    gateway = Gateway(view("r1"), view("r2", revision="2"), lane=both, retry=NO_BACKOFF)
    gateway.arrive()
    assert only(gateway.end(kind=Kind.RESET), Dispatch).replica_id == "r2"


def test_a_continuation_waits_for_a_replica_of_its_revision_that_is_full():
    gateway = Gateway(view("r1", slots=1), view("r2", slots=1))
    assert shown(gateway).replica_id == "r1"
    gateway.arrive("q2")
    gateway.view(view("r2", slots=1))
    assert gateway.end("q1", kind=Kind.RESET, tokens=3) == []
    finish, again = gateway.end("q2")
    assert (finish.request_id, again.request.id) == ("q2", "q1")
    assert (again.replica_id, again.resume_tokens) == ("r2", 3)


def test_a_waiting_continuation_whose_revision_has_no_room_is_told_so():
    both = lane(failover=FailoverConfig(allowed_revisions=("1", "2")))
    views = view("r1", slots=1), view("r2", slots=1, revision="2"), view("r3", slots=1)
    gateway = Gateway(*views, lane=both)
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    gateway.first("q1")
    gateway.view(*views[1:])
    assert gateway.end("q1", kind=Kind.RESET, tokens=3) == []  # r3 has its revision and is full
    done, finish = gateway.end("q2")
    assert done.request_id == "q2"
    assert (finish.request_id, finish.status, finish.shown) == ("q1", 503, True)
    assert finish.reason == "overloaded: no replica that may serve it has room"


def test_an_attempt_taken_off_a_draining_replica_goes_on_elsewhere():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    shown(gateway)
    gateway.arrive("q2")
    moved = only(gateway.end("q1", kind=Kind.DRAINED, tokens=9), Dispatch)
    assert (moved.replica_id, moved.resume_tokens) == ("r2", 9)
    again = only(gateway.end("q2", kind=Kind.DRAINED), Dispatch)
    assert again.resume_tokens == 0
    assert all(tally.failures == 0 for tally in gateway.tallies().values())


# --- waits that are too long ---------------------------------------------------------------------


def test_an_attempt_without_a_first_token_is_called_back_and_tried_elsewhere():
    gateway = Gateway("r1", "r2", "r3", lane=lane(deadlines=QUICK))
    gateway.arrive()
    assert gateway.wait(1.99) == []
    abort = only(gateway.wait(0.02), Abort)
    assert (abort.request_id, abort.attempt, abort.replica_id) == ("q1", 0, "r1")
    assert abort.kind is Kind.FIRST_TOKEN_TIMEOUT
    assert only(gateway.wait(0.06), Dispatch).replica_id == "r2"
    assert gateway.end("q1", 0) == []  # late news of the aborted attempt
    assert only(gateway.end("q1", 1), Finish).status == 200


def test_a_wait_in_vain_is_504():
    gateway = Gateway("r1", "r2", lane=lane(deadlines=QUICK), retry=RetryConfig(attempts=1))
    gateway.arrive()
    abort, finish = gateway.wait(2.01)
    assert isinstance(abort, Abort)
    assert (finish.status, finish.code) == (504, "upstream_timeout")


def practised() -> Gateway:
    """Four replicas whose first tokens come after 0.3 s, as the flow has learned."""
    views = [view(name, slots=64) for name in ("r1", "r2", "r3", "r4")]
    gateway = Gateway(*views, lane=lane(deadlines=DeadlineConfig()))
    for number in range(400):
        gateway.serve(f"w{number}", 0.3)
    gateway.wait(11.0)
    assert gateway.flow.lanes["m"].deadlines.first_token(0, None, gateway.now) < 1.5 * SECOND
    return gateway


@pytest.mark.parametrize(("took_s", "borne"), [(1.0, True), (0.3, False)])
def test_who_was_sent_before_the_whole_pool_became_slower_is_waited_for(took_s, borne):
    gateway = practised()
    gateway.arrive("early")
    for number in range(40):
        gateway.arrive(f"q{number}")
    gateway.wait(took_s)
    for number in range(40):
        gateway.first(f"q{number}")
    aborted = all_of(gateway.wait(2.0 - took_s), Abort)
    assert [abort.kind for abort in aborted] == ([] if borne else [Kind.FIRST_TOKEN_TIMEOUT])
    for number in range(40 if borne else 0):  # the others are well again, and it still hangs
        gateway.arrive(f"later{number}")
        aborted += all_of(gateway.wait(0.3), Abort)
        gateway.first(f"later{number}")
    assert (aborted[0].request_id, aborted[0].attempt) == ("early", 0)


def test_content_stops_the_clock_of_the_first_token():
    gateway = Gateway("r1", "r2", lane=lane(deadlines=QUICK))
    gateway.arrive()
    gateway.after(1.0).first()
    assert gateway.wait(60.0, every=SECOND) == []


def test_a_timeout_counts_against_its_replica_while_the_peers_are_not_slow():
    gateway = Gateway("r1", "r2", "r3", lane=lane(deadlines=QUICK))
    gateway.tick()
    gateway.arrive()
    assert "r1" not in gateway.after(1.99).tallies()  # it may be the request's own
    gateway.wait(0.1)
    gateway.first(attempt=1)
    assert gateway.tallies()["r1"].failures == 1


def test_a_timeout_among_slow_peers_is_retried_but_held_against_nobody():
    names = [f"r{n}" for n in range(1, 10)]  # two of nine are fewer than a quarter
    gateway = Gateway(*names, lane=lane(deadlines=QUICK), retry=NO_BACKOFF)
    gateway.arrive("q1")
    gateway.arrive("q2")
    actions = gateway.after(2.01).tick()
    assert [type(action) for action in actions] == [Abort, Dispatch, Abort, Dispatch, Summary]
    gateway.first("q1", attempt=1)
    gateway.first("q2", attempt=1)
    tallies = gateway.tallies().values()
    assert {tally.replica_id: tally.failures for tally in tallies if tally.failures} == {"r1": 1}


def test_a_breaker_that_a_timeout_opened_is_reported_at_once():
    breaker = BreakerConfig(consecutive=1, jitter=0.0)
    gateway = Gateway("r1", "r2", "r3", lane=lane(deadlines=QUICK, breaker=breaker))
    gateway.arrive()
    report, abort = gateway.wait(2.01)
    assert (report.what, report.replica_id) == ("open", "r1")
    assert report.reason == "1 failures in a row"
    assert isinstance(abort, Abort)


def test_a_fleet_that_is_slow_as_a_whole_gets_patience_and_nobody_is_ejected():
    gateway = Gateway("r1", "r2", "r3", lane=lane(deadlines=QUICK), retry=NO_BACKOFF)
    for n in range(12):
        gateway.arrive(f"q{n}")
    actions = gateway.wait(3.0)
    assert all_of(actions, Abort) == []  # not even the first, before the others were late too
    assert all_of(actions, Report) == []
    assert {c.breaker.state for c in gateway.flow.lanes["m"].pool.candidates.values()} == {"closed"}
    for request_id in list(gateway.flow.lives):
        attempt = gateway.flow.lives[request_id].live[0].number
        gateway.first(request_id, attempt)
        assert only(gateway.end(request_id, attempt), Finish).status == 200


def test_the_only_replica_of_a_pool_is_waited_for():
    gateway = Gateway("r1", lane=lane(deadlines=QUICK))
    gateway.arrive()
    assert gateway.wait(5.0) == []
    gateway.first()
    finish = only(gateway.end(), Finish)
    assert finish.status == 200
    assert "patience" in events(finish)


def test_a_replica_that_never_answers_is_given_up_even_without_peers():
    gateway = Gateway("r1", lane=lane(deadlines=QUICK), retry=RetryConfig(attempts=1))
    gateway.arrive()
    abort, finish = gateway.wait(120.0, every=100 * MILLISECOND)
    assert abort.kind is Kind.FIRST_TOKEN_TIMEOUT
    assert finish.status == 504


def test_a_stream_that_falls_silent_is_continued_elsewhere():
    gateway = Gateway("r1", "r2", "r3", lane=lane(deadlines=QUICK))
    shown(gateway)
    abort, again = gateway.after(2.0).silent(tokens=6)
    assert (abort.replica_id, abort.kind) == ("r1", Kind.BETWEEN_TOKENS_TIMEOUT)
    assert (again.replica_id, again.resume_tokens) == ("r2", 6)


def test_silence_of_the_only_replica_is_borne():
    gateway = Gateway("r1", lane=lane(deadlines=QUICK))
    shown(gateway)
    assert gateway.after(2.0).silent(tokens=6) == []
    assert "patience" in events(only(gateway.end(tokens=9), Finish))


def test_those_who_wait_get_the_slot_of_an_attempt_that_was_called_back():
    gateway = Gateway(view("r1", slots=1), view("r2", slots=1), lane=lane(deadlines=QUICK))
    shown(gateway)
    gateway.arrive("q2")
    gateway.arrive("q3")
    gateway.after(1.9).first("q2")
    abort, dispatch = gateway.after(0.05).silent("q1", tokens=6)
    assert abort.replica_id == "r1"
    assert (dispatch.request.id, dispatch.replica_id) == ("q3", "r1")


def test_learned_gaps_shorten_the_silence_that_is_borne():
    gateway = Gateway("r1", "r2")
    for n in range(30):
        gateway.arrive(f"q{n}")
        gateway.after(0.1).first(f"q{n}")
        gateway.tell(Ended(f"q{n}", 0, None, 101, 20 * MILLISECOND))
    gateway.after(2.0)
    assert only(gateway.arrive("late"), Dispatch).silence_max == SECOND


def test_a_long_queue_inside_the_engine_earns_more_time():
    deadlines = DeadlineConfig(first_token_s=2.0, first_token_samples_min=1)
    gateway = Gateway("r1", "r2", lane=lane(deadlines=deadlines))
    for name in ("r1", "r2"):
        gateway.tell(LoadReported("m", name, tokens=10, waiting=0, kv_used=0.1))
    for n in range(4):
        gateway.serve(f"q{n}", 0.1)
    gateway.after(2.0)
    gateway.tell(LoadReported("m", "r1", tokens=10, waiting=3, kv_used=0.1))
    gateway.arrive("q8")
    gateway.arrive("q9")
    aborts = all_of(gateway.wait(3.5), Abort)
    assert [abort.replica_id for abort in aborts] == ["r2"]  # and r1, with its queue, goes on


def test_the_whole_request_has_a_deadline():
    gateway = Gateway("r1")
    gateway.arrive(deadline=gateway.now + 5 * SECOND)
    gateway.after(0.1).first()
    abort, finish = gateway.wait(5.01)
    assert (abort.kind, abort.attempt) == (Kind.DEADLINE, 0)
    assert (finish.status, finish.code, finish.shown) == (504, "deadline_exceeded", True)
    assert gateway.candidate("r1").inflight == 0
    assert gateway.candidate("r1").failures == 0


def test_without_a_deadline_of_its_own_the_default_holds():
    deadlines = DeadlineConfig(first_token_s=2.0, between_tokens_s=2.0, request_s=10.0)
    gateway = Gateway("r1", lane=lane(deadlines=deadlines))
    shown(gateway)
    assert gateway.wait(9.8, every=100 * MILLISECOND) == []
    assert last(gateway.wait(0.2), Finish).code == "deadline_exceeded"


def test_a_request_that_waits_for_its_retry_has_a_deadline_too():
    gateway = Gateway("r1", "r2", retry=RetryConfig(backoff_base_s=5.0, backoff_max_s=5.0))
    gateway.arrive(deadline=gateway.now + 6 * SECOND)
    assert gateway.end(kind=Kind.RESET) == []
    actions = gateway.after(10.0).tick()  # a driver that was away for long
    assert last(all_of(actions, Finish), Finish).code == "deadline_exceeded"
    assert all_of(actions, Dispatch) == []


def test_a_queued_request_has_the_deadline_of_the_whole():
    deadlines = DeadlineConfig(first_token_s=2.0, between_tokens_s=2.0, request_s=10.0)
    gateway = full(lane=lane(deadlines=deadlines))
    gateway.arrive("q2")
    finishes = all_of(gateway.wait(10.1, every=100 * MILLISECOND), Finish)
    assert {(f.request_id, f.code) for f in finishes} == {
        ("q1", "deadline_exceeded"),
        ("q2", "deadline_exceeded"),
    }
    assert gateway.flow.lives == {}


# --- hedges --------------------------------------------------------------------------------------


def hedging(*views: ReplicaView | str, **config) -> Gateway:
    """A gateway that knows its usual first token: a tenth of a second."""
    config = {"hedge": HEDGING, **config}
    gateway = Gateway(*(views or ("r1", "r2", "r3")), **config)
    gateway.serve("warm")
    gateway.after(2.0)
    return gateway


def test_a_late_request_gets_a_second_attempt_and_the_first_content_wins():
    gateway = hedging()
    first = only(gateway.arrive(), Dispatch)
    hedge = only(gateway.wait(0.2), Dispatch)
    assert (hedge.attempt, hedge.request.id) == (1, "q1")
    assert hedge.replica_id != first.replica_id
    abort = only(gateway.first(attempt=1), Abort)
    assert (abort.attempt, abort.replica_id) == (0, first.replica_id)
    assert abort.kind is Kind.SUPERSEDED
    finish = only(gateway.end(attempt=1), Finish)
    assert (finish.status, finish.attempts, finish.replica_id) == (200, 2, hedge.replica_id)
    assert "hedged" in events(finish)
    assert all(tally.failures == 0 for tally in gateway.tallies().values())


def test_the_first_attempt_may_still_win_and_then_its_hedge_is_called_back():
    gateway = hedging()
    gateway.arrive()
    hedge = only(gateway.wait(0.2), Dispatch)
    abort = only(gateway.first(attempt=0), Abort)
    assert (abort.attempt, abort.replica_id) == (1, hedge.replica_id)
    assert only(gateway.end(attempt=0), Finish).status == 200


def test_a_whole_answer_of_one_calls_the_other_back():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    abort, finish = gateway.end(attempt=1, tokens=5)
    assert (abort.attempt, finish.status) == (0, 200)


def test_an_attempt_that_fails_leaves_the_field_to_its_rival():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    assert gateway.end(attempt=0, kind=Kind.RESET) == []
    assert gateway.wait(1.0) == []
    gateway.first(attempt=1)
    assert only(gateway.end(attempt=1), Finish).status == 200


def test_when_both_fail_the_hedge_was_one_of_the_attempts():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    gateway.end(attempt=0, kind=Kind.SERVER_ERROR)
    finish = only(gateway.end(attempt=1, kind=Kind.SERVER_ERROR), Finish)
    assert (finish.status, finish.attempts) == (502, 2)
    assert finish.reason == "server_error: all attempts used"


def test_a_request_answered_in_time_is_not_hedged():
    gateway = hedging()
    gateway.arrive()
    gateway.after(0.05).first()
    assert gateway.wait(5.0) == []


def test_nothing_is_hedged_before_the_usual_time_is_known():
    gateway = Gateway("r1", "r2", hedge=HEDGING)
    gateway.arrive()
    assert gateway.wait(5.0) == []


def test_what_must_not_run_twice_is_not_hedged():
    gateway = hedging()
    gateway.arrive(hedgeable=False)
    assert gateway.wait(5.0) == []


def test_hedging_is_off_unless_asked_for():
    gateway = hedging(hedge=HedgeConfig(samples_min=1))
    gateway.arrive()
    assert gateway.wait(5.0) == []


def test_nothing_is_hedged_while_others_wait():
    gateway = hedging(view("r1", slots=2), view("r2", slots=2))
    for n in range(5):
        gateway.arrive(f"q{n}")
    assert gateway.wait(1.0) == []
    gateway.first("q0")
    assert ("no hedge", "requests are queued") in [
        (what, why) for _, what, why in gateway.end("q0")[0].story
    ]


def test_nothing_is_hedged_at_high_utilisation():
    gateway = hedging(view("r1", slots=2), view("r2", slots=2))
    for n in range(3):
        gateway.arrive(f"q{n}")
    assert gateway.wait(1.0) == []
    told = only(gateway.end("q0"), Finish).story
    assert ("no hedge", "utilisation leaves no spare capacity") in [t[1:] for t in told]


def test_a_hedge_that_finds_no_other_replica_is_not_made():
    gateway = hedging("r1")
    gateway.arrive()
    assert gateway.wait(1.0) == []


def test_a_retried_request_is_not_hedged_on_top():
    gateway = hedging(retry=NO_BACKOFF)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    assert gateway.wait(5.0) == []


def test_a_continuation_is_not_hedged():
    gateway = hedging()
    shown(gateway)
    only(gateway.end(kind=Kind.CUT, tokens=0), Dispatch)
    assert gateway.wait(5.0) == []


def test_the_room_of_a_loser_goes_to_those_who_wait():
    gateway = hedging(view("r1", slots=2), view("r2", slots=2))
    gateway.arrive("q1")
    only(gateway.wait(0.2), Dispatch)
    gateway.arrive("q2", hedgeable=False)
    gateway.arrive("q3", hedgeable=False)
    assert gateway.arrive("q4", hedgeable=False) == []
    abort, dispatch = gateway.first("q1", 1)
    assert abort.kind is Kind.SUPERSEDED
    assert (dispatch.request.id, dispatch.replica_id) == ("q4", abort.replica_id)


def test_a_rival_keeps_its_deadlines_when_the_other_attempt_times_out():
    five = [f"r{n}" for n in range(1, 6)]
    gateway = hedging(*five, lane=lane(deadlines=QUICK))
    gateway.arrive(deadline=gateway.now + 10 * SECOND)
    hedge = only(gateway.wait(0.2), Dispatch)
    abort = only(gateway.wait(1.9), Abort)
    assert (abort.attempt, abort.kind) == (0, Kind.FIRST_TOKEN_TIMEOUT)
    actions = gateway.wait(9.0)
    finish = last(actions, Finish)
    assert (finish.status, finish.attempts) == (504, 2)
    assert {a.replica_id for a in all_of(actions, Abort)} == {hedge.replica_id}


def test_rivals_that_time_out_together_end_together():
    nine = [f"r{n}" for n in range(1, 10)]
    gateway = hedging(*nine, lane=lane(deadlines=QUICK))
    gateway.arrive()
    gateway.after(1.99)
    only(gateway.tick()[:1], Dispatch)  # a tick that came late: the hedge starts now
    gateway.flow.lives["q1"].live[1].first_due = gateway.now + TICK
    actions = gateway.wait(0.1)
    assert [type(action) for action in actions] == [Abort, Abort, Finish]


# --- clients that leave --------------------------------------------------------------------------


def test_a_client_that_leaves_takes_its_attempts_along():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    aborts, finish = (actions := gateway.gone())[:-1], actions[-1]
    assert {abort.attempt for abort in aborts} == {0, 1}
    assert {abort.kind for abort in aborts} == {Kind.CLIENT_GONE}
    assert (finish.status, finish.code) == (499, "client_gone")
    assert gateway.flow.lanes["m"].pool.inflight == 0
    assert all(tally.failures == 0 for tally in gateway.tallies().values())


def test_a_client_that_leaves_the_queue_is_never_sent():
    gateway = full()
    gateway.arrive("q2")
    assert only(gateway.gone("q2"), Finish).status == 499
    only(gateway.end("q1"), Finish)


def test_a_client_that_leaves_makes_room_for_those_who_wait():
    gateway = full()
    gateway.arrive("q2")
    abort, finish, dispatch = gateway.gone("q1")
    assert (abort.request_id, finish.request_id, dispatch.request.id) == ("q1", "q1", "q2")


def test_a_client_that_leaves_during_a_backoff_is_not_tried_again():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    gateway.end(kind=Kind.RESET)
    assert only(gateway.gone(), Finish).attempts == 1
    assert gateway.wait(1.0) == []


# --- quota and the ladder of models --------------------------------------------------------------


def test_a_tenant_over_its_quota_is_429_and_nobody_else_is():
    gateway = Gateway("r1", quotas={"t": QuotaConfig(requests_per_minute=1.0)})
    only(gateway.arrive("q1", tenant="t"), Dispatch)
    finish = only(gateway.arrive("q2", tenant="t"), Finish)
    assert (finish.status, finish.code, finish.attempts) == (429, "rate_limit_exceeded", 0)
    assert finish.retry_after_s == 60.0
    only(gateway.arrive("q3", tenant="u"), Dispatch)


def test_tokens_that_were_reserved_and_not_used_come_back():
    gateway = Gateway("r1", quotas={"t": QuotaConfig(tokens_per_minute=1000.0)})
    ask = {"tenant": "t", "prompt_tokens": 100, "max_tokens": 900}
    gateway.arrive("q1", **ask)
    assert only(gateway.arrive("q2", **ask), Finish).status == 429
    gateway.end("q1", tokens=50)
    small = {"tenant": "t", "prompt_tokens": 100, "max_tokens": 700}
    only(gateway.arrive("q3", **small), Dispatch)


def test_a_request_that_was_shed_gives_its_quota_back():
    gateway = full(
        lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)),
        quotas={"t": QuotaConfig(requests_per_minute=1.0)},
    )
    gateway.arrive("q2")
    for n in range(3, 6):
        assert only(gateway.arrive(f"q{n}", tenant="t"), Finish).code == "queue_full"


LADDER = DegradeConfig(ladder=("big", "small"), step_s=1.0, hold_s=2.0, share_step=1.0)


def test_a_saturated_model_is_replaced_by_a_smaller_one_and_the_answer_says_so():
    gateway = Gateway(
        view("b1", model="big", slots=1), view("s1", model="small"), degrade=(LADDER,)
    )
    only(gateway.arrive("q1", model="big"), Dispatch)
    report = only(gateway.wait(4.0, every=100 * MILLISECOND), Report)
    assert (report.model, report.what) == ("big", ReportCode.LADDER_MOVED)
    dispatch = only(gateway.arrive("q2", model="big"), Dispatch)
    assert (dispatch.model, dispatch.replica_id) == ("small", "s1")
    finish = only(gateway.end("q2"), Finish)
    assert finish.model == "small"
    assert finish.story[0][1:] == ("degraded", "degraded to small")
    assert only(gateway.end("q1"), Finish).model == "big"


# --- the view ------------------------------------------------------------------------------------


def test_a_replica_with_a_share_of_nothing_gets_nothing():
    gateway = Gateway(view("r1"), view("r2", share=0.0))
    assert {only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(4)} == {"r1"}


def test_an_older_view_never_replaces_a_newer_one():
    gateway = Gateway("r1", "r2")
    gateway.view("r2", version=7)
    gateway.view("r1", version=6)
    assert only(gateway.arrive(), Dispatch).replica_id == "r2"


def test_an_attempt_on_a_replica_that_left_the_view_still_ends_well():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    gateway.view("r2")
    gateway.first()
    assert only(gateway.end(), Finish).status == 200
    assert gateway.flow.lanes["m"].pool.inflight == 0


def test_an_attempt_that_fails_after_everybody_left_waits_for_somebody():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive()
    gateway.view()
    assert gateway.end(kind=Kind.RESET) == []
    assert only(gateway.view("r3"), Dispatch).replica_id == "r3"


def test_a_timeout_in_a_pool_that_everybody_left_is_dealt_with():
    gateway = Gateway("r1", lane=lane(deadlines=QUICK), retry=NO_BACKOFF)
    gateway.arrive()
    gateway.view()
    assert only(gateway.wait(2.01), Abort).kind is Kind.FIRST_TOKEN_TIMEOUT
    assert only(gateway.view("r2"), Dispatch).replica_id == "r2"


def quarantined(*, firm: bool = False) -> Gateway:
    return Gateway(view("r1"), view("r2", share=0.0, firm=firm))


def test_a_quarantine_on_suspicion_decays_to_one_trial_when_control_is_silent():
    gateway = quarantined()
    assert gateway.wait(10.0, every=100 * MILLISECOND) == []
    report = only(gateway.wait(1.5, every=100 * MILLISECOND), Report)
    assert (report.replica_id, report.reason) == ("r2", "control is silent")
    gateway.after(1.0)
    assert only(gateway.arrive("q1"), Dispatch).reason == TRIAL_REASON
    assert only(gateway.arrive("q2"), Dispatch).replica_id == "r1"


def test_a_firm_verdict_stands_though_control_is_silent():
    gateway = quarantined(firm=True)
    assert gateway.wait(20.0, every=100 * MILLISECOND) == []
    assert {only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(4)} == {"r1"}


def test_a_repeated_view_shows_that_control_is_there():
    gateway = quarantined()
    for _ in range(20):
        gateway.view(view("r1"), view("r2", share=0.0), version=gateway.version)
        assert gateway.wait(2.0, every=100 * MILLISECOND) == []


def test_a_view_repeated_after_a_silence_restores_the_quarantine():
    gateway = quarantined()
    only(gateway.wait(12.0, every=100 * MILLISECOND), Report)
    gateway.view(view("r1"), view("r2", share=0.0), version=gateway.version)
    gateway.after(2.0)
    assert {only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(4)} == {"r1"}


def test_a_gateway_that_never_heard_of_control_doubts_no_view():
    flow = Flow(FlowConfig(), Random)
    assert flow.handle(Tick(), 1000 * SECOND) == []


# --- load and accounts ---------------------------------------------------------------------------


def test_an_engines_own_account_is_kept_and_unknown_stays_unknown():
    gateway = Gateway("r1")
    assert gateway.tell(LoadReported("m", "r1", tokens=70, waiting=2)) == []
    candidate = gateway.candidate("r1")
    assert (candidate.reported_tokens, candidate.waiting, candidate.kv_used) == (70, 2, None)


def test_load_of_replicas_and_models_that_are_not_here_is_ignored():
    gateway = Gateway("r1")
    assert gateway.tell(LoadReported("m", "r9", tokens=70)) == []
    assert gateway.tell(LoadReported("other", "r1", tokens=70)) == []


def test_control_hears_once_a_second_what_was_seen():
    gateway = Gateway("r1", "r2")
    gateway.tick()
    gateway.serve("q1")
    gateway.arrive("q2")
    assert all_of(gateway.after(0.5).tick(), Summary) == []
    summary = only(gateway.after(0.5).tick(), Summary)
    assert summary.tallies == (
        Tally("m", "r1", 1, 0, 0, 0, 8, lengths=(8,), firsts=(0.1,)),
        Tally("m", "r2", 0, 0, 0, 1, 0),
    )
    assert only(gateway.after(1.0).tick(), Summary).tallies == (Tally("m", "r2", 0, 0, 0, 1, 0),)


def test_control_hears_how_fast_tokens_follow_each_other_where_that_is_known():
    gateway = Gateway("r1")
    gateway.tick()
    gateway.arrive("q1")
    gateway.after(0.5).first("q1")
    gateway.after(2.0).end("q1", tokens=5)
    gateway.arrive("q2")
    gateway.first("q2")
    gateway.end("q2", tokens=5)  # all at once: that says nothing
    gateway.arrive("q3")
    gateway.first("q3")
    gateway.after(1.0).end("q3", tokens=1)  # no second token
    gateway.arrive("q4")
    gateway.first("q4")
    gateway.after(1.0).end("q4", kind=Kind.RESET, tokens=9)  # and one that was cut
    told = gateway.tallies()["r1"]
    assert (told.paces, told.firsts[0]) == ((0.5,), 0.5)


def test_paces_between_two_summaries_are_bounded():
    gateway = Gateway("r1")
    gateway.tick()
    for number in range(SAMPLES_MAX + 3):
        name = f"q{number}"
        gateway.arrive(name)
        gateway.first(name)
        gateway.after(0.01).end(name, tokens=2)
    assert len(gateway.tallies()["r1"].paces) == SAMPLES_MAX
    assert gateway.tallies() == {}


def test_control_hears_how_answers_came_out():
    gateway = Gateway("r1")
    gateway.tick()
    for number, reason in enumerate(("stop", "length", "stop", "")):
        gateway.arrive(f"q{number}")
        gateway.after(0.01).first(f"q{number}")
        gateway.tell(Ended(f"q{number}", 0, None, 10 + number, finish=reason))
    gateway.arrive("w", whole=True)
    gateway.tell(Answered("w", 0, 40, "stop", (("logprob", -0.25),)))
    gateway.arrive("e", whole=True)
    gateway.tell(Answered("e", 0, 0, "", (("norm", 1.5),)))
    tally = gateway.tallies()["r1"]
    assert tally.finishes == {"stop": 3, "length": 1}
    assert tally.lengths == (10, 11, 12, 13, 40)
    assert (tally.logprobs, tally.norms) == ((-0.25,), (1.5,))
    assert (tally.kinds, tally.fast) == ({}, 0)


def test_a_part_of_an_answer_has_no_length():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.tick()
    gateway.arrive()
    gateway.after(0.01).first()
    gateway.end(kind=Kind.CUT, tokens=3)
    gateway.tell(Ended("q1", 1, None, 5, finish="stop"))
    tallies = gateway.tallies()
    assert tallies["r2"].successes == 1
    assert all(tally.lengths == () and tally.finishes == {} for tally in tallies.values())


def test_failures_are_told_by_kind_and_fast_ones_apart():
    gateway = Gateway("r1", retry=RetryConfig(attempts=1))
    gateway.tick()
    for name, kind, after_s in (
        ("q1", Kind.SERVER_ERROR, 0.01),
        ("q2", Kind.SERVER_ERROR, 0.2),
        ("q3", Kind.MALFORMED, 0.05),
        ("q4", Kind.OVERLOADED, 0.0),
        ("q5", Kind.CLIENT_GONE, 0.0),
    ):
        gateway.arrive(name)
        gateway.after(after_s).end(name, kind=kind)
    gateway.arrive("q6")
    gateway.first("q6")  # content came, so it answered as a sound one does
    gateway.end("q6", kind=Kind.CUT, tokens=1)
    tally = gateway.tallies()["r1"]
    assert tally.kinds == {Kind.SERVER_ERROR: 2, Kind.MALFORMED: 1, Kind.CUT: 1}
    assert (tally.failures, tally.fast, tally.backpressure) == (4, 2, 1)


# --- whose fault a failure was -------------------------------------------------------------------


def test_a_request_that_fails_everywhere_opens_no_breaker_and_is_told_as_its_own():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    for number in range(12):
        gateway.arrive(f"q{number}")
        gateway.end(f"q{number}", 0, Kind.SERVER_ERROR)
        finish = gateway.end(f"q{number}", 1, Kind.SERVER_ERROR)
        assert [type(action) for action in finish] == [Finish]
    tallies = gateway.tallies()
    assert {name: (t.failures, t.withdrawn) for name, t in tallies.items()} == {
        "r1": (0, 12),
        "r2": (0, 12),
    }
    assert only(gateway.arrive("last"), Dispatch)
    assert {report.replica_id for report in gateway.doubts} == {"r1", "r2"}


@pytest.mark.parametrize("whole", [True, False])
def test_failures_of_a_request_that_another_replica_answers_open_the_breaker(whole):
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.candidate("r2").weight = 0.0  # every request begins at r1
    opened = []
    for number in range(5):
        name = f"q{number}"
        gateway.flow.lanes["m"].pool.changed(gateway.now)
        (dispatch,) = gateway.arrive(name, whole=whole, content=b"the same")
        assert dispatch.replica_id == "r1"
        gateway.candidate("r2").weight = 1.0
        gateway.flow.lanes["m"].pool.changed(gateway.now)
        opened += gateway.end(name, 0, Kind.SERVER_ERROR)
        answer = Answered(name, 1, 3) if whole else FirstContent(name, 1)
        opened += gateway.tell(answer)
        if not whole:
            gateway.end(name, 1, tokens=3)
        gateway.candidate("r2").weight = 0.0
    (report,) = [action for action in opened if isinstance(action, Report)]
    assert (report.what, report.replica_id, report.reason) == ("open", "r1", "5 failures in a row")


def test_a_pool_that_overrules_a_breaker_says_so_every_second():
    gateway = Gateway("r1", retry=RetryConfig(attempts=1))
    for number in range(5):
        gateway.arrive(f"q{number}")
        gateway.end(f"q{number}", kind=Kind.SERVER_ERROR)
    assert only(gateway.arrive("next"), Dispatch).replica_id == "r1"
    for _ in range(2):
        reports = [a for a in gateway.after(1.0).tick() if isinstance(a, Report)]
        assert [(r.what, r.replica_id) for r in reports] == [(ReportCode.OVERRULED, "r1")]


# --- requests that end their replicas ------------------------------------------------------------

KEEN = RetryConfig(attempts=9, backoff="none", budget=False)


def test_a_request_on_which_two_replicas_died_gets_no_third():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    finish = only(gateway.after(0.05).end(attempt=1, kind=Kind.RESET), Finish)
    assert (finish.status, finish.code, finish.attempts) == (502, "replicas_lost", 2)
    assert finish.reason == "its connection died on r1 and r2: it is not tried on a third"
    assert events(finish)[-1] == "replicas_lost"


def test_a_stream_that_two_replicas_died_under_is_not_continued_on_a_third():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive()
    gateway.first()
    only(gateway.end(kind=Kind.RESET, tokens=3), Dispatch)
    gateway.after(0.05).first(attempt=1)
    finish = only(gateway.end(attempt=1, kind=Kind.RESET, tokens=2), Finish)
    assert (finish.code, finish.shown) == ("replicas_lost", True)


@pytest.mark.parametrize(
    "kind",
    [Kind.CUT, Kind.SERVER_ERROR, Kind.REFUSED, Kind.MALFORMED, Kind.EMPTY, Kind.DRAINED],
)
def test_other_ends_are_no_deaths(kind):
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    assert all_of(gateway.after(0.05).end(attempt=1, kind=kind), Dispatch)


def test_silence_is_no_death():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN, lane=lane(deadlines=QUICK))
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    gateway.first(attempt=1)
    assert all_of(gateway.after(3.0).silent(attempt=1, tokens=1), Dispatch)


def test_a_pooled_connection_counts_only_if_it_was_not_closed_before():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive("at once")
    gateway.end("at once", kind=Kind.SERVER_ERROR)
    only(gateway.after(0.01).end("at once", attempt=1, kind=Kind.STALE_SOCKET), Dispatch)
    gateway.after(0.05)
    assert all_of(gateway.end("at once", attempt=2, kind=Kind.RESET), Dispatch)
    gateway.arrive("at once again")
    gateway.end("at once again", kind=Kind.RESET)
    only(gateway.end("at once again", attempt=1, kind=Kind.STALE_SOCKET), Dispatch)
    gateway.arrive("later")
    gateway.end("later", kind=Kind.RESET)
    ended = gateway.after(0.05).end("later", attempt=1, kind=Kind.STALE_SOCKET)
    assert last(ended, Finish).code == "replicas_lost"


def test_two_deaths_on_one_replica_are_one():
    gateway = Gateway("r1", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    only(gateway.after(0.05).end(attempt=1, kind=Kind.RESET), Dispatch)


def test_replicas_that_die_at_the_same_time_are_not_the_requests_doing():
    gateway = Gateway("r1", "r2", "r3", "r4", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    only(gateway.after(0.001).end(attempt=1, kind=Kind.RESET), Dispatch)
    only(gateway.after(0.001).end(attempt=2, kind=Kind.RESET), Dispatch)
    finish = last(gateway.after(1.0).end(attempt=3, kind=Kind.RESET), Finish)
    assert finish.code == "replicas_lost"


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.STALE_SOCKET])
@pytest.mark.parametrize("lived_s", [0.001, 0.05])
def test_a_request_that_may_cost_one_replica_is_not_sent_on_however_soon_it_broke(kind, lived_s):
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive(deaths_max=1)
    finish = only(gateway.after(lived_s).end(kind=kind), Finish)
    assert (finish.status, finish.code, finish.attempts) == (502, "replica_lost", 1)
    assert finish.reason == "its connection died on r1: it is not tried on another"


def test_a_request_that_may_cost_one_replica_is_tried_again_where_none_was_lost():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive(deaths_max=1)
    assert all_of(gateway.end(kind=Kind.REFUSED), Dispatch)
    assert all_of(gateway.after(0.05).end(attempt=1, kind=Kind.SERVER_ERROR), Dispatch)


HOSTED = (view("r1", host="h1"), view("r2", host="h1"), view("r3", host="h2"))


def test_after_a_broken_connection_the_replicas_of_other_hosts_come_first():
    gateway = Gateway(*HOSTED, retry=KEEN)
    assert only(gateway.arrive(), Dispatch).replica_id == "r1"
    assert only(gateway.end(kind=Kind.RESET), Dispatch).replica_id == "r3", "not r2, beside r1"
    gateway.view(*HOSTED[:2])
    assert only(gateway.arrive("q2"), Dispatch).replica_id in {"r1", "r2"}
    again = last(gateway.end("q2", kind=Kind.REFUSED), Dispatch)
    assert again.replica_id in {"r1", "r2"}, "there is no other host: one beside it is better"


def test_an_error_that_the_replica_answered_says_nothing_of_its_host():
    gateway = Gateway(*HOSTED, retry=KEEN)
    gateway.arrive()
    assert only(gateway.end(kind=Kind.SERVER_ERROR), Dispatch).replica_id == "r2"


def test_two_replicas_of_one_host_that_die_within_moments_are_one_death():
    gateway = Gateway(*HOSTED[:2], retry=KEEN)
    gateway.arrive()
    gateway.first()
    only(gateway.end(kind=Kind.RESET, tokens=3), Dispatch)
    gateway.after(0.5).first(attempt=1)
    gateway.view(*HOSTED)
    continued = last(gateway.end(attempt=1, kind=Kind.RESET, tokens=2), Dispatch)
    assert continued.replica_id == "r3", "it is continued where the host lives"


def test_deaths_on_one_host_that_lie_apart_and_deaths_on_two_hosts_are_two():
    apart = Gateway(*HOSTED[:2], retry=KEEN)
    apart.arrive()
    only(apart.end(kind=Kind.RESET), Dispatch)
    assert only(apart.after(2.1).end(attempt=1, kind=Kind.RESET), Finish).code == "replicas_lost"
    hosts = Gateway(*HOSTED, retry=KEEN)
    hosts.arrive()
    assert only(hosts.end(kind=Kind.RESET), Dispatch).replica_id == "r3"
    assert only(hosts.after(0.05).end(attempt=1, kind=Kind.RESET), Finish).code == "replicas_lost"


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(["h1", "h2", ""]), min_size=1, max_size=5), st.data())
def test_a_request_is_given_up_only_after_deaths_with_two_causes(hosts, data):
    views = [view(f"r{number}", host=host) for number, host in enumerate(hosts)]
    gateway, deaths = Gateway(*views, retry=KEEN), []
    actions = gateway.arrive()
    while (sent := [one for one in actions if isinstance(one, Dispatch)]) and len(deaths) < 9:
        name = sent[-1].replica_id
        gateway.after(data.draw(st.sampled_from([0.001, 0.03, 0.5, 3.0])))
        deaths.append((name, hosts[int(name[1:])], gateway.now))
        actions = gateway.end(attempt=sent[-1].attempt, kind=Kind.RESET)
    [finish] = [one for one in actions if isinstance(one, Finish)] or [None]
    if finish is not None and finish.code == "replicas_lost":
        causes = [
            (one, other)
            for index, one in enumerate(deaths)
            for other in deaths[index + 1 :]
            if one[0] != other[0]
            and (one[1] != other[1] or not one[1] or other[2] - one[2] > nanos(2.0))
        ]
        assert causes, deaths


def test_while_its_hedge_runs_a_request_is_not_given_up():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    assert gateway.end(attempt=0, kind=Kind.RESET) == []
    gateway.first(attempt=1)
    assert only(gateway.end(attempt=1, tokens=4), Finish).status == 200


def test_nobody_is_told_of_a_second_without_traffic():
    assert Gateway("r1").after(5.0).tick() == []


def test_failures_are_told_by_replica():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.tick()
    gateway.arrive()
    gateway.end(kind=Kind.SERVER_ERROR)
    gateway.end(attempt=1, tokens=4)
    tallies = gateway.tallies()
    assert (tallies["r1"].failures, tallies["r1"].successes) == (1, 0)
    assert (tallies["r2"].failures, tallies["r2"].successes) == (0, 1)


# --- answers in one piece ------------------------------------------------------------------------


def test_an_answer_in_one_piece_does_not_teach_how_long_a_first_token_takes():
    gateway = Gateway(lane=lane(deadlines=DeadlineConfig(answer_samples_min=100)))
    for number in range(300):
        gateway.serve(f"w{number}", took_s=0.2, whole=True, max_tokens=100)
    deadlines = gateway.flow.lanes["m"].deadlines
    assert deadlines.first_token_typical(0) is None
    assert deadlines.between_tokens(gateway.now) == nanos(PATIENT.between_tokens_s)


def test_a_whole_answer_may_take_as_long_as_the_request_until_their_time_is_learned():
    gateway = Gateway()
    only(gateway.arrive(whole=True, max_tokens=4_000), Dispatch)
    assert gateway.wait(300.0, every=SECOND) == []


def test_a_learned_wait_for_whole_answers_follows_how_long_they_may_grow():
    gateway = Gateway(lane=lane(deadlines=DeadlineConfig(answer_samples_min=100)))
    for number in range(300):
        gateway.serve(f"s{number}", took_s=0.1, whole=True, max_tokens=10)
        gateway.serve(f"l{number}", took_s=20.0, whole=True, max_tokens=4_000)
    answers = gateway.flow.lanes["m"].answers
    assert answers.first_token(10, None, gateway.now) == nanos(PATIENT.answer_floor_s)
    assert answers.first_token(4_000, None, gateway.now) > nanos(100.0)


def test_an_answer_in_one_piece_is_content_and_end_at_once():
    gateway = Gateway()
    only(gateway.arrive(whole=True), Dispatch)
    finish = only(gateway.after(0.2).tell(Answered("q1", 0, 7)), Finish)
    assert (finish.status, finish.replica_id) == (200, "r1")
    assert gateway.flow.lanes["m"].pool.inflight == 0
    assert gateway.candidate("r1").successes == 1
    assert gateway.candidate("r1").tokens == 7
    assert gateway.tell(Answered("q1", 0, 7)) == []
    assert gateway.flow.lives == {}


def test_a_whole_answer_of_a_hedge_calls_the_first_attempt_back():
    gateway = Gateway(hedge=HEDGING)
    for number in range(30):
        only(gateway.arrive(f"w{number}", whole=True), Dispatch)
        gateway.after(0.1).tell(Answered(f"w{number}", 0, 1))
    only(gateway.arrive("late", whole=True), Dispatch)
    hedged = [a for a in gateway.wait(12.0) if isinstance(a, Dispatch)]
    assert len(hedged) == 1
    abort, finish = gateway.tell(Answered("late", 1, 1))
    assert (abort.attempt, abort.kind) == (0, Kind.SUPERSEDED)
    assert finish.status == 200


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_holds_for_quota_retries_and_trials():
    quotas = {"a": QuotaConfig(requests_per_minute=60)}
    gateway = Gateway(quotas=quotas)
    gateway.tell(Leased({"a": 0.5, "nobody": 0.5}, 0.0, frozenset()))
    assert gateway.flow.quota("a").headers(gateway.now)["limit_requests"] == 30
    assert gateway.flow.quota("b") is None
    assert gateway.flow.lanes["m"].pool.leased == frozenset()
    gateway.tell(Leased({}, 1.0, None))
    assert gateway.flow.quota("a").headers(gateway.now)["limit_requests"] == 30
    assert gateway.flow.lanes["m"].pool.leased is None


def test_a_request_that_is_not_degradable_stays_with_its_model():
    ladder = DegradeConfig(ladder=("m", "small"), share_step=1.0, step_s=0.5)
    views = view("r1", slots=1), view("s1", model="small")
    gateway = Gateway(*views, degrade=(ladder,))
    for number in range(6):
        gateway.arrive(f"f{number}")
    gateway.wait(5.0)
    assert only(gateway.arrive("asked", degradable=True), Dispatch).model == "small"
    assert gateway.arrive("named", degradable=False) == []


# --- slow first tokens ---------------------------------------------------------------------------


def test_a_first_token_that_is_overdue_warns_routing_before_it_comes():
    gateway = Gateway()
    for number in range(300):
        gateway.serve(f"w{number}", took_s=0.1)
    norm_s = gateway.flow.lanes["m"].deadlines.first_token_norm(0) / SECOND
    assert 0.2 < norm_s < 0.5
    dispatch = only(gateway.arrive("late"), Dispatch)
    slow = gateway.candidate(dispatch.replica_id)
    before = slow.latency.value
    assert gateway.wait(norm_s - 0.02) == []
    assert slow.latency.value == before
    assert gateway.wait(0.05) == []
    assert slow.latency.value >= norm_s / 0.11
    assert gateway.wait(norm_s) == []
    assert slow.latency.value >= 2 * norm_s / 0.11
    others = [c for c in ("r1", "r2", "r3") if c != dispatch.replica_id]
    assert all((gateway.candidate(name).latency.value or 0.0) < 2.0 for name in others)


def test_while_nothing_is_typical_nobody_is_taken_for_slow():
    gateway = Gateway()
    dispatch = only(gateway.arrive("first"), Dispatch)
    assert gateway.wait(30.0, every=SECOND) == []
    assert gateway.candidate(dispatch.replica_id).latency.value is None


# --- a replica that will not answer ---------------------------------------------------------------


def caught(gateway: Gateway, name: str = "q1", **kwargs) -> str:
    """The replica that a request was sent to and is caught at."""
    kwargs = {"whole": True, "max_tokens": 64, **kwargs}
    return only(gateway.arrive(name, **kwargs), Dispatch).replica_id


def out(name: str, halt: Halt | None, **more) -> ReplicaView:
    return replace(view(name, 0.0), halt=halt, **more)


@pytest.mark.parametrize("whole", [True, False], ids=["in one piece", "stream"])
@pytest.mark.parametrize("told", ["view", "event", "dead"])
def test_what_is_caught_at_a_replica_that_stopped_is_sent_elsewhere_at_once(whole, told):
    """On the first request that a gateway ever had."""
    gateway = Gateway("r1", "r2")
    lost, other = caught(gateway, whole=whole), "r2"
    gateway.after(0.3)
    if told == "event":
        actions = gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED))
    elif told == "view":
        actions = gateway.view(out(lost, Halt.STOPPED), other)
    else:
        actions = gateway.view(replace(view(lost, 0.0), state=State.DEAD), other)
    abort, dispatch = actions
    assert (abort, dispatch.replica_id) == (Abort("q1", 0, lost, Kind.DRAINED), other)
    finish = only(gateway.after(0.1).tell(Answered("q1", 1, 8)), Finish)
    assert (finish.status, finish.attempts, finish.replica_id) == (200, 2, other)
    assert gateway.candidate(lost).inflight == 0


def test_from_a_stalled_replica_a_request_moves_once_its_prompt_explains_nothing_more():
    gateway = Gateway("r1", "r2")
    lost = caught(gateway, prompt_tokens=200)  # 5 s and 2 s
    gateway.after(3.0)
    assert gateway.view(out(lost, Halt.STALLED), "r2") == []
    assert gateway.wait(3.9) == []
    abort, dispatch = gateway.wait(0.2)
    assert (abort.kind, dispatch.replica_id) == (Kind.FIRST_TOKEN_TIMEOUT, "r2")


@pytest.mark.parametrize("whole", [True, False], ids=["in one piece", "stream"])
def test_a_very_long_prompt_stays_at_a_replica_that_looks_stalled(whole):
    gateway = Gateway("r1", "r2", lane=lane(deadlines=DeadlineConfig(first_token_s=600.0)))
    lost = caught(gateway, whole=whole, prompt_tokens=100_000)
    gateway.after(5.0).view(out(lost, Halt.STALLED), "r2")
    assert all_of(gateway.wait(500.0, every=SECOND), Abort | Dispatch | Finish) == []


def test_an_answer_in_one_piece_has_twice_its_usual_time_at_a_stalled_replica():
    gateway = Gateway("r1", "r2")
    for number in range(40):
        gateway.arrive(f"w{number}", whole=True, max_tokens=64)
        gateway.after(8.0).tell(Answered(f"w{number}", 0, 60))
        gateway.wait(1.0, every=SECOND)
    lost = caught(gateway)
    gateway.after(10.0).view(out(lost, Halt.STALLED), "r2" if lost == "r1" else "r1")
    assert gateway.wait(5.0) == []
    assert len(gateway.wait(2.0)) == 2


def test_what_stores_something_or_has_been_shown_is_not_moved():
    gateway = Gateway("r1", "r2")
    lost = caught(gateway, stores=True)
    assert gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED)) == []
    gateway.tell(Answered("q1", 0, 8))
    lost = caught(gateway, "q2", whole=False)
    gateway.first("q2")
    assert gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED)) == []
    assert gateway.wait(1.0) == []


def test_a_replica_that_is_well_again_keeps_what_it_has():
    gateway = Gateway("r1", "r2")
    lost = caught(gateway, prompt_tokens=200)
    gateway.after(1.0).view(out(lost, Halt.STALLED), "r2")
    gateway.after(1.0).view(lost, "r2")
    assert gateway.wait(9.0) == []
    assert only(gateway.tell(Answered("q1", 0, 8)), Finish).replica_id == lost


def test_a_herd_moves_no_faster_than_the_retry_budget_and_nobody_fails():
    """Five hundred at once would fell the next replica."""
    gateway = Gateway(view("r1", slots=500))
    for number in range(500):
        assert caught(gateway, f"q{number}") == "r1"
    gateway.after(11.0)  # what they earned is forgotten: 10/s are left
    lost = replace(out("r1", Halt.STOPPED), replica=gateway.candidate("r1").replica)
    actions = gateway.view(lost, view("r2", slots=500))
    actions += gateway.wait(0.2)
    moved = [a.request.id for a in all_of(actions, Dispatch)]
    assert moved == [f"q{number}" for number in range(100)]  # a window's floor, the oldest first
    assert all_of(actions, Finish) == []
    later = all_of(gateway.wait(30.0), Dispatch)
    assert 200 <= len(later) <= 300


def test_a_request_is_moved_twice_and_then_waits_for_its_own_deadline():
    gateway = Gateway("r1", "r2", "r3")
    where = [caught(gateway)]
    for _ in range(2):
        _, dispatch = gateway.tell(ReplicaHalted("m", where[-1], Halt.STOPPED))
        where.append(dispatch.replica_id)
    assert sorted(where) == ["r1", "r2", "r3"]
    assert gateway.tell(ReplicaHalted("m", where[-1], Halt.STOPPED)) == []
    assert gateway.flow.lives["q1"].made == 0  # its attempts are its own


def test_with_nowhere_to_go_it_stays_until_somebody_has_room():
    gateway = Gateway("r1")
    lost = caught(gateway)
    assert gateway.view(out(lost, Halt.STOPPED)) == []
    assert gateway.wait(2.0) == []
    _, dispatch = gateway.view(out(lost, Halt.STOPPED), "r2") or gateway.wait(0.1)
    assert dispatch.replica_id == "r2"


def test_moves_may_be_switched_off():
    gateway = Gateway("r1", "r2", retry=RetryConfig(moves=0))
    lost = caught(gateway)
    assert gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED)) == []


# --- doubt ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "after_s"),
    [
        ({}, 2.0),
        ({"whole": True}, 3.0),
        ({"prompt_tokens": 4000}, 6.0),
        ({"prompt_tokens": 100_000}, 102.0),
    ],
)
def test_before_anything_is_learned_a_long_wait_is_reported(kwargs, after_s):
    gateway = Gateway("r1", lane=lane(deadlines=DeadlineConfig(first_token_s=600.0)))
    gateway.arrive(**kwargs)
    gateway.wait(after_s - 0.1, every=100 * MILLISECOND)
    assert gateway.doubts == []
    gateway.wait(0.3)
    [report] = gateway.doubts
    assert (report.model, report.replica_id, report.what) == ("m", "r1", "overdue")
    gateway.wait(after_s - 1.0, every=100 * MILLISECOND)
    assert len(gateway.doubts) == 1
    gateway.wait(after_s, every=100 * MILLISECOND)
    assert len(gateway.doubts) == 2  # again and again, ever more rarely


def test_once_learned_a_wait_beyond_the_norm_is_reported_after_a_second():
    gateway = Gateway("r1", "r2")
    for number in range(120):
        gateway.serve(f"q{number}", 0.05)
        gateway.wait(0.1)
    gateway.arrive("late")
    gateway.wait(0.95)
    assert gateway.doubts == []
    gateway.wait(0.1)
    assert len(gateway.doubts) == 1


def test_a_client_that_hangs_up_a_hundred_times_reports_once_a_second():
    gateway = Gateway("r1")
    for number in range(100):
        gateway.arrive(f"q{number}")
    gateway.after(2.5)
    for number in range(100):
        gateway.gone(f"q{number}")
    assert len(gateway.doubts) == 1
    for number in range(100):
        gateway.arrive(f"p{number}")
        gateway.after(0.02).gone(f"p{number}")
    assert len(gateway.doubts) == 1  # nobody waited for long


@pytest.mark.parametrize("kind", [Kind.CUT, Kind.RESET])
def test_a_stream_that_breaks_off_or_pauses_is_reported(kind):
    gateway = Gateway("r1", "r2")
    lost = caught(gateway, whole=False)
    gateway.first()
    gateway.end(kind=kind, tokens=3)
    assert [report.replica_id for report in gateway.doubts] == [lost]
    gateway.tell(Quiet("q1", 1))
    gateway.tell(Quiet("q1", 1))
    assert [report.replica_id for report in gateway.doubts] == [lost, "r2"]


def test_an_answer_in_time_and_a_client_that_leaves_early_report_nothing():
    gateway = Gateway("r1")
    gateway.serve("q1", 1.5)
    gateway.arrive("q2")
    gateway.after(1.5).gone("q2")
    assert gateway.doubts == []


# --- no replica at all ----------------------------------------------------------------------------


def test_where_no_replica_can_be_ready_in_time_nobody_waits():
    away = [
        out(name, None, ready_in_s=60.0, reason="its process is stopped (pid 7)") for name in "abc"
    ]
    gateway = Gateway(*away)
    finish = only(gateway.arrive(), Finish)
    assert (finish.status, finish.code, finish.retry_after_s) == (503, "no_ready_replica", 60.0)
    assert "all 3 replicas of m are quarantined: its process is stopped; one may" in finish.reason
    assert "pid" not in finish.reason


def test_where_one_is_on_its_way_a_request_waits_and_can_say_for_how_long():
    gateway = Gateway(out("r1", None, ready_in_s=60.0), out("r2", None, ready_in_s=12.0))
    assert gateway.arrive() == []
    gateway.wait(2.0)
    assert gateway.flow.ready_in_s("q1", gateway.now) == pytest.approx(10.0)
    assert only(gateway.view("r2"), Dispatch).replica_id == "r2"
    assert gateway.flow.ready_in_s("q1", gateway.now) is None


def test_who_waits_is_refused_as_soon_as_it_is_in_vain():
    gateway = Gateway(out("r1", None))
    assert gateway.arrive() == []  # nobody knows: it waits
    assert gateway.wait(5.0) == []
    finish = only(gateway.view(out("r1", None, ready_in_s=45.0)), Finish)
    assert (finish.status, finish.retry_after_s) == (503, 45.0)
    assert "the only replica of m is quarantined" in finish.reason


def test_a_request_that_may_wait_longer_does():
    gateway = Gateway(out("r1", None, ready_in_s=60.0))
    assert gateway.arrive(priority=Priority.BATCH) == []
    assert only(gateway.arrive("q2", deadline=gateway.now + 5 * SECOND), Finish).status == 503


def test_a_replica_whose_breaker_is_open_may_be_back_at_any_time():
    gateway = Gateway("r1", out("r2", None, ready_in_s=60.0))
    for number in range(5):
        gateway.arrive(f"q{number}", deadline=gateway.now + SECOND)
        for attempt in range(3):
            gateway.end(f"q{number}", attempt, Kind.CONNECT_TIMEOUT)
    assert gateway.arrive("last") == []
