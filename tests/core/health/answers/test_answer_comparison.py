from random import Random

import pytest

from holdfast.core.failure import Outcome
from holdfast.core.health.answers.answer_comparison import (
    RAISED,
    RAISED_FOR,
    AnswerComparison,
    ComparingConfig,
    same_answer,
)
from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.stats import PeakEwma
from holdfast.core.types import SECOND, ConfigError, Replica

NOW = 100 * SECOND
ALL = ComparingConfig(share=1.0)


def candidate(name: str, **declared) -> Candidate:
    replica = Replica(name, "m", **{"slots": 4, **declared})
    return Candidate(replica, Breaker(BreakerConfig(), Random(1)), PeakEwma())


def sampled(
    subject: AnswerComparison, count: int = 4_000, replica: str = "r1", now: int = NOW
) -> float:
    return sum(subject.wants(replica, 0.1, 0, now) for _ in range(count)) / count


# --- its config ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", 0.0),
        ("share", 1.1),
        ("in_flight_max", 0),
        ("in_flight_max", 65),
        ("saturation_max", 0.0),
        ("saturation_max", 1.5),
        ("text_max", 63),
        ("text_max", 2 << 20),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"comparison.{field}"):
        ComparingConfig(**{field: value})


# --- who is sampled ------------------------------------------------------------------------------


def test_about_the_configured_share_is_sampled():
    assert 0.04 < sampled(AnswerComparison(ComparingConfig(), Random(7))) < 0.06


def test_after_a_disagreement_both_are_sampled_more_closely_for_a_while():
    subject = AnswerComparison(ComparingConfig(), Random(7))
    subject.begin()
    subject.end("r1", "r2", False, NOW)
    for name in ("r1", "r2"):
        assert subject.share_of(name, NOW + SECOND) == RAISED * 0.05
        assert subject.share_of(name, NOW + RAISED_FOR) == 0.05
    assert subject.share_of("r3", NOW + SECOND) == 0.05
    assert 0.2 < sampled(subject) < 0.3


@pytest.mark.parametrize("agreed", [True, None])
def test_an_agreement_and_no_answer_raise_nothing(agreed):
    subject = AnswerComparison(ComparingConfig(), Random(7))
    subject.begin()
    subject.end("r1", "r2", agreed, NOW)
    assert subject.share_of("r1", NOW) == 0.05


def test_a_raised_share_is_never_more_than_all():
    subject = AnswerComparison(ComparingConfig(share=0.5), Random(7))
    subject.begin()
    subject.end("r1", "r2", False, NOW)
    assert subject.share_of("r1", NOW) == 1.0


def test_suspects_are_bounded_and_the_oldest_are_forgotten_first():
    subject = AnswerComparison(ComparingConfig(share=0.1), Random(7))
    for number in range(2_000):
        subject.begin()
        subject.end("r1", f"p{number}", False, NOW)
    assert subject.share_of("r1", NOW) == subject.share_of("p1999", NOW) == 0.5
    assert subject.share_of("p0", NOW) == 0.1


def test_nothing_is_asked_twice_where_users_need_the_room():
    subject = AnswerComparison(ALL, Random(7))
    assert subject.wants("r1", 0.69, 0, NOW)
    assert not subject.wants("r1", 0.7, 0, NOW)
    assert not subject.wants("r1", 0.1, 1, NOW)
    assert subject.wants("r1", None, 0, NOW)
    assert not subject.wants("r1", None, 1, NOW)


def test_only_so_many_are_asked_at_once():
    subject = AnswerComparison(ALL, Random(7))
    for _ in range(ALL.in_flight_max):
        assert subject.wants("r1", 0.1, 0, NOW)
        subject.begin()
    assert subject.in_flight == 4
    assert not subject.wants("r1", 0.1, 0, NOW)
    subject.end("r1", "r2", None, NOW)
    assert subject.wants("r1", 0.1, 0, NOW)


# --- who is asked --------------------------------------------------------------------------------


def test_a_peer_is_another_routable_replica_of_the_same_revision_with_room():
    own, fit = candidate("r1"), candidate("r2")
    other, full, out, broken, behind = (
        candidate("other", revision="2"),
        candidate("full"),
        candidate("out"),
        candidate("broken"),
        candidate("behind"),
    )
    full.inflight = 4
    out.weight = 0.0
    broken.breaker.record(Outcome.FAILURE, NOW, strong=True)
    behind.waiting = 3
    pool = [own, fit, other, full, out, broken, behind]
    subject = AnswerComparison(ALL, Random(7))
    assert {subject.peer(pool, "r1") for _ in range(50)} == {"r2"}
    assert subject.peer([own], "r1") is None
    assert subject.peer([fit], "r1") is None  # it has left meanwhile


def test_no_replica_waits_long_for_its_turn_to_be_compared():
    pool = [candidate(f"r{number}") for number in range(4)]
    subject, rng = AnswerComparison(ComparingConfig(), Random(7)), Random(8)
    last, waits, partners, compared = dict.fromkeys(range(4), 0), [], {}, 0
    for number in range(40_000):
        replica = rng.randrange(4)
        if not subject.wants(f"r{replica}", 0.1, 0, NOW):
            continue
        peer = int(subject.peer(pool, f"r{replica}")[1:])
        compared += 1
        partners.setdefault(replica, set()).add(peer)
        for one in (replica, peer):
            waits.append(number - last[one])
            last[one] = number
    assert 0.045 < compared / 40_000 < 0.055  # it costs the share and no more
    # A replica takes part in one of forty answers here: by tosses one wait in a hundred were 184.
    assert sorted(waits)[len(waits) * 99 // 100] < 100
    assert all(met == set(range(4)) - {one} for one, met in partners.items())


def test_an_answer_whose_turn_is_put_off_is_made_up_for_once():
    subject = AnswerComparison(ComparingConfig(share=0.1), Random(7))
    assert not any(subject.wants("r1", 0.9, 0, NOW) for _ in range(1_000))
    wanted = [subject.wants("r1", 0.1, 0, NOW) for _ in range(5)]
    assert wanted == [True, False, False, False, False]


def test_turns_are_kept_for_a_bounded_number_of_replicas():
    pool = [candidate(f"r{number}") for number in range(1_200)]
    subject = AnswerComparison(ALL, Random(7))
    for number in range(1_200):
        assert subject.wants(f"r{number}", 0.1, 0, NOW)
        subject.peer(pool[number:], f"r{number}")
    assert max(len(subject._left), len(subject._turns), len(subject._partner)) <= 1_024


def test_peers_take_turns():
    pool = [candidate(f"r{number}") for number in range(4)]
    subject = AnswerComparison(ALL, Random(7))
    assert {subject.peer(pool, "r0") for _ in range(100)} == {"r1", "r2", "r3"}


def test_a_tenant_that_stays_in_its_regions_is_compared_there_only():
    pool = [
        candidate("r1", region="eu"),
        candidate("r2", region="eu"),
        candidate("r3", region="us"),
    ]
    subject = AnswerComparison(ALL, Random(7))
    assert {subject.peer(pool, "r1", ("eu",)) for _ in range(50)} == {"r2"}


# --- whether they agree --------------------------------------------------------------------------

LONG = " ".join(f"word{chr(97 + number % 26)}{chr(97 + number // 26)}" for number in range(120))
OTHER = " ".join(f"term{chr(97 + number % 26)}{chr(97 + number // 26)}" for number in range(120))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (LONG, LONG),
        (LONG, f"  {LONG} "),
        ("The answer is 42.", "the answer is 42"),
        (LONG, " ".join(LONG.split()[:40] + OTHER.split()[40:])),  # a tie, broken either way
        (LONG, " ".join(LONG.split()[:17] + OTHER.split()[17:])),
        (LONG, " ".join(["termaa", *LONG.split()[1:]])),  # one word of many
        (LONG, " ".join(LONG.split()[:70])),  # most of it
    ],
)
def test_answers_of_sound_replicas_agree(left, right):
    assert same_answer(left, right)
    assert same_answer(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (LONG, OTHER),
        ("The answer is 42.", "The answer is 43."),
        (LONG, " ".join(LONG.split()[:8] + OTHER.split()[8:])),  # parts within the first words
        (LONG, " ".join(LONG.split()[:20])),  # breaks off
        (LONG, "!!!!!!!!"),
        ("one two three four five", "five four three two one"),
        ("\u6771\u4eac\u306f\u6674\u308c", "\u5927\u962a\u306b\u96e8\u5929"),
    ],
)
def test_other_answers_do_not(left, right):
    assert not same_answer(left, right)
    assert not same_answer(right, left)


def test_the_reason_quotes_neither():
    reason = same_answer("secret alpha", "secret beta").reason
    assert "alpha" not in reason
    assert "secret" not in reason
