import pytest

from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.types import ConfigError


def test_without_settings_nothing_is_limited_per_tenant_and_nothing_is_degraded():
    config = FlowConfig()
    assert config.quotas == {}
    assert config.degrade == ()
    assert config.lanes == {}
    assert not config.hedge.enabled


def test_the_defaults_are_those_of_the_table():
    config = FlowConfig()
    assert (config.retry.attempts, config.retry.continuations) == (2, 2)
    assert config.lane.deadlines.request_s == 600.0
    assert config.lane.deadlines.first_token_s == 60.0
    assert (config.summary_s, config.view_stale_s) == (1.0, 10.0)


def test_two_configs_share_no_mutable_default():
    assert FlowConfig().quotas is not FlowConfig().quotas
    assert FlowConfig().lanes is not FlowConfig().lanes


def test_a_config_keeps_what_it_was_given():
    lane = LaneConfig(routing="round_robin")
    config = FlowConfig(lanes={"m": lane}, quotas={"t": QuotaConfig(requests_per_minute=6)})
    assert config.lanes["m"] is lane
    assert config.quotas["t"].requests_per_minute == 6


@pytest.mark.parametrize("field", ["summary_s", "view_stale_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_period_that_is_no_time_is_refused_with_its_name_and_the_fix(field, value):
    with pytest.raises(ConfigError, match=rf"flow\.{field}: is {value}; use seconds above 0"):
        FlowConfig(**{field: value})


def test_a_config_cannot_be_changed_once_it_is_built():
    with pytest.raises(AttributeError):
        FlowConfig().summary_s = 2.0
