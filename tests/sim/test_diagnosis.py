"""A simulated fleet is watched as a live one is, and its failures become the right incidents."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from holdfast.core.diagnose.evidence import Incident, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Declared,
    Fact,
    FellSilent,
    FinishesSeen,
    Gone,
    LoadSeen,
    Looked,
    MemorySeen,
    OutputSeen,
    PhaseSeen,
    ProcessEnded,
    QueueSeen,
    RolloutSeen,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.investigation import Finding, Investigation
from holdfast.core.failure import Cause, Kind
from holdfast.core.messages import Left, RestartAsked
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import SECOND, ConfigError, Replica, State, nanos, seconds
from holdfast.sim.clock import CONTROL, WORLD
from holdfast.sim.diagnosis import DiagnosisDriver, ObservationModel
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.memory.memory_model import MemoryModel
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

CHAT = Workload(rate=8.0, prompt=Lengths(mean=200.0), output=Lengths(mean=60.0, maximum=400))
FROM = 20.0


class Watched:
    """One run with everything that was said in it."""

    def __init__(
        self, *faults: Fault, habits: ObservationModel | None = None, **changes: Any
    ) -> None:
        base = Experiment(
            tuple(Replica(f"r{i}", "m", zone=f"zone-{i % 2}") for i in range(4)),
            duration_s=90.0,
            workloads=(("m", CHAT),),
            faults=FaultSchedule(faults),
            loading=LoadingConfig(start_s=1.0, size_gb=4.0, bandwidth_gb_per_s=0.5),
        )
        self.world = World(replace(base, **changes), 1)
        self.facts: list[tuple[int, Fact]] = []
        self.findings: list[Finding] = []
        self.watcher = DiagnosisDriver(
            self.world,
            Investigation(),
            habits,
            seed=1,
            listen=lambda finding, _now: self.findings.append(finding),
            tap=lambda fact, at: self.facts.append((at, fact)),
        )

    def run(self) -> "Watched":
        self.world.run()
        return self

    def of(self, kind: type, replica: str = "") -> list[Any]:
        named = [fact for _, fact in self.facts if isinstance(fact, kind)]
        return [fact for fact in named if not replica or fact.replica == replica]

    def incidents(self) -> list[Incident]:
        return list(self.watcher.incidents.values())


def fault(kind: FaultKind, until: float | None = 80.0, **more: Any) -> Fault:
    return Fault(kind, "r0", nanos(FROM), None if until is None else nanos(until), **more)


@pytest.fixture(scope="module")
def quiet() -> Watched:
    return Watched(duration_s=180.0).run()


def test_a_quiet_run_has_no_incident(quiet: Watched):
    assert quiet.incidents() == []
    assert quiet.findings == []


def test_every_replica_is_declared_and_told_of_every_second(quiet: Watched):
    assert [fact.replica for fact in quiet.of(Declared)] == ["r0", "r1", "r2", "r3"]
    assert {fact.image for fact in quiet.of(VersionsSeen)} == {"engine@sha256:m-1"}
    looks = Counter(fact.replica for fact in quiet.of(LoadSeen))
    assert all(count >= 175 for count in looks.values())
    assert len(looks) == 4
    assert len(quiet.of(Looked)) >= 175
    assert len(quiet.of(QueueSeen)) >= 35
    assert quiet.watcher.facts["LoadSeen"] == len(quiet.of(LoadSeen))


def test_what_gateways_saw_is_added_up(quiet: Watched):
    seen = quiet.of(AttemptsSeen)
    good = quiet.world.results.total().good  # the last second's are told to nobody
    assert good - 20 <= sum(fact.successes for fact in seen) <= good
    shares = [fact.share for fact in seen if fact.share is not None]
    assert 0.15 < sum(shares) / len(shares) < 0.35
    values = [value for fact in quiet.of(OutputSeen) for value in fact.values]
    assert len(values) > 500
    reasons: Counter[str] = Counter()
    for fact in quiet.of(FinishesSeen):
        reasons.update(fact.reasons)
    assert 0.2 < reasons["length"] / reasons.total() < 0.4
    assert set(reasons) == {"length", "stop"}


def test_generated_tokens_grow_while_requests_run_and_never_fall(quiet: Watched):
    told = quiet.of(LoadSeen, "r1")
    pairs = list(pairwise(told))
    assert all(after.generated >= before.generated for before, after in pairs)
    moved = [after.generated > before.generated for before, after in pairs if before.running]
    assert sum(moved) > 0.95 * len(moved)


def test_canaries_are_told_with_what_ran_beside_them(quiet: Watched):
    told = quiet.of(CanaryAnswered, "r2")
    assert {fact.verdict for fact in told} == {"pass"}
    assert all(fact.page_ok for fact in told)
    assert any(fact.running for fact in told)


def test_facts_come_in_order(quiet: Watched):
    times = [at for at, _ in quiet.facts]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("kind", "more", "causes"),
    [
        (FaultKind.CRASH, {"until": FROM + 0.5}, {Cause.CRASHED}),
        (FaultKind.HANG, {}, {Cause.HUNG, Cause.STALLED}),
        (FaultKind.WRONG_OUTPUT, {}, {Cause.WRONG_OUTPUT}),
        (FaultKind.BLACK_HOLE, {}, {Cause.FAST_FAILURES, Cause.SERVER_ERRORS}),
    ],
)
def test_a_failure_becomes_its_incident(kind: FaultKind, more: Any, causes: set[Cause]):
    watched = Watched(fault(kind, **more)).run()
    found = [one for one in watched.incidents() if one.about.replica == "r0"]
    assert found
    assert found[0].cause in causes
    assert seconds(found[0].opened_at) < FROM + 30
    assert {one.about.replica for one in watched.incidents()} == {"r0"}


@pytest.mark.parametrize(
    ("kind", "count", "every_s", "lasts_s", "cause"),
    [
        (FaultKind.HANG, 2, 65.0, 30.0, Cause.HUNG),
        (FaultKind.CRASH, 2, 65.0, 0.5, Cause.CRASHED),
        (FaultKind.SLOW, 3, 45.0, 45.0, Cause.SLOW),
    ],
)
def test_one_replica_after_another_is_an_incident_each(
    kind: FaultKind, count: int, every_s: float, lasts_s: float, cause: Cause
):
    begins = [FROM + n * every_s for n in range(count)]
    more = {"factor": 10.0} if kind is FaultKind.SLOW else {}
    faults = [
        Fault(kind, f"r{n}", nanos(at), nanos(at + lasts_s), **more) for n, at in enumerate(begins)
    ]
    # Slow ones are told by comparison: enough peers have to be well.
    replicas = tuple(Replica(f"r{n}", "m") for n in range(4 if more else count))
    watched = Watched(*faults, replicas=replicas, duration_s=begins[-1] + lasts_s + 15.0).run()
    found = [(one.cause, one.about.replica) for one in watched.incidents()]
    assert found == [(cause, f"r{n}") for n in range(count)]


def test_replicas_that_crash_within_a_second_are_one_incident_of_their_model():
    faults = (
        Fault(FaultKind.CRASH, f"r{n}", nanos(FROM + 0.3 * n), nanos(FROM + 0.3 * n + 0.5))
        for n in range(3)
    )
    (incident,) = Watched(*faults).run().incidents()
    assert (incident.cause, incident.about.replica, incident.about.model) == (
        Cause.CRASHED,
        "",
        "m",
    )


def test_a_process_that_dies_of_every_request_is_out_of_memory():
    watched = Watched(fault(FaultKind.OOM, until=None), duration_s=120.0).run()
    ended = watched.of(ProcessEnded, "r0")
    assert ended
    assert ended[0].oom
    assert ended[0].signal == 9
    assert ended[0].phase == "serving"
    assert ended[0].served
    signs = {one.sign for incident in watched.incidents() for one in incident.evidence}
    assert Sign.KILLED_FOR_MEMORY in signs
    assert {one.about.replica for one in watched.incidents()} == {"r0"}


def test_a_slow_replica_is_told_by_its_canaries():
    law = EngineParameters(step_ms=40.0)
    slow = Fault(FaultKind.SLOW, "r0", nanos(100.0), None, factor=8.0)
    # Only canaries with nothing beside them are compared.
    calm = (("m", Workload(rate=1.0, output=Lengths(mean=5.0))),)
    watched = Watched(slow, engine=law, workloads=calm, duration_s=240.0).run()
    assert "slow" in {fact.verdict for fact in watched.of(CanaryAnswered, "r0")}
    found = watched.incidents()
    assert {one.about.replica for one in found} == {"r0"}
    assert {one.cause for one in found} <= {Cause.SLOW, Cause.DRIPPING, Cause.STALLED}


def test_a_leak_shows_in_memory_and_is_found_before_it_kills():
    leak = fault(FaultKind.LEAK, until=None, lead_s=600.0)
    watched = Watched(leak, duration_s=500.0).run()
    used = [fact.used_bytes for fact in watched.of(MemorySeen, "r0")]
    assert used[-1] > used[0] + 0.5e9
    assert not watched.of(ProcessEnded, "r0")[:1] or watched.of(ProcessEnded, "r0")[0].asked
    assert [one.cause for one in watched.incidents()] == [Cause.LEAK]


def test_a_replica_that_cannot_be_reached_says_nothing_of_itself():
    watched = Watched(fault(FaultKind.PARTITION, until=None)).run()
    told = [at for at, fact in watched.facts if isinstance(fact, LoadSeen) and fact.replica == "r0"]
    assert seconds(told[-1]) <= FROM + 1
    failed = [fact for fact in watched.of(CanaryAnswered, "r0") if fact.verdict == "timeout"]
    assert failed
    assert not any(fact.page_ok for fact in failed)


def test_a_hung_engine_still_shows_its_page_and_falls_silent():
    """Nobody takes its requests away, so that they stand there."""
    watched = Watched(
        Fault(FaultKind.HANG, "*", nanos(FROM), nanos(FROM + 50)), duration_s=80.0
    ).run()
    late = [(at, fact) for at, fact in watched.facts if seconds(at) > FROM + 5]
    loads = [fact for at, fact in late if isinstance(fact, LoadSeen) and seconds(at) < FROM + 45]
    assert loads
    assert any(isinstance(fact, FellSilent) for _, fact in late)


def test_a_restart_that_was_asked_for_is_no_incident():
    watched = Watched(duration_s=120.0)
    restart = RestartAsked("r1", "an operator asks")
    clock = watched.world.clock
    clock.at(nanos(30.0), CONTROL, watched.world._tell_fleet, restart)
    watched.run()
    ended = watched.of(ProcessEnded)
    assert [(fact.replica, fact.asked) for fact in ended] == [("r1", True)]
    phases = [fact.phase for fact in watched.of(PhaseSeen, "r1")]
    assert phases[:2] == ["starting", "loading"]
    assert phases[-1] == "warm-up"
    reads = [fact.read_bytes for fact in watched.of(PhaseSeen, "r1") if fact.read_bytes]
    assert reads
    assert reads == sorted(reads)
    assert all(fact.total_bytes in (None, 4_000_000_000) for fact in watched.of(PhaseSeen))
    states = [fact.state for fact in watched.of(StateChanged, "r1")]
    assert State.DRAINING in states
    assert states[-1] is State.READY
    assert watched.incidents() == []


def test_gaps_in_the_metrics_and_jumps_of_the_clock_are_no_incident():
    watched = Watched(duration_s=120.0)
    watcher, clock = watched.watcher, watched.world.clock
    clock.at(nanos(30.0), WORLD, lambda _, __: watcher.blind.update(("r0", "r1", "r2")))
    clock.at(nanos(70.0), WORLD, lambda _, __: watcher.blind.clear())
    clock.at(nanos(80.0), WORLD, lambda _, __: setattr(watcher, "skew", nanos(45.0)))
    watched.run()
    silent = [
        at
        for at, fact in watched.facts
        if isinstance(fact, LoadSeen | MemorySeen) and fact.replica == "r0"
    ]
    assert not [at for at in silent if 30 * SECOND < at < 70 * SECOND]
    assert watched.facts[-1][0] > 120 * SECOND
    assert watched.incidents() == []


def test_scripts_say_what_the_world_does_not_know():
    watched = Watched(duration_s=30.0)
    watcher, clock = watched.watcher, watched.world.clock
    clock.at(nanos(5.0), WORLD, lambda _, now: watcher.rollout("m", "2", "began", now))
    clock.at(nanos(6.0), WORLD, lambda _, now: watcher.compiling("r0", now))
    clock.at(nanos(6.0), WORLD, lambda _, now: watcher.compiling("nobody", now))
    clock.at(nanos(25.0), CONTROL, watched.world._tell_fleet, Left("r3"))
    watched.run()
    assert watched.of(RolloutSeen) == [RolloutSeen("m", "2", "began")]
    assert watched.of(PhaseSeen) == [PhaseSeen("r0", "compile")]
    assert watched.of(Gone) == [Gone("r3")]
    assert watched.of(AttemptsSeen, "r3")


def test_idle_engines_may_be_looked_at_less_often():
    idle = Workload(rate=0.05)
    watched = Watched(habits=ObservationModel(idle_every=5), workloads=(("m", idle),)).run()
    looks = Counter(fact.replica for fact in watched.of(LoadSeen))
    assert all(count < 60 for count in looks.values())
    assert watched.incidents() == []


def test_failures_are_told_by_their_kind():
    watched = Watched(fault(FaultKind.FLAKY, until=None, probability=0.3)).run()
    kinds: Counter[Kind] = Counter()
    for fact in watched.of(AttemptsSeen, "r0"):
        kinds.update(fact.failures)
    assert kinds[Kind.SERVER_ERROR]
    assert set(kinds) == {Kind.SERVER_ERROR}


def test_healthy_memory_grows_to_a_plateau_and_goes_up_and_down():
    model, rng = MemoryModel(noise=0.0), Random(1)
    used = [model.used(served, 2, 4, rng) for served in range(0, 6_000, 10)]
    assert used[0] < used[50]
    assert max(used) < model.limit_bytes
    late = used[300:]
    assert max(late) - min(late) == pytest.approx(model.garbage_bytes, rel=0.2)
    assert any(after < before for before, after in pairwise(late))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"floor_bytes": 5e9}, "memory.floor_bytes"),
        ({"warm_requests": 0.0}, "memory.warm_requests"),
        ({"garbage_requests": -1.0}, "memory.garbage_requests"),
    ],
)
def test_a_memory_model_that_cannot_be_is_refused(wrong: dict[str, float], field: str):
    with pytest.raises(ConfigError) as refused:
        MemoryModel(**wrong)
    assert field in str(refused.value)
