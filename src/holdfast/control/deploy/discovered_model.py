"""The replicas of one discovered model: their ids, their drains, and what is told of them.

A ``DiscoveredModel`` is the one owner of its replicas. It is given what a reading shows of them
(``discovered_replica.discovered``), takes it over, and returns what follows from it as a value;
``Discovery`` passes that on to the fleet, to operators and to the store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import structlog

from holdfast.config.discovery import DiscoverSection
from holdfast.config.fleet_file import EndpointSection, ModelSection
from holdfast.control.deploy.discovered_replica import DiscoveredReplica
from holdfast.core.deploy.platform_readiness import PodReadiness, drained_pods
from holdfast.core.messages import DrainAsked, FleetEvent, Notice, UndrainAsked

_log = structlog.get_logger("holdfast.control.deploy.discovered_model")


class ReplicaIds:
    """Which pod of which model has each replica id, while one reading is applied.

    Ids that ``taken`` says belong to replicas of the fleet file are free for no pod.
    """

    def __init__(self, models: Iterable["DiscoveredModel"], taken: Callable[[str], bool]) -> None:
        self._taken = taken
        self._owners = {
            one.id: (model.section.name, pod)
            for model in models
            for pod, one in model.replicas.items()
        }

    def free_for(self, model: str, pod: str, wishes: Iterable[str]) -> str:
        """The first of the wished ids that a pod may have, or has already; empty: none."""
        me = (model, pod)
        for own in wishes:
            if self._owners.get(own, me) == me and not self._taken(own):
                return own
        return ""

    def claim(self, model: str, pod: str, own: str) -> None:
        """Give an id to a pod, so that it is free for no other."""
        self._owners[own] = (model, pod)


@dataclass(slots=True, frozen=True)
class PodChanges:
    """What a reading changed about the replicas of one model."""

    notices: list[Notice]
    drains: list[FleetEvent]  # to ask of the fleet: drains, and undrains
    replaced: list[str]  # pods whose replica is another pod by the same name now
    gone: dict[str, str]  # by pod: the ids of replicas that are no more
    changed: bool  # the store does not have it yet
    moved: bool  # the endpoints differ


@dataclass(slots=True)
class DiscoveredModel:
    """A discovered model, its replicas, and the pods that were reported as left out."""

    section: ModelSection
    replicas: dict[str, DiscoveredReplica] = field(default_factory=dict)  # by pod
    _told: set[str] = field(default_factory=set)  # pods of which it was told that they are left out

    @classmethod
    def restored(cls, section: ModelSection, rows: Any) -> Self:
        """The model with the replicas that ``to_store`` wrote.

        Entries that cannot be read are left out and logged.
        """
        replicas: dict[str, DiscoveredReplica] = {}
        for row in rows if isinstance(rows, list) else ():
            try:
                one = DiscoveredReplica(**row)
                problem = one.unusable()
            except TypeError as error:
                problem = type(error).__name__
            if problem:
                _log.error("kept replica not understood", reason=problem)
            else:
                replicas[one.pod] = one
        return cls(section, replicas)

    def to_store(self) -> list[dict[str, Any]]:
        """The replicas as rows for the store, which another control is to begin with."""
        return [
            {key: getattr(one, key) for key in DiscoveredReplica.__slots__}
            for one in self.replicas.values()
        ]

    @property
    def rule(self) -> DiscoverSection:
        """The section by which pods of this model are found."""
        assert self.section.discover is not None, "only discovered models are kept here"
        return self.section.discover

    def endpoints(self) -> list[EndpointSection]:
        """The replicas as endpoints; ending ones stay until their pod is gone."""
        return [one.endpoint(self.rule) for one in self.replicas.values()]

    def take(self, found: Sequence[DiscoveredReplica], ids: ReplicaIds, now: int) -> PodChanges:
        """Replace the replicas by those that a reading shows, and return what that changed.

        Each gets its id, which is claimed in ``ids``; pods that end before they joined, and those
        whose id or URL is unusable, are left out.
        """
        before, notices = self.replicas, list[Notice]()
        after: dict[str, DiscoveredReplica] = {}
        for one in found:
            made, problem = self._identified(one, ids)
            if problem and one.pod not in self._told:
                self._told.add(one.pod)
                told = f"pod {one.pod}: {problem}"
                notices.append(Notice(0, self.section.name, "", "left out", told))
            if made is not None:
                ids.claim(self.section.name, one.pod, made.id)
                after[one.pod] = made
        self._told &= {one.pod for one in found}
        drains = _follow_readiness(after)
        replaced: list[str] = []
        for pod, one in after.items():
            was = before.get(pod)
            if was is None:
                continue
            if not one.is_same_pod(was):
                replaced.append(pod)
            elif one.leaving and not was.leaving:
                drains.append(DrainAsked(one.id, one.leave_reason()))
        changed = before != after
        if changed:
            notices += _notices(self.section.name, before, after, now)
            self.replicas = after
        gone = {pod: one.id for pod, one in before.items() if pod not in after}
        moved = changed and _places(before) != _places(after)
        return PodChanges(notices, drains, replaced, gone, changed, moved)

    def _identified(
        self, one: DiscoveredReplica, ids: ReplicaIds
    ) -> tuple[DiscoveredReplica | None, str]:
        """The replica with its id, or None where it is left out; and the problem with its pod.

        One whose port is not known stays where it serves already: it has a problem and is there.
        """
        known, port_problem = self.replicas.get(one.pod), one.problem
        if known is not None and one.is_same_pod(known):
            one = replace(one, url=known.url, problem="") if port_problem else one
        elif port_problem:
            return None, port_problem
        elif one.leaving:  # it was on its way out before anybody could send it a request
            return None, ""
        name = self.section.name
        wishes = one.id_wishes(name) if known is None else (known.id,)
        own = ids.free_for(name, one.pod, wishes)
        if not own:
            told = "its name is that of another replica; rename one of them"
            return None, port_problem or told
        made = one.identified(own, known)
        problem = made.unusable() if made != known else ""
        return (None if problem else made), port_problem or problem


def _follow_readiness(replicas: dict[str, DiscoveredReplica]) -> list[FleetEvent]:
    """Mark replicas whose pods are ready no more, or go soon, as drained; return the events."""
    staying = [one for one in replicas.values() if not one.leaving]
    wanted = drained_pods(
        [
            PodReadiness(one.pod, one.ready, one.was_ready, one.drained, bool(one.notice))
            for one in staying
        ]
    )
    events: list[FleetEvent] = []
    for one in staying:
        drained = one.pod in wanted
        if drained is not one.drained:
            replicas[one.pod] = replace(one, drained=drained)
            why = one.leave_reason() if drained else f"its pod {one.pod} may serve again"
            events.append(DrainAsked(one.id, why) if drained else UndrainAsked(one.id, why))
    return events


def _notices(
    name: str,
    before: Mapping[str, DiscoveredReplica],
    after: Mapping[str, DiscoveredReplica],
    now: int,
) -> Iterator[Notice]:
    """What operators are told of replicas that came, leave or are gone."""
    for pod, one in after.items():
        known = before.get(pod)
        if known is None or not one.is_same_pod(known):
            told = f"pod {pod} at {one.url}" + (f" on {one.host}" if one.host else "")
            yield Notice(now, name, one.id, "discovered", told)
        elif one.leaving and not known.leaving:
            yield Notice(now, name, one.id, "leaves", one.leave_reason())
    for pod, one in before.items():
        if pod not in after:
            yield Notice(now, name, one.id, "gone", f"pod {pod} is no more")
    if before and not after:
        yield Notice(now, name, "", "has no replica", "no pod of it is left")


def _places(replicas: Mapping[str, DiscoveredReplica]) -> dict[str, DiscoveredReplica]:
    return {pod: one.place() for pod, one in replicas.items()}


__all__ = ["DiscoveredModel", "PodChanges", "ReplicaIds"]
