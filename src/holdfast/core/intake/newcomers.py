"""Bounds connections that have not brought a whole request head yet; the oldest goes first.

A connection costs its client one packet, and here a descriptor and some memory. Those that have
brought a request are working; those that have not may be on their way, or may be meant to stay for
ever. So newcomers have a bound of their own, and one of their own per address: a flood of them
closes the oldest newcomers and no connection that works.

Nobody is closed within a moment of coming: a thousand clients that connect at once are no flood,
and each of them needs a turn of the event loop before its first byte can be read.

Behind a load balancer all connections come from one address. Such a balancer connects when it has a
request to pass on, so nearly none of its connections is a newcomer; the many that it keeps open
have brought requests before and are not counted here. Rejected as a default: a bound on all
connections of an address. It would be the bound on all connections of everybody behind the
balancer. Where clients come by themselves it can be set; ``AddressCounts`` counts for it.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

C = TypeVar("C")


class Newcomers(Generic[C]):
    """All connections of one process that sent no complete request head yet, oldest first.

    It closes none: it names the one to close when a bound (in all, or of one address) is passed.
    """

    __slots__ = ("_by_address", "_grace", "_most", "_most_of_address", "_since")

    def __init__(self, most: int, most_of_address: int, grace: int) -> None:
        self._since: dict[C, tuple[int, str]] = {}  # when it came, and from where
        self._by_address: dict[str, dict[C, None]] = {}
        self.bound(most, most_of_address, grace)

    def __len__(self) -> int:
        return len(self._since)

    def bound(self, most: int, most_of_address: int, grace: int) -> None:
        """Set the bounds, in all and per address (0: none); who is there stays.

        ``grace`` (ns): nobody younger is named for closing.
        """
        self._most = most
        self._most_of_address = most_of_address
        self._grace = grace

    def came(self, connection: C, address: str, now: int) -> C | None:
        """Add a connection; return the oldest, to be closed by the caller, if a bound is passed.

        Of its address where that bound is passed, else of all. None: no bound is passed, or that
        one is still within the grace. The one returned stays listed until ``left``.
        """
        self._since[connection] = (now, address)
        own = self._by_address.setdefault(address, {})
        own[connection] = None
        if self._most_of_address and len(own) > self._most_of_address:
            return self._ripe(next(iter(own)), now)
        if self._most and len(self._since) > self._most:
            return self._ripe(next(iter(self._since)), now)
        return None

    def left(self, connection: C) -> None:
        """Remove a connection: its first head is complete, or it is closed. Harmless if unknown."""
        known = self._since.pop(connection, None)
        if known is not None:
            own = self._by_address[known[1]]
            del own[connection]
            if not own:
                del self._by_address[known[1]]

    def oldest(self, now: int) -> C | None:
        """Return the connection that has waited longest, to be closed by the caller; removes none.

        None: there is none, or all came within the grace.
        """
        return self._ripe(next(iter(self._since)), now) if self._since else None

    def of_address(self, address: str) -> int:
        """Return how many newcomers there are from an address; 0 if none."""
        return len(self._by_address.get(address, ()))

    def _ripe(self, connection: C, now: int) -> C | None:
        return connection if now - self._since[connection][0] >= self._grace else None


class AddressCounts:
    """Counts the connections that each client address has open now; refuses and closes none."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[str, int] = {}  # no zeros: as many as there are connections at most

    def came(self, address: str) -> int:
        """Count a connection of an address; return how many it has with this one."""
        there = self._open.get(address, 0) + 1
        self._open[address] = there
        return there

    def left(self, address: str) -> None:
        """Take back one connection that ``came`` counted; ``KeyError`` if there is none."""
        there = self._open.pop(address) - 1
        if there:
            self._open[address] = there


def longest_waiting(tables: Iterable[Mapping[C, int]], now: int, grace: int) -> C | None:
    """Return the oldest connection of the first table that has one of age ``grace`` (ns), or None.

    ``tables`` map connections to the time since when they wait, the oldest first; the tables come
    in the order in which their connections may be given up. Closes and removes nothing.
    """
    for table in tables:
        for connection, since in table.items():
            if now - since >= grace:
                return connection
            break
    return None


__all__ = ["AddressCounts", "Newcomers", "longest_waiting"]
