"""Fuzzes the simulator: random fleets, policies and faults, with invariants checked at each event.

    python -m holdfast.sim.fuzz --seeds 1000        all of them
    python -m holdfast.sim.fuzz --seed 81723        the one that failed, again

A seed determines everything. A failure prints the command that reproduces it.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Final

from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule, random_schedule
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.failover import FailoverConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.ladders.degrade import DegradeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.request.routing import POLICIES
from holdfast.core.types import Replica, nanos
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.run import run_experiment
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload, WorkloadTenant

_MODELS: Final = ("large", "small")


def random_experiment(seed: int) -> Experiment:
    """Build the experiment of this seed: about two hundred requests on a few replicas."""
    rng = stream(seed, "fuzz", "setup")
    replicas = _replicas(rng)
    duration_s = rng.choice((10.0, 20.0, 40.0))
    return Experiment(
        replicas=replicas,
        duration_s=duration_s,
        workloads=tuple((model, _workload(rng, duration_s)) for model in _models(replicas)),
        engine=EngineParameters(
            step_ms=rng.choice((2.0, 13.0, 50.0)),
            batch_max=rng.choice((1, 4, 64)),
            kv_tokens_max=rng.choice((3_000, 40_000, 400_000)),
            prefill_tokens_max=rng.choice((512, 32_768)),
        ),
        flow=_flow(rng, replicas),
        fleet=_fleet(rng),
        loading=LoadingConfig(
            start_s=rng.choice((0.0, 1.0)),
            size_gb=rng.choice((0.0, 1.0, 8.0)),
            parallel_max=rng.choice((0, 1)),
        ),
        faults=_faults(rng, replicas, duration_s),
        warm=rng.random() < 0.8,
        poll_s=rng.choice((0.0, 1.0)),
        canaries=rng.random() < 0.9,
    )


def _replicas(rng: Random) -> tuple[Replica, ...]:
    zones = rng.randint(1, 3)
    mixed = rng.random() < 0.3  # a rollout under way: two revisions side by side
    return tuple(
        Replica(
            f"{model}-{index}",
            model,
            revision=rng.choice(("1", "2")) if mixed else "1",
            zone=f"zone-{index % zones}",
            region="region-b" if rng.random() < 0.2 else "region-a",
            slots=rng.choice((0, 1, 4, 32)),
            weight=rng.choice((1.0, 1.0, 2.0)),
        )
        for model in _MODELS[: rng.randint(1, 2)]
        for index in range(rng.randint(1, 8))
    )


def _models(replicas: tuple[Replica, ...]) -> list[str]:
    return list(dict.fromkeys(replica.model for replica in replicas))


def _workload(rng: Random, duration_s: float) -> Workload:
    return Workload(
        rate=rng.choice((50.0, 200.0)) / duration_s,
        pattern=rng.choice(("poisson", "constant", "bursts", "diurnal")),
        peak=rng.choice((1.2, 2.0)),
        period_s=10.0,
        burst_s=2.0,
        prompt=Lengths(mean=rng.choice((10.0, 500.0)), maximum=2_000),
        output=Lengths(mean=rng.choice((1.0, 30.0, 100.0)), maximum=900),
        tenants=(
            WorkloadTenant("a"),
            WorkloadTenant("b", 0.5),
            WorkloadTenant("c", 0.5, batch=True),
        ),
    )


def _flow(rng: Random, replicas: tuple[Replica, ...]) -> FlowConfig:
    models = _models(replicas)
    routing = rng.choice(tuple(POLICIES))
    lane = LaneConfig(
        routing=routing,
        routing_options={"zone": "zone-0"} if routing == "zone_preference" else {},
        queue=QueueConfig(
            depth_max=rng.choice((1, 20, 1_000)),
            batch_depth_max=1,
            wait_interactive_s=rng.choice((1.0, 30.0)),
            wait_no_replica_s=1.0,
        ),
        breaker=BreakerConfig(enabled=rng.random() < 0.9, consecutive=rng.choice((1, 5))),
        limit=LimitConfig(enabled=rng.random() < 0.7),
        failover=rng.choice(
            (
                FailoverConfig(),
                FailoverConfig(home_region="region-a", home_zone="zone-0"),
                FailoverConfig(home_region="region-a", cross_region=False),
            )
        ),
        slo_first_token_s=rng.choice((None, 1.0)),
    )
    ladder = (DegradeConfig(ladder=tuple(models)),) if len(models) > 1 else ()
    return FlowConfig(
        lane=lane,
        retry=RetryConfig(
            attempts=rng.choice((1, 2, 4)),
            continuations=rng.choice((0, 2)),
            budget=rng.random() < 0.8,
            budget_floor_per_s=rng.choice((0.5, 10.0)),
        ),
        hedge=HedgeConfig(enabled=rng.random() < 0.4, samples_min=20, share_max=0.2),
        degrade=ladder if rng.random() < 0.5 else (),
        quotas={"a": QuotaConfig(tokens_per_minute=20_000.0)} if rng.random() < 0.3 else {},
        tenant_weights={"b": 2.0},
    )


def _fleet(rng: Random) -> FleetConfig:
    return FleetConfig(
        health=HealthConfig(
            canary_s=rng.choice((2.0, 5.0)),
            slow_start_s=rng.choice((0.1, 30.0)),
            load_timeout_s=rng.choice((20.0, 600.0)),
        ),
        drain=DrainConfig(deadline_s=rng.choice((0.0, 5.0)), move_s=rng.choice((0.0, 2.0))),
        canary_deadline_s=rng.choice((1.0, 5.0)),
        relaunch_after_s=rng.choice((5.0, 60.0)),
    )


def _faults(rng: Random, replicas: tuple[Replica, ...], duration_s: float) -> FaultSchedule:
    drawn = random_schedule(
        rng,
        replicas,
        nanos(duration_s),
        rng.choice((20.0, 100.0, 400.0)),
        duration_s=(1.0, duration_s),
        affected_share_max=rng.choice((0.5, 1.0)),
    )
    faults = list(drawn.faults)
    middle, end = nanos(duration_s / 3), nanos(duration_s)
    if rng.random() < 0.2:
        faults.append(Fault(FaultKind.PROBE_BLIND, "*", middle, end))
    if rng.random() < 0.2:
        faults.append(Fault(FaultKind.SLOW, "*", middle, end, factor=rng.choice((3.0, 20.0))))
    if rng.random() < 0.2:
        faults.append(Fault(FaultKind.ZONE_LOSS, replicas[0].zone, middle, end))
    return FaultSchedule(faults)


def fuzz_one(seed: int) -> str:
    """Run one seed with all invariants checked; returns the failure as text, empty if none."""
    try:
        run_experiment(random_experiment(seed), seed, audit=True)
    except Exception as failure:  # noqa: BLE001 - any failure at all is a finding
        return f"{type(failure).__name__}: {failure}"
    return ""


def command(seed: int) -> str:
    """The shell command that reproduces a seed."""
    return f"{sys.executable} -m holdfast.sim.fuzz --seed {seed}"


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds that the arguments ask for; returns 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.sim.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one, with its traceback")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    if given.seed is not None:
        run_experiment(random_experiment(given.seed), given.seed, audit=True)
        sys.stdout.write(f"seed {given.seed}: no invariant broken\n")
        return 0
    seeds = range(given.first, given.first + given.seeds)
    failures = 0
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for seed, failure in zip(seeds, pool.map(fuzz_one, seeds, chunksize=10), strict=True):
            if failure:
                failures += 1
                sys.stdout.write(f"seed {seed} failed: {failure}\n  again: {command(seed)}\n")
    sys.stdout.write(f"{given.seeds} seeds, {failures} failed\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["command", "fuzz_one", "main", "random_experiment"]
