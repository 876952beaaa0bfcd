"""What a second hop sees of requests that two parsers might read differently.

A live gateway stands before a server that writes down every byte it gets. Whatever a client sends,
that server sees nothing, or one request that the gateway wrote itself. The tables hold the tricks
of request smuggling, cache poisoning and header injection that proxies are known to fall for, each
with the request that somebody would like to smuggle inside it.
"""

import asyncio
import json
import socket
from contextlib import suppress

import pytest

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
EVIL = BODY.replace(b"hi", b"smuggled")
JSON = b"Content-Type: application/json"
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
SMUGGLED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(EVIL), EVIL)
)
ANSWER = (
    b'{"id":"c","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"hello"}}],'
    b'"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1.0]}]}'
)
REFUSALS = frozenset({400, 404, 405, 413, 415, 417, 431, 501, 505})


def post(
    *lines: bytes,
    body: bytes = BODY,
    start: bytes = b"POST /v1/chat/completions HTTP/1.1",
    host: bytes | None = b"Host: a",
    kind: bytes = JSON,
) -> bytes:
    hosts = () if host is None else (host,)
    return b"\r\n".join((start, *hosts, kind, *lines)) + b"\r\n\r\n" + body


def sized(body: bytes) -> bytes:
    return post(b"Content-Length: %d" % len(body), body=body)


class Recorder:
    """A second hop: keeps what it got, answers whatever looks like a request."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.connections: list[bytearray] = []
        self.open = 0

    async def serve(self, reader, writer):
        got = bytearray()
        self.open += 1
        self.connections.append(got)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while data := await reader.read(65_536):
                got += data
                if got.endswith((b"}", b"--\r\n", b"\r\n\r\n", b"\x00")):
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
        writer.transport.abort()
        self.open -= 1

    def requests(self) -> list[tuple[bytes, list[tuple[bytes, bytes]], bytes]]:
        """Everything that came, taken apart without mercy."""
        found = []
        for got in self.connections:
            rest = bytes(got)
            while rest:
                head, end, rest = rest.partition(b"\r\n\r\n")
                assert end
                first, *lines = head.split(b"\r\n")
                pairs = [tuple(line.split(b": ", 1)) for line in lines]
                assert all(len(pair) == 2 for pair in pairs)
                (length,) = [int(value) for name, value in pairs if name == b"content-length"]
                assert len(rest) >= length
                found.append((first, pairs, rest[:length]))
                rest = rest[length:]
        return found


class Client:
    """Sends one thing and reads what comes, then whether the connection is still in step."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, bytes] | None:
        """One whole response; None where the connection ended before one."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        if head.startswith(b"HTTP/1.1 100"):
            return await self.answer()
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length: "):
                return int(head[9:12]), await self.reader.readexactly(int(line[16:]))
        return int(head[9:12]), b""


def through(live, pieces: list[bytes], expected: int | str, check=None) -> None:
    """Send the pieces through a live gateway, look at both ends."""
    recorder = Recorder()

    async def body(gateway):
        hop = await asyncio.start_server(recorder.serve, sock=recorder.socket)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            if expected == "waits":
                await gateway.until(lambda: len(gateway.server.bodies) == 1)
            else:
                await ask(Client(reader, writer), expected)
            writer.transport.abort()
            await gateway.until(lambda: not (gateway.driver.busy or gateway.server.open))
            judge(recorder, expected, check)
        finally:
            writer.transport.abort()
            hop.close()
            for target in gateway.targets.values():
                target.upstream.abandon()
            await gateway.until(lambda: recorder.open == 0)

    live(
        body,
        replicas=0,
        model={"endpoints": [f"http://127.0.0.1:{recorder.port}"], "served_as": "served"},
        retry={"attempts": 1, "continuations": 0},
    )


async def ask(client: Client, expected: int | str) -> None:
    """The answer, and whether the connection is exactly behind it."""
    status, text = await client.answer()
    assert status != 500
    if expected == "refused":
        assert status in REFUSALS
        assert b"smuggled" not in text
    else:
        assert status == expected
    with suppress(ConnectionError):
        client.writer.write(NEXT)
        await client.writer.drain()
    second = await client.answer()
    if second is not None:
        status, text = second
        assert status in {200, *REFUSALS}
        assert b"choices" not in text


def judge(recorder: Recorder, expected: int | str, check) -> None:
    seen = recorder.requests()
    assert len(seen) <= 1, "two requests at the second hop"
    assert len(seen) == (expected == 200)
    assert not any(b"smuggled" in got for got in recorder.connections)
    if not seen:
        return
    first, pairs, text = seen[0]
    if check is not None:
        check(first, dict(pairs), text)
        return
    assert first == b"POST /v1/chat/completions HTTP/1.1"
    assert sorted(pairs) == [
        (b"content-length", b"%d" % len(text)),
        (b"content-type", b"application/json"),
        (b"host", b"127.0.0.1:%d" % recorder.port),
        (b"user-agent", b"holdfast"),
    ]
    assert json.loads(text) == {**json.loads(BODY), "model": "served"}


# --- what is refused, or understood as one request ------------------------------------------------

BOTH = BODY + SMUGGLED  # one reader stops at the body, another reads on
CASES: dict[str, tuple[int | str, bytes]] = {
    # as they should be
    "plain": (200, post(LENGTH)),
    "plain, chunked": (200, post(CHUNKED, body=CHUNKS)),
    # two lengths
    "length and coding": ("refused", post(LENGTH, CHUNKED, body=CHUNKS + SMUGGLED)),
    "coding and length": ("refused", post(CHUNKED, LENGTH, body=CHUNKS + SMUGGLED)),
    "zero length and coding": (
        "refused",
        post(b"Content-Length: 0", CHUNKED, body=CHUNKS + SMUGGLED),
    ),
    "coding hidden in a fold": (
        "refused",
        post(LENGTH, b"X: y\r\n Transfer-Encoding: chunked", body=CHUNKS),
    ),
    "two lengths": (
        "refused",
        post(LENGTH, b"Content-Length: %d" % len(BOTH), body=BOTH),
    ),
    "the same length twice": ("refused", post(LENGTH, LENGTH)),
    "two lengths in one line": ("refused", post(LENGTH + b", %d" % len(BOTH), body=BOTH)),
    "the same twice in one line": ("refused", post(LENGTH + b", %d" % len(BODY))),
    "length with a plus": ("refused", post(b"Content-Length: +%d" % len(BODY))),
    "length with a minus": ("refused", post(b"Content-Length: -%d" % len(BODY))),
    "length in hex": ("refused", post(b"Content-Length: 0x%x" % len(BODY))),
    "length with a point": ("refused", post(b"Content-Length: %d.0" % len(BODY))),
    "length with an underscore": ("refused", post(b"Content-Length: 5_7")),
    "length in other digits": ("refused", post("Content-Length: ５７".encode())),
    "length of nothing": ("refused", post(b"Content-Length:")),
    "length beyond numbers": ("refused", post(b"Content-Length: 18446744073709551673")),
    "length in quotes": ("refused", post(b'Content-Length: "%d"' % len(BODY))),
    "length before a space and a colon": ("refused", post(b"Content-Length : %d" % len(BODY))),
    "length after a tab": (200, post(b"Content-Length:\t%d" % len(BODY))),
    "length after blanks": (200, post(b"Content-Length:   %d  " % len(BODY))),
    "length with leading zeros": (200, post(b"Content-Length: 000%d" % len(BODY))),
    "length with a nul": ("refused", post(LENGTH + b"\x00")),
    "length under another name": (
        "refused",
        post(b"Content_Length: %d" % len(BODY), body=SMUGGLED.replace(b"POST", b"XXXX", 1)),
    ),
    "length too short": (
        "refused",
        post(b"Content-Length: %d" % (len(BODY) - 3), body=BODY + SMUGGLED),
    ),
    "length too long": ("waits", post(b"Content-Length: %d" % (len(BODY) + 400))),
    "no length": ("refused", post()),
    # codings
    "identity": ("refused", post(b"Transfer-Encoding: identity", LENGTH)),
    "identity alone": ("refused", post(b"Transfer-Encoding: identity", body=BOTH)),
    "chunked and identity": (
        "refused",
        post(b"Transfer-Encoding: chunked, identity", body=CHUNKS + SMUGGLED),
    ),
    "gzip and chunked": ("refused", post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS)),
    "chunked twice": ("refused", post(CHUNKED, CHUNKED, body=CHUNKS + SMUGGLED)),
    "chunked twice in one line": (
        "refused",
        post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS + SMUGGLED),
    ),
    "unknown coding": ("refused", post(b"Transfer-Encoding: xchunked", body=CHUNKS)),
    "cow": ("refused", post(b"Transfer-Encoding: cow", LENGTH, body=BOTH)),
    "coding in quotes": ("refused", post(b'Transfer-Encoding: "chunked"', body=CHUNKS)),
    "coding with a parameter": ("refused", post(b"Transfer-Encoding: chunked;q=1", body=CHUNKS)),
    "coding in capitals": (200, post(b"TRANSFER-ENCODING: CHUNKED", body=CHUNKS)),
    "coding after a tab": (200, post(b"Transfer-Encoding:\tchunked", body=CHUNKS)),
    "coding after a vertical tab": (
        "refused",
        post(b"Transfer-Encoding:\x0bchunked", LENGTH, body=CHUNKS),
    ),
    "coding before a space and a colon": (
        "refused",
        post(b"Transfer-Encoding : chunked", LENGTH, body=CHUNKS + SMUGGLED),
    ),
    "coding after a bare line feed": (
        "refused",
        post(b"X: y\nTransfer-Encoding: chunked", LENGTH, body=CHUNKS + SMUGGLED),
    ),
    "coding after a bare carriage return": (
        "refused",
        post(b"X: y\rTransfer-Encoding: chunked", LENGTH, body=CHUNKS + SMUGGLED),
    ),
    "coding with a leading space": (
        "refused",
        post(LENGTH, b" Transfer-Encoding: chunked", body=CHUNKS + SMUGGLED),
    ),
    "coding of nothing": ("refused", post(b"Transfer-Encoding:", LENGTH, body=BOTH)),
    "coding under another name": (200, post(LENGTH, b"Transfer_Encoding: chunked")),
    "coding in http/1.0": (
        "refused",
        post(CHUNKED, body=CHUNKS + SMUGGLED, start=b"POST /v1/chat/completions HTTP/1.0"),
    ),
    # chunks
    "chunk extension": (
        200,
        post(CHUNKED, body=b"%x;a=b\r\n%b\r\n0;c\r\n\r\n" % (len(BODY), BODY)),
    ),
    "chunk extension with a quoted line end": (
        "refused",
        post(CHUNKED, body=b'%x;a="\r\n%b\r\n0\r\n\r\n' % (len(BODY), BODY) + SMUGGLED),
    ),
    "chunk extension with a bare line feed": (
        "refused",
        post(CHUNKED, body=b"%x;a\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) + SMUGGLED),
    ),
    "chunk size with a plus": (
        "refused",
        post(CHUNKED, body=b"+%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    ),
    "chunk size with 0x": (
        "refused",
        post(CHUNKED, body=b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    ),
    "chunk size with a blank": (
        "refused",
        post(CHUNKED, body=b"%x \r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    ),
    "chunk size with an underscore": (
        "refused",
        post(CHUNKED, body=b"3_9\r\n%b\r\n0\r\n\r\n" % BODY),
    ),
    "chunk size beyond numbers": (
        "refused",
        post(CHUNKED, body=b"10000000000000039\r\n%b\r\n0\r\n\r\n" % BODY),
    ),
    "chunk shorter than it says": (
        "refused",
        post(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY) + 2, BODY) + SMUGGLED),
    ),
    "chunk longer than it says": (
        "refused",
        post(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY) - 2, BODY) + SMUGGLED),
    ),
    "chunk that ends in line feeds": (
        "refused",
        post(CHUNKED, body=b"%x\n%b\n0\n\n" % (len(BODY), BODY) + SMUGGLED),
    ),
    "chunks without an end": ("waits", post(CHUNKED, body=b"%x\r\n%b\r\n" % (len(BODY), BODY))),
    "last chunk of many zeros": (
        200,
        post(CHUNKED, body=b"%x\r\n%b\r\n0000\r\n\r\n" % (len(BODY), BODY)),
    ),
    "trailers": (
        200,
        post(
            CHUNKED,
            body=CHUNKS[:-2] + b"X-Forwarded-For: 1.2.3.4\r\nAuthorization: Bearer x\r\n\r\n",
        ),
    ),
    "length in the trailers": (
        "refused",
        post(CHUNKED, body=CHUNKS[:-2] + b"Content-Length: 500\r\n\r\n" + SMUGGLED),
    ),
    # hosts and targets
    "two hosts": ("refused", post(b"Host: b", LENGTH)),
    "no host": ("refused", post(LENGTH, host=None)),
    "host with a user": ("refused", post(LENGTH, host=b"Host: u@evil")),
    "host with a path": ("refused", post(LENGTH, host=b"Host: a/b")),
    "hosts in one line": ("refused", post(LENGTH, host=b"Host: a, b")),
    "host of another": (200, post(LENGTH, host=b"Host: evil.example:99")),
    "absolute target": (
        200,
        post(LENGTH, start=b"POST http://evil.example/v1/chat/completions HTTP/1.1"),
    ),
    "absolute target with a user": (
        "refused",
        post(LENGTH, start=b"POST http://u:p@evil/v1/chat/completions HTTP/1.1"),
    ),
    "query": (200, post(LENGTH, start=b"POST /v1/chat/completions?a=b&c HTTP/1.1")),
    "query with an escaped line end": (
        200,
        post(LENGTH, start=b"POST /v1/chat/completions?a=%0d%0aX:%20y HTTP/1.1"),
    ),
    "path with an escaped line end": (
        "refused",
        post(LENGTH, start=b"POST /v1/chat/completions%0d%0aX:%20y HTTP/1.1"),
    ),
    "path with dots": ("refused", post(LENGTH, start=b"POST /v1/../v1/chat/completions HTTP/1.1")),
    "path with two slashes": (
        "refused",
        post(LENGTH, start=b"POST //v1/chat/completions HTTP/1.1"),
    ),
    "fragment": ("refused", post(LENGTH, start=b"POST /v1/chat/completions#x HTTP/1.1")),
    "second version in the line": (
        "refused",
        post(LENGTH, start=b"POST /v1/chat/completions HTTP/1.1 HTTP/1.1"),
    ),
    "http/0.9": ("refused", b"POST /v1/chat/completions\r\n\r\n" + SMUGGLED),
    "http/1.2": ("refused", post(LENGTH, start=b"POST /v1/chat/completions HTTP/1.2")),
    "http/1.0": (200, post(LENGTH, start=b"POST /v1/chat/completions HTTP/1.0")),
    "tunnel": ("refused", b"CONNECT /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n" + SMUGGLED),
    "get with a body": (
        "refused",
        post(
            b"Content-Length: %d" % len(SMUGGLED),
            body=SMUGGLED,
            start=b"GET /v1/chat/completions HTTP/1.1",
        ),
    ),
    # headers that must stay with us
    "hop-by-hop headers": (
        200,
        post(
            LENGTH,
            b"Connection: keep-alive, X-Secret",
            b"X-Secret: s",
            b"Keep-Alive: timeout=5",
            b"Proxy-Authorization: Basic x",
            b"Proxy-Connection: close",
            b"TE: trailers",
            b"Trailer: X-Foo",
        ),
    ),
    "the length named as hop-by-hop": (200, post(LENGTH, b"Connection: content-length")),
    "headers of proxies": (
        200,
        post(
            LENGTH,
            b"Forwarded: for=1.2.3.4",
            b"X-Forwarded-Host: evil",
            b"X-Original-URL: /admin",
            b"X-HTTP-Method-Override: DELETE",
            b"Authorization: Bearer theirs",
            b"Cookie: a=b",
            b"X-Request-Id: r",
        ),
    ),
    "an offer of http/2": (
        200,
        post(
            LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"
        ),
    ),
    "a web socket": (
        "refused",
        post(b"Connection: Upgrade", b"Upgrade: websocket", body=SMUGGLED),
    ),
    "expectation": (200, post(LENGTH, b"Expect: 100-continue")),
    "unknown expectation": ("refused", post(LENGTH, b"Expect: 200-ok")),
    "nul in a value": ("refused", post(LENGTH, b"X: a\x00b")),
    "line end in a value": ("refused", post(LENGTH, b"X: a\nEvil: b")),
    "content encoding": (200, post(LENGTH, b"Content-Encoding: identity")),
    # what goes into the second request
    "model with a line end": ("refused", sized(BODY.replace(b'"m"', b'"m\\r\\nX: y"'))),
    "model twice, ours first": ("refused", sized(BODY[:-1] + b',"model":"smuggled"}')),
    "model twice, ours last": (200, sized(b'{"model":"smuggled",' + BODY[1:])),
    "model twice, one in escapes": (200, sized(b'{"mod\\u0065l":"smuggled",' + BODY[1:])),
    "key for another": (200, sized(BODY[:-1] + b',"api_base":"http://smuggled"}')),
    "content type with a line end": (
        "refused",
        post(LENGTH, kind=b"Content-Type: application/json\nX: y"),
    ),
    "content type of a form": ("refused", post(LENGTH, kind=b"Content-Type: text/plain")),
    "content type with parameters": (
        200,
        post(LENGTH, kind=b"Content-Type: application/json; charset=utf-8; x=y"),
    ),
}


def test_the_table_is_long_enough():
    assert len(CASES) >= 60


@pytest.mark.parametrize(("expected", "raw"), CASES.values(), ids=CASES.keys())
def test_the_second_hop_sees_nothing_or_one_request_of_ours(live, expected, raw):
    through(live, [raw], expected)


CUT = ["plain", "plain, chunked", "length and coding", "chunk longer than it says", "trailers"]


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_same_in_two_reads(live, name, share):
    expected, raw = CASES[name]
    place = int(len(raw) * share)
    through(live, [raw[:place], raw[place:]], expected)


# --- other ways into the second request -----------------------------------------------------------

INFER = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'


def infer(model: bytes, *lines: bytes, body: bytes = INFER) -> bytes:
    start = b"POST /v2/models/%b/infer HTTP/1.1" % model
    return post(b"Content-Length: %d" % len(body), *lines, body=body, start=start)


INFERS = {
    "line end in the path": ("refused", infer(b"m%0d%0aX:%20y")),
    "slash in the path": ("refused", infer(b"m%2f..%2fevil")),
    "half an escape": ("refused", infer(b"m%2")),
    "length that is none": ("refused", infer(b"m", b"Inference-Header-Content-Length: 5x")),
    "length sent twice": (
        "refused",
        infer(
            b"m",
            b"Inference-Header-Content-Length: 5",
            b"Inference-Header-Content-Length: 6",
        ),
    ),
}


@pytest.mark.parametrize(("expected", "raw"), INFERS.values(), ids=INFERS.keys())
def test_a_path_cannot_carry_anything_else(live, expected, raw):
    through(live, [raw], expected)


def test_a_path_is_written_anew(live):
    def check(first, headers, text):
        assert first == b"POST /v2/models/served/infer HTTP/1.1"
        assert json.loads(text) == json.loads(INFER)

    through(live, [infer(b"%6d")], 200, check)


def form(model: bytes, boundary: bytes = b"xyz", evil: bytes = b"") -> bytes:
    part = b'Content-Disposition: form-data; name="%b"'
    body = b"".join(
        b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head, value)
        for head, value in (
            (part % b"model", model),
            (part % b"file" + b'; filename="a.wav"' + evil, b"\x01\x02"),
        )
    )
    body += b"--%b--\r\n" % boundary
    return post(
        b"Content-Length: %d" % len(body),
        body=body,
        start=b"POST /v1/audio/transcriptions HTTP/1.1",
        kind=b"Content-Type: multipart/form-data; boundary=" + boundary,
    )


FORMS = {
    "boundary with a blank": form(b"m", b"x y"),
    "boundary with a quote": form(b"m", b'x"y'),
    "model with a line end": form(b"m\r\nX: y"),
    "second disposition": form(b"m", evil=b'\r\nContent-Disposition: form-data; name="model"'),
    "name that breaks out": form(b"m", evil=b'; name="model"'),
    "folded header": form(b"m", evil=b"\r\n folded"),
}


@pytest.mark.parametrize("raw", FORMS.values(), ids=FORMS.keys())
def test_a_form_cannot_carry_anything_else(live, raw):
    through(live, [raw], "refused")


def test_a_form_is_written_anew(live):
    def check(first, headers, text):
        assert first == b"POST /v1/audio/transcriptions HTTP/1.1"
        assert headers[b"content-type"] == b"multipart/form-data; boundary=xyz"
        assert text.count(b'name="model"\r\n\r\nserved\r\n') == 1
        assert b"evil" not in text

    through(live, [form(b"m")], 200, check)
