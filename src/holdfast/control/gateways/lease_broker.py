"""Divides shared limits (quotas, retry budget, trials of open breakers) among gateways.

A place is one of the gateways that the file asks for, whichever process runs there now. The
retry budget's floor follows the requests of all tenants: retries come in proportion to them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.lease import LeaseConfig, Shares, Trials
from holdfast.frames import LeaseFrame, StatsFrame

_RETRY: Final = ""  # no tenant is called so


class LeaseBroker:
    """Divides shared limits (quotas, retry budget, breaker trials) among gateway places.

    It computes lease frames; the caller sends them.
    """

    def __init__(self, config: LeaseConfig, places: Sequence[str], now: int) -> None:
        self._shares = Shares(config, places, now)
        self._trials = Trials(config)
        self._places = tuple(places)
        self._told: dict[str, LeaseFrame] = {}
        self._at_once: dict[str, int] = {}  # by tenant: requests under way, of all gateways

    def declare(self, quotas: Mapping[str, QuotaConfig], now: int) -> None:
        """Set the quotas to divide, by tenant, as the fleet file has them."""
        self._shares.declare([_RETRY, *quotas], now)
        self._at_once = {
            tenant: quota.requests_at_once
            for tenant, quota in quotas.items()
            if quota.requests_at_once is not None
        }

    def came(self, place: str) -> None:
        """Count a place as taken by a connected gateway; ``frame_for`` gives its shares."""
        self._shares.came(place)

    def went(self, place: str, now: int) -> None:
        """Count a place as empty, as its gateway disconnected; others get its share over time."""
        self._shares.went(place, now)
        self._trials.went(place, now)

    def on_stats(self, place: str, frame: StatsFrame, now: int) -> None:
        """Record a gateway's demand per tenant, and the replicas it wants to try again.

        Unknown places are ignored; shares change with the next ``look``.
        """
        if place not in self._places:
            return
        for tenant, amount in frame.demand.items():
            self._shares.demanded(place, tenant, amount, now)
        for tenant, most in self._at_once.items():
            self._shares.holds(place, tenant, frame.running.get(tenant, 0) / most)
        self._shares.demanded(place, _RETRY, sum(frame.demand.values()), now)
        self._trials.told(place, frame.wanted, frame.trying, now)

    def look(self, now: int) -> list[tuple[str, LeaseFrame]]:
        """Rebalance the shares; return (place, frame) for the leases that changed.

        Sends nothing. Call it once a round.
        """
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
        """The present lease of the gateway at this place, which the caller must send.

        It counts as sent for the next ``look``. Without shares for an unknown place.
        """
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
