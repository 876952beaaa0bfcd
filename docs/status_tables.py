"""What the docs say of the package as a whole: its layers, and what is here and what is not yet."""

# ruff: noqa: INP001 - beside the generator, not a package

import ast
from pathlib import Path
from typing import Any, Final

from config_keys import table

from holdfast.config.chaos import FAULTS
from holdfast.core.failure import Cause
from holdfast.core.request.routing import POLICIES
from holdfast.engines import DIALECTS

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "holdfast"

# Adapters by the module or folder that is their home; a missing one stops the generator.
SOURCES: Final = {
    "sources/local.py": "this host",
    "agent/__init__.py": "agents on other hosts",
    "sources/aws/__init__.py": "AWS",
    "sources/kubernetes/__init__.py": "Kubernetes",
    "sources/ray/__init__.py": "Ray",
}
EXPORTERS: Final = {
    "control/gateways/metrics.py": "Prometheus",
    "exporters/cloudwatch.py": "CloudWatch",
    "exporters/traces.py": "OpenTelemetry traces",
}


def rulebook(name: str) -> Any:
    """A table that the tidy test enforces, read from that test."""
    tree = ast.parse((ROOT / "tests" / "test_tidy.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", None) == name:
            return ast.literal_eval(node.value) if node.value is not None else None
    raise SystemExit(f"tests/test_tidy.py has no table {name}")


def layers_table() -> str:
    """The layers, highest first, with the packages of each and what each is for."""
    rows = []
    for height, units in reversed(list(enumerate(rulebook("LAYERS")))):
        present = [unit for unit in units if _home(unit) is not None]
        rows += [(str(height), f"`{unit}`", _first_sentence(unit)) for unit in present]
    return table(("layer", "part", "what it is for"), rows)


def packages_table(unit: str) -> str:
    """The packages inside one part, highest first: each may import only those below it."""
    rows = []
    for row in reversed(rulebook("PACKAGES")[unit]):
        for name in row:
            place = f"{unit}/{name}"
            rows.append((f"`{place}`", _first_sentence(place)))
    return table(("package or module", "what it is for"), rows)


def _home(place: str) -> Path | None:
    files = (PACKAGE / f"{place}.py", PACKAGE / place / "__init__.py")
    return next((file for file in files if file.exists()), None)


def _first_sentence(place: str) -> str:
    home = _home(place)
    if home is None:
        raise SystemExit(f"there is no {place}")
    said = ast.get_docstring(ast.parse(home.read_text(encoding="utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split()).replace("``", "`").rstrip(".")


def status() -> str:
    """What is here, counted from the code."""
    missing = [place for place in (*SOURCES, *EXPORTERS) if not (PACKAGE / place).exists()]
    if missing:
        raise SystemExit(f"the status is wrong about {', '.join(missing)}")
    here = (
        "the decision core, and the simulator that runs it; the gateway; control",
        f"engines: {_listed(list(DIALECTS))}; {len(POLICIES)} routing policies",
        "launching, rolling updates and autoscaling on one host, on Ray and on Kubernetes",
        "durable queues and consumers of yours, OpenAI's files and batches, idempotency keys",
        "a second control that takes over; manifests for Kubernetes, Envoy and Istio",
        f"readings of {_listed(list(SOURCES.values()))}, joined in terminal, web and JSON",
        f"incidents of {len(Cause)} causes; {len(FAULTS)} faults to inject",
        f"figures for {_listed(list(EXPORTERS.values()))}; the planner, the benchmark and the twin",
    )
    lines = "\n".join(f"- {line}" for line in here)
    tested = "What met the real thing and what did not: [limits](docs/limits.md)."
    return f"Alpha. Here now:\n\n{lines}\n\n{tested}"


def _listed(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}"
