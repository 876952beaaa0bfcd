"""What a request and a streamed chunk cost in Holdfast's gateway, beside its peers.

    python bench/gateway.py [--install] [--quick] [--rounds R] [--seconds S] [--peers A,B]
                            [--markdown] [--json FILE] [--holdfast COMMAND] [--urgent]

Every gateway gets one core and two replicas; replicas and clients have the other core. Cost is CPU
time, user and system, of the gateway's whole process tree (and of its busiest process alone, in
parentheses) divided by the answers that were 2xx and verified byte for byte: what a gateway gets
wrong costs it the time and counts for nothing. Rounds go round the gateways, each round beginning
with another one, and medians count; ratios are taken within a round, because a machine's speed
drifts from minute to minute. Each round starts them anew: where the kernel happens to place an
interpreter and its libraries is worth up to a fifth, for as long as the process lives (under
``setarch -R``, which places them always alike, every start measures the same). Throughput was
rejected as the measure: on a shared machine it tells who else was running.

Latency is what a gateway adds at half of its own saturation, over the same rate sent to the
replicas directly. The last part holds 2,000 streams open (``gateway_streams.py``). Both are
repeated when other processes took much of either core meanwhile; how much is printed. On a machine
that is shared, ``--urgent`` puts everything measured before what else runs there.

Exit status 1: a target was missed.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

from rich.console import Console

import gateway_peers as peers
import gateway_processes as processes
from gateway_load import Load, Tally, percentile
from gateway_report import CHUNK, HOLDFAST, SIZES, Cost, Findings, Latency, Streams, show, verdicts
from gateway_streams import allow_files, read_streams, unhurried

JOBS: Final = (*SIZES, CHUNK)
CHUNKS: Final = 100  # content chunks of a stream,
CHUNK_GAP_MS: Final = 5  # so far apart
CONNECTIONS: Final = 32
STREAM_CONNECTIONS: Final = 64  # × 200 chunks/s: about half of what Envoy can relay on one core
LATENCY_RATE_MAX: Final = 8_000.0  # per second; above it the clients' core adds more than a gateway
ONCE: Final = ("litellm",)  # so far from the others that one round, apart, tells it
HOLD_S: Final = 5.0  # how long all streams are watched
STREAM_PEERS: Final = ("envoy", "vllm-router", HOLDFAST)
DISTURBED: Final = 0.15  # share of either core that others took: above it a part is repeated,
TRIES: Final = 2  # times at most; the less disturbed counts

Result = TypeVar("Result")


# --- measuring ------------------------------------------------------------------------------------


class Meter:
    """CPU time of a gateway, and of everybody else on the two cores, between two marks."""

    def __init__(
        self, site: peers.Site, running: processes.Running | None, ours: list[int]
    ) -> None:
        self._site = site
        self._running = running
        self._ours = ours  # clients and replicas
        self._marks: list[tuple[float, dict[int, float], dict[int, float], list[float]]] = []
        self.memory_bytes = 0

    def mark(self) -> None:
        """Note how things stand."""
        pids = self._running.pids() if self._running else []
        self.memory_bytes = processes.memory_bytes(pids)
        cores = (self._site.gateway_core, self._site.load_core)
        busy = [processes.core_busy_seconds(core) for core in cores]
        spent = processes.cpu_seconds(pids)
        self._marks.append((monotonic(), spent, processes.cpu_seconds(self._ours), busy))

    @property
    def elapsed_s(self) -> float:
        """Between the first mark and the last."""
        return self._marks[-1][0] - self._marks[0][0]

    def spent(self) -> dict[int, float]:
        """CPU seconds of each process of the gateway."""
        before, after = self._marks[0][1], self._marks[-1][1]
        return {pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()}

    def others(self) -> float:
        """Share of the busier core that belongs to nobody here."""
        first, last = self._marks[0], self._marks[-1]
        load = sum(last[2].values()) - sum(first[2].values())
        gateway_core, load_core = (now - was for now, was in zip(last[3], first[3], strict=True))
        foreign = load_core - load
        if self._running is not None:
            foreign = max(foreign, gateway_core - sum(self.spent().values()))
        return max(0.0, foreign / max(self.elapsed_s, 1e-9))


class Bench:
    """One run: the replicas, the gateways that are up, and what was found."""

    def __init__(
        self, site: peers.Site, seconds: float, tries: int, report: Callable[[str], None]
    ) -> None:
        self.site = site
        self.seconds = seconds
        self._tries = tries
        self.findings = Findings()
        self._report = report
        self._replicas = peers.start_replicas(site)

    def close(self) -> None:
        """End the replicas."""
        self._replicas.end()

    @contextlib.contextmanager
    def gateways(self, names: Sequence[str]) -> Iterator[list[processes.Running]]:
        """Have them up; one that does not start is left out and named."""
        running: list[processes.Running] = []
        try:
            for name in names:
                try:
                    running.append(peers.start(name, self.site))
                except processes.PeerError as error:
                    self.findings.absent.append(str(error))
            yield running
        finally:
            for gateway in running:
                gateway.end()

    def _meter(self, running: processes.Running | None) -> Meter:
        return Meter(self.site, running, [os.getpid(), *self._replicas.pids()])

    def cost(self, running: processes.Running, job: str) -> None:
        """One job, once."""
        meter = self._meter(running)
        if job == CHUNK:
            load = Load((running.port,), SIZES["0.3"], STREAM_CONNECTIONS, self.seconds)
            tally = load.streaming(CHUNKS, CHUNK_GAP_MS).closed(meter.mark)
        else:
            load = Load((running.port,), SIZES[job], CONNECTIONS, self.seconds)
            tally = load.closed(meter.mark)
        cost = _cost(tally, meter, CHUNKS if job == CHUNK else 1)
        self.findings.costs.setdefault(running.name, {}).setdefault(job, []).append(cost)
        unit = "chunk" if job == CHUNK else f"request of {job} KB"
        self._report(
            f"{running.name}: {cost.tree_us:.1f} µs per {unit}, {cost.per_second:,.0f}/s, "
            f"{cost.failed} failed {cost.problem}"
        )

    def latency(self, running: processes.Running) -> None:
        """At half of its own saturation, beside the replicas themselves."""
        rounds = self.findings.costs[running.name]["0.3"]
        rate = min(LATENCY_RATE_MAX, max(cost.per_second for cost in rounds) / 2)
        if rate <= 0.0:
            return

        def once() -> tuple[float, Latency]:
            meter = self._meter(running)
            meter.mark()
            direct, through = (
                Load(ports, SIZES["0.3"], STREAM_CONNECTIONS, self.seconds).paced(rate).latencies_s
                for ports in (self.site.replicas, (running.port,))
            )
            meter.mark()
            low, high = (
                [percentile(values, share) * 1e6 for values in (direct, through)]
                for share in (0.5, 0.99)
            )
            others = meter.others()
            return others, Latency(rate, low[0], high[0], low[1], high[1], others)

        found = self._least_disturbed(once)
        self.findings.latency[running.name] = found
        self._report(
            f"{running.name}: adds {found.added_p50:.0f} µs, p99 {found.added_p99:.0f} µs "
            f"at {rate:,.0f}/s"
        )

    def streams(self, name: str | None, number: int) -> None:
        """So many streams at once, through a gateway started for it or from the replicas."""

        def once() -> tuple[float, Streams]:
            with contextlib.ExitStack() as stack:
                running = peers.start(name, self.site) if name else None
                if running is not None:
                    stack.callback(running.end)
                meter = self._meter(running)
                before = processes.memory_bytes(running.pids()) if running else 0
                stack.enter_context(unhurried(self._replicas.pids()))
                ports = (running.port,) if running else self.site.replicas
                seen = read_streams(ports, number, HOLD_S, meter.mark)
            memory_kb = (meter.memory_bytes - before) / number / 1024
            share = sum(meter.spent().values()) / meter.elapsed_s
            return meter.others(), Streams(seen, memory_kb, share, meter.others())

        try:
            found = self._least_disturbed(once)
        except processes.PeerError as error:
            self.findings.absent.append(str(error))
            return
        if name is None:
            self.findings.direct_streams = found
        else:
            self.findings.streams[name] = found
        self._report(
            f"{name or 'the replicas'}: {number} streams, gap p99 "
            f"{found.seen.gap_p99_ms:.1f} ms, {found.seen.verified} verified {found.seen.problem}"
        )

    def _least_disturbed(self, once: Callable[[], tuple[float, Result]]) -> Result:
        """Repeat what other processes disturbed; the quietest counts."""
        tries = [once()]
        while tries[-1][0] > DISTURBED and len(tries) < self._tries:
            tries.append(once())
        return min(tries, key=lambda one: one[0])[1]


def _cost(tally: Tally, meter: Meter, units: int) -> Cost:
    spent = list(meter.spent().values()) or [0.0]
    answered = tally.verified * units
    per_unit = 1e6 / answered if answered else float("nan")
    return Cost(
        tree_us=sum(spent) * per_unit,
        alone_us=max(spent) * per_unit,
        per_second=answered / tally.seconds,
        verified=tally.verified,
        rewritten=tally.rewritten,
        failed=tally.failed,
        problem=tally.problem,
        reads_per_unit=tally.reads / answered if answered else float("nan"),
        others=meter.others(),
    )


def run(
    bench: Bench, names: Sequence[str], rounds: int, streams: int, stream_peers: Sequence[str]
) -> None:
    """All parts, for the gateways that are there."""
    together = [name for name in names if name not in ONCE]
    for number in range(rounds):
        with bench.gateways(together) as running:
            turn = number % max(len(running), 1)
            for job in JOBS:
                for gateway in (*running[turn:], *running[:turn]):
                    bench.cost(gateway, job)
            if number == rounds - 1:
                for gateway in running:
                    bench.latency(gateway)
    with bench.gateways([name for name in names if name in ONCE]) as running:
        for gateway in running:
            for job in JOBS:
                bench.cost(gateway, job)
            bench.latency(gateway)
    if not streams:
        return
    bench.streams(None, streams)
    for name in (name for name in names if name in stream_peers):
        bench.streams(name, streams)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=None, help="5, with --quick 1")
    parser.add_argument("--seconds", type=float, default=None, help="of each measurement")
    parser.add_argument("--peers", default=None, help=f"of {','.join(peers.PEERS)}")
    parser.add_argument("--streams", type=int, default=2_000, help="at once; 0 leaves it out")
    parser.add_argument("--quick", action="store_true", help="below two minutes, without LiteLLM")
    parser.add_argument("--urgent", action="store_true", help="highest priority; needs root")
    parser.add_argument("--install", action="store_true", help="fetch missing peers first")
    parser.add_argument("--markdown", action="store_true", help="tables for the docs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything measured")
    beside = Path(sys.executable).with_name(HOLDFAST)
    parser.add_argument("--holdfast", type=Path, default=beside, help="the command to measure")
    return parser.parse_args()


def main() -> int:
    """Run all; 1 when a target is missed."""
    arguments = _arguments()
    quick = arguments.quick
    usual = [name for name in peers.PEERS if not (quick and name in ONCE)]
    wanted = arguments.peers.split(",") if arguments.peers else usual
    unknown = set(wanted) - set(peers.PEERS)
    if unknown:
        print(f"no such gateway: {', '.join(sorted(unknown))}; there are {', '.join(peers.PEERS)}")
        return 2
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("two cores are needed: one for the gateway, one for everything else")
        return 2
    # A stop from outside must end what was started, too: as an exception it passes every finally.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    complaints = peers.install() if arguments.install else []
    allow_files(16_384)
    os.sched_setaffinity(0, {cores[1]})
    began = monotonic()
    urgency = processes.urgent() if arguments.urgent else contextlib.nullcontext()
    with urgency, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        ports = (peers.free_port(), peers.free_port())
        site = peers.Site(Path(scratch), ports, cores[0], cores[1], arguments.holdfast.absolute())
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        there = [name for name in wanted if peers.PEERS[name].program(site) is not None]
        seconds = arguments.seconds or (1.5 if quick else 2.5)
        tries = 1 if quick or arguments.urgent else TRIES  # the urgent leave others what is idle
        bench = Bench(site, seconds, tries, console.print)
        bench.findings.absent += [
            f"{name} is not installed" for name in wanted if name not in there
        ]
        bench.findings.absent += complaints
        try:
            rounds = arguments.rounds or (1 if quick else 5)
            stream_peers = (HOLDFAST,) if quick else STREAM_PEERS
            run(bench, there, rounds, arguments.streams, stream_peers)
        finally:
            bench.close()
    findings = bench.findings
    show(findings, markdown=arguments.markdown)
    print(f"Took {monotonic() - began:.0f} s on {platform.machine()}, Linux {platform.release()}.")
    judged = verdicts(findings)
    if arguments.json:
        whole: dict[str, Any] = asdict(findings) | {"targets": [asdict(v) for v in judged]}
        arguments.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return 1 if any(verdict.met is False for verdict in judged) else 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["Bench", "main", "run"]
