"""Turns pods that a platform lists into replicas of the fleet, and drains pods that end.

    source ─► changed ─► reading ─► discovered ─┬─► told to end: DrainAsked, at once
             was ready, and is not; a notice ──┼─► DrainAsked; ready again: UndrainAsked
                                                └─► come, moved, gone: the file with endpoints

Three things are not left to the platform. Whether a replica is *ready* is decided by canaries.
Replicas that are *known* stay: a source that fails, or that has not answered yet since control
began, removes none, nor does an inference pool that is no more. And a pod's *name* cannot break the
fleet: a pod whose id or URL another replica has is left out, with a notice.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, Protocol, runtime_checkable

import structlog
from pydantic import ValidationError

from holdfast.config.discovery import FOUND_MAX, IMAGE, DiscoverSection
from holdfast.config.fleet_file import EndpointSection, FleetFile, ModelSection
from holdfast.control.deploy.pool_notices import PoolNotices
from holdfast.core.deploy.platform_readiness import READINESS, VERDICT, PodReadiness, drained_pods
from holdfast.core.deploy.pod_port import PodPort, port_of
from holdfast.core.messages import DrainAsked, FleetEvent, Notice, UndrainAsked
from holdfast.core.view.layers import Host, Placed, Reading
from holdfast.core.view.pod_pools import choose_pool, pod_of_key, pool_keys
from holdfast.core.view.selectors import parse_selector
from holdfast.ports import Store, StoreError

LOOK_S: Final = 0.05  # between two looks: a rollout of a hundred pods is not a hundred configs
SOURCES_S: Final = 1.0  # how soon a source that a new config brings is followed
FORMER_MAX: Final = 4_096  # pods that ended and whose replica's id is remembered
ID_MAX: Final = 100  # of a pod's name, which may have 253 characters

_KEPT: Final = "discovered/"
_ZONE: Final = "topology.kubernetes.io/zone"

_log = structlog.get_logger("holdfast.control.deploy.discovery")


@runtime_checkable
class WatchedSource(Protocol):
    """A source of pods that says when its data changed; sources without this are not watched."""

    name: str
    replica_of: Callable[[str], str]  # set here: rows of the view then carry the replica's id

    @property
    def known(self) -> bool:
        """Whether the source was read successfully at least once; before that it lists no pods."""

    async def changed(self, since: int) -> int:
        """Wait until the source's data is newer than version ``since``; return its version."""

    def glance(self) -> Reading:
        """The hosts and pods that the source knows now, without asking the platform again."""


class DiscoveryPort(Protocol):
    """The methods of control that ``Discovery`` calls."""

    def tell(self, *events: FleetEvent) -> None:
        """Pass events to the fleet's state machine."""

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def placed(self) -> None:
        """Signal that a replica was found or is gone, or that the address of one changed."""


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


@dataclass(slots=True)
class _Model:
    """A discovered model, its replicas, and the pods that were reported as left out."""

    section: ModelSection
    replicas: dict[str, DiscoveredReplica] = field(default_factory=dict)  # by pod
    told: set[str] = field(default_factory=set)  # pods of which it was told that they are left out


class Discovery:
    """Follows the pods of discovered models, makes replicas of them, and drains those that end.

    Known replicas are stored and stay while a source fails.
    """

    def __init__(
        self, sources: Callable[[], Iterable[object]], store: Store, host: DiscoveryPort
    ) -> None:
        self._sources = sources
        self._store = store
        self._host = host
        self._models: dict[str, _Model] = {}
        self._taken: Callable[[str], bool] = lambda _: False
        self._readings: dict[str, Reading] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._former: dict[tuple[str, str], str] = {}  # of pods that ended: their end is theirs
        self._pool_notices = PoolNotices()

    # --- life ------------------------------------------------------------------------------------

    def follow(self, file: FleetFile) -> None:
        """Apply a new fleet file; ``endpoints`` reflects it when this returns.

        Replicas of a model that is new here are restored from the store; those of a removed model
        are dropped, also there.
        """
        wanted = {model.name: model for model in file.models if model.discover is not None}
        self._pool_notices.follow(file)
        listed = {one.replica.id for one in file.replicas()}
        launched = [model for model in file.models if model.launch is not None]
        self._taken = lambda own: own in listed or any(one.may_name(own) for one in launched)
        for name in [*self._models]:
            if name not in wanted:
                del self._models[name]
                self._keep(name)
        kept = self._store.settings() if wanted.keys() - self._models.keys() else {}
        for name, section in wanted.items():
            known = self._models.get(name)
            if known is None:
                self._models[name] = _Model(section, _restored(kept.get(_KEPT + name)))
            else:
                known.section = section
        for reading in list(self._readings.values()):
            self._take(reading)
        self._names = self.pods()

    async def run(self) -> None:
        """Watch all sources, each in its own task, until cancelled; new sources within a second."""
        tasks: dict[int, tuple[WatchedSource, asyncio.Task[None]]] = {}
        try:
            while True:
                present = {
                    id(one): one for one in self._sources() if isinstance(one, WatchedSource)
                }
                for key in [key for key in tasks if key not in present]:
                    source, task = tasks.pop(key)
                    self._readings.pop(source.name, None)
                    task.cancel()
                for key, source in present.items():
                    if key not in tasks:
                        tasks[key] = (source, asyncio.create_task(self._watch(source)))
                for _, task in tasks.values():
                    if task.done():
                        task.result()  # a mistake of ours must not be missing in silence
                await asyncio.sleep(SOURCES_S)
        finally:
            for _, task in tasks.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in tasks.values()), return_exceptions=True)

    async def _watch(self, source: WatchedSource) -> None:
        seen, name = -1, source.name
        source.replica_of = lambda pod: self.replica_of(name, pod)
        while True:
            seen = await source.changed(seen)
            began = time.monotonic()
            if source.known:
                self.look(source.glance())
            # However much changes, and however many there are, a fifth of the time is enough.
            await asyncio.sleep(max(LOOK_S, 4 * (time.monotonic() - began)))

    # --- what was seen ---------------------------------------------------------------------------

    def look(self, reading: Reading) -> None:
        """Apply a source's reading: find new replicas, drop those whose pods are gone.

        Drains at once those whose pods end or are ready no more, and undrains those that are ready
        again. Does nothing if nothing relevant changed.
        """
        before, self._readings[reading.source] = self._readings.get(reading.source), reading
        if before is not None and self._relevant(before) == self._relevant(reading):
            return  # another model's pod has changed, as some pod of a cluster always does
        replaced, leavers, changed = self._take(reading)
        self._names = self.pods()
        if leavers:
            self._host.tell(*leavers)
        if replaced:
            # Another pod has a former one's id and URL, and the fleet would take it for that one,
            # drained as it was: first the former goes, then the other comes.
            held = {name: dict(model.replicas) for name, model in self._models.items()}
            for name, pod in replaced:
                self._models[name].replicas.pop(pod, None)
            self._host.placed()
            for name, model in self._models.items():
                model.replicas = held[name]
        if changed:
            self._host.placed()

    def _relevant(self, reading: Reading) -> tuple[object, ...]:
        """What of a reading decides about replicas: pods that may be some, their hosts, pools."""
        rules = [one.section.discover for one in self._models.values()]
        mine = [one for one in rules if one is not None and one.source == reading.source]
        placed: Iterable[Placed] = reading.placed
        if not any(one.selector or one.inference_pool for one in mine):
            placed = (one for one in placed if one.model in self._models)
        hosts = [(host.id, host.zone, host.notice) for host in reading.hosts]
        return list(placed), hosts, reading.pools

    def _take(self, reading: Reading) -> tuple[list[tuple[str, str]], list[FleetEvent], bool]:
        """Update the replicas from a reading.

        Returns the pods that took over another's id, the drains to ask for, and whether endpoints
        changed.
        """
        replaced: list[tuple[str, str]] = []
        leavers: list[FleetEvent] = []
        changed = False
        sections = [model.section for model in self._models.values()]
        known = {name: model.replicas for name, model in self._models.items()}
        found = discovered(reading, sections, known)
        owners = {
            one.id: (name, pod)
            for name, model in self._models.items()
            for pod, one in model.replicas.items()
        }
        for name, replicas in found.items():
            model = self._models[name]
            before = model.replicas
            after = self._named(model, replicas[:FOUND_MAX], owners)
            leavers += _follow_readiness(after)
            for pod, one in after.items():
                was = before.get(pod)
                same = was is not None and was.uid == one.uid
                if was is not None and not same:
                    replaced.append((name, pod))
                if one.leaving and same and was is not None and not was.leaving:
                    leavers.append(DrainAsked(one.id, _why(one)))
            if before != after:
                changed |= _places(before) != _places(after)
                self._tell(name, before, after)
                for pod in before.keys() - after.keys():
                    self._former[reading.source, pod] = before[pod].id
                while len(self._former) > FORMER_MAX:
                    del self._former[next(iter(self._former))]
                model.replicas = after
                self._keep(name)
            for notice in self._pool_notices.changes(model.section, reading, len(after)):
                self._host.note(notice)
        return replaced, leavers, changed

    def _named(
        self, model: _Model, found: Sequence[DiscoveredReplica], owners: dict[str, tuple[str, str]]
    ) -> dict[str, DiscoveredReplica]:
        """Give replicas their ids; leave out pods that end, or whose id or URL is unusable."""
        named: dict[str, DiscoveredReplica] = {}
        for one in self._with_urls(model, found):
            known = model.replicas.get(one.pod)
            if one.leaving and (known is None or known.uid != one.uid):
                continue  # it was on its way out before anybody could send it a request
            me = (model.section.name, one.pod)
            space, _, plain = one.pod.replace(":", "-").rpartition("/")
            space = space or model.section.name  # a task of ECS has no namespace
            fresh = (_short(plain), _short(f"{space}.{plain}"))
            wishes = fresh if known is None else (known.id,)
            free = [own for own in wishes if owners.get(own, me) == me and not self._taken(own)]
            # A host that is gone before its pod takes the zone along; the replica has not moved.
            zone = one.zone or (known.zone if known is not None else "")
            # A pod does not change what it runs: whoever edits a label does not start it anew.
            same = known is not None and known.uid == one.uid
            revision = known.revision if same and known is not None else one.revision
            made = replace(one, id=free[0], zone=zone, revision=revision) if free else one
            if same and known is not None:
                was_ready = known.was_ready or made.was_ready
                made = replace(made, was_ready=was_ready, drained=known.drained)
            problem = "" if free else "its name is that of another replica; rename one of them"
            if made != known:
                problem = problem or _unusable(made.url, made.id)
            if problem:
                self._left_out(model, one, problem)
                continue
            owners[made.id] = me
            named[one.pod] = made
        model.told &= {one.pod for one in found}
        return named

    def _with_urls(
        self, model: _Model, found: Iterable[DiscoveredReplica]
    ) -> Iterator[DiscoveredReplica]:
        """The pods whose port is known; others are left out, or stay where they serve already."""
        for one in found:
            if not one.problem:
                yield one
                continue
            self._left_out(model, one, one.problem)
            known = model.replicas.get(one.pod)
            if known is not None and known.uid == one.uid:
                yield replace(one, url=known.url, problem="")

    def _left_out(self, model: _Model, one: DiscoveredReplica, problem: str) -> None:
        if one.pod not in model.told:
            model.told.add(one.pod)
            told = f"pod {one.pod}: {problem}"
            self._host.note(Notice(0, model.section.name, "", "left out", told))

    def _tell(
        self,
        name: str,
        before: Mapping[str, DiscoveredReplica],
        after: Mapping[str, DiscoveredReplica],
    ) -> None:
        now = time.monotonic_ns()
        for pod, one in after.items():
            known = before.get(pod)
            if known is None or known.uid != one.uid:
                told = f"pod {pod} at {one.url}" + (f" on {one.host}" if one.host else "")
                self._host.note(Notice(now, name, one.id, "discovered", told))
            elif one.leaving and not known.leaving:
                self._host.note(Notice(now, name, one.id, "leaves", _why(one)))
        for pod, one in before.items():
            if pod not in after:
                self._host.note(Notice(now, name, one.id, "gone", f"pod {pod} is no more"))
        if before and not after:
            self._host.note(Notice(now, name, "", "has no replica", "no pod of it is left"))

    # --- what control asks -----------------------------------------------------------------------

    def endpoints(self) -> dict[str, list[EndpointSection]]:
        """Endpoints of discovered replicas, by model; ending ones stay until their pod is gone."""
        placed: dict[str, list[EndpointSection]] = {}
        for name, model in self._models.items():
            rule = model.section.discover
            assert rule is not None, "only discovered models are kept here"
            placed[name] = [one.endpoint(rule) for one in model.replicas.values()]
        return placed

    def leavers(self) -> list[FleetEvent]:
        """Drain events for pods that end or that their platform calls not ready.

        Control sends them to a fleet that begins anew and does not know of these drains.
        """
        return [DrainAsked(one.id, _why(one)) for one in self._all() if one.leaving or one.drained]

    def leaves(self, replica_id: str) -> bool:
        """Whether the replica's pod was told to end; an operator cannot undrain it then."""
        return any(one.id == replica_id and one.leaving for one in self._all())

    def withdrawn(self, replica_id: str) -> bool:
        """Whether the replica's pod ends, has ended, or is drained for its platform's sake.

        False for replicas that never were discovered.
        """
        for one in self._all():
            if one.id == replica_id:
                return one.leaving or one.drained
        return replica_id in self._former.values()

    def ids(self) -> set[str]:
        """The fleet's ids of all present discovered replicas, of all models."""
        return {one.id for one in self._all()}

    def pods(self) -> dict[tuple[str, str], str]:
        """The replica id of each present pod, by (source name, pod id)."""
        return {
            (model.section.discover.source, pod): one.id
            for model in self._models.values()
            if model.section.discover is not None
            for pod, one in model.replicas.items()
        }

    def replica_of(self, source: str, pod: str) -> str:
        """The id of the replica that a pod is, or was before it ended; empty: it never was one."""
        return self._names.get((source, pod)) or self._former.get((source, pod), "")

    def _all(self) -> Iterable[DiscoveredReplica]:
        return (one for model in self._models.values() for one in model.replicas.values())

    # --- what outlives this process --------------------------------------------------------------

    def _keep(self, name: str) -> None:
        model = self._models.get(name)
        rows = [
            {key: getattr(one, key) for key in DiscoveredReplica.__slots__}
            for one in (model.replicas.values() if model is not None else ())
        ]
        try:
            self._store.put_setting(_KEPT + name, rows)
        except StoreError as error:  # it serves on; only the next control would begin with less
            _log.error("discovered replicas not kept", model=name, reason=str(error))


def _restored(rows: Any) -> dict[str, DiscoveredReplica]:
    """The replicas that ``_keep`` stored; entries that cannot be read are left out and logged."""
    found: dict[str, DiscoveredReplica] = {}
    for row in rows if isinstance(rows, list) else ():
        try:
            one = DiscoveredReplica(**row)
            problem = _unusable(one.url, one.id)
        except TypeError as error:
            problem = type(error).__name__
        if problem:
            _log.error("kept replica not understood", reason=problem)
        else:
            found[one.pod] = one
    return found


def _unusable(url: str, own: str) -> str:
    """The reason why a URL and an id make no valid endpoint; empty where they do."""
    try:
        EndpointSection(url=url, id=own)
    except ValidationError as error:
        return f"it cannot be an endpoint: {error.errors()[0]['msg']}"[:200]
    return ""


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
            why = _why(one) if drained else f"its pod {one.pod} may serve again"
            events.append(DrainAsked(one.id, why) if drained else UndrainAsked(one.id, why))
    return events


def _places(replicas: Mapping[str, DiscoveredReplica]) -> dict[str, DiscoveredReplica]:
    """The replicas without drain and readiness marks: only what is left needs a new fleet file."""
    return {
        pod: replace(one, leaving=False, ready=None, was_ready=False, drained=False, notice="")
        for pod, one in replicas.items()
    }


def _why(one: DiscoveredReplica) -> str:
    if one.notice and not one.leaving:
        return one.notice
    told = "was told to end" if one.leaving else "is not ready any more, as its platform says"
    return f"its pod {one.pod} {told}"


def _short(name: str) -> str:
    """Shorten a name to fit an id; a digest keeps long names with the same beginning apart."""
    if len(name) <= ID_MAX:
        return name
    return f"{name[:ID_MAX]}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


__all__ = ["LOOK_S", "DiscoveredReplica", "Discovery", "WatchedSource", "discovered"]
