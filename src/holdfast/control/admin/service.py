"""Answers operators' questions and carries out their orders, for the admin port.

Questions only read, and they are answered from what control has in memory: a question never waits
for a replica, a platform or a GPU. The one exception is the story of a request, which a gateway
has. An order is accepted or refused at once, with the reason; the fleet's loop then executes it.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.admin.openapi_schemas import (
    CanaryLine,
    GpuSummary,
    ReplicaStatus,
    StatusAnswer,
)
from holdfast.control.admin.platform_logs import PlatformLogs, placed_at
from holdfast.control.deploy.deployments import HELD, Deployments
from holdfast.control.deploy.discovery import Discovery
from holdfast.control.deploy.source import ConfigSource
from holdfast.control.fleet.breakers import Breakers
from holdfast.control.fleet.disturbances import Disturbances
from holdfast.control.fleet.loop import FleetLoop, Happened
from holdfast.control.gateways.hub import Hub
from holdfast.control.gateways.key_uses import KeyUses
from holdfast.control.gateways.metrics import Totals, fleet_gauges, render
from holdfast.control.gateways.serving_processes import ServingProcesses
from holdfast.control.incidents.gpu_watch import GpuWatch
from holdfast.control.incidents.incident_tracker import IncidentTracker
from holdfast.control.incidents.incident_watch import IncidentWatch
from holdfast.control.lookup_errors import UnknownModelError, UnknownReplicaError
from holdfast.control.view.agents import AgentInbox
from holdfast.control.view.costs_and_exports import CostsAndExports
from holdfast.control.view.fleet_summary import FleetSummary
from holdfast.control.view.history import Sampler, history_metrics
from holdfast.control.view.live_view import LiveView
from holdfast.control.view.source_poller import SourcePoller
from holdfast.core.deploy.pod_readiness import told_ready
from holdfast.core.messages import DrainAsked, FleetView, RestartAsked, UndrainAsked
from holdfast.core.types import Decision
from holdfast.ports import Gauged, Store

EXPLAIN_S: Final = 1.0  # gateways answer from memory; one that is silent for so long is frozen


@dataclass(slots=True, frozen=True, kw_only=True)
class AdminParts:
    """The parts of control that ``AdminService`` reads and gives orders to; it has no behaviour."""

    access: AdminAccess
    control_id: str
    breakers: Breakers
    costs_and_exports: CostsAndExports
    deployments: Deployments
    discovery: Discovery
    disturbances: Disturbances
    gpus: GpuWatch
    hub: Hub
    key_uses: KeyUses
    summary: FleetSummary
    lookout: IncidentWatch
    loop: FleetLoop
    source: ConfigSource
    source_poller: SourcePoller
    store: Store
    totals: Totals
    view: LiveView
    counters: Callable[[], dict[str, float]]  # of all gateways, those that ended included
    epoch: Callable[[], int]  # of the config that gateways are told
    load_gauges: Callable[[], dict[str, float]]
    reload: Callable[[], Awaitable[bool]]
    serving_processes: ServingProcesses
    sampler: Callable[[], Sampler | None]  # None where no history is kept


class AdminService:
    """Answers the admin port's questions from memory and passes its orders to control's parts."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts
        self._platform_logs = PlatformLogs()
        # What pods are told, by model, for one view: a thousand agents ask between two of them.
        self._told_of: tuple[FleetView | None, float] = (None, 0.0)
        self._told: dict[str, dict[str, Decision]] = {}

    @property
    def view(self) -> LiveView:
        """The joined view of replicas, hosts and queues (``LiveView``), for its HTTP routes."""
        return self._parts.view

    # --- questions -------------------------------------------------------------------------------

    def ready(self) -> tuple[bool, str]:
        """Whether some gateway is ready and heard from lately, and the text for ``/readyz``.

        If so, the text also names frozen Holdfast processes.
        """
        gateways = list(self._parts.hub.gateways.values())
        if any(gateway.serves for gateway in gateways):
            worries = self._parts.serving_processes.worries()
            return True, "; ".join(["ready", *worries[:4]])
        reasons = sorted({gateway.told_reason for gateway in gateways})
        return False, "; ".join(reasons[:4] or ["no gateway is connected"])

    def model_ready(self, model: str) -> tuple[bool, str]:
        """Whether a replica of this model is READY, and why (not); False for unknown models."""
        if model not in {one.name for one in self._parts.source.file.models}:
            return False, "no such model"
        ready = self._parts.loop.ready(model)
        return ready, "ready" if ready else "no replica is ready"

    def replica_ready(self, model: str, replica_id: str) -> Decision | None:
        """What a replica's readiness probe shall say, with the reason; None: no such replica.

        Not ready where it gets no requests; on mere suspicion only for a bounded share of its pool.
        Cached for each published view.
        """
        view, share_max = self._parts.loop.view, self._parts.source.file.fleet.ejection.share_max
        if view is None:
            return None
        if self._told_of[0] is not view or self._told_of[1] != share_max:
            self._told_of, self._told = (view, share_max), {}
        told = self._told.get(model)
        if told is None:
            rows = [row for row in view.replicas if row.replica.model == model]
            if not rows:
                return None  # and not remembered: callers name models as they like
            told = self._told[model] = told_ready(rows, share_max)
        return told.get(replica_id)

    def events(self, limit: int = 1_000, replica: str | None = None) -> list[Happened]:
        """The newest stored events, at most ``limit``, the newest last; all or of one replica."""
        found = self._parts.store.events(limit, replica)
        return [Happened(e.at, e.model, e.replica, e.what, e.reason, e.kind) for e in found]

    def canaries(self, replica_id: str) -> list[CanaryLine]:
        """The results of a replica's last canaries, the newest last.

        Raises ``UnknownReplicaError``.
        """
        if replica_id not in self._parts.loop.deployed:
            raise UnknownReplicaError(replica_id)
        found = self._parts.loop.canaries(replica_id)
        return [
            {"at": o.at, "verdict": o.told(), "detail": o.detail, "latency_s": o.latency_s}
            for o in found
        ]

    def status(self) -> StatusAnswer:
        """The answer to ``/status``: gateways, replicas, models, config problems and so on."""
        sampler = self._parts.sampler()
        return {
            "control": self._parts.control_id,
            "epoch": self._parts.epoch(),
            "config_problems": self._parts.source.problems,
            "gateways": [gateway.snapshot() for gateway in self._parts.hub.gateways.values()],
            "processes": self._parts.serving_processes.rows(),
            "replicas": cast("list[ReplicaStatus]", self._parts.summary.status_rows()),
            "gpus": cast("GpuSummary", self._parts.gpus.summary()),
            "models": self._parts.deployments.snapshot(),
            "panic": self._parts.loop.panic(),
            "breakers_overruled": self._parts.breakers.overruled(time.monotonic_ns()),
            "incidents_open": self.incidents.open_count,
            "disturbed": self._parts.disturbances.snapshot(),
            "store": self._parts.store.snapshot(),
            "history": sampler.history.snapshot() if sampler is not None else None,
        }

    @property
    def incidents(self) -> IncidentTracker:
        """The tracker of all incidents, open and stored, which can also close them."""
        return self._parts.lookout.incidents

    def report(self, report: object) -> int:
        """Accept the facts of a ``POST /facts`` body, all or none; return how many.

        Raises ``BadReportError`` or ``TooMuchError``.
        """
        return self._parts.lookout.reported.take(report)

    def gpus(self) -> dict[str, Any]:
        """The last report of this host's GPUs, as plain data; the driver is not asked now."""
        return self._parts.gpus.report()

    def metrics(self) -> str:
        """All counters and gauges of control and the gateways, as Prometheus text."""
        gateways = list(self._parts.hub.gateways.values())
        counters = self._parts.counters()
        told: dict[str, float] = {}
        counters["config_refused_total"] = self._parts.source.refused
        for part in (
            self._parts.access,
            self._parts.lookout,
            self._parts.source_poller,
            self._parts.view,
            self._parts.costs_and_exports,
            self._parts.serving_processes,
        ):
            found, now = part.metrics()
            counters |= found
            told |= now
        for source in self._parts.source_poller.sources.values():
            if isinstance(source, AgentInbox):
                counters |= source.metrics()
            elif isinstance(source, Gauged):
                told |= source.gauges()
        sampler = self._parts.sampler()
        if sampler is not None:
            found, now = history_metrics(sampler.history)
            counters |= found
            told |= now
        gauges = self._parts.load_gauges()
        gauges["metrics_series_left_out"] = self._parts.totals.left_out
        for gateway in gateways:
            gauges[f'gateway_ready{{gateway="{gateway.name}"}}'] = gateway.serves
            gauges[f'gateway_silent_seconds{{gateway="{gateway.name}"}}'] = gateway.silent_s
            gauges[f'gateway_epoch{{gateway="{gateway.name}"}}'] = gateway.epoch
        gauges["config_epoch"] = self._parts.epoch()
        gauges["gateways"] = len(gateways)
        gauges |= fleet_gauges(self._parts.loop.replicas())
        gauges |= told
        return render(counters, gauges)

    def keys(self) -> dict[str, Any]:
        """All tenants' API keys by name, with expiry and last use; never the key itself."""
        return self._parts.key_uses.listing()

    def cost(self) -> dict[str, Any]:
        """GPU-seconds, tokens and their price since this control process began."""
        return self._parts.costs_and_exports.cost()

    async def explain(self, request_id: str) -> bytes | None:
        """Ask all gateways for the recorded story of a recent request, as JSON.

        None: none has it, or none answered within a second.
        """
        return await self._parts.hub.explain(request_id, EXPLAIN_S)

    def problems(self) -> list[str]:
        """Why the fleet file on disk was refused, one text each; empty: it is the one in use."""
        return self._parts.source.problems

    # --- orders ----------------------------------------------------------------------------------

    async def reload(self) -> bool:
        """Read the fleet file now and apply it; False if it was refused.

        True also if it has not changed.
        """
        return await self._parts.reload()

    async def drain(self, replica_id: str) -> tuple[bool, str]:
        """Order a replica drained, and held out of service until it is undrained.

        Returns (True, sentence) at once; the drain takes its time. The hold outlives control.
        Raises ``UnknownReplicaError``.
        """
        self._known(replica_id)
        self._parts.deployments.hold(replica_id, held=True)
        self._parts.loop.tell(DrainAsked(replica_id, HELD))
        return True, f"{replica_id} drains"

    async def undrain(self, replica_id: str) -> tuple[bool, str]:
        """Order a drained replica back into service; whether accepted, and why (not).

        Refused for one that is being removed or whose pod was told to end. Raises
        ``UnknownReplicaError``.
        """
        self._known(replica_id)
        if self._parts.deployments.leaves(replica_id):
            return False, "it is being removed: another has taken its place, or none is wished for"
        if self._parts.discovery.leaves(replica_id):
            return False, "its pod was told to end: nobody here can take that back"
        self._parts.deployments.hold(replica_id, held=False)
        self._parts.loop.tell(UndrainAsked(replica_id, "an operator wants it back"))
        return True, f"{replica_id} comes back"

    async def restart(self, replica_id: str) -> tuple[bool, str]:
        """Order a launched replica drained and started again; whether accepted, and why (not).

        Also ends an operator's hold. Refused if control did not launch it or is removing it. Raises
        ``UnknownReplicaError``.
        """
        self._known(replica_id)
        if replica_id not in self._parts.deployments.units:
            return False, "it was not started here, so it cannot be restarted here"
        if self._parts.deployments.leaves(replica_id):
            return False, "it is being removed: it ends soon"
        self._parts.deployments.hold(replica_id, held=False)
        self._parts.loop.tell(RestartAsked(replica_id, "an operator wants it restarted"))
        return True, f"{replica_id} drains and then starts anew"

    async def disturb(
        self, replica_id: str, kind: str, seconds: float, url: str
    ) -> tuple[bool, str]:
        """Begin a deliberate failure of a replica for some seconds; whether it began, and why.

        Raises ``UnknownReplicaError``, and ``ChaosDisabledError`` where the fleet file does not
        enable chaos.
        """
        self._known(replica_id)
        return self._parts.disturbances.begin(replica_id, kind, seconds, time.monotonic_ns(), url)

    async def undisturb(self, replica_id: str) -> tuple[bool, str]:
        """End the deliberate failure of a replica; False and a sentence if there is none."""
        return self._parts.disturbances.end(replica_id, time.monotonic_ns())

    async def scale(self, model: str, replicas: int) -> tuple[bool, str]:
        """Set the wanted number of replicas of a launched model; whether accepted, and why (not).

        Refused for models that autoscale or are not launched here. Raises ``UnknownModelError``.
        """
        if model not in {one.name for one in self._parts.source.file.models}:
            raise UnknownModelError(model)
        return self._parts.deployments.scale(model, replicas)

    def _known(self, replica_id: str) -> None:
        if replica_id not in self._parts.loop.deployed:
            raise UnknownReplicaError(replica_id)

    def log_path(self, replica_id: str) -> Path | None:
        """The path of a launched replica's log file; None: not launched here, or no log file.

        Raises ``UnknownReplicaError``.
        """
        self._known(replica_id)
        return self._parts.deployments.log_path(replica_id)

    async def log_tail(self, replica_id: str, lines: int) -> bytes | None:
        """Fetch a replica's last log lines from its platform; None: no platform has its log.

        Raises ``UnknownReplicaError``, and ``UnreadableError`` where the platform gives none.
        """
        self._known(replica_id)
        url = self._parts.loop.deployed[replica_id].url
        found = placed_at(
            self._parts.source_poller.sources,
            self._parts.discovery.pods(),
            self._parts.source_poller.readings(),
            replica_id,
            url,
        )
        return await self._platform_logs.tail(*found, lines) if found is not None else None


__all__ = ["EXPLAIN_S", "AdminParts", "AdminService"]
