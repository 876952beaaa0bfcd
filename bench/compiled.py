"""Compile the hot part of the package to machine code: an option, for many or long simulations.

    python bench/compiled.py [--if-possible]    build into build/compiled unless it is there
    python bench/compiled.py --check            only say whether it is, and of these sources

mypyc, which comes with mypy, turns typed modules into C; a C compiler makes shared objects of it.
They lie in a copy of the package, beside the sources they were made of; that copy is used where
``PYTHONPATH=build/compiled`` is set. Nothing in src/ is touched, and nothing needs any of this.

Compiled is what runs for every event of a simulation. Left out: what runs once or never there, and
what mypyc cannot take (subclasses of other built-in errors than a few, as in sim/invariants.py).
"""

import argparse
import ast
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from hashlib import blake2b
from os import cpu_count
from pathlib import Path
from time import monotonic
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "src" / "holdfast"
OUTPUT: Final = ROOT / "build" / "compiled"
WORK: Final = ROOT / "build" / "c"  # what lies between the sources and the shared objects
STAMP: Final = OUTPUT / "digest.txt"  # of the sources that were compiled; written last
HOW: Final = "run `make compiled`"

CORE_LEFT_OUT: Final = {
    "__init__",  # a docstring, or a table of names
    "faults",  # read when a fault begins or ends
    "fleet_config",  # read once
    "flow_config",  # read once
}
SIM_COMPILED: Final = (
    "canaries",
    "clock",
    "engine",
    "engine_parameters",
    "memory/prefix_cache",
    "request_record",
    "results",
    "hosts/placement",
    "hosts/shared_host",
    "hosts/wander",
    "simulated_replica",
    "workload",
    "world",
)

# A fused multiply-add rounds once where Python rounds twice: a seed would tell another story.
SAME_FLOATS: Final = "-ffp-contract=off"
OPTIMISE: Final = "2"  # 1 loses two per cent; link-time optimisation on top gains nothing


def modules(package: Path) -> list[Path]:
    """What to compile, in one order everywhere."""
    roots = [package / "core" / "request" / "flow.py"]
    roots += [package / "sim" / f"{name}.py" for name in SIM_COMPILED]
    found: set[Path] = set()
    while roots:
        path = roots.pop()
        if path not in found:
            found.add(path)
            roots += [each for each in _imported(path, package) if package / "core" in each.parents]
    return sorted(path for path in found if path.stem not in CORE_LEFT_OUT)


def _imported(path: Path, package: Path) -> Iterator[Path]:
    """Modules of the package that a module names in an import."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                place = package.parent.joinpath(*name.split("."))
                files = (place.with_suffix(".py"), place / "__init__.py")
                yield from (file for file in files if file.exists())


def digest(package: Path) -> str:
    """A name for these sources, this recipe and this Python."""
    state = blake2b(digest_size=16)
    state.update(f"{sys.version}\n{sysconfig.get_config_var('SOABI')}\n".encode())
    state.update(Path(__file__).read_bytes())
    for path in sorted(package.rglob("*.py")):
        state.update(f"\n{path.relative_to(package).as_posix()}\n".encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def stale() -> str:
    """Why the compiled package cannot stand for the sources; empty if it can."""
    if not STAMP.exists():
        return f"not built; {HOW}"
    if STAMP.read_text(encoding="utf-8") != digest(SOURCES):
        return f"built from other sources, or for another Python; {HOW}"
    return ""


def obstacle() -> str:
    """What is missing here to compile anything; empty if nothing is."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "")
    if not compiler or shutil.which(compiler[0]) is None:
        return f"no C compiler ({compiler[0] if compiler else 'none known to this Python'})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python.h: the development files of this Python are not installed"
    return ""


# --- dataclasses ----------------------------------------------------------------------------------
# Of a dataclass mypyc compiles the fields and the methods; what the decorator adds stays as it is.
# A constructor run by the interpreter is dear: a fifth of the time of a run. Copying and pickling
# begin with an instance that no constructor has seen, which a compiled class refuses. And all but
# the plainest annotations are forgotten, of which config sections are made. So the copy of the
# package has all three written out.


def spelled_out(text: str) -> str:
    """The module with its dataclasses' constructors, ways to be copied, and annotations as text."""
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.ClassDef):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            if any(decorator.startswith("dataclass") for decorator in decorators):
                frozen = any("frozen=True" in decorator for decorator in decorators)
                lines[node.end_lineno : node.end_lineno] = _methods(node, frozen=frozen)
                hints = {name: hint for name, hint, _ in _fields(node)}
                lines.append(f"getattr({node.name}, '__annotations__').update({hints!r})")
    return "\n".join(lines) + "\n"


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, ast.expr | None]]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id, ast.unparse(line.annotation), line.value


def _methods(node: ast.ClassDef, *, frozen: bool) -> Iterator[str]:
    parameters = ["self"]
    body: list[str] = []
    for name, hint, default in _fields(node):
        given = name
        if default is None:
            parameters.append(f"{name}: {hint}")
        elif isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
            told = {each.arg: ast.unparse(each.value) for each in default.keywords}
            if "default" in told:
                parameters.append(f"{name}: {hint} = {told['default']}")
            else:
                parameters.append(f"{name}: {hint} | None = None")
                given = f"({told['default_factory']})() if {name} is None else {name}"
        else:
            parameters.append(f"{name}: {hint} = {ast.unparse(default)}")
        body.append(f"self.{name} = {given}{'  # type: ignore[misc]' if frozen else ''}")
    if any(
        isinstance(each, ast.FunctionDef) and each.name == "__post_init__" for each in node.body
    ):
        body.append("self.__post_init__()")
    yield ""
    yield f"    def __init__({', '.join(parameters)}) -> None:"
    yield from (f"        {line}" for line in body or ["pass"])
    values = "".join(f"self.{name}, " for name, _, _ in _fields(node))
    yield ""
    yield "    def __reduce__(self) -> tuple[object, object]:"
    yield f"        return {node.name}, ({values})"  # __post_init__ only ever checks


# --- the build ------------------------------------------------------------------------------------


def build() -> None:
    """Copy the package, translate its hot modules to C, compile them into the copy."""
    from mypyc.build import mypycify  # noqa: PLC0415 - needs setuptools; only a build does

    for folder in (OUTPUT, WORK):
        shutil.rmtree(folder, ignore_errors=True)
    package = OUTPUT / "holdfast"
    shutil.copytree(SOURCES, package, ignore=shutil.ignore_patterns("__pycache__"))
    name = digest(package)  # of what was copied, should somebody be writing to the sources
    chosen = modules(package)
    for path in chosen:
        path.write_text(spelled_out(path.read_text(encoding="utf-8")), encoding="utf-8")
    with chdir(OUTPUT):  # tracebacks name files as mypyc is told of them
        told = [str(path.relative_to(OUTPUT)) for path in chosen]
        options = ["--config-file=", f"--cache-dir={WORK / 'cache'}"]
        extensions = mypycify(
            [*options, *told],
            opt_level=OPTIMISE,
            debug_level="0",
            multi_file=True,
            target_dir=str(WORK),
        )
    jobs = [(extension, source) for extension in extensions for source in extension.sources]
    with ThreadPoolExecutor(cpu_count()) as pool:  # the threads only wait for the compiler
        objects = list(pool.map(lambda job: _compile(*job), jobs))
    for extension in extensions:
        parts = [part for part, job in zip(objects, jobs, strict=True) if job[0] is extension]
        _link(parts, OUTPUT / Path(*extension.name.split(".")))
    STAMP.write_text(name, encoding="utf-8")


def _compile(extension: Any, source: str) -> str:
    target = source.removesuffix(".c") + ".o"
    flags = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
    folders = [*extension.include_dirs, sysconfig.get_path("include")]
    command = shlex.split(sysconfig.get_config_var("CC"))
    command += ["-c", "-fPIC", "-fwrapv", "-DNDEBUG", *flags, SAME_FLOATS]
    command += [f"-I{folder}" for folder in folders]
    subprocess.run([*command, source, "-o", target], check=True)
    return target


def _link(parts: list[str], module: Path) -> None:
    command = shlex.split(sysconfig.get_config_var("LDSHARED"))
    target = f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([*command, *parts, "-o", target], check=True)


def main() -> None:
    """Build, or say what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="build nothing, exit with 1 if stale")
    parser.add_argument("--if-possible", action="store_true", help="no compiler is no failure")
    given = parser.parse_args()
    why = stale()
    if not why:
        print("build/compiled is up to date")
        return
    if given.check:
        sys.exit(f"build/compiled: {why}")
    missing = obstacle()
    if missing:
        message = f"nothing compiled: {missing}; everything works without"
        if not given.if_possible:
            sys.exit(message)
        print(message)
        return
    began = monotonic()
    print(f"compiling {len(modules(SOURCES))} modules into build/compiled; this takes minutes")
    build()
    print(f"compiled in {monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
