"""Polls every source (platforms, agents, this host) and keeps its last reading.

    source ─► read, in its own task ─► reading ─► kept with its age ─► the view
                                            └────► heard ─► reading_diff ─► facts

No platform can delay another or the fleet: while one does not answer, its last reading stays, with
"no answer for 40 s" on each of its parts, and no second read is started. A source that raises,
which is a bug of ours, is read again after a pause that doubles; one that cannot be built, because
a package is missing, shows that error in its place. A reading with a part that failed is a failed
read, whatever the other parts say: it is counted, its age is that of the oldest part, and the part
is logged when it begins to fail and when it is well again.

Rejected: one loop that asks all of them. The slowest would set the pace for all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from holdfast.core.view.layers import Part, Reading
from holdfast.ports import Source

ANSWER_S: Final = 30.0  # then it counts as silent; its own calls give up sooner
HUNG_S: Final = 300.0  # then its read is cancelled and begun anew
AGAIN_MAX_S: Final = 300.0  # between tries of one that fails by a mistake of ours
CLOSE_S: Final = 5.0  # for it to let go
ALL: Final = "all"  # the part of a source that never answered
_TEXT_MAX: Final = 300

_log = structlog.get_logger("holdfast.control.view.source_poller")


@dataclass(slots=True, eq=False)
class PolledSource:
    """One source that is polled: its last reading, its failures and what its reads cost.

    ``source`` is None where it could not be built.
    """

    name: str
    kind: str
    section: Any = None  # what it was made of; equal ones are left alone
    source: Source | None = None  # None: it could not be made
    reading: Reading | None = None
    error: str = ""
    since: float | None = None  # failing, by the time of day
    failures: int = 0  # in a row
    reads: int = 0
    failed: int = 0
    calls: int = 0  # that its readings told of
    seconds: float = 0.0  # spent in reads
    took_s: float = 0.0  # by the last one
    task: asyncio.Task[None] | None = None
    failing: dict[str, str] = field(default_factory=dict)  # parts of the last reading, and why

    def age_s(self, now: float) -> float | None:
        """Seconds since its oldest failing part, or else all of it, was last read; None: never."""
        if self.reading is None:
            return None
        known = self.reading.at
        failing = [part for part in self.reading.parts if part.error]
        oldest = min((part.at or part.failing_since or known for part in failing), default=known)
        return max(0.0, now - min(oldest, known))

    def shown(self, now: float) -> Reading:
        """The last reading; if the source as a whole fails now, each part carries the error.

        Before the first reading, an empty one with the error.
        """
        reading = self.reading
        if reading is None:
            return Reading(self.name, self.kind, now, (Part(ALL, None, self.error, self.since),))
        if not self.error:
            return reading
        since = self.since or now
        parts = tuple(
            replace(
                part,
                error=part.error or self.error,
                failing_since=min(part.failing_since or since, since),
            )
            for part in reading.parts or (Part(ALL, reading.at),)
        )
        return replace(reading, parts=parts)


class SourcePoller:
    """Polls all sources of one control, each in a task of its own, and keeps the last readings."""

    def __init__(
        self,
        heard: Callable[[Reading], None],
        make: Callable[[Any], Source],
        left: Callable[[str], None] = lambda _: None,
        *,
        answer_s: float = ANSWER_S,
        hung_s: float = HUNG_S,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._heard = heard
        self._make = make
        self._left = left  # a source is no longer asked
        self._answer_s = answer_s
        self._hung_s = hung_s
        self._wall = wall
        self._sleep = sleep
        self._watches: dict[str, PolledSource] = {}
        self._running = False
        self._closing: set[asyncio.Task[None]] = set()
        self._logged: set[tuple[str, str]] = set()

    # --- who is asked ----------------------------------------------------------------------------

    def follow(self, sections: Sequence[Any]) -> None:
        """Poll the sources of a config; close those it no longer has, keep unchanged ones.

        One that cannot be built is kept with its error.
        """
        wanted = {section.called: section for section in sections}
        for name, watch in list(self._watches.items()):
            if watch.section is not None and wanted.get(name) != watch.section:
                self._drop(watch)
        for name, section in wanted.items():
            if name not in self._watches:
                self._begin(self._made(name, section))

    def add(self, source: Source) -> None:
        """Poll a source that is not from the config; ``follow`` leaves it alone."""
        self._begin(PolledSource(source.name, source.kind, source=source))

    def _made(self, name: str, section: Any) -> PolledSource:
        watch = PolledSource(name, str(section.type), section)
        try:
            watch.source = self._make(section)
        except Exception as error:  # noqa: BLE001 a package may be missing; the rest goes on
            watch.error, watch.since = str(error)[:_TEXT_MAX], self._wall()
            _log.error("source cannot be read", source=name, reason=watch.error)
        return watch

    def _begin(self, watch: PolledSource) -> None:
        self._watches[watch.name] = watch
        if self._running and watch.source is not None:
            watch.task = asyncio.create_task(self._keep_asking(watch, watch.source))

    def _drop(self, watch: PolledSource) -> None:
        del self._watches[watch.name]
        self._left(watch.name)
        if watch.task is not None or watch.source is not None:
            closing = asyncio.create_task(self._close(watch))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _close(self, watch: PolledSource) -> None:
        if watch.task is not None:
            watch.task.cancel()
            await asyncio.wait({watch.task}, timeout=CLOSE_S)
        if watch.source is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await watch.source.close()
            except Exception as error:  # noqa: BLE001 whoever goes must not hold up who stays
                self._log_once(watch, error)

    async def run(self) -> None:
        """Start polling all sources, also later ones, until cancelled; then close them."""
        self._running = True
        for watch in list(self._watches.values()):
            self._begin(watch)
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            watches, self._watches = list(self._watches.values()), {}
            await asyncio.gather(*(self._close(one) for one in watches), *self._closing)

    # --- asking ----------------------------------------------------------------------------------

    async def _keep_asking(self, watch: PolledSource, source: Source) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            reading = await self._ask(watch, source)
            took = loop.time() - began
            watch.seconds += took
            pause = max(0.05, source.period_s - took)
            if reading is None:
                pause = min(AGAIN_MAX_S, source.period_s * 2 ** min(watch.failures, 16))
            else:
                watch.took_s = took
                self._take(watch, reading)
            await self._sleep(pause)

    async def _ask(self, watch: PolledSource, source: Source) -> Reading | None:
        """Read a source once; while it hangs its record says so, and finally it is cancelled."""
        watch.reads += 1
        loop = asyncio.get_running_loop()
        began, since = loop.time(), self._wall()
        task = asyncio.ensure_future(source.read())
        try:
            while not task.done() and loop.time() - began < self._hung_s:
                await asyncio.wait({task}, timeout=self._answer_s)
                if not task.done():
                    told = f"no answer for {loop.time() - began:.0f} s"
                    watch.error, watch.since = told, watch.since or since
        finally:
            if not task.done():
                task.add_done_callback(_forgotten)
                task.cancel()
        if not task.done():
            self._fail(watch, watch.error or "no answer")
            return None
        try:
            return task.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 not the others' concern
            self._fail(watch, f"{type(error).__name__}: {error}"[:_TEXT_MAX])
            self._log_once(watch, error)
            return None

    def _fail(self, watch: PolledSource, told: str) -> None:
        watch.failures += 1
        watch.failed += 1
        watch.error, watch.since = told, watch.since or self._wall()

    def _take(self, watch: PolledSource, reading: Reading) -> None:
        watch.reading = reading
        watch.error, watch.since, watch.failures = "", None, 0
        watch.calls += sum(part.calls for part in reading.parts)
        self._note_parts(watch, reading)
        try:
            self._heard(reading)
        except Exception as error:  # noqa: BLE001 what it means is judged elsewhere; it is kept
            watch.failed += 1
            self._log_once(watch, error)

    def _note_parts(self, watch: PolledSource, reading: Reading) -> None:
        """Count a reading of which a part failed; log each part's first failure and its return."""
        failing = {part.name: part.error for part in reading.parts if part.error}
        watch.failed += bool(failing)
        for name in failing.keys() - watch.failing.keys():
            _log.warning(
                "source cannot see", source=watch.name, part=name, reason=failing[name][:_TEXT_MAX]
            )
        for name in watch.failing.keys() - failing.keys():
            _log.info("source sees again", source=watch.name, part=name)
        watch.failing = failing

    def _log_once(self, watch: PolledSource, error: BaseException) -> None:
        kind = (watch.name, type(error).__name__)
        if kind not in self._logged and len(self._logged) < 1_000:
            self._logged.add(kind)
            _log.error("source failed", source=watch.name, exc_info=error)

    # --- what is known ---------------------------------------------------------------------------

    def readings(self) -> list[Reading]:
        """The last reading of each source in order of the file, with errors where it fails now.

        Polls nothing.
        """
        now = self._wall()
        return [watch.shown(now) for watch in self._watches.values()]

    def source(self, name: str) -> Source | None:
        """The source of this name; None: there is none, or it could not be built."""
        watch = self._watches.get(name)
        return watch.source if watch is not None else None

    @property
    def sources(self) -> dict[str, Source]:
        """All sources that could be built, by name."""
        found = self._watches.items()
        return {name: watch.source for name, watch in found if watch.source is not None}

    @property
    def took_s(self) -> float:
        """Seconds that the slowest source took for its last reading; 0 before the first."""
        return max((watch.took_s for watch in self._watches.values()), default=0.0)

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Prometheus counters of each source's reads, failures and cost; gauges of its age."""
        counters: dict[str, float] = {}
        gauges: dict[str, float] = {}
        now = self._wall()
        for name, watch in self._watches.items():
            labels = f'{{source="{name}"}}'
            counters[f"source_reads_total{labels}"] = watch.reads
            counters[f"source_failures_total{labels}"] = watch.failed
            counters[f"source_calls_total{labels}"] = watch.calls
            counters[f"source_seconds_total{labels}"] = round(watch.seconds, 3)
            gauges[f"source_parts_failing{labels}"] = len(watch.failing) or bool(watch.error)
            age = watch.age_s(now)
            if age is not None:
                gauges[f"source_age_seconds{labels}"] = round(age, 3)
        return counters, gauges


def _forgotten(task: asyncio.Future[Reading]) -> None:
    """Consume the exception of an abandoned read, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


__all__ = ["ALL", "ANSWER_S", "HUNG_S", "PolledSource", "SourcePoller"]
