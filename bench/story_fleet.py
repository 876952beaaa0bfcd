"""A fleet for a story: ``holdfast serve`` with a file of its own, clients, and what it concludes.

The stage of ``tests/e2e/test_stories.py`` and ``tests/stories``. Stand-ins are started by Holdfast,
by a command, so that it sees how they end. Faults come in through a side port that only a
stand-in's log tells. A client has no deadline of its own: whether requests end is what is asked.
"""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import orjson

from fault_fleet import ENDING_S, call, children, end, free_ports, wait_for
from operations import Reply, ask, chat
from real_fleet import lives, tell

PATIENCE_S: Final = 90.0  # of a busy machine: each replica is a new interpreter
HANGS_S: Final = 120.0  # who has no answer by then hangs
HANGS: Final = "hangs"
LEFT: Final = "still waited when the story was over"
_RUN: Final = "from holdfast.cli.standin import stand_in; stand_in()"
_SIDE: Final = re.compile(r"side port (\d+)")


def stand_in(*options: str) -> list[str]:
    """The command of a stand-in, as a fleet file gives it."""
    head = [sys.executable, "-c", _RUN, "--host", "{host}", "--port", "{port}"]
    return [*head, "--side-port", "0", *options]


class StoryFleet:
    """One ``holdfast serve`` and its replicas."""

    def __init__(self, folder: Path, file: dict[str, Any]) -> None:
        self._folder = folder
        self.port, self.admin_port = free_ports(2, Random())
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self._file = {
            "gateway": {"listen": f"127.0.0.1:{self.port}"},
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            **file,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start it, and wait until operators are answered."""
        config = self._folder / "fleet.yaml"
        config.write_bytes(orjson.dumps(self._file))  # JSON is YAML
        command = [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]
        command += ["--state-dir", str(self._folder / "state")]
        with (self._folder / "serve.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(f"{self.admin}/livez", self._process)

    @property
    def token(self) -> str:
        """What opens its admin port for orders."""
        return (self._folder / "state" / "admin.token").read_text().strip()

    def close(self) -> None:
        """End it, and whatever of it is left."""
        if self._process is None:
            return
        family = set(children(self._process.pid))
        for file in (self._folder / "state").glob("replicas/*/keeper.json"):
            known = orjson.loads(file.read_bytes())
            family |= {known["keeper"], known["engine"]} - {0}
        end([self._process])
        deadline = time.monotonic() + ENDING_S
        while any(lives(pid) for pid in family) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in family:
            if lives(pid):
                tell(pid, signal.SIGKILL)

    # --- what it says ----------------------------------------------------------------------------

    def rows(self) -> dict[str, dict[str, Any]]:
        """What status tells of each replica."""
        return {row["id"]: row for row in call(f"{self.admin}/status")["replicas"]}

    def ready(self) -> list[str]:
        """Replicas that serve."""
        return [name for name, row in self.rows().items() if row["state"] == "ready"]

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident there is, whole, the oldest first."""
        told = call(f"{self.admin}/incidents?limit=200")["incidents"]
        return [call(f"{self.admin}/incidents/{one['id']}") for one in told]

    def versions(self) -> list[dict[str, Any]]:
        """The bill of versions: a line for each replica."""
        told: list[dict[str, Any]] = call(f"{self.admin}/versions")["versions"]
        return told

    def events(self, replica: str) -> list[dict[str, Any]]:
        """What happened to one replica."""
        told: list[dict[str, Any]] = call(f"{self.admin}/events?replica={replica}")["events"]
        return told

    def metric(self, name: str, **labels: str) -> float | None:
        """One figure, or nothing where there is no such series."""
        wanted = "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
        for line in str(call(f"{self.admin}/metrics")).splitlines():
            series, _, value = line.rpartition(" ")
            if series == name + (wanted if labels else ""):
                return float(value)
        return None

    def said(self) -> str:
        """The end of its log, and its incidents, for whoever reads a failure."""
        log = (self._folder / "serve.log").read_text(errors="replace")[-3_000:]
        with contextlib.suppress(OSError, urllib.error.URLError):
            log += "\n" + orjson.dumps(self.incidents(), option=orjson.OPT_INDENT_2).decode()
        return log

    def until(
        self, true: Callable[[], Any], what: str, within_s: float = PATIENCE_S, look_s: float = 0.25
    ) -> Any:
        """Wait for something and return it."""
        deadline = time.monotonic() + within_s
        while not (found := true()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {what}\n{self.said()}")
            time.sleep(look_s)
        return found

    # --- what is done to it ----------------------------------------------------------------------

    def report(self, *facts: dict[str, Any]) -> Any:
        """Tell it facts that another source knows."""
        body = {"facts": list(facts)}
        return call(f"{self.admin}/facts", "POST", body, token=self.token)

    def side(self, replica: str) -> str:
        """The side port of a stand-in that runs."""
        told = call(f"{self.admin}/replicas/{replica}/logs?lines=1000")
        return f"http://127.0.0.1:{_SIDE.findall(told)[-1]}"

    def held_bytes(self, replica: str) -> int:
        """Memory that a stand-in has lost so far."""
        return int(call(f"{self.side(replica)}/stats")["held_bytes"])

    def strike(self, replica: str, **fault: Any) -> None:
        """Make a stand-in ill, out of band."""
        call(f"{self.side(replica)}/fault", "POST", fault)


@dataclass(slots=True, frozen=True)
class Asked:
    """One request, from its sending to its end."""

    began: float
    ended: float
    status: int  # 0: it broke off, or hung
    what: str
    replica: str = ""

    @property
    def took_s(self) -> float:
        """How long its client waited."""
        return self.ended - self.began


class Traffic:
    """Clients that ask all the while, every other one for a stream; an async context manager.

    Those who still wait at its end are waited for, for ``linger_s``; then they leave.
    """

    def __init__(self, fleet: StoryFleet, rate: float, *, linger_s: float = HANGS_S) -> None:
        self._fleet, self._pause, self._linger_s = fleet, 1.0 / rate, linger_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self.asked: list[Asked] = []

    async def __aenter__(self) -> Self:
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])
        if self._tasks:
            _, waiting = await asyncio.wait(self._tasks, timeout=self._linger_s)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _send(self) -> None:
        number = 0
        due = time.monotonic()
        while True:
            number += 1
            task = asyncio.create_task(self._ask(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            due += self._pause
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self, number: int) -> None:
        began = time.monotonic()
        reply, what = Reply(), LEFT
        try:
            body = chat(f"question {number} of many", stream=bool(number % 2))
            reply = await ask(self._fleet.port, body, HANGS_S)
            what = "" if reply.complete else "closed too early"
            if reply.complete and reply.status == 200:
                what = _mistake(reply)
        except TimeoutError:
            what = HANGS
        except OSError as error:
            what = f"{type(error).__name__}: {error}"
        finally:
            self._keep(began, reply, what)

    def _keep(self, began: float, reply: Reply, what: str) -> None:
        status = 0 if what else reply.status
        replica = reply.headers.get("x-holdfast-replica", "")
        self.asked.append(Asked(began, time.monotonic(), status, what, replica))

    @property
    def slowest_s(self) -> float:
        """The longest that any client waited."""
        return max((one.took_s for one in self.asked), default=0.0)

    def outcomes(self) -> Counter[str]:
        """How requests ended."""
        return Counter(one.what or str(one.status) for one in self.asked)


def _mistake(reply: Reply) -> str:
    """What is wrong with an answer of status 200; an error said in a stream is an answer too."""
    if b'"error"' in reply.body:
        return "error in a stream"
    try:
        reply.text()
    except (ValueError, KeyError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def story(folder: Path, file: dict[str, Any]) -> Iterator[StoryFleet]:
    """A fleet, open; ended on the way out whatever happens."""
    fleet = StoryFleet(folder, file)
    try:
        fleet.open()
        yield fleet
    finally:
        fleet.close()


__all__ = ["HANGS", "LEFT", "Asked", "StoryFleet", "Traffic", "free_ports", "stand_in", "story"]
