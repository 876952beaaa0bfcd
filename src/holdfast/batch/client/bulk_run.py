"""Sends a JSONL file of any size through the batch API, and goes on after a kill where it was.

    IN ─► parts of at most 50,000 lines ─► upload ─► batch ─► output ─► OUT and OUT.errors

What was done stands in ``OUT.progress``, written anew (and synced) after each step. Outputs are
appended in the order of the parts; the length of OUT after each part is noted, so that what a kill
left half-written is cut off and written again. A batch that was created and not yet noted is found
again by its metadata: no part is sent twice.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from holdfast.batch.client.api_client import BatchApiClient, BatchApiError
from holdfast.batch.input_lines import LINES_MAX, split_lines

PART_BYTES_MAX: Final = 190 << 20  # below the 200 MB of one file
PARALLEL: Final = 2  # batches at once: one is read and written while the other runs
POLL_S: Final = 1.0
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


class BulkRunError(Exception):
    """A run cannot go on; the text says why and what to do."""


@dataclass(slots=True)
class RunPart:
    """One part of the input: its bytes, and how far it is."""

    begin: int
    end: int
    first_line: int  # of the input, from 1
    lines: int
    file_id: str = ""
    batch_id: str = ""
    status: str = ""
    completed: int = 0
    failed: int = 0
    written: bool = False  # its output is in OUT


@dataclass(slots=True)
class RunState:
    """All that a run must know to go on after a kill."""

    run_id: str
    input_bytes: int
    endpoint: str
    parts: list[RunPart] = field(default_factory=list)
    out_bytes: int = 0  # of OUT, with whole parts only
    error_bytes: int = 0

    @property
    def total(self) -> int:
        """Lines of the input."""
        return sum(part.lines for part in self.parts)

    @property
    def done(self) -> int:
        """Lines that ended, well or not."""
        return sum(part.completed + part.failed for part in self.parts)

    @property
    def failed(self) -> int:
        """Lines that ended with an error."""
        return sum(part.failed for part in self.parts)


class BulkRun:
    """One run of ``holdfast batch run``."""

    def __init__(
        self,
        client: BatchApiClient,
        source: Path,
        out: Path,
        *,
        endpoint: str | None = None,
        lines_each: int = LINES_MAX,
        poll_s: float = POLL_S,
        sleep: Callable[[float], None] = time.sleep,
        on_progress: Callable[[RunState], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._source = source
        self._out = out
        self._errors = out.with_name(out.name + ".errors")
        self._progress = out.with_name(out.name + ".progress")
        self._endpoint = endpoint
        self._lines_each = lines_each
        self._poll_s = poll_s
        self._sleep = sleep
        self._on_progress = on_progress
        self.state: RunState | None = None
        self.resumed = False

    def run(self) -> RunState:
        """Run to the end; raises ``BulkRunError`` or ``BatchApiError`` where that is impossible."""
        self.state = state = self._begin()
        while any(not part.written for part in state.parts):
            moved = self._start_parts(state)
            moved = self._poll(state) or moved
            moved = self._write_outputs(state) or moved
            self._on_progress(state)
            if not moved:
                self._sleep(self._poll_s)
        if not state.error_bytes:
            self._errors.unlink(missing_ok=True)
        self._progress.unlink(missing_ok=True)
        return state

    # --- where a run begins ---

    def _begin(self) -> RunState:
        size = self._source.stat().st_size
        if self._progress.exists():
            state = _read_state(self._progress)
            if state.input_bytes != size:
                raise BulkRunError(
                    f"{self._source} has {size} bytes, and had {state.input_bytes} when this run "
                    f"began; delete {self._progress} to begin anew"
                )
            self.resumed = True
            return state
        if self._out.exists() and self._out.stat().st_size:
            raise BulkRunError(f"{self._out} exists; name another file, or delete it first")
        state = RunState(token_hex(6), size, self._endpoint or _endpoint_of(self._source))
        state.parts = _split(self._source, self._lines_each)
        if not state.parts:
            raise BulkRunError(f"{self._source} has no lines")
        self._save(state)
        return state

    def _save(self, state: RunState) -> None:
        part = self._progress.with_name(self._progress.name + ".part")
        with part.open("w", encoding="utf-8") as file:
            json.dump(asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._progress)

    # --- steps ---

    def _start_parts(self, state: RunState) -> bool:
        """Upload and begin parts until so many are under way; whether one was begun."""
        open_parts = [part for part in state.parts if not part.written]
        begun = False
        for part in open_parts[:PARALLEL]:
            if part.batch_id:
                continue
            number = state.parts.index(part)
            if not part.file_id:
                part.file_id = self._find_file(state, number) or self._upload(state, part, number)
                self._save(state)
            part.batch_id = self._find_batch(state, number) or self._create(state, part, number)
            self._save(state)
            begun = True
        return begun

    def _name(self, state: RunState, number: int) -> str:
        return f"{state.run_id}-{number}.jsonl"

    def _upload(self, state: RunState, part: RunPart, number: int) -> str:
        name = self._name(state, number)
        return str(self._client.upload(self._source, part.begin, part.end, name)["id"])

    def _create(self, state: RunState, part: RunPart, number: int) -> str:
        made = self._client.post(
            "/v1/batches",
            {
                "input_file_id": part.file_id,
                "endpoint": state.endpoint,
                "completion_window": "24h",
                "metadata": {"run": state.run_id, "part": str(number)},
            },
        )
        return str(made["id"])

    def _find_file(self, state: RunState, number: int) -> str:
        """A file that was uploaded just before a kill."""
        if not self.resumed:
            return ""
        name = self._name(state, number)
        listed = self._client.get("/v1/files", limit=100)["data"]
        return next((str(one["id"]) for one in listed if one["filename"] == name), "")

    def _find_batch(self, state: RunState, number: int) -> str:
        """A batch that was created just before a kill."""
        if not self.resumed:
            return ""
        own = {"run": state.run_id, "part": str(number)}
        listed = self._client.get("/v1/batches", limit=100)["data"]
        return next((str(one["id"]) for one in listed if one["metadata"] == own), "")

    def _poll(self, state: RunState) -> bool:
        """Look at the batches under way; whether one ended."""
        ended = False
        for part in state.parts:
            if part.written or not part.batch_id or part.status in _ENDED:
                continue
            batch = self._client.get(f"/v1/batches/{part.batch_id}")
            part.status = batch["status"]
            counts = batch["request_counts"]
            part.completed, part.failed = counts["completed"], counts["failed"]
            if part.status == "failed":
                raise BulkRunError(_refused(self._source, part, batch))
            ended = ended or part.status in _ENDED
        return ended

    def _write_outputs(self, state: RunState) -> bool:
        """Append what ended, in the order of the parts; whether something was written."""
        wrote = False
        for part in state.parts:
            if part.written:
                continue
            if part.status not in _ENDED:
                break
            batch = self._client.get(f"/v1/batches/{part.batch_id}")
            counts = batch["request_counts"]
            part.completed, part.failed = counts["completed"], counts["failed"]
            state.out_bytes = self._append(self._out, state.out_bytes, batch["output_file_id"])
            state.error_bytes = self._append(
                self._errors, state.error_bytes, batch["error_file_id"]
            )
            part.written = wrote = True
            self._save(state)
            for name in (batch["output_file_id"], batch["error_file_id"], part.file_id):
                if name:
                    self._client.delete(f"/v1/files/{name}")
        return wrote

    def _append(self, path: Path, size: int, file_id: str | None) -> int:
        """Append a file's bytes behind the first ``size``; returns the new size, on disk."""
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(size)
            file.truncate()
            if file_id:
                self._client.download(file_id, file)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()


def _split(source: Path, lines_each: int) -> list[RunPart]:
    """Cut a file into parts of at most so many lines and bytes."""
    parts: list[RunPart] = []
    begin = lines = offset = 0
    first = 1
    with source.open("rb") as file:
        for number, at, line in split_lines(file):
            if line is None:
                raise BulkRunError(f"{source}:{number}: the line is too long for any batch")
            if lines and (lines >= lines_each or at + len(line) - begin > PART_BYTES_MAX):
                parts.append(RunPart(begin, at, first, lines))
                begin, lines, first = at, 0, number
            lines += bool(line.strip())
            offset = at + len(line)
    if lines:
        parts.append(RunPart(begin, min(offset + 1, source.stat().st_size), first, lines))
    return parts


def _endpoint_of(source: Path) -> str:
    """The endpoint that the first line names."""
    with source.open("rb") as file:
        for number, _, line in split_lines(file):
            if line is None or not line.strip():
                continue
            try:
                return str(json.loads(line)["url"])
            except (ValueError, KeyError, TypeError) as error:
                fix = 'write {"custom_id": …, "method": "POST", "url": …, "body": …}'
                raise BulkRunError(f"{source}:{number}: not a line of a batch; {fix}") from error
    raise BulkRunError(f"{source} has no lines")


def _read_state(path: Path) -> RunState:
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts = [RunPart(**part) for part in said.pop("parts")]
        return RunState(**said, parts=parts)
    except (ValueError, KeyError, TypeError) as error:
        raise BulkRunError(f"{path} cannot be read; delete it to begin anew") from error


def _refused(source: Path, part: RunPart, batch: dict[str, Any]) -> str:
    errors = (batch.get("errors") or {}).get("data") or []
    shown = [
        f"{source}:{error['line'] + part.first_line - 1 if error.get('line') else part.first_line}:"
        f" {error['message']}"
        for error in errors[:10]
    ]
    more = f"\n… and {len(errors) - 10} more" if len(errors) > 10 else ""
    return "the server refused the input:\n" + "\n".join(shown) + more


__all__ = ["BatchApiError", "BulkRun", "BulkRunError", "RunPart", "RunState"]
