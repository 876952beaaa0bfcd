"""Takes batches from their creation to their output files; survives ``kill -9`` at every step.

    create ─► check the lines ─► enqueue them ─► (the runner works) ─► all ended ─► write ─► purge
                                                  cancel, expire ─────────┘

Each step begins from what is on disk and can be repeated: a batch that was being checked is checked
again, items that are enqueued twice are one, files are written anew from the terminal records, and
deleting items twice deletes them once. So a start after a crash is only: look at every batch that
has not ended, and do the step that its state names.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from secrets import token_hex
from typing import Any, Final

import structlog

from holdfast.batch.api_errors import ApiRefusalError, disk_full, invalid
from holdfast.batch.disk_threads import in_disk_thread
from holdfast.batch.file_store import FileStore
from holdfast.batch.files_api import OUTPUT_PURPOSE
from holdfast.batch.input_lines import ERRORS_MAX, InputLine, LineError, check_lines
from holdfast.batch.items import ItemQueue, LongResults, new_item
from holdfast.batch.output_files import OutputWriter
from holdfast.core.batch.lifecycle import (
    ENDED,
    WRITES_OUTPUT,
    BatchEvent,
    BatchState,
    follow,
    may_take,
)
from holdfast.queue_port import DurableQueue, ItemState, QueueError
from holdfast.storage.batch_records import (
    BatchRecord,
    BatchRecords,
    CreationKey,
    FileRecord,
    RecordsFullError,
)

CHECK_LINES: Final = 500  # checked, and enqueued, in one go: the loop turns in between
LOOK_S: Final = 5.0  # between two looks at windows, expired files and batches that may have ended
_PURGED: Final = tuple(state for state in ItemState if state is not ItemState.DEAD)
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
    ) -> None:
        self.records = records
        self._store = store
        self._queue = queue
        self._results = results
        self._writer = OutputWriter(store, queue, results)
        self.abort = abort  # ends the items of a batch that run now
        self._wall = wall
        self.open: dict[str, BatchRecord] = {}  # by id: what has not ended
        self._remaining: dict[str, int] = {}  # items without a terminal record, by batch
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self._checking = asyncio.Semaphore(1)  # its lines are in memory, so one batch at a time

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
        limits = self._store.limits
        own = sum(1 for batch in self.open.values() if batch.tenant == tenant)
        if own >= limits.tenant_batches_max:
            message = f"You have {own} batches that have not ended, which is the limit."
            raise ApiRefusalError(429, "batches_quota_exceeded", message)
        self._store.check_room()
        now = int(self._wall())
        record = BatchRecord(
            f"batch_{token_hex(12)}",
            tenant,
            BatchState.VALIDATING.value,
            new.endpoint,
            new.input_file_id,
            now,
            now + int(limits.window_s),
            new.output_keep_s,
            new.metadata,
            times={BatchState.VALIDATING.value: now},
        )
        try:
            await self._put(record, key=make_key(record.id))
        except RecordsFullError as error:
            raise disk_full() from error
        self._begin_step(record.id)
        return record

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

    def ended(self, batch_id: str, count: int = 1) -> None:
        """Note that so many items of a batch have their terminal record now."""
        if batch_id in self._remaining:
            self._remaining[batch_id] -= count
            if self._remaining[batch_id] <= 0:
                self._begin_step(batch_id)

    # --- life ---

    async def start(self) -> None:
        """Go on with every batch that has not ended; tidy up what a crash left."""
        known = await asyncio.to_thread(self.records.known_file_ids)
        swept = await asyncio.to_thread(self._store.sweep, known)
        if swept:
            _log.info("unfinished files deleted", count=swept)
        open_states = tuple(state.value for state in BatchState if state not in ENDED)
        for record in await asyncio.to_thread(self.records.batches_in, open_states):
            self.open[record.id] = record
        ended = tuple(state.value for state in ENDED)
        for record in await asyncio.to_thread(self.records.unpurged, ended):
            await self._purge(record)
        for batch_id in list(self.open):
            self._begin_step(batch_id)

    async def look(self) -> None:
        """Expire windows and files; find batches that ended without the runner."""
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
            await asyncio.to_thread(self.records.drop_file, file.id)
            await asyncio.to_thread(self._store.delete, file.id)

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
            async with self._checking:
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
        lines, errors = await self._check(record)
        if errors:
            told = tuple(error.to_json() for error in errors)
            if BatchState(self.open[record.id].state) is BatchState.VALIDATING:
                await self._move(record.id, BatchEvent.INVALID, errors=told)
            return True
        queues: dict[str, list[InputLine]] = {}
        for line in lines:
            name = ItemQueue(record.tenant, line.model).name
            queues.setdefault(name, []).append(line)
        if BatchState(self.open[record.id].state) is not BatchState.VALIDATING:
            return True  # cancelled meanwhile: nothing was enqueued
        # Known before the first item is there: whoever cancels finds all of them.
        total = len(lines)
        await self._change(
            record.id, lambda known: replace(known, queues=tuple(queues), total=total)
        )
        self._remaining[record.id] = len(lines)
        for name, own in queues.items():
            for begin in range(0, len(own), CHECK_LINES):
                if BatchState(self.open[record.id].state) is not BatchState.VALIDATING:
                    return True
                chunk = own[begin : begin + CHECK_LINES]
                items = [
                    new_item(record.id, record.tenant, line, float(record.expires_at))
                    for line in chunk
                ]
                await self._queue.enqueue(name, items)
        if may_take(BatchState(self.open[record.id].state), BatchEvent.VALID):
            await self._move(record.id, BatchEvent.VALID)
            _log.info("batch runs", batch=record.id, tenant=record.tenant, items=len(lines))
        return True

    async def _check(self, record: BatchRecord) -> tuple[list[InputLine], list[LineError]]:
        limits = self._store.limits
        lines: list[InputLine] = []
        errors: list[LineError] = []
        models: set[str] = set()
        with ExitStack() as opened:
            file = await in_disk_thread(
                lambda: opened.enter_context(self._store.open(record.input_file_id))
            )
            found = check_lines(file, record.endpoint, lines_max=limits.lines_max)
            while chunk := await in_disk_thread(lambda: list(islice(found, CHECK_LINES))):
                for one in chunk:
                    if isinstance(one, LineError):
                        errors.append(one)
                    else:
                        models.add(one.model)
                        lines.append(one)
                if len(errors) >= ERRORS_MAX:
                    break
        if len(models) > limits.models_max:
            message = f"The file names more than {limits.models_max} models; split it."
            errors.append(LineError("too_many_models", message, "input_file_id"))
        if not all(ItemQueue(record.tenant, model).fits for model in models):
            errors.append(LineError("model_not_found", "A model's name is too long.", "model"))
        return lines, errors[:ERRORS_MAX]

    async def _open_items(self, record: BatchRecord) -> int:
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
        else:
            self.open[record.id] = record


__all__ = ["LOOK_S", "BatchCounts", "BatchDesk", "NewBatch"]
