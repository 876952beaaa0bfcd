"""Packs points of time series into bytes, summarises them in rows, and unpacks them.

    points (t, value) ─► pack ─► a block of bytes, 10 s apart
                     └─► rows (start, mean, min, max, last, samples) ─► pack_rows, 1 or 15 min apart

A row is what a stretch of time looked like. Two rows of one stretch can be put together, in any
order and as often as needed, so nothing has to wait until a minute is over. Times are kept as
distances, which are nearly always the same and so take no room once packed; a clock that jumps
only makes one of them large. Rows hold single precision: seven digits are more than a chart has.

Rejected: a row of a table for each point. At 5,000 series that is 20 MB of pages written every ten
seconds to add 40 KB, and an index as large as the data.
"""

import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from struct import Struct, error
from typing import Final, NamedTuple

_HEAD: Final = Struct("<dI")
_FAST: Final = 1  # of zlib: level 6 saves a tenth of the bytes for three times the work
_SWAPPED: Final = sys.byteorder == "big"
DISTANCE_MAX: Final = (1 << 31) - 1  # between two points of a block: 24 days in ms, 68 years in s


class PackedError(ValueError):
    """Bytes are not a valid block."""


class Row(NamedTuple):
    """Summary of a series over a stretch of time: mean, low, high, last, number of samples."""

    start: float
    mean: float
    low: float
    high: float
    last: float
    samples: int


def together(one: Row, other: Row) -> Row:
    """Merge two rows of one stretch into one; ``other`` came later."""
    samples = one.samples + other.samples
    mean = (one.mean * one.samples + other.mean * other.samples) / samples
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Row(one.start, mean, low, high, other.last, samples)


def rows_of(points: Iterable[tuple[float, float]], width_s: float) -> list[Row]:
    """Summarise points, in the order in which they came, as rows of ``width_s`` seconds each."""
    rows: list[Row] = []
    start = low = high = total = last = 0.0
    count = 0
    for at, value in points:
        begun = at // width_s * width_s
        if count and begun == start:
            total += value
            count += 1
            last = value
            if value < low:
                low = value
            elif value > high:
                high = value
            continue
        if count:
            rows.append(Row(start, total / count, low, high, last, count))
        start, low, high, total, last, count = begun, value, value, value, value, 1
    if count:
        rows.append(Row(start, total / count, low, high, last, count))
    return rows


def coarser(rows: Iterable[Row], width_s: float) -> list[Row]:
    """Merge rows, given in order, into wider ones of ``width_s`` seconds."""
    found: list[Row] = []
    for row in rows:
        start = row.start // width_s * width_s
        wide = row._replace(start=start)
        if found and found[-1].start == start:
            found[-1] = together(found[-1], wide)
        else:
            found.append(wide)
    return found


def joined(older: Sequence[Row], newer: Sequence[Row]) -> list[Row]:
    """Concatenate two lists of rows; if they meet in one stretch, merge those two rows."""
    if older and newer and older[-1].start == newer[0].start:
        return [*older[:-1], together(older[-1], newer[0]), *newer[1:]]
    return [*older, *newer]


def runs(times: Sequence[float], distance_max_s: float = DISTANCE_MAX / 1_000) -> Iterator[slice]:
    """Split times into slices whose neighbours are near enough for one block; nearly always one."""
    begun = 0
    for place in range(1, len(times)):
        if abs(times[place] - times[place - 1]) >= distance_max_s:
            yield slice(begun, place)
            begun = place
    if times:
        yield slice(begun, len(times))


# --- packed ---------------------------------------------------------------------------------------


def pack(times: Sequence[float], values: Sequence[float]) -> bytes:
    """Pack points into a block of bytes; times are kept to a millisecond."""
    base = times[0]
    marks = [round((at - base) * 1_000) for at in times]
    distances = array("i", [0, *(b - a for a, b in pairwise(marks))])
    return _packed(base, len(times), distances, array("d", values))


def unpack(data: bytes) -> list[tuple[float, float]]:
    """Unpack the points of a block."""
    base, count, body = _opened(data, 4 + 8)
    marks = accumulate(_read("i", body[: 4 * count]))
    return [
        (round(base + mark / 1_000, 3), value)
        for mark, value in zip(marks, _read("d", body[4 * count :]), strict=True)
    ]


def pack_rows(rows: Sequence[Row]) -> bytes:
    """Pack rows into a block of bytes; their starts must be whole seconds."""
    base = rows[0].start
    marks = [round(row.start - base) for row in rows]
    distances = array("i", [0, *(b - a for a, b in pairwise(marks))])
    counts = array("I", [row.samples for row in rows])
    columns = [array("f", [row[place] for row in rows]) for place in (1, 2, 3, 4)]
    return _packed(base, len(rows), distances, counts, *columns)


def unpack_rows(data: bytes) -> list[Row]:
    """Unpack the rows of a block."""
    base, count, body = _opened(data, 6 * 4)
    size = 4 * count
    marks = accumulate(_read("i", body[:size]))
    counts = _read("I", body[size : 2 * size])
    columns = [_read("f", body[place * size : (place + 1) * size]) for place in (2, 3, 4, 5)]
    return [
        Row(base + mark, mean, low, high, last, int(samples))
        for mark, mean, low, high, last, samples in zip(marks, *columns, counts, strict=True)
    ]


def pack_batch(ids: Sequence[int], values: Sequence[float]) -> bytes:
    """Pack one value for each of many series (by id) into bytes."""
    return _packed(0.0, len(ids), array("I", ids), array("d", values))


def unpack_batch(data: bytes) -> tuple["array[int]", "array[float]"]:
    """Unpack the ids and values of a batch."""
    _, count, body = _opened(data, 4 + 8)
    ids: array[int] = array("I", _read("I", body[: 4 * count]))  # type: ignore[arg-type]
    return ids, _read("d", body[4 * count :])


def _packed(base: float, count: int, *columns: "array[int] | array[float]") -> bytes:
    if _SWAPPED:  # pragma: no cover - a file may move to another machine
        for column in columns:
            column.byteswap()
    head = _HEAD.pack(base, count)
    return zlib.compress(head + b"".join(column.tobytes() for column in columns), _FAST)


def _opened(data: bytes, width: int) -> tuple[float, int, bytes]:
    try:
        whole = zlib.decompress(data)
        base, count = _HEAD.unpack_from(whole)
    except (zlib.error, error, TypeError) as reason:
        raise PackedError(f"not a block: {reason}") from reason
    body = whole[_HEAD.size :]
    if len(body) != count * width:
        raise PackedError(f"a block of {count} is not {len(body)} bytes long")
    return base, count, body


def _read(kind: str, data: bytes) -> "array[float]":
    column: array[float] = array(kind)
    column.frombytes(data)
    if _SWAPPED:  # pragma: no cover - as above
        column.byteswap()
    return column


__all__ = [
    "DISTANCE_MAX",
    "PackedError",
    "Row",
    "coarser",
    "joined",
    "pack",
    "pack_batch",
    "pack_rows",
    "rows_of",
    "runs",
    "together",
    "unpack",
    "unpack_batch",
    "unpack_rows",
]
