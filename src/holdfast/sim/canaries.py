"""Sends canaries to simulated replicas and reports their answers to the fleet.

A canary shares the batch with users' requests, so it is slow where they are slow and silent where
the engine hangs. How long it took and what else the engine was doing meanwhile travel with the
verdict; reading them is the fleet's business.
"""

from collections.abc import Callable
from typing import Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.messages import CallBackCanary, CanaryResult, HurryCanary, RunCanary
from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import seconds
from holdfast.sim.clock import CONTROL, WORLD, Clock, Handler
from holdfast.sim.request_record import EngineRun
from holdfast.sim.simulated_replica import REFUSED_AFTER, SimulatedReplica

CANARY_PROMPT: Final = 16  # tokens
CANARY_OUTPUT: Final = 4  # tokens: read to the last one


_Watch = tuple[SimulatedReplica, EngineRun, int, int, int]


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
            watch = (unit, run, unit.incarnation, unit.tokens_seen, now)
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
        self._clock.at(now + delay, CONTROL, self._tell_fleet, result)

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
        )
        self._tell_fleet(told, now)

    def _overdue(self, watch: _Watch, now: int) -> None:
        unit, run, incarnation, seen, began = watch
        engine = unit.engine
        if incarnation != unit.incarnation or not engine.holds(run):
            return
        running = engine.running
        progress = unit.tokens_seen > seen or engine.last_token_at(now) > began
        moved = engine.last_token_at(now) - run.first_at if run.first_at else 0
        self.endings[unit.replica.id] = (None, max(0, moved))
        engine.cancel(run, now)
        asked = unit.replica.id, CanaryVerdict.TIMEOUT, now - began
        told = CanaryResult(*asked, running, progress, run.attempt, began=bool(run.first_at))
        if moved > 0:
            told.gap_s = seconds(engine.worst_gap_since(run.first_at))
        self._tell_fleet(told, now)


__all__ = ["CANARY_OUTPUT", "CANARY_PROMPT", "SimulatedCanaries"]
