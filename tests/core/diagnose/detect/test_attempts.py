"""Users' attempts: what is a sign, and what is chance, a busy replica or a slow fleet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.attempts import SIGNS, AttemptsConfig, AttemptsDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Declared,
    LoadSeen,
    Looked,
    ProcessEnded,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Kind
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

NAMES = ("r1", "r2", "r3", "r4")
PAUSED = {Kind.BETWEEN_TOKENS_TIMEOUT: 4}


def made():
    census = ReplicaRegistry()
    for name in NAMES:
        census.take(Declared(name, "m", "1"))
    return AttemptsDetector(AttemptsConfig(), census)


def seen(replica="r1", **values):
    return AttemptsSeen(replica, 1.0, **values)


def told(detector, *facts):
    return [one for at, fact in facts for one in detector.take(fact, round(at * SECOND))]


def signs(detector, *facts):
    return [one.sign for one in told(detector, *facts)]


def well(at, *names):
    return [(at, seen(name, successes=10, inflight=5, tokens=500)) for name in names]


# --- must fire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SIGNS)
def test_three_failures_of_a_kind_among_a_few_successes_are_its_sign(kind):
    sign = SIGNS[kind][0]
    facts = [(0, seen(successes=5, failures={kind: 2})), (3, seen(failures={kind: 1}))]
    assert signs(made(), *facts, *[(at, Looked()) for at in range(4, 7)]) == [sign]


def test_the_evidence_says_how_many_of_how_many():
    [found] = told(made(), (1, seen(successes=4, failures={Kind.RESET: 6})))
    assert (found.sign, found.source, found.at) == (Sign.CONNECTIONS_LOST, "gateway", SECOND)
    assert found.about == About("r1", "m", "1")
    assert found.text == (
        "6 of 10 requests of the last 10 s lost their connection under the answer"
    )
    assert found.numbers == {"count": 6.0, "ended": 10.0}


def test_a_burst_that_opens_a_breaker_is_told_among_the_successes_of_a_moment_ago():
    busy = [(at, seen(successes=10)) for at in range(9)]
    burst = [(9, seen(successes=8, failures={Kind.CUT: 3})), (10, seen(failures={Kind.CUT: 2}))]
    assert signs(made(), *busy, *burst) == [Sign.STREAMS_CUT]


def test_four_among_many_in_two_seconds_are_chance():
    busy = [(at, seen(successes=10)) for at in range(9)]
    few = [(9, seen(successes=10, failures={Kind.CUT: 2}))] * 2
    assert signs(made(), *busy, *few) == []


def test_two_failures_are_enough_where_nothing_succeeds():
    facts = [(0, seen(failures={Kind.CUT: 1})), (4, seen(failures={Kind.CUT: 1}))]
    assert signs(made(), *facts) == [Sign.STREAMS_CUT]


def test_timeouts_of_one_replica_are_told_when_its_peers_were_heard():
    detector = made()
    facts = [*well(0, "r2", "r3", "r4"), (0, seen(failures={Kind.FIRST_TOKEN_TIMEOUT: 4}))]
    assert signs(detector, *facts, (1, Looked())) == []
    again = (3, seen(failures={Kind.FIRST_TOKEN_TIMEOUT: 1}))
    assert signs(detector, *well(2, "r2", "r3", "r4"), again, (4, Looked())) == [
        Sign.NO_FIRST_TOKEN
    ]


@pytest.mark.parametrize("kind", [Kind.FIRST_TOKEN_TIMEOUT, Kind.BETWEEN_TOKENS_TIMEOUT])
def test_timeouts_all_at_once_are_a_sign_when_a_canary_gets_no_answer_either(kind):
    detector = made()
    facts = [
        *well(0, "r2", "r3", "r4"),
        (0, seen(failures={kind: 3})),
        (1, seen(failures={kind: 1})),
        (2, Looked()),
        (3, CanaryAnswered("r1", CanaryVerdict.TIMEOUT)),
        (3, Looked()),
    ]
    assert signs(detector, *facts) == []
    assert signs(detector, *well(4, "r2", "r3", "r4"), (4, Looked())) == [SIGNS[kind][0]]


def test_a_pause_of_a_replica_that_is_seldom_asked_is_no_sign():
    """It compiled for three seconds, with the only two requests of the last ten in it."""
    facts = [*well(0, "r2", "r3", "r4"), (0, seen(failures={Kind.FIRST_TOKEN_TIMEOUT: 2}))]
    assert signs(made(), *facts, *[(at, Looked()) for at in range(1, 12)]) == []


def test_half_of_a_fleet_that_times_out_is_not_most_of_it():
    detector = made()
    bad = {Kind.BETWEEN_TOKENS_TIMEOUT: 4}
    facts = [*well(0, "r3", "r4"), (0, seen(failures=bad)), (0, seen("r2", failures=bad))]
    facts += [
        (3, CanaryAnswered("r1", CanaryVerdict.TIMEOUT)),
        (3, CanaryAnswered("r2", CanaryVerdict.TIMEOUT)),
    ]
    facts += [*well(5, "r3", "r4"), (6, Looked())]
    assert signs(detector, *facts) == [Sign.NO_NEXT_TOKEN] * 2


def test_a_lone_replica_is_accused_of_its_own_timeouts():
    facts = [(0, seen("lone", failures={Kind.CONNECT_TIMEOUT: 3})), (2, Looked())]
    assert signs(made(), *facts) == [Sign.UNREACHABLE]


def test_errors_faster_than_answers_are_told_apart_and_attract():
    facts = [*well(0, "r2", "r3", "r4")]
    facts += [(0, seen(failures={Kind.SERVER_ERROR: 40}, fast=40, share=0.57))]
    found = told(made(), *facts)
    assert [one.sign for one in found] == [Sign.ERRORS, Sign.FAST_ERRORS, Sign.ATTRACTS]
    assert found[2].text == (
        "it fails and gets 57% of its model's requests, where 25% would be its share"
    )
    assert found[2].numbers == pytest.approx({"share": 0.57, "fair_share": 0.25})


def test_what_attracts_is_told_at_the_same_pace():
    detector = made()
    bad = seen(failures={Kind.SERVER_ERROR: 40}, fast=40, share=0.57)
    facts = [pair for at in range(5) for pair in [*well(at, "r2", "r3", "r4"), (at, bad)]]
    assert signs(detector, *facts) == [Sign.ERRORS, Sign.FAST_ERRORS, Sign.ATTRACTS]


def test_a_replica_that_says_nothing_but_busy_for_the_whole_window_is_a_sign():
    facts = [(at, seen(backpressure=2)) for at in range(10)]
    assert signs(made(), *facts) == [Sign.BACKPRESSURE]
    facts = [(at, seen(failures={Kind.OVERLOADED: 2})) for at in range(10)]
    assert signs(made(), *facts) == [Sign.BACKPRESSURE]


def test_a_sign_is_told_twice_a_minute_and_again_when_it_comes_back():
    detector = made()
    bad = [(at, seen(failures={Kind.EMPTY: 3})) for at in range(35)]
    assert signs(detector, *bad) == [Sign.EMPTY_ANSWERS] * 2
    calm = [(at, Looked()) for at in range(35, 50)]
    assert signs(detector, *calm, (50, seen(failures={Kind.EMPTY: 3}))) == [Sign.EMPTY_ANSWERS]


# --- must not fire --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "life",
    [
        (2, seen(tokens=40, inflight=1)),
        (3, seen(successes=1)),
        (3, CanaryAnswered("r1", CanaryVerdict.PASS, 0.4)),
        (2, CanaryAnswered("r1", CanaryVerdict.SLOW, 1.0)),
    ],
)
def test_one_pause_that_ended_is_no_sign_however_many_waited_in_it(life):
    facts = [*well(0, "r2", "r3", "r4"), (0, seen(successes=2, failures=PAUSED)), life]
    assert signs(made(), *facts, *[(at, Looked()) for at in range(6, 12)]) == []


def test_a_long_prompt_that_stops_the_streams_and_holds_a_canary_up_is_no_sign():
    """Seven streams in one pause of five seconds; the canary waited behind them while they ran."""
    stopped = {Kind.BETWEEN_TOKENS_TIMEOUT: 7}
    facts = [*well(0, "r2", "r3", "r4"), (0, seen(inflight=11, tokens=48))]
    facts += [(3, seen(inflight=4, failures=stopped))]
    facts += [(4.4, CanaryAnswered("r1", CanaryVerdict.TIMEOUT, 8.4, 8, progress=True))]
    assert signs(made(), *facts, *[(at, Looked()) for at in range(5, 14)]) == []


def test_a_few_timeouts_beside_answers_of_a_busy_replica_are_no_sign():
    late = {Kind.FIRST_TOKEN_TIMEOUT: 1}
    facts = [*well(0, "r2", "r3", "r4"), (0, seen(inflight=11, tokens=1_600))]
    facts += [(1, seen(inflight=10, failures=late)), (3, seen(successes=1, failures=late))]
    facts += [
        (3.2, CanaryAnswered("r1", CanaryVerdict.PASS, 4.3, 10)),
        (4, seen(successes=1, failures=late)),
    ]
    assert signs(made(), *facts, *[(at, Looked()) for at in range(5, 11)]) == []


def test_timeouts_beside_answers_are_a_sign_when_they_go_on():
    stuck = {Kind.BETWEEN_TOKENS_TIMEOUT: 2}
    facts = [(at, seen(successes=1, failures=stuck)) for at in range(12)]
    assert signs(made(), *[(at, seen(successes=3, failures=stuck)) for at in range(12)]) == []
    found = told(made(), *facts)
    assert [one.sign for one in found] == [Sign.NO_NEXT_TOKEN]
    assert found[0].at == 7 * SECOND


def test_streams_that_stop_are_told_though_canaries_pass():
    stuck = {Kind.BETWEEN_TOKENS_TIMEOUT: 1}
    facts = [(at, seen(tokens=50, inflight=4, failures=stuck)) for at in range(4)]
    facts.insert(2, (1.5, CanaryAnswered("r1", CanaryVerdict.PASS, 0.4)))
    assert signs(made(), *facts) == [Sign.NO_NEXT_TOKEN]


def test_a_canary_answered_behind_the_last_timeout_excuses_them_until_they_go_on():
    """Streams stopped twice within a few seconds behind prompts; then a canary got its answer."""
    stopped = {Kind.BETWEEN_TOKENS_TIMEOUT: 3}
    facts = [*well(0, "r2", "r3", "r4"), (0, seen(inflight=7, failures=stopped))]
    facts += [(3, seen(inflight=4, failures=stopped))]
    answered = (4.4, CanaryAnswered("r1", CanaryVerdict.PASS, 4.3, 7))
    looks = [(at, Looked()) for at in range(5, 10)]
    assert signs(made(), *facts, *looks) == [Sign.NO_NEXT_TOKEN]
    assert signs(made(), *facts, answered, *looks) == []
    again = [(at, seen(inflight=4, failures=stopped)) for at in range(5, 9)]
    assert signs(made(), *facts, answered, *again) == [Sign.NO_NEXT_TOKEN]


def reading(at, unread=60_000, stopped=3):
    return (at, seen(inflight=7, unread=unread, failures={Kind.BETWEEN_TOKENS_TIMEOUT: stopped}))


def test_streams_that_stop_while_long_prompts_are_read_are_no_sign():
    """Two prompts of 60,000 tokens, one behind the other, and not a word meanwhile."""
    facts = [*well(0, "r1", "r2", "r3", "r4"), *(reading(at) for at in range(1, 20))]
    assert signs(made(), *facts) == []
    read = (20, seen(inflight=7, tokens=60_000, failures={Kind.BETWEEN_TOKENS_TIMEOUT: 3}))
    assert signs(made(), *facts, read, *[(at, Looked()) for at in range(21, 30)]) == []


def test_streams_that_stop_are_a_sign_once_the_prompts_would_have_been_read():
    facts = [*well(0, "r2", "r3", "r4"), *(reading(at, 10_000) for at in range(20))]
    found = told(made(), *facts)
    assert found
    assert found[0].sign is Sign.NO_NEXT_TOKEN
    assert found[0].at > 10 * SECOND


def test_prompts_that_explain_nothing_by_their_gateways_word_excuse_nothing():
    """One tenant's, whose prompts waited at a replica that hung before."""
    stopped = {Kind.BETWEEN_TOKENS_TIMEOUT: 3}
    told_so = [
        (at, seen(inflight=7, unread=300_000, explained_s=0.0, failures=stopped)) for at in range(9)
    ]
    found = told(made(), *well(0, "r2", "r3", "r4"), *told_so)
    assert [one.sign for one in found][:1] == [Sign.NO_NEXT_TOKEN]
    assert found[0].at <= 4 * SECOND


def test_a_page_that_stands_still_ends_the_excuse_of_long_prompts():
    page = LoadSeen("r1", running=7, kv_used=0.5, generated=100)
    facts = [*well(0, "r2", "r3", "r4")]
    for at in range(60):
        facts += [(at, page), reading(at, 300_000)]
    found = told(made(), *facts)
    assert [one.sign for one in found][:1] == [Sign.NO_NEXT_TOKEN]
    assert 30 * SECOND < found[0].at < 40 * SECOND


def test_a_canary_of_somebody_nobody_asked_anything_of_is_nothing():
    assert signs(made(), (0, CanaryAnswered("r1", CanaryVerdict.PASS, 0.4))) == []


@pytest.mark.parametrize("kind", Kind)
def test_one_failure_is_chance(kind):
    facts = [(0, seen(failures={kind: 1})), *[(at, Looked()) for at in range(1, 20)]]
    assert signs(made(), *facts) == []


@pytest.mark.parametrize("kind", SIGNS)
def test_a_few_failures_among_many_successes_are_chance(kind):
    facts = [(at, seen(successes=20, failures={kind: 2})) for at in range(40)]
    assert signs(made(), *facts) == []


def test_failures_that_lie_far_apart_do_not_add_up():
    facts = [(at * 10, seen(failures={Kind.RESET: 1})) for at in range(20)]
    assert signs(made(), *facts) == []


@pytest.mark.parametrize(
    "kind", [Kind.BAD_REQUEST, Kind.CLIENT_GONE, Kind.SUPERSEDED, Kind.DRAINED, Kind.DEADLINE]
)
def test_what_is_neutral_accuses_nobody(kind):
    facts = [(at, seen(failures={kind: 9})) for at in range(20)]
    assert signs(made(), *facts) == []


@pytest.mark.parametrize(
    "kind", [Kind.FIRST_TOKEN_TIMEOUT, Kind.BETWEEN_TOKENS_TIMEOUT, Kind.CONNECT_TIMEOUT]
)
def test_a_fleet_that_is_slow_as_a_whole_accuses_nobody_not_even_who_was_first(kind):
    facts = []
    for at in range(30):
        for number, name in enumerate(NAMES):
            late = {kind: 3} if at >= number / 2 else {}
            facts.append((at + number / 10, seen(name, successes=2, failures=late, inflight=9)))
        facts.append((at + 0.9, Looked()))
    assert signs(made(), *facts) == []


def test_peers_whose_requests_hang_and_have_not_timed_out_yet_are_slow_too():
    facts = [(0, seen(name, inflight=9)) for name in NAMES[1:]]
    facts += [(0, seen(failures={Kind.FIRST_TOKEN_TIMEOUT: 4})), (2, Looked()), (3, Looked())]
    assert signs(made(), *facts) == []


def test_a_busy_replica_that_also_serves_is_no_sign():
    facts = [(at, seen(backpressure=50, successes=at % 3 == 0)) for at in range(40)]
    assert signs(made(), *facts) == []
    short = [(at, seen(backpressure=50)) for at in range(5)]
    assert signs(made(), *short, (5, seen(successes=1))) == []


def test_slow_errors_are_no_fast_ones_and_a_fair_share_attracts_nothing():
    facts = well(0, "r2", "r3", "r4")
    errors = {Kind.SERVER_ERROR: 40}
    assert signs(made(), *facts, (0, seen(failures=errors, fast=3, share=0.9))) == [Sign.ERRORS]
    fair = [(0, seen(failures=errors, fast=40, share=0.26))]
    assert signs(made(), *facts, *fair) == [Sign.ERRORS, Sign.FAST_ERRORS]
    unknown = [(0, seen(failures=errors, fast=40))]
    assert signs(made(), *facts, *unknown) == [Sign.ERRORS, Sign.FAST_ERRORS]


def test_quick_refusals_are_refusals_and_no_errors():
    facts = [(0, seen(failures={Kind.REFUSED: 9}, fast=9, share=0.9))]
    assert signs(made(), *facts) == [Sign.REFUSES]


def test_a_new_process_and_a_forgotten_replica_begin_anew():
    detector = made()
    one = seen(failures={Kind.CUT: 1})
    assert signs(detector, (0, one), (1, ProcessEnded("r1")), (2, one)) == []
    detector.forget("r1")
    detector.forget("stranger")
    assert signs(detector, (3, one)) == []


def test_a_clock_that_steps_back_is_no_time():
    facts = [(at, seen(failures={Kind.CUT: 1})) for at in (100, 50)]
    assert signs(made(), *facts) == [Sign.STREAMS_CUT]


# --- any order ------------------------------------------------------------------------------------

COUNTS = st.integers(0, 5)
FACTS = st.one_of(
    st.builds(
        AttemptsSeen,
        st.sampled_from([*NAMES, "stranger"]),
        st.just(1.0),
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        st.dictionaries(st.sampled_from(Kind), COUNTS, max_size=3),
        COUNTS,
        st.none() | st.floats(0, 1),
    ),
    st.builds(ProcessEnded, st.sampled_from(NAMES)),
    st.just(Looked()),
)


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(FACTS, st.integers(-20, 20)), max_size=60))
def test_any_order_of_facts_is_taken_in_bounded_space_and_forgotten(steps):
    detector, now = made(), 10_000
    for fact, step in steps:
        now += step
        for found in detector.take(fact, now * SECOND):
            assert found.text
    for name in (*NAMES, "stranger"):
        detector.forget(name)
    assert not detector._books
    assert not detector._open


def test_a_window_has_a_bound():
    detector = made()
    for _ in range(1_000):
        detector.take(seen(successes=1), SECOND)
    assert len(detector._books["r1"].reports) == 256


@pytest.mark.parametrize(
    "values",
    [
        {"window_s": 0},
        {"settle_s": 10.0},
        {"pause_s": 10.0},
        {"share_min": 0},
        {"attract_factor": 1},
        {"alone_min": 1},
        {"failures_min": 1},
    ],
)
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"attempts.{next(iter(values))}"):
        AttemptsConfig(**values)
