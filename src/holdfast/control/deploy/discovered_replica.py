"""A pod of a platform as a replica of the fleet, and how pods of a reading become such replicas.

``discovered`` applies the ``discover`` rules of models to one reading of a source. It computes
only: which id a replica has in the fleet, and what is remembered of it, is ``discovered_model``'s.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Self

from pydantic import ValidationError

from holdfast.config.discovery import IMAGE, DiscoverSection
from holdfast.config.fleet_file import EndpointSection, ModelSection
from holdfast.core.deploy.platform_readiness import READINESS, VERDICT
from holdfast.core.deploy.pod_port import PodPort, port_of
from holdfast.core.view.layers import Host, Placed, Reading
from holdfast.core.view.pod_pools import choose_pool, pod_of_key, pool_keys
from holdfast.core.view.selectors import parse_selector

ID_MAX: Final = 100  # of a pod's name, which may have 253 characters

_ZONE: Final = "topology.kubernetes.io/zone"


@dataclass(slots=True, frozen=True)
class DiscoveredReplica:
    """A pod of a platform that is (or is to be) a replica of the fleet, as last read.

    For an inference pool each port of a pod is one.
    """

    pod: str  # the id at its source
    uid: str
    url: str
    zone: str = ""
    host: str = ""
    leaving: bool = False  # it was told to end
    since: float = 0.0
    id: str = ""  # in the fleet
    revision: str = ""  # as its platform tells versions apart; empty: the model's
    ready: bool | None = None  # as its platform's probes say
    was_ready: bool = False  # they have said so
    drained: bool = False  # because they say so no more
    problem: str = ""  # why it has no URL; such a pod is left out
    notice: str = ""  # why it, or its host, is about to be taken away

    def endpoint(self, rule: DiscoverSection) -> EndpointSection:
        """The replica as an endpoint section, to be added to the fleet file in use.

        Region and slots come from the model's ``discover`` rule.
        """
        return EndpointSection(
            url=self.url,
            id=self.id,
            zone=self.zone or EndpointSection.model_fields["zone"].default,
            region=rule.region,
            host=self.host,
            slots=rule.slots,
            revision=self.revision or None,
        )

    def id_wishes(self, model: str) -> tuple[str, str]:
        """The ids that a new replica may get, the wished one first: the pod's name, then longer."""
        space, _, plain = self.pod.replace(":", "-").rpartition("/")
        space = space or model  # a task of ECS has no namespace
        return _short(plain), _short(f"{space}.{plain}")

    def identified(self, own: str, known: Self | None) -> Self:
        """The replica with its id, and with what its predecessor at this pod's name passes on.

        ``known`` is the replica that was last known there: the same pod, or one that is gone.
        """
        if known is None:
            return replace(self, id=own)
        # A host that is gone before its pod takes the zone along; the replica has not moved.
        named = replace(self, id=own, zone=self.zone or known.zone)
        if not self.is_same_pod(known):
            return named
        was_ready = known.was_ready or self.was_ready
        # A pod does not change what it runs: whoever edits a label does not start it anew.
        revision = known.revision
        return replace(named, revision=revision, was_ready=was_ready, drained=known.drained)

    def is_same_pod(self, known: Self) -> bool:
        """Whether ``known`` is this pod, and not another one that had its name."""
        return known.uid == self.uid

    def place(self) -> Self:
        """The replica without drain and readiness marks: only the rest needs a new fleet file."""
        return replace(self, leaving=False, ready=None, was_ready=False, drained=False, notice="")

    def leave_reason(self) -> str:
        """Why the replica is drained, or would be, as a clause for people."""
        if self.notice and not self.leaving:
            return self.notice
        told = "was told to end" if self.leaving else "is not ready any more, as its platform says"
        return f"its pod {self.pod} {told}"

    def unusable(self) -> str:
        """The reason why URL and id make no valid endpoint; empty where they do."""
        try:
            EndpointSection(url=self.url, id=self.id)
        except ValidationError as error:
            return f"it cannot be an endpoint: {error.errors()[0]['msg']}"[:200]
        return ""


def discovered(
    reading: Reading,
    models: Iterable[ModelSection],
    known: Mapping[str, Mapping[str, DiscoveredReplica]] | None = None,
) -> dict[str, list[DiscoveredReplica]]:
    """The replicas of each discovered model that a source's reading shows, oldest first.

    A pod is one as soon as it runs and has an address, ready or not, until it is gone; one that was
    told to end is marked ``leaving``. Of two at one URL the newer is taken. Of an inference pool
    that is missing only ``known`` replicas (by model, then pod) are found. Computes only: ids are
    given later.
    """
    hosts = {host.id: host for host in reading.hosts}
    reachable = [
        placed
        for placed in reading.placed
        if placed.address and placed.state in {"running", "stopping"}
    ]
    by_model: dict[str, list[Placed]] = {}
    for placed in reachable:
        by_model.setdefault(placed.model, []).append(placed)
    found: dict[str, list[DiscoveredReplica]] = {}
    for model in models:
        rule = model.discover
        if rule is None or rule.source != reading.source:
            continue
        if rule.inference_pool:
            before = (known or {}).get(model.name, {})
            shown = _in_pool(reading, reachable, rule, hosts, before)
        else:
            chosen = reachable if rule.selector else by_model.get(model.name, ())
            shown = (
                _found(one, rule, hosts, port_of(one.port_said, rule.port, one.ports))
                for one in chosen
                if _fits(one, rule)
            )
        by_url: dict[str, DiscoveredReplica] = {}
        for one in shown:
            place = one.url or one.pod
            other = by_url.get(place)
            if other is None or _later(one, other):
                by_url[place] = one
        found[model.name] = sorted(by_url.values(), key=lambda one: (one.since, one.pod))
    return found


def _in_pool(
    reading: Reading,
    reachable: Iterable[Placed],
    rule: DiscoverSection,
    hosts: Mapping[str, Host],
    known: Mapping[str, DiscoveredReplica],
) -> Iterator[DiscoveredReplica]:
    """The replicas of an inference pool: each port of each of its pods is one.

    Where there is no such pool, those that are known and whose pods are still there, as they were.
    """
    pool = choose_pool(reading.pools, rule.inference_pool, rule.namespace).pool
    kept: dict[str, list[DiscoveredReplica]] = {}
    for one in known.values() if pool is None else ():
        kept.setdefault(pod_of_key(one.pod), []).append(one)
    for placed in reachable:
        for one in kept.get(placed.id, ()):
            if one.uid == placed.uid:  # another pod of that name would be a new one
                made = _found(placed, rule, hosts, PodPort(None))
                yield replace(made, pod=one.pod, url=one.url)
        if pool is not None and pool.has(placed.id, placed.labels):
            for key, port in pool_keys(placed.id, pool.ports):
                yield replace(_found(placed, rule, hosts, PodPort(port)), pod=key)


def _fits(placed: Placed, rule: DiscoverSection) -> bool:
    if rule.namespace and placed.id.partition("/")[0] != rule.namespace:
        return False
    return not rule.selector or parse_selector(rule.selector)(dict(placed.labels))


def _found(
    placed: Placed, rule: DiscoverSection, hosts: Mapping[str, Host], port: PodPort
) -> DiscoveredReplica:
    address = f"[{placed.address}]" if ":" in placed.address else placed.address
    usual = {"http": 80, "https": 443}[rule.scheme] == port.number
    url = f"{rule.scheme}://{address}" + ("" if usual else f":{port.number}") + placed.path
    # Newer API servers copy it to pods; who may not list nodes knows it from there alone.
    host = hosts.get(placed.host) or Host("")
    zone = (dict(placed.labels).get(_ZONE) or host.zone)[:64]
    leaving = placed.state == "stopping"
    since = placed.created_at or 0.0
    # A probe that says what control said would drain whom control doubts, and doubt whom it drains.
    ours = dict(placed.labels).get(READINESS) == VERDICT
    return DiscoveredReplica(
        placed.id,
        placed.uid,
        "" if port.problem else url,
        zone,
        placed.host[:253],
        leaving,
        since,
        revision=_revision(placed, rule),
        ready=None if ours else placed.ready,
        was_ready=placed.ready is True and not ours,
        problem=port.problem,
        notice=_notice(placed, host),
    )


def _notice(placed: Placed, host: Host) -> str:
    """Why a pod goes soon, for people; empty where nobody says so."""
    if placed.notice:
        return f"its pod {placed.id} {placed.notice}"
    return f"its host {host.id} {host.notice}" if host.notice else ""


def _revision(placed: Placed, rule: DiscoverSection) -> str:
    """The pod's revision: its first label of ``revision_from``, or its image; empty: neither."""
    labels = dict(placed.labels)
    for name in rule.revision_from:
        found = placed.digest or placed.image if name == IMAGE else labels.get(name, "")
        if found:
            return _short(found)
    return ""


def _later(one: DiscoveredReplica, other: DiscoveredReplica) -> bool:
    return (not one.leaving, one.since, one.pod) > (not other.leaving, other.since, other.pod)


def _short(name: str) -> str:
    """Shorten a name to fit an id; a digest keeps long names with the same beginning apart."""
    if len(name) <= ID_MAX:
        return name
    return f"{name[:ID_MAX]}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


__all__ = ["ID_MAX", "DiscoveredReplica", "discovered"]
