"""Runs cost accounting and exporters, apart from the parts of control that decide.

    counters, replicas, canaries ─► CostsAndExports ─► GET /cost, /metrics, CloudWatch, traces

Control passes it each new config and each canary, and asks it for figures; only this module knows
where those come from. It is apart from control's other parts because nothing here decides anything:
an error here must not reach the parts that do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import structlog

from holdfast.config.exporters import ExportersSection
from holdfast.config.fleet_file import Deployed
from holdfast.config.models import ModelSection
from holdfast.config.prices import PricesSection
from holdfast.control.gateways.metrics import Totals
from holdfast.control.view.costs import SERIES, Costs
from holdfast.control.view.exporter_feed import COUNTED, ExporterFeed, ExportInputs, memory_gauges
from holdfast.core.messages import CanaryResult
from holdfast.frames import TraceRow

PAUSE_S: Final = 2.0  # after a mistake
LOGGED_MAX: Final = 10  # mistakes with their traceback; the rest is counted

_log = structlog.get_logger("holdfast.control.view.costs_and_exports")


class FleetRows(Protocol):
    """The part of the fleet's loop that is read here: its replicas."""

    @property
    def deployed(self) -> Mapping[str, Deployed]:
        """The replicas of the present config, by id."""

    def replicas(self) -> list[dict[str, Any]]:
        """One dict for each replica in the last published view."""


class CountingGateway(Protocol):
    """The counters of one connected gateway."""

    counters: dict[str, float]


class ConnectedGateways(Protocol):
    """The part of the hub that is read here: gateways and their traces."""

    @property
    def gateways(self) -> Mapping[str, CountingGateway]:
        """The connected gateways, by name."""

    @property
    def traces_dropped(self) -> int:
        """How many traces the hub dropped so far for lack of room."""

    def take_traces(self) -> list[TraceRow]:
        """Return, and remove, the traced requests that arrived since the last call."""


class CostSettings(Protocol):
    """The sections of the fleet file that set prices and exporters."""

    @property
    def models(self) -> list[ModelSection]:
        """The models of the fleet file."""

    @property
    def prices(self) -> PricesSection:
        """The prices of GPUs and tokens."""

    @property
    def exporters(self) -> ExportersSection:
        """The configured exporters."""


class CostsAndExports:
    """Books the fleet's costs and feeds figures and traces to exporters; decides nothing.

    Its errors are counted and do not reach control.
    """

    def __init__(
        self,
        file: CostSettings,
        hub: ConnectedGateways,
        totals: Totals,
        fleet: Callable[[], FleetRows],
        gauges: Callable[[], Mapping[str, float]],
        incidents: Callable[[], int],
        environment: Mapping[str, str],
    ) -> None:
        self._hub = hub
        self._totals = totals
        self._fleet = fleet
        self._gauges = gauges
        self._incidents = incidents
        self._errors = 0
        self._costs = Costs(file.prices.prices(file.models))
        self._exporting = ExporterFeed(file.exporters, self._sight, hub.take_traces, environment)

    def follow(self, file: CostSettings) -> None:
        """Apply the prices and exporters of a new fleet file."""
        self._costs.follow(file.prices.prices(file.models))
        self._exporting.follow(file.exporters)

    def answered(self, result: CanaryResult) -> None:
        """Book the tokens of a canary to its model; nothing if it cost none."""
        deployed = self._fleet().deployed.get(result.replica_id)
        if deployed is not None and result.tokens:
            self._costs.canary(deployed.replica.model, result.tokens, deployed.canary.tokens)

    async def run(self) -> None:
        """Run accounting and exporters until cancelled; a failed one begins again after 2 s."""
        async with asyncio.TaskGroup() as jobs:
            jobs.create_task(self._again("costs", lambda: self._costs.run(self._read)))
            jobs.create_task(self._again("exporters", self._exporting.run))

    async def _again(self, what: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job again whenever it fails; failures are counted and do not end control."""
        while True:
            try:
                await job()
            except Exception:  # noqa: BLE001 whatever it is, control goes on
                self._errors += 1
                if self._errors <= LOGGED_MAX:
                    _log.exception("costs or exports failed", part=what)
            await asyncio.sleep(PAUSE_S)

    def cost(self) -> dict[str, Any]:
        """All costs since this control began as plain data, for ``GET /cost``."""
        return self._costs.report()

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Prometheus (counters, gauges) of costs, exports, their errors, and memory by model."""
        counters = {**self._costs.counters(), **self._exporting.counters()}
        lost = 'exports_total{exporter="traces",outcome="dropped"}'
        if lost in counters:
            counters[lost] += self._hub.traces_dropped
        counters["books_errors_total"] = self._errors
        return counters, memory_gauges(self._gauges(), self._fleet().replicas())

    def _read(self) -> tuple[Iterable[Mapping[str, Any]], Mapping[str, float]]:
        return self._fleet().replicas(), self._counted(SERIES)

    def _sight(self) -> ExportInputs:
        rows = self._fleet().replicas()
        return ExportInputs(self._counted(COUNTED), self._gauges(), rows, self._incidents())

    def _counted(self, beginnings: tuple[str, ...]) -> dict[str, float]:
        living = [gateway.counters for gateway in self._hub.gateways.values()]
        return self._totals.only(beginnings, living)


__all__ = ["ConnectedGateways", "CostSettings", "CostsAndExports", "FleetRows"]
