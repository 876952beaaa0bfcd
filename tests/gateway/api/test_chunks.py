"""Chunks of chat and completions streams, as engines send them and as broken ones do."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.api.chunks import (
    Chunk,
    StreamApi,
    Usage,
    read_chat_chunk,
    read_chunk,
    read_text_chunk,
    strip_usage,
)
from holdfast.gateway.http.sse import MalformedStreamError

CHAT, COMPLETIONS = StreamApi.CHAT, StreamApi.COMPLETIONS


def compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


def chat(delta=None, finish=None, index=0, **members):
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return compact({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **members})


def text(said, finish=None, index=0, **members):
    choice = {"index": index, "text": said, "finish_reason": finish}
    return compact({"id": "c", "object": "text_completion", "choices": [choice], **members})


# --- what is said ---------------------------------------------------------------------------------


def test_a_piece_of_text_is_read():
    chunk = read_chunk(chat({"content": " word"}), CHAT)
    assert chunk == Chunk(" word", True, False, None, 0, 1, False, None, None)
    assert not chunk.role_only
    assert read_chunk(text(" word"), COMPLETIONS) == chunk


def test_each_api_has_its_own_reader():
    assert read_chat_chunk(chat({"content": "a"})) == read_chunk(chat({"content": "a"}), CHAT)
    assert read_text_chunk(text("a")) == read_chunk(text("a"), COMPLETIONS)


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {},
        None,
        {"content": "", "tool_calls": None, "reasoning_content": None, "refusal": None},
        {"tool_calls": []},
        {"reasoning": ""},
    ],
)
def test_a_chunk_that_says_nothing_yet_is_only_a_role(delta):
    chunk = read_chunk(chat(delta), CHAT)
    assert chunk.role_only
    assert not chunk.meaningful
    assert chunk.text == ""


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm", "content": None},
        {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]},
        {"function_call": {"name": "f"}},
        {"refusal": "no"},
        {"audio": {"data": "AAAA"}},
        {"images": [{"type": "image_url"}]},
        {"content": [{"type": "text", "text": "part"}]},
        {"content": "text", "tool_calls": [{"index": 0}]},
    ],
)
def test_what_lies_beyond_text_is_meaningful_and_known(delta):
    chunk = read_chunk(chat(delta), CHAT)
    assert chunk.meaningful
    assert chunk.beyond_text
    assert not chunk.role_only


def test_another_choice_under_way_is_beyond_text_and_not_the_text():
    for chunk in (
        read_chunk(chat({"content": "b"}, index=1), CHAT),
        read_chunk(text("b", index=1), COMPLETIONS),
    ):
        assert (chunk.text, chunk.meaningful, chunk.beyond_text) == ("", True, True)


def test_choices_in_one_chunk_are_told_apart():
    both = [
        {"index": 0, "delta": {"content": "a"}, "finish_reason": None},
        {"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"},
    ]
    chunk = read_chunk(compact({"choices": both}), CHAT)
    assert (chunk.text, chunk.finish_reason, chunk.finished, chunk.choices) == ("a", None, 1, 2)
    texts = [{"index": i, "text": "x", "finish_reason": "length"} for i in (0, 1)]
    chunk = read_chunk(compact({"choices": texts}), COMPLETIONS)
    assert (chunk.text, chunk.finish_reason, chunk.finished, chunk.choices) == ("x", "length", 2, 2)


def test_a_finish_reason_may_come_with_or_without_text():
    chunk = read_chunk(chat({}, "stop"), CHAT)
    assert (chunk.finish_reason, chunk.finished, chunk.meaningful) == ("stop", 1, False)
    assert not chunk.role_only
    chunk = read_chunk(text("end", "length"), COMPLETIONS)
    assert (chunk.finish_reason, chunk.text) == ("length", "end")


def test_an_empty_finish_reason_is_none():
    chunk = read_chunk(chat({"content": "x"}, ""), CHAT)
    assert (chunk.finish_reason, chunk.finished) == (None, 0)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_engine_that_gave_up_has_not_finished(reason):
    assert read_chunk(chat({}, reason), CHAT).error
    assert read_chunk(text("", reason), COMPLETIONS).error
    assert not read_chunk(chat({}, "stop"), CHAT).error


# --- usage and errors -----------------------------------------------------------------------------


def test_usage_is_read_where_it_is_told():
    usage = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
    assert read_chunk(chat({"content": "x"}, usage=usage), CHAT).usage == Usage(12, 8)
    alone = read_chunk(compact({"choices": [], "usage": usage}), CHAT)
    assert (alone.usage, alone.choices, alone.role_only) == (Usage(12, 8), 0, False)
    assert read_chunk(compact({"usage": usage}), COMPLETIONS).usage == Usage(12, 8)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 3}, {"completion_tokens": None}])
def test_usage_that_is_not_told_is_not_zero(usage):
    assert read_chunk(chat({"content": "x"}, usage=usage), CHAT).usage is None


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"error": {"message": "died", "type": "X", "code": 500}}, 500),
        ({"error": {"message": "died", "code": "503"}}, 503),
        ({"error": {"message": "died", "code": "server_error"}}, None),
        ({"error": {"message": "died", "code": True}}, None),
        ({"error": {"message": "died"}}, None),
        ({"error": "died", "error_type": "generation"}, None),
        ({"object": "error", "message": "died", "code": 400}, 400),
        ({"error": {"code": 7}, "choices": [{"index": 0, "delta": {"content": "x"}}]}, 7),
    ],
)
def test_an_error_inside_the_stream_is_known(frame, code):
    for api in StreamApi:
        chunk = read_chunk(compact(frame), api)
        assert (chunk.error, chunk.error_code, chunk.meaningful) == (True, code, False)
        assert not chunk.role_only


def test_an_error_that_is_null_is_none():
    assert not read_chunk(chat({"content": "x"}, error=None), CHAT).error


# --- what is tolerated and what is not ------------------------------------------------------------


def test_unknown_and_missing_and_null_members_are_tolerated():
    chunk = (
        b'{"x":[{}],"choices":[{"delta":{"content":"a","y":1},"index":null,"z":{}}],"usage":null}'
    )
    assert read_chunk(chunk, CHAT).text == "a"
    assert read_chunk(b'{"choices":[{"text":"a"}]}', COMPLETIONS).text == "a"
    assert read_chunk(b'{"choices":[]}', CHAT).choices == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"[DONE]",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"id":"x"}',
        b'{"choices":null}',
        b'{"choices":{}}',
        b'{"choices":[1]}',
        b'{"choices":[{"index":"0"}]}',
        b'{"choices":[{"index":-1}]}',
        b'{"choices":[{"index":0,"delta":[],"text":1}]}',
        b'{"choices":[{"index":0,"delta":{"content":5},"text":5}]}',
        b'{"choices":[{"index":0,"finish_reason":1}]}',
        b'{"choices":[],"usage":{"prompt_tokens":-1}}',
        b'{"choices":[],"usage":{"prompt_tokens":1e999}}',
        b'{"choices":[],"usage":{"completion_tokens":99999999999999999999}}',
        b'{"choices":[],"usage":7}',
        b'{"choices":[{"index":0,"delta":{"content":"\xff"},"text":"\xff"}]}',
        b'{"choices":[{"index":0,"delta":{"content":"cut',
        b'{"choices":[]} {"choices":[]}',
        b'{"choices":NaN}',
        b'{"object":1e999}',
        b'{"choices":' + b"[" * 100_000,
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_what_is_no_chunk_is_malformed(payload):
    for api in StreamApi:
        with pytest.raises(MalformedStreamError) as caught:
            read_chunk(payload, api)
        assert caught.value.__cause__ is None


MEMBERS = st.sampled_from(["choices", "usage", "error", "object", "index", "delta", "text", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.binary(max_size=80) | JSON.map(compact), st.sampled_from(list(StreamApi)))
def test_arbitrary_bytes_are_read_or_malformed(payload, api):
    try:
        chunk = read_chunk(payload, api)
    except MalformedStreamError:
        return
    assert isinstance(chunk.text, str)


# --- usage nobody asked for -----------------------------------------------------------------------

USAGE = {"prompt_tokens": 12, "total_tokens": 20, "completion_tokens": 8}


@pytest.mark.parametrize(
    "usage",
    [USAGE, None, {}, {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}, {"note": "}{"}],
)
@pytest.mark.parametrize("delta", ["word", "usage", ',"usage":{"a":1}}', '"usage":null}', "}}"])
@pytest.mark.parametrize("place", ["last", "first", "between", "spaced"])
def test_usage_is_taken_out_wherever_it_stands(usage, delta, place):
    rest = {
        "id": "c",
        "choices": [{"index": 0, "delta": {"content": delta}, "finish_reason": None}],
    }
    if place == "first":
        payload = compact({"usage": usage, **rest})
    elif place == "between":
        payload = compact({"id": "c", "usage": usage, "choices": rest["choices"]})
    else:
        payload = compact({**rest, "usage": usage})
    if place == "spaced":
        payload = json.dumps({**rest, "usage": usage}, indent=1).encode()
    assert json.loads(strip_usage(payload)) == rest


def test_a_chunk_without_usage_is_left_as_it_is():
    payload = chat({"content": 'the "usage" of it'})
    assert strip_usage(payload) is payload
    nested = b'{"choices":[{"usage":{"a":1},"delta":{}}]}'
    assert strip_usage(nested) == nested
    inner = b'{"choices":[{"delta":{},"usage":{"a":1}}]}'
    assert json.loads(strip_usage(inner)) == json.loads(inner)


@pytest.mark.parametrize("payload", [b'"usage"', b'[{"usage":1}]', b'x,"usage":{'])
def test_taking_usage_out_of_what_is_no_object_is_malformed(payload):
    with pytest.raises(MalformedStreamError):
        strip_usage(payload)


@settings(max_examples=300)
@given(
    st.dictionaries(MEMBERS, JSON, max_size=4),
    JSON,
    st.dictionaries(st.sampled_from(["z", "y"]), JSON, max_size=1),
)
def test_taking_usage_out_changes_nothing_else(before, usage, behind):
    value = {**before, "usage": usage, **behind}
    try:
        payload = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return
    value.pop("usage")
    assert json.loads(strip_usage(payload)) == value
