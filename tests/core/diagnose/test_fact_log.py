import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose import fact_log as module
from holdfast.core.diagnose.evidence import About, Evidence, Incident, Sign, TimelineEntry
from holdfast.core.diagnose.fact_log import (
    FactLog,
)
from holdfast.core.diagnose.facts import (
    FACT_NAMES,
    AttemptsSeen,
    CanariesDoubted,
    ChainDeclared,
    Compared,
    Declared,
    Fact,
    FilesystemSeen,
    FinishesSeen,
    Gone,
    HostSeen,
    LineSeen,
    Looked,
    Mark,
    MemorySeen,
    ProcessEnded,
    QueueSeen,
    RolloutSeen,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.failure import Cause, Class, Kind
from holdfast.core.types import ConfigError, State
from sampling import examples

MAPPINGS = {
    AttemptsSeen: {"failures": st.dictionaries(st.sampled_from(Kind), st.integers())},
    FinishesSeen: {"reasons": st.dictionaries(st.text(), st.integers())},
}
FACTS = st.one_of([st.builds(kind, **MAPPINGS.get(kind, {})) for kind in FACT_NAMES])
ABOUTS = st.builds(About, *[st.text(max_size=5)] * 5)
EVIDENCE = st.builds(
    Evidence,
    st.sampled_from(Sign),
    ABOUTS,
    st.integers(),
    st.text(),
    st.text(),
    st.dictionaries(st.text(), st.floats()),
)
INCIDENTS = st.builds(
    Incident,
    about=ABOUTS,
    evidence=st.lists(EVIDENCE, max_size=3),
    consequences=st.lists(EVIDENCE, max_size=3),
    timeline=st.lists(st.builds(TimelineEntry), max_size=3),
)


def incident(about: About, **given_: object) -> Incident:
    return Incident("inc-000001", Cause.UNDERSIZED, Class.RUNTIME, about, 5, 0.9, **given_)


def log_of(*facts: Fact, max_facts: int = 100) -> FactLog:
    log = FactLog(max_facts)
    for at, fact in enumerate(facts):
        log.add(fact, at)
    return log


def concerning(log: FactLog, about: About, **given_: object) -> list[Fact]:
    return [fact for _, fact in log.of(incident(about, **given_))]


def test_an_incident_gets_what_concerns_its_replica_its_peers_and_the_fleet() -> None:
    mine = [
        Declared("r1", "m", host="h1", filesystem="efs"),
        Declared("r2", "m"),
        MemorySeen("r1", 5),
        MemorySeen("r2", 5),
        HostSeen("h1"),
        FilesystemSeen("efs"),
        QueueSeen("m", 3),
        RolloutSeen("m", "2", "began"),
        CanariesDoubted("m"),
        Looked(),
    ]
    others = [
        Declared("x1", "other", host="h2", filesystem="nfs"),
        MemorySeen("x1", 5),
        HostSeen("h2"),
        FilesystemSeen("nfs"),
        QueueSeen("other", 3),
        CanariesDoubted("other"),
        ChainDeclared("c", ("other", "another")),
    ]
    log = log_of(*mine, *others)
    assert concerning(log, About("r1", "m", host="h1", filesystem="efs")) == mine
    assert concerning(log, About(), replicas=("r1",)) == mine
    assert len(log) == 17


def test_replicas_of_its_evidence_belong_to_it() -> None:
    log = log_of(Declared("r1", "m"), Declared("x", "n"), MemorySeen("x", 1))
    said = Evidence(Sign.LOG_TRANSFER, About("x"), 0, "log", "")
    assert len(concerning(log, About("r1"), consequences=[said])) == 3
    assert len(concerning(log, About("r1"))) == 1


def test_the_models_of_its_chain_belong_to_it() -> None:
    facts = [ChainDeclared("c", ("m", "n")), Declared("x", "n"), QueueSeen("n", 5)]
    assert concerning(log_of(*facts), About(model="m")) == facts


def test_a_replica_named_in_its_log_belongs_to_it_and_so_do_comparisons_with_it() -> None:
    facts = [
        LineSeen("r1", Mark.TRANSFER_FAILED, peer="p1"),
        ProcessEnded("p1", 1),
        Compared("z", "r1", agreed=False),
    ]
    assert concerning(log_of(*facts), About("r1")) == facts


def test_an_incident_of_a_filesystem_or_a_host_gets_everybody_there() -> None:
    facts = [
        Declared("a", "m", host="h", filesystem="efs"),
        Declared("b", "n", host="i", filesystem="efs"),
        ProcessEnded("a", 1),
        ProcessEnded("b", 1),
    ]
    assert concerning(log_of(*facts), About(filesystem="efs")) == facts
    assert concerning(log_of(*facts), About(host="h")) == [facts[0], facts[2]]
    assert concerning(log_of(*facts), About("a", filesystem="efs")) == [facts[0], facts[2]]


def test_what_came_after_the_end_is_no_part_of_it() -> None:
    log = log_of(Looked(), Looked(), Looked())
    assert [at for at, _ in log.of(incident(About(), closed_at=1))] == [0, 1]


def test_what_lasts_outlives_the_ring_and_the_latest_counts() -> None:
    facts = [
        Declared("r1", "m", "1"),
        VersionsSeen("r1", cuda="11.8"),
        MemorySeen("r1", 1),
        Declared("r1", "m", "2"),
        StateChanged("r1", State.READY, "canary_pass"),
    ]
    log = log_of(*facts, *[Looked()] * 3, max_facts=3)
    kept = [(1, facts[1]), (3, facts[3]), (4, facts[4])]
    assert log.of(incident(About("r1")))[:3] == kept
    assert log.dropped == 1
    assert len(log) == 6


def test_what_is_kept_of_a_replica_goes_with_it() -> None:
    log = log_of(Declared("r1", "m"), HostSeen("h"), Gone("r1"), Looked(), max_facts=1)
    assert not concerning(log, About("r1"))[1:]
    assert list(log._kept) == [(HostSeen, "h")]


def test_what_is_kept_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)
    log = log_of(*(Declared(f"r{n}", "m") for n in range(5)), max_facts=1)
    assert [fact.replica for fact in concerning(log, About(model="m"))] == ["r2", "r3", "r4"]
    assert log.dropped == 2


def test_a_log_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"factlog\.max_facts"):
        FactLog(0)


@settings(max_examples=examples(60))
@given(st.lists(FACTS, max_size=30), st.integers(1, 5))
def test_whatever_comes_it_stays_in_its_bounds_and_in_the_order_of_time(
    facts: list[Fact], most: int
) -> None:
    log = log_of(*facts, max_facts=most)
    assert len(log._ring) <= most
    assert len(log) + log.dropped <= len(facts)
    times = [at for at, _ in log.of(incident(About("r1", "m")))]
    assert times == sorted(times)
