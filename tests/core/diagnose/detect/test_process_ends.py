"""Ends of processes: which are evidence, of what, and which are none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.process_ends import ProcessEndConfig, ProcessEndDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    Declared,
    FellSilent,
    Looked,
    PhaseSeen,
    ProcessEnded,
    ProcessFrozen,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Kind
from holdfast.core.types import SECOND, ConfigError, State
from sampling import examples


def made():
    census = ReplicaRegistry()
    census.take(Declared("r1", "m", "1", host="h1"))
    return ProcessEndDetector(ProcessEndConfig(), census)


def told(detector, *facts):
    """The signs that these (second, fact) pairs give, in order."""
    return [one.sign for at, fact in facts for one in detector.take(fact, round(at * SECOND))]


def ready(at, replica="r1"):
    return at, StateChanged(replica, State.READY, "passed_enough")


# --- must fire ------------------------------------------------------------------------------------


def test_an_end_nobody_asked_for_is_evidence_with_its_code_and_its_place():
    [found] = made().take(ProcessEnded("r1", code=1, phase="serving", uptime_s=4_000.0), SECOND)
    assert found.sign is Sign.EXITED
    assert found.about == About("r1", "m", "1", "h1")
    assert (found.at, found.source) == (SECOND, "launcher")
    assert found.text == "its process exited with code 1 after 4000 s"
    assert found.numbers == {"code": 1.0, "uptime_s": 4_000.0}


def test_an_end_with_its_host_is_evidence_about_the_host_alone_and_once_for_all_on_it():
    census = ReplicaRegistry()
    for name in ("r1", "r2"):
        census.take(Declared(name, "m", "1", host="h1"))
    detector = ProcessEndDetector(ProcessEndConfig(), census)
    lost = ProcessEnded("r1", phase="serving", reason="its node is dead", host_lost=True)
    [found] = detector.take(lost, SECOND)
    assert found.sign is Sign.HOST_LOST
    assert found.about == About(host="h1")
    assert found.text == "r1 ended with its host h1: its node is dead"
    other = ProcessEnded("r2", phase="serving", host_lost=True)
    assert told(detector, (1.1, other)) == []


def test_an_end_with_a_host_that_nobody_knows_is_an_end():
    census = ReplicaRegistry()
    census.take(Declared("r1", "m", "1"))
    detector = ProcessEndDetector(ProcessEndConfig(), census)
    assert Sign.EXITED in told(detector, (1, ProcessEnded("r1", host_lost=True)))


def test_a_host_that_is_lost_on_purpose_is_no_evidence():
    assert told(made(), (1, ProcessEnded("r1", asked=True, host_lost=True))) == []


@pytest.mark.parametrize("end", [{"code": 137}, {"signal": 9}, {"code": -9}])
def test_a_kill_without_a_witness_is_a_sign_of_its_own(end):
    signs = told(made(), (0, ProcessEnded("r1", **end)))
    assert signs == [Sign.EXITED, Sign.EXIT_137]


def test_a_kill_while_the_kernel_was_watched_and_killed_nobody_is_somebody_elses():
    found = made().take(ProcessEnded("r1", signal=9, oom_ruled_out=True), 0)
    assert [one.sign for one in found] == [Sign.EXITED]
    assert "not by the kernel for memory" in found[0].text


def test_a_kill_that_the_kernel_was_seen_to_do_is_for_memory():
    found = made().take(ProcessEnded("r1", code=137, oom=True), 0)
    assert [one.sign for one in found] == [Sign.EXITED, Sign.KILLED_FOR_MEMORY]
    assert "the kernel killed it for lack of memory" in found[1].text


def test_the_words_of_a_platform_are_told():
    why = "Evicted: The node was low on resource: memory."
    found = made().take(ProcessEnded("r1", code=143, oom=True, reason=why), 0)
    assert found[0].text == "its process was ended by signal 15"
    assert found[1].text == f"it was ended for lack of memory, as its platform says: {why}"
    (found,) = made().take(ProcessEnded("r1", phase="serving", reason="x" * 300), 0)
    assert found.text.endswith("; its platform says: " + "x" * 160)


def test_who_was_ready_in_this_life_was_not_loading_whatever_a_probe_says():
    detector = made()
    detector.take(StateChanged("r1", State.READY, "canary_pass"), 0)
    found = detector.take(ProcessEnded("r1", code=1, phase="loading"), 400 * SECOND)
    assert [one.sign for one in found] == [Sign.EXITED]
    found = detector.take(ProcessEnded("r1", code=1, phase="loading"), 500 * SECOND)
    assert Sign.EXITED_LOADING in [one.sign for one in found]  # of the next life nobody knows it


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"signal": 11}, "ended by signal 11"),
        ({"code": 139}, "ended by signal 11"),
        ({"code": -6}, "ended by signal 6"),
        ({"code": 0}, "exited with code 0"),
        ({}, "left no exit code"),
    ],
)
def test_every_end_can_be_told_in_words(end, words):
    [found] = made().take(ProcessEnded("r1", **end), 0)
    assert words in found.text


@pytest.mark.parametrize("phase", ["starting", "loading", "compile", "warm-up", "waits its turn"])
def test_an_end_before_it_served_is_one_of_loading(phase):
    signs = told(made(), (0, ProcessEnded("r1", code=1, phase=phase)))
    assert signs == [Sign.EXITED, Sign.EXITED_LOADING]


def test_the_phase_it_told_last_counts_where_the_launcher_knows_none():
    facts = [(0, PhaseSeen("r1", "loading")), (5, ProcessEnded("r1", code=1))]
    assert told(made(), *facts) == [Sign.EXITED, Sign.EXITED_LOADING]


@pytest.mark.parametrize("state", [State.STARTING, State.LOADING, State.WARMING])
def test_its_state_counts_where_nobody_told_a_phase(state):
    facts = [(0, StateChanged("r1", state, "launched")), (5, ProcessEnded("r1", code=1))]
    assert told(made(), *facts) == [Sign.EXITED, Sign.EXITED_LOADING]


def test_an_end_soon_after_it_was_ready_with_work_on_it_belongs_to_that_work():
    facts = [(0, PhaseSeen("r1", "loading")), ready(10), (60, ProcessEnded("r1", 1, served=3))]
    assert told(made(), *facts) == [Sign.EXITED, Sign.EXITED_ON_REQUEST]


def test_an_end_at_its_first_request_after_an_idle_hour_belongs_to_it():
    facts = [
        ready(0),
        (3_600, AttemptsSeen("r1", 1.0, inflight=1)),
        (3_601, ProcessEnded("r1", code=1, phase="serving", served=0)),
    ]
    assert told(made(), *facts) == [Sign.EXITED, Sign.EXITED_ON_REQUEST]


def test_work_that_only_the_gateways_saw_counts():
    facts = [
        ready(0),
        (5, AttemptsSeen("r1", 1.0, successes=1)),
        (20, ProcessEnded("r1", code=1)),
    ]
    assert told(made(), *facts) == [Sign.EXITED, Sign.EXITED_ON_REQUEST]


@pytest.mark.parametrize("end", [{"uptime_s": 30.0, "served": 7}, {"uptime_s": 95.0, "served": 1}])
def test_an_end_of_a_life_that_nobody_watched_is_read_from_its_age_and_its_work(end):
    signs = told(made(), (0, ProcessEnded("r1", code=1, phase="serving", **end)))
    assert signs == [Sign.EXITED, Sign.EXITED_ON_REQUEST]


def test_the_third_like_end_within_half_an_hour_is_a_row():
    ends = [(at, ProcessEnded("r1", code=137, oom=at != 600)) for at in (0, 600, 1_200)]
    detector = made()
    assert Sign.EXITS_AGAIN not in told(detector, *ends[:2])
    found = detector.take(ends[2][1], 1_200 * SECOND)[-1]
    assert found.sign is Sign.EXITS_AGAIN
    assert found.numbers["ends"] == 3
    assert "3 times within 30 min" in found.text


def test_a_frozen_process_is_told_until_it_runs_again():
    detector = made()
    seconds = [(at, Looked()) for at in range(1, 70)]
    assert told(detector, (0, ProcessFrozen("r1", frozen=True)), *seconds) == [Sign.FROZEN] * 3
    assert told(detector, (70, ProcessFrozen("r1", frozen=False)), (130, Looked())) == []
    [found] = detector.take(ProcessFrozen("r1", frozen=True), 131 * SECOND)
    assert (found.source, found.text) == (
        "platform",
        "its process is not run: it is stopped or frozen",
    )


@pytest.mark.parametrize(
    ("state", "signal", "sign"),
    [
        (State.DEAD, "load_timeout", Sign.LOAD_STUCK),
        (State.DEAD, "refused_repeatedly", Sign.REFUSES),
        (State.DEAD, "refused", Sign.REFUSES),
        (State.QUARANTINED, "wrong_revision", Sign.WRONG_REVISION),
    ],
)
def test_what_the_fleet_concluded_is_told_until_the_state_changes(state, signal, sign):
    detector = made()
    change = (0, StateChanged("r1", state, signal))
    assert told(detector, change, change, (10, Looked()), (30, Looked())) == [sign, sign]
    assert (
        told(detector, (31, StateChanged("r1", State.STARTING, "relaunch")), (99, Looked())) == []
    )


@pytest.mark.parametrize(
    ("phase", "sign"),
    [("serving", Sign.SILENT_SERVING), ("loading", Sign.SILENT_LOADING), ("", Sign.SILENT_LOADING)],
)
def test_silence_is_told_with_its_phase_and_not_too_often(phase, sign):
    detector = made()
    facts = [(at, FellSilent("r1", phase, 120.0 + at)) for at in range(60)]
    assert told(detector, *facts) == [sign, sign]


# --- must not fire --------------------------------------------------------------------------------


def test_an_end_that_was_asked_for_is_no_evidence_however_it_looks():
    ends = [(at, ProcessEnded("r1", 137, oom=True, asked=True, served=1)) for at in range(9)]
    assert told(made(), *ends) == []


def test_different_ends_are_no_row_and_old_ones_are_forgotten():
    different = [(at, ProcessEnded("r1", code=at)) for at in range(5)]
    rare = [(1_000 * at, ProcessEnded("r1", code=99)) for at in range(10)]
    assert Sign.EXITS_AGAIN not in told(made(), *different, *rare)


def test_an_end_after_hours_of_work_belongs_to_no_request():
    facts = [
        ready(0),
        (1, AttemptsSeen("r1", 1.0, successes=4)),
        (9_000, AttemptsSeen("r1", 1.0, successes=4, inflight=2)),
        (9_001, ProcessEnded("r1", code=1, served=4_000, uptime_s=9_100.0)),
    ]
    assert told(made(), *facts) == [Sign.EXITED]


def test_a_suspect_that_ends_was_not_loading():
    facts = [
        (0, StateChanged("r1", State.SUSPECT, "canary_slow")),
        (5, ProcessEnded("r1", code=1)),
    ]
    assert told(made(), *facts) == [Sign.EXITED]


def test_an_end_of_an_idle_replica_belongs_to_no_request():
    facts = [ready(0), (10, AttemptsSeen("r1", 1.0)), (20, ProcessEnded("r1", code=1, served=0))]
    assert told(made(), *facts) == [Sign.EXITED]
    assert told(made(), ready(0), (20, ProcessEnded("r1", code=1))) == [Sign.EXITED]


def test_late_reports_of_the_last_life_are_no_work_of_the_next():
    facts = [
        ready(0),
        (4_000, ProcessEnded("r1", code=1, served=50)),
        (4_001, AttemptsSeen("r1", 1.0, failures={Kind.RESET: 4}, inflight=1)),
        (4_002, ProcessEnded("r1", code=2)),
    ]
    assert told(made(), *facts) == [Sign.EXITED, Sign.EXITED]


def test_a_relaunch_begins_a_new_life():
    facts = [
        ready(0),
        (1, AttemptsSeen("r1", 1.0, successes=1)),
        (2, StateChanged("r1", State.STARTING, "relaunch")),
        (3, ProcessEnded("r1", code=1)),
    ]
    assert told(made(), *facts) == [Sign.EXITED, Sign.EXITED_LOADING]


def test_ordinary_changes_of_state_are_no_evidence():
    detector = made()
    changes = [(i, StateChanged("r1", state, "canary_pass")) for i, state in enumerate(State)]
    assert told(detector, *changes, (60, Looked())) == []


def test_a_frozen_process_that_became_ready_or_ended_is_not_frozen():
    detector = made()
    detector.take(ProcessFrozen("r1", frozen=True), 0)
    assert told(detector, ready(1), (60, Looked())) == []
    detector.take(ProcessFrozen("r1", frozen=True), 61 * SECOND)
    assert told(detector, (62, ProcessEnded("r1", asked=True)), (200, Looked())) == []


def test_what_was_forgotten_does_not_count():
    detector = made()
    for at in range(2):
        detector.take(ProcessEnded("r1", code=1), at)
    detector.take(ProcessFrozen("r1", frozen=True), 3)
    detector.forget("r1")
    detector.forget("stranger")
    assert told(detector, (60, Looked()), (61, ProcessEnded("r1", code=1))) == [Sign.EXITED]


# --- any order ------------------------------------------------------------------------------------

NAMES = st.sampled_from(["r1", "r2"])
FACTS = st.one_of(
    st.builds(
        ProcessEnded,
        NAMES,
        st.none() | st.integers(-20, 260),
        st.none() | st.integers(1, 31),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "loading", "serving"]),
        st.none() | st.floats(0, 1e6),
        st.none() | st.integers(0, 9),
    ),
    st.builds(StateChanged, NAMES, st.sampled_from(State), st.sampled_from(["refused", "x"])),
    st.builds(PhaseSeen, NAMES, st.sampled_from(["", "loading", "serving"])),
    st.builds(ProcessFrozen, NAMES, st.booleans()),
    st.builds(FellSilent, NAMES, st.sampled_from(["loading", "serving"]), st.floats(0, 1e6)),
    st.builds(AttemptsSeen, NAMES, st.just(1.0), inflight=st.integers(0, 3)),
    st.just(Looked()),
)


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(FACTS, st.integers(-100, 1_000)), max_size=60))
def test_any_order_of_facts_is_taken_in_bounded_space_and_forgotten(steps):
    detector, now = made(), 10_000
    for fact, step in steps:
        now += step
        for found in detector.take(fact, now * SECOND):
            assert found.text
    assert len(detector._books) <= 2
    for name in ("r1", "r2"):
        detector.forget(name)
    assert not detector._books
    assert not detector._holding


@pytest.mark.parametrize("values", [{"on_request_s": 0}, {"again_s": -1}, {"again_count": 1}])
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"ends.{next(iter(values))}"):
        ProcessEndConfig(**values)
