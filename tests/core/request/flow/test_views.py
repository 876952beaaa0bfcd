"""What a flow makes of control's view of the fleet, and of its silence."""

from random import Random

from flow_stage import NO_BACKOFF, QUICK, Gateway, lane, only, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, Dispatch, Finish, Report, Tick
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.pool import TRIAL_REASON
from holdfast.core.types import MILLISECOND, SECOND


def test_a_replica_with_a_share_of_nothing_gets_nothing():
    gateway = Gateway(view("r1"), view("r2", share=0.0))
    assert {only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(4)} == {"r1"}


def test_an_older_view_never_replaces_a_newer_one():
    gateway = Gateway("r1", "r2")
    gateway.view("r2", version=7)
    gateway.view("r1", version=6)
    assert only(gateway.arrive(), Dispatch).replica_id == "r2"


def test_an_attempt_on_a_replica_that_left_the_view_still_ends_well():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    gateway.view("r2")
    gateway.first()
    assert only(gateway.end(), Finish).status == 200
    assert gateway.flow.lanes["m"].pool.inflight == 0


def test_an_attempt_that_fails_after_everybody_left_waits_for_somebody():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive()
    gateway.view()
    assert gateway.end(kind=Kind.RESET) == []
    assert only(gateway.view("r3"), Dispatch).replica_id == "r3"


def test_a_timeout_in_a_pool_that_everybody_left_is_dealt_with():
    gateway = Gateway("r1", lane=lane(deadlines=QUICK), retry=NO_BACKOFF)
    gateway.arrive()
    gateway.view()
    assert only(gateway.wait(2.01), Abort).kind is Kind.FIRST_TOKEN_TIMEOUT
    assert only(gateway.view("r2"), Dispatch).replica_id == "r2"


def quarantined(*, firm: bool = False) -> Gateway:
    return Gateway(view("r1"), view("r2", share=0.0, firm=firm))


def test_a_quarantine_on_suspicion_decays_to_one_trial_when_control_is_silent():
    gateway = quarantined()
    assert gateway.wait(10.0, every=100 * MILLISECOND) == []
    report = only(gateway.wait(1.5, every=100 * MILLISECOND), Report)
    assert (report.replica_id, report.reason) == ("r2", "control is silent")
    gateway.after(1.0)
    assert only(gateway.arrive("q1"), Dispatch).reason == TRIAL_REASON
    assert only(gateway.arrive("q2"), Dispatch).replica_id == "r1"


def test_a_firm_verdict_stands_though_control_is_silent():
    gateway = quarantined(firm=True)
    assert gateway.wait(20.0, every=100 * MILLISECOND) == []
    assert {only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(4)} == {"r1"}


def test_a_repeated_view_shows_that_control_is_there():
    gateway = quarantined()
    for _ in range(20):
        gateway.view(view("r1"), view("r2", share=0.0), version=gateway.version)
        assert gateway.wait(2.0, every=100 * MILLISECOND) == []


def test_a_view_repeated_after_a_silence_restores_the_quarantine():
    gateway = quarantined()
    only(gateway.wait(12.0, every=100 * MILLISECOND), Report)
    gateway.view(view("r1"), view("r2", share=0.0), version=gateway.version)
    gateway.after(2.0)
    assert {only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(4)} == {"r1"}


def test_a_gateway_that_never_heard_of_control_doubts_no_view():
    flow = Flow(FlowConfig(), Random)
    assert flow.handle(Tick(), 1000 * SECOND) == []
