"""One node of four is updated to another CUDA, and nobody announces it; in virtual time."""

import pytest

from holdfast.core.diagnose.facts import VersionsSeen
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause, Class
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import Replica, nanos, seconds
from holdfast.sim.diagnosis import DiagnosisDriver
from holdfast.sim.experiment import Experiment
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

FROM_S, UNTIL_S = 60.0, 180.0


def played(*faults):
    """What is found in six minutes, and what was said of versions."""
    chat = Workload(rate=8.0, prompt=Lengths(mean=200.0), output=Lengths(mean=60.0))
    setup = Experiment(
        tuple(Replica(f"r{i}", "m") for i in range(4)),
        duration_s=600.0,
        workloads=(("m", chat),),
        faults=FaultSchedule(faults),
        loading=LoadingConfig(start_s=1.0, size_gb=4.0, bandwidth_gb_per_s=0.5),
    )
    world, said = World(setup, 1), []

    def tap(fact, now):
        if isinstance(fact, VersionsSeen):
            said.append((now, fact))

    watcher = DiagnosisDriver(world, Investigation(), seed=1, tap=tap)
    results = world.run()
    return list(watcher.incidents.values()), said, results


@pytest.fixture(scope="module")
def updated():
    return played(Fault(FaultKind.SKEW, "r2", nanos(FROM_S), nanos(UNTIL_S)))


def test_the_incident_names_the_skew_and_the_replica_on_the_updated_host(updated):
    (incident,), said, _ = updated
    assert (incident.cause, incident.failure_class) == (Cause.VERSION_SKEW, Class.RUNTIME)
    assert incident.about.replica == "r2"
    assert "cuda 12.6 on r2, 12.4 on r0, r1, r3" in incident.evidence[0].text
    assert FROM_S < seconds(incident.opened_at) < FROM_S + 15
    assert [fact.cuda for _, fact in said if fact.replica == "r2"] == ["12.4", "12.6", "12.4"]


def test_it_is_over_when_the_host_is_as_the_others_again(updated):
    (incident,), _, _ = updated
    assert incident.closed_at is not None
    assert seconds(incident.closed_at) > UNTIL_S


def test_no_user_notices_an_update_and_the_replica_serves_on(updated):
    _, _, results = updated
    total = results.total()
    assert total.offered > 1_000
    assert (total.failed, total.wrong, results.ejected) == (0, 0, 0)


def test_hosts_that_are_all_updated_or_none_are_no_skew():
    assert played()[0] == []
    everybody = Fault(FaultKind.SKEW, "*", nanos(FROM_S), None)
    assert played(everybody)[0] == []
