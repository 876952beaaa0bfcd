"""Uploads and input files of batches, valid and bent: refused with a reason, or taken as they are.

Forms go through the Files API itself, onto a disk: no status of 500 or above, a tenant's account
that holds exactly the bytes of accepted files, no part of a refused one left, and memory that is
bounded by one piece. What the gateway's own reader of forms makes of the same bytes is the same
file. Input files go into their check: nothing but lines and errors comes out, lines that Python
reads the same way, at most as many as may be, in memory bounded by the file.
"""

import asyncio
import io
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any, Final

import orjson
from fuzz_draw import Draw

from holdfast.batch.file_store import FileStore
from holdfast.batch.files_api import FilesApi
from holdfast.batch.form_stream import FormStream
from holdfast.batch.held_bytes import HeldBytes
from holdfast.batch.input_lines import InputLine, LineError, check_pieces
from holdfast.batch.items import answer_line, error_line
from holdfast.batch.process import build_app
from holdfast.core.batch.limits import BatchLimits
from holdfast.gateway.api import multipart
from holdfast.gateway.api.errors import ApiError
from holdfast.storage.batch_records import BatchRecords

LIMITS: Final = BatchLimits(file_bytes_max=20_000, tenant_bytes_max=30_000, disk_free_min=0)
HELD_MAX: Final = 4_096 + 4_096 + 200  # a part's head, a field, and a boundary
LINES_MAX: Final = 40
CHAT: Final = "/v1/chat/completions"
_BOUNDARIES: Final = (b"x", b"xyz", b"a-b_c.d", b"-", b"x" * 70)
_VALUES: Final = (b"batch", b"", b"fine-tune", b"3600", b"created_at", b"\r\n", b"--x", b"\r\n--x")
_NAMES: Final = (b"purpose", b"file", b"expires_after[seconds]", b"expires_after[anchor]", b"other")


class Files:
    """The Files API of one process of the fuzzer, on a folder of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-fuzz-")
        folder = Path(self._folder.name)
        self.records = BatchRecords(folder / "batches.sqlite")
        self.store = FileStore(folder / "files", LIMITS)
        self.held = HeldBytes(LIMITS.tenant_bytes_max)
        self.app = build_app(FilesApi(self.records, self.store, self.held))

    async def ask(self, pieces: list[bytes], kind: bytes) -> tuple[int, bytes]:
        """Upload a form; returns status and body."""
        left, told = list(pieces), []

        async def receive() -> dict[str, Any]:
            piece = left.pop(0) if left else b""
            return {"type": "http.request", "body": piece, "more_body": bool(left)}

        async def send(message: dict[str, Any]) -> None:
            told.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/files",
            "query_string": b"",
            "headers": [(b"content-type", kind), (b"x-holdfast-tenant", b"t")],
        }
        await self.app(scope, receive, send)
        return told[0]["status"], b"".join(one.get("body", b"") for one in told[1:])

    def forget(self, file_id: str, size: int) -> None:
        """Delete an accepted file, so that the next case begins with an empty account."""
        assert self.records.drop_file(file_id)
        self.store.delete(file_id)
        self.held.give_back("t", size)


_files: list[Files] = []  # made at the first case of this process


def form_case(draw: Draw) -> None:
    """One upload, bent or not, cut or not."""
    if not _files:
        _files.append(Files())
    files, boundary = _files[0], draw.pick(_BOUNDARIES)
    data = _form(draw, boundary)
    pieces = draw.cut(data)
    kind = b"multipart/form-data; boundary=" + boundary
    status, body = asyncio.run(files.ask(pieces, kind))
    assert status < 500, f"status {status} for {data!r}"
    said = orjson.loads(body)
    kept = [path.name for path in files.store.folder.iterdir()]
    if status != 200:
        assert said["error"]["message"], said
        assert not kept, "a part of a refused upload is left"
        assert files.held.of("t") == 0, "a refused upload is still counted"
    else:
        content = files.store.path(said["id"]).read_bytes()
        files.forget(said["id"], said["bytes"])
        assert kept == [said["id"]]
        assert said["bytes"] == len(content)
        assert files.held.of("t") == 0, "another size was counted than was kept"
        _same_file(data, boundary, content)
    _bounded(pieces, kind.decode())


def _form(draw: Draw, boundary: bytes) -> bytes:
    parts = [
        (b'form-data; name="%b"' % draw.pick(_NAMES), draw.pick(_VALUES))
        for _ in range(draw.upto(3))
    ]
    parts.insert(0, (b'form-data; name="purpose"', b"batch"))
    content = draw.noise().randbytes(draw.upto(40) * draw.pick((1, 10, 600)))
    parts.append((b'form-data; name="file"; filename="a.jsonl"', content))
    data = b"".join(
        b"--%b\r\ncontent-disposition: %b\r\n\r\n%b\r\n" % (boundary, head, value)
        for head, value in parts
    )
    data = b"\r\n" * draw.upto(1) + data + b"--%b--" % boundary + b"\r\n" * draw.upto(1)
    if draw.chance(2):
        data = draw.damage(data, 1 + draw.upto(3))
    if draw.chance(4):
        data += draw.pick((b"\r\n", b"\n", b"x", b"--", b"\r\n--%b--\r\n" % boundary)) * 50
    return data


def _same_file(data: bytes, boundary: bytes, content: bytes) -> None:
    """Where the gateway's own reader of forms takes the same bytes, it reads the same file."""
    try:
        fields = multipart.parse(data.removeprefix(b"\r\n"), boundary, 16)
    except ApiError:
        return
    (file,) = [field for field in fields if field.filename is not None]
    assert bytes(file.value) == content


def _bounded(pieces: list[bytes], kind: str) -> None:
    """Whatever comes, no more is kept than a head, a field, a boundary, and the piece at hand."""
    stream = FormStream(kind)
    for piece in pieces:
        try:
            stream.feed(piece)
        except Exception:  # noqa: BLE001 - the API was asked before; here it is only fed
            return
        assert len(stream._held) + len(stream._value) <= HELD_MAX + len(piece)


# --- input files ---------------------------------------------------------------------------------


def lines_case(draw: Draw) -> None:
    """One input file."""
    data = _input(draw)
    tracemalloc.start()
    pieces = list(check_pieces(io.BytesIO(data), CHAT, lines_max=LINES_MAX))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 12 * len(data) + (256 << 10), f"{peak} bytes for a file of {len(data)}"
    found = [one for piece in pieces for one in piece]
    assert found, "neither a line nor an error"
    assert len(found) <= LINES_MAX + 1
    assert len({one.custom_id for one in found if isinstance(one, InputLine)}) == sum(
        isinstance(one, InputLine) for one in found
    )
    for one in found:
        if isinstance(one, LineError):
            json.dumps(one.to_json())
            continue
        line = data[one.offset : one.offset + one.length]
        read = json.loads(line)
        assert (read["custom_id"], read["url"], read["method"]) == (one.custom_id, CHAT, "POST")
        assert read["body"]["model"] == one.model
        assert not read["body"].get("stream")
        _one_line(draw, one)


def _one_line(draw: Draw, line: InputLine) -> None:
    """What is written for a line is one line, whatever an engine answered."""
    body = draw.damage(b'{\n "a": ["b\xe2\x80\xa8", {}],\r\n "c": 1e3\n}', draw.upto(2))
    for told in (
        answer_line("batch_1/1", line.custom_id, 200, "req_1", body),
        error_line("batch_1/1", line.custom_id, "code", "message"),
    ):
        assert len(told.decode().splitlines()) == 1
        assert json.loads(told)["custom_id"] == line.custom_id


def _input(draw: Draw) -> bytes:
    lines = []
    for number in range(draw.upto(12)):
        body: dict[str, Any] = {"model": draw.pick(("m", "a/b", "é", "")), "messages": []}
        if draw.chance(4):
            body["stream"] = draw.pick((False, True, None, "x"))
        if draw.chance(4):
            body["messages"] = [[{}]] * draw.upto(3_000)
        custom_id = draw.pick((f"c{number}", "same", "\u2028", "\ud83d\ude00", "x" * 600, ""))
        told = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
        line = json.dumps(told).encode()
        if draw.chance(3):
            line = draw.damage(line, 1 + draw.upto(2))
        lines.append(line)
    data = draw.pick((b"\n", b"\r\n", b"\n\n")).join(lines)
    if draw.chance(4):
        data += draw.pick((b"\n", b"\r", b" \n", b"{", b"[" * 20, b"\x00", b'{"a":')) * 200
    return data


__all__ = ["form_case", "lines_case"]
