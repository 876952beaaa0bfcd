"""One request while a gateway works on it: its attempts, its phase, and the table of phases.

    new ─► queued ─► running ─► streaming ─► done
              ▲         │  ▲        │
              └─ backing off        └─► running again: a continuation on another replica

*Running* means an attempt is out and the client has seen nothing of it; *streaming* means content
may have been shown, so no silent retry is possible any more.
"""

from enum import StrEnum
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.request.admission.quota import Reservation
from holdfast.core.request.breaker import CountedFailure
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.timer_wheel import TimerEntry
from holdfast.core.types import MILLISECOND, SECOND, Halt, Request


class RequestPhase(StrEnum):
    """What a request is waiting for at the moment: a replica, an answer, a retry, or nothing.

    STREAMING means that content may have been shown, so that no silent retry is possible any more.
    """

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    STREAMING = "streaming"
    DONE = "done"


class RequestStep(StrEnum):
    """A step of one request's life; with the phase it gives the next phase (``TRANSITIONS``)."""

    DISPATCH = "dispatch"
    ENQUEUE = "enqueue"
    CONTENT = "content"
    BACK_OFF = "back_off"
    FINISH = "finish"


_NEW: Final = RequestPhase.NEW

TRANSITIONS: Final[dict[tuple[RequestPhase, RequestStep], RequestPhase]] = {
    (RequestPhase.NEW, RequestStep.DISPATCH): RequestPhase.RUNNING,
    (RequestPhase.NEW, RequestStep.ENQUEUE): RequestPhase.QUEUED,
    (RequestPhase.NEW, RequestStep.FINISH): RequestPhase.DONE,
    (RequestPhase.QUEUED, RequestStep.DISPATCH): RequestPhase.RUNNING,
    (RequestPhase.QUEUED, RequestStep.ENQUEUE): RequestPhase.QUEUED,  # of another model
    (RequestPhase.QUEUED, RequestStep.FINISH): RequestPhase.DONE,
    (RequestPhase.RUNNING, RequestStep.DISPATCH): RequestPhase.RUNNING,
    (RequestPhase.RUNNING, RequestStep.ENQUEUE): RequestPhase.QUEUED,
    (RequestPhase.RUNNING, RequestStep.CONTENT): RequestPhase.STREAMING,
    (RequestPhase.RUNNING, RequestStep.BACK_OFF): RequestPhase.BACKING_OFF,
    (RequestPhase.RUNNING, RequestStep.FINISH): RequestPhase.DONE,
    (RequestPhase.BACKING_OFF, RequestStep.DISPATCH): RequestPhase.RUNNING,
    (RequestPhase.BACKING_OFF, RequestStep.ENQUEUE): RequestPhase.QUEUED,
    (RequestPhase.BACKING_OFF, RequestStep.FINISH): RequestPhase.DONE,
    (RequestPhase.STREAMING, RequestStep.DISPATCH): RequestPhase.RUNNING,
    (RequestPhase.STREAMING, RequestStep.ENQUEUE): RequestPhase.QUEUED,
    (RequestPhase.STREAMING, RequestStep.FINISH): RequestPhase.DONE,
}


class IllegalStepError(Exception):
    """Raised when a request takes a step that its phase does not allow: a bug in the flow.

    The message holds the request's id, phase and story.
    """


DEATHS_MAX: Final = 2  # of replicas under one request; a third would show nothing new
_STALE_WITHIN: Final = 20 * MILLISECOND  # a round trip; later, the request had been taken
_TOGETHER: Final = 20 * MILLISECOND  # what ends two replicas so soon after each other hit both
# A machine that goes down ends its processes one by one, and on a busy one that takes a while.
HOST_TOGETHER: Final = 2 * SECOND
_UNREACHED: Final = frozenset({Kind.RESET, Kind.STALE_SOCKET, Kind.REFUSED, Kind.CONNECT_TIMEOUT})


class Attempt:
    """One attempt of one request at one replica: when it began, when its first token is due.

    Also keeps what load the replica was credited with for it, whether it is the breaker's trial,
    and when the first content came (``first_at``, 0 = not yet). A record only: it sends and decides
    nothing.
    """

    __slots__ = (
        "candidate",
        "doubt_at",
        "first_at",
        "first_due",
        "halt",
        "number",
        "prefill",
        "queue",
        "report",
        "scale",
        "started",
        "tokens",
        "trial",
    )

    def __init__(
        self, number: int, candidate: Candidate, started: int, first_due: int, trial: bool
    ) -> None:
        self.number = number
        self.candidate = candidate
        self.started = started
        self.first_due = first_due  # when the wait for its first token is over
        self.doubt_at = first_due  # when it is taken for slow, though it is still waited for
        self.trial = trial  # it holds the breaker's one half-open slot
        self.queue = 0  # the most that waited inside its engine, as far as that was known
        self.scale = 1.0  # of that wait: how slow the pool was when it was set
        self.first_at = 0  # 0 = no content yet
        self.halt: Halt | None = None  # its replica will not answer it
        self.tokens = 0  # what its replica was credited with as load
        self.prefill = 0  # of its prompt: what its replica has not shown to have read
        self.report = candidate.reports  # a later report of the replica includes them


class ChargedFailure:
    """A failed attempt, charged to its replica until it is settled whose fault it was.

    The record links the request, the replica and the kind of failure; the failure ledger decides.
    """

    __slots__ = ("active", "at", "candidate", "due", "failure", "fast", "kind", "own")

    def __init__(
        self,
        active: "ActiveRequest",
        candidate: Candidate,
        kind: Kind,
        failure: CountedFailure,
        *,
        fast: bool,
    ) -> None:
        self.active = active
        self.candidate = candidate
        self.kind = kind
        self.failure = failure
        self.fast = fast  # sooner than any real answer
        self.own = False  # of a tenant that causes such failures itself
        self.at = 0
        self.due = 0  # when control hears of it without a second opinion


class ActiveRequest(TimerEntry):
    """What a gateway's flow knows of one request, from its arrival to its one final answer.

    Holds the request, its phase, deadline, attempts out now, replicas tried, tokens shown and its
    story; ``step`` is the only change it makes by itself.
    """

    __slots__ = (
        "attempts",
        "charges",
        "continued",
        "deadline",
        "died",
        "died_at",
        "empty",
        "free_used",
        "hedge_at",
        "hosts",
        "left",
        "live",
        "made",
        "model",
        "moved",
        "output_max",
        "phase",
        "queued_at",
        "read_tokens",
        "request",
        "reservation",
        "revision",
        "shown_tokens",
        "story",
        "tried",
        "waited",
    )

    def __init__(self, request: Request, model: str, deadline: int) -> None:
        self.request = request
        self.model = model  # the model that serves it: another than asked for when degraded
        self.left: tuple[str, ...] = ()  # models that had no place for it, or failed it
        self.output_max = 0  # tokens its answer may have at most, where that is capped; 0 = not
        self.deadline = deadline
        self.phase = _NEW
        self.live: list[Attempt] = []  # attempts out now: one, or two while a hedge races
        self.attempts = 0  # dispatches of any sort; also the next attempt's number
        self.made = 0  # attempts that count against the cap: not free ones, not continuations
        self.continued = 0
        self.moved = 0  # times it was sent away from a replica that would not answer
        self.free_used = False
        self.tried: tuple[str, ...] = ()
        self.charges: tuple[ChargedFailure, ...] = ()  # its failures, while they may be its own
        self.died: tuple[str, ...] = ()  # of those, whose connection died under it
        self.died_at = 0  # when the last of them did
        self.empty: tuple[str, ...] = ()  # replicas that answered it without a word
        self.hosts: tuple[str, ...] = ()  # of replicas that broke off or did not take it
        self.revision: str | None = None  # bound by the first content shown
        self.shown_tokens = 0  # of attempts that ended after they had shown content
        self.read_tokens = 0  # of the prompt, by the engine's count; 0 = it did not say
        self.hedge_at = 0
        self.queued_at = 0  # when it last entered the queue
        self.waited = 0  # time in the queue, in all its earlier stays
        self.due = 0  # the wheel's
        self.filed = 0  # the wheel's
        self.reservation: Reservation | None = None
        self.story: list[tuple[int, str, str]] = []  # bounded: attempts are

    def step(self, step: RequestStep) -> None:
        """Set ``phase`` to what the table gives for this step.

        Raise ``IllegalStepError`` if it has none. Changes nothing else.
        """
        try:
            self.phase = TRANSITIONS[self.phase, step]
        except KeyError:
            told = "; ".join(f"{at} {what} {detail}" for at, what, detail in self.story)
            raise IllegalStepError(
                f"request {self.request.id!r} cannot {step} while {self.phase}; story: {told}"
            ) from None

    def find(self, number: int) -> Attempt | None:
        """Return the running attempt with this number; ``None`` if it has already ended."""
        live = self.live
        if live and live[0].number == number:
            return live[0]
        for attempt in live:
            if attempt.number == number:
                return attempt
        return None


def died(kind: Kind, lived: int) -> bool:
    """Whether an attempt failed because its connection broke after the replica took the request.

    ``lived`` is how long (ns) the attempt had run. True for a reset, and for a pooled connection
    that broke later than 20 ms; a cut in good order, silence and errors do not count.
    """
    return kind is Kind.RESET or (kind is Kind.STALE_SOCKET and lived > _STALE_WITHIN)


def apart(before: int, now: int, *, same_host: bool = False) -> bool:
    """Whether a broken connection came long enough after the last one to have its own cause.

    Times are ns; 0 before: there was none, which is true. A zone that is lost ends many replicas
    within 20 ms, a host (``same_host``: both were on one) all of its own within two seconds: that
    is one event, not several.
    """
    return not before or now - before > (HOST_TOGETHER if same_host else _TOGETHER)


def unreached(kind: Kind) -> bool:
    """Whether a failure may be that of the replica's host: no connection, or it broke off."""
    return kind in _UNREACHED


__all__ = [
    "DEATHS_MAX",
    "HOST_TOGETHER",
    "TRANSITIONS",
    "ActiveRequest",
    "Attempt",
    "ChargedFailure",
    "IllegalStepError",
    "RequestPhase",
    "RequestStep",
    "apart",
    "died",
    "unreached",
]
