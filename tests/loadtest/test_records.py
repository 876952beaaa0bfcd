"""The file of a benchmark is read as it was written, and refused with a plain answer."""

import json

import pytest

from holdfast.core.types import ConfigError
from holdfast.loadtest.records import (
    BenchFile,
    BenchOutcome,
    BenchRecord,
    BenchStep,
    ClientState,
    FleetState,
    GpuReading,
    load,
    save,
)

ANSWERED = BenchRecord(
    step=0,
    arrived_s=1.0,
    sent_s=1.001,
    first_s=1.25,
    last_s=2.25,
    ended_s=2.26,
    asked_prompt_tokens=100,
    asked_output_tokens=11,
    prompt_tokens=101,
    cached_tokens=64,
    output_tokens=11,
    events=11,
    gap_max_s=0.2,
    replica="m-1",
    attempts=1,
    status=200,
)
REFUSED = BenchRecord(
    step=0, arrived_s=1.5, status=503, outcome=BenchOutcome.FAILURE, problem="503"
)
FILE = BenchFile(
    made_by="holdfast 0",
    began_at=1.7e9,
    target="http://127.0.0.1:8000",
    model="m",
    workload={"prompt": 100},
    slo={"ttft": 0.5},
    steps=(
        BenchStep(name="5 requests/s", mode="open", rate=5.0, counted_from_s=0.5),
        BenchStep(name="8 users", mode="closed", users=8, refused="late", client=ClientState()),
    ),
    fleet=FleetState(
        replicas=2, gpus=(GpuReading(at_s=1.0, replica="m-1", device="0", busy_share=0.5),)
    ),
    requests=(
        BenchRecord(step=0, arrived_s=0.1),
        ANSWERED,
        REFUSED,
        BenchRecord(step=1, arrived_s=9),
    ),
)


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "run.json"
    save(FILE, path)
    assert load(path) == FILE
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_a_later_release_with_more_fields_is_read(tmp_path):
    path = tmp_path / "run.json"
    save(FILE, path)
    told = json.loads(path.read_text())
    told["novel"] = 1
    told["requests"][0]["novel"] = 2
    path.write_text(json.dumps(told))
    assert load(path) == FILE


def test_latencies_count_from_the_intended_moment():
    assert ANSWERED.ttft_s == pytest.approx(0.25)
    assert ANSWERED.total_s == pytest.approx(1.26)
    assert ANSWERED.tpot_s == pytest.approx(0.1)
    assert (REFUSED.ttft_s, REFUSED.total_s, REFUSED.tpot_s, REFUSED.tokens) == (None,) * 4


def test_without_usage_events_are_counted():
    record = BenchRecord(step=0, arrived_s=0.0, first_s=1.0, last_s=2.0, events=5)
    assert record.tokens == 5
    assert record.tpot_s == pytest.approx(0.25)


def test_warm_up_and_refused_steps_do_not_count():
    assert FILE.measured() == [ANSWERED, REFUSED]
    assert FILE.of_step(0) == [ANSWERED, REFUSED]
    assert len(FILE.of_step(0, warm=True)) == 3


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is no file of a benchmark"),
        (b"[]", "is no file of a benchmark"),
        (b"{}", "is no file of a benchmark"),
        (b'{"format": "holdfast-bench", "version": 9}', "has version 9"),
        (b'{"format": "holdfast-bench", "version": 1, "requests": [{"step": 0}]}', "arrived_s"),
        (
            b'{"format":"holdfast-bench","version":1,"requests":[{"step":0,"arrived_s":1}]}',
            "of 0 steps",
        ),
    ],
)
def test_what_is_no_benchmark_is_refused_with_the_fix(tmp_path, content, problem):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.json") as refused:
        load(path)
    assert problem in str(refused.value)
    assert "use the version" in str(refused.value) or "'holdfast bench'" in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.json")
