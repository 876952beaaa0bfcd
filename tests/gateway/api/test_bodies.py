import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.gateway import BodyConfig
from holdfast.gateway.api import bodies, multipart, routes
from holdfast.gateway.api.bodies import ParsedRequest, parse
from holdfast.gateway.api.engine_body import upstream_body
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.multipart import Field

LIMITS = BodyConfig()
CHAT = b"/v1/chat/completions"
COMPLETIONS = b"/v1/completions"
EMBEDDINGS = b"/v1/embeddings"
RESPONSES = b"/v1/responses"
RERANK = b"/v1/rerank"
SPEECH = b"/v1/audio/speech"
IMAGES = b"/v1/images/generations"
INFER = b"/v2/models/m/infer"
JSON_PATHS = [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, RERANK, SPEECH, IMAGES, INFER]
HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = HI | {"stream": True}
SAY: dict[str, Any] = {"model": "m", "prompt": "Say it", "stream": True}


def ask(path: bytes, body: dict[str, Any] | bytes, **more: Any) -> ParsedRequest:
    text = body if isinstance(body, bytes) else compact(body)
    content_type = more.pop("content_type", b"application/json")
    limits = more.pop("limits", LIMITS)
    return parse(routes.find(b"POST", path), content_type, path, text, limits, **more)


def compact(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def refusal(path: bytes, body: dict[str, Any] | bytes, **more: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(path, body, **more)
    return caught.value


def sent(
    asked: ParsedRequest, model: str = "m", *, usage: bool = False, running: bool = False
) -> Any:
    return json.loads(upstream_body(asked, model, ask_usage=usage, running_usage=running))


# --- what is read ---------------------------------------------------------------------------------


def test_a_chat_is_read():
    asked = ask(
        CHAT,
        HI
        | {
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 9,
            "max_completion_tokens": 64,
            "n": 2,
            "stop": ["a", "b"],
            "user": "u",
            "temperature": 0.5,
            "tools": [{"type": "function"}],
        },
    )
    assert (asked.model, asked.stream, asked.wants_usage, asked.has_stream_options) == (
        "m",
        True,
        True,
        True,
    )
    assert (asked.max_tokens, asked.n, asked.stop, asked.session) == (64, 2, ("a", "b"), "u")
    assert (asked.tools, asked.json_expected, asked.hedgeable) == (True, False, True)
    assert asked.type_line == b"content-type: application/json\r\n"


def test_what_is_not_said_has_its_default():
    asked = ask(CHAT, HI)
    assert (asked.stream, asked.wants_usage, asked.max_tokens, asked.n) == (False, False, 0, 1)
    assert (asked.stop, asked.session, asked.prefix, asked.tools) == ((), "", (), False)


def test_null_is_the_same_as_not_said():
    names = ["max_tokens", "max_completion_tokens", "n", "stop", "stream", "stream_options", "user"]
    names += ["logit_bias", "response_format", "tools", "temperature", "top_p", "logprobs"]
    names += ["top_logprobs", "presence_penalty", "frequency_penalty", "functions"]
    asked = ask(CHAT, HI | dict.fromkeys(names))
    assert (asked.stream, asked.max_tokens, asked.n, asked.stop) == (False, 0, 1, ())
    asked = ask(CHAT, HI | {"max_completion_tokens": None, "max_tokens": 7})
    assert asked.max_tokens == 7


def test_the_more_specific_name_of_a_session_wins():
    assert ask(CHAT, HI | {"user": "u", "safety_identifier": "s"}).session == "u"
    assert ask(CHAT, HI | {"user": "u", "prompt_cache_key": "k"}).session == "k"
    assert ask(CHAT, HI | {"safety_identifier": "s"}).session == "s"
    assert len(ask(CHAT, HI | {"user": "u" * 9000}).session) == 256


def test_tokens_are_estimated_from_the_prompt():
    long = [{"role": "user", "content": "x" * 4000}]
    assert ask(CHAT, HI | {"messages": long}).prompt_tokens == pytest.approx(1000, abs=10)
    tools = [{"type": "function", "description": "y" * 4000}]
    assert ask(CHAT, HI | {"messages": long, "tools": tools}).prompt_tokens > 1990
    assert ask(COMPLETIONS, SAY | {"prompt": "x" * 400}).prompt_tokens == 100
    assert ask(COMPLETIONS, SAY | {"prompt": [5] * 300}).prompt_tokens == 300
    assert ask(COMPLETIONS, SAY | {"prompt": [[5, 6], [7]]}).prompt_tokens == 3
    assert ask(COMPLETIONS, SAY | {"prompt": ""}).prompt_tokens == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 400_000, "format": "wav"}},
    ],
)
def test_a_picture_does_not_count_as_text(part):
    content = [{"type": "text", "text": "z" * 400}, part]
    messages = [{"role": "user", "content": content}, {"role": "user", "content": "w" * 400}]
    asked = ask(CHAT, HI | {"messages": messages})
    assert 200 < asked.prompt_tokens < 2000
    assert sent(asked)["messages"] == messages


def test_a_picture_among_long_texts_is_found_however_it_is_written():
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    messages = [{"role": "user", "content": "[1] " * 2_000}, {"role": "user", "content": [part]}]
    for text in (json.dumps(messages, separators=(",", ":")), json.dumps(messages)):
        body = b'{"model":"m","messages":%b}' % text.encode()
        asked = ask(CHAT, body)
        assert 2_000 < asked.prompt_tokens < 4_000


LONG: Final = "y" * 200_000  # about 50,000 tokens


@pytest.mark.parametrize(
    "member",
    [
        {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": LONG}]}]},
        {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": LONG}]}]},
        {"messages": [{"role": "assistant", "content": [], "tool_calls": [{"function": LONG}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": LONG}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 1}, LONG]}]},
        {"tools": [{"type": "function", "description": LONG}]},
        {"functions": [{"description": LONG}]},
        {"response_format": {"type": "json_schema", "json_schema": {"description": LONG}}},
        {"chat_template": LONG},
        {"chat_template_kwargs": {"system": LONG}},
        {"documents": [{"text": LONG}]},
    ],
    ids="/".join,
)
def test_whatever_may_become_the_prompt_is_counted(member):
    assert ask(CHAT, HI | member).prompt_tokens >= 49_900


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, SAY | {"prompt": [5, LONG]}),
        (COMPLETIONS, SAY | {"prompt": [[5], LONG]}),
        (COMPLETIONS, SAY | {"prompt": [[5, LONG]]}),
        (COMPLETIONS, SAY | {"suffix": LONG}),
        (RESPONSES, {"model": "m", "input": "x", "instructions": LONG}),
        (RESPONSES, {"model": "m", "input": "x", "tools": [{"description": LONG}]}),
        (RESPONSES, {"model": "m", "input": [{"type": "function_call_output", "output": LONG}]}),
        (EMBEDDINGS, {"model": "m", "messages": [{"role": "user", "content": LONG}]}),
        (RERANK, {"model": "m", "query": "q", "documents": ["d", {"text": LONG}]}),
        (RERANK, {"model": "m", "query": "q" * 2_000, "documents": ["d"] * 100}),
        (SPEECH, {"model": "m", "input": "x", "instructions": LONG}),
        (INFER, {"inputs": [{"name": "t", "datatype": "BYTES"}], "parameters": {"p": LONG}}),
    ],
)
def test_whatever_may_become_the_prompt_is_counted_in_every_api(path, body):
    assert ask(path, body).prompt_tokens >= 49_000


def test_texts_behind_the_head_of_an_infer_request_are_counted_and_pictures_are_not():
    for datatype in ("BYTES", "UINT8"):
        head = compact({"inputs": [{"name": "t", "datatype": datatype, "shape": [1]}]})
        headers = {b"inference-header-content-length": str(len(head)).encode()}
        asked = ask(INFER, head + LONG.encode(), headers=headers)
        assert (asked.prompt_tokens >= 50_000) is (datatype == "BYTES")


@pytest.mark.parametrize(
    ("path", "body", "choices"),
    [
        (CHAT, HI | {"n": 3}, 3),
        (COMPLETIONS, SAY | {"n": 2, "best_of": 4}, 4),
        (COMPLETIONS, SAY | {"n": 2, "prompt": ["a", "b", "c"]}, 6),
        (COMPLETIONS, SAY | {"prompt": [[1, 2], [3]]}, 2),
        (COMPLETIONS, SAY | {"prompt": [1, 2]}, 1),
        (IMAGES, {"model": "m", "prompt": "a cat", "n": 3}, 3),
        (EMBEDDINGS, {"model": "m", "input": ["a", "b"]}, 1),
    ],
)
def test_every_answer_that_is_asked_for_is_counted(path, body, choices):
    assert ask(path, body).choices == choices


def test_pictures_of_the_responses_api_do_not_count_as_text():
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + LONG}
    words = {"type": "input_text", "text": "What is it?"}
    body = {"model": "m", "input": [{"role": "user", "content": [words, picture]}]}
    assert 700 < ask(RESPONSES, body).prompt_tokens < 2_000


@pytest.mark.parametrize(
    ("member", "value"),
    [("background", True), ("conversation", "conv_1"), ("conversation", {"id": "conv_1"})],
)
def test_what_nobody_keeps_cannot_be_asked_for(member, value):
    body = {"model": "m", "input": "Hello"}
    error = refusal(RESPONSES, body | {member: value})
    assert (error.status, error.param) == (400, member)
    assert "Leave it out" in error.message
    assert ask(RESPONSES, body | {member: None}).stores
    assert refusal(RESPONSES, body | {"background": 7}).param == "background"
    assert ask(RESPONSES, body | {"background": False}).stores


@pytest.mark.parametrize("more", [{}, {"unlisted": {"a": [1]}}])
def test_the_answer_that_is_continued_gets_its_engines_own_id(more):
    body = {"model": "m", "input": "resp_ours", "previous_response_id": "resp_ours"} | more
    parsed = ask(RESPONSES, body)
    assert parsed.response_id == "resp_ours"
    parsed.keep_to("resp_theirs")
    for model in ("m", "other"):
        sent = json.loads(upstream_body(parsed, model, ask_usage=True, running_usage=False))
        assert sent == body | {"previous_response_id": "resp_theirs", "model": model}
    assert refusal(RESPONSES, body | {"previous_response_id": 7}).param == "previous_response_id"


def test_more_messages_than_allowed_are_refused_however_deep_the_text_may_be():
    limits = BodyConfig(messages_max=80)
    message = {"role": "user", "content": "{ [ {"}
    assert ask(CHAT, HI | {"messages": [message] * 80}, limits=limits).prompt_bytes > 2_000
    error = refusal(CHAT, HI | {"messages": [message] * 81}, limits=limits)
    assert (error.status, error.param) == (400, "messages")


@pytest.mark.parametrize("text", [b"[]", b"[ ]", b"[\n\t ]", b"null", b" null"])
def test_no_message_is_no_conversation(text):
    error = refusal(CHAT, b'{"model":"m","messages":%b}' % text)
    assert (error.status, error.code) == (400, "missing_required_parameter")


def test_json_is_expected_where_it_was_asked_for():
    for kind, expected in (("json_object", True), ("json_schema", True), ("text", False)):
        assert ask(CHAT, HI | {"response_format": {"type": kind}}).json_expected is expected
    form = {"format": {"type": "json_schema", "schema": {}}}
    assert ask(RESPONSES, {"model": "m", "input": "x", "text": form}).json_expected


def test_other_apis_are_read():
    asked = ask(EMBEDDINGS, {"model": "m", "input": ["a", "b"], "encoding_format": "base64"})
    assert (asked.stream, asked.hedgeable, asked.statistic) == (False, True, "norm")
    assert ask(EMBEDDINGS, {"model": "m", "messages": [{"role": "user"}]}).prompt_tokens >= 1
    asked = ask(RERANK, {"model": "m", "query": "q", "documents": ["a" * 40, {"text": "b"}]})
    assert asked.prompt_tokens > 10
    asked = ask(b"/rerank", {"model": "m", "query": "q", "documents": ["a"]})
    assert asked.api is routes.Api.RERANK
    assert ask(SPEECH, {"model": "m", "input": "hello", "voice": "x"}).opaque
    assert ask(IMAGES, {"model": "m", "prompt": "a cat", "n": 3}).n == 3
    asked = ask(RESPONSES, {"model": "m", "input": [{"role": "user"}], "max_output_tokens": 5})
    assert asked.max_tokens == 5


def test_what_has_an_effect_is_not_asked_twice():
    assert not ask(SPEECH, {"model": "m", "input": "hello"}).hedgeable
    assert not ask(IMAGES, {"model": "m", "prompt": "a cat"}).hedgeable
    assert not ask(RESPONSES, {"model": "m", "input": "x"}).hedgeable
    assert not ask(RESPONSES, {"model": "m", "input": "x", "store": True}).hedgeable
    assert ask(RESPONSES, {"model": "m", "input": "x", "store": False}).hedgeable


@pytest.mark.parametrize(
    "content_type",
    [b"application/json", b"Application/JSON; charset=utf-8", b"application/vnd.api+json"],
)
def test_json_comes_as_json(content_type):
    asked = ask(CHAT, HI, content_type=content_type)
    assert asked.type_line == b"content-type: application/json\r\n"


@pytest.mark.parametrize(
    "content_type",
    [b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data", b"json"],
)
def test_other_types_are_refused_since_any_web_page_may_send_them(content_type):
    error = refusal(CHAT, HI, content_type=content_type)
    assert (error.status, error.code) == (415, "unsupported_media_type")


# --- limits ---------------------------------------------------------------------------------------

SMALL = BodyConfig(
    json_depth_max=8,
    messages_max=3,
    n_max=4,
    max_tokens_max=100,
    stop_max=2,
    logit_bias_max=2,
    tools_max=2,
    inputs_max=3,
    top_logprobs_max=5,
    multipart_fields_max=3,
)
TOO_MUCH = [
    (CHAT, HI, {"messages": [{}] * 4}, "messages"),
    (CHAT, HI, {"messages": []}, "messages"),
    (CHAT, HI, {"messages": None}, "messages"),
    (CHAT, HI, {"messages": "hi"}, "messages"),
    (CHAT, HI, {"messages": {"role": "user"}}, "messages"),
    (CHAT, HI, {"n": 5}, "n"),
    (CHAT, HI, {"n": 0}, "n"),
    (CHAT, HI, {"n": -1}, "n"),
    (CHAT, HI, {"n": 10**9}, "n"),
    (CHAT, HI, {"n": 10**30}, "n"),
    (CHAT, HI, {"n": 1.5}, "n"),
    (CHAT, HI, {"n": "2"}, "n"),
    (CHAT, HI, {"n": True}, "n"),
    (CHAT, HI, {"max_tokens": 101}, "max_tokens"),
    (CHAT, HI, {"max_tokens": -1}, "max_tokens"),
    (CHAT, HI, {"max_tokens": 10.5}, "max_tokens"),
    (CHAT, HI, {"max_tokens": 101, "max_completion_tokens": 5}, "max_tokens"),
    (CHAT, HI, {"max_completion_tokens": 101}, "max_completion_tokens"),
    (CHAT, HI, {"stop": ["a", "b", "c"]}, "stop"),
    (CHAT, HI, {"stop": [1]}, "stop"),
    (CHAT, HI, {"stop": {"a": 1}}, "stop"),
    (CHAT, HI, {"logit_bias": {"1": 1, "2": 2, "3": 3}}, "logit_bias"),
    (CHAT, HI, {"logit_bias": [1]}, "logit_bias"),
    (CHAT, HI, {"tools": [{}] * 3}, "tools"),
    (CHAT, HI, {"tools": {}}, "tools"),
    (CHAT, HI, {"functions": [{}] * 3}, "functions"),
    (CHAT, HI, {"top_logprobs": 6}, "top_logprobs"),
    (CHAT, HI, {"logprobs": 6}, "logprobs"),
    (CHAT, HI, {"logprobs": "yes"}, "logprobs"),
    (CHAT, HI, {"prompt_logprobs": 6}, "prompt_logprobs"),
    (CHAT, HI, {"stream": 1}, "stream"),
    (CHAT, HI, {"stream": "true"}, "stream"),
    (CHAT, HI, {"stream_options": [1]}, "stream_options"),
    (CHAT, HI, {"stream_options": {"include_usage": "yes"}}, "stream_options"),
    (CHAT, HI, {"temperature": "hot"}, "temperature"),
    (CHAT, HI, {"temperature": True}, "temperature"),
    (CHAT, HI, {"presence_penalty": [1]}, "presence_penalty"),
    (CHAT, HI, {"frequency_penalty": "x"}, "frequency_penalty"),
    (CHAT, HI, {"response_format": "json"}, "response_format"),
    (CHAT, HI, {"user": 5}, "user"),
    (CHAT, HI, {"model": ""}, "model"),
    (CHAT, HI, {"model": None}, "model"),
    (CHAT, HI, {"model": 5}, "model"),
    (CHAT, HI, {"model": "a" * 257}, "model"),
    (CHAT, HI, {"model": "m\r\nx-evil: 1"}, "model"),
    (CHAT, HI, {"model": "m\u0000"}, "model"),
    (CHAT, HI, {"model": "../../etc"}, "model"),
    (COMPLETIONS, SAY, {"prompt": None}, "prompt"),
    (COMPLETIONS, SAY, {"prompt": 5}, "prompt"),
    (COMPLETIONS, SAY, {"prompt": []}, "prompt"),
    (COMPLETIONS, SAY, {"prompt": {"a": 1}}, "prompt"),
    (COMPLETIONS, SAY, {"prompt": ["a"] * 4}, "prompt"),
    (COMPLETIONS, SAY, {"prompt": [[1]] * 4}, "prompt"),
    (COMPLETIONS, SAY, {"best_of": 5}, "best_of"),
    (COMPLETIONS, SAY, {"logprobs": 6}, "logprobs"),
    (EMBEDDINGS, {"model": "m", "input": ["a"] * 4}, {}, "input"),
    (EMBEDDINGS, {"model": "m", "input": []}, {}, "input"),
    (EMBEDDINGS, {"model": "m", "input": "a", "stream": True}, {}, "stream"),
    (RERANK, {"model": "m", "query": "q", "documents": ["a"] * 4}, {}, "documents"),
    (RERANK, {"model": "m", "query": "q", "documents": []}, {}, "documents"),
    (RERANK, {"model": "m", "query": "q", "documents": "a"}, {}, "documents"),
    (RESPONSES, {"model": "m", "input": [{}] * 4}, {}, "input"),
    (RESPONSES, {"model": "m", "input": "a", "max_output_tokens": 101}, {}, "max_output_tokens"),
    (RESPONSES, {"model": "m", "input": "a", "tools": [{}] * 3}, {}, "tools"),
    (RESPONSES, {"model": "m", "input": "a", "text": "json"}, {}, "text"),
    (RESPONSES, {"model": "m", "input": "a", "store": "no"}, {}, "store"),
    (IMAGES, {"model": "m", "prompt": "a", "n": 5}, {}, "n"),
    (IMAGES, {"model": "m", "prompt": "a", "stream": True}, {}, "stream"),
    (SPEECH, {"model": "m", "input": {"a": 1}}, {}, "input"),
    (INFER, {"inputs": [{}] * 4}, {}, "inputs"),
    (INFER, {"inputs": {}}, {}, "inputs"),
]


@pytest.mark.parametrize(
    ("path", "body", "more", "param"), TOO_MUCH, ids=[f"{c[0].decode()}-{c[3]}" for c in TOO_MUCH]
)
def test_what_is_too_much_or_of_another_kind_is_refused_by_name(path, body, more, param):
    error = refusal(path, body | more, limits=SMALL)
    assert (error.status, error.param) == (400, param)
    assert param in error.message
    assert "evil" not in error.message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{}]}, "model"),
        (CHAT, {"model": "m"}, "messages"),
        (COMPLETIONS, {"model": "m"}, "prompt"),
        (EMBEDDINGS, {"model": "m"}, "input"),
        (RERANK, {"model": "m", "query": "q"}, "documents"),
        (RERANK, {"model": "m", "documents": ["a"]}, "query"),
        (RESPONSES, {"model": "m"}, "input"),
        (SPEECH, {"model": "m"}, "input"),
        (IMAGES, {"model": "m"}, "prompt"),
        (INFER, {}, "inputs"),
    ],
)
def test_what_is_required_is_asked_for(path, body, param):
    error = refusal(path, body)
    assert (error.status, error.code, error.param) == (400, "missing_required_parameter", param)


def test_what_is_just_within_the_limits_passes():
    asked = ask(
        CHAT,
        HI
        | {
            "messages": [{}] * 3,
            "n": 4,
            "max_tokens": 100,
            "stop": ["a", "b"],
            "logit_bias": {"1": 1, "2": 2},
            "tools": [{}] * 2,
            "top_logprobs": 5,
            "logprobs": True,
        },
        limits=SMALL,
    )
    assert asked.n == 4
    assert ask(COMPLETIONS, SAY | {"prompt": [1] * 999}, limits=SMALL).prompt_tokens == 999
    assert ask(COMPLETIONS, SAY | {"prompt_logprobs": -1}, limits=SMALL).n == 1


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 400])
@pytest.mark.parametrize(
    "name", [b"temperature", b"top_p", b"presence_penalty", b"frequency_penalty"]
)
def test_numbers_are_finite(name, number):
    body = b'{"model":"m","messages":[{}],"%b":%b}' % (name, number)
    assert refusal(CHAT, body).status == 400


def test_depth_is_bounded():
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    assert "deep" in refusal(CHAT, HI | {"metadata": deep}).message
    assert "deep" in refusal(CHAT, HI | {"messages": [deep]}).message


# --- continuation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, STREAM),
        (CHAT, STREAM | {"n": 1, "logprobs": False, "tools": [{}], "tool_choice": "auto"}),
        (CHAT, STREAM | {"response_format": {"type": "text"}, "modalities": ["text"]}),
        (CHAT, STREAM | {"stop": "x", "min_p": 0.1, "guided_json": None, "top_logprobs": 0}),
        (COMPLETIONS, SAY),
        (COMPLETIONS, SAY | {"best_of": 1, "echo": False, "suffix": None}),
    ],
)
def test_a_plain_stream_can_be_continued(path, body):
    asked = ask(path, body)
    assert asked.continuable
    assert asked.reason == ""


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        (CHAT, HI, "streams"),
        (CHAT, STREAM | {"n": 2}, "choice"),
        (CHAT, STREAM | {"logprobs": True}, "log"),
        (CHAT, STREAM | {"top_logprobs": 2}, "log"),
        (CHAT, STREAM | {"response_format": {"type": "json_object"}}, "guided"),
        (CHAT, STREAM | {"response_format": {"type": "structural_tag"}}, "guided"),
        (CHAT, STREAM | {"guided_regex": "a+"}, "guided"),
        (CHAT, STREAM | {"structured_outputs": {"choice": ["a"]}}, "guided"),
        (CHAT, STREAM | {"tool_choice": "required"}, "tool"),
        (CHAT, STREAM | {"tool_choice": {"type": "function"}}, "tool"),
        (CHAT, STREAM | {"modalities": ["text", "audio"]}, "text alone"),
        (CHAT, STREAM | {"audio": {"voice": "x"}}, "text alone"),
        (COMPLETIONS, SAY | {"best_of": 2}, "choice"),
        (COMPLETIONS, SAY | {"logprobs": 1}, "log"),
        (COMPLETIONS, SAY | {"echo": True}, "echoed"),
        (COMPLETIONS, SAY | {"suffix": "x"}, "inserted"),
        (COMPLETIONS, SAY | {"prompt": [1, 2]}, "one text"),
        (COMPLETIONS, SAY | {"prompt": ["a", "b"]}, "one text"),
        (COMPLETIONS, {"model": "m", "prompt_embeds": "x", "stream": True}, "not text"),
        (RESPONSES, {"model": "m", "input": "x", "stream": True}, "streams"),
        (EMBEDDINGS, {"model": "m", "input": "x"}, "streams"),
    ],
)
def test_what_cannot_be_continued_says_why(path, body, word):
    asked = ask(path, body)
    assert not asked.continuable
    assert word in asked.reason


# --- prefixes -------------------------------------------------------------------------------------


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def test_prefixes_are_hashed_only_when_wanted():
    body = HI | {"messages": turns("x" * 3000)}
    assert ask(CHAT, body).prefix == ()
    assert len(ask(CHAT, body, prefix_blocks=3).prefix) == 3
    assert len(ask(CHAT, body, prefix_blocks=64).prefix) == 4  # of 512, 1024, 1536 and 2048
    assert ask(CHAT, HI, prefix_blocks=64).prefix == ()


def test_a_later_turn_begins_like_the_one_before():
    first = ask(CHAT, HI | {"messages": turns("a" * 900, "b" * 900)}, prefix_blocks=64)
    later = ask(CHAT, HI | {"messages": turns("a" * 900, "b" * 900, "c" * 900)}, prefix_blocks=64)
    assert len(first.prefix) >= 3
    assert later.prefix[: len(first.prefix)] == first.prefix[:]
    assert len(later.prefix) > len(first.prefix)


def test_blanks_and_the_order_of_members_do_not_change_a_prefix():
    body = {"model": "m", "messages": turns("a" * 900, "b" * 900)}
    other = {"messages": body["messages"], "temperature": 1, "model": "m"}
    one = ask(CHAT, body, prefix_blocks=64).prefix[:]
    assert one == ask(CHAT, other, prefix_blocks=64).prefix[:]
    assert one == ask(CHAT, json.dumps(body).encode(), prefix_blocks=64).prefix[:]


def test_other_tools_are_another_prefix():
    body = HI | {"messages": turns("a" * 900)}
    plain = ask(CHAT, body, prefix_blocks=4).prefix
    tooled = ask(CHAT, body | {"tools": [{"a": 1}]}, prefix_blocks=4).prefix
    assert not set(plain) & set(tooled)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"model": "m", "prompt": "p" * 2000}),
        (EMBEDDINGS, {"model": "m", "input": "p" * 2000}),
        (RESPONSES, {"model": "m", "input": "p" * 2000}),
    ],
)
def test_other_prompts_have_prefixes_too(path, body):
    assert len(ask(path, body, prefix_blocks=2).prefix) == 2


# --- the body for an engine -----------------------------------------------------------------------


def test_a_body_that_needs_no_change_goes_out_as_it_came():
    text = compact(STREAM | {"temperature": 1.50})
    asked = ask(CHAT, text)
    assert upstream_body(asked, "m", ask_usage=False, running_usage=False) is text


@pytest.mark.parametrize("extra", [{}, {"min_p": 0.1}])
def test_the_model_is_renamed(extra):
    body = STREAM | {"metadata": {"model": "m"}, "messages": turns('"model":"m"')} | extra
    assert sent(ask(CHAT, body), "org/real") == body | {"model": "org/real"}


@pytest.mark.parametrize("extra", [{}, {"min_p": 0.1}])
@pytest.mark.parametrize("model", ["m", "other"])
def test_usage_is_asked_for_where_the_client_did_not(model, extra):
    asked = ask(CHAT, STREAM | extra)
    usage: dict[str, Any] = {"include_usage": True}
    expected = STREAM | extra | {"model": model, "stream_options": usage}
    assert sent(asked, model, usage=True) == expected
    usage["continuous_usage_stats"] = True
    assert sent(asked, model, usage=True, running=True) == expected
    assert sent(asked, model) == STREAM | extra | {"model": model}


@pytest.mark.parametrize("extra", [{}, {"min_p": 0.1}])
@pytest.mark.parametrize("options", [{}, {"include_usage": False, "x": 1}, None])
def test_a_clients_own_stream_options_are_kept_beside_it(options, extra):
    asked = ask(CHAT, STREAM | extra | {"stream_options": options})
    assert not asked.wants_usage
    told = sent(asked, usage=True)
    assert told["stream_options"] == (options or {}) | {"include_usage": True}


def test_who_asked_for_usage_gets_what_was_asked_for():
    body = STREAM | {"stream_options": {"include_usage": True}}
    assert sent(ask(CHAT, body), usage=True) == body
    asked = ask(CHAT, body)
    assert asked.wants_usage
    assert not asked.wants_running_usage
    running = {"include_usage": True, "continuous_usage_stats": True}
    assert sent(asked, usage=True, running=True)["stream_options"] == running
    every = ask(CHAT, STREAM | {"stream_options": running})
    assert every.wants_running_usage
    assert sent(every, usage=True, running=True) == STREAM | {"stream_options": running}


def test_usage_is_asked_for_in_streams_of_chat_and_completions_only():
    assert sent(ask(CHAT, HI), usage=True) == HI
    assert "stream_options" in sent(ask(COMPLETIONS, SAY), usage=True)
    body = {"model": "m", "input": "x", "stream": True}
    assert sent(ask(RESPONSES, body), usage=True) == body


def test_gateway_and_engine_cannot_read_two_models():
    tricks = [
        b'{"model":"m","messages":[{}],"model":"secret"}',
        b'{"model":"m","messages":[{}],"mod\\u0065l":"secret"}',
        b'{"model": "m", "messages": [{}], "model": "secret"}',
    ]
    for text in tricks:
        asked = ask(CHAT, text)
        assert sent(asked, asked.model)["model"] == asked.model == "secret"
        assert asked.body.count(b'"model"') == 1
        assert sent(asked, "real")["model"] == "real"
    assert refusal(CHAT, b'{"model":"m","messages":[{}],"Model":"secret"}').param == "model"


def test_where_a_request_goes_is_not_the_clients_choice():
    asked = ask(CHAT, STREAM | {"api_base": "http://evil", "api_key": "k", "min_p": 0.1})
    assert sent(asked, "real") == STREAM | {"model": "real", "min_p": 0.1}
    assert b"evil" not in asked.body


def test_pictures_and_engines_own_members_pass():
    content = [{"type": "image_url", "image_url": {"url": "https://example.org/y.png"}}]
    body = HI | {
        "messages": [{"role": "user", "content": content}],
        "chat_template_kwargs": {"a": 1},
    }
    assert sent(ask(CHAT, body)) == body


# --- KServe ---------------------------------------------------------------------------------------


def test_tensors_are_measured_unless_another_version_of_the_model_is_asked():
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'
    assert ask(INFER, body).statistic == "tensor"
    assert ask(b"/v2/models/m/versions/2/infer", body).statistic == ""


def test_an_infer_request_is_named_by_its_path():
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    asked = ask(b"/v2/models/org%2Fm/versions/2/infer", body)
    assert (asked.model, asked.version, asked.headers) == ("org/m", "2", b"")
    assert sent(asked, "other") == body
    assert asked.route.upstream_path("other", asked.version) == b"/v2/models/other/versions/2/infer"


@pytest.mark.parametrize("spaces", [False, True])
def test_binary_tensors_follow_their_head(spaces):
    head = b'{"inputs": [{"name":"x"}]}' if spaces else b'{"inputs":[{"name":"x"}]}'
    tensors = b"\x00\xff{" * 100
    asked = ask(
        INFER,
        head + tensors,
        content_type=b"application/octet-stream",
        headers={b"inference-header-content-length": b"%d" % len(head)},
    )
    body = upstream_body(asked, "m", ask_usage=False, running_usage=False)
    assert body == b'{"inputs":[{"name":"x"}]}' + tensors
    assert asked.headers == b"inference-header-content-length: 25\r\n"
    assert asked.type_line == b"content-type: application/octet-stream\r\n"


@pytest.mark.parametrize(
    "length", [b"", b"-1", b"x", b"1000", b"99999999999", b"3", b"+5", b"1, 1"]
)
def test_a_head_of_another_length_is_refused(length):
    headers = {b"inference-header-content-length": length}
    assert refusal(INFER, {"inputs": [{}]}, headers=headers).status == 400


def test_an_infer_request_may_come_without_a_type_but_not_with_a_wrong_one():
    assert ask(INFER, {"inputs": [{}]}, content_type=b"").model == "m"
    assert refusal(INFER, {"inputs": [{}]}, content_type=b"text/plain").status == 415


# --- forms ----------------------------------------------------------------------------------------

TRANSCRIBE = b"/v1/audio/transcriptions"
FORM_TYPE = b"multipart/form-data; boundary=XX"


def form(**fields: str) -> bytes:
    parts = [Field(name, text.encode()) for name, text in fields.items()]
    parts.append(Field("file", b"RIFF\x00", "a.wav", b"audio/wav"))
    return multipart.encode(parts, b"XX")


def transcribe(body: bytes, limits: BodyConfig = LIMITS) -> ParsedRequest:
    return ask(TRANSCRIBE, body, content_type=FORM_TYPE, limits=limits)


def test_a_form_is_read_and_written_anew():
    asked = transcribe(form(model="m", response_format="json", language="en"))
    assert (asked.model, asked.stream, asked.opaque) == ("m", False, False)
    body = upstream_body(asked, "whisper-1", ask_usage=True, running_usage=True)
    fields = multipart.parse(body, asked.boundary, 9)
    told = {field.name: bytes(field.value) for field in fields}
    assert told == {
        "model": b"whisper-1",
        "response_format": b"json",
        "language": b"en",
        "file": b"RIFF\x00",
    }


@pytest.mark.parametrize(
    ("kind", "opaque"), [("text", True), ("srt", True), ("verbose_json", False)]
)
def test_an_answer_that_is_no_json_is_the_clients_to_judge(kind, opaque):
    assert transcribe(form(model="m", response_format=kind)).opaque is opaque


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(), "model"),
        (form(model=""), "model"),
        (form(model="a b"), "model"),
        (form(model="m", stream="true"), "stream"),
        (multipart.encode([Field("model", b"m")], b"XX"), "file"),
        (
            multipart.encode(
                [Field("model", b"m"), Field("model", b"n"), Field("file", b"", "a")], b"XX"
            ),
            "model",
        ),
        (multipart.encode([Field("model", b"m", "model.txt")], b"XX"), "model"),
    ],
)
def test_a_wrong_form_is_refused_by_name(body, param):
    with pytest.raises(ApiError) as caught:
        transcribe(body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_fields_of_a_form_are_bounded():
    with pytest.raises(ApiError) as caught:
        transcribe(form(model="m", a="", b="", c=""), SMALL)
    assert caught.value.status == 400


# --- whatever is sent -----------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
member_names = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "input",
        "inputs",
        "n",
        "max_tokens",
        "stream",
        "stop",
        "tools",
        "stream_options",
        "logit_bias",
        "response_format",
        "documents",
        "query",
        "user",
        "text",
        "x",
        "logprobs",
        "temperature",
        "store",
        "best_of",
        "suffix",
        "prompt_logprobs",
        "functions",
    ]
)


@given(st.sampled_from(JSON_PATHS), st.dictionaries(member_names, json_values, max_size=6))
def test_every_object_is_a_request_or_refused(path, body):
    for text in (
        compact(body),
        json.dumps(HI | body, ensure_ascii=False).encode("utf-8", "replace"),
    ):
        try:
            asked = ask(path, text, prefix_blocks=4)
        except ApiError as error:
            assert 400 <= error.status < 500  # noqa: PT017 - and never another exception
            continue
        told = sent(asked, "renamed", usage=True, running=True)
        if path != INFER:
            assert told["model"] == "renamed"
        assert asked.prompt_tokens >= 1
        assert asked.n <= LIMITS.n_max


@given(st.sampled_from([*JSON_PATHS, TRANSCRIBE]), st.binary(max_size=120))
def test_arbitrary_bytes_are_a_request_or_refused(path, raw):
    for text in (raw, b'{"model":"m","messages":[{}],"prompt":' + raw + b"}", compact(HI) + raw):
        for content_type in (b"application/json", FORM_TYPE):
            try:
                ask(path, text, content_type=content_type, prefix_blocks=4)
            except ApiError as error:
                assert 400 <= error.status < 500  # noqa: PT017 - and never another exception


# --- small truths ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [b"1e999", b"-1e400", b'[1,{"a":1e999}]'])
@pytest.mark.parametrize("name", ["seed", "top_k", "min_p", "metadata", "repetition_penalty"])
def test_a_number_that_no_engine_can_hold_is_refused_by_its_name(name, number):
    for path, rest in ((CHAT, HI), (COMPLETIONS, SAY)):
        body = b'{"%b":%b,%b' % (name.encode(), number, compact(rest)[1:])
        error = refusal(path, body)
        assert (error.status, error.param) == (400, name)
        assert "finite" in error.message


def test_every_member_that_is_passed_on_unread_is_looked_at():
    for name in bodies._PASSED_ON[routes.Api.CHAT]:
        error = refusal(CHAT, b'{"%b":1e999,%b' % (name.encode(), compact(HI)[1:]))
        assert (error.status, error.param) == (400, name)


@pytest.mark.parametrize(("number", "value"), [(b"16.0", 16), (b"1.6e1", 16), (b"16", 16)])
def test_a_whole_number_may_be_written_with_a_fraction_of_nothing(number, value):
    asked = ask(CHAT, b'{"max_tokens":%b,"n":2.0,%b' % (number, compact(HI)[1:]))
    assert (asked.max_tokens, asked.n) == (value, 2)
    assert sent(asked)["max_tokens"] == value
    assert b'"max_tokens":16,' in asked.body


@pytest.mark.parametrize("number", [b"16.5", b"1e99", b"-1.0", b'"16.0"', b"1e999"])
def test_other_numbers_stay_refused(number):
    error = refusal(CHAT, b'{"max_tokens":%b,%b' % (number, compact(HI)[1:]))
    assert (error.status, error.param) == (400, "max_tokens")


@pytest.mark.parametrize("half", [b"\\ud800", b"\\udc00x", b"\\uD83D \\uDE00", b"\\ud83d\\ud83d"])
def test_half_a_letter_is_called_so(half):
    error = refusal(CHAT, b'{"model":"m","messages":[{"content":"%b"}]}' % half)
    assert (error.status, error.code) == (400, "invalid_json")
    assert "half of a letter" in error.message


def test_a_body_that_was_cut_off_is_not_called_half_a_letter():
    for body in (b'{"model":"\\ud83d\\ude00', b'{"model":"\\\\ud800', b'{"model":"m"'):
        error = refusal(CHAT, body)
        assert error.code == "invalid_json"
        assert "half" not in error.message


def test_a_missing_input_is_asked_for_in_the_words_of_its_api():
    for body in ({"model": "m"}, {"model": "m", "input": None}, {"model": "m", "input": []}):
        message = refusal(RESPONSES, body).message
        assert "messages and other items" in message
        assert "token ids" not in message
    assert "token ids" in refusal(EMBEDDINGS, {"model": "m"}).message


def test_no_prompt_beside_embeddings_of_one_is_no_prompt():
    asked = ask(COMPLETIONS, SAY | {"prompt": None, "prompt_embeds": "AAAA"})
    assert sent(asked)["prompt"] is None
    assert not asked.continuable
    assert refusal(COMPLETIONS, SAY | {"prompt": None}).param == "prompt"
