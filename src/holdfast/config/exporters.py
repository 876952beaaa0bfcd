"""Config of exporters: where metrics and traces are sent.

    exporters:
      cloudwatch: {region: eu-west-1, namespace: Holdfast, period: 60s}
      traces: {endpoint: "http://collector:4318", share: 0.01}

Prometheus reads ``/metrics`` and needs nothing here. Both of these call out, so neither is on
unless the file says so; credentials come from where AWS's own tools look for them, and a
collector's headers from an environment variable.
"""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from holdfast.config.addresses import Variable
from holdfast.config.sections import Duration, Section
from holdfast.core.types import ConfigError, require

_URL_FIX = "write http://host:port, or https://host:port/path"


def _endpoint(text: str) -> str:
    """A URL that can be called; what holds an '@' may hold a password and is not repeated."""
    require("@" not in text, "address", "holds credentials", "remove them; use headers_env")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError("address", "is not a URL", _URL_FIX) from error
    plain = text.isascii() and text.isprintable() and " " not in text
    known = parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0
    require(plain and known, "address", f"is {text[:80]!r}", _URL_FIX)
    bare = not parts.query and not parts.fragment
    require(bare, "address", "has a query or fragment", "remove what follows the path")
    return text.rstrip("/")


Endpoint = Annotated[
    str,
    AfterValidator(_endpoint),
    Field(max_length=2_048, description="a URL", examples=["http://127.0.0.1:4318"]),
]
Text = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


class CloudWatchSection(Section):
    """Amazon CloudWatch; needs the extra ``aws``."""

    region: Annotated[Text, Field(description="an AWS region")] | None = None  # default: AWS's own
    namespace: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._/#:-]{1,255}$", description="a namespace")
    ] = "Holdfast"  # of all metrics; AWS/ is refused by AWS
    period: Annotated[Duration, Field(ge=1, le=3_600)] = Field(
        default=60.0, description="seconds"
    )  # between two points; below 60 s they are stored in high resolution, which costs more
    dimensions: Annotated[dict[Text, Text], Field(max_length=20)] = Field(
        default_factory=dict
    )  # of every metric, beside Model: such as ClusterName
    profile: Text | None = None  # of AWS's own config files
    endpoint_url: Endpoint | None = None  # another address than AWS's, such as a VPC endpoint

    @model_validator(mode="after")
    def _names_are_free(self) -> Self:
        fix = "use another name: it says which model a value belongs to"
        require("Model" not in self.dimensions, "cloudwatch.dimensions", "has a Model", fix)
        theirs = self.namespace.startswith("AWS/")
        fix = "use another: AWS keeps those that begin with AWS/ for itself"
        require(not theirs, "cloudwatch.namespace", f"is {self.namespace!r}", fix)
        return self


class TracesSection(Section):
    """An OpenTelemetry collector that takes OTLP over HTTP; needs the extra ``otel``."""

    endpoint: Endpoint  # without /v1/traces, which is added
    share: Annotated[float, Field(ge=0, le=1, description="a share, 0 to 1")] = (
        0.01  # of requests, that are traced
    )
    follow_callers: bool = False  # a caller's traceparent decides instead, where it sends one
    headers_env: Variable = None  # the variable with headers for it, as name=value,name=value
    service: Text = "holdfast"  # service.name of the spans
    deadline: Annotated[Duration, Field(gt=0, le=60)] = Field(
        default=10.0, description="seconds"
    )  # for one bundle, tries included

    @model_validator(mode="after")
    def _path(self) -> Self:
        ours = self.endpoint.endswith("/v1/traces")
        require(not ours, "traces.endpoint", "ends in /v1/traces", "leave that out: it is added")
        return self


class ExportersSection(Section):
    """Where metrics and traces are sent, beside the page for Prometheus."""

    cloudwatch: CloudWatchSection | None = None  # figures
    traces: TracesSection | None = None  # spans of requests

    @property
    def trace_share(self) -> float:
        """Share of requests that gateways record for traces."""
        return 0.0 if self.traces is None else self.traces.share

    @property
    def trace_follow(self) -> bool:
        """Whether a caller's sampled ``traceparent`` causes a trace."""
        return self.traces is not None and self.traces.follow_callers


__all__ = ["CloudWatchSection", "ExportersSection", "TracesSection"]
