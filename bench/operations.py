"""What clients notice of operations: restarts, a takeover, a frozen or dead control, a bad config.

    python bench/operations.py [--rate 100] [--freeze-s 60] [--rounds 3] [--only a,b] [--json]

Real processes: two stand-ins, ``holdfast serve`` with two gateway processes, and clients that open
a connection for every request, because only new connections can be refused or lost in a queue.
Every other request is a stream. Each answer is compared with what the stand-ins are known to say;
whatever else comes counts as lost: an error, a wrong text, a reset, a refusal.

Exit status 1 where one of a to e loses a single request. What a gateway process was doing when it
was killed (f) is lost by nature; it is counted to show that nothing else is.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, Self

import httptools
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from fault_fleet import Replica, call, children, end, free_ports, wait_for
from holdfast.testing.standin import expected_text

PATIENCE_S: Final = 30.0  # of a client
WAITING_S: Final = 60.0  # for a process to come or go, on a busy machine
BEFORE_S: Final = 1.0  # of load before anything happens, and after
LOOK_S: Final = 0.1
TOKENS: Final = 8
WORKERS: Final = 2
STAND_IN: Final = ("--ttft-ms", "5", "--tpot-ms", "2", "--tokens", str(TOKENS))
TAKEN_OVER: Final = "ready; the predecessor may be stopped now"

# --- clients -------------------------------------------------------------------------------------


class Reply:
    """One response, read to its end."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser found a header."""
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        """The parser found the end of the headers."""
        self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """The parser found a piece of the body."""
        self.body += body

    def on_message_complete(self) -> None:
        """The parser found the end."""
        self.complete = True

    def text(self) -> str:
        """What it says, streamed or not; raises where it is not what an SDK could read."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            (choice,) = orjson.loads(self.body)["choices"]
            if choice["finish_reason"] not in {"stop", "length"}:
                raise ValueError("no finish reason")
            return str(choice["message"]["content"])
        *events, last, rest = self.body.split(b"\n\n")
        if (last, rest) != (b"data: [DONE]", b""):
            raise ValueError("no [DONE]")
        told = [orjson.loads(event.removeprefix(b"data: ")) for event in events]
        choices = [choice for chunk in told for choice in chunk["choices"]]
        if len({chunk["id"] for chunk in told}) != 1:
            raise ValueError("two answers in one")
        if not choices[-1]["finish_reason"]:
            raise ValueError("no finish reason")
        return "".join(choice["delta"].get("content") or "" for choice in choices)


async def ask(port: int, request: bytes, patience_s: float = PATIENCE_S) -> Reply:
    """One request on a connection of its own."""
    reply = Reply()
    async with asyncio.timeout(patience_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            while not reply.complete and (data := await reader.read(65_536)):
                reply.parser.feed_data(data)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return reply


def chat(content: str, *, stream: bool, headers: str = "", **more: Any) -> bytes:
    """A chat request as it goes over the wire."""
    messages = [{"role": "user", "content": content}]
    body = orjson.dumps({"model": "m", "messages": messages, "stream": stream, **more})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{headers}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def harm(port: int, number: int, headers: str = "") -> str:
    """Ask and compare; what was wrong, or nothing."""
    content = f"request {number}"
    try:
        reply = await ask(port, chat(content, stream=bool(number % 2), headers=headers))
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "error: no answer in time"
    except OSError as error:
        return f"reset: {type(error).__name__}"
    except httptools.HttpParserError:
        return "error: no HTTP"
    if not reply.complete:
        return "reset: closed too early"
    if reply.status != 200:
        return f"error: status {reply.status}"
    try:
        said = reply.text()
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return f"error: malformed ({type(error).__name__})"
    expected = expected_text("m", [{"role": "user", "content": content}], TOKENS)
    return "" if said == expected else "error: wrong text"


class Served(Protocol):
    """What clients need to know: a port, and the headers that each of them sends."""

    port: int
    headers: str


class Load:
    """Clients that ask all the while; an async context manager."""

    def __init__(self, stage: "Served", rate: float, clients: int = 16) -> None:
        self._port, self._headers, self._clients = stage.port, stage.headers, clients
        self._pause = 1.0 / rate
        self._due = 0.0
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self.requests = 0
        self.harms: Counter[str] = Counter()
        self.slowest = 0.0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._client()) for _ in range(self._clients)]
        await asyncio.sleep(BEFORE_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(BEFORE_S)
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _client(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop:
            now = loop.time()
            self._due = due = max(self._due + self._pause, now)
            await asyncio.sleep(due - now)
            began = loop.time()
            harmed = await harm(self._port, next(self._numbers), self._headers)
            self.slowest = max(self.slowest, loop.time() - began)
            self.requests += 1
            if harmed:
                self.harms[harmed] += 1

    def row(self) -> dict[str, Any]:
        """What came of it."""
        kinds = Counter[str]()
        for what, count in self.harms.items():
            kinds[what.partition(":")[0]] += count
        return {
            "requests": self.requests,
            "errors": kinds["error"],
            "resets": kinds["reset"],
            "refusals": kinds["refused"],
            "slowest_s": round(self.slowest, 3),
            "harms": dict(self.harms),
        }


# --- processes -----------------------------------------------------------------------------------


class Serve:
    """One ``holdfast serve`` and all that it wrote."""

    def __init__(
        self,
        config: Path,
        *,
        takeover: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = config.with_name(f"serve-{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]
        with self.log.open("wb") as log:
            command += ["--takeover"] * takeover
            own = {**os.environ, **(environment or {})}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=own)

    def said(self) -> str:
        """Everything that its processes wrote so far."""
        return "\n" + self.log.read_text(errors="replace")

    def may_replace(self) -> bool:
        """Whether it said that its predecessor may go."""
        return TAKEN_OVER in self.said()

    def ended(self) -> bool:
        """Whether it is gone."""
        return self.process.poll() is not None

    def processes(self, kind: str) -> list[int]:
        """Its children of a kind: ``control-process`` or ``gateway-process``."""
        found = []
        for pid in children(self.process.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if kind.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def control(self) -> int:
        """Its control process; 0 while there is none."""
        return next(iter(self.processes("control-process")), 0)

    def end(self) -> None:
        """End it, and whatever of it is stopped or left."""
        family = children(self.process.pid)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        end([self.process])
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def until(true: Callable[[], bool], what: str, within_s: float = WAITING_S) -> None:
    """Wait for something; it is looked at in a thread, as it may ask somebody."""
    try:
        async with asyncio.timeout(within_s):
            while not await asyncio.to_thread(true):  # noqa: ASYNC110 processes have no events
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise RuntimeError(f"not within {within_s:g} s: {what}") from None


class Stage:
    """Stand-ins, a fleet file, and the ``serve`` that clients use now."""

    def __init__(self, folder: Path, *, workers: int = WORKERS, headers: str = "") -> None:
        *ports, self.port, self.admin_port = free_ports(6, Random())
        self.engine_ports, self._side_ports = ports[:2], ports[2:]
        self.replicas: list[Replica] = []
        self.serves: list[Serve] = []
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.config = folder / "fleet.yaml"
        self.headers = headers  # lines that every client sends
        self.workers = workers
        self.gateway = ""  # more settings of the gateway
        self.extra = ""  # more models, and more sections behind them

    def open(self, options: Sequence[str] = STAND_IN) -> None:
        """Start everything, and wait until it serves."""
        for port, side in zip(self.engine_ports, self._side_ports, strict=True):
            self.replicas.append(Replica(port, side, options))
        for replica in self.replicas:
            wait_for(f"{replica.side}/stats", replica.process)
        self.write()
        self.start()
        wait_for(f"http://127.0.0.1:{self.port}/readyz/m", self.serve.process)

    def close(self) -> None:
        """End everything."""
        for serve in self.serves:
            serve.end()
        end([replica.process for replica in self.replicas])

    @property
    def serve(self) -> Serve:
        """The one that was started last."""
        return self.serves[-1]

    def start(self, *, takeover: bool = False) -> Serve:
        """Start a ``serve`` with the file as it is."""
        self.serves.append(Serve(self.config, takeover=takeover))
        return self.serve

    def write(self, more: str = "") -> None:
        """A good config, in place at once; ``more`` makes it another one."""
        endpoints = ", ".join(f"http://127.0.0.1:{port}" for port in self.engine_ports)
        draft = self.config.with_suffix(".draft")
        draft.write_text(
            f"gateway: {{listen: 127.0.0.1:{self.port}, workers: {self.workers}{self.gateway}}}\n"
            f"admin: {{listen: 127.0.0.1:{self.admin_port}}}\n"
            f"models:\n  - {{name: m, engine: vllm, endpoints: [{endpoints}]}}\n"
            f"{self.extra}{more}"
        )
        draft.replace(self.config)

    def status(self) -> dict[str, Any]:
        """As control tells it; empty while it does not, or while it is another ``serve``'s."""
        try:
            told: dict[str, Any] = call(f"{self.admin}/status", timeout_s=2.0)
        except OSError:
            return {}
        return told if told["control"] == f"control-{self.serve.control()}" else {}

    def gateways(self) -> list[int]:
        """The gateway processes, once all places are taken and ready; else none."""
        known = self.status().get("gateways", [])
        whole = len(known) == self.workers and all(gateway["ready"] for gateway in known)
        return [int(gateway["pid"]) for gateway in known] if whole else []

    async def whole(self, *, without: int = 0) -> None:
        """Wait until every place is taken by a gateway that is ready, and not by this one."""

        def settled() -> bool:
            pids = self.gateways()
            return bool(pids) and without not in pids

        await until(settled, "all gateways are ready")


# --- what happens --------------------------------------------------------------------------------


async def restart_workers(stage: Stage, given: argparse.Namespace) -> None:
    """SIGTERM to one gateway process after the other."""
    for number in range(given.rounds):
        await stage.whole()
        pid = stage.gateways()[number % stage.workers]
        os.kill(pid, signal.SIGTERM)
        await stage.whole(without=pid)


async def take_over(stage: Stage, given: argparse.Namespace) -> None:
    """A successor of the whole; then SIGTERM to the first."""
    for _ in range(given.rounds):
        first = stage.serve
        second = stage.start(takeover=True)
        await until(second.may_replace, "the successor is ready")
        first.process.terminate()
        await until(first.ended, "the first has ended")
        if first.process.returncode:
            raise RuntimeError(f"the first ended with {first.process.returncode}")
        await stage.whole()


async def freeze_control(stage: Stage, given: argparse.Namespace) -> None:
    """SIGSTOP, a long while, SIGCONT; after some seconds another control has its place."""
    pid = stage.serve.control()
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(given.freeze_s)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was replaced
            os.kill(pid, signal.SIGCONT)
    await stage.whole()


async def kill_control(stage: Stage, given: argparse.Namespace) -> None:  # noqa: ARG001
    """SIGKILL; the supervisor starts another."""
    pid = stage.serve.control()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: stage.serve.control() not in {0, pid}, "another control is there")
    await stage.whole()


async def push_config(stage: Stage, given: argparse.Namespace) -> None:  # noqa: ARG001
    """Garbage with SIGHUP: nothing changes. Then a good config: the next epoch, everywhere."""
    before = stage.status()["epoch"]

    def epochs() -> tuple[set[int], list[str]]:
        told = stage.status()
        known = {gateway["epoch"] for gateway in told.get("gateways", ())}
        return {told.get("epoch", 0), *known}, told.get("config_problems", [])

    stage.config.write_text("gateway: [this, is, garbage\n")
    stage.serve.process.send_signal(signal.SIGHUP)
    await until(lambda: bool(epochs()[1]), "the mistake is told")
    await asyncio.sleep(1.0)
    if epochs()[0] != {before}:
        raise RuntimeError("a broken config changed the epoch")
    stage.write("retry: {attempts: 3}\n")
    stage.serve.process.send_signal(signal.SIGHUP)
    await until(lambda: epochs() == ({before + 1}, []), "every gateway follows the next epoch")


async def kill_worker(stage: Stage, given: argparse.Namespace) -> None:  # noqa: ARG001
    """SIGKILL to a gateway process; what it was doing is lost."""
    pid = stage.gateways()[0]
    os.kill(pid, signal.SIGKILL)
    await stage.whole(without=pid)


Scene = Callable[[Stage, argparse.Namespace], Awaitable[None]]
SCENES: Final[dict[str, tuple[str, Scene]]] = {
    "a": ("SIGTERM of one gateway process", restart_workers),
    "b": ("SIGTERM of the whole, with a successor", take_over),
    "c": ("control frozen", freeze_control),
    "d": ("control killed", kill_control),
    "e": ("a broken config, then a good one", push_config),
    "f": ("SIGKILL of one gateway process", kill_worker),
}
LOSSY: Final = frozenset("f")


async def play(stage: Stage, letter: str, given: argparse.Namespace) -> dict[str, Any]:
    """One of them, under load."""
    title, scene = SCENES[letter]
    await stage.whole()
    began = time.monotonic()
    async with Load(stage, given.rate, given.clients) as load:
        await scene(stage, given)
    return {"scene": letter, "what": title, **load.row(), "took_s": round(time.monotonic() - began)}


def lost(row: dict[str, Any]) -> int:
    """Requests without the answer they should have had."""
    return int(row["errors"] + row["resets"] + row["refusals"])


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """A stage, open; closed whatever happens."""
    with tempfile.TemporaryDirectory(prefix="holdfast-operations-") as folder:
        stage = Stage(Path(folder))
        try:
            stage.open()
            yield stage
        finally:
            stage.close()


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    table = Table(title="what clients noticed, each request on a new connection")
    columns = ("requests", "errors", "resets", "refusals", "slowest", "took")
    table.add_column("what happened")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        counts = [str(row[name]) for name in columns[:4]]
        times = [f"{row['slowest_s']:.2f} s", f"{row['took_s']} s"]
        table.add_row(f"{row['scene']}  {row['what']}", *counts, *times)
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    for row in rows:
        for what, count in row["harms"].items():
            print(f"{row['scene']}: {count} × {what}")
    print(f"{sum(row['requests'] for row in rows)} requests in all")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=",".join(SCENES), help="comma-separated letters")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--clients", type=int, default=16, help="at once")
    parser.add_argument("--rounds", type=int, default=3, help="how often a and b do it")
    parser.add_argument("--freeze-s", type=float, default=60.0, help="how long control is frozen")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    unknown = [letter for letter in given.only.split(",") if letter not in SCENES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(SCENES)}")
    return given


def main() -> int:
    """Do it all and print; 1 where something was lost that should not be."""
    given = arguments()
    rows = []
    with staged() as stage:
        for letter in given.only.split(","):
            rows.append(uvloop.run(play(stage, letter, given)))
            if not given.json:
                print(f"{letter}: {lost(rows[-1])} lost of {rows[-1]['requests']}", file=sys.stderr)
    if given.json:
        print(json.dumps({"benchmark": "operations", "rows": rows}))
    else:
        show(rows)
    return int(any(lost(row) for row in rows if row["scene"] not in LOSSY))


if __name__ == "__main__":
    sys.exit(main())
