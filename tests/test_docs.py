"""The docs say what the code does: blocks are fresh, links lead on, commands and snippets work."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.config.chaos import PlanFile
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.gateway.api.errors import FINISHES
from holdfast.sim.run import run_experiment
from holdfast.sim.scenario import prepare, read_scenario

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]

GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|md|yaml|toml|lock))`")
FOLDER = re.compile(r"`((?:tests|docs|examples|bench|src)/[\w./-]*)`")
SLOW = re.compile(r"#\s*takes (?:(?:half )?an? (?:minute|hour)|(?:a few|some) (?:seconds|minutes))")

# What a reader is asked to make, or what stands for any file.
NOT_HERE = {"mine.yaml", "bad.yaml", "SCENARIO.yaml", "fleet.yaml", "NAME.py"}
WRITTEN = {"report.md", "timeline.svg", "record.json"}  # by a game day
PLAN_PAGES = {"docs/chaos.md"}  # whose snippets are plans of game days

MINIMAL = {"name": "minimal", "models": [{"workload": {"rate": 5}}]}
MINIMAL_FLEET = {
    "models": [{"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9501"]}]
}
SERVING = sorted((ROOT / "examples" / "serving").glob("*.yaml"))

SERVED_BY = ("endpoints", "launch", "discover")  # what every model of a fleet has one of

# Pages whose snippets are of fleet files; on the front page both kinds may stand.
FLEET_PAGES = {
    "docs/serving.md",
    "docs/operating.md",
    "docs/security.md",
    "docs/queues.md",
    "docs/batch.md",
    "docs/consumers.md",
    "docs/idempotency.md",
    "docs/operating/standby.md",
    "docs/reference/fleet.md",
}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fences(name: str, *kinds: str, generated: bool = False) -> list[str]:
    """The bodies of a page's fenced blocks; those that were generated only on request."""
    text = text_of(name) if generated else GENERATED.sub("", text_of(name))
    return [body for kind, body in FENCE.findall(text) if kind in kinds]


def command_lines(name: str) -> list[str]:
    """The ``holdfast …`` lines that somebody typed into this page."""
    joined = "\n".join(fences(name, "sh", "console", "text")).replace("\\\n", " ")
    lines = [line.removeprefix("$ ").strip() for line in joined.splitlines()]
    return [line for line in lines if line.startswith("holdfast ")]


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {
        slug(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    }


def is_of_a_fleet(name: str, body: str) -> bool:
    return name in FLEET_PAGES or any(f"{how}:" in body for how in SERVED_BY)


def has_replicas(file: FleetFile) -> bool:
    """Listed ones, or somebody who launches or finds them."""
    return bool(file.replicas()) or any(model.launch or model.discover for model in file.models)


COMMANDS = sorted({(name, line) for name in NAMES for line in command_lines(name)})
SNIPPETS = [(name, body) for name in NAMES for body in fences(name, "yaml")]
FLEETS = [snippet for snippet in SNIPPETS if is_of_a_fleet(*snippet)]
PLANS_OF_DAYS = [snippet for snippet in SNIPPETS if snippet[0] in PLAN_PAGES]
SCENARIOS = [
    snippet for snippet in SNIPPETS if not is_of_a_fleet(*snippet) and snippet not in PLANS_OF_DAYS
]
SCRIPTS = sorted(
    {line for name in NAMES for line in fences(name, "sh") if line.startswith("python bench/")}
)


def test_there_is_something_to_look_at():
    assert "docs/concepts.md" in NAMES
    assert COMMANDS
    assert FLEETS
    assert SCENARIOS
    assert SCRIPTS


def test_generated_blocks_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_every_block_that_was_opened_is_closed(name):
    text = text_of(name)
    assert (
        text.count("<!-- generated: ") == text.count("<!-- end -->") == len(GENERATED.findall(text))
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    for link in LINK.findall(FENCE.sub("", text_of(name))):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{name} links to {link}, which has no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_named_exists(name):
    text = text_of(name)
    for said in {*PATH.findall(text), *FOLDER.findall(text)} - NOT_HERE - WRITTEN:
        places = (ROOT / said, PACKAGE / said, PACKAGE / "core" / said, ROOT / "examples" / said)
        places += (ROOT / "examples" / "serving" / said,)
        assert any(place.exists() for place in places), f"{name} names {said}"


# Pages that lead through the code, naming functions as ``path.py: Class.method``.
WALKS = ("docs/internals/tour.md", "docs/internals/where.md")
NAMING = re.compile(r"`([\w./-]+\.(?:py|js): [^`]*)`")
NAMED = re.compile(r"([\w./-]+\.(?:py|js)): ([A-Za-z_]\w*(?:\.\w+)*)")
DEFINED_IN_JS = re.compile(
    r"^(?:export )?(?:const|let|class|(?:async )?function) (\w+)", re.MULTILINE
)


def names_in(scope: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    """What a module or a class defines: functions, classes and values, by name."""
    found: dict[str, ast.stmt] = {}
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def is_defined(path: Path, dotted: str) -> bool:
    """Whether a source file defines this name, or this class with this member."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        return dotted in DEFINED_IN_JS.findall(source)
    scope: ast.AST | None = ast.parse(source)
    for name in dotted.split("."):
        if not isinstance(scope, ast.Module | ast.ClassDef):
            return False
        scope = names_in(scope).get(name)
    return scope is not None


def wrongly_named(text: str) -> list[str]:
    """The ``path: name`` spans of a page that no file or no definition stands behind."""
    wrong = []
    for span in NAMING.findall(text):
        named = NAMED.fullmatch(span)
        places = [top / named[1] for top in (PACKAGE, ROOT)] if named else []
        if not any(place.is_file() and is_defined(place, named[2]) for place in places):
            wrong.append(span)
    return wrong


@pytest.mark.parametrize("name", WALKS)
def test_every_function_that_a_walk_names_exists(name):
    assert len(NAMING.findall(text_of(name))) > 40
    assert wrongly_named(text_of(name)) == []


@pytest.mark.parametrize(
    "planted",
    [
        "core/request/flow.py: Flow.no_such_method",
        "core/request/flow.py: NoSuchClass",
        "core/request/flow.py: Flow.handle.event",
        "core/request/no_such_file.py: Flow.handle",
        "core/request/flow.py: Flow.handle()",
        "ui/web/static/rows.js: noSuchColumns",
    ],
)
def test_a_function_that_does_not_exist_is_found(planted):
    right = "`core/request/flow.py: Flow.handle` and `ui/web/static/rows.js: replicaColumns`"
    assert wrongly_named(right) == []
    assert wrongly_named(f"{right}, then `{planted}`") == [planted]


@pytest.mark.parametrize("name", NAMES)
def test_every_page_is_reached_from_the_map(name):
    index = text_of("docs/index.md") + text_of("README.md") + text_of("docs/causes/index.md")
    assert name in {"README.md", "docs/index.md"} or Path(name).name in index


@pytest.mark.parametrize("name", NAMES)
def test_every_make_target_that_is_named_exists(name):
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    said = re.findall(r"(?:^|`)make ([a-z]+)(?=`| {2,}#|$)", text_of(name), re.MULTILINE)
    assert set(said) <= targets


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_every_command_parses(name, line):
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        _, found, words = command.resolve_command(click.Context(command), words)
        assert found is not None
        command = found
    settings = main.context_settings
    command.make_context("holdfast", words, parent=click.Context(main, **settings))


PLANS = sorted({line for _, line in COMMANDS if line.startswith("holdfast plan ")})


def files_of(command: str) -> list[str]:
    """The config files that such commands name."""
    lines = [line for _, line in COMMANDS if line.startswith(f"holdfast {command} ")]
    words = {word for line in lines for word in line.split() if word.endswith(".yaml")}
    return sorted(words - NOT_HERE)


@pytest.mark.parametrize("line", PLANS)
def test_every_plan_works(line):
    words = shlex.split(line, comments=True)[1:]
    result = CliRunner().invoke(main, words, prog_name="holdfast")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("file", files_of("simulate"))
def test_every_scenario_that_a_command_names_can_be_run(file):
    """They are run, shorter, by the tests of the examples; here it is enough that they are read."""
    assert file.startswith("examples/")
    assert prepare(read_scenario(ROOT / file), 1).variants


@pytest.mark.parametrize("file", files_of("serve"))
def test_every_fleet_that_a_command_names_is_one_of_the_examples(file):
    assert ROOT / file in SERVING


@pytest.mark.parametrize("path", SERVING, ids=lambda path: path.name)
def test_every_example_of_a_fleet_loads_and_says_what_it_is(path):
    file = load(path, FleetFile)
    assert has_replicas(file)
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", SERVING, ids=lambda path: path.name)
def test_every_command_in_an_example_of_a_fleet_parses(path):
    said = re.findall(r"^#   (holdfast .*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    for line in said:
        test_every_command_parses(path.name, line)


@pytest.mark.parametrize("line", SCRIPTS)
def test_every_script_and_its_options_exist(line):
    _, script, *words = shlex.split(line)
    source = text_of(script)
    assert all(f'"{word}"' in source for word in words if word.startswith("-"))


def test_whoever_must_wait_is_told_so():
    """Commands that take long say so beside them."""
    slow = [line for _, line in COMMANDS if "--exercises" in line or "--seeds" in line]
    assert slow
    assert all(SLOW.search(line) for line in slow)


@pytest.mark.parametrize(("name", "body"), SCENARIOS)
def test_every_snippet_of_a_scenario_loads(name, body, tmp_path):
    """A part of a file is completed with the smallest scenario first."""
    part = yaml.safe_load(body)
    whole = {**MINIMAL, **part}
    path = tmp_path / "snippet.yaml"
    path.write_text(body if "name" in part and "models" in part else yaml.safe_dump(whole))
    assert prepare(read_scenario(path), 1).variants


@pytest.mark.parametrize(("name", "body"), PLANS_OF_DAYS)
def test_every_snippet_of_a_game_day_loads(name, body, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(body)
    assert load(path, PlanFile).steps


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "chaos").glob("*.yaml")), ids=str)
def test_every_example_of_a_game_day_loads(path):
    assert load(path, PlanFile).steps


@pytest.mark.parametrize(("name", "body"), FLEETS)
def test_every_snippet_of_a_fleet_loads(name, body, tmp_path):
    """A part of a file is completed with the smallest fleet first."""
    part = yaml.safe_load(body)
    path = tmp_path / "snippet.yaml"
    path.write_text(body if "models" in part else yaml.safe_dump({**MINIMAL_FLEET, **part}))
    file = load(path, FleetFile)
    assert has_replicas(file)


@pytest.mark.parametrize("name", NAMES)
def test_every_snippet_of_python_compiles(name):
    for body in fences(name, "python"):
        compile(body, name, "exec")


def test_every_code_of_the_flow_is_in_the_table_of_errors():
    """The generator knows them from the core; this is the gateway's own list."""
    rows = re.compile(r"^\| \d+ \| `\w+` \| `(\w+)` \|", re.MULTILINE)
    told = set(rows.findall(text_of("docs/reference/failures.md")))
    assert set(FINISHES) - {"client_gone"} <= told


@pytest.mark.parametrize("hidden", ["control-process", "gateway-process"])
def test_commands_for_our_own_processes_are_not_documented(hidden):
    assert hidden in main.list_commands(click.Context(main))
    assert hidden not in text_of("docs/reference/cli.md")


@pytest.mark.parametrize("place", ["What it costs", "What faults do to clients"])
def test_measured_tables_name_the_command_that_makes_them(place):
    after = text_of("docs/serving.md").partition(f"## {place}\n")[2].partition("\n## ")[0]
    assert "python bench/" in after


def test_every_figure_of_the_json_is_explained(tmp_path):
    path = tmp_path / "minimal.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "duration": "5s"}))
    (_, setup), *_ = prepare(read_scenario(path), 1).variants
    account = run_experiment(setup, 1)
    explained = set(re.findall(r"^\| `(\w+)` \|", text_of("docs/reference/cli.md"), re.MULTILINE))
    assert set(account) | set(account["total"]) <= explained


WORKPLACE = re.compile(r"\b(?:/work/|/tmp/|/root/)", re.IGNORECASE)


@pytest.mark.parametrize("name", NAMES)
def test_no_page_speaks_of_the_machine_it_was_written_on(name):
    assert not WORKPLACE.search(text_of(name))
