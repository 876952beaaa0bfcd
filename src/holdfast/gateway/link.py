"""Connects a gateway to control over a Unix socket: receives frames, sends reports, never waits.

Control may be late, frozen or gone. Then no frame arrives, and reports that cannot be sent are
dropped and counted: a gateway that kept them for a dead control would run out of memory and die
too.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from holdfast.core.messages import Report, Summary
from holdfast.frames import (
    PROTOCOL,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    ToControl,
    encode,
    seen_to_frame,
)

_UNSENT_BYTES_MAX: Final = 1 << 20  # control reads within milliseconds, or not at all
_AGAIN_S: Final = 0.5  # between two tries to connect
_log = structlog.get_logger("holdfast.gateway.link")


class Link(asyncio.Protocol):
    """Keeps one gateway's connection to control and opens it again whenever it breaks."""

    def __init__(self, gateway_id: str, pid: int, path: str, hear: Callable[[Frame], None]) -> None:
        self._hello = Hello(gateway_id, pid, PROTOCOL)
        self._path = path
        self._hear = hear
        self._reader = FrameReader()
        self._transport: Any = None  # uvloop's are no asyncio.Transport
        self._lost = asyncio.Event()
        self.dropped = 0  # reports since the last one that was sent

    @property
    def connected(self) -> bool:
        """Whether the connection to control is open."""
        return self._transport is not None

    async def keep(self) -> None:
        """Connect to control and reconnect after every break; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._lost.clear()
            try:
                await loop.create_unix_connection(lambda: self, self._path)
                await self._lost.wait()
                _log.warning("control is gone; serving on with what is known")
            except OSError as error:
                _log.info("control cannot be reached", error=error.strerror)
            await asyncio.sleep(_AGAIN_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send ``Hello``, which identifies this gateway to control."""
        self._transport = transport
        self._reader = FrameReader()
        self.send(self._hello)

    def data_received(self, data: bytes) -> None:
        """Pass each frame from control to ``hear``; close the connection at a malformed one."""
        try:
            for frame in self._reader.feed(data):
                self._hear(frame)
        except FrameError as error:
            _log.warning("control sent what cannot be read", error=str(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - all ends are alike
        """Note that the connection to control is closed, so that ``keep`` opens another."""
        self._transport = None
        self._lost.set()

    def send(self, frame: ToControl) -> bool:
        """Send a frame and return True, or False if control is away or does not read."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            return False
        transport.write(encode(frame))
        return True

    def news(self, action: Report | Summary) -> None:
        """Send a report or summary of the flow to control, or count it in ``dropped``."""
        if self.send(seen_to_frame((action,), self.dropped)):
            self.dropped = 0
        else:
            self.dropped += 1

    def close(self) -> None:
        """Close the connection to control, if it is open."""
        if self._transport is not None:
            self._transport.close()


__all__ = ["Link"]
