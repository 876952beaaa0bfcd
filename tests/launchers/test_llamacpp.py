"""The embedded engine's command; with the engine itself where it and its weights are here.

The fleet tests with the real engine are under tests/e2e; these ask one replica what they rely on.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from types import SimpleNamespace

import pytest

from holdfast.launchers import llamacpp
from holdfast.launchers.process import ProcessLauncher
from holdfast.launchers.weights import fetch
from holdfast.ports import Order


@pytest.fixture(scope="session")
def weights():
    """The real ones: out of the cache, or fetched into it."""
    return fetch("smollm2-135m", lambda *_: None)


def params():
    return SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )


def test_zeros_become_settings_for_a_shared_machine():
    options = llamacpp.parse(["--model", "/w/x.gguf", "--port", "5", "--slots", "0"])
    made = llamacpp.settings(options, params())
    assert made.model.path == "/w/x.gguf"
    assert made.model_alias == {"x"}
    assert (made.hostnames, made.port) == (["127.0.0.1"], 5)
    assert (made.n_parallel, made.n_ctx) == (2, 4096)
    assert made.cpuparams.n_threads == made.cpuparams_batch.n_threads == 1
    assert made.cache_ram_mib == 0
    assert made.endpoint_metrics
    assert made.endpoint_slots
    assert not made.embedding


def test_every_setting_can_be_given():
    line = "--model m --alias n --host ::1 --port 1 --slots 4 --threads 3 --context 100 --batch 9"
    made = llamacpp.settings(llamacpp.parse([*line.split(), "--embeddings"]), params())
    assert made.model_alias == {"n"}
    assert made.hostnames == ["::1"]
    assert (made.n_parallel, made.n_ctx) == (4, 400)
    assert made.cpuparams.n_threads == made.cpuparams_batch.n_threads == 3
    assert made.n_batch == made.n_ubatch == 9
    assert made.embedding


def run(*arguments):
    command = [sys.executable, "-m", "holdfast.launchers.llamacpp", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_weights_that_are_not_there_end_it_with_a_line_that_says_so(tmp_path):
    ended = run("--model", str(tmp_path / "none.gguf"), "--port", "1")
    assert ended.returncode == 1
    assert "failed to load model: there is no file" in ended.stderr


def test_weights_that_are_none_end_it_too(tmp_path):
    (tmp_path / "bad.gguf").write_text("not a model")
    ended = run("--model", str(tmp_path / "bad.gguf"), "--port", "0")
    assert ended.returncode == 1
    assert "failed to load model: the engine did not start" in ended.stderr


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def opened(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def streamed(base, tokens=12):
    asked = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events = opened(f"{base}/v1/chat/completions", asked).split("\n\n")
    assert events[-2] == "data: [DONE]"
    frames = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(
        choice["delta"].get("content") or "" for frame in frames for choice in frame["choices"]
    )
    assert frames[-1]["usage"]["completion_tokens"] > 0
    assert {frame["model"] for frame in frames} == {"smollm2"}
    return text


def test_one_real_replica_from_its_start_to_its_end(tmp_path, notes, waits, weights):
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    command = ("{python}", "-m", "holdfast.launchers.llamacpp", "--model", str(weights))
    order = Order("a", (*command, "--alias", "smollm2", "--port", str(port)), port=port)

    async def main():
        launcher = ProcessLauncher(tmp_path)
        await launcher.adopt(notes)
        try:
            await launcher.start(order)
            await waits(lambda: any("listening" in line for line in notes.of("line")))
            told = "\n".join(notes.of("line"))
            places = [told.index(phase) for phase in ("loading model", "model loaded", "listening")]
            assert places == sorted(places)
            assert json.loads(await asyncio.to_thread(opened, f"{base}/health"))["status"] == "ok"
            first = await asyncio.to_thread(streamed, base)
            again = [asyncio.to_thread(streamed, base) for _ in range(3)]  # cached, and two at once
            assert {first} == set(await asyncio.gather(*again))
            assert first.strip()
            metrics = await asyncio.to_thread(opened, f"{base}/metrics")
            assert "llamacpp:requests_processing" in metrics
            slots = json.loads(await asyncio.to_thread(opened, f"{base}/slots"))
            assert [slot["n_ctx"] for slot in slots] == [2048, 2048]
            ended = await launcher.stop("a", 20.0)
            assert (ended.code, ended.signal) == (0, None)
            assert ended.reason == "stopped as asked; exited with code 0"
        finally:
            await launcher.close(leave_running=False)

    asyncio.run(main())


def test_a_port_that_is_taken_ends_it(tmp_path, weights):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = run("--model", str(weights), "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert "couldn't bind 127.0.0.1" in ended.stderr
    assert "Address already in use" in ended.stderr
    assert "loading model" not in ended.stderr  # nobody waits a minute to hear that


def test_a_signal_that_comes_while_it_loads_is_kept_for_later(weights):
    command = [sys.executable, "-m", "holdfast.launchers.llamacpp", "--model", str(weights)]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as engine:
        for line in engine.stderr:
            if "loading model" in line:
                engine.send_signal(signal.SIGTERM)
                break
        told = engine.stderr.read()
        assert engine.wait(60) == 0
    assert "asked to end" in told
