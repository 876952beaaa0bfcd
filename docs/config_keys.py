"""What the code says about each key of a config file: type, default, and the words beside it."""

# ruff: noqa: INP001 - beside the script that uses it, not in a package

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from key_words import SAID_HERE
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import Replica
from holdfast.sim import scenario

RATES: Final = ("_per_s", "_gb_s")  # ends of names that end in _s and are no durations

# Sections whose fields are explained at the core type they build.
EXPLAINED_BY: Final[dict[type, type]] = {
    scenario.FaultSection: Fault,
    scenario.ModelSection: Replica,
}


# --- what stands beside a field in the source -----------------------------------------------------


@cache
def comments_beside(owner: type) -> dict[str, str]:
    """The trailing comment of every field or member in the body of a class."""
    source = textwrap.dedent(inspect.getsource(owner))
    on_line: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            on_line[token.start[0]] = token.string.lstrip("# ").strip()
    found: dict[str, str] = {}
    (body,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    for node in body.body:
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            said = " ".join(on_line[line] for line in lines if line in on_line)
            if said and not said.startswith("noqa"):
                found[target.id] = said.partition(" noqa")[0]
    return found


def meaning_of(owner: type, name: str, description: str = "") -> str:
    """What a field means: said here, beside it, or in its description. One of them must say it."""
    explained = EXPLAINED_BY.get(owner, owner)
    place = f"{owner.__name__}.{name}"
    said = (
        SAID_HERE.get(f"{owner.__module__.rpartition('.')[2]}.{place}")
        or SAID_HERE.get(place)
        or comments_beside(owner).get(name)
        or comments_beside(explained).get(name)
        or description
    )
    if not said:
        raise SystemExit(
            f"{owner.__module__}.{owner.__name__}.{name} has no meaning: write a comment beside it"
        )
    return _in_the_words_of_a_file(said)


def _in_the_words_of_a_file(said: str) -> str:
    """Python's names for things, as YAML and Markdown have them."""
    said = said.replace("``", "`")
    said = re.sub(r"\b(True|False|None)\b", lambda word: word[0].lower(), said)
    names = "|".join(kind.name for kind in FaultKind)
    return re.sub(rf"\b({names})\b(?=:| and)", lambda word: f"`{word[0].lower()}`", said)


# --- types and defaults, as people write them in a file -------------------------------------------


@dataclass(slots=True, frozen=True)
class Key:
    """One key of a section of the file."""

    name: str
    hint: Any
    timed: bool
    default: object  # MISSING: it must be given
    meaning: str


def keys_of(owner: type) -> Iterator[Key]:
    """The keys of a section or of a core config, in order."""
    if issubclass(owner, BaseModel):
        for name, info in owner.model_fields.items():
            default = info.get_default(call_default_factory=True)
            default = MISSING if info.is_required() else default
            timed = any(isinstance(mark, BeforeValidator) for mark in _marks(info))
            said = meaning_of(owner, name, _description(info))
            yield Key(info.alias or name, info.annotation, timed, default, said)
        return
    hints = get_type_hints(owner)
    for field in fields(owner):  # type: ignore[arg-type]
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        timed = field.name.endswith("_s") and not field.name.endswith(RATES)
        yield Key(field.name, hints[field.name], timed, default, meaning_of(owner, field.name))


def _marks(info: FieldInfo) -> Iterator[Any]:
    yield from info.metadata
    pending = [info.annotation]
    while pending:
        hint = pending.pop()
        if get_origin(hint) is Annotated:
            yield from hint.__metadata__  # type: ignore[union-attr]
        pending.extend(arg for arg in get_args(hint) if not isinstance(arg, str))


def _description(info: FieldInfo) -> str:
    inner = [mark.description for mark in _marks(info) if isinstance(mark, FieldInfo)]
    return next((said for said in (info.description, *inner) if said), "")


def inner_types(hint: Any) -> list[type]:
    """The sections and core configs that a type holds."""
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel)):
        return [hint]
    return [found for arg in get_args(hint) for found in inner_types(arg)]


def type_words(key: Key, places: Mapping[type, str]) -> str:
    """A type as one says it; sections link to their own heading."""
    return _words(key.hint, timed=key.timed, places=places)


def _words(hint: Any, *, timed: bool, places: Mapping[type, str]) -> str:
    if hint is float and timed:
        return "duration"
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " or ".join(f"`{choice}`" for choice in hint)
    if hint in places:
        return f"[`{places[hint]}`](#{anchor(places[hint])})"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marked = any(isinstance(mark, BeforeValidator) for mark in hint.__metadata__)
        return _words(arguments[0], timed=timed or marked, places=places)
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in {Union, UnionType}:
        kinds = [arg for arg in arguments if arg is not NoneType]
        return " or ".join(_words(kind, timed=timed, places=places) for kind in kinds)
    inner = _words(arguments[1 if origin is dict else 0], timed=timed, places=places)
    return f"mapping of name to {inner}" if origin is dict else f"list of {inner}"


_PLAIN: Final[dict[Any, str]] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    Any: "any",
}


def default_words(key: Key) -> str:
    """A default as it would stand in the file."""
    value = key.default
    if value is MISSING:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "as there"
    if is_dataclass(value) and not isinstance(value, type):
        changed = _changes(value)
        return f"`{{{changed}}}`" if changed else "as there"
    return f"`{_literal(value, timed=key.timed)}`"


def _changes(value: Any) -> str:
    own = {key.name: key for key in keys_of(type(value))}
    parts = []
    for name, key in own.items():
        held = getattr(value, name)
        if held != key.default:
            parts.append(f"{name}: {_literal(held, timed=key.timed)}")
    return ", ".join(parts)


def _literal(value: Any, *, timed: bool = False) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and timed:
        return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"
    if isinstance(value, int | float):
        return f"{value:f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{}" if not value else str(dict(value))
    if is_dataclass(value):
        return f"{{{_changes(value)}}}"
    return str(value) or '""'


def anchor(heading: str) -> str:
    """The name GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- tables ---------------------------------------------------------------------------------------


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(headings)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fields_table(owner: type, places: Mapping[type, str]) -> str:
    """The keys of one section."""
    rows = [
        (f"`{key.name}`", type_words(key, places), default_words(key), key.meaning)
        for key in keys_of(owner)
    ]
    return table(("key", "type", "default", "what it is, or why"), rows)


def reference(root: type) -> str:
    """Every section of a file, outermost first, each once."""
    places: dict[type, str] = {root: "top level"}
    order: list[type] = []

    def visit(owner: type, path: str) -> None:
        order.append(owner)
        for key in keys_of(owner):
            found = inner_types(key.hint)
            for inner in found:
                if inner not in places:
                    place = f"{path}{key.name}{_many(key.hint)}"
                    places[inner] = place if len(found) == 1 else f"{place} {_tag(inner)}"
                    visit(inner, f"{place}.")

    visit(root, "")
    parts = []
    for owner in order:
        heading = f"### `{places[owner]}`" if owner is not root else "### Top level"
        about = _in_the_words_of_a_file(first_paragraph(owner))
        parts.append(f"{heading}\n\n{about}\n\n{fields_table(owner, places)}")
    return "\n\n".join(parts)


def _tag(section: type) -> str:
    """How a section that is one of several is told from the others: by its first key."""
    first = next(keys_of(section))
    return f"({first.name}: {get_args(first.hint)[0]})"


def _many(hint: Any) -> str:
    """How a path shows that there are several."""
    origins = {get_origin(part) for part in (hint, *get_args(hint))}
    if dict in origins:
        return ".NAME"
    return "[]" if origins & {list, tuple} else ""


def first_paragraph(owner: object) -> str:
    """The docstring's first paragraph, on one line, as Markdown."""
    said = inspect.getdoc(owner) or ""
    return " ".join(said.split("\n\n")[0].split()).replace("``", "`")
