"""Notices, inside a gateway, that a file with an engine's token or certificate was written anew.

    files of the config ─► their times, every few seconds ─► changed? ─► targets are built again

Secret stores replace such files while everything runs, and whoever rotates a token writes nothing
into the fleet file. The files are looked at by their times, as a mounted volume is replaced by
renaming a folder above them, which watchers of a file do not see.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.config.certificates import FileTimes, file_times
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import SECOND

LOOK: Final = 2 * SECOND  # between two looks: a token that was taken back is refused so long


class EngineSecrets:
    """Notices changed files with engines' tokens and certificates.

    Reads their times, not the contents.
    """

    __slots__ = ("_due", "_paths", "_times")

    def __init__(self) -> None:
        self._paths: Sequence[Path] = ()
        self._times: tuple[FileTimes | None, ...] = ()
        self._due = 0

    def follow(self, file: FleetFile, now: int) -> None:
        """Watch the files that this config names, instead of those before.

        Call it before reading them. ``now`` in ns.
        """
        named: list[Path | None] = []
        for model in file.models:
            tls = model.tls
            named.append(model.api_key_file)
            named += [] if tls is None else [tls.ca, tls.certificate, tls.key]
        self._paths = tuple(dict.fromkeys(path for path in named if path is not None))
        self._times = file_times(self._paths)
        self._due = now + LOOK

    def changed(self, now: int) -> bool:
        """Whether a watched file was changed since ``follow`` or the last True; ``now`` in ns.

        Looks at the files at most every 2 s, and is False in between. Reloads nothing.
        """
        if now < self._due or not self._paths:
            return False
        self._due = now + LOOK
        times = file_times(self._paths)
        if times == self._times:
            return False
        self._times = times
        return True


__all__ = ["LOOK", "EngineSecrets"]
