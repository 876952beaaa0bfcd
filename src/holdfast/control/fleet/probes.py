"""Probes replicas: sends one canary, and turns whatever happens into a verdict.

An answer that is overdue is reported when it is due, and then read on while that tells how it fails
(``core.canary_overtime``). A missing answer is returned together with what users' requests did
meanwhile; the fleet decides whether the replica is at fault. What our own lateness excuses is
``core.health.own_lateness``.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import FetchError, Overtime
from holdfast.control.fleet.canaries import Canaries, CanaryError, CanaryReport
from holdfast.control.http_client import ShortageError
from holdfast.core.canary import CanaryVerdict
from holdfast.core.canary_overtime import BodyPieces
from holdfast.core.canary_overtime import overtime as overtime_left
from holdfast.core.failure import Kind
from holdfast.core.health.canary_evidence import UsersBeside
from holdfast.core.health.own_lateness import LatenessExcuses, LoopWatch, own_time_taken_off
from holdfast.core.intake.descriptors import OwnResource
from holdfast.core.messages import CanaryResult, RunCanary
from holdfast.core.types import seconds

_UNANSWERED: Final = {
    "refused": CanaryVerdict.REFUSED,
    "timeout": CanaryVerdict.TIMEOUT,
    "short": CanaryVerdict.UNKNOWN,  # we could not ask: it says nothing of the replica
}


class Prober:
    """Sends a canary to a replica and returns a result; network failures become verdicts."""

    def __init__(
        self,
        watch: LoopWatch,
        users_beside: Callable[[str, int], UsersBeside],
        canaries: Canaries,
        lacks: Callable[[OwnResource], None] = lambda _: None,
    ) -> None:
        self._lacks = lacks  # is told what this process itself lacked
        self._watch = watch
        self._users_beside = users_beside
        self._canaries = canaries
        self._excuses = LatenessExcuses()
        self._limits: dict[str, asyncio.Timeout] = {}  # of the canaries under way, by replica

    def forget(self, replica_id: str) -> None:
        """Drop the count of a replica's canaries that our own lateness excused.

        Called when it leaves the fleet; a canary under way goes on.
        """
        self._excuses.end_row(replica_id)

    def hurry(self, replica_id: str, deadline_s: float) -> None:
        """Limit the canary under way at a replica to ``deadline_s`` seconds from now.

        Does nothing if none is under way or its limit has already passed.
        """
        limit = self._limits.get(replica_id)
        if limit is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + deadline_s)

    async def _ask(self, deployed: Deployed, deadline_s: float, overtime: Overtime) -> CanaryReport:
        """Ask within a deadline that ``hurry`` may shorten."""
        replica_id, began = deployed.replica.id, time.monotonic()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits[replica_id] = limit
                return await self._canaries.ask(deployed, deadline_s, overtime)
        except TimeoutError as error:
            told = f"nothing within {time.monotonic() - began:.1f} s, and nothing moves beside it"
            raise FetchError("timeout", told, connected=True) from error
        finally:
            if self._limits.get(replica_id) is limit:
                del self._limits[replica_id]

    async def probe(
        self,
        deployed: Deployed,
        action: RunCanary,
        overdue: Callable[[CanaryResult], None] = lambda _: None,
    ) -> CanaryResult:
        """Send one canary and return its result; network failures become verdicts.

        ``overdue`` is called once with a preliminary TIMEOUT result if the answer is late and is
        still being read. A timeout during which this process itself was late may be returned as
        UNKNOWN.
        """
        began = time.monotonic_ns()
        told = action.unhurried

        def overtime(pieces: BodyPieces) -> float:
            nonlocal told
            now = time.monotonic_ns()
            waited = now - began
            more = overtime_left(pieces, waited, action.longest, unhurried=action.unhurried)
            # Where we were late ourselves, only the time after the deadline is a replica's own.
            if more and not told and not self._watch.late_within(began, now):
                told = True
                report = CanaryReport(CanaryVerdict.TIMEOUT, "overdue, and read on", pieces=pieces)
                result = self._result(action, report, began, now)
                overdue(replace(result, reads_on=True))
            return seconds(more)

        try:
            report = await self._ask(deployed, seconds(action.deadline), overtime)
        except FetchError as error:
            verdict = _UNANSWERED.get(error.what, CanaryVerdict.FAIL)
            short = error.__cause__ if isinstance(error, CanaryError) else error
            if isinstance(short, ShortageError):
                self._lacks(short.resource)
            page_ok = error.page_ok if isinstance(error, CanaryError) else None
            status = error.status if isinstance(error, CanaryError) else None
            flaw = Kind.RESET if error.lost else None if error.connected else Kind.CONNECT_TIMEOUT
            report = CanaryReport(
                verdict,
                str(error),
                page_ok=page_ok,
                status=status,
                pieces=error.pieces,
                flaw=flaw,
            )
        now = time.monotonic_ns()
        late = self._watch.late_within(began, now)
        report = self._in_doubt(action, report, late, now - began)
        return self._result(action, report, began, now)

    def _result(
        self, action: RunCanary, report: CanaryReport, began: int, now: int
    ) -> CanaryResult:
        """The report, with what users' requests did meanwhile where no answer came in time."""
        replica_id = action.replica_id
        excused = report.verdict is CanaryVerdict.UNKNOWN
        silent = report.verdict is CanaryVerdict.TIMEOUT
        users = self._users_beside(replica_id, began) if silent else UsersBeside()
        pieces = report.pieces
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
            moved_s=pieces.moved_s,
            gap_s=pieces.gap_s,
            next_gap_s=pieces.next_gap_s,
            quiet_s=pieces.quiet_s if silent else 0.0,
            began=silent and pieces.began,
            flaw=report.flaw,
            took=report.took,
            draining=report.draining,
            excused=excused,
            extra=action.extra,
        )

    def _in_doubt(
        self, action: RunCanary, report: CanaryReport, late: int, waited: int
    ) -> CanaryReport:
        """The report after our own lateness is taken into account: excused, corrected or as is."""
        replica_id = action.replica_id
        if report.verdict is not CanaryVerdict.TIMEOUT:
            self._excuses.end_row(replica_id)
            return replace(report, latency=own_time_taken_off(report.latency, late))
        if waited - late >= action.deadline:  # it was read on, and had all of its time beside ours
            return report
        if not self._excuses.excuses(replica_id, late, waited):
            return report
        told = f"this process was late itself, by {seconds(late):.1f} of {seconds(waited):.1f} s"
        return CanaryReport(CanaryVerdict.UNKNOWN, f"no answer in time, and {told}")


__all__ = ["Prober"]
