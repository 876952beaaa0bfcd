"""The whole pipeline: one replica of four fails, and the cause is named from little evidence."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.drift.detector import DriftConfig
from holdfast.core.diagnose.diagnosis import Changed, Closed, Opened
from holdfast.core.diagnose.evidence import INCIDENTS_MAX, Incident, Remedy, Sign, Stage
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Compared,
    Declared,
    Fact,
    Gone,
    GpuFault,
    HostConditionSeen,
    HostSeen,
    LineSeen,
    LoadSeen,
    Looked,
    Mark,
    OutputSeen,
    ProcessEnded,
    ProcessFrozen,
    QueueSeen,
    RequestDied,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.investigation import (
    CallCanaries,
    Finding,
    Investigation,
    InvestigationConfig,
)
from holdfast.core.diagnose.remedy_policy import Act
from holdfast.core.failure import Cause, Kind
from holdfast.core.types import SECOND, HostCondition, State, nanos
from sampling import examples

ONSET = 70  # seconds: everybody has served for a minute
NAMES = ("r1", "r2", "r3", "r4")


class Fleet:
    """Four replicas of one model that live one second at a time."""

    def __init__(self, *, managed: bool = True, **config: Any) -> None:
        self.investigation = Investigation(InvestigationConfig(**config))
        self.managed = managed
        self.now = 0
        self.generated = dict.fromkeys(NAMES, 0)
        self.findings: list[Finding] = []
        self.out: set[str] = set()
        for name in NAMES:
            self.say(Declared(name, "m", "1", host=f"h-{name}", managed=managed))
            self.say(StateChanged(name, State.READY, "passed_enough"))

    def say(self, fact: Fact) -> None:
        self.findings += self.investigation.take(fact, nanos(self.now))

    def healthy(self, name: str) -> None:
        self.generated[name] += 250
        self.say(AttemptsSeen(name, 1.0, successes=10, inflight=5, tokens=250, share=0.25))
        self.say(LoadSeen(name, running=5, waiting=0, kv_used=0.3, generated=self.generated[name]))
        if self.now % 5 == 0:
            self.canary(name, "pass", latency_s=0.2)

    def canary(self, name: str, verdict: str, **what: Any) -> None:
        known = {"running": 0, "progress": False, "page_ok": True, **what}
        self.say(CanaryAnswered(name, CanaryVerdict(verdict), **known))

    def fails(self, name: str, **failures: int) -> None:
        kinds = {Kind(kind): count for kind, count in failures.items() if kind != "fast"}
        fast = failures.get("fast", 0)
        self.say(AttemptsSeen(name, 1.0, inflight=3, failures=kinds, fast=fast, share=0.25))

    def pass_time(self, seconds: int, ill: Callable[["Fleet", int], None] | None = None) -> None:
        """Others are well; ``ill`` says what the first one shows in its n-th second."""
        for n in range(seconds):
            self.now += 1
            for name in NAMES[1:] if ill else NAMES:
                self.healthy(name)
            if ill:
                ill(self, n)
            self.say(Looked())

    def named(self) -> list[tuple[str, str]]:
        found = self.investigation.incidents.values()
        return [(one.cause.value, one.about.replica or one.about.model) for one in found]

    def only(self) -> Incident:
        (incident,) = self.investigation.incidents.values()
        return incident


def quarantined(fleet: Fleet, signal: str) -> None:
    fleet.say(StateChanged("r1", State.SUSPECT, "passive_failing"))
    fleet.say(StateChanged("r1", State.QUARANTINED, signal))


def restarted(fleet: Fleet, n: int, ready: int) -> None:
    """A managed replica comes back within some seconds."""
    if n == 2:
        fleet.say(StateChanged("r1", State.STARTING, "relaunch"))
    if n == 4:
        fleet.say(StateChanged("r1", State.LOADING, "load_began"))
    if n == ready:
        fleet.say(StateChanged("r1", State.WARMING, "loaded"))
        fleet.say(StateChanged("r1", State.READY, "passed_enough"))


def crash(fleet: Fleet, n: int) -> None:
    if n == 0:
        if fleet.managed:
            fleet.say(ProcessEnded("r1", signal=9, phase="serving", uptime_s=70, served=700))
        fleet.fails("r1", reset=3)
    elif n == 1:
        fleet.fails("r1", refused=4)
        fleet.say(StateChanged("r1", State.DEAD, "exited" if fleet.managed else "refused"))
    elif n > 1 and fleet.managed:
        restarted(fleet, n, ready=14)
    elif n % 5 == 0:
        fleet.canary("r1", "refused", page_ok=False)


def sigstop(fleet: Fleet, n: int) -> None:
    if n == 1 and fleet.managed:
        fleet.say(ProcessFrozen("r1", True))
        quarantined(fleet, "frozen")
    if n in (1, 2, 3):
        fleet.fails("r1", first_token_timeout=2, between_tokens_timeout=2)
    if n > 3 and n % 2:
        fleet.canary("r1", "timeout", page_ok=False)


def hang(fleet: Fleet, n: int) -> None:
    if n in (1, 2):
        fleet.fails("r1", first_token_timeout=3)
    if n == 3:
        quarantined(fleet, "failed_repeatedly")
    if n > 3 and n % 2:
        fleet.canary("r1", "timeout")


def hang_of_all(fleet: Fleet, n: int) -> None:
    """Streams that ran stop, too, and are the first to be missed."""
    if n in (1, 2):
        fleet.fails("r1", between_tokens_timeout=3)
    if n in (2, 3):
        fleet.fails("r1", first_token_timeout=3)
    if n > 3 and n % 2:
        fleet.canary("r1", "timeout")


def late(fleet: Fleet, n: int) -> None:
    """So slow that first tokens come too late as well."""
    slow(fleet, n)
    if n in (1, 2):
        fleet.fails("r1", first_token_timeout=3)


def stall(fleet: Fleet, n: int) -> None:
    if n in (1, 2):
        fleet.fails("r1", between_tokens_timeout=3)
    if n == 3:
        quarantined(fleet, "failed_repeatedly")
    if n > 3 and n % 2:
        fleet.canary("r1", "timeout")


def slow(fleet: Fleet, n: int) -> None:
    fleet.generated["r1"] += 25
    fleet.say(AttemptsSeen("r1", 1.0, successes=1, inflight=8, tokens=25, share=0.2))
    fleet.say(LoadSeen("r1", running=8, waiting=0, generated=fleet.generated["r1"]))
    if n % 3 == 0:
        fleet.canary("r1", "slow", latency_s=2.0)


def drip(fleet: Fleet, n: int) -> None:
    fleet.generated["r1"] += 2
    fleet.say(LoadSeen("r1", running=8, waiting=0, generated=fleet.generated["r1"]))
    if n in (1, 2, 3):
        fleet.fails("r1", between_tokens_timeout=2)
    if n == 4:
        quarantined(fleet, "failed_repeatedly")
    if n > 4 and n % 6 == 0:
        fleet.canary("r1", "slow", latency_s=9.0)


def failing(kind: str, verdict: str = "fail", **canary: Any) -> Callable[[Fleet, int], None]:
    def ill(fleet: Fleet, n: int) -> None:
        if n in (0, 1):
            fast = {"fast": 3} if canary.get("status") == 503 else {}
            fleet.fails("r1", **{kind: 3}, **fast)
        if n == 2:
            quarantined(fleet, "failed_repeatedly")
        if n > 2 and n % 2:
            fleet.canary("r1", verdict, **canary)

    return ill


def reset_early(fleet: Fleet, n: int) -> None:
    """Its canaries meet it first: users' answers were continued elsewhere after one failure."""
    if n == 0:
        fleet.fails("r1", reset=1)
    if n in (0, 1):
        fleet.canary("r1", "fail", flaw="reset")
    if n == 1:
        quarantined(fleet, "failed_repeatedly")
    if n > 2 and n % 2:
        fleet.canary("r1", "fail", flaw="reset")


def wrong(fleet: Fleet, n: int) -> None:
    fleet.say(AttemptsSeen("r1", 1.0, successes=10, inflight=5, tokens=250, share=0.25))
    if n in (3, 4):
        fleet.canary("r1", "wrong", latency_s=0.2)
    if n == 4:
        quarantined(fleet, "wrong_repeatedly")


def out_of_memory(fleet: Fleet, n: int) -> None:
    if n in (0, 12):
        if fleet.managed:
            served = 700 if n == 0 else 1
            fleet.say(ProcessEnded("r1", code=137, phase="serving", uptime_s=9, served=served))
        fleet.fails("r1", reset=3)
    if n in (1, 13):
        fleet.fails("r1", refused=3)
        fleet.say(StateChanged("r1", State.DEAD, "exited"))
    if n in (2, 14):
        fleet.say(StateChanged("r1", State.STARTING, "relaunch"))
    if n in (10, 24):
        fleet.say(StateChanged("r1", State.READY, "passed_enough"))


BOTH = (True, False)
TRUTH: dict[str, tuple[Callable[[Fleet, int], None], Cause, tuple[bool, ...]]] = {
    "crash": (crash, Cause.CRASHED, BOTH),
    "sigstop": (sigstop, Cause.FROZEN, BOTH),
    "hang": (hang, Cause.HUNG, BOTH),
    "hang of all streams": (hang_of_all, Cause.HUNG, BOTH),
    "slow beyond deadlines": (late, Cause.SLOW, BOTH),
    "stall": (stall, Cause.STALLED, BOTH),
    "slow": (slow, Cause.SLOW, BOTH),
    "drip": (drip, Cause.DRIPPING, BOTH),
    "reset": (failing("reset"), Cause.CONNECTION_LOST, BOTH),
    "reset, and canaries meet it first": (reset_early, Cause.CONNECTION_LOST, BOTH),
    "cut": (failing("cut"), Cause.TRUNCATED, BOTH),
    "cut, and canaries find it": (failing("cut", "wrong"), Cause.TRUNCATED, BOTH),
    "wrong": (wrong, Cause.WRONG_OUTPUT, BOTH),
    "garbage": (failing("degenerate", "wrong"), Cause.DEGENERATE_OUTPUT, BOTH),
    "empty": (failing("empty", "wrong"), Cause.EMPTY_OUTPUT, BOTH),
    "malformed": (failing("malformed"), Cause.MALFORMED_OUTPUT, BOTH),
    "500": (failing("server_error", status=500), Cause.SERVER_ERRORS, BOTH),
    "instant 503": (failing("server_error", status=503), Cause.FAST_FAILURES, BOTH),
    "out of memory": (out_of_memory, Cause.OUT_OF_MEMORY, (True,)),
    "partition": (failing("connect_timeout", "timeout", page_ok=False), Cause.UNREACHABLE, BOTH),
}
CASES = [(name, managed) for name, (*_, ways) in TRUTH.items() for managed in ways]


@pytest.mark.parametrize(("fault", "managed"), CASES)
def test_one_fault_is_one_incident_with_its_cause(fault: str, *, managed: bool) -> None:
    ill, cause, _ = TRUTH[fault]
    fleet = Fleet(managed=managed)
    fleet.pass_time(ONSET)
    assert fleet.named() == []
    fleet.pass_time(40, ill)
    assert fleet.named() == [(cause.value, "r1")]


@pytest.mark.parametrize("fault", ["crash", "hang", "stall", "reset", "cut", "empty", "500"])
def test_a_few_seconds_of_evidence_are_enough(fault: str) -> None:
    ill, *_ = TRUTH[fault]
    fleet = Fleet(managed=True)
    fleet.pass_time(ONSET)
    fleet.pass_time(6, ill)
    assert [about for _, about in fleet.named()] == ["r1"]


def test_a_healthy_fleet_has_no_incident() -> None:
    fleet = Fleet()
    fleet.pass_time(200)
    assert fleet.findings == []


def test_an_incident_ends_when_its_replica_is_well_and_silent() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    fleet.pass_time(20, crash)
    fleet.pass_time(100)
    assert fleet.only().stage is not Stage.CLOSED
    fleet.pass_time(60)
    assert fleet.only().stage is Stage.CLOSED
    assert isinstance(fleet.findings[-1], Closed)


def test_an_incident_stays_open_while_its_replica_is_out() -> None:
    fleet = Fleet(managed=False)
    fleet.pass_time(ONSET)
    fleet.pass_time(400, hang)
    assert fleet.only().stage is not Stage.CLOSED


def test_the_same_failure_within_ten_minutes_is_the_same_incident() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    fleet.pass_time(20, crash)
    fleet.pass_time(200)
    assert fleet.only().stage is Stage.CLOSED
    fleet.pass_time(20, crash)
    assert fleet.only().stage is not Stage.CLOSED
    assert sum(isinstance(one, Opened) for one in fleet.findings) == 2


def test_another_failure_after_a_recovery_is_another_incident() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    fleet.pass_time(20, crash)
    fleet.pass_time(20)
    fleet.pass_time(20, wrong)
    assert fleet.named() == [("crashed", "r1"), ("wrong_output", "r1")]


def test_two_replicas_that_fail_differently_are_two_incidents() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)

    def both(fleet: Fleet, n: int) -> None:
        crash(fleet, n)
        if n in (3, 4):
            fleet.canary("r2", "wrong")

    fleet.pass_time(30, both)
    assert sorted(fleet.named()) == [("crashed", "r1"), ("wrong_output", "r2")]


def test_half_of_a_model_with_one_cause_is_one_incident_of_the_model() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    for name in ("r1", "r2", "r3"):
        fleet.say(ProcessEnded(name, code=1, phase="serving", served=500))
    assert fleet.named() == [("crashed", "m")]
    assert fleet.only().replicas == ("r1", "r2", "r3")
    fleet.say(ProcessEnded("r4", code=1, phase="serving", served=500))
    assert fleet.named() == [("crashed", "m")]


def test_a_queue_that_stalls_because_of_memory_is_one_incident_of_memory() -> None:
    investigation = Investigation()
    investigation.take(Declared("p1", "tts", "1", reserved_bytes=10**9, managed=True), 0)
    for n in range(300):
        now = nanos(n)
        if n % 60 == 10:
            investigation.take(StateChanged("p1", State.READY, "passed_enough"), now)
        if n % 60 == 20:
            ended = ProcessEnded("p1", code=137, oom=True, phase="serving", uptime_s=20, served=1)
            investigation.take(ended, now)
        if n % 60 == 25:
            investigation.take(StateChanged("p1", State.STARTING, "relaunch"), now)
        if n % 5 == 0:
            investigation.take(QueueSeen("tts", waiting=5 + n, oldest_s=float(n)), now)
        investigation.take(Looked(), now)
    (incident,) = investigation.incidents.values()
    assert incident.cause in (Cause.UNDERSIZED, Cause.OUT_OF_MEMORY)
    assert incident.failure_class.value == "runtime"
    signs = {one.sign for one in incident.consequences}
    assert Sign.QUEUE_GROWS in signs


def test_a_decode_that_blames_a_dead_prefill_is_part_of_its_incident() -> None:
    investigation = Investigation()
    for name, role in (("p1", "prefill"), ("d1", "decode"), ("d2", "decode")):
        investigation.take(Declared(name, "m", "1", host=f"10.0.0.{name[1]}", role=role), 0)
    investigation.take(LineSeen("d1", Mark.TRANSFER_FAILED, "p1"), nanos(10))
    found = [one.cause for one in investigation.incidents.values()]
    assert found == [Cause.TRANSFER_FAILED]
    investigation.take(ProcessEnded("p1", code=1, phase="serving"), nanos(11))
    investigation.take(
        AttemptsSeen("d1", 1.0, failures={Kind.SERVER_ERROR: 4}, inflight=2), nanos(12)
    )
    investigation.take(ProcessEnded("d1", signal=9, phase="serving"), nanos(40))
    (incident,) = investigation.incidents.values()
    assert incident.cause is Cause.CRASHED
    assert incident.about.replica == "p1"
    assert incident.id == "inc-000001"
    assert {one.about.replica for one in incident.consequences} >= {"d1"}


def test_one_request_that_kills_two_replicas_is_blocked_and_named() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    for name in ("r1", "r2"):
        fleet.say(RequestDied(name, "f00d"))
        fleet.say(ProcessEnded(name, signal=6, phase="serving", served=400))
    assert [cause for cause, _ in fleet.named()] == ["query_of_death"]
    assert list(fleet.investigation.blocked) == ["f00d"]


def test_a_disagreement_calls_the_canaries_of_both_and_does_nothing_else() -> None:
    fleet = Fleet()
    fleet.say(Compared("r1", "r2", agreed=False))
    fleet.say(Compared("r1", "r2", agreed=False))
    fleet.say(Compared("r1", "r2", agreed=True))
    fleet.say(Compared("ghost", "phantom", agreed=False))
    assert [one for one in fleet.findings if isinstance(one, CallCanaries)] == [
        CallCanaries(("r1", "r2"), "r1 and r2 answered a live request differently")
    ]


def test_what_may_be_drift_calls_the_canaries_of_one_and_does_nothing_else() -> None:
    rng = random.Random(3)
    drift = DriftConfig(window_s=60.0, told_at=48.0)
    fleet = Fleet(drift=drift)
    for n in range(700):
        fleet.now += 1
        shift = 1.5 if n > 600 else 0.0
        fleet.say(OutputSeen("r1", "score", (rng.gauss(shift, 1.0),)))
        if any(isinstance(one, CallCanaries) for one in fleet.findings):
            break
    (called,) = [one for one in fleet.findings if isinstance(one, CallCanaries)]
    assert called.replicas == ("r1",)
    assert "score of answers of r1 may have moved" in called.reason
    fleet.say(Looked())
    assert fleet.named() == []


def test_a_replica_that_differs_from_its_peers_is_named_and_not_acted_on() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    for n in range(120):
        fleet.now += 1
        other = NAMES[1 + (n // 3) % 3]
        fleet.say(Compared("r1", other, agreed=n % 3 != 0))
        fleet.say(Compared(NAMES[1 + n % 3], NAMES[1 + (n + 1) % 3], agreed=True))
    assert fleet.named() == [("wrong_output", "r1")]
    assert not [one for one in fleet.findings if isinstance(one, Act)]
    assert "not enough to act on" in fleet.only().action


def test_an_executor_reports_back() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    fleet.pass_time(30, hang)
    acts = [one for one in fleet.findings if isinstance(one, Act)]
    assert acts[-1].remedy.value == "drain_and_restart"
    assert {one.replica for one in acts} == {"r1"}
    assert fleet.investigation.done(acts[0].incident_id, "restarted r1", nanos(fleet.now))
    assert fleet.only().action == "restarted r1"
    assert not fleet.investigation.done("inc-999999", "nothing", nanos(fleet.now))


@pytest.mark.parametrize("managed", [True, False])
def test_what_our_own_restart_breaks_is_no_cause(managed: bool) -> None:
    fleet = Fleet(managed=managed)
    fleet.pass_time(ONSET)

    def mended(fleet: Fleet, n: int) -> None:
        if n in (1, 2):
            fleet.fails("r1", first_token_timeout=3)
        if n == 3:
            fleet.canary("r1", "timeout")
        if n == 6:
            fleet.say(StateChanged("r1", State.DRAINING, "drain"))
            fleet.say(ProcessEnded("r1", signal=15, asked=True, phase="serving", served=700))
        if n in (7, 8):
            fleet.fails("r1", reset=3, refused=3)
            fleet.canary("r1", "refused", page_ok=False)
        restarted(fleet, n - 6, ready=20)

    fleet.pass_time(40, mended)
    assert fleet.named() == [("hung", "r1")]


def test_control_that_was_restarted_goes_on_with_its_incidents() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    fleet.pass_time(6, hang)
    again = Fleet()
    again.investigation.adopt(fleet.only(), nanos(0))
    again.pass_time(ONSET)
    again.pass_time(6, hang)
    assert again.named() == [("hung", "r1")]
    assert again.only().id == "inc-000001"
    again.say(Gone("r1"))
    assert "r1" not in again.investigation.census.replicas


def test_what_is_known_can_be_counted_and_kept() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    fleet.pass_time(6, hang)
    assert len(fleet.investigation.census.replicas) == 4
    assert fleet.investigation.evidence_seen[Sign.NO_FIRST_TOKEN] >= 1
    assert len(fleet.investigation.incidents) == 1
    baselines = fleet.investigation.baselines()
    assert Investigation(baselines=baselines).baselines() == baselines


# --- whatever comes, in whatever order ------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "d"])
FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(
        Declared,
        names,
        st.sampled_from(["m", "n"]),
        st.sampled_from(["1", "2"]),
        st.sampled_from(["", "h"]),
        role=st.sampled_from(["", "prefill", "decode"]),
        filesystem=st.sampled_from(["", "fs"]),
        managed=st.booleans(),
        reserved_bytes=st.sampled_from([None, 10**9]),
    ),
    st.builds(Gone, names),
    st.builds(HostSeen, st.just("h"), st.sampled_from([None, 0, 1])),
    st.builds(HostConditionSeen, st.just("h"), st.sampled_from(HostCondition)),
    st.builds(StateChanged, names, st.sampled_from(State), st.just("exited")),
    st.builds(ProcessEnded, names, st.sampled_from([None, 1, 137]), oom=st.booleans()),
    st.builds(ProcessFrozen, names, st.booleans()),
    st.builds(LineSeen, names, st.sampled_from(Mark), st.sampled_from(["", "a", "b", "h:1"])),
    st.builds(
        CanaryAnswered,
        names,
        st.sampled_from(CanaryVerdict),
        page_ok=st.sampled_from([None, True, False]),
    ),
    st.builds(
        AttemptsSeen,
        names,
        st.just(1.0),
        failures=st.dictionaries(st.sampled_from(Kind), st.integers(1, 9), max_size=2),
    ),
    st.builds(RequestDied, names, st.sampled_from(["f", "g"])),
    st.builds(Compared, names, names, st.booleans()),
    st.builds(QueueSeen, st.sampled_from(["m", "n"]), st.integers(0, 500)),
    st.builds(VersionsSeen, names, st.sampled_from(["11.8", "12.1"])),
    st.just(Looked()),
)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(-5, 40), FACTS), max_size=80))
def test_no_order_of_facts_breaks_it(steps: list[tuple[int, Fact]]) -> None:
    investigation = Investigation()
    now = 0
    opened: list[str] = []
    closed: set[str] = set()
    for step, fact in steps:
        now = max(0, now + nanos(step))
        for finding in investigation.take(fact, now):
            if isinstance(finding, Opened):
                opened.append(finding.incident.id)
                closed.discard(finding.incident.id)
            elif isinstance(finding, Closed):
                closed.add(finding.incident.id)
        found = investigation.incidents
        alive = [one for one in found.values() if one.stage is not Stage.CLOSED]
        keys = [(one.cause, one.about) for one in alive]
        assert len(keys) == len(set(keys))
        assert all(name == one.id for name, one in found.items())
        assert len(found) <= INCIDENTS_MAX
        assert not closed & {one.id for one in alive}  # none opens again unsaid
        assert {one.id for one in alive} <= set(opened)
    for one in investigation.incidents.values():
        assert 0.5 <= one.confidence <= 1
        assert one.evidence
        assert one.fix
        assert "{" not in one.fix


# --- words for people -----------------------------------------------------------------------------


def refused(fleet: Fleet, n: int) -> None:
    """An endpoint that nobody listens at, as control tells of it from its start on."""
    if n % 5 == 0:
        fleet.canary("far", "refused", page_ok=None)
        fleet.canary("far", "refused", page_ok=None)
    if n == 1:
        fleet.say(StateChanged("far", State.DEAD, "refused_repeatedly"))
        fleet.say(StateChanged("far", State.STARTING, "relaunch"))
    if n == 70:
        fleet.say(StateChanged("far", State.DEAD, "load_timeout"))


@pytest.mark.parametrize("was_up", [False, True])
def test_an_endpoint_is_unreachable_if_it_was_never_there_and_crashed_if_it_was(
    *, was_up: bool
) -> None:
    fleet = Fleet(managed=False)
    fleet.say(Declared("far", "other", "1", host="h-far"))
    fleet.say(StateChanged("far", State.WARMING, "loaded", "was running when it joined"))
    if was_up:
        fleet.canary("far", "pass", latency_s=0.2)
        fleet.say(StateChanged("far", State.READY, "passed_enough"))
    for n in range(90):
        fleet.now += 1
        refused(fleet, n)
        fleet.say(Looked())
    incident = fleet.only()
    never = {piece.sign for piece in incident.evidence} == {Sign.NEVER_SEEN}
    if was_up:
        assert (incident.cause, never) == (Cause.CRASHED, False)
    else:
        assert (incident.cause, never) == (Cause.UNREACHABLE, True)
        assert "never seen" in incident.title
        assert "never seen" in incident.evidence[0].text
        told = {entry.what for entry in incident.timeline}
        assert told == {"cause", "never_seen", "action", "no_replica_ready"}
    assert not [one for one in fleet.findings if isinstance(one, Act)]


def test_an_endpoint_that_came_at_last_and_went_has_crashed() -> None:
    fleet = Fleet(managed=False)
    fleet.say(Declared("far", "other", "1", host="h-far"))
    for _ in range(2):
        fleet.canary("far", "refused")
    fleet.now += 10
    fleet.canary("far", "pass", latency_s=0.2)
    fleet.say(StateChanged("far", State.READY, "passed_enough"))
    fleet.now += 10
    for _ in range(2):
        fleet.canary("far", "refused")
    assert [cause for cause, _ in fleet.named()] == ["unreachable", "crashed"]


@pytest.mark.parametrize(("fault", "managed"), CASES)
def test_what_proves_a_cause_is_not_told_as_its_consequence(fault: str, *, managed: bool) -> None:
    fleet = Fleet(managed=managed)
    fleet.pass_time(ONSET)
    fleet.pass_time(60, TRUTH[fault][0])
    for incident in fleet.investigation.incidents.values():
        texts = [piece.text for piece in (*incident.evidence, *incident.consequences)]
        assert len(texts) == len(set(texts))
        proofs = {(str(one.about), one.source, one.at) for one in incident.evidence}
        followed = {(str(one.about), one.source, one.at) for one in incident.consequences}
        assert proofs.isdisjoint(followed)


def test_a_crash_is_restarted_and_ready_in_its_incident() -> None:
    fleet = Fleet()
    fleet.pass_time(ONSET)
    fleet.pass_time(20, crash)
    incident = fleet.only()
    assert (incident.stage, incident.cause) == (Stage.MENDING, Cause.CRASHED)
    done = [entry.at for entry in incident.timeline if entry.text == incident.action]
    assert done == [nanos(ONSET + 15)]
    assert "was restarted and is ready again after 12 s" in incident.action
    changed = [one.incident.id for one in fleet.findings if isinstance(one, Changed)]
    assert incident.id in changed


def test_an_engine_that_drains_and_says_so_is_no_incident() -> None:
    """It is out, pushes back on canaries and on the requests that still came, and is well."""
    investigation = Investigation()
    for name in ("m-1", "m-2"):
        investigation.take(Declared(name, "m", "1"), 0)
        investigation.take(StateChanged(name, State.READY, "passed_enough"), SECOND)
        investigation.take(CanaryAnswered(name, CanaryVerdict.PASS, 0.1), SECOND)
    investigation.take(StateChanged("m-1", State.QUARANTINED, "drains_itself"), 2 * SECOND)
    for second in range(3, 300):
        if second % 2:
            investigation.take(CanaryAnswered("m-1", CanaryVerdict.BUSY), second * SECOND)
        investigation.take(CanaryAnswered("m-2", CanaryVerdict.PASS, 0.1), second * SECOND)
        investigation.take(Looked(), second * SECOND)
    assert investigation.incidents == {}


# --- what only others report ----------------------------------------------------------------------


def reported(fleet: Fleet, at: int) -> list[Act]:
    """Thirty seconds after an agent said that the GPU of r1 is lost."""
    fleet.now = at
    fleet.say(GpuFault("r1", 79, fatal=True, reporter="agent gpu-1"))
    return [one for one in fleet.findings if isinstance(one, Act) and one.replica == "r1"]


def test_a_fatal_xid_that_only_an_agent_tells_asks_a_canary_and_takes_nobody_out() -> None:
    fleet = Fleet()
    assert reported(fleet, ONSET) == []
    called = [one.replicas for one in fleet.findings if isinstance(one, CallCanaries)]
    assert called == [("r1",)]
    for fleet.now in range(ONSET + 1, ONSET + 60):
        for name in NAMES:
            fleet.healthy(name)
        fleet.say(Looked())
    assert not [one for one in fleet.findings if isinstance(one, Act)]
    (incident,) = fleet.investigation.incidents.values()
    assert incident.cause is Cause.GPU_FAULT  # people are told all the same
    assert "agent gpu-1 reports" in incident.evidence[0].text


def test_a_fatal_xid_is_acted_on_when_its_canary_fails() -> None:
    fleet = Fleet()
    reported(fleet, ONSET)
    fleet.now = ONSET + 1
    for _ in range(2):
        fleet.canary("r1", "wrong")
    acts = [one for one in fleet.findings if isinstance(one, Act)]
    assert [(act.remedy, act.replica) for act in acts] == [(Remedy.TAKE_OUT, "r1")]


def test_a_fatal_xid_that_control_saw_itself_is_acted_on_at_once() -> None:
    fleet = Fleet()
    fleet.now = ONSET
    fleet.say(GpuFault("r1", 79, fatal=True, reporter="agent gpu-1"))
    fleet.say(GpuFault("r1", 79, fatal=True))
    acts = [one for one in fleet.findings if isinstance(one, Act)]
    assert [(act.remedy, act.replica) for act in acts] == [(Remedy.TAKE_OUT, "r1")]
