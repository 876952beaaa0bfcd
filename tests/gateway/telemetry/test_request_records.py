from types import SimpleNamespace

from holdfast.core.messages import Finish
from holdfast.core.types import SECOND
from holdfast.gateway.telemetry import request_records as module
from holdfast.gateway.telemetry.request_records import RequestRecords

NOW = 20 * SECOND
PLAIN = ((10 * SECOND, "chosen", ""), (11 * SECOND, "answered", ""))
RETRIED = ((10 * SECOND, "chosen", ""), (11 * SECOND, "failed", ""), *PLAIN)


def proxied(name=b"req_1", *, arrived=10 * SECOND, escalated=False):
    """As much of an proxied as a story is made of."""
    return SimpleNamespace(
        request_id=name,
        request=SimpleNamespace(tenant="team", arrived=arrived),
        ask=SimpleNamespace(model="v", stream=True),
        escalated=escalated,
    )


def finish(status=200, story=PLAIN, **more):
    details = {"attempts": 1, "model": "m", "replica_id": "m-2", **more}
    return Finish(1, status, "", "said so", story=list(story), **details)


def known(stories, pattern, number):
    return [one for one in range(number) if stories.explain(pattern.format(one))]


def test_a_story_is_told_in_seconds_since_the_request_came():
    stories = RequestRecords()
    steps = [(10 * SECOND, "arrived", ""), (10 * SECOND + SECOND // 4, "chosen", "least load")]
    stories.add(proxied(), finish(story=steps, attempts=2, continued=1), NOW)
    told = stories.explain("req_1")
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
    stories = RequestRecords()
    assert stories.explain("req_1") is None
    assert stories.explain("") is None
    assert stories.explain("réq") is None
    assert len(stories) == 0


def test_the_oldest_goes_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(module, "_PLAIN_MAX", 3)
    stories = RequestRecords()
    for number in range(5):
        stories.add(proxied(b"req_%d" % number), finish(), NOW)
    assert known(stories, "req_{}", 5) == [2, 3, 4]
    assert len(stories) == 3


def test_of_plain_answers_a_few_are_kept_each_second(monkeypatch):
    monkeypatch.setattr(module, "_PLAIN_PER_S", 2)
    stories = RequestRecords()
    for number in range(8):  # four in one second, four in the next
        stories.add(proxied(b"req_%d" % number), finish(), NOW + number * SECOND // 4)
    assert known(stories, "req_{}", 8) == [0, 1, 4, 5]


def test_whatever_was_unusual_is_kept_under_any_load(monkeypatch):
    monkeypatch.setattr(module, "_PLAIN_PER_S", 2)
    monkeypatch.setattr(module, "_PLAIN_MAX", 3)
    monkeypatch.setattr(module, "_UNUSUAL_MAX", 4)
    stories = RequestRecords()
    for number in range(3):
        stories.add(proxied(b"bad_%d" % number), finish(status=503), NOW)
        stories.add(proxied(b"again_%d" % number), finish(story=RETRIED, attempts=2), NOW)
    for number in range(50):
        stories.add(proxied(b"req_%d" % number), finish(), NOW + number * SECOND)
    assert known(stories, "bad_{}", 3) == known(stories, "again_{}", 3) == [1, 2]
    assert stories.explain("bad_2")["status"] == 503
    assert len(stories) == 3 + 4


def test_a_request_that_escalated_has_one_story_of_both_answers():
    stories = RequestRecords()
    first, second = (10 * SECOND, "answered", "cheap"), (12 * SECOND, "answered", "strong")
    stories.add(proxied(), finish(story=[first], model="small"), NOW)
    again = proxied(arrived=11 * SECOND, escalated=True)
    stories.add(again, finish(story=[second], model="big"), NOW)
    told = stories.explain("req_1")
    assert told["served_by"] == "big"
    assert [(step["at_s"], step["detail"]) for step in told["story"]] == [
        (0.0, "cheap"),
        (2.0, "strong"),
    ]
    assert len(stories) == 1


def test_an_escalation_that_failed_tells_of_both_attempts():
    stories = RequestRecords()
    stories.add(proxied(), finish(story=[*RETRIED, (10 * SECOND, "answered", "cheap")]), NOW)
    failed = finish(status=504, story=[(11 * SECOND, "gave up", "")])
    stories.add(proxied(escalated=True), failed, NOW)
    told = stories.explain("req_1")
    assert told["status"] == 504
    assert [step["what"] for step in told["story"]][-2:] == ["answered", "gave up"]
    assert len(stories) == 1


def test_an_escalation_whose_beginning_was_not_kept_tells_the_rest():
    stories = RequestRecords()
    stories.add(proxied(escalated=True), finish(story=[(10 * SECOND, "answered", "strong")]), NOW)
    assert [step["detail"] for step in stories.explain("req_1")["story"]] == ["strong"]
