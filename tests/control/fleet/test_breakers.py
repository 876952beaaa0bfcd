"""Events of breakers: of all gateways together, and never many of one replica."""

import pytest

from holdfast.control.fleet.breakers import CLOSED, OPENED, OVERRULED, PACE, Breakers
from holdfast.core.messages import Report, Seen, Summary, Tally
from holdfast.core.request.breaker import BreakerState

T = 1_000 * PACE


class Board:
    def __init__(self, *replicas):
        self.replicas = set(replicas)
        self.notices = []
        self.subject = Breakers(lambda: self.replicas, self.notices.append)

    def told(self):
        found = [(one.replica_id, one.what) for one in self.notices]
        self.notices.clear()
        return found

    def report(self, what, now=T, gateway="g1", replica="r", reason="5 failures in a row"):
        self.subject.seen(Seen((Report("m", replica, what, reason),), gateway), now)
        return self.told()


def test_a_breaker_that_opens_and_closes_is_told_with_its_reason():
    board = Board("r")
    board.subject.seen(Seen((Report("m", "r", "open", "connection refused"),), "g1"), T)
    (notice,) = board.notices
    assert (notice.model, notice.replica_id, notice.what) == ("m", "r", OPENED)
    assert (notice.reason, notice.at, notice.signal) == ("connection refused", T, "")
    board.told()
    assert board.report("closed", T + 2 * PACE) == [("r", CLOSED)]


def test_gateways_that_open_together_are_one_event():
    board = Board("r")
    told = [board.report("open", T, f"g{number}") for number in range(8)]
    assert told == [[("r", OPENED)], *[[]] * 7]
    for number in range(7):
        assert board.report("closed", T + 5 * PACE, f"g{number}") == []
    assert board.report("closed", T + 5 * PACE, "g7") == [("r", CLOSED)]


def test_one_that_opens_again_and_again_is_told_once():
    board = Board("r")
    assert board.report("open") == [("r", OPENED)]
    assert board.report("open", T + 9 * PACE, reason="trial failed") == []


def test_a_flutter_is_told_once_a_second_and_the_last_word_is_true():
    board = Board("r")
    assert board.report("open") == [("r", OPENED)]
    for step in range(1, 20):
        assert board.report("closed" if step % 2 else "open", T + step * PACE // 25) == []
    board.subject.look(T + PACE - 1)
    assert board.told() == []
    board.subject.look(T + PACE)
    assert board.told() == [("r", CLOSED)]
    assert board.report("open", T + PACE + 1) == []
    board.subject.look(T + 2 * PACE)
    assert board.told() == [("r", OPENED)]


def test_replicas_do_not_wait_for_each_other():
    board = Board("r", "s")
    assert board.report("open") == [("r", OPENED)]
    assert board.report("open", replica="s") == [("s", OPENED)]


def test_breakers_of_a_gateway_that_is_gone_are_gone():
    board = Board("r")
    board.report("open")
    board.subject.gateway_gone("another")
    board.subject.look(T + 2 * PACE)
    assert board.told() == []
    board.subject.gateway_gone("g1")
    board.subject.look(T + 2 * PACE)
    assert board.notices[0].reason == "the gateway that had cut it off is gone"
    assert board.told() == [("r", CLOSED)]


@pytest.mark.parametrize("what", [BreakerState.HALF_OPEN.value, "closed", "ladder moved", ""])
def test_what_is_no_opening_is_no_event(what):
    board = Board("r")
    assert board.report(what) == []
    assert not board.subject._replicas


def test_strangers_and_replicas_that_left_are_not_kept():
    board = Board("r")
    assert board.report("open", replica="stranger") == []
    board.report("open")
    board.replicas.clear()
    board.subject.look(T + 2 * PACE)
    assert board.told() == []
    assert not board.subject._replicas


def test_one_that_is_well_again_is_forgotten():
    board = Board("r")
    board.report("open")
    board.report("closed", T + 2 * PACE)
    board.subject.look(T + 9 * PACE)
    assert not board.subject._replicas


def test_summaries_say_nothing_of_breakers():
    board = Board("r")
    board.subject.seen(Seen((Summary((Tally("m", "r", 0, 9, 0, 0, 0),)),), "g1"), T)
    assert board.told() == []


# --- breakers that a pool overrules --------------------------------------------------------------


def test_an_overruled_breaker_is_told_once_and_shown_as_long_as_it_is():
    board = Board("r", "s")
    assert board.report("overruled") == [("r", OVERRULED)]
    for second in range(1, 5):
        assert board.report("overruled", T + second * PACE) == []
    assert board.report("overruled", T + 4 * PACE, replica="s") == [("s", OVERRULED)]
    assert board.subject.overruled(T + 4 * PACE) == {"m": ["r", "s"]}
    assert board.subject.overruled(T + 7 * PACE) == {"m": ["r", "s"]}
    assert board.subject.overruled(T + 7 * PACE + 1) == {}
    assert board.report("overruled", T + 9 * PACE) == [("r", OVERRULED)]


def test_of_a_replica_that_left_nothing_is_shown():
    board = Board("r")
    assert board.report("overruled", replica="gone") == []
    board.report("overruled")
    board.replicas.clear()
    assert board.subject.overruled(T) == {}
