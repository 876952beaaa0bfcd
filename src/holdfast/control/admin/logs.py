"""Reads the end of a replica's log file and follows what is appended to it.

The file is written by the replica's launcher. When it is full it is renamed to ``NAME.1`` and a new
one begins; a restarted replica may begin another one under the same name. So a reader reads its
open file to the end before it turns to the file that has the name now.

Rejected: inotify, which saves a look of 30 µs four times a second and would need a fallback for
file systems that do not have it. Reads happen in threads: a disk can hang.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import BinaryIO, Final

BYTES_MAX: Final = 1 << 20  # of one tail; what is longer is read with better tools than HTTP
LOOK_S: Final = 0.25  # soon enough for eyes
_PIECE: Final = 64 << 10


class LogReader:
    """Reads one log file: its last lines, then what is appended, across rotations. Blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def tail(self, lines: int) -> bytes:
        """Return the last lines, at most 1 MiB, from this file and, if needed, the rotated one.

        Empty where there is no file. ``more`` goes on from its end.
        """
        self.close()
        self._file = _open(self.path)
        text = _end_of(self._file, BYTES_MAX) if self._file is not None else b""
        if text.count(b"\n") < lines and len(text) < BYTES_MAX:
            before = _open(self.path.with_name(f"{self.path.name}.1"))
            if before is not None:
                with before:
                    text = _end_of(before, BYTES_MAX - len(text)) + text
        return _last_lines(text, lines)

    def more(self) -> bytes:
        """Return what was appended since the last read, at most 64 KiB; empty when nothing was."""
        if self._file is None:
            self._file = _open(self.path)
        if self._file is None:
            return b""
        replaced = self._replaced()  # before reading: to a file without its name nothing is added
        piece = self._file.read(_PIECE)
        if piece or not replaced:
            return piece
        self.close()
        self._file = _open(self.path)
        return self._file.read(_PIECE) if self._file is not None else b""

    def close(self) -> None:
        """Close the log file, if it is open; a later read opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _replaced(self) -> bool:
        assert self._file is not None
        mine = os.fstat(self._file.fileno())
        if mine.st_size < self._file.tell():  # somebody emptied it
            self._file.seek(0)
        try:
            present = self.path.stat()
        except FileNotFoundError:
            return False
        return (present.st_dev, present.st_ino) != (mine.st_dev, mine.st_ino)


async def follow(log_path: Callable[[], Path | None], lines: int) -> AsyncGenerator[bytes]:
    """Yield the last lines of a log and then what is appended, until ``log_path`` returns None.

    ``log_path`` is called again and again. Empty pieces are yielded too: sending one is how a
    client that has disconnected is noticed.
    """
    path = log_path()
    reader: LogReader | None = None
    try:
        while path is not None:
            if reader is None or reader.path != path:
                if reader is not None:
                    reader.close()
                reader = LogReader(path)
                piece = await asyncio.to_thread(reader.tail, lines)
            else:
                piece = await asyncio.to_thread(reader.more)
            yield piece
            if not piece:
                await asyncio.sleep(LOOK_S)
            path = log_path()
    finally:
        if reader is not None:
            reader.close()


def read_tail(path: Path, lines: int) -> bytes:
    """Return the last lines of a log file, at most 1 MiB; empty where there is none. Blocks."""
    reader = LogReader(path)
    try:
        return reader.tail(lines)
    finally:
        reader.close()


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        return None


def _end_of(file: BinaryIO, most: int) -> bytes:
    """Read at most ``most`` bytes at the end of a file, from the start of a line if possible."""
    start = max(0, file.seek(0, os.SEEK_END) - most)
    file.seek(start)
    text = file.read(most)
    return text[text.find(b"\n") + 1 :] if start else text


def _last_lines(text: bytes, lines: int) -> bytes:
    if lines <= 0:
        return b""
    at = len(text) - 1 if text.endswith(b"\n") else len(text)
    for _ in range(lines):
        at = text.rfind(b"\n", 0, at)
        if at < 0:
            return text
    return text[at + 1 :]


__all__ = ["BYTES_MAX", "LOOK_S", "LogReader", "follow", "read_tail"]
