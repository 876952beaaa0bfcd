"""``admin.tls``: commands on the same machine work as without it, and strangers are refused."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from holdfast.cli import main

PATIENCE_S = 60.0
FILE = """\
gateway: {{listen: '127.0.0.1:0'}}
admin: {{listen: '127.0.0.1:{port}', tls: {{certificate: '{pem}', key: '{key}'}}}}
models: [{{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}}]
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*words):
    return CliRunner().invoke(main, [*map(str, words)])


class Fleet:
    """``holdfast serve`` or ``up``, as a process; commands that ask it run here."""

    def __init__(self, folder, own, command):
        self.folder = folder
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        own.write(folder, "own")
        self.file = self.written("fleet.yaml", "own")
        self.environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
        words = [sys.executable, "-m", "holdfast", command, "-c", str(self.file)]
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                words, cwd=folder, env=self.environment, stdout=said, stderr=said
            )

    def written(self, name, certificate):
        """A fleet file. Paths in it are relative, as people write them."""
        path = self.folder / name
        path.write_text(FILE.format(port=self.port, pem=f"{certificate}.pem", key="own.key"))
        return path

    def await_status(self, *words):
        return json.loads(self.await_output("", "status", "--json", *words))

    def await_output(self, text, *words):
        """What a command prints, once it ends well and has this in it."""
        until = time.monotonic() + PATIENCE_S
        while True:
            result = run(*words)
            if result.exit_code == 0 and text in result.output:
                return result.output
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until, (result.output, self.said)
            time.sleep(0.1)

    def await_said(self, text):
        """Until this stands in the process's own output."""
        until = time.monotonic() + PATIENCE_S
        while text not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until, self.said
            time.sleep(0.1)

    @property
    def said(self):
        return (self.folder / "said").read_text()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module", params=["serve", "up"])
def fleet(request, own, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        made = Fleet(folder, own, request.param)
        patch.setenv("XDG_STATE_HOME", made.environment["XDG_STATE_HOME"])
        patch.delenv("HOLDFAST_ADMIN_TOKEN", raising=False)
        patch.chdir(folder)
        try:
            made.command = request.param
            made.await_status("-c", made.file)
            yield made
        finally:
            made.end()


def test_commands_that_know_the_file_work(fleet):
    status = fleet.await_status("-c", fleet.file)
    assert [row["id"] for row in status["replicas"]] == ["m-1"]
    fleet.await_output("0/1 ready", "top", "--once", "-c", fleet.file)  # the joined view follows
    for words in (("incidents", "--json"), ("doctor", "--running", "--json"), ("cost", "--json")):
        result = run(*words, "-c", fleet.file)
        assert json.loads(result.output) is not None, result.output
    assert run("status", "-c", fleet.file, "--admin", fleet.url).exit_code == 0
    result = run("logs", "m-1", "-f", "-c", fleet.file)
    assert "did not start this replica" in result.output


def test_a_fleet_that_runs_tells_where_its_certificate_is(fleet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from where the file's relative paths lead nowhere
    (state_dir,) = (fleet.folder / "state" / "holdfast").iterdir()
    assert fleet.await_status("--state-dir", state_dir)["replicas"]


def test_a_fleet_in_the_foreground_asks_its_own_port(fleet):
    if fleet.command == "up":  # its screen shows what the port told
        fleet.await_said("m-1 (zone-a): warming")


def test_who_knows_nothing_of_it_is_told_what_to_do(fleet):
    for words in (("status",), ("top", "--once"), ("logs", "m-1", "-f")):
        result = run(*words, "--admin", fleet.url)
        assert result.exit_code == 1
        told = f"{fleet.url}: broken: its certificate is not trusted: self-signed certificate; name"
        assert told in result.output
        assert "-c, or its authority with --ca" in result.output


def test_another_certificate_is_refused_with_the_fix(fleet, stranger):
    other, _ = stranger.write(fleet.folder, "other")
    file = fleet.written("other.yaml", "other")
    for words in (("status", "--json"), ("top", "--once"), ("logs", "m-1", "-f")):
        for how in (("-c", file), ("--admin", fleet.url, "--ca", other)):
            result = run(*words, *how)
            assert (result.exit_code, "not trusted" in result.output) == (1, True), result.output
            assert "with --ca" in result.output


def test_a_named_authority_must_have_signed_for_the_name(fleet):
    result = run("status", "--admin", fleet.url, "--ca", fleet.folder / "own.pem")
    assert (result.exit_code, "mismatch" in result.output) == (1, True)
    result = run("status", "--admin", fleet.url, "--ca", fleet.folder / "none.pem")
    assert (result.exit_code, "name a PEM file" in result.output) == (2, True), result.output


def test_who_forgets_the_s_is_reminded(fleet):
    result = run("status", "--admin", f"http://127.0.0.1:{fleet.port}")
    assert result.exit_code == 1
    assert f"use {fleet.url} with -c or --ca" in result.output
