"""Probes replicas: sends one canary, and turns whatever happens into a verdict.

A missing answer is returned together with what users' requests did meanwhile; the fleet decides
whether the replica is at fault. What our own lateness excuses is ``core.health.own_lateness``.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import FetchError
from holdfast.control.fleet.canaries import Canaries, CanaryError, CanaryReport
from holdfast.control.http_client import ShortageError
from holdfast.core.canary import CanaryVerdict
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
    """Probes a replica with a canary and returns the verdict, whatever happens."""

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
        """Drop the excuses of a replica that has left the fleet."""
        self._excuses.end_row(replica_id)

    def hurry(self, replica_id: str, deadline_s: float) -> None:
        """Give the canary under way at a replica no more than this; none under way: do nothing."""
        limit = self._limits.get(replica_id)
        if limit is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + deadline_s)

    async def _ask(self, deployed: Deployed, deadline_s: float) -> CanaryReport:
        """Ask within a deadline that ``hurry`` may shorten."""
        replica_id, began = deployed.replica.id, time.monotonic()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits[replica_id] = limit
                return await self._canaries.ask(deployed, deadline_s)
        except TimeoutError as error:
            told = f"nothing within {time.monotonic() - began:.1f} s, and nothing moves beside it"
            raise FetchError("timeout", told, connected=True) from error
        finally:
            if self._limits.get(replica_id) is limit:
                del self._limits[replica_id]

    async def probe(self, deployed: Deployed, action: RunCanary) -> CanaryResult:
        """Send one canary; always returns a result within the deadline."""
        began = time.monotonic_ns()
        try:
            report = await self._ask(deployed, seconds(action.deadline))
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
                moved_s=error.moved_s,
                gap_s=error.gap_s,
                began=error.began,
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
            gap_s=report.gap_s,
            began=report.began,
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
            self._excuses.end_row(replica_id)
            return replace(report, latency=own_time_taken_off(report.latency, late))
        if not self._excuses.excuses(replica_id, late, waited):
            return report
        told = f"this process was late itself, by {seconds(late):.1f} of {seconds(waited):.1f} s"
        return CanaryReport(CanaryVerdict.UNKNOWN, f"no answer in time, and {told}")


__all__ = ["Prober"]
