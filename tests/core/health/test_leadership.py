"""Who leads: never two at once, whatever the clocks, the store and the schedules do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.health.leadership import (
    Leadership,
    LeadershipConfig,
    LeadershipRole,
    LeaseAnswer,
)
from holdfast.core.types import ConfigError, nanos

CONFIG = LeadershipConfig(lease_s=6.0, claim_s=1.0, margin_s=1.5)
HELD = LeaseAnswer("a", 1, held=True)


def role(leadership, at_s):
    return leadership.role(nanos(at_s))


def claimed(leadership, at_s, answer, came_s=None):
    assert leadership.claim_due(nanos(at_s))
    leadership.answered(answer, nanos(at_s if came_s is None else came_s))


def test_it_leads_from_the_answer_until_shortly_before_the_lease_ends():
    leadership = Leadership(CONFIG, "a", 0)
    assert role(leadership, 0) is LeadershipRole.STANDBY
    claimed(leadership, 0.0, HELD, came_s=0.5)
    assert (leadership.leader, leadership.term) == ("a", 1)
    assert role(leadership, 4.4) is LeadershipRole.LEADER
    assert role(leadership, 4.5) is LeadershipRole.STANDBY  # 6 s from the question, less 1.5
    assert leadership.left_s(nanos(4.0)) == pytest.approx(0.5)


def test_a_renewal_prolongs_from_when_it_was_asked_for():
    leadership = Leadership(CONFIG, "a", 0)
    claimed(leadership, 0.0, HELD)
    claimed(leadership, 1.0, HELD, came_s=3.0)
    assert role(leadership, 5.4) is LeadershipRole.LEADER
    assert role(leadership, 5.5) is LeadershipRole.STANDBY


def test_claims_keep_their_distance_and_one_is_under_way_at_a_time():
    leadership = Leadership(CONFIG, "a", 0)
    assert leadership.claim_due(0)
    assert not leadership.claim_due(nanos(5.0))  # of the first no answer came yet
    leadership.answered(None, nanos(5.0))
    assert leadership.claim_due(nanos(5.0))
    leadership.answered(HELD, nanos(5.1))
    assert not leadership.claim_due(nanos(5.9))
    assert leadership.claim_due(nanos(6.0))


def test_an_unanswered_claim_neither_prolongs_nor_ends_it():
    leadership = Leadership(CONFIG, "a", 0)
    claimed(leadership, 0.0, HELD)
    claimed(leadership, 1.0, None)
    assert role(leadership, 4.4) is LeadershipRole.LEADER
    assert role(leadership, 4.5) is LeadershipRole.STANDBY


def test_it_stops_at_once_where_another_one_holds_the_lease():
    leadership = Leadership(CONFIG, "a", 0)
    claimed(leadership, 0.0, HELD)
    claimed(leadership, 1.0, LeaseAnswer("b", 2, held=False), came_s=1.2)
    assert role(leadership, 1.2) is LeadershipRole.STANDBY
    assert (leadership.leader, leadership.term) == ("b", 2)


def test_a_store_that_forgot_a_term_is_not_believed():
    leadership = Leadership(CONFIG, "a", 0)
    claimed(leadership, 0.0, LeaseAnswer("b", 7, held=False))
    claimed(leadership, 1.0, HELD)
    assert role(leadership, 1.1) is LeadershipRole.STANDBY


def test_who_resigns_acts_no_more():
    leadership = Leadership(CONFIG, "a", 0)
    claimed(leadership, 0.0, HELD)
    leadership.resign(nanos(2.0))
    assert role(leadership, 2.0) is LeadershipRole.STANDBY


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"lease_s": 0.0}, "leadership.lease_s"),
        ({"claim_s": 601.0}, "leadership.claim_s"),
        ({"lease_s": 3.0, "claim_s": 1.0, "margin_s": 1.5}, "leadership.lease_s"),
    ],
)
def test_times_that_leave_no_room_are_refused(wrong, field):
    with pytest.raises(ConfigError) as refused:
        LeadershipConfig(**wrong)
    assert refused.value.field == field


class _Store:
    """A lease by its own clock, with answers that may be late or lost on the way."""

    def __init__(self):
        self.holder, self.term, self.until = "", 0, 0

    def claim(self, name, now):
        if self.holder not in {"", name} and now < self.until:
            return LeaseAnswer(self.holder, self.term, held=False)
        if self.holder != name or now >= self.until:
            self.term += 1
        self.holder, self.until = name, now + nanos(CONFIG.lease_s)
        return LeaseAnswer(name, self.term, held=True)


STEP = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["ask", "answer", "lose", "wait", "resign"]),
    st.integers(1, 2_500),  # ms that pass before it
)


@settings(max_examples=300)
@given(st.lists(STEP, max_size=80))
def test_two_never_lead_at_once_and_terms_never_fall(steps):
    store, now = _Store(), 0
    controls = {name: Leadership(CONFIG, name, 0) for name in "abc"}
    on_the_way = {}
    led = {}
    for name, what, passed_ms in steps:
        # Time passes in small steps for everybody: at each of them at most one leads.
        for _ in range(passed_ms // 50 + 1):
            now += nanos(0.05)
            leaders = [
                other
                for other, control in controls.items()
                if control.role(now) is LeadershipRole.LEADER
            ]
            assert len(leaders) <= 1
            for leader in leaders:
                term = controls[leader].term
                assert term >= max(led.values(), default=0)
                assert led.get(leader, term) <= term
                led[leader] = term
        control = controls[name]
        if what == "ask" and name not in on_the_way and control.claim_due(now):
            on_the_way[name] = store.claim(name, now)
        elif what == "answer" and name in on_the_way:
            control.answered(on_the_way.pop(name), now)
        elif what == "lose" and name in on_the_way:
            del on_the_way[name]
            control.answered(None, now)
        elif what == "resign":
            control.resign(now)
    terms = sorted(led.items(), key=lambda one: one[1])
    assert len({term for _, term in terms}) == len(terms)  # nobody shares one
