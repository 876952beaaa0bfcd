from fractions import Fraction
from itertools import product
from math import comb, fsum, inf, isclose, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.plan.failure_rates import replica_availability
from holdfast.core.plan.redundancy import (
    HOURS_PER_MONTH,
    Redundancy,
    availability,
    cost,
    nines,
    replicas_by_mean,
    spares_for,
    spread,
    zone_availability,
)
from holdfast.core.types import ConfigError
from sampling import examples

GOLDENS = {
    "binomial 8+0": (availability(8, 0, 0.99), 0.9227446944),
    "binomial 8+1": (availability(8, 1, 0.99), 0.99656427),
    "binomial 8+2": (availability(8, 2, 0.99), 0.9998861509),
    "binomial 8+4": (availability(8, 4, 0.99), 0.9999999253),
    "binomial 20+0": (availability(20, 0, 0.995), 0.9046104802746177),
    "binomial 20+1": (availability(20, 1, 0.995), 0.9950715283020793),
    "binomial 20+2": (availability(20, 2, 0.995), 0.9998207333235212),
    "binomial 20+3": (availability(20, 3, 0.995), 0.999994870840974),
    "binomial 20+6": (availability(20, 6, 0.995), 0.9999999999527146),
    "three zones of 4": (zone_availability(8, 3, 4, 0.99, 0.999), 0.99976562),
    "four zones of 3": (zone_availability(8, 4, 3, 0.99, 0.999), 0.99998023),
    "one zone of 12": (zone_availability(8, 1, 12, 0.99, 0.999), 0.99899993),
    "three zones of 5": (zone_availability(8, 3, 5, 0.99, 0.999), 0.99999666),
    "three zones of 6": (zone_availability(8, 3, 6, 0.99, 0.999), 0.999997),
    "twelve taken as independent": (availability(8, 4, 0.99 * 0.999), 0.99999988),
    "correlation 0, k 2": (Redundancy(20, 0.995, correlation=0.0).availability(2), 0.99982073),
    "correlation 0, k 3": (Redundancy(20, 0.995, correlation=0.0).availability(3), 0.99999487),
    "correlation .01, k 3": (Redundancy(20, 0.995, correlation=0.01).availability(3), 0.99969935),
    "correlation .05, k 2": (Redundancy(20, 0.995, correlation=0.05).availability(2), 0.99113006),
    "correlation .05, k 3": (Redundancy(20, 0.995, correlation=0.05).availability(3), 0.99602385),
    "correlation .1, k 2": (Redundancy(20, 0.995, correlation=0.1).availability(2), 0.98709293),
    "correlation .1, k 3": (Redundancy(20, 0.995, correlation=0.1).availability(3), 0.99229279),
    "correlation .3, k 2": (Redundancy(20, 0.995, correlation=0.3).availability(2), 0.98638512),
    "correlation .3, k 3": (Redundancy(20, 0.995, correlation=0.3).availability(3), 0.98918682),
    "6.5 failures in 1000 days, 4 h": (replica_availability(24000 / 6.5, 0, 4), 0.998918),
    "6.5 failures in 1000 days, 48 h": (replica_availability(24000 / 6.5, 0, 48), 0.987167),
    "spot, 5 minutes to reload": (replica_availability(240, 0, 5), 0.979592),
    "spot, 2 minutes' notice": (replica_availability(240, 0, 3), 0.987654),
    "the book's replica": (replica_availability(500, 3, 20), 0.956022945),
    "the book's fragile replica": (replica_availability(100, 3, 20), 0.81300813),
    "k 2 per month": (cost(2, 2.0), 2920.0),
    "k 3 per month": (cost(3, 2.0), 4380.0),
    "k 3 in 30 days": (cost(3, 2.0, 720), 4320.0),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_closed_forms_give_the_published_values(name):
    value, expected = GOLDENS[name]
    assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("target", "correlation", "spares"),
    [
        (0.99, 0.0, 1),
        (0.999, 0.0, 2),
        (0.9999, 0.0, 3),
        (0.99999, 0.0, 3),
        (0.999, 0.01, 3),
        (0.999, 0.05, 5),
        (0.999, 0.1, 9),
        (0.9999, 0.01, 4),
        (0.9999, 0.05, 9),
        (0.9999, 0.1, 17),
    ],
)
def test_spares_for_twenty_replicas_match_the_published_table(target, correlation, spares):
    assert spares_for(target, 20, 0.995, correlation=correlation).spares == spares


@pytest.mark.parametrize(
    ("need", "a", "target", "spares"),
    [
        (20, 0.95, 0.999, 6),
        (20, 0.95, 0.9999, 7),
        (8, 240 / 245, 0.999, 2),
        (8, 240 / 243, 0.999, 2),
        (8, 100 / 123, 0.999, 8),
        (1, 1.0, 0.999999, 0),
    ],
)
def test_spares_for_other_fleets(need, a, target, spares):
    assert spares_for(target, need, a).spares == spares


@pytest.mark.parametrize(
    ("a", "replicas", "given"), [(0.995, 21, 0.99507), (0.95, 22, 0.905), (1.0, 20, 1.0)]
)
def test_sizing_by_the_mean_buys_too_little(a, replicas, given):
    assert replicas_by_mean(20, a) == replicas
    assert availability(20, replicas - 20, a) == pytest.approx(given, abs=5e-4)


def exact_shortfall(need: int, spares: int, share: Fraction) -> Fraction:
    up, down, n = share.numerator, share.denominator - share.numerator, need + spares
    below = sum(comb(n, j) * up**j * down ** (n - j) for j in range(need))
    return Fraction(below, share.denominator**n)


@pytest.mark.measured
@pytest.mark.parametrize(
    ("need", "spares", "a"),
    [(1, 0, 0.5), (500, 300, 0.6), (2000, 30, 0.99), (2000, 9, 0.9999), (4000, 60, 0.99)],
)
def test_the_tail_is_exact_at_any_size_and_any_depth(need, spares, a):
    exact = float(exact_shortfall(need, spares, Fraction(str(a))))
    assert isclose(Redundancy(need, a).shortfall(spares), exact, rel_tol=1e-11)


@settings(max_examples=examples(60))
@given(st.integers(1, 60), st.integers(0, 20), st.floats(0.01, 1.0))
def test_the_tail_equals_rational_arithmetic(need, spares, a):
    exact = float(exact_shortfall(need, spares, Fraction(a)))
    assert isclose(Redundancy(need, a).shortfall(spares), exact, rel_tol=1e-10, abs_tol=1e-300)


def beta_binomial_pmf(size: int, a: float, correlation: float) -> list[Fraction]:
    rho = Fraction(correlation)
    up, down = Fraction(a) * (1 - rho) / rho, (1 - Fraction(a)) * (1 - rho) / rho
    weights = []
    for j in range(size + 1):
        weight = Fraction(comb(size, j))
        for i in range(j):
            weight *= up + i
        for i in range(size - j):
            weight *= down + i
        weights.append(weight)
    total = sum(weights)
    return [weight / total for weight in weights]


def enumerated_shortfall(need, sizes, a, zone_a, correlation) -> float:
    """Every zone up or down, every number up in each: no convolution, no recurrence."""
    pmf = {
        size: beta_binomial_pmf(size, a, correlation)
        if correlation
        else [
            comb(size, j) * Fraction(a) ** j * (1 - Fraction(a)) ** (size - j)
            for j in range(size + 1)
        ]
        for size in set(sizes)
    }
    z = Fraction(zone_a)
    total = Fraction(0)
    for ups in product(*(range(-1, size + 1) for size in sizes)):  # -1 is a zone that is down
        if sum(max(0, up) for up in ups) < need:
            chance = Fraction(1)
            for up, size in zip(ups, sizes, strict=True):
                chance *= (1 - z) if up < 0 else z * pmf[size][up]
            total += chance
    return float(total)


@settings(max_examples=examples(30))
@given(
    need=st.integers(1, 6),
    spares=st.integers(0, 4),
    zones=st.integers(1, 4),
    a=st.sampled_from([0.5, 0.9, 0.995]),
    zone_a=st.sampled_from([0.5, 0.999, 1.0]),
    rho=st.sampled_from([0.0, 0.01, 0.5, 0.9]),
)
def test_zones_of_unequal_size_and_correlation_combine(*, need, spares, zones, a, zone_a, rho):
    fleet = Redundancy(need, a, zones, zone_a, rho)
    expected = enumerated_shortfall(need, spread(need + spares, zones), a, zone_a, rho)
    assert isclose(fleet.shortfall(spares), expected, rel_tol=1e-10, abs_tol=1e-300)


@pytest.mark.parametrize(("zones", "per_zone"), [(3, 4), (5, 3), (8, 40)])
def test_equal_zones_follow_the_mixture_over_zones_that_are_up(zones, per_zone):
    need, a, zone_a = 2 * per_zone, 0.97, 0.99
    mixture = fsum(
        comb(zones, u)
        * zone_a**u
        * (1 - zone_a) ** (zones - u)
        * availability(need, u * per_zone - need, a)
        for u in range(2, zones + 1)
    )
    assert zone_availability(need, zones, per_zone, a, zone_a) == pytest.approx(mixture, rel=1e-12)


@given(st.integers(0, 500), st.integers(1, 40))
def test_replicas_spread_evenly(replicas, zones):
    sizes = spread(replicas, zones)
    assert len(sizes) == zones
    assert sum(sizes) == replicas
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=examples(60))
@given(
    need=st.integers(1, 40),
    a=st.floats(0.6, 0.9999),
    target=st.sampled_from([0.9, 0.99, 0.9995]),
    zones=st.integers(1, 4),
    z=st.sampled_from([0.99, 1.0]),
    rho=st.sampled_from([0.0, 0.02, 0.2]),
)
def test_the_planned_k_is_the_smallest_that_reaches_it(*, need, a, target, zones, z, rho):
    try:
        plan = spares_for(target, need, a, zones=zones, zone_a=z, correlation=rho)
    except ConfigError:
        fleet = Redundancy(need, a, zones, z, rho)
        assert target > fleet.ceiling or fleet.availability(1000 + 2 * need) < target
        return
    fleet = Redundancy(need, a, zones, z, rho)
    assert plan.availability >= target
    assert plan.availability == fleet.availability(plan.spares)
    assert plan.replicas == need + plan.spares
    assert plan.zone_sizes == spread(plan.replicas, zones)
    assert plan.shortfall == fleet.shortfall(plan.spares)
    assert all(fleet.availability(k) < target for k in range(max(0, plan.spares - 3), plan.spares))


def test_another_replica_never_hurts():
    for fleet in (
        Redundancy(8, 0.9),
        Redundancy(8, 0.9, correlation=0.3),
        Redundancy(8, 0.9, 3, 0.99),
        Redundancy(8, 0.9, 3, 0.99, 0.1),
    ):
        shortfalls = [fleet.shortfall(k) for k in range(25)]
        assert shortfalls == sorted(shortfalls, reverse=True)


def test_perfect_replicas_fall_short_only_with_their_zone():
    assert Redundancy(8, 1.0).shortfall(0) == 0.0
    assert zone_availability(8, 1, 8, 1.0, 0.999) == pytest.approx(0.999)
    assert spares_for(0.999, 8, 1.0, zone_a=0.999).spares == 0
    two_or_three_up = 0.999**3 + 3 * 0.999**2 * 0.001
    assert zone_availability(8, 3, 4, 1.0, 0.999) == pytest.approx(two_or_three_up, rel=1e-12)


def test_too_few_replicas_are_never_enough():
    assert zone_availability(8, 2, 3, 0.9, 0.99) == 0.0


def test_one_zone_of_three_nines_cannot_give_four():
    with pytest.raises(ConfigError) as refused:
        spares_for(0.9999, 8, 0.99, zone_a=0.999)
    assert refused.value.field == "redundancy.target"
    assert "no more than 0.999 with any k" in str(refused.value)
    assert "more zones" in refused.value.fix


def test_a_target_out_of_reach_says_how_far_the_spares_got():
    with pytest.raises(ConfigError, match=r"10 spares give only 0\.99") as refused:
        spares_for(0.9999, 20, 0.995, correlation=0.1, limit=10)
    assert "correlation" in refused.value.fix
    assert spares_for(0.9999, 20, 0.995, correlation=0.1, limit=17).spares == 17


def test_nines_are_counted_from_the_shortfall():
    assert nines(0.001) == pytest.approx(3.0)
    assert nines(1.0) == 0.0
    assert nines(0.0) == inf
    assert nines(Redundancy(20, 0.995).shortfall(12)) > 20


def test_a_month_has_730_hours():
    assert HOURS_PER_MONTH * 12 == 8760
    assert cost(0, 2.0) == 0.0


REFUSED = {
    "need": lambda: availability(0, 1, 0.9),
    "spares": lambda: availability(1, -1, 0.9),
    "a": lambda: availability(1, 1, 1.1),
    "a ": lambda: availability(1, 1, nan),
    "zones": lambda: zone_availability(1, 0, 1, 0.9, 0.9),
    "per_zone": lambda: zone_availability(1, 1, 0, 0.9, 0.9),
    "zone_a": lambda: zone_availability(1, 1, 1, 0.9, 0.0),
    "correlation": lambda: Redundancy(1, 0.9, correlation=1.0),
    "common": lambda: Redundancy(1, 0.9, common=1.0),
    "target": lambda: spares_for(1.0, 1, 0.9),
    "limit": lambda: spares_for(0.9, 1, 0.9, limit=-1),
    "need ": lambda: replicas_by_mean(0, 0.9),
    "a  ": lambda: replicas_by_mean(1, 0.0),
    "spares ": lambda: cost(-1, 2.0),
    "cost_per_hour": lambda: cost(1, -2.0),
    "hours": lambda: cost(1, 2.0, -1),
    "shortfall": lambda: nines(1.5),
}


@pytest.mark.parametrize("field", REFUSED)
def test_an_impossible_argument_is_refused_by_name_and_with_a_fix(field):
    with pytest.raises(ConfigError) as refused:
        REFUSED[field]()
    assert refused.value.field == f"redundancy.{field.strip()}"
    assert refused.value.fix.startswith("use")
