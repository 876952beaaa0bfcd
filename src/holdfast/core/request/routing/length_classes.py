"""Keep long prompts away from short ones.

One prompt of a hundred thousand tokens holds up everything batched beside it: short requests then
wait for prefill that is not theirs. A share of the candidates, the same on every gateway because it
goes by the order of ids, is reserved for prompts above ``long_tokens``; the rest serves the short
ones. Either side uses the other when nobody of its own can take the request: separation is a
preference, refusing work is not. Each side has its own inner policy, so that neither disturbs what
the other remembers.

Rejected: learning the boundary from the traffic. It would differ between gateways and move the
classes under the engines' caches; an operator knows which length hurts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice, RoutingPolicy
from holdfast.core.types import Request, require

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_LONG: Final = "kept for long prompts"
_SHORT: Final = "kept for short prompts"
_SPILLED: Final = "other length class, its own has no room"


@dataclass(slots=True, frozen=True)
class LengthClassesConfig:
    """From which length a prompt is long, and which share of replicas is kept for those.

    Checked when built: raises ``ConfigError``.
    """

    long_tokens: int = 8192  # prompt tokens: about a second of prefill on one current GPU
    long_share: float = 0.25  # of the candidates, at least one while there are two

    def __post_init__(self) -> None:
        field, fix = "length_classes.long_tokens", "use at least 1 token"
        require(self.long_tokens >= 1, field, f"is {self.long_tokens}", fix)
        field, fix = "length_classes.long_share", "use a share above 0 and below 1"
        require(0 < self.long_share < 1, field, f"is {self.long_share}", fix)


_DEFAULT: Final = LengthClassesConfig()


class LengthClasses:
    """Prefers separate replicas for long and short prompts, each class with its own inner policy.

    A class with no room uses the other's replicas.
    """

    __slots__ = ("_list", "_long", "_long_tokens", "_share", "_short", "_size", "_spilled")
    name = "length_classes"

    def __init__(
        self,
        short: RoutingPolicy,
        long: RoutingPolicy,
        config: LengthClassesConfig = _DEFAULT,
    ) -> None:
        self._short = _Side(short, _SHORT)
        self._long = _Side(long, _LONG)
        self._long_tokens = config.long_tokens
        self._share = config.long_share
        self._list: Sequence[Candidate] = ()
        self._size = 0
        self._spilled = 0

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The choice among the replicas of the prompt's own class, else among the other class's.

        ``None`` if neither has room. Classes are by the order of replica ids, the same in each
        gateway.
        """
        if candidates is not self._list or len(candidates) != self._size:
            self._split(candidates)
        if request.prompt_tokens > self._long_tokens:
            own, other = self._long, self._short
        else:
            own, other = self._short, self._long
        choice = own.inner.choose(request, own.members, tried, now)
        if choice is not None:
            return choice[0], own.reason
        choice = other.inner.choose(request, other.members, tried, now)
        if choice is None:
            return None
        self._spilled += 1
        return choice[0], _SPILLED

    def _split(self, candidates: Sequence[Candidate]) -> None:
        self._list, self._size = candidates, len(candidates)
        by_id = sorted(candidates, key=lambda candidate: candidate.id)
        kept = min(max(1, round(self._share * len(by_id))), max(0, len(by_id) - 1))
        self._long.members = by_id[:kept]
        self._short.members = by_id[kept:]


class _Side:
    """One length class: the replicas that serve it, and the policy that chooses among them."""

    __slots__ = ("inner", "members", "reason")

    def __init__(self, inner: RoutingPolicy, reason: str) -> None:
        self.inner = inner
        self.reason = reason
        self.members: list[Candidate] = []


__all__ = ["LengthClasses", "LengthClassesConfig"]
