"""Nothing stands in ``core/plan`` for a caller that does not exist."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
MODULES = sorted(
    path for path in (SOURCE / "core" / "plan").glob("*.py") if path.stem != "__init__"
)


def names_used(tree: ast.AST) -> list[str]:
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    found += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return found + [
        a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names
    ]


def exported(tree: ast.Module) -> list[str]:
    (last,) = [node for node in tree.body if isinstance(node, ast.Assign)][-1:]
    return [element.value for element in last.value.elts]


@pytest.fixture(scope="module")
def used_elsewhere():
    found = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "core.plan" in text:
            found[path] = set(names_used(ast.parse(text)))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_name_has_a_caller(path, used_elsewhere):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    here = names_used(tree)
    others = set().union(*(names for file, names in used_elsewhere.items() if file != path))
    unused = [name for name in exported(tree) if name not in others and name not in here]
    assert unused == []


FORMULAS = [
    *("capacity", "coldstart", "failure_rates", "fleet_simulation", "memory", "overload"),
    *("parallelism", "queues", "redundancy", "regions"),
]


@pytest.mark.parametrize("stem", FORMULAS)
def test_a_module_of_formulas_says_what_it_assumes(stem):
    text = (SOURCE / "core" / "plan" / f"{stem}.py").read_text(encoding="utf-8").lower()
    assert "assum" in text or "independent" in text
    assert any(word in text for word in ("breaks", "leaves out", "rejected", "not in it", "beyond"))
