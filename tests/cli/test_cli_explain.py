"""``holdfast explain``: the story of one request, from an admin port that answers."""

import contextlib
import json
import socket
import threading

import pytest
from click.testing import CliRunner

from holdfast.cli import main

STORY = {
    "request_id": "req_1",
    "asked_for": "m",
    "replica": "m-2",
    "status": 200,
    "code": "",
    "story": [
        {"at_s": 0.0, "what": "arrived", "detail": ""},
        {"at_s": 0.0123, "what": "dispatch", "detail": "m-2: least loaded"},
    ],
}


@contextlib.contextmanager
def admin_that_answers(status, body):
    """An admin port that gives one answer, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10.0)  # who fails before it asks must not wait for ever

        def answer():
            client, _ = server.accept()
            with client:
                client.recv(65_536)
                head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def explain(url, *options):
    return CliRunner().invoke(main, ["explain", "req_1", "--admin", url, *options])


def test_explain_prints_a_story_as_a_table():
    with admin_that_answers(200, json.dumps(STORY).encode()) as url:
        result = explain(url)
    assert result.exit_code == 0
    assert "req_1: asked_for m, replica m-2, status 200" in result.output
    assert "12.3 ms" in result.output
    assert "m-2: least loaded" in result.output


def test_explain_prints_json_when_asked():
    with admin_that_answers(200, json.dumps(STORY).encode()) as url:
        result = explain(url, "--json")
    assert json.loads(result.output) == STORY


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [(404, b'{"error": "no gateway knows it"}', "no gateway knows it"), (500, b"oops", "500")],
)
def test_explain_says_why_there_is_no_story(status, body, told):
    with admin_that_answers(status, body) as url:
        result = explain(url)
    assert result.exit_code == 1
    assert told in result.output


def test_explain_says_when_nobody_listens():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        result = explain(f"http://127.0.0.1:{sock.getsockname()[1]}")
    assert result.exit_code == 1
    assert "is 'holdfast up' or 'holdfast serve' running?" in result.output
