import re

import pytest

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish
from holdfast.core.types import MILLISECOND, SECOND
from holdfast.gateway.telemetry import counters as counting
from holdfast.gateway.telemetry.counters import SERIES_MAX, Counters

DURATION = "gen_ai_server_request_duration_seconds"
OPERATION = "gen_ai_client_operation_duration_seconds"
USAGE = "gen_ai_client_token_usage"


def finish(model="m", status=200, attempts=1, continued=0):
    return Finish(1, status, "", "", attempts, continued, model)


def answered(counters, took=SECOND, read=70, said=9, replica="m-1", tenant="a", via="direct"):
    counters.answered(replica, "m", tenant, via, took, read, said)


def bounds(told, name, labels='model="m"'):
    """The upper ends of a histogram's buckets, as they are told."""
    found = re.compile(rf"{name}_bucket\{{{re.escape(labels)},le=\"(.+)\"\}}")
    return [match[1] for series in told if (match := found.fullmatch(series))]


# --- attempts -------------------------------------------------------------------------------------


def test_attempts_are_counted_by_replica_and_outcome_with_their_time():
    counters = Counters()
    answered(counters, took=2 * SECOND)
    answered(counters, took=SECOND)
    counters.attempt("m-1", "m", Kind.RESET, SECOND)
    answered(counters, replica="m-2")
    told = counters.read()
    assert told['attempts_total{replica="m-1",kind="ok"}'] == 2
    assert told[f'attempts_total{{replica="m-1",kind="{Kind.RESET.value}"}}'] == 1
    assert told['attempts_total{replica="m-2",kind="ok"}'] == 1
    assert told['attempt_seconds_total{replica="m-1"}'] == pytest.approx(4.0)
    assert told[f'{OPERATION}_count{{model="m",outcome="ok"}}'] == 3
    assert told[f'{OPERATION}_sum{{model="m",outcome="ok"}}'] == pytest.approx(4.0)
    assert told[f'{OPERATION}_count{{model="m",outcome="failed"}}'] == 1


def test_a_complete_answer_that_is_booked_elsewhere_still_counts_as_one():
    counters = Counters()
    counters.attempt("m-1", "m", None, SECOND)  # a continuation: its tokens are booked apart
    told = counters.read()
    assert told['attempts_total{replica="m-1",kind="ok"}'] == 1
    assert told[f'{OPERATION}_count{{model="m",outcome="ok"}}'] == 1
    assert not any(name.startswith(("tokens_total", USAGE)) for name in told)


def test_tokens_fall_into_powers_of_four():
    counters = Counters()
    for read in (0, 1, 2, 4, 5, 67_108_864, 67_108_865):
        answered(counters, read=read, said=1)
    told = counters.read()
    labels = 'model="m",type="input"'
    ends = bounds(told, USAGE, labels)
    assert ends == [str(4**power) for power in range(14)] + ["+Inf"]
    assert [told[f'{USAGE}_bucket{{{labels},le="{end}"}}'] for end in ends[:4]] == [2, 4, 5, 5]
    assert told[f'{USAGE}_bucket{{{labels},le="67108864"}}'] == 6
    assert told[f'{USAGE}_bucket{{{labels},le="+Inf"}}'] == 7
    assert told[f'{USAGE}_sum{{model="m",type="output"}}'] == 7


def test_a_stream_tells_its_first_chunk_and_the_time_between_two():
    counters = Counters()
    answered(counters)
    counters.streamed("m", 30 * MILLISECOND, 15 * MILLISECOND, 12 * MILLISECOND)
    counters.streamed("m", 50 * MILLISECOND, 0, 0)  # one piece: nothing lies between two
    counters.first_token("m", 31 * MILLISECOND)
    told = counters.read()
    assert told['gen_ai_client_time_to_first_chunk_seconds_count{model="m"}'] == 2
    assert told['gen_ai_client_time_per_output_chunk_seconds_count{model="m"}'] == 1
    assert told['gen_ai_server_time_per_output_token_seconds_bucket{model="m",le="0.025"}'] == 1
    assert told['gen_ai_server_time_per_output_token_seconds_sum{model="m"}'] == 0.012
    assert told['gen_ai_server_time_to_first_token_seconds_bucket{model="m",le="0.02"}'] == 0
    assert told['gen_ai_server_time_to_first_token_seconds_bucket{model="m",le="0.04"}'] == 1


def test_buckets_are_those_of_the_conventions():
    counters = Counters()
    answered(counters)
    counters.streamed("m", 1, 1, 1)
    counters.first_token("m", 1)
    counters.finished(finish(), 1)
    told = counters.read()
    request = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
    request += (5.12, 10.24, 20.48, 40.96, 81.92)
    first = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1)
    first += (0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    token = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
    for name, labels, expected in (
        (DURATION, 'model="m",status="200"', request),
        (OPERATION, 'model="m",outcome="ok"', request),
        ("gen_ai_client_time_to_first_chunk_seconds", 'model="m"', request),
        ("gen_ai_client_time_per_output_chunk_seconds", 'model="m"', request),
        ("gen_ai_server_time_to_first_token_seconds", 'model="m"', first),
        ("gen_ai_server_time_per_output_token_seconds", 'model="m"', token),
    ):
        *ends, last = bounds(told, name, labels)
        assert tuple(map(float, ends)) == expected, name
        assert last == "+Inf"


# --- requests -------------------------------------------------------------------------------------


def test_requests_are_counted_by_model_and_status():
    counters = Counters()
    for status in (200, 200, 503):
        counters.finished(finish(status=status), SECOND)
    told = counters.read()
    assert told['requests_total{model="m",status="200"}'] == 2
    assert told['requests_total{model="m",status="503"}'] == 1
    assert told[f'{DURATION}_count{{model="m",status="200"}}'] == 2
    assert told[f'{DURATION}_sum{{model="m",status="503"}}'] == pytest.approx(1.0)


def test_durations_fall_into_cumulative_buckets():
    counters = Counters()
    for took in (5 * MILLISECOND, 10 * MILLISECOND, 11 * MILLISECOND, 2 * SECOND, 3_600 * SECOND):
        counters.finished(finish(), took)
    told = counters.read()

    def bucket(bound):
        return told[f'{DURATION}_bucket{{model="m",status="200",le="{bound}"}}']

    assert bucket("0.01") == 2  # a bound belongs to its bucket, as Prometheus has it
    assert bucket("0.02") == 3
    assert bucket("1.28") == 3
    assert bucket("2.56") == 4
    assert bucket("81.92") == 4
    assert bucket("+Inf") == told[f'{DURATION}_count{{model="m",status="200"}}'] == 5
    counts = [value for name, value in told.items() if "_bucket" in name]
    assert counts == sorted(counts)


def test_a_duration_of_nothing_has_a_bucket_too():
    counters = Counters()
    counters.finished(finish(), 0)
    assert counters.read()[f'{DURATION}_bucket{{model="m",status="200",le="0.01"}}'] == 1


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


# --- bounds ---------------------------------------------------------------------------------------


def test_there_is_an_end_to_the_number_of_series():
    counters = Counters()
    for number in range(SERIES_MAX + 10):
        counters.add(f"n{number}")
    counters.add("n0", 2.5)
    assert len(counters.values) == SERIES_MAX + 1
    assert counters.values["series_overflow_total"] == 10
    assert counters.values["n0"] == 3.5


def test_accounts_are_only_a_short_way_to_the_same_lists(monkeypatch):
    monkeypatch.setattr(counting, "_ACCOUNTS_MAX", 2)
    counters = Counters()
    for _ in range(3):
        for tenant in ("a", "b", "c"):
            answered(counters, tenant=tenant)
    told = counters.read()
    assert told['attempts_total{replica="m-1",kind="ok"}'] == 9
    for tenant in ("a", "b", "c"):
        labels = f'tenant="{tenant}",model="m",route="direct",use="useful",type="input"'
        assert told[f"tokens_total{{{labels}}}"] == 210


def test_what_was_read_does_not_change_afterwards():
    counters = Counters()
    counters.add("a")
    told = counters.read()
    counters.add("a")
    assert told == {"a": 1}
