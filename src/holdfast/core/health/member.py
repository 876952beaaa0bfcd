"""The record that control keeps of one replica: health, canaries, users' requests, drain."""

from collections import deque
from typing import Final

from holdfast.core.canary import CanaryConfig, CanaryVerdict
from holdfast.core.health.baseline import CanaryBudget, LatencyBaseline
from holdfast.core.health.drain import Drain
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.health.lifecycle import Signal
from holdfast.core.messages import CanaryResult, Tally
from holdfast.core.types import SECOND, Replica, State

_CALLS_APART: Final = (
    5 * SECOND
)  # canaries that failures call: as often as one nobody uses is asked
_RIGHT: Final = (Signal.CANARY_PASS, Signal.CANARY_SLOW)
_HEARD_MAX: Final = 8  # times it was heard of, a second apart: they reach back over a canary's wait


class Member:
    """One replica of the fleet: its health, baseline, budget, drain and what gateways reported."""

    __slots__ = (
        "baseline",
        "budget",
        "busy_at",
        "canary",
        "canary_at",
        "canary_error",
        "canary_out",
        "canary_passed",
        "canary_verdict",
        "drain",
        "excused_at",
        "exits",
        "failed_at",
        "full_readings",
        "health",
        "heard",
        "inflight_at",
        "leaving",
        "move_told",
        "moved_at",
        "only_busy_since",
        "progress_at",
        "replica",
        "served_at",
        "slow",
        "told_at",
        "wake_at",
    )

    def __init__(self, replica: Replica, health: ReplicaHealth, canary: CanaryConfig) -> None:
        self.replica = replica
        self.health = health
        self.canary = canary
        self.budget = CanaryBudget(canary)
        self.leaving = False  # drained on request: it is not started again
        self.exits = 0  # in a row, without a long life between
        self.busy_at = 0
        self.canary_passed = True
        self.progress_at = 0  # some user last got anything from it, of whichever process
        self.begin_life()

    def begin_life(self) -> None:
        """Reset everything that was observed of the previous process of this replica."""
        self.drain: Drain | None = None
        self.move_told = False  # gateways were asked to move what is left; their next word decides
        self.inflight_at: dict[str, int] = {}  # as each gateway last said
        self.only_busy_since: int | None = None
        self.canary_out = False
        self.canary_at = 0
        self.canary_verdict: CanaryVerdict | None = None  # of the latest that says anything of it
        self.canary_error = False  # the engine said that it fails (5xx)
        self.heard: deque[int] = deque(maxlen=_HEARD_MAX)  # it answered a canary or a user
        self.wake_at = 0  # no earlier tick has anything to do here
        self.baseline = LatencyBaseline(self.canary)
        self.slow = False  # its latest canary was right, and late
        self.moved_at = 0  # users last got tokens from it, or began to wait for some
        self.told_at: dict[str, int] = {}  # when each gateway last said anything of it
        self.served_at = self.failed_at = 0  # users were last answered there, or failed
        self.full_readings = 0  # in a row, of a KV cache without room
        self.excused_at = 0  # its quarantine had an excuse: work that makes room, or a stop

    def canary_ended(self, result: CanaryResult, signal: Signal, now: int) -> None:
        """Record a conclusive canary: when it ended, its verdict, whether it passed or was slow."""
        self.canary_at = now
        self.canary_verdict = result.verdict
        failed = result.verdict is CanaryVerdict.FAIL
        self.canary_error = failed and (result.status or 0) >= 500
        self.canary_passed = signal in _RIGHT
        self.slow = signal is Signal.CANARY_SLOW

    def hear(self, now: int) -> None:
        """Note that the replica answered a canary or a user, right or wrong."""
        if not self.heard or now - self.heard[-1] >= SECOND:
            self.heard.append(now)

    def heard_by(self, now: int) -> int:
        """The last time up to ``now`` at which the replica answered anything; 0 = not lately."""
        return max((at for at in self.heard if at <= now), default=0)

    def users(self, gateway: str, told: Tally, now: int) -> None:
        """Record one gateway's report on its users' requests on this replica.

        A failure calls a canary: where few requests come, a breaker would wait for the fifth, and
        users' tokens earn a canary in minutes only.
        """
        if told.tokens or told.moved or not self.inflight:
            self.moved_at = now
        self.progress_at = now if told.progressed else self.progress_at
        self.inflight_at[gateway] = told.inflight
        self.told_at[gateway] = now
        self.budget.served(told.tokens, now)
        self.served_at = now if told.successes else self.served_at
        self.failed_at = now if told.failures else self.failed_at
        if told.failures and now - self.canary_at >= _CALLS_APART:
            self.health.call_canary(now)
            self.wake_at = now

    def stands(self, now: int, patience: int) -> bool:
        """Whether requests are on the replica and none got a token for ``patience``."""
        return self.inflight > 0 and now - self.moved_at >= patience

    def owes(self, now: int, patience: int) -> bool:
        """Whether its next canary is due whatever it costs, because the replica is in doubt."""
        doubted = self.slow or not self.canary_passed or self.health.called
        return doubted or self.health.state is not State.READY or self.stands(now, patience)

    @property
    def stands_still(self) -> bool:
        """Whether requests there make no progress: its process is frozen, or no token comes."""
        health = self.health
        stalled = health.state is State.QUARANTINED and health.cause is Signal.STALLED
        return health.frozen or (stalled and self.inflight > 0)

    @property
    def inflight(self) -> int:
        """Requests on the replica now, summed over all gateways."""
        return sum(self.inflight_at.values())


__all__ = ["Member"]
