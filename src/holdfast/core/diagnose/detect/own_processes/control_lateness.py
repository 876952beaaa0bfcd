"""Detects a control whose event loop stands still so often that its probes cannot be trusted.

    the loop was late ─► long enough to count? ─► how much of the last half minute ─► CONTROL_LATE

A loop that is late by tenths of a second several times a second is a busy machine: canaries have
seconds, and control excuses one missing answer of a replica. A loop that stands still for longer is
late for everything at once: canaries, drains, views for gateways. Nothing that control then says of
replicas is worth much, and whoever reads it should know.

One pause is no sign, however long it was: it is over when it is told, and it tells nothing of the
next minute. Rejected: the share of all lateness. Three tenths of a second, three times a second,
are most of the time, and harm no verdict.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import ControlLate
from holdfast.core.types import nanos, require

_SOURCE: Final = "control"
_PAUSES_MAX: Final = 10_000  # in one window; the oldest goes first


@dataclass(slots=True, frozen=True)
class ControlLatenessConfig:
    """Settings: which pauses of control's own loop count, and how many seconds are a sign.

    Checked when built: raises ``ConfigError``.
    """

    pause_s: float = 0.5  # shorter ones are a busy machine: a canary has seconds
    window_s: float = 30.0  # half a dozen canaries of each replica
    late_s: float = 8.0  # of the window, in sum: more than a canary's deadline in every other one
    pauses_min: int = 2  # one is over when it is told

    def __post_init__(self) -> None:
        for name in ("pause_s", "window_s", "late_s"):
            value = getattr(self, name)
            fits = 0 < value <= 3_600
            fix = "use seconds above 0, up to an hour"
            require(fits, f"control_lateness.{name}", f"is {value}", fix)
        least = f"is {self.late_s}, more than window_s"
        fits = self.late_s <= self.window_s
        require(fits, "control_lateness.late_s", least, f"use at most window_s, {self.window_s}")
        few = self.pauses_min
        require(1 <= few <= 1_000, "control_lateness.pauses_min", f"is {few}", "use 1 to 1,000")


class ControlLatenessDetector:
    """Finds a control whose own event loop stood still too much in the last half minute.

    Keeps the pauses of half a second and more; it is about control, not about replicas.
    """

    reads: ClassVar[tuple[type, ...]] = (ControlLate,)

    def __init__(self, config: ControlLatenessConfig) -> None:
        self._config = config
        self._window = nanos(config.window_s)
        self._pauses: deque[tuple[int, float]] = deque(maxlen=_PAUSES_MAX)  # when told, and seconds
        self._pace = Pace()

    def take(self, fact: ControlLate, now: int) -> Sequence[Evidence]:
        """Take one late tick of control's loop; return ``CONTROL_LATE`` if pauses add up.

        By default two or more pauses with 8 s in sum within 30 s; one pause is never enough.
        """
        config = self._config
        if fact.late_s < config.pause_s:
            return NOTHING
        self._pauses.append((now, fact.late_s))
        while now - self._pauses[0][0] >= self._window:
            self._pauses.popleft()
        late_s = min(sum(late_s for _, late_s in self._pauses), config.window_s)
        if len(self._pauses) < config.pauses_min or late_s < config.late_s:
            return NOTHING
        if not self._pace.due(Sign.CONTROL_LATE, now):
            return NOTHING
        worst_s = max(late_s for _, late_s in self._pauses)
        text = (
            f"control's own loop stood still {len(self._pauses)} times in {config.window_s:g} s,"
            f" for {late_s:.1f} s in sum, the longest {worst_s:.1f} s"
        )
        numbers = {"late_s": late_s, "worst_s": worst_s, "window_s": config.window_s}
        return (Evidence(Sign.CONTROL_LATE, About(), now, _SOURCE, text, numbers),)

    def forget(self, replica: str) -> None:
        """Do nothing: what is recorded is about control, not about a replica."""


__all__ = ["ControlLatenessConfig", "ControlLatenessDetector"]
