"""Config of incidents: detection, actions, notifications, and facts that people have to give.

    incidents: {dry_run: true, notify: [{url_env: HOLDFAST_HOOK, format: slack, at_least: page}]}
    chains: [{name: rag, models: [embedder, reranker, llama]}]

The address of a hook is often its only secret, so it is given by the name of an environment
variable; ``url`` is for internal hooks. Only addresses of this file are ever called: no incident,
engine or client can name one. Rejected: addresses on the admin port. Anyone with access to it could
have control call anything that control can reach.
"""

import re
from dataclasses import replace
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from holdfast.config.addresses import Variable
from holdfast.config.sections import Duration, Policy, Section
from holdfast.config.tenants import Name
from holdfast.core.diagnose.investigation import InvestigationConfig
from holdfast.core.types import ConfigError, require

NOTIFY_MAX: Final = 16
FOOTPRINTS_MAX: Final = 1_024  # of models that are not routed here
_SECRET_HOSTS: Final = ("hooks.slack.com", "discord.com", "api.pagerduty.com")
_HOOK_FIX: Final = "write http://host/path or https://host/path, or use url_env"
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]i?B)")
_UNITS: Final = {
    **{f"{letter}B": 1_000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1_024**power for power, letter in enumerate("KMGT", 1)},
}


def _bytes(value: object) -> object:
    """Bytes from text with a unit; other types are left to pydantic."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    fix = "use a number of bytes, or text such as 512MB, 3.5GB, 4GiB"
    require(match is not None, "size", f"is {value[:40]!r}", fix)
    assert match is not None, "require raised"
    return round(float(match[1]) * _UNITS[match[2]])


Size = Annotated[
    Annotated[int, Field(gt=0, description="bytes, or text such as 4GB")],
    BeforeValidator(_bytes, json_schema_input_type=int | str),
]


def check_hook(text: str) -> str:
    """Refuse a URL that cannot be called, without repeating it: its path may be a secret."""
    require("@" not in text, "hook", "holds credentials", "remove them; use url_env")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError("hook", "is not a URL", _HOOK_FIX) from error
    plain = text.isascii() and text.isprintable() and " " not in text
    known = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
    require(plain and known, "hook", "is not a URL", _HOOK_FIX)
    return text


def _hook(text: str) -> str:
    check_hook(text)
    host = (urlsplit(text).hostname or "").lower()
    secret = host in _SECRET_HOSTS or host.endswith((".slack.com", ".discord.com"))
    fix = "put it into an environment variable and name that under url_env"
    require(not secret, "hook", f"is one of {host}, whose path is a secret", fix)
    return text


class NotifySection(Section):
    """One hook that is called when an incident opens, changes its cause, or closes."""

    url_env: Variable = None
    url: Annotated[
        Annotated[str, AfterValidator(_hook), Field(max_length=2_048, description="a URL")] | None,
        Field(repr=False),
    ] = None
    format: Literal["json", "slack"] = "json"
    at_least: Literal["open", "page"] = "open"
    deadline: Annotated[Duration, Field(gt=0, le=60)] = Field(default=5.0, description="seconds")
    retries: Annotated[int, Field(ge=0, le=10, description="further attempts")] = 4

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        one = (self.url is None) is not (self.url_env is None)
        fix = "use url_env (the name of an environment variable), or url, and not both"
        require(one, "notify.url_env", "is not the one way to say where", fix)
        return self


class IncidentsSection(Section):
    """How failures are joined into incidents, what is done about them, who is notified."""

    dry_run: bool = False
    notify: Annotated[list[NotifySection], Field(max_length=NOTIFY_MAX)] = Field(
        default_factory=list
    )
    detectors: Annotated[InvestigationConfig, Policy()] = InvestigationConfig()

    def investigation(self) -> InvestigationConfig:
        """The section as the core's investigation config."""
        if not self.dry_run:
            return self.detectors
        return replace(self.detectors, acting=replace(self.detectors.acting, dry_run=True))


class ChainSection(Section):
    """Models that answer one after the other for one request, first to last."""

    name: Name
    models: Annotated[list[Name], Field(min_length=2, max_length=32, description="models")]


class FootprintSection(Section):
    """The memory and GPU that one replica needs, where they are known."""

    weights: Size | None = None
    kv: Size | None = None
    gpu: bool | None = None

    @property
    def declared(self) -> bool:
        """Whether anything is said."""
        return not (self.weights is None and self.kv is None and self.gpu is None)


class MemorySection(Section):
    """The memory that the platform reserves for one replica, and its limit."""

    reservation: Size | None = None
    limit: Size | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        reserved, limit = self.reservation, self.limit
        fits = reserved is None or limit is None or reserved <= limit
        problem, fix = f"is {limit}, below the reservation", "use the reservation or more"
        require(fits, "memory.limit", problem, fix)
        return self


__all__ = [
    "FOOTPRINTS_MAX",
    "NOTIFY_MAX",
    "ChainSection",
    "FootprintSection",
    "IncidentsSection",
    "MemorySection",
    "NotifySection",
    "Size",
    "check_hook",
]
