"""Requests that wait for a replica whose GPU does nothing."""

from dataclasses import replace

import pytest

from holdfast.core.diagnose.detect.resources.gpu_idle import GpuIdleConfig, GpuIdleDetector
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.diagnose.facts import (
    Declared,
    GpuSeen,
    LoadSeen,
    Looked,
    ProcessEnded,
    QueueSeen,
    StateChanged,
)
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
from holdfast.core.types import ConfigError, State, nanos

IDLE = GpuSeen("n1", "GPU-a", "GPU 0", ("m-1",), utilisation=0.0)
READY = StateChanged("m-1", State.READY, "passed")


class Watch:
    def __init__(self, ready=True):
        census = ReplicaRegistry()
        census.take(Declared("m-1", "m", host="n1"))
        self.detector = GpuIdleDetector(GpuIdleConfig(), census)
        self.now = 1_000.0
        if ready:
            self.detector.take(READY, nanos(self.now))

    def see(self, *facts, times=1, every=10.0):
        found = []
        for _ in range(times):
            self.now += every
            for fact in facts:
                found += self.detector.take(fact, nanos(self.now))
        return found


WAITS = LoadSeen("m-1", running=0, waiting=4)
QUEUED = QueueSeen("m", 9)


@pytest.mark.parametrize(
    ("queue", "waiting", "where"), [(WAITS, 4, "in its engine"), (QUEUED, 9, "at gateways")]
)
def test_a_minute_of_both_is_a_sign(queue, waiting, where):
    (one,) = Watch().see(queue, IDLE, times=7)
    assert (one.sign, one.about.replica) == (Sign.GPU_IDLE, "m-1")
    assert one.numbers == {"waiting": float(waiting), "idle_s": 60.0}
    assert one.text == f"its GPU has been idle for 60 s while {waiting} wait {where}"


def test_all_of_its_gpus_must_be_idle():
    busy = replace(IDLE, gpu="GPU-b", utilisation=0.9)
    assert Watch().see(WAITS, IDLE, busy, times=30) == []
    assert Watch().see(WAITS, IDLE, replace(busy, utilisation=0.02), times=7) != []


@pytest.mark.parametrize(
    "facts",
    [
        (IDLE,),  # nobody asks it
        (LoadSeen("m-1", running=3, waiting=0), IDLE),
        (WAITS, replace(IDLE, utilisation=0.4)),
        (WAITS, replace(IDLE, utilisation=None)),
        (WAITS, replace(IDLE, replicas=("other",))),
        (QueueSeen("another", 9), IDLE),
        (LoadSeen("m-1", waiting=None), IDLE),
    ],
)
def test_one_of_the_two_is_nothing(facts):
    assert Watch().see(*facts, times=60) == []


def test_a_replica_that_should_get_no_work_may_be_idle():
    assert Watch(ready=False).see(QUEUED, IDLE, times=60) == []
    watch = Watch()
    watch.see(StateChanged("m-1", State.DRAINING, "asked"))
    assert watch.see(QUEUED, IDLE, times=60) == []


def test_a_pause_between_bursts_is_nothing():
    watch = Watch()
    for _ in range(20):
        assert watch.see(WAITS, IDLE, times=4) == []
        assert watch.see(LoadSeen("m-1", waiting=0), IDLE) == []
    for _ in range(20):
        assert watch.see(WAITS, IDLE, times=4) == []
        assert watch.see(WAITS, replace(IDLE, utilisation=1.0)) == []


def test_a_new_process_begins_anew():
    watch = Watch()
    watch.see(WAITS, IDLE, times=6)
    watch.see(ProcessEnded("m-1"), READY)
    assert watch.see(WAITS, IDLE, times=6) == []


def test_it_is_an_incident_and_not_one_of_its_own_where_a_stall_explains_it():
    investigation = Investigation()
    investigation.take(Declared("m-1", "m", host="n1"), nanos(900))
    investigation.take(READY, nanos(900))
    for at in range(1_000, 1_100, 10):
        investigation.take(QUEUED, nanos(at))
        investigation.take(IDLE, nanos(at))
        investigation.take(Looked(), nanos(at))
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.remedy) == (Cause.GPU_IDLE, Remedy.PAGE)
    assert "9 wait" in incident.fix


@pytest.mark.parametrize(("field", "value"), [("idle", 1.0), ("lasts_s", 0), ("gap_s", 1e9)])
def test_settings_are_checked(field, value):
    with pytest.raises(ConfigError, match=f"gpu_idle.{field}"):
        GpuIdleConfig(**{field: value})
