"""Estimates how an engine's speed varies by itself, from what a fitted law leaves unexplained.

A replay of the measured requests through the law says how long each token should have taken. By
how much an answer took longer or shorter than that, on a logarithmic scale, is its miss. Misses of
single answers are mostly chance: who was read beside whom. What answers of one replica miss
together, at the same time, is its speed; what answers of different replicas of a host miss together
is the host's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log, sqrt
from statistics import fmean, quantiles
from typing import Final, NamedTuple

from holdfast.core.types import seconds
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.hosts.wander import EVERY
from holdfast.twin.measurement import MeasuredRequest, Times

_TOKENS_MIN: Final = 4  # of an answer: the times of fewer are those of single steps
_PAIRS_MIN: Final = 100  # of answers at the same time
_NEAR_S: Final = 0.5  # between the middles of answers that are at the same time
_LEAST: Final = 0.02  # below, it is the clock's and the client's
_MOST: Final = 1.0
_SHARED: Final = 0.5  # of what one replica's answers miss together: then it is their host's
_FAR: Final = 2.0  # × the distance of the quartiles, from the median: a miss beyond it is a pause


class _Miss(NamedTuple):
    """By how much one answer was slower than its law, and when."""

    at_s: float
    replica: str
    miss: float
    kept: float  # of the variance of single seconds, in a mean over its life


def with_wander(
    law: EngineParameters,
    requests: Sequence[MeasuredRequest],
    told: Sequence[Times | None],
    hosts: Mapping[str, str] | None = None,
) -> EngineParameters:
    """The law with a speed that varies by as much as it leaves unexplained; 0 where that is small.

    ``told``: how long each of the requests takes by the law, without any variation.
    """
    misses = _misses(requests, told)
    own, others = [], []
    for number, one in enumerate(misses):
        for other in misses[number + 1 :]:
            if other.at_s - one.at_s > _NEAR_S:
                break
            if other.replica == one.replica:
                own.append(one.miss * other.miss)
            elif hosts and hosts.get(one.replica) == hosts.get(other.replica, ""):
                others.append(one.miss * other.miss)
    variances = [fmean(found) if len(found) >= _PAIRS_MIN else 0.0 for found in (own, others)]
    shared = variances[1] > _SHARED * variances[0]
    variance = variances[1] if shared else variances[0]
    sigma = sqrt(max(0.0, variance) / fmean(one.kept for one in misses)) if misses else 0.0
    sigma = min(_MOST, sigma) if sigma >= _LEAST else 0.0
    return replace(law, wander=sigma, wander_shared=shared and sigma > 0)


def _misses(requests: Sequence[MeasuredRequest], told: Sequence[Times | None]) -> list[_Miss]:
    """The misses of all answers with enough tokens, less their median, in the order of time."""
    found = []
    for one, sim in zip(requests, told, strict=True):
        real_s, sim_s = one.times.per_token_s, sim.per_token_s if sim is not None else None
        if one.counted and one.output >= _TOKENS_MIN and real_s and sim_s:
            kept = _kept((one.output - 1) * real_s / seconds(EVERY))
            middle_s = (one.first_s + one.last_s) / 2
            found.append(_Miss(middle_s, one.replica, log(real_s / sim_s), kept))
    if len(found) < 2:
        return []
    low, middle, high = quantiles([one.miss for one in found], n=4)
    most = _FAR * (high - low)
    clipped = (one._replace(miss=max(-most, min(most, one.miss - middle))) for one in found)
    return sorted(clipped)


def _kept(periods: float) -> float:
    """How much of the variance is left in a mean over so many periods, from any point of one on."""
    if periods <= 1.0:
        return 1.0 - periods / 3.0
    return (1.0 - 1.0 / (3.0 * periods)) / periods


__all__ = ["with_wander"]
