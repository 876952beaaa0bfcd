import http.server
import json
import threading

import pytest
from click.testing import CliRunner

from holdfast.cli import main

FROZEN = {
    "revision": "7",
    "statistic": "y.max",
    "state": "frozen",
    "version": 2,
    "samples": 812,
    "needed": None,
    "mean": 0.91,
    "sd": 0.05,
    "p95": 0.98,
    "latest": 256,
    "level": 1.2,
    "latest_mean": 0.71,
    "latest_p95": 0.8,
    "moved": "down",
}
LEARNING = {
    "revision": "8",
    "statistic": "y.\x1b[2Jmax",
    "state": "learning",
    "version": 1,
    "samples": 40,
    "needed": 500,
    "mean": None,
    "sd": None,
    "p95": None,
    "latest": 0,
    "latest_mean": None,
    "latest_p95": None,
    "level": None,
    "moved": "",
}


class Port(http.server.BaseHTTPRequestHandler):
    answers = {}  # noqa: RUF012 each test sets its own
    bodies = []  # noqa: RUF012

    def _answer(self):
        size = int(self.headers.get("content-length") or 0)
        self.bodies.append(self.rfile.read(size))
        status, body = self.answers.get(f"{self.command} {self.path}", (404, {"error": "no"}))
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _answer  # noqa: N815 - as the base class has them

    def log_message(self, *_):
        """Tests are quiet."""


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("HOLDFAST_ADMIN_TOKEN", raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Port)
    Port.answers, Port.bodies = {}, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    yield lambda *words: CliRunner().invoke(main, ["baseline", *words, "--admin", url])
    server.shutdown()
    server.server_close()
    thread.join()


def test_baselines_are_shown_beside_the_latest_answers(run):
    Port.answers["GET /models/org/m/baseline"] = (200, {"baselines": [FROZEN, LEARNING]})
    shown = run("show", "org/m")
    assert shown.exit_code == 0
    titles, frozen, learning = shown.output.splitlines()
    assert titles.split()[:4] == ["revision", "statistic", "version", "samples"]
    assert "0.91" in frozen
    assert "0.71" in frozen
    assert frozen.rstrip().endswith("120%, moved down")
    assert "40 of 500" in learning
    assert learning.rstrip().endswith("learning")
    assert "\x1b" not in shown.output
    assert json.loads(run("show", "org/m", "--json").output) == {"baselines": [FROZEN, LEARNING]}


def test_an_unknown_model_is_answered_with_the_near_one(run):
    Port.answers["GET /status"] = (200, {"models": {"classifier": {}, "other": {}}})
    for words in (("show",), ("accept", "--why", "new"), ("reset", "--why", "ill")):
        shown = run(*words, "clasifier")
        assert shown.exit_code == 1
        assert shown.output.endswith("; did you mean 'classifier'?\n")
    assert run("show", "x").output.endswith("; there are classifier, other\n")


def test_a_model_without_a_baseline_says_so(run):
    Port.answers["GET /models/m/baseline"] = (200, {"baselines": []})
    assert "no answer was measured yet" in run("show", "m").output


@pytest.mark.parametrize("order", ["accept", "reset"])
def test_an_order_carries_its_reason(run, order):
    answer = {"accepted": True, "reason": "done; because: new users"}
    Port.answers[f"POST /models/m/baseline/{order}"] = (202, answer)
    given = run(order, "m", "--why", "new users")
    assert (given.exit_code, given.output) == (0, "done; because: new users\n")
    assert json.loads(Port.bodies[0]) == {"why": "new users"}


def test_an_order_without_a_reason_or_that_is_refused_fails(run):
    assert run("accept", "m").exit_code == 2
    Port.answers["POST /models/m/baseline/reset"] = (409, {"error": "m has no baseline"})
    refused = run("reset", "m", "--why", "x")
    assert refused.exit_code == 1
    assert "m has no baseline" in refused.output
