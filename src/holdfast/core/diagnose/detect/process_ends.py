"""Detects processes that exit, freeze, hang while loading or stop listening on their port.

    ProcessEnded ─► asked for? ── yes ─► nothing: it did as it was told
                        ├─ with its host ─► HOST_LOST, and nothing of the process
                        └─ no ─► EXITED, and what else the end shows: memory, the load, a request
    the same end three times in half an hour ─► EXITS_AGAIN

An end is one event and says little by itself. Which life it ended says more: one that never got
ready failed at loading, one that died within a minute of its first work died of that work. What
the fleet concluded (a load timeout, a port that refuses, another revision) holds until the replica
changes its state, and so does a frozen process until it runs again: those are said again meanwhile.

Rejected: reading every end by signal 9 as a lack of memory. Operators and platforms kill, too:
without a witness it is a sign of its own. Rejected: telling ends apart by exit code alone; engines
exit with 1 for everything.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.detect.silence import SERVING
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    FellSilent,
    Looked,
    PhaseSeen,
    ProcessEnded,
    ProcessFrozen,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.health.lifecycle import Conclusion, Signal
from holdfast.core.types import SECOND, State, nanos, require, seconds

_KILL: Final = 9
_ENDS_KEPT: Final = 32  # of one replica; more within half an hour say nothing new
_FRESH: Final = 5 * SECOND  # gateways tell every second: older numbers of requests are unknown
_REFUSED: Final = (Signal.REFUSED, Conclusion.REFUSED_REPEATEDLY)


@dataclass(slots=True, frozen=True)
class ProcessEndConfig:
    """Settings: when an end is blamed on first requests, and how many like ends are repeated.

    Checked when built: raises ``ConfigError``.
    """

    on_request_s: float = 60.0  # of its first work; what kills a replica does it sooner or later
    again_count: int = 3  # like ends: twice is bad luck, three times is a reason
    again_s: float = 1_800.0  # and within this: a large model takes minutes to load each time

    def __post_init__(self) -> None:
        for name in ("on_request_s", "again_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"ends.{name}", f"is {value}", fix)
        count = self.again_count
        fits = 2 <= count <= _ENDS_KEPT
        require(fits, "ends.again_count", f"is {count}", f"use 2 to {_ENDS_KEPT}")


class _Life:
    """What is known of the process that runs now."""

    __slots__ = ("first_work", "inflight", "inflight_at", "phase", "ready_at")

    def __init__(self) -> None:
        self.phase = ""  # "" = nobody said
        self.ready_at: int | None = None
        self.first_work: int | None = None
        self.inflight = 0
        self.inflight_at: int | None = None


class _Book:
    """One replica: its present life, its past ends, and what holds at the moment."""

    __slots__ = ("ends", "holding", "life", "pace", "state")

    def __init__(self) -> None:
        self.life = _Life()
        self.state: State | None = None
        self.ends: deque[tuple[str, int]] = deque(maxlen=_ENDS_KEPT)
        self.holding: dict[Sign, tuple[int, str, str]] = {}  # since, source, what is the matter
        self.pace = Pace()


class ProcessEndDetector:
    """Turns facts about replicas' processes into evidence: unasked exits, freezes, silence.

    Also hung loads, refused ports and wrong revisions. It keeps each replica's present life and
    past ends, so one exit can show several signs. What lasts is repeated on ticks until it is over.
    """

    reads: ClassVar[tuple[type, ...]] = (
        *(ProcessEnded, StateChanged, PhaseSeen, ProcessFrozen, FellSilent, AttemptsSeen, Looked),
    )

    def __init__(self, config: ProcessEndConfig, census: ReplicaRegistry) -> None:
        self._census = census
        self._on_request = nanos(config.on_request_s)
        self._again = nanos(config.again_s)
        self._again_count = config.again_count
        self._books: dict[str, _Book] = {}
        self._hosts = Pace()
        self._holding: dict[str, None] = {}  # replicas with something that holds, in order

    def take(
        self,
        fact: ProcessEnded
        | StateChanged
        | PhaseSeen
        | ProcessFrozen
        | FellSilent
        | AttemptsSeen
        | Looked,
        now: int,
    ) -> Sequence[Evidence]:
        """Take one fact about a replica's process, or a tick; return the signs it shows.

        None for an end that was asked for; only ``HOST_LOST`` for one that ended with its host.
        Reports of requests and phases are only remembered.
        """
        if isinstance(fact, Looked):
            return self._repeat(now) if self._holding else NOTHING
        book = self._books.get(fact.replica)
        if book is None:
            book = self._books[fact.replica] = _Book()
        if isinstance(fact, AttemptsSeen):
            _note_work(book.life, fact, now)
            return NOTHING
        if isinstance(fact, ProcessEnded):
            return self._ended(book, fact, now)
        if isinstance(fact, StateChanged):
            return self._changed(book, fact, now)
        if isinstance(fact, ProcessFrozen):
            if not fact.frozen:
                self._over(book, fact.replica, Sign.FROZEN)
                return NOTHING
            return self._hold(book, fact.replica, Sign.FROZEN, "platform", _FROZEN, now)
        if isinstance(fact, PhaseSeen):
            book.life.phase = fact.phase
            return NOTHING
        return self._silent(book, fact, now)

    def forget(self, replica: str) -> None:
        """Drop the present life, past ends and lasting signs of a replica."""
        self._books.pop(replica, None)
        self._holding.pop(replica, None)

    # --- ends ---

    def _ended(self, book: _Book, fact: ProcessEnded, now: int) -> Sequence[Evidence]:
        life, book.life = book.life, _Life()
        state, book.state = book.state, None
        self._over(book, fact.replica, Sign.FROZEN)
        if fact.asked:
            return NOTHING
        host = self._host_of(fact)
        if host:
            return self._host_lost(host, fact, now)
        like, text, numbers = _read(fact)
        signs = {Sign.EXITED: text}
        if fact.oom:
            signs[Sign.KILLED_FOR_MEMORY] = _for_memory(fact)
        elif like == "killed" and not fact.oom_ruled_out:
            signs[Sign.EXIT_137] = "signal 9, or exit code 137, is what a lack of memory looks like"
        if _was_loading(fact, life, state):
            phase = fact.phase or life.phase or "loading"
            signs[Sign.EXITED_LOADING] = f"it ended while {phase}, before it was ready"
        elif self._on_work(fact, life, now):
            signs[Sign.EXITED_ON_REQUEST] = "it ended with its first requests on it"
        # Witnessed or not, an end for memory is the same end: the witness misses some of them.
        book.ends.append((like, now))
        recent = sum(was == like and now - at <= self._again for was, at in book.ends)
        found = [
            self._evidence(sign, fact.replica, "launcher", told, numbers, now)
            for sign, told in signs.items()
            if book.pace.due((sign, like), now)
        ]
        if recent >= self._again_count and book.pace.due((Sign.EXITS_AGAIN, like), now):
            within = f"{recent} times within {seconds(self._again) / 60:.0f} min"
            told = f"ended the same way {within}: {text}"
            numbers = {**numbers, "ends": float(recent)}
            args = (Sign.EXITS_AGAIN, fact.replica, "launcher", told, numbers, now)
            found.append(self._evidence(*args))
        return found

    def _host_of(self, fact: ProcessEnded) -> str:
        """The host that a process ended with; empty: it ended by itself, or nobody knows where."""
        known = self._census.replicas.get(fact.replica) if fact.host_lost else None
        return known.host if known is not None else ""

    def _host_lost(self, host: str, fact: ProcessEnded, now: int) -> Sequence[Evidence]:
        """Say that a host is lost: of its replicas' ends nothing else is to be concluded."""
        if not self._hosts.due(host, now):
            return NOTHING
        said = fact.reason[:_REASON_MAX] or "its host is gone"
        text = f"{fact.replica} ended with its host {host}: {said}"
        return [Evidence(Sign.HOST_LOST, About(host=host), now, "platform", text, {})]

    def _on_work(self, fact: ProcessEnded, life: _Life, now: int) -> bool:
        """Whether it died within its first minute of work, with work on it."""
        fresh = life.inflight_at is not None and now - life.inflight_at <= _FRESH
        in_flight = fresh and life.inflight > 0
        if fact.served is None:
            worked = in_flight or life.first_work is not None
        else:
            worked = in_flight or fact.served >= 1
        if not worked:
            return False
        # The work may be later than readiness by hours, so the later of both counts.
        began = life.ready_at if life.first_work is None else life.first_work
        if began is not None:
            return now - began <= self._on_request
        # Nobody saw it become ready: it did so after its start, and one request is the first one.
        young = fact.uptime_s is not None and nanos(fact.uptime_s) <= self._on_request
        return young or fact.served == 1

    # --- what the fleet concluded ---

    def _changed(self, book: _Book, fact: StateChanged, now: int) -> Sequence[Evidence]:
        if fact.state is not book.state:
            for sign in (Sign.LOAD_STUCK, Sign.REFUSES, Sign.WRONG_REVISION):
                self._over(book, fact.replica, sign)
        book.state = fact.state
        life = book.life
        if fact.state is State.STARTING:
            book.life = _Life()
        elif fact.state is State.READY:
            life.ready_at = now if life.ready_at is None else life.ready_at
            life.phase = SERVING
            self._over(book, fact.replica, Sign.FROZEN)  # it answers: the news of a thaw was lost
        elif fact.signal == Signal.LOAD_TIMEOUT:
            what = "was not ready within its loading time"
            return self._hold(book, fact.replica, Sign.LOAD_STUCK, "launcher", what, now)
        elif fact.state is State.DEAD and fact.signal in _REFUSED:
            what = "refuses every connection: nobody listens"
            return self._hold(book, fact.replica, Sign.REFUSES, "canary", what, now)
        elif fact.signal == Signal.WRONG_REVISION:
            what = "serves another revision than declared"
            return self._hold(book, fact.replica, Sign.WRONG_REVISION, "engine", what, now)
        return NOTHING

    def _silent(self, book: _Book, fact: FellSilent, now: int) -> Sequence[Evidence]:
        serving = fact.phase == SERVING
        sign = Sign.SILENT_SERVING if serving else Sign.SILENT_LOADING
        if not book.pace.due(sign, now):
            return NOTHING
        text = f"nothing was heard of it for {fact.silent_s:.0f} s while {fact.phase or 'loading'}"
        numbers = {"silent_s": float(fact.silent_s)}
        return [self._evidence(sign, fact.replica, "engine", text, numbers, now)]

    # --- what holds ---

    def _hold(
        self, book: _Book, replica: str, sign: Sign, source: str, what: str, now: int
    ) -> Sequence[Evidence]:
        book.holding.setdefault(sign, (now, source, what))
        self._holding[replica] = None
        return self._say(book, replica, now)

    def _over(self, book: _Book, replica: str, sign: Sign) -> None:
        book.pace.over(sign)
        if book.holding.pop(sign, None) is not None and not book.holding:
            self._holding.pop(replica, None)

    def _repeat(self, now: int) -> Sequence[Evidence]:
        found: list[Evidence] = []
        for replica in self._holding:
            found += self._say(self._books[replica], replica, now)
        return found

    def _say(self, book: _Book, replica: str, now: int) -> list[Evidence]:
        found = []
        for sign, (since, source, what) in book.holding.items():
            if book.pace.due(sign, now):
                held = max(0, now - since)
                text = what if held < SECOND else f"{what}, for {seconds(held):.0f} s now"
                numbers = {"for_s": seconds(held)}
                found.append(self._evidence(sign, replica, source, text, numbers, now))
        return found

    def _evidence(
        self, sign: Sign, replica: str, source: str, text: str, numbers: dict[str, float], now: int
    ) -> Evidence:
        return Evidence(sign, self._census.about(replica), now, source, text, numbers)


_FROZEN: Final = "its process is not run: it is stopped or frozen"
_REASON_MAX: Final = 160


def _for_memory(fact: ProcessEnded) -> str:
    if not fact.reason:
        return "the kernel killed it for lack of memory"
    return f"it was ended for lack of memory, as its platform says: {fact.reason[:_REASON_MAX]}"


def _note_work(life: _Life, fact: AttemptsSeen, now: int) -> None:
    """Gateways tell late: what they say before this life is ready is still about the last one."""
    if life.ready_at is None:
        return
    life.inflight, life.inflight_at = fact.inflight, now
    if life.first_work is None and (fact.inflight or fact.successes or fact.failures):
        life.first_work = now


def _was_loading(fact: ProcessEnded, life: _Life, state: State | None) -> bool:
    if life.ready_at is not None:
        return False  # its answers were right in this life, whatever a probe of its platform says
    phase = fact.phase or life.phase
    if phase:
        return phase != SERVING
    return state in (State.STARTING, State.LOADING, State.WARMING)


def _read(fact: ProcessEnded) -> tuple[str, str, dict[str, float]]:
    """What kind of end it was, in one word to compare by, in words, and in numbers."""
    signal = fact.signal
    if signal is None and fact.code is not None:
        if fact.code < 0:
            signal = -fact.code
        elif fact.code > 128:  # how shells and container runtimes write a signal
            signal = fact.code - 128
    numbers: dict[str, float] = {}
    for name in ("code", "signal", "uptime_s", "served"):
        value = getattr(fact, name)
        if value is not None:
            numbers[name] = float(value)
    when = f" after {fact.uptime_s:.0f} s" if fact.uptime_s is not None else ""
    if fact.oom:
        by = signal if signal is not None else _KILL
        like, text = "killed", f"its process was ended by signal {by}{when}"
    elif signal == _KILL and fact.oom_ruled_out:
        like, text = "killed", f"it was killed by signal 9{when}, and not by the kernel for memory"
    elif signal == _KILL:
        like, text = "killed", f"it was killed by signal 9{when}, and nobody saw by whom"
    elif signal is not None:
        like, text = f"signal {signal}", f"its process ended by signal {signal}{when}"
    elif fact.code is not None:
        like, text = f"code {fact.code}", f"its process exited with code {fact.code}{when}"
    else:
        like, text = "unknown", f"its process is gone{when} and left no exit code"
    if fact.reason and not fact.oom:  # of memory it is said beside that sign
        text += f"; its platform says: {fact.reason[:_REASON_MAX]}"
    return like, text, numbers


__all__ = ["ProcessEndConfig", "ProcessEndDetector"]
