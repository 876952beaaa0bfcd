"""How soon readiness finds an ill replica, and what its canaries cost: in the simulator.

The real fleet and the real flow in virtual time, with the shipped defaults but for the period. Each
run has several pools of four, and in each of them one replica falls ill at a random moment. A stall
after the first token is an engine that emits nothing any more; a model that is not loaded is a
server that refuses every inference at once and whose page is green.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.messages import (
    CanaryResult,
    EngineLoads,
    FleetEvent,
    Notice,
    Seen,
    Summary,
    Tally,
)
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import Replica, State, nanos, seconds
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

KV: Final = "KV above the line"
FAULTS: Final[dict[str, FaultKind | None]] = {
    "wrong answer": FaultKind.WRONG_OUTPUT,
    "garbage": FaultKind.GARBAGE,
    "stall after first token": FaultKind.HANG,
    "latency ×3": FaultKind.SLOW,
    KV: None,
    "model not loaded": FaultKind.BLACK_HOLE,
}
PERIODS_S: Final = (1.0, 5.0, 30.0)
LOADS: Final = (0.0, 0.5)
# At its admission a replica is asked as usual for a minute of use; what comes after is measured.
SETTLED_S: Final = 120.0
POOLS: Final = 10  # in one run
REPLICAS: Final = 4  # of a pool
# A canary of eight tokens takes a third of a second: three times that is noticed by anybody.
LAW: Final = EngineParameters(step_ms=40.0, batch_max=16, kv_tokens_max=64_000)
PROMPT: Final = 32  # tokens of the shipped question in a chat template
OUTPUT: Final = 8
_OUT: Final = (State.QUARANTINED.value, State.DEAD.value)
_NOTICED: Final = (State.SUSPECT.value, *_OUT)


def capacity(law: EngineParameters, prompt: float, output: float) -> float:
    """Requests per second of one replica with all its slots busy."""
    batch = law.batch_max
    held = batch * (prompt + output / 2)
    step_ms = law.step_ms + law.per_sequence_ms * batch + law.per_kv_token_ms * held
    step_ms += law.per_prompt_token_ms * prompt * batch / output
    return batch / (output * step_ms / 1_000)


# --- time to detect ------------------------------------------------------------------------------


@dataclass(slots=True)
class Victim:
    """One replica that falls ill, and when that showed."""

    replica_id: str
    at: int
    noticed: int | None = None  # it left ready: nine tenths of its traffic, or all of it
    out: int | None = None  # it gets nothing any more


class Filled(World):
    """The simulated world, where the KV caches of some replicas are full from some moment on."""

    def __init__(self, setup: Experiment, seed: int, full: Sequence[Victim]) -> None:
        super().__init__(setup, seed)
        self._full = {victim.replica_id: victim.at for victim in full}

    def _tell_fleet(self, event: FleetEvent, now: int) -> None:
        if isinstance(event, EngineLoads):
            loads = (
                replace(load, kv_used=0.97)
                if now >= self._full.get(load.replica_id, now + 1)
                else load
                for load in event.loads
            )
            event = EngineLoads(tuple(loads))
        super()._tell_fleet(event, now)


def detect(fault: str, period_s: float, load: float, seed: int) -> list[Victim]:
    """One run: the victims of its pools."""
    rng = stream(seed, fault, "onset")
    # What is usual is known by then, and what a newcomer was admitted with is spent.
    warm_s = max(8 * max(period_s, 5.0), SETTLED_S if load else 0.0)
    watch_s = 30.0 + 8 * max(period_s, 5.0)
    names = [f"pool{number}" for number in range(POOLS)]
    victims = [
        Victim(f"{name}-0", nanos(warm_s + rng.random() * max(period_s, 5.0))) for name in names
    ]
    kind = FAULTS[fault]
    faults = [] if kind is None else [_fault(kind, victim) for victim in victims]
    rate = load * REPLICAS * capacity(LAW, 500.0, 200.0)
    workload = None if not load else Workload(rate=rate)
    setup = Experiment(
        replicas=tuple(Replica(f"{n}-{i}", n) for n in names for i in range(REPLICAS)),
        duration_s=warm_s + watch_s,
        workloads=tuple((name, workload) for name in names) if workload else (),
        engine=LAW,
        fleet=FleetConfig(health=HealthConfig(canary_s=period_s)),
        faults=FaultSchedule(faults),
        canary_prompt=PROMPT,
        canary_output=OUTPUT,
    )
    _watch(Filled(setup, seed, victims if kind is None else ()), victims)
    return victims


def _watch(world: World, victims: Sequence[Victim]) -> None:
    """Run it to its end, and note when each illness showed."""
    known = {victim.replica_id: victim for victim in victims}

    def observe(now: int, _whose: str, _event: Any, actions: Sequence[Any]) -> None:
        for action in actions:
            if isinstance(action, Notice) and action.replica_id in known:
                _note(known[action.replica_id], action.what, now)

    world.add_observer(observe)
    world.run()


def _fault(kind: FaultKind, victim: Victim) -> Fault:
    return Fault(kind, victim.replica_id, victim.at, factor=3.0)


def _note(victim: Victim, what: str, now: int) -> None:
    if now < victim.at:
        return
    if victim.noticed is None and what in _NOTICED:
        victim.noticed = now
    if victim.out is None and what in _OUT:
        victim.out = now


def lag_row(fault: str, period_s: float, load: float, seeds: Sequence[int]) -> dict[str, Any]:
    """One row of the table: quantiles over all victims of all seeds."""
    victims = [victim for seed in seeds for victim in detect(fault, period_s, load, seed)]
    return {"fault": fault, "period_s": period_s, "load": load, **_lags(victims)}


def _lags(victims: Sequence[Victim]) -> dict[str, Any]:
    row: dict[str, Any] = {"replicas": len(victims)}
    for what in ("noticed", "out"):
        ends = [(getattr(victim, what), victim.at) for victim in victims]
        lags = sorted(seconds(end - at) for end, at in ends if end is not None)
        row[what] = {
            "count": len(lags),
            "p50_s": _quantile(lags, 0.5),
            "p95_s": _quantile(lags, 0.95),
            "max_s": _quantile(lags, 1.0),
        }
    return row


def _quantile(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


# --- cost ----------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Size:
    """An engine, and what it is asked."""

    name: str
    engine: EngineParameters
    prompt: float
    output: float
    rarest_s: float  # no canary waits for longer


GPU: Final = Size("GPU, 128 slots", EngineParameters(), 500.0, 200.0, 30.0)
# A small model on one thread of a processor, as `holdfast up` starts it.
CPU: Final = Size(
    "one thread, 2 slots",
    EngineParameters(
        step_ms=12.0,
        per_sequence_ms=3.0,
        per_kv_token_ms=0.0,
        per_prompt_token_ms=2.0,
        batch_max=2,
        kv_tokens_max=4_096,
    ),
    120.0,
    80.0,
    300.0,
)
COST_LOADS: Final = (0.0, 0.1, 0.5, 0.9, 1.2)  # of capacity; at the last one, all is saturated


def _users(size: Size, load: float, models: Sequence[str]) -> tuple[tuple[str, Workload], ...]:
    if not load:
        return ()
    workload = Workload(
        rate=load * REPLICAS * capacity(size.engine, size.prompt, size.output),
        prompt=Lengths(mean=size.prompt, maximum=2_000),
        output=Lengths(mean=size.output, maximum=1_000),
    )
    return tuple((model, workload) for model in models)


def cost_row(size: Size, load: float, seed: int, duration_s: float) -> dict[str, Any]:
    """Canary tokens beside users' tokens, with the shipped defaults."""
    setup = Experiment(
        replicas=tuple(Replica(f"m-{i}", "m") for i in range(REPLICAS)),
        duration_s=SETTLED_S + duration_s,
        workloads=_users(size, load, ("m",)),
        engine=size.engine,
        canary_prompt=PROMPT,
        canary_output=OUTPUT,
    )
    world = World(setup, seed)
    count: Counter[str] = Counter()
    members = world.fleet.members

    def observe(now: int, _whose: str, event: Any, _actions: Sequence[Any]) -> None:
        settled = now >= nanos(SETTLED_S)
        if isinstance(event, CanaryResult) and event.tokens and settled:
            count["canaries"] += 1
            count["tokens"] += event.tokens
            count["charged"] += event.tokens if members[event.replica_id].canary_charged else 0
            count["beside users"] += event.tokens if event.running else 0
        elif isinstance(event, Seen):
            for tally in _tallies(event):
                count["users"] += tally.tokens if settled else 0
                saturated = settled and not members[tally.replica_id].has_free_slot
                count["users saturated"] += tally.tokens if saturated else 0

    world.add_observer(observe)
    world.run()
    rate = capacity(size.engine, size.prompt, size.output)
    most = REPLICAS * rate * (size.prompt + size.output) * duration_s
    users, tokens = count["users"], count["tokens"]

    def share(what: str) -> float:
        return count[what] / (users + count[what]) if users + count[what] else 0.0

    return {
        "engine": size.name,
        "load": load,
        "users_tokens_per_s": round(users / duration_s / REPLICAS, 1),
        "canary_tokens_per_s": round(tokens / duration_s / REPLICAS, 2),
        "period_s": round(duration_s * REPLICAS / max(1, count["canaries"]), 1),
        "share_saturated": count["charged"] / max(1, count["users saturated"] + count["charged"]),
        "saturated": count["users saturated"] / max(1, users),
        "share_beside_users": share("beside users"),
        "share_of_tokens": share("tokens"),
        "share_of_capacity": tokens / most,
    }


def _tallies(event: Seen) -> list[Tally]:
    """Where users got tokens, as a gateway told."""
    summaries = [each for each in event.actions if isinstance(each, Summary)]
    return [tally for summary in summaries for tally in summary.tallies if tally.tokens]


def lies_row(size: Size, load: float, seeds: Sequence[int]) -> dict[str, Any]:
    """How soon a wrong answer is found with the shipped defaults: what few canaries cost."""
    victims = [victim for seed in seeds for victim in _lies(size, load, seed)]
    return {"engine": size.name, "load": load, **_lags(victims)}


def _lies(size: Size, load: float, seed: int) -> list[Victim]:
    rng = stream(seed, size.name, "onset")
    names = [f"pool{number}" for number in range(POOLS)]
    # Spread over the longest period, so that it is any moment of it.
    spread_s = size.rarest_s
    victims = [Victim(f"{name}-0", nanos(SETTLED_S + rng.random() * spread_s)) for name in names]
    setup = Experiment(
        replicas=tuple(Replica(f"{n}-{i}", n) for n in names for i in range(REPLICAS)),
        duration_s=SETTLED_S + 2 * spread_s + 30.0,
        workloads=_users(size, load, names),
        engine=size.engine,
        faults=FaultSchedule([_fault(FaultKind.WRONG_OUTPUT, victim) for victim in victims]),
        canary_prompt=PROMPT,
        canary_output=OUTPUT,
    )
    _watch(World(setup, seed), victims)
    return victims


__all__ = [
    "COST_LOADS",
    "CPU",
    "FAULTS",
    "GPU",
    "LOADS",
    "PERIODS_S",
    "capacity",
    "cost_row",
    "detect",
    "lag_row",
    "lies_row",
]
