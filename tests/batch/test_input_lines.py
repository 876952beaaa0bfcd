"""Lines are found wherever reads cut them, and each bad one is named by its number."""

import io
import json
import tracemalloc
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.batch import input_lines
from holdfast.batch.input_lines import InputLine, LineError, body_of, check_pieces, split_lines

CHAT = "/v1/chat/completions"


def check(data, **options):
    return list(chain.from_iterable(check_pieces(io.BytesIO(data), CHAT, **options)))


def test_good_lines_are_told_with_their_place(make_line):
    data = make_line(1) + b"\n" + make_line(2).replace(b"\n", b"\r\n") + make_line(3)[:-1]
    found = check(data)
    assert [one.number for one in found] == [1, 3, 4]
    for one in found:
        assert isinstance(one, InputLine)
        line = data[one.offset : one.offset + one.length]
        assert json.loads(line)["custom_id"] == one.custom_id
        assert json.loads(body_of(line))["model"] == one.model == "m"


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{not json}\n", "invalid_json_line", None),
        (b"[1]\n", "invalid_request", None),
        (b'{"custom_id": "a", "method": "POST", "url": "/x"}\n', "invalid_request", None),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"url": "/v1/embeddings"}, "mismatched_endpoint", "url"),
        ({"body": {"model": "m", "stream": True}}, "invalid_value", "body.stream"),
        ({"body": {"model": ""}}, "invalid_value", "body.model"),
        ({"body": {}}, "invalid_request", None),
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "c1"}, "duplicate_custom_id", "custom_id"),
    ],
)
def test_a_bad_line_is_named(make_line, bad, code, param):
    text = bad if isinstance(bad, bytes) else make_line(2, **bad)
    found = check(make_line(1) + text + make_line(3))
    (error,) = [one for one in found if isinstance(one, LineError)]
    assert (error.code, error.param, error.line) == (code, param, 2)
    assert len(found) == 3


def test_errors_repeat_nothing_of_the_line(make_line):
    (error,) = check(b'{"custom_id": 5, "secret": "hush"}\n')
    assert "hush" not in error.message


def test_too_many_lines_and_an_empty_file_concern_the_whole_file(make_line):
    data = b"".join(make_line(number) for number in range(4))
    assert check(data, lines_max=3)[-1].code == "too_many_requests"
    (error,) = check(b"\n \n")
    assert (error.code, error.line) == ("empty_file", None)


def test_empty_lines_count(make_line):
    found = check(make_line(1) + b"\n \n" + make_line(2), lines_max=3)
    assert [one.number for one in found[:1]] == [1]
    assert (found[1].code, len(found)) == ("too_many_requests", 2)


def test_a_piece_is_bounded_in_lines_and_in_bytes():
    pieces = list(check_pieces(io.BytesIO(b"\n" * 2_000), CHAT, lines_max=1_200))
    assert [[one.code for one in piece] for piece in pieces] == [[], [], ["too_many_requests"]]
    long = b'{"custom_id": "' + b"x" * (1 << 20) + b'"}\n'
    assert [len(piece) for piece in check_pieces(io.BytesIO(long * 12), CHAT)] == [5, 5, 2]


def test_a_line_is_checked_without_being_built(make_line):
    """A line of 2 MB with half a million lists in its body costs a few times its own bytes."""
    body = {"model": "m", "messages": [[]] * 600_000}
    data = make_line(1, body=body)
    tracemalloc.start()
    found = check(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found[0], InputLine)
    assert peak < 6 * len(data) + (4 << 20)


def test_a_line_that_is_not_utf_8_is_no_json(make_line):
    (error,) = check(make_line(1).replace(b"p1", b"\xff"))
    assert error.code == "invalid_json_line"


def test_a_line_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(input_lines, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(input_lines, "_READ_BYTES", 64)
    data = b"x" * 1_000 + b"\nshort\n"
    found = list(split_lines(io.BytesIO(data)))
    assert [(number, line) for number, _, line in found] == [(1, None), (2, b"short")]
    assert data[found[1][1] :].startswith(b"short")


@given(st.lists(st.binary(max_size=40).filter(lambda d: b"\n" not in d and b"\r" not in d)))
def test_lines_are_those_of_the_file(lines):
    data = b"\n".join(lines)
    found = list(split_lines(io.BytesIO(data)))
    assert b"\n".join(line for _, _, line in found) == data.removesuffix(b"\n")
    for number, offset, line in found:
        assert data[offset : offset + len(line)] == line
        assert number == data[:offset].count(b"\n") + 1
