"""The call targets of all replicas of a gateway: built anew with a config, a detour or a secret.

What runs stays on the connection that it has, whatever changes here.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic_ns

from holdfast.config.fleet_file import FleetFile
from holdfast.core.intake.shortages import Shortages
from holdfast.gateway.http.hot_path import HotPath
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.request.engine_secrets import EngineSecrets
from holdfast.gateway.request.settings import targets_of
from holdfast.gateway.request.targets import Target


class TargetTable:
    """Owns the targets of a gateway, with their connection pools, detours and secrets."""

    def __init__(self, hot_path: HotPath, shortages: Shortages) -> None:
        self._hot_path = hot_path
        self._shortages = shortages
        self._secrets = EngineSecrets()
        self.detours: Mapping[str, str] = {}  # by replica: another URL, for a time
        self.turn: LoopTurn | None = None  # what all connections share; set before the first file
        self.targets: dict[str, Target] = {}

    def follow(self, file: FleetFile) -> dict[str, Target]:
        """Build the targets of a file, with the detours and the secrets of now; return them.

        Connection pools whose replica did not change are kept, others are closed.
        """
        self._secrets.follow(file, monotonic_ns())
        self.targets = targets_of(
            file,
            self.targets,
            asyncio.get_running_loop(),
            monotonic_ns,
            self.detours,
            self.turn,
            self._hot_path,
            self._shortages,
        )
        return self.targets

    def detour(self, detours: Mapping[str, str]) -> bool:
        """Reach some replicas elsewhere from the next ``follow`` on; whether that is a change."""
        changed = detours != self.detours
        self.detours = detours
        return changed

    def secrets_changed(self, now: int) -> bool:
        """Whether a file with an engine's token or certificate was written since ``follow``."""
        return self._secrets.changed(now)

    def sweep(self, now: int) -> None:
        """Fail calls that were not connected in time, and close connections that are long idle."""
        for target in self.targets.values():
            target.upstream.sweep(now)

    def trim(self) -> None:
        """Close all idle connections, because this process lacks descriptors; calls go on."""
        for target in self.targets.values():
            target.upstream.trim()

    def close(self) -> None:
        """Close idle connections, and each other one when its call is over."""
        for target in self.targets.values():
            target.upstream.close()


__all__ = ["TargetTable"]
