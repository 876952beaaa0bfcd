"""How many requests the simulator gets through per second of CPU time.

    python bench/sim.py [--requests N] [--rounds R] [--json]

64 replicas, 200 requests/s, lognormal lengths of mean 500 in and 200 out, power of two choices,
random faults: once with invariants off, once with all of them checked after every event. Beside it
the same arrivals through a bare SimPy loop that has queues and random service times and nothing
else: no policies, no faults, no batching, no account. Rounds alternate, the best of each counts,
and a plain counting loop says how fast the machine was meanwhile.
"""

import argparse
import gc
import json
import platform
from collections.abc import Callable, Generator
from itertools import islice
from random import Random
from time import process_time
from typing import Any

import simpy

from holdfast.core.faults import random_schedule
from holdfast.core.types import SECOND, Replica, nanos
from holdfast.sim.invariants import Auditor
from holdfast.sim.setup import Setup
from holdfast.sim.streams import stream
from holdfast.sim.workload import Lengths, Workload, arrivals
from holdfast.sim.world import World

REPLICAS = 64
RATE = 200.0
WORKLOAD = Workload(rate=RATE, prompt=Lengths(mean=500.0), output=Lengths(mean=200.0))
FAULTS_PER_REPLICA_HOUR = 10.0
SEED = 1
SECONDS_PER_TOKEN = 0.0148  # of the SimPy servers: what the batched engines give at this load


def setup(requests: int) -> Setup:
    """The experiment of this benchmark, sized to about so many requests."""
    replicas = tuple(
        Replica(f"r{index:02d}", "model", zone=f"zone-{index % 3}") for index in range(REPLICAS)
    )
    duration_s = requests / RATE
    faults = random_schedule(
        stream(SEED, "bench", "faults"), replicas, nanos(duration_s), FAULTS_PER_REPLICA_HOUR
    )
    return Setup(replicas, duration_s=duration_s, workloads=(("model", WORKLOAD),), faults=faults)


def run_holdfast(requests: int, *, audit: bool) -> tuple[int, float]:
    """Requests offered and CPU seconds."""
    gc.collect()
    began = process_time()
    world = World(setup(requests), SEED)
    auditor = Auditor.watch(world) if audit else None
    results = world.run()
    if auditor is not None:
        auditor.finish(world.clock.now)
    return results.total().offered, process_time() - began


def run_simpy(requests: int) -> tuple[int, float]:
    """The same arrivals on as many FIFO servers, the shorter of two queues."""
    gc.collect()
    began = process_time()
    env = simpy.Environment()
    servers = [simpy.Resource(env, capacity=128) for _ in range(REPLICAS)]
    rng = Random(SEED)
    done = 0

    def serve(tokens: int) -> Generator[Any, Any, None]:
        nonlocal done
        one, two = servers[int(rng.random() * REPLICAS)], servers[int(rng.random() * REPLICAS)]
        server = one if one.count + len(one.queue) <= two.count + len(two.queue) else two
        with server.request() as slot:
            yield slot
            yield env.timeout(tokens * SECONDS_PER_TOKEN)
        done += 1

    def arrive() -> Generator[Any, Any, None]:
        for request, tokens in islice(arrivals(WORKLOAD, "model", SEED), requests):
            yield env.timeout(request.arrived / SECOND - env.now)
            env.process(serve(tokens))

    env.process(arrive())
    env.run()
    return done, process_time() - began


def speed_of_machine() -> float:
    """Millions of additions per CPU second in a plain loop."""
    began = process_time()
    total = 0
    for number in range(2_000_000):
        total += number
    return 2.0 / (process_time() - began)


def main() -> None:
    """Run the rounds and print the table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    cases: dict[str, Callable[[int], tuple[int, float]]] = {
        "invariants_off": lambda n: run_holdfast(n, audit=False),
        "invariants_on": lambda n: run_holdfast(n // 4, audit=True),
        "bare_simpy": run_simpy,
    }
    best = dict.fromkeys(cases, 0.0)
    machine = 0.0
    for _ in range(given.rounds):
        machine = max(machine, speed_of_machine())
        for name, case in cases.items():
            count, cpu_s = case(given.requests)
            best[name] = max(best[name], count / cpu_s)
    if given.json:
        figures: dict[str, Any] = {
            "benchmark": "sim",
            "python": platform.python_version(),
            "requests": given.requests,
            "rounds": given.rounds,
            "requests_per_cpu_s": {name: round(rate) for name, rate in best.items()},
            "machine_additions_per_us": round(machine, 2),
        }
        print(json.dumps(figures))
        return
    print(f"simulated requests per CPU second, best of {given.rounds} rounds")
    for name, rate in best.items():
        print(f"  {name.replace('_', ' '):<16} {rate:>9,.0f}   {1e6 / rate:6.1f} µs per request")
    print(f"  (machine: {machine:.1f} million additions per CPU second)")


if __name__ == "__main__":
    main()
