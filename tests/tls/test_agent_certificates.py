"""Agents that show a certificate: a token alone, or another host's certificate, is not enough."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.agent.report_sender import ReportSender
from holdfast.agent.settings import AgentConfig, CurrentToken
from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key
from holdfast.control.view.agent_claims import AgentGrant
from holdfast.control.view.agents import AgentInbox, AgentsConfig, RefusedError
from holdfast.core.types import ConfigError
from holdfast.doctor import check_file

PATIENCE_S = 60.0
FIRST, SECOND, THIRD = ("hf-token-of-agent-" + str(number) * 20 for number in range(3))
FILE = """\
gateway: {{listen: '127.0.0.1:0'}}
admin:
  listen: '127.0.0.1:{port}'
  tls: {{certificate: '{folder}/port.pem', key: '{folder}/port.key', client_ca: '{folder}/ca.pem'}}
models: [{{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}}]
sources:
  - type: agents
    agents:
      - {{name: gpu-1, token: '{first}', certificate: gpu-1.example.org}}
      - {{name: gpu-2, token: '{second}', certificate: gpu-2.example.org}}
      - {{name: gpu-3, token: '{third}'}}
"""


class Fleet:
    """``holdfast serve`` as a process, whose admin port asks agents for a certificate."""

    def __init__(self, folder, certified):
        self.folder = folder
        self.authority = certified("the authority of agents")
        self.authority.write(folder, "ca")
        certified("localhost").write(folder, "port")
        for name in ("gpu-1", "gpu-2"):
            certified(f"{name}.example.org", by=self.authority).write(folder, name)
        certified("gpu-1.example.org").write(folder, "stranger")  # the right name, by nobody known
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"https://localhost:{port}"
        tokens = zip(("first", "second", "third"), (FIRST, SECOND, THIRD), strict=True)
        hashes = {name: hash_key(token) for name, token in tokens}
        self.file = folder / "fleet.yaml"
        self.file.write_text(FILE.format(port=port, folder=folder, **hashes))
        self.environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
        words = [sys.executable, "-m", "holdfast", "serve", "-c", str(self.file)]
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(words, env=self.environment, stdout=said, stderr=said)

    def run(self, *words, **environment):
        """The exit status and the words of a command."""
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", *map(str, words)],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    def report(self, name, token, certificate=""):
        """How one report of an agent goes."""
        words = ["agent", "--url", self.url, "--ca", self.folder / "port.pem", "--name", name]
        if certificate:
            words += ["--certificate", self.folder / f"{certificate}.pem"]
            words += ["--key", self.folder / f"{certificate}.key"]
        return self.run(*words, "--once", HOLDFAST_AGENT_TOKEN=token)

    def await_answer(self):
        until = time.monotonic() + PATIENCE_S
        while (told := self.run("status", "--json", "-c", self.file))[0] != 0:
            assert self.process.poll() is None, (self.folder / "said").read_text()
            assert time.monotonic() < until, told
        return json.loads(told[1])

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def fleet(certified, tmp_path_factory):
    made = Fleet(tmp_path_factory.mktemp("fleet"), certified)
    try:
        made.await_answer()
        yield made
    finally:
        made.end()


def test_an_agent_with_its_token_and_its_certificate_reports(fleet):
    assert fleet.report("gpu-1", FIRST, "gpu-1")[0] == 0
    assert fleet.report("gpu-2", SECOND, "gpu-2")[0] == 0


def test_a_stolen_token_opens_nothing_without_the_certificate(fleet):
    for certificate in ("", "gpu-2"):
        status, told = fleet.report("gpu-1", FIRST, certificate)
        assert status == 1
        assert "(403)" in told
        assert "has to show a certificate for 'gpu-1.example.org'" in told


def test_a_certificate_of_another_authority_is_not_listened_to(fleet):
    status, told = fleet.report("gpu-1", FIRST, "stranger")
    assert status == 1
    assert "TLS" in told or "control" in told
    assert "has taken" not in told


def test_a_certificate_opens_nothing_without_its_token(fleet):
    status, told = fleet.report("gpu-1", "hf-a-wrong-token-altogether", "gpu-1")
    assert (status, "401" in told) == (1, True), told
    status, told = fleet.report("gpu-1", SECOND, "gpu-1")
    assert (status, "403" in told) == (1, True), told


def test_who_is_asked_for_none_needs_none(fleet):
    assert fleet.report("gpu-3", THIRD)[0] == 0
    assert fleet.await_answer()["replicas"]  # nor do operators


def test_a_renewed_certificate_and_token_are_used_without_a_restart(fleet, certified, tmp_path):
    secret = tmp_path / "token"
    secret.write_text(f"{FIRST}\n")
    wrong = certified("elsewhere.example.org", by=fleet.authority).write(tmp_path, "own")
    token = CurrentToken({"HOLDFAST_AGENT_TOKEN_FILE": str(secret)})
    ca = str(fleet.folder / "port.pem")
    sender = ReportSender(fleet.url, "gpu-1", token, ca, *map(str, wrong))
    assert sender.send(b"{}").status == 403
    wrong[0].write_text("half of a cert")  # it is being written
    assert sender.send(b"{}").status == 403
    certified("gpu-1.example.org", by=fleet.authority).write(tmp_path, "own")
    assert sender.send(b"{}").status == 400  # it is heard, and the report is none
    secret.write_text("hf-a-wrong-token-altogether\n")
    assert sender.send(b"{}").status == 401
    secret.unlink()
    assert sender.send(b"{}").status == 401
    secret.write_text(f"{FIRST}\n")
    assert sender.send(b"{}").status == 400


# --- without a port -------------------------------------------------------------------------------


def test_a_refused_certificate_is_counted_and_noted():
    grant = AgentGrant("gpu-1", hash_key(FIRST), certificate="GPU-1.example.org")
    inbox = AgentInbox(config=AgentsConfig(agents=(grant,)))
    for certified in ((), {"gpu-2.example.org"}):
        with pytest.raises(RefusedError, match="has to show a certificate") as caught:
            inbox.take("gpu-1", b"{}", grant, certified)
        assert caught.value.status == 403
    with pytest.raises(RefusedError) as caught:
        inbox.take("gpu-1", b"{}", grant, {"gpu-1.example.org"})
    assert caught.value.status == 400
    assert inbox.metrics()["agent_claims_refused_total"] == 2
    assert any("without its certificate" in note for note in inbox.readings()[0].notes)


def test_a_certificate_that_nobody_is_asked_for_is_refused(tmp_path):
    path = tmp_path / "fleet.yaml"
    text = FILE.format(
        port=8001,
        folder="/f",
        first=hash_key(FIRST),
        second=hash_key(SECOND),
        third=hash_key(THIRD),
    )
    path.write_text(text.replace(", client_ca: '/f/ca.pem'", ""))
    with pytest.raises(ConfigFileError, match=r"agents\[0\].certificate.*admin.tls.client_ca"):
        load(path, FleetFile)
    path.write_text(text.replace("gpu-2.example.org", "GPU-1.example.org"))
    with pytest.raises(ConfigFileError, match="is that of gpu-1, too"):
        load(path, FleetFile)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"certificate": "/a.pem"}, "name both, or neither"),
        ({"key": "/a.key"}, "name both, or neither"),
        ({"certificate": "/a", "key": "/b", "url": "http://127.0.0.1:1"}, "without TLS"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        AgentConfig(**{"url": "https://control:8001", "name": "gpu-1", **settings})


def test_files_that_are_no_certificate_are_refused_before_the_first_report(tmp_path):
    for content in (None, "no certificate"):
        if content:
            Path(tmp_path / "own").write_text(content)
        with pytest.raises(ConfigError, match="--certificate"):
            ReportSender("https://c:1", "a", "t", "", str(tmp_path / "own"), str(tmp_path / "own"))


def test_the_doctor_says_where_agents_have_tokens_alone(tmp_path):
    path = tmp_path / "fleet.yaml"
    text = FILE.format(
        port=8001,
        folder="/f",
        first=hash_key(FIRST),
        second=hash_key(SECOND),
        third=hash_key(THIRD),
    )
    beyond = text.replace(
        "127.0.0.1:8001'", f"0.0.0.0:8001', token: '{hash_key('hf-' + 'x' * 30)}'"
    )
    path.write_text(
        beyond.replace(
            "admin:\n  listen: '0.0.0.0:8001', token:", "admin:\n  listen: '0.0.0.0:8001'\n  token:"
        )
    )
    told = [one for one in check_file(load(path, FleetFile)) if "certificate" in one.fix]
    assert [one.where for one in told] == ["sources.agents.agents.gpu-3"]
    path.write_text(text)
    assert not [one for one in check_file(load(path, FleetFile)) if "certificate" in one.fix]
