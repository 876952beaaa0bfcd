"""Which GPUs a replica gets, who holds them, and the reasons of those that get none."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.deploy.gpu_placement import (
    GpuLedger,
    GpuPlacementConfig,
    GpuRequest,
    Overcommit,
    PlacementDevice,
)
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

GIB = 1 << 30
NOW = 1_000 * SECOND
PAIR = GpuRequest(2)


def device(index, *neighbours, **more):
    told = {"name": "NVIDIA Z9", "memory_total": 80 * GIB, "memory_used": GIB // 2, **more}
    linked = frozenset(f"GPU-{each}" for each in neighbours)
    return PlacementDevice(f"GPU-{index}", str(index), neighbours=linked, **told)


def four(**more):
    """Two bridges: 0 to 1, and 2 to 3."""
    return [device(0, 1, **more), device(1, 0, **more), device(2, 3, **more), device(3, 2, **more)]


def a_slice(index, number, gib=10):
    uuid = f"MIG-{index}-{number}"
    told = {"memory_total": gib * GIB, "memory_used": 0, "name": f"{gib}gb", "is_slice": True}
    return PlacementDevice(uuid, f"{index}:{number}", **told)


@pytest.fixture
def ledger():
    return GpuLedger(GpuPlacementConfig())


# --- who gets what --------------------------------------------------------------------------------


def test_two_pairs_fill_four_gpus_and_the_third_waits_with_the_reason(ledger):
    assert ledger.claim("m-1", PAIR, four(), NOW).uuids == ("GPU-0", "GPU-1")
    assert ledger.claim("m-2", PAIR, four(), NOW).uuids == ("GPU-2", "GPU-3")
    third = ledger.claim("m-3", PAIR, four(), NOW)
    assert not third.placed
    assert third.reason == "2 GPUs wanted, 0 of 4 free: m-1 holds 0, 1; m-2 holds 2, 3"
    assert ledger.holders() == {"m-1": ("GPU-0", "GPU-1"), "m-2": ("GPU-2", "GPU-3")}


def test_what_is_released_is_given_to_the_next(ledger):
    ledger.claim("m-1", PAIR, four(), NOW)
    ledger.claim("m-2", PAIR, four(), NOW)
    assert ledger.release("m-1", NOW)
    assert not ledger.release("m-1", NOW)
    assert ledger.claim("m-3", PAIR, four(), NOW).uuids == ("GPU-0", "GPU-1")


def test_neighbours_go_together_and_singles_leave_pairs_whole(ledger):
    one = GpuRequest(1)
    assert ledger.claim("a", one, four(), NOW).uuids == ("GPU-0",)
    assert ledger.claim("b", one, four(), NOW).uuids == ("GPU-1",)  # and not half of 2 and 3
    ledger.release("a", NOW)
    assert ledger.claim("c", PAIR, four(), NOW).uuids == ("GPU-2", "GPU-3")
    crossed = [device(0, 2), device(1, 3), device(2, 0), device(3, 1)]
    assert GpuLedger(ledger.config).claim("d", PAIR, crossed, NOW).uuids == ("GPU-0", "GPU-2")


def test_a_large_host_is_not_searched_set_by_set(ledger):
    host = [device(i, *(j for j in range(64) if j != i and j // 8 == i // 8)) for i in range(64)]
    found = ledger.claim("m-1", GpuRequest(8), host, NOW)
    assert {int(uuid[4:]) // 8 for uuid in found.uuids} == {0}
    assert len(set(found.uuids)) == 8


def test_kinds_are_not_mixed_where_that_can_be(ledger):
    host = [device(0, name="small"), device(1), device(2, name="small")]
    assert ledger.claim("m-1", PAIR, host, NOW).uuids == ("GPU-0", "GPU-2")


def test_a_gpu_that_needs_a_reset_is_taken_last(ledger):
    host = four()
    host[0] = replace(host[0], faulty=True)
    assert ledger.claim("a", PAIR, host, NOW).uuids == ("GPU-2", "GPU-3")
    assert ledger.claim("b", GpuRequest(1), host, NOW).uuids == ("GPU-1",)
    assert ledger.claim("c", GpuRequest(1), host, NOW).uuids == ("GPU-0",)


@pytest.mark.parametrize(
    ("share", "fit"), [(1.0, 1), (0.9, 1), (0.5, 2), (1 / 3, 3), (0.3, 3), (0.1, 10), (0.01, 100)]
)
def test_shares_of_one_device_add_up_to_no_more_than_it(ledger, share, fit):
    request = GpuRequest(1, share)
    placed = [ledger.claim(f"m-{i}", request, [device(0)], NOW).placed for i in range(fit + 1)]
    assert placed == [True] * fit + [False]


def test_those_who_share_are_packed_and_leave_devices_whole(ledger):
    half = GpuRequest(1, 0.5)
    for name in ("a", "b"):
        assert ledger.claim(name, half, four(), NOW).uuids == ("GPU-0",)
    assert ledger.claim("c", half, four(), NOW).uuids == ("GPU-1",)
    assert ledger.claim("d", PAIR, four(), NOW).uuids == ("GPU-2", "GPU-3")
    assert not ledger.claim("e", GpuRequest(1), four(), NOW).placed


# --- others on the host ---------------------------------------------------------------------------


def test_what_others_use_is_left_to_them_and_named(ledger):
    host = four()
    host[0] = replace(host[0], memory_used=31 * GIB, processes=(4711,))
    assert ledger.claim("m-1", PAIR, host, NOW).uuids == ("GPU-2", "GPU-3")
    told = ledger.claim("m-2", PAIR, host, NOW).reason
    assert told == (
        "2 GPUs wanted, 1 of 4 free: m-1 holds 2, 3; GPU 0: 31.0 GiB used by others (process 4711)"
    )


@pytest.mark.parametrize(
    ("total", "used", "share", "free"),
    [
        (80 * GIB, 8 * GIB, 1.0, True),  # a tenth: engines leave it
        (80 * GIB, 8 * GIB + 1, 1.0, False),
        (4 * GIB, GIB, 1.0, True),  # a laptop's desktop
        (4 * GIB, GIB + 1, 1.0, False),
        (80 * GIB, 40 * GIB, 0.5, True),
        (80 * GIB, 41 * GIB, 0.5, False),
        (80 * GIB, None, 1.0, True),  # unknown is not full
        (None, 2 * GIB, 1.0, False),
        (None, None, 1.0, True),
    ],
)
def test_how_much_others_may_use_of_a_free_device(ledger, total, used, share, free):
    host = [device(0, memory_total=total, memory_used=used)]
    assert ledger.claim("m-1", GpuRequest(1, share), host, NOW).placed is free


def test_the_memory_of_its_own_holder_does_not_speak_against_a_shared_device(ledger):
    half = GpuRequest(1, 0.5)
    ledger.claim("m-1", half, [device(0)], NOW)
    full = [device(0, memory_used=40 * GIB)]
    assert ledger.claim("m-2", half, full, NOW).placed


def test_a_host_without_enough_says_so(ledger):
    assert ledger.claim("m-1", PAIR, [], NOW).reason == "2 GPUs wanted, and this host has none"
    told = ledger.claim("m-1", GpuRequest(8), four(), NOW).reason
    assert told == "8 GPUs wanted, and this host has 4 that fit"


# --- slices and sizes -----------------------------------------------------------------------------


def test_a_slice_is_a_device_and_many_slices_are_no_larger_one(ledger):
    host = [device(0), a_slice(1, 0), a_slice(1, 1)]
    whole = ledger.claim("a", GpuRequest(1), host, NOW)
    assert whole.uuids == ("GPU-0",)  # how much it needs is not known: the largest fits
    assert ledger.claim("b", GpuRequest(1), host, NOW).uuids == ("MIG-1-0",)
    assert ledger.claim("c", GpuRequest(1), host, NOW).uuids == ("MIG-1-1",)
    told = ledger.claim("d", PAIR, host, NOW).reason
    assert told == (
        "2 GPUs wanted, and this host has 1 that fit: of 2 MIG slices a process can use one"
    )


def test_the_smallest_that_is_large_enough_is_taken_where_the_need_is_known(ledger):
    host = [device(0), a_slice(1, 0, 10), a_slice(1, 1, 40)]
    needs = GpuRequest(1, memory_bytes=20 * GIB)
    assert ledger.claim("a", needs, host, NOW).uuids == ("MIG-1-1",)
    assert ledger.claim("b", needs, host, NOW).uuids == ("GPU-0",)
    told = ledger.claim("c", GpuRequest(1, memory_bytes=100 * GIB), host, NOW).reason
    assert told == (
        "1 GPU wanted, and this host has 0 that fit: GPU 0, 1:0, 1:1 less than 100.0 GiB"
    )


# --- those who ran beside others before -----------------------------------------------------------


def test_one_that_may_overcommit_shares_the_least_loaded_and_says_so(ledger):
    eager = GpuRequest(1, overcommit=Overcommit.ANYBODY)
    host = [device(0), device(1, memory_used=70 * GIB)]
    first = ledger.claim("m-1", eager, host, NOW)
    assert (first.uuids, first.overcommits) == (("GPU-0",), False)
    second = ledger.claim("m-2", eager, host, NOW)
    assert (second.uuids, second.overcommits) == (("GPU-1",), True)
    assert not ledger.has_room(eager, host, NOW)  # it would start, and a rollout need not
    third = ledger.claim("m-3", eager, host, NOW)
    assert (third.uuids, third.overcommits) == (("GPU-0",), True)
    assert third.reason.startswith("on GPU 0 beside others: 1 GPU wanted, 0 of 2 free")
    many = GpuRequest(3, overcommit=Overcommit.ANYBODY)
    assert not ledger.claim("m-4", many, host, NOW).placed


def test_one_that_may_overcommit_waits_while_the_driver_gives_memory_back(ledger):
    eager = GpuRequest(1, overcommit=Overcommit.ANYBODY)
    ledger.claim("m-1", eager, [device(0), device(1)], NOW)
    ledger.claim("m-2", eager, [device(0), device(1)], NOW)
    ledger.release("m-1", NOW)
    busy = [device(0, memory_used=70 * GIB), device(1, memory_used=70 * GIB)]
    assert not ledger.would_place(eager, busy, NOW).placed
    beside = ledger.would_place(eager, busy, NOW + 60 * SECOND)
    assert (beside.uuids, beside.overcommits) == (("GPU-0",), True)  # then it is a stranger's
    freed = [device(0), device(1, memory_used=70 * GIB)]
    assert ledger.would_place(eager, freed, NOW).uuids == ("GPU-0",)


def test_one_that_minds_only_replicas_starts_beside_strangers_and_not_beside_those(ledger):
    host = [device(0, memory_used=70 * GIB)]
    hasty = GpuRequest(1, overcommit=Overcommit.OTHERS)
    assert not ledger.has_room(GpuRequest(1), host, NOW)
    assert ledger.has_room(hasty, host, NOW)
    first = ledger.claim("m-1", hasty, host, NOW)
    assert (first.uuids, first.overcommits) == (("GPU-0",), True)
    assert first.reason == (
        "on GPU 0 beside others: 1 GPU wanted, 0 of 1 free: GPU 0: 70.0 GiB used by others"
    )
    assert not ledger.has_room(hasty, host, NOW)
    assert not ledger.claim("m-2", hasty, host, NOW).placed


# --- what is passed on ----------------------------------------------------------------------------


def test_what_is_released_for_an_heir_waits_for_it_and_not_for_ever(ledger):
    host = [device(0)]
    one = GpuRequest(1)
    ledger.claim("m-1", one, host, NOW)
    ledger.release("m-1", NOW, heir="m/2")
    told = ledger.would_place(one, host, NOW).reason
    assert told == "1 GPU wanted, 0 of 1 free: GPU 0 kept for a replacement"
    assert not ledger.has_room(one, host, NOW)
    assert ledger.has_room(one, host, NOW, heir="m/2")
    assert ledger.would_place(one, host, NOW + 60 * SECOND).placed
    assert ledger.claim("m-2", one, host, NOW, heir="m/2").placed
    ledger.release("m-2", NOW)
    assert ledger.would_place(one, host, NOW).placed  # it was for one heir, once


def test_there_is_room_while_the_driver_gives_memory_back(ledger):
    one = GpuRequest(1)
    ledger.claim("m-1", one, [device(0)], NOW)
    assert not ledger.has_room(one, [device(0)], NOW)
    ledger.release("m-1", NOW)
    busy = [device(0, memory_used=70 * GIB)]
    assert not ledger.would_place(one, busy, NOW).placed
    assert ledger.has_room(one, busy, NOW)
    assert not ledger.has_room(one, busy, NOW + 60 * SECOND)  # then somebody else has it


def test_what_an_earlier_control_gave_is_taken_as_it_is(ledger):
    ledger.adopt("m-1", ["GPU-0", "GPU-1"], 1.0)
    assert ledger.held("m-1") == ("GPU-0", "GPU-1")
    assert ledger.claim("m-2", PAIR, four(memory_used=0), NOW).uuids == ("GPU-2", "GPU-3")
    assert ledger.held("m-9") == ()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: GpuRequest(0), "gpus.count"),
        (lambda: GpuRequest(65), "gpus.count"),
        (lambda: GpuRequest(1, 0.0), "gpus.share"),
        (lambda: GpuRequest(1, 1.1), "gpus.share"),
        (lambda: GpuPlacementConfig(foreign_share=1.5), "gpus.foreign_share"),
        (lambda: GpuPlacementConfig(foreign_bytes=-1), "gpus.foreign_bytes"),
        (lambda: GpuPlacementConfig(return_s=-1), "gpus.return_s"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(make, field):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


# --- whatever happens -----------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(
    st.integers(1, 8),
    st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=28),
    st.integers(1, 5),
    st.sets(st.integers(0, 7)),
)
def test_neighbours_are_chosen_wherever_there_are_enough(count, links, wanted, busy):
    pairs = {frozenset(pair) for pair in links if pair[0] != pair[1]}
    linked = {i: {j for j in range(8) if frozenset((i, j)) in pairs} for i in range(8)}
    host = [device(i, *linked[i], memory_used=70 * GIB if i in busy else 0) for i in range(count)]
    free = [i for i in range(count) if i not in busy]
    found = GpuLedger(GpuPlacementConfig()).claim("m-1", GpuRequest(wanted), host, NOW)
    assert found.placed is (len(free) >= wanted)
    if found.placed:
        chosen = [int(uuid[4:]) for uuid in found.uuids]
        assert set(chosen) <= set(free)

        def inside(members):
            return sum(frozenset(pair) in pairs for pair in combinations(members, 2))

        assert inside(chosen) == max(inside(each) for each in combinations(free, wanted))


class Host(RuleBasedStateMachine):
    """Replicas come, end and are adopted on a host whose other users come and go."""

    def __init__(self):
        super().__init__()
        self.ledger = GpuLedger(GpuPlacementConfig())
        self.now = NOW
        self.foreign = dict.fromkeys(range(6), 0)
        self.running = {}  # id: (uuids, share)
        self.count = 0

    def host(self):
        whole = [device(i, i ^ 1, memory_used=self.foreign[i]) for i in range(6)]
        return [*whole, a_slice(6, 0), a_slice(6, 1)]

    @rule(wanted=st.integers(1, 4), share=st.sampled_from([1.0, 0.5, 0.3]), heir=st.booleans())
    def start(self, wanted, share, heir):
        self.count += 1
        request = GpuRequest(wanted, share)
        said = self.ledger.would_place(request, self.host(), self.now, "h" if heir else "")
        name = f"m-{self.count}"
        found = self.ledger.claim(name, request, self.host(), self.now, "h" if heir else "")
        assert found == said
        if found.placed:
            assert len(set(found.uuids)) == wanted
            for uuid in found.uuids:
                alone = not any(uuid in uuids for uuids, _ in self.running.values())
                if alone and uuid.startswith("GPU"):
                    assert self.foreign[int(uuid[4:])] <= max(0.1, 1 - share) * 80 * GIB
            self.running[name] = (found.uuids, share)
        else:
            assert found.reason
            assert not self.ledger.held(name)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100), heir=st.sampled_from(["", "h"]))
    def end(self, which, heir):
        name = sorted(self.running)[which % len(self.running)]
        uuids, _ = self.running.pop(name)
        assert self.ledger.release(name, self.now, heir)
        assert self.ledger.has_room(
            GpuRequest(1, 0.01), [d for d in self.host() if d.uuid in uuids], self.now, heir
        )

    @rule(which=st.integers(0, 5), gib=st.integers(0, 80))
    def others(self, which, gib):
        self.foreign[which] = gib * GIB

    @rule(seconds=st.integers(1, 100))
    def wait(self, seconds):
        self.now += seconds * SECOND

    @rule()
    def restart_control(self):
        self.ledger = GpuLedger(GpuPlacementConfig())
        for name, (uuids, share) in self.running.items():
            self.ledger.adopt(name, uuids, share)

    @invariant()
    def nobody_shares_what_is_exclusive(self):
        for each in self.host():
            shares = [share for uuids, share in self.running.values() if each.uuid in uuids]
            assert sum(shares) <= 1 + 1e-9, (each.uuid, shares)

    @invariant()
    def the_ledger_knows_who_runs(self):
        assert self.ledger.holders() == {name: uuids for name, (uuids, _) in self.running.items()}


TestHost = Host.TestCase
TestHost.settings = settings(max_examples=examples(100), stateful_step_count=30)
