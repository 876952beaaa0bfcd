"""Drives the autoscaler of a simulated fleet: tells it the demand, and adds and drains replicas.

    queue, engines, tokens served ─► Demand ─► Autoscaler.decide ─► Joined, or DrainAsked … Left

The decision is that of the control loop (``core.deploy.autoscale``). What it is told is what a
gateway and its engines report once a second; a replica that is added starts, loads and passes its
canary as any other. How many there were is kept as replica-seconds: that is what they cost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.deploy.autoscale import Autoscaler, Demand, ScalingConfig
from holdfast.core.health.fleet import Fleet
from holdfast.core.messages import DrainAsked, FleetEvent, Joined, Left
from holdfast.core.request.lane import Lane
from holdfast.core.stats import RateWindow
from holdfast.core.types import SECOND, Replica, State, require
from holdfast.sim.simulated_replica import SimulatedReplica

EVERY: Final = SECOND  # as often as control looks at its deployments
_RATE_S: Final = 30.0  # as gateways count tokens: answers end in bursts
_RATE_MIN: Final = 10 * SECOND  # of watching, before a rate is told
_STARTING: Final = (State.STARTING, State.LOADING, State.WARMING)


@dataclass(slots=True, frozen=True)
class ModelScaling:
    """The autoscaler of one model, and how many of its replicas are there at the beginning."""

    model: str
    config: ScalingConfig
    first: int

    def __post_init__(self) -> None:
        low, high = self.config.min, self.config.max
        fits = low <= self.first <= high
        where = f"models.{self.model}.replicas"
        require(fits, where, f"is {self.first}", f"begin with {low} to {high}, as scaling allows")


class _ScaledModel:
    """One model: who is there, who may be added, and what its autoscaler said last."""

    __slots__ = ("began", "drained", "present", "rate", "scaler", "scaling", "spares", "used")

    def __init__(self, scaling: ModelScaling, replicas: Sequence[Replica]) -> None:
        self.scaling = scaling
        self.scaler = Autoscaler(scaling.config)
        self.rate = RateWindow(_RATE_S)
        self.present = list(replicas[: scaling.first])
        self.spares = list(replicas[scaling.first :])
        self.drained: list[Replica] = []  # on their way out
        self.used = 0  # replica-nanoseconds so far
        self.began: int | None = None


class SimulatedScaling:
    """Runs the autoscalers of a world's models; ``tick`` once a second of virtual time."""

    def __init__(
        self,
        scalings: Sequence[ModelScaling],
        units: Mapping[str, SimulatedReplica],
        fleet: Fleet,
        lanes: Callable[[], Mapping[str, Lane]],
        ask_fleet: Callable[[FleetEvent, int], None],
    ) -> None:
        self._units = units
        self._fleet = fleet
        self._lanes = lanes
        self._ask_fleet = ask_fleet
        self._models: dict[str, _ScaledModel] = {}
        for scaling in scalings:
            mine = [unit.replica for unit in units.values() if unit.replica.model == scaling.model]
            self._models[scaling.model] = _ScaledModel(scaling, mine)

    @property
    def spares(self) -> set[str]:
        """Replicas that do not exist at present; nothing of them is declared."""
        return {spare.id for model in self._models.values() for spare in model.spares}

    def replica_seconds(self) -> dict[str, float]:
        """What each model has used so far, starts and drains included."""
        return {name: model.used / SECOND for name, model in self._models.items()}

    def tick(self, now: int) -> None:
        """Decide for each model, and begin what follows."""
        for name, model in self._models.items():
            model.used += EVERY * (len(model.present) + len(model.drained))
            self._let_go(model, now)
            lane = self._lanes().get(name)
            if lane is not None:
                desired = model.scaler.decide(
                    self._demand(model, lane, now), len(model.present), now
                )
                self._follow(model, desired.count, desired.reason, now)

    def _let_go(self, model: _ScaledModel, now: int) -> None:
        """Forget those whose drain has ended; their places may be taken again."""
        for replica in list(model.drained):
            member = self._fleet.members.get(replica.id)
            if member is None or member.health.state is State.STOPPED:
                model.drained.remove(replica)
                model.spares.append(replica)
                self._ask_fleet(Left(replica.id), now)

    def _follow(self, model: _ScaledModel, count: int, reason: str, now: int) -> None:
        while len(model.present) < count and model.spares:
            added = model.spares.pop(0)
            model.present.append(added)
            self._ask_fleet(Joined(added), now)
        while len(model.present) > count:
            leaver = min(reversed(model.present), key=self._missed)
            model.present.remove(leaver)
            model.drained.append(leaver)
            self._ask_fleet(DrainAsked(leaver.id, reason), now)

    def _missed(self, replica: Replica) -> bool:
        """Whether users would miss it: one that does not serve goes first."""
        member = self._fleet.members.get(replica.id)
        return member is not None and member.health.state is State.READY

    def _demand(self, model: _ScaledModel, lane: Lane, now: int) -> Demand:
        states = [
            (unit, member.health.state)
            for replica in (*model.present, *model.drained)
            if (member := self._fleet.members.get(replica.id)) is not None
            for unit in (self._units[replica.id],)
        ]
        ready = [unit for unit, state in states if state is State.READY]
        told = [unit.engine for unit in ready if unit.serving and not unit.hung]
        waiting = sum(engine.waiting for engine in told)
        running = sum(unit.engine.running + unit.engine.waiting for unit, _ in states)
        active, tokens = lane.take_served()
        if model.began is None:
            model.began = now
        model.rate.add(now, tokens)
        covered = min(now - model.began, round(_RATE_S * SECOND))
        late = lane.first_token_p95(now)
        return Demand(
            at=now,
            queued_tokens=lane.queue.tokens,
            queued=len(lane.queue) + waiting,
            running=max(running, active),
            kv_used=tuple(engine.kv_used for engine in told),
            first_token_p95=None if late is None else late / SECOND,
            token_rate=model.rate.total(now) * SECOND / covered if covered > _RATE_MIN else None,
            ready=len(ready),
            starting=sum(state in _STARTING for _, state in states),
        )


__all__ = ["EVERY", "ModelScaling", "SimulatedScaling"]
