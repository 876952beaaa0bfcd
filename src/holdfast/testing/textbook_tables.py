"""Renders the textbook's tables and the answers to its exercises as text.

Every figure is computed when asked for: by the models of ``textbook.py``, and beside it by theory.
``render_tables`` is the printed example, byte for byte; ``render_exercises`` is everything else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum, sqrt
from textwrap import fill

from holdfast.core.plan.redundancy import (
    Redundancy,
    availability,
    cost,
    nines,
    spares_for,
    zone_availability,
)
from holdfast.core.types import require
from holdfast.testing.textbook import (
    BREAKER,
    NAIVE,
    Hedging,
    OutageParams,
    OutagePolicy,
    OutageResult,
    RedundancyParams,
    run_outage,
    run_redundancy,
)

_WIDTH = 96  # columns of the exercises; the printed tables have their own
_SPARES = range(5)  # the printed sweep
_TARGET = 0.999  # of Exercise 23.7.2(a)
_FRAGILE = 0.01  # its chance of failure per tick

HEDGED = OutagePolicy("hedged", hedging=Hedging.ALWAYS)
SPARE_ONLY = OutagePolicy("hedged, spare slots", hedging=Hedging.SPARE)
POLICIES = (
    NAIVE,
    BREAKER,
    HEDGED,
    OutagePolicy("hedged + breaker", breaker=True, hedging=Hedging.ALWAYS),
    OutagePolicy("hedged, capped", hedging=Hedging.CAPPED),
    SPARE_ONLY,
    OutagePolicy("spare slots + breaker", breaker=True, hedging=Hedging.SPARE),
)


def render_tables() -> str:
    """Render both tables of Output 23.7.1, without a final newline."""
    return "\n".join([*_printed_redundancy(), "", *_printed_outage()])


def _printed_redundancy() -> Iterable[str]:
    need = RedundancyParams().need
    yield f"Part A:  N+k redundancy for a fleet that needs N={need} healthy replicas"
    yield f"{'redundancy':>12} | {'replicas':>8} | {'availability':>12} | {'SLO attainment':>14}"
    yield "-" * 58
    for k in _SPARES:
        params = RedundancyParams(k)
        seen = run_redundancy(params)
        shares = f"{seen.availability * 100:>11.3f}% | {seen.slo * 100:>13.3f}%"
        yield f"{f'N+{k}':>12} | {params.replicas:>8} | {shares}"


def _printed_outage() -> Iterable[str]:
    yield "Part B:  partial outage (half the fleet sick for the middle third)"
    yield f"{'policy':>16} | {'goodput':>8} | {'wasted GPU calls':>16}"
    yield "-" * 48
    for policy in (NAIVE, BREAKER):
        seen = run_outage(policy)
        # One column narrower than its heading: so it was printed.
        yield f"{policy.name:>16} | {seen.goodput * 100:>6.1f}% | {seen.wasted:>16}"


def render_exercises(
    *,
    seeds: int = 200,
    calm_seeds: int = 20,
    fleet: RedundancyParams | None = None,
    outage: OutageParams | None = None,
) -> str:
    """Render all sections of ``exercise_sections`` as one text, without a final newline."""
    return "\n\n\n".join(
        exercise_sections(seeds=seeds, calm_seeds=calm_seeds, fleet=fleet, outage=outage)
    )


def exercise_sections(
    *,
    seeds: int = 200,
    calm_seeds: int = 20,
    fleet: RedundancyParams | None = None,
    outage: OutageParams | None = None,
) -> Iterator[str]:
    """Answers to Exercises 23.7.2 and 23.7.3, and how far one printed run may stray.

    One section at a time, because together they take half a minute. ``seeds`` runs stand behind
    every mean; ``calm_seeds`` runs without an outage show what hedging does on its own. Another
    ``fleet`` or ``outage`` than the printed ones may be asked about.
    """
    require(seeds >= 2, "book.seeds", f"is {seeds}", "use 2 or more: one run has no spread")
    require(calm_seeds >= 1, "book.calm_seeds", f"is {calm_seeds}", "use 1 or more")
    fleet = fleet or RedundancyParams()
    for blocks in (
        _single_run(seeds, fleet),
        _exercise_spares(seeds, replace(fleet, fail=_FRAGILE)),
        _exercise_hedging(calm_seeds, outage or OutageParams()),
        _exercise_nines(seeds, fleet),
    ):
        yield "\n\n".join(blocks)


@dataclass(slots=True, frozen=True)
class Spread:
    """How SLO attainment varies over seeds, with the binomial estimate beside it."""

    spares: int
    theory: float
    mean: float
    deviation: float  # of a single run
    reached: float  # share of the seeds at or above the target


def spread_over_seeds(params: RedundancyParams, seeds: int, target: float = _TARGET) -> Spread:
    """Run the redundancy model by jumps once per seed."""
    runs = [run_redundancy(replace(params, requests=0, seed=seed)).slo for seed in range(seeds)]
    mean = fsum(runs) / seeds
    variance = fsum((slo - mean) ** 2 for slo in runs) / (seeds - 1)
    return Spread(
        spares=params.spares,
        theory=availability(params.need, params.spares, params.healthy_share),
        mean=mean,
        deviation=sqrt(variance),
        reached=sum(slo >= target for slo in runs) / seeds,
    )


def _single_run(seeds: int, base: RedundancyParams) -> Iterable[str]:
    up = round(1 / base.fail)
    cycle = up + base.detect_ticks + round(1 / base.recover)
    yield _heading("The printed run and the binomial")
    yield _text(
        f"A replica is healthy for {up} ticks on average, ill and unnoticed for "
        f"{base.detect_ticks}, drained for {1 / base.recover:.0f}. So a = {up}/{cycle} = "
        f"{base.healthy_share:.6f}, and since replicas fail independently the number healthy is "
        f"Binomial(N+k, a) in the long run."
    )
    rows = []
    for k in _SPARES:
        seen = spread_over_seeds(replace(base, spares=k), seeds)
        printed = run_redundancy(replace(base, spares=k)).slo
        gap = printed - seen.theory
        off = f"{gap / seen.deviation:+.1f}" if seen.deviation else "n/a"
        figures = (seen.theory, seen.mean, seen.deviation, printed)
        rows.append([f"N+{k}", *(f"{figure:.5f}" for figure in figures), off])
    names = ["", "binomial", f"mean of {seeds}", "sd of a run", "printed run", "off by (sd)"]
    yield _table(names, rows)
    yield _text(
        f"The formula holds in expectation. One run of {base.ticks:,} ticks sees some "
        f"{base.ticks / cycle:.0f} failures per replica, so a single seed strays by the deviation "
        "shown, and the small shortfalls at three and more spares rest on a handful of failures. "
        f"Availability has no slope in k: its expectation is {up}/{up + base.detect_ticks} = "
        f"{base.served_share:.3%} in every row, and what the printed column does around it is "
        "noise. With a = 0.99, as in the worked formula, N+0 would give "
        f"{availability(base.need, 0, 0.99):.5f}: that is another fleet than the simulated one."
    )


def _exercise_spares(seeds: int, base: RedundancyParams) -> Iterable[str]:
    yield _heading(f"Exercise 23.7.2(a): fragile replicas, p_fail = {base.fail}")
    up = round(1 / base.fail)
    cycle = up + base.detect_ticks + round(1 / base.recover)
    by_theory = spares_for(_TARGET, base.need, base.healthy_share).spares
    spares = range(max(0, by_theory - 3), by_theory + 3)
    spreads = [spread_over_seeds(replace(base, spares=k), seeds) for k in spares]
    single = [run_redundancy(replace(base, spares=k)) for k in spares]
    yield _text(
        f"Now a = {up}/{cycle} = {base.healthy_share:.6f}, and {up}/{up + base.detect_ticks} = "
        f"{base.served_share:.3%} of requests meet a healthy replica (simulated: "
        f"{min(run.availability for run in single):.3%} to "
        f"{max(run.availability for run in single):.3%})."
    )
    names = ["", "replicas", "binomial", f"mean of {seeds}", "seed 0", f"seeds >= {_TARGET:.1%}"]
    rows = [
        [
            f"N+{seen.spares}",
            f"{base.need + seen.spares}",
            *(f"{figure:.6f}" for figure in (seen.theory, seen.mean, run.slo)),
            f"{seen.reached:.1%}",
        ]
        for seen, run in zip(spreads, single, strict=True)
    ]
    yield _table(names, rows)
    by_mean = _first(s.spares for s in spreads if s.mean >= _TARGET)
    by_run = _first(k for k, run in zip(spares, single, strict=True) if run.slo >= _TARGET)
    windows = [f"{s.reached:.1%} with k = {s.spares}" for s in spreads if s.spares >= by_theory]
    yield _text(
        f"Smallest k for {_TARGET:.1%}: {by_theory} by the binomial, {by_mean} by the mean over "
        f"seeds, {by_run} by seed 0. That is a promise about the long run. Of windows of "
        f"{base.ticks:,} ticks the target is met by {', '.join(windows)}: where the objective is "
        "judged per window, buy one or two spares more than the formula asks for."
    )


def _exercise_hedging(calm_seeds: int, params: OutageParams) -> Iterable[str]:
    results = {policy: run_outage(policy, params) for policy in POLICIES}
    yield _heading("Exercise 23.7.2(b): hedging through the outage")
    yield _text(
        "A request that waited a tick or more is sent to two replicas at once; either answer will "
        "do. Oldest requests go first. Wasted calls are those that failed and those whose twin "
        f"answered too. 'capped' allows {params.hedges_per_tick} hedges a tick, 'spare "
        "slots' only those that displace nobody. Each cell gives goodput and wasted calls; theory "
        "stands below the second line, 'stuck' meaning that hedges fill every slot."
    )
    yield _policy_table(params, results)
    yield _why_hedging_hurts(params, calm_seeds)
    yield from _loads(params)
    yield _why_hedging_helps(params, results)
    yield from _breaker_price(params, results)


def _policy_table(params: OutageParams, results: dict[OutagePolicy, OutageResult]) -> str:
    names = ["policy", "whole run", "before", "outage", "after", "dropped"]
    rows = [
        [
            policy.name,
            f"{seen.goodput:.1%} {seen.wasted:>6}",
            *(f"{phase.goodput:.1%} {phase.wasted:>6}" for phase in seen.phases),
            f"{seen.dropped:,}",
        ]
        for policy, seen in results.items()
    ]
    theory = [_theory(name, params) for name in ("retry", "ideal breaker", "hedged, stuck")]
    return _table(names, rows, theory)


def _theory(name: str, params: OutageParams) -> list[str]:
    """Expected goodput and waste per phase, from the slots and the chances alone."""
    thirds = [params.ticks // 3, 2 * params.ticks // 3 - params.ticks // 3]
    thirds.append(params.ticks - sum(thirds))
    fails = 1.0 - params.success
    well = (params.replicas - params.replicas // 2) / params.replicas
    if name == "hedged, stuck":  # every slot carries half of a pair
        pairs = params.capacity / 2
        both_well = well * (params.replicas * well - 1) / (params.replicas - 1)
        one_well = 2 * well * (1 - well) * params.replicas / (params.replicas - 1)
        good = [pairs * (1 - fails**2)] * 3
        good[1] = pairs * (both_well * (1 - fails**2) + one_well * params.success)
        waste = [params.capacity - answered for answered in good]
    else:
        good = [min(params.arrivals, params.success * params.capacity)] * 3
        good[1] = min(params.arrivals, params.success * params.capacity * well)
        waste = [answered * fails / params.success for answered in good]
        if name == "retry":  # the sick half takes its share of the slots, for nothing
            waste[1] = params.capacity - good[1]
    cells = [
        f"{g / params.arrivals:.1%} {w * ticks:>6.0f}"
        for g, w, ticks in zip(good, waste, thirds, strict=True)
    ]
    served = fsum(g * ticks for g, ticks in zip(good, thirds, strict=True))
    wasted = fsum(w * ticks for w, ticks in zip(waste, thirds, strict=True))
    whole = f"{served / (params.arrivals * params.ticks):.1%} {wasted:>6.0f}"
    return [name, whole, *cells, ""]


def _why_hedging_hurts(params: OutageParams, calm_seeds: int) -> str:
    tipping = params.hedging_tipping_point()
    enough = ceil(tipping)
    chance = availability(enough, params.arrivals - enough, 1.0 - params.success)
    calm = [
        run_outage(HEDGED, replace(params, outage=False, seed=seed)).goodput
        for seed in range(calm_seeds)
    ]
    fails = 1.0 - params.success
    stuck = sum(goodput < 0.99 for goodput in calm)
    return _text(
        "Why it hurts under load. With x aged requests in a tick the next one has x' = "
        f"{params.arrivals} - {params.success}({params.capacity} - 2x) + {fails**2:.4f}x of them: "
        f"slope {1 + params.success**2:.4f}, so the fixed point x* = {tipping:.3f} "
        f"repels. Above it hedges take the slots of fresh requests, which then age and are hedged "
        f"too. At {params.arrivals / params.capacity:.0%} load it takes no outage: chance alone "
        f"fails {enough} or more of {params.arrivals} calls in a tick with chance {chance:.2e}, "
        f"once in {1 / chance:,.0f} ticks. Without any outage {stuck} of {calm_seeds} seeds got "
        f"stuck (goodput {min(calm):.0%} to {max(calm):.0%}). The same at other loads:"
    )


def _loads(params: OutageParams) -> Iterable[str]:
    rows = []
    for arrivals in (params.arrivals, 56, 40):
        loaded = replace(params, arrivals=arrivals)
        for policy in (NAIVE, BREAKER, HEDGED, SPARE_ONLY):
            seen = run_outage(policy, loaded)
            rows.append(
                [
                    policy.name,
                    f"{arrivals / params.capacity:.0%}",
                    f"{loaded.hedging_tipping_point():.1f}",
                    f"{seen.goodput:.2%}",
                    f"{loaded.ceiling(with_backlog=True):.2%}",
                    f"{seen.wasted}",
                    f"{seen.after.goodput:.1%}",
                ]
            )
    names = ["policy", "load", "x*", "goodput", "ceiling", "wasted", "goodput after"]
    yield _table(names, rows)
    yield _text(
        "The ceiling is what the well half may expect to answer, plus one full backlog; luck adds "
        "a hundredth. At half load two copies of everything fit and the fleet comes back by "
        "itself; above it the outage's backlog is past x* and hedging keeps the fleet down after "
        "its cause is gone."
    )


def _why_hedging_helps(params: OutageParams, results: dict[OutagePolicy, OutageResult]) -> str:
    fails = 1.0 - params.success
    plain, hedged = results[NAIVE].before, results[SPARE_ONLY].before
    return _text(
        "Why it helps with room to spare. Before the outage a retry is late by one tick more for "
        f"each failure: {plain.slower_than(2):.6f} of requests take more than two ticks "
        f"(theory {fails**2:.6f}), and p99.99 is {plain.latency_quantile(0.9999)} ticks. Two "
        f"copies must both fail: with spare slots only it is {hedged.slower_than(2):.6f} (theory "
        f"{fails**3:.6f} if every aged request found room) and p99.99 is "
        f"{hedged.latency_quantile(0.9999)}; p99.9 stays {hedged.latency_quantile(0.999)}, one "
        "failure being commoner than that. In the outage there is no room, hence no hedge, and "
        f"goodput there is {results[SPARE_ONLY].during.goodput:.1%} against "
        f"{results[NAIVE].during.goodput:.1%}: hedge out of spare capacity or not at all."
    )


def _breaker_price(
    params: OutageParams, results: dict[OutagePolicy, OutageResult]
) -> Iterable[str]:
    naive, breaker = results[NAIVE], results[BREAKER]
    background = naive.during.good * (1.0 - params.success) / params.success
    over = (naive.during.wasted - background) / (breaker.during.wasted - background)
    lost = naive.after.good - breaker.after.good
    yield _text(
        f"What the breaker saves and costs. Wasted calls fall {naive.wasted / breaker.wasted:.1f} "
        f"times over the whole run, {naive.during.wasted / breaker.during.wasted:.0f} times "
        f"inside the outage, {over:.0f} times there without the {background:,.0f} calls that fail "
        f"anyway at {1 - params.success:.0%}. The price is {lost:,} answers after the outage, "
        f"while breakers stay open for up to {params.cooldown_ticks} ticks on replicas that are "
        "well again. Other cooldowns:"
    )
    cooldowns = (1, 2, 5, 10, 20, 30, 60, 120, 300)
    runs = [run_outage(BREAKER, replace(params, cooldown_ticks=ticks)) for ticks in cooldowns]
    rows = [
        ["goodput", *(f"{seen.goodput:.2%}" for seen in runs)],
        ["wasted", *(f"{seen.wasted}" for seen in runs)],
    ]
    yield _table(["cooldown", *(f"{ticks}" for ticks in cooldowns)], rows)
    shorter = runs[cooldowns.index(20)]
    yield _text(
        f"Against {params.cooldown_ticks} ticks, 20 give back "
        f"{(shorter.goodput - breaker.goodput) * 100:.2f} points of goodput for "
        f"{shorter.wasted / breaker.wasted - 1:.1%} more waste."
    )


def _exercise_nines(seeds: int, base: RedundancyParams) -> Iterable[str]:
    need, a, price = 20, 0.995, 2.0
    yield _heading(f"Exercise 23.7.3: the price of a nine, N = {need}, a = {a}")
    down = base.detect_ticks + 1 / base.recover
    like = replace(base, need=need, fail=(1 - a) / (a * down))  # the same model with this a
    fleet = Redundancy(need, a)
    rows = []
    for k in _SPARES:
        simulated = spread_over_seeds(replace(like, spares=k), seeds).mean
        shortfall = fleet.shortfall(k)
        figures = [f"{1 - shortfall:.9f}", f"{nines(shortfall):.2f}", f"{simulated:.6f}"]
        rows.append([f"N+{k}", *figures, f"${cost(k, price):,.0f}"])
    names = ["", "A(N,k)", "nines", f"mean of {seeds} seeds", f"spares per month at ${price:.0f}/h"]
    yield _table(names, rows)
    answers = []
    for words, target in (("Three", 0.999), ("Four", 0.9999)):
        plan = spares_for(target, need, a)
        answers.append(
            f"{words} nines ({target}): k = {plan.spares}, {plan.availability:.9f}, "
            f"${cost(plan.spares, price):,.0f} a month."
        )
    standby = cost(need, price)
    answers.append(f"A standby region of {need} replicas: ${standby:,.0f} a month.")
    yield "\n".join(answers)
    yield from _regions(need, a, price)


def _regions(need: int, a: float, price: float) -> Iterable[str]:
    region_a = 0.9995  # an assumption: about four hours a year without the region
    yield _text(
        f"No k helps against what takes all replicas of a region at once. Suppose the region "
        f"itself is up {region_a:.2%} of the time:"
    )
    rows = []
    for regions, per_region in ((1, need + 3), (1, 2 * need), (2, need), (2, need + 3)):
        total = regions * per_region
        given = zone_availability(need, regions, per_region, a, region_a)
        monthly = f"${cost(total - need, price):,.0f}"
        rows.append([f"{regions} x {per_region}", f"{total - need}", f"{given:.7f}", monthly])
    yield _table(["regions", "spares", "availability", "per month"], rows)
    together = [
        f"{shared}: {spares_for(0.999, need, a, correlation=shared).spares} and "
        f"{spares_for(0.9999, need, a, correlation=shared).spares}"
        for shared in (0.01, 0.05, 0.1)
    ]
    yield _text(
        "The same forty replicas are worth more apart than together: a standby region is the "
        "cheaper nine as soon as the target lies above what one region can promise. A larger k "
        "also does not cover a bad model build, a poisoned config, a lost control plane or a "
        "surge of load, because these reach every replica alike. Failures that are only partly "
        "shared need more spares than the formula says; for three and four nines, by correlation "
        f"of two replicas: {'; '.join(together)}."
    )


def _first(values: Iterable[int]) -> str:
    return str(next(iter(values), "none here"))


def _heading(title: str) -> str:
    return f"{title}\n{'=' * len(title)}"


def _text(paragraph: str) -> str:
    return fill(paragraph, _WIDTH, break_on_hyphens=False)


def _table(names: Sequence[str], *groups: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, a rule before each group of rows."""
    rows = [names, *(row for group in groups for row in group)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = cells
        padded = [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]
        return "  " + " | ".join(padded).rstrip()

    rule = "  " + "-+-".join("-" * width for width in widths)
    lines = [line(names)]
    for group in groups:
        lines += [rule, *map(line, group)]
    return "\n".join(lines)


__all__ = [
    "HEDGED",
    "POLICIES",
    "SPARE_ONLY",
    "Spread",
    "exercise_sections",
    "render_exercises",
    "render_tables",
    "spread_over_seeds",
]
