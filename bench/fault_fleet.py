"""Processes for a fault benchmark: stand-ins, and a gateway before them.

Everything started here is ended here, by process id. Ports are free ones in random order, so that
neither a name nor a number tells a gateway who is about to fall ill.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

STARTING_S: Final = 60.0  # a busy machine takes seconds for the imports alone
ENDING_S: Final = 10.0
# The command by itself, so that a stand-in is there as soon as it can be.
_STAND_IN: Final = "from holdfast.cli.standin import stand_in; stand_in()"


def free_ports(count: int, rng: Random) -> list[int]:
    """Ports that nobody has, in no order."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        ports = [int(sock.getsockname()[1]) for sock in sockets]
    rng.shuffle(ports)
    return ports


def call(
    url: str, method: str = "GET", body: Any = None, timeout_s: float = 5.0, token: str = ""
) -> Any:
    """JSON, or text where it is none; raises OSError where nothing comes."""
    data = None if body is None else orjson.dumps(body)
    json = {} if data is None else {"content-type": "application/json"}
    json |= {"authorization": f"Bearer {token}"} if token else {}
    asked = urllib.request.Request(url, data, json, method=method)  # noqa: S310 a loopback port
    with urllib.request.urlopen(asked, timeout=timeout_s) as answer:  # noqa: S310
        raw = answer.read()
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")


def answers(url: str) -> bool:
    """Whether this URL says 200 now."""
    try:
        call(url, timeout_s=1.0)
    except (OSError, urllib.error.URLError):
        return False
    return True


def wait_for(url: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Until it answers; raises where it does not, or where the process behind it has ended."""
    end = time.monotonic() + STARTING_S
    while not answers(url):
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"process {process.pid} ended with {process.returncode}")
        if time.monotonic() > end:
            raise RuntimeError(f"{url} did not answer within {STARTING_S:g} s")
        time.sleep(0.05)


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End these: politely, then not."""
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)  # a stopped one hears nothing else
                process.terminate()
    deadline = time.monotonic() + ENDING_S
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Replica:
    """One stand-in process."""

    def __init__(self, port: int, side_port: int, options: Sequence[str]) -> None:
        self.port = port
        self.side = f"http://127.0.0.1:{side_port}"
        ports = ["--port", str(port), "--side-port", str(side_port)]
        self._command = [sys.executable, "-c", _STAND_IN, *ports, *options]
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def strike(self, fault: dict[str, Any]) -> None:
        """Make it ill."""
        if fault["kind"] == "sigstop":
            self.process.send_signal(signal.SIGSTOP)
        else:
            call(f"{self.side}/fault", "POST", fault)

    def repair(self) -> None:
        """Make it well, whatever it had."""
        self.process.send_signal(signal.SIGCONT)
        if self.process.poll() is not None:
            self.process = self._started()
        wait_for(f"{self.side}/stats", self.process)
        call(f"{self.side}/fault", "DELETE")

    def stats(self) -> dict[str, Any]:
        """Its own figures."""
        told: dict[str, Any] = call(f"{self.side}/stats")
        return told


class Fleet:
    """Four stand-ins, or more, and a gateway."""

    def __init__(self, replicas: list[Replica], gateway: subprocess.Popen[bytes] | None) -> None:
        self.replicas = replicas
        self.gateway = gateway
        self.url = ""
        self.admin = ""

    def signal_all(self, number: signal.Signals, *, gateway: bool) -> None:
        """Send a signal to every stand-in, and to the gateway's processes."""
        pids = [replica.process.pid for replica in self.replicas]
        if gateway and self.gateway is not None:
            pids += [self.gateway.pid, *children(self.gateway.pid)]
        for pid in pids:
            os.kill(pid, number)


def children(pid: int) -> list[int]:
    """Processes below this one, all the way down."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    return found


def gateway_command(template: str, config: Path) -> list[str]:
    """How the gateway is started: the one place to change for another one."""
    if template:
        return [part.replace("{config}", str(config)) for part in shlex.split(template)]
    return [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]


def fleet_file(listen: int, admin: int, ports: Sequence[int], extra: str) -> str:
    """The file as an operator would write it: nothing but addresses."""
    endpoints = ", ".join(f"http://127.0.0.1:{port}" for port in ports)
    return (
        f"gateway: {{listen: 127.0.0.1:{listen}, workers: 1}}\n"
        f"admin: {{listen: 127.0.0.1:{admin}}}\n"
        f"models:\n  - name: m\n    engine: vllm\n    endpoints: [{endpoints}]\n{extra}"
    )


@contextlib.contextmanager
def running(
    options: Sequence[str],
    *,
    rng: Random,
    count: int = 4,
    ports: Sequence[int] = (),
    gateway_url: str = "",
    template: str = "",
    extra: str = "",
) -> Iterator[Fleet]:
    """A fleet, ready; ended on the way out whatever happens.

    With ``gateway_url`` only the stand-ins are started, on the given ports, behind a gateway that
    is somebody else's.
    """
    free = free_ports(2 * count + 2, rng)
    data = list(ports) or free[:count]
    fleet = Fleet([], None)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: end([replica.process for replica in fleet.replicas]))
        for port, side in zip(data, free[count : 2 * count], strict=True):
            fleet.replicas.append(Replica(port, side, options))
        for replica in fleet.replicas:
            wait_for(f"{replica.side}/stats", replica.process)
        fleet.url = gateway_url.rstrip("/")
        if not gateway_url:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            listen, admin = free[-2:]
            config = folder / "fleet.yaml"
            config.write_text(fleet_file(listen, admin, data, extra))
            log = stack.enter_context((folder / "gateway.log").open("wb"))
            command = gateway_command(template, config)
            fleet.gateway = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(end, [fleet.gateway])
            fleet.url, fleet.admin = f"http://127.0.0.1:{listen}", f"http://127.0.0.1:{admin}"
            try:
                wait_for(f"{fleet.url}/readyz/m", fleet.gateway)
            except RuntimeError as error:
                told = (folder / "gateway.log").read_text(errors="replace")[-2_000:]
                raise RuntimeError(f"{error}; the gateway said:\n{told}") from error
        yield fleet


__all__ = ["Fleet", "Replica", "call", "running"]
