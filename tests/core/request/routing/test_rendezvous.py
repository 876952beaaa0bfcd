from collections import Counter
from hashlib import blake2b
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing import rendezvous
from holdfast.core.request.routing.rendezvous import LoadBound, Rendezvous, mix, stable_hash
from holdfast.core.stats import PeakEwma
from holdfast.core.types import ConfigError, Replica

FREE = LoadBound(slack=float("inf"))  # the ranking alone


def candidate(name, weight=1.0, inflight=0, slots=0):
    replica = Replica(name, "model", slots=slots, weight=weight)
    made = Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())
    made.inflight = inflight
    return made


def crowd(size):
    return [candidate(f"replica-{index}") for index in range(size)]


def home(table, key, pool, tried=(), *, returning=False):
    choice = table.pick(key, pool, tried, returning=returning)
    return None if choice is None else choice[0].id


def homes(table, pool, keys=2000):
    return [home(table, key, pool) for key in range(keys)]


@given(st.lists(st.integers(0, 2**64 - 1), unique=True))
def test_mixing_keeps_to_64_bits_and_never_merges_two_keys(values):
    mixed = {mix(value) for value in values}
    assert len(mixed) == len(values)
    assert all(0 <= value < 2**64 for value in mixed)


def test_mixing_spreads_neighbours_over_all_bits():
    """Flipping one input bit flips about half of the output's."""
    flips = [(mix(1000) ^ mix(1000 ^ (1 << bit))).bit_count() for bit in range(64)]
    assert 28 < sum(flips) / len(flips) < 36


def test_known_values_do_not_change_between_versions():
    """A change here moves every key of every fleet at the next upgrade."""
    assert mix(0) == 0xE220A8397B1DCDAF
    assert stable_hash("replica-1") == int.from_bytes(
        blake2b(b"replica-1", digest_size=8).digest(), "big"
    )
    numbers = "".join(home_id[-1] for home_id in homes(Rendezvous(FREE), crowd(4), 12))
    assert numbers == "123212211003"


def test_gateways_agree_whatever_the_order_of_their_lists():
    pool = crowd(9)
    shuffled = list(pool)
    Random(1).shuffle(shuffled)
    assert homes(Rendezvous(FREE), pool) == homes(Rendezvous(FREE), shuffled)


def test_keys_are_spread_evenly():
    counts = Counter(homes(Rendezvous(FREE), crowd(8), 8000))
    assert len(counts) == 8
    assert all(800 < count < 1200 for count in counts.values())


def test_declared_capacity_decides_how_many_keys_are_at_home():
    pool = [candidate("big", weight=3.0), candidate("a"), candidate("b"), candidate("c")]
    counts = Counter(homes(Rendezvous(FREE), pool, 12_000))
    assert counts["big"] == pytest.approx(6000, rel=0.08)


def test_only_the_keys_of_a_departed_replica_move():
    pool = crowd(8)
    table = Rendezvous(FREE)
    before = homes(table, pool)
    after = homes(table, pool[1:])
    assert all(new == old for old, new in zip(before, after, strict=True) if old != "replica-0")
    spread = Counter(new for old, new in zip(before, after, strict=True) if old == "replica-0")
    assert len(spread) == 7


def test_a_replica_that_returns_gets_its_keys_back_without_new_rankings():
    pool = crowd(8)
    table = Rendezvous(FREE)
    before = homes(table, pool)
    rankings = table._rankings
    homes(table, pool[1:])
    assert homes(table, list(pool)) == before
    assert table._rankings is rankings


def test_a_newcomer_takes_only_its_own_keys():
    pool = crowd(8)
    table = Rendezvous(FREE)
    before = homes(table, pool[1:])
    after = homes(table, pool)
    moved = {new for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {"replica-0"}


def test_a_table_that_saw_others_before_ranks_as_a_fresh_one():
    pool = crowd(8)
    table = Rendezvous(FREE)
    homes(table, crowd(20)[10:])
    assert homes(table, pool) == homes(Rendezvous(FREE), pool)


def test_a_replica_whose_declared_weight_changed_is_ranked_anew():
    table = Rendezvous(FREE)
    few = Counter(homes(table, [candidate("a"), candidate("b")]))
    many = Counter(homes(table, [candidate("a", weight=4.0), candidate("b")]))
    assert many["a"] > 1.4 * few["a"]


def test_departed_replicas_are_forgotten_beyond_the_bound(monkeypatch):
    monkeypatch.setattr(rendezvous, "_ABSENT_MAX", 4)
    table = Rendezvous(FREE)
    for generation in range(40):
        home(table, 1, [candidate(f"r{generation}"), candidate("stays")])
    assert len(table._known) <= 8
    assert len(table._seeds) == len(table._known)
    pool = [candidate("r39"), candidate("stays")]
    assert homes(table, pool, 50) == homes(Rendezvous(FREE), pool, 50)


def test_forgetting_replicas_forgets_who_moved_to_them(monkeypatch):
    monkeypatch.setattr(rendezvous, "_ABSENT_MAX", 0)
    pool = crowd(3)
    table = Rendezvous(FREE)
    for key in range(50):
        home(table, key, pool, tried=(home(table, key, pool),))
    fresh = [candidate("x"), candidate("y")]
    assert homes(table, fresh, 50) == homes(Rendezvous(FREE), fresh, 50)


def test_a_busy_home_passes_on_to_the_next_in_the_ranking():
    pool = crowd(8)
    bound = LoadBound(slack=0)
    first = home(Rendezvous(bound), 7, pool)
    second = home(Rendezvous(FREE), 7, [one for one in pool if one.id != first])
    busy = next(one for one in pool if one.id == first)
    busy.inflight = 20
    choice = Rendezvous(bound).pick(7, pool, (), returning=False)
    assert choice is not None
    assert choice[0].id == second
    assert choice[1] == "next in its ranking: home busy or tried"


def test_below_the_slack_nobody_is_busy():
    pool = crowd(8)
    first = home(Rendezvous(FREE), 7, pool)
    busy = next(one for one in pool if one.id == first)
    busy.inflight = 3
    assert home(Rendezvous(LoadBound(slack=4)), 7, pool) == first
    assert home(Rendezvous(LoadBound(slack=3)), 7, pool) != first


def test_a_returning_key_stays_at_a_load_that_sends_a_new_one_on():
    """Seven replicas with 9 in flight, the home with 14: a load of 15 against a mean of 10.6."""
    pool = crowd(8)
    first = home(Rendezvous(FREE), 7, pool)
    for one in pool:
        one.inflight = 14 if one.id == first else 9
    assert home(Rendezvous(LoadBound()), 7, pool) != first
    assert home(Rendezvous(LoadBound()), 7, pool, returning=True) == first


def test_where_nothing_is_cached_a_returning_key_counts_as_a_new_one():
    """Home and second choice at 1.5 times the mean: only a home is worth that much waiting."""
    pool = crowd(8)
    first = home(Rendezvous(FREE), 7, pool)
    second = home(Rendezvous(FREE), 7, [one for one in pool if one.id != first])
    for one in pool:
        one.inflight = 40 if one.id == first else 14 if one.id == second else 4
    chosen = home(Rendezvous(LoadBound()), 7, pool, returning=True)
    assert chosen not in {first, second}


def test_a_key_that_moved_stays_where_it_went_until_it_cannot():
    pool = crowd(8)
    table = Rendezvous(LoadBound())
    first = home(table, 7, pool)
    busy = next(one for one in pool if one.id == first)
    busy.inflight = 50
    second = home(table, 7, pool)
    assert second != first
    busy.inflight = 0
    assert table.pick(7, pool, (), returning=True) == (
        next(one for one in pool if one.id == second),
        "where it was moved to before",
    )
    assert home(table, 7, pool, tried=(second,)) == first
    assert home(table, 7, [one for one in pool if one.id != second]) == first


def test_a_mild_suspect_is_over_the_bound_with_its_first_request():
    pool = crowd(8)
    for one in pool:
        one.inflight = 1
    first = home(Rendezvous(FREE), 7, pool)
    suspect = next(one for one in pool if one.id == first)
    suspect.inflight = 0
    suspect.weight = 0.1
    assert home(Rendezvous(LoadBound()), 7, pool) != first


def test_full_and_tried_candidates_are_skipped_until_nobody_is_left():
    pool = crowd(3)
    table = Rendezvous(FREE)
    seen = []
    for _ in range(3):
        seen.append(home(table, 7, pool, tried=tuple(seen)))
    assert sorted(seen) == [one.id for one in pool]
    assert home(table, 7, pool, tried=tuple(seen)) is None
    for one in pool:
        one.limit = one.inflight
    assert home(table, 7, pool) is None
    assert home(table, 7, []) is None


def test_a_popular_key_never_exceeds_its_part_of_the_load():
    """All of the traffic has one key and never ends: the bound alone spreads it."""
    pool = crowd(16)
    table = Rendezvous(LoadBound(return_factor=1.25, slack=0))
    refused = 0
    for step in range(1, 1601):
        choice = table.pick(7, pool, (), returning=True)
        if choice is None:  # the mean is refreshed only now and then
            refused += 1
            choice = (min(pool, key=lambda one: one.inflight), "")
        choice[0].inflight += 1
        if step % 160 == 0:
            assert max(one.inflight for one in pool) <= 1.25 * (step + 16) / 16 + 1
    assert refused < 16


def test_keys_remembered_away_from_home_are_bounded(monkeypatch):
    monkeypatch.setattr(rendezvous, "_MOVED_MAX", 10)
    pool = crowd(2)
    table = Rendezvous(FREE)
    for key in range(100):
        home(table, key, pool, tried=(home(table, key, pool),))
    assert list(table._moved) == list(range(90, 100))


@pytest.mark.parametrize(
    ("field", "bound", "fix"),
    [
        ("load_factor", LoadBound(load_factor=0.9), "at least 1"),
        ("return_factor", LoadBound(load_factor=3.0), "use load_factor, 3.0, or more"),
        ("slack", LoadBound(slack=-1), "0 or more"),
    ],
)
def test_a_bad_bound_is_refused_in_the_name_of_its_policy(field, bound, fix):
    with pytest.raises(ConfigError) as refused:
        bound.check("some_policy")
    assert refused.value.field == f"some_policy.{field}"
    assert fix in refused.value.fix
