"""``holdfast top --once`` and ``--json``: the same picture without a screen."""

import asyncio
import json
import sys
import threading
from types import SimpleNamespace

import fleets
import orjson
import pytest
from admin_port import AdminPort
from click.testing import CliRunner

from holdfast.cli.top import top
from holdfast.config.fleet_file import FleetFile

FLEET = """
models:
  - name: m
    engine: vllm
    endpoints: ["http://127.0.0.1:9501"]
admin:
  listen: 127.0.0.1:{port}
"""


@pytest.fixture
def admin():
    """An admin port in a thread of its own."""
    port = AdminPort(fleets.broken())
    ready, leave = threading.Event(), asyncio.Event()
    loops = []

    async def main():
        await port.start()
        loops.append(asyncio.get_running_loop())
        ready.set()
        await leave.wait()
        await port.stop()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(10)
    yield port
    loops[0].call_soon_threadsafe(leave.set)
    thread.join()


@pytest.fixture
def nobody():
    """The URL of a port at which nobody listens."""

    async def main():
        port = AdminPort(None)
        await port.start()
        await port.stop()
        return port

    return asyncio.run(main())


def run(*words, **settings):
    return CliRunner().invoke(top, words, **settings)


def test_once_prints_the_overview_as_plain_text(admin):
    result = run("--once", "--admin", admin.url)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    for words in (
        "marigold-gpu-large g5.4xlarge",
        "48G/186G",
        "! aws sqs: throttled: Rate exceeded",
        "CANNOT BE MET",
        "no container instance met",
        "parler-tts-requests",
        "!7  undersized of parler-tts-0",
        "set 4 GB",
        "queue old-requests has no model",
        "31 calls to platforms, 4.38 s",
    ):
        assert words in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_once_takes_the_width_it_is_told(admin):
    wide = run("--once", "--admin", admin.url, "--width", "160").output
    assert "what is wrong" in wide
    assert max(len(line) for line in wide.splitlines()) <= 160
    assert max(len(line) for line in wide.splitlines()) > 100
    assert run("--once", "--width", "10").exit_code == 2


def test_an_output_of_ascii_gets_signs_for_what_it_lacks(admin):
    plain = run("--once", "--admin", admin.url)
    ascii_only = CliRunner(charset="ascii").invoke(top, ["--once", "--admin", admin.url])
    assert ascii_only.exit_code == 0, ascii_only.output
    assert not plain.output.isascii()
    assert ascii_only.output == plain.output.encode("ascii", "replace").decode()
    in_json = CliRunner(charset="ascii").invoke(top, ["--json", "--admin", admin.url])
    assert json.loads(in_json.output) == json.loads(orjson.dumps(fleets.broken()))


def test_json_is_the_snapshot_itself_with_its_effort(admin):
    result = run("--json", "--admin", admin.url)
    assert json.loads(result.output) == json.loads(orjson.dumps(fleets.broken()))
    told = json.loads(run("--once", "--json", "--admin", admin.url).output)
    assert (told["calls"], told["took_s"]) == (31, 4.38)


def test_nobody_there_is_an_error_with_what_to_do(nobody):
    result = run("--once", "--admin", nobody.url)
    assert result.exit_code == 1
    assert "refused: nobody listens" in result.output
    assert "is 'holdfast up' or 'holdfast serve' running?" in result.output
    assert "holdfast top --once -c FILE" in result.output


def test_a_missing_and_a_wrong_token_name_the_variable(admin, monkeypatch):
    admin.token = "secret"
    monkeypatch.delenv("HOLDFAST_ADMIN_TOKEN", raising=False)
    result = run("--once", "--admin", admin.url)
    assert result.exit_code == 1
    assert "$HOLDFAST_ADMIN_TOKEN is not set" in result.output
    monkeypatch.setenv("MINE", "bad")
    result = run("--once", "--admin", admin.url, "--token-env", "MINE")
    assert "$MINE is wrong" in result.output
    monkeypatch.setenv("MINE", "secret")
    assert run("--once", "--admin", admin.url, "--token-env", "MINE").exit_code == 0


def test_an_address_that_is_none_is_refused():
    result = run("--once", "--admin", "ftp://x")
    assert result.exit_code == 2
    assert "not a URL" in result.output


def test_without_a_control_the_sources_of_the_file_are_read(nobody, tmp_path, monkeypatch):
    read = []

    async def read_once(file):
        read.append(file)
        return fleets.busy()

    monkeypatch.setitem(
        sys.modules, "holdfast.wire.view_sources", SimpleNamespace(read_once=read_once)
    )
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(port=nobody.port))
    state = ("--state-dir", str(tmp_path / "state"))
    result = run("--once", "--json", "-c", str(path), *state)
    assert json.loads(result.output)["version"] == 42
    assert isinstance(read[0], FleetFile)
    assert "llm-8b-requests" in run("--once", "-c", str(path), *state).output
    assert run("-c", str(path), *state).exit_code == 1  # a screen needs a control


def test_a_file_without_sources_gives_an_empty_picture(nobody, tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(port=nobody.port))
    result = run("--once", "-c", str(path), "--state-dir", str(tmp_path / "state"))
    assert result.exit_code == 0, result.output
    assert "0 calls to platforms" in result.output


def test_a_control_that_runs_is_asked_though_a_file_is_named(admin, tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(port=admin.port))
    result = run("--json", "-c", str(path), "--state-dir", str(tmp_path / "state"))
    assert json.loads(result.output)["version"] == 97


def test_a_pipe_is_no_screen(admin):
    result = run("--admin", admin.url)
    assert result.exit_code == 2
    assert "use --once or --json" in result.output


@pytest.mark.parametrize(
    ("snapshot", "told"),
    [({"replicas": 3}, "no snapshot"), (None, "no snapshot")],
)
def test_what_is_no_snapshot_is_said_so(admin, snapshot, told):
    admin.snapshot = snapshot
    result = run("--once", "--admin", admin.url)
    assert result.exit_code == 1
    assert told in result.output
    assert "same version" in result.output
