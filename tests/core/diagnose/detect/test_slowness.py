"""Users' waits: one slow replica among its peers is told, a slow fleet and a pause are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.slowness import SlownessConfig, SlownessDetector
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import AttemptsSeen, CanaryAnswered, Declared, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError


def made(*names):
    census = ReplicaRegistry()
    for name in names or ("a", "b", "c"):
        census.take(Declared(name, "m", "1"))
    return SlownessDetector(SlownessConfig(), census)


def play(detector, begin_s, seconds, *, busy=(), **waits):
    """Whoever is slow gives few tokens, but for those that are busy."""
    told = []
    for at in range(begin_s, begin_s + seconds):
        for name, values in waits.items():
            slow = bool(values) and values[0] > 2 and name not in busy
            count, tokens = len(values), 10 if slow else 100
            fact = AttemptsSeen(name, 1.0, count, tokens=tokens, waits=tuple(values))
            told += detector.take(fact, at * SECOND)
    return told


USUAL = (0.9, 1.0, 1.1)
SLOW = (8.0, 10.0, 11.0)


def test_one_slow_replica_among_its_peers_is_told_within_seconds():
    detector = made()
    assert not play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    told = play(detector, 20, 20, a=SLOW, b=USUAL, c=USUAL)
    assert {one.sign for one in told} == {Sign.SLOW_ANSWERS}
    assert {one.about.replica for one in told} == {"a"}
    assert told[0].at <= 35 * SECOND
    assert told[0].numbers["factor"] >= 3
    assert "times as long" in told[0].text


def test_a_trickle_is_enough_where_routing_leaves_no_more():
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    assert play(detector, 36, 16, a=(9.0,), b=USUAL, c=USUAL)


def trickle(detector, begin_s, every_s, count, wait=9.7, last=9.7):
    """One first token in some seconds at a, and many at its peers."""
    told = []
    for number in range(count):
        late = last if number == count - 1 else wait
        values = {"b": USUAL, "c": USUAL, "a": (late,)}
        told += play(detector, begin_s + every_s * number, 1, **values)
        told += play(detector, begin_s + every_s * number + 1, every_s - 1, b=USUAL, c=USUAL)
    return told


@pytest.mark.parametrize("every_s", [3, 5, 9])
def test_few_that_all_wait_as_long_are_enough(every_s):
    """What routing leaves a slow replica: one request in some seconds."""
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    told = trickle(detector, 20, every_s, 7)
    assert {one.about.replica for one in told} == {"a"}
    assert told[0].at == (20 + max(4 * every_s, 12)) * SECOND
    assert told[0].numbers["samples"] >= 5


@pytest.mark.parametrize(
    ("every_s", "count", "wait", "last"),
    [
        (5, 4, 9.7, 9.7),  # four are a coincidence
        (5, 5, 9.7, 1.0),  # one of them did not wait
        (16, 6, 9.7, 9.7),  # five of them take longer than a minute
        (5, 9, 2.9, 2.9),  # load makes as much
    ],
)
def test_few_that_do_not_all_agree_or_are_too_far_apart_say_nothing(every_s, count, wait, last):
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    assert not trickle(detector, 20, every_s, count, wait, last)


@pytest.mark.parametrize(("wait", "accused"), [(9.0, False), (30.0, True)])
def test_few_must_wait_longer_than_the_late_ones_at_its_peers(wait, accused):
    """Long prompts and bursts everywhere: one in six waits five times as long as usual."""
    detector = made()
    ugly = (0.8, 1.0, 1.0, 1.1, 1.2, 5.0)
    play(detector, 0, 20, a=ugly, b=ugly, c=ugly)
    told = []
    for at in range(20, 60, 4):
        told += play(detector, at, 1, b=ugly, c=ugly, a=(wait,))
        told += play(detector, at + 1, 3, b=ugly, c=ugly)
    assert bool(told) == accused


def test_few_behind_one_prompt_say_nothing():
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    assert not play(detector, 36, 8, a=(9.0,), b=USUAL, c=USUAL)
    assert not play(detector, 44, 8, b=USUAL, c=USUAL)
    assert not play(detector, 52, 8, a=(1.0,), b=USUAL, c=USUAL)


@pytest.mark.parametrize(("mate_s", "told_at"), [(0.4, 30), (0.6, 36)])
def test_on_a_slow_host_users_must_wait_for_longer_than_a_stall_there(mate_s, told_at):
    census = ReplicaRegistry()
    for name, model in (("a", "m"), ("b", "m"), ("c", "m"), ("mate", "other")):
        census.take(Declared(name, model, "1", "host" if name in ("a", "mate") else ""))
    detector = SlownessDetector(SlownessConfig(), census)
    for at in range(20):
        took_s = 0.4 if at < 15 else mate_s
        fact = CanaryAnswered("mate", CanaryVerdict.PASS, latency_s=took_s, running=0)
        detector.take(fact, at * SECOND)
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    told = play(detector, 20, 30, a=SLOW, b=USUAL, c=USUAL)
    assert told[0].at == told_at * SECOND


def test_one_that_is_full_and_works_as_much_as_its_peers_is_not_slow():
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    assert not play(detector, 20, 30, busy=("a",), a=SLOW, b=USUAL, c=USUAL)


@pytest.mark.parametrize(
    ("own", "peers", "at_s", "accused"),
    [
        (
            0.5,
            0.45,
            22,
            False,
        ),  # it comes through as quickly as anywhere: users wait for each other
        (4.5, 0.45, 22, True),  # the engine itself is slow
        (0.5, 0.45, 1, True),  # that was before
        (0.5, None, 22, True),  # nobody knows what is usual
    ],
)
def test_a_canary_that_comes_through_quickly_speaks_for_the_engine(own, peers, at_s, accused):
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    for name in ("b", "c") if peers is not None else ():
        detector.take(CanaryAnswered(name, CanaryVerdict.PASS, peers), 18 * SECOND)
    detector.take(CanaryAnswered("a", CanaryVerdict.PASS, own), at_s * SECOND)
    detector.take(CanaryAnswered("a", CanaryVerdict.TIMEOUT, None), 23 * SECOND)
    assert bool(play(detector, 23, 12, a=SLOW, b=USUAL, c=USUAL)) == accused


@pytest.mark.parametrize(("since_s", "accused"), [(30, False), (70, True)])
def test_a_pool_that_is_slow_in_turns_has_too_much_to_do(since_s, accused):
    detector = made()
    play(detector, 0, 20, a=USUAL, b=SLOW, c=SLOW)
    play(detector, 20, since_s, a=USUAL, b=USUAL, c=USUAL)
    told = play(detector, 20 + since_s, 20, a=SLOW, b=USUAL, c=USUAL)
    assert bool([one for one in told if one.about.replica == "a"]) == accused


def test_a_fleet_that_is_slow_as_a_whole_accuses_nobody():
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    assert not play(detector, 20, 30, a=SLOW, b=SLOW, c=(2.0, 3.0))


def test_a_pause_of_two_seconds_is_none():
    detector = made()
    play(detector, 0, 20, a=USUAL, b=USUAL, c=USUAL)
    assert not play(detector, 20, 2, a=SLOW, b=USUAL, c=USUAL)
    assert not play(detector, 22, 20, a=USUAL, b=USUAL, c=USUAL)


def test_without_peers_or_with_too_few_answers_nothing_is_concluded():
    assert not play(made("a"), 0, 60, a=SLOW)
    assert not play(made(), 0, 60, a=(), b=USUAL, c=USUAL)
    assert not play(made("a", "b"), 0, 60, stranger=SLOW, b=USUAL)


def test_a_new_process_begins_anew():
    detector = made()
    play(detector, 0, 10, a=SLOW, b=USUAL, c=USUAL)
    detector.take(ProcessEnded("a"), 10 * SECOND)
    assert not play(detector, 10, 10, a=USUAL, b=USUAL, c=USUAL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("factor", 1.0),
        ("samples_min", 1),
        ("window_s", 0.0),
        ("hold_s", 1e9),
        ("peers_max", 9.0),
        ("row_min", 2),
        ("row_s", 0.0),
        ("row_hold_s", -1.0),
        ("row_tail", 0.5),
    ],
)
def test_settings_that_cannot_work_are_refused(field, value):
    with pytest.raises(ConfigError, match="slowness"):
        SlownessConfig(**{field: value})


FACTS = st.tuples(
    st.sampled_from(["a", "b", "c", "stranger"]),
    st.lists(st.floats(-1, 1e6), max_size=20),
    st.integers(-5, 100),
    st.booleans(),
)


@given(st.lists(FACTS, max_size=60))
def test_any_order_of_facts_is_survived_within_bounds(facts):
    detector = made()
    for name, waits, at, ended in facts:
        fact = ProcessEnded(name) if ended else AttemptsSeen(name, 1.0, waits=tuple(waits))
        detector.take(fact, at * SECOND)
    for name in ("a", "b", "c"):
        detector.forget(name)
    assert not detector._books
