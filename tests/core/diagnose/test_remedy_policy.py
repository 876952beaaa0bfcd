"""What is done about an incident, and the bounds that hold whatever is asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose import remedy_policy as module
from holdfast.core.diagnose.causes.table import CAUSES
from holdfast.core.diagnose.dependency_graph import DependencyGraph
from holdfast.core.diagnose.evidence import (
    REPORTED,
    About,
    Evidence,
    Incident,
    Remedy,
    Sign,
    Stage,
)
from holdfast.core.diagnose.facts import Declared, Looked, RolloutSeen, StateChanged
from holdfast.core.diagnose.incident_case import IncidentCase, SeenEvidence
from holdfast.core.diagnose.remedy_policy import Act, RemedyConfig, RemedyPolicy
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
from holdfast.core.health.lifecycle import ROUTABLE, Conclusion, Signal
from holdfast.core.types import ConfigError, State, nanos
from sampling import examples


class Yard:
    """Four managed replicas of one model, all ready."""

    def __init__(self, *, managed: bool = True, **config: float | bool) -> None:
        self.census = ReplicaRegistry()
        self.relations = DependencyGraph(CAUSES, self.census)
        for name in ("r1", "r2", "r3", "r4"):
            self.census.take(Declared(name, "m", "1", managed=managed))
            self.state(name, State.READY)
        settled = {"settle_s": 0.0, **config}  # most tests are about what comes then
        self.acting = RemedyPolicy(RemedyConfig(**settled), self.census, self.relations)
        self.made = 0

    def state(self, name: str, state: State) -> None:
        self.relations.take(StateChanged(name, state, "x"), 0)

    def case(self, cause: Cause, *names: str, acts: bool = True) -> IncidentCase:
        self.made += 1
        about = self.census.about(names[0]) if names else About(model="m")
        rule = CAUSES[cause]
        incident = Incident(f"inc-{self.made:06d}", cause, rule.failure_class, about, 0, 0.8)
        case = IncidentCase(incident, acts=acts)
        for name in names:
            case.roots["replica", name] = self.census.about(name)
            case.add(SeenEvidence(Evidence(Sign.EXITED, self.census.about(name), 0, "log", "t")), 0)
        if not names:
            case.roots["model", "m"] = about
        case.write(CAUSES, 0)
        return case

    def decide(self, case: IncidentCase, at: float = 0.0) -> list[tuple[Remedy, str]]:
        return [(act.remedy, act.replica) for act in self.acting.decide(case, nanos(at))]


@pytest.mark.parametrize(
    "wrong",
    [{"share_max": 0.0}, {"share_max": 0.6}, {"again_s": -1.0}, {"restart_s": 1e9}, {"sure": 0.0}],
)
def test_bounds_cannot_be_widened_beyond_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RemedyConfig(**wrong)


def test_a_replica_that_hangs_is_drained_and_restarted_once() -> None:
    yard = Yard()
    case = yard.case(Cause.HUNG, "r1")
    (act,) = yard.acting.decide(case, 0)
    assert act == Act(
        "inc-000001",
        Remedy.DRAIN_AND_RESTART,
        "r1",
        "m",
        "hung of r1, confidence 80%",
        dry_run=False,
    )
    assert case.incident.action == "drain and restart r1"
    assert case.incident.stage is Stage.MENDING
    assert case.incident.timeline[-1].what == "action"
    assert yard.decide(case) == []


@pytest.mark.parametrize("managed", [True, False])
@pytest.mark.parametrize(
    ("cause", "until_right"),
    [
        *[(one, True) for one in (Cause.HUNG, Cause.STALLED, Cause.STARVED, Cause.FROZEN)],
        *[(one, False) for one in (Cause.DEGENERATE_OUTPUT, Cause.CUDA_CORRUPTED, Cause.LEAK)],
        *[(one, False) for one in (Cause.WRONG_OUTPUT, Cause.SERVER_ERRORS)],
    ],
)
def test_right_answers_bring_back_whoever_was_said_to_answer_nothing(
    cause: Cause, until_right: bool, managed: bool
) -> None:
    yard = Yard(settle_s=20.0, managed=managed)
    (act,) = yard.acting.decide(yard.case(cause, "r1"), nanos(1))
    assert (act.remedy, act.until_right) == (Remedy.TAKE_OUT, until_right)


def test_whoever_is_back_before_its_restart_is_not_restarted() -> None:
    yard = Yard(settle_s=20.0)
    case = yard.case(Cause.HUNG, "r1")
    yard.decide(case, 1)
    yard.state("r1", State.QUARANTINED)
    yard.relations.take(StateChanged("r1", State.READY, "x"), nanos(9))
    assert yard.acting.settled(nanos(21)) == [case.incident.id]
    assert yard.decide(case, 21) == []


def test_a_dry_run_says_what_it_would_do_and_counts_nothing() -> None:
    yard = Yard(dry_run=True)
    case = yard.case(Cause.HUNG, "r1")
    (act,) = yard.acting.decide(case, 0)
    assert act.dry_run
    assert case.incident.action == "drain and restart r1 (dry run)"
    assert case.incident.stage is Stage.OPEN
    assert yard.decide(yard.case(Cause.HUNG, "r2")) == [(Remedy.DRAIN_AND_RESTART, "r2")]


def test_nothing_is_done_past_half_a_pool() -> None:
    yard = Yard()
    yard.state("r3", State.DEAD)
    assert yard.decide(yard.case(Cause.WRONG_OUTPUT, "r1")) == [(Remedy.TAKE_OUT, "r1")]
    held = yard.case(Cause.EMPTY_OUTPUT, "r2")
    assert yard.decide(held) == [(Remedy.PAGE, "r2")]
    assert "2 of 4 replicas of m are out already" in held.incident.action
    assert [entry.what for entry in held.incident.timeline][-2:] == ["refused", "action"]
    assert yard.decide(held) == []


def test_whoever_is_out_already_costs_nothing_more() -> None:
    yard = Yard()
    for name in ("r1", "r2", "r3"):
        yard.state(name, State.QUARANTINED)
    assert yard.decide(yard.case(Cause.HUNG, "r1")) == [(Remedy.DRAIN_AND_RESTART, "r1")]


def test_a_pool_of_one_is_never_taken_away() -> None:
    yard = Yard()
    for name in ("r2", "r3", "r4"):
        del yard.census.replicas[name]
    assert yard.decide(yard.case(Cause.LEAK, "r1")) == [(Remedy.PAGE, "r1")]


def test_one_restart_at_a_time_and_not_again_for_ten_minutes() -> None:
    yard = Yard()
    first, second = yard.case(Cause.HUNG, "r1"), yard.case(Cause.STALLED, "r2")
    assert yard.decide(first) == [(Remedy.DRAIN_AND_RESTART, "r1")]
    assert yard.decide(second, 10) == []
    assert "another replica of m is being restarted" in second.incident.action
    yard.acting.done(first, "restarted r1", nanos(60))
    assert first.incident.action == "restarted r1"
    again = yard.case(Cause.LEAK, "r1")
    assert yard.decide(again, 100) == [(Remedy.PAGE, "r1")]
    assert "restarted 100 s ago" in again.incident.action
    assert yard.decide(yard.case(Cause.HUNG, "r3"), 110) == [(Remedy.DRAIN_AND_RESTART, "r3")]
    late = yard.case(Cause.FRAGMENTED, "r1")
    assert yard.decide(late, 700) == [(Remedy.DRAIN_AND_RESTART, "r1")]


def test_whoever_waits_for_the_restart_of_another_is_restarted_after_it() -> None:
    yard = Yard()
    first, second = yard.case(Cause.HUNG, "r1"), yard.case(Cause.FROZEN, "r2")
    yard.decide(first)
    assert yard.decide(second, 2) == []
    assert yard.acting.settled(nanos(6)) == []
    for at in (7, 12, 17):
        assert yard.acting.settled(nanos(at)) == [second.incident.id]
        assert yard.decide(second, at) == []
    assert [entry.what for entry in second.incident.timeline].count("refused") == 1
    yard.acting.done(first, "restarted r1", nanos(18))
    assert yard.acting.settled(nanos(22)) == [second.incident.id]
    assert yard.decide(second, 22) == [(Remedy.DRAIN_AND_RESTART, "r2")]
    assert yard.acting.settled(nanos(99)) == []


def test_whoever_came_back_while_it_waited_is_left_alone() -> None:
    yard = Yard()
    first, second = yard.case(Cause.HUNG, "r1"), yard.case(Cause.FROZEN, "r2")
    yard.state("r2", State.QUARANTINED)
    yard.decide(first)
    assert yard.decide(second, 2) == []
    yard.relations.take(StateChanged("r2", State.READY, "x"), nanos(4))
    yard.acting.done(first, "restarted r1", nanos(5))
    assert yard.acting.settled(nanos(7)) == [second.incident.id]
    assert yard.decide(second, 7) == []
    assert yard.acting.settled(nanos(99)) == []


def test_whoever_is_right_again_is_left_alone_though_another_is_wrong_now() -> None:
    yard = Yard()
    case = yard.case(Cause.WRONG_OUTPUT, "r1", "r2")
    yard.state("r2", State.SUSPECT)
    for name, at in (("r2", 10), ("r1", 50)):
        piece = Evidence(Sign.CANARY_WRONG, yard.census.about(name), nanos(at), "canary", "t")
        case.add(SeenEvidence(piece), nanos(at))
    yard.relations.take(StateChanged("r2", State.READY, "x"), nanos(13))
    assert yard.decide(case, 50) == [(Remedy.TAKE_OUT, "r1")]


def test_whoever_waited_until_nothing_more_was_seen_of_it_is_left_alone_until_it_is() -> None:
    yard = Yard()
    first, second = yard.case(Cause.HUNG, "r1"), yard.case(Cause.WRONG_OUTPUT, "r2")
    for name in ("r3", "r4"):
        yard.state(name, State.DEAD)
    yard.decide(first)
    assert yard.decide(second) == [(Remedy.PAGE, "r2")]
    for name in ("r3", "r4"):
        yard.state(name, State.READY)
    yard.acting.done(first, "restarted r1", nanos(50))
    assert yard.decide(second, 50) == []
    second.add(
        SeenEvidence(Evidence(Sign.CANARY_WRONG, yard.census.about("r2"), 0, "c", "t")), nanos(60)
    )
    assert yard.decide(second, 60) == [(Remedy.TAKE_OUT, "r2")]


def test_an_incident_that_is_over_waits_for_nothing() -> None:
    yard = Yard()
    second = yard.case(Cause.FROZEN, "r2")
    yard.decide(yard.case(Cause.HUNG, "r1"))
    assert yard.decide(second, 2) == []
    yard.acting.closed(second.incident)
    assert yard.acting.settled(nanos(99)) == []


def test_when_the_pool_has_room_again_what_was_held_back_is_done() -> None:
    yard = Yard()
    yard.state("r3", State.DEAD)
    yard.decide(yard.case(Cause.WRONG_OUTPUT, "r1"))
    held = yard.case(Cause.EMPTY_OUTPUT, "r2")
    assert yard.decide(held) == [(Remedy.PAGE, "r2")]
    assert yard.acting.settled(nanos(5)) == [held.incident.id]
    assert yard.decide(held, 5) == []
    assert [entry.what for entry in held.incident.timeline].count("refused") == 1
    yard.state("r3", State.READY)
    assert yard.acting.settled(nanos(10)) == [held.incident.id]
    assert yard.decide(held, 10) == [(Remedy.TAKE_OUT, "r2")]


def test_a_restart_of_which_nothing_is_heard_does_not_block_for_ever() -> None:
    yard = Yard()
    yard.decide(yard.case(Cause.HUNG, "r1"))
    assert yard.decide(yard.case(Cause.HUNG, "r2"), 301) == [(Remedy.DRAIN_AND_RESTART, "r2")]


def test_what_holdfast_did_not_start_it_does_not_restart() -> None:
    yard = Yard(managed=False)
    case = yard.case(Cause.HUNG, "r1")
    assert yard.decide(case) == [(Remedy.PAGE, "r1")]
    assert "Holdfast did not start it" in case.incident.action
    stranger = yard.case(Cause.HUNG, "ghost")
    assert yard.decide(stranger) == [(Remedy.PAGE, "ghost")]
    assert yard.decide(yard.case(Cause.WRONG_OUTPUT, "r2")) == [(Remedy.TAKE_OUT, "r2")]


def test_evidence_that_may_not_be_acted_on_is_observed() -> None:
    yard = Yard()
    case = yard.case(Cause.WRONG_OUTPUT, "r1", acts=False)
    assert yard.decide(case) == []
    assert case.incident.action == "observed: this evidence alone is not enough to act on"
    told = len(case.incident.timeline)
    assert yard.decide(case) == []
    assert len(case.incident.timeline) == told


def test_causes_of_models_are_told_to_somebody() -> None:
    yard = Yard()
    (act,) = yard.acting.decide(yard.case(Cause.OVERLOADED), 0)
    assert (act.remedy, act.replica, act.model) == (Remedy.DEGRADE, "", "m")
    crash = yard.case(Cause.CRASHED, "r1")
    assert yard.decide(crash) == []
    assert crash.incident.action == "observed"


def test_what_is_closed_is_left_alone() -> None:
    yard = Yard()
    case = yard.case(Cause.HUNG, "r1")
    yard.decide(case)
    case.incident.stage = Stage.CLOSED
    yard.acting.closed(case.incident)
    assert yard.decide(case) == []
    yard.acting.done(case, "too late", 5)
    assert case.incident.stage is Stage.CLOSED
    assert yard.decide(yard.case(Cause.HUNG, "r2"), 6) == [(Remedy.DRAIN_AND_RESTART, "r2")]
    yard.acting.forget("r1")
    yard.acting.closed(case.incident)
    yard.acting.done(case, "still", 7)
    assert yard.decide(yard.case(Cause.LEAK, "r1"), 400) == [(Remedy.DRAIN_AND_RESTART, "r1")]


def test_a_rollout_that_spreads_a_failure_is_stopped_and_nothing_else_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard = Yard()
    yard.census.take(Declared("r4", "m", "2", managed=True))
    yard.acting.saw(RolloutSeen("m", "2", "began"))
    old, new = yard.case(Cause.HUNG, "r1"), yard.case(Cause.HUNG, "r4")
    assert yard.decide(new) == [(Remedy.STOP_ROLLOUT, "")]
    assert yard.decide(new) == []
    assert yard.decide(old) == [(Remedy.DRAIN_AND_RESTART, "r1")]
    yard.acting.saw(RolloutSeen("m", "2", "halted"))
    yard.acting.done(old, "restarted r1", 0)
    assert yard.decide(yard.case(Cause.HUNG, "r4")) == [(Remedy.DRAIN_AND_RESTART, "r4")]
    monkeypatch.setattr(module, "ROLLOUTS_MAX", 0)
    yard.acting.saw(RolloutSeen("m", "2", "began"))
    yard.acting.saw(Looked())
    assert yard.decide(yard.case(Cause.HUNG, "r4")) == [(Remedy.PAGE, "r4")]


def test_what_became_part_of_another_incident_is_still_under_way() -> None:
    yard = Yard()
    case = yard.case(Cause.HUNG, "r1")
    yard.decide(case)
    yard.acting.closed(case.incident, joined=True)
    other = yard.case(Cause.HUNG, "r2")
    assert yard.decide(other) == []
    assert "is being restarted" in other.incident.action


def test_books_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOOKS_MAX", 1)
    yard = Yard()
    yard.decide(yard.case(Cause.WRONG_OUTPUT, "r1"))
    yard.decide(yard.case(Cause.WRONG_OUTPUT, "r2"))
    assert yard.decide(yard.case(Cause.LEAK, "r1")) == [(Remedy.DRAIN_AND_RESTART, "r1")]


STEPS = st.lists(
    st.tuples(
        st.sampled_from([Cause.HUNG, Cause.WRONG_OUTPUT, Cause.GPU_FAULT, Cause.LEAK]),
        st.sampled_from(["r1", "r2", "r3", "r4"]),
        st.sampled_from([None, State.READY, State.DEAD, State.QUARANTINED]),
        st.integers(0, 200),
    ),
    max_size=30,
)


@settings(max_examples=examples(150))
@given(STEPS)
def test_no_row_of_incidents_takes_away_more_than_half(
    steps: list[tuple[Cause, str, State | None, int]],
) -> None:
    yard = Yard()
    now = 0
    asked_at: dict[str, int] = {}

    def serves(name: str) -> bool:
        under_way = now - asked_at.get(name, -1_000) < 300
        return yard.relations.states[name] in ROUTABLE and not under_way

    for cause, name, state, passed in steps:
        now += passed
        if state is not None:
            yard.state(name, state)
        before = sum(serves(one) for one in yard.census.replicas)
        taken = [
            who
            for remedy, who in yard.decide(yard.case(cause, name), now)
            if remedy is not Remedy.PAGE
        ]
        if taken and serves(name):  # this costs capacity: half of it must be left
            assert before - 1 >= 2
        asked_at.update(dict.fromkeys(taken, now))


def test_on_weak_evidence_it_is_taken_out_and_restarted_when_the_cause_settled() -> None:
    yard = Yard(settle_s=20.0)
    case = yard.case(Cause.STALLED, "r1")
    case.incident.confidence = 0.8
    assert yard.decide(case) == [(Remedy.TAKE_OUT, "r1")]
    assert yard.acting.settled(nanos(19.0)) == []
    assert yard.acting.settled(nanos(20.0)) == [case.incident.id]
    assert yard.decide(case, 20.0) == [(Remedy.DRAIN_AND_RESTART, "r1")]
    assert yard.acting.settled(nanos(99.0)) == []


def test_what_is_sure_is_restarted_at_once() -> None:
    yard = Yard(settle_s=20.0)
    case = yard.case(Cause.STALLED, "r1")
    case.incident.confidence = 0.95
    assert yard.decide(case) == [(Remedy.DRAIN_AND_RESTART, "r1")]
    assert yard.acting.settled(nanos(99.0)) == []


def test_what_is_over_before_it_settled_is_not_restarted() -> None:
    yard = Yard(settle_s=20.0)
    case = yard.case(Cause.STALLED, "r1")
    case.incident.confidence = 0.8
    yard.decide(case)
    yard.acting.closed(case.incident)
    assert yard.acting.settled(nanos(99.0)) == []


# --- what was done, until it is ready again -------------------------------------------------------


def moved(yard: Yard, case: IncidentCase, state: State, at: float) -> list[str]:
    """A replica changes its state; the ids of incidents that say more than before."""
    signal = Signal.RELAUNCH if state is State.STARTING else Conclusion.PASSED_ENOUGH
    fact = StateChanged(case.root_replicas()[0], state, signal.value)
    return [one.id for one in yard.acting.moved(fact, [case], nanos(at))]


def done(case: IncidentCase) -> list[str]:
    return [entry.text for entry in case.incident.timeline if entry.what == "action"]


def test_a_crash_says_that_its_replica_was_restarted_and_when_it_was_ready() -> None:
    yard = Yard()
    case = yard.case(Cause.CRASHED, "r1")
    assert yard.decide(case) == []
    assert moved(yard, case, State.STARTING, 1.0) == ["inc-000001"]
    assert moved(yard, case, State.LOADING, 2.0) == []
    assert moved(yard, case, State.READY, 8.0) == ["inc-000001"]
    assert case.incident.stage is Stage.MENDING
    assert case.incident.action == "r1 was restarted and is ready again after 7 s"
    assert done(case) == ["observed", "r1 is started again", case.incident.action]
    assert case.incident.timeline[-1].at == nanos(8.0)
    assert moved(yard, case, State.READY, 9.0) == []  # and is said once


def test_a_restart_that_was_asked_for_is_told_once_and_counts_from_the_order() -> None:
    yard = Yard()
    case = yard.case(Cause.HUNG, "r1")
    yard.decide(case)
    assert moved(yard, case, State.STARTING, 30.0) == []
    moved(yard, case, State.READY, 40.0)
    assert done(case) == ["drain and restart r1", "r1 was restarted and is ready again after 40 s"]
    assert yard.decide(yard.case(Cause.HUNG, "r2"), 41.0) == [(Remedy.DRAIN_AND_RESTART, "r2")]


@pytest.mark.parametrize("restarted", [True, False])
def test_who_was_taken_out_is_told_when_it_serves_again(*, restarted: bool) -> None:
    yard = Yard()
    case = yard.case(Cause.WRONG_OUTPUT, "r1")
    assert yard.decide(case) == [(Remedy.TAKE_OUT, "r1")]
    yard.acting.done(case, "r1 gets no more work", 0)
    if restarted:  # by the health policy, after a minute of quarantine
        assert moved(yard, case, State.STARTING, 60.0) == ["inc-000001"]
    moved(yard, case, State.READY, 65.0)
    assert ("restarted" in case.incident.action) is restarted
    assert "ready again after 65 s" in case.incident.action
    assert moved(yard, case, State.READY, 66.0) == []


def test_whom_holdfast_did_not_start_it_did_not_restart() -> None:
    yard = Yard(managed=False)
    case = yard.case(Cause.CRASHED, "r1")
    yard.decide(case)
    assert moved(yard, case, State.STARTING, 1.0) == []
    assert moved(yard, case, State.READY, 8.0) == []
    assert done(case) == ["observed"]


def test_a_start_before_the_incident_is_none_of_its_doing() -> None:
    yard = Yard()
    earlier = yard.case(Cause.CRASHED, "r1")
    moved(yard, earlier, State.STARTING, 1.0)
    case = yard.case(Cause.LOAD_STALLED, "r1")
    case.incident.opened_at = nanos(60.0)
    assert moved(yard, case, State.READY, 90.0) == []
    told_late = yard.case(Cause.CRASHED, "r2")  # its end was told a moment after its new start
    moved(yard, earlier, State.STARTING, 99.0)
    told_late.roots = dict(earlier.roots)
    told_late.incident.opened_at = nanos(100.0)
    assert moved(yard, told_late, State.READY, 101.0) == ["inc-000003"]


def test_starts_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOOKS_MAX", 1)
    yard = Yard()
    first, second = yard.case(Cause.CRASHED, "r1"), yard.case(Cause.CRASHED, "r2")
    moved(yard, first, State.STARTING, 1.0)
    moved(yard, second, State.STARTING, 2.0)
    assert moved(yard, first, State.READY, 3.0) == []
    yard.acting.forget("r2")
    assert moved(yard, second, State.READY, 3.0) == []


# --- what only others report ----------------------------------------------------------------------


def reported_case(yard: Yard, source: str = REPORTED) -> IncidentCase:
    case = yard.case(Cause.GPU_FAULT, "r1")
    case.seen.clear()
    about = yard.census.about("r1")
    case.add(SeenEvidence(Evidence(Sign.GPU_FAULT, about, 0, source, "Xid 79")), 0)
    case.write(CAUSES, 0)
    return case


def test_what_only_a_report_says_asks_a_canary_and_takes_nobody_out() -> None:
    yard = Yard()
    case = reported_case(yard)
    assert yard.decide(case) == []
    assert [*yard.acting.take_doubted()] == ["r1"]
    assert "only a report from outside says so" in case.incident.action
    assert case.incident.timeline[-1].what == "refused"
    assert yard.decide(case, 5.0) == []
    assert yard.acting.take_doubted() == {}  # asked once
    assert yard.acting.settled(nanos(10.0)) == [case.incident.id]  # and looked at again


def test_what_control_saw_itself_is_acted_on_at_once() -> None:
    yard = Yard()
    assert yard.decide(reported_case(yard, "host")) == [(Remedy.RELOCATE, "r1")]


@pytest.mark.parametrize("source", ["canary", "gateway", "host"])
def test_a_second_source_of_our_own_corroborates_a_report(source: str) -> None:
    yard = Yard()
    case = reported_case(yard)
    assert yard.decide(case) == []
    about = yard.census.about("r1")
    case.add(SeenEvidence(Evidence(Sign.CANARY_WRONG, about, 1, source, "t")), 1)
    assert yard.decide(case, 1.0) == [(Remedy.RELOCATE, "r1")]


def test_a_replica_that_is_not_ready_corroborates_a_report() -> None:
    yard = Yard()
    case = reported_case(yard)
    assert yard.decide(case) == []
    yard.state("r1", State.SUSPECT)
    assert yard.decide(case, 1.0) == [(Remedy.RELOCATE, "r1")]


@given(st.lists(st.sampled_from([*Sign]), min_size=1, max_size=20), st.integers(1, 4))
@settings(max_examples=examples(100))
def test_reports_alone_never_take_a_ready_replica_out(signs: list[Sign], count: int) -> None:
    yard = Yard()
    names = ["r1", "r2", "r3", "r4"][:count]
    case = yard.case(Cause.CUDA_CORRUPTED, *names)
    case.seen.clear()
    for number, sign in enumerate(signs):
        about = yard.census.about(names[number % count])
        case.add(SeenEvidence(Evidence(sign, about, number, REPORTED, "t")), number)
    for name in names:  # each of them is spoken of
        about = yard.census.about(name)
        told = Evidence(Sign.LOG_CUDA_CORRUPTED, about, 99, REPORTED, "t")
        case.add(SeenEvidence(told), 99)
    case.write(CAUSES, 99)
    taken = {Remedy.TAKE_OUT, Remedy.DRAIN_AND_RESTART, Remedy.RELOCATE}
    for at in (1.0, 6.0, 30.0):
        assert not taken & {remedy for remedy, _ in yard.decide(case, at)}
