"""The demo that hung: a slow leak, then starvation, behind a health page that says 200.

The second seed's story. One of three replicas loses real memory, a megabyte a second; when it has
none left it accepts requests and schedules none of them, and nothing about it looks ill. Nobody
upstream has a timeout or a breaker. Here the leak has to be named and the replica restarted long
before that; and, as one that leaks too fast to be foreseen shows, nobody hangs where it is not.

Defaults only. The leak's trend needs four minutes of samples, which is why this is not in
``make test``; ``tests/sim/test_demo_story.py`` tells the same story in virtual time.
"""

import asyncio
import time

import pytest
import uvloop

REPLICAS = 3
RATE = 12.0  # requests a second
LIMIT = 640_000_000  # bytes: the declared limit of a replica's memory
SLOW = {"kind": "leak", "bytes_s": 1e6, "bytes_max": 520_000_000}  # starves after 8.7 minutes
FAST = {"kind": "leak", "bytes_s": 100e6, "bytes_max": 200_000_000}  # after two seconds
FOUND_WITHIN_S = 400.0
LONGEST_S = 30.0  # the longest that anybody may wait for an answer, of whatever kind


@pytest.fixture(scope="module")
def fleet(stories, tmp_path_factory):
    model = {
        "name": "m",
        "engine": "vllm",
        "launch": {
            "replicas": REPLICAS,
            "memory": {"limit": LIMIT},
            "command": stories.stand_in("--ttft-ms", "30", "--tpot-ms", "5", "--tokens", "20"),
        },
    }
    with stories.story(tmp_path_factory.mktemp("demo"), {"models": [model]}) as made:
        made.until(lambda: len(made.ready()) == REPLICAS, "every replica is ready")
        yield made


def told(stories, fleet, traffic, scene, record_property):
    """What clients noticed: an answer for each, and soon."""
    outcomes = traffic.outcomes()
    record_property(f"{scene}: requests", len(traffic.asked))
    record_property(f"{scene}: outcomes", dict(outcomes))
    record_property(f"{scene}: slowest, s", round(traffic.slowest_s, 2))
    assert stories.HANGS not in outcomes, fleet.said()
    assert traffic.slowest_s < LONGEST_S, fleet.said()
    return outcomes


def test_the_leak_is_named_and_its_replica_restarted_before_memory_is_gone(
    stories, fleet, record_property
):
    sick = sorted(fleet.rows())[1]
    before = fleet.rows()[sick]["pid"]

    def leak():
        return next((one for one in fleet.incidents() if one["cause"] == "leak"), None)

    def fresh():
        row = fleet.rows()[sick]
        return row["pid"] not in {None, before} and row["state"] == "ready"

    async def main():
        async with stories.Traffic(fleet, RATE) as traffic:
            await asyncio.sleep(15)  # what the first requests fill is no leak
            fleet.strike(sick, **SLOW)
            began = time.monotonic()
            what = "the leak is named"
            found = await asyncio.to_thread(fleet.until, leak, what, FOUND_WITHIN_S, 1.0)
            record_property("leak named after, s", round(time.monotonic() - began))
            held = await asyncio.to_thread(fleet.held_bytes, sick)
            record_property("leaked by then, MB", held // 1_000_000)
            assert held < SLOW["bytes_max"]
            await asyncio.to_thread(fleet.until, fresh, "it was restarted")
            record_property("restarted and ready after, s", round(time.monotonic() - began))
            await asyncio.sleep(5)
        return traffic, found

    traffic, found = uvloop.run(main())
    outcomes = told(stories, fleet, traffic, "slow leak", record_property)
    assert set(outcomes) == {"200"}, fleet.said()  # drained first, so nobody noticed a thing
    assert found["class"] == "runtime"
    assert found["about"]["replica"] == sick
    assert found["replicas"] == [sick]
    (only,) = fleet.incidents()
    assert only["id"] == found["id"]
    assert "restarted" in only["action"]
    assert "MB/min" in only["fix"]
    record_property("title", only["title"])
    record_property("evidence", only["evidence"][0]["text"])
    record_property("fix", only["fix"])
    record_property("action", only["action"])


def test_nobody_hangs_where_a_replica_starves_before_anybody_could_foresee_it(
    stories, fleet, record_property
):
    fleet.until(lambda: len(fleet.ready()) == REPLICAS, "every replica is ready")
    sick = sorted(fleet.rows())[2]
    before = fleet.rows()[sick]["pid"]
    known = {one["id"] for one in fleet.incidents()}

    def named():
        return next((one for one in fleet.incidents() if one["id"] not in known), None)

    def fresh():
        row = fleet.rows()[sick]
        return row["pid"] not in {None, before} and row["state"] == "ready"

    async def main():
        async with stories.Traffic(fleet, RATE) as traffic:
            await asyncio.sleep(10)
            fleet.strike(sick, **FAST)
            began = time.monotonic()
            await asyncio.to_thread(fleet.until, named, "an incident is opened")
            record_property("starvation named after, s", round(time.monotonic() - began))
            await asyncio.to_thread(fleet.until, fresh, "it was restarted")
            await asyncio.sleep(5)
        return traffic

    traffic = uvloop.run(main())
    told(stories, fleet, traffic, "starvation", record_property)
    (only,) = [one for one in fleet.incidents() if one["id"] not in known]
    assert only["replicas"] == [sick]
    assert only["class"] == "runtime"
    assert only["cause"] in {"starved", "hung"}  # the same, seen by two who ask different things
    record_property("cause", only["cause"])
