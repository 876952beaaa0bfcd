"""Writes what the docs can take from the code: diagrams, tables, command help, real output.

    .venv/bin/python docs/generate.py            rewrite every generated block
    .venv/bin/python docs/generate.py --check    change nothing; exit 1 if a page is out of date

A page marks a block with ``<!-- generated: NAME -->`` and ``<!-- end -->``; what stands between is
replaced. Nothing else in a page is touched. Outputs of commands are run, not pasted: a seed gives
the same figures everywhere, so a figure that moved is found here and not by a reader.
"""

# ruff: noqa: INP001 - a script, not a package

import argparse
import ast
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
import serving_tables
from cause_pages import cause_pages
from click.testing import CliRunner
from config_keys import fields_table, meaning_of, reference, table
from state_diagrams import machine, verdicts_table
from status_tables import layers_table, packages_table, status

from holdfast.cli import main as command_line
from holdfast.config.chaos import FAULT_STORIES, FAULTS, PlanFile
from holdfast.config.fleet_file import FleetFile
from holdfast.core.failure import MEANINGS, Kind
from holdfast.core.health import drain, lifecycle
from holdfast.core.health.liveness import RESPONSES
from holdfast.core.plan.faults import FaultKind
from holdfast.core.request import active_request, breaker
from holdfast.core.request.ladders import degrade
from holdfast.core.request.routing import POLICIES
from holdfast.core.types import State
from holdfast.engines import capabilities_table
from holdfast.sim.scenario import Scenario

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent
PACKAGE: Final = ROOT / "src" / "holdfast"
PAGES: Final = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))

BLOCK: Final = re.compile(
    r"(?P<open><!-- generated: (?P<name>[\w -]+) -->\n)(?P<body>.*?)(?P<close><!-- end -->)",
    re.DOTALL,
)

# Folders of the package, lowest first.
PARTS: Final = (
    *("core", "config", "engines", "launchers", "sources", "storage"),
    *("gateway", "control", "sim"),
    *("chaos", "planner", "testing", "ui", "manifests", "loadtest", "wire", "cli"),
)

# Commands whose output a page shows, by the name of their block.
OUTPUTS: Final = {
    "output partial-outage": "holdfast simulate examples/partial-outage.yaml",
    "output first": "holdfast simulate examples/first.yaml",
    "output seeds": "holdfast simulate examples/first.yaml --seeds 5",
    "output plan": "holdfast plan redundancy --need 20 --availability 0.995 --target 0.999",
    "output plan zones": "holdfast plan redundancy --need 8 --availability 0.99 --target 0.9999"
    " --zones 3 --zone-availability 0.999",
    "output plan nines": "holdfast plan redundancy --need 20 --availability 0.995 --target 0.9999"
    " --cost-per-hour 2 --region-availability 0.9995",
    "output plan fragile": "holdfast plan redundancy --need 8 --mtbf 100h --detect 3h --repair 20h"
    " --target 0.999 --simulate",
    "output plan users": "holdfast plan capacity --users 10000 --prompt 500 --output 200"
    " --speed router-example --split --first-token 100ms --latency 2s --utilisation 0.7",
    "output plan surge": "holdfast plan capacity --rate 40 --prompt 500 --output 200"
    " --speed vllm-llama-3.1-8b --latency 8s --surge 4 --ramp 5m --start 2m --simulate",
    "output plan coldstart": "holdfast plan coldstart --replicas 40 --size 10GB --bandwidth 100MB"
    " --saturated 30m",
    "output plan parallelism": "holdfast plan parallelism --model llama-3.1-70b --device h100-80gb"
    " --devices 16",
    "output plan memory": "holdfast plan memory --model llama-3.1-70b --device h100-80gb",
    "output plan parler": "holdfast plan memory --parameters 880M --quantisation fp16 --device cpu"
    " --buffers 740MB --overhead 1GB --host-memory 31GB --reservation 1GB",
    "output book": "holdfast simulate book",
}

# --- tables ---


def faults_table() -> str:
    """The kinds of faults."""
    rows = [(f"`{kind.value}`", meaning_of(FaultKind, kind.name)) for kind in FaultKind]
    return table(("kind", "what it does"), rows)


def chaos_faults_table() -> str:
    """What ``holdfast chaos`` can do."""
    return table(("fault", "what it does"), [(f"`{f}`", FAULT_STORIES[f]) for f in FAULTS])


def kinds_table() -> str:
    """What an attempt's end is taken to mean."""
    rows = []
    for kind, meaning in MEANINGS.items():
        again = "yes, once for free" if meaning.free else "yes" if meaning.retryable else "no"
        where = "" if meaning.failure_class is None else meaning.failure_class.value
        rows.append((f"`{kind.value}`", meaning_of(Kind, kind.name), meaning.outcome, again, where))
    return table(("kind", "what was seen", "outcome", "try again?", "class"), rows)


def routing_reference() -> str:
    """Every routing policy with its reasons and its settings."""
    parts = []
    for name in POLICIES:
        module = sys.modules[f"holdfast.core.request.routing.{name}"]
        parts.append(f"## `{name}`\n\n{prose(inspect.getdoc(module) or '')}")
        configs = [
            held
            for held in vars(module).values()
            if isinstance(held, type) and is_dataclass(held) and held.__module__ == module.__name__
        ]
        if name in _WRAPPERS:
            parts.append("Wraps another policy: `inner` names it (default `power_of_two`).")
        parts.extend(fields_table(config, {}) for config in configs)
    return "\n\n".join(parts)


_WRAPPERS: Final = {
    name for name, factory in POLICIES.items() if "inner" in inspect.signature(factory).parameters
}


def prose(docstring: str) -> str:
    """A docstring as Markdown: paragraphs joined, code spans in single ticks."""
    paragraphs = [" ".join(part.split()) for part in docstring.split("\n\n")]
    return "\n\n".join(paragraphs).replace("``", "`").replace(" Rejected", "\n\nRejected")


# --- modules, commands, outputs -------------------------------------------------------------------


@cache
def modules() -> tuple[tuple[str, str], ...]:
    """Every module with its docstring, by path below the package; read once for all tables."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if said:
            found.append((path.relative_to(PACKAGE).as_posix(), said))
    return tuple(found)


def modules_table(folder: str) -> str:
    """The modules of one part of the package, each with its first sentence."""
    rows = []
    for path, said in modules():
        inside = path.startswith(f"{folder}/") if folder else "/" not in path
        if inside:
            sentences = re.split(r"(?<=\.)\s", " ".join(said.split("\n\n")[0].split()))
            wanted = 1 if len(sentences[0]) > 20 else 2  # "Decisions." alone says little
            words = " ".join(sentences[:wanted]).replace("``", "`").rstrip(".:")
            rows.append((f"`{path}`", words))
    return table(("file", "what it is"), rows)


def rejected() -> str:
    """What module docstrings say was rejected, and why."""
    lines = []
    for path, said in modules():
        for paragraph in said.split("\n\n"):
            joined = " ".join(paragraph.split()).replace("``", "`")
            _, found, reasons = joined.partition("Rejected")
            if found:
                lines.append(f"- `{path}`: rejected{reasons}")
    return "\n".join(lines)


def helps() -> str:
    """The help of every command, as it is printed."""
    parts = []
    for words in _commands(command_line, ("holdfast",)):
        out = CliRunner().invoke(command_line, [*words[1:], "--help"], prog_name="holdfast").stdout
        parts.append(f"## `{' '.join(words)}`\n\n```text\n{out.strip()}\n```")
    return "\n\n".join(parts)


def _commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _commands(child, (*words, name))


def output(line: str, shown: str = "") -> str:
    """A command with what it prints in a pipe."""
    runner = CliRunner(env={"FORCE_COLOR": None, "TTY_COMPATIBLE": None, "COLUMNS": None})
    done = runner.invoke(command_line, shlex.split(line)[1:], prog_name="holdfast")
    if done.exit_code:
        raise SystemExit(f"{line} failed: {done.output or repr(done.exception)}")
    printed = "\n".join(row.rstrip() for row in done.stdout.splitlines())
    return f"```console\n$ {_folded(shown or line)}\n{printed}\n```"


REFUSED: Final = """\
name: a file with mistakes
duraton: 30s
models:
  - replicas: 4
    workload: {rate: -1}
"""


def refused() -> str:
    """What a bad file is answered with."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bad.yaml"
        path.write_text(REFUSED, encoding="utf-8")
        done = CliRunner().invoke(command_line, ["simulate", str(path)], prog_name="holdfast")
        told = done.stderr.replace(str(path), path.name)
    return f"```console\n$ cat bad.yaml\n{REFUSED}$ holdfast simulate bad.yaml\n{told}```"


def _folded(line: str) -> str:
    """A long command over several lines, as one types it."""
    lines = []
    while len(line) > 78:
        at = line.rindex(" --", 5, 78)
        lines.append(f"{line[:at]} \\")
        line = f"    {line[at + 1 :]}"
    return "\n".join([*lines, line])


def symptoms_table() -> str:
    """What each symptom calls for, and why."""
    rows = [
        (f"`{symptom.value}`", meaning.response.value, meaning.why, meaning.swapped)
        for symptom, meaning in RESPONSES.items()
    ]
    return table(("symptom", "response", "because", "with the other probe"), rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "breaker": lambda: machine(breaker.TRANSITIONS, breaker.BreakerState.CLOSED),
    "replica": lambda: machine(lifecycle.TRANSITIONS, State.STARTING, everywhere=True),
    "verdicts": verdicts_table,
    "request": lambda: machine(active_request.TRANSITIONS, active_request.RequestPhase.NEW),
    "drain": lambda: machine(drain.TRANSITIONS, drain.DrainPhase.SERVING),
    "ladder": lambda: machine(degrade.TRANSITIONS, degrade.Level.STEADY),
    "scenario": partial(reference, Scenario),
    "fleet": partial(reference, FleetFile),
    "faults": faults_table,
    "chaos faults": chaos_faults_table,
    "chaos plan": partial(reference, PlanFile),
    "kinds": kinds_table,
    "errors": serving_tables.client_errors_table,
    "refusals": serving_tables.refusals_table,
    "headers": serving_tables.headers_table,
    "paths": serving_tables.paths_table,
    "removed members": serving_tables.removed_members,
    "admin": serving_tables.admin_table,
    "metrics": serving_tables.metrics_table,
    "fixed": serving_tables.fixed_settings,
    "stand-in faults": serving_tables.stand_in_faults_table,
    "engines": lambda: capabilities_table().strip(),
    "routing": routing_reference,
    "help": helps,
    "rejected": rejected,
    "symptoms": symptoms_table,
    "refused": refused,
    "layers": layers_table,
    "packages core": partial(packages_table, "core"),
    "packages gateway": partial(packages_table, "gateway"),
    "packages control": partial(packages_table, "control"),
    "status": status,
    "modules top": partial(modules_table, ""),
    **{f"modules {part}": partial(modules_table, part) for part in PARTS},
    **{name: partial(output, line) for name, line in OUTPUTS.items()},
}


# --- pages ----------------------------------------------------------------------------------------


@cache
def block(name: str) -> str:
    """A block's text; each is made once, however many pages show it."""
    if name not in BLOCKS:
        raise SystemExit(f"no block is called {name!r}; there are {', '.join(BLOCKS)}")
    return BLOCKS[name]()


def renewed(text: str) -> str:
    """A page with its blocks made anew."""
    return BLOCK.sub(lambda m: f"{m['open']}\n{block(m['name'])}\n\n{m['close']}", text)


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if stale")
    given = parser.parse_args(arguments)
    stale = [(page, text) for page, text in _fresh() if _differs(page, text)]
    for page, text in stale:
        name = page.relative_to(ROOT)
        if given.check:
            sys.stdout.write(f"{name} is out of date: run docs/generate.py\n")
        else:
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{name} rewritten\n")
    return 1 if given.check and stale else 0


def _fresh() -> Iterator[tuple[Path, str]]:
    """Each page as it should be: those with blocks, and those that are generated whole."""
    whole = {DOCS / name: text for name, text in cause_pages().items()}
    for page in PAGES:
        if page not in whole:
            yield page, renewed(page.read_text(encoding="utf-8"))
    yield from whole.items()


def _differs(page: Path, text: str) -> bool:
    return not page.exists() or page.read_text(encoding="utf-8") != text


if __name__ == "__main__":
    sys.exit(main())
