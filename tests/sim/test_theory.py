"""The simulator against closed forms: whatever it predicts, it must first predict what is known.

Every model drives the real ``World``, or the real ``Flow`` where each copy of a request needs a
service time of its own. The flow decides, the engine serves; only arrivals, service times and
policies' settings are chosen so that a textbook has the answer.

Means of waiting times converge slowly: four digits of M/M/64 take ten million requests. So queues
that have an exact recursion are checked in two links. The world must give *every request* the very
wait, to the nanosecond, that the recursion gives it for the same arrivals and lengths; and the
recursion, fed with millions of draws of the same laws, must agree with the closed form.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush, heapreplace
from itertools import count, takewhile
from math import erfc, exp, log, sqrt
from random import Random
from typing import Any

import pytest

from holdfast.core.messages import (
    Abort,
    Arrived,
    Dispatch,
    Ended,
    Finish,
    FirstContent,
    FleetView,
    FlowEvent,
    ReplicaView,
    Tick,
    ViewChanged,
)
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import MILLISECOND, SECOND, Replica, Request, State, nanos
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream, streams_of
from holdfast.sim.request_record import EngineRun
from holdfast.sim.results import PhaseAccount, Slo
from holdfast.sim.workload import Lengths, Workload, arrivals
from holdfast.sim.world import World

# --- queues --------------------------------------------------------------------------------------

TOKENS = 1000.0  # mean length: whole tokens are a fine enough grain for a continuous law
TOKEN_NS = 2_000
SERVICE_S = TOKENS * TOKEN_NS / SECOND
LOAD = 0.8
CONSTANT = Lengths(TOKENS, law="constant")
EXPONENTIAL = Lengths(TOKENS, law="exponential", maximum=10**6)
HYPEREXPONENTIAL = Lengths(TOKENS, cv=2.0, law="hyperexponential", maximum=10**6)

# One request at a time, one token a step: the number of tokens is the service time.
FIFO = EngineParameters(TOKEN_NS / 1e6, 0.0, 0.0, 0.0, batch_max=1, kv_tokens_max=10**9)
# A step takes as long as there are requests, and gives each of them a token.
SHARED = EngineParameters(0.0, TOKEN_NS / 1e6, 0.0, 0.0, batch_max=10**6, kv_tokens_max=10**9)

# Nobody is refused, given up on or sent twice.
PATIENT = LaneConfig(
    limit=LimitConfig(enabled=False),
    breaker=BreakerConfig(enabled=False),
    queue=QueueConfig(
        depth_max=10_000, tokens_max=10**12, wait_interactive_s=80_000.0, wait_batch_s=80_000.0
    ),
    deadlines=DeadlineConfig(
        first_token_s=80_000.0,
        between_tokens_s=80_000.0,
        request_s=80_000.0,
        first_token_samples_min=10**9,
        between_tokens_samples_min=10**9,
    ),
)


def queueing(
    servers: int,
    lengths: Lengths,
    requests: int,
    *,
    slots: int = 0,
    law: EngineParameters = FIFO,
    lane: LaneConfig = PATIENT,
) -> Experiment:
    rate = LOAD * servers / SERVICE_S
    return Experiment(
        tuple(Replica(f"r{i}", "m", slots=slots) for i in range(servers)),
        duration_s=requests / rate,
        workloads=(("m", Workload(rate=rate, prompt=Lengths(1, law="constant"), output=lengths)),),
        engine=law,
        flow=FlowConfig(lane=lane),
        canaries=False,
        poll_s=0.0,
    )


class Diary(World):
    """Keeps (arrived, first token, done) of each request by its number."""

    def __init__(self, setup: Experiment, seed: int) -> None:
        super().__init__(setup, seed)
        self.times: dict[Any, tuple[int, int, int]] = {}

    def _do_finish(self, action: Finish, now: int) -> None:
        record = self.records[action.request_id]
        self.times[action.request_id] = record.request.arrived, record.first_at, now
        super()._do_finish(action, now)


def lived(setup: Experiment, seed: int) -> list[tuple[int, int, int]]:
    """Everybody's times in order of arrival; nobody may be lost and nobody served twice."""
    world = Diary(setup, seed)
    total = world.run().total()
    assert total.good == total.offered == total.attempts
    return [world.times[number] for number in range(len(world.times))]


def jobs(setup: Experiment, seed: int) -> Iterator[tuple[int, int]]:
    """The same arrivals and service times, for a recursion."""
    ((model, workload),) = setup.workloads
    drawn = takewhile(
        lambda drawn: drawn[0].arrived <= nanos(setup.duration_s), arrivals(workload, model, seed)
    )
    for request, tokens in drawn:
        yield request.arrived, tokens * TOKEN_NS


def first_come(servers: int, work: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Waits in a first-come queue, exactly: each job takes the server that is free first."""
    free = [0] * servers
    for at, service in work:
        start = max(at, free[0])
        heapreplace(free, start + service)
        yield start - at


def shared(work: Iterable[tuple[int, int]]) -> list[float]:
    """Whole times under processor sharing: all inside have had the same service since they came."""
    inside: list[tuple[float, int, int]] = []
    now = served = 0.0
    times: dict[int, float] = {}
    for number, (at, service) in enumerate([*work, (1 << 62, 0)]):
        while inside and now + (inside[0][0] - served) * len(inside) <= at:
            now += (inside[0][0] - served) * len(inside)
            served, came, who = heappop(inside)
            times[who] = now - came
        served += (at - now) / len(inside) if inside else 0.0
        now = at
        heappush(inside, (served + service, at, number))
    return [times[number] for number in range(len(times))]


def waits_differ(setup: Experiment, servers: int, seed: int) -> tuple[int, int]:
    """How many of how many requests did not wait exactly as the recursion says."""
    expected = list(first_come(servers, jobs(setup, seed)))
    seen = [first - arrived - TOKEN_NS for arrived, first, _ in lived(setup, seed)]
    return sum(a != b for a, b in zip(seen, expected, strict=True)), len(seen)


def long_run(servers: int, lengths: Lengths, requests: int, seed: int) -> tuple[float, float]:
    """Mean wait in service times and share that waits, by the recursion over many draws."""
    draw = lengths.sampler(stream(seed, "theory", "output"))
    gap = stream(seed, "theory", "arrival").expovariate
    rate = LOAD * servers / TOKENS
    free = [0.0] * servers
    now = total = 0.0
    waited = 0
    warm_up = requests // 50
    for number in range(-warm_up, requests):
        now += gap(rate)
        start = free[0]
        if start > now:
            heapreplace(free, start + draw())
            if number >= 0:
                waited += 1
                total += start - now
        else:
            heapreplace(free, now + draw())
    return total / requests / TOKENS, waited / requests


def test_M_M_64_waits_as_Erlang_says(spread: Any) -> None:
    # The flow's own queue before 64 replicas of one slot each. In four million draws the wait has
    # a standard error of 2.7 % and the share that waits one of 1.8 %.
    setup = queueing(64, EXPONENTIAL, 12_000, slots=1)
    ((differ, requests),) = spread(waits_differ, [(setup, 64, 1)])
    assert differ == 0, f"{differ} of {requests} requests waited otherwise than first come says"
    runs = spread(long_run, [(64, EXPONENTIAL, 1_000_000, seed) for seed in (1, 2, 3, 4)])
    wait, share = (sum(figures) / len(runs) for figures in zip(*runs, strict=True))
    assert wait == pytest.approx(0.00437940, rel=0.04)
    assert share == pytest.approx(0.05605638, rel=0.04)


def test_M_D_1_waits_two_service_times(spread: Any) -> None:
    # The engine's own queue before one place in the batch.
    ((differ, requests),) = spread(waits_differ, [(queueing(1, CONSTANT, 12_000), 1, 1)])
    assert differ == 0, f"{differ} of {requests} requests waited otherwise than first come says"
    ((wait, share),) = spread(long_run, [(1, CONSTANT, 1_000_000, 1)])
    assert wait == pytest.approx(2.0, rel=0.03)
    assert share == pytest.approx(LOAD, rel=0.01)


def test_M_G_1_with_four_times_the_variance_waits_ten_service_times(spread: Any) -> None:
    # The flow's queue again, before one slot. Standard error of two million draws: 1.3 %.
    setup = queueing(1, HYPEREXPONENTIAL, 12_000, slots=1)
    ((differ, requests),) = spread(waits_differ, [(setup, 1, 1)])
    assert differ == 0, f"{differ} of {requests} requests waited otherwise than first come says"
    runs = spread(long_run, [(1, HYPEREXPONENTIAL, 1_000_000, seed) for seed in (1, 2)])
    wait = sum(wait for wait, _ in runs) / len(runs)
    assert wait == pytest.approx(10.0, rel=0.04)


def sharing(lengths: Lengths, requests: int, long_requests: int) -> tuple[float, float, float]:
    """Worst and mean distance from exact sharing, and its own long-run mean; in service times."""
    setup = queueing(1, lengths, requests, law=SHARED)
    service = TOKENS * TOKEN_NS
    exact = shared(jobs(setup, 1))
    seen = [done - arrived for arrived, _, done in lived(setup, 1)]
    apart = [abs(a - b) / service for a, b in zip(seen, exact, strict=True)]
    many = shared(jobs(queueing(1, lengths, long_requests), 2))
    steady = many[len(many) // 50 :]
    return max(apart), sum(apart) / len(apart), sum(steady) / len(steady) / service


@pytest.mark.parametrize("lengths", [CONSTANT, EXPONENTIAL], ids=lambda lengths: lengths.law)
def test_processor_sharing_takes_five_service_times_whatever_the_law(
    spread: Any, lengths: Lengths
) -> None:
    # A batch without a floor to its steps shares one processor, up to the grain of a token: with
    # five inside, an arrival waits up to five thousandths of a service time for its first step.
    ((worst, mean, steady),) = spread(sharing, [(lengths, 10_000, 300_000)])
    assert worst < 0.1, f"some request is {worst:.4f} service times off exact sharing"
    assert mean < 0.004, f"requests are {mean:.5f} service times off exact sharing on average"
    assert steady == pytest.approx(5.0, rel=0.04)


def test_power_of_two_choices_takes_two_service_times_where_one_choice_takes_five(
    spread: Any,
) -> None:
    # The fluid limit is for endless replicas; 64 of them take one or two per cent longer.
    setup = queueing(
        64, EXPONENTIAL, 70_000, lane=replace(PATIENT, routing_options={"by": "inflight"})
    )
    (times,) = spread(lived, [(setup, 1)])
    steady = times[len(times) // 20 :]
    mean = sum(done - arrived for arrived, _, done in steady) / len(steady) / (TOKENS * TOKEN_NS)
    assert mean == pytest.approx(1.947363, rel=0.04)
    assert mean < 5.0 / 2  # M/M/1, what one random choice gives


# --- hedging -------------------------------------------------------------------------------------

MEAN_S = 10.0  # of a copy's service: the flow's timers have a grain of 10 ms, a thousandth of it
RACES_PER_S = 300.0
SKIPPED = 2_000  # requests before the flow has learned enough to hedge


def racing(law: str, delay: float, requests: int, seed: int) -> tuple[list[float], float]:
    """Sorted times of requests whose copies draw their own, and copies per request.

    The flow decides; every copy runs alone, so there is no queue and no engine to model.
    """
    hedge = HedgeConfig(
        enabled=delay > 0.0,
        quantile=0.5,  # of either law below the floor, so the floor is the delay
        delay_floor_s=max(delay * MEAN_S, 1.0),
        share_max=0.5,
        utilisation_max=1.0,
    )
    flow = Flow(FlowConfig(lane=PATIENT, hedge=hedge), streams_of(seed, "flow"))
    replicas = [Replica(f"r{i}", "m", slots=100_000) for i in range(4)]
    view = FleetView(1, tuple(ReplicaView(each, State.READY, 1.0) for each in replicas))
    flow.handle(ViewChanged(view), 0)
    rng = Random(seed)
    draw = rng.expovariate if law == "exponential" else partial(rng.lognormvariate, 0.0)
    sequence = count()
    to_come: list[tuple[int, int, FlowEvent]] = [
        (0, next(sequence), Tick()),
        (0, next(sequence), Arrived(Request(0, "m", arrived=0))),
    ]
    out: dict[tuple[Any, int], int] = {}  # copies under way, and when their request arrived
    times: dict[Any, float] = {}
    copies: Counter[Any] = Counter()
    measured = range(SKIPPED, SKIPPED + requests)
    now, until = 0, 1 << 62
    while now < until:
        now, _, event = heappop(to_come)
        if isinstance(event, Tick):
            heappush(to_come, (now + 10 * MILLISECOND, next(sequence), event))
        elif isinstance(event, Arrived):
            at = now + nanos(rng.expovariate(RACES_PER_S))
            following = Request(event.request.id + 1, "m", arrived=at)
            if following.id == measured.stop:  # who is not back then lies beyond every quantile
                until = at + nanos(12.0 * MEAN_S)
            heappush(to_come, (at, next(sequence), Arrived(following)))
        elif (event.request_id, event.attempt) not in out:
            continue  # called back
        actions = flow.handle(event, now)
        if isinstance(event, FirstContent):
            actions += flow.handle(Ended(event.request_id, event.attempt, tokens=1), now)
            arrived = out.pop((event.request_id, event.attempt))
            if event.request_id in measured:
                times[event.request_id] = (now - arrived) / SECOND / MEAN_S
        for action in actions:
            if isinstance(action, Dispatch):
                request = action.request
                out[request.id, action.attempt] = request.arrived
                copies[request.id in measured] += 1
                due = now + nanos(draw(1.0) * MEAN_S)
                first = FirstContent(request.id, action.attempt)
                heappush(to_come, (due, next(sequence), first))
            elif isinstance(action, Abort):
                del out[action.request_id, action.attempt]
    return sorted(times.values()), copies[True] / requests


def exponential_tail(t: float) -> float:
    return exp(-t)


def lognormal_tail(t: float) -> float:
    return erfc(log(t) / sqrt(2.0)) / 2.0 if t > 0.0 else 1.0


def test_a_hedge_at_p95_cuts_the_tail_as_the_formula_says_for_five_percent_more_load(
    spread: Any,
) -> None:
    exp_p95, log_p95 = log(20.0), 5.180252
    requests = 40_000
    calls = [("exponential", 0.0), ("exponential", exp_p95), ("lognormal", log_p95)]
    runs = spread(racing, [(law, delay, requests, 1) for law, delay in calls])
    (plain, once), (hedged, copies), (heavy, heavy_copies) = runs
    p99, p999 = requests * 99 // 100, requests * 999 // 1000
    # Standard errors: 1.1 and 0.6 % of the p99, 1.6 and 2.3 % of the p99.9.
    assert plain[p99] == pytest.approx(-log(0.01), rel=0.03)
    assert hedged[p99] == pytest.approx(3.800451, rel=0.03)
    assert hedged[p999] == pytest.approx(4.951744, rel=0.05)
    assert heavy[p999] == pytest.approx(9.312947, rel=0.05)
    assert once == 1.0
    assert copies == pytest.approx(1.05, abs=0.004)  # nearly four standard errors
    assert heavy_copies == pytest.approx(1.05, abs=0.004)


# --- retries -------------------------------------------------------------------------------------

COIN = FaultSchedule([Fault(FaultKind.FLAKY, "*", 0, probability=0.5)])
TRUSTING = LaneConfig(breaker=BreakerConfig(enabled=False))


def flipping(retry: RetryConfig, rate: float, duration_s: float) -> PhaseAccount:
    """Every attempt fails with an even chance, and no breaker stands in the way."""
    setup = Experiment(
        tuple(Replica(f"r{i}", "m") for i in range(8)),
        duration_s=duration_s,
        workloads=(("m", Workload(rate, prompt=Lengths(16), output=Lengths(4.0, law="constant"))),),
        flow=FlowConfig(lane=TRUSTING, retry=retry),
        faults=COIN,
        canaries=False,
        poll_s=0.0,
    )
    return World(setup, 1).run().total()


@pytest.mark.parametrize(("attempts", "expected"), [(3, 1.75), (4, 1.875)])
def test_unbounded_retries_multiply_the_load_as_the_series_says(
    spread: Any, attempts: int, expected: float
) -> None:
    retry = RetryConfig(attempts=attempts, budget=False, backoff="none")
    (total,) = spread(flipping, [(retry, 200.0, 120.0)])
    assert total.attempts / total.offered == pytest.approx(expected, rel=0.02)  # 0.4 % expected
    assert total.good / total.offered == pytest.approx(1.0 - 0.5**attempts, abs=0.01)


def test_the_shipped_budget_bounds_the_load_whatever_fails(spread: Any) -> None:
    # Two attempts would cost 1.5; a fifth of the requests and ten a second are all there is.
    shipped, rate, duration_s = RetryConfig(), 200.0, 120.0
    (total,) = spread(flipping, [(shipped, rate, duration_s)])
    floor = shipped.budget_floor_per_s * (duration_s + shipped.budget_window_s)
    most = 1.2 + floor / total.offered
    amplification = total.attempts / total.offered
    assert most - 0.05 < amplification <= most, f"{amplification:.4f}, and at most {most:.4f}"


# --- collapse that outlives its cause ------------------------------------------------------------

CAPACITY = 300.0  # requests per second
PATIENCE_S = 1.0  # of the naive gateway with one attempt; clients have twice as much
TROUBLE_S = (20.0, 25.0)  # everything takes three times as long
SETTLED_S = 40.0  # fifteen seconds after it


class Heedless(World):
    """Its engines do not notice that nobody waits any more: abandoned attempts cost their time."""

    def _do_abort(self, action: Abort, now: int) -> None:
        del self.records[action.request_id].runs[action.attempt]

    def _on_first(self, run: EngineRun, now: int) -> None:
        if self._awaited(run):
            super()._on_first(run, now)

    def _on_done(self, run: EngineRun, now: int) -> None:
        if self._awaited(run):
            super()._on_done(run, now)

    def _awaited(self, run: EngineRun) -> bool:
        return run.owner is None or run.owner.runs.get(run.attempt) is run


def naive(attempts: int) -> FlowConfig:
    """A fixed timeout, then another attempt at once; no limit, no queue, no breaker, no budget."""
    deadlines = DeadlineConfig(
        first_token_s=PATIENCE_S,
        first_token_samples_min=10**9,  # it never learns
        rise_max=1,  # nor doubts its timeout, however many fire
        firing_share=0.999,
        firing_window_s=1e-6,
    )
    lane = LaneConfig(
        breaker=BreakerConfig(enabled=False), limit=LimitConfig(enabled=False), deadlines=deadlines
    )
    retry = RetryConfig(attempts=attempts, budget=False, backoff="none")
    return FlowConfig(lane=lane, retry=retry)


def steady(rate: float) -> Workload:
    one = Lengths(1.0, law="constant")
    return Workload(rate, prompt=one, output=one)


def falling(high: float, low: float, duration_s: float) -> Workload:
    """``high`` until five seconds after the trouble, ``low`` from then on."""
    until_s = TROUBLE_S[1] + 5.0
    mean = (high * until_s + low * (duration_s - until_s)) / duration_s
    return replace(
        steady(mean), pattern="bursts", peak=high / mean, period_s=duration_s, burst_s=until_s
    )


def troubled(
    flow: FlowConfig, workload: Workload, duration_s: float, settled_s: float = SETTLED_S
) -> list[PhaseAccount]:
    """The accounts of before the trouble, until ``settled_s``, and after that."""
    replicas = 10
    slow = Fault(FaultKind.SLOW, "*", nanos(TROUBLE_S[0]), nanos(TROUBLE_S[1]), factor=3.0)
    setup = Experiment(
        tuple(Replica(f"r{i}", "m") for i in range(replicas)),
        duration_s=duration_s,
        workloads=(("m", workload),),
        engine=EngineParameters(1000.0 * replicas / CAPACITY, 0.0, 0.0, 0.0, batch_max=1),
        flow=flow,
        faults=FaultSchedule([slow]),
        slo=Slo(first_token_s=2.0 * PATIENCE_S),
    )
    world = Heedless(setup, 1)
    world.results.window = nanos(TROUBLE_S[0]), nanos(settled_s)
    return list(world.run().phases.values())


def within(phase: PhaseAccount) -> float:
    return phase.within_slo / phase.offered


def test_retries_keep_a_fleet_down_exactly_if_they_exceed_its_capacity(spread: Any) -> None:
    # At 70 % load one attempt each is less than the fleet can take, two each are more.
    load = 0.7 * CAPACITY
    calls = [(naive(attempts), steady(load), 90.0) for attempts in (1, 2)]
    (before, _, after), (before_twice, _, after_twice) = spread(troubled, calls)
    assert within(before) == within(before_twice) == 1.0
    assert within(after) == 1.0, f"{within(after):.4f} with a single attempt"
    assert within(after_twice) == 0.0, f"{within(after_twice):.4f} with two attempts"
    assert after_twice.attempts == 2 * after_twice.offered


def test_the_shipped_defaults_recover_from_the_same_trouble_within_fifteen_seconds(
    spread: Any,
) -> None:
    ((before, during, after),) = spread(troubled, [(FlowConfig(), steady(0.7 * CAPACITY), 90.0)])
    assert within(before) == 1.0
    assert during.good == during.offered, "some requests of the trouble itself were lost"
    assert within(after) > 0.999, f"{within(after):.4f} of those who came 15 s after it"


def test_a_fleet_that_is_down_recovers_once_its_load_is_below_capacity_per_attempt(
    spread: Any,
) -> None:
    # Two attempts each: 280/s are up to 560, and only below 300 / 2 the backlog melts.
    duration_s, settled_s = 140.0, 110.0
    calls = [
        (naive(2), falling(280.0, low, duration_s), duration_s, settled_s) for low in (120.0, 170.0)
    ]
    (_, during, below), (_, _, above) = spread(troubled, calls)
    assert within(during) < 0.5
    assert within(below) == 1.0, f"{within(below):.4f} at 120/s, 240/s with retries"
    assert within(above) == 0.0, f"{within(above):.4f} at 170/s, 340/s with retries"
