from math import inf, nan

import pytest

from holdfast.core.plan import cost
from holdfast.core.plan.cost import (
    DIRECT,
    NOBODY,
    Key,
    Ledger,
    Line,
    ModelPrice,
    Prices,
    Running,
    Use,
)
from holdfast.core.types import ConfigError

A = Key("a", "m", DIRECT, Use.USEFUL)
B = Key("b", "m", "auto", Use.USEFUL)
LOST = Key("a", "m", DIRECT, Use.RETRY)


def ledger(gpus=1, **price):
    return Ledger(Prices("EUR", 4.0, {"m": ModelPrice(gpus, **price)}))


def test_busy_seconds_are_shared_out_by_tokens_and_an_answers_token_weighs_more():
    book = ledger()
    book.look(10.0, [Running("m", busy_s=10.0)], {A: (100, 0), B: (0, 25), LOST: (200, 0)})
    assert book.lines[A].gpu_s == pytest.approx(2.5)
    assert book.lines[B].gpu_s == pytest.approx(2.5)  # 25 × 4 weigh as much as 100
    assert book.lines[LOST].gpu_s == pytest.approx(5.0)
    assert (book.lines[B].input_tokens, book.lines[B].output_tokens) == (0, 25)


def test_all_seconds_of_all_gpus_are_somewhere():
    book = ledger(gpus=4)
    book.look(10.0, [Running("m", busy_s=3.0), Running("m", starting=True)], {A: (10, 10)})
    book.look(5.0, [Running("m"), Running("m", busy_s=5.0)], {A: (10, 10)})
    spent = book.seconds()
    assert spent["m", "useful"] == pytest.approx(12.0)
    assert spent["m", "idle"] == pytest.approx(4 * (7.0 + 5.0))
    assert spent["m", "starting"] == pytest.approx(40.0)
    assert spent["m", "under_way"] == pytest.approx(20.0)
    assert sum(spent.values()) == pytest.approx(4 * (20.0 + 10.0))
    assert book.hours["m"].all_s == pytest.approx(120.0)


def test_seconds_of_a_long_answer_wait_for_its_tokens():
    book = ledger()
    for _ in range(5):
        book.look(2.0, [Running("m", busy_s=2.0)], {})
    assert book.hours["m"].waiting_s == pytest.approx(10.0)
    book.look(2.0, [Running("m", busy_s=2.0)], {A: (70, 9)})
    assert book.lines[A].gpu_s == pytest.approx(12.0)
    assert book.hours["m"].waiting_s == 0


def test_counters_are_told_as_they_stand_and_only_what_is_new_is_booked():
    book = ledger()
    for total in (10, 10, 25):
        book.look(1.0, [Running("m", busy_s=1.0)], {A: (total, 0)})
    assert book.lines[A] == Line(25, 0, pytest.approx(3.0))


def test_whoever_counts_from_the_beginning_again_costs_nothing_for_it():
    book = ledger()
    book.look(1.0, [], {A: (100, 10)})
    book.look(1.0, [], {A: (5, 1)})
    book.look(1.0, [], {A: (8, 2)})
    assert (book.lines[A].input_tokens, book.lines[A].output_tokens) == (103, 11)


def test_a_replica_cannot_be_busy_for_longer_than_it_is_there():
    book = ledger()
    book.look(2.0, [Running("m", busy_s=60.0), Running("m", busy_s=-1.0)], {A: (1, 0)})
    assert book.lines[A].gpu_s == pytest.approx(2.0)
    assert book.hours["m"].idle_s == pytest.approx(2.0)


def test_tokens_of_a_model_without_replicas_cost_no_seconds():
    book = ledger()
    book.look(1.0, [], {A: (70, 9)})
    assert book.lines[A] == Line(70, 9, 0.0)
    assert book.seconds() == {("m", "useful"): 0.0}


def test_prices_make_amounts():
    book = ledger(gpu_hour=3.6, input_million=2.0, output_million=8.0)
    assert book.gpu_cost("m", 1000.0) == pytest.approx(1.0)
    assert book.charge("m", Line(1_000_000, 500_000)) == pytest.approx(6.0)
    assert book.gpu_cost("another", 1000.0) == 0.0
    assert book.charge("another", Line(10, 10)) == 0.0


def test_there_are_only_so_many_lines(monkeypatch):
    monkeypatch.setattr(cost, "LINES_MAX", 2)
    book = ledger()
    tokens = {Key(name, "m", DIRECT, Use.USEFUL): (1, 0) for name in "abcd"}
    book.look(1.0, [Running("m", busy_s=1.0)], tokens)
    assert book.lines[Key(NOBODY, "m", NOBODY, Use.USEFUL)].input_tokens == 2
    assert len(book.lines) == 3
    assert sum(line.gpu_s for line in book.lines.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: ModelPrice(0),
        lambda: ModelPrice(gpu_hour=-1.0),
        lambda: ModelPrice(input_million=inf),
        lambda: ModelPrice(output_million=nan),
        lambda: Prices(output_weight=0.0),
        lambda: ledger().look(-1.0, [], {}),
    ],
)
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(ConfigError):
        bad()
