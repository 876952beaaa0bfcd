import pytest

from holdfast.core.failure import MEANINGS, Class, Kind, KindMeaning, Outcome, kind_of_status


def test_every_kind_has_a_meaning():
    assert set(MEANINGS) == set(Kind)


def test_outcomes_are_five():
    assert {outcome.value for outcome in Outcome} == {
        "success",
        "failure",
        "backpressure",
        "client_error",
        "cancelled",
    }


def test_no_kind_of_failure_means_success():
    assert all(meaning.outcome is not Outcome.SUCCESS for meaning in MEANINGS.values())


def test_what_counts_against_a_replica_says_where_to_look():
    for kind, meaning in MEANINGS.items():
        if meaning.outcome is Outcome.FAILURE:
            assert meaning.failure_class is not None, kind


def test_what_counts_against_a_replica_may_be_tried_on_another():
    for kind, meaning in MEANINGS.items():
        if meaning.outcome is Outcome.FAILURE:
            assert meaning.retryable, kind


def test_only_attempts_that_did_no_work_are_free():
    assert {kind for kind, meaning in MEANINGS.items() if meaning.free} == {
        Kind.REFUSED,
        Kind.STALE_SOCKET,
    }


def test_what_is_free_is_retryable():
    assert all(meaning.retryable for meaning in MEANINGS.values() if meaning.free)


@pytest.mark.parametrize(
    "kind", [Kind.BAD_REQUEST, Kind.DEADLINE, Kind.CLIENT_GONE, Kind.SUPERSEDED]
)
def test_nobody_retries_what_nobody_waits_for_or_what_is_wrong_everywhere(kind):
    assert not MEANINGS[kind].retryable


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (Kind.OVERLOADED, Outcome.BACKPRESSURE),
        (Kind.BAD_REQUEST, Outcome.CLIENT_ERROR),
        (Kind.STALE_SOCKET, Outcome.CANCELLED),
        (Kind.CLIENT_GONE, Outcome.CANCELLED),
        (Kind.SUPERSEDED, Outcome.CANCELLED),
        (Kind.DRAINED, Outcome.CANCELLED),
        (Kind.DEADLINE, Outcome.CANCELLED),
        (Kind.REFUSED, Outcome.FAILURE),
        (Kind.WRONG_OUTPUT, Outcome.FAILURE),
    ],
)
def test_a_kind_is_read_as_its_outcome(kind, outcome):
    assert MEANINGS[kind].outcome is outcome


def test_each_class_has_a_kind_that_leads_to_it():
    assert {meaning.failure_class for meaning in MEANINGS.values()} >= set(Class)


def test_a_meaning_is_not_free_unless_it_says_so():
    assert not KindMeaning(Outcome.FAILURE, retryable=True).free


@pytest.mark.parametrize("status", [100, 200, 204, 302, 399])
def test_below_400_is_success(status):
    assert kind_of_status(status, retry_after=False) is None


@pytest.mark.parametrize("retry_after", [False, True])
def test_429_is_a_busy_replica_with_or_without_retry_after(retry_after):
    assert kind_of_status(429, retry_after=retry_after) is Kind.OVERLOADED


def test_503_is_politeness_only_with_retry_after():
    assert kind_of_status(503, retry_after=True) is Kind.OVERLOADED
    assert kind_of_status(503, retry_after=False) is Kind.SERVER_ERROR


@pytest.mark.parametrize("status", [500, 501, 502, 504, 599])
@pytest.mark.parametrize("retry_after", [False, True])
def test_other_5xx_are_failures_whatever_they_promise(status, retry_after):
    assert kind_of_status(status, retry_after=retry_after) is Kind.SERVER_ERROR


@pytest.mark.parametrize("status", [400, 401, 404, 408, 422, 499])
def test_other_4xx_are_the_clients(status):
    assert kind_of_status(status, retry_after=False) is Kind.BAD_REQUEST
