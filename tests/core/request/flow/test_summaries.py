"""Engines' own load, and what control hears each second of what was seen."""

import pytest
from flow_stage import NO_BACKOFF, Gateway, all_of, only

from holdfast.core.failure import Kind
from holdfast.core.messages import Answered, Ended, LoadReported, Summary, Tally
from holdfast.core.request.candidate import SAMPLES_MAX
from holdfast.core.request.retry import RetryConfig


def test_an_engines_own_account_is_kept_and_unknown_stays_unknown():
    gateway = Gateway("r1")
    assert gateway.tell(LoadReported("m", "r1", tokens=70, waiting=2)) == []
    candidate = gateway.candidate("r1")
    assert (candidate.reported_tokens, candidate.waiting, candidate.kv_used) == (70, 2, None)


def test_load_of_replicas_and_models_that_are_not_here_is_ignored():
    gateway = Gateway("r1")
    assert gateway.tell(LoadReported("m", "r9", tokens=70)) == []
    assert gateway.tell(LoadReported("other", "r1", tokens=70)) == []


def test_control_hears_once_a_second_what_was_seen():
    gateway = Gateway("r1", "r2")
    gateway.tick()
    gateway.serve("q1")
    gateway.arrive("q2")
    assert all_of(gateway.after(0.5).tick(), Summary) == []
    summary = only(gateway.after(0.5).tick(), Summary)
    assert summary.tallies == (
        Tally("m", "r1", 1, 0, 0, 0, 8, lengths=(8,), firsts=(0.1,), prompts=0),
        Tally("m", "r2", 0, 0, 0, 1, 0, prompts=0),
    )
    assert only(gateway.after(1.0).tick(), Summary).tallies == (
        Tally("m", "r2", 0, 0, 0, 1, 0, prompts=0),
    )


def test_control_hears_how_fast_tokens_follow_each_other_where_that_is_known():
    gateway = Gateway("r1")
    gateway.tick()
    gateway.arrive("q1")
    gateway.after(0.5).first("q1")
    gateway.after(2.0).end("q1", tokens=5)
    gateway.arrive("q2")
    gateway.first("q2")
    gateway.end("q2", tokens=5)  # all at once: that says nothing
    gateway.arrive("q3")
    gateway.first("q3")
    gateway.after(1.0).end("q3", tokens=1)  # no second token
    gateway.arrive("q4")
    gateway.first("q4")
    gateway.after(1.0).end("q4", kind=Kind.RESET, tokens=9)  # and one that was cut
    told = gateway.tallies()["r1"]
    assert (told.paces, told.firsts[0]) == ((0.5,), 0.5)


def test_paces_between_two_summaries_are_bounded():
    gateway = Gateway("r1")
    gateway.tick()
    for number in range(SAMPLES_MAX + 3):
        name = f"q{number}"
        gateway.arrive(name)
        gateway.first(name)
        gateway.after(0.01).end(name, tokens=2)
    assert len(gateway.tallies()["r1"].paces) == SAMPLES_MAX
    assert gateway.tallies() == {}


def test_control_hears_how_answers_came_out():
    gateway = Gateway("r1")
    gateway.tick()
    for number, reason in enumerate(("stop", "length", "stop", "")):
        gateway.arrive(f"q{number}")
        gateway.after(0.01).first(f"q{number}")
        gateway.tell(Ended(f"q{number}", 0, None, 10 + number, finish=reason))
    gateway.arrive("w", whole=True)
    gateway.tell(Answered("w", 0, 40, "stop", (("logprob", -0.25),)))
    gateway.arrive("e", whole=True)
    gateway.tell(Answered("e", 0, 0, "", (("norm", 1.5),)))
    tally = gateway.tallies()["r1"]
    assert tally.finishes == {"stop": 3, "length": 1}
    assert tally.lengths == (10, 11, 12, 13, 40)
    assert (tally.logprobs, tally.norms) == ((-0.25,), (1.5,))
    assert (tally.kinds, tally.fast) == ({}, 0)


def test_a_part_of_an_answer_has_no_length():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.tick()
    gateway.arrive()
    gateway.after(0.01).first()
    gateway.end(kind=Kind.CUT, tokens=3)
    gateway.tell(Ended("q1", 1, None, 5, finish="stop"))
    tallies = gateway.tallies()
    assert tallies["r2"].successes == 1
    assert all(tally.lengths == () and tally.finishes == {} for tally in tallies.values())


def test_failures_are_told_by_kind_and_fast_ones_apart():
    gateway = Gateway("r1", retry=RetryConfig(attempts=1))
    gateway.tick()
    for name, kind, after_s in (
        ("q1", Kind.SERVER_ERROR, 0.01),
        ("q2", Kind.SERVER_ERROR, 0.2),
        ("q3", Kind.MALFORMED, 0.05),
        ("q4", Kind.OVERLOADED, 0.0),
        ("q5", Kind.CLIENT_GONE, 0.0),
    ):
        gateway.arrive(name)
        gateway.after(after_s).end(name, kind=kind)
    gateway.arrive("q6")
    gateway.first("q6")  # content came, so it answered as a sound one does
    gateway.end("q6", kind=Kind.CUT, tokens=1)
    tally = gateway.tallies()["r1"]
    assert tally.kinds == {Kind.SERVER_ERROR: 2, Kind.MALFORMED: 1, Kind.CUT: 1}
    assert (tally.failures, tally.fast, tally.backpressure) == (4, 2, 1)


@pytest.mark.parametrize(
    ("usual_s", "after_s", "fast"),
    [
        (0.05, 0.025, 1),  # half of what is usual
        (0.05, 0.049, 0),  # a token that was due comes no later
        (0.004, 0.01, 1),  # the way there and back may take this long
        (0.004, 0.02, 0),
        (1.0, 0.05, 1),
        (1.0, 0.2, 0),
    ],
)
def test_how_soon_is_too_soon_follows_usual_first_tokens(usual_s, after_s, fast):
    gateway = Gateway("r1", retry=RetryConfig(attempts=1))
    for number in range(100):
        gateway.arrive(f"usual{number}")
        gateway.after(usual_s).first(f"usual{number}")
        gateway.after(0.1).end(f"usual{number}", tokens=1)
    gateway.arrive("failed")
    gateway.after(after_s).end("failed", kind=Kind.SERVER_ERROR)
    gateway.after(4.0)  # nobody gave a second opinion
    assert gateway.tallies()["r1"].fast == fast


def test_nobody_is_told_of_a_second_without_traffic():
    assert Gateway("r1").after(5.0).tick() == []


def test_failures_are_told_by_replica():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.tick()
    gateway.arrive()
    gateway.end(kind=Kind.SERVER_ERROR)
    gateway.end(attempt=1, tokens=4)
    tallies = gateway.tallies()
    assert (tallies["r1"].failures, tallies["r1"].successes) == (1, 0)
    assert (tallies["r2"].failures, tallies["r2"].successes) == (0, 1)
