"""``holdfast twin calibrate``: fit engines from a benchmark's file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from holdfast import __version__
from holdfast.cli.admin_port import Admin, admin_of, read_fleet_file, which_admin, which_fleet
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.loadtest.records import BenchFile, BenchOutcome, BenchRecord
from holdfast.loadtest.records import load as load_bench
from holdfast.twin.calibration import calibrate
from holdfast.twin.fit import FitConfig
from holdfast.twin.fleet_model import canary_load
from holdfast.twin.measurement import METRICS, MeasuredRequest
from holdfast.twin.twin_file import TwinModel, TwinSource, new_twin_file, read_twin
from holdfast.ui.terminal.console import duration, stdout
from holdfast.ui.terminal.simulation import progress_bar

_NAMES = {
    "first_token_s": "first token",
    "per_token_s": "per token",
    "latency_s": "whole answer",
}


@click.command("calibrate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("twin.json"),
    show_default=True,
    help="Where the fit goes; models that it holds already stay.",
)
@click.option("--model", help="Of the fleet file. Default: the name in the benchmark.")
@click.option("--batch-max", type=click.IntRange(1), help="Answers at once on a replica, if known.")
@click.option("--kv-tokens", type=click.IntRange(1), help="Tokens of KV memory, if known.")
@click.option(
    "--per-host",
    type=click.IntRange(1, 256),
    help="Replicas that share a host. Default: all that the fleet file launches; else 1.",
)
@click.option(
    "--live", is_flag=True, help="Read cold starts from the events of the fleet that runs."
)
@click.option("--cold-start", type=click.FloatRange(0), help="Seconds of a cold start, if known.")
@click.option(
    "--held-out",
    type=click.FloatRange(0.1, 0.9),
    default=FitConfig().held_out,
    show_default=True,
    help="Share of the requests, the last ones, that tell the fit's own error.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@which_admin
@which_fleet
def calibrate_command(
    *,
    files: Sequence[Path],
    output: Path,
    model: str | None,
    as_json: bool,
    held_out: float,
    config: Path | None,
    **how: Any,
) -> None:
    """Fit the engine of a model from what a benchmark measured at the gateway.

    FILES are of 'holdfast bench'. Fitted are the time of a step (a floor, and more for each
    request, for each token held and for each token of a prompt), what lies outside of the engine,
    and how much replicas of one host slow each other down. The last requests are held out: how
    well they are predicted is the fit's own error. With -c, slots, hosts and canaries come from
    the fleet file. Several files must be of one fleet and one model.

    \b
    Examples:
      holdfast twin calibrate bench.json
      holdfast twin calibrate bench.json -c fleet.yaml --live -o twin.json
    """  # noqa: D301
    benches = [load_bench(path) for path in files]
    name = _model(benches, model)
    fleet = read_fleet_file(config) if config is not None else None
    requests, left_out = _requests(benches)
    hosts = _hosts(requests, fleet, name, how["per_host"])
    cold = how["cold_start"]
    if how["live"]:
        admin = admin_of(how["url"], how["token_env"], config, how["state_dir"], how["ca"])
        cold = _cold_start(admin, name)
    source = TwinSource(
        file=", ".join(path.name for path in files),
        began_at=benches[0].began_at,
        left_out=left_out,
    )
    with progress_bar("fitting") as progress:
        found = calibrate(
            requests,
            source,
            hosts=hosts,
            batch_max=how["batch_max"] or _slots(fleet, name),
            kv_tokens_max=how["kv_tokens"],
            cold_start_s=cold,
            canaries=canary_load(fleet) if fleet is not None and fleet.models else None,
            config=FitConfig(held_out=held_out),
            progress=progress,
        )
    held = read_twin(output).models if output.exists() else {}
    file = new_twin_file({**held, name: found}, f"holdfast {__version__}")
    try:
        output.write_text(file.to_json(), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps({"model": name, **found.model_dump(mode="json", by_alias=True)}))
    else:
        _show(name, found)
        click.echo(f"written to {output}")


def _model(benches: Sequence[BenchFile], given: str | None) -> str:
    names = list(dict.fromkeys(bench.model for bench in benches))
    if len(names) > 1:
        told = ", ".join(names)
        raise ConfigError("files", f"are of several models ({told})", "fit one model at a time")
    name = given or names[0]
    if not name:
        raise ConfigError("model", "is not named in the benchmark", "give --model")
    return name


def _requests(benches: Sequence[BenchFile]) -> tuple[list[MeasuredRequest], int]:
    """The answered requests on one time axis, and the number of all others."""
    requests, left_out = [], 0
    earliest = min(bench.began_at for bench in benches)
    for bench in benches:
        counted = {id(record) for record in bench.measured()}
        for number, record in enumerate(bench.requests):
            one = _request(record, bench.began_at - earliest, number, id(record) in counted)
            if one is None:
                left_out += 1
            else:
                requests.append(one)
    return requests, left_out


def _request(
    record: BenchRecord, offset_s: float, number: int, counted: bool
) -> MeasuredRequest | None:
    first, last, tokens = record.first_s, record.last_s, record.tokens
    if record.outcome is not BenchOutcome.SUCCESS or first is None or last is None or not tokens:
        return None
    prompt = record.prompt_tokens
    prompt = record.asked_prompt_tokens if prompt is None else prompt
    try:
        return MeasuredRequest(
            record.arrived_s + offset_s,
            prompt,
            tokens,
            first + offset_s,
            last + offset_s,
            record.replica or "",
            counted=counted,
        )
    except ConfigError as error:
        field = error.field.replace("request", f"requests[{number}]", 1)
        raise ConfigError(field, error.problem, "measure again: the file is damaged") from error


def _slots(fleet: FleetFile | None, name: str) -> int | None:
    for model in fleet.models if fleet is not None else ():
        if model.name == name:
            launched = model.launch.slots if model.launch is not None else 0
            listed = [endpoint.slots for endpoint in model.endpoints]
            return launched or max(listed, default=0) or None
    return None


def _hosts(
    requests: Sequence[MeasuredRequest], fleet: FleetFile | None, name: str, given: int | None
) -> dict[str, str] | None:
    """The host of each replica, where several share one."""
    replicas = sorted({one.replica for one in requests})
    known = [model for model in fleet.models if model.name == name] if fleet is not None else []
    if fleet is not None and not known:
        names = ", ".join(model.name for model in fleet.models)
        raise ConfigError("model", f"{name!r} is not in the fleet file", f"use one of {names}")
    crowd = given or (len(replicas) if known and known[0].launch is not None else 1)
    if crowd < 2 or len(replicas) < 2:
        return None
    return {replica: f"host-{place // crowd}" for place, replica in enumerate(replicas)}


def _cold_start(admin: Admin, model: str) -> float | None:
    """The median time from a launch to ready, of the events that control still has."""
    begun: dict[str, float] = {}
    took: list[float] = []
    for event in admin.told("/events?limit=1000")["events"]:
        if event["model"] != model:
            continue
        replica, what = event["replica"], event["what"]
        if what == "starting":
            begun[replica] = event["at"]
        elif what == "ready" and replica in begun:
            took.append(float(event["at"]) - begun.pop(replica))
    if not took:
        click.echo("no start of a replica is among the fleet's events", err=True)
        return None
    return sorted(took)[len(took) // 2]


def _show(name: str, found: TwinModel) -> None:
    console = stdout()
    law, source = found.engine, found.source
    console.print(
        f"{name}: {source.requests} requests, {source.replicas} replicas, "
        f"{found.traffic.rate:.3g} requests/s"
    )
    console.print(
        f"  step {law.step_ms:.3g} + {law.per_sequence_ms:.3g}·B + {law.per_kv_token_ms:.3g}·KV + "
        f"{law.per_prompt_token_ms:.3g}·prompt ms, overhead {law.overhead_ms:.3g} ms"
    )
    if law.neighbour_share:
        console.print(
            f"  each busy replica of a host beyond {law.host_room} makes steps "
            f"{law.neighbour_share:.1%} longer"
        )
    if law.wander:
        console.print(f"  its speed varies by {law.wander:.1%} from second to second")
    cold = "unknown" if found.cold_start_s is None else duration(found.cold_start_s)
    console.print(f"  batch of {law.batch_max} at most, cold start {cold}")
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("error on held-out requests")
    for figure in ("mean", "p50", "p95", "p99"):
        table.add_column(figure, justify="right")
    for metric in METRICS:
        row = found.errors.get(metric, {})
        cells = [row.get(figure) for figure in ("mean", "p50", "p95", "p99")]
        table.add_row(_NAMES[metric], *("–" if cell is None else f"{cell:+.1%}" for cell in cells))
    console.print(table)
    console.print(f"fitted on {found.fitted} requests, held out {found.predicted}; then on all")
    for limit in found.limits:
        console.print(f"- {limit}")


__all__ = ["calibrate_command"]
