"""Canaries that are late: how many are a sign, by how late they are, beside whom, on which host."""

from dataclasses import replace

import pytest

from canary_facts import NAMES, canary, made, signs, told
from holdfast.core.diagnose.detect.canary.config import ProbingConfig
from holdfast.core.diagnose.detect.canary.failures import ProbingDetector
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import AttemptsSeen, Declared
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND

# --- must fire ------------------------------------------------------------------------------------

USUAL = [canary("pass", name, latency_s=0.4, running=0) for name in NAMES for _ in range(3)]
LATE = canary("timeout", progress=False, moved_s=4.0, gap_s=0.4, latency_s=5.0, running=0)


def test_answers_that_are_late_all_along_are_slow_after_two_if_a_peer_is_well_meanwhile():
    well = canary("pass", "r2", latency_s=0.4, running=0)
    assert signs(made(), *USUAL, LATE, well, every=3) == []
    assert signs(made(), *USUAL, LATE, well, LATE, every=3) == [Sign.CANARY_SLOW]
    assert signs(made(), *USUAL, LATE, well, LATE) == []  # within 7 s: a burst
    assert signs(made(), *USUAL, LATE, well, LATE, every=2) == [Sign.CANARY_SLOW]  # 9 s
    assert signs(made(), *USUAL, LATE, LATE, every=6) == []  # no peer since: it may be everybody's
    late = canary("slow", latency_s=4.0, moved_s=3.4, gap_s=0.4, running=0)
    assert signs(made(), *USUAL, late, well, late, every=3) == [Sign.CANARY_SLOW]
    one_pause = canary("slow", latency_s=4.0, moved_s=3.4, gap_s=3.2, running=0)
    assert signs(made(), *USUAL, one_pause, well, one_pause, every=3) == []
    first_token = canary("slow", latency_s=4.0, moved_s=0.4, gap_s=0.1, running=0)
    assert signs(made(), *USUAL, first_token, well, first_token, every=3) == []


def test_replicas_that_are_late_all_along_together_name_none_of_them():
    rounds = [replace(LATE, replica=name) for _ in range(6) for name in NAMES]
    assert signs(made(), *USUAL, *rounds) == []


def test_a_single_answer_that_is_late_all_along_names_nobody():
    well = [canary("pass", name, latency_s=0.4, running=0) for name in NAMES]
    assert signs(made(), *USUAL, LATE, *well, LATE, *well) == []


LITTLE = AttemptsSeen("r1", 1.0, tokens=30, prompts=40)


def test_late_answers_beside_little_work_of_a_few_users_are_slow_after_two():
    well = canary("pass", "r2", latency_s=0.4, running=0)
    beside = replace(LATE, progress=True, running=2)
    row = (LITTLE, beside, well, LITTLE, beside)
    assert signs(made(), *USUAL, *row[:4], every=3) == []
    assert signs(made(), *USUAL, *row, every=3) == [Sign.CANARY_SLOW]
    ended = canary("pass", latency_s=4.5, moved_s=4.0, gap_s=0.4, running=1)
    row = (LITTLE, ended, well, LITTLE, ended)
    assert signs(made(), *USUAL, *row, every=3) == [Sign.CANARY_SLOW]
    many = replace(beside, running=5)
    assert signs(made(), *USUAL, *[LITTLE, many, well] * 5, every=3) == []
    brief = canary("pass", latency_s=2.4, moved_s=2.3, gap_s=0.1, running=1)  # not told of yet
    assert signs(made(), *USUAL, *[LITTLE, brief, well] * 5, every=3) == []


@pytest.mark.parametrize("much", [{"prompts": 2_000}, {"tokens": 2_000}, {"prompts": None}])
def test_late_answers_beside_much_work_take_three_and_must_be_later(much):
    """A prompt that is read has a part of every step; of what nobody tells it may be the reason."""
    well = canary("pass", "r2", latency_s=0.4, running=0)
    work = replace(LITTLE, **much)
    later = canary("pass", latency_s=5.5, moved_s=5.0, gap_s=0.4, running=1)  # 11 times
    assert signs(made(), *USUAL, *[work, later, well] * 2, every=3) == []
    assert signs(made(), *USUAL, *[work, later, well] * 3, every=3) == [Sign.CANARY_SLOW]
    assert signs(made(), *USUAL, *[later, well] * 3, every=3) == [Sign.CANARY_SLOW]  # nobody tells
    late = replace(later, moved_s=3.0, latency_s=3.4)
    assert signs(made(), *USUAL, *[work, late, well] * 5, every=3) == []
    assert signs(made(), *USUAL, *[LITTLE, late, well] * 2, every=3) == [Sign.CANARY_SLOW]


@pytest.mark.parametrize(("ago", "named"), [(1, True), (40, False)])
def test_users_who_wait_now_make_a_row_older_and_those_of_long_ago_do_not(ago, named):
    well = canary("pass", "r2", latency_s=0.4, running=0)
    waits, beside = replace(LITTLE, waits=(12.0,)), replace(LATE, progress=True, running=2)
    begun = (*USUAL, waits, *[LITTLE] * ago, *[waits] * named, *[LITTLE] * (8 * named), waits)
    found = signs(made(), *begun, LITTLE, beside, well, beside)  # 7 s by themselves
    assert (found == [Sign.CANARY_SLOW]) is named


def test_an_answer_that_did_not_begin_in_time_beside_little_work_makes_one_late_answer_enough():
    well = canary("pass", "r2", latency_s=0.4, running=0)
    waited = canary("timeout", progress=True, latency_s=6.0, quiet_s=6.0, running=2)
    late = replace(LATE, progress=True, running=2)
    assert signs(made(), *USUAL, LITTLE, waited, well, LITTLE, late, every=3) == [Sign.CANARY_SLOW]
    # An engine whose answers are lost begins none: that is no slow one.
    assert signs(made(), *USUAL, *[LITTLE, waited, well] * 5, every=3) == []
    # And with more to read, or beside more users, it waits for them.
    work, many = replace(LITTLE, prompts=2_000), replace(waited, running=5)
    assert signs(made(), *USUAL, work, waited, well, LITTLE, late, every=3) == []
    assert signs(made(), *USUAL, LITTLE, many, well, LITTLE, late, every=3) == []
    quick = canary("pass", latency_s=0.4, running=0)
    ended = (LITTLE, waited, quick, well, LITTLE, late)
    assert signs(made(), *USUAL, *ended, every=3) == []


def test_a_late_first_token_beside_a_user_says_nothing():
    well = canary("pass", "r2", latency_s=0.4, running=0)
    behind = canary("pass", latency_s=4.5, moved_s=0.3, gap_s=0.1, running=1)
    assert signs(made(), *USUAL, *[LITTLE, behind, well] * 5) == []


def test_a_late_start_of_a_replica_hides_no_slow_answers():
    """Its first canaries waited for their first token; how fast tokens come is known even so."""
    start = [
        canary("pass", latency_s=took_s, moved_s=0.35, gap_s=0.05, running=0)
        for took_s in (2.6, 0.6, 1.1)
    ]
    well = canary("pass", "r2", latency_s=0.4, moved_s=0.35, gap_s=0.05, running=0)
    slow = canary("pass", latency_s=3.4, moved_s=2.8, gap_s=0.6, running=1)
    row = (LITTLE, slow, well, LITTLE, slow)
    assert signs(made(), *start, *row, every=3) == [Sign.CANARY_SLOW]
    idle = replace(slow, running=0)
    assert signs(made(), *start, idle, well, idle, every=4) == [Sign.CANARY_SLOW]
    busy = canary("pass", latency_s=2.3, moved_s=1.7, gap_s=0.8, running=1)
    assert signs(made(), *start, *[LITTLE, busy, well] * 5, every=3) == []


def test_three_slow_ones_in_a_row_are_a_sign():
    slow = canary("slow", latency_s=2.5)
    found = told(made(), slow, slow, slow)
    assert [one.sign for one in found] == [Sign.CANARY_SLOW]
    assert found[0].numbers == {"canaries": 3.0, "latency_s": 2.5}
    assert signs(made(), *[canary("slow")] * 3) == [Sign.CANARY_SLOW]


@pytest.mark.parametrize(("times", "row"), [(10.0, 3), (4.0, 3), (3.2, 5), (3.0, 6)])
def test_the_slower_they_are_the_fewer_are_enough(times, row):
    facts = [*[canary("pass", latency_s=0.4)] * 5, *[canary("slow", latency_s=0.4 * times)] * 20]
    detector = made()
    first = next(at for at, fact in enumerate(facts) if detector.take(fact, at * SECOND))
    assert first == 5 + row - 1


def hosted(**hosts):
    """Replicas by name, each of a model of its own, on these hosts; all of them are well."""
    census = ReplicaRegistry()
    for name, host in hosts.items():
        census.take(Declared(name, f"model-of-{name}", "1", host))
    detector = ProbingDetector(ProbingConfig(), census)
    for at in range(-64, 0):
        for name in hosts:
            detector.take(canary("pass", name, latency_s=0.336, running=0), at * 5 * SECOND)
    return detector


def shared(detector, mates, times, rounds=60, **how):
    """Canaries of r1 and of others every five seconds; when r1 was first told of, by the round."""
    first = None
    for at in range(rounds):
        for name, factor in mates.items():
            verdict = "slow" if factor >= 2 else "pass"
            fact = canary(verdict, name, latency_s=0.336 * factor, running=0)
            assert not detector.take(fact, at * 5 * SECOND)
        fact = canary("slow", latency_s=0.336 * times, running=0, **how)
        found = detector.take(fact, at * 5 * SECOND + SECOND)
        first = at + 1 if found and first is None else first
    return first


@pytest.mark.parametrize(
    "mates", [{}, {"r2": 1.0}, {"r2": 1.15}, {"r2": 1.0, "r3": 1.7, "r4": 1.0}]
)
@pytest.mark.parametrize(("times", "row"), [(10.0, 3), (4.0, 3), (3.2, 5)])
def test_a_replica_that_is_slow_alone_on_its_host_is_told_as_soon_as_one_without_hosts(
    mates, times, row
):
    detector = hosted(r1="host", **dict.fromkeys(mates, "host"))
    assert shared(detector, mates, times) == row


def test_slow_replicas_on_another_host_and_on_unknown_ones_excuse_nobody():
    assert shared(hosted(r1="host", r2="other"), {"r2": 1.7}, 4.0) == 3
    assert shared(hosted(r1="", r2=""), {"r2": 1.7}, 4.0) == 3


def test_a_replica_much_slower_than_its_slow_host_is_told_once_no_stall_explains_it():
    assert shared(hosted(r1="host", r2="host"), {"r2": 1.7}, 10.0) == 4
    # Of a host that lost more than half of its speed all are told: no neighbour takes so much.
    both = hosted(r1="host", r2="host")
    late = [canary("slow", name, latency_s=3.4, running=0) for name in ("r1", "r2")]
    assert {one.about.replica for one in told(both, *late * 4, every=3)} == {"r1", "r2"}


@pytest.mark.parametrize("times", [2.1, 2.5])
def test_a_replica_that_is_as_slow_as_its_host_is_not_told_however_long_that_lasts(times):
    detector = hosted(r1="host", r2="host")
    assert shared(detector, {"r2": 1.7}, times, rounds=300) is None  # 25 minutes


def test_stalls_beside_a_neighbour_are_no_slow_replica():
    # A neighbour makes 1.7 of everything, and stalls of a second, which are noise alone, do more.
    detector = hosted(r1="host", r2="host")
    found = []
    for at, stall in enumerate([1.0, 1.1, 1.0, *[2.4, 2.3, 2.4] * 8]):
        for name in ("r2", "r1"):
            mine = 1.7 * (stall if name == "r1" else 1.0)
            verdict = "slow" if mine >= 2 else "pass"
            fact = canary(verdict, name, latency_s=0.336 * mine, running=0)
            found += detector.take(fact, at * 5 * SECOND)
    assert not found
    alone = hosted(r1="host")
    noise = canary("slow", latency_s=0.336 * 1.7 * 2.4, running=0)
    assert signs(alone, noise, noise, noise) == [Sign.CANARY_SLOW]


def test_what_others_on_its_host_took_minutes_ago_or_beside_users_excuses_nobody():
    slow = [canary("slow", latency_s=1.4, running=0)] * 3
    long_ago = hosted(r1="host", r2="host")
    for at in range(5):
        long_ago.take(canary("pass", "r2", latency_s=0.6, running=0), at * SECOND)
    found = [long_ago.take(fact, (100 + at) * SECOND) for at, fact in enumerate(slow)]
    assert found[-1]
    busy = hosted(r1="host", r2="host")
    beside = [canary("pass", "r2", latency_s=0.9, running=6)] * 5
    assert signs(busy, *beside, *slow) == [Sign.CANARY_SLOW]


@pytest.mark.parametrize(
    ("mate", "apart", "named"), [(1.0, 6, 2), (1.7, 4, 4), (1.7, 6, 3), (1.7, 12, 2)]
)
def test_on_a_slow_host_late_answers_are_a_sign_after_longer(mate, apart, named):
    # A stall beside a neighbour lasts for ten seconds: three canaries may meet the same one.
    census = ReplicaRegistry()
    for name, model, host in (("r1", "m", "host"), ("mate", "other", "host"), ("r2", "m", "")):
        census.take(Declared(name, model, "1", host))
    detector = ProbingDetector(ProbingConfig(), census)
    found = []
    for at in range(-8, 4):
        for place, name in enumerate(("r1", "mate", "r2")):
            times = {"r1": 15.0 if at >= 0 else 1.0, "mate": mate if at >= -3 else 1.0}.get(name, 1)
            moved_s, gap_s = 0.3 * times, 0.03 * times
            verdict = "slow" if times >= 2 else "pass"
            how = {"latency_s": 0.336 * times, "running": 0, "moved_s": moved_s, "gap_s": gap_s}
            now = (apart * at + place) * SECOND
            found += [at + 1 for _ in detector.take(canary(verdict, name, **how), now)]
    assert found[0] == named


def test_half_the_speed_is_a_sign_after_twenty_minutes():
    detector = made()
    for _ in range(5):
        detector.take(canary("pass", latency_s=0.4), 0)
    found = [detector.take(canary("slow", latency_s=0.9), at * 10 * SECOND) for at in range(125)]
    assert not any(found[:120])
    assert found[120][0].sign is Sign.CANARY_SLOW
    assert found[120][0].numbers == pytest.approx(
        {"canaries": 121.0, "latency_s": 0.9, "usual_s": 0.4}
    )


def test_one_slow_of_three_is_accused_though_the_others_were_slow_long_ago():
    detector = made()
    detector.take(canary("slow", "r2"), 0)
    slow = [detector.take(canary("slow"), (100 + at) * SECOND) for at in range(3)]
    assert len(slow[2]) == 1


# --- must not fire --------------------------------------------------------------------------------


def test_a_neighbour_that_takes_half_of_its_speed_for_a_while_is_no_sign():
    usual, slow, stall = (
        canary("pass", latency_s=0.4),
        *(canary("slow", latency_s=s) for s in (0.85, 9.0)),
    )
    facts = [usual] * 5 + ([slow] * 40 + [stall] + [slow] * 40 + [usual]) * 3
    assert signs(made(), *facts) == []


def test_a_neighbour_while_everybody_is_slower_is_no_sign():
    detector = made()
    for name in NAMES:
        for _ in range(5):
            detector.take(canary("pass", name, latency_s=0.4), 0)
    for name in NAMES[1:]:
        detector.take(canary("pass", name, latency_s=0.75), 10 * SECOND)
    slow = [detector.take(canary("slow", latency_s=1.35), (11 + at) * SECOND) for at in range(20)]
    assert not any(slow)
    late = [detector.take(canary("slow", latency_s=1.35), (90 + at) * SECOND) for at in range(20)]
    assert any(late)  # nobody knows how its peers are now


def test_late_answers_beside_users_requests_neither_teach_what_is_usual_nor_end_the_row():
    """A slow replica that still serves now and then: its canaries meet users and are not judged."""
    quick, slow = canary("pass", latency_s=0.13, running=0), canary("slow", latency_s=1.3)
    beside = canary("pass", latency_s=1.3, running=1)
    facts = [*[quick] * 3, beside, slow, beside, beside, slow, beside, slow]
    found = told(made(), *facts)
    assert [one.sign for one in found] == [Sign.CANARY_SLOW]
    assert found[0].numbers == pytest.approx({"canaries": 3.0, "latency_s": 1.3, "usual_s": 0.13})


def test_a_quick_answer_beside_users_requests_ends_the_row():
    quick, slow = canary("pass", latency_s=0.13, running=0), canary("slow", latency_s=1.3)
    beside = canary("pass", latency_s=0.2, running=3)
    assert signs(made(), *[quick] * 3, *[slow, slow, beside] * 5) == []


def test_what_its_peers_take_is_usual_for_one_that_was_never_idle():
    detector = made()
    beside = canary("pass", latency_s=1.3, running=2)
    row = [canary("slow", latency_s=1.3), beside]
    for name in NAMES:
        detector.take(canary("pass", name, latency_s=1.0, running=2), 0)
    found = [detector.take(fact, at * SECOND) for at, fact in enumerate(row * 5)]
    assert not any(found)  # they take as long
    for name in NAMES[1:]:
        detector.take(canary("pass", name, latency_s=0.13, running=2), 20 * SECOND)
    found = [detector.take(fact, (21 + at) * SECOND) for at, fact in enumerate(row * 3)]
    assert [bool(one) for one in found] == [False, False, False, False, True, False]


def test_two_slow_ones_are_noise_and_a_slow_fleet_accuses_nobody():
    assert signs(made(), *[canary("slow"), canary("slow"), canary("pass")] * 5) == []
    fleet = [canary("slow", name) for _ in range(9) for name in NAMES]
    assert signs(made(), *fleet) == []
