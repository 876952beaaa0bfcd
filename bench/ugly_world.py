"""A healthy fleet's ugly day, for ``false_alarms.py``: everything that looks like illness.

The simulator's own world (the real ``Flow`` and ``Fleet``, engines in closed form) with a script of
a day on top, drawn from one seed: bursts and nights, long prompts, rollouts that take a revision in
and the other out, autoscaling, restarts that somebody asks for, minutes of compilation before and
seconds of it while serving, neighbours that take half of a host, everybody slower for a while,
metrics that are missing, a control that gets round to nothing for seconds, hosts that stand still
as a whole, clocks that jump, and single requests and canaries that fail by chance. How fast
engines are from second to second, how long first tokens take, how long answers are and how memory
grows is resampled from a recorded run of a real engine.

Nobody is ill. Not in here, because it is an illness: one replica alone that emits nothing for
longer than its canary may take.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.facts import HostSeen
from holdfast.core.failure import Kind
from holdfast.core.messages import (
    CanaryResult,
    DrainAsked,
    FleetEvent,
    FlowEvent,
    Joined,
    Launch,
    Left,
    Notice,
    RestartAsked,
    RunCanary,
    Stop,
    Tick,
)
from holdfast.core.types import MILLISECOND, SECOND, Replica, Request, State, nanos, seconds
from holdfast.sim.clock import CONTROL, TRAFFIC, WORLD
from holdfast.sim.diagnosis import DiagnosisDriver, ObservationModel
from holdfast.sim.engine import Engine
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.request_record import EngineRun
from holdfast.sim.simulated_replica import SimulatedReplica
from holdfast.sim.world import World
from ugly_life import DAY, HOST_REPLICAS, HOUR, MODELS, REPLICAS, Recorded, Weather

TICK: Final = 200 * MILLISECOND  # of the gateway: all its waits are far longer than that
FLEET_TICK: Final = SECOND
ASKED: Final = "an operator asks"
_TICK: Final = Tick()


@dataclass(slots=True)
class Count:
    """What was held against healthy replicas."""

    suspects: Counter[str] = field(default_factory=Counter)  # by reason
    quarantines: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)  # that nobody had asked for
    happened: Counter[str] = field(default_factory=Counter)  # of the script


class UglyWorld(World):
    """One day under one seed. ``watcher`` has the incidents afterwards."""

    def __init__(
        self,
        setup: Experiment,
        seed: int,
        recorded: Recorded,
        weather: Weather,
        watch: Callable[["UglyWorld", ObservationModel], DiagnosisDriver],
    ) -> None:
        super().__init__(setup, seed)
        self._handlers[RunCanary] = self._ask_canary
        self.count = Count()
        self.notes: list[tuple[float, float, str]] = []  # from, until (seconds), what and whom
        self.each_hour: Callable[[int], None] = lambda _: None
        self._recorded = recorded
        self._weather = weather
        self._day = nanos(setup.duration_s)
        self._noise = stream(seed, "ugly life", "noise")
        self._hosts: dict[str, str] = {}
        self._slow: dict[str, float] = {}  # by host; "" = everybody
        self._place: dict[str, int] = {}  # of each replica in the recorded pace
        self._revisions: dict[str, int] = {}
        self._wanted: Counter[str] = Counter()  # restarts somebody asked for, by replica
        self._leaving: set[str] = set()
        self._on_ready: dict[str, Callable[[int], None]] = {}
        self._still_until = 0  # everything stands still
        self._late_until = 0  # control does
        self._fresh = 0
        for unit in self.units.values():
            self._house(unit.replica)
        habits = ObservationModel(
            recorded.memory, self._host_of, cut_share=recorded.cut_share, idle_every=5
        )
        self.watcher = watch(self, habits)
        self.add_observer(self._see)

    # --- the day ---------------------------------------------------------------------------------

    def _run(self) -> Any:
        for host in dict.fromkeys(self._hosts.values()):
            self.watcher.say(HostSeen(host, memory_bytes=512 * 10**9, free_bytes=256 * 10**9), 0)
        self._write_script()
        self.clock.at(SECOND // 2, WORLD, self._breathe)
        return super()._run()

    def _plan(
        self,
        what: str,
        per_day: float,
        span: tuple[float, float],
        do: Callable[..., None],
        *whom: Any,
    ) -> None:
        """Have something happen by chance; never in the first five minutes.

        Each has a stream of its own, so that a shorter day is the beginning of a longer one.
        """
        rng = stream(self._seed, f"ugly life/{what}", "/".join(whom))
        at = nanos(300.0)
        while per_day > 0:
            at += nanos(rng.expovariate(per_day / DAY))
            if at >= self._day:
                return
            self.clock.at(at, WORLD, do, (*whom, rng.uniform(*span), rng.random()))

    def _write_script(self) -> None:
        weather, plan = self._weather, self._plan
        for host in ("", *dict.fromkeys(self._hosts.values())):
            often, span = weather.neighbours, weather.neighbour_s
            if not host:
                often, span = weather.slowdowns, weather.slowdown_s
            plan("slow", often, span, self._begin_slow, host)
        for name in self.units:
            plan("compile", weather.compiles, weather.compile_s, self._begin_compile, name)
            plan("gap", weather.gaps, weather.gap_s, self._begin_gap, name)
            plan("restart", weather.restarts, (0.0, 1.0), self._restart, name)
        plan("gap", weather.gaps_of_all, weather.gap_of_all_s, self._begin_gap, "")
        late = weather.pause_of_control_s
        plan("late", weather.pauses_of_control, late, self._pause_control)
        plan("pause", weather.pauses, weather.pause_s, self._pause)
        plan("jump", weather.jumps, weather.jump_s, self._jump)
        for model in dict.fromkeys(unit.replica.model for unit in self.units.values()):
            plan("rollout", weather.rollouts, (0.0, 1.0), self._begin_rollout, model)
            plan("scaling", weather.scalings, weather.scaling_s, self._rescale, model)

    def _note(self, what: str, now: int, span_s: float = 0.0) -> None:
        self.count.happened[what.partition(" ")[0]] += 1
        self.notes.append((seconds(now), seconds(now) + span_s, what))

    def around(self, at_s: float, *whom: str) -> list[str]:
        """What the script did within two minutes of this, to these or to all."""
        return [
            f"{what} {begin - at_s:+.0f}…{end - at_s:+.0f} s"
            for begin, end, what in self.notes
            if begin - 120 <= at_s <= end + 120
            and (what.count(" ") == 0 or any(name and name in what for name in whom))
        ]

    # --- noise -----------------------------------------------------------------------------------

    def _house(self, replica: Replica) -> None:
        """Hosts carry replicas of different models, so that a neighbour harms one of each."""
        number = len(self._hosts)
        self._hosts[replica.id] = f"host-{number % (MODELS * REPLICAS // HOST_REPLICAS)}"
        self._place[replica.id] = self._noise.randrange(1 << 20)

    def _host_of(self, replica: Replica) -> str:
        return self._hosts.get(replica.id, "")

    def _breathe(self, _: object, now: int) -> None:
        """Every second each engine is as fast as the recorded one was in some second."""
        paces, slow, place = self._recorded.paces, self._slow, self._place
        everybody = slow.get("", 1.0)
        jump = self._noise.random
        still = now < self._still_until
        if now // SECOND and now // SECOND % int(HOUR) == 0:
            self.each_hour(now // SECOND // int(HOUR))
        for name, unit in self.units.items():
            if not unit.serving or still:
                continue
            factor = slow.get(self._hosts[name], 1.0)
            running = unit.engine.running
            found = paces(running, beside=factor > 1.0)
            here = place[name] + 1
            if not running or jump() < 0.05:  # canaries come one by one, streams last for seconds
                here += int(jump() * len(found))
            place[name] = here
            unit.engine.pace(found[here % len(found)] * factor * everybody, 0.0, now)
        if now < self._end or self.records:
            self.clock.at(now + SECOND, WORLD, self._breathe)

    def _arrive(self, arrival: tuple[Any, Request, int], now: int) -> None:
        source, request, _ = arrival
        super()._arrive((source, request, self._noise.choice(self._recorded.lengths)), now)

    def _send_to_troubled(self, run: EngineRun, unit: SimulatedReplica, now: int) -> None:
        """Every attempt comes by here: the network, and now and then bad luck."""
        if not unit.serving:
            super()._send_to_troubled(run, unit, now)
            return
        noise = self._noise
        if noise.random() < self._weather.failed:
            kind = noise.choice((Kind.RESET, Kind.REFUSED, Kind.SERVER_ERROR, Kind.EMPTY))
            self.count.happened["failed"] += 1
            self._end_later(run, kind, nanos(noise.uniform(0.0005, 1.0)), now)
            return
        more = (noise.choice(self._recorded.first) - 1.0) * self._weather.first_s
        arrives = now + nanos(max(0.0005, more))
        self.clock.at(arrives, TRAFFIC, self._submit, (run, unit, unit.incarnation))

    def _submit(self, sent: tuple[EngineRun, SimulatedReplica, int], now: int) -> None:
        run, unit, incarnation = sent
        record = run.owner
        if record is None or record.runs.get(run.attempt) is not run:
            return  # called back on the way
        if not unit.serving or incarnation != unit.incarnation:
            self._close(record, run, Kind.RESET, 0, now)
        elif not unit.engine.submit(run, now):
            self._close(record, run, Kind.BAD_REQUEST, 0, now)

    # --- slowness, silence, blindness ------------------------------------------------------------

    def _begin_slow(self, told: tuple[str, float, float], now: int) -> None:
        host, span_s, chance = told
        if host in self._slow:
            return
        least, most = self._weather.neighbour
        factor = least + chance * (most - least)
        self._slow[host] = factor
        names = [name for name, where in self._hosts.items() if where == host]
        self._note(
            f"neighbour ×{factor:.1f} {' '.join(names)}" if host else "slowdown", now, span_s
        )
        self.clock.at(now + nanos(span_s), WORLD, self._end_slow, host)

    def _end_slow(self, host: str, _now: int) -> None:
        self._slow.pop(host, None)

    def _begin_compile(self, told: tuple[str, float, float], now: int) -> None:
        name, span_s, _ = told
        unit = self.units.get(name)
        if unit is None or not unit.serving or now < self._still_until:
            return
        self._note(f"compile {name}", now, span_s)
        unit.engine.hang(now)
        again = (unit.engine, unit.incarnation, unit)
        self.clock.at(now + nanos(span_s), WORLD, self._go_on, again)

    def _go_on(self, told: tuple[Engine, int, SimulatedReplica], now: int) -> None:
        engine, incarnation, unit = told
        if unit.serving and incarnation == unit.incarnation and now >= self._still_until:
            engine.resume(now)

    def _begin_gap(self, told: tuple[str, float, float], now: int) -> None:
        name, span_s, _ = told
        names = [name] if name else list(self.units)
        self._note(f"gap {name}" if name else "gap", now, span_s)
        self.watcher.blind.update(names)
        self.clock.at(now + nanos(span_s), WORLD, self._end_gap, names)

    def _end_gap(self, names: list[str], _now: int) -> None:
        self.watcher.blind.difference_update(names)

    # --- time ------------------------------------------------------------------------------------

    def _pause(self, told: tuple[float, float], now: int) -> None:
        """Everything stands still: engines, gateways, control."""
        span_s, _ = told
        self._note("pause", now, span_s)
        self._still_until = self._late_until = now + nanos(span_s)
        for unit in self.units.values():
            if unit.serving:
                unit.engine.hang(now)
        self.clock.at(self._still_until, WORLD, self._end_pause)

    def _end_pause(self, _: object, now: int) -> None:
        for unit in self.units.values():
            if unit.serving:
                unit.engine.resume(now)

    def _pause_control(self, told: tuple[float, float], now: int) -> None:
        span_s, _ = told
        self._note("late", now, span_s)
        self._late_until = max(self._late_until, now + nanos(span_s))

    def _jump(self, told: tuple[float, float], now: int) -> None:
        span_s, _ = told
        self._note("jump", now, span_s)
        self.watcher.skew += nanos(span_s)

    def _tick_flow(self, _: object, now: int) -> None:
        if now < self._still_until:
            self.clock.at(self._still_until + 1, TRAFFIC, self._tick_flow)
            return
        self._tell_flow(_TICK, now)
        if now < self._end or self.records:
            self.clock.at(now + TICK, TRAFFIC, self._tick_flow)

    def _tick_fleet(self, _: object, now: int) -> None:
        if now < self._late_until:
            self.clock.at(self._late_until + 1, CONTROL, self._tick_fleet)
            return
        self._tell_fleet(_TICK, now)
        if now < self._end or self.records:
            late = now % FLEET_TICK  # back to whole seconds after a pause
            self.clock.at(now - late + FLEET_TICK, CONTROL, self._tick_fleet)

    def _tell_flow(self, event: FlowEvent, now: int) -> None:
        if now < self._still_until:
            self.clock.at(self._still_until, TRAFFIC, self._tell_flow, event)
        else:
            super()._tell_flow(event, now)

    def _tell_fleet(self, event: FleetEvent, now: int) -> None:
        if now >= self._late_until:
            super()._tell_fleet(event, now)
            return
        if isinstance(event, CanaryResult) and event.verdict in (
            CanaryVerdict.TIMEOUT,
            CanaryVerdict.FAIL,
        ):
            # Who was late itself does not know who else was.
            event = CanaryResult(
                event.replica_id,
                CanaryVerdict.UNKNOWN,
                incarnation=event.incarnation,
                extra=event.extra,
            )
        self.clock.at(self._late_until, CONTROL, self._tell_fleet, event)

    def _ask_canary(self, action: RunCanary, now: int) -> None:
        if self._noise.random() < self._weather.probes_lost:
            self._note(f"lost {action.replica_id}", now)
            lost = CanaryResult(
                action.replica_id,
                CanaryVerdict.FAIL,
                incarnation=action.incarnation,
                extra=action.extra,
            )
            self.clock.at(now + 10 * MILLISECOND, CONTROL, self._tell_fleet, lost)
            return
        self._canaries.ask(action, now)

    # --- comings and goings ----------------------------------------------------------------------

    def _start(self, unit: SimulatedReplica) -> None:
        super()._start(unit)
        unit.touched = True  # every attempt goes by ``_send_to_troubled``

    def _loaded(self, unit: SimulatedReplica, incarnation: int, now: int) -> None:
        """Weights are read; now it compiles, and nothing is heard of it."""
        if incarnation == unit.incarnation:
            self.watcher.compiling(unit.replica.id, now)
            ready = now + nanos(self._noise.uniform(*self._weather.warm_up_s))
            self.clock.at(ready, WORLD, self._compiled, (unit, incarnation))

    def _compiled(self, told: tuple[SimulatedReplica, int], now: int) -> None:
        unit, incarnation = told
        super()._loaded(unit, incarnation, now)
        unit.touched = True
        if now < self._still_until and unit.serving:
            unit.engine.hang(now)

    def _join(self, model: str, now: int, then: Callable[[int], None] | None = None) -> str:
        self._fresh += 1
        revision = str(self._revisions.get(model, 1))
        replica = Replica(f"{model}-n{self._fresh}", model, revision=revision)
        law = dict(self.experiment.engines).get(model, self.experiment.engine)
        engine = Engine(law, self.clock, self._on_first, self._on_done, self._on_slow_step)
        unit = SimulatedReplica(replica, engine, stream(self._seed, replica.id, "faults"))
        self.units[replica.id] = unit
        self._by_engine[id(engine)] = unit
        self._house(replica)
        if then is not None:
            self._on_ready[replica.id] = then
        self._tell_fleet(Joined(replica), now)
        return replica.id

    def _leave(self, name: str, now: int) -> None:
        if name in self.units and name not in self._leaving:
            self._leaving.add(name)
            self._tell_fleet(DrainAsked(name, "no longer wanted"), now)

    def _do_stop(self, action: Stop, now: int) -> None:
        super()._do_stop(action, now)
        if action.replica_id in self._leaving:
            self.clock.at(now + 5 * SECOND, CONTROL, self._left, action.replica_id)

    def _left(self, name: str, now: int) -> None:
        self._tell_fleet(Left(name), now)
        unit = self.units.pop(name, None)
        if unit is not None:
            self._leaving.discard(name)
            del self._by_engine[id(unit.engine)]
            del self._hosts[name], self._place[name]

    def _restart(self, told: tuple[str, float, float], now: int) -> None:
        name, _, _ = told
        if name in self.units and name not in self._leaving:
            self._note(f"restart {name}", now, 400.0)
            self._wanted[name] += 1
            self._tell_fleet(RestartAsked(name, ASKED), now)

    def _begin_rollout(self, told: tuple[str, float, float], now: int) -> None:
        """One new replica at a time, and an old one goes when it is ready."""
        model, _, _ = told
        old = [n for n, u in self.units.items() if u.replica.model == model]
        old = [name for name in old if name not in self._leaving]
        if any(name in self._on_ready for name in old):
            return  # one is under way
        revision = self._revisions.get(model, 1) + 1
        self._revisions[model] = revision
        self._note(f"rollout {model}-", now, 1_800.0)
        self.watcher.rollout(model, str(revision), "began", now)

        def step(at: int) -> None:
            if old:
                self._leave(old.pop(), at)
            if old:
                self._join(model, at, step)
            else:
                self.watcher.rollout(model, str(revision), "finished", at)

        self._join(model, now, step)

    def _rescale(self, told: tuple[str, float, float], now: int) -> None:
        model, span_s, chance = told
        self._note(f"scaling {model}-", now, span_s)
        for _ in range(2 if chance < 0.3 else 1):
            name = self._join(model, now)
            self.clock.at(now + nanos(span_s), WORLD, self._leave, name)

    # --- what comes of it ------------------------------------------------------------------------

    def _see(self, now: int, whose: str, _event: Any, actions: Any) -> None:
        if whose == "flow":
            return
        for action in actions:
            if isinstance(action, Notice):
                self._noticed(action, now)
            elif isinstance(action, Launch) and action.reason != "declared":
                if self._wanted[action.replica_id]:
                    self._wanted[action.replica_id] -= 1
                else:
                    told = f"{seconds(now):.0f} s {action.replica_id}: {action.reason}"
                    self.count.restarts.append(told)

    def _noticed(self, notice: Notice, now: int) -> None:
        name, what = notice.replica_id, notice.what
        if what == State.SUSPECT:
            self.count.suspects[notice.reason.partition(" (")[0]] += 1
        elif what == State.QUARANTINED:
            told = f"{seconds(now):.0f} s {name}: {notice.reason}"
            self.count.quarantines.append(told)
        elif what == State.READY and name in self._on_ready:
            self.clock.at(now + SECOND, WORLD, _call, self._on_ready.pop(name))


def _call(function: Callable[[int], None], now: int) -> None:
    function(now)


__all__ = ["Count", "UglyWorld"]
