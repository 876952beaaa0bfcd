"""The gauntlet's faults that a process can have, against three real llama.cpp replicas.

    python bench/gauntlet_real.py [--faults crash,hang] [--rate 0.5] [--json]

``holdfast up`` with its built-in file, one core kept busy by other work, and the same defaults as
everywhere. One replica after the other is struck: by a signal, or by a proxy in front of it. The
game day's own streams count who is harmed in the 20 s after the onset: an error, another text than
the same question got before, no finish reason, or an answer later than ``--late``. A detection is
the first incident that names the struck replica; a false alarm is one that names another.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from holdfast.chaos.gameday import GameDay, GameDayRecord
from holdfast.chaos.target import ChaosTarget
from holdfast.config.chaos import PlanFile
from real_fleet import RealFleet, busy_core, until

CAUSES: Final = {
    "crash": "crashed",
    "stop": "frozen",
    "hang": "hung",
    "slow": "slow",
    "drip": "dripping",
    "cut": "truncated",
    "reset": "connection_lost",
    "wrong_output": "wrong_output",
}
COUNTED_S: Final = 20.0
WARM_UP_S: Final = 10.0


def plan(fault: str, replica: str, given: argparse.Namespace) -> PlanFile:
    """One fault after a warm-up, with traffic before, during and after."""
    step = {"at": WARM_UP_S, "fault": fault, "replica": replica, "for": given.lasts, "delay": 5.0}
    traffic = {"rate": given.rate, "tokens": given.tokens, "late": given.late}
    told = {"name": fault, "seed": given.seed, "settle": 5.0, "traffic": traffic, "steps": [step]}
    return PlanFile.model_validate(told)


def strike(fleet: RealFleet, fault: str, number: int, given: argparse.Namespace) -> dict[str, Any]:
    """Strike one replica, and let the fleet get well again."""
    until(lambda: len(fleet.ready()) >= fleet.count, "every replica is ready", 240.0)
    replica = sorted(fleet.ready())[number % fleet.count]
    day = GameDay(ChaosTarget(fleet.admin), fleet.url, plan(fault, replica, given), lambda _: None)
    record = asyncio.run(day.run())
    return row_of(record, fault, replica)


def row_of(record: GameDayRecord, fault: str, replica: str) -> dict[str, Any]:
    """The figures of one fault."""
    onset = record.struck[0].begun_s if record.struck else WARM_UP_S
    counted = [
        one
        for one in record.asked
        if one.at_s + one.took_s >= onset and one.at_s < onset + COUNTED_S
    ]
    harms = [one.harm for one in counted if one.harm]
    mine = [one for one in record.incidents if replica in one["replicas"]]
    first = min((float(one["opened_at"]) for one in mine), default=None)
    others = [one["id"] for one in record.incidents if set(one["replicas"]) - {replica}]
    return {
        "fault": fault,
        "replica": replica,
        "requests": len(counted),
        "harmed": len(harms),
        "share": len(harms) / len(counted) if counted else 0.0,
        "kinds": sorted(set(harms)),
        "slowest_s": round(max((one.took_s for one in counted), default=0.0), 2),
        "named_s": None if first is None else round(first - record.began_at - onset, 1),
        "cause": mine[0]["cause"] if mine else None,
        "expected": CAUSES[fault],
        "false_alarms": others,
        "problem": record.struck[0].problem if record.struck else "not struck",
    }


def show(rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """The table."""
    title = f"three real replicas, one core busy, {given.rate:g} streams/s, {COUNTED_S:g} s"
    table = Table(title=title)
    for column in ("fault", "requests", "harmed", "how", "slowest", "named", "cause", "false"):
        table.add_column(column, justify="left" if column in ("fault", "how", "cause") else "right")
    for row in rows:
        named = "–" if row["named_s"] is None else f"{row['named_s']:.1f} s"
        right = row["cause"] == row["expected"]
        told = str(row["cause"]) + ("" if right else f" (not {row['expected']})")
        table.add_row(
            row["fault"],
            str(row["requests"]),
            f"{row['share']:.1%}",
            ", ".join(row["kinds"]) or row["problem"] or "–",
            f"{row['slowest_s']:.1f} s",
            named,
            told,
            str(len(row["false_alarms"])),
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", default=",".join(CAUSES), help="comma-separated")
    parser.add_argument("--rate", type=float, default=0.7, help="streams per second")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--late", type=float, default=15.0, help="seconds")
    parser.add_argument("--lasts", type=float, default=40.0, help="seconds of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not set(given.faults.split(",")) <= set(CAUSES):
        parser.error(f"known: {', '.join(CAUSES)}")
    return given


def main() -> int:
    """Measure and print; 1 where a healthy replica was accused."""
    given = arguments()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, busy_core():
        fleet = RealFleet(Path(folder), {})
        try:
            fleet.open()
            rows = [
                strike(fleet, fault, number, given)
                for number, fault in enumerate(given.faults.split(","))
            ]
        finally:
            fleet.close()
    if given.json:
        print(json.dumps({"benchmark": "gauntlet_real", "rows": rows}))
    else:
        show(rows, given)
        print(f"{time.monotonic() - began:.0f} s")
    return int(any(row["false_alarms"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
