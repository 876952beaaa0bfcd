"""The simulated side of ``bench/gauntlet_real.py``: its recorded game days, run by the twin.

    records of a folder ─► fleets, each with its game days in order ─► one simulation each, N seeds

A live fleet has a memory: deadlines are learned from the answers of earlier game days, and an
incident may still be open when the next fault strikes. So the records of one fleet are simulated in
one piece, at the times at which they happened: the same arrivals, the same faults on the same
replicas. The policies are those of the fleet file. The engine's law is fitted to the requests that
were answered before any fault; a chat's latency is all that a record has of them, so two numbers
are fitted (how long a chat takes alone, and how much longer beside others) and the rest is assumed.

What the proxy before a replica does is told in the simulator's words: five pieces of a stream are
its head, its role and three tokens; an answer in one piece has fewer, so cut and reset pass it by.
The simulator's drip is an engine's, a token every five seconds: of an answer in one piece, which
the proxy delays as a whole, it would make minutes, so those runs are not compared.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from diagnosis_sim import NONE
from gauntlet_real import CAUSES, COUNTED_S, WARM_UP_S
from holdfast.chaos.target import begun_at
from holdfast.config.files import load_text
from holdfast.config.fleet_file import FleetFile
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.investigation import Finding
from holdfast.core.messages import Finish
from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import nanos, seconds
from holdfast.sim.clock import WORLD
from holdfast.sim.diagnosis import DiagnosisDriver, ObservationModel
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Workload
from holdfast.sim.world import World
from holdfast.twin.fleet_model import fleet_twin
from twin_comparison import Trial

QUESTIONS: Final = 4  # asked one after the other before each game day, to learn their answers
HEALTHY_MIN: Final = 8  # requests before any fault that a law is fitted to; a game day has ten
ALONE: Final = 0.05  # of others under way beside a request, on average: it had the machine
CROWD_MIN: Final = 0.25  # and what tells how much they slow it down
NEIGHBOUR_MAX: Final = 3.0
# A chat's prompt as far as the engine has not cached it, and what a token of it costs in tokens of
# an answer: a processor reads several at once.
PROMPT: Final = 12
PROMPT_COST: Final = 0.25
SETTLE_S: Final = 5.0  # after a fault's end, as in gauntlet_real's plan
START_S: Final = 3.0  # of a replica, where no record tells
DRIP_S: Final = 5.0  # the delay of gauntlet_real's plan
SLOW_FACTOR: Final = 10.0
PASSING_TOKENS: Final = 3

_KINDS: Final[dict[str, tuple[FaultKind, dict[str, Any]]]] = {
    "crash": (FaultKind.CRASH, {}),
    "stop": (FaultKind.STOP, {}),
    "hang": (FaultKind.HANG, {}),
    "slow": (FaultKind.SLOW, {"factor": SLOW_FACTOR}),
    "drip": (FaultKind.DRIP, {"interval_s": DRIP_S}),
    "cut": (FaultKind.CUT, {"tokens": PASSING_TOKENS}),
    "reset": (FaultKind.RESET, {"tokens": PASSING_TOKENS}),
    "wrong_output": (FaultKind.WRONG_OUTPUT, {}),
}
_NOT_SIMULATED: Final = (("unary", "drip"),)
_CRASH_S: Final = 0.1


class RecordError(Exception):
    """A folder or a file that is no record of this benchmark; says which and what to do."""


@dataclass(slots=True, frozen=True)
class RecordSettings:
    """What gauntlet_real was told and no record says, and the fleet file it ran."""

    text: str  # of the fleet file
    tokens: int = 16
    late_s: float = 15.0
    lasts_s: float = 40.0


@dataclass(slots=True, frozen=True)
class RecordedDay:
    """One game day of a live fleet: a fault, its traffic, and what came of it."""

    name: str  # of its file
    shape: str
    fault: str
    run: int
    replica: str
    began_at: float  # seconds since 1970
    fleet_at: float  # when the struck replica's first event was
    asked: tuple[tuple[float, float, str], ...]  # at, took, harm
    starts_s: tuple[float, ...]  # loading of the replica's processes
    problem: str
    trial: Trial

    @property
    def simulated(self) -> bool:
        """Whether the simulator has a model of this fault for answers of this shape."""
        return (self.shape, self.fault) not in _NOT_SIMULATED and not self.problem


# --- reading --------------------------------------------------------------------------------------


def read_folder(folder: Path) -> list[RecordedDay]:
    """All records of a folder, the oldest first; raises ``RecordError`` for anything else."""
    if not folder.is_dir():
        raise RecordError(f"--records: there is no folder {folder}")
    days = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not days:
        fix = f"make some: python bench/gauntlet_real.py --runs 5 --records {folder}"
        raise RecordError(f"--records: {folder} has no record (*.json); {fix}")
    return sorted(days, key=lambda day: day.began_at)


def _read(path: Path) -> RecordedDay:
    try:
        day = _day(path.name, json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as bad:
        why = f"{type(bad).__name__}: {bad}"
        text = f"{path}: no record of gauntlet_real ({why}); remove it, or run that fault again"
        raise RecordError(text) from bad
    return day


def _day(name: str, told: Mapping[str, Any]) -> RecordedDay:
    row, began_at = told["row"], float(told["began_at"])
    fault, shape, replica = row["fault"], row["shape"], str(row["replica"])
    if fault not in CAUSES or shape not in ("stream", "unary"):
        raise ValueError(f"a fault {fault!r} on answers of shape {shape!r}")
    requests, harmed = int(row["requests"]), int(row["harmed"])
    if not 0 <= harmed <= requests:
        raise ValueError(f"{harmed} harmed of {requests} requests")
    asked = tuple((float(at), float(took), str(harm)) for at, took, harm in told["asked"])
    events = [(float(event["at"]), str(event["what"])) for event in told["events"]]
    mine = [one for one in told["incidents"] if replica in one["replicas"]]
    first = min(mine, key=begun_at, default=None)
    delay_s = None if first is None else begun_at(first) - began_at - WARM_UP_S
    cause = NONE if first is None else str(first["cause"])
    trial = Trial(fault, int(row["run"]) + 1, harmed / max(1, requests), requests, delay_s, cause)
    fleet_at = min((at for at, _ in events), default=began_at)
    problem = str(row["problem"])
    of_fleet = (began_at, fleet_at, tuple(sorted(asked)), tuple(_starts(events)))
    return RecordedDay(name, shape, fault, trial.run, replica, *of_fleet, problem, trial)


def _starts(events: Sequence[tuple[float, str]]) -> list[float]:
    """How long each process of a replica loaded."""
    found, began = [], None
    for at, what in sorted(events):
        if what == "loading":
            began = at
        elif what == "warming" and began is not None:
            found.append(at - began)
            began = None
    return found


def fleets_of(days: Sequence[RecordedDay]) -> list[list[RecordedDay]]:
    """The game days of each fleet, in order: a fleet that was started later is another one."""
    fleets: list[list[RecordedDay]] = []
    for day in sorted(days, key=lambda one: one.began_at):
        known = fleets and fleets[-1][-1].shape == day.shape
        if not known or day.fleet_at > fleets[-1][-1].began_at + WARM_UP_S:
            fleets.append([])
        fleets[-1].append(day)
    return fleets


# --- the engine's law -----------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class ChatTimes:
    """How long a chat takes when all is well."""

    alone_s: float
    neighbour_share: float  # by how much another one under way prolongs it
    requests: int  # that were looked at

    @property
    def sentence(self) -> str:
        """What was fitted, for people."""
        alone = f"a chat alone takes {self.alone_s:.2f} s"
        return f"{alone}, {self.neighbour_share:.0%} longer for each other ({self.requests} chats)"


def chat_times(days: Sequence[RecordedDay]) -> ChatTimes:
    """Fit the requests that were over before any fault; raises ``RecordError`` with too few."""
    rows = []
    for day in days:
        for number, (at, took, harm) in enumerate(day.asked):
            if harm or not took or at + took >= WARM_UP_S:
                continue
            others = sum(
                max(0.0, min(at + took, other + lasted) - max(at, other))
                for place, (other, lasted, _) in enumerate(day.asked)
                if place != number
            )
            rows.append((others / took, took))
    if len(rows) < HEALTHY_MIN:
        problem = f"{len(rows)} requests were answered before a fault; a fit needs {HEALTHY_MIN}"
        raise RecordError(f"--records: {problem}; record more runs")
    quick = [took for others, took in rows if others <= ALONE]
    alone = median(quick) if quick else min(took for _, took in rows)
    slowed = [(took / alone - 1.0) / others for others, took in rows if others >= CROWD_MIN]
    share = min(NEIGHBOUR_MAX, max(0.0, median(slowed))) if slowed else 0.0
    return ChatTimes(alone, share, len(rows))


def law_of(chat: ChatTimes, tokens: int, slots: int) -> EngineParameters:
    """An engine that takes so long for a chat of so many tokens.

    Its batch costs nothing more: chats of one a second seldom share one, and the proxy's delays,
    which the simulator lays to the engine, would else keep batches together that live ones do not.
    """
    step_ms = 1e3 * chat.alone_s / (tokens + PROMPT * PROMPT_COST)
    return EngineParameters(
        step_ms=step_ms,
        per_sequence_ms=0.0,
        per_kv_token_ms=0.0,
        per_prompt_token_ms=step_ms * PROMPT_COST,
        batch_max=slots or EngineParameters().batch_max,
        neighbour_share=chat.neighbour_share,
    )


# --- simulating -----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class SimulatedFleet:
    """One recorded fleet in the simulator: its experiment, and the onset of each game day."""

    experiment: Experiment
    days: tuple[RecordedDay, ...]
    onsets: tuple[int, ...]  # ns from the first request
    ends: tuple[int, ...]  # of the game days


def fleet_of(
    days: Sequence[RecordedDay], chat: ChatTimes, settings: RecordSettings, folder: Path
) -> SimulatedFleet:
    """The twin of one fleet with its game days; its arrivals are written to ``folder``."""
    file = load_text("fleet.yaml", settings.text, FleetFile)
    model = file.models[0]
    began_at, trace = _write_arrivals(days, chat, settings.tokens, folder)
    slots = model.launch.slots if model.launch is not None else 0
    law = law_of(chat, settings.tokens, slots)
    workload = Workload(trace=str(trace), stream=days[0].shape == "stream")
    twin = fleet_twin(file, None, traffic={model.name: workload}, engines={model.name: law})
    names = [replica.id for replica in twin.members()]
    for day in days:
        if day.replica not in names:
            problem = f"{day.name}: struck {day.replica}, but the fleet file has {', '.join(names)}"
            raise RecordError(f"{problem}; give the file that was used with --fleet")
    onsets = [nanos(day.began_at - began_at + WARM_UP_S) for day in days]
    faults = [
        _fault(day, onset, settings)
        for day, onset in zip(days, onsets, strict=True)
        if day.simulated
    ]
    ends_s = days[-1].began_at - began_at + WARM_UP_S + settings.lasts_s + SETTLE_S
    starts = [start for day in days for start in day.starts_s]
    setup = replace(
        twin.experiment(ends_s, faults=faults),
        loading=LoadingConfig(start_s=median(starts) if starts else START_S, size_gb=0.0),
        hosts=tuple((name, "host") for name in names),
    )
    ends = [onset + nanos(settings.lasts_s + SETTLE_S) for onset in onsets]
    return SimulatedFleet(setup, tuple(days), tuple(onsets), tuple(ends))


def _write_arrivals(
    days: Sequence[RecordedDay], chat: ChatTimes, tokens: int, folder: Path
) -> tuple[float, Path]:
    """The requests of all game days as a trace, and the time of the first one."""
    times = []
    for day in days:
        times += [day.began_at - (left + 1) * chat.alone_s for left in range(QUESTIONS)]
        times += [day.began_at + at for at, _, _ in day.asked]
    times.sort()
    path = folder / f"{days[0].shape}-{days[0].began_at:.0f}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for at in times:
            row = {"timestamp": round((at - times[0]) * 1e3), "input_length": PROMPT}
            file.write(json.dumps(row | {"output_length": tokens}) + "\n")
    return times[0], path


def _fault(day: RecordedDay, onset: int, settings: RecordSettings) -> Fault:
    """The fault of a game day in the simulator's words.

    A restart mends none that sits in the proxy; one that was stopped by a signal starts anew.
    """
    kind, more = _KINDS[day.fault]
    lasts_s = _CRASH_S if day.fault == "crash" else settings.lasts_s
    return Fault(kind, day.replica, onset, onset + nanos(lasts_s), **more)


@dataclass(slots=True, frozen=True)
class IncidentNote:
    """What an incident said at one time; no replicas: it was merged into another one."""

    at: int
    begun_at: int
    cause: str
    replicas: tuple[str, ...]


class IncidentHistory:
    """Keeps what incidents said and when: a game day reads them at its end, not at the last one."""

    def __init__(self) -> None:
        self._notes: dict[str, list[IncidentNote]] = {}

    def note(self, incident: Incident, now: int, *, listed: bool) -> None:
        """Take what an incident says now, and whether it is listed still."""
        replicas = (*incident.replicas, incident.about.replica) if listed else ()
        note = IncidentNote(now, incident.begun_at, incident.cause.value, replicas)
        self._notes.setdefault(incident.id, []).append(note)

    def first(self, replica: str, began: int, end: int) -> IncidentNote | None:
        """The first incident of a replica that began in this time, as it stands at its end."""
        latest = [
            next((note for note in reversed(notes) if note.at <= end), None)
            for notes in self._notes.values()
        ]
        mine = [
            note
            for note in latest
            if note is not None and replica in note.replicas and began <= note.begun_at <= end
        ]
        return min(mine, key=lambda note: note.begun_at, default=None)


def simulate_fleet(fleet: SimulatedFleet, seed: int, late_s: float) -> list[Trial]:
    """One simulation of a fleet: a trial of each game day whose replica was up to be struck."""
    world = World(fleet.experiment, seed)
    finished: list[tuple[int, int, bool]] = []  # arrived, ended, harmed
    late = nanos(late_s)

    def look(now: int, machine: str, _event: Any, actions: Sequence[Any]) -> None:
        if machine != "flow":
            return
        for action in actions:
            if isinstance(action, Finish):
                record = world.records[action.request_id]
                arrived = record.request.arrived
                harmed = action.status != 200 or record.wrong or now - arrived > late
                finished.append((arrived, now, harmed))

    up: set[int] = set()

    def check(place: int, _now: int) -> None:
        if world.units[fleet.days[place].replica].serving:
            up.add(place)

    history = IncidentHistory()

    def listen(finding: Finding, now: int) -> None:
        incident = getattr(finding, "incident", None)
        if incident is not None:
            listed = incident.id in driver.investigation.incidents
            history.note(incident, now, listed=listed)

    world.add_observer(look)
    model = ObservationModel(limit_declared=False, host_of=lambda _: "host")
    driver = DiagnosisDriver(world, model=model, seed=seed, acts=True, listen=listen)
    for place, onset in enumerate(fleet.onsets):
        world.clock.at(onset - 1, WORLD, check, place)
    world.run()
    return [
        _trial(fleet, place, finished, history)
        for place, day in enumerate(fleet.days)
        if day.simulated and place in up
    ]


def _trial(
    fleet: SimulatedFleet,
    place: int,
    finished: Sequence[tuple[int, int, bool]],
    history: IncidentHistory,
) -> Trial:
    """What became of one simulated game day, counted as the live one was."""
    day, onset = fleet.days[place], fleet.onsets[place]
    began, until = onset - nanos(WARM_UP_S), onset + nanos(COUNTED_S)
    harms = [
        harmed for arrived, ended, harmed in finished if began <= arrived < until and ended >= onset
    ]
    first = history.first(day.replica, began, fleet.ends[place])
    delay_s = None if first is None else seconds(first.begun_at - onset)
    cause = NONE if first is None else first.cause
    share = fmean(harms) if harms else 0.0
    return Trial(day.fault, day.run, share, len(harms), delay_s, cause)


def simulate_records(
    days: Sequence[RecordedDay],
    settings: RecordSettings,
    seeds: int,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[ChatTimes], list[Trial]]:
    """Simulate every fleet of these records under so many seeds: its chats' times, all trials."""
    trials: list[Trial] = []
    chats = []
    fleets = fleets_of(days)
    with tempfile.TemporaryDirectory() as folder:
        for number, mine in enumerate(fleets, start=1):
            chats.append(chat_times(mine))
            fleet = fleet_of(mine, chats[-1], settings, Path(folder))
            for seed in range(1, seeds + 1):
                trials += simulate_fleet(fleet, seed, settings.late_s)
                say(f"fleet {number} of {len(fleets)} ({mine[0].shape}), seed {seed} of {seeds}")
    return chats, trials


__all__ = [
    "ChatTimes",
    "RecordError",
    "RecordSettings",
    "RecordedDay",
    "chat_times",
    "fleet_of",
    "fleets_of",
    "law_of",
    "read_folder",
    "simulate_fleet",
    "simulate_records",
]
