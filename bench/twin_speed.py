"""How long one arm of a what-if takes: an hour of traffic on a large fleet, on one core.

    python bench/twin_speed.py [--replicas N] [--rate R] [--hours H] [--seed S] [--as-is] [--json]

64 replicas at 200 requests/s for an hour are 720,000 requests, with random faults among them, as
in ``bench/sim.py``: fleet, flow and canaries run as they do in production, diagnosis is off. The
same run is timed interpreted and, where a C compiler is found, compiled (``bench/compiled.py``;
``--as-is`` compiles nothing beforehand), in processes of their own, one after the other. Both must
find the same: their accounts are compared. Seconds are CPU time of one core.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from hashlib import blake2b
from time import perf_counter, process_time
from typing import Any, Final

import compiled
from holdfast.core.plan.faults import random_schedule
from holdfast.core.types import Replica, nanos
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

FAULTS_PER_REPLICA_HOUR: Final = 10.0
LIMIT_S: Final = 30.0  # of CPU time, for the compiled build


def arm(replicas: int, rate: float, hours: float, seed: int) -> Experiment:
    """The fleet, its traffic and its faults."""
    fleet = tuple(Replica(f"r{n:02d}", "model", zone=f"zone-{n % 3}") for n in range(replicas))
    workload = Workload(rate=rate, prompt=Lengths(mean=500.0), output=Lengths(mean=200.0))
    draws, duration = stream(seed, "bench", "faults"), nanos(hours * 3600.0)
    return Experiment(
        fleet,
        duration_s=hours * 3600.0,
        workloads=(("model", workload),),
        faults=random_schedule(draws, fleet, duration, FAULTS_PER_REPLICA_HOUR),
    )


def measure(setup: Experiment, seed: int) -> dict[str, Any]:
    """One run in this process: seconds, requests, and a name for what came out."""
    began, cpu = perf_counter(), process_time()
    results = World(setup, seed).run()
    cpu_s, wall_s = process_time() - cpu, perf_counter() - began
    account = json.dumps(results.to_dict(), sort_keys=True)
    offered = results.total().offered
    return {
        "cpu_s": round(cpu_s, 2),
        "wall_s": round(wall_s, 2),
        "requests": offered,
        "requests_per_cpu_s": round(offered / cpu_s),
        "account": blake2b(account.encode(), digest_size=8).hexdigest(),
    }


def measured_apart(given: argparse.Namespace, *, machine_code: bool) -> dict[str, Any]:
    """The same in a new process, which imports one build or the other."""
    command = [sys.executable, __file__, "--imported"]
    for name in ("replicas", "rate", "hours", "seed"):
        command += [f"--{name}", str(getattr(given, name))]
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if machine_code:
        surroundings["PYTHONPATH"] = str(compiled.OUTPUT)
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Time both builds and print them beside the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--rate", type=float, default=200.0, help="requests/s")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--as-is", action="store_true", help="compile nothing beforehand")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--imported", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in ("replicas", "rate", "hours"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name} is {getattr(given, name)}; use a number above 0")
    if given.imported:
        setup = arm(given.replicas, given.rate, given.hours, given.seed)
        print(json.dumps(measure(setup, given.seed)))
        return
    if not given.as_is:
        recipe = [sys.executable, compiled.__file__, "--if-possible"]
        subprocess.run(recipe, check=True, stdout=sys.stderr)
    builds = {"interpreted": measured_apart(given, machine_code=False)}
    stale = compiled.stale()
    if not stale:
        builds["compiled"] = measured_apart(given, machine_code=True)
    if given.json:
        told = {"benchmark": "twin_speed", "python": platform.python_version(), "stale": stale}
        print(json.dumps(told | {"limit_s": LIMIT_S, "builds": builds}))
    else:
        print(f"{given.hours:g} h at {given.rate:g} requests/s on {given.replicas} replicas")
        for name, row in builds.items():
            print(
                f"  {name:<12} {row['cpu_s']:7.1f} s of CPU ({row['wall_s']:.1f} s passed), "
                f"{row['requests']:,} requests, {row['requests_per_cpu_s']:,} per second"
            )
        print(f"  compiled     {stale}" if stale else f"  limit        {LIMIT_S:7.1f} s, compiled")
    accounts = {row["account"] for row in builds.values()}
    if len(accounts) > 1:
        sys.exit("the two builds disagree on what happened")


if __name__ == "__main__":
    main()
