"""Works the items of batches off: leases them, sends them through the gateway, records their ends.

    every look (100 ms, or an item ended)
      for each model:  how many may run now      core.batch.spare_capacity
                       whose items are next      core.batch.turns
                       or a suspect, alone       core.batch.suspect_turns
      lease them ─► send ─► judge the answer     core.batch.verdicts
                      └─► record: done, failed, again, dead letter; or given back untried

This module decides nothing itself. It holds a lease for every item that it sends, keeps the lease
alive, and gives it back when it stops, when people need the slot, or when the batch is cancelled.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic_ns
from typing import Any, BinaryIO, Final

import structlog

from holdfast.batch.api_errors import ApiRefusalError
from holdfast.batch.batch_desk import BatchDesk
from holdfast.batch.file_store import FileStore
from holdfast.batch.gateway_client import GatewayAnswer, GatewayClient
from holdfast.batch.input_lines import body_of
from holdfast.batch.items import (
    ItemPayload,
    LongResults,
    answer_line,
    error_line,
    model_of,
    payload_of,
)
from holdfast.batch.load_reports import LoadReports
from holdfast.batch.settlements import FailedReceive, Settlements
from holdfast.core.batch.spare_capacity import (
    LEARN_S,
    BatchPace,
    SpareCapacity,
    SpareCapacityConfig,
    is_young,
)
from holdfast.core.batch.suspect_turns import SuspectTurns
from holdfast.core.batch.turns import OpenBatch, Turns
from holdfast.core.batch.verdicts import (
    ItemPolicyConfig,
    ItemVerdict,
    failures_of,
    judge_answer,
    pause_before,
    tells_loss,
)
from holdfast.core.stats import RateWindow
from holdfast.core.types import SECOND, nanos
from holdfast.queue_port import (
    DurableQueue,
    ItemState,
    Lease,
    LeaseAnswer,
    LeasedItem,
    QueueError,
    Settlement,
)
from holdfast.storage.batch_records import BatchRecord

OWNER: Final = "batch-runner"  # one per state directory: a lock sees to that
VISIBILITY_S: Final = 120.0  # a runner that is killed is started again within seconds and reclaims
HEARTBEAT_S: Final = 30.0
LOOK_S: Final = 0.1  # gateways report as often
EMPTY_S: Final = 1.0  # before an empty queue is asked again: items whose pause ends come back
LEASED_EACH_MAX: Final = 256  # in one call
RUNNING_MAX: Final = 4_096  # items at once over all models; each is a connection to the gateway
SUSPECTS_MAX: Final = 1_024  # held for their turn, of one model: as many as its replicas have slots
NO_GATEWAY: Final = SECOND // 2  # before the next try when the gateway does not answer
_NO_QUOTA: Final = "Your files and results have no room for the answer; delete some, and ask again."
_log = structlog.get_logger("holdfast.batch")


@dataclass(slots=True, eq=False)
class RunningItem:
    """An item that is being sent: its lease, its line, and its task."""

    item: LeasedItem
    batch: BatchRecord
    payload: ItemPayload
    began: int
    task: asyncio.Task[None] | None = None
    turn: asyncio.Event | None = None  # of a suspect: set when it may be sent

    @property
    def suspect(self) -> bool:
        """Whether a replica was lost with it before."""
        return self.turn is not None


@dataclass(slots=True)
class ModelFeed:
    """What the runner keeps for one model: its policies, and which queues are worth asking."""

    capacity: SpareCapacity
    turns: Turns
    suspect_turns: SuspectTurns  # of all who send items of the model
    suspects: list[RunningItem] = field(default_factory=list)  # leased; they wait for their turn
    running: set[RunningItem] = field(default_factory=set)
    pace: BatchPace = field(default_factory=lambda: BatchPace(0, 0, "not looked yet"))
    empty_until: dict[str, int] = field(default_factory=dict)  # by queue
    finished: RateWindow = field(default_factory=lambda: RateWindow(60.0))


class BatchRunner:
    """Sends items of all batches, as much as spare capacity allows."""

    def __init__(
        self,
        desk: BatchDesk,
        queue: DurableQueue,
        store: FileStore,
        results: LongResults,
        client: GatewayClient,
        loads: LoadReports,
        *,
        pace: SpareCapacityConfig,
        items: ItemPolicyConfig,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._desk = desk
        self._queue = queue
        self._store = store
        self._results = results
        self._client = client
        self._loads = loads
        self._pace_config = pace
        self._item_config = items
        self._now_ns = now_ns
        self.feeds: dict[str, ModelFeed] = {}
        self._capacities: dict[str, SpareCapacity] = {}  # by model, with batches or without
        # What consumers of the same model leave to batches; None: everything.
        self.cap: Callable[[str], int | None] = lambda _: None
        # By model, where consumers send items, too; batches alone have their feed's own.
        self.suspect_turns: dict[str, SuspectTurns] = {}
        self._running: dict[str, RunningItem] = {}  # by item id, waiting suspects included
        self._wake = asyncio.Event()
        self._stopping = False
        self._looked_at = 0
        self._beat_at = 0
        self._learn_at = 0
        self.settlements = Settlements(queue, self._recorded)
        desk.abort = self.abort

    # --- life ---

    async def run(self) -> None:
        """Work until ``stop``, and then until what runs has ended or was given back."""
        reclaimed = await self._queue.reclaim(OWNER)
        if reclaimed:
            _log.info("items of the last run taken back", count=reclaimed)
        recording = asyncio.create_task(self.settlements.run())
        try:
            while not self._stopping:
                await self._look()
                with contextlib.suppress(TimeoutError):  # nothing happened: look all the same
                    async with asyncio.timeout(LOOK_S if self.feeds else 1.0):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            await self._give_back()
            self.settlements.stop()
            await recording

    def stop(self) -> None:
        """Make ``run`` take no new items and return."""
        self._stopping = True
        self._wake.set()

    def wake(self) -> None:
        """Look again at once: there may be new items."""
        for feed in self.feeds.values():
            feed.empty_until.clear()
        self._wake.set()

    def abort(self, batch_id: str) -> None:
        """Give back the items of a batch that run now."""
        for running in list(self._running.values()):
            if running.batch.id == batch_id:
                _cancel(running)

    async def _give_back(self, grace_s: float = 2.0) -> None:
        """Let items that are nearly done end; give the others back untried."""
        for feed in self.feeds.values():
            for suspect in feed.suspects:
                _cancel(suspect)
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for running in list(self._running.values()):
            _cancel(running)
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one look ---

    async def _look(self) -> None:
        now = self._now_ns()
        batches = self._queues_by_model()
        for model in batches.keys() - self.feeds.keys():
            alone = self.suspect_turns.get(model) or SuspectTurns()
            self.feeds[model] = ModelFeed(self._capacity(model), Turns(), alone)
        due = now - self._looked_at >= nanos(LOOK_S * 0.9)
        if due:
            self._looked_at = now
        for model, feed in list(self.feeds.items()):
            if model not in batches and not feed.running and not feed.suspects:
                del self.feeds[model]
                continue
            if due:
                self._set_pace(model, feed, now)
            await self._feed(model, feed, batches.get(model, {}), now)
        if now >= self._learn_at:
            self._learn_at = now + nanos(LEARN_S)
            self._learn(now)
        if now >= self._beat_at:
            self._beat_at = now + nanos(HEARTBEAT_S)
            await self._heartbeat()

    def _capacity(self, model: str) -> SpareCapacity:
        return self._capacities.setdefault(model, SpareCapacity(self._pace_config))

    def _learn(self, now: int) -> None:
        """Let every model that runs no item show what first tokens are usual.

        Where consumers send items as well, they know that better, and bound what batches get.
        """
        known = self._loads.models()
        for model in known - self.suspect_turns.keys():
            feed = self.feeds.get(model)
            if feed is None or not feed.running:
                self._capacity(model).learn(self._loads.of(model), now)
        for model in self._capacities.keys() - known - self.feeds.keys():
            del self._capacities[model]

    def _queues_by_model(self) -> dict[str, dict[str, str]]:
        """For each model the batches that have items for it, and the queues of these."""
        found: dict[str, dict[str, str]] = {}
        for record in self._desk.open.values():
            if self._desk.runnable(record.id) is None or self._desk.remaining(record.id) <= 0:
                continue
            for name in record.queues:
                found.setdefault(model_of(name, record.tenant), {})[record.id] = name
        return found

    def _set_pace(self, model: str, feed: ModelFeed, now: int) -> None:
        config = self._pace_config
        young = [one for one in feed.running if is_young(one.began, now, config)]
        load = self._loads.of(model)
        feed.pace = feed.capacity.look(load, len(feed.running), len(young), now)
        if not self._store.has_room():  # the rest is for the ends of what runs
            feed.pace = replace(feed.pace, running_max=0, reason="the disk has no room for results")
        if feed.pace.take_back:
            young.sort(key=lambda one: one.began, reverse=True)
            for running in young[: feed.pace.take_back]:
                _cancel(running)

    async def _feed(self, model: str, feed: ModelFeed, queues: dict[str, str], now: int) -> None:
        """Lease and send as many items of a model as may run now."""
        if self._stopping or self.settlements.problem:
            return
        alone = feed.suspect_turns
        if not alone.may_begin(now, suspect=False):
            self._try_suspect(model, feed, now)
            return
        free = min(feed.pace.running_max - len(feed.running), RUNNING_MAX - len(self._running))
        free = min(free, LEASED_EACH_MAX)
        if (cap := self.cap(model)) is not None:
            free = min(free, cap - len(feed.running))
        asked = {
            batch_id: name
            for batch_id, name in queues.items()
            if now >= feed.empty_until.get(name, 0) and self._desk.knows(batch_id)
        }
        taken = self._turns(feed, asked, free, now)
        alone.begin(now, suspect=False)  # no suspect begins while items are on their way
        try:
            await self._take(feed, taken, now)
        finally:
            alone.end(now, suspect=False)

    def _try_suspect(self, model: str, feed: ModelFeed, now: int) -> None:
        """Send the next suspect if nothing else of its model runs and there is room for one."""
        free = feed.pace.running_max
        if (cap := self.cap(model)) is not None:
            free = min(free, cap)
        if feed.suspects and free > 0 and feed.suspect_turns.may_begin(now, suspect=True):
            suspect = feed.suspects.pop(0)
            feed.suspect_turns.begin(now, suspect=True)
            feed.running.add(suspect)
            suspect.began = now
            assert suspect.turn is not None
            suspect.turn.set()

    async def _take(self, feed: ModelFeed, counts: dict[str, int], now: int) -> None:
        """Lease so many items of each queue, and begin them."""
        for name, count in counts.items():
            try:
                leased = await self._queue.lease(name, count, VISIBILITY_S, OWNER)
            except QueueError as error:
                _log.warning("no items can be taken", queue=name, reason=str(error)[:200])
                feed.empty_until[name] = now + nanos(EMPTY_S)
                continue
            if len(leased) < count:
                feed.empty_until[name] = now + nanos(EMPTY_S)
            await self._begin(feed, leased)

    def _turns(
        self, feed: ModelFeed, queues: dict[str, str], free: int, now: int
    ) -> dict[str, int]:
        """How many items to take from which queue, tenants in turn."""
        rate = feed.finished.total(now) / 60.0
        item_ns = int(SECOND / rate) if rate > 0 else None
        wall = time.time()
        candidates = [
            OpenBatch(
                one.id,
                one.tenant,
                now + nanos(min(max(0.0, one.expires_at - wall), 1e8)),
                self._desk.remaining(one.id),
                item_ns,
            )
            for one in (self._desk.open[batch_id] for batch_id in queues)
        ]
        counts: dict[str, int] = {}
        for _ in range(free):
            chosen = feed.turns.choose(candidates, now)
            if chosen is None:
                break
            name = queues[chosen.id]
            counts[name] = counts.get(name, 0) + 1
        return counts

    async def _begin(self, feed: ModelFeed, leased: list[LeasedItem]) -> None:
        wanted: list[tuple[RunningItem, str]] = []
        for item in leased:
            batch = self._desk.runnable(item.group)
            if batch is None:
                self._refuse_ended(item)
                continue
            running = RunningItem(item, batch, payload_of(item.payload), self._now_ns())
            if failures_of(item.story)[1]:
                self._hold_suspect(feed, running)
                continue
            wanted.append((running, batch.input_file_id))
        if not wanted:
            return
        bodies = await asyncio.to_thread(self._read_bodies, wanted)
        for (running, _), body in zip(wanted, bodies, strict=True):
            self._running[running.item.id] = running
            feed.running.add(running)
            feed.suspect_turns.begin(running.began, suspect=False)
            running.task = asyncio.create_task(self._send(running, feed, body))
            running.task.add_done_callback(partial(self._ended, running, feed))

    def _hold_suspect(self, feed: ModelFeed, running: RunningItem) -> None:
        """Keep an item that was lost with a replica until nothing else of its model runs."""
        if len(feed.suspects) >= SUSPECTS_MAX:
            self.settlements.release(running.item.lease)
            return
        running.turn = asyncio.Event()
        self._running[running.item.id] = running
        feed.suspects.append(running)
        feed.suspect_turns.waiting += 1
        running.task = asyncio.create_task(self._send_alone(running, feed, running.turn))
        running.task.add_done_callback(partial(self._ended, running, feed))

    def _refuse_ended(self, item: LeasedItem) -> None:
        """An item whose batch is being ended, or has ended: nobody waits for it."""
        if self._desk.knows(item.group):
            self.settlements.release(item.lease)  # the desk cancels it
        else:
            self.settlements.add(Settlement(item.lease, ItemState.FAILED))

    def _read_bodies(self, wanted: list[tuple[RunningItem, str]]) -> list[bytes | None]:
        """The bodies of lines; None where the input file is gone or is not what it was."""
        bodies: list[bytes | None] = []
        with contextlib.ExitStack() as opened:
            files: dict[str, BinaryIO] = {}
            for running, file_id in wanted:
                try:
                    file = files.get(file_id)
                    if file is None:
                        file = files[file_id] = opened.enter_context(self._store.open(file_id))
                    file.seek(running.payload.offset)
                    bodies.append(body_of(file.read(running.payload.length)))
                except (ApiRefusalError, OSError, ValueError):
                    bodies.append(None)
        return bodies

    # --- one item ---

    async def _send(self, running: RunningItem, feed: ModelFeed, body: bytes | None) -> None:
        if body is None:
            self._fail(running, "input_unreadable", "The line could not be read any more.")
            return
        if not self._desk.has_room(running.batch.id, running.item.tenant):
            self._fail(running, "files_quota_exceeded", _NO_QUOTA)
            return
        answer = await self._client.post(running.batch.endpoint, running.item.tenant, body)
        await self._judge(running, feed, answer)

    async def _send_alone(self, running: RunningItem, feed: ModelFeed, turn: asyncio.Event) -> None:
        await turn.wait()
        wanted = [(running, running.batch.input_file_id)]
        (body,) = await asyncio.to_thread(self._read_bodies, wanted)
        await self._send(running, feed, body)

    def _ended(self, running: RunningItem, feed: ModelFeed, task: asyncio.Task[None]) -> None:
        """Forget an item that was sent; one that was cancelled goes back untried."""
        item = running.item
        self._running.pop(item.id, None)
        feed.running.discard(running)
        if running.turn is not None and not running.turn.is_set():
            feed.suspects.remove(running)
            feed.suspect_turns.waiting -= 1
        else:
            feed.suspect_turns.end(self._now_ns(), suspect=running.suspect)
        if task.cancelled():
            self.settlements.release(item.lease)
        elif (error := task.exception()) is not None:  # a bug of ours must not stop the others
            _log.error("an item failed here", item=item.id, exc_info=error)
            self._again(running, {"reason": f"runner: {type(error).__name__}"})
        self._wake.set()

    async def _judge(self, running: RunningItem, feed: ModelFeed, answer: GatewayAnswer) -> None:
        item, now = running.item, self._now_ns()
        if answer.broken:
            # The gateway was killed or restarts: no fault of the item, and none of a replica.
            self.settlements.release(item.lease)
            feed.empty_until[item.lease.queue] = now + NO_GATEWAY
            return
        code, message = answer.error
        verdict = judge_answer(answer.status, code, failures_of(item.story)[1])
        if verdict is ItemVerdict.WAIT:
            self.settlements.release(item.lease)
            wait = nanos(max(1.0, answer.retry_after_s))
            feed.empty_until[item.lease.queue] = now + wait
            return
        if verdict in {ItemVerdict.DONE, ItemVerdict.FAILED}:
            feed.finished.add(now)
            state = ItemState.DONE if verdict is ItemVerdict.DONE else ItemState.FAILED
            line = answer_line(
                item.id,
                running.payload.custom_id,
                answer.status,
                answer.request_id,
                answer.body,
            )
            await self._record(running, line, state)
            return
        note = {
            "at": round(time.time(), 3),
            "status": answer.status,
            "code": code,
            "reason": message[:200] or code or f"status {answer.status}",
            "request_id": answer.request_id,
        }
        if tells_loss(code):
            feed.suspect_turns.replica_lost(now)
        if verdict is ItemVerdict.SUSPECT:
            pause_s = pause_before(1, self._item_config)
            self.settlements.add(FailedReceive(item.lease, note, pause_s, dead=False))
            return
        self._again(running, note, dead=verdict is ItemVerdict.POISON)

    async def _record(self, running: RunningItem, line: bytes, state: ItemState) -> None:
        if not self._desk.keep_answer(running.batch.id, running.item.tenant, len(line)):
            self._fail(running, "files_quota_exceeded", _NO_QUOTA)
            return
        result = line
        while self._results.is_long(line):
            try:
                result = await asyncio.to_thread(self._results.put, running.item.id, line)
                break
            except ApiRefusalError:
                # The disk is full: its answer waits in memory, and its lease lives.
                await asyncio.sleep(1.0)
        self.settlements.add(Settlement(running.item.lease, state, result))

    def _fail(self, running: RunningItem, code: str, message: str) -> None:
        line = error_line(running.item.id, running.payload.custom_id, code, message)
        self.settlements.add(Settlement(running.item.lease, ItemState.FAILED, line))

    def _again(self, running: RunningItem, note: dict[str, Any], *, dead: bool = False) -> None:
        tries = failures_of(running.item.story)[0] + 1
        dead = dead or tries >= self._item_config.receives_max
        pause_s = pause_before(tries, self._item_config)
        self.settlements.add(FailedReceive(running.item.lease, note, pause_s, dead))
        if dead:
            _log.warning(
                "an item is given up",
                item=running.item.id,
                tenant=running.item.tenant,
                reason=note["reason"],
            )

    def _recorded(self, lease: Lease, terminal: bool) -> None:
        if terminal:
            self._desk.ended(lease.id.partition("/")[0])

    async def _heartbeat(self) -> None:
        """Keep the leases of what runs; end what another has taken over."""
        running = list(self._running.values())
        if not running:
            return
        try:
            answers = await self._queue.extend([one.item.lease for one in running], VISIBILITY_S)
        except QueueError as error:
            _log.warning("leases cannot be kept", reason=str(error)[:200])
            return
        for one, answer in zip(running, answers, strict=True):
            if answer in {LeaseAnswer.FENCED, LeaseAnswer.GONE}:
                _cancel(one)


def _cancel(running: RunningItem) -> None:
    if running.task is not None:
        running.task.cancel()


__all__ = ["BatchRunner", "ModelFeed"]
