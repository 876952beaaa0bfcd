"""Lines and GPU faults: each has its sign, and none is said without end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.log_lines import MEANINGS, LogLineConfig, LogLineDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import Declared, GpuFault, LineSeen, Mark, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError
from sampling import examples


def made():
    census = ReplicaRegistry()
    census.take(Declared("r1", "m", "1"))
    return LogLineDetector(LogLineConfig(), census)


def told(detector, *facts):
    return [one.sign for at, fact in facts for one in detector.take(fact, at * SECOND)]


# --- must fire ------------------------------------------------------------------------------------


def test_every_mark_has_a_sign_of_its_own():
    assert set(MEANINGS) == set(Mark)
    assert len({sign for sign, _ in MEANINGS.values()}) == len(Mark)


@pytest.mark.parametrize("mark", [mark for mark in Mark if mark is not Mark.KV_EXHAUSTED])
def test_one_line_is_enough_where_it_names_a_reason(mark):
    [found] = made().take(LineSeen("r1", mark), SECOND)
    assert (found.sign, found.source, found.at) == (MEANINGS[mark][0], "log", SECOND)
    assert found.about == About("r1", "m", "1")
    assert found.text.startswith("its log says ")
    assert found.numbers == {"lines": 1.0}


def test_a_full_cache_is_a_sign_when_it_is_written_twice_a_minute():
    lines = [(at, LineSeen("r1", Mark.KV_EXHAUSTED)) for at in (0, 30)]
    assert told(made(), *lines) == [Sign.LOG_KV_EXHAUSTED]


def test_a_line_that_names_a_peer_says_whom_and_each_peer_has_its_own_pace():
    detector = made()
    [first] = detector.take(LineSeen("r1", Mark.TRANSFER_FAILED, peer="p1"), 0)
    [second] = detector.take(LineSeen("r1", Mark.TRANSFER_FAILED, peer="p2"), 1)
    assert first.text == "its log says that a transfer of KV cache failed and names p1"
    assert second.text.endswith("names p2")
    assert detector.take(LineSeen("r1", Mark.TRANSFER_FAILED, peer="p1"), 2) == ()


def test_a_flood_is_told_twice_a_minute_with_its_count():
    detector = made()
    found = [
        one
        for at in range(31)
        for one in detector.take(LineSeen("r1", Mark.NOT_FINITE), at * SECOND)
    ]
    assert [one.numbers["lines"] for one in found] == [1, 30]
    assert found[1].text == "its log says of logits that are not finite (30 lines)"


def test_a_fault_that_ends_what_runs_is_told_at_once():
    [found] = made().take(GpuFault("r1", 79, fatal=True), 0)
    assert (found.sign, found.source) == (Sign.GPU_FAULT, "host")
    assert found.text == "the driver reported Xid 79 of its GPU, which ends what runs there"
    assert found.numbers == {"xid": 79.0, "fatal": 1.0}


def test_faults_that_ended_nothing_are_a_sign_when_they_keep_coming():
    faults = [(at, GpuFault("r1", 63, fatal=False)) for at in (0, 100, 200, 201)]
    detector = made()
    assert told(detector, *faults[:2]) == []
    [found] = detector.take(faults[2][1], 200 * SECOND)
    assert "the 3th" not in found.text
    assert "3 faults within 10 min" in found.text
    assert told(detector, faults[3]) == []


def test_a_new_process_may_say_at_once_what_the_last_one_said():
    line = LineSeen("r1", Mark.GPU_MEMORY_FULL)
    facts = [(0, line), (1, ProcessEnded("r1", code=1)), (2, line)]
    assert told(made(), *facts) == [Sign.LOG_GPU_MEMORY] * 2


# --- must not fire --------------------------------------------------------------------------------


def test_a_request_put_off_now_and_then_is_ordinary():
    lines = [(at * 61, LineSeen("r1", Mark.KV_EXHAUSTED)) for at in range(20)]
    assert told(made(), *lines) == []


def test_rare_faults_that_ended_nothing_are_ordinary():
    faults = [(at * 400, GpuFault("r1", 13, fatal=False)) for at in range(20)]
    assert told(made(), *faults) == []


def test_the_end_of_a_process_that_wrote_nothing_is_nothing():
    assert told(made(), (0, ProcessEnded("r1"))) == []


def test_what_was_forgotten_does_not_count():
    detector = made()
    detector.take(LineSeen("r1", Mark.KV_EXHAUSTED), 0)
    detector.forget("r1")
    detector.forget("stranger")
    assert told(detector, (1, LineSeen("r1", Mark.KV_EXHAUSTED))) == []


# --- any order ------------------------------------------------------------------------------------


def test_peers_beyond_the_bound_share_one_pace():
    detector = made()
    for number in range(1_000):
        detector.take(LineSeen("r1", Mark.TRANSFER_FAILED, peer=f"p{number}"), number)
    assert len(detector._books["r1"].peers) == 64
    assert len(detector._books["r1"].pace._said) == 65


NAMES = st.sampled_from(["r1", "r2"])
FACTS = st.one_of(
    st.builds(LineSeen, NAMES, st.sampled_from(Mark), st.sampled_from(["", "p1"])),
    st.builds(GpuFault, NAMES, st.integers(1, 200), st.booleans()),
    st.builds(ProcessEnded, NAMES),
)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(FACTS, st.integers(-100, 300)), max_size=60))
def test_any_order_of_facts_is_taken_and_forgotten(steps):
    detector, now = made(), 10_000
    for fact, step in steps:
        now += step
        for found in detector.take(fact, now * SECOND):
            assert found.text
    for name in ("r1", "r2"):
        detector.forget(name)
    assert not detector._books


@pytest.mark.parametrize("values", [{"kv_lines": 0}, {"mild_faults": 17}, {"kv_s": 0}])
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"lines.{next(iter(values))}"):
        LogLineConfig(**values)
