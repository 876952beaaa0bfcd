"""The fleet file: the models, tenants, ports and policies of ``holdfast serve``.

Control reads it and sends it on to gateways as JSON, so that one reader decides what is accepted
and a gateway never sees a file that control refused. Every tunable comes from a frozen config of
the core or of ``config.gateway``; here are only the things that exist once per fleet, and the
relations between parts, each refused with the line it stands on.

Secrets are not part of it: API keys appear as hashes, the engines' own tokens as the names of
environment variables. Rejected: ``${VARIABLE}`` inside values. The file that was reviewed would
not be the file that runs, and the secret would travel on to every gateway and dump.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from holdfast.config.addresses import Address, Listen, parse_listen
from holdfast.config.admin import AdminConnectionConfig
from holdfast.config.admin_tokens import AdminTokenSection, Network, check_admin_tokens
from holdfast.config.batch import CONSUMERS_MAX, BatchSection, ConsumerSection
from holdfast.config.discovery import DiscoverSection
from holdfast.config.exporters import ExportersSection
from holdfast.config.gateway import (
    BodyConfig,
    DrainingConfig,
    HttpConfig,
    IdempotencySection,
    StreamConfig,
    UpstreamConfig,
)
from holdfast.config.incidents import (
    FOOTPRINTS_MAX,
    ChainSection,
    FootprintSection,
    IncidentsSection,
)
from holdfast.config.launch import LaunchSection, RaySection
from holdfast.config.models import (
    ENGINES,
    PLACED,
    Deployed,
    EndpointSection,
    EngineName,
    ModelSection,
)
from holdfast.config.platforms.kubernetes import KubernetesLaunchSection, check_image
from holdfast.config.prices import PricesSection, check_prices
from holdfast.config.processes.control import ControlSection
from holdfast.config.sections import Policy, Section
from holdfast.config.sources import (
    SOURCES_MAX,
    AgentsSection,
    KubernetesSection,
    SourceSection,
    check_sources,
)
from holdfast.config.tenants import (
    ANONYMOUS,
    KeyHash,
    Name,
    TenantSection,
    is_guessed,
    with_token_of_file,
)
from holdfast.config.virtual import VirtualSection
from holdfast.core.canary import Shape
from holdfast.core.deploy.launches import LaunchGateConfig
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.process_watch import ProcessWatchConfig
from holdfast.core.intake.byte_budget import ByteBudgetConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import require


class TlsSection(Section):
    """Certificate and key of a port, as PEM files; opened at start, and again when they change."""

    certificate: Annotated[Path, Field(description="the path of the certificate chain")]
    key: Annotated[Path, Field(description="the path of its private key")]


class AdminTlsSection(TlsSection):
    """Certificate and key of the operators' port, and whose certificates its callers may show."""

    client_ca: Path | None = None  # the authority of agents' certificates; none: none are asked for


class GatewaySection(Section):
    """The gateway's port and its limits."""

    listen: Listen = "127.0.0.1:8000"
    workers: Annotated[int, Field(ge=1, le=64, description="processes")] = 1
    http: Annotated[HttpConfig, Policy()] = HttpConfig()
    budget: Annotated[ByteBudgetConfig, Policy()] = ByteBudgetConfig()
    limits: Annotated[BodyConfig, Policy()] = BodyConfig()
    stream: Annotated[StreamConfig, Policy()] = StreamConfig()
    upstream: Annotated[UpstreamConfig, Policy()] = UpstreamConfig()
    draining: Annotated[DrainingConfig, Policy()] = DrainingConfig()
    idempotency: IdempotencySection = IdempotencySection()  # a retry gets the first one's answer
    tls: TlsSection | None = None
    cors_origins: Annotated[
        list[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s,?#]+)$", max_length=256)]],
        Field(max_length=64, description="origins, such as https://chat.example.org, or '*'"),
    ] = Field(default_factory=list)
    hosts: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=253)]],
        Field(max_length=64, description="names without a port, such as chat.example.org"),
    ] = Field(default_factory=list)

    @property
    def address(self) -> Address:
        """The address where clients connect."""
        return parse_listen(self.listen)


class AdminSection(Section):
    """The operators' port: its address, who may do what, and TLS."""

    listen: Listen = "127.0.0.1:8001"
    token: Annotated[KeyHash | None, Field(repr=False)] = None
    token_file: Path | None = None  # the file with that token or its hash, in place of it
    tokens: Annotated[list[AdminTokenSection], Field(max_length=64)] = Field(default_factory=list)
    open_read: bool | None = None
    trusted_proxies: Annotated[list[Network], Field(max_length=64)] = Field(default_factory=list)
    tls: AdminTlsSection | None = None
    connections: Annotated[AdminConnectionConfig, Policy()] = AdminConnectionConfig()
    insecure: bool = False  # beyond this machine without TLS: something in front must have it

    _from_file = model_validator(mode="before")(with_token_of_file)

    @property
    def address(self) -> Address:
        """The address where operators connect."""
        return parse_listen(self.listen)

    @property
    def reads_openly(self) -> bool:
        """Whether reading needs no token: on loopback, unless a token is set or it is closed."""
        if self.open_read is not None:
            return self.open_read and self.address.loopback
        return self.address.loopback and self.token is None and not self.tokens


class ChaosSection(Section):
    """Whether operators may inject faults through the admin port."""

    enabled: bool = False  # a detour leads users' prompts to another process: never by default


class FleetFile(Section):
    """The contents of a fleet file, validated."""

    model_config = ConfigDict(hide_input_in_errors=True)  # a refused value may be a plain key

    gateway: GatewaySection = GatewaySection()
    admin: AdminSection = AdminSection()
    control: ControlSection = ControlSection()
    chaos: ChaosSection = ChaosSection()
    batch: BatchSection = BatchSection()
    consumers: Annotated[list[ConsumerSection], Field(max_length=CONSUMERS_MAX)] = Field(
        default_factory=list
    )  # queues that others fill; read when 'serve' starts
    models: Annotated[list[ModelSection], Field(description="at least one model")] = Field(
        default_factory=list
    )
    retry: Annotated[RetryConfig, Policy()] = RetryConfig()
    hedge: Annotated[HedgeConfig, Policy()] = HedgeConfig()
    fleet: Annotated[FleetConfig, Policy()] = FleetConfig()
    launches: Annotated[LaunchGateConfig, Policy()] = LaunchGateConfig()
    ray: RaySection = RaySection()
    kubernetes: KubernetesLaunchSection = KubernetesLaunchSection()
    watch: Annotated[ProcessWatchConfig, Policy()] = ProcessWatchConfig()
    tenants: list[TenantSection] = Field(default_factory=list)
    virtual_models: list[VirtualSection] = Field(default_factory=list)
    incidents: IncidentsSection = IncidentsSection()
    chains: Annotated[list[ChainSection], Field(max_length=64)] = Field(default_factory=list)
    footprints: Annotated[
        dict[Name, FootprintSection], Field(max_length=FOOTPRINTS_MAX, description="by model")
    ] = Field(default_factory=dict)
    prices: PricesSection = PricesSection()
    exporters: ExportersSection = ExportersSection()
    sources: Annotated[list[SourceSection], Field(max_length=SOURCES_MAX)] = Field(
        default_factory=list
    )

    @property
    def platforms(self) -> frozenset[str]:
        """The platforms that models are launched on; empty text: this host."""
        launched = (model.launch for model in self.models)
        return frozenset(launch.on for launch in launched if launch is not None)

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """The files with secrets that were read together with this one."""
        files = [key.file for tenant in self.tenants for key in tenant.keys]
        files += [self.admin.token_file, *(one.token_file for one in self.admin.tokens)]
        for source in self.sources:
            if isinstance(source, AgentsSection):
                files += [agent.token_file for agent in source.agents]
        return tuple(file for file in files if file is not None)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        # Who only looks at platforms serves nobody, and needs no model.
        problem = "has 0 items" if "models" in self.model_fields_set else "is missing"
        fix = "use at least 1" if "models" in self.model_fields_set else "add at least one model"
        require(bool(self.models or self.sources), "models", problem, fix)
        check_sources(self.sources)
        _check_discovery(self)
        _check_images(self)
        _check_ports(self)
        _check_controls(self)
        _check_agents(self)
        _check_replicas(self)
        _check_virtual(self)
        _check_tenants(self)
        _check_consumers(self)
        _check_chains(self)
        _check_footprints(self)
        check_prices(self.prices, [model.name for model in self.models])
        return self

    def footprint_of_models(self) -> dict[str, FootprintSection]:
        """The footprint of each model of which one is declared, routed here or not."""
        own = {model.name: model.footprint for model in self.models}
        return self.footprints | {name: one for name, one in own.items() if one.declared}

    def replicas(self) -> list[Deployed]:
        """All replicas of all models."""
        return [deployed for model in self.models for deployed in model.deployed()]

    def flow_config(self) -> FlowConfig:
        """The config of a gateway's flow; quotas are the tenants' whole ones, not shares."""
        lanes = {model.name: model.lane() for model in self.models}
        # The flow takes the limit of a request without a deadline from this one. The widest cuts
        # nothing short; whoever sends a request in gives it its own model's deadline.
        widest = max(
            lanes.values(),
            key=lambda lane: lane.deadlines.request_s + lane.queue.wait_batch_s,
            default=LaneConfig(),
        )
        ladders = [virtual.degrade_config() for virtual in self.virtual_models]
        return FlowConfig(
            lane=widest,
            lanes=lanes,
            retry=self.retry,
            hedge=self.hedge,
            degrade=tuple(ladder for ladder in ladders if ladder is not None),
            quotas={tenant.name: tenant.quota for tenant in self.tenants if tenant.limited},
            tenant_weights={tenant.name: tenant.weight for tenant in self.tenants},
        )

    def fleet_config(self) -> FleetConfig:
        """The config of control's fleet."""
        return self.fleet

    def with_endpoints(self, by_model: Mapping[str, Sequence[EndpointSection]]) -> Self:
        """A copy with the endpoints of launched replicas; other models are unchanged."""
        names = [model.name for model in self.models]
        for name in by_model:
            fix = f"use one of {_few(names)}"
            require(name in names, "models", f"has no {name!r} to place replicas of", fix)
        said = {name: getattr(self, name) for name in self.model_fields_set}
        said["models"] = [
            model.with_endpoints(by_model[model.name]) if model.name in by_model else model
            for model in self.models
        ]
        return type(self).model_validate(said, context=PLACED)

    def to_json(self) -> bytes:
        """The file as JSON for another process; ``from_json`` gives an equal file."""
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read the output of ``to_json`` and validate it; endpoints may be filled in."""
        return cls.model_validate_json(data, context=PLACED)


# --- relations ------------------------------------------------------------------------------------


def _check_ports(file: FleetFile) -> None:
    data, admin = file.gateway.address, file.admin.address
    apart = not data.overlaps(admin)
    fix = "use another port: clients and operators have one each"
    field = "admin.listen" if "admin" in file.model_fields_set else "gateway.listen"
    require(apart, field, f"clashes: both ports are at {file.gateway.listen}", fix)
    fix = "listen on 127.0.0.1, or give every caller a key under 'tenants'"
    safe = data.loopback or bool(file.tenants)
    problem = f"is {file.gateway.listen}: without tenants anybody could use it"
    require(safe, "gateway.listen", problem, fix)
    fix = "listen on 127.0.0.1, or set admin.token (run 'holdfast keys hash')"
    safe = admin.loopback or file.admin.token is not None or bool(file.admin.tokens)
    problem = f"is {file.admin.listen}: without a token anybody could use it"
    require(safe, "admin.listen", problem, fix)
    problem = f"is true, and the port is at {file.admin.listen}: any host could read everything"
    fix = "remove it, and give readers a token with roles: [read] under admin.tokens"
    require(admin.loopback or not file.admin.open_read, "admin.open_read", problem, fix)
    check_admin_tokens(file.admin.tokens, file.admin.token)
    safe = admin.loopback or file.admin.tls is not None or file.admin.insecure
    problem = f"is {file.admin.listen} without TLS: tokens would cross the network readable"
    fix = "set admin.tls, listen on 127.0.0.1, or set admin.insecure: true if a proxy has the TLS"
    require(safe, "admin.listen", problem, fix)
    guessed = file.admin.token is not None and is_guessed(file.admin.token)
    problem, fix = "is the hash of a token that is guessed at once", "run 'holdfast keys new'"
    require(not guessed, "admin.token", problem, fix)


def _check_controls(file: FleetFile) -> None:
    """Refuse launches beside several controls: no other one could take over what one started."""
    launched = [model.name for model in file.models if model.launch is not None]
    problem = f"names several controls, and {_few(launched)} is launched by control itself"
    fix = "name its endpoints, discover them on a platform, or keep one control"
    require(not (file.control.members and launched), "control.members", problem, fix)


def _check_agents(file: FleetFile) -> None:
    asked = file.admin.tls is not None and file.admin.tls.client_ca is not None
    for number, source in enumerate(file.sources):
        if not isinstance(source, AgentsSection):
            continue
        for index, agent in enumerate(source.agents):
            field = f"sources.{number}.agents.{index}.certificate"
            problem = "is set, and no caller is asked for a certificate"
            fix = "name the authority of agents' certificates under admin.tls.client_ca"
            require(asked or not agent.certificate, field, problem, fix)


def _check_replicas(file: FleetFile) -> None:
    names: dict[str, int] = {}
    ids: dict[str, str] = {}
    for index, model in enumerate(file.models):
        first = names.setdefault(model.name, index)
        problem = f"is {model.name!r}, as that of models[{first}]"
        fix = "give each model its own name; replicas of one model go under one 'endpoints'"
        require(first == index, f"models.{index}.name", problem, fix)
        others = [other for other in file.models if other is not model]
        for position, deployed in enumerate(model.deployed()):
            own, here = deployed.replica.id, f"models[{index}].endpoints[{position}]"
            field = f"models.{index}.endpoints.{position}.id"
            holder = ids.setdefault(own, here)
            problem = f"is {own!r}, as that of {holder}"
            require(holder == here, field, problem, "give each replica its own id")
            taken = next((other.name for other in others if other.may_name(own)), "")
            problem = f"is {own!r}, which a replica launched for {taken!r} may get"
            require(not taken, field, problem, "use another id: launched ones are model-number")


def _check_discovery(file: FleetFile) -> None:
    listing = (
        "kubernetes",
        "aws",
        "ray",
    )  # what else is watched has no word on who is to be a replica
    names = [source.called for source in file.sources if source.type in listing]
    for index, model in enumerate(file.models):
        if model.discover is not None:
            own = model.discover.source
            problem = f"is {own!r}, which is no Kubernetes, AWS or Ray source of this file"
            fix = f"use one of {_few(names)}" if names else "add one under 'sources'"
            require(own in names, f"models.{index}.discover.source", problem, fix)
            _check_pool(file, index, model.discover)


def _check_pool(file: FleetFile, index: int, rule: DiscoverSection) -> None:
    """Refuse an inference pool of a source that does not read them."""
    place, source = next(
        (place, source) for place, source in enumerate(file.sources) if source.called == rule.source
    )
    reads = isinstance(source, KubernetesSection) and source.inference_pools
    field = f"models.{index}.discover.inference_pool"
    problem = f"is {rule.inference_pool!r}, and the source {rule.source!r} reads no inference pools"
    told = source.type == "kubernetes"
    fix = f"set sources.{place}.inference_pools: true" if told else "use a Kubernetes source"
    require(reads or not rule.inference_pool, field, problem, fix)


def _check_images(file: FleetFile) -> None:
    """Refuse pods whose image only a tag holds in place, unless the file allows it."""
    for index, model in enumerate(file.models):
        pod = model.launch.kubernetes if model.launch is not None else None
        if pod is not None:
            field = f"models.{index}.launch.kubernetes.image"
            check_image(field, pod.image, allow_tags=file.kubernetes.allow_tags)


def _check_virtual(file: FleetFile) -> None:
    models = [model.name for model in file.models]
    ladders = [virtual.name for virtual in file.virtual_models if not virtual.leads_by_rules]
    tenants = [tenant.name for tenant in file.tenants] or [ANONYMOUS]
    vectors = {model.name for model in file.models if model.canary.shape is Shape.EMBEDDING}
    taken = dict.fromkeys(models, "a model")
    tops: dict[str, str] = {}
    for index, virtual in enumerate(file.virtual_models):
        where = f"virtual_models.{index}"
        problem = f"is {virtual.name!r}, which is {taken.get(virtual.name)} of this file"
        fix = "use a name of its own: it would hide the other"
        require(virtual.name not in taken, f"{where}.name", problem, fix)
        taken[virtual.name] = "a virtual model"
        for field, model in virtual.leads_to():
            # A rule may lead to a ladder, and no further: a path has an end that one can read.
            known = models + ladders if field.endswith(("use", "default")) else models
            problem = f"is {model!r}, which is no model of this file"
            require(model in known, f"{where}.{field}", problem, f"use one of {_few(known)}")
        ladder = virtual.degrade_config()
        if ladder is not None:
            # A lane gives its readings away once: two ladders would each see half of them.
            holder = tops.setdefault(ladder.ladder[0], virtual.name)
            problem = f"begins at {ladder.ladder[0]!r}, as that of {holder!r}"
            field = f"{where}.ladder" if virtual.ladder is not None else f"{where}.degrade.ladder"
            require(holder == virtual.name, field, problem, "begin one ladder at each model")
            for place, rung in enumerate(ladder.ladder):
                problem = f"is {rung!r}, which gives embeddings: no model can stand in for another"
                fix = "give each its own name: vectors of two models cannot be compared"
                require(rung not in vectors, f"{field}.{place}", problem, fix)
        for number, rule in enumerate(virtual.rules):
            for place, tenant in enumerate(rule.when.tenant or ()):
                field = f"{where}.rules.{number}.when.tenant.{place}"
                problem = f"is {tenant!r}, which is no tenant of this file"
                require(tenant in tenants, field, problem, f"use one of {_few(tenants)}")


def _check_tenants(file: FleetFile) -> None:
    public = [model.name for model in file.models]
    public += [virtual.name for virtual in file.virtual_models]
    held = [d.replica.region for d in file.replicas()]
    held += [model.launch.region for model in file.models if model.launch is not None]
    held += [model.discover.region for model in file.models if model.discover is not None]
    regions = list(dict.fromkeys(held))
    names: dict[str, int] = {}
    keys: dict[str, str] = {}
    for index, tenant in enumerate(file.tenants):
        where = f"tenants.{index}"
        first = names.setdefault(tenant.name, index)
        problem = f"is {tenant.name!r}, as that of tenants[{first}]"
        require(first == index, f"{where}.name", problem, "list the keys of a tenant in one place")
        for place, key in enumerate(tenant.keys):
            here = f"tenants[{index}].keys[{place}]"
            holder = keys.setdefault(key.hash or "", here)
            problem = f"is the same as {holder}"
            require(holder == here, f"{where}.keys.{place}", problem, "give each key once")
            weak = is_guessed(key.hash or "") and not tenant.insecure
            problem = "is the hash of a key that is guessed at once"
            fix = "run 'holdfast keys new', or set insecure: true for a test on one machine"
            require(not weak, f"{where}.keys.{place}", problem, fix)
        for field, said, known in (
            ("models", tenant.models, public),
            ("regions", tenant.regions, regions),
        ):
            for place, name in enumerate(said):
                problem = f"is {name!r}, which is in no part of this file"
                fix = f"use one of {_few(known)}"
                require(name in known, f"{where}.{field}.{place}", problem, fix)


def _check_consumers(file: FleetFile) -> None:
    public = [model.name for model in file.models]
    public += [virtual.name for virtual in file.virtual_models]
    tenants = {tenant.name: tenant for tenant in file.tenants}
    names: dict[str, int] = {}
    for index, consumer in enumerate(file.consumers):
        where = f"consumers.{index}"
        first = names.setdefault(consumer.called, index)
        problem = f"is {consumer.called!r}, as that of consumers[{first}]"
        fix = "give each its own name: two queues of one model need one each"
        require(first == index, f"{where}.name", problem, fix)
        problem = f"is {consumer.model!r}, which is no model of this file"
        fix = f"use one of {_few(public)}"
        require(consumer.model in public, f"{where}.model", problem, fix)
        problem = f"is {consumer.tenant!r}, which is no tenant of this file"
        known = consumer.tenant in tenants or (not tenants and consumer.tenant == ANONYMOUS)
        fix = f"use one of {_few(list(tenants))}" if tenants else "remove it, or add the tenant"
        require(known, f"{where}.tenant", problem, fix)
        tenant = tenants.get(consumer.tenant)
        allowed = tenant is None or not tenant.models or consumer.model in tenant.models
        problem = f"is {consumer.tenant!r}, who may not use {consumer.model!r}"
        require(
            allowed, f"{where}.tenant", problem, f"add it to tenants: models of {consumer.tenant}"
        )


def _check_footprints(file: FleetFile) -> None:
    """A model has one footprint: its own section's, if it has a section."""
    names = {model.name for model in file.models}
    for name in file.footprints:
        fix = "set it under 'footprint' of the model"
        require(name not in names, f"footprints.{name}", "is that of a model of this file", fix)


def _check_chains(file: FleetFile) -> None:
    models = [model.name for model in file.models]
    names: dict[str, int] = {}
    for index, chain in enumerate(file.chains):
        first = names.setdefault(chain.name, index)
        problem = f"is {chain.name!r}, as that of chains[{first}]"
        require(first == index, f"chains.{index}.name", problem, "give each chain its own name")
        for place, model in enumerate(chain.models):
            problem = f"is {model!r}, which is no model of this file"
            field = f"chains.{index}.models.{place}"
            require(model in models, field, problem, f"use one of {_few(models)}")


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, …" if len(names) > 6 else shown


__all__ = [
    "ENGINES",
    "Address",
    "AdminSection",
    "AdminTlsSection",
    "ChaosSection",
    "Deployed",
    "EndpointSection",
    "EngineName",
    "FleetFile",
    "GatewaySection",
    "LaunchSection",
    "ModelSection",
    "TlsSection",
    "parse_listen",
]
