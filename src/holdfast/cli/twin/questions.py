"""The options that ``twin what-if`` and ``twin sweep`` share, and how they become a question."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from holdfast.config.files import load_text, text_of
from holdfast.config.fleet_file import FleetFile
from holdfast.core.plan.faults import Fault
from holdfast.core.types import ConfigError
from holdfast.planner.question import FieldKind, PlanField
from holdfast.sim.results import Slo
from holdfast.sim.scenario import FaultSection
from holdfast.sim.workload import Lengths, Workload
from holdfast.twin.config_edit import parse_value
from holdfast.twin.twin_file import read_twin
from holdfast.twin.what_if import Baseline, RunPlan
from holdfast.wire.state_dir import default_state_dir, read_running

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_FAULT: Final = re.compile(
    r"(?P<kind>[a-z_]+)(?::(?P<target>[^@,]+))?(?:@(?P<at>[^+,]+))?(?:\+(?P<lasts>[^,]+))?"
    r"(?P<more>(?:,[a-z_]+=[^,]+)*)"
)
_FAULT_FIX: Final = "write KIND:REPLICA@START+LENGTH, such as hang:llama-1@60s+30s"
_DURATION: Final = PlanField("duration", FieldKind.DURATION, "seconds", least=0.001)
_RANGE: Final = re.compile(r"([0-9]+)\.\.([0-9]+)")


def asks_twin(command: CommandT) -> CommandT:
    """Decorator: adds the options of a question."""
    path = click.Path(path_type=Path, dir_okay=False)
    options = [
        click.option(
            "-c", "--config", type=path, help="The fleet file. Default: of the fleet that runs."
        ),
        click.option("--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Its."),
        click.option("--twin", "twin_path", type=path, help="Of 'holdfast twin calibrate'."),
        click.option("--model", help="Which model the options are about. Default: the first."),
        click.option("--rate", type=float, help="Requests per second, instead of the measured."),
        click.option("--prompt", type=float, help="Tokens of a prompt, on average."),
        click.option("--output-tokens", type=float, help="Tokens of an answer, on average."),
        click.option("--trace", type=path, help="Arrivals from a trace file (Azure, Mooncake)."),
        click.option(
            "--traffic", type=float, default=1.0, show_default=True, help="Times what it is."
        ),
        click.option(
            "--fault",
            "faults",
            multiple=True,
            help="KIND:REPLICA@START+LENGTH, such as hang:llama-1@60s+30s; may be repeated.",
        ),
        click.option("--lose-zone", help="A zone that is lost for a third of the time."),
        click.option(
            "--set", "settings", multiple=True, help="KEY=VALUE of the fleet file; may be repeated."
        ),
        click.option("--slo-ttft", help="Objective for the first token, such as 2s."),
        click.option("--duration", help="Of traffic, such as 10m. Default: some 3,000 requests."),
        click.option("--seeds", type=int, default=5, show_default=True, help="Runs of each arm."),
        click.option("--jobs", type=click.IntRange(0, 1_024), default=0, help="Processes."),
        click.option(
            "--no-diagnosis", is_flag=True, help="Leave incidents out: several times as fast."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


class Question:
    """The fleet and the plan of runs that the shared options describe."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        path = _config_path(given["config"], given["state_dir"])
        self.text = text_of(path)
        self.file = load_text(str(path), self.text, FleetFile)
        self.twin = read_twin(given["twin_path"]) if given["twin_path"] is not None else None
        names = [model.name for model in self.file.models]
        self.model = given["model"] or next(
            (name for name in names if self.twin is not None and name in self.twin.models),
            names[0] if names else "",
        )
        if self.model not in names:
            fix = f"use one of {', '.join(names)[:200]}" if names else "add a model to the file"
            raise ConfigError("model", f"{self.model!r} is not in the fleet file", fix)
        self.section = next(model for model in self.file.models if model.name == self.model)
        self.baseline = Baseline(
            self.text, str(path), self.twin, traffic=self._traffic(), replicas={}
        )
        slo = None
        if given["slo_ttft"] is not None:
            slo = Slo(first_token_s=seconds_of("--slo-ttft", given["slo_ttft"]))
        span = given["duration"]
        self.plan = RunPlan(
            duration_s=None if span is None else seconds_of("--duration", span),
            seeds=given["seeds"],
            jobs=given["jobs"],
            diagnosis=not given["no_diagnosis"],
            slo=slo,
        )

    def _traffic(self) -> dict[str, Workload]:
        given, fitted = self._given, None
        if self.twin is not None and self.model in self.twin.models:
            fitted = self.twin.models[self.model].traffic
        asked = [given[name] for name in ("rate", "prompt", "output_tokens", "trace")]
        if all(one is None for one in asked):
            return {}
        rate = given["rate"] if given["rate"] is not None else (fitted.rate if fitted else None)
        if rate is None and given["trace"] is None:
            raise ConfigError("--rate", "is missing, and no twin knows it", "give requests/s")
        prompt = fitted.prompt if fitted else Lengths(mean=500.0)
        output = fitted.output if fitted else Lengths(mean=200.0)
        if given["prompt"] is not None:
            prompt = Lengths(mean=given["prompt"], cv=prompt.cv)
        if given["output_tokens"] is not None:
            output = Lengths(mean=given["output_tokens"], cv=output.cv)
        trace = "" if given["trace"] is None else str(given["trace"])
        workload = Workload(rate=rate or 1.0, prompt=prompt, output=output, trace=trace)
        return {self.model: workload}

    def key(self, name: str) -> str:
        """The dotted key of something of the model."""
        return f"models.{self.model}.{name}"

    def replicas_key(self) -> str:
        """The key that says how many replicas the model has; refused where the file lists them."""
        if self.section.launch is None:
            fix = "change its endpoints with --set, or its platform"
            problem = "cannot be changed in the file: it does not launch them"
            raise ConfigError(f"models.{self.model} replicas", problem, fix)
        return self.key("launch.replicas")

    def settings(self) -> dict[str, Any]:
        """What ``--set`` changes."""
        changes = {}
        for setting in self._given["settings"]:
            key, equals, value = setting.partition("=")
            if not equals or not key.strip():
                raise ConfigError("--set", f"is {setting!r}"[:80], "write KEY=VALUE")
            changes[key.strip()] = parse_value(value)
        return changes

    def faults(self, duration_s: float) -> tuple[Fault, ...]:
        """What ``--fault`` and ``--lose-zone`` let happen."""
        found = [fault_of(text) for text in self._given["faults"]]
        zone = self._given["lose_zone"]
        if zone is not None:
            third = duration_s / 3
            section = FaultSection(kind="zone_loss", target=zone, at=third, until=2 * third)
            found.append(section.build())
        return tuple(found)


def _config_path(config: Path | None, state_dir: Path | None) -> Path:
    if config is not None:
        return config
    running = read_running(state_dir or default_state_dir(None, os.environ))
    if running is None:
        raise click.UsageError("no fleet runs here: name a fleet file with -c")
    return Path(running.config)


def seconds_of(name: str, text: str) -> float:
    """Seconds of an option's text, such as 90s or 5m."""
    try:
        value: float = _DURATION.read(text)
    except ConfigError as error:
        raise ConfigError(name, error.problem, error.fix) from error
    return value


def fault_of(text: str) -> Fault:
    """A fault as it is written on a command line; raises ``ConfigError``."""
    found = _FAULT.fullmatch(text)
    if found is None:
        raise ConfigError("--fault", f"is {text!r}"[:80], _FAULT_FIX)
    at = seconds_of("--fault", found["at"]) if found["at"] and found["at"] != "0s" else 0.0
    more = {}
    for pair in (found["more"] or "").split(",")[1:]:
        name, _, value = pair.partition("=")
        more[name] = parse_value(value)
    try:
        section = FaultSection.model_validate(
            {
                "kind": found["kind"],
                "target": found["target"] or "*",
                "at": at,
                "until": at + seconds_of("--fault", found["lasts"]) if found["lasts"] else None,
                **more,
            }
        )
    except ConfigError as error:
        raise ConfigError("--fault", f"{error.field} {error.problem}", error.fix) from error
    except ValueError as error:  # pydantic's: an unknown detail, or one of another type
        told = str(error).splitlines()
        problem = ": ".join(line.strip() for line in told[1:3])[:200]
        raise ConfigError("--fault", f"{text!r} cannot be used ({problem})", _FAULT_FIX) from error
    return section.build()


def values_of(text: str) -> tuple[str, tuple[Any, ...]]:
    """The name and the values of ``--vary NAME=1,2,3`` or ``NAME=2..6``."""
    name, equals, listed = text.partition("=")
    if not equals or not listed:
        raise ConfigError("--vary", f"is {text!r}"[:80], "write replicas=2..6 or hedge=true,false")
    span = _RANGE.fullmatch(listed)
    if span is not None:
        low, high = int(span[1]), int(span[2])
        if high < low or high - low > 1_000:
            raise ConfigError("--vary", f"is {text!r}"[:80], "write the lower number first")
        return name.strip(), tuple(range(low, high + 1))
    whole = parse_value(listed if listed.startswith("[[") else f"[{listed}]")
    return name.strip(), tuple(whole)


def words(text: str) -> Sequence[str]:
    """The parts of a list that is written with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


__all__ = ["Question", "asks_twin", "fault_of", "seconds_of", "values_of", "words"]
