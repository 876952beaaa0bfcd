"""Detects a tail of first tokens ten times its median while the median is well.

    first tokens of a model's users, each as a multiple of what is usual for its length
        └─► the middle at most 1.5, one in a hundred at least ten times as long,
            in 5 minutes of at least 300 of them, in each of 4 of these minutes,
            and 2 minutes later still ─► LATENCY_TAIL

A median tells nothing of it: one request in a hundred waits behind a long one, or goes to a replica
that straggles. Where one replica has most of the tail it is named; else long requests and short
ones share what they should not.

Rejected: a bound in seconds. Prompts differ by three orders of magnitude, and so do their waits.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import AttemptsSeen
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, nanos, require

MODELS_MAX: Final = 1_024
_WAITS_MAX: Final = 2_048  # of one model
_EVERY: Final = 10 * SECOND  # between two judgements of one model
_PARTS: Final = 5  # of the window
_PARTS_MIN: Final = 4  # that have such a wait: one burst that queues is in one or two of them
_MOST: Final = 0.8  # of the tail on one replica, of several, that makes it that replica's


@dataclass(slots=True, frozen=True)
class LatencyTailConfig:
    """Settings: how long the slowest hundredth of first tokens may take against the median.

    Checked when built: raises ``ConfigError``.
    """

    factor: float = 10.0  # times the median, one in a hundred: load alone makes three or four
    median_max: float = 1.5  # times the usual wait: above it the model is slow as a whole
    window_s: float = 300.0  # a burst that queues is over by then
    samples_min: int = 300  # three requests in the slowest hundredth; fewer are a coincidence
    hold_s: float = 120.0  # from the first such window to the sign

    def __post_init__(self) -> None:
        factor, median = self.factor, self.median_max
        require(2 <= factor <= 1_000, "tail.factor", f"is {factor}", "use a factor from 2 on")
        require(1 <= median <= 100, "tail.median_max", f"is {median}", "use 1 to 100")
        few = self.samples_min
        fits = 100 <= few <= _WAITS_MAX
        require(fits, "tail.samples_min", f"is {few}", f"use 100 to {_WAITS_MAX}")
        for name in ("window_s", "hold_s"):
            value = getattr(self, name)
            require(0 < value <= 86_400, f"tail.{name}", f"is {value}", "use up to a day")


class _Book:
    __slots__ = ("judged_at", "since", "waits")

    def __init__(self) -> None:
        self.waits: deque[tuple[int, float, str]] = deque(maxlen=_WAITS_MAX)
        self.judged_at = 0
        self.since: int | None = None


class LatencyTailDetector:
    """Finds models where one in a hundred users waits ten times the median for a first token.

    Keeps five minutes of waits per model.
    """

    reads: ClassVar[tuple[type, ...]] = (AttemptsSeen,)

    def __init__(self, config: LatencyTailConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._window = nanos(config.window_s)
        self._hold = nanos(config.hold_s)
        self._books: dict[str, _Book] = {}
        self._pace = Pace()

    def take(self, fact: AttemptsSeen, now: int) -> Sequence[Evidence]:
        """Take users' waits on one replica; return ``LATENCY_TAIL`` if its model has a long tail.

        About the replica that has most of the long waits, else about the model. Judges each model
        every ten seconds, and only with 300 waits.
        """
        known = self._census.replicas.get(fact.replica)
        if known is None or not fact.waits:
            return NOTHING
        book = self._books.get(known.model)
        if book is None:
            if len(self._books) >= MODELS_MAX:
                return NOTHING
            book = self._books[known.model] = _Book()
        book.waits.extend((now, wait, fact.replica) for wait in fact.waits if wait >= 0)
        if 0 <= now - book.judged_at < _EVERY:
            return NOTHING
        book.judged_at = now
        return self._judge(known.model, book, now)

    def forget(self, replica: str) -> None:
        """Do nothing: waits belong to their model, and leave with their time."""

    def _judge(self, model: str, book: _Book, now: int) -> Sequence[Evidence]:
        config, waits = self._config, book.waits
        while waits and not 0 <= now - waits[0][0] < self._window:
            waits.popleft()
        ordered = sorted(wait for _, wait, _ in waits)
        if len(ordered) < config.samples_min:
            book.since = None
            return NOTHING
        median, tail = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        bound = config.factor * median
        spread = {(now - at) * _PARTS // self._window for at, wait, _ in waits if wait >= bound}
        if not 0 < median <= config.median_max or tail < bound or len(spread) < _PARTS_MIN:
            book.since = None
            return NOTHING
        book.since = now if book.since is None else book.since
        if now - book.since < self._hold or not self._pace.due(model, now):
            return NOTHING
        slow = [name for _, wait, name in waits if wait >= bound]
        name, count = Counter(slow).most_common(1)[0]
        alone = count >= _MOST * len(slow) and len({one for _, _, one in waits}) > 1
        about = self._census.about(name) if alone else About(model=model)
        text = (
            f"one in a hundred users of {model} waits {tail / median:.0f} times as long for the "
            f"first token as half of them do"
        )
        text += f"; {count} of {len(slow)} such waits are {name}'s" if alone else ""
        numbers = {
            "times": tail / median,
            "requests": float(len(slow)),
            "seen": float(len(ordered)),
        }
        return [Evidence(Sign.LATENCY_TAIL, about, now, "gateway", text, numbers)]


__all__ = ["LatencyTailConfig", "LatencyTailDetector"]
