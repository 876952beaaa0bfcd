"""The modelled prefix cache: what stays, what goes first, and what an engine saves by it."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.types import MILLISECOND, SECOND, ConfigError, Request
from holdfast.sim.clock import Clock
from holdfast.sim.engine import Engine
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.memory.prefix_cache import PrefixCache
from holdfast.sim.request_record import EngineRun, RequestRecord

BLOCK = 100  # tokens
# A step of 10 ms, and a millisecond for each prompt token that is computed.
LAW = EngineParameters(
    step_ms=10.0,
    per_sequence_ms=0.0,
    per_kv_token_ms=0.0,
    per_prompt_token_ms=1.0,
    kv_tokens_max=1_000,
    kv_block_tokens=BLOCK,
)


def cache(blocks: int) -> PrefixCache:
    return PrefixCache(blocks * BLOCK, BLOCK)


def visit(one: PrefixCache, *prefix: int, answer: int = 0) -> int:
    """A request that comes and ends; how many of its leading blocks were there."""
    before = one.hits
    tokens = len(prefix) * BLOCK + answer
    one.hold(prefix, tokens)
    one.release(prefix, tokens)
    return one.hits - before


# --- the cache ------------------------------------------------------------------------------------


def test_a_prompt_that_comes_back_finds_its_blocks() -> None:
    one = cache(10)
    assert visit(one, 1, 2, 3) == 0
    assert visit(one, 1, 2, 3, 4) == 3
    assert (one.asked, one.hits, len(one)) == (7, 3, 4)


def test_only_leading_blocks_count() -> None:
    one = cache(10)
    visit(one, 1, 2, 3)
    assert one.leading((9, 2, 3)) == 0
    assert one.leading((1, 9, 3)) == 1
    assert one.leading(()) == 0


def test_the_prompt_used_longest_ago_goes_first_and_its_end_before_its_beginning() -> None:
    one = cache(5)
    visit(one, 1, 2, 3)
    visit(one, 11, 12)
    visit(one, 21)  # one block too many: the end of the oldest goes
    assert one.leading((1, 2, 3)) == 2
    assert one.leading((11, 12)) == 2
    visit(one, 1, 2)  # used again: now the other is the oldest
    visit(one, 31, 32)
    assert one.leading((1, 2)) == 2
    assert one.leading((11, 12)) == 0


def test_blocks_of_a_running_request_stay_whatever_comes() -> None:
    one = cache(4)
    one.hold((1, 2, 3), 3 * BLOCK)
    for number in range(10, 30):
        visit(one, number)
    assert one.leading((1, 2, 3)) == 3
    one.release((1, 2, 3), 3 * BLOCK)
    for number in range(10, 14):
        visit(one, number)
    assert one.leading((1,)) == 0


def test_a_block_that_two_requests_hold_is_kept_until_both_are_over() -> None:
    one = cache(2)
    one.hold((1,), BLOCK)
    one.hold((1, 2), 2 * BLOCK)
    one.release((1,), BLOCK)
    visit(one, 9)
    assert one.leading((1, 2)) == 2
    one.release((1, 2), 2 * BLOCK)
    assert visit(one, 8, 9) == 0
    assert one.leading((1, 2)) == 0


def test_answers_take_room_from_cached_prompts_while_they_run() -> None:
    one = cache(6)
    visit(one, 1, 2, 3)
    one.hold((9,), BLOCK + 4 * BLOCK)  # one block of its prompt, four of its answer
    assert one.leading((1, 2, 3)) == 1
    one.release((9,), BLOCK + 4 * BLOCK)
    assert len(one) == 2


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    one = cache(10)
    visit(one, 1, 2)
    assert one.cached_tokens((1, 2), 2 * BLOCK) == 2 * BLOCK - 1
    assert one.cached_tokens((1, 2), 2 * BLOCK + 50) == 2 * BLOCK
    assert one.cached_tokens((1, 2), 0) == 0


def test_a_new_process_begins_with_nothing_cached() -> None:
    one = cache(10)
    one.hold((1, 2), 2 * BLOCK)
    visit(one, 3)
    one.clear()
    assert (len(one), one.leading((1, 2)), one.leading((3,))) == (0, 0, 0)
    assert one.asked == 3  # what was found so far is history all the same


prompts = st.lists(st.integers(0, 12), max_size=5, unique=True).map(tuple)


@settings(max_examples=150)
@given(st.lists(st.tuples(prompts, st.integers(0, 3), st.booleans()), max_size=40))
def test_whatever_comes_it_keeps_to_its_memory_and_to_what_runs(
    sequence: list[tuple[tuple[int, ...], int, bool]],
) -> None:
    one = cache(8)
    running: list[tuple[Sequence[int], int]] = []
    for prefix, answer, ends in sequence:
        tokens = len(prefix) * BLOCK + answer * BLOCK
        before = one.leading(prefix)
        hits = one.hits
        one.hold(prefix, tokens)
        assert one.hits - hits == before <= len(prefix)
        running.append((prefix, tokens))
        if ends:
            one.release(*running.pop(0))
        held = {block for blocks, _ in running for block in blocks}
        assert held == set(one._used)
        assert not held & set(one._idle)
        beyond = sum(tokens // BLOCK - len(blocks) for blocks, tokens in running)
        assert one._beyond == beyond
        # What runs may need more than there is, as the engine alone bounds it; caching may not.
        assert not one._idle or len(one) + beyond <= 8
    while running:
        one.release(*running.pop())
    assert (one._beyond, one._used) == (0, {})


# --- the engine -----------------------------------------------------------------------------------


class Bench:
    """An engine, and when each request had its first token."""

    def __init__(self, law: EngineParameters = LAW) -> None:
        self.clock = Clock()
        self.first: dict[int, int] = {}
        self.engine = Engine(law, self.clock, self.on_first, self.on_done, lambda *_: None)

    def on_first(self, run: EngineRun, now: int) -> None:
        if run.owner is not None:
            self.first[int(run.owner.request.id)] = now - run.sent_at

    def on_done(self, run: EngineRun, now: int) -> None:
        """Nobody waits for it."""

    def send(self, number: int, *prefix: int, output: int = 1) -> EngineRun:
        tokens = len(prefix) * BLOCK
        request = Request(number, "m", arrived=0, prompt_tokens=tokens, prefix=prefix)
        run = EngineRun(RequestRecord(request, output), "r", 0, tokens, output)
        run.sent_at = self.clock.now
        assert self.engine.submit(run, self.clock.now)
        return run


def test_a_cached_beginning_is_not_computed_again() -> None:
    bench = Bench()
    bench.send(1, 1, 2)
    bench.clock.run(SECOND)
    bench.send(2, 1, 2, 3)
    bench.clock.run(2 * SECOND)
    assert bench.first == {1: 210 * MILLISECOND, 2: 110 * MILLISECOND}
    assert bench.engine.cache is not None
    assert (bench.engine.cache.asked, bench.engine.cache.hits) == (5, 2)


def test_without_a_block_size_everything_is_computed() -> None:
    bench = Bench(
        EngineParameters(
            step_ms=10.0,
            per_sequence_ms=0.0,
            per_kv_token_ms=0.0,
            per_prompt_token_ms=1.0,
            kv_tokens_max=1_000,
        )
    )
    bench.send(1, 1, 2)
    bench.clock.run(SECOND)
    bench.send(2, 1, 2)
    bench.clock.run(2 * SECOND)
    assert bench.first == {1: 210 * MILLISECOND, 2: 210 * MILLISECOND}
    assert bench.engine.cache is None


def test_what_a_cancelled_request_computed_stays_cached_and_its_hold_ends() -> None:
    bench = Bench()
    run = bench.send(1, 1, 2, output=500)
    bench.clock.run(SECOND)
    bench.engine.cancel(run, bench.clock.now)
    bench.clock.run(2 * SECOND)
    cache = bench.engine.cache
    assert cache is not None
    assert (cache._used, cache.leading((1, 2))) == ({}, 2)


def test_a_crash_takes_the_cache_with_it() -> None:
    bench = Bench()
    bench.send(1, 1, 2)
    bench.clock.run(SECOND)
    bench.send(2, 5, output=300)
    bench.clock.run(2 * SECOND)
    bench.engine.crash(bench.clock.now)
    bench.send(3, 1, 2)
    bench.clock.run(4 * SECOND)
    assert bench.first[3] == 210 * MILLISECOND


def test_prompts_that_are_cached_do_not_fill_a_step() -> None:
    """Two prompts of 200 tokens do not fit into a step of 250, but one of them is known."""
    bench = Bench(
        EngineParameters(
            step_ms=10.0,
            per_sequence_ms=0.0,
            per_kv_token_ms=0.0,
            per_prompt_token_ms=1.0,
            kv_tokens_max=1_000,
            prefill_tokens_max=250,
            kv_block_tokens=BLOCK,
        )
    )
    bench.send(1, 1, 2)
    bench.clock.run(SECOND)
    bench.send(2, 8)  # keeps the engine at work while the next two come
    bench.clock.run(SECOND + MILLISECOND)
    bench.send(3, 5, 6)
    bench.send(4, 1, 2)
    bench.clock.run(3 * SECOND)
    assert bench.first[3] == bench.first[4]


@pytest.mark.parametrize("value", [-1, 1_001])
def test_a_block_that_does_not_fit_the_memory_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.kv_block_tokens: is {value}; use .* 0 for no"):
        EngineParameters(kv_tokens_max=1_000, kv_block_tokens=value)
