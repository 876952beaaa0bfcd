"""Decides when one of several controls may act: a lease with terms, held by one at a time.

    look ─► Claim (driver asks the lease's store) ─► answered ─► LEADER of a term, or STANDBY

The store grants the lease to one control at a time and counts terms: each change of holder begins
a new one. A control acts only while it knows, by its own clock, that nobody else can hold the
lease: from the moment *before* it asked until shortly before the lease would end. So a control that
was frozen, or cut off from the store, stops acting by itself, before another one begins.

What was under way at that moment is fenced where it arrives: gateways refuse every frame of a term
below the highest they have heard of. Rejected: a lease alone. A process can be suspended between
looking at the clock and sending, for any time. Rejected: asking the store before each order; then
a slow store would delay every drain and every view.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.core.types import nanos, require, seconds

_FIX: Final = "use 0.1 to 600 seconds"


class LeadershipRole(StrEnum):
    """Whether a control process acts (LEADER) or only waits to take over (STANDBY)."""

    LEADER = "leader"
    STANDBY = "standby"


@dataclass(slots=True, frozen=True)
class LeadershipConfig:
    """How long a lease of the leadership lasts, and how early its holder stops acting.

    Checked when built: raises ``ConfigError``.
    """

    lease_s: float = 5.0  # a standby takes over so long after the last renewal
    claim_s: float = 1.0  # between two claims: several may fail before a lease is lost
    margin_s: float = 1.5  # the holder stops so long before the end: its last orders are on the way

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            require(0.1 <= value <= 600, f"leadership.{name}", f"is {value}", _FIX)
        spare = self.lease_s - self.margin_s
        fix = "leave at least two claims between: a lease_s above margin_s + 2 × claim_s"
        fits = spare > 2 * self.claim_s
        require(fits, "leadership.lease_s", f"is {self.lease_s}", fix)


@dataclass(slots=True, frozen=True)
class LeaseAnswer:
    """What the store said to one claim: who holds the lease now, in which term, and if it is us."""

    holder: str
    term: int
    held: bool  # by whoever asked


class Leadership:
    """One control's view of who leads.

    It only keeps times: the driver claims the lease at the store and reports the answers.
    """

    __slots__ = ("_acts_until", "_asked_at", "_claim", "_due", "_lasts", "_name", "leader", "term")

    def __init__(self, config: LeadershipConfig, name: str, now: int) -> None:
        self._name = name
        self._claim = nanos(config.claim_s)
        self._lasts = nanos(config.lease_s - config.margin_s)
        self._due = now
        self._asked_at: int | None = None  # of the claim that is under way
        self._acts_until = now  # by our own clock
        self.term = 0  # of our own lease, while we hold it; else the last that we heard of
        self.leader = ""  # who holds the lease, as far as we know; empty: unknown

    def role(self, now: int) -> LeadershipRole:
        """Return LEADER if this control may act now, else STANDBY. Ask it before each order.

        By its own clock, a margin before its lease at the store ends.
        """
        return LeadershipRole.LEADER if now < self._acts_until else LeadershipRole.STANDBY

    def claim_due(self, now: int) -> bool:
        """Whether the lease is to be claimed (or renewed) now; the claim is then under way."""
        if self._asked_at is not None or now < self._due:
            return False
        self._asked_at, self._due = now, now + self._claim
        return True

    def answered(self, answer: LeaseAnswer | None, now: int) -> None:
        """Take the store's answer to the claim; None: the store did not answer.

        A granted claim prolongs the time to act, counted from when it was made; a refused one ends
        it; None changes nothing.
        """
        asked_at, self._asked_at = self._asked_at, None
        if asked_at is None or answer is None:
            return
        if not answer.held:
            self._acts_until = min(self._acts_until, now)
            self.leader, self.term = answer.holder, max(self.term, answer.term)
            return
        if answer.term < self.term:
            return  # an answer from the past of a store that lost what it had said
        if answer.term > self.term or self.leader != self._name:
            self.leader, self.term = self._name, answer.term
            self._acts_until = asked_at
        self._acts_until = max(self._acts_until, asked_at + self._lasts)

    def resign(self, now: int) -> None:
        """Stop acting at once. The lease at the store is not given back here."""
        self._acts_until = min(self._acts_until, now)

    def left_s(self, now: int) -> float:
        """For how many seconds this control may still act without another renewal."""
        return max(0.0, seconds(self._acts_until - now))


__all__ = ["Leadership", "LeadershipConfig", "LeadershipRole", "LeaseAnswer"]
