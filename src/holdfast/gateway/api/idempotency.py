"""The header ``Idempotency-Key`` and the errors that go with it.

Neither the key nor the request is stored in clear. The name of a record is a digest of tenant and
key. The fingerprint that tells another request under the same key is a digest of path and body,
keyed with the idempotency key: only who knows the key can try whether a text was sent under it.
"""

import re
from hashlib import blake2b
from typing import Final

from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.gateway.api.errors import INVALID, ApiError
from holdfast.gateway.http.interfaces import Exchange

HEADER: Final = b"idempotency-key"
KEY_LENGTH_MAX: Final = 255  # as payment services allow; a UUID has 36
_sane: Final = re.compile(rb"[!-~]{1,%d}" % KEY_LENGTH_MAX).fullmatch
_boundary: Final = re.compile(rb'multipart/.*boundary="?([^";,\s]+)', re.IGNORECASE).match
_NAME: Final = b"holdfast.name"
_PRINT: Final = b"holdfast.print"
_WAIT_S: Final = 1.0


def read_key(exchange: Exchange) -> bytes:
    """Return the Idempotency-Key of a request, which must have the header.

    Raises ``ApiError`` 400 unless it is 1 to 255 visible ASCII characters, sent once.
    """
    key = exchange.headers[HEADER]
    if _sane(key) is None:
        message = (
            f"The header Idempotency-Key must be sent once, with 1 to {KEY_LENGTH_MAX} visible "
            "ASCII characters and no spaces, such as a UUID."
        )
        raise ApiError(400, INVALID, "invalid_idempotency_key", message, "Idempotency-Key")
    return key


def name_of(tenant: str, key: bytes) -> KeyName:
    """Return the name of a key's record: the tenant and a digest of tenant and key.

    The same key of two tenants has two names; the key itself is not stored.
    """
    digest = blake2b(tenant.encode() + b"\0" + key, digest_size=20, person=_NAME)
    return KeyName(tenant, digest.hexdigest())


def fingerprint_of(exchange: Exchange, key: bytes) -> str:
    """Return a digest of path, query and body, which tells other requests under the same key.

    It depends on the key, too. The boundary of a form is left out, as clients draw a new one for
    each try.
    """
    secret = blake2b(key, digest_size=32, person=_PRINT).digest()
    digest = blake2b(key=secret, digest_size=20)
    for part in (exchange.path, exchange.query):
        digest.update(b"%d:%b" % (len(part), part))
    body = exchange.body
    boundary = _boundary(exchange.headers.get(b"content-type", b""))
    digest.update(body if boundary is None else body.replace(boundary[1], b""))
    return digest.hexdigest()


def reused() -> ApiError:
    """Make the 422 error for a key that was used before with another path or body."""
    message = "This Idempotency-Key was used with another request. Use a new key for a new request."
    return ApiError(422, INVALID, "idempotency_key_reused", message, "Idempotency-Key")


def gone() -> ApiError:
    """Make the 409 error for a request that was executed but whose answer is no longer kept."""
    message = (
        "The request with this Idempotency-Key was executed, and its answer is not kept any more. "
        "It is not executed again; use a new key to do so."
    )
    return ApiError(409, INVALID, "idempotency_answer_gone", message, "Idempotency-Key")


def unknown() -> ApiError:
    """Make the 409 error for a request whose gateway died while executing it, result unknown.

    It is not executed again, because that might have an effect twice.
    """
    message = (
        "The gateway that executed the request with this Idempotency-Key was lost, and it is not "
        "known how far it came. It is not executed again; use a new key to do so."
    )
    return ApiError(409, INVALID, "idempotency_outcome_unknown", message, "Idempotency-Key")


def interrupted() -> ApiError:
    """Make the 502 error, sent as an event, for a stream whose gateway died in its middle."""
    message = (
        "The gateway that produced this stream was lost in its middle. Send the request again "
        "with the same Idempotency-Key to get the whole answer."
    )
    return ApiError(502, "server_error", "idempotency_stream_interrupted", message)


def exhausted() -> ApiError:
    """Make the 429 error for a new key of a tenant, or store, that holds as many as it may."""
    message = (
        "There are too many idempotency keys that have not expired. Send fewer requests with a "
        "key, or send this one without."
    )
    return ApiError(429, "rate_limit_error", "idempotency_keys_exhausted", message, None, 60.0)


def unavailable() -> ApiError:
    """Make the 503 error for a keyed request that was not executed, as its key cannot be checked.

    The store does not answer, or too many keyed requests wait.
    """
    message = (
        "Idempotency keys cannot be checked at the moment, so this request was not executed. "
        "Try again later with the same key."
    )
    return ApiError(503, "overloaded_error", "idempotency_unavailable", message, None, _WAIT_S)


def overdue() -> ApiError:
    """Make the 504 error for a duplicate that waited too long for the first request's answer."""
    message = "The first request with this Idempotency-Key took longer than its deadline allows."
    return ApiError(504, "timeout_error", "deadline_exceeded", message)


__all__ = [
    "HEADER",
    "KEY_LENGTH_MAX",
    "exhausted",
    "fingerprint_of",
    "gone",
    "interrupted",
    "name_of",
    "overdue",
    "read_key",
    "reused",
    "unavailable",
    "unknown",
]
