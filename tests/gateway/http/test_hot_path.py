"""The fast path does what the plain path does, and a fast path that does not is found."""

import importlib
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.gateway import HttpConfig
from holdfast.gateway.http import syntax
from holdfast.gateway.http.head_cache import HeadCache
from holdfast.gateway.http.hot_path import FAST, PLAIN
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.request_parser import RequestParser
from holdfast.gateway.http.server import Server
from holdfast.gateway.http.sse import EventSplitter, MalformedStreamError
from holdfast.gateway.http.syntax import Cors
from holdfast.gateway.http.upstream_connection import UpstreamConnection
from turns import Later

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
BOTH = pytest.mark.parametrize("path", [FAST, PLAIN], ids=["fast", "plain"])
ASK = b"POST /a HTTP/1.%b\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b"
ANSWER = b"HTTP/1.1 200 OK\r\nServer: a\r\ncontent-length: %d\r\n\r\n%b"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def ask(body, minor=b"1"):
    return ASK % (minor, len(body), body)


def answer(body):
    return ANSWER % (len(body), body)


def chunk(payload):
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def pieces(data, places):
    return [data[begin:end] for begin, end in pairwise([0, *sorted(places), len(data)])]


# --- the switch -----------------------------------------------------------------------------------


def test_the_plain_path_has_a_class_of_its_own_for_each_fast_one():
    for member in fields(FAST):
        fast, plain = getattr(FAST, member.name), getattr(PLAIN, member.name)
        assert plain is not fast
        assert issubclass(plain, fast)
        assert plain.__slots__ == ()


@BOTH
def test_a_server_is_built_of_the_path_it_is_given(path):
    server = Server(object(), HttpConfig(), loop=Later(), hot_path=path)
    assert type(server.turn) is path.loop_turn
    assert type(server.protocol()._intake) is path.request_parser


class Wire:
    def __init__(self):
        self.calls = []

    def get_extra_info(self, name):
        """Nothing is known of the peer."""

    def is_closing(self):
        return False

    def write(self, data):
        self.calls.append(data)

    def writelines(self, parts):
        self.write(b"".join(parts))


class Reader:
    def __init__(self):
        self.read = []
        self.broken = False

    def take(self, data):
        self.read.append(data)
        if data == b"bad":
            raise ValueError

    def break_off(self):
        self.broken = True


def test_the_plain_turn_keeps_nothing():
    loop, wire, reader = Later(), Wire(), Reader()
    turn = PLAIN.loop_turn(loop)
    turn.put(wire, b"head", b"body")
    turn.put(wire, b"more")
    assert wire.calls == [b"headbody", b"more"]
    assert not turn.holds(wire)
    turn.received(reader, b"a")
    assert reader.read == [b"a"]
    turn.received(reader, b"bad")
    assert reader.broken
    assert len(loop.troubles) == 1
    assert not loop.soon


# --- requests -------------------------------------------------------------------------------------


def read_requests(path, reads):
    parser = path.request_parser(object(), HttpConfig(), Cors(()))
    for data in reads:
        if parser.failure is None:
            parser.feed(data)
    seen = [
        (one.method, one.path, one.headers, one.body, one.complete, one.closes, one.old)
        for one in parser.arrived
    ]
    return seen, parser.failure


@BOTH
def test_the_version_of_a_request_is_read_in_its_own_line(path):
    """Behind another request, or behind a cut, the same place in the read is of something else."""
    seen, _ = read_requests(path, [ask(b"") + ask(b"", b"0")])
    assert [one[-1] for one in seen] == [False, True]
    lines = b"\r\nHost: a\r\nX: 9 HTTP/1.1\r\n\r\n"
    at = lines.index(b" HTTP") - len(b"GET /a")
    seen, _ = read_requests(path, [b"GET /a HTTP/1.0" + lines[:at], lines[at:]])
    assert [one[-1] for one in seen] == [True]


@BOTH
@pytest.mark.parametrize("before", [b"", ask(b"{}")])
def test_a_body_may_speak_of_another_protocol(path, before):
    reads = [before + ask(b"what is GET /a RTSP/1.0?")]
    assert read_requests(path, reads)[1] is None
    seen, failure = read_requests(path, [before + b"GET /a RTSP/1.0\r\nHost: a\r\n\r\n"])
    assert failure is syntax.BAD_VERSION
    assert len(seen) == bool(before)


@given(st.data())
@settings(max_examples=150)
def test_requests_are_read_alike_however_they_are_cut(data):
    bodies = st.sampled_from([b"", b"{}", b"\r\n\r\n", ask(b"inner")])
    versions = st.sampled_from([b"1", b"1", b"1", b"0", b"9"])
    rows = data.draw(st.lists(st.builds(ask, bodies, versions), min_size=2, max_size=5))
    whole = b"".join(rows)
    ends = [sum(map(len, rows[:count])) for count in range(1, len(rows))]
    places = data.draw(st.sets(st.sampled_from(ends) | st.integers(1, len(whole) - 1)))
    reads = pieces(whole, places)
    assert read_requests(FAST, reads) == read_requests(PLAIN, reads)


# --- responses ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fuzz_plain():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FUZZ))
        yield importlib.import_module("fuzz_plain")


def hear(fuzz_plain, path, responses, head_bytes_max=4_096):
    """What callers hear of responses, each given as its reads."""
    drawn = [fuzz_plain.Response([(read, True) for read in reads], "") for reads in responses]
    drawn[-1].end = "lost"
    return [heard for heard, *_ in fuzz_plain.call(drawn, head_bytes_max, path)]


@BOTH
def test_a_known_head_with_a_longer_length_stays_within_the_limit(fuzz_plain, path):
    limit = len(b"servera" + b"content-length2") + 2 * len(b": \r\n")
    heard = hear(fuzz_plain, path, [[answer(b"{}")], [answer(b"x" * 100)]], limit)
    assert heard[0][-1] == ("end",)
    assert heard[1] == [("failure", "malformed", f"the head exceeds {limit} bytes")]


@given(st.data())
@settings(max_examples=150)
def test_chunks_are_cut_alike(fuzz_plain, data):
    events = st.sampled_from([b"data: x\n\n", b"\n\n", b"x", b"x" * 4_085 + b"\n\n", b"5\r\n\n\n"])
    lines = events.map(chunk)
    odd = st.sampled_from([b"0A\r\n0123456\n\n\n\r\n", b"+2\r\n\n\n\r\n", b"2\r\n\n\n\n\n", b"2"])
    reads = data.draw(st.lists(lines | lines | lines | odd, max_size=6))
    reads = [STREAM, *reads, b"0\r\n\r\n"]
    assert hear(fuzz_plain, FAST, [reads]) == hear(fuzz_plain, PLAIN, [reads])


# --- events ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.sampled_from([b"data: x\n\n", b"data: x\n\n", b"data:y\r\n", b"\n", b"event: a\n", b"?"])
        | st.binary(max_size=3)
    )
)
@settings(max_examples=300)
def test_events_are_split_alike(reads):
    outcomes = []
    for path in (FAST, PLAIN):
        splitter, outcome = path.event_splitter(12), []
        for data in reads:
            try:
                outcome.append((splitter.feed(data), splitter.pending))
            except MalformedStreamError as error:
                outcome.append(str(error))
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]


# --- a fast path that is wrong --------------------------------------------------------------------


class LaxCache(HeadCache):
    """Does not compare what stands behind the length."""

    def recall(self, data):
        place = data.find(b"\r\n\r\n")
        return place + 4 if super().recall(data) or self._alike(data, place) else 0

    def _alike(self, data, place):
        digits, _, _ = data[self._begin :].partition(b"\r")
        if place < 0 or not data.startswith(self._before) or not digits.isdigit():
            return False
        self.length, self.stated = bytes(digits), int(digits)
        return True


class LaxParser(RequestParser):
    def __init__(self, *given):
        super().__init__(*given)
        self._known = LaxCache()


class EagerParser(RequestParser):
    """Takes every read for the beginning of a request, so it knows heads within bodies."""

    def feed(self, data):
        self._at_start = self._at_start or self.incoming is not None
        super().feed(data)


class LaxConnection(UpstreamConnection):
    """Does not look at the first line of what it takes for a chunk."""

    def take(self, data):
        if self._at_boundary and self._caller is not None and data.endswith(b"\n\n\r\n"):
            self.untaken -= 1
            self._caller.on_data(data.partition(b"\r\n")[2][:-2])
        else:
            super().take(data)


class LateConnection(UpstreamConnection):
    """Knows the head of a response whose body is not complete."""

    def take(self, data):
        heads = self._owner.heads
        begin = heads.recall(data) if self._caller is not None and self._headers == {} else 0
        if begin and not self._quiet_bytes and not self._bodyless:
            self.untaken -= 1
            self._deliver_known(self._caller, data[begin:])
        else:
            super().take(data)


class LaxSplitter(EventSplitter):
    """Takes CR for a character like any other where it splits many events."""

    def feed(self, data):
        payloads = self._blocks(data) if self._between else None
        return super().feed(data) if payloads is None else payloads


class LongSplitter(EventSplitter):
    """Allows an event in one piece to be one byte too long."""

    def __init__(self, event_bytes_max):
        super().__init__(event_bytes_max)
        self._simple_bytes_max += 1


class ForgetfulTurn(LoopTurn):
    """Sends only the first part of what a turn writes."""

    def flush(self):
        for parts in self._kept.values():
            del parts[1:]
        super().flush()


class UnorderedTurn(LoopTurn):
    """Handles the reads of a turn in the wrong order."""

    def catch_up(self):
        self._unread.reverse()
        super().catch_up()


@pytest.mark.parametrize(
    "planted",
    [
        {"request_parser": LaxParser},
        {"request_parser": EagerParser},
        {"upstream_connection": LaxConnection},
        {"upstream_connection": LateConnection},
        {"event_splitter": LaxSplitter},
        {"event_splitter": LongSplitter},
        {"loop_turn": ForgetfulTurn},
        {"loop_turn": UnorderedTurn},
    ],
    ids=lambda planted: next(iter(planted.values())).__name__,
)
def test_the_fuzzer_finds_a_fast_path_that_is_wrong(fuzz_plain, monkeypatch, planted):
    monkeypatch.syspath_prepend(str(FUZZ))
    fuzzer = importlib.import_module("gateway")
    monkeypatch.setattr(fuzz_plain, "FAST", replace(FAST, **planted))
    for number in range(8):
        _, trouble = fuzzer.run_batch(("plain", number, 250, 7))
        if trouble:
            break
    assert "the fast path and the plain path differ" in trouble
