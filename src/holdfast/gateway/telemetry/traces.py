"""Decides which requests are traced, and collects finished traces until control takes them.

The decision falls when a request begins, so untraced requests cost one comparison. Control turns
the traces into spans and exports them: a gateway that exported them itself would spend its one core
on encoding and could be delayed by the collector. The list is bounded; traces beyond it are counted
as dropped.

A caller's ``traceparent`` makes its span the parent of ours. Its sampling flag decides whether to
trace only where the fleet file says so: otherwise any client could have every request traced.
Engines get a ``traceparent`` for traced requests only, with the span of the attempt as parent.
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
    """Decides which requests of a gateway are traced, and keeps finished traces until ``take``.

    At most 512 are kept; further ones are counted in ``dropped``.
    """

    __slots__ = ("_done", "_follow", "_share", "dropped")

    def __init__(self, share: float, *, follow: bool) -> None:
        self._share = share
        self._follow = follow
        self._done: list[TraceRow] = []
        self.dropped = 0

    def follow(self, share: float, *, follow: bool) -> None:
        """Apply a new config: the share of requests to trace, and whether callers' flags decide.

        Collected traces stay.
        """
        self._share, self._follow = share, follow

    def begin(self, proxied: ObservedRequest) -> None:
        """Decide whether to trace a request that enters the flow; if so, set its ``trace``.

        At random by the share, or by the sampling flag of the caller's ``traceparent`` where that
        is followed. A request that is traced already stays so.
        """
        if proxied.trace is not None:
            return  # it goes there a second time
        parent = _parent(proxied) if self._follow else None
        traced = parent[2] == b"1" if parent is not None else random() < self._share
        if traced:
            parent = _parent(proxied)
            proxied.trace = Trace(parent[1].decode() if parent is not None else "")

    def finish(self, proxied: ObservedRequest, finish: Finish, now: int) -> None:
        """Add the trace of a finished request to those for ``take``.

        If there are too many, drop it.
        """
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
        """Remove the trace that ``finish`` just added: the request goes on with a second model.

        Its spans stay in the request and are told at its real end.
        """
        if self._done and self._done[-1].request_id == proxied.request_id.decode():
            self._done.pop()

    def take(self) -> list[TraceRow]:
        """Return and clear the traces that finished since the last call, in their order."""
        taken, self._done = self._done, []
        return taken


def _parent(proxied: ObservedRequest) -> re.Match[bytes] | None:
    """What the caller says of its own span, where that makes sense."""
    return _PARENT.fullmatch(proxied.exchange.headers.get(b"traceparent", b""))


def traces_of(share: float, *, follow: bool, before: Traces | None = None) -> Traces | None:
    """Return the ``Traces`` that a config asks for; None if no request is to be traced.

    ``share``: the part of requests to trace, 0 to 1. ``follow``: a caller's own sampling flag
    decides, where it sends one. ``before``: the former object, which is changed and returned with
    what it collected.
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
    """Add the span of a finished attempt to its request's trace; nothing if that is not traced.

    ``kind`` None: it succeeded. ``now`` in ns, as the attempt's own times.
    """
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
