"""Judges each GPU by its heat, its slowdown and the rows of its memory.

    at or above its own bound, for 2 minutes ──────────────► GPU_HOT
    slowed by heat, a power brake or the board, likewise ──► GPU_THROTTLED
    at a power limit that somebody lowered, likewise ──────► GPU_POWER_LIMITED
    one more memory error that could not be corrected ─────► GPU_MEMORY_ERRORS
    no spare row for a bad one ────────────────────────────► GPU_ROWS_EXHAUSTED
    a bad row waits for a reset ───────────────────────────► GPU_RESET_DUE

A board tells its own bound; where it does not, the config's counts. A burst of work heats a GPU for
seconds, and a fan takes a while: only what lasts is a sign. Corrected errors are what the
correction is for. Errors from before the first look have been dealt with, or wait for a reset.

Rejected: the power cap by itself. A busy H200 draws 690 of its 700 W and says for as long as it
works that power limits it; only a limit below the one it came with takes something away.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import REPORTED, About, Evidence, Sign
from holdfast.core.diagnose.facts import GpuSeen
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.gpu import HARDWARE, POWER_BRAKE, POWER_CAP, THERMAL
from holdfast.core.types import nanos, require, seconds

GPUS_MAX: Final = 16_384  # beyond it nobody new is watched, and ``refused`` counts
REPLICAS_MAX: Final = 16  # of one GPU that are named
_LOOKS_MAX: Final = 256  # of one GPU
_LOOKS_MIN: Final = 4  # within the time that must have passed
_SLOWED: Final = frozenset({THERMAL, POWER_BRAKE, HARDWARE})


@dataclass(slots=True, frozen=True)
class GpuHealthConfig:
    """Settings: from which heat on a GPU is hot, and how long it may be hot or slowed.

    Checked when built: raises ``ConfigError``.
    """

    hot_c: float = 85.0  # where a board does not tell its own bound; most slow down from 87 on
    lasts_s: float = 120.0  # a burst heats a board for seconds; a fan takes a minute to follow
    share: float = 0.8  # of the looks in that time: a reading may be missed, or fall into a pause
    gap_s: float = 90.0  # between two looks; after more nobody knows what was in between
    lowered: float = 0.9  # of the limit that a board came with; operators trim a little on purpose

    def __post_init__(self) -> None:
        heat = self.hot_c
        fix = "use degrees Celsius from 40 to 120"
        require(40 <= heat <= 120, "gpu_health.hot_c", f"is {heat}", fix)
        for name in ("lasts_s", "gap_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"gpu_health.{name}", f"is {value}", fix)
        for name in ("share", "lowered"):
            value = getattr(self, name)
            require(0 < value <= 1, f"gpu_health.{name}", f"is {value}", "use a share in (0, 1]")


class _Book:
    """One GPU: what its last looks said, and its count of errors."""

    __slots__ = ("at", "errors", "looks")

    def __init__(self) -> None:
        self.looks: deque[tuple[int, frozenset[Sign]]] = deque(maxlen=_LOOKS_MAX)
        self.errors: int | None = None
        self.at = 0


class GpuHealthDetector:
    """Finds GPUs that are hot, slowed, limited in power or have bad memory.

    Keeps recent looks at each GPU. The sign is given for each known replica on it, else for its
    host.
    """

    reads: ClassVar[tuple[type, ...]] = (GpuSeen,)

    def __init__(self, config: GpuHealthConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._lasts = nanos(config.lasts_s)
        self._gap = nanos(config.gap_s)
        self._books: dict[tuple[str, str], _Book] = {}
        self._pace = Pace()
        self.refused = 0

    def take(self, fact: GpuSeen, now: int) -> Sequence[Evidence]:
        """Take the figures of one GPU; return its signs, once for each known replica on it.

        New memory errors and bad rows are signs at once; heat, slowdown and a lowered power limit
        only after two minutes.
        """
        key = (fact.host, fact.gpu)
        book = self._books.get(key)
        if book is None:
            if len(self._books) >= GPUS_MAX:
                self.refused += 1
                return NOTHING
            book = self._books[key] = _Book()
        if not 0 <= now - book.at <= self._gap:
            book.looks.clear()
        book.at = now
        found = self._at_once(book, fact, now)
        book.looks.append((now, frozenset(self._now(fact))))
        for sign in (Sign.GPU_HOT, Sign.GPU_THROTTLED, Sign.GPU_POWER_LIMITED):
            lasted = self._lasted(book, sign, now)
            if lasted is None:
                self._pace.over((sign, key))
            elif self._pace.due((sign, key), now):
                found += self._evidence(fact, sign, _text(fact, sign, lasted), now, lasted)
        return found

    def forget(self, replica: str) -> None:
        """Do nothing: what is recorded is about GPUs, which outlive replicas."""

    # --- what is seen ----------------------------------------------------------------------------

    def _now(self, fact: GpuSeen) -> list[Sign]:
        """What one look says, before it is known whether it lasts."""
        found = []
        bound = self._bound(fact)
        if fact.temperature_c is not None and fact.temperature_c >= bound:
            found.append(Sign.GPU_HOT)
        reasons = fact.throttle or ()
        if not _SLOWED.isdisjoint(reasons):
            found.append(Sign.GPU_THROTTLED)
        limit, default = fact.power_limit_w, fact.power_default_w
        lowered = limit is not None and default and limit < self._config.lowered * default
        if lowered and POWER_CAP in reasons:
            found.append(Sign.GPU_POWER_LIMITED)
        return found

    def _bound(self, fact: GpuSeen) -> float:
        return self._config.hot_c if fact.temperature_max_c is None else fact.temperature_max_c

    def _lasted(self, book: _Book, sign: Sign, now: int) -> float | None:
        """For how long it has been so, in seconds; None where it has not lasted, or is over."""
        looks = book.looks
        if sign not in looks[-1][1]:
            return None
        window = [(at, said) for at, said in looks if now - at <= self._lasts + self._gap // 2]
        began = window[0][0]
        enough = now - began >= self._lasts and len(window) >= _LOOKS_MIN
        if not enough or sum(sign in said for _, said in window) < self._config.share * len(window):
            return None
        first = next(at for at, said in looks if sign in said)
        return seconds(now - first)

    def _at_once(self, book: _Book, fact: GpuSeen, now: int) -> list[Evidence]:
        """What is a sign at its first sight."""
        key = (fact.host, fact.gpu)
        found: list[Evidence] = []
        errors, before = fact.ecc_uncorrected, book.errors
        if errors is not None:
            book.errors = errors
            if before is not None and errors > before:
                text = f"{fact.label} had {errors - before} memory errors that cannot be corrected"
                more = float(errors - before)
                found += self._evidence(fact, Sign.GPU_MEMORY_ERRORS, text, now, more)
        if fact.remap_failed and self._pace.due((Sign.GPU_ROWS_EXHAUSTED, key), now):
            text = f"{fact.label} has no spare row of memory left for a bad one"
            found += self._evidence(fact, Sign.GPU_ROWS_EXHAUSTED, text, now)
        elif fact.remap_pending and self._pace.due((Sign.GPU_RESET_DUE, key), now):
            text = f"a bad row of {fact.label}'s memory is replaced at its next reset"
            found += self._evidence(fact, Sign.GPU_RESET_DUE, text, now)
        return found

    def _evidence(
        self, fact: GpuSeen, sign: Sign, text: str, now: int, amount: float = 0.0
    ) -> list[Evidence]:
        """One piece for each replica on it; where none is known, one about its host."""
        replicas = [name for name in fact.replicas[:REPLICAS_MAX] if name in self._census.replicas]
        abouts = [self._census.about(name) for name in replicas] or [About(host=fact.host)]
        source = REPORTED if fact.reporter else "host"
        numbers = _numbers(fact, sign, amount)
        return [Evidence(sign, about, now, source, text, numbers) for about in abouts]


def _numbers(fact: GpuSeen, sign: Sign, amount: float) -> dict[str, float]:
    numbers: dict[str, float] = {}
    if sign is Sign.GPU_MEMORY_ERRORS:
        numbers["errors"] = amount
    elif sign in (Sign.GPU_HOT, Sign.GPU_THROTTLED, Sign.GPU_POWER_LIMITED):
        numbers["lasted_s"] = amount
    if sign in (Sign.GPU_HOT, Sign.GPU_THROTTLED) and fact.temperature_c is not None:
        numbers["temperature_c"] = float(fact.temperature_c)
    if sign is Sign.GPU_POWER_LIMITED:
        numbers["limit_w"] = float(fact.power_limit_w or 0.0)
        numbers["default_w"] = float(fact.power_default_w or 0.0)
    return numbers


def _text(fact: GpuSeen, sign: Sign, lasted_s: float) -> str:
    span = f"for {lasted_s:.0f} s"
    if sign is Sign.GPU_HOT:
        return f"{fact.label} has been at {fact.temperature_c:.0f} °C and more {span}"
    if sign is Sign.GPU_THROTTLED:
        why = ", ".join(reason for reason in fact.throttle or () if reason in _SLOWED)
        return f"{fact.label} has been slowed {span}: {why}"
    return (
        f"{fact.label} has been at its power limit {span}: {fact.power_limit_w:.0f} W, and it came "
        f"with {fact.power_default_w:.0f} W"
    )


__all__ = ["GPUS_MAX", "GpuHealthConfig", "GpuHealthDetector"]
