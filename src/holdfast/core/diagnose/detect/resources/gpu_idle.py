"""Detects requests that wait for a replica whose GPU does nothing.

    its GPUs are below 5 % at every look of the last minute
    and requests wait in its engine, or at gateways for its model, all that time
    and it is ready, so that it should be given work ─► GPU_IDLE

The two figures are right one by one: a queue is what bursts make, and a GPU pauses between them.
Together, and for a minute, they mean that something between the queue and the GPU stands: a
scheduler, a tokenizer on one CPU, a limit that is too low, a process that waits for a lock. Where
that is a failure of its own (a stall, a hang), its cause explains this sign.

Rejected: a low utilisation by itself. A replica that nobody asks is idle and well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import GpuSeen, LoadSeen, ProcessEnded, QueueSeen, StateChanged
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import State, nanos, require, seconds

_LOOKS_MIN: Final = 4
_MODELS_MAX: Final = 1_024
_DEVICES_MAX: Final = 64


@dataclass(slots=True, frozen=True)
class GpuIdleConfig:
    """Settings: what counts as an idle GPU, and for how long requests must wait beside it.

    Checked when built: raises ``ConfigError``.
    """

    idle: float = 0.05  # share of the time with work; a driver's own work is below it
    lasts_s: float = 60.0  # six looks of a driver: chance does not put all of them into pauses
    gap_s: float = 45.0  # between two looks; after more nobody knows what was in between

    def __post_init__(self) -> None:
        idle = self.idle
        require(0 <= idle < 1, "gpu_idle.idle", f"is {idle}", "use a share from 0, below 1")
        for name in ("lasts_s", "gap_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"gpu_idle.{name}", f"is {value}", fix)


class _Spell:
    """Since when something holds, and when it was last seen to."""

    __slots__ = ("at", "looks", "since")

    def __init__(self) -> None:
        self.since: int | None = None
        self.at = 0
        self.looks = 0

    def note(self, now: int, gap: int, *, holds: bool) -> None:
        if not holds:
            self.since, self.looks = None, 0
        elif self.since is None or not 0 <= now - self.at <= gap:
            self.since, self.looks = now, 1
        else:
            self.looks += 1
        self.at = now

    def lasted(self, now: int, gap: int) -> int:
        """For how long it has held; 0 where it does not, or was last seen too long ago."""
        fresh = self.since is not None and 0 <= now - self.at <= gap
        return now - self.since if fresh and self.since is not None else 0


class GpuIdleDetector:
    """Finds ready replicas whose GPUs all do nothing while requests wait for them.

    Keeps since when each GPU is idle, and since when requests wait in engines and for models.
    """

    reads: ClassVar[tuple[type, ...]] = (GpuSeen, LoadSeen, QueueSeen, StateChanged, ProcessEnded)

    def __init__(self, config: GpuIdleConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._gap = nanos(config.gap_s)
        self._lasts = nanos(config.lasts_s)
        self._idle: dict[str, dict[str, _Spell]] = {}  # by replica, of each of its GPUs
        self._engine: dict[str, _Spell] = {}  # requests wait in the engine
        self._gateways: dict[str, _Spell] = {}  # by model: requests wait at gateways
        self._waiting: dict[str, int] = {}  # by replica or model, as told last
        self._ready: set[str] = set()
        self._pace = Pace()

    def take(
        self, fact: GpuSeen | LoadSeen | QueueSeen | StateChanged | ProcessEnded, now: int
    ) -> Sequence[Evidence]:
        """Take one fact of a GPU, an engine, a queue, a state or an end; return ``GPU_IDLE`` signs.

        Only a look at a GPU can return any, after a minute of both; the others are stored.
        """
        if isinstance(fact, GpuSeen):
            return self._look(fact, now)
        if isinstance(fact, QueueSeen):
            if fact.model in self._gateways or len(self._gateways) < _MODELS_MAX:
                spell = self._gateways.setdefault(fact.model, _Spell())
                spell.note(now, self._gap, holds=fact.waiting > 0)
                self._waiting[fact.model] = fact.waiting
        elif isinstance(fact, LoadSeen):
            if fact.waiting is not None and fact.replica in self._census.replicas:
                spell = self._engine.setdefault(fact.replica, _Spell())
                spell.note(now, self._gap, holds=fact.waiting > 0)
                self._waiting[fact.replica] = fact.waiting
        elif isinstance(fact, StateChanged):
            (self._ready.add if fact.state is State.READY else self._ready.discard)(fact.replica)
        else:
            self.forget(fact.replica)
        return NOTHING

    def forget(self, replica: str) -> None:
        """Drop what was seen of a replica; an end of its process does the same."""
        for kept in (self._idle, self._engine, self._waiting):
            kept.pop(replica, None)
        self._ready.discard(replica)
        self._pace.over(replica)

    def _look(self, fact: GpuSeen, now: int) -> list[Evidence]:
        found: list[Evidence] = []
        for name in fact.replicas:
            if name not in self._census.replicas:
                continue
            spells = self._idle.setdefault(name, {})
            if fact.gpu not in spells and len(spells) >= _DEVICES_MAX:
                continue
            idle = fact.utilisation is not None and fact.utilisation <= self._config.idle
            spells.setdefault(fact.gpu, _Spell()).note(now, self._gap, holds=idle)
            found += self._judge(name, spells, now)
        return found

    def _judge(self, replica: str, spells: dict[str, _Spell], now: int) -> Sequence[Evidence]:
        idle = min(spell.lasted(now, self._gap) for spell in spells.values())
        looks = min(spell.looks for spell in spells.values())
        model = self._census.replicas[replica].model
        inside = self._engine.get(replica, _Spell()).lasted(now, self._gap)
        outside = self._gateways.get(model, _Spell()).lasted(now, self._gap)
        lasted = min(idle, max(inside, outside))
        if replica not in self._ready or lasted < self._lasts or looks < _LOOKS_MIN:
            self._pace.over(replica)
            return NOTHING
        if not self._pace.due(replica, now):
            return NOTHING
        where, waiting = "in its engine", self._waiting.get(replica, 0)
        if inside < outside:
            where, waiting = "at gateways", self._waiting.get(model, 0)
        text = f"its GPU has been idle for {seconds(lasted):.0f} s while {waiting} wait {where}"
        numbers = {"waiting": float(waiting), "idle_s": seconds(lasted)}
        return [Evidence(Sign.GPU_IDLE, self._census.about(replica), now, "host", text, numbers)]


__all__ = ["GpuIdleConfig", "GpuIdleDetector"]
