"""The queue in which a model's requests wait while no replica has room for them.

Interactive goes before batch; inside a class the tenant that was served the fewest tokens goes
first; inside a tenant the oldest. A request that has waited too long is dropped *before* it is
sent: a replica must not spend a GPU second on an answer nobody waits for. When no replica is ready
at all, as in the middle of a rollout, requests are held for a while too: half a minute of waiting
is better than a storm of 503. Where it is known that none can be ready in that time, nobody waits
in vain: all are refused at once. A request that failed somewhere and comes back has waited before:
patience is its client's, and counts all its stays.

Rejected: one queue per replica; work waits behind a slow one while another is idle. Rejected: an
unbounded queue with timeouts; memory grows with the outage, and all wait the full time in vain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from holdfast.core.request.admission import refusals
from holdfast.core.request.admission.fairness import QueueEntry, TenantQueues, TokenCounters
from holdfast.core.request.admission.refusals import Refusal
from holdfast.core.types import Priority, Request, nanos, require, seconds

_GARBAGE_MIN = 64  # stale expiry entries tolerated before a rebuild is worth its cost
_SHARE_SCALE = 1_000_000  # batch_share is counted in whole millionths: exact on every platform


@dataclass(slots=True, frozen=True)
class QueueConfig:
    """Bounds and waiting times of one model's queue, and how tokens are weighed.

    Checked when built: raises ``ConfigError``.
    """

    depth_max: int = 1_000  # requests; at 50/s this is 20 s of work, inside the interactive wait
    tokens_max: int = 8_000_000  # prompt + max_tokens; a flood of long prompts ends here first
    batch_depth_max: int = 500  # requests; batch has its own durable store, half is plenty here
    wait_interactive_s: float = 30.0  # in all its stays: a person has left by then
    wait_batch_s: float = 3_600.0  # batch gives way for an hour, not for ever
    wait_no_replica_s: float = 30.0  # covers a restart or a rollout step, not a lost model
    batch_share: float = 0.05  # of pops while both classes wait: batch creeps on, people hardly see
    input_weight: float = 1.0  # a prompt token: prefill handles thousands of them in one pass
    output_weight: float = 2.0  # an answer token: a pass of its own and a slot held while it runs

    def __post_init__(self) -> None:
        def check(name: str, low: float, high: float, fix: str) -> None:
            value = getattr(self, name)
            require(low <= value <= high, f"queue.{name}", f"is {value}", fix)

        depth, wait = self.depth_max, self.wait_interactive_s
        check("depth_max", 1, 10**6, "use 1 to 1,000,000 requests")
        check("tokens_max", 1, 10**12, "use 1 to 10^12 tokens")
        check("batch_depth_max", 0, depth, f"use 0 to depth_max ({depth})")
        check("wait_interactive_s", 0.001, 86_400, "use 0.001 to 86,400 seconds")
        check("wait_batch_s", wait, 10**6, f"use wait_interactive_s ({wait}) or more, to 10^6")
        check("wait_no_replica_s", 0.001, wait, f"use 0.001 to wait_interactive_s ({wait})")
        check("batch_share", 0.0, 0.5, "use 0 (strict priority) to 0.5 (take turns)")
        for weight in ("input_weight", "output_weight"):
            check(weight, 0.001, 1_000, "use 0.001 to 1,000")


@dataclass(slots=True, frozen=True)
class Offer:
    """What the queue answered to a new request: accepted where ``refusal`` is ``None``.

    ``dropped`` left the queue to make room, each with the answer its client gets: overdue requests
    first, then displaced batch requests. It may be set whether accepted or not.
    """

    refusal: Refusal | None
    dropped: tuple[tuple[Request, Refusal], ...] = ()


@dataclass(slots=True, frozen=True)
class Outlook:
    """In how many seconds a model without a ready replica will have one, and why it has none."""

    ready_in_s: float
    reason: str

    def later_than(self, limit: int, now: int) -> bool:
        """Whether the first replica will be ready only after ``limit`` (ns)."""
        return now + nanos(self.ready_in_s) > limit


_ACCEPTED = Offer(None)


class FairQueue:
    """The bounded queue of one model: interactive before batch, tenants in fair order, expiring.

    It dispatches nothing and answers nobody: callers send the refusals. ``counters`` belong to this
    queue alone and count interactive work; batch has counters of its own.
    """

    __slots__ = (
        "_batch",
        "_batch_credit",
        "_batch_share",
        "_classes",
        "_expiries",
        "_interactive",
        "_overdue",
        "_ready_sequence",
        "_sequence",
        "_service_rate",
        "_wait_no_replica",
        "_waits",
        "config",
        "held",
        "tokens",
    )

    def __init__(self, config: QueueConfig, counters: TokenCounters) -> None:
        problem = f"is {counters.tenants_max}, below queue.depth_max ({config.depth_max})"
        fix = "raise it: every tenant that waits needs a counter"
        require(counters.tenants_max >= config.depth_max, "fairness.tenants_max", problem, fix)
        self.config = config
        self.tokens = 0  # prompt + max_tokens of everything held
        self._interactive = TenantQueues(counters)
        self._batch = TenantQueues(TokenCounters(counters.weights, counters.tenants_max))
        self._classes = (self._interactive, self._batch)  # by Priority
        self._waits = (nanos(config.wait_interactive_s), nanos(config.wait_batch_s))
        self._wait_no_replica = nanos(config.wait_no_replica_s)
        self._batch_share = round(config.batch_share * _SHARE_SCALE)
        self._batch_credit = 0
        self.held: dict[
            int | str, QueueEntry
        ] = {}  # everything here: what waits and what is overdue
        self._overdue: dict[
            int | str, QueueEntry
        ] = {}  # retired, not yet reported; keeps its place
        self._expiries: list[tuple[int, int, QueueEntry]] = []
        self._sequence = 0
        self._ready_sequence = 0  # entries below this were offered before a replica was last seen
        self._service_rate: float | None = None

    def offer(
        self,
        request: Request,
        now: int,
        *,
        ready: bool,
        waited: int = 0,
        service_rate: float | None = None,
        outlook: Outlook | None = None,
    ) -> Offer:
        """Queue a request, or refuse it; may drop overdue and batch requests to make room.

        Raises ``ValueError`` if its id is queued. ``ready``: the model has a replica. ``waited``:
        ns in earlier stays. ``service_rate``: requests per second, if known. ``outlook``: when a
        replica will be ready, where none is.
        """
        queues = self._classes[request.priority]
        if request.id in self.held:
            raise ValueError(f"{request!r} is queued already")
        if request.deadline and request.deadline <= now:
            return Offer(refusals.deadline_passed())
        if service_rate is not None:
            self._service_rate = service_rate
        if ready:
            self._ready_sequence = self._sequence
        if outlook is not None and outlook.later_than(self._limit(request, now - waited), now):
            return Offer(refusals.none_in_time(outlook.reason, outlook.ready_in_s))
        tokens = request.prompt_tokens + request.max_tokens
        dropped: list[tuple[Request, Refusal]] = []
        full = self._full(queues, tokens)
        if full:
            dropped = self.expire(now)
            if queues is self._interactive and self._batch.entries:
                dropped += self._displace(tokens)
            full = self._full(queues, tokens)
        if full:
            return Offer(refusals.queue_full(full, len(self), self._service_rate), tuple(dropped))
        wait = self._wait_no_replica
        if outlook is not None:  # estimates err: twice as long, within its class's wait
            wait = max(wait, 2 * nanos(outlook.ready_in_s))
        entry = QueueEntry(request, tokens, now - waited, self._sequence)
        self._add(queues, entry, None if ready else wait)
        return Offer(None, tuple(dropped)) if dropped else _ACCEPTED

    def pop(self, now: int, fits: Callable[[Request, int], bool] | None = None) -> Request | None:
        """Remove and return the next request, and charge its tenant for the prompt.

        ``None`` if none waits; requests whose wait is over are never returned. Call it only when a
        replica is ready: it ends waits for a first one. ``fits``: whether a request may be sent
        now; one that may not keeps its place, and the next that may goes before it.
        """
        if self._expiries and self._expiries[0][0] <= now:
            self._retire(now)
        self._ready_sequence = self._sequence
        if (queues := self._next_class()) is None:
            return None
        entry: QueueEntry | None = queues.first()
        if fits is not None and entry is not None and not fits(entry.request, now):
            entry = self._next_that_fits(queues, fits, now)
        if entry is None:
            return None
        request = entry.request
        self._take(entry)
        cost = (request.prompt_tokens or 1) * self.config.input_weight  # unknown: still take turns
        self._classes[request.priority].counters.charge(request.tenant, cost)
        return request

    def _next_that_fits(
        self, queues: TenantQueues, fits: Callable[[Request, int], bool], now: int
    ) -> QueueEntry | None:
        """The first entry in fair order that may be sent now, of this class, else of the other."""
        for each in (queues, *(one for one in self._classes if one is not queues)):
            for tenant in sorted(each.tenants, key=each.counters.value):
                for entry in each.tenants[tenant].values():
                    if fits(entry.request, now):
                        return entry
        return None

    def expire(self, now: int) -> list[tuple[Request, Refusal]]:
        """Remove the requests that waited too long; return each with its refusal."""
        self._retire(now)
        dropped = [(entry.request, self._refusal(entry)) for entry in self._overdue.values()]
        for request, _ in dropped:
            self.remove(request.id)
        return dropped

    def give_up(self, outlook: Outlook, now: int) -> list[tuple[Request, Refusal]]:
        """Remove the requests for which no replica will be ready in time; each with its refusal."""
        refusal = refusals.none_in_time(outlook.reason, outlook.ready_in_s)
        hopeless = [e for e in self.held.values() if outlook.later_than(e.limit, now)]
        for entry in hopeless:
            self._take(entry)
        return [(entry.request, refusal) for entry in hopeless]

    def remove(self, request_id: int | str) -> bool:
        """Remove a queued request without charge or refusal; ``False`` if it is not queued."""
        entry = self.held.get(request_id)
        if entry is None:
            return False
        self._take(entry)
        return True

    def charge_dispatch(self, request: Request) -> None:
        """Charge a tenant's fair share for the prompt of a request dispatched without waiting."""
        cost = (request.prompt_tokens or 1) * self.config.input_weight
        self._classes[request.priority].counters.pass_by(request.tenant, cost)

    def charge_output(
        self, tenant: str, tokens: int, priority: Priority = Priority.INTERACTIVE
    ) -> None:
        """Charge a tenant's fair share for the tokens of an answer, once they are known."""
        self._classes[priority].counters.charge(tenant, tokens * self.config.output_weight)

    @property
    def waiting_interactive(self) -> int:
        """How many interactive requests wait here, without those of batches."""
        return len(self._interactive.entries)

    @property
    def expires_at_next(self) -> int | None:
        """The earliest time at which ``expire`` has a request to remove; ``None`` if none waits."""
        for entry in self._overdue.values():
            return entry.expires
        heap = self._expiries
        while heap and not heap[0][2].queued:
            heappop(heap)
        return heap[0][0] if heap else None

    def __len__(self) -> int:
        return len(self.held) - len(self._overdue)

    def _full(self, queues: TenantQueues, tokens: int) -> str:
        """Name the bound that a new request would break; empty when there is room."""
        config = self.config
        if len(self.held) >= config.depth_max:
            return "no place left (depth_max)"
        if self.tokens + tokens > config.tokens_max:
            return "too many tokens wait (tokens_max)"
        if queues is self._batch and len(queues.entries) >= config.batch_depth_max:
            return "too many batch requests wait (batch_depth_max)"
        return ""

    def _displace(self, tokens: int) -> list[tuple[Request, Refusal]]:
        """Remove the newest batch requests, if that can make room for an interactive one."""
        dropped: list[tuple[Request, Refusal]] = []
        if self.tokens - self._batch.tokens + tokens > self.config.tokens_max:
            return dropped
        refusal = refusals.displaced(len(self), self._service_rate)
        while self._batch.entries and self._full(self._interactive, tokens):
            entry = self._batch.newest()
            self._take(entry)
            dropped.append((entry.request, refusal))
        return dropped

    def _limit(self, request: Request, offered: int) -> int:
        """Until when a request may wait, by its class and its own deadline."""
        limit = offered + self._waits[request.priority]
        return min(limit, request.deadline) if request.deadline else limit

    def _add(self, queues: TenantQueues, entry: QueueEntry, wait: int | None) -> None:
        """Keep an entry; ``wait`` is how long it waits while no replica is ready."""
        request = entry.request
        entry.limit = self._limit(request, entry.offered)
        entry.expires = entry.limit
        if wait is not None and entry.offered + self._wait_no_replica <= entry.limit:
            entry.provisional = True
            entry.expires = min(entry.limit, entry.offered + wait)
        self._sequence += 1
        self.tokens += entry.tokens
        self.held[request.id] = entry
        queues.add(entry)
        heappush(self._expiries, (entry.expires, entry.sequence, entry))

    def _take(self, entry: QueueEntry) -> None:
        request = entry.request
        del self.held[request.id]
        self.tokens -= entry.tokens
        if not entry.queued:
            del self._overdue[request.id]
            return
        self._classes[request.priority].take(entry)
        if len(self._expiries) > 2 * len(self.held) + _GARBAGE_MIN:
            self._expiries = [item for item in self._expiries if item[2].queued]
            heapify(self._expiries)

    def _retire(self, now: int) -> None:
        """Move requests whose wait is over out of the queues; ``pop`` cannot return them then."""
        heap = self._expiries
        while heap and heap[0][0] <= now:
            entry = heappop(heap)[2]
            if not entry.queued:
                continue
            if entry.provisional and entry.sequence < self._ready_sequence:
                # A replica was ready since: it waits for room now, as long as its class may.
                entry.provisional = False
                entry.expires = entry.limit
                heappush(heap, (entry.expires, entry.sequence, entry))
                continue
            self._classes[entry.request.priority].take(entry)
            self._overdue[entry.request.id] = entry

    def _refusal(self, entry: QueueEntry) -> Refusal:
        if entry.expires == entry.request.deadline:
            return refusals.deadline_passed()
        wait_s = seconds(entry.expires - entry.offered)
        if entry.provisional:  # and still so: no replica was seen since
            return refusals.no_ready_replica(wait_s)
        return refusals.wait_expired(wait_s, len(self), self._service_rate)

    def _next_class(self) -> TenantQueues | None:
        if self._interactive.entries and self._batch.entries:
            self._batch_credit += self._batch_share
            if self._batch_credit >= _SHARE_SCALE:
                self._batch_credit -= _SHARE_SCALE
                return self._batch
        if self._interactive.entries:
            return self._interactive
        return self._batch if self._batch.entries else None


__all__ = ["FairQueue", "Offer", "Outlook", "QueueConfig"]
