"""Reports as events when gateways open or close their circuit breakers for a replica.

    reports of each gateway ─► open at whom ─► one event as the first opens, one as the last closes

Every gateway has its own breaker for every replica. A replica that dies opens all of them within a
second, and a flaky one opens and closes some of them for minutes: one event for each change would
push everything else out of the events. So there is one event for all gateways together, and at most
one in a second for each replica; changes that were undone in between are not reported, and the last
event always shows the present state.

Rejected: the states of breakers in each tally. Gateways already report a change at once, and a
tally covers only replicas that have traffic, which a replica with open breakers has not.
"""

from collections.abc import Callable, Collection
from typing import Final

from holdfast.core.messages import Notice, Report, Seen
from holdfast.core.request.breaker import BreakerState
from holdfast.core.types import SECOND

OPENED: Final = "breaker_opened"
CLOSED: Final = "breaker_closed"
PACE: Final = SECOND  # between two events of one replica


class _Replica:
    """The breakers of one replica: at which gateways they are open, and what was last reported."""

    __slots__ = ("model", "open_at", "reason", "told", "told_at")

    def __init__(self, model: str) -> None:
        self.model = model
        self.open_at: set[str] = set()  # gateways
        self.reason = ""  # of the last move
        self.told = False  # the last event said that it is open
        self.told_at: int | None = None


class Breakers:
    """Tracks which gateways' breakers are open for which replica, and notes changes as events."""

    def __init__(
        self, declared: Callable[[], Collection[str]], note: Callable[[Notice], None]
    ) -> None:
        self._declared = declared
        self._note = note
        self._replicas: dict[str, _Replica] = {}  # that were open at least once

    def seen(self, event: Seen, now: int) -> None:
        """Update the breakers from what a gateway reported."""
        moved = False
        for action in event.actions:
            if isinstance(action, Report):
                moved = self._moved(event.gateway, action) or moved
        if moved:
            self.look(now)

    def _moved(self, gateway: str, report: Report) -> bool:
        name = report.replica_id
        one = self._replicas.get(name)
        if report.what == BreakerState.OPEN:
            if one is None:
                if name not in self._declared():
                    return False  # of a gateway that does not know yet that it is gone
                one = self._replicas[name] = _Replica(report.model)
            one.open_at.add(gateway)
        elif report.what == BreakerState.CLOSED and one is not None:
            one.open_at.discard(gateway)
        else:
            return False
        one.reason = report.reason
        return True

    def gateway_gone(self, gateway: str) -> None:
        """Forget the open breakers of a gateway that disconnected."""
        for one in self._replicas.values():
            if gateway in one.open_at:
                one.open_at.discard(gateway)
                one.reason = "the gateway that had cut it off is gone"

    def look(self, now: int) -> None:
        """Note the changes that are due (one per second and replica).

        Call it several times a second.
        """
        declared = self._declared() if self._replicas else ()
        for name, one in list(self._replicas.items()):
            if name not in declared:
                del self._replicas[name]
                continue
            is_open = bool(one.open_at)
            if one.told_at is not None and now - one.told_at < PACE:
                continue
            if is_open != one.told:
                one.told, one.told_at = is_open, now
                what = OPENED if is_open else CLOSED
                self._note(Notice(now, one.model, name, what, one.reason))
            elif not is_open:
                del self._replicas[name]


__all__ = ["CLOSED", "OPENED", "PACE", "Breakers"]
