"""What each fault does to requests and canaries, and what the fleet makes of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Class, Kind
from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.messages import (
    Abort,
    Arrived,
    CanaryResult,
    Dispatch,
    Ended,
    Exited,
    Finish,
    FirstContent,
    Joined,
    Launch,
    Move,
    Phase,
    Report,
    RunCanary,
    Silent,
    Stop,
)
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.ladders.degrade import DegradeConfig, Dimension
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.pool import TRIAL_REASON
from holdfast.core.types import SECOND, Replica, State, nanos
from holdfast.sim import world as world_module
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.invariants import Auditor
from holdfast.sim.results import Results
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

CHAT = Workload(rate=8.0, prompt=Lengths(mean=200.0), output=Lengths(mean=60.0, maximum=400))
QUICK_LOAD = LoadingConfig(start_s=1.0, size_gb=2.0, bandwidth_gb_per_s=1.0)
FROM, UNTIL = 20.0, 60.0


def replicas(count: int = 4, **declared: Any) -> tuple[Replica, ...]:
    return tuple(Replica(f"r{i}", "m", zone=f"zone-{i % 2}", **declared) for i in range(count))


def setup(*faults: Fault, **changes: Any) -> Experiment:
    base = Experiment(
        replicas(),
        duration_s=90.0,
        workloads=(("m", CHAT),),
        loading=QUICK_LOAD,
        faults=FaultSchedule(faults),
    )
    return replace(base, **changes)


def fault(
    kind: FaultKind, target: str = "r0", at: float = FROM, until: float | None = UNTIL, **given: Any
) -> Fault:
    return Fault(kind, target, nanos(at), None if until is None else nanos(until), **given)


class Story:
    """One audited run and everything that was said in it."""

    def __init__(self, experiment: Experiment, seed: int = 1) -> None:
        self.entries: list[tuple[int, Any]] = []
        self.world = World(experiment, seed, [self.observe])
        auditor = Auditor.watch(self.world)
        self.results: Results = self.world.run()
        auditor.finish(self.world.clock.now)
        self.total = self.results.total()
        self.goodput = self.total.good / self.total.offered

    def observe(self, now: int, _machine: str, event: Any, actions: Sequence[Any]) -> None:
        self.entries.append((now, event))
        self.entries.extend((now, action) for action in actions)

    def of(self, kind: type, replica_id: str = "") -> list[tuple[float, Any]]:
        """Times in seconds, and the messages of this type, of this replica where one is named."""
        return [
            (now / SECOND, said)
            for now, said in self.entries
            if type(said) is kind and replica_id in ("", getattr(said, "replica_id", ""))
        ]

    def ends(self) -> Counter[Kind | None]:
        return Counter(event.kind for _, event in self.of(Ended))

    def states(self, replica_id: str) -> list[tuple[float, str]]:
        return [
            (notice.at / SECOND, notice.what)
            for notice in self.results.notices
            if notice.replica_id == replica_id
        ]

    def state(self, replica_id: str) -> State:
        return self.world.fleet.members[replica_id].health.state


# --- one replica of four is ill -------------------------------------------------------------------

ILL = [
    fault(FaultKind.CRASH),
    fault(FaultKind.HANG),
    fault(FaultKind.FLAKY),
    fault(FaultKind.FLAKY, probability=0.3),
    fault(FaultKind.BLACK_HOLE),
    fault(FaultKind.OOM),
    fault(FaultKind.GARBAGE),
    fault(FaultKind.EMPTY),
    fault(FaultKind.CUT, tokens=10),
    fault(FaultKind.PARTITION),
    fault(FaultKind.REFUSE_BUSY),
    fault(FaultKind.SLOW, factor=20.0),
    fault(FaultKind.DRIP),
    fault(FaultKind.LEAK, lead_s=10.0),
]


@pytest.mark.parametrize("ill", ILL, ids=lambda ill: f"{ill.kind}-{ill.probability:g}")
def test_with_one_of_four_replicas_ill_nearly_everybody_is_answered_right(ill: Fault) -> None:
    story = Story(setup(ill))
    assert story.total.offered > 600
    assert story.goodput >= 0.99
    assert story.total.refused == 0
    assert [found.fault for found in story.results.detections] == [ill.kind.value]


@pytest.mark.parametrize(
    ("ill", "kind", "within_s"),
    [
        (fault(FaultKind.CRASH), Kind.RESET, 0.1),
        (fault(FaultKind.FLAKY), Kind.SERVER_ERROR, 7.0),
        (fault(FaultKind.BLACK_HOLE), Kind.SERVER_ERROR, 7.0),
        (fault(FaultKind.OOM), Kind.RESET, 7.0),
        (fault(FaultKind.EMPTY), Kind.EMPTY, 7.0),
        (fault(FaultKind.GARBAGE), Kind.DEGENERATE, 7.0),
        (fault(FaultKind.PARTITION), Kind.CONNECT_TIMEOUT, 13.0),
        (fault(FaultKind.REFUSE_BUSY), Kind.OVERLOADED, 20.0),
        (fault(FaultKind.LEAK, lead_s=10.0), Kind.RESET, 10.1),
    ],
    ids=lambda value: str(getattr(value, "kind", value)),
)
def test_a_fault_is_seen_by_users_as_what_it_is_and_by_control_in_time(
    ill: Fault, kind: Kind, within_s: float
) -> None:
    story = Story(setup(ill, workloads=(("m", replace(CHAT, rate=30.0)),)))
    assert set(story.ends()) - {None} <= {kind, Kind.REFUSED}
    assert story.ends()[kind] > 0
    (found,) = story.results.detections
    assert found.noticed is not None
    assert (found.noticed - found.began) / SECOND <= within_s
    assert found.by.startswith(("health: ", "breaker: "))
    failures = [
        now for now, event in story.of(Ended) if event.kind is not None and not FROM <= now <= UNTIL
    ]
    assert failures == []


def test_a_replica_without_faults_is_never_detected() -> None:
    story = Story(setup())
    assert story.goodput == 1.0
    assert story.results.detections == []
    assert story.results.ejected == 0
    assert story.ends().keys() == {None}
    assert story.total.attempts == story.total.offered
    assert set(story.results.to_dict()["phases"]) == {"before"}


def test_a_crash_continues_its_streams_elsewhere_and_the_replica_returns() -> None:
    story = Story(setup(fault(FaultKind.CRASH)))
    assert story.total.continued > 0
    assert story.total.failed == 0
    launches = [now for now, _ in story.of(Launch, "r0")]
    assert len(launches) > 2  # it dies at every start while the fault holds
    waits = [later - earlier for earlier, later in pairwise(launches)]
    assert waits == sorted(waits)  # and each time it is left alone for longer
    assert story.state("r0") is State.READY
    assert story.results.phases["during"].offered > story.results.phases["before"].offered


def test_a_continued_answer_is_as_long_as_it_was_to_be() -> None:
    story = Story(setup(fault(FaultKind.CRASH)))
    resumed = [action for _, action in story.of(Dispatch) if action.resume_tokens]
    assert resumed
    expected = sum(arrived.request.max_tokens for _, arrived in story.of(Arrived))
    assert story.total.tokens == expected


def test_a_hang_is_found_by_its_silence_and_its_canary() -> None:
    story = Story(setup(fault(FaultKind.HANG), workloads=(("m", replace(CHAT, rate=40.0)),)))
    assert story.of(Silent)
    kinds = {action.kind for _, action in story.of(Abort)}
    assert kinds <= {Kind.BETWEEN_TOKENS_TIMEOUT, Kind.FIRST_TOKEN_TIMEOUT}
    assert story.total.continued > 0
    verdicts = {event.verdict for now, event in story.of(CanaryResult, "r0") if FROM < now < UNTIL}
    assert verdicts == {"timeout"}
    assert State.QUARANTINED in [state for _, state in story.states("r0")]
    assert story.goodput >= 0.99


def test_a_hang_that_begins_while_a_replica_loads_holds_when_it_is_loaded() -> None:
    hang = fault(FaultKind.HANG, at=0.5, until=40.0)
    story = Story(setup(hang, warm=False))
    ready = [now for now, state in story.states("r0") if state == State.READY]
    assert ready
    assert ready[0] > 40.0
    verdicts = {event.verdict for now, event in story.of(CanaryResult, "r0") if now < 40.0}
    assert verdicts == {"timeout"}
    others = [now for now, state in story.states("r1") if state == State.READY]
    assert others[0] < 15.0


def test_a_replica_with_a_memory_fault_dies_at_each_first_request_or_canary() -> None:
    story = Story(setup(fault(FaultKind.OOM)))
    exits = story.of(Exited, "r0")
    assert len(exits) >= 2
    assert {event.kind for _, event in exits} == {Kind.OUT_OF_MEMORY}
    lost = [now for now, event in story.of(Ended) if event.kind is Kind.RESET]
    assert len(lost) <= 5  # after the first death only canaries go there
    assert story.state("r0") is State.READY


def test_a_host_that_was_down_for_long_is_launched_once_its_backoff_is_over() -> None:
    fleet = FleetConfig(health=HealthConfig(load_timeout_s=20.0))  # shorter than the backoff
    story = Story(setup(fault(FaultKind.CRASH, until=65.0), fleet=fleet, duration_s=130.0))
    assert story.of(Stop, "r0") == []
    assert story.state("r0") is State.READY


def test_a_leak_ends_in_a_death_for_want_of_memory() -> None:
    story = Story(setup(fault(FaultKind.LEAK, lead_s=12.0)))
    ((now, event),) = story.of(Exited)
    assert (now, event.replica_id, event.kind) == (FROM + 12.0, "r0", Kind.OUT_OF_MEMORY)


def test_a_leak_that_is_mended_in_time_kills_nobody() -> None:
    story = Story(setup(fault(FaultKind.LEAK, lead_s=50.0)))
    assert story.of(Exited) == []


def test_a_replica_that_only_refuses_is_set_aside_without_blame() -> None:
    story = Story(setup(fault(FaultKind.REFUSE_BUSY)))
    (found,) = story.results.detections
    assert found.by == "health: quarantined"
    assert (found.noticed - found.began) / SECOND >= 10.0  # nothing but 429 for ten seconds
    verdicts = {event.verdict for now, event in story.of(CanaryResult, "r0") if FROM < now < UNTIL}
    assert verdicts == {"busy"}
    assert story.state("r0") is State.READY


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replica_that_lies_is_quarantined_within_three_canaries_and_its_lies_are_counted(
    seed: int,
) -> None:
    story = Story(setup(fault(FaultKind.WRONG_OUTPUT)), seed)
    gone = [now for now, state in story.states("r0") if state == State.QUARANTINED]
    assert gone[0] - FROM <= 3 * 5.0 * 1.2
    answers = [
        now for now, finish in story.of(Finish, "r0") if finish.status == 200 and now >= FROM
    ]
    lies = [now for now in answers if now < UNTIL]
    assert story.total.wrong == len(lies) > 0
    assert max(lies) < gone[0] + 10.0  # those that were under way end there
    assert story.total.good + story.total.wrong == story.total.offered
    assert story.world.fleet.members["r0"].health.state in (State.READY, State.QUARANTINED)


def test_part_of_an_answer_from_a_replica_that_lies_makes_it_wrong() -> None:
    lies = fault(FaultKind.WRONG_OUTPUT, until=None)
    crash = fault(FaultKind.CRASH, at=FROM + 1.0)
    story = Story(setup(lies, crash, workloads=(("m", replace(CHAT, rate=40.0)),)))
    resumed = {action.request.id for _, action in story.of(Dispatch) if action.resume_tokens}
    assert resumed
    finished_there = [
        now for now, finish in story.of(Finish, "r0") if finish.status == 200 and now >= FROM
    ]
    assert story.total.wrong == len(finished_there) + len(resumed)


def test_a_stream_given_up_on_a_replica_that_lies_is_wrong_too() -> None:
    lies = fault(FaultKind.WRONG_OUTPUT, until=None)
    hang = fault(FaultKind.HANG, at=FROM + 1.0, until=None)
    story = Story(setup(lies, hang, workloads=(("m", replace(CHAT, rate=40.0)),)))
    resumed = {action.request.id for _, action in story.of(Dispatch) if action.resume_tokens}
    assert resumed
    finished_there = [
        now for now, finish in story.of(Finish, "r0") if finish.status == 200 and now >= FROM
    ]
    assert story.total.wrong == len(finished_there) + len(resumed)


def test_work_that_was_never_shown_is_not_counted_as_shown() -> None:
    flaky = fault(FaultKind.FLAKY, at=0.0, tokens=400)
    crash = fault(FaultKind.CRASH, at=3.0)
    chat = replace(CHAT, rate=30.0, output=Lengths(mean=300.0, law="constant"))
    lane = LaneConfig(breaker=BreakerConfig(enabled=False))
    story = Story(
        setup(flaky, crash, workloads=(("m", chat),), duration_s=6.0, flow=FlowConfig(lane=lane))
    )
    lost = [event for now, event in story.of(Ended) if now == 3.0]
    assert len(lost) > 3
    assert {event.tokens for event in lost} == {0}
    assert story.total.tokens == 300 * story.total.good


def test_garbage_too_short_to_be_recognised_counts_as_wrong() -> None:
    short = replace(CHAT, output=Lengths(mean=10.0, law="constant"))
    story = Story(setup(fault(FaultKind.GARBAGE), workloads=(("m", short),)))
    there = [
        now for now, finish in story.of(Finish, "r0") if finish.status == 200 and FROM <= now < 60
    ]
    assert story.total.wrong == len(there) > 0
    verdicts = {event.verdict for now, event in story.of(CanaryResult, "r0") if FROM < now < UNTIL}
    assert "wrong" in verdicts
    assert "pass" not in verdicts
    assert story.goodput >= 0.97


def test_a_partition_costs_a_connect_timeout_and_no_more() -> None:
    story = Story(setup(fault(FaultKind.PARTITION)))
    sent = {(action.request.id, action.attempt): now for now, action in story.of(Dispatch, "r0")}
    for now, event in story.of(Ended):
        if event.kind is Kind.CONNECT_TIMEOUT:
            assert now - sent[event.request_id, event.attempt] == pytest.approx(1.0)


def test_a_drip_is_left_by_readers_who_lose_patience() -> None:
    drip = fault(FaultKind.DRIP, interval_s=5.0)  # of a slower one control finds that it stalls
    story = Story(setup(drip, workloads=(("m", replace(CHAT, rate=40.0)),)))
    assert story.of(Silent)
    assert story.goodput >= 0.99


# --- the fleet as a whole -------------------------------------------------------------------------


def test_a_checker_gone_blind_ejects_nobody() -> None:
    story = Story(setup(fault(FaultKind.PROBE_BLIND, "*")))
    assert story.goodput == 1.0
    assert story.total.attempts == story.total.offered
    assert story.results.ejected == 0
    assert "canaries doubted" in {notice.what for notice in story.results.notices}


def test_one_replica_that_only_the_checker_sees_ill_costs_no_request() -> None:
    story = Story(setup(fault(FaultKind.PROBE_BLIND, "r0")))
    assert story.goodput == 1.0
    assert story.results.ejected >= 1


def test_a_fleet_that_is_slow_as_a_whole_ejects_nobody() -> None:
    story = Story(setup(fault(FaultKind.SLOW, "*", factor=3.0)))
    assert story.results.ejected == 0
    assert story.goodput >= 0.99
    assert story.total.attempts <= 1.05 * story.total.offered
    slow = story.results.phases["during"].to_dict()["per_token_s"]["p50"]
    well = story.results.phases["before"].to_dict()["per_token_s"]["p50"]
    assert slow == pytest.approx(3 * well, rel=0.1)


def test_half_of_a_fleet_may_be_lost_with_its_zone() -> None:
    story = Story(setup(fault(FaultKind.ZONE_LOSS, "zone-0"), duration_s=120.0))
    assert story.goodput >= 0.99
    died = {event.replica_id for _, event in story.of(Exited)}
    assert died == {"r0", "r2"}
    assert {found.replica_id for found in story.results.detections} == died
    assert {story.state(name) for name in ("r0", "r1", "r2", "r3")} == {State.READY}


def test_with_everything_lost_requests_are_refused_honestly() -> None:
    gone = fault(FaultKind.ZONE_LOSS, "*", at=20.0, until=None)
    story = Story(setup(gone))
    before, during = story.results.phases["before"], story.results.phases["during"]
    assert before.good > before.offered - 10  # but for those that were under way
    assert during.good == 0
    assert during.refused + during.failed == during.offered > 0
    assert story.results.phases["after"].offered == 0  # it is never mended


def test_a_spot_notice_empties_the_replica_before_it_is_taken() -> None:
    story = Story(setup(fault(FaultKind.SPOT_NOTICE, lead_s=35.0)))
    assert story.total.failed == story.total.refused == story.total.continued == 0
    assert story.goodput == 1.0
    states = story.states("r0")
    draining = next(now for now, state in states if state == State.DRAINING)
    stopped = next(now for now, state in states if state == State.STOPPED)
    assert FROM == draining < stopped < FROM + 35.0
    assert story.of(Stop, "r0")
    assert [now for now, _ in story.of(Dispatch, "r0") if FROM + 0.01 < now < stopped] == []


def test_streams_longer_than_the_drain_are_moved_before_the_kill() -> None:
    long = Workload(
        rate=4.0, prompt=Lengths(mean=50.0), output=Lengths(mean=3_000.0, law="constant")
    )
    fleet = FleetConfig(drain=DrainConfig(deadline_s=5.0, move_s=2.0))
    notice = fault(FaultKind.SPOT_NOTICE, lead_s=20.0)
    story = Story(setup(notice, workloads=(("m", long),), fleet=fleet, duration_s=40.0))
    assert story.of(Move, "r0")
    assert story.ends()[Kind.DRAINED] > 0
    assert story.total.continued >= story.ends()[Kind.DRAINED]
    assert story.goodput == 1.0


def test_a_load_that_stalls_is_stopped_and_begun_again() -> None:
    faults = [
        fault(FaultKind.CRASH, until=21.0),
        fault(FaultKind.LOAD_STALL, until=50.0),
    ]
    fleet = FleetConfig(health=HealthConfig(load_timeout_s=15.0))
    story = Story(setup(*faults, fleet=fleet))
    stops = [now for now, action in story.of(Stop, "r0")]
    assert len(stops) >= 2
    assert all(stop - FROM >= 15.0 for stop in stops)
    blamed = [n for n in story.results.notices if n.failure_class is Class.LOADING]
    assert blamed
    assert story.state("r0") is State.READY
    assert story.goodput == 1.0


def test_a_cold_start_queues_first_and_serves_then() -> None:
    story = Story(setup(warm=False))
    first = story.of(Dispatch)[0][0]
    # One second to start and eight gigabytes through one store, then the admission canary.
    assert 9.0 < first < 10.0
    early = [now for now, _ in story.of(Arrived) if now < 9.0]
    assert len(early) > 40
    assert story.goodput == 1.0
    waits = story.results.phases["before"].first_token
    assert max(waits) > 8.0


def test_loading_one_after_the_other_serves_sooner() -> None:
    loading = replace(QUICK_LOAD, parallel_max=1)
    story = Story(setup(warm=False, loading=loading))
    assert 3.0 < story.of(Dispatch)[0][0] < 4.0
    ready = [next(n for n, s in story.states(f"r{i}") if s == State.READY) for i in range(4)]
    assert ready == sorted(ready)
    assert ready == pytest.approx([3.0, 5.0, 7.0, 9.0], abs=0.5)


def test_a_replica_that_dies_while_it_loads_leaves_the_store_to_the_others() -> None:
    crash = fault(FaultKind.CRASH, at=1.5, until=None)
    story = Story(setup(crash, warm=False, replicas=replicas(2), duration_s=10.0))
    ready = next(now for now, state in story.states("r1") if state == State.READY)
    # Both read from 1 s on; after half a second of sharing, 1.75 of 2 GB are left for one.
    assert ready == pytest.approx(3.25, abs=0.4)


def test_who_waits_too_long_for_a_fleet_that_does_not_come_is_told_so() -> None:
    lane = LaneConfig(queue=QueueConfig(wait_no_replica_s=2.0))
    flow = FlowConfig(lane=lane)
    story = Story(setup(warm=False, flow=flow, duration_s=5.0))
    statuses = Counter(finish.status for _, finish in story.of(Finish))
    assert statuses.keys() == {503}
    assert story.total.refused == story.total.offered


# --- the driver -----------------------------------------------------------------------------------


def test_a_request_too_long_for_any_replica_is_the_clients_fault() -> None:
    law = EngineParameters(kv_tokens_max=600)
    long = Workload(rate=2.0, prompt=Lengths(mean=700.0, law="constant"))
    story = Story(setup(engine=law, workloads=(("m", long),), duration_s=10.0))
    assert {finish.status for _, finish in story.of(Finish)} == {400}
    assert story.total.failed == story.total.offered


def test_a_request_too_long_for_a_replica_with_a_fault_is_the_clients_fault_too() -> None:
    law = EngineParameters(kv_tokens_max=600)
    long = Workload(rate=2.0, prompt=Lengths(mean=700.0, law="constant"))
    slow = fault(FaultKind.SLOW, "*", at=0.0, until=None, factor=2.0)
    story = Story(setup(slow, engine=law, workloads=(("m", long),), duration_s=10.0))
    assert {finish.status for _, finish in story.of(Finish)} == {400}


def test_hedges_race_and_the_slower_one_is_called_back() -> None:
    flow = FlowConfig(hedge=HedgeConfig(enabled=True, samples_min=20, share_max=0.2))
    slow = fault(FaultKind.SLOW, factor=30.0)
    story = Story(setup(slow, flow=flow, workloads=(("m", replace(CHAT, rate=20.0)),)))
    superseded = [action for _, action in story.of(Abort) if action.kind is Kind.SUPERSEDED]
    assert superseded
    ((slowest, _),) = Counter(action.replica_id for action in superseded).most_common(1)
    assert slowest == "r0"
    assert story.total.attempts == story.total.offered + len(story.of(Abort))
    assert story.total.wasted_calls >= len(superseded)
    assert story.goodput == 1.0


def test_each_model_has_its_own_engine_and_its_own_arrivals() -> None:
    slow = EngineParameters(step_ms=130.0)
    fleet = (*replicas(2), Replica("s0", "slow"), Replica("s1", "slow"))
    experiment = setup(
        replicas=fleet, workloads=(("m", CHAT), ("slow", CHAT)), engines=(("slow", slow),)
    )
    story = Story(experiment)
    ids = {
        model: [event.request.id for _, event in story.of(Arrived) if event.request.model == model]
        for model in ("m", "slow")
    }
    assert all(name % 2 == 0 for name in ids["m"])
    assert all(name % 2 == 1 for name in ids["slow"])
    served = {action.replica_id for _, action in story.of(Dispatch) if action.model == "slow"}
    assert served == {"s0", "s1"}
    firsts: dict[str, list[float]] = {"m": [], "slow": []}
    arrived = {event.request.id: (now, event.request.model) for now, event in story.of(Arrived)}
    for now, event in story.of(FirstContent):
        at, model = arrived[event.request_id]
        firsts[model].append(now - at)
    assert min(firsts["slow"]) > 0.13 > min(firsts["m"])


def test_answers_of_another_model_than_asked_for_are_counted() -> None:
    fleet = (Replica("large-0", "large", slots=2), *(Replica(f"s{i}", "small") for i in range(3)))
    flow = FlowConfig(degrade=(DegradeConfig(ladder=("large", "small")),))
    workloads = (("large", replace(CHAT, rate=20.0)), ("small", replace(CHAT, rate=1.0)))
    story = Story(setup(replicas=fleet, workloads=workloads, flow=flow))
    degraded = [finish for _, finish in story.of(Finish) if finish.model == "small"]
    asked = [event for _, event in story.of(Arrived) if event.request.model == "small"]
    assert story.total.degraded == len(degraded) - len(asked) > 0


def test_capped_answers_are_shorter_and_counted() -> None:
    fleet = (Replica("large-0", "large", slots=2), *(Replica(f"s{i}", "small") for i in range(3)))
    order = (Dimension.COMPLETENESS, Dimension.QUALITY, Dimension.LATENCY)
    ladder = DegradeConfig(ladder=("large", "small"), order=order, capped_tokens=20)
    workloads = (("large", replace(CHAT, rate=20.0)), ("small", replace(CHAT, rate=1.0)))
    flow = FlowConfig(degrade=(ladder,))
    story = Story(setup(replicas=fleet, workloads=workloads, flow=flow))
    whole = Story(setup(replicas=fleet, workloads=workloads))
    assert story.total.capped > 100
    assert whole.total.capped == 0
    assert story.total.to_dict()["capped"] == story.total.capped
    assert story.total.tokens / story.total.good < whole.total.tokens / max(1, whole.total.good)


def test_a_ladder_whose_large_model_is_gone_refuses_nobody() -> None:
    fleet = (Replica("large-0", "large", slots=8), *(Replica(f"s{i}", "small") for i in range(3)))
    gone = Fault(FaultKind.CRASH, "large-0", nanos(FROM), nanos(UNTIL))
    workloads = (("large", replace(CHAT, rate=2.0)),)
    alone = setup(gone, replicas=fleet, workloads=workloads)
    laddered = replace(alone, flow=FlowConfig(degrade=(DegradeConfig(("large", "small")),)))
    before, after = Story(alone).total, Story(laddered).total
    assert before.refused + before.failed > 10
    assert after.refused + after.failed <= 2, "what had begun its answer when it went"
    assert after.degraded > 50


def test_without_canaries_their_result_is_unknown_and_nobody_is_judged_by_it() -> None:
    story = Story(setup(fault(FaultKind.WRONG_OUTPUT), canaries=False))
    later = {event.verdict for now, event in story.of(CanaryResult) if now > 0}
    assert later == {"unknown"}
    assert story.results.ejected == 0
    assert story.total.wrong > 30


def test_load_is_polled_unless_it_is_not_asked_for() -> None:
    polled = Story(setup(duration_s=10.0))
    names = Counter(type(said).__name__ for _, said in polled.entries)
    assert names["LoadReported"] == 4 * 10
    silent = Story(setup(duration_s=10.0, poll_s=0.0))
    assert "LoadReported" not in {type(said).__name__ for _, said in silent.entries}


def test_a_run_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "_DRAIN_MARGIN", (2 - 600 - 3600) * SECOND)
    hang = fault(FaultKind.HANG, "*", at=3.0, until=None)
    experiment = setup(hang, duration_s=5.0)
    with pytest.raises(RuntimeError, match=r"\d+ requests never ended, among them \d+"):
        World(experiment, 1).run()


def test_notices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "NOTICES_MAX", 5)
    story = Story(setup(fault(FaultKind.CRASH)))
    assert len(story.results.notices) == 5


def test_observers_may_be_added_before_the_run() -> None:
    world = World(setup(duration_s=5.0), 1)
    seen = []
    world.add_observer(lambda now, machine, event, actions: seen.append(machine))
    world.run()
    assert set(seen) == {"flow", "fleet"}
    assert world.results.events == world.clock.steps > 0


def test_one_policy_or_another_sees_the_same_requests() -> None:
    def arrivals(experiment: Experiment) -> list[tuple[float, int, int]]:
        story = Story(experiment)
        return [
            (now, event.request.prompt_tokens, event.request.max_tokens)
            for now, event in story.of(Arrived)
        ]

    crash = fault(FaultKind.CRASH)
    plain = arrivals(setup(crash))
    other = FlowConfig(lane=LaneConfig(routing="round_robin"))
    assert arrivals(setup(crash, flow=other)) == plain


def test_a_trace_may_end_before_the_run_does(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = (f'{{"timestamp": {at}, "input_length": 9, "output_length": 3}}' for at in (0, 5, 900))
    path.write_text("\n".join(lines))
    story = Story(setup(workloads=(("m", Workload(trace=str(path))),), duration_s=5.0))
    assert [now for now, _ in story.of(Arrived)] == [0.0, 0.005, 0.9]
    assert story.goodput == 1.0  # even the one that came with the very beginning


def test_a_canary_to_a_replica_that_does_not_listen_is_refused() -> None:
    said = []
    world = World(setup(), 1, [lambda now, machine, event, actions: said.append(event)])
    world.fleet.handle(Joined(replicas()[0], running=True), 0)
    world._canaries.ask(RunCanary("r0", "m", SECOND, 0), 0)
    world.clock.run(SECOND)
    assert said == [CanaryResult("r0", CanaryVerdict.REFUSED)]


def test_a_process_that_starts_later_than_its_loading_may_take_is_given_up_each_time() -> None:
    fleet = FleetConfig(health=HealthConfig(load_timeout_s=3.0))
    loading = replace(QUICK_LOAD, start_s=5.0)
    story = Story(setup(warm=False, fleet=fleet, loading=loading, duration_s=20.0))
    assert len(story.of(Launch, "r0")) >= 3
    assert story.of(Phase) == []  # none of them was still wanted when it ran
    assert story.total.good == 0


def test_an_answer_that_comes_after_its_hedge_has_won_is_ignored() -> None:
    flow = FlowConfig(hedge=HedgeConfig(enabled=True, samples_min=20, share_max=0.2))
    cut_off = fault(FaultKind.PARTITION)
    story = Story(setup(cut_off, flow=flow, workloads=(("m", replace(CHAT, rate=20.0)),)))
    lost = [
        now
        for now, action in story.of(Abort, "r0")
        if action.kind is Kind.SUPERSEDED and FROM < now < UNTIL
    ]
    assert lost  # long before its connection timed out
    assert story.goodput == 1.0


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.STALL, FaultKind.PARTITION])
def test_no_user_is_a_trial_before_a_canary_was_answered(kind: FaultKind) -> None:
    busy = replace(CHAT, rate=40.0)
    sick = Fault(kind, "r0", nanos(FROM), nanos(30.0))
    world = World(setup(sick, workloads=(("m", busy),), replicas=replicas(slots=16)), 1)
    told: list[str] = []

    def observe(now: int, _whose: str, event: Any, actions: Sequence[Any]) -> None:
        if now < nanos(FROM):
            return
        if isinstance(event, CanaryResult) and event.replica_id == "r0" and event.verdict.right:
            told.append("answered")
        for action in actions:
            if isinstance(action, Report) and (action.replica_id, action.what) == ("r0", "open"):
                told.append("open")
            if isinstance(action, Dispatch) and action.reason == TRIAL_REASON:
                assert action.replica_id == "r0"
                told.append("tried")

    world.add_observer(observe)
    world.run()
    assert "open" in told
    assert "tried" in told
    last = [told[at - 1] for at, what in enumerate(told) if what == "tried"]
    assert set(last) == {"answered"}
