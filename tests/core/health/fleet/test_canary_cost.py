"""What canaries may cost beside users, and on endpoints that bill them."""

from itertools import pairwise

import pytest
from fleet_stage import Control, all_of, engine_says

from holdfast.core.canary import CanaryConfig, CanaryCost
from holdfast.core.messages import RunCanary
from holdfast.core.types import SECOND, State


def gaps(control: Control, name: str, duration_s: int, **tally) -> list[float]:
    """Seconds between its canaries, with a tally each second."""
    asked = []
    for step in range(duration_s * 10):
        if tally and step % 10 == 0:
            control.tally(name, **tally)
        control.after(0.1)
        if any(canary.replica_id == name for canary in all_of(control.tick(), RunCanary)):
            asked.append(control.now)
    return [(later - earlier) / SECOND for earlier, later in pairwise(asked)]


SERVING = {"successes": 1, "inflight": 2}


def spend(control: Control, name: str, inflight: int = 2) -> None:
    """Users have known it for long: nothing is left of the canaries it was admitted with."""
    control.tally(name, successes=1, inflight=inflight, tokens=1)
    control.fleet.members[name].canary_charged = True
    for _ in range(4):
        control.canary(name, "pass")


def test_a_used_replica_with_few_tokens_is_asked_less_often_within_a_bound():
    control = Control("r1", "r2", canary=CanaryConfig(stretch_max_s=20.0))
    spend(control, "r1")
    waits = gaps(control, "r1", 200, **SERVING, tokens=10)
    assert min(waits) >= 20.0
    assert max(waits) <= 21.2


def test_a_used_replica_with_many_tokens_is_asked_as_usual():
    control = Control("r1", "r2")
    spend(control, "r1")
    waits = gaps(control, "r1", 60, **SERVING, tokens=20_000)[1:]
    assert max(waits) <= 6.2


def test_the_canaries_of_a_used_replica_keep_within_their_share():
    control = Control("r1", "r2")
    spend(control, "r1")
    waits = gaps(control, "r1", 600, **SERVING, tokens=60)
    cost = CanaryConfig().tokens
    assert cost / (60 * sum(waits) / len(waits)) <= 0.01
    assert max(waits) < 18.0


def test_a_lightly_used_replica_is_asked_as_often_as_an_idle_one():
    control = Control("r1", "r2")
    spend(control, "r1")
    asked = []
    for second in range(600):
        if second % 3 == 0:
            control.tally("r1", inflight=1)
        elif second % 3 == 2:
            control.tally("r1", successes=1, tokens=200)
        waited = all_of(control.wait(1.0), RunCanary)
        asked += [second for canary in waited if canary.replica_id == "r1"]
    assert max(later - earlier for earlier, later in pairwise(asked)) <= 9


def test_a_busy_replica_whose_engine_has_nobody_waiting_is_asked_as_usual():
    control = Control("r1", "r2")
    spend(control, "r1")
    engine_says(control, "r1", 0)
    assert max(gaps(control, "r1", 60, successes=1, inflight=20, tokens=10)) <= 6.2
    engine_says(control, "r1", 3)
    assert gaps(control, "r1", 60, successes=1, inflight=20, tokens=10) == []
    engine_says(control, "r1", None)  # no word any more: by what gateways count
    assert gaps(control, "r1", 60, successes=1, inflight=20, tokens=10) == []
    assert max(gaps(control, "r1", 60, successes=1, inflight=0, tokens=10)) <= 6.2


def test_declared_slots_say_what_is_free_where_the_engine_does_not():
    control = Control("r1", "r2", slots=4)
    spend(control, "r1", inflight=4)
    assert gaps(control, "r1", 60, successes=1, inflight=4, tokens=10) == []
    assert max(gaps(control, "r1", 60, successes=1, inflight=3, tokens=10)) <= 6.2


def test_a_paid_endpoint_is_asked_within_its_budget_and_no_more_often_in_doubt():
    paid = CanaryConfig(cost=CanaryCost.BILLED)
    control = Control("r1", "r2", canary=paid)
    asked = 0
    for _ in range(1_200):
        control.overdue("r1")
        control.tally("r1", successes=1, tokens=20)
        asked += sum(c.replica_id == "r1" for c in all_of(control.wait(1.0), RunCanary))
    # 24,000 tokens pay 0.85 % for canaries of eight; four at admission, two on credit, one in 300 s
    assert asked <= 24_000 * 0.0085 / 8 + 4 + 2 + 4


def test_a_paid_endpoint_that_nobody_uses_is_asked_every_five_minutes():
    control = Control("r1", "r2", canary=CanaryConfig(cost=CanaryCost.BILLED))
    control.wait(60.0)
    waits = gaps(control, "r1", 1_200)
    assert min(waits) >= 300.0


def test_a_newly_admitted_replica_is_asked_as_usual_for_a_minute_of_use():
    control = Control("r1", "r2")
    waits = gaps(control, "r1", 50, **SERVING, tokens=1)
    assert max(waits) <= 6.2
    control.wait(0.1)
    spend(control, "r1")
    assert gaps(control, "r1", 60, **SERVING, tokens=1) == []
    for verdict in ("fail", "pass", "pass"):
        control.canary("r1", verdict)
    assert control.state("r1") is State.READY
    assert max(gaps(control, "r1", 30, **SERVING, tokens=1)) <= 6.2


def test_an_idle_replica_is_asked_as_usual():
    control = Control("r1", "r2")
    assert max(gaps(control, "r1", 60)) <= 6.2


def test_requests_that_run_without_tokens_end_the_stretching():
    control = Control("r1", "r2")
    spend(control, "r1")
    control.wait(20.0)
    asked = all_of(control.wait(5.5), RunCanary)
    assert "r1" in [canary.replica_id for canary in asked]
    assert max(gaps(control, "r1", 60, inflight=2)) <= 6.2


@pytest.mark.parametrize("cause", ["peer", "breaker", "slow"])
def test_doubt_has_a_used_replica_asked_whatever_it_costs(cause):
    control = Control("r1", "r2", "r3")
    spend(control, "r1")
    gaps(control, "r1", 20, **SERVING, tokens=1)
    if cause == "peer":
        control.canary("r2", "wrong")
        limit_s = 0.2
    elif cause == "breaker":
        control.breaker_opened("r1")
        limit_s = 1.3  # as a suspect
    else:
        control.canary("r1", "slow")
        assert control.state("r1") is State.READY
        limit_s = 6.2
    asked = all_of(control.wait(limit_s), RunCanary)
    assert "r1" in [canary.replica_id for canary in asked]


def test_a_canary_that_told_nothing_is_sent_again_at_the_usual_pace():
    control = Control("r1", "r2")
    spend(control, "r1")
    control.tally("r1", **SERVING, tokens=1_000)  # one is earned
    control.answers["r1"] = "unknown"
    assert max(gaps(control, "r1", 60, **SERVING, tokens=1)) <= 6.2


def test_a_suspect_is_asked_as_usual_however_busy_it_is():
    control = Control("r1", "r2", "r3")
    spend(control, "r1")
    control.canary("r1", "fail")
    control.answers["r1"] = "slow"  # right enough to stay where it is
    waits = gaps(control, "r1", 20, **SERVING, tokens=10)
    assert control.state("r1") is State.SUSPECT
    assert max(waits) <= 1.4


def test_a_canary_that_reached_nobody_cost_nothing():
    control = Control("r1", "r2", "r3")
    control.tally("r1", successes=1, tokens=1000)
    budget = control.fleet.members["r1"].budget
    before = budget.share(control.now)
    control.canary("r1", "unknown")
    assert budget.share(control.now) == before
    control.canary("r1", "pass", tokens=25)
    assert budget.share(control.now) > before
