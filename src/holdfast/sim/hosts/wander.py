"""Models engines whose speed varies by itself: each second, a step takes another share of its time.

No engine runs at one speed. Other work of its host, clocks that follow the heat, and schedulers
take some of it now and give it back a second later. A mean hides that, and tails are made of it:
the slowest answers are those that met slow seconds.

    factor = exp(u ± σ²/2),  u even between -√3·σ and √3·σ, drawn anew for each second of work

A law is fitted to what requests met, so it is their average that the factor must keep at 1. Where
requests are given to one engine whatever its speed, that is the engine's average over time (minus).
Where they are given to whichever of several is free, each engine gets them in proportion to its
speed, and requests meet the harmonic mean (plus): engines are then slower on average than what
requests see of them.

Rejected: a normal distribution. Real engines have no second in which they are three times as slow
as usual, and the p99 of first tokens came out a quarter too long.
"""

from collections.abc import Callable
from math import exp, sqrt
from random import Random
from typing import Final

from holdfast.core.types import SECOND
from holdfast.sim.clock import WORLD, Clock

EVERY: Final = SECOND

TakeFactor = Callable[[float, int], bool]
"""Takes a factor at a time, and says whether the engine works."""


class SpeedWander:
    """Draws a random speed each second for one engine, or for all of a host, while one is busy."""

    __slots__ = ("_clock", "_drawn_at", "_engines", "_goes_on", "_mean", "_reach", "_rng")

    def __init__(self, sigma: float, clock: Clock, rng: Random, *, routed: bool) -> None:
        self._reach = sqrt(3.0) * sigma
        self._mean = sigma * sigma / 2 if routed else -sigma * sigma / 2
        self._clock = clock
        self._rng = rng
        self._drawn_at = -EVERY
        self._goes_on = False  # the next draw is filed
        self._engines: list[TakeFactor] = []

    def drive(self, engine: TakeFactor) -> None:
        """Give each new factor to this engine, too."""
        self._engines.append(engine)

    def work_began(self, now: int) -> None:
        """Draw, if a second has passed since the last draw, and go on each second."""
        if self._goes_on:
            return
        self._goes_on = True
        self._clock.at(max(now, self._drawn_at + EVERY), WORLD, self._draw)

    def _draw(self, _: object, now: int) -> None:
        self._drawn_at = now
        factor = exp(self._mean + self._rng.uniform(-self._reach, self._reach))
        works = [take(factor, now) for take in self._engines]
        self._goes_on = any(works)
        if self._goes_on:
            self._clock.at(now + EVERY, WORLD, self._draw)


__all__ = ["EVERY", "SpeedWander"]
