"""When a replica is asked a canary, how long it has for it, and what calls one early or back."""

from itertools import pairwise

from fleet_stage import Control, all_of, engine_says

from holdfast.core.messages import CallBackCanary, HurryCanary, RunCanary
from holdfast.core.types import MILLISECOND, SECOND, State

# --- how often and how long -----------------------------------------------------------------------


def test_a_ready_replica_is_asked_every_few_seconds_with_jitter():
    control = Control("r1")
    asked = []
    for _ in range(300):
        control.after(0.2)
        if all_of(control.tick(), RunCanary):
            asked.append(control.now)
    gaps = [(later - earlier) / SECOND for earlier, later in pairwise(asked)]
    assert 8 <= len(gaps) <= 15
    assert min(gaps) >= 3.9
    assert max(gaps) <= 6.3
    assert len(set(gaps)) > 1


def test_one_canary_at_a_time():
    control = Control("r1")
    control.answers["r1"] = None
    assert len(all_of(control.wait(60.0), RunCanary)) == 1


def test_a_canary_on_a_busy_replica_gets_more_time_within_a_bound():
    control = Control("r1", canary_deadline_s=5.0, canary_deadline_max_s=12.0)
    deadlines = []
    for inflight in (0, 16, 1000):
        control.tally("r1", successes=1, inflight=inflight)
        (canary,) = all_of(control.wait(6.5), RunCanary)[:1]
        deadlines.append(canary.deadline)
    assert deadlines == [5 * SECOND, 10 * SECOND, 12 * SECOND]


def deadline_beside(inflight: int, *, waiting: int | None = None, unread: int = 0) -> float:
    """Seconds of the canary that a doubt calls beside so many requests, where they are quick."""
    control = Control("r1", "r2")
    control.latencies["r1"] = 100 * MILLISECOND
    control.wait(30.0)
    control.tally("r1", inflight=inflight, tokens=1, unread=unread)
    if waiting is not None:
        engine_says(control, "r1", waiting)
    control.overdue("r1")
    asked = [one for one in all_of(control.wait(1.2), RunCanary) if one.replica_id == "r1"]
    return asked[0].deadline / SECOND


def test_requests_beside_a_quick_canary_lengthen_its_time_only_where_no_slot_may_be_free():
    assert deadline_beside(0) == 3.0
    assert deadline_beside(12, waiting=0) == 3.0  # its page says that a slot is free
    assert deadline_beside(12) == 3.0 * 1.75  # it may be full
    assert deadline_beside(12, waiting=4) == 5.0 * 1.75  # it is
    assert deadline_beside(1, waiting=0, unread=20_000) == 5.0 * 1.0625  # it reads


def test_an_idle_replica_whose_canaries_are_quick_has_less_time_and_after_a_silence_still_less():
    control = Control("r1", "r2")

    def deadlines() -> list[int]:
        asked = all_of(control.wait(6.5), RunCanary)
        return [canary.deadline for canary in asked if canary.replica_id == "r1"]

    assert deadlines()[0] == 5 * SECOND  # nothing is known of it
    control.latencies["r1"] = 100 * MILLISECOND
    control.wait(30.0)
    assert deadlines()[0] == 3 * SECOND
    control.answers["r1"] = "timeout"
    assert deadlines()[:3] == [3 * SECOND, 2 * SECOND, 2 * SECOND]
    control = Control("r1", "r2")
    control.latencies["r1"] = 400 * MILLISECOND
    control.wait(30.0)
    assert deadlines()[0] == 5 * SECOND  # twenty times what it takes, and no more than ever


def test_a_quarantined_replica_is_asked_soon_whether_it_still_fails_and_then_at_length():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=1)
    control.after(6.0)
    for name in ("r2", "r3"):
        control.canary(name, "pass")
    control.after(1.5)
    control.canary("r1", "timeout", latency=5 * SECOND, running=1, progress=False)
    assert control.state("r1") is State.QUARANTINED
    control.tally("r1", inflight=0)
    control.answers["r1"] = "timeout"
    asked = all_of(control.wait(10.0), RunCanary)
    times = [(one.deadline, one.longest, one.unhurried) for one in asked if one.replica_id == "r1"]
    assert times[:2] == [(5 * SECOND, 12.5 * SECOND, False), (5 * SECOND, 12.5 * SECOND, True)]


def test_a_quarantined_replica_has_longer_to_show_how_it_fails():
    control = Control("r1", "r2", "r3", canary_deadline_s=5.0, canary_deadline_max_s=30.0)
    control.answers["r1"] = "fail"
    asked = [c for c in all_of(control.wait(60.0), RunCanary) if c.replica_id == "r1"]
    assert {(c.longest, c.unhurried) for c in asked} == {
        (round(12.5 * SECOND), False),
        (round(12.5 * SECOND), True),
    }


# --- asked early ----------------------------------------------------------------------------------


def test_a_doubt_about_one_asks_its_peers_at_once():
    control = Control("r1", "r2", "r3")
    control.wait(6.0)
    control.canary("r1", "fail")
    asked = {canary.replica_id for canary in all_of(control.wait(1.1), RunCanary)}
    assert {"r2", "r3"} <= asked


def test_a_slow_canary_is_asked_again_soon():
    control = Control("r1", "r2")
    control.canary("r1", "slow")
    assert control.state("r1") is State.READY
    again = [canary.replica_id for canary in all_of(control.wait(2.2), RunCanary)]
    assert "r1" in again


def test_an_overdue_attempt_has_a_canary_asked_at_once_and_a_hundred_have_one_a_second():
    control = Control("r1", "r2")
    control.wait(1.1)
    control.overdue("r1")
    assert "r1" in [canary.replica_id for canary in all_of(control.wait(0.2), RunCanary)]
    asked = []
    for _ in range(100):
        control.overdue("r1")
        asked += [c for c in all_of(control.wait(0.1), RunCanary) if c.replica_id == "r1"]
    assert 9 <= len(asked) <= 11
    assert control.state("r1") is State.READY


def test_peers_are_asked_where_a_canary_beside_requests_is_late_though_a_slot_is_free():
    """What gateways tell of the last second proves nothing: without them its silence is held."""
    control = Control("r1", "r2", "r3")
    for name in ("r1", "r2", "r3"):
        control.latencies[name] = 100 * MILLISECOND
    control.wait(30.0)
    control.tally("r1", inflight=4, tokens=1)
    engine_says(control, "r1", 0)
    control.answers["r1"] = None
    control.wait(0.1)
    control.overdue("r1")
    asked = [one.replica_id for one in all_of(control.wait(2.8), RunCanary)]
    assert {"r2", "r3"} <= set(asked[asked.index("r1") :])


# --- called back ----------------------------------------------------------------------------------


def test_a_canary_gives_way_to_users_once_and_not_twice_in_a_row():
    control = Control("r1", "r2")
    engine_says(control, "r1", 0)
    control.answers["r1"] = None
    control.wait(7.0)  # one is under way
    control.tally("r1", inflight=1)
    called_back = all_of(engine_says(control, "r1", 1), CallBackCanary)
    assert [action.replica_id for action in called_back] == ["r1"]
    engine_says(control, "r1", 0)
    control.tally("r1", successes=1, tokens=5, inflight=1)
    assert "r1" in [canary.replica_id for canary in all_of(control.wait(7.0), RunCanary)]
    assert not all_of(engine_says(control, "r1", 1), CallBackCanary)


def test_a_canary_that_settles_a_doubt_gives_way_to_nobody():
    control = Control("r1", "r2")
    engine_says(control, "r1", 0)
    control.answers["r1"] = None
    control.wait(1.1)
    control.overdue("r1")
    assert "r1" in [canary.replica_id for canary in all_of(control.wait(0.2), RunCanary)]
    control.tally("r1", inflight=1)
    assert not all_of(engine_says(control, "r1", 1), CallBackCanary)


def test_a_doubt_asks_anew_where_a_canary_is_out_that_was_asked_before_it_and_once():
    """What users got since the first was asked would excuse that it is not answered."""
    control = Control("r1", "r2")
    control.latencies["r1"] = 100 * MILLISECOND
    control.wait(30.0)
    engine_says(control, "r1", 0)
    control.answers["r1"] = None
    while not [one for one in all_of(control.wait(0.2), RunCanary) if one.replica_id == "r1"]:
        pass
    control.after(0.9)
    assert not all_of(control.overdue("r1"), CallBackCanary), "it may yet tell"
    control.after(0.2)
    control.tally("r1", inflight=4, tokens=20)  # in the second before it stood still
    called_back = all_of(control.overdue("r1"), CallBackCanary)
    assert [action.replica_id for action in called_back] == ["r1"]
    (anew,) = [one for one in all_of(control.wait(0.2), RunCanary) if one.replica_id == "r1"]
    assert anew.deadline == 3 * SECOND
    for _ in range(2):
        control.after(1.0)
        control.tally("r2", successes=20, tokens=400, inflight=4)
        control.tally("r1", inflight=4)
        assert not all_of(control.overdue("r1"), CallBackCanary)
        assert "r1" not in [one.replica_id for one in all_of(control.tick(), RunCanary)]
    control.after(1.0)
    control.canary("r1", "timeout", latency=3 * SECOND, running=4, progress=False)
    assert control.state("r1") is State.QUARANTINED


# --- hurried --------------------------------------------------------------------------------------


def asked_beside(control: Control, name: str, inflight: int) -> RunCanary:
    """The canary that a doubt calls beside so many requests; it gets no answer."""
    control.answers[name] = None
    control.wait(1.1)
    control.tally(name, inflight=inflight, tokens=1)
    control.overdue(name)
    return next(c for c in all_of(control.wait(0.2), RunCanary) if c.replica_id == name)


def test_a_canary_loses_the_time_that_it_got_for_requests_which_left_without_a_token():
    control = Control("r1", "r2")
    assert asked_beside(control, "r1", inflight=32).deadline == 15 * SECOND
    control.after(1.5)
    assert not all_of(control.tally("r1", failures=2, inflight=32), HurryCanary)
    control.after(1.0)
    (hurry,) = all_of(control.tally("r1", failures=30, inflight=0), HurryCanary)
    assert (hurry.replica_id, hurry.deadline) == ("r1", 5 * SECOND - 2500 * MILLISECOND)
    assert not all_of(control.tally("r1", failures=1, inflight=0), HurryCanary), "said once"


def test_a_canary_whose_time_is_over_by_then_is_ended_at_once():
    control = Control("r1", "r2")
    asked_beside(control, "r1", inflight=32)
    control.after(9.0)
    (hurry,) = all_of(control.tally("r1", failures=32, inflight=0), HurryCanary)
    assert hurry.deadline == 0


def test_a_canary_keeps_its_time_where_tokens_move_beside_it_or_requests_stay():
    control = Control("r1", "r2")
    asked_beside(control, "r1", inflight=32)
    control.after(2.0)
    assert not all_of(control.tally("r1", inflight=31), HurryCanary), "they are still there"
    control.after(1.0)
    assert not all_of(control.tally("r1", tokens=5, inflight=0), HurryCanary), "it is busy"
    control.after(1.0)
    assert not all_of(control.tally("r1", inflight=0), HurryCanary), "it was, since it was asked"


def test_nobody_is_hurried_without_a_canary_or_in_quarantine():
    control = Control("r1", "r2")
    control.tally("r1", inflight=32)
    assert not all_of(control.tally("r1", inflight=0), HurryCanary)
    asked_beside(control, "r1", inflight=32)
    for _ in range(3):
        control.canary("r1", "wrong")
    assert control.states()[0] is State.QUARANTINED
    control.tally("r1", inflight=32)
    control.wait(3.0)  # it is asked again
    control.after(7.0)
    assert not all_of(control.tally("r1", failures=32, inflight=0), HurryCanary)
