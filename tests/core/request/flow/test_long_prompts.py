"""Long prompts: their first tokens are waited for where another replica would be no sooner."""

import pytest
from flow_stage import NO_BACKOFF, Gateway, all_of, events, last, only, out, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, Dispatch, Finish, LoadReported, ReplicaHalted
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import MILLISECOND, SECOND, Halt

LONG = 5_000  # tokens: at 100 a second they take 50 s, and a starved CPU has fewer
EVERY = 100 * MILLISECOND


def gateway(*views, **config) -> Gateway:
    return Gateway(*(views or ("r1", "r2", "r3")), **{"retry": NO_BACKOFF, **config})


def read_for(subject: Gateway, seconds: int, name: str = "r1") -> list:
    """The page of a replica shows each second that it reads a prompt."""
    actions = []
    for _ in range(seconds):
        subject.tell(LoadReported("m", name, waiting=0, kv_used=0.1, reads=True))
        actions += subject.wait(1.0, every=EVERY)
    return actions


# --- a retry cannot help --------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_a_prompt_that_its_replica_shows_to_read_is_read_once(whole):
    """400 s on a starved CPU: one attempt, and the answer."""
    subject = gateway()
    assert only(subject.arrive(prompt_tokens=LONG, whole=whole), Dispatch).replica_id == "r1"
    assert read_for(subject, 400) == []
    subject.first()
    finish = only(subject.end(tokens=5), Finish)
    assert (finish.status, finish.attempts) == (200, 1)
    if not whole:  # in one piece it has ten minutes
        assert events(finish).count("patience") == 1


def test_a_short_prompt_at_a_replica_that_reads_another_goes_elsewhere_as_ever():
    subject = gateway()
    subject.arrive(prompt_tokens=2_047)
    assert read_for(subject, 59) == []
    abort, again = read_for(subject, 2)
    assert (abort.kind, again.replica_id) == (Kind.FIRST_TOKEN_TIMEOUT, "r2")


def test_a_page_that_shows_nothing_for_half_a_minute_ends_the_patience():
    subject = gateway()
    subject.arrive(prompt_tokens=LONG)
    assert read_for(subject, 150) == []
    assert subject.wait(28.0, every=EVERY) == []
    abort, again = subject.wait(7.0, every=EVERY)
    assert (abort.kind, again.replica_id) == (Kind.FIRST_TOKEN_TIMEOUT, "r2")


def test_without_a_page_a_long_prompt_is_tried_twice_and_then_waited_for():
    subject = gateway()
    subject.arrive(prompt_tokens=LONG)
    assert subject.wait(109.0, every=EVERY) == []
    abort, again = subject.wait(2.0, every=EVERY)
    assert (abort.kind, again.replica_id) == (Kind.FIRST_TOKEN_TIMEOUT, "r2")
    assert subject.wait(300.0, every=EVERY) == []
    subject.first(attempt=1)
    assert only(subject.end(attempt=1, tokens=5), Finish).status == 200


def test_who_has_less_time_left_than_the_attempt_has_had_is_not_begun_anew():
    subject = gateway()
    subject.arrive(prompt_tokens=LONG, deadline=subject.now + 200 * SECOND)
    assert subject.wait(199.0, every=EVERY) == []
    subject.first()
    assert only(subject.end(tokens=5), Finish).status == 200


def test_a_prompt_that_was_not_read_by_its_deadline_says_so_and_how_long_it_takes():
    subject = gateway(retry=RetryConfig(attempts=1))
    subject.arrive(prompt_tokens=LONG, deadline=subject.now + 200 * SECOND)
    abort, finish = subject.wait(201.0, every=EVERY)
    assert (abort.kind, finish.status, finish.code) == (Kind.DEADLINE, 504, "prompt_unread")
    assert finish.reason == (
        "The model had about 5000 tokens of prompt to read and was not done after 200 s. "
        "Allow more time, or send a shorter prompt."
    )
    for number in range(30):
        subject.serve(f"w{number}", 5.0, prompt_tokens=2_500)
        subject.wait(1.0, every=EVERY)
    subject.arrive("q2", prompt_tokens=100_000, deadline=subject.now + 9 * SECOND)
    finish = last(subject.wait(10.0, every=EVERY), Finish)
    assert "after 9 s, which takes about 20" in finish.reason


def test_a_short_prompt_out_of_time_and_a_long_one_that_was_shown_something_are_told_as_ever():
    subject = gateway("r1")
    subject.arrive("q1", deadline=subject.now + 5 * SECOND)
    subject.arrive("q2", prompt_tokens=LONG, deadline=subject.now + 5 * SECOND)
    subject.after(1.0).first("q2")
    finishes = all_of(subject.wait(6.0, every=EVERY), Finish)
    assert {finish.code for finish in finishes} == {"deadline_exceeded"}


# --- a retry can help -----------------------------------------------------------------------------


def test_the_last_attempt_of_a_long_prompt_is_given_up_where_the_replica_fails_others():
    subject = gateway(view("r1", slots=99), retry=RetryConfig(attempts=1))
    subject.arrive("long", prompt_tokens=LONG)
    for number in range(5):
        subject.arrive(f"q{number}")
        subject.end(f"q{number}", kind=Kind.REFUSED)
    assert subject.candidate("r1").breaker.state == "open"
    finishes = all_of(subject.wait(599.0, every=SECOND), Finish)
    assert [one.code for one in finishes if one.request_id == "long"] == ["upstream_timeout"]


def test_a_long_prompt_at_a_replica_that_was_found_to_hang_is_moved():
    subject = gateway("r1", "r2")
    subject.arrive(prompt_tokens=LONG)
    subject.wait(20.0, every=EVERY)
    subject.tell(LoadReported("m", "r1", waiting=0, kv_used=0.1, reads=True))
    subject.view(out("r1", Halt.STALLED), "r2")
    moved = subject.wait(40.0, every=EVERY)
    abort, dispatch = all_of(moved, Abort | Dispatch)
    assert (abort.replica_id, dispatch.replica_id) == ("r1", "r2")


def test_a_tenant_whose_prompts_were_at_a_replica_that_hung_explains_nothing():
    subject = gateway("r1", "r2")
    subject.arrive("q1", prompt_tokens=100_000, tenant="hostile")
    assert subject.tallies()["r1"].explained_s == 100.0
    subject.tell(ReplicaHalted("m", "r1", Halt.STALLED))
    subject.arrive("q2", prompt_tokens=100_000, tenant="hostile")
    subject.arrive("q3", prompt_tokens=10_000, tenant="other")
    tallies = subject.tallies()
    assert (tallies["r1"].explained_s, tallies["r2"].explained_s) == (10.0, 0.0)


def test_a_process_that_was_stopped_speaks_against_no_tenant():
    subject = gateway("r1", "r2")
    subject.arrive("q1", prompt_tokens=100_000, stores=True)  # it stays there
    subject.tell(ReplicaHalted("m", "r1", Halt.STOPPED))
    assert subject.tallies()["r1"].explained_s == 100.0
