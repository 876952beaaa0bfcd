import asyncio
import json
import time

import fleet_server
import pytest

from holdfast.core.types import ConfigError
from holdfast.planner import redundancy
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.run import run_experiment
from holdfast.sim.scenario import prepare
from holdfast.twin.twin_file import TwinModel, new_twin_file
from holdfast.ui.web.rehearsal import RehearsalBusyError, RehearsalError, RehearsalRunner, rehearse
from holdfast.ui.web.whatif import WhatIfQuestion, answer, as_it_is, scenarios

FILE = fleet_server.FILE
CALM = fleet_server.fleets.calm()


def question(**body):
    return WhatIfQuestion.of({"model": "llm-8b", "rate": 4.0, **body}, as_it_is(FILE, CALM))


def test_the_view_counts_replicas_and_the_file_knows_zones_too():
    (by_file, *_) = as_it_is(FILE, None)["models"]
    assert (by_file["replicas"], by_file["zones"]) == (2, ("eu-west-2a", "eu-west-2b"))
    (by_view, *_) = as_it_is(FILE, CALM)["models"]
    rows = [row for row in CALM.replicas if row.model == "llm-8b"]
    assert by_view["replicas"] == len(rows)
    assert set(by_view["zones"]) == {*by_file["zones"], *(row.zone for row in rows)}


def test_need_follows_traffic_and_speed():
    assert question(rate=1.0).need(1.0) == 1
    assert question(rate=1000.0).need(2.0) > question(rate=1000.0).need(1.0) > 1
    slow, fast = question(stream_tokens_s=10.0), question(stream_tokens_s=100.0)
    assert slow.replica_requests_s < fast.replica_requests_s


def test_an_idle_replica_speaks_at_the_speed_that_was_said():
    law = question(stream_tokens_s=50.0).law
    assert law.step_ms + law.per_sequence_ms == pytest.approx(20.0)


def test_a_lost_zone_is_lost_then_and_not_now():
    now, then = scenarios(question(replicas=4, lost_zone="eu-west-2b"), FILE)
    assert now.faults == []
    (fault,) = then.faults
    assert (fault.kind, fault.target) == ("zone_loss", "eu-west-2b")
    assert 0 < fault.at < fault.until < then.duration


def test_more_traffic_is_simulated_for_a_shorter_time():
    calm, _ = scenarios(question(), FILE)
    rush, _ = scenarios(question(traffic=100.0), FILE)
    assert calm.duration == 300.0
    assert rush.duration == 37.5


def test_the_policies_are_those_of_the_running_config():
    _, then = scenarios(question(), FILE)
    assert then.flow.lanes["llm-8b"] == FILE.flow_config().lanes["llm-8b"]
    assert then.fleet == FILE.fleet_config()


def test_a_child_says_what_the_simulator_says():
    now, then = scenarios(question(rate=2.0, output=10), FILE)
    told = asyncio.run(RehearsalRunner().run(now, then))
    (_, setup), *_ = prepare(now, 1).variants
    assert told["now"] == run_experiment(setup, 1)
    assert told["duration_s"] == then.duration


def test_only_one_runs_at_a_time():
    async def main():
        rehearsals = RehearsalRunner(limit_s=600.0)  # they give way to all that runs beside them
        now, then = scenarios(question(rate=2.0, output=10), FILE)
        first = asyncio.create_task(rehearsals.run(now, then))
        await asyncio.sleep(0)
        with pytest.raises(RehearsalBusyError):
            await rehearsals.run(now, then)
        await first
        assert (await rehearsals.run(now, then))["took_s"] > 0

    asyncio.run(main())


def test_one_that_takes_too_long_is_ended():
    async def main():
        rehearsals = RehearsalRunner(limit_s=0.3)
        began = time.monotonic()
        with pytest.raises(RehearsalError, match="not done after"):
            await rehearsals.run(*scenarios(question(rate=5000.0, replicas=256), FILE))
        assert time.monotonic() - began < 20
        with pytest.raises(RehearsalError):  # and the next may try
            await rehearsals.run(*scenarios(question(rate=5000.0), FILE))

    asyncio.run(main())


def test_a_child_that_fails_is_told_of():
    async def main():
        with pytest.raises(RehearsalError, match="failed"):
            await RehearsalRunner()._asked(b"no json")

    asyncio.run(main())


def test_the_child_reads_what_the_parent_writes():
    now, _ = scenarios(question(rate=1.0, output=5), FILE)
    assert rehearse(b'{"scenarios": [], "seeds": 1}') == b'{"accounts":[],"differences":[]}'
    assert b"goodput" in rehearse(b'{"scenarios": [%s], "seeds": 1}' % _quoted(now))


def _quoted(scenario):
    import orjson  # noqa: PLC0415

    return orjson.dumps(scenario.model_dump_json(by_alias=True))


def test_a_target_out_of_reach_is_an_answer_too():
    asked = question(zone_availability=0.9, target=0.9999)
    account = {"total": {}}
    told = answer(
        asked, {"now": account, "then": account, "duration_s": 1, "took_s": 1}, redundancy
    )
    assert told["plan"] is None
    assert told["plan_problem"]


def test_policies_and_faults_change_what_would_be_and_the_keys_are_named():
    asked = question(routing="round_robin", hedge=True, deadline_s=90.0, fault="hang", seeds=2)
    now, then = scenarios(asked, FILE)
    lane = then.flow.lanes["llm-8b"]
    assert (lane.routing, lane.deadlines.request_s) == ("round_robin", 90.0)
    assert then.flow.hedge.enabled
    assert now.flow == scenarios(question(), FILE)[0].flow
    # A change is judged in a fleet that has the fault before, too.
    assert [fault.kind for fault in now.faults] == [fault.kind for fault in then.faults] == ["hang"]
    keys = [one["key"] for one in asked.changes]
    assert keys == ["models.llm-8b.routing", "hedge.enabled", "models.llm-8b.deadlines.request_s"]
    alone, struck = scenarios(question(fault="hang"), FILE)
    assert (alone.faults, len(struck.faults)) == ([], 1)


def test_a_twin_brings_its_engine():
    engine = EngineParameters(step_ms=7.0)
    twin = new_twin_file({"llm-8b": TwinModel(engine=engine)}, "test")
    asked = question(twin=json.loads(twin.to_json()))
    assert asked.law.step_ms == 7.0
    assert asked.law.batch_max == asked.standing.slots


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"routing": "nope"}, "routing"),
        ({"hedge": "yes"}, "hedge"),
        ({"fault": "sing"}, "fault"),
        ({"seeds": 99}, "seeds"),
        ({"deadline_s": -1}, "deadline_s"),
        ({"twin": {"format": "x"}}, "twin"),
        ({"twin": [1]}, "twin"),
    ],
)
def test_a_bad_field_is_named(body, field):
    with pytest.raises(ConfigError) as refused:
        question(**body)
    assert refused.value.field == field


def test_several_runs_have_differences_with_intervals():
    now, then = scenarios(question(rate=1.0, output=5, traffic=2.0, seeds=2), FILE)
    asked = {"scenarios": [one.model_dump_json(by_alias=True) for one in (now, then)], "seeds": 2}
    told = json.loads(rehearse(json.dumps(asked).encode()))
    (slower,) = [one for one in told["differences"] if one["figure"] == "per_token_mean_s"]
    assert slower["change"]["low"] <= slower["change"]["mean"] <= slower["change"]["high"]
