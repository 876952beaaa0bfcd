"""Config of sources: which platforms are read beside the fleet itself.

    sources:
      - {type: aws, region: eu-west-2, cluster: marigold}
      - {type: kubernetes, namespace: inference}
      - {type: local}

A section holds what differs between sites; the rates at which a platform is asked are in the
source's own config. No key or token of a cloud is part of it: those come from where the
platform's own tools find them, so that this file holds no secret.

Rejected: finding out by ourselves where we run. A host in a cloud may well watch another account,
and calls that were not asked for would cost money.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from holdfast.config.sections import Duration, Section
from holdfast.config.tenants import KeyHash, Name, with_token_of_file
from holdfast.core.types import require
from holdfast.core.view.selectors import parse_selector

SOURCES_MAX: Final = 16
RESERVED: Final = ("fleet", "gateways")  # who else rows come from
_OWN: Final = ("type", "name")

_URL_FIX: Final = "write http://host:port or https://host:port"


def _endpoint(text: str) -> str:
    """A URL of a platform's API. One with a password in it is not repeated."""
    if text:
        require("@" not in text, "address", "holds credentials", "remove them")
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        require(known, "address", f"is {text[:80]!r}", _URL_FIX)
    return text


class _ApiServer(Protocol):
    """How a section of the fleet file says which API server is meant."""

    kubeconfig: str
    context: str
    api_url: str
    token_file: str
    ca_file: str


def check_api_server(section: _ApiServer) -> None:
    """Refuse a section that names an API server twice, or gives credentials for none."""
    one = not (section.api_url and (section.kubeconfig or section.context))
    fix = "keep one: api_url, or kubeconfig with context"
    require(one, "kubernetes.api_url", "is set beside a kubeconfig", fix)
    for name in ("token_file", "ca_file"):
        fits = bool(section.api_url) or not getattr(section, name)
        fix = "set api_url, or let the kubeconfig name it"
        require(fits, f"kubernetes.{name}", "is set without api_url", fix)


def _selector(text: str) -> str:
    parse_selector(text)
    return text


def _mount(text: str) -> str:
    point = text if text.startswith("/") else text.partition("=")[2]
    fix = "write the mount point, or NAME=/mount/point"
    require(point.startswith("/"), "mount", f"is {text[:80]!r}", fix)
    return text


Text = Annotated[str, Field(max_length=512, description="text")]
Texts = Annotated[list[Text], Field(max_length=256, description="texts")]
Endpoint = Annotated[
    str, AfterValidator(_endpoint), Field(max_length=512, description="http://host:port")
]
Period = Annotated[Duration, Field(ge=1, le=600, description="seconds")]
SourceName = Annotated[Name | None, Field(description="a name")]


class _Source(Section):
    """What all of them have; ``settings`` is what a source's own config is made of."""

    @property
    def called(self) -> str:
        """Its name on every row that it feeds."""
        own: str | None = getattr(self, "name", None)
        return own or str(getattr(self, "type", ""))

    def settings(self) -> dict[str, Any]:
        """Every key that is about the platform, lists as tuples."""
        told = {name: getattr(self, name) for name in type(self).model_fields if name not in _OWN}
        return {
            name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
        }


class AwsSection(_Source):
    """An ECS cluster with its auto scaling groups, queues, filesystems and logs."""

    type: Literal["aws"]
    name: SourceName = None
    region: Annotated[Text, Field(description="a region", examples=["eu-west-2"])] = ""
    cluster: Annotated[str, Field(min_length=1, max_length=255, description="a cluster")] = (
        "default"
    )
    endpoint_url: Endpoint = ""
    profile: Text = ""
    period_s: Period = 15.0
    group_tags: Annotated[dict[str, str], Field(max_length=50)] = Field(default_factory=dict)
    queue_prefix: Text = ""
    queue_names: Texts = Field(default_factory=list)
    queue_suffixes: Texts = Field(default_factory=lambda: ["-requests", "-queue"])
    model_tag: Annotated[Text, Field(min_length=1)] = "model"
    filesystems: Texts = Field(default_factory=list)
    cuda_attribute: Text = "fleet.cuda-version"
    driver_attribute: Text = "ecs.capability.gpu-driver-version"
    read_logs: bool = True
    read_memory: bool = True
    read_gpus: bool = True
    phase_key: Annotated[Text, Field(min_length=1)] = "phase"

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        once = not (self.queue_prefix and self.queue_names)
        fix = "use one of the two: a prefix finds queues, names list them"
        require(once, "aws.queue_names", "is set beside queue_prefix", fix)
        return self


class KubernetesSection(_Source):
    """Nodes, pods and events of one API server."""

    type: Literal["kubernetes"]
    name: SourceName = None
    kubeconfig: Text = ""
    context: Text = ""
    api_url: Endpoint = ""
    token_file: Text = ""
    ca_file: Text = ""
    namespace: Annotated[Text, Field(description="a namespace")] = ""
    selector: Annotated[Text, AfterValidator(_selector)] = ""
    all_pods: bool = True
    model_label: Annotated[Text, Field(min_length=1)] = "app.kubernetes.io/name"
    group_label: Text = ""
    inference_pools: bool = False
    period_s: Period = 5.0
    dcgm_urls: Annotated[list[Endpoint], Field(max_length=256)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_api_server(self)
        fix = "name the labels of your pods in selector, or leave all_pods out"
        fits = self.all_pods or bool(self.selector)
        require(fits, "kubernetes.all_pods", "is false without a selector", fix)
        return self


class RaySourceSection(_Source):
    """Nodes and Serve applications of one Ray cluster, by its dashboard."""

    type: Literal["ray"]
    name: SourceName = None
    dashboard_url: Annotated[Endpoint, Field(min_length=1)] = "http://127.0.0.1:8265"
    zone_label: Annotated[Text, Field(min_length=1)] = "zone"
    token_file: Text = ""
    period_s: Period = 5.0


class LocalSection(_Source):
    """The host that control runs on."""

    type: Literal["local"]
    name: SourceName = None
    period_s: Annotated[Duration, Field(ge=1, le=300, description="seconds")] = 5.0
    host: Text = ""
    group: Text = ""
    zone: Text = ""
    kind: Text = ""
    mounts: Annotated[list[Annotated[Text, AfterValidator(_mount)]], Field(max_length=64)] = Field(
        default_factory=list
    )
    paths: Annotated[list[Annotated[str, Field(pattern=r"^/")]], Field(max_length=64)] = Field(
        default_factory=lambda: ["/"]
    )


class AgentSection(Section):
    """One agent: its name, its own token, and of what it may speak."""

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="an agent's --name")
    ]
    token: Annotated[KeyHash, Field(repr=False)]
    token_file: Path | None = None  # the file with that token or its hash, in place of it
    host: Text = ""
    replicas: Texts = Field(default_factory=list)
    groups: Texts = Field(default_factory=list)
    disks: Texts = Field(default_factory=list)
    certificate: Annotated[str, Field(max_length=253, description="a name")] = ""

    _from_file = model_validator(mode="before")(with_token_of_file)


class AgentsSection(_Source):
    """Hosts that report by themselves, by ``holdfast agent``."""

    type: Literal["agents"]
    name: SourceName = None
    token: Annotated[KeyHash | None, Field(repr=False)] = None
    agents: Annotated[list[AgentSection], Field(max_length=1_024)] = Field(default_factory=list)
    silent_periods: Annotated[float, Field(ge=2, le=100, description="periods")] = 3.0
    leaves_after_s: Annotated[Duration, Field(ge=10, le=86_400, description="seconds")] = 600.0
    agents_max: Annotated[int, Field(ge=1, le=10_000, description="agents")] = 256

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        names: dict[str, int] = {}
        tokens: dict[str, str] = {} if self.token is None else {self.token: "the shared token"}
        owners: dict[str, str] = {}
        certificates: dict[str, str] = {}
        for index, agent in enumerate(self.agents):
            where = f"agents.{index}"
            first = names.setdefault(agent.name, index)
            problem = f"is {agent.name!r}, as that of agents[{first}]"
            require(first == index, f"{where}.name", problem, "give each agent its own name")
            holder = tokens.setdefault(agent.token, agent.name)
            fix = "make one for each: 'holdfast keys new'"
            require(holder == agent.name, f"{where}.token", f"is that of {holder}, too", fix)
            if agent.certificate:
                shown = agent.certificate.lower()
                holder = certificates.setdefault(shown, agent.name)
                problem, fix = f"is that of {holder}, too", "make a certificate for each agent"
                require(holder == agent.name, f"{where}.certificate", problem, fix)
            for place, replica in enumerate(agent.replicas):
                owner = owners.setdefault(replica, agent.name)
                problem = f"is {replica!r}, which {owner} has already"
                fix = "name each replica under the agent of its host"
                require(owner == agent.name, f"{where}.replicas.{place}", problem, fix)
        return self


SourceSection = Annotated[
    AwsSection | KubernetesSection | RaySourceSection | LocalSection | AgentsSection,
    Field(discriminator="type"),
]


def check_sources(sources: Sequence[Any]) -> None:
    """Refuse sources with the same name: names tell their rows apart."""
    first_at: dict[str, int] = {}
    inboxes = 0
    for index, source in enumerate(sources):
        name = source.called
        first = first_at.setdefault(name, index)
        where = f"sources.{index}" if source.name is None else f"sources.{index}.name"
        problem = f"is called {name!r}, as sources[{first}] is"
        require(first == index, where, problem, "give each its own 'name'")
        free = name not in RESERVED
        require(free, where, f"is {name!r}, which is a word of ours", "use another name")
        inboxes += isinstance(source, AgentsSection)
        fix = "keep one: all agents report to the same place"
        require(inboxes <= 1, f"sources.{index}", "is a second place for agents", fix)


__all__ = [
    "SOURCES_MAX",
    "AgentSection",
    "AgentsSection",
    "AwsSection",
    "KubernetesSection",
    "LocalSection",
    "RaySourceSection",
    "SourceSection",
    "check_api_server",
    "check_sources",
]
