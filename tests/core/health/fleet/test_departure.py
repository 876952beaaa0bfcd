"""Replicas that leave: drained, taken away with their host, restarted, taken back."""

from fleet_stage import STEP, Control, all_of, liar, notices

from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.messages import (
    DrainAsked,
    Exited,
    Launch,
    Move,
    RestartAsked,
    RunCanary,
    Seen,
    SpotNotice,
    Stop,
    Summary,
    Tally,
    UndrainAsked,
)
from holdfast.core.types import SECOND, State, nanos

# --- leaving --------------------------------------------------------------------------------------


def test_a_drained_replica_gets_no_new_work_and_stops_when_it_is_empty():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    (notice,) = notices(control.tell(DrainAsked("r1", "rollout")))
    assert (notice.what, notice.reason) == ("draining", "drains (rollout)")
    assert control.share("r1") == 0.0
    assert all_of(control.wait(5.0), Stop) == []
    control.tally("r1", successes=2, inflight=0)
    actions = control.wait(0.4)
    (stop,) = all_of(actions, Stop)
    assert (stop.replica_id, stop.reason) == ("r1", "nothing in flight; rollout")
    assert control.state("r1") is State.STOPPED
    assert all_of(control.wait(120.0, every=SECOND), Launch | Stop) == []


def test_what_is_left_at_the_deadline_is_moved_and_then_it_stops():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0, move_s=10.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert all_of(control.wait(29.0), Move | Stop) == []
    assert all_of(control.wait(2.0), Move | Stop) == [Move("m", "r1")]
    control.tally("r1", inflight=1)  # one could not be moved yet: ask again
    assert all_of(control.wait(2.0), Move | Stop) == [Move("m", "r1")]
    control.tally("r1", inflight=0)
    (stop,) = all_of(control.wait(1.0), Move | Stop)
    assert isinstance(stop, Stop)


def test_what_cannot_be_moved_in_time_is_cut():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0, move_s=10.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert all_of(control.wait(39.0), Stop) == []
    assert len(all_of(control.wait(2.0), Stop)) == 1


def test_a_replica_whose_host_is_taken_away_comes_back_elsewhere():
    control = Control("r1", "r2")
    control.tell(SpotNotice("r1", 120 * SECOND))
    actions = control.wait(0.4)
    assert len(all_of(actions, Stop)) == 1
    assert len(all_of(actions, Launch)) == 1
    assert control.state("r1") is State.STARTING


def test_a_replica_that_is_dead_when_it_is_sent_away_is_not_started_again():
    control = Control("r1", "r2", "r3")
    for _ in range(2):
        control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD
    control.tell(DrainAsked("r1", "scaled down"))
    assert all_of(control.wait(120.0, every=SECOND), Launch) == []


def test_in_flight_requests_of_all_gateways_count():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    for gateway, inflight in (("g1", 1), ("g2", 2)):
        tally = Tally("m", "r1", 1, 0, 0, inflight, 0)
        control.tell(Seen((Summary((tally,)),), gateway))
    assert all_of(control.wait(1.0), Stop) == []
    control.tell(Seen((Summary((Tally("m", "r1", 1, 0, 0, 0, 0),)),), "g1"))
    assert all_of(control.wait(1.0), Stop) == []  # the other one still has two
    control.tell(Seen((Summary((Tally("m", "r1", 1, 0, 0, 0, 0),)),), "g2"))
    assert len(all_of(control.wait(1.0), Stop)) == 1


def test_a_drained_replica_that_exits_is_not_launched_again():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert all_of(control.tell(Exited("r1")), Launch) == []
    assert control.state("r1") is State.DEAD
    assert all_of(control.wait(120.0, every=SECOND), Launch | Stop) == []


def test_a_stopped_replica_that_exits_late_is_not_launched_again():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert control.state("r1") is State.STOPPED
    assert all_of(control.tell(Exited("r1")), Launch) == []


def test_a_stopped_replica_cannot_be_drained_again():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert control.tell(DrainAsked("r1", "again")) == []
    assert all_of(control.wait(60.0, every=SECOND), Move | Stop) == []


def test_a_second_request_to_drain_changes_nothing():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(20.0)
    control.tell(DrainAsked("r1", "again"))
    assert len(all_of(control.wait(12.0), Move)) == 1


def test_a_replica_that_still_loads_can_be_drained_at_once():
    control = Control(joined=False)
    control.join("r1", running=False)
    control.phase("r1", State.LOADING)
    control.tell(DrainAsked("r1", "scaled down"))
    assert len(all_of(control.wait(0.2), Stop)) == 1
    assert control.state("r1") is State.STOPPED


def test_a_spot_notice_drains():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    (notice,) = notices(control.tell(SpotNotice("r1", 120 * SECOND)))
    assert notice.what == "draining"
    assert control.share("r1") == 0.0
    assert len(all_of(control.wait(31.0), Move)) == 1


def test_a_host_that_was_taken_away_is_replaced():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(SpotNotice("r1", 120 * SECOND))
    control.tell(SpotNotice("r1", 60 * SECOND))
    assert len(all_of(control.tell(Exited("r1")), Launch)) == 1
    assert control.state("r1") is State.STARTING


def test_a_drain_asked_for_after_a_spot_notice_still_means_not_to_come_back():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(SpotNotice("r1", 120 * SECOND))
    control.tell(DrainAsked("r1", "scaled down"))
    assert all_of(control.tell(Exited("r1")), Launch) == []


# --- what gateways have not told yet --------------------------------------------------------------


def test_one_that_served_is_empty_only_after_every_gateway_had_time_to_tell():
    control = Control("r1", "r2", drain=DrainConfig(hear_s=2.0))
    control.tell(DrainAsked("r1", "fewer are wished"))
    assert not all_of(control.wait(1.0), Stop)
    control.tally("r1", inflight=1)  # sent there just before the gateway heard of the drain
    assert not all_of(control.wait(5.0), Stop)
    control.tally("r1", successes=1)
    assert all_of(control.wait(0.5), Stop)


def test_one_that_never_served_leaves_at_once():
    control = Control(joined=False, drain=DrainConfig(hear_s=2.0))
    control.join("r1", running=False)
    control.phase("r1", State.STARTING, State.LOADING)
    control.tell(DrainAsked("r1", "fewer are wished"))
    assert all_of(control.wait(0.5), Stop)


# --- restarted, and taken back --------------------------------------------------------------------


def test_a_restart_drains_first_and_then_launches_anew():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    (notice,) = notices(control.tell(RestartAsked("r1", "an operator's wish")))
    assert (notice.what, notice.reason) == ("draining", "drains (an operator's wish)")
    assert all_of(control.wait(5.0), Stop | Launch) == []
    control.tally("r1", successes=2)
    actions = all_of(control.wait(0.4), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]
    assert control.state("r1") is State.STARTING
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    assert control.state("r1") is State.READY


def test_a_restart_of_a_stopped_replica_launches_it_at_once():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert control.state("r1") is State.STOPPED
    (launch,) = all_of(control.tell(RestartAsked("r1", "wanted again")), Launch)
    assert launch == Launch("r1", SECOND, "wanted again")
    assert control.state("r1") is State.STARTING


def test_a_restart_of_a_dead_replica_launches_it_at_once():
    control = Control("r1", "r2", "r3")
    for _ in range(2):
        control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD
    assert len(all_of(control.tell(RestartAsked("r1", "wedged")), Launch)) == 1
    assert control.state("r1") is State.STARTING


def test_a_restart_after_a_drain_was_asked_for_means_to_come_back():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "scaled down"))
    control.tell(RestartAsked("r1", "no, only restarted"))
    control.tally("r1", successes=2)
    assert len(all_of(control.wait(0.4), Launch)) == 1


def test_restarts_that_were_asked_for_are_no_crash_loop():
    control = Control("r1", "r2")
    for _ in range(8):
        control.tell(RestartAsked("r1", "again"))
        (launch,) = all_of(control.wait(0.4), Launch)
        assert launch.delay == SECOND
        control.phase("r1", State.WARMING)
        control.wait(1.0)


def test_an_undrained_replica_serves_on_after_one_right_answer():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(5.0)
    (notice,) = notices(control.tell(UndrainAsked("r1", "needed")))
    assert notice.what == "warming"
    control.wait(0.4)
    assert control.state("r1") is State.READY
    control.wait(60.0)
    assert control.state("r1") is State.READY
    assert len(all_of(control.tell(Exited("r1")), Launch)) == 1  # and it is wanted again


def test_an_undrained_liar_goes_back_to_its_quarantine():
    control = Control("r1", "r2", "r3")
    liar(control)
    control.tally("r1", inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    control.tell(UndrainAsked("r1", "needed"))
    assert control.state("r1") is State.QUARANTINED
    assert control.firm("r1")


def test_undrained_while_its_streams_move_it_comes_back_as_a_start():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=10.0, move_s=10.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert len(all_of(control.wait(11.0), Move)) == 1
    assert control.tell(UndrainAsked("r1", "needed")) == []
    assert control.state("r1") is State.DRAINING
    control.tally("r1", inflight=0)
    actions = all_of(control.wait(0.4), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]


def test_an_undrained_replica_that_stopped_is_launched():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert len(all_of(control.tell(UndrainAsked("r1", "needed")), Launch)) == 1
    control.phase("r1", State.WARMING)
    control.wait(0.4)
    assert control.state("r1") is State.READY


def test_a_host_that_will_be_taken_away_cannot_be_had_back_but_its_replica_is_replaced():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(SpotNotice("r1", 120 * SECOND))
    control.tell(DrainAsked("r1", "scaled down"))
    for _ in range(3):
        control.wait(9.0)
        assert control.tell(UndrainAsked("r1", "needed")) == []
    assert control.state("r1") is State.DRAINING
    assert len(all_of(control.wait(4.0), Move)) == 1  # asking for it does not prolong the drain
    control.tally("r1", inflight=0)
    assert len(all_of(control.wait(0.4), Launch)) == 1


def test_undrain_of_a_replica_that_serves_changes_nothing():
    control = Control("r1", "r2")
    assert control.tell(UndrainAsked("r1", "needed")) == []
    assert control.state("r1") is State.READY


# --- an engine that drains by itself --------------------------------------------------------------


def says_draining(control: Control, name: str, delay_s: float) -> list:
    """The engine answers each of its canaries that it takes no new work, for so long."""
    control.answers[name] = None
    actions, until = [], control.now + nanos(delay_s)
    while control.now < until:
        control.now += STEP
        for action in control.tick():
            actions.append(action)
            if isinstance(action, RunCanary) and action.replica_id == name:
                actions += control.canary(name, "busy", draining=True)
    control.answers.pop(name)
    return actions


def test_an_engine_that_drains_and_says_so_gets_no_new_work_and_is_not_restarted():
    control = Control("r1", "r2", "r3", relaunch_after_s=30.0)
    control.canary("r1", "busy", draining=True)
    assert (control.state("r1"), control.share("r1")) == (State.QUARANTINED, 0.0)
    assert "takes no new work, by its own word" in control.fleet.members["r1"].health.reason
    control.tally("r1", inflight=0)
    actions = says_draining(control, "r1", 120.0)
    assert all_of(actions, Stop) == all_of(actions, Launch) == all_of(actions, Move) == []
    assert [notice.what for notice in notices(actions)] == []
    assert control.states()[1:] == [State.READY, State.READY]
    assert not control.fleet.members["r1"].health.on_suspicion


def test_it_serves_again_after_one_right_answer():
    control = Control("r1", "r2")
    control.canary("r1", "busy", draining=True)
    control.wait(3.0)
    assert control.state("r1") is State.READY


def test_a_drain_of_its_own_is_a_fact_that_no_bound_holds_and_no_panic_takes_back():
    control = Control("r1", "r2")
    for name in ("r1", "r2"):
        control.answers[name] = None
        control.canary(name, "busy", draining=True)
    assert control.states() == [State.QUARANTINED] * 2
    assert [control.share(name) for name in ("r1", "r2")] == [0.0, 0.0]
    assert not control.published[-1].panic


def test_a_drain_of_its_own_without_an_end_is_stuck_and_gets_a_new_process():
    control = Control("r1", "r2", relaunch_after_s=30.0, health=HealthConfig(load_timeout_s=60.0))
    control.canary("r1", "busy", draining=True)
    actions = says_draining(control, "r1", 100.0)
    assert [stop.replica_id for stop in all_of(actions, Stop)] == ["r1"]


def test_one_that_drains_before_it_was_ever_ready_is_not_stuck_in_its_start():
    control = Control(joined=False, health=HealthConfig(load_timeout_s=20.0))
    control.join("r1")
    control.tick()
    control.answers["r1"] = None
    control.canary("r1", "busy", draining=True)
    assert all_of(says_draining(control, "r1", 19.0), Stop) == []


def test_one_that_loads_by_its_own_word_stays_where_it_is():
    control = Control("r1", "r2")
    control.canary("r1", "busy")
    assert control.state("r1") is State.READY
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    control.canary("r1", "busy")
    assert control.state("r1") is State.WARMING
