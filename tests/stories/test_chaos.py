"""A game day on real processes: faults come through a proxy and by signals, clients notice none of
it, each fault is named, and afterwards the fleet is as it was.

One ``serve`` launches four stand-ins; the tests share it and go over it in the order in which they
stand here.
"""

import asyncio
import importlib
import json
import time
from random import Random

import pytest
from click.testing import CliRunner

from holdfast.chaos.gameday import GameDay
from holdfast.chaos.target import ChaosError, ChaosTarget
from holdfast.cli import main
from holdfast.config.chaos import PlanFile

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def fleet(stories):
    """Four stand-ins that Holdfast launched."""
    stage = importlib.import_module("gauntlet_fleet")
    with stage.launched(Random(7), {}) as running:
        yield running


def play(fleet, *steps, **more):
    plan = {"traffic": {"rate": 40.0, "tokens": 8, "late": 5.0}, "settle": 1.0, **more}
    whole = PlanFile.model_validate({**plan, "steps": list(steps)})
    day = GameDay(ChaosTarget(fleet.admin, fleet.token), fleet.url, whole, lambda _: None)
    return asyncio.run(day.run())


def until(true):
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def all_ready(fleet):
    rows = fleet.rows().values()
    return len(rows) == 4 and all(row["state"] == "ready" for row in rows)


def test_a_hang_behind_a_green_page_harms_nobody_and_is_named(fleet):
    # Four seconds teach gateways how long a first token takes. Then there is room for three
    # canaries: each waits five seconds and more, and the first may have met tokens that moved.
    record = play(fleet, {"at": 4.0, "fault": "hang", "replica": "m-2", "for": 20.0})
    assert [one.problem for one in record.struck] == [""]
    assert record.harmed_share <= 0.02, record.harmed
    assert len(record.asked) > 50
    named = [one for one in record.incidents if "m-2" in one["replicas"]]
    assert [one["cause"] for one in named] == ["hung"]
    assert all(set(one["replicas"]) == {"m-2"} for one in record.incidents)
    until(lambda: all_ready(fleet))


def test_whatever_was_disturbed_is_as_it_was(fleet):
    status = json.loads(
        CliRunner().invoke(main, ["status", "--json", "--admin", fleet.admin]).output
    )
    assert status["disturbed"] == {}


def test_a_stopped_process_goes_on_or_is_replaced(fleet):
    record = play(fleet, {"at": 1.0, "fault": "stop", "replica": "m-3", "for": 3.0})
    assert record.harmed_share <= 0.02, record.harmed
    named = [one for one in record.incidents if "m-3" in one["replicas"]]
    assert [one["cause"] for one in named] == ["frozen"]
    until(lambda: all_ready(fleet))


def test_another_version_is_found_while_it_lasts(fleet):
    record = play(fleet, {"fault": "skew", "replica": "m-1", "for": 8.0}, traffic=None)
    assert "version_skew" in [one["cause"] for one in record.incidents]


def test_a_replica_that_is_not_there_is_a_problem_of_the_step(fleet):
    record = play(fleet, {"fault": "hang", "replica": "m-9", "for": 1.0}, traffic=None)
    assert "no replica is called 'm-9'" in record.struck[0].problem
    assert not record.held


def test_an_incident_is_told_exported_and_replayed_to_the_same_verdict(fleet, tmp_path):
    run = CliRunner().invoke
    listed = json.loads(run(main, ["incidents", "--all", "--json", "--admin", fleet.admin]).output)
    hung = next(one for one in listed["incidents"] if one["cause"] == "hung")
    told = run(main, ["explain", hung["id"], "--admin", fleet.admin]).output
    assert "how we know" in told
    path = tmp_path / "incident.jsonl"
    run(main, ["incidents", "--admin", fleet.admin, "export", hung["id"], "-o", str(path)])
    replayed = run(main, ["simulate", "--replay", str(path)])
    assert replayed.exit_code == 0, replayed.output
    assert "the same verdict" in replayed.output


def test_a_fleet_elsewhere_is_not_hurt_without_a_word(fleet):
    target = ChaosTarget("http://fleet.example:8001")
    assert not target.local
    with pytest.raises(ChaosError):
        asyncio.run(target.check("m-1"))
