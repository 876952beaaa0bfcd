"""Models the resident memory of a simulated engine's process, which the engine itself does not.

A floor, what each running request holds, caches that fill with the first requests, an allocator
that keeps its peaks, garbage that is collected now and then.
"""

from dataclasses import dataclass
from math import exp
from random import Random

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class MemoryModel:
    """Resident memory of a healthy engine's process; rates and sizes are for one replica."""

    floor_bytes: float = 2.0e9  # the process with its weights
    limit_bytes: float = 4.0e9  # where the kernel kills it
    running_bytes: float = 8e6  # held by each request that runs, and given back
    peak_bytes: float = 12e6  # kept by the allocator for each request of its busiest moment
    warm_bytes: float = 150e6  # caches and pools, filled by the first requests
    warm_requests: float = 200.0  # after so many they are filled by 63 %
    garbage_bytes: float = 60e6  # piles up and is collected at once
    garbage_requests: float = 150.0  # in so many requests
    noise: float = 0.002  # of all of it, from one look to the next

    def __post_init__(self) -> None:
        inside = 0 < self.floor_bytes < self.limit_bytes
        require(inside, "memory.floor_bytes", f"is {self.floor_bytes}", "use less than its limit")
        for name in ("warm_requests", "garbage_requests"):
            value = getattr(self, name)
            require(value > 0, f"memory.{name}", f"is {value}", "use requests above 0")

    def used(self, served: int, running: int, peak: int, rng: Random) -> int:
        """Resident bytes, from requests served so far, running now, and running at the peak."""
        filled = 1.0 - exp(-served / self.warm_requests)
        garbage = served % self.garbage_requests / self.garbage_requests
        known = self.floor_bytes + self.warm_bytes * filled + self.garbage_bytes * garbage
        known += self.running_bytes * running + self.peak_bytes * peak
        return int(known * rng.gauss(1.0, self.noise))


__all__ = ["MemoryModel"]
