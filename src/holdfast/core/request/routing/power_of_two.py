"""Look at two at random, take the better: nearly as good as looking at all, and never a herd.

The cost of a candidate is ``latency * (in flight + 1) / weight``: how long this request
would wait if the replica went on as it did lately. The peak-EWMA rises at once when a replica slows
down, so it loses traffic within a few answers, and the count in flight shows a hang before any
latency does. Prompts that wait for their first token can count once more, by their length
(``prompt_tokens``): where engines read prompts one after the other and those come in bursts,
answers being written hardly delay a first token. Not by default: where a replica has slots that do
not disturb each other, a long prompt would count for sixty requests, and others be overfilled.

What would make a bad replica attractive is taken out. A latency nobody has measured yet is read as
the pool's typical one: zero would flood every newcomer, infinity would starve it. A latency far
below the typical one is read as ``latency_floor`` of it: who fails in a millisecond is not fast,
and callers say so with ``latency.penalise``. Costs that differ by less than ``indifference`` are
equal, or microseconds would rank an idle fleet and its last member would get nothing. And one
choice in fifty takes the first sample as it comes, because a latency is only measured where a
request goes: after one slow answer an unvisited replica would be thought slow for ever.

Rejected: least latency over all. Every gateway runs after the same replica, which is then the
slowest; and O(n).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice, may_take
from holdfast.core.types import Request, require

# ruff: noqa: ARG002 - every policy has the signature of the port

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_UP: Final = 1.02  # a step of the typical latency: doubles in 35 looks, jitters by 2 %
_DOWN: Final = 1.0 / _UP
_LEAST: Final = 1e-9  # in any unit: a latency of zero would make every load equal

_CHEAPER: Final = "cheaper of two samples"
_FIRST: Final = "first of two samples, the second no cheaper"
_EXPLORED: Final = "sampled to refresh its latency"
_ONLY: Final = "the only one of two samples with room"
_CHEAPEST: Final = "cheapest of the samples"
_WITH_ROOM: Final = "cheaper sample of the few with room"


@dataclass(slots=True, frozen=True)
class PowerOfTwoConfig:
    """How many candidates are sampled, and by what they are compared.

    Checked when built: raises ``ConfigError``.
    """

    by: str = "latency"  # or "inflight": queue length alone, as in the textbook
    choices: int = 2  # samples; a third gains little
    latency_floor: float = 0.25  # of the typical latency: how fast a replica can look at most
    indifference: float = 0.05  # share of a cost: smaller differences are noise of measurement
    explore: float = 0.02  # share of choices; 64 replicas at 100/s are each seen within a minute
    prompt_tokens: int = 0  # that wait and count as one request more, such as 512; 0: none do

    def __post_init__(self) -> None:
        field, fix = "power_of_two.by", 'use "latency" or "inflight"'
        require(self.by in {"latency", "inflight"}, field, f"is {self.by!r}", fix)
        field, fix = "power_of_two.choices", "use at least 2; for 1 use the weighted policy"
        require(self.choices >= 2, field, f"is {self.choices}", fix)
        field, fix = "power_of_two.latency_floor", "use a share above 0, up to 1"
        require(0 < self.latency_floor <= 1, field, f"is {self.latency_floor}", fix)
        field, fix = "power_of_two.indifference", "use a share from 0 to below 1"
        require(0 <= self.indifference < 1, field, f"is {self.indifference}", fix)
        field, fix = "power_of_two.explore", "use a share from 0 to 0.5"
        require(0 <= self.explore <= 0.5, field, f"is {self.explore}", fix)
        field, fix = "power_of_two.prompt_tokens", "use 0 or more tokens, such as 512"
        require(self.prompt_tokens >= 0, field, f"is {self.prompt_tokens}", fix)


_DEFAULT: Final = PowerOfTwoConfig()


class PowerOfTwo:
    """Chooses the cheaper of two candidates drawn at random; the default policy.

    Cost is latency × (in flight + 1) / weight. One choice in fifty takes the first drawn, to
    measure it.
    """

    __slots__ = (
        *("_blind", "_choices", "_explore", "_floor", "_keep", "_per_token", "_random", "_rng"),
        "_typical",
    )
    name = "power_of_two"

    def __init__(self, rng: Random, config: PowerOfTwoConfig = _DEFAULT) -> None:
        self._rng = rng
        self._random = rng.random
        self._blind = config.by == "inflight"
        self._choices = config.choices
        self._floor = config.latency_floor
        self._keep = 1.0 if self._blind else 1.0 - config.indifference
        self._explore = 0.0 if self._blind else config.explore
        counted = config.prompt_tokens and not self._blind
        self._per_token = 1.0 / config.prompt_tokens if counted else 0.0  # requests
        self._typical = 0.0  # running median of the latencies looked at; 0 = none seen yet

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The cheaper of two random candidates; among all with room where those two cannot be used.

        ``None`` if all are full or in ``tried``.
        """
        size = len(candidates)
        if size < 2 or self._choices != 2:
            return self._choose_of_many(candidates, tried)
        place = self._random() * size
        index = int(place)
        other = int(self._random() * (size - 1))
        first = candidates[index]
        second = candidates[other if other < index else other + 1]
        inflight = first.inflight
        second_inflight = second.inflight
        if (
            inflight >= first.limit
            or second_inflight >= second.limit
            or (tried and (first.id in tried or second.id in tried))
        ):
            return self._fall_back(first, second, candidates, tried)
        per_token = self._per_token
        cost = (inflight + 1 + first.prefill_tokens * per_token) / first.weight
        second_cost = (second_inflight + 1 + second.prefill_tokens * per_token) / second.weight
        if not self._blind:
            if place - index < self._explore and first.weight >= second.weight:
                return first, _EXPLORED
            typical = self._typical
            latency = first.latency.value
            second_latency = second.latency.value
            if latency is None or second_latency is None or typical == 0.0:
                cost *= self._read(latency)
                second_cost *= self._read(second_latency)
            else:  # as _read does; written out, it saves a quarter of the whole choice
                self._typical = typical * (_UP if latency > typical else _DOWN)
                floor = typical * self._floor
                cost *= latency if latency > floor else floor
                second_cost *= second_latency if second_latency > floor else floor
        if second_cost < cost * self._keep:
            return second, _CHEAPER
        return first, _FIRST

    def _read(self, latency: float | None) -> float:
        """A latency as it counts: unknown is typical, and nobody is faster than the floor."""
        typical = self._typical
        if latency is None:
            return typical or 1.0
        if typical == 0.0:
            typical = max(latency, _LEAST)
        self._typical = typical * (_UP if latency > typical else _DOWN)
        return max(latency, typical * self._floor)

    def _cheapest(self, samples: Sequence[Candidate]) -> Candidate:
        chosen = samples[0]
        least = self._cost(chosen)
        for candidate in samples[1:]:
            cost = self._cost(candidate)
            if cost < least * self._keep:
                chosen, least = candidate, cost
        return chosen

    def _cost(self, candidate: Candidate) -> float:
        latency = 1.0 if self._blind else self._read(candidate.latency.value)
        load = candidate.inflight + 1 + candidate.prefill_tokens * self._per_token
        return latency * load / candidate.weight

    def _fall_back(
        self,
        first: Candidate,
        second: Candidate,
        candidates: Sequence[Candidate],
        tried: Collection[str],
    ) -> Choice | None:
        if may_take(first, tried):
            return first, _ONLY
        if may_take(second, tried):
            return second, _ONLY
        return self._choose_with_room(candidates, tried)

    def _choose_with_room(
        self, candidates: Sequence[Candidate], tried: Collection[str]
    ) -> Choice | None:
        """Sample again from the candidates with room; O(n), when few are left."""
        free = [candidate for candidate in candidates if may_take(candidate, tried)]
        if not free:
            return None
        return self._cheapest(self._rng.sample(free, min(self._choices, len(free)))), _WITH_ROOM

    def _choose_of_many(
        self, candidates: Sequence[Candidate], tried: Collection[str]
    ) -> Choice | None:
        """Any number of samples, or a pool too small to sample from."""
        if len(candidates) > self._choices:
            samples = self._rng.sample(candidates, self._choices)
            usable = [candidate for candidate in samples if may_take(candidate, tried)]
            if usable:
                return self._cheapest(usable), _CHEAPEST
        return self._choose_with_room(candidates, tried)


__all__ = ["PowerOfTwo", "PowerOfTwoConfig"]
