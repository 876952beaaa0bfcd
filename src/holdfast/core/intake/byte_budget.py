"""A budget of bytes for request bodies and unread answers: one per process, a share per tenant.

    received   bytes of bodies that are not complete; a small budget of their own
    held       bodies of requests under way, and answers that their clients do not read

A length that a client states is compared with what is free, and not set aside: else a few clients
could reserve everything by promising bodies that they never send. Bytes count when they are here.
So a body may be begun that no longer fits when it has grown; then a body that stands still is given
up for it, or itself.

Rejected: the process's resident memory as the measure. It is known too late, includes what the
allocator keeps, and does not say whose bytes they are.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.core.types import require


class BudgetShortage(Enum):
    """Which budget has no room: this tenant's share, or that of the whole process."""

    TENANT = "tenant"  # this tenant's share
    PROCESS = "process"  # that of all


@dataclass(slots=True, frozen=True)
class ByteBudgetConfig:
    """Settings: bytes and requests that one gateway process may hold, and a tenant's share."""

    bytes_max: int = 512 << 20  # bodies under way and unread answers; parsing takes twice as much
    receiving_bytes_max: int = 64 << 20  # bodies not complete: two of the largest. A LAN needs ms
    tenant_share: float = 0.5  # of bytes and requests, if there are several tenants; 1: no bound
    requests_max: int = 10_000  # under way in a process; each is an attempt on a replica, too

    def __post_init__(self) -> None:
        for name in ("bytes_max", "receiving_bytes_max", "requests_max"):
            value = getattr(self, name)
            require(value > 0, f"budget.{name}", f"is {value}", "use more than 0")
        share, fix = self.tenant_share, "use a share above 0, up to 1 for no bound per tenant"
        require(0 < share <= 1, "budget.tenant_share", f"is {share}", fix)
        fits = self.receiving_bytes_max <= self.bytes_max
        fix = f"use at most budget.bytes_max, {self.bytes_max}"
        require(fits, "budget.receiving_bytes_max", f"is {self.receiving_bytes_max}", fix)


class ByteAccount:
    """What one tenant holds now in one gateway process: requests under way and their bytes.

    ``admit``, ``begin``, ``end`` and ``keep`` change it and the process's ``ByteBudget`` together.
    """

    __slots__ = ("budget", "bytes", "requests")

    def __init__(self, budget: "ByteBudget") -> None:
        self.budget = budget
        self.bytes = 0
        self.requests = 0

    def shortage(self, size: int) -> BudgetShortage | None:
        """Return which budget has no room for one more request with a body of ``size`` bytes.

        None: all have. Counts nothing.
        """
        budget = self.budget
        held = budget.held + size
        too_many = self.requests >= budget.tenant_requests_max
        if too_many or self.bytes + size > budget.tenant_bytes_max:
            return BudgetShortage.TENANT if budget.shared else BudgetShortage.PROCESS
        if held > budget.bytes_max or budget.requests >= budget.requests_max:
            return BudgetShortage.PROCESS
        return None

    def admit(self, size: int) -> BudgetShortage | None:
        """Count a request whose body is complete and return None; without room return the shortage.

        Then nothing is counted. ``end`` with the same size takes it back.
        """
        budget = self.budget
        held, requests = budget.held + size, budget.requests
        # Where all together are below what one may have, none is near its bound.
        if held > budget.tenant_bytes_max or requests >= budget.tenant_requests_max:
            shortage = self.shortage(size)
            if shortage is not None:
                return shortage
        budget.held = held
        budget.requests = requests + 1
        self.bytes += size
        self.requests += 1
        return None

    def begin(self, size: int) -> None:
        """Count a request of ``size`` bytes without a check: room was checked as its parts came."""
        budget = self.budget
        self.requests += 1
        self.bytes += size
        budget.requests += 1
        budget.held += size

    def end(self, size: int) -> None:
        """Take back a request that ``admit`` or ``begin`` counted; ``size`` must be the same."""
        budget = self.budget
        self.requests -= 1
        self.bytes -= size
        budget.requests -= 1
        budget.held -= size

    def keep(self, size: int) -> None:
        """Count so many bytes more of answers that are not read; fewer, if it is below 0."""
        self.bytes += size
        self.budget.held += size

    @property
    def holds_too_much(self) -> bool:
        """Whether the tenant is above its share, by answers that are not read; stops none."""
        budget = self.budget
        return budget.shared and self.bytes > budget.tenant_bytes_max


class HeldBody:
    """One request and its body as an account counts them, for whoever holds the body longest.

    It may be passed on, from the client's exchange to an execution that goes on without its client.
    """

    __slots__ = ("_account", "_size")

    def __init__(self, account: ByteAccount | None, size: int) -> None:
        self._account = account  # None: nobody counts it, or it has ended
        self._size = size

    def end(self) -> None:
        """Take the request and its bytes back from the account; once, a second call is ignored."""
        account, self._account = self._account, None
        if account is not None:
            account.end(self._size)


class ByteBudget:
    """The bytes and requests that one gateway process holds now, their bounds, tenants' accounts.

    ``received`` (bodies not complete) and ``held`` (complete bodies, unread answers) are also
    changed by callers directly.
    """

    __slots__ = (
        "accounts",
        "bytes_max",
        "held",
        "received",
        "receiving_bytes_max",
        "requests",
        "requests_max",
        "shared",
        "tenant_bytes_max",
        "tenant_requests_max",
    )

    def __init__(self, config: ByteBudgetConfig, tenants: int = 1, body_bytes_max: int = 0) -> None:
        self.accounts: dict[str, ByteAccount] = {}
        self.held = 0
        self.received = 0
        self.requests = 0
        self.reconfigure(config, tenants, body_bytes_max)

    def reconfigure(self, config: ByteBudgetConfig, tenants: int, body_bytes_max: int = 0) -> None:
        """Apply new bounds; what is held stays counted, and nobody is put out.

        A tenant's share is bound only where ``tenants`` are several. A body of the largest size
        allowed, ``body_bytes_max``, always fits alone.
        """
        self.bytes_max = max(config.bytes_max, body_bytes_max)
        self.receiving_bytes_max = max(config.receiving_bytes_max, body_bytes_max)
        self.requests_max = config.requests_max
        self.shared = tenants > 1 and config.tenant_share < 1
        share: Final = config.tenant_share if self.shared else 1.0
        self.tenant_bytes_max = max(int(self.bytes_max * share), body_bytes_max)
        self.tenant_requests_max = max(1, int(self.requests_max * share))

    def account(self, tenant: str) -> ByteAccount:
        """Return the ``ByteAccount`` of a tenant, made when first asked for and never dropped."""
        found = self.accounts.get(tenant)
        if found is None:
            found = self.accounts[tenant] = ByteAccount(self)
        return found

    def may_receive(self, size: int) -> bool:
        """Return whether a body of this stated length may be begun; sets nothing aside for it."""
        return self.received + size <= self.receiving_bytes_max

    @property
    def receives_too_much(self) -> bool:
        """Whether bytes of incomplete bodies in this process are above their bound; stops none."""
        return self.received > self.receiving_bytes_max

    @property
    def holds_too_much(self) -> bool:
        """Whether bytes of bodies and unread answers in this process are above their bound."""
        return self.held > self.bytes_max

    def debtors(self) -> "list[ByteAccount]":
        """The accounts above their share; nobody is while all together hold less than one may."""
        if self.held <= self.tenant_bytes_max:
            return []
        return [account for account in self.accounts.values() if account.holds_too_much]


__all__ = ["BudgetShortage", "ByteAccount", "ByteBudget", "ByteBudgetConfig", "HeldBody"]
