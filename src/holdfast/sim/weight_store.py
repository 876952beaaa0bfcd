"""Models cold starts from one shared store of weights: replicas that load share its bandwidth.

Forty replicas of ten gigabytes behind 100 MB/s are all ready after 4,000 s when they load together,
and after 2,050 s on average when they load one after the other: ``parallel_max`` is worth a look.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.types import SECOND, require
from holdfast.sim.clock import WORLD, Clock


@dataclass(slots=True, frozen=True)
class LoadingConfig:
    """How long a replica takes from its launch until its engine reports it as loaded."""

    start_s: float = 2.0  # from launch to the first byte read: process, imports, device
    size_gb: float = 16.0  # weights of one replica
    bandwidth_gb_per_s: float = 1.0  # of the store, shared by all that load at once
    parallel_max: int = 0  # loads at a time, in order of asking; 0 = no bound

    def __post_init__(self) -> None:
        require(self.start_s >= 0, "loading.start_s", f"is {self.start_s}", "use 0 or more seconds")
        require(self.size_gb >= 0, "loading.size_gb", f"is {self.size_gb}", "use 0 or more GB")
        speed = self.bandwidth_gb_per_s
        require(speed > 0, "loading.bandwidth_gb_per_s", f"is {speed}", "use GB/s above 0")
        most = self.parallel_max
        require(most >= 0, "loading.parallel_max", f"is {most}", "use 0 for no bound")


class WeightStore:
    """Shares bandwidth evenly among the loads under way; further loads wait in a queue."""

    __slots__ = ("_active", "_clock", "_config", "_queue", "_rate", "_since", "_version")

    def __init__(self, config: LoadingConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._rate = config.bandwidth_gb_per_s * 1e9 / SECOND  # bytes per nanosecond
        self._active: dict[
            str, tuple[float, Callable[[int], None]]
        ] = {}  # bytes left, whom to tell
        self._queue: deque[tuple[str, Callable[[int], None]]] = deque()
        self._since = 0
        self._version = 0

    def load(self, name: str, done: Callable[[int], None], now: int) -> None:
        """Begin to read ``size_gb`` for this replica; calls ``done(now)`` after the last byte."""
        self._advance(now)
        self._queue.append((name, done))
        self._fill()
        self._plan()

    def read(self, name: str, now: int) -> int | None:
        """Bytes this replica has read so far; None if it is not reading."""
        self._advance(now)
        if name in self._active:
            return max(0, int(self._config.size_gb * 1e9 - self._active[name][0]))
        return 0 if any(waiting == name for waiting, _ in self._queue) else None

    def cancel(self, name: str, now: int) -> None:
        """Stop this replica's read; the other loads get its share of the bandwidth."""
        self._advance(now)
        self._active.pop(name, None)
        self._queue = deque(entry for entry in self._queue if entry[0] != name)
        self._fill()
        self._plan()

    def _fill(self) -> None:
        most = self._config.parallel_max
        while self._queue and (not most or len(self._active) < most):
            name, done = self._queue.popleft()
            self._active[name] = (self._config.size_gb * 1e9, done)

    def _advance(self, now: int) -> None:
        if self._active and now > self._since:
            read = (now - self._since) * self._rate / len(self._active)
            for name, (left, done) in self._active.items():
                self._active[name] = (left - read, done)
        self._since = now

    def _plan(self) -> None:
        self._version += 1
        if self._active:
            least = min(left for left, _ in self._active.values())
            wait = max(0.0, least) * len(self._active) / self._rate
            self._clock.at(self._since + round(wait) + 1, WORLD, self._finish, self._version)

    def _finish(self, version: int, now: int) -> None:
        if version != self._version:
            return
        self._advance(now)
        ready = [name for name, (left, _) in self._active.items() if left <= 1.0]
        told = [self._active.pop(name)[1] for name in ready]
        self._fill()
        self._plan()
        for done in told:
            done(now)


__all__ = ["LoadingConfig", "WeightStore"]
