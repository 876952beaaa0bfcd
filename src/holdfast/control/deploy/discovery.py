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
from collections.abc import Callable, Iterable
from typing import Final, Protocol, runtime_checkable

import structlog

from holdfast.config.discovery import FOUND_MAX
from holdfast.config.fleet_file import EndpointSection, FleetFile
from holdfast.control.deploy.discovered_model import DiscoveredModel, ReplicaIds
from holdfast.control.deploy.discovered_replica import DiscoveredReplica, discovered
from holdfast.control.deploy.pool_notices import PoolNotices
from holdfast.core.messages import DrainAsked, FleetEvent, Notice
from holdfast.core.view.layers import Placed, Reading
from holdfast.ports import Store, StoreError

LOOK_S: Final = 0.05  # between two looks: a rollout of a hundred pods is not a hundred configs
SOURCES_S: Final = 1.0  # how soon a source that a new config brings is followed
FORMER_MAX: Final = 4_096  # pods that ended and whose replica's id is remembered

_KEPT: Final = "discovered/"

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
        self._models: dict[str, DiscoveredModel] = {}
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
                self._models[name] = DiscoveredModel.restored(section, kept.get(_KEPT + name))
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
        replaced, drains, moved = self._take(reading)
        self._names = self.pods()
        if drains:
            self._host.tell(*drains)
        if replaced:
            # Another pod has a former one's id and URL, and the fleet would take it for that one,
            # drained as it was: first the former goes, then the other comes.
            held = {name: dict(model.replicas) for name, model in self._models.items()}
            for name, pod in replaced:
                self._models[name].replicas.pop(pod, None)
            self._host.placed()
            for name, model in self._models.items():
                model.replicas = held[name]
        if moved:
            self._host.placed()

    def _relevant(self, reading: Reading) -> tuple[object, ...]:
        """What of a reading decides about replicas: pods that may be some, their hosts, pools."""
        rules = [model.rule for model in self._models.values()]
        mine = [one for one in rules if one.source == reading.source]
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
        drains: list[FleetEvent] = []
        moved, now = False, time.monotonic_ns()
        sections = [model.section for model in self._models.values()]
        known = {name: model.replicas for name, model in self._models.items()}
        found = discovered(reading, sections, known)
        ids = ReplicaIds(self._models.values(), self._taken)
        for name, replicas in found.items():
            model = self._models[name]
            changes = model.take(replicas[:FOUND_MAX], ids, now)
            replaced += [(name, pod) for pod in changes.replaced]
            drains += changes.drains
            moved |= changes.moved
            for notice in changes.notices:
                self._host.note(notice)
            for pod, own in changes.gone.items():
                self._former[reading.source, pod] = own
            while len(self._former) > FORMER_MAX:
                del self._former[next(iter(self._former))]
            if changes.changed:
                self._keep(name)
            for notice in self._pool_notices.changes(model.section, reading, len(model.replicas)):
                self._host.note(notice)
        return replaced, drains, moved

    # --- what control asks -----------------------------------------------------------------------

    def endpoints(self) -> dict[str, list[EndpointSection]]:
        """Endpoints of discovered replicas, by model; ending ones stay until their pod is gone."""
        return {name: model.endpoints() for name, model in self._models.items()}

    def leavers(self) -> list[FleetEvent]:
        """Drain events for pods that end or that their platform calls not ready.

        Control sends them to a fleet that begins anew and does not know of these drains.
        """
        leaving = [one for one in self._all() if one.leaving or one.drained]
        return [DrainAsked(one.id, one.leave_reason()) for one in leaving]

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
            (model.rule.source, pod): one.id
            for model in self._models.values()
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
        rows = model.to_store() if model is not None else []
        try:
            self._store.put_setting(_KEPT + name, rows)
        except StoreError as error:  # it serves on; only the next control would begin with less
            _log.error("discovered replicas not kept", model=name, reason=str(error))


__all__ = ["LOOK_S", "Discovery", "WatchedSource"]
