"""A stand-in on loopback, and a client that sees every byte."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import pytest

from holdfast.testing.standin import Options, StandIn

PATIENCE_S = 20.0  # a busy machine; nothing here takes a second


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    broken: str = ""  # how the connection ended before the answer did

    @property
    def json(self):
        return orjson.loads(self.body)

    def events(self):
        """The data of every SSE event; [DONE] as it is."""
        found = []
        for block in self.body.split(b"\n\n"):
            for line in block.split(b"\n"):
                if line.startswith(b"data: "):
                    data = line[6:]
                    found.append("[DONE]" if data == b"[DONE]" else orjson.loads(data))
        return found

    def text(self):
        pieces = []
        for event in self.events():
            if event == "[DONE]" or not event.get("choices"):
                continue
            choice = event["choices"][0]
            pieces.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        return "".join(pieces)

    def finish(self):
        reasons = [
            choice["finish_reason"]
            for event in self.events()
            if event != "[DONE]"
            for choice in event.get("choices", ())
        ]
        return next((reason for reason in reasons if reason), None)


def request_bytes(path, body, method="POST", headers=""):
    raw = body if isinstance(body, bytes) else (orjson.dumps(body) if body is not None else b"")
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n{headers}\r\n"
    return head.encode() + raw


async def read_answer(reader, *, until=None):
    """One answer; ``until`` stops early, once the body holds so many events."""
    answer = Answer()
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        answer.status = int(first.split()[1])
        for line in lines:
            name, _, value = line.partition(": ")
            answer.headers[name.lower()] = value
        if "content-length" in answer.headers:
            answer.body = await reader.readexactly(int(answer.headers["content-length"]))
            return answer
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            answer.body += (await reader.readexactly(size + 2))[:-2]
            if size == 0 or (until is not None and answer.body.count(b"\n\n") >= until):
                return answer
    except asyncio.IncompleteReadError:
        answer.broken = "closed"
    except ConnectionResetError:
        answer.broken = "reset"
    return answer


async def ask(standin, path, body=None, *, method="POST", side=False, headers=""):
    port = standin.side_port if side else standin.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request_bytes(path, body, method, headers))
        return await asyncio.wait_for(read_answer(reader), PATIENCE_S)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def live(**options):
    options = {"ttft_ms": 0.0, "tpot_ms": 0.0, **options}
    standin = await StandIn(Options(**options)).start()
    try:
        yield standin
    finally:
        await standin.stop()


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # figures of the stand-in, which tell nobody
            await asyncio.sleep(0.002)


@dataclass(frozen=True)
class Kit:
    """What the tests of this folder share."""

    live = staticmethod(live)
    ask = staticmethod(ask)
    until = staticmethod(until)
    read_answer = staticmethod(read_answer)
    request_bytes = staticmethod(request_bytes)


@pytest.fixture
def kit():
    return Kit()
