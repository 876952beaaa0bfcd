"""How many requests the simulator gets through per second of CPU time.

    python bench/sim.py [--requests N] [--rounds R] [--json] [--as-is]

64 replicas, 200 requests/s, lognormal lengths of mean 500 in and 200 out, power of two choices,
random faults: once without invariants and diagnosis, once with diagnosis that observes, once with
all invariants checked after every event. Beside it
the same arrivals through a bare SimPy loop that has queues and random service times and nothing
else: no policies, no faults, no batching, no account. Rounds alternate, the best of each counts,
and a plain counting loop says how fast the machine was meanwhile.

Where a C compiler is found, the hot part of the package is compiled first (``bench/compiled.py``,
once, some minutes; ``--as-is`` leaves that out) and measured in the same rounds, in processes of
its own.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from random import Random
from time import process_time
from typing import Any, Final

import simpy

import compiled
from holdfast.core.plan.faults import random_schedule
from holdfast.core.types import SECOND, Replica, nanos
from holdfast.sim.diagnosis import DiagnosisDriver
from holdfast.sim.experiment import Experiment
from holdfast.sim.invariants import Auditor
from holdfast.sim.random_streams import stream
from holdfast.sim.workload import Lengths, Workload, arrivals
from holdfast.sim.world import World

REPLICAS = 64
RATE = 200.0
WORKLOAD = Workload(rate=RATE, prompt=Lengths(mean=500.0), output=Lengths(mean=200.0))
FAULTS_PER_REPLICA_HOUR = 10.0
SEED = 1
SECONDS_PER_TOKEN = 0.0148  # of the SimPy servers: what the batched engines give at this load
OURS: Final = ("invariants_off", "diagnosis_on", "invariants_on")


def setup(requests: int) -> Experiment:
    """The experiment of this benchmark, sized to about so many requests."""
    replicas = tuple(
        Replica(f"r{index:02d}", "model", zone=f"zone-{index % 3}") for index in range(REPLICAS)
    )
    duration_s = requests / RATE
    faults = random_schedule(
        stream(SEED, "bench", "faults"), replicas, nanos(duration_s), FAULTS_PER_REPLICA_HOUR
    )
    return Experiment(
        replicas, duration_s=duration_s, workloads=(("model", WORKLOAD),), faults=faults
    )


def run_holdfast(
    requests: int, *, audit: bool = False, diagnosis: bool = False
) -> tuple[int, float]:
    """Requests offered and CPU seconds."""
    gc.collect()
    began = process_time()
    world = World(setup(requests), SEED)
    auditor = Auditor.watch(world) if audit else None
    if diagnosis:
        DiagnosisDriver(world, seed=SEED)
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


def round_of(requests: int, names: Iterable[str]) -> dict[str, float]:
    """Requests per CPU second of each case, once."""
    cases: dict[str, Callable[[int], tuple[int, float]]] = {
        "invariants_off": run_holdfast,
        "diagnosis_on": lambda n: run_holdfast(n, diagnosis=True),
        "invariants_on": lambda n: run_holdfast(n // 4, audit=True),
        "bare_simpy": run_simpy,
    }
    rates = {}
    for name in names:
        count, cpu_s = cases[name](requests)
        rates[name] = count / cpu_s
    return rates


def compiled_round(requests: int) -> dict[str, float]:
    """As ``round_of``, in a process that imports the compiled package."""
    command = [sys.executable, __file__, "--imported", "--requests", str(requests)]
    surroundings = {**os.environ, "PYTHONPATH": str(compiled.OUTPUT)}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    rates: dict[str, float] = json.loads(done.stdout)
    return rates


def measure(requests: int, rounds: int) -> dict[str, Any]:
    """All figures: the best of the rounds, in which the builds take turns."""
    stale = compiled.stale()
    best: dict[str, dict[str, float]] = {"interpreted": {}, "compiled": {}}
    machine = 0.0
    for _ in range(rounds):
        machine = max(machine, speed_of_machine())
        took = {"interpreted": round_of(requests, (*OURS, "bare_simpy"))}
        if not stale:
            took["compiled"] = compiled_round(requests)
        for build, rates in took.items():
            for name, rate in rates.items():
                best[build][name] = round(max(best[build].get(name, 0.0), rate))
    build = "interpreted" if stale else "compiled"
    return {
        "benchmark": "sim",
        "python": platform.python_version(),
        "requests": requests,
        "rounds": rounds,
        "build": build,  # the best there is: whose figures the next line gives
        "requests_per_cpu_s": {**best["interpreted"], **best[build]},
        "interpreted": best["interpreted"],
        "compiled": {"missing": stale} if stale else best["compiled"],
        "machine_additions_per_us": round(machine, 2),
    }


def main() -> None:
    """Run the rounds and print the table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-is", action="store_true", help="compile nothing beforehand")
    parser.add_argument("--imported", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.imported:
        print(json.dumps(round_of(given.requests, OURS)))
        return
    if not given.as_is:
        recipe = [sys.executable, compiled.__file__, "--if-possible"]
        subprocess.run(recipe, check=True, stdout=sys.stderr)
    figures = measure(given.requests, given.rounds)
    if given.json:
        print(json.dumps(figures))
        return
    print(f"simulated requests per CPU second, best of {given.rounds} rounds")
    for build in ("interpreted", "compiled"):
        for name, rate in figures[build].items():
            if name == "missing":
                print(f"  {build:<12} {rate}")
            else:
                what = name.replace("_", " ")
                print(f"  {build:<12} {what:<16} {rate:>9,}   {1e6 / rate:6.1f} µs per request")
    print(f"  (machine: {figures['machine_additions_per_us']:.1f} additions per CPU microsecond)")


if __name__ == "__main__":
    main()
