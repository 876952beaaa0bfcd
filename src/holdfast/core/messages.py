"""The events and actions of the two state machines, ``Flow`` and ``Fleet``, as plain values.

Events are facts a driver reports; actions are work a driver must do. Both are unfrozen slotted
dataclasses: building a frozen one costs three times as much, and these are built for every request.
Nobody may change one after it was handed over.

    driver ── event, now ─► Flow.handle / Fleet.handle ── [action, …] ─► driver
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.core.canary import CanaryConfig, CanarySuspect, CanaryVerdict
from holdfast.core.failure import Class, Kind
from holdfast.core.types import Halt, Replica, Request, State

RequestId = int | str


# --- the fleet view: what control tells gateways -------------------------------------------------


@dataclass(slots=True, frozen=True)
class ReplicaView:
    """One (replica, model) as control tells gateways; with ``share`` 0 it must get no new work.

    ``share`` is the part (0 to 1) of its declared weight that routing may use.
    """

    replica: Replica
    state: State
    share: float
    firm: bool = False  # stands even when control is not heard of: wrong answers, wrong revision
    reason: str = ""
    halt: Halt | None = None  # what runs there will not be answered
    canary_s: float | None = None  # how long its canaries take at present; ``None``: unknown
    ready_in_s: float | None = None  # when it may serve, by estimate; ``None``: unknown
    # A breaker's trial there may be a user's request: a canary was answered right since a breaker
    # opened, or none can be asked.
    may_try: bool = True


@dataclass(slots=True, frozen=True)
class FleetView:
    """All replicas as control sees them at one moment, for the gateways.

    A gateway ignores a view whose (epoch, version) is lower than that of the one it holds; an equal
    one is applied again and keeps the view fresh.
    """

    version: int
    replicas: tuple[ReplicaView, ...]
    panic: tuple[str, ...] = ()  # models whose pools fail open at present
    epoch: int = 0  # of the control that speaks; a later control's views replace an earlier one's


# --- events for Flow: one request's life ---------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    """Event for a gateway's flow: a complete and valid request of a client arrived."""

    request: Request


Measured = tuple[tuple[str, float], ...]  # statistics of one answer: name and value of each


@dataclass(slots=True)
class FirstContent:
    """Event for a gateway's flow: an attempt delivered its first content.

    From here on the client may have seen text, so the request is not simply sent anew elsewhere.
    """

    request_id: RequestId
    attempt: int
    alike: bool = False  # an earlier attempt was rejected for content like this


@dataclass(slots=True)
class Ended:
    """Event for a gateway's flow: one attempt of a request ended, well or badly.

    ``kind`` is ``None`` for a complete, well-formed answer, else what was seen of the failure. The
    request itself may go on with another attempt.
    """

    request_id: RequestId
    attempt: int
    kind: Kind | None = None
    tokens: int = 0  # output tokens this attempt delivered, by the engine's usage
    worst_gap: int = 0  # longest silence between two tokens, ns
    retry_after_s: float = 0.0
    finish: str = ""  # the engine's reason for the end of a complete answer
    measured: Measured | None = None  # statistics of the answer, by name
    prompt_tokens: int = 0  # as the engine counted them; 0 = it did not say
    status: int = 0  # of the engine's answer; decides nothing but what the client is told


@dataclass(slots=True)
class Answered:
    """Event for a gateway's flow: an attempt delivered a complete answer in one piece.

    It stands for ``FirstContent`` and an ``Ended`` without failure.
    """

    request_id: RequestId
    attempt: int
    tokens: int = 0  # by the engine's usage
    finish: str = ""  # the engine's reason for the end of the answer
    measured: Measured | None = None  # statistics of the answer, by name
    prompt_tokens: int = 0  # as the engine counted them; 0 = it did not say
    alike: bool = False  # an earlier attempt was rejected for an answer like this


@dataclass(slots=True)
class Silent:
    """Event for a gateway's flow: a stream sent nothing for ``silence_max`` of its ``Dispatch``.

    The attempt has not ended by itself; ``tokens`` is what it had delivered.
    """

    request_id: RequestId
    attempt: int
    tokens: int = 0


@dataclass(slots=True)
class Quiet:
    """Event for a gateway's flow: a stream pauses for long, though not yet for ``silence_max``.

    The attempt goes on; its replica is in doubt.
    """

    request_id: RequestId
    attempt: int


@dataclass(slots=True)
class ReplicaHalted:
    """Event for a gateway's flow: control found that a replica will not answer, or empties it.

    Requests of which the client has seen nothing are sent elsewhere, as fast as the retry budget
    allows; the driver itself ends the streams that have begun.
    """

    model: str
    replica_id: str
    halt: Halt


@dataclass(slots=True)
class ClientGone:
    """Event for a gateway's flow: the client closed its connection, so its answer is not needed.

    ``generates``: the client left by itself while tokens were made for it, which it pays for.
    """

    request_id: RequestId
    generates: bool = False


@dataclass(slots=True)
class Spent:
    """Event for a gateway's flow: a finished request used so many tokens more than was charged.

    A client that leaves amid a stream has got what was sent until then: only the driver knows how
    much, once it has aborted the attempt. Below zero: it used fewer.
    """

    tenant: str
    tokens: int


@dataclass(slots=True)
class ViewChanged:
    """Event for a gateway's flow: control sent a fleet view, new or repeated."""

    view: FleetView


@dataclass(slots=True)
class LoadReported:
    """An engine's own load figures at this moment, for one (replica, model); an event for the flow.

    Tokens queued and running, requests waiting, and the used share (0 to 1) of its KV cache;
    ``None``: it did not say.
    """

    model: str
    replica_id: str
    tokens: int | None = None
    waiting: int | None = None
    kv_used: float | None = None
    running: int | None = None  # this and the next two are for control: gateways are not told
    generated: int | None = None  # tokens since its start
    steps: int | None = None  # passes or tokens since its start, those of prompts included
    reads: bool = False  # for gateways: its page shows that it reads a prompt


@dataclass(slots=True)
class Leased:
    """Event for a gateway's flow: control gave it new shares of what all gateways share.

    Without control each gateway keeps its last shares.
    """

    quota: dict[str, float]  # by tenant: this gateway's part, 0 to 1; absent = unchanged
    retry: float = 1.0  # its part of the retry budget's floor
    trials: frozenset[tuple[str, str]] | None = None  # (model, replica) it may try; None = any


@dataclass(slots=True)
class Tick:
    """Event for the flow and for the fleet: time passed; all timers depend on it.

    It has no fields, as the time comes beside each event. Drivers send one every few milliseconds.
    """


FlowEvent = (
    Arrived
    | FirstContent
    | Ended
    | Answered
    | Silent
    | Quiet
    | ReplicaHalted
    | ClientGone
    | Spent
    | ViewChanged
    | LoadReported
    | Leased
    | Tick
)


# --- actions of Flow -----------------------------------------------------------------------------


@dataclass(slots=True)
class Dispatch:
    """Action of the flow: send one attempt of a request to a replica.

    The driver then reports ``FirstContent``, ``Silent`` and ``Ended`` for this attempt (or
    ``Answered``).
    """

    request: Request
    model: str  # the model that serves it: another than asked for when degraded
    attempt: int
    replica_id: str
    reason: str
    silence_max: int  # ns between two tokens after which the driver reports Silent
    resume_tokens: int = 0  # > 0: continue an answer of which the client saw this much
    output_max: int = 0  # > 0: the answer may have so many tokens at most, whatever was asked for


@dataclass(slots=True)
class Abort:
    """Action: cancel an attempt at its replica.

    The driver reports no further event of it; what it still reports is ignored.
    """

    request_id: RequestId
    attempt: int
    replica_id: str
    kind: Kind


@dataclass(slots=True)
class Finish:
    """Action: answer the client of a request, finally, with success or with an error.

    Exactly one per request; ``shown`` says that content was sent, so that an error must be an event
    in the stream.
    """

    request_id: RequestId
    status: int
    code: str
    reason: str
    attempts: int = 0
    continued: int = 0
    model: str = ""
    replica_id: str = ""
    shown: bool = False  # content had been sent: an error must be an event in the stream
    retry_after_s: float = 0.0
    story: list[tuple[int, str, str]] = field(default_factory=list)


class ReportCode(StrEnum):
    """What a report is about, where it is not the new state of a breaker."""

    LADDER_MOVED = "ladder moved"
    VIEW_STALE = "view stale: quarantine decays to a trial"
    OVERDUE = "overdue"  # an attempt there waits longer than answers normally take, or failed
    OVERRULED = "overruled"  # its breaker is open on users' word alone, as half of the pool is


@dataclass(slots=True)
class Report:
    """Action: tell control at once what changed at this gateway.

    A breaker's new state, a step of a model ladder, a quarantine that decays, or a wait that puts a
    replica in doubt.
    """

    model: str
    replica_id: str
    what: str  # a value of BreakerState or of ReportCode
    reason: str


@dataclass(slots=True, frozen=True)
class Tally:
    """What one gateway counted of one (replica, model) since its last summary.

    Counts of attempts that ended and of tokens, samples of answers' statistics; ``inflight`` alone
    is the number at this moment. Not a running total.
    """

    model: str
    replica_id: str
    successes: int
    failures: int
    backpressure: int
    inflight: int
    tokens: int  # of prompts, from their first content on, and of answers
    kinds: Mapping[Kind, int] = field(default_factory=dict)  # of the failures
    fast: int = 0  # of the failures, those sooner than any real answer, without content
    finishes: Mapping[str, int] = field(default_factory=dict)  # reasons of answers that ended well
    lengths: tuple[int, ...] = ()  # tokens of some answers that ended well
    logprobs: tuple[float, ...] = ()  # mean of an answer, of some where the client asked for them
    norms: tuple[float, ...] = ()  # of some embeddings
    moved: bool = False  # an answer under way got another piece; its tokens are told at its end
    waits: tuple[float, ...] = ()  # some first tokens, as multiples of the usual for their length
    firsts: tuple[float, ...] = ()  # seconds to some first tokens of streams
    paces: tuple[float, ...] = ()  # seconds per further token, of some streams that ended well
    withdrawn: int = 0  # failures that are laid to the requests: other replicas had them alike
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by statistic: rankings,
    # tensors and classes
    unread: int = 0  # tokens of long prompts whose first token is waited for, at this moment
    # For how long reading those prompts may keep the replica silent, each tenant's prompts weighed;
    # ``None``: the gateway did not weigh them.
    explained_s: float | None = None
    # Tokens of prompts whose first token is waited for, at this moment, and of those of answers in
    # one piece; ``None``: the gateway did not say.
    prompts: int | None = None

    @property
    def progressed(self) -> bool:
        """Whether some user got tokens or an answer from the replica since the last summary."""
        return bool(self.tokens or self.successes or self.moved)

    @property
    def ended(self) -> int:
        """The number of attempts that ended, without those that were aborted."""
        return self.successes + self.failures + self.backpressure


@dataclass(slots=True)
class Summary:
    """Action: tell control the tallies of all replicas that had traffic, about once a second."""

    tallies: tuple[Tally, ...]


FlowAction = Dispatch | Abort | Finish | Report | Summary


# --- events for Fleet: membership and lifecycle --------------------------------------------------


@dataclass(slots=True)
class Joined:
    """Event for the fleet: a replica was declared or discovered.

    ``running``: others had started it already; else the fleet answers with a ``Launch``.
    """

    replica: Replica
    running: bool = False
    canary: CanaryConfig = field(
        default_factory=CanaryConfig
    )  # what it is asked, and what that may cost
    server: str = ""  # where it listens: models of one server share its slots; empty: its own


@dataclass(slots=True)
class Left:
    """Event for the fleet: a replica was removed for good; nothing is drained or stopped by it."""

    replica_id: str


@dataclass(slots=True)
class Phase:
    """Event for the fleet: the platform reported how far a replica's start is.

    ``phase`` is ``STARTING`` (launched), ``LOADING`` or ``WARMING`` (loaded, not yet proven by a
    canary).
    """

    replica_id: str
    phase: State  # STARTING, LOADING or WARMING


@dataclass(slots=True)
class Queued:
    """Event for the fleet: a replica cannot be started yet, as it waits for hardware.

    That wait does not count as time of loading.
    """

    replica_id: str
    reason: str  # for people: what it waits for


@dataclass(slots=True)
class Exited:
    """Event for the fleet: a replica's process ended.

    It is launched again, unless the replica is leaving.
    """

    replica_id: str
    kind: Kind = Kind.EXITED  # OUT_OF_MEMORY where the kernel was the witness
    detail: str = ""  # for people: the signal, the status, who witnessed it


@dataclass(slots=True)
class Frozen:
    """Event for the fleet: a replica's process was stopped by a signal, or runs again (false)."""

    replica_id: str
    frozen: bool


@dataclass(slots=True)
class EngineLoads:
    """Event for the fleet: load figures of several engines, one ``LoadReported`` each."""

    loads: tuple[LoadReported, ...]


@dataclass(slots=True)
class DeviceMemory:
    """Event for the fleet: what a replica holds of its GPUs' memory, as a share.

    The share is of what it could hold there. Told only of engines whose device memory goes with
    their work: one that takes its memory at the start would look full for ever.
    """

    replica_id: str
    used: float  # 0 to 1, on its fullest device


@dataclass(slots=True)
class SpotNotice:
    """Event for the fleet: the platform will take the host of a replica away, in ``lead`` ns."""

    replica_id: str
    lead: int


@dataclass(slots=True)
class CanaryResult:
    """Event for the fleet: how a canary ended; ``None`` in a field means unknown, no failure.

    Times without ``_s`` are ns.
    """

    replica_id: str
    verdict: CanaryVerdict  # never SLOW: that is for the fleet to say
    latency: int = 0  # 0 = not measured
    running: int | None = None  # requests in the engine while it ran
    progress: bool | None = None  # whether user tokens moved while it ran
    incarnation: int = 0  # of the process that was asked, as RunCanary named it
    detail: str = ""  # why, for people; never the answer itself
    tokens: int = 0  # what the question and its answer cost
    page_ok: bool | None = None  # whether its own health page answered well just before
    status: int | None = None  # of the HTTP answer, where one came
    moved_s: float = 0.0  # from the first piece of the answer to the last that came
    flaw: Kind | None = None  # EMPTY, DEGENERATE, CUT, RESET or CONNECT_TIMEOUT: no answer
    took: int = 0  # until whatever came was complete, an error too
    draining: bool = False  # BUSY because the engine says that it takes no new work
    excused: bool = False  # UNKNOWN because control was late itself: to be asked again at once
    gap_s: float = 0.0  # the longest time between two pieces of the answer
    began: bool = False  # a piece came, of an answer that was not complete in time
    quiet_s: float = 0.0  # since the last of them
    reads_on: bool = False  # TIMEOUT, and the answer is still read: another result follows
    next_gap_s: float = 0.0  # the second longest time between two pieces
    extra: bool = False  # as RunCanary said


@dataclass(slots=True)
class Seen:
    """Event for the fleet: one gateway sent its reports and summaries of users' requests."""

    actions: tuple[Report | Summary, ...]
    gateway: str = ""  # who saw it; in-flight counts are kept for each


@dataclass(slots=True)
class DrainAsked:
    """Event for the fleet: drain a replica and then stop it for good.

    Asked for by an operator or a rollout.
    """

    replica_id: str
    reason: str


@dataclass(slots=True)
class RestartAsked:
    """Event for the fleet: drain a replica, then start it anew; one that has ended starts at once.

    Asked for by an operator or an incident.
    """

    replica_id: str
    reason: str


@dataclass(slots=True)
class UndrainAsked:
    """Event for the fleet: put a drained or draining replica back into service.

    While its drain still waits it serves again after a canary; later it is started anew.
    """

    replica_id: str
    reason: str


@dataclass(slots=True)
class TakeOutAsked:
    """Event for the fleet: send a replica no more work, or (``out`` false) take that back.

    Asked for by an incident. It holds whatever canaries say, within the bound of the pool, until a
    new process starts or the request is taken back; with ``until_right`` only until canaries are
    right again, as after any quarantine. Stops nothing.
    """

    replica_id: str
    reason: str
    out: bool = True
    until_right: bool = False


@dataclass(slots=True)
class CanaryAsked:
    """Event for the fleet: a part of control doubts these replicas.

    Make their canaries due at once.
    """

    replica_ids: tuple[str, ...]


FleetEvent = (
    Joined
    | Left
    | Phase
    | Queued
    | Exited
    | Frozen
    | EngineLoads
    | DeviceMemory
    | SpotNotice
    | CanaryResult
    | Seen
    | DrainAsked
    | RestartAsked
    | UndrainAsked
    | TakeOutAsked
    | CanaryAsked
    | Tick
)


# --- actions of Fleet ----------------------------------------------------------------------------


@dataclass(slots=True)
class RunCanary:
    """Action of the fleet: ask a replica its canary's question, as a user would.

    The driver reports a ``CanaryResult`` for it, with the same ``incarnation`` and ``extra``.
    """

    replica_id: str
    model: str
    deadline: int  # ns from now
    incarnation: int  # to be given back: answers of an earlier process do not count
    longest: int = 0  # ns from now, while an overdue answer is read on (``canary_overtime``)
    unhurried: bool = False  # nobody waits for the verdict: silence is waited for as long
    extra: bool = False  # between two that are due: only a bad answer counts; to be given back


@dataclass(slots=True)
class Launch:
    """Action: start the engine of a replica after ``delay`` (ns), the first time or again."""

    replica_id: str
    delay: int
    reason: str


@dataclass(slots=True)
class Stop:
    """Action: stop the engine process of a replica; a ``Launch`` may follow."""

    replica_id: str
    reason: str


@dataclass(slots=True)
class HurryCanary:
    """Action of the fleet: shorten the deadline of the canary under way at a replica.

    If none is under way, the driver does nothing.
    """

    replica_id: str
    deadline: int  # ns from now


@dataclass(slots=True)
class CallBackCanary:
    """Action of the fleet: abort the canary under way at a replica, as users need its slot."""

    replica_id: str


@dataclass(slots=True)
class Move:
    """Action of the fleet: send elsewhere what still runs at a replica; it stops no process.

    With ``stalled`` only what ``deadlines.stuck`` names. Streams that have begun are cut, and
    reported Ended with kind DRAINED; requests of which the client has seen nothing are the flow's,
    which is told ReplicaHalted.
    """

    model: str
    replica_id: str
    stalled: bool = False


@dataclass(slots=True)
class Publish:
    """Action: send this fleet view to all gateways; unchanged ones are repeated as a heartbeat."""

    view: FleetView


@dataclass(slots=True)
class Notice:
    """Action of the fleet: a message for people, such as a change of state or a panic.

    Drivers only record it; ``signal`` and ``canaries`` also let diagnosis make facts of it. ``at``
    is ns.
    """

    at: int
    model: str
    replica_id: str
    what: str
    reason: str
    failure_class: Class | None = None
    signal: str = ""  # of Signal or Conclusion: what moved its state to ``what``; empty: none moved
    canaries: CanarySuspect | None = None  # who is suspected now; ``None``: not what it is about


FleetAction = RunCanary | HurryCanary | CallBackCanary | Launch | Stop | Move | Publish | Notice

__all__ = [
    "Abort",
    "Answered",
    "Arrived",
    "CallBackCanary",
    "CanaryAsked",
    "CanaryResult",
    "ClientGone",
    "DeviceMemory",
    "Dispatch",
    "DrainAsked",
    "Ended",
    "EngineLoads",
    "Exited",
    "Finish",
    "FirstContent",
    "FleetAction",
    "FleetEvent",
    "FleetView",
    "FlowAction",
    "FlowEvent",
    "Frozen",
    "HurryCanary",
    "Joined",
    "Launch",
    "Leased",
    "Left",
    "LoadReported",
    "Move",
    "Notice",
    "Phase",
    "Publish",
    "Queued",
    "Quiet",
    "ReplicaHalted",
    "ReplicaView",
    "Report",
    "ReportCode",
    "RequestId",
    "RestartAsked",
    "RunCanary",
    "Seen",
    "Silent",
    "Spent",
    "SpotNotice",
    "Stop",
    "Summary",
    "TakeOutAsked",
    "Tally",
    "Tick",
    "UndrainAsked",
    "ViewChanged",
]
