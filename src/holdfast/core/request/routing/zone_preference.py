"""Stay in the gateway's own zone while it copes: traffic between zones costs money and time.

The candidates are split into own zone and others once per list; the inner policy then chooses in
the own zone only. Two things open the door: nobody at home can take the request, or the own zone's
average load per weight is both above ``slack`` and above ``spill_factor`` times the others'. Then
the inner policy chooses among *all*, so that the excess flows out and the zone keeps its part.

Rejected: a fixed share to other zones, which pays for crossings on quiet days and is too little on
bad ones; and sending everything across once the own zone is loaded, which empties it, turns the
comparison round, and swings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice, RoutingPolicy
from holdfast.core.types import Request, require

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_OWN: Final = "own zone"
_OWN_FULL: Final = "other zone, own zone has no room"
_OWN_BUSY: Final = "any zone, own zone is overloaded"


@dataclass(slots=True, frozen=True)
class ZonePreferenceConfig:
    """The gateway's own zone, and when requests leave it.

    Checked when built: raises ``ConfigError``.
    """

    zone: str = ""  # where this gateway runs; has to be given
    spill_factor: float = 1.5  # times the others' load: what a crossing costs, in waiting
    slack: float = 4.0  # load per weight below which nothing leaves: any engine batches as many

    def __post_init__(self) -> None:
        fix = "name the zone this gateway runs in"
        require(bool(self.zone), "zone_preference.zone", "is empty", fix)
        field, fix = "zone_preference.spill_factor", "use at least 1; 1 spills on any excess"
        require(self.spill_factor >= 1, field, f"is {self.spill_factor}", fix)
        field, fix = "zone_preference.slack", "use 0 or more requests per unit of weight"
        require(self.slack >= 0, field, f"is {self.slack}", fix)


class ZonePreference:
    """Lets an inner policy choose in the gateway's own zone, or in all when that is overloaded."""

    __slots__ = (
        "_factor",
        "_inner",
        "_list",
        "_look_in",
        "_others",
        "_own",
        "_size",
        "_slack",
        "_spilling",
        "_zone",
    )
    name = "zone_preference"

    def __init__(self, inner: RoutingPolicy, config: ZonePreferenceConfig) -> None:
        self._inner = inner
        self._zone = config.zone
        self._factor = config.spill_factor
        self._slack = config.slack
        self._list: Sequence[Candidate] = ()
        self._size = 0
        self._own: list[Candidate] = []
        self._others: list[Candidate] = []
        self._look_in = 0  # choices until the loads are compared again
        self._spilling = False

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The inner policy's choice in the own zone, else in the others if the own has no room.

        All zones are used alike while the own one is overloaded relative to the others.
        """
        if candidates is not self._list or len(candidates) != self._size:
            self._split(candidates)
        if not self._own or not self._others:
            return self._inner.choose(request, candidates, tried, now)
        self._look_in -= 1
        if self._look_in < 0:
            self._compare()
        if self._spilling:
            choice = self._inner.choose(request, candidates, tried, now)
            return None if choice is None else (choice[0], _OWN_BUSY)
        choice = self._inner.choose(request, self._own, tried, now)
        if choice is not None:
            return choice[0], _OWN
        choice = self._inner.choose(request, self._others, tried, now)
        return None if choice is None else (choice[0], _OWN_FULL)

    def _split(self, candidates: Sequence[Candidate]) -> None:
        self._list, self._size = candidates, len(candidates)
        self._own = [candidate for candidate in candidates if candidate.zone == self._zone]
        self._others = [candidate for candidate in candidates if candidate.zone != self._zone]
        self._look_in = 0

    def _compare(self) -> None:
        """Loads move little in n / 8 choices, so that a choice costs eight candidates, not all."""
        own = _load(self._own)
        self._spilling = own > self._slack and own > self._factor * _load(self._others)
        self._look_in = self._size // 8


def _load(candidates: Sequence[Candidate]) -> float:
    """Requests per weight with one more on each, so that an idle suspect is not an idle replica."""
    requests = len(candidates)
    weight = 0.0
    for candidate in candidates:
        requests += candidate.inflight
        weight += candidate.weight
    return requests / weight


__all__ = ["ZonePreference", "ZonePreferenceConfig"]
