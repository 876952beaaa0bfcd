"""Connections that are accepted one by one: a want of descriptors, and unfinished handshakes."""

import asyncio
import errno
import resource
import socket
import ssl

import pytest
import uvloop

from holdfast.acceptor import GIVEN_UP_AFTER, Acceptor, raise_descriptor_limit
from holdfast.core.intake.descriptors import OwnResource

WAIT_S = 20.0


class Echo(asyncio.Protocol):
    """Says what it hears."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Listener:
    """A listening socket whose accepts may fail first."""

    def __init__(self, *troubles):
        self.real = socket.socket()
        self.real.bind(("127.0.0.1", 0))
        self.port = self.real.getsockname()[1]
        self.troubles = list(troubles)

    def __getattr__(self, name):
        return getattr(self.real, name)

    def accept(self):
        if self.troubles:
            raise OSError(self.troubles.pop(0), "planted")
        return self.real.accept()


def play(test, listener, **given):
    async def main():
        lacked = []
        acceptor = Acceptor(
            listener, Echo, asyncio.get_running_loop(), on_shortage=lacked.append, **given
        )
        try:
            await test(acceptor, listener.port, lacked)
        finally:
            acceptor.close()
            acceptor.close()
            await acceptor.wait_closed()
            assert acceptor.unfinished == 0

    uvloop.run(main())


async def echo(port, tls=None):
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(b"hello")
        heard = await reader.readexactly(5)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return heard


async def until(true):
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - conditions of the acceptor's
            await asyncio.sleep(0.002)


def test_who_connects_is_served_without_delay():
    async def test(acceptor, port, lacked):
        assert await echo(port) == b"hello"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        nodelay = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert nodelay
        writer.close()
        assert lacked == []

    play(test, Listener())


@pytest.mark.parametrize(
    ("number", "resource_"),
    [
        (errno.EMFILE, OwnResource.DESCRIPTORS),
        (errno.ENFILE, OwnResource.DESCRIPTORS),
        (errno.ENOBUFS, OwnResource.MEMORY),
        (errno.ENOMEM, OwnResource.MEMORY),
    ],
)
def test_a_client_waits_while_something_is_missing_and_is_served_then(number, resource_):
    async def test(acceptor, port, lacked):
        assert await echo(port) == b"hello"
        assert lacked == [resource_] * 3

    play(test, Listener(number, number, number))


def test_a_client_that_left_before_it_was_accepted_is_no_shortage():
    async def test(acceptor, port, lacked):
        assert await echo(port) == b"hello"
        assert lacked == []

    play(test, Listener(errno.ECONNABORTED, errno.EPROTO))


def test_nobody_is_accepted_while_there_is_no_place():
    places = [False] * 3 + [True] * 9

    async def test(acceptor, port, lacked):
        assert await echo(port) == b"hello"
        assert len(places) < 9

    play(test, Listener(), spare=lambda _: places.pop(0) if places else True)


def test_what_waits_in_the_queue_is_accepted_before_the_end():
    async def test(acceptor, port, lacked):
        peer = socket.create_connection(("127.0.0.1", port))
        acceptor.close()
        peer.sendall(b"hello")
        peer.setblocking(False)
        async with asyncio.timeout(WAIT_S):
            assert await asyncio.get_running_loop().sock_recv(peer, 5) == b"hello"
        peer.close()

    play(test, Listener())


# --- TLS ------------------------------------------------------------------------------------------


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def tls(own, tmp_path):
    """The contexts of a server and of a client who trusts it."""
    certificate, key = own.write(tmp_path, "own")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    client.check_hostname = False
    return server, client


def test_unfinished_handshakes_have_a_bound_and_the_oldest_goes(tls):
    server, client = tls
    clock = Clock()

    async def test(acceptor, port, lacked):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: acceptor.unfinished == 3)
        asked = asyncio.create_task(echo(port, client))
        await asyncio.sleep(0.1)
        assert not asked.done(), "it waits for a place"
        clock.now += GIVEN_UP_AFTER
        assert await asked == b"hello"
        assert acceptor.given_up == 1
        async with asyncio.timeout(WAIT_S):
            assert await silent[0][0].read() == b"", "the oldest was closed"
        for _, writer in silent:
            writer.close()

    play(test, Listener(), tls=server, handshakes_max=3, now_ns=clock)


def test_a_handshake_that_takes_too_long_is_ended(tls):
    server, _ = tls

    async def test(acceptor, port, lacked):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        await until(lambda: acceptor.failed == 1)
        writer.close()

    play(test, Listener(), tls=server, handshake_s=0.05)


def test_what_is_no_handshake_is_counted_and_harms_nobody(tls):
    server, client = tls

    async def test(acceptor, port, lacked):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 9)
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(reader.read(), return_exceptions=True)
        await until(lambda: acceptor.failed == 1)
        assert await echo(port, client) == b"hello"
        writer.close()

    play(test, Listener(), tls=server)


# --- the limit on open files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit", "is_set"),
    [
        (1_024, 4_096, 65_536, 4_096, (4_096, 4_096)),
        (1_024, 1 << 30, 65_536, 65_536, (65_536, 1 << 30)),
        (1_024, resource.RLIM_INFINITY, 65_536, 65_536, (65_536, resource.RLIM_INFINITY)),
        (1 << 20, 1 << 20, 65_536, 1 << 20, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 65_536, 65_536, None),
    ],
)
def test_the_limit_is_raised_as_far_as_it_is_wanted(monkeypatch, soft, hard, wanted, limit, is_set):
    seen = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: seen.append(both))
    assert raise_descriptor_limit(wanted) == limit
    assert seen == ([is_set] if is_set else [])


def test_a_limit_that_is_stated_and_not_granted_stays(monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_descriptor_limit(65_536) == 256
