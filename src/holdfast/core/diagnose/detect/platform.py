"""Detects platforms that cannot be read, and replicas that they are asked for and do not run.

    a part of a source fails, for long ─► SOURCE_BLIND
    replicas wanted, none placed ─► none of the model runs: soon; some do: for long ─► NOT_PLACED

A source that cannot see is no replica's failure, and yet whatever it would have found is missing:
pods that come or end, hosts that are sick. An API server that restarts is back within a minute.

A pod that waits for a node is routine where nodes are made on demand, and takes minutes. So it is
told late while the model runs, and soon where nobody else serves it. What waits without a word of
its platform has only begun.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import ReplicasWanted, SourceFailing
from holdfast.core.types import require

_REASON_MAX: Final = 160


@dataclass(slots=True, frozen=True)
class PlatformConfig:
    """Settings: how long a source may be unreadable, and wanted replicas may wait.

    Checked when built: raises ``ConfigError``.
    """

    blind_s: float = 60.0  # an API server that restarts, or a token that is renewed, takes less
    unserved_s: float = 60.0  # no replica of the model runs: its users wait meanwhile
    waiting_s: float = 600.0  # others serve it: a node with GPUs takes minutes to come

    def __post_init__(self) -> None:
        for name in ("blind_s", "unserved_s", "waiting_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"platform.{name}", f"is {value}", fix)


class PlatformDetector:
    """Finds sources that cannot be read, and models with replicas that no platform places.

    Keeps only when each sign was last reported: durations come with the facts.
    """

    reads: ClassVar[tuple[type, ...]] = (SourceFailing, ReplicasWanted)

    def __init__(self, config: PlatformConfig) -> None:
        self._config = config
        self._pace = Pace()

    def take(self, fact: SourceFailing | ReplicasWanted, now: int) -> Sequence[Evidence]:
        """Take one fact; return ``SOURCE_BLIND`` or ``NOT_PLACED`` if it has lasted too long.

        Replicas that wait without a reason from their platform are no sign.
        """
        found = (
            self._blind(fact, now) if isinstance(fact, SourceFailing) else self._wanted(fact, now)
        )
        return (found,) if found is not None else NOTHING

    def _blind(self, fact: SourceFailing, now: int) -> Evidence | None:
        key = (Sign.SOURCE_BLIND, fact.source)
        if fact.failing_s < self._config.blind_s or not self._pace.due(key, now):
            return None
        reason = fact.reason[:_REASON_MAX]
        text = f"{fact.source}: {fact.part} could not be read for {fact.failing_s:.0f} s: {reason}"
        numbers = {"failing_s": fact.failing_s}
        return Evidence(Sign.SOURCE_BLIND, About(), now, fact.source, text, numbers)

    def _wanted(self, fact: ReplicasWanted, now: int) -> Evidence | None:
        config = self._config
        lasts = config.waiting_s if fact.running else config.unserved_s
        key = (Sign.NOT_PLACED, fact.model)
        if fact.waited_s < lasts or not fact.reason or not self._pace.due(key, now):
            return None
        text = (
            f"{fact.pending} of {fact.desired} replicas wait for {fact.waited_s:.0f} s, as its "
            f"platform says: {fact.reason[:_REASON_MAX]}"
        )
        numbers = {
            "pending": float(fact.pending),
            "running": float(fact.running),
            "waited_s": fact.waited_s,
        }
        about = About(model=fact.model)
        return Evidence(Sign.NOT_PLACED, about, now, fact.source, text, numbers)

    def forget(self, replica: str) -> None:
        """Do nothing: what is recorded is about platforms and models, not about a replica."""


__all__ = ["PlatformConfig", "PlatformDetector"]
