"""Detects gateway processes and a control that were frozen, by what their supervisor saw.

    supervisor: stopped, stuck or late ─► replaced? ─► CONTROL_FROZEN, GATEWAY_FROZEN, GATEWAY_LATE

A process that the supervisor replaced was frozen beyond doubt, and is a sign at once. One that is
stopped and still there is a sign only after longer than the supervisor takes to replace it. One
that is merely late is a sign after a while, because a busy machine makes everybody late for
seconds. Of a control that is late ``control_lateness`` judges: control knows it best itself. The
supervisor is seen by control; nobody replaces it, so it is a sign after the longer time, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import ServingProcessFrozen
from holdfast.core.health.process_watch import Condition
from holdfast.core.types import require

_FROZEN_SIGNS: Final = {
    "control": Sign.CONTROL_FROZEN,
    "supervisor": Sign.SUPERVISOR_FROZEN,  # as control sees it
}
_STANDS: Final = frozenset({Condition.STOPPED, Condition.STUCK})
_WORDS: Final = {
    Condition.STOPPED: "was stopped (SIGSTOP or the like)",
    Condition.STUCK: "was stuck: its event loop did not turn",
    Condition.LATE: "is late: its event loop has not turned",
}


@dataclass(slots=True, frozen=True)
class ServingProcessConfig:
    """Settings: how long a process that was not replaced must stand still to be a sign.

    Checked when built: raises ``ConfigError``.
    """

    late_s: float = 10.0  # late and running: shorter ones are a busy machine, `status` shows them
    frozen_s: float = 10.0  # stopped and not replaced: the supervisor would have acted after 3

    def __post_init__(self) -> None:
        for name in ("late_s", "frozen_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to an hour"
            require(0 < value <= 3_600, f"serving_processes.{name}", f"is {value}", fix)


class ServingProcessDetector:
    """Finds gateways, controls and supervisors that were frozen, and gateways that are late.

    Keeps only when each sign was last reported.
    """

    reads: ClassVar[tuple[type, ...]] = (ServingProcessFrozen,)

    def __init__(self, config: ServingProcessConfig) -> None:
        self._config = config
        self._pace = Pace()

    def take(self, fact: ServingProcessFrozen, now: int) -> Sequence[Evidence]:
        """Take what was seen of one process; return a sign if it stood still for too long.

        A process that the supervisor replaced is a sign at once. A late control or supervisor is
        none here.
        """
        sign = self._sign(fact)
        if sign is None:
            return NOTHING
        if not fact.replaced and not self._pace.due((sign, fact.process), now):
            return NOTHING
        end = "; it was killed and replaced" if fact.replaced else ""
        text = (
            f"{fact.process} (pid {fact.pid}) {_WORDS[fact.condition]} for {fact.lasted_s:.1f} s"
            f"{end}"
        )
        numbers = {"lasted_s": fact.lasted_s}
        return (Evidence(sign, About(), now, fact.process, text, numbers),)

    def _sign(self, fact: ServingProcessFrozen) -> Sign | None:
        if fact.condition in _STANDS:
            if fact.replaced or fact.lasted_s >= self._config.frozen_s:
                return _FROZEN_SIGNS.get(fact.process, Sign.GATEWAY_FROZEN)
        elif fact.condition is Condition.LATE and fact.process not in _FROZEN_SIGNS:
            return Sign.GATEWAY_LATE if fact.lasted_s >= self._config.late_s else None
        return None

    def forget(self, replica: str) -> None:
        """Do nothing: what is recorded is about Holdfast itself, not about a replica."""


__all__ = ["ServingProcessConfig", "ServingProcessDetector"]
