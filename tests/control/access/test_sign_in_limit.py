import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from holdfast.control.access import sign_in_limit as module
from holdfast.control.access.sign_in_limit import SignInLimit, TooManyTriesError


@pytest.fixture
def limit(clock):
    return SignInLimit(clock)


def test_wrong_tokens_are_slowed_by_address(limit, clock):
    for _ in range(module.TRIES_MAX):
        limit.check("10.0.0.9")
        limit.failed("10.0.0.9")
    with pytest.raises(TooManyTriesError) as caught:
        limit.check("10.0.0.9")
    assert 1 <= caught.value.wait_s <= module.TRY_AGAIN_S
    limit.check("10.0.0.1")
    clock.now += module.TRY_AGAIN_S
    limit.check("10.0.0.9")
    assert (limit.failed_total, limit.limited_total) == (module.TRIES_MAX, 1)


def test_wrong_tokens_of_many_addresses_are_slowed_together(limit, clock):
    for n in range(module.ALL_TRIES_MAX):
        limit.check(f"10.0.0.{n}")
        limit.failed(f"10.0.0.{n}")
    with pytest.raises(TooManyTriesError):
        limit.check("10.0.1.1")
    clock.now += module.ALL_TRY_AGAIN_S
    limit.check("10.0.1.1")


def test_a_right_token_clears_its_address(limit):
    for _ in range(module.TRIES_MAX - 1):
        limit.failed("a")
    limit.succeeded("a")
    limit.failed("a")
    limit.check("a")


def test_addresses_are_bounded(limit, clock, monkeypatch):
    monkeypatch.setattr(module, "ADDRESSES_MAX", 2)
    for n in range(5):
        clock.now += 10
        limit.failed(f"10.0.0.{n}")
    assert len(limit._tries) == 2


def test_the_log_hears_at_once_and_then_seldom(limit, clock):
    with capture_logs() as logs:
        for _ in range(60):
            limit.failed("10.0.0.9")
            clock.now += 0.001
        assert [(line["address"], line["count"]) for line in logs] == [("10.0.0.9", 1)]
        clock.now += module.LOG_S
        limit.failed("10.0.0.8")
    assert [(line["address"], line["count"]) for line in logs][1:] == [("10.0.0.8", 60)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 20), st.booleans()), max_size=200))
def test_no_address_gets_more_tries_than_its_bucket_holds(new_clock, steps):
    """Whatever the order of tries and pauses: 5 at once, then one each 12 s."""
    clock = new_clock()
    limit, tried = SignInLimit(clock), {}
    for address, pause_s, right in steps:
        clock.now += pause_s
        try:
            limit.check(address)
        except TooManyTriesError:
            continue
        if right:
            limit.succeeded(address)
            tried.pop(address, None)
            continue
        limit.failed(address)
        times = tried.setdefault(address, [])
        times.append(clock.now)
        span = clock.now - times[0]
        assert len(times) <= module.TRIES_MAX + span / module.TRY_AGAIN_S + 1e-6
