"""What a readiness probe is told: by control, and by an agent that control left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.deploy.pod_readiness import VerdictHold, VerdictHoldConfig, told_ready
from holdfast.core.messages import ReplicaView
from holdfast.core.types import SECOND, ConfigError, Decision, Replica, State

OUT = (State.QUARANTINED, State.DEAD)


def row(name, state, share=0.0, *, firm=False, reason=""):
    return ReplicaView(Replica(name, "m"), state, share, firm, reason)


def ready(*rows, share_max=0.5):
    return {name: bool(answer) for name, answer in told_ready(rows, share_max).items()}


def test_who_gets_requests_is_ready_and_who_is_not_proven_is_not():
    told = ready(
        row("a", State.READY, 1.0),
        row("b", State.SUSPECT, 0.1),
        row("c", State.WARMING),
        row("d", State.LOADING),
        row("e", State.DRAINING),
    )
    assert told == {"a": True, "b": True, "c": False, "d": False, "e": False}


def test_one_of_three_is_taken_out_on_suspicion_and_the_reason_is_told():
    rows = [row("a", State.READY, 1.0), row("b", State.READY, 1.0)]
    rows.append(row("c", State.QUARANTINED, reason="canaries fail"))
    answers = told_ready(rows, 0.5)
    assert not answers["c"]
    assert "canaries fail" in answers["c"].reason


def test_a_pool_that_fails_open_stays_ready():
    told = ready(row("a", State.QUARANTINED, 1.0), row("b", State.QUARANTINED, 1.0))
    assert told == {"a": True, "b": True}


def test_facts_are_not_bounded():
    told = ready(row("a", State.DEAD), row("b", State.QUARANTINED, firm=True))
    assert told == {"a": False, "b": False}


@given(
    st.lists(
        st.tuples(st.sampled_from([*State]), st.sampled_from([0.0, 0.1, 1.0]), st.booleans()),
        max_size=12,
    )
)
def test_never_more_than_half_of_a_pool_is_out_on_suspicion(pool):
    rows = [row(str(n), state, share, firm=firm) for n, (state, share, firm) in enumerate(pool)]
    answers = told_ready(rows, 0.5)
    assert set(answers) == {one.replica.id for one in rows}
    doubted = [one for one in rows if one.state in {State.QUARANTINED, State.READY, State.SUSPECT}]
    members = [one for one in rows if one.share > 0 or (one in doubted and not one.firm)]
    out = [one for one in members if not answers[one.replica.id]]
    assert len(out) <= len(members) // 2
    assert all(answers[one.replica.id] for one in rows if one.share > 0)


# --- the agent's side -----------------------------------------------------------------------------


def hold(**config):
    return VerdictHold(VerdictHoldConfig(**config))


NOT_READY = Decision(False, "quarantined")


def test_the_last_verdict_is_told_while_it_is_fresh():
    held = hold(fresh_s=30.0)
    held.heard(NOT_READY, 0)
    assert held.answer(30 * SECOND) is NOT_READY


def test_without_control_nobody_is_doubted():
    held = hold(fresh_s=30.0)
    assert held.answer(0)
    held.heard(NOT_READY, 0)
    late = held.answer(30 * SECOND + 1)
    assert late
    assert "away" in late.reason


def test_a_new_pod_waits_for_control_to_find_it_but_not_for_ever():
    held = hold(unknown_s=60.0)
    for second in range(0, 60, 5):
        held.heard(None, second * SECOND)
        assert not held.answer(second * SECOND)
    held.heard(None, 65 * SECOND)
    assert "models[].discover" in held.answer(65 * SECOND).reason
    assert held.answer(65 * SECOND)
    held.heard(NOT_READY, 70 * SECOND)
    assert not held.answer(70 * SECOND)


@pytest.mark.parametrize("field", ["fresh_s", "unknown_s"])
def test_times_that_make_no_sense_are_refused(field):
    with pytest.raises(ConfigError, match=field):
        VerdictHoldConfig(**{field: 0})


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["ready", "not ready", "unknown", "away"])),
        max_size=30,
    ),
    st.integers(0, 100),
)
def test_no_row_of_answers_makes_a_pod_unready_for_longer_than_control_says_so(steps, later):
    held = hold(fresh_s=30.0, unknown_s=60.0)
    now, told, heard_at = 0, None, None
    for pause, what in steps:
        now += pause * SECOND
        if what != "away":
            told = {"ready": Decision(True, "r"), "not ready": NOT_READY, "unknown": None}[what]
            held.heard(told, now)
            heard_at = now
    now += later * SECOND
    answer = held.answer(now)
    if not answer:
        assert heard_at is not None
        assert now - heard_at <= 30 * SECOND
        assert told is None or not told
