import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.memory_limits import GB
from holdfast.core.diagnose.detect.placement import PlacementConfig, PlacementDetector
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    Declared,
    Fact,
    Gone,
    HostSeen,
    Looked,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError, State
from sampling import examples

READY = StateChanged("r1", State.READY, "canary_pass")


class Fleet:
    def __init__(self) -> None:
        self.census = ReplicaRegistry()
        self.detector = PlacementDetector(PlacementConfig(), self.census)
        self.now = 0

    def take(self, *facts: Fact) -> list[Evidence]:
        said = []
        for fact in facts:
            self.now += SECOND
            self.census.take(fact)
            if isinstance(fact, Gone):
                self.detector.forget(fact.replica)
            elif isinstance(fact, PlacementDetector.reads):
                said += self.detector.take(fact, self.now)
        return said


def cpu_model(**given: object) -> Declared:
    return Declared("r1", "tts", host="h1", needs_gpu=False, **given)


def gpu_model(**given: object) -> Declared:
    return Declared("r1", "llm", host="h1", needs_gpu=True, **given)


def test_a_model_that_needs_a_gpu_on_a_host_without_one_is_named() -> None:
    (said,) = Fleet().take(gpu_model(), HostSeen("h1", gpus=0, group="r5.xlarge"))
    assert said.sign is Sign.ON_CPU
    assert said.about == About("r1", "llm", host="h1")
    assert said.text == "llm needs a GPU and runs on h1 of group r5.xlarge, which has none"


def test_it_is_found_whichever_is_known_first_and_still_holds_when_it_is_ready() -> None:
    fleet = Fleet()
    (said,) = fleet.take(HostSeen("h1", gpus=0), gpu_model())
    assert said.text == "llm needs a GPU and runs on h1, which has none"
    fleet.now += REPEAT
    assert [one.sign for one in fleet.take(READY)] == [Sign.ON_CPU]


@pytest.mark.parametrize("gpus", [None, 1, 8])
def test_a_host_with_gpus_or_of_unknown_equipment_is_no_cpu_host(gpus: int | None) -> None:
    assert not Fleet().take(gpu_model(), HostSeen("h1", gpus=gpus))


@pytest.mark.parametrize("needs", [None, False])
def test_a_model_that_needs_none_or_does_not_say_may_run_there(needs: bool | None) -> None:
    fleet = Fleet()
    assert not fleet.take(Declared("r1", "m", host="h1", needs_gpu=needs), HostSeen("h1", gpus=0))


def test_a_model_larger_than_what_is_left_of_its_host_has_no_room() -> None:
    fleet = Fleet()
    fleet.take(cpu_model(weights_bytes=10 * GB, kv_bytes=2 * GB, reserved_bytes=1 * GB))
    (said,) = fleet.take(HostSeen("h1", memory_bytes=31 * GB, free_bytes=6 * GB))
    assert said.sign is Sign.NO_ROOM
    assert said.text == (
        "tts needs 12.0 GB for weights and cache, and h1 has 7.0 GB for it of 31.0 GB"
    )
    assert said.numbers == {
        "needed_bytes": 12e9,
        "room_bytes": 7e9,
        "memory_bytes": 31e9,
        "reserved_bytes": 1e9,
    }


def test_a_model_larger_than_its_whole_host_has_no_room_wherever_its_weights_lie() -> None:
    fleet = Fleet()
    (said,) = fleet.take(gpu_model(weights_bytes=141 * GB), HostSeen("h1", 1, memory_bytes=33 * GB))
    assert "needs 141.0 GB for weights and cache, and h1 has 33.0 GB in all" in said.text
    assert not fleet.take(READY)
    fleet.now += REPEAT
    assert not fleet.take(Looked())  # it serves: it has found room after all


def test_a_reservation_that_was_promised_twice_is_no_room_either() -> None:
    fleet = Fleet()
    fleet.take(cpu_model(reserved_bytes=8 * GB))
    (said,) = fleet.take(HostSeen("h1", gpus=0, free_bytes=-2 * GB))
    assert said.text == "tts needs 8.0 GB for its reservation, and h1 has 6.0 GB for it"


def test_a_full_host_is_no_fault_of_models_whose_weights_lie_on_gpus() -> None:
    fleet = Fleet()
    full = HostSeen("h1", gpus=4, memory_bytes=64 * GB, free_bytes=0)
    fleet.take(gpu_model(weights_bytes=16 * GB, reserved_bytes=4 * GB))
    assert not fleet.take(full)
    assert not fleet.take(ProcessEnded("r1", 0, asked=True), ProcessEnded("r1", 1, phase="serving"))
    (said,) = fleet.take(ProcessEnded("r1", 137, phase="loading"))
    assert said.sign is Sign.NO_ROOM


def test_with_an_unknown_reservation_only_a_death_accuses() -> None:
    fleet = Fleet()
    fleet.take(cpu_model(weights_bytes=10 * GB))
    assert not fleet.take(HostSeen("h1", gpus=0, free_bytes=6 * GB))
    assert len(fleet.take(ProcessEnded("r1", oom=True, phase="serving"))) == 1


def test_what_fits_or_is_unknown_is_no_evidence() -> None:
    fleet = Fleet()
    assert not fleet.take(cpu_model(), HostSeen("h1", 0, 10 * GB, 0))
    assert not fleet.take(cpu_model(kv_bytes=50 * GB))
    assert not fleet.take(cpu_model(weights_bytes=9 * GB, reserved_bytes=9 * GB))
    assert not fleet.take(HostSeen("h1"), cpu_model(weights_bytes=9 * GB, reserved_bytes=1 * GB))
    assert not fleet.take(Declared("r2", "m", weights_bytes=900 * GB), Looked())
    assert not fleet.take(StateChanged("stranger", State.DEAD, "exited"))


def test_it_is_said_again_while_it_holds_and_ends_when_it_is_moved_or_room_is_made() -> None:
    fleet = Fleet()
    both = gpu_model(weights_bytes=10 * GB, reserved_bytes=1 * GB)
    said = fleet.take(both, HostSeen("h1", 0, free_bytes=0))
    assert [one.sign for one in said] == [Sign.ON_CPU, Sign.NO_ROOM]
    assert not fleet.take(Looked())
    fleet.now += REPEAT
    assert len(fleet.take(Looked())) == 2
    fleet.now += REPEAT
    assert [one.sign for one in fleet.take(HostSeen("h1", 0, free_bytes=20 * GB))] == [Sign.ON_CPU]
    fleet.take(Declared("r1", "llm", host="h2", needs_gpu=True))
    fleet.now += REPEAT
    assert not fleet.take(HostSeen("h2", gpus=1), Looked())
    assert list(fleet.detector._on) == ["h2"]


def test_forgotten_replicas_leave_nothing() -> None:
    fleet = Fleet()
    fleet.take(gpu_model(), Declared("r2", "llm", host="h1"), HostSeen("h1", gpus=0))
    fleet.take(Gone("r1"), Gone("r1"))
    assert not fleet.take(Looked())
    assert list(fleet.detector._on["h1"]) == ["r2"]
    assert not fleet.detector._pace._said
    fleet.take(Gone("r2"))
    assert not fleet.detector._on


def test_a_replica_that_the_census_lost_is_judged_no_more() -> None:
    fleet = Fleet()
    fleet.take(gpu_model(), HostSeen("h1", gpus=0))
    fleet.census.take(Gone("r1"))
    fleet.now += REPEAT
    assert not fleet.take(Looked())


def test_bad_configs_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"placement\.margin"):
        PlacementConfig(margin=1.0)


NAMES, HOSTS = st.sampled_from("ab"), st.sampled_from(["", "h1", "h2"])
SIZES = st.one_of(st.none(), st.integers(0, 40).map(lambda n: n * GB))
STEPS = st.one_of(
    st.builds(
        Declared,
        NAMES,
        st.just("m"),
        host=HOSTS,
        needs_gpu=st.sampled_from([None, True, False]),
        weights_bytes=SIZES,
        reserved_bytes=SIZES,
    ),
    st.builds(HostSeen, HOSTS, st.sampled_from([None, 0, 1]), SIZES, SIZES),
    st.builds(StateChanged, NAMES, st.sampled_from(State), st.just("x")),
    st.builds(ProcessEnded, NAMES, st.sampled_from([0, 137]), phase=st.just("loading")),
    st.builds(Gone, NAMES),
    st.just(Looked()),
)


@settings(max_examples=examples(200))
@given(st.lists(STEPS, max_size=40))
def test_it_accuses_only_on_known_numbers_and_never_a_ready_replica_of_having_no_room(
    facts: list[Fact],
) -> None:
    fleet = Fleet()
    for fact in facts:
        for said in fleet.take(fact):
            replica = fleet.census.replicas[said.about.replica]
            host = fleet.census.hosts[said.about.host]
            if said.sign is Sign.ON_CPU:
                assert replica.needs_gpu
                assert host.gpus == 0
            else:
                assert host.memory_bytes is not None or host.free_bytes is not None
                assert not fleet.detector._books[said.about.replica].ready
    assert set(fleet.detector._books) == {n for on in fleet.detector._on.values() for n in on}
