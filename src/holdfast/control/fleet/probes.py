"""Probes replicas, and turns a missing answer into a verdict.

A probe measures two machines at once. When this process itself was late, a missing answer may be
ours: the verdict is *unknown*, once, and the replica is asked again at once.

    no answer in time, we were late ─► the first of a row: unknown, ask again
                                    └► the next: timeout, unless most of the wait was ours

Whatever came, came: an answer, an error, a refusal and a reset count however late we were. Excusing
every missing answer was rejected: on two busy cores the loop is late a little all the time, and a
replica that hangs would never be found. A missing answer is returned together with what users'
requests did meanwhile; the fleet decides whether the replica is at fault.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import FetchError, fetch
from holdfast.control.fleet.canaries import Canaries, CanaryError, CanaryReport, bearer
from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.health.canary_evidence import UsersBeside
from holdfast.core.messages import CanaryResult, RunCanary
from holdfast.core.types import MILLISECOND, seconds
from holdfast.engines import Load, dialect

_UNANSWERED: Final = {"refused": CanaryVerdict.REFUSED, "timeout": CanaryVerdict.TIMEOUT}
LATE: Final = 50 * MILLISECOND  # of this loop: as long as a whole answer on a LAN
LATE_KEPT: Final = 1_024  # late ticks: a canary's longest wait has room for fewer
EXCUSES_MAX: Final = 6  # in a row, of one replica: half a minute in which most of the wait was ours


class LoopWatch:
    """Measures how late this process's event loop runs. ``beat`` must be called at each tick."""

    __slots__ = ("_due", "_late", "_pace")

    def __init__(self, pace: int, now: int) -> None:
        self._pace = pace
        self._due = now + pace
        self._late: deque[tuple[int, int]] = deque(maxlen=LATE_KEPT)  # when ticks were due and came

    def beat(self, now: int) -> int:
        """Record a tick; return by how much it came late, 0 up to ``LATE``."""
        late = now - self._due
        if late > LATE:
            self._late.append((self._due, now))
        self._due = now + self._pace
        return late if late > LATE else 0

    def late_within(self, since: int, now: int) -> int:
        """The time between ``since`` and ``now`` in which a tick was overdue by over ``LATE``."""
        late = now - max(self._due, since) if now - self._due > LATE else 0
        for due, came in reversed(self._late):
            if came <= since:
                break
            late += min(came, now) - max(due, since)
        return max(0, late)


class Prober:
    """Probes a replica with a canary and returns the verdict, whatever happens."""

    def __init__(
        self, watch: LoopWatch, users_beside: Callable[[str, int], UsersBeside], canaries: Canaries
    ) -> None:
        self._watch = watch
        self._users_beside = users_beside
        self._canaries = canaries
        self._excuses: dict[str, int] = {}  # missing answers excused, since one came; by replica

    def forget(self, replica_id: str) -> None:
        """Drop the excuses of a replica that has left the fleet."""
        self._excuses.pop(replica_id, None)

    async def probe(self, deployed: Deployed, action: RunCanary) -> CanaryResult:
        """Send one canary; always returns a result within the deadline."""
        began = time.monotonic_ns()
        try:
            report = await self._canaries.ask(deployed, seconds(action.deadline))
        except FetchError as error:
            verdict = _UNANSWERED.get(error.what, CanaryVerdict.FAIL)
            page_ok = error.page_ok if isinstance(error, CanaryError) else None
            status = error.status if isinstance(error, CanaryError) else None
            flaw = Kind.RESET if error.lost else None if error.connected else Kind.CONNECT_TIMEOUT
            report = CanaryReport(
                verdict,
                str(error),
                page_ok=page_ok,
                status=status,
                moved_s=error.moved_s,
                flaw=flaw,
            )
        now = time.monotonic_ns()
        replica_id = deployed.replica.id
        late = self._watch.late_within(began, now)
        report = self._in_doubt(replica_id, report, late, now - began)
        excused = report.verdict is CanaryVerdict.UNKNOWN
        silent = report.verdict is CanaryVerdict.TIMEOUT
        users = self._users_beside(replica_id, began) if silent else UsersBeside()
        return CanaryResult(
            replica_id,
            report.verdict,
            now - began if silent else report.latency,
            running=users.running,
            progress=users.progress,
            incarnation=action.incarnation,
            detail=report.detail,
            tokens=report.tokens,
            page_ok=report.page_ok,
            status=report.status,
            moved_s=report.moved_s,
            flaw=report.flaw,
            took=report.took,
            draining=report.draining,
            excused=excused,
        )

    def _in_doubt(
        self, replica_id: str, report: CanaryReport, late: int, waited: int
    ) -> CanaryReport:
        """The report after our own lateness is taken into account: excused, corrected or as is."""
        if report.verdict is not CanaryVerdict.TIMEOUT:
            self._excuses.pop(replica_id, None)
            if not late or not report.latency:
                return report
            # Of a time that was mostly ours too little is known; of any other too much is taken off
            # rather than too little.
            measured = 4 * late <= report.latency
            return replace(report, latency=report.latency - late if measured else 0)
        excuses = self._excuses.get(replica_id, 0)
        mostly_ours = 2 * late > waited and excuses < EXCUSES_MAX
        if not late or (excuses and not mostly_ours):
            return report
        self._excuses[replica_id] = excuses + 1
        told = f"this process was late itself, by {seconds(late):.1f} of {seconds(waited):.1f} s"
        return CanaryReport(CanaryVerdict.UNKNOWN, f"no answer in time, and {told}")


async def poll_load(deployed: Deployed, deadline_s: float, environment: Mapping[str, str]) -> Load:
    """Read an engine's load from its metrics page; figures it does not give are None."""
    known = dialect(deployed.engine)
    if known.metrics_path is None:
        return Load()
    try:
        answer = await fetch(
            deployed.url,
            known.metrics_path,
            deadline_s,
            bearer=bearer(deployed, environment),
            tls=deployed.context(),
        )
    except FetchError:
        return Load()
    if answer.status != 200:
        return Load()
    return known.read_load(answer.body.decode("utf-8", "replace"))


__all__ = ["EXCUSES_MAX", "LATE", "LATE_KEPT", "LoopWatch", "Prober", "poll_load"]
