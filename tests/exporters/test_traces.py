"""Against a collector of our own, which decodes what OpenTelemetry's protocol says."""

import gzip
import http.server
import importlib.util
import threading

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from holdfast.config.exporters import TracesSection
from holdfast.exporters import genai
from holdfast.exporters.delivery import MissingExtraError
from holdfast.exporters.traces import TraceExporter, spans_of
from holdfast.frames import SpanRow, TraceRow

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID = "ab" * 16
MS = 1_000_000
BEGAN = 1_800_000_000_000 * MS
SERVER, CLIENT = 2, 3  # kinds, as the protocol numbers them
ERROR = 2


def span(number=0, kind="", continues=False, first=20 * MS):
    began = BEGAN + number * 100 * MS
    row = (f"m-{number + 1}", "llama", number, began, began + first if first else 0)
    rest = (kind, 70, 9, "10.0.0.7", 8000, continues, "vllm", f"{number + 17:016x}")
    return SpanRow(*row, began + 90 * MS, *rest)


def trace(spans, parent="", status=200, code="ok", continued=0):
    row = ("req_1", parent, "search", "completions", "auto", "llama", True, status, code)
    times = (BEGAN, BEGAN + 20 * MS, BEGAN + 200 * MS)
    return TraceRow(*row, continued, *times, spans, parent[3:35] or TRACE_ID)


class Collector:
    """Takes OTLP over HTTP on loopback."""

    def __init__(self):
        self.requests = []
        self.headers = []
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.headers.append((self.path, dict(self.headers)))
                outer.requests.append(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(outer.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def spans(self):
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def attributes(span):
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = getattr(pair.value, kind)
    return found


def sent(collector, *traces, environment=None, **more):
    section = TracesSection(endpoint=collector.url, deadline=5.0, **more)
    exporter = TraceExporter(section, environment or {})
    exporter.delivery.offer(traces)
    exporter.delivery.close(30)
    return exporter.delivery


def test_a_request_is_a_server_span_with_a_client_span_for_each_attempt(collector):
    spans = [span(0, "reset", first=0), span(1, continues=True)]
    delivery = sent(collector, trace(spans, PARENT, continued=1), service="gateway")
    assert (delivery.sent, delivery.failed) == (1, 0)
    assert collector.headers[0][0] == "/v1/traces"
    resource = collector.requests[0].resource_spans[0].resource
    assert attributes(resource)["service.name"] == "gateway"
    server, first, second = collector.spans()
    assert (server.kind, first.kind, second.kind) == (SERVER, CLIENT, CLIENT)
    assert server.name == "text_completion auto"
    assert first.name == "text_completion llama"
    assert server.trace_id.hex() == PARENT[3:35]
    assert server.parent_span_id.hex() == PARENT[36:52]
    assert first.trace_id == second.trace_id == server.trace_id
    assert first.parent_span_id == second.parent_span_id == server.span_id
    assert len({server.span_id, first.span_id, second.span_id}) == 3
    assert (first.span_id.hex(), second.span_id.hex()) == ("0" * 14 + "11", "0" * 14 + "12")
    assert server.start_time_unix_nano == BEGAN
    assert server.end_time_unix_nano == BEGAN + 200 * MS
    assert (first.status.code, server.status.code) == (ERROR, 0)
    told, lost, given = attributes(server), attributes(first), attributes(second)
    assert told[genai.OPERATION_NAME] == "text_completion"
    assert told[genai.REQUEST_MODEL] == "auto"
    assert told[genai.RESPONSE_MODEL] == "llama"
    assert told[genai.TENANT] == "search"
    assert told[genai.ATTEMPTS] == 2
    assert told[genai.CONTINUED] == 1
    assert told[genai.OUTPUT_TOKENS] == 9
    assert told[genai.RESPONSE_FIRST_CHUNK] == pytest.approx(0.02)
    assert lost[genai.ERROR_TYPE] == "reset"
    assert genai.OUTPUT_TOKENS not in lost
    assert (given[genai.SERVER_ADDRESS], given[genai.SERVER_PORT]) == ("10.0.0.7", 8000)
    assert (given[genai.PROVIDER_NAME], given[genai.REPLICA]) == ("vllm", "m-2")
    assert given[genai.CONTINUES] is True
    assert given[genai.INPUT_TOKENS] == 70


def test_without_a_parent_a_trace_begins_here(collector):
    other = msgspec.structs.replace(trace([span()]), trace_id="cd" * 16)
    sent(collector, trace([span()]), other)
    servers = [one for one in collector.spans() if one.kind == SERVER]
    assert [one.parent_span_id for one in servers] == [b"", b""]
    assert [one.trace_id.hex() for one in servers] == [TRACE_ID, "cd" * 16]


def test_an_error_is_one_and_a_faster_rival_is_none(collector):
    spans = [span(0, "superseded"), span(1, "server_error")]
    sent(collector, trace(spans, status=502, code="upstream_failed"))
    server, outrun, failed = collector.spans()
    assert (server.status.code, outrun.status.code, failed.status.code) == (ERROR, 0, ERROR)
    assert attributes(server)[genai.ERROR_TYPE] == "upstream_failed"
    assert genai.INPUT_TOKENS not in attributes(server)


def test_headers_come_from_the_environment(collector):
    environment = {"OTEL_KEYS": "Authorization=Bearer x=y, X-Team = a,rubbish,=z"}
    sent(collector, trace([span()]), environment=environment, headers_env="OTEL_KEYS")
    headers = {name.lower(): value for name, value in collector.headers[0][1].items()}
    assert (headers["authorization"], headers["x-team"]) == ("Bearer x=y", "a")


def test_a_collector_that_refuses_is_counted(collector):
    collector.status = 400
    delivery = sent(collector, trace([span()]))
    assert (delivery.sent, delivery.failed) == (0, 1)


@pytest.mark.parametrize(("parent", "trace_id"), [(PARENT, PARENT[3:35]), ("", None)])
def test_a_gateway_of_an_earlier_release_tells_no_ids(collector, parent, trace_id):
    row = trace([msgspec.structs.replace(span(), span_id="")], parent)
    sent(collector, msgspec.structs.replace(row, trace_id=""))
    server, attempt = collector.spans()
    assert attempt.trace_id == server.trace_id
    assert trace_id in (None, server.trace_id.hex())
    assert attempt.parent_span_id == server.span_id != attempt.span_id


def test_many_requests_go_in_bundles(collector):
    delivery = sent(collector, *(trace([span()]) for _ in range(300)))
    assert delivery.sent == 300
    assert len(collector.requests) >= 3
    assert len(collector.spans()) == 600


def test_paths_without_a_name_in_the_conventions_keep_ours():
    row = trace([span()])
    named = TraceRow(*(row.request_id, "", "a", "rerank", "r", "r"), *_rest(row))
    assert spans_of([named], "x")[0].name == "rerank r"
    assert genai.operation("responses") == "chat"


def _rest(row):
    return (row.stream, row.status, row.code, 0, row.began, 0, row.ended, [])


def test_without_the_extra_it_says_which(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="otel"):
        TraceExporter(TracesSection(endpoint="http://127.0.0.1:4318"))
