from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.plan.faults import (
    EVERYONE,
    FAULTS_MAX,
    REPLICA_KINDS,
    Fault,
    FaultKind,
    FaultSchedule,
    random_schedule,
)
from holdfast.core.types import SECOND, ConfigError, Replica
from sampling import examples

HOUR = 3600 * SECOND


def fleet(count: int, zones: int = 2) -> list[Replica]:
    return [Replica(f"r{i}", "m", zone=f"zone-{i % zones}") for i in range(count)]


@pytest.mark.parametrize(
    ("change", "field", "fix"),
    [
        ({"kind": "hang"}, "fault.kind", "use crash, hang"),
        ({"target": ""}, "fault.target", "name a replica"),
        ({"at": -1}, "fault.at", ">= 0"),
        ({"until": 10 * SECOND}, "fault.until", "end after the fault begins"),
        ({"factor": 0.5}, "fault.factor", "at least 1"),
        ({"factor": float("inf")}, "fault.factor", "at least 1"),
        ({"kind": FaultKind.SLOW}, "fault.factor", "above 1"),
        ({"probability": 0.0}, "fault.probability", "(0, 1]"),
        ({"probability": 1.5}, "fault.probability", "(0, 1]"),
        ({"probability": float("nan")}, "fault.probability", "(0, 1]"),
        ({"tokens": -1}, "fault.tokens", "0 or more"),
        ({"interval_s": 0.0}, "fault.interval_s", "above 0"),
        ({"lead_s": -1.0}, "fault.lead_s", "0 or more"),
        ({"kind": FaultKind.SPOT_NOTICE, "until": 130 * SECOND}, "fault.until", "at + lead_s"),
    ],
)
def test_a_fault_that_cannot_work_is_refused_with_field_and_fix(change, field, fix):
    values = {"kind": FaultKind.HANG, "target": "r1", "at": 10 * SECOND} | change
    with pytest.raises(ConfigError) as caught:
        Fault(**values)
    assert caught.value.field == field
    assert fix in caught.value.fix


def test_a_fault_may_kill_without_notice():
    assert Fault(FaultKind.SPOT_NOTICE, "r1", at=7, lead_s=0.0).dies_at() == 7


def test_a_window_includes_its_beginning_and_not_its_end():
    fault = Fault(FaultKind.HANG, "r1", at=10, until=20)
    assert [fault.holds(now) for now in (9, 10, 19, 20)] == [False, True, True, False]


def test_a_fault_without_an_end_holds_for_good():
    assert Fault(FaultKind.CRASH, "r1", at=10).holds(10**18)


def test_a_zone_loss_touches_its_zone_and_others_touch_their_replica():
    zonal = Fault(FaultKind.ZONE_LOSS, "a", at=0)
    single = Fault(FaultKind.HANG, "a", at=0)
    assert zonal.touches("r1", "a")
    assert not zonal.touches("a", "b")
    assert single.touches("a", "b")
    assert not single.touches("r1", "a")
    regional = Fault(FaultKind.REGION_LOSS, "east", at=0)
    assert regional.touches("r1", "a", "east")
    assert not regional.touches("east", "east", "west")
    assert regional.dies_at() == 0
    schedule = FaultSchedule([regional])
    assert schedule.active("r1", "a", 1, "east") == [regional]
    assert schedule.active("r1", "a", 1, "west") == []


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.ZONE_LOSS])
def test_a_star_touches_everybody(kind):
    assert Fault(kind, EVERYONE, at=0).touches("r1", "a")


@pytest.mark.parametrize(
    ("fault", "death"),
    [
        (Fault(FaultKind.CRASH, "r1", at=5), 5),
        (Fault(FaultKind.ZONE_LOSS, "a", at=6), 6),
        (Fault(FaultKind.SPOT_NOTICE, "r1", at=SECOND, lead_s=2.0), 3 * SECOND),
        (Fault(FaultKind.LEAK, "r1", at=0, lead_s=2.0), 2 * SECOND),
        (Fault(FaultKind.LEAK, "r1", at=0, until=SECOND, lead_s=2.0), None),
        (Fault(FaultKind.OOM, "r1", at=0), None),
        (Fault(FaultKind.HANG, "r1", at=0), None),
    ],
)
def test_a_fault_says_when_it_kills(fault, death):
    assert fault.dies_at() == death


def test_every_kind_has_a_sentence_with_its_figures():
    said = {
        kind: Fault(kind, "r2", at=30 * SECOND, factor=3.0, probability=0.25, tokens=7).describe()
        for kind in FaultKind
    }
    assert said[FaultKind.SLOW] == "r2 takes 3 times as long for everything, from 30 s for good"
    assert "fails 25% of its attempts" in said[FaultKind.FLAKY]
    assert "after 7 tokens" in said[FaultKind.CUT]
    assert "every 5 s" in said[FaultKind.DRIP]
    assert "120 s later" in said[FaultKind.SPOT_NOTICE]
    assert said[FaultKind.ZONE_LOSS].startswith("zone r2 ")
    assert said[FaultKind.REGION_LOSS].startswith("region r2 ")
    assert len(set(said.values())) == len(FaultKind)


def test_a_description_names_everybody_and_the_end():
    everybody = Fault(FaultKind.PROBE_BLIND, EVERYONE, at=0, until=60 * SECOND).describe()
    assert everybody.startswith("every replica ")
    assert everybody.endswith("from 0 s until 60 s")
    assert Fault(FaultKind.ZONE_LOSS, EVERYONE, at=0).describe().startswith("every zone ")


def test_a_schedule_is_sorted_and_keeps_the_authors_order_within_an_instant():
    late = Fault(FaultKind.HANG, "r1", at=9)
    first = Fault(FaultKind.CRASH, "r2", at=1)
    second = Fault(FaultKind.HANG, "r1", at=1)
    schedule = FaultSchedule([late, first, second])
    assert schedule.faults == (first, second, late)
    assert len(schedule) == 3
    assert schedule.describe()[0] == first.describe()
    assert repr(schedule) == "FaultSchedule(3 faults)"


def test_edges_come_by_time_and_ends_come_first_at_one_instant():
    one = Fault(FaultKind.HANG, "r1", at=1, until=5)
    two = Fault(FaultKind.SLOW, "r1", at=5, until=7, factor=2.0)
    for_good = Fault(FaultKind.CRASH, "r2", at=6)
    edges = FaultSchedule([two, for_good, one]).edges()
    assert edges == [
        (1, "begin", one),
        (5, "end", one),
        (5, "begin", two),
        (6, "begin", for_good),
        (7, "end", two),
    ]


def test_active_finds_own_zonal_and_general_faults_earliest_first():
    own = Fault(FaultKind.HANG, "r1", at=30)
    zonal = Fault(FaultKind.ZONE_LOSS, "a", at=20)
    general = Fault(FaultKind.PROBE_BLIND, EVERYONE, at=10)
    total = Fault(FaultKind.ZONE_LOSS, EVERYONE, at=40)
    schedule = FaultSchedule([own, zonal, general, total])
    assert schedule.active("r1", "a", 50) == [general, zonal, own, total]
    assert schedule.active("r2", "b", 35) == [general]
    assert schedule.active("r1", "a", 5) == []


def test_a_zone_and_a_replica_of_one_name_are_not_mixed_up():
    zonal = Fault(FaultKind.ZONE_LOSS, "x", at=0)
    assert FaultSchedule([zonal]).active("x", "b", 1) == []


def test_an_empty_schedule_has_nothing_to_say():
    schedule = FaultSchedule()
    assert (len(schedule), schedule.edges(), schedule.active("r1", "a", 0)) == (0, [], [])


def test_a_schedule_beyond_its_bound_is_refused():
    fault = Fault(FaultKind.HANG, "r1", at=0)
    with pytest.raises(ConfigError, match=r"schedule\.faults"):
        FaultSchedule([fault] * (FAULTS_MAX + 1))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"replicas": []}, "random_schedule.replicas"),
        ({"horizon": 0}, "random_schedule.horizon"),
        ({"rate_per_replica_hour": 0.0}, "random_schedule.rate_per_replica_hour"),
        ({"rate_per_replica_hour": 1e9}, "random_schedule.rate_per_replica_hour"),
        ({"kinds": ()}, "random_schedule.kinds"),
        ({"duration_s": (5.0, 1.0)}, "random_schedule.duration_s"),
        ({"duration_s": (0.0, 1.0)}, "random_schedule.duration_s"),
        ({"affected_share_max": 0.0}, "random_schedule.affected_share_max"),
        ({"affected_share_max": 1.1}, "random_schedule.affected_share_max"),
    ],
)
def test_a_draw_that_cannot_work_is_refused(change, field):
    values = {"replicas": fleet(2), "horizon": HOUR, "rate_per_replica_hour": 1.0} | change
    with pytest.raises(ConfigError) as caught:
        random_schedule(Random(1), **values)
    assert caught.value.field == field


def test_one_seed_gives_one_schedule_and_another_seed_another():
    def draw(seed: int) -> tuple[Fault, ...]:
        return random_schedule(Random(seed), fleet(8), HOUR, 5.0).faults

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_pinned_seed_keeps_its_first_fault_across_interpreters():
    first = random_schedule(Random(81723), fleet(4), HOUR, 4.0).faults[0]
    assert (first.kind, first.target, first.at, first.until) == (
        FaultKind.BLACK_HOLE,
        "r0",
        146_562_494_097,
        204_474_931_596,
    )


def test_the_rate_is_what_was_asked_for_where_nothing_is_dropped():
    replicas = fleet(50)
    drawn = random_schedule(
        Random(3), replicas, 10 * HOUR, 2.0, duration_s=(0.001, 0.002), affected_share_max=1.0
    )
    assert 850 < len(drawn) < 1150  # 1000 expected, 5 sigma is 158


def test_blindness_of_the_checker_hits_nobody_and_comes_one_at_a_time():
    drawn = random_schedule(
        Random(5), fleet(4), HOUR, 30.0, kinds=(FaultKind.PROBE_BLIND,), affected_share_max=0.1
    )
    assert len(drawn) > 1
    assert {fault.target for fault in drawn.faults} == {EVERYONE}
    for before, after in zip(drawn.faults, drawn.faults[1:], strict=False):
        assert before.until is not None
        assert before.until <= after.at


@pytest.mark.measured
def test_every_kind_is_drawn_with_parameters_that_bite():
    drawn = random_schedule(Random(7), fleet(40, zones=8), 100 * HOUR, 3.0, kinds=tuple(FaultKind))
    seen = Counter(fault.kind for fault in drawn.faults)
    # All of this fleet is in one region: to lose it is more than half of the replicas.
    assert set(seen) == set(FaultKind) - {FaultKind.REGION_LOSS}
    assert {f.kind for f in drawn.faults if f.factor > 1} == {FaultKind.SLOW}
    assert {f.kind for f in drawn.faults if f.probability < 1} == {FaultKind.FLAKY}
    assert {f.kind for f in drawn.faults if f.tokens > 0} == {FaultKind.CUT}
    for fault in drawn.faults:
        if fault.kind is FaultKind.SLOW:
            assert 1.5 <= fault.factor <= 10.0
        if fault.kind is FaultKind.FLAKY:
            assert 0.1 <= fault.probability <= 1.0
        if fault.kind in (FaultKind.SPOT_NOTICE, FaultKind.LEAK):
            assert fault.dies_at() is not None
        if fault.kind is FaultKind.ZONE_LOSS:
            assert fault.target.startswith("zone-")


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 12),
    share=st.floats(0.05, 1.0),
    zonal=st.booleans(),
)
@settings(max_examples=examples(30))
def test_never_more_replicas_suffer_at_once_than_allowed(seed, count, share, zonal):
    replicas = fleet(count, zones=4)
    kinds = (
        tuple(k for k in FaultKind if k is not FaultKind.PROBE_BLIND) if zonal else REPLICA_KINDS
    )
    drawn = random_schedule(
        Random(seed), replicas, HOUR, 20.0, kinds=kinds, affected_share_max=share
    )
    for at, _, _ in drawn.edges():
        active = [drawn.active(r.id, r.zone, at) for r in replicas]
        assert sum(1 for faults in active if faults) <= share * count + 1e-6
        assert all(len(faults) <= 1 for faults in active)
    assert all(0 <= fault.at < HOUR for fault in drawn.faults)
