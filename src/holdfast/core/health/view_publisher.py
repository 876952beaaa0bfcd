"""Decides when gateways get a new view of the fleet, and builds it.

A new view goes out whenever a state changed, and once a second while shares grow in slow starts. An
unchanged view is sent again from time to time: a gateway that gets none doubts its control. An
empty view is one too: where every model is at zero, gateways still must know that it is so. Whether
a pool fails open is decided here, because only here all its members are at hand.
"""

from collections.abc import Container, Iterable, Mapping

from holdfast.core.health import ejection
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.member import Member
from holdfast.core.messages import FleetAction, FleetView, Notice, Publish, ReplicaView
from holdfast.core.types import nanos


class Publisher:
    """Builds views of the fleet for gateways and remembers the latest one."""

    __slots__ = (
        "_config",
        "_epoch",
        "_heartbeat",
        "_looked_at",
        "_published_at",
        "_ramp",
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
        self._view: FleetView | None = None
        self._looked_at = 0
        self._published_at = 0
        self.version = 0
        self.shares: dict[str, float] = {}
        self.panics: dict[str, str] = {}  # why, by model

    def look(
        self,
        members: Mapping[str, Member],
        doubts: Container[str],
        actions: list[FleetAction],
        now: int,
    ) -> None:
        """Add to the actions a new view if anything changed, and notices of pools failing open."""
        moved = any(isinstance(action, Notice) for action in actions)
        if not moved and self.version and now - self._looked_at < self._ramp:
            return
        self._looked_at = now
        readmitted = self._look_for_panic(members.values(), doubts, actions, now)
        views = []
        shares: dict[str, float] = {}
        for member in members.values():
            health = member.health
            panic = member.replica.id in readmitted.get(member.replica.model, ())
            share = shares[member.replica.id] = health.share(now, panic=panic)
            firm = health.never_readmit_by_panic
            views.append(ReplicaView(member.replica, health.state, share, firm, health.reason))
        if shares == self.shares and not moved and self.version:  # the first may well be empty
            if now - self._published_at >= self._heartbeat and self._view is not None:
                self._published_at = now
                actions.append(Publish(self._view))  # nothing new, but control is there
            return
        self.shares = shares
        self._published_at = now
        self.version += 1
        self._view = FleetView(self.version, tuple(views), tuple(self.panics), self._epoch)
        actions.append(Publish(self._view))

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


__all__ = ["Publisher"]
