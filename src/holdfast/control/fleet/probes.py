"""When a probe is believed: the one place that turns silence into a verdict.

A probe measures two machines at once. When this process itself was late, silence says nothing about
the replica: the verdict is *unknown*. An answer that came stands all the same. And a silence is
read by what users' requests did meanwhile: whether it is the replica's is the fleet's to say.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import FetchError, fetch
from holdfast.control.fleet.canaries import Canaries, CanaryError, Told, bearer
from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.messages import CanaryResult, RunCanary
from holdfast.core.types import MILLISECOND, seconds
from holdfast.engines import Load, dialect

_UNANSWERED: Final = {"refused": CanaryVerdict.REFUSED, "timeout": CanaryVerdict.TIMEOUT}
LATE: Final = 50 * MILLISECOND  # of this loop: as long as a whole answer on a LAN


class LoopWatch:
    """How late this event loop runs. ``beat`` is called at a steady pace by whoever ticks."""

    __slots__ = ("_due", "_late_at", "_pace")

    def __init__(self, pace: int, now: int) -> None:
        self._pace = pace
        self._due = now + pace
        self._late_at = -LATE  # when it was last late by more than ``LATE``

    def beat(self, now: int) -> None:
        """The loop got round to its tick."""
        if now - self._due > LATE:
            self._late_at = now
        self._due = now + self._pace

    def was_late(self, since: int, now: int) -> bool:
        """Whether it was late at some time since then; a tick that is overdue counts already."""
        return self._late_at >= since or now - self._due > LATE


@dataclass(slots=True)
class Witness:
    """What gateways saw of a replica while it was probed."""

    running: int | None = None
    progress: bool | None = None


class Prober:
    """Probes replicas, at most one probe of each at a time."""

    def __init__(
        self, watch: LoopWatch, witness: Callable[[str, int], Witness], canaries: Canaries
    ) -> None:
        self._watch = watch
        self._witness = witness
        self._canaries = canaries

    async def probe(self, deployed: Deployed, action: RunCanary) -> CanaryResult:
        """Ask once; always returns a verdict within the deadline."""
        began = time.monotonic_ns()
        try:
            told = await self._canaries.ask(deployed, seconds(action.deadline))
        except FetchError as error:
            verdict = _UNANSWERED.get(error.what, CanaryVerdict.FAIL)
            page_ok = error.page_ok if isinstance(error, CanaryError) else None
            flaw = Kind.RESET if error.lost else None
            told = Told(verdict, str(error), page_ok=page_ok, moved_s=error.moved_s, flaw=flaw)
        now = time.monotonic_ns()
        if self._watch.was_late(began, now):
            why = "this process was late itself"
            told = (
                Told(CanaryVerdict.UNKNOWN, why)
                if told.verdict.failed
                else replace(told, latency=0)
            )
        replica_id = deployed.replica.id
        seen = (
            self._witness(replica_id, began) if told.verdict is CanaryVerdict.TIMEOUT else Witness()
        )
        return CanaryResult(
            replica_id,
            told.verdict,
            now - began if told.verdict is CanaryVerdict.TIMEOUT else told.latency,
            running=seen.running,
            progress=seen.progress,
            incarnation=action.incarnation,
            detail=told.detail,
            tokens=told.tokens,
            page_ok=told.page_ok,
            status=told.status,
            moved_s=told.moved_s,
            flaw=told.flaw,
            took=told.took,
        )


async def poll_load(deployed: Deployed, deadline_s: float, environment: Mapping[str, str]) -> Load:
    """What an engine says of its load. Silence is None, number by number."""
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


__all__ = ["LATE", "LoopWatch", "Prober", "Witness", "poll_load"]
