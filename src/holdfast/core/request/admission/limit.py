"""The adaptive concurrency limit of a replica, learned from its time to first token.

While a replica has room, the time to first token does not depend on how much it is given. Past its
capacity every further request only waits inside the engine, and the time grows. So, round by round,
compare the median with the baseline. Equal: grow, if the limit was in use. Higher: shrink. But
latency also rises for reasons no limit can cure (a slow fleet, longer prompts), and a rule that
only compares would then shrink to nothing. Therefore **halving must pay**: once the limit has come
down by half and the latency has not come down with it, queueing was not the cause; the limit is
restored and the new latency becomes the baseline. The same experiment, run when the latency has
stayed raised for long, finds a baseline that was itself learned in a queue.

Rejected: a long-term average as baseline, always. In steady overload the average creeps up to the
overloaded latency, the gradient reads "all well", and the limit grows without end. Here it follows
upwards only while the limit is not in use, or within the noise. Rejected: AIMD on errors alone; a
replica with a long internal queue makes no errors, only waits.
"""

from dataclasses import dataclass
from math import sqrt

from holdfast.core.types import nanos, require

_NEAR = 0.8  # of the limit in use: less, and the traffic bounds the concurrency, not the limit
_KNOWN = 0.9  # of the baseline: a paid halving that lands below shows that the baseline was wrong
_FALL = 0.2  # of the gap per round: a lower latency was really seen, so it is believed soon
_RISE = 0.05  # of the gap per round, while in use and near the baseline: evens out the noise
_STEPS = (0.9, 0.75, 0.5)  # kept in the 1st, 2nd and later rounds of a queue: the knee is sharp
_ROUND_MAX = 200  # samples; a median of 200 is steady enough for any limit
_SLOW_START = 1.5  # growth per round until the latency first responds


@dataclass(slots=True, frozen=True)
class LimitConfig:
    """Settings of the adaptive concurrency limit of one (replica, model).

    Checked when built: raises ``ConfigError``.
    """

    enabled: bool = True
    initial: int = 256  # requests, where no slots are declared: what a GPU engine batches at most
    minimum: int = 2  # requests; one running and one waiting keep a replica busy
    maximum: int = 1_000  # requests; above the batch of any engine
    tolerance: float = 1.5  # times the baseline; below is noise and batching, above is a queue
    long_window: int = 100  # rounds for the baseline to drift up, and between two checks of it
    round_samples_min: int = 20  # first tokens; the median of fewer is noise
    backpressure_factor: float = 0.8  # kept per refusal of the engine: it knows, no need to guess
    backpressure_interval_s: float = 1.0  # one burst of refusals is one message

    def __post_init__(self) -> None:
        def check(name: str, low: float, high: float, fix: str) -> None:
            value = getattr(self, name)
            require(low <= value <= high, f"limit.{name}", f"is {value}", fix)

        low, high = self.minimum, self.maximum
        check("minimum", 1, 1_000_000, "use 1 to 1,000,000")
        check("maximum", low, 1_000_000, f"use minimum ({low}) to 1,000,000")
        check("initial", low, high, f"use minimum ({low}) to maximum ({high})")
        check("tolerance", 1.1, 10.0, "use 1.1 to 10; below, noise alone shrinks the limit")
        check("long_window", 2, 1_000_000, "use 2 rounds or more")
        check("round_samples_min", 5, _ROUND_MAX, f"use 5 to {_ROUND_MAX} samples")
        check("backpressure_factor", 0.1, 0.99, "use 0.1 to 0.99")
        check("backpressure_interval_s", 0.0, 3_600.0, "use 0 to 3600 seconds")


class GradientLimit:
    """An adaptive bound on the requests that one (replica, model) has at once.

    Read ``limit``; ``observe`` and ``on_backpressure`` move it. ``ceiling``, the declared slots, is
    where it starts and its maximum; 0 is undeclared.
    """

    __slots__ = (
        "_backpressure_until",
        "_baseline",
        "_changed_at",
        "_config",
        "_interval",
        "_maximum",
        "_minimum",
        "_over",
        "_patience",
        "_peak",
        "_peak_last",
        "_raised",
        "_raised_from",
        "_relative",
        "_round",
        "_samples",
        "_short",
        "_skip",
        "_slow_start",
        "_trial_limit",
        "_trial_short",
        "_value",
        "limit",
        "reason",
    )

    def __init__(self, config: LimitConfig, ceiling: int = 0) -> None:
        require(ceiling >= 0, "replica.slots", f"is {ceiling}", "use 0 for undeclared")
        self._config = config
        self._interval = nanos(config.backpressure_interval_s)
        self._maximum = min(config.maximum, ceiling) if ceiling else config.maximum
        self._minimum = min(config.minimum, self._maximum)
        start = self._maximum if ceiling or not config.enabled else config.initial
        self._value = float(start)
        self.limit: int = start
        self.reason = "initial" if config.enabled else "disabled"  # of the last change
        self._changed_at: int | None = None
        self._samples: list[float] = []  # of this round; bounded by the round's length
        self._round = self._round_length()
        self._peak = 0  # requests in flight, the most in this round
        self._peak_last = 0
        self._skip = 0  # samples still to come from before the last shrink
        self._relative = False  # samples are ratios to what was expected, not nanoseconds
        self._baseline = 0.0  # the latency without a queue; 0 = not known
        self._short = 0.0  # the last round's median
        self._over = 0  # rounds in a row above the tolerance
        self._raised = 0  # rounds in a row clearly above the baseline: it may be wrong
        self._raised_from = (1.0 + config.tolerance) / 2  # times the baseline
        self._patience = 2  # of those before the baseline is checked; doubles while it proves right
        self._slow_start = True
        self._trial_limit = 0.0  # the limit when the present shrinking began; 0 = none under way
        self._trial_short = 0.0  # and the latency then
        self._backpressure_until: int | None = None

    def observe(
        self, first_token_ns: int, inflight: int, now: int, expected_ns: float | None = None
    ) -> None:
        """Take one time to first token and the number in flight.

        At the end of a round, move the limit. ``expected_ns`` is the usual time for such a prompt
        in this pool: then only the ratio counts, and samples without it are ignored from then on.
        Does nothing while disabled.
        """
        if not self._config.enabled:
            return
        if self._skip:
            self._skip -= 1
            return
        if expected_ns:
            if not self._relative:
                self._forget()
                self._relative = True
            sample = (first_token_ns or 1) / expected_ns
        elif self._relative:
            return  # not comparable with ratios
        else:
            sample = first_token_ns or 1.0
        if inflight > self._peak:  # noqa: PLR1730 (max() would double the cost of this line)
            self._peak = inflight
        self._samples.append(sample)
        if len(self._samples) >= self._round:
            self._end_round(now)

    def on_backpressure(self, now: int) -> None:
        """Lower the limit because the engine refused a request for load; once per interval."""
        if not self._config.enabled:
            return
        if self._backpressure_until is not None and now < self._backpressure_until:
            return
        self._backpressure_until = now + self._interval
        in_use = max(self._peak, self._peak_last) or self._value
        self._slow_start = False
        self._trial_limit = 0.0
        self._move(min(self._value, in_use) * self._config.backpressure_factor, now, "backpressure")

    def _end_round(self, now: int) -> None:
        samples = self._samples
        samples.sort()
        self._short = samples[len(samples) // 2]
        samples.clear()
        self._peak_last, self._peak = self._peak, 0
        if not self._baseline:
            self._baseline = self._short
        if self._trial_limit and self._value <= self._trial_floor():
            self._conclude(now)
        else:
            self._follow(now)
        self._round = self._round_length()

    def _follow(self, now: int) -> None:
        """Grow, shrink or keep the limit, by how far the latency is above the baseline."""
        tolerance = self._config.tolerance
        ratio = self._short / self._baseline
        in_use = self._peak_last >= _NEAR * self.limit
        self._learn(ratio, in_use=in_use)
        if not in_use or ratio <= tolerance:
            self._trial_limit = 0.0
            self._over = 0
        self._raised = self._raised + 1 if in_use and ratio > self._raised_from else 0
        if self._raised >= self._patience:
            self._raised = 0
            self._shrink(0.5, now, "checking the baseline")
        elif in_use and ratio > tolerance:
            self._shrink(max(self._step_down(), tolerance / ratio), now, "queueing")
        elif in_use and self._value < self._maximum:
            headroom = min(1.0, (tolerance - ratio) / (tolerance - 1.0))
            step = self._value / 2 if self._slow_start else headroom * sqrt(self._value)
            self._move(self._value + step, now, "in use and fast")

    def _learn(self, ratio: float, *, in_use: bool) -> None:
        """Move the baseline: down soon, up slowly and only if our own load is not the reason."""
        gap = self._short - self._baseline
        if gap < 0:
            self._baseline += gap * _FALL
        elif not in_use or self._value <= self._minimum:
            self._baseline += gap / self._config.long_window
        elif ratio <= self._raised_from:
            self._baseline += gap * _RISE

    def _step_down(self) -> float:
        self._over += 1
        if self._slow_start:
            return 1.0 / _SLOW_START  # where it was before the last step up
        return _STEPS[min(self._over, len(_STEPS)) - 1]

    def _shrink(self, factor: float, now: int, reason: str) -> None:
        self._slow_start = False
        if self._value <= self._minimum:
            return
        if not self._trial_limit:
            self._trial_limit = self._value
            self._trial_short = self._short
        self._move(max(self._value * factor, self._trial_floor()), now, reason)

    def _trial_floor(self) -> float:
        return max(self._trial_limit / 2, self._minimum)

    def _conclude(self, now: int) -> None:
        """End the experiment of a halved limit: keep it if the latency fell, else undo it."""
        before, self._trial_limit = self._trial_limit, 0.0
        self._over = 0
        self._patience = min(2 * self._patience, self._config.long_window)
        # A queue shrinks with the limit, other slowness does not shrink at all: split midway.
        if self._short > self._trial_short * (1.0 + self._value / before) / 2:
            self._baseline = self._short
            self._move(before, now, "slow, but not from queueing")
        elif self._short < self._baseline * _KNOWN:
            self._baseline = self._short
            self._patience = 2
            self._shrink(0.5, now, "the baseline was a queue too")
        elif self._short <= self._raised_from * self._baseline:
            self._move(before * _STEPS[0], now, "the baseline was right")
        else:
            self.reason = "halving paid"

    def _move(self, value: float, now: int, reason: str) -> None:
        if value < self._value:
            # What is in flight was sent under the old limit; its latencies say nothing of the new.
            self._skip = max(self._peak, self._peak_last)
            self._samples.clear()
        self._value = min(max(value, self._minimum), self._maximum)
        self.limit = int(self._value)
        self.reason = reason
        self._changed_at = now

    def _forget(self) -> None:
        """Drop the learned latencies because samples change their unit; the limit stays."""
        self._samples.clear()
        self._baseline = 0.0
        self._trial_limit = 0.0

    def _round_length(self) -> int:
        return min(max(self.limit, self._config.round_samples_min), _ROUND_MAX)


__all__ = ["GradientLimit", "LimitConfig"]
