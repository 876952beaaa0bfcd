"""Replicas without room for another request: full KV caches and full GPUs."""

from fleet_stage import Control, all_of, notices

from holdfast.core.canary import CanaryConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.messages import DeviceMemory, DrainAsked, Launch, Stop, UndrainAsked
from holdfast.core.types import SECOND, State


def test_a_full_replica_is_taken_out_at_the_second_reading_in_a_row():
    control = Control("r1", "r2", "r3")
    assert control.kv("r1", 0.97) == []
    (notice,) = notices(control.kv("r1", 0.97))
    assert notice.what == "quarantined"
    assert notice.reason == "has no room for another request (97% of its KV cache is in use)"
    assert control.share("r1") == 0.0
    assert not control.firm("r1")


def test_one_reading_of_a_full_cache_is_a_burst():
    control = Control("r1", "r2", "r3")
    assert notices(control.kv("r1", 0.99, 0.5, 0.99, 0.94, 0.99, 0.93)) == []
    assert control.state("r1") is State.READY


def test_an_engine_that_stops_telling_is_neither_full_nor_empty():
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.99)
    control.wait(60.0)
    assert control.state("r1") is State.READY
    control.kv("r2", 0.99, 0.99)
    control.tally("r2", inflight=4)
    control.wait(60.0)
    assert control.state("r2") is State.QUARANTINED


def test_the_line_is_the_models_own():
    control = Control("r1", "r2", "r3", canary=CanaryConfig(headroom_min=0.5))
    control.kv("r1", 0.6, 0.6)
    assert control.state("r1") is State.QUARANTINED
    control = Control("r1", "r2", "r3", canary=CanaryConfig(headroom_min=0.0))
    control.kv("r1", 1.0, 1.0, 1.0)
    assert control.state("r1") is State.READY


def test_a_full_gpu_takes_out_a_replica_that_tells_no_cache():
    control = Control("r1", "r2", "r3")
    assert notices(control.tell(DeviceMemory("r1", 0.97))) == []  # once may be a spike
    (notice,) = notices(control.tell(DeviceMemory("r1", 0.97)))
    assert "97% of the GPU memory it could have is in use" in notice.reason
    assert control.state("r1") is State.QUARANTINED
    control.tell(DeviceMemory("r1", 0.5))
    control.wait(10.0)
    assert control.state("r1") is State.READY


def test_a_full_gpu_says_nothing_of_a_replica_that_tells_its_cache():
    """An engine that takes its memory at the start is full for ever, and serves."""
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.2)
    for _ in range(5):
        control.tell(DeviceMemory("r1", 0.99))
    assert control.state("r1") is State.READY
    for used in (float("nan"), float("inf")):
        control.tell(DeviceMemory("r2", used))
        control.tell(DeviceMemory("r2", used))
    assert control.state("r2") is State.READY
    assert control.tell(DeviceMemory("nobody", 1.0)) == []


def test_room_and_one_right_answer_bring_it_back_and_a_little_room_does_not():
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.97, 0.97)
    control.tally("r1", inflight=4)
    control.wait(10.0)
    assert control.state("r1") is State.QUARANTINED  # right answers alone make no room
    assert notices(control.kv("r1", 0.94, 0.94, 0.93)) == []
    (notice,) = notices(control.kv("r1", 0.92))
    assert (notice.what, "has room again" in notice.reason) == ("quarantined", True)
    control.wait(3.0)
    assert control.state("r1") is State.READY


def test_a_replica_out_for_lack_of_room_is_not_counted_as_ill():
    control = Control("r1", "r2", "r3")
    for _ in range(5):
        control.kv("r1", 0.97, 0.97, 0.5)
        control.wait(3.0)
        assert control.state("r1") is State.READY


def test_half_of_a_pool_may_be_full_and_the_others_are_held_back():
    control = Control("r1", "r2", "r3", "r4", "r5")
    for name in ("r1", "r2", "r3", "r4", "r5"):
        control.kv(name, 0.99, 0.99)
    assert control.states() == [State.QUARANTINED] * 2 + [State.SUSPECT] * 3
    assert "held back" in control.fleet.members["r3"].health.reason
    assert control.published[-1].panic == ("m",)
    control.kv("r1", 0.5)
    control.wait(3.0)
    assert control.state("r1") is State.READY
    control.kv("r3", 0.99)  # there is room within the bound now
    assert control.state("r3") is State.QUARANTINED


def test_a_replica_held_back_serves_on_as_soon_as_it_has_room():
    control = Control("r1")
    control.kv("r1", 0.99, 0.99)
    assert control.state("r1") is State.SUSPECT
    control.kv("r1", 0.4)
    control.wait(4.0)
    assert control.state("r1") is State.READY


def test_a_full_replica_with_requests_in_flight_is_never_launched_anew():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    control.tally("r1", successes=1, inflight=3)
    control.kv("r1", 0.99, 0.99)
    for _ in range(10):
        control.kv("r1", 0.99)
        assert all_of(control.wait(60.0, every=SECOND), Stop | Launch) == []
    assert control.state("r1") is State.QUARANTINED


def test_nor_is_one_whose_engine_has_stopped_telling():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    control.tally("r1", successes=1, inflight=3)
    control.kv("r1", 0.99, 0.99)
    assert all_of(control.wait(600.0, every=SECOND), Stop | Launch) == []


def test_nor_is_one_that_is_warming_after_a_drain_was_called_off():
    control = Control("r1", "r2", "r3", health=HealthConfig(load_timeout_s=60.0))
    control.answers["r1"] = "fail"
    control.tally("r1", successes=1, inflight=3)
    control.tell(DrainAsked("r1", "rollout"))
    control.tell(UndrainAsked("r1", "needed"))
    control.kv("r1", 0.99, 0.99)
    assert control.state("r1") is State.WARMING
    assert all_of(control.wait(120.0, every=SECOND), Stop | Launch) == []
    control.tally("r1", inflight=0)
    assert len(all_of(control.wait(3.0), Launch)) == 1


def test_one_that_stays_full_with_nothing_in_flight_is_launched_anew():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    control.tally("r1", successes=1, inflight=3)
    control.kv("r1", 0.99, 0.99)
    control.wait(100.0, every=SECOND)
    control.tally("r1", successes=3)
    for _ in range(55):
        control.kv("r1", 0.99)
        assert all_of(control.tick(), Stop | Launch) == []
    actions = all_of(control.wait(10.0), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]
    assert not control.fleet.members["r1"].health.full


def test_a_full_replica_is_not_admitted_before_it_has_room():
    control = Control("r2", "r3")
    control.join("r1")
    control.answers["r1"] = None
    control.kv("r1", 0.99, 0.99)
    for verdict in ("pass", "slow", "pass"):
        control.canary("r1", verdict)
        assert control.state("r1") is State.WARMING
    control.kv("r1", 0.1)
    control.canary("r1", "pass")
    assert control.state("r1") is State.READY


def test_readings_of_a_replica_that_loads_or_leaves_do_no_harm():
    control = Control("r1", "r2", "r3")
    control.join("r4", running=False)
    control.phase("r4", State.LOADING)
    assert notices(control.kv("r4", 1.0, 1.0, 1.0)) == []
    control.tally("r1", inflight=1)
    control.tell(DrainAsked("r1", "rollout"))
    assert notices(control.kv("r1", 1.0, 1.0, 0.1)) == []
    assert (control.state("r4"), control.state("r1")) == (State.LOADING, State.DRAINING)
