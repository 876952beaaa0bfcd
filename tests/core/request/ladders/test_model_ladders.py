"""The ladders of models of one gateway: what moves them, and which models may answer instead."""

from random import Random

import pytest

from holdfast.core.failure import Kind, Outcome
from holdfast.core.messages import ReplicaView, ReportCode
from holdfast.core.request.active_request import ActiveRequest
from holdfast.core.request.ladders.degrade import DegradeConfig, Dimension
from holdfast.core.request.ladders.model_ladders import ModelLadders
from holdfast.core.request.lane import Lane, LaneConfig
from holdfast.core.types import MILLISECOND, SECOND, Priority, Replica, Request, State

WHOLE = 600 * SECOND
LADDER = DegradeConfig(ladder=("big", "small"), step_s=1.0, hold_s=2.0, share_step=1.0)
LONG = ("big", "middle", "small")


def ladders(*configs: DegradeConfig) -> ModelLadders:
    return ModelLadders(configs or (LADDER,), Random)


def request(request_id: str = "q1", model: str = "m", **kwargs: object) -> Request:
    return Request(request_id, model, **{"arrived": 0, **kwargs})


def lane(model: str, *replicas: str, slots: int = 2, **config: object) -> Lane:
    subject = Lane(model, LaneConfig(routing="round_robin", **config), {}, Random)
    views = [ReplicaView(Replica(name, model, slots=slots), State.READY, 1.0) for name in replicas]
    subject.pool.apply(views, 0)
    return subject


def occupy(subject: Lane, attempts: int, now: int = 0) -> list[tuple[ActiveRequest, object]]:
    opened = []
    for number in range(attempts):
        active = ActiveRequest(
            request(f"{subject.model}{number}", subject.model, arrived=now), "m", WHOLE
        )
        choice = subject.pool.choose(active.request, (), now)
        assert choice is not None
        opened.append((active, subject.open(active, choice[0], now)))
    return opened


def placed(subject: ModelLadders, asked: Request, now: int = 2 * SECOND) -> ActiveRequest:
    active = ActiveRequest(asked, asked.model, WHOLE)
    subject.place(active, {name: lane(name, f"{name}1") for name in LONG}, now)
    return active


# --- the share of all requests -------------------------------------------------------------------


def degraded(now: int = 2 * SECOND) -> ModelLadders:
    """The ladders of a gateway whose ladder has moved everybody to the small model."""
    subject = ladders()
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    for at in (0, now):
        subject.watch(lanes, at)
    return subject


def test_a_saturated_model_sends_its_requests_down_the_ladder_and_reports_it():
    subject = ladders()
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    assert subject.watch(lanes, 0) == []
    (report,) = subject.watch(lanes, SECOND)
    assert (report.model, report.replica_id, report.what) == ("big", "", ReportCode.LADDER_MOVED)
    assert report.reason == "saturated at 100%: 100% of the traffic on small"


def test_a_degraded_request_is_served_by_the_smaller_model_and_its_story_says_so():
    active = placed(degraded(), request(model="big"))
    assert active.model == "small"
    assert active.story == [(2 * SECOND, "degraded", "degraded to small")]


def test_a_batch_request_waits_for_the_model_it_asked_for():
    active = placed(degraded(), request(model="big", priority=Priority.BATCH))
    assert (active.model, active.story) == ("big", [])


def test_a_model_without_a_ladder_is_served_as_asked():
    assert placed(degraded(), request(model="other")).model == "other"


def test_nothing_moves_down_to_a_rung_without_room():
    subject = ladders()
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    occupy(lanes["small"], 2)
    for at in range(10):
        assert subject.watch(lanes, at * SECOND) == []


@pytest.mark.parametrize("smaller", [{}, {"small": lane("small")}])
def test_nothing_moves_down_to_a_rung_without_a_replica(smaller):
    subject = ladders()
    lanes = {"big": lane("big", "b1"), **smaller}
    occupy(lanes["big"], 2)
    for at in range(10):
        assert subject.watch(lanes, at * SECOND) == []


def test_a_rung_whose_capacity_is_unknown_is_not_taken_for_full():
    subject = ladders()
    unlimited = lane("small", "s1", slots=0)
    unlimited.pool.candidates["s1"].limit = 10**9
    unlimited.pool.changed(0)
    lanes = {"big": lane("big", "b1"), "small": unlimited}
    occupy(lanes["big"], 2)
    subject.watch(lanes, 0)
    assert len(subject.watch(lanes, SECOND)) == 1


def test_a_ladder_whose_model_was_never_seen_moves_nowhere():
    assert ladders().watch({"small": lane("small", "s1")}, 0) == []


def test_the_way_back_up_is_taken_once_the_larger_model_has_room_again():
    subject = ladders()
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    held = occupy(lanes["big"], 2)
    subject.watch(lanes, 0)
    assert subject.watch(lanes, SECOND)
    for active, attempt in held:
        lanes["big"].close(active, attempt, Outcome.SUCCESS, None, SECOND)
    moves = [subject.watch(lanes, at * SECOND // 2) for at in range(4, 40)]
    (report,) = [report for reports in moves for report in reports]
    assert report.reason == "well for long enough"
    assert placed(subject, request(model="big"), 20 * SECOND).model == "big"


def test_a_broken_objective_moves_the_ladder_though_there_is_capacity():
    subject = ladders()
    lanes = {
        "big": lane("big", "b1", slots=64, slo_first_token_s=0.1),
        "small": lane("small", "s1"),
    }
    moved = []
    for at in (0, SECOND, 2 * SECOND):
        for active, attempt in occupy(lanes["big"], 3, at):
            lanes["big"].first_content(active, attempt, at + 500 * MILLISECOND)
            lanes["big"].close(active, attempt, Outcome.SUCCESS, None, at + 500 * MILLISECOND)
        moved += subject.watch(lanes, at + 600 * MILLISECOND)
    assert moved[0].reason.startswith("only 0.0% within the objective")


def test_failures_of_the_larger_model_move_the_ladder():
    subject = ladders()
    lanes = {"big": lane("big", "b1", slots=64), "small": lane("small", "s1")}
    moved = []
    for at in (0, SECOND):
        for active, attempt in occupy(lanes["big"], 2, at):
            lanes["big"].close(active, attempt, Outcome.FAILURE, Kind.SERVER_ERROR, at)
        moved += subject.watch(lanes, at)
    assert moved[0].reason.startswith("100% of attempts fail")


def test_a_model_of_which_no_replica_may_be_chosen_is_left_at_once():
    subject = ladders(DegradeConfig(ladder=("big", "small")))
    lanes = {"big": lane("big"), "small": lane("small", "s1")}
    (report,) = subject.watch(lanes, 0)
    assert report.reason == "no replica may be chosen: 100% of the traffic on small"
    for at in range(1, 200):
        assert subject.watch(lanes, at * SECOND) == [], "and not come back to before it is there"


def test_the_way_back_to_a_model_that_was_lost_is_taken_in_steps():
    subject = ladders(DegradeConfig(ladder=("big", "small")))
    lanes = {"big": lane("big"), "small": lane("small", "s1")}
    subject.watch(lanes, 0)
    occupy(lanes["small"], 2)  # full of what came down: that says nothing of the other one
    lanes["big"] = lane("big", "b1")
    reports = [(at, r.reason) for at in range(20, 120) for r in subject.watch(lanes, at * SECOND)]
    steps = [(at, reason) for at, reason in reports if reason.startswith("well")]
    assert [at for at, _ in steps] == [20, 31, 41, 51]
    assert [reason.partition(": ")[2] for _, reason in steps] == [
        "75% of the traffic on small",
        "50% of the traffic on small",
        "25% of the traffic on small",
        "",
    ]


# --- single requests -----------------------------------------------------------------------------


def others(subject: ModelLadders, active: ActiveRequest, **lanes: Lane) -> list[str]:
    known = {name: lane(name, f"{name}1") for name in LONG} | lanes
    return [each.model for each in subject.others(active, known, 0)]


def active_of(model: str = "big", **kwargs: object) -> ActiveRequest:
    return ActiveRequest(request(model="big", **kwargs), model, WHOLE)


def test_other_models_of_the_ladder_may_answer_the_best_first():
    subject = ladders(DegradeConfig(ladder=LONG))
    assert others(subject, active_of()) == ["middle", "small"]
    assert others(subject, active_of("middle")) == ["big", "small"]


@pytest.mark.parametrize(
    "declared",
    [{"degradable": False}, {"priority": Priority.BATCH}],
    ids=["forbidden", "it can wait"],
)
def test_a_request_that_must_not_be_moved_has_its_own_model_alone(declared):
    subject = ladders(DegradeConfig(ladder=LONG))
    assert others(subject, active_of(**declared)) == []
    assert subject.patience(active_of(**declared)) is None


def test_a_request_whose_client_saw_content_stays():
    active = active_of()
    active.revision = "1"
    assert others(ladders(DegradeConfig(ladder=LONG)), active) == []


def test_a_request_for_a_model_inside_a_ladder_was_asked_for_by_name():
    active = ActiveRequest(request(model="middle"), "middle", WHOLE)
    assert others(ladders(DegradeConfig(ladder=LONG)), active) == []


def test_a_model_that_had_the_request_before_does_not_get_it_again():
    active = active_of()
    active.left = ("middle",)
    assert others(ladders(DegradeConfig(ladder=LONG)), active) == ["small"]


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ({"lacks": frozenset({"tools"})}, {"needs": ("tools",)}),
        ({"lacks": frozenset({"images", "audio"})}, {"needs": ("audio", "tools")}),
        ({"context_tokens": 1000}, {"prompt_tokens": 900, "max_tokens": 101}),
    ],
)
def test_a_model_that_lacks_what_a_request_needs_is_skipped(limits, asked):
    subject = ladders(DegradeConfig(ladder=LONG))
    poor = lane("middle", "middle1", **limits)
    assert others(subject, active_of(**asked), middle=poor) == ["small"]
    assert others(subject, active_of(), middle=poor) == ["middle", "small"]


def test_the_share_that_moves_leaves_out_whoever_the_smaller_model_cannot_answer():
    subject = degraded()
    poor = {"small": lane("small", "s1", lacks=frozenset({"tools"}))}
    active = ActiveRequest(request(model="big", needs=("tools",)), "big", WHOLE)
    subject.place(active, poor, 2 * SECOND)
    assert (active.model, active.story) == ("big", [])


def test_a_request_stays_where_the_law_lets_it_be_served():
    subject = ladders(DegradeConfig(ladder=LONG))
    assert others(subject, active_of(regions=("region-a",))) == ["middle", "small"]
    assert others(subject, active_of(regions=("region-b",))) == []


# --- the operator's order ------------------------------------------------------------------------


def test_where_latency_is_given_up_first_a_full_model_is_waited_for():
    order = (Dimension.LATENCY, Dimension.QUALITY)
    subject = ladders(DegradeConfig(ladder=("big", "small"), order=order))
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    assert [subject.watch(lanes, at * SECOND) for at in range(60)] == [[]] * 60
    assert subject.patience(active_of()) is None
    lanes["big"] = lane("big")
    assert subject.watch(lanes, 60 * SECOND), "and one that is gone is not"


def capped(subject: ModelLadders, **kwargs: object) -> int:
    return placed(subject, request(model="big", **kwargs), 8 * SECOND).output_max


def test_where_completeness_is_given_up_first_answers_are_capped_before_they_are_smaller():
    order = (Dimension.COMPLETENESS, Dimension.QUALITY)
    config = DegradeConfig(ladder=("big", "small"), order=order, capped_tokens=100, share_step=1.0)
    subject = ladders(config)
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    reasons = [r.reason for at in range(8) for r in subject.watch(lanes, at * SECOND)]
    assert reasons == [
        "saturated at 100%: 100% of the answers of big capped at 100",
        "saturated at 100%: 100% of the traffic on small",
    ]
    assert capped(subject) == 100
    assert capped(subject, max_tokens=101) == 100
    assert capped(subject, max_tokens=100) == 0, "it asked for no more"
    assert capped(subject, cappable=False) == 0, "half of a tool call is none"
    assert capped(subject, priority=Priority.BATCH) == 0
    story = placed(subject, request(model="big"), 8 * SECOND).story
    assert (8 * SECOND, "capped", "at 100 tokens") in story


def test_a_cap_does_not_bring_a_lost_model_back():
    order = (Dimension.COMPLETENESS, Dimension.QUALITY)
    subject = ladders(DegradeConfig(ladder=("big", "small"), order=order))
    (report,) = subject.watch({"big": lane("big"), "small": lane("small", "s1")}, 0)
    assert report.reason == "no replica may be chosen: 100% of the traffic on small"


def test_where_latency_is_not_named_nobody_waits_beyond_the_patience():
    assert not ladders(DegradeConfig(ladder=LONG, order=(Dimension.QUALITY,))).waits_on(active_of())
    assert ladders().waits_on(active_of())
