"""Samples the joined view into time series, and answers HTTP queries about them.

    Snapshot, every 10 s ─► Sampler ─► History (storage) ◄─ GET /history, GET /history/series
    a replica's state, when it changes ─┘

Series are called ``scope/id/metric``: ``model/smollm2/ttft_s``. An id may hold slashes; a scope and
a metric may not. An unknown value makes no point. States and verdicts of canaries are numbers,
sampled like all else, and written once more at the moment they change: an outage of a second must
not fall between two samples.

Rejected: keeping each snapshot whole (a hundred times the bytes, and a chart would have to read all
of them).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from math import isfinite
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.control.access.guard import json_answer
from holdfast.core.canary import CanaryVerdict
from holdfast.core.gpu import GpuUse
from holdfast.core.types import State
from holdfast.core.view.snapshot import Snapshot
from holdfast.storage.history import FILE_NAME, History, HistoryError, Question
from holdfast.storage.recall import POINTS_MAX, VALUES

REPLICA_METRICS: Final = (
    *("used_bytes", "limit_bytes", "canary_s", "ttft_s", "tpot_s", "tokens_s", "kv_used"),
    *("inflight", "share", "failed_share", "queue_s", "compute_s", "batch"),
)
GPU_METRICS: Final = (
    *("held_bytes", "memory_used_bytes", "memory_total_bytes", "utilisation", "temperature_c"),
    *("power_w", "ecc_uncorrected"),
)  # of a replica and of a host, as ``replica/NAME/gpu_held_bytes``
MODEL_METRICS: Final = (
    *("waiting", "inflight", "requests_s", "tokens_s", "kv_used", "prefix_hits", "ttft_s"),
    *("errors_share", "burn", "ready"),
)
QUEUE_METRICS: Final = ("visible", "in_flight", "dead_letters")
DISK_METRICS: Final = ("used_share", "read_bytes_s")
ASKED_MAX: Final = 64  # names in one question
NAMES_DEFAULT: Final = 1_000  # in one page of names
NAMES_MAX: Final = 10_000
READERS_MAX: Final = 2  # questions that are answered at a time: each has a thread and the disk
WAITING_MAX: Final = 32  # questions that wait for that
_SPAN_MAX_S: Final = 10 * 365 * 86_400.0
_NUMBERS: Final = {state.value: float(number) for number, state in enumerate(State)}
_NUMBERS["pending"] = _NUMBERS[State.STARTING.value]  # as platforms say it
_VERDICTS: Final[dict[str, float]] = {
    verdict: float(number) for number, verdict in enumerate(CanaryVerdict)
}
_MATCHES: Final = ("exact", "prefix", "pattern")
_KNOWN: Final = frozenset({"series", "since", "until", "points", "match", "value", "step"})
_log = structlog.get_logger("holdfast.control.view.history")

Figures = Mapping[str, float | None]


def verdict_number(verdict: str) -> float | None:
    """The number that stands for a canary's verdict in stored series; None: no such verdict."""
    return _VERDICTS.get(verdict)


def state_number(state: str) -> float | None:
    """The number that stands for a replica's state in stored series; None: no such state."""
    return _NUMBERS.get(state)


class Sampler:
    """Writes the known figures of the joined view into the history, by default every 10 s.

    Unknown figures make no point.
    """

    def __init__(
        self,
        history: History,
        take: Callable[[], Snapshot | None],
        more: Callable[[], Figures] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.history = history
        self._take = take
        self._more = more  # figures that no row has, by the whole names of their series
        self._clock = clock
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        self.errors = 0

    async def run(self) -> None:
        """Take a sample on each whole step of the clock until cancelled; failures are counted."""
        period_s = self.history.config.step_s
        logged: set[str] = set()
        while True:
            # On whole steps of the clock, so that a minute has the same number of samples.
            await asyncio.sleep(period_s - self._clock() % period_s)
            try:
                self.sample()
            except Exception as error:  # noqa: BLE001 control must not end with its history
                self.errors += 1
                if type(error).__name__ not in logged:
                    logged.add(type(error).__name__)
                    _log.exception("sample failed")

    def sample(self) -> int:
        """Write one sample of the view now; return its number of points, 0 if there is no view."""
        snapshot = self._take()
        if snapshot is None:
            return 0
        values = self._values(snapshot)
        values.update((name, value) for name, value in self._more().items() if value is not None)
        self.history.put(self._clock(), values)
        return len(values)

    def state_changed(self, replica: str, state: str, at: float) -> None:
        """Write a replica's new state into the history at time ``at``; unknown states: nothing."""
        number = state_number(state)
        if number is not None:
            self.history.put(at, {f"replica/{replica}/state": number})

    def canary_answered(self, replica: str, verdict: str, at: float) -> None:
        """Write a replica's canary verdict into the history at time ``at`` (seconds since 1970).

        Unknown verdicts are not written.
        """
        number = verdict_number(verdict)
        if number is not None:
            self.history.put(at, {f"replica/{replica}/canary_verdict": number})

    def _values(self, snapshot: Snapshot) -> dict[str, float]:
        values: dict[str, float] = {}
        names: dict[tuple[str, str], tuple[str, ...]] = {}

        def keep(scope: str, row_id: str, row: object, metrics: tuple[str, ...]) -> None:
            known = self._names.get((scope, row_id))
            if known is None:
                known = tuple(f"{scope}/{row_id}/{metric}" for metric in metrics)
            names[scope, row_id] = known
            for name, metric in zip(known, metrics, strict=True):
                value = getattr(row, metric)
                if value is not None:
                    values[name] = value

        def keep_gpu(scope: str, row_id: str, use: GpuUse | None) -> None:
            for metric in GPU_METRICS if use is not None else ():
                value = getattr(use, metric)
                if value is not None:
                    values[f"{scope}/{row_id}/gpu_{metric}"] = value

        for host in snapshot.hosts:
            keep_gpu("host", host.id, host.gpu)
        for replica in snapshot.replicas:
            keep("replica", replica.id, replica, REPLICA_METRICS)
            keep_gpu("replica", replica.id, replica.gpu)
            number = _NUMBERS.get(replica.state)
            if number is not None:
                values[f"replica/{replica.id}/state"] = number
            number = _VERDICTS.get(replica.canary_verdict)
            if number is not None:
                values[f"replica/{replica.id}/canary_verdict"] = number
        for model in snapshot.models:
            keep("model", model.name, model, MODEL_METRICS)
        for queue in snapshot.queues:
            keep("queue", queue.name, queue, QUEUE_METRICS)
        for disk in snapshot.disks:
            keep("disk", disk.id, disk, DISK_METRICS)
        self._names = names  # of the rows there are: those that went are forgotten
        values["fleet/all/ready"] = sum(model.ready for model in snapshot.models)
        values["fleet/all/incidents"] = len(snapshot.incidents)
        for metric in ("requests_s", "tokens_s"):
            total = snapshot.totals.get(metric)
            if isinstance(total, int | float):
                values[f"fleet/all/{metric}"] = total
        return values


@asynccontextmanager
async def keeping(
    folder: Path,
    take: Callable[[], Snapshot | None],
    more: Callable[[], Figures] = dict,
    told: Callable[[str, str], None] | None = None,
) -> AsyncIterator[Sampler]:
    """Open the history in a folder and sample the view into it while the block runs.

    Yields the ``Sampler``; closes the history at the end. ``told`` is called with problems of the
    history file, by the thread that writes.
    """
    path = folder / FILE_NAME
    history = History(path) if told is None else History(path, told=told)
    sampler = Sampler(history, take, more)
    work = asyncio.create_task(sampler.run())
    try:
        yield sampler
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.to_thread(history.close)


# --- questions over HTTP --------------------------------------------------------------------------


class _BadQuestionError(Exception):
    """A history query is invalid; the text says what to change."""


def history_routes(history: History, clock: Callable[[], float] = time.time) -> list[Route]:
    """The routes ``GET /history`` (points) and ``GET /history/series`` (names).

    Reads are done in threads, two at a time; 503 if too many wait, 400 for invalid queries.
    """
    reading = asyncio.Semaphore(READERS_MAX)
    waiting = 0

    async def in_turn(work: Callable[[], bytes]) -> Response:
        """Reading takes milliseconds of a disk: in a thread, and never many at a time."""
        nonlocal waiting
        if waiting >= WAITING_MAX:
            return json_answer({"error": "too many questions to the history wait already"}, 503)
        waiting += 1
        try:
            async with reading:
                body = await asyncio.to_thread(work)
        except HistoryError as error:
            return json_answer({"error": str(error)}, 503)
        finally:
            waiting -= 1
        return Response(body + b"\n", media_type="application/json")

    async def points(request: Request) -> Response:
        wanted, match, question = _question(request, clock(), history.config.steps)

        def work() -> bytes:
            found = history.query(wanted, question, match)
            answer = {
                "series": found.series,
                "since": question.since,
                "until": question.until,
                "step_s": found.step_s,
                "left_out": found.left_out,
            }
            return orjson.dumps(answer)

        return await in_turn(work)

    async def names(request: Request) -> Response:
        known = {"prefix", "after", "limit"}
        _only(request, known)
        after = request.query_params.get("after", "")
        limit = _whole(request, "limit", NAMES_DEFAULT, 1, NAMES_MAX)
        prefix = request.query_params.get("prefix", "")

        def work() -> bytes:
            found = [name for name in history.names(prefix) if name > after]
            return orjson.dumps({"series": found[:limit], "more": len(found) > limit})

        return await in_turn(work)

    return [Route("/history", _told(points)), Route("/history/series", _told(names))]


def _told(
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    async def asked(request: Request) -> Response:
        try:
            return await answer(request)
        except _BadQuestionError as error:
            return json_answer({"error": str(error)}, 400)

    return asked


def _question(
    request: Request, now: float, steps: tuple[float, ...]
) -> tuple[list[str], str, Question]:
    _only(request, _KNOWN)
    wanted = request.query_params.getlist("series")
    if not wanted or len(wanted) > ASKED_MAX or not all(wanted):
        raise _BadQuestionError(
            f"series is a name such as model/smollm2/ttft_s, once or up to {ASKED_MAX} times;"
            " GET /history/series lists them"
        )
    match = _one_of(request, "match", _MATCHES)
    if match == "pattern" and any(one.count("*") != 1 for one in wanted):
        raise _BadQuestionError("a pattern has one star, as in replica/*/state")
    until = _time(request, "until", now)
    since = _time(request, "since", until - 3_600.0)
    if not since < until or until - since > _SPAN_MAX_S:
        raise _BadQuestionError("since must be before until, and at most ten years before it")
    points = _whole(request, "points", 300, 2, POINTS_MAX)
    step_s = _step(request, steps)
    if step_s is not None and (until - since) / step_s > points:
        fix = f"ask for {points * step_s:.0f} s at most, or for a larger step"
        raise _BadQuestionError(f"that time has more than {points} steps of {step_s:g} s; {fix}")
    value = _one_of(request, "value", VALUES)
    return wanted, match, Question(since, until, points, value, step_s)


def _only(request: Request, known: Iterable[str]) -> None:
    strange = sorted(set(request.query_params) - set(known))
    if strange:
        told = f"{strange[0][:100]!r} is no parameter here; there are {', '.join(sorted(known))}"
        raise _BadQuestionError(told)


def _one_of(request: Request, name: str, choices: tuple[str, ...]) -> str:
    given = request.query_params.get(name, choices[0])
    if given not in choices:
        raise _BadQuestionError(f"{name} is one of {', '.join(choices)}")
    return given


def _time(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = _number(text)
    if number is None or number < 0:
        raise _BadQuestionError(f"{name} is a time in seconds since 1970")
    return number


def _whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise _BadQuestionError(f"{name} is a whole number from {least} to {most}")
    number = int(text)
    if not least <= number <= most:
        raise _BadQuestionError(f"{name} is a whole number from {least} to {most}")
    return number


def _step(request: Request, steps: tuple[float, ...]) -> float | None:
    text = request.query_params.get("step")
    if text is None:
        return None
    number = _number(text)
    if number not in steps:
        raise _BadQuestionError(f"step is one of {', '.join(f'{step:g}' for step in steps)}")
    return number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def history_metrics(history: History) -> tuple[dict[str, float], dict[str, float]]:
    """Prometheus counters of points lost or refused, and gauges of series and waiting points."""
    told: dict[str, Any] = history.snapshot()
    counters = {
        "history_points_dropped_total": told["dropped"],
        "history_points_refused_total": told["refused"],
        "history_write_failures_total": told["write_failures"],
    }
    gauges = {"history_series": told["series"], "history_points_waiting": told["waiting"]}
    return counters, gauges


__all__ = [
    "ASKED_MAX",
    "DISK_METRICS",
    "GPU_METRICS",
    "MODEL_METRICS",
    "QUEUE_METRICS",
    "REPLICA_METRICS",
    "Sampler",
    "history_metrics",
    "history_routes",
    "keeping",
    "state_number",
    "verdict_number",
]
