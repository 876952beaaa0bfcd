"""How soon a frozen gateway process or control is found and replaced, and what clients notice.

    python bench/watched.py [--only gateway,control,busy] [--rounds 3] [--busy-s 300] [--json]

Real processes: two stand-ins and ``holdfast serve`` with two gateway processes. *gateway*: one of
them is stopped (SIGSTOP). Clients connect all the while, each request on a connection of its own;
those from the moment it was found on are counted apart, up to ``--connections``. *control*: the
same with control, for ``--freeze-s`` seconds. *busy*: busy loops on all cores, and nobody frozen;
whoever is replaced there was killed for nothing.

Exit status 1 where a frozen process was found after more than ``FOUND_S``, was not replaced or not
named, where a connection was lost, or where somebody was replaced under busy loops.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.table import Table

from fault_fleet import call, end
from operations import Load, Stage, harm, staged, until

FOUND_S: Final = 4.0
LOOK_S: Final = 0.01
NAMED_S: Final = 30.0  # until an incident names it
SPIN: Final = "while True: pass"

Row = dict[str, Any]


async def moment(true: Callable[[], bool], within_s: float = 60.0) -> float:
    """When something came true, by the monotonic clock; infinity if it did not."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if await asyncio.to_thread(true):
            return time.monotonic()
        await asyncio.sleep(LOOK_S)
    return float("inf")


def replacements(stage: Stage) -> float:
    """How many processes the supervisor replaced so far, as the metrics say."""
    lines = call(f"{stage.admin}/metrics").splitlines()
    series = "holdfast_serving_processes_replaced_total{"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(series))


def named(stage: Stage, cause: str, pid: int) -> bool:
    """Whether an incident with this cause tells of this process."""
    with contextlib.suppress(OSError):
        for one in call(f"{stage.admin}/incidents")["incidents"]:
            if one["cause"] == cause:
                story = call(f"{stage.admin}/incidents/{one['id']}")
                return f"(pid {pid})" in json.dumps(story)
    return False


async def connect_many(stage: Stage, number: int, clients: int = 16) -> tuple[list[str], float]:
    """So many requests on connections of their own: what was wrong, and the slowest one."""
    numbers = iter(range(number))
    harms: list[str] = []
    slowest = 0.0

    async def client() -> None:
        nonlocal slowest
        for n in numbers:
            began = time.monotonic()
            told = await harm(stage.port, n, stage.headers)
            slowest = max(slowest, time.monotonic() - began)
            harms.extend([told] if told else [])

    await asyncio.gather(*(client() for _ in range(clients)))
    return harms, slowest


async def freeze(stage: Stage, kind: str, given: argparse.Namespace) -> Row:
    """Stop one process, and see what becomes of it and of clients."""
    await stage.whole()
    control = kind == "control"
    pid = stage.serve.control() if control else stage.gateways()[0]
    process = f"{kind}-process"
    number = len(stage.serve.processes(process))
    accepted = stage.serve.said().count('"event":"accepts"')
    async with Load(stage, given.rate) as load:
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        found = await moment(lambda: pid not in stage.serve.processes(process))

        def back() -> bool:
            if control:
                return len(stage.serve.processes(process)) == number and bool(stage.status())
            return stage.serve.said().count('"event":"accepts"') > accepted

        replacing = asyncio.ensure_future(moment(back))
        wanted = 0 if control else given.connections
        harms, slowest = await connect_many(stage, wanted)
        replaced = await replacing
        if control:
            await asyncio.sleep(max(0.0, began + given.freeze_s - time.monotonic()))
    await stage.whole(without=pid)
    cause = f"{kind}_frozen"
    told = await moment(lambda: named(stage, cause, pid), NAMED_S)
    before = load.row()
    return {
        "scene": kind,
        "found_s": round(found - began, 2),
        "replaced_s": round(replaced - began, 2),
        "connections": wanted,
        "lost": len(harms),
        "slowest_new_s": round(slowest, 2),
        "lost_meanwhile": sum(before["harms"].values()),
        "meanwhile": before["requests"],
        "slowest_s": before["slowest_s"],
        "named": told < float("inf"),
        "harms": {**before["harms"], **{one: harms.count(one) for one in harms}},
    }


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """So many processes that want a whole core each."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(number)]
    try:
        yield
    finally:
        end(spinning)


async def keep_busy(stage: Stage, given: argparse.Namespace) -> Row:
    """Busy loops on all cores for a while; nobody is frozen."""
    await stage.whole()
    before, pids = replacements(stage), {stage.serve.control(), *stage.gateways()}
    worst = 0.0
    async with Load(stage, given.rate / 5) as load:
        with busy_loops(given.loops):
            until_s = time.monotonic() + given.busy_s
            while time.monotonic() < until_s:
                await asyncio.sleep(1.0)
                with contextlib.suppress(OSError):
                    page = await asyncio.to_thread(call, f"{stage.admin}/status")
                    rows = [one for one in page["processes"] if one["condition"] == "late"]
                    worst = max([worst, *(one["for_s"] for one in rows)])
    await stage.whole()
    after = {stage.serve.control(), *stage.gateways()}
    row = load.row()
    return {
        "scene": "busy",
        "loops": given.loops,
        "busy_s": given.busy_s,
        "replaced": replacements(stage) - before,
        "same_processes": after == pids,
        "latest_s": round(worst, 1),
        "meanwhile": row["requests"],
        "lost_meanwhile": sum(row["harms"].values()),
        "slowest_s": row["slowest_s"],
        "harms": row["harms"],
    }


def failed(row: Row) -> bool:
    """Whether a row is not as it should be."""
    if row["scene"] == "busy":
        return bool(row["replaced"]) or not row["same_processes"]
    lost = row["lost"] + (row["lost_meanwhile"] if row["scene"] == "control" else 0)
    return row["found_s"] > FOUND_S or row["replaced_s"] == float("inf") or lost or not row["named"]


def show(rows: list[Row]) -> None:
    """The table, and what was lost."""
    table = Table(title="frozen processes, and a busy machine")
    columns = ("found", "replaced", "lost then", "slowest", "lost meanwhile", "slowest", "named")
    table.add_column("what happened")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        lost = f"{row['lost_meanwhile']} of {row['meanwhile']}"
        slowest = f"{row['slowest_s']:.2f} s"
        if row["scene"] == "busy":
            what = f"{row['loops']} busy loops for {row['busy_s']:g} s"
            killed = f"{row['replaced']:g} killed"
            table.add_row(what, "–", killed, "–", "–", lost, slowest, f"late {row['latest_s']} s")
            continue
        table.add_row(
            f"{row['scene']} stopped",
            f"{row['found_s']} s",
            f"{row['replaced_s']} s",
            f"{row['lost']} of {row['connections']}",
            f"{row['slowest_new_s']} s",
            lost,
            slowest,
            "yes" if row["named"] else "no",
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    for row in rows:
        for what, count in row["harms"].items():
            print(f"{row['scene']}: {count} × {what}")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="gateway,control,busy", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="how often a gateway is stopped")
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second meanwhile")
    parser.add_argument("--connections", type=int, default=1_000, help="new ones, once it is found")
    parser.add_argument("--freeze-s", type=float, default=60.0, help="how long control is watched")
    parser.add_argument("--loops", type=int, default=8, help="busy loops")
    parser.add_argument("--busy-s", type=float, default=300.0, help="how long they run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    """Do it all and print; 1 where something is not as it should be."""
    given = arguments()
    wanted = given.only.split(",")
    scenes: list[Callable[[Stage], Awaitable[Row]]] = []
    scenes += [lambda stage: freeze(stage, "gateway", given)] * (
        given.rounds * ("gateway" in wanted)
    )
    scenes += [lambda stage: freeze(stage, "control", given)] * ("control" in wanted)
    scenes += [lambda stage: keep_busy(stage, given)] * ("busy" in wanted)
    with staged() as stage:
        rows = [uvloop.run(_run(scene, stage)) for scene in scenes]
    if given.json:
        print(json.dumps({"benchmark": "watched", "rows": rows}))
    else:
        show(rows)
    return int(any(failed(row) for row in rows))


async def _run(scene: Callable[[Stage], Awaitable[Row]], stage: Stage) -> Row:
    await until(lambda: bool(stage.gateways()), "all gateways are ready")
    return await scene(stage)


if __name__ == "__main__":
    sys.exit(main())
