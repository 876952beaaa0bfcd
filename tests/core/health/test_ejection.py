from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.health.ejection import EjectionConfig, Panic, may_eject, panic
from holdfast.core.health.health import HealthConfig, ReplicaHealth, Signal
from holdfast.core.types import SECOND, ConfigError, State
from sampling import examples

CONFIG = EjectionConfig()
PERIOD = 6 * SECOND


def pool(count: int) -> list[ReplicaHealth]:
    members = [ReplicaHealth(HealthConfig(), f"r{i}", "m", 0, Random(i)) for i in range(count)]
    for member in members:
        member.handle(Signal.LOADED, 0)
        member.handle(Signal.CANARY_PASS, 0)
    return members


def stall(members: list[ReplicaHealth], *numbers: int) -> None:
    for number in numbers:
        members[number].handle(Signal.STALLED, 1)


def lie(member: ReplicaHealth) -> None:
    member.handle(Signal.CANARY_WRONG, 1)
    member.handle(Signal.CANARY_WRONG, 1)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_bound_that_keeps_nobody_is_refused(share):
    with pytest.raises(ConfigError, match=r"ejection\.share_max: is .*keep somebody"):
        EjectionConfig(share_max=share)


@pytest.mark.parametrize(("count", "bound"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4)])
def test_at_most_the_floor_of_half_may_be_out(count, bound):
    members = pool(count)
    out = 0
    for member in members:
        if may_eject(CONFIG, members, member):
            member.handle(Signal.STALLED, 1)
            out += 1
    assert out == bound


def test_a_decision_says_how_many_are_out_and_how_many_may_be():
    members = pool(4)
    assert may_eject(CONFIG, members, members[0]).reason == "0 of 4 out on suspicion, 2 may be"
    stall(members, 0, 1)
    refusal = may_eject(CONFIG, members, members[2])
    assert not refusal
    assert refusal.reason == "2 of 4 are out on suspicion already and at most 2 may be"


def test_who_is_out_already_may_stay_out():
    members = pool(2)
    stall(members, 0)
    assert may_eject(CONFIG, members, members[0]).reason == "r0 is out already"


def test_the_dead_count_neither_as_members_nor_as_ejected():
    members = pool(8)
    for number in range(4):
        members[number].handle(Signal.EXITED, 1)
    stall(members, 4)
    assert may_eject(CONFIG, members, members[5])
    stall(members, 5)
    assert not may_eject(CONFIG, members, members[6])


def test_liars_and_other_revisions_do_not_use_up_the_bound_nor_raise_it():
    members = pool(6)
    lie(members[0])
    members[1].handle(Signal.WRONG_REVISION, 1)
    stall(members, 2, 3)
    assert not may_eject(CONFIG, members, members[4])


@pytest.mark.parametrize("signals", [[], [Signal.DRAIN], [Signal.STOP], [Signal.RELAUNCH]])
def test_who_does_not_serve_is_no_member(signals):
    members = pool(3)
    absent = ReplicaHealth(HealthConfig(), "r9", "m", 0, Random(9))
    for signal in signals:
        absent.handle(signal, 0)
    stall(members, 0)
    assert not may_eject(CONFIG, [*members, absent], members[1])


def test_a_share_is_not_lost_to_rounding():
    members = [
        SimpleNamespace(state=State.READY, on_suspicion=i < 28, held=False) for i in range(100)
    ]
    assert may_eject(EjectionConfig(share_max=0.29), members, members[99])


# --- panic ---------------------------------------------------------------------------------------


def test_within_the_bound_there_is_no_panic():
    members = pool(4)
    stall(members, 0, 1)
    assert panic(CONFIG, members) == Panic(False, (), "within the bound")
    assert panic(CONFIG, []) == Panic(False, (), "within the bound")


def test_a_held_ejection_beyond_the_bound_makes_the_pool_fail_open():
    members = pool(4)
    stall(members, 0, 1)
    members[2].handle(Signal.BOUND_HELD, 2)
    state = panic(CONFIG, members)
    assert state.active
    assert state.readmitted == ("r0", "r1")
    assert "2 of 4 out on suspicion and 1 more due, with a bound of 2" in state.reason


def test_a_panic_ends_when_the_held_one_is_well_again():
    members = pool(4)
    stall(members, 0, 1)
    members[2].handle(Signal.BOUND_HELD, 2)
    members[2].handle(Signal.CANARY_PASS, 3)
    members[2].handle(Signal.CANARY_PASS, 4)
    assert not panic(CONFIG, members).active


def test_when_the_well_ones_die_the_suspects_come_back():
    members = pool(4)
    stall(members, 0, 1)
    members[2].handle(Signal.EXITED, 2)
    state = panic(CONFIG, members)
    assert state.active
    assert state.readmitted == ("r0", "r1")


def test_no_panic_brings_back_the_dead_the_liars_and_the_other_revisions():
    members = pool(6)
    members[0].handle(Signal.EXITED, 1)
    lie(members[1])
    members[2].handle(Signal.WRONG_REVISION, 1)
    stall(members, 3)
    for number in (4, 5):
        members[number].handle(Signal.BOUND_HELD, 2)
    state = panic(CONFIG, members)
    assert state.active
    assert state.readmitted == ("r3",)
    assert [m.share(2, panic=True) > 0 for m in members] == [False, False, False, True, True, True]


def test_doubtful_canaries_bring_their_victims_back_though_the_bound_is_kept():
    members = pool(4)
    stall(members, 0, 1)
    state = panic(CONFIG, members, doubtful=True)
    assert state.readmitted == ("r0", "r1")
    assert state.reason.startswith("the canaries are doubtful: 2 of 4")


def test_doubt_without_victims_is_no_panic():
    assert not panic(CONFIG, pool(4), doubtful=True).active


def test_doubt_beyond_the_bound_tells_of_the_bound():
    members = pool(2)
    stall(members, 0)
    members[1].handle(Signal.BOUND_HELD, 1)
    assert "failing open" in panic(CONFIG, members, doubtful=True).reason


# --- any pool, any history -----------------------------------------------------------------------

SUSPICIONS = (Signal.STALLED, Signal.CANARY_FAIL, Signal.PASSIVE_FAILING, Signal.NO_SUCCESS)
FACTS = (Signal.EXITED, Signal.WRONG_REVISION, Signal.CANARY_WRONG, Signal.REFUSED, Signal.DRAIN)
RECOVERY = (Signal.CANARY_PASS, Signal.RELAUNCH, Signal.LOADED)


@given(
    count=st.integers(1, 9),
    steps=st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(SUSPICIONS * 2 + FACTS + RECOVERY)),
        max_size=60,
    ),
)
@settings(max_examples=examples(60))
def test_suspicion_never_takes_out_more_than_half_of_those_who_could_serve(count, steps):
    members = pool(count)
    for now, (number, asked) in enumerate(steps):
        member, signal = members[number % count], asked
        ejects = member.would_become(signal) is State.QUARANTINED
        if ejects and member.state is not State.QUARANTINED and not member.would_be_firm(signal):
            serving = [m for m in members if m.state in (State.READY, State.SUSPECT)]
            out = [m for m in members if m.on_suspicion]
            allowed = may_eject(CONFIG, members, member)
            assert bool(allowed) == (len(out) + 1 <= (len(serving) + len(out)) // 2)
            if not allowed:
                signal = Signal.BOUND_HELD
        member.handle(signal, now)
        state = panic(CONFIG, members)
        able = [m for m in members if m.state in (State.READY, State.SUSPECT) or m.on_suspicion]
        routable = [m for m in members if m.share(now, panic=state.active) > 0]
        assert len(routable) * 2 >= len(able)  # at least half of those who could serve, do
        assert not any(m.never_readmit_by_panic for m in routable)
        if not state.active:
            assert sum(m.on_suspicion for m in members) <= len(able) // 2
