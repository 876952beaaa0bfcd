"""Server-sent events: any cut gives the same events, and nothing but the protocol passes."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.gateway.http.sse import EventSplitter, MalformedStreamError

MAX = 1_000


def events(data, *, cuts=(), maximum=MAX):
    """All events of a stream that arrives cut at these places, and whether something is left."""
    splitter = EventSplitter(maximum)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found = []
    for start, end in pairwise(places):
        found += splitter.feed(data[start:end])
    return found, splitter.pending


def outcome(data, cuts=(), maximum=MAX):
    try:
        return events(data, cuts=cuts, maximum=maximum)
    except MalformedStreamError:
        return "malformed"


@pytest.mark.parametrize(
    ("data", "payloads"),
    [
        (b"data: one\n\n", [b"one"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one\n\n", [b" one"]),
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: one\r\n\ndata: two\n\r\n", [b"one", b"two"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b"data\ndata\n\n", [b"\n"]),
        (b": comment\n\ndata: one\n\n", [b"one"]),
        (b":\n\n:\n\n", []),
        (b"data: one\n: inside\n\n", [b"one"]),
        (b"event: x\nid: 7\nretry: 10\ndata: one\n\n", [b"one"]),
        (b"event: x\n\ndata: one\n\n", [b"one"]),
        (b"id\n\n", []),
        (b"\n\n\n\ndata: one\n\n\n\n", [b"one"]),
        (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
        (b'data: {"a": "\xc3\xa4"}\n\n', [b'{"a": "\xc3\xa4"}']),
        (b"data: a:b: c\n\n", [b"a:b: c"]),
        (b"", []),
    ],
)
def test_complete_events_are_found(data, payloads):
    assert events(data) == (payloads, False)
    assert events(data, cuts=range(len(data))) == (payloads, False)


def test_the_short_ways_give_what_the_long_way_gives():
    splitter = EventSplitter(MAX)
    assert splitter.feed(b": begin\n\n") == []
    for data in (b"data: x\n\n", b"data: x\n\ndata: y\n\n", b"data: x\n\nevent: a\ndata: y\n\n"):
        assert splitter.feed(data) == [payload for _, payload in splitter.feed_named(data)]
        assert not splitter.pending


def test_names_are_offered():
    data = b"event: response.created\ndata: 1\n\ndata: 2\n\nevent:x\nevent: y\ndata: 3\n\n"
    named = EventSplitter(MAX).feed_named(data)
    assert named == [(b"response.created", b"1"), (b"", b"2"), (b"y", b"3")]


def test_a_name_does_not_pass_to_the_next_event():
    splitter = EventSplitter(MAX)
    assert splitter.feed_named(b"event: x\n\n") == []
    assert splitter.feed_named(b"data: 1\n\n") == [(b"", b"1")]


@pytest.mark.parametrize(
    "data",
    [b"data: one", b"data: one\n", b"d", b"event: x\n", b"data: one\n\nda", b"data: 1\r\n\r\ni"],
)
def test_an_unfinished_event_is_known(data):
    assert events(data)[1] is True
    assert events(data, cuts=range(len(data)))[1] is True


def test_a_comment_leaves_no_event_unfinished():
    assert events(b": alive\n") == ([], False)


def test_a_line_feed_of_the_next_piece_belongs_to_the_carriage_return_before_it():
    splitter = EventSplitter(MAX)
    assert splitter.feed(b"data: one\r") == []
    assert splitter.feed(b"\n\r") == [b"one"]
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"data: two\n\n") == [b"two"]
    assert not splitter.pending


@pytest.mark.parametrize(
    "data",
    [
        b'{"id": 1}\n\n',
        b'{"choices": []}\n',
        b"Internal Server Error\n",
        b"<html>\n",
        b"error: {}\n\n",
        b"Data: x\n\n",
        b" data: x\n\n",
        b"data : x\n\n",
        b"\x00\xff\n",
        b"data: \xef\xbb\xbf\n\xef\xbb\xbfdata: x\n\n",
    ],
)
def test_a_line_that_is_no_field_is_malformed(data):
    for before in (b"", b"data: fine\n\n"):
        assert outcome(before + data) == "malformed"
        assert outcome(before + data, range(100)) == "malformed"


def test_once_malformed_always_malformed():
    splitter = EventSplitter(MAX)
    for data in (b"oops\n", b"data: fine\n\n", b"", b"data: x\n\ndata: y\n\n"):
        with pytest.raises(MalformedStreamError, match="not a field"):
            splitter.feed(data)


def test_the_error_does_not_quote_the_stream():
    with pytest.raises(MalformedStreamError) as caught:
        EventSplitter(MAX).feed(b"a secret\n")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"data: " + b"x" * 95 + b"\n\n",
        b"data: " + b"x" * 300,
        b"data: " + b"x" * 60 + b"\ndata: " + b"x" * 60 + b"\n\n",
        b"data\n" * 102 + b"\n",
        b": " + b"x" * 200 + b"\n",
        b"data: ok\n\ndata: " + b"x" * 95 + b"\n\n",
    ],
)
def test_a_line_or_an_event_beyond_the_bound_is_malformed(data):
    for before in (b"", b"data: fine\n\n"):
        assert outcome(before + data, maximum=100) == "malformed"
        assert outcome(before + data, range(400), maximum=100) == "malformed"


def test_an_event_as_large_as_the_bound_passes():
    data = b"data: " + b"x" * 94 + b"\n\n"
    assert events(data * 3, maximum=100) == ([b"x" * 94] * 3, False)
    splitter = EventSplitter(100)
    assert [splitter.feed(data) for _ in range(3)] == [[b"x" * 94]] * 3
    assert events(b"data\n" * 101 + b"\n", maximum=100) == ([b"\n" * 100], False)


def test_comments_for_ever_take_no_room():
    splitter = EventSplitter(100)
    for _ in range(1_000):
        assert splitter.feed(b": still here\n") == []
    assert splitter.feed(b"data: x\n\n") == [b"x"]


FIELDS = [b"data", b"data: ", b"event: e", b"id: 1", b"retry: 5", b": c", b"data: whole\n\n"]
PIECES = st.sampled_from(
    [*FIELDS, b":", b" ", b"\n", b"\n\n", b"\r", b"\r\n", b"x", b"{}", b"\xef\xbb\xbf", b"\xff"]
)
STREAMS = st.lists(PIECES, max_size=25).map(b"".join) | st.binary(max_size=60)


@settings(max_examples=400)
@given(STREAMS, st.lists(st.integers(0, 500), max_size=8), st.sampled_from([8, 20, MAX]))
@example(b"data: a\r\n\r\ndata: b\r\r", [9, 10, 11, 12], MAX)
@example(b"\xef\xbb\xbf\n", [1, 2, 3], MAX)
def test_any_bytes_give_the_same_however_they_are_cut(data, cuts, maximum):
    whole = outcome(data, maximum=maximum)
    assert outcome(data, cuts, maximum) == whole
    assert outcome(data, range(len(data)), maximum) == whole


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(0, 500), max_size=8))
def test_what_was_framed_is_found_again(payloads, cuts):
    framed = b"".join(
        b"".join(b"data: %b\n" % line for line in payload.split(b"\n")) + b"\n"
        for payload in payloads
        if b"\r" not in payload
    )
    kept = [payload for payload in payloads if b"\r" not in payload]
    assert events(framed, cuts=cuts) == (kept, False)
