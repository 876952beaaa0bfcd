"""Frames between control and gateways, valid and bent, before a peer is authenticated and after.

Control and gateway are the real ones, with a transport of memory between them. A peer that does not
know the secret is never greeted, hears no frame but a challenge, and is held to a few kilobytes;
from one that does, anything may come: the connection ends or goes on, and nothing else happens.
"""

import asyncio
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import msgspec
import structlog.testing
from fuzz_draw import Draw

from holdfast.control.gateways.hub import Gateway, Hub
from holdfast.control.gateways.peer_checks import SecretCheck
from holdfast.frames import (
    PROTOCOL,
    BlockFrame,
    Bye,
    Challenge,
    ConfigFrame,
    EpochFrame,
    ExplainAnswer,
    Frame,
    FrameReader,
    Hello,
    Introduction,
    MetricsAnswer,
    MoveFrame,
    Proof,
    SeenFrame,
    StatsFrame,
    Welcome,
    encode,
)
from holdfast.frames.authentication import (
    UNPROVEN_BYTES_MAX,
    LinkSecret,
    control_proof,
    gateway_proof,
)
from holdfast.frames.control_links import ControlAddress, ControlLinks, Link

SECRET: Final = b"s" * 64
MEMBERS: Final = {"a": "127.0.0.1", "b": "127.0.0.1"}
HELLO: Final = Hello("b/gateway-0", 7)
GREETING: Final = (Welcome(1, "a", secret=b"fingerprints", term=3), ConfigFrame(1, b"{}"))
_READ_BYTES_MAX: Final = 256 << 10  # an event loop reads no more at once
_FRAMES: Final[tuple[Frame, ...]] = (
    HELLO,
    Hello("control/b", 7, observes=True),
    Hello("", 1),
    Hello("x" * 65, 1),
    Hello("b/gateway-0", 7, protocol=PROTOCOL + 1),
    Introduction("b/gateway-0", False, "a", b"n" * 32),
    Introduction("c/gateway-0", False, "a", b"n" * 32),
    Introduction("b/gateway-0", True, "a", b""),
    Challenge(b"m" * 32, b"p" * 32),
    Proof(b""),
    Proof(b"p" * 32),
    Welcome(9, "forged", term=99),
    ConfigFrame(9, b"{}"),
    Bye("x"),
    MoveFrame("m", "m-1"),
    BlockFrame([("x", 1.0)]),
    SeenFrame([], [], 5),
    StatsFrame({"a": float("inf")}, {"b": -1}, readiness=True),
    EpochFrame(-1, accepted=False, reason="x" * 5_000),
    ExplainAnswer(1, found=True, story=b"\x00" * 3_000),
    MetricsAnswer(1 << 62, b""),
)
_RAW: Final = (
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x00\x00\x00\x05\xdd\xff\xff\xff\xff",
    b"\x00\x00\x04\x01" + b"\x91" * 1_025,
    b"\x00\x00\x03\xe8" + b"\x91" * 1_000,
    b"\x00\x00\x00\x07\x91\xa5later" * 50,
    b"GET / HTTP/1.1\r\n\r\n",
)


class Memory(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.sent = bytearray()

    def write(self, data: Any) -> None:
        assert not self.closed, "written after the end"
        self.sent += data

    def abort(self) -> None:
        self.closed = True

    close = abort

    def get_write_buffer_size(self) -> int:
        return 0


class Greeter:
    """What control tells whoever is greeted."""

    def greeting(self, gateway: Gateway) -> list[Any]:
        assert gateway.id
        return list(GREETING)

    def on_seen(self, gateway: Gateway, frame: SeenFrame) -> None:
        assert gateway.id

    on_stats: Any = on_seen

    def on_gone(self, gateway: Gateway) -> None:
        assert gateway.id


def _secret() -> LinkSecret:
    path = Path(mkdtemp()) / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    secret = LinkSecret(path)
    secret.read()
    path.unlink()  # it stands as it was read
    path.parent.rmdir()
    return secret


_OWN: Final = _secret()


def _draw_bytes(draw: Draw) -> bytes:
    told = []
    for _ in range(1 + draw.upto(4)):
        match draw.upto(3):
            case 0 | 1:
                told.append(encode(draw.pick(_FRAMES)))
            case 2:
                told.append(draw.pick(_RAW))
            case _:
                frame = msgspec.to_builtins(draw.pick(_FRAMES))
                noise = draw.noise()
                if len(frame) > 1:
                    odd = noise.choice((None, -1, "x", b"x", [], {}, 1 << 63, [[]] * 50))
                    frame[noise.randrange(1, len(frame))] = odd
                payload = msgspec.msgpack.encode(frame)
                told.append(len(payload).to_bytes(4, "big") + payload)
    data = b"".join(told)
    return draw.damage(data, 1 + draw.upto(2)) if draw.upto(1) else data


def _size(reader: FrameReader) -> int:
    return len(reader._buffer)


async def _at_control(draw: Draw) -> None:
    hub = Hub(Greeter())  # type: ignore[arg-type]
    gateway, transport = Gateway(hub, SecretCheck("a", MEMBERS, _OWN)), Memory()
    gateway.connection_made(transport)
    proven = draw.upto(1) == 1
    if proven:
        introduction = Introduction(HELLO.gateway_id, HELLO.observes, "a", b"n" * 32)
        gateway.data_received(encode(introduction))
        (challenge,) = FrameReader().feed(bytes(transport.sent))
        assert isinstance(challenge, Challenge)
        assert challenge.proof == control_proof(SECRET, introduction, challenge.nonce)
        proof = gateway_proof(SECRET, introduction, challenge.nonce)
        gateway.data_received(encode(Proof(proof)) + encode(HELLO))
        assert list(hub.gateways) == [HELLO.gateway_id]
    for piece in draw.cut(_draw_bytes(draw)):
        if transport.closed:
            break
        gateway.data_received(piece[:_READ_BYTES_MAX])
        if not proven:
            assert transport.closed or _size(gateway._reader) <= UNPROVEN_BYTES_MAX + 4
    if not proven:
        assert not hub.gateways
        assert not hub.observers
        told = {type(frame) for frame in FrameReader().feed(bytes(transport.sent))}
        assert told <= {Challenge}, "a stranger was told something"
        assert transport.sent.count(b"challenge") <= 1
    gateway.connection_lost(None)
    for kept in (hub.gateways, hub.observers, hub._connections, hub._unproven):
        assert not kept


async def _at_gateway(draw: Draw) -> None:
    heard: list[Frame] = []
    address = ControlAddress(host="127.0.0.1", port=1, control="a", secret=_OWN)
    links = ControlLinks(HELLO, [address], heard.append)
    (link,) = links._links
    assert isinstance(link, Link)
    link._secret = SECRET  # as ``keep`` reads it before it connects
    transport = Memory()
    link.connection_made(transport)
    (introduction,) = FrameReader().feed(bytes(transport.sent))
    assert isinstance(introduction, Introduction)
    proven = draw.upto(1) == 1
    if proven:
        nonce = b"m" * 32
        link.data_received(encode(Challenge(nonce, control_proof(SECRET, introduction, nonce))))
        assert links.connected
    for piece in draw.cut(_draw_bytes(draw)):
        if transport.closed:
            break
        link.data_received(piece[:_READ_BYTES_MAX])
        if not proven:
            assert transport.closed or _size(link._reader) <= UNPROVEN_BYTES_MAX + 4
    if not proven:
        assert (heard, links.term) == ([], 0), "a stranger was believed"
        assert not links.connected
        assert bytes(transport.sent) == encode(introduction), "a stranger was told something"
    link.connection_lost(None)


def case(draw: Draw) -> None:
    """One connection, at one of its ends."""
    with structlog.testing.capture_logs():
        asyncio.run(_at_control(draw) if draw.upto(1) else _at_gateway(draw))


__all__ = ["case"]
