import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass
from random import Random
from typing import get_args

import pytest

from holdfast.core import messages
from holdfast.core.canary import CanaryConfig, CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import (
    Abort,
    CanaryResult,
    Dispatch,
    Ended,
    Exited,
    Finish,
    FleetAction,
    FleetEvent,
    FleetView,
    FlowAction,
    FlowEvent,
    Joined,
    LoadReported,
    ReplicaView,
    Summary,
    Tally,
)
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import Replica, Request, State

MESSAGES = [
    value
    for name in messages.__all__
    if is_dataclass(value := getattr(messages, name)) and isinstance(value, type)
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_message_is_a_slotted_value_that_takes_no_field_it_does_not_know(message):
    assert not hasattr(object.__new__(message), "__dict__")


def test_every_event_and_every_action_is_among_the_messages():
    spoken = {*get_args(FlowEvent), *get_args(FlowAction), *get_args(FleetEvent)}
    spoken |= set(get_args(FleetAction))
    assert spoken <= set(MESSAGES)


def test_each_machine_has_a_handler_for_each_of_its_events_and_no_other():
    assert set(Fleet(FleetConfig(), Random)._handlers) == set(get_args(FleetEvent))
    assert set(Flow(FlowConfig(), Random)._handlers) == set(get_args(FlowEvent))


def test_what_gateways_are_told_cannot_be_changed_behind_control():
    view = ReplicaView(Replica("r1", "m"), State.READY, 1.0)
    for value, field in (
        (view, "share"),
        (FleetView(1, (view,)), "version"),
        (Tally("m", "r1", 1, 0, 0, 0, 9), "successes"),
    ):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field, 0)


def test_load_that_an_engine_did_not_report_is_unknown():
    report = LoadReported("m", "r1")
    assert (report.tokens, report.waiting, report.kv_used) == (None, None, None)


def test_an_ending_without_a_kind_is_a_complete_answer():
    assert Ended("q1", 0).kind is None


def test_a_process_that_ended_for_no_known_reason_just_exited():
    assert Exited("r1").kind is Kind.EXITED
    assert Exited("r1").detail == ""


def test_a_canary_whose_time_and_cost_nobody_measured_says_so():
    result = CanaryResult("r1", CanaryVerdict.PASS)
    assert (result.latency, result.running, result.tokens, result.detail) == (0, None, 0, "")


def test_a_replica_that_joins_is_asked_the_usual_unless_it_says_otherwise():
    assert Joined(Replica("r1", "m")).canary == CanaryConfig()


def test_a_dispatch_starts_an_answer_unless_it_says_how_much_was_seen():
    request = Request("q1", "m", arrived=0)
    assert Dispatch(request, "m", 0, "r1", "first", 30).resume_tokens == 0


def test_two_answers_do_not_share_a_story():
    one, other = Finish("q1", 200, "ok", "answered"), Finish("q2", 200, "ok", "answered")
    one.story.append((1, "queued", "m"))
    assert other.story == []


def test_equal_facts_are_equal_values():
    assert Abort("q1", 0, "r1", Kind.SUPERSEDED) == Abort("q1", 0, "r1", Kind.SUPERSEDED)
    assert Abort("q1", 0, "r1", Kind.SUPERSEDED) != Abort("q1", 1, "r1", Kind.SUPERSEDED)


def test_what_travels_between_processes_survives_the_way():
    view = FleetView(3, (ReplicaView(Replica("r1", "m"), State.SUSPECT, 0.1),), ("m",))
    summary = Summary((Tally("m", "r1", 4, 1, 0, 2, 96),))
    for message in (view, summary):
        assert pickle.loads(pickle.dumps(message)) == message


def test_no_default_is_a_mutable_value_that_messages_would_share():
    for message in MESSAGES:
        for field in fields(message):
            assert not isinstance(field.default, list | dict | set)
