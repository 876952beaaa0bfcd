"""What the shipped policies are worth, measured: many seeds, the same traffic for each variant.

Each claim is a line of the design. Variants of one seed share arrivals, lengths and faults, so that
their difference is the policies' and not the dice's; intervals are 95 % over the seeds: five here,
which makes them wider and the claims harder to meet, and twenty in ``make stories``.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.messages import Report, Summary
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import Replica, nanos
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.results import PHASES
from holdfast.sim.run import Interval
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

SEEDS = range(1, 21 if os.environ.get("HOLDFAST_STORIES") else 6)
Account = dict[str, Any]


class Uncontrolled(World):
    """Control hears nothing of the gateway: its own breakers are all that protects it."""

    def _do_tell_control(self, action: Report | Summary, now: int) -> None:
        """Lost."""


def account(
    setup: Experiment,
    seed: int,
    window_s: tuple[float, float] | None = None,
    world_type: type[World] = World,
) -> Account:
    """One run's figures; ``window_s`` where the phases are not those of the faults."""
    world = world_type(setup, seed)
    if window_s is not None:
        world.results.window = nanos(window_s[0]), nanos(window_s[1])
    return world.run().to_dict()


def over_seeds(figure: Callable[..., float], *variants: list[Account]) -> Interval:
    """A figure of each seed's runs, one per variant."""
    return Interval.of([figure(*runs) for runs in zip(*variants, strict=True)])


def told(interval: Interval) -> str:
    return f"{interval.mean:.4f} ({interval.low:.4f} to {interval.high:.4f})"


def replicas(slots: int) -> tuple[Replica, ...]:
    return tuple(Replica(f"r{i}", "m", zone=f"zone-{i % 2}", slots=slots) for i in range(8))


# --- the book's partial outage -------------------------------------------------------------------

THIRD_S = 150.0
SICK = ("r0", "r1", "r2", "r3")
TOKENS = 200
LASTS_S = 2.0  # a request: 200 tokens of 10 ms, whatever else is in the batch

# What a client library does by itself: try again at once, anywhere, until it works.
NAIVE = FlowConfig(
    lane=LaneConfig(
        routing="weighted",
        breaker=BreakerConfig(enabled=False),
        limit=LimitConfig(enabled=False),
    ),
    retry=RetryConfig(attempts=100, budget=False, backoff="none"),
)


def outage() -> Experiment:
    """Eight replicas of ten slots at 90 % load, half of them sick for the middle third.

    As in the book one call in fifty fails anyway, and a failing call takes its slot for as long as
    a good one: it is the work that is wasted, not only the attempt.
    """
    faults = [Fault(FaultKind.FLAKY, "*", 0, probability=0.02, tokens=TOKENS)]
    for sick in SICK:
        window = nanos(THIRD_S), nanos(2 * THIRD_S)
        faults.append(Fault(FaultKind.FLAKY, sick, *window, probability=1.0, tokens=TOKENS))
    constant = Lengths(TOKENS, law="constant")
    traffic = Workload(0.9 * 80 / LASTS_S, prompt=Lengths(10, law="constant"), output=constant)
    return Experiment(
        replicas(slots=10),
        duration_s=3 * THIRD_S,
        workloads=(("m", traffic),),
        engine=EngineParameters(1000.0 * LASTS_S / TOKENS, 0.0, 0.0, 0.0, batch_max=10),
        faults=FaultSchedule(faults),
    )


def test_a_partial_outage_wastes_a_tenth_of_the_calls_and_costs_no_goodput(spread: Any) -> None:
    shipped = outage()
    naive = replace(shipped, flow=NAIVE, canaries=False)
    window_s = THIRD_S, 2 * THIRD_S
    runs = spread(
        account, [(setup, seed, window_s) for setup in (shipped, naive) for seed in SEEDS]
    )
    ours, theirs = runs[: len(SEEDS)], runs[len(SEEDS) :]

    def wasted(run: Account) -> float:
        return float(run["phases"]["during"]["wasted_calls"])

    fewer = over_seeds(lambda our, their: wasted(their) / wasted(our), ours, theirs)
    assert fewer.low >= 10.0, f"{told(fewer)} times fewer calls wasted in the outage"

    def goodput(run: Account) -> float:
        return float(run["total"]["goodput"])

    lost = over_seeds(lambda our, their: goodput(their) - goodput(our), ours, theirs)
    assert lost.high <= 0.002, f"{told(lost)} of all requests lost to the policies"

    for phase in PHASES:
        load = over_seeds(lambda our, phase=phase: our["phases"][phase]["amplification"], ours)
        worst = max(our["phases"][phase]["amplification"] for our in ours)
        assert worst <= 1.2, f"{told(load)} attempts per request {phase} the outage, {worst} once"


def test_breakers_and_budget_alone_hold_the_waste_when_control_is_gone(spread: Any) -> None:
    # Naive retry keeps the sick half busy: forty calls fail every two seconds.
    setup, window_s = replace(outage(), canaries=False), (THIRD_S, 2 * THIRD_S)
    runs = spread(account, [(setup, seed, window_s, Uncontrolled) for seed in SEEDS[:5]])
    kept_busy = len(SICK) * 10 / LASTS_S * THIRD_S
    share = over_seeds(lambda run: run["phases"]["during"]["wasted_calls"] / kept_busy, runs)
    assert share.high <= 0.1, f"{told(share)} of the calls that the sick half could fail"
    worst = max(run["phases"][phase]["amplification"] for run in runs for phase in PHASES)
    assert worst <= 1.2, f"{worst} attempts per request"


# --- hedging -------------------------------------------------------------------------------------

RUN_S = 90.0
SLOTS = 16


def pauses(seed: int) -> FaultSchedule:
    """Each replica stops for a moment every twenty seconds or so.

    A process that is paged in, a neighbour on the same host, a kernel being compiled: half a second
    during which nothing comes out, over before any breaker or canary could know. Who arrives then
    waits for its end, one request in thirty, so this is what the p99 of a first token is made of;
    and another replica could have answered at once. It is the case for hedging.
    """
    rng = stream(seed, "pauses", "schedule")
    faults = []
    for replica in replicas(SLOTS):
        at = rng.expovariate(1.0 / 20.0)
        while at < RUN_S:
            until = at + rng.uniform(0.3, 1.0)
            faults.append(Fault(FaultKind.HANG, replica.id, nanos(at), nanos(until)))
            at = until + rng.expovariate(1.0 / 20.0)
    return FaultSchedule(faults)


def chat(rate: float, seed: int, *, hedge: bool) -> Experiment:
    """Chat traffic; 128 slots and 2.4 s an answer are full at some 52 requests a second."""
    traffic = Workload(rate, prompt=Lengths(500, cv=0.5), output=Lengths(150, cv=0.7))
    return Experiment(
        replicas(SLOTS),
        duration_s=RUN_S,
        workloads=(("m", traffic),),
        engine=EngineParameters(batch_max=SLOTS),
        flow=FlowConfig(hedge=HedgeConfig(enabled=hedge)),
        faults=pauses(seed),
    )


def plain_and_hedged(
    spread: Any, rate: float, seeds: range = SEEDS
) -> tuple[list[Account], list[Account]]:
    runs = spread(
        account,
        [(chat(rate, seed, hedge=hedge), seed) for hedge in (False, True) for seed in seeds],
    )
    return runs[: len(seeds)], runs[len(seeds) :]


def first_token_p99(run: Account) -> float:
    return float(run["total"]["first_token_s"]["p99"])


def test_hedging_halves_the_p99_of_the_first_token_where_capacity_is_spare(spread: Any) -> None:
    plain, hedged = plain_and_hedged(spread, rate=25.0)  # 47 % load
    before, after = over_seeds(first_token_p99, plain), over_seeds(first_token_p99, hedged)
    ratio = over_seeds(lambda a, b: first_token_p99(b) / first_token_p99(a), plain, hedged)
    assert ratio.high <= 0.5, f"p99 {told(before)} s, hedged {told(after)} s: x {told(ratio)}"
    load = over_seeds(lambda run: run["total"]["amplification"], hedged)
    assert load.high <= 1.06, f"{told(load)} attempts per request, and 1.05 is the cap"


def test_hedging_does_no_harm_at_ninety_percent_load(spread: Any) -> None:
    # The pauses take another 3 %. Of five seeds the p99 is known to 8 % only: its tail is long.
    plain, hedged = plain_and_hedged(spread, rate=46.0, seeds=range(1, 41))
    ratio = over_seeds(lambda a, b: first_token_p99(b) / first_token_p99(a), plain, hedged)
    assert ratio.high <= 1.05, f"p99 of the first token x {told(ratio)}"
    lost = over_seeds(lambda a, b: a["total"]["goodput"] - b["total"]["goodput"], plain, hedged)
    assert lost.high <= 0.001, f"{told(lost)} of the requests lost to hedging"
    load = over_seeds(lambda run: run["total"]["amplification"], hedged)
    assert load.high <= 1.01, f"{told(load)} attempts per request with nothing to spare"


# --- a slow fleet --------------------------------------------------------------------------------


def slow_fleet(rate: float) -> Experiment:
    """Everything takes three times as long for a third of the run, on every replica."""
    slow = Fault(FaultKind.SLOW, "*", nanos(RUN_S / 3), nanos(2 * RUN_S / 3), factor=3.0)
    return replace(chat(rate, 0, hedge=False), faults=FaultSchedule([slow]))


@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(15.0, id="nearly full while it is slow"),
        pytest.param(30.0, id="overloaded while it is slow"),
    ],
)
def test_a_fleet_that_is_slow_as_a_whole_loses_no_replica_and_no_request(
    spread: Any, rate: float
) -> None:
    # Slowed down, 128 slots take 18 requests a second. With 30, everybody waits in the queue and
    # first tokens take 12 s: long, but nobody is sick, and a retry would only make it longer.
    runs = spread(account, [(slow_fleet(rate), seed) for seed in SEEDS])
    slowed = over_seeds(lambda run: run["phases"]["during"]["first_token_s"]["p99"], runs)
    calm = over_seeds(lambda run: run["phases"]["before"]["first_token_s"]["p99"], runs)
    seen = f"first token p99 {told(calm)} s before, {told(slowed)} s while slow"
    assert slowed.low > 2.0 * calm.high, seen
    ejected = sum(run["ejected"] for run in runs)
    assert ejected == 0, f"{ejected} replicas ejected; {seen}"
    again = over_seeds(lambda run: run["total"]["amplification"], runs)
    assert again.mean == 1.0, f"{told(again)} attempts per request: some timed out; {seen}"
    served = over_seeds(lambda run: run["total"]["goodput"], runs)
    assert served.mean == 1.0, f"{told(served)} of the requests answered; {seen}"
