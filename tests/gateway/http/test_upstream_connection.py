"""A connection driven by hand: the reads are chosen here, there is no socket."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.gateway import UpstreamConfig
from holdfast.core.failure import Kind
from holdfast.gateway.http.head_cache import HeadCache
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.upstream import Endpoint, Upstream
from holdfast.gateway.http.upstream_connection import UpstreamConnection
from turns import AtOnce, Later

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD_BYTES_MAX = 4_096
SECRET = b"hunter2"


class Owner:
    def __init__(self):
        self.kept = []
        self.lost_ones = 0
        self.heads = HeadCache()

    def opened(self, connection):
        pass

    def finished(self, connection, *, keep):
        self.kept.append(keep)

    def lost(self, connection):
        self.lost_ones += 1


class Transport:
    def __init__(self):
        self.sent = b""
        self.closed = False

    def write(self, data):
        self.sent += data

    def writelines(self, parts):
        self.write(b"".join(parts))

    def abort(self):
        self.closed = True

    close = abort

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0


class Heard:
    def __init__(self):
        self.heads = []
        self.data = b""
        self.ends = []
        self.cancel_at = ""
        self.running = None

    def on_head(self, status, headers):
        assert not self.ends
        self.heads.append((status, headers))
        self._maybe_cancel("head")

    def on_data(self, data):
        assert data
        assert self.heads
        assert not self.ends
        self.data += data
        self._maybe_cancel("data")

    def on_end(self):
        self.ends.append("end")

    def on_failure(self, kind, detail):
        assert SECRET.decode() not in detail
        self.ends.append(kind)

    def _maybe_cancel(self, where):
        if self.cancel_at == where:
            self.running.cancel()


class OnlyParsed(UpstreamConnection):
    """The same without the short way."""

    def take(self, data):
        if self._caller is None:
            super().take(data)
        else:
            self.untaken -= 1
            self._parse(self._caller, data)


def hear(reads, *, bodyless=False, eof=False, cancel_at="", kind=UpstreamConnection):
    owner, heard, transport = Owner(), Heard(), Transport()
    connection = kind(owner, HEAD_BYTES_MAX, LoopTurn(AtOnce()))
    heard.cancel_at = cancel_at
    heard.running = connection.begin(heard, b"GET / HTTP/1.1\r\n\r\n", b"", bodyless=bodyless)
    connection.connection_made(transport)
    for read in reads:
        if not transport.closed:
            connection.data_received(read)
    if eof and not transport.closed:
        connection.eof_received()
    return heard, owner, transport


def chunk(payload):
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def cuts(whole, places):
    edges = [0, *sorted(places), len(whole)]
    return [whole[begin:end] for begin, end in pairwise(edges) if begin < end]


EVENT = b'data: {"token":"x"}\n\n'
STREAM = HEAD + chunk(EVENT) * 3 + b"0\r\n\r\n"


def test_a_stream_cut_anywhere_is_the_same_stream():
    for place in range(1, len(STREAM)):
        heard, owner, _ = hear(cuts(STREAM, [place]))
        assert heard.data == EVENT * 3, place
        assert heard.ends == ["end"], place
        assert owner.kept == [True], place


def test_a_stream_cut_anywhere_after_its_first_chunks_is_the_same_stream():
    begun = HEAD + chunk(EVENT)
    rest = chunk(EVENT) * 2 + b"0\r\n\r\n"
    for place in range(1, len(rest)):
        heard, owner, _ = hear([begun, chunk(EVENT), *cuts(rest, [place])])
        assert heard.data == EVENT * 4, place
        assert heard.ends == ["end"], place
        assert owner.kept == [True], place


def test_a_stream_byte_by_byte_is_the_same_stream():
    heard, owner, _ = hear([STREAM[place : place + 1] for place in range(len(STREAM))])
    assert heard.heads == [
        (200, {b"content-type": b"text/event-stream", b"transfer-encoding": b"chunked"})
    ]
    assert heard.data == EVENT * 3
    assert heard.ends == ["end"]
    assert owner.kept == [True]


def test_the_chunks_of_one_read_reach_the_caller_as_one_piece():
    pieces = []
    owner, heard = Owner(), Heard()
    heard.on_data = pieces.append
    connection = UpstreamConnection(owner, HEAD_BYTES_MAX, LoopTurn(AtOnce()))
    connection.begin(heard, b"", b"", bodyless=False)
    connection.connection_made(Transport())
    connection.data_received(HEAD + chunk(b"a\n\n") * 2)
    connection.data_received(chunk(b"b\n\n") * 3)
    connection.data_received(chunk(b"c\n\n"))
    assert pieces == [b"a\n\n" * 2, b"b\n\n" * 3, b"c\n\n"]


# Payloads that look like framing are the ones that could mislead.
LOOKS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"5\r\n", b"0\r\n\r\n", chunk(b"x\n\n"), EVENT])
PAYLOAD = st.one_of(st.binary(min_size=1, max_size=40), st.lists(LOOKS, min_size=1).map(b"".join))


@st.composite
def chunks(draw):
    payload = draw(PAYLOAD)
    size = draw(st.sampled_from([b"%x", b"%X", b"00%x"])) % len(payload)
    extension = draw(st.sampled_from([b"", b"", b"", b";a=b", b";a"]))
    return payload, size + extension + b"\r\n" + payload + b"\r\n"


@st.composite
def streams(draw):
    """Payload, bytes and where to cut them; often between two chunks, as engines do."""
    parts = draw(st.lists(chunks(), max_size=6))
    trailer = draw(st.sampled_from([b"", b"", b"x-took: 5\r\ncontent-type: other\r\n"]))
    wire = HEAD
    edges = [len(wire)]
    for _, framed in parts:
        wire += framed
        edges.append(len(wire))
    wire += b"0\r\n" + trailer + b"\r\n"
    places = draw(st.sets(st.sampled_from(edges)))
    places |= draw(st.sets(st.integers(1, len(wire) - 1), max_size=6))
    return b"".join(payload for payload, _ in parts), wire, places


@given(streams())
@settings(max_examples=400)
def test_any_cutting_of_a_chunked_response_yields_its_payload_and_one_end(stream):
    payload, wire, places = stream
    heard, owner, _ = hear(cuts(wire, places))
    assert heard.data == payload
    assert heard.ends == ["end"]
    assert [status for status, _ in heard.heads] == [200]
    assert heard.heads[0][1][b"content-type"] == b"text/event-stream"  # a trailer changes nothing
    assert owner.kept == [True]


@given(streams(), st.integers(0, 10**6), st.sampled_from([b"", b"\r", b"\n", b"0", b"x", b"\n\n"]))
@settings(max_examples=400)
def test_the_short_way_judges_as_the_parser_does(stream, place, put):
    _, wire, places = stream
    place %= len(wire)
    damaged = wire[:place] + put + wire[place + 1 :]
    reads = cuts(damaged, {place for place in places if place < len(damaged)})
    short, short_owner, _ = hear(reads, eof=True)
    parsed, parsed_owner, _ = hear(reads, eof=True, kind=OnlyParsed)
    assert short.heads == parsed.heads
    assert short.data == parsed.data
    assert short.ends == parsed.ends
    assert short_owner.kept == parsed_owner.kept


@pytest.mark.parametrize(
    "line", [b"+5", b" 5", b"5 ", b"0x5", b"1_0", b"-5", b"", b"5\n", b"g", b"5\r", b"f" * 17]
)
def test_a_chunk_size_that_is_none_is_malformed(line):
    heard, _, transport = hear([HEAD + chunk(EVENT), line + b"\r\nabcde\r\n"])
    assert heard.data == EVENT
    assert heard.ends == [Kind.MALFORMED]
    assert transport.closed


@pytest.mark.parametrize("read", [b"5\r\nabcdeXY", b"5\r\nabcdef\r\n", b"5\r\nabcd\r\n\r\n"])
def test_a_chunk_of_another_length_than_it_says_is_malformed(read):
    heard, _, _ = hear([HEAD + chunk(EVENT), read])
    assert heard.ends == [Kind.MALFORMED]


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-" + SECRET,
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/3.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + SECRET + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\x00" + SECRET + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + SECRET,
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 099 What\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\ncontent-length: 5\r\n\r\nabcde",
        b"HTTP/1.1 103 Hints\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + SECRET + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * HEAD_BYTES_MAX,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 200,
    ],
)
@pytest.mark.parametrize("step", [100_000, 500])
def test_what_is_not_a_response_is_malformed(wire, step):
    heard, owner, transport = hear([wire[at : at + step] for at in range(0, len(wire), step)])
    assert heard.ends == [Kind.MALFORMED]
    assert transport.closed
    assert owner.kept == [False]


@pytest.mark.parametrize("endless", [b"5;" + b"x" * 998, b"0\r\n" + b"a: b\r\n" * 166, b"0\r\na"])
def test_framing_without_end_is_malformed(endless):
    more = b"y" * 1_000 if endless[-1:] != b"\n" else b"a: b\r\n" * 166
    heard, owner, _ = hear([HEAD + chunk(EVENT), endless, *[more] * 5])
    assert heard.data == EVENT
    assert heard.ends == [Kind.MALFORMED]
    assert owner.kept == [False]


def test_a_short_head_with_a_long_body_in_one_read_is_no_long_head():
    body = b"x" * HEAD_BYTES_MAX * 2
    heard, _, _ = hear([b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body])
    assert heard.data == body
    assert heard.ends == ["end"]


def test_a_head_just_within_the_bound_passes_and_its_bytes_are_not_held_against_the_body():
    head = HEAD[:-2] + b"a: " + b"x" * (HEAD_BYTES_MAX - len(HEAD) - 7) + b"\r\n\r\n"
    heard, _, _ = hear([head, b"000000000005", b"\r\n", b"abcde\r\n0\r\n\r\n"])
    assert heard.data == b"abcde"
    assert heard.ends == ["end"]


def test_interim_responses_are_skipped():
    interim = b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    for reads in ([interim + final], [interim, final]):
        heard, owner, _ = hear(reads)
        assert heard.heads == [(200, {b"content-length": b"2"})]
        assert heard.ends == ["end"]
        assert owner.kept == [True]


def test_repeated_and_empty_headers():
    heard, _, _ = hear([b"HTTP/1.1 200 OK\r\nA: 1\r\nEmpty:\r\na: 2\r\nContent-Length: 0\r\n\r\n"])
    assert heard.heads == [(200, {b"a": b"1, 2", b"empty": b"", b"content-length": b"0"})]


@pytest.mark.parametrize(
    "surplus", [b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", b"H"]
)
def test_what_follows_a_complete_response_is_dropped_with_the_connection(surplus):
    heard, owner, transport = hear([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" + surplus])
    assert heard.data == b"ok"
    assert len(heard.heads) == 1
    assert heard.ends == ["end"]
    assert owner.kept == [False]
    assert transport.closed


def test_an_idle_connection_that_speaks_is_closed():
    heard, owner, transport = hear([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"more"])
    assert heard.ends == ["end"]
    assert owner.lost_ones == 1
    assert transport.closed


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_a_connection_the_replica_will_close_is_not_kept(head):
    heard, owner, _ = hear([head])
    assert heard.ends == ["end"]
    assert owner.kept == [False]


@pytest.mark.parametrize(
    ("head", "bodyless", "kept"),
    [
        (b"HTTP/1.1 204 None\r\n\r\n", False, True),
        (b"HTTP/1.1 304 Same\r\n\r\n", False, True),
        (b"HTTP/1.1 304 Same\r\ncontent-length: 10\r\n\r\n", False, False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", True, False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", True, False),
        (b"HTTP/1.1 200 OK\r\n\r\n", True, False),
    ],
)
def test_a_response_without_a_body_ends_with_its_head(head, bodyless, kept):
    heard, owner, _ = hear([head], bodyless=bodyless)
    assert len(heard.heads) == 1
    assert heard.ends == ["end"]
    assert owner.kept == [kept]


def test_what_was_sound_is_delivered_before_what_is_not():
    heard, _, _ = hear([HEAD + chunk(EVENT) + b"rubbish"])
    assert heard.data == EVENT
    assert heard.ends == [Kind.MALFORMED]


@pytest.mark.parametrize(
    ("wire", "end"),
    [
        (b"", Kind.RESET),
        (b"HTTP/1.1 200", Kind.RESET),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Kind.RESET),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", Kind.RESET),
        (HEAD, Kind.RESET),
        (HEAD + chunk(EVENT), Kind.RESET),
        (HEAD + chunk(EVENT) + b"0\r\n", Kind.RESET),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Kind.RESET),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "end"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "end"),
    ],
)
def test_how_the_end_of_the_connection_is_read(wire, end):
    heard, owner, transport = hear([wire] if wire else [], eof=True)
    assert heard.ends == [end]
    assert owner.kept == [False]
    assert transport.closed


@pytest.mark.parametrize("where", ["head", "data"])
def test_a_caller_may_cancel_in_the_middle_of_a_read(where):
    heard, owner, transport = hear([STREAM], cancel_at=where)
    assert heard.ends == []
    assert heard.data == (b"" if where == "head" else EVENT * 3)
    assert transport.closed
    assert owner.kept == [False]


def test_a_caller_may_cancel_in_a_whole_chunk():
    heard, owner, transport = hear([HEAD, chunk(b"a\n\n"), chunk(EVENT)], cancel_at="data")
    assert heard.data == b"a\n\n"
    assert heard.ends == []
    assert transport.closed
    assert owner.kept == [False]


def test_one_parser_serves_many_responses():
    owner, transport = Owner(), Transport()
    connection = UpstreamConnection(owner, HEAD_BYTES_MAX, LoopTurn(AtOnce()))
    calls = []
    for number in range(20):
        heard = Heard()
        calls.append(heard)
        connection.begin(heard, b"x", b"", bodyless=False)
        if number == 0:
            connection.connection_made(transport)
        for read in (HEAD, chunk(EVENT), chunk(EVENT), b"0\r\n\r\n"):
            connection.data_received(read)
    assert [heard.data for heard in calls] == [EVENT * 2] * 20
    assert owner.kept == [True] * 20


PLAIN = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class Taught:
    """Connections to a replica that has answered once."""

    def __init__(self, status=200, first=b"{}"):
        self.owner = Owner()
        self.ask([PLAIN % (status, len(first), first)])

    def ask(self, reads, *, parser=None, bodyless=False, cancel_at=""):
        heard, transport = Heard(), Transport()
        connection = UpstreamConnection(self.owner, HEAD_BYTES_MAX, LoopTurn(AtOnce()))
        heard.cancel_at = cancel_at
        heard.running = connection.begin(heard, b"x", b"", bodyless=bodyless)
        connection.connection_made(transport)
        if parser is not None:
            connection._parser = parser
        for read in reads:
            connection.data_received(read)
        return heard, transport


class Untouched:
    """A parser that must not be needed."""

    def feed_data(self, data):
        raise AssertionError(f"{len(data)} bytes were parsed")


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 90_000])
def test_a_whole_answer_whose_head_came_before_is_not_parsed(status, body):
    replica = Taught(status)
    heard, transport = replica.ask([PLAIN % (status, len(body), body)], parser=Untouched())
    told = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
    assert heard.heads == [(status, told)]
    assert heard.data == body
    assert heard.ends == ["end"]
    assert replica.owner.kept == [True, True]
    assert not transport.closed


def test_an_answer_with_a_known_head_may_come_in_pieces():
    whole = PLAIN % (200, 5, b"whole")
    for place in range(1, len(whole)):
        replica = Taught()
        heard, _ = replica.ask([whole[:place], whole[place:]])
        assert heard.data == b"whole", place
        assert heard.ends == ["end"], place
        assert replica.owner.kept == [True, True], place


def test_what_follows_an_answer_with_a_known_head_breaks_the_connection():
    replica = Taught()
    whole = PLAIN % (200, 5, b"whole")
    heard, transport = replica.ask([whole + whole])
    assert heard.data == b"whole"
    assert heard.ends == ["end"]
    assert transport.closed
    assert replica.owner.kept == [True, False]


def test_the_answer_to_head_has_no_body_whatever_its_head_states():
    replica = Taught()
    for length, sent in ((0, b""), (5, b""), (5, b"whole")):
        heard, _ = replica.ask([PLAIN % (200, length, sent)], bodyless=True)
        assert heard.data == b""
        assert heard.ends == ["end"]


@pytest.mark.parametrize("cancel_at", ["head", "data"])
def test_an_answer_with_a_known_head_may_be_cancelled_at_any_step(cancel_at):
    replica = Taught()
    heard, transport = replica.ask([PLAIN % (200, 5, b"whole")], cancel_at=cancel_at)
    assert len(heard.heads) == 1
    assert heard.data == (b"" if cancel_at == "head" else b"whole")
    assert heard.ends == []
    assert transport.closed
    assert replica.owner.kept == [True, False]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN % (200, 2, b"{}"),
        b"\r\n" + PLAIN % (200, 2, b"{}"),
        HEAD + b"2\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_only_heads_that_say_all_by_themselves_are_known_again(answer):
    owner, heard = Owner(), Heard()
    connection = UpstreamConnection(owner, HEAD_BYTES_MAX, LoopTurn(AtOnce()))
    connection.begin(heard, b"x", b"", bodyless=False)
    connection.connection_made(Transport())
    connection.data_received(answer)
    assert heard.data == b"{}"
    assert owner.heads.said is None


def test_a_head_within_a_head_is_not_known_again():
    replica = Taught()
    heard, _ = replica.ask([b"HTTP/1.1 200 OK\r\nx: ", PLAIN % (200, 2, b"{}")])
    assert heard.data == b"{}"
    assert heard.heads[0][1][b"x"].startswith(b"HTTP/1.1 200 OK")
    heard, _ = replica.ask([PLAIN % (200, 2, b"{}")])
    assert b"x" not in heard.heads[0][1]


def test_a_connection_that_answers_what_was_not_sent_yet_is_not_kept():
    class Never:
        """Its turns do not end."""

        def call_soon(self, callback):
            pass

    owner, heard, transport = Owner(), Heard(), Transport()
    connection = UpstreamConnection(owner, HEAD_BYTES_MAX, LoopTurn(AtOnce()))
    connection.begin(heard, b"first", b"", bodyless=False)
    connection.connection_made(transport)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert owner.kept == [True]
    connection._turn = LoopTurn(Never())
    connection.begin(Heard(), b"second", b"", bodyless=False)
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
    connection._turn.catch_up()
    assert owner.kept == [True, False]  # or its next caller would get the answer to "second"
    assert transport.closed
    assert transport.sent == b"first"


def begun(loop):
    """A call whose reads wait for the end of a turn."""
    owner, heard, transport = Owner(), Heard(), Transport()
    connection = UpstreamConnection(owner, HEAD_BYTES_MAX, LoopTurn(loop))
    heard.running = connection.begin(heard, b"request", b"body", bodyless=False)
    connection.connection_made(transport)
    return owner, heard, transport, connection


def test_a_call_that_is_cancelled_in_its_turn_is_never_sent():
    loop = Later()
    _, heard, transport, _ = begun(loop)
    heard.running.cancel()
    loop.end_turn()
    assert transport.sent == b""
    assert transport.closed


@pytest.mark.parametrize("end", ["eof", "lost", "reset"])
def test_what_was_read_counts_before_the_end_that_came_with_it(end):
    loop = Later()
    owner, heard, _, connection = begun(loop)
    loop.end_turn()
    connection.data_received(PLAIN % (200, 2, b"{}"))
    assert not heard.heads
    if end == "eof":
        connection.eof_received()
    else:
        connection.connection_lost(ConnectionResetError(104, "") if end == "reset" else None)
    assert heard.data == b"{}"
    assert heard.ends == ["end"]
    loop.end_turn()
    assert heard.ends == ["end"]
    assert owner.kept == [True]


def test_what_comes_behind_a_response_is_not_taken_for_the_next_one():
    loop = Later()
    owner, heard, transport, connection = begun(loop)
    loop.end_turn()
    connection.data_received(PLAIN % (200, 2, b"{}"))
    connection.data_received(PLAIN % (200, 6, b'"mine"'))
    loop.end_turn()
    assert heard.data == b"{}"
    assert owner.kept == [False]
    assert transport.closed


def test_a_replica_that_spoke_unasked_does_not_answer_the_next_call():
    class Pool(Upstream):
        def _open(self):
            made = UpstreamConnection(self, HEAD_BYTES_MAX, self._turn)
            made.connection_made(Transport())  # nothing waits: it is closed again
            return made

    loop = Later()
    turn = LoopTurn(loop)
    pool = Pool(Endpoint("http://a:1"), UpstreamConfig(), loop, turn=turn, now_ns=lambda: 0)
    first, second, transport = Heard(), Heard(), Transport()
    spoiled = UpstreamConnection(pool, HEAD_BYTES_MAX, turn)
    spoiled.begin(first, b"x", b"", bodyless=False)
    spoiled.connection_made(transport)
    loop.end_turn()
    spoiled.data_received(PLAIN % (200, 2, b"{}"))
    loop.end_turn()
    assert (first.ends, pool.idle) == (["end"], 1)
    spoiled.data_received(PLAIN % (408, 2, b"{}"))
    pool.call(second, b"POST", b"/", b"", b"")
    loop.end_turn()
    assert second.heads == []
    assert transport.closed
    assert pool.idle == 0


def test_what_was_read_for_a_call_that_is_cancelled_meanwhile_is_dropped():
    loop = Later()
    _, heard, transport, connection = begun(loop)
    loop.end_turn()
    connection.data_received(PLAIN % (200, 2, b"{}"))
    heard.running.cancel()
    loop.end_turn()
    connection.connection_lost(None)
    assert transport.closed
    assert (heard.heads, heard.ends) == ([], [])


def test_a_caller_that_breaks_ends_its_connection_alone():
    loop = Later()
    _, heard, transport, connection = begun(loop)
    loop.end_turn()
    heard.on_head = lambda status, headers: 1 / 0
    connection.data_received(PLAIN % (200, 2, b"{}"))
    loop.end_turn()
    assert transport.closed
    assert isinstance(loop.troubles[0]["exception"], ZeroDivisionError)
