"""Follows the log of one container, line by line, across connections that are cut.

Lines come with their times. After a cut the server is asked from the second of the last line on,
and what was told already is left out: no line is told twice, and none is lost that the node keeps.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from holdfast.launchers.kubernetes.client import ApiClient
from holdfast.launchers.kubernetes.pod_reader import ENGINE
from holdfast.ports import UnreadableError

LINE_MAX: Final = 1_000  # characters; enough to know a line by
_QUIET_S: Final = 300.0  # an engine may have nothing to say; after that the stream is opened anew
_AGAIN_S: Final = 1.0  # after a stream that ended; longer each time up to the next
_AGAIN_MAX_S: Final = 10.0

_log = structlog.get_logger("holdfast.launcher.kubernetes")


class PodLogFollower:
    """Reads the log of a pod's engine until it ends or is told to stop."""

    def __init__(
        self, api: ApiClient, path: str, since: float | None, tell: Callable[[str], None]
    ) -> None:
        """``path``: of the pod; ``since``: lines up to this moment are known; None: none are."""
        self._api = api
        self._path = f"{path}/log"
        self._last = "" if since is None else _stamp(since)
        self._tell = tell
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        wait_s = _AGAIN_S
        while True:
            before, ended = self._last, self._ended.is_set()
            try:
                await self._follow()
            except UnreadableError as error:
                _log.debug("log is not read", pod=self._path, reason=str(error))
            except Exception:  # noqa: BLE001 whoever hears of lines must not end the reading
                _log.exception("log is not read", pod=self._path)
            if ended:
                return
            wait_s = _AGAIN_S if self._last != before else min(wait_s * 2, _AGAIN_MAX_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), wait_s)

    async def _follow(self) -> None:
        params = {"follow": "true", "timestamps": "true", "container": ENGINE}
        if self._last:
            params["sinceTime"] = self._last[:19] + "Z"  # a server takes whole seconds
        known = _sortable(self._last)
        async with self._api.lines(self._path, params, _QUIET_S) as lines:
            async for line in lines:
                stamp, _, text = line.decode(errors="replace").partition(" ")
                if _sortable(stamp) > known:  # of one moment there may be several
                    self._last = stamp
                    self._tell(text[:LINE_MAX])

    async def finish(self, within_s: float) -> None:
        """The container has ended: take its last lines, for so long at most.

        A reading that was under way may have been refused or cut before they came, so there is one
        more, which begins now or when that one ends.
        """
        self._ended.set()
        done, _ = await asyncio.wait({self._task}, timeout=within_s)
        if not done:
            await self.close()

    async def close(self) -> None:
        """Stop reading at once."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def _sortable(stamp: str) -> str:
    """A time with all nine digits of its nanoseconds, so that texts are in the order of times."""
    whole, _, part = stamp.rstrip("Z").partition(".")
    return f"{whole}.{part.ljust(9, '0')}" if whole else ""


__all__ = ["LINE_MAX", "PodLogFollower"]
