"""Whether the shipped defaults leave a healthy fleet alone: the simulated half.

    python bench/no_harm_sim.py [--seeds N] [--markdown | --json]

The three ``examples/no-harm-*.yaml``: ten minutes of prompts from 100 to 32,000 tokens with nine
tenths of all slots busy; the same with everybody three times as slow for two minutes; the same with
everybody silent for half a minute. Each runs as in its file, where slots are not declared, and with
slots declared. Nobody is sick in any of them, so every ejection and every deadline that was retried
is harm; with any of either the exit status is 1. ``no_harm.py`` asks the same of real processes.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, Dispatch, Notice, Report, Tick
from holdfast.core.request.breaker import BreakerState
from holdfast.core.types import SECOND, State
from holdfast.sim.experiment import Experiment
from holdfast.sim.results import quantiles
from holdfast.sim.scenario import prepare, read_scenario
from holdfast.sim.world import World

EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples"
SCENARIOS: Final = ("no-harm-load", "no-harm-slowdown", "no-harm-pause")
_DEADLINES: Final = (Kind.FIRST_TOKEN_TIMEOUT, Kind.BETWEEN_TOKENS_TIMEOUT, Kind.CONNECT_TIMEOUT)
_OUT: Final = (State.QUARANTINED, State.DEAD, State.STOPPED, State.DRAINING)


@dataclass(slots=True)
class Row:
    """One scenario over all seeds."""

    scenario: str
    slots: str  # declared or not
    seeds: int = 0
    requests: int = 0
    busy: float = 0.0  # mean share of the slots in use while requests arrive
    first_token_p50_s: float | None = None
    first_token_p99_s: float | None = None
    refused: int = 0  # told to come back: 429 and 503
    failed: int = 0  # any other error
    ejections: int = 0  # a replica was taken out: by its health, or by a gateway's breaker
    quarantines: int = 0  # of these, by its health
    firings: int = 0  # waits that ran out, whatever came of them
    deadline_retries: int = 0  # attempts given up because a wait ran out
    retries: int = 0  # attempts after the first, for whatever reason

    @property
    def harmless(self) -> bool:
        """Whether nobody was ejected and nothing given up."""
        return not (self.ejections or self.quarantines or self.deadline_retries)


class Watch:
    """Counts what was done to replicas in one run."""

    def __init__(self, row: Row, world: World) -> None:
        self._row = row
        self._world = world
        self._end = world.experiment.duration_s * SECOND
        laws = dict(world.experiment.engines)
        self._slots = sum(laws[replica.model].batch_max for replica in world.experiment.replicas)
        self._looks = self._running = 0

    def observe(self, now: int, _whose: str, event: Any, actions: Sequence[Any]) -> None:
        """See one event with its actions."""
        if isinstance(event, Tick) and now % SECOND == 0 and now < self._end:
            self._looks += 1
            self._running += sum(unit.engine.running for unit in self._world.units.values())
        row = self._row
        for action in actions:
            if isinstance(action, Dispatch):
                row.retries += action.attempt > 0
            elif isinstance(action, Abort):
                row.deadline_retries += action.kind in _DEADLINES
            elif isinstance(action, Report):
                row.ejections += action.what == BreakerState.OPEN
            elif isinstance(action, Notice) and action.what in _OUT:
                row.ejections += 1
                row.quarantines += action.what == State.QUARANTINED

    def busy(self) -> float:
        """Mean share of the engines' places that were taken."""
        return self._running / max(1, self._looks) / self._slots


def declared(setup: Experiment) -> Experiment:
    """The same fleet, where the gateway knows how many requests a replica takes at once."""
    laws = dict(setup.engines)
    replicas = tuple(
        replace(replica, slots=laws[replica.model].batch_max) for replica in setup.replicas
    )
    return replace(setup, replicas=replicas)


def measure(scenario: str, seeds: Sequence[int], *, slots_known: bool) -> Row:
    """One row of the table."""
    row = Row(scenario.removeprefix("no-harm-"), "declared" if slots_known else "undeclared")
    first_tokens: list[float] = []
    for seed in seeds:
        _, setup = prepare(read_scenario(EXAMPLES / f"{scenario}.yaml"), seed).variants[0]
        world = World(declared(setup) if slots_known else setup, seed)
        watch = Watch(row, world)
        world.add_observer(watch.observe)
        total = world.run().total()
        row.seeds += 1
        row.requests += total.offered
        row.refused += total.refused
        row.failed += total.failed
        row.busy += watch.busy() / len(seeds)
        first_tokens += total.first_token
        for lane in world.flow.lanes.values():
            for waits in (lane.deadlines, lane.answers):
                row.firings += waits.firings
    told = quantiles(first_tokens)
    row.first_token_p50_s, row.first_token_p99_s = told["p50"], told["p99"]
    return row


HEADS: Final = (
    *("scenario", "slots", "requests", "slots busy", "first token p50", "p99", "refused"),
    *("failed", "ejections", "quarantines", "waits that ran out", "deadline retries", "retries"),
)


def cells(row: Row) -> list[str]:
    """A row as people read it."""
    numbers = (row.refused, row.failed, row.ejections, row.quarantines)
    return [
        row.scenario,
        row.slots,
        f"{row.requests:,}",
        f"{row.busy:.0%}",
        "–" if row.first_token_p50_s is None else f"{row.first_token_p50_s:.2f} s",
        "–" if row.first_token_p99_s is None else f"{row.first_token_p99_s:.2f} s",
        *(f"{number:,}" for number in numbers),
        *(f"{number:,}" for number in (row.firings, row.deadline_retries, row.retries)),
    ]


def show(rows: list[Row], *, markdown: bool) -> None:
    """The table, for a terminal or for the docs."""
    if markdown:
        print("| " + " | ".join(HEADS) + " |")
        print("|---|---|" + "---:|" * (len(HEADS) - 2))
        for row in rows:
            print("| " + " | ".join(cells(row)) + " |")
        return
    table = Table(
        title=f"a healthy fleet, simulated: 10 minutes under each of {rows[0].seeds} seeds"
    )
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else 170).print(table)


def main() -> int:
    """Run, print; 1 where a healthy replica was punished."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="a table for the docs")
    form.add_argument("--json", action="store_true", help="plain data")
    given = parser.parse_args()
    seeds = range(1, max(1, given.seeds) + 1)
    rows = [
        measure(scenario, seeds, slots_known=known)
        for scenario in SCENARIOS
        for known in (False, True)
    ]
    if given.json:
        harmless = all(row.harmless for row in rows)
        told = {"benchmark": "no_harm_sim", "rows": [asdict(row) for row in rows]}
        print(json.dumps({**told, "harmless": harmless}))
    else:
        show(rows, markdown=given.markdown)
    return int(not all(row.harmless for row in rows))


if __name__ == "__main__":
    sys.exit(main())
