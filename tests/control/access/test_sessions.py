from hashlib import sha256

import pytest

from holdfast.control.access import sessions as module
from holdfast.control.access.sessions import LASTS_S, Sessions, TooManyTriesError

TOKEN = "an admin token"
HASHED = "sha256:" + sha256(TOKEN.encode()).hexdigest()


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sessions(clock):
    return Sessions(HASHED, clock)


def test_the_token_gives_a_cookie_that_is_known_and_ends_after_half_a_day(sessions, clock):
    cookie = sessions.sign_in(TOKEN, "10.0.0.1")
    assert sessions.knows(cookie)
    assert len(cookie) >= 43  # 256 bits
    clock.now += LASTS_S - 1
    assert sessions.knows(cookie)
    clock.now += 2
    assert not sessions.knows(cookie)
    assert sessions.csrf(cookie) is None


def test_another_token_gives_nothing(sessions):
    assert sessions.sign_in("another", "10.0.0.1") is None
    assert not sessions.knows("another")
    assert len(sessions) == 0


def test_the_cookie_itself_is_not_kept(sessions):
    cookie = sessions.sign_in(TOKEN, "10.0.0.1")
    assert cookie not in repr(vars(sessions))
    assert TOKEN not in repr(vars(sessions))


def test_who_signs_out_has_to_sign_in_again(sessions):
    first, second = sessions.sign_in(TOKEN, "a"), sessions.sign_in(TOKEN, "a")
    assert first != second
    sessions.sign_out(first)
    assert (sessions.knows(first), sessions.knows(second)) == (False, True)
    sessions.sign_out("never handed out")


def test_the_number_of_sessions_is_bounded_and_the_oldest_goes(sessions, monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_MAX", 3)
    cookies = [sessions.sign_in(TOKEN, "a") for _ in range(4)]
    assert [sessions.knows(one) for one in cookies] == [False, True, True, True]


def test_old_sessions_leave_when_somebody_signs_in(sessions, clock):
    sessions.sign_in(TOKEN, "a")
    clock.now += LASTS_S
    sessions.sign_in(TOKEN, "a")
    assert len(sessions) == 1


def test_wrong_tokens_are_slowed_by_address(sessions, clock):
    for _ in range(module.TRIES_MAX):
        assert sessions.sign_in("wrong", "10.0.0.9") is None
    with pytest.raises(TooManyTriesError) as caught:
        sessions.sign_in(TOKEN, "10.0.0.9")  # the right one too: else it would be no limit
    assert 1 <= caught.value.wait_s <= module.TRY_AGAIN_S
    assert sessions.sign_in(TOKEN, "10.0.0.1")
    clock.now += module.TRY_AGAIN_S
    assert sessions.sign_in(TOKEN, "10.0.0.9")


def test_wrong_tokens_of_many_addresses_are_slowed_together(sessions, clock):
    for n in range(module.ALL_TRIES_MAX):
        assert sessions.sign_in("wrong", f"10.0.0.{n}") is None
    with pytest.raises(TooManyTriesError):
        sessions.sign_in("wrong", "10.0.1.1")
    clock.now += module.ALL_TRY_AGAIN_S
    assert sessions.sign_in("wrong", "10.0.1.1") is None


def test_addresses_are_bounded(sessions, clock, monkeypatch):
    monkeypatch.setattr(module, "ADDRESSES_MAX", 2)
    for n in range(5):
        clock.now += 10
        sessions.sign_in("wrong", f"10.0.0.{n}")
    assert len(sessions._tries) == 2


def test_an_order_needs_the_secret_of_its_own_session(sessions):
    mine, other = sessions.sign_in(TOKEN, "a"), sessions.sign_in(TOKEN, "a")
    secret = sessions.csrf(mine)
    assert sessions.may_order(mine, secret)
    assert not sessions.may_order(other, secret)
    assert not sessions.may_order(mine, "")
    assert not sessions.may_order(None, secret)
    assert not sessions.may_order(mine, "\udce9")


def test_without_a_token_nobody_signs_in_and_pages_still_carry_a_secret():
    sessions = Sessions(None)
    assert not sessions.required
    assert sessions.sign_in("anything", "a") is None
    assert sessions.may_order(None, sessions.csrf(None))
    assert not sessions.may_order(None, Sessions(None).csrf(None))
