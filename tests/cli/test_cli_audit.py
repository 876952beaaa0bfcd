import http.server
import json
import threading

import pytest
from click.testing import CliRunner

from holdfast.cli import main

ROWS = [
    {
        "at": 1_790_000_000.0,
        "who": "oncall",
        "what": "POST /replicas/m-1/drain",
        "address": "10.0.0.7",
        "status": 202,
        "result": "m-1 drains",
        "not_let_in": False,
    },
    {
        "at": 1_790_000_001.0,
        "who": "nobody",
        "what": "POST /replicas/\x1b[2Jm/drain",
        "address": "10.0.0.9",
        "status": 401,
        "result": "[bold]no[/bold]",
        "not_let_in": True,
    },
]


class Port(http.server.BaseHTTPRequestHandler):
    answers = {}  # noqa: RUF012 each test sets its own

    def _answer(self):
        status, body = self.answers.get(f"{self.command} {self.path}", (404, {"error": "no"}))
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self._answer()

    def do_POST(self):
        self._answer()

    def log_message(self, *_):
        """Tests are quiet."""


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("HOLDFAST_ADMIN_TOKEN", raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Port)
    Port.answers = {
        "GET /audit?limit=30": (200, {"orders": ROWS}),
        "GET /audit?limit=1": (200, {"orders": ROWS[1:]}),
        "GET /audit?limit=0": (200, {"orders": []}),
        "POST /ui/link": (201, {"path": "/ui/#sign-in=code", "lasts_s": 600}),
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield lambda *words: CliRunner().invoke(main, [*words, "--admin", url])
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_trail_is_a_table_without_control_characters(run):
    told = run("audit").output
    assert "oncall" in told
    assert "m-1 drains" in told
    assert "2026-09-21" in told
    assert "\x1b" not in told
    assert "[bold]no[/bold]" in told


def test_the_trail_is_told_as_json(run):
    assert json.loads(run("audit", "--json").output)["orders"] == ROWS
    assert json.loads(run("audit", "-n", "1", "--json").output)["orders"] == ROWS[1:]
    assert run("audit", "-n", "0").output == "no orders were given yet\n"


def test_a_number_that_is_none_is_refused(run):
    assert run("audit", "-n", "5000").exit_code == 2


def test_the_link_is_printed_whole(run):
    told = run("sign-in").output
    assert told.startswith("http://127.0.0.1:")
    assert told.endswith("/ui/#sign-in=code\n")


def test_a_refusal_says_what_to_do(run):
    Port.answers["POST /ui/link"] = (401, {"error": "the admin token is missing or wrong"})
    told = run("sign-in")
    assert (told.exit_code, "set HOLDFAST_ADMIN_TOKEN" in told.output) == (1, True)


def test_the_token_is_printed_where_it_is_known(run, monkeypatch):
    refused = run("sign-in", "--token")
    assert (refused.exit_code, "not known here" in refused.output) == (1, True)
    monkeypatch.setenv("HOLDFAST_ADMIN_TOKEN", "hf-mine")
    assert run("sign-in", "--token").output == "hf-mine\n"


def test_last_uses_of_keys_are_a_table_without_control_characters(run):
    row = {"tenant": "t", "expires": None, "expired": False, "file": None}
    keys = [
        {**row, "id": "ci", "last_used": 1_790_000_000.0},
        {**row, "id": "old\x9b2J", "last_used": None, "expires": "2020-01-01", "expired": True},
    ]
    Port.answers["GET /keys"] = (200, {"since": 1_780_000_000.0, "keys": keys})
    told = run("keys", "uses").output
    assert "2026-09-21 14:13:20" in told
    assert "not since 2026-05-28" in told
    assert "2020-01-01 (expired)" in told
    assert "\x9b" not in told
    assert json.loads(run("keys", "uses", "--json").output)["keys"] == keys
    Port.answers["GET /keys"] = (200, {"since": 1_780_000_000.0, "keys": []})
    assert "no key is asked for" in run("keys", "uses").output
    Port.answers["GET /keys"] = (401, {"error": "the admin token is missing"})
    assert run("keys", "uses").exit_code == 1
