"""All timers of a flow, in one coarse wheel.

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
    """What the wheel needs of an entry. A base class: it compiles to plain field access."""

    __slots__ = ("due", "filed")
    due: int  # absolute time of its next deadline
    filed: int  # slot it is filed under, 0 = none; the wheel's own note


T = TypeVar("T", bound=TimerEntry)


class TimerWheel(Generic[T]):
    """Entries by slot; ``advance`` returns those whose time has come."""

    __slots__ = ("_cursor", "_slots", "_tick")

    def __init__(self, tick: int = 10 * MILLISECOND) -> None:
        self._tick = tick
        self._slots: dict[int, dict[T, None]] = {}  # a slot keeps the order of filing
        self._cursor = 0  # the last slot looked at

    def file(self, entry: T) -> None:
        """Make sure the entry is looked at no later than one tick after ``entry.due``."""
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
        """Forget the entry: none of its deadlines matters any more."""
        filed = entry.filed
        if filed:
            del self._slots[filed][entry]
            entry.filed = 0

    def advance(self, now: int) -> list[T]:
        """Entries that are due, in the order they were filed; the others are filed anew."""
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
