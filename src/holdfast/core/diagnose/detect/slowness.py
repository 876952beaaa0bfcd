"""Detects a replica whose users wait many times longer than its peers' users, at the same time.

    first tokens there, each as a multiple of what the pool takes for prompts of that length
        └─► their middle is 3 and more, that of its peers at most 1.5, for 3 s,
            or each one of the last five and more is, and twice as long as nine of ten at its
            peers, for 10 s,
            (for 16 s if its host is slow), it gives fewer than half the tokens of its peers, none
            was so in the last minute, and no canary just now took less than twice as long as
            theirs ─► SLOW_ANSWERS

Canaries judge latency only where nothing else runs, because beside a long prompt the same question
takes longer. A replica that is never idle is therefore judged here, by its users' own waits. They
come as multiples of what is usual for their length, so that one user's long prompts accuse no
replica; and a fleet that is slow as a whole has no peers that are not. One that gives its users as
many tokens as its peers do is full, not slow. And a canary that comes back quickly through all that
runs there says that the engine is as fast as ever: users wait for each other. A pool with too
little for its load is slow in turns, one replica after the other.

Routing leaves a slow replica one request in some seconds: too few for a middle, and often enough
that canaries seldom find it idle. So few must agree, every one of them, and for longer; and where
some wait long everywhere, they must wait longer than those.

Rejected: the mean, which one stuck request decides. Rejected: its own past; load comes and goes,
and peers have the same load now.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import ClassVar, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.canary.idle import STALL_BESIDE, IdleCanaries
from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import AttemptsSeen, CanaryAnswered, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import nanos, require

_SAMPLES_MAX: Final = 256  # of one replica
_IN_TURNS_S: Final = (
    60.0  # a peer that was as slow so lately: they share the load, and it is too much
)
_FRESH: Final = nanos(60.0)  # canaries on idle engines older than this say nothing of a host
_QUICK: Final = 2.0  # times what its peers' canaries take: half way from well to slow, and no more


@dataclass(slots=True, frozen=True)
class SlownessConfig:
    """Settings: how much longer than at its peers a replica's users must wait, for how long.

    Checked when built: raises ``ConfigError``.
    """

    factor: float = 3.0  # times the pool's usual wait; load alone makes two of it
    peers_max: float = 1.5  # the peers' own middle: above it the fleet is slow, not one of it
    samples_min: int = 8  # first tokens, there and at its peers: fewer have no middle
    window_s: float = 15.0  # what "now" means
    hold_s: float = 3.0  # a pause of garbage collection or a long prompt is over by then
    row_min: int = 5  # or so many in a row, each of them as late: fewer are a coincidence
    row_tail: float = 2.0  # times the wait that one in ten of its peers' users has now
    row_s: float = 60.0  # how old the first of them may be
    row_hold_s: float = 10.0  # from its first to its last: a burst behind one prompt is shorter

    def __post_init__(self) -> None:
        factor, peers = self.factor, self.peers_max
        fix = "use a factor above slowness.peers_max"
        require(1 <= peers < factor <= 1_000, "slowness.factor", f"is {factor}", fix)
        few = self.samples_min
        require(3 <= few <= 64, "slowness.samples_min", f"is {few}", "use 3 to 64")
        row = self.row_min
        require(3 <= row <= 64, "slowness.row_min", f"is {row}", "use 3 to 64")
        tail = self.row_tail
        require(1 <= tail <= 1_000, "slowness.row_tail", f"is {tail}", "use a factor of 1 or more")
        for name in ("window_s", "hold_s", "row_s", "row_hold_s"):
            value = getattr(self, name)
            require(0 < value <= 3_600, f"slowness.{name}", f"is {value}", "use up to an hour")


class _Book:
    __slots__ = ("canary_at", "canary_s", "since", "slow_at", "tokens", "waits")

    def __init__(self) -> None:
        self.waits: deque[tuple[int, float]] = deque(maxlen=_SAMPLES_MAX)
        self.tokens: deque[tuple[int, int]] = deque(maxlen=_SAMPLES_MAX)
        self.since: int | None = None  # when it was first seen to be slow
        self.slow_at: int | None = None  # when it last was, whoever else was
        self.canary_at = 0
        self.canary_s: float | None = None  # how long the last right answer took


class SlownessDetector:
    """Finds a replica whose users wait much longer for first tokens than its peers' users do now.

    Keeps recent waits, tokens and the last canary per replica.
    """

    reads: ClassVar[tuple[type, ...]] = (AttemptsSeen, CanaryAnswered, ProcessEnded)

    def __init__(self, config: SlownessConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._window = nanos(config.window_s)
        self._kept = nanos(max(config.window_s, config.row_s))
        self._hold = nanos(config.hold_s)
        self._row_hold = nanos(max(config.row_hold_s, config.hold_s))
        self._books: dict[str, _Book] = {}
        self._idle = IdleCanaries(census, _FRESH)
        self._pace = Pace()

    def take(
        self, fact: AttemptsSeen | CanaryAnswered | ProcessEnded, now: int
    ) -> Sequence[Evidence]:
        """Take users' waits, a canary or a process end of a replica; return ``SLOW_ANSWERS``.

        Nothing while the peers are slow too, if it gives as many tokens as they do, or if its
        canary was quick. An end drops its waits.
        """
        if isinstance(fact, ProcessEnded):
            self.forget(fact.replica)
            return NOTHING
        if fact.replica not in self._census.replicas:
            return NOTHING
        book = self._books.get(fact.replica)
        if book is None:
            book = self._books[fact.replica] = _Book()
        if isinstance(fact, CanaryAnswered):
            if fact.verdict.right and fact.latency_s is not None:
                book.canary_at, book.canary_s = now, fact.latency_s
                self._idle.add(fact, now, usual=fact.verdict is CanaryVerdict.PASS)
            return NOTHING
        book.tokens.append((now, fact.tokens))
        if not fact.waits:
            return NOTHING
        book.waits.extend((now, wait) for wait in fact.waits if wait >= 0)
        return self._judge(fact.replica, book, now)

    def forget(self, replica: str) -> None:
        """Drop the waits, tokens and canary of a replica; an end of its process does the same."""
        self._books.pop(replica, None)
        self._idle.forget(replica)
        self._pace.over(replica)

    def _lately(self, book: _Book, now: int) -> list[float]:
        waits = book.waits
        while waits and not 0 <= now - waits[0][0] < self._kept:
            waits.popleft()
        return [wait for at, wait in waits if now - at < self._window]

    def _judge(self, replica: str, book: _Book, now: int) -> Sequence[Evidence]:
        config = self._config
        own = self._lately(book, now)
        peers = self._of_peers(replica, now)
        if len(peers) < config.samples_min:
            return NOTHING
        there = median(peers)
        least = config.factor * max(1.0, there)
        row = self._row(book, max(least, config.row_tail * _late(peers)), now)
        stall = STALL_BESIDE if self._idle.host_slowness(replica, now) > 1 else 0
        if len(row) >= config.row_min and now - row[0][0] >= max(self._row_hold, stall):
            own, book.since = [wait for _, wait in row], row[0][0]
        elif len(own) < config.samples_min:
            return NOTHING
        here = median(own)
        if here >= config.factor:
            book.slow_at = now
        if (
            here < least
            or there > config.peers_max
            or self._is_full(replica, book, now)
            or self._is_quick(replica, book, now)
            or self._in_turns(replica, now)
        ):
            book.since = None
            self._pace.over(replica)
            return NOTHING
        if book.since is None:
            book.since = now
        if now - book.since < max(self._hold, stall) or not self._pace.due(replica, now):
            return NOTHING
        text = (
            f"its users wait {here:.1f} times as long for a first token as is usual for their "
            f"prompts, those of its peers {there:.1f} times"
        )
        numbers = {"factor": here, "peers": there, "samples": float(len(own))}
        about = self._census.about(replica)
        return (Evidence(Sign.SLOW_ANSWERS, about, now, "gateway", text, numbers),)

    def _row(self, book: _Book, least: float, now: int) -> list[tuple[int, float]]:
        """The waits at the end of the last minute that are all so long, oldest first."""
        span = nanos(self._config.row_s)
        late = takewhile(lambda one: one[1] >= least and now - one[0] < span, reversed(book.waits))
        return list(late)[::-1]

    def _is_full(self, replica: str, book: _Book, now: int) -> bool:
        """Whether it does its part of the work: whoever waits there waits for others."""
        books = [self._books[name] for name in self._census.peers(replica) if name in self._books]
        theirs = [self._given(peer, now) for peer in books]
        usual = median(theirs) if theirs else 0
        return usual > 0 and 2 * self._given(book, now) >= usual

    def _in_turns(self, replica: str, now: int) -> bool:
        """Whether a peer was as slow a moment ago."""
        books = map(self._books.get, self._census.peers(replica))
        times = [book.slow_at for book in books if book is not None and book.slow_at is not None]
        return any(0 <= now - at < nanos(_IN_TURNS_S) for at in times)

    def _is_quick(self, replica: str, book: _Book, now: int) -> bool:
        """Whether a canary came through just now about as quickly as through its peers."""
        if book.canary_s is None or not 0 <= now - book.canary_at < self._window:
            return False
        peers = map(self._books.get, self._census.peers(replica))
        theirs = [peer.canary_s for peer in peers if peer is not None and peer.canary_s is not None]
        return bool(theirs) and book.canary_s < _QUICK * median(theirs)

    def _given(self, book: _Book, now: int) -> int:
        tokens = book.tokens
        while tokens and not 0 <= now - tokens[0][0] < self._window:
            tokens.popleft()
        return sum(count for _, count in tokens)

    def _of_peers(self, replica: str, now: int) -> list[float]:
        books: Iterable[_Book | None] = map(self._books.get, self._census.peers(replica))
        return [wait for book in books if book is not None for wait in self._lately(book, now)]


def _late(waits: list[float]) -> float:
    """What nine of ten wait at most."""
    return sorted(waits)[len(waits) * 9 // 10]


__all__ = ["SlownessConfig", "SlownessDetector"]
