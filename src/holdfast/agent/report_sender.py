"""Posts an agent's reports to control: verified TLS, one deadline, a short answer.

A connection is not kept: control closes idle ones after as long as an agent's period, and half of
the reports would meet one that is just being closed.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final

from holdfast.config.certificates import calling_context
from holdfast.control.http_client import FetchError, UntrustedError, request
from holdfast.core.types import ConfigError

DEADLINE_S: Final = 5.0
_ANSWER_BYTES_MAX: Final = 16 << 10
_TELLS_CHARS_MAX: Final = 300


class SendError(Exception):
    """A report got no answer; the text says why, for people."""


@dataclass(slots=True, frozen=True)
class ReportAnswer:
    """Control's answer to a report."""

    status: int
    told: str = ""  # its own words, shortened
    wait_s: float | None = None  # it asks to be left alone for so long


class ReportSender:
    """Posts an agent's reports to one control."""

    def __init__(
        self,
        url: str,
        name: str,
        token: str | Callable[[], str],  # it, or who knows it now
        ca: str = "",
        certificate: str = "",
        key: str = "",
    ) -> None:
        self._url = url.rstrip("/")
        self._path = f"/agents/{name}"
        self._token = token
        self._files = tuple(Path(path) if path else None for path in (ca, certificate, key))
        self._tls = _context(ca, certificate, key) if url.startswith("https:") else None

    def send(self, body: bytes, deadline_s: float = DEADLINE_S) -> ReportAnswer:
        """Post a report (JSON) and return control's answer, or raise ``SendError``."""
        if self._tls is not None and any(self._files):
            self._tls = calling_context(*self._files) or self._tls  # the files may be renewed
        try:
            answer = request(
                self._url,
                self._path,
                deadline_s,
                bearer=self._token() if callable(self._token) else self._token,
                body=body,
                tls=self._tls,
                cut_at=_ANSWER_BYTES_MAX,
            )
        except FetchError as error:
            raise SendError(_reason(error, deadline_s)) from error
        wait = answer.headers.get("retry-after", "").strip()
        told = answer.body[:_TELLS_CHARS_MAX].decode("utf-8", "replace").strip()
        return ReportAnswer(
            answer.status,
            "".join(character for character in told if character.isprintable()),
            min(300.0, float(wait)) if wait.isdecimal() else None,
        )


def _reason(error: FetchError, deadline_s: float) -> str:
    cause = error.__cause__
    if isinstance(error, UntrustedError):
        why = getattr(cause, "verify_message", "") or "it cannot be verified"
        return f"control's certificate is not trusted: {why} (see --ca)"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS with control: {cause.reason or cause}"
    if isinstance(cause, HTTPException):
        return "who answers there is not control: no HTTP"
    if error.what == "timeout":
        return f"control did not answer within {deadline_s:g} s"
    return f"control cannot be reached: {getattr(cause, 'strerror', None) or error.detail}"


def _context(ca: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or "it is no PEM file of certificates"
        raise ConfigError("--ca", f"is {ca}: {why}", "name a PEM file") from error
    try:
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        named = f"is {certificate}, with the key {key}"
        why = getattr(error, "strerror", None) or "they do not fit each other"
        fix = "name the PEM files of a certificate and of its key"
        raise ConfigError("--certificate", f"{named}: {why}", fix) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


__all__ = ["DEADLINE_S", "ReportAnswer", "ReportSender", "SendError"]
