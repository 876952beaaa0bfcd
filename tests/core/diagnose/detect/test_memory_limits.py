import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.memory_limits import GB, MemoryLimitConfig, MemoryLimitDetector
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import Declared, Fact, HostSeen, Looked, MemorySeen, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

OOM = ProcessEnded("r1", 137, oom=True, phase="serving", uptime_s=40.0, served=1)


def gigabytes(number: float) -> int:
    return round(number * GB)


class Fleet:
    def __init__(self) -> None:
        self.census = ReplicaRegistry()
        self.detector = MemoryLimitDetector(MemoryLimitConfig(), self.census)
        self.now = 0

    def take(self, *facts: Fact) -> list[Evidence]:
        said = []
        for fact in facts:
            self.now += SECOND
            self.census.take(fact)
            if isinstance(fact, MemoryLimitDetector.reads):
                said += self.detector.take(fact, self.now)
        return said

    def order(self, replica: str = "r1", **sizes: object) -> list[Evidence]:
        named = {
            f"{name}_bytes": gigabytes(value)
            for name, value in sizes.items()
            if isinstance(value, float)
        }
        rest = {name: value for name, value in sizes.items() if not isinstance(value, float)}
        return self.take(Declared(replica, "parler", "1", **named, **rest))


def test_a_low_reservation_is_told_with_the_numbers_to_set() -> None:
    fleet = Fleet()
    fleet.order(reserved=1.0, limit=8.0)
    assert not fleet.take(MemorySeen("r1", gigabytes(0.9)))
    (said,) = fleet.take(MemorySeen("r1", gigabytes(3.5)))
    assert said.sign is Sign.RESERVED_TOO_LITTLE
    assert said.text == "memory reservation 1.0 GB, footprint 3.5 GB measured: set 4 GB"
    assert said.numbers == {
        "reserved_bytes": 1e9,
        "limit_bytes": 8e9,
        "footprint_bytes": 3.5e9,
        "suggested_bytes": 4e9,
        "measured": 1.0,
    }


def test_killed_at_its_limit_it_needs_at_least_that_much() -> None:
    fleet = Fleet()
    fleet.order(reserved=1.0, limit=1.0)
    said = fleet.take(OOM)
    assert [one.sign for one in said] == [Sign.RESERVED_TOO_LITTLE, Sign.LIMIT_TOO_LOW]
    assert said[1].text == (
        "memory limit 1.0 GB, footprint at least 1.0 GB, it was killed there: set 2 GB"
    )
    assert said[1].numbers["at_least"] == 1.0


def test_weights_tell_what_the_kill_could_not() -> None:
    fleet = Fleet()
    assert not fleet.order(reserved=1.0, limit=1.0, weights=2.7, kv=0.2)
    said = fleet.take(OOM)
    wanted = "footprint 3.5 GB by its weights, cache and buffers: set 4 GB"
    assert all(wanted in one.text for one in said)
    assert len(said) == 2


def test_a_peer_tells_what_the_kill_could_not() -> None:
    fleet = Fleet()
    fleet.order("r2", limit=8.0)
    fleet.take(MemorySeen("r2", gigabytes(3.4)))
    fleet.order(limit=1.0)
    (said,) = fleet.take(OOM)
    assert said.text == "memory limit 1.0 GB, footprint 3.4 GB measured on a peer: set 4 GB"


def test_weights_in_host_memory_accuse_before_anything_died() -> None:
    fleet = Fleet()
    said = fleet.order(reserved=1.0, limit=2.0, weights=2.9, needs_gpu=False)
    assert {one.sign for one in said} == {Sign.RESERVED_TOO_LITTLE, Sign.LIMIT_TOO_LOW}
    fleet = Fleet()
    fleet.take(HostSeen("cpu", gpus=0))
    assert fleet.order(reserved=1.0, weights=2.9, host="cpu")


def test_weights_on_a_gpu_or_nobody_knows_where_accuse_nobody() -> None:
    fleet = Fleet()
    assert not fleet.order(reserved=1.0, limit=2.0, weights=16.0)
    assert not fleet.order("r2", reserved=1.0, limit=2.0, weights=16.0, needs_gpu=True)
    assert not fleet.take(MemorySeen("r2", gigabytes(20.0), device="gpu"))
    said = fleet.take(ProcessEnded("r2", oom=True, phase="loading"))
    assert len(said) == 2
    assert all(
        "at least 2.0 GB" in one.text for one in said
    )  # and not the 16 GB that lie on its GPU


def test_within_its_reservation_nothing_is_said() -> None:
    fleet = Fleet()
    fleet.order(reserved=4.0, limit=4.5)
    assert not fleet.take(*(MemorySeen("r1", gigabytes(n / 10)) for n in range(42)))
    fleet.now += 10 * REPEAT
    assert not fleet.take(Looked())


def test_the_unknown_is_neither_too_little_nor_enough() -> None:
    fleet = Fleet()
    fleet.order()
    assert not fleet.take(MemorySeen("r1", gigabytes(100.0)), OOM, Looked())
    assert not fleet.take(MemorySeen("stranger", gigabytes(100.0)), ProcessEnded("stranger"))


def test_other_ends_say_nothing_of_size() -> None:
    fleet = Fleet()
    fleet.order(limit=1.0)
    ends = [
        ProcessEnded("r1", 1),
        ProcessEnded("r1", 137),  # killed by somebody; how much it used is unknown
        ProcessEnded("r1", 137, oom=True, asked=True),
        ProcessEnded("r1", 137, oom=True, phase="serving", uptime_s=86_400.0),  # it grew
    ]
    assert not fleet.take(*ends)
    assert not fleet.take(MemorySeen("r1", gigabytes(0.5)), ProcessEnded("r1", 137))


def test_one_that_lived_long_is_too_small_where_a_peer_uses_more_than_its_limit() -> None:
    long_lived = ProcessEnded("r1", 137, oom=True, phase="serving", uptime_s=7_900.0, served=900)
    fleet = Fleet()
    fleet.order(limit=1.0)
    assert not fleet.take(long_lived, Looked())
    fleet = Fleet()
    fleet.order(limit=1.0)
    fleet.order("r2", limit=8.0)
    assert not fleet.take(MemorySeen("r2", gigabytes(3.5)))
    said = fleet.take(long_lived, Looked())
    assert [one.sign for one in said] == [Sign.LIMIT_TOO_LOW]
    assert said[0].numbers["footprint_bytes"] == 3.5e9


def test_killed_again_within_the_hour_is_a_question_of_size_however_long_it_lived() -> None:
    fleet = Fleet()
    fleet.order(limit=1.0)
    assert fleet.take(OOM)
    fleet.now += 900 * SECOND
    assert not fleet.take(Looked())  # it has lived with its limit for a while
    assert fleet.take(ProcessEnded("r1", 137, oom=True, phase="serving", uptime_s=890.0))


def test_killed_without_a_witness_near_its_limit_is_taken_for_memory() -> None:
    fleet = Fleet()
    fleet.order()
    near = MemorySeen("r1", gigabytes(0.95), limit_bytes=gigabytes(1.0))
    (said,) = fleet.take(near, ProcessEnded("r1", signal=9))
    assert said.sign is Sign.LIMIT_TOO_LOW


def test_killed_because_the_host_was_crowded_speaks_of_the_reservation_only() -> None:
    fleet = Fleet()
    fleet.order(reserved=1.0, limit=8.0)
    said = fleet.take(MemorySeen("r1", gigabytes(3.5)), OOM)
    assert [one.sign for one in said] == [Sign.RESERVED_TOO_LITTLE]
    assert "3.5 GB measured: set 4 GB" in said[0].text


def test_it_is_said_again_while_it_holds_and_ends_with_the_correction() -> None:
    fleet = Fleet()
    fleet.order(reserved=1.0, limit=1.0)
    assert len(fleet.take(MemorySeen("r1", gigabytes(0.9)), OOM)) == 2
    assert not fleet.take(Looked())
    fleet.now += REPEAT
    assert len(fleet.take(Looked())) == 2
    assert not fleet.order(reserved=4.0, limit=4.0)
    fleet.now += REPEAT
    assert not fleet.take(Looked(), MemorySeen("r1", gigabytes(3.5)))


def test_another_revision_is_measured_anew() -> None:
    fleet = Fleet()
    fleet.order(reserved=1.0)
    assert fleet.take(MemorySeen("r1", gigabytes(3.5)))
    assert not fleet.take(Declared("r1", "parler", "2", reserved_bytes=GB))
    fleet.now += REPEAT
    assert not fleet.take(MemorySeen("r1", gigabytes(0.8)))


def test_forgotten_replicas_leave_nothing() -> None:
    fleet = Fleet()
    fleet.order(reserved=1.0)
    fleet.take(MemorySeen("r1", gigabytes(3.5)))
    fleet.detector.forget("r1")
    fleet.detector.forget("r1")
    assert not fleet.take(Looked())
    assert not fleet.detector._books
    assert not fleet.detector._pace._said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("tolerance", 0.9), ("headroom", 20.0), ("unknown_factor", 0.0), ("buffers", 1.0)),
        *(("near", 0.0), ("soon_s", 0.0), ("again_s", 1e6), ("recent_s", -1.0)),
        *(("step_bytes", 0), ("overhead_bytes", -1)),
    ],
)
def test_bad_configs_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"sizing\.{field}"):
        MemoryLimitConfig(**{field: value})


SIZES = st.one_of(st.none(), st.integers(1, 20).map(lambda n: n * GB // 2))
STEPS = st.one_of(
    st.builds(
        Declared,
        st.just("r1"),
        st.just("m"),
        weights_bytes=SIZES,
        needs_gpu=st.sampled_from([None, True, False]),
        reserved_bytes=SIZES,
        limit_bytes=SIZES,
    ),
    st.builds(MemorySeen, st.just("r1"), st.integers(0, 10 * GB), SIZES),
    st.builds(ProcessEnded, st.just("r1"), st.sampled_from([0, 1, 137]), oom=st.booleans()),
    st.just(Looked()),
)


@settings(max_examples=examples(200))
@given(st.lists(STEPS, max_size=30))
def test_what_it_suggests_always_holds_what_it_found(facts: list[Fact]) -> None:
    fleet = Fleet()
    for fact in facts:
        for said in fleet.take(fact):
            numbers = said.numbers
            low = said.sign is Sign.LIMIT_TOO_LOW
            bound = numbers["limit_bytes" if low else "reserved_bytes"]
            assert numbers["footprint_bytes"] >= bound
            assert numbers["suggested_bytes"] >= 1.1 * numbers["footprint_bytes"] - 1
            assert numbers["suggested_bytes"] % (GB // 2) == 0
