"""The replicas of ``bench/gateway.py`` pass canaries: else nobody is admitted, nothing measured."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.control.fetch import listens
from holdfast.control.fleet.canaries import Canaries
from holdfast.core.health.answers.answer_book import AnswerBook

SCRIPT = Path(__file__).parents[2] / "bench" / "gateway_replica.py"


@pytest.fixture(scope="module")
def replica():
    """Its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, str(SCRIPT), str(port)]) as process:
        try:
            until = time.monotonic() + 30
            while not asyncio.run(listens(url, 1.0)):
                assert process.poll() is None
                assert time.monotonic() < until
            yield url
        finally:
            process.terminate()


def asked(url, prompt, *, stream):
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": stream}
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["content-type"], answer.read().decode()


def test_a_canary_takes_what_it_says_for_an_answer(replica):
    model = {"name": "m", "engine": "vllm", "endpoints": [replica]}
    (deployed,) = FleetFile(models=[model]).replicas()
    told = asyncio.run(Canaries({}, AnswerBook(), lambda: None).ask(deployed, 10.0))
    assert (told.verdict, told.flaw, told.status) == ("pass", None, 200), told.detail


def test_who_wants_no_stream_gets_none(replica):
    kind, text = asked(replica, "Are you there?", stream=False)
    assert kind == "application/json"
    said = json.loads(text)["choices"][0]
    assert "keeps answering" in said["message"]["content"]
    kind, text = asked(replica, "Are you there?", stream=True)
    assert kind.startswith("text/event-stream")
    assert text.rstrip().endswith("data: [DONE]")


def test_an_order_of_the_load_is_answered_with_its_number(replica):
    _, text = asked(replica, "Say it. [#0000beef 0 0]", stream=False)
    assert json.loads(text)["choices"][0]["message"]["content"].startswith("0000beef ")
    _, text = asked(replica, "Say it. [#0000beef 5 1]", stream=True)
    assert text.count('"content":" ') == 4
    assert '"content":"0000beef"' in text
