import json

import pytest

from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.planner.observed_failures import observed_failures
from holdfast.planner.question import UnderspecifiedError

STARTING, LOADING, READY, SUSPECT, QUARANTINED, DRAINING, STOPPED, DEAD = 0, 1, 3, 4, 5, 6, 7, 8


def ask(**given):
    return PLANS["redundancy"].ask({"need": 20, "target": 0.999, **given})


def test_availability_follows_from_times():
    figures = ask(mtbf="500h", detect="3h", repair="20h").figures
    assert figures["replica_availability"] == pytest.approx(500 / 523)
    spot = ask(need=8, mtbf="4h", repair="5m", spot_notice="2m")
    assert spot.figures["replica_availability"] == pytest.approx(240 / 243)
    assert spot.figures["spares"] == 2
    assert "reload - notice" in spot.steps[0].formula


def test_exercise_23_7_2_a_fragile_replicas_need_eight_spares():
    """p_fail 0.01: 100 ticks up, 3 unnoticed, 20 drained; binomial and simulation beside it."""
    answer = ask(need=8, mtbf="100h", detect="3h", repair="20h", simulate=True)
    assert answer.figures["spares"] == 8
    assert answer.figures["availability"] == pytest.approx(0.999112, abs=5e-7)
    past = answer.figures["simulated"]
    assert abs(past["availability"] - 0.999112) < 4 * past["error"]
    assert any("formula says" in remark for remark in answer.remarks)


def test_exercise_23_7_3_the_price_of_a_nine():
    answer = ask(availability=0.995, cost_per_hour=2)
    nines = {one["nines"]: one for one in answer.figures["price_of_nines"]}
    assert (nines[3]["spares"], nines[3]["monthly_cost"]) == (2, 2920.0)
    assert (nines[4]["spares"], nines[4]["monthly_cost"]) == (3, 4380.0)
    assert nines[5]["spares"] == 3
    table = next(table for table in answer.tables if table.title == "The price of a nine")
    assert table.rows[1] == ("0.999", "2", "2,920", "1,460")


def test_a_node_twice_as_reliable_against_twice_the_nodes():
    planned, better, double = ask(availability=0.95).figures["better_nodes"]
    assert better["replicas"] < planned["replicas"] < double["replicas"] == 40
    assert better["price_ratio"] == pytest.approx(planned["replicas"] / better["replicas"])
    assert better["availability"] >= 0.999
    priced = ask(availability=0.95, cost_per_hour=2)
    assert any("fail half as often" in remark for remark in priced.remarks)


def test_a_common_cause_is_a_ceiling_that_no_spare_lifts():
    answer = ask(availability=0.99, common_cause=0.05)
    assert answer.figures["common_cause"] == pytest.approx(0.0005)
    assert any("with any k no more than" in note for note in answer.notes)
    out_of_reach = answer.figures["price_of_nines"][3]
    assert out_of_reach["spares"] is None
    with pytest.raises(ConfigError) as refused:
        ask(availability=0.99, common_cause=0.5)
    assert refused.value.field == "target"
    assert "common causes" in refused.value.problem


def test_regions_are_compared_with_failover_and_transfer():
    answer = ask(
        availability=0.995, region_availability=0.9995, cost_per_hour=2, weights="140GB", regions=3
    )
    single, standby, active = answer.figures["regions"]
    assert (single["failover_s"], standby["failover_s"], active["failover_s"]) == (
        None,
        300.0,
        30.0,
    )
    assert single["availability"] < standby["availability"] < active["availability"]
    assert standby["transfer_cost"] == pytest.approx(560 * 0.02)
    assert json.loads(json.dumps(answer.to_dict(), allow_nan=False))["regions"]


def test_a_history_is_an_estimate_with_bounds():
    answer = ask(need=8, failures=3, up_time="1000h", down_time="6h")
    assert answer.figures["observed"]["mtbf"] == pytest.approx(1_200_000)
    assert any("95 % confidence" in note.replace("\n", " ") for note in answer.notes)
    none = ask(need=8, failures=0, up_time="100h", repair="10m")
    assert none.figures["spares"] == 0
    assert none.figures["observed"]["low"] < 1.0


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        ({}, ["availability"]),
        ({"mtbf": "4h"}, ["repair"]),
        ({"failures": 3}, ["up_time"]),
        ({"need": None, "target": None, "availability": 0.9}, ["need", "target"]),
    ],
)
def test_what_is_missing_depends_on_what_is_given(given, lacking):
    with pytest.raises(UnderspecifiedError) as error:
        ask(**given)
    assert [one.name for one in error.value.fields] == lacking


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"availability": 1.2}, "availability"),
        ({"availability": 0}, "availability"),
        ({"availability": 0.9, "zone_availability": 2}, "zone_availability"),
        ({"mtbf": "-4h", "repair": "1h"}, "mtbf"),
        ({"mtbf": "4h", "repair": "-1h"}, "repair"),
        ({"availability": 0.9, "region_availability": 3}, "region_availability"),
        ({"availability": 0.9, "need": 0}, "need"),
        ({"availability": 0.9, "common_cause": -1}, "common_cause"),
        ({"failures": 1, "up_time": 0}, "up_time"),
        ({"availability": 0.9, "target": 1.2}, "target"),
    ],
)
def test_bad_questions_name_the_field(given, field):
    with pytest.raises(ConfigError) as refused:
        ask(**given)
    assert refused.value.field == field


# --- what a history shows -------------------------------------------------------------------------


def states(*values, step=10.0):
    return [(number * step, value) for number, value in enumerate(values)]


def seen_of(*values):
    return observed_failures({"r": states(*values)}, 10.0 * len(values))


def test_a_death_is_one_failure_until_it_serves_again():
    seen = seen_of(READY, READY, DEAD, STARTING, LOADING, READY)
    assert (seen.failures, seen.up_s, seen.down_s) == (1, 30.0, 30.0)


def test_a_drain_on_purpose_is_no_failure_and_no_time():
    seen = seen_of(READY, DRAINING, STOPPED, STARTING, READY)
    assert (seen.failures, seen.up_s, seen.down_s) == (0, 20.0, 0.0)


def test_quarantine_then_death_is_one_failure():
    seen = seen_of(READY, QUARANTINED, DEAD, LOADING, READY)
    assert (seen.failures, seen.down_s) == (1, 30.0)
    never_up = seen_of(STARTING, DEAD, STARTING)
    assert (never_up.failures, never_up.up_s, never_up.down_s) == (0, 0.0, 0.0)


def test_where_nobody_looked_nothing_is_counted():
    points = [(0.0, READY), (10.0, None), (86_400.0, SUSPECT)]
    seen = observed_failures({"r": points}, 86_430.0)
    assert (seen.up_s, seen.replicas) == (40.0, 1)
