"""The driver of Ray, in a process of its own: carries orders of control out and passes news back.

Run as ``python -m holdfast.launchers.ray.bridge SETTINGS`` with one JSON object per line on both
pipes. Requests have an ``id`` and are answered once, with ``ok`` or ``error``; news have ``event``.
It ends with its standard input, and leaves all replicas running.

    {"id": 7, "do": "start", "replica": "m-1", "order": {…}}    ─► {"id": 7, "ok": {"pid": 4711}}
                          {"event": "ended", "replica": "m-1", "number": 12, "data": {…}} ◄─

Calls of Ray that block run in threads; each replica has one task that waits for its actor's news.

Ray takes 15 s and more to call a node dead. A raylet's port on which nothing listens any more is as
certain and seen at once, so the ports of nodes are tried, too. A port that does not answer at all
proves nothing (the network between may be cut), and is left to Ray.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from holdfast.launchers.ray.cluster import Cluster, ClusterRefusalError

_NEWS_S: Final = 10.0  # one question to an actor waits so long for news
_NODES_S: Final = 0.5  # between two looks at the list of nodes
_PORT_S: Final = 1.0  # for a connection to a raylet's port
_REFUSALS: Final = 2  # in a row, before a node is called dead: one may meet a restart
_UNAVAILABLE_S: Final = 0.5  # before an actor that cannot be reached is asked again
_VERDICT_S: Final = 3.0  # for the cluster to say whether an actor's end was its node's
_LINE_BYTES_MAX: Final = 4 << 20
_CLEAN_S: Final = 5.0  # for an actor to remove its files; its place is not given back before
_CALL_S: Final = 20.0  # for an actor's plain answer

_Answer = dict[str, Any]


class Bridge:
    """Carries out control's orders on a cluster and reports what becomes of its replicas."""

    def __init__(self, cluster: Cluster, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._cluster = cluster
        self._tell = tell
        self._follow: dict[str, asyncio.Task[None]] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._refusals: dict[str, int] = {}  # of nodes' raylets, in a row
        self._looked = asyncio.Condition()
        self._orders: dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = {
            "adopt": self._adopt,
            "place": self._place,
            "start": self._start,
            "stop": self._stop,
            "forget": self._forget,
            "release": self._release,
        }

    async def answer(self, request: Mapping[str, Any]) -> None:
        """Carry one request out and answer it."""
        try:
            done = await self._orders[request["do"]](request)
        except ClusterRefusalError as error:
            self._tell({"id": request["id"], "error": str(error), "room": error.room})
        except Exception as error:  # noqa: BLE001 whatever went wrong is the answer
            told = f"{type(error).__name__}: {str(error).strip()[:300]}"
            self._tell({"id": request["id"], "error": told, "room": True})
        else:
            self._tell({"id": request["id"], "ok": done})

    # --- orders ----------------------------------------------------------------------------------

    async def _adopt(self, request: Mapping[str, Any]) -> _Answer:
        """What runs and what ended; news go on from where ``since`` says, or from now on."""
        since: Mapping[str, int] = request["since"]
        await self.look()
        alive: dict[str, Any] = {}
        ended: dict[str, Any] = {}
        for replica, record in (await asyncio.to_thread(self._cluster.records)).items():
            if record.get("ended"):
                ended[replica] = record["ended"]
            elif "order" not in record:  # placed, and its control was gone before it was started
                await asyncio.to_thread(self._cluster.release, replica)
                await asyncio.to_thread(self._cluster.forget, replica)
            else:
                found = await self._describe(replica)
                if found is None or found["ended"]:
                    how = found["ended"] if found is not None else await self._why_gone(record)
                    ended[replica] = await self._ended(replica, how)
                else:
                    alive[replica] = {**record, **found}
                    self._begin(replica, since.get(replica, found["next"]))
        return {"alive": alive, "ended": ended}

    async def _describe(self, replica: str) -> dict[str, Any] | None:
        actor = await asyncio.to_thread(self._cluster.actor, replica)
        if actor is None:
            return None
        try:
            async with asyncio.timeout(_CALL_S):
                found: dict[str, Any] = await actor.describe.remote()
        except (RayError, TimeoutError):
            return None
        return found

    async def _place(self, request: Mapping[str, Any]) -> _Answer:
        def lost(node: str) -> bool:  # asked from a thread: it only reads
            return not self._lives(node)

        reserve = self._cluster.reserve
        return await asyncio.to_thread(reserve, request["replica"], request["need"], lost)

    async def _start(self, request: Mapping[str, Any]) -> _Answer:
        replica, order = request["replica"], request["order"]
        record = await asyncio.to_thread(self._cluster.read, replica)
        actor = await asyncio.to_thread(self._cluster.actor, replica)
        if record is None or actor is None:
            raise ClusterRefusalError("it has no place on the cluster any more")
        # Before the start: an engine that nobody remembers would be found by no control.
        record = {**record, "order": order}
        await asyncio.to_thread(self._cluster.write, replica, record)
        begun: dict[str, Any] = await actor.begin.remote(order)
        if "error" in begun:
            await self._give_up(replica)
            raise ClusterRefusalError(begun["error"])
        self._begin(replica, 0)
        return begun

    async def _give_up(self, replica: str) -> None:
        await asyncio.to_thread(self._cluster.release, replica)
        await asyncio.to_thread(self._cluster.forget, replica)

    async def _stop(self, request: Mapping[str, Any]) -> _Answer:
        replica = request["replica"]
        actor = await asyncio.to_thread(self._cluster.actor, replica)
        if actor is None:
            return {}
        try:
            async with asyncio.timeout(request["grace_s"] + _CALL_S):
                await actor.stop.remote(request["grace_s"])
        except RayActorError:
            return {}  # whoever waits for its news tells how it ended
        return {}

    async def _release(self, request: Mapping[str, Any]) -> _Answer:
        await self._give_up(request["replica"])
        return {}

    async def _forget(self, request: Mapping[str, Any]) -> _Answer:
        await asyncio.to_thread(self._cluster.forget, request["replica"])
        return {}

    # --- news ------------------------------------------------------------------------------------

    def _begin(self, replica: str, since: int) -> None:
        before = self._follow.pop(replica, None)
        if before is not None:
            before.cancel()
        self._follow[replica] = asyncio.create_task(self._news_of(replica, since))

    async def _news_of(self, replica: str, since: int) -> None:
        """Pass an actor's news on until its engine has ended, or the actor has."""
        actor = await asyncio.to_thread(self._cluster.actor, replica)
        record = await asyncio.to_thread(self._cluster.read, replica)
        node = str((record or {}).get("node", ""))
        while actor is not None and self._lives(node):
            try:
                news = await self._unless_dead(node, actor.news.remote(since, _NEWS_S))
            except ActorUnavailableError:  # a network, or its last moments: Ray will say which
                await asyncio.sleep(_UNAVAILABLE_S)
                continue
            except RayActorError:
                break
            if news is None:
                break
            since = news["next"]
            for number, what, data in news["items"]:
                if what == "ended":
                    await self._ended(replica, data)
                self._tell({"event": what, "replica": replica, "number": number, "data": data})
                if what == "ended":
                    return
        how = await self._ended(replica, await self._why_gone(record or {}))
        self._tell({"event": "ended", "replica": replica, "number": since, "data": how})

    async def _unless_dead(self, node: str, answer: Any) -> Any | None:
        """An actor's answer; None: its node died before it came."""
        waiting = asyncio.ensure_future(_answer_of(answer))
        death = asyncio.ensure_future(self._death_of(node))
        try:
            await asyncio.wait({waiting, death}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            for task in (waiting, death):
                task.cancel()

    async def _death_of(self, node: str) -> None:
        async with self._looked:
            await self._looked.wait_for(lambda: not self._lives(node))

    def _lives(self, node: str) -> bool:
        """Whether a node lives as far as anybody knows; one that is not listed yet does."""
        return bool(self._nodes.get(node, {}).get("alive", True))

    async def _ended(self, replica: str, how: Mapping[str, Any]) -> dict[str, Any]:
        """Keep how a replica ended and give its place back."""
        record = await asyncio.to_thread(self._cluster.read, replica)
        if record is not None:
            kept = {**record, "ended": dict(how)}
            await asyncio.to_thread(self._cluster.write, replica, kept)
        if not how.get("host_lost"):
            await self._clean(replica)
        await asyncio.to_thread(self._cluster.release, replica)
        return dict(how)

    async def _clean(self, replica: str) -> None:
        """Let an actor remove what it has on its node's disk, if it still lives."""
        actor = await asyncio.to_thread(self._cluster.actor, replica)
        if actor is None:
            return
        try:
            async with asyncio.timeout(_CLEAN_S):
                await actor.leave.remote()
        except (RayError, TimeoutError) as error:
            sys.stderr.write(f"{replica} left its folder behind: {type(error).__name__}\n")

    async def _why_gone(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Why an actor is gone: its node died or was taken back, or only the actor ended."""
        node_id = str(record.get("node", ""))
        node = self._nodes.get(node_id)
        for _ in range(round(_VERDICT_S / _NODES_S)):
            if node is None or not node["alive"] or node["leaving"]:
                break
            await asyncio.sleep(_NODES_S)
            node = self._nodes.get(node_id)
        lost = node is None or not node["alive"] or node["leaving"]
        name = record.get("address", "") or node_id
        if lost:
            said = f", as Ray says: {node['reason'][:200]}" if node and node["reason"] else ""
            reason = f"its node {name} is dead{said}"
        else:
            reason = f"its actor ended on node {name}, which lives"
        return {
            "code": None,
            "signal": None,
            "oom": False,
            "reason": reason,
            "host_lost": lost,
        }

    # --- nodes -----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Read the list of nodes once, and try the port of each that is said to live."""
        nodes = await asyncio.to_thread(self._cluster.nodes)
        living = [node for node in nodes.values() if node["alive"] and node["port"]]
        refused = await asyncio.gather(*(_refuses(node) for node in living))
        counts = self._refusals
        self._refusals = {
            node["id"]: counts.get(node["id"], 0) + 1
            for node, refuses in zip(living, refused, strict=True)
            if refuses
        }
        for node_id, count in self._refusals.items():
            if count >= _REFUSALS:
                node = nodes[node_id]
                node["alive"] = False
                node["reason"] = f"nothing listens on its raylet's port {node['port']} any more"
        async with self._looked:
            self._nodes = nodes
            self._looked.notify_all()

    async def watch_nodes(self) -> None:
        """Tell control which nodes there are when that changes, for as long as this runs."""
        told: dict[str, dict[str, Any]] = {}
        while True:
            await self.look()
            if self._nodes != told:
                told = self._nodes
                self._tell({"event": "nodes", "data": told})
            await asyncio.sleep(_NODES_S)


async def _refuses(node: Mapping[str, Any]) -> bool:
    """Whether a node's host says that nothing listens on its raylet's port."""
    try:
        async with asyncio.timeout(_PORT_S):
            _, writer = await asyncio.open_connection(node["address"], node["port"])
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


async def _answer_of(answer: Any) -> Any:
    return await answer


# --- the process ----------------------------------------------------------------------------------


async def serve(cluster: Cluster, answers: int) -> None:
    """Read requests until standard input ends; write to the descriptor ``answers``."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    out = os.fdopen(answers, "wb")

    def tell(message: Mapping[str, Any]) -> None:
        out.write(json.dumps(message).encode() + b"\n")
        out.flush()

    bridge = Bridge(cluster, tell)
    tell({"event": "ready"})
    watching = asyncio.create_task(bridge.watch_nodes())
    watching.add_done_callback(_end)
    tasks: set[asyncio.Task[None]] = {watching}
    while line := await reader.readline():
        task = asyncio.create_task(bridge.answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _end(watching: "asyncio.Task[None]") -> None:
    """End the process where the cluster cannot be read any more: a new driver may read it."""
    if watching.cancelled():
        return
    sys.stderr.write(f"the cluster cannot be read: {watching!r}\n")
    os._exit(1)


def main() -> None:
    """Connect to the cluster that the settings name, and serve control."""
    settings = json.loads(sys.argv[1])
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever Ray prints is no message of ours
    cluster = Cluster(
        settings["address"],
        settings["namespace"],
        settings["zone_label"],
        settings["lease_s"],
    )
    asyncio.run(serve(cluster, answers))
    os._exit(0)  # Ray's threads may wait for a cluster that is gone


if __name__ == "__main__":
    main()
