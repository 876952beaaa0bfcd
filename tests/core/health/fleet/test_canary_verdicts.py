"""What one answer of a canary does to its replica: failed, wrong, unsettled, right."""

import pytest
from fleet_stage import Control, all_of, liar, notices

from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.health.ejection import EjectionConfig
from holdfast.core.health.health import Signal
from holdfast.core.messages import CanaryResult, DrainAsked, Exited, Launch, RunCanary, Stop
from holdfast.core.types import SECOND, State

# --- failed, and right again ----------------------------------------------------------------------


def test_an_overdue_canary_counts_when_it_is_due_and_no_other_is_sent_while_it_is_read_on():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = None
    control.wait(7.0)
    assert control.fleet.members["r1"].canary_out
    spent = control.fleet.members["r1"].budget.spent_tokens
    control.canary("r1", "timeout", latency=5 * SECOND, began=True, reads_on=True)
    assert control.state("r1") is State.SUSPECT
    assert not [c for c in all_of(control.wait(4.0), RunCanary) if c.replica_id == "r1"]
    control.canary("r1", "timeout", latency=10 * SECOND, began=True, gap_s=5.0)
    assert [c for c in all_of(control.wait(4.0), RunCanary) if c.replica_id == "r1"]
    cost = control.fleet.members["r1"].budget.spent_tokens - spent
    assert cost == control.asks.tokens  # one question, however often it was told of


def test_a_failing_canary_makes_a_suspect_with_a_tenth_of_its_share():
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "fail"))
    assert (notice.what, notice.reason) == ("suspect", "a canary got no answer")
    assert control.share("r1") == pytest.approx(0.1)
    assert control.share("r2") == 1.0


def lost(control: Control) -> list:
    """A canary whose connection was reset."""
    return control.canary("r1", "fail", flaw=Kind.RESET)


def test_one_connection_lost_on_the_way_is_asked_again_at_once_and_proves_nothing():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = None
    control.wait(7.0)
    assert notices(lost(control)) == []
    (again,) = [c for c in all_of(control.wait(0.2), RunCanary) if c.replica_id == "r1"]
    assert again.deadline
    control.canary("r1", "pass")
    assert control.state("r1") is State.READY


@pytest.mark.parametrize("apart_s", [1.0, 300.0])
def test_a_second_one_soon_after_counts(apart_s):
    control = Control("r1", "r2", "r3")
    lost(control)
    control.wait(apart_s, every=SECOND)
    (notice,) = notices(lost(control))
    assert notice.what == "suspect"


def test_a_replica_that_is_not_ready_has_no_lost_canary():
    control = Control("r1", "r2", "r3")
    control.canary("r1", "fail")
    lost(control)
    lost(control)
    assert control.state("r1") is State.QUARANTINED


def test_a_suspect_that_keeps_failing_is_quarantined_and_asked_on():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "fail"
    actions = control.canary("r1", "fail") + control.wait(5.0)
    assert [n.what for n in notices(actions) if n.replica_id] == ["suspect", "quarantined"]
    assert control.share("r1") == 0.0
    assert not control.firm("r1")
    assert [c for c in all_of(control.wait(3.0), RunCanary) if c.replica_id == "r1"]


def test_a_suspect_that_passes_again_is_ready_again_and_starts_slowly():
    control = Control("r1", "r2", "r3")
    control.canary("r1", "fail")
    control.wait(4.0)
    assert control.state("r1") is State.READY
    assert control.share("r1") < 0.5


def test_a_quarantined_replica_comes_back_after_enough_right_answers():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "fail"
    control.canary("r1", "fail")
    control.wait(5.0)
    assert control.state("r1") is State.QUARANTINED
    control.answers["r1"] = "pass"
    control.wait(10.0)
    assert control.state("r1") is State.READY


def test_a_quarantine_without_recovery_ends_in_a_new_process():
    control = Control("r1", "r2", "r3", relaunch_after_s=30.0)
    control.answers["r1"] = "fail"
    actions = control.canary("r1", "fail") + control.wait(40.0)
    assert len(all_of(actions, Stop)) == 1
    (launch,) = all_of(actions, Launch)
    assert (launch.replica_id, launch.delay) == ("r1", SECOND)
    assert control.state("r1") is State.STARTING


def test_an_answer_of_an_earlier_process_does_not_count():
    control = Control("r1", "r2")
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    assert control.tell(CanaryResult("r1", CanaryVerdict.PASS, incarnation=0)) == []
    assert control.state("r1") is State.WARMING
    control.canary("r1", "pass")
    assert control.state("r1") is State.READY


def test_slowness_makes_a_suspect_but_never_ejects():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "slow"
    control.wait(60.0)
    assert control.state("r1") is State.SUSPECT
    assert control.share("r1") == pytest.approx(0.1)


# --- wrong answers --------------------------------------------------------------------------------


def test_repeated_wrong_answers_are_firm():
    control = Control("r1", "r2", "r3")
    assert [n.what for n in notices(liar(control))] == ["suspect", "quarantined"]
    assert control.firm("r1")
    assert control.share("r1") == 0.0


def test_a_lie_is_no_suspicion_and_no_bound_holds_it():
    control = Control("r1", "r2", ejection=EjectionConfig(share_max=0.0))
    control.canary("r2", "pass")
    liar(control)
    assert control.state("r1") is State.QUARANTINED
    assert control.firm("r1")


def test_a_liar_is_not_readmitted_by_panic():
    control = Control("r1", "r2", "r3", "r4")
    liar(control)
    for name in ("r2", "r3"):
        control.canary(name, "timeout", running=3, progress=False)
    control.canary("r4", "pass")
    assert control.published[-1].panic == ("m",)
    assert control.share("r1") == 0.0
    assert control.share("r2") > 0.0


def test_without_a_witness_for_the_expected_answer_the_verdict_is_held():
    control = Control("r1", "r2", "r3")
    control.after(60.0)  # nobody has answered lately
    control.canary("r1", "wrong")
    actions = control.after(0.1).canary("r1", "wrong")
    (held,) = notices(actions, "verdict held")
    assert "no peer gave the expected answer lately" in held.reason
    assert control.state("r1") is State.SUSPECT
    assert not control.firm("r1")


def test_a_replica_without_peers_needs_no_witness():
    control = Control("r1")
    liar(control)
    assert control.state("r1") is State.QUARANTINED


def test_a_liar_that_never_served_is_held_back_without_a_witness_too():
    control = Control("r2")
    control.join("r1", running=True)
    control.after(60.0)
    control.canary("r1", "wrong")
    actions = control.after(0.1).canary("r1", "wrong")
    assert [n.what for n in notices(actions)] == ["verdict held"]
    assert control.state("r1") is State.WARMING


# --- what cannot be settled -----------------------------------------------------------------------


def test_an_unsettled_answer_admits_nobody_and_condemns_nobody():
    control = Control("r2", "r3")
    control.join("r1")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "unsettled")
    assert notices(control.wait(60.0)) == []
    assert control.states() == [State.READY, State.READY, State.WARMING]
    assert control.fleet._evidence.doubts == {}


def test_a_canarys_own_words_are_in_the_reason():
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "fail", detail="HTTP 500 before a token"))
    assert notice.reason == "a canary got no answer (HTTP 500 before a token)"


@pytest.mark.parametrize("verdict", ["unknown", "busy"])
def test_a_probe_that_cannot_be_trusted_changes_nothing(verdict):
    control = Control("r1", "r2", "r3")
    for _ in range(10):
        assert control.canary("r1", verdict) == []
    assert control.state("r1") is State.READY


# --- what a right answer does not outrank ---------------------------------------------------------


def test_a_right_answer_does_not_take_back_an_operator_s_drain():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "maintenance"))
    control.canary("r1", "pass")
    assert control.state("r1") in (State.DRAINING, State.STOPPED)
    assert control.share("r1") == 0.0


def test_a_right_answer_does_not_make_room_that_is_known_to_be_gone():
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.99, 0.99)
    for _ in range(5):
        control.canary("r1", "pass")
    assert (control.state("r1"), control.share("r1")) == (State.QUARANTINED, 0.0)


def test_a_right_answer_does_not_admit_another_revision():
    control = Control("r1", "r2", "r3")
    health = control.fleet.members["r1"].health
    health.handle(Signal.WRONG_REVISION, control.now)
    for _ in range(12):
        control.canary("r1", "pass")
    assert control.state("r1") is State.QUARANTINED
