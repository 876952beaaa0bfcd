"""Answers in one piece: what is one, what is empty, what it cost."""

import base64
import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.api.answers import (
    Answer,
    AnswerKind,
    MalformedAnswerError,
    nothing_said,
    read_answer,
)

KINDS = list(AnswerKind)


def read(value, kind):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_answer(body, kind)


def chat(message, finish="stop", usage=None, **members):
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage, **members}


def completions(text, finish="stop", usage=None):
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return {"object": "text_completion", "choices": [choice], "usage": usage}


USAGE = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}

# --- chat and completions -------------------------------------------------------------------------


def test_a_chat_is_read():
    answer = read(
        chat({"role": "assistant", "content": "Hello."}, "length", USAGE), AnswerKind.CHAT
    )
    assert answer == Answer("Hello.", "length", prompt_tokens=12, completion_tokens=8)


def test_completions_are_read():
    answer = read(completions("Hello.", usage=USAGE), AnswerKind.COMPLETIONS)
    assert answer == Answer("Hello.", "stop", prompt_tokens=12, completion_tokens=8)


def test_usage_that_is_not_told_is_unknown():
    for usage in (None, {}, {"prompt_tokens": None}):
        answer = read(chat({"content": "x"}, usage=usage), AnswerKind.CHAT)
        assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [{"id": "1"}]},
        {"content": "", "reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "no"},
        {"function_call": {"name": "f"}},
        {"audio": {"data": "AAAA"}},
        {"images": [{}]},
        {"content": [{"type": "text", "text": "x"}]},
        {"content": " "},
    ],
)
def test_whatever_was_said_is_not_empty(message):
    assert not read(chat(message), AnswerKind.CHAT).empty


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"content": None, "tool_calls": [], "refusal": None, "reasoning_content": ""},
        {"content": []},
    ],
)
def test_a_finished_answer_without_anything_is_empty(message):
    for finish in ("stop", None, "tool_calls", ""):
        assert read(chat(message, finish), AnswerKind.CHAT).empty
    assert read(chat(message, usage=USAGE), AnswerKind.CHAT).empty  # whatever it counted


@pytest.mark.parametrize(
    ("finish", "tokens", "empty"),
    [
        ("length", 8, False),
        ("length", None, False),
        ("length", 0, True),
        ("content_filter", 0, False),
        ("stop", 8, True),
        (None, None, True),
    ],
)
def test_some_ends_explain_an_empty_text(finish, tokens, empty):
    usage = None if tokens is None else {**USAGE, "completion_tokens": tokens}
    assert read(chat({"content": ""}, finish, usage), AnswerKind.CHAT).empty is empty
    assert read(completions("", finish, usage), AnswerKind.COMPLETIONS).empty is empty
    assert nothing_said(finish, tokens) is empty


def test_no_choice_at_all_is_empty():
    assert read({"choices": []}, AnswerKind.CHAT).empty
    assert read({"choices": []}, AnswerKind.COMPLETIONS).empty


def test_of_several_choices_one_that_speaks_is_enough():
    both = [
        {"index": 1, "message": {"content": "b"}, "finish_reason": "stop"},
        {"index": 0, "message": {"content": ""}, "finish_reason": "length"},
    ]
    answer = read({"choices": both}, AnswerKind.CHAT)
    assert (answer.text, answer.finish_reason, answer.empty) == ("", "length", False)


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_an_engine_that_gave_up_says_so(finish):
    assert read(chat({"content": "half"}, finish), AnswerKind.CHAT).error
    assert read(completions("half", finish), AnswerKind.COMPLETIONS).error


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_under_a_status_of_success_is_known(kind):
    answer = read({"error": {"message": "died", "code": 500}}, kind)
    assert (answer.error, answer.error_code) == (True, 500)
    if kind is not AnswerKind.JSON:
        assert answer.empty
        old = read({"object": "error", "message": "died", "code": 400}, kind)
        assert (old.error, old.error_code, old.empty) == (True, 400, True)
    assert read({"error": "died"}, kind).error
    assert read({"error": "died"}, kind).error_code is None


# --- responses ------------------------------------------------------------------------------------


def responses(output, status="completed", reason=None, **members):
    details = None if reason is None else {"reason": reason}
    return {
        "object": "response",
        "status": status,
        "incomplete_details": details,
        "output": output,
        **members,
    }


def message(*texts):
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "content": parts}


def test_a_response_is_read():
    usage = {"input_tokens": 3, "output_tokens": 5}
    told = responses([{"type": "reasoning", "summary": []}, message("a", "b")], usage=usage)
    answer = read(told, AnswerKind.RESPONSES)
    assert answer == Answer("ab", "stop", prompt_tokens=3, completion_tokens=5)


@pytest.mark.parametrize(
    ("told", "finish", "empty", "error"),
    [
        (responses([]), "stop", True, False),
        (responses([message("")]), "stop", True, False),
        (responses([message()]), "stop", True, False),
        (responses([{"type": "function_call", "name": "f"}]), "stop", False, False),
        (responses([], "incomplete", "max_output_tokens"), "length", False, False),
        (responses([message("a")], "incomplete", "content_filter"), "content_filter", False, False),
        (responses([], "failed", error={"code": "server_error"}), None, True, True),
        (responses([], "queued"), None, False, False),
        (responses([], "in_progress"), None, False, False),
        ({"output": [{"content": [{"refusal": "no"}]}]}, "stop", False, False),
    ],
)
def test_how_a_response_ended_is_told(told, finish, empty, error):
    answer = read(told, AnswerKind.RESPONSES)
    assert (answer.finish_reason, answer.empty, answer.error) == (finish, empty, error)


# --- vectors, ranks, images, tensors --------------------------------------------------------------


def embeddings(*vectors):
    data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
    return {"data": data, "usage": {"prompt_tokens": 4, "total_tokens": 4}}


def packed(*numbers):
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


@pytest.mark.parametrize(
    "vectors",
    [
        ([0.1, -2e-05, 3],),
        ([0.1], [0.2]),
        ([0.5] * 4096,),
        (packed(0.1, 0.2),),
        (packed(*[0.25] * 1536),),
        ([[0.1, 0.2], [0.3, 0.4]],),
    ],
)
def test_vectors_are_answers(vectors):
    answer = read(embeddings(*vectors), AnswerKind.EMBEDDINGS)
    assert not answer.empty
    assert answer.prompt_tokens == 4


@pytest.mark.parametrize(
    "vectors",
    [
        (),
        ([],),
        ([0.1], []),
        ([None, None],),
        ([0.5] * 4096 + [None],),
        ([0.1], [None]),
        (["a", "b"],),
        ([True, False],),
        ([{}],),
        ([[]],),
        (None,),
        ({},),
        (7,),
        ("",),
        (packed(math.nan, math.nan),),
        (packed(0.1, math.nan),),
        ("AAAA"[:2] + "==",),
    ],
)
def test_vectors_without_numbers_are_empty(vectors):
    assert read(embeddings(*vectors), AnswerKind.EMBEDDINGS).empty


def test_a_vector_with_a_bare_nan_or_of_no_base64_is_malformed():
    for body in (b'{"data":[{"embedding":[0.1,NaN]}]}', b'{"data":[{"embedding":"?!"}]}'):
        with pytest.raises(MalformedAnswerError):
            read_answer(body, AnswerKind.EMBEDDINGS)


@pytest.mark.parametrize(
    ("told", "empty"),
    [
        ({"results": [{"index": 0, "relevance_score": 0.9}]}, False),
        ({"data": [{"index": 0, "score": 0}]}, False),
        ([{"index": 0, "score": -1.5}], False),
        ({"results": []}, True),
        ([], True),
        ({"results": [{"index": 0, "relevance_score": None}]}, True),
        ({"results": [{"index": 0, "relevance_score": 1}, {"index": 1}]}, True),
    ],
)
def test_ranks_are_read(told, empty):
    assert read(told, AnswerKind.RERANK).empty is empty


@pytest.mark.parametrize(
    ("data", "empty"),
    [
        ([{"url": "http://x"}], False),
        ([{"b64_json": "AAAA", "url": None}], False),
        ([], True),
        ([{"url": ""}], True),
        ([{"url": "http://x"}, {"b64_json": None}], True),
        ([{}], True),
    ],
)
def test_images_are_read(data, empty):
    assert read({"created": 1, "data": data}, AnswerKind.IMAGES).empty is empty


@pytest.mark.parametrize(
    ("outputs", "empty"),
    [
        ([{"name": "y", "shape": [2], "datatype": "FP32", "data": [0.1, 2]}], False),
        ([{"name": "y", "shape": [1], "datatype": "BYTES", "data": ["no null"]}], False),
        ([{"name": "y", "shape": [0], "datatype": "FP32", "data": []}], False),
        ([{"name": "y", "shape": [9], "datatype": "FP32"}], False),
        ([{"name": "y", "shape": [1], "datatype": "BOOL", "data": [True, False]}], False),
        ([], True),
        ([{"name": "y", "shape": [1], "datatype": "FP32", "data": [None]}], True),
    ],
)
def test_tensors_are_read(outputs, empty):
    assert read({"model_name": "m", "outputs": outputs}, AnswerKind.INFER).empty is empty


@pytest.mark.parametrize(
    ("body", "empty"),
    [
        (b'{"text":"hello"}', False),
        (b"[1]", False),
        (b"7", False),
        (b"false", False),
        (b" { } ", True),
        (b"[]", True),
        (b'""', True),
        (b"null", True),
        (b'{"a":"' + b" " * 500 + b'"}', False),
    ],
)
def test_any_json_is_read(body, empty):
    assert read(body, AnswerKind.JSON).empty is empty


# --- what is no answer ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>502</html>", b"{", b'{"choices":NaN}', b'{"a":1} x', b"[" * 100_000, b"\xff"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_json_is_malformed(kind, body):
    with pytest.raises(MalformedAnswerError) as caught:
        read_answer(body, kind)
    assert "502" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[1]",
        b"null",
        b'{"choices":null,"data":null,"output":null,"outputs":null,"results":null}',
        b'{"choices":[{}],"data":[7],"output":[7],"outputs":[7],"results":[7]}',
        b'{"choices":{},"data":{},"output":{},"outputs":{},"results":{}}',
    ],
)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not AnswerKind.JSON])
def test_json_of_another_shape_is_malformed(kind, body):
    with pytest.raises(MalformedAnswerError):
        read_answer(body, kind)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"message":{"content":7},"text":7}]}',
        b'{"choices":[{"message":{"content":"\xff"},"text":"\xff"}]}',
        b'{"choices":[{"message":{"content":"x"},"text":"x","finish_reason":1}]}',
        b'{"choices":[],"usage":{"prompt_tokens":-1}}',
        b'{"choices":[],"usage":{"prompt_tokens":"1"}}',
    ],
)
def test_an_answer_of_wrong_types_is_malformed(body):
    for kind in (AnswerKind.CHAT, AnswerKind.COMPLETIONS):
        with pytest.raises(MalformedAnswerError):
            read_answer(body, kind)


MEMBERS = st.sampled_from(
    [
        "choices",
        "usage",
        "error",
        "object",
        "message",
        "content",
        "text",
        "data",
        "embedding",
        "outputs",
        "output",
        "results",
        "score",
        "url",
        "status",
        "type",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400)
@given(
    st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(KINDS),
)
def test_arbitrary_bytes_are_read_or_malformed(body, kind):
    try:
        answer = read_answer(body, kind)
    except MalformedAnswerError:
        return
    assert isinstance(answer.empty, bool)
