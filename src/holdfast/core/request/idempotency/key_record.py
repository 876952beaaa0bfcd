"""What all gateways know of one idempotency key: one record, four states.

                    ┌───────────────── released ────────────────┐
                    ▼                                           │
    (no record) ──claimed──► EXECUTING ──final answer──► FINISHED   until it expires
                    ▲            │  ▲ └──no final answer─► FAILED    the next caller executes
                    │            │  └──────claimed again──────┘
                    │            ├──owner dead, may be repeated──► EXECUTING, by another gateway
                    └──expired── └──owner dead, may not be──► LOST   nobody knows what it did

An execution has a name of its own. Every change that a gateway makes for an execution names it and
is refused where the record names another one: a gateway that was frozen while another took over its
key cannot finish it a second time.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class KeyState(StrEnum):
    """Where the request of one key stands."""

    EXECUTING = "executing"  # one gateway has it; duplicates wait
    FINISHED = "finished"  # there is a terminal answer
    FAILED = "failed"  # it ended without one; the next caller executes again
    LOST = "lost"  # its gateway died, and it must not be executed again


# Which state may follow which; None: there is no record.
TRANSITIONS: Final[dict[KeyState | None, frozenset[KeyState | None]]] = {
    None: frozenset({KeyState.EXECUTING}),
    KeyState.EXECUTING: frozenset(
        {KeyState.EXECUTING, KeyState.FINISHED, KeyState.FAILED, KeyState.LOST, None}
    ),
    KeyState.FINISHED: frozenset({KeyState.FINISHED, KeyState.EXECUTING, None}),  # once expired
    KeyState.FAILED: frozenset({KeyState.FAILED, KeyState.EXECUTING, None}),
    KeyState.LOST: frozenset({KeyState.LOST, KeyState.EXECUTING, None}),  # likewise
}


@dataclass(slots=True, frozen=True)
class KeyName:
    """Names the record of a key: its tenant, and a digest in place of the key itself."""

    tenant: str
    digest: str


@dataclass(slots=True, frozen=True)
class KeyRecord:
    """The state of one idempotency key: which request it is for, who executes it, how that ended.

    The answer's pieces lie beside it in the store.
    """

    state: KeyState
    fingerprint: str  # a keyed digest of the request; another one under the same key is refused
    execution: str  # names this execution; a change for another one is refused
    owner: str  # the gateway process that executes, or holds the answer
    expires_at: float  # seconds since the epoch
    repeatable: bool = True  # engines keep nothing of it: it may be executed again
    wanted: bool = False  # a duplicate waits at another gateway: the answer must pass the store
    unkept: bool = False  # the answer cannot be had again: too large, or forgotten
    streams: bool = False  # it was answered piece by piece
    status: int = 0  # of the answer; 0: none was begun
    head: str = ""  # header lines of the answer
    pieces: int = 0  # of the whole answer; 0: it is not complete
    stored: int = 0  # pieces of it that are in the store
    bytes: int = 0  # their size
    stored_until: float = 0.0  # when they leave it; the record itself may stay

    @property
    def readable(self) -> bool:
        """Whether the whole answer is in the store."""
        return self.pieces > 0 and self.stored == self.pieces


@dataclass(slots=True, frozen=True)
class KeyUsage:
    """Number of keys and bytes of answers that a store holds: of one tenant, and of all."""

    keys: int = 0
    bytes: int = 0
    all_keys: int = 0
    all_bytes: int = 0


class KeyTransitionError(Exception):
    """A change of a key's state that the table does not have: a bug in a policy."""


def check_transition(before: KeyRecord | None, after: KeyRecord | None) -> None:
    """Raise ``KeyTransitionError`` where one record's state may not follow the other's.

    None stands for no record.
    """
    old = None if before is None else before.state
    new = None if after is None else after.state
    if new not in TRANSITIONS[old]:
        raise KeyTransitionError(f"{old or 'no record'} cannot become {new or 'no record'}")


__all__ = [
    "TRANSITIONS",
    "KeyName",
    "KeyRecord",
    "KeyState",
    "KeyTransitionError",
    "KeyUsage",
    "check_transition",
]
