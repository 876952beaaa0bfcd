import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.http.loop_turn import (
    BYTES_MAX,
    CONNECTIONS_MAX,
    READ_BYTES_MAX,
    READS_MAX,
    LoopTurn,
)
from turns import Later


class Wire:
    def __init__(self):
        self.calls = []
        self.closing = False
        self.aborted = False
        self.then = None

    @property
    def sent(self):
        return b"".join(self.calls)

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.calls.append(data)
        if self.then is not None:
            self.then()

    def writelines(self, parts):
        self.write(b"".join(parts))

    def abort(self):
        self.aborted = self.closing = True


def made():
    loop = Later()
    return LoopTurn(loop), loop


def test_what_a_turn_writes_is_sent_at_its_end_in_one_call_for_each():
    turn, loop = made()
    first, second = Wire(), Wire()
    turn.put(first, b"head", b"body")
    turn.put(second, b"other")
    turn.put(first, b"more")
    assert not first.calls
    assert not second.calls
    assert turn.holds(first)
    loop.end_turn()
    assert first.calls == [b"headbodymore"]
    assert second.calls == [b"other"]
    assert not turn.holds(first)


def test_each_turn_ends_once_however_much_was_written():
    turn, loop = made()
    for _ in range(5):
        turn.put(Wire(), b"x")
    assert len(loop.soon) == 1
    loop.end_turn()
    turn.put(Wire(), b"x")
    assert len(loop.soon) == 1


def test_one_that_is_about_to_close_is_sent_its_part_and_the_others_wait():
    turn, loop = made()
    leaving, staying = Wire(), Wire()
    turn.put(leaving, b"last words")
    turn.put(staying, b"x")
    turn.send(leaving)
    assert leaving.sent == b"last words"
    assert staying.sent == b""
    turn.send(leaving)  # nothing is left
    loop.end_turn()
    assert (leaving.sent, staying.sent) == (b"last words", b"x")


def test_what_nobody_wants_is_not_sent():
    turn, loop = made()
    wire = Wire()
    turn.put(wire, b"x")
    turn.forget(wire)
    turn.forget(Wire())
    loop.end_turn()
    assert not wire.calls


def test_nothing_is_written_to_what_is_closing():
    turn, loop = made()
    wire = Wire()
    turn.put(wire, b"x")
    wire.closing = True
    loop.end_turn()
    assert not wire.calls


def test_one_that_fails_does_not_take_the_others_along():
    def fail():
        raise RuntimeError("the handler is closed")

    turn, loop = made()
    bad, good = Wire(), Wire()
    bad.then = fail
    turn.put(bad, b"x")
    turn.put(good, b"y")
    loop.end_turn()
    assert bad.aborted
    assert good.sent == b"y"


def test_what_is_put_while_sending_is_sent_in_the_next_turn():
    turn, loop = made()
    first, second = Wire(), Wire()
    first.then = lambda: turn.put(second, b"y")
    turn.put(first, b"x")
    loop.end_turn()
    assert second.sent == b""
    loop.end_turn()
    assert second.sent == b"y"


def test_more_bytes_than_the_bound_are_not_kept():
    turn, loop = made()
    wire = Wire()
    for _ in range(3):
        turn.put(wire, b"x" * (BYTES_MAX // 2))
    assert len(wire.sent) == 3 * (BYTES_MAX // 2)
    turn.put(wire, b"y")
    assert wire.sent[-1:] == b"x"
    loop.end_turn()
    assert wire.sent[-1:] == b"y"


def test_nobody_waits_for_very_many_others():
    turn, loop = made()
    wires = [Wire() for _ in range(CONNECTIONS_MAX)]
    for wire in wires:
        assert not wires[0].calls
        turn.put(wire, b"x")
    assert all(wire.sent == b"x" for wire in wires)
    assert len(loop.soon) == 1


# --- what was read --------------------------------------------------------------------------------


class Reader:
    def __init__(self, log, name=""):
        self.log, self.name = log, name
        self.then = None
        self.broken = False

    def take(self, data):
        self.log.append((self.name, data))
        if self.then is not None:
            self.then()

    def break_off(self):
        self.broken = True


def test_what_was_read_is_handled_in_order_and_its_answers_are_sent_with_it():
    turn, loop = made()
    log, wire = [], Wire()
    one, two = Reader(log, "one"), Reader(log, "two")
    two.then = lambda: turn.put(wire, b"answer")
    turn.received(one, b"a")
    turn.received(two, b"b")
    turn.received(one, b"c")
    assert (log, len(loop.soon)) == ([], 1)
    loop.end_turn()
    assert log == [("one", b"a"), ("two", b"b"), ("one", b"c")]
    assert wire.sent == b"answer"
    assert not loop.soon


def test_who_handles_may_catch_up_with_the_rest():
    turn, loop = made()
    log = []
    one, two = Reader(log, "one"), Reader(log, "two")
    one.then = turn.catch_up
    for data in (b"a", b"b"):
        turn.received(one, data)
        turn.received(two, data)
    loop.end_turn()
    assert log == [("one", b"a"), ("two", b"a"), ("one", b"b"), ("two", b"b")]


def test_a_read_that_fails_ends_its_connection_and_the_others_are_handled():
    turn, loop = made()
    log = []
    bad, good = Reader(log, "bad"), Reader(log, "good")
    bad.then = lambda: 1 / 0
    turn.received(bad, b"x")
    turn.received(good, b"y")
    loop.end_turn()
    assert log == [("bad", b"x"), ("good", b"y")]
    assert (bad.broken, good.broken) == (True, False)
    assert [type(each["exception"]) for each in loop.troubles] == [ZeroDivisionError]
    turn.received(good, b"z")  # and turns go on
    loop.end_turn()
    assert log[-1] == ("good", b"z")


@pytest.mark.parametrize(
    ("reads", "size"),
    [(READS_MAX, 1), (BYTES_MAX // READ_BYTES_MAX + 1, READ_BYTES_MAX), (1, READ_BYTES_MAX + 1)],
)
def test_more_than_the_bounds_is_handled_at_once(reads, size):
    turn, loop = made()
    log = []
    for count in range(reads):
        assert not log, count
        turn.received(Reader(log), b"x" * size)
    assert len(log) == reads
    assert len(loop.soon) == 1


@given(st.lists(st.tuples(st.sampled_from(["read", "read", "catch up", "end"]), st.integers(0, 3))))
def test_each_read_is_handled_once_and_in_order_whatever_comes_between(actions):
    turn, loop = made()
    log, expected = [], []
    readers = [Reader(log, number) for number in range(4)]
    readers[3].then = turn.catch_up
    for count, (action, number) in enumerate(actions):
        if action == "read":
            turn.received(readers[number], b"%d" % count)
            expected.append((number, b"%d" % count))
        elif action == "catch up":
            turn.catch_up()
        else:
            loop.end_turn()
        if action != "read":
            assert log == expected
    loop.end_turn()
    assert log == expected


# --- all of it ------------------------------------------------------------------------------------

ACTIONS = st.tuples(
    st.sampled_from(["put", "put", "put", "send", "forget", "end", "close"]),
    st.integers(0, 3),
    st.binary(min_size=1, max_size=9),
)


@given(st.lists(ACTIONS, max_size=60))
def test_each_hears_all_of_its_own_in_order_or_nothing_after_it_closed(actions):
    turn, loop = made()
    wires = [Wire() for _ in range(4)]
    settled, waiting = [b""] * 4, [b""] * 4
    for action, number, data in actions:
        wire = wires[number]
        if action == "put":
            turn.put(wire, data)
            waiting[number] += data
        elif action == "send":
            turn.send(wire)
        elif action == "forget":
            turn.forget(wire)
            waiting[number] = b""
        elif action == "close":
            wire.closing = True
        else:
            loop.end_turn()
        for each in range(4):
            if action == "end" or (action == "send" and each == number):
                if not wires[each].closing:
                    settled[each] += waiting[each]
                waiting[each] = b""
            assert wires[each].sent == settled[each]
            assert turn.holds(wires[each]) == bool(waiting[each])


@pytest.mark.parametrize("size", [10, 200_000])
def test_on_a_real_loop_all_arrives(size):
    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            turn.received(self, data)

        def take(self, data):
            turn.put(self.transport, data[:1], data[1:])

    async def one(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * size)
        heard = await asyncio.wait_for(reader.readexactly(size), 10)
        writer.close()
        return heard

    async def run():
        nonlocal turn
        loop = asyncio.get_running_loop()
        turn = LoopTurn(loop)
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        heard = await asyncio.gather(*(one(port) for _ in range(CONNECTIONS_MAX + 6)))
        server.close()
        return heard

    turn = None
    assert set(asyncio.run(run())) == {b"x" * size}
