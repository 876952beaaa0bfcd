"""Computes when replicas that load from one filesystem are ready, by the order of their loads.

Loads that run together share the bandwidth. With forty at once none is ready before nearly all are;
one after the other the last is ready at the same time, and half of them in half of it. So the order
costs nothing and is worth half of the mean wait, as long as one reader alone can fill the pipe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class Filesystem:
    """A shared store of weights, to plan with: its bandwidth, its burst, what one reader can take.

    All in bytes or bytes per second. Raises ``ConfigError`` when built with a bad value.
    """

    bytes_per_s: float  # for all readers together
    burst_bytes_per_s: float = 0.0  # while credits last; 0: no burst
    credit_bytes: float = 0.0  # read at the burst rate beyond the baseline before credits are gone
    reader_bytes_per_s: float = inf  # of one loader: a single stream rarely fills the pipe

    def __post_init__(self) -> None:
        good = 0.0 < self.bytes_per_s < inf
        fix = "use bytes per second above 0, such as 100MB"
        require(good, "filesystem.bandwidth", f"is {self.bytes_per_s:g}", fix)
        for name, value in (("burst", self.burst_bytes_per_s), ("credits", self.credit_bytes)):
            require(value >= 0, f"filesystem.{name}", f"is {value:g}", "use 0 or more")
        reader = self.reader_bytes_per_s
        require(reader > 0, "filesystem.reader_rate", f"is {reader:g}", "use bytes/s above 0")

    def rate(self, credits_left: float) -> float:
        """Return the bytes/s of all readers together: the burst rate while credits are left."""
        burst = self.burst_bytes_per_s
        return burst if credits_left > 0 and burst > self.bytes_per_s else self.bytes_per_s


def share_bytes_per_s(filesystem: Filesystem, readers: int) -> float:
    """Return the bytes/s that each of ``readers`` gets while they read together, without burst."""
    require(readers >= 1, "coldstart.readers", f"is {readers}", "use 1 or more")
    return min(filesystem.reader_bytes_per_s, filesystem.bytes_per_s / readers)


def bytes_read(filesystem: Filesystem, seconds: float) -> float:
    """Return the bytes a filesystem delivers while saturated for ``seconds``, without burst."""
    require(seconds >= 0, "coldstart.saturated", f"is {seconds:g}", "use 0 or more seconds")
    return filesystem.bytes_per_s * seconds


def readers_that_fill(filesystem: Filesystem) -> int:
    """Return the fewest readers that use all of the bandwidth, burst included; at least 1."""
    if filesystem.reader_bytes_per_s == inf:
        return 1
    fastest = max(filesystem.bytes_per_s, filesystem.burst_bytes_per_s)
    return max(1, ceil(fastest / filesystem.reader_bytes_per_s - 1e-9))


@dataclass(slots=True, frozen=True)
class LoadSchedule:
    """When each replica is ready, in seconds after the start, if ``parallel`` load at a time."""

    parallel: int
    ready_s: tuple[float, ...]  # in order

    @property
    def first_s(self) -> float:
        """Seconds until the first replica is ready."""
        return self.ready_s[0]

    @property
    def mean_s(self) -> float:
        """Seconds until a replica is ready, on average."""
        return sum(self.ready_s) / len(self.ready_s)

    @property
    def half_s(self) -> float:
        """Seconds until half of the replicas are ready; of an odd number, the middle one."""
        return self.ready_s[(len(self.ready_s) - 1) // 2]

    @property
    def last_s(self) -> float:
        """Seconds until all replicas are ready."""
        return self.ready_s[-1]


def schedule_loads(
    sizes: Sequence[float], parallel: int, filesystem: Filesystem, start_s: float = 0.0
) -> LoadSchedule:
    """Return the ``LoadSchedule`` of loading ``sizes`` bytes, in order, ``parallel`` at a time.

    Readers share the bandwidth evenly, up to what one can take; a burst uses up credits.
    ``start_s`` is added to each time. Assumes that nobody else reads. Sizes of 0 are ready at once.
    Computes only: loads nothing.
    """
    require(bool(sizes), "coldstart.replicas", "is 0", "use 1 or more")
    require(parallel >= 1, "coldstart.parallel", f"is {parallel}", "use 1 or more")
    require(start_s >= 0, "coldstart.start", f"is {start_s:g}", "use 0 or more seconds")
    for size in sizes:
        require(size >= 0, "coldstart.size", f"is {size:g}", "use 0 or more bytes")
    waiting = list(reversed(sizes))
    left: list[float] = []
    ready: list[float] = []
    now, credits_left = 0.0, filesystem.credit_bytes
    while waiting or left:
        while waiting and len(left) < parallel:
            left.append(waiting.pop())
        total = min(filesystem.rate(credits_left), len(left) * filesystem.reader_bytes_per_s)
        each = total / len(left)
        span = min(left) / each
        above = total - filesystem.bytes_per_s
        if above > 0 and credits_left > 0:
            span = min(span, credits_left / above)
            credits_left = max(0.0, credits_left - span * above)
            credits_left = 0.0 if credits_left < 1.0 else credits_left
        now += span
        left = [size - span * each for size in left]
        ready += [now + start_s for size in left if size <= 1e-6 * filesystem.bytes_per_s]
        left = [size for size in left if size > 1e-6 * filesystem.bytes_per_s]
    return LoadSchedule(parallel, tuple(ready))


def cold_reads(replicas: int, models: int, hosts: int) -> int:
    """Return how many reads from the filesystem start all replicas: one per model and host.

    Further copies of a model on a host come out of its page cache. Assumes that copies are dealt
    out evenly over hosts, fit into memory, and that the first has loaded before the next begins.
    """
    require(replicas >= 1, "coldstart.replicas", f"is {replicas}", "use 1 or more")
    good = 1 <= models <= replicas
    require(good, "coldstart.models", f"is {models}", f"use 1 to the {replicas} replicas")
    require(hosts >= 1, "coldstart.hosts", f"is {hosts}", "use 1 or more")
    copies, more = divmod(replicas, models)
    return more * min(copies + 1, hosts) + (models - more) * min(copies, hosts)


__all__ = [
    "Filesystem",
    "LoadSchedule",
    "bytes_read",
    "cold_reads",
    "readers_that_fill",
    "schedule_loads",
    "share_bytes_per_s",
]
