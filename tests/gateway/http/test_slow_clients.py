"""Clients that are slow, silent, many, gone or greedy, on a live gateway with narrow limits."""

import asyncio
import json
import socket
from contextlib import suppress
from random import Random

import pytest

from holdfast.gateway.http.loop_turn import BYTES_MAX, READ_BYTES_MAX
from holdfast.testing.standin import Options

WAIT_S = 10.0
WORDS = Random(0).randbytes(4_096).hex().encode()  # of one event; nothing that repeats itself
EVENTS = 20_000  # 160 MB: nobody has that much room by chance
ROOM = 48 << 20  # far above what the buffers of a kernel hold
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
ASK = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
STREAM = BODY[:-1] + b',"stream":true}'
ASK_STREAM = HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM


def section(**http) -> dict:
    return {"listen": "127.0.0.1:0", "http": http}


async def connect(gateway, *, narrow: bool = False):
    """A client's connection; a narrow one has little room for what it does not read."""
    peer = socket.socket()
    if narrow:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", gateway.port))
    reader, writer = await asyncio.open_connection(sock=peer, limit=4_096)
    gateway.clients.append(writer)
    return reader, writer


def serve(live, test, **extra) -> None:
    """Run a test against a live gateway; its clients leave whatever happens."""

    async def body(gateway):
        gateway.clients = []
        try:
            await test(gateway)
        finally:
            for writer in gateway.clients:
                writer.transport.abort()
            await gateway.until(lambda: gateway.server.open == 0)

    live(body, **extra)


async def read_all(reader) -> bytes:
    """Until the gateway closes."""
    data = bytearray()
    async with asyncio.timeout(WAIT_S):
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 20):
                data += piece
    return bytes(data)


async def answer(reader) -> tuple[int, bytes]:
    """One response with a length."""
    async with asyncio.timeout(WAIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
        return int(head[9:12]), await reader.readexactly(int(lines[b"content-length"]))


def told(raw: bytes) -> tuple[int, str]:
    """Status and code of a refusal."""
    head, _, text = raw.partition(b"\r\n\r\n")
    return int(head[9:12]), json.loads(text)["error"]["code"]


async def works(gateway) -> None:
    """The gateway still serves others."""
    reader, writer = await connect(gateway)
    writer.write(ASK)
    assert (await answer(reader))[0] == 200
    writer.transport.abort()


# --- slow senders ---------------------------------------------------------------------------------


def test_headers_that_trickle_in_are_refused(live):
    async def body(gateway):
        reader, writer = await connect(gateway)

        async def trickle():
            with suppress(ConnectionError):
                for at in range(len(HEAD)):
                    writer.write(HEAD[at : at + 1])
                    await asyncio.sleep(0.02)

        slow = asyncio.ensure_future(trickle())
        assert told(await read_all(reader)) == (408, "header_timeout")
        slow.cancel()
        writer.transport.abort()
        await works(gateway)

    serve(live, body, gateway=section(header_s=0.3))


def test_a_body_that_trickles_in_is_refused_and_reaches_no_replica(live):
    async def body(gateway):
        reader, writer = await connect(gateway)
        writer.write(HEAD + b"Content-Length: 5000\r\n\r\n{")

        async def trickle():
            with suppress(ConnectionError):
                while True:
                    writer.write(b" ")
                    await asyncio.sleep(0.02)

        slow = asyncio.ensure_future(trickle())
        assert told(await read_all(reader)) == (408, "body_timeout")
        slow.cancel()
        writer.transport.abort()
        await gateway.until(lambda: gateway.server.open == 0)
        assert gateway.driver.busy == 0
        assert not gateway.driver.observer.counters.read()

    serve(live, body, gateway=section(body_s=0.3))


def test_many_slow_clients_do_not_keep_others_from_being_served(live):
    async def body(gateway):
        slow = [await connect(gateway) for _ in range(50)]
        for number, (_, writer) in enumerate(slow):
            writer.write(HEAD if number % 2 else HEAD + b"Content-Length: 9\r\n\r\n{")
        server = gateway.server
        await gateway.until(lambda: len(server.heads) + len(server.bodies) == 50)
        await works(gateway)
        codes = {told(await read_all(reader)) for reader, _ in slow}
        assert codes == {(408, "header_timeout"), (408, "body_timeout")}
        for _, writer in slow:
            writer.transport.abort()

    serve(live, body, gateway=section(header_s=0.5, body_s=0.5))


# --- clients that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "half"])
def test_a_client_that_leaves_within_its_body_leaves_nothing_behind(live, how):
    async def body(gateway):
        reader, writer = await connect(gateway)
        writer.write(HEAD + b"Content-Length: 5000\r\n\r\n" + BODY)
        await gateway.until(lambda: len(gateway.server.bodies) == 1)
        if how == "half":
            writer.write_eof()
            assert await read_all(reader) == b""
        writer.transport.abort()
        await gateway.until(lambda: gateway.server.open == 0)
        assert gateway.driver.busy == 0
        assert not gateway.server.bodies
        assert not gateway.driver.observer.counters.read()
        await works(gateway)

    serve(live, body)


@pytest.mark.parametrize("how", ["reset", "half"])
def test_a_client_that_leaves_a_stream_takes_its_attempt_along(live, how):
    async def body(gateway):
        reader, writer = await connect(gateway)
        writer.write(ASK_STREAM)
        await reader.readuntil(b"data: ")
        assert gateway.driver.busy == 1
        if how == "half":
            writer.write_eof()
        else:
            writer.transport.abort()
        await gateway.until(lambda: gateway.driver.busy == 0, within_s=1.0)
        assert not gateway.driver.port.streaming
        busy = [target.upstream.busy for target in gateway.targets.values()]
        assert busy == [0] * len(busy)
        writer.transport.abort()

    serve(live, body, options=Options(ttft_ms=2.0, tpot_ms=20.0, tokens=1_000))


# --- slow readers ---------------------------------------------------------------------------------


class Firehose:
    """A replica that streams as fast as it is read, and counts what it got rid of."""

    def __init__(self, events: int):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.events = events
        self.sent = self.open = 0

    async def serve(self, reader, writer):
        self.open += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
            for number in range(self.events):
                self.event(writer, b"%05d %b" % (number, WORDS), b"null")
                await writer.drain()
            self.event(writer, b"", b'"stop"')
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()
            await reader.read()
        except ConnectionError:
            self.events = 0
        writer.transport.abort()
        self.open -= 1

    def event(self, writer, text: bytes, reason: bytes) -> None:
        chunk = b'{"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}'
        event = b"data: %b\n\n" % (chunk % (text, reason))
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.sent += len(event)


def drink(live, test, events: int, **http) -> None:
    """A live gateway before a firehose."""
    hose = Firehose(events)

    async def body(gateway):
        serving = await asyncio.start_server(hose.serve, sock=hose.socket)
        try:
            await test(gateway, hose)
        finally:
            serving.close()
            for target in gateway.targets.values():
                target.upstream.abandon()
            gateway.server.close()
            await gateway.until(lambda: hose.open == 0)

    serve(live, body, replicas=0, model={"endpoints": [hose.url]}, gateway=section(**http))


def unsent(gateway) -> int:
    return sum(one.transport.get_write_buffer_size() for one in gateway.server.connections)


async def until_paused(gateway):
    """The attempt of the only stream, once its client has stopped reading."""
    attempts = gateway.driver.port.streaming
    await gateway.until(lambda: any(attempt.paused for attempt in attempts))
    (attempt,) = attempts
    return attempt


def test_a_client_that_does_not_read_stops_its_replica_and_fills_no_memory(live):
    # What one turn of the loop has read comes on top of the limit, and no more. Its last read
    # begins below the turn's own bound; an event that was cut and the frames of chunks are less.
    most = 16_384 + BYTES_MAX + 2 * READ_BYTES_MAX

    async def test(gateway, hose):
        _reader, writer = await connect(gateway, narrow=True)
        writer.write(ASK_STREAM)
        attempt = await until_paused(gateway)
        assert unsent(gateway) < most
        before = -1
        while before != hose.sent:  # until its buffers are full too
            before = hose.sent
            await asyncio.sleep(0.1)
        assert hose.sent < ROOM
        assert attempt.paused
        assert unsent(gateway) < most
        writer.transport.abort()
        await gateway.until(lambda: gateway.driver.busy == 0)

    drink(live, test, EVENTS, write_buffer_bytes=16_384)


def test_a_client_that_never_reads_is_let_go(live):
    async def test(gateway, hose):
        _reader, writer = await connect(gateway, narrow=True)
        writer.write(ASK_STREAM)
        await until_paused(gateway)
        await gateway.until(lambda: gateway.driver.busy == 0)
        assert gateway.server.counters["slow_reader"] == 1
        await gateway.until(lambda: gateway.server.open == 0)
        assert not gateway.driver.port.streaming
        assert not gateway.server.slow
        writer.transport.abort()

    drink(live, test, EVENTS, write_buffer_bytes=16_384, slow_reader_s=0.3)


def test_a_client_that_reads_again_gets_the_whole_answer(live):
    async def test(gateway, hose):
        reader, writer = await connect(gateway)
        writer.write(ASK_STREAM.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await until_paused(gateway)
        raw = await read_all(reader)
        assert raw.endswith(b"data: [DONE]\n\n")
        events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: {")]
        words = [json.loads(event)["choices"][0]["delta"]["content"][:5] for event in events]
        assert words == [*(f"{number:05}" for number in range(3_000)), ""]
        writer.transport.abort()

    drink(live, test, 3_000, write_buffer_bytes=16_384)


# --- many connections -----------------------------------------------------------------------------


def test_idle_connections_are_cheap_and_end(live):
    async def body(gateway):
        idle = [await connect(gateway) for _ in range(200)]
        await gateway.until(lambda: gateway.server.open == 200)
        assert gateway.server.busy == 0
        await works(gateway)
        for reader, _ in idle:
            assert await read_all(reader) == b""
        await gateway.until(lambda: gateway.server.open == 0)
        for _, writer in idle:
            writer.transport.abort()

    serve(live, body, gateway=section(keepalive_s=1.0))


def test_beyond_the_limit_of_connections_clients_are_told_to_come_back(live):
    async def body(gateway):
        held = [await connect(gateway) for _ in range(5)]
        await gateway.until(lambda: gateway.server.open == 5)
        reader, writer = await connect(gateway)
        raw = await read_all(reader)
        assert told(raw) == (503, "too_many_connections")
        assert b"retry-after: 1\r\n" in raw
        writer.transport.abort()
        await gateway.until(lambda: gateway.server.open == 5)
        held[0][1].write(ASK)  # those who were here before are served
        assert (await answer(held[0][0]))[0] == 200
        held.pop()[1].transport.abort()
        await gateway.until(lambda: gateway.server.open == 4)
        await works(gateway)
        for _, other in held:
            other.transport.abort()

    serve(live, body, gateway=section(connections_max=5))


# --- greedy bodies --------------------------------------------------------------------------------


def asked(**members: object) -> bytes:
    base = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    return json.dumps(base | members).encode()


def nested(opening: bytes, closing: bytes, depth: int) -> bytes:
    return BODY[:-1] + b',"x":' + opening * depth + b"1" + closing * depth + b"}"


GREEDY = {
    "deep lists": nested(b"[", b"]", 5_000),
    "deep objects": nested(b'{"a":', b"}", 5_000),
    "deep messages": b'{"model":"m","messages":[%b]}' % (b"[" * 3_000 + b"]" * 3_000),
    "deep and never closed": BODY[:-1] + b',"x":' + b"[" * 100_000,
    "nan": BODY[:-1] + b',"temperature":NaN}',
    "infinity": BODY[:-1] + b',"temperature":-Infinity}',
    "number beyond numbers": BODY[:-1] + b',"n":' + b"9" * 5_000 + b"}",
    "half a surrogate": asked().replace(b"hi", b"\\ud800"),
    "bytes that are no text": BODY.replace(b"hi", b"\xff\xfe"),
    "nul": BODY.replace(b"hi", b"\x00"),
    "many choices": asked(n=1_000_000_000),
    "no choices": asked(n=0),
    "choices by the float": asked(n=1e300),
    "many tokens": asked(max_tokens=10**18),
    "negative tokens": asked(max_tokens=-1),
    "many messages": asked(messages=[{"role": "user", "content": "a"}] * 20_000),
    "no messages": asked(messages=[]),
    "messages of another type": asked(messages={"a": 1}),
    "many stops": asked(stop=["a"] * 1_000),
    "many biases": asked(logit_bias={str(n): 1 for n in range(5_000)}),
    "many tools": asked(tools=[{"type": "function"}] * 2_000),
    "many log probabilities": asked(logprobs=True, top_logprobs=10**6),
    "many best": asked(model="m", stream=True, n=10**6),
    "many members": asked(**{f"m{n}": 1 for n in range(3_000)}),
    "a long name": asked(model="m" * 100_000),
    "a list": b"[" + BODY + b"]",
    "a text": b'"hi"',
    "nothing": b"",
    "blanks": b" " * 1_000,
    "two": BODY + BODY,
    "stream of another type": asked(stream="yes"),
}


def test_greedy_bodies_are_refused_and_the_connection_goes_on(live):
    async def body(gateway):
        reader, writer = await connect(gateway)
        for name, greedy in GREEDY.items():
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(greedy) + greedy)
            status, text = await answer(reader)
            assert 400 <= status < 500, name
            assert set(json.loads(text)) == {"error"}, name
        writer.write(ASK)
        assert (await answer(reader))[0] == 200
        writer.transport.abort()
        assert gateway.driver.busy == 0

    serve(live, body)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 5000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"]
)
def test_a_body_beyond_the_limit_is_refused_before_it_is_here(live, framing):
    async def body(gateway):
        reader, writer = await connect(gateway)
        writer.write(HEAD + framing)
        if b"chunked" in framing:
            writer.write(b"400\r\n%b\r\n" % (b" " * 1_024) * 3)
        assert told(await read_all(reader)) == (413, "body_too_large")
        writer.transport.abort()
        await gateway.until(lambda: gateway.server.open == 0)
        await works(gateway)

    serve(live, body, gateway=section(body_bytes_max=2_000))
