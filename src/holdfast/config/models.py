"""Config of models: their replicas, and the policies of their lanes.

A model's replicas are listed, because another system runs them, or launched, or discovered. Only
control knows where the latter two are; it sends gateways a file with their endpoints in it.
Such a file is recognised by how it came here (``PLACED``), not by a key in it.
Rejected: a key that marks such endpoints. It would have to be refused wherever people write.
"""

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from holdfast.config.addresses import URL_FIX, Url, Variable, parse_url
from holdfast.config.certificates import calling_context
from holdfast.config.discovery import DiscoverSection
from holdfast.config.files import read_secret
from holdfast.config.incidents import FootprintSection
from holdfast.config.launch import LaunchSection, check_launch
from holdfast.config.sections import Duration, Policy, Section
from holdfast.config.tenants import Name
from holdfast.core.canary import CanaryConfig, Rule, Shape
from holdfast.core.deploy.autoscale import ScalingConfig
from holdfast.core.deploy.rollout import RolloutConfig
from holdfast.core.health.answers.answer_comparison import ComparingConfig
from holdfast.core.request import routing
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.failover import FailoverConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.types import ConfigError, Replica, require

Lacking = Literal["tools", "json", "images", "audio", "video"]
EngineName = Literal["openai", "vllm", "sglang", "tgi", "triton", "llamacpp", "ollama", "trtllm"]
ENGINES: Final[tuple[str, ...]] = get_args(EngineName)

# What a model's metrics URL may take from the URL of each replica.
METRICS_PLACES: Final = ("host", "port", "side_port", "second_side_port")
_PLACE: Final = re.compile(r"\{(\w*)\}")

PLACED: Final[Mapping[str, bool]] = {"placed": True}  # context of a check: control filled it in

# A rule about numbers says what is asked as well; a chat, which is tried first, gives none.
_SHAPE_OF: Final = {Rule.COSINE: Shape.EMBEDDING, Rule.TENSOR: Shape.INFER}


class EndpointSection(Section):
    """One listed replica: its URL, zone, revision, slots and weight."""

    url: Url
    id: Name | None = None  # default: model-position
    zone: Annotated[str, Field(min_length=1, max_length=64, description="a zone")] = "zone-a"
    region: Annotated[str, Field(min_length=1, max_length=64, description="a region")] = "region-a"
    host: Annotated[str, Field(max_length=253, description="a host")] = ""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    slots: Annotated[int, Field(ge=0, description="requests at once; 0 = undeclared")] = 0
    weight: Annotated[float, Field(gt=0, le=1000, description="relative capacity")] = 1.0
    metrics_url: Url | None = None  # the whole URL of its metrics page; None: as its model says


def _from_text(value: object) -> object:
    """An endpoint of which only the URL is said."""
    if isinstance(value, str):
        return {"url": value}
    if not isinstance(value, dict | EndpointSection):
        raise ConfigError("endpoint", "is neither a URL nor a mapping", f"{URL_FIX}, or 'url: …'")
    return value


Endpoint = Annotated[
    EndpointSection, BeforeValidator(_from_text, json_schema_input_type=str | EndpointSection)
]


class EngineTlsSection(Section):
    """How a model's engines are trusted and asked over TLS, as PEM files."""

    ca: Path | None = None  # the private authority of the engines; none: the system's authorities
    certificate: Path | None = None  # shown to engines that ask who calls them
    key: Path | None = None  # its private key

    @model_validator(mode="after")
    def _whole(self) -> Self:
        pair = (self.certificate is None) == (self.key is None)
        fix = "name both, or neither"
        require(pair, "tls.key", "and certificate are not both named", fix)
        return self


class ModelSection(Section):
    """One model: its replicas, and the policies of its lane."""

    name: Annotated[Name, Field(description="the name that clients use", examples=["llama"])]
    engine: Annotated[EngineName, Field(description="the serving software", examples=["vllm"])]
    endpoints: Annotated[
        list[Endpoint], Field(description="URLs", examples=["[http://host:8000]"])
    ] = Field(default_factory=list)
    launch: LaunchSection | None = None
    discover: DiscoverSection | None = None
    revision: Annotated[str, Field(min_length=1, max_length=128, description="a revision")] = "1"
    precision: Annotated[str, Field(max_length=64, description="a precision")] = ""
    served_as: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    metrics_url: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="a URL", examples=["http://{host}:8002/metrics"]
    )
    api_key_env: Variable = None
    api_key_file: Path | None = None  # the file with the engine's bearer token, in place of that
    tls: EngineTlsSection | None = None  # whom to trust at https endpoints, and who calls
    context_tokens: Annotated[int, Field(ge=0, description="tokens; 0 = unknown")] = 0
    lacks: Annotated[list[Lacking], Field(max_length=5, description="what it cannot do")] = Field(
        default_factory=list
    )
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
    canary: Annotated[CanaryConfig, Policy()] = CanaryConfig()
    scaling: Annotated[ScalingConfig, Policy()] | None = None
    rollout: Annotated[RolloutConfig, Policy()] = RolloutConfig()
    comparison: Annotated[ComparingConfig, Policy()] | None = None
    footprint: FootprintSection = FootprintSection()
    filesystem: Annotated[str, Field(max_length=256, description="a filesystem")] = ""

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Self:
        self._check_source(placed=info.context is PLACED)
        self._check_endpoints()
        self._check_secrets()
        self._check_metrics()
        self._check_launch()
        self._check_canary()
        self._check_routing()
        return self

    @property
    def placed_by_control(self) -> bool:
        """Whether control, not the file, decides where the replicas are."""
        return self.launch is not None or self.discover is not None

    def _check_source(self, *, placed: bool) -> None:
        fix = "keep one: 'launch' to start replicas here, 'discover' for those that others start"
        once = self.launch is None or self.discover is None
        require(once, "model.discover", "is set beside launch", fix)
        if not self.placed_by_control:
            problem = "is empty" if "endpoints" in self.model_fields_set else "is missing"
            fix = "list the URLs of its replicas, or say under 'launch' how to start them"
            require(bool(self.endpoints), "model.endpoints", problem, fix)
        else:
            other = "launch" if self.launch is not None else "discover"
            does = "to start them" if self.launch is not None else "to find them"
            fix = f"keep one: 'endpoints' for replicas that run already, '{other}' {does}"
            alone = placed or not self.endpoints
            require(alone, "model.endpoints", f"is set beside {other}", fix)

    def _check_secrets(self) -> None:
        once = self.api_key_env is None or self.api_key_file is None
        require(once, "model.api_key_file", "is set beside api_key_env", "keep one of them")
        if self.api_key_file is not None:
            fix = "write the whole path, from / on"
            whole = self.api_key_file.is_absolute()
            require(whole, "model.api_key_file", "is a relative path", fix)
        if self.tls is not None:
            for index, endpoint in enumerate(self.endpoints):
                secure = endpoint.url.startswith("https:")
                where, fix = f"model.endpoints.{index}.url", "write https, or leave tls out"
                require(secure, where, "is without TLS, beside tls of the model", fix)

    def _check_metrics(self) -> None:
        if self.metrics_url is None:
            return
        known = ", ".join(f"{{{name}}}" for name in METRICS_PLACES)
        for place in _PLACE.findall(self.metrics_url):
            problem = f"{{{place}}} is not known"
            require(place in METRICS_PLACES, "model.metrics_url", problem, f"use one of {known}")
        plain = _PLACE.sub("1", self.metrics_url.replace("{host}", "h"))
        try:
            parse_url(plain)
        except ConfigError as bad:
            fix = "write a URL such as http://{host}:8002/metrics"
            raise ConfigError("model.metrics_url", bad.problem, fix) from bad

    def _check_endpoints(self) -> None:
        first_at: dict[str, int] = {}
        for index, endpoint in enumerate(self.endpoints):
            first = first_at.setdefault(endpoint.url, index)
            where, problem = f"model.endpoints.{index}.url", f"is that of endpoints[{first}] too"
            require(first == index, where, problem, "list each replica of a model once")

    def _check_launch(self) -> None:
        scaling, launch = self.scaling, self.launch
        if launch is None:
            fix = "remove it, or use 'launch': only what is started here can be scaled here"
            held = "discovered replicas" if self.discover is not None else "listed endpoints"
            require(scaling is None, "model.scaling", f"is set for {held}", fix)
            return
        check_launch(launch, self.engine)
        if scaling is not None:
            fits = scaling.min <= launch.replicas <= scaling.max
            problem = f"is {launch.replicas}, outside of what scaling allows"
            fix = f"begin with {scaling.min} to {scaling.max}"
            require(fits, "model.launch.replicas", problem, fix)

    def _check_canary(self) -> None:
        rule = self.canary.rule
        if self.canary.shape is None and rule in _SHAPE_OF:
            problem = f"is missing, and {rule} compares no text"
            raise ConfigError("model.canary.shape", problem, f"use shape: {_SHAPE_OF[rule]}")

    def _check_routing(self) -> None:
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

    def lane(self) -> LaneConfig:
        """The policies of the model as the core's lane config."""
        return LaneConfig(
            routing=self.routing,
            routing_options=self.routing_options,
            queue=self.queue,
            deadlines=self.deadlines,
            breaker=self.breaker,
            limit=self.limit,
            failover=self.failover,
            slo_first_token_s=self.slo_first_token,
            context_tokens=self.context_tokens,
            lacks=frozenset(self.lacks),
        )

    def deployed(self) -> Iterator["Deployed"]:
        """The model's replicas in the order of the file, or those that control placed."""
        for position, endpoint in enumerate(self.endpoints, 1):
            replica = Replica(
                endpoint.id or f"{self.name}-{position}",
                self.name,
                revision=endpoint.revision or self.revision,
                zone=endpoint.zone,
                region=endpoint.region,
                slots=endpoint.slots,
                weight=endpoint.weight,
                host=endpoint.host,
            )
            yield Deployed(
                replica,
                endpoint.url,
                self.engine,
                self.served_as or self.name,
                self.api_key_env,
                precision=self.precision,
                launched=self.launch is not None,
                canary=self.canary,
                api_key_file=self.api_key_file,
                tls=self.tls,
                metrics_url=endpoint.metrics_url or self.metrics_url,
                by_recipe=self.launch is not None and not self.launch.command,
            )

    def may_name(self, replica_id: str) -> bool:
        """Whether a replica launched for this model can have this id (name-number)."""
        number = replica_id.removeprefix(f"{self.name}-")
        return self.launch is not None and number != replica_id and number.isdecimal()

    def with_endpoints(self, endpoints: Sequence[EndpointSection]) -> Self:
        """A validated copy with these endpoints of its replicas."""
        fix = "change the file: its replicas are not started here"
        fits = self.placed_by_control
        require(fits, "model.launch", f"is not set for {self.name!r}", fix)
        said = {name: getattr(self, name) for name in self.model_fields_set}
        said["endpoints"] = list(endpoints)
        return type(self).model_validate(said, context=PLACED)


@dataclass(slots=True, frozen=True)
class Deployed:
    """A replica, and how to call it."""

    replica: Replica
    url: str  # scheme, host, port where it is not the usual one, path without a last slash
    engine: str  # one of ENGINES
    served_as: str  # the model's name at the engine
    api_key_env: str | None  # the environment variable that holds the engine's bearer token
    precision: str = ""  # of weights and cache, where the file says; answers depend on it
    launched: bool = False  # started by control, which may restart and replace it
    canary: CanaryConfig = field(default_factory=CanaryConfig)  # what it is asked to prove itself
    api_key_file: Path | None = None  # the file that holds the engine's bearer token
    tls: EngineTlsSection | None = None  # whom to trust there, and who calls
    metrics_url: str | None = None  # of its metrics page, with {places} of its own URL
    by_recipe: bool = False  # started by the engine's own recipe, not by a command of the file

    def token(self, environment: Mapping[str, str]) -> str | None:
        """The engine's bearer token now, from its variable or file; None where there is none.

        A file that cannot be read is none: the engine's own refusal then says what is missing.
        """
        if self.api_key_file is not None:
            try:
                return read_secret(self.api_key_file) or None
            except ConfigError:
                return None
        return environment.get(self.api_key_env) if self.api_key_env else None

    def context(self) -> ssl.SSLContext | None:
        """The TLS context for calls of this engine; None: the usual one. Made once per files."""
        section = self.tls
        if section is None:
            return None
        return calling_context(section.ca, section.certificate, section.key)


__all__ = [
    "ENGINES",
    "METRICS_PLACES",
    "PLACED",
    "Deployed",
    "EndpointSection",
    "EngineName",
    "ModelSection",
]
