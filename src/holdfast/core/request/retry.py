"""Retries: whether a failed attempt gets another one, within caps, a budget and the deadline.

One request may be tried again a fixed number of times, only where the failure says that another
replica may do better, and never past its deadline. Over the fleet all retries share a budget: a
share of the recent requests plus a small floor, so that a quiet fleet may still retry. When every
attempt fails, the load grows by that share and no further. Waits are drawn from the whole range
between zero and a doubling bound (full jitter): retries of one shared failure spread out in time.

A refused connection and a pooled socket that died before it carried a byte did no work anywhere.
The next attempt after one of these is free, once per request: it costs neither budget nor one of
the attempts, and goes at once. Twice would be a way around every bound when a whole zone is gone.

Rejected: a per-request cap alone. Two attempts each double the load exactly when there is least to
give, and three layers of such clients make it eight. Rejected: a token bucket filled by successes.
It empties fastest when a few clients fail for reasons of their own, and says nothing one can state
as "at most so many per window", which is what the bound of a window says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, NamedTuple

from holdfast.core.failure import MEANINGS, Kind
from holdfast.core.stats import RateWindow
from holdfast.core.types import Decision, nanos, require, seconds

_BUCKETS: Final = 20  # the budget is exact to a twentieth of its window, always on the lower side


@dataclass(slots=True, frozen=True)
class RetryConfig:
    """Settings: how often one request, and all requests together, may be tried again.

    Checked when built: raises ``ConfigError``.
    """

    attempts: int = 2  # in all: the second catches a bad replica, a third rarely finds a good one
    continuations: int = 2  # of one stream: two replicas may die under a long answer
    moves: int = 2  # of one request without content, away from replicas that will not answer
    budget_ratio: float = 0.2  # of the requests in the window: the most the load may grow by
    budget_window_s: float = 10.0  # seconds: outlives a replica's restart, forgets an incident soon
    budget_floor_per_s: float = 10.0  # retries per second: at low rates a share would round to none
    backoff_base_s: float = 0.05  # seconds: the first wait is at most this; a blip is shorter
    backoff_max_s: float = 1.0  # seconds: people are waiting
    backoff: Literal["full jitter", "none"] = "full jitter"  # none: only to compare in simulation
    budget: bool = True  # False: unbounded retries, only to compare in simulation

    def __post_init__(self) -> None:
        fix = "use 1 (no retry) to 100"
        require(1 <= self.attempts <= 100, "retry.attempts", f"is {self.attempts}", fix)
        made, fix = self.continuations, "use 0 (none) to 100"
        require(0 <= made <= 100, "retry.continuations", f"is {made}", fix)
        moved, fix = self.moves, "use 0 (each waits for its own deadline) to 100"
        require(0 <= moved <= 100, "retry.moves", f"is {moved}", fix)
        ratio, fix = self.budget_ratio, "use a share from 0 to 1"
        require(0 <= ratio <= 1, "retry.budget_ratio", f"is {ratio}", fix)
        window, fix = self.budget_window_s, "use 0.1 s to an hour, 3600 s"
        require(0.1 <= window <= 3_600, "retry.budget_window_s", f"is {window}", fix)
        floor, fix = self.budget_floor_per_s, "use 0 to 1000000 retries per second"
        require(0 <= floor <= 1_000_000, "retry.budget_floor_per_s", f"is {floor}", fix)
        base, fix = self.backoff_base_s, "use 0 s to an hour, 3600 s"
        require(0 <= base <= 3_600, "retry.backoff_base_s", f"is {base}", fix)
        longest, fix = self.backoff_max_s, f"use retry.backoff_base_s, {base}, to 3600 s"
        require(base <= longest <= 3_600, "retry.backoff_max_s", f"is {longest}", fix)
        shape, fix = self.backoff, "use 'full jitter' or 'none'"
        require(shape in {"full jitter", "none"}, "retry.backoff", f"is {shape!r}", fix)


class RetryDecision(NamedTuple):
    """Whether to try again, after which delay (ns), and why; its truth value is ``allowed``.

    A ``free`` retry costs neither budget nor an attempt, and is granted once per request.
    """

    allowed: bool
    delay: int  # nanoseconds to wait first
    free: bool  # True: costs neither budget nor an attempt; not again for this request
    reason: str

    def __bool__(self) -> bool:
        return self.allowed


_IN_BUDGET: Final = Decision(True, "within the retry budget")
_OVER_BUDGET: Final = Decision(False, "retry budget spent")

_FREE: Final = RetryDecision(True, 0, True, "no byte was answered: free, once")
_CONTINUE: Final = RetryDecision(True, 0, False, "stream continued within the retry budget")
_FINAL: Final = RetryDecision(False, 0, False, "another replica would do no better")
_NO_ATTEMPTS: Final = RetryDecision(False, 0, False, "all attempts used")
_NO_CONTINUATIONS: Final = RetryDecision(False, 0, False, "all continuations used")
_NO_TIME: Final = RetryDecision(False, 0, False, "no time left before the deadline")
_NO_BUDGET: Final = RetryDecision(False, 0, False, _OVER_BUDGET.reason)


class RetryBudget:
    """The budget of retries that all requests of one gateway share.

    The retries of the last window are at most a ratio of its requests plus a floor; ``on_request``
    counts a request.
    """

    __slots__ = (
        "_enabled",
        "_floor",
        "_floor_whole",
        "_ratio",
        "_requests",
        "_retries",
        "on_request",
    )

    def __init__(self, config: RetryConfig) -> None:
        bucket = -(-nanos(config.budget_window_s) // _BUCKETS)  # up: grants cover a whole window
        self._enabled = config.budget
        self._ratio = config.budget_ratio
        self._floor_whole = config.budget_floor_per_s * config.budget_window_s
        self._floor = self._floor_whole  # this gateway's part
        self._requests = RateWindow(config.budget_window_s, _BUCKETS)
        self.on_request: Callable[[int], None] = self._requests.add  # a client's request earns
        self._retries = RateWindow(seconds(bucket * (_BUCKETS + 1)), _BUCKETS + 1)

    def lease(self, share: float) -> None:
        """Set this gateway's share (0 to 1) of the budget's floor.

        The ratio of its own requests stays.
        """
        self._floor = self._floor_whole * share

    def would_allow(self, now: int) -> bool:
        """Whether one more retry is within the budget; claims nothing."""
        if not self._enabled:
            return True
        earned = self._ratio * self._requests.total(now) + self._floor
        return self._retries.total(now) + 1 <= earned

    def take(self, now: int) -> Decision:
        """Spend one retry of the budget if there is one; return a ``Decision``, false where not."""
        if not self.would_allow(now):
            return _OVER_BUDGET
        self._retries.add(now)
        return _IN_BUDGET


class Retry:
    """Decides whether and when a failed attempt is followed by another; starts none itself."""

    __slots__ = (
        "_attempts_max",
        "_continuations_max",
        "_counts",
        "_delay_bounds",
        "_moves_max",
        "_rng",
        "budget",
    )

    def __init__(self, config: RetryConfig, budget: RetryBudget, rng: Random) -> None:
        self.budget = budget
        self._attempts_max = config.attempts
        self._continuations_max = config.continuations
        self._moves_max = config.moves
        base, longest = nanos(config.backoff_base_s), nanos(config.backoff_max_s)
        if config.backoff == "none":
            base = longest = 0
        self._delay_bounds = tuple(  # by attempts made; doubling from the first retry on
            min(base << max(0, made - 1), longest) for made in range(config.attempts)
        )
        self._rng = rng
        self._counts: dict[str, int] = {}  # by reason; the reasons are the constants above

    def decide(
        self, kind: Kind, *, attempts_made: int, free_used: bool, deadline: int, now: int
    ) -> RetryDecision:
        """Return the ``RetryDecision`` after an attempt ended with ``kind`` before any content.

        A retry that is allowed and not free is taken from the budget here. ``attempts_made`` counts
        the attempts that cost, the failed one included; ``free_used`` says that the one free retry
        was used.
        """
        return self._counted(self._decide(kind, attempts_made, free_used, deadline, now))

    def decide_continuation(
        self, *, continuations_made: int, deadline: int, now: int
    ) -> RetryDecision:
        """Return the ``RetryDecision`` for a stream that broke after its first content.

        If allowed, it is continued elsewhere and taken from the retry budget; it never waits.
        """
        if continuations_made >= self._continuations_max:
            return self._counted(_NO_CONTINUATIONS)
        if now >= deadline:
            return self._counted(_NO_TIME)
        return self._counted(_CONTINUE if self.budget.take(now) else _NO_BUDGET)

    def may_move(self, moves_made: int, deadline: int, now: int) -> bool:
        """Whether a request may still be moved off a lost replica: by its moves and its deadline.

        Does not look at the budget and claims nothing; attempts used up do not matter.
        """
        return moves_made < self._moves_max and now < deadline

    def may_retry(self, attempts_made: int, deadline: int, now: int) -> bool:
        """Whether one more attempt may be made: by attempts, deadline and budget; claims nothing.

        ``attempts_made`` counts the attempts that cost, the present one included.
        """
        left = attempts_made < self._attempts_max and now < deadline
        return left and self.budget.would_allow(now)

    def _decide(
        self, kind: Kind, attempts_made: int, free_used: bool, deadline: int, now: int
    ) -> RetryDecision:
        meaning = MEANINGS[kind]
        if not meaning.retryable:
            return _FINAL
        if now >= deadline:
            return _NO_TIME
        if meaning.free and not free_used:
            return _FREE
        if attempts_made >= self._attempts_max:
            return _NO_ATTEMPTS
        delay = int(self._rng.random() * self._delay_bounds[attempts_made])
        if now + delay >= deadline:
            return _NO_TIME
        if not self.budget.take(now):
            return _NO_BUDGET
        return RetryDecision(True, delay, False, _IN_BUDGET.reason)

    def _counted(self, decision: RetryDecision) -> RetryDecision:
        self._counts[decision.reason] = self._counts.get(decision.reason, 0) + 1
        return decision


__all__ = ["Retry", "RetryBudget", "RetryConfig", "RetryDecision"]
