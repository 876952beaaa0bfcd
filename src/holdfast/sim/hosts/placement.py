"""Makes simulated engines: plain ones, or placed on a host where neighbours or its speed count."""

from collections.abc import Callable
from random import Random

from holdfast.sim.clock import Clock
from holdfast.sim.engine import Engine
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.hosts.shared_host import HostedEngine, SharedHost
from holdfast.sim.hosts.wander import SpeedWander
from holdfast.sim.request_record import EngineRun

Told = Callable[[EngineRun, int], None]


class EnginePlacement:
    """Makes the engines of one simulation, and knows their hosts and speeds."""

    def __init__(
        self,
        clock: Clock,
        rng_of: Callable[[str], Random],
        on_first: Told,
        on_done: Told,
        on_slow_step: Callable[[Engine, int], None] = lambda _engine, _now: None,
        on_park: Told = lambda _run, _now: None,
    ) -> None:
        self._clock = clock
        self._rng_of = rng_of
        self._told = (on_first, on_done, on_slow_step)
        self._on_park = on_park
        self._hosts: dict[str, SharedHost] = {}
        self._speeds: dict[str, SpeedWander] = {}

    def engine(
        self, replica: str, law: EngineParameters, host: str | None, *, routed: bool
    ) -> Engine:
        """Make a replica's engine. ``routed``: requests go to whichever of several is free."""
        crowded = host is not None and law.neighbour_share > 0
        if not crowded and not law.wander:
            return Engine(law, self._clock, *self._told, on_park=self._on_park)
        place = self._hosts.setdefault(host or replica, SharedHost(law))
        made = HostedEngine(place, law, self._clock, *self._told, on_park=self._on_park)
        if law.wander:
            if law.wander_shared and host is not None:
                made.vary(self._speed(host, law, routed=False))
            else:
                made.vary(self._speed(replica, law, routed=routed))
        return made

    def _speed(self, name: str, law: EngineParameters, *, routed: bool) -> SpeedWander:
        speed = self._speeds.get(name)
        if speed is None:
            speed = SpeedWander(law.wander, self._clock, self._rng_of(name), routed=routed)
            self._speeds[name] = speed
        return speed


__all__ = ["EnginePlacement"]
