from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canary import CanaryConfig, Said, Shape
from holdfast.core.failure import Kind
from holdfast.core.types import ConfigError
from holdfast.engines import DIALECTS, dialect
from holdfast.engines import canary_protocol as asking_module
from holdfast.engines.canary_protocol import CanaryRequest, Trouble, ask, read, shape_of

VLLM = dialect("vllm")
CHAT = ask(VLLM, CanaryConfig(), "m")
COMPLETION = ask(VLLM, CanaryConfig(shape=Shape.COMPLETION), "m")
EMBEDDING = ask(VLLM, CanaryConfig(shape=Shape.EMBEDDING), "m")
TENSORS = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}'
INFER = ask(dialect("triton"), CanaryConfig(shape=Shape.INFER, body=TENSORS), "m")
PAGE_CONFIG = CanaryConfig(shape=Shape.HTTP, path="/score", body="{}", expect=("fine",))
PAGE = ask(dialect("openai"), PAGE_CONFIG, "m")
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
DONE = "[DONE]"


def chat(content=None, finish=None, **delta):
    if content is not None:
        delta["content"] = content
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def text(content, finish=None):
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish}]}


def stream(*events) -> bytes:
    parts = (event if isinstance(event, str) else orjson.dumps(event).decode() for event in events)
    return "".join(f"data: {part}\n\n" for part in parts).encode()


def told(body: bytes, asked: CanaryRequest = CHAT, status: int = 200, **headers: str):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read(VLLM, asked, status, named, body)


def failed(answer, words: str) -> bool:
    return isinstance(answer, Trouble) and answer.verdict == "fail" and words in answer.detail


WHOLE = stream(chat("", role="assistant"), chat("one"), chat(" two"), chat(finish="stop"))
END = stream(USAGE, DONE)

# --- questions ------------------------------------------------------------------------------------


def test_a_chat_is_asked_greedily_and_as_a_stream() -> None:
    config = CanaryConfig(prompt="say yes", tokens=4)
    asked = ask(VLLM, config, "the model")
    assert asked.path == "/v1/chat/completions"
    assert asked.streams
    assert ("content-type", "application/json") in asked.headers
    assert orjson.loads(asked.body) == {
        "model": "the model",
        "messages": [{"role": "user", "content": "say yes"}],
        "max_tokens": 4,
        "temperature": 0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_usage_is_asked_for_only_where_it_is_given() -> None:
    silent = replace(VLLM, final_usage=False)
    assert b"stream_options" not in ask(silent, CanaryConfig(), "m").body


def test_a_completion_has_a_prompt() -> None:
    assert COMPLETION.path == "/v1/completions"
    body = orjson.loads(COMPLETION.body)
    assert body["prompt"] == CanaryConfig().prompt
    assert body["stream"]
    assert "messages" not in body


def test_an_embedding_is_asked_for_as_numbers_in_one_piece() -> None:
    assert EMBEDDING.path == "/v1/embeddings"
    assert not EMBEDDING.streams
    assert orjson.loads(EMBEDDING.body)["encoding_format"] == "float"


def test_tensors_are_sent_as_given_to_the_model_by_its_name() -> None:
    config = CanaryConfig(shape=Shape.INFER, body=TENSORS)
    asked = ask(dialect("triton"), config, "a/b")
    assert asked.path == "/v2/models/a%2Fb/infer"
    assert asked.body == TENSORS.encode()


def test_another_endpoint_is_asked_at_its_own_path() -> None:
    assert (PAGE.path, PAGE.body, PAGE.streams) == ("/score", b"{}", False)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_engine_has_a_question_of_its_own_or_says_what_is_missing(name: str) -> None:
    known = dialect(name)
    if shape_of(known, CanaryConfig()) is Shape.CHAT:
        assert ask(known, CanaryConfig(), "m").streams
    else:
        with pytest.raises(ConfigError, match=r"canary\.body"):
            ask(known, CanaryConfig(), "m")


@pytest.mark.parametrize("body", ["not json", "[]", "{}", '{"inputs": 3}'])
def test_a_body_that_is_no_inference_request_is_refused(body: str) -> None:
    with pytest.raises(ConfigError, match=r"canary\.body"):
        ask(dialect("triton"), CanaryConfig(shape=Shape.INFER, body=body), "m")


# --- streams --------------------------------------------------------------------------------------


def test_a_whole_stream_is_an_answer_with_its_cost() -> None:
    assert told(WHOLE + END) == Said(text="one two", prompt_tokens=9, tokens=3)


@pytest.mark.parametrize(
    "body",
    [
        (WHOLE + END).replace(b"\n", b"\r\n"),
        (WHOLE + END).replace(b"\n", b"\r"),
        b"\xef\xbb\xbf: hello\n\n" + WHOLE + b": ping\n\nevent: x\nid: 1\nretry: 3\n\n" + END,
        (WHOLE + END).replace(b"data: ", b"data:"),
        (WHOLE + END)[:-2],  # only the very end may lack its blank line
        WHOLE + stream(USAGE),  # usage is the last word as well
        WHOLE + stream(DONE),
    ],
)
def test_streams_may_be_written_in_many_ways(body: bytes) -> None:
    answer = told(body)
    assert isinstance(answer, Said)
    assert answer.text == "one two"


def test_several_data_lines_are_one_event() -> None:
    body = b'data: {"choices":\ndata: [{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    assert told(body + END) == Said(text="x", prompt_tokens=9, tokens=3)


def test_thinking_aloud_is_output_too() -> None:
    body = stream(
        chat(reasoning_content="hm, "), chat(reasoning="well, "), chat("yes"), chat(finish="length")
    )
    assert told(body + END).text == "hm, well, yes"


def test_other_choices_are_not_mixed_in() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert told(stream(chat("a"), other, chat("b", finish="stop")) + END).text == "ab"
    assert failed(told(stream(chat("a"), other) + END), "finish reason")


def test_an_error_before_the_end_mark_is_a_failure_however_the_stream_ends() -> None:
    dead = {"error": {"message": "EngineCore encountered an issue.", "code": 500}}
    for events in ((chat("one"), dead, DONE), (dead, DONE), (chat("a", finish="stop"), dead, DONE)):
        assert failed(told(stream(*events)), "error event")
    old = {"object": "error", "message": "x", "code": 500}
    assert failed(told(stream(old, DONE)), "error event")
    bare = {"error": "Request failed", "error_type": "generation"}
    assert failed(told(stream(chat("one"), bare, DONE)), "error event")


def test_a_stream_that_was_cut_is_a_failure_wherever_it_was_cut() -> None:
    body = WHOLE + END
    for at in range(len(WHOLE)):
        answer = told(body[:at])
        assert isinstance(answer, Trouble), at
        assert answer.verdict == "fail"


def test_a_cut_between_the_last_word_and_the_end_counts_for_a_chat() -> None:
    assert failed(told(WHOLE), "cut off behind its last word")
    assert told(WHOLE).flaw is Kind.CUT


def test_a_completion_is_whole_with_its_finish_reason() -> None:
    body = stream(text("one"), text(" two", finish="length"))
    assert told(body, COMPLETION) == Said(text="one two")
    assert failed(told(stream(text("one")), COMPLETION), "cut off")


def test_the_end_mark_alone_proves_nothing() -> None:
    assert failed(told(stream(chat("one"), DONE)), "without a finish reason")
    assert failed(told(stream(DONE)), "without a finish reason")
    assert failed(told(b""), "cut off")
    assert {told(body).flaw for body in (stream(chat("one"), DONE), b"")} == {Kind.CUT}


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_giving_up_is_not_finishing(finish: str) -> None:
    assert failed(told(stream(chat("one"), chat(finish=finish)) + END), "gave up")


@pytest.mark.parametrize("content", ["", " ", "\n\n"])
def test_an_answer_without_a_word_is_a_failure(content: str) -> None:
    assert failed(told(stream(chat(content), chat(finish="stop")) + END), "without a word")


def test_whatever_follows_the_end_is_not_the_protocol() -> None:
    assert failed(told(WHOLE + END + stream(chat("more"))), "behind the end")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>502 Bad Gateway</html>",
        orjson.dumps({"choices": [{"message": {"content": "one"}, "finish_reason": "stop"}]}),
        b'{"error": {"message": "no"}}',
        b"\x00\xff\xfe\n\n",
        b"data: {broken\n\n",
        b"data: [1]\n\n",
        b'data: {"choices": 3}\n\n',
        b'data: {"choices": [3]}\n\n',
        b'data: {"choices": [{"delta": 3}]}\n\n',
        b"data: \xff\xfe\n\n",
    ],
)
def test_what_is_no_stream_of_chunks_is_a_failure(body: bytes) -> None:
    answer = told(body)
    assert isinstance(answer, Trouble)
    assert answer.verdict == "fail"


def test_counts_that_are_none_are_not_told() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": "9", "completion_tokens": -1}}
    assert told(WHOLE + stream(usage, DONE)) == Said(text="one two")


def test_a_refusal_inside_a_stream_is_read_as_one_before_the_first_word() -> None:
    sglang = dialect("sglang")
    full = {"error": {"message": "The request queue is full.", "code": 503}}
    for frame in (full, {"error": {**full["error"], "code": "503"}}):
        assert read(sglang, CHAT, 200, {}, stream(frame, DONE)).verdict == "busy"
    assert read(sglang, CHAT, 200, {}, stream(chat("one"), full, DONE)).verdict == "fail"
    limited = {"error": {"message": "slow down", "code": 429}}
    assert told(stream(limited, DONE)).verdict == "busy"


# --- refusals -------------------------------------------------------------------------------------

LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


def test_loading_is_told_by_the_engines_own_words() -> None:
    llamacpp = dialect("llamacpp")
    assert read(llamacpp, CHAT, 503, {}, LOADING).verdict == "loading"
    assert read(VLLM, CHAT, 503, {}, LOADING).verdict == "fail"  # not this engine's words


def test_loading_is_told_by_a_header_though_it_comes_with_retry_after() -> None:
    headers = {"Retry-After": "1", "X-TRTLLM-Server-State": "STARTING"}
    assert read(dialect("trtllm"), CHAT, 503, headers, b"").verdict == "loading"
    assert read(VLLM, CHAT, 503, headers, b"").verdict == "busy"
    ready = {**headers, "X-TRTLLM-Server-State": "ready"}
    assert read(dialect("trtllm"), CHAT, 503, ready, b"").verdict == "busy"


def test_backpressure_is_told_from_a_failure() -> None:
    assert told(b"", status=429).verdict == "busy"
    assert told(b"", status=503, retry_after="1").verdict == "busy"
    assert told(b'{"error": "Request queue full."}', status=503).verdict == "busy"
    assert failed(told(b"", status=503), "HTTP 503")


@pytest.mark.parametrize(
    ("name", "status", "body"),
    [
        ("vllm", 404, b'{"error":{"message":"The model `m` does not exist.","param":"model"}}'),
        ("ollama", 404, b'{"error":{"message":"model \\"m\\" not found, try pulling it first"}}'),
        ("triton", 400, b'{"error":"Request for unknown model: \'m\' is not found"}'),
        ("triton", 404, b'{"error":"Request for unknown model: \'m\' has no versions"}'),
    ],
)
def test_a_model_that_is_not_there_is_missing(name: str, status: int, body: bytes) -> None:
    asked = INFER if name == "triton" else CHAT
    assert read(dialect(name), asked, status, {}, body).verdict == "missing"


@pytest.mark.parametrize(
    ("asked", "body"),
    [
        (CHAT, b'{"detail":"Not Found"}'),
        (CHAT, b"<html>nothing here</html>"),
        (INFER, b"Cannot POST /v2/models/m/infer"),
    ],
)
def test_a_path_that_is_not_there_is_a_failure(asked: CanaryRequest, body: bytes) -> None:
    assert failed(read(VLLM, asked, 404, {}, body), "HTTP 404")


@pytest.mark.parametrize("status", [301, 400, 401, 403, 500, 502, 504])
def test_other_statuses_are_failures_and_name_themselves(status: int) -> None:
    assert failed(told(b'{"error": "secret model words"}', status=status), f"HTTP {status}")


@given(st.binary(max_size=200), st.sampled_from([CHAT, COMPLETION, EMBEDDING, INFER, PAGE]))
def test_any_bytes_are_judged_and_never_repeated(body: bytes, asked: CanaryRequest) -> None:
    answer = read(VLLM, asked, 200, {}, body)
    if isinstance(answer, Trouble):
        assert answer.verdict in {"fail", "busy", "loading", "missing"}
        assert answer.detail
    else:
        assert asked is PAGE or answer.text or answer.vector or answer.tensors


def test_a_detail_never_quotes_the_body() -> None:
    secret = b"the user's secret"
    for body in (secret, b"data: " + secret + b"\n\n", b'{"error": "%b"}' % secret):
        for asked in (CHAT, EMBEDDING, INFER):
            for status in (200, 404, 500, 503):
                assert "secret" not in told(body, asked, status).detail


# --- numbers --------------------------------------------------------------------------------------


def embedding(vector, **more) -> bytes:
    return orjson.dumps({"data": [{"index": 0, "embedding": vector}], **more})


def test_an_embedding_is_a_vector() -> None:
    body = embedding([0.5, -1, 2e-3], usage={"prompt_tokens": 7, "total_tokens": 7})
    assert told(body, EMBEDDING) == Said(vector=(0.5, -1.0, 0.002), prompt_tokens=7)
    assert told(embedding([1]), EMBEDDING) == Said(vector=(1.0,))


@pytest.mark.parametrize(
    "body",
    [
        embedding([0.5, None]),
        b'{"data":[{"embedding":[0.5,NaN]}]}',
        b'{"data":[{"embedding":[-Infinity]}]}',
        b'{"data":[{"embedding":[1e999]}]}',
        b'{"data":[{"embedding":[1%b]}]}' % (b"0" * 400),
    ],
)
def test_numbers_that_are_not_finite_are_a_failure_and_called_so(body: bytes) -> None:
    assert failed(told(body, EMBEDDING), "non-finite")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"data": []}',
        b'{"data": [3]}',
        b'{"data": [{}]}',
        embedding([]),
        embedding([0, 0.0]),
        embedding(["0.5"]),
        embedding([[0.5]]),
        embedding("AACAPw=="),
        embedding([1], error={"message": "no"}),
        b'{"data": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_embedding_is_a_failure(body: bytes) -> None:
    answer = told(body, EMBEDDING)
    assert isinstance(answer, Trouble)
    assert answer.verdict == "fail"


def inferred(*outputs) -> bytes:
    return orjson.dumps({"model_name": "m", "outputs": list(outputs)})


def test_tensors_are_flattened_in_their_order() -> None:
    body = inferred(
        {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, [4]], 5]},
        {"name": "b", "datatype": "BOOL", "shape": [2], "data": [True, False]},
    )
    expected = (("a", (1.0, 2.0, 3.0, 4.0, 5.0)), ("b", (1.0, 0.0)))
    assert read(dialect("triton"), INFER, 200, {}, body) == Said(tensors=expected)


def test_bytes_are_text() -> None:
    words = {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["one", "two"]}
    assert told(inferred(words), INFER) == Said(text="one\ntwo")
    both = told(inferred(words, {"name": "n", "datatype": "INT64", "data": [3]}), INFER)
    assert both == Said(text="one\ntwo", tensors=(("n", (3.0,)),))


@pytest.mark.parametrize("bad", [b"NaN", b"Infinity", b"-Infinity", b"null", b"1e999"])
def test_a_tensor_with_a_number_that_is_none_is_a_failure(bad: bytes) -> None:
    body = b'{"outputs":[{"name":"a","datatype":"FP32","data":[1.0,[%b]]}]}' % bad
    assert failed(told(body, INFER), "non-finite")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"error": "in ensemble: failed"}',
        inferred(),
        inferred(3),
        inferred({"name": "a"}),
        inferred({"name": "a", "datatype": "FP32", "data": []}),
        inferred({"name": "a", "datatype": "FP32", "data": [[], []]}),
        inferred({"name": "a", "datatype": "FP32", "data": ["x"]}),
        inferred({"name": "a", "datatype": "BYTES", "data": [" "]}),
        inferred({"name": "a", "datatype": "FP32", "parameters": {"binary_data_size": 4}}),
    ],
)
def test_what_is_no_inference_is_a_failure(body: bytes) -> None:
    answer = told(body, INFER)
    assert isinstance(answer, Trouble)
    assert answer.verdict == "fail"


def test_binary_tensors_are_refused_by_name() -> None:
    answer = told(b"{}\0\0", INFER, inference_header_content_length="2")
    assert failed(answer, "binary")


def test_there_is_a_bound_on_numbers(monkeypatch) -> None:
    monkeypatch.setattr(asking_module, "NUMBERS_MAX", 3)
    assert told(embedding([1, 2, 3]), EMBEDDING).vector == (1.0, 2.0, 3.0)
    assert failed(told(embedding([1, 2, 3, 4]), EMBEDDING), "more numbers")
    body = inferred({"name": "a", "datatype": "FP32", "data": [[1, 2], [3, 4]]})
    assert failed(told(body, INFER), "more numbers")


# --- other endpoints ------------------------------------------------------------------------------


def test_a_page_without_a_check_is_its_text() -> None:
    assert told(b"all fine", PAGE) == Said(text="all fine")
    assert told(b"all fine", PAGE, 204) == Said(text="all fine")
    assert failed(told(b" \n", PAGE), "empty")
    assert failed(told(b"all fine", PAGE, 500), "HTTP 500")


def test_the_users_check_sees_status_and_body_and_decides() -> None:
    seen = []

    def check(status: int, body: bytes) -> bool | str:
        seen.append((status, body))
        return {b"yes": True, b"no": False, b"mute": ""}.get(body, "the label is wrong")

    def judged(body: bytes, status: int = 200):
        return read(VLLM, PAGE, status, {}, body, check)

    assert judged(b"yes") == Said(check=True)
    assert judged(b"yes", 418) == Said(check=True)  # the check is asked about any status
    assert judged(b"no") == Said(check=False, note="the check refused it")
    assert judged(b"odd") == Said(check=False, note="the label is wrong")
    assert judged(b"mute").note
    assert seen[:2] == [(200, b"yes"), (418, b"yes")]


def test_backpressure_is_not_put_to_the_check() -> None:
    def check(status: int, body: bytes) -> bool:
        raise AssertionError("asked")

    assert read(VLLM, PAGE, 429, {}, b"", check).verdict == "busy"
    assert read(VLLM, PAGE, 503, {"retry-after": "3"}, b"", check).verdict == "busy"


def test_a_check_that_breaks_is_told_and_not_the_replicas_answer() -> None:
    def raises(status: int, body: bytes) -> bool:
        raise KeyError(body)

    answer = read(VLLM, PAGE, 200, {}, b"secret", raises)
    assert failed(answer, "the check raised KeyError")
    assert "secret" not in answer.detail
    assert failed(read(VLLM, PAGE, 200, {}, b"x", lambda *_: None), "NoneType")


def test_a_check_is_for_other_endpoints_only() -> None:
    assert isinstance(read(VLLM, CHAT, 200, {}, WHOLE + END, lambda *_: False), Said)
