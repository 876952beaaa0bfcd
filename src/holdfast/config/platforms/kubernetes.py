"""Config of replicas that Holdfast launches on Kubernetes: which cluster, and what their pods are.

    kubernetes: {namespace: inference}
    models:
      - name: llama
        launch:
          on: kubernetes
          kubernetes: {image: "vllm/vllm-openai@sha256:…", kind: deployment}

What a pod is made of is the same here and in a workloads file (``holdfast render kubernetes``).
"""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from holdfast.config.addresses import Url
from holdfast.config.sections import Section
from holdfast.config.sources import Endpoint, Text, check_api_server
from holdfast.core.types import require

DIGEST: Final = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
ENGINE_PORT_DEFAULT: Final = 8000  # of a pod's own address, so nobody else has it
_IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]*")
_KIND_FIX: Final = "use kind: leaderworkerset, which starts the hosts of one replica together"
# What the standard "baseline" lets containers have.
PLAIN_CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)

Image = Annotated[str, Field(min_length=1, max_length=512, description="an image by its digest")]
DnsName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="a name")
]
Label = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]
Capability = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=64)]  # without CAP_
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]


class PodSection(Section):
    """What Kubernetes has to know of one replica: its image, its workload and its nodes."""

    image: Image
    kind: Literal["deployment", "statefulset", "leaderworkerset"] = "deployment"
    hosts: Annotated[int, Field(ge=1, le=64, description="hosts of one replica")] = 1
    worker_command: Annotated[list[str], Field(max_length=256)] = Field(default_factory=list)
    port: Annotated[int, Field(ge=1, le=65_535, description="a port")] | None = None
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
    run_as: Annotated[int, Field(ge=0, le=2_147_483_647, description="a user id")] | None = 2_000
    capabilities: Annotated[list[Capability], Field(max_length=64)] = Field(default_factory=list)

    @property
    def pod_security(self) -> str:
        """The Pod Security Standard that these pods fit: what their namespace may enforce."""
        if not PLAIN_CAPABILITIES.issuperset(self.capabilities):
            return "privileged"
        plain = bool(self.run_as) and not self.capabilities
        return "restricted" if plain else "baseline"


class KubernetesLaunchSection(Section):
    """The cluster that replicas with ``launch.on: kubernetes`` run on."""

    namespace: DnsName = "inference"
    owner: Annotated[Label, Field(min_length=1, description="the value of a label")] = "holdfast"
    kubeconfig: Text = ""
    context: Text = ""
    api_url: Endpoint = ""
    token_file: Text = ""
    ca_file: Text = ""
    control: Url = "http://holdfast.holdfast.svc:8001"
    agent_image: Annotated[str, Field(max_length=512, description="an image by its digest")] = ""
    allow_tags: bool = False

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_api_server(self)
        if self.agent_image:
            check_image("kubernetes.agent_image", self.agent_image, allow_tags=self.allow_tags)
        return self


def check_image(field: str, image: str, *, allow_tags: bool) -> None:
    """Refuse what is no image, and an image that only a tag holds in place."""
    named = _IMAGE.fullmatch(image) is not None
    require(named, field, f"is {image[:80]!r}", "write registry/name@sha256:…")
    exact = allow_tags or DIGEST.fullmatch(image) is not None
    problem = f"is {image[:80]!r}: a tag can be another image tomorrow, on some of the pods"
    fix = "write name@sha256:… with its digest, or set allow_tags: true"
    require(exact, field, problem, fix)


def check_hosts(pod: PodSection, field: str, *, commanded: bool) -> None:
    """Refuse several hosts of a replica that no workload starts together, or without commands."""
    grouped = pod.kind == "leaderworkerset"
    require(grouped or pod.hosts == 1, f"{field}.hosts", f"is {pod.hosts}", _KIND_FIX)
    fix = "give launch.command for the first host, and worker_command for the others"
    told = pod.hosts == 1 or (commanded and bool(pod.worker_command))
    problem = "is missing: how hosts of one replica find each other is the engine's matter"
    require(told, f"{field}.worker_command", problem, fix)
    both = bool(pod.device) == bool(pod.planned_as)
    require(both, f"{field}.planned_as", "and device are not both given", "give both, or none")


__all__ = [
    "DIGEST",
    "ENGINE_PORT_DEFAULT",
    "DnsName",
    "Image",
    "KubernetesLaunchSection",
    "Label",
    "LabelKey",
    "PodSection",
    "check_hosts",
    "check_image",
]
