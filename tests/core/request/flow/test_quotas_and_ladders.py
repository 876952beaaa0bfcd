"""Quotas of tenants, the ladder of models, and what a lease changes in them."""

from flow_stage import Gateway, full, lane, only, view

from holdfast.core.messages import Dispatch, Finish, Leased, Report, ReportCode
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.ladders.degrade import DegradeConfig
from holdfast.core.types import MILLISECOND

# --- quota and the ladder of models ---------------------------------------------------------------


def test_a_tenant_over_its_quota_is_429_and_nobody_else_is():
    gateway = Gateway("r1", quotas={"t": QuotaConfig(requests_per_minute=1.0)})
    only(gateway.arrive("q1", tenant="t"), Dispatch)
    finish = only(gateway.arrive("q2", tenant="t"), Finish)
    assert (finish.status, finish.code, finish.attempts) == (429, "rate_limit_exceeded", 0)
    assert finish.retry_after_s == 60.0
    only(gateway.arrive("q3", tenant="u"), Dispatch)


def test_tokens_that_were_reserved_and_not_used_come_back():
    gateway = Gateway("r1", quotas={"t": QuotaConfig(tokens_per_minute=1000.0)})
    ask = {"tenant": "t", "prompt_tokens": 100, "max_tokens": 900}
    gateway.arrive("q1", **ask)
    assert only(gateway.arrive("q2", **ask), Finish).status == 429
    gateway.end("q1", tokens=50)
    small = {"tenant": "t", "prompt_tokens": 100, "max_tokens": 700}
    only(gateway.arrive("q3", **small), Dispatch)


def test_a_request_that_was_shed_gives_its_quota_back():
    gateway = full(
        lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)),
        quotas={"t": QuotaConfig(requests_per_minute=1.0)},
    )
    gateway.arrive("q2")
    for n in range(3, 6):
        assert only(gateway.arrive(f"q{n}", tenant="t"), Finish).code == "queue_full"


LADDER = DegradeConfig(ladder=("big", "small"), step_s=1.0, hold_s=2.0, share_step=1.0)


def test_a_saturated_model_is_replaced_by_a_smaller_one_and_the_answer_says_so():
    gateway = Gateway(
        view("b1", model="big", slots=1), view("s1", model="small"), degrade=(LADDER,)
    )
    only(gateway.arrive("q1", model="big"), Dispatch)
    report = only(gateway.wait(4.0, every=100 * MILLISECOND), Report)
    assert (report.model, report.what) == ("big", ReportCode.LADDER_MOVED)
    dispatch = only(gateway.arrive("q2", model="big"), Dispatch)
    assert (dispatch.model, dispatch.replica_id) == ("small", "s1")
    finish = only(gateway.end("q2"), Finish)
    assert finish.model == "small"
    assert finish.story[0][1:] == ("degraded", "degraded to small")
    assert only(gateway.end("q1"), Finish).model == "big"


# --- leases ---------------------------------------------------------------------------------------


def test_a_lease_holds_for_quota_retries_and_trials():
    quotas = {"a": QuotaConfig(requests_per_minute=60)}
    gateway = Gateway(quotas=quotas)
    gateway.tell(Leased({"a": 0.5, "nobody": 0.5}, 0.0, frozenset()))
    assert gateway.flow.quota("a").headers(gateway.now)["limit_requests"] == 30
    assert gateway.flow.quota("b") is None
    assert gateway.flow.lanes["m"].pool.leased == frozenset()
    gateway.tell(Leased({}, 1.0, None))
    assert gateway.flow.quota("a").headers(gateway.now)["limit_requests"] == 30
    assert gateway.flow.lanes["m"].pool.leased is None


def test_a_request_that_is_not_degradable_stays_with_its_model():
    ladder = DegradeConfig(ladder=("m", "small"), share_step=1.0, step_s=0.5)
    views = view("r1", slots=1), view("s1", model="small", slots=8)
    gateway = Gateway(*views, degrade=(ladder,))
    for number in range(6):
        gateway.arrive(f"f{number}")
    gateway.wait(5.0)
    assert only(gateway.arrive("asked", degradable=True), Dispatch).model == "small"
    assert gateway.arrive("named", degradable=False) == []
