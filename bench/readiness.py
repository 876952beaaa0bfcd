"""What readiness is worth: how soon it finds an ill replica, what that costs, whom it wrongs.

    python bench/readiness.py [--quick] [--only detect,cost,lies,alarms] [--markdown | --json]

Four tables. *Detect*: from the onset of a fault until its replica leaves ready, and until it gets
nothing any more, by the period of canaries, in a fleet without users and in one at half of its
capacity; latency is judged only where nothing else runs, so in the latter it is not found. *Cost*:
canaries as a share of tokens, by load, with the shipped defaults: of replicas while they are
saturated, beside users' requests, and of all. *Lies*: how soon a wrong answer is found at that
price.
*Alarms*: what is held against healthy replicas in 10,000 replica-hours. All of it in virtual time,
with the real fleet machine; the last in the model of ``readiness_healthy.py``, the others in the
simulator.

Exit status 1 where a healthy replica was quarantined or relaunched, or where canaries are more
than a hundredth of the tokens of saturated replicas.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import readiness_faults as faults
import readiness_healthy as healthy

SHARE_MAX: Final = 0.01
MOSTLY: Final = 0.5  # of users' tokens; at a moment of saturation now and then, savings are spent
PARTS: Final = ("detect", "cost", "lies", "alarms")
Task = tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]


@dataclass(slots=True, frozen=True)
class Scale:
    """How much of everything."""

    seeds: int = 6  # ten replicas fall ill under each
    periods_s: tuple[float, ...] = faults.PERIODS_S
    loads: tuple[float, ...] = faults.LOADS
    cost_s: float = 3_600.0
    pools: int = 20
    hours: float = 100.0


FULL: Final = Scale()
QUICK: Final = Scale(seeds=1, loads=(0.0,), cost_s=1_200.0, pools=4, hours=10.0)


def tasks_of(scale: Scale, parts: Sequence[str]) -> dict[str, list[Task]]:
    """What there is to compute, each task a process's work for seconds."""
    seeds = range(1, scale.seeds + 1)
    found: dict[str, list[Task]] = {part: [] for part in parts}
    if "detect" in parts:
        found["detect"] = [
            (faults.lag_row, (fault, period_s, load, seeds))
            for load in scale.loads
            for fault in faults.FAULTS
            for period_s in scale.periods_s
        ]
    if "cost" in parts:
        found["cost"] = [
            (faults.cost_row, (size, load, 1, scale.cost_s))
            for size in (faults.GPU, faults.CPU)
            for load in faults.COST_LOADS
        ]
    if "lies" in parts:
        found["lies"] = [
            (faults.lies_row, (size, load, seeds[::2]))  # half of them: these runs are long
            for size in (faults.GPU, faults.CPU)
            for load in faults.COST_LOADS
        ]
    if "alarms" in parts:
        pools = range(1, scale.pools + 1)
        found["alarms"] = [(healthy.run_pool, (seed, scale.hours)) for seed in pools]
    return found


def measure(scale: Scale, parts: Sequence[str] = PARTS, jobs: int = 1) -> dict[str, Any]:
    """Everything, as plain data."""
    tasks = tasks_of(scale, parts)
    if jobs == 1:
        done = {part: [task(*how) for task, how in each] for part, each in tasks.items()}
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            # The longest first: they would keep one process busy while the others are idle.
            waiting: dict[str, list[Future[dict[str, Any]]]] = {}
            for part in reversed(tasks):
                waiting[part] = [pool.submit(task, *how) for task, how in tasks[part]]
            done = {part: [one.result() for one in waiting[part]] for part in tasks}
    told: dict[str, Any] = {"benchmark": "readiness", **done}
    if "alarms" in done:
        told["alarms"] = alarms(done["alarms"])
    return told


def alarms(pools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All pools in one account."""
    counts: Counter[str] = Counter()
    why: Counter[str] = Counter()
    for pool in pools:
        counts.update(pool["counts"])
        why.update(pool["why"])
    return {
        "replica_hours": sum(pool["replica_hours"] for pool in pools),
        "canaries": counts["canaries"],
        "restarts_asked_for": counts["restarts asked for"],
        "probes_lost": counts["probes lost"],
        "suspect": counts["suspect"],
        "quarantined": counts["quarantined"],
        "dead": counts["dead"],
        "relaunched": counts["relaunched"],
        "why": dict(why.most_common()),
    }


def problems(told: dict[str, Any]) -> list[str]:
    """What should not be."""
    found = []
    for row in told.get("cost", ()):
        share, where = row["share_saturated"], f"{row['engine']}, a load of {row['load']:.0%}"
        if share > SHARE_MAX and row["saturated"] > MOSTLY:
            found.append(f"canaries are {share:.2%} of the tokens while saturated: {where}")
    for what in ("quarantined", "dead", "relaunched"):
        count = told["alarms"][what] if "alarms" in told else 0
        if count:
            found.append(f"healthy replicas were {what}: {count}")
    return found


# --- for people ----------------------------------------------------------------------------------

Sheet = tuple[str, Sequence[str], list[list[str]]]


def sheets(told: dict[str, Any]) -> list[Sheet]:
    """The tables: title, heads, rows."""
    found: list[Sheet] = []
    if "detect" in told:
        found.append(_detect_sheet(told["detect"]))
    if "cost" in told:
        found.append(_cost_sheet(told["cost"]))
    if "lies" in told:
        found.append(_lies_sheet(told["lies"]))
    if "alarms" in told:
        found.append(_alarms_sheet(told["alarms"]))
    return found


def _detect_sheet(rows: list[dict[str, Any]]) -> Sheet:
    heads = (
        *("users", "fault", "canary period", "found", "leaves ready: p50", "p95", "max"),
        *("gets nothing: p50", "p95", "max"),
    )
    cells = []
    for row in rows:
        noticed, out = row["noticed"], row["out"]
        users = f"{row['load']:.0%} load" if row["load"] else "none"
        start = [users, row["fault"], f"{row['period_s']:g} s"]
        start.append(f"{noticed['count']} of {row['replicas']}")
        cells.append([*start, *_times(noticed, out)])
    return "time to detect", heads, cells


def _cost_sheet(rows: list[dict[str, Any]]) -> Sheet:
    heads = (
        *("engine", "load", "users' tokens/s", "canary tokens/s", "one every"),
        *("share while saturated", "beside users", "share of all tokens", "of capacity"),
    )
    cells = [
        [
            row["engine"],
            f"{row['load']:.0%}" if row["load"] else "idle",
            f"{row['users_tokens_per_s']:,.0f}",
            f"{row['canary_tokens_per_s']:.1f}",
            f"{row['period_s']:.1f} s",
            f"{row['share_saturated']:.2%}" if row["load"] else "–",
            f"{row['share_beside_users']:.2%}" if row["load"] else "–",
            f"{row['share_of_tokens']:.2%}" if row["load"] else "–",
            f"{row['share_of_capacity']:.2%}",
        ]
        for row in rows
    ]
    return "what canaries cost, with the shipped defaults", heads, cells


def _lies_sheet(rows: list[dict[str, Any]]) -> Sheet:
    heads = (
        *("engine", "load", "found", "leaves ready: p50", "p95", "max"),
        *("gets nothing: p50", "p95", "max"),
    )
    cells = []
    for row in rows:
        noticed, load = row["noticed"], f"{row['load']:.0%}" if row["load"] else "idle"
        found = f"{noticed['count']} of {row['replicas']}"
        cells.append([row["engine"], load, found, *_times(noticed, row["out"])])
    return "until a wrong answer is found, with the shipped defaults", heads, cells


def _times(*lags: dict[str, Any]) -> list[str]:
    times = [each[name] for each in lags for name in ("p50_s", "p95_s", "max_s")]
    return ["–" if time is None else f"{time:.1f} s" for time in times]


def _alarms_sheet(told: dict[str, Any]) -> Sheet:
    names = (
        *("replica_hours", "canaries", "restarts_asked_for", "probes_lost"),
        *("suspect", "quarantined", "dead", "relaunched"),
    )
    cells = [[name.replace("_", " "), f"{told[name]:,.0f}"] for name in names]
    cells += [[f"– {why}", f"{count:,}"] for why, count in told["why"].items()]
    return "what is held against healthy replicas", ("", "count"), cells


def show(told: dict[str, Any], *, markdown: bool) -> None:
    """The tables, for a terminal or for the docs."""
    for title, heads, rows in sheets(told):
        if markdown:
            print(f"\n{title}\n\n| {' | '.join(heads)} |\n|---|" + "---:|" * (len(heads) - 1))
            for row in rows:
                print(f"| {' | '.join(row)} |")
            continue
        table = Table(title=title)
        for number, head in enumerate(heads):
            table.add_column(head, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 150).print(table)
    for problem in problems(told):
        print(f"problem: {problem}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, print; 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small part of everything")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated parts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="tables for the docs")
    form.add_argument("--json", action="store_true", help="plain data")
    given = parser.parse_args(arguments)
    parts = given.only.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    told = measure(QUICK if given.quick else FULL, parts, max(1, given.jobs))
    if given.json:
        print(json.dumps({**told, "problems": problems(told)}))
    else:
        show(told, markdown=given.markdown)
    return int(bool(problems(told)))


if __name__ == "__main__":
    sys.exit(main())
