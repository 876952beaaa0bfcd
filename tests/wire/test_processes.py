"""The real control and gateway processes, from their first line to their end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wire_stage import connect, port_of


def test_the_control_process_serves_operators_and_ends_on_sigterm(tmp_path, listeners):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n")
    admin = listeners()
    code = (
        "from holdfast.wire.processes import run_control; from pathlib import Path\n"
        f"run_control(Path({str(path)!r}), Path({str(tmp_path)!r}), {admin[0].fileno()})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[admin[0].fileno()], stderr=subprocess.PIPE
    )
    try:
        with connect(port_of(admin)) as client:
            client.sendall(b"GET /status HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = client.makefile("rb").read()
        assert b'"endpoint":"http://127.0.0.1:1"' in answer
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert any(line["event"] == "warming" for line in lines)
    assert Path(tmp_path / "state.frames").exists()


@pytest.mark.parametrize("process", ["control", "gateway"])
def test_whose_supervisor_was_killed_before_it_began_ends_at_once(tmp_path, listeners, process):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n")
    given = listeners()[0].fileno()
    reading, notices = os.pipe()
    os.close(reading)
    place = f"Path({str(tmp_path)!r}), {given}"
    calls = {
        "control": f"run_control(Path({str(path)!r}), {place}, None, {notices})",
        "gateway": f"run_gateway(0, Path({str(tmp_path)!r}), {place}, {notices})",
    }
    code = "from pathlib import Path; from holdfast.wire.processes import *\n"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code + calls[process]],
            pass_fds=[given, notices],
            timeout=20,
            check=False,
        )
    finally:
        os.close(notices)
    assert ended.returncode == -signal.SIGTERM
