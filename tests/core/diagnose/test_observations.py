import pytest

from holdfast.core.canary import CanarySuspect, CanaryVerdict
from holdfast.core.diagnose import observations
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanariesDoubted,
    CanaryAnswered,
    ChainDeclared,
    Compared,
    Declared,
    Gone,
    LineSeen,
    Looked,
    Mark,
    MemorySeen,
    ProcessEnded,
    RequestDied,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.observations import HELD, Observations
from holdfast.core.failure import Kind
from holdfast.core.messages import CanaryResult, Notice, Report, Seen, Summary, Tally
from holdfast.core.types import SECOND, State

ADDRESSES = {"10.0.0.1:8000": "m-1", "10.0.0.2:8000": "m-2", "h": "n-1"}


class Stage:
    def __init__(self):
        self.facts = []
        self.books = Observations(self.facts.append)
        self.books.declare(declared("m-1", "m-2", "n-1"), ADDRESSES)
        self.facts.clear()
        self.now = 0

    def tell(self, *tallies, gateway="g-0", **more):
        self.books.seen(Seen((Summary(tallies),), gateway), **more)

    def round(self, after=SECOND):
        """The facts of one more round, without the sign that it is over."""
        self.facts.clear()
        self.now += after
        self.books.round(self.now)
        assert self.facts[-1] == Looked()
        return self.facts[:-1]


def declared(*names):
    return {name: Declared(name, name[0]) for name in names}


def tally(name="m-1", successes=0, failures=0, backpressure=0, inflight=0, tokens=0, **more):
    return Tally(name[0], name, successes, failures, backpressure, inflight, tokens, **more)


@pytest.fixture
def stage():
    found = Stage()
    found.round()
    found.facts.clear()
    return found


# --- who there is --------------------------------------------------------------------------------


def test_only_what_is_new_changed_or_gone_is_declared(stage):
    books = stage.books
    changed = declared("m-1", "m-3") | {"n-1": Declared("n-1", "n", revision="2")}
    chains = [ChainDeclared("rag", ("n", "m"))]
    books.declare(changed, {}, chains)
    assert stage.facts == [Gone("m-2"), changed["m-3"], changed["n-1"], chains[0]]
    stage.facts.clear()
    books.declare(changed, {}, chains)
    assert stage.facts == []
    assert books.again() == [changed["m-1"], changed["n-1"], changed["m-3"], chains[0]]


def test_what_still_holds_is_told_to_whoever_begins_anew(stage):
    for what in ("warming", "ready"):
        stage.books.notice(Notice(0, "m", "m-1", what, "x", signal="loaded"))
    stage.books.saw(VersionsSeen("m-2", engine="1"), 0)
    stage.books.declare(declared("m-1", "n-1"), ADDRESSES)
    lasting = stage.books.again()[2:]
    assert lasting == [StateChanged("m-1", State.READY, "loaded", "x")]


def test_versions_of_two_sources_are_held_together_for_one_process(stage):
    books = stage.books
    books.saw(VersionsSeen("m-1", cuda="11.8", image="e:1"), 0)
    books.saw(VersionsSeen("m-1", engine="0.9"), 0)
    books.saw(VersionsSeen("m-1", cuda="12.1"), 0)
    assert stage.facts[-2:] == [
        VersionsSeen("m-1", "11.8", engine="0.9", image="e:1"),
        VersionsSeen("m-1", "12.1", engine="0.9", image="e:1"),
    ]
    books.saw(VersionsSeen("m-1"), 0)  # whoever knows nothing takes it all back
    books.saw(VersionsSeen("m-1", engine="0.9"), 0)
    assert stage.facts[-2:] == [VersionsSeen("m-1"), VersionsSeen("m-1", engine="0.9")]
    books.saw(ProcessEnded("m-1", asked=True), 0)
    books.saw(VersionsSeen("m-1", cuda="12.4"), 0)
    assert stage.facts[-1] == VersionsSeen("m-1", "12.4")


def test_of_who_is_gone_nothing_is_told_any_more(stage):
    stage.tell(tally("m-1", successes=1, inflight=2))
    stage.books.declare(declared("m-2"), {})
    stage.tell(tally("m-1", successes=1))
    assert stage.round() == []


# --- what gateways tell --------------------------------------------------------------------------


def test_gateways_are_added_up_with_the_share_of_the_model(stage):
    kinds = {Kind.RESET: 2, Kind.SERVER_ERROR: 1}
    stage.tell(tally(successes=3, failures=3, inflight=2, tokens=50, kinds=kinds, fast=1))
    stage.tell(tally(successes=1, backpressure=1, inflight=4, kinds={}), gateway="g-1")
    stage.tell(tally("m-2", successes=8), tally("n-1", successes=5), gateway="g-1")
    found = {fact.replica: fact for fact in stage.round(2 * SECOND)}
    assert found["m-1"] == AttemptsSeen("m-1", 2.0, 4, 1, 6, 50, kinds, 1, 0.5)
    assert found["m-2"].share == 0.5
    assert found["n-1"].share == 1.0


def test_requests_in_flight_are_told_until_they_are_done_or_their_gateway_is_gone(stage):
    stage.tell(tally(inflight=2))
    stage.tell(tally(inflight=3), gateway="g-1")
    assert [fact.inflight for fact in stage.round()] == [5]
    assert [fact.inflight for fact in stage.round()] == [5]
    stage.books.gateway_gone("g-1")
    assert [fact.inflight for fact in stage.round()] == [2]
    stage.tell(tally(inflight=0, successes=2))
    assert [fact.successes for fact in stage.round()] == [2]
    assert stage.round() == []


def test_deaths_and_comparisons_are_passed_on_at_once_and_bounded(stage, monkeypatch):
    monkeypatch.setattr(observations, "PER_FRAME_MAX", 2)
    died = [("m-1", "f" * 99), ("gone", "f"), ("m-2", "late")]
    stage.tell(died=died, compared=[("m-1", "m-2", False), ("m-1", "gone", True)])
    stage.books.seen(Seen((Report("m", "m-1", "open", "x"),), "g-0"))
    assert stage.facts == [RequestDied("m-1", "f" * 64), Compared("m-1", "m-2", False)]
    stage.tell(died=[("m-1", "f"), ("m-2", "g")], died_ago_s=[2.5])  # the second: not said
    assert stage.facts[2:] == [RequestDied("m-1", "f", 2.5), RequestDied("m-2", "g", 0.0)]


# --- ends ----------------------------------------------------------------------------------------


def test_the_end_of_one_that_has_served_is_told_at_once_and_begins_a_new_life(stage):
    stage.tell(tally(successes=3, inflight=1))
    stage.round()
    stage.tell(tally(failures=1, inflight=0))
    stage.books.saw(ProcessEnded("m-1", 137, phase="serving"), stage.now)
    assert stage.facts[-1] == ProcessEnded("m-1", 137, phase="serving", served=4)
    stage.round()
    stage.books.saw(MemorySeen("m-1", 5), stage.now)
    assert stage.facts[-1].requests == 0


def test_the_end_of_one_that_seems_unused_waits_for_the_gateways_word(stage):
    books = stage.books
    books.saw(ProcessEnded("m-1", 137, phase="serving"), stage.now)
    books.notice(Notice(0, "m", "m-1", "dead", "it exited", signal="exited"))
    books.notice(Notice(0, "m", "m-2", "ready", "x", signal="passed_enough"))
    assert [fact.replica for fact in stage.facts] == ["m-2"]
    stage.tell(tally(failures=1, kinds={Kind.RESET: 1}))
    first = stage.round()
    assert [type(fact) for fact in first] == [AttemptsSeen]
    then = stage.round(HELD)
    assert then == [
        ProcessEnded("m-1", 137, phase="serving", served=1),
        StateChanged("m-1", State.DEAD, "exited", "it exited"),
    ]


@pytest.mark.parametrize(
    "end",
    [
        ProcessEnded("m-1", 1, phase="loading"),
        ProcessEnded("m-1", 0, phase="serving", asked=True),
    ],
)
def test_an_end_that_no_request_explains_does_not_wait(stage, end):
    stage.books.saw(end, stage.now)
    assert [type(fact) for fact in stage.facts] == [ProcessEnded]
    assert stage.facts[0].served == 0


def test_an_end_that_waits_is_told_before_the_next_end_and_before_it_is_gone(stage):
    end = ProcessEnded("m-1", 1, phase="serving")
    stage.books.saw(end, stage.now)
    stage.books.saw(end, stage.now)
    assert len(stage.facts) == 1
    stage.books.declare({}, {})
    assert [type(fact) for fact in stage.facts[:3]] == [ProcessEnded, ProcessEnded, Gone]


def test_what_waits_behind_an_end_is_bounded(stage, monkeypatch):
    monkeypatch.setattr(observations, "HELD_MAX", 3)
    stage.books.saw(ProcessEnded("m-1", 1, phase="serving"), stage.now)
    for _ in range(9):
        stage.books.notice(Notice(0, "m", "m-1", "starting", "x", signal="relaunch"))
    assert len(stage.round(HELD)) == 3


# --- the rest ------------------------------------------------------------------------------------


def test_a_line_is_not_repeated_within_a_second_and_names_its_peer(stage):
    line = LineSeen("m-1", Mark.TRANSFER_FAILED, "10.0.0.2:8000")
    for now in (0, SECOND // 2, SECOND, SECOND + 1):
        stage.books.saw(line, now)
    stage.books.saw(LineSeen("m-1", Mark.WATCHDOG), SECOND)
    stage.books.saw(LineSeen("m-2", Mark.TRANSFER_FAILED, "10.9.9.9:1"), SECOND)
    assert stage.facts == [
        LineSeen("m-1", Mark.TRANSFER_FAILED, "m-2"),
        LineSeen("m-1", Mark.TRANSFER_FAILED, "m-2"),
        LineSeen("m-1", Mark.WATCHDOG),
        LineSeen("m-2", Mark.TRANSFER_FAILED, "10.9.9.9:1"),
    ]


def test_notices_without_a_change_of_state_are_for_people_only(stage):
    for notice in (
        Notice(0, "m", "m-1", "verdict held", "x"),
        Notice(0, "m", "other", "ready", "x", signal="passed_enough"),
        Notice(0, "m", "", "for people", "all fail", canaries=CanarySuspect.CHECKER),
        Notice(0, "m", "", "for people", "all are silent", canaries=CanarySuspect.SHARED),
        Notice(0, "m", "", "for people", "users fail, too", canaries=CanarySuspect.REPLICAS),
        Notice(0, "m", "", "for people", "one passes", canaries=CanarySuspect.NOBODY),
    ):
        stage.books.notice(notice)
    assert stage.facts == [
        CanariesDoubted.by(CanarySuspect.CHECKER, "m", "all fail"),
        CanariesDoubted.by(CanarySuspect.SHARED, "m", "all are silent"),
        CanariesDoubted.by(CanarySuspect.REPLICAS, "m", "users fail, too"),
    ]


def test_a_canary_is_told_with_what_the_fleet_made_of_it(stage):
    passed = CanaryResult("m-1", CanaryVerdict.PASS, 50_000_000, page_ok=True, status=200)
    stage.books.canary(passed, slow=True, inflight=2)
    silent = CanaryResult(
        "m-1", CanaryVerdict.TIMEOUT, SECOND, running=3, progress=False, page_ok=True
    )
    stage.books.canary(silent, slow=True, inflight=2)
    stage.books.canary(CanaryResult("gone", CanaryVerdict.PASS), slow=False, inflight=0)
    for verdict in CanaryVerdict:  # rows of canaries count time: extra ones are none of them
        extra = CanaryResult("m-1", verdict, SECOND, extra=True)
        stage.books.canary(extra, slow=False, inflight=0)
    assert stage.facts == [
        CanaryAnswered("m-1", CanaryVerdict.SLOW, 0.05, 2, None, True, 200),
        CanaryAnswered("m-1", CanaryVerdict.TIMEOUT, 1.0, 3, False, True, None),
    ]
