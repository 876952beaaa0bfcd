"""Whether the defaults leave a healthy fleet alone: the other side of ``faults.py``.

Prompts of 100 to 32,000 tokens at nine tenths of what the fleet can do; then everybody is three
times as slow; then everybody stands still, the engines alone and together with the gateway. Nobody
is sick, so nobody may be ejected and no deadline may fire. What happened is read in three places
that cannot agree by mistake: the gateway's own counters, the answers, and the stand-ins, which saw
every attempt and every one that was given up.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop
from rich.console import Console
from rich.table import Table

from fault_fleet import Fleet, call, running
from fault_load import Load, mixed_prompts, poisson, summary

SLOTS: Final = 8
PREFILL_US: Final = 20.0  # 0.64 s for the longest prompt
TOKENS: Final = 20
TTFT_S: Final = 0.05
TPOT_S: Final = 0.01
LOAD: Final = 0.9
PATIENCE_S: Final = 120.0
# A fleet that lost time at nine tenths of its capacity needs nine times as long to catch up; at
# four tenths it is done soon.
CATCHING_UP: Final = 0.4
_DEADLINES: Final = ("first_token_timeout", "between_tokens_timeout", "deadline", "connect_timeout")
_EJECTED: Final = ("quarantined", "dead", "stopped", "draining")
_SAMPLE: Final = re.compile(r'holdfast_attempts_total\{.*kind="([a-z_]+)".*\} ([0-9.e+]+)')


@dataclass(frozen=True)
class Phase:
    """A stretch of time, and what is done to all engines in it."""

    name: str
    seconds: float
    load: float = LOAD
    slow: float = 1.0
    stop: str = ""  # "engines" or "all": stopped for the whole phase


def phases(given: argparse.Namespace) -> list[Phase]:
    """The plan."""
    slow_s, pause_s = given.slowdown_s, given.pause_s
    return [
        Phase("warm-up", given.warm_up, CATCHING_UP),
        Phase("90 % load", given.steady_s),
        Phase("all ×3 slow", slow_s, slow=3.0),
        Phase("catching up", 2 * slow_s, CATCHING_UP),
        Phase("engines stop", pause_s, stop="engines"),
        Phase("catching up", 3 * pause_s, CATCHING_UP),
        Phase("all stop", pause_s, stop="all"),
        Phase("catching up", 3 * pause_s, CATCHING_UP),
        Phase("90 % load", given.steady_s),
    ]


def capacity(replicas: int) -> float:
    """Requests per second that fill every slot."""
    rng = Random(7)
    mean = sum(mixed_prompts(rng) for _ in range(20_000)) / 20_000
    return replicas * SLOTS / (TTFT_S + mean * PREFILL_US / 1e6 + TOKENS * TPOT_S)


class Watch:
    """What the gateway says of its replicas, looked at again and again."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.states: dict[int, set[str]] = {}  # seen of any replica, by number of the phase
        self.phase = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            seen = self.states.setdefault(self.phase, set())
            try:
                told = await asyncio.to_thread(call, f"{self._fleet.admin}/status")
            except OSError:
                seen.add("no status")  # expected while the gateway stands still
            else:
                seen |= {str(row["state"]) for row in told["replicas"]}
            await asyncio.sleep(0.25)


async def run(fleet: Fleet, given: argparse.Namespace) -> dict[str, Any]:
    """All phases, one after the other, under one unbroken load."""
    address = urlsplit(fleet.url)
    load = Load(address.hostname or "", address.port or 80, keep_alive=given.keep_alive)
    loop = asyncio.get_running_loop()
    watch = Watch(fleet)
    watching = loop.create_task(watch.run()) if fleet.admin else None
    full = capacity(len(fleet.replicas))
    spans = []
    for number, phase in enumerate(phases(given)):
        watch.phase = number
        begin = loop.time()
        first = len(load.shots)
        rate, seed = full * phase.load, given.seed + number
        shots = poisson(seed, rate, begin, phase.seconds, lengths=mixed_prompts, tokens=TOKENS)
        await asyncio.to_thread(_afflict, fleet, phase)
        await load.run(shots)
        await asyncio.sleep(begin + phase.seconds - loop.time())
        await asyncio.to_thread(_relieve, fleet, phase)
        spans.append((phase, first, len(load.shots)))
    await load.settle(PATIENCE_S)
    if watching is not None:
        watching.cancel()
    rows = []
    for number, (phase, first, last) in enumerate(spans):
        states = sorted(watch.states.get(number, ()))
        row = summary(load.shots[first:last], late_s=PATIENCE_S)
        rows.append({"phase": phase.name, **row, "states": states})
    seen = [replica.stats() for replica in fleet.replicas]
    return {
        "benchmark": "no_harm",
        "rows": rows,
        "requests": len(load.shots),
        # Control's canaries come on connections of their own, and are no attempts.
        "attempts_seen": sum(stats["requests"] - stats["lone"] for stats in seen),
        "canaries_seen": sum(stats["lone"] for stats in seen),
        "given_up": sum(stats["cancelled"] - stats["lone_cancelled"] for stats in seen),
        "kinds": await asyncio.to_thread(_kinds, fleet),
    }


def _afflict(fleet: Fleet, phase: Phase) -> None:
    if phase.slow > 1.0:
        for replica in fleet.replicas:
            replica.strike({"kind": "slow", "factor": phase.slow})
    if phase.stop:
        fleet.signal_all(signal.SIGSTOP, gateway=phase.stop == "all")


def _relieve(fleet: Fleet, phase: Phase) -> None:
    if phase.stop:
        fleet.signal_all(signal.SIGCONT, gateway=phase.stop == "all")
    if phase.slow > 1.0:
        for replica in fleet.replicas:
            call(f"{replica.side}/fault", "DELETE")


def _kinds(fleet: Fleet) -> dict[str, float]:
    """Attempts by how they ended, from the gateway's counters."""
    if not fleet.admin:
        return {}
    found: dict[str, float] = {}
    for kind, value in _SAMPLE.findall(str(call(f"{fleet.admin}/metrics"))):
        found[kind] = found.get(kind, 0.0) + float(value)
    return found


def faults_found(told: dict[str, Any]) -> list[str]:
    """What should not have happened, in sentences."""
    found = []
    for row in told["rows"]:
        ejected = [state for state in row["states"] if state in _EJECTED]
        if ejected:
            found.append(f"{row['phase']}: a healthy replica was {', '.join(ejected)}")
        if row["retried"]:
            found.append(f"{row['phase']}: {row['retried']} requests were retried")
        if row["harmed"]:
            found.append(f"{row['phase']}: {row['harmed']} requests failed: {row['kinds']}")
    ended = {kind: count for kind, count in told["kinds"].items() if kind in _DEADLINES}
    found += [f"{count:.0f} attempts ended by {kind}" for kind, count in ended.items()]
    if told["attempts_seen"] != told["requests"]:
        found.append(f"the stand-ins saw {told['attempts_seen']} attempts")
    if told["given_up"]:
        found.append(f"the stand-ins saw {told['given_up']} attempts given up")
    return found


def show(told: dict[str, Any]) -> None:
    """The table."""
    table = Table(title="a healthy fleet under stress: nobody may be ejected, nothing retried")
    columns = ("phase", "requests", "failed", "how", "first token p50", "p99", "slowest", "retried")
    for column in (*columns, "states seen"):
        left = column in ("phase", "how", "states seen")
        table.add_column(column, justify="left" if left else "right")
    for row in told["rows"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in row["kinds"].items())
        table.add_row(
            row["phase"],
            str(row["requests"]),
            str(row["harmed"]),
            kinds or "–",
            f"{row['first_ms_p50']:.0f} ms",
            f"{row['first_ms_p99']:.0f} ms",
            f"{row['slowest_s']:.2f} s",
            str(row["retried"]),
            ", ".join(row["states"]),
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    seen = f"{told['attempts_seen']} attempts and {told['canaries_seen']} canaries"
    print(f"{told['requests']} requests, {seen} seen by the stand-ins")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this mode."""
    group = parser.add_argument_group("with --no-harm")
    group.add_argument("--steady-s", type=float, default=20.0, help="each stretch of 90 %% load")
    group.add_argument("--slowdown-s", type=float, default=10.0, help="everybody ×3 slow")
    group.add_argument("--pause-s", type=float, default=10.0, help="everybody stands still")


def main(given: argparse.Namespace) -> int:
    """Run, print; 1 where a healthy replica was punished."""
    options = ["--ttft-ms", f"{TTFT_S * 1e3:g}", "--tpot-ms", f"{TPOT_S * 1e3:g}"]
    options += ["--tokens", str(TOKENS), "--slots", str(SLOTS)]
    options += ["--prefill-us-per-token", f"{PREFILL_US:g}", "--kv-tokens", "1000000"]
    ports = [int(port) for port in given.ports.split(",") if port]
    with running(
        options,
        rng=Random(given.seed),
        ports=ports,
        gateway_url=given.gateway_url,
        template=given.gateway_command,
    ) as fleet:
        told = uvloop.run(run(fleet, given))
    found = faults_found(told)
    if given.json:
        print(json.dumps({**told, "found": found}))
    else:
        show(told)
        for sentence in found:
            print(sentence)
    return int(bool(found))


__all__ = ["add_arguments", "capacity", "main"]
