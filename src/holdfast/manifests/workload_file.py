"""The workloads file: what Kubernetes has to know of a model beyond the fleet file.

The fleet file says how a model is served and judged; this one says from which image, with how many
replicas and on which nodes it runs. Two files, since the first is read by Holdfast while it runs
and the second only when manifests are made.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from holdfast.config.addresses import Url
from holdfast.config.launch import LaunchSection
from holdfast.config.platforms.kubernetes import (
    DnsName,
    Image,
    PodSection,
    check_hosts,
    check_image,
)
from holdfast.config.sections import Section
from holdfast.config.tenants import Name
from holdfast.core.types import require


class WorkloadSection(PodSection):
    """How Kubernetes runs the replicas of one model."""

    model: Annotated[Name, Field(description="a model of the fleet file")]
    launch: LaunchSection
    spares: Annotated[int, Field(ge=0, le=256, description="replicas that may be away")] = 1
    cpus: Annotated[float, Field(gt=0, le=1024, description="processors")] | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        launch = self.launch
        fits = self.spares < max(1, launch.replicas)
        problem = f"is {self.spares}, of {launch.replicas} replicas in all"
        fix = "use fewer: the rest carries the load while they are away"
        require(fits or launch.replicas == 0, "workload.spares", problem, fix)
        check_hosts(self, "workload", commanded=bool(launch.command))
        return self


class WorkloadFile(Section):
    """The contents of a workloads file, validated."""

    namespace: DnsName = "inference"
    control: Url = "http://holdfast.holdfast.svc:8001"
    agent_image: Image
    allow_tags: bool = False
    workloads: Annotated[list[WorkloadSection], Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _images_fit(self) -> Self:
        images = {"agent_image": self.agent_image}
        first_at: dict[str, int] = {}
        for index, workload in enumerate(self.workloads):
            images[f"workloads.{index}.image"] = workload.image
            first = first_at.setdefault(workload.model, index)
            problem = f"is {workload.model!r}, as that of workloads[{first}]"
            field = f"workloads.{index}.model"
            require(first == index, field, problem, "describe each model once")
        for field, image in images.items():
            check_image(field, image, allow_tags=self.allow_tags)
        return self


__all__ = ["WorkloadFile", "WorkloadSection"]
