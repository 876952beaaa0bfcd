"""The options of ``holdfast bench URL|MODEL``, and what they mean together."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from holdfast.config.files import read_secret
from holdfast.core.types import ConfigError
from holdfast.loadtest.benchmark import BenchSettings
from holdfast.loadtest.client_check import ClientLimits
from holdfast.loadtest.load_sequence import SweepRange
from holdfast.loadtest.request_plan import SHAPES
from holdfast.loadtest.summary import ServiceObjective
from holdfast.sim.workload import Lengths, Workload

KEY_VARIABLE: Final = "HOLDFAST_API_KEY"
CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_SECONDS = click.FloatRange(0, 86_400)
_SHAPES_HELP: Final = "; ".join(f"{name}: {what}" for name, (what, _, _) in SHAPES.items())
_LOAD: Final = (
    click.option("--model", help="The model, where the server has several."),
    click.option(
        "--rate",
        type=click.FloatRange(0, 1e6, min_open=True),
        help="Open loop: requests per second, whether or not answers come. Default: 5.",
    ),
    click.option(
        "--users", type=click.IntRange(1, 1_000_000), help="Closed loop: so many ask at once."
    ),
    click.option(
        "--sweep",
        metavar="RANGE",
        help="Find the knee: rate=1..64 or users=1..128 searches, users=1,2,4,8 holds these.",
    ),
    click.option(
        "--scale",
        metavar="N,N,...",
        help="Measure with so many replicas in service, by draining the others of a Holdfast "
        "fleet meanwhile; --rate and --users are per replica.",
    ),
    click.option("--think", type=_SECONDS, default=0.0, help="Seconds a user waits before asking."),
    click.option(
        "--duration",
        type=click.FloatRange(0, 86_400, min_open=True),
        default=30.0,
        show_default=True,
        help="Seconds that count, of each load.",
    ),
    click.option(
        "--warmup",
        type=_SECONDS,
        default=5.0,
        show_default=True,
        help="Seconds before, which do not count.",
    ),
    click.option(
        "--requests",
        type=click.IntRange(1, 1_000_000),
        default=20_000,
        show_default=True,
        help="At most so many, of each load.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0, 86_400, min_open=True),
        default=120.0,
        show_default=True,
        help="Seconds for one answer.",
    ),
)
_SHAPE: Final = (
    click.option(
        "--shape",
        type=click.Choice([*SHAPES]),
        default="chat",
        show_default=True,
        help=f"Lengths of prompts and answers. {_SHAPES_HELP}.",
    ),
    click.option("--prompt", type=click.FloatRange(1, 1e6), help="Tokens of a prompt, on average."),
    click.option(
        "--output", type=click.FloatRange(1, 1e6), help="Tokens of an answer, on average."
    ),
    click.option("--cv", type=click.FloatRange(0, 10), help="Spread of lengths: deviation / mean."),
    click.option(
        "--pattern",
        type=click.Choice(["poisson", "constant", "bursts", "diurnal"]),
        default="poisson",
        show_default=True,
        help="How arrivals are spread over time.",
    ),
    click.option(
        "--trace",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Arrivals and lengths of an Azure CSV or a Mooncake JSONL trace.",
    ),
    click.option(
        "--speed",
        type=click.FloatRange(0, 1e4, min_open=True),
        default=1.0,
        show_default=True,
        help="Replay a trace so many times as fast.",
    ),
    click.option(
        "--file",
        type=click.Path(path_type=Path, dir_okay=False),
        help='Your own requests: JSON lines with prompt or messages, max_tokens, and "at" seconds.',
    ),
    click.option(
        "--api",
        type=click.Choice(["chat", "completions"]),
        default="chat",
        show_default=True,
        help="Which API is called.",
    ),
    click.option(
        "--ignore-eos/--no-ignore-eos",
        default=True,
        show_default=True,
        help="Ask for answers of exactly the planned length, where the server can.",
    ),
    click.option("--seed", type=int, default=1, show_default=True, help="Of all chance in it."),
)
_JUDGE: Final = (
    click.option(
        "--slo", default="", help="A good answer, in seconds: ttft=0.5,tpot=0.05,total=9."
    ),
    click.option(
        "--streams-max",
        type=click.IntRange(1, 60_000),
        default=ClientLimits().streams_max,
        show_default=True,
        help="Answers under way at once; beyond, nothing is reported.",
    ),
    click.option(
        "--late-max",
        type=click.FloatRange(0.1, 10_000),
        default=ClientLimits().late_s_max * 1000.0,
        show_default=True,
        help="Milliseconds that this client may be late, at its p99, before it refuses to report.",
    ),
    click.option("--label", default="", help="A name for this run, kept in its file."),
    click.option(
        "--key-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with the API key of the server.",
    ),
    click.option(
        "--key-env",
        default=KEY_VARIABLE,
        show_default=True,
        help="The environment variable with the API key.",
    ),
)


def with_options(command: CommandT) -> CommandT:
    """Decorator: adds all options of a benchmark."""
    for option in reversed((*_LOAD, *_SHAPE, *_JUDGE)):
        command = option(command)
    return command


def settings_of(given: Mapping[str, Any]) -> BenchSettings:
    """The settings that the options mean; raises ``click.UsageError`` where they do not fit."""
    ways = [name for name in ("users", "rate") if given[name] is not None]
    if len(ways) > 1:
        raise click.UsageError("--users and --rate: a loop is closed or open; choose one")
    if given["sweep"] and (ways or given["scale"]):
        raise click.UsageError("--sweep sets the loads itself: leave --rate, --users, --scale out")
    if given["trace"] and given["file"]:
        raise click.UsageError("--trace and --file: choose one")
    if given["trace"] and given["rate"] is not None:
        raise click.UsageError("--trace has its own arrivals: use --speed instead of --rate")
    sweep = SweepRange.parse(given["sweep"]) if given["sweep"] else None
    if sweep is not None and sweep.unit == "rate" and given["trace"]:
        raise click.UsageError("--sweep rate=… and --trace: a trace has its own rate; sweep users")
    return BenchSettings(
        workload=_workload(given),
        file=given["file"],
        users=given["users"],
        sweep=sweep,
        scale=_counts(given["scale"]),
        objective=ServiceObjective.parse(given["slo"]),
        warmup_s=given["warmup"],
        seconds=given["duration"],
        requests_max=given["requests"],
        timeout_s=given["timeout"],
        think_s=given["think"],
        chat=given["api"] == "chat",
        ignore_eos=given["ignore_eos"],
        seed=given["seed"],
        label=given["label"][:200],
        limits=ClientLimits(
            late_s_max=given["late_max"] / 1000.0, streams_max=given["streams_max"]
        ),
    )


def _workload(given: Mapping[str, Any]) -> Workload:
    _, prompt, output = SHAPES[given["shape"]]
    return Workload(
        rate=given["rate"] or 5.0,
        pattern=given["pattern"],
        peak=1.5 if given["pattern"] == "diurnal" else 3.0,
        prompt=_lengths(prompt, given["prompt"], given["cv"]),
        output=_lengths(output, given["output"], given["cv"]),
        trace=str(given["trace"] or ""),
        speed=given["speed"],
    )


def _lengths(law: Lengths, mean: float | None, cv: float | None) -> Lengths:
    wanted = law.mean if mean is None else mean
    spread = law.cv if cv is None else cv
    return Lengths(wanted, spread, maximum=max(law.maximum, int(wanted)))


def _counts(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError("--scale", f"is {text!r}", "write numbers, such as 1,2,4") from error


def key_of(key_file: Path | None, key_env: str) -> str | None:
    """The API key, of the file or else of the environment; None where neither has one."""
    if key_file is None:
        key = os.environ.get(key_env) or None
    else:
        key = read_secret(key_file.absolute()) or None
    if key is not None and (not key.isascii() or not key.isprintable()):
        raise click.UsageError("the API key has characters that no header can carry")
    return key


__all__ = ["KEY_VARIABLE", "key_of", "settings_of", "with_options"]
