"""The twin under faults: the same fault on a live fleet and simulated, and how far they differ.

    python bench/twin_faults.py --store FILE [--runs N] [--faults crash,hang] [--simulated N]
    python bench/twin_faults.py --store FILE --runs 0          # what the file has, nothing is run
    python bench/twin_faults.py --records FOLDER [--shape stream] [--faults crash] [--simulated N]

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

With ``--records`` the live side is a folder that ``bench/gauntlet_real.py --records`` filled: three
replicas of llama.cpp, one chat a second, streamed or in one piece, one core kept busy. Nothing is
run; ``bench/twin_records.py`` has how it is simulated. A fault's row holds the runs of both shapes,
harmed is as there (an error, another text, no end, later than 15 s), and ``--simulated`` says how
often each recorded fleet is simulated, with all its game days.

Printed is for each fault: the mean harmed share live and simulated, the 90 % interval of their
difference (Welch), the median times to detection, and the causes. Held against them: the interval
lies within 2 points of none, the medians differ by at most 30 % or half a second (strike and notice
take a live fleet some of that), the cause is the same. Exit status 1 where one of them is missed;
faults with fewer than two live runs have no interval and are told as not judged. Status 2: a folder
or a file that cannot be used.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from orjson import loads

from diagnosis_sim import GAUNTLET, NONE
from fault_load import LATE_S
from gauntlet import NAMED_S, Job, line_of, run_all, shots_of
from gauntlet_fleet import COUNT, TOKENS, fleet_text
from gauntlet_real import CAUSES
from gauntlet_trials import SHAPES, TRIALS
from holdfast.config.files import load_text
from holdfast.config.fleet_file import FleetFile
from holdfast.core.health.answers.answer_comparison import ComparingConfig
from holdfast.core.messages import Finish
from holdfast.core.types import ConfigError, nanos, seconds
from holdfast.sim.diagnosis import DiagnosisDriver, ObservationModel
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Workload
from holdfast.sim.world import World
from holdfast.twin.fleet_model import fleet_twin
from holdfast.wire.up import built_in_text
from twin_comparison import Trial, compare, show
from twin_records import RecordError, RecordSettings, read_folder, simulate_records

FAULTS: Final = ("crash", "sigstop", "hang", "stall", "slow", "cut", "garbage", "500-instant")
SHAPE: Final = SHAPES["stream"]
# A step of 10 ms whatever the batch holds: a law that both sides have.
LAW: Final = EngineParameters(
    step_ms=10.0, per_sequence_ms=0.0, per_kv_token_ms=0.0, per_prompt_token_ms=0.0
)
RUNS_SIMULATED: Final = 20  # of each fault
FLEETS_SIMULATED: Final = 8  # of each recorded one, which has every fault several times
STAND_IN: Final = ("--step-ms", "10", "--tokens", str(TOKENS))


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


# --- what it comes to -----------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--store", type=Path, help="file of the live runs on stand-ins, JSONL")
    source.add_argument("--records", type=Path, help="folder of gauntlet_real's records")
    parser.add_argument("--runs", type=int, default=10, help="live runs of each fault, in all")
    parser.add_argument("--simulated", type=int, help="simulated runs of each fault, or fleets")
    parser.add_argument("--faults", default="", help="separated by commas")
    parser.add_argument("--json", action="store_true")
    group = parser.add_argument_group("of records, as gauntlet_real was told")
    group.add_argument("--shape", choices=("stream", "unary", "both"), default="both")
    group.add_argument("--fleet", type=Path, help="fleet file (default: that of holdfast up)")
    group.add_argument("--tokens", type=int, default=16)
    group.add_argument("--late", type=float, default=15.0, help="seconds")
    group.add_argument("--lasts", type=float, default=40.0, help="seconds of each fault")
    given = parser.parse_args(argv)
    known, usual = (CAUSES, CAUSES) if given.records else (TRIALS, FAULTS)
    given.faults = [name for name in given.faults.split(",") if name] or list(usual)
    if any(name not in known for name in given.faults):
        parser.error(f"--faults: use some of {', '.join(known)}")
    if given.simulated is None:
        given.simulated = FLEETS_SIMULATED if given.records else RUNS_SIMULATED
    if given.runs < 0 or given.simulated < 1:
        parser.error("--runs: use 0 or more; --simulated: use 1 or more")
    if given.tokens < 1 or given.late <= 0 or given.lasts <= 0:
        parser.error("--tokens: use 1 or more; --late and --lasts: use seconds above 0")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, simulate, compare, and judge."""
    given = arguments(argv)
    if given.records:
        return compare_records(given)
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


def compare_records(given: argparse.Namespace) -> int:
    """Simulate the fleets of gauntlet_real's records, compare, and judge."""
    try:
        text = given.fleet.read_text(encoding="utf-8") if given.fleet else built_in_text()
        shapes = ("stream", "unary") if given.shape == "both" else (given.shape,)
        days = [day for day in read_folder(given.records) if day.shape in shapes]
        settings = RecordSettings(text, given.tokens, given.late, given.lasts)
        fleets, trials = simulate_records(days, settings, given.simulated, _tell)
    except (RecordError, ConfigError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    rows, absent = [], []
    for fault in given.faults:
        live = [day.trial for day in days if day.fault == fault and day.simulated]
        simulated = [trial for trial in trials if trial.fault == fault]
        if live and simulated:
            rows.append(compare(fault, live, simulated))
        else:
            absent.append(fault)
    left_out = [
        f"{day.name} ({day.problem or 'the simulator has no such fault of such answers'})"
        for day in days
        if day.fault in given.faults and not day.simulated
    ]
    if given.json:
        told = {"benchmark": "twin_faults", "rows": rows, "absent": absent, "left_out": left_out}
        print(json.dumps(told | {"fleets": [asdict(fleet) for fleet in fleets]}))
    else:
        for fleet in fleets:
            print(fleet.sentence)
        show(rows, absent)
        if left_out:
            print(f"not compared: {', '.join(left_out)}")
    return int(any(row["missed"] for row in rows))


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
