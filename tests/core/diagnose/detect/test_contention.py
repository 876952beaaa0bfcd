import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect import contention as module
from holdfast.core.diagnose.detect.contention import ContentionConfig, ContentionDetector
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    Declared,
    Fact,
    FilesystemSeen,
    Gone,
    Looked,
    PhaseSeen,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import ConfigError, State, nanos
from sampling import examples

GB = 10**9
FULL = FilesystemSeen("efs", 100e6, 100e6, 0.08, 40)


class Fleet:
    def __init__(self, size: int = 40) -> None:
        self.census = ReplicaRegistry()
        self.detector = ContentionDetector(ContentionConfig(), self.census)
        self.names = [f"r{n}" for n in range(size)]
        for name in self.names:
            self.take(0, Declared(name, "m", filesystem="efs"))

    def take(self, at: float, *facts: Fact) -> list[Evidence]:
        said = []
        for fact in facts:
            self.census.take(fact)
            if isinstance(fact, Gone):
                self.detector.forget(fact.replica)
            else:
                said += self.detector.take(fact, nanos(at))
        return said

    def load(self, at: float, read: int | None, total: int | None = 10 * GB) -> list[Evidence]:
        return self.take(at, *(PhaseSeen(name, "loading", read, total) for name in self.names))


def signs(said: list[Evidence]) -> list[Sign]:
    return [one.sign for one in said]


def test_forty_cold_starts_on_one_filesystem_are_bandwidth_and_not_operations() -> None:
    fleet = Fleet()
    fleet.load(0, 0)
    assert not fleet.take(1, FULL)
    fleet.load(30, 75_000_000)
    (said,) = fleet.take(31, FULL)
    assert said.sign is Sign.FILESYSTEM_FULL_SPEED
    assert said.about == About(filesystem="efs")
    assert said.text == (
        "filesystem efs: reads 100.0 MB/s of 100.0 MB/s permitted, operations at 8%:"
        " 40 readers get 2.5 MB/s each, all are loaded in 3970 s"
    )
    assert said.numbers["eta_s"] == pytest.approx(3970.0)
    assert said.numbers["readers"] == 40.0


def test_each_slow_load_tells_when_it_will_be_done() -> None:
    fleet = Fleet(1)
    for at in range(0, 60, 5):
        said = fleet.load(at, at * 2_500_000)
        if said:
            break
    assert at == 20
    assert signs(said) == [Sign.LOAD_SLOW]
    assert said[0].about == About("r0", "m", filesystem="efs")
    assert said[0].text == (
        "0.1 of 10.0 GB read at 2.5 MB/s: ready in 3980 s, 4000 s after it began"
    )
    assert said[0].numbers == {
        "eta_s": 3980.0,
        "bytes_s": 2.5e6,
        "readers": 1.0,
        "total_bytes": 1e10,
    }


def test_without_a_known_ceiling_only_the_loads_speak() -> None:
    fleet = Fleet()
    said = []
    for at in range(0, 60, 5):
        said += fleet.take(at, FilesystemSeen("efs", 100e6, None, 0.08, 40), Looked())
        said += fleet.load(at, at * 2_500_000)
    assert set(signs(said)) == {Sign.LOAD_SLOW}


def test_a_load_is_compared_with_what_others_of_the_model_took() -> None:
    fleet = Fleet(3)
    fleet.take(0, PhaseSeen("r0", "loading", 0, 100 * GB))
    fleet.take(400, PhaseSeen("r0", "compile"))
    fleet.take(400, StateChanged("r1", State.LOADING, "load_began"))
    for at in range(400, 460, 5):  # 1,000 s: slower, and not by far
        assert not fleet.take(at, PhaseSeen("r1", "loading", (at - 400) * GB // 10, 100 * GB))
    said = []
    for at in range(400, 460, 5):
        said += fleet.take(at, PhaseSeen("r2", "loading", (at - 400) * GB // 20, 100 * GB))
    assert "other loads of m took 400 s" in said[0].text
    assert said[0].numbers["usual_s"] == 400.0


def test_a_large_model_that_reads_fast_is_not_slow() -> None:
    fleet = Fleet(1)
    for at in range(0, 60, 5):
        assert not fleet.load(at, at * 200_000_000, 140 * GB)


def test_a_load_that_will_be_done_soon_is_not_slow_however_fast_others_were() -> None:
    fleet = Fleet(2)
    fleet.take(0, PhaseSeen("r1", "loading", 0, 10 * GB))
    fleet.take(2, StateChanged("r1", State.WARMING, "loaded"))  # out of the page cache
    for at in range(10, 100, 5):
        assert not fleet.take(at, PhaseSeen("r0", "loading", at * 40_000_000, 10 * GB))


def test_a_load_that_stands_still_or_is_of_unknown_size_is_not_called_slow() -> None:
    fleet = Fleet(1)
    for at in range(0, 100, 5):
        assert not fleet.load(at, 1_000_000)
    fleet = Fleet(1)
    for at in range(0, 100, 5):
        assert not fleet.load(at, at * 1000, None)
    fleet = Fleet(1)
    for at in range(0, 100, 5):
        assert not fleet.load(at, None)


def test_progress_that_falls_back_is_a_new_beginning() -> None:
    fleet = Fleet(1)
    fleet.load(0, 9 * GB)
    assert not fleet.load(30, 0)
    assert not fleet.load(35, 12_500_000)


def test_declared_weights_stand_in_for_an_unknown_total() -> None:
    fleet = Fleet(0)
    fleet.take(0, Declared("r1", "m", weights_bytes=10 * GB))
    fleet.take(0, PhaseSeen("r1", "loading", 0))
    (said,) = fleet.take(30, PhaseSeen("r1", "loading", 75_000_000))
    assert said.numbers["total_bytes"] == 1e10


def test_quick_reports_do_not_shorten_the_memory_of_a_load() -> None:
    fleet = Fleet(1)
    for tick in range(400):
        fleet.load(tick / 10, tick * 250_000)
    samples = fleet.detector._loads["r0"].samples
    assert samples[-1][0] - samples[0][0] > nanos(30)
    assert len(samples) <= 16


def test_full_speed_for_a_moment_is_how_it_should_be() -> None:
    fleet = Fleet(4)
    fleet.load(0, 0)
    assert not fleet.take(1, FULL)
    assert not fleet.take(20, FilesystemSeen("efs", 40e6, 100e6, 0.08, 4))
    assert not fleet.take(40, FULL, Looked())


def test_full_speed_of_one_reader_or_of_those_that_serve_is_no_contention() -> None:
    fleet = Fleet(3)
    fleet.take(0, *(StateChanged(name, State.READY, "canary_pass") for name in fleet.names))
    fleet.take(0, StateChanged("r0", State.STARTING, "launched"))
    one = FilesystemSeen("efs", 100e6, 100e6, 0.08, 3)
    assert not fleet.take(1, one)
    assert not fleet.take(60, one, Looked())


def test_whose_state_nobody_knows_may_be_among_the_readers() -> None:
    fleet = Fleet(3)
    assert not fleet.take(0, FilesystemSeen("efs", 100e6, 100e6))
    assert not fleet.take(40, FilesystemSeen("efs", 100e6, 100e6))  # nobody told of readers
    (said,) = fleet.take(45, FilesystemSeen("efs", 100e6, 100e6, None, 9))
    assert "operations unknown: 3 readers get 33.3 MB/s each" in said.text


def test_operations_at_their_ceiling_are_named_as_such() -> None:
    fleet = Fleet()
    fleet.load(0, None, None)
    seen = FilesystemSeen("efs", 1e6, 100e6, 1.0, 40)
    fleet.take(0, seen)
    (said,) = fleet.take(30, Looked())
    assert said.sign is Sign.FILESYSTEM_OPERATIONS
    assert "operations at 100%" in said.text
    fleet.take(30, FilesystemSeen("efs", 1e6, operations_share=0.95))
    (said,) = fleet.take(60, Looked())
    assert said.text.endswith("reads 1.0 MB/s, operations at 95%: 40 readers get 0.0 MB/s each")
    fleet.take(60, FilesystemSeen("efs", operations_share=0.95))
    (said,) = fleet.take(90, Looked())
    assert said.text.endswith("operations at 95% of what is permitted, 40 readers load at once")


def test_many_operations_beside_full_speed_are_not_called_low() -> None:
    fleet = Fleet()
    fleet.load(0, 0)
    fleet.take(0, FilesystemSeen("efs", 100e6, 100e6, 0.7, 40))
    assert not fleet.take(60, Looked())


def test_it_is_said_again_while_it_holds_and_ends_with_the_loads_or_with_old_age() -> None:
    fleet = Fleet(2)
    fleet.load(0, None, None)
    fleet.take(0, FULL)
    assert len(fleet.take(30, Looked())) == 1
    assert not fleet.take(45, Looked())
    assert len(fleet.take(60, Looked())) == 1
    fleet.take(61, FilesystemSeen("efs"))  # nothing is known: neither full nor free
    assert len(fleet.take(90, Looked())) == 1
    fleet.take(91, *(StateChanged(name, State.READY, "canary_pass") for name in fleet.names))
    assert not fleet.take(130, Looked())
    fleet.take(131, *(StateChanged(name, State.LOADING, "load_began") for name in fleet.names))
    assert len(fleet.take(132, Looked())) == 1
    assert not fleet.take(300, Looked())
    assert not fleet.detector._sights["efs"].since


def test_a_slow_load_is_said_again_until_it_ends_is_gone_or_is_not_heard_of() -> None:
    fleet = Fleet(3)
    fleet.load(0, 0)
    assert len(fleet.load(25, 50_000_000)) == 3
    assert len(fleet.take(56, Looked())) == 3
    fleet.take(57, ProcessEnded("r0", 1), ProcessEnded("stranger", 1))
    fleet.take(57, Gone("r1"))
    assert [one.about.replica for one in fleet.take(90, Looked())] == ["r2"]
    assert not fleet.take(500, Looked())
    assert not fleet.detector._open
    assert not fleet.detector._pace._said


def test_a_replica_that_dies_loading_teaches_nothing_of_how_long_loads_take() -> None:
    fleet = Fleet(1)
    fleet.load(0, 0)
    fleet.take(5, StateChanged("r0", State.DEAD, "exited"))
    fleet.take(6, ProcessEnded("r0", 1))
    assert not fleet.detector._took


def test_books_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(module, "FILESYSTEMS_MAX", 1)
    monkeypatch.setattr(module, "MODELS_MAX", 1)
    fleet = Fleet(0)
    fleet.take(0, FULL, FilesystemSeen("other"))
    assert fleet.detector.refused == 1
    for name in ("a", "b"):
        fleet.take(0, Declared(name, name), PhaseSeen(name, "loading"), PhaseSeen(name, "serving"))
    assert list(fleet.detector._took) == ["b"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("full", 0.0), ("operations_low", 1.5), ("operations_full", -1.0), ("readers_min", 0)),
        *(("hold_s", 0.0), ("stale_s", 1e6), ("sample_s", 0.0), ("rate_after_s", 0.0)),
        *(("slow_after_s", 0.0), ("slow_factor", 1.0), ("slow_bytes_s", 0.0)),
    ],
)
def test_bad_configs_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"contention\.{field}"):
        ContentionConfig(**{field: value})


NAMES = st.sampled_from(["r0", "r1", "r2", "stranger"])
SHARES = st.sampled_from([None, 0.0, 0.3, 0.95, 1.0])
STEPS = st.one_of(
    st.builds(
        FilesystemSeen,
        st.sampled_from(["efs", "local"]),
        st.sampled_from([None, 0.0, 95e6, 100e6]),
        st.sampled_from([None, 0.0, 100e6]),
        SHARES,
        st.sampled_from([None, 0, 5]),
    ),
    st.builds(
        PhaseSeen,
        NAMES,
        st.sampled_from(["starting", "loading", "compile", "serving"]),
        st.sampled_from([None, 0, 10**6, 10**9, 10**10]),
        st.sampled_from([None, 0, 10**10]),
    ),
    st.builds(StateChanged, NAMES, st.sampled_from(State), st.just("x")),
    st.builds(ProcessEnded, NAMES),
    st.builds(Gone, NAMES),
    st.just(Looked()),
)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 60), STEPS), max_size=40))
def test_it_accuses_only_on_known_numbers(steps: list[tuple[int, Fact]]) -> None:
    fleet, at = Fleet(3), 0
    for after, fact in steps:
        at += after
        for said in fleet.take(at, fact):
            assert all(number >= 0 for number in said.numbers.values())
            if said.sign is Sign.LOAD_SLOW:
                assert fleet.detector._loads[said.about.replica].loading
                assert said.numbers["eta_s"] > 0
            else:
                assert said.numbers["readers"] >= 2
