"""Do not send work where the memory for it is almost gone.

A replica whose KV memory is nearly full still answers its health check and looks idle to a count of
requests: a few very long prompts fill it. The next request waits there for memory, or pushes
others out. So whoever an inner policy chooses is looked at once more: above ``danger`` it is passed
over and the inner policy chooses again without it, a few times; if all of those are full, the one
with most memory left is taken. What an engine does not report is unknown: neither full nor empty.

Rejected: weighing memory into a cost with latency and load. Below the danger line memory says
nothing about speed, above it nothing else matters: it is a threshold, not a price.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice, RoutingPolicy
from holdfast.core.types import Request, require

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_PASSED_OVER: Final = "chosen after one that is nearly out of memory"
_ALL_FULL: Final = "nearly out of memory, with most left of those looked at"


@dataclass(slots=True, frozen=True)
class KvHeadroomConfig:
    """From which memory use a replica is passed over, and how often to look for another.

    Checked when built: raises ``ConfigError``.
    """

    danger: float = 0.9  # share of KV memory: engines begin to preempt a little above
    looks: int = 3  # choices per request: with half a pool full, seven of eight find room

    def __post_init__(self) -> None:
        field, fix = "kv_headroom.danger", "use a share above 0, up to 1"
        require(0 < self.danger <= 1, field, f"is {self.danger}", fix)
        field, fix = "kv_headroom.looks", "use 1 to 16"
        require(1 <= self.looks <= 16, field, f"is {self.looks}", fix)


_DEFAULT: Final = KvHeadroomConfig()


class KvHeadroom:
    """Lets an inner policy choose again while the chosen replica's KV memory is nearly full."""

    __slots__ = ("_danger", "_full", "_inner", "_looks", "_passed_over")
    name = "kv_headroom"

    def __init__(self, inner: RoutingPolicy, config: KvHeadroomConfig = _DEFAULT) -> None:
        self._inner = inner
        self._danger = config.danger
        self._looks = config.looks
        self._passed_over = 0
        self._full = 0

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The inner policy's choice, asked again while its KV memory is nearly full.

        Unknown memory is not full. If all looks find full ones, the one with most memory left is
        taken; ``None`` only where the inner policy finds nobody.
        """
        choice = self._inner.choose(request, candidates, tried, now)
        if choice is None:
            return None
        used = choice[0].kv_used
        if used is None or used < self._danger:
            return choice
        return self._look_on(choice[0], request, candidates, tried, now)

    def _look_on(
        self,
        first: Candidate,
        request: Request,
        candidates: Sequence[Candidate],
        tried: Collection[str],
        now: int,
    ) -> Choice:
        roomiest = first
        passed = (*tried, first.id)
        for _ in range(self._looks - 1):
            choice = self._inner.choose(request, candidates, passed, now)
            if choice is None:
                break
            candidate = choice[0]
            used = candidate.kv_used
            if used is None or used < self._danger:
                self._passed_over += 1
                return candidate, _PASSED_OVER
            if used < (roomiest.kv_used or 0.0):
                roomiest = candidate
            passed = (*passed, candidate.id)
        self._full += 1
        return roomiest, _ALL_FULL


__all__ = ["KvHeadroom", "KvHeadroomConfig"]
