"""The twin under faults: the same fault on a live fleet and simulated, and how far they differ.

    python bench/twin_faults.py --store FILE [--runs N] [--faults crash,hang] [--simulated N]
    python bench/twin_faults.py --store FILE --runs 0          # what the file has, nothing is run

Live is a trial of ``bench/gauntlet.py``: four stand-ins that Holdfast launched, 40 streams per
second, one struck out of band after a warm-up. They advance in batches of 10 ms a step, a law that
the simulator has too. Simulated is the twin of the same fleet file (``holdfast.twin``), with the
same arrivals and the fault at the same time, and diagnosis that acts. Harmed is on both sides
whoever was under way at the onset or sent within 20 s after it and got an error, a wrong or short
answer, or one later than 1.5 s. Detection is the time from the onset to the first incident of the
struck replica, by the incident's own clock.

A live run takes more than a minute, and ten of eight faults more than an hour, so each is written
to the file as soon as it has ended. Started again with the same file, only what is missing is run;
a run that could not be made is told, not kept, and tried again the next time.

Printed is for each fault: the mean harmed share live and simulated, the 90 % interval of their
difference (Welch), the median times to detection, and the causes. Held against them: the interval
lies within 2 points of none, the medians differ by at most 30 % or half a second (strike and notice
take a live fleet some of that), the cause is the same. Exit status 1 where one of them is missed;
faults with fewer than two live runs have no interval and are told as not judged.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any, Final

from orjson import loads
from rich.console import Console
from rich.table import Table

from diagnosis_sim import GAUNTLET, NONE
from fault_load import LATE_S
from gauntlet import NAMED_S, Job, line_of, run_all, shots_of
from gauntlet_fleet import COUNT, TOKENS, fleet_text
from gauntlet_trials import SHAPES, TRIALS
from holdfast.config.files import load_text
from holdfast.config.fleet_file import FleetFile
from holdfast.core.health.answer_comparison import ComparingConfig
from holdfast.core.messages import Finish
from holdfast.core.types import nanos, seconds
from holdfast.sim.diagnosis import DiagnosisDriver, ObservationModel
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Workload
from holdfast.sim.world import World
from holdfast.twin.fleet_model import fleet_twin

FAULTS: Final = ("crash", "sigstop", "hang", "stall", "slow", "cut", "garbage", "500-instant")
SHAPE: Final = SHAPES["stream"]
# A step of 10 ms whatever the batch holds: a law that both sides have.
LAW: Final = EngineParameters(
    step_ms=10.0, per_sequence_ms=0.0, per_kv_token_ms=0.0, per_prompt_token_ms=0.0
)
STAND_IN: Final = ("--step-ms", "10", "--tokens", str(TOKENS))
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


# --- simulated ------------------------------------------------------------------------------------


def trace_of(job: Job, folder: Path) -> Path:
    """The arrivals of a live trial as a trace, written to this folder."""
    rng = job.rng()
    rng.sample(range(COUNT), 1)  # a live trial chooses its replica first
    shots, _ = shots_of(job, rng, 0.0, NAMED_S)
    path = folder / "arrivals.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for shot in shots:
            prompt = loads(shot.body)["messages"][0]["content"].split()
            row = {"timestamp": round(shot.due * 1e3), "input_length": len(prompt)}
            file.write(json.dumps(row | {"output_length": TOKENS}) + "\n")
    return path


def experiment_of(fault: str, run: int, trace: Path) -> tuple[Experiment, ObservationModel]:
    """The twin of the gauntlet's fleet with one fault, and what can be seen of it."""
    live = GAUNTLET[fault]
    model: dict[str, Any] = {"comparison": {}} if live.comparison else {}
    file = load_text("fleet.yaml", fleet_text((1, 2), model, STAND_IN).decode(), FleetFile)
    workload = Workload(rate=SHAPE.rate, trace=str(trace))
    twin = fleet_twin(file, None, traffic={"m": workload}, engines={"m": LAW})
    sick = stream(run, fault, "sick").choice(twin.members()).id
    # The rounds of control and gateways begin with the simulation: strike between two of them.
    onset_s = SHAPE.warm_up_s + stream(run, fault, "onset").random()
    setup = twin.experiment(onset_s + NAMED_S, faults=[live.fault(sick, nanos(onset_s))])
    seen = ObservationModel(
        limit_declared=False, comparison=ComparingConfig() if live.comparison else None
    )
    return replace(setup, loading=LoadingConfig(start_s=1.0, size_gb=0.0)), seen


def simulate(fault: str, run: int) -> Trial:
    """One run in the simulator."""
    with tempfile.TemporaryDirectory() as folder:
        experiment, model = experiment_of(fault, run, trace_of(job_of(fault, run), Path(folder)))
        return simulated_trial(experiment, model, fault, run)


def simulated_trial(experiment: Experiment, model: ObservationModel, fault: str, run: int) -> Trial:
    """Run a fleet with a fault, and read who was harmed and what diagnosis said."""
    world = World(experiment, run)
    onset, struck = experiment.faults.faults[0].at, experiment.faults.faults[0].target
    until, late = onset + nanos(SHAPE.seconds), nanos(LATE_S)
    counted = harmed = 0

    def look(now: int, machine: str, _event: Any, actions: Sequence[Any]) -> None:
        nonlocal counted, harmed
        if machine != "flow":
            return
        for action in actions:
            if isinstance(action, Finish):
                record = world.records[action.request_id]
                if now >= onset and record.request.arrived < until:
                    counted += 1
                    slow = now - record.request.arrived > late
                    harmed += action.status != 200 or record.wrong or slow

    world.add_observer(look)
    driver = DiagnosisDriver(world, model=model, seed=run, acts=True)
    world.run()
    mine = [
        incident
        for incident in driver.incidents.values()
        if struck in (*incident.replicas, incident.about.replica)
    ]
    first = min(mine, key=lambda incident: incident.opened_at, default=None)
    delay_s = None if first is None else seconds(first.opened_at - onset)
    cause = NONE if first is None else first.cause.value
    return Trial(fault, run, harmed / max(1, counted), counted, delay_s, cause)


# --- live -----------------------------------------------------------------------------------------


def job_of(fault: str, run: int) -> Job:
    """One trial of the gauntlet; its run is its seed, so that each has other arrivals."""
    how = (SHAPE.rate, SHAPE.seconds, SHAPE.warm_up_s, SHAPE.stream)
    return Job("holdfast", fault, "", run, 0, *how, stand_in=STAND_IN)


def live_trial(row: dict[str, Any]) -> Trial:
    """What the gauntlet measured, in this benchmark's words."""
    cause = row["cause"] or NONE
    told = (row["share"], row["requests"], row["opened_s"], cause)
    return Trial(row["fault"], row["seed"], *told)


def stored(path: Path) -> dict[tuple[str, int], Trial]:
    """The live runs that a file has, by fault and run; a last line that was cut off is left out."""
    found: dict[tuple[str, int], Trial] = {}
    if not path.exists():
        return found
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            trial = Trial(**json.loads(line))
        except (ValueError, TypeError) as bad:
            if number == len(lines) and not line.endswith("\n"):
                break  # it was being written when the machine went down; it is run again
            raise SystemExit(f"{path}, line {number}: no run of this benchmark ({bad})") from bad
        found[trial.fault, trial.run] = trial
    return found


def store(path: Path, trial: Trial) -> None:
    """Add one run to the file; it is on the disk when this returns."""
    values = {name: getattr(trial, name) for name in Trial.__slots__}
    torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    if torn:
        whole = path.read_bytes().rpartition(b"\n")
        path.write_bytes(whole[0] + whole[1])
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_live(path: Path, faults: Sequence[str], runs: int) -> int:
    """Run what the file does not have yet, one after the other; how many could not be run."""
    known = stored(path)
    # All faults once before any of them twice: whoever stops early has something of each.
    missing = [
        (fault, run) for run in range(1, runs + 1) for fault in faults if (fault, run) not in known
    ]
    failed = 0
    for number, (fault, run) in enumerate(missing, start=1):
        (row,) = run_all([job_of(fault, run)], 1)
        if row["problem"]:
            failed += 1
        else:
            store(path, live_trial(row))
        print(f"live {number}/{len(missing)}: {line_of(row)}", file=sys.stderr, flush=True)
    return failed


# --- both beside each other -----------------------------------------------------------------------


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


def _median_delay(side: Sequence[Trial]) -> float | None:
    found = [trial.delay_s for trial in side if trial.delay_s is not None]
    return median(found) if found else None


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


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--store", type=Path, required=True, help="file of the live runs, JSONL")
    parser.add_argument("--runs", type=int, default=10, help="live runs of each fault, in all")
    parser.add_argument("--simulated", type=int, default=20, help="simulated runs of each fault")
    parser.add_argument("--faults", default=",".join(FAULTS), help="separated by commas")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    given.faults = [name for name in given.faults.split(",") if name]
    unknown = [name for name in given.faults if name not in TRIALS]
    if unknown or not given.faults:
        parser.error(f"--faults: use some of {', '.join(TRIALS)}")
    if given.runs < 0 or given.simulated < 1:
        parser.error("--runs: use 0 or more; --simulated: use 1 or more")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, simulate, compare, and judge."""
    given = arguments(argv)
    failed = run_live(given.store, given.faults, given.runs)
    known = stored(given.store)
    rows, absent = [], []
    for fault in given.faults:
        live = [trial for (name, _), trial in sorted(known.items()) if name == fault]
        if not live:
            absent.append(fault)
            continue
        simulated = [simulate(fault, run) for run in range(1, given.simulated + 1)]
        rows.append(compare(fault, live, simulated))
    if given.json:
        told = {"benchmark": "twin_faults", "rows": rows, "absent": absent, "not_run": failed}
        print(json.dumps(told))
    else:
        show(rows, absent)
        if failed:
            print(f"{failed} live runs could not be made; start it again to try them again")
    return int(any(row["missed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
