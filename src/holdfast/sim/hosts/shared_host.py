"""Models replicas that share one host: each busy one makes the steps of the others longer.

Engines on the same cores, memory bus or device do not run at their own speed. A host carries
``host_room`` busy replicas at full speed; each further one makes every step of all of them longer
by ``neighbour_share`` of it:

    factor = 1 + neighbour_share · max(0, busy - host_room)

A replica is busy while its batch is not empty. A fault makes an engine wait, not work: one that
hangs or drips is not busy, and one that is slow by some factor is busy by that part. A change takes
effect at the end of the step that runs, as every change of an engine's pace does.
"""

from collections.abc import Callable

from holdfast.core.types import nanos
from holdfast.sim.clock import Clock
from holdfast.sim.engine import Engine
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.hosts.wander import SpeedWander
from holdfast.sim.request_record import EngineRun


class SharedHost:
    """The engines of one host, and how much they slow each other down now."""

    __slots__ = ("_busy", "_engines", "_room", "_share")

    def __init__(self, law: EngineParameters) -> None:
        self._room = law.host_room
        self._share = law.neighbour_share
        self._engines: list[HostedEngine] = []
        self._busy = 0.0

    def add(self, engine: "HostedEngine") -> None:
        """Place an engine on this host."""
        self._engines.append(engine)

    def changed(self, more: float, now: int) -> None:
        """Note that one engine became busy (1) or idle (-1); tells all engines their new factor."""
        before = self._factor()
        self._busy += more
        after = self._factor()
        if after != before:
            for engine in self._engines:
                engine.slow_down(after, now)

    def _factor(self) -> float:
        return 1.0 + self._share * max(0.0, self._busy - self._room)


class HostedEngine(Engine):
    """An engine whose steps take longer while other engines of its host are busy, and vary."""

    __slots__ = ("_busy", "_crowd", "_fault", "_host", "_speed", "_wander")

    def __init__(
        self,
        host: SharedHost,
        law: EngineParameters,
        clock: Clock,
        on_first: Callable[[EngineRun, int], None],
        on_done: Callable[[EngineRun, int], None],
        on_slow_step: Callable[[Engine, int], None],
        slow_step: int = nanos(1.0),
        on_park: Callable[[EngineRun, int], None] = lambda _run, _now: None,
    ) -> None:
        super().__init__(law, clock, on_first, on_done, on_slow_step, slow_step, on_park)
        self._host = host
        self._busy = 0.0
        self._crowd = 1.0  # by the neighbours
        self._fault = 1.0  # by a fault
        self._wander = 1.0  # by itself
        self._speed: SpeedWander | None = None
        host.add(self)

    def pace(self, factor: float, drip: float, now: int) -> None:
        """Slow steps down by a fault's ``factor``, on top of what neighbours do."""
        self._fault = factor
        super().pace(factor * self._crowd * self._wander, drip, now)
        self._tell(now)

    def slow_down(self, factor: float, now: int) -> None:
        """Take over the factor that busy neighbours cause."""
        self._crowd = factor
        super().pace(self._fault * factor * self._wander, self._drip, now)

    def vary(self, speed: SpeedWander) -> None:
        """Let its speed vary by itself while it works."""
        self._speed = speed
        speed.drive(self._take_speed)

    def _take_speed(self, factor: float, now: int) -> bool:
        self._wander = factor
        super().pace(self._fault * self._crowd * factor, self._drip, now)
        return bool(self._batch)

    def hang(self, now: int) -> None:
        """Stop emitting tokens, and make room for the neighbours."""
        super().hang(now)
        self._tell(now)

    def resume(self, now: int) -> None:
        """Continue after a hang, beside the neighbours."""
        super().resume(now)
        self._tell(now)

    def crash(self, now: int) -> list[tuple[EngineRun, int]]:
        """Lose all runs, and make room for the neighbours."""
        lost = super().crash(now)
        self._tell(now)
        return lost

    def _plan(self) -> None:
        super()._plan()
        self._tell(self._clock.now)

    def _tell(self, now: int) -> None:
        waits = self._hung or self._drip > 0
        busy = 1.0 / self._fault if self._batch and not waits else 0.0
        if self._speed is not None and busy:
            self._speed.work_began(now)
        if busy != self._busy:
            more, self._busy = busy - self._busy, busy
            self._host.changed(more, now)


__all__ = ["HostedEngine", "SharedHost"]
