"""Collects what control knows of replicas, models and gateways, for the view and the status.

    loop: states, shares, canaries ┐
    deployments: wishes, lives     ├─► FleetRecords, without a clock: equal means unchanged
    figures: loads, rates, memory  ┘

Rates are rounded and times are points, because two pictures are compared by what went into them.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.declarations import reading_with_footprints
from holdfast.control.deploy.demand_tracker import queued_at_gateways
from holdfast.control.deploy.deployments import Deployments
from holdfast.control.deploy.launched_replica import LaunchedReplica
from holdfast.control.fleet.audience import Asked
from holdfast.control.fleet.figures import Figures
from holdfast.control.fleet.loop import FleetLoop
from holdfast.control.gateways.hub import Gateway
from holdfast.control.incidents.gpu_watch import GpuWatch
from holdfast.control.incidents.incident_watch import IncidentWatch
from holdfast.control.view.own_host import own_host_reading
from holdfast.control.view.source_poller import SourcePoller
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.facts import Declared
from holdfast.core.diagnose.held_models import held_models
from holdfast.core.types import SECOND
from holdfast.core.view.fleet_records import FleetRecords, ModelRecord, ReplicaRecord
from holdfast.core.view.layers import Reading
from holdfast.core.view.model_rows import exhausted_in
from holdfast.sources.local import LocalReplica
from holdfast.sources.nvml import GpuReport

# The members of a replica in ``/status``, in order; below, those that its record calls otherwise.
STATUS_MEMBERS: Final = (
    *("id", "model", "revision", "state", "reason", "zone", "region", "endpoint", "inflight"),
    *("share", "canary", "launched", "pid", "phase", "host", "kv_used", "running", "waiting"),
    *("tokens_s", "ttft_s", "tpot_s", "canary_s", "used_bytes", "started_at", "requests_share"),
    "gpu",
    *("inferences_s", "failed_share", "queue_s", "compute_s", "batch", "batch_max"),
    *("engine_gpu_used_bytes", "engine_gpu_total_bytes"),
)
_IN_RECORD: Final = {"share": "routing_share", "phase": "last_phase", "requests_share": "share"}
_P95: Final = "first_token_p95_seconds"
_TOKENS: Final = "tokens_per_second"


class SummaryInputs(Protocol):
    """The parts of control that ``FleetSummary`` reads."""

    loop: FleetLoop
    source_poller: SourcePoller

    @property
    def file(self) -> FleetFile:
        """The parsed fleet file that is in use: the last one that was accepted."""

    def gateways(self) -> Sequence[Gateway]:
        """The connected gateways."""

    def gateway_gauges(self, now: int) -> Sequence[Mapping[str, float]]:
        """Each connected gateway's last gauges; an empty mapping for a silent gateway."""


class FleetSummary:
    """Collects what control knows of replicas, models and gateways, for view and status."""

    def __init__(
        self,
        control: SummaryInputs,
        deployments: Deployments,
        lookout: IncidentWatch,
        gpus: GpuWatch,
    ) -> None:
        self._control = control
        self._gpus = gpus
        self._deployments = deployments
        self._lookout = lookout
        self._began: dict[tuple[str, int], float] = {}  # as often as replicas run

    # --- what the view asks (ViewInputs) ---------------------------------------------------------

    def records(self) -> FleetRecords:
        """Control's own records of all replicas and models, with totals; equal means unchanged."""
        now = time.monotonic_ns()
        rows = self._control.loop.replicas()
        gauges = self._control.gateway_gauges(now)
        self._remember_lives(now)
        replicas = self._replicas(rows, self._lookout.figures, now)
        models = self._models(rows, gauges, now)
        gateways = self._control.gateways()
        totals: dict[str, float | int | str] = {
            "requests_s": round(sum(one.requests_s or 0 for one in models), 2),
            "tokens_s": round(sum(one.tokens_s or 0 for one in models), 1),
            "gateways": len(gateways),
            "gateways_ready": sum(one.serves for one in gateways),
        }
        return FleetRecords(tuple(replicas), tuple(models), totals)

    def readings(self) -> list[Reading]:
        """The last reading of each source, with models' GPU needs as their footprints say.

        Control's own host is added where no source reads its GPUs.
        """
        found = self._control.source_poller.readings()
        own = own_host_reading(self._lookout.host, self._gpus.last, self._gpus.read_at)
        if own is not None and not any(
            host.devices for one in found for host in one.hosts if host.id == own.hosts[0].id
        ):
            found = [*found, own]
        footprints = self._control.file.footprint_of_models()
        return [reading_with_footprints(one, footprints) for one in found]

    def unclosed(self) -> list[Incident]:
        """The incidents that are not closed, as live objects; callers must not change them."""
        return self._lookout.incidents.unclosed()

    def held_models(self) -> dict[str, str]:
        """Models that an open incident has taken down, with its title: their queues should wait."""
        replicas: dict[str, set[str]] = {}
        for name, deployed in self._control.loop.deployed.items():
            replicas.setdefault(deployed.replica.model, set()).add(name)
        return held_models(self.unclosed(), replicas)

    def took_s(self) -> float | None:
        """Seconds that the slowest source took for its last reading; None: unknown."""
        return self._control.source_poller.took_s or None

    def names(self) -> dict[str, str]:
        """The id of each replica of the fleet, by its URL."""
        return {one.url: name for name, one in self._control.loop.deployed.items()}

    # --- what a source of this host asks ---------------------------------------------------------

    def local_replicas(self) -> dict[str, LocalReplica]:
        """The replicas that control launches on this host, by id; not those on platforms."""
        declared = self._lookout.declared
        return {
            unit.id: _local(unit, declared.get(unit.id))
            for unit in self._deployments.units.values()
            if not unit.on
        }

    def gpu_report(self) -> GpuReport | None:
        """The last report of this host's GPUs; None before the first. The driver is not asked."""
        return self._gpus.last

    # --- what the status asks --------------------------------------------------------------------

    def status_rows(self) -> list[dict[str, Any]]:
        """One dict for each replica, as ``/status`` shows it.

        ``exhausted_in_s`` is when an incident expects its memory to run out, or None.
        """
        left = exhausted_in(self.unclosed(), time.monotonic_ns())
        return [
            {
                **{name: getattr(record, _IN_RECORD.get(name, name)) for name in STATUS_MEMBERS},
                "exhausted_in_s": left.get(record.id),
            }
            for record in self.records().replicas
        ]

    # --- replicas --------------------------------------------------------------------------------

    def _remember_lives(self, now: int) -> None:
        """Fix each process's start as a time of day once, so that it does not waver."""
        units = self._deployments.units.values()
        lives = [(unit.id, unit.began) for unit in units if unit.began is not None]
        today = time.time()
        self._began = {
            (name, began): self._began.get((name, began), today - (now - began) / SECOND)
            for name, began in lives
        }

    def _replicas(
        self, rows: Sequence[Mapping[str, Any]], figures: Figures, now: int
    ) -> list[ReplicaRecord]:
        given: dict[str, float] = {}
        own: dict[str, float] = {}
        for row in rows:
            own[row["id"]] = figures.attempts(row["id"], now)
            given[row["model"]] = given.get(row["model"], 0.0) + own[row["id"]]
        declared, units = self._lookout.declared, self._deployments.units
        return [
            self._replica(
                row,
                declared.get(row["id"]),
                units.get(row["id"]),
                figures.of(row["id"], now) | figures.inference(row["id"], now),
                _share(own[row["id"]], given[row["model"]]),
            )
            for row in rows
        ]

    def _replica(
        self,
        row: Mapping[str, Any],
        declared: Declared | None,
        unit: LaunchedReplica | None,
        figures: Mapping[str, Any],
        share: float | None,
    ) -> ReplicaRecord:
        asked: Asked | None = row["canary"]
        began = unit.began if unit is not None else None
        return ReplicaRecord(
            row["id"],
            row["model"],
            row["state"],
            row["revision"],
            row["reason"],
            row["zone"],
            declared.host if declared is not None else "",
            row["endpoint"],
            unit.phase if unit is not None and not unit.loaded else "",
            unit is not None,
            self._began.get((row["id"], began)) if began is not None else None,
            declared.filesystem if declared is not None else "",
            declared.needs_gpu if declared is not None else None,
            declared.reserved_bytes if declared is not None else None,
            declared.limit_bytes if declared is not None else None,
            share=share,
            inflight=row["inflight"],
            canary_s=asked.latency_s if asked is not None else None,
            canary_verdict=asked.told() if asked is not None else "",
            region=row["region"],
            routing_share=row["share"],
            canary=asked,
            pid=unit.pid if unit is not None else None,
            last_phase=unit.phase if unit is not None else "",
            gpu=self._lookout.gpu_use(row["id"]),
            memory_grows=self._lookout.memory_grows(row["id"]),
            **figures,
        )

    # --- models ----------------------------------------------------------------------------------

    def _models(
        self,
        rows: Sequence[Mapping[str, Any]],
        gauges: Sequence[Mapping[str, float]],
        now: int,
    ) -> list[ModelRecord]:
        inflight: dict[str, int] = {}
        members: dict[str, list[str]] = {}
        for row in rows:
            inflight[row["model"]] = inflight.get(row["model"], 0) + row["inflight"]
            members.setdefault(row["model"], []).append(row["id"])
        wishes = self._deployments.snapshot()
        found = []
        for model in self._control.file.models:
            name = model.name
            wish = wishes.get(name, {})
            lacking: Mapping[str, str] = wish.get("unplaced", {})
            counted = self._lookout.figures.model(name, now)
            late = [one for said in gauges if (one := _said(said, _P95, name)) is not None]
            tokens = [one for said in gauges if (one := _said(said, _TOKENS, name)) is not None]
            found.append(
                ModelRecord(
                    name,
                    wish.get("wished", len(model.endpoints)),
                    next(iter(lacking.values()), ""),
                    queued_at_gateways(name, gauges),
                    inflight.get(name, 0),
                    counted.requests_s,
                    sum(tokens) if tokens else None,
                    self._lookout.figures.prefix_hits(members.get(name, ()), now),
                    counted.ttft_s if counted.ttft_s is not None else max(late, default=None),
                    counted.errors_share,
                    counted.burn,
                    len(lacking),
                )
            )
        return found


def _local(unit: LaunchedReplica, declared: Declared | None) -> LocalReplica:
    return LocalReplica(
        unit.model,
        unit.pid,
        unit.revision,
        unit.url,
        unit.spec.weights,
        needs_gpu=declared.needs_gpu if declared is not None else None,
        reserved_bytes=declared.reserved_bytes if declared is not None else None,
        limit_bytes=declared.limit_bytes if declared is not None else None,
        phase="" if unit.loaded else unit.doing,
        visible_gpus=unit.visible_gpus,
    )


def _said(gauges: Mapping[str, float], name: str, model: str) -> float | None:
    return gauges.get(f'{name}{{model="{model}"}}')


def _share(own: float, all_of_model: float) -> float | None:
    """A replica's share of its model's attempts; None below one attempt lately."""
    return round(own / all_of_model, 3) if all_of_model >= 1.0 else None


__all__ = ["STATUS_MEMBERS", "FleetSummary", "SummaryInputs"]
