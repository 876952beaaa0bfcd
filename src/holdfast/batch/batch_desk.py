"""Takes batches from their creation to their output files; survives ``kill -9`` at every step.

    create ─► check the lines ─► enqueue them ─► (the runner works) ─► all ended ─► write ─► purge
                                                  cancel, expire ─────────┘        keep_s ─► forget

Each step begins from what is on disk and can be repeated: a batch that was being checked is checked
again, items that are enqueued twice are one, files are written anew from the terminal records, and
deleting items twice deletes them once. So a start after a crash is only: look at every batch that
has not ended, and do the step that its state names.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import ceil
from secrets import token_hex
from typing import Any, Final

import structlog

from holdfast.batch.api_errors import ApiRefusalError, disk_full, invalid, quota_full
from holdfast.batch.disk_threads import in_disk_thread
from holdfast.batch.file_store import FileStore
from holdfast.batch.files_api import OUTPUT_PURPOSE
from holdfast.batch.held_bytes import HeldBytes
from holdfast.batch.input_checks import InputChecks
from holdfast.batch.input_lines import InputLine, LineError
from holdfast.batch.items import ItemQueue, LongResults, model_of, new_item
from holdfast.batch.output_files import OutputWriter
from holdfast.core.batch.lifecycle import (
    ENDED,
    WRITES_OUTPUT,
    BatchEvent,
    BatchState,
    follow,
    may_take,
)
from holdfast.core.request.admission.quota import TokenBucket
from holdfast.queue_port import TERMINAL, DurableQueue, ItemState, QueueError
from holdfast.storage.batch_records import (
    BatchRecord,
    BatchRecords,
    CreationKey,
    FileRecord,
    RecordsFullError,
)

LOOK_S: Final = 5.0  # between two looks at windows, expired files and batches that may have ended
_PURGED: Final = tuple(state for state in ItemState if state is not ItemState.DEAD)
_ENDED: Final = tuple(state.value for state in ENDED)
BATCHES_KEPT_MAX: Final = 10_000  # of one tenant, as many as files: listing them stays quick
_COUNTED_EACH: Final = 100  # results read at once to count their bytes; each has up to 256 KB
_log = structlog.get_logger("holdfast.batch")


@dataclass(slots=True, frozen=True)
class NewBatch:
    """What a client asked for."""

    endpoint: str
    input_file_id: str
    metadata: dict[str, str] | None = None
    output_keep_s: int | None = None


@dataclass(slots=True, frozen=True)
class BatchCounts:
    """How many lines a batch has, and how many ended well and badly."""

    total: int
    completed: int
    failed: int


class BatchDesk:
    """Owns all batches that have not ended; the API and the runner ask it."""

    def __init__(
        self,
        records: BatchRecords,
        store: FileStore,
        queue: DurableQueue,
        results: LongResults,
        *,
        abort: Callable[[str], None] = lambda _: None,
        wall: Callable[[], float] = time.time,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.records = records
        self._store = store
        self._queue = queue
        self._results = results
        self._writer = OutputWriter(store, queue, results)
        self.abort = abort  # ends the items of a batch that run now
        self._wall = wall
        self._now_ns = now_ns
        self.held = HeldBytes(store.limits.tenant_bytes_max)
        self._kept: dict[str, int] = {}  # of them, by batch: its lines, and its answers so far
        self._full_at: dict[str, int] = {}  # what was held when an answer did not fit, by batch
        self._checks = InputChecks(store)
        self._rates: dict[str, TokenBucket] = {}  # of creations, by tenant
        self._creating: Counter[str] = Counter()  # batches that are being stored, by tenant
        self.open: dict[str, BatchRecord] = {}  # by id: what has not ended
        self._remaining: dict[str, int] = {}  # items without a terminal record, by batch
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()

    # --- what the API asks ---

    async def create(
        self,
        tenant: str,
        new: NewBatch,
        make_key: Callable[[str], CreationKey | None] = lambda _: None,
    ) -> BatchRecord:
        """Accept a batch and begin to check it; ``ApiRefusalError`` where it cannot be accepted.

        ``make_key`` gives the idempotency key that is stored with it, for its id.
        """
        file = await asyncio.to_thread(self.records.file, tenant, new.input_file_id)
        if file is None:
            message = "No such file; upload it first, with the purpose 'batch'."
            raise ApiRefusalError(404, "file_not_found", message, "input_file_id")
        if file.purpose != "batch":
            message = f"The file has the purpose '{file.purpose}'; upload one with 'batch'."
            raise invalid(message, "input_file_id", "invalid_purpose")
        self._admit(tenant)
        now = int(self._wall())
        record = BatchRecord(
            f"batch_{token_hex(12)}",
            tenant,
            BatchState.VALIDATING.value,
            new.endpoint,
            new.input_file_id,
            now,
            now + int(self._store.limits.window_s),
            new.output_keep_s,
            new.metadata,
            times={BatchState.VALIDATING.value: now},
        )
        self._creating[tenant] += 1
        try:
            await self._put(record, key=make_key(record.id))
        except RecordsFullError as error:
            raise disk_full() from error
        finally:
            self._creating[tenant] -= 1
        self._begin_step(record.id)
        return record

    def _admit(self, tenant: str) -> None:
        """Refuse another batch of a tenant that has too many, holds too much or is too fast."""
        limits = self._store.limits
        own = sum(1 for batch in self.open.values() if batch.tenant == tenant)
        own += self._creating[tenant]
        if own >= limits.tenant_batches_max:
            message = f"You have {own} batches that have not ended, which is the limit."
            raise ApiRefusalError(429, "batches_quota_exceeded", message)
        if not self.held.fits(tenant, 1):
            raise quota_full(limits.tenant_bytes_max)
        self._store.check_room()
        most = limits.tenant_batches_per_minute
        rate = self._rates.setdefault(tenant, TokenBucket(most / 60.0, float(most)))
        now = self._now_ns()
        if not rate.take(1.0, now):
            wait_s = ceil(rate.wait_s(1.0, now))
            message = f"You may create {most} batches in a minute; the next one in {wait_s} s."
            raise ApiRefusalError(429, "rate_limit_exceeded", message, retry_after_s=max(1, wait_s))

    async def cancel(self, tenant: str, batch_id: str) -> BatchRecord:
        """Begin to cancel a batch that has not ended."""
        record = self.open.get(batch_id)
        if record is None or not may_take(BatchState(record.state), BatchEvent.CANCEL):
            found = await asyncio.to_thread(self.records.batch, tenant, batch_id)
            state = "unknown" if found is None else found.state
            message = f"A batch that is {state} cannot be cancelled."
            raise ApiRefusalError(409, "batch_finished", message, "id")
        record = await self._move(batch_id, BatchEvent.CANCEL)
        self._begin_step(batch_id)
        return record

    async def counts(self, record: BatchRecord) -> BatchCounts:
        """How far a batch is."""
        if BatchState(record.state) in ENDED or not record.queues:
            return BatchCounts(record.total, record.completed, record.failed)
        done = failed = 0
        for queue in record.queues:
            for depth in await self._queue.depths(queue, record.id):
                done += depth.counts.get(ItemState.DONE, 0)
                failed += depth.counts.get(ItemState.FAILED, 0) + depth.dead
        return BatchCounts(record.total, done, failed)

    # --- what the runner asks ---

    def runnable(self, batch_id: str) -> BatchRecord | None:
        """The batch of an item, if its items may run; None: they may not, or not any more."""
        record = self.open.get(batch_id)
        if record is None or BatchState(record.state) in WRITES_OUTPUT:
            return None
        return record

    def knows(self, batch_id: str) -> bool:
        """Whether a batch has not ended."""
        return batch_id in self.open

    def remaining(self, batch_id: str) -> int:
        """Items of a batch without a terminal record, as far as is known."""
        return self._remaining.get(batch_id, 0)

    def has_room(self, batch_id: str, tenant: str) -> bool:
        """Whether a further answer of a batch may fit into its tenant's quota."""
        return self.held.of(tenant) < self._full_at.get(batch_id, self.held.bytes_max)

    def keep_answer(self, batch_id: str, tenant: str, size: int) -> bool:
        """Count an answer that is about to be recorded; False: the tenant's quota is used up."""
        if batch_id not in self._kept:  # it has ended, or is about to: nobody reads this answer
            return True
        fits = self.held.take(tenant, size)
        if fits:
            self._kept[batch_id] += size
        else:
            self._full_at[batch_id] = self.held.of(tenant)
        return fits

    def ended(self, batch_id: str, count: int = 1) -> None:
        """Note that so many items of a batch have their terminal record now."""
        if batch_id in self._remaining:
            self._remaining[batch_id] -= count
            if self._remaining[batch_id] <= 0:
                self._begin_step(batch_id)

    # --- life ---

    async def start(self) -> None:
        """Go on with every batch that has not ended; tidy up what a crash left."""
        for tenant, size in (await asyncio.to_thread(self.records.file_bytes)).items():
            self.held.add(tenant, size)
        known = await asyncio.to_thread(self.records.known_file_ids)
        swept = await asyncio.to_thread(self._store.sweep, known)
        if swept:
            _log.info("unfinished files deleted", count=swept)
        open_states = tuple(state.value for state in BatchState if state not in ENDED)
        for record in await asyncio.to_thread(self.records.batches_in, open_states):
            self.open[record.id] = record
        for record in await asyncio.to_thread(self.records.unpurged, _ENDED):
            await self._purge(record)
        for batch_id in list(self.open):
            self._begin_step(batch_id)

    async def look(self) -> None:
        """Expire windows, files and ended batches; find batches that ended without the runner."""
        now = int(self._wall())
        for record in list(self.open.values()):
            state = BatchState(record.state)
            if record.expires_at <= now and may_take(state, BatchEvent.EXPIRE):
                moved = await self._move(record.id, BatchEvent.EXPIRE)
                if moved.state != record.state:
                    _log.warning("batch expired", batch=record.id, tenant=record.tenant)
            self._begin_step(record.id)
        for file in await asyncio.to_thread(self.records.expired_files, now):
            if any(batch.input_file_id == file.id for batch in self.open.values()):
                continue
            if await asyncio.to_thread(self.records.drop_file, file.id):
                self.held.give_back(file.tenant, file.bytes)
            await asyncio.to_thread(self._store.delete, file.id)
        for record in await asyncio.to_thread(self.records.unpurged, _ENDED):
            if record.id not in self._steps:  # the queue was away when it ended
                await self._purge(record)
        keep_s = int(self._store.limits.keep_s)
        over = await asyncio.to_thread(self.records.over, _ENDED, now, keep_s)
        for tenant in list(self._rates):  # those who created any
            over += await asyncio.to_thread(self.records.beyond, tenant, _ENDED, BATCHES_KEPT_MAX)
        for record in over:
            await self._forget(record)

    async def stop(self) -> None:
        """End the steps under way; the next start repeats them."""
        for task in list(self._steps.values()):
            task.cancel()
        await asyncio.gather(*self._steps.values(), return_exceptions=True)

    # --- steps ---

    def _begin_step(self, batch_id: str) -> None:
        """Do the next step of a batch, unless one is under way."""
        if batch_id in self.open and batch_id not in self._steps:
            task = asyncio.get_running_loop().create_task(self._step(batch_id))
            self._steps[batch_id] = task
            task.add_done_callback(lambda _: self._steps.pop(batch_id, None))

    async def _step(self, batch_id: str) -> None:
        try:
            while True:
                record = self.open.get(batch_id)
                if record is None or not await self._do(record):
                    return
        except (ApiRefusalError, QueueError, RecordsFullError, OSError) as error:
            # The disk is full, or the store is away: ``look`` tries again.
            _log.warning("batch waits", batch=batch_id, reason=str(error)[:200])

    async def _do(self, record: BatchRecord) -> bool:
        """Carry out what a batch's state asks for; whether its state changed."""
        state = BatchState(record.state)
        if state is BatchState.VALIDATING:
            async with self._checks.alone(record.tenant):
                return await self._validate(record)
        if state is BatchState.IN_PROGRESS:
            if await self._open_items(record):
                return False
            await self._move(record.id, BatchEvent.ALL_DONE)
            return True
        if state in {BatchState.CANCELLING, BatchState.EXPIRING} and not await self._end_items(
            record
        ):
            return False
        await self._finish(record)
        return False

    async def _validate(self, record: BatchRecord) -> bool:
        checked = await self._checks.check(record, lambda: self._validating(record.id))
        if not self._validating(record.id):
            return True  # cancelled meanwhile: nothing was enqueued
        if not checked.errors and not self._keep(record, checked.kept_bytes):
            refusal = quota_full(self._store.limits.tenant_bytes_max)
            checked.errors.append(LineError(refusal.code, refusal.message, "input_file_id"))
        if checked.errors:
            told = tuple(error.to_json() for error in checked.errors)
            await self._move(record.id, BatchEvent.INVALID, errors=told)
            return True
        # A batch that was being enqueued by its predecessor goes on in the same queues.
        names = {model_of(name, record.tenant): name for name in record.queues}
        for model in checked.models:
            names.setdefault(model, ItemQueue(record.tenant, model).name)

        def enqueuing(known: BatchRecord) -> BatchRecord:
            queues, total = tuple(names.values()), checked.total
            return replace(known, queues=queues, total=total, kept_bytes=checked.kept_bytes)

        # Known before the first item is there: whoever cancels finds all of them.
        await self._change(record.id, enqueuing)
        self._remaining[record.id] = checked.total
        async with aclosing(self._checks.lines(record)) as pieces:
            async for lines in pieces:
                await self._enqueue(record, lines, names)
                if not self._validating(record.id):
                    return True
        if may_take(BatchState(self.open[record.id].state), BatchEvent.VALID):
            await self._move(record.id, BatchEvent.VALID)
            _log.info("batch runs", batch=record.id, tenant=record.tenant, items=checked.total)
        return True

    def _validating(self, batch_id: str) -> bool:
        return BatchState(self.open[batch_id].state) is BatchState.VALIDATING

    async def _enqueue(
        self, record: BatchRecord, lines: list[InputLine], names: dict[str, str]
    ) -> None:
        self._store.check_room()
        deadline = float(record.expires_at)
        by_model: dict[str, list[InputLine]] = {}
        for line in lines:
            by_model.setdefault(line.model, []).append(line)
        for model, own in by_model.items():
            items = [new_item(record.id, record.tenant, line, deadline) for line in own]
            await self._queue.enqueue(names[model], items)

    def _keep(self, record: BatchRecord, size: int) -> bool:
        """Count what a batch takes at least; False: it does not fit into its tenant's quota."""
        self._drop_kept(record)
        if not self.held.take(record.tenant, size):
            return False
        self._kept[record.id] = size
        return True

    def _drop_kept(self, record: BatchRecord) -> None:
        self._full_at.pop(record.id, None)
        self.held.give_back(record.tenant, self._kept.pop(record.id, 0))

    async def _count_kept(self, record: BatchRecord) -> None:
        """Count what a batch of an earlier process keeps, before any of its items runs here."""
        size = record.kept_bytes
        for queue in record.queues:
            after = 0
            while page := await self._queue.items(
                queue, states=TERMINAL, group=record.id, after=after, limit=_COUNTED_EACH
            ):
                after = page[-1].seq
                size += await in_disk_thread(self._results.bytes_of, [one.result for one in page])
        self._drop_kept(record)
        self._kept[record.id] = size
        self.held.add(record.tenant, size)

    async def _open_items(self, record: BatchRecord) -> int:
        if record.id not in self._kept:
            await self._count_kept(record)
        remaining = 0
        for queue in record.queues:
            for depth in await self._queue.depths(queue, record.id):
                remaining += depth.open
        self._remaining[record.id] = remaining
        return remaining

    async def _end_items(self, record: BatchRecord) -> bool:
        """End what does not run yet, and ask the runner for the rest; whether all has ended."""
        for queue in record.queues:
            await self._queue.cancel(queue, record.id)
        self.abort(record.id)
        return not await self._open_items(record)

    async def _finish(self, record: BatchRecord) -> None:
        written = await self._writer.write(record)
        now = int(self._wall())
        keep_s = record.output_keep_s or int(self._store.limits.keep_s)
        files = tuple(
            FileRecord(file.id, record.tenant, OUTPUT_PURPOSE, name, file.bytes, now, now + keep_s)
            for file, name in (
                (written.output, f"{record.id}_output.jsonl"),
                (written.errors, f"{record.id}_error.jsonl"),
            )
            if file is not None
        )
        moved = await self._move(
            record.id,
            BatchEvent.WRITTEN,
            files=files,
            output_file_id=written.output.id if written.output is not None else None,
            error_file_id=written.errors.id if written.errors is not None else None,
            completed=written.completed,
            failed=written.failed,
        )
        for file in files:
            self.held.add(record.tenant, file.bytes)
        _log.info(
            f"batch {moved.state}",
            batch=record.id,
            tenant=record.tenant,
            completed=written.completed,
            failed=written.failed,
        )
        await self._purge(moved)

    async def _purge(self, record: BatchRecord) -> None:
        """Delete the items of a batch that ended; dead letters stay for people."""
        for queue in record.queues:
            await self._queue.purge(queue, group=record.id, states=_PURGED)
        await asyncio.to_thread(self._results.drop, record.id)
        await asyncio.to_thread(self.records.put_batch, replace(record, purged=True))

    async def _forget(self, record: BatchRecord) -> None:
        """Delete what is left of a batch that ended long ago: dead letters, and its record."""
        for queue in record.queues:
            await self._queue.purge(queue, group=record.id)
        await asyncio.to_thread(self.records.drop_batch, record.id)

    async def _move(
        self,
        batch_id: str,
        event: BatchEvent,
        *,
        files: tuple[FileRecord, ...] = (),
        **changes: Any,
    ) -> BatchRecord:
        """Take a batch to its next state, on disk first; some events change nothing."""

        def move(record: BatchRecord) -> BatchRecord:
            state = follow(BatchState(record.state), event)
            if state.value == record.state and not changes:
                return record
            return record.moved(state.value, int(self._wall()), **changes)

        return await self._change(batch_id, move, files)

    async def _change(
        self,
        batch_id: str,
        change: Callable[[BatchRecord], BatchRecord],
        files: tuple[FileRecord, ...] = (),
    ) -> BatchRecord:
        """Change a batch that has not ended: one change at a time, each from the newest state."""
        async with self._changing:
            record = self.open[batch_id]
            changed = change(record)
            if changed is not record:
                await self._put(changed, files)
            return changed

    async def _put(
        self,
        record: BatchRecord,
        files: tuple[FileRecord, ...] = (),
        key: CreationKey | None = None,
    ) -> None:
        await asyncio.to_thread(self.records.put_batch, record, files, key)
        if BatchState(record.state) in ENDED:
            self.open.pop(record.id, None)
            self._remaining.pop(record.id, None)
            self._drop_kept(record)
        else:
            self.open[record.id] = record


__all__ = ["LOOK_S", "BatchCounts", "BatchDesk", "NewBatch"]
