"""A batch's line as an item of a queue: its id, its payload, and the record of its end.

queue    batch/TENANT/MODEL: tenants take turns, and a model that is down holds up no other.
         A slash of a tenant's name is quoted: two pairs of names have two queues
group    the batch
id       BATCH/LINE, so that a line that is enqueued twice is one item
payload  where the line stands in the input file; its text is read when it is sent
result   the line of the output or error file; a long one lies in a file of its own
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from holdfast.batch.file_store import refusing_full_disk, sync_folder
from holdfast.batch.input_lines import InputLine
from holdfast.queue_port import NAME_CHARACTERS_MAX, NewItem

PREFIX: Final = "batch/"
RECEIVES_BOUND: Final = 10  # even where no failure was the item's own: restarts of the runner count
RESULT_BYTES_MAX: Final = 256 << 10  # in the queue's store; an embedding of a book is longer
_BESIDE: Final = b"@"  # begins a result that names a file; a line begins with a brace


class ItemPayload(msgspec.Struct, frozen=True, array_like=True):
    """Where the line of an item stands in the batch's input file."""

    line: int
    offset: int
    length: int
    custom_id: str


@dataclass(slots=True, frozen=True)
class ItemQueue:
    """The tenant and the model of one queue."""

    tenant: str
    model: str

    @property
    def name(self) -> str:
        """The queue's name in the store."""
        return f"{PREFIX}{_quoted(self.tenant)}/{self.model}"

    @property
    def fits(self) -> bool:
        """Whether the name is one that a store takes."""
        return len(self.name) <= NAME_CHARACTERS_MAX and self.name.isprintable()


def queue_of(name: str) -> ItemQueue | None:
    """Read a queue's name; None for a queue that holds no lines of batches."""
    if not name.startswith(PREFIX):
        return None
    quoted, _, model = name.removeprefix(PREFIX).partition("/")
    tenant = quoted.replace("%2F", "/").replace("%25", "%")
    return ItemQueue(tenant, model) if model else None


def model_of(name: str, tenant: str) -> str:
    """The model of a queue that a batch of this tenant names.

    Batches of earlier versions name queues in which the tenant is not quoted.
    """
    before = f"{PREFIX}{tenant}/"
    if name.startswith(before):
        return name.removeprefix(before)
    queue = queue_of(name)
    return "" if queue is None else queue.model


def _quoted(tenant: str) -> str:
    return tenant.replace("%", "%25").replace("/", "%2F")


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ItemPayload).decode
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
# Bare breaks stand between members of valid JSON only; what else readers take for the end of a
# line (U+2028, U+2029, U+0085) stands in texts only, where it may be escaped.
_BREAKS_TO_BLANKS: Final = bytes.maketrans(b"\r\n", b"  ")
_LINE_BREAKS: Final = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\u2028\u2029\x85")


def new_item(batch_id: str, tenant: str, line: InputLine, deadline: float) -> NewItem:
    """The item of one line."""
    payload = ItemPayload(line.number, line.offset, line.length, line.custom_id)
    return NewItem(
        f"{batch_id}/{line.number}",
        _encode(payload),
        group=batch_id,
        tenant=tenant,
        deadline=deadline,
        max_receives=RECEIVES_BOUND,
    )


def payload_of(data: bytes) -> ItemPayload:
    """Read an item's payload."""
    return _decode(data)


def line_of(item_id: str) -> int:
    """The number of the line that an item's id names."""
    return int(item_id.rpartition("/")[2])


def answer_line(item_id: str, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """The line of the output or error file for an answer of the gateway, with a line break.

    One line whatever the engine wrote. A body that is no JSON is ``null``.
    """
    try:
        body.decode()
        _check_json(body)  # builds nothing: an answer of 60 MB may be a million lists
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        body = b"null"
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _line(item_id, custom_id, response, None)


def error_line(item_id: str, custom_id: str, code: str, message: str) -> bytes:
    """The line of the error file for an item without an answer, with a line break."""
    return _line(item_id, custom_id, None, {"code": code, "message": message})


def _line(item_id: str, custom_id: str, response: Any, error: Any) -> bytes:
    told = {
        "id": f"batch_req_{item_id.replace('/', '_').removeprefix('batch_')}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    line = orjson.dumps(told).translate(_BREAKS_TO_BLANKS)
    for raw, escaped in _LINE_BREAKS:
        line = line.replace(raw, escaped)
    return line + b"\n"


class LongResults:
    """Results too long for a queue's store: a file each, synced before the queue names it."""

    def __init__(self, folder: Path, check_room: Callable[[], None] = lambda: None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._check_room = check_room  # raises where the disk has nothing above its reserve

    @staticmethod
    def is_long(line: bytes) -> bool:
        """Whether a line needs a file of its own: ``put`` then waits for the disk."""
        return len(line) > RESULT_BYTES_MAX

    def put(self, item_id: str, line: bytes) -> bytes:
        """Return what to record in the queue: the line itself, or the name of its file."""
        if not self.is_long(line):
            return line
        self._check_room()
        path = self._path(item_id)
        part = path.with_suffix(".part")
        with refusing_full_disk():
            part.touch(mode=0o600)
            with part.open("wb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
            sync_folder(self._folder)
        return _BESIDE + path.name.encode()

    def get(self, result: bytes) -> bytes:
        """Return the line of a recorded result."""
        if result.startswith(_BESIDE):
            return (self._folder / result[1:].decode()).read_bytes()
        return result

    def bytes_of(self, results: Sequence[bytes]) -> int:
        """How many bytes recorded results have together, their files included. Blocks."""
        size = 0
        for result in results:
            size += len(result)
            if result.startswith(_BESIDE):
                path = self._folder / result[1:].decode()
                size += path.stat().st_size if path.exists() else 0
        return size

    def forget(self, result: bytes) -> None:
        """Delete the file of one recorded result, where it has one."""
        if result.startswith(_BESIDE):
            (self._folder / result[1:].decode()).unlink(missing_ok=True)

    def drop(self, batch_id: str) -> None:
        """Delete the long results of a batch that ended."""
        for path in self._folder.glob(f"{batch_id}_*"):
            path.unlink(missing_ok=True)

    def _path(self, item_id: str) -> Path:
        return self._folder / item_id.replace("/", "_")


__all__ = [
    "PREFIX",
    "ItemPayload",
    "ItemQueue",
    "LongResults",
    "answer_line",
    "error_line",
    "line_of",
    "model_of",
    "new_item",
    "payload_of",
    "queue_of",
]
