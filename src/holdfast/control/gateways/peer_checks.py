"""Authenticates whoever connects to control, and bounds whom it may call itself.

    unix socket of this run     the kernel names the peer's user: this one, or root
    port with TLS               a certificate of control's authority, made for the member's host
    port of loopback            a secret that both ends prove to know

Of several members each is believed about itself alone: the certificate of ``b.example.org`` speaks
for member b's gateways and for its standby control, and for nobody else's. Whoever has the secret
may be any member: it is on the same machine, and of the same user.
"""

import asyncio
from collections.abc import Mapping
from secrets import token_bytes
from typing import Final, Protocol

from holdfast.config.certificates import made_for, names_of
from holdfast.frames import Challenge, Frame, Hello, Introduction, Proof, tag_of
from holdfast.frames.authentication import (
    NONCE_BYTES,
    LinkSecret,
    control_proof,
    gateway_proof,
    is_same_user,
    proves,
)

_OBSERVER: Final = "control/"  # before a standby's name; a gateway's place stands behind it
_PLACE: Final = "gateway-"
_NAMES_TOLD: Final = 4  # of a certificate, in a reason


class PeerRefusedError(Exception):
    """The peer of a connection is not authenticated as one of ours; the text says why."""


class PeerCheck(Protocol):
    """Authenticates the peer of one connection; every method raises ``PeerRefusedError``."""

    @property
    def proven(self) -> bool:
        """Whether the peer is one of ours, so that its Hello may be read."""

    def connected(self, transport: asyncio.BaseTransport) -> None:
        """Look at the connection itself, before anything is read from it."""

    def hear(self, frame: Frame) -> Challenge | None:
        """Take a frame of a peer that is not proven yet; returns the answer, if there is one."""

    def permit(self, hello: Hello) -> None:
        """Refuse a proven peer that calls itself somebody else."""


class SameUserCheck:
    """Believes processes of this user, and of root, over the unix socket."""

    proven = True

    def connected(self, transport: asyncio.BaseTransport) -> None:
        """Refuse a process of another user."""
        if not is_same_user(transport):
            raise PeerRefusedError("it is another user's process")

    def hear(self, frame: Frame) -> None:
        """Nothing is asked: the kernel has answered."""

    def permit(self, hello: Hello) -> None:
        """Any place is as good: all of them are this control's own."""


class CertificateCheck:
    """Believes a verified certificate as far as its names go; ``hosts`` by member."""

    proven = True

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._hosts = hosts
        self._names: frozenset[str] = frozenset()

    def connected(self, transport: asyncio.BaseTransport) -> None:
        """Keep the names of the certificate that the handshake has verified."""
        self._names = names_of(transport.get_extra_info("peercert"))

    def hear(self, frame: Frame) -> None:
        """Nothing is asked: the handshake has answered."""

    def permit(self, hello: Hello) -> None:
        """Refuse a gateway or standby of a member for whose host the certificate was not made."""
        host = self._hosts[_member(hello.gateway_id, self._hosts, observes=hello.observes)]
        if not made_for(self._names, host):
            names = ", ".join(sorted(self._names)[:_NAMES_TOLD]) or "nobody"
            raise PeerRefusedError(
                f"its certificate is for {names}, and {hello.gateway_id!r} needs one for {host}"
            )


class SecretCheck:
    """Believes whoever proves to know the secret; see ``frames.authentication``."""

    def __init__(self, own: str, members: Mapping[str, str], secret: LinkSecret) -> None:
        self._own = own
        self._members = members
        self._file = secret
        self._secret = b""
        self._introduction: Introduction | None = None
        self._nonce = b""
        self.proven = False

    def connected(self, transport: asyncio.BaseTransport) -> None:
        """The connection tells nothing: anybody on this machine can open one."""

    def hear(self, frame: Frame) -> Challenge | None:
        """Answer an introduction with a challenge, and compare the proof that answers that."""
        if self._introduction is None:
            return self._challenge(frame)
        expected = gateway_proof(self._secret, self._introduction, self._nonce)
        if not isinstance(frame, Proof) or not proves(frame.proof, expected):
            raise PeerRefusedError("it does not know the secret")
        self.proven = True
        return None

    def _challenge(self, frame: Frame) -> Challenge:
        if not isinstance(frame, Introduction) or len(frame.nonce) != NONCE_BYTES:
            told = f"it begins with {tag_of(frame)!r}: a stranger, or a gateway of an older version"
            raise PeerRefusedError(told)
        if frame.control != self._own:
            raise PeerRefusedError(f"it asks for another control than {self._own!r}")
        _member(frame.gateway_id, self._members, observes=frame.observes)
        try:
            self._secret = self._file.read()
        except OSError as error:
            raise PeerRefusedError(f"{self._file.path} {error.strerror}") from error
        self._introduction, self._nonce = frame, token_bytes(NONCE_BYTES)
        return Challenge(self._nonce, control_proof(self._secret, frame, self._nonce))

    def permit(self, hello: Hello) -> None:
        """Refuse a Hello of somebody else than was introduced."""
        known = self._introduction
        if known is None or (hello.gateway_id, hello.observes) != (
            known.gateway_id,
            known.observes,
        ):
            raise PeerRefusedError("its Hello is not the one that it proved")


def _member(gateway_id: str, members: Mapping[str, str], *, observes: bool) -> str:
    """The member that a gateway or a standby control belongs to."""
    if observes:
        name = gateway_id.removeprefix(_OBSERVER)
        known = gateway_id.startswith(_OBSERVER) and name in members
    else:
        name, _, place = gateway_id.rpartition("/")
        known = place.startswith(_PLACE) and name in members
    if not known:
        raise PeerRefusedError("it names no gateway and no standby of control.members")
    return name


__all__ = ["CertificateCheck", "PeerCheck", "PeerRefusedError", "SameUserCheck", "SecretCheck"]
