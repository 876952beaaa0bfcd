"""Two machines with a control and a gateway each: the leading control fails, and who notices.

    python bench/leadership.py [--rounds 20] [--rate 20] [--store sqlite|postgres]
        [--only kill,freeze,store,cable,island] [--rows FILE] [--json]

Two ``holdfast serve`` on loopback stand for two machines. Their gateways reach the other one's
control through a cable (a proxy here) that can be cut: then it stays open and nothing passes, as
where a switch fails. The lease is in a SQLite file, which each machine reaches by a path of its own
that can be taken away; or in a real PostgreSQL, which each machine reaches by a cable of its own
(``make test-stores`` makes .venv-stores, which has the server). Clients ask both gateways all the
while; every answer is compared.

    kill     the leading control is killed
    freeze   it is suspended; a drain is ordered from it; it wakes when another one leads
    store    it no longer reaches the lease's store
    cable    it no longer reaches the other machine, nor that one it: it still leads
    island   it reaches neither: the other one leads, and its own gateway serves on by the last view

A round ends when one control leads all gateways again. Each is one line of the file ``--rows``
(default: leadership-STORE.jsonl): a run that was ended goes on where it was, so that 20 rounds can
be had in several sittings. A round that comes to no end is a row with a problem, and the next one
begins with new machines. Exit status 1: an order of a deposed control took effect, more than 0.5 %
of requests were harmed, a takeover took more than 10 s, or a round came to no end.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from fault_fleet import Replica, call, end, free_ports, wait_for
from holdfast.config.tenants import hash_key
from operations import STAND_IN, Load, Serve, until

NAMES: Final = ("a", "b")
TOKEN: Final = "hf-operator-of-two-machines"  # noqa: S105 of this benchmark alone
HARMED_MAX: Final = 0.005
TAKEOVER_MAX_S: Final = 10.0
PATIENCE_S: Final = 60.0
LEASE_STORES: Final = ("sqlite", "postgres")
CUT_S: Final = 12.0  # longer than a lease


class Cable:
    """Carries connections to a port; cut, it keeps them open and carries nothing."""

    def __init__(self, port: int, towards: int) -> None:
        self.port, self._towards = port, towards
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    def cut(self) -> None:
        """Let nothing pass."""
        self._whole.clear()

    def mend(self) -> None:
        """Let pass what waits, and what comes."""
        self._whole.set()

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        self._whole.set()
        for writer in list(self._ends):
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        task = asyncio.current_task()
        assert task is not None, "a server runs it as one"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._whole.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._towards)
        except OSError:
            writer.close()
            self._ends.discard(writer)
            return
        self._ends.add(back)
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        finally:
            for one in (writer, back):
                self._ends.discard(one)
                one.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class Machine:
    """One ``holdfast serve`` with a control that may lead."""

    headers = ""

    def __init__(self, name: str, folder: Path, ports: dict[str, int]) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.port, self.admin_port = ports["data"], ports["admin"]
        self.control_port = ports["control"]
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.lease = self.folder / "lease"
        self._shared = folder / "shared"
        self.lease.symlink_to(self._shared)
        self.store_cable: Cable | None = None  # to a database; else the store is the folder above
        self.serve: Serve | None = None

    def write(self, engines: list[int], members: dict[str, int]) -> None:
        """Its fleet file; ``members``: the port at which this machine reaches each control."""
        endpoints = ", ".join(f"http://127.0.0.1:{port}" for port in engines)
        named = ", ".join(
            f"{{name: {name}, address: '127.0.0.1:{port}'}}" for name, port in members.items()
        )
        secret = f"  secret_file: {self._shared}/links.secret\n" if self.store_cable else ""
        (self.folder / "fleet.yaml").write_text(
            f"gateway: {{listen: 127.0.0.1:{self.port}}}\n"
            f"admin: {{listen: 127.0.0.1:{self.admin_port}, token: '{hash_key(TOKEN)}'}}\n"
            f"watch: {{replace: false}}\n"
            f"models:\n  - {{name: m, engine: vllm, endpoints: [{endpoints}]}}\n"
            f"control:\n  members: [{named}]\n  listen: 127.0.0.1:{self.control_port}\n"
            f"  lease: {self._lease()}\n{secret}"
        )

    def _lease(self) -> str:
        if self.store_cable is None:
            return f"{{store: sqlite, path: {self.lease}/lease.sqlite}}"
        place = self.folder / "database-url"
        # Without TLS the first packet of a connection is the database's own.
        url = f"postgresql://holdfast@127.0.0.1:{self.store_cable.port}/postgres?sslmode=disable"
        place.write_text(url)
        return f"{{store: postgres, url_file: {place}}}"

    def start(self) -> None:
        """Start it."""
        environment = {
            "HOLDFAST_CONTROL_NAME": self.name,
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        self.serve = Serve(self.folder / "fleet.yaml", environment=environment)

    def control(self) -> int:
        """The process of its control; 0: there is none."""
        return 0 if self.serve is None else self.serve.control()

    def status(self) -> dict[str, Any]:
        """As its control tells it; empty where that does not lead."""
        try:
            told: dict[str, Any] = call(f"{self.admin}/status", timeout_s=2.0, token=TOKEN)
        except OSError:
            return {}
        return told

    def reach_store(self, reaches: bool) -> None:
        """Give it the lease's store, or take it away."""
        if self.store_cable is not None:
            (self.store_cable.mend if reaches else self.store_cable.cut)()
            return
        draft = self.folder / "lease.new"
        draft.symlink_to(self._shared if reaches else self.folder / "nowhere")
        draft.replace(self.lease)


@dataclass(slots=True)
class Pair:
    """Both machines, the cables between them, and the engines that they share."""

    machines: dict[str, Machine]
    cables: list[Cable]
    replicas: list[Replica] = field(default_factory=list)

    def leader(self) -> Machine | None:
        """The machine whose control leads every gateway; none while there is none."""
        for machine in self.machines.values():
            gateways = machine.status().get("gateways", [])
            if len(gateways) == len(self.machines) and all(one["ready"] for one in gateways):
                return machine
        return None

    def other(self, machine: Machine) -> Machine:
        """The other one."""
        return next(one for one in self.machines.values() if one is not machine)

    async def led(self, *, by: Machine | None = None, what: str = "one control leads") -> Machine:
        """Wait until one control, or this one, leads every gateway."""
        found: list[Machine] = []

        def settled() -> bool:
            leader = self.leader()
            if leader is not None and (by is None or leader is by):
                found.append(leader)
            return bool(found)

        await until(settled, what, PATIENCE_S)
        return found[0]

    def ready(self, machine: Machine) -> set[str]:
        """The replicas that a leading control calls ready."""
        rows = machine.status().get("replicas", [])
        return {row["id"] for row in rows if row["state"] == "ready"}


@contextlib.contextmanager
def machines(folder: Path, database_port: int = 0) -> Iterator[Pair]:
    """Two machines that are not started yet, ended at the end; 0: the lease is in a file."""
    ports = free_ports(4 + 10, Random())
    engines = [ports.pop() for _ in range(4)]
    (folder / "shared").mkdir()
    made = {
        name: Machine(name, folder, {kind: ports.pop() for kind in ("data", "admin", "control")})
        for name in NAMES
    }
    a, b = made.values()
    cables = [Cable(ports.pop(), b.control_port), Cable(ports.pop(), a.control_port)]
    for machine in made.values() if database_port else ():
        machine.store_cable = Cable(ports.pop(), database_port)
    a.write(engines[:2], {"a": a.control_port, "b": cables[0].port})
    b.write(engines[:2], {"a": cables[1].port, "b": b.control_port})
    pair = Pair(made, cables)
    try:
        for port, side in zip(engines[:2], engines[2:], strict=True):
            pair.replicas.append(Replica(port, side, STAND_IN))
        for replica in pair.replicas:
            wait_for(f"{replica.side}/stats", replica.process)
        yield pair
    finally:
        for machine in made.values():
            if machine.serve is not None:
                machine.serve.end()
        end([replica.process for replica in pair.replicas])


# --- what happens --------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """What one round showed."""

    takeover_s: float | None = None  # None: nobody took over, and nobody had to
    order_applied: bool = False  # one of a control that led no more


async def kill(pair: Pair, leader: Machine) -> Outcome:
    """SIGKILL to the leading control; its supervisor starts another, which stands by."""
    began = time.monotonic()
    os.kill(leader.control(), signal.SIGKILL)
    await pair.led(by=None, what="somebody leads after the leader was killed")
    return Outcome(time.monotonic() - began)


async def freeze(pair: Pair, leader: Machine) -> Outcome:
    """SIGSTOP; a drain is asked of it; the other one takes over; SIGCONT."""
    pid, other = leader.control(), pair.other(leader)
    before = pair.ready(leader)
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        order = asyncio.create_task(asyncio.to_thread(_drain, leader, min(before)))
        await pair.led(by=other, what="the other one leads while the leader is frozen")
        took_s = time.monotonic() - began
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    await order
    await until(lambda: leader.control() not in {0, pid}, "the deposed control has ended")
    return Outcome(took_s, order_applied=not before <= pair.ready(other))


def _drain(machine: Machine, replica: str) -> None:
    url = f"{machine.admin}/replicas/{replica}/drain"
    with contextlib.suppress(OSError):  # it is frozen, and later deposed
        call(url, "POST", {}, timeout_s=30.0, token=TOKEN)


async def store(pair: Pair, leader: Machine) -> Outcome:
    """The leader no longer reaches the store of the lease: it must stop by itself."""
    pid, other = leader.control(), pair.other(leader)
    began = time.monotonic()
    leader.reach_store(False)
    try:
        await pair.led(by=other, what="the other one leads")
        took_s = time.monotonic() - began
        await until(lambda: leader.control() != pid, "the deposed control has ended")
    finally:
        leader.reach_store(True)
    return Outcome(took_s)


async def cable(pair: Pair, leader: Machine) -> Outcome:
    """Both cables are cut: the leader keeps its lease, and its own gateway."""
    for one in pair.cables:
        one.cut()
    try:
        await asyncio.sleep(CUT_S)
        if pair.other(leader).status():
            raise RuntimeError("two controls lead")
    finally:
        for one in pair.cables:
            one.mend()
    await pair.led(by=leader)
    return Outcome()


async def island(pair: Pair, leader: Machine) -> Outcome:
    """The leader reaches neither the store nor the other machine."""
    pid, other = leader.control(), pair.other(leader)
    began = time.monotonic()
    leader.reach_store(False)
    for one in pair.cables:
        one.cut()
    try:
        await until(lambda: bool(other.status().get("gateways")), "the other one leads", PATIENCE_S)
        took_s = time.monotonic() - began
        if leader.status():
            raise RuntimeError("two controls lead")
        await until(lambda: leader.control() != pid, "the deposed control has ended", PATIENCE_S)
    finally:
        leader.reach_store(True)
        for one in pair.cables:
            one.mend()
    await pair.led(by=other, what="the other one leads both gateways")
    return Outcome(took_s)


Scene = Callable[[Pair, Machine], Awaitable[Outcome]]
SCENES: Final[dict[str, Scene]] = {
    "kill": kill,
    "freeze": freeze,
    "store": store,
    "cable": cable,
    "island": island,
}


async def play(pair: Pair, name: str, rate: float) -> dict[str, Any]:
    """One failure under load, as a row; a round that comes to no end has a problem."""
    loads = [Load(machine, rate / 2, clients=4) for machine in pair.machines.values()]
    outcome, problem = Outcome(), ""
    async with contextlib.AsyncExitStack() as stack:
        for load in loads:
            await stack.enter_async_context(load)
        try:
            outcome = await SCENES[name](pair, await pair.led())
            await pair.led()
        except (RuntimeError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
    rows = [load.row() for load in loads]
    took = outcome.takeover_s
    return {
        "scene": name,
        "rate": rate,
        "takeover_s": None if took is None else round(took, 2),
        "order_applied": outcome.order_applied,
        "requests": sum(row["requests"] for row in rows),
        "harmed": sum(count for row in rows for count in row["harms"].values()),
        "harms": [row["harms"] for row in rows],
        "slowest_s": max(row["slowest_s"] for row in rows),
        "problem": problem,
    }


async def run(folder: Path, todo: list[str], given: argparse.Namespace, database_port: int) -> None:
    """Play scenes on one pair of machines until all are done or one comes to no end."""
    with machines(folder, database_port) as pair:
        cables = [*pair.cables, *(one.store_cable for one in pair.machines.values())]
        present = [one for one in cables if one is not None]
        for one in present:
            await one.open()
        for machine in pair.machines.values():
            machine.start()
        await pair.led(what="the first control leads")
        while todo:
            row = {"store": given.store, **await play(pair, todo[0], given.rate)}
            todo.pop(0)
            with given.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(_told(row), file=sys.stderr, flush=True)
            if row["problem"]:
                break
        for one in present:
            await one.close()


def _told(row: dict[str, Any]) -> str:
    took = "leads on" if row["takeover_s"] is None else f"{row['takeover_s']} s"
    ended = row["problem"] or f"{row['harmed']} of {row['requests']} harmed"
    return f"{row['store']} {row['scene']}: {took}, {ended}"


def recorded(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rounds of the file that were played with these settings."""
    if not given.rows.exists():
        return []
    rows = [json.loads(line) for line in given.rows.read_text(encoding="utf-8").splitlines()]
    same = ("store", "rate")
    return [row for row in rows if all(row[key] == getattr(given, key) for key in same)]


def missing(given: argparse.Namespace) -> list[str]:
    """The scenes that are still to be played, each as often as rounds are missing."""
    played = [row["scene"] for row in recorded(given)]
    names = given.only.split(",")
    return [name for name in names for _ in range(given.rounds - played.count(name))]


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rounds of each scene together."""
    results: dict[str, dict[str, Any]] = {}
    for name in SCENES:
        mine = [row for row in rows if row["scene"] == name]
        if mine:
            results[name] = {
                "rounds": len(mine),
                "takeover_s": [r["takeover_s"] for r in mine if r["takeover_s"] is not None],
                "orders_applied": sum(row["order_applied"] for row in mine),
                "requests": sum(row["requests"] for row in mine),
                "harmed": sum(row["harmed"] for row in mine),
                "slowest_s": max(row["slowest_s"] for row in mine),
                "problems": [row["problem"] for row in mine if row["problem"]],
            }
    return results


def verdict(results: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it should be."""
    wrong = []
    for name, row in results.items():
        wrong += [f"{name}: a round came to no end: {problem}" for problem in row["problems"]]
        if row["orders_applied"]:
            wrong.append(f"{name}: {row['orders_applied']} orders of a deposed control applied")
        if row["harmed"] > HARMED_MAX * row["requests"]:
            wrong.append(f"{name}: {row['harmed']} of {row['requests']} requests harmed")
        if max(row["takeover_s"], default=0.0) > TAKEOVER_MAX_S:
            wrong.append(f"{name}: a takeover took {max(row['takeover_s'])} s")
    return wrong


def show(results: dict[str, dict[str, Any]]) -> None:
    """A table for people."""
    table = Table(title="Two controls, one leads")
    for column in ("failure", "rounds", "takeover p50 / max s", "orders of a deposed one"):
        table.add_column(column)
    for column in ("requests", "harmed", "slowest s"):
        table.add_column(column, justify="right")
    for name, row in results.items():
        times = row["takeover_s"]
        told = f"{median(times):.1f} / {max(times):.1f}" if times else "none: it leads on"
        cells = [name, str(row["rounds"]), told, str(row["orders_applied"])]
        table.add_row(*cells, str(row["requests"]), str(row["harmed"]), str(row["slowest_s"]))
    Console().print(table)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second, of both")
    parser.add_argument("--store", choices=LEASE_STORES, default="sqlite")
    parser.add_argument("--only", default=",".join(SCENES))
    parser.add_argument("--rows", type=Path, help="one line per round; continued where it ends")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.rows = given.rows or Path(f"leadership-{given.store}.jsonl")
    unknown = set(given.only.split(",")) - set(SCENES)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(SCENES)}")
    with contextlib.ExitStack() as stack:
        port = 0
        if given.store == "postgres" and missing(given):
            from holdfast.testing.store_servers import PostgresServer  # noqa: PLC0415 an extra

            port = stack.enter_context(PostgresServer()).port
        while todo := missing(given):
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(run(Path(folder), todo, given, port))
    results = summary(recorded(given))
    wrong = verdict(results)
    if given.json:
        print(json.dumps({"store": given.store, "results": results, "wrong": wrong}, indent=2))
    else:
        show(results)
        for line in wrong:
            print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
