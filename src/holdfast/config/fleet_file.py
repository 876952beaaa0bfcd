"""The fleet file: what ``holdfast serve`` serves, to whom, and by which policies.

Control reads it and sends it on to gateways as JSON, so that one reader decides what is accepted
and a gateway never sees a file that control refused. Every tunable comes from a frozen config of
the core or of ``config.gateway``; here are only the things that exist once per fleet, and the
relations between parts, each refused with the line it stands on.

Secrets are not part of it: API keys appear as hashes, the engines' own tokens as the names of
environment variables. Rejected: ``${VARIABLE}`` inside values. The file that was reviewed would
not be the file that runs, and the secret would travel on to every gateway and dump.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from holdfast.config.gateway import (
    BodyConfig,
    DrainingConfig,
    HttpConfig,
    StreamConfig,
    UpstreamConfig,
)
from holdfast.config.sections import Duration, Policy, Section
from holdfast.config.tenants import ANONYMOUS, KeyHash, Name, TenantSection
from holdfast.config.virtual import VirtualSection
from holdfast.core import routing
from holdfast.core.admission.limit import LimitConfig
from holdfast.core.admission.queue import QueueConfig
from holdfast.core.breaker import BreakerConfig
from holdfast.core.deadlines import DeadlineConfig
from holdfast.core.failover import FailoverConfig
from holdfast.core.fleet_config import FleetConfig
from holdfast.core.flow_config import FlowConfig
from holdfast.core.hedge import HedgeConfig
from holdfast.core.lane import LaneConfig
from holdfast.core.retry import RetryConfig
from holdfast.core.types import ConfigError, Replica, require

EngineName = Literal["openai", "vllm", "sglang", "tgi", "triton", "llamacpp", "ollama", "trtllm"]
ENGINES: Final[tuple[str, ...]] = get_args(EngineName)

# --- addresses ------------------------------------------------------------------------------------

_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_LISTEN: Final = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
_LISTEN_FIX: Final = "write host:port, such as 127.0.0.1:8000 or '[::1]:8000'"
_URL_FIX: Final = "write http://host:port or https://host:port"
_URL_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")  # capitals: few tokens look like this
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Where to listen."""

    host: str  # a name or an IP address, without brackets
    port: int  # 0: any free one

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than localhost may be anything."""
        address = _ip(self.host)
        return self.host.lower() == "localhost" if address is None else address.is_loopback

    def overlaps(self, other: "Address") -> bool:
        """Whether the two cannot both be bound."""
        if self.port != other.port or not self.port:
            return False
        addresses = (_ip(self.host), _ip(other.host))
        everywhere = any(address is not None and address.is_unspecified for address in addresses)
        return everywhere or self.host.lower() == other.host.lower()


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_host(host: str) -> bool:
    """A name or an address. What looks like an address must be one, or it fails much later."""
    if "%" in host or _ip(host) is not None:
        return "%" not in host
    return bool(_HOST.fullmatch(host)) and not host.rpartition(".")[2].isdecimal()


def parse_listen(text: str) -> Address:
    """``host:port`` or ``[IPv6]:port``, or a ``ConfigError``."""
    match = _LISTEN.fullmatch(text)
    if match is None:
        raise ConfigError("address", f"is {text[:80]!r}", _LISTEN_FIX)
    host, port = match["v6"] or match["host"] or "", int(match["port"])
    require(bool(host), "address", "has no host", "write 0.0.0.0 (with tenants) for every address")
    require(port <= 65_535, "address", f"has the port {port}", "use a port up to 65535")
    known = isinstance(_ip(host), IPv6Address) if match["v6"] is not None else _is_host(host)
    require(known, "address", f"has the host {host[:80]!r}", _LISTEN_FIX)
    return Address(host, port)


def _listen(text: str) -> str:
    parse_listen(text)
    return text


def _url(text: str) -> str:
    """The URL in one spelling. What holds an '@' may hold a password and is not repeated."""
    require("@" not in text, "address", "holds credentials", "remove them; use api_key_env")
    told = f"is {text[:80]!r}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError("address", told, _URL_FIX) from error
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    plain = text.isascii() and text.isprintable() and " " not in text
    require(plain and scheme in _DEFAULT_PORTS, "address", told, _URL_FIX)
    require(_is_host(host), "address", told, _URL_FIX)
    require(port != 0, "address", "has the port 0", "name the engine's port")
    bare = "?" not in text and "#" not in text
    require(bare, "address", "has a query or fragment", "remove what follows the path")
    path = parts.path.rstrip("/")
    fix = "leave it out: the path that the client asked for is added"
    require(not path.endswith("/v1"), "address", "ends in /v1", fix)
    fits = _URL_PATH.fullmatch(path) is not None
    require(fits, "address", f"has the path {path[:80]!r}", "use letters, digits and '-._~'")
    shown_host = f"[{host}]" if ":" in host else host
    shown_port = "" if port in {None, _DEFAULT_PORTS[scheme]} else f":{port}"
    return f"{scheme}://{shown_host}{shown_port}{path}"


def _variable(value: object) -> str | None:
    """The name of an environment variable; if it is a token after all, it is not repeated."""
    if value is not None and not (isinstance(value, str) and _VARIABLE.fullmatch(value)):
        fix = "write the name, in capitals, of the environment variable that holds the token"
        raise ConfigError("variable", "is not a name (tokens are never written down)", fix)
    return value


Listen = Annotated[
    str, AfterValidator(_listen), Field(description="host:port", examples=["127.0.0.1:8000"])
]
Url = Annotated[
    str, AfterValidator(_url), Field(description="a URL", examples=["http://127.0.0.1:9501"])
]

# --- sections -------------------------------------------------------------------------------------


class TlsSection(Section):
    """PEM files of the data port; opened at start."""

    certificate: Annotated[Path, Field(description="the path of the certificate chain")]
    key: Annotated[Path, Field(description="the path of its private key")]


class GatewaySection(Section):
    """The data port and how it behaves."""

    listen: Listen = "127.0.0.1:8000"
    workers: Annotated[int, Field(ge=1, le=64, description="processes")] = 1
    http: Annotated[HttpConfig, Policy()] = HttpConfig()
    limits: Annotated[BodyConfig, Policy()] = BodyConfig()
    stream: Annotated[StreamConfig, Policy()] = StreamConfig()
    upstream: Annotated[UpstreamConfig, Policy()] = UpstreamConfig()
    draining: Annotated[DrainingConfig, Policy()] = DrainingConfig()
    tls: TlsSection | None = None
    cors_origins: Annotated[
        list[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s,?#]+)$", max_length=256)]],
        Field(max_length=64, description="origins, such as https://chat.example.org, or '*'"),
    ] = Field(default_factory=list)

    @property
    def address(self) -> Address:
        """Where clients connect."""
        return parse_listen(self.listen)


class AdminSection(Section):
    """The operators' port."""

    listen: Listen = "127.0.0.1:8001"
    token: Annotated[KeyHash | None, Field(repr=False)] = None

    @property
    def address(self) -> Address:
        """Where operators connect."""
        return parse_listen(self.listen)


class EndpointSection(Section):
    """One replica: where it is, and what is known of it."""

    url: Url
    id: Name | None = None  # default: model-position
    zone: Annotated[str, Field(min_length=1, max_length=64, description="a zone")] = "zone-a"
    region: Annotated[str, Field(min_length=1, max_length=64, description="a region")] = "region-a"
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    slots: Annotated[int, Field(ge=0, description="requests at once; 0 = undeclared")] = 0
    weight: Annotated[float, Field(gt=0, le=1000, description="relative capacity")] = 1.0


def _from_text(value: object) -> object:
    """An endpoint of which only the URL is said."""
    if isinstance(value, str):
        return {"url": value}
    if not isinstance(value, dict | EndpointSection):
        raise ConfigError("endpoint", "is neither a URL nor a mapping", f"{_URL_FIX}, or 'url: …'")
    return value


Endpoint = Annotated[
    EndpointSection, BeforeValidator(_from_text, json_schema_input_type=str | EndpointSection)
]


class ModelSection(Section):
    """One model: its replicas, and the policies of its lane."""

    name: Annotated[Name, Field(description="the name that clients use", examples=["llama"])]
    engine: Annotated[EngineName, Field(description="the serving software", examples=["vllm"])]
    endpoints: Annotated[
        list[Endpoint], Field(min_length=1, description="URLs", examples=["[http://host:8000]"])
    ]
    revision: Annotated[str, Field(min_length=1, max_length=128, description="a revision")] = "1"
    served_as: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    api_key_env: Annotated[
        str | None, BeforeValidator(_variable, json_schema_input_type=str | None)
    ] = None
    routing: Annotated[str, Field(description="a routing policy")] = routing.DEFAULT
    routing_options: dict[str, Any] = Field(default_factory=dict)
    queue: Annotated[QueueConfig, Policy()] = QueueConfig()
    deadlines: Annotated[DeadlineConfig, Policy()] = DeadlineConfig()
    breaker: Annotated[BreakerConfig, Policy()] = BreakerConfig()
    limit: Annotated[LimitConfig, Policy()] = LimitConfig()
    failover: Annotated[FailoverConfig, Policy()] = FailoverConfig()
    slo_first_token: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None, description="seconds"
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        first_at: dict[str, int] = {}
        for index, endpoint in enumerate(self.endpoints):
            first = first_at.setdefault(endpoint.url, index)
            field, problem = f"model.endpoints.{index}.url", f"is that of endpoints[{first}] too"
            require(first == index, field, problem, "list each replica of a model once")
        try:
            routing.build(self.routing, Random(0), **self.routing_options)
        except ConfigError as bad:
            if self.routing not in routing.POLICIES:
                raise ConfigError("model.routing", bad.problem, bad.fix) from bad
            told = f"{bad.field} {bad.problem}"
            raise ConfigError("model.routing_options", told, bad.fix) from bad
        except TypeError as bad:  # a setting that no policy can have, such as rng
            told, fix = "cannot be used", f"use settings of {self.routing}"
            raise ConfigError("model.routing_options", told, fix) from bad
        return self

    def lane(self) -> LaneConfig:
        """Its policies, as the core has them."""
        return LaneConfig(
            routing=self.routing,
            routing_options=self.routing_options,
            queue=self.queue,
            deadlines=self.deadlines,
            breaker=self.breaker,
            limit=self.limit,
            failover=self.failover,
            slo_first_token_s=self.slo_first_token,
        )

    def deployed(self) -> Iterator["Deployed"]:
        """Its replicas, in the order of the file."""
        for position, endpoint in enumerate(self.endpoints, 1):
            replica = Replica(
                endpoint.id or f"{self.name}-{position}",
                self.name,
                revision=endpoint.revision or self.revision,
                zone=endpoint.zone,
                region=endpoint.region,
                slots=endpoint.slots,
                weight=endpoint.weight,
            )
            served_as = self.served_as or self.name
            yield Deployed(replica, endpoint.url, self.engine, served_as, self.api_key_env)


@dataclass(slots=True, frozen=True)
class Deployed:
    """A replica, and how to call it."""

    replica: Replica
    url: str  # scheme, host, port where it is not the usual one, path without a last slash
    engine: str  # one of ENGINES
    served_as: str  # the model's name at the engine
    api_key_env: str | None  # the environment variable that holds the engine's bearer token


class FleetFile(Section):
    """A whole fleet file."""

    model_config = ConfigDict(hide_input_in_errors=True)  # a refused value may be a plain key

    gateway: GatewaySection = GatewaySection()
    admin: AdminSection = AdminSection()
    models: Annotated[list[ModelSection], Field(min_length=1, description="at least one model")]
    retry: Annotated[RetryConfig, Policy()] = RetryConfig()
    hedge: Annotated[HedgeConfig, Policy()] = HedgeConfig()
    fleet: Annotated[FleetConfig, Policy()] = FleetConfig()
    tenants: list[TenantSection] = Field(default_factory=list)
    virtual_models: list[VirtualSection] = Field(default_factory=list)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        _check_ports(self)
        _check_replicas(self)
        _check_virtual(self)
        _check_tenants(self)
        return self

    def replicas(self) -> list[Deployed]:
        """Every replica of every model."""
        return [deployed for model in self.models for deployed in model.deployed()]

    def flow_config(self) -> FlowConfig:
        """The policies of a gateway's flow. Quotas are the tenants' whole ones, not shares."""
        lanes = {model.name: model.lane() for model in self.models}
        # The flow takes the limit of a request without a deadline from this one. The widest cuts
        # nothing short; whoever sends a request in gives it its own model's deadline.
        widest = max(
            lanes.values(), key=lambda lane: lane.deadlines.request_s + lane.queue.wait_batch_s
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
        """The policies of control."""
        return self.fleet

    def to_json(self) -> bytes:
        """For another process; ``from_json`` gives an equal file."""
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """What ``to_json`` wrote, checked again."""
        return cls.model_validate_json(data)


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
    safe = admin.loopback or file.admin.token is not None
    problem = f"is {file.admin.listen}: without a token anybody could use it"
    require(safe, "admin.listen", problem, fix)


def _check_replicas(file: FleetFile) -> None:
    names: dict[str, int] = {}
    ids: dict[str, str] = {}
    for index, model in enumerate(file.models):
        first = names.setdefault(model.name, index)
        problem = f"is {model.name!r}, as that of models[{first}]"
        fix = "give each model its own name; replicas of one model go under one 'endpoints'"
        require(first == index, f"models.{index}.name", problem, fix)
        for position, deployed in enumerate(model.deployed()):
            here = f"models[{index}].endpoints[{position}]"
            holder = ids.setdefault(deployed.replica.id, here)
            problem = f"is {deployed.replica.id!r}, as that of {holder}"
            field = f"models.{index}.endpoints.{position}.id"
            require(holder == here, field, problem, "give each replica its own id")


def _check_virtual(file: FleetFile) -> None:
    models = [model.name for model in file.models]
    ladders = [virtual.name for virtual in file.virtual_models if not virtual.leads_by_rules]
    tenants = [tenant.name for tenant in file.tenants] or [ANONYMOUS]
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
        for number, rule in enumerate(virtual.rules):
            for place, tenant in enumerate(rule.when.tenant or ()):
                field = f"{where}.rules.{number}.when.tenant.{place}"
                problem = f"is {tenant!r}, which is no tenant of this file"
                require(tenant in tenants, field, problem, f"use one of {_few(tenants)}")


def _check_tenants(file: FleetFile) -> None:
    public = [model.name for model in file.models]
    public += [virtual.name for virtual in file.virtual_models]
    regions = list(dict.fromkeys(d.replica.region for d in file.replicas()))
    names: dict[str, int] = {}
    keys: dict[str, str] = {}
    for index, tenant in enumerate(file.tenants):
        where = f"tenants.{index}"
        first = names.setdefault(tenant.name, index)
        problem = f"is {tenant.name!r}, as that of tenants[{first}]"
        require(first == index, f"{where}.name", problem, "list the keys of a tenant in one place")
        for place, key in enumerate(tenant.keys):
            here = f"tenants[{index}].keys[{place}]"
            holder = keys.setdefault(key, here)
            problem = f"is the same as {holder}"
            require(holder == here, f"{where}.keys.{place}", problem, "give each key once")
        for field, said, known in (
            ("models", tenant.models, public),
            ("regions", tenant.regions, regions),
        ):
            for place, name in enumerate(said):
                problem = f"is {name!r}, which is in no part of this file"
                fix = f"use one of {_few(known)}"
                require(name in known, f"{where}.{field}.{place}", problem, fix)


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, …" if len(names) > 6 else shown


__all__ = [
    "ENGINES",
    "Address",
    "AdminSection",
    "Deployed",
    "EndpointSection",
    "EngineName",
    "FleetFile",
    "GatewaySection",
    "ModelSection",
    "TlsSection",
    "parse_listen",
]
