"""Reads the fleet file: once at the start, and again whenever the file changes.

Every accepted file gets the next epoch. A file that is refused changes nothing: the reasons, each
with its line, are kept for ``/status``, and the epoch stays. Some settings cannot change while
processes run that were started with them; a file that changes one of those is refused as a whole,
because half of a reviewed file has not been reviewed.

The file is looked at by its times, not watched by the kernel: a mounted config map is replaced by
renaming a directory above it, which watchers of the file do not see.
"""

import asyncio
from pathlib import Path
from typing import Final

from holdfast.config.document import ConfigFileError, Document
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.launched_replica import new_launched_replica
from holdfast.control.fleet.checks import load_check
from holdfast.core.types import ConfigError

_Times = tuple[int, int, int] | None
_Signature = tuple[_Times, ...]

_FIXED: Final = (
    *("gateway.listen", "gateway.workers", "gateway.tls", "admin.listen", "admin.tls"),
    "batch.enabled",  # its process is started with the others
)
_FIX: Final = "undo it, or start 'holdfast serve --takeover' with it and then stop this one"


class ConfigSource:
    """Holds the accepted fleet file, its epoch, and why a newer file on disk was refused.

    The epoch grows by one with each accepted change.
    """

    def __init__(self, path: Path, last: tuple[int, bytes] | None = None) -> None:
        """Read the file.

        ``last`` is the epoch and JSON of an earlier control's config, which is used if the file is
        refused.
        """
        self._path = path
        self._signature: _Signature = (_times(path),)
        self.problems: list[str] = []  # of the file as it is now; empty: it is what runs
        self.refused = 0
        if last is None:
            self.file, self.epoch = load(path, FleetFile), 1
            refuse_impossible(path, self.file)
            self.json = self.file.to_json()
            self._signature = self._signed()
            return
        self.epoch, self.json = last
        self.file = FleetFile.from_json(self.json)
        try:
            self._take(_read(path, self.file))
        except ConfigFileError as error:
            self._refuse(error)
        self._signature = (self._signature[0], *self._signed()[1:])

    async def changed(self) -> bool:
        """Read the file again if it, or a secret file it names, changed on disk.

        True if it was read again, whether the new file was accepted or refused.
        """
        if self._signed() == self._signature:
            return False
        await self.reload()
        return True

    async def reload(self) -> bool:
        """Read and check the file now; True if the config in use changed.

        False if it says the same as before or is refused; ``problems`` then says why.
        """
        self._signature = self._signed()  # from before: a change while reading is seen
        try:
            # Checking a large file takes a while, and this loop must not be late.
            file = await asyncio.to_thread(_read, self._path, self.file)
        except ConfigFileError as error:
            self._refuse(error)
            return False
        return self._take(file)

    def _signed(self) -> _Signature:
        """The times of the file, and of the files with secrets that it names."""
        return tuple(map(_times, (self._path, *self.file.secret_files)))

    def _take(self, file: FleetFile) -> bool:
        self.problems = []
        text = file.to_json()
        if text == self.json:
            return False
        self.file, self.json = file, text
        self.epoch += 1
        return True

    def _refuse(self, error: ConfigFileError) -> None:
        self.problems = str(error).splitlines()
        self.refused += 1


def _times(path: Path) -> _Times:
    try:
        stat = path.stat()
    except OSError:
        return None  # reading it will say what is wrong
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _read(path: Path, running: FleetFile) -> FleetFile:
    file = load(path, FleetFile)
    refuse_impossible(path, file)
    refuse_restarts(path, running, file)
    return file


def refuse_impossible(path: Path, file: FleetFile) -> None:
    """Check what the file's schema cannot: canary checks and launch commands.

    Raises ``ConfigFileError`` with all problems and their lines. Imports the users' check
    functions; starts nothing.
    """
    document = Document(str(path), path.read_text("utf-8-sig"))
    for index, model in enumerate(file.models):
        try:
            if model.canary.check is not None:
                load_check(model.canary.check)
            if model.launch is not None:
                dry = new_launched_replica(
                    model, 1, model.launch.zones[0], model.launch.weights, "", set()
                )
                dry.order()
        except ConfigError as error:
            place: tuple[str | int, ...] = ("models", index, *error.field.split("."))
            document.refuse(place, error.problem, error.fix)
    if document.problems:
        raise ConfigFileError(document.problems)


def refuse_restarts(path: Path, running: FleetFile, file: FleetFile) -> None:
    """Raise ``ConfigFileError`` if the file changes a setting that a running control cannot.

    These are listen addresses, TLS, the number of gateway workers and ``batch.enabled``.
    """
    changed = [name for name in _FIXED if _at(running, name) != _at(file, name)]
    if not changed:
        return
    document = Document(str(path), path.read_text("utf-8-sig"))
    for name in changed:
        document.refuse(tuple(name.split(".")), "cannot change while it runs", _FIX)
    raise ConfigFileError(document.problems)


def _at(file: FleetFile, name: str) -> object:
    section, field = name.split(".")
    return getattr(getattr(file, section), field)


__all__ = ["ConfigSource", "refuse_impossible", "refuse_restarts"]
