"""One or two of four replicas go bad: who is harmed, and what the failure is called.

    python bench/gauntlet.py [--faults crash,hang] [--gateways holdfast,envoy,…] [--json]
    python bench/gauntlet.py --shape unary --seeds 1,2,3,4,5
    python bench/gauntlet.py --shape light --seeds 1,2,3,4,5 --jobs 5
    python bench/gauntlet.py --faults wrong-10 --repeat 20

Four stand-ins (first token after 50 ms, 20 tokens at 10 ms) serve chats with the shipped defaults.
After a warm-up one of them is struck, out of band. The shapes of the work:

    stream  40 streams a second, counted for 20 s after the onset
    unary   the same, answered in one piece
    light   1.5 streams a second, counted for 60 s; once on a fresh gateway (about 30 requests so
            far) and once after 200 requests more, sent within seconds
    pair    as stream, with two replicas struck at once: twelve pairs (``gauntlet_trials.py``)

Harmed is, in every shape and for every gateway, whoever was under way or sent in the counted time
and got an error, wrong or missing or repeated text, no finish reason, or an answer later than
1.5 s. Of Holdfast is printed too when the sick replica got its last request, which class and cause
its incident names and when it was opened, and when the last wrong answer was given. Every fault
gets a fresh fleet and a process of its own; ``--jobs`` runs so many at a time, which is sensible
for *light* alone: elsewhere they would take each other's time.

The mean is of the 14 faults and of wrong answers with peer comparison. Apart, in no mean: a replica
that is wrong now and then, and wrong answers without the comparison (it is opt-in).

Exit status 1 where Holdfast misses what its shape has to hold: the upper 95 % bound over the seeds
(Student's t, one-sided, of the means of each seed) of the mean harmed is at most 0.7 % in *stream*,
0.8 % in *unary*, 4 % in *light*, 2.5 % in *pair*; in *stream* no fault harms more than 2.5 % and
each is named right; in *light* wrong answers end within 12 s; in all shapes no answer is short
without saying so and no healthy replica is accused. One seed has no bound: its mean is judged.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import chain, islice
from multiprocessing import get_context
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from fault_load import Load, Shot, poisson, short_prompts, summary
from gateway_processes import PeerError
from gauntlet_fleet import STAND_IN, TOKENS, Behind, Launchers, behind, launched
from gauntlet_report import closing_line, missed, show_own, show_peers, totals
from gauntlet_trials import (
    BUSY_RATE,
    PAIR_NAMES,
    SHAPES,
    SIXTEEN,
    WARMED_REQUESTS,
    Trial,
    trials_of,
)

SETTLE_S: Final = 15.0
LOOK_S: Final = 0.25
NAMED_S: Final = 45.0  # until a cause must be named; harm counts for --seconds only
NAMED_WITHIN_S: Final = 120.0  # where one answer in ten is wrong
BURST_S: Final = 8.0  # the requests that warm a gateway come within it, at the busy rate
TRIAL_S: Final = 600.0
STARTS_MAX: Final = 2  # of a fleet: another process may have taken one of its ports
GATEWAYS: Final = ("holdfast", "envoy", "haproxy", "sglang-router", "vllm-router", "litellm")


@dataclass(slots=True, frozen=True)
class Job:
    """One fault, or pair of faults, on one fresh fleet."""

    gateway: str
    fault: str
    start: str  # fresh, warmed, or empty where a shape has one start only
    seed: int
    run: int
    rate: float
    seconds: float
    warm_up_s: float
    stream: bool
    stand_in: tuple[str, ...] = STAND_IN

    def rng(self) -> Random:
        """The same for every gateway, so that all are asked the same at the same times."""
        return Random(f"{self.seed} {self.fault} {self.run}{self.start}")


@dataclass(slots=True)
class Sick:
    """What Holdfast said of one sick replica, and when, in seconds from the onset."""

    trial: Trial
    named_s: float | None = None
    incident: dict[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether its incident says what the fault is."""
        told, trial = self.incident, self.trial
        return told.get("cause") == trial.cause and told.get("class") == trial.failure_class


@dataclass(slots=True)
class Watched:
    """What Holdfast said of a fleet with sick replicas."""

    sick: dict[str, Sick]
    last_request_s: float | None = None  # None: none of them ever got one
    accused: tuple[str, ...] = ()  # healthy replicas with an incident
    canary_share: float | None = None  # of the tokens of healthy replicas, since the onset


# --- one trial ------------------------------------------------------------------------------------


def shots_of(job: Job, rng: Random, begin: float, counted_s: float) -> tuple[Iterator[Shot], float]:
    """All requests of a trial, and when its fault begins."""

    def work(rate: float, since: float, seconds: float) -> Iterator[Shot]:
        seed, stream = rng.getrandbits(32), job.stream
        return poisson(
            seed, rate, since, seconds, lengths=short_prompts, tokens=TOKENS, stream=stream
        )

    warming: Iterator[Shot] = iter(())
    if job.start == "warmed":
        warming = islice(work(BUSY_RATE, begin, TRIAL_S), WARMED_REQUESTS)
        begin += BURST_S
    onset = begin + job.warm_up_s
    return chain(warming, work(job.rate, begin, job.warm_up_s + counted_s)), onset


async def strike(fleet: Launchers | Behind, job: Job, rng: Random) -> dict[str, Any]:
    """Warm up, strike, measure."""
    replicas: list[Any] = await asyncio.to_thread(lambda: [*fleet.replicas()])
    trials = trials_of(job.fault)
    struck = list(zip(rng.sample(replicas, len(trials)), trials, strict=True))
    address = urlsplit(fleet.url)
    load = Load(address.hostname or "", address.port or 80, keep_alive=False)
    loop = asyncio.get_running_loop()
    seconds = job.seconds
    if isinstance(fleet, Launchers):
        seconds = max(seconds, NAMED_WITHIN_S if job.fault.startswith("wrong-10") else NAMED_S)
    shots, due = shots_of(job, rng, loop.time() + 0.1, seconds)
    sending = loop.create_task(load.run(shots))
    await asyncio.sleep(due - loop.time())
    before = summary([shot for shot in load.shots if shot.ended])
    onset, onset_at = loop.time(), time.time()
    strikes = (asyncio.to_thread(replica.strike, trial.fault) for replica, trial in struck)
    await asyncio.gather(*strikes)
    row: dict[str, Any] = {}
    if isinstance(fleet, Launchers):
        watched = Watched({replica.name: Sick(trial) for replica, trial in struck})
        await watch(fleet, watched, onset, (job.seconds, seconds), sending)
        row |= verdict(watched, onset_at)
    await asyncio.wait([sending])  # a trial for naming may have ended it
    await load.settle(SETTLE_S)
    return row | harm(load.shots, onset, job.seconds) | {"warm_up": before}


def harm(shots: Sequence[Shot], onset: float, seconds: float) -> dict[str, Any]:
    """Who was harmed in the counted time, and when the last wrong answer was given at all."""
    after = [shot for shot in shots if not shot.ended or shot.ended >= onset]
    wrong = [shot.ended - onset for shot in after if shot.harm() == "wrong text"]
    counted = [shot for shot in after if shot.due < onset + seconds]
    return summary(counted) | {"wrong_ended_s": max(wrong, default=None)}


async def watch(
    fleet: Launchers,
    watched: Watched,
    onset: float,
    span: tuple[float, float],
    sending: "asyncio.Task[None]",
) -> None:
    """Look on while it counts, and then until each cause is named or patience ends."""
    loop = asyncio.get_running_loop()
    least_s, most_s = span
    names = set(watched.sick)
    before = canary_tokens(await asyncio.to_thread(fleet.rows), names)
    served: dict[str, tuple[Any, ...]] = {}
    while (passed := loop.time() - onset) < most_s:
        rows = await asyncio.to_thread(fleet.rows)
        for name in names:
            row = rows.get(name, {})
            now_served = (row.get("share"), row.get("inflight"), row.get("state"))
            if now_served[0] and now_served != served.get(name):
                watched.last_request_s = passed
            served[name] = now_served
        spent, given_out = (
            now - then for now, then in zip(canary_tokens(rows, names), before, strict=True)
        )
        whole = spent + given_out
        watched.canary_share = spent / whole if whole > 0 else None
        await read_incidents(fleet, watched, passed)
        if passed >= least_s and all(sick.right for sick in watched.sick.values()):
            sending.cancel()
            await asyncio.wait([sending])
            break
        await asyncio.sleep(LOOK_S)


async def read_incidents(fleet: Launchers, watched: Watched, passed: float) -> None:
    """Take in what incidents say of each sick replica, and of others."""
    found = await asyncio.to_thread(fleet.incidents)
    accused = {replica for one in found for replica in one["replicas"]}
    watched.accused = tuple(sorted(accused - set(watched.sick)))
    for name, sick in watched.sick.items():
        mine = [one for one in found if name in one["replicas"]]
        if not mine:
            continue
        if len(watched.sick) > 1:  # one incident may concern both; each has to have its own cause
            mine.sort(key=lambda one, cause=sick.trial.cause: one["cause"] != cause)  # type: ignore[misc]
        sick.named_s = sick.named_s if sick.named_s is not None else passed
        sick.incident = await asyncio.to_thread(fleet.incident, mine[0]["id"])


def canary_tokens(rows: dict[str, dict[str, Any]], sick: set[str]) -> tuple[int, int]:
    """What canaries cost on the healthy replicas so far, and what users got there."""
    told = [row["canary"] for name, row in rows.items() if name not in sick and row.get("canary")]
    return sum(one["tokens"] for one in told), sum(one["users_tokens"] for one in told)


def verdict(watched: Watched, onset_at: float = 0.0) -> dict[str, Any]:
    """What was reported, and whether that is right; of a pair both, and the later time."""
    sick = watched.sick.values()
    opened = [at - onset_at for one in sick if (at := one.incident.get("opened_at")) is not None]
    times = [one.named_s for one in sick if one.named_s is not None]
    causes = [one.incident.get("cause") for one in sick]
    classes = sorted({str(one.incident["class"]) for one in sick if one.incident})
    signs = [each["sign"] for one in sick for each in one.incident.get("evidence", ())]
    return {
        "sick": "+".join(watched.sick),
        "last_request_s": watched.last_request_s,
        "opened_s": max(opened) if len(opened) == len(sick) else None,  # by the incident's clock
        "named_s": max(times) if len(times) == len(sick) else None,
        "class": "+".join(classes) or None,
        "cause": "+".join(str(cause) for cause in causes) if any(causes) else None,
        "expected": "+".join(one.trial.cause for one in sick),
        "right": all(one.right for one in sick),
        "accused": list(watched.accused),
        "canary_share": watched.canary_share,
        "signs": signs,
        "action": "; ".join(one.incident.get("action", "") for one in sick),
    }


# --- all of them ----------------------------------------------------------------------------------


def run_one(job: Job) -> dict[str, Any]:
    """One trial on a fresh fleet; a row with the problem where it could not be run."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    row: dict[str, Any] = {"gateway": job.gateway, "fault": job.fault, "start": job.start}
    row |= {"seed": job.seed, "run": job.run, "problem": ""}
    for left in reversed(range(STARTS_MAX)):
        started = False
        try:
            with _fleet(job, Random()) as fleet:  # ports need not be the same again
                started = True
                return row | uvloop.run(_guarded(strike(fleet, job, job.rng())))
        except (RuntimeError, OSError, KeyError, PeerError, HTTPException) as error:
            row["problem"] = f"{type(error).__name__}: {error}"
            if started or not left or isinstance(error, PeerError):
                break
            print(f"{job.gateway} {job.fault}: again: {row['problem']}", file=sys.stderr)
    return row


async def _guarded(trial: Any) -> dict[str, Any]:
    """Bounded: a gateway that hangs must not hang the benchmark."""
    row: dict[str, Any] = await asyncio.wait_for(trial, TRIAL_S)
    return row


def _fleet(job: Job, rng: Random) -> Any:
    if job.gateway != "holdfast":
        return behind(job.gateway, rng)
    compared = any(trial.comparison for trial in trials_of(job.fault))
    return launched(rng, {"comparison": {}} if compared else {}, job.stand_in)


def run_all(jobs: Sequence[Job], at_once: int) -> list[dict[str, Any]]:
    """Every trial in a process of its own, so many at a time; rows in the order of the jobs."""
    rows: dict[Job, dict[str, Any]] = {}
    context = get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(run_one, job): job for job in jobs}
        for done in as_completed(waiting):
            row = rows[waiting[done]] = done.result()
            print(f"{len(rows)}/{len(jobs)} {line_of(row)}", file=sys.stderr, flush=True)
    return [rows[job] for job in jobs]


def line_of(row: dict[str, Any]) -> str:
    """A trial in one line, for whoever watches."""
    label = f"{row['gateway']} {row['fault']} {row['start']}".strip() + f", seed {row['seed']}"
    if row["problem"]:
        return f"{label}: not run: {row['problem']}"
    told = f"{label}: {row['share']:.2%} of {row['requests']} harmed"
    if row["gateway"] == "holdfast":
        told += f", {row['cause']} ({'right' if row['right'] else 'not ' + row['expected']})"
    return told


def jobs_of(given: argparse.Namespace) -> list[Job]:
    """Every trial that was asked for; peers are run once for each seed."""
    shape = SHAPES[given.shape]
    how = (given.rate, given.seconds, given.warm_up, shape.stream)
    return [
        Job(gateway, fault, start, seed, run, *how)
        for fault in given.faults
        for seed in given.seeds
        for run in range(given.repeat)
        for start in given.starts
        for gateway in given.gateways
        if gateway == "holdfast" or (run == 0 and (fault in SIXTEEN or fault in PAIR_NAMES))
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shape", choices=SHAPES, default="stream")
    parser.add_argument("--faults", default="", help="separated by ; or , (default: all)")
    parser.add_argument("--gateways", default="holdfast", help=f"of {', '.join(GATEWAYS)}, or all")
    parser.add_argument("--seconds", type=float, help="counted after the onset")
    parser.add_argument("--warm-up", type=float, help="seconds before it")
    parser.add_argument("--rate", type=float, help="requests per second")
    parser.add_argument("--fresh", action="store_true", help="of light: a fresh gateway only")
    parser.add_argument("--warmed", action="store_true", help="of light: after 200 requests only")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each fault and seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", default="", help="several, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    shape = SHAPES[given.shape]
    split = ";" if ";" in given.faults else ","
    given.faults = [name for name in given.faults.split(split) if name] or list(shape.faults)
    if not set(given.faults) <= set(shape.faults):
        parser.error(f"--faults: {given.shape} knows: {'; '.join(shape.faults)}")
    given.gateways = list(GATEWAYS) if given.gateways == "all" else given.gateways.split(",")
    if not set(given.gateways) <= set(GATEWAYS):
        parser.error(f"--gateways: known are {', '.join(GATEWAYS)}")
    try:
        given.seeds = [int(seed) for seed in given.seeds.split(",") if seed] or [given.seed]
    except ValueError:
        parser.error("--seeds: use whole numbers separated by commas, such as 1,2,3")
    chosen = [start for start in shape.starts if getattr(given, start or "fresh")]
    if (given.fresh or given.warmed) and given.shape != "light":
        parser.error("--fresh and --warmed: use them with --shape light")
    given.starts = chosen or list(shape.starts)
    for name in ("repeat", "jobs"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: use 1 or more")
    given.rate = given.rate or shape.rate
    given.seconds = given.seconds or shape.seconds
    given.warm_up = shape.warm_up_s if given.warm_up is None else given.warm_up
    return given


def main() -> int:
    """Measure, print, and judge."""
    given = arguments()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = run_all(jobs_of(given), given.jobs)
    complaints = missed(rows, given.shape)
    shape = SHAPES[given.shape]
    if given.json:
        sums = {
            gateway: totals([row for row in rows if row["gateway"] == gateway], shape)
            for gateway in given.gateways
        }
        told = {"benchmark": "gauntlet", "shape": given.shape, "seeds": given.seeds}
        told |= {"seed": given.seeds[0], "rows": rows, "totals": sums, "missed": complaints}
        print(json.dumps(told))
    else:
        own = [row for row in rows if row["gateway"] == "holdfast"]
        if own:
            show_own(own, given.shape, given.rate, given.seconds)
        show_peers(rows, given.shape)
        for sentence in complaints:
            print(f"missed: {sentence}")
        print(f"{time.monotonic() - began:.0f} s; {closing_line(own, given.shape, complaints)}")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
