import pytest

from holdfast.core.plan.redundancy import Redundancy, zone_availability
from holdfast.core.plan.regions import RegionMode, Regions, compare_regions
from holdfast.core.types import ConfigError

FLEET = Redundancy(20, 0.995)


def test_a_standby_region_of_twenty_has_the_published_price():
    single, standby, _ = compare_regions(FLEET, 0, Regions(0.9995), 2, 2.0)
    assert standby.monthly_cost - single.monthly_cost == pytest.approx(29_200.0)


def test_regions_without_lag_are_zones_that_hold_everything():
    """Two regions of 23 that all serve are the published mixture over zones that are up."""
    instant = Regions(0.9995, failover_s=0.0, shift_s=0.0)
    single, standby, active = compare_regions(FLEET, 3, instant, 2, None)
    assert active.availability == pytest.approx(zone_availability(20, 2, 23, 0.995, 0.9995))
    assert single.availability == pytest.approx(0.9995 * FLEET.availability(3))
    assert standby.availability == pytest.approx(1 - (1 - single.availability) ** 2)
    assert single.monthly_cost is None


def test_each_failover_costs_its_time():
    slow = Regions(0.9995, outage_h=4.0, failover_s=3600.0)
    assert slow.losses_per_month == pytest.approx(0.0005 * 730 / 4)
    _, quick, _ = compare_regions(FLEET, 3, Regions(0.9995, failover_s=0.0), 2, None)
    _, late, _ = compare_regions(FLEET, 3, slow, 2, None)
    assert quick.availability - late.availability == pytest.approx(0.0005 / 4)


def test_three_that_serve_need_fewer_replicas_than_a_standby():
    _, standby, active = compare_regions(FLEET, 3, Regions(0.9995), 3, 2.0)
    assert active.replicas < standby.replicas
    assert active.availability > standby.availability
    assert (active.mode, active.regions) == (RegionMode.ACTIVE, 3)


def test_weights_and_moved_requests_are_what_travels():
    regions = Regions(0.9995, weights_gb=140, releases=4, requests_s=100, request_bytes=8000)
    away_gb = 0.0005 * 730 * 3600 * 100 * 8000 / 1e9
    assert regions.transfer_gb(RegionMode.SINGLE, 1) == 0.0
    assert regions.transfer_gb(RegionMode.STANDBY, 2) == pytest.approx(560 + away_gb)
    assert regions.transfer_gb(RegionMode.ACTIVE, 3) == pytest.approx(1120 + away_gb)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"availability": 1.2}, "availability"),
        ({"outage_h": 0.0}, "outage_h"),
        ({"failover_s": -1.0}, "failover_s"),
        ({"transfer_price": -1.0}, "transfer_price"),
    ],
)
def test_what_cannot_be_names_its_field(change, field):
    with pytest.raises(ConfigError) as refused:
        Regions(**({"availability": 0.999} | change))
    assert refused.value.field == f"regions.{field}"


def test_one_region_is_no_comparison():
    with pytest.raises(ConfigError, match=r"regions\.active"):
        compare_regions(FLEET, 0, Regions(0.999), 1, None)
