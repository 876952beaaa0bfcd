"""Requests on which replicas die, and how many may."""

import pytest
from flow_stage import QUICK, Gateway, all_of, events, hedging, lane, last, only, view
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.failure import Kind
from holdfast.core.messages import Dispatch, Finish
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import nanos
from sampling import examples

KEEN = RetryConfig(attempts=9, backoff="none", budget=False)


def test_a_request_on_which_two_replicas_died_gets_no_third():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    finish = only(gateway.after(0.05).end(attempt=1, kind=Kind.RESET), Finish)
    assert (finish.status, finish.code, finish.attempts) == (502, "replicas_lost", 2)
    assert finish.reason == "its connection died on r1 and r2: it is not tried on a third"
    assert events(finish)[-1] == "replicas_lost"


def test_a_stream_that_two_replicas_died_under_is_not_continued_on_a_third():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive()
    gateway.first()
    only(gateway.end(kind=Kind.RESET, tokens=3), Dispatch)
    gateway.after(0.05).first(attempt=1)
    finish = only(gateway.end(attempt=1, kind=Kind.RESET, tokens=2), Finish)
    assert (finish.code, finish.shown) == ("replicas_lost", True)


@pytest.mark.parametrize(
    "kind",
    [Kind.CUT, Kind.SERVER_ERROR, Kind.REFUSED, Kind.MALFORMED, Kind.EMPTY, Kind.DRAINED],
)
def test_other_ends_are_no_deaths(kind):
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    assert all_of(gateway.after(0.05).end(attempt=1, kind=kind), Dispatch)


def test_silence_is_no_death():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN, lane=lane(deadlines=QUICK))
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    gateway.first(attempt=1)
    assert all_of(gateway.after(3.0).silent(attempt=1, tokens=1), Dispatch)


def test_a_pooled_connection_counts_only_if_it_was_not_closed_before():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive("at once")
    gateway.end("at once", kind=Kind.SERVER_ERROR)
    only(gateway.after(0.01).end("at once", attempt=1, kind=Kind.STALE_SOCKET), Dispatch)
    gateway.after(0.05)
    assert all_of(gateway.end("at once", attempt=2, kind=Kind.RESET), Dispatch)
    gateway.arrive("at once again")
    gateway.end("at once again", kind=Kind.RESET)
    only(gateway.end("at once again", attempt=1, kind=Kind.STALE_SOCKET), Dispatch)
    gateway.arrive("later")
    gateway.end("later", kind=Kind.RESET)
    ended = gateway.after(0.05).end("later", attempt=1, kind=Kind.STALE_SOCKET)
    assert last(ended, Finish).code == "replicas_lost"


def test_two_deaths_on_one_replica_are_one():
    gateway = Gateway("r1", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    only(gateway.after(0.05).end(attempt=1, kind=Kind.RESET), Dispatch)


def test_replicas_that_die_at_the_same_time_are_not_the_requests_doing():
    gateway = Gateway("r1", "r2", "r3", "r4", retry=KEEN)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    only(gateway.after(0.001).end(attempt=1, kind=Kind.RESET), Dispatch)
    only(gateway.after(0.001).end(attempt=2, kind=Kind.RESET), Dispatch)
    finish = last(gateway.after(1.0).end(attempt=3, kind=Kind.RESET), Finish)
    assert finish.code == "replicas_lost"


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.STALE_SOCKET])
@pytest.mark.parametrize("lived_s", [0.001, 0.05])
def test_a_request_that_may_cost_one_replica_is_not_sent_on_however_soon_it_broke(kind, lived_s):
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive(deaths_max=1)
    finish = only(gateway.after(lived_s).end(kind=kind), Finish)
    assert (finish.status, finish.code, finish.attempts) == (502, "replica_lost", 1)
    assert finish.reason == "its connection died on r1: it is not tried on another"


def test_a_request_that_may_cost_one_replica_is_tried_again_where_none_was_lost():
    gateway = Gateway("r1", "r2", "r3", retry=KEEN)
    gateway.arrive(deaths_max=1)
    assert all_of(gateway.end(kind=Kind.REFUSED), Dispatch)
    assert all_of(gateway.after(0.05).end(attempt=1, kind=Kind.SERVER_ERROR), Dispatch)


HOSTED = (view("r1", host="h1"), view("r2", host="h1"), view("r3", host="h2"))


def test_after_a_broken_connection_the_replicas_of_other_hosts_come_first():
    gateway = Gateway(*HOSTED, retry=KEEN)
    assert only(gateway.arrive(), Dispatch).replica_id == "r1"
    assert only(gateway.end(kind=Kind.RESET), Dispatch).replica_id == "r3", "not r2, beside r1"
    gateway.view(*HOSTED[:2])
    assert only(gateway.arrive("q2"), Dispatch).replica_id in {"r1", "r2"}
    again = last(gateway.end("q2", kind=Kind.REFUSED), Dispatch)
    assert again.replica_id in {"r1", "r2"}, "there is no other host: one beside it is better"


def test_an_error_that_the_replica_answered_says_nothing_of_its_host():
    gateway = Gateway(*HOSTED, retry=KEEN)
    gateway.arrive()
    assert only(gateway.end(kind=Kind.SERVER_ERROR), Dispatch).replica_id == "r2"


def test_two_replicas_of_one_host_that_die_within_moments_are_one_death():
    gateway = Gateway(*HOSTED[:2], retry=KEEN)
    gateway.arrive()
    gateway.first()
    only(gateway.end(kind=Kind.RESET, tokens=3), Dispatch)
    gateway.after(0.5).first(attempt=1)
    gateway.view(*HOSTED)
    continued = last(gateway.end(attempt=1, kind=Kind.RESET, tokens=2), Dispatch)
    assert continued.replica_id == "r3", "it is continued where the host lives"


def test_deaths_on_one_host_that_lie_apart_and_deaths_on_two_hosts_are_two():
    apart = Gateway(*HOSTED[:2], retry=KEEN)
    apart.arrive()
    only(apart.end(kind=Kind.RESET), Dispatch)
    assert only(apart.after(2.1).end(attempt=1, kind=Kind.RESET), Finish).code == "replicas_lost"
    hosts = Gateway(*HOSTED, retry=KEEN)
    hosts.arrive()
    assert only(hosts.end(kind=Kind.RESET), Dispatch).replica_id == "r3"
    assert only(hosts.after(0.05).end(attempt=1, kind=Kind.RESET), Finish).code == "replicas_lost"


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(["h1", "h2", ""]), min_size=1, max_size=5), st.data())
def test_a_request_is_given_up_only_after_deaths_with_two_causes(hosts, data):
    views = [view(f"r{number}", host=host) for number, host in enumerate(hosts)]
    gateway, deaths = Gateway(*views, retry=KEEN), []
    actions = gateway.arrive()
    while (sent := [one for one in actions if isinstance(one, Dispatch)]) and len(deaths) < 9:
        name = sent[-1].replica_id
        gateway.after(data.draw(st.sampled_from([0.001, 0.03, 0.5, 3.0])))
        deaths.append((name, hosts[int(name[1:])], gateway.now))
        actions = gateway.end(attempt=sent[-1].attempt, kind=Kind.RESET)
    [finish] = [one for one in actions if isinstance(one, Finish)] or [None]
    if finish is not None and finish.code == "replicas_lost":
        causes = [
            (one, other)
            for index, one in enumerate(deaths)
            for other in deaths[index + 1 :]
            if one[0] != other[0]
            and (one[1] != other[1] or not one[1] or other[2] - one[2] > nanos(2.0))
        ]
        assert causes, deaths


def test_while_its_hedge_runs_a_request_is_not_given_up():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    assert gateway.end(attempt=0, kind=Kind.RESET) == []
    gateway.first(attempt=1)
    assert only(gateway.end(attempt=1, tokens=4), Finish).status == 200
