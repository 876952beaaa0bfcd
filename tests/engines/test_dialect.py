from dataclasses import replace

import pytest

from holdfast.engines.openai import DIALECT as PLAIN

KNOWING = replace(
    PLAIN,
    busy_bodies=(b"queue full",),
    loading_bodies=(b"Loading",),
    draining_bodies=(b"stopping",),
)


def test_a_drain_is_backpressure_to_a_request_and_more_to_whoever_sends_them() -> None:
    assert KNOWING.says_draining(503, b"it is stopping")
    assert KNOWING.says_busy(503, b"it is stopping")
    assert not KNOWING.says_draining(503, b"queue full")
    assert not KNOWING.says_draining(500, b"it is stopping")
    assert not PLAIN.says_draining(503, b"it is stopping")


def test_a_bare_503_is_neither_busy_nor_loading() -> None:
    for body in (b"", b"Service Unavailable", b"<html>queue full</html>"):
        assert not PLAIN.says_busy(503, body)
        assert not PLAIN.says_loading(503, body)


def test_a_503_with_the_engines_own_words_is() -> None:
    assert KNOWING.says_busy(503, b'{"error": "queue full, try again"}')
    assert not KNOWING.says_busy(503, b"Loading model")
    assert KNOWING.says_loading(503, b"Loading model")
    assert not KNOWING.says_loading(503, b"queue full")


def test_the_words_mean_nothing_under_another_status() -> None:
    for status in (200, 400, 500, 502):
        assert not KNOWING.says_busy(status, b"queue full")
        assert not KNOWING.says_loading(status, b"Loading")


def test_a_header_says_loading_where_the_engine_has_one() -> None:
    known = replace(PLAIN, loading_header=("x-state", "starting"))
    assert known.says_loading(503, b"", {"x-state": " Starting "})
    assert not known.says_loading(503, b"", {"x-state": "ready"})
    assert not known.says_loading(503, b"", {})
    assert not known.says_loading(503, b"")
    assert not known.says_loading(200, b"", {"x-state": "starting"})
    assert not PLAIN.says_loading(503, b"", {"x-state": "starting"})


def test_a_missing_model_is_told_by_a_refusal_only() -> None:
    known = replace(PLAIN, missing_bodies=(b"unknown model",))
    for status in (400, 404):
        assert known.says_missing(status, b'{"error": "unknown model m"}')
        assert not known.says_missing(status, b"bad request")
    assert not known.says_missing(500, b"unknown model")
    assert not PLAIN.says_missing(404, b"unknown model")


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}',
        b'{"object":"error","message":"The model \'x\' was not found","code":404}',
        b'{"error":"model \'x\' not found, try pulling it first"}',
        b'{"error":"Request for unknown model: \'x\' is not found"}',
        b'{"error":{"message":"No such model: x"}}',
        b'{"detail":"Model not loaded"}',
    ],
)
def test_a_404_about_the_model_is_told_from_one_about_the_path(body: bytes) -> None:
    assert PLAIN.says_no_model(404, body)
    assert not PLAIN.says_no_model(501, body)
    assert not PLAIN.says_no_model(405, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"detail":"Not Found"}',
        b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
        b"404 page not found",
        b'{"error":{"message":"The model does not support the Embeddings API"}}',
        b'{"error":{"message":"Response with id \'resp_1\' not found."}}',
        b'{"models":[]}{"message":"not found"}',
    ],
)
def test_a_404_about_the_path_says_nothing_of_the_model(body: bytes) -> None:
    assert not PLAIN.says_no_model(404, body)
