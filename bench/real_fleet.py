"""A fleet of real engines as ``holdfast up`` runs it, and what can be done to its processes.

The stage for ``bench/chaos.py`` and for the end-to-end tests: llama.cpp replicas of the built-in
fleet file on free ports, a client that takes the time of every chunk, and the three ways in which
an engine ends or hangs in the middle of an answer. Everything started here is ended here, by pid.
"""

import contextlib
import errno
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import orjson
import yaml

from fault_fleet import call, children, end, free_ports
from holdfast.wire.up import built_in_text

MODEL: Final = "smollm2"
PATIENCE_S: Final = 120.0  # for a process to come or go, on a busy machine
ANSWER_S: Final = 60.0  # silence after which a client gives up
LOOK_S: Final = 0.1
KEEPER_LOOKS: Final = 3  # after which a keeper knows in which cgroup its engine is
HUNGER_BYTES: Final = 32 << 20  # of a request that no longer fits into the engine's memory
SPARE_BYTES: Final = 512 << 10  # left to the engine until that request comes


def until(true: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Wait for something and return it."""
    deadline = time.monotonic() + within_s
    while not (found := true()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {within_s:g} s: {what}")
        time.sleep(LOOK_S)
    return found


# --- the fleet -----------------------------------------------------------------------------------


class RealFleet:
    """One ``holdfast up`` with a fleet file, but for its ports and ``settings``.

    Without a file it is the built-in one. Its first model is launched ``replicas`` times; where the
    file gives endpoints instead, that many of them must become ready.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        replicas: int = 3,
        file: Path | None = None,
    ) -> None:
        self.port, self.admin_port = free_ports(2, Random())
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.state_dir = folder / "state"
        self.config = folder / "fleet.yaml"
        self.said = folder / "up.log"
        told = yaml.safe_load(file.read_text() if file else built_in_text())
        told["gateway"] = told.get("gateway", {}) | {"listen": f"127.0.0.1:{self.port}"}
        told["admin"] = told.get("admin", {}) | {"listen": f"127.0.0.1:{self.admin_port}"}
        if "launch" in told["models"][0]:
            told["models"][0]["launch"]["replicas"] = replicas
        self.config.write_text(yaml.safe_dump({**told, **settings}))
        self.process: subprocess.Popen[bytes] | None = None
        self.count = replicas

    @property
    def token(self) -> str:
        """What opens its admin port for orders."""
        return (self.state_dir / "admin.token").read_text().strip()

    def open(self) -> None:
        """Start it, and wait until every replica is ready."""
        command = [sys.executable, "-m", "holdfast", "up", "-c", str(self.config)]
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [*command, "--state-dir", str(self.state_dir)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            until(lambda: len(self.ready()) >= self.count or self.ended, "every replica is ready")
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self.said.read_text()}\n{self.last_words()}") from None
        if self.ended:
            raise RuntimeError(f"it ended with {self.process.returncode}: {self.said.read_text()}")

    def last_words(self) -> str:
        """What its processes logged last."""
        lines = (self.state_dir / "holdfast.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    @property
    def ended(self) -> bool:
        """Whether the supervisor is gone."""
        return self.process is None or self.process.poll() is not None

    @property
    def pid(self) -> int:
        """The supervisor's."""
        if self.process is None:
            raise RuntimeError("it was never started")
        return self.process.pid

    def close(self) -> None:
        """End it, and whatever of it is stopped or left."""
        if self.process is None:
            return
        family = self.family()
        for pid in family:
            tell(pid, signal.SIGCONT)
        end([self.process])
        for pid in family:
            tell(pid, signal.SIGKILL)

    def family(self) -> list[int]:
        """Every process of it: control, gateways, and keepers and engines of any control."""
        found = set(children(self.pid))
        for file in self.state_dir.glob("replicas/*/keeper.json"):
            known = orjson.loads(file.read_bytes())
            found |= {known["keeper"], known["engine"]} - {0}
        return sorted(pid for pid in found if lives(pid))

    def control(self) -> int:
        """The control process; 0 while there is none."""
        for pid in children(self.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if b"control-process" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
        return 0

    def status(self) -> dict[str, Any]:
        """As control tells it; empty while it does not."""
        try:
            told: dict[str, Any] = call(f"{self.admin}/status", timeout_s=5.0)
        except (OSError, http.client.HTTPException):
            return {}
        return told

    def replicas(self) -> dict[str, dict[str, Any]]:
        """What status tells of each."""
        return {row["id"]: row for row in self.status().get("replicas", ())}

    def ready(self) -> dict[str, int]:
        """The replicas that are, with the pids of their engines."""
        rows = self.replicas().values()
        return {row["id"]: int(row["pid"] or 0) for row in rows if row["state"] == "ready"}

    def events(self, replica: str = "") -> list[dict[str, Any]]:
        """What happened, the newest last."""
        path = f"/events?limit=1000{f'&replica={replica}' if replica else ''}"
        told: list[dict[str, Any]] = call(f"{self.admin}{path}")["events"]
        return told


def tell(pid: int, number: signal.Signals) -> bool:
    """Send a signal; whether somebody was there to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def lives(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


BUSY: Final = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def busy_core() -> Iterator[int]:
    """Somebody else's work: a process that never rests; its pid.

    It ends with this one, however that ends: a core that stays busy spoils whatever is measured
    next.
    """
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", BUSY, str(os.getpid())])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


# --- the client ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """One stream as a client saw it; times are monotonic seconds."""

    status: int = 0
    replica: str = ""  # who served it at first
    asked_at: float = 0.0
    times: list[float] = field(default_factory=list)  # of every chunk
    texts: list[tuple[float, str]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    roles: int = 0
    finishes: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    read_s: float = (
        0.0  # the engine's own account of reading the prompt; behind a seam the second's
    )
    continued: int = 0
    error: str = ""
    done: bool = False

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for _, text in self.texts)

    @property
    def gap_s(self) -> float:
        """The longest wait between two chunks."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    @property
    def first_s(self) -> float:
        """Until the first text."""
        return self.texts[0][0] - self.asked_at if self.texts else float("inf")

    def take(self, payload: bytes) -> None:
        """One event of the stream."""
        now = time.monotonic()
        self.times.append(now)
        if payload == b"[DONE]":
            self.done = True
            return
        chunk = orjson.loads(payload)
        if "error" in chunk:
            self.error = str(chunk["error"])
            return
        self.ids.add(chunk["id"])
        self.usage = chunk.get("usage") or self.usage
        self.read_s = chunk.get("timings", {}).get("prompt_ms", self.read_s * 1000) / 1000
        self.continued = chunk.get("holdfast", {}).get("continued", self.continued)
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            self.roles += "role" in delta
            if delta.get("content"):
                self.texts.append((now, delta["content"]))
            if choice.get("finish_reason"):
                self.finishes.append(choice["finish_reason"])


def body(content: str, tokens: int, model: str = MODEL, **more: Any) -> bytes:
    """A greedy chat request."""
    messages = [{"role": "user", "content": content}]
    told = {"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens}
    return orjson.dumps({**told, **more})


def stream(
    port: int,
    content: str,
    tokens: int,
    seen: Callable[[Answer], None] = lambda _: None,
    *,
    model: str = MODEL,
) -> Answer:
    """Ask for a stream and read it to its end; ``seen`` is called after each chunk."""
    options = {"include_usage": True}
    asked = body(content, tokens, model, stream=True, stream_options=options)
    answer = Answer(asked_at=time.monotonic())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", asked, headers)
        response = connection.getresponse()
        answer.status = response.status
        answer.replica = response.headers.get("x-holdfast-replica", "")
        if response.status != 200:
            answer.error = response.read().decode("utf-8", "replace")
            return answer
        for line in response:
            if line.startswith(b"data: "):
                answer.take(line[6:].strip())
                seen(answer)
    except (OSError, http.client.HTTPException) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return answer


# --- what is done to engines ---------------------------------------------------------------------


class MemoryGroup:
    """A cgroup for one engine, in which the kernel kills for want of memory."""

    _V1: Final = Path("/sys/fs/cgroup/memory")
    _V2: Final = Path("/sys/fs/cgroup")

    def __init__(self, path: Path, *, version: int, pid: int) -> None:
        self._path = path
        self._limit = path / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        self._used = path / ("memory.usage_in_bytes" if version == 1 else "memory.current")
        self._pid = pid
        self._looks = 0

    @classmethod
    def around(cls, pid: int) -> Self | None:
        """Put a process into a new one; None where that cannot be done here."""
        version, parent = (1, cls._V1) if cls._V1.is_dir() else (2, cls._V2)
        path = parent / f"holdfast-chaos-{os.getpid()}-{pid}"
        try:
            path.mkdir()
        except OSError:
            return None
        made = cls(path, version=version, pid=pid)
        try:
            if not made._limit.exists():  # the controller is not handed down to it
                raise FileNotFoundError(errno.ENOENT, "no memory controller", str(path))
            (path / "cgroup.procs").write_text(str(pid))
        except OSError:
            path.rmdir()
            return None
        made._looks = made._keeper_looks()
        return made

    def _keeper_looks(self) -> int:
        """How often its keeper woke: it looks at the cgroup of its engine when it does."""
        stat = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{stat[1]}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    def known(self) -> bool:
        """Whether its keeper has looked since; in life an engine begins in its cgroup."""
        return self._keeper_looks() >= self._looks + KEEPER_LOOKS

    def starve(self) -> None:
        """Leave it next to nothing beyond what it has now."""
        self._limit.write_text(str(int(self._used.read_text()) + SPARE_BYTES))

    def close(self) -> bool:
        """Remove it; whether it was empty."""
        try:
            self._path.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True


def feed(endpoint: str) -> None:
    """A request that needs more memory than the engine has; what becomes of it is no matter."""
    asked = orjson.dumps({"content": "a" * HUNGER_BYTES})
    with contextlib.suppress(OSError, http.client.HTTPException):
        call_raw(endpoint, asked)


def call_raw(endpoint: str, asked: bytes) -> None:
    """POST past the gateway."""
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10.0)
    try:
        connection.request("POST", "/tokenize", asked, {"content-type": "application/json"})
        connection.getresponse().read()
    finally:
        connection.close()


class Groups:
    """The cgroups of all engines, each made once for each life of an engine."""

    def __init__(self) -> None:
        self._made: dict[int, MemoryGroup] = {}
        self.possible = True

    def cover(self, pids: Sequence[int]) -> None:
        """See to it that these are in groups of their own, and that their keepers know."""
        for pid in pids:
            if pid not in self._made and self.possible:
                made = MemoryGroup.around(pid)
                self.possible = made is not None
                if made is not None:
                    self._made[pid] = made
        for pid in pids:
            if pid in self._made:
                until(self._made[pid].known, f"the keeper of {pid} looks at its cgroup")

    def kill(self, pid: int, endpoint: str) -> None:
        """Have the kernel kill it for want of memory; by hand where there are no cgroups."""
        group = self._made.get(pid)
        if group is None:
            tell(pid, signal.SIGKILL)
            return
        group.starve()
        threading.Thread(target=feed, args=(endpoint,), daemon=True).start()

    def tidy(self) -> None:
        """Remove those whose engines have ended."""
        for pid in [pid for pid, group in self._made.items() if group.close()]:
            del self._made[pid]


__all__ = [
    "MODEL",
    "PATIENCE_S",
    "Answer",
    "Groups",
    "MemoryGroup",
    "RealFleet",
    "body",
    "busy_core",
    "lives",
    "stream",
    "tell",
    "until",
]
