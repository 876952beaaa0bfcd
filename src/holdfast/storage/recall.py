"""Answers queries to the history: chooses the tier, and thins it to the points asked for.

    names, since, until, points ─► the finest tier that reaches back so far and is not too long
                                        blocks of the file + open points ─► rows ─► at most 2×points

A row of the answer is ``(time, value)``. A value of ``None`` says that from then on nothing was
known; it is not zero, and a chart must not draw a line across. Series that hold a *state* are never
averaged: the answer has each change as it was, and where there is room for one state only, the one
that is furthest from ready.
"""

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from holdfast.core.types import State
from holdfast.storage.history_file import HistoryConfig, Points
from holdfast.storage.points import PackedError, Row, coarser, rows_of, unpack, unpack_rows

VALUES: Final = ("mean", "min", "max", "last")
POINTS_MAX: Final = 5_000  # of one series in one answer: more than any screen is wide
SERIES_MAX: Final = 600  # in one answer: a metric of every replica of a large fleet
ROWS_MAX: Final = 90_000  # in one answer: some 3 MB; of many series each has fewer points
_LENGTHS: Final = 4  # times the points asked for: of many series no more are read
_FEW: Final = 20  # series that may be read in full, however few points are wanted
_GAP: Final = 2.5  # steps without a value: one sample may be late, two are missing
_READY: Final = list(State).index(State.READY)
_OLDEST: Final = "SELECT first FROM blocks WHERE tier = ? ORDER BY last LIMIT 1"
_READ: Final = (
    "SELECT data FROM blocks WHERE tier = ? AND series = ? AND first <= ? AND last >= ?"
    " ORDER BY first"
)
_log = structlog.get_logger("holdfast.storage.history")

Told = list[tuple[float, float | None]]


@dataclass(slots=True, frozen=True)
class Question:
    """A query to the history: a span of time, and how many points are wanted."""

    since: float
    until: float
    points: int = 300
    value: str = "mean"  # of several in one row: mean, min, max or last
    step_s: float | None = None  # rows of this tier, as they are kept; None: what fits


@dataclass(slots=True, frozen=True)
class Recalled:
    """The answer to a query: points by series, and the tier they are from."""

    series: dict[str, Told]
    step_s: float = 0.0  # of the tier that answered
    left_out: int = 0  # series that matched and found no room


def matching(names: Collection[str], wanted: str, match: str) -> list[str]:
    """The names that match ``wanted``: ``exact``, ``prefix``, or ``pattern`` with one star."""
    if match == "prefix":
        return sorted(name for name in names if name.startswith(wanted))
    if match == "pattern":
        head, _, tail = wanted.partition("*")
        least = len(head) + len(tail)
        return sorted(
            name
            for name in names
            if name.startswith(head) and name.endswith(tail) and len(name) >= least
        )
    return [wanted] if wanted in names else []


def recall(
    connection: sqlite3.Connection,
    config: HistoryConfig,
    wanted: Mapping[str, int],
    kept_open: Mapping[int, Points],
    question: Question,
) -> Recalled:
    """Answer a query from the file's blocks and from the points that are in no block yet."""
    names = list(wanted)[:SERIES_MAX]
    points = max(2, min(question.points, ROWS_MAX // 2 // max(1, len(names))))
    if question.step_s is not None:  # all rows are wanted: fewer series, rather than parts of them
        points = question.points
        names = names[: max(1, ROWS_MAX // (2 * points))]
    rows_max = _LENGTHS * points if len(names) > _FEW else ROWS_MAX // _FEW
    tier = _tier(connection, config, kept_open, question, rows_max)
    step_s = config.steps[tier]
    found: dict[str, Told] = {}
    for name in names:
        one = wanted[name]
        young = _within(kept_open.get(one), question)
        if tier == 0:
            told = _fine(connection, one, young, question, points, step_s, name)
        else:
            told = _coarse(connection, tier, one, young, question, points, step_s, name)
        if told:
            found[name] = told
    return Recalled(found, step_s, len(wanted) - len(names))


def _tier(
    connection: sqlite3.Connection,
    config: HistoryConfig,
    kept_open: Mapping[int, Points],
    question: Question,
    rows_max: int,
) -> int:
    if question.step_s is not None:
        return config.steps.index(question.step_s)
    begins = [_oldest(connection, tier) for tier in range(3)]
    young = min((times[0] for times, _ in kept_open.values()), default=None)
    if young is not None:
        begins[0] = min(young, begins[0]) if begins[0] is not None else young
    known = [begun for begun in begins if begun is not None]
    if not known:
        return 0
    since = max(question.since, min(known))
    for tier, begun in enumerate(begins):
        step_s = config.steps[tier]
        reaches = begun is not None and begun <= since + config.steps[-1]
        if reaches and (question.until - since) / step_s <= rows_max:
            return tier
    return 2


def _oldest(connection: sqlite3.Connection, tier: int) -> float | None:
    found = connection.execute(_OLDEST, (tier,)).fetchone()
    return float(found[0]) if found is not None else None


def _within(points: Points | None, question: Question) -> list[tuple[float, float]]:
    if points is None:
        return []
    return [
        (at, value)
        for at, value in zip(*points, strict=True)
        if question.since <= at <= question.until
    ]


# --- one series -----------------------------------------------------------------------------------


def _fine(
    connection: sqlite3.Connection,
    one: int,
    young: list[tuple[float, float]],
    question: Question,
    points: int,
    step_s: float,
    name: str,
) -> Told:
    found: dict[float, float] = {}
    asked = (0, one, question.until, question.since)
    for (data,) in connection.execute(_READ, asked):
        try:
            found.update(unpack(data))
        except PackedError as error:
            _log.error("block not readable", series=name, reason=str(error))
    found.update(young)
    ordered = sorted(found.items())
    since = bisect_left(ordered, (question.since, float("-inf")))
    ordered = ordered[since : bisect_right(ordered, (question.until, float("inf")))]
    if _is_state(name):
        return _changes([(at, value, value) for at, value in ordered], step_s, points)
    if len(ordered) <= points or question.step_s is not None:
        return _bounded(_gaps(ordered, step_s), points)
    width_s = max(step_s, (question.until - question.since) / (points - 1))
    return _shown(rows_of(ordered, width_s), question.value, width_s, points)


def _coarse(
    connection: sqlite3.Connection,
    tier: int,
    one: int,
    young: list[tuple[float, float]],
    question: Question,
    points: int,
    step_s: float,
    name: str,
) -> Told:
    rows: list[Row] = []
    asked = (tier, one, question.until, question.since - step_s)
    for (data,) in connection.execute(_READ, asked):
        try:
            rows += unpack_rows(data)
        except PackedError as error:
            _log.error("block not readable", series=name, reason=str(error))
    rows += rows_of(young, step_s)
    rows.sort(key=_start)
    rows = [one for one in rows if question.since - step_s < one.start <= question.until]
    rows = coarser(rows, step_s)  # two of one stretch: before and after a turn, or a clock set back
    if _is_state(name):
        return _changes([(row.start, _extreme(row), row.last) for row in rows], step_s, points)
    width_s = step_s
    if question.step_s is None and len(rows) > points:
        width_s = (question.until - question.since) / (points - 1)
        rows = coarser(rows, max(step_s, width_s))
    return _shown(rows, question.value, max(step_s, width_s), points)


def _start(row: Row) -> float:
    return row.start


def _shown(rows: Iterable[Row], value: str, width_s: float, points: int) -> Told:
    place = 1 + VALUES.index(value)
    plain = [(row.start, float(f"{row[place]:.7g}")) for row in rows]
    return _bounded(_gaps(plain, width_s), points)


def _gaps(rows: Sequence[tuple[float, float]], step_s: float) -> Told:
    """Insert a ``None`` value into the rows wherever nothing was known for a while."""
    told: Told = []
    before: float | None = None
    for at, value in rows:
        if before is not None and at - before > _GAP * step_s:
            told.append((round(before + step_s, 3), None))
        told.append((round(at, 3), value))
        before = at
    return told


def _bounded(told: Told, points: int) -> Told:
    return told[-2 * points :]


# --- states ---------------------------------------------------------------------------------------


def _is_state(name: str) -> bool:
    return name.endswith("/state")


def _extreme(row: Row) -> float:
    """Of the states in a row the one furthest from ready: worse are above, younger below.

    A minute in which a replica was away for a second must not look like all others.
    """
    return row.high if row.high > _READY else row.low


def _changes(rows: Sequence[tuple[float, float, float]], step_s: float, points: int) -> Told:
    """The changes of a state series; each row is (time, state, state at its end)."""
    told = _runs(rows, step_s)
    while len(told) > 2 * points:  # hundreds of changes: neighbours share a row
        step_s *= 2
        merged: dict[float, tuple[float, float, float]] = {}
        for at, state, last in rows:
            start = at // step_s * step_s
            if start in merged:
                extreme = max(merged[start][1], state, key=_away)
                merged[start] = (start, extreme, last)
            else:
                merged[start] = (start, state, last)
        rows = list(merged.values())
        told = _runs(rows, step_s)
    return told


def _away(state: float) -> float:
    return state - _READY if state > _READY else (_READY - state) / 10


def _runs(rows: Sequence[tuple[float, float, float]], step_s: float) -> Told:
    told: Told = []
    before: float | None = None
    now: float | None = None
    for at, state, last in rows:
        if before is not None and at - before > _GAP * step_s:
            told.append((round(before + step_s, 3), None))
            now = None
        for when, value in ((at, state), (at + step_s / 2, last)):
            if value != now:
                told.append((round(when, 3), value))
                now = value
        before = at
    if before is not None and told[-1][0] < before:
        told.append((round(before, 3), now))  # so long it was known to hold
    return told


__all__ = [
    "POINTS_MAX",
    "ROWS_MAX",
    "SERIES_MAX",
    "VALUES",
    "Question",
    "Recalled",
    "Told",
    "matching",
    "recall",
]
