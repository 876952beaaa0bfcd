"""Exercise 23.7.1 and the rest of the table: what a symptom calls for, and what a swap would do."""

from dataclasses import FrozenInstanceError, dataclass
from random import Random

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.lifecycle import Conclusion, Signal
from holdfast.core.health.liveness import RESPONSES, Response, Symptom, spares_work, symptom_of
from holdfast.core.messages import (
    CanaryResult,
    EngineLoads,
    Joined,
    LoadReported,
    Seen,
    Stop,
    Summary,
    Tally,
    Tick,
)
from holdfast.core.types import SECOND, Replica, State

EXERCISE = [  # Exercise 23.7.1: the symptom, the probe to fail, and a word of the justification
    ("a", Symptom.EVERY_PASS_ERRORS, Response.RESTART, "never recovers"),
    ("b", Symptom.KV_FULL, Response.REMOVE, "comes back as its generations finish"),
    ("c", Symptom.LOAD_FAILED, Response.RESTART, "will never have a model"),
    ("d", Symptom.ROLLOUT, Response.DRAIN, "may finish"),
]


@pytest.mark.parametrize(("case", "symptom", "response", "because"), EXERCISE)
def test_exercise_23_7_1_liveness_or_readiness(case, symptom, response, because):
    meaning = RESPONSES[symptom]
    assert meaning.response is response
    assert because in meaning.why


def test_exercise_23_7_1_what_goes_wrong_when_a_and_b_are_swapped_is_said():
    corrupted, full = RESPONSES[Symptom.EVERY_PASS_ERRORS], RESPONSES[Symptom.KV_FULL]
    assert "keeps its GPU" in corrupted.swapped
    assert "for ever" in corrupted.swapped
    assert "lost" in full.swapped
    assert "next replica" in full.swapped


@dataclass
class Process:
    """The least of a replica that can be corrupted, or full for a while."""

    corrupted: bool = False
    generations: int = 0
    loading: int = 0
    in_rotation: bool = True
    lost: int = 0

    def respond(self, response):
        self.in_rotation = False
        if response is Response.RESTART:
            self.lost += self.generations
            self.generations, self.corrupted, self.loading = 0, False, 5

    def pass_time(self):
        if self.loading:
            self.loading -= 1
        elif self.generations:
            self.generations -= 1
        self.in_rotation = not (self.loading or self.corrupted or self.generations > 2)


def outcome(process, response):
    process.respond(response)
    waited = 0
    while not process.in_rotation and waited < 100:
        process.pass_time()
        waited += 1
    return process.in_rotation, process.lost, waited


def test_exercise_23_7_1_the_right_responses_cure_and_the_swapped_ones_harm():
    a, b = RESPONSES[Symptom.EVERY_PASS_ERRORS].response, RESPONSES[Symptom.KV_FULL].response
    assert outcome(Process(corrupted=True), a) == (True, 0, 5)
    assert outcome(Process(generations=4), b) == (True, 0, 2)
    # Swapped: the corrupted one never comes back, the full one loses its work and is away longer.
    assert outcome(Process(corrupted=True), b) == (False, 0, 100)
    assert outcome(Process(generations=4), a) == (True, 4, 5)


def test_a_swap_floods_the_neighbour_of_a_full_replica():
    pool = [Process(generations=4), Process(generations=2)]
    pool[0].respond(Response.RESTART)
    pool[1].generations += pool[0].lost  # its clients come again, elsewhere
    assert pool[1].generations > 2, "now this one is full, and would be killed too"


def test_every_symptom_has_a_response_with_both_sides_told():
    assert set(RESPONSES) == set(Symptom)
    for meaning in RESPONSES.values():
        assert meaning.why
        assert meaning.swapped
    with pytest.raises(FrozenInstanceError):
        RESPONSES[Symptom.SLOW].why = ""


@pytest.mark.parametrize(
    "symptom",
    [Symptom.SLOW, Symptom.COMPILING, Symptom.METRICS_MISSING],
)
def test_what_is_no_illness_is_only_observed(symptom):
    assert RESPONSES[symptom].response is Response.OBSERVE


@pytest.mark.parametrize(
    ("cause", "right_since", "barred", "symptom"),
    [
        (Signal.FROZEN, False, False, Symptom.PROCESS_STOPPED),
        (Signal.STALLED, False, False, Symptom.STALLED),
        (Signal.NO_HEADROOM, True, False, Symptom.KV_FULL),
        (Signal.NO_SUCCESS, True, False, Symptom.BACKPRESSURE_ONLY),
        (Signal.WRONG_REVISION, True, True, Symptom.VERSION_MISMATCH),
        (Conclusion.FAILED_REPEATEDLY, False, False, Symptom.EVERY_PASS_ERRORS),
        (Conclusion.FAILED_REPEATEDLY, True, False, Symptom.FAILING),
        (Conclusion.WRONG_REPEATEDLY, False, False, Symptom.WRONG_ANSWERS),
        (Conclusion.WRONG_REPEATEDLY, True, True, Symptom.WRONG_AGAIN),
        (Conclusion.STILL_BARRED, False, False, Symptom.FAILING),
    ],
)
def test_what_led_into_quarantine_and_what_came_since_are_one_symptom(
    cause, right_since, barred, symptom
):
    assert symptom_of(cause, right_since=right_since, barred=barred) is symptom


@pytest.mark.parametrize("symptom", Symptom)
def test_only_what_waiting_cannot_cure_is_restarted_over_the_heads_of_users(symptom):
    assert spares_work(symptom) is (RESPONSES[symptom].response is not Response.RESTART)


def quarantined(signals, *, inflight):
    """One of three replicas, brought into quarantine with work on it."""
    fleet = Fleet(FleetConfig(), Random)
    for name in ("r1", "r2", "r3"):
        fleet.handle(Joined(Replica(name, "m"), running=True), 0)
        fleet.handle(CanaryResult(name, CanaryVerdict.PASS), 0)
    tally = Tally("m", "r1", 0, 0, 0, inflight, 0)
    fleet.handle(Seen((Summary((tally,)),), "g"), 1)
    for event in signals:
        fleet.handle(event, 2)
    assert fleet.members["r1"].health.state is State.QUARANTINED
    return fleet


def restarted(fleet, within_s):
    actions = []
    for second in range(1, within_s):
        actions += fleet.handle(Tick(), second * SECOND)
    return any(isinstance(action, Stop) and action.replica_id == "r1" for action in actions)


def test_a_full_replica_finishes_its_work_and_one_that_always_errs_is_restarted_with_it():
    full = [
        EngineLoads((LoadReported("chat", "r1", kv_used=0.99),)),
        EngineLoads((LoadReported("chat", "r1", kv_used=0.99),)),
    ]
    assert not restarted(quarantined(full, inflight=2), within_s=300)
    assert restarted(quarantined(full, inflight=0), within_s=90)
    errs = [CanaryResult("r1", CanaryVerdict.FAIL)] * 4
    assert restarted(quarantined(errs, inflight=2), within_s=90)
