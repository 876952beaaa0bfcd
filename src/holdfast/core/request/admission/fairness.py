"""Fair shares between tenants that wait: the tenant that got the fewest tokens goes next.

Each tenant has a virtual token counter: what it was served, divided by its weight. Whoever waits
with the smallest counter goes next. A tenant that sends long prompts moves its counter far with
each request and so gets fewer of them; nobody has to know in advance what a request will cost.

Idleness is not credit. A tenant that comes back is lifted to the smallest counter among those who
wait; with nobody waiting, to the level at which work was last dispatched. Without the lift a
tenant silent all night could shut everybody else out all morning. Nor is work done on idle capacity
a debt: it raises that level, and the next arrival is lifted with it.

Rejected: deficit round robin. It needs the cost of a request before it is served, and the length of
an answer is known only after it. Rejected: counting requests; a 32,000-token prompt and a 100-token
one would weigh the same.
"""

from collections import OrderedDict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from holdfast.core.types import Request, require

_WEIGHT_MIN = 0.001  # beyond these the counters would lose whole tokens to rounding
_WEIGHT_MAX = 1_000.0
_GARBAGE_MIN = 64  # stale heap entries tolerated before a rebuild is worth its cost


class _Account:
    """One tenant's counter, and whether it has work waiting."""

    __slots__ = ("listed", "per_token", "tenant", "value", "waiting")

    def __init__(self, tenant: str, value: float, weight: float) -> None:
        self.tenant = tenant
        self.value = value
        self.per_token = 1.0 / weight
        self.waiting = False
        self.listed = False  # has an entry in the heap, perhaps a stale one; never two


class TokenCounters:
    """Counts the weighted tokens that each tenant was served; finds who of those waiting got least.

    With ``tenants_max`` tenants known, the least recently active one that does not wait is
    forgotten. A new or returning tenant starts at the level of the others: idleness is no credit.
    """

    __slots__ = (
        "_accounts",
        "_floor",
        "_heap",
        "_recent",
        "_sequence",
        "_waiting",
        "tenants_max",
        "weights",
    )

    def __init__(self, weights: Mapping[str, float], tenants_max: int = 10_000) -> None:
        require(tenants_max >= 1, "fairness.tenants_max", f"is {tenants_max}", "use at least 1")
        for tenant, weight in weights.items():
            require(
                _WEIGHT_MIN <= weight <= _WEIGHT_MAX,
                f"fairness.weights[{tenant}]",
                f"is {weight}",
                f"use {_WEIGHT_MIN:g} to {_WEIGHT_MAX:g}; 1 is an ordinary share",
            )
        self.weights: dict[str, float] = dict(weights)  # a tenant not named here weighs 1
        self.tenants_max = tenants_max
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # least recently active first
        self._recent: _Account | None = None  # the last of them, mostly asked for again
        self._heap: list[tuple[float, int, _Account]] = []
        self._waiting = 0
        self._floor = 0.0  # where work was last dispatched; newcomers start here, not at zero
        self._sequence = 0  # breaks ties: who entered the heap first goes first

    def charge(self, tenant: str, tokens: float) -> None:
        """Add tokens served, divided by the tenant's weight, to its counter.

        ``ValueError`` if negative.
        """
        if tokens < 0:
            raise ValueError(f"cannot charge {tokens} tokens to {tenant!r}: counters only rise")
        account = self._recent
        if account is None or account.tenant != tenant:
            account = self._turn_to(tenant)
        account.value += tokens * account.per_token

    def pass_by(self, tenant: str, tokens: float) -> None:
        """Charge a tenant for a request that was dispatched without waiting.

        Its counter is first lifted to the present level, so that idle time is no credit.
        """
        account = self._recent
        if account is None or account.tenant != tenant:
            account = self._turn_to(tenant)
        if self._waiting:
            self._lift(account)
        elif account.value < self._floor:
            account.value = self._floor
        else:
            self._floor = account.value  # nobody waits: this is the level of service now
        account.value += tokens * account.per_token

    def arrive(self, tenant: str) -> None:
        """Note that a tenant has a request waiting, and lift its counter to the others' level.

        No effect if it had one already.
        """
        account = self._recent
        if account is None or account.tenant != tenant:
            account = self._turn_to(tenant)
        if account.waiting:
            return
        self._lift(account)
        account.waiting = True
        self._waiting += 1
        if not account.listed:
            if len(self._heap) > 2 * self._waiting + _GARBAGE_MIN:
                self._drop_garbage()
            account.listed = True
            self._sequence += 1
            heappush(self._heap, (account.value, self._sequence, account))

    def leave(self, tenant: str) -> None:
        """Note that a tenant has no request waiting any more."""
        account = self._accounts.get(tenant)
        if account is None or not account.waiting:
            return
        account.waiting = False
        self._waiting -= 1
        if not self._waiting and account.value > self._floor:
            self._floor = account.value

    def least(self) -> str:
        """Return the waiting tenant with the smallest counter; ``LookupError`` if none waits.

        Nothing changes for the tenant.
        """
        account = self._top()
        if account is None:
            raise LookupError("no tenant is waiting")
        return account.tenant

    def value(self, tenant: str) -> float:
        """Return a tenant's counter; an unknown tenant has the value it would start with."""
        account = self._accounts.get(tenant)
        return self._floor if account is None else account.value

    def __len__(self) -> int:
        return len(self._accounts)

    def _lift(self, account: _Account) -> None:
        top = self._top() if self._waiting else None
        level = self._floor if top is None else top.value
        if account.value < level:  # noqa: PLR1730 (max() would double the cost of this method)
            account.value = level

    def _top(self) -> _Account | None:
        heap = self._heap
        while heap:
            key, _, account = heap[0]
            if not account.waiting:
                account.listed = False
                heappop(heap)
            elif account.value > key:
                self._sequence += 1
                heapreplace(heap, (account.value, self._sequence, account))
            else:
                return account
        return None

    def _turn_to(self, tenant: str) -> _Account:
        """Return the tenant's account, created if new, and mark it as the most recently used."""
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= self.tenants_max:
                self._evict()
            account = _Account(tenant, self._floor, self.weights.get(tenant, 1.0))
            self._accounts[tenant] = account
        else:
            self._accounts.move_to_end(tenant)
        self._recent = account
        return account

    def _evict(self) -> None:
        for _ in range(len(self._accounts)):
            tenant, account = self._accounts.popitem(last=False)
            if not account.waiting:
                return
            self._accounts[tenant] = account
        raise OverflowError(f"all {self.tenants_max} tenants wait: raise fairness.tenants_max")

    def _drop_garbage(self) -> None:
        """Rebuild the heap without the tenants that no longer wait."""
        for _, _, account in self._heap:
            account.listed = account.waiting
        self._heap = [entry for entry in self._heap if entry[2].waiting]
        heapify(self._heap)


class QueueEntry:
    """One waiting request with its token count and the times (ns) at which it expires."""

    __slots__ = (
        "expires",
        "limit",
        "offered",
        "provisional",
        "queued",
        "request",
        "sequence",
        "tokens",
    )

    def __init__(self, request: Request, tokens: int, offered: int, sequence: int) -> None:
        self.request = request
        self.tokens = tokens
        self.offered = offered
        self.sequence = sequence
        self.limit = 0  # when its class wait or its deadline ends
        self.expires = 0  # the same, or earlier while provisional
        self.provisional = False  # offered while no replica was ready, and none was seen since
        self.queued = True


class TenantQueues:
    """The waiting requests of one priority class: a queue per tenant, and the order of arrival."""

    __slots__ = ("counters", "entries", "tenants", "tokens")

    def __init__(self, counters: TokenCounters) -> None:
        self.counters = counters
        self.entries: OrderedDict[int | str, QueueEntry] = OrderedDict()
        self.tenants: dict[str, OrderedDict[int | str, QueueEntry]] = {}
        self.tokens = 0

    def add(self, entry: QueueEntry) -> None:
        """Append a request to its tenant's queue and count its tokens.

        A tenant's first waiting request enters the tenant into the fair order. Checks no limit.
        """
        request = entry.request
        queue = self.tenants.get(request.tenant)
        if queue is None:
            queue = self.tenants[request.tenant] = OrderedDict()
            self.counters.arrive(request.tenant)
        queue[request.id] = self.entries[request.id] = entry
        self.tokens += entry.tokens

    def take(self, entry: QueueEntry) -> None:
        """Remove a request from wherever it is in its tenant's queue; it must be there.

        A tenant's last one takes the tenant out of the fair order. Charges nothing.
        """
        request = entry.request
        entry.queued = False
        self.tokens -= entry.tokens
        del self.entries[request.id]
        queue = self.tenants[request.tenant]
        del queue[request.id]
        if not queue:
            del self.tenants[request.tenant]
            self.counters.leave(request.tenant)

    def first(self) -> QueueEntry:
        """Return, and leave in place, the oldest request of the tenant that was served least.

        One must be waiting.
        """
        return next(iter(self.tenants[self.counters.least()].values()))

    def newest(self) -> QueueEntry:
        """Return, and leave in place, the request that arrived last, of all tenants.

        One must be waiting.
        """
        return next(reversed(self.entries.values()))


__all__ = ["QueueEntry", "TenantQueues", "TokenCounters"]
