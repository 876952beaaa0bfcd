"""Requests that are to be told as traces: noted as they go, handed to control in bundles.

Which ones is decided when a request begins, so the others cost one comparison. Control makes spans
of them and sends them on: a gateway that talked to a collector itself would share its one core with
the encoding, and wait for nobody knows whom. The ring is bounded; what finds no room is counted.

A caller's ``traceparent`` makes its span the parent of ours. It decides on its own whether to trace
only where the file says so: otherwise any client could have every request traced. Engines are told
of traced requests alone, with the span of the attempt, so that what they trace hangs below it.
"""

import re
import time
from random import getrandbits, random
from typing import TYPE_CHECKING, Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish
from holdfast.frames import SpanRow, TraceRow
from holdfast.gateway.request.settings import Settings

if TYPE_CHECKING:
    from holdfast.gateway.request.attempts import Attempt
    from holdfast.gateway.request.inquiry import Inquiry

TRACES_MAX: Final = 512  # between two looks of the process, which come ten times a second

_PARENT: Final = re.compile(rb"00-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-0([01])")


class Trace:
    """One traced request: its id, those of its attempts, and what came of those that are over."""

    __slots__ = ("_ids", "spans", "trace_id")

    def __init__(self, trace_id: str = "") -> None:
        self.trace_id = trace_id or f"{getrandbits(128) or 1:032x}"
        self.spans: list[SpanRow] = []
        self._ids: dict[int, str] = {}

    def line(self, attempt: int) -> bytes:
        """The header that tells an engine of it."""
        span_id = self._ids[attempt] = f"{getrandbits(64) or 1:016x}"
        return f"traceparent: 00-{self.trace_id}-{span_id}-01\r\n".encode()

    def span_id(self, attempt: int) -> str:
        """Of an attempt whose header was made."""
        return self._ids[attempt]


class Traces:
    """What one gateway notes."""

    __slots__ = ("_done", "_follow", "_share", "dropped")

    def __init__(self, share: float, *, follow: bool) -> None:
        self._share = share
        self._follow = follow
        self._done: list[TraceRow] = []
        self.dropped = 0

    def follow(self, share: float, *, follow: bool) -> None:
        """Another config."""
        self._share, self._follow = share, follow

    def begin(self, inquiry: "Inquiry") -> None:
        """A request goes to the flow; perhaps note what becomes of it."""
        if inquiry.trace is not None:
            return  # it goes there a second time
        parent = _parent(inquiry) if self._follow else None
        traced = parent[2] == b"1" if parent is not None else random() < self._share
        if traced:
            parent = _parent(inquiry)
            inquiry.trace = Trace(parent[1].decode() if parent is not None else "")

    def finish(self, inquiry: "Inquiry", finish: Finish, now: int) -> None:
        """One is over."""
        trace = inquiry.trace
        if trace is None or len(self._done) >= TRACES_MAX:
            self.dropped += 1
            return
        ahead = time.time_ns() - now  # of this process's clock
        began = inquiry.request.arrived + ahead
        if trace.spans:
            began = min(began, trace.spans[0].began)
        parent = _parent(inquiry)
        self._done.append(
            TraceRow(
                inquiry.request_id.decode(),
                parent[0].decode() if parent is not None else "",
                inquiry.tenant.name,
                inquiry.route.api.value,
                inquiry.ask.model,
                finish.model,
                inquiry.ask.stream,
                finish.status,
                finish.code,
                finish.continued,
                began,
                inquiry.first_at + ahead if inquiry.first_at else 0,
                now + ahead,
                trace.spans,
                trace.trace_id,
            )
        )

    def take_back(self, inquiry: "Inquiry") -> None:
        """It was not over: a second model is asked."""
        if self._done and self._done[-1].request_id == inquiry.request_id.decode():
            self._done.pop()

    def take(self) -> list[TraceRow]:
        """Those since the last call."""
        taken, self._done = self._done, []
        return taken


def _parent(inquiry: "Inquiry") -> re.Match[bytes] | None:
    """What the caller says of its own span, where that makes sense."""
    return _PARENT.fullmatch(inquiry.exchange.headers.get(b"traceparent", b""))


def traces_of(settings: Settings, before: Traces | None = None) -> Traces | None:
    """What a config asks for; None: nothing."""
    share, follow = settings.trace_share, settings.trace_follow
    if not (share or follow):
        return None
    if before is None:
        return Traces(share, follow=follow)
    before.follow(share, follow=follow)
    return before


def note_attempt(
    inquiry: "Inquiry",
    attempt: "Attempt",
    kind: Kind | None,
    now: int,
    input_tokens: int,
    output_tokens: int,
) -> None:
    """One attempt of a traced request is over."""
    trace = inquiry.trace
    if trace is None:
        return
    ahead = time.time_ns() - now
    target = attempt.target
    trace.spans.append(
        SpanRow(
            target.replica_id,
            target.model,
            attempt.number,
            attempt.started + ahead,
            attempt.first + ahead if attempt.first else 0,
            now + ahead,
            "" if kind is None else kind.value,
            input_tokens,
            output_tokens,
            target.endpoint.host,
            target.endpoint.port,
            attempt.continues,
            target.dialect.name,
            trace.span_id(attempt.number),
        )
    )


__all__ = ["TRACES_MAX", "Trace", "Traces", "note_attempt", "traces_of"]
