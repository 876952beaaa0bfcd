"""Who may have how much of what may run: equal shares, and nothing is wasted."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.batch.fair_shares import fair_shares

WANTS = st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=8)


@given(st.integers(-5, 200), WANTS, st.integers(0, 100))
def test_nobody_gets_more_than_it_wants_and_nothing_is_left_that_somebody_wants(total, wants, turn):
    shares = fair_shares(total, wants, turn)
    assert shares.keys() == wants.keys()
    assert all(0 <= shares[name] <= want for name, want in wants.items())
    assert sum(shares.values()) == min(max(0, total), sum(wants.values()))


@given(st.integers(0, 200), WANTS, st.integers(0, 100))
def test_whoever_got_less_than_it_wants_got_no_less_than_the_others(total, wants, turn):
    shares = fair_shares(total, wants, turn)
    for name, want in wants.items():
        if shares[name] < want:
            assert shares[name] >= max(shares.values(), default=0) - 1


def test_what_cannot_be_divided_goes_round():
    got = [fair_shares(1, {"a": 5, "b": 5}, turn) for turn in range(4)]
    assert [one["a"] for one in got] == [1, 0, 1, 0]
