"""The agent beside a replica in a pod: asks control for its verdict, and tells the kubelet.

    control ◄── GET /readyz/MODEL?replica=ID, every 5 s ── agent ◄── GET /readyz ── kubelet

What is told when is decided by ``core.deploy.pod_readiness``. The agent needs no token: what it
asks is open as all of ``/readyz`` is, and it is told of nothing but whether one replica is ready.
An answer that is not of control's own form (a proxy's 503) is no verdict: control is away then.
Behind one address there may be a standby control, too: it says so, and is asked again at once until
the one that leads answers.

The server holds a few connections at once, each for a few seconds: whoever opens more waits for the
kernel, and cannot make this process grow.
"""

import random
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.agent.stop_signal import StopSignal
from holdfast.config.certificates import calling_context
from holdfast.control.http_client import FetchError, request
from holdfast.core.deploy.pod_readiness import VerdictHold, VerdictHoldConfig
from holdfast.core.types import ConfigError, Decision, require

PERIOD_S: Final = 5.0
_DEADLINE_S: Final = 3.0
_ANSWER_BYTES_MAX: Final = 4_096
_TRIES_MAX: Final = 8  # of two controls at one address all of them meet the standby once in 256
_WHY_CHARS_MAX: Final = 300
_CONNECTIONS_MAX: Final = 16
_CONNECTION_S: Final = 5.0


class ReadinessSettings(msgspec.Struct, frozen=True):
    """Whom to ask about which replica, and where to answer."""

    url: str
    model: str
    replica: str
    listen: str = "127.0.0.1:8099"
    ca: str = ""
    period_s: float = PERIOD_S
    fresh_s: float = VerdictHoldConfig().fresh_s
    unknown_s: float = VerdictHoldConfig().unknown_s

    def __post_init__(self) -> None:
        _check_url(self.url)
        _address(self.listen)
        for name in ("model", "replica"):
            value = getattr(self, name)
            well = 0 < len(value) <= 253 and value.isprintable()
            require(well, f"--{name}", f"is {value[:80]!r}", "use its name in the fleet")
        fits = 0.5 <= self.period_s <= 60
        require(fits, "--period", f"is {self.period_s}", "use 0.5 to 60 seconds")
        held = self.fresh_s >= 2 * self.period_s
        fix = f"use at least two periods, {2 * self.period_s:g} s"
        require(held, "--fresh", f"is {self.fresh_s}", fix)


class _Verdict(msgspec.Struct, frozen=True):
    """Control's answer: no other server's error looks like this."""

    replica: str
    known: bool
    ready: bool = False
    why: str = ""


class _Standby(msgspec.Struct, frozen=True):
    """The answer of a control that does not lead."""

    standby: bool
    leader: str | None = None


_DECODER: Final = msgspec.json.Decoder(_Verdict)
_STANDBY: Final = msgspec.json.Decoder(_Standby)


class VerdictAgent:
    """Keeps the last verdict on one replica and answers readiness probes with it."""

    def __init__(self, settings: ReadinessSettings) -> None:
        self._settings = settings
        self._hold = VerdictHold(VerdictHoldConfig(settings.fresh_s, settings.unknown_s))
        self._lock = threading.Lock()
        self._ca = Path(settings.ca) if settings.ca else None
        self._secure = settings.url.startswith("https:")
        if self._secure and self._ca is not None:
            fix = "name a PEM file of certificates"
            try:
                calling_context(self._ca, None, None)
            except (OSError, ValueError) as error:
                raise ConfigError("--ca", f"is {settings.ca}: {error}", fix) from error
        self.problem = ""  # why control gave no verdict at the last question; empty: it did

    def ask(self) -> None:
        """Ask control; what it answered, or that it did not, decides what is told."""
        for _ in range(_TRIES_MAX):
            if not self._ask_once():
                return

    def _ask_once(self) -> bool:
        """Ask whoever answers at the address; whether that was a standby."""
        path = f"/readyz/{quote(self._settings.model)}?replica={quote(self._settings.replica)}"
        try:
            answer = request(
                self._settings.url.rstrip("/"),
                path,
                _DEADLINE_S,
                tls=calling_context(self._ca, None, None) if self._secure else None,
                cut_at=_ANSWER_BYTES_MAX,
            )
        except FetchError as error:
            self.problem = str(error)[:_WHY_CHARS_MAX]
            return False
        verdict = _verdict(answer.body)
        if isinstance(verdict, _Standby):
            self.problem = f"a standby answers there; {verdict.leader or 'nobody'} leads"
            return True
        if verdict is None:
            self.problem = "who answers there is not control"
            return False
        if verdict.replica != self._settings.replica:
            self.problem = "the answer is about another replica"
            return False
        self.problem = ""
        told = Decision(verdict.ready, verdict.why[:_WHY_CHARS_MAX]) if verdict.known else None
        with self._lock:
            self._hold.heard(told, time.monotonic_ns())
        return False

    def answer(self) -> Decision:
        """What a probe is told now."""
        with self._lock:
            return self._hold.answer(time.monotonic_ns())


def _verdict(body: bytes) -> _Verdict | _Standby | None:
    """What control said, or a standby; None: it was neither of them."""
    for decoder in (_DECODER, _STANDBY):
        try:
            return decoder.decode(body)
        except msgspec.DecodeError:
            continue
    return None


class ProbeServer(ThreadingHTTPServer):
    """Answers ``GET /readyz`` with 200 or 503 and the reason, for a bounded number of callers."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, agent: VerdictAgent, listen: str) -> None:
        self.agent = agent
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        super().__init__(_address(listen), _ProbeHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a caller, once there are few enough."""
        self._free.acquire()  # at most as long as one caller may stay
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one caller."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a caller that left before its answer."""


class _ProbeHandler(BaseHTTPRequestHandler):
    """One probe: the method and path that the kubelet uses, and nothing else."""

    timeout = _CONNECTION_S
    server: ProbeServer

    def do_GET(self) -> None:
        """Answer a probe."""
        if self.path == "/livez":
            self._write(200, "alive")
            return
        if self.path != "/readyz":
            self._write(404, "ask for /readyz")
            return
        answer = self.server.agent.answer()
        self._write(200 if answer else 503, answer.reason)

    def _write(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
        """Probes are not logged: there is one every few seconds."""


def run(settings: ReadinessSettings, stop: StopSignal) -> None:
    """Ask control and answer probes until ``stop`` is set."""
    agent = VerdictAgent(settings)
    server = ProbeServer(agent, settings.listen)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    where = f"{_address(settings.listen)[0]}:{server.server_port}"
    _say(f"tells of {settings.replica} at {where}/readyz, as {settings.url} says")
    told: Decision | None = None
    problem = ""
    while not stop.is_set():
        agent.ask()
        now = agent.answer()
        if told is None or now.allowed is not told.allowed:
            _say(f"{'ready' if now else 'not ready'}: {now.reason}")
            told = now
        if agent.problem != problem:
            problem = agent.problem
            _say(f"control gives no verdict: {problem}" if problem else "control answers")
        stop.wait(settings.period_s * random.uniform(0.8, 1.2))
    server.shutdown()
    server.server_close()


def main(arguments: list[str]) -> int:
    """Run the agent until SIGTERM or SIGINT."""
    stop = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(msgspec.json.decode(arguments[-1], type=ReadinessSettings), stop)
    except OSError as error:
        _say(f"cannot listen: {error.strerror or error}")
        return 1
    return 0


def _check_url(url: str) -> None:
    """Require an address of control. Plain http will do: no token is sent, and none is needed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, 0
    bare = bool(host) and port != 0 and "@" not in url and "?" not in url and url.isprintable()
    fits = bare and url.startswith(("http://", "https://"))
    require(fits, "--url", f"is {url[:80]!r}", "write http://host:port, control's admin port")


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    fits = bool(host) and port.isdecimal() and int(port) <= 65_535
    fix = "write host:port, such as 0.0.0.0:8099"
    require(fits, "--listen", f"is {listen[:80]!r}", fix)
    return host.strip("[]"), int(port)


def _say(line: str) -> None:
    sys.stderr.write(f"holdfast readiness: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

__all__ = ["PERIOD_S", "ProbeServer", "ReadinessSettings", "VerdictAgent", "main", "run"]
