"""Decides what a platform's readiness probe is told of a replica, and what to tell without control.

    control: view ─► ``told_ready`` ─► one answer for each replica ─► its pod's agent
    agent:   the last answer ─► ``VerdictHold`` ─► the kubelet's readiness probe

A replica that may get requests is ready, one that has not proven itself yet is not: so a rollout of
the platform waits for canaries. Of the others only those are taken out that control takes out, and
of those on suspicion never more than half of a pool. Readiness is all that a verdict may change: it
has no part in liveness, so that no verdict ever ends a process.

While control is away the answer is *ready*: the engine's own probes still hold. Rejected: keeping
the last verdict. A control that dies just after it doubted half of a fleet would leave the other
half alone with all the work. Rejected: asking control from the kubelet itself. A control that is
down would empty every Service at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.core.messages import ReplicaView
from holdfast.core.types import Decision, State, nanos, require

_UNPROVEN: Final = frozenset({State.STARTING, State.LOADING, State.WARMING})
_LEAVING: Final = frozenset({State.DRAINING, State.STOPPED})


def told_ready(rows: Iterable[ReplicaView], share_max: float) -> dict[str, Decision]:
    """Return what each replica's readiness probe shall say, by replica id, with the reason.

    ``rows`` are all replicas of one pool. Ready if it gets requests; at most ``share_max`` of the
    pool is unready on suspicion, facts such as dead have no bound.
    """
    answers: dict[str, Decision] = {}
    suspected: list[ReplicaView] = []
    members = 0
    for row in rows:
        own = row.replica.id
        if row.share > 0:
            members += 1
            answers[own] = Decision(True, f"{row.state}: it gets requests")
        elif row.state in _UNPROVEN:
            answers[own] = Decision(False, f"{row.state}: it has answered no canary yet")
        elif row.state in _LEAVING:
            answers[own] = Decision(False, f"{row.state}: {row.reason or 'it leaves'}")
        elif row.state is State.DEAD or row.firm:  # facts: no bound keeps them
            answers[own] = Decision(False, f"{row.state}: {row.reason or 'it does not answer'}")
        else:
            members += 1
            suspected.append(row)
    bound = int(share_max * members + 1e-9)
    for index, row in enumerate(suspected):
        if index < bound:
            answer = Decision(False, f"{row.state}: {row.reason or 'on suspicion'}")
        else:
            answer = Decision(True, f"{bound} of {members} are out on suspicion, as many as may be")
        answers[row.replica.id] = answer
    return answers


@dataclass(slots=True, frozen=True)
class VerdictHoldConfig:
    """Settings: how many seconds a verdict holds, and how long control may not know a replica."""

    fresh_s: float = 30.0  # three answers missing: control restarts in a few seconds
    unknown_s: float = 60.0  # a new pod is known within seconds; beyond it the setup is wrong

    def __post_init__(self) -> None:
        for name in ("fresh_s", "unknown_s"):
            value = getattr(self, name)
            require(0 < value <= 3_600, f"readiness.{name}", f"is {value}", "use up to 3600 s")


class VerdictHold:
    """Keeps control's last word on one replica, in its pod's agent, for the readiness probe.

    Ready where control is not heard; asks nobody itself.
    """

    __slots__ = ("_at", "_config", "_fresh", "_unknown", "_unknown_from", "_verdict")

    def __init__(self, config: VerdictHoldConfig) -> None:
        self._config = config
        self._fresh, self._unknown = nanos(config.fresh_s), nanos(config.unknown_s)
        self._verdict: Decision | None = None  # None: control does not know the replica
        self._at: int | None = None  # when control last answered
        self._unknown_from: int | None = None

    def heard(self, verdict: Decision | None, now: int) -> None:
        """Store an answer of control; ``None`` says that control does not know the replica."""
        self._verdict, self._at = verdict, now
        if verdict is not None:
            self._unknown_from = None
        elif self._unknown_from is None:
            self._unknown_from = now

    def answer(self, now: int) -> Decision:
        """Return the ``Decision`` that the readiness probe is told now, with the reason.

        Control's word while it is fresh. Ready before its first answer, when its word is too old,
        or when it has not known the replica for long; not ready while it has not known it for a
        short time.
        """
        if self._at is None:
            return Decision(True, "control has not answered yet; the engine's own probes decide")
        if now - self._at > self._fresh:
            away_s = (now - self._at) / 1e9
            return Decision(True, f"control has been away for {away_s:.0f} s: nobody is doubted")
        if self._verdict is not None:
            return self._verdict
        since = self._unknown_from if self._unknown_from is not None else now
        if now - since <= self._unknown:
            return Decision(False, "control has not found this pod yet")
        return Decision(True, "control does not know this pod: look at models[].discover")


__all__ = ["VerdictHold", "VerdictHoldConfig", "told_ready"]
