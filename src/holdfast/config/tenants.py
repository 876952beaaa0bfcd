"""Config of tenants: their API keys, allowed models and regions, priorities and quotas.

A key appears in the file only as its SHA-256 hash, so the file can be reviewed, versioned and
copied without giving access. A plain key is refused, and the refusal does not repeat it.

Rejected: slow password hashes. They protect words that people choose; these keys carry 256 random
bits, which no speed of guessing reaches, and a slow hash on every request would cost more than
all the rest of the gateway.
"""

import re
from hashlib import sha256
from secrets import token_urlsafe
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from holdfast.config.sections import Policy, Section
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.types import ConfigError, Priority

KEY_LENGTH_MAX: Final = 512  # characters; keys of the common vendors stay under 200
HASH_PREFIX: Final = "sha256:"
ANONYMOUS: Final = "default"  # the tenant of everybody, where the file names no tenants

_KEY: Final = re.compile(
    r"[!-+\--~]{1,512}"
)  # visible ASCII without the comma, which joins headers
_HASH: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")
_OF_NOTHING: Final = HASH_PREFIX + sha256(b"").hexdigest()
_FIX: Final = "run 'holdfast keys hash' and write what it says, sha256: and 64 hex digits"


def new_key() -> str:
    """Make a new API key; it is shown once and stored nowhere."""
    return f"hf-{token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """The hash of a key, which the file holds instead of the key."""
    if not _KEY.fullmatch(key):
        raise ValueError("a key is 1 to 512 visible ASCII characters, without spaces and commas")
    return HASH_PREFIX + sha256(key.encode("ascii")).hexdigest()


def _only_hash(value: object) -> str:
    """The hash in lower case. Whatever else it is may be a secret and is not repeated."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ConfigError("key", "is not a hash (keys are never written down)", _FIX)
    if value.lower() == _OF_NOTHING:
        raise ConfigError("key", "is the hash of an empty key", _FIX)
    return value.lower()


def _only_list(value: object) -> object:
    if not isinstance(value, list):
        raise ConfigError("keys", "is not a list", f"use lines of '- sha256:…'; {_FIX}")
    return value


KeyHash = Annotated[
    str,
    BeforeValidator(_only_hash, json_schema_input_type=str),
    Field(json_schema_extra={"pattern": f"^{_HASH.pattern}$"}),
]

# What may stand in a response header, a metric label and a path without being escaped.
Name = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]


class TenantSection(Section):
    """One tenant: its keys, quota, priority, and allowed models and regions."""

    name: Annotated[Name, Field(description="the tenant's name", examples=["search-team"])]
    keys: Annotated[
        list[KeyHash],
        BeforeValidator(_only_list, json_schema_input_type=list[KeyHash]),
        Field(min_length=1, max_length=64, repr=False, description="hashes of its API keys"),
    ]
    quota: Annotated[QuotaConfig, Policy()] = QuotaConfig()
    priority: Literal["interactive", "batch"] = "interactive"
    models: list[str] = Field(default_factory=list)  # public names, virtual ones too; empty = all
    regions: list[str] = Field(default_factory=list)  # whose replicas may serve it; empty = all
    weight: Annotated[float, Field(ge=0.001, le=1000, description="a share; 1 is ordinary")] = 1.0

    @property
    def urgency(self) -> Priority:
        """The tenant's priority as the core's type."""
        return Priority[self.priority.upper()]

    @property
    def limited(self) -> bool:
        """Whether the tenant's quota sets any limit."""
        quota = self.quota
        return quota.requests_per_minute is not None or quota.tokens_per_minute is not None


__all__ = [
    "ANONYMOUS",
    "HASH_PREFIX",
    "KEY_LENGTH_MAX",
    "KeyHash",
    "Name",
    "TenantSection",
    "hash_key",
    "new_key",
]
