"""Runs several simulated fleets under the same seeds, on all cores, and compares them in pairs.

Every arm sees the same arrivals, lengths and faults under a seed (common random numbers), so the
difference of two arms under one seed is due to what differs between them. The interval is that of
the mean of these differences over the seeds.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from holdfast.sim.experiment import Experiment
from holdfast.sim.run import Interval, Outcome, run_experiment

Progress = Callable[[int, int], None]


@dataclass(slots=True, frozen=True)
class Arm:
    """One simulated fleet of a comparison."""

    name: str
    setup: Experiment
    acts: bool = True  # whether incidents are acted on, as a fleet file says that they are


@dataclass(slots=True, frozen=True)
class Figure:
    """One figure of a run: where it stands, and in which direction it gets better."""

    name: str
    label: str  # with its unit
    unit: str  # share, count, s or tokens
    better: int  # 1: more is better, -1: less is


FIGURES: Final = (
    Figure("goodput", "answered well", "share", 1),
    Figure("slo_attainment", "within the SLO", "share", 1),
    Figure("refused", "refused (429, 503)", "count", -1),
    Figure("failed", "failed", "count", -1),
    Figure("wrong", "answered wrong", "count", -1),
    Figure("degraded", "by a smaller model", "count", 0),
    Figure("capped", "answers capped", "count", 0),
    Figure("first_token_p50_s", "first token, median", "s", -1),
    Figure("first_token_p95_s", "first token, 95 %", "s", -1),
    Figure("first_token_p99_s", "first token, 99 %", "s", -1),
    Figure("per_token_mean_s", "per token, mean", "s", -1),
    Figure("latency_p95_s", "whole answer, 95 %", "s", -1),
    Figure("amplification", "attempts per request", "ratio", -1),
    Figure("wasted_tokens", "wasted tokens", "count", -1),
    Figure("incidents", "incidents opened", "count", 0),
    Figure("detect_s", "time to detection", "s", -1),
    Figure("replicas", "replicas, mean", "count", -1),
)


_OF_LADDERS: Final = frozenset({"degraded", "capped"})  # no rows where neither fleet degrades


def figures_of(account: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures of one run, from its account; None where it was not measured."""
    total = account["total"]
    incidents = account.get("incidents")
    lags = [one["time_to_detect_s"] for one in account["detections"]]
    known = [lag for lag in lags if lag is not None]
    return {
        "goodput": total["goodput"],
        "slo_attainment": total["slo_attainment"],
        "refused": total["refused"],
        "failed": total["failed"],
        "wrong": total["wrong"],
        "degraded": total["degraded"],
        "capped": total["capped"],
        "first_token_p50_s": total["first_token_s"]["p50"],
        "first_token_p95_s": total["first_token_s"]["p95"],
        "first_token_p99_s": total["first_token_s"]["p99"],
        "per_token_mean_s": total["per_token_s"]["mean"],
        "latency_p95_s": total["latency_s"]["p95"],
        "amplification": total["amplification"],
        "wasted_tokens": total["wasted_tokens"],
        "incidents": None if incidents is None else len(incidents["opened"]),
        "detect_s": sum(known) / len(known) if known else None,
        "replicas": sum(account["replicas"].values()),
    }


@dataclass(slots=True, frozen=True)
class Difference:
    """One figure of two arms, and the mean of their difference over the seeds."""

    figure: Figure
    before: Interval | None
    after: Interval | None
    change: Interval | None  # of the pairs; None where no seed has both

    @property
    def clear(self) -> bool:
        """Whether the interval of the change leaves zero out: it is no chance."""
        change = self.change
        if change is None or change.count < 2:
            return False
        return change.low > 0 or change.high < 0

    def to_dict(self) -> dict[str, Any]:
        """Return this difference between two fleets as a dictionary for JSON."""
        return {
            "figure": self.figure.name,
            "label": self.figure.label,
            "unit": self.figure.unit,
            "better": self.figure.better,
            "before": None if self.before is None else self.before.to_dict(),
            "after": None if self.after is None else self.after.to_dict(),
            "change": None if self.change is None else self.change.to_dict(),
            "clear": self.clear,
        }


def differences(before: Outcome, after: Outcome) -> list[Difference]:
    """Compare two arms, figure by figure, seed by seed."""
    here = [figures_of(run) for run in before.runs]
    there = [figures_of(run) for run in after.runs]
    rows = []
    for figure in FIGURES:
        old = [one[figure.name] for one in here]
        new = [one[figure.name] for one in there]
        if figure.name in _OF_LADDERS and not any((*old, *new)):
            continue
        pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
        rows.append(
            Difference(
                figure,
                _interval(old),
                _interval(new),
                Interval.of(b - a for a, b in pairs) if pairs else None,
            )
        )
    return rows


def _interval(values: Sequence[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return Interval.of(known) if known else None


def run_arms(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    *,
    jobs: int = 0,
    diagnosis: bool = True,
    progress: Progress = lambda _done, _all: None,
) -> list[Outcome]:
    """Run every arm under every seed; ``jobs``: processes, 0 = one per core, 1 = this one."""
    tasks = [(place, seed) for seed in seeds for place in range(len(arms))]
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(tasks)))
    done: dict[tuple[int, int], dict[str, Any]] = {}
    progress(0, len(tasks))
    if jobs == 1:
        for place, seed in tasks:
            done[place, seed] = _task(arms[place], seed, diagnosis)
            progress(len(done), len(tasks))
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting = {
                pool.submit(_task, arms[place], seed, diagnosis): (place, seed)
                for place, seed in tasks
            }
            for future in as_completed(waiting):
                done[waiting[future]] = future.result()
                progress(len(done), len(tasks))
    return [
        Outcome(arm.name, tuple(done[place, seed] for seed in seeds))
        for place, arm in enumerate(arms)
    ]


def _task(arm: Arm, seed: int, diagnosis: bool) -> dict[str, Any]:
    return run_experiment(arm.setup, seed, diagnosis=diagnosis, acts=arm.acts)


__all__ = [
    "FIGURES",
    "Arm",
    "Difference",
    "Figure",
    "differences",
    "figures_of",
    "run_arms",
]
