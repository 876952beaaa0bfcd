import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.gateway.api.prompts import BLOCK_BYTES, Blocks, TokenRatio, estimate_tokens


@pytest.mark.parametrize(("n_bytes", "tokens"), [(0, 1), (3, 1), (4, 1), (8, 2), (4000, 1000)])
def test_four_bytes_are_a_token_and_nothing_is_still_one(n_bytes, tokens):
    assert estimate_tokens(n_bytes) == tokens


def test_another_ratio_can_be_known():
    assert estimate_tokens(100, 2.0) == 50


def test_a_ratio_starts_at_four_and_learns_what_is_reported():
    ratio = TokenRatio()
    assert ratio.bytes_per_token == 4.0
    for _ in range(100):
        ratio.observe(200, 100)
    assert ratio.bytes_per_token == pytest.approx(2.0, abs=0.05)
    assert ratio.tokens(200) == pytest.approx(100, abs=3)
    assert ratio.snapshot()["reports"] == 100


def test_a_few_reports_are_enough_to_move_it():
    ratio = TokenRatio()
    for _ in range(4):
        ratio.observe(150, 100)
    assert ratio.bytes_per_token < 2.1


def test_one_odd_report_among_many_moves_it_little():
    ratio = TokenRatio()
    for _ in range(50):
        ratio.observe(400, 100)
    ratio.observe(1600, 100)
    assert ratio.bytes_per_token < 4.7


@pytest.mark.parametrize(("n_bytes", "tokens"), [(0, 100), (-5, 100), (400, 0), (400, -1), (4, 1)])
def test_reports_that_say_nothing_are_ignored(n_bytes, tokens):
    ratio = TokenRatio()
    ratio.observe(n_bytes, tokens)
    assert ratio.bytes_per_token == 4.0


@given(st.lists(st.tuples(st.integers(-10, 10**9), st.integers(-10, 10**9)), max_size=50))
def test_a_ratio_stays_within_its_bounds(reports):
    ratio = TokenRatio()
    for n_bytes, tokens in reports:
        ratio.observe(n_bytes, tokens)
    assert 1.0 <= ratio.bytes_per_token <= 16.0


def test_only_whole_blocks_are_hashed():
    assert not Blocks(b"x" * 511, 10)
    assert len(Blocks(b"x" * 512, 10)) == 1
    assert len(Blocks(b"x" * 1535, 10)) == 2


def test_the_count_is_bounded():
    assert len(Blocks(b"x" * 100_000, 7)) == 7
    assert not list(Blocks(b"x" * 100_000, 0))


def test_each_hash_covers_all_before_it():
    a, b = b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES
    one, other = Blocks(a + b, 8), Blocks(b + b, 8)
    assert one[1] != other[1]
    assert len({*one, *other}) == 4


def test_a_longer_prompt_begins_with_the_hashes_of_the_shorter():
    text = bytes(range(256)) * 20
    assert Blocks(text, 64)[:4] == Blocks(text[: 4 * BLOCK_BYTES + 100], 64)[:]


def test_a_view_is_hashed_like_bytes():
    text = b"0123456789" * 200
    assert Blocks(memoryview(text), 64)[:] == Blocks(text, 64)[:]


def test_what_stands_before_the_prompt_changes_every_hash():
    text = b"x" * 1024
    assert not set(Blocks(text, 4)) & set(Blocks(text, 4, seed=5))


def test_hashes_are_the_same_in_every_process():
    code = "from holdfast.gateway.api.prompts import Blocks; print(Blocks(b'abc' * 1000, 3)[:])"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.strip() == str(Blocks(b"abc" * 1000, 3)[:])
