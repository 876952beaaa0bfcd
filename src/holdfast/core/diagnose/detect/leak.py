"""Detects memory leaks: growth that traffic, caches and allocator steps do not explain.

Memory of a server goes up for many honest reasons: more traffic, caches that fill, allocators that
take a larger block at each new peak, garbage that waits for its collector. A leak is what is left
when these are taken away. The same picture is looked at on six scales, from 4 minutes to a day,
each of twelve blocks:

    middle value of each block ─► minus what goes with traffic, and with its peak so far
       ─► climbs in a line?   not in a few steps, not to a plateau, not up and down again ─► sign

The middle value of a block is free of bursts, and goes with its traffic; the lowest one goes with
the lowest traffic, which is not counted. Two or three steps may hold all the growth of an
allocator, so they are taken out before what remains is judged. A plateau is recognised by slowing
down, and a sawtooth by having come down before. How much evidence is needed depends on how much
time there is: a short scale speaks only where memory would be full soon, so that warming up, which
looks like a leak for minutes, is not reported, and a leak that kills in minutes is found in two.

Caches fill by requests, not by minutes. While traffic rises on a young process they fill in a
line: what slows down is the growth by each request. So a window in which a process got most of the
requests of its life is looked at by requests as well as by time. A leak by the minute under rising
traffic looks the same there, and is told when the first requests are behind the window.

Rejected: the slope of the raw series. It finds every leak and fires at every morning's traffic.
Rejected: a bound on memory used; vLLM and others take nearly all of it on purpose.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, sqrt
from statistics import fmean, stdev
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import MemorySeen, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, nanos, require, seconds

_BLOCKS: Final = 12  # of a window: four for each third
_HISTORY: Final = 24  # blocks remembered, in which it must not have come down
_SAMPLES_MAX: Final = 256  # of a block
_DEVICES_MAX: Final = 4  # of one replica
_GAP_MAX: Final = 2  # blocks without a sample that a window may have
_YOUNG: Final = 0.25  # of all requests so far, when a window begins: the others came within it


@dataclass(slots=True, frozen=True)
class _Scale:
    block_s: int
    full_in_s: float  # it speaks only where memory would be full by then
    linear: float  # how much of a third's climb the next one must have


_SCALES: Final = (
    _Scale(20, 600, 1.0),
    _Scale(60, 3_600, 1.0),
    _Scale(200, 14_400, 1.0),
    _Scale(420, inf, 0.62),
    _Scale(1_800, inf, 0.62),
    _Scale(7_200, inf, 0.62),
)


@dataclass(slots=True, frozen=True)
class LeakConfig:
    """Settings: how steady and how large growth of a replica's memory must be to be a leak."""

    bytes_per_min_min: float = 2e6  # slower ones take days; caches and allocators creep so, too
    climb_min_bytes: float = 64e6  # over a window: allocators round to this
    warm_requests: int = 50  # of a life before memory counts: the first ones fill caches
    warm_s: float = 600.0  # the same, where requests are unknown
    unknown_full_in_s: float = 86_400.0  # without requests only what would be full within a day
    sure: float = 5.0  # standard errors of the slope: windows are many
    steady: float = 2.5  # of its steps from block to block: a random walk has none

    def __post_init__(self) -> None:
        for name in ("bytes_per_min_min", "climb_min_bytes", "unknown_full_in_s"):
            value = getattr(self, name)
            require(0 < value < 1e15, f"leak.{name}", f"is {value}", "use a positive number")
        for name in ("warm_requests", "warm_s"):
            value = getattr(self, name)
            require(0 <= value < 1e9, f"leak.{name}", f"is {value}", "use 0 or more")
        for name in ("sure", "steady"):
            value = getattr(self, name)
            require(value >= 1, f"leak.{name}", f"is {value}", "use 1 or more standard errors")


class _Block:
    """The lower median of memory over a stretch of time, and the traffic in it."""

    __slots__ = (
        *("_used", "first_at", "first_requests", "index", "last_at", "last_requests"),
        *("low", "rate", "top"),
    )

    def __init__(self, index: int, fact: MemorySeen, now: int) -> None:
        self.index = index
        self._used = [fact.used_bytes]
        self.low = fact.used_bytes
        self.first_at = self.last_at = now
        self.first_requests = self.last_requests = fact.requests
        self.rate: float | None = None  # requests a second, once it is closed
        self.top = 0.0  # the highest rate between two looks

    def add(self, fact: MemorySeen, now: int) -> None:
        self._used.append(fact.used_bytes)
        if len(self._used) > _SAMPLES_MAX:
            self._used = self._used[::2]  # sooner or later: the middle stays where it is
        since = seconds(now - self.last_at)
        if fact.requests is not None and self.last_requests is not None and since > 0:
            self.top = max(self.top, (fact.requests - self.last_requests) / since)
        self.last_at, self.last_requests = now, fact.requests

    def close(self, before: "_Block | None") -> None:
        self._used.sort()
        self.low = self._used[(len(self._used) - 1) // 2]
        self._used = []
        since, counted = self.first_at, self.first_requests
        if before is not None:  # from sample to sample, or what came between them is lost
            since, counted = before.last_at, before.last_requests
        if counted is not None and self.last_requests is not None and self.last_at > since:
            self.rate = (self.last_requests - counted) / seconds(self.last_at - since)


class _Window:
    """One scale of one memory."""

    __slots__ = ("_before", "_block", "blocks", "leaks", "scale", "seen", "seen_max", "slope")

    def __init__(self, scale: _Scale) -> None:
        self.scale = scale
        self.blocks: deque[_Block] = deque(maxlen=_HISTORY)
        self._block: _Block | None = None  # that is being filled
        self._before: _Block | None = None  # and the one before it
        self.seen_max = 0  # of blocks that are behind the window
        self.slope = 0.0  # bytes per second
        self.leaks = False
        self.seen = False  # the last block said so too

    def add(self, fact: MemorySeen, now: int) -> bool:
        """True when a block was closed, so that there is something new to judge."""
        index = now // (self.scale.block_s * SECOND)
        block = self._block
        if block is not None and index == block.index:
            block.add(fact, now)
            return False
        self._block = _Block(index, fact, now)
        if block is None:
            return False
        block.close(self._before)
        self._before = block
        if block.rate is None and block.last_requests is not None:
            return False  # of one sample there is no rate; it only starts the next one's
        if len(self.blocks) >= _BLOCKS:
            self.seen_max = max(self.seen_max, self.blocks[-_BLOCKS].low)
        self.blocks.append(block)
        if not 0 < index - block.index <= _GAP_MAX + 1:
            self.blocks.clear()  # a clock that jumped, or nobody looked: no line goes through that
            self.leaks = False
            return False
        return True

    def judge(self, fact: MemorySeen, config: LeakConfig) -> None:
        """Whether these twelve blocks are a leak. Once found it takes little to hold."""
        recent = list(self.blocks)[-_BLOCKS:]
        too_wide = recent[-1].index - recent[0].index > _BLOCKS - 1 + _GAP_MAX
        if len(recent) < _BLOCKS or too_wide:
            self.leaks = False
            return
        rates = _rates(self.blocks)
        told_by = self.scale.full_in_s
        traffic: list[list[float]] = []
        if len(rates) < len(self.blocks):
            told_by = min(told_by, config.unknown_full_in_s)
        else:
            peaks = _peaks(self.blocks)
            traffic = [each for each in (rates, peaks) if _moved(each[-_BLOCKS:])]
        slope = self._slope(traffic, fact, config)
        left = _left(fact, slope)
        if slope > 0 and (told_by == inf or (left is not None and left <= told_by)):
            # Where there is time, a second look a block later: chance seldom repeats itself.
            self.leaks, self.slope = self.seen or told_by < inf, slope
            self.seen = True
            return
        self.seen = False
        if self.leaks:
            lows = [block.low for block in recent]
            self.leaks = fmean(lows[9:]) > fmean(lows[6:9])

    def _slope(self, traffic: list[list[float]], fact: MemorySeen, config: LeakConfig) -> float:
        """Bytes per second that climb with time and not with ``traffic``; 0 where none do."""
        lows = [float(block.low) for block in self.blocks]
        times = [float(block.index) for block in self.blocks][-_BLOCKS:]
        raw = lows[-_BLOCKS:]
        short = self.scale.full_in_s < inf
        if short and fmean(raw[-4:]) - fmean(raw[:4]) < 0.25 * config.climb_min_bytes:
            return 0.0  # most looks end here, at a tenth of the cost
        fit = _fit(times, raw, [each[-_BLOCKS:] for each in traffic])
        for share, rates in zip(fit.shares, traffic, strict=True):
            lows = [low - share * rate for low, rate in zip(lows, rates, strict=True)]
        recent = lows[-_BLOCKS:]
        per_s = fit.slope / self.scale.block_s
        climb = fit.slope * (times[-1] - times[0])
        if per_s * 60 < config.bytes_per_min_min or climb < config.climb_min_bytes:
            return 0.0
        steps = 2 if short else 3
        even = _is_even(recent, climb, config.steady, steps)
        if fit.slope < config.sure * fit.error or not even:
            return 0.0
        if _comes_down(recent if short else lows) > 0.35 * climb:
            return 0.0
        # It has been as high before, and came down: on a short scale that is all one can know.
        if short and recent[-1] <= self.seen_max:
            return 0.0
        # A peak of traffic that is reached once bends as a plateau does, and would explain it away.
        fit = _fit(times, raw, [each[-_BLOCKS:] for each in traffic[:1]])
        for share, rates in zip(fit.shares, traffic[:1], strict=True):
            raw = [low - share * rate for low, rate in zip(raw, rates[-_BLOCKS:], strict=True)]
        if not short and self._fills(raw, fit.noise):
            return 0.0
        ceiling = _plateau(raw, fit.noise, self.scale.linear)
        full = short and fact.limit_bytes is not None and ceiling >= fact.limit_bytes
        return per_s if ceiling == inf or full else 0.0

    def _fills(self, lows: Sequence[float], noise: float) -> bool:
        """Whether the first requests of a life fill its caches: each of them adds less."""
        counts = [block.last_requests for block in self.blocks][-_BLOCKS:]
        served = [float(count) for count in counts if count is not None]
        if len(served) < len(counts) or served[0] >= _YOUNG * served[-1]:
            return False
        early, middle, late = _thirds(served)
        first, second = _climbs(lows, noise)
        # Both by the request; multiplied out, for there may have been none.
        return second * (middle - early) < self.scale.linear * first * (late - middle)


def _rates(blocks: Sequence[_Block]) -> list[float]:
    return [block.rate for block in blocks if block.rate is not None]


def _peaks(blocks: Sequence[_Block]) -> list[float]:
    """The highest traffic so far: allocators keep what the peak needed."""
    return list(accumulate((max(block.top, block.rate or 0.0) for block in blocks), max))


def _moved(traffic: Sequence[float]) -> bool:
    """Traffic that stood still explains nothing."""
    mean = fmean(traffic)
    return max(traffic) - min(traffic) > 0.05 * mean


@dataclass(slots=True, frozen=True)
class _Fit:
    slope: float  # bytes per block
    error: float  # of the slope
    noise: float  # of one block
    shares: list[float]  # bytes per request per second, for each kind of traffic


def _fit(times: Sequence[float], lows: Sequence[float], traffic: list[list[float]]) -> _Fit:
    """Least squares: memory as a line in time plus a share of each traffic, none below zero."""
    columns = [_centred(one) for one in (times, *traffic)]
    target = _centred(lows)
    used = list(range(len(columns)))
    while True:
        inverse = _inverse([[_dot(columns[a], columns[b]) for b in used] for a in used])
        if inverse is None:  # traffic is a line itself: all of the climb may be its
            return _Fit(0.0, inf, inf, [0.0] * len(traffic))
        sums = [_dot(columns[a], target) for a in used]
        solved = dict(zip(used, (_dot(row, sums) for row in inverse), strict=True))
        wrong = [a for a in used[1:] if solved[a] < 0]  # more traffic never frees memory
        if not wrong:
            break
        used.remove(min(wrong, key=solved.__getitem__))
    fitted = [sum(solved[a] * columns[a][at] for a in used) for at in range(len(target))]
    left = sum((one - other) ** 2 for one, other in zip(target, fitted, strict=True))
    variance = left / (len(target) - len(used) - 1)
    shares = [solved.get(a, 0.0) for a in range(1, len(columns))]
    return _Fit(solved[0], sqrt(variance * inverse[0][0]), sqrt(variance), shares)


def _inverse(matrix: list[list[float]]) -> list[list[float]] | None:
    """Of a small symmetric matrix; None where its columns are nearly one and the same."""
    size = len(matrix)
    scale = [sqrt(matrix[at][at]) for at in range(size)]
    rows = [
        [matrix[a][b] / scale[a] / scale[b] for b in range(size)]
        + [float(a == b) for b in range(size)]
        for a in range(size)
    ]
    for at in range(size):
        pivot = rows[at][at]
        if pivot < 1e-4:  # 0.99995 of it is in the columns before
            return None
        rows[at] = [value / pivot for value in rows[at]]
        for other in range(size):
            if other != at:
                factor = rows[other][at]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[at], strict=True)]
    return [[rows[a][size + b] / scale[a] / scale[b] for b in range(size)] for a in range(size)]


def _centred(values: Sequence[float]) -> list[float]:
    mean = fmean(values)
    return [value - mean for value in values]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _is_even(lows: Sequence[float], climb: float, steady: float, largest: int) -> bool:
    """Whether it climbs from block to block, and not by a few steps of an allocator."""
    steps = sorted(after - before for before, after in pairwise(lows))
    if sum(steps[:-largest]) < 0.3 * climb:
        return False
    half = len(lows) // 2
    if lows[half] - lows[0] < 0.2 * climb:  # it began in this window, so its steps do differ
        steps = sorted(after - before for before, after in pairwise(lows[half:]))
    return fmean(steps) * sqrt(len(steps)) >= steady * stdev(steps)


def _plateau(lows: Sequence[float], noise: float, linear: float) -> float:
    """Where it will come to rest if it slows on as it does; infinite where it does not slow."""
    first, second = _climbs(lows, noise)
    if second <= 0:
        return 0.0
    slows = second / max(first, 1.0)
    if slows >= linear:
        return inf
    return lows[-1] + 0.5 * second * slows / (1 - slows)  # half: an estimate of an estimate


def _thirds(values: Sequence[float]) -> tuple[float, float, float]:
    third = len(values) // 3
    early, middle, late = (fmean(values[at : at + third]) for at in range(0, len(values), third))
    return early, middle, late


def _climbs(lows: Sequence[float], noise: float) -> tuple[float, float]:
    """How much it climbed at first and later, by thirds, with all doubt in favour of slowing."""
    early, middle, late = _thirds(lows)
    doubt = noise / sqrt(len(lows) // 3)
    return max(middle - early, 0.0) + doubt, late - middle - doubt


def _comes_down(lows: Sequence[float]) -> float:
    """The largest fall from any value to a later one."""
    peak, fall = lows[0], 0.0
    for low in lows:
        peak = max(peak, low)
        fall = max(fall, peak - low)
    return fall


def _left(fact: MemorySeen, slope: float) -> float | None:
    if fact.limit_bytes is None or slope <= 0:
        return None
    return max(0, fact.limit_bytes - fact.used_bytes) / slope


class _Memory:
    """One memory of one process."""

    __slots__ = ("began", "requests", "warm", "windows")

    def __init__(self, now: int) -> None:
        self.began = now
        self.requests: int | None = None
        self.warm = False
        self.windows = [_Window(scale) for scale in _SCALES]


class LeakDetector:
    """Finds replicas whose host or GPU memory grows, and not with traffic, on six time scales."""

    reads: ClassVar[tuple[type, ...]] = (MemorySeen, ProcessEnded)

    def __init__(self, config: LeakConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._memories: dict[str, dict[str, _Memory]] = {}
        self._pace = Pace()
        self.refused = 0  # samples of a fifth device

    def take(self, fact: MemorySeen | ProcessEnded, now: int) -> Sequence[Evidence]:
        """Take one measurement of a replica's memory, or its process end; return leak evidence.

        ``MEMORY_LEAKS``, repeated while it holds, with the time left where a limit is known. The
        first requests of a life do not count; an end drops all measurements.
        """
        if isinstance(fact, ProcessEnded):
            self.forget(fact.replica)
            return NOTHING
        if fact.replica not in self._census.replicas:
            return NOTHING
        devices = self._memories.setdefault(fact.replica, {})
        memory = devices.get(fact.device)
        if memory is None and len(devices) >= _DEVICES_MAX:
            self.refused += 1
            return NOTHING
        if memory is None or _began_anew(memory, fact):
            memory = devices[fact.device] = _Memory(now)
        memory.requests = fact.requests
        if not self._is_warm(memory, fact, now):
            return NOTHING
        for window in memory.windows:
            if window.add(fact, now):
                window.judge(fact, self._config)
        found = [window for window in memory.windows if window.leaks]
        if not found:
            self._pace.over((fact.replica, fact.device))
            return NOTHING
        if not self._pace.due((fact.replica, fact.device), now):
            return NOTHING
        return (self._evidence(fact, found[0], now),)  # the shortest scale: the present slope

    def forget(self, replica: str) -> None:
        """Drop the memory measurements of a replica; an end of its process does the same."""
        for device in self._memories.pop(replica, {}):
            self._pace.over((replica, device))

    def _is_warm(self, memory: _Memory, fact: MemorySeen, now: int) -> bool:
        if not memory.warm:
            if fact.requests is None:
                memory.warm = now - memory.began >= nanos(self._config.warm_s)
            else:
                memory.warm = fact.requests >= self._config.warm_requests
        return memory.warm

    def _evidence(self, fact: MemorySeen, window: _Window, now: int) -> Evidence:
        numbers = {"bytes_per_s": window.slope, "used_bytes": float(fact.used_bytes)}
        text = (
            f"{fact.device} memory of {fact.replica} grows by {window.slope * 60 / 1e6:.1f} MB a "
            f"minute, and not with traffic: {fact.used_bytes / 1e9:.1f} GB used"
        )
        left = _left(fact, window.slope)
        if fact.limit_bytes is not None and left is not None:
            numbers |= {"limit_bytes": float(fact.limit_bytes), "exhausted_in_s": left}
            text += f" of {fact.limit_bytes / 1e9:.1f} GB, full in {_span(left)}"
        about = self._census.about(fact.replica)
        return Evidence(Sign.MEMORY_LEAKS, about, now, "leak", text, numbers)


def _began_anew(memory: _Memory, fact: MemorySeen) -> bool:
    """A count of requests that went back is of another process."""
    before = memory.requests
    return before is not None and fact.requests is not None and fact.requests < before


def _span(duration_s: float) -> str:
    if duration_s < 5_400:
        return f"{duration_s / 60:.0f} min"
    return f"{duration_s / 3_600:.1f} h"


__all__ = ["LeakConfig", "LeakDetector"]
