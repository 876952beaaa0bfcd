"""Waits that are too long: attempts called back, routing warned, doubt reported."""

import pytest
from flow_stage import (
    NO_BACKOFF,
    QUICK,
    Gateway,
    all_of,
    caught,
    events,
    full,
    lane,
    last,
    only,
    shown,
    view,
)

from holdfast.core.failure import Kind
from holdfast.core.messages import (
    Abort,
    Dispatch,
    Ended,
    Finish,
    LoadReported,
    Quiet,
    Report,
    Summary,
)
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import MILLISECOND, SECOND, Request

# --- waits that are too long ----------------------------------------------------------------------


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


class BusyEngines:
    """Two engines of sixteen slots that nobody declared, behind one gateway.

    A request takes 2 s, its first token 50 ms once it has a slot. Their pages are read once a
    second, and 0.2 s old when the gateway hears of them.
    """

    SLOTS, FIRST, TOOK = 16, 50 * MILLISECOND, 2 * SECOND

    def __init__(self, *, tell: bool = True):
        views = [view(name, slots=0) for name in ("r1", "r2")]
        self.gateway = Gateway(*views, lane=lane(routing="power_of_two"))
        self.tell = tell
        self.queues = {name: [] for name in ("r1", "r2")}
        self.running = {name: {} for name in ("r1", "r2")}  # (request, attempt): when it began
        self.shown = set()
        self.actions = []
        self.frozen = ""  # its page goes on showing what it showed
        self.pages = {}
        self.sent = 0

    def take(self, actions):
        for action in actions:
            if isinstance(action, Dispatch):
                self.queues[action.replica_id].append((action.request.id, action.attempt))
            elif isinstance(action, Abort):
                key = (action.request_id, action.attempt)
                for name in self.queues:
                    self.queues[name] = [one for one in self.queues[name] if one != key]
                    self.running[name].pop(key, None)
        self.actions += [(self.gateway.now, action) for action in actions]

    def serve(self):
        now = self.gateway.now
        for name, running in self.running.items():
            if name == self.frozen:
                continue
            for key, began in list(running.items()):
                if key not in self.shown and now - began >= self.FIRST:
                    self.shown.add(key)
                    self.take(self.gateway.first(*key))
                if now - began >= self.TOOK:
                    del running[key]
                    self.take(self.gateway.end(*key, tokens=50))
            while self.queues[name] and len(running) < self.SLOTS:
                running[self.queues[name].pop(0)] = now

    def run(self, seconds, rate):
        """Let time pass, with ``rate`` requests a second, at even distances."""
        ticks = int(seconds * SECOND) // (10 * MILLISECOND)
        for tick in range(ticks):
            self.gateway.now += 10 * MILLISECOND
            self.take(self.gateway.tick())
            for _ in range(int((tick + 1) * rate / 100) - int(tick * rate / 100)):
                self.sent += 1
                request = f"q{self.sent}"
                self.take(self.gateway.arrive(request, prompt_tokens=100, max_tokens=50))
            self.serve()
            if self.tell and tick % 100 == 0:
                self.pages |= {n: len(q) for n, q in self.queues.items() if n != self.frozen}
            if self.tell and tick % 100 == 20:
                for name, waiting in self.pages.items():
                    self.gateway.tell(LoadReported("m", name, waiting=waiting))

    def patience(self, name="r1"):
        """How long (s) a new attempt may take there to its first token."""
        lane_of = self.gateway.flow.lanes["m"]
        request = Request("x", "m", arrived=0, prompt_tokens=100, max_tokens=50)
        candidate = lane_of.pool.candidates[name]
        allowed = lane_of.deadlines.wait(request, candidate.waiting, 0, self.gateway.now)
        return allowed / SECOND

    def aborted(self):
        return [(at, one) for at, one in self.actions if isinstance(one, Abort)]


def test_a_queue_inside_an_engine_of_unknown_slots_is_no_failure_of_its_replica():
    engines = BusyEngines()
    engines.run(40, rate=10)
    assert engines.patience() == 1.0  # its floor: first tokens take 50 ms
    engines.run(4, rate=40)  # the two of them serve sixteen a second
    longest = max(len(queue) for queue in engines.queues.values())
    assert longest > 2 * engines.SLOTS  # more than two seconds of waiting for the last
    assert engines.aborted() == []
    reports = [one for _, one in engines.actions if isinstance(one, Report)]
    assert reports == []  # no breaker opened


def test_an_engine_that_stands_still_behind_a_page_that_shows_no_queue_is_given_up_as_soon():
    engines = BusyEngines()
    engines.run(40, rate=10)
    stopped = engines.gateway.now
    engines.frozen = "r1"
    engines.run(3, rate=10)
    at, first = engines.aborted()[0]
    assert first.replica_id == "r1"
    assert at - stopped < 1.3 * SECOND


@pytest.mark.parametrize("tell", [True, False], ids=["told", "untold"])
def test_an_overload_is_forgotten_within_a_minute_of_its_end(tell):
    engines = BusyEngines(tell=tell)
    engines.run(40, rate=10)
    assert engines.patience() == 1.0
    engines.run(15, rate=24)
    while any(engines.queues.values()):
        engines.run(1, rate=6)
    engines.run(60, rate=10)
    assert engines.patience() == 1.0


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


# --- slow first tokens ----------------------------------------------------------------------------


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
