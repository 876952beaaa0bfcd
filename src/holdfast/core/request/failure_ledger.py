"""Decides whether a failed attempt speaks against its replica or was the request's own doing.

    an attempt fails ──────► charged to its replica, and its canary is asked
    a second replica fails
      the same request alike ► withdrawn from the first, not charged to the second
    another replica answers ─► upheld: told to control, and of full weight for the breaker
    neither of both ─────────► told when the request is over, or after a while

Users' failures are a word about a replica, not proof: whoever sends a body that makes engines
answer 500 could talk a whole fleet to death. So a failure waits for a second opinion before control
hears of it; the breaker counts it at once, as a replica that fails everybody must be out within
seconds, and takes it back if need be. A tenant that was lately shown to cause failures of a kind by
itself, more often than not, is believed in these only where another replica answers the request.

A second opinion is worth what its replica is worth: in a pool of which half is ill, two ill ones
fail the same request every now and then. Of a replica whose failures others made good twice within
ten seconds nothing is taken for the request's own. Proof does not count for that: a request that
ends its engine breaks its neighbours' connections too, and these are made good elsewhere.

Word of fewer than three tenants is kept back where three or more are active. Elsewhere equal bodies
count once. Broken connections are proof and wait for nobody, but they, too, are withdrawn where one
request breaks those of two replicas one after the other.

Rejected: waiting for the second opinion before the breaker counts. An answer in one piece takes
half a minute, and meanwhile every other request would go to the sick replica.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Final

from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.request.active_request import (
    ActiveRequest,
    Attempt,
    ChargedFailure,
    RequestPhase,
    apart,
)
from holdfast.core.request.breaker import WITNESSES, BreakerChange, CountedFailure
from holdfast.core.request.candidate import Candidate
from holdfast.core.types import nanos, require

_TENANTS_MAX: Final = 1_024  # remembered as active; three are enough to know
_BALANCE_MAX: Final = 5  # withdrawn failures ahead of upheld ones: so many answers turn it again
_OWN_MAX: Final = 4_096  # tenants and kinds of their own failures; the oldest goes first
_CHARGES_MAX: Final = 4_096  # without a second opinion yet; beyond that they are told at once
_HELD_MAX: Final = 256  # failures of one replica that wait for a third tenant
_SECOND_OPINION: Final = 2  # × what the first attempt took: the same request takes as long again
# Nothing of the request had been sent: it cannot be the cause.
_NOT_BY_REQUEST: Final = frozenset(
    {Kind.REFUSED, Kind.CONNECT_TIMEOUT, Kind.EXITED, Kind.LOAD_STALLED}
)
_FAILURE: Final = Outcome.FAILURE


@dataclass(slots=True, frozen=True)
class EvidenceConfig:
    """Settings: how users' failures are weighed before they count against a replica.

    Checked when built: raises ``ConfigError``.
    """

    active_s: float = 30.0  # a tenant counts as active for so long after its last attempt
    own_s: float = 60.0  # so long a tenant's failures of a kind need a second opinion to count
    second_opinion_s: float = 3.0  # at least so long; control hears of most failures sooner
    second_opinion_max_s: float = 10.0  # at most: an illness that shows slowly must show, too
    witness_s: float = 10.0  # tenants that fail at one replica within it speak of one thing

    def __post_init__(self) -> None:
        for each in fields(self):
            value, fix = getattr(self, each.name), "use seconds above 0, up to an hour, 3600 s"
            require(0 < value <= 3_600, f"evidence.{each.name}", f"is {value}", fix)
        least, most = self.second_opinion_s, self.second_opinion_max_s
        fix = f"use at least evidence.second_opinion_s, {least}"
        require(least <= most, "evidence.second_opinion_max_s", f"is {most}", fix)


class _Witnesses:
    """Who failed at one replica lately, and the failures that wait for more of them."""

    __slots__ = ("held", "last")

    def __init__(self) -> None:
        self.last: dict[str | int, int] = {}  # by tenant, or by body; the latest last
        self.held: list[tuple[int, Kind, bool]] = []

    def saw(self, who: str | int, now: int) -> None:
        """Note that this tenant, or this body, failed there now."""
        self.last.pop(who, None)
        self.last[who] = now

    def agree(self, since: int) -> bool:
        """Whether enough tenants failed there since."""
        lately = takewhile(lambda one: one[1] >= since, reversed(self.last.items()))
        tenants = (who for who, _ in lately if isinstance(who, str))
        return len(list(islice(tenants, WITNESSES))) >= WITNESSES


class FailureLedger:
    """The failures of one model's requests here: charged to replicas, withdrawn, or upheld.

    Breakers hear of a failure at once, control (by the candidates' tallies) only after a second
    opinion or a wait.
    """

    __slots__ = (
        "_active",
        "_charges",
        "_own",
        "_own_for",
        "_second_opinion",
        "_second_opinion_max",
        "_upheld",
        "_witness",
        "_witnesses",
        "tenants",
    )

    def __init__(self, config: EvidenceConfig) -> None:
        self._active = nanos(config.active_s)
        self._own_for = nanos(config.own_s)
        self._second_opinion = nanos(config.second_opinion_s)
        self._second_opinion_max = nanos(config.second_opinion_max_s)
        self._witness = nanos(config.witness_s)
        self.tenants: dict[str, int] = {}  # when an attempt of each last ended
        # Of each tenant's failures of a kind: withdrawn ones ahead of upheld ones, last changed.
        self._own: dict[tuple[str, Kind], tuple[int, int]] = {}
        self._upheld: dict[str, tuple[int, int]] = {}  # by replica: when the last two were
        self._charges: dict[ChargedFailure, None] = {}  # not settled yet, the oldest first
        self._witnesses: dict[str, _Witnesses] = {}  # by replica

    def saw(self, tenant: str, now: int) -> None:
        """Note that an attempt of this tenant ended now, so that it counts as active."""
        tenants = self.tenants
        if tenant not in tenants and len(tenants) >= _TENANTS_MAX:
            del tenants[next(iter(tenants))]  # whoever it is comes back with its next attempt
        tenants[tenant] = now

    def crowd(self, now: int) -> bool:
        """Whether three tenants or more had attempts that ended within ``active_s``.

        Then failures weigh by how many tenants they failed.
        """
        since = now - self._active
        active = (at for at in self.tenants.values() if at >= since)
        return len(list(islice(active, WITNESSES))) >= WITNESSES

    def is_own(self, tenant: str, kind: Kind, now: int) -> bool:
        """Whether this tenant's failures of this kind were lately withdrawn more often than upheld.

        Such failures are believed only where another replica answers the request.
        """
        balance, at = self._own.get((tenant, kind), (0, 0))
        return balance > 0 and now - at < self._own_for

    def _balance(self, charge: ChargedFailure, change: int, now: int) -> None:
        """Note that a failure was its request's own (1) or its replica's (-1)."""
        key = (charge.active.request.tenant, charge.kind)
        balance, at = self._own.pop(key, (0, now))
        if now - at >= self._own_for:
            balance = 0
        balance = max(-_BALANCE_MAX, min(_BALANCE_MAX, balance + change))
        self._own[key] = (balance, now)
        if len(self._own) > _OWN_MAX:
            del self._own[next(iter(self._own))]

    def is_ill(self, candidate: Candidate, now: int) -> bool:
        """Whether the replica's last two upheld failures both came within ``witness_s`` (10 s).

        Upheld: another replica answered the request before control was told. Proof, such as a
        refused or broken connection, is told at once and never counts here. Changes nothing.
        """
        before, _ = self._upheld.get(candidate.id, (0, 0))
        return bool(before) and now - before < self._witness

    def charge(
        self,
        active: ActiveRequest,
        attempt: Attempt,
        kind: Kind,
        now: int,
        *,
        fast: bool,
        alone: bool = False,
    ) -> BreakerChange | None:
        """Charge a failure to its replica's breaker; return the breaker's change, else ``None``.

        Proof such as a broken connection counts for control at once, other kinds after a second
        opinion. ``alone``: the pool has no other replica to give one.
        """
        request, candidate = active.request, attempt.candidate
        proof = MEANINGS[kind].proof
        body = _digest(request.content) if request.content else None
        failure = CountedFailure(request.tenant, body, proof=proof)
        charge = ChargedFailure(active, candidate, kind, failure, fast=fast)
        charge.at = now
        if not alone:
            wait = max(_SECOND_OPINION * (now - attempt.started), self._second_opinion)
            charge.due = now + min(wait, self._second_opinion_max)
        charge.own = self.is_own(request.tenant, kind, now)
        active.charges = (*active.charges, charge)
        if proof:
            candidate.failed(kind, fast=fast)
        else:
            self._charges[charge] = None
            if len(self._charges) > _CHARGES_MAX:
                self._tell(next(iter(self._charges)), now)
        if charge.own and not proof:
            # Not its replica's fault by all that is known; its trial goes to the next request.
            outcome = Outcome.CLIENT_ERROR
            return candidate.breaker.record(outcome, now, trial=attempt.trial)
        return candidate.breaker.record(
            _FAILURE,
            now,
            strong=kind is Kind.REFUSED,
            trial=attempt.trial,
            failure=failure,
            crowd=self.crowd(now),
        )

    def repeats(
        self, active: ActiveRequest, candidate: Candidate, kind: Kind, now: int
    ) -> list[ChargedFailure]:
        """Return this request's charged failures of the same kind at other replicas.

        Empty where the request cannot be the cause or one of the replicas is ill itself. A list
        with entries means that the request is at fault; nothing is withdrawn here.
        """
        if kind in _NOT_BY_REQUEST or not active.charges or self.is_ill(candidate, now):
            return []
        alike = [
            charge
            for charge in active.charges
            if charge.kind is kind
            and charge.candidate is not candidate
            and not self.is_ill(charge.candidate, now)
        ]
        if kind is Kind.RESET:  # what ends two connections at once is not in the request
            alike = [charge for charge in alike if apart(charge.at, now)]
        return alike

    def withdraw(
        self, charges: Iterable[ChargedFailure], now: int
    ) -> list[tuple[Candidate, BreakerChange]]:
        """Take failures back from their replicas: they were the request's own.

        Also counts them against the tenant for this kind; returns (candidate, change) for each
        breaker that closes by that.
        """
        changes: list[tuple[Candidate, BreakerChange]] = []
        for charge in charges:
            self._balance(charge, 1, now)
            if charge in self._charges:
                del self._charges[charge]
                charge.candidate.withdrawn += 1
            change = charge.candidate.breaker.withdraw(charge.failure, now)
            if change is not None:
                changes.append((charge.candidate, change))
        return changes

    def uphold(
        self, active: ActiveRequest, answered: Candidate, now: int
    ) -> list[tuple[Candidate, BreakerChange]]:
        """Let the failures of a request count in full, because another replica answers it.

        Control and the breakers hear of them; returns (candidate, change) for each breaker that
        opens by that.
        """
        changes: list[tuple[Candidate, BreakerChange]] = []
        crowd = self.crowd(now)
        for charge in active.charges:
            candidate = charge.candidate
            if charge in self._charges and candidate is not answered:
                charge.own = False
                charge.failure.body = None
                self._balance(charge, -1, now)
                self._upheld[candidate.id] = (self._upheld.get(candidate.id, (0, 0))[1], now)
                self._tell(charge, now)
                change = candidate.breaker.confirm(charge.failure, now, crowd=crowd)
                if change is not None:
                    changes.append((candidate, change))
        active.charges = ()
        return changes

    def settle(self, now: int) -> None:
        """Count for control the failures whose wait for a second opinion or request is over.

        Call it every second; also forgets old witnesses and tenants. Breakers do not change.
        """
        over = [
            charge
            for charge in self._charges
            if now >= charge.due or charge.active.phase is RequestPhase.DONE
        ]
        for charge in over:
            self._tell(charge, now)
        for tenant in [name for name, at in self.tenants.items() if now - at > self._active]:
            del self.tenants[tenant]
        if self._witnesses:
            self._forget_witnesses(now)
        if self._upheld:
            since = now - self._witness
            self._upheld = {name: at for name, at in self._upheld.items() if at[1] >= since}

    def _tell(self, charge: ChargedFailure, now: int) -> None:
        """Count a failure for control, or keep it back until enough tenants say the same."""
        del self._charges[charge]
        candidate, failure = charge.candidate, charge.failure
        if charge.own:
            candidate.withdrawn += 1
            return
        heard = self._witnesses.setdefault(candidate.id, _Witnesses())
        if not self.crowd(now):
            if failure.body is None or failure.body not in heard.last:
                candidate.failed(charge.kind, fast=charge.fast)
            if failure.body is not None:
                heard.saw(failure.body, now)
            return
        heard.saw(failure.tenant, now)
        heard.held.append((now, charge.kind, charge.fast))
        del heard.held[:-_HELD_MAX]
        since = now - self._witness
        if not heard.agree(since):
            return
        for at, kind, fast in heard.held:
            if at >= since:
                candidate.failed(kind, fast=fast)
        heard.held.clear()

    def _forget_witnesses(self, now: int) -> None:
        since = now - self._witness
        for replica_id, heard in list(self._witnesses.items()):
            heard.last = {who: at for who, at in heard.last.items() if at >= since}
            heard.held = [failure for failure in heard.held if failure[0] >= since]
            if not heard.last:
                del self._witnesses[replica_id]


def _digest(content: bytes) -> int:
    """A number that equal bodies share. Kept in memory alone, for seconds: it needs no key."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


__all__ = ["EvidenceConfig", "FailureLedger"]
