"""The question for likely tokens, in each shape, and answers of engines of every kind."""

import orjson
import pytest

from holdfast.core.canary import CanaryConfig, Shape, TokenChoice
from holdfast.engines import dialect
from holdfast.engines.canary_protocol import ask
from holdfast.engines.token_choices import ask_choices, read_choices

CHOICES = (
    TokenChoice("One", -0.1, (("One", -0.1), ("1", -2.5))),
    TokenChoice(",", 0.0, ((",", 0.0),)),
)


def entry(token, logprob, *others):
    likeliest = [{"token": text, "logprob": number, "bytes": []} for text, number in others]
    return {"token": token, "logprob": logprob, "bytes": [1], "top_logprobs": likeliest}


CHAT = {"content": [entry("One", -0.1, ("One", -0.1), ("1", -2.5)), entry(",", 0, (",", 0))]}
LISTS = {
    "tokens": ["One", ","],
    "token_logprobs": [-0.1, 0],
    "top_logprobs": [{"One": -0.1, "1": -2.5}, {",": 0}],
    "text_offset": [0, 3],
}


def answer(told, **more):
    return orjson.dumps({"choices": [{"index": 0, "logprobs": told, **more}], "usage": {}})


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "openai", "sglang"])
@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.COMPLETION])
def test_it_is_the_canarys_question_in_one_piece(engine, shape):
    known, canary = dialect(engine), CanaryConfig(shape=shape)
    usual, asked = ask(known, canary, "m"), ask_choices(known, canary, "m")
    assert asked is not None
    assert (asked.path, asked.shape, asked.streams) == (usual.path, shape, False)
    body, before = orjson.loads(asked.body), orjson.loads(usual.body)
    assert body.pop("stream") is False
    wanted = {"logprobs": body.pop("logprobs"), "top_logprobs": body.pop("top_logprobs", None)}
    chat = {"logprobs": True, "top_logprobs": 5}
    assert wanted == (chat if shape is Shape.CHAT else {"logprobs": 5, "top_logprobs": None})
    before.pop("stream")
    before.pop("stream_options", None)
    assert body == before


def test_numbers_have_no_tokens():
    assert ask_choices(dialect("vllm"), CanaryConfig(shape=Shape.EMBEDDING), "m") is None
    infer = CanaryConfig(shape=Shape.INFER, body='{"inputs": []}')
    assert ask_choices(dialect("triton"), infer, "m") is None


@pytest.mark.parametrize("told", [CHAT, LISTS])
def test_both_forms_are_read(told):
    assert read_choices(200, answer(told)) == CHOICES


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, answer(CHAT)),
        (500, b"oops"),
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"choices": []}'),
        (200, b'{"choices": [3]}'),
        (200, answer(None)),
        (200, answer([])),
        (200, answer({})),
        (200, answer({"content": None})),
        (200, answer({"content": [3]})),
        (200, answer({"content": [{"token": "One"}]})),
        (200, answer({"content": [{"token": 1, "logprob": -1}]})),
        (200, answer({"content": [{"token": "One", "logprob": True}]})),
        (200, answer({"tokens": ["One"], "token_logprobs": [-0.1]})),
        (200, answer({"tokens": ["One"], "token_logprobs": ["-0.1"], "top_logprobs": [{}]})),
        (200, answer(LISTS | {"top_logprobs": 3})),
    ],
)
def test_who_cannot_tell_tells_nothing(status, body):
    assert read_choices(status, body) == ()


def test_what_is_odd_in_it_is_left_out():
    odd = {"content": [entry("One", -0.1, ("1", None), (2, -0.1), ("I", -0.3)), {"token": ","}]}
    assert read_choices(200, answer(odd)) == (TokenChoice("One", -0.1, (("I", -0.3),)),)
    bare = {"content": [{"token": "One", "logprob": -0.1}]}
    assert read_choices(200, answer(bare)) == (TokenChoice("One", -0.1),)
    short = LISTS | {"top_logprobs": [None]}
    assert read_choices(200, answer(short)) == (TokenChoice("One", -0.1),)
