"""The interface of message queues that others fill, and of places where answers go.

    Inbox:   receive ─► hold (extend) ─► delete, or show again at once
    Outbox:  put an answer under the id of its request

An inbox is somebody else's queue: it knows neither tenants nor results, and it may deliver a
message twice. Which end of a message counts is decided by a record beside it (``RecordStore``); its
order is *record, answer, delete*, so that a crash between any two repeats what was not done and
never runs a message again that has a record.

Of foreign errors only ``QueueError`` travels; every call can be repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class Message:
    """One message as it was received: its content, and the receipt to delete it with."""

    key: str  # as the queue itself names it; a message that is sent again has another one
    payload: bytes
    receipt: str  # another one for each receive
    receives: int  # as the queue counts them, this one included
    id: str = ""  # that its sender gave it beside the content; empty: none


@dataclass(slots=True, frozen=True)
class InboxDepth:
    """How many messages an inbox has; None: unknown."""

    waiting: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    dead: int | None = None  # in the dead-letter queue that its platform keeps; None: it has none
    dead_letter_queue: str = ""
    receives_max: int | None = None  # after which its platform gives a message up; None: never
    oldest_s: float | None = None


class Inbox(Protocol):
    """A queue that others fill with requests."""

    async def receive(self, count: int, visibility_s: float, wait_s: float) -> list[Message]:
        """Take up to ``count`` messages, hidden from others for a while; waits for the first."""
        ...

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[bool]:
        """Hide messages for longer; False where the receipt has no right to it any more."""
        ...

    async def show(self, receipts: Sequence[str]) -> None:
        """Give messages back: anybody may receive them at once."""
        ...

    async def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages that have ended; one that stays comes again and has a record."""
        ...

    async def send(self, item_id: str, payload: bytes) -> None:
        """Add a message with this id: a dead letter that is tried again."""
        ...

    async def bury(self, message: Message, reason: str) -> None:
        """Put a copy into the dead-letter queue that its platform keeps, where there is one."""
        ...

    async def depth(self) -> InboxDepth:
        """Count the messages."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...


class Outbox(Protocol):
    """A place where answers go; the same id may be put twice, with the same answer."""

    answer_bytes_max: int | None  # what it takes; None: no bound

    async def put(self, item_id: str, answer: bytes) -> None:
        """Deliver an answer; when this returns it is there."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...


__all__ = ["Inbox", "InboxDepth", "Message", "Outbox"]
