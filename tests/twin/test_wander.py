"""How an engine's speed varies is found from measurements, and is not where it does not."""

from dataclasses import replace

import pytest

from holdfast.twin.fit import FitConfig, fit_engine
from holdfast.twin.replay import replay
from holdfast.twin.wander import with_wander
from twin_data import LAW, measured

HOSTS = {f"llama-{number}": "host" for number in (1, 2, 3)}
RATE = 10.0  # a batch of several at each replica


def found(law, *, hosts=None, count=900, told_by=LAW):
    seen = measured(law, RATE, count, hosts=hosts)
    steady = replace(told_by, wander=0.0, wander_shared=False)
    return with_wander(steady, seen, replay(seen, steady, hosts), hosts)


@pytest.mark.parametrize("sigma", [0.15, 0.3])
def test_a_speed_that_varies_by_replica_is_found_with_its_spread(sigma):
    law = found(replace(LAW, wander=sigma), hosts=HOSTS)
    assert law.wander == pytest.approx(sigma, rel=0.4)
    assert not law.wander_shared


def test_a_speed_that_all_replicas_of_a_host_have_is_the_host_s():
    law = found(replace(LAW, wander=0.3, wander_shared=True), hosts=HOSTS)
    assert law.wander == pytest.approx(0.3, rel=0.3)
    assert law.wander_shared


def test_where_hosts_are_not_known_it_is_each_replica_s():
    law = found(replace(LAW, wander=0.3))
    assert law.wander == pytest.approx(0.3, rel=0.3)
    assert not law.wander_shared


def test_an_engine_of_one_speed_has_none():
    assert found(LAW, hosts=HOSTS).wander == 0.0


def test_a_fit_finds_both_the_law_and_how_it_varies_and_neither_where_there_is_none():
    quick = FitConfig(calls_max=60)
    varying = fit_engine(measured(replace(LAW, wander=0.3), RATE, 400), batch_max=8, config=quick)
    assert varying.law.wander == pytest.approx(0.3, rel=0.4)
    assert varying.law.step_ms == pytest.approx(LAW.step_ms, rel=0.3)
    steady = fit_engine(measured(LAW, RATE, 400), batch_max=8, config=quick)
    assert steady.law.wander <= 0.06


def test_too_few_answers_tell_nothing():
    assert found(replace(LAW, wander=0.3), count=12).wander == 0.0
    assert with_wander(LAW, [], []).wander == 0.0
