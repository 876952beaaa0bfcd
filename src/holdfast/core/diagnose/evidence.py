"""The values of a diagnosis: signs, evidence, the things they concern, and incidents.

    fact ─► detector ─► Evidence(sign, about, at, source, text, numbers) ─► diagnosis ─► Incident

A *sign* is one thing that is wrong, named so that rules can speak about it. It is not yet a cause:
a queue that grows is a sign, and whether it is the failure or its consequence depends on what else
is known. Evidence says where it comes from and when it was seen, because old evidence and evidence
of one source alone are worth less.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast.core.failure import Cause, Class


class Sign(StrEnum):
    """The kinds of observation that something is wrong, as names that rules of causes use.

    A sign is no cause: it may be the failure or a consequence of one.
    """

    # processes
    EXITED = "exited"  # ended without being asked: a code or a signal
    KILLED_FOR_MEMORY = "killed_for_memory"  # the kernel was seen to do it
    EXIT_137 = "exit_137"  # killed, and no witness: memory is likely
    EXITED_LOADING = "exited_loading"
    EXITED_ON_REQUEST = "exited_on_request"  # soon after it was ready, with work on it
    EXITS_AGAIN = "exits_again"  # the same end, at least three times
    FROZEN = "frozen"  # the platform sees that the process is not run
    LOAD_STUCK = "load_stuck"  # was not ready within its loading time
    LOAD_SLOW = "load_slow"  # reads, and will take far longer than loads do
    SILENT_LOADING = "silent_loading"
    SILENT_SERVING = "silent_serving"
    # its log
    LOG_GPU_MEMORY = "log_gpu_memory"
    LOG_HOST_MEMORY = "log_host_memory"
    LOG_CUDA_CORRUPTED = "log_cuda_corrupted"
    LOG_GPU_DAMAGED = "log_gpu_damaged"
    LOG_DRIVER = "log_driver"
    LOG_CPU_FALLBACK = "log_cpu_fallback"
    LOG_MODEL_MISSING = "log_model_missing"
    LOG_CONFIG = "log_config"
    LOG_DISK_FULL = "log_disk_full"
    LOG_PORT_TAKEN = "log_port_taken"
    LOG_COLLECTIVE = "log_collective"
    LOG_TRANSFER = "log_transfer"
    LOG_KV_EXHAUSTED = "log_kv_exhausted"
    LOG_ALLOCATION = "log_allocation"
    LOG_NOT_FINITE = "log_not_finite"
    LOG_ENGINE_DEAD = "log_engine_dead"
    LOG_WATCHDOG = "log_watchdog"
    GPU_FAULT = "gpu_fault"  # Xid
    # its GPUs
    GPU_HOT = "gpu_hot"  # at its bound, for minutes
    GPU_THROTTLED = "gpu_throttled"  # slowed by heat or by its power supply
    GPU_POWER_LIMITED = "gpu_power_limited"  # at a power limit that somebody lowered
    GPU_MEMORY_ERRORS = "gpu_memory_errors"  # more that could not be corrected
    GPU_ROWS_EXHAUSTED = "gpu_rows_exhausted"  # no spare row is left for a bad one
    GPU_RESET_DUE = "gpu_reset_due"  # a bad row is replaced at the next reset
    GPU_IDLE = "gpu_idle"  # requests wait, and it does nothing
    # users' requests there
    REFUSES = "refuses"  # nobody listens
    UNREACHABLE = "unreachable"  # connects time out
    NEVER_SEEN = "never_seen"  # nothing ever accepted a connection at its address
    CONNECTIONS_LOST = "connections_lost"  # reset under an answer
    STREAMS_CUT = "streams_cut"  # ended in good order and without a finish reason
    NO_FIRST_TOKEN = "no_first_token"  # noqa: S105
    NO_NEXT_TOKEN = "no_next_token"  # noqa: S105 streams began and stopped
    ERRORS = "errors"  # 5xx
    INFERENCES_FAIL = "inferences_fail"  # by the server's own counts
    FAST_ERRORS = "fast_errors"  # faster than any real answer, and so attractive
    EMPTY_ANSWERS = "empty_answers"
    MALFORMED = "malformed"
    DEGENERATE = "degenerate"
    BACKPRESSURE = "backpressure"  # nothing but 429 for a while
    FINISHES_CHANGED = "finishes_changed"
    # canaries and peers
    CANARY_WRONG = "canary_wrong"
    CANARY_SILENT = "canary_silent"  # its page is green and the model does not answer
    NOTHING_ANSWERS = "nothing_answers"  # not even its page, and the port is open
    CANARY_ERRORS = "canary_errors"
    CANARY_SLOW = "canary_slow"  # much slower than its peers
    CANARY_DRIFTED = "canary_drifted"  # slower than it was itself, without load
    CANARIES_DOUBTED = "canaries_doubted"  # all get another answer than expected, or errors
    CANARIES_UNANSWERED = "canaries_unanswered"  # nothing comes back, from any replica
    PEERS_DISAGREE = "peers_disagree"  # it differs from its peers on live requests
    # over time
    OUTPUT_SUSPECTED = "output_suspected"  # it may have drifted; canaries are called, nobody told
    OUTPUT_DRIFTED = "output_drifted"
    MEMORY_LEAKS = "memory_leaks"
    STALLED = "stalled"  # requests run, no token comes out
    STARVED = "starved"  # requests accepted, none scheduled
    FRAGMENTED = "fragmented"  # memory free in sum, and refusals
    KV_FULL = "kv_full"
    PREEMPTS = "preempts"
    SLOW_TOKENS = "slow_tokens"  # tokens come, far apart
    LATENCY_TAIL = "latency_tail"  # a few wait ten times as long as half of them
    SLOW_ANSWERS = "slow_answers"  # its users wait many times longer than its peers' users
    # how it is deployed
    VERSIONS_DIFFER = "versions_differ"
    MUTABLE_IMAGE = "mutable_image"
    WRONG_REVISION = "wrong_revision"
    RESERVED_TOO_LITTLE = "reserved_too_little"
    LIMIT_TOO_LOW = "limit_too_low"
    FILESYSTEM_FULL_SPEED = "filesystem_full_speed"  # bandwidth at its ceiling, operations low
    FILESYSTEM_OPERATIONS = "filesystem_operations"  # operations at their ceiling
    ON_CPU = "on_cpu"  # it needs a GPU and its host has none
    NO_ROOM = "no_room"  # its host has less memory than it needs
    HOST_NOT_READY = "host_not_ready"  # a replica is silent, and so is its host or what runs it
    HOST_LOST = "host_lost"  # a replica ended because its host died, as its platform says
    HOST_LEAVING = "host_leaving"  # nothing of a replica answers, and its host is being drained
    # flow of work
    QUEUE_GROWS = "queue_grows"
    DEAD_LETTERS = "dead_letters"
    CHAIN_WAITS = "chain_waits"  # a model waits for a later one of its chain
    ATTRACTS = "attracts"  # a failing replica gets more than its share
    SAME_REQUEST_KILLS = "same_request_kills"  # one fingerprint on several deaths
    NO_REPLICA_READY = "no_replica_ready"
    GPUS_STRANDED = "gpus_stranded"  # free in total, on no host enough
    NOT_PLACED = "not_placed"  # replicas are wanted, and their platform runs none of them
    # who watches
    SOURCE_BLIND = "source_blind"  # a platform could not be read for long
    CONTROL_LATE = "control_late"  # its own loop stands still, again and again
    CONTROL_FROZEN = "control_frozen"  # control itself was stopped or stuck
    GATEWAY_FROZEN = "gateway_frozen"  # a gateway process was stopped or stuck
    GATEWAY_LATE = "gateway_late"  # a gateway process runs, and its loop does not turn
    SUPERVISOR_FROZEN = "supervisor_frozen"  # who replaces frozen processes is stopped or stuck
    OWN_SHORTAGE = "own_shortage"  # a gateway or control lacks descriptors, memory or ports


@dataclass(slots=True, frozen=True)
class About:
    """Which replica, model, revision, host and filesystem something concerns; empty text: not said.

    All empty: the whole fleet. ``str`` gives the most specific name.
    """

    replica: str = ""
    model: str = ""
    revision: str = ""
    host: str = ""
    filesystem: str = ""

    def __str__(self) -> str:
        named = self.replica or self.filesystem or self.host or self.model
        return named or "the fleet"


REPORTED: Final = "report"  # the source of what others told and control did not see itself


@dataclass(slots=True, frozen=True)
class Evidence:
    """One observation of a sign by a detector: about what, when (core time, ns), by which source.

    Has a text for people and numbers for the advice; names no cause, the diagnosis concludes that.
    """

    sign: Sign
    about: About
    at: int  # core time of the observation
    source: str  # launcher, log, gateway, canary, engine, host, platform, report, or a detector
    text: str  # for people, with its numbers; never a word of a prompt or of an answer
    numbers: Mapping[str, float] = field(default_factory=dict)  # for the suggested fix


class Remedy(StrEnum):
    """What is to be done about a cause: its rule names one of these; an ``Act`` asks for it.

    Only take out, drain and restart, and stop rollout are carried out; for relocate, degrade and
    page a person is called, and observe does nothing.
    """

    OBSERVE = "observe"
    TAKE_OUT = "take_out"
    DRAIN_AND_RESTART = "drain_and_restart"
    RELOCATE = "relocate"
    STOP_ROLLOUT = "stop_rollout"
    DEGRADE = "degrade"
    PAGE = "page"


class Stage(StrEnum):
    """Where an incident stands: open, mending (acted on and not over) or closed."""

    OPEN = "open"
    MENDING = "mending"  # something was done about it and it is not over
    CLOSED = "closed"


@dataclass(slots=True, frozen=True)
class TimelineEntry:
    """One line of an incident's history: when (core time, ns), what, about what, in words."""

    at: int
    what: str  # a sign, "cause", "action", "refused", "closed" …
    about: str
    text: str
    source: str = ""


@dataclass(slots=True)
class Incident:
    """One failure as people read it: cause, confidence, evidence, timeline, remedy, advice.

    Mutable: the diagnosis rewrites the same object while evidence comes, closes and may reopen it.
    Times are core time in ns; ``closed_at`` is None while it is not closed.
    """

    id: str
    cause: Cause
    failure_class: Class
    about: About
    opened_at: int
    confidence: float  # 0 to 1
    stage: Stage = Stage.OPEN
    changed_at: int = 0
    closed_at: int | None = None
    replicas: tuple[str, ...] = ()  # all that it concerns
    evidence: list[Evidence] = field(default_factory=list)  # that speaks for the cause
    consequences: list[Evidence] = field(default_factory=list)  # explained by the cause
    other_causes: tuple[Cause, ...] = ()  # that would fit as well, the likelier first
    timeline: list[TimelineEntry] = field(default_factory=list)
    remedy: Remedy = Remedy.OBSERVE
    action: str = ""  # what was done, or why nothing was
    fix: str = ""  # what people should do, with numbers
    other_revisions: tuple[str, ...] = ()  # of its model, beside the one it is about, at its start

    @property
    def begun_at(self) -> int:
        """When it was opened, or last reopened because the same failure came back."""
        again = (entry.at for entry in self.timeline if entry.what == "reopened")
        return max(again, default=self.opened_at)

    @property
    def title(self) -> str:
        """One line for lists: the cause and what it concerns, such as ``hung of r1``.

        Adds "(never seen)" for an endpoint that never answered, and the revision while a model has
        several.
        """
        never = any(piece.sign is Sign.NEVER_SEEN for piece in self.evidence)
        known = " (never seen)" if never else ""
        moves = bool(self.about.replica and self.about.revision and self.other_revisions)
        revision = f" (revision {self.about.revision})" if moves else ""
        return f"{self.cause.value.replace('_', ' ')}{known} of {self.about}{revision}"


EVIDENCE_MAX: Final = 64  # pieces kept for one incident, of each kind; a flood adds a count
TIMELINE_MAX: Final = 256
INCIDENTS_MAX: Final = 1_000  # kept in memory; the oldest closed one goes first

__all__ = [
    "EVIDENCE_MAX",
    "INCIDENTS_MAX",
    "REPORTED",
    "TIMELINE_MAX",
    "About",
    "Evidence",
    "Incident",
    "Remedy",
    "Sign",
    "Stage",
    "TimelineEntry",
]
