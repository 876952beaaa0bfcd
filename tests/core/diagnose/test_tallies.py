"""What gateways saw is added up once, for a live control and for a simulated one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose import tallies
from holdfast.core.diagnose.facts import AttemptsSeen, CanaryAnswered, FinishesSeen, OutputSeen
from holdfast.core.diagnose.tallies import Tallies, canary_answered
from holdfast.core.failure import Kind
from holdfast.core.messages import CanaryResult, Tally
from holdfast.core.types import SECOND


def tally(name="m-1", successes=0, failures=0, backpressure=0, inflight=0, tokens=0, **more):
    return Tally(name[0], name, successes, failures, backpressure, inflight, tokens, **more)


def attempts(made, now):
    return {seen.replica: seen for seen, _ in made.look(now)}


@pytest.fixture
def made():
    found = Tallies()
    assert not [*found.look(0)]
    return found


def test_gateways_are_added_up_with_the_share_of_the_model(made):
    kinds = {Kind.RESET: 2, Kind.SERVER_ERROR: 1}
    first = tally(successes=3, failures=3, inflight=2, tokens=50, kinds=kinds, waits=(1.0,))
    made.take("g-0", first)
    made.take("g-1", tally(successes=1, backpressure=1, inflight=4, fast=1, waits=(2.0,)))
    made.take("g-1", tally("m-2", successes=8))
    made.take("g-1", tally("n-1", successes=5))
    found = attempts(made, 2 * SECOND)
    assert found["m-1"] == AttemptsSeen("m-1", 2.0, 4, 1, 6, 50, kinds, 1, 0.5, (1.0, 2.0))
    assert found["m-2"].share == 0.5
    assert found["n-1"].share == 1.0


def test_long_prompts_that_are_read_are_added_up_and_told_until_they_are_read(made):
    made.take("g-0", tally(inflight=1, unread=9_000))
    made.take("g-1", tally(inflight=2, unread=20_000))
    assert attempts(made, 1 * SECOND)["m-1"].unread == 29_000
    made.take("g-1", tally(successes=1, inflight=1))
    assert attempts(made, 2 * SECOND)["m-1"].unread == 9_000
    made.gateway_gone("g-0")
    assert attempts(made, 3 * SECOND)["m-1"].unread == 0


def test_prompts_that_wait_are_added_up_unless_a_gateway_does_not_tell(made):
    made.take("g-0", tally(inflight=1, prompts=40))
    made.take("g-1", tally(inflight=2, prompts=20))
    assert attempts(made, 1 * SECOND)["m-1"].prompts == 60
    made.take("g-1", tally(inflight=1))
    assert attempts(made, 2 * SECOND)["m-1"].prompts is None
    made.take("g-1", tally())  # it has nothing there any more
    assert attempts(made, 3 * SECOND)["m-1"].prompts == 40


def test_what_long_prompts_explain_is_the_most_that_a_gateway_says(made):
    made.take("g-0", tally(inflight=1, unread=9_000, explained_s=0.0))
    made.take("g-1", tally(inflight=1, unread=20_000, explained_s=4.0))
    assert attempts(made, 1 * SECOND)["m-1"].explained_s == 4.0
    made.take("g-1", tally(inflight=1))
    seen = attempts(made, 2 * SECOND)["m-1"]
    assert (seen.unread, seen.explained_s) == (9_000, 0.0)


def test_what_is_in_flight_is_told_until_it_is_done_or_its_gateway_is_gone(made):
    made.take("g-0", tally(inflight=2))
    made.take("g-1", tally(inflight=3))
    assert made.inflight("m-1") == 5
    assert attempts(made, 1 * SECOND)["m-1"].inflight == 5
    assert attempts(made, 2 * SECOND)["m-1"] == AttemptsSeen("m-1", 1.0, inflight=5)
    made.gateway_gone("g-1")
    assert attempts(made, 3 * SECOND)["m-1"].inflight == 2
    made.take("g-0", tally(successes=2))
    assert attempts(made, 4 * SECOND)["m-1"].successes == 2
    assert not attempts(made, 5 * SECOND)


def test_a_process_that_ended_has_nothing_in_flight_and_its_attempts_are_still_told(made):
    made.take("g-0", tally(failures=1, inflight=3, kinds={Kind.RESET: 1}))
    made.process_ended("m-1")
    assert made.inflight("m-1") == 0
    assert attempts(made, SECOND)["m-1"].failures == {Kind.RESET: 1}


def test_nothing_is_told_of_one_that_is_gone_or_unknown(made):
    made.take("g-0", tally(successes=1, inflight=3))
    made.forget("m-1")
    made.forget("never seen")
    made.gateway_gone("never seen")
    assert made.inflight("never seen") == 0
    assert not attempts(made, SECOND)


def test_statistics_and_finishes_of_answers_are_told_and_bounded(made, monkeypatch):
    monkeypatch.setattr(tallies, "VALUES_MAX", 3)
    monkeypatch.setattr(tallies, "REASONS_MAX", 2)
    finishes = {"stop": 2, "length": 1, "x" * 99: 4}
    made.take("g", tally(successes=1, lengths=(5, 7), logprobs=(-0.5,), finishes=finishes))
    scores = {"y.mean": (4.0, 5.0, 6.0, 7.0)}
    second = tally(
        lengths=(1, 2), norms=(1.0,), finishes={"stop": 1}, waits=(1.0,) * 9, scores=scores
    )
    made.take("g", second)
    [(seen, answers)] = made.look(SECOND)
    assert len(seen.waits) == 3
    assert answers == [
        OutputSeen("m-1", "length", (5, 7, 1)),
        OutputSeen("m-1", "logprob", (-0.5,)),
        OutputSeen("m-1", "norm", (1.0,)),
        OutputSeen("m-1", "y.mean", (4.0, 5.0, 6.0)),
        FinishesSeen("m-1", {"stop": 3, "length": 1, "other": 4}),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(["g-0", "g-1"]), st.integers(0, 9), st.integers(0, 9)),
        max_size=30,
    ),
    st.integers(0, 30),
)
def test_nothing_is_lost_or_told_twice_whenever_one_looks(told, look_after):
    made, successes = Tallies(), 0
    for number, (gateway, count, inflight) in enumerate(told):
        made.take(gateway, tally(successes=count, inflight=inflight))
        if number == look_after:
            successes += sum(seen.successes for seen, _ in made.look(SECOND))
    successes += sum(seen.successes for seen, _ in made.look(2 * SECOND))
    assert successes == sum(count for _, count, _ in told)
    last = {gateway: inflight for gateway, _, inflight in told}
    assert made.inflight("m-1") == sum(last.values())


@pytest.mark.parametrize(("engine", "ours", "most"), [(None, 2, 2), (0, 2, 2), (3, 0, 3)])
def test_beside_a_canary_ran_the_most_that_anybody_says(engine, ours, most):
    result = CanaryResult(
        "m-1", CanaryVerdict.PASS, latency=SECOND // 2, running=engine, page_ok=True
    )
    told = canary_answered(result, slow=True, inflight=ours)
    assert told == CanaryAnswered("m-1", CanaryVerdict.SLOW, 0.5, most, page_ok=True)


def test_what_is_known_of_a_canary_without_an_answer_is_told():
    result = CanaryResult(
        "m-1", CanaryVerdict.FAIL, status=500, took=SECOND // 4, flaw=Kind.EMPTY, moved_s=1.5
    )
    told = canary_answered(result, slow=False, inflight=0)
    assert told == CanaryAnswered(
        "m-1", CanaryVerdict.FAIL, 0.25, 0, status=500, moved_s=1.5, flaw=Kind.EMPTY.value
    )
    assert (
        canary_answered(
            CanaryResult("m-1", CanaryVerdict.UNKNOWN), slow=False, inflight=0
        ).latency_s
        is None
    )
