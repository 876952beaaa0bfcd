"""How fast the tokens of canaries' answers come: what is usual, and what is slow all along."""

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.canary.pace import AnswerPace, steady_time
from holdfast.core.diagnose.facts import CanaryAnswered
from holdfast.core.types import SECOND


def answer(moved_s=None, gap_s=None, latency_s=3.0, verdict="pass"):
    return CanaryAnswered("r1", CanaryVerdict(verdict), latency_s, moved_s=moved_s, gap_s=gap_s)


def known(took_s=0.3, count=3):
    pace = AnswerPace()
    for at in range(count):
        pace.add(answer(took_s + 0.1, 0.1), at * SECOND, usual=True)
    return pace


@pytest.mark.parametrize(
    ("fact", "took_s"),
    [
        (answer(2.0, 0.5), 1.5),
        (answer(), 3.0),  # in one piece
        (answer(verdict="slow"), 3.0),
        (answer(verdict="timeout"), None),
        (answer(2.0, 0.5, verdict="timeout"), 1.5),
        (answer(latency_s=None), None),
    ],
)
def test_the_steady_time_is_that_of_the_tokens_without_their_longest_pause(fact, took_s):
    assert steady_time(fact) == took_s


def lately(*took_s):
    """Peers of which nothing is usual yet, and these are the latest."""
    peers = []
    for one_s in took_s:
        peers.append(AnswerPace())
        peers[-1].add(answer(one_s + 0.1, 0.1), 9 * SECOND, usual=False)
    return peers


def slow(pace, took_s, *peers, **more):
    fact = answer(took_s + 0.1, 0.1)
    return pace.is_slow(fact, peers, 10 * SECOND, fresh=60 * SECOND, **more)


@pytest.mark.parametrize(
    ("took_s", "peers", "found"),
    [
        (1.7, [0.3], False),  # less than six times its own
        (1.9, [0.3], True),
        (1.9, [], True),
        (1.9, [0.8, 0.8], False),  # its peers are slower as well
        (1.9, [0.8, 0.3, 0.3], True),  # one of them is
    ],
)
def test_slow_is_by_its_own_past_and_by_its_peers(took_s, peers, found):
    assert slow(known(), took_s, *lately(*peers)) is found


def test_a_peer_of_long_ago_excuses_nothing():
    fact = answer(2.0, 0.1)
    assert not known().is_slow(fact, lately(0.8), 60 * SECOND, fresh=60 * SECOND)
    assert known().is_slow(fact, lately(0.8), 70 * SECOND, fresh=60 * SECOND)


def test_a_known_reason_excuses_as_much_as_it_explains():
    assert not slow(known(), 3.5, explained=2.0)
    assert slow(known(), 3.7, explained=2.0)


def test_what_nobody_notices_is_not_slow():
    assert not slow(known(took_s=0.02), 0.2)
    assert slow(known(took_s=0.02), 0.35)


def test_until_it_has_a_past_that_of_the_whole_pool_counts():
    assert slow(known(took_s=0.6, count=2), 1.9, known(), known())
    assert slow(AnswerPace(), 1.9, known(count=1))
    assert not slow(known(took_s=0.6, count=8), 1.9, known(), known())  # its own: a slower machine
    assert not slow(AnswerPace(), 9.0, *lately(0.3))


def test_an_answer_in_one_piece_is_learned_and_never_slow():
    pace = AnswerPace()
    for at in range(3):
        pace.add(answer(latency_s=0.3), at, usual=True)
    assert not pace.is_slow(answer(latency_s=30.0), (), SECOND, fresh=SECOND)
    assert slow(pace, 1.9)


def test_the_latest_is_forgotten_and_what_is_unusual_is_not_learned():
    pace = AnswerPace()
    assert pace.latest(SECOND, 60 * SECOND) is None
    pace.add(answer(5.0, 1.0), SECOND, usual=False)
    pace.add(answer(latency_s=None), 2 * SECOND, usual=True)  # nobody measured
    assert pace.latest(61 * SECOND, 60 * SECOND) == 4.0
    assert pace.latest(62 * SECOND, 60 * SECOND) is None
    assert not slow(pace, 90.0)
