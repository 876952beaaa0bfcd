"""Reduces the events of an API server to the last warning about each object.

Only warnings are asked for, and of these only those that say why a replica waits or fails. An
event's count and text change in place; the API server deletes it after an hour.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.sources.kubernetes.api import Json
from holdfast.sources.kubernetes.quantities import moment

FIELDS: Final = "type=Warning"
TOLD: Final = frozenset(
    {
        "FailedScheduling",
        "BackOff",
        "Unhealthy",
        "FailedMount",
        "FailedAttachVolume",
        "Evicted",
        "Failed",
        "FailedCreate",
        "FailedCreatePodSandBox",
        "SystemOOM",
        "OOMKilling",
    }
)


@dataclass(slots=True, frozen=True)
class EventWarning:
    """The text, count and time of a warning about one object."""

    kind: str  # Pod, Node, ReplicaSet …
    about: str  # namespace/name, or the name of a node
    reason: str
    message: str
    at: float | None
    count: int = 1


def read_event(thing: Json) -> EventWarning | None:
    """Parse an event into a warning; None if it says nothing about a waiting or failing replica."""
    reason = str(thing.get("reason") or "")
    if reason not in TOLD:
        return None
    subject = thing["involvedObject"]
    kind, name = str(subject.get("kind") or ""), str(subject["name"])
    space = subject.get("namespace")
    series = thing.get("series") or {}
    times = (
        moment(series.get("lastObservedTime")),
        moment(thing.get("lastTimestamp")),
        moment(thing.get("eventTime")),
        moment(thing["metadata"].get("creationTimestamp")),
    )
    return EventWarning(
        kind,
        f"{space}/{name}" if space and kind != "Node" else name,
        reason,
        " ".join(str(thing.get("message") or "").split())[:240],
        next((at for at in times if at is not None), None),
        int(series.get("count") or thing.get("count") or 1),
    )


def newest(happenings: list[EventWarning], kind: str) -> dict[str, EventWarning]:
    """The newest warning about each object of one kind."""
    found: dict[str, EventWarning] = {}
    for one in happenings:
        known = found.get(one.about)
        if one.kind == kind and (known is None or (one.at or 0.0) >= (known.at or 0.0)):
            found[one.about] = one
    return found


__all__ = ["FIELDS", "TOLD", "EventWarning", "newest", "read_event"]
