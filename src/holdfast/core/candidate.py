"""One replica as a gateway's routing sees it.

A ``Candidate`` is one (replica, model): declared facts, the weight that health gives it, what this
gateway has in flight there, and what the engine last reported. Unknown load is ``None``: neither
zero nor full.
"""

from typing import Final

from holdfast.core.admission.limit import GradientLimit
from holdfast.core.breaker import Breaker
from holdfast.core.stats import PeakEwma
from holdfast.core.types import Replica, State

UNLIMITED: Final = 1_000_000  # a limit no gateway reaches: concurrency is not declared


class Candidate:
    """One replica of a pool. Mutable and slotted: the hot path reads it on every choice."""

    __slots__ = (
        "backpressure",
        "breaker",
        "failures",
        "firm",
        "gradient",
        "id",
        "inflight",
        "kv_used",
        "latency",
        "limit",
        "own_tokens",
        "replica",
        "reported_tokens",
        "reports",
        "revision",
        "share",
        "slots",
        "state",
        "successes",
        "tokens",
        "told_inflight",
        "waiting",
        "weight",
        "zone",
    )

    def __init__(
        self,
        replica: Replica,
        breaker: Breaker,
        latency: PeakEwma,
        gradient: GradientLimit | None = None,
    ) -> None:
        self.replica = replica
        self.id = replica.id
        self.zone = replica.zone
        self.revision = replica.revision
        self.state = State.READY
        self.share = 1.0  # what health grants it, 0..1
        self.firm = False  # a verdict that stands even when control is not heard of
        self.weight = replica.weight  # declared weight × share
        self.slots = replica.slots or UNLIMITED
        self.gradient = gradient
        self.limit = self.slots  # requests allowed at once, from here
        self.inflight = 0  # attempts of this gateway out there now
        self.own_tokens = 0  # tokens sent since the last report: the credit between two polls
        self.reports = 0  # load reports taken in
        self.reported_tokens: int | None = None  # queued + running tokens, as the engine said
        self.waiting: int | None = None  # requests queued inside the engine
        self.kv_used: float | None = None  # share of KV memory in use, 0..1
        self.latency = latency  # first-token time as a multiple of the pool's typical one
        self.breaker = breaker
        self.successes = 0  # these four are for control: what was seen since the last summary
        self.failures = 0
        self.backpressure = 0
        self.tokens = 0
        self.told_inflight = 0  # as the last summary said
        if gradient is not None:
            self.limit = min(self.slots, gradient.limit)

    def update(self, replica: Replica) -> None:
        """Take over changed declarations; attempts under way keep their place here."""
        self.replica = replica
        self.zone = replica.zone
        self.revision = replica.revision
        self.slots = replica.slots or UNLIMITED
        self.limit = self.slots
        if self.gradient is not None:
            self.limit = min(self.slots, self.gradient.limit)

    def take_report(self, tokens: int | None, waiting: int | None, kv_used: float | None) -> None:
        """Take over the engine's own account; it includes what was sent before it."""
        self.reported_tokens = tokens
        self.waiting = waiting
        self.kv_used = kv_used
        if tokens is not None:
            self.own_tokens = 0
            self.reports += 1

    def has_room(self) -> bool:
        """Whether another attempt fits under the concurrency limit."""
        return self.inflight < self.limit

    def __repr__(self) -> str:
        return f"Candidate({self.id!r}, inflight={self.inflight}, weight={self.weight})"


__all__ = ["UNLIMITED", "Candidate"]
