"""From declared to ready: launches, loading that takes too long, exits and crash loops."""

import pytest
from fleet_stage import Control, all_of, liar, notices

from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Class, Kind
from holdfast.core.health.health import HealthConfig
from holdfast.core.messages import (
    CanaryResult,
    DrainAsked,
    EngineLoads,
    Exited,
    Frozen,
    Launch,
    Left,
    LoadReported,
    Phase,
    Report,
    RestartAsked,
    RunCanary,
    Seen,
    SpotNotice,
    Stop,
    Summary,
    Tally,
    UndrainAsked,
)
from holdfast.core.types import SECOND, State

# --- from declared to ready -----------------------------------------------------------------------


def test_a_declared_replica_is_launched_and_gets_no_traffic_yet():
    control = Control(joined=False)
    actions = control.join("r1", running=False)
    assert all_of(actions, Launch) == [Launch("r1", 0, "declared")]
    assert control.state("r1") is State.STARTING
    assert control.share("r1") == 0.0


def test_a_replica_is_admitted_by_a_right_answer_and_by_nothing_less():
    control = Control(joined=False)
    control.answers["r1"] = None
    control.join("r1", running=False)
    told = control.phase("r1", State.STARTING, State.LOADING, State.WARMING)
    assert [n.what for n in notices(told)] == ["loading", "warming"]
    (canary,) = all_of(control.wait(0.2), RunCanary)
    assert (canary.replica_id, canary.model) == ("r1", "m")
    assert control.state("r1") is State.WARMING
    assert control.share("r1") == 0.0
    (notice,) = notices(control.canary("r1", "pass"))
    assert (notice.replica_id, notice.what) == ("r1", "ready")
    assert control.share("r1") > 0.0


def test_a_replica_that_was_there_before_is_not_launched_but_has_to_answer_too():
    control = Control(joined=False)
    actions = control.join("r1", running=True)
    assert all_of(actions, Launch) == []
    assert control.state("r1") is State.WARMING
    control.wait(0.2)
    assert control.state("r1") is State.READY


def test_a_second_replica_of_the_same_name_is_refused_by_name():
    control = Control("r1")
    with pytest.raises(ValueError, match="'r1' joined twice"):
        control.join("r1")


def test_a_replica_taken_out_is_no_longer_told_of():
    control = Control("r1", "r2")
    (notice,) = notices(control.tell(Left("r1")))
    assert (notice.replica_id, notice.what) == ("r1", "left")
    assert [view.replica.id for view in control.published[-1].replicas] == ["r2"]


def test_news_of_replicas_that_are_not_here_is_ignored():
    control = Control("r1")
    for event in (
        Left("r9"),
        Phase("r9", State.LOADING),
        Exited("r9"),
        SpotNotice("r9", SECOND),
        CanaryResult("r9", CanaryVerdict.WRONG),
        DrainAsked("r9", "rollout"),
        RestartAsked("r9", "wedged"),
        UndrainAsked("r9", "needed"),
        Frozen("r9", frozen=True),
        EngineLoads((LoadReported("chat", "r9", kv_used=1.0),)),
        Seen((Report("m", "r9", "open", "x"), Summary((Tally("m", "r9", 1, 0, 0, 0, 0),)))),
    ):
        assert control.tell(event) == []


def test_a_load_that_takes_too_long_is_given_up_and_begun_anew():
    control = Control(joined=False, health=HealthConfig(load_timeout_s=60.0))
    control.join("r1", running=False)
    control.phase("r1", State.STARTING, State.LOADING)
    assert all_of(control.wait(59.0, every=SECOND), Stop) == []
    actions = control.wait(2.0)
    (dead,) = notices(actions, "dead")
    assert dead.failure_class is Class.LOADING
    assert dead.reason == "was not admitted within its loading time (stuck while loading)"
    assert all_of(actions, Stop) == [Stop("r1", "load_stalled")]
    assert all_of(actions, Launch) == [Launch("r1", SECOND, "load_stalled")]
    assert control.state("r1") is State.STARTING


def test_a_replica_that_loads_but_never_answers_right_is_stuck_too():
    control = Control(joined=False, health=HealthConfig(load_timeout_s=20.0))
    control.answers["r1"] = "fail"
    control.join("r1", running=False)
    control.phase("r1", State.WARMING)
    actions = control.wait(21.0)
    assert "stuck while warming" in notices(actions, "dead")[0].reason
    assert len(all_of(actions, Launch)) == 1


def test_waiting_for_a_launch_is_not_loading():
    control = Control(
        joined=False,
        health=HealthConfig(load_timeout_s=5.0),
        launch_backoff_s=60.0,
        launch_backoff_max_s=60.0,
    )
    control.join("r1", running=False)
    control.tell(Exited("r1"))
    assert all_of(control.wait(64.0, every=SECOND), Launch) == []
    assert len(all_of(control.wait(2.0), Launch)) == 1


# --- ends and new beginnings ----------------------------------------------------------------------


def test_a_process_that_exits_is_launched_again():
    control = Control("r1", "r2")
    actions = control.tell(Exited("r1"))
    assert [n.what for n in notices(actions)] == ["dead", "starting"]
    assert all_of(actions, Launch) == [Launch("r1", SECOND, "exited")]
    assert notices(actions)[0].failure_class is Class.RUNTIME
    assert control.share("r1") == 0.0


def test_an_exit_while_loading_is_a_failure_of_loading():
    control = Control(joined=False)
    control.join("r1", running=False)
    control.phase("r1", State.STARTING, State.LOADING)
    actions = control.tell(Exited("r1", Kind.OUT_OF_MEMORY))
    assert notices(actions)[0].failure_class is Class.LOADING
    assert notices(actions)[0].reason == "its process exited (out_of_memory)"


def test_a_crash_loop_is_launched_ever_more_slowly_up_to_a_bound():
    control = Control("r1", launch_backoff_max_s=10.0)
    delays = []
    for _ in range(7):
        (launch,) = all_of(control.tell(Exited("r1")), Launch)
        delays.append(launch.delay // SECOND)
    assert delays == [1, 2, 4, 8, 10, 10, 10]


def test_a_long_life_forgives_earlier_exits():
    control = Control("r1", launch_forgive_s=100.0)
    for _ in range(3):
        control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    (launch,) = all_of(control.after(50.0).tell(Exited("r1")), Launch)
    assert launch.delay == 8 * SECOND
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    (launch,) = all_of(control.after(101.0).tell(Exited("r1")), Launch)
    assert launch.delay == SECOND


def test_a_replica_that_refuses_every_connection_is_dead_and_replaced():
    control = Control("r1", "r2", "r3")
    control.canary("r1", "refused")
    control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD
    assert control.firm("r1")
    actions = control.wait(0.2)
    assert [type(a) for a in actions if isinstance(a, Stop | Launch)] == [Stop, Launch]
    assert control.state("r1") is State.STARTING


def test_the_history_of_an_earlier_process_is_void():
    control = Control("r1", "r2", "r3")
    liar(control)
    control.tally("r1", inflight=48)
    control.tell(Exited("r1"))
    control.answers["r1"] = None
    control.phase("r1", State.WARMING)
    (canary,) = all_of(control.wait(0.2), RunCanary)[:1]
    assert (canary.replica_id, canary.deadline) == ("r1", 5 * SECOND)
    control.canary("r1", "pass")
    assert control.state("r1") is State.READY
    assert not control.firm("r1")


def test_an_exits_own_words_are_in_the_reason():
    control = Control("r1", "r2")
    actions = control.tell(Exited("r1", Kind.OUT_OF_MEMORY, "killed by SIGKILL"))
    assert notices(actions)[0].reason == ("its process exited (out_of_memory: killed by SIGKILL)")
