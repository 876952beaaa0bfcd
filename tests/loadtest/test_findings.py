"""What is told of a benchmark: figures with intervals, nothing of what was refused, safe pages."""

import math
from random import Random
from xml.etree import ElementTree as ET

import pytest

from holdfast.core.types import ConfigError
from holdfast.loadtest.comparison import Change, compare
from holdfast.loadtest.findings import efficiencies, findings_of
from holdfast.loadtest.records import (
    BenchFile,
    BenchOutcome,
    BenchRecord,
    BenchStep,
    ClientState,
    FleetState,
    GpuReading,
)
from holdfast.loadtest.report import page
from holdfast.loadtest.summary import ServiceObjective, summarise
from holdfast.planner.charts.svg import svg


def answers(step, count, *, ttft=0.1, tpot=0.01, tokens=11, seed=1, rate=20.0, begin=0.0, **more):
    """Answers of a known law: a lognormal first token, tokens at a steady pace."""
    rng = Random(seed)
    found = []
    for number in range(count):
        at = begin + number / rate
        first = at + ttft * math.exp(rng.gauss(0.0, 0.2))
        last = first + tpot * (tokens - 1)
        found.append(
            BenchRecord(
                step=step,
                arrived_s=at,
                sent_s=at,
                first_s=first,
                last_s=last,
                ended_s=last,
                prompt_tokens=100,
                output_tokens=tokens,
                events=tokens,
                status=200,
                **{"replica": f"m-{number % 2}", **more},
            )
        )
    return found


def one_step(records, seconds=50.0, **more):
    step = BenchStep(name="20 requests/s", mode="open", rate=20.0, counted_to_s=seconds)
    return BenchFile(model="m", target="http://x", steps=(step,), requests=tuple(records), **more)


def test_figures_are_those_of_the_law():
    file = one_step(answers(0, 1_000))
    summary = summarise(file, 0, ServiceObjective(ttft_s=0.1))
    assert summary.latencies["ttft"][0.5].low <= 0.1 <= summary.latencies["ttft"][0.5].high
    p95 = 0.1 * math.exp(0.2 * 1.6449)
    assert summary.latencies["ttft"][0.95].low <= p95 <= summary.latencies["ttft"][0.95].high
    assert summary.latencies["tpot"][0.5].value == pytest.approx(0.01)
    assert summary.output_tokens_s.value == pytest.approx(220.0, rel=0.01)
    assert summary.requests_s.value == pytest.approx(20.0, rel=0.01)
    assert summary.good_share.low <= 0.5 <= summary.good_share.high
    assert summary.goodput_s.value == pytest.approx(20.0 * summary.good_share.value)
    assert summary.concurrency == pytest.approx(20.0 * 0.202, rel=0.03)  # Little's law
    assert [one.requests for one in summary.by_replica] == [500, 500]


def test_failures_miss_the_objective_and_have_no_latency():
    failed = [
        BenchRecord(
            step=0, arrived_s=i * 0.5, status=500, outcome=BenchOutcome.FAILURE, problem="500"
        )
        for i in range(100)
    ]
    records = sorted([*answers(0, 900, rate=18.0), *failed], key=lambda r: r.arrived_s)
    summary = summarise(one_step(records), 0, ServiceObjective())
    assert summary.good_share.value == 0.9
    assert summary.latencies["ttft"][0.5].samples == 900
    assert summary.problems == {"500": 100}
    findings = findings_of(one_step(records))
    assert any("100 × 500" in remark for remark in findings.answer.remarks)


def test_a_refused_benchmark_shows_its_reason_and_no_figure():
    file = one_step(answers(0, 100))
    step = BenchStep(name="x", mode="open", counted_to_s=5.0, refused="the client was late")
    refused = BenchFile(model="m", steps=(step,), requests=file.requests)
    findings = findings_of(refused)
    assert findings.refused
    assert findings.answer.verdict == "Nothing is reported: the client was late."
    assert not findings.answer.tables
    assert not findings.answer.charts
    told = findings.answer.to_dict()["loads"][0]
    assert "ttft_s" not in told
    assert told["refused"] == "the client was late"


def test_charts_can_be_drawn_and_have_units():
    findings = findings_of(one_step(answers(0, 200), slo={"ttft": 0.15}))
    assert len(findings.answer.charts) == 5
    for chart in findings.answer.charts:
        ET.fromstring(svg(chart))
        assert chart.y_label in {"milliseconds", "requests"}


def test_a_page_is_whole_and_shows_foreign_text_as_text():
    records = answers(0, 50, replica="<script>alert(1)</script>")
    findings = findings_of(one_step(records, label="<b>"))
    text = page(findings.answer, "Benchmark of <b>", "made")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "http" not in text.replace("http://x", "").replace("http://www.w3.org/2000/svg", "")


def test_gpus_stand_beside_their_replicas_and_unknown_stays_unknown():
    gpus = tuple(
        GpuReading(at_s=float(t), replica="m-0", device="1 GPU", busy_share=0.5) for t in range(50)
    )
    file = one_step(answers(0, 100), fleet=FleetState(replicas=2, gpus=gpus))
    first, second = summarise(file, 0, ServiceObjective()).by_replica
    assert (first.gpu_busy, first.gpu_memory) == (0.5, None)
    assert (second.gpu_busy, second.gpu_memory) == (None, None)
    without = findings_of(one_step(answers(0, 100), fleet=FleetState(gpus_why="no NVML")))
    assert any("GPU use is unknown: no NVML" in remark for remark in without.answer.remarks)


def test_answers_that_name_no_replica_are_counted_beside_those_that_do():
    records = [*answers(0, 30), *answers(0, 12, replica=None)]
    notes = findings_of(one_step(records)).answer.notes
    assert any(note.startswith("12 answers do not say which replica") for note in notes)
    told = findings_of(one_step(answers(0, 30))).answer.notes
    assert not any("do not say which replica" in note for note in told)


def test_scaling_is_told_against_the_fewest_replicas():
    steps, records = [], []
    for place, (count, rate) in enumerate([(4, 30.0), (1, 10.0)]):
        begin = 100.0 * place
        steps.append(
            BenchStep(
                name=f"{count} replicas",
                mode="closed",
                users=8 * count,
                replicas=count,
                counted_from_s=begin,
                counted_to_s=begin + 50.0,
            )
        )
        records += answers(place, int(rate * 50), rate=rate, begin=begin)
    file = BenchFile(model="m", steps=tuple(steps), requests=tuple(records))
    findings = findings_of(file)
    assert "4 replicas are 3 times as fast as 1: an efficiency of 7" in findings.answer.verdict
    held = sorted(findings.summaries, key=lambda one: one.step.replicas)
    (_, _, whole), (count, faster, efficiency) = efficiencies(held)
    assert whole.value == 1.0
    assert count == 4
    assert faster.low <= 3.0 <= faster.high
    assert efficiency.value == pytest.approx(0.75, rel=0.02)
    assert len(findings.answer.charts) == 1


def test_two_runs_of_one_law_are_the_same_within_noise():
    for seed in (2, 3):
        a, b = one_step(answers(0, 1_000, seed=1)), one_step(answers(0, 1_000, seed=seed))
        found = compare(a, b)
        assert {one.change for one in found.figures} <= {Change.SAME, Change.UNKNOWN}
        assert found.answer.verdict.startswith("Same within noise")


def test_a_slower_one_is_worse_and_a_faster_one_better():
    a, b = one_step(answers(0, 1_000)), one_step(answers(0, 1_000, seed=2, ttft=0.12))
    by_name = {one.name: one.change for one in compare(a, b).figures}
    assert by_name["first token p50, ms"] is Change.WORSE
    assert by_name["per token p50, ms"] is Change.SAME
    assert by_name["answers/s"] is Change.SAME
    assert "B is worse in first token p50, ms (+2" in compare(a, b).answer.verdict
    assert "B is better in first token p50" in compare(b, a).answer.verdict


def test_what_the_client_cannot_tell_apart_is_the_same():
    """A difference of a millisecond that is certain, seen by a client that is 5 ms late."""
    late = ClientState(late_p99_s=0.005)
    files = []
    for ttft in (0.1, 0.101):
        records = [
            BenchRecord(step=0, arrived_s=i / 20, first_s=i / 20 + ttft + 1e-6 * (i % 7))
            for i in range(1_000)
        ]
        step = BenchStep(name="x", mode="open", rate=20.0, counted_to_s=50.0, client=late)
        files.append(BenchFile(model="m", steps=(step,), requests=tuple(records)))
    by_name = {one.name: one for one in compare(*files).figures}
    assert by_name["first token p50, ms"].difference.low > 0
    assert by_name["first token p50, ms"].change is Change.SAME


def test_unlike_benchmarks_are_named_or_refused():
    a = one_step(answers(0, 100), workload={"pattern": "poisson"})
    b = one_step(answers(0, 100), workload={"pattern": "bursts"})
    assert any("differ in pattern" in remark for remark in compare(a, b).answer.remarks)
    step = BenchStep(name="x", mode="open", refused="late")
    with pytest.raises(ConfigError, match="reports nothing: late"):
        compare(a, BenchFile(model="m", steps=(step,)), ("a.json", "b.json"))
    two = (
        BenchStep(name="y", mode="open", counted_to_s=1.0),
        BenchStep(name="z", mode="open", counted_to_s=1.0),
    )
    with pytest.raises(ConfigError, match="no load in common"):
        compare(a, BenchFile(model="m", steps=two))


@pytest.mark.parametrize("text", ["ttft", "speed=1", "ttft=x", "ttft=-1", "ttft=1,ttft=2"])
def test_an_objective_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="write --slo ttft="):
        ServiceObjective.parse(text)


def test_an_objective_reads_as_it_was_written():
    slo = ServiceObjective.parse("ttft=0.5, tpot=0.05")
    assert slo.to_dict() == {"ttft": 0.5, "tpot": 0.05}
    assert ServiceObjective.of_file(slo.to_dict()) == slo
    assert str(ServiceObjective.parse("")) == "success"
