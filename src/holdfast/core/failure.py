"""What can go wrong, in one place: outcomes of attempts and the taxonomy of failures.

    attempt ─► Outcome (five, not two) ─► Kind (what was seen) ─► Class (loading, runtime, routing)

An *outcome* says what an attempt means for the replica that had it. A *kind* says what was
observed. A *class* says where an operator should look. Two outcomes would not do: a replica that
answers 429 is alive and honest, and a client's 400 says nothing about the replica at all; routers
that counted either as failure have taken whole fleets down.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """What one attempt means for its replica."""

    SUCCESS = "success"
    FAILURE = "failure"  # counts against the replica
    BACKPRESSURE = "backpressure"  # alive and busy: neutral for the breaker, lowers the weight
    CLIENT_ERROR = "client_error"  # the request was wrong: neutral
    CANCELLED = "cancelled"  # we or the client gave up on it: neutral


class Class(StrEnum):
    """Where to look: the three places a serving failure can live."""

    LOADING = "loading"
    RUNTIME = "runtime"
    ROUTING = "routing"


class Kind(StrEnum):
    """What was observed when an attempt did not succeed."""

    REFUSED = "refused"  # nobody listens: the strongest failure there is
    CONNECT_TIMEOUT = "connect_timeout"
    RESET = "reset"  # the connection died under the attempt
    STALE_SOCKET = "stale_socket"  # a pooled connection was closed before it carried a byte
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105
    BETWEEN_TOKENS_TIMEOUT = "between_tokens_timeout"
    DEADLINE = "deadline"  # the whole request ran out of time
    CUT = "cut"  # the stream ended without a finish reason
    EMPTY = "empty"  # a finished answer without content
    MALFORMED = "malformed"  # bytes that are not the protocol
    DEGENERATE = "degenerate"  # one token for ever
    WRONG_OUTPUT = "wrong_output"  # a canary answered something else
    SERVER_ERROR = "server_error"  # 5xx
    OVERLOADED = "overloaded"  # 429, or 503 with Retry-After
    BAD_REQUEST = "bad_request"  # other 4xx
    OUT_OF_MEMORY = "out_of_memory"
    EXITED = "exited"
    LOAD_STALLED = "load_stalled"
    CLIENT_GONE = "client_gone"
    SUPERSEDED = "superseded"  # its hedge was faster
    DRAINED = "drained"  # taken off a replica that is leaving


@dataclass(slots=True, frozen=True)
class Meaning:
    """How a kind is to be read."""

    outcome: Outcome
    retryable: bool  # another replica may do better; the budget still has to agree
    free: bool = False  # with no byte answered it costs no retry budget, once per request
    continuable: bool = False  # what was shown before it is sound and may be continued elsewhere
    failure_class: Class | None = None


_FAIL = Outcome.FAILURE
_RUN = Class.RUNTIME

MEANINGS: Final[dict[Kind, Meaning]] = {
    Kind.REFUSED: Meaning(_FAIL, retryable=True, continuable=True, free=True, failure_class=_RUN),
    Kind.CONNECT_TIMEOUT: Meaning(
        _FAIL, retryable=True, continuable=True, failure_class=Class.ROUTING
    ),
    Kind.RESET: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.STALE_SOCKET: Meaning(Outcome.CANCELLED, retryable=True, continuable=True, free=True),
    Kind.FIRST_TOKEN_TIMEOUT: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.BETWEEN_TOKENS_TIMEOUT: Meaning(
        _FAIL, retryable=True, continuable=True, failure_class=_RUN
    ),
    Kind.DEADLINE: Meaning(Outcome.CANCELLED, retryable=False, failure_class=Class.ROUTING),
    Kind.CUT: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.EMPTY: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.MALFORMED: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.DEGENERATE: Meaning(_FAIL, retryable=True, failure_class=_RUN),
    Kind.WRONG_OUTPUT: Meaning(_FAIL, retryable=True, failure_class=_RUN),
    Kind.SERVER_ERROR: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.OVERLOADED: Meaning(
        Outcome.BACKPRESSURE, retryable=True, continuable=True, failure_class=Class.ROUTING
    ),
    Kind.BAD_REQUEST: Meaning(Outcome.CLIENT_ERROR, retryable=False),
    Kind.OUT_OF_MEMORY: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.EXITED: Meaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.LOAD_STALLED: Meaning(
        _FAIL, retryable=True, continuable=True, failure_class=Class.LOADING
    ),
    Kind.CLIENT_GONE: Meaning(Outcome.CANCELLED, retryable=False),
    Kind.SUPERSEDED: Meaning(Outcome.CANCELLED, retryable=False),
    Kind.DRAINED: Meaning(Outcome.CANCELLED, retryable=True, continuable=True),
}


def kind_of_status(status: int, *, retry_after: bool) -> Kind | None:
    """Read an upstream HTTP status; ``None`` is success.

    429 and a 503 *with* Retry-After are a busy replica saying so. A bare 503 is a failure: load
    balancers and dying engines send it, and treating it as politeness hides them.
    """
    if status < 400:
        return None
    if status == 429 or (status == 503 and retry_after):
        return Kind.OVERLOADED
    if status >= 500:
        return Kind.SERVER_ERROR
    return Kind.BAD_REQUEST


__all__ = ["MEANINGS", "Class", "Kind", "Meaning", "Outcome", "kind_of_status"]
