"""One fault on both sides, live and simulated: how far they differ, as a row and as a table.

Held against a row: the 90 % interval of the difference between the harmed shares (Welch) lies
within 2 points of none, the median times to detection differ by at most 30 % or half a second
(strike and notice take a live fleet some of that), and the cause is the same.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, variance
from typing import Any, Final

from rich.console import Console
from rich.table import Table

SHARE_OFF_MAX: Final = 0.02  # of the harmed share: both ends of the interval
DELAY_OFF_MAX: Final = 0.3  # of the median time to detection
DELAY_FINE_S: Final = 0.5  # to strike and to notice takes a live fleet some of it
# Student's t, 95 % one-sided (90 % two-sided), by degrees of freedom; beyond, the last is on the
# safe side.
_T: Final = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
)


@dataclass(slots=True, frozen=True)
class Trial:
    """One run of one fault, live or simulated."""

    fault: str
    run: int
    share: float  # harmed
    requests: int
    delay_s: float | None  # to the first incident; None: none was opened
    cause: str


def interval(live: Sequence[float], simulated: Sequence[float]) -> tuple[float, float] | None:
    """The 90 % interval of mean(live) - mean(simulated), by Welch; ``None`` with fewer than two."""
    if len(live) < 2 or len(simulated) < 2:
        return None
    parts = [variance(values) / len(values) for values in (live, simulated)]
    error = sqrt(sum(parts))
    middle = fmean(live) - fmean(simulated)
    if not error:
        return middle, middle
    spread = sum(
        part * part / (len(values) - 1)
        for part, values in zip(parts, (live, simulated), strict=True)
    )
    freedom = max(1, int(error**4 / spread))
    half = _T[min(freedom, len(_T)) - 1] * error
    return middle - half, middle + half


def compare(fault: str, live: Sequence[Trial], simulated: Sequence[Trial]) -> dict[str, Any]:
    """One row: both sides, their difference, and what is missed."""
    between = interval([one.share for one in live], [one.share for one in simulated])
    delays = [
        median(found)
        if (found := [one.delay_s for one in side if one.delay_s is not None])
        else None
        for side in (live, simulated)
    ]
    causes = [Counter(one.cause for one in side).most_common(1)[0][0] for side in (live, simulated)]
    missed = []
    if between is not None and not -SHARE_OFF_MAX <= between[0] <= between[1] <= SHARE_OFF_MAX:
        missed.append("share")
    here, there = delays
    if here is None or there is None:
        if here is not there:
            missed.append("detection")
    elif abs(there - here) > max(DELAY_FINE_S, DELAY_OFF_MAX * here):
        missed.append("detection")
    if causes[0] != causes[1]:
        missed.append("cause")
    return {
        "fault": fault,
        "live_runs": len(live),
        "simulated_runs": len(simulated),
        "live_share": fmean(one.share for one in live),
        "simulated_share": fmean(one.share for one in simulated),
        "interval_90": between,
        "live_delay_s": here,
        "simulated_delay_s": there,
        "live_cause": causes[0],
        "simulated_cause": causes[1],
        "missed": missed,
    }


def show(rows: Sequence[dict[str, Any]], absent: Sequence[str]) -> None:
    """Print the table, and what it does not have."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table(title="harmed, time to detection and cause: live and simulated")
    columns = ("fault", "runs", "harmed live", "simulated", "difference, 90 %")
    for column in (*columns, "detected live", "simulated"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for column in ("cause live", "simulated", "missed"):
        table.add_column(column)
    for row in rows:
        between = row["interval_90"]
        difference = "one run" if between is None else f"{between[0]:+.2%} to {between[1]:+.2%}"
        table.add_row(
            row["fault"],
            f"{row['live_runs']} / {row['simulated_runs']}",
            f"{row['live_share']:.2%}",
            f"{row['simulated_share']:.2%}",
            difference,
            _seconds(row["live_delay_s"]),
            _seconds(row["simulated_delay_s"]),
            row["live_cause"],
            row["simulated_cause"],
            ", ".join(row["missed"]) or ("" if between else "not judged"),
        )
    console.print(table)
    if absent:
        console.print(f"no live run yet: {', '.join(absent)}")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
