"""What operators and scrapers ask: who is ready, how it stands, what was counted.

``Control`` inherits these by way of its orders. They only read, and they answer from what control
has in memory: a question never waits for a replica, a platform or a GPU, but for the story of one
request, which a gateway has.
"""

from collections.abc import Mapping
from typing import Any, Final

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.demand import Demands
from holdfast.control.deploy.deployments import Deployments
from holdfast.control.deploy.source import ConfigSource
from holdfast.control.fleet.disturbances import Disturbances
from holdfast.control.fleet.loop import FleetLoop, Happened
from holdfast.control.gateways.hub import Hub
from holdfast.control.gateways.metrics import Totals, fleet_gauges, gateway_gauges, render
from holdfast.control.incidents.gpus import GpuWatch
from holdfast.control.incidents.incidents import Incidents
from holdfast.control.incidents.lookout import Lookout
from holdfast.control.unknown import UnknownReplicaError
from holdfast.control.view.books import Books
from holdfast.control.view.history import Sampler, history_metrics
from holdfast.control.view.knowing import Knowing
from holdfast.control.view.sourcing import Sourcing
from holdfast.control.view.viewing import Viewing
from holdfast.ports import Store

EXPLAIN_S: Final = 1.0  # gateways answer from memory; who is silent for so long is frozen


class Questions:
    """Mixed into ``Control``."""

    loop: FleetLoop
    knowing: Knowing
    sampler: Sampler | None
    sourcing: Sourcing
    view: Viewing
    _books: Books
    _demands: Demands
    _deployments: Deployments
    _disturbances: Disturbances
    _epoch: int
    _gpus: GpuWatch
    _hub: Hub
    _id: str
    _lookout: Lookout
    _source: ConfigSource
    _store: Store
    _totals: Totals

    @property
    def file(self) -> FleetFile:
        """The config that runs."""
        return self._source.file

    def ready(self) -> tuple[bool, str]:
        """Whether clients are served: some gateway accepts."""
        gateways = list(self._hub.gateways.values())
        if any(gateway.ready for gateway in gateways):
            return True, "ready"
        reasons = sorted({gateway.reason for gateway in gateways}) or ["no gateway is connected"]
        return False, "; ".join(reasons[:4])

    def model_ready(self, model: str) -> tuple[bool, str]:
        """Whether a ready replica of this model exists."""
        if model not in {one.name for one in self.file.models}:
            return False, "no such model"
        ready = self.loop.ready(model)
        return ready, "ready" if ready else "no replica is ready"

    def events(self, limit: int = 1_000, replica: str | None = None) -> list[Happened]:
        """What happened, the newest last."""
        found = self._store.events(limit, replica)
        return [Happened(e.at, e.model, e.replica, e.what, e.reason, e.kind) for e in found]

    def canaries(self, replica_id: str) -> list[dict[str, Any]]:
        """What the last canaries of a replica found, the newest last."""
        if replica_id not in self.loop.deployed:
            raise UnknownReplicaError(replica_id)
        found = self.loop.canaries(replica_id)
        return [
            {"at": o.at, "verdict": o.told(), "detail": o.detail, "latency_s": o.latency_s}
            for o in found
        ]

    def status(self) -> dict[str, Any]:
        """The whole of it."""
        units = self._deployments.units
        rows = self.loop.replicas()
        for row in rows:
            unit = units.get(row["id"])
            row["launched"] = unit is not None
            row["pid"] = unit.pid if unit is not None else None
            row["phase"] = unit.phase if unit is not None else ""
        self.knowing.fill(rows)
        return {
            "control": self._id,
            "epoch": self._epoch,
            "config_problems": self._source.problems,
            "gateways": [gateway.snapshot() for gateway in self._hub.gateways.values()],
            "replicas": rows,
            "models": self._deployments.snapshot(),
            "panic": self.loop.panic(),
            "incidents_open": self.incidents.open_count,
            "disturbed": self._disturbances.snapshot(),
            "store": self._store.snapshot(),
            "history": self.sampler.history.snapshot() if self.sampler is not None else None,
        }

    @property
    def incidents(self) -> Incidents:
        """Failures that were found, and what was done about them."""
        return self._lookout.incidents

    def report(self, report: object) -> int:
        """Take facts that somebody else saw."""
        return self._lookout.reported.take(report)

    def gpus(self) -> dict[str, Any]:
        """What this host's GPUs say."""
        return self._gpus.report()

    def metrics(self) -> str:
        """Everything that is counted, as Prometheus text."""
        gateways = list(self._hub.gateways.values())
        counters = self._counters()
        told: dict[str, float] = {}
        counters["config_refused_total"] = self._source.refused
        for part in (self._lookout, self.sourcing, self.view, self._books):
            found, now = part.metrics()
            counters |= found
            told |= now
        if self.sampler is not None:
            found, now = history_metrics(self.sampler.history)
            counters |= found
            told |= now
        gauges = self._load_gauges()
        gauges["metrics_series_left_out"] = self._totals.left_out
        for gateway in gateways:
            gauges[f'gateway_ready{{gateway="{gateway.name}"}}'] = gateway.ready
            gauges[f'gateway_epoch{{gateway="{gateway.name}"}}'] = gateway.epoch
        gauges["config_epoch"] = self._epoch
        gauges["gateways"] = len(gateways)
        gauges |= fleet_gauges(self.loop.replicas())
        gauges |= told
        return render(counters, gauges)

    def _load_gauges(self) -> dict[str, float]:
        """What gateways, engines and GPUs say of the load."""
        gauges = gateway_gauges(gateway.gauges for gateway in self._hub.gateways.values())
        for part in (self._deployments, self._demands, self._gpus):
            gauges |= part.gauges()
        return gauges

    def drift(self) -> Mapping[str, float | None]:
        """How far answers have moved, by series of the history."""
        return self._lookout.incidents.drift_series()

    def cost(self) -> dict[str, Any]:
        """What the fleet has cost."""
        return self._books.cost()

    async def explain(self, request_id: str) -> bytes | None:
        """The story of a recent request, as JSON."""
        return await self._hub.explain(request_id, EXPLAIN_S)

    def problems(self) -> list[str]:
        """Why the file as it is now was refused."""
        return self._source.problems

    def _counters(self) -> dict[str, float]:
        return self._totals.with_those_of(one.counters for one in self._hub.gateways.values())


__all__ = ["EXPLAIN_S", "Questions"]
