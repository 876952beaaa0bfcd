"""Silence: where it must be noticed, and where it is normal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.silence import (
    CANARY,
    COMPILE,
    LOADING,
    LOG,
    METRICS,
    SERVING,
    STARTING,
    TOKENS,
    WARM_UP,
    Heartbeat,
    SilenceConfig,
)
from holdfast.core.types import SECOND, ConfigError

CONFIG = SilenceConfig()
START = 1_000 * SECOND


def heartbeat(phase=STARTING):
    made = Heartbeat(CONFIG, START)
    made.phase(phase, START)
    return made


def at(seconds):
    return START + round(seconds * SECOND)


# --- must fire ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "patience"),
    [(STARTING, 120), (LOADING, 120), ("anything else", 120), (COMPILE, 600), (WARM_UP, 600)],
)
def test_a_load_that_says_nothing_fires_after_the_patience_of_its_phase(phase, patience):
    made = heartbeat(phase)
    assert made.silent(at(patience), None) is None
    silence = made.silent(at(patience + 1), None)
    assert (silence.phase, silence.since, silence.source) == (phase, START, "")
    assert f"while {phase}; nothing was ever heard" in silence.reason


def test_a_load_that_stops_speaking_fires_and_names_what_was_heard_last():
    made = heartbeat(LOADING)
    made.beat(METRICS, at(5))
    made.beat(LOG, at(10))
    assert made.silent(at(130), None) is None
    silence = made.silent(at(131), None)
    assert (silence.since, silence.source) == (at(10), LOG)
    assert silence.reason == "nothing was heard for 121 s while loading; the last was of log"


def test_requests_that_run_without_a_sound_fire_after_thirty_seconds():
    made = heartbeat(SERVING)
    made.beat(TOKENS, at(1))
    assert made.silent(at(1), 3) is None
    assert made.silent(at(31), 3) is None
    silence = made.silent(at(32), 3)
    assert (silence.phase, silence.since, silence.source) == (SERVING, at(1), TOKENS)
    assert "with 3 requests running" in silence.reason


def test_the_access_log_of_probes_does_not_hide_an_engine_that_stands_still():
    made = heartbeat(SERVING)
    for second in range(32):
        made.beat(LOG, at(second))
        silence = made.silent(at(second), 1)
    assert silence is not None
    assert silence.source == ""


def test_a_gap_in_the_metrics_does_not_start_the_wait_anew():
    made = heartbeat(SERVING)
    assert made.silent(at(0), 2) is None
    assert made.silent(at(20), None) is None
    assert made.silent(at(31), 2) is not None


# --- must not fire --------------------------------------------------------------------------------


def test_a_compilation_of_sixty_seconds_is_normal():
    made = heartbeat(LOADING)
    made.phase(COMPILE, at(100))
    for second in range(100, 161):
        assert made.silent(at(second), 0) is None
    made.phase(SERVING, at(160))
    assert made.silent(at(160), 1) is None


def test_an_idle_replica_has_nothing_to_say():
    made = heartbeat(SERVING)
    for second in (1, 100, 10_000):
        assert made.silent(at(second), 0) is None


def test_the_first_request_after_an_idle_hour_gets_the_whole_patience():
    made = heartbeat(SERVING)
    assert made.silent(at(3_600), 0) is None
    assert made.silent(at(3_601), 1) is None
    assert made.silent(at(3_631), 1) is None
    assert made.silent(at(3_632), 1) is not None


def test_a_long_prefill_with_metrics_that_move_is_normal():
    made = heartbeat(SERVING)
    for second in range(0, 300, 10):
        made.beat(METRICS, at(second))
        assert made.silent(at(second + 9), 1) is None


def test_an_answered_canary_is_a_sound():
    made = heartbeat(SERVING)
    assert made.silent(at(0), 1) is None
    made.beat(CANARY, at(29))
    assert made.silent(at(40), 1) is None


def test_an_unknown_number_of_requests_accuses_nobody():
    made = heartbeat(SERVING)
    assert made.silent(at(10_000), None) is None


def test_a_new_phase_begins_a_new_wait_and_the_same_one_does_not():
    made = heartbeat(LOADING)
    made.phase(LOADING, at(100))
    assert made.silent(at(121), None) is not None
    made.phase(WARM_UP, at(121))
    assert made.silent(at(700), None) is None


def test_a_late_report_of_an_old_sound_takes_nothing_back():
    made = heartbeat(LOADING)
    made.beat(LOG, at(50))
    made.beat(LOG, at(10))
    assert made._heard == {LOG: at(50)}
    assert made.name == LOADING


@given(st.lists(st.tuples(st.sampled_from([METRICS, TOKENS, CANARY]), st.integers(1, 30))))
def test_a_sound_every_thirty_seconds_is_enough(beats):
    made, now = heartbeat(SERVING), 0
    made.silent(at(0), 1)
    for source, pause in beats:
        now += pause
        assert made.silent(at(now), 1) is None
        made.beat(source, at(now))


def test_a_source_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no source"):
        heartbeat().beat("rumour", START)


@pytest.mark.parametrize(
    "values",
    [{"loading_s": 0}, {"serving_s": -1}, {"compile_s": float("inf")}, {"compile_s": 60.0}],
)
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError):
        SilenceConfig(**values)
