"""The timers of all requests of a flow, in one coarse timer wheel.

A request needs several deadlines and almost none of them ever fires. One entry per request is
filed under the earliest of them, rounded up to a tick, and looked at when its slot comes round:
setting a timer and dropping it are one dictionary operation each. A heap was rejected: it pays
log n for every timer that never fires. So was leaving finished requests in place until their slot
comes: each would be kept alive for minutes, to be looked at once more when it is long out of every
cache.
"""

from typing import Generic, TypeVar

from holdfast.core.types import MILLISECOND


class TimerEntry:
    """The base class of what a timer wheel holds: an entry with the time it is due.

    A base class, because it compiles to plain field access.
    """

    __slots__ = ("due", "filed")
    due: int  # absolute time of its next deadline
    filed: int  # slot it is filed under, 0 = none; the wheel's own note


T = TypeVar("T", bound=TimerEntry)


class TimerWheel(Generic[T]):
    """Holds entries by the time slot they are due in; ``advance`` returns those that are due.

    It runs no timers of its own.
    """

    __slots__ = ("_cursor", "_slots", "_tick")

    def __init__(self, tick: int = 10 * MILLISECOND) -> None:
        self._tick = tick
        self._slots: dict[int, dict[T, None]] = {}  # a slot keeps the order of filing
        self._cursor = 0  # the last slot looked at

    def file(self, entry: T) -> None:
        """Set an entry's timer, so that ``advance`` returns it within a tick after ``entry.due``.

        One that is filed already is moved if it is due earlier now; an entry has one timer.
        """
        slot = -(-entry.due // self._tick)
        if slot <= self._cursor:
            slot = self._cursor + 1
        filed = entry.filed
        slots = self._slots
        if filed:
            if filed <= slot:
                return  # an earlier look is already planned and will file it again
            del slots[filed][entry]
        entry.filed = slot
        entries = slots.get(slot)
        if entries is None:
            slots[slot] = {entry: None}
        else:
            entries[entry] = None

    def drop(self, entry: T) -> None:
        """Remove the timer of an entry; no effect if it has none."""
        filed = entry.filed
        if filed:
            del self._slots[filed][entry]
            entry.filed = 0

    def advance(self, now: int) -> list[T]:
        """Remove and return the entries due at ``now`` (ns), in the order of their slots.

        Entries whose ``due`` was moved later are filed again.
        """
        target = now // self._tick
        cursor = self._cursor
        if target <= cursor:
            return []
        self._cursor = target
        slots = self._slots
        due: list[T] = []
        if target - cursor <= len(slots):
            passed = [slot for slot in range(cursor + 1, target + 1) if slot in slots]
        else:
            passed = sorted(slot for slot in slots if slot <= target)
        for slot in passed:
            for entry in slots.pop(slot):
                entry.filed = 0
                if entry.due <= now:
                    due.append(entry)
                else:
                    self.file(entry)
        return due

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))


__all__ = ["TimerEntry", "TimerWheel"]
