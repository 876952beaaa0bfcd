"""Listening sockets on a shared port, and handing the port over to another supervisor.

Each gateway has its own socket on the shared port (SO_REUSEPORT): the kernel spreads connections,
and none wakes two processes. Rejected: one socket for all; under load the one that wakes first
takes most connections.

Handing a port over: closing a listening socket resets the connections queued at it. So the leaving
supervisor first attaches a small BPF program to the port by which the kernel gives new connections
to the successor's sockets only; those queued before are still accepted, and then closing resets
none. Until all its gateways have stopped accepting the leaving supervisor keeps its sockets open:
the kernel numbers them, and the program goes by the numbers. The successor removes the program when
it is alone. Where the kernel cannot do it, connections are spread as before and some may be reset.

The same kind of program leads new connections past the socket of a gateway that does not accept
(frozen, dead, starting); those that wait there already are accepted by its successor.
"""

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from holdfast.config.fleet_file import Address

BACKLOG: Final = 4_096  # connections that wait while a gateway starts
_SO_ATTACH_REUSEPORT_CBPF: Final = 51  # linux/asm-generic/socket.h; not in Python's socket
_SO_DETACH_REUSEPORT_BPF: Final = 68

_log = structlog.get_logger("holdfast.serve")


class AddressTakenError(Exception):
    """Another process listens on this address."""

    def __init__(self, address: Address) -> None:
        super().__init__(
            f"{address.host}:{address.port} is in use; stop who listens there, or take over from "
            "another 'holdfast serve' with --takeover"
        )


def open_listeners(address: Address, number: int, *, takeover: bool) -> list[socket.socket]:
    """Open ``number`` sockets on one port; with ``takeover`` they are bound, not yet listening.

    A successor's sockets listen from the moment its gateways do: until then the predecessor gets
    every connection.
    """
    family, _, _, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    if not takeover and address.port:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(trial, where, address)
    sockets: list[socket.socket] = []
    try:
        for _ in range(number):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _bind(sock, where, address)
            where = sock.getsockname()  # port 0 has become one that all share
            if not takeover:
                sock.listen(BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind(sock: socket.socket, where: Any, address: Address) -> None:
    try:
        sock.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressTakenError(address) from error
        raise


def steer_away(sockets: Sequence[socket.socket]) -> bool:
    """Make the kernel give new connections to others' sockets on this port; whether it will.

    A group's sockets are numbered in the order in which they began to listen: ours come first, a
    successor's follow. Numbers out of range mean that the kernel spreads connections as before, so
    a wrong guess does no harm. Holds while all of ours stay open somewhere.
    """
    others = listeners_beside(sockets)
    return others > 0 and _steer(sockets, len(sockets), others)


def close_steered(sockets: Sequence[socket.socket]) -> None:
    """Close sockets whose new connections are steered away, so that none gets one again.

    Whenever one closes, the last of the group takes its number. The numbers that belong to others
    before, between and after all closings are those from ours up to theirs less ours; with as many
    of theirs as of ours it is one, good until none of ours is left. Where they have fewer gateways
    than we had, the last of ours may be given a connection in the microseconds before it closes.
    """
    ours = len(sockets)
    _steer(sockets, ours, max(1, listeners_beside(sockets) - ours))
    for sock in sockets:
        sock.close()


def steer_around(sockets: Sequence[socket.socket], avoided: Collection[int]) -> bool:
    """Make the kernel give no new connections to the sockets at these places; whether it will.

    The sockets must have begun to listen in their order, and nobody else may listen on the port:
    the program goes by the kernel's numbers. With none or all avoided, connections are spread over
    all of them.
    """
    places = [place for place in range(len(sockets)) if place not in avoided]
    if not places or len(places) == len(sockets):
        stop_steering(sockets)
        return False
    choices = b"".join(  # if A == number: return place
        struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 0x06, 0, 0, place)
        for number, place in enumerate(places[:-1])
    )
    last = struct.pack("HBBI", 0x06, 0, 0, places[-1])
    return _attach(sockets, _random_below(len(places)) + choices + last)


def _steer(sockets: Sequence[socket.socket], first: int, number: int) -> bool:
    add = struct.pack("HBBI", 0x04, 0, 0, first)  # A += first
    return _attach(sockets, _random_below(number) + add + struct.pack("HBBI", 0x16, 0, 0, 0))


def _random_below(number: int) -> bytes:
    """Classic BPF: A = random(); A %= number."""
    load = struct.pack("HBBI", 0x20, 0, 0, 0xFFFFF000 + 56)
    return load + struct.pack("HBBI", 0x94, 0, 0, number)


def _attach(sockets: Sequence[socket.socket], program: bytes) -> bool:
    """Let this program choose the socket of every new connection; whether the kernel takes it."""
    buffer = ctypes.create_string_buffer(program, len(program))
    filter_program = struct.pack("HL", len(program) // 8, ctypes.addressof(buffer))
    try:
        sockets[0].setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, filter_program)
    except OSError as error:
        _log.warning("connections cannot be steered away", reason=error.strerror)
        return False
    return True


def stop_steering(sockets: Sequence[socket.socket]) -> None:
    """Let the kernel spread connections over all sockets of the port again."""
    try:
        sockets[0].setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)
    except OSError as error:  # nobody had steered, or the kernel cannot: both are as wanted
        _log.debug("nothing to detach", reason=error.strerror)


def listeners_beside(sockets: Sequence[socket.socket]) -> int:
    """How many other sockets listen on the same address, by the kernel's table (/proc/net)."""
    family, name = sockets[0].family, sockets[0].getsockname()
    raw = socket.inet_pton(family, name[0])
    words = (raw[i : i + 4] for i in range(0, len(raw), 4))
    host = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    local = f"{host}:{name[1]:04X}"
    ours = {str(os.fstat(sock.fileno()).st_ino) for sock in sockets}
    table = Path("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp")
    try:
        rows = [line.split() for line in table.read_text("ascii").splitlines()[1:]]
    except OSError:
        return 0
    return sum(1 for row in rows if row[1] == local and row[3] == "0A" and row[9] not in ours)


__all__ = [
    "BACKLOG",
    "AddressTakenError",
    "close_steered",
    "listeners_beside",
    "open_listeners",
    "steer_around",
    "steer_away",
    "stop_steering",
]
