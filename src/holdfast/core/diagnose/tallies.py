"""What gateways and canaries saw of each replica, as facts.

    tallies of all gateways ─► added up for each replica ─► at each look, facts about it
    a canary and what ran beside it ──────────────────────► a fact at once

A live control and a simulated one tell detectors the same: this is the one place where it is added
up, so that no rule can hold in one of them alone.

Rejected: facts for each gateway. A replica's failures would be few at each of eight gateways and
many in sum, and every detector would have to add them up.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from holdfast.core.canary import CanarySuspect
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanariesDoubted,
    CanaryAnswered,
    FinishesSeen,
    OutputSeen,
)
from holdfast.core.failure import Kind
from holdfast.core.messages import CanaryResult, Notice, Tally
from holdfast.core.types import seconds

VALUES_MAX: Final = 256  # of one statistic of one replica between two looks
REASONS_MAX: Final = 16  # of finishing, told apart; a client cannot invent more
_REASON_CHARS: Final = 32

Answers = OutputSeen | FinishesSeen


class _Sum:
    """What all gateways saw of one replica since the last look."""

    __slots__ = (
        *("backpressure", "ended", "fast", "finishes", "kinds", "model"),
        *("successes", "tokens", "values", "waits"),
    )

    def __init__(self, model: str) -> None:
        self.model = model
        self.successes = self.backpressure = self.ended = self.tokens = self.fast = 0
        self.kinds: Counter[Kind] = Counter()
        self.finishes: Counter[str] = Counter()
        self.values: dict[str, list[float]] = {}
        self.waits: list[float] = []

    def add(self, tally: Tally) -> None:
        self.successes += tally.successes
        self.backpressure += tally.backpressure
        self.ended += tally.ended
        self.tokens += tally.tokens
        self.fast += tally.fast
        self.kinds.update(tally.kinds)
        self.waits.extend(tally.waits[: VALUES_MAX - len(self.waits)])
        for reason, count in tally.finishes.items():
            name = reason[:_REASON_CHARS]
            known = name in self.finishes or len(self.finishes) < REASONS_MAX
            self.finishes[name if known else "other"] += count
        for name, values in (
            ("length", tally.lengths),
            ("logprob", tally.logprobs),
            ("norm", tally.norms),
        ):
            if values:
                kept = self.values.setdefault(name, [])
                kept.extend(values[: VALUES_MAX - len(kept)])


class Tallies:
    """Adds up what gateways tell. Whoever owns it takes only tallies of replicas it knows."""

    __slots__ = ("_inflight", "_looked_at", "_sums")

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._inflight: dict[str, dict[str, int]] = {}  # replica, then gateway
        self._looked_at: int | None = None

    def take(self, gateway: str, tally: Tally) -> None:
        """What one gateway saw of one replica."""
        name = tally.replica_id
        found = self._sums.get(name)
        if found is None:
            found = self._sums[name] = _Sum(tally.model)
        found.add(tally)
        self._inflight.setdefault(name, {})[gateway] = tally.inflight

    def inflight(self, replica: str) -> int:
        """Requests that gateways have there, as they last told."""
        return sum(self._inflight.get(replica, {}).values())

    def process_ended(self, replica: str) -> None:
        """Nothing is in flight there any more; what was seen of it is still to be told."""
        self._inflight.pop(replica, None)

    def gateway_gone(self, gateway: str) -> None:
        """Nothing of its requests is in flight any more."""
        for by_gateway in self._inflight.values():
            by_gateway.pop(gateway, None)

    def forget(self, replica: str) -> None:
        """It is gone, and nothing of it is told."""
        self._sums.pop(replica, None)
        self._inflight.pop(replica, None)

    def look(self, now: int) -> Iterator[tuple[AttemptsSeen, list[Answers]]]:
        """What was seen since the last look: of each replica its attempts, and its answers."""
        span_s = seconds(now - self._looked_at) if self._looked_at is not None else 1.0
        self._looked_at = now
        sums, self._sums = self._sums, {}
        whole: Counter[str] = Counter()
        for found in sums.values():
            whole[found.model] += found.ended
        for name in dict.fromkeys([*sums, *self._inflight]):
            inflight = self.inflight(name)
            if not inflight:
                self._inflight.pop(name, None)
            if name in sums:
                yield _told(name, sums[name], span_s, inflight, whole[sums[name].model])
            elif inflight:
                yield AttemptsSeen(name, span_s, inflight=inflight), []


def _told(
    name: str, found: _Sum, span_s: float, inflight: int, whole: int
) -> tuple[AttemptsSeen, list[Answers]]:
    attempts = AttemptsSeen(
        name,
        span_s,
        found.successes,
        found.backpressure,
        inflight,
        found.tokens,
        dict(found.kinds),
        found.fast,
        found.ended / whole if whole else None,
        tuple(found.waits),
    )
    answers: list[Answers] = [
        OutputSeen(name, what, tuple(values)) for what, values in found.values.items()
    ]
    if found.finishes:
        answers.append(FinishesSeen(name, dict(found.finishes)))
    return attempts, answers


def canary_answered(result: CanaryResult, *, slow: bool, inflight: int) -> CanaryAnswered:
    """A canary came back; ``slow``: the fleet took its right answer for a late one.

    What ran beside it is the most that anybody says, as where the fleet judges its lateness.
    """
    return CanaryAnswered(
        result.replica_id,
        result.verdict.with_lateness(slow=slow),
        seconds(result.latency or result.took) or None,
        max(result.running or 0, inflight),
        result.progress,
        result.page_ok,
        result.status,
        result.moved_s or None,
        result.flaw.value if result.flaw is not None else "",
    )


def canaries_doubted(notice: Notice) -> CanariesDoubted | None:
    """What the fleet makes of all canaries of a model; ``None``: that notice is of another kind."""
    suspect = notice.canaries
    if suspect is None or suspect is CanarySuspect.NOBODY:
        return None
    return CanariesDoubted.by(suspect, notice.model, notice.reason)


__all__ = [
    "REASONS_MAX",
    "VALUES_MAX",
    "Answers",
    "Tallies",
    "canaries_doubted",
    "canary_answered",
]
