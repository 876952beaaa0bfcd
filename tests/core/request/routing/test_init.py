from random import Random

import pytest

from holdfast.core.request.routing import DEFAULT, POLICIES, build
from holdfast.core.types import ConfigError


def test_the_default_is_power_of_two():
    assert DEFAULT == "power_of_two"
    assert DEFAULT in POLICIES


@pytest.mark.parametrize("name", POLICIES)
def test_every_registered_policy_is_built_under_its_own_name(name):
    config = {"zone": "zone-a"} if name == "zone_preference" else {}
    assert build(name, Random(1), **config).name == name


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as refused:
        build("fastest", Random(1))
    assert refused.value.field == "routing.policy"
    assert "'fastest'" in str(refused.value)
    for name in POLICIES:
        assert name in str(refused.value)


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"power_of_two\.floor: .* one of by, choices"):
        build("power_of_two", Random(1), floor=3)


def test_a_setting_for_a_policy_without_any_is_refused():
    with pytest.raises(ConfigError, match=r"round_robin\.speed: .*it has none"):
        build("round_robin", Random(1), speed=3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"by": 3}, r"power_of_two\.by: is 3; use text"),
        ({"choices": "two"}, r"power_of_two\.choices: is 'two'; use a whole number"),
        ({"choices": 2.5}, r"power_of_two\.choices: is 2\.5; use a whole number"),
        ({"explore": True}, r"power_of_two\.explore: is True; use a number"),
        ({"explore": None}, r"power_of_two\.explore: is None; use a number"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build("power_of_two", Random(1), **config)


def test_a_whole_number_serves_where_a_fraction_may_stand():
    assert build("power_of_two", Random(1), explore=0).name == "power_of_two"


def test_a_wrapper_takes_its_inner_policy_by_name():
    policy = build("session_affinity", Random(1), inner="round_robin")
    assert policy._inner.name == "round_robin"


def test_wrappers_nest_with_settings():
    inner = {"name": "prefix_affinity", "slack": 1, "inner": "least_loaded"}
    policy = build("zone_preference", Random(1), zone="zone-a", inner=inner)
    assert policy._inner.name == "prefix_affinity"
    assert policy._inner._inner.name == "least_loaded"


def test_each_length_class_has_an_inner_policy_of_its_own():
    policy = build("length_classes", Random(1), inner="round_robin")
    assert policy._short.inner is not policy._long.inner
    assert policy._short.inner.name == policy._long.inner.name == "round_robin"


@pytest.mark.parametrize("inner", [7, {}, {"name": 7}, ["round_robin"]])
def test_an_inner_policy_that_is_neither_name_nor_mapping_is_refused(inner):
    with pytest.raises(ConfigError, match=r"routing\.inner: "):
        build("session_affinity", Random(1), inner=inner)


def test_a_bad_setting_of_an_inner_policy_names_that_policy():
    with pytest.raises(ConfigError, match=r"token_work\.look_at"):
        build("session_affinity", Random(1), inner={"name": "token_work", "look_at": "some"})
