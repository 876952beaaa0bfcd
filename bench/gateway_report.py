"""What ``bench/gateway.py`` found out, as tables, and whether the targets are met."""

import sys
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from gateway_streams import Evenness

HOLDFAST: Final = "holdfast"
ROUTERS: Final = ("sglang-router", "vllm-router")
SIZES: Final = {"0.3": 300, "8": 8_000, "32": 32_000}  # KB as shown, bytes of a request body
CHUNK: Final = "chunk"
VLLM_SHARE: Final = 0.8
ROUTER_CHUNK_SHARE: Final = 1.1
GAP_ADDED_MS: Final = 50.0


@dataclass(slots=True)
class Cost:
    """One measurement of one gateway."""

    tree_us: float
    alone_us: float
    per_second: float
    verified: int
    rewritten: int
    failed: int
    problem: str
    reads_per_unit: float
    others: float  # share of the busier core that other processes took


@dataclass(slots=True)
class Latency:
    """What a gateway adds at half load, in µs."""

    rate: float
    direct_p50: float
    direct_p99: float
    p50: float
    p99: float
    others: float

    @property
    def added_p50(self) -> float:
        """Median, over calling a replica directly."""
        return self.p50 - self.direct_p50

    @property
    def added_p99(self) -> float:
        """99th percentile, over calling a replica directly."""
        return self.p99 - self.direct_p99


@dataclass(slots=True)
class Streams:
    """Two thousand streams through one gateway, or (no name) from the replicas."""

    seen: Evenness
    memory_kb: float = 0.0  # per stream
    cpu_share: float = 0.0  # of one core
    others: float = 0.0


@dataclass(slots=True)
class Findings:
    """Everything one run found out."""

    costs: dict[str, dict[str, list[Cost]]] = field(default_factory=dict)  # gateway, job, rounds
    latency: dict[str, Latency] = field(default_factory=dict)
    direct_streams: Streams | None = None
    streams: dict[str, Streams] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # sentences

    def tree_us(self, name: str, job: str) -> float | None:
        """Median over the rounds."""
        rounds = self.costs.get(name, {}).get(job)
        return median(cost.tree_us for cost in rounds) if rounds else None

    def ratio(self, name: str, other: str, job: str) -> float | None:
        """Median of what one costs in units of the other, round by round."""
        mine, theirs = (self.costs.get(who, {}).get(job) for who in (name, other))
        if not mine or not theirs:
            return None
        pairs = zip(mine, theirs, strict=False)  # LiteLLM has one round
        return median(one.tree_us / two.tree_us for one, two in pairs)

    def better_router(self) -> str | None:
        """The one with the cheaper chunk."""
        known = {name: self.tree_us(name, CHUNK) for name in ROUTERS}
        costs = {name: cost for name, cost in known.items() if cost is not None}
        return min(costs, key=costs.__getitem__) if costs else None


@dataclass(slots=True, frozen=True)
class Verdict:
    """One target, and how it stands; None: it could not be judged."""

    text: str
    met: bool | None


def verdicts(findings: Findings) -> list[Verdict]:
    """Every target, in words."""
    told = []
    router = findings.better_router()
    bounds = [(job, "envoy", 1.0) for job in SIZES]
    bounds += [(job, "vllm-router", VLLM_SHARE) for job in SIZES]
    bounds += [(CHUNK, router or "the better Rust router", ROUTER_CHUNK_SHARE)]
    for job, other, bound in bounds:
        ratio = findings.ratio(HOLDFAST, other, job)
        unit = "chunk" if job == CHUNK else f"request of {job} KB"
        text = f"CPU per {unit}: at most {bound:g} × {other}"
        if ratio is None:
            told.append(Verdict(f"{text}: not measured", None))
        else:
            told.append(Verdict(f"{text}: {ratio:.2f}", ratio <= bound))
    text = f"streams at once: p99 gap at most {GAP_ADDED_MS:g} ms over the replicas' own"
    through, direct = findings.streams.get(HOLDFAST), findings.direct_streams
    if through is None or direct is None:
        told.append(Verdict(f"{text}: not measured", None))
    else:
        added = through.seen.gap_p99_ms - direct.seen.gap_p99_ms
        all_verified = through.seen.verified == through.seen.streams
        text = (
            f"{through.seen.streams:,} {text}: {added:.1f} ms, {through.seen.verified:,} verified"
        )
        told.append(Verdict(text, added <= GAP_ADDED_MS and all_verified))
    mine = [cost for rounds in findings.costs.get(HOLDFAST, {}).values() for cost in rounds]
    failed = sum(cost.failed for cost in mine)
    text = f"every answer of Holdfast verified: {failed} of "
    text += f"{failed + sum(cost.verified for cost in mine):,} failed"
    told.append(Verdict(text, failed == 0 if mine else None))
    return told


def _cells(findings: Findings, name: str) -> list[str]:
    costs = findings.costs[name]

    def shown(job: str) -> str:
        rounds = costs.get(job, [])
        tree, alone = (median(values) for values in _columns(rounds))
        return f"{tree:,.1f} ({alone:,.1f})"

    def times(other: str | None, job: str) -> str:
        ratio = findings.ratio(name, other, job) if other else None
        return "–" if ratio is None else f"{ratio:.2f}"

    latency = findings.latency.get(name)
    added = "–"
    if latency is not None:
        added = f"{latency.added_p50:,.0f} / {latency.added_p99:,.0f} at {latency.rate:,.0f}/s"
    rewrites = any(cost.rewritten for rounds in costs.values() for cost in rounds)
    return [
        f"{name}{' *' if rewrites else ''}",
        *(shown(job) for job in SIZES),
        " / ".join(times("envoy", job) for job in SIZES),
        shown(CHUNK),
        times(findings.better_router(), CHUNK),
        added,
    ]


def _columns(rounds: list[Cost]) -> tuple[list[float], list[float]]:
    return [cost.tree_us for cost in rounds], [cost.alone_us for cost in rounds]


def cost_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    header = ["gateway", *(f"µs/request {job} KB" for job in SIZES), "× Envoy"]
    header += ["µs/chunk", "× better router", "added p50 / p99 µs at half load"]
    return header, [_cells(findings, name) for name in findings.costs]


def stream_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """Header and rows; the replicas themselves come first."""
    header = ["streams through", "verified", "gap p50 ms", "gap p99 ms", "added p99 ms"]
    header += ["chunks per read", "KB per stream", "share of core", "others' share"]
    direct = findings.direct_streams
    if direct is None:
        return header, []
    rows = []
    for name, found in (("replicas directly", direct), *findings.streams.items()):
        seen = found.seen
        through = found is not direct
        rows.append(
            [
                name,
                f"{seen.verified:,} of {seen.streams:,}",
                f"{seen.gap_p50_ms:.1f}",
                f"{seen.gap_p99_ms:.1f}",
                f"{seen.gap_p99_ms - direct.seen.gap_p99_ms:.1f}" if through else "–",
                f"{seen.chunks_per_read:.2f}",
                f"{found.memory_kb:.1f}" if through else "–",
                f"{found.cpu_share:.0%}" if through else "–",
                f"{found.others:.0%}",
            ]
        )
    return header, rows


def show(findings: Findings, *, markdown: bool) -> None:
    """Print both tables, what is to be known of them, and the targets."""
    for header, rows in (cost_table(findings), stream_table(findings)):
        if not rows:
            continue
        if markdown:
            for row in (header, ["---"] + ["---:"] * (len(header) - 1), *rows):
                print("| " + " | ".join(row) + " |")
            print()
            continue
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 180).print(table)
    print("CPU of the whole process tree, in parentheses of its busiest process.")
    if any(c.rewritten for jobs in findings.costs.values() for r in jobs.values() for c in r):
        print("* writes answers anew: verified by their text instead of their bytes.")
    for name, jobs in findings.costs.items():
        every = [cost for rounds in jobs.values() for cost in rounds]
        failed = sum(cost.failed for cost in every)
        if failed:
            first = next(cost.problem for cost in every if cost.failed)
            print(f"{name}: {failed} answers failed, first: {first}")
    others = [c.others for jobs in findings.costs.values() for r in jobs.values() for c in r]
    if others:
        print(f"Other processes took {median(others):.0%} of the busier core (median).")
    for sentence in findings.absent:
        print(f"Left out: {sentence}")
    words = {True: "met", False: "MISSED", None: "not judged"}
    for verdict in verdicts(findings):
        print(f"{words[verdict.met]}: {verdict.text}")


__all__ = [
    "CHUNK",
    "HOLDFAST",
    "SIZES",
    "Cost",
    "Findings",
    "Latency",
    "Streams",
    "Verdict",
    "show",
    "verdicts",
]
