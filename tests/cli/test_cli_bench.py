"""``holdfast bench`` from the command line, against a stand-in with a known law."""

import asyncio
import json
import os
import threading
from dataclasses import replace

import pytest
import uvloop
from click.testing import CliRunner

from holdfast.cli import admin_port, main
from holdfast.loadtest import records
from holdfast.testing.standin import Options, StandIn
from holdfast.wire import state_dir

SHORT = ("--duration", "0.6", "--warmup", "0.1", "--late-max", "10000", "--prompt", "20")
LOAD = (*SHORT, "--output", "8", "--cv", "0", "--rate", "40")


@pytest.fixture(scope="module")
def engine():
    """A stand-in in a thread of its own: the command runs its own event loop."""
    ready, found = threading.Event(), {}

    async def serve():
        found["over"], found["loop"] = asyncio.Event(), asyncio.get_running_loop()
        made = await StandIn(Options(ttft_ms=20, tpot_ms=2, tokens=8)).start()
        found["url"] = made.url
        ready.set()
        await found["over"].wait()
        await made.stop()

    thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield found["url"]
    found["loop"].call_soon_threadsafe(found["over"].set)
    thread.join(60)


@pytest.fixture
def run(monkeypatch, tmp_path):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "HOLDFAST_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def invoke(*arguments):
        return CliRunner().invoke(main, ("bench", *arguments), prog_name="holdfast")

    return invoke


def test_a_url_is_measured_reported_and_kept(run, engine, tmp_path):
    result = run(engine, *LOAD, "--slo", "ttft=5", "-o", "out/mine")
    assert result.exit_code == 0, result.output
    assert "first token, ms" in result.stdout
    assert "GPU use is unknown: no admin port was asked." in result.stdout
    file = records.load(tmp_path / "out" / "mine.json")
    assert file.slo == {"ttft": 5.0}
    assert {record.output_tokens for record in file.measured()} == {8}
    text = (tmp_path / "out" / "mine.html").read_text()
    assert text.count("<svg") == 4
    assert "Benchmark of m" in text
    again = run("report", "out/mine.json", "--json", "--slo", "ttft=0.001")
    told = json.loads(again.stdout)
    assert told["loads"][0]["good_share"]["value"] == 0.0
    both = run("compare", "out/mine.json", "out/mine.json", "--report", "out/both.html")
    assert both.exit_code == 0
    assert "Same within noise" in both.stdout
    assert (tmp_path / "out" / "both.html").read_text().count("<svg") == 2


def test_a_model_is_measured_at_the_serve_that_runs_beside_it(run, engine, tmp_path):
    """``serve`` has a state directory of its own file; commands ask the usual admin port."""
    folder = state_dir.default_state_dir(tmp_path / "fleet.yaml", os.environ)
    told = state_dir.RunningFleet(os.getpid(), admin_port.DEFAULT_ADMIN, engine, "fleet.yaml")
    other = state_dir.default_state_dir(tmp_path / "other.yaml", os.environ)
    with state_dir.held(folder), state_dir.held(other):
        elsewhere = replace(told, admin="http://127.0.0.1:3", data="http://127.0.0.1:4")
        state_dir.write_running(other, elsewhere)
        assert "no fleet runs here" in run("m", *LOAD, "--no-files").output
        state_dir.write_running(folder, told)
        result = run("m", *LOAD, "--no-files")
        assert result.exit_code == 0, result.output
        assert "first token, ms" in result.stdout
        named = run("m", "--admin", "http://127.0.0.1:3", *LOAD, "--no-files")
        assert "http://127.0.0.1:4: refused" in named.output


def test_options_may_stand_before_the_target_and_json_is_one_object(run, engine, tmp_path):
    result = run("--users", "3", *LOAD[:-2], engine, "--json", "--no-files")
    assert result.exit_code == 0, result.output
    (load,) = json.loads(result.stdout)["loads"]
    assert (load["mode"], load["users"]) == ("closed", 3)
    assert load["ttft_s"]["p50"]["value"] >= 0.019
    assert not [path for path in tmp_path.iterdir() if path.suffix]


def test_a_sweep_says_where_the_knee_is(run, engine):
    result = run(engine, *LOAD[:-2], "--sweep", "users=1,2", "--no-files")
    assert result.exit_code == 0, result.output
    assert "The knee lies" in result.stdout
    assert "1 user: " in result.stderr  # progress, a line for each load


def test_a_client_that_was_the_bottleneck_reports_nothing(run, engine):
    result = run(engine, *LOAD, "--streams-max", "1", "--no-files")
    assert result.exit_code == 1
    assert "Nothing is reported: " in result.stdout
    assert "were not sent" in result.stdout.replace("\n", " ")
    assert "first token" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("http://127.0.0.1:9",), "does a gateway or an engine listen there?"),
        (("ftp://x",), "does not begin with http://"),
        (("nobody",), "no fleet runs here that could have a model 'nobody'"),
        (("http://127.0.0.1:9", "--users", "2", "--rate", "3"), "closed or open; choose one"),
        (("http://127.0.0.1:9", "--sweep", "rate=9"), "does a gateway"),
        (("http://127.0.0.1:9", "--sweep", "rate=9..1"), "write --sweep"),
        (("http://127.0.0.1:9", "--slo", "fast=1"), "write --slo"),
        (("http://127.0.0.1:9", "--users", "9000"), "asks for 9000 streams; use at most 4,000"),
        (("http://127.0.0.1:9", "--scale", "1,2"), "name the fleet's admin port"),
        (("http://127.0.0.1:9", "--scale", "a"), "write numbers"),
        (("http://127.0.0.1:9", "--key-file", "none"), "cannot be read"),
        (("compare", "none.json", "none.json"), "cannot be read"),
        (("report", "none.json"), "cannot be read"),
    ],
)
def test_bad_input_gets_a_plain_answer(run, arguments, problem):
    result = run(*arguments)
    assert result.exit_code in {1, 2}
    assert problem in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_a_trace_with_negative_lengths_is_refused_before_anything_is_sent(run, engine, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": -1, "output_length": 5}\n')
    result = run(engine, "--trace", str(trace))
    assert result.exit_code == 2
    assert "line 1 of" in result.output
    assert "-1 tokens" in result.output


def test_a_key_reaches_the_server_and_no_output(run, engine, tmp_path):
    (tmp_path / "key").write_text("hf-secret-7\n")
    result = run(engine, *LOAD, "--key-file", "key", "-o", "x")
    assert result.exit_code == 0, result.output
    kept = (tmp_path / "x.json").read_text() + (tmp_path / "x.html").read_text()
    assert "hf-secret-7" not in result.output + kept
