"""Puts the figures of a benchmark into words, tables and charts, for terminals and pages.

What was refused is named with its reason and shows no figure. What the samples cannot tell shows
``?``; what is unknown shows ``–``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.loadtest.figure_charts import charts_of
from holdfast.loadtest.load_sequence import KneeSearch, SweepPoint, SweepRange, Unit
from holdfast.loadtest.records import BenchFile
from holdfast.loadtest.statistics import Estimate, ratio
from holdfast.loadtest.summary import QUANTILES, ServiceObjective, StepSummary, summarise
from holdfast.planner.answer import PlanAnswer, PlanTable

TITLES: Final = {"ttft": "first token, ms", "tpot": "per token, ms", "total": "whole answer, ms"}
_UNKNOWN: Final = "–"
_ITSELF: Final = Estimate(1.0, 1.0, 1.0)  # what others are compared with


@dataclass(slots=True, frozen=True)
class Findings:
    """All that is told of one benchmark."""

    file: BenchFile
    objective: ServiceObjective
    summaries: tuple[StepSummary, ...]
    knee: SweepPoint | None
    answer: PlanAnswer

    @property
    def refused(self) -> bool:
        """Whether no step is a measurement: nothing is reported then."""
        return all(summary.step.refused for summary in self.summaries)


def findings_of(file: BenchFile, objective: ServiceObjective | None = None) -> Findings:
    """Work out all figures of a benchmark; its own objective unless another is given."""
    objective = objective or ServiceObjective.of_file(file.slo)
    summaries = tuple(summarise(file, place, objective) for place in range(len(file.steps)))
    held = [one for one in summaries if not one.step.refused]
    scaled = bool(held) and all(one.step.replicas is not None for one in held)
    held.sort(key=_replicas if scaled else _load)
    search = None if scaled or len(summaries) < 2 else _search_of(summaries, objective)
    knee = search.knee if search is not None else None
    answer = PlanAnswer(
        "bench",
        _opening(file, objective),
        _verdict(summaries, held, knee, search),
        tuple(_tables(file, held, summaries, knee, scaled=scaled)),
        tuple(_remarks(file, summaries)),
        tuple(_notes(held, file)),
        charts=tuple(charts_of(file, held, objective, scaled=scaled)),
        figures=_figures(file, objective, summaries, knee, held, scaled=scaled),
    )
    return Findings(file, objective, summaries, knee, answer)


def figure(value: Estimate, scale: float = 1.0) -> str:
    """A figure with its interval: ``51.7 (51.6–51.9)``; an end that is not known is ``?``."""
    if value.value is None:
        return _UNKNOWN
    if value.low is None and value.high is None:
        return f"{_number(value.value * scale)} (?)"
    if value.low == value.high:  # known exactly
        return _number(value.value * scale)
    ends = ["?" if end is None else _number(end * scale) for end in (value.low, value.high)]
    signed = any(end.startswith("-") for end in ends)
    between = " to ".join(ends) if signed else "–".join(ends)
    return f"{_number(value.value * scale)} ({between})"


def _number(value: float) -> str:
    if abs(value) >= 999.5:  # three digits would write it as 1e+03
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _percent(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1%}"


def _search_of(summaries: Sequence[StepSummary], objective: ServiceObjective) -> KneeSearch:
    """Judge the steps of a sweep again, from its file."""
    loads = [_load(one) for one in summaries]
    unit: Unit = "users" if summaries[0].step.users is not None else "rate"
    search = KneeSearch(SweepRange(unit, min(loads), max(loads)), objective)
    for load, summary in sorted(zip(loads, summaries, strict=True), key=lambda pair: pair[0]):
        search.saw(load, summary)
    return search


def _replicas(summary: StepSummary) -> int:
    return summary.step.replicas or 0


def _load(summary: StepSummary) -> float:
    step = summary.step
    return float(step.users if step.users is not None else step.rate or 0.0)


def _opening(file: BenchFile, objective: ServiceObjective) -> str:
    told = f"{file.model} at {file.target}"
    if file.label:
        told = f"{file.label}: {told}"
    return f"{told}; good answers: {objective}; intervals are 95 %"


def _verdict(
    summaries: Sequence[StepSummary],
    held: Sequence[StepSummary],
    knee: SweepPoint | None,
    search: KneeSearch | None,
) -> str:
    if not held:
        return f"Nothing is reported: {summaries[0].step.refused}." if summaries else "No step."
    if search is not None:
        return _knee_verdict(search, knee, held)
    if len(held) > 1:  # several numbers of replicas
        return _scaling_verdict(held)
    one = held[0]
    ttft = one.latencies["ttft"]
    told = (
        f"{one.step.name}: {_number(one.requests_s.value or 0.0)} answers/s, "
        f"{_number(one.output_tokens_s.value or 0.0)} tokens/s; first token p50 "
        f"{_milliseconds(ttft[0.5])}, p95 {_milliseconds(ttft[0.95])}; "
        f"{_percent(one.good_share.value)} good"
    )
    return f"{told}."


def _milliseconds(value: Estimate) -> str:
    return _UNKNOWN if value.value is None else f"{_number(value.value * 1000)} ms"


def _knee_verdict(search: KneeSearch, knee: SweepPoint | None, held: Sequence[StepSummary]) -> str:
    unit = "users" if held[0].step.users is not None else "requests/s"
    bad = [point.load for point in search.points if not point.good and not point.refused]
    if knee is None:
        return f"Already the lowest load is beyond the knee: {_number(min(bad))} {unit}."
    above = [load for load in bad if load > knee.load]
    goodput = f"{_number(knee.goodput or 0.0)} good answers/s"
    if above:
        between = f"{_number(knee.load)} and {_number(min(above))} {unit}"
        return f"The knee lies between {between}: {goodput}."
    if any(point.refused for point in search.points):
        return (
            f"The knee lies above {_number(knee.load)} {unit} ({goodput}); beyond, the client was "
            "the bottleneck."
        )
    return f"The knee lies above {_number(knee.load)} {unit}, the highest load held: {goodput}."


def efficiencies(held: Sequence[StepSummary]) -> list[tuple[int, Estimate, Estimate]]:
    """Of steps with numbers of replicas: (replicas, speed-up, efficiency) against the fewest."""
    base = min(held, key=_replicas)
    found = []
    for one in held:
        faster = ratio(base.output_tokens_s, one.output_tokens_s) if one is not base else _ITSELF
        more = (one.step.replicas or 1) / (base.step.replicas or 1)
        found.append((one.step.replicas or 0, faster, faster.scaled(1.0 / more)))
    return found


def _scaling_verdict(held: Sequence[StepSummary]) -> str:
    few, (count, faster, efficiency) = held[0], efficiencies(held)[-1]
    return (
        f"{count} replicas are {_number(faster.value or 0.0)} times as fast as "
        f"{few.step.replicas}: an efficiency of {figure(efficiency, 100.0)} %."
    )


# --- tables ---------------------------------------------------------------------------------------


def _tables(
    file: BenchFile,
    held: Sequence[StepSummary],
    summaries: Sequence[StepSummary],
    knee: SweepPoint | None,
    *,
    scaled: bool,
) -> list[PlanTable]:
    tables: list[PlanTable] = []
    if scaled and len(held) > 1:
        tables.append(_scaling_table(held))
    elif len(summaries) > 1 and held:
        tables.append(_steps_table(held, knee))
    if len(held) == 1:
        tables.append(_latency_table(held[0]))
        tables.append(_rates_table(held[0]))
    shown = held[-1] if held and len(held) > 1 and scaled else (held[0] if len(held) == 1 else None)
    if shown is not None and shown.by_replica:
        tables.append(_replica_table(shown, gpus=bool(file.fleet.gpus)))
    return tables


def _latency_table(one: StepSummary) -> PlanTable:
    rows = tuple(
        (TITLES[name], *(figure(by_quantile[q], 1000.0) for q in QUANTILES))
        for name, by_quantile in one.latencies.items()
    )
    headings = ("latency", *(f"p{q * 100:g}" for q in QUANTILES))
    return PlanTable(f"Latency, {one.step.name}", headings, rows, text_columns=1)


def _rates_table(one: StepSummary) -> PlanTable:
    rows = (
        ("arrivals", _number(one.offered_s), f"{one.requests:,} requests counted"),
        ("answers", figure(one.requests_s), f"{one.succeeded:,} succeeded"),
        ("good answers", figure(one.goodput_s), f"{figure(one.good_share, 100.0)} % of arrivals"),
        (
            "output tokens",
            figure(one.output_tokens_s),
            "events, not tokens" if one.tokens_estimated else "as the engine counts",
        ),
        ("prompt tokens", figure(one.prompt_tokens_s), ""),
        (
            "under way",
            _UNKNOWN if one.concurrency is None else _number(one.concurrency),
            f"on average; at most {one.step.client.streams_max:,}",
        ),
    )
    return PlanTable(f"Throughput, {one.step.name}", ("", "per second", ""), rows, text_columns=1)


def _steps_table(held: Sequence[StepSummary], knee: SweepPoint | None) -> PlanTable:
    rows, marked = [], None
    for place, one in enumerate(held):
        ttft, tpot = one.latencies["ttft"], one.latencies["tpot"]
        if knee is not None and _load(one) == knee.load:
            marked = place
        rows.append(
            (
                _number(_load(one)),
                plain(one.output_tokens_s),
                plain(ttft[0.5], 1000.0),
                plain(ttft[0.95], 1000.0),
                plain(tpot[0.95], 1000.0),
                plain(one.goodput_s),
                _percent(one.good_share.value),
            )
        )
    load = "users" if held[0].step.users is not None else "rate/s"
    headings = (load, "tokens/s", "TTFT p50 ms", "p95 ms", "TPOT p95 ms", "good/s", "good")
    return PlanTable("Loads", headings, tuple(rows), marked)


def plain(value: Estimate, scale: float = 1.0) -> str:
    """A figure without its interval."""
    return _UNKNOWN if value.value is None else _number(value.value * scale)


def _scaling_table(held: Sequence[StepSummary]) -> PlanTable:
    rows = tuple(
        (
            str(count),
            figure(one.output_tokens_s),
            figure(faster),
            figure(efficiency, 100.0),
            plain(one.latencies["ttft"][0.95], 1000.0),
        )
        for one, (count, faster, efficiency) in zip(held, efficiencies(held), strict=True)
    )
    headings = ("replicas", "tokens/s", "times as fast", "efficiency, %", "TTFT p95 ms")
    return PlanTable("Scaling", headings, rows)


def _replica_table(one: StepSummary, *, gpus: bool) -> PlanTable:
    rows = []
    for own in one.by_replica:
        row = (
            own.replica,
            f"{own.requests:,}",
            plain(own.ttft_p50, 1000.0),  # with intervals it is too wide for a terminal
            plain(own.tpot_p50, 1000.0),
            _UNKNOWN if own.tokens_s is None else _number(own.tokens_s),
            str(own.failed),
        )
        rows.append((*row, _percent(own.gpu_busy), _percent(own.gpu_memory)) if gpus else row)
    headings: tuple[str, ...] = (
        *("replica", "requests", "TTFT p50 ms", "TPOT p50 ms", "tokens/s", "failed"),
    )
    if gpus:
        headings = (*headings, "GPU busy", "GPU memory")
    return PlanTable(f"Replicas, {one.step.name}", headings, tuple(rows), text_columns=1)


# --- words ----------------------------------------------------------------------------------------


def _remarks(file: BenchFile, summaries: Sequence[StepSummary]) -> list[str]:
    told = []
    for one in summaries:
        if one.step.refused:
            if len(summaries) > 1:  # else the verdict says it
                told.append(f"Refused, {one.step.name}: {one.step.refused}.")
        elif one.problems:
            kinds = ", ".join(f"{count} × {problem}" for problem, count in one.problems.items())
            told.append(f"Not answered well, {one.step.name}: {kinds}.")
    told += [remark if remark.endswith(".") else f"{remark}." for remark in file.remarks]
    if not file.fleet.gpus:
        told.append(f"GPU use is unknown: {file.fleet.gpus_why or 'no admin port was asked'}.")
    return told


def _notes(held: Sequence[StepSummary], file: BenchFile) -> list[str]:
    notes = []
    if any(one.step.mode == "open" for one in held):
        notes.append(
            "Open loop: requests were sent when the plan said, and their latency counts from then."
        )
    if any(one.step.mode == "closed" for one in held):
        notes.append(
            "Closed loop: users ask again when they have their answer, so a slow server is asked "
            "less; latencies under a real arrival rate are those of an open loop."
        )
    ends = [one.latencies[name][0.99].high for one in held for name in one.latencies]
    if any(end is None for end in ends):
        notes.append(
            "? marks the end of an interval that so few requests cannot tell; load longer."
        )
    if any(len(one.by_replica) == 0 for one in held) and not file.fleet.replicas:
        notes.append("The answers do not say which replica gave them.")
    untold = [one.requests - sum(own.requests for own in one.by_replica) for one in held]
    if any(one.by_replica and count for one, count in zip(held, untold, strict=True)):
        notes.append(
            f"{sum(untold):,} answers do not say which replica gave them: "
            "those that waited for one began before it was chosen."
        )
    return notes


def _figures(
    file: BenchFile,
    objective: ServiceObjective,
    summaries: Sequence[StepSummary],
    knee: SweepPoint | None,
    held: Sequence[StepSummary],
    *,
    scaled: bool,
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "target": file.target,
        "model": file.model,
        "label": file.label,
        "began_at": file.began_at,
        "workload": file.workload,
        "slo": objective.to_dict(),
        "loads": [one.to_dict() for one in summaries],
        "knee": None if knee is None else {"load": knee.load, "goodput_s": knee.goodput},
        "gpus_why": file.fleet.gpus_why,
        "remarks": _remarks(file, summaries),
    }
    if scaled:
        told["scaling"] = [
            {"replicas": count, "speedup": faster.to_dict(), "efficiency": efficiency.to_dict()}
            for count, faster, efficiency in efficiencies(held)
        ]
    return told


__all__ = ["TITLES", "Findings", "efficiencies", "figure", "findings_of", "plain"]
