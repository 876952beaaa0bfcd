"""The health of one replica, for tests that tell it signals."""

from random import Random

from holdfast.core.health.health import HealthConfig, ReplicaHealth, Signal
from holdfast.core.types import State

PASS, FAIL, WRONG, SLOW = (
    Signal.CANARY_PASS,
    Signal.CANARY_FAIL,
    Signal.CANARY_WRONG,
    Signal.CANARY_SLOW,
)


def make(now: int = 0, **config: object) -> ReplicaHealth:
    return ReplicaHealth(HealthConfig(**config), "r1", "m", now, Random(1))


def feed(health: ReplicaHealth, *signals: Signal, now: int = 0) -> State:
    for signal in signals:
        health.handle(signal, now)
    return health.state


def ready(now: int = 0, **config: object) -> ReplicaHealth:
    health = make(now, **config)
    assert feed(health, Signal.LOADED, PASS, now=now) is State.READY
    return health


def liar() -> ReplicaHealth:
    health = ready()
    assert feed(health, WRONG, WRONG) is State.QUARANTINED
    return health
