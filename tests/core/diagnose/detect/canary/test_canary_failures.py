"""Canaries: which of their verdicts are signs, and after how many."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary_facts import NAMES, canary, made, signs, told
from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.causes.table import CAUSES
from holdfast.core.diagnose.detect.canary import failures as module
from holdfast.core.diagnose.detect.canary.config import ProbingConfig
from holdfast.core.diagnose.detect.canary.failures import ProbingDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanariesDoubted,
    CanaryAnswered,
    Declared,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.health.canary_doubt import RULINGS
from holdfast.core.health.lifecycle import Signal
from holdfast.core.types import SECOND, ConfigError, State
from sampling import examples

HUNG = canary("timeout", page_ok=True, progress=False)
GONE = canary("timeout", page_ok=False, progress=False)
CUT_OFF = replace(GONE, flaw="connect_timeout")


# --- must fire ------------------------------------------------------------------------------------


def test_the_first_wrong_answer_is_told_and_so_is_the_second():
    found = told(made(), *[canary("pass")] * 3, *[canary("wrong")] * 5)
    assert [one.sign for one in found] == [Sign.CANARY_WRONG] * 2
    assert found[0].text == "1 of its last 4 canaries got another answer than expected"
    assert found[1].numbers == {"wrong": 2.0, "canaries": 5.0}
    assert found[0].about == About("r1", "m", "1")
    assert found[0].source == "canary"


def test_wrong_answers_now_and_then_are_counted_across_right_ones():
    verdicts = ["wrong", *["pass"] * 9, "wrong"]
    assert len(told(made(), *map(canary, verdicts))) == 2


def test_two_timeouts_behind_a_page_that_answers_errors_are_a_silent_model_too():
    odd = canary("timeout", running=0, progress=False, page_ok=False, status=500)
    found = told(made(), odd, odd)
    assert [one.sign for one in found] == [Sign.CANARY_SILENT]
    assert found[0].text == "2 canaries in a row got no answer while its own page answered 500"


def test_two_timeouts_with_a_green_page_are_a_silent_model():
    found = told(made(), HUNG, HUNG, HUNG)
    assert [one.sign for one in found] == [Sign.CANARY_SILENT]
    assert found[0].text == "2 canaries in a row got no answer while its own page was well"


def test_an_answer_that_comes_piece_by_piece_and_does_not_end_drips():
    drip = canary("timeout", page_ok=True, progress=False, moved_s=5.0, gap_s=2.6, next_gap_s=2.4)
    [found] = told(made(), drip)
    assert found.sign is Sign.SLOW_TOKENS
    assert "piece by piece for 5.0 s" in found.text
    assert signs(made(), replace(drip, progress=True, running=5)) == []
    assert signs(made(), replace(drip, moved_s=0.2, gap_s=0.1, next_gap_s=0.1)) == []
    assert signs(made(), replace(drip, gap_s=None, next_gap_s=None)) == []  # nobody measured


def test_slow_pieces_with_one_pause_among_them_are_slow_and_no_drip():
    """A noisy neighbour slows every token and makes one of them wait: that is no drip."""
    usual = [canary("pass", latency_s=0.4, running=0)] * 3
    pieces = {"moved_s": 5.2, "gap_s": 2.4, "next_gap_s": 0.7}
    late = canary("timeout", progress=False, began=True, latency_s=5.6, running=0, **pieces)
    assert signs(made(), *usual, late, late) == []
    assert signs(made(), *usual, late, late, late) == [Sign.CANARY_SLOW]
    alone = replace(late, progress=True, running=1)
    assert signs(made(), *usual, alone, alone) == []


def test_pieces_that_come_steadily_and_too_late_are_slow_and_no_drip():
    usual = [canary("pass", latency_s=0.4, running=0)] * 3
    late = canary("timeout", progress=False, moved_s=4.0, gap_s=0.4, latency_s=5.0, running=0)
    assert signs(made(), *usual, late, late) == []
    assert signs(made(), *usual, late, late, late) == [Sign.CANARY_SLOW]
    apart = canary("timeout", progress=False, moved_s=5.0, gap_s=5.0, latency_s=5.6, running=0)
    assert signs(made(), *usual, apart) == []  # one pause may be the host's
    assert signs(made(), *usual, apart, apart) == [Sign.SLOW_TOKENS]
    twice = replace(apart, moved_s=8.0, gap_s=4.0, next_gap_s=3.0)
    assert signs(made(), *usual, twice) == [Sign.SLOW_TOKENS]


def test_pieces_seconds_apart_of_which_the_first_was_late_too_drip_at_once():
    usual = [canary("pass", latency_s=0.4, running=0)] * 3
    pieces = {"moved_s": 5.0, "gap_s": 5.0, "quiet_s": 0.1}
    drip = canary("timeout", progress=True, latency_s=10.2, running=1, **pieces)
    assert signs(made(), *usual, drip) == [Sign.SLOW_TOKENS]
    assert signs(made(), drip) == []  # what is usual is not known
    late_end = replace(drip, latency_s=10.2, quiet_s=4.6)  # the first came at once
    assert signs(made(), *usual, late_end) == []


def test_pieces_seconds_apart_of_which_the_first_was_late_drip_where_users_wait_too():
    usual = [canary("pass", name, latency_s=0.4, running=0) for name in ("r1", "r2") for _ in "123"]
    pieces = {"moved_s": 5.0, "gap_s": 5.0, "quiet_s": 0.1}
    drip = canary("timeout", progress=True, latency_s=10.2, running=2, **pieces)
    waits = AttemptsSeen("r1", 1.0, tokens=30, waits=(15.0,), prompts=40)
    assert signs(made(), *usual, waits, drip) == [Sign.SLOW_TOKENS]
    assert signs(made(), *usual, drip) == []
    assert signs(made(), *usual, waits, replace(drip, running=8)) == []
    for much in ({"prompts": 2_000}, {"tokens": 2_000}, {"prompts": None}):
        assert signs(made(), *usual, replace(waits, **much), drip) == []


def test_pieces_seconds_apart_beside_a_single_user_drip_although_tokens_move():
    apart = canary("timeout", progress=True, moved_s=5.0, gap_s=5.0, running=1)
    assert signs(made(), apart) == []
    assert signs(made(), apart, apart) == [Sign.SLOW_TOKENS]
    busy = canary("timeout", progress=True, moved_s=5.0, gap_s=5.0, running=8)
    assert signs(made(), busy) == []
    long_prompt = canary("timeout", progress=True, moved_s=5.0, gap_s=0.6, running=1)
    assert signs(made(), long_prompt, long_prompt, long_prompt, long_prompt) == []


def test_pieces_seconds_apart_beside_some_users_drip_when_it_happens_again():
    well = canary("pass", "r2", latency_s=0.3)
    apart = canary("timeout", progress=True, moved_s=5.0, gap_s=5.0, began=True, running=3)
    assert signs(made(), well, apart) == []  # one long prompt of theirs
    assert signs(made(), well, apart, apart) == [Sign.SLOW_TOKENS]
    assert signs(made(), apart, apart, apart) == []  # no peer answers: all are busy
    assert signs(made(), well, apart, canary("pass", latency_s=0.3), apart) == []
    twice = replace(apart, moved_s=10.0, next_gap_s=5.0)  # in one answer
    assert signs(made(), well, twice) == [Sign.SLOW_TOKENS]
    assert signs(made(), twice) == []
    assert signs(made(), well, replace(twice, running=8)) == []


def test_an_overdue_answer_that_is_read_on_is_one_canary_and_not_two():
    first = canary("timeout", progress=False, began=True, quiet_s=4.0, running=0, page_ok=True)
    overdue, ended = replace(first, reads_on=True), replace(first, quiet_s=6.0)
    well = canary("pass", "r2", latency_s=0.3)
    assert signs(made(), well, overdue, ended) == []
    assert signs(made(), well, overdue, ended, overdue) == [Sign.STALLED]
    drip = replace(ended, moved_s=5.0, gap_s=5.0, quiet_s=0.1)
    assert signs(made(), overdue, drip) == []
    assert signs(made(), overdue, drip, overdue, drip) == [Sign.SLOW_TOKENS]


def test_answers_that_begin_and_do_not_end_are_a_stall_and_no_silence():
    unended = replace(HUNG, began=True, running=0)
    found = told(made(), unended, unended)
    assert [one.sign for one in found] == [Sign.STALLED]
    assert "began" in found[0].text
    assert signs(made(), HUNG, unended) == [Sign.CANARY_SILENT]  # the first got nothing at all


def test_answers_that_do_not_end_beside_a_single_user_are_a_stall_though_tokens_move():
    unended = canary("timeout", progress=True, began=True, running=1)
    well = canary("pass", "r2", latency_s=0.3)
    assert signs(made(), well, unended) == []
    assert signs(made(), well, unended, unended) == [Sign.STALLED]
    assert signs(made(), unended, unended, unended) == []  # no peer answers: all are busy
    assert signs(made(), well, *[replace(unended, running=5)] * 4) == []
    assert signs(made(), well, unended, canary("pass", latency_s=0.3), unended) == []


def test_the_fleets_own_finding_that_no_answer_ends_is_a_stall():
    changed = StateChanged("r1", State.SUSPECT, Signal.UNENDED.value, "3 canaries in a row")
    assert signs(made(), changed) == [Sign.STALLED]
    assert signs(made(), replace(changed, signal=Signal.CANARY_FAIL.value)) == []
    busy = canary("timeout", progress=True, began=True, running=5, moved_s=5.0)
    assert signs(made(), replace(busy, gap_s=5.0), changed) == [Sign.SLOW_TOKENS]
    assert signs(made(), replace(busy, gap_s=0.4), changed) == [Sign.CANARY_SLOW]


def test_what_is_no_answer_at_all_is_told_beside_the_verdict():
    empty, same = canary("fail", status=200, flaw="empty"), canary("wrong", flaw="degenerate")
    assert signs(made(), empty) == []
    assert signs(made(), empty, empty) == [Sign.CANARY_ERRORS, Sign.EMPTY_ANSWERS]
    assert signs(made(), same) == [Sign.CANARY_WRONG, Sign.DEGENERATE]
    for flaw, sign in (("reset", Sign.CONNECTIONS_LOST), ("cut", Sign.STREAMS_CUT)):
        broken = canary("fail", flaw=flaw)
        assert signs(made(), broken) == []
        assert signs(made(), broken, broken) == [Sign.CANARY_ERRORS, sign]


def test_errors_in_a_tenth_of_the_usual_time_are_fast_ones():
    usual = [canary("pass", latency_s=0.13)] * 3
    fast = canary("fail", status=500, latency_s=0.002)
    late = canary("fail", status=500, latency_s=0.05)
    assert signs(made(), *usual, fast, fast) == [Sign.CANARY_ERRORS, Sign.FAST_ERRORS]
    assert signs(made(), *usual, late, late) == [Sign.CANARY_ERRORS]
    assert signs(made(), fast, fast) == [Sign.CANARY_ERRORS]  # nobody knows what is usual


def test_two_timeouts_of_the_page_as_well_are_a_process_that_does_not_answer():
    assert signs(made(), GONE, GONE) == [Sign.NOTHING_ANSWERS]


def test_no_connection_twice_is_a_replica_out_of_reach():
    assert signs(made(), CUT_OFF, CUT_OFF) == [Sign.UNREACHABLE]


def test_one_canary_without_a_connection_among_silent_ones_is_no_partition():
    assert signs(made(), GONE, CUT_OFF) == [Sign.NOTHING_ANSWERS]
    assert signs(made(), CUT_OFF, GONE) == [Sign.NOTHING_ANSWERS]


def test_a_page_that_stops_as_well_changes_the_sign():
    assert signs(made(), HUNG, HUNG, GONE, GONE) == [Sign.CANARY_SILENT, Sign.NOTHING_ANSWERS]


def test_an_idle_replica_without_a_page_is_silent_after_two_as_any_other():
    silent = canary("timeout", running=0)
    assert signs(made(), silent) == []
    found = told(made(), silent, silent)
    assert [one.sign for one in found] == [Sign.CANARY_SILENT]
    assert "has no page" in found[0].text


def test_where_nobody_knows_of_its_users_it_takes_one_more():
    unknown = canary("timeout", page_ok=True)
    assert [one.text[:1] for one in told(made(), *[unknown] * 5)] == ["3"]


def test_two_errors_and_two_refusals_in_a_row_are_signs():
    found = told(made(), canary("fail"), canary("fail", status=500))
    assert [one.sign for one in found] == [Sign.CANARY_ERRORS]
    assert found[0].text.endswith("an error, the last with status 500")
    assert signs(made(), canary("fail"), canary("fail")) == [Sign.CANARY_ERRORS]
    assert signs(made(), canary("refused"), canary("refused")) == [Sign.REFUSES]


def test_a_doubt_about_all_canaries_is_told_about_the_model_while_it_holds():
    detector = made()
    assert signs(detector, canary("pass")) == []
    assert not detector.take(CanariesDoubted("m", "all 3 failed"), 0)
    wrong = [one for at in range(43) for one in detector.take(canary("wrong"), at * SECOND)]
    assert [(one.sign, one.at) for one in wrong] == [
        (Sign.CANARIES_DOUBTED, 3 * SECOND),  # whether users fail is known by then
        (Sign.CANARIES_DOUBTED, 33 * SECOND),
    ]
    assert {(one.about, one.text) for one in wrong} == {(About(model="m"), "all 3 failed")}


def test_all_that_are_silent_are_told_as_such_and_not_one_by_one():
    detector = made()
    told(detector, canary("pass"))
    detector.take(CanariesDoubted("m", "nothing came back", answered=False), 0)
    silent = [one for at in range(10) for one in detector.take(HUNG, at * SECOND)]
    assert [(one.sign, one.about, one.text) for one in silent] == [
        (Sign.CANARIES_UNANSWERED, About(model="m"), "nothing came back")
    ]
    detector.take(CanariesDoubted("m"), 10 * SECOND)  # they speak again, and wrong
    [found] = detector.take(canary("wrong"), 13 * SECOND)
    assert found.sign is Sign.CANARIES_DOUBTED


def test_canaries_that_users_confirm_are_believed_again():
    detector = made()
    told(detector, canary("pass"), CanariesDoubted("m"), canary("fail"), canary("fail"))
    assert signs(detector, CanariesDoubted("m", confirmed=True)) == []
    assert signs(detector, canary("fail")) == [Sign.CANARY_ERRORS]


def test_an_answer_that_varies_on_all_replicas_counts_in_a_row_alone():
    """Near ties of a model fall one way or the other with the batch: nobody's own fault."""
    detector = made()
    calm = [canary("pass", name) for name in NAMES] * 2
    told(detector, *calm, canary("wrong", "r2"), *calm, canary("wrong"), *calm)
    [found] = told(detector, canary("wrong"))
    assert found.numbers["wrong"] == 1.0
    assert found.text.endswith("this model may answer in more than one way")
    [found] = told(detector, canary("wrong"))  # in a row: it is wrong whatever its peers do
    assert found.numbers["wrong"] == 2.0


@pytest.mark.parametrize("between", [[canary("pass", "r2")] * 700, [ProcessEnded("r2")]])
def test_that_a_peer_varies_is_remembered_beyond_its_latest_answers_and_its_process(between):
    detector = made()
    calm = [canary("pass", name) for name in NAMES]
    told(detector, *calm, canary("wrong", "r2"), *calm, *between, canary("wrong"), *calm)
    [found] = detector.take(canary("wrong"), 800 * SECOND)
    assert found.numbers["wrong"] == 1.0


def test_a_peer_that_varied_an_hour_ago_is_no_excuse():
    detector = made()
    calm = [canary("pass", name) for name in NAMES]
    told(detector, *calm, canary("wrong", "r2"), *calm)
    later = enumerate([canary("wrong"), *calm, canary("wrong")], start=3_700)
    found = [one for at, fact in later for one in detector.take(fact, at * SECOND)]
    assert [one.numbers["wrong"] for one in found] == [1.0, 2.0]


def test_one_replica_that_is_wrong_now_and_then_is_told_by_all_its_wrong_answers():
    detector = made()
    calm = [canary("pass", name) for name in NAMES] * 2
    told(detector, *calm, canary("wrong"), *calm)
    [found] = told(detector, canary("wrong"))
    assert found.numbers["wrong"] == 2.0


def test_a_doubt_about_the_checker_does_not_hide_a_closed_port():
    detector = made()
    told(detector, canary("pass"), CanariesDoubted("m"))
    assert signs(detector, canary("refused"), canary("refused")) == [Sign.REFUSES]


def test_a_right_answer_ends_the_doubt_and_wrong_ones_count_again():
    detector = made()
    told(detector, canary("pass"), CanariesDoubted("m"), canary("wrong"), canary("wrong"))
    assert signs(detector, canary("pass", "r2"), canary("wrong")) == [Sign.CANARY_WRONG]


def test_a_sign_is_told_twice_a_minute_and_again_when_it_comes_back():
    detector = made()
    assert len(told(detector, *[HUNG] * 40)) == 2
    assert signs(detector, canary("pass"), HUNG, HUNG) == [Sign.CANARY_SILENT]


# --- must not fire --------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["busy", "unknown", "unsettled", "pass"])
def test_what_proves_nothing_is_no_sign(verdict):
    assert signs(made(), *[canary(verdict)] * 20) == []


@pytest.mark.parametrize("one", [HUNG, GONE, canary("fail"), canary("refused")])
def test_one_failure_is_chance(one):
    assert signs(made(), *[one, canary("pass")] * 5) == []
    assert signs(made(), *[one, canary("busy")] * 5) == []
    assert signs(made(), *[one, canary("unsettled")] * 5) == []


def test_a_replica_whose_users_are_served_is_busy():
    busy = canary("timeout", page_ok=True, progress=True)
    starved_page = canary("timeout", page_ok=False, progress=True)
    assert signs(made(), *[busy, starved_page] * 5) == []
    assert signs(made(), *[HUNG, busy] * 5) == []


def test_a_replica_that_may_be_busy_is_not_accused():
    unknown = canary("timeout", page_ok=True, progress=None, running=3)
    assert signs(made(), *[unknown] * 10) == []


def test_a_lost_probe_neither_accuses_nor_excuses():
    assert signs(made(), HUNG, canary("unknown"), HUNG) == [Sign.CANARY_SILENT]
    assert signs(made(), canary("unknown"), HUNG, canary("unknown")) == []


def test_a_page_that_comes_and_goes_proves_nothing_yet():
    assert signs(made(), HUNG, GONE, canary("timeout"), HUNG, GONE) == []


def test_an_error_faster_than_any_answer_is_known_of_a_replica_that_was_never_idle():
    error = canary("fail", status=500, latency_s=0.005)
    answered = canary("pass", latency_s=0.2, running=4)
    assert signs(made(), answered, error, error) == [Sign.CANARY_ERRORS, Sign.FAST_ERRORS]
    assert signs(made(), error, error) == [Sign.CANARY_ERRORS]


def test_replicas_that_are_not_started_yet_say_nothing_of_the_checker():
    refused = [canary("refused", name) for name in NAMES]
    loading = [StateChanged(name, State.LOADING, "phase") for name in NAMES]
    assert signs(made(), *refused, *loading, CanariesDoubted("m")) == []
    ready = StateChanged("r1", State.READY, "passed_enough")
    failing = [canary("fail", name) for name in (*NAMES, *NAMES)]
    found = signs(made(), ready, CanariesDoubted("m"), *failing)
    assert found == [Sign.CANARIES_DOUBTED]


def test_a_new_process_and_a_forgotten_replica_begin_anew():
    detector = made()
    assert signs(detector, *[HUNG, ProcessEnded("r1")] * 5) == []
    detector.take(HUNG, 0)
    detector.forget("r1")
    detector.forget("stranger")
    assert signs(detector, HUNG) == []


# --- any order ------------------------------------------------------------------------------------


def test_doubts_have_a_bound(monkeypatch):
    monkeypatch.setattr(module, "_DOUBTS_MAX", 3)
    monkeypatch.setattr(module, "_MODELS_MAX", 5)
    census = ReplicaRegistry()
    detector = ProbingDetector(ProbingConfig(), census)
    for number in range(10):
        census.take(Declared(f"r{number}", f"m{number}"))
        detector.take(canary("pass", f"r{number}"), number)
        detector.take(CanariesDoubted(f"m{number}"), number)
    assert list(detector._doubts) == ["m7", "m8", "m9"]
    assert list(detector._speak) == ["m5", "m6", "m7", "m8", "m9"]


MAYBE = st.none() | st.booleans()
TIMES = st.none() | st.floats(0, 10)
FACTS = st.one_of(
    st.builds(
        CanaryAnswered,
        st.sampled_from([*NAMES, "stranger"]),
        st.sampled_from(CanaryVerdict),
        st.none() | st.floats(0, 100),
        st.none() | st.integers(0, 5),
        MAYBE,
        MAYBE,
        st.none() | st.integers(200, 599),
        moved_s=TIMES,
        next_gap_s=TIMES,
        gap_s=TIMES,
        quiet_s=TIMES,
        reads_on=st.booleans(),
    ),
    st.builds(
        AttemptsSeen,
        st.sampled_from([*NAMES, "stranger"]),
        st.just(1.0),
        tokens=st.integers(0, 400),
        waits=st.lists(st.floats(0, 100), max_size=3).map(tuple),
        prompts=st.none() | st.integers(0, 400),
    ),
    st.builds(CanariesDoubted, st.sampled_from(["m", ""])),
    st.builds(ProcessEnded, st.sampled_from(NAMES)),
)


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(FACTS, st.integers(-20, 20)), max_size=60))
def test_any_order_of_facts_is_taken_in_bounded_space_and_forgotten(steps):
    detector, now = made(), 10_000
    for fact, step in steps:
        now += step
        for found in detector.take(fact, now * SECOND):
            assert found.text
    for book in detector._books.values():
        assert len(book.pages) <= 4
        assert len(book.steadiness) <= 20
    for name in (*NAMES, "stranger"):
        detector.forget(name)
    assert not detector._books
    assert not detector._lateness._books


@pytest.mark.parametrize(
    "values",
    [
        *({"silent_row": 0}, {"errors_row": 0}, {"refused_row": 101}, {"doubt_s": 0}),
        *({"slow_row": 101}, {"steady_row": 0}, {"fresh_s": 0}, {"slow_s": 3_601}, {"slow_sum": 0}),
    ],
)
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"probing.{next(iter(values))}"):
        ProbingConfig(**values)


@pytest.mark.parametrize("ruling", dict.fromkeys(RULINGS.values()), ids=str)
def test_the_cause_that_the_fleet_rules_is_the_one_that_its_sign_leads_to(ruling):
    sign = module._DOUBT_SIGNS.get(ruling.suspect)
    assert (sign is None) is (ruling.cause is None)
    if ruling.cause is not None:
        assert sign in {one for proof in CAUSES[ruling.cause].proofs for one in proof.signs}
