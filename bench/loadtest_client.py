"""What the client of ``holdfast bench`` costs: many streams at once, from one core.

    python bench/loadtest_client.py --streams 1000

A stand-in in a process of its own answers; the client holds a closed loop of so many users. CPU
time says what one core carries, also on a machine that others use; lateness says whether the
client would have reported here and now.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import ClassVar
from unittest.mock import patch

import uvloop

from holdfast.loadtest import load_run
from holdfast.loadtest.client_check import ClientLimits, descriptors_for, why_refused
from holdfast.loadtest.load_run import LoadClient, StepLoad
from holdfast.loadtest.measured_call import MeasuredCall
from holdfast.loadtest.records import BenchOutcome, BenchRecord, BenchStep
from holdfast.loadtest.request_plan import BodyForm, RequestPlan
from holdfast.sim.workload import Lengths, Workload

HOLDFAST = Path(sys.executable).with_name("holdfast")


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--tpot-ms", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    problem = descriptors_for(args.streams)
    if problem:
        raise SystemExit(problem)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine = subprocess.Popen(
        [
            *(HOLDFAST, "stand-in", "--port", str(port), "--ttft-ms", "200"),
            *("--tpot-ms", str(args.tpot_ms), "--tokens", str(args.tokens)),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert engine.stdout is not None
        engine.stdout.readline()  # it listens
        uvloop.run(measure(f"http://127.0.0.1:{port}", args))
    finally:
        engine.terminate()
        engine.wait()


class CountedCall(MeasuredCall):
    """A call that counts reads of sockets: where a client is starved, one read is many events."""

    __slots__ = ()
    reads: ClassVar = 0

    def on_data(self, data: bytes) -> None:
        """Count one read."""
        CountedCall.reads += 1
        super().on_data(data)


async def measure(url: str, args: argparse.Namespace) -> None:
    """Hold the load, and print its cost."""
    limits = ClientLimits(streams_max=max(4_000, args.streams))
    client = LoadClient(url, limits=replace(limits, late_s_max=3600.0, cpu_share_max=1.0))
    workload = Workload(prompt=Lengths(256, 0.0), output=Lengths(args.tokens, 0.0))
    plan = RequestPlan(workload, BodyForm("m"))
    load = StepLoad("load", args.streams, warmup_s=5.0, seconds=args.seconds, timeout_s=600.0)
    cpu = process_time()
    with patch.object(load_run, "MeasuredCall", CountedCall):
        step, records = await client.hold(load, plan, 0)
    cpu = process_time() - cpu
    client.close()
    await asyncio.sleep(0)
    report(args, limits, step, records, cpu)


def report(
    args: argparse.Namespace,
    limits: ClientLimits,
    step: BenchStep,
    records: list[BenchRecord],
    cpu_s: float,
) -> None:
    """Print what was found."""
    good = [record for record in records if record.outcome is BenchOutcome.SUCCESS]
    events = sum(record.events for record in records)
    per_event_us = 1e6 * cpu_s / max(1, events)
    wanted_s = args.streams * 1000.0 / args.tpot_ms  # events a second, at the engine's pace
    print(f"{step.client.streams_max:,} streams at once; {len(good):,} of {len(records):,} answers")
    print(f"client: {cpu_s:.2f} s of CPU for {events:,} events: {per_event_us:.1f} µs each, in all")
    print(f"{events / max(1, CountedCall.reads):.2f} events in one read of a socket")
    print(
        f"at {wanted_s:,.0f} events/s that is {per_event_us * wanted_s / 1e6:.0%} of one core; one "
        f"core carries {limits.cpu_share_max * 1e6 / per_event_us:,.0f} events/s"
    )
    told = step.client
    print(
        f"here and now: {told.cpu_share:.0%} of a core used, {told.waited_share or 0.0:.0%} of the "
        f"time others had it; late {told.late_p99_s * 1000:.1f} ms at p99"
    )
    why = why_refused(told, limits, records, args.streams, "users")
    print(f"holdfast bench would report it: {'yes' if not why else f'no, {why}'}")


if __name__ == "__main__":
    main()
