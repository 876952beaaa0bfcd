"""The Ray source against a dashboard on loopback that answers, fails and lies."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from holdfast.core.types import ConfigError
from holdfast.sources.ray.config import RayConfig
from holdfast.sources.ray.source import RaySource

NODE = {"node_id": "aaaa", "node_ip": "10.0.0.1", "state": "ALIVE"}
NODES = {"data": {"result": {"result": [NODE]}}}
SERVE = {
    "proxies": {"aaaa": {"node_id": "aaaa", "node_ip": "10.0.0.1", "status": "HEALTHY"}},
    "applications": {"chat": {"route_prefix": "/", "status": "RUNNING"}},
}


class Dashboard:
    """Answers both pages; ``pages`` can be changed, and ``seen`` are the headers it was sent."""

    def __init__(self):
        self.pages = {"/api/v0/nodes": (200, NODES), "/api/serve/applications/": (200, SERVE)}
        self.seen = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append(dict(self.headers))
                status, body = outer.pages[self.path.partition("?")[0]]
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                """Nothing: tests are quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def dashboard():
    with Dashboard() as made:
        yield made


def play(dashboard, scene, **more):
    async def main():
        source = RaySource("ray", RayConfig(dashboard_url=dashboard.url, **more))
        try:
            await scene(source)
        finally:
            await source.close()

    asyncio.run(main())


def test_it_reads_hosts_and_applications_and_tells_of_changes(dashboard):
    async def scene(source):
        assert not source.known
        assert await source.changed(0) == 1
        assert source.known
        reading = await source.read()
        assert [host.id for host in reading.hosts] == ["10.0.0.1-aaaa"]
        assert [row.id for row in reading.placed] == ["chat/chat.10.0.0.1.8000"]
        assert {part.name for part in reading.parts} == {"nodes", "serve"}
        await source.look()
        assert source.version == 1, "nothing changed"
        dashboard.pages["/api/serve/applications/"] = (200, {})
        await source.look()
        assert source.version == 2
        assert source.glance().placed == ()

    play(dashboard, scene)


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ((503, {}), "answers 503 for /api/serve/applications/"),
        ((200, b"<html>"), "sends no JSON"),
        ((200, b"[" * 100_000), "sends no JSON"),
        ((200, b"1" * 5_000), "more than 4000 bytes"),
    ],
)
def test_a_part_that_fails_keeps_its_rows_and_says_why(dashboard, page, told):
    async def scene(source):
        await source.look()
        dashboard.pages["/api/serve/applications/"] = page
        await source.look()
        reading = await source.read()
        serve = next(part for part in reading.parts if part.name == "serve")
        assert told in serve.error
        assert serve.failing_since
        assert len(reading.placed) == 1
        assert not next(part for part in reading.parts if part.name == "nodes").error

    limit = 4_000 if "bytes" in told else 1 << 20
    play(dashboard, scene, body_bytes_max=limit)


def test_nobody_there_is_no_exception(dashboard):
    async def scene(source):
        reading = await source.read()
        assert all("does not answer" in part.error for part in reading.parts)
        assert not source.known

    dashboard.url = "http://127.0.0.1:9"
    play(dashboard, scene)


def test_a_cluster_that_asks_for_a_token_gets_it(dashboard, tmp_path):
    token = tmp_path / "token"
    token.write_text("abc\n")

    async def scene(source):
        await source.look()
        assert {headers["Authorization"] for headers in dashboard.seen} == {"Bearer abc"}

    play(dashboard, scene, token_file=str(token))

    async def missing(source):
        await source.look()
        reading = await source.read()
        assert all("token_file" in part.error for part in reading.parts)

    play(dashboard, missing, token_file=str(tmp_path / "none"))


def test_periods_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match=r"ray\.period_s"):
        RayConfig(period_s=0)
