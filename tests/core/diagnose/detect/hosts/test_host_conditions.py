"""Silent replicas, and what their platform says of the host they are on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.hosts.host_conditions import (
    HostConditionConfig,
    HostConditionDetector,
)
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import CanaryAnswered, Declared, HostConditionSeen
from holdfast.core.diagnose.replica_registry import HOSTS_MAX, ReplicaRegistry
from holdfast.core.types import ConfigError, HostCondition, nanos
from sampling import examples

NOT_READY = HostConditionSeen(
    "h1", HostCondition.NOT_READY, "container runtime is down", 95.0, "kube"
)
UNREACHABLE = HostConditionSeen("h1", HostCondition.UNREACHABLE, "", None, "kube")
LEAVING = HostConditionSeen("h1", HostCondition.LEAVING, "cordoned", None, "kube")
CONDITIONS = st.sampled_from(HostCondition)
READY = HostConditionSeen("h1", HostCondition.READY, source="kube")


def canary(verdict=CanaryVerdict.TIMEOUT, **more):
    given = {"running": 0, "progress": False, "page_ok": False, **more}
    return CanaryAnswered("r1", verdict, **given)


def signs(*facts, every_s=5.0):
    census = ReplicaRegistry()
    census.take(Declared("r1", "m", host="h1"))
    detector = HostConditionDetector(HostConditionConfig(), census)
    found = []
    for place, fact in enumerate(facts):
        found += detector.take(fact, nanos(1_000 + place * every_s))
    return found


def test_a_replica_that_is_silent_on_a_host_that_is_not_ready_is_a_sign_about_the_host():
    (found,) = signs(NOT_READY, canary(), canary(), canary())
    assert (found.sign, found.about) == (Sign.HOST_NOT_READY, About(host="h1"))
    for word in ("h1 is not ready for 95 s", "kube", "container runtime is down", "r1"):
        assert word in found.text
    assert found.numbers == {"canaries": 2.0, "lasted_s": 95.0}


@pytest.mark.parametrize("host", [NOT_READY, UNREACHABLE])
@pytest.mark.parametrize(
    "silent",
    [
        canary(),
        canary(page_ok=True),
        canary(CanaryVerdict.REFUSED),
        canary(CanaryVerdict.FAIL, flaw="reset"),
        canary(CanaryVerdict.TIMEOUT, flaw="connect_timeout", page_ok=None),
    ],
)
def test_every_silence_counts_where_the_host_is_down(host, silent):
    assert [one.sign for one in signs(host, silent, silent)] == [Sign.HOST_NOT_READY]


def test_of_a_host_that_leaves_it_is_said_where_not_even_the_page_answers():
    assert [one.sign for one in signs(LEAVING, canary(), canary())] == [Sign.HOST_LEAVING]
    assert signs(LEAVING, canary(page_ok=True), canary(page_ok=True), canary()) == []


@pytest.mark.parametrize(
    "facts",
    [
        (canary(),) * 5,  # nothing is known of its host
        (NOT_READY, canary()),  # one may be lost
        (NOT_READY, canary(), canary(CanaryVerdict.PASS), canary()),
        (NOT_READY, *(canary(CanaryVerdict.WRONG),) * 5),
        (NOT_READY, *(canary(CanaryVerdict.FAIL, status=500),) * 5),  # it speaks
        (NOT_READY, *(canary(progress=True),) * 5),  # busy is not dead
        (NOT_READY, *(canary(progress=None, running=3),) * 5),
        (NOT_READY, *(canary(CanaryVerdict.UNKNOWN),) * 5),  # whoever asked was late
        (NOT_READY, READY, *(canary(),) * 5),
        (NOT_READY, *(CanaryAnswered("stranger", CanaryVerdict.TIMEOUT),) * 5),
        (HostConditionSeen("h2", HostCondition.NOT_READY), *(canary(),) * 5),
    ],
)
def test_a_replica_that_speaks_or_a_host_that_is_well_or_unknown_is_no_sign(facts):
    assert signs(*facts) == []


def test_a_condition_that_nobody_repeats_is_forgotten():
    assert signs(NOT_READY, canary(), canary(), every_s=91) == []
    assert signs(NOT_READY, canary(), NOT_READY, canary(), every_s=91)


def test_it_is_said_again_while_it_holds_and_at_once_where_it_comes_back():
    assert len(signs(NOT_READY, *(canary(),) * 12)) == 2  # each 30 s
    assert len(signs(NOT_READY, canary(), canary(), READY, NOT_READY, canary())) == 2


def test_what_is_known_of_hosts_and_replicas_is_bounded_and_forgotten():
    census = ReplicaRegistry()
    census.take(Declared("r1", "m", host="h1"))
    detector = HostConditionDetector(HostConditionConfig(), census)
    detector.take(NOT_READY, 0)
    detector.take(canary(), 0)
    detector.forget("r1")
    assert detector.take(canary(), 1) == ()  # it is counted anew
    for number in range(HOSTS_MAX):
        detector.take(HostConditionSeen(f"x{number}", HostCondition.NOT_READY), 2)
    assert detector.take(canary(), 3) == ()  # its host was heard of longest ago


@pytest.mark.parametrize(
    ("field", "value"),
    [("silent_row", 0), ("silent_row", 101), ("holds_s", 0), ("holds_s", float("nan"))],
)
def test_what_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"hosts.{field}"):
        HostConditionConfig(**{field: value})


STEPS = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.one_of(
            st.builds(HostConditionSeen, st.sampled_from(["h1", "h2"]), CONDITIONS),
            st.builds(
                CanaryAnswered,
                st.just("r1"),
                st.sampled_from(CanaryVerdict),
                progress=st.sampled_from([None, False, True]),
                page_ok=st.sampled_from([None, False, True]),
                status=st.sampled_from([None, 500]),
            ),
        ),
    ),
    max_size=60,
)


@settings(max_examples=examples(100))
@given(STEPS)
def test_whatever_comes_a_sign_needs_a_host_that_is_down_now_and_two_silences_in_a_row(steps):
    census = ReplicaRegistry()
    census.take(Declared("r1", "m", host="h1"))
    config = HostConditionConfig()
    detector = HostConditionDetector(config, census)
    now, down, silences = 0, None, 0
    for step, fact in steps:
        now += nanos(step)
        found = detector.take(fact, now)
        if isinstance(fact, HostConditionSeen):
            if fact.host == "h1":
                down = None if fact.condition is HostCondition.READY else (fact.condition, now)
            assert not found
            continue
        served = fact.verdict is CanaryVerdict.TIMEOUT and fact.progress
        if fact.verdict.answered or fact.status is not None or served:
            silences = 0 if fact.verdict is not CanaryVerdict.UNKNOWN else silences
        silences += fact.verdict.failed and fact.status is None
        for one in found:
            assert down is not None
            assert now - down[1] <= nanos(config.holds_s)
            assert silences >= config.silent_row
            leaving = down[0] is HostCondition.LEAVING
            assert one.sign is (Sign.HOST_LEAVING if leaving else Sign.HOST_NOT_READY)
            assert not (leaving and fact.page_ok)
