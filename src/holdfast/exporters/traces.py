"""Sends traced requests as OpenTelemetry spans to a collector, by OTLP over HTTP.

    SERVER span "chat llama"      from arrival to the last byte, as the client saw it
      CLIENT span "chat llama"    one for each attempt on a replica

Spans are built from what gateways noted, after the request has ended: the gateway is not slowed
down by a tracer, and a span is never half. With each attempt the gateway sends the engine trace and
span ids, so that an engine's own spans hang below it; a caller's ``traceparent`` gives the parent.
Spans hold no prompt and no answer: gateways do not even send any to control.

The SDK's exporter is used for the protocol alone. Rejected: its tracer and batch processor, whose
clock and context are those of code that runs now, and which costs 30 µs a span where it runs.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from secrets import randbits
from typing import Any, Final

from holdfast import __version__
from holdfast.config.exporters import TracesSection
from holdfast.exporters import genai
from holdfast.exporters.delivery import Delivery, MissingExtraError
from holdfast.frames import SpanRow, TraceRow

ROOM: Final = 2_048  # requests that may wait
BUNDLE: Final = 128  # requests in one call
_NANOS: Final = 1e9
_CANCELLED: Final = frozenset({"superseded", "client_gone", "drained"})  # not the replica's fault


class ExportRefusedError(Exception):
    """The collector refused a bundle."""


class TraceExporter:
    """Sends traced requests to a collector as spans."""

    def __init__(self, section: TracesSection, environment: Mapping[str, str] = os.environ) -> None:
        if importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is None:
            raise MissingExtraError("exporters.traces", "otel")
        self._section = section
        self._headers = _headers(environment.get(section.headers_env or "", ""))
        self._exporter: Any = None
        self.delivery: Delivery[TraceRow] = Delivery("traces", self._send, room=ROOM, bundle=BUNDLE)

    def _send(self, bundle: list[TraceRow]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415 - an extra

        if self._exporter is None:
            self._exporter = _exporter(self._section, self._headers)
        spans = spans_of(bundle, self._section.service)
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ExportRefusedError(f"the collector at {self._section.endpoint} did not take them")


def _exporter(section: TracesSection, headers: Mapping[str, str]) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
        OTLPSpanExporter,
    )

    return OTLPSpanExporter(
        endpoint=f"{section.endpoint}/v1/traces",
        headers=dict(headers),
        timeout=section.deadline,
    )


def _headers(text: str) -> dict[str, str]:
    """``name=value,name=value``; what is no pair is left out."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip().lower(): value.strip() for name, sign, value in pairs if sign and name}


# --- spans ----------------------------------------------------------------------------------------


def spans_of(traces: Sequence[TraceRow], service: str) -> list[Any]:
    """Convert traced requests to spans of the SDK."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    resource = Resource({"service.name": service, "service.version": __version__})
    scope = InstrumentationScope("holdfast", __version__)
    spans: list[Any] = []
    for trace in traces:
        spans += _request(trace, resource, scope)
    return spans


def _request(trace: TraceRow, resource: Any, scope: Any) -> list[Any]:
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 - an extra
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags  # noqa: PLC0415

    sampled = TraceFlags(TraceFlags.SAMPLED)
    _, theirs, span_id, _ = (trace.parent or "---").split("-")
    trace_id, parent = _id(trace.trace_id or theirs, 128), None
    if span_id:
        parent = SpanContext(trace_id, int(span_id, 16), is_remote=True, trace_flags=sampled)
    own = SpanContext(trace_id, randbits(64) or 1, is_remote=False, trace_flags=sampled)
    operation = genai.operation(trace.operation)
    made = [
        ReadableSpan(
            name=f"{operation} {trace.asked}",
            context=own,
            parent=parent,
            resource=resource,
            attributes=_server_attributes(trace, operation),
            kind=SpanKind.SERVER,
            status=_status(trace.code if trace.status >= 500 else ""),
            start_time=trace.began,
            end_time=trace.ended,
            instrumentation_scope=scope,
        )
    ]
    made += [
        ReadableSpan(
            name=f"{operation} {span.model}",
            context=SpanContext(
                trace_id, _id(span.span_id, 64), is_remote=False, trace_flags=sampled
            ),
            parent=own,
            resource=resource,
            attributes=_client_attributes(trace, span, operation),
            kind=SpanKind.CLIENT,
            status=_status("" if span.kind in _CANCELLED else span.kind),
            start_time=span.began,
            end_time=span.ended,
            instrumentation_scope=scope,
        )
        for span in trace.spans
    ]
    return made


def _id(told: str, bits: int) -> int:
    """As the gateway told it to the engine; a gateway of an earlier release told nobody."""
    return int(told, 16) if told else randbits(bits) or 1


def _status(error: str) -> Any:
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - an extra

    return Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET)


def _server_attributes(trace: TraceRow, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        genai.OPERATION_NAME: operation,
        genai.PROVIDER_NAME: genai.PROVIDER,
        genai.REQUEST_MODEL: trace.asked,
        genai.RESPONSE_MODEL: trace.model,
        genai.REQUEST_STREAM: trace.stream,
        genai.STATUS_CODE: trace.status,
        genai.REQUEST_ID: trace.request_id,
        genai.TENANT: trace.tenant,
        genai.ATTEMPTS: len(trace.spans),
    }
    if trace.continued:
        found[genai.CONTINUED] = trace.continued
    if trace.status >= 400:
        found[genai.ERROR_TYPE] = trace.code
    if trace.first:
        found[genai.RESPONSE_FIRST_CHUNK] = (trace.first - trace.began) / _NANOS
    given = next((span for span in reversed(trace.spans) if not span.kind), None)
    if given is not None:
        found[genai.INPUT_TOKENS] = given.input_tokens
        found[genai.OUTPUT_TOKENS] = given.output_tokens
    return found


def _client_attributes(trace: TraceRow, span: SpanRow, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        genai.OPERATION_NAME: operation,
        genai.PROVIDER_NAME: span.engine or genai.PROVIDER,
        genai.REQUEST_MODEL: span.model,
        genai.REQUEST_STREAM: trace.stream,
        genai.SERVER_ADDRESS: span.host,
        genai.SERVER_PORT: span.port,
        genai.REPLICA: span.replica_id,
        genai.ATTEMPT: span.number,
    }
    if span.kind:
        found[genai.ERROR_TYPE] = span.kind
    else:
        found[genai.INPUT_TOKENS] = span.input_tokens
        found[genai.OUTPUT_TOKENS] = span.output_tokens
    if span.first:
        found[genai.RESPONSE_FIRST_CHUNK] = (span.first - span.began) / _NANOS
    if span.continues:
        found[genai.CONTINUES] = True
    return found


__all__ = ["BUNDLE", "ROOM", "ExportRefusedError", "TraceExporter", "spans_of"]
