"""The agent beside a replica: control's verdict for the kubelet, and what it says without one."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from holdfast.agent.readiness import ProbeServer, ReadinessSettings, VerdictAgent
from holdfast.cli import main
from holdfast.core.types import ConfigError


class _Control(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        status, body = self.server.first.pop(0) if self.server.first else self.server.answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def verdict(replica="llama-0", **told):
    return json.dumps({"replica": replica, "known": True, **told}).encode()


@pytest.fixture
def control():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Control)
    server.asked, server.answer = [], (200, verdict(ready=True, why="ready"))
    server.first = []  # answers before that one
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def settings(url, **more):
    return ReadinessSettings(
        url=url, model="llama", replica="llama-0", listen="127.0.0.1:0", **more
    )


@contextlib.contextmanager
def probed(agent):
    server = ProbeServer(agent, "127.0.0.1:0")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def fetch(port, path="/readyz", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().strip()
    finally:
        connection.close()


def test_a_standby_at_the_same_address_is_asked_past_and_never_for_long(control):
    standby = (503, json.dumps({"standby": True, "leader": "holdfast-1"}).encode())
    agent = VerdictAgent(settings(control.url))
    control.first = [standby, standby]
    control.answer = (503, verdict(ready=False, why="quarantined"))
    agent.ask()
    assert (agent.problem, agent.answer().allowed, len(control.asked)) == ("", False, 3)
    control.answer = standby
    agent.ask()
    assert agent.problem == "a standby answers there; holdfast-1 leads"
    assert len(control.asked) == 3 + 8
    assert not agent.answer()  # the verdict of before holds for its time


def test_the_probe_is_told_what_control_says(control):
    agent = VerdictAgent(settings(control.url))
    with probed(agent) as port:
        agent.ask()
        assert fetch(port) == (200, "ready")
        control.answer = (503, verdict(ready=False, why="quarantined: canaries fail"))
        agent.ask()
        assert fetch(port) == (503, "quarantined: canaries fail")
        assert fetch(port, "/livez") == (200, "alive")
        assert fetch(port, "/other")[0] == 404
    assert control.asked[0] == "/readyz/llama?replica=llama-0"


@pytest.mark.parametrize(
    "answer",
    [
        (503, b"no healthy upstream"),  # a proxy's own
        (200, b"{}"),
        (503, verdict("another", ready=False)),
        (503, b"ready\n"),  # a control that does not know the question
    ],
)
def test_an_answer_that_is_not_controls_is_no_verdict(control, answer):
    agent = VerdictAgent(settings(control.url))
    control.answer = answer
    agent.ask()
    assert agent.problem
    assert agent.answer()


def test_a_control_that_is_away_takes_nobody_out(control):
    control.answer = (503, verdict(ready=False, why="quarantined"))
    agent = VerdictAgent(settings(control.url, period_s=0.5, fresh_s=1.0))
    agent.ask()
    assert not agent.answer()
    control.shutdown()
    control.server_close()
    agent.ask()
    assert "refused" in agent.problem
    until = time.monotonic() + 30
    while not agent.answer():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_replica_that_control_does_not_know_yet_is_not_ready(control):
    control.answer = (404, json.dumps({"replica": "llama-0", "known": False}).encode())
    agent = VerdictAgent(settings(control.url))
    agent.ask()
    assert not agent.answer()


def test_callers_that_stay_silent_hold_up_nobody_else(control):
    agent = VerdictAgent(settings(control.url))
    with probed(agent) as port, contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert fetch(port)[0] == 200


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"url": "control:8001"}, "--url"),
        ({"url": "http://me:x@control"}, "--url"),
        ({"listen": "8099"}, "--listen"),
        ({"listen": "h:99999"}, "--listen"),
        ({"replica": ""}, "--replica"),
        ({"period_s": 0.1}, "--period"),
        ({"fresh_s": 6.0}, "--fresh"),
    ],
)
def test_settings_that_make_no_sense_are_refused(said, field):
    whole = {"url": "http://c:8001", "model": "m", "replica": "r"} | said
    with pytest.raises(ConfigError, match=field):
        ReadinessSettings(**whole)


def test_the_command_refuses_before_it_begins():
    arguments = ["readiness", "--url", "c", "--model", "m", "--replica", "r"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--url" in result.output


def test_the_process_answers_and_ends_in_order(control):
    control.answer = (503, verdict(ready=False, why="warming"))
    command = [sys.executable, "-m", "holdfast", "readiness", "--url", control.url]
    command += ["--model", "llama", "--replica", "llama-0", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        first = process.stderr.readline()
        port = int(first.partition("/readyz")[0].rpartition(":")[2])
        assert "not ready: warming" in process.stderr.readline()
        assert fetch(port) == (503, "warming")
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
        process.stderr.close()
