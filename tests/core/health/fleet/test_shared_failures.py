"""Many replicas in trouble at once: doubted canaries, and the bound on suspicion."""

import pytest
from fleet_stage import Control, notices, stall

from holdfast.core.messages import Exited, Left
from holdfast.core.types import SECOND, State

# --- when every canary fails ----------------------------------------------------------------------


def test_when_every_canary_fails_at_once_the_expected_answer_is_suspect():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "wrong")
    actions = control.wait(60.0)
    (doubted,) = notices(actions, "canaries doubted")
    assert (doubted.model, doubted.replica_id) == ("m", "")
    assert State.QUARANTINED not in control.states()
    assert all(control.share(name) > 0.0 for name in ("r1", "r2", "r3"))
    assert set(control.fleet._evidence.doubts) == {"m"}


def test_a_doubt_is_over_when_somebody_passes():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "fail")
    control.wait(10.0)
    control.answers = {}
    assert len(notices(control.wait(10.0), "canaries trusted again")) == 1
    assert control.fleet._evidence.doubts == {}
    control.wait(60.0)
    assert control.states() == [State.READY] * 3


def test_who_was_asked_while_nobody_answered_is_not_condemned_by_the_first_who_goes_on():
    control = Control("r1", "r2", "r3")
    for _ in range(2):  # everybody stands still
        for name in ("r1", "r2", "r3"):
            control.canary(name, "timeout", latency=5 * SECOND)
    before = control.states()
    control.after(4.0).canary("r2", "pass")
    for _ in range(2):
        assert notices(control.canary("r1", "timeout", latency=5 * SECOND)) == []
    assert control.states() == before
    control.after(5.1).canary("r2", "pass")
    for _ in range(3):  # asked after that, its silence is its own
        control.canary("r1", "timeout", latency=5 * SECOND)
    assert control.state("r1") is State.QUARANTINED


def test_those_quarantined_on_doubtful_canaries_serve_again_though_their_state_is_held():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "fail"
    control.canary("r1", "fail")
    control.wait(5.0)
    assert control.share("r1") == 0.0
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "fail")
    control.wait(15.0)
    assert control.state("r1") is State.QUARANTINED
    assert control.share("r1") > 0.0
    assert control.published[-1].panic == ("m",)


def test_failures_of_an_earlier_process_raise_no_doubt():
    control = Control("r1", "r2")
    control.answers = {"r1": None, "r2": None}
    control.wait(15.0)
    control.canary("r1", "fail")
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    actions = control.canary("r2", "fail")
    assert notices(actions, "canaries doubted") == []
    assert control.state("r2") is State.SUSPECT


def test_where_nobody_listens_no_canary_is_doubted_and_all_are_dead():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "refused")
    actions = control.wait(20.0)
    assert notices(actions, "canaries doubted") == []
    assert {each.replica_id for each in notices(actions, "dead")} == {"r1", "r2", "r3"}
    assert State.READY not in control.states()


def test_where_nothing_answers_states_are_held_and_no_answer_is_doubted():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "timeout")
    actions = control.wait(20.0)
    assert len(notices(actions, "canaries unanswered")) == 1
    assert notices(actions, "canaries doubted") == []
    assert State.QUARANTINED not in control.states()
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "wrong")  # they speak again
    assert len(notices(control.wait(20.0), "canaries doubted")) == 1


def test_where_users_fail_too_the_canaries_are_confirmed():
    control = Control("r1", "r2")
    control.answers = dict.fromkeys(("r1", "r2"), "fail")
    assert len(notices(control.wait(10.0), "canaries doubted")) == 1  # nobody asks: who knows
    told = []
    for _ in range(8):
        told += control.tally("r1", failures=2) + control.tally("r2", failures=1)
        told += control.wait(1.0)
    assert [n.what for n in notices(told) if "canaries" in n.what] == ["canaries confirmed"]
    for _ in range(8):
        told += control.tally("r1", successes=2)
        told += control.wait(1.0)
    assert notices(told)[-1].what == "canaries doubted"  # users are served, canaries are not


def test_engines_that_say_that_they_fail_are_believed_unless_users_are_served():
    control = Control("r1", "r2")
    control.answers = dict.fromkeys(("r1", "r2"), None)
    told = []
    for _ in range(3):
        for name in ("r1", "r2"):
            told += control.after(1.0).canary(name, "fail", status=500)
    assert [n.what for n in notices(told) if "canaries" in n.what] == ["canaries confirmed"]
    assert State.QUARANTINED not in control.states()
    control.tally("r1", successes=1)
    (doubted,) = notices(control.canary("r1", "fail", status=500), "canaries doubted")
    assert doubted.reason == "all canaries fail, and users are served"


def test_a_port_that_is_closed_while_canaries_are_doubted_is_a_death():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "wrong")
    assert len(notices(control.wait(20.0), "canaries doubted")) == 1
    before = control.state("r2")
    control.answers["r1"] = "refused"
    dead = notices(control.wait(20.0), "dead")
    assert {each.replica_id for each in dead} == {"r1"}
    assert control.state("r2") is before  # two others still fail together
    assert control.fleet._evidence.doubts


def test_models_are_doubted_each_for_itself():
    control = Control("r1", "r2")
    for name in ("o1", "o2"):
        control.join(name, model="other")
    control.wait(35.0)
    control.answers = {"r1": "fail", "r2": "fail"}
    (doubted,) = notices(control.wait(10.0), "canaries doubted")
    assert doubted.model == "m"
    control.canary("o1", "fail")
    assert control.state("o1") is State.SUSPECT


# --- the bound on suspicion -----------------------------------------------------------------------


def test_half_of_a_pool_may_be_out_on_suspicion_and_no_more():
    control = Control("r1", "r2", "r3", "r4")
    for name in ("r1", "r2", "r3"):
        control.canary("r4", "pass")
        stall(control, name)
    assert control.states().count(State.QUARANTINED) == 2
    assert control.state("r3") is State.SUSPECT


def test_beyond_the_bound_the_pool_fails_open_and_says_so():
    control = Control("r1", "r2", "r3", "r4")
    for name in ("r1", "r2"):
        control.canary("r4", "pass")
        stall(control, name)
    assert control.published[-1].panic == ()
    actions = stall(control, "r3")
    (panic,) = notices(actions, "panic")
    assert (panic.model, panic.replica_id) == ("m", "")
    assert "failing open" in panic.reason
    assert control.published[-1].panic == ("m",)
    assert [control.share(f"r{n}") for n in (1, 2, 3)] == [pytest.approx(0.1)] * 3
    assert "held back" in control.fleet.members["r3"].health.reason


def test_a_panic_is_over_when_enough_are_well_again():
    control = Control("r1", "r2", "r3", "r4")
    for name in ("r1", "r2", "r3"):
        control.canary("r4", "pass")
        stall(control, name)
    actions = control.wait(30.0)
    assert len(notices(actions, "panic over")) == 1
    assert control.published[-1].panic == ()
    assert control.states() == [State.READY] * 4


def test_a_panic_ends_with_the_model_it_was_about():
    control = Control("r1", "r2")
    control.join("o1", model="other")
    control.canary("r2", "pass")
    stall(control, "r1")
    control.canary("r1", "pass")
    stall(control, "r2")
    assert control.published[-1].panic == ("m",)
    control.tell(Left("r1"))
    control.tell(Left("r2"))
    control.wait(2.0)
    assert control.published[-1].panic == ()


def test_the_dead_do_not_count_as_ejected():
    control = Control("r1", "r2", "r3", "r4")
    control.tell(Exited("r1"))
    control.tell(Exited("r2"))
    control.canary("r4", "pass")
    stall(control, "r3")
    assert control.state("r3") is State.QUARANTINED
