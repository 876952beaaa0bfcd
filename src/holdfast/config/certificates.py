"""TLS contexts of ports and towards engines, from the PEM files that the config names.

A certificate is renewed by writing its files anew. A port then has a second context, which its
first one hands every new handshake to; connections that are open keep their session. The two files
are rarely replaced in one step, so a pair that does not fit yet changes nothing and is looked at
again. Rejected: loading the files into the context in use. Authorities can be added to a context,
and none can be taken out of it.
"""

import ssl
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

FileTimes = tuple[int, int, int]

_CONTEXTS_MAX: Final = 64  # towards engines; one for each model with files of its own
_Times = tuple[FileTimes | None, ...]
_Paths = tuple[Path | None, ...]
_usable: Final[dict[_Paths, ssl.SSLContext]] = {}  # the last of each that could be made


class PortCertificate:
    """The TLS context of a port, which follows the files that it was made from."""

    __slots__ = ("_ca", "_certificate", "_key", "_newest", "_seen", "context", "problem")

    def __init__(
        self,
        certificate: Path,
        key: Path,
        context: ssl.SSLContext | None = None,
        client_ca: Path | None = None,
    ) -> None:
        """``context``: one that has the certificate already; else one is made. May raise.

        ``client_ca``: the authorities of callers' certificates in that context. Whoever is added
        to the file, or taken out of it, is believed, or not, by the next handshake.
        """
        self._certificate = certificate
        self._key = key
        self._ca = client_ca
        self._seen = self._times()  # from before: a change while reading is seen
        self.problem = ""  # why the newer files are not used; empty: they are
        self.context = context or _serving(certificate, key)
        self._newest = self.context
        self.context.sni_callback = self._choose  # called at each handshake, with or without a name
        if client_ca is not None:
            self.context.options |= ssl.OP_NO_TICKET  # a resumed session would not be verified anew

    def refresh(self) -> bool:
        """Load the files if they changed and fit each other; whether that is so. Cheap if not."""
        times = self._times()
        if times == self._seen:
            return False
        try:
            newest = _serving(self._certificate, self._key)
            newest.verify_mode = self.context.verify_mode  # else a caller's names are not told
            if self._ca is not None:
                newest.load_verify_locations(self._ca)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self.problem = getattr(error, "strerror", None) or type(error).__name__
            return False
        self._newest, self._seen, self.problem = newest, times, ""
        return True

    def _choose(self, handshake: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        """Continue a handshake with what the files say now."""
        if handshake.context is not self._newest:
            handshake.context = self._newest

    def _times(self) -> _Times:
        return file_times((self._certificate, self._key, self._ca))


def calling_context(
    ca: Path | None, certificate: Path | None, key: Path | None
) -> ssl.SSLContext | None:
    """The context for calls that trust an authority, and show a certificate where one is asked.

    The same object while the files are the same. Files that cannot be used, such as a certificate
    whose renewed key is not written yet, leave the context that they made before. None where they
    never could: the usual context then refuses an engine of a private authority, which is safe and
    said by its failures.
    """
    paths = (ca, certificate, key)
    context = _calling(paths, file_times(paths))
    if context is None:
        return _usable.get(paths)
    _usable.pop(paths, None)
    if len(_usable) >= _CONTEXTS_MAX:
        del _usable[next(iter(_usable))]
    _usable[paths] = context
    return context


def file_times(paths: Iterable[Path | None]) -> tuple[FileTimes | None, ...]:
    """When each file was last written, and which it is; None where there is none."""
    return tuple(None if path is None else _times_of(path) for path in paths)


@lru_cache(maxsize=_CONTEXTS_MAX)
def _calling(
    paths: _Paths,
    _: tuple[object, ...],
) -> ssl.SSLContext | None:
    ca, certificate, key = paths
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The names that a verified certificate was made for, in lower case; none without one.

    ``certificate`` is as ``ssl`` tells it: alternative names, and the common name.
    """
    if not certificate:
        return frozenset()
    names = [value for _, value in certificate.get("subjectAltName", ())]
    for part in certificate.get("subject", ()):
        names += [value for kind, value in part if kind == "commonName"]
    return frozenset(name.lower() for name in names)


def made_for(names: Collection[str], host: str) -> bool:
    """Whether a certificate with these ``names_of`` was made for a host, as callers check it."""
    own = _spelled(host)
    domain = own.partition(".")[2]
    return any(name in {own, f"*.{domain}"} for name in map(_spelled, names))


def _spelled(host: str) -> str:
    """A host in one spelling: IPv6 addresses have many."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _serving(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def _times_of(path: Path) -> FileTimes | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


__all__ = ["FileTimes", "PortCertificate", "calling_context", "file_times", "made_for", "names_of"]
