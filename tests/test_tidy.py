"""The rulebook, enforced over the source by reading its syntax trees.

A rule is a function from one source file to the breaches it finds; a rule over the whole tree takes
all files together (circles, homonyms, crowded folders). The first half runs every rule over
``src/holdfast``; the second half shows each rule something it must catch and something it must not,
so that a rule that stopped working fails too.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "holdfast"

FUNCTION_LINES_MAX: Final = 70
FOLDER_MODULES_MAX: Final = 20
LINE_CHARACTERS_MAX: Final = 100

# Imports go down only; names on one line never import each other.
LAYERS: Final[tuple[tuple[str, ...], ...]] = (
    ("core",),
    ("config", "ports", "queue_port", "frames", "acceptor"),
    ("engines", "launchers", "sources", "storage", "exporters"),
    ("gateway", "control", "batch", "sim", "ray"),
    ("twin",),
    ("planner", "doctor", "chaos", "testing", "ui", "agent"),
    ("loadtest",),  # its report is drawn with the planner's charts
    ("manifests",),
    ("wire",),
    ("cli",),
    ("__main__",),
)
LAYER_OF: Final = {unit: height for height, units in enumerate(LAYERS) for unit in units}
SIM_MAY_IMPORT: Final = {"sim", "core", "config"}

# Packages inside the large units, lowest first. Names on one line never import each other, except
# the modules on the lowest line: they stand directly in the unit's folder and all may use them.
PACKAGES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "core": (
        (
            "types",
            "failure",
            "canary",
            "canary_overtime",
            "messages",
            "stats",
            "gpu",
            "engine_work",
            "near_names",
        ),
        ("deploy", "plan", "intake", "batch"),
        ("request",),
        ("health",),
        ("diagnose",),
        ("view",),
    ),
    "gateway": (
        ("http",),
        ("api",),
        ("telemetry",),
        ("request",),
        ("control_report",),
        ("process",),
    ),
    "control": (
        ("http_client", "fetch", "detached_call", "lookup_errors"),
        ("access",),
        ("fleet",),
        ("gateways",),
        ("deploy",),
        ("incidents",),
        ("view",),
        ("admin",),
        ("process",),
    ),
}

# Words of the field that only look like participles, and what they mean here.
FIELD_WORDS: Final = {
    "routing": "choosing a replica",
    "framing": "how messages are delimited on a stream",
    "loading": "the failure class of a replica that does not come up",
    "weighted": "the policy weighted round robin",
    "least_loaded": "the policy least loaded",
    "feed": "a stream of figures or pictures",
    "reading": "what a source said of itself at one moment",
    "listing": "the list widget of the terminal",
}
# Files that may read the names of classes, and why nothing is stored or sent by them.
CLASS_NAMES_READ: Final = {
    "sources/aws/errors.py": "botocore's errors are told apart without importing botocore",
    "engines/canary_protocol.py": "what a user's own check returned, told to that user",
    "config/sections.py": "definitions inside one JSON Schema, which only refer to each other",
}
PARTICIPLE: Final = re.compile(r"(ing|ed)$")

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


def package_order(source: Source) -> Iterator[Breach]:
    """Packages of one unit import downwards only."""
    rows = PACKAGES.get(source.unit)
    if rows is None or len(source.path.parts) < 2:
        return
    height_of = {package: height for height, row in enumerate(rows) for package in row}
    package = source.path.parts[1].removesuffix(".py")
    if package == "__init__":
        return
    if package not in height_of:
        yield Breach(1, f"{source.unit}/{package} has no place in PACKAGES")
        return
    height = height_of[package]
    for found in imports_of(source):
        parts = [*found.module.split("."), *([found.name] if found.name else [])]
        if parts[:2] != ["holdfast", source.unit] or len(parts) < 3 or parts[2] == package:
            continue
        target = height_of.get(parts[2])
        if target is None:
            yield Breach(found.line, f"imports {parts[2]}, which has no place in PACKAGES")
        elif target > height:
            yield Breach(found.line, f"{package} imports {parts[2]}, which lies above it")
        elif target == height and height > 0:
            yield Breach(found.line, f"{package} imports its sibling {parts[2]}")


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


def nouns(source: Source) -> Iterator[Breach]:
    """A module is a noun of the field; a participle says what somebody does, not what it holds."""
    stem = source.path.stem
    if stem in FIELD_WORDS or stem.split("_")[-1] in FIELD_WORDS:
        return
    if PARTICIPLE.search(stem):
        yield Breach(1, f"{stem} is a participle; name the module for what it holds")


def no_class_names_as_data(source: Source) -> Iterator[Breach]:
    """A class can be renamed without changing what is stored or sent.

    The class of an exception may be named, because it is told to people only.
    """
    if source.path.as_posix() in CLASS_NAMES_READ:
        return
    exceptions = exception_names(source.tree)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute) or node.attr not in {"__name__", "__qualname__"}:
            continue
        held = node.value
        is_exception = (
            isinstance(held, ast.Call)
            and isinstance(held.func, ast.Name)
            and held.func.id == "type"
            and isinstance(held.args[0], ast.Name)
            and held.args[0].id in exceptions
        )
        if not is_exception:
            yield Breach(node.lineno, f"uses {node.attr} as data; give it an explicit name")


def exception_names(tree: ast.Module) -> set[str]:
    """Variables that hold exceptions: caught as such, or parameters annotated as such."""
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
    given = {
        node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        and node.annotation is not None
        and ast.unparse(node.annotation).endswith(("Error", "Exception"))
    }
    return given | {name for name in caught if name}


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
    "package-order": package_order,
    "core-imports": core_imports,
    "core-calls": core_calls,
    "function-length": function_length,
    "line-length": line_length,
    "no-leftovers": no_leftovers,
    "no-swallowing": no_swallowing,
    "no-print": no_print,
    "clear-names": clear_names,
    "nouns": nouns,
    "no-class-names-as-data": no_class_names_as_data,
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


def crowded_folders(sources: list[Source]) -> list[str]:
    """Folders with so many modules side by side that their order is hidden."""
    counted = Counter(
        source.path.parent.as_posix() for source in sources if source.path.name != "__init__.py"
    )
    return [f"{folder} has {n} modules" for folder, n in counted.items() if n > FOLDER_MODULES_MAX]


def homonyms(sources: list[Source]) -> list[str]:
    """Public classes of one layer that share a name: one of them is something else."""
    places: dict[tuple[int, str], list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                layer = LAYER_OF.get(source.unit, -1)
                places.setdefault((layer, node.name), []).append(source.path.as_posix())
    return [
        f"{name} is a class in {' and in '.join(sorted(paths))}"
        for (_, name), paths in sorted(places.items())
        if len(paths) > 1
    ]


# --- over the source ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_source_is_tidy(rule: str) -> None:
    told = [
        f"src/holdfast/{path}:{breach.line}: {rule}: {breach.problem}"
        for path in FILES
        for breach in RULES[rule](load(path))
    ]
    assert not told, "\n" + "\n".join(told)


def test_there_is_no_import_cycle() -> None:
    cycle = import_cycle([load(path) for path in FILES])
    assert not cycle, " imports ".join(cycle)


def test_no_folder_is_crowded() -> None:
    assert not crowded_folders([load(path) for path in FILES])


def test_no_public_class_name_is_used_twice_in_one_layer() -> None:
    assert not homonyms([load(path) for path in FILES])


def test_every_package_says_what_belongs_there() -> None:
    """Packages of the large units: what belongs there, what does not, what it may import."""
    silent = [
        f"{unit}/{package}"
        for unit, rows in PACKAGES.items()
        for row in rows
        for package in row
        if (PACKAGE / unit / package).is_dir()
        and "may import"
        not in " ".join(
            (ast.get_docstring(load(f"{unit}/{package}/__init__.py").tree) or "").lower().split()
        )
    ]
    assert not silent


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
    ("package-order", "core/deploy/a.py", "from holdfast.core.request import flow\n", 1),
    ("package-order", "core/request/a.py", "from holdfast.core.health.fleet import Fleet\n", 1),
    ("package-order", "core/health/a.py", "def f():\n    from holdfast.core import view\n", 2),
    ("package-order", "core/plan/a.py", "from holdfast.core.deploy import rollout\n", 1),
    ("package-order", "core/types.py", "from holdfast.core.request.flow import Flow\n", 1),
    ("package-order", "core/imagined/a.py", "x = 1\n", 1),
    ("package-order", "gateway/http/a.py", "from holdfast.gateway.api import bodies\n", 1),
    ("package-order", "gateway/telemetry/a.py", "import holdfast.gateway.request.b\n", 1),
    ("package-order", "control/fleet/a.py", "from ..admin import b\n", 1),
    ("package-order", "control/view/a.py", "from holdfast.control.process import Control\n", 1),
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
    ("nouns", "control/view/knowing.py", "x = 1\n", 1),
    ("nouns", "gateway/detached.py", "x = 1\n", 1),
    ("nouns", "core/view/rows_joining.py", "x = 1\n", 1),
    ("no-class-names-as-data", "wire.py", "kinds = [kind.__name__ for kind in KINDS]\n", 1),
    ("no-class-names-as-data", "wire.py", "told = {'kind': type(fact).__name__}\n", 1),
    ("no-class-names-as-data", "wire.py", "def f(x):\n    return type(x).__qualname__\n", 2),
    ("no-class-names-as-data", "wire.py", "text = f'{type(frame).__name__}'\n", 1),
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
    ("package-order", "core/view/a.py", "from holdfast.core.diagnose import facts\n"),
    ("package-order", "core/messages.py", "from holdfast.core.types import State\n"),
    ("package-order", "core/request/routing/a.py", "from holdfast.core.request.pool import b\n"),
    ("package-order", "gateway/process.py", "from holdfast.gateway.request import a\n"),
    ("package-order", "control/fleet/a.py", "from holdfast.control.fetch import fetch\n"),
    ("package-order", "sim/a.py", "from holdfast.sim import b\n"),
    ("core-imports", "core/a.py", "from random import Random\nimport math, json\n"),
    ("core-imports", "core/a.py", "from holdfast.core.types import nanos\n"),
    ("core-imports", "core/a.py", "from collections import deque\n"),
    ("core-imports", "gateway/a.py", "import asyncio, time, uvloop\n"),
    ("core-calls", "core/a.py", "x.open()\nself.id(3)\nhashed(4)\n"),
    ("core-calls", "gateway/a.py", "open('x')\n"),
    ("function-length", "wire.py", FITTING_FUNCTION),
    ("line-length", "wire.py", f"# {'x' * (LINE_CHARACTERS_MAX - 2)}\n"),
    ("no-leftovers", "wire.py", "AUTODOC = 'MAXXXL'\n"),
    ("no-swallowing", "wire.py", "try:\n    f()\nexcept OSError:\n    dropped += 1\n"),
    ("no-swallowing", "wire.py", "try:\n    f()\nexcept OSError:\n    continue_with(None)\n"),
    ("no-print", "cli.py", "print('x')\n"),
    ("no-print", "wire.py", "console.print('x')\n"),
    ("clear-names", "core/commonest.py", "x = 1\n"),
    ("nouns", "core/request/routing/weighted.py", "x = 1\n"),
    ("nouns", "core/request/queue.py", "x = 1\n"),
    ("no-class-names-as-data", "wire.py", "if __name__ == '__main__':\n    f()\n"),
    (
        "no-class-names-as-data",
        "wire.py",
        "try:\n    f()\nexcept OSError as error:\n    told = type(error).__name__\n",
    ),
    ("no-class-names-as-data", "wire.py", "def f(why: OSError):\n    type(why).__name__\n"),
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


def test_a_cycle_that_only_type_checkers_see_is_a_cycle() -> None:
    cycle = import_cycle(
        [
            parse("gateway/a.py", "if TYPE_CHECKING:\n    from holdfast.gateway.b import B\n"),
            parse("gateway/b.py", "from holdfast.gateway.a import A\n"),
        ]
    )
    assert cycle == ["holdfast.gateway.a", "holdfast.gateway.b", "holdfast.gateway.a"]


def test_a_crowded_folder_is_refused() -> None:
    full = [parse(f"sim/m{i}.py", "") for i in range(FOLDER_MODULES_MAX)]
    package = parse("sim/__init__.py", "")
    assert crowded_folders([*full, package]) == []
    assert crowded_folders([*full, package, parse("sim/more.py", "")]) == ["sim has 21 modules"]


def test_a_class_name_is_refused_the_second_time_within_a_layer() -> None:
    first = parse("gateway/http/a.py", "class Host: ...\n")
    assert homonyms([first, parse("control/b.py", "class Host: ...\n")]) == [
        "Host is a class in control/b.py and in gateway/http/a.py"
    ]
    assert homonyms([first, parse("core/b.py", "class Host: ...\n")]) == []
    assert homonyms([first, parse("control/b.py", "class _Host: ...\n")]) == []
