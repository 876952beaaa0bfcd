"""``holdfast simulate``: run a fleet in virtual time."""

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from holdfast.control.incidents.incident_json import read_export
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.replay import replay
from holdfast.sim.run import sweep
from holdfast.sim.scenario import read_scenario
from holdfast.testing.textbook_tables import exercise_sections, render_tables
from holdfast.ui.terminal.simulation import progress_bar, show_simulation


@click.command()
@click.argument("scenario", required=False)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="First seed.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many seeds; figures become means with 95 % confidence intervals.",
)
@click.option(
    "--jobs",
    type=click.IntRange(0, 1_024),
    default=0,
    show_default=True,
    help="Processes; 0 means one per core.",
)
@click.option(
    "--no-diagnosis",
    "diagnosis",
    flag_value=False,
    type=bool,
    default=True,
    help="Leave detectors and diagnosis out: no incidents are shown.",
)
@click.option(
    "--act",
    "acts",
    is_flag=True,
    help="Let diagnosis act as a live fleet does; without it, it only observes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--exercises", is_flag=True, help="With 'book': answer its exercises (half a minute)."
)
@click.option(
    "--replay",
    "recorded",
    type=click.Path(path_type=Path, dir_okay=False),
    help="An exported incident: run its facts through the same code again.",
)
@click.pass_context
def simulate(
    ctx: click.Context,
    /,
    scenario: str | None,
    recorded: Path | None,
    *,
    exercises: bool,
    **how: Any,
) -> None:
    """Run a simulated fleet in virtual time.

    The policies are those that route live traffic.

    SCENARIO is a file that describes replicas, traffic, faults and policies; examples/ has some.
    Or it is the word 'book': a textbook's fleet, spares against failures and policies in an outage,
    as it is printed there.

    \b
    Examples:
      holdfast simulate examples/first.yaml
      holdfast simulate examples/first.yaml --seeds 2 --json
      holdfast simulate book
      holdfast simulate --replay examples/incidents/undersized.jsonl
    """  # noqa: D301
    if recorded is not None:
        if scenario is not None:
            raise click.UsageError("--replay goes without a scenario")
        _refuse_options(
            ctx, "a scenario", "seed", "seeds", "jobs", "exercises", "diagnosis", "acts"
        )
        _replay(recorded, as_json=how["as_json"])
    elif scenario is None:
        raise click.UsageError("name a scenario file, 'book', or --replay FILE")
    elif scenario == "book":
        _refuse_options(
            ctx, "a scenario file", "seed", "seeds", "jobs", "as_json", "diagnosis", "acts"
        )
        _simulate_book(exercises=exercises)
    else:
        _refuse_options(ctx, "'book'", "exercises")
        _simulate_file(Path(scenario), **how)


def _refuse_options(ctx: click.Context, only: str, *names: str) -> None:
    """An option that would do nothing is a misunderstanding: say so."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name in names:
            raise click.UsageError(f"{parameter.opts[0]} goes with {only} only")


def _simulate_book(*, exercises: bool) -> None:
    """Print the text as it is: people compare it with the book byte by byte."""
    if not exercises:
        click.echo(render_tables())
        return
    for number, section in enumerate(exercise_sections()):
        click.echo(f"\n\n{section}" if number else section)


def _simulate_file(
    path: Path, *, seed: int, seeds: int, jobs: int, as_json: bool, diagnosis: bool, acts: bool
) -> None:
    if acts and not diagnosis:
        raise click.UsageError("--act needs diagnosis: leave --no-diagnosis out")
    scenario = read_scenario(path)
    how: dict[str, Any] = {"jobs": jobs, "diagnosis": diagnosis, "acts": acts}
    with progress_bar(scenario.name) as progress:
        outcomes = sweep(scenario, range(seed, seed + seeds), progress=progress, **how)
    if as_json:
        variants = {outcome.variant: list(outcome.runs) for outcome in outcomes}
        click.echo(json.dumps({"scenario": scenario.name, "variants": variants}))
    else:
        show_simulation(scenario, seed, outcomes)


def _replay(path: Path, *, as_json: bool) -> None:
    """Exit status 1 where the same facts no longer lead to the same verdict."""
    try:
        with path.open("rb") as lines:
            export = read_export(lines)
        found = replay(export)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from error
    recorded = export.incident
    then, now = _verdict(recorded), _verdict(found)
    same = then == now
    if as_json:
        click.echo(json.dumps({"id": recorded.id, "recorded": then, "now": now, "same": same}))
    else:
        click.echo(f"{recorded.id} was {_told(then)}")
        click.echo(f"replayed, it is {_told(now)}: {'the same verdict' if same else 'ANOTHER'}")
    if not same:
        raise click.exceptions.Exit(1)


def _verdict(incident: Incident | None) -> dict[str, Any] | None:
    if incident is None:
        return None
    return {
        "class": incident.failure_class.value,
        "cause": incident.cause.value,
        "replicas": sorted(incident.replicas),
    }


def _told(verdict: dict[str, Any] | None) -> str:
    if verdict is None:
        return "no incident at all"
    whom = ", ".join(verdict["replicas"]) or "the fleet"
    return f"a {verdict['class']} failure, {verdict['cause'].replace('_', ' ')}, of {whom}"


__all__ = ["simulate"]
