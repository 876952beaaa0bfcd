"""Rollouts on hosts whose devices are all held: one is drained first, and its place passed on."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.deploy.rollout import (
    Add,
    DeploymentGoal,
    Finished,
    Halted,
    Has,
    Remove,
    Rollout,
    RolloutConfig,
)
from holdfast.core.types import SECOND, State
from sampling import examples

START = 1_000 * SECOND
WHY = "drained first, for no GPU is free: revision 2 takes its place"


def wish(revision="2", count=2, zones=("a",)):
    return DeploymentGoal("m", revision, count, zones)


def has(name, revision="1", state=State.READY, since=0, zone="a", **more):
    return Has(name, revision, zone, state, since, **more)


def known():
    return Rollout(RolloutConfig(), good="1")


def test_with_a_spare_the_newcomer_comes_first_and_without_one_an_old_one_goes_first():
    both = [has("r0"), has("r1")]
    assert known().decide(wish(), both, START) == [Add("m", "2", "a")]
    first = known().decide(wish(), both, START, spare=False)
    assert first == [Remove("r0", WHY, urgent=False, heir="2")]


def test_the_one_drained_first_is_replaced_by_the_new_revision_and_nothing_else_leaves():
    rollout = known()
    rollout.decide(wish(), [has("r0"), has("r1")], START, spare=False)
    leaving = [has("r0", state=State.DRAINING, leaving=True), has("r1")]
    assert rollout.decide(wish(), leaving, START, spare=False) == [Add("m", "2", "a")]
    waits = has("n0", "2", State.STARTING, START, unplaced=True)
    assert rollout.decide(wish(), [*leaving, waits], START, spare=False) == []
    # The old one is gone and its device not taken yet: it counts as room, and nobody else goes.
    assert rollout.decide(wish(), [has("r1"), waits], START + SECOND, spare=True) == []
    loads = has("n0", "2", State.LOADING, START)
    assert rollout.decide(wish(), [has("r1"), loads], START + SECOND, spare=False) == []
    late = START + 100 * SECOND
    ready = has("n0", "2", since=START)
    told = rollout.decide(wish(), [has("r1"), ready], late, spare=False)
    assert told == [Remove("r1", WHY, urgent=False, heir="2")]


def test_a_newcomer_that_lost_the_spare_one_gets_an_old_one_s_place():
    rollout = known()
    rollout.decide(wish(), [has("r0"), has("r1")], START)
    waits = has("n0", "2", State.STARTING, START, unplaced=True)
    three = [has("r0"), has("r1"), waits]
    assert rollout.decide(wish(), three, START, spare=True) == []  # it will take the spare one
    told = rollout.decide(wish(), three, START, spare=False)
    assert told == [Remove("r0", WHY, urgent=False, heir="2")]


def test_one_that_waits_for_a_device_is_not_a_failure_of_its_revision_however_long():
    rollout = known()
    waits = has("n0", "2", State.STARTING, START, unplaced=True)
    late = START + 100_000 * SECOND
    for now in (START, late):
        assert rollout.decide(wish(), [has("r0"), waits], now, spare=True) == []
    assert rollout.waiting == "n0 of revision 2 waits for a device"
    assert rollout.halted is None
    loads = has("n0", "2", State.LOADING, START)
    assert rollout.decide(wish(), [has("r0"), loads], late + 1_201 * SECOND, spare=True) != []
    assert rollout.halted is not None  # one that has a device and does not come up is one


def test_those_that_hold_a_device_go_before_those_that_wait_for_one():
    waits = has("r2", state=State.STARTING, unplaced=True)
    three = [has("r0"), has("r1"), waits]
    told = known().decide(wish(count=3), three, START, spare=False)
    assert told == [Remove("r0", WHY, urgent=False, heir="2")]
    (last,) = known().decide(wish(count=1), [waits], START, spare=False)
    assert last.replica_id == "r2"


def test_the_place_of_a_failed_newcomer_is_kept_for_what_is_proven():
    rollout = known()
    bad = has("n0", "2", State.QUARANTINED, START, wrong=True)
    halted, removed = rollout.decide(wish(), [has("r1"), bad], START, spare=False)
    assert isinstance(halted, Halted)
    assert removed == Remove("n0", "answers its canaries wrong", urgent=True, heir="1")


def test_a_lower_count_takes_one_that_waits_before_one_that_loads():
    loads = has("r0", state=State.LOADING, since=START)
    waits = has("r1", state=State.STARTING, unplaced=True)
    (gone,) = Rollout(RolloutConfig()).decide(wish("1", 1), [loads, waits], START)
    assert gone == Remove("r1", "2 run and 1 are wished", urgent=False)


@dataclass
class One:
    id: str
    revision: str
    zone: str
    state: State
    since: int
    placed: bool
    leaving: bool = False
    wrong: bool = False
    born: int = 0


class TightHost:
    """A host with so many devices: whoever finds none waits, the heir before all others."""

    def __init__(self, count, devices, zones, bad=()):
        self.rollout = Rollout(RolloutConfig(), good="1")
        self.want = wish("2", count, zones)
        self.devices = devices
        self.bad = bad
        self.now = START
        self.made = 0
        self.replicas = {}
        self.heirs = []
        self.finished = False
        for number in range(count):
            self.add("1", zones[number % len(zones)])
        self.place()
        for one in self.replicas.values():
            if one.placed:
                one.state, one.since = State.READY, 0
        self.least = self.serving()

    def add(self, revision, zone):
        name = f"r{self.made}"
        self.made += 1
        self.replicas[name] = One(name, revision, zone, State.STARTING, self.now, False)

    def serving(self):
        return sum(one.state is State.READY for one in self.replicas.values() if not one.leaving)

    def used(self):
        return sum(one.placed for one in self.replicas.values())

    def place(self):
        waiting = [one for one in self.replicas.values() if not one.placed and not one.leaving]
        for heir in list(self.heirs):
            one = next((one for one in waiting if one.revision == heir), None)
            if one is not None and self.used() < self.devices:
                one.placed = True
                waiting.remove(one)
                self.heirs.remove(heir)
        for one in waiting:
            if self.used() + len(self.heirs) < self.devices:
                one.placed = True

    def turn(self):
        seen = [
            has(
                *(one.id, one.revision, State.DRAINING if one.leaving else one.state, one.since),
                zone=one.zone,
                leaving=one.leaving,
                wrong=one.wrong,
                unplaced=not one.placed,
            )
            for one in self.replicas.values()
        ]
        spare = self.used() < self.devices
        for step in self.rollout.decide(self.want, seen, self.now, spare=spare):
            if isinstance(step, Add):
                self.add(step.revision, step.zone)
            elif isinstance(step, Remove):
                one = self.replicas[step.replica_id]
                one.leaving = True
                if step.heir and one.placed:
                    self.heirs.append(step.heir)
            elif isinstance(step, Finished):
                self.finished = True
        self.least = min(self.least, self.serving())
        assert self.used() <= self.devices

    def behave(self, slow):
        for one in list(self.replicas.values()):
            if one.leaving:
                del self.replicas[one.id]
            elif one.placed and one.state is State.STARTING and not slow:
                fails = one.revision in self.bad
                one.state, one.since = (State.QUARANTINED if fails else State.READY), self.now
                one.wrong = fails
        self.place()
        self.now += 3 * SECOND


hosts = st.tuples(
    st.integers(1, 5), st.integers(0, 2), st.sampled_from([("a",), ("a", "b"), ("a", "b", "c")])
)


@settings(max_examples=examples(300))
@given(hosts, st.lists(st.booleans(), max_size=60), st.booleans())
def test_a_tight_host_comes_to_the_new_revision_one_place_at_a_time(host, slow, bad):
    count, lacking, zones = host
    devices = max(1, count - lacking)  # as many as there are replicas, or fewer: some wait for ever
    world = TightHost(count, devices, zones, bad=("2",) if bad else ())
    began = world.least
    for number in range(200):
        world.turn()
        world.behave(number < len(slow) and slow[number])
    there = {one.revision for one in world.replicas.values() if one.placed}
    assert there == {"1" if bad else "2"}
    assert world.serving() == devices
    assert world.least >= began - 1, "one place at a time"
    assert not world.heirs
    if devices == count and not bad:
        assert world.finished


@settings(max_examples=examples(100))
@given(st.integers(1, 5), st.sampled_from([("a",), ("a", "b")]))
def test_with_one_spare_device_nobody_is_missed(count, zones):
    world = TightHost(count, count + 1, zones)
    for _ in range(300):
        world.turn()
        world.behave(False)
    assert world.finished
    assert world.least == count
