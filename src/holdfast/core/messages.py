"""What goes into the two machines and what comes out: plain values, no behaviour.

Events are facts a driver reports; actions are work a driver must do. Both are unfrozen slotted
dataclasses: building a frozen one costs three times as much, and these are built for every request.
Nobody may change one after it was handed over.

    driver ── event, now ─► Flow.handle / Fleet.handle ── [action, …] ─► driver
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.canary import CanaryConfig, CanarySuspect, CanaryVerdict
from holdfast.core.failure import Class, Kind
from holdfast.core.types import Replica, Request, State

RequestId = int | str


# --- the fleet view: what control tells gateways -------------------------------------------------


@dataclass(slots=True, frozen=True)
class ReplicaView:
    """One (replica, model) as control sees it; ``share`` is 0 when it must get no new work."""

    replica: Replica
    state: State
    share: float
    firm: bool = False  # stands even when control is not heard of: wrong answers, wrong revision
    reason: str = ""


@dataclass(slots=True, frozen=True)
class FleetView:
    """All replicas at one moment. A higher version replaces a lower one, never the reverse."""

    version: int
    replicas: tuple[ReplicaView, ...]
    panic: tuple[str, ...] = ()  # models whose pools fail open at present
    epoch: int = 0  # of the control that speaks; a later control's views replace an earlier one's


# --- events for Flow: one request's life ---------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    """A client's request is complete and valid."""

    request: Request


@dataclass(slots=True)
class FirstContent:
    """The first non-empty delta of an attempt. From here on the client may have seen text."""

    request_id: RequestId
    attempt: int


@dataclass(slots=True)
class Ended:
    """An attempt is over. ``kind`` is ``None`` for a complete, well-formed answer."""

    request_id: RequestId
    attempt: int
    kind: Kind | None = None
    tokens: int = 0  # output tokens this attempt delivered, by the engine's usage
    worst_gap: int = 0  # longest silence between two tokens, ns
    retry_after_s: float = 0.0
    finish: str = ""  # the engine's reason for the end of a complete answer
    measured: tuple[str, float] | None = None  # a statistic of the answer: logprob or norm


@dataclass(slots=True)
class Answered:
    """A complete, well-formed answer came in one piece: first content and end at once."""

    request_id: RequestId
    attempt: int
    tokens: int = 0  # by the engine's usage
    finish: str = ""  # as above
    measured: tuple[str, float] | None = None  # as above


@dataclass(slots=True)
class Silent:
    """An attempt that had begun to answer emitted nothing for the time given at its dispatch."""

    request_id: RequestId
    attempt: int
    tokens: int = 0


@dataclass(slots=True)
class ClientGone:
    """The client closed its connection; nobody waits for this answer."""

    request_id: RequestId


@dataclass(slots=True)
class ViewChanged:
    """Control published a new fleet view."""

    view: FleetView


@dataclass(slots=True)
class LoadReported:
    """An engine's own account of its load. ``None`` means it did not say."""

    model: str
    replica_id: str
    tokens: int | None = None
    waiting: int | None = None
    kv_used: float | None = None


@dataclass(slots=True)
class Leased:
    """Control's split of what all gateways share. Without control each keeps its last share."""

    quota: dict[str, float]  # by tenant: this gateway's part, 0 to 1; absent = unchanged
    retry: float = 1.0  # its part of the retry budget's floor
    trials: frozenset[tuple[str, str]] | None = None  # (model, replica) it may try; None = any


@dataclass(slots=True)
class Tick:
    """Time passed. Drivers send one every few milliseconds; all timers hang on it."""


FlowEvent = (
    Arrived
    | FirstContent
    | Ended
    | Answered
    | Silent
    | ClientGone
    | ViewChanged
    | LoadReported
    | Leased
    | Tick
)


# --- actions of Flow -----------------------------------------------------------------------------


@dataclass(slots=True)
class Dispatch:
    """Send the request to a replica. The driver reports FirstContent, Silent and Ended for it."""

    request: Request
    model: str  # the model that serves it: another than asked for when degraded
    attempt: int
    replica_id: str
    reason: str
    silence_max: int  # ns between two tokens after which the driver reports Silent
    resume_tokens: int = 0  # > 0: continue an answer of which the client saw this much


@dataclass(slots=True)
class Abort:
    """Cancel an attempt upstream; nothing more is expected of it."""

    request_id: RequestId
    attempt: int
    replica_id: str
    kind: Kind


@dataclass(slots=True)
class Finish:
    """The one terminal answer of a request: success, honest error, or nobody there to tell."""

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


@dataclass(slots=True)
class Report:
    """Something control should know at once: a breaker moved, a pool is slow as a whole."""

    model: str
    replica_id: str
    what: str
    reason: str


@dataclass(slots=True, frozen=True)
class Tally:
    """What one gateway saw of one replica since its last summary."""

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

    @property
    def progressed(self) -> bool:
        """Whether some user got anything from the replica."""
        return bool(self.tokens or self.successes or self.moved)

    @property
    def ended(self) -> int:
        """Attempts that are over, but for those that were called back."""
        return self.successes + self.failures + self.backpressure


@dataclass(slots=True)
class Summary:
    """Tallies for control, once a second, only of replicas that had traffic."""

    tallies: tuple[Tally, ...]


FlowAction = Dispatch | Abort | Finish | Report | Summary


# --- events for Fleet: membership and lifecycle --------------------------------------------------


@dataclass(slots=True)
class Joined:
    """A replica was declared or discovered. ``running`` = it was there before we looked."""

    replica: Replica
    running: bool = False
    canary: CanaryConfig = field(
        default_factory=CanaryConfig
    )  # what it is asked, and what that may cost


@dataclass(slots=True)
class Left:
    """A replica was taken out of the fleet for good."""

    replica_id: str


@dataclass(slots=True)
class Phase:
    """The platform saw a replica's life move: launched, load began, loaded."""

    replica_id: str
    phase: State  # STARTING, LOADING or WARMING


@dataclass(slots=True)
class Exited:
    """A replica's process ended."""

    replica_id: str
    kind: Kind = Kind.EXITED  # OUT_OF_MEMORY where the kernel was the witness
    detail: str = ""  # for people: the signal, the status, who witnessed it


@dataclass(slots=True)
class Frozen:
    """The platform sees that a replica's process is not run at all, or that it is again."""

    replica_id: str
    frozen: bool


@dataclass(slots=True)
class Headroom:
    """How full a replica's memory for users' requests is, by its own account."""

    replica_id: str
    kv_used: float  # share of the KV cache, 0 to 1


@dataclass(slots=True)
class SpotNotice:
    """The platform will take this replica's host away."""

    replica_id: str
    lead: int


@dataclass(slots=True)
class CanaryResult:
    """A canary came back, or did not. ``None`` = unknown, and unknown is not a failure."""

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
    moved_s: float = 0.0  # for how long pieces came, of an answer that was not complete in time
    flaw: Kind | None = None  # EMPTY, DEGENERATE, CUT or RESET: what came is no answer at all
    took: int = 0  # until whatever came was complete, an error too


@dataclass(slots=True)
class Seen:
    """Passive evidence of a gateway: its reports and summaries, forwarded as they are."""

    actions: tuple[Report | Summary, ...]
    gateway: str = ""  # who saw it; in-flight counts are kept for each


@dataclass(slots=True)
class DrainAsked:
    """An operator or a rollout wants this replica empty."""

    replica_id: str
    reason: str


@dataclass(slots=True)
class RestartAsked:
    """Somebody wants a new process for this replica, without harm to whom it serves."""

    replica_id: str
    reason: str


@dataclass(slots=True)
class UndrainAsked:
    """Somebody wants a drained replica back."""

    replica_id: str
    reason: str


@dataclass(slots=True)
class TakeOutAsked:
    """An incident wants no more work sent there, whatever canaries say, or wants it judged again.

    Within the bound of its pool. Only a new process, or whoever takes this back, ends it.
    """

    replica_id: str
    reason: str
    out: bool = True


@dataclass(slots=True)
class CanaryAsked:
    """Somebody doubts these replicas and wants their canaries now."""

    replica_ids: tuple[str, ...]


FleetEvent = (
    Joined
    | Left
    | Phase
    | Exited
    | Frozen
    | Headroom
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
    """Ask this replica the known question on the real path; report CanaryResult."""

    replica_id: str
    model: str
    deadline: int  # ns from now
    incarnation: int  # to be given back: answers of an earlier process do not count


@dataclass(slots=True)
class Launch:
    """Start, or start again, this replica's engine after a delay."""

    replica_id: str
    delay: int
    reason: str


@dataclass(slots=True)
class Stop:
    """End this replica's engine."""

    replica_id: str
    reason: str


@dataclass(slots=True)
class Move:
    """Cut what still runs there; report each attempt as Ended with kind DRAINED.

    Where it is stalled, only streams that are stuck (``deadlines.stuck``), as it says.
    """

    model: str
    replica_id: str
    stalled: bool = False


@dataclass(slots=True)
class Publish:
    """Send the new view to all gateways."""

    view: FleetView


@dataclass(slots=True)
class Notice:
    """A fact for people: state changes, held ejections, panic. Never acted on by a driver."""

    at: int
    model: str
    replica_id: str
    what: str
    reason: str
    failure_class: Class | None = None
    signal: str = ""  # of Signal or Conclusion: what moved its state to ``what``; empty: none moved
    canaries: CanarySuspect | None = None  # who is suspected now; ``None``: not what it is about


FleetAction = RunCanary | Launch | Stop | Move | Publish | Notice

__all__ = [
    "Abort",
    "Answered",
    "Arrived",
    "CanaryAsked",
    "CanaryResult",
    "ClientGone",
    "Dispatch",
    "DrainAsked",
    "Ended",
    "Exited",
    "Finish",
    "FirstContent",
    "FleetAction",
    "FleetEvent",
    "FleetView",
    "FlowAction",
    "FlowEvent",
    "Frozen",
    "Headroom",
    "Joined",
    "Launch",
    "Leased",
    "Left",
    "LoadReported",
    "Move",
    "Notice",
    "Phase",
    "Publish",
    "ReplicaView",
    "Report",
    "RequestId",
    "RestartAsked",
    "RunCanary",
    "Seen",
    "Silent",
    "SpotNotice",
    "Stop",
    "Summary",
    "TakeOutAsked",
    "Tally",
    "Tick",
    "UndrainAsked",
    "ViewChanged",
]
