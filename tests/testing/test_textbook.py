"""The textbook models: to the digit where it printed digits, and to theory everywhere else."""

from dataclasses import replace
from math import fsum, sqrt

import pytest

from holdfast.core.plan.redundancy import availability
from holdfast.core.types import ConfigError
from holdfast.testing import textbook_tables
from holdfast.testing.textbook import (
    BREAKER,
    NAIVE,
    Hedging,
    OutageParams,
    OutagePolicy,
    PhaseCounts,
    RedundancyParams,
    run_outage,
    run_redundancy,
)
from holdfast.testing.textbook_tables import (
    HEDGED,
    POLICIES,
    render_exercises,
    render_tables,
    spread_over_seeds,
)

PRINTED = """\
Part A:  N+k redundancy for a fleet that needs N=8 healthy replicas
  redundancy | replicas | availability | SLO attainment
----------------------------------------------------------
         N+0 |        8 |      99.379% |        66.830%
         N+1 |        9 |      99.465% |        95.295%
         N+2 |       10 |      99.410% |        99.015%
         N+3 |       11 |      99.395% |        99.855%
         N+4 |       12 |      99.371% |        99.970%

Part B:  partial outage (half the fleet sick for the middle third)
          policy |  goodput | wasted GPU calls
------------------------------------------------
     naive retry |   84.9% |            58319
 circuit breaker |   84.4% |             5094"""


def test_the_printed_tables_come_out_byte_for_byte():
    assert render_tables() == PRINTED


@pytest.mark.parametrize(
    ("spares", "available", "slo"),
    [(0, 0.993785, 0.6683), (2, 0.99410125, 0.99015), (4, 0.9937125, 0.9997)],
)
def test_the_redundancy_model_matches_beyond_the_printed_digits(spares, available, slo):
    seen = run_redundancy(RedundancyParams(spares))
    assert (seen.availability, seen.slo) == (available, slo)


def test_a_fragile_fleet_reaches_three_nines_with_eight_spares():
    fragile = RedundancyParams(8, fail=0.01)
    assert run_redundancy(fragile).slo == 0.99945
    assert availability(8, 7, fragile.healthy_share) < 0.999
    assert availability(8, 8, fragile.healthy_share) == pytest.approx(0.999112, abs=5e-7)
    assert fragile.healthy_share == pytest.approx(100 / 123)
    assert fragile.served_share == pytest.approx(100 / 103)


@pytest.mark.parametrize("spares", range(5))
def test_mean_attainment_over_two_hundred_seeds_is_binomial(spares):
    params = RedundancyParams(spares)
    seen = spread_over_seeds(params, 200)
    assert seen.theory == availability(8, spares, 500 / 523)
    assert 0.0 < seen.deviation < 0.03
    assert abs(seen.mean - seen.theory) <= 4 * seen.deviation / sqrt(200)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    mean = fsum(values) / len(values)
    variance = fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, sqrt(variance / len(values))


@pytest.mark.parametrize("detect_ticks", [0, 3])
def test_jumping_and_ticking_are_one_process(detect_ticks):
    shaky = RedundancyParams(1, need=3, ticks=800, fail=0.03, detect_ticks=detect_ticks)
    ticked = [run_redundancy(replace(shaky, requests=1, seed=seed)) for seed in range(80)]
    jumped = [run_redundancy(replace(shaky, requests=0, seed=seed)) for seed in range(80)]
    for pick in (lambda run: run.slo, lambda run: run.availability):
        ticking, error = mean_and_error([pick(run) for run in ticked])
        jumping, other_error = mean_and_error([pick(run) for run in jumped])
        assert abs(ticking - jumping) <= 4 * sqrt(error**2 + other_error**2)
    assert jumping == pytest.approx(shaky.served_share, abs=0.02)


@pytest.mark.parametrize("requests", [0, 5])
def test_a_fleet_that_is_wholly_drained_serves_nobody(requests):
    hopeless = RedundancyParams(need=1, ticks=400, fail=0.9, recover=0.01, requests=requests)
    seen = run_redundancy(hopeless)
    assert 0.0 <= seen.slo < 0.1
    assert 0.0 <= seen.availability < 0.1


GOLDEN_OUTAGE = {  # policy: wasted, failed, dropped, (good, wasted) before, during and after
    "naive retry": (58319, 58319, 43412, (95976, 2028), (52276, 54356), (96335, 1935)),
    "circuit breaker": (5094, 5094, 44933, (95976, 2028), (52278, 1146), (94812, 1920)),
    "hedged": (166095, 58655, 134367, (57637, 48443), (41456, 65184), (54252, 52468)),
    "hedged, capped": (63504, 58427, 44550, (95973, 3927), (51141, 55497), (96334, 4080)),
    "spare slots + breaker": (8435, 5158, 45145, (95973, 3861), (52280, 1142), (94602, 3432)),
}


@pytest.fixture(scope="module")
def outages():
    return {policy.name: run_outage(policy) for policy in POLICIES if policy.name in GOLDEN_OUTAGE}


@pytest.mark.parametrize("name", GOLDEN_OUTAGE)
def test_each_policy_goes_through_the_outage_as_recorded(outages, name):
    seen = outages[name]
    wasted, failed, dropped, *phases = GOLDEN_OUTAGE[name]
    assert (seen.wasted, seen.failed, seen.dropped) == (wasted, failed, dropped)
    assert [(phase.good, phase.wasted) for phase in seen.phases] == phases
    assert seen.redundant == wasted - failed
    assert seen.goodput == sum(good for good, _ in phases) / 288_000


def test_every_request_is_answered_dropped_or_still_waiting(outages):
    for seen in outages.values():
        waiting = 288_000 - sum(phase.good for phase in seen.phases) - seen.dropped
        assert 0 <= waiting <= 4 * 72


def test_hedging_from_spare_slots_shortens_the_tail_and_nothing_else(outages):
    plain, spare = outages["naive retry"].before, outages["spare slots + breaker"].before
    assert [plain.latency_quantile(q) for q in (0.5, 0.999, 0.9999)] == [1, 2, 3]
    assert [spare.latency_quantile(q) for q in (0.5, 0.999, 0.9999)] == [1, 2, 2]
    assert plain.slower_than(2) == pytest.approx(0.02**2, rel=0.2)
    assert spare.slower_than(2) < plain.slower_than(2) / 4


def test_no_policy_beats_the_ceiling_by_more_than_luck(outages):
    params = OutageParams()
    assert params.ceiling() == pytest.approx(0.848186, abs=1e-6)
    assert params.ceiling(with_backlog=True) == pytest.approx(0.849186, abs=1e-6)
    assert replace(params, outage=False).ceiling() == 1.0
    assert max(seen.goodput for seen in outages.values()) < 0.849186 + 0.0005


def test_hedging_everything_tips_over_beyond_the_repelling_point():
    params = OutageParams()
    tipping = params.hedging_tipping_point()
    assert tipping == pytest.approx(6.66389, rel=1e-6)
    after = 72 - 0.98 * (80 - 2 * tipping) + 0.0004 * tipping
    assert after == pytest.approx(tipping)


def test_hedging_a_busy_fleet_needs_no_outage_to_fail():
    calm = OutageParams(outage=False, ticks=1500)
    assert run_outage(HEDGED, calm).goodput < 0.95
    assert run_outage(NAIVE, calm).goodput > 0.999


@pytest.mark.parametrize(
    ("cooldown", "goodput", "wasted"),
    [(1, 0.84925, 10373), (300, 0.83030, 4939)],
)
def test_the_cooldown_trades_waste_for_answers(cooldown, goodput, wasted):
    seen = run_outage(BREAKER, OutageParams(cooldown_ticks=cooldown))
    assert seen.wasted == wasted
    assert seen.goodput == pytest.approx(goodput, abs=5e-6)


def test_a_breaker_without_cooldown_changes_nothing():
    brief = OutageParams(ticks=600, cooldown_ticks=0)
    assert run_outage(BREAKER, brief) == run_outage(NAIVE, brief)


def test_at_seventy_percent_load_hedging_stays_down_after_the_outage():
    seen = run_outage(HEDGED, OutageParams(arrivals=56))
    assert seen.wasted == 120715
    assert seen.goodput == pytest.approx(0.7604, abs=5e-5)
    assert seen.before.goodput > 0.999
    assert seen.after.goodput < 0.75


def test_a_single_replica_has_nobody_to_hedge_with():
    alone = OutageParams(replicas=1, arrivals=12, ticks=300)
    assert run_outage(OutagePolicy("alone", hedging=Hedging.ALWAYS), alone).redundant == 0


def test_an_idle_phase_has_no_latency():
    idle = PhaseCounts(offered=1, failed=1, redundant=0, dropped=0, latency_ticks=())
    assert idle.latency_quantile(0.5) == 0
    assert idle.slower_than(1) == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spares", -1),
        ("need", 0),
        ("ticks", 0),
        ("fail", 0.0),
        ("recover", 1.0),
        ("requests", -1),
        ("detect_ticks", -1),
    ],
)
def test_an_impossible_fleet_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=rf"book\.{field}: is {value}; use"):
        RedundancyParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ticks", 0),
        ("replicas", 0),
        ("slots", 0),
        ("arrivals", 0),
        ("success", 1.0),
        ("smoothing", 0.0),
        ("trip", 1.5),
        ("cooldown_ticks", -1),
        ("backlog_ticks", -1),
        ("hedges_per_tick", -1),
    ],
)
def test_an_impossible_outage_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=rf"book\.{field}: is {value}; use"):
        OutageParams(**{field: value})


@pytest.fixture(scope="module")
def exercises():
    brief = {"fleet": RedundancyParams(ticks=1000), "outage": OutageParams(ticks=150)}
    return render_exercises(seeds=4, calm_seeds=2, **brief)


@pytest.mark.parametrize(
    "answer",
    [
        "a = 500/523 = 0.956023",
        "N+0 |  0.69782",
        "500/503 = 99.404%",
        "a = 100/123 = 0.813008",
        "N+8  |       16 | 0.999112",
        "Smallest k for 99.9%: 8 by the binomial",
        "x* = 6.664",
        "chance 6.05e-04",
        "Three nines (0.999): k = 2, 0.999820733, $2,920 a month.",
        "Four nines (0.9999): k = 3, 0.999994871, $4,380 a month.",
        "A standby region of 20 replicas: $29,200 a month.",
        "1 x 40  |     20 |    0.9995000 |   $29,200",
        "0.05: 5 and 9",
    ],
)
def test_the_exercises_are_answered(exercises, answer):
    assert answer in " ".join(exercises.split("\n")) or answer in exercises


def test_the_table_of_policies_shows_theory_beside_the_runs():
    results = {HEDGED: run_outage(HEDGED)}
    table = textbook_tables._policy_table(OutageParams(), results)
    for row in (
        "hedged        | 53.2% 166095 |  60.1%  48443 | 43.2%  65184 |  56.5%  52468",
        "retry         | 84.8%  58305 | 100.0%   1959 | 54.4%  54386 | 100.0%   1960",
        "ideal breaker | 84.8%   4985 | 100.0%   1959 | 54.4%   1066 | 100.0%   1960",
        "hedged, stuck | 51.4% 172082 |  55.5%  53341 | 43.0%  65360 |  55.5%  53381",
    ):
        assert row in table


def test_the_answers_fit_a_terminal(exercises):
    assert max(map(len, exercises.split("\n"))) <= 96
    assert not any(line != line.rstrip() for line in exercises.split("\n"))


def test_a_sweep_that_never_varies_has_no_measure_of_distance():
    assert "n/a" in "\n".join(textbook_tables._single_run(2, RedundancyParams(ticks=1, fail=1e-9)))


def test_an_answer_out_of_range_says_so():
    assert textbook_tables._first(iter(())) == "none here"


@pytest.mark.parametrize("arguments", [{"seeds": 1}, {"calm_seeds": 0}])
def test_a_mean_needs_runs(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        render_exercises(**arguments)
