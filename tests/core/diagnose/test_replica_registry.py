import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose import replica_registry as module
from holdfast.core.diagnose.evidence import About
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Declared,
    Fact,
    FellSilent,
    Gone,
    HostSeen,
    LoadSeen,
    Looked,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Kind
from holdfast.core.types import State


def test_it_knows_whom_evidence_about_a_replica_concerns() -> None:
    census = ReplicaRegistry()
    census.take(Declared("r1", "m", "7", host="h1", filesystem="efs"))
    assert census.about("r1") == About("r1", "m", "7", "h1", "efs")
    assert census.about("stranger") == About("stranger")
    assert str(census.about("r1")) == "r1"
    assert str(About()) == "the fleet"


def test_peers_are_of_the_same_model_and_revision() -> None:
    census = ReplicaRegistry()
    for name, model, revision in [
        ("a", "m", "1"),
        ("b", "m", "1"),
        ("c", "m", "2"),
        ("d", "n", "1"),
    ]:
        census.take(Declared(name, model, revision))
    assert census.peers("a") == ["b"]
    assert census.peers("stranger") == []
    assert census.of_model("m") == ["a", "b", "c"]


def test_what_is_gone_is_forgotten_with_its_versions() -> None:
    census = ReplicaRegistry()
    census.take(Declared("a", "m"))
    census.take(VersionsSeen("a", cuda="12.1"))
    census.take(VersionsSeen("stranger", cuda="11.8"))
    assert set(census.versions) == {"a"}
    census.take(Gone("a"))
    census.take(Gone("a"))
    assert not census.replicas
    assert not census.versions


def test_it_has_a_bound_and_counts_what_did_not_fit(monkeypatch) -> None:
    monkeypatch.setattr(module, "REPLICAS_MAX", 1)
    monkeypatch.setattr(module, "HOSTS_MAX", 1)
    census = ReplicaRegistry()
    for name in ("a", "b"):
        census.take(Declared(name, "m"))
        census.take(HostSeen(name))
    census.take(Declared("a", "m", "2"))
    census.take(HostSeen("a", gpus=1))
    census.take(Looked())
    assert list(census.replicas) == ["a"]
    assert census.hosts["a"].gpus == 1
    assert census.refused == 2


@pytest.mark.parametrize(
    "fact",
    [
        Declared("a", "m", "2"),
        StateChanged("a", State.WARMING, "loaded"),  # it was only told to be running
        StateChanged("a", State.DEAD, "refused_repeatedly"),
        CanaryAnswered("a", CanaryVerdict.REFUSED),
        CanaryAnswered("a", CanaryVerdict.UNKNOWN),
        CanaryAnswered("a", CanaryVerdict.TIMEOUT, flaw=Kind.CONNECT_TIMEOUT.value),
        AttemptsSeen("a", 1.0),
        AttemptsSeen("a", 1.0, failures={Kind.REFUSED: 3, Kind.CONNECT_TIMEOUT: 1}),
        FellSilent("a", "loading", 60.0),
        Looked(),
        LoadSeen("another", running=1),
    ],
)
def test_an_endpoint_is_never_seen_while_nobody_was_met_there(fact: Fact) -> None:
    census = ReplicaRegistry()
    census.take(Declared("a", "m"))
    census.take(fact)
    assert census.never_seen("a")


@pytest.mark.parametrize(
    "fact",
    [
        StateChanged("a", State.READY, "passed_enough"),
        StateChanged("a", State.QUARANTINED, "wrong_revision"),
        CanaryAnswered("a", CanaryVerdict.FAIL, status=500),
        CanaryAnswered("a", CanaryVerdict.TIMEOUT),  # connected, and not answered
        AttemptsSeen("a", 1.0, successes=1),
        AttemptsSeen("a", 1.0, failures={Kind.REFUSED: 3, Kind.RESET: 1}),
        LoadSeen("a", running=1),
        VersionsSeen("a", engine="1.0"),
        Declared("a", "m", managed=True),
        Gone("a"),
    ],
)
def test_whoever_was_met_once_was_seen_for_good(fact: Fact) -> None:
    census = ReplicaRegistry()
    census.take(Declared("a", "m"))
    census.take(fact)
    census.take(CanaryAnswered("a", CanaryVerdict.REFUSED))
    assert not census.never_seen("a")


def test_whom_holdfast_starts_is_awaited_and_not_never_seen() -> None:
    census = ReplicaRegistry()
    census.take(Declared("a", "m", managed=True))
    assert not census.never_seen("a")
    assert not census.never_seen("stranger")
