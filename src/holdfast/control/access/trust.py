"""TLS settings with which commands verify an admin port's certificate.

    --ca FILE ─────────────────────► that authority alone, and the name must fit
    certificate of the fleet file ─┬► on loopback: exactly that certificate, whatever its names
                                   └► elsewhere: it is one more authority, and the name must fit
    neither ───────────────────────► the system's authorities, and the name must fit

Most admin ports have a certificate for the name by which others call them, or one that signed
itself. Commands on the same machine connect to 127.0.0.1, for which neither was made. They can read
the file from which the port itself took its certificate, so they ask for more than a name: for that
very certificate, of which only the port has the key. It is compared inside the handshake, before a
byte is sent: the first bytes hold the token.

Rejected: to verify nothing on loopback. A port above 1024 can be taken by any user of the machine
while the fleet is down, and would be given the token. Rejected: to load the whole file as
authorities. It may hold the chain, and then every certificate that this authority ever signed is
trusted.
"""

import ipaddress
import re
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.types import ConfigError

_FIRST: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----"
)
NOT_THE_SAME: Final = "it is not the one in the file"


def _compare(context: object, presented: bytes | None) -> None:
    if isinstance(context, _Exactly) and presented != context.only:
        error = ssl.SSLCertVerificationError(1, NOT_THE_SAME)
        error.verify_message = NOT_THE_SAME
        raise error


class _Compared(ssl.SSLObject):
    """TLS object for event loops that checks the pinned certificate in the handshake."""

    def do_handshake(self) -> None:
        super().do_handshake()
        _compare(self.context, self.getpeercert(binary_form=True))


class _ComparedSocket(ssl.SSLSocket):
    """TLS socket for ``http.client`` that checks the pinned certificate in the handshake."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _compare(self.context, self.getpeercert(binary_form=True))


class _Exactly(ssl.SSLContext):
    """TLS context that accepts one pinned certificate and no other, not even one it signed."""

    sslobject_class = _Compared
    sslsocket_class = _ComparedSocket
    only: bytes = b""


def trusting(
    url: str, ca: Path | None = None, certificate: Path | None = None
) -> ssl.SSLContext | None:
    """Build the TLS context with which to connect to ``url``; None for plain HTTP.

    ``ca`` is trusted alone; ``certificate`` is pinned exactly on loopback, and else added to the
    system's authorities. Raises ``ConfigError`` where a file cannot be used.
    """
    if urlsplit(url).scheme != "https":
        return None
    if ca is not None:
        try:
            return ssl.create_default_context(cafile=str(ca))
        except OSError as error:  # ssl.SSLError among them
            why = error.strerror if not isinstance(error, ssl.SSLError) else None
            problem = f"is {ca}: {why or 'it is no PEM file of certificates'}"
            raise ConfigError("--ca", problem, "name a PEM file") from error
    if certificate is None:
        return ssl.create_default_context()
    own = _first_of(certificate)
    if is_loopback(url):
        exactly = _Exactly(ssl.PROTOCOL_TLS_CLIENT)
        exactly.check_hostname = False  # the certificate itself is compared: see above
        exactly.only = ssl.PEM_cert_to_DER_cert(own)
        _add(exactly, own, certificate)
        return exactly
    context = ssl.create_default_context()
    _add(context, own, certificate)
    return context


def is_loopback(url: str) -> bool:
    """Whether the URL's host is ``localhost`` or a loopback address; no name is resolved."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _add(context: ssl.SSLContext, own: str, certificate: Path) -> None:
    # Its issuer is not at hand: the certificate itself is where the chain may end.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=own)
    except ssl.SSLError as error:
        raise _unusable(certificate, "it holds no certificate") from error


def _first_of(certificate: Path) -> str:
    """Read the first certificate (PEM) of a file, which is the port's own; the chain follows it."""
    try:
        found = _FIRST.search(certificate.read_bytes())
    except OSError as error:
        raise _unusable(certificate, (error.strerror or type(error).__name__).lower()) from error
    if found is None:
        raise _unusable(certificate, "it holds no certificate")
    return found.group().decode("ascii")


def _unusable(certificate: Path, why: str) -> ConfigError:
    fix = "name a certificate to trust with --ca"
    return ConfigError("admin.tls.certificate", f"is {certificate}: {why}", fix)


__all__ = ["NOT_THE_SAME", "is_loopback", "trusting"]
