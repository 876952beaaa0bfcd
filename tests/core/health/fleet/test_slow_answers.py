"""Answers that are right and take longer than those of peers."""

import pytest
from fleet_stage import Control, all_of, notices

from holdfast.core.messages import Exited, RunCanary
from holdfast.core.types import MILLISECOND, State

USUAL = 400 * MILLISECOND


def timed_pool(*names: str, **kwargs) -> Control:
    """Everybody has a usual."""
    control = Control(*names, **kwargs)
    control.latencies = dict.fromkeys(names, USUAL)
    control.wait(60.0)
    return control


def canaries_until(control: Control, name: str, state: State) -> int:
    """How many canaries it took."""
    asked = 0
    for _ in range(1000):
        if control.state(name) is state:
            return asked
        control.after(0.05)
        asked += len([c for c in all_of(control.tick(), RunCanary) if c.replica_id == name])
    raise AssertionError(f"{name} never became {state}")


def test_thrice_as_slow_is_suspect_after_three_in_a_row_and_not_earlier():
    control = timed_pool("r1", "r2", "r3")
    control.latencies["r1"] = 3 * USUAL
    assert canaries_until(control, "r1", State.SUSPECT) == 3
    assert "peers take 0.400 s" in control.fleet.members["r1"].health.reason
    control.wait(120.0)
    assert control.state("r1") is State.SUSPECT  # and never worse
    assert control.share("r1") == pytest.approx(0.1)
    control.latencies["r1"] = USUAL
    control.wait(4.0)
    assert control.state("r1") is State.READY


@pytest.mark.parametrize("slow", [1, 2])
def test_fewer_slow_answers_in_a_row_do_nothing(slow):
    control = timed_pool("r1", "r2", "r3")
    for _ in range(10):
        for _ in range(slow):
            assert notices(control.canary("r1", "pass", latency=10 * USUAL)) == []
        control.canary("r1", "pass", latency=USUAL)
    assert control.state("r1") is State.READY


@pytest.mark.parametrize("busy", ["engine", "gateways"])
def test_a_busy_replica_is_not_suspected_for_being_slow(busy):
    control = timed_pool("r1", "r2", "r3")
    if busy == "gateways":
        control.tally("r1", successes=1, inflight=5)
    for _ in range(10):
        running = 5 if busy == "engine" else 0
        control.canary("r1", "pass", latency=10 * USUAL, running=running)
    assert control.state("r1") is State.READY


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_pool_that_becomes_slow_as_a_whole_suspects_nobody(seed, size):
    names = [f"r{n}" for n in range(size)]
    control = timed_pool(*names, seed=seed)
    control.latencies = dict.fromkeys(names, 3 * USUAL)
    assert notices(control.wait(60.0)) == []
    assert control.states() == [State.READY] * size


def test_a_slow_answer_asks_the_peers_at_once():
    control = timed_pool("r1", "r2", "r3")
    control.canary("r1", "pass", latency=3 * USUAL)
    control.after(0.01)
    asked = {canary.replica_id for canary in all_of(control.tick(), RunCanary)}
    assert {"r2", "r3"} <= asked


def test_a_new_process_has_a_usual_of_its_own():
    control = timed_pool("r1", "r2", "r3")
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    control.latencies["r1"] = 3 * USUAL
    control.wait(60.0)
    assert control.state("r1") is State.READY
