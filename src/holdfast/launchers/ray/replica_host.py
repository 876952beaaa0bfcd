"""The actor that runs one replica's engine as a process on its node and keeps its news.

It is the process launcher on another machine: the same keeper, the same bounded log, the same
reasons for an end. What it learns is numbered and kept, so that a control that was away asks for
the rest. An actor that nobody asks for a while ends its engine and gives its place back: GPUs must
not be held for a fleet that no longer exists.

Everything here crosses the cluster as plain data: actor and control may be of different versions.
"""

import asyncio
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from holdfast.core.types import HostCondition
from holdfast.launchers.process import ProcessLauncher
from holdfast.ports import Ended, LaunchError, Order

NEWS_MAX: Final = 4_096  # kept for a control that is away; older lines are lost, and counted
KEEPER_LEASE_S: Final = 20.0  # without its actor an engine ends so soon: its node is given up


def order_of(data: Mapping[str, Any]) -> Order:
    """The order in plain data that came over the cluster."""
    return Order(
        data["replica_id"],
        tuple(data["command"]),
        dict(data["environment"]),
        int(data["port"]),
        dict(data["note"]),
        tuple(data["pass_env"]),
    )


class ReplicaHost:
    """One replica's process on a node: placed, started, watched and stopped."""

    def __init__(self, replica_id: str, lease_s: float) -> None:
        self._id = replica_id
        self._lease_s = lease_s
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-replica-"))
        self._launcher = ProcessLauncher(self._directory, KEEPER_LEASE_S)
        self._news: deque[tuple[int, str, Any]] = deque(maxlen=NEWS_MAX)
        self._next = 0
        self._more = asyncio.Event()
        self._asked_at = time.monotonic()
        self._adopted = False
        self._pid: int | None = None
        self._started_at = 0.0
        self._order: dict[str, Any] | None = None
        self._ended: dict[str, Any] | None = None
        self._watch: asyncio.Task[None] | None = None

    # --- what the bridge asks --------------------------------------------------------------------

    async def place(self, address: str) -> dict[str, Any]:
        """A port of this node that nothing listens on, and the name of its host."""
        self._asked_at = time.monotonic()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return {"port": int(probe.getsockname()[1]), "hostname": socket.gethostname()}

    async def begin(self, order: dict[str, Any]) -> dict[str, Any]:
        """Start the engine; the pid, or the error in words."""
        self._asked_at = time.monotonic()
        if not self._adopted:
            await self._launcher.adopt(self)
            self._adopted = True
            self._watch = asyncio.get_running_loop().create_task(self._leave_unwatched())
        self._order = order
        try:
            self._pid = await self._launcher.start(order_of(order))
        except LaunchError as error:
            return {"error": str(error)}
        self._started_at = time.time()
        return {"pid": self._pid}

    async def describe(self) -> dict[str, Any]:
        """What runs here, for a control that adopts it, and the number of its next news."""
        self._asked_at = time.monotonic()
        return {
            "order": self._order,
            "pid": self._pid,
            "started_at": self._started_at,
            "ended": self._ended,
            "next": self._next,
        }

    async def news(self, since: int, wait_s: float) -> dict[str, Any]:
        """The news from number ``since`` on; waits for some, for ``wait_s`` at most."""
        self._asked_at = time.monotonic()
        if since >= self._next:
            self._more.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._more.wait()
            except TimeoutError:
                return {"next": since, "items": []}
        return {"next": self._next, "items": [item for item in self._news if item[0] >= since]}

    async def stop(self, grace_s: float) -> None:
        """Stop the engine; its end is in the news before this returns."""
        self._asked_at = time.monotonic()
        await self._launcher.stop(self._id, grace_s)

    async def leave(self) -> None:
        """End what still runs and remove what is on this node's disk."""
        await self._launcher.close(leave_running=False)
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    # --- what the process launcher tells (Watcher) -----------------------------------------------

    def started(self, replica_id: str, pid: int) -> None:
        """Nothing: whoever asked for the start has the pid from it."""

    def line(self, replica_id: str, text: str) -> None:  # noqa: ARG002 it has one replica
        """Keep a line of the engine's log."""
        self._add("line", text)

    def ended(self, replica_id: str, ended: Ended) -> None:  # noqa: ARG002 as above
        """Keep how the engine ended."""
        self._ended, self._pid = asdict(ended), None
        self._add("ended", self._ended)

    def stopped(self, replica_id: str, stopped: bool) -> None:  # noqa: ARG002 as above
        """Keep that the engine was suspended, or resumed."""
        self._add("stopped", stopped)

    def leaving(self, replica_id: str, reason: str) -> None:
        """Nothing: the bridge tells of nodes."""

    def host_seen(self, host: str, condition: HostCondition, reason: str) -> None:
        """Nothing: as above."""

    def _add(self, what: str, data: Any) -> None:
        self._news.append((self._next, what, data))
        self._next += 1
        self._more.set()

    # --- alone -----------------------------------------------------------------------------------

    async def _leave_unwatched(self) -> None:
        """End the engine and give the place back once nobody has asked for ``lease_s``."""
        left_s = self._lease_s
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = self._asked_at + self._lease_s - time.monotonic()
        await self.leave()
        from ray.util import get_current_placement_group, remove_placement_group  # noqa: PLC0415

        group = get_current_placement_group()
        if group is not None:
            remove_placement_group(group)  # and this actor with it


__all__ = ["KEEPER_LEASE_S", "NEWS_MAX", "ReplicaHost", "order_of"]
