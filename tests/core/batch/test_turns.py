"""Tenants take turns; a batch that will be late goes first in every second turn."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.batch.turns import OpenBatch, Turns, is_late
from holdfast.core.types import SECOND

HOUR = 3_600 * SECOND


def batch(name, tenant, hours=24, remaining=1000, item_ns=None):
    return OpenBatch(name, tenant, hours * HOUR, remaining, item_ns)


def test_a_large_batch_does_not_keep_other_tenants_waiting():
    turns = Turns()
    batches = [batch("big", "a", remaining=50_000), batch("small", "b", remaining=10)]
    taken = Counter(turns.choose(batches, 0).tenant for _ in range(100))
    assert taken == {"a": 50, "b": 50}


def test_weights_share_the_turns():
    turns = Turns({"a": 3.0})
    batches = [batch("x", "a"), batch("y", "b")]
    taken = Counter(turns.choose(batches, 0).tenant for _ in range(400))
    assert taken["a"] == 300


def test_a_tenant_that_comes_back_saved_nothing_up():
    turns = Turns()
    for _ in range(100):
        turns.choose([batch("x", "a")], 0)
    both = [batch("x", "a"), batch("y", "b")]
    taken = Counter(turns.choose(both, 0).tenant for _ in range(20))
    assert taken == {"a": 10, "b": 10}


def test_of_one_tenant_the_earliest_deadline_goes_first():
    turns = Turns()
    assert turns.choose([batch("later", "a", 20), batch("sooner", "a", 2)], 0).id == "sooner"


def test_a_batch_that_will_be_late_gets_half_of_all_turns_and_no_more():
    late = batch("late", "b", hours=1, remaining=10_000, item_ns=SECOND)
    others = [batch(f"o{n}", f"t{n}") for n in range(9)]
    assert is_late(late, 0)
    assert not is_late(others[0], 0)
    turns = Turns()
    taken = Counter(turns.choose([late, *others], 0).id for _ in range(200))
    assert 100 <= taken["late"] <= 120
    assert min(taken[other.id] for other in others) >= 5


@given(st.lists(st.integers(1, 6), min_size=1, max_size=300))
def test_no_tenant_that_is_always_there_falls_behind_by_more_than_a_turn(sizes):
    turns = Turns()
    taken = Counter()
    for size in sizes:
        here = [batch(f"b{n}", f"t{n}") for n in range(size)]
        taken[turns.choose(here, 0).tenant] += 1
    assert Turns().choose([], 0) is None
    assert taken["t0"] * 6 + 6 >= len(sizes)
