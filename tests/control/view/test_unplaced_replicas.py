"""A replica that finds no GPU, in a control that runs: what is seen of it until it finds one."""

import asyncio

import pytest

from holdfast.control.deploy import gpu_placements, launches
from holdfast.control.deploy.host_gpus import HostGpus
from holdfast.control.process import Control
from holdfast.core.failure import Cause
from holdfast.testing.gpu_host import FakeGpu, FakeGpuHost

FILE = """
gateway: {listen: '127.0.0.1:8000'}
incidents: {detectors: {platform: {unserved_s: 0.2}}}
models:
  - {name: m, engine: vllm, launch: {replicas: 1, gpus: 2, command: [serve]}}
"""
LACKS = "2 GPUs wanted, and this host has 1 that fit"


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    monkeypatch.setattr(launches, "HEALTH_LOOK_S", 0.02)
    monkeypatch.setattr(gpu_placements, "LOOK_S", 0.05)
    monkeypatch.setattr(gpu_placements, "REPORT_S", 0.1)


def test_what_waits_for_a_gpu_is_seen_everywhere_and_an_incident_if_it_lasts(
    world, tmp_path, store
):
    host = FakeGpuHost(1)

    async def scene(control):
        await world.until(control.incidents.unclosed)
        (incident,) = control.incidents.unclosed()
        assert incident.cause is Cause.NOT_PLACED
        assert LACKS in str(incident)
        await world.until(control.summary.status_rows)
        (row,) = control.summary.status_rows()
        assert (row["state"], row["reason"]) == ("starting", f"waits for hardware ({LACKS})")
        shot = control.view.snapshot()
        assert [(one.model, one.missing, one.reason) for one in shot.unmet] == [("m", 1, LACKS)]
        assert shot.replicas[0].reason == f"waits for hardware ({LACKS})"
        host.gpus.append(FakeGpu("GPU-1"))
        await world.until(lambda: control.loop.ready("m"))
        assert control.admin.status()["models"]["m"]["gpus"] == {"m-1": ["GPU-0", "GPU-1"]}
        await world.until(lambda: control.view.snapshot().unmet == ())

    async def main():
        launcher = world.Paper()
        path, run_dir = tmp_path / "fleet.yaml", tmp_path / "run"
        path.write_text(FILE)
        run_dir.mkdir()
        arguments = (path, run_dir, {}, "control-1", store, launcher)
        control = Control(*arguments, gpus=HostGpus({}, host))
        stop = asyncio.Event()
        task = asyncio.create_task(control.run(stop))
        try:
            await scene(control)
        finally:
            stop.set()
            await task
            await launcher.rest()

    asyncio.run(main())
