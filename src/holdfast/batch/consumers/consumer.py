"""Works off one queue that others fill: takes messages, sends them, records their ends, replies.

    receive ─► wait for room ─► send ─► judge the answer        core.batch.verdicts
                     ▲            │
                     └── pause ───┴─► record ─► reply ─► delete the message

A message is *held* from its receive to its end: its visibility is prolonged, and while its model is
down, full or restarting it waits here and is not given back. A queue such as SQS counts each
receive, and after a few of them gives a message up for which nobody had time. What is held is
bounded by what may run, so that all else stays in its queue, where others can have it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns
from typing import Any, Final, TypeVar

import structlog

from holdfast.batch.api_errors import ApiRefusalError
from holdfast.batch.consumers.ended_messages import (
    DeadLetter,
    EndedMessages,
    is_record_of,
    story_of,
)
from holdfast.batch.consumers.request_messages import (
    MessageRefusedError,
    QueuedRequest,
    answer_reply,
    error_reply,
    read_request,
)
from holdfast.batch.consumers.send_gate import SendGate
from holdfast.batch.creation_keys import fingerprint_of
from holdfast.batch.gateway_client import GatewayAnswer, GatewayClient
from holdfast.config.batch.consumers import PATHS, ConsumerSection
from holdfast.core.batch.suspect_turns import SuspectTurns
from holdfast.core.batch.verdicts import (
    ItemPolicyConfig,
    ItemVerdict,
    failures_of,
    judge_answer,
    pause_before,
    tells_loss,
)
from holdfast.core.stats import RateWindow
from holdfast.queue_port import EndedItem, ItemState, QueueError, check_name
from holdfast.queue_port.messages import Inbox, InboxDepth, Message, Outbox

VISIBILITY_S: Final = 120.0  # what a consumer that was killed held is received again after
HEARTBEAT_S: Final = 30.0
WAIT_S: Final = 1.0  # of one call for messages: a stop waits no longer for it
RECEIVE_MAX: Final = 10  # in one call: what SQS takes
AGAIN_S: Final = 1.0  # before a queue, a store or a place for replies is tried again
NO_GATEWAY_S: Final = 0.5
DEPTH_S: Final = 5.0  # between two counts: SQS charges for each
TEND_S: Final = 10.0  # between looks for dead letters to send again, and for old records
DRAIN_S: Final = 5.0  # for what is nearly done, when the process stops
TURN_S: Final = 0.1  # between looks whether a suspect may be sent, or others again
RECEIVES_BOUND: Final = 10  # even where no failure was the message's own: kills of this process
_log = structlog.get_logger("holdfast.batch.consumers")
ResultT = TypeVar("ResultT")


@dataclass(slots=True, eq=False)
class HeldMessage:
    """A message that was received and has not ended."""

    message: Message
    id: str
    fingerprint: str  # of what it asks for: another message of this id may ask for something else
    request: QueuedRequest | None  # None: it is no request
    refusal: MessageRefusedError | None = None
    began: int = 0  # when it was sent; 0: it waits
    task: asyncio.Task[None] | None = None
    sending: asyncio.Task[GatewayAnswer] | None = None
    story: list[dict[str, Any]] = field(default_factory=list)
    fenced: bool = False  # somebody else has it

    @property
    def custom_id(self) -> str | None:
        """What its sender wants to find in the reply."""
        if self.request is not None:
            return self.request.custom_id
        return self.refusal.known.custom_id if self.refusal is not None else None


class Consumer:
    """Takes messages of one inbox as far as its gate has room, and sees each to its end."""

    def __init__(
        self,
        section: ConsumerSection,
        inbox: Inbox,
        outbox: Outbox,
        records: EndedMessages,
        client: GatewayClient,
        items: ItemPolicyConfig,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.section = section
        self.name = section.called
        self.model = section.model
        self.interactive = section.priority == "interactive"
        self.records = records
        self.gate = SendGate()
        self.suspect_turns = SuspectTurns()  # of all who send messages of this model
        self.held: dict[str, HeldMessage] = {}  # by id
        self.finished = RateWindow(60.0)
        self.empty = False  # the last call found nothing
        self.problem = ""  # why it does not go on just now
        self._inbox = inbox
        self._outbox = outbox
        self._client = client
        self._items = items
        self._now_ns = now_ns
        self._depth = InboxDepth()
        self._depth_at: int | None = None
        self._wake = asyncio.Event()
        self._stopping = False

    # --- life ---

    async def run(self) -> None:
        """Work until ``stop``; then let end what is nearly done, and give the rest back."""
        beside = [asyncio.create_task(self._beat()), asyncio.create_task(self._tend())]
        try:
            while not self._stopping:
                await self._take()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._drain()

    def stop(self) -> None:
        """Make ``run`` take no more messages and return."""
        self._stopping = True
        self._wake.set()

    def wake(self) -> None:
        """Look again at once: there may be room."""
        self._wake.set()

    async def close(self) -> None:
        """Let go of the queue and of the place for replies."""
        await self._inbox.close()
        await self._outbox.close()

    @property
    def sent(self) -> list[HeldMessage]:
        """The messages that are being sent now."""
        return [held for held in self.held.values() if held.began]

    def take_back(self, held: HeldMessage) -> None:
        """Stop sending a message: people need its slot. It waits here for its next turn."""
        if held.sending is not None:
            held.sending.cancel()

    # --- taking ---

    async def _take(self) -> None:
        room = min(self.gate.limit, self.section.at_once_max) - len(self.held)
        if room <= 0:
            await self._pause(0.1)
            return
        try:
            messages = await self._inbox.receive(min(room, RECEIVE_MAX), VISIBILITY_S, WAIT_S)
        except QueueError as error:
            self._trouble("no messages can be taken", error)
            await self._pause(AGAIN_S)
            return
        self.problem = ""
        self.empty = not messages
        for message in messages:
            self._begin(message)

    def _begin(self, message: Message) -> None:
        section = self.section
        request = refusal = None
        try:
            request = read_request(message.payload, self.model, section.path, PATHS)
        except MessageRefusedError as refused:
            refusal = refused
        own = request.id if request is not None else refusal.known.id if refusal else ""
        name = own or _fitting(message.id) or message.key
        parts = (message.payload,) if request is None else (request.path, request.body)
        held = HeldMessage(message, name, fingerprint_of(*parts), request, refusal)
        if held.id in self.held:
            return  # a copy of what is under way: it comes again, and finds the record
        self.held[held.id] = held
        held.task = asyncio.create_task(self._work(held))
        held.task.add_done_callback(partial(self._over, held))

    def _over(self, held: HeldMessage, task: asyncio.Task[None]) -> None:
        if not self._stopping or not task.cancelled():
            self.held.pop(held.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug of ours, or a record that no store takes: the message comes again by itself.
            _log.error("a message failed here", consumer=self.name, id=held.id, exc_info=error)
        self._wake.set()

    # --- one message ---

    async def _work(self, held: HeldMessage) -> None:
        record = await self._persist(partial(self.records.find, held.id))
        if record is not None:
            if not is_record_of(record, held.fingerprint):
                await self._refuse_id(held)
                return
            dead = record.state is ItemState.DEAD
            if not dead or DeadLetter.of(record).key == held.message.key:
                await self._finish(held, await asyncio.to_thread(self.records.reply_of, record))
                return
            await self._persist(partial(self.records.reopen, held.id))
        if held.request is None:
            assert held.refusal is not None
            told = error_reply(held.id, held.custom_id, held.refusal.code, str(held.refusal))
            await self._end(held, ItemState.FAILED, told)
        elif held.message.receives > RECEIVES_BOUND:
            await self._bury(held, f"received {held.message.receives} times without an end")
        else:
            await self._ask(held, held.request)

    async def _ask(self, held: HeldMessage, request: QueuedRequest) -> None:
        """Send a message until it has an answer that ends it."""
        while True:
            answer = await self._send(held, request)
            if answer is None:
                continue  # taken back: it waits for its next turn
            if answer.broken:
                await asyncio.sleep(NO_GATEWAY_S)  # no fault of the message, and none of a replica
                continue
            code, message = answer.error
            verdict = judge_answer(answer.status, code, failures_of(held.story)[1])
            if verdict is ItemVerdict.WAIT:
                await asyncio.sleep(max(1.0, answer.retry_after_s))
                continue
            if verdict in {ItemVerdict.DONE, ItemVerdict.FAILED}:
                self.finished.add(self._now_ns())
                state = ItemState.DONE if verdict is ItemVerdict.DONE else ItemState.FAILED
                await self._end(held, state, answer_reply(held.id, held.custom_id, answer))
                return
            if tells_loss(code):
                self.suspect_turns.replica_lost(self._now_ns())
            reason = message[:200] or code or f"status {answer.status}"
            held.story.append(
                {
                    "what": "nacked",
                    "receive": held.message.receives,
                    "at": round(time.time(), 3),
                    "note": {
                        "status": answer.status,
                        "code": code,
                        "reason": reason,
                        "request_id": answer.request_id,
                    },
                }
            )
            tries = failures_of(held.story)[0]
            if verdict is ItemVerdict.POISON or tries >= self._items.receives_max:
                await self._bury(held, reason)
                return
            if verdict is not ItemVerdict.SUSPECT:  # a suspect waits for its turn
                await asyncio.sleep(pause_before(tries, self._items))

    async def _send(self, held: HeldMessage, request: QueuedRequest) -> GatewayAnswer | None:
        """Send a message once there is room; None where it was taken back."""
        suspect = failures_of(held.story)[1] > 0
        await self._enter(suspect=suspect)
        try:
            held.began = self._now_ns()
            held.sending = asyncio.create_task(
                self._client.post(
                    request.path, self.section.tenant, request.body, interactive=self.interactive
                )
            )
            return await held.sending
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise  # the whole message is given up; what it awaited was cancelled with it
            return None
        finally:
            held.began = 0
            held.sending = None
            self.suspect_turns.end(self._now_ns(), suspect=suspect)
            self.gate.leave()

    async def _enter(self, *, suspect: bool) -> None:
        """Wait for room, and as a suspect until nothing else of the model is being sent."""
        turns, began = self.suspect_turns, False
        turns.waiting += suspect
        try:
            while True:
                if not turns.may_begin(self._now_ns(), suspect=suspect):
                    await asyncio.sleep(TURN_S)
                    continue
                await self.gate.enter()
                now = self._now_ns()
                if turns.may_begin(now, suspect=suspect):
                    turns.begin(now, suspect=suspect)
                    began = True
                    return
                self.gate.leave()  # a suspect came while this one waited for room
        finally:
            if not began:
                turns.waiting -= suspect

    async def _end(self, held: HeldMessage, state: ItemState, reply: bytes) -> None:
        """Record an end, reply, and delete the message."""
        most = self._outbox.answer_bytes_max
        if most is not None and len(reply) > most:
            state = ItemState.FAILED
            told = f"The answer has {len(reply)} bytes and the reply queue takes {most}; use s3."
            reply = error_reply(held.id, held.custom_id, "answer_too_large", told)
        keep = partial(asyncio.to_thread, self.records.keep_reply, held.id, held.fingerprint, reply)
        ended = EndedItem(
            held.id,
            state,
            await self._persist(keep),
            tenant=self.section.tenant,
            receives=held.message.receives,
            story=story_of(held.fingerprint, held.story),
        )
        new = await self._persist(partial(self.records.end, ended))
        await self._conclude(held, reply, new=new)

    async def _bury(self, held: HeldMessage, reason: str) -> None:
        dead = DeadLetter(reason, held.message.key, held.custom_id)
        story, tenant = story_of(held.fingerprint, held.story), self.section.tenant
        bury = partial(self.records.bury, held.message, held.id, dead, story, tenant)
        _log.warning("a message is given up", consumer=self.name, id=held.id, reason=reason)
        reply = error_reply(held.id, held.custom_id, "dead_letter", reason)
        new = await self._persist(bury)
        if new:
            await self._persist(partial(self._inbox.bury, held.message, reason))
        await self._conclude(held, reply, new=new)

    async def _conclude(self, held: HeldMessage, reply: bytes, *, new: bool) -> None:
        """Reply as the record says that stands: another consumer of the queue may be first."""
        record = None if new else await self._persist(partial(self.records.find, held.id))
        if record is not None:
            if not is_record_of(record, held.fingerprint):
                await self._refuse_id(held)
                return
            reply = await asyncio.to_thread(self.records.reply_of, record)
        await self._finish(held, reply)

    async def _refuse_id(self, held: HeldMessage) -> None:
        """Answer a message whose id stands for another request.

        The reply has a name of its own: under its id lies the answer to the other request.
        """
        told = "id: another request had this id before; use a new one for each request."
        reply = error_reply(held.id, held.custom_id, "id_reused", told)
        await self._finish(held, reply, f"{held.id}~{held.message.key}")

    async def _finish(self, held: HeldMessage, reply: bytes, name: str = "") -> None:
        await self._persist(partial(self._outbox.put, name or held.id, reply))
        await self._persist(partial(self._inbox.delete, [held.message.receipt]))

    async def _persist(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Repeat a call while what it needs is full or away; the message is held meanwhile."""
        while True:
            try:
                result = await call()
            except (QueueError, ApiRefusalError) as error:
                self._trouble("an end waits to be recorded", error)
                await asyncio.sleep(AGAIN_S)
            else:
                return result

    def _trouble(self, what: str, error: Exception) -> None:
        if not self.problem:
            _log.warning(what, consumer=self.name, reason=str(error)[:200])
        self.problem = str(error)[:200]

    # --- beside ---

    async def _beat(self) -> None:
        """Keep what is held hidden from others; let go of what another has received."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            held = list(self.held.values())
            try:
                kept = await self._inbox.extend([one.message.receipt for one in held], VISIBILITY_S)
            except QueueError as error:
                self._trouble("messages cannot be kept", error)
                continue
            for one, ours in zip(held, kept, strict=True):
                if not ours and one.task is not None and not one.task.done():
                    one.fenced = True
                    one.task.cancel()

    async def _tend(self) -> None:
        """Send dead letters again that a person asked for, and forget old records."""
        while True:
            try:
                for item in await self.records.redriven():
                    if item.payload:
                        await self._inbox.send(item.id, item.payload)
                    await self.records.forget_redriven(item.id)
                await self.records.forget_old(self.section.keep_s)
            except QueueError as error:
                _log.info("records wait to be tended", consumer=self.name, reason=str(error)[:200])
            await asyncio.sleep(TEND_S)

    async def depth(self) -> InboxDepth:
        """How many messages there are, as of the last few seconds."""
        now = self._now_ns()
        if self._depth_at is None or now - self._depth_at > DEPTH_S * 1e9:
            self._depth_at = now
            try:
                self._depth = await self._inbox.depth()
            except QueueError as error:
                self._trouble("messages cannot be counted", error)
        return self._depth

    async def _pause(self, seconds: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _drain(self) -> None:
        tasks = [held.task for held in self.held.values() if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = [held.message.receipt for held in self.held.values() if not held.fenced]
        self.held.clear()
        if left:
            try:
                await self._inbox.show(left)
            except QueueError as error:  # they come back when their visibility runs out
                _log.warning("not given back", consumer=self.name, reason=str(error)[:200])
            else:
                _log.info("messages given back", consumer=self.name, count=len(left))


def _fitting(own: str) -> str:
    """An id beside the content, if a record can have it."""
    with contextlib.suppress(QueueError):
        check_name("id", own)
        return own
    return ""


__all__ = ["Consumer", "HeldMessage"]
