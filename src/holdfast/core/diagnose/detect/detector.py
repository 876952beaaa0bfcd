"""The interface of detectors (facts in, evidence out), and the limit on repeating a sign.

A detector reads the kinds of facts it names and returns evidence when a sign shows, and again every
``REPEAT`` while it holds: the diagnosis takes missing repetition for the end of a sign.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol

from holdfast.core.diagnose.evidence import Evidence
from holdfast.core.types import SECOND

REPEAT: Final = 30 * SECOND  # while a sign holds it is said again this often, and no more
NOTHING: Final[Sequence[Evidence]] = ()


class Detector(Protocol):
    """Interface of a detector: one object for a whole fleet, with records per replica.

    It turns facts into evidence and acts on nothing.
    """

    reads: ClassVar[tuple[type, ...]]  # the kinds of facts it wants to see

    def take(self, fact: Any, now: int) -> Sequence[Evidence]:
        """Take one fact of a kind in ``reads``, in order of time; return evidence to report now.

        Empty if there is none, or if a lasting sign was reported less than ``REPEAT`` ago.
        """

    def forget(self, replica: str) -> None:
        """Drop all records of a replica that left the fleet; the same id begins anew."""


class Pace:
    """Limits how often the same sign is reported while it holds: once per ``REPEAT`` (30 s).

    Keeps, for each key that its detector uses, when it was last reported.
    """

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[object, int] = {}

    def due(self, key: object, now: int) -> bool:
        """Whether to report this key now; if so, note ``now`` as its last report.

        True the first time and then at most once per ``REPEAT``.
        """
        last = self._said.get(key)
        if last is not None and 0 <= now - last < REPEAT:
            return False
        self._said[key] = now
        return True

    def over(self, key: object) -> None:
        """Note that what this key stands for no longer holds: its next report is due at once."""
        self._said.pop(key, None)


__all__ = ["NOTHING", "REPEAT", "Detector", "Pace"]
