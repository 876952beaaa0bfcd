"""Heads that are known again, and requests that are read by them without the parser."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.gateway import HttpConfig
from holdfast.gateway.http import syntax
from holdfast.gateway.http.head_cache import HeadCache, end_of_head
from holdfast.gateway.http.request_parser import PIPELINED_MAX, RequestParser
from holdfast.gateway.http.syntax import Cors

HEAD = b"POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\nX-Key: secret\r\n\r\n"


def taught(head=HEAD % b"2"):
    memory = HeadCache()
    memory.learn(head, "said")
    return memory


@pytest.mark.parametrize("length", [b"0", b"7", b"2", b"123456789012", b"007"])
def test_a_head_is_known_again_whatever_length_it_states(length):
    memory = taught()
    head = HEAD % length
    assert memory.recall(head + b"body") == len(head) == end_of_head(head + b"\r\n\r\n")
    assert (memory.length, memory.stated, memory.said) == (length, int(length), "said")


@pytest.mark.parametrize(
    "length",
    [b"", b"+2", b"-2", b" 2", b"2 ", b"2_0", b"0x2", b"2,2", b"2.0", b"\xb2", b"1234567890123"],
)
def test_a_length_that_is_no_plain_number_is_left_to_the_parser(length):
    assert taught().recall(HEAD % length + b"body") == 0


def test_no_byte_of_a_head_may_differ():
    head = HEAD % b"2"
    for place in range(len(head)):
        other = b"X" if head[place : place + 1] != b"X" else b"Y"
        assert taught().recall(head[:place] + other + head[place + 1 :]) == 0, place
        assert taught().recall(head[:place]) == 0, place  # what is missing may still differ


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nX-Content-Length: 2\r\n\r\n",
    ],
)
def test_a_head_that_does_not_state_one_length_is_not_learned(head):
    assert taught(head).recall(head) == 0


@pytest.mark.parametrize(("size", "known"), [(4_096, True), (4_097, False)])
def test_a_long_head_is_not_kept(size, known):
    head = b"POST / HTTP/1.1\r\nx: %b\r\ncontent-length: 2\r\n\r\n"
    head %= b"v" * (size - len(head % b""))
    assert len(head) == size
    assert bool(taught(head).recall(head)) is known


def test_heads_that_always_differ_are_hardly_learned_any_more():
    memory = HeadCache()
    learned = 0
    for number in range(1_000):
        head = b"POST /%d HTTP/1.1\r\ncontent-length: 2\r\n\r\n" % number
        memory.learn(head, number)
        learned += memory.said == number
    assert 8 <= learned <= 8 + 1_000 // 64
    memory.learn(HEAD % b"2", "new")
    for _ in range(64):  # it is found again within so many
        if memory.said == "new":
            break
        memory.learn(HEAD % b"2", "new")
    assert memory.recall(HEAD % b"5")
    memory.learn(b"POST /z HTTP/1.1\r\ncontent-length: 2\r\n\r\n", "next")
    assert memory.said == "next"  # one lesson was of use: the next ones are taken again


# --- requests -------------------------------------------------------------------------------------


class Untouched:
    """A parser that must not be needed."""

    def feed_data(self, data):
        raise AssertionError(f"{len(data)} bytes were parsed")


def intake(**limits):
    return RequestParser(object(), HttpConfig(**limits), Cors(("https://a.example",)))


def request(body, head=HEAD):
    return head % b"%d" % len(body) + body


def seen(one):
    return [
        (each.method, each.path, each.query, each.headers, each.body, each.complete, each.lines)
        for each in one.arrived
    ]


def knowing(**limits):
    """An intake that has seen one request; the next of its kind needs no parser."""
    one = intake(**limits)
    one.feed(request(b"{}"))
    one.arrived.clear()
    one._parser = Untouched()
    return one


@pytest.mark.parametrize("reads", [1, 2, 3, 9])
def test_the_next_request_is_read_without_the_parser(reads):
    one = knowing()
    for body in (b"", b"next", b"x" * 70_000, b"{}"):
        whole = request(body)
        head = len(whole) - len(body)
        step = -(-max(1, len(body)) // reads)
        one.feed(whole[: head + step])
        for at in range(head + step, len(whole), step):
            one.feed(whole[at : at + step])
        assert one.incoming is None
        headers = {
            b"host": b"a",
            b"content-length": b"%d" % len(body),
            b"x-key": b"secret",
        }
        assert seen(one) == [(b"POST", b"/v1/x", b"a=b", headers, body, True, b"")]
        assert type(one.arrived[0].body) is bytes
        one.arrived.clear()


def test_each_request_has_headers_of_its_own():
    one = knowing()
    one.feed(request(b"a"))
    one.feed(request(b"bcd"))
    first, second = one.arrived
    assert first.headers[b"content-length"] == b"1"
    assert second.headers[b"content-length"] == b"3"


def test_a_body_beyond_the_limit_is_refused_before_it_comes():
    one = knowing(body_bytes_max=10)
    one.feed(HEAD % b"11")
    assert one.failure is syntax.BODY_TOO_LARGE
    assert not one.arrived


@pytest.mark.parametrize(("spare", "known"), [(31, False), (32, True)])
def test_a_longer_length_cannot_make_a_known_head_too_large(spare, known):
    head = request(b"")
    one = intake(header_bytes_max=len(head) + spare)
    one.feed(head)
    assert bool(one._known.recall(head)) is known


def test_known_requests_that_pile_up_are_refused():
    one = knowing()
    for _ in range(PIPELINED_MAX + 1):
        one.feed(request(b"x"))
    assert one.failure is None
    one.feed(request(b"x"))
    assert one.failure is syntax.PIPELINED
    assert len(one.arrived) == PIPELINED_MAX + 1


def test_what_follows_a_known_request_in_the_same_read_is_parsed():
    one = intake()
    one.feed(request(b"{}"))
    one.feed(request(b"second") + b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n")
    one.feed(request(b"third"))
    assert [each.path for each in one.arrived] == [b"/v1/x", b"/v1/x", b"/other", b"/v1/x"]
    assert [each.body for each in one.arrived] == [b"{}", b"second", b"", b"third"]


@pytest.mark.parametrize(
    "rest", [b"P", b"POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nX: ", b"\r\n", b"POST / HTTP/1.1\r\n"]
)
def test_a_head_that_has_begun_is_not_begun_anew(rest):
    """What looks like a known head may be the middle of another one."""
    one = intake()
    one.feed(request(b"{}") + rest)
    one.feed(request(b"inner"))
    if rest == b"\r\n":  # empty lines before a request are allowed
        assert [each.body for each in one.arrived] == [b"{}", b"inner"]
    else:
        assert one.failure is not None
        assert [each.body for each in one.arrived] == [b"{}"]


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: close",
        b"Expect: 100-continue",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    ],
)
def test_a_head_that_wants_more_than_an_answer_is_always_parsed(line):
    head = b"POST / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\nContent-Length: %b\r\n\r\n"
    one = intake()
    one.feed(request(b"{}", head))
    assert one.arrived[0].body == b"{}"
    assert one._known.recall(request(b"{}", head)) == 0


def test_nothing_is_taken_after_the_last_request_of_a_connection():
    one = intake()
    one.feed(request(b"{}"))
    one.feed(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx")
    one.feed(request(b"late"))
    assert [each.body for each in one.arrived] == [b"{}", b"x"]
    assert one.failure is syntax.MALFORMED


def test_a_browsers_request_gets_its_lines_again():
    head = b"POST / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\nContent-Length: %b\r\n\r\n"
    one = intake()
    one.feed(request(b"{}", head))
    one._parser = Untouched()
    one.feed(request(b"[]", head))
    first, second = one.arrived
    assert b"access-control-allow-origin: https://a.example" in first.lines
    assert second.lines == first.lines


def test_requests_without_a_body_do_not_lose_the_place():
    one = intake()
    one.feed(request(b"{}"))
    one.feed(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    one._parser = Untouched()
    one.feed(request(b"{}"))
    assert [each.method for each in one.arrived] == [b"POST", b"GET", b"POST"]


def test_nothing_of_a_request_is_kept_when_it_is_over():
    one = intake()
    one.feed(request(b"a long body" * 1_000))
    exchange = one.arrived.popleft()
    held = [getattr(one, name) for name in one.__slots__ if hasattr(one, name)]
    assert exchange not in held
    assert exchange.body not in held


HEADS = st.sampled_from(
    [
        HEAD,
        b"POST /v1/x HTTP/1.1\r\ncontent-length: %b\r\nhost: a\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nhost: a\r\nCONTENT-LENGTH:\t%b\r\n\r\n",
    ]
)
BODIES = st.sampled_from([b"", b"{}", b"\r\n\r\n", b"x" * 40, request(b"inner"), HEAD % b"3"])


@given(st.data())
@settings(max_examples=300)
def test_any_cutting_of_any_row_of_requests_is_the_same_row(data):
    rows = data.draw(st.lists(st.tuples(HEADS, BODIES), min_size=1, max_size=6))
    wires = [request(body, head) for head, body in rows]
    whole = b"".join(wires)
    ends = {sum(map(len, wires[:count])) for count in range(1, len(wires))}
    places = data.draw(st.sets(st.sampled_from(sorted(ends)))) if ends else set()
    if data.draw(st.booleans()):
        places |= data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=4))
    one = intake()
    for begin, end in pairwise([0, *sorted(places), len(whole)]):
        one.feed(whole[begin:end])
    assert one.failure is None
    assert [each.body for each in one.arrived] == [body for _, body in rows]
    assert all(each.complete for each in one.arrived)
