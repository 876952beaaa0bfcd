import socket
import threading

import pytest

from holdfast.agent.report_sender import ReportAnswer, ReportSender, SendError
from holdfast.core.types import ConfigError

LONG_S = 30.0


class Raw:
    """A server that says what it is told, byte by byte."""

    def __init__(self, answer, *, read=True, hold=False):
        self.heard = b""
        self._answer, self._read, self._hold = answer, read, hold
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self):
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(LONG_S)
            while self._read and b"\r\n\r\n{}" not in self.heard:
                self.heard += connection.recv(65_536)
            connection.sendall(self._answer)
            if self._hold:
                self._over.wait(LONG_S)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(LONG_S)
        self._listener.close()


def answered(answer, deadline_s=LONG_S, **how):
    with Raw(answer, **how) as raw:
        return ReportSender(f"{raw.url}/base/", "gpu-1", "tok").send(b"{}", deadline_s), raw.heard


def test_a_report_is_one_plain_request():
    answer, heard = answered(b"HTTP/1.1 202 Accepted\r\n\r\n")
    assert answer == ReportAnswer(202)
    head = heard.decode().split("\r\n")
    assert head[0] == "POST /base/agents/gpu-1 HTTP/1.1"
    assert "Authorization: Bearer tok" in head
    assert "Content-Length: 2" in head
    assert "Connection: close" in head


def test_a_refusal_is_told_with_its_words_and_the_wait_it_asks_for():
    answer, _ = answered(b'HTTP/1.1 429 No\r\nRetry-After: 7\r\n\r\n{"error":"too\x07 often"}')
    assert answer == ReportAnswer(429, '{"error":"too often"}', 7.0)


def test_a_redirect_is_not_followed():
    answer, _ = answered(b"HTTP/1.1 307 Go\r\nLocation: http://evil.example/\r\n\r\n")
    assert answer.status == 307


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\xff" * 99]
)
def test_who_speaks_no_http_is_not_control(said):
    with pytest.raises(SendError, match="not control"):
        answered(said)


def test_an_answer_without_an_end_is_read_no_further():
    answer, _ = answered(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000, hold=True)
    assert len(answer.told) == 300


def test_one_that_never_answers_is_given_up():
    with pytest.raises(SendError, match="did not answer within"):
        answered(b"", 0.3, hold=True)


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(SendError, match="Connection refused"):
        ReportSender(f"http://127.0.0.1:{port}", "n", "t").send(b"{}")


def test_a_name_that_nobody_knows():
    with pytest.raises(SendError, match="cannot be reached"):
        ReportSender("http://nobody.invalid:1", "n", "t").send(b"{}")


def test_a_server_without_tls_is_said_to_have_none():
    with Raw(b"HTTP/1.1 400 Bad\r\n\r\n", read=False) as raw, pytest.raises(SendError, match="TLS"):
        ReportSender(raw.url.replace("http:", "https:"), "n", "t").send(b"{}")


def test_a_file_of_certificates_that_is_none_is_refused_at_once(tmp_path):
    wrong = tmp_path / "ca.pem"
    for text in (None, "no certificate"):
        if text:
            wrong.write_text(text)
        with pytest.raises(ConfigError, match="--ca"):
            ReportSender("https://localhost", "n", "t", str(wrong))


def test_the_token_is_in_no_error():
    with pytest.raises(SendError) as error:
        ReportSender("http://127.0.0.1:9", "n", "s3cr3t").send(b"{}")
    assert "s3cr3t" not in str(error.value)
