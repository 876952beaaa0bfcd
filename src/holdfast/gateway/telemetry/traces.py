"""Notes traced requests as they go, and hands them to control in bundles.

Which ones is decided when a request begins, so the others cost one comparison. Control makes spans
of them and sends them on: a gateway that talked to a collector itself would share its one core with
the encoding, and wait for nobody knows whom. The ring is bounded; what finds no room is counted.

A caller's ``traceparent`` makes its span the parent of ours. It decides on its own whether to trace
only where the file says so: otherwise any client could have every request traced. Engines are told
of traced requests alone, with the span of the attempt, so that what they trace hangs below it.
"""

import re
import time
from random import random
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish
from holdfast.frames import SpanRow, TraceRow
from holdfast.gateway.telemetry.observed_request import ObservedAttempt, ObservedRequest
from holdfast.gateway.telemetry.trace import Trace

TRACES_MAX: Final = 512  # between two looks of the process, which come ten times a second

_PARENT: Final = re.compile(rb"00-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-0([01])")


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

    def begin(self, proxied: ObservedRequest) -> None:
        """A request goes to the flow; perhaps note what becomes of it."""
        if proxied.trace is not None:
            return  # it goes there a second time
        parent = _parent(proxied) if self._follow else None
        traced = parent[2] == b"1" if parent is not None else random() < self._share
        if traced:
            parent = _parent(proxied)
            proxied.trace = Trace(parent[1].decode() if parent is not None else "")

    def finish(self, proxied: ObservedRequest, finish: Finish, now: int) -> None:
        """One is over."""
        trace = proxied.trace
        if trace is None or len(self._done) >= TRACES_MAX:
            self.dropped += 1
            return
        ahead = time.time_ns() - now  # of this process's clock
        began = proxied.request.arrived + ahead
        if trace.spans:
            began = min(began, trace.spans[0].began)
        parent = _parent(proxied)
        self._done.append(
            TraceRow(
                proxied.request_id.decode(),
                parent[0].decode() if parent is not None else "",
                proxied.tenant.name,
                proxied.route.api.value,
                proxied.ask.model,
                finish.model,
                proxied.ask.stream,
                finish.status,
                finish.code,
                finish.continued,
                began,
                proxied.first_at + ahead if proxied.first_at else 0,
                now + ahead,
                trace.spans,
                trace.trace_id,
            )
        )

    def take_back(self, proxied: ObservedRequest) -> None:
        """It was not over: a second model is asked."""
        if self._done and self._done[-1].request_id == proxied.request_id.decode():
            self._done.pop()

    def take(self) -> list[TraceRow]:
        """Those since the last call."""
        taken, self._done = self._done, []
        return taken


def _parent(proxied: ObservedRequest) -> re.Match[bytes] | None:
    """What the caller says of its own span, where that makes sense."""
    return _PARENT.fullmatch(proxied.exchange.headers.get(b"traceparent", b""))


def traces_of(share: float, *, follow: bool, before: Traces | None = None) -> Traces | None:
    """The traces that a config asks for; ``None``: no request is to be traced.

    ``share``: of all requests. ``follow``: a caller's own mark decides, where it sends one.
    ``before``: what the config before had; what was noted in it is kept.
    """
    if not (share or follow):
        return None
    if before is None:
        return Traces(share, follow=follow)
    before.follow(share, follow=follow)
    return before


def note_attempt(
    proxied: ObservedRequest,
    attempt: ObservedAttempt,
    kind: Kind | None,
    now: int,
    input_tokens: int,
    output_tokens: int,
) -> None:
    """One attempt of a traced request is over."""
    trace = proxied.trace
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


__all__ = ["TRACES_MAX", "Traces", "note_attempt", "traces_of"]
