"""Connects a gateway, or a standby control, to the controls: receives frames, never waits.

Control may be late, frozen or gone. Then no frame arrives, and reports that cannot be sent are
dropped and counted: a gateway that kept them for a dead control would run out of memory and die
too.

Of several controls one leads. A gateway keeps a connection to each, and follows the one whose
``Welcome`` has the highest term that it ever heard. What any other one sends is refused: it led
before, and may not know yet that it does no more. Nothing is heard of a control that is not
authenticated: not a term either.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, Final

import structlog

from holdfast.core.messages import Report, Summary
from holdfast.frames.authentication import (
    AUTHENTICATED_S,
    NONCE_BYTES,
    UNPROVEN_BYTES_MAX,
    LinkSecret,
    control_proof,
    gateway_proof,
    is_same_user,
    proves,
)
from holdfast.frames.framing import FrameReader, encode
from holdfast.frames.kinds import (
    FRAME_BYTES_MAX,
    Challenge,
    Frame,
    FrameError,
    Hello,
    Introduction,
    Proof,
    ToControl,
    Welcome,
)
from holdfast.frames.translation import seen_to_frame

_UNSENT_BYTES_MAX: Final = 1 << 20  # control reads within milliseconds, or not at all
_CONNECT_S: Final = 3.0  # a connection to another machine, handshake included
_AGAIN_S: Final = 0.5  # between two tries to connect
_log = structlog.get_logger("holdfast.frames.control_links")


@dataclass(slots=True, frozen=True)
class ControlAddress:
    """Where a control is reached, and how it is authenticated.

    On this machine: a unix socket, by the user of its process. Beyond: a port, by its certificate.
    A port of loopback without TLS: by the secret, which both ends must know.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    control: str = ""  # the member's name, which its proof must be made for
    tls: Callable[[], ssl.SSLContext] | None = None  # asked at each try: files change
    secret: LinkSecret | None = None

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection and hand it to this protocol."""
        loop = asyncio.get_running_loop()
        if self.path:
            await loop.create_unix_connection(protocol, self.path)
            return
        assert self.tls is not None or self.secret is not None, "no control is believed unproven"
        tls = None if self.tls is None else self.tls()
        async with asyncio.timeout(_CONNECT_S):
            await loop.create_connection(protocol, self.host, self.port, ssl=tls)

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
        self._secret = b""  # as it was when this connection was made
        self._introduction: Introduction | None = None  # until control has proved itself
        self._deadline: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()
        self._spoke = False  # this connection was good for something
        self._missing = False  # the last try to connect failed, and was logged

    @property
    def connected(self) -> bool:
        """Whether the connection to control is open, and control authenticated."""
        return self._transport is not None and self._introduction is None

    async def keep(self) -> None:
        """Connect to control and reconnect after every break; runs until it is cancelled."""
        while True:
            self._lost.clear()
            self._spoke = False
            try:
                if self.address.secret is not None:
                    self._secret = self.address.secret.read()
                await self.address.connect(lambda: self)
                await self._lost.wait()
                if self._spoke:
                    _log.warning("control is gone; serving on with what is known")
                    self._missing = False
                else:
                    self._miss("it closed the connection")
            except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
                self._miss(getattr(error, "strerror", None) or type(error).__name__)
            await asyncio.sleep(_AGAIN_S)

    def _miss(self, reason: str) -> None:
        if not self._missing:
            _log.info("control cannot be reached", error=reason, at=self.address.told)
        self._missing = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send ``Hello``, which tells control who calls; where a secret is needed, after it."""
        self._transport = transport
        self._introduction = None
        self._reader = FrameReader()
        if self.address.path and not is_same_user(transport):
            self._refuse("another user's process listens there")
        elif self.address.secret is not None:
            self._introduce()
        else:
            self.send(self._hello)

    def _introduce(self) -> None:
        """Ask control to prove that it knows the secret."""
        hello, nonce = self._hello, token_bytes(NONCE_BYTES)
        self._introduction = Introduction(
            hello.gateway_id, hello.observes, self.address.control, nonce
        )
        self._reader = FrameReader(UNPROVEN_BYTES_MAX)
        self._transport.write(encode(self._introduction))
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(AUTHENTICATED_S, self._refuse, "it does not prove itself")

    def data_received(self, data: bytes) -> None:
        """Pass each frame from control to ``hear``; close the connection at a malformed one."""
        try:
            self._reader.add(data)
            while self._transport is not None and (frame := self._reader.take()) is not None:
                if self._introduction is not None:
                    self._authenticate(self._introduction, frame)
                else:
                    self._spoke = True
                    self._hear(self, frame)
            if self._introduction is not None and self._reader.skipped:
                self._refuse("it does not speak as control does")
        except FrameError as error:
            if self._introduction is not None:
                self._refuse("it does not speak as control does")
                return
            _log.warning("control sent what cannot be read", error=str(error))
            self.close()

    def _authenticate(self, introduction: Introduction, frame: Frame) -> None:
        """Go on with a control that knows the secret; leave any other."""
        if not isinstance(frame, Challenge) or not proves(
            frame.proof, control_proof(self._secret, introduction, frame.nonce)
        ):
            self._refuse("it does not know the secret, or runs an older version")
            return
        self._end_introduction()
        self._reader.bytes_max = FRAME_BYTES_MAX
        self.send(Proof(gateway_proof(self._secret, introduction, frame.nonce)))
        self.send(self._hello)

    def _end_introduction(self) -> None:
        self._introduction = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, reason: str) -> None:
        """Leave whoever is at control's address and is not authenticated as control."""
        if not self._missing:
            _log.error("not believed as control", reason=reason, at=self.address.told)
        self._missing = True
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - all ends are alike
        """Note that the connection to control is closed, so that ``keep`` opens another."""
        self._transport = None
        self._end_introduction()
        self._lost.set()

    def send(self, frame: ToControl) -> bool:
        """Send a frame and return True, or False if control is away or does not read."""
        transport = self._transport
        if not self.connected or transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
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
