"""The rulebook, enforced over the source by reading its syntax trees.

Each rule is a function from one source file to the breaches it finds. The first half runs every
rule over every file under ``src/holdfast``; the second half shows each rule something it must
catch and something it must not, so that a rule that stopped working fails too.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "holdfast"

FUNCTION_LINES_MAX: Final = 70
MODULE_LINES_MAX: Final = 900
LINE_CHARACTERS_MAX: Final = 100

# Imports go down only; names on one line never import each other.
LAYERS: Final = (
    ("core",),
    ("config", "ports", "frames"),
    ("engines", "launchers", "sources", "storage", "exporters"),
    ("gateway", "control", "batch", "sim"),
    ("planner", "doctor", "chaos", "testing", "ui", "agent"),
    ("wire",),
    ("cli",),
    ("__main__",),
)
LAYER_OF: Final = {unit: height for height, units in enumerate(LAYERS) for unit in units}
SIM_MAY_IMPORT: Final = {"sim", "core", "config"}

CLOCKS: Final = {"datetime", "sched", "time", "zoneinfo"}
NETWORK: Final = {
    "asyncio",
    "http",
    "select",
    "selectors",
    "socket",
    "socketserver",
    "ssl",
    "urllib",
}
PROCESSES: Final = {"concurrent", "multiprocessing", "queue", "signal", "subprocess", "threading"}
STORAGE: Final = {"glob", "io", "mmap", "pathlib", "shelve", "shutil", "sqlite3", "tempfile"}
SURROUNDINGS: Final = {"importlib", "logging", "os", "platform", "resource", "sys"}
CHANCE: Final = {"secrets", "uuid"}
CORE_MAY_NOT_IMPORT: Final = CLOCKS | NETWORK | PROCESSES | STORAGE | SURROUNDINGS | CHANCE

CORE_MAY_NOT_CALL: Final = {
    "open": "the core does no I/O",
    "input": "the core does no I/O",
    "exec": "the core runs what is written in it",
    "eval": "the core runs what is written in it",
    "__import__": "imports stand at the top, where they can be checked",
    "hash": "it differs from process to process for str and bytes; use a keyed digest",
    "id": "addresses differ from run to run",
}
VAGUE_NAMES: Final = {"utils", "common", "helpers", "manager", "constants"}
LEFTOVER: Final = re.compile(r"\b(TODO|FIXME|XXX)\b")


@dataclass(slots=True, frozen=True)
class Source:
    """One file of the package, read once."""

    path: PurePosixPath  # below src/holdfast
    text: str
    tree: ast.Module

    @property
    def unit(self) -> str:
        """What stands in the table of layers; empty for the package's own ``__init__``."""
        first = self.path.parts[0].removesuffix(".py")
        return "" if first == "__init__" else first

    @property
    def dotted(self) -> str:
        parts = ("holdfast", *self.path.with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        """What relative imports start from."""
        is_package = self.path.name == "__init__.py"
        return self.dotted if is_package else self.dotted.rpartition(".")[0]


@dataclass(slots=True, frozen=True)
class Breach:
    line: int
    problem: str


Rule = Callable[[Source], Iterator[Breach]]


def parse(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), text, ast.parse(text, filename=path))


@cache
def load(path: str) -> Source:
    return parse(path, (PACKAGE / path).read_text(encoding="utf-8"))


FILES: Final = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


# --- what is imported -----------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Import:
    line: int
    module: str  # absolute
    name: str | None = None  # what was taken from it; None for `import module`


def imports_of(source: Source) -> Iterator[Import]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = source.package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1])
                module = f"{base}.{module}" if module else base
            for alias in node.names:
                yield Import(node.lineno, module, alias.name)


def unit_imported(found: Import) -> str | None:
    """Which unit of the package an import reaches; None for other packages and for its version."""
    parts = found.module.split(".")
    if parts[0] != "holdfast":
        return None
    if len(parts) > 1:
        return parts[1]
    if found.name is None or found.name.startswith("__"):
        return None
    return found.name


# --- the rules ------------------------------------------------------------------------------------


def layers(source: Source) -> Iterator[Breach]:
    unit = source.unit
    if not unit:
        return
    if unit not in LAYER_OF:
        yield Breach(1, f"{unit} is on no layer; give it a place in LAYERS and in the design")
        return
    for found in imports_of(source):
        target = unit_imported(found)
        if target is None or target == unit:
            continue
        if target not in LAYER_OF:
            yield Breach(found.line, f"imports {target}, which is on no layer")
        elif LAYER_OF[target] == LAYER_OF[unit]:
            yield Breach(found.line, f"{unit} imports its sibling {target}")
        elif LAYER_OF[target] > LAYER_OF[unit]:
            yield Breach(found.line, f"{unit} imports {target}, which lies above it")
        elif unit == "sim" and target not in SIM_MAY_IMPORT:
            yield Breach(found.line, f"sim imports {target}; it may import core and config only")


def core_imports(source: Source) -> Iterator[Breach]:
    if source.unit != "core":
        return
    for found in imports_of(source):
        root = found.module.split(".")[0]
        if root == "holdfast":
            continue
        if root not in sys.stdlib_module_names:
            yield Breach(found.line, f"imports {root}; the core uses the standard library only")
        elif root in CORE_MAY_NOT_IMPORT:
            yield Breach(found.line, f"imports {root}, which touches the world")
        elif root == "random" and found.name != "Random":
            yield Breach(found.line, "takes more from random than the class Random")


def core_calls(source: Source) -> Iterator[Breach]:
    if source.unit != "core":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            why = CORE_MAY_NOT_CALL.get(node.func.id)
            if why is not None:
                yield Breach(node.lineno, f"calls {node.func.id}(): {why}")


def function_length(source: Source) -> Iterator[Breach]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield Breach(node.lineno, f"{node.name} has {lines} lines")


def module_length(source: Source) -> Iterator[Breach]:
    lines = len(source.text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield Breach(lines, f"the module has {lines} lines")


def line_length(source: Source) -> Iterator[Breach]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > LINE_CHARACTERS_MAX:
            yield Breach(number, f"the line has {len(line)} characters")


def no_leftovers(source: Source) -> Iterator[Breach]:
    for number, line in enumerate(source.text.splitlines(), 1):
        found = LEFTOVER.search(line)
        if found:
            yield Breach(number, f"{found.group()} was left behind")


def no_swallowing(source: Source) -> Iterator[Breach]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield Breach(node.lineno, "bare except; name what is expected")
        if all(is_nothing(statement) for statement in node.body):
            yield Breach(node.lineno, "the exception is swallowed; handle it or let it travel")


def is_nothing(statement: ast.stmt) -> bool:
    """``pass``, ``...`` and lone strings do nothing."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass)


def no_print(source: Source) -> Iterator[Breach]:
    if source.unit == "cli":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id == "print":
            yield Breach(node.lineno, "prints; only the CLI speaks to the terminal")


def clear_names(source: Source) -> Iterator[Breach]:
    for part in source.path.parts:
        if part.removesuffix(".py") in VAGUE_NAMES:
            yield Breach(1, f"{part} does not say what it holds")


def mirrored_test(source: Source) -> Iterator[Breach]:
    """Tests mirror packages, not files: a fragment of a class is tested through it."""
    if source.unit != "core" or source.path.name != "__init__.py":
        return
    mirror = PurePosixPath("tests", *source.path.parts[:-1])
    if not any((ROOT / mirror).glob("test_*.py")):
        yield Breach(1, f"has no tests in {mirror}")


def exports(source: Source) -> Iterator[Breach]:
    """Each core module says in ``__all__`` what others may use of it."""
    if source.unit != "core" or source.path.name == "__init__.py":
        return
    declarations = [node for node in source.tree.body if "__all__" in bound_by(node)]
    if not declarations:
        yield Breach(1, "has no __all__")
        return
    declaration = declarations[0]
    line = declaration.lineno
    value = declaration.value if isinstance(declaration, ast.Assign | ast.AnnAssign) else None
    names = literal_strings(value)
    if names is None or len(declarations) > 1:
        yield Breach(line, "__all__ is not one plain list of strings")
        return
    if declaration is not source.tree.body[-1]:
        yield Breach(line, "__all__ does not stand at the end")
    existing = {name for node in source.tree.body for name in bound_by(node)}
    for name in dict.fromkeys(names):
        if name not in existing:
            yield Breach(line, f"__all__ lists {name}, which does not exist")
        if names.count(name) > 1:
            yield Breach(line, f"__all__ lists {name} more than once")


def literal_strings(value: ast.expr | None) -> list[str] | None:
    if not isinstance(value, ast.List | ast.Tuple):
        return None
    found = [item.value for item in value.elts if isinstance(item, ast.Constant)]
    strings = [item for item in found if isinstance(item, str)]
    return strings if len(strings) == len(value.elts) else None


def bound_by(statement: ast.stmt) -> Iterator[str]:
    """The names that one statement at the top of a module binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.split(".")[0]
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.If | ast.Try):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


RULES: Final[dict[str, Rule]] = {
    "layers": layers,
    "core-imports": core_imports,
    "core-calls": core_calls,
    "function-length": function_length,
    "module-length": module_length,
    "line-length": line_length,
    "no-leftovers": no_leftovers,
    "no-swallowing": no_swallowing,
    "no-print": no_print,
    "clear-names": clear_names,
    "mirrored-test": mirrored_test,
    "exports": exports,
}


def import_cycle(sources: list[Source]) -> list[str]:
    """One ring of modules that import each other, or nothing. Walks depth first."""
    names = {source.dotted for source in sources}
    graph = {
        source.dotted: sorted(
            target
            for found in imports_of(source)
            for target in (f"{found.module}.{found.name}", found.module)
            if target in names and target != source.dotted
        )
        for source in sources
    }
    finished: set[str] = set()
    for start in sorted(graph):
        path = [start]
        pending = [iter(graph[start])]
        while path:
            following = next(pending[-1], None)
            if following is None:
                finished.add(path.pop())
                pending.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in finished:
                path.append(following)
                pending.append(iter(graph[following]))
    return []


# --- over the source ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_source_is_tidy(rule: str) -> None:
    told = [
        f"src/holdfast/{path}:{breach.line}: {rule}: {breach.problem}"
        for path in FILES
        for breach in RULES[rule](load(path))
    ]
    assert not told, "\n" + "\n".join(told)


def test_the_core_has_no_import_cycle() -> None:
    core = [load(path) for path in FILES if path.startswith("core/")]
    cycle = import_cycle(core)
    assert not cycle, " imports ".join(cycle)


def test_there_is_a_source_to_look_at() -> None:
    assert "core/types.py" in FILES


# --- each rule bites, and only where it should ----------------------------------------------------

LONG_FUNCTION = "def f() -> None:\n" + "    x = 1\n" * FUNCTION_LINES_MAX
FITTING_FUNCTION = "def f() -> None:\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)

MUST_FIRE: Final = [
    ("layers", "core/a.py", "import holdfast.config\n", 1),
    ("layers", "core/a.py", "x = 1\nfrom holdfast.sim.clock import Clock\n", 2),
    ("layers", "core/a.py", "def f():\n    from holdfast import cli\n", 2),
    ("layers", "core/pkg/a.py", "from ...config import Tree\n", 1),
    ("layers", "config.py", "import holdfast.ports\n", 1),
    ("layers", "ports.py", "from holdfast import config\n", 1),
    ("layers", "engines/vllm.py", "import holdfast.storage.sqlite\n", 1),
    ("layers", "gateway/server.py", "from holdfast.control import loop\n", 1),
    ("layers", "gateway/server.py", "from .. import sim\n", 1),
    ("layers", "sim/model.py", "from holdfast.engines import vllm\n", 1),
    ("layers", "sim/model.py", "import holdfast.ports\n", 1),
    ("layers", "planner.py", "import holdfast.wire\n", 1),
    ("layers", "ui/web/app.py", "import holdfast.chaos\n", 1),
    ("layers", "wire.py", "import holdfast.cli\n", 1),
    ("layers", "misc.py", "x = 1\n", 1),
    ("layers", "wire.py", "import holdfast.misc\n", 1),
    ("core-imports", "core/a.py", "import time\n", 1),
    ("core-imports", "core/a.py", "from time import monotonic\n", 1),
    ("core-imports", "core/a.py", "import asyncio.events\n", 1),
    ("core-imports", "core/a.py", "from datetime import datetime\n", 1),
    ("core-imports", "core/pkg/a.py", "\n\nimport socket\n", 3),
    ("core-imports", "core/a.py", "import json, os\n", 1),
    ("core-imports", "core/a.py", "import pydantic\n", 1),
    ("core-imports", "core/a.py", "import random\n", 1),
    ("core-imports", "core/a.py", "from random import random\n", 1),
    ("core-imports", "core/a.py", "from random import Random, choice\n", 1),
    ("core-calls", "core/a.py", "x = hash('r1')\n", 1),
    ("core-calls", "core/a.py", "xs = sorted(xs, key=lambda x: id(x))\n", 1),
    ("core-calls", "core/a.py", "def f():\n    return open('x')\n", 2),
    ("function-length", "wire.py", LONG_FUNCTION, 1),
    ("function-length", "wire.py", f"x = 1\nasync {LONG_FUNCTION}", 2),
    ("module-length", "wire.py", "x = 1\n" * (MODULE_LINES_MAX + 1), MODULE_LINES_MAX + 1),
    ("line-length", "wire.py", f"x = 1\n# {'x' * (LINE_CHARACTERS_MAX - 1)}\n", 2),
    ("no-leftovers", "wire.py", "x = 1  # TODO: y\n", 1),
    ("no-leftovers", "wire.py", "'''\nFIXME\n'''\n", 2),
    ("no-leftovers", "wire.py", "# XXX\n", 1),
    ("no-swallowing", "wire.py", "try:\n    f()\nexcept:\n    raise\n", 3),
    ("no-swallowing", "wire.py", "try:\n    f()\nexcept OSError:\n    pass\n", 3),
    ("no-swallowing", "wire.py", "try:\n    f()\nexcept OSError:\n    'fine'\n    ...\n", 3),
    ("no-print", "wire.py", "print('x')\n", 1),
    ("no-print", "ui/cli.py", "if x:\n    print('x')\n", 2),
    ("no-print", "wire.py", "show = print\n", 1),
    ("clear-names", "core/utils.py", "x = 1\n", 1),
    ("clear-names", "gateway/helpers/a.py", "x = 1\n", 1),
    ("mirrored-test", "core/imagined/__init__.py", "", 1),
    ("mirrored-test", "core/request/imagined/__init__.py", "", 1),
    ("exports", "core/a.py", "x = 1\n", 1),
    ("exports", "core/a.py", "x = 1\n__all__ = ['y']\n", 2),
    ("exports", "core/a.py", "x = 1\n__all__ = ['x', 'x']\n", 2),
    ("exports", "core/a.py", "x = 1\n__all__ = [x]\n", 2),
    ("exports", "core/a.py", "x = 1\n__all__ = sorted(['x'])\n", 2),
    ("exports", "core/a.py", "x = 1\n__all__ = []\n__all__ += ['x']\n", 2),
    ("exports", "core/pkg/a.py", "__all__ = ['f']\ndef f(): ...\n", 1),
]

MUST_NOT_FIRE: Final = [
    ("layers", "core/a.py", "from holdfast.core.types import nanos\nfrom . import types\n"),
    ("layers", "core/pkg/a.py", "from ..types import nanos\n"),
    ("layers", "core/pkg/__init__.py", "from .a import b\n"),
    ("layers", "__init__.py", "__version__ = '1'\n"),
    ("layers", "gateway/a.py", "from holdfast.core import flow\nimport holdfast.engines.vllm\n"),
    ("layers", "sim/a.py", "from holdfast.config import Tree\nimport holdfast.core.flow\n"),
    ("layers", "sim/a.py", "from holdfast.sim.clock import Clock\n"),
    ("layers", "cli.py", "from holdfast import __version__, wire\nimport holdfast, click\n"),
    ("layers", "engines/a.py", "import holdfastidious.control\n"),
    ("core-imports", "core/a.py", "from random import Random\nimport math, json\n"),
    ("core-imports", "core/a.py", "from holdfast.core.types import nanos\n"),
    ("core-imports", "core/a.py", "from collections import deque\n"),
    ("core-imports", "gateway/a.py", "import asyncio, time, uvloop\n"),
    ("core-calls", "core/a.py", "x.open()\nself.id(3)\nhashed(4)\n"),
    ("core-calls", "gateway/a.py", "open('x')\n"),
    ("function-length", "wire.py", FITTING_FUNCTION),
    ("module-length", "wire.py", "x = 1\n" * MODULE_LINES_MAX),
    ("line-length", "wire.py", f"# {'x' * (LINE_CHARACTERS_MAX - 2)}\n"),
    ("no-leftovers", "wire.py", "AUTODOC = 'MAXXXL'\n"),
    ("no-swallowing", "wire.py", "try:\n    f()\nexcept OSError:\n    dropped += 1\n"),
    ("no-swallowing", "wire.py", "try:\n    f()\nexcept OSError:\n    continue_with(None)\n"),
    ("no-print", "cli.py", "print('x')\n"),
    ("no-print", "wire.py", "console.print('x')\n"),
    ("clear-names", "core/commonest.py", "x = 1\n"),
    ("mirrored-test", "core/imagined.py", "x = 1\n"),
    ("mirrored-test", "core/request/routing/__init__.py", ""),
    ("mirrored-test", "gateway/imagined/__init__.py", ""),
    ("exports", "core/__init__.py", "x = 1\n"),
    ("exports", "gateway/a.py", "x = 1\n"),
    ("exports", "core/a.py", "from b import c\nx: int = 1\n__all__ = ['c', 'x']\n"),
    ("exports", "core/a.py", "class A: ...\nasync def f(): ...\n__all__ = ('A', 'f')\n"),
    ("exports", "core/a.py", "K, (L, M) = N = b\n__all__ = ['K', 'L', 'M', 'N']\n"),
    ("exports", "core/a.py", "if x:\n    y = 1\n__all__: list[str] = ['y']\n"),
]


@pytest.mark.parametrize(("rule", "path", "text", "line"), MUST_FIRE)
def test_a_rule_catches_what_it_forbids(rule: str, path: str, text: str, line: int) -> None:
    assert [breach.line for breach in RULES[rule](parse(path, text))] == [line]


@pytest.mark.parametrize(("rule", "path", "text"), MUST_NOT_FIRE)
def test_a_rule_lets_the_rest_pass(rule: str, path: str, text: str) -> None:
    assert list(RULES[rule](parse(path, text))) == []


def test_every_rule_is_shown_what_it_must_catch_and_what_it_must_not() -> None:
    assert {case[0] for case in MUST_FIRE} == set(RULES)
    assert {case[0] for case in MUST_NOT_FIRE} == set(RULES)


def test_a_cycle_is_found_wherever_the_walk_begins() -> None:
    cycle = import_cycle(
        [
            parse("core/a.py", "from holdfast.core.b import x\n"),
            parse("core/b.py", "from holdfast.core.pkg import c\n"),
            parse("core/pkg/c.py", "def f():\n    from ..b import x\n"),
            parse("core/d.py", "x = 1\n"),
        ]
    )
    assert cycle == ["holdfast.core.b", "holdfast.core.pkg.c", "holdfast.core.b"]


def test_a_package_and_its_own_module_can_form_a_cycle() -> None:
    inside = parse("core/pkg/a.py", "from holdfast.core.pkg import chosen\n")
    outside = parse("core/pkg/__init__.py", "from holdfast.core.pkg.a import chosen\n")
    assert import_cycle([inside, outside])


def test_a_diamond_is_no_cycle() -> None:
    sources = [
        parse("core/a.py", "from holdfast.core import b, c\n"),
        parse("core/b.py", "from holdfast.core.d import x\n"),
        parse("core/c.py", "import holdfast.core.d\n"),
        parse("core/d.py", "import math\n"),
    ]
    assert import_cycle(sources) == []
