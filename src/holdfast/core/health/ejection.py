"""Limits how much of a pool may be ejected on suspicion; beyond that the pool fails open.

One ill replica is likely; most of a pool ill at once is more likely a broken checker, a slow
network or too much load, and ejecting then turns a slow fleet into none. So at most half of a pool
is out on suspicion. When more is due the pool panics: it fails open, serves with all it has, and
says so. Replicas that are dead, give wrong answers or have another revision are facts, not
suspicions: they count neither as members nor as ejected, and no panic brings them back.

Rejected: a share of the declared count, as common proxies have it. With a zone lost, half of the
declared count is everything that still answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.core.types import Decision, State, require


class PoolMember(Protocol):
    """The fields of a replica that the ejection limit reads; ``ReplicaHealth`` has them."""

    @property
    def replica_id(self) -> str:
        """The replica's id, for the reason text."""

    @property
    def state(self) -> State:
        """The replica's state for the model of this pool."""

    @property
    def on_suspicion(self) -> bool:
        """Whether it is quarantined, and neither for wrong answers nor for its revision."""

    @property
    def held(self) -> bool:
        """Whether its ejection was due and the limit prevented it."""


@dataclass(slots=True, frozen=True)
class EjectionConfig:
    """The share of a pool that may be ejected on suspicion.

    Checked when built: raises ``ConfigError``.
    """

    share_max: float = 0.5  # floor(n/2) of the pool: beyond half, doubt the doubt

    def __post_init__(self) -> None:
        fits = 0 <= self.share_max < 1
        fix = "use a share in [0, 1): a pool must keep somebody"
        require(fits, "ejection.share_max", f"is {self.share_max}", fix)


@dataclass(slots=True, frozen=True)
class Panic:
    """Whether one model's pool fails open, which quarantined replicas serve again, and why."""

    active: bool
    readmitted: tuple[str, ...]  # replica ids in the order of the pool
    reason: str


_COUNTED: Final = (State.READY, State.SUSPECT)
_CALM: Final = Panic(active=False, readmitted=(), reason="within the bound")


def _count(config: EjectionConfig, pool: Sequence[PoolMember]) -> tuple[int, int, int]:
    """Members, how many of them are out on suspicion, and how many may be."""
    out = serving = 0
    for member in pool:
        if member.on_suspicion:
            out += 1
        elif member.state in _COUNTED:
            serving += 1
    members = out + serving
    return members, out, int(config.share_max * members + 1e-9)  # 0.29 x 100 is 28.999… in floats


def may_eject(
    config: EjectionConfig, pool: Sequence[PoolMember], candidate: PoolMember
) -> Decision:
    """Return a ``Decision``: whether the limit lets the candidate be ejected on suspicion.

    Pool is all replicas of one model. True if it is out already. Changes nothing.
    """
    if candidate.on_suspicion:
        return Decision(allowed=True, reason=f"{candidate.replica_id} is out already")
    members, out, bound = _count(config, pool)
    if out < bound:
        return Decision(allowed=True, reason=f"{out} of {members} out on suspicion, {bound} may be")
    return Decision(
        allowed=False,
        reason=f"{out} of {members} are out on suspicion already and at most {bound} may be",
    )


def panic(config: EjectionConfig, pool: Sequence[PoolMember], *, doubtful: bool = False) -> Panic:
    """Return the ``Panic`` of one model's pool: active if more ejections are due than allowed.

    It names the quarantined replicas that serve again; changes no state. ``doubtful``: the canaries
    themselves are not believed, so whatever they put into quarantine serves again.
    """
    members, out, bound = _count(config, pool)
    held = sum(1 for member in pool if member.held and member.state in _COUNTED)
    if not doubtful and out + held <= bound:
        return _CALM
    readmitted = tuple(member.replica_id for member in pool if member.on_suspicion)
    if doubtful and out + held <= bound:
        if not readmitted:
            return _CALM
        reason = f"the canaries are doubtful: {out} of {members} quarantined on them serve again"
    else:
        reason = (
            f"{out} of {members} out on suspicion and {held} more due, with a bound of {bound}: "
            "failing open"
        )
    return Panic(active=True, readmitted=readmitted, reason=reason)


__all__ = ["EjectionConfig", "Panic", "PoolMember", "may_eject", "panic"]
