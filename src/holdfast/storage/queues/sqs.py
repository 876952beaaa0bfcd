"""Amazon SQS as a durable queue, for fleets that live on its queues already.

SQS delivers at least once, keeps no record of what ended, and counts receives by itself. So the
terminal records are kept in a store beside it (``RecordStore``): the first end of an item is
written there, then its message is deleted. A message that comes again after its end is recognised
by its id and deleted; that is how one message, delivered twice, has one record.

What differs from the other stores, as ``traits`` says: nothing can be looked at without receiving
it, messages have no order, a released message has used up a receive (so nobody should receive while
the model is down), and a call that fails half-way has happened for some of its items.
"""

import math
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from holdfast.queue_port import (
    TERMINAL,
    EndedItem,
    ItemState,
    ItemView,
    Lease,
    LeaseAnswer,
    LeasedItem,
    NewItem,
    QueueDepth,
    QueueTraits,
    QueueUnsupportedError,
    RecordStore,
    Settlement,
    check_items,
    check_lease,
    check_name,
    check_seconds,
    check_settlements,
    pause_s,
)
from holdfast.storage.queues import story
from holdfast.storage.queues.sqs_calls import (
    BATCH,
    VISIBILITY_S_MAX,
    SqsCalls,
    sqs_client,
    warn_of_policy,
)
from holdfast.storage.queues.sqs_messages import message_entry, received_item

DELAY_S_MAX: Final = 900.0  # a quarter of an hour, by SQS
PAYLOAD_BYTES_MAX: Final = 190_000  # 256 KiB as base64, with room for the attributes
HELD_MAX: Final = 10_000  # leased messages of which payload and story are remembered

_OPEN: Final = (ItemState.READY, ItemState.DELAYED, ItemState.LEASED)


class SqsQueue:
    """The ``DurableQueue`` port over SQS queues, with its terminal records in another store."""

    def __init__(
        self, client: Any, urls: Mapping[str, str], records: RecordStore, wall: Any = time.time
    ) -> None:
        self._calls = SqsCalls(client)
        self._urls = dict(urls)  # by the name of a queue
        self._records = records
        self._wall = wall
        self._held: dict[Lease, LeasedItem] = {}  # bounded: the oldest is forgotten
        self._stories: dict[tuple[str, str], story.Story] = {}  # as above
        self._checked: set[str] = set()

    @property
    def traits(self) -> QueueTraits:
        """What SQS can do."""
        return QueueTraits(
            kind="sqs",
            inspectable=False,
            release_keeps_receives=False,
            whole_enqueue=False,
            ordered=False,
            visibility_s_max=VISIBILITY_S_MAX,
            payload_bytes_max=PAYLOAD_BYTES_MAX,
        )

    # --- messages --------------------------------------------------------------------------------

    async def enqueue(self, queue: str, items: Sequence[NewItem]) -> list[bool]:
        """Send items, ten at a time. Where this raises, some may have been sent: repeat it.

        A standard queue does not know ids; a second message of one is dropped when it is leased
        after the first one's end. FIFO queues drop it for five minutes by themselves.
        """
        check_items(items, PAYLOAD_BYTES_MAX)
        for index, item in enumerate(items):
            if item.delay_s > DELAY_S_MAX:
                fix = f"use at most {DELAY_S_MAX:g}"
                raise QueueUnsupportedError(f"items[{index}].delay_s is {item.delay_s:g}; {fix}")
        url = self._url(queue)
        fifo = url.endswith(".fifo")
        for start in range(0, len(items), BATCH):
            part = items[start : start + BATCH]
            entries = [message_entry(str(n), item, fifo=fifo) for n, item in enumerate(part)]
            await self._calls.send(url, entries)
        return [True] * len(items)

    async def lease(
        self, queue: str, count: int, visibility_s: float, owner: str = ""
    ) -> list[LeasedItem]:
        """Receive up to ``count`` messages; those that have ended already are deleted."""
        check_lease(queue, count, visibility_s, self.traits)
        check_name("owner", owner, empty=True)
        url = self._url(queue)
        await self._warn_of_policy(queue, url)
        leased: list[LeasedItem] = []
        while len(leased) < min(count, self.traits.lease_items_max):
            answer = await self._calls.ask(
                "receive_message",
                QueueUrl=url,
                MaxNumberOfMessages=min(count - len(leased), BATCH),
                VisibilityTimeout=math.ceil(visibility_s),
                AttributeNames=["ApproximateReceiveCount"],
                MessageAttributeNames=["All"],
            )
            messages = answer.get("Messages") or ()
            if not messages:
                break
            received = [received_item(queue, message) for message in messages]
            leased += [item for item in received if await self._is_open(url, item)]
        for item in leased:
            known = self._stories.get((queue, item.id), ())
            self._remember(item.lease, item, known)
        return [self._held[item.lease] for item in leased]

    async def _is_open(self, url: str, item: LeasedItem) -> bool:
        """Whether an item is to be worked on; one that has ended, or is poison, is deleted."""
        record = await self._records.item(item.lease.queue, item.id)
        if record is not None and record.state.terminal:
            await self._calls.delete(url, [item.lease.token])
            return False
        if item.receives <= item.max_receives:
            return True
        # SQS has a redrive policy of its own, or none: this one is ours.
        await self._bury(item, self._stories.get((item.lease.queue, item.id), ()))
        await self._calls.delete(url, [item.lease.token])
        return False

    async def extend(self, leases: Sequence[Lease], visibility_s: float) -> list[LeaseAnswer]:
        """Prolong the visibility timeout of messages."""
        check_seconds("visibility_s", visibility_s, 1.0)
        return [await self._show_again(lease, math.ceil(visibility_s)) for lease in leases]

    async def ack(self, settlements: Sequence[Settlement]) -> list[LeaseAnswer]:
        """Record how items ended, then delete their messages."""
        check_settlements(settlements, PAYLOAD_BYTES_MAX)
        answers: list[LeaseAnswer] = []
        for one in settlements:
            held = self._held.get(one.lease)
            ended = EndedItem(
                one.lease.id,
                one.state,
                one.result,
                group=held.group if held is not None else "",
                tenant=held.tenant if held is not None else "",
                receives=held.receives if held is not None else 1,
                owner=_digest(one.lease),
                story=held.story if held is not None else (),
            )
            new = await self._settle(one.lease.queue, ended)
            answers.append(LeaseAnswer.OK if new else await self._why_not(one.lease))
        for queue in dict.fromkeys(one.lease.queue for one in settlements):
            own = [one.lease.token for one in settlements if one.lease.queue == queue]
            await self._calls.delete(self._url(queue), own)
        for one in settlements:
            self._forget(one.lease)
        return answers

    async def _why_not(self, lease: Lease) -> LeaseAnswer:
        """Why a record could not be written: this very lease wrote it, or another one did."""
        record = await self._records.item(lease.queue, lease.id)
        mine = record is not None and record.owner == _digest(lease)
        return LeaseAnswer.REPEATED if mine else LeaseAnswer.FENCED

    async def nack(
        self,
        leases: Sequence[Lease],
        *,
        note: Mapping[str, Any] | None = None,
        delay_s: float | None = None,
        dead: bool = False,
    ) -> list[LeaseAnswer]:
        """Let messages be received again after a pause, or make them dead letters of ours."""
        check_seconds("delay_s", delay_s or 0.0, 0.0)
        answers = []
        for lease in leases:
            held = self._held.get(lease)
            receives = held.receives if held is not None else 1
            told = story.entry(story.NACKED, receives, "", self._wall(), story.note_text(note))
            known = self._stories.get((lease.queue, lease.id), ())
            kept = story.read(story.continued(story.dumped(known), told))
            if dead or (held is not None and held.last_receive):
                if held is None:
                    answers.append(LeaseAnswer.FENCED)
                    continue
                new = await self._bury(held, kept)
                await self._calls.delete(self._url(lease.queue), [lease.token])
                answers.append(LeaseAnswer.OK if new else LeaseAnswer.FENCED)
            else:
                pause = pause_s(receives) if delay_s is None else delay_s
                answers.append(await self._show_again(lease, math.ceil(pause)))
                self._bounded(self._stories, (lease.queue, lease.id), kept)
            self._forget(lease)
        return answers

    async def release(self, leases: Sequence[Lease]) -> list[LeaseAnswer]:
        """Let messages be received again at once; SQS has counted the receive."""
        answers = [await self._show_again(lease, 0) for lease in leases]
        for lease in leases:
            self._forget(lease)
        return answers

    async def reclaim(self, owner: str) -> int:
        """Nothing: SQS does not know owners; their messages come back by themselves."""
        check_name("owner", owner)
        return 0

    async def cancel(self, queue: str, group: str) -> int:
        """Not possible: waiting messages cannot be found."""
        raise QueueUnsupportedError(
            f"messages of {group!r} cannot be found in the SQS queue {queue}; "
            "let them be received and end them, or purge the whole queue"
        )

    async def redrive(self, queue: str, ids: Sequence[str] | None = None) -> int:
        """Send our dead letters again; those of SQS's own dead-letter queue with its redrive.

        A record is opened, its message is sent, the record is deleted: a crash in between leaves
        an open record, which the next redrive sends once more.
        """
        await self._records.redrive(queue, ids)
        count = 0
        while waiting := await self._records.items(queue, states=[ItemState.READY], limit=100):
            items = [NewItem(one.id, one.payload, one.group, one.tenant) for one in waiting]
            await self.enqueue(queue, items)
            sent = [item.id for item in items]
            await self._records.purge(queue, states=[ItemState.READY], ids=sent)
            count += len(sent)
        return count

    async def purge(
        self,
        queue: str,
        *,
        group: str | None = None,
        states: Sequence[ItemState] | None = None,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete records of items that have ended; without conditions the messages too."""
        if states is not None and any(not state.terminal for state in states):
            raise QueueUnsupportedError("waiting messages of SQS can be purged all together only")
        if states is None and group is None and ids is None:
            await self._calls.ask("purge_queue", QueueUrl=self._url(queue))
        return await self._records.purge(queue, group=group, states=states or TERMINAL, ids=ids)

    # --- looking ---------------------------------------------------------------------------------

    async def depths(self, queue: str | None = None, group: str | None = None) -> list[QueueDepth]:
        """Messages as SQS counts them (roughly), and ends as the records have them."""
        found = []
        for name in [queue] if queue is not None else sorted(self._urls):
            ended = await self._records.depths(name, group)
            counts = dict(ended[0].counts) if ended else {}
            if group is None:
                counts |= await self._calls.counts(self._url(name))
            found.append(QueueDepth(name, {s: n for s, n in counts.items() if n}, None))
        return found

    async def items(
        self,
        queue: str,
        *,
        states: Sequence[ItemState] | None = None,
        group: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[ItemView]:
        """Look at items that have ended; waiting messages cannot be looked at."""
        if states is None or any(not state.terminal for state in states):
            raise QueueUnsupportedError(
                "waiting messages of SQS cannot be looked at without receiving them; "
                "ask for done, failed, dead or cancelled"
            )
        return await self._records.items(
            queue, states=states, group=group, after=after, limit=limit
        )

    async def item(self, queue: str, item_id: str) -> ItemView | None:
        """Look at one item that has ended; None: it has not, or there is none."""
        return await self._records.item(queue, item_id)

    async def close(self) -> None:
        """Let go of the threads; the records are closed by who opened them."""
        await self._calls.close()

    # --- calls -----------------------------------------------------------------------------------

    async def _show_again(self, lease: Lease, seconds: int) -> LeaseAnswer:
        """Set when a message is shown again; FENCED where its receipt is not the newest."""
        record = await self._records.item(lease.queue, lease.id)
        if record is not None and record.state.terminal:
            return await self._why_not(lease)
        shown = await self._calls.show_again(self._url(lease.queue), lease.token, seconds)
        return LeaseAnswer.OK if shown else LeaseAnswer.FENCED

    async def _bury(self, item: LeasedItem, told: story.Story) -> bool:
        ended = EndedItem(
            item.id,
            ItemState.DEAD,
            payload=item.payload,
            group=item.group,
            tenant=item.tenant,
            receives=item.receives,
            owner=_digest(item.lease),
            story=told,
        )
        return await self._settle(item.lease.queue, ended)

    async def _settle(self, queue: str, ended: EndedItem) -> bool:
        """Write a record; a dead letter that is just being sent again has an open one."""
        (new,) = await self._records.settle(queue, [ended])
        if not new and await self._records.purge(queue, states=_OPEN, ids=[ended.id]):
            (new,) = await self._records.settle(queue, [ended])
        return new

    async def _warn_of_policy(self, queue: str, url: str) -> None:
        """Say once where AWS gives items up sooner than three receives allow."""
        if queue not in self._checked:
            self._checked.add(queue)
            receives, _ = await self._calls.redrive_policy(url)
            warn_of_policy(queue, receives)

    def _url(self, queue: str) -> str:
        check_name("queue", queue)
        url = self._urls.get(queue)
        if url is None:
            known = ", ".join(sorted(self._urls)) or "none"
            raise QueueUnsupportedError(f"no SQS queue is named {queue!r}; known are: {known}")
        return url

    def _remember(self, lease: Lease, item: LeasedItem, known: story.Story) -> None:
        whole = LeasedItem(
            lease,
            item.payload,
            item.group,
            item.tenant,
            item.priority,
            item.deadline,
            item.receives,
            item.max_receives,
            known,
        )
        self._bounded(self._held, lease, whole)

    def _forget(self, lease: Lease) -> None:
        self._held.pop(lease, None)

    @staticmethod
    def _bounded(kept: dict[Any, Any], key: Any, value: Any) -> None:
        kept.pop(key, None)
        kept[key] = value
        if len(kept) > HELD_MAX:
            del kept[next(iter(kept))]


def _digest(lease: Lease) -> str:
    """What tells one lease from another in a record; receipt handles are long."""
    return sha256(lease.token.encode()).hexdigest()[:16]


__all__ = ["SqsQueue", "sqs_client"]
