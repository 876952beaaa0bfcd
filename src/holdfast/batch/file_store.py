"""Keeps the bytes of files on disk: written as they come, synced before they are accepted.

    upload ─► FILES/.part-… ─► fsync ─► rename to FILES/file-… ─► fsync of the folder ─► record

A crash leaves at most a part, or bytes without a record; ``sweep`` deletes both at the next start.
Nothing here is readable by others (0600 in a folder of 0700).
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

from holdfast.batch.api_errors import ApiRefusalError, disk_full
from holdfast.core.batch.limits import BatchLimits

_PART: Final = ".part-"
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SYNC_BYTES: Final = 8 << 20  # written between two looks at the free room


def new_file_id() -> str:
    """A new id of a file, as OpenAI's look."""
    return f"file-{token_hex(12)}"


class PartialFile:
    """A file that is being written; it exists for others when ``keep`` has returned."""

    def __init__(self, store: "FileStore", file_id: str) -> None:
        self._store = store
        self._part = store.folder / f"{_PART}{file_id}"
        self.id = file_id
        self.bytes = 0
        self._unlooked = 0
        with refusing_full_disk():
            fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file: BinaryIO = os.fdopen(fd, "wb", buffering=1 << 20)

    def write(self, data: bytes) -> None:
        """Append bytes; ``ApiRefusalError`` where the disk is full."""
        self.bytes += len(data)
        self._unlooked += len(data)
        if self._unlooked > _SYNC_BYTES:
            self._unlooked = 0
            self._store.check_room()
        with refusing_full_disk():
            self._file.write(data)

    def keep(self) -> None:
        """Make the file durable under its id."""
        with refusing_full_disk():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.rename(self._store.path(self.id))
            sync_folder(self._store.folder)

    def drop(self) -> None:
        """Delete what was written; harmless after ``keep``."""
        with contextlib.suppress(OSError):  # the last buffer had no room either: it goes anyway
            self._file.close()
        self._part.unlink(missing_ok=True)


class refusing_full_disk:  # noqa: N801 - read as a statement
    """Turns a disk without room into the refusal that clients get."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise disk_full() from error


class FileStore:
    """The folder with the bytes of all files."""

    def __init__(
        self,
        folder: Path,
        limits: BatchLimits,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.limits = limits
        self._free_bytes = free_bytes

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file are."""
        return self.folder / file_id

    def has_room(self) -> bool:
        """Whether the disk has more free than its reserve."""
        return self._free_bytes(self.folder) >= self.limits.disk_free_min

    def check_room(self) -> None:
        """Refuse new bytes while the disk has less free than its reserve."""
        if not self.has_room():
            raise disk_full()

    def begin(self) -> PartialFile:
        """Begin a new file; ``ApiRefusalError`` where the disk is full."""
        self.check_room()
        return PartialFile(self, new_file_id())

    def open(self, file_id: str) -> BinaryIO:
        """Open a file's bytes; ``ApiRefusalError`` 404 where they are gone."""
        try:
            return self.path(file_id).open("rb")
        except FileNotFoundError as error:
            raise ApiRefusalError(
                404, "file_not_found", "The file's content is gone.", "id"
            ) from error

    def delete(self, file_id: str) -> None:
        """Delete the bytes of a file; harmless where there are none."""
        self.path(file_id).unlink(missing_ok=True)

    def sweep(self, known: set[str]) -> int:
        """Delete parts, and bytes that no record names; how many. Only while nothing is written."""
        swept = 0
        for entry in list(self.folder.iterdir()):
            if entry.name not in known:
                entry.unlink(missing_ok=True)
                swept += 1
        return swept


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


__all__ = ["FileStore", "PartialFile", "new_file_id", "refusing_full_disk", "sync_folder"]
