"""``bench/twin_story.py``: who served a block, and what is kept of what the fleet says of it."""

import json

import pytest

from holdfast.loadtest.records import BenchRecord


@pytest.fixture
def story(bench):
    return bench("twin_story")


def record(replica, first_s=None, arrived_s=1.0):
    return BenchRecord(step=0, arrived_s=arrived_s, first_s=first_s, replica=replica)


BLOCK = (
    record("b", 1.5),
    record("a", 1.1),
    record("b", 3.25, arrived_s=2.0),
    record("b"),
    record(None),
)


def test_each_replica_has_its_requests_and_its_slowest_first_token(story):
    found = story.parts(BLOCK)
    assert list(found) == ["a", "b"]
    assert found["b"] == story.ReplicaPart(3, 1.25)
    assert (
        story.parts_line(found)
        == "a 1 (first token at most 0.10 s), b 3 (first token at most 1.25 s)"
    )
    assert story.largest_share(BLOCK) == 0.75


def test_a_block_that_nobody_served_has_no_share(story):
    assert story.largest_share([record(None)]) is None
    assert story.parts_line(story.parts([record(None)])) == "nobody"
    assert "a 1 (no first token)" in story.parts_line(story.parts([record("a")]))


def test_stories_are_spread_over_a_block_and_forgotten_ones_are_left_out(
    story, tmp_path, monkeypatch
):
    asked = []

    def call(url, timeout_s=5.0):
        asked.append(url)
        if url.endswith("/req-100"):
            raise OSError("404")
        return {"url": url}

    monkeypatch.setattr(story, "call", call)
    path = tmp_path / "told.json"
    story.keep_block(path, "http://admin", [f"req-{number}" for number in range(200)])
    kept = json.loads(path.read_text())
    assert kept["status"] == {"url": "http://admin/status"}
    assert len(kept["stories"]) == story.STORIES - 1
    assert asked[1] == "http://admin/explain/req-0"
    assert asked[-1] == "http://admin/explain/req-195"


def test_a_fleet_that_does_not_answer_costs_no_block(story, tmp_path, monkeypatch):
    def call(url, timeout_s=5.0):
        if "incidents" in url:
            return {"incidents": [{"id": "inc-1"}]}
        raise TimeoutError("busy")

    monkeypatch.setattr(story, "call", call)
    story.keep_block(tmp_path / "told.json", "http://admin", ["req-1"])
    assert json.loads((tmp_path / "told.json").read_text()) == {
        "status": {"error": "busy"},
        "stories": [],
    }
    story.keep_events(tmp_path / "events.json", "http://admin")
    assert json.loads((tmp_path / "events.json").read_text()) == {
        "events": "not read: busy",
        "incidents": [{"id": "inc-1"}],
    }
