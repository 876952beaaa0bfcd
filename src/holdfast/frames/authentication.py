"""Authenticates both ends of a link between our own processes, before any frame of it is used.

A unix socket names the user of its peer. Between machines both ends show a certificate. A port of
loopback does neither, and any user of the machine can connect to it, or take it while nobody has
it; there both ends prove that they know a secret:

    gateway ─ Introduction: who I am, whom I want, nonce ─► control
            ◄─ Challenge: nonce, HMAC(secret, "control", introduction, both nonces) ─
            ─ Proof: HMAC(secret, "gateway", introduction, both nonces); Hello ─►

Each end chose one of the nonces, so a recorded dialogue proves nothing later; the role is in each
proof, so none can be sent back as the other's; and the names are, so a stranger in one control's
place cannot pass another control's proofs on. What follows is neither encrypted nor signed: a
connection within one machine is not open to others there.

Rejected: to send the secret itself, which a stranger in control's place would then have; TLS by a
shared key, which Python 3.11 cannot do.
"""

import asyncio
import errno
import hmac
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

import msgspec

from holdfast.frames.kinds import Introduction

NONCE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 32
UNPROVEN_BYTES_MAX: Final = 1_024  # of one frame of a peer that is not authenticated
AUTHENTICATED_S: Final = 5.0  # from the connection to the Hello; it takes milliseconds
_SECRET_BYTES_MAX: Final = 4_096
_OPEN: Final = 0o037  # to others, or to the group for more than reading
_VERSION: Final = "holdfast control link 1"
_UID_AND_MORE: Final = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED

_encode: Final = msgspec.msgpack.Encoder().encode


def is_same_user(transport: asyncio.BaseTransport) -> bool:
    """Whether the process at the other end of a unix socket runs as this user, or as root.

    Where the kernel does not tell (not Linux), the folder of the socket decides: it is open to its
    owner alone.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    own = transport.get_extra_info("socket")
    told = own.getsockopt(socket.SOL_SOCKET, option, _UID_AND_MORE.size)
    return _UID_AND_MORE.unpack(told)[1] in {os.geteuid(), 0}


class LinkSecret:
    """The secret that controls and gateways of one machine share, as its file is now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = b""

    def read(self) -> bytes:
        """Return the secret; the last one where the file cannot be used just now.

        Raises ``OSError`` where it never could: it is missing, short, or open to other users.
        """
        try:
            self._last = _read_private(self.path)
        except OSError:
            if not self._last:
                raise
        return self._last


def _read_private(path: Path) -> bytes:
    with path.open("rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in {os.geteuid(), 0}:
            raise PermissionError(errno.EPERM, "is not a file of this user's")
        if found.st_mode & _OPEN:
            raise PermissionError(errno.EPERM, "is open to other users")
        secret = opened.read(_SECRET_BYTES_MAX).strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise OSError(errno.EINVAL, f"has fewer than {SECRET_BYTES_MIN} characters")
    return secret


def control_proof(secret: bytes, introduction: Introduction, nonce: bytes) -> bytes:
    """What control, whose nonce this is, answers an introduction with."""
    return _proof(secret, "control", introduction, nonce)


def gateway_proof(secret: bytes, introduction: Introduction, nonce: bytes) -> bytes:
    """What whoever introduced itself answers control's nonce with."""
    return _proof(secret, "gateway", introduction, nonce)


def _proof(secret: bytes, role: str, introduction: Introduction, nonce: bytes) -> bytes:
    who = introduction.gateway_id, introduction.observes, introduction.control
    told = _encode((_VERSION, role, who, introduction.nonce, nonce))
    return hmac.digest(secret, told, "sha256")


def proves(given: bytes, expected: bytes) -> bool:
    """Whether a proof is the one that was expected; takes as long for any that is not."""
    return hmac.compare_digest(given, expected)


__all__ = [
    "AUTHENTICATED_S",
    "NONCE_BYTES",
    "SECRET_BYTES_MIN",
    "UNPROVEN_BYTES_MAX",
    "LinkSecret",
    "control_proof",
    "gateway_proof",
    "is_same_user",
    "proves",
]
