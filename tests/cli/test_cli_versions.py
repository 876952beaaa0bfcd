import http.server
import json
import threading

import pytest
from click.testing import CliRunner

from holdfast.cli import main

SAME = {
    "replica": "m-1",
    "model": "m",
    "revision": "1",
    "host": "h1",
    "driver": "550.54",
    "cuda": "11.8",
    "nccl": "2.21.5",
    "engine": "0.9.1",
    "weights": "c0ffee" * 10,
    "image": "r/e:latest",
    "image_digest": "sha256:" + "a" * 64,
    "differs": [],
    "warnings": ["image r/e:latest is named by a tag, which may mean another image tomorrow"],
}
ODD = {**SAME, "replica": "m-2", "cuda": "12.1", "differs": ["cuda"], "host": "h\x1b[2J2"}
UNKNOWN = {
    **dict.fromkeys(SAME, ""),
    "replica": "n-1",
    "model": "n",
    "revision": "1",
    "differs": [],
    "warnings": [],
}


class Port(http.server.BaseHTTPRequestHandler):
    rows = []  # noqa: RUF012 each test sets its own

    def do_GET(self):
        text = json.dumps({"versions": self.rows}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Tests are quiet."""


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "250")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Port)
    Port.rows = [SAME, ODD, UNKNOWN]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    yield lambda *words: CliRunner().invoke(main, ["versions", *words, "--admin", url])
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_bill_marks_what_differs_and_warns_of_tags_once(run):
    shown = run()
    assert shown.exit_code == 0
    titles, same, odd, unknown, differs, warning = shown.output.splitlines()
    assert titles.split()[4:8] == ["driver", "cuda", "nccl", "engine"]
    assert "11.8 " in same
    assert "*" not in same
    assert "12.1*" in odd
    assert "(sha256:aaaaaaaaaaaa)" in odd
    assert unknown.split()[:4] == ["n-1", "n", "1", "-"]
    assert differs == "m-2 differs in cuda"
    assert warning.startswith("m: image r/e:latest is named by a tag")
    assert "\x1b" not in shown.output


def test_one_model_alone_and_json(run):
    rows = json.loads(run("n", "--json").output)["versions"]
    assert [row["replica"] for row in rows] == ["n-1"]
    assert run("x").output == "there are no replicas of x; there are m, n\n"
