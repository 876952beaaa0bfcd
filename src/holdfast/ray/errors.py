"""The errors of guarded calls, and the table from Ray's exceptions to kinds of failure.

    GuardError ─┬─ CircuitOpenError      503: the deployment kept failing; ask again later
                ├─ TooManyCallsError     503: as many calls are under way as there may be
                ├─ DeadlineExceededError 504: no answer in time, and no time for another attempt
                └─ CallFailedError       502: the last attempt failed; ``__cause__`` is its error

Ray is not imported here: an exception of Ray can only be raised where Ray has been imported, and
its modules are looked up then.
"""

import sys
from typing import Final

from holdfast.core.failure import Kind, kind_of_status

# In this order: the first that fits. Names are of ray.exceptions and ray.serve.exceptions.
_RAY_KINDS: Final[tuple[tuple[str, str, Kind], ...]] = (
    ("ray.serve.exceptions", "BackPressureError", Kind.OVERLOADED),
    ("ray.serve.exceptions", "DeploymentUnavailableError", Kind.REFUSED),
    ("ray.serve.exceptions", "ReplicaUnavailableError", Kind.REFUSED),
    ("ray.serve.exceptions", "RequestCancelledError", Kind.RESET),
    ("ray.exceptions", "OutOfMemoryError", Kind.OUT_OF_MEMORY),
    ("ray.exceptions", "ActorUnavailableError", Kind.CONNECT_TIMEOUT),
    ("ray.exceptions", "ActorUnschedulableError", Kind.REFUSED),
    ("ray.exceptions", "NodeDiedError", Kind.EXITED),
    ("ray.exceptions", "RayActorError", Kind.EXITED),
    ("ray.exceptions", "WorkerCrashedError", Kind.EXITED),
    ("ray.exceptions", "GetTimeoutError", Kind.FIRST_TOKEN_TIMEOUT),
    ("ray.exceptions", "TaskCancelledError", Kind.RESET),
    ("ray.exceptions", "RayTaskError", Kind.SERVER_ERROR),  # what the deployment's own code raised
    ("ray.exceptions", "RaySystemError", Kind.RESET),
)


class GuardError(Exception):
    """A guarded call has no answer; ``status`` is the HTTP status that says so to a client."""

    status: int = 500

    def __init__(
        self,
        text: str,
        kind: Kind,
        *,
        attempts: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.attempts = attempts  # that were made
        self.retry_after_s = retry_after_s  # when it is worth asking again; None: unknown


class CircuitOpenError(GuardError):
    """The call was not sent: the deployment's circuit breaker is open."""

    status = 503  # with Retry-After: it is ours to say, and asking again later may help


class TooManyCallsError(GuardError):
    """The call was not sent: as many are under way as the guard permits."""

    status = 503  # as above


class DeadlineExceededError(GuardError):
    """No answer came in time, and there was no time, attempt or budget for another try."""

    status = 504  # the deployment did not answer in time


class CallFailedError(GuardError):
    """The last attempt failed and was not repeated; ``__cause__`` is the deployment's error."""

    status = 502  # the deployment answered, and not with an answer


def kind_of_error(error: BaseException, bad_request: tuple[type[BaseException], ...]) -> Kind:
    """The kind of failure that an exception of an attempt means.

    ``bad_request`` are the deployment's own exceptions for calls that are wrong wherever they go.
    An exception with an HTTP status (``status_code``) means what that status means.
    """
    cause = getattr(error, "cause", None)  # of a RayTaskError: what the deployment's code raised
    said = [error, cause] if isinstance(cause, BaseException) else [error]
    if bad_request and any(isinstance(one, bad_request) for one in said):
        return Kind.BAD_REQUEST
    for one in said:
        status = getattr(one, "status_code", None)
        if isinstance(status, int):
            headers = getattr(one, "headers", None) or {}
            after = any(str(name).lower() == "retry-after" for name in headers)
            return kind_of_status(status, retry_after=after) or Kind.SERVER_ERROR
    for module, name, kind in _RAY_KINDS:
        known = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type) and isinstance(error, known):
            return kind
    if isinstance(error, TimeoutError):
        return Kind.FIRST_TOKEN_TIMEOUT
    if isinstance(error, ConnectionRefusedError):
        return Kind.REFUSED
    return Kind.RESET if isinstance(error, ConnectionError) else Kind.SERVER_ERROR


def error_of(
    kind: Kind, text: str, *, attempts: int = 0, retry_after_s: float | None = None
) -> GuardError:
    """The error to raise for a call that ended with this kind of failure."""
    late = (Kind.DEADLINE, Kind.FIRST_TOKEN_TIMEOUT, Kind.BETWEEN_TOKENS_TIMEOUT)
    made = DeadlineExceededError if kind in late else CallFailedError
    return made(text, kind, attempts=attempts, retry_after_s=retry_after_s)


__all__ = [
    "CallFailedError",
    "CircuitOpenError",
    "DeadlineExceededError",
    "GuardError",
    "TooManyCallsError",
    "error_of",
    "kind_of_error",
]
