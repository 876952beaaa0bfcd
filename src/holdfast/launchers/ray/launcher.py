"""The ``Launcher`` port on a Ray cluster: replicas as detached actors, through the bridge.

What a replica is and how it ended is kept in the cluster; here are only those that run, and their
logs, copied line by line into bounded files. A cluster that cannot be reached starts nobody and
ends nobody: control goes on, and the next bridge adopts what still runs.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import structlog

from holdfast.core.types import HostCondition
from holdfast.launchers.keeper import BoundedLog
from holdfast.launchers.ray.link import PLACE_REQUEST_S, BridgeLink, RaySettings
from holdfast.launchers.ray.replica_host import order_of
from holdfast.ports import (
    Adopted,
    Ended,
    LaunchError,
    Order,
    Place,
    PlaceRequest,
    Watcher,
)

RAY: Final = "ray"  # the name of this platform in orders and in the fleet file
FIRST_S: Final = 10.0  # a control that begins waits so long for its cluster, then goes on without
_BEYOND_S: Final = 25.0  # after its grace an actor has so long to tell of an end
_CLOSE_GRACE_S: Final = 5.0
_EARLY_MAX: Final = 256  # replicas whose news wait; more cannot be on their way at once

_log = structlog.get_logger("holdfast.launcher.ray")


class _Running:
    """One replica that has an actor."""

    __slots__ = ("done", "ended", "leaving", "log", "next", "node", "order", "pid", "started_at")

    def __init__(self, order: Order, node: str, pid: int, log: BoundedLog) -> None:
        self.order = order
        self.node = node
        self.pid = pid
        self.log = log
        self.next = 0  # the number of its next news
        self.started_at = 0.0
        self.leaving = False
        self.done = asyncio.Event()
        self.ended: Ended | None = None


class RayLauncher:
    """Starts replicas on the nodes of a Ray cluster, watches them and stops them."""

    def __init__(self, settings: RaySettings, directory: Path) -> None:
        self._directory = directory
        self._watcher: Watcher | None = None
        self._running: dict[str, _Running] = {}
        self._starting: set[str] = set()
        self._placed: dict[str, Place] = {}
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._told: dict[str, HostCondition] = {}  # of nodes, what the watcher knows
        self._early: dict[str, list[Mapping[str, Any]]] = {}  # news of who is not known yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()
        self._first: list[Adopted] | None = []  # until the first adoption is over
        self._link = BridgeLink(
            settings,
            directory,
            hear=self._hear,
            greet=self._greet,
            lost=self._lose,
            environment=os.environ,
        )

    # --- the port --------------------------------------------------------------------------------

    async def adopt(self, watcher: Watcher) -> list[Adopted]:
        """Take over the actors that run already; a cluster out of reach is adopted later."""
        assert self._watcher is None, "adopt is called once"
        self._watcher = watcher
        self._link.start()
        try:
            async with asyncio.timeout(FIRST_S):
                await self._ready.wait()
        except TimeoutError:
            _log.error("the Ray cluster is not reached yet", reason=self._link.why_down)
        adopted, self._first = self._first or [], None
        return adopted

    def places(self, on: str) -> bool:
        """Whether replicas of this platform get their place here."""
        return on == RAY

    async def place(self, on: str, request: PlaceRequest) -> Place:
        """Reserve a node's room for a replica: a placement group, and an actor in it."""
        assert self.places(on), "others have their own launcher"
        need = {
            "model": request.model,
            "zone": request.zone,
            "gpus": request.gpus,
            "cpus": request.cpus,
        }
        name = request.replica_id
        record = await self._link.ask("place", PLACE_REQUEST_S, replica=name, need=need)
        place = _place_of(record)
        self._placed[name] = place
        return place

    async def start(self, order: Order) -> int:
        """Start a replica where it was placed; one that was not is placed first."""
        assert self._watcher is not None, "adopt comes first"
        name = order.replica_id
        if name in self._running or name in self._starting:
            raise LaunchError(f"replica {name!r} runs already; stop it first")
        if not order.command:
            raise LaunchError(f"replica {name!r} has no command to run")
        self._starting.add(name)
        try:
            if name not in self._placed:
                await self.place(RAY, PlaceRequest(name, order.note.get("model", name)))
            begun = await self._link.ask("start", replica=name, order=_data_of(order))
        finally:
            self._starting.discard(name)
            place = self._placed.pop(name, None)
        assert place is not None, "it was placed above"
        running = _Running(order, place.host, int(begun["pid"]), self._log(name))
        self._running[name] = running
        self._tell(self._watcher.started, name, running.pid)
        self._catch_up(name)
        return running.pid

    async def stop(self, replica_id: str, grace_s: float) -> Ended | None:
        """Stop a replica's engine; its actor and its place go with it."""
        running = self._running.get(replica_id)
        if running is None:
            if self._placed.pop(replica_id, None) is not None:  # placed, and not wanted any more
                await self._link.ask("release", replica=replica_id)
            return None
        await self._link.ask(
            "stop", grace_s + _BEYOND_S, replica=replica_id, grace_s=float(grace_s)
        )
        try:
            async with asyncio.timeout(_BEYOND_S):
                await running.done.wait()
        except TimeoutError:
            told = f"replica {replica_id!r} was told to end and Ray does not say that it did"
            raise LaunchError(told) from None
        return running.ended

    def pid(self, replica_id: str) -> int | None:
        """The pid of a replica's engine on its own node; None: it does not run."""
        running = self._running.get(replica_id)
        return None if running is None else running.pid

    def log_path(self, replica_id: str) -> Path | None:
        """The copy of a replica's log on control's host."""
        path = self._folder(replica_id) / "output.log"
        return path if path.exists() else None

    def forget(self, replica_id: str) -> None:
        """Delete what is kept of a replica that ended, here and in the cluster."""
        if replica_id in self._running or replica_id in self._starting:
            return
        for path in self._folder(replica_id).glob("output.log*"):
            path.unlink(missing_ok=True)
        task = asyncio.get_running_loop().create_task(self._forget(replica_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, replica_id: str) -> None:
        try:
            await self._link.ask("forget", replica=replica_id)
        except LaunchError as error:  # it is reported again at the next adoption, and forgotten
            _log.info("not forgotten by the cluster", replica=replica_id, reason=str(error))

    async def close(self, *, leave_running: bool) -> None:
        """Stop watching; the actors run on to be adopted, or are stopped first."""
        if not leave_running:
            names = list(self._running)
            stops = (self.stop(name, _CLOSE_GRACE_S) for name in names)
            for name, result in zip(
                names, await asyncio.gather(*stops, return_exceptions=True), strict=True
            ):
                if isinstance(result, BaseException):
                    _log.error("could not be stopped", replica=name, reason=str(result))
        await asyncio.gather(*self._tasks)
        await self._link.close()
        for running in self._running.values():
            running.log.close()
        self._running.clear()

    def _lose(self) -> None:
        """The bridge has ended: the next one tells again what was not taken."""
        self._ready.clear()
        self._early.clear()

    # --- what the bridge tells -------------------------------------------------------------------

    async def _greet(self) -> None:
        """A bridge has begun: take over what runs, and report what ended meanwhile."""
        watcher = self._watcher
        assert watcher is not None, "the link is started by adopt"
        since = {name: running.next for name, running in self._running.items()}
        found = await self._link.ask("adopt", since=since)
        for name, record in found["alive"].items():
            known = self._running.get(name)
            if known is not None:
                continue
            running = _Running(
                _order(record), _host_of(record), int(record["pid"]), self._log(name)
            )
            running.started_at = float(record["started_at"])
            self._running[name] = running
            adopted = Adopted(running.order, running.pid, running.started_at)
            if self._first is not None:
                self._first.append(adopted)
            else:  # control began without its cluster and waits for this one to start
                self._tell(watcher.started, name, running.pid)
            self._catch_up(name)
        for name, how in found["ended"].items():
            if name in self._running or self._first is not None:
                self._end(name, _ended(how))
        for name in [one for one in self._running if one not in found["alive"]]:
            told = "its actor is gone, and nothing is kept of it"
            self._end(name, Ended(None, None, oom=False, reason=told))
        self._ready.set()

    def _hear(self, message: Mapping[str, Any]) -> None:
        """Take one piece of news of the bridge."""
        watcher = self._watcher
        assert watcher is not None, "the link is started by adopt"
        event, data = message["event"], message.get("data")
        if event == "nodes":
            self._see_nodes(message["data"])
            return
        name = message["replica"]
        running = self._running.get(name)
        if running is None:  # its start or adoption is answered, and nobody has read that yet
            if name in self._early or len(self._early) < _EARLY_MAX:
                self._early.setdefault(name, []).append(message)
            return
        if message["number"] < running.next:
            return
        running.next = message["number"] + 1
        if event == "line":
            running.log.write(f"{data}\n".encode())
            self._tell(watcher.line, name, data)
        elif event == "stopped":
            self._tell(watcher.stopped, name, data)
        elif event == "ended":
            assert isinstance(data, Mapping), "the bridge says how it ended"
            self._end(name, _ended(data))

    def _catch_up(self, name: str) -> None:
        """Take the news that came before their replica was known here."""
        for message in self._early.pop(name, ()):
            self._hear(message)

    def _end(self, name: str, ended: Ended) -> None:
        assert self._watcher is not None, "the link is started by adopt"
        running = self._running.pop(name, None)
        if running is not None:
            running.log.close()
            running.ended = ended
        self._tell(self._watcher.ended, name, ended)
        if running is not None:
            running.done.set()

    def _see_nodes(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Tell of nodes that died, are drained, or are well again."""
        watcher = self._watcher
        assert watcher is not None, "the link is started by adopt"
        self._nodes = dict(nodes)
        for node in nodes.values():
            host, condition = _host_of(node), _condition_of(node)
            before = self._told.get(host, HostCondition.READY)
            self._told[host] = condition
            if condition is not before:
                self._tell(watcher.host_seen, host, condition, str(node["reason"]))
        for name, running in list(self._running.items()):
            if self._told.get(running.node) is HostCondition.LEAVING and not running.leaving:
                running.leaving = True
                self._tell(watcher.leaving, name, f"its node {running.node} is being drained")
        known = {_host_of(node) for node in nodes.values()}
        self._told = {host: one for host, one in self._told.items() if host in known}

    def _tell(self, tell: Callable[..., None], *news: object) -> None:
        """What the watcher does with news is its own affair: one failure must not end the link."""
        try:
            tell(*news)
        except Exception:  # noqa: BLE001 see above
            _log.exception("the watcher failed", about=news[0])

    # --- files -----------------------------------------------------------------------------------

    def _folder(self, replica_id: str) -> Path:
        return self._directory / quote(replica_id, safe="").replace(".", "%2E")

    def _log(self, replica_id: str) -> BoundedLog:
        folder = self._folder(replica_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return BoundedLog(str(folder / "output.log"), str(folder / "output.log.1"))


# --- plain data -----------------------------------------------------------------------------------


def _data_of(order: Order) -> dict[str, Any]:
    return {
        "replica_id": order.replica_id,
        "command": list(order.command),
        "environment": dict(order.environment),
        "port": order.port,
        "note": dict(order.note),
        "pass_env": list(order.pass_env),
        "on": order.on,
    }


def _order(record: Mapping[str, Any]) -> Order:
    data = record["order"]
    made = order_of(data)
    return Order(
        made.replica_id,
        made.command,
        made.environment,
        made.port,
        made.note,
        made.pass_env,
        data.get("on", ""),
    )


def _host_of(record: Mapping[str, Any]) -> str:
    """A node's name for people, as the Ray source has it: its address and a part of its id."""
    node = str(record.get("node") or record.get("id") or "")
    return f"{record.get('address') or 'node'}-{node[:8]}"


def _place_of(record: Mapping[str, Any]) -> Place:
    return Place(
        record["address"], int(record["port"]), _host_of(record), record["zone"], record["reason"]
    )


def _condition_of(node: Mapping[str, Any]) -> HostCondition:
    if not node["alive"]:
        return HostCondition.UNREACHABLE
    return HostCondition.LEAVING if node["leaving"] else HostCondition.READY


def _ended(data: Mapping[str, Any]) -> Ended:
    return Ended(
        data["code"],
        data["signal"],
        bool(data["oom"]),
        str(data["reason"]),
        oom_ruled_out=bool(data.get("oom_ruled_out")),
        asked=bool(data.get("asked")),
        host_lost=bool(data.get("host_lost")),
    )


__all__ = ["FIRST_S", "RAY", "RayLauncher"]
