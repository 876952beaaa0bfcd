"""Calls over real loopback sockets, against replicas that misbehave on purpose."""

import asyncio
import errno
import socket
import ssl
import struct
import time
from contextlib import asynccontextmanager

import pytest
import uvloop

from holdfast.config.gateway import UpstreamConfig
from holdfast.core.failure import Kind
from holdfast.core.types import SECOND
from holdfast.gateway.http.upstream import Endpoint, Upstream, _meaning

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
SECRET = "hunter2"

# For localhost only, valid until 2120, made for these tests and used nowhere else.
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg9XOkTDRtiaXCKK74
qg7O8DGCpoZn9UDnGsjVDJf7UYGhRANCAARbbr9/XOOVGhRecdHWoVckmEIE+yvE
Q/RKNMojLxAAUg7pznNyYedwPlHWWNYl+BDDqHxOcoP2xTog96DALnog
-----END PRIVATE KEY-----
"""
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBcTCCARegAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFtuv39c45UaFF5x
0dahVySYQgT7K8RD9Eo0yiMvEABSDunOc3Jh53A+UdZY1iX4EMOofE5yg/bFOiD3
oMAueiCjWDBWMBQGA1UdEQQNMAuCCWxvY2FsaG9zdDAPBgNVHRMBAf8EBTADAQH/
MA4GA1UdDwEB/wQEAwIChDAdBgNVHQ4EFgQUnOmSNGIZFgCNk5HQqgOih0/5vDsw
CgYIKoZIzj0EAwIDSAAwRQIgCr23nCvIy4C8IfRb9Fui159SI/rlSpuNbOsE8etj
HcECIQCm8lXhFcffjZO8u9Rq5cKLJ4O2H8fUNJClSa65I8PIJw==
-----END CERTIFICATE-----
"""


class Heard:
    """A caller that remembers."""

    def __init__(self):
        self.status = None
        self.headers = {}
        self.data = b""
        self.ends = []
        self.details = []
        self.head_came = asyncio.Event()
        self.data_came = asyncio.Event()
        self.over = asyncio.Event()

    def on_head(self, status, headers):
        self.status = status
        self.headers = headers
        self.head_came.set()

    def on_data(self, data):
        self.data += data
        self.data_came.set()

    def on_end(self):
        self.ends.append("end")
        self.over.set()

    def on_failure(self, kind, detail):
        assert SECRET not in detail
        self.ends.append(kind)
        self.details.append(detail)
        self.over.set()


class Serving(asyncio.Protocol):
    """The replica's side of one connection: ``script(self)`` runs for every request."""

    def __init__(self, replica):
        self.replica = replica
        self.received = b""
        self.requests = 0
        self.lost = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        self.replica.connections.append(self)

    def data_received(self, data):
        self.received += data
        self.replica.received += data
        if self.replica.script is not None:
            self.requests += 1
            self.replica.script(self)

    def connection_lost(self, exc):
        self.lost.set()

    def say(self, data):
        self.transport.write(data)

    def reset(self):
        linger = struct.pack("ii", 1, 0)
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()


class Replica:
    def __init__(self, script):
        self.script = script
        self.connections = []
        self.received = b""
        self.port = 0


class Clock:
    def __init__(self):
        self.now = 1_000 * SECOND

    def __call__(self):
        return self.now


@asynccontextmanager
async def replica(script, *, tls=None):
    serving = Replica(script)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Serving(serving), "127.0.0.1", 0, ssl=tls)
    serving.port = server.sockets[0].getsockname()[1]
    try:
        yield serving
    finally:
        server.close()
        for connection in serving.connections:
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the transports go


@asynccontextmanager
async def calling(port, *, host="127.0.0.1", base="", tls=None, scheme="http", loop=None, **config):
    upstream = Upstream(
        Endpoint(f"{scheme}://{host}:{port}{base}"),
        UpstreamConfig(**config),
        loop or asyncio.get_running_loop(),
        ssl_context=tls,
        now_ns=time.monotonic_ns,
    )
    try:
        yield upstream
    finally:
        upstream.abandon()
        await asyncio.sleep(0)


def live(test):
    """Run it on uvloop, within a bound."""

    async def main():
        await asyncio.wait_for(test(), 20)

    def run():
        uvloop.run(main())

    run.__name__ = test.__name__
    return run


async def until(condition):
    """Turn the loop until something is so."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (there is no event for a pool's size)
            await asyncio.sleep(0.001)


def post(upstream, body=b"{}", *, heard=None, path=b"/v1/x", method=b"POST", headers=b"a: b\r\n"):
    heard = heard or Heard()
    heard.call = upstream.call(heard, method, path, headers, body)
    assert heard.ends == [], "nothing is reported from within call()"
    return heard


async def ask(upstream, body=b"{}", **how):
    heard = post(upstream, body, **how)
    await heard.over.wait()
    return heard


# --- the request and its answer -------------------------------------------------------------------


@live
async def test_a_request_is_written_and_its_answer_told():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port, base="/llm") as up:
        heard = await ask(up, b'{"a":1}', headers=b"content-type: application/json\r\n")
        assert (heard.status, heard.data, heard.ends) == (200, b"ok", ["end"])
        assert heard.headers == {b"content-length": b"2"}
        assert engine.received == (
            b"POST /llm/v1/x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: holdfast\r\n"
            b'content-type: application/json\r\ncontent-length: 7\r\n\r\n{"a":1}' % engine.port
        )


@live
async def test_a_length_is_stated_where_a_body_is_expected():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        await ask(up, b"", method=b"GET")
        assert b"content-length" not in engine.received
        assert engine.received.endswith(b"\r\na: b\r\n\r\n")
        await ask(up, b"")
        assert engine.received.endswith(b"content-length: 0\r\n\r\n")


@live
async def test_a_large_body_arrives_whole():
    body = bytes(range(256)) * 4_096 * 4

    def script(connection):
        if connection.received.endswith(body[-1_000:]) and len(connection.received) > len(body):
            connection.say(OK)

    async with replica(script) as engine, calling(engine.port) as up:
        heard = await ask(up, body)
        assert heard.ends == ["end"]
        assert engine.received.partition(b"\r\n\r\n")[2] == body
        assert up.idle == 1


def test_proxies_in_the_environment_are_not_read(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    @live
    async def run():
        async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
            assert (await ask(up)).ends == ["end"]

    run()


@live
async def test_a_redirect_is_an_answer_like_any_other():
    found = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    async with replica(lambda c: c.say(found)) as engine, calling(engine.port) as up:
        heard = await ask(up)
        assert (heard.status, heard.ends) == (302, ["end"])
        assert len(engine.connections) == 1


@live
async def test_an_answer_before_the_request_was_sent_is_told_and_its_connection_not_kept():
    def script(connection):
        connection.transport.pause_reading()
        connection.say(OK)

    async with replica(script) as engine, calling(engine.port) as up:
        heard = await ask(up, b"x" * (64 << 20))
        assert heard.ends == ["end"]
        assert (up.idle, up.busy) == (0, 0)


@live
async def test_what_is_written_is_sent_without_waiting():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        await ask(up)
        sock = up._idle[0]._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# --- connecting -----------------------------------------------------------------------------------


async def connected(engine, count):
    await until(lambda: sum(bool(c.received) for c in engine.connections) == count)


def closed_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@live
async def test_a_refused_connection():
    async with calling(closed_port()) as up:
        heard = await ask(up)
        assert heard.ends == [Kind.REFUSED]
        assert heard.details == ["connect: ECONNREFUSED"]
        assert (up.idle, up.busy) == (0, 0)


@live
async def test_a_connection_that_takes_too_long():
    clock = Clock()
    loop = asyncio.get_running_loop()
    async with replica(None) as engine:
        # TLS that is never answered: the connection is there and does not become usable.
        url = f"https://127.0.0.1:{engine.port}"
        up = Upstream(Endpoint(url), UpstreamConfig(), loop, now_ns=clock)
        heard = post(up)
        await until(lambda: engine.received)
        for tenths in range(11):
            up.sweep(clock.now + tenths * SECOND // 10)
        assert heard.ends == []
        up.sweep(clock.now + SECOND + 1)
        assert heard.ends == [Kind.CONNECT_TIMEOUT]
        assert up.busy == 0
        await engine.connections[0].lost.wait()


@live
async def test_a_gateway_that_was_late_itself_blames_nobody():
    clock = Clock()
    loop = asyncio.get_running_loop()
    async with replica(None) as engine:
        url = f"https://127.0.0.1:{engine.port}"  # as above: it never becomes usable
        up = Upstream(Endpoint(url), UpstreamConfig(), loop, now_ns=clock)
        clock.now += 30 * SECOND  # it stood still before the call ...
        heard = post(up)
        await until(lambda: engine.received)
        for _ in range(5):  # ... and after it: so far it has looked five times
            clock.now += 30 * SECOND
            up.sweep(clock.now)
        assert heard.ends == []
        clock.now += SECOND
        up.sweep(clock.now)
        assert heard.ends == [Kind.CONNECT_TIMEOUT]


@live
async def test_a_call_cancelled_while_it_connects():
    async with replica(None) as engine, calling(engine.port) as up:
        calls = []
        for turns in range(10):  # of the loop: a task, a socket, a connection, a request sent
            heard = post(up)
            calls.append(heard)
            for _ in range(turns):
                await asyncio.sleep(0)
            heard.call.cancel()
            heard.call.cancel()
            assert up.busy == 0
        engine.script = lambda c: c.say(OK)
        assert (await ask(up)).ends == ["end"]
        up.sweep(time.monotonic_ns() + 10 * SECOND)
        assert [heard.ends for heard in calls] == [[]] * 10
        for connection in engine.connections[:-1]:
            await connection.lost.wait()


class Loop:
    """The real loop with a resolver of our own."""

    def __init__(self, addresses):
        self.real = asyncio.get_running_loop()
        self.call_soon = self.real.call_soon
        self.create_task = self.real.create_task
        self.create_connection = self.real.create_connection
        self.addresses = addresses

    async def getaddrinfo(self, host, port, *, type):  # noqa: A002
        if self.addresses is None:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(0, type, 6, "", (address, port)) for address in self.addresses]


@live
async def test_a_name_is_looked_up_and_its_last_address_kept():
    loop = Loop(["127.0.0.1"])
    async with (
        replica(lambda c: c.say(OK)) as engine,
        calling(engine.port, host="engine.test", loop=loop) as up,
    ):
        assert (await ask(up)).ends == ["end"]
        assert b"\r\nhost: engine.test:" in engine.received
        loop.addresses = None
        up.sweep(time.monotonic_ns() + 60 * SECOND)
        assert up.idle == 0
        assert (await ask(up)).ends == ["end"]
        assert len(engine.connections) == 2


@live
async def test_a_name_that_does_not_exist():
    async with calling(closed_port(), host="engine.test", loop=Loop(None)) as up:
        heard = await ask(up)
        assert heard.ends == [Kind.REFUSED]
        assert heard.details == ["connect: the name was not found"]


@live
async def test_the_addresses_of_a_name_are_tried_in_turn():
    loop = Loop(["127.0.0.2", "127.0.0.1"])  # nobody listens on the first
    async with (
        replica(lambda c: c.say(OK)) as engine,
        calling(engine.port, host="engine.test", loop=loop) as up,
    ):
        assert (await ask(up)).ends == ["end"]
        assert await up._addresses.current() == ("127.0.0.1", "127.0.0.2")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ECONNREFUSED, Kind.REFUSED),
        (errno.ECONNRESET, Kind.REFUSED),
        (errno.EHOSTUNREACH, Kind.CONNECT_TIMEOUT),
        (errno.ENETUNREACH, Kind.CONNECT_TIMEOUT),
        (errno.ETIMEDOUT, Kind.CONNECT_TIMEOUT),
        (errno.EMFILE, Kind.GATEWAY_SHORTAGE),
        (errno.ENFILE, Kind.GATEWAY_SHORTAGE),
        (errno.ENOMEM, Kind.GATEWAY_SHORTAGE),
        (errno.ENOBUFS, Kind.GATEWAY_SHORTAGE),
        (errno.EADDRNOTAVAIL, Kind.GATEWAY_SHORTAGE),
    ],
)
def test_what_a_failed_connection_means(code, kind):
    assert _meaning(OSError(code, SECRET), tls=False) == (
        kind,
        _meaning(OSError(code, ""), tls=False)[1],
    )


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def server_tls(tmp_path):
    both = tmp_path / "both.pem"
    both.write_text(KEY + CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context


def trusting():
    return ssl.create_default_context(cadata=CERTIFICATE)


def test_tls_with_a_certificate_we_trust(server_tls):
    @live
    async def run():
        async with (
            replica(lambda c: c.say(OK), tls=server_tls) as engine,
            calling(
                engine.port,
                host="localhost",
                scheme="https",
                tls=trusting(),
                loop=Loop(["127.0.0.1"]),
            ) as up,
        ):
            for _ in range(3):
                assert (await ask(up)).data == b"ok"
            assert len(engine.connections) == 1
            up.close()
            await engine.connections[0].lost.wait()

    run()


@pytest.mark.parametrize(
    ("host", "trusts"),
    [("localhost", False), ("127.0.0.1", True)],
    ids=["an unknown issuer", "another name"],
)
def test_tls_with_a_certificate_we_do_not_trust_is_refused(server_tls, host, trusts):
    @live
    async def run():
        tls = trusting() if trusts else None
        loop = Loop(["127.0.0.1"])
        async with (
            replica(lambda c: c.say(OK), tls=server_tls) as engine,
            calling(engine.port, host=host, scheme="https", tls=tls, loop=loop) as up,
        ):
            heard = await ask(up, SECRET.encode())
            assert heard.ends == [Kind.REFUSED]
            assert heard.details[0].startswith("tls: ")
            assert engine.received == b""

    run()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_tls_with_a_replica_that_does_not_speak_it_is_refused(answer):
    @live
    async def run():
        def script(connection):
            connection.say(answer)
            connection.transport.close()

        async with (
            replica(script) as engine,
            calling(engine.port, scheme="https", tls=trusting()) as up,
        ):
            heard = await ask(up)
            assert heard.ends == [Kind.REFUSED]
            assert heard.details[0].startswith("tls: ")

    run()


# --- connections that break -----------------------------------------------------------------------


def break_off(how):
    return (lambda c: c.reset()) if how == "reset" else (lambda c: c.transport.close())


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_pooled_connection_that_breaks_before_a_byte_is_stale_and_a_fresh_one_reset(how):
    @live
    async def run():
        async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
            await ask(up)
            engine.script = break_off(how)
            stale = await ask(up)
            assert stale.ends == [Kind.STALE_SOCKET]
            fresh = await ask(up)
            assert fresh.ends == [Kind.RESET]
            assert (up.idle, up.busy) == (0, 0)

    run()


@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize(
    ("said", "data"),
    [
        (b"HTTP/1.1 2", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", b"abc"),
        (STREAM + b"3\r\nabc\r\n", b"abc"),
    ],
)
def test_an_answer_that_breaks_off_is_reset(how, said, data):
    @live
    async def run():
        async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
            await ask(up)  # so that the next one is on a pooled connection
            engine.script = lambda c: c.say(said)
            heard = post(up)
            if data:
                await heard.data_came.wait()
            else:
                await until(lambda: up._busy and next(iter(up._busy))._quiet_bytes)
            break_off(how)(engine.connections[0])
            await heard.over.wait()
            assert heard.ends == [Kind.RESET]
            assert heard.data == data

    run()


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_an_answer_that_ends_with_the_connection(how):
    @live
    async def run():
        async with (
            replica(lambda c: c.say(b"HTTP/1.1 200 OK\r\n\r\nabc")) as engine,
            calling(engine.port) as up,
        ):
            heard = post(up)
            await heard.data_came.wait()
            break_off(how)(engine.connections[0])
            await heard.over.wait()
            assert heard.ends == ["end" if how == "closed" else Kind.RESET]
            assert up.idle == 0

    run()


@live
async def test_an_answer_that_ends_while_its_request_is_still_being_sent():
    def script(connection):
        connection.transport.pause_reading()
        connection.say(b"HTTP/1.1 200 OK\r\n\r\nabc")
        connection.transport.write_eof()

    async with replica(script) as engine, calling(engine.port) as up:
        heard = await ask(up, b"x" * (64 << 20))
        assert heard.ends == ["end"]


@live
async def test_garbage_is_malformed():
    script = lambda c: c.say(SECRET.encode() + b"\r\n")  # noqa: E731
    async with replica(script) as engine, calling(engine.port) as up:
        heard = await ask(up)
        assert heard.ends == [Kind.MALFORMED]
        await engine.connections[0].lost.wait()
        assert (up.idle, up.busy) == (0, 0)


@live
async def test_a_head_beyond_the_bound_is_malformed():
    script = lambda c: c.say(OK[:-6] + b"\r\na: " + b"x" * 2_000 + OK[-6:])  # noqa: E731
    async with (
        replica(script) as engine,
        calling(engine.port, header_bytes_max=1_000) as strict,
        calling(engine.port) as up,
    ):
        heard = await ask(strict)
        assert heard.ends == [Kind.MALFORMED]
        assert heard.status is None
        assert (await ask(up)).ends == ["end"]


@live
async def test_a_caller_that_fails_ends_its_call_and_is_reported():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(*_):
        raise ZeroDivisionError

    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        for method in ("on_head", "on_data"):
            heard = Heard()
            setattr(heard, method, fail)
            await ask(up, heard=heard)
            assert heard.ends == [Kind.RESET]
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError] * 2


# --- cancelling and pausing -----------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", STREAM, STREAM + b"3\r\nabc\r\n"])
def test_a_cancelled_call_is_noticed_by_the_engine_and_reported_to_nobody(said):
    @live
    async def run():
        async with replica(lambda c: c.say(said)) as engine, calling(engine.port) as up:
            heard = post(up)
            if said:
                await heard.head_came.wait()
            await until(lambda: engine.received)
            heard.call.cancel()
            heard.call.cancel()
            await engine.connections[0].lost.wait()
            assert heard.ends == []
            assert (up.idle, up.busy) == (0, 0)

    run()


@live
async def test_a_call_that_is_over_cannot_touch_the_next_one_on_its_connection():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        first = await ask(up)
        second = post(up)
        first.call.cancel()
        first.call.pause()
        first.call.resume()
        await second.over.wait()
        assert second.ends == ["end"]
        assert len(engine.connections) == 1


CHUNK = b"10000\r\n" + b"x" * 65_536 + b"\r\n"


@pytest.mark.parametrize("when", ["before it is connected", "at the head"])
def test_a_paused_call_holds_the_engine_back_until_it_is_resumed(when):
    @live
    async def run():
        def script(connection):
            connection.say(STREAM + CHUNK * 256 + b"0\r\n\r\n")
            engine.script = lambda c: c.say(OK)

        class Pausing(Heard):
            def on_head(self, status, headers):
                if when == "at the head":
                    self.call.pause()
                super().on_head(status, headers)

        async with replica(script) as engine, calling(engine.port) as up:
            heard = post(up, heard=Pausing())
            if when == "at the head":
                await heard.head_came.wait()
            else:
                heard.call.pause()
                await until(lambda: engine.received)
            for _ in range(20):
                assert (await ask(up)).ends == ["end"]  # others are not held back
            assert engine.connections[0].transport.get_write_buffer_size() > 65_536
            assert len(heard.data) < 16 * 65_536
            heard.call.resume()
            await heard.over.wait()
            assert heard.ends == ["end"]
            assert len(heard.data) == 256 * 65_536

    run()


@live
async def test_a_call_that_ends_while_paused_leaves_a_connection_that_is_read():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        heard = Heard()
        heard.on_head = lambda status, headers: heard.call.pause()
        await ask(up, heard=heard)
        assert (heard.data, up.idle) == (b"ok", 1)
        engine.connections[0].transport.close()
        await until(lambda: up.idle == 0)


# --- the pool -------------------------------------------------------------------------------------


@live
async def test_connections_are_kept_and_the_youngest_used_first():
    async with replica(None) as engine, calling(engine.port) as up:
        calls = [post(up) for _ in range(3)]
        assert (up.idle, up.busy) == (0, 3)
        await connected(engine, 3)
        for number, connection in enumerate(engine.connections):
            connection.say(OK)
            await until(lambda wanted=number + 1: up.idle == wanted)
        assert [heard.ends for heard in calls] == [["end"]] * 3
        engine.script = lambda c: c.say(OK)
        for _ in range(5):
            await ask(up)
        assert [connection.requests for connection in engine.connections] == [0, 0, 5]
        assert (up.idle, up.busy) == (3, 0)


@live
async def test_a_caller_may_call_again_from_its_end_and_gets_the_same_connection():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        second = Heard()

        class Chain(Heard):
            def on_end(self):
                super().on_end()
                post(up, heard=second)

        await ask(up, heard=Chain())
        await second.over.wait()
        assert second.ends == ["end"]
        assert len(engine.connections) == 1


@live
async def test_a_connection_the_replica_closes_while_idle_is_forgotten():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        for how in ("closed", "reset"):
            await ask(up)
            assert up.idle == 1
            break_off(how)(engine.connections[-1])
            await until(lambda: up.idle == 0)
        assert (await ask(up)).ends == ["end"]


@live
async def test_idle_connections_are_closed_in_time_and_bounded_in_number():
    clock = Clock()
    loop = asyncio.get_running_loop()
    async with replica(None) as engine:
        endpoint = Endpoint(f"http://127.0.0.1:{engine.port}")
        config = UpstreamConfig(idle_s=50.0, idle_max=2)
        up = Upstream(endpoint, config, loop, now_ns=clock)
        calls = [post(up) for _ in range(3)]
        await connected(engine, 3)
        for number, connection in enumerate(engine.connections):
            clock.now += 10 * SECOND
            connection.say(OK)
            await until(lambda wanted=number + 1: sum(len(c.ends) for c in calls) == wanted)
        assert up.idle == 2
        await engine.connections[2].lost.wait()
        up.sweep(clock.now + 31 * SECOND)
        assert up.idle == 1
        up.sweep(clock.now + 40 * SECOND)
        assert up.idle == 1
        up.sweep(clock.now + 41 * SECOND)
        assert up.idle == 0
        for connection in engine.connections:
            await connection.lost.wait()


@live
async def test_close_lets_calls_go_on_and_keeps_nothing():
    async with replica(lambda c: c.say(OK)) as engine, calling(engine.port) as up:
        await ask(up)
        engine.script = lambda c: c.say(STREAM)
        running = post(up)
        await running.head_came.wait()
        engine.script = lambda c: c.say(OK)
        await ask(up)
        assert (up.idle, up.busy) == (1, 1)
        up.close()
        assert (up.idle, up.busy) == (0, 1)
        await engine.connections[1].lost.wait()
        engine.connections[0].say(b"2\r\nok\r\n0\r\n\r\n")
        await running.over.wait()
        assert (running.data, running.ends) == (b"ok", ["end"])
        assert (await ask(up)).ends == ["end"]
        assert (up.idle, up.busy) == (0, 0)


@live
async def test_abandon_cuts_the_calls_too():
    async with replica(lambda c: c.say(STREAM)) as engine, calling(engine.port) as up:
        running = post(up)
        await running.head_came.wait()
        connecting = post(up)
        up.abandon()
        assert running.ends == connecting.ends == [Kind.DRAINED]
        assert (up.idle, up.busy) == (0, 0)
        await engine.connections[0].lost.wait()
