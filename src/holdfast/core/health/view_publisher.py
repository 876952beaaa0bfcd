"""Decides when gateways get a new view of the fleet, and builds it.

A new view goes out whenever a state changed, and once a second while shares grow in slow starts. An
unchanged view is sent again from time to time: a gateway that gets none doubts its control. An
empty view is one too: where every model is at zero, gateways still must know that it is so. Whether
a pool fails open is decided here, because only here all its members are at hand.

Beside states and shares a view says three things that only control can know: that what runs on a
replica will not be answered, how long its canaries take, and when one that does not serve may do
so. The last two change all the time and are worth no view of their own: they go out with the next
one, or where they changed much with the one that says that control is there.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.health import ejection
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.lifecycle import Conclusion, Signal
from holdfast.core.health.load_estimate import LoadEstimate
from holdfast.core.health.member import Member
from holdfast.core.messages import FleetAction, FleetView, Notice, Publish, ReplicaView
from holdfast.core.types import Halt, State, nanos, seconds

_NOT_YET: Final = (State.STARTING, State.LOADING, State.DEAD)  # no process that was sent anything
_CANARY_MOVED: Final = 1.5  # of the time that gateways know: more, or less by so much, is news


class Publisher:
    """Builds the ``FleetView`` that control sends to gateways, and keeps the latest one.

    It also learns how long starts take and which pools fail open; it sends nothing.
    """

    __slots__ = (
        "_config",
        "_epoch",
        "_heartbeat",
        "_hurried",
        "_loads",
        "_looked_at",
        "_published_at",
        "_ramp",
        "_relaunch_after",
        "_view",
        "panics",
        "shares",
        "version",
    )

    def __init__(self, config: FleetConfig, epoch: int) -> None:
        self._config = config
        self._epoch = epoch
        self._ramp = nanos(config.ramp_s)
        self._heartbeat = nanos(config.heartbeat_s)
        self._loads = LoadEstimate(nanos(config.health.load_timeout_s))
        self._relaunch_after = nanos(config.relaunch_after_s)
        self._view: FleetView | None = None
        self._looked_at = 0
        self._published_at = 0
        self._hurried = False
        self.version = 0
        self.shares: dict[str, float] = {}
        self.panics: dict[str, str] = {}  # why, by model

    def hurry(self) -> None:
        """Let the next ``look`` publish a view at once: what changed shows in no notice."""
        self._hurried = True

    def look(
        self,
        members: Mapping[str, Member],
        doubts: Container[str],
        actions: list[FleetAction],
        now: int,
    ) -> None:
        """Append a ``Publish`` to the actions if anything changed or a heartbeat is due.

        Also appends notices when a pool begins or ends to fail open. Called after each event.
        """
        moved = self._hurried or any(isinstance(action, Notice) for action in actions)
        if not moved and self.version and now - self._looked_at < self._ramp:
            return
        self._looked_at, self._hurried = now, False
        self._loads.look(members.values(), now)
        readmitted = self._look_for_panic(members.values(), doubts, actions, now)
        shares: dict[str, float] = {}
        for member in members.values():
            replica = member.replica
            panic = bool(readmitted) and replica.id in readmitted.get(replica.model, ())
            shares[replica.id] = member.health.share(now, panic=panic)
        same = shares == self.shares and not moved and self.version  # the first may well be empty
        if same and (now - self._published_at < self._heartbeat or self._view is None):
            return
        views = [
            self._replica_view(each, shares[each.replica.id], doubts, now)
            for each in members.values()
        ]
        if same and self._view is not None and not _worth_telling(self._view.replicas, views):
            self._published_at = now
            actions.append(Publish(self._view))  # nothing new, but control is there
            return
        self.shares = shares
        self._published_at = now
        self.version += 1
        self._view = FleetView(self.version, tuple(views), tuple(self.panics), self._epoch)
        actions.append(Publish(self._view))

    def _replica_view(
        self, member: Member, share: float, doubts: Container[str], now: int
    ) -> ReplicaView:
        health = member.health
        may_try = member.may_try or member.replica.model in doubts  # their word counts for nothing
        firm = health.never_readmit_by_panic
        told = (_halt(member), _canary_s(member), self._ready_in_s(member, now), may_try)
        return ReplicaView(member.replica, health.state, share, firm, health.reason, *told)

    def _ready_in_s(self, member: Member, now: int) -> float | None:
        """When a replica that does not serve may do so, as far as that can be told."""
        health = member.health
        if health.state is State.READY:
            return None
        if health.state in (State.STARTING, State.LOADING, State.WARMING):
            return self._loads.remaining_s(member, now)
        if health.state is State.QUARANTINED:
            if health.full:
                return 0.0  # room comes back with the next request that ends there
            if health.passes_left is not None:  # it is on its way back
                return round(health.passes_left * self._config.health.canary_quarantined_s, 1)
            since = max(health.since, member.excused_at)
            rest = max(0, since + self._relaunch_after - now)
            return round(seconds(rest) + (self._loads.usual_s(member.replica.model) or 0.0), 1)
        if health.state is State.DEAD and not member.leaving:
            return self._loads.usual_s(member.replica.model) or 0.0
        return None  # it serves, or leaves: whether it has a successor is not known here

    def _look_for_panic(
        self,
        members: Iterable[Member],
        doubts: Container[str],
        actions: list[FleetAction],
        now: int,
    ) -> dict[str, tuple[str, ...]]:
        readmitted: dict[str, tuple[str, ...]] = {}
        pools: dict[str, list[ejection.PoolMember]] = {}
        for member in members:
            pools.setdefault(member.replica.model, []).append(member.health)
        for model in dict.fromkeys([*pools, *self.panics]):
            pool = pools.get(model, [])
            panic = ejection.panic(self._config.ejection, pool, doubtful=model in doubts)
            if panic.active:
                readmitted[model] = panic.readmitted
                if model not in self.panics:
                    actions.append(Notice(now, model, "", "panic", panic.reason))
                self.panics[model] = panic.reason
            elif self.panics.pop(model, None) is not None:
                actions.append(Notice(now, model, "", "panic over", panic.reason))
        return readmitted


def _halt(member: Member) -> Halt | None:
    """Why nothing that runs on this replica will be answered; ``None``: it may well be."""
    health = member.health
    if health.frozen or health.state in _NOT_YET:
        return Halt.STOPPED
    if health.state is not State.QUARANTINED:
        return None
    if health.cause is Signal.STALLED:
        return Halt.STALLED
    silent = member.canary_verdict is CanaryVerdict.TIMEOUT
    failed = health.cause is Conclusion.FAILED_REPEATEDLY
    return Halt.STALLED if failed and silent else None


def _canary_s(member: Member) -> float | None:
    latency = member.baseline.median()
    return None if latency is None else round(seconds(latency), 3)


def _worth_telling(before: Iterable[ReplicaView], after: Iterable[ReplicaView]) -> bool:
    """Whether times changed enough, since the view that gateways have, to tell them."""
    for old, new in zip(before, after, strict=False):
        if new.ready_in_s != old.ready_in_s or (new.canary_s is None) != (old.canary_s is None):
            return True
        if new.canary_s is not None and old.canary_s is not None:
            low, high = sorted((new.canary_s, old.canary_s))
            if high > _CANARY_MOVED * low:
                return True
    return False


__all__ = ["Publisher"]
