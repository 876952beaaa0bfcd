"""One launcher for all platforms: each replica is started by the launcher that its order names.

Replicas of this host need nothing but this host; another platform's launcher is built when a model
of the fleet file asks for it, so that nobody pays for a platform that is not used.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.ports import (
    Adopted,
    Ended,
    Launcher,
    LaunchError,
    Order,
    Place,
    PlaceRequest,
    PlacingLauncher,
    Watcher,
)

HERE = ""  # the name of this host in orders


class LauncherGroup:
    """Passes each order to the launcher of its platform, and remembers which one that was."""

    def __init__(
        self,
        here: Launcher,
        build: Callable[[str], Launcher],
        wanted: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """``build`` makes a platform's launcher; ``wanted``: the platforms of the fleet file."""
        self._launchers: dict[str, Launcher] = {HERE: here}
        self._build = build
        self._watcher: Watcher | None = None
        self._platform_of: dict[str, str] = {}
        self._wanted = wanted

    async def adopt(self, watcher: Watcher) -> list[Adopted]:
        """Take over what runs on this host and on the platforms of the fleet file."""
        self._watcher = watcher
        found = await self._launchers[HERE].adopt(watcher)
        for adopted in found:
            self._platform_of[adopted.order.replica_id] = HERE
        for on in sorted(set(self._wanted()) - {HERE}):
            found += await self._begin(on)
        return found

    async def _begin(self, on: str) -> list[Adopted]:
        """Build the launcher of a platform and let it adopt what runs there."""
        assert self._watcher is not None, "adopt comes first"
        launcher = self._launchers[on] = self._build(on)
        found = await launcher.adopt(self._watcher)
        for adopted in found:
            self._platform_of[adopted.order.replica_id] = on
        return found

    def places(self, on: str) -> bool:
        """Whether a platform chooses the hosts of its replicas: all but this host do."""
        return on != HERE

    async def place(self, on: str, request: PlaceRequest) -> Place:
        """Reserve a place with the platform that a replica is to run on."""
        launcher = await self._launcher(on)
        if not isinstance(launcher, PlacingLauncher):
            raise LaunchError(f"{on} gives replicas no place")
        self._platform_of[request.replica_id] = on
        return await launcher.place(on, request)

    async def start(self, order: Order) -> int:
        """Start a replica with the launcher of its platform."""
        launcher = await self._launcher(order.on)
        self._platform_of[order.replica_id] = order.on
        return await launcher.start(order)

    async def _launcher(self, on: str) -> Launcher:
        if on not in self._launchers:
            # What it adopts here was started by an earlier control, and is asked for again now:
            # whoever asks finds by its pid that it runs.
            await self._begin(on)
        return self._launchers[on]

    async def stop(self, replica_id: str, grace_s: float) -> Ended | None:
        """Stop a replica, wherever it runs."""
        return await self._of(replica_id).stop(replica_id, grace_s)

    def pid(self, replica_id: str) -> int | None:
        """The pid of a replica's engine on its own host; None: it does not run."""
        return self._of(replica_id).pid(replica_id)

    def log_path(self, replica_id: str) -> Path | None:
        """The log file of a replica on this host, or the copy of one from elsewhere."""
        return self._of(replica_id).log_path(replica_id)

    def forget(self, replica_id: str) -> None:
        """Delete what is kept of a replica that ended; of one never started here, everywhere."""
        known = self._platform_of.pop(replica_id, None)
        for on, launcher in self._launchers.items():
            if known is None or on == known:
                launcher.forget(replica_id)

    def _of(self, replica_id: str) -> Launcher:
        return self._launchers.get(self._platform_of.get(replica_id, HERE), self._launchers[HERE])

    async def close(self, *, leave_running: bool) -> None:
        """Stop watching, everywhere; the replicas run on to be adopted, or are stopped first."""
        for launcher in self._launchers.values():
            await launcher.close(leave_running=leave_running)


__all__ = ["HERE", "LauncherGroup"]
