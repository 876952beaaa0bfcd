"""Choose the replica with the least work ahead of it, counted in tokens rather than requests.

Ten one-line questions and ten whole books are the same number in flight; in tokens they are not.
The work of a candidate is what its engine last reported queued and running, plus what this gateway
has sent since, plus this request, per weight. The own part bridges the time between two polls:
without it every gateway would send everything to the replica that looked empty at the last one.

An engine that reports nothing is unknown, not idle: its reported part is read as what the known
candidates have per weight on average. With no report at all only the own part is compared, which is
least-in-flight in tokens.

Rejected: ranking by the engine's KV memory in use. It stays high on a replica that caches well and
says nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice
from holdfast.core.types import Request, require

# ruff: noqa: ARG002 - every policy has the signature of the port

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_STEP: Final = 1 / 32  # of the running mean: old reports fade after some thirty looks

_LESS: Final = "less work of two samples"
_LEAST: Final = "least work of all with room"


@dataclass(slots=True, frozen=True)
class TokenWorkConfig:
    """Whether two random candidates are compared or all.

    Checked when built: raises ``ConfigError``.
    """

    look_at: str = "two"  # or "all": O(n), and gateways with the same report act alike

    def __post_init__(self) -> None:
        field, fix = "token_work.look_at", 'use "two" or "all"'
        require(self.look_at in {"two", "all"}, field, f"is {self.look_at!r}", fix)


_DEFAULT: Final = TokenWorkConfig()


class TokenWork:
    """Chooses the replica with the fewest tokens of work for its weight, of two or of all.

    Work is what the engine reported (unknown: the mean) plus what this gateway sent since.
    """

    __slots__ = ("_mean", "_random", "_sampled")
    name = "token_work"

    def __init__(self, rng: Random, config: TokenWorkConfig = _DEFAULT) -> None:
        self._random = rng.random
        self._sampled = config.look_at == "two"
        self._mean: float | None = None  # running mean of reported tokens per weight

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The candidate with the least tokens of work per weight, this request included.

        Compares two random ones, or all where configured or one of the two cannot be used; ``None``
        if none has room.
        """
        size = len(candidates)
        tokens = request.prompt_tokens + request.max_tokens or 1
        if self._sampled and size >= 2:
            index = int(self._random() * size)
            other = int(self._random() * (size - 1))
            first = candidates[index]
            second = candidates[other if other < index else other + 1]
            if (
                first.inflight < first.limit
                and second.inflight < second.limit
                and (not tried or (first.id not in tried and second.id not in tried))
            ):
                if self._work(second, tokens) < self._work(first, tokens):
                    return second, _LESS
                return first, _LESS
        return self._scan(tokens, candidates, tried)

    def _work(self, candidate: Candidate, tokens: int) -> float:
        reported = candidate.reported_tokens
        weight = candidate.weight
        own = (candidate.own_tokens + tokens) / weight
        mean = self._mean
        if reported is None:
            return own if mean is None else mean + own
        queued = reported / weight
        self._mean = queued if mean is None else mean + (queued - mean) * _STEP
        return queued + own

    def _scan(
        self, tokens: int, candidates: Sequence[Candidate], tried: Collection[str]
    ) -> Choice | None:
        """The least of all; equals, which are the rule in an idle pool, are drawn among."""
        least = float("inf")
        tied: list[Candidate] = []
        for candidate in candidates:
            if candidate.inflight >= candidate.limit or (tried and candidate.id in tried):
                continue
            work = self._work(candidate, tokens)
            if work < least:
                least = work
                tied = [candidate]
            elif work == least:
                tied.append(candidate)
        return (tied[int(self._random() * len(tied))], _LEAST) if tied else None


__all__ = ["TokenWork", "TokenWorkConfig"]
