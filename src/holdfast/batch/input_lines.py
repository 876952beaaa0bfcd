"""Checks the lines of a batch's input file, and says of each bad one what is wrong with it.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", …}}

A batch is accepted or refused as a whole, as OpenAI does it: a file with a bad line never runs in
part, so that a caller need not find out which half of it did. Errors name the line's number and the
member; the content of a line is never repeated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO, Final

import msgspec

LINES_MAX: Final = 50_000  # of one batch, as OpenAI has it; `holdfast batch run` splits more
LINE_BYTES_MAX: Final = 8 << 20  # images come as base64; the gateway takes 32 MB of a body
ERRORS_MAX: Final = 100  # told of one file; the rest are most likely the same mistake
CUSTOM_ID_MAX: Final = 512
ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
)
_READ_BYTES: Final = 1 << 20
_PIECE_LINES: Final = 500  # checked, and enqueued, in one go: some milliseconds
_PIECE_BYTES: Final = 4 << 20


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw  # not built: a line of 8 MB may hold a million objects


class _Model(msgspec.Struct):
    model: str
    stream: bool = False


class _Body(msgspec.Struct):
    body: msgspec.Raw


@dataclass(slots=True, frozen=True)
class InputLine:
    """One request of a batch: where its line stands in the file, and which model it asks for."""

    number: int  # from 1
    offset: int  # of the line in the file
    length: int  # without its line break
    custom_id: str
    model: str


@dataclass(slots=True, frozen=True)
class LineError:
    """Why a line, or the file as a whole (``line`` None), cannot be run."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return this error as an entry of the ``errors`` member of a batch's JSON."""
        return {
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "line": self.line,
        }


_decode: Final = msgspec.json.Decoder(_Line).decode
_decode_model: Final = msgspec.json.Decoder(_Model).decode
_decode_body: Final = msgspec.json.Decoder(_Body).decode


def check_pieces(
    file: BinaryIO, endpoint: str, *, lines_max: int = LINES_MAX
) -> Iterator[list[InputLine | LineError]]:
    """Read a JSONL file from its beginning; yield its lines, or what is wrong with them, in pieces.

    A piece is what 500 lines or 4 MB hold; it may be empty. Empty lines are skipped and count like
    all others, as line numbers are those of an editor. Reading stops at ``lines_max`` lines: the
    error then concerns the whole file. Keeps eight bytes of each line to find a ``custom_id`` that
    is used twice.
    """
    seen: set[bytes] = set()
    piece: list[InputLine | LineError] = []
    read, begun_at, empty = 0, 0, True
    for number, offset, line in split_lines(file):
        if not read:
            begun_at = offset
        if number > lines_max:
            message = (
                f"The file has more than {lines_max} lines, empty ones included; split it into "
                "several batches."
            )
            piece.append(LineError("too_many_requests", message, "input_file_id"))
            yield piece
            return
        if line is None:
            message = f"The line has more than {LINE_BYTES_MAX >> 20} MB."
            piece.append(LineError("line_too_long", message, None, number))
        elif line.strip():
            piece.append(_check(line, number, offset, endpoint, seen))
        empty = empty and line is not None and not line.strip()
        read += 1
        if read == _PIECE_LINES or offset - begun_at > _PIECE_BYTES:
            yield piece
            piece, read = [], 0
    if empty:
        piece.append(LineError("empty_file", "The input file has no requests.", "input_file_id"))
    yield piece


def split_lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield number, offset and bytes of each line, without its break; None: it is too long."""
    number, offset, rest, dropped = 0, 0, b"", 0
    while True:
        data = file.read(_READ_BYTES)
        rest += data
        begin = 0
        while (end := rest.find(b"\n", begin)) >= 0:
            number += 1
            yield number, offset, None if dropped else rest[begin:end].removesuffix(b"\r")
            offset += end + 1 - begin + dropped
            begin, dropped = end + 1, 0
        rest = rest[begin:]
        if len(rest) > LINE_BYTES_MAX:
            dropped += len(rest)
            rest = b""
        if not data:
            break
    if rest or dropped:
        yield number + 1, offset, None if dropped else rest.removesuffix(b"\r")


def body_of(line: bytes) -> bytes:
    """The member ``body`` of a line that was checked, as it was written."""
    return bytes(_decode_body(line).body)


def _check(
    line: bytes, number: int, offset: int, endpoint: str, seen: set[bytes]
) -> InputLine | LineError:
    try:
        line.decode()  # what is not built is not checked for it
        request = _decode(line)
        asked = _decode_model(request.body)
    except msgspec.ValidationError as error:
        # msgspec names types and members, never values.
        return LineError("invalid_request", f"The line is not a request: {error}", None, number)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return LineError("invalid_json_line", "The line is not valid JSON.", None, number)
    if request.method != "POST":
        return LineError("invalid_method", "Use the method POST.", "method", number)
    if request.url != endpoint:
        message = f"The url differs from the batch's endpoint, {endpoint}."
        return LineError("mismatched_endpoint", message, "url", number)
    if asked.stream:
        message = "A batch has no streams: leave out 'stream'."
        return LineError("invalid_value", message, "body.stream", number)
    if not asked.model:
        return LineError("invalid_value", "Name a model.", "body.model", number)
    if not 0 < len(request.custom_id) <= CUSTOM_ID_MAX:
        message = f"Use 1 to {CUSTOM_ID_MAX} characters."
        return LineError("invalid_custom_id", message, "custom_id", number)
    mark = blake2b(request.custom_id.encode("utf-8", "replace"), digest_size=8).digest()
    if mark in seen:
        message = "The custom_id is that of an earlier line; each line needs its own."
        return LineError("duplicate_custom_id", message, "custom_id", number)
    seen.add(mark)
    return InputLine(number, offset, len(line), request.custom_id, asked.model)


__all__ = [
    "ENDPOINTS",
    "ERRORS_MAX",
    "LINES_MAX",
    "LINE_BYTES_MAX",
    "InputLine",
    "LineError",
    "body_of",
    "check_pieces",
    "split_lines",
]
