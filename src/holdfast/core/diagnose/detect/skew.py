"""Detects replicas of one model and revision that run on different software versions.

A model on CUDA 11.8 and on 12.1 runs on both and answers a little differently; nothing crashes, and
the answers are noticed days later. The versions themselves show it before the first request.

    versions of one (model, revision) ─► per aspect: which values, held by whom ─► the minority

Only replicas of one revision are compared: during a rollout the other revision differs on purpose.
What is not known of a replica is no difference. One whose process ended runs on nothing, however
long its platform lists it: it is left out until it is ready or tells its versions again. Images are
compared by digest with digests and by tag with tags, since a tag cannot be held against a digest.
With as many on one side as on the other neither side is the odd one, and the evidence concerns the
model.

Rejected: one piece of evidence for each odd replica. A batch of newer hosts is one mistake.
Rejected: a table of compatible versions; such a table is never kept up to date.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    Declared,
    Gone,
    Looked,
    ProcessEnded,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import State, nanos, require

ASPECTS: Final = ("cuda", "driver", "nccl", "engine", "digest", "image", "image_digest")
_SOURCE: Final = "skew"
_PINNED: Final = "sha256:"
_VALUE_CHARS: Final = 120  # of a version in a text; a digest has 71
_VALUES_NAMED: Final = 4  # of one aspect in a text

_Deployment = tuple[str, str]  # model and revision
_Fact = VersionsSeen | Declared | Gone | ProcessEnded | StateChanged | Looked


@dataclass(slots=True, frozen=True)
class SkewConfig:
    """Settings: which versions are compared, how long reports settle, how many replicas are named.

    Checked when built: raises ``ConfigError``.
    """

    aspects: tuple[str, ...] = ASPECTS  # all that is known
    flag_mutable_images: bool = True  # a tag may mean another image tomorrow
    settle_s: float = 5.0  # replicas report one after the other: the majority shows when all did
    names_max: int = 8  # replicas named in one text; more are counted

    def __post_init__(self) -> None:
        good = all(aspect in ASPECTS for aspect in self.aspects)
        require(good, "skew.aspects", f"is {self.aspects}", f"use names of {ASPECTS}")
        settled = 0 <= self.settle_s <= 600
        require(settled, "skew.settle_s", f"is {self.settle_s}", "use seconds from 0 to 600")
        few = f"is {self.names_max}"
        require(1 <= self.names_max <= 100, "skew.names_max", few, "use 1 to 100")


def is_pinned(image: str) -> bool:
    """Whether an image is named by its digest (``sha256:``), not by a tag that may move."""
    return image.startswith(_PINNED) or f"@{_PINNED}" in image


def loose_image(seen: VersionsSeen) -> str:
    """Return the name of a replica's image if it is held by a tag only.

    Empty if it is pinned by digest or unknown.
    """
    asked = (seen.image_asked or seen.image).strip()
    return "" if is_pinned(asked) else asked


def comparable(aspect: str, seen: VersionsSeen) -> tuple[str, str] | None:
    """Return (what is compared, its value) for one aspect of a replica's versions.

    None if it is unknown. An image pinned by digest is compared as "image digest"; a name is not
    compared where the digest is known.
    """
    value = str(getattr(seen, aspect)).strip()
    if not value:
        return None
    if aspect == "image_digest":
        return "image digest", value
    if aspect != "image":
        return aspect, value
    if seen.image_digest.strip():
        return None  # the bytes are compared, whatever their names
    if is_pinned(value):
        return "image digest", _PINNED + value.rpartition(_PINNED)[2]
    return "image", value


class SkewDetector:
    """Finds models and revisions whose replicas run on different software versions.

    Keeps the latest versions of each replica; those whose process ended are left out. Also reports
    images that are held by a tag only.
    """

    reads: ClassVar[tuple[type, ...]] = (
        *(VersionsSeen, Declared, Gone),
        *(ProcessEnded, StateChanged, Looked),
    )

    def __init__(self, config: SkewConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._member: dict[str, _Deployment] = {}  # as many as the census holds
        self._seen: dict[_Deployment, dict[str, VersionsSeen]] = {}
        self._ended: set[str] = set()  # members whose process is gone
        self._wrong: dict[_Deployment, int] = {}  # since when something holds of these
        self._pace = Pace()

    def take(self, fact: _Fact, now: int) -> Sequence[Evidence]:
        """Take versions, a declaration, an end, a state, a departure or a tick; return evidence.

        ``VERSIONS_DIFFER`` is about the one odd replica, else about the model and revision;
        ``MUTABLE_IMAGE`` always about these. Both wait until reports have settled.
        """
        if isinstance(fact, Looked):
            return [said for one in tuple(self._wrong) for said in self._judge(one, now)]
        if isinstance(fact, Gone):
            self.forget(fact.replica)
            return NOTHING
        if isinstance(fact, ProcessEnded):
            if fact.replica in self._member:
                self._ended.add(fact.replica)
            return NOTHING
        if isinstance(fact, StateChanged):
            if fact.state is State.READY:
                self._ended.discard(fact.replica)
            return NOTHING
        known = self._census.replicas.get(fact.replica)
        if known is None:
            return NOTHING
        deployment = (known.model, known.revision)
        if self._member.get(fact.replica, deployment) != deployment:
            self.forget(fact.replica)  # what it ran on belongs to the revision it left
        if isinstance(fact, Declared):
            return NOTHING
        self._member[fact.replica] = deployment
        self._ended.discard(fact.replica)
        self._seen.setdefault(deployment, {})[fact.replica] = fact
        return list(self._judge(deployment, now))

    def forget(self, replica: str) -> None:
        """Drop the versions of a replica that left the fleet or its model and revision."""
        deployment = self._member.pop(replica, None)
        self._ended.discard(replica)
        if deployment is None:
            return
        seen = self._seen[deployment]
        seen.pop(replica, None)
        if not seen:
            del self._seen[deployment]
            self._over(deployment)

    def _over(self, deployment: _Deployment) -> None:
        self._wrong.pop(deployment, None)
        self._pace.over((Sign.VERSIONS_DIFFER, deployment))
        self._pace.over((Sign.MUTABLE_IMAGE, deployment))

    def _judge(self, deployment: _Deployment, now: int) -> Iterator[Evidence]:
        known = self._seen[deployment].items()
        seen = {name: one for name, one in known if name not in self._ended}
        found = [self._skew(deployment, seen, now), self._mutable(deployment, seen, now)]
        if not any(found):
            self._over(deployment)
            return
        if now - self._wrong.setdefault(deployment, now) < nanos(self._config.settle_s):
            return
        for evidence, sign in zip(found, (Sign.VERSIONS_DIFFER, Sign.MUTABLE_IMAGE), strict=True):
            if evidence is None:
                self._pace.over((sign, deployment))
            elif self._pace.due((sign, deployment), now):
                yield evidence

    def _skew(
        self, deployment: _Deployment, seen: dict[str, VersionsSeen], now: int
    ) -> Evidence | None:
        odd: dict[str, None] = {}
        told: list[str] = []
        tied = False
        for aspect in self._config.aspects:
            for what, holders in differences(aspect, seen):
                most = max(len(names) for names in holders.values())
                largest = [value for value, names in holders.items() if len(names) == most]
                if len(largest) > 1:
                    tied = True
                    odd.update(dict.fromkeys(name for v in largest for name in holders[v]))
                others = [value for value in holders if value != largest[0]]
                odd.update(dict.fromkeys(name for value in others for name in holders[value]))
                told.append(f"{what} {self._values(holders, [*others, largest[0]])}")
        if not told:
            return None
        model, revision = deployment
        names = list(odd)
        about = About(model=model, revision=revision)
        if len(names) == 1 and not tied:
            about = self._census.about(names[0])
        text = f"replicas of {model} revision {revision or 'unnamed'} differ: {'; '.join(told)}"
        numbers = {"odd": float(len(names)), "replicas": float(len(seen))}
        return Evidence(Sign.VERSIONS_DIFFER, about, now, _SOURCE, text, numbers)

    def _values(self, holders: dict[str, list[str]], order: list[str]) -> str:
        """Each value and who has it, the rarest first; the last stands for all the others."""
        *few, most = order
        told = [
            f"{value[:_VALUE_CHARS]} on {self._names(holders[value])}"
            for value in few[:_VALUES_NAMED]
        ]
        if len(few) > _VALUES_NAMED:
            told.append(f"{len(few) - _VALUES_NAMED} other values")
        told.append(f"{most[:_VALUE_CHARS]} on {self._names(holders[most])}")
        return ", ".join(told)

    def _names(self, names: list[str]) -> str:
        more = len(names) - self._config.names_max
        told = ", ".join(names[: self._config.names_max])
        return f"{told} and {more} more" if more > 0 else told

    def _mutable(
        self, deployment: _Deployment, seen: dict[str, VersionsSeen], now: int
    ) -> Evidence | None:
        if not self._config.flag_mutable_images:
            return None
        loose = {name: image for name, one in seen.items() if (image := loose_image(one))}
        if not loose:
            return None
        model, revision = deployment
        image = next(iter(loose.values()))[:_VALUE_CHARS]
        text = (
            f"image {image} of {model} is named by a tag on {len(loose)} of {len(seen)} replicas:"
            " the tag may mean another image tomorrow, a digest cannot"
        )
        numbers = {"replicas": float(len(loose))}
        about = About(model=model, revision=revision)
        return Evidence(Sign.MUTABLE_IMAGE, about, now, _SOURCE, text, numbers)


def differences(
    aspect: str, seen: Mapping[str, VersionsSeen]
) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield (what is compared, replica ids by value) where these replicas differ in an aspect.

    Nothing if all known values are equal. ``seen`` has one model and revision's versions by
    replica.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name, one in seen.items():
        found_value = comparable(aspect, one)
        if found_value is not None:
            what, value = found_value
            found.setdefault(what, {}).setdefault(value, []).append(name)
    for what, holders in found.items():
        if len(holders) > 1:
            yield what, holders


__all__ = [
    "ASPECTS",
    "SkewConfig",
    "SkewDetector",
    "comparable",
    "differences",
    "is_pinned",
    "loose_image",
]
