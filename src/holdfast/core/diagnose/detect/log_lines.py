"""Turns known lines of a replica's log and faults of its GPU driver into signs.

A line names its reason where numbers only show its effect, so most count from the first one. Two
do not: engines write about a full cache whenever they put a request off, which is ordinary once,
and drivers report faults that ended nothing.

Rejected: weighing lines by their severity. Engines warn of what kills them and cry over nothing.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import REPORTED, Evidence, Sign
from holdfast.core.diagnose.facts import GpuFault, LineSeen, Mark, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import nanos, require

_ROW_MAX: Final = 16  # times kept of one kind of event
_PEERS_MAX: Final = 64  # peers named by one replica that have a pace of their own

MEANINGS: Final[Mapping[Mark, tuple[Sign, str]]] = {
    Mark.GPU_MEMORY_FULL: (Sign.LOG_GPU_MEMORY, "that GPU memory is full"),
    Mark.HOST_MEMORY_FULL: (Sign.LOG_HOST_MEMORY, "that the host's memory is full"),
    Mark.CUDA_CORRUPTED: (Sign.LOG_CUDA_CORRUPTED, "that its CUDA context is lost"),
    Mark.GPU_DAMAGED: (Sign.LOG_GPU_DAMAGED, "that its GPU is damaged or gone"),
    Mark.DRIVER_MISMATCH: (Sign.LOG_DRIVER, "that engine, driver and GPU do not fit"),
    Mark.CPU_FALLBACK: (Sign.LOG_CPU_FALLBACK, "that it runs without the GPU it wanted"),
    Mark.MODEL_MISSING: (Sign.LOG_MODEL_MISSING, "that the model is missing or unreadable"),
    Mark.CONFIG_REFUSED: (Sign.LOG_CONFIG, "that the engine refuses its arguments"),
    Mark.DISK_FULL: (Sign.LOG_DISK_FULL, "that a disk is full"),
    Mark.PORT_TAKEN: (Sign.LOG_PORT_TAKEN, "that its port is taken"),
    Mark.COLLECTIVE_TIMEOUT: (Sign.LOG_COLLECTIVE, "that it waited in vain for another rank"),
    Mark.TRANSFER_FAILED: (Sign.LOG_TRANSFER, "that a transfer of KV cache failed"),
    Mark.KV_EXHAUSTED: (Sign.LOG_KV_EXHAUSTED, "that its KV cache is exhausted"),
    Mark.ALLOCATION_FAILED: (Sign.LOG_ALLOCATION, "that an allocation failed, memory being free"),
    Mark.NOT_FINITE: (Sign.LOG_NOT_FINITE, "of logits that are not finite"),
    Mark.ENGINE_DEAD: (Sign.LOG_ENGINE_DEAD, "that its engine has died"),
    Mark.WATCHDOG: (Sign.LOG_WATCHDOG, "that its own watchdog found the scheduler stuck"),
}


@dataclass(slots=True, frozen=True)
class LogLineConfig:
    """Settings: how often log lines and GPU faults that are ordinary once must repeat.

    Checked when built: raises ``ConfigError``.
    """

    kv_lines: int = 2  # about a full cache: one request put off is what caches are for
    kv_s: float = 60.0  # within this
    mild_faults: int = 3  # of a GPU that ended nothing; a bad application causes single ones
    mild_s: float = 600.0  # within this: damaged hardware keeps reporting

    def __post_init__(self) -> None:
        for name in ("kv_lines", "mild_faults"):
            value = getattr(self, name)
            fits = 1 <= value <= _ROW_MAX
            require(fits, f"lines.{name}", f"is {value}", f"use 1 to {_ROW_MAX}")
        for name in ("kv_s", "mild_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"lines.{name}", f"is {value}", fix)


class _Book:
    __slots__ = ("cache", "faults", "lines", "pace", "peers")

    def __init__(self) -> None:
        self.pace = Pace()
        self.lines: dict[Sign, int] = {}  # since it was last told
        self.cache: deque[int] = deque(maxlen=_ROW_MAX)  # when it wrote of a full cache
        self.faults: deque[int] = deque(maxlen=_ROW_MAX)  # when its GPU had a mild fault
        self.peers: set[str] = set()


class LogLineDetector:
    """Maps marked log lines and GPU driver faults of replicas to signs, most at the first one.

    Lines about a full cache and mild faults must repeat. Keeps their times and what was reported,
    per replica; reads no log itself.
    """

    reads: ClassVar[tuple[type, ...]] = (LineSeen, GpuFault, ProcessEnded)

    def __init__(self, config: LogLineConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._kv = nanos(config.kv_s)
        self._mild = nanos(config.mild_s)
        self._books: dict[str, _Book] = {}

    def take(self, fact: LineSeen | GpuFault | ProcessEnded, now: int) -> Sequence[Evidence]:
        """Take one marked line, GPU fault or process end; return its sign, or nothing.

        The same sign is returned at most every 30 s. An end returns nothing and clears the counts,
        except those of GPU faults.
        """
        book = self._books.get(fact.replica)
        if isinstance(fact, ProcessEnded):
            # The reason it wrote while dying must not hold back the next life's; damage of a GPU
            # outlives its processes.
            if book is not None:
                book.pace = Pace()
                book.cache.clear()
                book.lines.clear()
                book.peers.clear()
            return NOTHING
        if book is None:
            book = self._books[fact.replica] = _Book()
        if isinstance(fact, GpuFault):
            return self._fault(book, fact, now)
        return self._line(book, fact, now)

    def forget(self, replica: str) -> None:
        """Drop the counted lines and GPU faults of a replica."""
        self._books.pop(replica, None)

    def _line(self, book: _Book, fact: LineSeen, now: int) -> Sequence[Evidence]:
        sign, what = MEANINGS[fact.mark]
        if fact.mark is Mark.KV_EXHAUSTED:
            book.cache.append(now)
            if _within(book.cache, self._kv, now) < self._config.kv_lines:
                return NOTHING
        count = book.lines[sign] = book.lines.get(sign, 0) + 1
        peer = fact.peer if fact.peer in book.peers or len(book.peers) < _PEERS_MAX else ""
        if not book.pace.due((sign, peer, bool(fact.reporter)), now):
            return NOTHING
        if peer:
            book.peers.add(peer)
        book.lines[sign] = 0
        text = f"its log says {what}" + _told_by(fact.reporter)
        if count > 1:
            text += f" ({count} lines)"
        if fact.peer:
            text += f" and names {fact.peer}"
        numbers = {"lines": float(count)}
        source = REPORTED if fact.reporter else "log"
        return [Evidence(sign, self._census.about(fact.replica), now, source, text, numbers)]

    def _fault(self, book: _Book, fact: GpuFault, now: int) -> Sequence[Evidence]:
        text = f"the driver reported Xid {fact.xid} of its GPU" + _told_by(fact.reporter)
        if fact.fatal:
            text += ", which ends what runs there"
        else:
            book.faults.append(now)
            count = _within(book.faults, self._mild, now)
            if count < self._config.mild_faults:
                return NOTHING
            text += f": {count} faults within {self._config.mild_s / 60:.0f} min"
        if not book.pace.due((Sign.GPU_FAULT, fact.fatal, bool(fact.reporter)), now):
            return NOTHING
        numbers = {"xid": float(fact.xid), "fatal": float(fact.fatal)}
        about = self._census.about(fact.replica)
        source = REPORTED if fact.reporter else "host"
        return [Evidence(Sign.GPU_FAULT, about, now, source, text, numbers)]


def _told_by(reporter: str) -> str:
    return f", as {reporter} reports" if reporter else ""


def _within(times: deque[int], span: int, now: int) -> int:
    return sum(now - at <= span for at in times)


__all__ = ["MEANINGS", "LogLineConfig", "LogLineDetector"]
