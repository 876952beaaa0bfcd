"""Sends canaries to simulated replicas and reports their answers to the fleet.

A canary shares the batch with users' requests, so it is slow where they are slow and silent where
the engine hangs. How long it took and what else the engine was doing meanwhile travel with the
verdict; reading them is the fleet's business.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.core.canary import EXIT_NEWS, CanaryVerdict
from holdfast.core.canary_overtime import BodyPieces, overtime
from holdfast.core.failure import Kind
from holdfast.core.messages import CallBackCanary, CanaryResult, HurryCanary, RunCanary
from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import SECOND, nanos, seconds
from holdfast.sim.clock import CONTROL, WORLD, Clock, Handler
from holdfast.sim.request_record import EngineRun
from holdfast.sim.simulated_replica import REFUSED_AFTER, SimulatedReplica

CANARY_PROMPT: Final = 16  # tokens
CANARY_OUTPUT: Final = 4  # tokens: read to the last one
_LOOK: Final = SECOND // 4  # between two looks at an overdue answer: a piece may have come


@dataclass(slots=True, frozen=True)
class _Watch:
    """One canary under way."""

    unit: SimulatedReplica
    run: EngineRun
    incarnation: int  # of the unit
    seen: int  # users' tokens out when it was asked
    began: int
    action: RunCanary


class SimulatedCanaries:
    """Sends canary requests to simulated replicas and reports each verdict to the fleet."""

    __slots__ = (
        "_clock",
        "_die",
        "_out",
        "_tell_fleet",
        "_units",
        "_watches",
        "enabled",
        "endings",
        "output",
        "prompt",
    )

    def __init__(
        self,
        units: dict[str, SimulatedReplica],
        clock: Clock,
        tell_fleet: Callable[[CanaryResult, int], None],
        die: Handler,
    ) -> None:
        self._units = units
        self._clock = clock
        self._tell_fleet = tell_fleet
        self._die = die  # what a request does to a unit that is out of memory
        self._out: dict[str, tuple[int, int]] = {}  # by replica: sent when, beside how many
        self._watches: dict[str, _Watch] = {}  # by replica, of the canary that was sent last
        # How the last canary of each replica failed, and for how long pieces of its answer came.
        self.endings: dict[str, tuple[Kind | None, int]] = {}
        self.enabled = True
        self.prompt = CANARY_PROMPT
        self.output = CANARY_OUTPUT

    def ask(self, action: RunCanary, now: int) -> None:
        """Send one canary to a replica; its result is reported within its deadline."""
        unit = self._units[action.replica_id]
        self.endings[action.replica_id] = (unit.instant[0] if unit.instant else None, 0)
        blind = any(fault.kind is FaultKind.PROBE_BLIND for fault in unit.faults)
        if not self.enabled:
            self._later(action, CanaryVerdict.UNKNOWN, REFUSED_AFTER, now)
        elif blind or (unit.instant and unit.instant[0] is Kind.SERVER_ERROR):
            self._later(action, CanaryVerdict.FAIL, REFUSED_AFTER, now)
        elif unit.instant and unit.instant[0] is Kind.CONNECT_TIMEOUT:
            self._later(action, CanaryVerdict.FAIL, action.deadline, now)
        elif not unit.serving:
            self._later(action, CanaryVerdict.REFUSED, REFUSED_AFTER, now)
        elif unit.instant:
            self._later(action, CanaryVerdict.BUSY, REFUSED_AFTER, now)
        else:
            run = EngineRun(None, action.replica_id, action.incarnation, self.prompt, self.output)
            unit.spoil(run)
            self._out[action.replica_id] = (now, unit.engine.running + unit.engine.waiting)
            if not unit.engine.submit(run, now):
                self._later(action, CanaryVerdict.FAIL, REFUSED_AFTER, now)
                return
            watch = _Watch(unit, run, unit.incarnation, unit.tokens_seen, now, action)
            self._watches[action.replica_id] = watch
            self._clock.at(now + action.deadline, CONTROL, self._overdue, watch)
            if unit.dies_at_request:
                self._clock.at(now + REFUSED_AFTER, WORLD, self._die, unit)

    def hurry(self, action: HurryCanary, now: int) -> None:
        """Shorten the deadline of the canary under way at a replica."""
        watch = self._watches.get(action.replica_id)
        if watch is not None:
            self._clock.at(now + action.deadline, CONTROL, self._overdue, watch)

    def call_back(self, action: CallBackCanary, now: int) -> None:
        """Abort the canary under way at a replica."""
        engine = self._units[action.replica_id].engine
        for run in engine.everyone():
            if run.owner is None:
                engine.cancel(run, now)

    def _later(self, action: RunCanary, verdict: CanaryVerdict, delay: int, now: int) -> None:
        result = CanaryResult(action.replica_id, verdict, incarnation=action.incarnation)
        result.extra = action.extra
        self._clock.at(now + delay, CONTROL, self._report, result)

    def _report(self, result: CanaryResult, now: int) -> None:
        """Tell the fleet; of a failure only when the news of an exit would have come."""
        unconnected = self.endings[result.replica_id][0] is Kind.CONNECT_TIMEOUT
        if result.verdict.failed_early and not unconnected:
            self._clock.at(now + EXIT_NEWS, CONTROL, self._tell_fleet, result)
        else:
            self._tell_fleet(result, now)

    def answered(self, run: EngineRun, now: int) -> None:
        """Report a canary whose answer was read to its last token."""
        unit = self._units[run.replica_id]
        verdict = CanaryVerdict.WRONG if unit.wrong or run.wrong else CanaryVerdict.PASS
        if run.ends_as is not None:
            verdict = CanaryVerdict.WRONG if run.ends_as is Kind.DEGENERATE else CanaryVerdict.FAIL
        self.endings[unit.replica.id] = (Kind.DEGENERATE if unit.garbles else run.ends_as, 0)
        began, beside = self._out[unit.replica.id]
        told = CanaryResult(
            unit.replica.id,
            verdict,
            now - began,
            max(beside, unit.engine.running + unit.engine.waiting),
            incarnation=run.attempt,
            tokens=self.prompt + run.output,
            extra=self._watches[unit.replica.id].action.extra,
        )
        if run.first_at and now > run.first_at:
            told.moved_s = seconds(now - run.first_at)
            told.gap_s = seconds(unit.engine.worst_gap_since(run.first_at))
            told.next_gap_s = seconds(_second(unit.engine.pauses_since(run.first_at)))
        self._report(told, now)

    def _overdue(self, watch: _Watch, now: int) -> None:
        """Report a canary that is overdue; read its answer on while that tells more."""
        unit, run, action = watch.unit, watch.run, watch.action
        if watch.incarnation != unit.incarnation or not unit.engine.holds(run):
            return
        pieces = _pieces(watch, now)
        waited = now - watch.began
        more = overtime(pieces, waited, action.longest, unhurried=action.unhurried)
        result = self._unanswered(watch, pieces, now)
        if not more:
            unit.engine.cancel(run, now)
            self._tell_fleet(result, now)
            return
        if waited <= action.deadline and not action.unhurried:
            self._tell_fleet(replace(result, reads_on=True), now)
        self._clock.at(now + min(more, _LOOK), CONTROL, self._overdue, watch)

    def _unanswered(self, watch: _Watch, pieces: BodyPieces, now: int) -> CanaryResult:
        unit, run = watch.unit, watch.run
        engine = unit.engine
        self.endings[unit.replica.id] = (None, nanos(pieces.moved_s))
        beside = engine.running + engine.waiting - 1  # one that hangs admits nobody to its batch
        progress = unit.tokens_seen > watch.seen
        progress = progress or (beside > 0 and engine.last_token_at(now) > watch.began)
        told = CanaryResult(
            unit.replica.id,
            CanaryVerdict.TIMEOUT,
            now - watch.began,
            beside,
            progress,
            run.attempt,
            began=pieces.began,
            extra=watch.action.extra,
        )
        told.gap_s, told.quiet_s = pieces.gap_s, pieces.quiet_s
        told.next_gap_s = pieces.next_gap_s
        return told


def _pieces(watch: _Watch, now: int) -> BodyPieces:
    """How the answer to a canary came so far."""
    engine, run = watch.unit.engine, watch.run
    if not run.first_at:
        return BodyPieces()
    last = run.parked_at or max(run.first_at, engine.last_token_at(now))
    moved = last - run.first_at
    between = engine.produced(run, now) - 1
    # The steps of a plan that is not over are not noted yet; they are at least as long on average.
    gap = max(engine.worst_gap_since(run.first_at), moved // between) if between > 0 else 0
    rest = max(0, moved - gap) // (between - 1) if between > 1 else 0
    return BodyPieces(
        seconds(moved),
        seconds(gap),
        seconds(now - last),
        began=True,
        headed=True,
        next_gap_s=seconds(max(_second(engine.pauses_since(run.first_at)), rest)),
    )


def _second(pauses: list[int]) -> int:
    """The second longest; 0: there is none."""
    return sorted(pauses)[-2] if len(pauses) > 1 else 0


__all__ = ["CANARY_OUTPUT", "CANARY_PROMPT", "SimulatedCanaries"]
