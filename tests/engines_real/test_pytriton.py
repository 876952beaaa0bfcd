"""A fleet of real Triton servers: tensors through the gateway, a tensor canary, real failures.

Three servers, each its own processes and ports, launched by ``holdfast up`` from a fleet file. The
tests share them and go over them in the order in which they stand here. Users ask all the while,
and every answer is computed anew by the test: no error, no wrong number and no wait beyond a few
seconds is forgiven, except where a test says which and why.
"""

import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("affine_server.py")
MODEL = "affine"
PATH = f"/v2/models/{MODEL}/infer"
WAITING_S = 120.0  # for something to happen, on a busy machine
PATIENCE_S = 30.0  # of a user
USERS = 4
PAUSE_S = 0.05  # of a user between two requests
SEEN = 25  # answers that show that users are served
CANARY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.5, -1, 2, 8]}]}
FLEET = """
gateway: {{listen: "127.0.0.1:{data}"}}
admin: {{listen: "127.0.0.1:{admin}"}}
models:
  - name: {model}
    engine: triton
    metrics_url: "http://{{host}}:{{second_side_port}}/metrics"
    api_key_env: STATISTICS_TOKEN
    launch:
      replicas: 3
      pass_env: [STATISTICS_TOKEN]
      zones: [zone-a, zone-b]
      command: {command}
      environment: {{LD_LIBRARY_PATH: {libraries}, PYTRITON_HOME: {home}}}
    canary: {{shape: infer, body: '{body}'}}
fleet:
  health: {{canary_s: 1s, slow_start_s: 2s}}
  relaunch_after_s: 3s
"""


def until(condition, what, within_s=WAITING_S):
    """Look again and again; what the condition found."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"not within {within_s:g} s: {what}")


def free_ports(count):
    """Ports nobody has at the moment."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def descendants(pid):
    """A process and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += descendants(int(child))
    return found


def engine_of(pid):
    """Triton itself, below the program that started it."""
    for child in descendants(pid):
        program = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]
        if program.endswith(b"/tritonserver"):
            return child
    pytest.fail("no Triton server is there")


class Stage:
    """``holdfast up`` with its fleet file, and what operators can ask it."""

    def __init__(self, folder):
        self.switches = folder / "switches"
        self.switches.mkdir()
        self.data, self._admin = free_ports(2)
        self._said = folder / "up.log"
        self._file = folder / "fleet.yaml"
        self._state = folder / "state"
        self._home = folder / "pytriton"  # a copy of the server for each that is started
        self._pids = set()
        words = ["{python}", str(SERVER), "--model", "{served_as}", "--host", "{host}"]
        words += ["--port", "{port}", "--grpc-port", "{side_port}"]
        words += ["--metrics-port", "{second_side_port}", "--switches", str(self.switches)]
        text = FLEET.format(
            data=self.data,
            admin=self._admin,
            model=MODEL,
            command=json.dumps(words),
            libraries=json.dumps(sysconfig.get_config_var("LIBDIR")),
            home=json.dumps(str(self._home)),
            body=json.dumps(CANARY),
        )
        self._file.write_text(text)
        self._up = None

    def open(self):
        with self._said.open("w") as log:
            self._up = subprocess.Popen(
                [*self._holdfast("up"), "-c", str(self._file)],
                stdout=log,
                stderr=log,
                env={**os.environ, "STATISTICS_TOKEN": "open-sesame"},
            )
        self.whole()

    def whole(self):
        """Wait until three serve, whatever an earlier test left behind."""
        wanted = {f"{MODEL}-{n}" for n in (1, 2, 3)}
        until(lambda: wanted <= self.ready(), "three are ready")

    def close(self):
        """The fleet ends, and leaves nobody behind."""
        if self._up is None:
            return
        started = descendants(self._up.pid)
        self._up.send_signal(signal.SIGTERM)
        try:
            self._up.wait(WAITING_S)
        except subprocess.TimeoutExpired:
            self._up.kill()
            self._up.wait()
            raise
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "all have ended")
        self._tidy()

    def _tidy(self):
        """Remove what servers that were killed could not."""
        shutil.rmtree(self._home, ignore_errors=True)
        for pid in self._pids:
            for memory in Path("/dev/shm").glob(f"pytrtion{pid}-*"):  # the name is Triton's
                memory.unlink(missing_ok=True)

    def run(self, *words):
        """A command of operators."""
        command = [*self._holdfast(words[0]), "-c", str(self._file), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def page(self, name):
        url = f"http://127.0.0.1:{self._admin}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def replicas(self):
        told = self.page("status")
        rows = {row["id"]: row for row in json.loads(told)["replicas"]} if told else {}
        self._pids |= {row["pid"] for row in rows.values()}
        return rows

    def ready(self):
        return {name for name, row in self.replicas().items() if row["state"] == "ready"}

    def row(self, replica):
        """The replica in the joined view."""
        told = self.page("view")
        rows = {row["id"]: row for row in json.loads(told)["replicas"]} if told else {}
        return rows.get(replica, {})

    def samples(self):
        """What Prometheus would read."""
        lines = (self.page("metrics") or "").splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    def incidents(self):
        """All of them, with their evidence."""
        told = self.page("incidents")
        names = [one["id"] for one in json.loads(told)["incidents"]] if told else []
        return [json.loads(self.page(f"incidents/{name}") or "{}") for name in names]

    def events(self, replica):
        told = json.loads(self.page("events"))["events"]
        return [(row["what"], row["reason"]) for row in told if row["replica"] == replica]

    def left(self, replica, pid):
        """It is not the process it was, and serves again."""
        row = self.replicas().get(replica, {})
        return row.get("state") == "ready" and row["pid"] != pid

    def _holdfast(self, command):
        program = str(Path(sys.executable).with_name("holdfast"))
        return [program, command, "--state-dir", str(self._state)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    made = Stage(tmp_path_factory.mktemp("pytriton"))
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
def stage(opened):
    opened.whole()
    return opened


# --- users ---------------------------------------------------------------------------------------


class Answered:
    """One answer, or what came instead of it."""

    def __init__(self, status, headers, body, wanted, took_s):
        self.status = status
        self.replica = headers.get("x-holdfast-replica", "")
        self.attempts = int(headers.get("x-holdfast-attempts", "0"))
        self.name = headers.get("x-request-id", "")
        self.took_s = took_s
        outputs = json.loads(body).get("outputs") if status == 200 else None
        self.right = outputs is not None and outputs[0]["data"] == wanted


def ask(connection, numbers):
    """What y is at these numbers, each exact in 32 bits."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(numbers)], "data": numbers}
    body = json.dumps({"inputs": [tensor]})
    began = time.monotonic()
    connection.request("POST", PATH, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    came = answer.read()
    wanted = [2 * x + 1 for x in numbers]
    return Answered(answer.status, answer.headers, came, wanted, time.monotonic() - began)


class Users:
    """They ask all the time, and look at every answer."""

    def __init__(self, port):
        self._port = port
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._live, args=(n,)) for n in range(USERS)]
        self.answers = []
        self.broken = []

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        self.served()
        return self

    def __exit__(self, *_):
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _live(self, seed):
        chance = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            while not self._enough.wait(PAUSE_S):
                numbers = [float(chance.randrange(-1000, 1000)) for _ in range(8)]
                self.answers.append(ask(connection, numbers))
        except (OSError, http.client.HTTPException) as error:
            self.broken.append(repr(error))
        finally:
            connection.close()

    def served(self):
        """Wait for some more answers; those."""
        begin = len(self.answers)
        until(lambda: self.broken or len(self.answers) >= begin + SEEN, "users are served")
        return self.answers[begin:]

    def harms(self, *, forgiven=()):
        """What users noticed, by kind; a wrong answer of the replica that is known to lie aside."""
        found = Counter(self.broken)
        for one in self.answers:
            if one.status != 200:
                found[f"status {one.status}"] += 1
            elif not one.right and one.replica not in forgiven:
                found[f"wrong numbers from {one.replica}"] += 1
        return dict(found)

    def slowest_s(self):
        return max(one.took_s for one in self.answers)


@contextmanager
def switched(path):
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def signalled(pids, number):
    for pid in pids:
        os.kill(pid, number)


# --- what a fleet of tensors can do --------------------------------------------------------------


def test_tensors_go_through_the_gateway_to_every_replica(stage, record_property):
    with Users(stage.data) as users:
        until(lambda: {one.replica for one in users.answers} == stage.ready(), "all are asked")
        users.served()
    assert users.harms() == {}
    assert {one.attempts for one in users.answers} == {1}
    took = sorted(one.took_s for one in users.answers)
    record_property("median_s", took[len(took) // 2])


def test_answers_were_learned_by_agreement_of_the_replicas(stage):
    told = [reason for name in stage.replicas() for _, reason in stage.events(name)]
    assert any("agree" in reason for reason in told), told
    for row in stage.replicas().values():
        assert row["canary"]["verdict"] == "pass", row
        assert row["pid"] > 0


def test_the_story_of_an_inference_can_be_asked_for(stage):
    connection = http.client.HTTPConnection("127.0.0.1", stage.data, timeout=PATIENCE_S)
    answer = ask(connection, [1.0, -4.0])
    connection.close()
    assert answer.right
    story = json.loads(stage_story(stage, answer.name))
    assert (story["asked_for"], story["replica"], story["status"]) == (MODEL, answer.replica, 200)


def stage_story(stage, name):
    return until(lambda: stage.page(f"explain/{name}"), "the request is known")


def test_an_inference_the_model_refuses_is_told_to_the_client_and_harms_no_replica(stage):
    connection = http.client.HTTPConnection("127.0.0.1", stage.data, timeout=PATIENCE_S)
    bad = {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    for _ in range(20):
        connection.request("POST", PATH, json.dumps(bad), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 400
    connection.close()
    assert len(stage.ready()) == 3


def test_the_servers_own_counts_reach_the_view_and_prometheus(stage):
    name = f"{MODEL}-1"
    with Users(stage.data):
        row = until(
            lambda: (stage.row(name).get("inferences_s") or 0) > 1 and stage.row(name),
            "the view has its counts",
        )
        assert row["failed_share"] == 0
        assert 0 < row["compute_s"] < PATIENCE_S
        assert 0 <= row["queue_s"] < PATIENCE_S
        assert row["batch"] >= 1
        assert row["batch_max"] >= 1  # of the page of statistics: the token opens it
        assert row["engine_gpu_total_bytes"] is None  # no GPU here, and not a GPU of no bytes
        labels = f'model="{MODEL}",replica="{name}"'
        scraped = stage.samples()
        answered = f'holdfast_engine_inferences_total{{{labels},outcome="success"}}'
        assert float(scraped[answered]) > 0
        assert float(scraped[f"holdfast_engine_compute_seconds{{{labels}}}"]) > 0
        assert f"holdfast_engine_queue_seconds{{{labels}}}" in scraped
        assert f"holdfast_engine_pending_requests{{{labels}}}" in scraped
        assert f"holdfast_replica_waiting{{{labels}}}" in scraped


# --- what goes wrong -----------------------------------------------------------------------------


def test_inferences_that_fail_in_the_server_are_in_the_incident_by_its_own_counts(stage):
    """Asked beside the gateways, and no canary fails: the server's counts alone tell."""
    name = f"{MODEL}-2"
    port = stage.replicas()[name]["endpoint"].rsplit(":", 1)[1]
    direct = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_S)
    with switched(stage.switches / f"fail-{port}"):

        def counted():
            for _ in range(4):
                ask(direct, [13.0, 2.0])
                ask(direct, [1.0, 2.0])
            for incident in stage.incidents():
                for piece in incident.get("evidence", ()):
                    if piece["sign"] == "inferences_fail":
                        return incident, piece
            return None

        incident, piece = until(counted, "an incident has the server's counts")
        assert name in incident["replicas"]
        assert piece["source"] == "engine"
        assert piece["numbers"]["failures"] >= 5
        assert piece["numbers"]["compute_s"] > 0
        assert stage.row(name)["failed_share"] > 0.2
        labels = f'model="{MODEL}",replica="{name}"'
        failed = f'holdfast_engine_inferences_total{{{labels},outcome="failure"}}'
        assert float(stage.samples()[failed]) >= 5
        assert name in stage.ready()  # one caller's word: it is told, and nothing is done
    direct.close()


def test_a_killed_server_is_replaced_and_users_notice_nothing(stage, record_property):
    name, pid = f"{MODEL}-1", stage.replicas()[f"{MODEL}-1"]["pid"]
    everything = descendants(pid)
    with Users(stage.data) as users:
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: stage.left(name, pid), "it was started anew")
        record_property("ready_again_s", time.monotonic() - killed)
        users.served()
    assert users.harms() == {}
    assert any("SIGKILL" in reason for _, reason in stage.events(name))
    assert not any(Path(f"/proc/{one}").exists() for one in everything)
    record_property("slowest_s", users.slowest_s())


def test_a_server_whose_engine_alone_is_killed_is_replaced_too(stage, record_property):
    """Triton itself dies; the program that started it lives on."""
    name, pid = f"{MODEL}-2", stage.replicas()[f"{MODEL}-2"]["pid"]
    engine = engine_of(pid)
    with Users(stage.data) as users:
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: stage.left(name, pid), "it was started anew")
        record_property("ready_again_s", time.monotonic() - killed)
        users.served()
    assert users.harms() == {}
    record_property("slowest_s", users.slowest_s())


@pytest.mark.parametrize("what", ["all", "model", "engine"])
def test_a_frozen_server_is_left_and_users_notice_nothing(stage, record_property, what):
    """With only the model frozen, the server goes on to call itself ready.

    With only the engine frozen, the process that was launched looks as usual.
    """
    name = {"all": f"{MODEL}-3", "model": f"{MODEL}-1", "engine": f"{MODEL}-2"}[what]
    pid = stage.replicas()[name]["pid"]
    frozen = {"all": descendants(pid), "model": [pid], "engine": [engine_of(pid)]}[what]
    with Users(stage.data) as users:
        signalled(frozen, signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda: name not in stage.ready(), "it was taken out")
        record_property("out_after_s", time.monotonic() - stopped)
        assert name not in {one.replica for one in users.served()[USERS:]}
        until(lambda: stage.left(name, pid), "it was started anew")
        record_property("ready_again_s", time.monotonic() - stopped)
        users.served()
    assert users.harms() == {}
    record_property("slowest_s", users.slowest_s())


def test_a_model_that_answers_wrongly_is_found_and_users_are_kept_away(stage, record_property):
    name = f"{MODEL}-3"
    row = stage.replicas()[name]
    port = row["endpoint"].rsplit(":", 1)[1]
    with Users(stage.data) as users:
        until(lambda: name in {one.replica for one in users.served()}, "users are sent there")
        with switched(stage.switches / f"offset-{port}"):
            began = time.monotonic()
            until(lambda: stage.replicas()[name]["state"] == "quarantined", "it was found out")
            record_property("found_after_s", time.monotonic() - began)
            users.served()  # what was under way
            assert name not in {one.replica for one in users.served()}
            assert stage.replicas()[name]["canary"]["verdict"] == "wrong"
        lied = [one for one in users.answers if not one.right]
        record_property("wrong_answers_before", len(lied))
        until(lambda: name in stage.ready(), "it is honest again, or another is in its place")
        assert all(one.right for one in users.served())
    assert users.harms(forgiven={name}) == {}
    assert any("wrong" in reason for _, reason in stage.events(name))


def test_a_server_without_its_model_is_not_admitted(stage, record_property):
    newcomer = f"{MODEL}-4"
    with Users(stage.data) as users:
        with switched(stage.switches / "hold"):
            stage.run("scale", MODEL, "4")
            until(lambda: newcomer in stage.replicas(), "it was launched")
            port = int(until(lambda: stage.replicas()[newcomer]["endpoint"], "it has a port")[17:])
            live = f"http://127.0.0.1:{port}/v2/health/live"
            until(lambda: _status(live) == 200, "the server is up")
            asked = set()  # when canaries were answered since

            def often():
                row = stage.replicas()[newcomer]
                assert row["state"] in {"loading", "warming"}, row
                if row["canary"] is not None:
                    assert row["canary"]["verdict"] != "pass", row
                    asked.add(row["canary"]["at"])
                return len(asked) >= 3

            until(often, "it was asked three times")
            assert newcomer not in {one.replica for one in users.answers}
            released = time.monotonic()
        until(lambda: newcomer in stage.ready(), "its model came, and it was admitted")
        record_property("admitted_after_s", time.monotonic() - released)
        until(lambda: newcomer in {one.replica for one in users.answers}, "it is asked")
    assert users.harms() == {}


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    except OSError:
        return None
