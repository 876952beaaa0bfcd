"""Detects engines that are up but make no progress: stalled, starved, out of cache, or very slow.

    running > 0, no token for 15 s ───────────────────► STALLED
    waiting > 0, running = 0 for 20 s, peers serve ───► STARVED
    refusals while a fifth of its memory is free ─────► FRAGMENTED
    cache above 97 % for 30 s ─► KV_FULL      many preemptions a minute ─► PREEMPTS
    tokens at a fifth of its own past and of its peers' pace for 20 s ─► SLOW_TOKENS

All times are *seen* times: what an engine did between two looks that lie far apart is unknown, and
a clock that jumps is no time either, so a gap counts as one look. Unknown numbers neither accuse
nor excuse. A replica that prefills a long prompt emits nothing for a while: while its page shows
that it reads prompts it is at work; before the first token of a busy spell it has twice the time,
and twice the longest pause that ended well is allowed. Where peers stand still too, a shared cause
is likely, and every replica has twice the time.

The pace of one request falls with the number beside it. A replica is therefore measured at its
load: at as many requests or more it was as quick, and with fewer it emitted as much in sum.

Rejected: one timeout on requests. It fires where users already gave up, and cannot tell a slow
answer from none. Rejected: counters without users' tokens. Some engines count in batches.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from statistics import median
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    LineSeen,
    LoadSeen,
    Mark,
    MemorySeen,
    ProcessEnded,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.engine_work import EnginePage, EngineWork, WorkWatch
from holdfast.core.failure import Kind
from holdfast.core.stats import Ewma, RateWindow
from holdfast.core.types import SECOND, nanos, require, seconds

_LOOK_MAX: Final = 6 * SECOND  # between two looks, once in 5 s at the least; more is unknown
_FRESH: Final = 10 * SECOND  # how long what a peer was seen to do counts as now
_PATIENCE_MAX: Final = 120 * SECOND  # however long its pauses once were
_PAST_S: Final = 10.0  # of looks at one load before its pace there counts as known
_PACE_OVER: Final = 10 * SECOND  # what its pace is taken over
_SAMPLES_MAX: Final = 128  # of its pace in that
_POWERS_MAX: Final = 16  # 65,536 requests at once are as good as more


@dataclass(slots=True, frozen=True)
class StallConfig:
    """Settings of ``StallDetector``: how long an engine may make no progress."""

    stalled_s: float = 15.0  # requests run, no token: far above any pause between two tokens
    prefill_factor: float = 2.0  # times that before the first token of a busy spell
    starved_s: float = 20.0  # requests wait, none runs: schedulers take milliseconds
    kv_full: float = 0.97  # share of the cache; engines work well up to it
    kv_full_s: float = 30.0  # a burst passes sooner
    free_min: float = 0.2  # of cache or memory: less may be what it keeps in reserve
    refusals_min: int = 2  # failed allocations: one may have been one huge request
    refusals_s: float = 30.0  # within this
    preemptions_per_min: int = 30  # each throws work away; a few are how a full cache breathes
    slow_factor: float = 0.2  # of its own past and of its peers' median: load explains a half
    slow_s: float = 20.0  # long prompts and a neighbour's work together take ten

    def __post_init__(self) -> None:
        for name in ("stalled_s", "starved_s", "kv_full_s", "refusals_s", "slow_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to an hour"
            require(0 < value <= 3_600, f"stall.{name}", f"is {value}", fix)
        for name in ("kv_full", "free_min", "slow_factor"):
            value = getattr(self, name)
            require(0 < value < 1, f"stall.{name}", f"is {value}", "use a share between 0 and 1")
        for name in ("refusals_min", "preemptions_per_min", "prefill_factor"):
            value = getattr(self, name)
            require(value >= 1, f"stall.{name}", f"is {value}", "use 1 or more")


class _Held:
    """For how long a condition was seen to hold."""

    __slots__ = ("_holds", "_last", "held")

    def __init__(self) -> None:
        self.held = 0
        self._holds = False
        self._last = 0

    def look(self, holds: bool | None, now: int) -> int:
        """One look; unknown (None) adds nothing and takes nothing away."""
        if holds is not None:
            if not holds:
                self.held = 0
            elif self._holds:
                self.held += min(max(0, now - self._last), _LOOK_MAX)
            self._holds = holds
        self._last = now
        return self.held


class _Speed:
    """Tokens per running request and second: lately, and in this life so far by load."""

    __slots__ = ("_generated", "_last", "past", "samples")

    def __init__(self) -> None:
        self._generated: int | None = None
        self._last = 0
        self.samples: deque[tuple[int, float, int, float]] = deque(maxlen=_SAMPLES_MAX)
        self.past: dict[int, tuple[Ewma, float]] = {}  # by the power of two of the load; seconds

    def look(self, running: int | None, tokens: int | None, now: int, window: int) -> None:
        """Note how much was emitted since the last look; ``tokens`` counts since the start."""
        before, last = self._generated, self._last
        self._generated, self._last = tokens, now
        while self.samples and not 0 <= now - self.samples[0][0] < window:
            self.samples.popleft()
        passed = now - last
        if before is None or tokens is None or not running or tokens < before:
            return
        if 0 < passed <= _LOOK_MAX:
            self.samples.append((now, float(tokens - before), running, seconds(passed)))

    def lately(self, now: int) -> tuple[float, float] | None:
        """Its pace and its load over the window; None where nothing was seen lately."""
        if not self.samples or not 0 <= now - self.samples[-1][0] <= _FRESH:
            return None
        made = sum(tokens for _, tokens, _, _ in self.samples)
        work = sum(running * passed for _, _, running, passed in self.samples)
        return made / work, work / sum(passed for *_, passed in self.samples)

    def best(self) -> float:
        """The fastest of its looks: a second of full speed shows that it is well."""
        return max(made / (running * passed) for _, made, running, passed in self.samples)

    def expected(self, load: float) -> float | None:
        """What it gave each request at this load or a larger one, or must give by its sum."""
        known = [
            _at_load(past.value, float(2**power), load)
            for power, (past, seen) in self.past.items()
            if seen >= _PAST_S and past.value is not None
        ]
        return max(known, default=None)

    def learn(self, pace: float, load: float, now: int) -> None:
        """Take a healthy pace into its past."""
        power = min(round(log2(load)), _POWERS_MAX) if load > 1 else 0
        past, seen = self.past.get(power, (None, 0.0))
        past = Ewma(300.0) if past is None else past
        past.add(pace, now)
        self.past[power] = (past, seen + self.samples[-1][3])


class _Book:
    """One process of one replica."""

    __slots__ = (
        *("fresh_tokens", "full", "generated", "kv_used", "lines", "longest", "memory"),
        *("peak_running", "preempted", "preemptions", "refused", "running", "said", "served_at"),
        *("slow", "speed", "spoke", "stalled", "starved", "waiting", "work"),
    )

    def __init__(self) -> None:
        self.said = Pace()
        self.running: int | None = None
        self.waiting: int | None = None
        self.kv_used: float | None = None
        self.generated: int | None = None
        self.preempted: int | None = None
        self.memory: dict[str, float] = {}  # free share by device
        self.fresh_tokens = False  # users got some since the last look at the engine
        self.spoke = False  # a token came in this busy spell
        self.longest = 0  # pause within a busy spell that ended with a token
        self.peak_running = 0
        self.served_at: int | None = None  # when work was last seen to move
        self.stalled, self.starved, self.full, self.slow = _Held(), _Held(), _Held(), _Held()
        self.preemptions = RateWindow(60.0, 12)
        self.lines: deque[int] = deque(maxlen=16)  # when an allocation failed
        self.refused: deque[int] = deque(maxlen=64)  # when it turned requests away, serving none
        self.work = WorkWatch()
        self.speed = _Speed()

    def free_share(self) -> float | None:
        """Of what requests live in: the cache where it is known, else the GPU, else the host."""
        if self.kv_used is not None:
            return 1.0 - self.kv_used
        return self.memory.get("gpu", self.memory.get("host"))


_Found = tuple[Sign, str, dict[str, float]]


class StallDetector:
    """Finds engines that are up and stalled, starved, out of cache, fragmented or very slow."""

    reads: ClassVar[tuple[type, ...]] = (
        *(LoadSeen, AttemptsSeen, MemorySeen, LineSeen, ProcessEnded),
    )

    def __init__(self, config: StallConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._stalled = nanos(config.stalled_s)
        self._starved = nanos(config.starved_s)
        self._full = nanos(config.kv_full_s)
        self._slow = nanos(config.slow_s)
        self._refusals = nanos(config.refusals_s)
        self._books: dict[str, _Book] = {}

    def take(
        self, fact: LoadSeen | AttemptsSeen | MemorySeen | LineSeen | ProcessEnded, now: int
    ) -> Sequence[Evidence]:
        """Take an engine's load, users' requests, memory, a log line or an end; return due signs.

        One fact may show several. What is unknown (None) neither accuses nor excuses; an end drops
        all of its replica.
        """
        if isinstance(fact, ProcessEnded):
            self.forget(fact.replica)  # counters begin anew, and so does its work
            return NOTHING
        book = self._books.get(fact.replica)
        if book is None:
            book = self._books[fact.replica] = _Book()
        found: list[_Found] = []
        if isinstance(fact, LoadSeen):
            found += self._loaded(book, fact, now)
        elif isinstance(fact, AttemptsSeen):
            self._attempted(book, fact, now)
        elif isinstance(fact, MemorySeen):
            if fact.limit_bytes:
                book.memory[fact.device] = max(0.0, 1 - fact.used_bytes / fact.limit_bytes)
        elif fact.mark is Mark.ALLOCATION_FAILED:
            book.lines.append(now)
        found += self._fragmented(book, fact.replica, now)
        about = self._census.about(fact.replica)
        return [
            Evidence(sign, about, now, "engine", text, numbers)
            for sign, text, numbers in found
            if book.said.due(sign, now)
        ]

    def forget(self, replica: str) -> None:
        """Drop all counters of a replica, its usual pace included; an end does the same."""
        self._books.pop(replica, None)

    # --- facts ---

    def _attempted(self, book: _Book, fact: AttemptsSeen, now: int) -> None:
        if fact.tokens or fact.successes:
            book.fresh_tokens = True
            book.served_at = now
        if fact.successes:
            book.refused.clear()
        turned_away = fact.backpressure + fact.failures.get(Kind.OVERLOADED, 0)
        if turned_away and not fact.successes:
            book.refused.append(now)
        if fact.failures.get(Kind.OUT_OF_MEMORY):
            book.lines.append(now)  # the engine said so in its answer instead of its log

    def _loaded(self, book: _Book, fact: LoadSeen, now: int) -> list[_Found]:
        moved = _moved(book.generated, fact.generated)
        if moved:
            book.served_at = now
        told = (fact.running, fact.kv_used, fact.generated, fact.steps)
        reads = book.work.look(EnginePage(*told)) in (EngineWork.STEPS, EngineWork.FILLING)
        progress = True if moved or reads or book.fresh_tokens else moved
        book.fresh_tokens = False
        book.generated = fact.generated if fact.generated is not None else book.generated
        book.running, book.waiting = fact.running, fact.waiting
        if fact.running is not None:
            book.peak_running = max(book.peak_running, fact.running)
        if fact.kv_used is not None:
            book.kv_used = fact.kv_used
        signs = (
            self._check_stall(book, fact.replica, progress, now),
            self._check_starved(book, fact, progress, now),
            self._check_cache(book, fact, now),
            self._check_preemptions(book, fact, now),
            self._check_pace(book, fact, now),
        )
        return [sign for sign in signs if sign is not None]

    # --- signs ---

    def _check_stall(
        self, book: _Book, replica: str, progress: bool | None, now: int
    ) -> _Found | None:
        running = book.running
        if progress or running == 0:
            if progress and book.spoke:
                book.longest = max(book.longest, book.stalled.held)
            book.spoke = bool(progress) and running != 0
            book.stalled.look(False, now)
            book.said.over(Sign.STALLED)
            return None
        # A counter that nobody shows proves no stall: users' tokens alone come and go with users.
        held = book.stalled.look(None if running is None or progress is None else True, now)
        patience = self._stalled
        if not book.spoke:
            patience = round(patience * self._config.prefill_factor)
        patience = max(patience, min(2 * book.longest, _PATIENCE_MAX))
        if running is None or held < patience:
            return None
        peers = self._peers(replica)
        if held < 2 * patience and _most(
            [peer.stalled.held >= patience // 2 for peer in peers if peer.running]
        ):
            return None
        text = f"{running} requests run and no token came out for {seconds(held):.0f} s"
        return Sign.STALLED, text, {"running": float(running), "for_s": seconds(held)}

    def _check_starved(
        self, book: _Book, fact: LoadSeen, progress: bool | None, now: int
    ) -> _Found | None:
        running, waiting = fact.running, fact.waiting
        if running is None or waiting is None:
            book.starved.look(None, now)
            return None
        holds = waiting > 0 and running == 0 and not progress
        held = book.starved.look(holds, now)
        if not holds:
            book.said.over(Sign.STARVED)
        if held < self._starved:
            return None
        peers = self._peers(fact.replica)
        serves = any(_lately(peer.served_at, now) for peer in peers)
        alike = _most([peer.starved.held >= self._starved // 2 for peer in peers])
        if held < 2 * self._starved and (alike or not serves):
            return None
        text = f"{waiting} requests wait, none was started for {seconds(held):.0f} s"
        if serves:
            text += " while its peers serve"
        return Sign.STARVED, text, {"waiting": float(waiting), "for_s": seconds(held)}

    def _check_cache(self, book: _Book, fact: LoadSeen, now: int) -> _Found | None:
        used = fact.kv_used
        full = None if used is None else used > self._config.kv_full
        held = book.full.look(full, now)
        if full is False:
            book.said.over(Sign.KV_FULL)
        if used is None or not full or held < self._full:
            return None
        text = f"its KV cache is {used:.0%} full for {seconds(held):.0f} s"
        return Sign.KV_FULL, text, {"kv_used": used, "for_s": seconds(held)}

    def _check_preemptions(self, book: _Book, fact: LoadSeen, now: int) -> _Found | None:
        if fact.preemptions is not None:
            before, book.preempted = book.preempted, fact.preemptions
            if before is not None and fact.preemptions > before:
                book.preemptions.add(now, fact.preemptions - before)
        count = book.preemptions.total(now)
        if count <= self._config.preemptions_per_min:
            return None
        text = f"it put {count} running requests off within a minute for lack of cache"
        return Sign.PREEMPTS, text, {"preemptions_per_min": float(count)}

    def _check_pace(self, book: _Book, fact: LoadSeen, now: int) -> _Found | None:
        speed = book.speed
        speed.look(fact.running, fact.generated, now, _PACE_OVER)
        lately = speed.lately(now)
        if lately is None or not fact.running:
            book.slow.look(None if fact.running is None else False, now)
            return None
        pace, load = lately
        usual = speed.expected(load)
        # Its past must not learn to drip.
        if usual is None or pace >= usual / 2:
            speed.learn(pace, load, now)
        if usual is None:
            return None
        bound = self._config.slow_factor
        slow = 0 < pace < bound * usual and speed.best() < usual / 2
        held = book.slow.look(slow, now)
        if not slow:
            book.said.over(Sign.SLOW_TOKENS)
        if held < self._slow:
            return None
        others = [peer.speed.lately(now) for peer in self._peers(fact.replica)]
        scaled = [_at_load(*one, load) for one in others if one is not None]
        if not scaled or pace >= bound * median(scaled):
            return None
        theirs = median(scaled)
        text = (
            f"it gives each request {pace:.1f} tokens/s; at this load it gave {usual:.1f} before, "
            f"and its peers give {theirs:.1f}"
        )
        return Sign.SLOW_TOKENS, text, {"pace": pace, "before": usual, "peers": theirs}

    def _fragmented(self, book: _Book, replica: str, now: int) -> list[_Found]:
        if not (book.lines or book.refused):
            return []
        free = book.free_share()
        if free is None or free <= self._config.free_min:
            return []
        failed = sum(now - at <= self._refusals for at in book.lines)
        what = f"{failed} allocations failed"
        if failed < self._config.refusals_min:
            failed = self._turned_away(book, replica, now)
            what = "it turns all requests away at half the load it once carried"
        if failed < self._config.refusals_min:
            return []
        text = (
            f"{what} within {seconds(self._refusals):.0f} s while {free:.0%} of its memory is free"
        )
        return [(Sign.FRAGMENTED, text, {"free_share": free, "refusals": float(failed)})]

    def _turned_away(self, book: _Book, replica: str, now: int) -> int:
        """Reports of nothing but refusals, where neither load nor a busy fleet explains them."""
        running = book.running
        if running is None or 2 * running > book.peak_running or book.waiting:
            return 0
        recent = sum(now - at <= self._refusals for at in book.refused)
        if recent < 5 * self._config.refusals_min:  # ten seconds of them, not one
            return 0
        busy = [
            bool(peer.refused) and _lately(peer.refused[-1], now) for peer in self._peers(replica)
        ]
        return 0 if _most(busy) else recent

    def _peers(self, replica: str) -> list[_Book]:
        names = self._census.peers(replica)
        return [book for name in names if (book := self._books.get(name)) is not None]


def _moved(before: int | None, after: int | None) -> bool | None:
    """Whether tokens came out; a counter that fell began anew, and that is work, too."""
    if before is None or after is None:
        return None
    return after != before


def _at_load(pace: float, load: float, wanted: float) -> float:
    """What this pace at this load means at another: no less for fewer, the same sum for more."""
    return pace if load >= wanted else pace * load / wanted


def _most(alike: Sequence[bool]) -> bool:
    """Whether most replicas are alike, one that is and these others counted."""
    count = sum(alike)
    return count > 0 and 2 * (count + 1) > len(alike) + 1


def _lately(at: int | None, now: int) -> bool:
    return at is not None and now - at <= _FRESH


__all__ = ["StallConfig", "StallDetector"]
