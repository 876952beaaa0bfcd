import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.request.admission.fairness import TokenCounters
from holdfast.core.request.admission.queue import FairQueue, Outlook, QueueConfig
from holdfast.core.request.admission.refusals import RETRY_AFTER_UNKNOWN_S
from holdfast.core.types import MILLISECOND, SECOND, ConfigError, Priority, Request
from sampling import examples

BATCH = Priority.BATCH
INTERACTIVE = Priority.INTERACTIVE


def ask(number, tenant="a", priority=INTERACTIVE, prompt=10, answer=0, deadline=0):
    return Request(
        number,
        "m",
        arrived=0,
        tenant=tenant,
        priority=priority,
        prompt_tokens=prompt,
        max_tokens=answer,
        deadline=deadline,
    )


def queue(weights=None, **values):
    config = QueueConfig(**({"batch_share": 0.0} | values))
    return FairQueue(config, TokenCounters(weights or {}))


def small(depth=3, **values):
    return queue(depth_max=depth, **({"batch_depth_max": depth} | values))


def put(waiting, *requests, now=0, ready=True):
    for request in requests:
        offer = waiting.offer(request, now, ready=ready)
        assert offer.refusal is None
        assert offer.dropped == ()


def drain(waiting, now=0):
    popped = []
    while (request := waiting.pop(now)) is not None:
        popped.append(request.id)
    return popped


# --- order -------------------------------------------------------------------------------------


def test_an_empty_queue_has_nothing_to_say():
    waiting = queue()
    assert waiting.pop(0) is None
    assert waiting.expire(0) == []
    assert waiting.expires_at_next is None
    assert len(waiting) == 0


def test_one_tenant_is_served_in_order_of_arrival():
    waiting = queue()
    put(waiting, *(ask(number) for number in range(5)))
    assert drain(waiting) == [0, 1, 2, 3, 4]


def test_interactive_goes_before_batch():
    waiting = queue()
    put(waiting, ask(1, priority=BATCH), ask(2), ask(3, priority=BATCH), ask(4))
    assert drain(waiting) == [2, 4, 1, 3]


def test_tenants_take_turns_by_tokens_not_by_requests():
    waiting = queue()
    put(waiting, *(ask(f"long{n}", "long", prompt=300) for n in range(3)))
    put(waiting, *(ask(f"short{n}", "short", prompt=100) for n in range(6)))
    order = drain(waiting)
    assert order[:4] == ["long0", "short0", "short1", "short2"]
    assert order[4:8] == ["long1", "short3", "short4", "short5"]


@pytest.mark.parametrize(("answer", "first"), [(49, "a"), (51, "b")])
def test_an_answer_token_counts_as_two_prompt_tokens(answer, first):
    waiting = queue()
    put(waiting, ask(0, "b", prompt=100), ask(1, "a"), ask(2, "b"))
    assert waiting.pop(0).id == 0
    waiting.charge_output("a", answer)
    assert waiting.pop(0).tenant == first


def test_a_weight_buys_a_larger_share():
    waiting = queue({"gold": 3.0})
    put(waiting, *(ask(f"gold{n}", "gold") for n in range(30)))
    put(waiting, *(ask(f"plain{n}", "plain") for n in range(30)))
    first = [waiting.pop(0).tenant for _ in range(40)]
    assert first.count("gold") == 30


def test_an_unknown_prompt_length_still_takes_turns():
    waiting = queue()
    put(waiting, ask("a1", "a", prompt=0), ask("a2", "a", prompt=0), ask("b1", "b", prompt=0))
    assert drain(waiting) == ["a1", "b1", "a2"]


def test_batch_work_is_no_debt_in_the_interactive_class():
    waiting = queue()
    waiting.charge_dispatch(ask(0, "worker", prompt=10**6, priority=BATCH))
    waiting.charge_output("worker", 10**6, BATCH)
    put(waiting, ask(1, "person"), ask(2, "worker"), ask(3, "person"))
    assert drain(waiting) == [1, 2, 3]


def test_what_passes_without_waiting_is_counted_when_others_do_wait():
    waiting = queue()
    put(waiting, ask("a", "a"))
    waiting.charge_dispatch(ask("free", "b", prompt=50))
    put(waiting, ask("b", "b"), ask("c", "c"))
    assert drain(waiting) == ["a", "c", "b"]


def test_who_may_not_be_sent_now_keeps_its_place_and_holds_nobody_up():
    waiting = queue()
    put(waiting, ask(1), ask(2), ask(3, tenant="b"), ask(4, tenant="b"), ask(5, priority=BATCH))

    def popped(*unfit):
        request = waiting.pop(0, lambda one, _now: one.id not in unfit)
        return None if request is None else request.id

    assert popped(1, 2, 3) == 4
    assert popped(1, 2, 3) == 5  # of the other class, before nobody
    assert popped(1, 2, 3) is None
    assert len(waiting) == 3
    assert [popped(), popped(), popped(), popped()] == [1, 2, 3, None]  # in fair order, as before
    put(waiting, ask(6), now=0)
    assert waiting.pop(31 * SECOND, lambda *_: True) is None
    assert [request.id for request, _ in waiting.expire(31 * SECOND)] == [6]


def test_the_tenant_that_was_served_least_goes_first_among_those_that_may_be_sent():
    waiting = queue()
    waiting.charge_output("a", 1_000)
    put(waiting, ask(1, tenant="a"), ask(2, tenant="a"), ask(3, tenant="b"), ask(4, tenant="b"))
    waiting.charge_output("a", 1_000)
    assert waiting.pop(0, lambda one, _now: one.id in {2, 4}).id == 4
    assert waiting.pop(0, lambda one, _now: one.id == 2).id == 2


def test_batch_gets_its_share_while_both_wait_exactly():
    waiting = queue(batch_share=0.05)
    put(waiting, *(ask(f"i{n}") for n in range(200)))
    put(waiting, *(ask(f"b{n}", priority=BATCH) for n in range(20)))
    order = [waiting.pop(0).priority for _ in range(100)]
    assert order.count(BATCH) == 5
    assert order[19] == order[39] == order[59] == order[79] == order[99] == BATCH


def test_a_batch_share_that_does_not_divide_evenly_is_still_exact():
    waiting = queue(batch_share=0.3)
    put(waiting, *(ask(f"i{n}") for n in range(100)))
    put(waiting, *(ask(f"b{n}", priority=BATCH) for n in range(100)))
    assert [waiting.pop(0).priority for _ in range(100)].count(BATCH) == 30


def test_the_batch_share_does_not_save_up_while_batch_is_empty():
    waiting = queue(batch_share=0.5)
    put(waiting, *(ask(f"i{n}") for n in range(10)))
    assert [waiting.pop(0).id for _ in range(5)] == ["i0", "i1", "i2", "i3", "i4"]
    put(waiting, *(ask(f"b{n}", priority=BATCH) for n in range(3)))
    assert drain(waiting) == ["i5", "b0", "i6", "b1", "i7", "b2", "i8", "i9"]


# --- bounds ------------------------------------------------------------------------------------


def test_a_full_queue_says_so_with_a_retry_after_from_the_drain_rate():
    waiting = small(depth=3)
    put(waiting, ask(1), ask(2), ask(3))
    refusal = waiting.offer(ask(4), 0, ready=True, service_rate=0.5).refusal
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "queue_full", 6.0)
    assert "depth_max" in refusal.reason
    assert len(waiting) == 3


def test_tokens_are_bounded_too():
    waiting = queue(tokens_max=1_000)
    put(waiting, ask(1, prompt=400, answer=400))
    refusal = waiting.offer(ask(2, prompt=100, answer=101), 0, ready=True).refusal
    assert (refusal.code, refusal.retry_after_s) == ("queue_full", RETRY_AFTER_UNKNOWN_S)
    assert "tokens_max" in refusal.reason
    put(waiting, ask(3, prompt=100, answer=100))
    assert waiting.tokens == 1_000
    assert drain(waiting) == [1, 3]
    assert waiting.tokens == 0


def test_batch_has_a_bound_of_its_own():
    waiting = small(depth=10, batch_depth_max=2)
    put(waiting, ask(1, priority=BATCH), ask(2, priority=BATCH))
    refusal = waiting.offer(ask(3, priority=BATCH), 0, ready=True).refusal
    assert "batch_depth_max" in refusal.reason
    put(waiting, ask(4))


def test_an_interactive_request_takes_the_place_of_the_newest_batch_request():
    waiting = small(depth=3)
    put(waiting, ask(1, priority=BATCH), ask(2, priority=BATCH), ask(3))
    offer = waiting.offer(ask(4), 0, ready=True)
    assert offer.refusal is None
    [(request, refusal)] = offer.dropped
    assert request.id == 2
    assert (refusal.status, refusal.code) == (503, "displaced")
    assert drain(waiting) == [3, 4, 1]


def test_a_batch_request_displaces_nobody():
    waiting = small(depth=2)
    put(waiting, ask(1, priority=BATCH), ask(2, priority=BATCH))
    offer = waiting.offer(ask(3, priority=BATCH), 0, ready=True)
    assert offer.refusal is not None
    assert offer.dropped == ()


def test_as_many_are_displaced_as_its_tokens_need():
    waiting = queue(tokens_max=1_000)
    put(waiting, *(ask(n, priority=BATCH, prompt=250) for n in range(4)))
    offer = waiting.offer(ask("big", prompt=600), 0, ready=True)
    assert offer.refusal is None
    assert [request.id for request, _ in offer.dropped] == [3, 2, 1]
    assert waiting.tokens == 850


def test_nobody_is_displaced_in_vain():
    waiting = queue(tokens_max=1_000)
    put(waiting, ask("i", prompt=500), ask("b", priority=BATCH, prompt=500))
    offer = waiting.offer(ask("big", prompt=600), 0, ready=True)
    assert offer.refusal is not None
    assert offer.dropped == ()
    assert drain(waiting) == ["i", "b"]


def test_the_overdue_make_room_before_anybody_is_refused():
    waiting = small(depth=2)
    put(waiting, ask(1), ask(2))
    offer = waiting.offer(ask(3), 30 * SECOND, ready=True)
    assert offer.refusal is None
    assert [(request.id, refusal.code) for request, refusal in offer.dropped] == [
        (1, "queue_timeout"),
        (2, "queue_timeout"),
    ]
    assert drain(waiting, 30 * SECOND) == [3]


def test_the_same_request_twice_is_an_error():
    waiting = queue()
    put(waiting, ask(1))
    with pytest.raises(ValueError, match="queued already"):
        waiting.offer(ask(1, priority=BATCH), 0, ready=True)


# --- time --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("priority", "wait"), [(INTERACTIVE, 30), (BATCH, 3_600)])
def test_each_class_waits_its_time_and_no_longer(priority, wait):
    waiting = queue()
    put(waiting, ask(1, priority=priority), now=5)
    assert waiting.expires_at_next == 5 + wait * SECOND
    assert waiting.expire(4 + wait * SECOND) == []
    [(request, refusal)] = waiting.expire(5 + wait * SECOND)
    assert request.id == 1
    assert (refusal.status, refusal.code) == (503, "queue_timeout")
    assert f"{wait} s" in refusal.reason
    assert len(waiting) == 0
    assert waiting.tokens == 0
    assert waiting.expires_at_next is None


def test_a_request_is_not_kept_past_its_own_deadline():
    waiting = queue()
    put(waiting, ask(1, deadline=2 * SECOND), ask(2))
    assert waiting.expires_at_next == 2 * SECOND
    [(request, refusal)] = waiting.expire(2 * SECOND)
    assert (request.id, refusal.status, refusal.retry_after_s) == (1, 504, 0.0)
    assert drain(waiting, 2 * SECOND) == [2]


def test_a_late_deadline_does_not_extend_the_wait():
    waiting = queue()
    put(waiting, ask(1, deadline=600 * SECOND))
    [(_, refusal)] = waiting.expire(30 * SECOND)
    assert refusal.code == "queue_timeout"


@pytest.mark.parametrize(("ready", "code"), [(True, "queue_timeout"), (False, "no_ready_replica")])
def test_what_comes_back_has_only_the_rest_of_its_patience(ready, code):
    waiting = queue(wait_no_replica_s=30.0)
    offer = waiting.offer(ask(1), 100 * SECOND, ready=ready, waited=20 * SECOND)
    assert offer.refusal is None
    assert waiting.expires_at_next == 110 * SECOND
    [(_, refusal)] = waiting.expire(110 * SECOND)
    assert refusal.code == code
    assert "30 s" in refusal.reason


def test_who_has_no_patience_left_is_not_sent_anywhere():
    waiting = queue()
    waiting.offer(ask(1), 100 * SECOND, ready=True, waited=30 * SECOND)
    assert waiting.pop(100 * SECOND) is None
    [(_, refusal)] = waiting.expire(100 * SECOND)
    assert refusal.code == "queue_timeout"


def test_a_request_past_its_deadline_is_not_let_in():
    offer = queue().offer(ask(1, deadline=SECOND), SECOND, ready=True)
    assert offer.refusal.status == 504


def test_what_has_expired_is_never_popped_and_still_reported():
    waiting = small(depth=2)
    put(waiting, ask(1, deadline=SECOND))
    put(waiting, ask(2))
    assert waiting.pop(SECOND).id == 2
    assert waiting.pop(SECOND) is None
    assert len(waiting) == 0
    assert waiting.expires_at_next == SECOND
    assert waiting.tokens == 10
    [(request, _)] = waiting.expire(SECOND)
    assert request.id == 1
    assert waiting.tokens == 0


def test_the_unreported_keep_their_place():
    waiting = small(depth=2)
    put(waiting, ask(1, deadline=SECOND), ask(2))
    waiting.pop(SECOND)
    put(waiting, ask(3), now=SECOND)
    offer = waiting.offer(ask(4), SECOND, ready=True)
    assert [request.id for request, _ in offer.dropped] == [1]
    assert offer.refusal is None


def test_while_no_replica_is_ready_requests_wait_a_bounded_time():
    waiting = queue(wait_no_replica_s=10.0)
    put(waiting, ask(1), ask(2, priority=BATCH), ready=False)
    assert waiting.expire(10 * SECOND - 1) == []
    expired = waiting.expire(10 * SECOND)
    assert [(request.id, refusal.code) for request, refusal in expired] == [
        (1, "no_ready_replica"),
        (2, "no_ready_replica"),
    ]


def test_with_the_defaults_a_wait_without_replica_is_named_as_such():
    waiting = queue()
    put(waiting, ask(1), ready=False)
    [(_, refusal)] = waiting.expire(30 * SECOND)
    assert refusal.code == "no_ready_replica"


def test_a_rollout_gap_is_waited_through():
    waiting = queue()
    put(waiting, *(ask(n) for n in range(100)), ready=False)
    assert drain(waiting, 20 * SECOND) == list(range(100))


@pytest.mark.parametrize("sign", ["pop", "offer"])
def test_once_a_replica_was_seen_the_ordinary_wait_applies(sign):
    waiting = queue(wait_no_replica_s=10.0)
    put(waiting, ask(1), ask(2), ask(3), ready=False)
    if sign == "pop":
        assert waiting.pop(SECOND).id == 1
    else:
        put(waiting, ask(4), now=SECOND, ready=True)
    assert waiting.expire(10 * SECOND) == []
    assert waiting.expires_at_next == 30 * SECOND
    expired = waiting.expire(31 * SECOND)
    assert {refusal.code for _, refusal in expired} == {"queue_timeout"}


def test_a_replica_seen_before_a_request_came_says_nothing_about_its_wait():
    waiting = queue(wait_no_replica_s=10.0)
    assert waiting.pop(0) is None
    put(waiting, ask(1), ready=False)
    [(_, refusal)] = waiting.expire(10 * SECOND)
    assert refusal.code == "no_ready_replica"


SOON, LATE = Outlook(20.0, "r1 is loading"), Outlook(31.0, "all 3 replicas are quarantined")


def test_nobody_waits_for_a_replica_that_comes_too_late():
    waiting = queue()
    refusal = waiting.offer(ask(1), 0, ready=False, outlook=LATE).refusal
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "no_ready_replica", 31.0)
    assert refusal.reason == "all 3 replicas are quarantined; one may be back in about 31 s"
    assert waiting.offer(ask(2), 0, ready=False, outlook=SOON).refusal is None
    assert waiting.offer(ask(3, deadline=SECOND), 0, ready=False, outlook=SOON).refusal is not None
    waited = 15 * SECOND  # its patience counts all its stays
    assert waiting.offer(ask(4), 0, ready=False, outlook=SOON, waited=waited).refusal is not None
    assert list(waiting.held) == [2]


def test_who_waits_for_a_replica_that_is_late_waits_within_its_class_only():
    waiting = queue()
    waiting.offer(ask(1), 0, ready=False, outlook=SOON)
    waiting.offer(ask(2, priority=BATCH), 0, ready=False, outlook=Outlook(60.0, "loading"))
    assert [request.id for request, _ in waiting.expire(119 * SECOND)] == [1]
    [(request, refusal)] = waiting.expire(120 * SECOND)
    assert (request.id, refusal.code) == (2, "no_ready_replica")


def test_those_who_wait_in_vain_are_given_up_and_the_others_stay():
    waiting = queue()
    put(waiting, ask(1), ask(2, priority=BATCH), ask(3, deadline=SECOND), ready=False)
    given_up = waiting.give_up(LATE, 0)
    assert [request.id for request, _ in given_up] == [1, 3]
    assert {refusal.code for _, refusal in given_up} == {"no_ready_replica"}
    assert list(waiting.held) == [2]
    assert waiting.tokens == 10
    assert waiting.give_up(SOON, 0) == []


def test_a_deadline_before_the_replica_wait_ends_stays_a_deadline():
    waiting = queue(wait_no_replica_s=10.0)
    put(waiting, ask(1, deadline=5 * SECOND), ready=False)
    [(_, refusal)] = waiting.expire(5 * SECOND)
    assert refusal.code == "deadline_exceeded"


# --- clients that go away ----------------------------------------------------------------------


def test_a_client_that_goes_away_leaves_no_trace():
    waiting = queue()
    put(waiting, ask(1), ask(2), ask(3, priority=BATCH))
    assert waiting.remove(1)
    assert waiting.remove(3)
    assert not waiting.remove(1)
    assert not waiting.remove("stranger")
    assert waiting.tokens == 10
    assert drain(waiting) == [2]


def test_a_client_may_go_away_while_its_expiry_is_unreported():
    waiting = queue()
    put(waiting, ask(1, deadline=SECOND))
    assert waiting.pop(SECOND) is None
    assert waiting.remove(1)
    assert waiting.expire(SECOND) == []
    assert waiting.tokens == 0


def test_stale_expiries_do_not_pile_up():
    waiting = queue()
    for number in range(10_000):
        put(waiting, ask(number))
        assert waiting.remove(number)
    assert len(waiting._expiries) <= 66
    put(waiting, ask("a"), ask("b", priority=BATCH))
    waiting.remove("a")
    assert waiting.expires_at_next == 3_600 * SECOND


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"depth_max": 0}, "queue.depth_max"),
        ({"tokens_max": 0}, "queue.tokens_max"),
        ({"batch_depth_max": 1_001}, "queue.batch_depth_max"),
        ({"batch_depth_max": -1}, "queue.batch_depth_max"),
        ({"wait_interactive_s": 0.0}, "queue.wait_interactive_s"),
        ({"wait_batch_s": 10.0}, "queue.wait_batch_s"),
        ({"wait_no_replica_s": 31.0}, "queue.wait_no_replica_s"),
        ({"wait_no_replica_s": 0.0}, "queue.wait_no_replica_s"),
        ({"batch_share": 0.6}, "queue.batch_share"),
        ({"input_weight": 0.0}, "queue.input_weight"),
        ({"output_weight": float("nan")}, "queue.output_weight"),
    ],
)
def test_a_bad_config_names_the_field_and_the_fix(values, field):
    with pytest.raises(ConfigError) as caught:
        QueueConfig(**values)
    assert caught.value.field == field
    assert caught.value.fix.startswith("use")


def test_a_queue_deeper_than_its_counters_is_refused():
    with pytest.raises(ConfigError, match=r"fairness\.tenants_max: is 10, below queue\.depth_max"):
        FairQueue(QueueConfig(), TokenCounters({}, tenants_max=10))


# --- properties --------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(1, 1_000), st.integers(0, 500)), min_size=60, max_size=120),
    st.sampled_from([INTERACTIVE, BATCH]),
)
def test_two_backlogged_tenants_are_charged_alike(sizes, priority):
    waiting = queue()
    outputs = {}
    for number, (prompt, output) in enumerate(sizes):
        for tenant in ("a", "b"):
            put(waiting, ask(f"{tenant}{number}", tenant, priority, prompt=prompt))
            outputs[f"{tenant}{number}"] = output
    cost_max = max(prompt + 2 * output for prompt, output in sizes)
    charged = {"a": 0, "b": 0}
    for _ in sizes:
        request = waiting.pop(0)
        output = outputs[request.id]
        waiting.charge_output(request.tenant, output, priority)
        charged[request.tenant] += request.prompt_tokens + 2 * output
        assert abs(charged["a"] - charged["b"]) <= cost_max


class QueueMachine(RuleBasedStateMachine):
    """Every request ends in exactly one way, in order, in time and within the bounds."""

    @initialize(
        depth=st.integers(1, 6),
        tokens=st.sampled_from([60, 10_000]),
        batch=st.integers(0, 6),
        share=st.sampled_from([0.0, 0.05, 0.5]),
    )
    def build(self, depth, tokens, batch, share):
        self.config = QueueConfig(
            depth_max=depth,
            tokens_max=tokens,
            batch_depth_max=min(batch, depth),
            wait_interactive_s=10.0,
            wait_batch_s=20.0,
            wait_no_replica_s=4.0,
            batch_share=share,
        )
        self.queue = FairQueue(self.config, TokenCounters({"a": 2.0}, tenants_max=6))
        self.now = 0
        self.number = 0
        self.waiting = {}  # id -> (request, latest possible expiry), in order of arrival
        self.ended = {}  # id -> how
        self.both_waited = 0
        self.batch_first = 0

    def end(self, request, how):
        assert request.id not in self.ended
        self.ended[request.id] = how
        self.waiting.pop(request.id, None)

    def end_dropped(self, dropped):
        for request, refusal in dropped:
            assert request.id in self.waiting
            assert refusal.status in {503, 504}
            if refusal.code == "displaced":
                assert request.priority is BATCH
            else:
                assert self.now >= min(request.deadline or 2**60, request.arrived + 4 * SECOND)
            self.end(request, refusal.code)

    @rule(wait=st.integers(0, 6_000))
    def wait(self, wait):
        self.now += wait * MILLISECOND

    @rule(
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from([INTERACTIVE, BATCH]),
        prompt=st.integers(0, 30),
        answer=st.integers(0, 10),
        patience=st.one_of(st.just(0), st.integers(1, 12_000)),
        ready=st.booleans(),
        service_rate=st.sampled_from([None, 0.0, 3.0]),
    )
    def offer(self, tenant, priority, prompt, answer, patience, ready, service_rate):
        self.number += 1
        deadline = self.now + patience * MILLISECOND if patience else 0
        request = ask(self.number, tenant, priority, prompt, answer, deadline)
        request.arrived = self.now
        batch_waits = any(one.priority is BATCH for one, _ in self.waiting.values())
        offer = self.queue.offer(request, self.now, ready=ready, service_rate=service_rate)
        self.end_dropped(offer.dropped)
        if offer.refusal is not None:
            assert offer.refusal.retry_after_s > 0
            self.end(request, "shed")
            displaced = [one for one, refusal in offer.dropped if refusal.code == "displaced"]
            assert not displaced
            if priority is INTERACTIVE and self.config.tokens_max > 1_000:
                assert not batch_waits
            return
        wait = 10 if priority is INTERACTIVE else 20
        expiry = min(deadline or 2**60, self.now + wait * SECOND)
        self.waiting[request.id] = (request, expiry)

    @rule()
    def pop(self):
        request = self.queue.pop(self.now)
        alive = [
            one
            for one, expiry in self.waiting.values()
            if self.now < min(expiry, one.arrived + 4 * SECOND)
        ]
        if request is None:
            assert not alive
            return
        _, expiry = self.waiting[request.id]
        assert self.now < expiry
        earlier = [
            one
            for one in alive
            if one.tenant == request.tenant
            and one.priority is request.priority
            and one.id < request.id
        ]
        assert not earlier
        interactive_waits = any(one.priority is INTERACTIVE for one in alive)
        if request.priority is BATCH and interactive_waits:
            self.batch_first += 1
            assert self.config.batch_share > 0
        elif request.priority is INTERACTIVE:
            self.both_waited += 1
        # Exact where classes always overlap; here, an upper bound for what batch may take.
        share = self.config.batch_share
        assert self.batch_first * (1 - share) <= share * self.both_waited + 1
        self.end(request, "popped")

    @rule()
    def expire(self):
        self.end_dropped(self.queue.expire(self.now))
        for _, expiry in self.waiting.values():
            assert self.now < expiry
        following = self.queue.expires_at_next
        assert (following is None) == (not self.waiting)
        if following is not None:
            assert self.now < following

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def client_goes(self, data):
        identifier = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.queue.remove(identifier)
        self.end(self.waiting[identifier][0], "removed")
        assert not self.queue.remove(identifier)

    @invariant()
    def bounds_hold_and_nothing_is_lost(self):
        held = [request for request, _ in self.waiting.values()]
        assert len(held) <= self.config.depth_max
        tokens = sum(request.prompt_tokens + request.max_tokens for request in held)
        assert self.queue.tokens == tokens <= self.config.tokens_max
        queue = self.queue
        assert len(queue._interactive.entries) + len(queue._batch.entries) == len(queue)
        assert len(queue) + len(queue._overdue) == len(held)
        assert len(queue._batch.entries) <= self.config.batch_depth_max
        assert len(self.ended) + len(held) == self.number

    def teardown(self):
        if not hasattr(self, "queue"):
            return
        self.now += 60 * SECOND
        assert self.queue.pop(self.now) is None
        self.end_dropped(self.queue.expire(self.now))
        assert not self.waiting
        assert self.queue.tokens == 0
        assert len(self.ended) == self.number


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
