"""The canaries that ran beside a measurement: load that no client saw, and that a fit must know.

A fleet asks each replica that has room every few seconds. On a small engine that is a good part of
its work. The simulated fleet asks them too, so a fit that took their load for a slower engine would
count it twice. When they were asked is not known; how often they are due is, so they are drawn. The
extra ones in between take a fiftieth of an engine's slots at the most and are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from holdfast.core.types import require
from holdfast.twin.measurement import MeasuredRequest

_PAUSE_S: Final = 60.0  # without an arrival: what runs there is beside nobody


@dataclass(slots=True, frozen=True)
class CanaryLoad:
    """The canaries of one replica: the seconds between two, and the tokens of each."""

    every_s: float
    prompt: int  # tokens
    output: int

    def __post_init__(self) -> None:
        every = self.every_s
        require(every > 0, "canaries.every_s", f"is {every}", "use seconds above 0")

    def beside(self, requests: Sequence[MeasuredRequest]) -> list[MeasuredRequest]:
        """Canaries at every replica while these requests were sent; they do not count."""
        rng = Random(1)
        drawn = []
        for begin, end in _stretches(requests):
            for replica in dict.fromkeys(one.replica for one in requests):
                at = begin + rng.random() * self.every_s
                while at <= end:
                    tokens = (self.prompt, self.output)
                    drawn.append(MeasuredRequest(at, *tokens, at, at, replica, counted=False))
                    at += self.every_s * rng.uniform(0.8, 1.2)
        return drawn


def _stretches(requests: Sequence[MeasuredRequest]) -> Iterator[tuple[float, float]]:
    """Split the measurement at long pauses; yield each part's first and last arrival (s)."""
    arrivals = sorted(one.arrived_s for one in requests)
    begin = 0
    for number in range(1, len(arrivals) + 1):
        over = number == len(arrivals)
        if over or arrivals[number] - arrivals[number - 1] > _PAUSE_S:
            yield arrivals[begin], arrivals[number - 1]
            begin = number


__all__ = ["CanaryLoad"]
