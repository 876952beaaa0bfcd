"""What a large cluster costs control, and whether a storm of relists delays its canaries.

    python bench/cluster.py [--pods 1000] [--nodes 100] [--replicas 50] [--seconds 60] [--json]

Three processes: a fake API server with that many pods and nodes, stand-ins behind those pods that
are replicas, and control, which is this process. Its gateways are left out. Pods change all the
while, as those of a busy cluster do.

    calm    watches stay open
    storm   every second all history is forgotten and every watch is cut: each begins with a list

Told of each: CPU time of this process, calls to the API server, the longest time in which the event
loop did nothing else, and by how much canaries were late. The other two processes share the cores.

Exit status 1: the loop stood still for more than 100 ms of its own CPU time, or a canary in the
storm was later than in the calm by more than half a second. Clocks say little on a machine that is
busy with other things; CPU time does.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import orjson
import structlog
import uvloop
from rich.console import Console
from rich.table import Table

from holdfast.control.process import Control, settle_memory
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.types import State
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.launcher import FakeHost, FakeLauncher
from holdfast.testing.standin import Options, StandIn
from holdfast.wire.view_sources import build_source

TESTS: Final = str(Path(__file__).parents[1] / "tests")
STARTING_S: Final = 120.0
TICK_S: Final = 0.002  # between two looks at how late the loop is
STORM_S: Final = 1.0  # between two times that the API server forgets its history
CHANGES_S: Final = 5.0  # pods that change in a second
OTHERS: Final = 19  # models of which control only sees the pods
PAUSE_S_MAX: Final = 0.1
LATER_S_MAX: Final = 0.5


# --- the other processes --------------------------------------------------------------------------


def serve_cluster(pods: int, nodes: int, replicas: int) -> None:
    """Be the API server: print its URL, then obey lines of the standard input."""
    sys.path.insert(0, TESTS)
    from fakekube import FakeKube, event, node, pod  # noqa: PLC0415 found by the path above

    rng = Random(1)
    with FakeKube() as kube:
        zones = [{"topology.kubernetes.io/zone": f"zone-{number % 3}"} for number in range(nodes)]
        for number in range(nodes):
            made = node(f"node-{number}", labels=zones[number], memory="256Gi", gpus=8)
            kube.put("nodes", made)
        names = []
        for number in range(pods):
            routed = number < replicas
            model = "m" if routed else f"other-{number % OTHERS}"
            address = f"127.0.0.{number + 2}" if routed else f"10.1.{number // 250}.{number % 250}"
            made = pod(f"{model}-{number}", model=model, ip=address, host=f"node-{number % nodes}")
            names.append((made["metadata"]["name"], kube.put("pods", made)))
        for number in range(min(pods, 200)):
            about = names[-1 - number][0]
            kube.put("events", event(f"e-{number}", "Unhealthy", "probe failed", about=about))
        print(kube.url, flush=True)
        for line in sys.stdin:
            if line.strip() == "change":
                _, made = rng.choice(names)
                kube.put("pods", made)
            elif line.strip() == "expire":
                kube.expire()


async def serve_engines(replicas: int) -> None:
    """Be the engines: print their port, then serve until the standard input ends."""
    options = Options(models=("m",), ttft_ms=2.0, tpot_ms=0.2)
    first = await StandIn(options).start("127.0.0.2", 0, side_port=None)
    port = int(first.url.rpartition(":")[2])
    for number in range(1, replicas):
        await StandIn(options).start(f"127.0.0.{number + 2}", port, side_port=None)
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)


class Child:
    """Another process of this benchmark, by its part."""

    def __init__(self, part: str, given: argparse.Namespace) -> None:
        sizes = ["--pods", given.pods, "--nodes", given.nodes, "--replicas", given.replicas]
        command = [sys.executable, __file__, "--part", part, *map(str, sizes)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        """Give it a line to obey."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)


# --- what is measured -----------------------------------------------------------------------------


@dataclass
class Phase:
    """One part of the run."""

    name: str
    seconds: float = 0.0
    cpu_s_per_min: float = 0.0
    calls_per_min: float = 0.0
    pause_ms: float = 0.0  # the longest, by the clock
    pause_cpu_ms: float = 0.0  # the longest, by the CPU time of its own thread
    canaries: int = 0
    late_ms_p50: float = 0.0
    late_ms_p99: float = 0.0
    late_ms_max: float = 0.0
    lates: list[float] = field(default_factory=list, repr=False)


class Watch:
    """Watches the event loop and the canaries of the phase that runs."""

    def __init__(self) -> None:
        self.phase = Phase("start")
        started = ReplicaHealth.canary_started

        def noted(health: ReplicaHealth, now: int) -> None:
            self.phase.lates.append(max(0, now - health.next_canary_at) / 1e6)
            started(health, now)

        ReplicaHealth.canary_started = noted  # type: ignore[assignment,method-assign]

    async def run(self) -> None:
        """Look at the clock all the while."""
        while True:
            wall, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(TICK_S)
            late_ms = (time.monotonic() - wall - TICK_S) * 1e3
            used_ms = (time.thread_time() - cpu) * 1e3
            self.phase.pause_ms = max(self.phase.pause_ms, late_ms)
            self.phase.pause_cpu_ms = max(self.phase.pause_cpu_ms, min(used_ms, late_ms))


def calls_of(control: Control) -> float:
    """Calls to platforms so far."""
    counters, _ = control.source_poller.metrics()
    return sum(value for name, value in counters.items() if name.startswith("source_calls_total"))


async def measured(
    name: str, control: Control, watch: Watch, cluster: Child, seconds: float, *, storm: bool
) -> Phase:
    """Let this phase last so long; what was seen."""
    phase = watch.phase = Phase(name)
    cpu, calls, began = time.process_time(), calls_of(control), time.monotonic()
    expired = began
    while (now := time.monotonic()) - began < seconds:
        cluster.tell("change")
        if storm and now - expired >= STORM_S:
            expired = now
            cluster.tell("expire")
        await asyncio.sleep(1 / CHANGES_S)
    took = time.monotonic() - began
    phase.seconds = round(took, 1)
    phase.cpu_s_per_min = round((time.process_time() - cpu) / took * 60, 2)
    phase.calls_per_min = round((calls_of(control) - calls) / took * 60, 1)
    lates = sorted(phase.lates)
    phase.canaries = len(lates)
    if lates:
        phase.late_ms_p50 = round(lates[len(lates) // 2], 1)
        phase.late_ms_p99 = round(lates[len(lates) * 99 // 100], 1)
        phase.late_ms_max = round(lates[-1], 1)
    phase.pause_ms, phase.pause_cpu_ms = round(phase.pause_ms, 1), round(phase.pause_cpu_ms, 1)
    return phase


# --- the run --------------------------------------------------------------------------------------


async def run(given: argparse.Namespace, folder: Path) -> list[Phase]:
    """Start all of it, and measure both phases."""
    cluster, engines = Child("cluster", given), Child("engines", given)
    watch = Watch()
    source = {"type": "kubernetes", "name": "kube", "api_url": cluster.said}
    model = {"name": "m", "engine": "vllm", "discover": {"source": "kube", "port": engines.said}}
    path = folder / "fleet.yaml"
    path.write_bytes(orjson.dumps({"models": [model], "sources": [source]}))  # JSON is YAML
    store = SqliteStore(folder / "state.db")
    launcher = FakeLauncher(FakeHost())  # nothing is launched here
    control = Control(path, folder, {}, "control", store, launcher, build_source)
    settle_memory()  # as the process that is served with does
    stop = asyncio.Event()
    jobs = [asyncio.create_task(control.run(stop)), asyncio.create_task(watch.run())]
    try:
        async with asyncio.timeout(STARTING_S):
            while ready(control) < given.replicas:  # noqa: ASYNC110 it has no event
                await asyncio.sleep(0.2)
        calm = await measured("calm", control, watch, cluster, given.seconds, storm=False)
        storm = await measured("storm", control, watch, cluster, given.seconds, storm=True)
        return [calm, storm]
    finally:
        jobs[1].cancel()
        stop.set()
        await asyncio.gather(*jobs, return_exceptions=True)
        cluster.end()
        engines.end()
        store.close()


def ready(control: Control) -> int:
    """Replicas that canaries have found to be well."""
    healths = (control.loop.health(name) for name in control.loop.deployed)
    return sum(health is not None and health.state is State.READY for health in healths)


def shown(phases: list[Phase], given: argparse.Namespace) -> Table:
    """The table that people read."""
    title = f"{given.pods} pods, {given.nodes} nodes, {given.replicas} of them replicas"
    table = Table(title=title)
    columns = {
        "CPU s/min": "cpu_s_per_min",
        "calls/min": "calls_per_min",
        "longest pause ms": "pause_ms",
        "of own CPU ms": "pause_cpu_ms",
        "canaries": "canaries",
        "late ms p50": "late_ms_p50",
        "p99": "late_ms_p99",
        "max": "late_ms_max",
    }
    for name in ("", *columns):
        table.add_column(name, justify="right" if name else "left")
    for phase in phases:
        table.add_row(phase.name, *(str(getattr(phase, key)) for key in columns.values()))
    return table


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, default=1_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=("cluster", "engines"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not 1 <= given.replicas <= min(given.pods, 250):
        parser.error("--replicas: use 1 to 250, and no more than --pods")
    if given.part == "cluster":
        serve_cluster(given.pods, given.nodes, given.replicas)
        return 0
    if given.part == "engines":
        uvloop.run(serve_engines(given.replicas))
        return 0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with tempfile.TemporaryDirectory() as folder:
        phases = uvloop.run(run(given, Path(folder)))
    calm, storm = phases
    rows = [{k: v for k, v in asdict(one).items() if k != "lates"} for one in phases]
    if given.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        Console().print(shown(phases, given))
    paused = max(calm.pause_cpu_ms, storm.pause_cpu_ms) > PAUSE_S_MAX * 1e3
    later = storm.late_ms_max - calm.late_ms_max > LATER_S_MAX * 1e3
    return int(paused or later)


if __name__ == "__main__":
    sys.exit(main())
