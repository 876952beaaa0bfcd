"""Accepts facts over HTTP from other sources: host agents, platform exporters, scripts.

    POST /facts ─► each is read, each of whom it speaks is known ─► all of them, or none

Reported facts are judged like those that control observed itself, so only kinds are accepted that a
host or a platform can know: no verdict on a replica, no observation of a gateway. The end of a
process that Holdfast launched is reported by the launcher alone. A report is accepted whole or not
at all: the error names the first wrong entry and field, and the sender can correct the report and
send it again.

A fact counts from when it arrives. Times of the sender were rejected: clocks of hosts differ by
more than a detector's time limits, and a report from the past would come after its window was
closed.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from math import isfinite
from typing import Any, Final

from holdfast.control.incidents.incident_json import fact_from_plain
from holdfast.core.diagnose.detect.silence import COMPILE, LOADING, SERVING, STARTING, WARM_UP
from holdfast.core.diagnose.facts import (
    FACT_NAMES,
    Fact,
    FilesystemSeen,
    GpuFault,
    GpuSeen,
    HostSeen,
    LineSeen,
    MemorySeen,
    PhaseSeen,
    ProcessEnded,
    QueueSeen,
    VersionsSeen,
)
from holdfast.core.types import seconds

FACTS_MAX: Final = 1_000  # of one report
REPORT_BYTES_MAX: Final = 1 << 20
FACTS_PER_S: Final = 1_000  # of all reporters; 100 hosts of eight replicas send a fifth of that
BURST: Final = 5_000  # and at once, of agents that all begin with the minute
TEXT_CHARS_MAX: Final = 256
LIST_MAX: Final = 64  # entries of one member
NUMBER_MAX: Final = 1e18  # an exabyte
REPORTER: Final = "POST /facts"

_KINDS: Final[tuple[type, ...]] = (
    *(HostSeen, VersionsSeen, FilesystemSeen, QueueSeen, MemorySeen),
    *(PhaseSeen, GpuFault, GpuSeen, LineSeen, ProcessEnded),
)
KINDS: Final = tuple(FACT_NAMES[kind] for kind in _KINDS)
_PHASES: Final = (STARTING, LOADING, COMPILE, WARM_UP, SERVING)
_DEVICES: Final = ("host", "gpu")
_MARKED: Final = (LineSeen, GpuFault, GpuSeen, MemorySeen)  # control acts on them with care


class BadReportError(Exception):
    """A fact report was refused as invalid; the text names the first wrong entry and field."""


class TooMuchError(Exception):
    """A fact report was refused: all reporters together sent too many facts.

    ``wait_s`` says when to try again.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"more than {FACTS_PER_S} facts a second; try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class FactReports:
    """Checks the facts of ``POST /facts``, limits their rate, and passes them to control."""

    def __init__(
        self,
        sink: Callable[[Fact], None],
        replicas: Callable[[], Collection[str]],
        launched: Collection[str],
        models: Callable[[], Collection[str]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sink = sink
        self._replicas = replicas
        self._launched = launched
        self._models = models
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()
        self.taken = self.refused = 0  # facts; reports

    def take(self, report: object) -> int:
        """Check a decoded report and pass on all its facts, or none; return how many.

        Raises ``BadReportError`` for an invalid entry, an unknown replica or a kind that is not
        accepted, and ``TooMuchError`` above the rate.
        """
        try:
            facts = self._read(report)
            self._spend(len(facts))
        except (BadReportError, TooMuchError):
            self.refused += 1
            raise
        for fact in facts:
            self._sink(fact)
        self.taken += len(facts)
        return len(facts)

    def _spend(self, count: int) -> None:
        now = self._clock()
        self._left = min(float(BURST), self._left + seconds(now - self._at) * FACTS_PER_S)
        self._at = now
        if count > self._left:
            raise TooMuchError(max(1.0, (count - self._left) / FACTS_PER_S))
        self._left -= count

    def _read(self, report: object) -> list[Fact]:
        rows = report.get("facts") if isinstance(report, dict) and len(report) == 1 else None
        if not isinstance(rows, list):
            raise BadReportError('the body is {"facts": [{"kind": "MemorySeen", …}, …]}')
        if not 1 <= len(rows) <= FACTS_MAX:
            raise BadReportError(f"facts: are {len(rows)}; send 1 to {FACTS_MAX} at once")
        replicas, models = self._replicas(), self._models()
        found: list[Fact] = []
        for index, row in enumerate(rows):
            try:
                found.append(self._fact(row, replicas, models))
            except ValueError as error:
                raise BadReportError(f"facts[{index}]: {error}") from error
        return found

    def _fact(self, row: Any, replicas: Collection[str], models: Collection[str]) -> Fact:
        kind = row.get("kind") if isinstance(row, dict) else None
        if kind not in KINDS:
            raise ValueError(f"kind: is {str(kind)[:60]!r}; use one of {', '.join(KINDS)}")
        if "at" in row:
            raise ValueError(f"{kind}.at: is not taken; a fact counts from when it arrives")
        fact = fact_from_plain(row)
        for field in fields(fact):
            _check(f"{kind}.{field.name}", getattr(fact, field.name))
        named: Mapping[str, tuple[str, Collection[str]]] = {
            "replica": ("replica", replicas),
            "model": ("model", models),
        }
        for name, (what, known) in named.items():
            value = getattr(fact, name, None)
            if value is not None and value not in known:
                raise ValueError(f"{kind}.{name}: is {value!r}, and no {what} is called that")
        self._check_one(fact, kind, replicas)
        # Who sends it says nothing of that: what control did not see itself is marked as such.
        if isinstance(fact, GpuSeen) and not fact.label:
            fact = replace(fact, label=f"GPU {fact.gpu}")
        return replace(fact, reporter=REPORTER) if isinstance(fact, _MARKED) else fact

    def _check_one(self, fact: Fact, kind: str, replicas: Collection[str]) -> None:
        if isinstance(fact, ProcessEnded) and fact.replica in self._launched:
            told = "which Holdfast launched and sees the end of itself"
            raise ValueError(f"{kind}.replica: is {fact.replica!r}, {told}")
        if isinstance(fact, PhaseSeen) and fact.phase not in _PHASES:
            raise ValueError(f"{kind}.phase: is {fact.phase!r}; use one of {', '.join(_PHASES)}")
        if isinstance(fact, MemorySeen) and fact.device not in _DEVICES:
            raise ValueError(f"{kind}.device: is {fact.device!r}; use host or gpu")
        for name in fact.replicas if isinstance(fact, GpuSeen) else ():
            if name not in replicas:
                raise ValueError(f"{kind}.replicas: has {name!r}, and no replica is called that")
        for name in ("host", "filesystem", "gpu"):
            if getattr(fact, name, None) == "":
                raise ValueError(f"{kind}.{name}: is empty; name it")


def _check(where: str, value: object) -> None:
    if isinstance(value, str):
        if len(value) > TEXT_CHARS_MAX or not value.isprintable():
            raise ValueError(f"{where}: is no short text; use up to {TEXT_CHARS_MAX} characters")
    elif isinstance(value, tuple):
        if len(value) > LIST_MAX:
            raise ValueError(f"{where}: has {len(value)} entries; use up to {LIST_MAX}")
        for one in value:
            _check(where, one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        fits = isfinite(value) and 0 <= value <= NUMBER_MAX
        if not fits and not where.endswith(".code"):
            raise ValueError(f"{where}: is {value}; use a number from 0 to {NUMBER_MAX:g}")


__all__ = [
    "BURST",
    "FACTS_MAX",
    "FACTS_PER_S",
    "KINDS",
    "REPORT_BYTES_MAX",
    "BadReportError",
    "FactReports",
    "TooMuchError",
]
