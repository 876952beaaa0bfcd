"""Random experiments keep every promise, and one that does not can be run again by its seed."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, Self

import pytest

from holdfast.core.failure import Kind, Outcome
from holdfast.core.request.active_request import ActiveRequest, Attempt
from holdfast.core.request.lane import Lane
from holdfast.sim import fuzz
from holdfast.sim.fuzz import command, fuzz_one, main, random_experiment
from holdfast.sim.invariants import InvariantError


class InThisProcess:
    """Stands in for the pool of processes: a patched function is not patched in those."""

    def __init__(self, *_arguments: Any, **_settings: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(
        self, call: Callable[[int], str], seeds: Iterable[int], chunksize: int
    ) -> Iterator[str]:
        return map(call, seeds)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "ProcessPoolExecutor", InThisProcess)


@pytest.fixture
def planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that forgets to give back the slot of a failed attempt."""
    close = Lane.close

    def forgetful(
        self: Lane,
        active: ActiveRequest,
        attempt: Attempt,
        outcome: Outcome,
        kind: Kind | None,
        now: int,
    ) -> Any:
        change = close(self, active, attempt, outcome, kind, now)
        if outcome is Outcome.FAILURE:
            self.pool.inflight += 1
        return change

    monkeypatch.setattr(Lane, "close", forgetful)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_sixty_random_experiments_keep_every_promise(first: int) -> None:
    findings = {seed: fuzz_one(seed) for seed in range(first, first + 10)}
    assert {seed: finding for seed, finding in findings.items() if finding} == {}


def test_a_seed_determines_the_experiment() -> None:
    def told(seed: int) -> list[object]:
        setup = random_experiment(seed)
        plain = [getattr(setup, field.name) for field in fields(setup) if field.name != "faults"]
        return [*plain, setup.faults.describe()]

    assert told(8) == told(8)
    assert told(8) != told(9)


def test_the_experiments_differ_in_what_matters() -> None:
    setups = [random_experiment(seed) for seed in range(60)]
    assert len({setup.flow.lane.routing for setup in setups}) >= 7
    assert {setup.warm for setup in setups} == {True, False}
    assert {setup.flow.hedge.enabled for setup in setups} == {True, False}
    assert len({len(setup.replicas) for setup in setups}) > 5
    assert any(setup.flow.degrade for setup in setups)
    assert any(setup.flow.quotas for setup in setups)
    kinds = {fault.kind for setup in setups for fault in setup.faults.faults}
    assert len(kinds) == 18


@pytest.mark.usefixtures("planted_bug")
def test_a_planted_bug_is_found() -> None:
    findings = [fuzz_one(seed) for seed in range(10)]
    found = [finding for finding in findings if finding]
    assert found
    assert all("slot" in finding for finding in found)


@pytest.mark.usefixtures("planted_bug", "one_process")
def test_a_finding_comes_with_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--first", "2", "--seeds", "6", "--jobs", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if " failed: InvariantError: " in line]
    assert failed
    seed = int(failed[0].split()[1])
    assert 2 <= seed < 8
    again = lines[lines.index(failed[0]) + 1]
    assert again == f"  again: {command(seed)}"
    assert again.endswith(f"-m holdfast.sim.fuzz --seed {seed}")
    assert lines[-1] == f"6 seeds, {len(failed)} failed"
    with pytest.raises(InvariantError):  # and what the command does
        main(["--seed", str(seed)])


@pytest.mark.usefixtures("one_process")
def test_without_findings_the_exit_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2"]) == 0
    assert capsys.readouterr().out == "2 seeds, 0 failed\n"


def test_one_seed_may_be_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4"]) == 0
    assert capsys.readouterr().out == "seed 4: no invariant broken\n"


def test_the_printed_command_works_and_uses_processes_for_many() -> None:
    printed = [sys.executable, *command(5).removeprefix(sys.executable).split()]
    alone = subprocess.run(printed, capture_output=True, text=True, check=False)
    assert (alone.returncode, alone.stdout) == (0, "seed 5: no invariant broken\n"), alone.stderr
    many = subprocess.run(
        [sys.executable, "-m", "holdfast.sim.fuzz", "--seeds", "2", "--jobs", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (many.returncode, many.stdout) == (0, "2 seeds, 0 failed\n"), many.stderr


def test_any_failure_at_all_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("as planned")

    monkeypatch.setattr(fuzz, "run_experiment", broken)
    assert fuzz_one(1) == "ZeroDivisionError: as planned"
