"""Reports as events when gateways open or close their circuit breakers for a replica.

    reports of each gateway ─► open at whom ─► one event as the first opens, one as the last closes

Every gateway has its own breaker for every replica. A replica that dies opens all of them within a
second, and a flaky one opens and closes some of them for minutes: one event for each change would
push everything else out of the events. So there is one event for all gateways together, and at most
one in a second for each replica; changes that were undone in between are not reported, and the last
event always shows the present state.

A gateway overrules the breakers that users' failures alone opened on more than half of a pool, and
says so every second while it does. The status shows which; the first of them is an event.

Rejected: the states of breakers in each tally. Gateways already report a change at once, and a
tally covers only replicas that have traffic, which a replica with open breakers has not.
"""

from collections.abc import Callable, Collection
from typing import Final

from holdfast.core.messages import Notice, Report, ReportCode, Seen
from holdfast.core.request.breaker import BreakerState
from holdfast.core.types import SECOND

OPENED: Final = "breaker_opened"
CLOSED: Final = "breaker_closed"
OVERRULED: Final = "breaker_overruled"
PACE: Final = SECOND  # between two events of one replica
_OVERRULED_FOR: Final = 3 * SECOND  # after the last word of it; gateways repeat it every second


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
    """Tracks at which gateways each replica's circuit breaker is open; notes changes as events.

    One event when the first gateway opens it and one when the last closes it, at most one a second
    per replica.
    """

    def __init__(
        self, declared: Callable[[], Collection[str]], note: Callable[[Notice], None]
    ) -> None:
        self._declared = declared
        self._note = note
        self._replicas: dict[str, _Replica] = {}  # that were open at least once
        self._overruled: dict[str, tuple[str, int]] = {}  # by replica: its model, last heard of

    def seen(self, event: Seen, now: int) -> None:
        """Take the breaker changes and overrulings in a gateway's report, and note due events.

        All other reports are ignored.
        """
        moved = False
        for action in event.actions:
            if isinstance(action, Report):
                if action.what == ReportCode.OVERRULED:
                    self._overrule(action, now)
                moved = self._moved(event.gateway, action) or moved
        if moved:
            self.look(now)

    def _overrule(self, report: Report, now: int) -> None:
        name = report.replica_id
        if name not in self._declared():
            return
        known = self._overruled.get(name)
        self._overruled[name] = (report.model, now)
        if known is None or now - known[1] > _OVERRULED_FOR:
            self._note(Notice(now, report.model, name, OVERRULED, report.reason))

    def overruled(self, now: int) -> dict[str, list[str]]:
        """Ids of replicas, by model, that gateways try although their breakers are open there.

        Only those reported in the last 3 s: gateways do so where users' failures opened breakers on
        more than half of a pool.
        """
        found: dict[str, list[str]] = {}
        declared = self._declared() if self._overruled else ()
        for name, (model, at) in list(self._overruled.items()):
            if name not in declared or now - at > _OVERRULED_FOR:
                del self._overruled[name]
            else:
                found.setdefault(model, []).append(name)
        return found

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
        """Count the breakers of a disconnected gateway as closed; ``look`` notes the change."""
        for one in self._replicas.values():
            if gateway in one.open_at:
                one.open_at.discard(gateway)
                one.reason = "the gateway that had cut it off is gone"

    def look(self, now: int) -> None:
        """Note the changes that are due (at most one per second and replica).

        Also forgets replicas that have left the fleet. Call it several times a second.
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


__all__ = ["CLOSED", "OPENED", "OVERRULED", "PACE", "Breakers"]
