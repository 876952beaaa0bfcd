"""One seed, one run: in this process, in another, on another Python, and through bare machines."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.health.fleet import Fleet
from holdfast.core.messages import Abort, Dispatch, Finish, Launch, Publish, RunCanary, Tick
from holdfast.core.request.flow import Flow
from holdfast.sim.eventlog import EventLog
from holdfast.sim.experiment import Experiment
from holdfast.sim.fuzz import random_experiment
from holdfast.sim.random_streams import streams_of
from holdfast.sim.world import World

SOURCE = Path(__file__).parents[2] / "src"

# What another process runs: the standard library and the machines, nothing else.
RUN = """
import sys
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import Replica, nanos
from holdfast.sim.eventlog import EventLog
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.experiment import Experiment
from holdfast.sim.workload import Lengths, WorkloadTenant, Workload
from holdfast.sim.world import World

def digest(seed):
    kinds = (FaultKind.CRASH, FaultKind.HANG, FaultKind.FLAKY, FaultKind.WRONG_OUTPUT)
    tenants = (WorkloadTenant("a"), WorkloadTenant("b"))
    setup = Experiment(
        tuple(Replica(f"r{i}", "m", zone=f"zone-{i % 2}") for i in range(6)),
        30.0,
        (("m", Workload(rate=12.0, output=Lengths(mean=80.0), tenants=tenants)),),
        loading=LoadingConfig(size_gb=2.0),
        faults=FaultSchedule(
            Fault(kind, f"r{i}", nanos(5.0 + i), nanos(20.0), probability=0.5)
            for i, kind in enumerate(kinds)
        ),
    )
    log = EventLog()
    world = World(setup, seed, [log.record])
    world.run()
    return log.digest()

if __name__ == "__main__":
    assert "pydantic" not in sys.modules
    print(digest(int(sys.argv[1])))
"""


def here(seed: int) -> str:
    names: dict[str, Any] = {"__name__": "run"}
    exec(compile(RUN, "run", "exec"), names)  # the text itself, as another process gets it
    return names["digest"](seed)


def elsewhere(python: list[str], seed: int, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    variables.pop("PYTHONHOME", None)
    done = subprocess.run(
        [*python, "-c", RUN, str(seed)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_one_seed_gives_one_digest_and_another_another() -> None:
    assert here(1) == here(1)
    assert here(1) != here(2)


def test_a_fresh_process_agrees_whatever_its_hashes() -> None:
    expected = here(3)
    assert elsewhere([sys.executable], 3, PYTHONHASHSEED="0") == expected
    assert elsewhere([sys.executable], 3, PYTHONHASHSEED="4711") == expected


def others() -> Iterator[tuple[list[str], dict[str, str]]]:
    """Commands that may be another Python: on the path, or behind a version manager's shim."""
    for minor in range(11, 16):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield [found], {}
            yield from (([found], {"PYENV_VERSION": version}) for version in managed(minor))


def managed(minor: int) -> list[str]:
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return []
    listed = subprocess.run(
        [pyenv, "versions", "--bare"], capture_output=True, text=True, check=False, timeout=60
    )
    return [line.strip() for line in listed.stdout.split() if line.startswith(f"3.{minor}.")]


def version_of(python: list[str], environment: dict[str, str]) -> str:
    """Its version, or nothing where it is no Python that can be used."""
    done = subprocess.run(
        [*python, "-c", "import sys; print(*sys.version_info[:2])"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def test_another_python_version_agrees() -> None:
    seen = {"{} {}".format(*sys.version_info[:2])}
    expected = here(4)
    for python, environment in others():
        version = version_of(python, environment)
        if version and version not in seen:
            seen.add(version)
            assert elsewhere(python, 4, **environment) == expected, version
    if len(seen) == 1:
        pytest.skip("no other Python of version 3.11 or later was found")


# --- record and replay ----------------------------------------------------------------------------


def fingerprint(entries: list[Any]) -> str:
    """The digest of what the entries say now."""
    told = blake2b(digest_size=16)
    for now, machine, event, actions in entries:
        told.update(f"{now}|{machine}|{event!r}|{actions!r}\n".encode())
    return told.hexdigest()


SEEDS = (2, 5, 7, 11, 13, 17)


@cache
def recorded(seed: int) -> EventLog:
    log = EventLog(keep=True)
    World(random_experiment(seed), seed, [log.record]).run()
    return log


def replayed(setup: Experiment, seed: int, entries: list[Any]) -> list[Any]:
    """The same events through machines without a world."""
    machines = {
        "flow": Flow(setup.whole_flow(), streams_of(seed, "flow")),
        "fleet": Fleet(setup.fleet, streams_of(seed, "fleet")),
    }
    return [
        (now, machine, event, machines[machine].handle(event, now))
        for now, machine, event, _ in entries
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_recorded_run_replays_to_the_same_actions(seed: int) -> None:
    log = recorded(seed)
    # Nobody changed an event or an action after it was handed over.
    assert fingerprint(log.entries) == log.digest()
    again = replayed(random_experiment(seed), seed, log.entries)
    for then, now in zip(log.entries, again, strict=True):
        assert now == then
    assert fingerprint(again) == log.digest()


def test_the_recorded_runs_hold_every_kind_of_decision() -> None:
    kinds = set()
    for seed in SEEDS:
        for _, _, _, actions in recorded(seed).entries:
            kinds.update(type(action) for action in actions)
    assert {Dispatch, Finish, Abort, Publish, RunCanary, Launch} <= kinds
    assert sum(len(recorded(seed).entries) for seed in SEEDS) > 5_000


def test_a_replay_under_another_seed_differs() -> None:
    log = recorded(2)
    assert fingerprint(replayed(random_experiment(2), 3, log.entries)) != log.digest()


# --- the log itself -------------------------------------------------------------------------------


def test_a_change_after_recording_is_found() -> None:
    log = EventLog(keep=True)
    finish = Finish(1, 200, "ok", "answered", story=[(1, "chosen", "r0")])
    log.record(1, "flow", Tick(), [finish])
    assert fingerprint(log.entries) == log.digest()
    finish.story.append((2, "and", "more"))
    assert fingerprint(log.entries) != log.digest()


def test_the_digest_depends_on_everything_that_was_said_and_its_order() -> None:
    entries = [
        (1, "flow", Tick(), []),
        (1, "fleet", Tick(), []),
        (2, "flow", Tick(), []),
        (1, "flow", Tick(), [Finish(1, 200, "ok", "answered")]),
    ]
    digests = set()
    for order in (entries, entries[::-1], entries[:3], entries[1:], []):
        log = EventLog()
        for entry in order:
            log.record(*entry)
        digests.add(log.digest())
    assert len(digests) == 5


def test_entries_are_kept_only_on_request() -> None:
    kept, counted = EventLog(keep=True), EventLog()
    for log in (kept, counted):
        log.record(5, "flow", Tick(), [])
    assert kept.entries == [(5, "flow", Tick(), [])]
    assert counted.entries == []
    assert kept.digest() == counted.digest()
