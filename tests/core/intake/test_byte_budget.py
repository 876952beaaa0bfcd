"""Bytes and requests that a process and its tenants may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.intake.byte_budget import BudgetShortage, ByteBudget, ByteBudgetConfig
from holdfast.core.types import ConfigError

SMALL = ByteBudgetConfig(bytes_max=100, receiving_bytes_max=50, requests_max=10)


def test_a_tenant_has_a_share_of_bytes_and_the_process_the_whole() -> None:
    budget = ByteBudget(SMALL, tenants=3)
    one, two, three = (budget.account(name) for name in ("a", "b", "c"))
    one.begin(50)
    assert one.shortage(1) is BudgetShortage.TENANT
    assert two.shortage(50) is None
    two.begin(40)
    assert three.shortage(10) is None
    assert three.shortage(11) is BudgetShortage.PROCESS
    one.end(50)
    assert one.shortage(50) is None


def test_a_tenant_has_a_share_of_requests() -> None:
    budget = ByteBudget(SMALL, tenants=2)
    one, two = budget.account("a"), budget.account("b")
    for _ in range(5):
        assert one.shortage(0) is None
        one.begin(0)
    assert one.shortage(0) is BudgetShortage.TENANT
    for _ in range(5):
        assert two.shortage(0) is None
        two.begin(0)
    assert budget.account("c").shortage(0) is BudgetShortage.PROCESS


def test_one_tenant_alone_may_have_everything() -> None:
    budget = ByteBudget(SMALL, tenants=1)
    account = budget.account("default")
    account.begin(100)
    assert account.shortage(1) is BudgetShortage.PROCESS
    budget.reconfigure(ByteBudgetConfig(bytes_max=200, receiving_bytes_max=50), 1)
    assert account.shortage(100) is None


def test_bytes_count_when_they_are_here_and_not_when_they_are_promised() -> None:
    budget = ByteBudget(SMALL)
    assert budget.may_receive(50)
    assert budget.may_receive(50), "a promise takes nothing from others"
    budget.received += 30
    assert not budget.may_receive(21)
    assert not budget.receives_too_much
    budget.received += 21
    assert budget.receives_too_much
    budget.held = 101
    assert budget.holds_too_much


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bytes_max", 0),
        ("receiving_bytes_max", -1),
        ("receiving_bytes_max", 1 << 40),
        ("requests_max", 0),
        ("tenant_share", 0.0),
        ("tenant_share", 1.5),
        ("tenant_share", float("nan")),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"budget.{field}"):
        ByteBudgetConfig(**{field: value})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 60)), max_size=60))
def test_the_bounds_hold_for_whoever_asks_first(steps: list[tuple[str, bool, int]]) -> None:
    budget = ByteBudget(SMALL, tenants=3)
    running: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for tenant, begins, size in steps:
        account = budget.account(tenant)
        if begins and size % 2:
            fits = account.shortage(size) is None
            assert (account.admit(size) is None) is fits, "asking and claiming agree"
            if fits:
                running[tenant].append(size)
        elif begins and account.shortage(size) is None:
            account.begin(size)
            running[tenant].append(size)
        elif not begins and running[tenant]:
            account.end(running[tenant].pop())
        assert budget.held == sum(map(sum, running.values())) <= 100
        assert budget.requests == sum(map(len, running.values())) <= 10
        for name, sizes in running.items():
            assert budget.account(name).bytes == sum(sizes) <= 50
            assert budget.account(name).requests == len(sizes) <= 5
