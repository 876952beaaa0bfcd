"""The terminal records of messages: one for each id, kept for a while with the reply.

    record ─► reply ─► delete the message

A crash after the record repeats the reply, from the record; the message is not run again. The same
holds for a message that its queue delivers twice, and for one that its producer sent twice.

The story of a record begins with the fingerprint of its request. A message with the id of a record
and another request is not answered from it: ids are their senders' choice, and two may choose one.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import orjson

from holdfast.batch.consumers.request_messages import error_reply
from holdfast.batch.items import LongResults
from holdfast.queue_port import (
    PAYLOAD_BYTES_MAX,
    EndedItem,
    ItemState,
    ItemView,
    RecordStore,
)
from holdfast.queue_port.messages import Message

PREFIX: Final = "consume/"
PURGED_EACH: Final = 100  # records read to be deleted; each may hold a reply of 256 KB
_FINGERPRINT: Final = "fingerprint"
_OPEN: Final = (ItemState.READY, ItemState.DELAYED, ItemState.LEASED)
_ENDED: Final = (ItemState.DONE, ItemState.FAILED)


Story = tuple[Mapping[str, Any], ...]


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """Why a message was given up, and which message it was: what a dead letter's record keeps."""

    reason: str
    key: str  # another message of the same id was sent again by a person
    custom_id: str | None = None

    def dump(self) -> bytes:
        """As the result of a record."""
        told = {"reason": self.reason, "message": self.key, "custom_id": self.custom_id}
        return orjson.dumps(told)

    @classmethod
    def of(cls, record: ItemView) -> "DeadLetter":
        """Read a record's result."""
        told: dict[str, Any] = orjson.loads(record.result or b"{}")
        reason = str(told.get("reason") or "given up")
        return cls(reason, str(told.get("message") or ""), told.get("custom_id"))


def story_of(fingerprint: str, entries: Iterable[Mapping[str, Any]]) -> Story:
    """The story of a record: the request it is of, and then what became of the message."""
    return ({"what": "request", "receive": 1, _FINGERPRINT: fingerprint}, *entries)


def is_record_of(record: ItemView, fingerprint: str) -> bool:
    """Whether a record is that of this request; one of an earlier version does not say."""
    known = next((entry[_FINGERPRINT] for entry in record.story if _FINGERPRINT in entry), None)
    return known is None or known == fingerprint


class EndedMessages:
    """Keeps the records of one consumer's messages in the store of batches."""

    def __init__(
        self,
        name: str,
        store: RecordStore,
        results: LongResults,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.queue = PREFIX + name
        self._store = store
        self._results = results
        self._wall = wall

    async def find(self, item_id: str) -> ItemView | None:
        """The terminal record of an id; None: it has not ended."""
        record = await self._store.item(self.queue, item_id)
        return record if record is not None and record.state.terminal else None

    async def reopen(self, item_id: str) -> None:
        """Delete the record of a dead letter that is tried again."""
        await self._store.purge(self.queue, states=[ItemState.DEAD], ids=[item_id])

    def reply_of(self, record: ItemView) -> bytes:
        """The reply that a record stands for."""
        if record.state is ItemState.DEAD:
            dead = DeadLetter.of(record)
            return error_reply(record.id, dead.custom_id, "dead_letter", dead.reason)
        return self._results.get(record.result)

    def keep_reply(self, item_id: str, fingerprint: str, reply: bytes) -> bytes:
        """What to record as the result: the reply, or where a long one lies on disk. Blocks."""
        return self._results.put(f"{self._digest(f'{item_id}/{fingerprint}')}/reply", reply)

    async def end(self, ended: EndedItem) -> bool:
        """Write the record; False where the id has one already, and that one stands."""
        (new,) = await self._store.settle(self.queue, [ended])
        # A dead letter that is just being sent again has an open record.
        if not new and await self._store.purge(self.queue, states=_OPEN, ids=[ended.id]):
            (new,) = await self._store.settle(self.queue, [ended])
        return new

    async def bury(
        self, message: Message, item_id: str, dead: DeadLetter, story: Story, tenant: str
    ) -> bool:
        """Record a dead letter with its content and its story."""
        fits = len(message.payload) <= PAYLOAD_BYTES_MAX
        return await self.end(
            EndedItem(
                item_id,
                ItemState.DEAD,
                dead.dump(),
                payload=message.payload if fits else b"",
                tenant=tenant,
                receives=message.receives,
                story=story,
            )
        )

    async def redriven(self) -> list[ItemView]:
        """Dead letters that a person made ready again; they go back into their own queue."""
        return await self._store.items(self.queue, states=[ItemState.READY], limit=PURGED_EACH)

    async def forget_redriven(self, item_id: str) -> None:
        """Delete the open record of a dead letter that was sent again."""
        await self._store.purge(self.queue, states=[ItemState.READY], ids=[item_id])

    async def forget_old(self, keep_s: float) -> int:
        """Delete records of messages that ended long ago, with their replies; how many."""
        count = 0
        while True:
            oldest = await self._store.items(self.queue, states=_ENDED, limit=PURGED_EACH)
            before = self._wall() - keep_s
            over = [one for one in oldest if (one.ended_at or 0.0) < before]
            if not over:
                return count
            await self._store.purge(self.queue, states=_ENDED, ids=[one.id for one in over])
            for one in over:
                self._results.forget(one.result)
            count += len(over)

    async def dead(self) -> int:
        """How many dead letters there are."""
        depths = await self._store.depths(self.queue)
        return sum(depth.dead for depth in depths)

    def _digest(self, item_id: str) -> str:
        """A name for files: ids are others' text."""
        return sha256(f"{self.queue}/{item_id}".encode()).hexdigest()[:40]


__all__ = ["PREFIX", "DeadLetter", "EndedMessages", "is_record_of", "story_of"]
