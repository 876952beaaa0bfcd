"""What every detector is: facts in, evidence out, and nothing said too often.

A detector reads the kinds of facts it names and returns evidence when a sign shows, and again every
``REPEAT`` while it holds: whoever joins evidence into incidents takes silence for the end of it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol

from holdfast.core.diagnose.evidence import Evidence
from holdfast.core.types import SECOND

REPEAT: Final = 30 * SECOND  # while a sign holds it is said again this often, and no more
NOTHING: Final[Sequence[Evidence]] = ()


class Detector(Protocol):
    """One detector for a whole fleet; it keeps its own books for each replica."""

    reads: ClassVar[tuple[type, ...]]  # the kinds of facts it wants to see

    def take(self, fact: Any, now: int) -> Sequence[Evidence]:
        """One fact of a kind it reads, in the order of time."""

    def forget(self, replica: str) -> None:
        """This replica is gone for good, or begins a new life: what was known of it is void."""


class Pace:
    """Whether something may be said again."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[object, int] = {}

    def due(self, key: object, now: int) -> bool:
        """True for the first time, and then at most once in ``REPEAT``."""
        last = self._said.get(key)
        if last is not None and 0 <= now - last < REPEAT:
            return False
        self._said[key] = now
        return True

    def over(self, key: object) -> None:
        """It no longer holds: the next time is a first one."""
        self._said.pop(key, None)


__all__ = ["NOTHING", "REPEAT", "Detector", "Pace"]
