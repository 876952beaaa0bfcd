"""``holdfast simulate``: a fleet in virtual time."""

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from holdfast.sim.book_tables import exercise_sections, render_tables
from holdfast.sim.run import sweep
from holdfast.sim.scenario import read_scenario
from holdfast.ui.terminal.simulation import progress_bar, show_simulation


@click.command()
@click.argument("scenario")
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--exercises", is_flag=True, help="With 'book': answer its exercises (half a minute)."
)
@click.pass_context
def simulate(ctx: click.Context, /, scenario: str, *, exercises: bool, **how: Any) -> None:
    """Run a simulated fleet: the very policies that will route the traffic, in virtual time.

    SCENARIO is a file that describes replicas, traffic, faults and policies; examples/ has some.
    Or it is the word 'book': a textbook's fleet, spares against failures and policies in an outage,
    as it is printed there.

    \b
    Examples:
      holdfast simulate examples/first.yaml
      holdfast simulate examples/first.yaml --seeds 2 --json
      holdfast simulate book
    """  # noqa: D301
    if scenario == "book":
        _refuse_options(ctx, "a scenario file", "seed", "seeds", "jobs", "as_json")
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


def _simulate_file(path: Path, *, seed: int, seeds: int, jobs: int, as_json: bool) -> None:
    scenario = read_scenario(path)
    with progress_bar(scenario.name) as progress:
        outcomes = sweep(scenario, range(seed, seed + seeds), jobs=jobs, progress=progress)
    if as_json:
        variants = {outcome.variant: list(outcome.runs) for outcome in outcomes}
        click.echo(json.dumps({"scenario": scenario.name, "variants": variants}))
    else:
        show_simulation(scenario, seed, outcomes)


__all__ = ["simulate"]
