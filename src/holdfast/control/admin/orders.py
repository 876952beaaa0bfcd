"""What operators order: drain, restart, scale, disturb.

An order is taken on or refused at once, with the reason; how it goes on is the loop's. ``Control``
inherits these, and with them its questions. They are apart from it because orders grow in number
while the rest of it should not.
"""

import time
from pathlib import Path

from holdfast.control.admin.platform_logs import PlatformLogs, placed_at
from holdfast.control.admin.questions import Questions
from holdfast.control.deploy.deployments import HELD
from holdfast.control.deploy.discovery import Discovery
from holdfast.control.unknown import UnknownModelError, UnknownReplicaError
from holdfast.core.messages import DrainAsked, RestartAsked, UndrainAsked


class Orders(Questions):
    """Mixed into ``Control``."""

    _discovery: Discovery
    _platform_logs: PlatformLogs

    async def drain(self, replica_id: str) -> tuple[bool, str]:
        """Take it out of service when its requests are done; it stays out."""
        self._known(replica_id)
        self._deployments.hold(replica_id, held=True)
        self.loop.tell(DrainAsked(replica_id, HELD))
        return True, f"{replica_id} drains"

    async def undrain(self, replica_id: str) -> tuple[bool, str]:
        """Take it back."""
        self._known(replica_id)
        if self._deployments.leaves(replica_id):
            return False, "it is being removed: another has taken its place, or none is wished for"
        if self._discovery.leaves(replica_id):
            return False, "its pod was told to end: nobody here can take that back"
        self._deployments.hold(replica_id, held=False)
        self.loop.tell(UndrainAsked(replica_id, "an operator wants it back"))
        return True, f"{replica_id} comes back"

    async def restart(self, replica_id: str) -> tuple[bool, str]:
        """Drain it and start it anew."""
        self._known(replica_id)
        if replica_id not in self._deployments.units:
            return False, "it was not started here, so it cannot be restarted here"
        if self._deployments.leaves(replica_id):
            return False, "it is being removed: it ends soon"
        self._deployments.hold(replica_id, held=False)
        self.loop.tell(RestartAsked(replica_id, "an operator wants it restarted"))
        return True, f"{replica_id} drains and then starts anew"

    async def disturb(
        self, replica_id: str, kind: str, seconds: float, url: str
    ) -> tuple[bool, str]:
        """Make trouble on purpose, for so long; raises where the fleet file allows none."""
        self._known(replica_id)
        return self._disturbances.begin(replica_id, kind, seconds, time.monotonic_ns(), url)

    async def undisturb(self, replica_id: str) -> tuple[bool, str]:
        """Take that back."""
        return self._disturbances.end(replica_id, time.monotonic_ns())

    async def scale(self, model: str, replicas: int) -> tuple[bool, str]:
        """Wish for another number of replicas."""
        if model not in {one.name for one in self.file.models}:
            raise UnknownModelError(model)
        return self._deployments.scale(model, replicas)

    def _known(self, replica_id: str) -> None:
        if replica_id not in self.loop.deployed:
            raise UnknownReplicaError(replica_id)

    def log_path(self, replica_id: str) -> Path | None:
        """Where a launched replica's output is kept."""
        self._known(replica_id)
        return self._deployments.log_path(replica_id)

    async def log_tail(self, replica_id: str, lines: int) -> bytes | None:
        """The end of a replica's output, from the platform that runs it; None: none has it."""
        self._known(replica_id)
        url = self.loop.deployed[replica_id].url
        found = placed_at(
            self.sourcing.sources,
            self._discovery.pods(),
            self.sourcing.readings(),
            replica_id,
            url,
        )
        return await self._platform_logs.tail(*found, lines) if found is not None else None


__all__ = ["Orders", "UnknownModelError", "UnknownReplicaError"]
