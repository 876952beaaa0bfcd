"""``holdfast up`` with real engines: real text for clients, who do not notice when engines die.

One fleet of three llama.cpp replicas, while another process keeps a core busy all the time. The
stage and the strikes are those of ``bench/chaos.py``, so that what is proven here and what is
measured there are the same thing. The tests share the fleet and go over it in their order here.
"""

import asyncio
import http.client
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import openai
import pytest
from click.testing import CliRunner

from holdfast.cli.fleet import status
from holdfast.core.canary import CanaryConfig
from holdfast.core.health.answers.near_ties import near_ties
from holdfast.engines import dialect
from holdfast.engines.token_choices import ask_choices, read_choices

BENCH = Path(__file__).parents[2] / "bench"
RUNS = 20
SEED = 4
TOKENS = 12  # of answers whose length does not matter
STRUCK_TOKENS = 24  # of those that are struck within their first half
CLIENTS = 3
QUESTION = "What is a lighthouse?"
ANSWER = "A lighthouse is a beacon"  # how it begins
ENDING_S = 60.0

# Every fleet of real engines wants the machine for itself.
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def bench():
    if str(BENCH) not in sys.path:
        sys.path.append(str(BENCH))
    return importlib.import_module("chaos")


@pytest.fixture(scope="module")
def stage(bench):
    importlib.import_module("real_fleet")
    return sys.modules["real_fleet"]


@pytest.fixture(scope="module")
def chaos(bench, stage, tmp_path_factory):
    fleet = stage.RealFleet(tmp_path_factory.mktemp("real"), bench.SETTINGS)
    made = bench.Chaos(fleet, Random(SEED), STRUCK_TOKENS)
    with stage.busy_core():
        try:
            fleet.open()
            yield made
        finally:
            fleet.close()
            made.groups.tidy()


@pytest.fixture(scope="module")
def runs(bench, chaos):
    """Twenty streams, each struck in its middle; played once."""
    planned = bench.plan(RUNS, Random(SEED))
    return bench.play(chaos, planned, lambda line: sys.stdout.write(f"{line}\n"))


def all_ready(stage, fleet):
    return stage.until(
        lambda: len(found := fleet.ready()) == fleet.count and found, "everybody is ready"
    )


def asked(*arguments):
    done = CliRunner().invoke(status, arguments)
    assert done.exit_code == 0, done.output
    return done.output


# --- real text -----------------------------------------------------------------------------------


def test_plain_http_gets_real_text(stage, chaos):
    connection = http.client.HTTPConnection("127.0.0.1", chaos.fleet.port, timeout=60)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", stage.body(QUESTION, TOKENS), headers)
    response = connection.getresponse()
    told = json.loads(response.read())
    connection.close()
    assert response.status == 200
    (choice,) = told["choices"]
    assert choice["message"]["content"].startswith(ANSWER)
    assert choice["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == TOKENS


def test_a_plain_stream_brings_the_same_text(chaos):
    answer = chaos.undisturbed(QUESTION)
    assert answer.text.startswith(ANSWER)
    assert (answer.roles, answer.done, answer.finishes) == (1, True, ["length"])


def test_the_sdk_gets_real_text(chaos):
    messages = [{"role": "user", "content": QUESTION}]
    wish = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": TOKENS}
    with openai.OpenAI(base_url=f"{chaos.fleet.url}/v1", api_key="none") as client:
        whole = client.chat.completions.create(**wish)
        with client.chat.completions.create(**wish, stream=True) as chunks:
            pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
        names = [model.id for model in client.models.list()]
    assert whole.choices[0].message.content.startswith(ANSWER)
    assert "".join(pieces) == whole.choices[0].message.content
    assert names == ["smollm2"]


def test_the_async_sdk_gets_real_text(chaos):
    async def main():
        messages = [{"role": "user", "content": QUESTION}]
        wish = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": TOKENS}
        url = f"{chaos.fleet.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            whole, chunks = await asyncio.gather(
                client.chat.completions.create(**wish),
                client.chat.completions.create(**wish, stream=True),
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in chunks]
            await chunks.close()
        return whole.choices[0].message.content, "".join(pieces)

    whole, streamed = asyncio.run(main())
    assert whole.startswith(ANSWER)
    assert streamed == whole


# --- engines that die or hang in the middle of an answer -----------------------------------------


def test_no_client_notices_what_happens_to_the_replica_that_serves_it(runs):
    assert len(runs) == RUNS
    assert {run.kind for run in runs} == {"kill", "stop", "oom"}
    harmed = {
        f"{number} {run.kind}": run.problems for number, run in enumerate(runs, 1) if run.problems
    }
    assert harmed == {}


def test_status_tells_what_happened_to_each(bench, stage, chaos, runs):
    told = json.loads(asked("--json", "--admin", chaos.fleet.admin))
    assert {row["id"] for row in told["replicas"]} == {f"smollm2-{n}" for n in (1, 2, 3)}
    assert all(row["pid"] and row["state"] == "ready" for row in told["replicas"])
    for run in runs:
        assert any(chaos.word(run.kind) in reason for reason in run.reasons), run
    assert any(word in asked("--admin", chaos.fleet.admin) for word in bench.TOLD.values())


def test_a_stopped_replica_is_quarantined_at_once_and_a_killed_one_is_dead(runs):
    for run in runs:
        state = "quarantined" if run.kind == "stop" else "dead"
        assert any(reason.startswith(f"{state}: ") for reason in run.reasons), run


def test_every_replica_comes_back_by_itself(runs):
    assert all(run.back_s is not None and run.back_s < ENDING_S for run in runs)


def test_the_kernel_is_named_as_the_killer(chaos, runs):
    if not chaos.groups.possible:
        pytest.skip("no memory cgroup can be made here (needs root): they were killed by hand")
    for run in runs:
        told = any("the kernel's OOM killer was at work in its cgroup" in r for r in run.reasons)
        assert told == (run.kind == "oom"), run


# --- control that dies ---------------------------------------------------------------------------


class Load:
    """Clients that ask all the while, and what went wrong for them."""

    def __init__(self, bench, stage, chaos):
        self._bench, self._stage, self._chaos = bench, stage, chaos
        self._stop = threading.Event()
        self.answers = 0
        self.harms = []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(ENDING_S)

    def _ask(self, number):
        prompt = self._bench.PROMPTS[number]
        expected = self._chaos.undisturbed(prompt)
        while not self._stop.is_set():
            answer = self._stage.stream(self._chaos.fleet.port, prompt, STRUCK_TOKENS)
            flaws = self._bench.flaws(answer, expected)
            self.harms += [flaw for flaw in flaws if not flaw.startswith("a gap of")]
            self.answers += 1


def test_control_that_is_killed_loses_no_request_no_replica_and_no_history(bench, stage, chaos):
    fleet = chaos.fleet
    before, first = all_ready(stage, fleet), fleet.events()[:10]
    killed = fleet.control()
    with Load(bench, stage, chaos) as load:
        stage.until(lambda: load.answers, "an answer")
        assert stage.tell(killed, signal.SIGKILL)
        stage.until(lambda: fleet.control() not in {0, killed}, "another control is there")
        after = all_ready(stage, fleet)
        seen = load.answers
        stage.until(lambda: load.answers > seen, "an answer under the new control")
    assert load.harms == []
    assert after == before  # the same processes
    assert fleet.status()["control"] == f"control-{fleet.control()}"
    assert fleet.events()[:10] == first


def listening(*ports):
    """The sockets that listen at these ports."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == "0A" and int(row[1].partition(":")[2], 16) in ports
    }


def test_engines_hold_no_port_of_their_fleet(stage, chaos):
    """Or nobody else could listen there after a fleet that was killed: its engines live longer."""
    fleet = chaos.fleet
    ports = listening(fleet.port, fleet.admin_port)
    assert len(ports) == 2
    for pid in all_ready(stage, fleet).values():
        assert ports.isdisjoint(str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir())


def test_it_tells_which_tokens_of_a_canary_were_likely(stage, chaos):
    """Where two are nearly as likely, a replica may answer either; counting, it is sure of each."""
    row = next(iter(chaos.fleet.replicas().values()))
    asked = ask_choices(dialect("llamacpp"), CanaryConfig(), "smollm2")
    assert asked is not None
    connection = http.client.HTTPConnection(row["endpoint"].removeprefix("http://"), timeout=60)
    connection.request("POST", asked.path, asked.body, dict(asked.headers))
    response = connection.getresponse()
    body = response.read()
    connection.close()
    choices = read_choices(response.status, body)
    text = json.loads(body)["choices"][0]["message"]["content"]
    assert "".join(choice.text for choice in choices) == text
    assert all(len(choice.likeliest) == 5 for choice in choices)
    assert near_ties(text, choices) == ()


# --- the end -------------------------------------------------------------------------------------


def test_down_lets_a_stream_finish_and_leaves_no_process(bench, stage, chaos):
    fleet = chaos.fleet
    all_ready(stage, fleet)
    family = fleet.family()
    assert len(family) >= 2 + 2 * fleet.count  # control, a gateway, keepers and engines
    command = [sys.executable, "-m", "holdfast", "down", "--state-dir", str(fleet.state_dir)]
    downs = []

    def end(answer):
        if answer.texts and not downs:
            downs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    answer = stage.stream(fleet.port, QUESTION, STRUCK_TOKENS, end)
    (down,) = downs
    said, _ = down.communicate(timeout=ENDING_S)
    assert bench.flaws(answer, chaos.undisturbed(QUESTION)) == []
    assert down.returncode == 0
    assert said == f"stopped (pid {fleet.pid})\n"
    assert fleet.process.wait(ENDING_S) == 0
    assert [pid for pid in family if stage.lives(pid)] == []


def test_nothing_outlives_a_supervisor_that_is_killed(stage, tmp_path):
    fleet = stage.RealFleet(tmp_path, {}, replicas=1)
    try:
        fleet.open()
        family = fleet.family()
        assert len(family) == 4  # control, a gateway, a keeper and its engine
        os.kill(fleet.pid, signal.SIGKILL)
        fleet.process.wait(ENDING_S)
        stage.until(lambda: not any(map(stage.lives, family)), "all of them have ended", ENDING_S)
    finally:
        fleet.close()
