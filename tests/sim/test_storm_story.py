"""The retry storm: 64 replicas, 15 % of them ten times as slow for 90 s, clients with an SDK.

Every client gives up after six seconds, of an answer that usually takes one, and asks again; it
asks again after an error too, as SDKs do: twice, half a second later and then a second. Each retry
is one request more for a fleet that runs at eight tenths of what it can, and at nine without the
slow ones. Contained means that engines are given at most a fifth more than users asked for, in any
ten seconds; that users are served as before 15 s after it is over; and that no healthy replica is
put out. The same hour with replicas in turn and retries without a bound shows what was contained.
"""

from collections import Counter

import pytest

from holdfast.core.messages import Arrived, ClientGone, Dispatch, Finish, Notice
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import SECOND, Replica, Request, State, nanos
from holdfast.sim.clock import TRAFFIC
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.request_record import RequestRecord
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

REPLICAS = 64
SLOW = [f"r{number:02}" for number in range(0, 60, 6)]  # ten of them: 15 %
FROM, UNTIL, END = 20, 110, 150  # seconds
WINDOW = 10
RATE = 470.0
OUTPUT = Lengths(mean=60.0, maximum=200)
PATIENCE = nanos(6.0)  # of a client, for the whole of an answer that takes one second
RETRIES = 2  # of an SDK
RETRIED = {408, 409, 429, 499, 500, 502, 503, 504}  # 499: it left itself
OVER = {State.QUARANTINED, State.DEAD, State.DRAINING}


class Clients:
    """What SDKs do around a simulated gateway; keeps the account of what users asked for."""

    def __init__(self, world):
        self._world = world
        self._rng = stream(1, "clients", "sdk")
        self._asked = {}  # id of an attempt of an SDK to (user's first request, number, tokens)
        self.wanted = Counter()  # by second
        self.sent = Counter()  # to engines, by second
        self.served = Counter()  # by the second in which the user first asked
        self.lost = Counter()
        self.again = 0
        world.add_observer(self.observe)

    def observe(self, now, whose, event, actions):
        if whose != "flow":
            return
        if isinstance(event, Arrived):
            self._arrived(event.request, now)
        for action in actions:
            if isinstance(action, Dispatch):
                self.sent[now // SECOND] += 1
            elif isinstance(action, Finish):
                self._finished(action, now)

    def _arrived(self, request, now):
        if request.id not in self._asked:
            self._asked[request.id] = (request, 0)
            self.wanted[now // SECOND] += 1
        self._world.clock.at(now + PATIENCE, TRAFFIC, self._lose_patience, request.id)

    def _lose_patience(self, name, now):
        if name in self._world.records:
            self._world._tell_flow(ClientGone(name), now)

    def _finished(self, action, now):
        user, number = self._asked.pop(action.request_id)
        second = user.arrived // SECOND
        if action.status == 200:
            self.served[second] += 1
            return
        if number >= RETRIES or action.status not in RETRIED:
            self.lost[second] += 1
            return
        wait = min(0.5 * 2**number, 8.0) * (1 - 0.25 * self._rng.random())
        wait = max(wait, action.retry_after_s)
        output = self._world.records[action.request_id].output
        self.again += 1
        self._world.clock.at(now + nanos(wait), TRAFFIC, self._ask, (user, number + 1, output))

    def _ask(self, what, now):
        user, number, output = what
        name = f"{user.id} again {number}"
        request = Request(name, user.model, arrived=now, prompt_tokens=user.prompt_tokens)
        self._asked[name] = (user, number)
        self._world.records[name] = RequestRecord(request, output)
        self._world._tell_flow(Arrived(request), now)

    def amplification(self, end=END):
        """Of every ten seconds: what engines were given for what users wanted, at most."""
        spans = [range(begin, begin + WINDOW) for begin in range(end - WINDOW)]
        return max(
            sum(self.sent[at] for at in span) / sum(self.wanted[at] for at in span)
            for span in spans
        )

    def goodput(self, begin, end):
        wanted = sum(self.wanted[at] for at in range(begin, end))
        return sum(self.served[at] for at in range(begin, end)) / wanted


def storm(flow, *, slots=8, canaries=True, end=END):
    faults = [
        Fault(FaultKind.SLOW, name, FROM * SECOND, UNTIL * SECOND, factor=10.0) for name in SLOW
    ]
    setup = Experiment(
        tuple(Replica(f"r{i:02}", "m", zone=f"zone-{i % 4}", slots=slots) for i in range(REPLICAS)),
        duration_s=float(end),
        workloads=(("m", Workload(rate=RATE, prompt=Lengths(mean=300.0), output=OUTPUT)),),
        engine=EngineParameters(batch_max=8),
        canaries=canaries,
        flow=flow,
        faults=FaultSchedule(tuple(faults)),
    )
    world = World(setup, 1)
    clients = Clients(world)
    ejected = set()

    def watch(now, whose, event, actions):
        told = [one for one in actions if isinstance(one, Notice)] if whose == "fleet" else ()
        ejected.update(one.replica_id for one in told if one.what in OVER)

    world.add_observer(watch)
    world.run()
    return clients, ejected


@pytest.fixture(scope="module")
def ours():
    return storm(FlowConfig())


def test_engines_are_given_little_more_than_users_asked_for(ours):
    clients, _ = ours
    assert clients.again > 100  # there was something to contain
    assert clients.amplification() <= 1.2


def test_users_are_served_throughout_and_as_before_soon_after(ours):
    clients, _ = ours
    before = clients.goodput(0, FROM)
    assert before > 0.999
    assert clients.goodput(FROM, UNTIL) > 0.99
    for begin in range(UNTIL + 15, END - 10, 5):
        assert clients.goodput(begin, begin + 5) > 0.999


def test_no_healthy_replica_is_put_out(ours):
    _, ejected = ours
    assert ejected <= set(SLOW)


def test_without_our_policies_there_is_a_storm(ours):
    clients, _ = ours
    turns = LaneConfig(routing="round_robin", limit=LimitConfig(enabled=False))
    unbounded = RetryConfig(attempts=3, budget=False, backoff="none")
    naive, _ = storm(FlowConfig(lane=turns, retry=unbounded), slots=0, canaries=False, end=70)
    extra = naive.amplification(70) - 1
    assert extra > 0.1
    assert extra > 3 * (clients.amplification() - 1)
    assert naive.goodput(FROM, 60) < clients.goodput(FROM, UNTIL)
