import json

import pytest

from holdfast.core.types import SECOND, ConfigError, Request
from holdfast.sim.request_record import RequestRecord
from holdfast.sim.results import (
    PHASES,
    SLICES,
    Detection,
    Detections,
    PhaseAccount,
    Results,
    Slo,
    quantiles,
)


def record(
    *,
    arrived: float = 0.0,
    first: float = 1.0,
    done: float = 3.0,
    output: int = 11,
    status: int = 200,
    wrong: bool = False,
) -> RequestRecord:
    request = Request(1, "m", arrived=round(arrived * SECOND))
    made = RequestRecord(request, output)
    made.first_at = round((arrived + first) * SECOND)
    made.done_at = round((arrived + done) * SECOND)
    made.attempts = 1
    made.shown = output
    made.status = status
    made.wrong = wrong
    return made


def test_a_good_answer_is_measured_from_its_arrival() -> None:
    phase = PhaseAccount()
    phase.add(record(arrived=5.0), Slo())
    assert (phase.offered, phase.good, phase.within_slo) == (1, 1, 1)
    assert phase.first_token == [1.0]
    assert phase.latency == [3.0]
    assert phase.per_token == [0.2]  # ten gaps in two seconds
    assert phase.tokens == 11


def test_an_answer_of_one_token_has_no_gaps() -> None:
    phase = PhaseAccount()
    phase.add(record(first=1.0, done=1.0, output=1), Slo(per_token_s=0.001))
    assert phase.per_token == []
    assert phase.within_slo == 1


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        (Slo(first_token_s=1.0), 1),
        (Slo(first_token_s=0.99), 0),
        (Slo(per_token_s=0.2), 1),
        (Slo(per_token_s=0.19), 0),
        (Slo(latency_s=3.0), 1),
        (Slo(latency_s=2.99), 0),
        (Slo(first_token_s=2.0, per_token_s=1.0, latency_s=1.0), 0),
    ],
    ids=repr,
)
def test_each_promise_is_judged_and_only_those_made(slo: Slo, kept: int) -> None:
    phase = PhaseAccount()
    phase.add(record(), slo)
    assert (phase.good, phase.within_slo) == (1, kept)


@pytest.mark.parametrize(
    ("status", "refused", "failed"),
    [(429, 1, 0), (503, 1, 0), (502, 0, 1), (504, 0, 1), (400, 0, 1), (404, 0, 1)],
)
def test_refusals_and_failures_are_told_apart(status: int, refused: int, failed: int) -> None:
    phase = PhaseAccount()
    phase.add(record(status=status), Slo())
    assert (phase.refused, phase.failed) == (refused, failed)
    assert (phase.offered, phase.good, phase.within_slo) == (1, 0, 0)
    assert phase.latency == []


def test_a_wrong_answer_is_neither_good_nor_failed() -> None:
    phase = PhaseAccount()
    phase.add(record(wrong=True), Slo())
    assert (phase.wrong, phase.good, phase.failed) == (1, 0, 0)
    assert phase.latency == []


def test_costs_are_summed_whatever_became_of_the_request() -> None:
    phase = PhaseAccount()
    for status in (200, 502):
        costly = record(status=status)
        costly.attempts, costly.continued = 3, 1
        costly.wasted_calls, costly.wasted_tokens = 2, 40
        costly.model = "small"
        phase.add(costly, Slo())
    account = phase.to_dict()
    assert account["amplification"] == 3.0
    assert account["continued"] == 2
    assert account["wasted_calls"] == 4
    assert account["wasted_tokens"] == 80
    assert account["degraded"] == 2
    assert account["goodput"] == account["slo_attainment"] == 0.5


def test_an_empty_account_divides_by_nothing() -> None:
    account = PhaseAccount().to_dict()
    assert account["goodput"] == account["amplification"] == 0.0
    assert account["latency_s"] == {"mean": None, "p50": None, "p95": None, "p99": None}


def test_quantiles_are_values_that_were_measured() -> None:
    found = quantiles([float(value) for value in range(100, 0, -1)])
    assert found == {"mean": 50.5, "p50": 51.0, "p95": 96.0, "p99": 100.0}
    assert quantiles([7.0]) == {"mean": 7.0, "p50": 7.0, "p95": 7.0, "p99": 7.0}


def test_a_request_belongs_to_the_phase_in_which_it_arrived() -> None:
    results = Results(1, Slo(), (10 * SECOND, 20 * SECOND))
    for arrived in (9.999, 10.0, 19.999, 20.0, 30.0):
        results.add(record(arrived=arrived))
    assert [results.phases[name].offered for name in PHASES] == [1, 2, 2]


def test_without_faults_everything_is_before_them() -> None:
    results = Results(1, Slo(), None)
    results.add(record(arrived=1e6))
    assert results.phases["before"].offered == 1
    assert list(results.to_dict()["phases"]) == ["before"]


def test_the_total_is_the_sum_and_leaves_its_parts_alone() -> None:
    results = Results(1, Slo(), (10 * SECOND, 20 * SECOND))
    for arrived in (1.0, 11.0, 12.0, 21.0):
        results.add(record(arrived=arrived))
    total = results.total()
    assert (total.offered, total.good, total.tokens) == (4, 4, 44)
    assert total.latency == [3.0] * 4
    assert len(results.phases["before"].latency) == 1
    assert results.total().offered == 4


def test_a_detection_tells_how_long_it_took() -> None:
    found = Detection("hang", "r1", 10 * SECOND)
    assert found.to_dict()["time_to_detect_s"] is None
    found.noticed, found.by, found.sent = 12 * SECOND, "health: suspect", 7
    assert found.to_dict() == {
        "fault": "hang",
        "replica": "r1",
        "began_s": 10.0,
        "time_to_detect_s": 2.0,
        "by": "health: suspect",
        "requests_sent": 7,
    }


def test_a_fault_counts_what_is_sent_to_its_replica_until_somebody_acts() -> None:
    book: list[Detection] = []
    detections = Detections(book)
    detections.began("slow", "r1", 1)
    detections.began("hang", "r1", 2)
    detections.began("hang", "r2", 3)
    detections.sent("r1")
    detections.noticed("r1", "health: suspect", 9)
    detections.noticed("r1", "health: dead", 10)  # too late to be first
    detections.sent("r1")
    detections.sent("r3")
    assert [(d.fault, d.replica_id, d.sent, d.noticed, d.by) for d in book] == [
        ("slow", "r1", 1, 9, "health: suspect"),
        ("hang", "r1", 1, 9, "health: suspect"),
        ("hang", "r2", 0, None, ""),
    ]
    assert list(detections.open) == ["r2"]


def test_the_timeline_tells_when_requests_came_and_which_were_answered() -> None:
    results = Results(1, Slo(), None, SLICES * SECOND)
    for arrived, status in ((0.0, 200), (0.5, 502), (7.0, 200), (SLICES + 5.0, 200)):
        results.add(record(arrived=arrived, status=status))
    timeline = results.to_dict()["timeline"]
    assert len(timeline) == SLICES
    assert (timeline[0], timeline[1], timeline[7], timeline[-1]) == (0.5, None, 1.0, 1.0)


def test_the_account_is_plain_data() -> None:
    results = Results(3, Slo(), None)
    results.add(record())
    Detections(results.detections).began("hang", "r1", 5)
    account = json.loads(json.dumps(results.to_dict()))
    assert account["seed"] == 3
    assert account["total"]["offered"] == 1
    assert account["detections"][0]["fault"] == "hang"


@pytest.mark.parametrize("name", ["first_token_s", "per_token_s", "latency_s"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_promise_of_no_time_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"slo\.{name}: is {value}; use seconds above 0"):
        Slo(**{name: value})
