"""Builds the simulated counterpart of a fleet: its file, its fitted engines and its traffic.

Replicas, zones, slots and every policy come from the fleet file, engines and traffic from a
``twin.json``. What is in neither is asked for, not invented; what cannot be simulated is named.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.config.fleet_file import FleetFile
from holdfast.config.models import ModelSection
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import ConfigError, Replica, require
from holdfast.sim.canaries import CANARY_PROMPT
from holdfast.sim.deploy.autoscaler_driver import ModelScaling
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.results import Slo
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Workload
from holdfast.twin.canary_load import CanaryLoad
from holdfast.twin.twin_file import TwinFile, TwinModel

CALIBRATE = "measure it ('holdfast bench', then 'holdfast twin calibrate')"
HOST_REPLICAS_MAX = 256


def canary_load(file: FleetFile) -> CanaryLoad:
    """What canaries ask of each replica of a fleet, the same as in its simulation."""
    return CanaryLoad(file.fleet_config().health.canary_s, CANARY_PROMPT, _canary_tokens(file))


def _canary_tokens(file: FleetFile) -> int:
    return max(model.canary.tokens for model in file.models)


@dataclass(slots=True, frozen=True)
class FleetTwin:
    """A fleet file with what is known of its engines and its traffic."""

    file: FleetFile
    engines: Mapping[str, EngineParameters]  # by model
    traffic: Mapping[str, Workload]  # by model; a model without any is not asked
    per_host: Mapping[str, int] = field(default_factory=dict)
    cold_start_s: Mapping[str, float] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)  # of models that are discovered

    def members(self) -> list[Replica]:
        """All replicas that the file describes, those that an autoscaler may add left out."""
        return [one for model in self.file.models for one in _members(model, self.replicas)]

    def cost_per_hour(self, counts: Mapping[str, float] | None = None) -> float | None:
        """What the replicas cost an hour by the file's prices; None where it has none.

        ``counts``: how many there are of each model on average. Default: as the file says.
        """
        prices = self.file.prices.prices(self.file.models)
        counts = counts or Counter(replica.model for replica in self.members())
        each = [(prices.of(model), count) for model, count in counts.items()]
        return sum(price.gpus * price.gpu_hour * count for price, count in each) or None

    def scaling(self) -> tuple[ModelScaling, ...]:
        """The autoscalers of the file, each with the number of replicas it begins with."""
        return tuple(
            ModelScaling(model.name, model.scaling, len(_members(model, self.replicas)))
            for model in self.file.models
            if model.scaling is not None
        )

    def experiment(
        self,
        duration_s: float,
        *,
        faults: Sequence[Fault] = (),
        slo: Slo | None = None,
    ) -> Experiment:
        """The fleet as a simulation; raises ``ConfigError`` for what is missing or wrong."""
        scaling = self.scaling()
        most = {one.model: one.config.max for one in scaling}
        replicas = [
            one for model in self.file.models for one in _members(model, {**self.replicas, **most})
        ]
        require(bool(replicas), "models", "have no replica at all", "give one of them replicas")
        asked = [model for model in self.traffic if any(one.model == model for one in replicas)]
        fix = "give --rate with --prompt and --output, or a twin that was calibrated"
        require(bool(asked), "traffic", "is not known of any model with replicas", fix)
        for model in dict.fromkeys(one.model for one in replicas):
            if model not in self.engines:
                raise ConfigError(f"models.{model}", "has no fitted engine", CALIBRATE)
        _check_faults(faults, replicas)
        return Experiment(
            replicas=tuple(replicas),
            duration_s=duration_s,
            workloads=tuple((model, self.traffic[model]) for model in asked),
            engines=tuple(self.engines.items()),
            hosts=tuple(self._hosts(replicas)),
            flow=self.file.flow_config(),
            fleet=self.file.fleet_config(),
            loading=self._loading(),
            faults=FaultSchedule(list(faults)),
            slo=slo or self._slo(asked),
            canary_prompt=CANARY_PROMPT,
            canary_output=_canary_tokens(self.file),
            scaling=scaling,
        )

    def _hosts(self, replicas: Sequence[Replica]) -> list[tuple[str, str]]:
        pairs = []
        seen: dict[str, int] = {}
        for replica in replicas:
            crowd = self.per_host.get(replica.model, 1)
            number = seen.get(replica.model, 0)
            seen[replica.model] = number + 1
            if crowd > 1:
                pairs.append((replica.id, f"{replica.model}/host-{number // crowd}"))
        return pairs

    def _loading(self) -> LoadingConfig:
        """One measured time of a start is all of it: it holds the reading of weights already."""
        if not self.cold_start_s:
            return LoadingConfig()
        return LoadingConfig(start_s=max(self.cold_start_s.values()), size_gb=0.0)

    def _slo(self, models: Sequence[str]) -> Slo:
        promises = [
            model.slo_first_token
            for model in self.file.models
            if model.name in models and model.slo_first_token is not None
        ]
        return Slo(first_token_s=min(promises) if promises else None)


def fleet_twin(
    file: FleetFile,
    twin: TwinFile | None,
    *,
    traffic: Mapping[str, Workload] | None = None,
    engines: Mapping[str, EngineParameters] | None = None,
    replicas: Mapping[str, int] | None = None,
) -> FleetTwin:
    """Join a fleet file with a twin; ``traffic`` and ``engines`` go before what the twin has."""
    fitted: Mapping[str, TwinModel] = twin.models if twin is not None else {}
    names = [model.name for model in file.models]
    if twin is not None and not any(name in fitted for name in names):
        fix = f"calibrate one of {', '.join(names)[:200]}"
        raise ConfigError("twin", f"knows only {', '.join(fitted)[:200]}", fix)
    slots = {
        model.name: next((one.slots for one in _members(model, replicas or {}) if one.slots), 0)
        for model in file.models
    }
    laws = {name: one.engine for name, one in fitted.items() if name in names}
    laws = {name: _with_slots(law, slots[name]) for name, law in laws.items()}
    told = {name: one.traffic for name, one in fitted.items() if name in names}
    return FleetTwin(
        file,
        {**laws, **(engines or {})},
        {**told, **(traffic or {})},
        per_host={
            name: HOST_REPLICAS_MAX if _on_one_host(file, name) else one.per_host
            for name, one in fitted.items()
            if one.per_host > 1
        },
        cold_start_s={
            name: one.cold_start_s for name, one in fitted.items() if one.cold_start_s is not None
        },
        replicas=replicas or {},
    )


def _with_slots(law: EngineParameters, slots: int) -> EngineParameters:
    """A batch takes as many as the file says: it is what the engine is started with."""
    return replace(law, batch_max=slots) if slots else law


def _on_one_host(file: FleetFile, name: str) -> bool:
    """Launched replicas are processes of one host: another replica shares it too."""
    return any(model.name == name and model.launch is not None for model in file.models)


def _members(model: ModelSection, counts: Mapping[str, int]) -> list[Replica]:
    launch = model.launch
    if launch is not None:
        zones = launch.zones
        return [
            Replica(
                f"{model.name}-{number + 1}",
                model.name,
                revision=model.revision,
                zone=zones[number % len(zones)],
                region=launch.region,
                slots=launch.slots,
            )
            for number in range(counts.get(model.name, launch.replicas))
        ]
    if model.endpoints:
        listed = [deployed.replica for deployed in model.deployed()]
        wanted = counts.get(model.name, len(listed))
        more = [
            replace(listed[place % len(listed)], id=f"{model.name}-more-{place + 1}")
            for place in range(wanted - len(listed))
        ]
        return [*listed[:wanted], *more]
    number = counts.get(model.name, 0)
    return [
        Replica(f"{model.name}-{place + 1}", model.name, revision=model.revision)
        for place in range(number)
    ]


def _check_faults(faults: Sequence[Fault], replicas: Sequence[Replica]) -> None:
    zones = list(dict.fromkeys(one.zone for one in replicas))
    regions = list(dict.fromkeys(one.region for one in replicas))
    places = {FaultKind.ZONE_LOSS: zones, FaultKind.REGION_LOSS: regions}
    for fault in faults:
        known = places.get(fault.kind, [one.id for one in replicas])
        if fault.target not in ("*", *known):
            shown = ", ".join(known[:8])
            problem = f"is {fault.target!r}, which the fleet does not have"
            raise ConfigError("fault.target", problem, f"use one of {shown} or '*'")


__all__ = ["FleetTwin", "canary_load", "fleet_twin"]
