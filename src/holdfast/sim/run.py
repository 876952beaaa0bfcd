"""Runs an experiment under one seed or many, on all cores, and combines their figures.

Each (variant, seed) is one task in a process of its own; results are ordered by that key, so what
is printed does not depend on which finished first.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from math import sqrt
from multiprocessing import get_context
from typing import Any, Final

from holdfast.sim.diagnosis import DiagnosisDriver
from holdfast.sim.eventlog import EventLog
from holdfast.sim.experiment import Experiment
from holdfast.sim.incident_verdicts import judge
from holdfast.sim.invariants import Auditor
from holdfast.sim.scenario import Scenario, prepare
from holdfast.sim.world import World

# Student's t, two-sided 95 %, by degrees of freedom; beyond the table the normal value will do.
_T95: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(slots=True, frozen=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval."""

    mean: float
    half: float  # 0 for a single seed: nothing is known of the spread
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Interval":
        """Compute mean and confidence interval from one value per seed."""
        listed = list(values)
        count = len(listed)
        mean = _total(listed) / count
        if count < 2:
            return cls(mean, 0.0, count)
        variance = _total((value - mean) ** 2 for value in listed) / (count - 1)
        t = _T95[count - 2] if count - 2 < len(_T95) else 1.96
        return cls(mean, t * sqrt(variance / count), count)

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half

    def to_dict(self) -> dict[str, float]:
        """Mean and ends as plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def _total(values: Iterable[float]) -> float:
    """A plain left-to-right sum: the built-in one rounds differently from Python 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


@dataclass(slots=True, frozen=True)
class Outcome:
    """The results of one variant under all seeds."""

    variant: str
    runs: tuple[dict[str, Any], ...]  # one account per seed, as Results.to_dict

    def figure(self, *path: str) -> Interval | None:
        """One figure over the seeds, by its path in the results; None if it was never measured."""
        values = []
        for run in self.runs:
            value: Any = run
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                values.append(float(value))
        return Interval.of(values) if values else None


def run_experiment(
    setup: Experiment,
    seed: int,
    *,
    audit: bool = False,
    log: bool = False,
    diagnosis: bool = False,
    acts: bool = False,
) -> dict[str, Any]:
    """Run one experiment once; with ``audit`` every invariant is checked after each event."""
    world = World(setup, seed)
    record = EventLog() if log else None
    if record is not None:
        world.add_observer(record.record)
    auditor = Auditor.watch(world) if audit else None
    driver = DiagnosisDriver(world, seed=seed, acts=acts) if diagnosis else None
    account = world.run().to_dict()
    if auditor is not None:
        auditor.finish(world.clock.now)
    if record is not None:
        account["digest"] = record.digest()
    if driver is not None:
        found = judge(driver.incidents.values(), setup.faults.faults, setup.replicas)
        opened, faults = ([one.to_dict() for one in part] for part in found)
        account["incidents"] = {"opened": opened, "faults": faults}
    return account


def _task(
    scenario: Scenario,
    diagnosis: bool,
    acts: bool,
    variant: int,
    seed: int,
) -> dict[str, Any]:
    _, setup = prepare(scenario, seed).variants[variant]
    return run_experiment(setup, seed, diagnosis=diagnosis, acts=acts)


def sweep(
    scenario: Scenario,
    seeds: Iterable[int],
    *,
    jobs: int = 0,
    diagnosis: bool = False,
    acts: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[Outcome]:
    """Run every variant under every seed, with its incidents where ``diagnosis`` is set.

    ``jobs``: processes, 0 = one per core, 1 = this process. ``acts``: diagnosis does what it
    decides (restarts, takes out, asks canaries), which changes the run; else it only observes.
    """
    seeds = list(seeds)
    names = [name for name, _ in prepare(scenario, seeds[0]).variants]
    tasks = [(variant, seed) for variant in range(len(names)) for seed in seeds]
    jobs = min(jobs or os.cpu_count() or 1, len(tasks))
    done: dict[tuple[int, int], dict[str, Any]] = {}
    progress(0, len(tasks))
    if jobs == 1:
        for variant, seed in tasks:
            done[variant, seed] = _task(scenario, diagnosis, acts, variant, seed)
            progress(len(done), len(tasks))
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting = {pool.submit(_task, scenario, diagnosis, acts, *task): task for task in tasks}
            for future in as_completed(waiting):
                done[waiting[future]] = future.result()
                progress(len(done), len(tasks))
    return [
        Outcome(name, tuple(done[variant, seed] for seed in seeds))
        for variant, name in enumerate(names)
    ]


__all__ = ["Interval", "Outcome", "run_experiment", "sweep"]
