"""Engines that get nowhere: what must be noticed, and what is busy, unknown or everybody's."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.stall import StallConfig, StallDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    Declared,
    LineSeen,
    LoadSeen,
    Mark,
    MemorySeen,
    ProcessEnded,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Kind
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

NAMES = ("r1", "r2", "r3", "r4")


def made():
    census = ReplicaRegistry()
    for name in NAMES:
        census.take(Declared(name, "m", "1"))
    return StallDetector(StallConfig(), census)


def told(detector, *facts):
    return [one for at, fact in facts for one in detector.take(fact, round(at * SECOND))]


def signs(detector, *facts):
    return [one.sign for one in told(detector, *facts)]


def load(replica="r1", **values):
    return LoadSeen(replica, **values)


def busy(seconds, *, pace=20.0, running=4, replica="r1", start=0, base=0):
    """Looks at an engine that gives each of its requests ``pace`` tokens a second."""
    return [
        (at, load(replica, running=running, waiting=0, generated=base + round(at * pace * running)))
        for at in range(start, start + seconds)
    ]


def still(seconds, *, start, running=4, generated=10_000, replica="r1"):
    return [
        (at, load(replica, running=running, waiting=0, generated=generated))
        for at in range(start, start + seconds)
    ]


# --- stalled --------------------------------------------------------------------------------------


def test_requests_that_stop_in_the_middle_are_a_stall_after_fifteen_seconds():
    detector = made()
    facts = [*busy(30), *still(40, start=30)]
    found = told(detector, *facts)
    assert [one.sign for one in found] == [Sign.STALLED]
    assert found[0].at == 46 * SECOND  # the first look that shows no progress is at 31 s
    assert (found[0].about, found[0].source) == (About("r1", "m", "1"), "engine")
    assert found[0].text == "4 requests run and no token came out for 15 s"
    assert found[0].numbers == {"running": 4.0, "for_s": 15.0}


def test_an_engine_that_is_first_seen_standing_still_has_twice_the_time():
    found = told(made(), *still(40, start=0))
    assert [one.at for one in found] == [31 * SECOND]


def test_gaps_in_the_metrics_neither_accuse_nor_excuse():
    facts = [*busy(30), *still(8, start=30)]
    facts += [(at, load(generated=10_000)) for at in range(38, 60)]
    facts += [(at, load(running=4)) for at in range(60, 80)]
    detector = made()
    assert signs(detector, *facts) == []
    assert signs(detector, *still(15, start=80)) == [Sign.STALLED]


@pytest.mark.parametrize("values", [{"tokens": 3}, {"successes": 1}])
def test_tokens_that_only_users_saw_are_progress(values):
    facts = busy(30)
    for at in range(30, 90):
        facts.append((at, AttemptsSeen("r1", 1.0, **(values if at % 10 == 0 else {}))))
        facts += still(1, start=at)
    assert signs(made(), *facts) == []


def test_an_idle_engine_and_one_that_shows_no_counter_are_not_stalled():
    assert signs(made(), *still(100, start=0, running=0)) == []
    assert signs(made(), *[(at, load(running=5)) for at in range(100)]) == []
    assert signs(made(), *[(at, load(generated=5)) for at in range(100)]) == []


def test_a_long_prompt_after_an_idle_time_is_no_stall():
    facts = [*still(60, start=0, running=0), *still(25, start=60, running=1)]
    facts += busy(20, start=85, base=20_000)
    assert signs(made(), *facts) == []


@pytest.mark.parametrize("figure", ["kv_used", "steps"])
def test_a_page_that_shows_a_prompt_being_read_is_no_stall(figure):
    """A minute and a half without a token, in chunks of two seconds; then it goes on."""
    shown = {"kv_used": lambda at: 0.1 + (at // 2) / 1_000, "steps": lambda at: at // 2}[figure]
    facts = busy(30, running=1)
    facts += [
        (at, load(running=1, waiting=1, generated=10_000, **{figure: shown(at)}))
        for at in range(30, 120)
    ]
    facts += busy(20, running=1, start=120, base=20_000)
    assert signs(made(), *facts) == []


def test_a_page_that_stops_in_the_middle_of_a_prompt_is_a_stall():
    facts = busy(30, running=1)
    facts += [
        (at, load(running=1, waiting=1, generated=10_000, kv_used=min(at, 60) / 1_000))
        for at in range(30, 120)
    ]
    found = told(made(), *facts)
    assert [one.sign for one in found][:1] == [Sign.STALLED]
    assert 75 * SECOND <= found[0].at <= 92 * SECOND


def test_a_pause_that_once_ended_well_may_come_again():
    facts, detector = [], made()
    for round_ in range(5):
        start = 40 * round_
        facts += busy(28 - round_ * 3, start=start, base=round_ * 100_000)
        facts += still(12 + round_ * 3, start=start + 28 - round_ * 3, generated=round_)
    assert signs(detector, *facts) == []
    found = told(detector, *still(200, start=200, generated=4))
    assert {one.sign for one in found} == {Sign.STALLED}
    assert found[0].numbers["for_s"] >= 30


def test_a_counter_that_begins_anew_is_progress():
    facts = [(at, load(running=2, generated=1_000 - at)) for at in range(60)]
    assert signs(made(), *facts) == []


def test_a_clock_that_jumps_and_a_gap_are_no_time():
    facts = [*busy(30), (31, load(running=4, generated=1)), (5_000, load(running=4, generated=1))]
    assert signs(made(), *facts, (6_000, load(running=4, generated=1)), (100, load())) == []


def test_where_everybody_stands_still_everybody_has_twice_the_time():
    facts = [pair for name in NAMES for pair in busy(30, replica=name)]
    facts += [pair for name in NAMES for pair in still(25, start=30, replica=name)]
    detector = made()
    assert signs(detector, *sorted(facts, key=lambda pair: pair[0])) == []
    more = [pair for name in NAMES for pair in still(10, start=55, replica=name)]
    assert signs(detector, *sorted(more, key=lambda pair: pair[0])) == [Sign.STALLED] * 4


# --- starved --------------------------------------------------------------------------------------


def starving(seconds, *, start=0, replica="r1"):
    return [
        (at, load(replica, running=0, waiting=7, generated=5))
        for at in range(start, start + seconds)
    ]


def test_requests_that_wait_while_none_runs_and_peers_serve_are_starved():
    facts = sorted([*starving(30), *busy(30, replica="r2")], key=lambda pair: pair[0])
    found = told(made(), *facts)
    assert [one.sign for one in found] == [Sign.STARVED]
    assert found[0].at == 20 * SECOND
    assert found[0].text == "7 requests wait, none was started for 20 s while its peers serve"
    assert found[0].numbers == {"waiting": 7.0, "for_s": 20.0}


def test_without_a_peer_that_serves_it_takes_twice_as_long():
    assert [one.at for one in told(made(), *starving(60))] == [40 * SECOND]


def test_a_fleet_in_which_nobody_is_started_accuses_nobody_for_a_while():
    facts = [pair for name in NAMES for pair in starving(38, replica=name)]
    assert signs(made(), *sorted(facts, key=lambda pair: pair[0])) == []


def test_a_queue_before_an_engine_that_works_is_no_starvation():
    facts = [(at, load(running=4, waiting=50, generated=80 * at)) for at in range(100)]
    assert signs(made(), *facts) == []
    short = [*starving(15), (15, load(running=1, waiting=6, generated=6)), *starving(15, start=16)]
    assert signs(made(), *short) == []


def test_unknown_numbers_starve_nobody():
    facts = [(at, load(waiting=9)) for at in range(100)]
    assert signs(made(), *facts, *[(at, load(running=0)) for at in range(100, 200)]) == []


# --- cache and preemptions ------------------------------------------------------------------------


def test_a_cache_that_stays_full_is_told_and_a_short_burst_is_not():
    facts = [(at, load(kv_used=0.99)) for at in range(40)]
    found = told(made(), *facts)
    assert [one.sign for one in found] == [Sign.KV_FULL]
    assert found[0].text == "its KV cache is 99% full for 30 s"
    burst = [(at, load(kv_used=0.99 if at % 30 else 0.9)) for at in range(200)]
    assert signs(made(), *burst) == []
    assert signs(made(), *[(at, load(kv_used=0.97)) for at in range(200)]) == []
    assert signs(made(), *[(at, load()) for at in range(200)]) == []


def test_many_preemptions_a_minute_are_told_and_a_few_are_not():
    found = told(made(), *[(at, load(preemptions=at)) for at in range(40)])
    assert [one.sign for one in found] == [Sign.PREEMPTS]
    assert found[0].numbers == {"preemptions_per_min": 31.0}
    assert signs(made(), *[(at, load(preemptions=at // 3)) for at in range(300)]) == []


def test_a_counter_of_preemptions_that_begins_anew_counts_nothing():
    facts = [(at, load(preemptions=1_000 if at % 2 else None)) for at in range(20)]
    facts += [(20, load(preemptions=0)), (21, load(preemptions=3))]
    assert signs(made(), *facts) == []


# --- fragmented -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "free",
    [
        load(kv_used=0.5),
        MemorySeen("r1", 50, 100, device="gpu"),
        MemorySeen("r1", 50, 100),
    ],
)
def test_allocations_that_fail_beside_free_memory_are_fragmentation(free):
    line = LineSeen("r1", Mark.ALLOCATION_FAILED)
    found = told(made(), (0, free), (1, line), (5, line))
    assert [one.sign for one in found] == [Sign.FRAGMENTED]
    assert found[0].text == "2 allocations failed within 30 s while 50% of its memory is free"
    assert found[0].numbers == {"free_share": 0.5, "refusals": 2.0}


def test_an_engine_that_says_so_in_its_answers_counts_as_well():
    refusal = AttemptsSeen("r1", 1.0, failures={Kind.OUT_OF_MEMORY: 1})
    assert signs(made(), (0, load(kv_used=0.4)), (1, refusal), (2, refusal)) == [Sign.FRAGMENTED]


@pytest.mark.parametrize(
    "known",
    [
        load(kv_used=0.9),
        MemorySeen("r1", 90, 100),
        MemorySeen("r1", 10),
        LineSeen("r1", Mark.KV_EXHAUSTED),
    ],
)
def test_allocations_that_fail_in_full_or_unknown_memory_are_not(known):
    line = LineSeen("r1", Mark.ALLOCATION_FAILED)
    assert signs(made(), (0, known), *[(at, line) for at in range(1, 20)]) == []


def test_one_failed_allocation_is_chance():
    line = LineSeen("r1", Mark.ALLOCATION_FAILED)
    facts = [(at * 40, line) for at in range(10)]
    assert signs(made(), (0, load(kv_used=0.1)), *facts) == []


def test_a_full_cache_counts_before_a_free_host():
    line = LineSeen("r1", Mark.ALLOCATION_FAILED)
    facts = [(0, MemorySeen("r1", 10, 100)), (0, load(kv_used=0.95)), (1, line), (2, line)]
    assert signs(made(), *facts) == []


def turning_away(running, peak=16, name="r1", seconds=20):
    facts = [(0, load(name, running=peak, waiting=0, kv_used=0.5))]
    for at in range(1, seconds):
        facts.append((at, load(name, running=running, waiting=0, kv_used=0.5)))
        facts.append((at, AttemptsSeen(name, 1.0, backpressure=3)))
    return facts


def test_refusals_at_half_the_load_it_once_carried_are_fragmentation():
    assert signs(made(), *turning_away(2)) == [Sign.FRAGMENTED]


def test_refusals_at_its_usual_load_or_of_the_whole_fleet_are_not():
    assert signs(made(), *turning_away(12)) == []
    assert signs(made(), *turning_away(2, seconds=8)) == []
    fleet = [pair for name in NAMES for pair in turning_away(2, name=name)]
    assert signs(made(), *sorted(fleet, key=lambda pair: pair[0])) == []
    served = [(at, AttemptsSeen("r1", 1.0, successes=1)) for at in range(0, 30, 5)]
    mixed = sorted([*turning_away(2), *served], key=lambda pair: pair[0])
    assert signs(made(), *mixed) == []


# --- slow tokens ----------------------------------------------------------------------------------


def fleet_of(mine, theirs=20.0, *, seconds=60, calm=60, running=4, peers=3):
    """A calm time at 20 tokens/s each, then one that gives its requests another pace."""
    rows = []
    sums = dict.fromkeys(NAMES[: 1 + peers], 0.0)
    for at in range(calm + seconds):
        for name in sums:
            pace = 20.0 if at < calm else (mine if name == "r1" else theirs)
            count = running if name == "r1" and at >= calm else 4
            sums[name] += pace * count
            rows.append((at, load(name, running=count, waiting=0, generated=int(sums[name]))))
    return rows


def test_tokens_that_drip_on_one_replica_are_told():
    found = told(made(), *fleet_of(0.5))
    assert {one.sign for one in found} == {Sign.SLOW_TOKENS}
    assert {one.about.replica for one in found} == {"r1"}
    assert found[0].at <= (60 + 35) * SECOND
    assert found[0].numbers["before"] == pytest.approx(20, rel=0.1)
    assert "and its peers give 20.0" in found[0].text


def test_a_drip_is_seen_although_requests_pile_up():
    assert signs(made(), *fleet_of(0.1, running=32, seconds=35)) == [Sign.SLOW_TOKENS]


def test_ten_slow_seconds_are_a_long_prompt_or_a_neighbour():
    assert signs(made(), *fleet_of(0.5, seconds=14)) == []


def test_half_the_pace_is_load():
    assert signs(made(), *fleet_of(10.0)) == []


def test_a_fleet_that_is_slow_as_a_whole_accuses_nobody():
    assert signs(made(), *fleet_of(0.5, theirs=0.5)) == []


def test_a_replica_without_peers_that_could_tell_is_not_accused():
    assert signs(made(), *fleet_of(0.5, peers=0)) == []


def test_ten_times_the_requests_at_a_tenth_of_the_pace_are_busy():
    assert signs(made(), *fleet_of(2.0, running=40)) == []


def test_a_replica_without_a_past_is_not_accused():
    assert signs(made(), *fleet_of(0.5, calm=0)) == []


def test_a_long_prompt_among_ordinary_answers_is_no_drip():
    facts = [pair for name in NAMES[1:] for pair in busy(200, replica=name)]
    total = 0
    for at in range(200):
        total += 0 if at % 12 < 11 and at > 60 else 80
        facts.append((at, load(running=4, waiting=0, generated=total)))
    assert signs(made(), *sorted(facts, key=lambda pair: pair[0])) == []


def test_ordinary_noise_of_the_pace_is_no_drip():
    rng, facts, sums = random.Random(4), [], dict.fromkeys(NAMES, 0)
    for at in range(600):
        for name in NAMES:
            running = rng.randint(0, 30)
            sums[name] += round(running * rng.lognormvariate(2.5, 0.6))
            fact = load(name, running=running, waiting=0, generated=sums[name])
            facts.append((at, fact))
    assert signs(made(), *facts) == []


# --- any order ------------------------------------------------------------------------------------


def test_a_new_process_and_a_forgotten_replica_begin_anew():
    detector = made()
    told(detector, *busy(30), *still(14, start=30))
    detector.take(ProcessEnded("r1"), 44 * SECOND)
    assert signs(detector, *still(25, start=44)) == []
    detector.forget("r1")
    detector.forget("stranger")
    assert signs(detector, *still(25, start=70)) == []


WHO = st.sampled_from([*NAMES[:2], "stranger"])
MAYBE = st.none() | st.integers(0, 50)
FACTS = st.one_of(
    st.builds(LoadSeen, WHO, MAYBE, MAYBE, st.none() | st.floats(0, 1), MAYBE, MAYBE),
    st.builds(
        AttemptsSeen,
        WHO,
        st.just(1.0),
        st.integers(0, 2),
        st.integers(0, 2),
        tokens=st.integers(0, 2),
    ),
    st.builds(MemorySeen, WHO, st.integers(0, 100), MAYBE, device=st.sampled_from(["host", "gpu"])),
    st.builds(LineSeen, WHO, st.sampled_from(Mark)),
    st.builds(ProcessEnded, WHO),
)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(FACTS, st.integers(-20, 20)), max_size=80))
def test_any_order_of_facts_is_taken_in_bounded_space_and_forgotten(steps):
    detector, now = made(), 10_000
    for fact, step in steps:
        now += step
        for found in detector.take(fact, now * SECOND):
            assert found.text
    for book in detector._books.values():
        assert len(book.speed.past) <= 17
        assert len(book.speed.samples) <= 128
        assert len(book.memory) <= 2
    for name in (*NAMES, "stranger"):
        detector.forget(name)
    assert not detector._books


@pytest.mark.parametrize(
    "values", [{"stalled_s": 0}, {"kv_full": 1}, {"refusals_min": 0}, {"prefill_factor": 0.5}]
)
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"stall.{next(iter(values))}"):
        StallConfig(**values)
