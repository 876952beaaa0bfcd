from holdfast.core.diagnose.facts import Declared, VersionsSeen
from holdfast.core.diagnose.version_bill import VersionLine, bill_of_versions

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def bill(*seen: VersionsSeen, revision: str = "1") -> dict[str, VersionLine]:
    replicas = [Declared(one.replica, "m", revision, f"h-{one.replica}") for one in seen]
    found = bill_of_versions(replicas, {one.replica: one for one in seen})
    return {line.replica: line for line in found}


def test_a_line_holds_all_that_is_known_and_nothing_differs_among_equals() -> None:
    told = VersionsSeen("a", "12.4", "550", "0.9", "abc", f"r/e@{DIGEST}", "2.21.5")
    lines = bill(told, VersionsSeen("b", "12.4", "550", "0.9", "abc", f"r/e@{DIGEST}", "2.21.5"))
    assert lines["a"] == VersionLine(
        *("a", "m", "1", "h-a", "550", "12.4", "2.21.5", "0.9", "abc", f"r/e@{DIGEST}", DIGEST)
    )
    assert lines["b"].differs == ()


def test_who_has_another_version_than_most_differs_in_it() -> None:
    lines = bill(
        VersionsSeen("a", cuda="11.8", nccl="2.21"),
        VersionsSeen("b", cuda="11.8", nccl="2.21"),
        VersionsSeen("c", cuda="12.1", nccl="2.21"),
    )
    assert {name: line.differs for name, line in lines.items()} == {
        "a": (),
        "b": (),
        "c": ("cuda",),
    }


def test_where_no_version_has_the_most_all_differ_and_the_unknown_does_not() -> None:
    lines = bill(VersionsSeen("a", nccl="2.21"), VersionsSeen("b", nccl="2.19"), VersionsSeen("c"))
    assert [lines[name].differs for name in "abc"] == [("nccl",), ("nccl",), ()]


def test_revisions_are_not_held_against_each_other() -> None:
    replicas = [Declared("a", "m", "1"), Declared("b", "m", "2"), Declared("c", "m", "2")]
    seen = {"a": VersionsSeen("a", cuda="11.8"), "b": VersionsSeen("b", cuda="12.1")}
    lines = bill_of_versions(replicas, seen)
    assert [(line.replica, line.differs) for line in lines] == [("a", ()), ("b", ()), ("c", ())]


def test_one_tag_that_is_two_images_differs_and_a_tag_alone_is_a_warning() -> None:
    tag = "r/engine:latest"
    lines = bill(
        VersionsSeen("a", image=tag, image_digest=DIGEST),
        VersionsSeen("b", image=tag, image_digest=DIGEST),
        VersionsSeen("c", image=tag, image_digest=OTHER),
    )
    assert lines["c"].differs == ("image digest",)
    assert lines["a"].differs == ()
    assert lines["a"].image_digest == DIGEST
    warning = f"image {tag} is named by a tag, which may mean another image tomorrow"
    assert all(line.warnings == (warning,) for line in lines.values())


def test_a_digest_that_the_platform_added_does_not_make_a_tag_safe() -> None:
    line = bill(VersionsSeen("a", image=f"r/e:1@{DIGEST}", image_asked="r/e:1"))["a"]
    assert line.image == "r/e:1"
    assert line.image_digest == DIGEST
    assert line.warnings
    pinned = bill(VersionsSeen("a", image=f"r/e:1@{DIGEST}"))["a"]
    assert pinned.warnings == ()


def test_what_is_not_known_at_all_is_an_empty_line() -> None:
    (line,) = bill_of_versions([Declared("a", "m")], {})
    assert line == VersionLine("a", "m", "", "")
