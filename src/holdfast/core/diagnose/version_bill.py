"""The bill of versions: what each replica runs on, where it differs, and what may change.

Versions of one deployment, which is a model and a revision, are held against each other: a value
that fewer replicas have than another is a difference of theirs. Where no value has the most, all
differ. An image that only a tag holds in place is a warning of its own: tomorrow the same name may
be another image, and then replicas of one deployment differ for no order that anybody gave.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.core.diagnose.detect.skew import ASPECTS, differences, loose_image
from holdfast.core.diagnose.facts import Declared, VersionsSeen


@dataclass(slots=True, frozen=True)
class VersionLine:
    """A row for people: the versions one replica runs on now; empty text: unknown.

    ``differs`` names those in which it is not like most of its model and revision.
    """

    replica: str
    model: str
    revision: str
    host: str
    driver: str = ""
    cuda: str = ""
    nccl: str = ""
    engine: str = ""
    weights: str = ""  # digest of them
    image: str = ""
    image_digest: str = ""
    differs: tuple[str, ...] = ()  # in which of these it is not like most of its deployment
    warnings: tuple[str, ...] = ()


def bill_of_versions(
    replicas: Iterable[Declared], versions: Mapping[str, VersionsSeen]
) -> list[VersionLine]:
    """Return a ``VersionLine`` for each replica, sorted by model, revision and name.

    A replica without an entry in ``versions`` gets a row of empty versions.
    """
    known = sorted(replicas, key=lambda one: (one.model, one.revision, one.replica))
    deployments: dict[tuple[str, str], dict[str, VersionsSeen]] = {}
    for one in known:
        if one.replica in versions:
            mine = deployments.setdefault((one.model, one.revision), {})
            mine[one.replica] = versions[one.replica]
    odd = {name: what for seen in deployments.values() for name, what in _differing(seen).items()}
    return [_line(one, versions.get(one.replica), odd.get(one.replica, ())) for one in known]


def _differing(seen: Mapping[str, VersionsSeen]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for aspect in ASPECTS:
        for what, holders in differences(aspect, seen):
            most = max(map(len, holders.values()))
            alone = sum(len(names) == most for names in holders.values()) == 1
            for names in holders.values():
                if len(names) < most or not alone:
                    for name in names:
                        found.setdefault(name, []).append(what)
    return {name: tuple(dict.fromkeys(what)) for name, what in found.items()}


def _line(one: Declared, seen: VersionsSeen | None, differs: tuple[str, ...]) -> VersionLine:
    place = (one.replica, one.model, one.revision, one.host)
    if seen is None:
        return VersionLine(*place)
    digest = seen.image_digest or _digest_in(seen.image)
    return VersionLine(
        *place,
        seen.driver,
        seen.cuda,
        seen.nccl,
        seen.engine,
        seen.digest,
        seen.image_asked or seen.image,
        digest,
        differs,
        tuple(mutable_tag(loose_image(seen))),
    )


def mutable_tag(image: str) -> Iterable[str]:
    """Yield one warning that this image is held in place by a tag only; nothing for an empty name.

    Does not check the name: pass what ``loose_image`` returned.
    """
    if image:
        yield f"image {image[:120]} is named by a tag, which may mean another image tomorrow"


def _digest_in(image: str) -> str:
    return image.rpartition("@")[2] if "@" in image else ""


__all__ = ["VersionLine", "bill_of_versions", "mutable_tag"]
