"""The taxonomy of failures: outcomes of attempts, observed kinds, failure classes and causes.

    attempt ─► Outcome (five, not two) ─► Kind (what was seen) ─► Class (loading, runtime, routing)
    incident ─► Cause (what is behind it) ─► Class

An *outcome* says what an attempt means for the replica that had it. A *kind* says what was
observed. A *class* says where an operator should look, a *cause* what to mend there. Two outcomes
would not do: a replica that answers 429 is alive and honest, and a client's 400 says nothing about
the replica at all; routers that counted either as failure have taken whole fleets down.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """What the end of one attempt means for its replica: only ``FAILURE`` counts against it."""

    SUCCESS = "success"
    FAILURE = "failure"  # counts against the replica
    BACKPRESSURE = "backpressure"  # alive and busy: neutral for the breaker, lowers the weight
    CLIENT_ERROR = "client_error"  # the request was wrong: neutral
    CANCELLED = "cancelled"  # we or the client gave up on it: neutral


class Class(StrEnum):
    """Where an operator should look for a failure: loading, runtime or routing."""

    LOADING = "loading"
    RUNTIME = "runtime"
    ROUTING = "routing"


class Kind(StrEnum):
    """What was observed when an attempt, a canary or a process did not end well."""

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
    NOT_SERVED = "not_served"  # 404, 405 or 501 of a path that it was never seen to serve
    OUT_OF_MEMORY = "out_of_memory"
    EXITED = "exited"
    LOAD_STALLED = "load_stalled"
    CLIENT_GONE = "client_gone"
    SUPERSEDED = "superseded"  # its hedge was faster
    DRAINED = "drained"  # taken off a replica that is leaving
    GATEWAY_SHORTAGE = "gateway_shortage"  # the gateway itself had no descriptor, memory or port


class Cause(StrEnum):
    """What is behind an incident, as diagnosis names it; each belongs to one failure class.

    Signs, consequences and fixes of each are in ``core.diagnose``.
    """

    # loading
    LOAD_FAILED = "load_failed"  # the model is missing, damaged or refused
    LOAD_OUT_OF_MEMORY = "load_out_of_memory"  # it does not fit
    LOAD_STALLED = "load_stalled"  # it hangs, nobody knows on what
    COLD_START_CONTENTION = "cold_start_contention"  # too many read one filesystem
    DRIVER_MISMATCH = "driver_mismatch"  # engine, driver and GPU do not fit each other
    DISK_FULL = "disk_full"
    # runtime
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out_of_memory"
    UNDERSIZED = "undersized"  # reservation or limit below what it needs
    LEAK = "leak"
    FRAGMENTED = "fragmented"
    STARVED = "starved"  # accepts and never schedules
    HUNG = "hung"  # accepts and never answers
    STALLED = "stalled"  # answers began and stopped
    FROZEN = "frozen"  # the process is not run
    SLOW = "slow"
    DRIPPING = "dripping"  # tokens come, far apart
    CONNECTION_LOST = "connection_lost"  # answers break off with the connection
    TRUNCATED = "truncated"  # answers end early as if they were complete
    WRONG_OUTPUT = "wrong_output"
    DEGENERATE_OUTPUT = "degenerate_output"
    EMPTY_OUTPUT = "empty_output"
    MALFORMED_OUTPUT = "malformed_output"
    SERVER_ERRORS = "server_errors"
    FAST_FAILURES = "fast_failures"  # a black hole: failing faster than others answer
    OUTPUT_DRIFT = "output_drift"
    ENVIRONMENT_CHANGED = "environment_changed"  # the same question takes longer
    VERSION_SKEW = "version_skew"
    GPU_FAULT = "gpu_fault"
    GPU_OVERHEATED = "gpu_overheated"  # hot or slowed, for minutes
    GPU_POWER_LIMITED = "gpu_power_limited"  # at a power limit that somebody lowered
    GPU_RESET_DUE = "gpu_reset_due"  # a bad row of memory waits for a reset
    GPU_IDLE = "gpu_idle"  # requests wait, and the GPU does nothing
    LATENCY_TAIL = "latency_tail"  # a few wait ten times as long as half of them
    CUDA_CORRUPTED = "cuda_corrupted"
    KV_EXHAUSTED = "kv_exhausted"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    QUERY_OF_DEATH = "query_of_death"
    # routing
    MISPLACED = "misplaced"  # on a host that cannot carry it
    UNREACHABLE = "unreachable"
    HOST_UNAVAILABLE = "host_unavailable"  # its host is not ready, out of reach or leaving
    GPUS_STRANDED = "gpus_stranded"  # free in total, on no host enough
    NOT_PLACED = "not_placed"  # wanted, and its platform cannot run it
    SOURCE_BLIND = "source_blind"  # a platform cannot be read
    OVERLOADED = "overloaded"
    CHAIN_BACKED_UP = "chain_backed_up"
    QUEUE_STALLED = "queue_stalled"  # work waits and nothing else is known
    TRANSFER_FAILED = "transfer_failed"  # between prefill and decode
    WRONG_REVISION = "wrong_revision"
    CHECKER_BROKEN = "checker_broken"  # the canaries are wrong, not the replicas
    ALL_SILENT = "all_silent"  # no replica of a model answers: what they share stands still
    CONTROL_LATE = "control_late"  # whoever watches is late itself
    CONTROL_FROZEN = "control_frozen"
    GATEWAY_FROZEN = "gateway_frozen"
    GATEWAY_LATE = "gateway_late"
    SUPERVISOR_FROZEN = "supervisor_frozen"  # who would replace the others is stopped itself
    OWN_SHORTAGE = "own_shortage"  # a process of Holdfast lacks descriptors, memory or ports


@dataclass(slots=True, frozen=True)
class KindMeaning:
    """How the flow treats one kind of failure; ``MEANINGS`` has one for each ``Kind``. Constant.

    It says the outcome for the replica, whether to retry or to continue elsewhere, its failure
    class, and whether it proves the replica bad whatever was asked.
    """

    outcome: Outcome
    retryable: bool  # another replica may do better; the budget still has to agree
    free: bool = False  # with no byte answered it costs no retry budget, once per request
    continuable: bool = False  # what was shown before it is sound and may be continued elsewhere
    failure_class: Class | None = None
    proof: bool = False  # of the replica, whatever was asked; else it is a user's word


_FAIL = Outcome.FAILURE
_RUN = Class.RUNTIME

MEANINGS: Final[dict[Kind, KindMeaning]] = {
    Kind.REFUSED: KindMeaning(
        _FAIL, retryable=True, continuable=True, free=True, failure_class=_RUN, proof=True
    ),
    Kind.CONNECT_TIMEOUT: KindMeaning(
        _FAIL, retryable=True, continuable=True, failure_class=Class.ROUTING, proof=True
    ),
    Kind.RESET: KindMeaning(
        _FAIL, retryable=True, continuable=True, failure_class=_RUN, proof=True
    ),
    Kind.STALE_SOCKET: KindMeaning(Outcome.CANCELLED, retryable=True, continuable=True, free=True),
    Kind.FIRST_TOKEN_TIMEOUT: KindMeaning(
        _FAIL, retryable=True, continuable=True, failure_class=_RUN
    ),
    Kind.BETWEEN_TOKENS_TIMEOUT: KindMeaning(
        _FAIL, retryable=True, continuable=True, failure_class=_RUN
    ),
    Kind.DEADLINE: KindMeaning(Outcome.CANCELLED, retryable=False, failure_class=Class.ROUTING),
    Kind.CUT: KindMeaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.EMPTY: KindMeaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.MALFORMED: KindMeaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.DEGENERATE: KindMeaning(_FAIL, retryable=True, failure_class=_RUN),
    Kind.WRONG_OUTPUT: KindMeaning(_FAIL, retryable=True, failure_class=_RUN, proof=True),
    Kind.SERVER_ERROR: KindMeaning(_FAIL, retryable=True, continuable=True, failure_class=_RUN),
    Kind.OVERLOADED: KindMeaning(
        Outcome.BACKPRESSURE, retryable=True, continuable=True, failure_class=Class.ROUTING
    ),
    Kind.BAD_REQUEST: KindMeaning(Outcome.CLIENT_ERROR, retryable=False),
    Kind.NOT_SERVED: KindMeaning(Outcome.CLIENT_ERROR, retryable=False),
    Kind.OUT_OF_MEMORY: KindMeaning(
        _FAIL, retryable=True, continuable=True, failure_class=_RUN, proof=True
    ),
    Kind.EXITED: KindMeaning(
        _FAIL, retryable=True, continuable=True, failure_class=_RUN, proof=True
    ),
    Kind.LOAD_STALLED: KindMeaning(
        _FAIL, retryable=True, continuable=True, failure_class=Class.LOADING, proof=True
    ),
    Kind.CLIENT_GONE: KindMeaning(Outcome.CANCELLED, retryable=False),
    Kind.SUPERSEDED: KindMeaning(Outcome.CANCELLED, retryable=False),
    Kind.DRAINED: KindMeaning(Outcome.CANCELLED, retryable=True, continuable=True),
    Kind.GATEWAY_SHORTAGE: KindMeaning(
        Outcome.CANCELLED, retryable=True, continuable=True, failure_class=Class.ROUTING
    ),
}


def kind_of_status(status: int, *, retry_after: bool) -> Kind | None:
    """The kind of failure that an upstream HTTP status means; ``None`` is success.

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


__all__ = ["MEANINGS", "Cause", "Class", "Kind", "KindMeaning", "Outcome", "kind_of_status"]
