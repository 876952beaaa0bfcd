from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.failover import FailoverConfig, FailoverLadder
from holdfast.core.stats import PeakEwma
from holdfast.core.types import SECOND, ConfigError, Replica
from sampling import examples

HOME = FailoverConfig(home_zone="a1", home_region="a")


def at(place: str, revision: str = "1", name: str = "") -> Candidate:
    """A candidate in a zone such as "b2", whose region is its first letter."""
    replica = Replica(
        name or f"{place}/{revision}", "m", revision=revision, zone=place, region=place[0]
    )
    return Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())


def shape(ladder: FailoverLadder, candidates: list[Candidate]) -> list[tuple[str, list[str]]]:
    return [(rung.name, [c.id for c in rung.candidates]) for rung in ladder.rungs(candidates)]


@pytest.mark.parametrize(
    ("values", "field", "fix"),
    [
        ({"home_zone": "a1"}, "failover.home_zone", "region of the zone"),
        ({"regions": ("b",)}, "failover.regions", "home region"),
        ({"home_region": "a", "regions": ("a",)}, "failover.regions", "remote regions only"),
        ({"home_region": "a", "regions": ("b", "b")}, "failover.regions", "each once"),
        ({"pinned_revision": ""}, "failover.pinned_revision", "name a revision"),
        ({"allowed_revisions": ("1", "")}, "failover.allowed_revisions", "name each"),
        ({"remote_utilisation_max": 0.0}, "failover.remote_utilisation_max", "(0, 1]"),
        ({"remote_utilisation_max": 1.01}, "failover.remote_utilisation_max", "(0, 1]"),
        ({"spill_hold_s": -1.0}, "failover.spill_hold_s", "0 or more"),
        ({"spill_hold_s": float("inf")}, "failover.spill_hold_s", "0 or more"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_field_and_fix(values, field, fix):
    with pytest.raises(ConfigError) as caught:
        FailoverConfig(**values)
    assert caught.value.field == field
    assert fix in caught.value.fix


# --- rungs ---------------------------------------------------------------------------------------


def test_without_a_home_everybody_is_on_one_rung():
    assert shape(FailoverLadder(FailoverConfig()), [at("a1"), at("b1")]) == [
        ("all", ["a1/1", "b1/1"])
    ]


def test_the_ladder_goes_from_zone_over_region_to_elsewhere():
    assert shape(FailoverLadder(HOME), [at("c1"), at("a2"), at("b1"), at("a1")]) == [
        ("zone", ["a1/1"]),
        ("region", ["a2/1"]),
        ("remote:b", ["b1/1"]),
        ("remote:c", ["c1/1"]),
    ]


def test_without_a_home_zone_the_region_is_one_rung():
    config = FailoverConfig(home_region="a")
    assert shape(FailoverLadder(config), [at("a2"), at("a1"), at("b1")]) == [
        ("region", ["a2/1", "a1/1"]),
        ("remote:b", ["b1/1"]),
    ]


def test_preferred_regions_come_first_and_the_others_by_name():
    config = FailoverConfig(home_region="a", regions=("d", "z"))
    found = shape(FailoverLadder(config), [at("b1"), at("c1"), at("d1"), at("a1")])
    assert [name for name, _ in found] == ["region", "remote:d", "remote:b", "remote:c"]


def test_a_deployment_that_stays_in_its_region_has_no_remote_rung():
    config = FailoverConfig(home_region="a", cross_region=False)
    assert shape(FailoverLadder(config), [at("a1"), at("b1")]) == [("region", ["a1/1"])]


def test_empty_rungs_are_left_out_and_every_rung_says_why():
    ladder = FailoverLadder(HOME)
    rungs = ladder.rungs([at("a2"), at("b1")])
    assert [(r.name, r.remote) for r in rungs] == [("region", False), ("remote:b", True)]
    assert rungs[0].reason == "in other zones of the home region a"
    assert ladder.rungs([]) == []


# --- the revision gate ---------------------------------------------------------------------------


def test_elsewhere_another_revision_is_not_on_the_ladder():
    ladder = FailoverLadder(HOME)
    assert shape(ladder, [at("a1", "5"), at("b1", "4"), at("c1", "5")]) == [
        ("zone", ["a1/5"]),
        ("remote:c", ["c1/5"]),
    ]
    assert ladder.excluded == ("b1/4",)


def test_losing_every_home_replica_does_not_unpin_the_revision():
    ladder = FailoverLadder(HOME)
    ladder.rungs([at("a1", "5"), at("b1", "4"), at("c1", "5")])
    assert shape(ladder, [at("b1", "4"), at("c1", "5")]) == [("remote:c", ["c1/5"])]
    assert shape(ladder, [at("b1", "4")]) == []


def test_what_an_outage_leaves_over_at_home_does_not_become_the_revision():
    ladder = FailoverLadder(HOME)
    new = at("a1", "2")
    old = [at("a1", "1", f"old{i}") for i in range(3)]
    away = at("b1", "1")
    ladder.rungs([*old, new, away])
    assert shape(ladder, [new, away]) == [("remote:b", ["b1/1"])]


def test_a_rollout_moves_the_learned_revision_once_it_has_the_majority():
    ladder = FailoverLadder(HOME)
    pinned = []
    for new in range(5):
        members = [at("a1", "1", f"o{i}") for i in range(4 - new)]
        members += [at("a1", "2", f"n{i}") for i in range(new)]
        ladder.rungs(members)
        pinned.append(ladder.pinned_revision)
    assert pinned == ["1", "1", "1", "2", "2"]
    assert ladder.pinned_why == "the majority at home moved on from 1"


def test_when_the_pinned_revision_is_nowhere_left_the_learned_pin_moves_and_says_so():
    ladder = FailoverLadder(HOME)
    ladder.rungs([at("a1", "1", f"o{i}") for i in range(10)])
    assert shape(ladder, [at("a1", "2")]) == [("zone", ["a1/2"])]
    assert ladder.pinned_why == "no replica of 1 is left anywhere"


def test_the_revision_is_learned_from_members_not_from_those_who_are_well():
    ladder = FailoverLadder(FailoverConfig())
    members = [at("a1", "1", "x"), at("a1", "1", "y"), at("a1", "2", "z")]
    ladder.rungs(members, members)
    assert ladder.rungs([members[2]], members) == []
    assert ladder.pinned_revision == "1"
    assert ladder.excluded == ("z",)


def test_before_anybody_was_seen_at_home_the_majority_elsewhere_counts_until_home_appears():
    ladder = FailoverLadder(HOME)
    away = [at("b1", "4", f"b{i}") for i in range(3)]
    assert shape(ladder, away) == [("remote:b", ["b0", "b1", "b2"])]
    assert "elsewhere" in ladder.pinned_why
    assert shape(ladder, [*away, at("a1", "5")]) == [("zone", ["a1/5"])]


def test_a_declared_revision_is_not_given_up_for_another_one():
    ladder = FailoverLadder(FailoverConfig(pinned_revision="1"))
    assert ladder.rungs([at("a1", "2", f"n{i}") for i in range(9)]) == []
    assert ladder.pinned_revision == "1"


def test_revisions_that_the_deployment_allows_are_interchangeable():
    config = FailoverConfig(home_region="a", allowed_revisions=("4",))
    found = shape(FailoverLadder(config), [at("a1", "5"), at("b1", "4"), at("b2", "3")])
    assert found == [("region", ["a1/5"]), ("remote:b", ["b1/4"])]


def test_the_gate_can_be_opened():
    config = FailoverConfig(home_region="a", revision_gate=False)
    assert len(shape(FailoverLadder(config), [at("a1", "5"), at("b1", "4")])) == 2


# --- capacity ------------------------------------------------------------------------------------


def climbed() -> FailoverLadder:
    ladder = FailoverLadder(HOME)
    ladder.rungs([at("a1"), at("a2"), at("b1")])
    return ladder


@pytest.mark.parametrize("index", [0, 1])
def test_rungs_of_the_home_region_are_never_closed_by_load(index):
    assert climbed().may_spill(index, 5.0, 0)


@pytest.mark.parametrize(
    ("utilisation", "allowed"), [(0.0, True), (0.949, True), (0.95, False), (2.0, False)]
)
def test_another_region_is_never_filled_beyond_its_bound(utilisation, allowed):
    decision = climbed().may_spill(2, utilisation, 0)
    assert bool(decision) == allowed
    assert decision.reason == ("the rung has room" if allowed else "the rung is at or above 95%")


def test_unknown_is_not_full():
    decision = climbed().may_spill(2, None, 0)
    assert decision
    assert "unknown" in decision.reason


def test_a_full_region_is_left_alone_for_a_moment():
    ladder = climbed()
    assert not ladder.may_spill(2, 0.99, 0)
    for reading in (0.5, None):
        held = ladder.may_spill(2, reading, SECOND - 1)
        assert not held
        assert held.reason == "the rung was above 95% a moment ago"
        assert ladder.may_spill(2, reading, SECOND)


def test_the_moment_can_be_none_at_all():
    ladder = FailoverLadder(FailoverConfig(home_region="a", spill_hold_s=0.0))
    ladder.rungs([at("b1")])
    assert not ladder.may_spill(0, 0.99, 5)
    assert ladder.may_spill(0, 0.5, 5)


def test_what_is_remembered_of_full_regions_goes_with_them():
    ladder = climbed()
    ladder.may_spill(2, 0.99, 0)
    ladder.rungs([at("a1"), at("a2")])
    assert ladder._full_until == {}


# --- any membership ------------------------------------------------------------------------------

places = st.sampled_from(["a1", "a2", "b1", "b2", "c1"])


@given(
    history=st.lists(
        st.lists(st.tuples(places, st.sampled_from("123")), max_size=8), min_size=1, max_size=6
    )
)
@settings(max_examples=examples(60))
def test_no_ladder_ever_mixes_revisions_and_each_candidate_stands_on_one_rung(history):
    ladder = FailoverLadder(HOME)
    for number, membership in enumerate(history):
        members = [at(p, r, f"{number}.{i}") for i, (p, r) in enumerate(membership)]
        rungs = ladder.rungs(members)
        standing = [c for rung in rungs for c in rung.candidates]
        assert len({c.revision for c in standing}) <= 1
        assert sorted([c.id for c in standing] + list(ladder.excluded)) == sorted(
            c.id for c in members
        )
        assert all(rung.candidates for rung in rungs)
        assert all(rung.remote == (rung.candidates[0].replica.region != "a") for rung in rungs)
        nearness = [(r.name != "zone") + r.remote for r in rungs]
        assert nearness == sorted(nearness)
        if members and any(c.replica.region == "a" for c in members):
            assert standing  # somebody at home: the gate never leaves a fleet with nothing
