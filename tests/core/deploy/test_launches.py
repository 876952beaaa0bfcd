"""Loads in turn: cold ones one by one, warm ones a few at a time, nobody for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.deploy.launches import LaunchGate, LaunchGateConfig
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

START = 1_000 * SECOND


def gate(**values):
    return LaunchGate(LaunchGateConfig(**values))


def test_cold_loads_go_one_after_the_other_in_the_order_of_asking():
    made = gate()
    assert made.ask("r0", "/a", START)
    assert not made.ask("r1", "/b", START), "r0 has the turn, though it has not begun"
    made.began("r0")
    assert not made.ask("r2", "/c", START)
    refused = made.ask("r1", "/b", START)
    assert refused.reason == "1 cold loads run, 0 wait before it, 1 may run at a time"
    made.ended("r0", loaded=True)
    assert not made.ask("r2", "/c", START)
    assert made.ask("r1", "/b", START)


def test_weights_that_were_loaded_once_are_warm_and_load_four_at_a_time():
    made = gate()
    made.ask("r0", "/a", START)
    made.began("r0")
    waiting = made.ask("r1", "/a", START)
    assert not waiting
    assert waiting.reason == "another loads the same weights first: they are cached afterwards"
    made.ended("r0", loaded=True)
    assert made.is_warm("/a")
    turns = []
    for number in range(6):
        name = f"w{number}"
        turns.append(made.ask(name, "/a", START).allowed)
        if turns[-1]:
            made.began(name)
    assert turns == [True, True, True, False, False, False], "r1 still waits before them"
    assert made.ask("r1", "/a", START)


def test_a_warm_load_does_not_wait_for_a_cold_one():
    made = gate()
    made.warm("/a")
    made.ask("r0", "/b", START)
    made.began("r0")
    assert made.ask("r1", "/a", START)
    assert not made.ask("r2", "/c", START)


def test_a_load_that_failed_leaves_its_weights_cold():
    made = gate()
    made.ask("r0", "/a", START)
    made.began("r0")
    made.ended("r0", loaded=False)
    assert not made.is_warm("/a")
    assert made.ask("r1", "/a", START)


def test_several_cold_loads_may_be_allowed_but_not_of_the_same_weights():
    made = gate(parallel_cold=2)
    assert made.ask("r0", "/a", START)
    assert not made.ask("r1", "/a", START)
    made.began("r0")
    assert not made.ask("r1", "/a", START)
    assert made.ask("r2", "/b", START), "r1 waits for r0 and holds up nobody else"


def test_asking_again_while_loading_is_no_second_load():
    made = gate()
    made.ask("r0", "/a", START)
    made.began("r0")
    assert made.ask("r0", "/a", START).reason == "it loads already"
    assert not made._waiting


def test_a_replica_that_gives_up_frees_its_place():
    made = gate()
    made.ask("r0", "/a", START)
    made.ask("r1", "/b", START)
    made.ended("r0", loaded=False)
    assert made.ask("r1", "/b", START)
    made.ask("r2", "/c", START)
    later = START + 61 * SECOND
    assert made.ask("r2", "/c", later), "r1 said nothing for a minute"


def test_a_load_whose_end_nobody_reported_does_not_block_for_ever():
    made = gate()
    made.ask("r0", "/a", START)
    made.began("r0")
    assert not made.ask("r1", "/b", START + 1_200 * SECOND)
    assert made.ask("r1", "/b", START + 1_201 * SECOND)
    assert (list(made._loading), list(made._waiting), made.lost) == ([], ["r1"], 1)


def test_news_of_strangers_changes_nothing():
    made = gate()
    made.began("nobody")
    made.ended("nobody", loaded=True)
    assert made.lost == len(made._loading) == len(made._waiting) == len(made._warm) == 0


def test_queue_and_memory_are_bounded():
    made = gate(waiting_max=2, weights_max=2)
    made.ask("r0", "/a", START)
    made.ask("r1", "/b", START)
    assert made.ask("r2", "/c", START).reason == "2 wait to load already: ask again"
    for path in ("/a", "/b", "/a", "/c"):
        made.warm(path)
    assert [made.is_warm(path) for path in ("/a", "/b", "/c")] == [True, False, True]


@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.booleans()), max_size=60),
    st.integers(1, 2),
    st.integers(1, 3),
)
def test_bounds_hold_and_everybody_gets_a_turn(moves, cold, warm):
    made = gate(parallel_cold=cold, parallel_warm=warm)
    weights: dict[str, str] = {}
    loading: dict[str, bool] = {}
    for number, path, ends in moves:
        name = f"r{number}"
        if name in loading and ends:
            made.ended(name, loaded=True)
            del loading[name]
            del weights[name]
        elif name not in loading:
            weights.setdefault(name, path)
            is_cold = not made.is_warm(weights[name])
            if made.ask(name, weights[name], START):
                made.began(name)
                loading[name] = is_cold
        assert sum(loading.values()) <= cold
        assert sum(not each for each in loading.values()) <= warm
    for _ in range(20):
        for name in list(loading):
            made.ended(name, loaded=True)
            del loading[name], weights[name]
        for name in [each for each in weights if made.ask(each, weights[each], START)]:
            made.began(name)
            loading[name] = True
    assert not weights


@pytest.mark.parametrize(
    "values",
    [
        {"parallel_cold": 0},
        {"parallel_warm": 257},
        {"waiting_max": 0},
        {"weights_max": 0},
        {"ask_again_s": 0},
        {"load_max_s": float("nan")},
    ],
)
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError) as caught:
        LaunchGateConfig(**values)
    assert caught.value.field == f"launches.{next(iter(values))}"


def test_other_bounds_hold_from_the_next_question_on():
    launches = gate(parallel_cold=1)
    for name in ("a", "b", "c"):
        launches.ask(name, f"/weights/{name}", 0)
    launches.began("a")
    assert not launches.ask("b", "/weights/b", 1)
    launches.configure(LaunchGateConfig(parallel_cold=2))
    assert launches.ask("b", "/weights/b", 2)
    assert not launches.ask("c", "/weights/c", 2)
