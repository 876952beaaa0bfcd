from random import Random

import pytest

from holdfast.core.canary import CanaryConfig, CanarySuspect, CanaryVerdict
from holdfast.core.health.canary_doubt import LatestCanary
from holdfast.core.health.canary_evidence import (
    CanaryEvidence,
    UsersBeside,
    may_blame_silence,
    may_condemn,
    users_beside,
)
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import HealthConfig, ReplicaHealth, Signal
from holdfast.core.health.member import Member
from holdfast.core.messages import CanaryResult, Tally
from holdfast.core.types import MILLISECOND, SECOND, Replica

NOW = 1000 * SECOND
PERIOD = 11 * SECOND  # the longest time between two canaries: 5 s, jitter, and 5 s to answer
USUAL = 400 * MILLISECOND
PASS, SLOW = Signal.CANARY_PASS, Signal.CANARY_SLOW


def a_member(name: str, *signals: Signal, model: str = "m") -> Member:
    health = ReplicaHealth(HealthConfig(), name, model, 0, Random(1))
    member = Member(Replica(name, model), health, CanaryConfig())
    for signal in (Signal.LOADED, PASS, *signals):
        health.handle(signal, 0)
    return member


def hearing(*members: Member) -> CanaryEvidence:
    return CanaryEvidence(FleetConfig(), {member.replica.id: member for member in members})


def answered(member: Member, passed: bool, at: int = NOW) -> Member:
    member.canary_at, member.canary_passed = at, passed
    return member


def timed(witnesses: CanaryEvidence, member: Member, latency: int, **kwargs) -> Signal:
    signal, _ = witnesses.in_good_time(
        member, CanaryResult(member.replica.id, CanaryVerdict.PASS, latency, **kwargs)
    )
    return signal


def settled(witnesses: CanaryEvidence, *members: Member, latency: int = USUAL) -> None:
    for _ in range(5):
        for member in members:
            assert timed(witnesses, member, latency) is PASS


# --- in good time --------------------------------------------------------------------------------


def test_busy_peers_that_became_slow_too_speak_for_an_idle_one():
    idle, *busy = (a_member(name) for name in ("r1", "r2", "r3"))
    witnesses = hearing(idle, *busy)
    settled(witnesses, idle, *busy)
    for _ in range(3):
        for member in busy:  # not judged themselves, but they show that it is everybody's trouble
            assert timed(witnesses, member, 3 * USUAL, running=4) is PASS
    assert timed(witnesses, idle, 3 * USUAL) is PASS
    assert timed(witnesses, idle, 6 * USUAL) is SLOW


def test_thrice_as_slow_as_ever_is_slow_and_says_how_slow():
    r1, r2 = a_member("r1"), a_member("r2")
    witnesses = hearing(r1, r2)
    settled(witnesses, r1, r2)
    signal, why = witnesses.in_good_time(r1, CanaryResult("r1", CanaryVerdict.PASS, 3 * USUAL))
    assert signal is SLOW
    assert "1.200 s where 0.400 s is usual" in why
    assert "peers take 0.400 s" in why


def test_in_good_time_keeps_what_the_canary_had_to_tell():
    r1 = a_member("r1")
    witnesses = hearing(r1)
    for running in (0, 3):
        told = CanaryResult(
            "r1", CanaryVerdict.PASS, USUAL, running, detail="no peer confirmed it yet"
        )
        assert witnesses.in_good_time(r1, told) == (PASS, "no peer confirmed it yet")


def test_a_newcomer_is_not_judged_before_it_has_a_usual():
    r1, r2 = a_member("r1"), a_member("r2")
    witnesses = hearing(r1, r2)
    settled(witnesses, r2)
    assert [timed(witnesses, r1, n * SECOND) for n in (1, 9, 1, 9)] == [PASS] * 4


def test_slow_answers_do_not_teach_what_is_usual():
    r1, r2 = a_member("r1"), a_member("r2")
    witnesses = hearing(r1, r2)
    settled(witnesses, r1, r2)
    assert {timed(witnesses, r1, 3 * USUAL) for _ in range(200)} == {SLOW}


@pytest.mark.parametrize(("running", "inflight"), [(1, 0), (None, 1), (0, 1), (7, 3)])
def test_a_busy_replica_is_never_slow_and_learns_nothing(running, inflight):
    r1, r2 = a_member("r1"), a_member("r2")
    witnesses = hearing(r1, r2)
    settled(witnesses, r1, r2)
    before = r1.baseline.export()["buckets"]
    r1.inflight_at = {"g1": inflight}
    assert timed(witnesses, r1, 100 * USUAL, running=running) is PASS
    assert r1.baseline.export()["buckets"] == before  # its peers are told what it took


def test_a_replica_without_peers_is_compared_with_itself():
    r1 = a_member("r1")
    witnesses = hearing(r1, a_member("o1", model="other"))
    settled(witnesses, r1)
    assert timed(witnesses, r1, 3 * USUAL) is SLOW


def test_where_most_peers_are_as_slow_it_is_everybodys_trouble():
    members = [a_member(f"r{n}") for n in range(4)]
    witnesses = hearing(*members)
    settled(witnesses, *members)
    for peer in members[1:3]:
        for _ in range(2):
            timed(witnesses, peer, 3 * USUAL)
    assert timed(witnesses, members[0], 3 * USUAL) is PASS


def test_a_stopped_peer_says_nothing_of_how_quick_the_pool_is():
    r1, r2, r3 = a_member("r1"), a_member("r2"), a_member("r3")
    witnesses = hearing(r1, r2, r3)
    settled(witnesses, r1, r2, r3)
    for _ in range(2):
        timed(witnesses, r2, 3 * USUAL)
    settled(witnesses, r3)
    r3.health.handle(Signal.FROZEN, NOW)
    assert timed(witnesses, r1, 3 * USUAL) is PASS


# --- asking peers --------------------------------------------------------------------------------


def test_peers_of_the_same_model_are_asked_at_once():
    r1, r2, o1 = a_member("r1"), a_member("r2"), a_member("o1", model="other")
    for member in (r1, r2, o1):
        member.health.next_canary_at = member.wake_at = NOW + SECOND
    hearing(r1, r2, o1).ask_peers(r1, NOW)
    due = [member.health.canary_due(NOW) for member in (r1, r2, o1)]
    assert due == [False, True, False]
    assert [member.wake_at for member in (r1, r2, o1)] == [NOW + SECOND, NOW, NOW + SECOND]


def test_those_who_are_slow_do_not_call_each_other_without_end():
    r1, *peers = (a_member(f"r{n}") for n in range(1, 5))
    for member in peers:
        member.health.next_canary_at = NOW + SECOND
    r1.slow = peers[0].slow = True
    peers[1].canary_out = True  # its answer will tell
    hearing(r1, *peers).ask_peers(r1, NOW)
    assert [member.health.canary_due(NOW) for member in peers] == [False, False, True]
    r1.slow = False  # it failed
    hearing(r1, *peers).ask_peers(r1, NOW)
    assert [member.health.canary_due(NOW) for member in peers] == [True, True, True]


# --- witnesses of a lie --------------------------------------------------------------------------


def test_a_peer_that_passed_lately_is_a_witness():
    r1, r2 = answered(a_member("r1"), passed=False), answered(a_member("r2"), passed=True)
    decision = hearing(r1, r2).witness(r1, NOW)
    assert decision
    assert "r2" in decision.reason


@pytest.mark.parametrize(
    ("passed", "at"), [(False, NOW), (True, NOW - PERIOD - 1), (True, 0)], ids=str
)
def test_a_peer_that_failed_or_was_not_asked_lately_is_none(passed, at):
    r1, r2 = answered(a_member("r1"), passed=False), answered(a_member("r2"), passed, at)
    assert not hearing(r1, r2).witness(r1, NOW)


def test_without_peers_no_witness_is_waited_for():
    r1 = answered(a_member("r1"), passed=False)
    stopped = a_member("r2", Signal.FROZEN)
    assert hearing(r1).witness(r1, NOW)
    assert hearing(r1, stopped).witness(r1, NOW)


# --- silence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "own"),
    [
        ([NOW - SECOND], True),
        ([NOW - 2 * SECOND, NOW], True),
        ([NOW - 60 * SECOND], False),
        ([NOW - 60 * SECOND, NOW - SECOND // 2], False),  # all stood still, and it is the first
    ],
)
def test_silence_is_its_own_where_a_peer_was_heard_of_meanwhile(heard, own):
    r1, r2 = a_member("r1"), a_member("r2")
    for at in heard:
        r2.hear(at)
    r1.silent_from = NOW - 5 * SECOND
    assert bool(hearing(r1, r2).silence(r1, NOW)) is own


@pytest.mark.parametrize(
    "signal", [Signal.FROZEN, Signal.EXITED, Signal.DRAIN, Signal.TAKEN_OUT, Signal.RELAUNCH]
)
def test_a_peer_that_is_not_there_need_not_be_heard_of(signal):
    r1, r2 = a_member("r1"), a_member("r2", signal)
    r1.silent_from = NOW - 5 * SECOND
    assert hearing(r1, r2).silence(r1, NOW)


@pytest.mark.parametrize(
    ("overdue", "asked", "inflight", "own"),
    [
        (NOW - 3 * SECOND, NOW - 60 * SECOND, 0, True),  # nobody asked the peer
        (NOW - 3 * SECOND, NOW - 4 * SECOND, 0, False),  # it was asked, and is silent as well
        (NOW - 3 * SECOND, NOW - 60 * SECOND, 1, False),  # and so is one with users
        (0, NOW - 60 * SECOND, 0, False),  # no user waits for the replica
    ],
)
def test_who_was_not_asked_is_not_silent_where_users_wait_in_vain(overdue, asked, inflight, own):
    r1, r2 = a_member("r1"), a_member("r2")
    r1.silent_from, r1.overdue_at = NOW - 5 * SECOND, overdue
    r2.canary_asked_at, r2.inflight_at["gateway"] = asked, inflight
    assert bool(hearing(r1, r2).silence(r1, NOW)) is own
    r1.hear(NOW - 2 * SECOND)  # it has answered since the request was overdue
    r1.silent_from = NOW - 5 * SECOND
    assert not hearing(r1, r2).silence(r1, NOW)


# --- doubt about the canaries --------------------------------------------------------------------


def failing(name: str) -> Member:
    return answered(a_member(name), passed=False, at=NOW - 4 * SECOND)


def test_all_failing_at_once_is_doubted_and_told_once_until_somebody_passes():
    r1, r2 = failing("r1"), failing("r2")
    witnesses = hearing(r1, r2)
    actions: list = []
    assert witnesses.doubt("m", NOW, actions)
    assert witnesses.doubt("m", NOW, actions)
    (doubted,) = actions
    assert (doubted.canaries, doubted.model, doubted.replica_id) == (CanarySuspect.CHECKER, "m", "")
    assert witnesses.doubts["m"].reason == doubted.reason
    answered(r2, passed=True)
    assert not witnesses.doubt("m", NOW, actions)
    assert actions[-1].canaries is CanarySuspect.NOBODY
    assert witnesses.doubts == {}
    assert not witnesses.doubt("m", NOW, actions)
    assert len(actions) == 2
    assert witnesses.was_doubted("m", NOW - 1)
    assert not witnesses.was_doubted("m", NOW)
    assert not witnesses.was_doubted("other", 0)


@pytest.mark.parametrize(
    ("failed_s", "served_s", "suspect"),
    [
        (1, 4, CanarySuspect.REPLICAS),
        (1, 60, CanarySuspect.REPLICAS),
        (1, 2, CanarySuspect.CHECKER),  # it may be the same second, told by two gateways
        (4, 1, CanarySuspect.CHECKER),  # somebody was served since
        (60, 90, CanarySuspect.CHECKER),  # long ago
    ],
)
def test_where_users_fail_as_well_no_checker_is_at_fault(failed_s, served_s, suspect):
    r1, r2 = failing("r1"), failing("r2")
    r1.failed_at, r2.served_at = NOW - failed_s * SECOND, NOW - served_s * SECOND
    other = a_member("o1", model="other")
    other.failed_at, other.served_at = NOW, NOW
    witnesses = hearing(r1, r2, other)
    actions: list = []
    assert witnesses.doubt("m", NOW, actions)  # states are held all the same
    assert [notice.canaries for notice in actions] == [suspect]


def test_those_who_could_not_have_passed_are_not_asked():
    r1, r2 = answered(a_member("r1"), passed=False), answered(a_member("r2"), passed=False)
    loading = answered(a_member("r3", Signal.RELAUNCH), passed=True)
    other = answered(a_member("o1", model="other"), passed=True)
    assert hearing(r1, r2, loading, other).doubt("m", NOW, [])


def test_a_stopped_process_that_does_not_answer_raises_no_doubt_about_the_others():
    r1 = answered(a_member("r1"), passed=False)
    stopped = answered(a_member("r2", Signal.FROZEN), passed=False)
    assert not hearing(r1, stopped).doubt("m", NOW, [])


# --- the rules behind them -----------------------------------------------------------------------


def results(*passed: bool, at: int = 0) -> list[LatestCanary]:
    return [LatestCanary(f"r{i}", at, p) for i, p in enumerate(passed)]


def test_a_liar_is_condemned_when_a_peer_gave_the_expected_answer():
    verdict = may_condemn(results(False, True), "r0", PERIOD, PERIOD, members=2)
    assert verdict
    assert verdict.reason == "r1 gave the expected answer"


def test_its_own_earlier_pass_is_no_witness_against_it():
    assert not may_condemn(results(True, False), "r0", 0, PERIOD, members=2)


def test_an_old_witness_does_not_count():
    assert not may_condemn(results(False, True), "r0", PERIOD + 1, PERIOD, members=2)


def test_without_peers_no_witness_is_needed():
    assert may_condemn(results(False), "r0", 0, PERIOD, members=1).allowed


# --- silence -------------------------------------------------------------------------------------


def test_silence_is_ones_own_where_a_peer_was_heard_of_meanwhile():
    verdict = may_blame_silence([PERIOD, 3 * PERIOD], 2 * PERIOD, 3 * PERIOD)
    assert verdict.allowed
    assert verdict.reason == "1 of its peers were heard of meanwhile"


def test_who_is_asked_first_in_a_silent_pool_is_not_blamed():
    verdict = may_blame_silence([PERIOD, PERIOD], 2 * PERIOD, 3 * PERIOD)
    assert not verdict.allowed
    assert "may be everybody's" in verdict.reason


def test_word_from_the_first_two_seconds_may_tell_of_the_time_before():
    assert not may_blame_silence([2 * SECOND - 1], 0, PERIOD)
    assert may_blame_silence([2 * SECOND], 0, PERIOD)


def test_a_short_wait_has_a_short_beginning():
    assert not may_blame_silence([SECOND // 10 - 1], 0, SECOND // 5)
    assert may_blame_silence([SECOND // 10], 0, SECOND // 5)


def test_without_peers_silence_needs_no_witness():
    assert may_blame_silence([], 0, PERIOD)


# --- users beside a canary -----------------------------------------------------------------------

BEGAN = NOW - 5 * SECOND


def users_of(member: Member, *told: tuple[str, int, int, int]) -> UsersBeside:
    for gateway, inflight, tokens, at in told:
        member.users(gateway, Tally("m", member.replica.id, 0, 0, 0, inflight, tokens), at)
    return users_beside(member, BEGAN, NOW)


@pytest.mark.parametrize(
    ("told", "users"),
    [
        ((), UsersBeside()),  # no gateway said anything
        ((("g", 2, 9, NOW),), UsersBeside(2, progress=True)),
        ((("g", 2, 9, BEGAN + SECOND - 1),), UsersBeside(2, progress=False)),  # of earlier
        ((("g", 0, 0, BEGAN),), UsersBeside(0, progress=False)),  # nobody waits for any
        ((("g", 2, 0, NOW),), UsersBeside(2, progress=False)),
    ],
)
def test_what_users_did_beside_a_canary(told, users):
    assert users_of(a_member("r1"), *told) == users


def test_a_gateway_that_has_not_told_yet_may_know_of_progress():
    r1 = a_member("r1")
    r1.users("g", Tally("m", "r1", 0, 0, 0, 1, 0), BEGAN)
    assert users_beside(r1, BEGAN, BEGAN + 2 * SECOND) == UsersBeside(1, progress=None)
    assert users_beside(r1, BEGAN, BEGAN + 3 * SECOND) == UsersBeside(1, progress=False)


def test_progress_that_was_told_outlives_a_relaunch():
    r1 = a_member("r1")
    r1.users("g", Tally("m", "r1", 0, 0, 0, 2, 9), NOW)
    r1.begin_life()
    r1.users("g", Tally("m", "r1", 0, 0, 0, 2, 0), NOW)
    assert users_beside(r1, BEGAN, NOW) == UsersBeside(2, progress=True)
