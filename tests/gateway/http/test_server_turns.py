"""Requests that were read and wait for the end of their turn, and what happens meanwhile."""

import pytest

from holdfast.config.gateway import HttpConfig
from holdfast.gateway.http.server import Server
from turns import Later

SECOND = 10**9
ASK = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


class App:
    """Answers the next request when it is told to."""

    def __init__(self):
        self.asked = []

    def on_head(self, exchange):
        pass

    def on_request(self, exchange):
        self.asked.append(exchange)
        exchange.listener = self
        self.gone = False

    def on_client_gone(self):
        self.gone = True

    def answer(self):
        self.asked.pop(0).respond(200, b"", b"ok")


class Wire:
    def __init__(self):
        self.sent = b""
        self.closed = self.aborted = False

    def get_extra_info(self, name):
        """Nothing is known of the peer."""

    def write(self, data):
        assert not self.closed
        self.sent += data

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high):
        assert high


class Served:
    """One connection that was answered once and is idle."""

    def __init__(self):
        self.loop, self.app, self.now = Later(), App(), SECOND
        self.server = Server(self.app, HttpConfig(), loop=self.loop, now_ns=lambda: self.now)
        self.wire = Wire()
        self.connection = self.server.protocol()
        self.connection.connection_made(self.wire)
        self.read(ASK)
        self.finish()
        self.wire.sent = b""
        assert self.connection in self.server.idle

    def read(self, data):
        self.connection.data_received(data)

    def finish(self):
        self.loop.end_turn()
        self.app.answer()
        self.loop.end_turn()


def test_a_request_is_begun_when_all_was_read():
    one = Served()
    one.read(ASK[:30])
    one.read(ASK[30:])
    assert not one.app.asked
    one.finish()
    assert one.wire.sent.endswith(b"ok")


def test_draining_finds_a_request_that_was_read_before():
    one = Served()
    one.read(ASK)
    one.server.drain()
    assert len(one.app.asked) == 1
    one.finish()
    assert b"connection: close" in one.wire.sent
    assert one.wire.sent.endswith(b"ok")


def test_what_has_come_is_not_late():
    one = Served()
    one.read(ASK)
    one.now += 3600 * SECOND
    one.server.sweep(one.now)
    assert not one.wire.closed
    one.finish()
    assert one.wire.sent.endswith(b"ok")


@pytest.mark.parametrize("end", ["eof", "lost"])
def test_a_client_that_asks_and_leaves_is_heard_in_that_order(end):
    one = Served()
    one.read(ASK)
    if end == "eof":
        one.connection.eof_received()
    else:
        one.connection.connection_lost(None)
    assert len(one.app.asked) == 1
    assert one.app.gone


def test_nothing_is_begun_for_a_connection_that_was_broken_meanwhile():
    one = Served()
    one.read(ASK)
    one.connection.drop()
    one.loop.end_turn()
    assert not one.app.asked


def test_a_fault_of_ours_ends_its_connection_alone():
    one = Served()
    other = Wire()
    neighbour = one.server.protocol()
    neighbour.connection_made(other)
    one.connection._intake = None  # whatever it is
    one.read(ASK)
    neighbour.data_received(ASK)
    one.loop.end_turn()
    assert one.wire.aborted
    assert len(one.loop.troubles) == 1
    one.app.answer()
    one.loop.end_turn()
    assert other.sent.endswith(b"ok")


@pytest.mark.parametrize("pieces", [[b"cd"], [b"c", b"d"]])
def test_a_body_that_came_while_the_client_did_not_read_stays_in_order(pieces):
    """An answer fills the buffer in the turn that begins the next request."""
    served = Served()
    served.read(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na")
    served.loop.end_turn()
    served.connection.pause_writing()
    served.read(b"b")
    served.loop.end_turn()
    served.connection.resume_writing()
    for piece in pieces:
        served.read(piece)
        served.loop.end_turn()
    assert [exchange.body for exchange in served.app.asked] == [b"abcd"]


def test_a_body_that_was_complete_before_the_client_read_again_is_answered():
    served = Served()
    served.read(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
    served.loop.end_turn()
    served.connection.pause_writing()
    served.read(b"ab")
    served.loop.end_turn()
    assert not served.app.asked
    served.connection.resume_writing()
    assert [exchange.body for exchange in served.app.asked] == [b"ab"]
