"""The resources of one replica's container: memory, processors and devices, requested and limited.

Memory is what ``launch.memory`` says, or what ``holdfast plan memory`` computes for the device and
the model that the workload names. Where neither is known nothing is requested, and a note says so:
a guess would be an out-of-memory kill or an empty node.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from holdfast.core.types import ConfigError, require
from holdfast.engines import dialect
from holdfast.manifests.workload_file import WorkloadSection
from holdfast.planner.memory_plan import MEMORY

_MIB: Final = 2**20
_LIMIT_FACTOR: Final = 1.25  # above the reservation, as 'plan memory' prints it


@dataclass(slots=True, frozen=True)
class PodResources:
    """Requests and limits of a container, its devices, and what is not known of them."""

    requests: dict[str, Any]
    limits: dict[str, Any]
    gpus: int
    notes: tuple[str, ...] = ()

    def manifest(self) -> dict[str, Any]:
        """The member ``resources`` of a container."""
        return {"requests": dict(self.requests), "limits": dict(self.limits)}


def resources_of(workload: WorkloadSection, engine: str, index: int) -> PodResources:
    """The resources of one host of a replica."""
    gpus = _gpus(workload, engine)
    reserved, limit, notes = _memory(workload, gpus, index)
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if workload.cpus is not None:
        requests["cpu"] = f"{round(workload.cpus * 1000)}m"
    if reserved is not None:
        requests["memory"] = f"{ceil(reserved / _MIB)}Mi"
    if limit is not None:
        limits["memory"] = f"{ceil(limit / _MIB)}Mi"
    if gpus:
        requests[workload.gpu_resource] = gpus
        limits[workload.gpu_resource] = gpus
    return PodResources(requests, limits, gpus, tuple(notes))


def _gpus(workload: WorkloadSection, engine: str) -> int:
    """Devices of one host: those of a replica, divided by its hosts."""
    launch = workload.launch
    if launch.gpus is not None:
        whole = launch.gpus
    elif dialect(engine).needs_gpu:
        whole = launch.tensor_parallel * launch.pipeline_parallel
    else:
        whole = 0
    return ceil(whole / workload.hosts)


def _memory(
    workload: WorkloadSection, gpus: int, index: int
) -> tuple[float | None, float | None, list[str]]:
    said = workload.launch.memory
    if said.reservation is not None or said.limit is not None:
        reserved = said.reservation if said.reservation is not None else said.limit
        return reserved, said.limit, []
    if not workload.device:
        note = f"{workload.model}: memory is not known; set launch.memory, or device and planned_as"
        return None, None, [note]
    figures = _planned(workload, index)
    if gpus:
        needed = int(figures["devices"])
        problem = f"has {gpus * workload.hosts} devices for a replica, and it needs {needed}"
        fix = f"set tensor_parallel: {figures['tensor']}, pipeline_parallel: {figures['pipeline']}"
        fits = gpus * workload.hosts >= needed
        require(fits, f"workloads[{index}].launch", problem, fix)
        reserved = figures["host_reservation_bytes"] / workload.hosts
    else:
        reserved = figures["reservation_bytes"]
    return reserved, reserved * _LIMIT_FACTOR, []


def _planned(workload: WorkloadSection, index: int) -> dict[str, Any]:
    launch = workload.launch
    asked: dict[str, Any] = {
        "model": workload.planned_as,
        "device": workload.device,
        "quantisation": workload.quantisation,
    }
    if launch.context:
        asked["context"] = launch.context
    if launch.slots:
        asked["concurrency"] = launch.slots
    if launch.memory_fraction is not None:
        asked["utilisation"] = launch.memory_fraction
    try:
        return dict(MEMORY.ask(asked).figures)
    except ConfigError as error:
        field = {"model": "planned_as"}.get(error.field, error.field)
        raise ConfigError(f"workloads[{index}].{field}", error.problem, error.fix) from error


__all__ = ["PodResources", "resources_of"]
