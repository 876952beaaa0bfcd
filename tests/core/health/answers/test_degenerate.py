"""Degenerate output: what must be caught, what must be let pass, however it is cut into pieces."""

import random
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.health.answers.degenerate import (
    DegenerateConfig,
    DegenerateDetector,
    Degeneration,
    suspicious_opening,
)
from holdfast.core.types import ConfigError
from sampling import examples

CONFIG = DegenerateConfig()
PROSE = (
    "A replica that answers is not a replica that is well. The light was green all night, and the "
    "requests hung; in the morning somebody looked at the text itself and saw what it had become. "
)
PYTHON = """def total(values):
    result = 0
    for value in values:
        if value is not None:
            result += value
    return result
"""


def fired(text, piece=5):
    detector = DegenerateDetector(CONFIG)
    for start in range(0, len(text), piece):
        verdict = detector.feed(text[start : start + piece])
        if verdict is not None:
            return verdict, start + piece
    return None, len(text)


MUST_FIRE = {
    "the endless exclamation mark": ("!" * 300, 200),
    "it after an honest beginning": (PROSE + "!" * 300, len(PROSE) + 200),
    "exclamation marks with spaces": ("! " * 150, 220),
    "two symbols": ("!?" * 150, 220),
    "replacement characters": ("\ufffd" * 200, 110),
    "NUL": ("ok" + "\x00" * 200, 110),
    "both": ("\x00\ufffd" * 100, 110),
    "one letter": ("a" * 3000, 1100),
    "one digit": ("0" * 3000, 1100),
    "one word": ("the " * 1000, 1100),
    "one word after prose": (PROSE * 10 + "the " * 1000, len(PROSE) * 10 + 1150),
    "four tokens": ("the cat sat on " * 300, 1200),
    "a phrase of 32 characters": ("abcdefghijklmnopqrstuvwxyz012345" * 200, 2200),
    "blank lines": ("{\n" + "\n" * 3000, 1200),
    "spaces": (" " * 3000, 1100),
    "dashes for ever": ("-" * 3000, 1100),
    "emoji": ("\U0001f600" * 300, 200),
    "a Chinese word": ("谢谢" * 1000, 1200),
    "closing brackets": ("}" * 500, 200),
    "empty tags": ("<unk>" * 400, 1200),
}

MUST_NOT_FIRE = {
    "prose": PROSE * 20,
    "code": PYTHON * 10,
    "a markdown rule": "Above\n\n" + "-" * 80 + "\n\nBelow\n\n" + "=" * 120 + "\n",
    "a heading underlined twice as long as anybody does": "Title\n" + "=" * 240,
    "a wide table": "|" + " name |" * 20 + "\n|" + "---|" * 20 + "\n" + "| 1 | 2 | 3 |\n" * 20,
    "a table's wide rule": "+" + ("-" * 30 + "+") * 8 + "\n",
    "leaders of a table of contents": "".join(f"Chapter {i}{'.' * 60}{i}\n" for i in range(30)),
    "deep indentation": "\n".join(" " * (4 * depth) + "if x:" for depth in range(40)),
    "laughing": "ha " * 60,
    "a hundred times yes": "yes\n" * 100,
    "yes, numbered": "".join(f"{i}. yes\n" for i in range(2000)),
    "lines to write at school": "I must not talk in class.\n" * 30,
    "a long list of numbers": ", ".join(map(str, range(3000))),
    "a list of primes": " ".join(
        str(i) for i in range(2, 3000) if all(i % j for j in (2, 3, 5, 7))
    ),
    "rows of zeros": "[" + "0, " * 16 + "0],\n" * 3,
    "an image of sharps": ("#" * 60 + "\n") * 20,
    "a small square": ("*" * 10 + "\n") * 10,
    "a triangle": "\n".join("*" * i for i in range(1, 60)),
    "a zigzag": "/\\" * 60,
    "a chessboard": ("⬛⬜" * 4 + "\n" + "⬜⬛" * 4 + "\n") * 4,
    "shouting": "What a goal" + "!" * 60 + " Again" + "!" * 60,
    "a code fence": "```python\n" + PYTHON + "```\n" * 3,
    "a form to fill in": "Name: " + "_" * 200,
    "a hex dump": "".join(f"{i:08x}  " + "00 " * 16 + "\n" for i in range(0, 1600, 16)),
    "a verse": "Row, row, row your boat, gently down the stream.\n" * 12,
    "a torn emoji": "so \ufffd\ufffd\ufffd\ufffd it goes. " * 30,
    "nothing": "",
}


@pytest.mark.parametrize("piece", [1, 4, 63, 10_000])
@pytest.mark.parametrize("name", MUST_FIRE)
def test_it_fires_on_output_that_is_no_answer(name, piece):
    text, _ = MUST_FIRE[name]
    verdict, _ = fired(text, piece)
    assert verdict is not None


@pytest.mark.parametrize("name", MUST_FIRE)
def test_it_fires_soon(name):
    text, by = MUST_FIRE[name]
    _, at = fired(text, piece=1)
    assert at <= by


@pytest.mark.parametrize("piece", [1, 4, 63, 10_000])
@pytest.mark.parametrize("name", MUST_NOT_FIRE)
def test_it_lets_ordinary_answers_pass(name, piece):
    assert fired(MUST_NOT_FIRE[name], piece) == (None, len(MUST_NOT_FIRE[name]))


def test_the_verdict_says_what_repeats_and_for_how_long_but_not_the_text():
    verdict, _ = fired("secret! " * 300)
    assert verdict.period == 8
    assert verdict.chars >= CONFIG.cycle_chars
    assert "a cycle of 8 characters" in verdict.reason
    assert "secret" not in repr(verdict)
    assert fired("!" * 200)[0].reason.startswith("one character repeated over 128")


def test_once_fired_it_stays_so():
    detector = DegenerateDetector(CONFIG)
    verdict = detector.feed("!" * 500)
    assert isinstance(verdict, Degeneration)
    assert detector.feed("and now something sensible") is verdict
    assert detector.feed(PROSE * 3) is verdict


def test_an_interrupted_run_starts_again():
    detector = DegenerateDetector(CONFIG)
    for _ in range(20):
        assert detector.feed("!" * 100 + " and on it goes, " + PROSE[:40]) is None


def test_memory_is_bounded():
    detector = DegenerateDetector(CONFIG)
    for _ in range(200):
        detector.feed(PROSE)
        assert len(detector._seen) < 64


@settings(max_examples=examples(60))
@given(
    st.text(max_size=80),
    st.text(min_size=1, max_size=32),
    st.integers(1, 160),
    st.lists(st.integers(1, 90), min_size=1, max_size=10),
)
def test_the_verdict_does_not_depend_on_how_the_text_was_cut(before, cycle, repeats, sizes):
    text = before + cycle * repeats
    whole = DegenerateDetector(CONFIG).feed(text)
    detector, verdict, start = DegenerateDetector(CONFIG), None, 0
    for size in sizes * len(text):
        if start >= len(text):
            break
        verdict = detector.feed(text[start : start + size])
        start += size
    assert verdict == whole


@settings(max_examples=examples(60))
@given(st.text(min_size=1, max_size=32), st.text(max_size=100))
def test_any_short_cycle_is_caught_in_the_end(cycle, before):
    assert fired(before + cycle * (64 * 32 // len(cycle) + 64 + 128), piece=7)[0] is not None


def test_random_words_never_fire():
    rng = random.Random(7)
    words = ["yes", "no", "1", "2", "3", "the", "a", "of", "-", "*", "|", "\n", "!", "?"]
    for _ in range(20):
        assert fired(" ".join(rng.choices(words, k=2000)))[0] is None


@pytest.mark.parametrize("field", ["broken_chars", "symbol_chars", "cycle_chars", "cycle_repeats"])
def test_a_bound_that_cannot_work_is_refused(field):
    with pytest.raises(ConfigError, match=f"degenerate.{field}"):
        DegenerateConfig(**{field: 3})


def test_the_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        CONFIG.symbol_chars = 1


HELD = ["!", "!!", "!!!!", "?" * 30, "\ufffd", "\x00\x00", "#" * 7, " " * 7, "\n" * 10, "-" * 12]
HELD += ["the the the the", "thethethethe", "0000", "yes\nyes\nyes\nyes\n", "!?!?!?!?", "; ; ; ; "]
NOT_HELD = [
    "",
    "Hello",
    "1. ",
    "#",
    "##",
    "######",
    "-",
    "---",
    "- ",
    "```",
    "```python",
    " ",
    "\n\n",
]
NOT_HELD += [
    "*",
    "**",
    "**Bold",
    "![image]",
    "ha ha ha",
    "www",
    "1",
    "10",
    "100",
    "¿",
    "¡Hola",
    "{",
]
NOT_HELD += [
    '{"',
    "<",
    "<think>",
    "the the cat",
    "!!!! no",
    "I",
    '"',
    "(",
    "[",
    "...",
    "谢谢",
    "A" * 3,
]
NOT_HELD += ["!" * 1000]


@pytest.mark.parametrize("text", HELD)
def test_an_opening_that_may_be_the_beginning_of_garbage_is_held(text):
    assert suspicious_opening(text) is True


@pytest.mark.parametrize("text", NOT_HELD)
def test_an_ordinary_opening_is_not_held(text):
    assert suspicious_opening(text) is False


@pytest.mark.parametrize("text", HELD)
def test_the_next_token_that_differs_ends_the_suspicion(text):
    assert suspicious_opening(text + "Well") is False
