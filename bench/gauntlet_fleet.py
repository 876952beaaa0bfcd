"""Fleets for the gauntlet: four stand-ins that Holdfast launched itself, or behind somebody else.

Holdfast gets a fleet file with a command and a number, as an operator would write it; it starts the
processes, so that it can see how one ends. Faults come in through a side port that only the log of
a stand-in tells, or as a signal to its process: nothing in a name, a port or a header announces who
will fall ill.
"""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

from fault_fleet import ENDING_S, STARTING_S, Replica, call, children, end, free_ports, wait_for
from gateway_peers import PEERS, Site, launch
from real_fleet import lives, tell, until

COUNT: Final = 4
TOKENS: Final = 20
STAND_IN: Final = ("--ttft-ms", "50", "--tpot-ms", "10", "--tokens", str(TOKENS))
_RUN: Final = "from holdfast.cli.standin import stand_in; stand_in()"
_SIDE: Final = re.compile(rb"side port (\d+)")
_MODEL: Final = "m"


class Launched:
    """One stand-in that Holdfast started; it may be another process tomorrow."""

    def __init__(self, fleet: "Launchers", name: str) -> None:
        self._fleet = fleet
        self.name = name

    @property
    def pid(self) -> int:
        """Of its process now."""
        return int(self._fleet.rows()[self.name]["pid"])

    def strike(self, fault: dict[str, Any]) -> None:
        """Make it ill, out of band."""
        if fault["kind"] == "sigstop":
            tell(self.pid, signal.SIGSTOP)
        else:
            call(f"{self._side()}/fault", "POST", fault)

    def _side(self) -> str:
        told = call(f"{self._fleet.admin}/replicas/{self.name}/logs?lines=1000")
        ports = _SIDE.findall(told.encode())
        return f"http://127.0.0.1:{int(ports[-1])}"


class Launchers:
    """``holdfast serve`` with four stand-ins of its own."""

    def __init__(self, url: str, admin: str, state: Path) -> None:
        self.url = url
        self.admin = admin
        self._state = state

    @property
    def token(self) -> str:
        """What opens its admin port for orders."""
        return (self._state / "admin.token").read_text().strip()

    def rows(self) -> dict[str, dict[str, Any]]:
        """What status tells of each replica."""
        return {row["id"]: row for row in call(f"{self.admin}/status")["replicas"]}

    def replicas(self) -> list[Launched]:
        """All of them, in no order that means anything."""
        return [Launched(self, name) for name in sorted(self.rows())]

    def incident(self, name: str) -> dict[str, Any]:
        """One of them, whole."""
        told: dict[str, Any] = call(f"{self.admin}/incidents/{name}")
        return told

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident there is, the newest last."""
        told: list[dict[str, Any]] = call(f"{self.admin}/incidents?limit=200")["incidents"]
        return told


def fleet_text(
    ports: tuple[int, int], model: dict[str, Any], stand_in: Sequence[str] = STAND_IN
) -> bytes:
    """The fleet file of ``launched``, with these ports of the gateway and of operators."""
    command = [sys.executable, "-c", _RUN, "--host", "{host}", "--port", "{port}"]
    command += ["--side-port", "0", *stand_in]
    section = {"name": _MODEL, "engine": "vllm", "launch": {"replicas": COUNT}, **model}
    section["launch"] = {**section["launch"], "command": command}
    told = {
        "gateway": {"listen": f"127.0.0.1:{ports[0]}", "workers": 1},
        "admin": {"listen": f"127.0.0.1:{ports[1]}"},
        "chaos": {"enabled": True},  # game days are played on it
        "models": [section],
    }
    return orjson.dumps(told)  # JSON is YAML


@contextlib.contextmanager
def launched(
    rng: Random, model: dict[str, Any], stand_in: Sequence[str] = STAND_IN
) -> Iterator[Launchers]:
    """Holdfast and its stand-ins, all ready; ended on the way out whatever happens."""
    listen, admin = free_ports(2, rng)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = folder / "fleet.yaml"
        config.write_bytes(fleet_text((listen, admin), model, stand_in))
        log = stack.enter_context((folder / "serve.log").open("wb"))
        serve = [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]
        process = subprocess.Popen(
            [*serve, "--state-dir", str(folder / "state")], stdout=log, stderr=log
        )
        stack.callback(_end_all, process, folder / "state")
        state = folder / "state"
        fleet = Launchers(f"http://127.0.0.1:{listen}", f"http://127.0.0.1:{admin}", state)
        try:
            wait_for(f"{fleet.url}/readyz/{_MODEL}", process)
            until(lambda: _all_ready(fleet), "every stand-in is ready")
        except (RuntimeError, OSError) as error:
            said = (folder / "serve.log").read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"{error}; holdfast said:\n{said}") from error
        yield fleet


def _all_ready(fleet: Launchers) -> bool:
    rows = fleet.rows().values()
    return len(rows) == COUNT and all(row["state"] == "ready" for row in rows)


def _end_all(process: subprocess.Popen[bytes], state: Path) -> None:
    family = set(children(process.pid))
    for file in state.glob("replicas/*/keeper.json"):
        known = orjson.loads(file.read_bytes())
        family |= {known["keeper"], known["engine"]} - {0}
    for pid in family:
        tell(pid, signal.SIGCONT)
    end([process])
    deadline = time.monotonic() + ENDING_S
    while any(lives(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in family:
        if lives(pid):
            tell(pid, signal.SIGKILL)


# --- somebody else's gateway ----------------------------------------------------------------------


class Behind:
    """Four stand-ins behind a peer."""

    def __init__(self, url: str, replicas: list[Replica]) -> None:
        self.url = url
        self._replicas = replicas

    def replicas(self) -> list[Replica]:
        """All of them."""
        return self._replicas


@contextlib.contextmanager
def behind(peer: str, rng: Random) -> Iterator[Behind]:
    """A peer with the settings of its own guide, and four stand-ins behind it."""
    free = free_ports(2 * COUNT + 1, rng)
    with contextlib.ExitStack() as stack:
        replicas: list[Replica] = []
        stack.callback(lambda: end([replica.process for replica in replicas]))
        for port, side in zip(free[:COUNT], free[COUNT : 2 * COUNT], strict=True):
            replicas.append(Replica(port, side, STAND_IN))
        for replica in replicas:
            wait_for(f"{replica.side}/stats", replica.process)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = Site(folder, tuple(free[:COUNT]), 0, 1, Path(sys.executable))
        port = free[-1]
        # On any core, as Holdfast: bound to one, it would leave this process bound to the other.
        running = launch(peer, port, PEERS[peer].command(site, port), site, None)
        stack.callback(running.end)
        url = f"http://127.0.0.1:{port}"
        _wait_for_answer(url, peer)
        yield Behind(url, replicas)


def _wait_for_answer(url: str, peer: str) -> None:
    messages = [{"role": "user", "content": "are you there"}]
    asked = {"model": _MODEL, "messages": messages}
    deadline = time.monotonic() + 2 * STARTING_S  # one of them imports for half a minute
    problem = ""
    while time.monotonic() < deadline:
        try:
            call(f"{url}/v1/chat/completions", "POST", asked)
        except OSError as error:
            problem = str(error)
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"{peer} does not answer: {problem}")


__all__ = ["COUNT", "TOKENS", "Behind", "Launched", "Launchers", "behind", "launched"]
