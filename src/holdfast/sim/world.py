"""Runs a simulation: drives ``Flow`` and ``Fleet`` and executes their actions in virtual time.

It moves things and reports what happened; every choice is made by the two machines, the same
objects that the gateway and the control loop drive. Replicas, their loading and their faults are
modelled; nothing of the decisions is.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.health.fleet import Fleet
from holdfast.core.messages import (
    Abort,
    Answered,
    Arrived,
    CallBackCanary,
    CanaryResult,
    Dispatch,
    Ended,
    EngineLoads,
    Exited,
    Finish,
    FirstContent,
    FleetEvent,
    FleetView,
    FlowEvent,
    Frozen,
    HurryCanary,
    Joined,
    Launch,
    LoadReported,
    Move,
    Notice,
    Phase,
    Publish,
    Quiet,
    ReplicaHalted,
    Report,
    ReportCode,
    RunCanary,
    Seen,
    Silent,
    SpotNotice,
    Stop,
    Summary,
    Tick,
    ViewChanged,
)
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.request.deadlines import stuck
from holdfast.core.request.flow import Flow
from holdfast.core.types import MILLISECOND, SECOND, Halt, Request, State, nanos
from holdfast.sim.canaries import SimulatedCanaries
from holdfast.sim.clock import CONTROL, TRAFFIC, WORLD, Clock
from holdfast.sim.deploy.autoscaler_driver import EVERY as SCALING_EVERY
from holdfast.sim.deploy.autoscaler_driver import SimulatedScaling
from holdfast.sim.engine import Engine
from holdfast.sim.experiment import Experiment, Observer
from holdfast.sim.hosts.placement import EnginePlacement
from holdfast.sim.random_streams import stream, streams_of
from holdfast.sim.request_record import EngineRun, RequestRecord
from holdfast.sim.results import Detections, Results
from holdfast.sim.simulated_replica import REFUSED_AFTER, SimulatedReplica
from holdfast.sim.weight_store import WeightStore
from holdfast.sim.workload import arrivals

FLOW_TICK: Final = 20 * MILLISECOND
FLEET_TICK: Final = 200 * MILLISECOND
SILENCE_EVERY: Final = 50 * MILLISECOND  # how often a gateway looks for streams that went silent
QUIET_EVERY: Final = SECOND  # and tells of one at a replica that pauses for
QUIET_MAX: Final = 2 * SECOND  # or half of its patience, if that is less
MESSAGE_DELAY: Final = MILLISECOND  # between gateway and control, either way
NOTICES_MAX: Final = 10_000
_BATCH: Final = 1_000  # finished requests booked at a time
_DRAIN_MARGIN: Final = nanos(600.0)  # beyond the longest life of a request, all must have ended
_EJECTED: Final = State.QUARANTINED.value
_ILL: Final = (State.SUSPECT, State.QUARANTINED, State.DEAD, State.DRAINING, State.STARTING)


class World:
    """Runs one experiment under one seed."""

    def __init__(self, setup: Experiment, seed: int, observers: Sequence[Observer] = ()) -> None:
        self.experiment = setup
        self.clock = Clock()
        self.flow = Flow(setup.whole_flow(), streams_of(seed, "flow"))
        self.fleet = Fleet(setup.fleet, streams_of(seed, "fleet"))
        self.records: dict[int | str, RequestRecord] = {}
        self.results = Results(seed, setup.slo, _window(setup.faults), nanos(setup.duration_s))
        self.view: FleetView | None = None
        self._seed = seed
        self._observers = tuple(observers)
        self._store = WeightStore(setup.loading, self.clock)
        laws = dict(setup.engines)
        self.units: dict[str, SimulatedReplica] = {}
        shared = dict(setup.hosts)
        counts = Counter(replica.model for replica in setup.replicas)
        told = (self._on_first, self._on_done, self._on_slow_step, self._on_park)
        placement = EnginePlacement(self.clock, lambda name: stream(seed, name, "speed"), *told)
        for replica in setup.replicas:
            law = laws.get(replica.model, setup.engine)
            host, routed = shared.get(replica.id), counts[replica.model] > 1
            engine = placement.engine(replica.id, law, host, routed=routed)
            unit = SimulatedReplica(replica, engine, stream(seed, replica.id, "faults"))
            unit.overhead = nanos(law.overhead_ms / 1e3)
            self.units[replica.id] = unit
        self._by_engine = {id(unit.engine): unit for unit in self.units.values()}
        self._detections = Detections(self.results.detections)
        self._canaries = SimulatedCanaries(
            self.units, self.clock, self._tell_fleet, self._die_of_memory
        )
        self._canaries.enabled = setup.canaries
        self._canaries.prompt, self._canaries.output = setup.canary_prompt, setup.canary_output
        self._scaling = SimulatedScaling(
            setup.scaling, self.units, self.fleet, lambda: self.flow.lanes, self.ask_fleet
        )
        self._done: list[RequestRecord] = []
        self._end = nanos(setup.duration_s)
        self._handlers: dict[type, Any] = {
            Dispatch: self._do_dispatch,
            Finish: self._do_finish,
            Abort: self._do_abort,
            Report: self._do_tell_control,
            Summary: self._do_tell_control,
            RunCanary: self._canaries.ask,
            HurryCanary: self._canaries.hurry,
            CallBackCanary: self._canaries.call_back,
            Launch: self._do_launch,
            Stop: self._do_stop,
            Move: self._do_move,
            Publish: self._do_publish,
            Notice: self._do_notice,
        }

    def add_observer(self, observe: Observer) -> None:
        """Call this observer with every later event and its actions."""
        self._observers += (observe,)

    def ask_fleet(self, event: FleetEvent, now: int) -> None:
        """Send an event from outside to the fleet, after the current event is handled."""
        self.clock.at(now, CONTROL, self._tell_fleet, event)

    def canary_ending(self, replica_id: str) -> tuple[Kind | None, int]:
        """How the last canary at this replica failed, and for how long its answer streamed."""
        return self._canaries.endings.get(replica_id, (None, 0))

    def bytes_read(self, replica_id: str, now: int) -> tuple[int | None, int]:
        """Bytes of weights that a loading replica has read, and their total."""
        return self._store.read(replica_id, now), int(self.experiment.loading.size_gb * 1e9)

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Results:
        """Run from the first arrival until the last request is answered; returns the results."""
        collecting = gc.isenabled()
        gc.disable()  # a run makes no cycles, and looking for them takes an eighth of its time
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Results:
        clock, setup = self.clock, self.experiment
        spares = self._scaling.spares
        for replica in setup.replicas:
            if replica.id not in spares:
                self._start(self.units[replica.id])
        for time, edge, fault in setup.faults.edges():
            begins = edge == "begin"
            clock.at(time, WORLD, self._begin_fault if begins else self._end_fault, fault)
        many = len(setup.workloads)
        for index, (model, workload) in enumerate(setup.workloads):
            self._next_arrival(arrivals(workload, model, self._seed, index, many))
        clock.at(0, CONTROL, self._tick_fleet)
        clock.at(0, TRAFFIC, self._tick_flow)
        if setup.scaling:
            clock.at(SCALING_EVERY, CONTROL, self._scale)
        if setup.poll_s:
            clock.at(nanos(setup.poll_s), CONTROL, self._poll)
        clock.run(self._end)
        lane = setup.flow.lane
        longest = nanos(lane.deadlines.request_s + lane.queue.wait_batch_s)
        horizon = self._end + longest + _DRAIN_MARGIN
        while self.records and clock.now < horizon:
            clock.run(min(horizon, clock.now + SECOND))
        if self.records:
            stuck = ", ".join(str(key) for key in list(self.records)[:5])
            raise RuntimeError(f"{len(self.records)} requests never ended, among them {stuck}")
        self._account()
        counts = Counter(replica.model for replica in setup.replicas)
        fixed = {model: count * setup.duration_s for model, count in counts.items()}
        self.results.replica_seconds = fixed | self._scaling.replica_seconds()
        self.results.events = clock.steps
        for unit in self.units.values():
            if unit.engine.cache is not None:
                self.results.prompt_blocks += unit.engine.cache.asked
                self.results.reused_blocks += unit.engine.cache.hits
        return self.results

    def _start(self, unit: SimulatedReplica) -> None:
        """Declare a replica; a warm one has already passed its admission canary."""
        warm = self.experiment.warm
        self._tell_fleet(Joined(unit.replica, running=warm), 0)
        if warm:
            unit.up = unit.serving = True
            self._tell_fleet(
                CanaryResult(unit.replica.id, CanaryVerdict.PASS, incarnation=self._told(unit)), 0
            )

    def _told(self, unit: SimulatedReplica) -> int:
        """The incarnation that control knows of; canaries carry it both ways."""
        return self.fleet.members[unit.replica.id].health.incarnation

    def _next_arrival(self, source: Iterator[tuple[Request, int]]) -> None:
        arrival = next(source, None)
        if arrival is not None and arrival[0].arrived <= self._end:
            self.clock.at(arrival[0].arrived, TRAFFIC, self._arrive, (source, *arrival))

    def _arrive(self, arrival: tuple[Any, Request, int], now: int) -> None:
        source, request, output = arrival
        self.records[request.id] = RequestRecord(request, output)
        self._tell_flow(Arrived(request), now)
        self._next_arrival(source)

    def _tick_flow(self, _: object, now: int) -> None:
        self._tell_flow(_TICK, now)
        if now < self._end or self.records:
            self.clock.at(now + FLOW_TICK, TRAFFIC, self._tick_flow)

    def _tick_fleet(self, _: object, now: int) -> None:
        self._tell_fleet(_TICK, now)
        if now < self._end or self.records:
            self.clock.at(now + FLEET_TICK, CONTROL, self._tick_fleet)

    def _scale(self, _: object, now: int) -> None:
        self._scaling.tick(now)
        if now < self._end:
            self.clock.at(now + SCALING_EVERY, CONTROL, self._scale)

    def _tell_flow(self, event: FlowEvent, now: int) -> None:
        actions = self.flow.handle(event, now)
        if self._observers:
            for observe in self._observers:
                observe(now, "flow", event, actions)
        if actions:
            for action in actions:
                if isinstance(action, Dispatch):  # these two for every request, as in Flow.handle
                    self._do_dispatch(action, now)
                elif isinstance(action, Finish):
                    self._do_finish(action, now)
                else:
                    self._handlers[type(action)](action, now)

    def _tell_fleet(self, event: FleetEvent, now: int) -> None:
        actions = self.fleet.handle(event, now)
        for observe in self._observers:
            observe(now, "fleet", event, actions)
        for action in actions:
            self._handlers[type(action)](action, now)

    # --- requests --------------------------------------------------------------------------------

    def _do_dispatch(self, action: Dispatch, now: int) -> None:
        request = action.request
        record = self.records[request.id]
        unit = self.units[action.replica_id]
        resumed = action.resume_tokens
        if 0 < action.output_max < record.output:
            record.output, record.capped = action.output_max, True
        output = record.output - resumed
        run = EngineRun(
            record,
            action.replica_id,
            action.attempt,
            request.prompt_tokens + resumed,
            output if output > 1 else 1,
        )
        run.silence_max = action.silence_max
        run.sent_at = now
        record.runs[action.attempt] = run
        record.attempts += 1
        if resumed:
            record.continued += 1
        if action.replica_id in self._detections.open:
            self._detections.sent(action.replica_id)
        if not unit.serving or unit.touched:
            self._send_to_troubled(run, unit, now)
        elif unit.overhead:
            self.clock.at(now + unit.overhead, TRAFFIC, self._reach_engine, (run, unit))
        elif not unit.engine.submit(run, now):
            self._end_later(run, Kind.BAD_REQUEST, REFUSED_AFTER, now)

    def _reach_engine(self, sent: tuple[EngineRun, SimulatedReplica], now: int) -> None:
        """An attempt has reached its replica, unless it was called back on the way."""
        run, unit = sent
        record = run.owner
        if record is None or record.runs.get(run.attempt) is not run:
            return
        if not unit.serving or unit.touched:
            self._send_to_troubled(run, unit, now)
        elif not unit.engine.submit(run, now):
            self._end_later(run, Kind.BAD_REQUEST, REFUSED_AFTER, now)

    def _send_to_troubled(self, run: EngineRun, unit: SimulatedReplica, now: int) -> None:
        """A replica that is down or has a fault: see what becomes of the attempt."""
        if unit.instant is not None and unit.instant[0] is Kind.CONNECT_TIMEOUT:
            self._end_later(run, *unit.instant, now)
        elif not unit.serving:
            self._end_later(run, Kind.REFUSED, REFUSED_AFTER, now)
        elif unit.instant is not None:
            self._end_later(run, *unit.instant, now)
        else:
            unit.spoil(run)
            if not unit.engine.submit(run, now):
                self._end_later(run, Kind.BAD_REQUEST, REFUSED_AFTER, now)
            elif unit.dies_at_request:
                self.clock.at(now + REFUSED_AFTER, WORLD, self._die_of_memory, unit)

    def _die_of_memory(self, unit: SimulatedReplica, now: int) -> None:
        self._crash(unit, Kind.OUT_OF_MEMORY, now)

    def _end_later(self, run: EngineRun, kind: Kind, delay: int, now: int) -> None:
        self.clock.at(now + delay, TRAFFIC, self._end_unserved, (run, kind))

    def _end_unserved(self, ended: tuple[EngineRun, Kind], now: int) -> None:
        run, kind = ended
        record = run.owner
        if record is not None and record.runs.get(run.attempt) is run:
            self._close(record, run, kind, 0, now)

    def _on_first(self, run: EngineRun, now: int) -> None:
        record = run.owner
        if record is None or run.mute or run.whole:
            return
        if not record.first_at:
            record.first_at = now
        self._tell_flow(FirstContent(record.request.id, run.attempt), now)

    def _on_done(self, run: EngineRun, now: int) -> None:
        record = run.owner
        if record is None:
            self._canaries.answered(run, now)
            return
        self.units[run.replica_id].tokens_seen += run.output
        if run.whole:
            self._close_whole(record, run, now)
        else:
            self._close(record, run, run.ends_as, 0 if run.mute else run.output, now)

    def _close_whole(self, record: RequestRecord, run: EngineRun, now: int) -> None:
        """The engine is done with an answer in one piece: nothing of it was shown before."""
        if run.ends_as is not None:
            self._close(record, run, run.ends_as, 0, now)
            return
        del record.runs[run.attempt]
        record.first_at = now
        record.shown = run.output
        record.wrong = self.units[run.replica_id].wrong or run.wrong
        self._tell_flow(Answered(record.request.id, run.attempt, run.output), now)

    def _close(
        self, record: RequestRecord, run: EngineRun, kind: Kind | None, tokens: int, now: int
    ) -> None:
        """An attempt is over: keep the account and tell the flow."""
        del record.runs[run.attempt]
        gap = 0
        if kind is None or tokens:
            record.shown += tokens
            unit = self.units[run.replica_id]
            lies = unit.wrong or run.wrong
            if lies and kind is not Kind.DEGENERATE:  # that was recognised in time
                record.wrong = True
            if tokens > 1:
                gap = unit.engine.worst_gap_since(run.first_at)
        if kind is not None and not tokens:
            record.wasted_calls += 1
        self._tell_flow(Ended(record.request.id, run.attempt, kind, tokens, gap), now)

    def _do_abort(self, action: Abort, now: int) -> None:
        record = self.records[action.request_id]
        run = record.runs.pop(action.attempt)
        unit = self.units[run.replica_id]
        tokens = unit.engine.produced(run, now)
        shown = _shows(run) and action.kind is not Kind.SUPERSEDED
        if shown:
            record.shown += tokens
            record.wrong = record.wrong or unit.wrong or run.wrong
        else:
            record.wasted_calls += 1
            record.wasted_tokens += tokens
        unit.engine.cancel(run, now)

    def _do_finish(self, action: Finish, now: int) -> None:
        record = self.records.pop(action.request_id)
        record.status = action.status
        record.done_at = now
        record.model = action.model
        self._done.append(record)
        if len(self._done) >= _BATCH:
            self._account()

    def _account(self) -> None:
        """Book finished requests, many at a time: it is cheaper, and nobody waits for it."""
        for record in self._done:
            self.results.add(record)
        self._done.clear()

    # --- streams that fall silent ----------------------------------------------------------------

    def _on_slow_step(self, engine: Engine, now: int) -> None:
        """A step is long enough that a reader may lose patience: look again in time."""
        self._watch(self._by_engine[id(engine)], max(now, self.clock.now))

    def _on_park(self, run: EngineRun, now: int) -> None:
        """A fault stopped a stream: its reader may lose patience."""
        self._watch(self.units[run.replica_id], now)

    def _watch(self, unit: SimulatedReplica, now: int) -> None:
        """Look at its streams as often as a gateway does, as soon as one may look silent."""
        streams = (run for run in unit.engine.streaming() if run.owner and not run.whole)
        patience = min((run.silence_max for run in streams), default=0)
        if patience and not unit.next_check:
            unit.next_check = now + min(patience // 2, QUIET_MAX)
            self.clock.at(unit.next_check, TRAFFIC, self._look_for_silence, unit)

    def _look_for_silence(self, unit: SimulatedReplica, now: int) -> None:
        unit.next_check = 0
        engine = unit.engine
        last = engine.last_token_at(now)
        doubted = now < unit.next_doubt
        streams = False
        for run in engine.streaming():
            record = run.owner
            if record is None or record.runs.get(run.attempt) is not run or run.whole:
                continue
            streams = True
            silent = now - max(run.parked_at or max(last, run.first_at), run.excused_at)
            if silent >= run.silence_max:
                run.excused_at = now
                tokens = engine.produced(run, now)
                self._tell_flow(Silent(record.request.id, run.attempt, tokens), now)
            elif not doubted and silent > min(run.silence_max // 2, QUIET_MAX):
                doubted, unit.next_doubt = True, now + QUIET_EVERY
                self._tell_flow(Quiet(record.request.id, run.attempt), now)
        if streams and (unit.hung or engine.slow() or engine.parked):
            unit.next_check = now + SILENCE_EVERY
            self.clock.at(unit.next_check, TRAFFIC, self._look_for_silence, unit)

    # --- control ---------------------------------------------------------------------------------

    def _do_tell_control(self, action: Report | Summary, now: int) -> None:
        doubt = isinstance(action, Report) and action.what == ReportCode.OVERDUE
        if isinstance(action, Report) and action.replica_id and not doubt:
            self._detections.noticed(action.replica_id, f"breaker: {action.what}", now)
        self.clock.at(now + MESSAGE_DELAY, CONTROL, self._hear, action)

    def _hear(self, action: Report | Summary, now: int) -> None:
        self._tell_fleet(Seen((action,)), now)

    def _do_publish(self, action: Publish, now: int) -> None:
        delay = MESSAGE_DELAY if now else 0  # the first view is there before the first request
        self.clock.at(now + delay, CONTROL if now else WORLD, self._deliver, action.view)

    def _deliver(self, view: FleetView, now: int) -> None:
        self.view = view
        self._tell_flow(ViewChanged(view), now)

    def _poll(self, _: object, now: int) -> None:
        """Read every engine's own account of its load."""
        loads = []
        for unit in self.units.values():
            engine, replica = unit.engine, unit.replica
            load = LoadReported(replica.model, replica.id)
            if unit.serving and not unit.hung:
                load = LoadReported(
                    replica.model, replica.id, engine.tokens, engine.waiting, engine.kv_used
                )
                self._tell_flow(load, now)
            loads.append(load)
        self._tell_fleet(EngineLoads(tuple(loads)), now)
        if now < self._end:
            self.clock.at(now + nanos(self.experiment.poll_s), CONTROL, self._poll)

    def _do_notice(self, action: Notice, now: int) -> None:
        results = self.results
        if len(results.notices) < NOTICES_MAX:
            results.notices.append(action)
        if action.what == _EJECTED:
            results.ejected += 1
        if action.replica_id and action.what in _ILL:
            self._detections.noticed(action.replica_id, f"health: {action.what}", now)

    # --- replicas --------------------------------------------------------------------------------

    def _do_launch(self, action: Launch, now: int) -> None:
        unit = self.units[action.replica_id]
        start = now + action.delay + nanos(self.experiment.loading.start_s)
        unit.incarnation += 1
        self.clock.at(start, WORLD, self._process_runs, (unit, unit.incarnation))

    def _process_runs(self, launched: tuple[SimulatedReplica, int], now: int) -> None:
        unit, incarnation = launched
        if incarnation != unit.incarnation:
            return
        replica_id = unit.replica.id
        if unit.down:
            self._tell_fleet(Exited(replica_id), now)
            return
        unit.up = True
        self._tell_fleet(Phase(replica_id, State.STARTING), now)
        self._tell_fleet(Phase(replica_id, State.LOADING), now)
        if not unit.stalls_loading:
            self._store.load(replica_id, lambda at: self._loaded(unit, incarnation, at), now)

    def _loaded(self, unit: SimulatedReplica, incarnation: int, now: int) -> None:
        if incarnation != unit.incarnation:
            return
        unit.serving = True
        unit.apply_faults(now)
        self._tell_fleet(Phase(unit.replica.id, State.WARMING), now)

    def _do_stop(self, action: Stop, now: int) -> None:
        unit = self.units[action.replica_id]
        self._take_down(unit, now)
        unit.incarnation += 1

    def _do_move(self, action: Move, now: int) -> None:
        unit = self.units[action.replica_id]
        engine = unit.engine
        halt = Halt.STALLED if action.stalled else Halt.STOPPED
        self._tell_flow(ReplicaHalted(action.model, action.replica_id, halt), now)
        for run in engine.everyone():
            record = run.owner
            if record is not None and record.runs.get(run.attempt) is run:
                if not record.shown and not _shows(run):
                    continue  # nobody has seen a word of it: the flow moves it
                tokens = 0 if run.mute else engine.produced(run, now)
                silent = now - max(run.sent_at, engine.last_token_at(now) if tokens else 0)
                stalled = stuck(silent, run.prompt, begun=tokens > 0)
                kind = stalled if action.stalled else Kind.DRAINED
                if kind is not None:
                    engine.cancel(run, now)
                    self._close(record, run, kind, tokens, now)

    def _crash(self, unit: SimulatedReplica, kind: Kind, now: int) -> None:
        if not unit.up:
            return
        unit.incarnation += 1
        self._take_down(unit, now)
        self._tell_fleet(Exited(unit.replica.id, kind), now)

    def _take_down(self, unit: SimulatedReplica, now: int) -> None:
        """The process is gone: connections are reset, its share of the store is free."""
        unit.up = unit.serving = unit.hung = unit.frozen = False
        if unit.touched:  # what sat in the process went with it
            unit.faults = [one for one in unit.faults if not _sits_in_the_process(one)]
            unit.touched = bool(unit.faults)
        self._store.cancel(unit.replica.id, now)
        for run, tokens in unit.engine.crash(now):
            record = run.owner
            if record is not None and record.runs.get(run.attempt) is run:
                self._close(record, run, Kind.RESET, tokens if _shows(run) else 0, now)

    # --- faults ----------------------------------------------------------------------------------

    def _touched(self, fault: Fault) -> list[SimulatedReplica]:
        units = self.units.values()
        return [u for u in units if fault.touches(u.replica.id, u.replica.zone, u.replica.region)]

    def _begin_fault(self, fault: Fault, now: int) -> None:
        for unit in self._touched(fault):
            unit.faults.append(fault)
            unit.apply_faults(now)
            replica_id = unit.replica.id
            self._detections.began(fault.kind.value, replica_id, now)
            if fault.kind is FaultKind.STOP and unit.up:
                self._tell_fleet(Frozen(replica_id, frozen=True), now)
            if fault.kind is FaultKind.SPOT_NOTICE:
                self._tell_fleet(SpotNotice(replica_id, nanos(fault.lead_s)), now)
            death = fault.dies_at()
            if death is not None:
                doomed = (unit, fault, unit.incarnation)
                self.clock.at(death, WORLD, self._die_of_fault, doomed)
            if unit.hung:
                self._watch(unit, now)

    def _die_of_fault(self, doomed: tuple[SimulatedReplica, Fault, int], now: int) -> None:
        unit, fault, incarnation = doomed
        moved = fault.kind in _MENDED_BY_A_NEW_PROCESS and incarnation != unit.incarnation
        if fault in unit.faults and not moved:
            leak = fault.kind is FaultKind.LEAK
            self._crash(unit, Kind.OUT_OF_MEMORY if leak else Kind.EXITED, now)

    def _end_fault(self, fault: Fault, now: int) -> None:
        for unit in self._touched(fault):
            if fault not in unit.faults:
                continue  # it went with the process that had it
            unit.faults.remove(fault)
            unit.apply_faults(now)
            if fault.kind is FaultKind.STOP:
                self._tell_fleet(Frozen(unit.replica.id, frozen=False), now)


_TICK: Final = Tick()
_MENDED_BY_A_NEW_PROCESS: Final = (FaultKind.SPOT_NOTICE, FaultKind.LEAK)  # another host, empty


def _shows(run: EngineRun) -> bool:
    """Whether a client has seen something of this attempt."""
    return bool(run.first_at) and not run.mute and not run.whole


def _sits_in_the_process(fault: Fault) -> bool:
    return fault.restart_mends or fault.kind is FaultKind.STOP


def _window(faults: FaultSchedule) -> tuple[int, int] | None:
    edges = faults.edges()
    if not edges:
        return None
    endless = any(fault.until is None for _, _, fault in edges)
    return edges[0][0], (1 << 62) if endless else edges[-1][0]


__all__ = ["World"]
