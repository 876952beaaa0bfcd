"""One launched replica as the launcher knows it: its workload, its lives and its log."""

import asyncio
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from holdfast.core.deploy.pod_life import LifeBegan, PodLife, ReplicaLives
from holdfast.launchers.keeper import BoundedLog
from holdfast.launchers.kubernetes.client import ApiClient
from holdfast.launchers.kubernetes.log_follower import PodLogFollower
from holdfast.launchers.kubernetes.workloads import Workload
from holdfast.ports import Ended, Watcher

_PIDS: Final = 1 << 22  # the kernel's own end of pids: no process of this host has a higher one


class ReplicaRecord:
    """A replica with a workload: which life runs, what its log says, and how it ended."""

    def __init__(self, workload: Workload, folder: Path, tell: Callable[..., None]) -> None:
        """``tell`` calls a method of the watcher, whatever that does."""
        self.workload = workload
        self.lives = ReplicaLives()
        self.asked_for = False  # by this control
        self.freshened: set[str] = set()  # uids of pods that were replaced
        self.leaving = False  # that was told, for its node
        self.ending = False  # its end is being told
        self.node = ""
        self.pid: int | None = None
        self.last_pid: int | None = None  # of the life that ran last, which may be over
        self.ended: Ended | None = None
        self.done = asyncio.Event()
        self._folder = folder
        self._tell = tell
        self._log: BoundedLog | None = None
        self._follower: PodLogFollower | None = None

    @property
    def name(self) -> str:
        """The id of the replica."""
        return self.workload.order.replica_id

    def begin(
        self,
        began: LifeBegan,
        api: ApiClient,
        pods_path: str,
        watcher: Watcher,
        *,
        known: bool = False,
    ) -> None:
        """A life begins; ``known``: an earlier control has read its log up to now."""
        self.pid = self.last_pid = number_of(began.life)
        self.node, self.leaving, self.ending = began.pod.node, False, False
        self.ended, self.done = None, asyncio.Event()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / "output.log"
        since = None
        if known:  # a control on another host has no copy of the log: it begins now
            since = path.stat().st_mtime if path.exists() else time.time()
        log = self._log = BoundedLog(str(path), str(self._folder / "output.log.1"))

        def line(text: str) -> None:
            log.write(f"{text}\n".encode())
            self._tell(watcher.line, self.name, text)

        self._follower = PodLogFollower(api, f"{pods_path}/{began.pod.name}", since, line)

    async def last_lines(self, within_s: float) -> None:
        """Wait for what its log still has to say."""
        if self._follower is not None:
            await self._follower.finish(within_s)

    def finish(self, ended: Ended) -> None:
        """Its life is over."""
        self.pid, self.ended, self.ending = None, ended, False
        self._follower = None
        if self._log is not None:
            self._log.close()

    async def close(self) -> None:
        """Stop reading its log."""
        if self._follower is not None:
            await self._follower.close()
        if self._log is not None:
            self._log.close()


def number_of(life: PodLife) -> int:
    """A number for one life, the same for each control, and no pid of this host."""
    text = f"{life.uid}/{life.number}".encode()
    return _PIDS + int.from_bytes(blake2b(text, digest_size=4).digest())


__all__ = ["ReplicaRecord", "number_of"]
