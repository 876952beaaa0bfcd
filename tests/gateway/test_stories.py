from types import SimpleNamespace

from holdfast.core.messages import Finish
from holdfast.core.types import SECOND
from holdfast.gateway import stories as module
from holdfast.gateway.stories import Stories


def inquiry(name=b"req_1", *, arrived=10 * SECOND, escalated=False):
    """As much of an inquiry as a story is made of."""
    return SimpleNamespace(
        request_id=name,
        request=SimpleNamespace(tenant="team", arrived=arrived),
        ask=SimpleNamespace(model="v", stream=True),
        escalated=escalated,
    )


def finish(status=200, story=(), **more):
    details = {"attempts": 1, "model": "m", "replica_id": "m-2", **more}
    return Finish(1, status, "", "said so", story=list(story), **details)


def test_a_story_is_told_in_seconds_since_the_request_came():
    stories = Stories()
    steps = [(10 * SECOND, "arrived", ""), (10 * SECOND + SECOND // 4, "chosen", "least load")]
    stories.add(inquiry(), finish(story=steps, attempts=2, continued=1))
    told = stories.tell("req_1")
    assert told == {
        "request_id": "req_1",
        "asked_for": "v",
        "served_by": "m",
        "tenant": "team",
        "streamed": True,
        "replica": "m-2",
        "status": 200,
        "code": "",
        "reason": "said so",
        "attempts": 2,
        "continued": 1,
        "story": [
            {"at_s": 0.0, "what": "arrived", "detail": ""},
            {"at_s": 0.25, "what": "chosen", "detail": "least load"},
        ],
    }


def test_what_was_never_heard_of_has_no_story():
    stories = Stories()
    assert stories.tell("req_1") is None
    assert stories.tell("") is None
    assert stories.tell("\ud800é".encode("utf-8", "replace").decode()) is None
    assert len(stories) == 0


def test_the_oldest_goes_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(module, "_KEPT_MAX", 3)
    stories = Stories()
    for number in range(5):
        stories.add(inquiry(b"req_%d" % number), finish())
    assert [number for number in range(5) if stories.tell(f"req_{number}")] == [2, 3, 4]
    assert len(stories) == 3


def test_ordinary_traffic_does_not_wash_away_errors(monkeypatch):
    monkeypatch.setattr(module, "_KEPT_MAX", 3)
    monkeypatch.setattr(module, "_ERRORS_MAX", 2)
    stories = Stories()
    for number in range(3):
        stories.add(inquiry(b"bad_%d" % number), finish(status=503))
    for number in range(50):
        stories.add(inquiry(b"req_%d" % number), finish())
    assert [number for number in range(3) if stories.tell(f"bad_{number}")] == [1, 2]
    assert stories.tell("bad_2")["status"] == 503
    assert len(stories) == 5


def test_a_request_that_escalated_has_one_story_of_both_answers():
    stories = Stories()
    first, second = (10 * SECOND, "answered", "cheap"), (12 * SECOND, "answered", "strong")
    stories.add(inquiry(), finish(story=[first], model="small"))
    again = inquiry(arrived=11 * SECOND, escalated=True)
    stories.add(again, finish(story=[second], model="big"))
    told = stories.tell("req_1")
    assert told["served_by"] == "big"
    assert [(step["at_s"], step["detail"]) for step in told["story"]] == [
        (0.0, "cheap"),
        (2.0, "strong"),
    ]
    assert len(stories) == 1


def test_an_escalation_that_failed_is_kept_with_the_errors():
    stories = Stories()
    stories.add(inquiry(), finish(story=[(10 * SECOND, "answered", "cheap")]))
    failed = finish(status=504, story=[(11 * SECOND, "gave up", "")])
    stories.add(inquiry(escalated=True), failed)
    told = stories.tell("req_1")
    assert told["status"] == 504
    assert [step["what"] for step in told["story"]] == ["answered", "gave up"]


def test_an_escalation_whose_beginning_was_forgotten_tells_the_rest():
    stories = Stories()
    stories.add(inquiry(escalated=True), finish(story=[(10 * SECOND, "answered", "strong")]))
    assert [step["detail"] for step in stories.tell("req_1")["story"]] == ["strong"]
