import os
import re
import shlex
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.agent.settings import AgentConfig, LogRule, ReplicaRule
from holdfast.cli import agent as module
from holdfast.cli import main
from holdfast.cli.agent import agent

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "examples" / "agent" / "holdfast-agent.service"
URL = "https://control.example.org:8001"


@pytest.fixture
def became(monkeypatch):
    """What the process would have been replaced by."""
    calls = []
    monkeypatch.setattr(module, "_become", calls.append)
    return calls


def run(*words, token="secret"):
    environment = {"HOLDFAST_AGENT_TOKEN": token, "HOLDFAST_AGENT_TOKEN_FILE": ""}
    return CliRunner().invoke(main, ["agent", *words], env=environment, prog_name="holdfast")


def test_options_become_the_settings_of_the_agents_own_process(became):
    result = run(
        *("--url", URL, "--name", "gpu-1", "--group", "g", "--zone", "z", "--ca", "/ca.pem"),
        *("--replica", "a=m:port=8000", "--engine", "vllm", "--log", "a=/var/log/a.log"),
        *("--mount", "w=/mnt/w", "--period", "2", "--once"),
    )
    assert result.exit_code == 0, result.output
    ((once, settings),) = became
    config = msgspec.json.decode(settings, type=AgentConfig)
    assert once == "once"
    assert (config.url, config.name, config.ca) == (URL, "gpu-1", "/ca.pem")
    assert config.replicas == (ReplicaRule("a", "m", "port", "8000", "vllm"),)
    assert config.logs == (LogRule("/var/log/a.log", "a"),)
    local = config.local
    assert (local.host, local.group, local.zone, local.mounts, local.period_s) == (
        "gpu-1",
        "g",
        "z",
        ("w=/mnt/w",),
        2.0,
    )
    assert "secret" not in settings


def test_the_host_has_its_own_name_unless_told_otherwise(became):
    assert run("--url", URL).exit_code == 0
    config = msgspec.json.decode(became[0][-1], type=AgentConfig)
    assert config.name == config.local.host == os.uname().nodename[:63]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--url", "http://control:8001"), "plain http"),
        (("--url", URL, "--replica", "a"), "--replica"),
        (("--url", URL, "--engine", "abacus"), "engine"),
        (("--url", URL, "--log", "x"), "--log"),
        (("--url", URL, "--mount", "x"), "mounts"),
        (("--url", URL, "--period", "0"), "period"),
        (("--url", URL, "--name", "a b"), "--name"),
    ],
)
def test_a_mistake_ends_with_a_sentence_and_status_2(became, words, told):
    result = run(*words)
    assert result.exit_code == 2
    assert told in result.output
    assert not became


def test_without_a_token_nothing_begins(became):
    result = run("--url", URL, token="")
    assert (result.exit_code, became) == (2, [])
    assert "HOLDFAST_AGENT_TOKEN" in result.output


def test_there_is_no_option_for_the_token():
    assert not any("token" in option for param in agent.params for option in param.opts)


def test_the_process_is_replaced_by_the_agents_own(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execv", lambda *words: calls.append(words))
    module._become(["once", "{}"])
    assert calls == [(sys.executable, [sys.executable, "-m", "holdfast.agent", "once", "{}"])]


def test_the_sample_unit_starts_what_can_be_started(became):
    text = UNIT.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, command, *words = shlex.split(line)
    assert (Path(program).name, command) == ("holdfast", "agent")
    assert run(*words).exit_code == 0
    sections = re.findall(r"^\[(\w+)\]$", text, re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
