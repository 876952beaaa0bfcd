"""``holdfast bench URL|MODEL``, ``bench compare A B`` and ``bench report FILE``."""

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from holdfast.cli.admin_port import admin_of, read_fleet_file, which_admin, which_fleet
from holdfast.cli.bench.options import key_of, settings_of, with_options
from holdfast.cli.bench.progress import BenchProgress
from holdfast.cli.plan.commands import show
from holdfast.control.access.trust import trusting
from holdfast.loadtest import records
from holdfast.loadtest.benchmark import Benchmark
from holdfast.loadtest.comparison import compare as compare_files
from holdfast.loadtest.findings import Findings, findings_of
from holdfast.loadtest.fleet_watch import FleetError, FleetWatch
from holdfast.loadtest.records import BenchFile
from holdfast.loadtest.report import page
from holdfast.loadtest.summary import ServiceObjective
from holdfast.loadtest.target import TargetError, find_target, is_loopback, is_url
from holdfast.planner.answer import PlanAnswer
from holdfast.wire.own_token import find_running
from holdfast.wire.state_dir import RunningFleet, default_state_dir, read_running

_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_FILE = click.Path(path_type=Path, dir_okay=False)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class _BenchGroup(click.Group):
    """``bench TARGET`` is ``bench run TARGET``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; what names none is a target, or an option before it."""
        if args and args[0] not in self.commands:
            return "run", self.commands["run"], args
        return super().resolve_command(ctx, args)


@click.group(
    cls=_BenchGroup,
    subcommand_metavar="URL|MODEL or COMMAND [ARGS]...",
    context_settings={"ignore_unknown_options": True},
)
def bench() -> None:
    """Load a gateway or an engine, and say how fast it is.

    It refuses to report where this client, and not the server, was the bottleneck.

    \b
    Examples:
      holdfast bench http://127.0.0.1:8000 --rate 20 --slo ttft=0.5,tpot=0.05
      holdfast bench smollm2 --users 64 --duration 60
      holdfast bench smollm2 --sweep rate=1..64 --slo ttft=0.5
      holdfast bench compare before.json after.json
    """  # noqa: D301


@bench.command()
@click.argument("target", metavar="URL|MODEL")
@with_options
@click.option(
    "-o",
    "--save",
    "prefix",
    metavar="NAME",
    help="Write NAME.json (every request) and NAME.html (the report). Default: bench-MODEL-TIME.",
)
@click.option("--no-files", is_flag=True, help="Write neither.")
@click.option("--elsewhere", is_flag=True, help="Yes, drain replicas of another machine's fleet.")
@_JSON
@which_admin
@which_fleet
def run(
    target: str, prefix: str | None, *, no_files: bool, elsewhere: bool, as_json: bool, **given: Any
) -> None:
    """Load a server, and report latencies, throughput, goodput, and where its knee is.

    URL is a gateway, or an engine with the OpenAI API; MODEL is one of the fleet that runs here.
    One load of 30 s is held by default; every load has an end.

    \b
    Examples:
      holdfast bench http://127.0.0.1:8000 --rate 20 --slo ttft=0.5,tpot=0.05
      holdfast bench smollm2 --users 1000 --shape fixed --output 64
      holdfast bench smollm2 --sweep users=1..128 --slo ttft=0.5 -o knee
      holdfast bench smollm2 --scale 1,2,4 --users 16
      holdfast bench http://127.0.0.1:8000 --trace talks.jsonl --speed 2 --json
    """  # noqa: D301
    settings = settings_of(given)
    key = key_of(given["key_file"], given["key_env"])
    admin = admin_of(*(given[name] for name in ("url", "token_env", "config", "state_dir", "ca")))
    running = _running(given, admin.url)
    url, model = _server(target, given, running)
    runs_here = running is not None and url.rstrip("/").removesuffix("/v1") == running.data
    named = given["url"] is not None or not is_url(target) or runs_here
    if settings.scale and not named:
        raise click.UsageError("--scale drains replicas: name the fleet's admin port with --admin")
    if settings.scale and not is_loopback(admin.url) and not elsewhere:
        told = f"{admin.url} is not on this machine: say --elsewhere if its users may be served by"
        raise click.UsageError(f"{told} fewer replicas meanwhile")

    async def whole(shown: BenchProgress) -> BenchFile:
        found = await find_target(url, model, key, trusting(url, given["ca"]))
        fleet = None
        if named:
            fleet = FleetWatch(admin.url, found.model, token=admin.token, tls=admin.tls)
        held = Benchmark(
            found, settings, fleet=fleet, on_progress=shown.progress, on_step=shown.step
        )
        return await held.run()

    file = _measured(whole)
    findings = findings_of(file)
    if not no_files:
        _write(file, findings, prefix)
    _tell(findings.answer, as_json=as_json)
    if findings.refused:
        raise click.exceptions.Exit(1)


def _running(given: Mapping[str, Any], admin_url: str) -> RunningFleet | None:
    """The fleet that the options name; without any, the one whose admin port commands ask."""
    folder = given["state_dir"] or default_state_dir(given["config"], os.environ)
    running = read_running(folder)
    if running is None and given["state_dir"] is None and given["config"] is None:
        found = find_running(admin_url, os.environ)
        running = found[1] if found is not None else None
    return running


def _server(
    target: str, given: Mapping[str, Any], running: RunningFleet | None
) -> tuple[str, str | None]:
    """The data port's URL, and the model if that was named instead."""
    if is_url(target):
        return (target if "://" in target else f"http://{target}"), given["model"]
    if given["model"] not in {None, target}:
        raise click.UsageError(f"{target} and --model {given['model']}: name one model")
    if running is not None:
        return running.data, target
    if given["config"] is not None:
        gateway = read_fleet_file(given["config"]).gateway
        scheme = "https" if gateway.tls else "http"
        return f"{scheme}://{gateway.address.reached}", target
    raise click.ClickException(
        f"no fleet runs here that could have a model {target!r}: give the URL of a server, or "
        "the fleet's file with -c"
    )


def _measured(whole: Callable[[BenchProgress], Coroutine[Any, Any, BenchFile]]) -> BenchFile:
    """Run it with progress on standard error; failures become messages."""
    shown = BenchProgress()
    try:
        with shown, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            file: BenchFile = runner.run(whole(shown))
    except (TargetError, FleetError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt as error:
        if shown.file is None:
            raise click.ClickException("stopped before a load was held to its end") from error
        click.echo("stopped: what follows is of the loads that were held to their end", err=True)
        return shown.file
    return file


def _write(file: BenchFile, findings: Findings, prefix: str | None) -> None:
    name = prefix or f"bench-{_NAME.sub('-', file.model)}-{time.strftime('%Y%m%d-%H%M%S')}"
    base = Path(name.removesuffix(".json").removesuffix(".html"))
    data, report = base.with_name(f"{base.name}.json"), base.with_name(f"{base.name}.html")
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        records.save(file, data)
        report.write_text(_page(findings), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{base}: {error.strerror}") from error
    click.echo(f"{data}: every request; {report}: the report", err=True)


def _page(findings: Findings) -> str:
    file = findings.file
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(file.began_at))
    title = f"Benchmark of {file.label or file.model}"
    made = f"{file.made_by}, {began}"
    return page(findings.answer, title, made, refused=findings.refused)


def _tell(answer: PlanAnswer, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer.to_dict()))
    else:
        show(answer, explain=False)


@bench.command()
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@click.option("--slo", help="A good answer; default: as in A.")
@click.option("--report", type=_FILE, help="Write the comparison as an HTML page.")
@_JSON
def compare(a: Path, b: Path, slo: str | None, report: Path | None, *, as_json: bool) -> None:
    """Compare two benchmarks: what differs beyond noise, and what does not.

    \b
    Examples:
      holdfast bench compare before.json after.json
      holdfast bench compare before.json after.json --report difference.html
    """  # noqa: D301
    objective = None if slo is None else ServiceObjective.parse(slo)
    found = compare_files(records.load(a), records.load(b), (a.name, b.name), objective)
    if report is not None:
        title = f"{a.name} and {b.name}"
        _save_page(report, page(found.answer, title, "holdfast bench compare"))
    _tell(found.answer, as_json=as_json)


@bench.command("report")
@click.argument("file", type=_FILE)
@click.option("--slo", help="A good answer; default: as in the file.")
@click.option("--html", type=_FILE, help="Write the report as an HTML page.")
@_JSON
def report_command(file: Path, slo: str | None, html: Path | None, *, as_json: bool) -> None:
    """Report a benchmark's file again, perhaps with another objective.

    \b
    Examples:
      holdfast bench report bench.json
      holdfast bench report bench.json --slo ttft=0.2 --html bench.html
    """  # noqa: D301
    objective = None if slo is None else ServiceObjective.parse(slo)
    findings = findings_of(records.load(file), objective)
    if html is not None:
        _save_page(html, _page(findings))
    _tell(findings.answer, as_json=as_json)
    if findings.refused:
        raise click.exceptions.Exit(1)


def _save_page(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    click.echo(f"{path}: the report", err=True)


__all__ = ["bench"]
