import pytest

from holdfast.control.access import sessions as module
from holdfast.control.access.roles import ALL_ROLES, Role
from holdfast.control.access.sessions import LASTS_S, LINK_S, Sessions
from holdfast.control.access.tokens import AdminCaller

CALLER = AdminCaller("oncall", frozenset({Role.OPERATE}), b"digest")
OTHER = AdminCaller("admin", ALL_ROLES, b"other")


@pytest.fixture
def sessions(clock):
    return Sessions(clock)


def test_a_session_has_its_callers_roles_and_ends_after_half_a_day(sessions, clock):
    cookie = sessions.begin(CALLER)
    assert sessions.caller(cookie) == CALLER
    assert len(cookie) >= 43  # 256 bits
    clock.now += LASTS_S - 1
    assert sessions.caller(cookie) == CALLER
    clock.now += 2
    assert sessions.caller(cookie) is None
    assert sessions.csrf(cookie) is None


def test_a_cookie_that_nobody_handed_out_is_nobodys(sessions):
    assert sessions.caller("made-up") is None
    assert len(sessions) == 0


def test_the_cookie_itself_is_not_kept(sessions):
    cookie, code = sessions.begin(CALLER), sessions.link(CALLER)
    assert cookie not in repr(vars(sessions))
    assert code not in repr(vars(sessions))


def test_who_signs_out_has_to_sign_in_again(sessions):
    first, second = sessions.begin(CALLER), sessions.begin(CALLER)
    assert first != second
    sessions.sign_out(first)
    assert (sessions.caller(first), sessions.caller(second)) == (None, CALLER)
    sessions.sign_out("never handed out")


def test_the_number_of_sessions_is_bounded_and_the_oldest_goes(sessions, monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_MAX", 3)
    cookies = [sessions.begin(CALLER) for _ in range(4)]
    assert [sessions.caller(one) for one in cookies] == [None, CALLER, CALLER, CALLER]


def test_old_sessions_leave_when_somebody_signs_in(sessions, clock):
    sessions.begin(CALLER)
    clock.now += LASTS_S
    sessions.begin(CALLER)
    assert len(sessions) == 1


def test_an_order_needs_the_secret_of_its_own_session(sessions):
    mine, other = sessions.begin(CALLER), sessions.begin(OTHER)
    secret = sessions.csrf(mine)
    assert sessions.may_order(mine, secret)
    assert not sessions.may_order(other, secret)
    assert not sessions.may_order(mine, "")
    assert not sessions.may_order(None, secret)
    assert not sessions.may_order(mine, "\udce9")


def test_pages_that_only_read_carry_a_secret_of_this_process(sessions, clock):
    assert sessions.may_order(None, sessions.open_csrf)
    assert not sessions.may_order(None, Sessions(clock).open_csrf)


def test_a_link_is_used_once_and_not_for_long(sessions, clock):
    code = sessions.link(CALLER)
    assert sessions.redeem(code) == CALLER
    assert sessions.redeem(code) is None
    late = sessions.link(CALLER)
    clock.now += LINK_S
    assert sessions.redeem(late) is None
    assert sessions.redeem("made-up") is None


def test_unused_links_are_bounded(sessions, monkeypatch):
    monkeypatch.setattr(module, "LINKS_MAX", 2)
    codes = [sessions.link(CALLER) for _ in range(3)]
    assert [sessions.redeem(one) for one in codes] == [None, CALLER, CALLER]
