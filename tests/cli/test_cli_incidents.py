"""``holdfast incidents`` and ``doctor`` against an admin port that answers what a test gives it."""

import contextlib
import http.server
import json
import threading

import pytest
from click.testing import CliRunner

from holdfast.cli import main

INCIDENT = {
    "id": "inc-000007",
    "stage": "open",
    "class": "runtime",
    "cause": "hung",
    "title": "hung of m-1",
    "about": {"replica": "m-1", "model": "m"},
    "replicas": ["m-1"],
    "opened_at": 1.0,
    "confidence": 0.9,
}


PAGES = {
    "/incidents": {"incidents": [INCIDENT]},
    "/incidents/inc-000007": INCIDENT,
    "/incidents/inc-000007/export": b'{"holdfast_incident":1}\n{"at":1}\n{"at":2}\n',
    "/incidents/inc-000007/close": {"accepted": True},
    "/status": {"replicas": [], "gateways": [{"epoch": 1}, {"epoch": 1}]},
}


@pytest.fixture
def admin():
    """The URL of an admin port, and what it was asked."""
    with answering(PAGES) as found:
        yield found


@pytest.fixture
def quiet():
    """The URL of an admin port that knows of no incident."""
    with answering({"/incidents": {"incidents": []}}) as (url, _):
        yield url


@contextlib.contextmanager
def answering(pages):
    asked = []

    class Admin(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(f"{self.command} {self.path}")
            page = pages.get(self.path.partition("?")[0])
            told = {"error": "no such incident"} if page is None else page
            body = told if isinstance(told, bytes) else json.dumps(told).encode()
            self.send_response(404 if page is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def run(*words):
    return CliRunner().invoke(main, words)


def test_the_list_asks_for_what_is_open_unless_told_otherwise(admin):
    url, asked = admin
    result = run("incidents", "--admin", url)
    assert result.exit_code == 0
    assert "inc-000007" in result.output
    run("incidents", "--admin", url, "--all", "-n", "3")
    assert asked == ["GET /incidents?limit=50&stage=open", "GET /incidents?limit=3"]


def test_the_list_as_json_is_one_object(admin):
    url, _ = admin
    assert json.loads(run("incidents", "--admin", url, "--json").output)["incidents"] == [INCIDENT]


def test_explain_tells_an_incident(admin):
    url, _ = admin
    assert "hung of m-1" in run("explain", "inc-000007", "--admin", url).output
    assert json.loads(run("explain", "inc-000007", "--admin", url, "--json").output) == INCIDENT
    missing = run("explain", "inc-9", "--admin", url)
    assert missing.exit_code == 1
    assert "no such incident" in missing.output


def test_explain_without_a_name_tells_the_newest_incident(admin):
    url, asked = admin
    assert "hung of m-1" in run("explain", "--admin", url).output
    assert asked == ["GET /incidents?limit=1", "GET /incidents/inc-000007"]
    assert json.loads(run("explain", "--admin", url, "--json").output) == INCIDENT


def test_explain_without_a_name_and_without_incidents_says_what_else_it_can_tell(quiet):
    result = run("explain", "--admin", quiet)
    assert result.exit_code == 0
    assert "no incident" in result.output
    assert "x-request-id" in result.output
    assert json.loads(run("explain", "--admin", quiet, "--json").output) is None


def test_an_export_is_written_to_a_file_or_printed(admin, tmp_path):
    url, _ = admin
    target = tmp_path / "one.jsonl"
    result = run("incidents", "--admin", url, "export", "inc-000007", "-o", str(target))
    assert "2 facts" in result.output
    assert target.read_bytes().startswith(b'{"holdfast_incident":1}')
    assert run("incidents", "--admin", url, "export", "inc-000007").output.count("\n") == 3


def test_an_export_that_cannot_be_is_a_sentence(admin, tmp_path):
    url, _ = admin
    assert "no such incident" in run("incidents", "--admin", url, "export", "inc-9").output
    nowhere = str(tmp_path / "no" / "where")
    result = run("incidents", "--admin", url, "export", "inc-000007", "-o", nowhere)
    assert result.exit_code == 1
    assert "No such file" in result.output


@pytest.mark.parametrize(
    "words",
    [("explain", "inc-7"), ("incidents", "export", "inc-7"), ("incidents", "close", "inc-7")],
    ids=" ".join,
)
def test_an_id_that_is_nearly_one_is_answered_with_it(admin, words):
    url, _ = admin
    result = run(words[0], "--admin", url, *words[1:])
    assert result.exit_code == 1
    assert result.output == "Error: no such incident; did you mean 'inc-000007'?\n"
    other = run(words[0], "--admin", url, *words[1:-1], "inc-000009")
    assert other.output == "Error: no such incident; there are inc-000007\n"


def test_close_is_an_order(admin):
    url, asked = admin
    assert "is closed" in run("incidents", "--admin", url, "close", "inc-000007").output
    assert asked == ["POST /incidents/inc-000007/close"]
    assert run("incidents", "--admin", url, "close", "inc-9").exit_code == 1


def test_the_doctor_of_a_running_fleet_names_its_incidents_and_fails(admin):
    url, _ = admin
    result = run("doctor", "--admin", url)
    assert result.exit_code == 1
    assert "incident inc-000007 is open: hung of m-1" in " ".join(result.output.split())


def test_the_doctor_of_a_file_asks_nobody(tmp_path):
    ends = [{"url": "http://127.0.0.1:9001", "zone": "a"}, {"url": "http://127.0.0.1:9002"}]
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps({"models": [{"name": "m", "engine": "vllm", "endpoints": ends}]}))
    result = run("doctor", "-c", str(path))
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "nothing found")
    path.write_text(json.dumps({"models": [{"name": "m", "engine": "triton", "endpoints": ends}]}))
    result = run("doctor", "-c", str(path), "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["advice"][0]["level"] == "error"
    shown = run("doctor", "-c", str(path)).output
    assert "leads to: wrong output, hung" in shown


def test_a_file_that_is_refused_is_refused_with_its_line(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("models: 3\n")
    result = run("doctor", "-c", str(path))
    assert result.exit_code == 2
    assert "fleet.yaml:1" in result.output
