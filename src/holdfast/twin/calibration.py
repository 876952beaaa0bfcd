"""Turns a measurement of one model into its entry of a ``twin.json``: engine, traffic, limits."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt

from holdfast.core.types import ConfigError
from holdfast.sim.workload import Lengths, Workload
from holdfast.twin.canary_load import CanaryLoad
from holdfast.twin.fit import FitConfig, Progress, fit_engine
from holdfast.twin.measurement import MeasuredRequest, spans
from holdfast.twin.twin_file import TwinModel, TwinSource

PAUSE_S = 10.0  # a longer time without arrivals ends a measurement, unless it is usual
PAUSE_GAPS = 20.0  # times the usual time between arrivals
LEFT_OUT_MAX = 0.05  # of all requests; above, what failed or was refused was load as well


def calibrate(
    requests: Sequence[MeasuredRequest],
    source: TwinSource,
    *,
    hosts: Mapping[str, str] | None = None,
    batch_max: int | None = None,
    kv_tokens_max: int | None = None,
    cold_start_s: float | None = None,
    canaries: CanaryLoad | None = None,
    config: FitConfig | None = None,
    progress: Progress = lambda _done, _all: None,
) -> TwinModel:
    """Fit a model's engine and describe its traffic; raises ``ConfigError`` for too little."""
    if not requests:
        problem = f"has no answered request ({source.left_out} failed or were refused)"
        raise ConfigError(source.file or "measurement", problem, "measure a fleet that answers")
    found = fit_engine(
        requests,
        batch_max=batch_max,
        kv_tokens_max=kv_tokens_max,
        hosts=hosts,
        canaries=canaries,
        config=config,
        progress=progress,
    )
    replicas = len({one.replica for one in requests})
    limits = list(found.limits)
    whole = len(requests) + source.left_out
    if source.left_out > LEFT_OUT_MAX * whole:
        limits.append(
            f"{source.left_out} of {whole} requests failed or were refused; their load is not "
            "part of the fit"
        )
    if not all(one.replica for one in requests):
        limits.append("not every answer named its replica: those without are taken as of one")
    if hosts and not found.law.neighbour_share:
        limits.append("replicas of one host did not slow each other down, or always did alike")
    if cold_start_s is None:
        limits.append("cold starts were not measured: usual ones are assumed where replicas start")
    return TwinModel(
        engine=found.law,
        per_host=_crowd(hosts),
        cold_start_s=cold_start_s,
        traffic=traffic_of([one for one in requests if one.counted]),
        source=source.model_copy(
            update={
                "requests": len(requests),
                "seconds": round(spans(requests), 3),
                "replicas": replicas,
            }
        ),
        fitted=found.fitted,
        predicted=found.predicted,
        errors=found.errors,
        limits=limits,
    )


def traffic_of(requests: Sequence[MeasuredRequest]) -> Workload:
    """The traffic that was measured, as a rate and two distributions of lengths."""
    arrivals = sorted(one.arrived_s for one in requests)
    gaps = [after - before for before, after in pairwise(arrivals)]
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 1.0
    # A pause between two benchmarks is no gap of the traffic.
    held = [gap for gap in gaps if gap <= max(PAUSE_S, PAUSE_GAPS * usual)]
    rate = len(held) / sum(held) if sum(held) > 0 else 1.0
    return Workload(
        rate=rate,
        prompt=_lengths([one.prompt for one in requests]),
        output=_lengths([one.output for one in requests]),
    )


def _lengths(tokens: Sequence[int]) -> Lengths:
    mean = sum(tokens) / len(tokens)
    variance = sum((one - mean) ** 2 for one in tokens) / len(tokens)
    return Lengths(mean=mean, cv=sqrt(variance) / mean, maximum=max(tokens))


def _crowd(hosts: Mapping[str, str] | None) -> int:
    """The most replicas on one host."""
    crowds: dict[str, int] = {}
    for host in (hosts or {}).values():
        crowds[host] = crowds.get(host, 0) + 1
    return max(crowds.values(), default=1)


__all__ = ["calibrate", "traffic_of"]
