"""Detects replicas that are silent because their host is not ready, out of reach or leaving.

    a replica is silent ─┬─ its host is not ready, or out of reach ──────────► HOST_NOT_READY
                         └─ nothing of it answers, and its host is leaving ──► HOST_LEAVING

Neither half is a failure alone. A host whose agent is down may well serve on, and then its replicas
answer; a replica that is silent on a host that is well is ill itself. Both together are the host's,
and a search for a debugger or a bad scheduler on it would be in vain.

A host that is leaving still runs what is on it, for days where somebody cordoned it and went home.
So there it takes more: not even the health page answers.

A host of which nothing is known judges nothing, and what was said of one is forgotten after a
while: its platform repeats what still holds.

Rejected: a sign for each host that is not ready. Kubelets restart, and nobody is to be called for a
host on which everybody is served.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import CanaryAnswered, HostConditionSeen
from holdfast.core.diagnose.replica_registry import HOSTS_MAX, ReplicaRegistry
from holdfast.core.types import HostCondition, nanos, require

_REASON_MAX: Final = 160
_WORDS: Final = {
    HostCondition.NOT_READY: "is not ready",
    HostCondition.UNREACHABLE: "does not report any more",
    HostCondition.LEAVING: "is cordoned, drained or taken back",
}


@dataclass(slots=True, frozen=True)
class HostConditionConfig:
    """Settings: how many silent canaries count, and how long a host's condition holds.

    Checked when built: raises ``ConfigError``.
    """

    silent_row: int = 2  # as many as take a replica out; one may be lost on the way
    holds_s: float = 180.0  # platforms repeat a condition each minute: two may be lost

    def __post_init__(self) -> None:
        row = self.silent_row
        require(1 <= row <= 100, "hosts.silent_row", f"is {row}", "use 1 to 100 canaries")
        fits = 0 < self.holds_s <= 86_400
        fix = "use seconds above 0, up to a day"
        require(fits, "hosts.holds_s", f"is {self.holds_s}", fix)


@dataclass(slots=True)
class _Silence:
    """The last canaries of one replica, all without an answer."""

    canaries: int = 0
    whole: int = 0  # of them, the last ones to which not even its page answered


class HostConditionDetector:
    """Finds hosts that are not ready or leaving, and have a replica whose canaries get no answer.

    Keeps the conditions of hosts that are not ready, and rows of silent canaries per replica.
    """

    reads: ClassVar[tuple[type, ...]] = (HostConditionSeen, CanaryAnswered)

    def __init__(self, config: HostConditionConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._hosts: dict[str, tuple[HostConditionSeen, int]] = {}  # only those that are not well
        self._silent: dict[str, _Silence] = {}  # as many as the census holds
        self._pace = Pace()

    def take(self, fact: HostConditionSeen | CanaryAnswered, now: int) -> Sequence[Evidence]:
        """Take a host's condition (stored only) or a canary; return a sign about the host.

        ``HOST_NOT_READY``, or ``HOST_LEAVING`` if not even the health page answers. Neither a
        condition nor a silence alone is a sign.
        """
        if isinstance(fact, HostConditionSeen):
            self._note(fact, now)
            return NOTHING
        if fact.replica not in self._census.replicas:
            return NOTHING
        silence = self._listen(fact)
        found = self._judge(fact.replica, silence, now) if silence is not None else None
        return (found,) if found is not None else NOTHING

    def forget(self, replica: str) -> None:
        """Drop the row of silent canaries of a replica; conditions of hosts stay."""
        self._silent.pop(replica, None)

    def _note(self, fact: HostConditionSeen, now: int) -> None:
        self._hosts.pop(fact.host, None)
        if fact.condition is HostCondition.READY:
            self._pace.over(fact.host)
            return
        while len(self._hosts) >= HOSTS_MAX:  # the one heard of longest ago goes
            del self._hosts[next(iter(self._hosts))]
        self._hosts[fact.host] = (fact, now)

    def _listen(self, fact: CanaryAnswered) -> _Silence | None:
        """The replica's silence with this canary counted; None: it spoke, or may be busy."""
        if fact.verdict is CanaryVerdict.UNKNOWN:
            return None  # whoever asked was late: neither an answer nor a silence
        busy = fact.verdict is CanaryVerdict.TIMEOUT and (
            bool(fact.progress) or (fact.progress is None and bool(fact.running))
        )
        if not fact.verdict.failed or fact.status is not None or busy:
            self._silent.pop(fact.replica, None)
            return None
        silence = self._silent.setdefault(fact.replica, _Silence())
        silence.canaries += 1
        silence.whole = 0 if fact.page_ok else silence.whole + 1
        return silence

    def _judge(self, replica: str, silence: _Silence, now: int) -> Evidence | None:
        host = self._census.replicas[replica].host
        fact, told_at = self._hosts.get(host, (None, 0))
        if fact is None or now - told_at > nanos(self._config.holds_s):
            return None
        leaving = fact.condition is HostCondition.LEAVING
        row = silence.whole if leaving else silence.canaries
        if row < self._config.silent_row or not self._pace.due(host, now):
            return None
        lasted = f" for {fact.lasted_s:.0f} s" if fact.lasted_s is not None else ""
        said = f" says: {fact.reason[:_REASON_MAX]}" if fact.reason else " says"
        text = (
            f"{host} {_WORDS[fact.condition]}{lasted}, as {fact.source}{said}; {row} canaries in a "
            f"row got no answer from {replica} on it"
        )
        numbers = {"canaries": float(row)}
        if fact.lasted_s is not None:
            numbers["lasted_s"] = fact.lasted_s
        sign = Sign.HOST_LEAVING if leaving else Sign.HOST_NOT_READY
        return Evidence(sign, About(host=host), now, "platform", text, numbers)


__all__ = ["HostConditionConfig", "HostConditionDetector"]
