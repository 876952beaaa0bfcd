import json

import pytest

from holdfast.core.plan.redundancy import Redundancy, availability
from holdfast.core.types import ConfigError
from holdfast.planner import redundancy


@pytest.mark.parametrize(("target", "spares", "monthly"), [(0.999, 2, 2920.0), (0.9999, 3, 4380.0)])
def test_three_and_four_nines_for_twenty_replicas_have_their_price(target, spares, monthly):
    plan = redundancy(20, 0.995, target, cost_per_hour=2.0)
    assert (plan.spares, plan.replicas, plan.monthly_cost) == (spares, 20 + spares, monthly)
    assert plan.availability == pytest.approx(availability(20, spares, 0.995))
    assert plan.shortfall_minutes == pytest.approx((1 - plan.availability) * 730 * 60, rel=1e-6)


def test_the_table_shows_each_k_around_the_answer():
    plan = redundancy(20, 0.995, 0.9999, cost_per_hour=2.0)
    assert [row.spares for row in plan.rows] == [0, 1, 2, 3, 4, 5]
    assert [row.monthly_cost for row in plan.rows] == [1460.0 * k for k in range(6)]
    climbing = [row.availability for row in plan.rows]
    assert climbing == sorted(climbing)
    assert [row.availability >= plan.target for row in plan.rows].index(True) == plan.spares
    assert plan.rows[3].nines == pytest.approx(5.29, abs=0.005)
    assert plan.rows[3].replicas == 23
    assert all(row.independent is None for row in plan.rows)


def test_a_long_table_keeps_no_spares_and_the_neighbourhood():
    plan = redundancy(20, 0.995, 0.9999, correlation=0.1)
    assert [row.spares for row in plan.rows] == [0, *range(9, 20)]


def test_shared_failures_are_set_against_what_independence_would_claim():
    plan = redundancy(20, 0.995, 0.9999, correlation=0.05)
    assert plan.spares == 9
    at_answer = next(row for row in plan.rows if row.spares == 9)
    assert at_answer.independent == pytest.approx(availability(20, 9, 0.995))
    rules = {rule.rule: rule for rule in plan.alternatives}
    naive = rules["independent failures"]
    assert naive.spares == 3
    assert naive.claimed == pytest.approx(0.99999487)
    assert naive.availability == pytest.approx(0.99602385)
    assert any("seemed to give" in note for note in plan.notes)
    assert not any("at most" in note for note in plan.notes)


def test_zones_are_counted_and_bounded():
    plan = redundancy(8, 0.99, 0.9999, zones=3, zone_availability=0.999)
    assert sum(plan.zone_sizes) == plan.replicas
    assert plan.availability == Redundancy(8, 0.99, 3, 0.999).availability(plan.spares)
    naive = plan.alternatives[1]
    assert naive.claimed == pytest.approx(availability(8, naive.spares, 0.99 * 0.999))
    assert naive.availability < 0.9999 <= naive.claimed
    assert any("3 zone(s) can give 0.999999999 at most" in note for note in plan.notes)


def test_sizing_by_mean_capacity_is_shown_for_what_it_gives():
    rule = redundancy(20, 0.95, 0.9999, cost_per_hour=1.0).alternatives[0]
    assert (rule.rule, rule.spares, rule.claimed) == ("mean capacity", 2, None)
    assert rule.availability == pytest.approx(0.905, abs=5e-4)
    assert rule.monthly_cost == 1460.0


def test_a_rule_that_finds_no_answer_makes_no_claim():
    plan = redundancy(100, 0.05, 0.1, correlation=0.5)
    assert [rule.rule for rule in plan.alternatives] == ["mean capacity"]


def test_an_average_is_not_sold_as_a_promise_for_each_month():
    plan = redundancy(8, 0.99, 0.999)
    assert "long-run average" in plan.notes[0]
    assert "per window" in plan.notes[0]
    assert "independent" in plan.notes[1]


def test_a_plan_is_plain_json():
    plan = redundancy(8, 0.99, 0.999)
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert data["spares"] == 2
    assert data["replicas"] == 10
    assert data["availability"] == plan.availability
    assert data["monthly_cost"] is None
    assert data["rows"][2]["spares"] == 2
    assert data["rows"][2]["monthly_cost"] is None


def test_replicas_that_never_fail_have_no_count_of_nines():
    plan = redundancy(8, 1.0, 0.999)
    assert (plan.spares, plan.availability, plan.nines) == (0, 1.0, None)
    json.dumps(plan.to_dict(), allow_nan=False)


def test_what_cannot_be_reached_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="more zones"):
        redundancy(8, 0.99, 0.9999, zone_availability=0.999)
    with pytest.raises(ConfigError, match=r"redundancy\.cost_per_hour"):
        redundancy(8, 0.99, 0.999, cost_per_hour=-1.0)
    with pytest.raises(ConfigError, match="1 spares give only"):
        redundancy(8, 0.99, 0.999, limit=1)
