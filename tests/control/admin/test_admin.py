import asyncio
import contextlib
import socket

import pytest
import uvicorn
from starlette.testclient import TestClient

from holdfast.config.fleet_file import AdminSection
from holdfast.config.tenants import hash_key
from holdfast.control.admin import admin as module
from holdfast.control.admin.admin import build_admin
from holdfast.control.fleet.disturbances import ChaosDisabledError
from holdfast.control.fleet.loop import Happened
from holdfast.control.lookup_errors import UnknownModelError, UnknownReplicaError
from holdfast.core.types import Decision
from holdfast.ports import UnreadableError

HERE = "http://127.0.0.1:8001"
JSON = {"content-type": "application/json"}
TOKEN = "hf-admin-" + "t" * 32
BEARER = {"authorization": f"Bearer {TOKEN}"}


class FakeFacts:
    """Keeps what it was asked; two replicas, of which one was started by somebody else."""

    def __init__(self, log=None):
        self.asked = []
        self.answer = (True, "begun")
        self.log = log
        self.platform = None
        self.chaos = True

    def problems(self):
        return []

    def ready(self):
        return True, "ready"

    def model_ready(self, model):
        return model == "org/m", "as asked"

    def replica_ready(self, model, replica_id):
        known = {"org/m-1": Decision(True, "ready"), "org/m-2": Decision(False, "quarantined")}
        return known.get(replica_id) if model == "org/m" else None

    def status(self):
        return {"epoch": 4}

    def metrics(self):
        return "holdfast_config_epoch 4\n"

    def gpus(self):
        return {"available": False, "reason": "none here", "gpus": []}

    def events(self, limit=1000, replica=None):
        self.asked.append(("events", limit, replica))
        return [Happened(1.5, "org/m", "org/m-1", "ready", "it answered")]

    def log_path(self, replica_id):
        if replica_id == "elsewhere":
            return None
        self._known(replica_id)
        return self.log

    async def log_tail(self, replica_id, lines):
        self.asked.append(("log_tail", replica_id, lines))
        if isinstance(self.platform, Exception):
            raise self.platform
        return self.platform

    async def explain(self, request_id):
        return b'{"story":[]}' if request_id == "req_1" else None

    async def reload(self):
        return True

    async def drain(self, replica_id):
        return self._order("drain", replica_id)

    async def undrain(self, replica_id):
        return self._order("undrain", replica_id)

    async def restart(self, replica_id):
        return self._order("restart", replica_id)

    async def disturb(self, replica_id, kind, seconds, url):
        self._known(replica_id)
        if not self.chaos:
            raise ChaosDisabledError
        self.asked.append(("disturb", replica_id, kind, seconds, url))
        return self.answer

    async def undisturb(self, replica_id):
        return self._order("undisturb", replica_id)

    async def scale(self, model, replicas):
        if model != "org/m":
            raise UnknownModelError(model)
        self.asked.append(("scale", model, replicas))
        return self.answer

    def _order(self, name, replica_id):
        self._known(replica_id)
        self.asked.append((name, replica_id))
        return self.answer

    def _known(self, replica_id):
        if replica_id != "org/m-1":
            raise UnknownReplicaError(replica_id)


@pytest.fixture
def facts(tmp_path):
    return FakeFacts(tmp_path / "output.log")


def client_of(facts, base_url=HERE):
    """Somebody with the admin token, which opens all paths."""
    app = build_admin(facts, AdminSection(token=hash_key(TOKEN)))
    return TestClient(app, base_url=base_url, headers=BEARER)


@pytest.fixture
def client(facts):
    with client_of(facts) as client:
        yield client


# --- orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["drain", "undrain", "restart", "undisturb"])
def test_an_order_for_a_replica_is_taken_on_or_refused_with_a_reason(client, facts, order):
    answer = client.post(f"/replicas/org/m-1/{order}")
    assert (answer.status_code, answer.json()) == (202, {"accepted": True, "reason": "begun"})
    assert facts.asked == [(order, "org/m-1")]
    facts.answer = (False, "not now")
    answer = client.post(f"/replicas/org%2Fm-1/{order}", json={})
    assert (answer.status_code, answer.json()) == (409, {"error": "not now"})
    answer = client.post(f"/replicas/nobody/{order}")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "no replica has the id 'nobody'"},
    )
    answer = client.get(f"/replicas/org/m-1/{order}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "error" in answer.json()


def test_trouble_is_made_on_purpose_for_a_time(client, facts):
    body = {"kind": "detour", "seconds": 5, "url": "http://127.0.0.1:9"}
    assert client.post("/replicas/org/m-1/disturb", json=body).status_code == 202
    client.post("/replicas/org/m-1/disturb", json={"kind": "silence", "seconds": 1.5})
    assert facts.asked == [
        ("disturb", "org/m-1", "detour", 5.0, "http://127.0.0.1:9"),
        ("disturb", "org/m-1", "silence", 1.5, ""),
    ]
    assert client.post("/replicas/nobody/disturb", json=body).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "silence"},
        {"kind": 1, "seconds": 1},
        {"kind": "silence", "seconds": True},
        {"kind": "silence", "seconds": "1"},
        {"kind": "detour", "seconds": 1, "url": 3},
        [],
    ],
)
def test_trouble_that_is_not_described_is_refused(client, facts, body):
    answer = client.post("/replicas/org/m-1/disturb", json=body)
    assert answer.status_code == 400
    assert "kind" in answer.json()["error"]
    assert facts.asked == []


def test_trouble_that_the_fleet_file_does_not_allow_is_forbidden_with_the_fix(client, facts):
    facts.chaos = False
    answer = client.post("/replicas/org/m-1/disturb", json={"kind": "silence", "seconds": 1})
    assert answer.status_code == 403
    assert "chaos: {enabled: true}" in answer.json()["error"]
    assert facts.asked == []


def test_a_model_is_scaled(client, facts):
    answer = client.post("/models/org/m/scale", json={"replicas": 3})
    assert (answer.status_code, answer.json()["reason"]) == (202, "begun")
    assert client.post("/models/org/m/scale", json={"replicas": 0}).status_code == 202
    assert facts.asked == [("scale", "org/m", 3), ("scale", "org/m", 0)]
    facts.answer = (False, "its endpoints are given")
    assert client.post("/models/org/m/scale", json={"replicas": 3}).status_code == 409
    answer = client.post("/models/x/scale", json={"replicas": 3})
    assert (answer.status_code, answer.json()) == (404, {"error": "no model is called 'x'"})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"3",
        b"[]",
        b"null",
        b"{}",
        b'{"replicas": -1}',
        b'{"replicas": 257}',
        b'{"replicas": 1.5}',
        b'{"replicas": true}',
        b'{"replicas": "3"}',
        b'{"replicas": 3, "zones": 2}',
        b"\xff",
        b"[" * 2_000,
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(client, facts, body):
    answer = client.post("/models/org/m/scale", content=body, headers=JSON)
    assert answer.status_code == 400
    assert answer.json() == {"error": 'the body is {"replicas": N} with N from 0 to 256'}
    assert facts.asked == []


def test_a_body_without_bounds_is_refused(client, facts):
    body = b'{"replicas": 3' + b" " * module.BODY_BYTES_MAX + b"}"
    assert client.post("/models/org/m/scale", content=body, headers=JSON).status_code == 413
    assert facts.asked == []


# --- who may give orders --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (HERE, 202),
        ("https://127.0.0.1:8001", 202),
        ("http://127.0.0.1:8002", 403),
        ("http://127.0.0.1", 403),
        ("http://localhost:8001", 403),
        ("https://evil.example", 403),
        ("http://127.0.0.1:8001.evil.example", 403),
        ("http://127.0.0.1:8001@evil.example", 403),
        ("http://evil.example#127.0.0.1:8001", 403),
        ("http://127.0.0.1:nonsense", 403),
        ("http://[::1", 403),
        ("file://127.0.0.1:8001", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_a_page_of_this_host_may_give_orders(client, facts, origin, status):
    answer = client.post("/replicas/org/m-1/drain", headers={"origin": origin})
    assert answer.status_code == status
    assert len(facts.asked) == (status == 202)


def test_of_two_origins_neither_may_be_of_another_host(client, facts):
    origins = [("origin", HERE), ("origin", "http://evil.example")]
    assert client.post("/replicas/org/m-1/drain", headers=origins).status_code == 403
    assert facts.asked == []


def test_a_default_port_may_be_said_or_left_out(facts):
    with client_of(facts, "http://localhost") as client:
        for origin in ("http://localhost", "http://localhost:80"):
            answer = client.post("/reload", headers={"origin": origin})
            assert answer.status_code == 200


def test_reading_asks_for_no_origin(client):
    assert client.get("/status", headers={"origin": "https://evil.example"}).status_code == 200


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        (None, b"", 202),
        ("application/x-www-form-urlencoded", b"", 202),
        ("application/json", b'{"a": 1}', 202),
        ("Application/JSON; charset=utf-8", b"{}", 202),
        (None, b"{}", 415),
        ("text/plain", b"{}", 415),
        ("application/x-www-form-urlencoded", b"a=1", 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("application/jsonp", b"{}", 415),
    ],
)
def test_the_body_of_an_order_is_json_or_nothing(client, facts, kind, body, status):
    headers = {"content-type": kind} if kind else {}
    answer = client.post("/replicas/org/m-1/drain", content=body, headers=headers)
    assert answer.status_code == status
    assert len(facts.asked) == (status == 202)


def test_a_body_of_unsaid_length_is_json_too(client, facts):
    def pieces():
        yield b"a=1"

    answer = client.post("/replicas/org/m-1/drain", content=pieces())
    assert (answer.status_code, facts.asked) == (415, [])


def test_orders_ask_for_the_token_first(facts):
    section = AdminSection(token="sha256:" + "0" * 64)
    with TestClient(build_admin(facts, section), base_url=HERE) as client:
        answer = client.post("/replicas/org/m-1/drain", headers={"origin": "http://evil.example"})
        assert answer.status_code == 401
        assert client.get("/openapi.json").status_code == 401
        assert client.get("/livez").status_code == 200


# --- questions ------------------------------------------------------------------------------------


def test_events_are_asked_for_by_number_and_replica(client, facts):
    event = {"at": 1.5, "model": "org/m", "replica": "org/m-1", "what": "ready"}
    (told,) = client.get("/events").json()["events"]
    assert told | event == told
    client.get("/events?limit=5&replica=org/m-1")
    assert facts.asked == [("events", 1000, None), ("events", 5, "org/m-1")]


@pytest.mark.parametrize("limit", ["", "-1", "1.5", "five", "5001", "9" * 5_000, "٣", "1_0"])
def test_a_limit_that_is_no_number_is_refused(client, facts, limit):
    answer = client.get("/events", params={"limit": limit})
    assert answer.status_code == 400
    assert answer.json() == {"error": "limit is a number from 0 to 5000"}
    assert facts.asked == []


def test_gpus_and_the_rest_are_told(client):
    assert client.get("/gpus").json()["reason"] == "none here"
    assert client.get("/readyz/org/m").status_code == 200
    assert client.get("/readyz/org/other").status_code == 503
    assert client.get("/metrics").text.startswith("holdfast_")
    assert client.get("/explain/req_1").json() == {"story": []}
    assert client.get("/explain/req_2").status_code == 404
    answer = client.get("/nothing")
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})


def test_a_replicas_readiness_is_told_in_a_form_that_no_proxy_has(client):
    def asked(query):
        answer = client.get(f"/readyz/{query}")
        return answer.status_code, answer.json()

    well = {"replica": "org/m-1", "known": True, "ready": True, "why": "ready"}
    ill = {"replica": "org/m-2", "known": True, "ready": False, "why": "quarantined"}
    assert asked("org/m?replica=org/m-1") == (200, well)
    assert asked("org/m?replica=org/m-2") == (503, ill)
    assert asked("org/m?replica=x") == (404, {"replica": "x", "known": False})
    assert asked("org/other?replica=org/m-1")[0] == 404


# --- logs -----------------------------------------------------------------------------------------


def test_the_end_of_a_log_is_told(client, facts):
    facts.log.write_bytes(b"".join(b"line %d\n" % n for n in range(1_000)) + b"\xff half")
    answer = client.get("/replicas/org/m-1/logs?lines=3")
    assert (answer.status_code, answer.content) == (200, b"line 998\nline 999\n\xff half")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/replicas/org/m-1/logs").content.count(b"\n") == 199
    assert client.get("/replicas/org/m-1/logs?lines=0").content == b""


def test_a_log_that_is_not_there_yet_is_empty(client):
    answer = client.get("/replicas/org/m-1/logs")
    assert (answer.status_code, answer.content) == (200, b"")


def test_logs_that_a_platform_has_are_passed_on(client, facts):
    facts.platform = b"a\nb\n"
    answer = client.get("/replicas/elsewhere/logs?lines=7")
    assert (answer.status_code, answer.content) == (200, b"a\nb\n")
    assert facts.asked == [("log_tail", "elsewhere", 7)]
    assert client.get("/replicas/elsewhere/logs?follow=1").status_code == 409
    for status, told in ((None, 500), (403, 500), (404, 404), (503, 503)):
        facts.platform = UnreadableError("not today", status)
        answer = client.get("/replicas/elsewhere/logs")
        assert (answer.status_code, answer.json()) == (
            told,
            {"error": "the log cannot be read: not today"},
        )


def test_logs_that_nobody_has_are_told(client, facts):
    answer = client.get("/replicas/elsewhere/logs")
    assert (answer.status_code, "did not start" in answer.json()["error"]) == (404, True)
    assert client.get("/replicas/nobody/logs").status_code == 404
    assert client.get("/replicas/nobody/logs?follow=1").status_code == 404
    assert client.get("/replicas/org/m-1/logs?lines=10001").status_code == 400
    assert client.get("/replicas/org/m-1/logs?follow=2").status_code == 400
    facts.log.mkdir()
    answer = client.get("/replicas/org/m-1/logs")
    assert (answer.status_code, "cannot be read" in answer.json()["error"]) == (500, True)
    answer = client.get("/replicas/org/m-1/logs?follow=1")
    assert (answer.status_code, b"cannot be read" in answer.content) == (200, True)


class Quiet(uvicorn.Server):
    """As in production: signals are for the process, not for this server."""

    def capture_signals(self):
        return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def served(facts):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = build_admin(facts, AdminSection())
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = Quiet(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def follower(port, query="follow=1&lines=2"):
    """A client that has read the head of the answer; its status with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ask = f"GET /replicas/org/m-1/logs?{query} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n"
    writer.write(ask.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1]), reader, writer


async def gone(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def test_a_followed_log_goes_on_until_the_client_goes_away(facts, world, monkeypatch):
    monkeypatch.setattr(module, "FOLLOWERS_MAX", 1)
    monkeypatch.setattr("holdfast.control.admin.logs.LOOK_S", 0.01)
    facts.log.write_bytes(b"a\nb\nc\n")

    async def main():
        async with asyncio.timeout(20), served(facts) as port:
            status, reader, writer = await follower(port)
            assert status == 200
            assert b"a" not in await reader.readuntil(b"c\n")
            with facts.log.open("ab") as log:
                log.write(b"more\n")
            await reader.readuntil(b"more\n")
            status, _, other = await follower(port)  # one is enough here
            assert status == 503
            await gone(other)
            await gone(writer)
            while True:  # as soon as the first is gone, another may come
                status, reader, writer = await follower(port, "follow=1&lines=1")
                if status == 200:
                    break
                await gone(writer)
            await reader.readuntil(b"more\n")
            facts.log = None  # the replica is forgotten: the answer ends properly
            await reader.readuntil(b"0\r\n\r\n")
            await gone(writer)

    asyncio.run(main())


def test_a_follower_does_not_keep_the_process_from_ending(facts, monkeypatch):
    monkeypatch.setattr("holdfast.control.admin.logs.LOOK_S", 0.01)
    facts.log.write_bytes(b"a\n")

    async def main():
        async with asyncio.timeout(20):
            async with served(facts) as port:
                _, reader, writer = await follower(port)
                await reader.readuntil(b"a\n")
            await gone(writer)

    asyncio.run(main())
