"""One request under way: notes when its answer began, went on and ended, and how.

Only the events until the first content and the last four are read as JSON; those in between are
counted. That is what lets one core follow a thousand streams. Nothing of the text is kept.
"""

import re
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import msgspec

from holdfast.core.failure import Kind
from holdfast.gateway.http.interfaces import Call
from holdfast.gateway.http.sse import EventSplitter, MalformedStreamError
from holdfast.loadtest.records import BenchOutcome, BenchRecord
from holdfast.loadtest.request_plan import PlannedRequest

_EVENT_BYTES_MAX: Final = 1 << 20
_ERROR_BYTES_MAX: Final = 4_096
_TAIL: Final = 4  # events: the last content, a finish reason, the usage, and one to spare
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None

    @property
    def has_content(self) -> bool:
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_read_event = msgspec.json.Decoder(_Event).decode


class MeasuredCall:
    """Follows the answer to one request; a ``Caller`` of an ``Upstream``."""

    __slots__ = (
        "_body",
        "_events",
        "_first",
        "_gap",
        "_head",
        "_last",
        "_splitter",
        "_tail",
        "_usage",
        "call",
        "due",
        "ended",
        "on_over",
        "planned",
        "problem",
        "retried",
        "sent",
        "status",
    )

    def __init__(
        self, planned: PlannedRequest, due: float, on_over: "Callable[[MeasuredCall], None]"
    ) -> None:
        self.planned = planned
        self.due = due  # by the clock of perf_counter
        self.on_over = on_over
        self.call: Call | None = None
        self.retried = False  # once, where a pooled connection turned out to be closed
        self.problem = ""
        self.restart()

    def restart(self) -> None:
        """Forget an attempt of which nothing came."""
        self.sent = self.ended = 0.0
        self.status: int | None = None
        self._head: dict[bytes, bytes] = {}
        self._splitter: EventSplitter | None = None
        self._body = b""
        self._first = self._last = 0.0
        self._gap = 0.0
        self._events = 0
        self._usage = _Usage()
        self._tail: deque[tuple[bytes, float]] = deque(maxlen=_TAIL)

    # --- what the connection reports --------------------------------------------------------------

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Note the status, and by whom the request is answered."""
        self.status = status
        self._head = headers
        if status == 200:
            self._splitter = EventSplitter(_EVENT_BYTES_MAX)

    def on_data(self, data: bytes) -> None:
        """Note when these events came."""
        splitter = self._splitter
        if splitter is None:
            if len(self._body) < _ERROR_BYTES_MAX:
                self._body += data
            return
        now = perf_counter()
        try:
            payloads = splitter.feed(data)
        except MalformedStreamError:
            self.give_up("the answer is no stream of events")
            return
        if self._first:
            gap = now - self._last
            if gap > self._gap:  # noqa: PLR1730 - max() costs three times as much here
                self._gap = gap
            self._last = now
            self._events += len(payloads)
            for payload in payloads:
                self._tail.append((payload, now))
            return
        for payload in payloads:
            self._open(payload, now)

    def on_end(self) -> None:
        """Judge the whole answer."""
        self.ended = perf_counter()
        if self.status == 200 and not self.problem:
            self.problem = self._judge()
        self.on_over(self)

    def on_failure(self, kind: Kind, detail: str) -> None:  # noqa: ARG002 - words for logs
        """Note why no whole answer came."""
        self.ended = perf_counter()
        self.problem = str(kind)
        self.on_over(self)

    def give_up(self, problem: str) -> None:
        """End the call: nothing more is expected of it."""
        if self.call is not None:
            self.call.cancel()
        self.ended = perf_counter()
        self.problem = problem
        self.on_over(self)

    # --- the stream -------------------------------------------------------------------------------

    def _open(self, payload: bytes, now: float) -> None:
        """One event, read as JSON until the first content has come."""
        self._tail.append((payload, now))
        if self._first:
            self._events += 1
            return
        event = _event(payload)
        if event is not None and any(choice.has_content for choice in event.choices or ()):
            self._first = self._last = now
            self._events = 1

    def _judge(self) -> str:
        """Read the last events: when the content ended, the finish reason, the usage."""
        finished = failed = False
        last = self._first
        empty = 0
        for payload, at in self._tail:
            event = _event(payload)
            if event is None:
                empty += 1  # [DONE], or what only its engine understands
                continue
            failed = failed or event.error is not None
            choices = event.choices or ()
            finished = finished or any(choice.finish_reason for choice in choices)
            if any(choice.has_content for choice in choices):
                last = at
            else:
                empty += 1
            if event.usage is not None:
                self._usage = event.usage
        if self._first:
            in_tail = min(len(self._tail), self._events)
            self._events = max(1, self._events - min(empty, in_tail))
            self._last = max(last, self._first)
        if failed:
            return "an error within the stream"
        if not finished:
            return "the stream ended without a finish reason"
        return "" if self._first else "an answer without content"

    # --- the record -------------------------------------------------------------------------------

    def record(self, step: int, zero: float) -> BenchRecord:
        """What is kept of this request; ``zero`` is the beginning of the benchmark."""
        usage = self._usage
        details = usage.prompt_tokens_details
        began = bool(self._first)
        return BenchRecord(
            step=step,
            arrived_s=_since(self.due, zero),
            sent_s=_since(self.sent, zero) if self.sent else None,
            first_s=_since(self._first, zero) if began else None,
            last_s=_since(self._last, zero) if began else None,
            ended_s=_since(self.ended, zero) if self.ended else None,
            asked_prompt_tokens=self.planned.prompt_tokens,
            asked_output_tokens=self.planned.output_tokens,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
            output_tokens=usage.completion_tokens,
            events=self._events,
            gap_max_s=round(self._gap, 6) if began else None,
            replica=_text(self._head.get(b"x-holdfast-replica")),
            attempts=_number(self._head.get(b"x-holdfast-attempts")),
            status=self.status,
            outcome=self._outcome(),
            problem=self.problem or self._refusal(),
        )

    def _outcome(self) -> BenchOutcome:
        status = self.status
        if status is not None and status != 200:
            if status == 429 or (status == 503 and b"retry-after" in self._head):
                return BenchOutcome.BACKPRESSURE
            return BenchOutcome.CLIENT_ERROR if 400 <= status < 500 else BenchOutcome.FAILURE
        return BenchOutcome.FAILURE if self.problem else BenchOutcome.SUCCESS

    def _refusal(self) -> str:
        """Status and error code of a refusal; nothing else of it, which may quote the prompt."""
        if self.status in {None, 200}:
            return ""
        return f"{self.status} {error_code(self._body)}".strip()

    @property
    def refusal_body(self) -> bytes:
        """The beginning of an answer that is no stream, for the error that a person reads."""
        return self._body


def error_code(body: bytes) -> str:
    """The code, or else the type, of an error in OpenAI's form; empty where there is none."""
    event = _event(body)
    error = event.error if event is not None else None
    for name in ("code", "type"):
        value = error.get(name) if isinstance(error, dict) else None
        if isinstance(value, str) and _CODE.fullmatch(value):
            return value
    return ""


def _event(payload: bytes) -> _Event | None:
    try:
        return _read_event(payload)
    except msgspec.DecodeError:
        return None


def _since(moment: float, zero: float) -> float:
    return round(moment - zero, 6)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")[:200]


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 6 else None


__all__ = ["MeasuredCall", "error_code"]
