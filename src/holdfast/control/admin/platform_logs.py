"""Fetches the end of logs that Holdfast does not keep, from the platform that runs a replica.

    replica ─► its pod, as discovery or an endpoint says ─► the source that lists it ─► tail

Each request asks the platform again, and nothing is kept: a copy would be older than the original,
and one more place where users' texts might lie. Rejected: to follow such a log. One connection to
the platform for each reader, for hours, is what its own tools are for.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.control.admin.logs import BYTES_MAX
from holdfast.core.view.layers import Reading
from holdfast.ports import Tailed, UnreadableError

ANSWER_S: Final = 10.0  # a source gives up sooner by itself
ASKED_MAX: Final = 4  # at a time: the platform is there for others, too


class PlatformLogs:
    """Fetches the last log lines of replicas from their platforms, at most four at a time."""

    def __init__(self) -> None:
        self._asked = 0

    async def tail(self, source: Tailed, placed_id: str, lines: int) -> bytes:
        """Ask the platform for the last lines of a log, at most 1 MiB; keeps nothing.

        Raises ``UnreadableError`` where the platform gives none, does not answer in 10 s, or four
        other logs are being read.
        """
        if self._asked >= ASKED_MAX:
            raise UnreadableError(f"{self._asked} such logs are being read already", 503)
        self._asked += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await source.tail(placed_id, lines) if lines else []
        except TimeoutError as error:
            told = f"{source.name} did not answer within {ANSWER_S:g} s"
            raise UnreadableError(told) from error
        finally:
            self._asked -= 1
        return _at_most("".join(f"{line}\n" for line in found).encode(errors="replace"))


def placed_at(
    sources: Mapping[str, object],
    pods: Mapping[tuple[str, str], str],
    readings: Iterable[Reading],
    replica_id: str,
    url: str,
) -> tuple[Tailed, str] | None:
    """Find the platform source that has a replica's log, and the replica's id there.

    By discovery, else by a row with its id or URL, running and young ones first. None: no source
    that can read logs has it.
    """
    named = [where for where, own in pods.items() if own == replica_id]
    listed = sorted(
        (
            (row.state == "running", row.created_at or 0.0, reading.source, row.id)
            for reading in readings
            for row in reading.placed
            if row.replica == replica_id or (url and row.endpoint == url)
        ),
        reverse=True,
    )
    for name, placed_id in [*named, *((name, own) for _, _, name, own in listed)]:
        source = sources.get(name)
        if isinstance(source, Tailed):
            return source, placed_id
    return None


def _at_most(text: bytes) -> bytes:
    """Cut a text to its end, beginning at the start of a line."""
    if len(text) <= BYTES_MAX:
        return text
    text = text[-BYTES_MAX:]
    return text[text.find(b"\n") + 1 :]


__all__ = ["ANSWER_S", "ASKED_MAX", "PlatformLogs", "placed_at"]
