"""Fits an engine's step time and batch from measured requests, and tells its own error.

    step = a + c·B + b·KV + p·prefill,   and an overhead d outside of the engine

A regression finds where to begin. Then the measured arrivals are replayed through the model at the
replicas that answered them, and the five numbers, and how much replicas of one host slow each other
down, are moved until first tokens, times per token and whole answers agree. All three count: a fit
of first tokens alone finds a step time that is wrong by a tenth and more. What the law leaves
unexplained is how the engine's speed varies (``twin.wander``). The first part of the measurement is
fitted, the rest predicted: that error is the fit's own. Then all of it is fitted once more from
there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Final, NamedTuple

from holdfast.core.types import ConfigError, require
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.twin.canary_load import CanaryLoad
from holdfast.twin.measurement import (
    METRICS,
    MeasuredRequest,
    Times,
    load_seen,
    relative_errors,
    summary,
)
from holdfast.twin.minimum import minimise
from holdfast.twin.regression import step_coefficients
from holdfast.twin.replay import replay
from holdfast.twin.wander import with_wander

REQUESTS_MIN: Final = 50  # of fewer, the p95 of the part that is held out is one request
_OVERHEAD_MS: Final = 0.1  # at least: a gateway and a loopback take that
_TINY_MS: Final = 1e-7  # stands for a coefficient of nothing, which has no logarithm
_SPREAD: Final = 0.2  # of the first simplex: the regression is within a fifth
_SPREAD_FREE: Final = 0.7  # and of overhead and neighbours, of which less is known: a factor of two
_SHARES: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)  # tried, of neighbours on a host
_WORTH: Final = 0.97  # of the residual without neighbours
_WEIGHTS: Final = (("mean", 0.5), ("p50", 1.0), ("p95", 0.25))  # pauses of a host raise a tail
_ERROR_MAX: Final = 0.5  # what is further off is no matter of these parameters
_TRUST: Final = 0.3  # in the regression, against leaving its coefficients (logarithms, squared)
_STEP: Final = 4  # coefficients of a step, which the regression has found
_PER_REQUEST: Final = 0.5  # weight of the mean distance of single requests

Progress = Callable[[int, int], None]


@dataclass(slots=True, frozen=True)
class FitConfig:
    """How much work a fit may be, and how much of the measurement it predicts."""

    held_out: float = 0.4  # share of the requests, the last ones, that the fit's error is told of
    calls_max: int = 240  # replays for one fit; the loss hardly moves after some 150
    requests_max: int = 4_000  # replayed in a fit, the first ones; more sharpens nothing

    def __post_init__(self) -> None:
        share, calls = self.held_out, self.calls_max
        require(0.1 <= share <= 0.9, "fit.held_out", f"is {share}", "use a share, 0.1 to 0.9")
        require(calls >= 20, "fit.calls_max", f"is {calls}", "use 20 or more")
        most = self.requests_max
        require(most >= REQUESTS_MIN, "fit.requests_max", f"is {most}", f"use {REQUESTS_MIN} up")


@dataclass(slots=True, frozen=True)
class EngineFit:
    """Fitted parameters of an engine, with the error on requests that the fit had not seen."""

    law: EngineParameters
    fitted: int  # requests of the first fit
    predicted: int  # requests that were held out
    errors: dict[str, dict[str, float | None]]  # of the held-out part: predicted / real - 1
    loss: float
    limits: tuple[str, ...]  # what the measurement could not tell


def fit_engine(
    requests: Sequence[MeasuredRequest],
    *,
    batch_max: int | None = None,
    kv_tokens_max: int | None = None,
    hosts: Mapping[str, str] | None = None,
    canaries: CanaryLoad | None = None,
    config: FitConfig | None = None,
    progress: Progress = lambda _done, _all: None,
) -> EngineFit:
    """Fit one model's engine; raises ``ConfigError`` where the measurement is too small.

    ``batch_max`` and ``kv_tokens_max``: limits that are known; else what was seen is taken, and
    said. ``hosts``: the host of each replica, where replicas share hosts. ``canaries``: those that
    the fleet sent meanwhile, where they are known.
    """
    config = config or FitConfig()
    counted = sum(one.counted for one in requests)
    if counted < REQUESTS_MIN:
        problem = f"has {counted} answered requests that count"
        raise ConfigError("measurement", problem, f"measure {REQUESTS_MIN} or more")
    ordered = sorted(requests, key=lambda one: one.arrived_s)[: config.requests_max]
    base, limits = _limits(ordered, batch_max, kv_tokens_max)
    known = ordered[: round(len(ordered) * (1.0 - config.held_out))]
    begins = estimates(known, base, hosts)  # who was in a batch is known of requests alone
    if canaries is not None:
        beside = canaries.beside(ordered)
        end_s = known[-1].arrived_s
        ordered = sorted([*ordered, *beside], key=lambda one: one.arrived_s)
        known = [one for one in ordered if one.arrived_s <= end_s]
    starts = [_varying(known, law, hosts) for law in begins]
    search = _Search(config.calls_max * (len(starts) + 1), progress)
    found = [search.run(known, start, hosts, config.calls_max) for start in starts]
    law = _varying(known, min(found, key=lambda one: one[0])[1], hosts)
    told = replay(ordered, law, hosts)
    late = [number for number in range(len(known), len(ordered)) if ordered[number].counted]
    errors = _errors(ordered, told, late)
    loss, whole = search.run(ordered, law, hosts, config.calls_max)
    whole = _varying(ordered, whole, hosts)
    fitted = sum(one.counted for one in known)
    return EngineFit(whole, fitted, len(late), errors, loss, tuple(limits))


def _varying(
    requests: Sequence[MeasuredRequest], law: EngineParameters, hosts: Mapping[str, str] | None
) -> EngineParameters:
    """The same law, with a speed that varies by as much as it leaves unexplained."""
    steady = replace(law, wander=0.0)
    return with_wander(law, requests, replay(requests, steady, hosts), hosts)


class _Search:
    """Moves parameters until a replay agrees; counts its replays for whoever watches."""

    def __init__(self, whole: int, progress: Progress) -> None:
        self._whole = whole
        self._done = 0
        self._planned = 0
        self._progress = progress

    def run(
        self,
        requests: Sequence[MeasuredRequest],
        start: EngineParameters,
        hosts: Mapping[str, str] | None,
        calls: int,
    ) -> tuple[float, EngineParameters]:
        loss = _Loss(requests, hosts)

        def value(point: Sequence[float]) -> float:
            self._done += 1
            self._progress(min(self._done, self._whole), self._whole)
            away = sum((x - y) ** 2 for x, y in zip(point[:_STEP], begin[:_STEP], strict=True))
            return loss.of(_law(point, start)) + _TRUST * away

        begin = point = _point(start)
        # A second simplex from where the first one ended: one alone may collapse too early.
        spread = [_SPREAD] * _STEP + [_SPREAD_FREE] * (len(point) - _STEP)
        point, _ = minimise(value, point, spread, calls_max=calls * 2 // 3)
        point, least = minimise(value, point, [-x / 2 for x in spread], calls_max=calls // 3)
        self._planned += calls
        self._done = max(self._done, self._planned)
        return least, _law(point, start)


class _Loss:
    """How far a replay is from what was measured; 0 is the same in all that counts."""

    def __init__(
        self, requests: Sequence[MeasuredRequest], hosts: Mapping[str, str] | None
    ) -> None:
        self._requests = requests
        self._hosts = hosts
        self._counted = [number for number, one in enumerate(requests) if one.counted]
        self._real = [one.times for one in requests]
        self._summary = summary([self._real[number] for number in self._counted])

    def of(self, law: EngineParameters) -> float:
        told = replay(self._requests, law, self._hosts)
        pairs = [(self._real[number], told[number]) for number in self._counted]
        found = [(real, sim) for real, sim in pairs if sim is not None]
        lost = len(pairs) - len(found)
        if not found:
            return 1e9
        errors = relative_errors(summary([sim for _, sim in found]), self._summary)
        loss = 10.0 * lost / len(pairs)
        for name in METRICS:
            mean = self._summary[name]["mean"]
            if not mean:
                continue
            loss += _PER_REQUEST * min(_ERROR_MAX, _distance(found, name) / mean)
            for figure, weight in _WEIGHTS:
                loss += weight * min(_ERROR_MAX, abs(errors[name][figure] or 0.0))
        return loss


def _distance(pairs: Sequence[tuple[Times, Times]], name: str) -> float:
    """Mean distance of single requests."""
    total, count = 0.0, 0
    for real, sim in pairs:
        there, here = getattr(real, name), getattr(sim, name)
        if there is not None and here is not None:
            total += abs(there - here)
            count += 1
    return total / count if count else 0.0


def _errors(
    requests: Sequence[MeasuredRequest], told: Sequence[Times | None], numbers: Sequence[int]
) -> dict[str, dict[str, float | None]]:
    pairs = [(requests[number].times, told[number]) for number in numbers]
    real = summary([one for one, sim in pairs if sim is not None])
    return relative_errors(summary([sim for _, sim in pairs if sim is not None]), real)


def _point(law: EngineParameters) -> list[float]:
    values = [
        law.step_ms,
        law.per_sequence_ms,
        law.per_kv_token_ms,
        law.per_prompt_token_ms,
        law.overhead_ms,
    ]
    if law.neighbour_share > 0:
        values.append(law.neighbour_share)
    return [log(max(_TINY_MS, value)) for value in values]


def _law(point: Sequence[float], base: EngineParameters) -> EngineParameters:
    step, sequence, kv, prompt, overhead, *share = (exp(min(20.0, value)) for value in point)
    return replace(
        base,
        step_ms=step,
        per_sequence_ms=sequence,
        per_kv_token_ms=kv,
        per_prompt_token_ms=prompt,
        overhead_ms=overhead,
        neighbour_share=min(10.0, share[0]) if share else 0.0,
    )


def estimates(
    requests: Sequence[MeasuredRequest],
    base: EngineParameters,
    hosts: Mapping[str, str] | None = None,
) -> list[EngineParameters]:
    """Parameters by regression, without any search; ``base`` has the limits of batch and memory.

    One for each number of busy replicas that a host may carry at full speed: a regression sees what
    neighbours do on average over an answer's life, a replay when they do it.
    """
    plain = _Estimate(1, 0.0, *step_coefficients(requests, hosts))
    found = []
    for room in range(1, min(4, _crowd(requests, hosts))):
        tries = [
            _Estimate(room, share, *step_coefficients(requests, hosts, room=room, share=share))
            for share in _SHARES
        ]
        found.append(min(tries, key=lambda one: one.residual))
    # Sharing a host must explain something: else noise would have neighbours.
    least = min((one.residual for one in found), default=plain.residual)
    if not found or least > plain.residual * _WORTH:
        found = [plain]
    return [_estimated(one, requests, base, hosts) for one in found]


class _Estimate(NamedTuple):
    """What a regression says, under an assumption about neighbours on a host."""

    room: int
    share: float
    coefficients: tuple[float, float, float, float]  # seconds
    residual: float


def _estimated(
    found: _Estimate,
    requests: Sequence[MeasuredRequest],
    base: EngineParameters,
    hosts: Mapping[str, str] | None,
) -> EngineParameters:
    step, sequence, kv, prompt = (1e3 * value for value in found.coefficients)
    law = replace(
        base,
        step_ms=max(step, _TINY_MS),
        per_sequence_ms=sequence,
        per_kv_token_ms=kv,
        per_prompt_token_ms=prompt,
        host_room=found.room,
        neighbour_share=found.share,
    )
    if law.step_ms + law.per_sequence_ms <= 2 * _TINY_MS:  # answers of one token: no decode seen
        quick = sorted(one.times.first_token_s for one in requests)[len(requests) // 10]
        law = replace(law, step_ms=500.0 * quick, per_prompt_token_ms=0.01 * quick)
    return replace(law, overhead_ms=_overhead_ms(requests, law, hosts))


def _overhead_ms(
    requests: Sequence[MeasuredRequest], law: EngineParameters, hosts: Mapping[str, str] | None
) -> float:
    """What the quickest first tokens took beyond the engine: they waited for nobody."""
    told = replay(requests, law, hosts)
    late = sorted(
        (one.times.first_token_s - law.per_prompt_token_ms * one.prompt / 1e3, number)
        for number, one in enumerate(requests)
    )[: max(5, len(requests) // 5)]
    beyond = sorted(
        requests[number].times.first_token_s - sim.first_token_s
        for _, number in late
        if (sim := told[number]) is not None
    )
    return max(_OVERHEAD_MS, 1e3 * beyond[len(beyond) // 2]) if beyond else _OVERHEAD_MS


def _crowd(requests: Sequence[MeasuredRequest], hosts: Mapping[str, str] | None) -> int:
    """The most replicas that share one host."""
    crowds: dict[str, int] = {}
    for replica in {one.replica for one in requests}:
        host = (hosts or {}).get(replica)
        if host is not None:
            crowds[host] = crowds.get(host, 0) + 1
    return max(crowds.values(), default=1)


def _limits(
    requests: Sequence[MeasuredRequest], batch_max: int | None, kv_tokens_max: int | None
) -> tuple[EngineParameters, list[str]]:
    """The limits of batch and memory, and what of them is not known."""
    seen = load_seen(requests)
    usual = EngineParameters()
    seen_most = f"batches of up to {seen.batch_most} and {seen.tokens_most:,} tokens held were seen"
    limits = [f"{seen_most}; beyond, the step time is extrapolated"]
    batch = batch_max
    if batch is None and seen.waited_at_most:
        batch = seen.batch_most
        limits.append(f"the batch limit is taken to be {batch}: requests waited at that many")
    elif batch is None:
        batch = max(usual.batch_max, seen.batch_most)
        limits.append(
            f"no request waited for a place in a batch: the limit is unknown, {batch} is assumed"
        )
    kv = kv_tokens_max
    if kv is None:
        kv = max(usual.kv_tokens_max, seen.tokens_most)
        limits.append(f"the KV capacity was not reached: it is unknown, {kv:,} tokens are assumed")
    return replace(usual, batch_max=batch, kv_tokens_max=kv), limits


__all__ = ["REQUESTS_MIN", "EngineFit", "FitConfig", "estimates", "fit_engine"]
