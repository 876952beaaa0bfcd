"""Detects a process of Holdfast that lacks descriptors, kernel memory or local ports.

    accept or connect failed for want of something of ours ─► how often lately ─► OWN_SHORTAGE

Such a failure looks like a replica's, and is none: the connection was never tried, or the client
never heard. So it is told apart where it happens, counts against nobody, and is an incident of its
own. One of them is no sign: a burst passed, and the client's next try went through.

Rejected: reading it from the refusals of clients. Those name the bound on connections, too, which
an operator has set and need not be told of.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import OwnShortage
from holdfast.core.types import nanos, require

_REPORTS_MAX: Final = 10_000  # in one window; the oldest goes first


@dataclass(slots=True, frozen=True)
class OwnShortageConfig:
    """Settings: how often a process of Holdfast must lack a resource, in which time, for a sign.

    Checked when built: raises ``ConfigError``.
    """

    window_s: float = 30.0  # a shortage that lasts is told in every second of it
    count_min: int = 3  # one or two are a burst, and the next try went through

    def __post_init__(self) -> None:
        window = self.window_s
        fix = "use seconds above 0, up to an hour"
        require(0 < window <= 3_600, "own_shortage.window_s", f"is {window}", fix)
        few = self.count_min
        require(1 <= few <= 1_000, "own_shortage.count_min", f"is {few}", "use 1 to 1,000")


class OwnShortageDetector:
    """Finds processes of Holdfast that lack descriptors, memory or ports again and again.

    Keeps the reports of all its processes of the last half minute.
    """

    reads: ClassVar[tuple[type, ...]] = (OwnShortage,)

    def __init__(self, config: OwnShortageConfig) -> None:
        self._config = config
        self._window = nanos(config.window_s)
        self._reports: deque[tuple[int, OwnShortage]] = deque(maxlen=_REPORTS_MAX)
        self._pace = Pace()

    def take(self, fact: OwnShortage, now: int) -> Sequence[Evidence]:
        """Take one report; return ``OWN_SHORTAGE`` if this process lacked this resource often.

        By default three times in 30 s. The sign is about the fleet, and repeated at most every 30 s
        for all processes together.
        """
        config = self._config
        self._reports.append((now, fact))
        while now - self._reports[0][0] >= self._window:
            self._reports.popleft()
        same = [
            other.count
            for _, other in self._reports
            if (other.process, other.resource) == (fact.process, fact.resource)
        ]
        times = sum(same)
        if times < config.count_min or not self._pace.due(Sign.OWN_SHORTAGE, now):
            return NOTHING
        limit = f" (its limit is {fact.limit})" if fact.limit else ""
        text = (
            f"{fact.process} had no {fact.resource} left{limit} {times} times in"
            f" {config.window_s:g} s"
        )
        numbers = {"missing": float(times), "window_s": config.window_s}
        if fact.limit:
            numbers["descriptors"] = float(fact.limit)
        return (Evidence(Sign.OWN_SHORTAGE, About(), now, fact.process, text, numbers),)

    def forget(self, replica: str) -> None:
        """Do nothing: what is recorded is about Holdfast's processes, not about a replica."""


__all__ = ["OwnShortageConfig", "OwnShortageDetector"]
