import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner, Result

from holdfast import __version__
from holdfast.cli import COMMANDS, CommandRow, main, simulation
from holdfast.cli.plan import commands as plan
from holdfast.config.files import load
from holdfast.config.sections import Section
from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.testing.textbook_tables import render_tables
from holdfast.ui.terminal import console

PLAN = ["plan", "redundancy", "--need", "20", "--availability", "0.995", "--target", "0.999"]


# What takes a tenth of a second or more to import, and what the layers below are made of.
HEAVY = (
    *("pydantic", "starlette", "textual", "rich", "uvloop", "httptools", "msgspec", "orjson"),
    *("numpy", "holdfast.sim", "holdfast.gateway", "holdfast.config.sections"),
)
NOBODY = "http://127.0.0.1:1"  # no port that one may bind without being root


@pytest.fixture
def run(monkeypatch):
    """Runs the command as in a pipe: no terminal, and no wish for colours in the environment."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, prog_name="holdfast")

    return invoke


def commands(command: click.Command = main, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group, as the words that call it."""
    found = [words]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if not child.hidden:
                found += commands(child, (*words, name))
    return found


def find(words: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for word in words:
        command = command.get_command(click.Context(command), word)
    return command


def prints_json(command: click.Command) -> bool:
    """Whether it can; a group that does nothing without a command has nothing to print."""
    if isinstance(command, click.Group) and not command.invoke_without_command:
        return True
    return any("--json" in parameter.opts for parameter in command.params)


# Commands that print no table: they run, give an order and say what became of it, print text as
# others wrote it, or write files in a form that others prescribe.
NO_TABLE = {
    *(("up",), ("down",), ("serve",), ("agent",), ("stand-in",), ("readiness",), ("logs",)),
    *(("scale",), ("drain",), ("undrain",), ("restart",), ("chaos",), ("sign-in",)),
    *(("render",), ("aws",)),
}
NO_TABLE_OF_A_GROUP = {
    *(("incidents", "close"), ("incidents", "export"), ("baseline", "accept")),
    *(("baseline", "reset"), ("batch", "cancel"), ("batch", "run"), ("batch", "show")),
    *(("queue", "purge"), ("queue", "redrive"), ("keys", "hash")),
}


def examples(help_text: str) -> list[str]:
    """The command lines below 'Example:' in a help text, continuation lines joined."""
    _, _, below = help_text.partition("Example")
    joined = below.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.startswith("    holdfast ")]


# They run until they are stopped, ask a running fleet, or read files of it: see tests/e2e and the
# tests of each command.
LIVE = (
    *("up", "down", "status", "logs", "scale", "drain", "undrain", "restart"),
    *("serve", "stand-in", "incidents", "explain", "doctor", "chaos", "keys hash"),
    *("top", "history", "cost", "agent", "audit", "sign-in", "keys list", "keys uses"),
    *("baseline", "versions", "batch", "bench", "queue", "idempotency", "twin", "readiness"),
    *("render envoy", "render istio", "render kubernetes"),
)

EXAMPLES = sorted(
    {
        line
        for words in commands()
        for line in examples(CliRunner().invoke(main, [*words, "--help"]).stdout)
        if not line.removeprefix("holdfast ").startswith(LIVE)
    }
)


class TestHelp:
    def test_the_version_is_printed(self, run):
        assert run("--version").stdout == f"holdfast {__version__}\n"

    @pytest.mark.parametrize("words", commands(), ids=" ".join)
    def test_every_command_explains_itself_with_an_example(self, run, words):
        result = run(*words, "-h")
        assert result.exit_code == 0
        assert examples(result.stdout)
        assert all(len(line) <= 80 for line in result.stdout.splitlines())
        assert result.stdout.isascii()  # an output of other letters cannot be in its way

    @pytest.mark.parametrize("line", EXAMPLES)
    def test_every_example_works(self, run, line):
        result = run(*shlex.split(line)[1:])
        assert result.exit_code == 0, result.stderr
        assert result.stdout
        assert result.stderr == ""

    def test_the_module_is_the_command(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["holdfast", "--version"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("holdfast", run_name="__main__")
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"holdfast {__version__}\n"

    @pytest.mark.parametrize(
        ("line", "unread"),
        [
            (["--help"], (*HEAVY, "yaml", "http.client", "ssl", "asyncio")),
            (["--version"], (*HEAVY, "yaml", "http.client", "ssl", "asyncio")),
            (["statsu"], (*HEAVY, "yaml", "http.client", "ssl", "asyncio")),
            (["status", "--admin", NOBODY], (*HEAVY, "yaml", "asyncio")),
        ],
        ids=["help", "version", "unknown command", "status of nothing"],
    )
    def test_a_command_reads_no_more_than_it_needs(self, line, unread):
        code = (
            "import sys\n"
            "from holdfast.cli import main\n"
            "try:\n"
            f"    main({line}, prog_name='holdfast')\n"
            "finally:\n"
            f"    print([name for name in {unread} if name in sys.modules], file=sys.stderr)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.stderr.splitlines()[-1] == "[]"

    def test_the_completion_of_a_shell_imports_no_command(self):
        asked = {
            "_HOLDFAST_COMPLETE": "bash_complete",
            "COMP_WORDS": "holdfast s",
            "COMP_CWORD": "1",
        }
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "holdfast"],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            check=True,
        )
        offered = [line.partition(",")[2] for line in done.stdout.splitlines()]
        assert offered == ["serve", "stand-in", "status", "scale", "simulate", "sign-in"]
        assert not [line for line in done.stderr.splitlines() if "holdfast.cli." in line]

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_row_of_the_table_is_a_command_with_that_help(self, name):
        row, command = COMMANDS[name], main.get_command(None, name)
        assert command.name == name
        assert row.help == command.get_short_help_str(1_000)
        assert row.section or row.help not in CliRunner().invoke(main, ["--help"]).stdout
        assert not (row.section and command.hidden)

    def test_the_help_has_every_command_on_one_line_of_its_section(self, run):
        lines = run("--help").stdout.splitlines()
        sections = [line.removesuffix(":") for line in lines if re.fullmatch(r"\w+:", line)]
        assert sections == ["Options", "Run", "Look", "Act", "Work", "Plan", "Admin"]
        rows = [(name, row) for name, row in COMMANDS.items() if row.section]
        shown = lines[lines.index("Run:") :]
        assert [line for line in shown if line.startswith("  ")] == [
            f"  {name:<11}  {row.help}" for name, row in rows
        ]

    def test_an_unknown_command_is_answered_with_the_nearest(self, run):
        for word, meant in (("statsu", "status"), ("serv", "serve"), ("incident", "incidents")):
            result = run(word)
            assert result.exit_code == 2
            assert f"No such command '{word}'; did you mean '{meant}'?" in result.stderr
        assert "No such command 'zzz'; 'holdfast --help' lists them" in run("zzz").stderr
        assert run("--zzz").exit_code == 2
        assert "No such option" in run("--zzz").stderr

    def test_every_command_that_prints_a_table_prints_json_too(self):
        without = {words for words in commands() if not prints_json(find(words))}
        assert {words for words in without if words[:1] not in NO_TABLE} == NO_TABLE_OF_A_GROUP

    def test_what_machines_call_is_not_offered_and_still_called(self, run):
        assert "gateway-process" not in run("gateway-proces").stderr.split(";")[-1]
        assert run("readiness", "--help").exit_code == 0
        assert run("gateway-process", "--help").exit_code == 0

    def test_who_only_asks_a_port_does_not_wait_for_the_config_reader(self):
        asking = ("down", "status", "logs", "scale", "incidents", "explain", "cost", "top")
        code = (
            "import sys\n"
            "from holdfast.cli import main\n"
            f"loaded = [main.get_command(None, name) for name in {asking}]\n"
            "assert all(loaded)\n"
            "print('pydantic' in sys.modules or 'textual' in sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "False\n"

    def test_importing_the_module_runs_nothing(self, capsys):
        runpy.run_module("holdfast.__main__", run_name="imported")
        assert capsys.readouterr().out == ""


class TestPlan:
    def test_json_is_one_object_with_the_answer(self, run):
        result = run(*PLAN, "--cost-per-hour", "2", "--json")
        found = json.loads(result.stdout)
        assert found["spares"] == 2
        assert found["availability"] == pytest.approx(0.9998207333, abs=1e-10)
        assert found["monthly_cost"] == 2920.0
        assert result.stderr == ""

    def test_without_a_price_there_is_no_cost(self, run):
        assert json.loads(run(*PLAN, "--json").stdout)["monthly_cost"] is None
        assert "cost" not in run(*PLAN).stdout

    def test_the_options_reach_the_planner(self, run):
        assert json.loads(run(*PLAN, "--correlation", "0.05", "--json").stdout)["spares"] == 5
        zones = ["--zones", "3", "--zone-availability", "0.999"]
        found = json.loads(run(*PLAN, *zones, "--json").stdout)
        assert found["zones"] == 3
        assert found["zone_availability"] == 0.999
        assert found["spares"] > 2

    def test_the_table_marks_the_answer(self, run):
        lines = run(*PLAN).stdout.splitlines()
        assert lines[0] == "20 replicas needed, each up 0.995 of the time; target 0.999"
        (marked,) = [line for line in lines if line.lstrip().startswith(">")]
        assert marked.split() == [">", "2", "22", "0.999820733", "3.75"]
        assert "Run 22: 20 and 2 spares." in lines
        assert "By mean capacity: 1 spare, gives 0.995071528, misses the target." in lines

    def test_the_table_shows_cost_zones_and_what_independence_would_claim(self, run):
        fleet = ["--need", "8", "--availability", "0.99", "--target", "0.99999"]
        risks = ["--zones", "3", "--zone-availability", "0.999", "--correlation", "0.05"]
        out = run("plan", "redundancy", *fleet, *risks, "--cost-per-hour", "0.01").stdout
        assert re.search(r"> +7 +15 +0\.999992925 +5\.15 +51\.10 +0\.999999999", out)
        assert "Run 15: 8 and 7 spares, 5 + 5 + 5 over 3 zones." in out
        assert "The spares cost 51.10 a month." in out
        assert "By independent failures: 3 spares, claims 0.999995474" in out

    def test_an_alternative_that_suffices_says_so(self, run):
        out = run("plan", "redundancy", "--need", "1", "--availability", "0.9", "--target", "0.95")
        assert "By mean capacity: 1 spare, gives 0.990000000, reaches the target." in out.stdout

    def test_a_certainty_has_no_nines(self, run):
        out = run("plan", "redundancy", "--need", "2", "--availability", "1", "--target", "0.9")
        assert re.search(r"> +0 +2 +1\.000000000 *\n", out.stdout)

    def test_piped_output_is_plain_and_fits_80_columns(self, run):
        risks = ["--zones", "3", "--zone-availability", "0.9999", "--correlation", "0.1"]
        out = run(*PLAN, *risks, "--cost-per-hour", "9999").stdout
        assert "\x1b" not in out
        assert "…" not in out
        assert max(len(line) for line in out.splitlines()) <= 80

    def test_a_terminal_gets_its_own_width_and_style(self, run, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        assert console.stdout().width == 120
        assert "\x1b[1m" in run(*PLAN).stdout

    @pytest.mark.parametrize(
        ("option", "value", "said"),
        [
            ("--availability", "1.5", "--availability is 1.5; use the share of time"),
            ("--availability", "nan", "is 'nan'; use a number"),
            ("--availability", "1.2", "--availability is 1.2; use the share of time"),
            ("--zone-availability", "0", "--zone-availability is 0.0; use"),
            ("--target", "1", "--target is 1.0; use a share such as 0.999"),
            ("--correlation", "1", "--correlation is 1.0; use 0 to below 1"),
            ("--cost-per-hour", "-1", "--cost-per-hour is -1.0; use a price, 0 or more"),
            ("--need", "0", "'--need': is 0; use 1 to 10000"),
            ("--need", "-3", "'--need': is -3; use 1 to 10000"),
            ("--need", "2.5", "'--need': is 2.5; use a whole number"),
            ("--need", "x", "'--need': is 'x'; use a number"),
        ],
    )
    def test_bad_values_name_the_option_and_the_fix(self, run, option, value, said):
        result = run(*PLAN, option, value, "--json")
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stdout == ""

    def test_a_field_without_an_option_keeps_its_name(self):
        def refuse(_: object) -> None:
            raise ConfigError("redundancy.limit", "is -1", "use 0 or more")

        kind = replace(PLANS["redundancy"], answer=refuse)
        with pytest.raises(click.UsageError, match=r"redundancy\.limit is -1; use 0 or more"):
            plan.ask(kind, {"need": 1, "availability": 0.9, "target": 0.9})


class TestSimulateBook:
    def test_prints_the_tables_byte_for_byte(self, run):
        result = run("simulate", "book")
        assert result.exit_code == 0
        assert result.stdout_bytes == render_tables().encode() + b"\n"

    def test_leaves_markup_and_wide_lines_alone(self, run, monkeypatch):
        text = "[bold]  x [/]" + "=" * 200 + " :smile:"
        monkeypatch.setattr(simulation, "render_tables", lambda: text)
        assert run("simulate", "book").stdout == text + "\n"

    def test_exercises_are_printed_one_by_one_with_gaps_between(self, run, monkeypatch):
        monkeypatch.setattr(simulation, "exercise_sections", lambda: iter(["one", "two", "three"]))
        assert run("simulate", "book", "--exercises").stdout == "one\n\n\ntwo\n\n\nthree\n"

    def test_options_of_a_scenario_file_are_refused(self, run):
        result = run("simulate", "book", "--seeds", "3")
        assert result.exit_code == 2
        assert "--seeds goes with a scenario file only" in result.stderr


FIRST = "examples/first.yaml"


@pytest.fixture
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])


@pytest.mark.usefixtures("_in_the_repository")
class TestSimulateFile:
    def test_prints_what_each_phase_came_to_and_who_noticed(self, run):
        result = run("simulate", FIRST)
        assert result.exit_code == 0, result.stderr
        for words in ("before the faults", "during the faults", "holdfast", "hang", "llm-2"):
            assert words in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80

    def test_several_seeds_become_means_with_intervals(self, run):
        result = run("simulate", FIRST, "--seeds", "2", "--jobs", "1")
        assert "seeds 1 to 2" in result.stdout
        assert "±" in result.stdout

    def test_json_is_one_object_with_a_run_per_seed(self, run):
        told = json.loads(run("simulate", FIRST, "--seeds", "2", "--seed", "7", "--json").stdout)
        runs = told["variants"]["holdfast"]
        assert [each["seed"] for each in runs] == [7, 8]
        assert runs[0]["total"]["offered"] > 500
        assert 0.9 < runs[0]["total"]["goodput"] <= 1.0

    def test_the_same_seed_gives_the_same_answer(self, run):
        assert run("simulate", FIRST, "--json").stdout == run("simulate", FIRST, "--json").stdout

    def test_a_missing_file_is_named_with_the_fix(self, run):
        result = run("simulate", "novel")
        assert result.exit_code == 2
        assert result.stderr.startswith("novel:1:")

    def test_a_bad_field_is_named_with_its_line(self, run, tmp_path):
        bad = tmp_path / "bad.yaml"
        bad.write_text(Path(FIRST).read_text().replace("rate: 20", "rate: -20"))
        result = run("simulate", str(bad))
        assert result.exit_code == 2
        assert re.match(rf"{bad}:\d+: models\[0\]\.workload\.rate: ", result.stderr)
        assert "above 0" in result.stderr

    def test_the_exercises_belong_to_the_book(self, run):
        result = run("simulate", FIRST, "--exercises")
        assert result.exit_code == 2
        assert "--exercises goes with 'book' only" in result.stderr


class TestRefusedConfigs:
    @pytest.fixture(autouse=True)
    def _commands(self, monkeypatch):
        """Two commands that meet a bad config, one in a file and one in code."""
        place = ModuleType("holdfast.cli.of_a_test")
        monkeypatch.setitem(sys.modules, place.__name__, place)

        class Fleet(Section):
            replicas: int

        @click.command()
        @click.argument("path", type=Path)
        def read(path: Path) -> None:
            load(path, Fleet)

        @click.command()
        def build() -> None:
            raise ConfigError("breaker.window", "is 0", "use at least 1")

        for command in (read, build):
            monkeypatch.setattr(place, command.name, command, raising=False)
            row = CommandRow(f"of_a_test:{command.name}", "Run", "")
            monkeypatch.setitem(COMMANDS, command.name, row)

    def test_a_bad_file_is_told_line_by_line(self, run, tmp_path):
        path = tmp_path / "fleet.yaml"
        path.write_text("replica: 3\n")
        result = run("read", str(path))
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.splitlines() == [
            f"{path}:1: replicas: is missing; add it",
            f"{path}:1: replica: is not a known key; did you mean 'replicas'?",
        ]

    def test_a_bad_value_is_told_without_a_traceback(self, run):
        result = run("build")
        assert result.exit_code == 2
        assert result.stderr == "breaker.window: is 0; use at least 1\n"

    def test_other_errors_are_not_hidden(self, run, monkeypatch):
        def fail() -> str:
            raise RuntimeError("a bug")

        monkeypatch.setattr(simulation, "render_tables", fail)
        assert isinstance(run("simulate", "book").exception, RuntimeError)
