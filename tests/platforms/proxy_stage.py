"""A real Envoy in front of stand-in engines, all of them processes on loopback."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml
from click.testing import CliRunner

from holdfast.cli import main

ENVOY = Path(sys.executable).with_name("envoy")
PATIENCE_S = 60.0
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def wait_until(condition, what):
    """Return what ``condition`` returns once it is true; fails after a generous time."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(port, method="GET", path="/", body=None, headers=None, timeout=60.0):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json"} if body is not None else {}
        connection.request(method, path, data, sent | (headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def answers(port, path):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return fetch(port, path=path)[0] == 200
    return False


def ended(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


class Engine:
    """One stand-in engine, as a process."""

    def __init__(self, model="m"):
        self.port, self.side = free_port(), free_port()
        words = ["stand-in", "--port", self.port, "--side-port", self.side, "--model", model]
        words += ["--ttft-ms", 1, "--tpot-ms", 1, "--tokens", 4]
        command = [sys.executable, "-m", "holdfast", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(lambda: answers(self.side, "/stats"), "the stand-in is up")

    def ail(self, kind, **how):
        assert fetch(self.side, "POST", "/fault", {"kind": kind, **how})[0] == 200

    def heal(self):
        assert fetch(self.side, "DELETE", "/fault")[0] == 200

    def asked(self):
        return json.loads(fetch(self.side, path="/stats")[1])["requests"]

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def end(self):
        if self.process.poll() is None:
            ended(self.process)


def rendered(path, *arguments):
    result = CliRunner().invoke(main, ["render", "envoy", "-c", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def validate(text, folder, environment=None):
    """Let a real Envoy judge a configuration; returns what it complained of."""
    place = folder / "envoy.yaml"
    place.write_text(text)
    command = [ENVOY, "--mode", "validate", "-c", place, "-l", "warning"]
    judged = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | (environment or {}), check=False
    )
    lines = [line for line in judged.stderr.splitlines() if re.search(r"\[(warning|error)", line)]
    return judged.returncode, "\n".join(lines)


class Envoy:
    """A real Envoy with the rendered configuration of a fleet file."""

    def __init__(self, folder, fleet, *arguments, environment=None):
        self.port, self.admin = free_port(), free_port()
        file, place = folder / "fleet.yaml", folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(fleet))
        ports = ("--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}")
        place.write_text(rendered(file, *ports, *arguments))
        command = [ENVOY, "-c", place, "--disable-hot-restart", "--concurrency", "1", "-l", "error"]
        self.process = subprocess.Popen(command, env=os.environ | (environment or {}))
        wait_until(lambda: answers(self.admin, "/ready"), "Envoy is ready")

    def ask(self, model="m", **more):
        body = ASKED | {"model": model} | more
        return fetch(self.port, "POST", "/v1/chat/completions", body)

    def stat(self, name, model="m"):
        _, page = fetch(self.admin, path=f"/stats?filter=cluster.{model}.{name}$")
        found = re.search(rb": (\d+)", page)
        return int(found[1]) if found else 0

    def ejected(self):
        return self.stat("outlier_detection.ejections_active")

    def end(self):
        ended(self.process)


@contextlib.contextmanager
def stage(folder, *arguments, engines=3, environment=None, model=None, **fleet):
    """Three stand-ins, and an Envoy before them that follows this fleet file."""
    with contextlib.ExitStack() as stack:
        found = [Engine() for _ in range(engines)]
        for engine in found:
            stack.callback(engine.end)
        urls = [f"http://127.0.0.1:{engine.port}" for engine in found]
        section = {"name": "m", "engine": "vllm", "endpoints": urls} | (model or {})
        whole = {"models": [section], **fleet}
        envoy = Envoy(folder, whole, *arguments, environment=environment)
        stack.callback(envoy.end)
        yield envoy, found
