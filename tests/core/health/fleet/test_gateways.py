"""What gateways report of replicas, and what they are told of them."""

import pytest
from fleet_stage import Control, all_of, notices

from holdfast.core.canary import CanaryConfig, CanaryCost
from holdfast.core.failure import Class
from holdfast.core.messages import Exited, Publish, Report, RunCanary
from holdfast.core.types import State

# --- what gateways have seen ----------------------------------------------------------------------


def test_an_opened_breaker_makes_a_suspect_and_calls_its_canary():
    control = Control("r1", "r2", "r3")
    control.wait(6.0)
    (notice,) = notices(control.breaker_opened("r1"))
    assert (notice.what, notice.failure_class) == ("suspect", Class.RUNTIME)
    assert "5 failures in a row" in notice.reason
    asked = [canary.replica_id for canary in all_of(control.wait(1.3), RunCanary)]
    assert "r1" in asked


def test_repeated_openings_quarantine():
    control = Control("r1", "r2", "r3")
    for _ in range(3):
        control.breaker_opened("r1")
    assert control.state("r1") is State.QUARANTINED


@pytest.mark.parametrize("what", ["closed", "half_open", "ladder moved"])
def test_other_reports_say_nothing_about_a_replica(what):
    control = Control("r1", "r2")
    assert control.seen(Report("m", "r1", what, "x")) == []


def test_nothing_but_backpressure_for_ten_seconds_is_not_ready():
    control = Control("r1", "r2", "r3")
    seen = []
    for _ in range(11):
        seen.append(control.state("r1"))
        control.tally("r1", backpressure=3)
        control.after(1.0)
    assert seen == [State.READY] * 11
    assert control.state("r1") is State.QUARANTINED
    assert control.fleet.members["r1"].health.reason == "answers nothing but backpressure"
    assert not control.firm("r1")


def test_one_success_among_the_backpressure_is_enough():
    control = Control("r1", "r2", "r3")
    for second in range(30):
        control.tally("r1", backpressure=3, successes=int(second % 8 == 0))
        control.after(1.0)
    assert control.state("r1") is State.READY


def test_a_replica_back_from_its_backpressure_has_its_ten_seconds_again():
    control = Control("r1", "r2", "r3")
    for _ in range(12):
        control.tally("r1", backpressure=3)
        control.after(1.0)
    control.wait(6.0)
    assert control.state("r1") is State.READY  # a right answer was enough
    control.tally("r1", backpressure=1)
    assert control.state("r1") is State.READY


def test_two_refusals_an_hour_apart_are_not_an_hour_of_backpressure():
    control = Control("r1", "r2", "r3")
    control.tally("r1", backpressure=1)
    control.after(3600.0)
    control.tally("r1", backpressure=1)
    assert control.state("r1") is State.READY


def test_users_that_are_served_show_that_somebody_listens():
    control = Control("r1", "r2", "r3")
    control.canary("r1", "refused")
    control.tally("r1", successes=5)
    control.canary("r1", "refused")
    assert control.state("r1") is State.SUSPECT
    control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD


# --- what gateways are told -----------------------------------------------------------------------


def test_a_new_view_is_published_whenever_a_state_moves_and_versions_grow():
    control = Control("r1", "r2", "r3")
    before = control.published[-1].version
    actions = control.canary("r1", "fail")
    assert isinstance(actions[-1], Publish)
    assert actions[-1].view.version == before + 1
    versions = [view.version for view in control.published]
    assert versions == sorted(versions)


def test_an_unchanged_view_is_repeated_so_that_gateways_do_not_doubt_control():
    control = Control("r1", "r2", heartbeat_s=2.0)
    control.published = []
    control.wait(20.0)
    assert 9 <= len(control.published) <= 11
    assert len({view.version for view in control.published}) == 1


def test_a_slow_start_is_published_step_by_step():
    control = Control("r1", joined=False)
    control.join("r1")
    control.wait(0.2)
    shares = []
    for _ in range(32):
        control.wait(1.0)
        shares.append(control.share("r1"))
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[14] == pytest.approx(0.1 + 0.9 * 15 / 30, abs=0.05)
    assert shares[-1] == 1.0


def test_an_empty_fleet_is_told_of_too_so_that_gateways_know_that_control_is_there():
    control = Control(joined=False)
    assert all(isinstance(action, Publish) for action in control.wait(10.0))
    assert {(view.version, view.replicas) for view in control.published} == {(1, ())}


def test_the_same_events_cause_the_same_actions():
    def run() -> str:
        control = Control("r1", "r2", "r3")
        control.answers = {"r1": "fail"}
        actions = control.wait(90.0) + control.tell(Exited("r2")) + control.wait(30.0)
        return repr(actions)

    assert run() == run()


# --- a canary goes before a user ------------------------------------------------------------------


def test_after_a_breaker_opened_users_wait_for_a_right_canary_and_are_told_at_once():
    control = Control("r1", "r2", "r3")
    control.wait(6.0)
    assert control.may_try("r1")
    control.answers["r1"] = "timeout"
    assert all_of(control.breaker_opened("r1"), Publish)
    assert not control.may_try("r1")
    assert control.may_try("r2")
    control.wait(4.0)
    assert not control.may_try("r1")
    control.answers["r1"] = "pass"
    while control.state("r1") is not State.READY:
        control.wait(0.1)
    assert control.may_try("r1")


def test_a_right_canary_is_told_though_no_state_changed():
    control = Control("r1", "r2", "r3")
    control.wait(6.0)
    control.breaker_opened("r1")
    before = control.state("r1")
    assert all_of(control.canary("r1", "pass"), Publish)
    assert (control.state("r1"), control.may_try("r1")) == (before, True)
    assert all_of(control.breaker_opened("r1"), Publish)  # its trial failed: the next one is due
    assert not control.may_try("r1")


@pytest.mark.parametrize("verdict", ["wrong", "fail", "timeout"])
def test_a_canary_without_a_right_answer_sends_nobody(verdict):
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = verdict
    control.breaker_opened("r1")
    assert all_of(control.wait(2.0), RunCanary)
    assert not control.may_try("r1")


@pytest.mark.parametrize("verdict", ["unknown", "busy", "unsettled"])
def test_where_a_canary_tells_nothing_a_user_is_sent_as_ever(verdict):
    control = Control("r1", "r2", "r3")
    control.breaker_opened("r1")
    control.canary("r1", verdict)
    assert control.may_try("r1")
    control.canary("r1", "timeout")  # the next one can be asked, and gets no answer
    assert not control.may_try("r1")


def test_where_there_is_no_budget_for_one_a_user_is_sent_as_ever():
    control = Control("r1", "r2", "r3", canary=CanaryConfig(cost=CanaryCost.BILLED))
    member = control.fleet.members["r1"]
    for _ in range(12):  # what it was admitted with is spent, and so is what may be owed
        member.budget.spent(20, control.now, charged=True)
    control.breaker_opened("r1")
    assert not control.may_try("r1")
    assert not [c for c in all_of(control.wait(2.0), RunCanary) if c.replica_id == "r1"]
    assert control.may_try("r1")


def test_while_canaries_are_not_believed_users_are_sent_as_ever():
    control = Control("r1", "r2", "r3")
    for name in ("r1", "r2", "r3"):
        control.answers[name] = "wrong"
    control.wait(10.0)
    assert control.fleet._evidence.doubts
    control.breaker_opened("r1")
    assert not control.fleet.members["r1"].may_try
    assert control.may_try("r1")


def test_a_new_process_begins_as_one_that_may_be_tried():
    control = Control("r1", "r2", "r3")
    control.breaker_opened("r1")
    control.tell(Exited("r1"))
    control.wait(0.2)
    assert control.may_try("r1")
