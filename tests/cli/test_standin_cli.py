import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.standin import _ailment, stand_in
from holdfast.testing.standin import expected_text

RUN = "from holdfast.cli.standin import stand_in; stand_in()"
READY = re.compile(r"stand-in for (.+) at (http://127\.0\.0\.1:\d+), side port (\d+)\n")


def call(url, method="GET", body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, method=method), timeout=10
    ) as answer:
        return json.loads(answer.read())


@pytest.fixture
def process():
    """Starts the command in a process of its own, and ends it whatever happens."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-c", RUN, "--port", "0", "--side-port", "0", *arguments]
        one = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(one)
        return one, READY.fullmatch(one.stdout.readline()).groups()

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()
        one.stdout.close()


def test_a_fault_from_the_command_line_is_ended_on_the_side_port(process):
    quick = ("--ttft-ms", "1", "--tpot-ms", "0", "--tokens", "6")
    fault = ("--fault", "status", "--fault-with", "code=503", "--fault-with", "instant=true")
    one, (models, url, side_port) = process(*quick, *fault, "--model", "a", "--like", "llamacpp")
    side = f"http://127.0.0.1:{side_port}"
    assert models == "a"
    assert call(f"{side}/fault")["code"] == 503
    ask = [{"role": "user", "content": "Well?"}]
    body = {"model": "a", "messages": ask}
    with pytest.raises(urllib.error.HTTPError) as refused:
        call(f"{url}/v1/chat/completions", "POST", body)
    assert refused.value.code == 503
    refused.value.close()
    call(f"{side}/fault", "DELETE")
    answer = call(f"{url}/v1/chat/completions", "POST", body)
    assert answer["choices"][0]["message"]["content"] == expected_text("a", ask, 6)
    one.send_signal(signal.SIGINT)
    assert one.wait(20) == 0


@pytest.mark.parametrize(
    ("named", "details", "expected"),
    [
        ("hang", (), {}),
        ("slow", ("factor=3",), {"factor": 3.0}),
        ("garbage", ("form=bytes", "under_way=true"), {"form": "bytes", "under_way": True}),
        ("garbage", ('form="json"',), {"form": "json"}),
        ("cut", ("tokens=0",), {"tokens": 0}),
    ],
)
def test_details_of_a_fault_are_json_or_words(named, details, expected):
    ailment = _ailment(named, details)
    assert ailment.kind == named
    assert {name: getattr(ailment, name) for name in expected} == expected


def test_without_a_name_there_is_no_fault():
    assert _ailment(None, ()) is None


@pytest.mark.parametrize(
    ("named", "details", "told"),
    [
        (None, ("factor=3",), "--fault-with goes with --fault only"),
        ("slow", ("factor",), "write name=value"),
        ("slow", ("factor=fast",), "--fault: "),
        ("slow", ("speed=3",), "speed"),
        ("measles", (), "measles"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_the_reason(named, details, told):
    with pytest.raises(click.UsageError, match=told):
        _ailment(named, details)


def test_the_help_explains_the_side_port():
    result = CliRunner().invoke(stand_in, ["--help"])
    assert result.exit_code == 0
    assert "POST /fault" in result.stdout
