"""The errors that clients get: one exception, OpenAI's error shape, one table of codes.

    ApiError                      status and type      codes
     ├─ the request is wrong      400 invalid_request  invalid_json, invalid_value, …_required,
     │                                                 request_exceeds_quota, bad_request
     │                            404 invalid_request  unknown_url, model_not_found,
     │                                                 response_not_found, response_lost
     │                     404, 405, 501 invalid_request  path_not_served
     │                            405 invalid_request  method_not_allowed
     │                            415 invalid_request  unsupported_media_type
     ├─ the API key is not known  401 invalid_request  invalid_api_key
     ├─ the client was too slow   408 timeout          body_timeout
     ├─ it asked for too much     429 rate_limit       rate_limit_exceeded,
     │                                                 concurrency_limit_exceeded
     ├─ we have too little        503 overloaded       queue_full, queue_timeout, displaced,
     │                                                 no_ready_replica, overloaded,
     │                                                 holder_unavailable,
     │                                                 gateway_shortage, batches_unavailable
     ├─ it took too long          504 timeout          upstream_timeout, deadline_exceeded,
     │                                                 prompt_unread
     ├─ no replica answered       502 server           upstream_failed
     └─ it ends its replicas      502 server           replicas_lost: on two, not tried on a third
                                                       replica_lost: on one; for the batch runner
                                  422 invalid_request  request_blocked: known for it, not tried

The shape and the words are OpenAI's, so that its SDKs raise the right exception and retry when that
helps: they obey ``x-should-retry`` before anything else and ``retry-after-ms`` before Retry-After.

A message is written here or is an engine's own refusal of this very request. The reasons of the
flow stay inside: they name revisions and counts that are the operator's business. The text of the
exception itself is status and code only, so that logging it cannot log a prompt.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

import msgspec

from holdfast.core.messages import Finish

INVALID: Final = "invalid_request_error"
UPSTREAM_FAILED: Final = "upstream_failed"

# The type that goes with a status. Beside each status: why this one.
_TYPES: Final[dict[int, str]] = {
    400: INVALID,  # the request can never work as it is: no SDK sends it again
    401: INVALID,  # the key is missing or not valid; the type is OpenAI's own
    403: "permission_error",  # the key is known and may not do this
    404: INVALID,  # no such path or model; a model that is not allowed looks the same
    405: INVALID,  # the path exists; Allow says for which method
    408: "timeout_error",  # the client was too slow to send: it may well try again
    409: INVALID,  # the idempotency key was executed, and cannot be answered: no retry helps
    413: INVALID,  # more bytes than any request needs
    415: INVALID,  # a body of another type, which browsers may send across sites unasked
    422: INVALID,  # an engine's word for 400; ours for a request that ended replicas
    429: "rate_limit_error",  # the client's own limit; our fleet may be idle
    431: INVALID,  # headers beyond every client's needs
    500: "server_error",  # ours, and a bug
    501: INVALID,  # the engine cannot do this at all: no SDK should send it again
    502: "server_error",  # a replica gave no valid answer, and no other could mend it
    503: "overloaded_error",  # our overload, not the client's fault: with Retry-After it is polite
    504: "timeout_error",  # a replica, or the whole request, ran out of time
}

# What the flow's codes say to a client; ``None``: the reason is written for clients already.
FINISHES: Final[dict[str, str | None]] = {
    "rate_limit_exceeded": None,
    "concurrency_limit_exceeded": None,
    "request_exceeds_quota": None,
    "queue_full": "All replicas are busy and the queue is full. Try again later.",
    "queue_timeout": "All replicas stayed busy for as long as a request may wait. Try again later.",
    "displaced": "A request of a higher priority took the place of this one. Try again later.",
    "no_ready_replica": None,
    "overloaded": "The replicas of this model are overloaded. Try again later.",
    "gateway_shortage": "The gateway has no connection to spare. Try again later.",
    "deadline_exceeded": "The request took longer than its deadline allows.",
    "prompt_unread": None,
    "upstream_timeout": "The model did not answer in time.",
    UPSTREAM_FAILED: "The model could not complete the answer.",
    "replicas_lost": "The connection to the model broke on two replicas; no third was tried.",
    "replica_lost": "The connection to the model broke; no other replica was tried.",
    "bad_request": "The engine refused the request.",
    "path_not_served": None,
    "response_lost": (
        "The engine that gave this response does not keep it any more: it was restarted or removed,"
        " forgot it, or keeps none. Send the whole conversation as input."
    ),
    "holder_unavailable": (
        "The replica that keeps this response could not take the request for as long as one may "
        "wait. Try again later, or send the whole conversation as input."
    ),
    "model_not_found": "The model does not exist or you do not have access to it.",
    "client_gone": "The client closed the connection.",  # never sent
}
_UNKNOWN_CODE: Final = "The request could not be answered."

_RETRY_STATUSES: Final = frozenset({429, 503})
_UNDECIDED_STATUS: Final = 408  # the one 4xx besides 429 that may go better next time
_WAIT_MAX_S: Final = 86_400.0  # a day; also keeps infinity out of a header
# Sent again, it might end two more; or it would meet the same engine.
_FINAL_CODES: Final = frozenset({"replicas_lost", "path_not_served"})
_NO_RETRY: Final = b"x-should-retry: false\r\n"

_ENGINE_TEXT_MAX: Final = 2_000  # characters of an engine's refusal: some print the whole request

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class ApiError(Exception):
    """An error as the client will see it: status and OpenAI's type, code, message and param.

    Raising it refuses the request. ``retry_after_s`` matters with 429 and 503 only; the exception's
    own text is status and code, so that logs quote no request.
    """

    def __init__(
        self,
        status: int,
        type: str,  # noqa: A002 - OpenAI's word for it
        code: str,
        message: str,
        param: str | None = None,
        retry_after_s: float = 0.0,
        *,
        allow: bytes = b"",
    ) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.type = type
        self.code = code
        self.message = message
        self.param = param  # the member of the request that is at fault
        self.retry_after_s = retry_after_s
        self.allow = allow  # the method that a 405 should have used

    def __reduce__(self) -> tuple[type["ApiError"], tuple[Any, ...]]:
        told = (self.status, self.type, self.code, self.message, self.param, self.retry_after_s)
        return type(self), told


# --- as bytes -------------------------------------------------------------------------------------


def error_body(error: ApiError, request_id: str) -> bytes:
    """Return the JSON body of an error response, in OpenAI's shape and with the request id."""
    return _encode({"error": _told(error, request_id)})


def error_event(error: ApiError, request_id: str) -> bytes:
    """Return the error as the bytes of one event, the last of a stream that has begun."""
    return b"data: %b\n\n" % _encode({"error": _told(error, request_id)})


def error_headers(error: ApiError) -> bytes:
    """Return the header lines that say whether and when to retry, and Allow for a 405.

    429 and 503 say when; other 4xx say never; 408 and most 5xx get none, so that the client
    decides. No content type.
    """
    status = error.status
    if status in _RETRY_STATUSES:
        wait_s = min(max(error.retry_after_s, 1.0), _WAIT_MAX_S)
        return b"retry-after: %d\r\nretry-after-ms: %d\r\nx-should-retry: true\r\n" % (
            ceil(wait_s),
            ceil(wait_s * 1000.0),
        )
    if (status >= 500 or status == _UNDECIDED_STATUS) and error.code not in _FINAL_CODES:
        return b""  # the client's own policy decides
    if error.allow:
        return b"allow: %b\r\n%b" % (error.allow, _NO_RETRY)
    return _NO_RETRY


def _told(error: ApiError, request_id: str) -> dict[str, str | None]:
    return {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
        "request_id": request_id,
    }


def rate_limit_headers(numbers: Mapping[str, float]) -> bytes:
    """Return the values of ``Quota.headers`` as OpenAI's ``x-ratelimit-*`` header lines.

    Kinds (requests, tokens) without a limit are left out; empty if there is none.
    """
    lines = []
    for kind in ("requests", "tokens"):
        limit = numbers.get(f"limit_{kind}")
        if limit is not None:
            remaining, reset_s = numbers[f"remaining_{kind}"], numbers[f"reset_{kind}_s"]
            lines.append(
                f"x-ratelimit-limit-{kind}: {int(limit)}\r\n"
                f"x-ratelimit-remaining-{kind}: {int(remaining)}\r\n"
                f"x-ratelimit-reset-{kind}: {duration(reset_s)}\r\n"
            )
    return "".join(lines).encode()


def duration(duration_s: float) -> str:
    """Format seconds as OpenAI writes them: ``12ms``, ``1s``, ``8.64s``, ``6m0s``, ``1h0m0s``."""
    millis = ceil(min(max(duration_s, 0.0), 1e9) * 1000.0 - 1e-6)  # forgives float rounding
    if 0 < millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".")
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


# --- made here ------------------------------------------------------------------------------------


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Make (not raise) a 400 error.

    ``message`` must name the member and the fix, and quote nothing.
    """
    return ApiError(400, INVALID, code, message, param)


def unknown_model() -> ApiError:
    """Make (not raise) the 404 error for a model that does not exist or is not allowed.

    One error for both: a tenant that may not use a model need not know that it exists.
    """
    message = FINISHES["model_not_found"] or ""
    return ApiError(404, INVALID, "model_not_found", message, "model")


def unknown_response(param: str | None) -> ApiError:
    """Make (not raise) the 404 error for the id of a response that this tenant never got."""
    message = "There is no such response. Use an id that this service gave to you."
    return ApiError(404, INVALID, "response_not_found", message, param)


def blocked() -> ApiError:
    """Make (not raise) the 422 error for a blocked request: several replicas died of it."""
    message = "This request is blocked: replicas of the model failed on it. Change it."
    return ApiError(422, INVALID, "request_blocked", message)


def from_code(status: int, code: str, reason: str, retry_after_s: float = 0.0) -> ApiError:
    """Make the client's error for a status and code of the flow.

    The message is fixed by the code; ``reason`` is shown only for the few codes without one. An
    unknown code gets a general message.
    """
    message = FINISHES.get(code, _UNKNOWN_CODE)
    kind = _TYPES.get(status, INVALID if status < 500 else _TYPES[500])
    param = "model" if code == "model_not_found" else None
    return ApiError(
        status, kind, code, reason if message is None else message, param, retry_after_s
    )


def from_finish(finish: Finish, refusal: tuple[int, bytes] | None = None) -> ApiError:
    """Make the client's error for the flow's failed result.

    ``refusal`` is an engine's own 4xx (status, body): for ``bad_request`` its message, code and
    param are passed on, shortened.
    """
    if refusal is not None and finish.code == "bad_request":
        return _from_engine(*refusal)
    return from_code(finish.status, finish.code, finish.reason, finish.retry_after_s)


def _from_engine(status: int, body: bytes) -> ApiError:
    """An engine's 4xx in our shape: all of them mean that this request is wrong."""
    status = status if 400 <= status < 500 else 400
    error = ApiError(status, INVALID, "bad_request", FINISHES["bad_request"] or "")
    try:
        told = _decode(body)
    except (ValueError, RecursionError):
        return error  # not JSON: there is nothing to take from it
    inner = told.get("error", told) if isinstance(told, dict) else None
    if isinstance(inner, str):
        inner = {"message": inner}
    if isinstance(inner, dict):
        message = inner.get("message") or inner.get("detail")
        if isinstance(message, str) and message:
            error.message = message[:_ENGINE_TEXT_MAX]
        if isinstance(inner.get("code"), str):
            error.code = inner["code"][:64]
        if isinstance(inner.get("param"), str):
            error.param = inner["param"][:64]
    return error


__all__ = [
    "FINISHES",
    "INVALID",
    "UPSTREAM_FAILED",
    "ApiError",
    "blocked",
    "duration",
    "error_body",
    "error_event",
    "error_headers",
    "from_code",
    "from_finish",
    "invalid",
    "rate_limit_headers",
    "unknown_model",
    "unknown_response",
]
