"""Launched replicas on four GPUs, with real processes: the driver's library alone is a fake.

``pynvml`` of the test stands before the real one on the path of ``holdfast serve``. Control is
killed in between: the next one knows who holds which GPUs and who waits.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import orjson
import pytest

PATIENCE_S = 90.0  # of a busy machine: each replica is a new interpreter
FAKE = """
from holdfast.testing.gpu_host import FakeGpuHost

_host = FakeGpuHost(4, ((0, 1), (2, 3)))
globals().update({name: getattr(_host, name) for name in dir(_host) if name[:4].lower() == "nvml"})
"""
STAND_IN = [
    *(sys.executable, "-m", "holdfast", "stand-in", "--host", "{host}", "--port", "{port}"),
    *("--model", "m"),
]
FULL = "2 GPUs wanted, 0 of 4 free: m-1 holds 0, 1; m-2 holds 2, 3"


def fleet(port, admin_port):
    launch = {"replicas": 3, "gpus": 2, "command": STAND_IN}
    return {
        "gateway": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": f"127.0.0.1:{admin_port}"},
        "models": [{"name": "m", "engine": "vllm", "launch": launch}],
        "fleet": {"health": {"canary_warming_s": 0.2}},
    }


@pytest.fixture
def stage(ops, tmp_path):
    port, admin_port = ops.free_ports(2, Random())
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pynvml.py").write_text(FAKE)
    config = tmp_path / "fleet.yaml"
    config.write_bytes(orjson.dumps(fleet(port, admin_port)))  # JSON is YAML
    command = [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]
    command += ["--state-dir", str(tmp_path / "state")]
    path = os.pathsep.join([str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")])
    around = {**os.environ, "PYTHONPATH": path}
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=around)
    try:
        ops.wait_for(f"http://127.0.0.1:{port}/readyz/m", process)
        yield lambda: ops.call(f"http://127.0.0.1:{admin_port}/status")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        family = ops.children(process.pid)
        ops.end([process])
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def until(look, status):
    """The first status that fits; control may be away meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = None
        with contextlib.suppress(OSError):
            found = status()
            if look(found):
                return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def ready(found):
    return {row["id"]: row["pid"] for row in found["replicas"] if row["state"] == "ready"}


def visible(pid):
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(word for word in words if word.startswith(b"CUDA_VISIBLE_DEVICES=")).decode()


def test_gpus_are_given_kept_over_a_kill_of_control_and_reused(stage):
    first = until(lambda s: len(ready(s)) == 2 and s["models"]["m"]["unplaced"], stage)
    pids = ready(first)
    assert set(pids) == {"m-1", "m-2"}
    assert first["models"]["m"]["gpus"] == {"m-1": ["GPU-0", "GPU-1"], "m-2": ["GPU-2", "GPU-3"]}
    assert first["models"]["m"]["unplaced"] == {"m-3": FULL}
    waits = next(row for row in first["replicas"] if row["id"] == "m-3")
    assert (waits["state"], waits["phase"]) == ("starting", f"waits for hardware ({FULL})")
    assert visible(pids["m-1"]) == "CUDA_VISIBLE_DEVICES=0,1"
    assert visible(pids["m-2"]) == "CUDA_VISIBLE_DEVICES=2,3"

    control = first["control"]
    os.kill(int(control.rpartition("-")[2]), signal.SIGKILL)
    second = until(
        lambda s: s["control"] != control and len(ready(s)) == 2 and s["models"]["m"]["unplaced"],
        stage,
    )
    assert ready(second) == pids  # the same processes, adopted
    assert second["models"]["m"]["gpus"] == first["models"]["m"]["gpus"]
    assert second["models"]["m"]["unplaced"] == {"m-3": FULL}

    os.kill(pids["m-1"], signal.SIGKILL)
    third = until(lambda s: "m-3" in ready(s), stage)
    assert third["models"]["m"]["gpus"]["m-3"] == ["GPU-0", "GPU-1"]
    assert visible(ready(third)["m-3"]) == "CUDA_VISIBLE_DEVICES=0,1"
