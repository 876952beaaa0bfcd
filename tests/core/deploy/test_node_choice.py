"""Which node gets the next replica: spread over nodes, in its zone, where there is room."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.deploy.node_choice import (
    FAILED_S,
    ClusterNode,
    FailedReservations,
    NodeRequest,
    choose_node,
)
from holdfast.core.types import ConfigError, nanos
from sampling import examples


def node(name, **more):
    return ClusterNode(name, f"10.0.0.{name}", **{"cpus_free": 8.0, "gpus_free": 4.0, **more})


def test_replicas_of_a_model_are_spread_over_nodes():
    nodes = [node("1", models={"m": 1}), node("2", models={"other": 1}), node("3", models={"m": 2})]
    assert choose_node(NodeRequest("m", gpus=1), nodes).node.id == "2"


def test_of_equals_the_emptier_and_then_the_roomier_is_taken():
    nodes = [node("1", models={"other": 3}), node("2", gpus_free=2.0), node("3")]
    assert choose_node(NodeRequest("m"), nodes).node.id == "3"


def test_a_replica_goes_to_its_zone_or_where_there_is_room():
    nodes = [node("1", zone="a", gpus_free=0.0), node("2", zone="b", models={"m": 3})]
    assert choose_node(NodeRequest("m", gpus=1, zone="b"), nodes).node.id == "2"
    assert choose_node(NodeRequest("m", gpus=1, zone="a"), nodes).node.id == "2"
    assert choose_node(NodeRequest("m", zone="a"), nodes).node.id == "1"


def test_a_zone_that_no_node_has_keeps_nobody_out():
    nodes = [node("1", zone="a"), node("2", zone="")]
    assert choose_node(NodeRequest("m", zone="lost"), nodes).node is not None


def test_nobody_is_placed_on_a_node_that_leaves():
    assert choose_node(NodeRequest("m"), [node("1", leaving=True)]).node is None
    assert choose_node(NodeRequest("m"), [node("1", leaving=True), node("2")]).node.id == "2"


def test_nobody_is_placed_on_a_node_that_was_seen_to_die():
    dead = node("1", zone="a", lost=True)
    assert choose_node(NodeRequest("m", zone="a"), [dead]).node is None
    other = node("2", zone="b", models={"m": 5})
    assert choose_node(NodeRequest("m", zone="a"), [dead, other]).node.id == "2"


def test_a_node_that_did_not_reserve_is_the_last_choice_also_within_its_zone():
    failed = node("1", zone="a", failed=True)
    other = node("2", zone="b", models={"m": 5})
    assert choose_node(NodeRequest("m", zone="a"), [failed, other]).node.id == "2"
    assert choose_node(NodeRequest("m", zone="a"), [failed]).node.id == "1"
    full = node("2", zone="b", gpus_free=0.0)
    assert choose_node(NodeRequest("m", gpus=1), [failed, full]).node.id == "1"


def test_replicas_without_a_wish_are_spread_over_nodes_and_then_over_zones():
    placed, nodes = [], {"1": "a", "2": "a", "3": "a", "4": "b"}
    for _ in range(6):
        listed = [
            node(name, zone=zone, models={"m": placed.count(name)}) for name, zone in nodes.items()
        ]
        placed.append(choose_node(NodeRequest("m"), listed).node.id)
    assert placed == ["1", "4", "2", "3", "4", "1"]


def test_a_failed_reservation_is_remembered_for_a_minute_and_until_one_works():
    failed = FailedReservations()
    failed.add("1", 0)
    assert failed.failed("1", nanos(FAILED_S) - 1)
    assert not failed.failed("1", nanos(FAILED_S))
    assert not failed.failed("2", 0)
    failed.add("2", 5)
    failed.clear("2")
    failed.clear("3")
    assert not failed.failed("2", 6)
    for number in range(1_000):
        failed.add(f"n{number}", number)
    assert len(failed._at) == 256
    assert failed.failed("n999", 1_000)


def test_a_replica_larger_than_any_node_says_so():
    choice = choose_node(NodeRequest("m", gpus=8), [node("1"), node("2", gpus_free=2.0)])
    assert choice.node is None
    assert "has 8 GPUs" in choice.reason
    assert "the most is 4 GPUs" in choice.reason


@pytest.mark.parametrize("bad", [{"gpus": -1}, {"cpus": -0.5}])
def test_less_than_nothing_is_refused(bad):
    with pytest.raises(ConfigError, match="node"):
        NodeRequest("m", **bad)


NODES = st.lists(
    st.builds(
        ClusterNode,
        st.sampled_from("123456789"),
        st.just("10.0.0.1"),
        st.sampled_from(["", "a", "b"]),
        st.floats(0, 8),
        st.floats(0, 8),
        st.booleans(),
        st.dictionaries(st.sampled_from(["m", "n"]), st.integers(1, 3)),
        lost=st.booleans(),
        failed=st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(NODES, st.integers(0, 8), st.floats(0, 8), st.sampled_from(["", "a", "c"]))
def test_a_chosen_node_has_room_and_stays_and_no_other_has_fewer_of_the_model(
    nodes, gpus, cpus, zone
):
    chosen = choose_node(NodeRequest("m", gpus, cpus, zone), nodes).node
    fits = [
        one
        for one in nodes
        if not (one.leaving or one.lost) and one.gpus_free >= gpus and one.cpus_free >= cpus
    ]
    fits = [one for one in fits if not one.failed] or fits
    fits = [one for one in fits if zone and one.zone == zone] or fits
    assert (chosen is None) == (not fits)
    if chosen is not None:
        assert chosen in fits
        assert chosen.models.get("m", 0) == min(one.models.get("m", 0) for one in fits)
