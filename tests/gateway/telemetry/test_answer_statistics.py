"""Statistics of answers, read beside what the client gets."""

import math
from array import array
from base64 import b64encode

import orjson
import pytest

from holdfast.gateway.api.chunks import read_chat_chunk
from holdfast.gateway.telemetry.answer_statistics import (
    LogprobMean,
    measured_logprob,
    measured_norm,
)


def chat(*logprobs: float | None, index: int = 0) -> bytes:
    content = [{"token": "a", "logprob": value, "top_logprobs": []} for value in logprobs]
    return orjson.dumps({"choices": [{"index": index, "logprobs": {"content": content}}]})


def vectors(*embeddings: object) -> bytes:
    return orjson.dumps({"data": [{"embedding": one} for one in embeddings]})


def test_the_mean_log_probability_of_a_chat():
    assert measured_logprob(chat(-1.0, -2.0, -3.0)) == (("logprob", -2.0),)


def test_the_mean_log_probability_of_a_completion():
    told = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5], "top_logprobs": None}
    body = orjson.dumps({"choices": [{"text": "ab", "index": 0, "logprobs": told}]})
    assert measured_logprob(body) == (("logprob", -0.5),)


@pytest.mark.parametrize(
    "body",
    [
        chat(),
        chat(None),
        chat(-1.0, index=1),
        b'{"choices":[{"logprobs":null}]}',
        b'{"choices":null}',
        b'{"choices":[{"logprobs":{"content":[{"logprob":"low"}]}}]}',
        b'{"choices":[{"logprobs":[-1,-2]}]}',
        b"no json",
        b"[" * 5_000,
    ],
)
def test_where_none_are_told_nothing_is_measured(body):
    assert measured_logprob(body) is None


def test_a_stream_is_measured_chunk_by_chunk_and_read_as_before():
    logprobs = LogprobMean()
    read = logprobs.reading(read_chat_chunk)
    for value in (-1.0, -3.0):
        choice = {"index": 0, "delta": {"content": "x"}}
        choice["logprobs"] = {"content": [{"token": "x", "logprob": value}]}
        assert read(orjson.dumps({"choices": [choice]})).text == "x"
    assert logprobs.measured() == (("logprob", -2.0),)


def test_the_norm_of_the_first_vector():
    assert measured_norm(vectors([3.0, 4.0], [1.0])) == (("norm", 5.0),)
    encoded = b64encode(array("f", [3.0, 4.0]).tobytes()).decode()
    assert measured_norm(vectors(encoded)) == (("norm", 5.0),)


@pytest.mark.parametrize(
    "body",
    [
        vectors(),
        vectors([]),
        vectors("%%%"),
        vectors("abcd"),  # three bytes are no number
        vectors([[1.0], [2.0]]),
        vectors({"1": 0.5}),
        vectors(b64encode(array("f", [math.nan]).tobytes()).decode()),
        b'{"data":1}',
        b"no json",
        vectors([0.125] * 300_000),
    ],
)
def test_what_has_no_length_is_not_measured(body):
    assert measured_norm(body) is None
