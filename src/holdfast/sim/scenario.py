"""Reads a scenario file: fleet, traffic, faults, and the policies to compare.

Every tunable of every policy can be set under ``flow`` and ``fleet``; what is left out has the
shipped default. ``variants`` run the same arrivals and faults under other policies, side by side.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from holdfast.config.files import load
from holdfast.config.sections import Duration, Policy, Section
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule, random_schedule
from holdfast.core.request import routing
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import ConfigError, Replica, nanos, require
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.random_streams import stream
from holdfast.sim.results import Slo
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Workload

SHIPPED: Final = "holdfast"  # the row of the scenario's own policies


class ModelSection(Section):
    """One model of a scenario: its replicas, its engine, and the traffic that asks for it."""

    name: str = "model"
    revision: str = "1"
    replicas: Annotated[int, Field(ge=1, le=10_000, description="replicas")] = 8
    zones: Annotated[list[str], Field(min_length=1, description="zone names")] = Field(
        default_factory=lambda: ["zone-a"]
    )
    region: str = "region-a"
    regions: Annotated[list[str], Field(max_length=64, description="region names")] = Field(
        default_factory=list
    )
    slots: Annotated[int, Field(ge=0, description="requests at once; 0 = undeclared")] = 0
    engine: Annotated[EngineParameters, Policy()] = EngineParameters()
    per_host: Annotated[int, Field(ge=1, le=256, description="replicas on one host")] = 1
    workload: Annotated[Workload, Policy()] | None = None

    def members(self) -> list[Replica]:
        """The model's replicas, spread over the regions and inside them over the zones in turn.

        With several regions a zone's name is that of its region and its own: two regions have no
        zone in common.
        """
        regions = self.regions or [self.region]
        many = len(regions) > 1
        return [
            Replica(
                f"{self.name}-{index}",
                self.name,
                revision=self.revision,
                zone=f"{regions[index % len(regions)]}/{zone}" if many else zone,
                region=regions[index % len(regions)],
                slots=self.slots,
            )
            for index in range(self.replicas)
            for zone in [self.zones[index // len(regions) % len(self.zones)]]
        ]

    def hosts(self) -> list[tuple[str, str]]:
        """The replicas that share a host with others, each with the name of its host."""
        if self.per_host == 1:
            return []
        return [
            (replica.id, f"{self.name}/host-{index // self.per_host}")
            for index, replica in enumerate(self.members())
        ]


class FaultSection(Section):
    """One fault of a scenario, with its times as people write them."""

    kind: Annotated[str, Field(description="kind of fault")]
    target: Annotated[str, Field(description="replica, zone, region, or '*'")] = "*"
    at: Annotated[Duration, Field(ge=0, description="seconds from the start")] = 0.0
    until: Annotated[Duration, Field(description="seconds from the start")] | None = None
    factor: float = 1.0
    probability: float = 1.0
    tokens: int = 0
    interval_s: Duration = 5.0
    lead_s: Duration = 120.0
    restart_mends: Annotated[bool, Field(description="a new process does not have it")] = False

    @model_validator(mode="after")
    def _core_agrees(self) -> Self:
        self.build()
        return self

    def build(self) -> Fault:
        """The fault as the core's type, with its times in nanoseconds."""
        kinds = [kind.value for kind in FaultKind]
        known = self.kind in kinds
        require(known, "fault.kind", f"is {self.kind!r}", f"use one of {', '.join(kinds)}")
        later = self.until is None or self.until > self.at
        fix = f"use a time after fault.at, {self.at:g} s, or leave it out"
        require(later, "fault.until", f"is {self.until} s", fix)
        return Fault(
            FaultKind(self.kind),
            self.target,
            nanos(self.at),
            None if self.until is None else nanos(self.until),
            factor=self.factor,
            probability=self.probability,
            tokens=self.tokens,
            interval_s=self.interval_s,
            lead_s=self.lead_s,
            restart_mends=self.restart_mends,
        )


class RandomFaultsSection(Section):
    """Settings for faults that are drawn from the seed instead of listed."""

    rate_per_replica_hour: Annotated[float, Field(gt=0, description="faults per hour")] = 1.0
    shortest: Annotated[Duration, Field(gt=0, description="seconds")] = 10.0
    longest: Annotated[Duration, Field(gt=0, description="seconds")] = 60.0
    affected_share_max: Annotated[float, Field(gt=0, le=1, description="share")] = 0.5

    @model_validator(mode="after")
    def _shortest_is_shorter(self) -> Self:
        fits = self.shortest <= self.longest
        fix = f"use at most random_faults.longest, {self.longest:g} s"
        require(fits, "random_faults.shortest", f"is {self.shortest:g} s", fix)
        return self


class VariantSection(Section):
    """Other policies to run with the same fleet, traffic and faults."""

    name: str
    flow: Annotated[FlowConfig, Policy()] | None = None  # left out: as in the scenario itself
    fleet: Annotated[FleetConfig, Policy()] | None = None
    canaries: bool | None = None


class Scenario(Section):
    """The contents of one scenario file, validated."""

    name: str
    description: str = ""
    duration: Annotated[Duration, Field(gt=0, description="seconds")] = 60.0
    models: Annotated[list[ModelSection], Field(min_length=1, description="models")]
    loading: Annotated[LoadingConfig, Policy()] = LoadingConfig()
    slo: Annotated[Slo, Policy()] = Slo()
    flow: Annotated[FlowConfig, Policy()] = FlowConfig()
    fleet: Annotated[FleetConfig, Policy()] = FleetConfig()
    canaries: bool = True
    warm: bool = True
    poll: Annotated[Duration, Field(ge=0, description="seconds; 0 = never")] = 1.0
    faults: list[FaultSection] = Field(default_factory=list)
    random_faults: RandomFaultsSection | None = None
    variants: list[VariantSection] = Field(default_factory=list)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        names = [model.name for model in self.models]
        unique = len(dict.fromkeys(names)) == len(names)
        require(unique, "models", f"repeats a name among {', '.join(names)}", "name each once")
        rows = [SHIPPED, *(variant.name for variant in self.variants)]
        unique = len(dict.fromkeys(rows)) == len(rows)
        fix = f"name each variant once, and none {SHIPPED!r}: that is the scenario itself"
        require(unique, "variants", f"repeats a name among {', '.join(rows)}", fix)
        asked = any(model.workload is not None for model in self.models)
        require(asked, "models", "has no workload", "give at least one model a workload")
        replicas = [replica for model in self.models for replica in model.members()]
        zones = list(dict.fromkeys(replica.zone for replica in replicas))
        regions = list(dict.fromkeys(replica.region for replica in replicas))
        for index, fault in enumerate(self.faults):
            places = {FaultKind.ZONE_LOSS: zones, FaultKind.REGION_LOSS: regions}
            known = places.get(FaultKind(fault.kind), [replica.id for replica in replicas])
            if fault.target not in ("*", *known):
                field = f"faults.{index}.target"
                raise ConfigError(field, f"is {fault.target!r}", f"use one of {_few(known)} or '*'")
        _check_flow("flow", self.flow, names)
        for index, variant in enumerate(self.variants):
            if variant.flow is not None:
                _check_flow(f"variants.{index}.flow", variant.flow, names)
        _schedule(self, tuple(replicas), seed=0)
        return self


def _check_flow(where: str, flow: FlowConfig, models: list[str]) -> None:
    """Refuse what else would show only in a run: names of models and of routing policies."""
    fix = f"use one of {', '.join(models)}"
    for model in flow.lanes:
        require(model in models, f"{where}.lanes.{model}", "is no model of this file", fix)
    for ladder in flow.degrade:
        for rung in ladder.ladder:
            require(rung in models, f"{where}.degrade", f"names the model {rung!r}", fix)
    for name, lane in [
        ("lane", flow.lane),
        *((f"lanes.{m}", own) for m, own in flow.lanes.items()),
    ]:
        try:
            routing.build(lane.routing, Random(0), **dict(lane.routing_options))
        except ConfigError as bad:
            field = f"{where}.{name}.routing"
            if lane.routing not in routing.POLICIES:
                raise ConfigError(field, bad.problem, bad.fix) from bad
            raise ConfigError(f"{field}_options", f"{bad.field} {bad.problem}", bad.fix) from bad
        except TypeError as bad:
            field = f"{where}.{name}.routing_options"
            raise ConfigError(
                field, f"cannot be used ({bad})", "use settings of the policy"
            ) from bad


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, …" if len(names) > 6 else shown


@dataclass(slots=True, frozen=True)
class PreparedScenario:
    """A scenario ready to run: one experiment per variant."""

    name: str
    description: str
    variants: tuple[tuple[str, Experiment], ...]


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file; a trace is looked for beside that file."""
    scenario = load(path, Scenario)
    models = []
    for model in scenario.models:
        workload = model.workload
        if workload is not None and workload.trace:
            workload = replace(workload, trace=str(path.parent / workload.trace))
        models.append(model.model_copy(update={"workload": workload}))
    return scenario.model_copy(update={"models": models})


def prepare(scenario: Scenario, seed: int) -> PreparedScenario:
    """Build the experiments of this scenario under this seed."""
    replicas = tuple(replica for model in scenario.models for replica in model.members())
    base = Experiment(
        replicas=replicas,
        duration_s=scenario.duration,
        workloads=tuple(
            (model.name, model.workload) for model in scenario.models if model.workload is not None
        ),
        engines=tuple((model.name, model.engine) for model in scenario.models),
        hosts=tuple(pair for model in scenario.models for pair in model.hosts()),
        flow=scenario.flow,
        fleet=scenario.fleet,
        loading=scenario.loading,
        faults=_schedule(scenario, replicas, seed),
        slo=scenario.slo,
        warm=scenario.warm,
        poll_s=scenario.poll,
        canaries=scenario.canaries,
    )
    variants = [(SHIPPED, base)]
    for variant in scenario.variants:
        canaries = base.canaries if variant.canaries is None else variant.canaries
        flow, fleet = variant.flow or base.flow, variant.fleet or base.fleet
        setup = replace(base, flow=flow, fleet=fleet, canaries=canaries)
        variants.append((variant.name, setup))
    return PreparedScenario(scenario.name, scenario.description, tuple(variants))


def _schedule(scenario: Scenario, replicas: tuple[Replica, ...], seed: int) -> FaultSchedule:
    faults = [fault.build() for fault in scenario.faults]
    drawn = scenario.random_faults
    if drawn is not None:
        try:
            schedule = random_schedule(
                stream(seed, "faults", "schedule"),
                replicas,
                nanos(scenario.duration),
                drawn.rate_per_replica_hour,
                duration_s=(drawn.shortest, drawn.longest),
                affected_share_max=drawn.affected_share_max,
            )
        except ConfigError as bad:
            field = bad.field.replace("random_schedule", "random_faults")
            raise ConfigError(field, bad.problem, bad.fix) from bad
        faults.extend(schedule.faults)
    return FaultSchedule(faults)


__all__ = ["PreparedScenario", "Scenario", "prepare", "read_scenario"]
