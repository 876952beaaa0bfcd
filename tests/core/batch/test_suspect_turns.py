"""Items that were lost with a replica run again one at a time, and only the guilty are given up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.batch.suspect_turns import SuspectConfig, SuspectTurns
from holdfast.core.batch.verdicts import LOST, ItemVerdict, judge_answer
from holdfast.core.types import SECOND, ConfigError
from sampling import examples


class Fleet:
    """Replicas that end with whatever poison item reaches them, and are back at once.

    For half a second others are still sent to one that ended, and are lost as well.
    Items are packed, answered and lost as ``draw`` says; ``alone`` is what the runner obeys.
    """

    def __init__(self, draw, items, poison, replicas, alone):
        self.draw = draw
        self.poison = poison
        self.replicas = replicas
        self.turns = SuspectTurns() if alone else None
        self.fresh = list(range(items))
        self.suspects = []
        self.running = {}  # item: (replica, whether it is a suspect)
        self.gone_until = [0] * replicas
        self.too_late = set()  # items that were sent to a replica that had ended
        self.losses = dict.fromkeys(self.fresh, 0)
        self.costs = dict.fromkeys(poison, 0)
        self.done, self.dead = set(), set()
        self.deaths = self.now = 0

    def work(self):
        steps = 0
        while self.fresh or self.suspects or self.running:
            steps += 1
            assert steps < 10_000, "it does not end"
            self.now += self.draw(st.sampled_from([SECOND // 10, SECOND, 20 * SECOND]))
            self._begin()
            if self.running:
                self._end(self.draw(st.sampled_from(sorted(self.running))))

    def _begin(self):
        for _ in range(self.draw(st.integers(1, 6))):
            if self.suspects and self._may(suspect=True):
                self._send(self.suspects.pop(0), suspect=True)
            elif self.fresh and self._may(suspect=False):
                self._send(self.fresh.pop(0), suspect=False)

    def _may(self, *, suspect):
        return self.turns is None or self.turns.may_begin(self.now, suspect=suspect)

    def _send(self, item, *, suspect):
        if self.turns is not None:
            self.turns.begin(self.now, suspect=suspect)
            beside = len(self.running)
            assert not (suspect and beside), "a suspect runs alone"
            assert not any(alone for _, alone in self.running.values()), "and stays so"
        replica = self.draw(st.integers(0, self.replicas - 1))
        self.running[item] = (replica, suspect)
        if self.now < self.gone_until[replica]:
            self.too_late.add(item)

    def _end(self, item):
        replica, _ = self.running[item]
        if item in self.too_late:
            self._answer(item, 502, LOST)
            return
        if item not in self.poison:
            self._answer(item, 200, "")
            return
        self.deaths += 1
        self.costs[item] += 1
        self.gone_until[replica] = self.now + SECOND // 2
        for other in [one for one, (where, _) in self.running.items() if where == replica]:
            self._answer(other, 502, LOST)

    def _answer(self, item, status, code):
        _, suspect = self.running.pop(item)
        self.too_late.discard(item)
        if self.turns is not None:
            if code == LOST:
                self.turns.replica_lost(self.now)
            self.turns.end(self.now, suspect=suspect)
        verdict = judge_answer(status, code, self.losses[item])
        if verdict is ItemVerdict.SUSPECT:
            self.losses[item] += 1
            self.suspects.append(item)
            if self.turns is not None:
                self.turns.waiting += 1
        else:
            (self.done if verdict is ItemVerdict.DONE else self.dead).add(item)


@settings(max_examples=examples(60))
@given(st.data(), st.integers(1, 14), st.integers(1, 3))
def test_whatever_the_packing_exactly_the_poison_ends_as_dead_letters(data, items, replicas):
    poison = data.draw(st.sets(st.integers(0, items - 1), max_size=4))
    fleet = Fleet(data.draw, items, poison, replicas, alone=True)
    fleet.work()
    assert fleet.dead == poison
    assert fleet.done == set(range(items)) - poison
    assert all(cost <= 2 for cost in fleet.costs.values())
    assert fleet.deaths <= 2 * len(poison)
    assert (fleet.turns.running, fleet.turns.waiting, fleet.turns.suspect_runs) == (0, 0, False)


def test_without_turns_the_innocent_are_given_up_with_the_guilty():
    packed = iter([SECOND, 3, 0, 0, 0, 2, SECOND, 3, 0, 0, 0, 2])
    fleet = Fleet(lambda _: next(packed), items=3, poison={2}, replicas=1, alone=False)
    fleet.work()
    assert fleet.dead == {0, 1, 2}


def test_suspects_wait_for_what_runs_and_new_items_wait_for_suspects():
    turns = SuspectTurns()
    turns.begin(0, suspect=False)
    turns.waiting += 2
    assert not turns.may_begin(0, suspect=False)
    assert not turns.may_begin(0, suspect=True)
    turns.end(0, suspect=False)
    assert turns.may_begin(0, suspect=True)
    turns.begin(0, suspect=True)
    assert not turns.may_begin(SECOND, suspect=True), "one at a time"
    assert not turns.may_begin(60 * SECOND, suspect=False)
    turns.end(SECOND, suspect=True)
    assert turns.may_begin(SECOND, suspect=True)


def test_after_a_while_the_others_have_as_long_a_time():
    turns = SuspectTurns(SuspectConfig(alone_s=30.0))
    turns.waiting += 3
    turns.begin(0, suspect=True)
    turns.end(31 * SECOND, suspect=True)
    assert turns.may_begin(31 * SECOND, suspect=False)
    assert not turns.may_begin(60 * SECOND, suspect=True)
    assert turns.may_begin(61 * SECOND, suspect=True)
    assert not turns.may_begin(61 * SECOND, suspect=False)


def test_no_suspect_begins_until_a_lost_replica_has_closed_its_port():
    turns = SuspectTurns(SuspectConfig(settle_s=1.0))
    turns.waiting += 2
    turns.begin(0, suspect=True)
    turns.replica_lost(SECOND)
    turns.end(SECOND, suspect=True)
    assert not turns.may_begin(2 * SECOND - 1, suspect=True)
    assert not turns.may_begin(2 * SECOND - 1, suspect=False), "it is the suspects' time"
    assert turns.may_begin(2 * SECOND, suspect=True)


def test_new_items_do_not_wait_after_a_loss():
    turns = SuspectTurns()
    turns.begin(0, suspect=False)
    turns.replica_lost(SECOND)
    turns.end(SECOND, suspect=False)
    assert turns.may_begin(SECOND, suspect=False)


def test_nobody_waits_where_no_replica_was_lost():
    turns = SuspectTurns()
    for now in range(100):
        assert turns.may_begin(now, suspect=False)
        turns.begin(now, suspect=False)


@pytest.mark.parametrize("field", ["alone_s", "settle_s"])
def test_no_time_at_all_is_refused(field):
    with pytest.raises(ConfigError, match=rf"suspects\.{field}"):
        SuspectConfig(**{field: 0.0})
