"""Healthy fleets, for weeks: a light model of all but illness that drives ``core.health.fleet``.

Each pool is a fleet of its own: the real machine with the shipped defaults, ticked once a second of
virtual time, with the canaries, summaries and loads that a driver would report. Requests are not
simulated one by one; what they do to a canary is drawn from the laws below. Nobody is ill, so every
suspicion, quarantine and relaunch is a false alarm.

What happens there: latencies with noise and hiccups, load by the time of day, bursts with queues
and 429s, long prompts and spells full of them, everybody slower for minutes, everybody silent for
up to 40 s, control late itself, gaps in the metrics, single readings of a full cache, pauses while
one replica compiles a new shape, restarts that an operator asks for with minutes of compilation,
and now and then a probe that the network loses. Not in here, because it is an illness: one replica
alone that emits nothing for longer than its canary may take.
"""

import heapq
import time
from collections import Counter
from dataclasses import dataclass
from math import cos, exp, pi
from random import Random
from typing import Any, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import (
    CanaryResult,
    EngineLoads,
    FleetAction,
    FleetEvent,
    Joined,
    Launch,
    LoadReported,
    Notice,
    Phase,
    RestartAsked,
    RunCanary,
    Seen,
    Stop,
    Summary,
    Tally,
    Tick,
)
from holdfast.core.types import MILLISECOND, SECOND, Replica, State, nanos, seconds
from holdfast.sim.random_streams import stream, streams_of

REPLICAS: Final = 5  # of a pool
SLOTS: Final = 16  # of a replica
HOUR: Final = 3_600  # seconds
DAY: Final = 24 * HOUR
CANARY_TOKENS: Final = 40  # a chat template around the shipped question, and eight tokens
TOKENS_A_REQUEST: Final = 60  # a second, prompt and answer
REQUEST_S: Final = 5.0  # a request stays so long
DECLARED: Final = "an operator asks"
SUMMARY_S: Final = 2  # between two summaries of a gateway; one a second doubles the time this takes
_ONE_LOOK: Final = (SUMMARY_S * REPLICAS,) * 2  # seconds: replicas take turns to be looked at
# An unchanged view is repeated to nobody here; nothing else hangs on these two.
CONFIG: Final = FleetConfig(ramp_s=60.0, heartbeat_s=60.0)
_ALARMS: Final = (State.SUSPECT.value, State.QUARANTINED.value, State.DEAD.value)


@dataclass(slots=True, frozen=True)
class Weather:
    """How often, and how much. Rates are of one pool, or of one replica where said."""

    noise: float = 0.1  # sigma of a canary's latency, lognormal
    hiccup: float = 0.003  # of canaries: collectors of garbage, retransmissions
    hiccup_s: tuple[float, float] = (0.2, 2.0)
    lost: float = 1e-5  # of canaries: a connection reset on the way
    bursts_per_hour: float = 2.0
    burst_s: tuple[float, float] = (60.0, 300.0)
    busy: float = 0.1  # of canaries in a burst: answered with 429
    long_spells_per_day: float = 4.0  # every replica has its slots full of long prompts
    long_spell_s: tuple[float, float] = (300.0, 1_200.0)
    prompt_block_s: tuple[float, float] = (0.1, 4.0)  # median and most: 32k tokens, 8k a second
    slowdowns_per_day: float = 4.0  # of everybody
    slowdown_s: tuple[float, float] = (120.0, 600.0)
    slowdown: tuple[float, float] = (1.5, 4.0)  # factor
    pauses_per_day: float = 1.0  # of everybody: a switch that restarts
    pause_s: tuple[float, float] = (5.0, 40.0)
    late_per_hour: float = 1.0  # control gets round to nothing for a second or more
    late_s: tuple[float, float] = (1.0, 5.0)
    compiles_per_day: float = 6.0  # of one replica, while it serves: a new shape
    compile_s: tuple[float, float] = (1.0, 3.5)
    gaps_per_day: float = 6.0  # of one replica's metrics
    gap_s: tuple[float, float] = (10.0, 600.0)
    full_reading: float = 1e-4  # of polls: one reading above the line, and not the next
    restarts_per_day: float = 1.0  # of one replica, by an operator
    loading_s: tuple[float, float] = (30.0, 300.0)  # with the compilation of a start


class _Spell:
    """Something that begins by chance and lasts for a while."""

    __slots__ = ("_lasts", "_rate", "_rng", "begins", "ends", "last_end")

    def __init__(self, rng: Random, per_second: float, lasts: tuple[float, float]) -> None:
        self._rng, self._rate, self._lasts = rng, per_second, lasts
        self.last_end = -1.0
        self.begins = rng.expovariate(per_second)
        self.ends = self.begins + rng.uniform(*lasts)

    def over(self, now_s: float) -> bool:
        """Whether it goes on now; draws the next one when it is over."""
        if now_s < self.begins:
            return False
        if now_s < self.ends:
            return True
        self.last_end = self.ends
        self.begins = now_s + self._rng.expovariate(self._rate)
        self.ends = self.begins + self._rng.uniform(*self._lasts)
        return False

    def since(self, start_s: float, now_s: float) -> bool:
        """Whether it went on at some time between."""
        return self.over(now_s) or self.last_end >= start_s


class _Healthy:
    """One replica that is well."""

    __slots__ = (
        *("base_s", "beside", "compiling", "full_before", "gap", "id", "inflight", "progress_s"),
        *("restart", "tallies", "up"),
    )

    def __init__(self, replica_id: str, base_s: float, rng: Random, weather: Weather) -> None:
        self.id = replica_id
        self.base_s = base_s
        self.inflight = 0
        self.beside = 0  # requests beside its canary, as a summary will tell
        self.progress_s = 0.0  # users last got tokens
        self.up = True
        self.full_before = False
        self.restart = _Spell(rng, weather.restarts_per_day / DAY, _ONE_LOOK)
        self.compiling = _Spell(rng, weather.compiles_per_day / DAY, weather.compile_s)
        self.gap = _Spell(rng, weather.gaps_per_day / DAY, weather.gap_s)
        # Built once: a second of a pool is short, and there are millions of them.
        self.tallies = [
            Tally("m", replica_id, int(n > 0), 0, 0, n, n * SUMMARY_S * TOKENS_A_REQUEST)
            for n in range(SLOTS + 1)
        ]


class Pool:
    """A pool and its weather."""

    def __init__(self, seed: int, weather: Weather, config: FleetConfig) -> None:
        self._rng = rng = stream(seed, "pool", "weather")
        self._weather = weather
        self._fleet = Fleet(config, streams_of(seed, "fleet"))
        self._slow_by = 1.0
        base_s = rng.choice((0.08, 0.2, 0.5, 1.0))
        names = [f"m-{number}" for number in range(REPLICAS)]
        self._all = {n: _Healthy(n, base_s * rng.uniform(0.9, 1.1), rng, weather) for n in names}
        self._list = list(self._all.values())
        self._phase = rng.random() * DAY
        self._burst = _Spell(rng, weather.bursts_per_hour / HOUR, weather.burst_s)
        self._long = _Spell(rng, weather.long_spells_per_day / DAY, weather.long_spell_s)
        self._slowdown = _Spell(rng, weather.slowdowns_per_day / DAY, weather.slowdown_s)
        self._pause = _Spell(rng, weather.pauses_per_day / DAY, weather.pause_s)
        self._late = _Spell(rng, weather.late_per_hour / HOUR, weather.late_s)
        self._due: list[tuple[int, int, FleetEvent | None]] = []
        self._deadlines: dict[str, int] = {}  # of canaries that are out
        self._order = 0
        self._asked: Counter[str] = Counter()  # restarts that somebody wanted
        self.counts: Counter[str] = Counter()
        self.why: Counter[str] = Counter()

    def run(self, hours: float) -> None:
        """So many hours of it."""
        for name in self._all:
            self._tell(Joined(Replica(name, "m"), running=True), 0)
        for second in range(1, round(hours * HOUR)):
            now = second * SECOND
            while self._due and self._due[0][0] <= now:
                at, _, event = heapq.heappop(self._due)
                if isinstance(event, Phase) and event.phase is State.WARMING:
                    self._all[event.replica_id].up = True
                elif isinstance(event, CanaryResult):
                    event = self._delivered(event, at)
                if event is not None:
                    self._tell(event, at)
            if second % SUMMARY_S == 0:
                self._users(second, now)
            self._tell(_TICK, now)

    def _tell(self, event: FleetEvent, now: int) -> None:
        for action in self._fleet.handle(event, now):
            self._do(action, now)

    def _later(self, event: FleetEvent, at: int) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, event))

    # --- what users do ---------------------------------------------------------------------------

    def _users(self, now_s: int, now: int) -> None:
        """Some traffic, as gateways tell it; and the engines' own metrics."""
        long, burst = self._long.over(now_s), self._burst.over(now_s)
        paused = self._pause.over(now_s)
        if self._slowdown.over(now_s):
            if self._slow_by == 1.0:
                self._slow_by = self._rng.uniform(*self._weather.slowdown)
        else:
            self._slow_by = 1.0
        one = self._list[now_s // SUMMARY_S % REPLICAS]  # each is drawn anew every few seconds
        if not paused:
            level = 1.0 if long or burst else self._level(now_s)
            drawn = round(self._rng.gauss(level * SLOTS, 0.5 + level * 2.0))
            one.inflight = max(0, min(SLOTS, drawn)) if one.up else 0
        tallies = []
        for each in self._list:
            if each.inflight:
                moved = not (paused or each.compiling.over(now_s))
                if moved:
                    each.progress_s = now_s
                    tallies.append(each.tallies[each.inflight])
                else:
                    tallies.append(_standing(each))
            elif each is one:
                tallies.append(each.tallies[0])
        if tallies:
            self._tell(Seen((Summary(tuple(tallies)),), "gateway-0"), now)
        self._metrics(one, now_s, now)
        if one.restart.over(now_s) and one.up:
            self._asked[one.id] += 1
            self._tell(RestartAsked(one.id, DECLARED), now)

    def _level(self, now_s: float) -> float:
        """Share of the slots in use, by the time of day: 2 % at night, 70 % at noon."""
        return 0.36 - 0.34 * cos(2 * pi * (now_s + self._phase) / DAY)

    def _metrics(self, one: _Healthy, now_s: float, now: int) -> None:
        """Readings that the fleet does not remember are not told: they change nothing there."""
        if not one.up or one.gap.over(now_s):
            return
        if self._long.over(now_s) and one.inflight:  # canaries wait in a queue that its page shows
            self._tell(EngineLoads((LoadReported("", one.id, waiting=2, kv_used=0.6),)), now)
            return
        polls = SUMMARY_S * REPLICAS  # for which this look stands
        full = not one.full_before and self._rng.random() < polls * self._weather.full_reading
        if full or one.full_before:
            self._tell(
                EngineLoads((LoadReported("", one.id, waiting=0, kv_used=0.99 if full else 0.6),)),
                now,
            )
        one.full_before = full

    # --- what canaries find ----------------------------------------------------------------------

    def _canary(self, action: RunCanary, now: int) -> None:
        self.counts["canaries"] += 1
        self._deadlines[action.replica_id] = now + action.deadline
        rng, weather = self._rng, self._weather
        each, now_s = self._all[action.replica_id], seconds(now)
        if not each.up:
            self._answer(action, CanaryVerdict.REFUSED, now, 0.001)
            return
        if rng.random() < weather.lost:
            self.counts["probes lost"] += 1
            told = {"detail": "the connection was reset", "flaw": Kind.RESET}
            self._answer(action, CanaryVerdict.FAIL, now, 0.01, **told)
            return
        paused = self._pause.over(now_s)
        if self._burst.over(now_s) and not paused and rng.random() < weather.busy:
            self._answer(action, CanaryVerdict.BUSY, now, 0.01)
            return
        takes = each.base_s * rng.lognormvariate(0.0, weather.noise) * self._slow_by
        takes *= 1 + 0.04 * each.inflight
        told_in = rng.random()  # seconds until the next summary tells who is there
        takes += self._waits(each, now_s, takes, told_in)
        if rng.random() < weather.hiccup:
            takes += rng.uniform(*weather.hiccup_s)
        if paused:
            takes += self._pause.ends - now_s
        if each.compiling.over(now_s):
            takes += each.compiling.ends - now_s
        deadline_s = seconds(action.deadline)
        if takes <= deadline_s:
            beside = each.beside if takes > told_in else 0
            self._answer(
                action, CanaryVerdict.PASS, now, takes, latency=nanos(takes), running=beside
            )
        else:
            self._answer(action, CanaryVerdict.TIMEOUT, now, deadline_s, latency=action.deadline)

    def _waits(self, each: _Healthy, now_s: float, takes: float, told_in: float) -> float:
        """Behind others' prompts: in the queue, or beside one that no summary has told of yet."""
        rng, weather = self._rng, self._weather
        each.beside = each.inflight
        if self._long.over(now_s) and each.inflight:
            return rng.uniform(0.0, 12.0)
        if each.inflight >= SLOTS:
            return rng.expovariate(1 / 1.5)
        arrivals = max(each.inflight, self._level(now_s) * SLOTS) / REQUEST_S
        since = 1.0 - told_in
        if rng.random() >= 1 - exp(-arrivals * (since + takes)):
            return 0.0
        each.beside += 1
        median, most = weather.prompt_block_s
        block = min(median * rng.lognormvariate(0.0, 1.2), most)
        return max(0.0, block - max(0.0, rng.uniform(-takes, since)))  # what is left of it

    def _answer(
        self, action: RunCanary, verdict: CanaryVerdict, now: int, after_s: float, **more: Any
    ) -> None:
        result = CanaryResult(
            action.replica_id,
            verdict,
            incarnation=action.incarnation,
            tokens=CANARY_TOKENS if verdict is CanaryVerdict.PASS else 0,
            extra=action.extra,
            **more,
        )
        self._later(result, now + nanos(after_s))

    def _delivered(self, event: CanaryResult, at: int) -> CanaryResult | None:
        """As control gets it: later, where everything stands still now; read by what else it saw.

        A silence is read by what gateways told meanwhile, and not at all by a control that was
        late itself.
        """
        now_s, each = seconds(at), self._all[event.replica_id]
        if event.verdict is CanaryVerdict.PASS:
            for spell in (self._pause, each.compiling):
                if spell.over(now_s):
                    return self._held_up(event, at, nanos(spell.ends - now_s) + MILLISECOND)
        if event.verdict in (CanaryVerdict.TIMEOUT, CanaryVerdict.FAIL) and self._late.over(now_s):
            return CanaryResult(
                event.replica_id,
                CanaryVerdict.UNKNOWN,
                incarnation=event.incarnation,
                extra=event.extra,
            )
        began = self._deadlines[event.replica_id] - event.latency
        waited = each.beside and not (each.inflight or self._pause.since(seconds(began), now_s))
        if event.verdict is CanaryVerdict.TIMEOUT and waited:  # those it waited for have gone
            event.verdict, event.running = CanaryVerdict.PASS, each.beside
        if event.verdict is CanaryVerdict.TIMEOUT:
            event.running = each.inflight
            # Real summaries come every second: what goes on again has been told of after one.
            awake = self._pause.last_end if not self._pause.over(now_s) else now_s
            moves = max(each.progress_s, awake if now_s - awake >= 1.0 else 0.0)
            event.progress = moves >= seconds(began) + 1.0
        return event

    def _held_up(self, event: CanaryResult, at: int, for_: int) -> CanaryResult | None:
        over, deadline = at + for_, self._deadlines[event.replica_id]
        event.latency += for_
        if over > deadline:
            event.verdict, event.tokens = CanaryVerdict.TIMEOUT, 0
            event.latency -= over - deadline
        self._later(event, min(over, deadline))
        return None

    # --- what the fleet asks for -----------------------------------------------------------------

    def _do(self, action: FleetAction, now: int) -> None:
        if isinstance(action, RunCanary):
            self._canary(action, now)
        elif isinstance(action, Stop):
            each = self._all[action.replica_id]
            each.up, each.inflight = False, 0
        elif isinstance(action, Launch):
            self._launched(action, now)
        elif isinstance(action, Notice) and action.what in _ALARMS:
            self.counts[action.what] += 1
            self.why[f"{action.what}: {self._cause(action, seconds(now))}"] += 1

    def _cause(self, notice: Notice, now_s: float) -> str:
        """What the weather had to do with it."""
        if "reset" in notice.reason:
            return "a probe was lost on the network"
        if self._pause.since(now_s - 30.0, now_s):
            return "everybody was silent"
        return notice.reason.partition(" (")[0]

    def _launched(self, action: Launch, now: int) -> None:
        """Loading, compiling, and then it is there; nothing is heard of it meanwhile."""
        if self._asked[action.replica_id]:
            self._asked[action.replica_id] -= 1
            self.counts["restarts asked for"] += 1
        else:
            self.counts["relaunched"] += 1
            self.why[f"relaunched: {action.reason.partition(' (')[0]}"] += 1
        begins = now + action.delay + SECOND
        ready = begins + nanos(self._rng.uniform(*self._weather.loading_s))
        for at, phase in (
            (begins, State.STARTING),
            (begins, State.LOADING),
            (ready, State.WARMING),
        ):
            self._later(Phase(action.replica_id, phase), at)


_TICK: Final = Tick()


def _standing(each: _Healthy) -> Tally:
    return Tally("m", each.id, 0, 0, 0, each.inflight, 0)


def run_pool(seed: int, hours: float) -> dict[str, Any]:
    """One pool under the shipped defaults; what was held against its healthy replicas."""
    began = time.process_time()
    pool = Pool(seed, Weather(), CONFIG)
    pool.run(hours)
    return {
        "replica_hours": hours * REPLICAS,
        "counts": dict(pool.counts),
        "why": dict(pool.why),
        "cpu_s": time.process_time() - began,
    }


__all__ = ["REPLICAS", "Pool", "Weather", "run_pool"]
