"""Computes how many replicas a model needs now, from queue, cache, throughput and latency.

Each signal gives a number of replicas: waiting tokens, KV caches in use, tokens served, a first
token later than promised, memory over its target. The largest number counts.

    need ─┬─► smallest of the last 15 s above what is there ─► grow, at most twofold
          └─► largest of the last 300 s below it ────────────► shrink

What grew cannot shrink before a whole window without the need for it has passed, so the count does
not flap. Unknown is neither zero nor full: without a signal the count is held, a replica that does
not report its use counts as needed, and a queue alone, which shows what overflows and not what is
carried, never shrinks anything. Only a model that is idle, by numbers that are known, goes to zero;
the first request that waits brings it back at once, and the queue holds what comes meanwhile.

Rejected: GPU utilisation; it is 100 % with one request running. Rejected: requests per second; ten
long prompts are more work than a hundred short ones. Rejected: forecasts, which have to be right.
"""

from collections import deque
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Final

from holdfast.core.types import SECOND, nanos, require

_NEAR: Final = 0.7  # of the promise: so close to it nothing is taken away
_FRESH: Final = 15 * SECOND  # a summary a second and a few lost ones; older says nothing


@dataclass(slots=True, frozen=True)
class ScalingConfig:
    """Settings of one model: limits, targets and windows by which its deployment grows and shrinks.

    Times in seconds, shares 0 to 1. Raises ``ConfigError`` when built with a bad value.
    """

    min: int = 1  # replicas that always run; 0 lets an idle model go away altogether
    max: int = 1  # replicas at most, whatever the demand: hardware and money have a bound
    target_queue_tokens: int = 2_048  # waiting per replica; about a second of prefill on one GPU
    kv_target: float = 0.8  # share of the KV cache in use; above 0.9 engines begin to preempt
    memory_target: float = 0.9  # share of memory in use; the rest absorbs a spike of activations
    slo_first_token_s: float | None = None  # p95 that users were promised; empty = no promise
    tokens_per_s: float | None = None  # that one replica sustains; empty = not measured, not used
    up_window_s: float = 15.0  # a need must last so long: one burst is what queues are for
    down_window_s: float = 300.0  # of less need throughout: a start costs minutes, an idler little
    warm: int = 0  # spare replicas above the need, ready for the next burst
    idle_to_zero_s: float = 600.0  # without any request, and down_window_s too; only where min is 0
    step_up_max: float = 2.0  # times the present count per step: a broken signal cannot buy it all

    def __post_init__(self) -> None:
        least, most, warm = self.min, self.max, self.warm
        require(0 <= least <= 256, "scaling.min", f"is {least}", "use 0 to 256")
        require(1 <= most <= 256, "scaling.max", f"is {most}", "use 1 to 256")
        require(least <= most, "scaling.max", f"is {most}, below min", "use min or more")
        fix = "use 0 up to max: a spare beyond max never starts"
        require(0 <= warm <= most, "scaling.warm", f"is {warm}", fix)
        waiting = self.target_queue_tokens
        require(waiting >= 1, "scaling.target_queue_tokens", f"is {waiting}", "use 1 or more")
        for name in ("kv_target", "memory_target"):
            value = getattr(self, name)
            require(0 < value <= 1, f"scaling.{name}", f"is {value}", "use a share in (0, 1]")
        promise, rate = self.slo_first_token_s, self.tokens_per_s
        fix = "use seconds above 0, or leave it out"
        fits = promise is None or 0 < promise <= 86_400
        require(fits, "scaling.slo_first_token_s", f"is {promise}", fix)
        fix = "use tokens per second above 0, or leave it out"
        require(rate is None or 0 < rate <= 1e9, "scaling.tokens_per_s", f"is {rate}", fix)
        for name in ("up_window_s", "down_window_s", "idle_to_zero_s"):
            value = getattr(self, name)
            fix = "use 0 to a day, 86400 s"
            require(0 <= value <= 86_400, f"scaling.{name}", f"is {value}", fix)
        up, down = self.up_window_s, self.down_window_s
        fix = "use up_window_s or more: growing must be quicker than shrinking"
        require(down >= up, "scaling.down_window_s", f"is {down}, below up_window_s", fix)
        step = self.step_up_max
        require(1 < step <= 256, "scaling.step_up_max", f"is {step}", "use a factor above 1")


@dataclass(slots=True, frozen=True)
class Demand:
    """Figures of one model's load at one moment; ``None`` and absent numbers are unknown.

    ``kv_used`` and ``memory_used`` have one share for each replica that tells it.
    """

    at: int
    queued_tokens: int | None = None  # that wait, at the gateways and in the engines
    queued: int | None = None  # requests that wait
    running: int | None = None  # requests on replicas
    kv_used: tuple[float, ...] = ()  # shares, of those ready replicas that tell
    memory_used: tuple[float, ...] = ()  # shares, of those that tell
    first_token_p95: float | None = None  # seconds
    token_rate: float | None = None  # tokens served per second, prompts and answers
    ready: int = 0
    starting: int = 0


@dataclass(slots=True, frozen=True)
class Desired:
    """A decision: how many replicas there should be, which signal decided, and why in words."""

    count: int
    reason: str
    signal: str


@dataclass(slots=True, frozen=True)
class _Need:
    count: int
    signal: str
    reason: str


class _Extreme:
    """The largest (or smallest) of the last window, in memory bounded by the distinct values.

    A value that a later one outdoes can never be the answer again, so only a falling (or rising)
    row is kept: at most one entry per count of replicas.
    """

    __slots__ = ("_row", "_sign", "_window")

    def __init__(self, window: int, sign: int) -> None:
        self._window = window
        self._sign = sign  # 1 = largest, -1 = smallest
        self._row: deque[tuple[int, _Need]] = deque()

    def push(self, at: int, need: _Need) -> None:
        row, sign = self._row, self._sign
        while row and row[-1][1].count * sign <= need.count * sign:
            row.pop()
        row.append((at, need))

    def at(self, now: int) -> _Need:
        """Of the window; the latest is kept however old it is."""
        row = self._row
        while len(row) > 1 and row[0][0] < now - self._window:
            row.popleft()
        return row[0][1]


class Autoscaler:
    """Decides the replica count of one model from its load; starts and stops nothing.

    Call ``decide`` on each tick of the control loop. It keeps the needs of its windows: growth
    waits for a lasting need, shrinking for a longer one; unknown load holds the count.
    """

    def __init__(self, config: ScalingConfig) -> None:
        self.config = config
        self._up = nanos(config.up_window_s)
        self._down = nanos(config.down_window_s)
        self._to_zero = nanos(config.idle_to_zero_s)
        self._least = _Extreme(self._up, -1)
        self._most = _Extreme(self._down, 1)
        self._known_since: int | None = None  # without a gap longer than the window for growth
        self._known_at = 0
        self._idle_since: int | None = None
        self._memory_floor: int | None = None  # what memory asked for when it went over its line
        self._grew_at: int | None = None
        self._last = Desired(config.min, "not asked yet", "none")

    def decide(self, demand: Demand, present: int, now: int) -> Desired:
        """Return the ``Desired`` replica count, with signal and reason; remembers the demand.

        ``present``: replicas requested or running now. Old or unknown load gives ``present`` again,
        within min and max.
        """
        desired = self._decide(demand, present, now)
        if desired.count > present:
            self._grew_at = now
        self._last = desired
        return desired

    def _decide(self, demand: Demand, present: int, now: int) -> Desired:
        config = self.config
        fresh = now - demand.at <= max(self._up, _FRESH)
        need = self._need(demand, present) if fresh else None
        self._note(demand, need, now, fresh=fresh)
        if present < config.min:
            return Desired(config.min, f"{present} are fewer than min", "bounds")
        if present > config.max:
            return Desired(config.max, f"{present} are more than max", "bounds")
        if need is None:
            why = "no signal tells" if fresh else "the signals are old"
            return Desired(present, f"{why} how many are needed: held", "unknown")
        if present == 0:
            if need.count == 0 and not config.warm:
                return Desired(0, "nobody asks", "idle")
            return Desired(1, f"woken: {need.reason}", "wake")
        return self._within_windows(need, present, now)

    def _within_windows(self, need: _Need, present: int, now: int) -> Desired:
        known = now - (self._known_since if self._known_since is not None else now)
        least = self._least.at(now)
        wanted = self._bounded(least.count)
        if wanted > present and known >= self._up:
            if self._grew_at is not None and now - self._grew_at < self._up:
                return Desired(
                    present, "grew a moment ago: the last step comes first", least.signal
                )
            step = max(present + 1, int(present * self.config.step_up_max))
            return Desired(min(wanted, step), least.reason, least.signal)
        most = self._most.at(now)
        idle = self._idle_since is not None and now - self._idle_since >= self._to_zero
        floor = 0 if idle else 1
        wanted = max(self._bounded(most.count), floor)
        if wanted < present and known >= self._down:
            told = f"never more than {wanted} were needed in {self.config.down_window_s:g} s"
            return Desired(wanted, told, "idle" if wanted == 0 else most.signal)
        return Desired(present, f"held: {need.reason}", need.signal)

    def _bounded(self, count: int) -> int:
        return max(self.config.min, min(self.config.max, count + self.config.warm))

    # --- evidence --------------------------------------------------------------------------------

    def _note(self, demand: Demand, need: _Need | None, now: int, *, fresh: bool) -> None:
        idle = fresh and demand.queued == 0 and demand.running == 0
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if need is None:
            return
        if self._known_since is None or now - self._known_at > max(self._up, _FRESH):
            self._known_since = now
        self._known_at = now
        need = replace(need, count=min(need.count, self.config.max))  # what bounds the memory
        self._least.push(now, need)
        self._most.push(now, need)

    def _need(self, demand: Demand, present: int) -> _Need | None:
        """What the strongest signal asks for; None where no signal says anything."""
        if demand.queued == 0 and demand.running == 0 and not demand.queued_tokens:
            self._memory_floor = None
            return _Need(0, "idle", "no request waits or runs")
        needs = [
            self._by_queue(demand),
            self._by_kv(demand),
            self._by_memory(demand),
            self._by_first_token(demand),
            self._by_rate(demand),
        ]
        if (demand.running or 0) > 0 or (demand.queued or 0) > 0:
            needs.append(_Need(1, "running", "requests run or wait"))
        known = [need for need in needs if need is not None]
        if not known:
            return None
        strongest = max(known, key=lambda need: need.count)
        measured = any(need.signal in {"kv", "rate"} for need in known)
        if strongest.count < present and not measured:
            # A queue tells what overflows, not what is carried: without a measure of that, no less.
            return _Need(present, "unmeasured", "neither KV use nor a token rate is known")
        return strongest

    def _by_queue(self, demand: Demand) -> _Need | None:
        if demand.queued_tokens is None:
            return None
        target = self.config.target_queue_tokens
        count = ceil(max(0, demand.queued_tokens) / target)
        if demand.ready <= 0:
            # What waits then waits for a start, not for room: one long request would ask for many.
            count = min(count, 1)
        return _Need(count, "queue", f"{demand.queued_tokens} tokens wait, {target} per replica")

    def _by_kv(self, demand: Demand) -> _Need | None:
        known = _shares(demand.kv_used)
        if not known:
            return None
        unknown = max(0, demand.ready - len(known))  # neither empty nor full: each needs itself
        count = ceil(round(sum(known) / self.config.kv_target, 6)) + unknown
        mean = sum(known) / len(known)
        return _Need(count, "kv", f"{mean:.0%} of the KV cache is in use")

    def _by_memory(self, demand: Demand) -> _Need | None:
        """One more when it goes over its line, and not again: what is reserved does not fall."""
        known = _shares(demand.memory_used)
        if not known:
            return None
        if max(known) <= self.config.memory_target:
            self._memory_floor = None
            return None
        if self._memory_floor is None:
            self._memory_floor = demand.ready + demand.starting + 1
        told = f"{max(known):.0%} of memory is in use on one"
        return _Need(self._memory_floor, "memory", told)

    def _by_first_token(self, demand: Demand) -> _Need | None:
        promise, seen = self.config.slo_first_token_s, demand.first_token_p95
        if promise is None or seen is None or not isfinite(seen) or demand.ready <= 0:
            return None
        told = f"p95 of the first token is {seen:.2f} s, {promise:g} s are promised"
        if seen > promise:
            times = min(seen / promise, self.config.step_up_max)
            return _Need(max(demand.ready + 1, ceil(demand.ready * times)), "first_token", told)
        if seen > promise * _NEAR:
            return _Need(demand.ready, "first_token", told)
        return None

    def _by_rate(self, demand: Demand) -> _Need | None:
        each, rate = self.config.tokens_per_s, demand.token_rate
        if each is None or rate is None or not isfinite(rate):
            return None
        count = ceil(round(max(0.0, rate) / each, 6))
        return _Need(
            count, "rate", f"{rate:.0f} tokens/s are served, one replica sustains {each:g}"
        )

    def snapshot(self) -> dict[str, object]:
        """Return the latest decision, the limits and the times (ns) as a new dict, for dashboards.

        It cannot be restored from; times are None where unknown.
        """
        return {
            "desired": self._last.count,
            "reason": self._last.reason,
            "signal": self._last.signal,
            "min": self.config.min,
            "max": self.config.max,
            "known_since": self._known_since,
            "idle_since": self._idle_since,
            "grew_at": self._grew_at,
        }


def _shares(values: tuple[float, ...]) -> list[float]:
    """Those that can be shares; a broken reading is an unknown one."""
    return [value for value in values if isfinite(value) and 0 <= value <= 1]


__all__ = ["Autoscaler", "Demand", "Desired", "ScalingConfig"]
