"""Reads the input files of batches piece by piece, so that no tenant waits for another one's file.

    a tenant's batches   one at a time, from the check of the first line to the last enqueue
    tenants              take turns: each has at most one file here, and reads one piece in a turn

A piece is bounded in lines and bytes, a check in lines and in the time that its pieces take. A file
is read twice: once to check it, once to enqueue it. Its lines are never in memory together, only
eight bytes of each.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from holdfast.batch.disk_threads import in_disk_thread
from holdfast.batch.file_store import FileStore
from holdfast.batch.input_lines import ERRORS_MAX, InputLine, LineError, check_pieces
from holdfast.batch.items import ItemQueue
from holdfast.storage.batch_records import BatchRecord

LINE_KEPT_BYTES: Final = 1_000  # of an item in its queue, or of its error line; an answer is more

Piece = list[InputLine | LineError]


@dataclass(slots=True)
class CheckedInput:
    """What the check of an input file found."""

    total: int = 0  # requests
    kept_bytes: int = 0  # that the batch takes at least, whatever its answers are
    models: dict[str, None] = field(default_factory=dict)  # in the order of the file
    errors: list[LineError] = field(default_factory=list)


class InputChecks:
    """Checks and reads input files; one piece of one file at a time, tenants in turn."""

    def __init__(self, store: FileStore, clock: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._clock = clock
        # Whoever waits gets it in the order of asking, and each tenant asks once at a time.
        self._turn = asyncio.Lock()
        self._tenants: dict[str, asyncio.Lock] = {}

    def alone(self, tenant: str) -> asyncio.Lock:
        """The lock under which a tenant's batch is checked and enqueued."""
        return self._tenants.setdefault(tenant, asyncio.Lock())

    async def check(self, record: BatchRecord, wanted: Callable[[], bool]) -> CheckedInput:
        """Check a whole file, as long as its batch is ``wanted``; at most 100 errors."""
        limits = self._store.limits
        checked, left_s = CheckedInput(), limits.check_s
        async with self._reading(record) as pieces:
            while wanted() and len(checked.errors) < ERRORS_MAX:
                piece, took_s = await self._next(pieces)
                if piece is None:
                    break
                _add(checked, piece)
                left_s -= took_s
                if len(checked.models) > limits.models_max:
                    message = f"The file names more than {limits.models_max} models; split it."
                    checked.errors.append(LineError("too_many_models", message, "input_file_id"))
                    break
                if left_s < 0:
                    message = f"Its check took more than {limits.check_s:g} s; split the file."
                    checked.errors.append(LineError("check_too_long", message, "input_file_id"))
                    break
        if not all(ItemQueue(record.tenant, model).fits for model in checked.models):
            message = "A model's name is too long."
            checked.errors.append(LineError("model_not_found", message, "model"))
        del checked.errors[ERRORS_MAX:]
        return checked

    async def lines(self, record: BatchRecord) -> AsyncGenerator[list[InputLine], None]:
        """The lines of a file that was checked, some hundred at a time."""
        async with self._reading(record) as pieces:
            while (piece := (await self._next(pieces))[0]) is not None:
                yield [line for line in piece if isinstance(line, InputLine)]

    async def _next(self, pieces: Iterator[Piece]) -> tuple[Piece | None, float]:
        """The next piece of a file, in this tenant's turn, and how long it took."""
        async with self._turn:
            began = self._clock()
            piece = await in_disk_thread(next, pieces, None)
            return piece, self._clock() - began

    @asynccontextmanager
    async def _reading(self, record: BatchRecord) -> AsyncIterator[Iterator[Piece]]:
        with ExitStack() as opened:
            file = await in_disk_thread(
                lambda: opened.enter_context(self._store.open(record.input_file_id))
            )
            yield check_pieces(file, record.endpoint, lines_max=self._store.limits.lines_max)


def _add(checked: CheckedInput, piece: Piece) -> None:
    for line in piece:
        if isinstance(line, LineError):
            checked.errors.append(line)
        else:
            checked.total += 1
            checked.kept_bytes += LINE_KEPT_BYTES + len(line.custom_id.encode())
            checked.models[line.model] = None


__all__ = ["CheckedInput", "InputChecks"]
