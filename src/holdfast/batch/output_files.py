"""Writes the output and error file of a batch from the terminal records of its items.

The queue holds exactly one terminal record for each line, so the two files together hold exactly
one line for each. They are made from the records alone: a crash while they are written leaves two
parts that are deleted, and they are written again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.batch.disk_threads import in_disk_thread
from holdfast.batch.file_store import FileStore, PartialFile
from holdfast.batch.input_lines import split_lines
from holdfast.batch.items import LongResults, error_line, line_of, payload_of
from holdfast.core.batch.lifecycle import BatchState
from holdfast.queue_port import TERMINAL, DurableQueue, ItemState, ItemView
from holdfast.storage.batch_records import BatchRecord

_PAGE: Final = 500  # records read at once
_REASON_MAX: Final = 400
_NOT_RUN: Final = {
    BatchState.EXPIRING: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    BatchState.CANCELLING: ("batch_cancelled", "The batch was cancelled before this request ran."),
}


@dataclass(slots=True)
class WrittenOutput:
    """The two files of a batch and how many lines each has; a file without lines is none."""

    output: PartialFile | None = None
    errors: PartialFile | None = None
    completed: int = 0
    failed: int = 0


class _CustomId(msgspec.Struct):
    custom_id: str


_decode: Final = msgspec.json.Decoder(_CustomId).decode


class OutputWriter:
    """Writes the files of one batch that is about to end."""

    def __init__(self, store: FileStore, queue: DurableQueue, results: LongResults) -> None:
        self._store = store
        self._queue = queue
        self._results = results

    async def write(self, record: BatchRecord) -> WrittenOutput:
        """Write both files and make them durable; nothing is left of them where that fails."""
        written = WrittenOutput()
        not_run: set[int] = set()
        try:
            async for page in self._records(record):
                await in_disk_thread(self._take, page, written, not_run)
            if not_run:
                await in_disk_thread(self._tell_not_run, record, not_run, written)
            for file in (written.output, written.errors):
                if file is not None:
                    await in_disk_thread(file.keep)
        except BaseException:
            for file in (written.output, written.errors):
                if file is not None:
                    file.drop()
                    self._store.delete(file.id)
            raise
        return written

    async def _records(self, record: BatchRecord) -> AsyncIterator[list[ItemView]]:
        for queue in record.queues:
            after = 0
            while page := await self._queue.items(
                queue, states=TERMINAL, group=record.id, after=after, limit=_PAGE
            ):
                yield page
                after = page[-1].seq

    def _take(self, page: list[ItemView], written: WrittenOutput, not_run: set[int]) -> None:
        for item in page:
            if item.state is ItemState.DONE:
                written.output = written.output or self._store.begin()
                written.output.write(self._results.get(item.result))
                written.completed += 1
            elif item.state is ItemState.FAILED:
                self._add_error(written, self._results.get(item.result))
            elif item.state is ItemState.DEAD:
                payload = payload_of(item.payload)
                self._add_error(
                    written,
                    error_line(item.id, payload.custom_id, "dead_letter", _story(item)),
                )
            else:
                not_run.add(line_of(item.id))

    def _add_error(self, written: WrittenOutput, line: bytes) -> None:
        written.errors = written.errors or self._store.begin()
        written.errors.write(line)
        written.failed += 1

    def _tell_not_run(self, record: BatchRecord, lines: set[int], written: WrittenOutput) -> None:
        """Add an error for each line that never ran; its custom id is in the input file."""
        code, message = _NOT_RUN.get(BatchState(record.state), _NOT_RUN[BatchState.CANCELLING])
        with self._store.open(record.input_file_id) as file:
            for number, _, line in split_lines(file):
                if number in lines and line is not None:
                    item_id = f"{record.id}/{number}"
                    told = error_line(item_id, _decode(line).custom_id, code, message)
                    self._add_error(written, told)


def _story(item: ItemView) -> str:
    """Why an item became a dead letter, in one sentence for the owner of the batch."""
    notes = [entry.get("note") or {"reason": entry.get("what", "")} for entry in item.story]
    reasons = [str(note.get("reason", "")) for note in notes]
    told = "; ".join(reason for reason in reasons if reason)[:_REASON_MAX]
    return f"Given up after {item.receives} tries: {told or 'no answer came'}."


__all__ = ["OutputWriter", "WrittenOutput"]
