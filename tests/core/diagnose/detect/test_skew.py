import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.skew import SkewConfig, SkewDetector
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    Declared,
    Fact,
    Gone,
    Looked,
    ProcessEnded,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError, State
from sampling import examples

PINNED = "registry/engine@sha256:" + "a" * 64


class Fleet:
    def __init__(self, config: SkewConfig | None = None) -> None:
        self.census = ReplicaRegistry()
        self.detector = SkewDetector(config or SkewConfig(settle_s=0), self.census)
        self.now = 0

    def take(self, *facts: Fact) -> list[Evidence]:
        said = []
        for fact in facts:
            self.now += SECOND
            self.census.take(fact)
            said += self.detector.take(fact, self.now)
        return said

    def deploy(self, cuda: dict[str, str], model: str = "m", revision: str = "1") -> list[Evidence]:
        declared = self.take(*(Declared(name, model, revision) for name in cuda))
        return declared + self.take(*(VersionsSeen(n, cuda=value) for n, value in cuda.items()))


def test_two_versions_of_cuda_in_one_deployment_are_named_with_the_odd_one() -> None:
    said = Fleet().deploy({"r1": "11.8", "r2": "11.8", "r3": "12.1"})
    assert [one.sign for one in said] == [Sign.VERSIONS_DIFFER]
    assert said[0].about == About("r3", "m", "1")
    assert said[0].text == "replicas of m revision 1 differ: cuda 12.1 on r3, 11.8 on r1, r2"
    assert said[0].numbers == {"odd": 1.0, "replicas": 3.0}


def test_several_odd_ones_are_one_piece_of_evidence_about_the_model() -> None:
    fleet = Fleet()
    fleet.deploy({"r1": "11.8", "r2": "11.8", "r3": "11.8", "r4": "12.1", "r5": "12.1"})
    fleet.now += REPEAT
    (said,) = fleet.take(Looked())
    assert said.about == About(model="m", revision="1")
    assert "12.1 on r4, r5" in said.text


def test_a_fleet_that_reports_one_by_one_is_judged_when_all_have_reported() -> None:
    fleet = Fleet(SkewConfig())
    assert not fleet.deploy({"r1": "12.1", "r2": "11.8", "r3": "11.8", "r4": "11.8"})
    said = fleet.take(*[Looked()] * 6)
    assert [one.about.replica for one in said] == ["r1"]


def test_a_replica_that_ended_is_compared_with_nobody_while_its_platform_lists_it() -> None:
    """A pod that was deleted is told to have ended some time before it is told to be gone."""
    fleet = Fleet()
    assert fleet.deploy({"r1": "11.8", "r2": "11.8"}) == []
    fleet.take(ProcessEnded("r1", 143, asked=True), ProcessEnded("r2", 143, asked=True))
    assert fleet.deploy({"r3": "12.1", "r4": "12.1"}) == []
    fleet.now += REPEAT
    assert fleet.take(Looked()) == []


def test_a_difference_is_over_when_the_odd_one_has_ended() -> None:
    fleet = Fleet()
    assert fleet.deploy({"r1": "11.8", "r2": "11.8", "r3": "12.1"})
    fleet.take(ProcessEnded("r3", 0))
    fleet.now += REPEAT
    assert fleet.take(Looked()) == []


@pytest.mark.parametrize(
    "alive", [VersionsSeen("r3", cuda="12.1"), StateChanged("r3", State.READY, "canary")]
)
def test_one_that_is_started_again_in_its_place_counts_again(alive: Fact) -> None:
    fleet = Fleet()
    fleet.deploy({"r1": "11.8", "r2": "11.8", "r3": "12.1"})
    fleet.take(ProcessEnded("r3", 137), StateChanged("r3", State.DEAD, "exit"))
    fleet.now += REPEAT
    said = fleet.take(alive, VersionsSeen("r1", cuda="11.8"))
    assert [one.sign for one in said] == [Sign.VERSIONS_DIFFER]


def test_one_against_one_accuses_nobody() -> None:
    (said,) = Fleet().deploy({"r1": "11.8", "r2": "12.1"})
    assert said.about == About(model="m", revision="1")
    assert "12.1 on r2" in said.text
    assert "11.8 on r1" in said.text


@pytest.mark.parametrize("aspect", ["cuda", "driver", "engine", "digest"])
def test_every_aspect_is_compared(aspect: str) -> None:
    fleet = Fleet()
    fleet.take(*(Declared(name, "m") for name in "abc"))
    values = {"a": "1", "b": "1", "c": "2"}
    said = fleet.take(*(VersionsSeen(name, **{aspect: v}) for name, v in values.items()))
    assert [one.sign for one in said] == [Sign.VERSIONS_DIFFER]
    assert f"{aspect} 2 on c" in said[0].text
    assert "revision unnamed" in said[0].text


def test_images_are_compared_by_digest_whatever_they_are_called() -> None:
    fleet = Fleet()
    fleet.take(*(Declared(name, "m") for name in "abcd"))
    same = ["x/engine:1@sha256:aa", "y/engine@sha256:aa", "sha256:aa"]
    assert not fleet.take(*(VersionsSeen(n, image=i) for n, i in zip("abc", same, strict=True)))
    (said,) = fleet.take(VersionsSeen("d", image="x/engine:1@sha256:bb"))
    assert said.about.replica == "d"
    assert "image digest sha256:bb on d" in said.text


def test_a_tag_is_flagged_and_is_no_difference_to_a_digest() -> None:
    fleet = Fleet()
    fleet.take(Declared("a", "m"), Declared("b", "m"))
    assert not fleet.take(VersionsSeen("a", image=PINNED))
    (said,) = fleet.take(VersionsSeen("b", image="registry/engine:latest"))
    assert said.sign is Sign.MUTABLE_IMAGE
    assert said.about == About(model="m")
    assert "registry/engine:latest of m is named by a tag on 1 of 2 replicas" in said.text


def test_two_tags_differ_and_are_mutable_too() -> None:
    fleet = Fleet()
    fleet.take(Declared("a", "m"), Declared("b", "m"))
    fleet.take(VersionsSeen("a", image="engine:1"))
    said = fleet.take(VersionsSeen("b", image="engine:2"))
    assert [one.sign for one in said] == [Sign.VERSIONS_DIFFER]
    fleet.now += REPEAT
    assert {one.sign for one in fleet.take(Looked())} == {Sign.VERSIONS_DIFFER, Sign.MUTABLE_IMAGE}


def test_mutable_images_are_not_flagged_where_that_is_switched_off() -> None:
    fleet = Fleet(SkewConfig(settle_s=0, flag_mutable_images=False))
    assert not fleet.take(Declared("a", "m"), VersionsSeen("a", image="engine:latest"))


def test_another_revision_another_model_and_the_unknown_are_no_skew() -> None:
    fleet = Fleet()
    assert not fleet.deploy({"r1": "11.8", "r2": "11.8"}, revision="1")
    assert not fleet.deploy({"r3": "12.1", "r4": "12.1"}, revision="2")
    assert not fleet.deploy({"x1": "12.4"}, model="other", revision="1")
    assert not fleet.deploy({"r5": "", "r6": "  "}, revision="1")
    assert not fleet.take(VersionsSeen("stranger", cuda="9.0"))
    fleet.now += 2 * REPEAT
    assert not fleet.take(Looked())


def test_a_replica_that_moves_to_another_revision_takes_its_versions_with_it() -> None:
    fleet = Fleet()
    fleet.deploy({"r1": "11.8", "r2": "11.8"}, revision="1")
    assert not fleet.take(Declared("r1", "m", "2"), VersionsSeen("r1", cuda="12.1"))
    # The last of the old revision follows: until it says what it runs on now, nothing is known.
    assert not fleet.take(Declared("r2", "m", "2"))
    assert not fleet.take(VersionsSeen("r2", cuda="12.1"))


def test_it_is_said_again_while_it_holds_and_ends_when_the_odd_one_leaves_or_is_mended() -> None:
    fleet = Fleet()
    assert len(fleet.deploy({"r1": "11.8", "r2": "11.8", "r3": "12.1"})) == 1
    assert not fleet.take(Looked())
    fleet.now += REPEAT
    assert len(fleet.take(Looked())) == 1
    fleet.take(Gone("r3"))
    fleet.now += REPEAT
    assert not fleet.take(Looked())
    assert len(fleet.deploy({"r4": "12.1"})) == 1
    assert not fleet.take(VersionsSeen("r4", cuda="11.8"))
    fleet.now += REPEAT
    assert not fleet.take(Looked())


def test_when_all_are_gone_nothing_is_kept() -> None:
    fleet = Fleet()
    fleet.deploy({"r1": "11.8", "r2": "12.1"})
    fleet.take(Gone("r1"), Gone("r2"), Gone("r2"))
    detector = fleet.detector
    assert not detector._seen
    assert not detector._member
    assert not detector._wrong
    assert not detector._pace._said


def test_long_lists_are_cut_and_counted() -> None:
    fleet = Fleet(SkewConfig(settle_s=0, names_max=2))
    values = {f"r{n}": "11.8" for n in range(5)}
    values |= {f"s{n}": f"12.{n}" for n in range(6)}
    fleet.deploy(values)
    fleet.now += REPEAT
    (said,) = fleet.take(Looked())
    assert "2 other values" in said.text
    assert "11.8 on r0, r1 and 3 more" in said.text


def test_bad_configs_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"skew\.aspects"):
        SkewConfig(aspects=("weather",))
    with pytest.raises(ConfigError, match=r"skew\.settle_s"):
        SkewConfig(settle_s=-1.0)
    with pytest.raises(ConfigError, match=r"skew\.names_max"):
        SkewConfig(names_max=0)


NAMES = st.sampled_from("abcde")
STEPS = st.one_of(
    st.builds(Declared, NAMES, st.sampled_from("mn"), st.sampled_from("12")),
    st.builds(VersionsSeen, NAMES, cuda=st.sampled_from(["", "11.8", "12.1"])),
    st.builds(Gone, NAMES),
    st.just(Looked()),
)


@settings(max_examples=examples(200))
@given(st.lists(STEPS, max_size=40))
def test_it_speaks_only_of_deployments_that_differ_at_that_moment(facts: list[Fact]) -> None:
    fleet = Fleet()
    known: dict[str, VersionsSeen] = {}  # what each says of its present revision
    for fact in facts:
        before = dict(fleet.census.replicas)
        said = fleet.take(fact)
        if isinstance(fact, VersionsSeen) and fact.replica in before:
            known[fact.replica] = fact
        elif isinstance(fact, Gone):
            known.pop(fact.replica, None)
        elif isinstance(fact, Declared) and fact.replica in before:
            was = before[fact.replica]
            if (was.model, was.revision) != (fact.model, fact.revision):
                known.pop(fact.replica, None)
        for one in said:
            assert one.at == fleet.now
            group = [
                known[name].cuda
                for name, declared in fleet.census.replicas.items()
                if (declared.model, declared.revision) == (one.about.model, one.about.revision)
                and name in known
            ]
            assert len(set(filter(None, group))) == 2


def test_one_tag_that_means_two_images_and_two_versions_of_nccl_are_told() -> None:
    fleet = Fleet()
    fleet.take(*(Declared(name, "m", "1") for name in "abc"))
    tag, first, second = "r/engine:latest", "sha256:aa", "sha256:bb"
    fleet.take(VersionsSeen("a", image=tag, image_digest=first, nccl="2.21.5"))
    fleet.take(VersionsSeen("b", image=tag, image_digest=first, nccl="2.21.5"))
    said = fleet.take(VersionsSeen("c", image=tag, image_digest=second, nccl="2.19.3"))
    told = " ".join(one.text for one in said if one.sign is Sign.VERSIONS_DIFFER)
    assert "image digest sha256:bb on c, sha256:aa on a, b" in told
    assert "nccl 2.19.3 on c" in told


def test_a_tag_is_told_also_where_the_platform_says_which_bytes_run() -> None:
    fleet = Fleet()
    fleet.take(Declared("a", "m", "1"))
    asked = VersionsSeen("a", image="r/engine:1@sha256:aa", image_asked="r/engine:1")
    (said,) = [one for one in fleet.take(asked) if one.sign is Sign.MUTABLE_IMAGE]
    assert "image r/engine:1 of" in said.text
