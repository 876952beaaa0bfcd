"""A few hundred cases of the fuzzer that ``make fuzz`` runs ten thousand of."""

import importlib
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"


@pytest.fixture
def fuzzer(monkeypatch):
    monkeypatch.syspath_prepend(str(FUZZ))
    return importlib.import_module("gateway")


@pytest.mark.parametrize(
    "kind",
    ["http", "relay", "bodies", "upstream", "links", "plain", "messages", "forms", "lines"],
)
def test_no_promise_is_broken(fuzzer, kind):
    ran, trouble = fuzzer.run_batch((kind, 0, 120, 7))
    assert trouble == ""
    assert ran >= 100


def test_a_broken_promise_is_found_told_and_can_be_run_again(fuzzer, monkeypatch):
    def broken(draw):
        assert draw.upto(100) < 50, "too much"

    monkeypatch.setitem(fuzzer.KINDS, "http", broken)
    for _ in range(2):
        _, trouble = fuzzer.run_batch(("http", 3, 100, 7))
        assert "too much" in trouble
        assert "--seed 7 --cases 100 --kind http --batch 3" in trouble


def test_the_cases_are_shared_out_in_batches(fuzzer):
    planned = fuzzer.batches(10_000, 0)
    assert sum(cases for _, _, cases, _ in planned) == 10_000
    assert {kind for kind, *_ in planned} == set(fuzzer.KINDS)
    assert all(cases <= fuzzer.BATCH for _, _, cases, _ in planned)
    assert len(set(planned)) == len(planned)
    assert [batch[:3] for batch in fuzzer.batches(300, 5, "relay")] == [
        ("relay", 0, 250),
        ("relay", 1, 50),
    ]
