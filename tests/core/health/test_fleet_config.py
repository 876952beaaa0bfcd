import pytest

from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.types import ConfigError


def test_the_defaults_are_valid():
    config = FleetConfig()
    assert config.canary_deadline_s < config.canary_deadline_max_s
    assert config.launch_backoff_s < config.launch_backoff_max_s


@pytest.mark.parametrize(
    "name",
    [
        "canary_deadline_s",
        "canary_deadline_min_s",
        "launch_backoff_s",
        "launch_forgive_s",
        "relaunch_after_s",
        "no_success_s",
        "ramp_s",
        "heartbeat_s",
    ],
)
def test_a_time_must_be_positive(name):
    with pytest.raises(ConfigError, match=rf"fleet\.{name}: is 0; use seconds above 0"):
        FleetConfig(**{name: 0})


def test_a_ceiling_below_its_base_is_refused():
    with pytest.raises(ConfigError, match=r"fleet\.canary_deadline_max_s.*at least"):
        FleetConfig(canary_deadline_s=5.0, canary_deadline_max_s=4.0)
    with pytest.raises(ConfigError, match=r"fleet\.launch_backoff_max_s.*at least"):
        FleetConfig(launch_backoff_s=5.0, launch_backoff_max_s=4.0)


def test_busy_requests_must_be_counted():
    with pytest.raises(ConfigError, match=r"fleet\.canary_busy_requests: is 0"):
        FleetConfig(canary_busy_requests=0)
