"""Feeds exporters (CloudWatch, traces) with figures of each model and traced requests.

Figures come from the same counters and gauges that ``/metrics`` shows, so the two agree. Rates are
differences of two samples, one period apart. Exporters work in threads of their own
(``exporters.delivery``); the loop only fills their queues.

An exporter whose extra is not installed is left out, with an error in the log: a fleet must not
stop serving because it cannot be monitored there.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from holdfast.config.exporters import ExportersSection
from holdfast.control.view.gpu_gauges import MEMORY_RATIO
from holdfast.exporters.cloudwatch import CloudWatchExporter, ModelPeriod, points
from holdfast.exporters.delivery import Delivery, MissingExtraError
from holdfast.exporters.traces import TraceExporter
from holdfast.frames import TraceRow

LOOK_S: Final = 1.0  # between two looks at the traces
_READY: Final = "ready"

_SERIES: Final = re.compile(r"([a-z0-9_]+)\{(.*)\}")
_LABEL: Final = re.compile(r'([a-z_]+)="([^"]*)"')
_DURATION: Final = "gen_ai_server_request_duration_seconds"
COUNTED: Final = (f"{_DURATION}_count", f"{_DURATION}_sum")  # what figures need of counters

Row = Mapping[str, Any]  # a replica, as the fleet tells it

_log = structlog.get_logger("holdfast.control.view.exporter_feed")


@dataclass(slots=True)
class ExportInputs:
    """Counters, gauges, replicas and open incidents that exporters' figures are made from."""

    counters: Mapping[str, float]  # those of COUNTED
    gauges: Mapping[str, float]  # all
    replicas: Iterable[Row]
    incidents: int = 0


@dataclass(slots=True)
class _Ended:
    """Counters of one model's ended requests, since the gateways began."""

    all: float = 0.0
    errors: float = 0.0
    answered: float = 0.0
    answered_s: float = 0.0


@dataclass(slots=True)
class ExportFigures:
    """Computes each model's figures for one period, from the counters of two successive calls."""

    _before: dict[str, _Ended] = field(default_factory=dict)

    def of(self, sight: ExportInputs) -> list[ModelPeriod]:
        """The figures of every model with replicas; counts are those since the last call.

        None is unknown; counts are None at the first call.
        """
        rows = list(sight.replicas)
        ended, before = _ended(sight.counters), self._before
        self._before = ended
        gauges = _by_model(sight.gauges)
        memory = memory_used(sight.gauges, rows)
        found = []
        for model in sorted({str(row["model"]) for row in rows}):
            own = gauges.get(model, {})
            kv = own.get("replica_kv_used")
            waiting = own.get("queued_requests", []) + own.get("replica_waiting", [])
            desired = own.get("desired_replicas")
            p95, rate = own.get("first_token_p95_seconds"), own.get("tokens_per_second")
            heat = own.get("replica_gpu_temperature_celsius")
            mine = [row for row in rows if row["model"] == model]
            requests = errors = latency_s = None
            if before:
                requests, errors, latency_s = _since(
                    before.get(model, _Ended()), ended.get(model, _Ended())
                )
            found.append(
                ModelPeriod(
                    model,
                    memory_used=memory.get(model),
                    kv_used=_mean(kv),
                    queued=sum(waiting) if waiting else None,
                    requests=requests,
                    errors=errors,
                    latency_s=latency_s,
                    first_token_p95_s=max(p95) if p95 else None,
                    tokens_s=sum(rate) if rate else None,
                    ready=sum(row["state"] == _READY for row in mine),
                    desired=int(desired[0]) if desired else None,
                    gpu_busy=_mean(own.get("replica_gpu_utilisation_ratio")),
                    gpu_temperature_c=max(heat) if heat else None,
                    queue_s=_mean(own.get("engine_queue_seconds")),
                    compute_s=_mean(own.get("engine_compute_seconds")),
                    batch=_mean(own.get("engine_batch_size")),
                    failed_share=_mean(own.get("engine_failed_ratio")),
                )
            )
        return found


def memory_used(gauges: Mapping[str, float], replicas: Iterable[Row]) -> dict[str, float]:
    """By model, the share (0 to 1) of memory that requests fill; unknown models are left out.

    It is the mean KV-cache use where engines report it, else the GPU memory of replicas whose
    memory grows with their work, else that of GPUs that inference servers report.
    """
    by_model = _by_model(gauges)
    found: dict[str, float] = {}
    for model in {str(row["model"]) for row in replicas}:
        own = by_model.get(model, {})
        used = own.get("replica_kv_used") or own.get(MEMORY_RATIO)
        devices = sum(own.get("engine_gpu_memory_total_bytes", ()))
        if used:
            found[model] = sum(used) / len(used)
        elif devices:
            found[model] = sum(own.get("engine_gpu_memory_used_bytes", ())) / devices
    return found


def _mean(values: Sequence[float] | None) -> float | None:
    return sum(values) / len(values) if values else None


def memory_gauges(gauges: Mapping[str, float], replicas: Iterable[Row]) -> dict[str, float]:
    """``memory_used`` as Prometheus gauges ``model_memory_used_ratio``, for autoscalers."""
    found = memory_used(gauges, replicas)
    return {f'model_memory_used_ratio{{model="{m}"}}': share for m, share in found.items()}


def _by_model(gauges: Mapping[str, float]) -> dict[str, dict[str, list[float]]]:
    """Group the gauges that have a model label, by model and name."""
    found: dict[str, dict[str, list[float]]] = {}
    for series, value in gauges.items():
        match = _SERIES.fullmatch(series)
        if match is not None and 'model="' in match[2]:
            model = dict(_LABEL.findall(match[2])).get("model", "")
            found.setdefault(model, {}).setdefault(match[1], []).append(value)
    return found


def _ended(counters: Mapping[str, float]) -> dict[str, _Ended]:
    found: dict[str, _Ended] = {}
    for series, value in counters.items():
        match = _SERIES.fullmatch(series)
        if match is None or match[1] not in COUNTED:
            continue
        labels = dict(_LABEL.findall(match[2]))
        one = found.setdefault(labels.get("model", ""), _Ended())
        status = labels.get("status", "")
        if match[1] == COUNTED[0]:
            one.all += value
            one.errors += value if status.startswith("5") else 0
            one.answered += value if status == "200" else 0
        elif status == "200":
            one.answered_s += value
    return found


def _since(before: _Ended, now: _Ended) -> tuple[int, int, float | None]:
    """Requests, errors and mean latency between two samples; None latency: none was answered."""
    answered = now.answered - before.answered
    latency_s = (now.answered_s - before.answered_s) / answered if answered > 0 else None
    return max(0, round(now.all - before.all)), max(0, round(now.errors - before.errors)), latency_s


class ExporterFeed:
    """Owns control's exporters (CloudWatch, traces) and hands them figures and traces.

    One whose package is not installed is left out with an error in the log.
    """

    def __init__(
        self,
        section: ExportersSection,
        sight: Callable[[], ExportInputs],
        traces: Callable[[], list[TraceRow]],
        environment: Mapping[str, str],
    ) -> None:
        self._sight = sight
        self._take_traces = traces
        self._environment = environment
        self._section = ExportersSection()
        self._figures = ExportFigures()
        self._due = 0.0
        self._cloudwatch: CloudWatchExporter | None = None
        self._traces: TraceExporter | None = None
        self._ended: dict[str, float] = {}  # counts of exporters that are gone
        self.follow(section)

    def follow(self, section: ExportersSection) -> None:
        """Apply a new config: build new exporters, end removed ones, keep unchanged ones."""
        before, self._section = self._section, section
        if section.cloudwatch != before.cloudwatch:
            self._end(self._cloudwatch)
            self._cloudwatch, self._due = None, 0.0
            if section.cloudwatch is not None:
                try:
                    self._cloudwatch = CloudWatchExporter(section.cloudwatch)
                except MissingExtraError as error:
                    _log.error("exporter left out", reason=str(error))
        if section.traces != before.traces:
            self._end(self._traces)
            self._traces = None
            if section.traces is not None:
                try:
                    self._traces = TraceExporter(section.traces, self._environment)
                except MissingExtraError as error:
                    _log.error("exporter left out", reason=str(error))

    async def run(self) -> None:
        """Call ``look`` each second until cancelled; then close the exporters."""
        try:
            while True:
                self.look(time.time())
                await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:  # after a mistake it is run again: they stay open
            for exporter in (self._cloudwatch, self._traces):
                if exporter is not None:
                    await asyncio.to_thread(exporter.delivery.close)
            raise

    def look(self, at: float) -> None:
        """Queue new traces for their exporter, and figures for CloudWatch once per period.

        Does not wait for delivery.
        """
        if self._traces is not None:
            traces = self._take_traces()
            if traces:
                self._traces.delivery.offer(traces)
        if self._cloudwatch is not None and self._section.cloudwatch is not None:
            if at < self._due:
                return
            self._due = at + self._section.cloudwatch.period
            sight = self._sight()
            figures = self._figures.of(sight)
            self._cloudwatch.delivery.offer(points(figures, sight.incidents, at))

    def counters(self) -> dict[str, float]:
        """Counters of what exporters sent, failed to send or dropped, ended exporters included."""
        told = dict(self._ended)
        for exporter in (self._cloudwatch, self._traces):
            if exporter is not None:
                for series, count in exporter.delivery.counters().items():
                    told[series] = told.get(series, 0) + count
        return told

    def _end(self, exporter: CloudWatchExporter | TraceExporter | None) -> None:
        if exporter is not None:
            delivery: Delivery[Any] = exporter.delivery
            for series, count in delivery.counters().items():
                self._ended[series] = self._ended.get(series, 0) + count
            delivery.close(0)  # what waits is sent meanwhile


__all__ = [
    "COUNTED",
    "LOOK_S",
    "ExportFigures",
    "ExportInputs",
    "ExporterFeed",
    "memory_gauges",
    "memory_used",
]
