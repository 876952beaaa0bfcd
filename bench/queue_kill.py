"""Kills whoever works with a durable queue, again and again, and counts what became of its items.

    python bench/queue_kill.py                          # SQLite
    python bench/queue_kill.py --store postgres         # PostgreSQL and Valkey: the environment of
    python bench/queue_kill.py --store valkey           # `make test-stores`

A producer enqueues ``--items`` items, two consumers lease them, work, and record their ends. Each
process is ended with SIGKILL at every named point of a commit (``--each`` times), then at
``--random`` random moments; where the store is a server, every fourth random kill is the server's.
What died starts again. Every process writes what it was told into a file of its own, and that is
compared with the store at the end, and with what the store said at every look in between.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from holdfast.queue_port import (
    TERMINAL,
    DurableQueue,
    ItemState,
    LeaseAnswer,
    LeasedItem,
    NewItem,
    QueueError,
    Settlement,
)
from holdfast.storage.queues.sqlite import SqliteQueue
from holdfast.testing.store_servers import PostgresServer, StoreServer, ValkeyServer

QUEUE = "bench"
CHUNK = 20  # items of one enqueue
WAYS = {"nack": 0.0, "release": 0.08, "extend": 0.16}  # from which draw on, of one in all
POINTS = {  # by store and role: where a process can be ended
    "sqlite": {
        "producer": ("begun", "enqueue changed", "committed", "answered"),
        "consumer": (
            "begun",
            "lease changed",
            "ack changed",
            "nack changed",
            "extend changed",
            "release changed",
            "reclaim changed",
            "committed",
            "answered",
        ),
    },
    "postgres": {
        "producer": ("begun", "enqueue changed", "committed"),
        "consumer": (
            "begun",
            "lease changed",
            "ack changed",
            "nack changed",
            "extend changed",
            "release changed",
            "reclaim changed",
            "committed",
        ),
    },
    "valkey": {
        "producer": ("begun", "enqueue committed"),
        "consumer": (
            "begun",
            "lease committed",
            "ack committed",
            "nack committed",
            "extend committed",
            "release committed",
            "reclaim committed",
        ),
    },
}


@dataclass(frozen=True)
class Store:
    """Which store is used, and how it is opened."""

    kind: str
    folder: Path
    server: StoreServer | None = None

    def open(self, on_point: Callable[[str], None] | None = None) -> DurableQueue:
        """Open the store as one more user."""
        if self.kind == "sqlite":
            return SqliteQueue(self.folder / "queue.db", on_point=on_point)
        assert self.server is not None
        if self.kind == "postgres":
            from holdfast.storage.queues.postgres import PostgresQueue  # noqa: PLC0415 an extra

            return PostgresQueue(self.server.url, on_point=on_point)
        from holdfast.storage.queues.redis import RedisQueue  # noqa: PLC0415 an extra

        return RedisQueue(self.server.url, on_point=on_point)


# --- what is killed -------------------------------------------------------------------------------


@dataclass
class Journal:
    """What one process was told, line by line; a line that was written outlives its process."""

    path: Path
    fd: int = -1

    def write(self, *words: object) -> None:
        """Append one line."""
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self.fd, (" ".join(map(str, words)) + "\n").encode())


@dataclass(frozen=True)
class Plan:
    """How one life of a process ends by itself: at the nth time at a point, or not."""

    point: str = ""
    nth: int = 0


def killer(plan: Plan) -> Callable[[str], None]:
    """A hook that ends this process at the planned point."""
    seen = 0

    def on_point(name: str) -> None:
        nonlocal seen
        if name == plan.point:
            seen += 1
            if seen == plan.nth:
                os.kill(os.getpid(), signal.SIGKILL)

    return on_point


def payload(name: str) -> bytes:
    """The payload of an item: 1 KB that can be told from every other."""
    return (name.encode() + b" ") * (1_024 // (len(name) + 1))


async def produce(store: Store, items: int, journal: Journal, plan: Plan, pace_s: float) -> None:
    """Enqueue all items, and again all of which it is not known that they are there."""
    queue = store.open(killer(plan))
    confirmed = set(journal.path.read_text().split()) if journal.path.exists() else set()
    missing = [f"i{n}" for n in range(items) if f"i{n}" not in confirmed]
    while missing:
        chunk = missing[:CHUNK]
        new = [NewItem(name, payload(name), max_receives=1_000) for name in chunk]
        if await persist(lambda new=new: queue.enqueue(QUEUE, new)):  # type: ignore[misc]
            journal.write(*chunk)
            missing = missing[CHUNK:]
        await asyncio.sleep(pace_s)
    await queue.close()


async def persist(call: Callable[[], Any]) -> Any:
    """The answer of a call, or None where the store was away."""
    try:
        return await call()
    except QueueError:
        await asyncio.sleep(0.05)
        return None


async def consume(store: Store, owner: str, journal: Journal, plan: Plan, pace_s: float) -> None:
    """Lease items, work and record their ends, until a signal ends the process."""
    queue = store.open(killer(plan))
    random = Random(f"{owner} {time.time_ns()}")
    generation = f"{owner}-{os.getpid()}-{time.monotonic_ns()}"
    while await persist(lambda: queue.reclaim(owner)) is None:
        pass
    while True:
        leased = await persist(lambda: queue.lease(QUEUE, 4, 2.0, owner))
        if not leased:
            await asyncio.sleep(0.02)
            continue
        for item in leased:
            journal.write("ran", item.id, generation)
        await asyncio.sleep(pace_s)
        way = WAYS.get(plan.point.split()[0], random.random()) if plan.point else random.random()
        await end(queue, leased, journal, generation, way)


async def end(
    queue: DurableQueue,
    leased: Sequence[LeasedItem],
    journal: Journal,
    generation: str,
    way: float,
) -> None:
    """Give the first of some items back in one of the ways there are; record the rest."""
    first, rest = leased[:1], leased[1:]
    leases = [item.lease for item in first]
    if way < WAYS["release"]:
        await persist(lambda: queue.nack(leases, delay_s=0.0, note={"by": generation}))
    elif way < WAYS["extend"]:
        await persist(lambda: queue.release(leases))
    else:
        if way < 0.3:
            await persist(lambda: queue.extend(leases, 2.0))
        rest = leased
    settlements = []
    for item in rest:
        result = sha256(item.payload).hexdigest() + " " + generation
        settlements.append(Settlement(item.lease, ItemState.DONE, result.encode()))
    answers = None
    while settlements and answers is None:  # an ack can be repeated, and is until it is answered
        answers = await persist(lambda: queue.ack(settlements))
    for item, answer in zip(rest, answers or (), strict=False):
        stands = answer in {LeaseAnswer.OK, LeaseAnswer.REPEATED}
        journal.write("ended" if stands else answer.value, item.id, generation)


# --- who kills ------------------------------------------------------------------------------------


@dataclass
class Worker:
    """One role: a process that is started again whenever it was killed."""

    role: str
    begin: Callable[[Plan], Any]
    pid: int = 0
    lives: int = 0

    def start(self, plan: Plan) -> None:
        """Start the process."""
        self.lives += 1
        self.pid = fork(lambda: self.begin(plan))

    def ended(self) -> bool:
        """Whether the process is over; reaps it."""
        if self.pid:
            pid, _ = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
        return self.pid == 0

    def kill(self) -> None:
        """End the process with SIGKILL, if it is there."""
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def fork(work: Callable[[], Any]) -> int:
    """Run a coroutine in a child of this process; the child never returns."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 a device; the store logs its outages
            os.dup2(nowhere.fileno(), 1)
        asyncio.run(work())
        code = 0
    finally:
        os._exit(code)


@dataclass
class Looks:
    """What the store said at every look: a record that was seen once must stay as it was."""

    folder: Path
    number: int = 0
    seen: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    open_items: int = 0

    def look(self, store: Store) -> dict[str, str]:
        """Read all terminal records in a child, so that this process stays without threads."""
        self.number += 1
        path = self.folder / f"look-{self.number}.json"
        pid = fork(lambda: self._read(store, path))
        os.waitpid(pid, 0)
        if not path.exists():
            return {}
        told = json.loads(path.read_text())
        path.unlink()
        records: dict[str, str] = told["records"]
        self.open_items = told["open"]
        self.changed |= {name for name, value in self.seen.items() if records.get(name) != value}
        self.seen |= records
        return records

    @staticmethod
    async def _read(store: Store, path: Path) -> None:
        queue = store.open()
        records: dict[str, str] = {}
        after = 0
        while page := await queue.items(QUEUE, states=TERMINAL, after=after, limit=1_000):
            for view in page:
                records[view.id] = f"{view.state.value} {view.result.decode()}"
            after = page[-1].seq
        left = sum(depth.open for depth in await queue.depths(QUEUE))
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"records": records, "open": left}))
        draft.rename(path)
        await queue.close()


@contextmanager
def opened(kind: str) -> Iterator[Store]:
    """The store in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-kill-") as name:
        folder = Path(name)
        if kind == "sqlite":
            yield Store(kind, folder)
            return
        with PostgresServer() if kind == "postgres" else ValkeyServer() as server:
            yield Store(kind, folder, server)


def measure(kind: str, items: int, each: int, kills: int, seed: int) -> dict[str, Any]:
    """Run one store through all kills and count."""
    random = Random(f"kills {seed}")
    started = time.monotonic()
    with opened(kind) as store:
        journals = {role: Journal(store.folder / role) for role in ("producer", "c1", "c2")}
        # The work is to last as long as the kills do, or they would meet nobody at work.
        expected_s = 12 * each * 0.5 + kills * (0.3 if kind == "sqlite" else 0.8)
        pace = [expected_s * 8 / items]

        def begin(role: str) -> Callable[[Plan], Any]:
            if role == "producer":
                return lambda plan: produce(store, items, journals[role], plan, pace[0] * 2)
            return lambda plan: consume(store, role, journals[role], plan, pace[0])

        workers = {role: Worker(role, begin(role)) for role in journals}
        looks = Looks(store.folder)
        counts: Counter[str] = Counter()
        named = [
            (role, point, nth)
            for role, points in (
                ("producer", POINTS[kind]["producer"]),
                ("c1", POINTS[kind]["consumer"]),
            )
            for point in points
            for nth in range(1, each + 1)
        ]
        for worker in workers.values():
            worker.start(Plan())
        for role, point, nth in named:
            at_point(workers, role, Plan(point, nth), counts)
        looks.look(store)
        for number in range(kills):
            at_random(workers, store, random, number, counts)
            if number % 10 == 9:
                looks.look(store)
        pace[0] = 0.0
        finish(workers, store, looks)
        records = looks.look(store)
        told = told_by(journals)
    return {
        "store": kind,
        "items": items,
        "kills": dict(counts),
        "kills_in_all": sum(counts.values()),
        "seconds": round(time.monotonic() - started, 1),
        **verdict(items, records, looks, told),
    }


def at_point(workers: dict[str, Worker], role: str, plan: Plan, counts: Counter[str]) -> None:
    """Let one process die at a named point; if it does not come there, it is killed at the end."""
    worker = workers[role]
    worker.kill()
    worker.start(plan)
    deadline = time.monotonic() + 30.0
    while not worker.ended() and time.monotonic() < deadline:
        time.sleep(0.005)
    reached = time.monotonic() < deadline
    counts["at named points" if reached else "point not reached"] += 1
    worker.kill()
    worker.start(Plan())


def at_random(
    workers: dict[str, Worker], store: Store, random: Random, number: int, counts: Counter[str]
) -> None:
    """Wait a random moment and kill somebody."""
    time.sleep(random.uniform(0.02, 0.25))
    if store.server is not None and number % 4 == 3:
        store.server.kill()
        time.sleep(random.uniform(0.0, 0.2))
        store.server.start()
        counts["of the server"] += 1
        return
    role = random.choice(sorted(workers))
    workers[role].kill()
    counts[f"of {'the producer' if role == 'producer' else 'a consumer'}"] += 1
    for worker in workers.values():
        if worker.ended():
            worker.start(Plan())


def finish(workers: dict[str, Worker], store: Store, looks: Looks) -> None:
    """Let the work come to its end, without further kills."""
    for worker in workers.values():
        worker.kill()
        worker.start(Plan())
    deadline = time.monotonic() + 300.0
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if workers["producer"].ended():
            looks.look(store)
            if looks.open_items == 0:
                break
    for worker in workers.values():
        worker.kill()


def told_by(journals: dict[str, Journal]) -> dict[str, list[list[str]]]:
    """What the processes wrote down."""
    told = {}
    for role, journal in journals.items():
        with suppress(FileNotFoundError):
            told[role] = [line.split() for line in journal.path.read_text().splitlines()]
    return told


def verdict(
    items: int, records: dict[str, str], looks: Looks, told: dict[str, list[list[str]]]
) -> dict[str, Any]:
    """Compare what the processes were told with what the store holds."""
    names = {f"i{n}" for n in range(items)}
    confirmed = {name for line in told.get("producer", ()) for name in line}
    lines = [line for role in ("c1", "c2") for line in told.get(role, ())]
    ended: dict[str, set[str]] = {}
    runs: Counter[str] = Counter()
    for what, name, generation in lines:
        if what == "ended":
            ended.setdefault(name, set()).add(generation)
        elif what == "ran":
            runs[name] += 1
    wrong = {
        name
        for name, value in records.items()
        if value.split()[:2] != ["done", sha256(payload(name)).hexdigest()]
    }
    other = {
        name
        for name, generations in ended.items()
        if name in records and records[name].split()[-1] not in generations
    }
    return {
        "confirmed": len(confirmed),
        "ended": len(records),
        "lost": len((names | confirmed) - set(records)),
        "two_terminal_records": len(
            {name for name, generations in ended.items() if len(generations) > 1} | other
        ),
        "changed_after_they_were_seen": len(looks.changed),
        "wrong_results": len(wrong),
        "ran_more_than_once": sum(1 for count in runs.values() if count > 1),
        "runs": sum(runs.values()),
        "ran_after_their_end": ran_after_end(told),
        "fenced": sum(1 for what, _, _ in lines if what == "fenced"),
    }


def ran_after_end(told: dict[str, list[list[str]]]) -> int:
    """Items that one process ran again after the same process was told that they have ended."""
    count = 0
    for role in ("c1", "c2"):
        over: set[str] = set()
        for what, name, _ in told.get(role, ()):
            if what == "ended":
                over.add(name)
            elif what == "ran" and name in over:
                count += 1
    return count


def main() -> int:
    """Run and print; 0 where nothing was lost and nothing ended twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", choices=sorted(POINTS), default="sqlite")
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--each", type=int, default=3, help="deaths at each named point")
    parser.add_argument("--random", type=int, default=100, help="deaths at random moments")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    result = measure(given.store, given.items, given.each, given.random, given.seed)
    print(json.dumps(result, indent=2))
    bad = ("lost", "two_terminal_records", "changed_after_they_were_seen", "wrong_results")
    return 1 if any(result[name] for name in bad) or result["ran_after_their_end"] else 0


if __name__ == "__main__":
    sys.exit(main())
