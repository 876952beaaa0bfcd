"""Whose fault a failure was: the replica's, or the request's own."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.failure import Kind, Outcome
from holdfast.core.messages import ReplicaView, Report, ReportCode
from holdfast.core.request.active_request import ActiveRequest, RequestStep
from holdfast.core.request.breaker import BreakerConfig, BreakerState
from holdfast.core.request.failure_ledger import EvidenceConfig
from holdfast.core.request.lane import Lane, LaneConfig
from holdfast.core.types import MILLISECOND, SECOND, ConfigError, Replica, Request, State

START = 1_000 * SECOND
FAILURE, SUCCESS = Outcome.FAILURE, Outcome.SUCCESS
ERROR = Kind.SERVER_ERROR


class Desk:
    """One lane, driven by hand: requests fail or are answered at named replicas."""

    def __init__(self, *names: str) -> None:
        config = LaneConfig(breaker=BreakerConfig(jitter=0.0))
        self.lane = Lane("m", config, {}, Random)
        self.now = START
        self.serial = 0
        views = [ReplicaView(Replica(n, "m"), State.READY, 1.0) for n in names or ("r1", "r2")]
        self.lane.follow(views, self.now)

    def ask(self, tenant: str = "t", content: bytes = b"") -> ActiveRequest:
        self.serial += 1
        request = Request(self.serial, "m", arrived=self.now, tenant=tenant, content=content)
        return ActiveRequest(request, "m", self.now + 600 * SECOND)

    def at(self, name: str):
        return self.lane.pool.candidates[name]

    def fail(self, active: ActiveRequest, name: str, kind: Kind = ERROR, took: int = MILLISECOND):
        attempt = self.lane.open(active, self.at(name), self.now)
        self.now += took
        return self.lane.close(active, attempt, FAILURE, kind, self.now)

    def answer(self, active: ActiveRequest, name: str) -> None:
        attempt = self.lane.open(active, self.at(name), self.now)
        self.now += MILLISECOND
        self.lane.first_content(active, attempt, self.now)
        self.lane.close(active, attempt, SUCCESS, None, self.now)
        if active.charges:
            self.lane.uphold(active, self.at(name), self.now)

    def over(self, active: ActiveRequest) -> None:
        active.step(RequestStep.FINISH)

    def told(self) -> dict[str, tuple[int, int]]:
        """Failures and withdrawn ones of each replica, as the next summary says."""
        self.lane.settle(self.now)
        return {t.replica_id: (t.failures, t.withdrawn) for t in self.lane.tallies()}

    def reports(self) -> list[tuple[str, str]]:
        return [(report.what, report.replica_id) for report in self.lane.take_reports()]


# --- a second replica says the same --------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [ERROR, Kind.EMPTY, Kind.MALFORMED, Kind.CUT, Kind.DEGENERATE, Kind.FIRST_TOKEN_TIMEOUT]
)
def test_what_two_replicas_have_alike_is_laid_to_the_request(kind):
    desk = Desk()
    for _ in range(20):
        asked = desk.ask()
        desk.fail(asked, "r1", kind)
        desk.fail(asked, "r2", kind)
        desk.over(asked)
    assert {desk.at(name).breaker.state for name in ("r1", "r2")} == {BreakerState.CLOSED}
    assert desk.told() == {"r1": (0, 20), "r2": (0, 20)}


def test_two_failures_of_different_kinds_count_on_both():
    desk = Desk()
    asked = desk.ask()
    desk.fail(asked, "r1", ERROR)
    desk.fail(asked, "r2", Kind.EMPTY)
    desk.over(asked)
    assert desk.told() == {"r1": (1, 0), "r2": (1, 0)}


def test_the_same_replica_twice_is_no_second_opinion():
    desk = Desk()
    asked = desk.ask()
    desk.fail(asked, "r1")
    desk.fail(asked, "r1")
    desk.over(asked)
    assert desk.told() == {"r1": (2, 0)}


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.CONNECT_TIMEOUT])
def test_a_connection_that_never_was_is_never_the_requests_fault(kind):
    desk = Desk()
    asked = desk.ask()
    desk.fail(asked, "r1", kind)
    desk.fail(asked, "r2", kind)
    assert desk.told() == {"r1": (1, 0), "r2": (1, 0)}  # at once, as proof


def test_two_connections_that_break_one_after_the_other_are_the_requests_doing():
    desk = Desk()
    asked = desk.ask()
    desk.fail(asked, "r1", Kind.RESET)
    desk.fail(asked, "r2", Kind.RESET, took=SECOND)
    assert desk.told() == {"r1": (1, 0), "r2": (0, 1)}  # the first was told at once, as proof
    assert desk.at("r1").breaker._window.failures == 0


def test_two_connections_that_break_together_are_not():
    desk = Desk()
    asked = desk.ask()
    desk.fail(asked, "r1", Kind.RESET)
    desk.fail(asked, "r2", Kind.RESET, took=MILLISECOND)
    assert desk.told() == {"r1": (1, 0), "r2": (1, 0)}


def test_an_opening_that_is_taken_back_is_reported():
    desk = Desk()
    asked = [desk.ask() for _ in range(5)]
    changes = [desk.fail(each, "r1") for each in asked]
    assert changes[-1] is not None
    desk.reports()
    desk.fail(asked[0], "r2")
    assert ("closed", "r1") in desk.reports()
    assert desk.at("r1").breaker.state is BreakerState.CLOSED


def test_who_caused_failures_of_a_kind_is_believed_in_them_only_with_a_second_opinion():
    desk = Desk()
    shown = desk.ask()
    desk.fail(shown, "r1")
    desk.fail(shown, "r2")
    for _ in range(20):  # no second attempt: the retry budget is spent
        asked = desk.ask()
        assert desk.fail(asked, "r1") is None
        desk.over(asked)
    assert desk.told()["r1"] == (0, 21)
    for _ in range(5):
        asked = desk.ask()
        desk.fail(asked, "r1")
        desk.answer(asked, "r2")
    assert desk.told()["r1"] == (5, 0)
    assert desk.at("r1").breaker.state is BreakerState.OPEN


def test_that_is_forgotten_after_a_minute_and_holds_for_that_kind_alone():
    desk = Desk()
    shown = desk.ask()
    desk.fail(shown, "r1")
    desk.fail(shown, "r2")
    other = desk.ask()
    desk.fail(other, "r1", Kind.EMPTY)
    desk.over(other)
    assert desk.told()["r1"] == (1, 1)
    desk.now += 61 * SECOND
    later = desk.ask()
    desk.fail(later, "r1")
    desk.over(later)
    assert desk.told()["r1"] == (1, 0)


# --- when control hears of it ---------------------------------------------------------------------


def test_a_failure_waits_for_the_second_opinion_and_is_told_with_it():
    desk = Desk()
    asked = desk.ask()
    desk.fail(asked, "r1")
    assert desk.told().get("r1", (0, 0)) == (0, 0)
    desk.answer(asked, "r2")
    assert desk.told()["r1"] == (1, 0)


def test_without_one_it_is_told_after_a_while_or_when_the_request_is_over():
    desk = Desk()
    slow, done = desk.ask(), desk.ask()
    desk.fail(slow, "r1")
    desk.fail(done, "r1")
    desk.over(done)
    assert desk.told()["r1"] == (1, 0)
    desk.now += 4 * SECOND
    assert desk.told()["r1"] == (1, 0)


def test_what_took_long_to_fail_has_as_long_again_but_ten_seconds_at_most():
    desk = Desk()
    asked = desk.ask()
    desk.fail(asked, "r1", took=60 * SECOND)
    desk.now += 9 * SECOND
    assert "r1" not in desk.told()
    desk.now += 2 * SECOND
    assert desk.told()["r1"] == (1, 0)


def test_where_there_is_no_other_replica_it_is_told_at_once():
    desk = Desk("r1")
    desk.fail(desk.ask(), "r1")
    assert desk.told()["r1"] == (1, 0)


def test_any_failure_asks_a_canary_at_most_once_a_second():
    desk = Desk()
    for _ in range(3):
        desk.fail(desk.ask(), "r1")
    assert desk.reports() == [(ReportCode.OVERDUE, "r1")]
    desk.now += SECOND
    desk.fail(desk.ask(), "r1")
    assert desk.reports() == [(ReportCode.OVERDUE, "r1")]


# --- who is believed ------------------------------------------------------------------------------


def crowd(desk: Desk, count: int = 3) -> None:
    for number in range(count):
        asked = desk.ask(f"other{number}")
        desk.answer(asked, "r2")
    desk.told()


def test_in_a_crowd_the_word_of_two_tenants_is_kept_back_until_a_third_says_the_same():
    desk = Desk()
    crowd(desk)
    for number in range(6):
        asked = desk.ask(f"t{number % 2}")
        desk.fail(asked, "r1")
        desk.over(asked)
    assert desk.told().get("r1", (0, 0)) == (0, 0)
    third = desk.ask("t2")
    desk.fail(third, "r1")
    desk.over(third)
    assert desk.told()["r1"] == (7, 0)


def test_what_was_kept_back_for_ten_seconds_is_no_longer_news():
    desk = Desk()
    crowd(desk)
    for tenant in ("t0", "t1", "t2"):
        asked = desk.ask(tenant)
        desk.fail(asked, "r1")
        desk.over(asked)
        assert desk.told().get("r1", (0, 0)) == (0, 0)
        desk.now += 11 * SECOND


def test_where_few_tenants_are_active_each_body_is_told_once_in_ten_seconds():
    desk = Desk()
    for body in (b"a", b"a", b"b", b"a"):
        asked = desk.ask(content=body)
        desk.fail(asked, "r1")
        desk.over(asked)
        desk.lane.settle(desk.now)
    assert desk.told()["r1"] == (2, 0)


def test_tenants_that_come_after_a_thousand_others_are_active_too():
    desk = Desk()
    for number in range(1_100):
        desk.lane._ledger.saw(f"gone-{number}", desk.now)
    assert len(desk.lane._ledger.tenants) == 1_024
    desk.now += 40 * SECOND
    assert not desk.lane._ledger.crowd(desk.now)
    crowd(desk)
    assert desk.lane._ledger.crowd(desk.now)
    desk.lane.settle(desk.now)
    assert not [name for name in desk.lane._ledger.tenants if name.startswith("gone")]


def test_a_tenant_is_active_for_half_a_minute():
    desk = Desk()
    crowd(desk)
    assert desk.lane._ledger.crowd(desk.now + 30 * SECOND - 5 * MILLISECOND)
    assert not desk.lane._ledger.crowd(desk.now + 31 * SECOND)


# --- bounds ---------------------------------------------------------------------------------------


def test_its_memory_is_bounded():
    desk = Desk()
    ledger = desk.lane._ledger
    for number in range(5_000):
        asked = desk.ask(f"t{number}", b"%d" % number)
        desk.fail(asked, "r1", took=1)
    assert len(ledger._charges) <= 4_096
    assert len(ledger.tenants) <= 1_024
    for number in range(5_000):
        asked = desk.ask(f"t{number}")
        desk.fail(asked, "r1", took=1)
        desk.fail(asked, "r2", took=1)
    assert len(ledger._own) <= 4_096
    desk.now += 20 * SECOND
    desk.lane.settle(desk.now)
    desk.now += 20 * SECOND
    desk.lane.settle(desk.now)
    assert not ledger._charges
    assert not ledger._witnesses


@pytest.mark.parametrize(
    "field", ["active_s", "own_s", "second_opinion_s", "second_opinion_max_s", "witness_s"]
)
@pytest.mark.parametrize("value", [0.0, -1.0, 3_601.0, float("nan")])
def test_a_bad_value_is_refused_with_its_field_and_fix(field, value):
    with pytest.raises(ConfigError) as caught:
        EvidenceConfig(**{field: value})
    assert caught.value.field == f"evidence.{field}"
    assert "use" in caught.value.fix


def test_the_longest_wait_is_no_shorter_than_the_shortest():
    with pytest.raises(ConfigError) as caught:
        EvidenceConfig(second_opinion_s=5.0, second_opinion_max_s=4.0)
    assert caught.value.field == "evidence.second_opinion_max_s"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d"]),  # tenants
        st.sampled_from(["own", "r1 fails", "r1 fails, r2 answers", "r1 answers", "time"]),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_failure_is_told_kept_back_or_withdrawn_and_never_twice(steps):
    desk = Desk("r1", "r2", "r3")
    charged = told = withdrawn = 0
    for tenant, what in steps:
        asked = desk.ask(tenant)
        if what == "time":
            desk.now += SECOND
        elif what == "own":
            desk.fail(asked, "r1")
            desk.fail(asked, "r2")
            charged += 2
        elif what == "r1 answers":
            desk.answer(asked, "r1")
        else:
            desk.fail(asked, "r1")
            charged += 1
            if "answers" in what:
                desk.answer(asked, "r2")
        if what != "time":
            asked.step(RequestStep.FINISH)
        found = desk.told().values()
        told += sum(failures for failures, _ in found)
        withdrawn += sum(own for _, own in found)
    assert told + withdrawn <= charged
    assert not desk.lane._ledger._charges
    assert all(isinstance(report, Report) for report in desk.lane.take_reports())
