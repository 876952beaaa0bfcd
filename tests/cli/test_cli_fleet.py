"""The commands of a fleet: ``up`` and ``down`` with small processes in place of the real ones, and
the questions and orders against an admin port that answers what a test gives it."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import admin_port, main
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.launchers import weights
from holdfast.wire import provisions, state_dir
from holdfast.wire.down import NotRunningError, down
from holdfast.wire.up import built_in_text

# What 'holdfast control-process' and 'holdfast gateway-process' are for a supervisor, in a few
# lines that start quickly: control answers /status, one step further at each question.
PROCESSES = textwrap.dedent(
    """
    import http.server, json, os, signal, socket, sys, time
    kind = sys.argv[1]
    args = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    print(json.dumps({"event": "hello from " + kind}), file=sys.stderr, flush=True)
    if kind == "gateway-process":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # none comes between two lines
        os.write(int(args["--notice-fd"]), b"A")
        signal.sigwait({signal.SIGINT})
        sys.exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open(os.environ["FAKE_NOTE"], "w") as note:
        json.dump(args, note)
    steps = json.loads(os.environ["FAKE_STEPS"])
    pause = float(os.environ.get("FAKE_PAUSE", "0"))
    asked = 0
    class Admin(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            global asked
            status, body = steps[min(asked, len(steps) - 1)]
            asked += 1
            with open(os.environ["FAKE_NOTE"] + ".asked", "a") as note:
                note.write("x")
            time.sleep(pause)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        def do_POST(self):
            text = json.dumps({"path": self.path + "#sign-in=code"}).encode()
            bearer = self.headers.get("authorization", "")
            self.send_response(201 if bearer.startswith("Bearer hf-") else 401)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        def log_message(self, *_):
            pass
    server = http.server.HTTPServer(("127.0.0.1", 0), Admin, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(args["--admin-fd"]))
    server.serve_forever()
    """
)
UP = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from holdfast.ui.terminal.startup_screen import screen
    from holdfast.wire.up import UpOptions, up
    config, state, script, within = sys.argv[1:]
    wish = UpOptions(Path(config), Path(state), None, sys.stdout.isatty(), float(within))
    up(wish, screen(), [sys.executable, "-S", script])
    """
)


def row(number, state, reason="", **more):
    return {
        "id": f"m-{number}",
        "model": "m",
        "revision": "1",
        "state": state,
        "reason": reason,
        "zone": "zone-a" if number % 2 else "zone-b",
        "endpoint": f"http://127.0.0.1:{9000 + number}",
        "pid": 4000 + number,
        "phase": "loading model" if state == "loading" else "",
        "inflight": 0,
        "canary": None,
        **more,
    }


def status_of(*rows, **more):
    gateways = [{"id": "gateway-0", "name": "gateway-0", "ready": True, "reason": ""}]
    said = {"control": "c", "epoch": 1, "config_problems": [], "panic": []}
    return {**said, "gateways": gateways, "replicas": list(rows), **more}


LOADING = status_of(row(1, "loading"), row(2, "starting"))
READY = status_of(row(1, "ready"), row(2, "ready"))


@pytest.fixture
def fleet_file(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "gateway: {listen: '127.0.0.1:0'}\nadmin: {listen: '127.0.0.1:0'}\n"
        "models: [{name: m, engine: llamacpp, launch: {replicas: 2, command: [engine]}}]\n"
    )
    return path


class Fleet:
    """A 'holdfast up' in a process of its own, with small processes below it."""

    def __init__(self, config, state, script, environment, within_s=60.0, stdout=subprocess.PIPE):
        command = [sys.executable, "-c", UP, str(config), str(state), str(script), str(within_s)]
        self.process = subprocess.Popen(
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.lines = []
        self.patience = threading.Timer(90, self.process.kill)  # a test may fail, not hang
        self.patience.start()

    def until(self, pattern):
        """Read lines up to one that fits."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if re.search(pattern, line):
                return self.text
        raise AssertionError(f"it ended without {pattern!r}: {self.text}\n{self.errors()}")

    @property
    def text(self):
        return "\n".join(self.lines)

    def errors(self):
        return self.process.stderr.read()

    def end(self):
        """What it said until its end."""
        self.lines += self.process.stdout.read().splitlines()
        assert self.process.wait(30) == 0, self.errors()
        return self.text


@pytest.fixture
def started(tmp_path, fleet_file):
    """Starts fleets, and ends them whatever happens."""
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)
    fleets = []

    def start(*steps, config=fleet_file, **more):
        environment = {**os.environ, "FAKE_NOTE": str(tmp_path / "note.json")}
        environment["FAKE_STEPS"] = json.dumps(
            [[200, s] if isinstance(s, dict) else s for s in steps]
        )
        fleets.append(Fleet(config, tmp_path / "state", script, environment, **more))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.process.terminate()
        try:
            fleet.process.wait(30)
        finally:
            fleet.process.kill()
            fleet.patience.cancel()
            for stream in (fleet.process.stdout, fleet.process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command as in a pipe, with state at a place of its own."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "HOLDFAST_ADMIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return lambda *words: CliRunner().invoke(main, words, prog_name="holdfast")


# --- up and down ----------------------------------------------------------------------------------


def test_up_tells_how_replicas_start_and_how_to_use_them(started, tmp_path, run, fleet_file):
    fleet = started(LOADING, READY)
    text = fleet.until("holdfast down")
    assert "starting replicas: m (2)" in text
    assert "m-1 (zone-a): loading: loading model" in text
    assert "m-2 (zone-b): starting" in text
    assert "m-2 (zone-b): ready" in text
    where = json.loads((tmp_path / "state" / "up.json").read_text())
    assert where["pid"] == fleet.process.pid
    assert f"gateway    {where['data']}/v1" in text
    assert f"dashboard  {where['admin']}/\n" in text
    assert f"sign in    holdfast sign-in --state-dir {tmp_path / 'state'}" in text
    token_file = tmp_path / "state" / "admin.token"
    assert json.loads((tmp_path / "note.json").read_text())["--token-file"] == str(token_file)
    assert token_file.read_text().strip() not in text
    assert f"curl -N {where['data']}/v1/chat/completions" in text
    assert f'OpenAI(base_url="{where["data"]}/v1"' in text
    assert 'model="m", stream=True' in text
    assert "kill -9 4001" in text
    assert f"holdfast status --state-dir {tmp_path / 'state'}" in text
    assert json.loads((tmp_path / "note.json").read_text())["--state-dir"] == str(
        tmp_path / "state"
    )

    again = run("up", "-c", str(fleet_file), "--state-dir", str(tmp_path / "state"))
    assert again.exit_code == 1
    assert f"pid {fleet.process.pid}" in again.output
    shown = run("status", "--state-dir", str(tmp_path / "state"))
    assert re.search(r"^m-1 +m +1 +ready +zone-a +4001", shown.output, re.MULTILINE)

    ended = run("down", "--state-dir", str(tmp_path / "state"))
    assert ended.exit_code == 0
    assert f"stopped (pid {fleet.process.pid})" in ended.output
    assert fleet.end().endswith("stopped")
    assert "stopping: requests that run have 30 s to finish" in fleet.text
    assert not (tmp_path / "state" / "up.json").exists()
    log = (tmp_path / "state" / "holdfast.log").read_text().splitlines()
    told = {json.loads(line)["event"] for line in log}
    assert {"hello from control-process", "hello from gateway-process", "stopped"} <= told
    assert fleet.errors() == ""


def test_the_python_of_the_guide_is_python(started):
    text = started(READY).until("holdfast down")
    _, _, program = text.partition("in Python:\n")
    compile(program.partition("Then, in")[0], "guide", "exec")


def test_up_says_what_is_missing_when_patience_ends_and_goes_on(started):
    fleet = started(LOADING, within_s=5)  # enough for control to start on a busy machine
    text = fleet.until("holdfast down")
    assert "after 5 s too few replicas are ready (m: 0 of 2)" in text
    assert fleet.process.poll() is None


def test_up_says_when_control_does_not_answer(started, tmp_path):
    fleet = started([500, {}], within_s=0.5)
    text = fleet.until("holdfast down")
    assert f"control does not answer after 0.5 s; see {tmp_path / 'state' / 'holdfast.log'}" in text
    assert "kill -9 PID" in text


def test_up_says_when_the_admin_port_asks_for_a_token(started):
    fleet = started([401, {"error": "the admin token is missing or wrong"}])
    assert "gateway    http://127.0.0.1:" in fleet.until("set HOLDFAST_ADMIN_TOKEN to see more")


def test_up_tells_what_changes_later(started):
    dead = status_of(row(1, "dead", "killed by SIGKILL"))
    fleet = started(READY, dead, [503, {}], dead)
    fleet.until(r"\d\d:\d\d:\d\d  m-1  dead: killed by SIGKILL")
    fleet.until("m-2  gone")
    fleet.until("control does not answer; gateways go on alone")
    fleet.until("control answers again")


def test_a_number_of_replicas_that_an_operator_asked_for_is_what_up_waits_for(started):
    scaled = status_of(row(1, "ready"), models={"m": {"wished": 1}})
    assert "m-1 (zone-a): ready" in started(scaled).until("holdfast down")


def test_a_closed_pipe_does_not_end_a_fleet(started, tmp_path, run):
    fleet = started(LOADING, LOADING, READY)
    fleet.until("m-1")
    fleet.process.stdout.close()
    asked = tmp_path / "note.json.asked"
    wait_until(lambda: asked.stat().st_size >= 5)  # it had the guide to print in between
    assert fleet.process.poll() is None
    ended = run("down", "--state-dir", str(tmp_path / "state"), "--now")
    assert ended.exit_code == 0
    assert not (tmp_path / "state" / "up.json").exists()


def test_on_a_terminal_there_are_bars_and_its_end_is_the_fleets(started, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    master, slave = os.openpty()
    try:
        fleet = started(LOADING, LOADING, READY, stdout=slave)
        os.close(slave)
        seen = read_until(master, b"holdfast down")
        assert "m-1 zone-a" in seen
        assert "loading: loading model" in seen
        assert "✓" in seen
        assert re.search(r"sign in    http://127.0.0.1:\d+/ui/link#sign-in=code  # once", seen)
        fleet.process.send_signal(signal.SIGHUP)
        assert "stopping" in read_until(master, b"stopped")
        assert fleet.process.wait(30) == 0
    finally:
        os.close(master)


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def read_until(descriptor, wanted):
    seen = b""
    while wanted not in seen:
        try:
            piece = os.read(descriptor, 65_536)
        except OSError as error:  # nobody has the other end any more
            raise AssertionError(seen.decode()) from error
        assert piece, seen.decode()
        seen += piece
    return seen.decode()


def test_up_refuses_a_port_in_use_before_it_starts_anything(run, tmp_path, fleet_file):
    with http.server.HTTPServer(("127.0.0.1", 0), Canned) as other:
        text = fleet_file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{other.server_port}", 1)
        fleet_file.write_text(text)
        result = run("up", "-c", str(fleet_file), "--state-dir", str(tmp_path / "state"))
    assert result.exit_code == 1
    assert "is in use" in result.output
    assert state_dir.holder(tmp_path / "state") is None


def test_up_refuses_a_state_dir_that_cannot_be(run, tmp_path, fleet_file):
    (tmp_path / "file").write_text("")
    result = run("up", "-c", str(fleet_file), "--state-dir", str(tmp_path / "file" / "below"))
    assert result.exit_code == 1
    assert "cannot be used" in result.output
    assert "--state-dir" in result.output


def test_down_says_that_nothing_runs(run):
    result = run("down")
    assert result.exit_code == 1
    assert "no fleet runs with" in result.output
    assert "'holdfast up' starts one" in result.output


def test_down_never_signals_who_is_left_in_a_file_by_a_crash(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        (tmp_path / "lock").write_text(f"{bystander.pid}\n")
        (tmp_path / "up.json").write_text(json.dumps({"pid": bystander.pid}))
        with pytest.raises(NotRunningError):
            down(tmp_path, lambda *_: None, at_once=True)
        assert bystander.poll() is None
        bystander.communicate(b"\n", timeout=20)


# --- the built-in fleet ---------------------------------------------------------------------------


def test_the_built_in_fleet_is_what_the_docs_promise(tmp_path):
    (tmp_path / "fleet.yaml").write_text(built_in_text())
    file = load(tmp_path / "fleet.yaml", FleetFile)
    assert (file.gateway.listen, file.admin.listen) == ("127.0.0.1:8000", "127.0.0.1:8001")
    (model,) = file.models
    assert (model.name, model.engine, model.precision) == ("smollm2", "llamacpp", "q4_1")
    launch = model.launch
    assert (launch.replicas, launch.zones, launch.embedded) == (3, ["zone-a", "zone-b"], True)
    assert (launch.threads, launch.slots, launch.context) == (1, 2, 4096)
    assert provisions.named_weights(file) == ["smollm2-135m"]
    assert file.chaos.enabled  # the README breaks it on purpose
    assert not FleetFile.model_validate({"models": [model]}).chaos.enabled


@pytest.fixture
def built_in(tmp_path):
    (tmp_path / "fleet.yaml").write_text(built_in_text())
    return load(tmp_path / "fleet.yaml", FleetFile)


def test_a_missing_engine_is_refused_before_anything_starts(run, monkeypatch, built_in, tmp_path):
    monkeypatch.setattr(provisions, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"models\[0\]\.launch\.embedded: needs .* xllamacpp"):
        provisions.check_engines(built_in)
    result = run("up", "--state-dir", str(tmp_path / "state"))
    assert result.exit_code == 2
    assert "install holdfast[llamacpp]" in result.output


def test_weights_are_fetched_by_name_and_told_of(monkeypatch, built_in):
    told = []

    def fetch(name, progress):
        progress(1, 2)
        return Path(name)

    monkeypatch.setattr(weights, "fetch", fetch)
    provisions.fetch_weights(built_in, lambda *how_far: told.append(how_far))
    assert told == [("smollm2-135m", 1, 2)]


def test_weights_that_cannot_be_had_are_a_sentence(run, monkeypatch, tmp_path, fleet_file):
    def fetch(name, progress):
        raise weights.WeightsError("the index cannot be reached")

    monkeypatch.setattr(weights, "fetch", fetch)
    text = fleet_file.read_text().replace("command: [engine]", "weights: smollm2-135m")
    fleet_file.write_text(text)
    for command in ("up", "serve"):
        result = run(command, "-c", str(fleet_file), "--state-dir", str(tmp_path / "state"))
        assert result.exit_code == 1
        assert "the index cannot be reached" in result.output


# --- questions and orders -------------------------------------------------------------------------


class Canned(http.server.BaseHTTPRequestHandler):
    """Answers from a table, and notes who asked what."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, body):
        key = f"{self.command} {self.path}"
        self.server.asked.append((key, body, self.headers.get("authorization")))
        status, content = self.server.answers.get(key, (404, {"error": "no such thing"}))
        self.send_response(status)
        if isinstance(content, list):
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in (*content, b""):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            return
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Tests are quiet."""


@pytest.fixture
def admin():
    """An admin port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Canned)
    server.asked = []
    server.answers = {"GET /status": (200, READY), "GET /events?limit=8": (200, {"events": []})}
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_status_in_json_is_what_the_admin_port_says(run, admin):
    result = run("status", "--json", "--admin", admin.url)
    assert json.loads(result.output) == READY
    for name in ("id", "model", "revision", "state", "reason", "zone", "endpoint", "pid"):
        assert name in json.loads(result.output)["replicas"][0]


def test_status_tells_reasons_and_what_happened_lately(run, admin):
    wrong = {"verdict": "wrong", "detail": "said 5", "latency_s": 0.25}
    sick = row(2, "quarantined", "wrong twice", canary=wrong, inflight=1)
    admin.answers["GET /status"] = (200, status_of(row(1, "ready"), sick, panic=["m"]))
    happened = {"at": 1.0, "model": "m", "replica": "m-2", "what": "quarantined", "reason": "wrong"}
    admin.answers["GET /events?limit=8"] = (200, {"events": [happened]})
    output = run("status", "--admin", f"{admin.url}/").output
    assert re.search(
        r"^m-2 +m +1 +quarantined +zone-b +4002 +1 +wrong 250 ms$", output, re.MULTILINE
    )
    assert "  wrong twice; canary: said 5" in output
    assert "m: too few replicas are well" in output
    assert re.search(r"m-2 +quarantined +wrong", output)


@pytest.mark.parametrize(
    ("options", "unread"),
    [
        ([], ("pydantic", "yaml", "asyncio", "httptools", "uvloop", "msgspec", "textual")),
        (["--json"], ("pydantic", "yaml", "asyncio", "httptools", "uvloop", "msgspec", "rich")),
    ],
    ids=["table", "json"],
)
def test_status_of_a_running_fleet_reads_no_more_than_it_needs(admin, options, unread):
    code = (
        "import sys\n"
        "from holdfast.cli import main\n"
        f"main({['status', *options, '--admin', admin.url]}, standalone_mode=False)\n"
        f"print([name for name in {unread} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "m-1" in done.stdout
    assert done.stderr == "[]\n"


def test_the_token_comes_from_the_environment(run, admin, monkeypatch):
    monkeypatch.setenv("HOLDFAST_ADMIN_TOKEN", "secret")
    run("status", "--json", "--admin", admin.url)
    assert admin.asked == [("GET /status", b"", "Bearer secret")]


def test_a_refused_token_is_a_sentence(run, admin):
    admin.answers["GET /status"] = (401, {"error": "the admin token is missing or wrong"})
    result = run("status", "--admin", admin.url)
    assert result.exit_code == 1
    assert result.output == (
        "Error: the admin token is missing or wrong; set HOLDFAST_ADMIN_TOKEN, or name the fleet "
        "that you run here with -c or --state-dir\n"
    )


@pytest.mark.parametrize("url", ["localhost", "ftp://localhost:1", "http://", "http://h:port"])
def test_what_is_no_url_is_refused(run, url):
    result = run("status", "--admin", url)
    assert result.exit_code == 2
    assert "not a URL such as" in result.output


def test_a_fleet_is_found_by_its_state_dir_its_file_or_the_usual_port(
    run, admin, tmp_path, monkeypatch
):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        f"gateway: {{listen: '127.0.0.1:0'}}\nadmin: {{listen: '127.0.0.1:{admin.server_port}'}}\n"
        "models: [{name: m, engine: vllm, endpoints: [http://127.0.0.1:1]}]\n"
    )
    assert json.loads(run("status", "--json", "-c", str(path)).output) == READY
    where = state_dir.default_state_dir(None, os.environ)
    with state_dir.held(where):
        state_dir.write_running(
            where, state_dir.RunningFleet(1, admin.url, "http://x", "fleet.yaml")
        )
        assert json.loads(run("status", "--json").output) == READY
    (where / "up.json").write_text(json.dumps({"admin": admin.url}))  # left over
    monkeypatch.setattr(admin_port, "DEFAULT_ADMIN", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1: " in run("status", "--json").output


@pytest.mark.parametrize("what", ["drain", "undrain", "restart"])
def test_an_order_for_a_replica_is_given_and_its_answer_told(run, admin, what):
    told = {"accepted": True, "reason": "m-1 does it"}
    admin.answers[f"POST /replicas/m-1/{what}"] = (202, told)
    result = run(what, "m-1", "--admin", admin.url)
    assert result.exit_code == 0
    assert result.output == "m-1 does it\n"
    assert admin.asked == [(f"POST /replicas/m-1/{what}", b"", None)]


def test_ids_may_hold_slashes_and_signs(run, admin):
    admin.answers["POST /replicas/org/m%2B%3F-1/drain"] = (202, b"")
    result = run("drain", "org/m+?-1", "--admin", admin.url)
    assert result.output == "org/m+?-1: drain was accepted\n"


def test_scale_sends_the_number(run, admin):
    admin.answers["POST /models/m/scale"] = (202, {"accepted": True, "reason": "m gets 4"})
    result = run("scale", "m", "4", "--admin", admin.url)
    assert result.output == "m gets 4\n"
    assert json.loads(admin.asked[0][1]) == {"replicas": 4}


@pytest.mark.parametrize("count", ["-1", "257", "many"])
def test_scale_refuses_what_is_no_count(run, count):
    assert run("scale", "m", "--", count).exit_code == 2


def test_a_refused_order_is_its_reason(run, admin):
    admin.answers["POST /replicas/m-1/restart"] = (409, {"error": "it was not started here"})
    result = run("restart", "m-1", "--admin", admin.url)
    assert result.exit_code == 1
    assert result.output == "Error: it was not started here\n"


def test_an_unknown_replica_is_told_with_those_that_exist(run, admin):
    for words in (("drain", "m-9"), ("logs", "m-9"), ("logs", "m-9", "-f")):
        result = run(*words, "--admin", admin.url)
        assert result.exit_code == 1
        assert result.output == "Error: no such thing; there are m-1, m-2\n"


def test_an_unknown_model_is_told_with_those_that_exist(run, admin):
    result = run("scale", "other", "1", "--admin", admin.url)
    assert result.output == "Error: no such thing; there are m\n"
    admin.answers["GET /status"] = (200, status_of(models={"idle": {}}))
    assert "there are idle" in run("scale", "other", "1", "--admin", admin.url).output
    admin.answers["GET /status"] = (200, status_of())
    assert "there are no models" in run("scale", "other", "1", "--admin", admin.url).output


def test_a_mistyped_name_is_answered_with_the_near_one_but_never_with_another_number(run, admin):
    rows = [{**row(number, "ready"), "id": f"smollm2-{number}"} for number in (1, 2)]
    admin.answers["GET /status"] = (200, status_of(*rows, models={"smollm2": {}}))
    for words in (("drain",), ("undrain",), ("restart",), ("logs",), ("logs", "-f")):
        told = run(*words, "smolm2-2", "--admin", admin.url).output
        assert told == "Error: no such thing; did you mean 'smollm2-2'?\n"
    told = run("status", "--pid", "smolm2-2", "--admin", admin.url).output
    assert told == "Error: no such replica; did you mean 'smollm2-2'?\n"
    told = run("status", "--pid", "smollm2-3", "--admin", admin.url).output
    assert told == "Error: no such replica; there are smollm2-1, smollm2-2\n"
    told = run("scale", "smolm2", "3", "--admin", admin.url).output
    assert told == "Error: no such thing; did you mean 'smollm2'?\n"


def test_nobody_listening_is_a_sentence(run, admin):
    with http.server.HTTPServer(("127.0.0.1", 0), Canned) as gone:
        url = f"http://127.0.0.1:{gone.server_port}"
    for words in (("status",), ("logs", "m-1", "-f"), ("scale", "m", "1")):
        result = run(*words, "--admin", url)
        assert result.exit_code == 1
        assert result.output.startswith(f"Error: {url}: ")
        assert "refused" in result.output


def test_logs_are_printed_as_they_are(run, admin):
    admin.answers["GET /replicas/m-1/logs?lines=3"] = (200, b"a\n\xff\nb\n")
    result = run("logs", "m-1", "-n", "3", "--admin", admin.url)
    assert result.stdout_bytes == b"a\n\xff\nb\n"


ORDERS = b"\x1b[31mred\x1b[0m\x1b]0;owned\x07\r\nsafe\rover\x9b2J\n\xc2\x9b5n"
HARMLESS = "red\\x1b]0;owned\\x07\nsafe\nover\\x9b2J\n\\x9b5n"


def test_a_terminal_is_shown_what_an_engine_wrote_and_does_not_obey_it(run, admin, monkeypatch):
    monkeypatch.setattr("holdfast.cli.fleet._in_terminal", lambda: True)
    admin.answers["GET /replicas/m-1/logs?lines=200"] = (200, ORDERS)
    admin.answers["GET /replicas/m-1/logs?lines=200&follow=1"] = (
        200,
        [ORDERS[:1], ORDERS[1:9], ORDERS[9:]],
    )
    assert run("logs", "m-1", "--admin", admin.url).output == HARMLESS
    assert run("logs", "m-1", "-f", "--admin", admin.url).output.startswith(HARMLESS)


def test_a_refusal_with_orders_for_a_terminal_is_harmless(run, admin):
    admin.answers["GET /replicas/m-1/logs?lines=200"] = (404, {"error": "no \x1b[2J such"})
    assert run("logs", "m-1", "--admin", admin.url).output == "Error: no \\x1b[2J such\n"


def test_logs_of_a_replica_that_has_none_list_nobody(run, admin):
    told = "Holdfast did not start this replica and has no log of it"
    admin.answers["GET /replicas/m-1/logs?lines=200"] = (404, {"error": told})
    assert run("logs", "m-1", "--admin", admin.url).output == f"Error: {told}\n"


def test_logs_that_are_followed_come_piece_by_piece(run, admin):
    admin.answers["GET /replicas/m-1/logs?lines=200&follow=1"] = (200, [b"one\n", b"two\n"])
    result = run("logs", "m-1", "-f", "--admin", admin.url)
    assert result.exit_code == 0
    assert result.stdout == "one\ntwo\n"
    assert "the log of m-1 ends here" in result.stderr
