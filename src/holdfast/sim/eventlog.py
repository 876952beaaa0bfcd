"""The record of a run: each event with the actions it caused.

The digest names a run: two runs of one seed must agree on it in any process and on any Python
version. Kept whole, the record replays through bare machines and must give the same actions.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

Entry = tuple[int, str, Any, Sequence[Any]]


class EventLog:
    """Events and actions in order; ``keep`` holds them for a replay, else only the digest grows."""

    __slots__ = ("_hash", "entries", "keep")

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.entries: list[Entry] = []
        self._hash = blake2b(digest_size=16)

    def record(self, now: int, machine: str, event: Any, actions: Sequence[Any]) -> None:
        """Add one event of one machine, with the actions it caused."""
        self._hash.update(f"{now}|{machine}|{event!r}|{actions!r}\n".encode())
        if self.keep:
            self.entries.append((now, machine, event, actions))

    def digest(self) -> str:
        """A hash of everything recorded so far, which identifies the run."""
        return self._hash.hexdigest()


__all__ = ["EventLog"]
