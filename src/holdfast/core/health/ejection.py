"""How much of a pool may be taken out on suspicion, and when to stop believing the suspicion.

One ill replica is likely; most of a pool ill at once is more likely a broken checker, a slow
network or too much load, and ejecting then turns a slow fleet into none. So at most half of a pool
is out on suspicion. When more is due the pool panics: it fails open, serves with all it has, and
says so. The dead, the liars and those of another revision are facts, not suspicions: they count
neither as members nor as ejected, and no panic brings them back.

Rejected: a share of the declared count, as common proxies have it. With a zone lost, half of the
declared count is everything that still answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from holdfast.core.types import SECOND, Decision, State, require

ERROR: Final = "error"  # a canary that failed because the engine said that it fails (5xx)
# Word of users comes with a summary, up to a second late, and one long prompt can hold a whole
# batch for another: in this beginning of a canary's wait, half of it at most, peers prove nothing.
_BEGINNING: Final = 2 * SECOND


class Member(Protocol):
    """What the bound needs to know of one replica; ``ReplicaHealth`` is one."""

    @property
    def replica_id(self) -> str:
        """Its name, for the reason."""

    @property
    def state(self) -> State:
        """Its state for the model of this pool."""

    @property
    def on_suspicion(self) -> bool:
        """Quarantined, and neither for lies nor for its revision."""

    @property
    def held(self) -> bool:
        """Its ejection was due and the bound held it back."""


@dataclass(slots=True, frozen=True)
class EjectionConfig:
    """How much doubt a pool can afford."""

    share_max: float = 0.5  # floor(n/2) of the pool: beyond half, doubt the doubt

    def __post_init__(self) -> None:
        fits = 0 <= self.share_max < 1
        fix = "use a share in [0, 1): a pool must keep somebody"
        require(fits, "ejection.share_max", f"is {self.share_max}", fix)


@dataclass(slots=True, frozen=True)
class Panic:
    """Whether the pool fails open, whom that brings back, and why."""

    active: bool
    readmitted: tuple[str, ...]  # replica ids in the order of the pool
    reason: str


_COUNTED: Final = (State.READY, State.SUSPECT)
_CALM: Final = Panic(active=False, readmitted=(), reason="within the bound")
_EVERYBODY_SILENT: Final = Decision(
    allowed=False, reason="none of its peers was heard of either: the silence may be everybody's"
)
_NO_PEERS: Final = Decision(allowed=True, reason="it has no peers to compare with")
_NO_WITNESS: Final = Decision(
    allowed=False, reason="no peer gave the expected answer lately: the answer may be at fault"
)


def _count(config: EjectionConfig, pool: Sequence[Member]) -> tuple[int, int, int]:
    """Members, how many of them are out on suspicion, and how many may be."""
    out = serving = 0
    for member in pool:
        if member.on_suspicion:
            out += 1
        elif member.state in _COUNTED:
            serving += 1
    members = out + serving
    return members, out, int(config.share_max * members + 1e-9)  # 0.29 x 100 is 28.999… in floats


def may_eject(config: EjectionConfig, pool: Sequence[Member], candidate: Member) -> Decision:
    """Whether the candidate may be taken out on suspicion. Asking changes nothing."""
    if candidate.on_suspicion:
        return Decision(allowed=True, reason=f"{candidate.replica_id} is out already")
    members, out, bound = _count(config, pool)
    if out < bound:
        return Decision(allowed=True, reason=f"{out} of {members} out on suspicion, {bound} may be")
    return Decision(
        allowed=False,
        reason=f"{out} of {members} are out on suspicion already and at most {bound} may be",
    )


def panic(config: EjectionConfig, pool: Sequence[Member], *, doubtful: bool = False) -> Panic:
    """Whether more is due to go than may go; then the suspects come back.

    ``doubtful`` says that the canaries themselves are not believed: then whatever they put into
    quarantine serves again, though its state is held.
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


@dataclass(slots=True, frozen=True)
class CanaryResult:
    """The latest canary of one replica: when it ended, whether it passed, and its verdict."""

    replica_id: str
    at: int
    passed: bool
    verdict: str = ""  # as the message that told of it has it, or ERROR


class Suspect(StrEnum):
    """What is behind canaries that all fail, more likely than each replica for itself."""

    NOBODY = "nobody"  # they do not all fail
    CHECKER = "checker"  # replicas said something, and it is not what is expected
    SHARED = "shared"  # nothing came back: something that they share stands still
    ENGINES = "engines"  # they say of themselves that they fail


@dataclass(slots=True, frozen=True)
class Doubt:
    """Whether canaries are not believed for a while: whoever fails then is not judged by them."""

    held: bool
    reason: str
    of: Suspect = Suspect.NOBODY

    def __bool__(self) -> bool:
        return self.held


_TRUSTED: Final = Doubt(held=False, reason="canaries disagree: at least one passes")
_TOO_FEW: Final = Doubt(held=False, reason="fewer than two replicas answered canaries")


def canaries_doubtful(
    results: Sequence[CanaryResult], now: int, period: int, *, members: int
) -> Doubt:
    """Whether to suspect what the canaries share instead of each replica.

    ``results`` holds the latest result of each replica that could have passed (the dead are no
    witnesses); ``members`` is how many such replicas there are; ``period`` is the longest time
    between two canaries of a well replica, jitter and duration included. It is doubtful when every
    one of at least two failed within it: one that was not asked lately might still pass. One that
    refused its connection was not asked anything, and could not have passed.
    """
    asked = [one for one in results if one.verdict != "refused"]
    members -= len(results) - len(asked)
    recent = [one for one in asked if 0 <= now - one.at <= period]
    if any(result.passed for result in recent):
        return _TRUSTED
    if len(recent) < 2:
        return _TOO_FEW
    if len(recent) < members:
        reason = f"{len(recent)} of {members} failed, the others have not been asked lately"
        return Doubt(held=False, reason=reason)
    silent = sum(one.verdict == "timeout" for one in recent)
    errors = sum(one.verdict == ERROR for one in recent)
    if len(recent) - silent - errors >= 2:
        of, told = Suspect.CHECKER, "suspect the expected answer or the checker, not the replicas"
    elif errors > silent:
        of, told = Suspect.ENGINES, "the engines themselves say that they fail"
    else:
        of, told = Suspect.SHARED, "nothing came back: suspect what they share before each of them"
    reason = f"all {len(recent)} canaries failed within one period: {told}"
    return Doubt(held=True, reason=reason, of=of)


def may_condemn(
    results: Sequence[CanaryResult], candidate_id: str, now: int, period: int, *, members: int
) -> Decision:
    """Whether the candidate may be put out for lies, which no panic takes back.

    That grave a verdict needs a witness: a peer that gave the expected answer lately. Without one
    the expected answer itself may be the lie, and it would empty the pool one by one. A replica
    without peers has no witness to wait for: no answer is better than a wrong one.
    """
    if members <= 1:
        return _NO_PEERS
    for result in results:
        recent = 0 <= now - result.at <= period
        if result.passed and recent and result.replica_id != candidate_id:
            return Decision(allowed=True, reason=f"{result.replica_id} gave the expected answer")
    return _NO_WITNESS


def may_blame_silence(peers_heard_at: Sequence[int], began: int, now: int) -> Decision:
    """Whether the silence of one replica since its canary began is its own.

    One stalled canary is enough for an ejection, so it must not be everybody's: a network, a
    platform or a host that stands still silences all, and who was asked first is not sicker.
    """
    if not peers_heard_at:
        return _NO_PEERS
    since = began + min(_BEGINNING, (now - began) // 2)
    heard = sum(1 for at in peers_heard_at if at >= since)
    if heard:
        return Decision(allowed=True, reason=f"{heard} of its peers were heard of meanwhile")
    return _EVERYBODY_SILENT


__all__ = [
    "ERROR",
    "CanaryResult",
    "Doubt",
    "EjectionConfig",
    "Member",
    "Panic",
    "Suspect",
    "canaries_doubtful",
    "may_blame_silence",
    "may_condemn",
    "may_eject",
    "panic",
]
