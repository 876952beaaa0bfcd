"""Queues of Amazon SQS with requests, and queues of SQS for answers.

SQS counts receives by itself and may give a message up after a few (its redrive policy), so a
message is held while its model is down and not given back. A dead letter is copied into the
dead-letter queue that the redrive policy names, where people look for it.
"""

import asyncio
import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from holdfast.queue_port import (
    ItemRefusedError,
    ItemState,
    NewItem,
    QueueError,
)
from holdfast.queue_port.messages import InboxDepth, Message
from holdfast.storage.queues.sqs_calls import BATCH, SqsCalls, warn_of_policy
from holdfast.storage.queues.sqs_messages import message_entry, received_item

MESSAGE_BYTES_MAX: Final = 250_000  # 256 KiB of SQS, less the attributes of an answer
WAIT_S_MAX: Final = 20.0  # of one call that waits for messages, by SQS
REASON_CHARACTERS_MAX: Final = 200


class _NamedQueue:
    """One queue of SQS by its name; its URL is asked for once."""

    def __init__(self, client: Any, name: str) -> None:
        self.name = name
        self.calls = SqsCalls(client)
        self._urls: dict[str, str] = {}

    async def url(self, name: str = "") -> str:
        """The URL of the queue, or of another one beside it."""
        name = name or self.name
        if name not in self._urls:
            answer = await self.calls.ask("get_queue_url", QueueName=name)
            self._urls[name] = str(answer["QueueUrl"])
        return self._urls[name]

    async def send(self, entry: dict[str, Any], name: str = "") -> None:
        """Send one message to the queue, or to another one beside it."""
        await self.calls.send(await self.url(name), [entry])


class SqsInbox:
    """The ``Inbox`` port over one queue of SQS."""

    def __init__(self, client: Any, name: str) -> None:
        self._queue = _NamedQueue(client, name)
        self._policy: tuple[int, str] | None = None  # receives, and the dead-letter queue

    async def receive(self, count: int, visibility_s: float, wait_s: float) -> list[Message]:
        """Take up to ten messages."""
        await self._redrive_policy()
        url = await self._queue.url()
        answer = await self._queue.calls.ask(
            "receive_message",
            QueueUrl=url,
            MaxNumberOfMessages=min(count, BATCH),
            VisibilityTimeout=math.ceil(visibility_s),
            WaitTimeSeconds=math.floor(min(wait_s, WAIT_S_MAX)),
            AttributeNames=["ApproximateReceiveCount"],
            MessageAttributeNames=["All"],
        )
        messages = []
        for told in answer.get("Messages") or ():
            item = received_item(self._queue.name, told)
            key = str(told["MessageId"])
            own = item.id if item.id != key else ""
            messages.append(Message(key, item.payload, item.lease.token, item.receives, own))
        return messages

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[bool]:
        """Prolong the visibility timeout of messages; SQS allows twelve hours in all."""
        url, seconds = await self._queue.url(), math.ceil(visibility_s)
        calls = (self._queue.calls.show_again(url, one, seconds) for one in receipts)
        return list(await asyncio.gather(*calls))

    async def show(self, receipts: Sequence[str]) -> None:
        """Let messages be received again at once; SQS has counted the receive."""
        url = await self._queue.url()
        await asyncio.gather(*(self._queue.calls.show_again(url, one, 0) for one in receipts))

    async def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages."""
        await self._queue.calls.delete(await self._queue.url(), receipts)

    async def send(self, item_id: str, payload: bytes) -> None:
        """Send a message with an id of ours."""
        await self._queue.send(_entry(item_id, payload, self._queue.name))

    async def bury(self, message: Message, reason: str) -> None:
        """Copy a message into the queue that the redrive policy names, with the reason."""
        _, dead = await self._redrive_policy()
        if not dead:
            return
        entry = _entry("", message.payload, dead)
        reason = reason[:REASON_CHARACTERS_MAX] or "given up"
        entry["MessageAttributes"]["reason"] = {"DataType": "String", "StringValue": reason}
        await self._queue.send(entry, dead)

    async def depth(self) -> InboxDepth:
        """Count the messages, and those of the dead-letter queue."""
        counts = await self._queue.calls.counts(await self._queue.url())
        receives, name = await self._redrive_policy()
        dead = None
        if name:
            try:
                dead = sum((await self._queue.calls.counts(await self._queue.url(name))).values())
            except QueueError:  # it may be of another account, or not for us to count
                dead = None
        return InboxDepth(
            counts[ItemState.READY],
            counts[ItemState.LEASED],
            counts[ItemState.DELAYED],
            dead,
            name,
            receives or None,
        )

    async def close(self) -> None:
        """Let go of the threads."""
        await self._queue.calls.close()

    async def _redrive_policy(self) -> tuple[int, str]:
        if self._policy is None:
            self._policy = await self._queue.calls.redrive_policy(await self._queue.url())
            warn_of_policy(self._queue.name, self._policy[0])
        return self._policy


class SqsOutbox:
    """The ``Outbox`` port over one queue of SQS; the id is the message attribute ``id``."""

    answer_bytes_max: int | None = MESSAGE_BYTES_MAX

    def __init__(self, client: Any, name: str) -> None:
        self._queue = _NamedQueue(client, name)

    async def put(self, item_id: str, answer: bytes) -> None:
        """Send an answer; of a FIFO queue, a second one within five minutes is dropped by SQS."""
        if len(answer) > MESSAGE_BYTES_MAX:
            fix = "reply to a bucket"
            raise ItemRefusedError(f"an answer has {len(answer)} bytes, too many for SQS; {fix}")
        entry: dict[str, Any] = {
            "Id": "0",
            "MessageBody": answer.decode(),
            "MessageAttributes": {"id": {"DataType": "String", "StringValue": item_id}},
        }
        if self._queue.name.endswith(".fifo"):
            entry["MessageDeduplicationId"] = _digest(item_id)
            entry["MessageGroupId"] = _digest(item_id)
        await self._queue.send(entry)

    async def close(self) -> None:
        """Let go of the threads."""
        await self._queue.calls.close()


def _entry(item_id: str, payload: bytes, queue: str) -> dict[str, Any]:
    fifo = queue.endswith(".fifo")
    entry = message_entry("0", NewItem(item_id or _digest(payload), payload), fifo=fifo)
    told = entry["MessageAttributes"]
    del told["holdfast-max-receives"]
    if not item_id:  # sent again by a person it is a new message, with no record of its own
        del told["holdfast-id"]
    return entry


def _digest(value: str | bytes) -> str:
    return sha256(value.encode() if isinstance(value, str) else value).hexdigest()


__all__ = ["MESSAGE_BYTES_MAX", "SqsInbox", "SqsOutbox"]
