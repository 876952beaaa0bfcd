"""Rollouts against fleets that behave, fail, die, dawdle and leave."""

from collections import Counter
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
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
from holdfast.core.types import SECOND, ConfigError, State
from sampling import examples

CONFIG = RolloutConfig()
START = 1_000 * SECOND
ZONES = ("a", "b")


def wish(revision="1", count=3, zones=ZONES):
    return DeploymentGoal("m", revision, count, zones)


def has(name, revision="1", zone="a", state=State.READY, since=0, **more):
    return Has(name, revision, zone, state, since, **more)


def three(revision="1"):
    return [has("r0", revision), has("r1", revision, "b"), has("r2", revision)]


def finished(revision="1"):
    """A rollout that knows a good revision."""
    rollout = Rollout(CONFIG)
    assert rollout.decide(wish(revision), three(revision), START) == [Finished(revision)]
    return rollout


@dataclass
class One:
    id: str
    revision: str
    zone: str
    state: State
    since: int
    wrong: bool = False
    leaving: bool = False
    failed: str = ""

    def seen(self) -> Has:
        return Has(
            self.id,
            self.revision,
            self.zone,
            self.state,
            self.since,
            self.wrong,
            self.leaving,
            self.failed,
        )


class FakeFleet:
    """Does each step at once, and checks the rules of a rollout on each."""

    def __init__(self, rollout, want, bad=()):
        self.rollout = rollout
        self.want = want
        self.bad = set(bad)  # revisions that fail
        self.now = START
        self.made = 0
        self.replicas: dict[str, One] = {}
        self.halts: list[Halted] = []
        self.finishes: list[str] = []
        self.lowered = False  # the count fell: removals are wished
        self.least_ready = 99
        self.added: Counter[str] = Counter()

    def add(self, revision, zone, state=State.STARTING):
        name = f"r{self.made}"
        self.made += 1
        self.replicas[name] = One(name, revision, zone, state, self.now)
        return self.replicas[name]

    def members(self):
        return [
            one
            for one in self.replicas.values()
            if not one.leaving and one.state is not State.STOPPED
        ]

    def turn(self, one, state, **marks):
        one.state, one.since = state, self.now
        for name, value in marks.items():
            setattr(one, name, value)

    def step(self):
        seen = [one.seen() for one in self.replicas.values()]
        steps = self.rollout.decide(self.want, seen, self.now)
        assert sum(isinstance(step, Add | Remove) for step in steps) <= 1
        again = self.rollout.decide(self.want, seen, self.now)
        assert not [step for step in again if isinstance(step, Add | Remove)], "not done yet"
        for step in steps:
            if isinstance(step, Add):
                self.on_add(step)
            elif isinstance(step, Remove):
                self.on_remove(step)
            elif isinstance(step, Halted):
                self.halts.append(step)
            else:
                self.finishes.append(step.revision)
        return steps

    def on_add(self, step):
        assert step.zone in self.want.zones
        before = self.members()
        assert len(before) <= self.want.count, "one surplus at most"
        revision = step.revision
        target = self.target()
        old = [one for one in before if one.revision != target]
        if old and revision == target and target != self.rollout.good:
            new = [one for one in before if one.revision == target]
            young = [one for one in new if one.state is not State.READY]
            assert not young or (len(before) < self.want.count and young != new), "one at a time"
        self.added[revision] += 1
        self.add(revision, step.zone)

    def half_done(self):
        """Zones in which replicas of more than one revision are."""
        zones = {one.zone for one in self.replicas.values()}
        revisions = {
            zone: {one.revision for one in self.replicas.values() if one.zone == zone}
            for zone in zones
        }
        return [zone for zone, found in revisions.items() if len(found) > 1]

    def on_remove(self, step):
        one = self.replicas[step.replica_id]
        assert not one.leaving
        if step.urgent:
            assert one.state is not State.READY, "who serves does not go at once"
        elif not self.lowered:
            left = [other for other in self.members() if other is not one]
            assert len(left) >= self.want.count
            if one.state is State.READY:
                newer = [other for other in left if other.revision == self.target()] or left
                assert all(other.state is State.READY for other in newer), "replaced before"
        one.leaving = True
        ready = sum(other.state is State.READY for other in self.members())
        self.least_ready = min(self.least_ready, ready)

    def target(self):
        if self.rollout.refused_revision == self.want.revision:
            return self.rollout.good
        return self.want.revision

    def behave(self):
        """Everybody does what is expected of a replica: one move each."""
        for one in list(self.replicas.values()):
            if one.leaving:
                del self.replicas[one.id]
            elif one.failed or one.wrong:
                continue
            elif one.revision in self.bad and one.state is not State.STARTING:
                self.turn(one, State.QUARANTINED, wrong=True)
            elif one.state in (State.STARTING, State.DEAD):
                self.turn(one, State.WARMING)
            elif one.state in (State.WARMING, State.SUSPECT, State.QUARANTINED):
                self.turn(one, State.READY)

    def run(self, rounds=120, pause=3):
        for _ in range(rounds):
            self.step()
            self.behave()
            self.now += pause * SECOND

    def settled(self, revision):
        members = self.members()
        assert len(members) == len(self.replicas) == self.want.count
        assert {one.revision for one in members} <= {revision}
        assert all(one.state is State.READY for one in members)


def fleet(count=3, revision="1", bad=(), config=CONFIG):
    made = FakeFleet(Rollout(config), wish(revision, count), bad)
    for number in range(count):
        made.add(revision, ZONES[number % 2], State.READY).since = 0
    made.step()
    assert made.finishes == ([revision] if count else [])
    return made


# --- steady state ---------------------------------------------------------------------------------


def test_an_empty_deployment_is_filled_evenly_over_its_zones():
    made = FakeFleet(Rollout(CONFIG), wish(count=5))
    made.run()
    made.settled("1")
    assert Counter(one.zone for one in made.members()) == {"a": 3, "b": 2}
    assert made.finishes == ["1"]


def test_a_lower_count_takes_the_unready_then_the_youngest_of_the_fullest_zone():
    rollout = finished()
    four = [*three(), has("r3", zone="b", state=State.SUSPECT)]
    (step,) = rollout.decide(wish(), four, START)
    assert step == Remove("r3", "4 run and 3 are wished", urgent=False)
    rollout = finished()
    replicas = [has("r0", since=1), has("r1", zone="b", since=9), has("r2", since=5)]
    (step,) = rollout.decide(wish(count=2), replicas, START)
    assert step.replica_id == "r2"


def test_a_count_of_zero_empties_it_and_is_never_finished():
    made = fleet()
    made.want, made.lowered = wish(count=0), True
    made.run(12)
    assert made.replicas == {}
    assert made.finishes == ["1"]


def test_what_is_well_gets_no_step_and_finished_is_said_once():
    rollout = finished()
    assert rollout.decide(wish(), three(), START + SECOND) == []
    assert rollout.snapshot()["waiting"] == ""


def test_a_dead_replica_is_restarted_by_others_and_a_leaving_one_is_replaced():
    rollout = finished()
    dead = [*three()[:2], has("r2", state=State.DEAD)]
    assert rollout.decide(wish(), dead, START) == []
    leaving = [*three()[:2], has("r2", state=State.DRAINING, leaving=True)]
    assert rollout.decide(wish(), leaving, START) == [Add("m", "1", "a")]


def test_a_failed_replica_is_replaced_later_each_time_and_then_in_another_zone():
    rollout = finished()
    now, waits = START, []
    for number in range(3):
        broken = has(f"x{number}", state=State.DEAD, failed="exits in a loop")
        (gone,) = rollout.decide(wish(), [*three()[:2], broken], now)
        assert gone == Remove(f"x{number}", "exits in a loop", urgent=True)
        began = now
        while not (steps := rollout.decide(wish(), three()[:2], now)):
            now += SECOND
        waits.append((now - began) // SECOND)
        assert steps == [Add("m", "1", "b" if number == 2 else "a")]
    assert waits == [10, 20, 0]


def test_a_replica_that_settles_clears_its_zone():
    rollout = finished()
    broken = has("x", state=State.DEAD, failed="exits in a loop")
    rollout.decide(wish(), [*three()[:2], broken], START)
    assert rollout.decide(wish(), [has("r1", zone="b")], START) == []
    assert "zone a" in rollout.snapshot()["waiting"]
    rollout.decide(wish(count=1), [has("n", since=START + SECOND)], START + 6 * SECOND)
    assert rollout.decide(wish(count=2), [has("r1", zone="b")], START) == [Add("m", "1", "a")]


def test_the_first_revision_of_all_is_tried_again_and_never_refused():
    rollout = Rollout(CONFIG)
    broken = has("x", state=State.DEAD, failed="no such file")
    (step,) = rollout.decide(wish(), [broken], START)
    assert step == Remove("x", "no such file", urgent=True)
    assert rollout.halted is None
    assert rollout.decide(wish(count=1, zones=("a",)), [], START) == []
    later = START + 10 * SECOND
    assert rollout.decide(wish(count=1, zones=("a",)), [], later) == [Add("m", "1", "a")]


def test_zones_of_old_wishes_are_forgotten():
    rollout = finished()
    now = START
    for number in range(80):
        zone = f"z{number}"
        now += 40 * SECOND
        broken = has(f"x{number}", zone=zone, state=State.DEAD, failed="lost")
        rollout.decide(wish(count=1, zones=(zone,)), [broken], now)
    assert len(rollout._barred) == 64


# --- steps that are not done ----------------------------------------------------------------------


def test_a_step_is_not_repeated_until_it_was_done_or_lost():
    rollout = finished()
    two = three()[:2]
    assert rollout.decide(wish(), two, START) == [Add("m", "1", "a")]
    assert rollout.decide(wish(), two, START + 29 * SECOND) == []
    assert rollout.snapshot()["waiting"] == "the last step is being done"
    assert rollout.snapshot()["outstanding"] is not None
    other = [*two, has("x", "1", "b", State.STARTING)]  # not the one that was asked for
    assert rollout.decide(wish(), other, START + 29 * SECOND) == []
    assert rollout.decide(wish(), two, START + 30 * SECOND) == [Add("m", "1", "a")]


def test_a_removal_is_done_when_it_leaves_is_stopped_or_is_gone():
    for after in (
        [has("r2", state=State.DRAINING, leaving=True)],
        [has("r2", state=State.STOPPED)],
        [],
    ):
        rollout = finished()
        (step,) = rollout.decide(wish(count=2), three(), START)
        assert step.replica_id == "r0"
        rest = [replace(each, id="r0") for each in after]
        assert rollout.decide(wish(count=2), [*three()[1:], *rest], START) == []
        assert rollout.snapshot()["outstanding"] is None


# --- a new revision -------------------------------------------------------------------------------


def test_a_rollout_adds_waits_until_settled_and_then_removes_in_the_same_zone():
    rollout = finished()
    assert rollout.decide(wish("2"), three(), START) == [Add("m", "2", "a")]
    new = has("n", "2", "a", State.STARTING, START)
    assert rollout.decide(wish("2"), [*three(), new], START) == []
    assert rollout.waiting == "n of revision 2 is starting, not yet settled"
    new = has("n", "2", "a", State.READY, START)
    assert rollout.decide(wish("2"), [*three(), new], START + 4 * SECOND) == []
    (step,) = rollout.decide(wish("2"), [*three(), new], START + 5 * SECOND)
    assert step == Remove("r0", "replaced by revision 2", urgent=False)
    draining = has("r0", state=State.DRAINING, leaving=True)
    rest = [*three()[1:], new]
    assert rollout.decide(wish("2"), [draining, *rest], START + 6 * SECOND) == []
    assert rollout.waiting == "the last one leaves"
    assert rollout.decide(wish("2"), rest, START + 6 * SECOND) == [Add("m", "2", "a")]


def test_a_rollout_that_behaves_converges_zone_by_zone():
    made = fleet(6)
    made.want = wish("2", 6)
    zones = []
    for _ in range(200):
        zones += [made.replicas[s.replica_id].zone for s in made.step() if isinstance(s, Remove)]
        made.behave()
        made.now += 3 * SECOND
    made.settled("2")
    assert made.least_ready == 6
    assert zones == ["a"] * 3 + ["b"] * 3
    assert made.finishes == ["1", "2"]
    assert made.halts == []
    assert made.rollout.good == "2"
    assert Counter(one.zone for one in made.members()) == {"a": 3, "b": 3}


def test_a_revision_that_answers_wrongly_stops_at_its_first_replica_and_is_rolled_back():
    made = fleet(bad={"2"})
    made.want = wish("2")
    made.run()
    made.settled("1")
    assert [halt.revision for halt in made.halts] == ["2"]
    assert "answers its canaries wrong" in made.halts[0].reason
    assert made.least_ready == 3
    assert made.made == 4, "one of the new revision, and no more"
    assert (made.rollout.refused_revision, made.rollout.good) == ("2", "1")


def test_a_refused_revision_is_tried_again_only_when_the_wish_changes_or_on_order():
    made = fleet(bad={"2"})
    made.want = wish("2")
    made.run(40)
    made.want = wish("2", 4)
    made.run(40)
    assert made.made == 5
    made.settled("1")
    made.want = wish("3", 4)
    made.run()
    made.settled("3")
    assert made.rollout.halted is None
    made.want = wish("2", 4)
    made.run(20)
    assert [halt.revision for halt in made.halts] == ["2", "2"]
    made.bad.clear()
    made.rollout.forgive()
    made.run()
    made.settled("2")


def test_the_good_ones_of_a_refused_revision_are_replaced_before_they_leave():
    made = fleet()
    made.want = wish("2")
    while sum(one.revision == "2" for one in made.members()) < 2:
        made.step()
        made.behave()
        made.now += 3 * SECOND
    late = next(one for one in made.members() if one.state is not State.READY)
    made.turn(late, State.DEAD, failed="was not loaded within 600 s")
    before = made.made
    made.run()
    made.settled("1")
    assert made.made == before + 1
    assert made.least_ready == 3
    assert made.halts[0].reason == f"{late.id} of revision 2 failed: was not loaded within 600 s"
    assert made.finishes == ["1", "1"]


def test_more_failures_can_be_allowed():
    config = RolloutConfig(failures_max=2)
    made = fleet(bad={"2"}, config=config)
    made.want = wish("2")
    made.run()
    made.settled("1")
    assert made.made == 5
    assert len(made.halts) == 1


def test_a_newcomer_that_is_neither_ready_nor_failed_is_a_failure_in_the_end():
    rollout = finished()
    rollout.decide(wish("2"), three(), START)
    slow = has("n", "2", "a", State.SUSPECT, START)
    assert rollout.decide(wish("2"), [*three(), slow], START) == []
    assert rollout.decide(wish("2"), [*three(), slow], START + 1_200 * SECOND) == []
    steps = rollout.decide(wish("2"), [*three(), slow], START + 1_201 * SECOND)
    assert steps == [
        Halted("2", "n of revision 2 was not ready for 1200 s"),
        Remove("n", "was not ready for 1200 s", urgent=True),
    ]


def test_those_of_a_refused_revision_that_do_not_serve_go_at_once():
    rollout = finished()
    liar = has("n", "2", "a", State.QUARANTINED, START, wrong=True)
    other = has("o", "2", "b", State.LOADING, START)
    halted, gone = rollout.decide(wish("2", 4), [*three(), liar, other], START)
    assert isinstance(halted, Halted)
    assert gone == Remove("n", "answers its canaries wrong", urgent=True)
    (gone,) = rollout.decide(wish("2", 4), [*three(), other], START)
    assert gone == Remove("o", "revision 2 is refused", urgent=True)


def test_halting_is_said_even_while_a_step_is_outstanding():
    rollout = finished()
    assert rollout.decide(wish("2"), three(), START) == [Add("m", "2", "a")]
    stray = has("x", "2", "b", State.DEAD, START, failed="lost")
    (step,) = rollout.decide(wish("2"), [*three(), stray], START)
    assert isinstance(step, Halted)


def test_another_wish_in_the_middle_goes_back_to_the_last_finished_revision():
    made = fleet(bad={"3"})
    made.want = wish("2")
    made.run(6)
    assert {one.revision for one in made.members()} == {"1", "2"}
    made.want = wish("3")
    made.run()
    made.settled("1")
    assert [halt.revision for halt in made.halts] == ["3"]


def test_a_restarted_control_goes_on_and_keeps_the_refusal():
    rollout = Rollout(CONFIG, good="1", refused=("2", "wrong"))
    assert rollout.decide(wish("2"), three(), START) == [Finished("1")]
    assert (rollout.refused_revision, rollout.halted) == ("2", "wrong")
    rollout = Rollout(CONFIG)  # it knew nothing: what runs is what there is to go back to
    assert rollout.decide(wish("2"), three(), START) == [Add("m", "2", "a")]
    assert rollout.good == "1"


def test_what_never_ran_well_is_still_better_to_go_back_to_than_nothing():
    rollout = Rollout(CONFIG)
    ill = [replace(each, state=State.SUSPECT) for each in three()]
    rollout.decide(wish("2"), ill, START)
    assert rollout.good == "1"


def test_what_is_lost_meanwhile_is_replaced_with_what_its_zone_knows():
    rollout = finished()
    rollout.decide(wish("2", 4), [*three(), has("r3", zone="b")], START)
    scout = has("n", "2", "a", State.WARMING, START)
    rest = [has("r0"), has("r2"), scout]  # both of zone b were lost
    assert rollout.decide(wish("2", 4), rest, START) == [Add("m", "1", "b")]
    rest.append(has("r4", "1", "b", State.STARTING, START))
    scout = replace(scout, state=State.READY)
    assert rollout.decide(wish("2"), [has("r0"), has("r2"), scout, rest[-1]], START) == []
    later = START + 5 * SECOND
    assert rollout.decide(wish("2"), [has("r0"), has("r2"), scout, rest[-1]], later) == []
    assert rollout.waiting.startswith("r4")


def test_what_is_lost_where_the_new_revision_has_proven_itself_is_replaced_with_it():
    rollout = finished()
    rollout.decide(wish("2"), three(), START)
    rest = [has("n", "2", "a"), has("r1", zone="b")]
    assert rollout.decide(wish("2"), rest, START) == [Add("m", "2", "a")]


def test_zones_stay_even_when_one_is_lost_between_two_newcomers():
    rollout = finished()
    rollout.decide(wish("2", 2), [has("r0"), has("r1", zone="b")], START)
    both = [has("r0"), has("n", "2", "a")]
    assert rollout.decide(wish("2", 2), both, START) == [Add("m", "2", "b")]


def test_a_zone_that_is_not_wished_any_more_is_left_the_same_way():
    made = fleet(4)
    made.want = wish("1", 4, ("a", "c"))
    made.rollout._finished = None
    made.run()
    assert Counter(one.zone for one in made.members()) == {"a": 2, "c": 2}
    rollout = finished()
    moved = [*three()[::2], has("r1", zone="gone"), has("n", zone="b")]
    (step,) = rollout.decide(wish(), moved, START)
    assert step == Remove("r1", "zone gone is not wished any more", urgent=False)


def test_a_lower_count_in_the_middle_takes_the_old_ones():
    rollout = finished()
    rollout.decide(wish("2"), three(), START)
    scout = has("n", "2", "a", State.WARMING, START)
    (step,) = rollout.decide(wish("2", 2), [*three(), scout], START)
    assert step.replica_id in {"r0", "r2"}


def test_a_rollout_waits_for_a_zone_in_which_newcomers_fail():
    rollout = Rollout(RolloutConfig(failures_max=3), good="1")
    broken = has("x", "2", "a", State.DEAD, failed="out of memory")
    (step,) = rollout.decide(wish("2"), [*three(), broken], START)
    assert step == Remove("x", "out of memory", urgent=True)
    assert rollout.decide(wish("2"), three(), START) == []
    assert "zone a, 1 in a row" in rollout.waiting
    assert rollout.decide(wish("2"), three(), START + 10 * SECOND) == [Add("m", "2", "a")]


def test_a_zone_that_is_barred_holds_up_a_move_out_of_another():
    rollout = finished()
    broken = has("x", state=State.DEAD, failed="out of memory")
    rollout.decide(wish(), [*three(), broken], START)
    moving = [has("r1", zone="old")]
    assert rollout.decide(wish(count=1, zones=("a",)), moving, START) == []


# --- anything in any order ------------------------------------------------------------------------

MOVES = st.lists(
    st.tuples(
        st.sampled_from(["ready", "ready", "warm", "fail", "wrong", "die", "ill", "leave", "gone"]),
        st.integers(0, 30),
        st.sampled_from([0, 1, 3, 6, 40]),
    ),
    max_size=60,
)


def disturb(made, move, pick):
    living = sorted(made.replicas.values(), key=lambda one: one.id)
    if not living:
        return
    one = living[pick % len(living)]
    if move == "gone" or (move == "ready" and one.leaving):
        if one.leaving or one.state is State.DEAD:
            del made.replicas[one.id]
    elif one.failed or one.wrong or one.leaving:
        return
    elif move == "ready" and one.state is not State.READY:
        made.turn(one, State.READY)
    elif move == "warm" and one.state is not State.READY:
        made.turn(one, State.WARMING)
    elif move == "fail" and one.state is not State.READY:
        made.turn(one, State.DEAD, failed="exits in a loop")
    elif move == "wrong":
        made.turn(one, State.QUARANTINED, wrong=True)
    elif move == "die":
        made.turn(one, State.DEAD)
    elif move == "ill":
        made.turn(one, State.SUSPECT)
    elif move == "leave":
        one.leaving = True


@settings(max_examples=examples(120))
@given(MOVES, st.integers(1, 5), st.sampled_from(["1", "2"]))
def test_whatever_happens_the_rules_hold_and_in_the_end_it_converges(moves, count, revision):
    made = fleet(count)
    made.want = wish(revision, count)
    for move, pick, pause in moves:
        disturb(made, move, pick)
        made.step()
        made.now += pause * SECOND
    for one in made.members():  # health brings liars to an end: proven honest, or relaunched
        if one.wrong and one.revision == made.target():
            made.turn(one, State.DEAD, wrong=False)
    made.run(rounds=90, pause=20)
    target = made.target()
    made.settled(target)
    assert target == ("1" if made.halts else revision)
    assert len(made.halts) <= 1


@settings(max_examples=examples(60))
@given(MOVES, st.integers(2, 5))
def test_a_bad_revision_meets_one_replica_whatever_else_happens(moves, count):
    made = fleet(count, bad={"2"})
    made.want = wish("2", count)
    calm = [each for each in moves if each[0] in {"ill", "die", "warm"}]
    for move, pick, pause in calm:
        disturb(made, move, pick)
        made.step()
        made.behave()
        made.now += pause * SECOND
    made.run(rounds=60, pause=20)
    assert len(made.halts) == 1
    assert made.added["2"] == 1
    made.settled("1")


@settings(max_examples=examples(60))
@given(MOVES, st.integers(1, 7), st.permutations("abc"))
def test_zones_take_turns_however_slow_their_replicas_are(moves, count, zones):
    made = FakeFleet(Rollout(CONFIG), wish("1", count, tuple(zones)))
    made.run(60)
    made.settled("1")
    made.want = replace(made.want, revision="2")
    calm = [each for each in moves if each[0] in {"ill", "die", "warm", "ready"}]
    for move, pick, pause in [*calm, *[("ready", 0, 3)] * 150]:
        disturb(made, move, pick)
        made.step()
        made.behave()
        assert len(made.half_done()) <= 1
        made.now += pause * SECOND
    made.settled("2")
    assert made.added["2"] == count


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from("123")), max_size=5))
def test_changing_wishes_are_followed(wishes):
    made = fleet()
    for count, revision in wishes:
        made.want, made.lowered = wish(revision, count), True
        made.run(rounds=5)
    made.run(rounds=150)
    made.settled(made.want.revision)


# --- configs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"settle_s": -1}, "rollout.settle_s"),
        ({"settle_s": float("nan")}, "rollout.settle_s"),
        ({"failures_max": 0}, "rollout.failures_max"),
        ({"patience_s": 5.0}, "rollout.patience_s"),
        ({"retry_s": 0}, "rollout.retry_s"),
        ({"retry_max_s": 1.0}, "rollout.retry_max_s"),
    ],
)
def test_a_config_that_cannot_work_names_its_field(values, field):
    with pytest.raises(ConfigError) as caught:
        RolloutConfig(**values)
    assert caught.value.field == field


def test_a_wish_that_cannot_be_met_is_refused():
    for count, zones in ((-1, ZONES), (5_000, ZONES), (1, ()), (1, ("a", "a"))):
        with pytest.raises(ConfigError):
            DeploymentGoal("m", "1", count, zones)
    with pytest.raises(FrozenInstanceError):
        wish().count = 2


# --- refused from outside ------------------------------------------------------------------------


def test_somebody_may_refuse_what_comes_in_and_only_that():
    rollout = Rollout(RolloutConfig(), good="1")
    assert rollout.refuse("2", "inc-000001: it leaks") == Halted("2", "inc-000001: it leaks")
    assert (rollout.refused_revision, rollout.halted) == ("2", "inc-000001: it leaks")
    assert rollout.refuse("2", "again") is None
    assert rollout.refuse("1", "the good one") is None
    assert Rollout(RolloutConfig()).refuse("2", "nothing to go back to") is None
