"""One replica as the routing of a gateway sees it: weight, load, limit, breaker, statistics.

A ``Candidate`` is one (replica, model): declared facts, the weight that health gives it, what this
gateway has in flight there, and what the engine last reported. Unknown load is ``None``: neither
zero nor full.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Measured, Tally
from holdfast.core.request.admission.limit import GradientLimit
from holdfast.core.request.breaker import Breaker
from holdfast.core.stats import PeakEwma
from holdfast.core.types import Halt, Replica, State

UNLIMITED: Final = 1_000_000  # a limit no gateway reaches: concurrency is not declared
SCORES_MAX: Final = 8  # statistics of rankings and tensors of one model; engines name them
SAMPLES_MAX: Final = 16  # of one statistic between two summaries: a thousand a minute are plenty
FINISHES_MAX: Final = 8  # reasons that are told apart; engines know five or so
OTHER_FINISH: Final = "other"  # all further ones


class Candidate:
    """One (replica, model) that routing may choose: weight, load from here, limit, breaker.

    Also counts outcomes and samples for control until ``take_tally`` returns them. Mutable; one per
    pool of a gateway.
    """

    __slots__ = (
        "backpressure",
        "batch_inflight",
        "breaker",
        "doubt_from",
        "explained_s",
        "failures",
        "fast",
        "finishes",
        "firm",
        "firsts",
        "full_with",
        "gradient",
        "halt",
        "id",
        "inflight",
        "kinds",
        "kv_used",
        "latency",
        "lengths",
        "limit",
        "logprobs",
        "may_try",
        "norms",
        "own_tokens",
        "paces",
        "prefill_tokens",
        "reads_at",
        "ready_at",
        "reason",
        "replica",
        "reported_tokens",
        "reports",
        "revision",
        "scores",
        "serves",
        "share",
        "slots",
        "state",
        "successes",
        "tokens",
        "told_inflight",
        "unread",
        "waiting",
        "waits",
        "weight",
        "whole_tokens",
        "withdrawn",
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
        self.reason = ""  # of its state, as control says it
        self.ready_at: int | None = None  # when it may serve, by control's estimate
        self.halt: Halt | None = None  # control says that what runs there will not be answered
        self.may_try = True  # its breaker's trial may be a user's request
        self.slots = replica.slots or UNLIMITED
        self.gradient = gradient
        self.limit = self.slots  # requests allowed at once, from here
        self.inflight = 0  # attempts of this gateway out there now
        self.batch_inflight = 0  # of them, those of batch priority
        self.own_tokens = 0  # tokens sent since the last report: the credit between two polls
        self.prefill_tokens = 0  # prompts of streams that wait for their first token here
        self.whole_tokens = 0  # prompts of answers in one piece that are waited for here
        self.unread = 0  # of long prompts alone, answers in one piece included
        self.explained_s: float | None = None  # for so long they explain that nothing comes
        self.reads_at = 0  # when its engine last showed that it reads prompts; 0 = never
        self.reports = 0  # load reports taken in
        self.reported_tokens: int | None = None  # queued + running tokens, as the engine said
        self.waiting: int | None = None  # requests queued inside the engine, by its last report
        self.full_with = UNLIMITED  # in flight from here when it last told of a queue
        self.serves: set[str] = set()  # paths on which its present process gave an answer
        self.kv_used: float | None = None  # share of KV memory in use, 0..1
        self.latency = latency  # first-token time as a multiple of the pool's typical one
        self.breaker = breaker
        self.successes = 0  # these are for control: what was seen since the last summary
        self.failures = 0
        self.backpressure = 0
        self.withdrawn = 0  # failures that were the requests' own
        self.tokens = 0
        self.kinds: dict[Kind, int] | None = None  # of the failures
        self.fast = 0  # of the failures, those sooner than any real answer
        self.finishes: dict[str, int] = {}
        self.lengths: list[int] = []
        self.waits: list[float] = []
        self.firsts: list[float] = []  # seconds to the first token, of streams
        self.paces: list[float] = []  # seconds per further token, of streams that ended well
        self.logprobs: list[float] | None = None  # few clients ask for them
        self.norms: list[float] | None = None
        self.scores: dict[str, list[float]] | None = None  # of rankings and tensors, by statistic
        self.doubt_from = 0  # no report that it is in doubt before this time
        self.told_inflight = 0  # as the last summary said
        if gradient is not None:
            self.limit = min(self.slots, gradient.limit)

    def update(self, replica: Replica) -> None:
        """Replace what is declared of the replica: zone, revision, slots, and the limit from these.

        Weight, load, breaker and running attempts are left as they are.
        """
        self.replica = replica
        self.zone = replica.zone
        self.revision = replica.revision
        self.slots = replica.slots or UNLIMITED
        self.limit = self.slots
        if self.gradient is not None:
            self.limit = min(self.slots, self.gradient.limit)

    def take_report(self, tokens: int | None, waiting: int | None, kv_used: float | None) -> None:
        """Store the load that the engine reported; ``None`` = it did not say.

        A report of tokens includes all requests sent before it, so the tokens credited from here
        are reset to 0.
        """
        self.reported_tokens = tokens
        self.waiting = waiting
        if waiting:
            self.full_with = self.inflight
        self.kv_used = kv_used
        if tokens is not None:
            self.own_tokens = 0
            self.reports += 1

    def queue(self) -> int:
        """How many requests wait inside the engine, as far as is known here; 0 where nothing is.

        A report is a second old and more. An engine that told of a queue had no slot free: what is
        there from here beyond what was there then waits as well.
        """
        if self.waiting is None:
            return 0
        return self.waiting + max(0, self.inflight - self.full_with)

    def answered(self, tokens: int, finish: str, measured: Measured | None) -> None:
        """Keep length, finish reason and statistics of a complete answer for the next tally.

        Bounded samples; does not count a success.
        """
        if tokens and len(self.lengths) < SAMPLES_MAX:
            self.lengths.append(tokens)
        if finish:
            finishes = self.finishes
            if finish in finishes:
                finishes[finish] += 1
            elif len(finishes) < FINISHES_MAX:
                finishes[finish] = 1
            else:
                finishes[OTHER_FINISH] = finishes.get(OTHER_FINISH, 0) + 1
        if measured is not None:
            for statistic, value in measured:
                self._measure(statistic, value)

    def _measure(self, statistic: str, value: float) -> None:
        if statistic == "norm":
            if self.norms is None:
                self.norms = []
            kept = self.norms
        elif statistic == "logprob":
            if self.logprobs is None:
                self.logprobs = []
            kept = self.logprobs
        else:
            if self.scores is None:
                self.scores = {}
            if statistic not in self.scores and len(self.scores) >= SCORES_MAX:
                return
            kept = self.scores.setdefault(statistic, [])
        if len(kept) < SAMPLES_MAX:
            kept.append(value)

    def failed(self, kind: Kind | None, *, fast: bool) -> None:
        """Count a failed attempt for the next tally to control, by kind.

        ``fast``: it failed sooner than any real answer. Does not touch the breaker.
        """
        self.failures += 1
        self.fast += fast
        if kind is not None:
            if self.kinds is None:
                self.kinds = {}
            self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def take_tally(self, model: str) -> Tally | None:
        """Return what was counted since the last call and reset it; ``None`` without traffic.

        The number in flight is told but not reset; that it fell to 0 is told once.
        """
        ended = self.successes + self.failures + self.backpressure
        # Where only cancellations emptied it, that it is empty is said once more.
        if not (ended or self.withdrawn or self.inflight or self.told_inflight):
            return None
        told = Tally(
            model,
            self.id,
            self.successes,
            self.failures,
            self.backpressure,
            self.inflight,
            self.tokens,
            self.kinds or {},
            self.fast,
            self.finishes,
            tuple(self.lengths),
            tuple(self.logprobs or ()),
            tuple(self.norms or ()),
            waits=tuple(self.waits),
            firsts=tuple(self.firsts),
            paces=tuple(self.paces),
            withdrawn=self.withdrawn,
            scores=_tuples(self.scores) if self.scores else {},
            unread=self.unread,
            explained_s=self.explained_s if self.unread else None,
            prompts=self.prefill_tokens + self.whole_tokens,
        )
        self.successes = self.failures = self.backpressure = self.tokens = self.fast = 0
        self.withdrawn = 0
        self.kinds = self.logprobs = self.norms = self.scores = None
        self.finishes = {}
        self.lengths.clear()
        self.waits.clear()
        self.firsts.clear()
        self.paces.clear()
        self.told_inflight = self.inflight
        return told

    def has_room(self) -> bool:
        """Whether this gateway's attempts there are below the limit; others' do not count."""
        return self.inflight < self.limit

    def __repr__(self) -> str:
        return f"Candidate({self.id!r}, inflight={self.inflight}, weight={self.weight})"


def _tuples(scores: dict[str, list[float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(values) for name, values in scores.items()}


__all__ = ["FINISHES_MAX", "OTHER_FINISH", "SAMPLES_MAX", "SCORES_MAX", "UNLIMITED", "Candidate"]
