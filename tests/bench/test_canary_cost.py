"""``bench/canary_cost.py``: its ratio, its interval, and what is held against canaries."""

from random import Random

import pytest
import yaml

from holdfast.config.fleet_file import FleetFile


@pytest.fixture
def cost(bench):
    return bench("canary_cost")


def told(**more):
    half = {"ratio_p99": 1.0, "canaries": [20, 0], "harmed": [0, 0]}
    full = {"share": 0.005, "users_tokens": 1_000}
    half |= {key: value for key, value in more.items() if key in half}
    full |= {key: value for key, value in more.items() if key in full}
    return {"half": half, "saturated": full}


def test_the_ratio_is_that_of_all_blocks_and_its_interval_is_drawn_over_pairs(cost):
    even = [([0.05] * 99 + [0.1], [0.05] * 99 + [0.1])] * 4
    assert cost.ratio(even) == 1.0
    assert cost.interval(even, Random(1)) == (1.0, 1.0)
    uneven = [([0.1] * 10, [0.1] * 10), ([0.3] * 10, [0.1] * 10)]
    low, high = cost.interval(uneven, Random(1))
    assert (low, high) == (pytest.approx(1.0), pytest.approx(3.0))


def test_without_canaries_is_said_in_keys_that_the_fleet_file_knows(cost):
    model = {"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:1"]}
    file = FleetFile.model_validate({"models": [model], **yaml.safe_load(cost.WITHOUT)})
    assert file.fleet_config().health.canary_s == 86_400.0


def test_cheap_canaries_miss_nothing(cost):
    assert cost.missed(told()) == []
    assert cost.missed(told(ratio_p99=1.03, share=0.01)) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ratio_p99": 1.031}, "1.031 times"),
        ({"share": 0.011}, "1.10% of tokens"),
        ({"canaries": [20, 1]}, "where there should be none"),
        ({"canaries": [0, 0]}, "where there should be some"),
        ({"harmed": [1, 0]}, "harmed at half load"),
        ({"users_tokens": 0}, "were not counted"),
    ],
)
def test_each_miss_is_told(cost, more, said):
    (found,) = cost.missed(told(**more))
    assert said in found


@pytest.mark.parametrize(
    ("argv", "said"),
    [(["--pairs", "1"], "--pairs: use"), (["--saturated-s", "5"], "--saturated-s")],
)
def test_what_makes_no_sense_is_refused_by_its_name(cost, argv, said, capsys):
    with pytest.raises(SystemExit):
        cost.arguments(argv)
    assert said in capsys.readouterr().err
