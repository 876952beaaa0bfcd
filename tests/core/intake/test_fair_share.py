"""An amount that tenants share: one alone may have all, and no tenant is kept out by others."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.intake.fair_share import FairShare

MOST = 12
TENANTS = "abc"


def ask(share: FairShare, tenant: str, size: int = 1) -> bool:
    """Take as an owner does: whoever is named gives one of its own up, until it fits or may not."""
    while not share.fits(size):
        loser = share.loser(tenant, size)
        if loser == tenant:
            return False
        share.give_back(loser)
    share.take(tenant, size)
    return True


def test_who_is_alone_may_have_all_and_no_more() -> None:
    share = FairShare(MOST)
    assert [ask(share, "a") for _ in range(MOST + 1)] == [True] * MOST + [False]
    assert share.held == {"a": MOST}


def test_who_comes_gets_as_much_as_whoever_has_most_keeps() -> None:
    share = FairShare(MOST)
    for _ in range(MOST):
        ask(share, "a")
    assert [ask(share, "b") for _ in range(8)] == [True] * 6 + [False] * 2
    assert [ask(share, "c") for _ in range(6)] == [True] * 4 + [False] * 2
    assert share.held == {"a": 4, "b": 4, "c": 4}
    assert not ask(share, "a"), "nobody takes a place from whoever has no more than itself"


def test_what_was_never_there_fits_nobody() -> None:
    share = FairShare(MOST)
    assert share.loser("a", MOST + 1) == "a"
    assert not ask(share, "a", MOST + 1)
    assert share.total == 0


STEPS = st.tuples(st.sampled_from(TENANTS), st.booleans(), st.integers(1, 4))


@given(st.lists(STEPS, max_size=80))
def test_the_sum_is_kept_and_nobody_below_its_share_is_refused(steps) -> None:
    share = FairShare(MOST)
    for tenant, asks, size in steps:
        held = share.held.get(tenant, 0)
        if asks:
            others = sum(1 for name in share.held if name != tenant)
            admitted = ask(share, tenant, size)
            assert admitted or (held + size) * (others + 1) > MOST, (held, size, share.held)
            assert share.held.get(tenant, 0) == held + size * admitted
        elif held >= size:
            share.give_back(tenant, size)
        assert share.total == sum(share.held.values()) <= MOST
        assert all(amount > 0 for amount in share.held.values())
