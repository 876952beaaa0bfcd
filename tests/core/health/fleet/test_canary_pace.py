"""How often a replica with a free slot is asked, by what a canary takes there."""

from itertools import pairwise
from statistics import fmean

import pytest
from fleet_stage import Control, all_of, engine_says

from holdfast.core.canary import CanaryConfig, CanaryCost
from holdfast.core.health.health import HealthConfig
from holdfast.core.messages import CallBackCanary, RunCanary
from holdfast.core.types import MILLISECOND, SECOND, State


def asked(control: Control, duration_s: float, name: str = "r1", **tally) -> list[tuple[int, bool]]:
    """When it was asked and whether that was extra, with a tally each second."""
    found = []
    for step in range(round(duration_s * 20)):
        if tally and step % 20 == 0:
            control.tally(name, **tally)
        control.after(0.05)
        canaries = all_of(control.tick(), RunCanary)
        found += [(control.now, one.extra) for one in canaries if one.replica_id == name]
    return found


def every_s(control: Control, duration_s: float = 120.0, name: str = "r1", **tally) -> float:
    """Mean seconds between its canaries."""
    times = [at for at, _ in asked(control, duration_s, name, **tally)]
    return fmean((later - earlier) / SECOND for earlier, later in pairwise(times))


def asked_extra(control: Control, answer: str | None = None) -> None:
    """Wait until an extra canary is asked, which gets this answer."""
    for _ in range(200):
        member = control.fleet.members["r1"]
        soon = member.extra_at <= control.now + 50 * MILLISECOND
        control.answers["r1"] = answer if soon else "pass"
        if asked(control, 0.05) and soon:
            assert member.canary_extra
            return
    raise AssertionError("no extra canary was asked")


def priced(took_ms: int, *names: str, slots: int = 16, **config) -> Control:
    """A fleet whose canaries take that long, and have for a while."""
    control = Control(*(names or ("r1", "r2")), slots=slots, **config)
    for name in control.fleet.members:
        control.latencies[name] = took_ms * MILLISECOND
    control.wait(30.0)
    return control


def test_a_cheap_canary_is_asked_every_second_and_those_that_are_due_are_as_many_as_ever():
    seen = asked(priced(160), 120.0)
    gaps = [(later - earlier) / SECOND for (earlier, _), (later, _) in pairwise(seen)]
    assert min(gaps) >= 1.0
    assert fmean(gaps) < 1.35
    due = [at for at, extra in seen if not extra]
    between = [(later - earlier) / SECOND for earlier, later in pairwise(due)]
    assert min(between) >= 3.9
    assert max(between) <= 6.2


@pytest.mark.parametrize(
    ("took_ms", "slots", "least", "most"),
    [
        (160, 4, 2.0, 2.9),  # a fiftieth of four slots is one such canary each two seconds
        (160, 2, 4.7, 5.4),  # one in four seconds, and one in five is due anyway
        (3_000, 4, 4.7, 5.4),  # never rarer than that
    ],
)
def test_it_is_asked_as_often_as_a_fiftieth_of_its_slots_pays_for(took_ms, slots, least, most):
    assert least <= every_s(priced(took_ms, slots=slots)) <= most


def test_until_it_is_known_what_one_takes_they_are_asked_when_they_are_due():
    control = Control("r1", slots=64)  # of none is it known
    assert every_s(control) > 4.6


def test_a_replica_that_became_slow_is_asked_as_often_as_its_peers():
    control = priced(160, "r1", "r2", "r3", slots=4)
    usual = every_s(control)
    control.latencies["r1"] = 400 * MILLISECOND  # within what counts as good time
    assert every_s(control) == pytest.approx(usual, rel=0.2)


def test_the_only_replica_of_its_model_is_not_asked_less_when_it_becomes_slow():
    control = priced(160, "r1", slots=4)
    usual = every_s(control, 400.0)  # the first five minutes are what is usual for it
    control.latencies["r1"] = 400 * MILLISECOND
    assert every_s(control, 600.0) == pytest.approx(usual, rel=0.1)


def test_undeclared_slots_are_one_unless_the_engines_page_shows_more():
    control = priced(60, "r1", "r2", slots=0)
    assert 3.0 <= every_s(control) <= 5.4  # 60 ms of one slot pay for one in three seconds
    engine_says(control, "r1", 0, running=30)
    assert every_s(control, 14.0, successes=1, inflight=30) < 1.5


def test_the_models_of_one_server_share_its_slots():
    control = Control(joined=False)
    for name, model in (("r1", "m"), ("r2", "other"), ("r3", "third")):
        control.join(name, model=model, server="http://10.0.0.1:8000", slots=16)
        control.latencies[name] = 160 * MILLISECOND
    control.join("lone", model="m", server="http://10.0.0.2:8000", slots=16)
    control.latencies["lone"] = 160 * MILLISECOND
    control.wait(40.0)
    assert every_s(control) > 1.5
    assert every_s(control, name="lone") < 1.35


def test_a_saturated_replica_keeps_to_its_budget():
    control = priced(160, slots=2)
    seen = asked(control, 60.0, successes=1, inflight=2, tokens=60)
    assert seen  # as the budget allows
    assert not [at for at, extra in seen if extra]


@pytest.mark.parametrize(
    "canary", [CanaryConfig(cost=CanaryCost.BILLED), CanaryConfig(slots_share=0.0)]
)
def test_those_that_bill_and_those_that_are_told_so_are_asked_none_beside_those_due(canary):
    control = priced(160, canary=canary)
    assert not [at for at, extra in asked(control, 60.0) if extra]


def test_whoever_wants_canaries_rarely_gets_them_five_times_as_often_at_most():
    assert every_s(priced(160, health=HealthConfig(canary_s=60.0)), 600.0) > 11.9


def test_a_suspect_is_asked_at_its_own_pace():
    control = priced(160)
    control.answers["r1"] = "fail"
    seen = asked(control, 2.0)
    assert control.state("r1") is not State.READY
    assert not [at for at, extra in seen[1:] if extra]


def test_a_large_fleet_is_asked_no_more_than_control_has_time_for():
    control = priced(160, *(f"r{n}" for n in range(300)))
    assert every_s(control, 30.0) > 2.4


def test_an_extra_canary_gives_way_to_users_and_the_one_that_is_due_after_it_does_too():
    control = priced(160)
    asked_extra(control)
    called = all_of(control.tally("r1", inflight=16), CallBackCanary)
    assert [action.replica_id for action in called] == ["r1"]
    control.tally("r1", inflight=0)
    control.answers["r1"] = "pass"
    assert asked(control, 7.0)[0][1] is False  # none beside until one was right again
    assert control.fleet.members["r1"].canary_yields


# --- what they count for --------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["wrong", "fail", "refused"])
def test_a_bad_answer_counts_whichever_canary_finds_it(verdict):
    found = []
    for seed in range(10):
        control = priced(160, "r1", "r2", "r3", seed=seed)
        control.answers["r1"] = verdict
        began = control.now
        while control.state("r1") is State.READY:
            control.wait(0.05, every=50 * MILLISECOND)
        found.append((control.now - began) / SECOND)
    assert fmean(found) < 0.9
    assert max(found) < 2.0


def test_two_wrong_answers_are_as_many_as_ever():
    control = priced(160, "r1", "r2", "r3")
    control.answers["r1"] = "wrong"
    began = control.now
    while control.state("r1") is not State.QUARANTINED:
        control.wait(0.05, every=50 * MILLISECOND)
    assert 1.0 <= (control.now - began) / SECOND <= 2.7


def test_only_canaries_that_are_due_are_measured():
    control = priced(160)
    before = control.fleet.members["r1"].baseline.export()
    control.latencies["r1"] = 2 * SECOND
    asked_extra(control, answer="pass")
    assert control.fleet.members["r1"].baseline.export() == before
    assert not control.fleet.members["r1"].slow
    control.wait(7.0)
    assert control.fleet.members["r1"].slow
