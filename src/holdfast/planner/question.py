"""Reads planning questions: the fields of each plan, their units, and what is still missing.

One list of fields per plan makes the options of the command, the form of the page and the
parameters of the admin port, so that all three ask the same question. Values come as texts with
their units (``24GB``, ``5m``, ``7B``) or as numbers in base units (bytes, seconds).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, Final

from holdfast.core.types import ConfigError
from holdfast.planner.answer import PlanAnswer

_DIGITS_MAX: Final = 60  # characters of a number with its unit
TEXT_MAX: Final = 300  # characters of a value that is a text


class FieldKind(StrEnum):
    """What a value of a field is."""

    COUNT = "count"  # a whole number
    NUMBER = "number"
    DURATION = "duration"  # seconds, or 90s, 5m, 2h, 30d
    SIZE = "size"  # bytes, or 640MB, 24GB, 16GiB
    QUANTITY = "quantity"  # a number, or 880M, 7B
    TEXT = "text"
    CHOICE = "choice"
    FLAG = "flag"
    FILE = "file"  # a path on the machine of whoever asks; pages and programs have none


_UNITS: Final[dict[FieldKind, tuple[dict[str, float], str]]] = {
    FieldKind.DURATION: (
        {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0},
        "use seconds, or a time such as 90s, 5m, 2h or 30d",
    ),
    FieldKind.SIZE: (
        {
            "": 1.0,
            "b": 1.0,
            "kb": 1e3,
            "mb": 1e6,
            "gb": 1e9,
            "tb": 1e12,
            "pb": 1e15,
            "kib": 2.0**10,
            "mib": 2.0**20,
            "gib": 2.0**30,
            "tib": 2.0**40,
        },
        "use bytes, or a size such as 640MB, 24GB or 16GiB",
    ),
    FieldKind.QUANTITY: (
        {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12},
        "use a number such as 880M or 7B",
    ),
    FieldKind.NUMBER: ({"": 1.0}, "use a number"),
}
_NUMBER: Final = re.compile(
    r"\s*([+-]?[0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|[+-]?\.[0-9]+)\s*([a-z]*)\s*"
)
_TRUE: Final = frozenset(("1", "true", "yes", "on"))
_FALSE: Final = frozenset(("", "0", "false", "no", "off"))


@dataclass(slots=True, frozen=True)
class PlanField:
    """One value that a plan asks for."""

    name: str
    kind: FieldKind
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    group: str = ""  # heading on the page

    @property
    def option(self) -> str:
        """How a command spells the field."""
        return "--" + self.name.replace("_", "-")

    def read(self, given: Any) -> Any:
        """The value of a text or a number; raises ``ConfigError`` that names the field."""
        if self.kind is FieldKind.FLAG:
            return self._flag(given)
        if self.kind in (FieldKind.TEXT, FieldKind.CHOICE, FieldKind.FILE):
            return self._word(given)
        value = self._number(given)
        if self.kind is FieldKind.COUNT:
            if value != int(value):
                raise ConfigError(self.name, f"is {value:g}", "use a whole number")
            value = int(value)
        return self._bounded(value)

    def _word(self, given: Any) -> str:
        if not isinstance(given, str) or len(given) > TEXT_MAX:
            raise ConfigError(self.name, "is no text", f"use up to {TEXT_MAX} characters")
        if self.choices and given not in self.choices:
            fix = f"use one of {', '.join(self.choices)}"
            raise ConfigError(self.name, f"is {given!r}"[:80], fix)
        return given

    def _flag(self, given: Any) -> bool:
        if isinstance(given, bool):
            return given
        word = str(given).strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise ConfigError(self.name, f"is {given!r}"[:80], "use true or false")

    def _number(self, given: Any) -> float:
        units, fix = _UNITS.get(self.kind, _UNITS[FieldKind.NUMBER])
        if isinstance(given, int | float) and not isinstance(given, bool):
            value = float(given)
        else:
            text = str(given).lower()
            found = _NUMBER.fullmatch(text) if len(text) <= _DIGITS_MAX else None
            if found is None or found[2] not in units:
                raise ConfigError(self.name, f"is {given!r}"[:80], fix)
            value = float(found[1].replace("_", "").replace(",", "")) * units[found[2]]
        if not isfinite(value):
            raise ConfigError(self.name, f"is {given!r}"[:80], "use a finite number")
        return value

    def _bounded(self, value: Any) -> Any:
        low = self.least is not None and value < self.least
        high = self.most is not None and value > self.most
        if low or high:
            fix = f"use {self.least:g} or more"
            if self.most is not None:
                fix = f"use {self.least if self.least is not None else 0:g} to {self.most:g}"
            raise ConfigError(self.name, f"is {value:g}", fix)
        return value

    def to_dict(self) -> dict[str, Any]:
        """The field as plain data, from which a page makes its form."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "help": self.help,
            "default": self.default,
            "choices": list(self.choices),
            "least": self.least,
            "most": self.most,
            "group": self.group,
        }


class UnderspecifiedError(Exception):
    """A question lacks values without which no plan can be made; names their fields."""

    def __init__(self, fields: Sequence[PlanField]) -> None:
        self.fields = tuple(fields)
        super().__init__(", ".join(one.name for one in fields))


def _as_it_is(field: str) -> str:
    return field


@dataclass(slots=True, frozen=True)
class PlanKind:
    """One kind of plan: its fields, and the functions that complete and answer a question."""

    name: str
    title: str
    fields: tuple[PlanField, ...]
    answer: Callable[[Mapping[str, Any]], PlanAnswer]
    missing: Callable[[Mapping[str, Any]], Sequence[str]]  # names of fields that must be given
    spelled: Callable[[str], str] = _as_it_is  # a field of the core as a field of this plan

    def field(self, name: str) -> PlanField:
        """The field of this name; raises ``ConfigError`` where there is none."""
        for one in self.fields:
            if one.name == name:
                return one
        fix = f"use some of {', '.join(one.name for one in self.fields)}"
        raise ConfigError(name[:80], f"is no value of a {self.name} plan", fix)

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All values of a question, with the defaults of those that were not given.

        Raises ``UnderspecifiedError`` where values are missing, ``ConfigError`` for a bad one.
        """
        values = {one.name: one.default for one in self.fields}
        for name, value in given.items():
            if value is not None and value != "":
                values[name] = self.field(name).read(value)
        lacking = [self.field(name) for name in self.missing(values)]
        if lacking:
            raise UnderspecifiedError(lacking)
        return values

    def ask(self, given: Mapping[str, Any]) -> PlanAnswer:
        """Answer a question; errors name the fields of this plan."""
        values = self.read(given)
        try:
            return self.answer(values)
        except ConfigError as error:
            name = self.spelled(error.field)
            known = {one.name for one in self.fields}
            last = name.rpartition(".")[2]
            field = name if name in known else last if last in known else error.field
            raise ConfigError(field, error.problem, error.fix) from error


def needs(*names: str) -> Callable[[Mapping[str, Any]], Sequence[str]]:
    """A check for fields that must all be given."""

    def missing(values: Mapping[str, Any]) -> Sequence[str]:
        return [name for name in names if values[name] is None]

    return missing


__all__ = ["FieldKind", "PlanField", "PlanKind", "UnderspecifiedError", "needs"]
