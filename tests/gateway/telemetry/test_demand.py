from random import Random

import pytest

from holdfast.core.messages import (
    Arrived,
    Ended,
    FirstContent,
    FleetView,
    ReplicaView,
    Tick,
    ViewChanged,
)
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.types import MILLISECOND, SECOND, Replica, Request, State
from holdfast.gateway.telemetry.demand import DemandGauges

START = 1_000 * SECOND


class Stage:
    """A flow of two models, of which one has a replica, and the signals read off it."""

    def __init__(self):
        self.flow = self.made()
        self.flows = [self.flow]
        self.signals = DemandGauges()
        self.now = START
        self.number = 0
        rows = (ReplicaView(Replica("r1", "up"), State.READY, 1.0),)
        self.tell(ViewChanged(FleetView(1, rows)))

    @staticmethod
    def made():
        return Flow(FlowConfig(lanes={"up": LaneConfig(), "down": LaneConfig()}), Random)

    def tell(self, event):
        return self.flow.handle(event, self.now)

    def arrive(self, model, **more):
        self.number += 1
        self.tell(Arrived(Request(self.number, model, arrived=self.now, **more)))
        return self.number

    def answer(self, took, prompt_tokens=10, tokens=20):
        """One streamed answer."""
        name = self.arrive("up", prompt_tokens=prompt_tokens)
        self.now += took
        self.tell(FirstContent(name, 0))
        self.tell(Ended(name, 0, None, tokens, MILLISECOND))

    def read(self):
        self.tell(Tick())  # a second passes for the tallies
        return self.signals.read(self.flows, self.now)


@pytest.fixture
def stage():
    return Stage()


def test_queues_are_told_of_every_model_and_nothing_that_is_not_known(stage):
    assert stage.read() == {
        'active_requests{model="up"}': 0,
        'queued_requests{model="up"}': 0,
        'queued_tokens{model="up"}': 0,
        'active_requests{model="down"}': 0,
        'queued_requests{model="down"}': 0,
        'queued_tokens{model="down"}': 0,
    }


def test_what_waits_is_counted_in_requests_and_in_tokens(stage):
    stage.arrive("down", prompt_tokens=100, max_tokens=50)
    stage.arrive("down", prompt_tokens=7, max_tokens=3)
    told = stage.read()
    assert told['queued_requests{model="down"}'] == 2
    assert told['queued_tokens{model="down"}'] == 160
    assert stage.signals.gauges is told


def test_a_request_that_came_and_went_within_a_second_is_told_of(stage):
    stage.now += SECOND
    stage.answer(100 * MILLISECOND)
    stage.now += SECOND
    assert stage.read()['active_requests{model="up"}'] == 1
    stage.now += SECOND
    assert stage.read()['active_requests{model="up"}'] == 0


def test_that_somebody_begins_to_wait_is_noticed_once(stage):
    stage.read()
    assert not stage.signals.begun(stage.flows)
    stage.arrive("down")
    assert stage.signals.begun(stage.flows)
    stage.read()
    stage.arrive("down")
    assert not stage.signals.begun(stage.flows)  # that some wait is known


def test_what_an_older_config_still_serves_counts_too(stage):
    stage.arrive("down", prompt_tokens=100)
    stage.flow = stage.made()
    stage.flows = [stage.flow, *stage.flows]
    stage.arrive("down", prompt_tokens=1)
    assert stage.read()['queued_tokens{model="down"}'] == 101


def test_a_p95_is_told_in_seconds_once_enough_streams_began(stage):
    for _ in range(19):
        stage.answer(100 * MILLISECOND)
    assert 'first_token_p95_seconds{model="up"}' not in stage.read()
    stage.answer(100 * MILLISECOND)
    told = stage.read()
    assert told['first_token_p95_seconds{model="up"}'] == pytest.approx(0.1, rel=0.06)
    assert 'first_token_p95_seconds{model="down"}' not in told


def test_a_rate_is_told_once_it_was_watched_for_a_while_and_zero_is_one(stage):
    stage.read()
    for _ in range(9):
        stage.answer(SECOND)
        assert 'tokens_per_second{model="up"}' not in stage.read()
    for _ in range(60):
        stage.answer(SECOND)
        told = stage.read()
    assert told['tokens_per_second{model="up"}'] == pytest.approx(30.0, rel=0.1)
    assert told['tokens_per_second{model="down"}'] == 0.0
    stage.now += 60 * SECOND
    assert stage.read()['tokens_per_second{model="up"}'] == 0.0


def test_a_model_that_left_the_config_is_told_of_no_more(stage):
    stage.read()
    stage.flows = [Flow(FlowConfig(lanes={"other": LaneConfig()}), Random)]
    assert set(stage.read()) == {
        'active_requests{model="other"}',
        'queued_requests{model="other"}',
        'queued_tokens{model="other"}',
    }
