"""One simulated experiment as a value: fleet, traffic, faults and policies, without the seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.plan.faults import FaultSchedule
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import Replica
from holdfast.sim.canaries import CANARY_OUTPUT, CANARY_PROMPT
from holdfast.sim.deploy.autoscaler_driver import ModelScaling
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.results import Slo
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Workload

Observer = Callable[[int, str, Any, Sequence[Any]], None]
"""Sees every event with the actions it caused: (now, "flow" or "fleet", event, actions)."""


@dataclass(slots=True, frozen=True)
class Experiment:
    """One experiment: fleet, traffic, faults and policies, without the seed."""

    replicas: tuple[Replica, ...]
    duration_s: float = 60.0
    workloads: tuple[tuple[str, Workload], ...] = ()  # (model, its arrivals)
    engine: EngineParameters = field(default_factory=EngineParameters)
    engines: tuple[tuple[str, EngineParameters], ...] = ()  # by model, where it differs
    hosts: tuple[tuple[str, str], ...] = ()  # (replica, host), of replicas that share a host
    flow: FlowConfig = field(default_factory=FlowConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)
    faults: FaultSchedule = field(default_factory=FaultSchedule)
    slo: Slo = field(default_factory=Slo)
    warm: bool = True  # replicas are up and admitted when the run begins
    poll_s: float = 1.0  # how often engines' load is read; 0 = never
    canaries: bool = True
    canary_prompt: int = CANARY_PROMPT  # tokens
    canary_output: int = CANARY_OUTPUT  # tokens
    # By model; its replicas beyond the first so many are added when its autoscaler asks for them.
    scaling: tuple[ModelScaling, ...] = ()

    def whole_flow(self) -> FlowConfig:
        """The flow's config with a lane for every model, as a gateway builds it from its file."""
        models = [replica.model for replica in self.replicas]
        models += [model for model, _ in self.workloads]
        lanes = {model: self.flow.lanes.get(model, self.flow.lane) for model in models}
        return replace(self.flow, lanes=lanes)


__all__ = ["Experiment", "Observer"]
