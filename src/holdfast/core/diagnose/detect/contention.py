"""Detects a shared filesystem that is saturated because too many replicas load at once.

Forty containers that share 100 MB/s get 2.5 MB/s each, and 10 GB take more than an hour. Seen from
one replica it is a slow load; seen from the filesystem it is bandwidth at its ceiling while
operations are far from theirs, so that nothing looks wrong in the count of operations.

    filesystem: read of permitted, operations ─► held for a while, by several that load ─► full
    replica: bytes read in the last minute ─► when it will be done ─► compared with others' loads

A filesystem without a known ceiling (an elastic one has none for reads) has no percentage: then
only the loads themselves speak. What is read must be counted as the ceiling counts it; where reads
are metered at a third of their bytes, the source of the fact has metered them. Nothing read for a
while is a stuck load and no slow one; silence has its own detector.

Rejected: a fixed time for a load. Weights differ by three orders of magnitude. Rejected: full speed
at one glance. A single load at full speed is how it should be.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.detect.silence import LOADING, STARTING
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    Declared,
    FilesystemSeen,
    Looked,
    PhaseSeen,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import State, nanos, require, seconds

FILESYSTEMS_MAX: Final = 1_024  # beyond it nobody new is watched, and ``refused`` counts
MODELS_MAX: Final = 1_024  # whose loads are remembered; the one that loaded longest ago goes first
_LOADS_KEPT: Final = 9  # finished loads of one model: their median is what a load takes
_SAMPLES: Final = 16  # of one load's progress
_SOURCE: Final = "contention"
_SIGNS: Final = (Sign.FILESYSTEM_FULL_SPEED, Sign.FILESYSTEM_OPERATIONS)
_MB: Final = 1e6

_Fact = FilesystemSeen | PhaseSeen | Declared | StateChanged | ProcessEnded | Looked


@dataclass(slots=True, frozen=True)
class ContentionConfig:
    """Settings of ``ContentionDetector``: when a filesystem is saturated, and a load slow.

    Checked when built: raises ``ConfigError``.
    """

    full: float = 0.90  # of the permitted bandwidth; averages over a minute never show all of it
    operations_low: float = 0.50  # above it bandwidth is not the only thing that is short
    operations_full: float = 0.90  # of the permitted operations
    readers_min: int = 2  # that load at once; one alone at full speed is how it should be
    hold_s: float = 30.0  # it has to last: a small model is loaded by then
    stale_s: float = 180.0  # a sight older than this says nothing; platforms tell once a minute
    sample_s: float = 4.0  # between two kept samples of a load's progress
    rate_after_s: float = 20.0  # of progress before a rate is believed
    slow_after_s: float = 600.0  # a load that is done sooner is not worth a word
    slow_factor: float = 4.0  # times what other loads of the model took
    slow_bytes_s: float = 50e6  # with none to compare: any disk of its own reads faster than that

    def __post_init__(self) -> None:
        for name in ("full", "operations_low", "operations_full"):
            value = getattr(self, name)
            fix = "use a share above 0, up to 1"
            require(0 < value <= 1, f"contention.{name}", f"is {value}", fix)
        for name in ("hold_s", "stale_s", "sample_s", "rate_after_s", "slow_after_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"contention.{name}", f"is {value}", fix)
        few = f"is {self.readers_min}"
        require(self.readers_min >= 1, "contention.readers_min", few, "use 1 or more")
        factor = f"is {self.slow_factor}"
        require(self.slow_factor > 1, "contention.slow_factor", factor, "use more than 1")
        rate = f"is {self.slow_bytes_s}"
        require(self.slow_bytes_s > 0, "contention.slow_bytes_s", rate, "use bytes/s above 0")


@dataclass(slots=True)
class _Load:
    """One replica's way to its weights."""

    began: int
    total: int | None = None
    loading: bool = True
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    @property
    def left(self) -> int | None:
        if self.total is None:
            return None
        return max(0, self.total - (self.samples[-1][1] if self.samples else 0))


@dataclass(slots=True)
class _Sight:
    """One filesystem, as it was seen last, and since when it is full."""

    last: FilesystemSeen
    at: int
    since: dict[Sign, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class _Slowness:
    read: int
    total: int
    bytes_s: float
    eta_s: float
    whole_s: float  # from its beginning to its end
    usual_s: float | None  # None: no other load of its model is known


class ContentionDetector:
    """Finds shared filesystems saturated by several loading replicas, and loads that are slow.

    Keeps the progress of each loading replica, the last figures of each filesystem, and how long
    recent loads of each model took.
    """

    reads: ClassVar[tuple[type, ...]] = (
        *(FilesystemSeen, PhaseSeen, Declared, StateChanged, ProcessEnded, Looked),
    )

    def __init__(self, config: ContentionConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._loads: dict[str, _Load] = {}  # as many as the census holds
        self._sights: dict[str, _Sight] = {}
        self._took: dict[str, deque[int]] = {}  # by model: how long loads took
        self._open: dict[str, None] = {}  # replicas whose load is slow
        self._pace = Pace()
        self.refused = 0  # filesystems that did not fit

    def take(self, fact: _Fact, now: int) -> Sequence[Evidence]:
        """Take a filesystem's load, a replica's progress, state or end, or a tick; return evidence.

        Signs are ``FILESYSTEM_FULL_SPEED`` and ``FILESYSTEM_OPERATIONS`` about the filesystem, and
        ``LOAD_SLOW`` about a replica, with an estimate of when it is done.
        """
        if isinstance(fact, FilesystemSeen):
            return list(self._watch(fact, now))
        if isinstance(fact, Looked):
            said = [one for name in tuple(self._open) for one in self._slow(name, now)]
            full = [name for name, sight in self._sights.items() if sight.since]
            return said + [one for name in full for one in self._full(name, now)]
        known = self._census.replicas.get(fact.replica)
        if known is None:
            return NOTHING
        if isinstance(fact, PhaseSeen):
            self._phase(known, fact, now)
        elif isinstance(fact, StateChanged):
            self._state(known, fact.state, now)
        elif isinstance(fact, ProcessEnded) and fact.replica in self._loads:
            self._loads[fact.replica] = _Load(now, loading=False)
        return list(self._slow(fact.replica, now))

    def forget(self, replica: str) -> None:
        """Drop the loading progress of a replica that left the fleet."""
        self._loads.pop(replica, None)
        self._fast(replica)

    def _fast(self, replica: str) -> None:
        self._open.pop(replica, None)
        self._pace.over((Sign.LOAD_SLOW, replica))

    # --- loads ----------------------------------------------------------------------------------

    def _state(self, known: Declared, state: State, now: int) -> None:
        if state in (State.STARTING, State.LOADING):
            self._begin(known, now)
        else:
            self._end(known, now, finished=state in (State.WARMING, State.READY))

    def _begin(self, known: Declared, now: int) -> _Load:
        load = self._loads.get(known.replica)
        if load is None or not load.loading:
            load = self._loads[known.replica] = _Load(now, known.weights_bytes)
        return load

    def _end(self, known: Declared, now: int, *, finished: bool) -> None:
        load = self._loads.get(known.replica)
        if load is None:
            load = self._loads[known.replica] = _Load(now, loading=False)
        if not load.loading:
            return
        load.loading = False
        if finished:
            took = self._took.pop(known.model, None) or deque(maxlen=_LOADS_KEPT)
            took.append(now - load.began)
            self._took[known.model] = took
            if len(self._took) > MODELS_MAX:
                del self._took[next(iter(self._took))]

    def _phase(self, known: Declared, fact: PhaseSeen, now: int) -> None:
        if fact.phase not in (STARTING, LOADING):
            self._end(known, now, finished=True)
            return
        load = self._begin(known, now)
        load.total = fact.total_bytes or load.total
        read = fact.read_bytes
        if read is None:
            return
        samples = load.samples
        if samples and read < samples[-1][1]:
            samples.clear()  # it began again
        close = len(samples) > 1 and now - samples[-2][0] < nanos(self._config.sample_s)
        if close:
            samples[-1] = (now, read)
        else:
            samples.append((now, read))

    def _slow(self, replica: str, now: int) -> Iterator[Evidence]:
        pace = self._measure(replica, now)
        if pace is None:
            self._fast(replica)
            return
        self._open[replica] = None
        if self._pace.due((Sign.LOAD_SLOW, replica), now):
            yield self._say_slow(replica, pace, now)

    def _measure(self, replica: str, now: int) -> _Slowness | None:
        """How slow a load is; None for one that is not, or of which too little is known."""
        config = self._config
        load, known = self._loads.get(replica), self._census.replicas.get(replica)
        if load is None or known is None or not load.loading or not load.samples:
            return None
        (began, first), (at, last), left = load.samples[0], load.samples[-1], load.left
        stale = now - at > nanos(config.stale_s)
        if stale or not left or at - began < nanos(config.rate_after_s) or last == first:
            return None
        rate = (last - first) / seconds(at - began)
        eta = left / rate
        whole = seconds(at - load.began) + eta
        others = self._took.get(known.model)
        usual = seconds(round(median(others))) if others else None
        much = rate < config.slow_bytes_s if usual is None else whole > config.slow_factor * usual
        if whole < config.slow_after_s or not much:
            return None
        return _Slowness(last, last + left, rate, eta, whole, usual)

    def _say_slow(self, replica: str, found: _Slowness, now: int) -> Evidence:
        about = self._census.about(replica)
        compared = ""
        numbers = {
            "eta_s": found.eta_s,
            "bytes_s": found.bytes_s,
            "readers": float(max(1, self._readers(about.filesystem, None))),
            "total_bytes": float(found.total),
        }
        if found.usual_s is not None:
            numbers["usual_s"] = found.usual_s
            compared = f"; other loads of {about.model} took {found.usual_s:.0f} s"
        text = (
            f"{found.read / 1e9:.1f} of {found.total / 1e9:.1f} GB read at"
            f" {found.bytes_s / _MB:.1f} MB/s: ready in {found.eta_s:.0f} s,"
            f" {found.whole_s:.0f} s after it began{compared}"
        )
        return Evidence(Sign.LOAD_SLOW, about, now, _SOURCE, text, numbers)

    # --- filesystems ----------------------------------------------------------------------------

    def _readers(self, filesystem: str, told: int | None) -> int:
        """How many load from it: those known to, and of the unknown as many as were told of."""
        if not filesystem:
            return 0
        loading = unknown = 0
        for name, one in self._census.replicas.items():
            if one.filesystem == filesystem:
                load = self._loads.get(name)
                unknown += load is None
                loading += load is not None and load.loading
        return loading if told is None else max(loading, min(told, loading + unknown))

    def _watch(self, fact: FilesystemSeen, now: int) -> Iterator[Evidence]:
        sight = self._sights.get(fact.filesystem)
        if sight is None:
            if len(self._sights) >= FILESYSTEMS_MAX:
                self.refused += 1
                return
            sight = self._sights[fact.filesystem] = _Sight(fact, now)
        sight.last, sight.at = fact, now
        config, operations = self._config, fact.operations_share
        read, permitted = fact.read_bytes_s, fact.permitted_bytes_s
        if read is not None:
            full = bool(permitted) and read >= config.full * (permitted or 0)
            low = operations is None or operations < config.operations_low
            self._hold(sight, Sign.FILESYSTEM_FULL_SPEED, full and low, now)
        if operations is not None:
            full = operations >= config.operations_full
            self._hold(sight, Sign.FILESYSTEM_OPERATIONS, full, now)
        yield from self._full(fact.filesystem, now)

    def _hold(self, sight: _Sight, sign: Sign, holds: bool, now: int) -> None:
        if holds:
            sight.since.setdefault(sign, now)
        else:
            self._relax(sight, sign)

    def _relax(self, sight: _Sight, sign: Sign) -> None:
        sight.since.pop(sign, None)
        self._pace.over((sign, sight.last.filesystem))

    def _full(self, filesystem: str, now: int) -> Iterator[Evidence]:
        sight = self._sights[filesystem]
        if now - sight.at > nanos(self._config.stale_s):
            for sign in _SIGNS:
                self._relax(sight, sign)
            return
        for sign, since in sight.since.items():
            if now - since < nanos(self._config.hold_s):
                continue
            readers = self._readers(filesystem, sight.last.readers)
            if readers < self._config.readers_min:
                self._pace.over((sign, filesystem))
            elif self._pace.due((sign, filesystem), now):
                yield self._say(sign, sight, readers, now)

    def _say(self, sign: Sign, sight: _Sight, readers: int, now: int) -> Evidence:
        last, name = sight.last, sight.last.filesystem
        numbers = {"readers": float(readers)}
        used = "operations unknown"
        if last.operations_share is not None:
            numbers["operations_share"] = last.operations_share
            used = f"operations at {last.operations_share:.0%}"
        text = f"{used} of what is permitted, {readers} readers load at once"
        if last.read_bytes_s:
            read, each = last.read_bytes_s, last.read_bytes_s / readers
            numbers |= {"read_bytes_s": read, "bytes_s": each}
            text = f"reads {read / _MB:.1f} MB/s"
            if last.permitted_bytes_s:
                numbers["permitted_bytes_s"] = last.permitted_bytes_s
                text += f" of {last.permitted_bytes_s / _MB:.1f} MB/s permitted"
            text += f", {used}: {readers} readers get {each / _MB:.1f} MB/s each"
            loads = (self._loads.get(n) for n in self._of_filesystem(name))
            left = [one.left for one in loads if one is not None and one.loading]
            if total := sum(one for one in left if one is not None):
                numbers |= {"total_bytes": float(total), "eta_s": total / read}
                text += f", all are loaded in {total / read:.0f} s"
        about = About(filesystem=name)
        return Evidence(sign, about, now, _SOURCE, f"filesystem {name}: {text}", numbers)

    def _of_filesystem(self, filesystem: str) -> Iterator[str]:
        replicas = self._census.replicas.items()
        return (name for name, one in replicas if one.filesystem == filesystem)


__all__ = ["FILESYSTEMS_MAX", "MODELS_MAX", "ContentionConfig", "ContentionDetector"]
