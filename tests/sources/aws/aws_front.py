"""moto's server in a thread, behind a front that AWS would recognise, with faults to order.

    boto3 ─► Front ─┬─► a fault that was ordered: throttled, denied, expired, broken, hanging
                    └─► moto ─► what moto leaves out: pages, the cap of 100 ids, newest first

moto lists everything on one page, describes any number of ids and ignores ``startFromHead``; a
collector that never pages would pass against it. What is missing is added to its answers here, so
that moto itself stays as it is and other tests of this process see nothing of it.
"""

import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from urllib.parse import parse_qs

import boto3
from botocore.config import Config
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.logs.models import logs_backends
from moto.moto_api import state_manager
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

REGION = "eu-west-2"
ACCOUNT = DEFAULT_ACCOUNT_ID
PAGE = 100
HANGS_S = 30.0  # at most, should nobody let go

_SIGNED_FOR = re.compile(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request")
_LISTS = {
    "ListContainerInstances": "containerInstanceArns",
    "ListTasks": "taskArns",
    "ListServices": "serviceArns",
}
_CAPPED = {
    "DescribeContainerInstances": ("containerInstances", 100),
    "DescribeTasks": ("tasks", 100),
    "DescribeServices": ("services", 10),
}
_IN_XML = {"autoscaling", "ec2"}


@dataclass
class Fault:
    """What befalls requests to one service, or to all of them."""

    code: str = "InternalFailure"
    service: str = ""  # as requests are signed: elasticfilesystem, monitoring; empty: any
    operation: str = ""  # empty: any
    status: int = 400
    message: str = "ordered by a test"
    times: float = float("inf")
    hang: threading.Event | None = None  # no answer before it is set

    def hits(self, service, operation):
        fits = self.service in {"", service} and self.operation in {"", operation}
        return fits and self.times > 0


@dataclass
class Front:
    """A WSGI application around moto's."""

    inner: object
    faults: list[Fault] = field(default_factory=list)
    seen: Counter = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        service, operation = named(environ, body)
        with self.lock:
            self.seen[f"{service}:{operation}"] += 1
            fault = next((one for one in self.faults if one.hits(service, operation)), None)
            if fault is not None:
                fault.times -= 1
        if fault is not None and fault.hang is not None:
            fault.hang.wait(HANGS_S)
        if fault is not None:
            status, headers, answer = refusal(service, fault)
        elif over_the_cap(operation, body):
            status, headers, answer = refusal(service, Fault("InvalidParameterException"))
        else:
            status, headers, answer = self.asked(environ)
            if status.startswith("200") and operation in _LISTS:
                answer = paged(operation, body, answer)
            elif status.startswith("200") and operation == "FilterLogEvents":
                status, answer = newest_first(body, answer)
            elif status.startswith("200") and operation == "DescribeLogStreams":
                answer = lying(answer)
        headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start_response(status, [*headers, ("Content-Length", str(len(answer)))])
        return [answer]

    def asked(self, environ):
        told = []

        def start(status, headers, *_):
            told[:] = [status, headers]

        chunks = self.inner(environ, start)
        return told[0], told[1], b"".join(chunks)


def named(environ, body):
    """Which service and operation a request is for."""
    signed = _SIGNED_FOR.search(environ.get("HTTP_AUTHORIZATION", ""))
    service = signed.group(1) if signed else ""
    operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    if not operation and service in _IN_XML:
        operation = parse_qs(body.decode()).get("Action", [""])[0]
    if service == "elasticfilesystem" and environ["REQUEST_METHOD"] == "GET":
        operation = "DescribeFileSystems"
    return service, operation


def refusal(service, fault):
    status = f"{fault.status} Refused"
    if service in _IN_XML:
        error = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
        whole = (
            f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>"
            if service == "ec2"
            else f"<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>"
        )
        return status, [("Content-Type", "text/xml")], whole.encode()
    told = json.dumps({"__type": fault.code, "message": fault.message}).encode()
    return status, [("Content-Type", "application/json"), ("x-amzn-ErrorType", fault.code)], told


def over_the_cap(operation, body):
    key, most = _CAPPED.get(operation, ("", 0))
    return bool(key) and len(json.loads(body).get(key, ())) > most


def paged(operation, body, answer):
    asked, key = json.loads(body), _LISTS[operation]
    everything = json.loads(answer)[key]
    most = min(int(asked.get("maxResults") or 10), PAGE)
    start = int(asked.get("nextToken") or 0)
    page = {key: everything[start : start + most]}
    if start + most < len(everything):
        page["nextToken"] = str(start + most)
    return json.dumps(page).encode()


def newest_first(body, answer):
    """What moto does not do: the order, and a refusal where a stream does not exist."""
    asked = json.loads(body)
    if asked.get("startFromHead") is not False:
        return "200 OK", answer
    streams = logs_backends[ACCOUNT][REGION].groups[asked["logGroupName"]].streams
    names = asked.get("logStreamNames") or list(streams)
    if not set(names) <= streams.keys():
        missing = {
            "__type": "ResourceNotFoundException",
            "message": "The specified log stream does not exist.",
        }
        return "400 Refused", json.dumps(missing).encode()
    events = [
        {
            "logStreamName": name,
            "timestamp": event.timestamp,
            "ingestionTime": event.ingestion_time,
            "message": event.message,
            "eventId": str(event.event_id),
        }
        for name in names
        for event in streams[name].events
        if event.timestamp >= asked.get("startTime", 0)
    ]
    events.sort(key=lambda event: event["timestamp"], reverse=True)
    start, most = int(asked.get("nextToken") or 0), asked.get("limit", 10_000)
    page = {"events": events[start : start + most]}
    if start + most < len(events):
        page["nextToken"] = str(start + most)
    return "200 OK", json.dumps(page).encode()


def lying(answer):
    """Times in lists of streams are up to an hour behind on AWS; here they always are."""
    told = json.loads(answer)
    for stream in told.get("logStreams", ()):
        for key in ("lastEventTimestamp", "lastIngestionTime"):
            stream[key] = stream.get(key, 0) - 3_600_000
    return json.dumps(told).encode()


class _Quiet(WSGIRequestHandler):
    def log(self, *_):
        """Say nothing: tests read what was said."""


class FakeAws:
    """The server. ``close`` when done; it forgets everything that moto was told."""

    def __init__(self):
        state_manager.set_transition(
            model_name="ecs::task", transition={"progression": "manual", "times": 10**9}
        )
        self.front = Front(DomainDispatcherApplication(create_backend_app))
        self._server = make_server(
            "127.0.0.1", 0, self.front, threaded=True, request_handler=_Quiet
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._clients = {}

    def client(self, service):
        if service not in self._clients:
            self._clients[service] = boto3.client(
                service,
                region_name=REGION,
                endpoint_url=self.url,
                aws_access_key_id="testing",
                aws_secret_access_key="testing",
                # moto unpacks what is packed twice
                config=Config(disable_request_compression=True),
            )
        return self._clients[service]

    def order(self, *faults):
        self.front.faults[:] = faults

    def calm(self):
        for fault in self.front.faults:
            if fault.hang is not None:
                fault.hang.set()
        self.front.faults.clear()

    def close(self):
        self.calm()
        for client in self._clients.values():
            client.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
        state_manager.unset_transition(model_name="ecs::task")
