"""Probes replicas, and turns a missing answer into a verdict.

A probe measures two machines at once. When this process itself was late, a missing answer says
nothing about the replica: the verdict is *unknown*. An answer that came counts all the same. A
missing answer is returned together with what users' requests did meanwhile; the fleet decides
whether the replica is at fault.
"""

import time
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


class LoopWatch:
    """Detects that this process's event loop runs late. ``beat`` must be called at each tick."""

    __slots__ = ("_due", "_late_at", "_pace")

    def __init__(self, pace: int, now: int) -> None:
        self._pace = pace
        self._due = now + pace
        self._late_at = -LATE  # when it was last late by more than ``LATE``

    def beat(self, now: int) -> None:
        """Record a tick, and whether it came late."""
        if now - self._due > LATE:
            self._late_at = now
        self._due = now + self._pace

    def was_late(self, since: int, now: int) -> bool:
        """Whether the loop was late at any time since ``since``; an overdue tick counts."""
        return self._late_at >= since or now - self._due > LATE


class Prober:
    """Probes a replica with a canary and returns the verdict, whatever happens."""

    def __init__(
        self, watch: LoopWatch, users_beside: Callable[[str, int], UsersBeside], canaries: Canaries
    ) -> None:
        self._watch = watch
        self._users_beside = users_beside
        self._canaries = canaries

    async def probe(self, deployed: Deployed, action: RunCanary) -> CanaryResult:
        """Send one canary; always returns a result within the deadline."""
        began = time.monotonic_ns()
        try:
            report = await self._canaries.ask(deployed, seconds(action.deadline))
        except FetchError as error:
            verdict = _UNANSWERED.get(error.what, CanaryVerdict.FAIL)
            page_ok = error.page_ok if isinstance(error, CanaryError) else None
            flaw = Kind.RESET if error.lost else None if error.connected else Kind.CONNECT_TIMEOUT
            report = CanaryReport(
                verdict, str(error), page_ok=page_ok, moved_s=error.moved_s, flaw=flaw
            )
        now = time.monotonic_ns()
        if self._watch.was_late(began, now):
            why = "this process was late itself"
            report = (
                CanaryReport(CanaryVerdict.UNKNOWN, why)
                if report.verdict.failed
                else replace(report, latency=0)
            )
        replica_id = deployed.replica.id
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
        )


async def poll_load(deployed: Deployed, deadline_s: float, environment: Mapping[str, str]) -> Load:
    """Read an engine's load from its metrics page; figures it does not give are None."""
    known = dialect(deployed.engine)
    if known.metrics_path is None:
        return Load()
    try:
        answer = await fetch(
            deployed.url, known.metrics_path, deadline_s, bearer=bearer(deployed, environment)
        )
    except FetchError:
        return Load()
    if answer.status != 200:
        return Load()
    return known.read_load(answer.body.decode("utf-8", "replace"))


__all__ = ["LATE", "LoopWatch", "Prober", "poll_load"]
