"""Translates errors of pydantic and the core into sentences about lines of a file, by one table.

Pydantic says where an error is in terms of types ("union member crash of item 0"), people think in
terms of the file; ``_locate`` walks the types to find what in the file is meant.
"""

import re
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from holdfast.config.document import Document, Where, shown
from holdfast.config.sections import Section, policy_section
from holdfast.core.near_names import did_you_mean
from holdfast.core.types import ConfigError

_MAPPING: Final = "must be a mapping (is {value})"
_LIST: Final = ("must be a list (is {value})", "use lines of '- item', or [a, b]")
_WHOLE: Final = ("must be a whole number (is {value})", "use {what:plain digits}{such_as}")
_CHOICE: Final = ("must be one of {expected} (is {value})", "{choice}")

# Every pydantic error that a section can meet: the problem, and the fix. In braces: the error's own
# context; {value}, what the file holds; {what:…}, the field's description, or the words after the
# colon; {such_as}, an example; {keys}, the nearest known key or all of them; {choice}, likewise.
TRANSLATIONS: Final[dict[str, tuple[str, str]]] = {
    "missing": ("is missing", "add {what:it}{such_as}"),
    "extra_forbidden": ("is not a known key", "{keys}"),
    "model_type": (_MAPPING, "indent its keys below it; {keys}"),
    "dict_type": (_MAPPING, "indent 'key: value' lines below it"),
    "list_type": _LIST,
    "tuple_type": _LIST,
    "frozen_set_type": _LIST,
    "too_short": ("has {actual_length} items", "use at least {min_length}"),
    "too_long": ("has {actual_length} items", "use at most {max_length}"),
    "greater_than": ("must be greater than {gt} (is {value})", "use {what:a number} above {gt}"),
    "greater_than_equal": (
        "must be at least {ge} (is {value})",
        "use {what:a number} from {ge} up",
    ),
    "less_than": ("must be less than {lt} (is {value})", "use {what:a number} below {lt}"),
    "less_than_equal": ("must be at most {le} (is {value})", "use {what:a number} up to {le}"),
    "multiple_of": ("is not a multiple of {multiple_of} (is {value})", "use a multiple of it"),
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "float_type": ("must be a number (is {value})", "use {what:a plain decimal}{such_as}"),
    "duration": (
        "must be a duration (is {value})",
        "use a number of seconds, or text such as 250ms, 30s, 5m, 1h",
    ),
    "duration_too_long": ("is longer than thirty years (is {value})", "check the unit"),
    "bool_type": ("must be true or false (is {value})", "write true or false, without quotes"),
    "string_type": ("must be text (is {value})", "use {what:text}, in quotes if it is a number"),
    "string_too_short": ("is too short (is {value})", "use {min_length} characters or more"),
    "string_too_long": ("is too long (is {value})", "use at most {max_length} characters"),
    "string_pattern_mismatch": ("does not fit (is {value})", "use text that matches {pattern}"),
    "enum": _CHOICE,
    "literal_error": _CHOICE,
    "union_tag_invalid": _CHOICE,
    "union_tag_not_found": ("lacks the key {discriminator}", "add it: it decides the other keys"),
    "none_required": ("must be empty (is {value})", "remove the value"),
    "value_error": ("{error}", "change the value"),
    "assertion_error": ("{error}", "change the value"),
}
_UNKNOWN: Final = ("is refused: {message} (is {value})", "change the value")


class _Or(str):
    """Text that gives way, when empty, to what the format spec says."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self) or spec


def translate(document: Document, model: type[Section], detail: ErrorDetails) -> None:
    """Add one of pydantic's errors to the problems of the document."""
    spot = _locate(model, detail["loc"])
    context = {key: _plainly(value) for key, value in detail.get("ctx", {}).items()}
    cause = context.get("error")
    if isinstance(cause, ConfigError):
        _translate_core(document, spot, cause)
        return
    context["error"] = " ".join(str(cause).split())  # one problem is one line
    where, value = spot.where, detail["input"]
    if detail["type"] == "union_tag_invalid":
        where, value = (*where, context["discriminator"].strip("'")), context["tag"]
        context["expected"] = context["expected_tags"]
    sections = spot.here if detail["type"] == "model_type" else spot.holders
    known = [key for section in sections for key in _keys(section)]
    options = re.findall(r"'([^']*)'", str(context.get("expected", "")))
    words = context | {
        "value": shown(value),
        "message": detail["msg"],
        "what": _Or((spot.field and spot.field.description) or ""),
        "such_as": _such_as(spot.field),
        "keys": _nearest(str(where[-1]) if where else "", known, "known keys are"),
        "choice": _nearest(str(value), options, "use one of"),
    }
    problem, fix = TRANSLATIONS.get(detail["type"], _UNKNOWN)
    document.refuse(where, problem.format_map(words), fix.format_map(words))


@dataclass(slots=True)
class _Spot:
    """Where in a tree of sections an error happened."""

    where: Where
    here: list[Any]  # the types that the value may have
    holders: list[Any]  # and those of the value around it
    field: FieldInfo | None = None


def _translate_core(document: Document, spot: _Spot, error: ConfigError) -> None:
    """A core config refused its values: its first word names the policy, the spot the place."""
    names = re.findall(r"[^.\[\]]+", error.field)
    known = {key for section in spot.here for key in _keys(section)}
    tail = next((tail for tail in (names[1:], names) if tail and tail[0] in known), None)
    if tail is None:
        document.refuse(spot.where, f"{error.field} {error.problem}", error.fix)
        return
    where = spot.where
    for name in tail:
        is_index = name.isdecimal() and not document.holds((*where, name))
        where = (*where, int(name) if is_index else name)
    document.refuse(where, error.problem, error.fix)


def _locate(model: type[Section], location: tuple[int | str, ...]) -> _Spot:
    """Follow pydantic's location; in it, the name of the member tried follows every union."""
    spot = _Spot((), [model], [])
    for part in location:
        if part == "[key]":  # the error is in the key itself
            break
        if len(spot.here) > 1:
            spot.here = [kind for kind in spot.here if _is_called(kind, part)][:1]
            continue
        spot.holders, spot.where = spot.here, (*spot.where, part)
        spot.here, spot.field = _into(spot.here[0], part) if spot.here else ([], None)
    return spot


def _into(kind: Any, part: int | str) -> tuple[list[Any], FieldInfo | None]:
    """What lies under a key or an index."""
    if _is_section(kind):
        field = _keys(kind).get(str(part))
        return ([], None) if field is None else (_members(field.annotation), field)
    inner = [arg for arg in get_args(kind) if arg is not Ellipsis]
    if isinstance(part, int) and part < len(inner):  # the pairs and triples among the lists
        return _members(inner[part]), None
    return (_members(inner[-1]), None) if inner else ([], None)


def _members(hint: Any) -> list[Any]:
    """The types that a hint allows, without None; core configs as the sections they are read by."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _members(get_args(hint)[0])
    if origin in {Union, UnionType}:
        return [kind for arg in get_args(hint) if arg is not NoneType for kind in _members(arg)]
    if isinstance(hint, type) and is_dataclass(hint):
        return [policy_section(hint)]
    return [hint]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _is_called(kind: Any, label: int | str) -> bool:
    """Whether pydantic calls this member of a union so: by its tag, or by its name."""
    tags = [tag for field in _keys(kind).values() for tag in get_args(field.annotation)]
    return label in tags or label == getattr(kind, "__name__", None)


def _keys(kind: Any) -> dict[str, FieldInfo]:
    """The keys that a section takes, as they are written in the file."""
    if not _is_section(kind):
        return {}
    return {field.alias or name: field for name, field in kind.model_fields.items()}


def _plainly(value: Any) -> Any:
    """Limits come as floats; 0.0 reads better as 0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _such_as(field: FieldInfo | None) -> str:
    """An example, if the field has one: declared, or its default."""
    if field is None:
        return ""
    example = next(iter(field.examples or ()), field.default)
    if isinstance(example, bool) or not isinstance(example, int | float | str):
        return ""
    return f", such as {example}" if example != "" else ""


def _nearest(word: str, known: list[str], otherwise: str) -> str:
    listed = f"{otherwise} {', '.join(known)}" if known else "remove it"
    return did_you_mean(word, known) or listed


__all__ = ["TRANSLATIONS", "translate"]
