"""Replays a trace with prompt hashes through every routing policy: prefix reuse, TTFT, balance.

    python bench/routing_trace.py TRACE.jsonl [--replicas N] [--blocks N,N] [--policies a,b]
                                  [--seeds N] [--speed F] [--requests N] [--json]

The trace is a Mooncake JSONL file (timestamp in ms, input_length, output_length, hash_ids of
512-token blocks). Each policy is driven by the gateway's own code in the simulator; every engine
has one KV memory of so many blocks, in which requests run and past prompts stay cached until the
room is needed. Reuse is the share of prompt blocks that were computed before and are still there;
the ceiling is what one cache without a limit would have. TTFT is from arrival to the first token,
queueing included. Balance is the most loaded replica's share of the computed blocks, beside an
even one: 1.00 is even.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Final

from holdfast.core.request import routing
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.types import ConfigError, Replica
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.memory.prefix_cache import PrefixCache
from holdfast.sim.results import quantiles
from holdfast.sim.workload import Workload, arrivals
from holdfast.sim.world import World

BLOCK_TOKENS: Final = 512  # of the blocks that the trace has hashed
MODEL: Final = "model"
BASE: Final = "round_robin"  # what the others are compared with
OPTIONS: Final = {"zone_preference": {"zone": "zone-a"}}  # what a policy cannot do without
UNBOUNDED: Final = 1 << 40  # tokens: nothing is ever evicted


def prompts(trace: Path) -> tuple[int, float, float]:
    """The number of requests of a trace, its seconds, and the reuse of one unbounded cache."""
    cache = PrefixCache(UNBOUNDED, BLOCK_TOKENS)
    count, last = 0, 0
    for request, _ in arrivals(Workload(trace=str(trace)), MODEL, 0):
        cache.hold(request.prefix, request.prompt_tokens)
        count, last = count + 1, request.arrived
    return count, last / 1e9, cache.hits / max(1, cache.asked)


def experiment(
    trace: Path, policy: str, *, replicas: int, blocks: int, seconds: float, speed: float
) -> Experiment:
    """One policy in front of so many replicas with so many KV blocks each."""
    lane = LaneConfig(routing=policy, routing_options=OPTIONS.get(policy, {}))
    zones = ("zone-a", "zone-b")
    return Experiment(
        tuple(Replica(f"r{n}", MODEL, zone=zones[n % 2]) for n in range(replicas)),
        duration_s=seconds / speed + 1.0,
        workloads=((MODEL, Workload(trace=str(trace), speed=speed)),),
        engine=EngineParameters(kv_tokens_max=blocks * BLOCK_TOKENS, kv_block_tokens=BLOCK_TOKENS),
        flow=FlowConfig(lane=lane),
    )


def measure(setup: Experiment, seed: int) -> dict[str, float]:
    """One run: reuse, TTFT, latency, balance."""
    began = process_time()
    world = World(setup, seed)
    results = world.run()
    total = results.total()
    caches = [unit.engine.cache for unit in world.units.values()]
    computed = [cache.asked - cache.hits for cache in caches if cache is not None]
    first, whole = quantiles(total.first_token), quantiles(total.latency)
    return {
        "reuse": results.prefix_reuse or 0.0,
        "ttft_mean_s": first["mean"] or 0.0,
        "ttft_p50_s": first["p50"] or 0.0,
        "ttft_p99_s": first["p99"] or 0.0,
        "latency_mean_s": whole["mean"] or 0.0,
        "balance": max(computed) * len(computed) / max(1, sum(computed)),
        "offered": float(total.offered),
        "not_answered": float(total.offered - total.good),
        "cpu_s": process_time() - began,
    }


def mean(runs: list[dict[str, float]]) -> dict[str, float]:
    """The mean of every figure over the seeds."""
    return {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}


def shortened(trace: Path, requests: int, folder: Path) -> Path:
    """The first requests of a trace, as a trace of its own."""
    if not requests:
        return trace
    copy = folder / "trace.jsonl"
    with trace.open(encoding="utf-8") as lines:
        copy.write_text("".join(islice(lines, requests)), encoding="utf-8")
    return copy


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures of all policies and sizes."""
    trace = shortened(given.trace, given.requests, folder)
    requests, seconds, ceiling = prompts(trace)
    if not requests:
        raise ConfigError("trace", f"{given.trace} has no requests", "use a trace with some")
    table: dict[str, dict[str, dict[str, float]]] = {}
    for blocks in given.blocks:
        rows = table[str(blocks)] = {}
        for policy in given.policies:
            setup = experiment(
                trace,
                policy,
                replicas=given.replicas,
                blocks=blocks,
                seconds=seconds,
                speed=given.speed,
            )
            row = rows[policy] = mean([measure(setup, seed) for seed in range(1, given.seeds + 1)])
            told = f"reuse {row['reuse']:.1%}, TTFT {row['ttft_mean_s']:.3f} s, "
            told += f"p99 {row['ttft_p99_s']:.3f} s"
            print(f"{blocks} blocks, {policy}: {told}", file=sys.stderr, flush=True)
    return {
        "benchmark": "routing_trace",
        "python": platform.python_version(),
        "trace": given.trace.name,
        "requests": requests,
        "seconds": round(seconds, 1),
        "replicas": given.replicas,
        "block_tokens": BLOCK_TOKENS,
        "speed": given.speed,
        "seeds": given.seeds,
        "ceiling": ceiling,
        "by_blocks": table,
    }


def show(figures: dict[str, Any]) -> None:
    """Print one table per cache size."""
    rate = figures["requests"] / max(1.0, figures["seconds"]) * figures["speed"]
    print(
        f"{figures['trace']}: {figures['requests']:,} requests, {rate:.1f}/s, on "
        f"{figures['replicas']} replicas; mean of {figures['seeds']} seeds; "
        f"an unbounded cache would reuse {figures['ceiling']:.1%} of the blocks"
    )
    for blocks, rows in figures["by_blocks"].items():
        print(f"\n{int(blocks):,} blocks of {BLOCK_TOKENS} tokens per replica")
        print(
            "  policy             reuse %  TTFT mean    p50      p99   whole mean  balance  failed"
        )
        base = rows.get(BASE)
        for policy, row in sorted(rows.items(), key=lambda item: -item[1]["reuse"]):
            beside = ""
            if base is not None and policy != BASE:
                mean_by = row["ttft_mean_s"] / base["ttft_mean_s"] - 1.0
                tail_by = row["ttft_p99_s"] / base["ttft_p99_s"] - 1.0
                beside = f"  TTFT {mean_by:+.0%}, p99 {tail_by:+.0%}"
            print(
                f"  {policy:<18} {row['reuse'] * 100:6.1f} {row['ttft_mean_s'] * 1000:8.0f} ms "
                f"{row['ttft_p50_s'] * 1000:5.0f} {row['ttft_p99_s'] * 1000:8.0f} "
                f"{row['latency_mean_s']:9.2f} s {row['balance']:8.2f} "
                f"{row['not_answered']:7.1f}{beside}"
            )


def numbers(text: str) -> list[int]:
    """A list of positive whole numbers, as an argument."""
    values = [int(part) for part in text.split(",")]
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError("use whole numbers above 0, such as 1000,4000")
    return values


def known_policies(text: str) -> list[str]:
    """A list of routing policies, as an argument."""
    names = text.split(",")
    for name in names:
        if name not in routing.POLICIES:
            known = ", ".join(routing.POLICIES)
            raise argparse.ArgumentTypeError(f"{name!r} is no policy; use some of {known}")
    return names


def main(arguments: Iterable[str] | None = None) -> None:
    """Replay the trace and print the tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--blocks", type=numbers, default=[1000, 4000])
    parser.add_argument("--policies", type=known_policies, default=list(routing.POLICIES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--speed", type=float, default=1.0, help="replay so many times as fast")
    parser.add_argument("--requests", type=int, default=0, help="only the first; 0 = all")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    for name in ("replicas", "seeds", "speed"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name} is {getattr(given, name)}; use a number above 0")
    try:
        with TemporaryDirectory() as folder:
            figures = run(given, Path(folder))
    except (ConfigError, OSError) as bad:
        parser.error(str(bad))
    if given.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
