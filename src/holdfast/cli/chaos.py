"""``holdfast chaos``: inject faults into a running fleet and report what happened."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.chaos.gameday import GameDay, GameDayRecord
from holdfast.chaos.report import markdown, picture
from holdfast.chaos.target import ChaosError, ChaosTarget
from holdfast.cli.admin_port import Admin, asks_admin
from holdfast.config.chaos import ANY, FAULT_STORIES, FAULTS, PlanFile, one_step
from holdfast.config.files import load
from holdfast.config.sections import Section

_ELSEWHERE = click.option(
    "--elsewhere", is_flag=True, help="Yes, harm a fleet that is not on this machine."
)


@click.group()
def chaos() -> None:
    """Inject faults into a running fleet; each ends and is undone.

    \b
    Examples:
      holdfast chaos hang smollm2-2
      holdfast chaos run examples/chaos/gameday.yaml -o report
    """  # noqa: D301


def _command(fault: str) -> click.Command:
    """``holdfast chaos FAULT REPLICA``."""

    @click.command(fault)
    @click.argument("replica", default=ANY)
    @click.option(
        "--for",
        "lasts",
        type=click.FloatRange(0.1, 3_600),
        default=30.0,
        show_default=True,
        help="Seconds.",
    )
    @click.option("--delay", type=float, help="Seconds, for latency and drip.")
    @click.option("--factor", type=float, help="For slow.")
    @click.option("--pieces", type=int, help="Of an answer that still pass: cut, reset, stall.")
    @click.option("--share", type=float, help="Of requests, for flaky.")
    @click.option("--megabytes", type=int, help="For memory and leak.")
    @_ELSEWHERE
    @asks_admin
    def inject(admin: Admin, replica: str, lasts: float, *, elsewhere: bool, **how: Any) -> None:
        given = {name: value for name, value in how.items() if value is not None}
        try:
            plan = one_step(fault, replica, **{"for": lasts}, **given)
        except ValueError as error:
            raise click.UsageError(f"{fault}: {error}") from error
        record = _run(ChaosTarget(admin.url, admin.token, elsewhere, admin.tls), "", plan)
        if any(one.problem for one in record.struck):
            raise click.exceptions.Exit(1)

    story = FAULT_STORIES[fault].replace("`", "")
    inject.help = (
        f"REPLICA, or any that is ready: {story}.\n\nUndone afterwards, or at Ctrl-C.\n\n"
        f"\b\nExample:\n  holdfast chaos {fault} smollm2-2 --for 20"
    )
    inject.short_help = story
    return inject


for _fault in FAULTS:
    chaos.add_command(_command(_fault))


@chaos.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gameday"),
    show_default=True,
    help="A folder for report.md, timeline.svg and record.json.",
)
@click.option("--gateway", default="http://127.0.0.1:8000", show_default=True, help="Its URL.")
@_ELSEWHERE
@asks_admin
def run(admin: Admin, plan: Path, output: Path, gateway: str, *, elsewhere: bool) -> None:
    """Run a scripted game day, and write what happened with a picture.

    Exit status 1 where more requests were harmed than the plan allows, or a fault could not be
    injected.

    \b
    Example:
      holdfast chaos run examples/chaos/gameday.yaml -o report
    """  # noqa: D301
    script = load(plan, PlanFile)
    record = _run(ChaosTarget(admin.url, admin.token, elsewhere, admin.tls), gateway, script)
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "timeline.svg").write_text(picture(record))
        (output / "report.md").write_text(markdown(record, "timeline.svg"))
        (output / "record.json").write_text(json.dumps(_plain(record)))
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}") from error
    click.echo(f"{record.harmed_share:.2%} of {len(record.asked)} requests harmed")
    click.echo(f"{output / 'report.md'}")
    if not record.held:
        raise click.exceptions.Exit(1)


def _run(target: ChaosTarget, gateway: str, plan: Section) -> GameDayRecord:
    assert isinstance(plan, PlanFile), "the only kind of plan there is"
    day = GameDay(target, gateway, plan, lambda line: click.echo(line, err=True))
    try:
        return asyncio.run(day.run())
    except ChaosError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("undone", err=True)
        sys.exit(130)


def _plain(record: GameDayRecord) -> dict[str, Any]:
    return {
        "plan": record.plan.model_dump(mode="json", by_alias=True),
        "began_at": record.began_at,
        "harmed": dict(record.harmed),
        "requests": len(record.asked),
        "faults": [
            {"fault": s.fault, "replica": s.replica, "from_s": s.begun_s, "to_s": s.ended_s}
            for s in record.struck
        ],
        "incidents": record.incidents,
    }


__all__ = ["chaos"]
