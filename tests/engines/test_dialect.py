from dataclasses import replace

from holdfast.engines.openai import DIALECT as PLAIN

KNOWING = replace(PLAIN, busy_bodies=(b"queue full",), loading_bodies=(b"Loading",))


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
