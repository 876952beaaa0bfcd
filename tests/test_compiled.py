"""The compiled package must tell the same story; where it was not built, only its recipe is tested.

The recipe is ``bench/compiled.py``. It needs a C compiler and takes minutes, so no test builds.
"""

import ast
import inspect
import os
import subprocess
import sys
from dataclasses import is_dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

import pytest

from holdfast.sim.fuzz import random_experiment
from holdfast.sim.run import run_experiment

ROOT: Final = Path(__file__).resolve().parent.parent
SEEDS: Final = (0, 7, 41)  # of the fuzzer: random policies under random faults

_TELL: Final = """
import pickle, sys
import holdfast.core.request.flow, holdfast.sim.world
from holdfast.core.messages import Left
from holdfast.core.request.retry import RetryConfig
from holdfast.sim.fuzz import random_experiment
from holdfast.sim.run import run_experiment

for module in (holdfast.core.request.flow, holdfast.sim.world):
    assert not module.__file__.endswith(".py"), f"{module.__file__} is not compiled"
for value in (RetryConfig(attempts=3), Left("r1")):
    assert pickle.loads(pickle.dumps(value)) == value, value
for seed in sys.argv[1:]:
    print(run_experiment(random_experiment(int(seed)), int(seed), audit=True, log=True)["digest"])
"""


@pytest.fixture(scope="module")
def recipe():
    spec = spec_from_file_location("compiled", ROOT / "bench" / "compiled.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the build ------------------------------------------------------------------------------------


def test_the_same_seed_tells_the_same_story_compiled_and_interpreted(recipe):
    stale = recipe.stale()
    if stale:
        pytest.skip(f"build/compiled: {stale}")
    command = [sys.executable, "-c", _TELL, *map(str, SEEDS)]
    surroundings = {**os.environ, "PYTHONPATH": str(recipe.OUTPUT)}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours = [run_experiment(random_experiment(seed), seed, log=True)["digest"] for seed in SEEDS]
    assert done.stdout.split() == ours


# --- whether it is up to date ---------------------------------------------------------------------


@pytest.fixture
def elsewhere(recipe, tmp_path, monkeypatch):
    """The recipe, with sources and output of its own."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.py").write_text("x = 1\n")
    monkeypatch.setattr(recipe, "SOURCES", tmp_path / "src")
    monkeypatch.setattr(recipe, "STAMP", tmp_path / "digest.txt")
    return recipe


def test_a_build_that_is_not_there_is_stale_and_says_what_to_do(elsewhere):
    assert elsewhere.stale() == "not built; run `make compiled`"


def test_a_build_of_these_sources_is_up_to_date(elsewhere):
    elsewhere.STAMP.write_text(elsewhere.digest(elsewhere.SOURCES))
    assert elsewhere.stale() == ""


@pytest.mark.parametrize("change", ["edit", "add", "rename"])
def test_a_build_is_stale_once_its_sources_change(elsewhere, change):
    elsewhere.STAMP.write_text(elsewhere.digest(elsewhere.SOURCES))
    source = elsewhere.SOURCES / "one.py"
    if change == "edit":
        source.write_text("x = 2\n")
    elif change == "add":
        (elsewhere.SOURCES / "two.py").write_text("")
    else:
        source.rename(elsewhere.SOURCES / "three.py")
    assert "built from other sources" in elsewhere.stale()


def test_without_a_compiler_the_obstacle_is_named(recipe, monkeypatch):
    monkeypatch.setattr(recipe.shutil, "which", lambda _name: None)
    assert "no C compiler" in recipe.obstacle()


# --- what is compiled -----------------------------------------------------------------------------


def test_every_module_to_be_compiled_exists(recipe):
    chosen = recipe.modules(recipe.SOURCES)
    assert all(path.is_file() for path in chosen)
    assert len(set(chosen)) == len(chosen)
    assert recipe.SOURCES / "core" / "request" / "flow.py" in chosen


def test_every_module_left_out_exists(recipe):
    core = {path.stem for path in (recipe.SOURCES / "core").rglob("*.py")}
    assert core >= recipe.CORE_LEFT_OUT


def generic_dataclasses(source: str) -> list[str]:
    """Generic dataclasses: Python puts a ``__dict__`` of its own there, which mypyc refuses."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    bases = {node.name: " ".join(map(ast.unparse, node.bases)) for node in classes}
    marks = {node.name: " ".join(map(ast.unparse, node.decorator_list)) for node in classes}
    return [name for name in bases if "Generic[" in bases[name] and "dataclass" in marks[name]]


def test_no_compiled_module_has_a_generic_dataclass(recipe):
    planted = "@dataclass(slots=True)\nclass Rule(Generic[T]):\n    x: int\n"
    assert generic_dataclasses(planted) == ["Rule"]
    chosen = recipe.modules(recipe.SOURCES)
    found = {path.name: generic_dataclasses(path.read_text(encoding="utf-8")) for path in chosen}
    assert {name: names for name, names in found.items() if names} == {}


# --- dataclasses written out ----------------------------------------------------------------------

_PLAIN: Final = '''
from dataclasses import dataclass, field

@dataclass(slots=True)
class Point:
    """A point."""

    x: int
    y: float = 2.0
    seen: list[int] = field(default_factory=lambda: [1])

    def __post_init__(self) -> None:
        self.x += 1

@dataclass
class Nothing:
    """No fields."""

class Other:
    pass
'''


def run(text: str) -> dict:
    space: dict = {"__name__": "plain"}
    exec(text, space)
    return space


def test_a_constructor_written_out_does_what_the_generated_one_does(recipe):
    plain, spelled = run(_PLAIN), run(recipe.spelled_out(_PLAIN))
    assert "def __init__(self, x: int, y: float = 2.0" in recipe.spelled_out(_PLAIN)
    for given in ({"x": 1}, {"x": 1, "y": 3.0}, {"x": 1, "seen": []}):
        ours, theirs = spelled["Point"](**given), plain["Point"](**given)
        assert repr(ours) == repr(theirs)
    assert spelled["Point"](1).seen is not spelled["Point"](1).seen
    assert repr(spelled["Nothing"]()) == repr(plain["Nothing"]())


def test_annotations_are_kept_as_text(recipe):
    spelled = run(recipe.spelled_out(_PLAIN))
    hints = {"x": "int", "y": "float", "seen": "list[int]"}
    assert spelled["Point"].__annotations__ == hints


def test_a_copy_is_built_by_the_constructor(recipe):
    spelled = run(recipe.spelled_out(_PLAIN))
    point = spelled["Point"](1, 3.0, [2])
    assert point.__reduce__() == (spelled["Point"], (2, 3.0, [2]))


def test_no_constant_of_a_compiled_module_is_a_final_tuple_of_floats_alone(recipe):
    """mypyc 2 takes such a tuple for one that was never set; ``Final[tuple[float, ...]]`` works."""
    for path in recipe.modules(recipe.SOURCES):
        for line in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Tuple):
                floats = [isinstance(getattr(x, "value", 0), float) for x in line.value.elts]
                bare = ast.unparse(line.annotation) == "Final"
                assert not (bare and floats and all(floats)), path


def test_what_is_no_dataclass_stays_as_it_is(recipe):
    text = "class Other:\n    x: int = 1\n"
    assert recipe.spelled_out(text) == text


def test_every_constructor_written_out_takes_what_the_generated_one_takes(recipe):
    """A form of field the recipe does not know must fail here, not after minutes of building."""
    count = 0
    for path in recipe.modules(recipe.SOURCES):
        dotted = ".".join(path.relative_to(recipe.SOURCES.parent).with_suffix("").parts)
        module = import_module(dotted)
        for node in ast.parse(recipe.spelled_out(path.read_text(encoding="utf-8"))).body:
            if isinstance(node, ast.ClassDef) and is_dataclass(getattr(module, node.name)):
                (made,) = (each for each in node.body if getattr(each, "name", "") == "__init__")
                taken = inspect.signature(getattr(module, node.name)).parameters
                assert [each.arg for each in made.args.args] == ["self", *taken], node.name
                count += 1
    assert count > 40
