"""Connections that have brought no request: who goes, and who stays."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.intake.newcomers import AddressCounts, Newcomers, longest_waiting
from holdfast.core.types import SECOND


def test_the_oldest_of_an_address_goes_for_the_next_of_it() -> None:
    newcomers: Newcomers[int] = Newcomers(100, 2, SECOND)
    assert [newcomers.came(each, "a", each * SECOND) for each in range(4)] == [None, None, 0, 0]
    newcomers.left(0)
    assert newcomers.came(9, "b", 9 * SECOND) is None, "another address is not concerned"
    assert newcomers.of_address("a") == 3
    assert newcomers.came(10, "a", 10 * SECOND) == 1


def test_of_all_addresses_the_oldest_goes() -> None:
    newcomers: Newcomers[int] = Newcomers(3, 2, SECOND)
    said = [newcomers.came(each, f"a{each}", each * SECOND) for each in range(5)]
    assert said == [None, None, None, 0, 0]


def test_nobody_goes_within_a_moment_of_coming() -> None:
    newcomers: Newcomers[int] = Newcomers(2, 2, SECOND)
    assert [newcomers.came(each, "a", 5 + each) for each in range(100)] == [None] * 100
    assert newcomers.oldest(10) is None
    assert newcomers.oldest(5 + SECOND) == 0


def test_without_bounds_nobody_goes() -> None:
    newcomers: Newcomers[int] = Newcomers(0, 0, 0)
    assert [newcomers.came(each, "a", each) for each in range(100)] == [None] * 100
    assert newcomers.oldest(0) == 0
    newcomers.left(5)
    newcomers.left(5)
    assert len(newcomers) == 99


@given(
    st.lists(
        st.tuples(st.sampled_from(["came", "left", "wait"]), st.integers(0, 3), st.integers(0, 20)),
        max_size=80,
    )
)
def test_counts_agree_and_whoever_goes_is_old_enough(steps: list[tuple[str, int, int]]) -> None:
    newcomers: Newcomers[int] = Newcomers(6, 3, 10)
    model: dict[int, tuple[int, str]] = {}
    now = 0
    for number, (what, place, which) in enumerate(steps):
        if what == "wait":
            now += which
        elif what == "left":
            newcomers.left(which)
            model.pop(which, None)
        else:
            address = f"a{place}"
            model[number + 100] = (now, address)
            goes = newcomers.came(number + 100, address, now)
            if goes is not None:
                since, where = model.pop(goes)
                assert now - since >= 10
                assert where == address or len(model) + 1 > 6
                newcomers.left(goes)
        assert len(newcomers) == len(model)
        for place_ in range(4):
            there = sum(1 for _, where in model.values() if where == f"a{place_}")
            assert newcomers.of_address(f"a{place_}") == there


def test_the_first_table_with_somebody_old_enough_decides() -> None:
    heads, bodies, idle = {"h": 90}, {"b": 50, "b2": 60}, {"i": 0}
    assert longest_waiting((heads, bodies, idle), 100, 20) == "b"
    assert longest_waiting((heads, bodies, idle), 100, 10) == "h"
    assert longest_waiting((heads, {}), 100, 20) is None


def test_connections_are_counted_by_address_and_nothing_is_kept_of_those_that_left() -> None:
    counts = AddressCounts()
    assert [counts.came("a"), counts.came("b"), counts.came("a")] == [1, 1, 2]
    counts.left("a")
    assert counts.came("a") == 2
    for address in ("a", "a", "b"):
        counts.left(address)
    assert counts._open == {}
    assert counts.came("a") == 1
