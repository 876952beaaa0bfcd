"""Connects a gateway, or a standby control, to the controls: receives frames, never waits.

Control may be late, frozen or gone. Then no frame arrives, and reports that cannot be sent are
dropped and counted: a gateway that kept them for a dead control would run out of memory and die
too.

Of several controls one leads. A gateway keeps a connection to each, and follows the one whose
``Welcome`` has the highest term that it ever heard. What any other one sends is refused: it led
before, and may not know yet that it does no more.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from holdfast.core.messages import Report, Summary
from holdfast.frames.framing import FrameReader, encode
from holdfast.frames.kinds import Frame, FrameError, Hello, ToControl, Welcome
from holdfast.frames.translation import seen_to_frame

_UNSENT_BYTES_MAX: Final = 1 << 20  # control reads within milliseconds, or not at all
_CONNECT_S: Final = 3.0  # a connection to another machine, handshake included
_AGAIN_S: Final = 0.5  # between two tries to connect
_log = structlog.get_logger("holdfast.frames.control_links")


@dataclass(slots=True, frozen=True)
class ControlAddress:
    """Where a control is reached: a Unix socket of this machine, or a port of another with TLS."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: Callable[[], ssl.SSLContext | None] = lambda: None  # asked at each try: files change

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection and hand it to this protocol."""
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(protocol, self.path)
            return
        async with asyncio.timeout(_CONNECT_S):
            await loop.create_connection(protocol, self.host, self.port, ssl=self.tls())

    @property
    def told(self) -> str:
        """The address, for people."""
        return self.path or f"{self.host}:{self.port}"


@dataclass(slots=True, frozen=True)
class GatewayMember:
    """A gateway's place in a fleet: the name of the control beside it, and other controls."""

    name: str = ""  # of the control beside it; empty: there is one control
    controls: tuple[ControlAddress, ...] = ()  # on other machines

    def gateway_id(self, index: int) -> str:
        """Return the id of the gateway process with this index, unique in the fleet.

        Such as ``gateway-0``, with the control's name before it where there are several.
        """
        return f"{self.name}/gateway-{index}" if self.name else f"gateway-{index}"


class Link(asyncio.Protocol):
    """Keeps the connection to one control and opens it again whenever it breaks."""

    def __init__(
        self, hello: Hello, address: ControlAddress, hear: Callable[["Link", Frame], None]
    ) -> None:
        self._hello = hello
        self.address = address
        self._hear = hear
        self._reader = FrameReader()
        self._transport: Any = None  # uvloop's are no asyncio.Transport
        self._lost = asyncio.Event()
        self._missing = False  # the last try to connect failed, and was logged

    @property
    def connected(self) -> bool:
        """Whether the connection to control is open."""
        return self._transport is not None

    async def keep(self) -> None:
        """Connect to control and reconnect after every break; runs until it is cancelled."""
        while True:
            self._lost.clear()
            try:
                await self.address.connect(lambda: self)
                self._missing = False
                await self._lost.wait()
                _log.warning("control is gone; serving on with what is known")
            except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
                if not self._missing:
                    told = getattr(error, "strerror", None) or type(error).__name__
                    _log.info("control cannot be reached", error=told, at=self.address.told)
                self._missing = True
            await asyncio.sleep(_AGAIN_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send ``Hello``, which tells control who calls."""
        self._transport = transport
        self._reader = FrameReader()
        self.send(self._hello)

    def data_received(self, data: bytes) -> None:
        """Pass each frame from control to ``hear``; close the connection at a malformed one."""
        try:
            for frame in self._reader.feed(data):
                self._hear(self, frame)
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

    def close(self) -> None:
        """Close the connection to control, if it is open."""
        if self._transport is not None:
            self._transport.close()


class ControlLinks:
    """Connections to all controls, of which the one that leads is followed.

    ``new_term`` is called before the first frames of a control that leads in a later term.
    """

    def __init__(
        self,
        hello: Hello,
        addresses: Sequence[ControlAddress],
        hear: Callable[[Frame], None],
        new_term: Callable[[], None] = lambda: None,
    ) -> None:
        self._links = [Link(hello, address, self._heard) for address in addresses]
        self._hear = hear
        self._new_term = new_term
        self._leader = self._links[0] if len(self._links) == 1 else None
        self.term = 0  # the highest that any control told; alone, a control has none
        self.refused = 0  # frames of controls that lead no more
        self.dropped = 0  # reports since the last one that was sent

    @property
    def connected(self) -> bool:
        """Whether the connection to the control that leads is open."""
        return self._leader is not None and self._leader.connected

    async def keep(self) -> None:
        """Keep a connection to each control; runs until it is cancelled."""
        await asyncio.gather(*(link.keep() for link in self._links))

    def send(self, frame: ToControl) -> bool:
        """Send a frame to the control that leads; False if it is away or does not read."""
        return self._leader is not None and self._leader.send(frame)

    def news(self, action: Report | Summary) -> None:
        """Send a report or summary of the flow to control, or count it in ``dropped``."""
        if self.send(seen_to_frame((action,), self.dropped)):
            self.dropped = 0
        else:
            self.dropped += 1

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.close()

    def _heard(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            if frame.term < self.term and link is self._leader:
                self._leader = None  # it came back as one that led before
            elif frame.term >= self.term:
                self._leader = link
            if frame.term > self.term:
                self.term = frame.term
                self._new_term()
        if link is not self._leader:
            self.refused += 1
            return
        self._hear(frame)


__all__ = ["ControlAddress", "ControlLinks", "GatewayMember", "Link"]
