"""Divides what gateways share (quotas, retry budget, trials) among them.

A place is one of the gateways that the file asks for, whichever process runs there now. The
retry budget's floor follows the requests of all tenants: retries come in proportion to them.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.core.request.lease import LeaseConfig, Shares, Trials
from holdfast.frames import LeaseFrame, StatsFrame

_RETRY: Final = ""  # no tenant is called so


class LeaseBroker:
    """Decides which gateway has which share now, and which one must be told of a change."""

    def __init__(self, config: LeaseConfig, places: Sequence[str], now: int) -> None:
        self._shares = Shares(config, places, now)
        self._trials = Trials(config)
        self._places = tuple(places)
        self._told: dict[str, LeaseFrame] = {}

    def declare(self, tenants: Iterable[str], now: int) -> None:
        """These tenants have quotas."""
        self._shares.declare([_RETRY, *tenants], now)

    def came(self, place: str) -> None:
        """A gateway took its place; ``frame_for`` tells it what it has."""
        self._shares.came(place)

    def went(self, place: str, now: int) -> None:
        """Nobody is in that place any more."""
        self._shares.went(place, now)
        self._trials.went(place, now)

    def on_stats(self, place: str, frame: StatsFrame, now: int) -> None:
        """Take in what a gateway was asked for since it last said so, and what it would try."""
        if place not in self._places:
            return
        for tenant, amount in frame.demand.items():
            self._shares.demanded(place, tenant, amount, now)
        self._shares.demanded(place, _RETRY, sum(frame.demand.values()), now)
        self._trials.told(place, frame.wanted, frame.trying, now)

    def look(self, now: int) -> list[tuple[str, LeaseFrame]]:
        """Once a round: who must be told of a change."""
        self._trials.expire(now)
        if len(self._places) > 1:  # alone it has everything, always
            self._shares.rebalance(now)
        before = dict(self._told)
        return [
            (place, frame)
            for place in self._places
            if (frame := self.frame_for(place)) != before.get(place)
        ]

    def frame_for(self, place: str) -> LeaseFrame:
        """What this gateway has now; it counts as told. A stranger has nothing."""
        known = place in self._places
        shares = self._shares.of(place) if known else {}
        frame = LeaseFrame(
            quota={good: share for good, share in shares.items() if good != _RETRY},
            retry_share=shares.get(_RETRY, 0.0),
            trial=list(self._trials.held_by(place)),
            gateways=len(self._places),
        )
        if known:
            self._told[place] = frame
        return frame


__all__ = ["LeaseBroker"]
