"""Refusals: the status, code, Retry-After and reason that a refused client is sent.

A refusal is an answer, and a good one tells three cases apart: *you* asked for too much (429, come
back when your bucket has filled), *we* have too little (503, come back when the queue has drained),
and *this can never work* (400, do not come back unchanged). Clients act on the difference: SDKs
retry 429 and 5xx by themselves and never retry 400.

Rejected: one 503 for all of them. A tenant over quota then looks like an outage on every dashboard,
and a request that can never fit is sent again for ever.
"""

from dataclasses import dataclass
from typing import Final

RETRY_AFTER_MIN_S: Final = 1.0  # the header has whole seconds: less than one reads as "at once"
RETRY_AFTER_MAX_S: Final = 60.0  # a queue's state a minute ahead is a guess, however computed
RETRY_AFTER_UNKNOWN_S: Final = 5.0  # no drain rate known: about the time a replica takes to return


@dataclass(slots=True, frozen=True)
class Refusal:
    """The answer to a request that is refused: status, code, seconds for Retry-After, reason.

    ``retry_after_s`` 0 means that waiting does not help.
    """

    status: int
    code: str
    retry_after_s: float
    reason: str


def retry_after_s(ahead: int, service_rate: float | None) -> float:
    """Seconds after which the ``ahead`` requests now waiting will be done, within 1 and 60.

    5 where ``service_rate`` (requests per second) is unknown. The whole backlog is counted, not one
    place in it; jitter is the caller's.
    """
    if service_rate is None or service_rate <= 0.0:
        return RETRY_AFTER_UNKNOWN_S
    return min(max(ahead / service_rate, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)


def over_quota(what: str, limit_per_minute: float, wait_s: float) -> Refusal:
    """The refusal (429) for a tenant whose bucket of ``what`` is empty for ``wait_s`` seconds."""
    return Refusal(
        429,  # Too Many Requests: the limit is the client's own, our fleet may be idle
        "rate_limit_exceeded",
        max(wait_s, RETRY_AFTER_MIN_S),
        f"over the quota of {limit_per_minute:g} {what} per minute",
    )


def too_many_at_once(limit: int) -> Refusal:
    """The refusal (429) for a tenant with as many requests under way as it may have."""
    return Refusal(
        429,  # Too Many Requests: the limit is the client's own, our fleet may be idle
        "concurrency_limit_exceeded",
        RETRY_AFTER_MIN_S,
        f"over the quota of {limit} requests at once",
    )


def beyond_quota(asked: int, burst: float) -> Refusal:
    """The refusal (400) for more tokens in one request than the tenant's bucket can ever hold."""
    return Refusal(
        400,  # Bad Request: no wait can help, and unlike 429 no SDK retries it by itself
        "request_exceeds_quota",
        0.0,
        f"asks for {asked} tokens (prompt + max_tokens) and the quota never holds more than "
        f"{burst:g}: lower max_tokens, shorten the prompt or raise the quota",
    )


def queue_full(what: str, ahead: int, service_rate: float | None) -> Refusal:
    """The refusal (503) where a bound of the queue is reached; ``what`` names it."""
    return Refusal(
        503,  # Service Unavailable: our overload, not the tenant's; with Retry-After it is polite
        "queue_full",
        retry_after_s(ahead, service_rate),
        f"the queue is full: {what}",
    )


def displaced(ahead: int, service_rate: float | None) -> Refusal:
    """The refusal (503) for a queued batch request that gave its place to an interactive one."""
    return Refusal(
        503,  # Service Unavailable: it would have been served had we had more room
        "displaced",
        retry_after_s(ahead, service_rate),
        "the queue is full and an interactive request took the place of this batch request",
    )


def wait_expired(wait_s: float, ahead: int, service_rate: float | None) -> Refusal:
    """The refusal (503) for a request that waited in the queue as long as its class may wait."""
    return Refusal(
        503,  # Service Unavailable: never sent to a replica, so it is safe to send again
        "queue_timeout",
        retry_after_s(ahead, service_rate),
        f"waited {wait_s:g} s in the queue without a free replica",
    )


def no_ready_replica(wait_s: float) -> Refusal:
    """The refusal (503) for a request that waited ``wait_s`` while no replica became ready."""
    return Refusal(
        503,  # Service Unavailable: the model has no ready replica; one may be loading
        "no_ready_replica",
        RETRY_AFTER_UNKNOWN_S,
        f"no replica became ready within {wait_s:g} s",
    )


def none_in_time(why: str, ready_in_s: float) -> Refusal:
    """The refusal (503) for a request that does not wait: no replica can be ready in its time."""
    return Refusal(
        503,  # Service Unavailable: the same as after a wait that everybody knew to be in vain
        "no_ready_replica",
        min(max(ready_in_s, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S),
        f"{why}; one may be back in about {ready_in_s:.0f} s",
    )


def deadline_passed() -> Refusal:
    """The refusal (504) for a request whose own deadline passed before it was sent to a replica."""
    return Refusal(
        504,  # Gateway Timeout: one deadline, one status, wherever in the request's life it passes
        "deadline_exceeded",
        0.0,  # the time was the client's choice: waiting longer before asking does not extend it
        "the deadline of the request passed before it was sent to a replica",
    )


__all__ = [
    "RETRY_AFTER_MAX_S",
    "RETRY_AFTER_MIN_S",
    "RETRY_AFTER_UNKNOWN_S",
    "Refusal",
    "beyond_quota",
    "deadline_passed",
    "displaced",
    "no_ready_replica",
    "none_in_time",
    "over_quota",
    "queue_full",
    "retry_after_s",
    "too_many_at_once",
    "wait_expired",
]
