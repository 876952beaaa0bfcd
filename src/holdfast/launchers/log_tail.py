"""Follows a log that a keeper writes and rotates: returns the new lines since the last look.

Bounded on every side: a line is cut, a look reads a limited amount, and a reader that falls behind
by more than that repeatedly is moved to the end. Skipped bytes are counted.

Rejected: a pipe or socket to control. A writer to one blocks, or loses lines, when control stops;
a file is there for the next control too.
"""

import os
from pathlib import Path
from typing import Final

_LOOK_BYTES_MAX: Final = 256 << 10  # per look: far above what an engine says of its phases
_BEHIND_BYTES_MAX: Final = 1 << 20  # further behind than this, the older part is passed over
_LINE_BYTES_MAX: Final = 1000  # enough to know a line by


class LogTail:
    """Reads new lines of one log, from its current end on."""

    __slots__ = ("_descriptor", "_partial", "_path", "_position", "skipped_bytes")

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1
        self._position = 0
        self._partial = b""
        self.skipped_bytes = 0

    def skip_to_end(self) -> None:
        """Skip all lines that are in the log now."""
        if self._open():
            self._position = os.fstat(self._descriptor).st_size

    def lines(self) -> list[str]:
        """The complete lines since the last call; bytes that are no text are escaped."""
        found: list[str] = []
        budget = _LOOK_BYTES_MAX
        while budget > 0 and self._open():
            self._catch_up()
            data = os.pread(self._descriptor, min(budget, 1 << 16), self._position)
            if data:
                self._position += len(data)
                budget -= len(data)
                self._split(data, found)
            elif not self._rotated():
                break
        return found

    def close(self) -> None:
        """Close the file; no further lines are read."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> bool:
        if self._descriptor >= 0:
            return True
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # the engine has said nothing yet
        return True

    def _catch_up(self) -> None:
        end = os.fstat(self._descriptor).st_size
        if end - self._position > _BEHIND_BYTES_MAX:
            target = end - _LOOK_BYTES_MAX
            self.skipped_bytes += target - self._position
            self._position = target
            self._partial = b""

    def _rotated(self) -> bool:
        """Whether another file has taken the path; then it is read from its beginning."""
        try:
            there = os.stat(self._path)  # noqa: PTH116 five times a second for each replica
        except FileNotFoundError:
            return False
        here = os.fstat(self._descriptor)
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            return False
        self.close()
        self._position = 0
        return True

    def _split(self, data: bytes, found: list[str]) -> None:
        *whole, rest = (self._partial + data).split(b"\n")
        for line in whole:
            text = line[:_LINE_BYTES_MAX].decode("utf-8", "replace").rstrip()
            if text:
                found.append(text)
        self._partial = rest[:_LINE_BYTES_MAX]


__all__ = ["LogTail"]
