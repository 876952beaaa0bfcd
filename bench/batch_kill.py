"""Kills whoever works on batches with SIGKILL, again and again, and counts what became of lines.

    python bench/batch_kill.py                              # SQLite, 2,000 lines, 100 random kills
    python bench/batch_kill.py --store postgres             # PostgreSQL and Valkey: the environment
    python bench/batch_kill.py --store valkey               # of `make test-stores`
    python bench/batch_kill.py --folder kills               # goes on where it was stopped

Two stand-ins, ``holdfast serve`` and, where there is one, the database server. Batches go through
the API under idempotency keys, so that an upload whose answer was lost is repeated safely. The
batch process is killed at every named point of a commit (``--each`` times); then gateway, control,
batch process, server and the whole machine (all of them at once) are killed at ``--random`` random
moments, each while lines flow again after the kill before. What died starts again.

At the end the output and error files are compared with the input: every line must have one record.
The stand-ins write down what they were asked, and the store is looked at in between: a line whose
end was seen must not be asked again, and its record must not change.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.queue_port import TERMINAL, DurableQueue, QueueError
from holdfast.storage.queues.sqlite import SqliteQueue
from holdfast.testing.standin.engine import StandInEngine
from holdfast.testing.standin.options import Options
from holdfast.testing.standin.server import StandIn
from holdfast.testing.store_servers import PostgresServer, StoreServer, ValkeyServer
from operations_http import ask, free_port, upload

HERE = Path(__file__).parent
QUEUE = "batch/default/m"
CHILDREN = ("batch", "gateway-0", "control")
ALL = "all at once"
ROLES = (*CHILDREN, ALL)
BATCHES = 4  # created at the beginning; each kill at an enqueue creates one more
SLOTS = 8  # of each stand-in
POINT_S = 60.0  # for a process that serves to come to its point: heartbeats are every 30 s
START_S = 300.0  # for a process to be started again, on a machine with much else to do
FLOWING = 4  # lines asked since the kill before: whoever died is at work again
KILL_S = 4.0  # of work for each kill at a random moment
CALLS = ("enqueue", "lease", "ack", "nack", "release", "extend", "reclaim")
POINTS = {
    "sqlite": ("begun", *(f"{call} changed" for call in CALLS), "committed", "answered"),
    "postgres": ("begun", *(f"{call} changed" for call in CALLS), "committed"),
    "valkey": ("begun", *(f"{call} committed" for call in CALLS)),
}


@dataclass
class Progress:
    """What was done so far, in a file: a second run of the same folder goes on from there."""

    path: Path
    ports: list[int] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    points: list[list[Any]] = field(default_factory=list)
    randoms: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> "Progress":
        """Read the file, or begin a new one."""
        told = json.loads(path.read_text()) if path.exists() else {}
        return cls(path, **told)

    def save(self) -> None:
        """Write the file whole."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "path"}
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(told))
        draft.rename(self.path)

    def killed(self, what: str) -> None:
        """Count a kill."""
        self.kills[what] = self.kills.get(what, 0) + 1
        self.save()


class Trial:
    """One store, one fleet, and all kills."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given = given
        self.folder = folder
        self.progress = Progress.read(folder / "progress.json")
        self.random = random.Random(f"{given.seed} {self.progress.randoms}")
        if not self.progress.ports:
            self.progress.ports = [free_port() for _ in range(7)]
        self.base = f"http://127.0.0.1:{self.progress.ports[4]}"
        self.plan = folder / "plan"
        self.asked_log = folder / "asked.jsonl"
        self.ended: dict[str, float] = {}  # lines whose end was seen, and when
        self.records: dict[str, str] = {}
        self.changed: set[str] = set()
        self.server: StoreServer | None = None
        self.serve: asyncio.subprocess.Process | None = None
        self.stand_ins: list[StandIn] = []
        self.store: DurableQueue | None = None
        self.began = time.monotonic()

    # --- the stage ---

    async def open(self) -> None:
        """Start all that runs."""
        self._start_server()
        seconds = len(self._named()) * 8.0 + self.given.random * KILL_S
        # The work is to last as long as the kills do, or they would meet nobody at work.
        spare = 2 * SLOTS * 0.9
        ttft_ms = min(3_000.0, max(20.0, spare * seconds / self.given.items * 1_000))
        _write_down(self.asked_log)
        for number in (0, 1):
            stand_in = StandIn(Options(ttft_ms=ttft_ms, tpot_ms=1.0, tokens=5, slots=SLOTS))
            own = self.progress.ports
            await stand_in.start(port=own[number], side_port=own[number + 2])
            self.stand_ins.append(stand_in)
        fleet = self.folder / "fleet.yaml"
        fleet.write_text(self._fleet(), encoding="utf-8")
        await self._start_serve()
        self.store = self._open_store()
        await _patiently(lambda: _asked(self.base, "/readyz/m"))
        await _patiently(lambda: _asked(self.base, "/v1/batches"))

    async def _start_serve(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE / "kill_points"),
            "HOLDFAST_KILL_PLAN": str(self.plan),
            "HOLDFAST_KILL_STORE": self.given.store,
            "QUEUE_URL": self.server.url if self.server is not None else "",
        }
        fleet = str(self.folder / "fleet.yaml")
        command = (sys.executable, "-m", "holdfast", "serve", "-c", fleet)
        state = ("--state-dir", str(self.folder / "state"))
        self.serve = await asyncio.create_subprocess_exec(
            *command, *state, stderr=self._log().open("ab"), env=environment
        )

    async def close(self) -> None:
        """End all that runs; what was done is kept."""
        self.progress.seconds += time.monotonic() - self.began
        self.progress.save()
        if self.serve is not None:
            self.serve.send_signal(signal.SIGTERM)
            await self.serve.wait()
        for stand_in in self.stand_ins:
            await stand_in.stop()
        if self.store is not None:
            await self.store.close()
        if self.server is not None:
            self.server.stop()

    def _start_server(self) -> None:
        kinds = {"postgres": PostgresServer, "valkey": ValkeyServer}
        if self.given.store not in kinds:
            return
        self.server = kinds[self.given.store]()
        shutil.rmtree(self.server.folder)
        self.server.port = self.progress.ports[6]
        self.server.folder = self.folder / "server"
        if not self.server.folder.exists():
            self.server.folder.mkdir(mode=0o755)
            self.server.prepare()
        self.server.start()

    def _open_store(self) -> DurableQueue:
        if self.server is None:
            return SqliteQueue(self.folder / "state" / "batch" / "queue.sqlite")
        if self.given.store == "postgres":
            from holdfast.storage.queues.postgres import PostgresQueue  # noqa: PLC0415 an extra

            return PostgresQueue(self.server.url)
        from holdfast.storage.queues.redis import RedisQueue  # noqa: PLC0415 an extra

        return RedisQueue(self.server.url)

    def _fleet(self) -> str:
        ports = self.progress.ports
        kinds = {"postgres": "postgresql", "valkey": "redis"}
        kind = kinds.get(self.given.store)
        store = f", store: {{kind: {kind}, url_env: QUEUE_URL}}" if kind else ""
        return f"""gateway: {{listen: "127.0.0.1:{ports[4]}"}}
admin: {{listen: "127.0.0.1:{ports[5]}"}}
batch: {{enabled: true{store}}}
models:
  - name: m
    engine: openai
    endpoints:
      - {{id: a, url: "http://127.0.0.1:{ports[0]}", slots: {SLOTS}}}
      - {{id: b, url: "http://127.0.0.1:{ports[1]}", slots: {SLOTS}}}
"""

    def _log(self) -> Path:
        return self.folder / "serve.log"

    # --- work ---

    def _named(self) -> list[tuple[str, int]]:
        points = POINTS[self.given.store]
        return [(point, nth) for point in points for nth in range(1, self.given.each + 1)]

    def _batch_count(self) -> int:
        return BATCHES + sum(point.startswith("enqueue") for point, _ in self._named())

    async def create(self) -> None:
        """Create the next batch; called again after a loss, it is still one batch."""
        number = len(self.progress.batches)
        if number >= self._batch_count():
            return
        size, count = self.given.items, self._batch_count()
        path = self.folder / f"in-{number}.jsonl"
        lines = range(size * number // count, size * (number + 1) // count)
        path.write_bytes(b"".join(_line(line) for line in lines))
        key = f"{self.given.seed}-{number}"
        file = await _patiently(
            lambda: asyncio.to_thread(upload, self.base, path, {"idempotency-key": key})
        )
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        headers = {"idempotency-key": key}
        batch = await _patiently(
            lambda: asyncio.to_thread(ask, self.base, "POST", "/v1/batches", body, headers=headers)
        )
        self.progress.batches.append(batch["id"])
        self.progress.save()

    # --- kills ---

    def _pids(self) -> dict[str, int]:
        """The processes that were started last, by their names."""
        pids: dict[str, int] = {}
        for line in self._log().read_text(encoding="utf-8", errors="replace").splitlines():
            if '"event":"started"' in line and line.startswith("{"):
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    pids[said.get("child")] = said.get("pid")
        return pids

    def kill(self, role: str) -> bool:
        """Kill a process of the fleet; False where it is not there just now."""
        with contextlib.suppress(KeyError, ProcessLookupError):
            os.kill(self._pids()[role], signal.SIGKILL)
            return True
        return False

    async def _kill_all(self) -> None:
        """What the end of the machine does to ``holdfast serve``; then it is started again."""
        assert self.serve is not None
        self.serve.kill()
        for role in CHILDREN:
            self.kill(role)
        await self.serve.wait()
        await self._start_serve()

    async def at_points(self) -> None:
        """Let the batch process die at every named point."""
        for point, nth in self._named():
            if [point, nth] not in self.progress.points:
                reached = await self._die_at(point, nth)
                self.progress.points.append([point, nth])
                self.progress.killed("at named points" if reached else f"not reached: {point}")

    async def _die_at(self, point: str, nth: int) -> bool:
        """Start the batch process with a plan to die; whether it came to its point."""
        reached = self.plan.with_suffix(".reached")
        reached.unlink(missing_ok=True)
        self.plan.write_text(f"{point} {nth}")
        before = self._serves()
        self.kill("batch")
        await self._until(lambda: reached.exists() or self._serves() > before, START_S)
        beside = asyncio.create_task(self._lead_to(point))
        await self._until(reached.exists, POINT_S)
        self.plan.unlink(missing_ok=True)
        await beside
        return reached.exists()

    def _serves(self) -> int:
        """How often a batch process began to serve so far."""
        return self._log().read_text(errors="replace").count('"event":"batch process serves"')

    @staticmethod
    async def _until(condition: Callable[[], bool], within_s: float) -> None:
        end = time.monotonic() + within_s
        while not condition() and time.monotonic() < end:  # noqa: ASYNC110 others write files
            await asyncio.sleep(0.1)

    async def _lead_to(self, point: str) -> None:
        """Do what makes the batch process come to a point, where ordinary work does not."""
        if point.startswith("enqueue"):
            await self.create()
        elif point.startswith("release"):
            await asyncio.sleep(2.0)
            self.kill("gateway-0")
        elif point.startswith("nack"):
            await self._strike({"kind": "flaky", "probability": 0.5})
            await asyncio.sleep(8.0)
            await self._strike(None)

    async def _strike(self, fault: dict[str, Any] | None) -> None:
        for port in self.progress.ports[2:4]:
            base = f"http://127.0.0.1:{port}"
            method = "DELETE" if fault is None else "POST"
            with contextlib.suppress(OSError):
                await asyncio.to_thread(ask, base, method, "/fault", fault)

    async def at_random(self) -> None:
        """Kill somebody at a random moment while lines flow, again and again."""
        while self.progress.randoms < self.given.random:
            if not await self._flows():
                print(f"no line flows after {self.progress.randoms} kills", file=sys.stderr)
                return
            await asyncio.sleep(self.random.uniform(0.0, 2.0))
            number = self.progress.randoms
            if self.server is not None and number % 4 == 3:
                await asyncio.to_thread(self.server.kill)
                await asyncio.sleep(self.random.uniform(0.0, 0.5))
                await asyncio.to_thread(self.server.start)
                self._killed("the server")
            else:
                role = self.random.choice(ROLES)
                if role == ALL:
                    await self._kill_all()
                    self._killed(role)
                elif self.kill(role):
                    self._killed(role)
            if number % 5 == 4:
                await self.look()

    def _killed(self, role: str) -> None:
        self.progress.randoms += 1
        self.progress.killed(f"of {role}")

    async def _flows(self) -> bool:
        """Wait until lines are asked again; whether they are."""

        def asked() -> int:
            return self.asked_log.read_bytes().count(b"\n") if self.asked_log.exists() else 0

        enough = asked() + FLOWING
        await self._until(lambda: asked() >= enough, START_S)
        return asked() >= enough

    # --- looks ---

    async def look(self) -> None:
        """Read all terminal records: one that was seen must stay as it was."""
        assert self.store is not None
        at = time.time()
        after = 0
        try:
            while page := await self.store.items(QUEUE, states=TERMINAL, after=after, limit=500):
                for view in page:
                    after = view.seq
                    line = json.loads(view.result)["custom_id"] if view.result else ""
                    if line:
                        self._seen(line, view.result.decode(), at)
        except QueueError:
            return  # the server is being started again

    def _seen(self, line: str, record: str, at: float) -> None:
        if self.records.setdefault(line, record) != record:
            self.changed.add(line)
        self.ended.setdefault(line, at)

    async def finish(self) -> dict[str, Any]:
        """Let all batches end, and count."""
        lines: Counter[str] = Counter()
        states: Counter[str] = Counter()
        for batch_id in self.progress.batches:
            batch = await self._ended(batch_id)
            states[batch["status"]] += 1
            for name in ("output_file_id", "error_file_id"):
                if not batch[name]:
                    continue
                path = f"/v1/files/{batch[name]}/content"
                text = await _patiently(lambda path=path: _asked(self.base, path))  # type: ignore[misc]
                for record in text.splitlines(keepends=True):
                    line = json.loads(record)["custom_id"]
                    lines[line] += 1
                    if self.records.get(line, record) != record:
                        self.changed.add(line)
        asked = [json.loads(text) for text in self.asked_log.read_text().splitlines()]
        runs = Counter(line for line, _ in asked)
        late = {line for line, at in asked if at > self.ended.get(line, at)}
        return {
            "store": self.given.store,
            "items": self.given.items,
            "batches": dict(states),
            "kills": self.progress.kills,
            "kills_in_all": sum(
                count
                for what, count in self.progress.kills.items()
                if not what.startswith("not reached")
            ),
            "seconds": round(self.progress.seconds + time.monotonic() - self.began, 1),
            "lost": self.given.items - len(lines),
            "two_terminal_records": sum(count > 1 for count in lines.values()),
            "changed_after_they_were_seen": len(self.changed),
            "ran_more_than_once": sum(count > 1 for count in runs.values()),
            "runs": sum(runs.values()),
            "ran_after_their_end": len(late),
        }

    async def _ended(self, batch_id: str) -> dict[str, Any]:
        while True:
            told = await _patiently(lambda: _asked(self.base, f"/v1/batches/{batch_id}"))
            batch: dict[str, Any] = json.loads(told)
            if batch["status"] in {"completed", "failed", "expired", "cancelled"}:
                return batch
            await self.look()
            await asyncio.sleep(1.0)


def _write_down(path: Path) -> None:
    """Make every stand-in of this process write down which line it was asked, and when."""
    answer = StandInEngine.on_request

    def on_request(self: StandInEngine, conn: Any, asked: Any) -> None:
        if asked.method == b"POST" and b"count to " in asked.body:
            line = "c" + asked.body.partition(b"count to ")[2].partition(b'"')[0].decode()
            with path.open("a") as file:
                file.write(json.dumps([line, time.time()]) + "\n")
        answer(self, conn, asked)

    StandInEngine.on_request = on_request  # type: ignore[method-assign]


async def _patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of a call, as soon as there is one: somebody is being started again."""
    while True:
        try:
            return await call()
        except OSError:
            await asyncio.sleep(0.2)


async def _asked(base: str, path: str) -> str:
    return str(await asyncio.to_thread(ask, base, "GET", path, raw=True))


def _line(number: int) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": f"count to {number}"}]}
    line = {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    return json.dumps(line).encode() + b"\n"


async def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one store through all kills and count."""
    trial = Trial(given, folder)
    own = asyncio.current_task()
    assert own is not None
    for sign in (signal.SIGINT, signal.SIGTERM):  # what it started is ended with it
        asyncio.get_running_loop().add_signal_handler(sign, own.cancel)
    try:
        await trial.open()
        while len(trial.progress.batches) < min(BATCHES, trial._batch_count()):  # noqa: SLF001
            await trial.create()
        await trial.at_points()
        await trial.at_random()
        while len(trial.progress.batches) < trial._batch_count():  # noqa: SLF001
            await trial.create()
        return await trial.finish()
    finally:
        await trial.close()


def main() -> int:
    """Run and print; 0 where nothing was lost, ended twice or ran after its end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", choices=sorted(POINTS), default="sqlite")
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--each", type=int, default=1, help="deaths at each named point")
    parser.add_argument("--random", type=int, default=100, help="deaths at random moments")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="kept; a second run goes on in it")
    given = parser.parse_args()
    with contextlib.ExitStack() as kept:
        folder = given.folder
        if folder is None:
            folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-kill-")))
            folder.chmod(0o755)  # PostgreSQL runs as nobody
        folder.mkdir(parents=True, exist_ok=True)
        try:
            result = asyncio.run(measure(given, folder.resolve()))
        except asyncio.CancelledError:
            print(f"stopped; go on with --folder {folder}", file=sys.stderr)
            return 2
    print(json.dumps(result, indent=2))
    bad = ("lost", "two_terminal_records", "changed_after_they_were_seen", "ran_after_their_end")
    return 1 if any(result[name] for name in bad) else 0


if __name__ == "__main__":
    sys.exit(main())
