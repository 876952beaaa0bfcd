from random import Random

import pytest

from holdfast.core.plan.fleet_simulation import simulate_fleet
from holdfast.core.plan.redundancy import Redundancy, availability
from holdfast.core.types import ConfigError


def run(seed=1, **changed):
    usual = {"need": 8, "zone_sizes": (10,), "up": 99.0, "down": 1.0}
    usual |= {"window": 730.0, "target": 0.999, "events": 60_000}
    return simulate_fleet(Random(seed), **(usual | changed))


@pytest.mark.parametrize(("need", "size"), [(8, 8), (8, 9), (8, 10), (20, 21)])
def test_the_long_run_is_binomial(need, size):
    """Within four standard errors of the formula; the error itself is checked below."""
    found = run(need=need, zone_sizes=(size,))
    formula = availability(need, size - need, 0.99)
    assert abs(found.availability - formula) < 4 * found.error + 1e-9
    assert found.error < 0.01


def test_zones_that_fail_whole_follow_the_mixture():
    found = run(zone_sizes=(4, 4, 4), zone_up=990.0, zone_down=10.0)
    formula = Redundancy(8, 0.99, 3, 0.99).availability(4)
    assert abs(found.availability - formula) < 4 * found.error


def test_the_error_tells_how_far_seeds_lie_apart():
    runs = [run(seed, zone_sizes=(9,), events=20_000) for seed in range(20)]
    mean = sum(one.availability for one in runs) / 20
    spread = (sum((one.availability - mean) ** 2 for one in runs) / 19) ** 0.5
    told = sum(one.error for one in runs) / 20
    assert 0.5 * spread < told < 2.0 * spread


def test_an_average_that_is_met_is_missed_in_many_a_window():
    found = run(need=20, zone_sizes=(22,), up=199.0)
    assert found.windows > 100
    assert 0.5 < found.windows_met < 1.0
    assert run(need=1, zone_sizes=(9,)).windows_met == 1.0


def test_the_same_seed_gives_the_same_past():
    assert run(7) == run(7)


@pytest.mark.parametrize("change", [{"up": 0.0}, {"down": -1.0}, {"window": 0.0}, {"events": 0}])
def test_what_cannot_be_is_refused(change):
    with pytest.raises(ConfigError):
        run(**change)
