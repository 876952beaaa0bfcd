"""Adds up gateways' reports for each replica and turns them, and canaries, into facts.

    tallies of all gateways ─► added up for each replica ─► at each look, facts about it
    a canary and what ran beside it ──────────────────────► a fact at once

Live control and the simulator use the same code, so that no rule holds in only one of them.

Rejected: facts for each gateway. A replica's failures would be few at each of eight gateways and
many in sum, and every detector would have to add them up.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

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
STATISTICS_MAX: Final = 16  # of one replica: lengths and scores, of several tensors
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
            *tally.scores.items(),
        ):
            if values and (name in self.values or len(self.values) < STATISTICS_MAX):
                kept = self.values.setdefault(name, [])
                kept.extend(values[: VALUES_MAX - len(kept)])


class _UnderWay(NamedTuple):
    """What one gateway, or all together, have on one replica at this moment."""

    inflight: int
    unread: int  # tokens of long prompts
    explained_s: float | None  # for how long those explain that nothing comes
    prompts: int | None  # tokens of all prompts that are not known to be read


class Tallies:
    """Sums gateways' tallies per replica until the next ``look``, and keeps requests in flight.

    One object for all gateways and replicas; the owner must filter out unknown replicas.
    """

    __slots__ = ("_looked_at", "_sums", "_under_way")

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._under_way: dict[str, dict[str, _UnderWay]] = {}  # replica, then gateway
        self._looked_at: int | None = None

    def take(self, gateway: str, tally: Tally) -> None:
        """Add one gateway's tally of one replica; its number in flight replaces the last one."""
        name = tally.replica_id
        found = self._sums.get(name)
        if found is None:
            found = self._sums[name] = _Sum(tally.model)
        found.add(tally)
        told = _UnderWay(tally.inflight, tally.unread, tally.explained_s, tally.prompts)
        self._under_way.setdefault(name, {})[gateway] = told

    def inflight(self, replica: str) -> int:
        """Return the requests on a replica now, by each gateway's latest tally; 0 if unknown."""
        return sum(told.inflight for told in self._under_way.get(replica, {}).values())

    def process_ended(self, replica: str) -> None:
        """Count no request on a replica as in flight; sums already taken are kept."""
        self._under_way.pop(replica, None)

    def gateway_gone(self, gateway: str) -> None:
        """Count no request of this gateway as in flight any more; sums already taken are kept."""
        for by_gateway in self._under_way.values():
            by_gateway.pop(gateway, None)

    def forget(self, replica: str) -> None:
        """Drop sums and requests in flight of a replica that left the fleet."""
        self._sums.pop(replica, None)
        self._under_way.pop(replica, None)

    def look(self, now: int) -> Iterator[tuple[AttemptsSeen, list[Answers]]]:
        """Yield (``AttemptsSeen``, facts of its answers) for each replica, and reset the sums.

        Covers the time since the last call. Replicas with requests in flight and nothing new are
        yielded with an empty list; idle ones are not.
        """
        span_s = seconds(now - self._looked_at) if self._looked_at is not None else 1.0
        self._looked_at = now
        sums, self._sums = self._sums, {}
        whole: Counter[str] = Counter()
        for found in sums.values():
            whole[found.model] += found.ended
        for name in dict.fromkeys([*sums, *self._under_way]):
            now_there = self._all(name)
            if not now_there.inflight:
                self._under_way.pop(name, None)
            if name in sums:
                yield _told(name, sums[name], span_s, now_there, whole[sums[name].model])
            elif now_there.inflight:
                yield AttemptsSeen(name, span_s, **now_there._asdict()), []

    def _all(self, replica: str) -> _UnderWay:
        """What all gateways have there; explained is what the most patient of them says."""
        told = [*self._under_way.get(replica, {}).values()]
        explained = [one.explained_s for one in told if one.explained_s is not None]
        unread = sum(one.unread for one in told)
        silent = any(one.prompts is None and one.inflight for one in told)
        prompts = None if silent else sum(one.prompts or 0 for one in told)
        return _UnderWay(self.inflight(replica), unread, max(explained, default=None), prompts)


def _told(
    name: str, found: _Sum, span_s: float, now_there: _UnderWay, whole: int
) -> tuple[AttemptsSeen, list[Answers]]:
    attempts = AttemptsSeen(
        name,
        span_s,
        found.successes,
        found.backpressure,
        now_there.inflight,
        found.tokens,
        dict(found.kinds),
        found.fast,
        found.ended / whole if whole else None,
        tuple(found.waits),
        now_there.unread,
        now_there.explained_s,
        now_there.prompts,
    )
    answers: list[Answers] = [
        OutputSeen(name, what, tuple(values)) for what, values in found.values.items()
    ]
    if found.finishes:
        answers.append(FinishesSeen(name, dict(found.finishes)))
    return attempts, answers


def canary_answered(result: CanaryResult, *, slow: bool, inflight: int) -> CanaryAnswered:
    """Return the ``CanaryAnswered`` of one canary result.

    ``slow``: the fleet judged its right answer as late. What ran beside it is the larger of
    ``inflight`` and what the result reports.
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
        result.gap_s or None,
        result.began,
        result.quiet_s or None,
        result.reads_on,
        result.next_gap_s or None,
    )


def canaries_doubted(notice: Notice) -> CanariesDoubted | None:
    """Return the ``CanariesDoubted`` that a notice tells of; ``None`` if it suspects nobody."""
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
