"""What the gauntlet's rows come to: means with their bounds, tables, and what was missed."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from gauntlet_trials import SHAPES, SIXTEEN, Shape

Row = dict[str, Any]

# Student's t, 95 %, one-sided, by degrees of freedom; beyond the table the normal one is near.
_T_95: Final = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
)
_T_BEYOND: Final = 1.725


def upper_bound(means: Sequence[float]) -> float:
    """Upper 95 % bound of the mean of these (t, one-sided); the value itself if there is one."""
    if len(means) < 2:
        return means[0] if means else 0.0
    freedom = len(means) - 1
    factor = _T_95[freedom - 1] if freedom <= len(_T_95) else _T_BEYOND
    return fmean(means) + factor * stdev(means) / math.sqrt(len(means))


def seed_means(rows: Iterable[Row]) -> list[float]:
    """The mean over faults of the share harmed, of each seed and run."""
    by_run: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        by_run[row["seed"], row["run"]].append(row["share"])
    return [fmean(shares) for shares in by_run.values()]


def fault_means(rows: Iterable[Row]) -> dict[str, float]:
    """The share harmed of each fault, on average over seeds, runs and starts."""
    by_fault: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_fault[row["fault"]].append(row["share"])
    return {fault: fmean(shares) for fault, shares in by_fault.items()}


def totals(rows: Sequence[Row], shape: Shape) -> Row:
    """The figures of one gateway over the faults that count; empty if none of them was run."""
    counted = [row for row in rows if row["fault"] in shape.counted and not row.get("problem")]
    if not counted:
        return {}
    means, faults = seed_means(counted), fault_means(counted)
    worst = max(faults, key=lambda fault: faults[fault])
    return {
        "mean": fmean(means),
        "upper_95": upper_bound(means),
        "runs": len(means),
        "worst": faults[worst],
        "worst_fault": worst,
        "silently_short": sum(row["silently_short"] for row in rows if not row.get("problem")),
        "whole": set(faults) >= set(shape.counted),
    }


# --- verdict --------------------------------------------------------------------------------------


def missed(rows: Sequence[Row], name: str) -> list[str]:
    """What Holdfast did not hold in a shape, in sentences."""
    shape = SHAPES[name]
    every = [row for row in rows if row["gateway"] == "holdfast"]
    complaints = [f"{_label(row)}: not run: {row['problem']}" for row in every if row["problem"]]
    own = [row for row in every if not row["problem"]]
    sums = totals(own, shape)
    if sums and sums["whole"] and sums["upper_95"] > shape.mean_max:
        said = f"{sums['upper_95']:.2%} (upper 95 % bound), more than {shape.mean_max:.1%}"
        complaints.append(f"harmed on average {said}")
    if shape.fault_max is not None:
        means = fault_means(row for row in own if row["fault"] in shape.counted)
        complaints += [
            f"{fault}: {share:.2%} harmed, more than {shape.fault_max:.1%}"
            for fault, share in means.items()
            if share > shape.fault_max
        ]
    for row in own:
        complaints += _complaints_of(row, shape)
    if shape.names_judged:
        complaints += _sometimes(own)
    return complaints


def closing_line(own: Sequence[Row], name: str, complaints: Sequence[str]) -> str:
    """The verdict in a line, with what could not be judged."""
    if not own:
        return "nothing is judged without Holdfast"
    told = f"{len(complaints)} bounds missed" if complaints else "every bound that was judged held"
    if not totals(own, SHAPES[name]).get("whole"):
        told += "; the mean was not judged, since not every fault was run"
    return told


def _complaints_of(row: Row, shape: Shape) -> list[str]:
    found = []
    if row["silently_short"]:
        found.append(f"{row['silently_short']} answers were short and did not say so")
    if row["accused"]:
        found.append(f"accused {', '.join(row['accused'])}")
    judged = row["fault"] in shape.counted
    if judged and shape.names_judged and not row["right"]:
        found.append(f"named {row['cause']}, not {row['expected']}")
    ended, most = row["wrong_ended_s"], shape.wrong_ended_max_s
    if judged and most is not None and ended is not None and ended > most:
        found.append(f"wrong answers until {ended:.1f} s, later than {most:g} s")
    return [f"{_label(row)}: {sentence}" for sentence in found]


def _sometimes(rows: Sequence[Row]) -> list[str]:
    """A replica that is wrong now and then must be named in 19 of 20 runs."""
    found = [row for row in rows if row["fault"] == "wrong-10"]
    named = sum(row["right"] for row in found)
    if not found or named >= len(found) - len(found) // 20:
        return []
    return [f"wrong-10: named in {named} of {len(found)} runs"]


def _label(row: Row) -> str:
    start = f", {row['start']}" if row["start"] else ""
    return f"{row['fault']}{start} (seed {row['seed']}, run {row['run']})"


# --- tables ---------------------------------------------------------------------------------------


def show_own(rows: Sequence[Row], name: str, rate: float, seconds: float) -> None:
    """Holdfast's table: a line for each fault and start, over all seeds."""
    table = Table(title=f"{name}: {rate:g} requests/s, {seconds:g} s after the onset, defaults")
    columns = ("fault", "requests", "harmed", "how", "last request", "named", "class, cause")
    for column in (*columns, "right", "wrong until", "short, unsaid"):
        left = column in ("fault", "how", "class, cause")
        table.add_column(column, justify="left" if left else "right")
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if not row["problem"]:
            groups[row["fault"], row["start"]].append(row)
    counted = SHAPES[name].counted
    for kept in (True, False):
        for (fault, start), group in groups.items():
            if (fault in counted) is kept:
                table.add_row(f"{fault} {start}".strip(), *_cells(group))
        if kept:
            table.add_section()
    sums = totals(rows, SHAPES[name])
    if sums:
        bound = f"upper 95 % bound {sums['upper_95']:.2%} (t, one-sided, over {sums['runs']} runs)"
        if sums["runs"] < 2:
            bound = "one run, so no bound"
        worst = f"worst {sums['worst']:.2%} ({sums['worst_fault']})"
        table.caption = f"mean harmed {sums['mean']:.2%}, {bound}, {worst}"
    _console().print(table)


def _cells(group: Sequence[Row]) -> list[str]:
    kinds: dict[str, int] = defaultdict(int)
    for row in group:
        for kind, count in row["kinds"].items():
            kinds[kind] += count
    how = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    said = sorted({f"{row['class']}, {row['cause']}" if row["cause"] else "-" for row in group})
    last = [row["last_request_s"] for row in group if row["last_request_s"] is not None]
    named = [row["named_s"] for row in group if row["named_s"] is not None]
    wrong = [row["wrong_ended_s"] for row in group if row["wrong_ended_s"] is not None]
    return [
        str(sum(row["requests"] for row in group)),
        f"{fmean(row['share'] for row in group):.2%}",
        how or "–",
        _most(last),
        _most(named),
        "; ".join(said),
        f"{sum(row['right'] for row in group)}/{len(group)}",
        _most(wrong),
        str(sum(row["silently_short"] for row in group)),
    ]


def show_peers(rows: Sequence[Row], name: str) -> None:
    """Everybody's harmed share, side by side."""
    for row in rows:
        if row["problem"] and row["gateway"] != "holdfast":
            print(f"{row['gateway']}, {_label(row)}: not run: {row['problem']}")
    rows = [row for row in rows if not row["problem"]]
    gateways = list(dict.fromkeys(row["gateway"] for row in rows))
    if not set(gateways) - {"holdfast"}:
        return
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        shares[row["gateway"], row["fault"]].append(row["share"])
    table = Table(title=f"{name}: share harmed after the onset")
    table.add_column("fault")
    for gateway in gateways:
        table.add_column(gateway, justify="right")
    faults = list(dict.fromkeys(row["fault"] for row in rows))
    for fault in faults:
        table.add_row(fault, *(_mean(shares.get((gateway, fault))) for gateway in gateways))
    table.add_section()
    shape = SHAPES[name]
    sums = [totals([row for row in rows if row["gateway"] == g], shape) for g in gateways]
    table.add_row("mean of those that count", *(f"{one.get('mean', 0.0):.1%}" for one in sums))
    honest = [fault for fault in faults if fault in SIXTEEN and not fault.startswith("wrong")]
    if honest and name != "pair":
        means = [_mean([fmean(shares[g, f]) for f in honest if (g, f) in shares]) for g in gateways]
        table.add_row("mean of those that are not wrong answers", *means)
    short = [sum(row["silently_short"] for row in rows if row["gateway"] == g) for g in gateways]
    table.add_row("answers short without saying so", *map(str, short))
    _console().print(table)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 180)


def _mean(shares: Sequence[float] | None) -> str:
    return f"{fmean(shares):.1%}" if shares else "–"


def _most(values: Sequence[float]) -> str:
    """The middle one and the largest; one value alone as it is."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.1f} s"
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.1f} ≤ {ordered[-1]:.1f} s"


__all__ = [
    "closing_line",
    "fault_means",
    "missed",
    "seed_means",
    "show_own",
    "show_peers",
    "totals",
    "upper_bound",
]
