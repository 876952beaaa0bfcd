"""Hedging: a second attempt beside a late first one, made from spare capacity only.

Most late first tokens are bad luck of one replica; asking another one as well and taking whoever
answers first cuts the tail. But a hedge is load, and load is what makes answers late: so hedging is
off unless asked for, waits until the first token is later than most, is capped to a small share of
the requests, and never happens while anything is queued or capacity is scarce or unknown.

Rejected: hedging at once and cancelling the loser. It doubles the load, and prefill, the costly
part of a late first token, cannot be taken back.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.core.request.active_request import ActiveRequest
from holdfast.core.request.deadlines import Deadlines
from holdfast.core.stats import RateWindow
from holdfast.core.types import Decision, nanos, require

_WINDOW_S: Final = 10.0  # as for the retry budget: long enough to average, short enough to react

_ALLOWED: Final = Decision(True, "spare capacity and within the cap")
_OFF: Final = Decision(False, "hedging is off")
_QUEUED: Final = Decision(False, "requests are queued")
_UNKNOWN: Final = Decision(False, "utilisation is unknown")
_BUSY: Final = Decision(False, "utilisation leaves no spare capacity")
_CAPPED: Final = Decision(False, "the cap on hedges is reached")


@dataclass(slots=True, frozen=True)
class HedgeConfig:
    """Settings: when a second attempt may be made while the first still runs, and how many.

    Off by default. Checked when built: raises ``ConfigError``.
    """

    enabled: bool = False  # costs capacity; the operator must want it
    quantile: float = 0.95  # of the first token; a hedge starts when it is later than this
    samples_min: int = 100  # below, a p95 is a guess
    delay_floor_s: float = 0.05  # a fast pool must not hedge on scheduling noise
    share_max: float = 0.05  # hedges per request; matches the share that is later than p95
    burst: int = 2  # hedges per window beyond the share, so that a quiet pool can hedge at all
    utilisation_max: float = 0.7  # above, queueing grows faster than a hedge helps

    def __post_init__(self) -> None:
        q, share, limit = self.quantile, self.share_max, self.utilisation_max
        require(0.5 <= q < 1, "hedge.quantile", f"is {q}", "use 0.5 to below 1, such as 0.95")
        samples = self.samples_min
        require(samples >= 1, "hedge.samples_min", f"is {samples}", "use at least 1")
        floor = self.delay_floor_s
        require(floor > 0, "hedge.delay_floor_s", f"is {floor}", "use a positive time")
        require(0 < share <= 0.5, "hedge.share_max", f"is {share}", "use a share up to 0.5")
        require(self.burst >= 0, "hedge.burst", f"is {self.burst}", "use 0 or more hedges")
        fix = "use a share of capacity above 0, up to 1"
        require(0 < limit <= 1, "hedge.utilisation_max", f"is {limit}", fix)


class Hedger:
    """Decides when a late request gets a second attempt, within a cap and spare capacity.

    One for all requests of a gateway or guarded deployment; it starts no attempt itself.
    """

    __slots__ = (
        "_config",
        "_delay_floor",
        "_denied",
        "_enabled",
        "_hedged",
        "_hedges",
        "_requests",
    )

    def __init__(self, config: HedgeConfig) -> None:
        self._config = config
        self._enabled = config.enabled
        self._delay_floor = nanos(config.delay_floor_s)
        self._requests = RateWindow(_WINDOW_S)
        self._hedges = RateWindow(_WINDOW_S)
        self._hedged = 0
        self._denied: dict[str, int] = {}  # per reason, of which there are five

    def on_request(self, now: int) -> None:
        """Count a request: the cap on hedges is a share of those in the last 10 s.

        Does nothing while hedging is off.
        """
        if self._enabled:
            self._requests.add(now)

    def plan(self, active: ActiveRequest, waits: Deadlines, due: int, now: int) -> int:
        """Set ``active.hedge_at``, when to consider a hedge; return the earlier of it and ``due``.

        Where no hedge is possible, ``hedge_at`` is 0 and ``due`` is returned.
        """
        active.hedge_at = 0
        request = active.request
        if not request.hedgeable or active.shown_tokens or active.made:
            return due
        config = self._config
        delay = self.delay(
            waits.first_token_quantile(request.size, config.quantile, config.samples_min)
        )
        if delay is None:
            return due
        active.hedge_at = now + delay
        return min(due, active.hedge_at)

    def delay(self, expected: int | None) -> int | None:
        """Return how long (ns) after its start an attempt may get a hedge; ``None`` for no hedge.

        ``expected`` is the configured quantile of the first token (ns); ``None`` until learned.
        """
        if not self._enabled or expected is None:
            return None
        return max(expected, self._delay_floor)

    def would_allow(self, now: int, utilisation: float | None, queued: int) -> Decision:
        """Return a ``Decision``: whether a hedge would be allowed now; claims nothing.

        Not while requests are queued, nor where ``utilisation`` is high or unknown (``None``).
        """
        if not self._enabled:
            return _OFF
        if queued > 0:
            return _QUEUED
        if utilisation is None:
            return _UNKNOWN
        if not utilisation < self._config.utilisation_max:
            return _BUSY
        cap = self._config.burst + self._config.share_max * self._requests.total(now)
        if self._hedges.total(now) + 1 > cap:
            return _CAPPED
        return _ALLOWED

    def decide(self, now: int, utilisation: float | None, queued: int) -> Decision:
        """Decide whether to hedge now; an allowed hedge counts against the cap.

        Returns a ``Decision`` with its reason; starts no attempt.
        """
        decision = self.would_allow(now, utilisation, queued)
        if decision.allowed:
            self._hedges.add(now)
            self._hedged += 1
        else:
            self._denied[decision.reason] = self._denied.get(decision.reason, 0) + 1
        return decision


__all__ = ["HedgeConfig", "Hedger"]
