"""Parses label selectors in the syntax of ``kubectl -l`` into tests for labels.

An API server could choose itself, and does where it may. But what is reserved on a host is the sum
over *all* pods on it: where that is wanted all of them are read, and chosen here. A second list for
those of interest would cost as much as the first.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from holdfast.core.types import ConfigError, require

Labels = Mapping[str, str]
Selector = Callable[[Labels], bool]

TERMS_MAX: Final = 32
FIX: Final = "write label=value, label!=value, label in (a, b), label notin (a), label or !label"

_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,250}[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
_TERM: Final = re.compile(
    rf"\s*(?:(?P<not>!)\s*(?P<absent>{_NAME})"
    rf"|(?P<one>{_NAME})\s*(?P<sign>==?|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<many>{_NAME})\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<present>{_NAME}))\s*(?:,|$)"
)
_IS_VALUE: Final = re.compile(_VALUE)


@lru_cache(maxsize=256)
def parse_selector(text: str) -> Selector:
    """Parse a label selector (``kubectl -l`` syntax) into a function: labels to True or False.

    All terms must hold; an empty text fits all labels. Raises ``ConfigError`` if invalid.
    """
    terms: list[Selector] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None:
            raise ConfigError("selector", f"cannot be read at {text[at : at + 40]!r}", FIX)
        terms.append(_term(match))
        at = match.end()
    require(not text.endswith(","), "selector", "ends with a comma", FIX)
    require(len(terms) <= TERMS_MAX, "selector", f"has more than {TERMS_MAX} terms", FIX)
    return lambda labels: all(term(labels) for term in terms)


def _term(match: re.Match[str]) -> Selector:
    if match["not"]:
        absent = match["absent"]
        return lambda labels: absent not in labels
    if match["one"]:
        name, value = match["one"], match["value"]
        if match["sign"] == "!=":
            return lambda labels: labels.get(name) != value
        return lambda labels: labels.get(name) == value
    if match["many"]:
        name = match["many"]
        values = frozenset(one.strip() for one in match["values"].split(","))
        fits = all(_IS_VALUE.fullmatch(one) for one in values)
        require(fits, "selector", f"has a value that no label of {name} can have", FIX)
        if match["word"] == "notin":
            return lambda labels: labels.get(name) not in values
        return lambda labels: labels.get(name) in values
    present = match["present"]
    return lambda labels: present in labels


__all__ = ["Selector", "parse_selector"]
