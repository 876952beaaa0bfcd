"""Limits how many replicas of a host load at once, and decides whose turn it is.

Loads that read from a disk or over a network share its bandwidth: forty at once are all ready
after the time of forty, in turn half of them are ready after half of it, and the last no later. So
cold loads go one after the other. A path that was loaded once since the host started is in the page
cache; such loads share memory bandwidth, and a few of them at a time do no harm.

Rejected: cold loads in waves. The mean wait grows with the size of a wave and nothing is gained.
Rejected: a lock that is held until released. A replica that dies without a word would hold up all
others for good; here a place is lost in the end.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.core.types import Decision, nanos, require


@dataclass(slots=True, frozen=True)
class LaunchGateConfig:
    """Settings of one host: how many replicas may load at a time, cold and warm, and may wait."""

    parallel_cold: int = 1  # loads from disk or network: in turn, half are ready in half the time
    parallel_warm: int = 4  # loads out of the page cache; they share memory bandwidth, not a disk
    waiting_max: int = 1_024  # replicas in the queue; beyond it they are told to ask again
    weights_max: int = 256  # paths remembered as warm; the one unused longest is forgotten first
    ask_again_s: float = 60.0  # who waits and is silent for so long gave up: its place is free
    load_max_s: float = 1_200.0  # a load whose end nobody reported; twice the loading time

    def __post_init__(self) -> None:
        for name in ("parallel_cold", "parallel_warm"):
            value = getattr(self, name)
            require(1 <= value <= 256, f"launches.{name}", f"is {value}", "use 1 to 256")
        for name in ("waiting_max", "weights_max"):
            value = getattr(self, name)
            require(1 <= value <= 65_536, f"launches.{name}", f"is {value}", "use 1 to 65536")
        for name in ("ask_again_s", "load_max_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"launches.{name}", f"is {value}", fix)


@dataclass(slots=True)
class _Place:
    weights: str
    at: int  # asked last, or began
    cold: bool = True


_LOADS: Final = Decision(True, "it loads already")
_SAME: Final = Decision(False, "another loads the same weights first: they are cached afterwards")


class LaunchGate:
    """The queue of replicas that want to load on one host; it starts none.

    ``ask`` takes a place in the queue and says whether it is the replica's turn; ask again on each
    tick. ``began`` claims the turn. ``ended`` gives it back, and also removes from the queue a
    replica that will not load after all. A turn that nobody gives back expires.
    """

    def __init__(self, config: LaunchGateConfig) -> None:
        self.configure(config)
        self._waiting: dict[str, _Place] = {}  # in the order of their first asking
        self._loading: dict[str, _Place] = {}
        self._warm: dict[str, None] = {}  # the one unused longest first
        self.lost = 0  # loads whose end nobody reported
        self._now = 0

    def configure(self, config: LaunchGateConfig) -> None:
        """Replace the settings: loads under way go on, the new bounds hold for those who wait."""
        self.config = config
        self._ask_again = nanos(config.ask_again_s)
        self._load_max = nanos(config.load_max_s)

    def warm(self, weights: str) -> None:
        """Remember that this path's weights were loaded on this host: later loads of it are warm.

        Keeps ``weights_max`` paths; the one unused longest is dropped. Loads nothing.
        """
        self._warm.pop(weights, None)
        self._warm[weights] = None
        if len(self._warm) > self.config.weights_max:
            del self._warm[next(iter(self._warm))]

    def is_warm(self, weights: str) -> bool:
        """Return whether a path's weights are remembered as loaded on this host before."""
        return weights in self._warm

    def ask(self, replica_id: str, weights: str, now: int) -> Decision:
        """Return whether a replica may load now, as a ``Decision`` with the reason.

        Queues it if it is not queued yet, unless the queue is full. Cold and warm loads are each
        served in order of asking; a cold path that another loads already is waited for. Claims no
        turn: see ``began``.
        """
        self._now = now
        self._expire(now)
        if replica_id in self._loading:
            return _LOADS
        place = self._waiting.get(replica_id)
        if place is None:
            if len(self._waiting) >= self.config.waiting_max:
                return Decision(False, f"{len(self._waiting)} wait to load already: ask again")
            place = self._waiting[replica_id] = _Place(weights, now)
        place.weights, place.at = weights, now
        return self._turn(replica_id, place)

    def _turn(self, replica_id: str, place: _Place) -> Decision:
        """Those before it, of its kind, go first; those of one cold path take one turn."""
        cold = place.weights not in self._warm
        running = [each.weights for each in self._loading.values() if each.cold is cold]
        taken = set(running)
        ahead = 0
        for other, waiting in self._waiting.items():
            if other == replica_id:
                break
            if (waiting.weights not in self._warm) is cold and not (
                cold and waiting.weights in taken
            ):
                taken.add(waiting.weights)
                ahead += 1
        if cold and place.weights in taken:
            return _SAME
        bound = self.config.parallel_cold if cold else self.config.parallel_warm
        kind = "cold" if cold else "warm"
        told = f"{len(running)} {kind} loads run, {ahead} wait before it, {bound} may run at a time"
        return Decision(len(running) + ahead < bound, told)

    def began(self, replica_id: str) -> None:
        """Note that a queued replica loads now: it leaves the queue and takes a turn.

        Ignored if it did not ask before; whether it was its turn is not checked.
        """
        place = self._waiting.pop(replica_id, None)
        if place is None:
            return
        place.at = self._now
        place.cold = place.weights not in self._warm
        self._loading[replica_id] = place

    def ended(self, replica_id: str, *, loaded: bool) -> None:
        """Free a replica's turn or its place in the queue: it has loaded, or will not.

        ``loaded``: its weights then count as warm. Late or repeated calls change nothing.
        """
        self._waiting.pop(replica_id, None)
        place = self._loading.pop(replica_id, None)
        if place is not None and loaded:
            self.warm(place.weights)

    def _expire(self, now: int) -> None:
        for name in [n for n, p in self._waiting.items() if now - p.at > self._ask_again]:
            del self._waiting[name]
        for name in [n for n, p in self._loading.items() if now - p.at > self._load_max]:
            del self._loading[name]
            self.lost += 1


__all__ = ["LaunchGate", "LaunchGateConfig"]
