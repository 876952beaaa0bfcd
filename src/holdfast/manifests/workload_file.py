"""The workloads file: what Kubernetes has to know of a model beyond the fleet file.

The fleet file says how a model is served and judged; this one says from which image, with how many
replicas and on which nodes it runs. Two files, since the first is read by Holdfast while it runs
and the second only when manifests are made.
"""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from holdfast.config.addresses import Url
from holdfast.config.launch import LaunchSection
from holdfast.config.sections import Section
from holdfast.config.tenants import Name
from holdfast.core.types import require

DIGEST: Final = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*")
_KIND_FIX: Final = "use kind: leaderworkerset, which starts the hosts of one replica together"

Image = Annotated[str, Field(min_length=1, max_length=512, description="an image by its digest")]
DnsName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="a name")
]
Label = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]


class WorkloadSection(Section):
    """How Kubernetes runs the replicas of one model."""

    model: Annotated[Name, Field(description="a model of the fleet file")]
    image: Image
    kind: Literal["deployment", "statefulset", "leaderworkerset"] = "deployment"
    launch: LaunchSection
    hosts: Annotated[int, Field(ge=1, le=64, description="hosts of one replica")] = 1
    worker_command: Annotated[list[str], Field(max_length=256)] = Field(default_factory=list)
    spares: Annotated[int, Field(ge=0, le=256, description="replicas that may be away")] = 1
    port: Annotated[int, Field(ge=1, le=65_535, description="a port")] | None = None
    cpus: Annotated[float, Field(gt=0, le=1024, description="processors")] | None = None
    device: Annotated[str, Field(max_length=64, description="a device of 'holdfast plan'")] = ""
    planned_as: Annotated[str, Field(max_length=64, description="a model of 'plan memory'")] = ""
    quantisation: Annotated[str, Field(max_length=32, description="as in 'plan memory'")] = "bf16"
    gpu_resource: Annotated[str, Field(min_length=1, max_length=253)] = "nvidia.com/gpu"
    gpu_product: Label = ""
    cuda: Annotated[int, Field(ge=1, le=99, description="a major version")] | None = None
    driver: Annotated[int, Field(ge=1, le=9_999, description="a major version")] | None = None
    node_selector: Annotated[dict[LabelKey, Label], Field(max_length=64)] = Field(
        default_factory=dict
    )
    labels: Annotated[dict[LabelKey, Label], Field(max_length=32)] = Field(default_factory=dict)
    claim: DnsName | None = None  # a PersistentVolumeClaim with the weights
    claim_path: Annotated[str, Field(pattern=r"^/", max_length=256)] = "/models"
    secret: DnsName | None = None  # holds the variables of launch.pass_env; default: NAME-env

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        launch = self.launch
        fits = self.spares < max(1, launch.replicas)
        problem = f"is {self.spares}, of {launch.replicas} replicas in all"
        fix = "use fewer: the rest carries the load while they are away"
        require(fits or launch.replicas == 0, "workload.spares", problem, fix)
        grouped = self.kind == "leaderworkerset"
        require(grouped or self.hosts == 1, "workload.hosts", f"is {self.hosts}", _KIND_FIX)
        fix = "give launch.command for the first host, and worker_command for the others"
        told = self.hosts == 1 or (bool(self.launch.command) and bool(self.worker_command))
        problem = "is missing: how hosts of one replica find each other is the engine's matter"
        require(told, "workload.worker_command", problem, fix)
        both = bool(self.device) == bool(self.planned_as)
        require(both, "workload.planned_as", "and device are not both given", "give both, or none")
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
            named = _IMAGE.fullmatch(image) is not None
            require(named, field, f"is {image[:80]!r}", "write registry/name@sha256:…")
            exact = self.allow_tags or DIGEST.fullmatch(image) is not None
            problem = f"is {image[:80]!r}: a tag can be another image tomorrow, on some of the pods"
            fix = "write name@sha256:… with its digest, or set allow_tags: true"
            require(exact, field, problem, fix)
        return self


__all__ = ["DIGEST", "WorkloadFile", "WorkloadSection"]
