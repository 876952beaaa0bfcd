"""The table of surfaces in docs/security.md names everything that somebody else can speak to."""

import ast
import importlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.batch.consumers import request_messages
from holdfast.config.batch.consumers import ConsumerSection
from holdfast.control.incidents.fact_reports import KINDS
from holdfast.frames import TAGS
from holdfast.frames.batch_load import LoadDatagram
from holdfast.gateway.api import routes
from holdfast.gateway.request import readiness
from holdfast.gateway.request.batch_relay import BatchRelay
from holdfast.sources.agent_report import AgentReport

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src/holdfast"
PAGE = ROOT / "docs/security.md"
# What opens something that others can connect or write to.
OPENERS = {
    *("bind", "create_server", "create_unix_server", "create_datagram_endpoint"),
    *("start_server", "start_unix_server", "HTTPServer", "ThreadingHTTPServer", "TCPServer"),
}
NO_SURFACE = "testing/"  # stand-ins for tests: no process of a fleet opens them
TOO_WIDE = {"*", "/*", "/v1/*", "/v2/*", "/replicas/*", "/models/*"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below one heading, without its first two lines."""
    section = PAGE.read_text().partition(f"\n### {heading}\n")[2]
    section = re.split(r"\n##+ ", section)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(heading: str) -> list[str]:
    """What the first cells of a table name, without a method before a path."""
    words = [word for row in rows(heading) for word in re.findall(r"`([^`]+)`", row[0])]
    return [word.rpartition(" ")[2] for word in words]


@cache
def sources() -> list[tuple[str, ast.Module]]:
    files = {path.relative_to(SRC).as_posix(): path for path in sorted(SRC.rglob("*.py"))}
    return [
        (name, ast.parse(path.read_text()))
        for name, path in files.items()
        if not name.startswith(NO_SURFACE)
    ]


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@cache
def route_paths() -> list[tuple[str, str]]:
    """Every path of a Starlette route in the code, and the module that has it."""
    found = []
    for name, tree in sources():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        kinds = {
            one.asname or one.name
            for node in imports
            if (node.module or "").startswith("starlette")
            for one in node.names
        } & {"Route", "Mount", "WebSocketRoute"}
        if not kinds:
            continue
        module = importlib.import_module("holdfast." + name[:-3].replace("/", "."))
        known: dict[str, Any] = dict(vars(module))
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        for node in texts:  # a path that several routes of one function begin with
            if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant):
                known.setdefault(node.targets[0].id, node.value.value)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in kinds:
                path = eval(compile(ast.Expression(node.args[0]), name, "eval"), known)
                found.append((path.replace(":path}", "}"), name))
    return found


def data_paths() -> Iterator[str]:
    yield from (path.decode() for path in routes.ROUTES)
    yield f"{routes._MODEL.upstream.decode()}m"
    yield f"{routes._INFER.upstream.decode()}m/infer"
    yield from (f"/v1/responses/r{rest.decode()}" for rest in routes._RESPONSE_METHODS)
    yield from (path.decode() for path in readiness._PATHS)


PATHS = sorted({path for path, _ in route_paths()} | set(data_paths()))


def test_there_is_something_to_look_at():
    assert len(PATHS) > 50
    assert len(route_paths()) > len({path for path, _ in route_paths()})  # other methods
    modules = {name for _, name in route_paths()}
    assert {"control/admin/admin.py", "ui/web/routes.py", "batch/files_api.py"} <= modules


@pytest.mark.parametrize("path", PATHS)
def test_every_path_has_its_row(path):
    assert any(fnmatchcase(path, pattern) for pattern in named("Paths")), path


def test_every_row_is_about_something_and_none_about_everything():
    for pattern in named("Paths"):
        assert pattern not in TOO_WIDE, pattern
        assert any(fnmatchcase(path, pattern) for path in PATHS), pattern


def test_the_gateway_passes_nothing_on_that_has_no_row():
    passed = [path for path, name in route_paths() if name.startswith("batch/")]
    for path in passed:
        assert BatchRelay.serves(path.encode()) is (path != "/internal/backlog"), path


def test_every_listener_has_its_row():
    opened = {
        name for name, tree in sources() for node in ast.walk(tree) if called(node) in OPENERS
    }
    bases = {
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and OPENERS & {base.id for base in node.bases if isinstance(base, ast.Name)}
    }
    told = set(named("Listeners"))
    assert opened | bases == {one for one in told if one.endswith(".py")}


def kinds_of_messages() -> set[str]:
    inbox = ConsumerSection.model_fields["inbox"].annotation
    inboxes = {get_args(one.model_fields["kind"].annotation)[0] for one in get_args(inbox)}
    return {
        *TAGS,
        *KINDS,
        *AgentReport.__struct_fields__,
        *request_messages._Envelope.__struct_fields__,
        LoadDatagram.__name__,
        *inboxes,
    }


def test_every_kind_of_message_has_its_row():
    assert kinds_of_messages() == set(named("Messages"))


@pytest.mark.parametrize("heading", ["Paths", "Listeners", "Messages"])
def test_every_row_says_who_what_and_which_test(heading):
    assert rows(heading)
    for what, who, bounds, attacked in rows(heading):
        assert who, what
        assert bounds, what
        tests = re.findall(r"`(tests/[^`]+)`", attacked)
        assert tests, what
        for test in tests:
            assert (ROOT / test).is_file(), (what, test)
