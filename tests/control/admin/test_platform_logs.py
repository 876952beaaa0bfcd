"""Logs of pods through the admin port, from an API server that is a fake."""

import asyncio
from contextlib import asynccontextmanager

import httpx2
import pytest

from fakekube import FakeKube, pod
from holdfast.config.fleet_file import AdminSection
from holdfast.control.admin import platform_logs
from holdfast.control.admin.admin import build_admin
from holdfast.control.admin.platform_logs import PlatformLogs, placed_at
from holdfast.control.lookup_errors import UnknownReplicaError
from holdfast.control.process import Control
from holdfast.core.view.layers import Placed, Reading
from holdfast.ports import UnreadableError
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.launcher import FakeHost, FakeLauncher

FILE = """\
models:
  - {{name: m, engine: vllm, discover: {{source: kube, port: 9}}}}
  - {{name: listed, engine: vllm, endpoints: ['http://10.1.0.2:8000', 'http://10.1.0.3:8000']}}
sources:
  - {{type: kubernetes, name: kube, api_url: '{url}', period_s: 1}}
"""


@asynccontextmanager
async def asking(folder, kube):
    """A control that knows pods, and a client of its admin port."""
    (folder / "fleet.yaml").write_text(FILE.format(url=kube.url))

    def made(section, _control):
        return KubernetesSource(section.called, KubernetesConfig(**section.settings()))

    store = SqliteStore(folder / "state.db")
    control = Control(folder / "fleet.yaml", folder, {}, "c", store, FakeLauncher(FakeHost()), made)
    stop = asyncio.Event()
    job = asyncio.create_task(control.run(stop))
    app = httpx2.ASGITransport(build_admin(control.admin, AdminSection()), client=("127.0.0.1", 1))
    try:
        async with httpx2.AsyncClient(transport=app, base_url="http://127.0.0.1:8001") as client:
            yield control, client
    finally:
        stop.set()
        await job
        store.close()


def test_the_log_of_a_pod_is_read_where_the_pod_runs(world, tmp_path):
    async def main(kube):
        async with asking(tmp_path, kube) as (control, client):
            await world.until(
                lambda: (
                    {"m-abc", "listed-1"} <= set(control.loop.deployed)
                    and any(reading.placed for reading in control.source_poller.readings())
                )
            )
            answer = await client.get("/replicas/m-abc/logs?lines=2")
            assert answer.status_code == 200
            lines = answer.text.splitlines()
            assert [line.partition(" ")[2] for line in lines] == ["line 3", "line 4"]
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.headers["cache-control"] == "no-store"
            assert (await client.get("/replicas/m-abc/logs")).text.count("\n") == 5
            assert (await client.get("/replicas/m-abc/logs?lines=0")).text == ""
            # An endpoint of the file that a pod has; and one that nobody has.
            assert "beside" in (await client.get("/replicas/listed-1/logs")).text
            answer = await client.get("/replicas/listed-2/logs")
            assert (answer.status_code, "did not start" in answer.text) == (404, True)
            answer = await client.get("/replicas/m-abc/logs?lines=10001")
            assert answer.status_code == 400
            answer = await client.get("/replicas/m-abc/logs?follow=1")
            assert (answer.status_code, "without follow" in answer.text) == (409, True)
            assert (await client.get("/replicas/nobody/logs")).status_code == 404
            kube.refuse("pods/log", 403)
            answer = await client.get("/replicas/m-abc/logs")
            assert answer.status_code == 500
            assert "the log cannot be read: " in answer.json()["error"]
            assert "403" in answer.json()["error"]
            kube.refuse("pods/log", 404)  # it went a moment ago
            assert (await client.get("/replicas/m-abc/logs")).status_code == 404
            with pytest.raises(UnknownReplicaError):
                await control.admin.log_tail("nobody", 1)

    with FakeKube() as kube:
        kube.put("pods", pod("m-abc", model="m", ip="10.1.0.1"))
        beside = [{"name": "proxy"}, {"name": "engine", "ports": [{"containerPort": 8000}]}]
        two = pod("two", model="listed", ip="10.1.0.2", containers=beside)
        two["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "engine"}
        kube.put("pods", two)
        kube.say("two", "beside")
        for number in range(5):
            kube.say("m-abc", f"line {number}")
        asyncio.run(main(kube))


class Slow:
    """A source whose logs never come."""

    name = "slow"

    def __init__(self):
        self.asked = 0

    async def tail(self, _, lines):
        self.asked += 1
        await asyncio.Event().wait()


def test_only_so_many_are_read_at_a_time_and_none_for_ever(world, monkeypatch):
    async def main():
        logs, source = PlatformLogs(), Slow()
        monkeypatch.setattr(platform_logs, "ANSWER_S", 30.0)
        reads = [asyncio.create_task(logs.tail(source, "p", 5)) for _ in range(4)]
        await world.until(lambda: source.asked == 4)
        with pytest.raises(UnreadableError, match="4 such logs") as refused:
            await logs.tail(source, "p", 5)
        assert refused.value.status == 503
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        monkeypatch.setattr(platform_logs, "ANSWER_S", 0.01)
        with pytest.raises(UnreadableError, match="slow did not answer") as late:
            await logs.tail(source, "p", 5)
        assert late.value.status is None

    asyncio.run(main())


def test_what_is_too_long_loses_its_beginning():
    class Talkative:
        name = "t"

        async def tail(self, _, lines):
            return [f"{number:07d}" + "é" * 100 for number in range(lines)]

    async def main():
        text = await PlatformLogs().tail(Talkative(), "p", 10_000)
        assert 1_000_000 < len(text) <= 1 << 20
        assert text.endswith(b"0009999" + "é".encode() * 100 + b"\n")
        first = text.decode().splitlines()[0]
        assert len(first) == 107  # whole: it begins where a line does

    asyncio.run(main())


def test_of_several_pods_at_a_url_the_youngest_that_runs_is_meant():
    source = Slow()
    rows = (
        Placed("old", "m", "running", endpoint="http://a:1", created_at=1.0),
        Placed("new", "m", "running", endpoint="http://a:1", created_at=2.0),
        Placed("gone", "m", "stopped", endpoint="http://a:1", created_at=3.0),
    )
    readings = [Reading("slow", "kubernetes", 0.0, placed=rows)]
    known = {"slow": source, "deaf": object()}
    assert placed_at(known, {}, readings, "r", "http://a:1") == (source, "new")
    assert placed_at(known, {("slow", "p"): "r"}, readings, "r", "http://a:1") == (source, "p")
    assert placed_at(known, {("deaf", "p"): "r"}, [], "r", "http://a:1") is None
    assert placed_at({}, {}, readings, "r", "http://a:1") is None
    assert placed_at(known, {}, readings, "r", "") is None
