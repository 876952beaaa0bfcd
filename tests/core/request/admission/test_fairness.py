import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.admission.fairness import QueueEntry, TenantQueues, TokenCounters
from holdfast.core.types import ConfigError, Request
from sampling import examples


def counters(tenants_max=100, **weights):
    return TokenCounters(weights, tenants_max)


def test_the_tenant_served_least_goes_first():
    tokens = counters()
    for tenant in ("a", "b", "c"):
        tokens.arrive(tenant)
    tokens.charge("a", 10)
    tokens.charge("b", 5)
    tokens.charge("c", 7)
    assert tokens.least() == "b"
    tokens.charge("b", 5)
    assert tokens.least() == "c"


def test_at_equal_counters_who_came_first_goes_first_and_then_they_take_turns():
    tokens = counters()
    for tenant in ("z", "a", "m"):
        tokens.arrive(tenant)
    order = []
    for _ in range(6):
        order.append(tokens.least())
        tokens.charge(order[-1], 10)
    assert order == ["z", "a", "m", "z", "a", "m"]


def test_a_double_weight_buys_double_tokens():
    tokens = counters(gold=2.0)
    tokens.arrive("gold")
    tokens.arrive("plain")
    served = {"gold": 0, "plain": 0}
    for _ in range(300):
        tenant = tokens.least()
        served[tenant] += 10
        tokens.charge(tenant, 10)
    assert served == {"gold": 2_000, "plain": 1_000}


def test_a_tenant_back_from_idleness_has_no_credit():
    tokens = counters()
    tokens.charge("idle", 1)
    tokens.arrive("busy")
    tokens.charge("busy", 1_000)
    tokens.arrive("idle")
    assert tokens.value("idle") == tokens.value("busy") == 1_000


def test_the_lift_is_to_the_smallest_of_those_waiting_not_to_the_largest():
    tokens = counters()
    for tenant in ("heavy", "light"):
        tokens.arrive(tenant)
    tokens.charge("heavy", 1_000)
    tokens.charge("light", 100)
    tokens.arrive("new")
    assert tokens.value("new") == 100


def test_a_tenant_with_a_debt_keeps_it_when_it_returns():
    tokens = counters()
    tokens.arrive("debtor")
    tokens.arrive("other")
    tokens.charge("debtor", 1_000)
    tokens.leave("debtor")
    tokens.arrive("debtor")
    assert tokens.value("debtor") == 1_000
    assert tokens.least() == "other"


def test_arriving_twice_changes_nothing():
    tokens = counters()
    tokens.arrive("a")
    tokens.arrive("b")
    tokens.charge("b", 50)
    tokens.arrive("a")
    tokens.leave("a")
    assert tokens.least() == "b"


def test_after_an_empty_queue_newcomers_start_where_the_last_one_left():
    tokens = counters()
    tokens.arrive("a")
    tokens.charge("a", 500)
    tokens.leave("a")
    tokens.arrive("b")
    assert tokens.value("b") == 500
    assert tokens.value("never seen") == 500


def test_work_done_without_contention_is_no_debt():
    tokens = counters()
    for _ in range(1_000):
        tokens.pass_by("night owl", 10_000)
    tokens.pass_by("early bird", 10)
    tokens.arrive("early bird")
    tokens.arrive("night owl")
    assert tokens.value("night owl") - tokens.value("early bird") <= 10_000


def test_passing_by_after_idleness_starts_at_the_level_of_the_others():
    tokens = counters()
    tokens.pass_by("idle", 10)
    tokens.pass_by("busy", 500)
    tokens.pass_by("busy", 500)
    tokens.pass_by("idle", 10)
    assert tokens.value("idle") == 510


def test_leaving_and_coming_back_is_one_place_in_the_order_not_two():
    tokens = counters()
    for tenant in ("first", "second"):
        tokens.arrive(tenant)
    tokens.leave("second")
    tokens.arrive("second")
    tokens.charge("first", 10)
    assert tokens.least() == "second"
    tokens.charge("second", 20)
    assert tokens.least() == "first"
    assert len(tokens._heap) == 2


def test_passing_by_while_others_wait_lifts_to_them_and_leaves_the_floor():
    tokens = counters()
    tokens.arrive("waiting")
    tokens.charge("waiting", 300)
    tokens.pass_by("lucky", 20)
    assert tokens.value("lucky") == 320
    assert tokens._floor == 0.0


def test_leaving_without_having_waited_changes_nothing():
    tokens = counters()
    tokens.leave("stranger")
    tokens.charge("known", 5)
    tokens.leave("known")
    assert tokens._floor == 0.0


def test_asking_for_the_least_of_nobody_is_an_error():
    tokens = counters()
    with pytest.raises(LookupError, match="no tenant is waiting"):
        tokens.least()
    tokens.arrive("a")
    tokens.leave("a")
    with pytest.raises(LookupError, match="no tenant is waiting"):
        tokens.least()


def test_a_negative_charge_is_refused():
    with pytest.raises(ValueError, match="counters only rise"):
        counters().charge("a", -1)


def test_when_full_the_least_recently_active_is_forgotten_and_gains_nothing():
    tokens = counters(tenants_max=2)
    tokens.pass_by("old", 1_000)
    tokens.pass_by("mid", 500)
    tokens.pass_by("old", 1_000)
    tokens.pass_by("new", 1)
    assert len(tokens) == 2
    assert tokens.value("old") == 2_000
    assert tokens.value("mid") == tokens._floor == 1_000


def test_a_waiting_tenant_is_never_forgotten():
    tokens = counters(tenants_max=2)
    tokens.arrive("waiting")
    tokens.charge("waiting", 70)
    tokens.charge("idle", 30)
    tokens.charge("new", 10)
    assert tokens.value("waiting") == 70
    assert tokens.least() == "waiting"
    tokens.arrive("new")
    with pytest.raises(OverflowError, match=r"fairness\.tenants_max"):
        tokens.arrive("third")


def test_tenants_that_leave_from_the_middle_do_not_pile_up():
    tokens = counters(tenants_max=50)
    tokens.arrive("steady")
    for number in range(5_000):
        tokens.arrive(f"t{number}")
        tokens.charge(f"t{number}", 10)
        tokens.leave(f"t{number}")
    assert len(tokens._heap) <= 2 * 1 + 64 + 1
    assert len(tokens) == 50
    assert tokens.least() == "steady"
    tokens.leave("steady")
    tokens.arrive("steady")
    assert [account.tenant for _, _, account in tokens._heap].count("steady") == 1


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_an_impossible_weight_is_refused_by_name(weight):
    with pytest.raises(ConfigError, match=r"fairness\.weights\[acme\]: is .*use 0\.001 to 1000"):
        TokenCounters({"acme": weight})


def test_a_bound_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"fairness\.tenants_max: is 0; use at least 1"):
        TokenCounters({}, 0)


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(1, 1_000), min_size=100, max_size=200),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_two_backlogged_tenants_get_tokens_in_proportion_to_their_weights(costs, heavy, light):
    tokens = counters(heavy=heavy, light=light)
    tokens.arrive("heavy")
    tokens.arrive("light")
    served = {"heavy": 0.0, "light": 0.0}
    for cost in costs:
        tenant = tokens.least()
        tokens.charge(tenant, cost)
        served[tenant] += cost
        gap = abs(served["heavy"] / heavy - served["light"] / light)
        assert gap <= max(costs) / min(heavy, light) * (1 + 1e-9)  # thirds are not exact


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "leave", "charge", "pass_by"]),
            st.sampled_from("abcdefgh"),
            st.integers(0, 50),
        ),
        max_size=120,
    )
)
def test_the_lazy_heap_agrees_with_a_plain_minimum(steps):
    tokens = counters()
    waiting = set()
    for action, tenant, amount in steps:
        if action == "arrive":
            if tenant not in waiting and waiting:
                least = min(tokens.value(other) for other in waiting)
                expected = max(tokens.value(tenant), least)
            else:
                expected = max(tokens.value(tenant), tokens._floor)
                expected = tokens.value(tenant) if tenant in waiting else expected
            tokens.arrive(tenant)
            waiting.add(tenant)
            assert tokens.value(tenant) == expected
        elif action == "leave":
            tokens.leave(tenant)
            waiting.discard(tenant)
        else:
            getattr(tokens, action)(tenant, amount)
        if waiting:
            least = min(tokens.value(other) for other in waiting)
            assert tokens.value(tokens.least()) == least
            assert tokens.least() in waiting


def entry(number, tenant="a", tokens=10):
    return QueueEntry(Request(number, "m", arrived=0, tenant=tenant), tokens, 0, number)


def test_lanes_serve_the_oldest_of_the_least_served_tenant():
    lanes = TenantQueues(counters())
    entries = [entry(1, "a"), entry(2, "a"), entry(3, "b")]
    for one in entries:
        lanes.add(one)
    assert lanes.first() is entries[0]
    lanes.counters.charge("a", 5)
    assert lanes.first() is entries[2]
    assert lanes.newest() is entries[2]
    assert lanes.tokens == 30


def test_lanes_forget_a_tenant_whose_last_entry_is_taken():
    lanes = TenantQueues(counters())
    entries = [entry(1, "a"), entry(2, "a"), entry(3, "b")]
    for one in entries:
        lanes.add(one)
    lanes.take(entries[1])
    lanes.take(entries[0])
    assert list(lanes.tenants) == ["b"]
    assert lanes.first() is entries[2]
    assert not entries[0].queued
    assert entries[2].queued
    assert lanes.tokens == 10
