from dataclasses import replace
from random import Random

import pytest

from holdfast.core.failure import Outcome
from holdfast.core.messages import ReplicaView
from holdfast.core.request import routing
from holdfast.core.request.breaker import (
    TRIAL,
    Breaker,
    BreakerConfig,
    BreakerState,
    CountedFailure,
)
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.failover import FailoverConfig, FailoverLadder
from holdfast.core.request.pool import TRIAL_REASON, Pool
from holdfast.core.stats import PeakEwma
from holdfast.core.types import MILLISECOND, SECOND, Replica, Request, State

ASK = Request("q1", "m", arrived=0)
BREAKER = BreakerConfig(cooldown_s=1.0, jitter=0.0)


def view(
    name: str, share: float = 1.0, state: State | None = None, *, firm: bool = False, **declared
) -> ReplicaView:
    replica = Replica(name, "m", **{"slots": 2, **declared})
    return ReplicaView(replica, state or (State.READY if share else State.QUARANTINED), share, firm)


def pool(*views: ReplicaView, now: int = 0, **failover: object) -> Pool:
    def candidate(replica: Replica) -> Candidate:
        return Candidate(replica, Breaker(BREAKER, Random(1)), PeakEwma())

    policy = routing.build("round_robin", Random(1))
    subject = Pool("m", policy, FailoverLadder(FailoverConfig(**failover)), candidate)
    subject.apply(views, now)
    return subject


def chosen(subject: Pool, now: int = 0, tried: tuple[str, ...] = (), revision: str | None = None):
    choice = subject.choose(ASK, tried, now, revision)
    return None if choice is None else choice[0].id


def who(subject: Pool, count: int = 8, **kwargs: object) -> set[str | None]:
    return {chosen(subject, **kwargs) for _ in range(count)}


def refuse(subject: Pool, name: str, now: int = 0) -> None:
    """A refused connection: its breaker opens for one second."""
    subject.candidates[name].breaker.record(Outcome.FAILURE, now, strong=True)
    subject.changed(now)


def fill(subject: Pool, name: str, inflight: int = 2) -> None:
    subject.candidates[name].inflight = inflight


def fail(subject: Pool, name: str, now: int = 0, *, proof: bool = False) -> None:
    """Five users' failures: its breaker opens for one second."""
    breaker = subject.candidates[name].breaker
    for _ in range(5):
        breaker.record(Outcome.FAILURE, now, failure=CountedFailure("t", None, proof=proof))
    assert breaker.state is BreakerState.OPEN
    subject.changed(now)


# --- users' word against half of a pool at most --------------------------------------------------


def test_users_failures_keep_half_of_a_pool_out_and_no_more():
    subject = pool(*(view(f"r{n}") for n in range(4)))
    fail(subject, "r0", 1)
    fail(subject, "r1", 2)
    assert who(subject, now=3) == {"r2", "r3"}
    assert subject.held_open == ()
    fail(subject, "r2", 3)
    assert who(subject, now=4) == {"r2", "r3"}  # the first two stay out
    assert subject.held_open == ("r2",)
    fail(subject, "r3", 4)
    assert who(subject, now=5) == {"r2", "r3"}
    assert subject.routable == 2


def test_proof_keeps_all_of_a_pool_out():
    subject = pool(view("r1"), view("r2"))
    fail(subject, "r1", proof=True)
    refuse(subject, "r2")
    assert who(subject) == {None}
    assert subject.held_open == ()


def test_the_only_replica_is_tried_whatever_users_meet():
    subject = pool(view("r1"), view("r2", share=0.0))
    fail(subject, "r1")
    assert who(subject) == {"r1"}
    assert subject.held_open == ("r1",)


def test_one_that_is_overruled_has_its_trial_and_closes_by_it():
    subject = pool(view("r1"))
    fail(subject, "r1")
    assert subject.choose(ASK, (), 0) is not None
    candidate, reason = subject.choose(ASK, (), 2 * SECOND)
    assert reason == TRIAL_REASON
    assert candidate.breaker.allow(2 * SECOND) is TRIAL
    subject.changed(2 * SECOND)
    assert chosen(subject, now=2 * SECOND) == "r1"  # while the trial runs, too
    candidate.breaker.record(Outcome.SUCCESS, 2 * SECOND, trial=True)
    subject.changed(2 * SECOND)
    assert chosen(subject, now=2 * SECOND) == "r1"
    assert subject.held_open == ()


# --- taking over a view --------------------------------------------------------------------------


def test_every_routable_replica_of_the_view_is_chosen_in_its_turn():
    assert who(pool(view("r1"), view("r2"), view("r3"))) == {"r1", "r2", "r3"}


def test_a_replica_with_a_share_of_nothing_gets_nothing():
    subject = pool(view("r1"), view("r2", share=0.0))
    assert who(subject) == {"r1"}
    assert subject.routable == 1


def test_a_replica_weighs_its_declared_weight_times_the_share_that_health_grants():
    subject = pool(view("r1", share=0.1, state=State.SUSPECT, weight=3.0))
    assert subject.candidates["r1"].weight == pytest.approx(0.3)
    assert subject.candidates["r1"].state is State.SUSPECT


def test_a_replica_that_the_view_no_longer_names_is_forgotten():
    subject = pool(view("r1"), view("r2"))
    subject.apply([view("r2")], 1)
    assert list(subject.candidates) == ["r2"]
    assert who(subject, now=1) == {"r2"}


def test_an_empty_view_leaves_nobody_to_choose():
    subject = pool(view("r1"))
    subject.apply([], 1)
    assert chosen(subject, 1) is None
    assert not subject.ready(1)
    assert not subject.has_room(1)


def test_what_a_gateway_knows_of_a_replica_outlives_a_new_view():
    subject = pool(view("r1"))
    known = subject.candidates["r1"]
    known.inflight = 2
    subject.apply([view("r1", slots=3, zone="zone-b")], 1)
    assert subject.candidates["r1"] is known
    assert (known.inflight, known.limit, known.zone) == (2, 3, "zone-b")


def test_a_new_process_is_not_judged_by_what_the_old_one_did():
    subject = pool(view("r1"), view("r2"))
    for candidate in subject.candidates.values():
        candidate.latency.observe(9.0, 1)
    subject.apply([view("r1", share=0.0, state=State.STARTING), view("r2")], 2)
    assert subject.candidates["r1"].latency.value is None
    assert subject.candidates["r2"].latency.value == 9.0
    subject.candidates["r1"].latency.observe(2.0, 3)
    subject.apply([view("r1", share=0.0, state=State.STARTING), view("r2")], 4)
    assert subject.candidates["r1"].latency.value == 2.0


def test_canaries_that_passed_bring_the_trial_forward_but_do_not_replace_it():
    subject = pool(view("r1", share=0.0), view("r2"))
    refuse(subject, "r1")
    subject.apply([view("r1"), view("r2")], 100 * MILLISECOND)
    choice = subject.choose(ASK, (), 100 * MILLISECOND)
    assert choice is not None
    assert (choice[0].id, choice[1]) == ("r1", TRIAL_REASON)


def test_a_view_that_repeats_ready_does_not_cut_a_cooldown_short():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    subject.apply([view("r1"), view("r2")], 100 * MILLISECOND)
    assert who(subject, now=100 * MILLISECOND) == {"r2"}


# --- breakers and trials -------------------------------------------------------------------------


def test_an_open_breaker_subtracts_from_the_view_until_its_cooldown_is_over():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    assert who(subject, now=SECOND - 1) == {"r2"}
    assert subject.routable == 1
    assert chosen(subject, SECOND) == "r1"


def test_choosing_for_a_trial_claims_nothing_until_the_attempt_is_opened():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    assert who(subject, now=SECOND) == {"r1"}
    assert subject.candidates["r1"].breaker.state is BreakerState.OPEN


def test_there_is_one_trial_at_a_time():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    assert chosen(subject, SECOND) == "r1"
    assert subject.candidates["r1"].breaker.allow(SECOND) is TRIAL
    subject.changed(SECOND)
    assert who(subject, now=100 * SECOND) == {"r2"}


def test_a_trial_that_passed_puts_the_replica_back_among_the_others():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    breaker = subject.candidates["r1"].breaker
    breaker.allow(SECOND)
    breaker.record(Outcome.SUCCESS, SECOND, trial=True)
    subject.changed(SECOND)
    assert who(subject, now=SECOND) == {"r1", "r2"}


def test_a_request_that_has_failed_once_is_no_guinea_pig():
    subject = pool(view("r1"), view("r2"), view("r3"))
    refuse(subject, "r1")
    assert who(subject, now=SECOND, tried=("r2",)) == {"r3"}


def test_a_trial_needs_room_like_any_attempt():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    fill(subject, "r1")
    assert who(subject, now=SECOND) == {"r2"}


def test_a_pool_of_nothing_but_trials_is_ready_and_has_room():
    subject = pool(view("r1"))
    refuse(subject, "r1")
    assert not subject.ready(0)
    assert subject.ready(SECOND)
    assert subject.has_room(SECOND)
    fill(subject, "r1")
    assert not subject.has_room(SECOND)


def test_several_cooldowns_end_each_at_its_own_time():
    subject = pool(view("r1"), view("r2"), view("r3"))
    refuse(subject, "r1", 0)
    refuse(subject, "r2", SECOND // 2)
    assert chosen(subject, SECOND) == "r1"
    assert subject.candidates["r1"].breaker.allow(SECOND) is TRIAL
    subject.changed(SECOND)
    assert chosen(subject, SECOND) == "r3"
    assert chosen(subject, SECOND + SECOND // 2) == "r2"


def test_a_quarantined_replica_gets_no_trial_while_control_is_heard_of():
    subject = pool(view("r1"), view("r2", share=0.0))
    refuse(subject, "r2")
    assert who(subject, now=SECOND) == {"r1"}


def test_a_trial_never_crosses_a_revision_behind_the_users_back():
    subject = pool(view("r1"), view("r2"), view("r3", revision="2"))
    refuse(subject, "r3")
    assert who(subject, now=SECOND) == {"r1", "r2"}


# --- revisions -----------------------------------------------------------------------------------


def test_a_request_stays_on_the_revision_of_the_majority():
    assert who(pool(view("r1"), view("r2"), view("r3", revision="2"))) == {"r1", "r2"}


def test_an_ill_majority_does_not_move_requests_to_another_revision():
    subject = pool(view("r1"), view("r2"), view("r3", revision="2"))
    refuse(subject, "r1")
    refuse(subject, "r2")
    assert chosen(subject) is None


def test_a_pool_whose_only_well_replicas_are_of_another_revision_is_not_ready():
    subject = pool(view("r1", share=0.0), view("r2", share=0.0), view("r3", revision="2"))
    assert not subject.ready(0)
    assert not subject.has_room(0)
    assert subject.routable == 0


def test_a_continuation_is_bound_to_the_revision_that_began_it():
    both = {"allowed_revisions": ("1", "2")}
    subject = pool(view("r1"), view("r2", revision="2"), **both)
    assert who(subject) == {"r1", "r2"}
    assert who(subject, revision="2") == {"r2"}
    assert who(subject, revision="3") == {None}


def test_a_trial_serves_a_continuation_only_on_its_own_revision():
    subject = pool(view("r1"), view("r2", revision="2"), allowed_revisions=("1", "2"))
    refuse(subject, "r2")
    assert chosen(subject, SECOND, revision="1") == "r1"
    assert chosen(subject, SECOND, revision="2") == "r2"


def test_a_pool_serves_the_revisions_of_whoever_is_routable_full_or_not():
    subject = pool(view("r1"), view("r2", revision="2"), revision_gate=False)
    fill(subject, "r1")
    assert subject.serves("1", 0)
    refuse(subject, "r2")
    assert not subject.serves("2", 0)
    assert subject.serves("2", SECOND)
    assert not subject.serves("3", SECOND)


# --- room ----------------------------------------------------------------------------------------


def test_a_full_pool_has_nobody_to_choose():
    subject = pool(view("r1"), view("r2"))
    fill(subject, "r1")
    assert who(subject) == {"r2"}
    assert subject.has_room(0)
    fill(subject, "r2")
    assert chosen(subject) is None
    assert not subject.has_room(0)
    assert subject.ready(0)


def test_who_was_tried_is_left_out():
    subject = pool(view("r1"), view("r2"))
    assert who(subject, tried=("r1",)) == {"r2"}
    assert chosen(subject, tried=("r1", "r2")) is None


def test_utilisation_is_attempts_per_slot_of_the_routable():
    subject = pool(view("r1"), view("r2"), view("r3", share=0.0))
    subject.ready(0)
    subject.inflight = 1
    assert subject.utilisation() == 0.25


def test_utilisation_is_unknown_without_a_limit_and_without_a_replica():
    subject = pool(view("r1", slots=0))
    subject.ready(0)
    assert subject.utilisation() is None
    subject.apply([], 1)
    subject.ready(1)
    assert subject.utilisation() is None


# --- regions -------------------------------------------------------------------------------------


def two_regions(**slots: int) -> Pool:
    return pool(
        view("near", region="home", slots=slots.get("near", 1)),
        view("far", region="away", slots=slots.get("far", 20)),
        home_region="home",
        spill_hold_s=1.0,
    )


def test_requests_stay_at_home_while_there_is_room():
    assert who(two_regions()) == {"near"}


def test_a_full_home_spills_into_a_region_with_room():
    subject = two_regions()
    fill(subject, "near", 1)
    assert chosen(subject) == "far"
    assert subject.has_room(0)


def test_nothing_spills_into_a_region_that_is_nearly_full_itself():
    subject = two_regions()
    fill(subject, "near", 1)
    fill(subject, "far", 19)
    assert chosen(subject) is None


def test_room_that_may_not_be_used_is_no_room():
    subject = two_regions()
    fill(subject, "near", 1)
    fill(subject, "far", 19)
    assert not subject.has_room(0)


def test_another_region_is_not_filled_up_though_nobody_is_left_at_home():
    subject = two_regions()
    subject.apply([view("far", region="away", slots=20)], 1)
    assert chosen(subject, 1) == "far"
    fill(subject, "far", 19)
    assert chosen(subject, 1) is None
    assert not subject.has_room(1)


def test_what_a_replica_far_away_keeps_is_asked_of_it_though_home_has_room():
    subject = two_regions()
    bound = Request("q", "m", arrived=0, holder="far")
    found = subject.choose(bound, (), 0)
    assert found is not None
    assert found[0].id == "far"
    fill(subject, "far", 19)  # nearly full: closed to others, and nobody else has what is asked
    assert subject.fits(bound, 0)
    fill(subject, "far", 20)
    assert subject.choose(bound, (), 0) is None
    assert not subject.fits(bound, 0)
    assert subject.fits(Request("p", "m", arrived=0), 0)
    subject.apply([view("near", region="home")], 1)
    assert subject.lost("far")
    assert subject.fits(bound, 1)  # to be told that nobody has it


def test_another_zone_of_the_home_region_may_be_filled_up():
    views = view("near", slots=1, zone="a"), view("beside", slots=20, zone="b")
    subject = pool(*views, home_region="region-a", home_zone="a")
    fill(subject, "near", 1)
    fill(subject, "beside", 19)
    assert subject.has_room(0)
    assert chosen(subject) == "beside"


def test_a_region_whose_capacity_is_unknown_is_not_taken_for_full():
    subject = two_regions(far=0)
    fill(subject, "near", 1)
    fill(subject, "far", 500)
    assert chosen(subject) == "far"


# --- a view that grows old -----------------------------------------------------------------------


def test_a_quarantine_on_suspicion_decays_to_a_trial_when_control_is_silent():
    subject = pool(view("r1"), view("r2", share=0.0))
    assert subject.doubt_view(0) == ["r2"]
    assert who(subject, now=0) == {"r1"}
    assert chosen(subject, SECOND) == "r2"
    assert subject.candidates["r2"].weight == pytest.approx(0.1)


def test_a_firm_verdict_stands_whatever_control_does():
    subject = pool(view("r1"), view("r2", share=0.0, firm=True))
    assert subject.doubt_view(0) == []
    assert who(subject, now=100 * SECOND) == {"r1"}


@pytest.mark.parametrize("state", [State.STARTING, State.LOADING, State.DRAINING, State.DEAD])
def test_only_quarantines_decay(state):
    subject = pool(view("r1"), view("r2", share=0.0, state=state))
    assert subject.doubt_view(0) == []
    assert who(subject, now=100 * SECOND) == {"r1"}


def test_one_that_panic_readmitted_has_nothing_to_decay():
    subject = pool(view("r1"), view("r2", share=0.1, state=State.QUARANTINED))
    assert subject.doubt_view(0) == []


def test_a_silent_control_is_doubted_once():
    subject = pool(view("r1"), view("r2", share=0.0))
    subject.doubt_view(0)
    assert subject.doubt_view(SECOND) == []


def test_a_heard_control_restores_its_quarantine():
    subject = pool(view("r1"), view("r2", share=0.0))
    subject.doubt_view(0)
    subject.apply([view("r1"), view("r2", share=0.0)], SECOND)
    assert who(subject, now=100 * SECOND) == {"r1"}
    assert subject.doubt_view(200 * SECOND) == ["r2"]


def test_a_decayed_quarantine_crosses_no_revision():
    subject = pool(view("r1"), view("r2"), view("r3", share=0.0, revision="2"))
    subject.doubt_view(0)
    assert who(subject, now=SECOND) == {"r1", "r2"}


# --- for people ----------------------------------------------------------------------------------


# --- regions and leased trials -------------------------------------------------------------------


def test_a_request_bound_to_regions_is_served_in_them_only():
    subject = pool(view("r1", region="eu"), view("r2", region="us"))
    bound = Request("q2", "m", arrived=0, regions=("us",))
    assert {subject.choose(bound, (), 0)[0].id for _ in range(6)} == {"r2"}
    nowhere = Request("q3", "m", arrived=0, regions=("asia",))
    assert subject.choose(nowhere, (), 0) is None


def test_a_trial_outside_the_regions_of_a_request_is_not_made_with_it():
    subject = pool(view("r1", region="eu"), view("r2", region="us"))
    refuse(subject, "r1")
    bound = Request("q2", "m", arrived=0, regions=("us",))
    assert subject.choose(bound, (), 2 * SECOND)[0].id == "r2"
    assert subject.choose(ASK, (), 2 * SECOND)[1] == TRIAL_REASON


def test_a_trial_that_is_another_gateways_turn_is_wanted_and_not_made():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    subject.lease(frozenset(), 2 * SECOND)
    assert who(subject, now=2 * SECOND) == {"r2"}
    assert subject.trials(2 * SECOND) == (["r1"], [])
    subject.lease(frozenset({"r1"}), 2 * SECOND)
    assert chosen(subject, now=2 * SECOND) == "r1"
    assert subject.trials(2 * SECOND) == (["r1"], [])


def test_a_trial_under_way_is_told_as_running():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    assert subject.candidates["r1"].breaker.allow(2 * SECOND) is TRIAL
    subject.changed(2 * SECOND)
    assert subject.trials(2 * SECOND) == ([], ["r1"])


def test_without_control_every_gateway_tries_for_itself():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    subject.lease(frozenset(), 2 * SECOND)
    subject.doubt_view(2 * SECOND)
    assert chosen(subject, now=2 * SECOND) == "r1"


# --- a canary goes before a user ------------------------------------------------------------------


def unproven(name: str, **declared) -> ReplicaView:
    """One whose breaker opened somewhere, and which answered no canary since."""
    return replace(view(name, **declared), may_try=False)


def test_no_user_is_the_trial_before_a_canary_was_answered():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    subject.apply([unproven("r1"), view("r2")], 0)
    for now in (2 * SECOND, 600 * SECOND):
        assert who(subject, now=now) == {"r2"}
        assert subject.trials(now) == ([], [])  # nor does it ask for the turn
    subject.apply([view("r1"), view("r2")], 600 * SECOND)
    assert chosen(subject, now=600 * SECOND) == "r1"


def test_a_canary_does_not_shorten_a_cooldown():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    subject.apply([unproven("r1"), view("r2")], 0)
    assert who(subject, now=SECOND // 4) == {"r2"}
    subject.apply([view("r1"), view("r2")], SECOND // 2)
    assert who(subject, now=SECOND // 2) == {"r2"}
    assert chosen(subject, now=SECOND) == "r1"


def test_where_nobody_else_could_serve_a_user_tells_as_ever():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    refuse(subject, "r2")
    subject.apply([unproven("r1"), unproven("r2")], 0)
    assert not subject.ready(SECOND // 2)
    assert chosen(subject, now=2 * SECOND) == "r1"
    assert subject.trials(2 * SECOND) == (["r1", "r2"], [])
    subject.apply([unproven("r1"), view("r2")], 2 * SECOND)
    assert chosen(subject, now=2 * SECOND) == "r2"


def test_an_unproven_replica_of_another_revision_is_no_way_out():
    subject = pool(view("r1"), view("r2", revision="2"))
    refuse(subject, "r1")
    refuse(subject, "r2")
    subject.apply([unproven("r1"), unproven("r2", revision="2")], 0)
    assert who(subject, now=2 * SECOND) == {"r1"}


def test_without_control_nobody_waits_for_a_canary():
    subject = pool(view("r1"), view("r2"))
    refuse(subject, "r1")
    subject.apply([unproven("r1"), view("r2")], 0)
    subject.doubt_view(10 * SECOND)
    assert chosen(subject, now=10 * SECOND) == "r1"
    subject.apply([unproven("r1"), view("r2")], 11 * SECOND)
    assert who(subject, now=11 * SECOND) == {"r2"}
