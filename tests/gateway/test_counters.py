import pytest

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish
from holdfast.core.types import MILLISECOND, SECOND
from holdfast.gateway.counters import SERIES_MAX, Counters


def finish(model="m", status=200, attempts=1, continued=0):
    return Finish(1, status, "", "", attempts, continued, model)


def test_attempts_are_counted_by_replica_and_outcome():
    counters = Counters()
    for kind in (None, None, Kind.RESET):
        counters.attempt("m-1", kind)
    counters.attempt("m-2", None)
    told = counters.read()
    assert told['attempts_total{replica="m-1",kind="ok"}'] == 2
    assert told[f'attempts_total{{replica="m-1",kind="{Kind.RESET.value}"}}'] == 1
    assert told['attempts_total{replica="m-2",kind="ok"}'] == 1


def test_requests_are_counted_by_model_and_status():
    counters = Counters()
    for status in (200, 200, 503):
        counters.finished(finish(status=status), SECOND)
    told = counters.read()
    assert told['requests_total{model="m",status="200"}'] == 2
    assert told['requests_total{model="m",status="503"}'] == 1
    assert told['request_seconds_count{model="m"}'] == 3
    assert told['request_seconds_sum{model="m"}'] == pytest.approx(3.0)


def test_durations_fall_into_cumulative_buckets():
    counters = Counters()
    for took in (5 * MILLISECOND, 10 * MILLISECOND, 11 * MILLISECOND, 2 * SECOND, 3_600 * SECOND):
        counters.finished(finish(), took)
    told = counters.read()

    def bucket(bound):
        return told[f'request_seconds_bucket{{model="m",le="{bound}"}}']

    assert bucket("0.01") == 2  # a bound belongs to its bucket, as Prometheus has it
    assert bucket("0.025") == 3
    assert bucket("1.0") == 3
    assert bucket("2.5") == 4
    assert bucket("600.0") == 4
    assert bucket("+Inf") == told['request_seconds_count{model="m"}'] == 5
    bounds = [value for name, value in told.items() if "_bucket" in name]
    assert bounds == sorted(bounds)


def test_continuations_and_other_extra_attempts_are_told_apart():
    counters = Counters()
    counters.finished(finish(attempts=1), 0)
    counters.finished(finish(attempts=4, continued=2), 0)
    told = counters.read()
    assert told['continuations_total{model="m"}'] == 2
    assert told['extra_attempts_total{model="m"}'] == 1


def test_refusals_and_escalations_are_counted_by_their_reason():
    counters = Counters()
    counters.refused(401, "invalid_api_key")
    counters.refused(401, "invalid_api_key")
    counters.escalated("v", "json")
    assert counters.read() == {
        'refused_total{status="401",code="invalid_api_key"}': 2,
        'escalations_total{model="v",check="json"}': 1,
    }


def test_there_is_an_end_to_the_number_of_series():
    counters = Counters()
    for number in range(SERIES_MAX + 10):
        counters.add(f"n{number}")
    counters.add("n0", 2.5)
    assert len(counters.values) == SERIES_MAX + 1
    assert counters.values["series_overflow_total"] == 10
    assert counters.values["n0"] == 3.5


def test_what_was_read_does_not_change_afterwards():
    counters = Counters()
    counters.add("a")
    told = counters.read()
    counters.add("a")
    assert told == {"a": 1}
