"""Whether a healthy fleet is left alone: 24 hours of 100 replicas that have an ugly life.

    python bench/false_alarms.py [--seeds test | tuning | 101,102] [--hours 24] [--models 25]
                                 [--load 1] [--jobs 1] [--json]

25 models of four replicas under the shipped defaults, everything simulated but the decisions:
gateway, fleet, detectors and diagnosis are the real ones. ``ugly_world.py`` says what happens in
such a day, ``bench/recorded/`` holds the run of a real engine from which noise is resampled. Nobody
is ill, so every quarantine, every restart that nobody asked for and every incident is false.

Traffic is scaled to what one core can simulate (a day takes ten to fifteen minutes of it): about 10
requests a second on average over all (0.1 of each replica), of engines that take some 3 s for an
answer and eight at a time, with bursts to eight times that. Thresholds may be tuned by looking at
the tuning seeds; what counts are the test seeds. Exit status 1 where a replica was wrongly
quarantined, or where there was more than one false incident in 24 hours of 100 replicas.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from holdfast.core.diagnose.evidence import Incident, Remedy
from holdfast.core.diagnose.investigation import Finding, Investigation
from holdfast.core.diagnose.remedy_policy import Act
from holdfast.core.types import seconds
from holdfast.sim.diagnosis import DiagnosisDriver, ObservationModel
from ugly_life import MODELS, RECORDED, REPLICAS, Recorded, Weather, fleet_of
from ugly_world import UglyWorld

TUNING_SEEDS: Final = (1, 2, 3, 101, 102, 103, 201, 202, 203, 301, 302)  # 101 on: once for tests
TEST_SEEDS: Final = (401, 402)
NAMED: Final = {"tuning": TUNING_SEEDS, "test": TEST_SEEDS}
INCIDENTS_PER_DAY_MAX: Final = 1
HARMS: Final = (Remedy.TAKE_OUT, Remedy.DRAIN_AND_RESTART, Remedy.RELOCATE)
SHOWN_MAX: Final = 40


def run(
    seed: int,
    hours: float,
    load: float = 1.0,
    recorded: Path = RECORDED,
    models: int = MODELS,
    weather: Weather | None = None,
) -> dict[str, Any]:
    """One day under one seed, and what was held against it."""
    began = time.process_time()
    acts: dict[tuple[str, str], str] = {}  # a replica that is taken out and restarted counts once
    opened: dict[str, float] = {}  # on the clock of the world, which does not jump

    def heard(finding: Finding, now: int) -> None:
        for name in world.watcher.incidents:
            opened.setdefault(name, seconds(now))
        if isinstance(finding, Act) and finding.remedy in HARMS:
            told = f"{seconds(now):.0f} s {finding.replica}: {finding.remedy}, {finding.reason}"
            acts.setdefault((finding.incident_id, finding.replica), told)

    def watch(world: UglyWorld, habits: ObservationModel) -> DiagnosisDriver:
        return DiagnosisDriver(world, Investigation(), habits, seed=seed, listen=heard)

    setup = fleet_of(hours, seed, load, models)
    world = UglyWorld(setup, seed, Recorded(recorded), weather or Weather(), watch)

    def each_hour(hour: int) -> None:
        quarantines = len(world.count.quarantines) + len(acts)
        told = f"{quarantines} quarantines, {len(world.watcher.incidents)} incidents"
        spent = time.process_time() - began
        print(f"seed {seed}: {hour} h, {told}, {spent:.0f} s of CPU", file=sys.stderr, flush=True)

    world.each_hour = each_hour
    total = world.run().total()
    watcher, count = world.watcher, world.count
    return {
        "seed": seed,
        "kind": next((kind for kind, seeds in NAMED.items() if seed in seeds), "neither"),
        "hours": hours,
        "replicas": models * REPLICAS,
        "requests": total.offered,
        "failed": total.failed,
        "refused": total.refused,
        "facts": watcher.facts.total(),
        "signs": {sign.value: n for sign, n in watcher.investigation.evidence_seen.items()},
        "suspects": count.suspects.total(),
        "why_suspected": dict(count.suspects),
        "wrong_quarantines": count.quarantines + list(acts.values()),
        "restarts": count.restarts,
        "incidents": [
            _plain(one, opened.get(name, 0.0), world) for name, one in watcher.incidents.items()
        ],
        "happened": dict(count.happened),
        "cpu_s": round(time.process_time() - began, 1),
    }


def _plain(incident: Incident, at_s: float, world: UglyWorld) -> dict[str, Any]:
    about = incident.about
    whom = (*incident.replicas, about.replica, f"{about.model}-" if about.model else "")
    told = {
        "id": incident.id,
        "at_s": round(at_s, 1),
        "cause": incident.cause.value,
        "about": str(about),
        "confidence": round(incident.confidence, 2),
        "signs": sorted({one.sign.value for one in (*incident.evidence, *incident.consequences)}),
        "text": incident.evidence[0].text if incident.evidence else "",
    }
    return told | {"around": world.around(at_s, *whom)}


def bounds_held(found: dict[str, Any]) -> bool:
    """No wrong quarantine, and at most one false incident in a day of 100 replicas."""
    days = found["hours"] / 24
    allowed = max(1.0, INCIDENTS_PER_DAY_MAX * days)
    return not found["wrong_quarantines"] and len(found["incidents"]) <= allowed


def show(found: Sequence[dict[str, Any]]) -> None:
    """The table, and what there was of alarms."""
    table = Table(title="a healthy fleet with an ugly life, simulated")
    heads = ("seed", "for", "hours × replicas", "requests", "failed", "facts", "suspects")
    for head in (*heads, "wrong quarantines", "restarts", "incidents", "CPU"):
        table.add_column(head, justify="right")
    for one in found:
        table.add_row(
            str(one["seed"]),
            one["kind"],
            f"{one['hours']:g} × {one['replicas']}",
            *(f"{one[name]:,}" for name in ("requests", "failed", "facts", "suspects")),
            *(str(len(one[name])) for name in ("wrong_quarantines", "restarts", "incidents")),
            f"{one['cpu_s']:.0f} s",
        )
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    console.print(f"tuning seeds {TUNING_SEEDS}, test seeds {TEST_SEEDS}", highlight=False)
    for one in found:
        happened = ", ".join(f"{n} {what}" for what, n in sorted(one["happened"].items()))
        console.print(f"seed {one['seed']} had: {happened}", highlight=False)
        for name in ("wrong_quarantines", "restarts"):
            for told in one[name][:SHOWN_MAX]:
                console.print(f"  {name.replace('_', ' ')[:-1]}: {told}", highlight=False)
        for told in one["incidents"][:SHOWN_MAX]:
            text = "{id} at {at_s} s: {cause} of {about} ({confidence}), {signs}: {text}"
            console.print("  " + text.format(**told), highlight=False, markup=False)
            console.print(f"      meanwhile: {told['around']}", highlight=False, markup=False)


def seeds_of(given: str) -> tuple[int, ...]:
    """Seeds by their name or one by one."""
    if given in NAMED:
        return NAMED[given]
    return tuple(int(seed) for seed in given.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=seeds_of, default=TEST_SEEDS[:1], help="test, tuning, 1,2")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--load", type=float, default=1.0, help="of the usual rate of requests")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", type=int, default=MODELS, help="of four replicas each")
    given = parser.parse_args(arguments)
    much = (given.hours, given.load, given.recorded, given.models)
    tasks = [(seed, *much) for seed in given.seeds]
    if given.jobs > 1 and len(tasks) > 1:
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            found = list(pool.map(run, *zip(*tasks, strict=True)))
    else:
        found = [run(*task) for task in tasks]
    held = all(bounds_held(one) for one in found)
    if given.json:
        seeds = {"tuning_seeds": TUNING_SEEDS, "test_seeds": TEST_SEEDS}
        print(json.dumps({"benchmark": "false_alarms", **seeds, "runs": found, "held": held}))
    else:
        show(found)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
