"""What the joined view and its history cost control, and whether gateways pay for being watched.

    python bench/view.py [--replicas 500] [--models 20] [--rounds 4] [--seconds 4] [--quick]

The first part makes a fleet of that size by hand (readings of a platform and what control knows),
changes every figure in it between two refreshes, and takes the CPU time of each step. Listeners are
real: a server process with the view's own routes, and clients in another process that read events.

The second part is a gateway under closed-loop load, first with nobody looking, then with three
listeners of ``/view/stream`` and one that asks ``/history`` all the time, then the other way round.
What is compared is the CPU time of the gateway process for an answer, as a ratio within one round,
because a machine's speed drifts.

Exit status 1: a refresh costs control more than 200 ms, or a watched gateway more than 5 % more.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

import gateway_processes as processes
from fault_fleet import Replica, answers, call, end, free_ports, wait_for
from holdfast.control.view.history import Sampler
from holdfast.control.view.live_view import LiveView, view_routes
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.view.fleet_records import FleetRecords, ModelRecord, ReplicaRecord
from holdfast.core.view.layers import Disk, Group, Host, Part, Placed, Queue, Reading
from holdfast.core.view.snapshot import Snapshot
from holdfast.core.view.snapshot_join import join
from holdfast.storage.history import History

LISTENERS: Final = 3
REFRESHES: Final = 30
FLUSHES: Final = 200  # a series has its turn every 90th: two turns and more
SERVED_S: Final = 8.0
REFRESH_MS_MAX: Final = 200.0
WATCHED_MAX: Final = 1.05
GB: Final = 1 << 30
HOST: Final = "127.0.0.1"


# --- a fleet --------------------------------------------------------------------------------------


class Fleet:
    """Readings and knowledge of so many replicas; ``move`` changes all figures. A view's house."""

    def __init__(self, replicas: int, models: int) -> None:
        self._rng = Random(7)
        self._number = 0
        names = [f"model-{number:02}" for number in range(models)]
        self._known = [
            ReplicaRecord(
                f"{names[n % models]}-{n}",
                names[n % models],
                "ready",
                endpoint=f"http://10.0.{n // 250}.{n % 250}:8000",
                limit_bytes=80 * GB,
                reserved_bytes=70 * GB,
            )
            for n in range(replicas)
        ]
        self._models = [ModelRecord(name, desired=replicas // models) for name in names]
        hosts = max(1, replicas // 4)
        now = time.time()
        parts = [Part(name, now, calls=6, took_s=0.2) for name in ("ecs", "ec2", "sqs", "efs")]
        self._reading = Reading(
            "aws",
            "aws",
            now,
            parts=tuple(parts),
            groups=tuple(Group(f"group-{n}", hosts // 10, 1, hosts) for n in range(10)),
            hosts=tuple(_host(n, now) for n in range(hosts)),
            placed=tuple(_placed(one, n, hosts, now) for n, one in enumerate(self._known)),
            queues=tuple(Queue(f"{name}-requests", name) for name in names),
            disks=(Disk("fs-1", "elastic", 2e9, 2e9, 4e9), Disk("fs-2", "bursting", 1e8)),
        )
        self._now_known = FleetRecords()
        self._now_readings: list[Reading] = []
        self.move()

    def move(self) -> None:
        """All figures are others now."""
        rng = self._rng
        self._number += 1
        replicas = [
            replace(
                one,
                share=rng.random(),
                inflight=rng.randrange(64),
                running=rng.randrange(64),
                waiting=rng.randrange(8),
                kv_used=rng.random(),
                tokens_s=rng.random() * 900,
                ttft_s=rng.random(),
                canary_s=rng.random(),
                used_bytes=rng.randrange(60 * GB, 79 * GB),
            )
            for one in self._known
        ]
        models = [
            replace(
                one,
                queued=rng.randrange(100),
                inflight=rng.randrange(900),
                requests_s=rng.random() * 90,
                tokens_s=rng.random() * 9_000,
                prefix_hits=rng.random(),
                ttft_s=rng.random(),
                errors_share=rng.random() / 100,
                burn=rng.random() * 2,
            )
            for one in self._models
        ]
        totals = {"requests_s": rng.random() * 900, "tokens_s": rng.random() * 9e4, "gateways": 2}
        self._now_known = FleetRecords(tuple(replicas), tuple(models), totals)
        queues = tuple(
            replace(one, visible=rng.randrange(900), in_flight=rng.randrange(90), dead_letters=0)
            for one in self._reading.queues
        )
        placed = tuple(
            replace(one, used_bytes=rng.randrange(60 * GB, 79 * GB)) for one in self._reading.placed
        )
        self._now_readings = [replace(self._reading, queues=queues, placed=placed, at=time.time())]

    def records(self) -> FleetRecords:
        """What control itself knows."""
        return self._now_known

    def readings(self) -> list[Reading]:
        """What platforms said last."""
        return self._now_readings

    def unclosed(self) -> list[Incident]:
        """Incidents that are not over."""
        return []

    def took_s(self) -> float | None:
        """How long platforms took for the latest readings."""
        return 1.5

    def names(self) -> dict[str, str]:
        """Ids of replicas by endpoint."""
        return {one.endpoint: one.id for one in self._known}


def _host(number: int, now: float) -> Host:
    return Host(
        f"i-{number:08x}",
        f"group-{number % 10}",
        "p5.48xlarge",
        "on-demand",
        "zone-a",
        launched_at=now - 86_400,
        joined_at=now - 86_100,
        cpus=192.0,
        cpus_free=100.0,
        memory_bytes=2_048 * GB,
        reserved_bytes=320 * GB,
        used_bytes=300 * GB,
        gpus=8,
        gpus_free=4,
        running=4,
        pending=0,
        cuda="12.8",
        driver="570.1",
    )


def _placed(one: ReplicaRecord, number: int, hosts: int, now: float) -> Placed:
    return Placed(
        f"task-{number:08x}",
        one.model,
        "running",
        f"i-{number % hosts:08x}",
        endpoint=one.endpoint,
        gpus=1,
        reserved_bytes=70 * GB,
        limit_bytes=80 * GB,
        filesystem="fs-1",
        log_stream=f"ecs/app/{number:08x}",
        image="registry/app@sha256:0123456789abcdef",
        created_at=now - 80_000,
        started_at=now - 79_900,
        phase="serving",
        spoke_at=now - 1,
    )


# --- control --------------------------------------------------------------------------------------


def _cpu_ms(work: Callable[[], Any], times: int, before: Callable[[], None] | None = None) -> float:
    """Median CPU time of this thread, in milliseconds."""
    spent = []
    for _ in range(times):
        if before is not None:
            before()
        began = time.thread_time()
        work()
        spent.append((time.thread_time() - began) * 1e3)
    return statistics.median(spent)


def picture(fleet: Fleet) -> list[tuple[str, str, str]]:
    """What one refresh costs, by steps and whole."""

    def joined() -> Snapshot:
        now = time.time()
        names = fleet.names()
        return join(fleet.readings(), fleet.records(), [], now, time.monotonic_ns(), names=names)

    snapshot = joined()
    size = len(orjson.dumps(snapshot))
    steps = [
        ("join: readings and knowledge to rows", _cpu_ms(joined, REFRESHES, fleet.move)),
        ("JSON of the whole picture", _cpu_ms(lambda: orjson.dumps(snapshot), REFRESHES)),
    ]
    ticks = iter(range(1, 10_000))
    view = LiveView(fleet, clock=lambda: float(next(ticks)), period_s=0.0)
    whole = _cpu_ms(view.body, REFRESHES, fleet.move)
    rows = [(what, f"{ms:.1f} ms", "") for what, ms in steps]
    told = f"{size / 1024:.0f} KB, {len(snapshot.replicas)} replicas, {len(snapshot.models)} models"
    rows.append(("**a refresh, whole (compare, join, JSON)**", f"**{whole:.1f} ms**", told))
    _verdicts["refresh"] = whole <= REFRESH_MS_MAX
    return rows


_verdicts: dict[str, bool] = {}


def history(fleet: Fleet, scratch: Path) -> list[tuple[str, str, str]]:
    """What keeping a sample costs the loop, and the writer's thread; and two questions."""
    now = [time.time() // 10 * 10]
    found = History(scratch / "history.sqlite", steady=lambda: now[0])
    ticks = iter(range(1, 10_000))
    view = LiveView(fleet, clock=lambda: float(next(ticks)), period_s=0.0)
    snapshot = view.snapshot()
    sampler = Sampler(found, lambda: snapshot, clock=lambda: now[0])
    spent = []
    points = 0
    for number in range(FLUSHES):
        now[0] += 10
        if number % 10 == 0:
            fleet.move()
            snapshot = view.snapshot()
        began = time.thread_time()
        points = sampler.sample()
        spent.append((time.thread_time() - began) * 1e3)
        found.flush(60)
    written = found.write_s / FLUSHES * 1e3
    size = sum(part.stat().st_size for part in scratch.glob("history.sqlite*"))
    found.close(60)
    told = f"{points} series; {size / 1e6:.1f} MB after {FLUSHES} samples"
    return [
        ("history: a sample, every 10 s, in the loop", f"{statistics.median(spent):.1f} ms", ""),
        ("history: writing it, in its own thread", f"{written:.1f} ms", told),
    ]


# --- listeners ------------------------------------------------------------------------------------


def serve(replicas: int, models: int, port: int) -> None:
    """A process that does nothing but show a fleet that changes all the time."""
    import uvicorn  # noqa: PLC0415 the other processes do without
    from starlette.applications import Starlette  # noqa: PLC0415

    async def main() -> None:
        fleet = Fleet(replicas, models)
        view = LiveView(fleet)
        app = Starlette(routes=view_routes(lambda: view))
        config = uvicorn.Config(app, HOST, port, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not serving.done():
            await asyncio.sleep(1.0)
            fleet._now_known = replace(fleet.records(), totals={"requests_s": time.time()})  # noqa: SLF001
        await serving

    asyncio.run(main())


def watch(url: str, listeners: int, ask: str) -> None:
    """Until ended: read events on so many connections, and ask one page over and over."""
    host, _, port = url.removeprefix("http://").partition(":")
    sockets = []
    for _ in range(listeners):
        link = socket.create_connection((host, int(port)), timeout=10)
        link.sendall(f"GET /view/stream HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        link.setblocking(False)
        sockets.append(link)
    print("watching", flush=True)
    while True:
        time.sleep(0.2)
        for link in sockets:
            with suppress(BlockingIOError):
                while link.recv(1 << 20):
                    continue
        if ask:
            with suppress(OSError):
                call(url + ask)


@contextmanager
def watching(url: str, listeners: int, ask: str = "") -> Iterator[None]:
    """Clients of the view, in a process of their own."""
    command = [sys.executable, __file__, "--watch", url, "--listeners", str(listeners)]
    process = subprocess.Popen([*command, "--ask", ask], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"watching\n":
            raise RuntimeError("nobody could watch")
        yield
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def listening(replicas: int, models: int, seconds: float) -> list[tuple[str, str, str]]:
    """CPU of a process that shows the view to one listener and to several."""
    (port,) = free_ports(1, Random())
    url = f"http://{HOST}:{port}"
    command = [sys.executable, __file__, "--serve", str(port)]
    command += ["--replicas", str(replicas), "--models", str(models)]
    process = subprocess.Popen(command)
    try:
        wait_for(f"{url}/view", process)
        costs = {}
        for listeners in (1, 1 + LISTENERS):
            with watching(url, listeners):
                time.sleep(1.0)
                before = sum(processes.cpu_seconds([process.pid]).values())
                time.sleep(seconds)
                after = sum(processes.cpu_seconds([process.pid]).values())
            costs[listeners] = (after - before) / seconds * 1e3
    finally:
        process.terminate()
        process.wait(10)
    more = max(0.0, costs[1 + LISTENERS] - costs[1])
    told = f"{costs[1]:.0f} ms with one, {costs[1 + LISTENERS]:.0f} ms with {1 + LISTENERS}"
    return [(f"sending it to {LISTENERS} listeners more, a second", f"{more:.1f} ms", told)]


# --- gateways -------------------------------------------------------------------------------------

BODY: Final = orjson.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "Say it in a few words."}]}
)
REQUEST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
STAND_IN: Final = ("--ttft-ms", "1", "--tpot-ms", "0", "--tokens", "4")
CLIENTS: Final = 16
WARM_S: Final = 0.5


def gateways(rounds: int, seconds: float, scratch: Path) -> list[tuple[str, str, str]]:
    """CPU of a gateway for an answer, watched and not."""
    cores = sorted(os.sched_getaffinity(0))
    ports = free_ports(6, Random())
    with contextlib.ExitStack() as stack:
        with processes.on_core(cores[-1], cores[-1]):
            pairs = zip(ports[:2], ports[2:4], strict=True)
            replicas = [Replica(port, side, STAND_IN) for port, side in pairs]
        stack.callback(os.sched_setaffinity, 0, set(cores))
        stack.callback(end, [one.process for one in replicas])
        for one in replicas:
            wait_for(f"{one.side}/stats", one.process)
        data, admin = ports[4:]
        ends = [f"http://{HOST}:{port}" for port in ports[:2]]
        file = {
            "gateway": {"listen": f"{HOST}:{data}", "workers": 1},
            "admin": {"listen": f"{HOST}:{admin}"},
            "models": [{"name": "m", "engine": "vllm", "endpoints": ends}],
        }
        config = scratch / "fleet.yaml"
        config.write_bytes(orjson.dumps(file))  # JSON is YAML
        command = [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]
        log = stack.enter_context((scratch / "serve.log").open("wb"))
        with processes.on_core(cores[0], cores[-1]):
            fleet = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(end, [fleet])
        wait_for(f"http://{HOST}:{data}/readyz", fleet)
        wait_for(f"http://{HOST}:{admin}/readyz/m", fleet)
        return _side_by_side(data, f"http://{HOST}:{admin}", rounds, seconds)


def _side_by_side(port: int, admin: str, rounds: int, seconds: float) -> list[tuple[str, str, str]]:
    pids = [one["pid"] for one in call(f"{admin}/status")["gateways"]]
    asked = "/history?series=model/&match=prefix" if answers(f"{admin}/history/series") else ""
    costs: dict[bool, list[float]] = {False: [], True: []}
    ratios = []
    for number in range(rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        found: dict[bool, float] = {}
        for watched in order:
            with watching(admin, LISTENERS, asked) if watched else contextlib.nullcontext():
                found[watched] = asyncio.run(_cost_us(port, pids, seconds))
            costs[watched].append(found[watched])
        ratios.append(found[True] / found[False])
    ratio = statistics.median(ratios)
    _verdicts["gateways"] = ratio <= WATCHED_MAX
    alone, seen = (statistics.median(costs[watched]) for watched in (False, True))
    each = ", ".join(f"{one:.3f}" for one in ratios)
    how = f"{LISTENERS} listeners" + (" and /history asked 5 times a second" if asked else "")
    return [
        ("gateway, CPU per request, nobody looks", f"{alone:.1f} µs", ""),
        ("gateway, CPU per request, watched", f"{seen:.1f} µs", how),
        ("**watched / not watched**", f"**{ratio:.3f}**", f"of each round: {each}"),
    ]


async def _cost_us(port: int, pids: list[int], seconds: float) -> float:
    """Closed loop: each client asks again as soon as it has its answer."""
    answered = 0
    over = False

    async def client() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection(HOST, port)
        while not over:
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
            body = await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200") or b'"content"' not in body:
                raise RuntimeError(f"not an answer: {(head + body)[:300]!r}")
            answered += 1
        writer.close()
        await writer.wait_closed()

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    await asyncio.sleep(WARM_S)
    before, answered = sum(processes.cpu_seconds(pids).values()), 0
    await asyncio.sleep(seconds)
    after, counted = sum(processes.cpu_seconds(pids).values()), answered
    over = True
    await asyncio.gather(*clients)
    return (after - before) / counted * 1e6


# --- all of it ------------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=500)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4, help="of the gateways, watched and not")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each of them")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s")
    parser.add_argument("--only", choices=["picture", "history", "listeners", "gateways"])
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--listeners", type=int, default=LISTENERS, help=argparse.SUPPRESS)
    parser.add_argument("--ask", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run all; 1 when a target is missed."""
    given = _arguments()
    if given.watch is not None:
        watch(given.watch, given.listeners, given.ask)
    if given.serve is not None:
        serve(given.replicas, given.models, given.serve)
        return 0
    rounds, seconds = (2, 2.0) if given.quick else (given.rounds, given.seconds)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        scratch = Path(folder)
        fleet = Fleet(given.replicas, given.models)
        gc.collect()
        parts: dict[str, Callable[[], list[tuple[str, str, str]]]] = {
            "picture": lambda: picture(fleet),
            "history": lambda: history(fleet, scratch),
            "listeners": lambda: listening(given.replicas, given.models, SERVED_S),
            "gateways": lambda: gateways(rounds, seconds, scratch),
        }
        rows: list[tuple[str, str, str]] = []
        for name, part in parts.items():
            if given.only in {None, name}:
                rows += part()
    print("| what | CPU | |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    missed = [name for name, met in _verdicts.items() if not met]
    if missed:
        print(f"\nmissed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["Fleet", "main"]
