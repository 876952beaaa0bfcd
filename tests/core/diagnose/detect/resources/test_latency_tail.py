"""A few who wait ten times as long as half of them do."""

from random import Random

import pytest

from holdfast.core.diagnose.detect.resources.latency_tail import (
    LatencyTailConfig,
    LatencyTailDetector,
)
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import AttemptsSeen, Declared
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import ConfigError, nanos

RNG = 7


class Watch:
    def __init__(self, **config):
        census = ReplicaRegistry()
        for name in ("m-1", "m-2", "m-3"):
            census.take(Declared(name, "m"))
        self.detector = LatencyTailDetector(LatencyTailConfig(**config), census)
        self.rng = Random(RNG)
        self.now = 1_000.0

    def run(self, minutes, wait, per_s=2):
        """``wait`` makes one wait of a replica."""
        found = []
        for _ in range(round(minutes * 60)):
            self.now += 1.0
            for name in ("m-1", "m-2", "m-3"):
                waits = tuple(wait(self.rng, name) for _ in range(per_s))
                fact = AttemptsSeen(name, 1.0, successes=per_s, waits=waits)
                found += self.detector.take(fact, nanos(self.now))
        return found


def usual(rng):
    """As a busy fleet is: one in a hundred waits four times as long."""
    return rng.lognormvariate(0.0, 0.6)


def test_a_tail_of_everybody_is_the_models():
    def wait(rng, name):
        return 25.0 if rng.random() < 0.03 else usual(rng)

    found = Watch().run(9, wait)
    assert found
    assert {(one.sign, one.about.replica, one.about.model) for one in found} == {
        (Sign.LATENCY_TAIL, "", "m")
    }
    assert found[0].numbers["times"] >= 10


def test_a_tail_of_one_replica_names_it():
    def wait(rng, name):
        return 30.0 if name == "m-2" and rng.random() < 0.08 else usual(rng)

    found = Watch().run(9, wait)
    assert {one.about.replica for one in found} == {"m-2"}
    assert "m-2's" in found[0].text


def test_a_busy_fleet_has_no_such_tail():
    assert Watch().run(30, lambda rng, _: usual(rng)) == []


def test_a_burst_that_queues_for_half_a_minute_is_none():
    watch = Watch()
    assert watch.run(10, lambda rng, _: usual(rng)) == []
    for _ in range(3):
        assert watch.run(0.5, lambda rng, _: 20.0) == []
        assert watch.run(10, lambda rng, _: usual(rng)) == []


def test_a_model_that_is_slow_as_a_whole_is_not_this():
    assert Watch().run(12, lambda rng, _: 40.0 if rng.random() < 0.05 else 3 * usual(rng)) == []


def test_a_few_requests_say_nothing():
    quiet = Watch()
    found = []
    for _ in range(200):
        quiet.now += 10.0
        waits = (30.0 if quiet.rng.random() < 0.1 else 1.0,)
        found += quiet.detector.take(AttemptsSeen("m-1", 1.0, waits=waits), nanos(quiet.now))
    assert found == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("factor", 1), ("median_max", 0), ("samples_min", 10), ("window_s", 0), ("hold_s", -1)],
)
def test_settings_are_checked(field, value):
    with pytest.raises(ConfigError, match=f"tail.{field}"):
        LatencyTailConfig(**{field: value})
