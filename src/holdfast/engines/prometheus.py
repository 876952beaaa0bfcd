"""Reads the few gauges a router needs out of a Prometheus text page.

A page has up to 100 KB and a thousand lines, of which three matter, for every replica, every
second. So the wanted names are searched for, and only what follows one at the beginning of a line
is parsed; timestamps and exemplars behind the value are not.

Rejected: the parser of prometheus_client. It builds an object for every line: 23 ms of CPU for a
page of vLLM with 696 lines, against 0.33 ms here (version 0.26.0, ``bench/metrics_page.py``). And
it raises at the first line that it cannot read, so that one bad line hides the rest of the page.
Rejected: one expression over all lines, which takes eight times as long.

Tolerant and honest at once: whatever cannot be read is *unknown*, which is no entry and later
``None``, never zero. A page beyond the bounds is unknown as a whole: half a sum is a wrong sum.
"""

import re
from collections.abc import Callable
from math import isfinite
from typing import Final

from holdfast.engines.dialect import Load

PAGE_CHARACTERS_MAX: Final = 4 << 20  # forty times a usual page
SERIES_MAX: Final = 4_096  # of the wanted names; a data-parallel engine has tens
COUNT_MAX: Final = 1e9  # requests in one engine; beyond it the figure is not a count
SUM_MAX: Final = 2.0**53  # of a counter: beyond it not every whole number can be told
SHARE_MAX: Final = 1.05  # engines overshoot a full cache by rounding; more is another unit

Samples = Callable[[str, tuple[str, ...]], dict[str, list[float]]]

# Possessive throughout: a line that does not fit is given up at once, never tried another way.
_LABELS: Final = r'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?+'
_REST: Final = re.compile(rf"(?![\w:]){_LABELS}[ \t]*+([^\s#]{{1,64}}+)(?!\S)")
_PAIR: Final = re.compile(r'([a-zA-Z_]\w*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"')


def labelled(text: str, names: tuple[str, ...]) -> list[tuple[str, str, float]]:
    """Yield name, labels as written, and value of every numeric sample of these metrics."""
    found: list[tuple[str, str, float]] = []
    if len(text) > PAGE_CHARACTERS_MAX:
        return found
    for name in names:
        at = text.find(name)
        while at >= 0:
            after = at + len(name)
            line = _REST.match(text, after) if at == 0 or text[at - 1] == "\n" else None
            value = _number(line[2]) if line else None
            if line and value is not None:
                found.append((name, line[1] or "", value))
            at = text.find(name, after)
    return found if len(found) <= SERIES_MAX else []


def samples(text: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    """The values of these metrics over all label sets; a metric without a value is left out."""
    found: dict[str, list[float]] = {}
    for name, _, value in labelled(text, names):
        found.setdefault(name, []).append(value)
    return found


def label(labels: str, name: str) -> str:
    """One label's value out of the labels of ``labelled``, escapes as written; empty if absent."""
    for pair in _PAIR.finditer(labels):
        if pair[1] == name:
            return pair[2]
    return ""


def load_reader(
    *,
    running: tuple[str, ...],
    waiting: tuple[str, ...],
    kv_used: tuple[str, ...] = (),
    generated: tuple[str, ...] = (),
    preemptions: tuple[str, ...] = (),
    prefix_asked: tuple[str, ...] = (),
    prefix_found: tuple[str, ...] = (),
    prefix_hits: tuple[str, ...] = (),
    steps: tuple[str, ...] = (),
    read: Samples = samples,
) -> Callable[[str], Load]:
    """Build a reader of an engine's load from gauges of these names, the newest name first.

    The first name that is there is used alone: engines publish an old name beside the new one for
    a while, and both together would count twice. ``generated`` must name a counter that moves with
    every token: one that moves when a request ends stands still while a long answer comes out.
    ``steps`` must name one that moves while a prompt is read, not when it has been read.
    """
    names = running + waiting + kv_used + generated + preemptions
    names += prefix_asked + prefix_found + prefix_hits + steps

    def read_load(text: str) -> Load:
        found = read(text, names)
        return Load(
            total(found, running),
            total(found, waiting),
            mean_share(found, kv_used),
            total(found, generated, SUM_MAX),
            total(found, preemptions, SUM_MAX),
            total(found, prefix_asked, SUM_MAX),
            total(found, prefix_found, SUM_MAX),
            mean_share(found, prefix_hits),
            total(found, steps, SUM_MAX),
        )

    return read_load


def total(
    found: dict[str, list[float]], names: tuple[str, ...], most: float = COUNT_MAX
) -> int | None:
    """A count summed over label sets (a data-parallel engine has one per rank); None if unknown."""
    values = _first(found, names)
    if not values or any(not 0 <= value <= most for value in values):
        return None
    return round(sum(values))


def mean_share(found: dict[str, list[float]], names: tuple[str, ...]) -> float | None:
    """A share from 0 to 1, averaged over label sets; None if unknown.

    The mean, not the fullest: a data-parallel engine chooses among its ranks itself, so the room
    behind its one address is all of theirs, and the fullest would shut out a replica that is half
    empty. No engine publishes a percentage, whatever the name says; one that did would not be
    guessed at (0.9 might be either) but unknown as soon as it shows.
    """
    values = _first(found, names)
    if not values or any(not 0 <= value <= SHARE_MAX for value in values):
        return None
    return min(1.0, sum(values) / len(values))


def nothing_told(_text: str) -> Load:
    """A load reader for engines that publish no load: everything is unknown."""
    return Load()


def _first(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((found[name] for name in names if name in found), [])


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if isfinite(value) else None


__all__ = [
    "COUNT_MAX",
    "PAGE_CHARACTERS_MAX",
    "SERIES_MAX",
    "SUM_MAX",
    "Samples",
    "label",
    "labelled",
    "load_reader",
    "mean_share",
    "nothing_told",
    "samples",
    "total",
]
