"""What a tenant is charged for an answer in one piece that its client did not wait for."""

import pytest
from flow_stage import Gateway, last, only

from holdfast.core.failure import Kind
from holdfast.core.messages import Answered, ClientGone, Dispatch, Finish
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import nanos

BURST = 86_400  # tokens; one comes back in a second, and so an answer that takes long costs less
QUOTAS = {"t": QuotaConfig(tokens_per_minute=60, burst_s=86_400)}
ASK = {"tenant": "t", "whole": True, "prompt_tokens": 100}


def used(gateway: Gateway) -> float:
    """Tokens of the tenant's quota that are gone."""
    quota = gateway.flow.quota("t")
    return BURST - quota.headers(gateway.now)["remaining_tokens"]


def leave(gateway: Gateway, name: str, after_s: float, *, generates: bool = True) -> float:
    """The charge for an answer that its client leaves after so many seconds."""
    only(gateway.arrive(name, **ASK, **gateway.more), Dispatch)
    gateway.after(after_s)
    gateway.tell(ClientGone(name, generates=generates))
    return used(gateway)


def taught(tokens: int = 400, took_s: float = 4.0, **more) -> Gateway:
    """A gateway whose model made so many tokens in so many seconds, of an answer in one piece."""
    gateway = Gateway("r1", quotas=QUOTAS)
    gateway.more = {"max_tokens": 1_000, **more}
    if tokens:
        only(gateway.arrive("before", **{**ASK, "tenant": "u"}), Dispatch)
        gateway.after(took_s).tell(Answered("before", 0, tokens, "stop"))
    return gateway


def test_who_leaves_pays_for_the_prompt_and_for_what_was_made_until_then():
    assert leave(taught(), "q", 3.2) == pytest.approx(100 + 320, abs=5)


def test_every_choice_is_made_and_paid():
    assert leave(taught(choices=3), "q", 3.2) == pytest.approx(100 + 3 * 320, abs=5)


def test_nobody_pays_for_more_than_it_allowed():
    assert leave(taught(max_tokens=50), "q", 3.2) == pytest.approx(150, abs=5)
    assert leave(taught(max_tokens=50, choices=2), "q", 3.2) == pytest.approx(200, abs=5)


def test_where_nothing_was_learned_the_pace_is_an_ordinary_one_and_not_nothing():
    assert 100 + 30 <= leave(taught(tokens=0), "q", 3.2) <= 100 + 320


def test_short_answers_say_nothing_of_the_pace_and_a_stream_does():
    gateway = taught(tokens=2, took_s=4.0)
    before = leave(gateway, "q", 3.2)
    assert before > 100 + 30
    gateway = taught(tokens=0)
    gateway.arrive("stream", tenant="u")
    gateway.after(1.0).first("stream")
    gateway.after(3.0).end("stream", tokens=400)
    assert leave(gateway, "q", 3.2) == pytest.approx(100 + 320, abs=5)


def test_what_makes_no_tokens_costs_its_prompt():
    assert leave(taught(), "q", 3.2, generates=False) == pytest.approx(100, abs=5)


def test_who_leaves_the_queue_pays_nothing():
    gateway = taught()
    for number in range(4):
        only(gateway.arrive(f"other{number}", tenant="u"), Dispatch)
    gateway.arrive("q", **ASK, **gateway.more)
    gateway.after(3.2).tell(ClientGone("q", generates=True))
    assert used(gateway) == 0


@pytest.mark.parametrize("kind", [Kind.SERVER_ERROR, Kind.DEADLINE, Kind.RESET])
def test_what_failed_by_others_fault_is_charged_as_ever(kind):
    gateway = Gateway("r1", quotas=QUOTAS, retry=RetryConfig(attempts=1))
    only(gateway.arrive("q", **ASK, max_tokens=1_000), Dispatch)
    finish = last(gateway.after(3.2).end("q", kind=kind), Finish)
    assert finish.status in {502, 504}
    assert gateway.tell(ClientGone("q", generates=True)) == []
    assert used(gateway) == pytest.approx(100, abs=5)


def test_an_attempt_before_this_one_is_not_paid_for_again():
    gateway = Gateway("r1", "r2", quotas=QUOTAS)
    gateway.more = {"max_tokens": 1_000}
    only(gateway.arrive("before", **{**ASK, "tenant": "u"}), Dispatch)
    gateway.after(4.0).tell(Answered("before", 0, 400, "stop"))
    only(gateway.arrive("q", **ASK, **gateway.more), Dispatch)
    gateway.after(10.0).end("q", kind=Kind.SERVER_ERROR)
    gateway.wait(1.0)
    started = gateway.flow.lives["q"].live[0].started
    gateway.now = started + nanos(1.0)
    gateway.tell(ClientGone("q", generates=True))
    assert used(gateway) == pytest.approx(100 + 100, abs=15)
