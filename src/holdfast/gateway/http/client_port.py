"""The port that clients connect to: accepts connections for a ``Server``, with or without TLS.

Two ways to accept. The event loop's own server is the cheaper one. An ``Acceptor`` accepts one by
one, where TLS handshakes or scarce descriptors have to be counted.
"""

import socket
from typing import Final, Protocol

import structlog

from holdfast.acceptor import Acceptor
from holdfast.config.certificates import PortCertificate
from holdfast.core.intake.descriptors import descriptors_needed
from holdfast.gateway.http.server import Server

_BACKLOG: Final = 4_096

_log = structlog.get_logger("holdfast.gateway")


class Listening(Protocol):
    """What accepts clients, the event loop's server or an ``Acceptor``; for draining."""

    def close(self) -> None:
        """Accept no more clients; open connections are not touched."""


class ClientPort:
    """The listening socket of one gateway process, and the certificate that it shows.

    Clients are accepted from ``open`` to ``close``.
    """

    def __init__(
        self, gateway_id: str, listener: socket.socket, certificate: PortCertificate | None
    ) -> None:
        """``certificate``: with it, clients speak TLS; None: they do not."""
        self._gateway_id = gateway_id
        self._listener = listener
        self._certificate = certificate
        self._acceptor: Acceptor | None = None
        self._listening: Listening | None = None

    async def open(self, server: Server, descriptors: int) -> None:
        """Accept clients for a server; warn where the limit on ``descriptors`` is too low for it.

        ``descriptors``: how many files this process may open; 0: not known.
        """
        tls = None if self._certificate is None else self._certificate.context
        if tls is None and not server.scarce:
            self._listening = await server.loop.create_server(
                server.protocol, sock=self._listener, backlog=_BACKLOG
            )
            return
        if server.scarce:
            wanted = server.config.connections_max
            _log.warning(
                "few descriptors",
                gateway=self._gateway_id,
                limit=descriptors,
                connections=server.connections_max,
                wanted=wanted,
                fix=f"raise the limit on open files to {descriptors_needed(wanted)}",
            )
        self._listening = self._acceptor = Acceptor(
            self._listener,
            server.protocol,
            server.loop,
            tls=tls,
            handshake_s=server.config.handshake_s,
            handshakes_max=server.config.handshakes_max,
            backlog=_BACKLOG,
            spare=server.has_place,
            relieve=server.make_place,
            on_shortage=server.shortages.saw,
        )

    def look_at_certificate(self) -> None:
        """Use a renewed certificate for new connections, and log it. Cheap if there is none."""
        certificate = self._certificate
        if certificate is None:
            return
        before = certificate.problem
        if certificate.refresh():
            _log.info("certificate renewed", gateway=self._gateway_id)
        elif certificate.problem and certificate.problem != before:
            fix = "write gateway.tls.certificate and its key so that they fit each other"
            _log.warning("certificate not renewed", why=certificate.problem, fix=fix)

    def counters(self) -> dict[str, int | float]:
        """Counters of handshakes that were not completed; empty without TLS."""
        return {} if self._acceptor is None else handshake_counters(self._acceptor)

    def close(self) -> None:
        """Accept no more clients; open connections are not touched."""
        if self._listening is not None:
            self._listening.close()


def handshake_counters(acceptor: Acceptor) -> dict[str, int | float]:
    """TLS handshakes that were not completed, by how they ended."""
    return {
        'handshakes_failed_total{reason="failed"}': acceptor.failed,
        'handshakes_failed_total{reason="evicted"}': acceptor.given_up,
    }


__all__ = ["ClientPort", "Listening", "handshake_counters"]
