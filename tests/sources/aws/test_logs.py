import json

import pytest
from aws_caller import Clock, FakeCaller, unreachable

from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.errors import CallError, CallFailure
from holdfast.sources.aws.logs import LogFollower, LogStream

GROUP = "/ecs/fleet"


class Pipe:
    """Streams with lines, answering as CloudWatch Logs does."""

    def __init__(self, clock):
        self.clock = clock
        self.lines = {}
        self.page = 10_000
        self.most_names = 0

    def say(self, stream, ago_s, line="hello", delay_s=1.0):
        text = line if isinstance(line, str) else json.dumps(line)
        at = int((self.clock.now - ago_s) * 1_000)
        event = {
            "logStreamName": stream,
            "timestamp": at,
            "ingestionTime": at + int(delay_s * 1_000),
            "message": text,
        }
        self.lines.setdefault(stream, []).append(event)

    def caller(self):
        return FakeCaller(filter_log_events=self.search, get_log_events=self.tail)

    def search(self, logGroupName, logStreamNames, startTime, nextToken=0, **_):  # noqa: N803
        self.most_names = max(self.most_names, len(logStreamNames))
        if logGroupName != GROUP:
            raise CallError(
                "failed: The specified log group does not exist.",
                CallFailure.MISSING,
                log_group_missing=True,
            )
        if not set(logStreamNames) <= self.lines.keys():
            raise CallError("failed: The specified log stream does not exist.", CallFailure.MISSING)
        found = [
            event
            for name in logStreamNames
            for event in self.lines[name]
            if event["timestamp"] >= startTime
        ]
        found.sort(key=lambda event: event["timestamp"], reverse=True)
        page = {"events": found[nextToken : nextToken + self.page]}
        if nextToken + self.page < len(found):
            page["nextToken"] = nextToken + self.page
        return page

    def tail(self, logGroupName, logStreamName, limit, startFromHead):  # noqa: N803
        assert startFromHead is False
        if logStreamName not in self.lines:
            raise CallError("failed: The specified log stream does not exist.", CallFailure.MISSING)
        newest = sorted(self.lines[logStreamName], key=lambda event: event["timestamp"])
        return {"events": newest[-limit:]}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pipe(clock):
    return Pipe(clock)


def streams(*names, **told):
    return [LogStream(GROUP, name, **told) for name in names]


def logs(clock, **settings):
    return LogFollower(AwsConfig(**settings), clock)


def test_a_hundred_streams_are_searched_at_once(clock, pipe):
    names = [f"s{n}" for n in range(200)]
    for name in names:
        pipe.say(name, 5, {"phase": "heartbeat"})
    follower = logs(clock)
    caller = pipe.caller()
    heard = follower.read(caller, streams(*names))
    assert caller.count("filter_log_events") == len(caller.asked) == 2
    assert pipe.most_names == 100
    assert len(heard) == 200
    assert {words.phase for words in heard.values()} == {"serving"}


def test_a_second_search_asks_only_for_what_is_new_with_an_overlap(clock, pipe):
    pipe.say("a", 5)
    follower = logs(clock, log_overlap_s=30.0, log_lookback_s=3_000.0)
    follower.read(pipe.caller(), streams("a"))
    clock.now += 15
    caller = pipe.caller()
    follower.read(caller, streams("a"))
    (first, arguments), *_ = caller.asked
    assert first == "filter_log_events"
    assert arguments["startTime"] == int((clock.now - 15 - 30) * 1_000)
    assert arguments["startFromHead"] is False


def test_only_a_new_stream_is_searched_far_back(clock, pipe):
    pipe.say("a", 5)
    pipe.say("b", 2_000, {"phase": "loading"})
    follower = logs(clock)
    follower.read(pipe.caller(), streams("a"))
    clock.now += 15
    caller = pipe.caller()
    heard = follower.read(caller, streams("a", "b"))
    searched = {
        tuple(arguments["logStreamNames"]): arguments["startTime"]
        for name, arguments in caller.asked
        if name == "filter_log_events"
    }
    assert searched[("a",)] == int((clock.now - 15 - 120) * 1_000)
    assert searched[("b",)] == int((clock.now - 3_600) * 1_000)
    assert heard[LogStream(GROUP, "b")].phase == "loading"


def test_the_delay_of_the_pipe_is_not_held_against_a_replica(clock, pipe):
    for name in ("a", "b", "c"):
        pipe.say(name, 50, delay_s=45.0)
    heard = logs(clock).read(pipe.caller(), streams("a", "b", "c"))
    silences = {round(clock.now - words.spoke_at) for words in heard.values()}
    assert silences == {5}


def test_a_line_that_was_written_late_excuses_no_silence(clock, pipe):
    for name in ("a", "b", "c"):
        pipe.say(name, 5, delay_s=2.0)
    pipe.say("dead", 870, delay_s=860.0)
    heard = logs(clock).read(pipe.caller(), streams("a", "b", "c", "dead"))
    assert clock.now - heard[LogStream(GROUP, "dead")].spoke_at == pytest.approx(868)


def test_the_delay_has_a_bound(clock, pipe):
    pipe.say("only", 870, delay_s=860.0)
    heard = logs(clock, log_delay_max_s=120.0).read(pipe.caller(), streams("only"))
    assert clock.now - heard[LogStream(GROUP, "only")].spoke_at == pytest.approx(750)


def test_the_phase_is_that_of_the_last_line_that_tells_one(clock, pipe):
    pipe.say("a", 9, {"phase": "loaded"})
    pipe.say("a", 8, {"phase": "request", "rss_bytes": 5_000, "read_bytes": 12})
    pipe.say("a", 7, {"level": "info"})
    pipe.say("a", 6, "GET /health 200")
    pipe.say("a", 5, "{not json")
    words = logs(clock).read(pipe.caller(), streams("a"))[LogStream(GROUP, "a")]
    assert (words.phase, words.used_bytes, words.read_bytes) == ("request", 5_000, 12)
    assert words.at == pytest.approx(clock.now - 5)


@pytest.mark.parametrize(
    "line",
    [{"phase": 7}, {"phase": "x" * 99}, {"phase": ["loaded"]}, "[1]", '{"a":' + "1" * 70_000 + "}"],
)
def test_lines_of_other_shapes_tell_no_phase(clock, pipe, line):
    pipe.say("a", 5, line)
    assert logs(clock).read(pipe.caller(), streams("a"))[LogStream(GROUP, "a")].phase == ""


def test_numbers_out_of_bounds_are_not_believed(clock, pipe):
    pipe.say("a", 5, {"phase": "heartbeat", "rss_bytes": -1, "read_bytes": "many"})
    words = logs(clock).read(pipe.caller(), streams("a"))[LogStream(GROUP, "a")]
    assert (words.used_bytes, words.read_bytes) == (None, None)


def test_a_silent_stream_is_asked_by_itself_and_not_again_at_once(clock, pipe):
    pipe.say("quiet", 7_200, {"phase": "loading"})  # before what the search looks back to
    pipe.say("alive", 1)
    follower = logs(clock)
    caller = pipe.caller()
    heard = follower.read(caller, streams("quiet", "alive"))
    assert heard[LogStream(GROUP, "quiet")].at == pytest.approx(clock.now - 7_200)
    assert caller.count("get_log_events") == 1
    clock.now += 15
    pipe.say("alive", 1)
    caller = pipe.caller()
    follower.read(caller, streams("quiet", "alive"))
    assert caller.count("get_log_events") == 0
    clock.now += 60
    pipe.say("alive", 1)
    caller = pipe.caller()
    follower.read(caller, streams("quiet", "alive"))
    assert caller.count("get_log_events") == 1


def test_a_line_that_arrives_too_late_for_the_search_is_found_by_the_tail(clock, pipe):
    pipe.say("a", 5)
    follower = logs(clock, log_overlap_s=10.0)
    follower.read(pipe.caller(), streams("a"))
    clock.now += 100
    follower.read(pipe.caller(), streams("a"))
    clock.now += 100
    pipe.say("a", 150, delay_s=149.0)
    heard = follower.read(pipe.caller(), streams("a"))
    assert heard[LogStream(GROUP, "a")].at == pytest.approx(clock.now - 150)


def test_many_silent_streams_wait_their_turn(clock, pipe):
    names = [f"s{n}" for n in range(25)]
    for name in names:
        pipe.say(name, 7_200)
    follower = logs(clock, log_tails_each=10)
    known = []
    for _ in range(3):
        caller = pipe.caller()
        known.append(len(follower.read(caller, streams(*names))))
        assert caller.count("get_log_events") <= 10
        clock.now += 15
    assert known == [10, 20, 25]


def test_a_chatty_stream_cannot_hide_the_others_for_ever(clock, pipe):
    pipe.page = 10
    for number in range(100):
        pipe.say("loud", number * 0.1)
    pipe.say("soft", 30, {"phase": "loaded"})
    caller = pipe.caller()
    heard = logs(clock, log_pages_max=3).read(caller, streams("loud", "soft"))
    assert caller.count("filter_log_events") == 3
    assert heard[LogStream(GROUP, "soft")].phase == "loaded"  # asked by itself


def test_paging_stops_once_every_stream_was_heard(clock, pipe):
    pipe.page = 10
    for number in range(50):
        pipe.say("a", number)
        pipe.say("b", number)
    caller = pipe.caller()
    logs(clock).read(caller, streams("a", "b"))
    assert len(caller.asked) == 1


def test_a_stream_that_does_not_exist_yet_does_not_hide_the_rest(clock, pipe):
    names = [f"s{n}" for n in range(64)]
    for name in names[1:]:
        pipe.say(name, 5)
    follower = logs(clock)
    caller = pipe.caller()
    heard = follower.read(caller, streams(*names))
    assert len(heard) == 63
    assert caller.count("filter_log_events") == 13  # 1 + 2 for each of six halvings
    clock.now += 15
    caller = pipe.caller()
    follower.read(caller, streams(*names))
    assert len(caller.asked) == 1  # the missing one is left alone for a while
    clock.now += 60
    for name in names:
        pipe.say(name, 5)
    assert len(follower.read(pipe.caller(), streams(*names))) == 64


def test_many_missing_streams_cost_a_bounded_number_of_searches(clock, pipe):
    names = [f"s{n}" for n in range(100)]
    for name in names[::2]:
        pipe.say(name, 5)
    caller = pipe.caller()
    logs(clock).read(caller, streams(*names))
    assert caller.count("filter_log_events") <= 17
    assert any("several streams are missing" in note for note in caller.notes)


def test_a_missing_group_is_noted_and_not_halved(clock, pipe):
    caller = pipe.caller()
    heard = logs(clock).read(caller, [LogStream("/gone", f"s{n}") for n in range(50)])
    assert heard == {}
    assert caller.count("filter_log_events") == 1
    assert caller.notes == ["logs: /gone: failed: The specified log group does not exist."]


def test_the_last_words_of_an_ended_task_are_read_once(clock, pipe):
    pipe.say("a", 5, {"phase": "loaded"})
    follower = logs(clock)
    follower.read(pipe.caller(), streams("a"))
    pipe.say("a", 1, {"phase": "request"})
    caller = pipe.caller()
    heard = follower.read(caller, streams("a", ended=True))
    assert heard[LogStream(GROUP, "a", ended=True)].phase == "request"
    assert [name for name, _ in caller.asked] == ["get_log_events"]
    caller = pipe.caller()
    assert follower.read(caller, streams("a", ended=True)) == heard
    assert caller.asked == []


def test_an_ended_task_that_never_spoke_is_asked_once(clock, pipe):
    follower = logs(clock)
    caller = pipe.caller()
    assert follower.read(caller, streams("a", ended=True)) == {}
    assert len(caller.asked) == 1
    caller = pipe.caller()
    follower.read(caller, streams("a", ended=True))
    assert caller.asked == []


def test_what_is_no_longer_wanted_is_forgotten(clock, pipe):
    pipe.say("a", 5)
    follower = logs(clock)
    follower.read(pipe.caller(), streams("a"))
    assert follower.read(pipe.caller(), []) == {}
    assert follower._searched_at == follower._delay_s == follower._followed == {}


def test_a_failure_of_another_kind_travels(clock, pipe):
    caller = pipe.caller()
    caller.answers["filter_log_events"] = unreachable
    with pytest.raises(CallError):
        logs(clock).read(caller, streams("a"))
    pipe.say("b", 9_999)
    caller = pipe.caller()
    caller.answers["get_log_events"] = unreachable
    with pytest.raises(CallError):
        logs(clock).read(caller, streams("b"))
