"""Answers as objects: one in a bucket of S3, or one file in a folder, for each request."""

import asyncio
import errno
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from holdfast.queue_port import QueueFullError, QueueUnavailableError
from holdfast.storage.queues.sqs_calls import AwsThreads

NAME_BYTES_MAX: Final = 240  # of a file, of the 255 that filesystems take
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def object_name(item_id: str) -> str:
    """The name of an answer's file or object: its id, with all but plain characters quoted."""
    name = quote(item_id, safe="")
    if len(name) > NAME_BYTES_MAX:
        name = sha256(item_id.encode()).hexdigest()
    return f"{name}.json"


class S3Outbox:
    """The ``Outbox`` port over a bucket; the same id is the same object."""

    answer_bytes_max: int | None = None

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self._calls = AwsThreads(client, "S3")
        self._bucket = bucket
        self._prefix = prefix

    async def put(self, item_id: str, answer: bytes) -> None:
        """Put the object; S3 has it on several disks when this returns."""
        await self._calls.ask(
            "put_object",
            Bucket=self._bucket,
            Key=self._prefix + object_name(item_id),
            Body=answer,
            ContentType="application/json",
        )

    async def close(self) -> None:
        """Let go of the threads."""
        await self._calls.close()


class FolderOutbox:
    """The ``Outbox`` port over a folder; files appear whole and synced, for their owner alone."""

    answer_bytes_max: int | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, item_id: str, answer: bytes) -> None:
        """Write the file."""
        try:
            await asyncio.to_thread(self._write, object_name(item_id), answer)
        except OSError as error:
            told = f"{self._folder}: {error.strerror or error}"
            if error.errno in _NO_ROOM:
                raise QueueFullError(told) from error
            raise QueueUnavailableError(told) from error

    def _write(self, name: str, answer: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._folder / f".{name}.part"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(answer)
                file.flush()
                os.fsync(file.fileno())
            part.rename(self._folder / name)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def close(self) -> None:
        """Nothing is kept open."""


__all__ = ["FolderOutbox", "S3Outbox", "object_name"]
