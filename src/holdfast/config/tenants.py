"""Config of tenants: their API keys, allowed models and regions, priorities and quotas.

A key appears in the file only as its SHA-256 hash, so the file can be reviewed, versioned and
copied without giving access. A plain key is refused, and the refusal does not repeat it. A key may
also stand in a file of its own, as secret stores and mounted volumes bring it: the file is read
when the fleet file is, and only the hash goes further.

A hash hides how strong its key is. So the gateway refuses keys that are too short when they are
used, and the hashes of the weakest keys are known and refused here.

Rejected: slow password hashes. They protect words that people choose; these keys carry 256 random
bits, which no speed of guessing reaches, and a slow hash on every request would cost more than
all the rest of the gateway.
"""

import re
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
)

from holdfast.config.files import read_secret
from holdfast.config.sections import Policy, Section
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.types import ConfigError, Priority

KEY_LENGTH_MAX: Final = 512  # characters; keys of the common vendors stay under 200
KEY_LENGTH_MIN: Final = 8  # characters; shorter ones are found by trying all of them
KEY_LENGTH_STRONG: Final = 16  # below it a key is warned of: words that people choose are shorter
HASH_PREFIX: Final = "sha256:"
ANONYMOUS: Final = "default"  # the tenant of everybody, where the file names no tenants

_KEY: Final = re.compile(
    r"[!-+\--~]{1,512}"
)  # visible ASCII without the comma, which joins headers
_HASH: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")
_OF_NOTHING: Final = HASH_PREFIX + sha256(b"").hexdigest()
_FILE_FIX: Final = "write the key or its hash into it, on one line, and nothing else"
_FIX: Final = "run 'holdfast keys hash' and write what it says, sha256: and 64 hex digits"
_VISIBLE: Final = [chr(code) for code in range(0x21, 0x7F)]
# What stands in examples and is tried first by whoever tries anything.
_WORDS: Final = (
    *("password", "secret", "test", "changeme", "admin", "token", "key", "demo", "default"),
    *("letmein", "api-key", "apikey", "sk-test", "12345678", "holdfast", "EMPTY", "dummy"),
)


def new_key() -> str:
    """Make a new API key; it is shown once and stored nowhere."""
    return f"hf-{token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """The hash of a key, which the file holds instead of the key."""
    if not _KEY.fullmatch(key):
        raise ValueError("a key is 1 to 512 visible ASCII characters, without spaces and commas")
    return HASH_PREFIX + sha256(key.encode("ascii")).hexdigest()


@cache
def _guessed() -> frozenset[str]:
    """The hashes of all keys of one or two letters, and of the words that everybody tries."""
    short = [a + b for a in _VISIBLE for b in ("", *_VISIBLE) if "," not in {a, b}]
    return frozenset(hash_key(key) for key in (*short, *_WORDS))


def is_guessed(hashed: str) -> bool:
    """Whether a hash is that of a key which is guessed at once."""
    return hashed in _guessed()


def _only_hash(value: object) -> str:
    """The hash in lower case. Whatever else it is may be a secret and is not repeated."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ConfigError("key", "is not a hash (keys are never written down)", _FIX)
    if value.lower() == _OF_NOTHING:
        raise ConfigError("key", "is the hash of an empty key", _FIX)
    return value.lower()


def hash_in(path: Path) -> str:
    """The hash of the key in a file, which holds the key itself or its hash, on one line."""
    held = read_secret(path)
    if _HASH.fullmatch(held):
        return _only_hash(held)
    try:
        return hash_key(held)
    except ValueError as error:  # its text does not repeat the key
        raise ConfigError("file", f"{path} does not hold one key: {error}", _FILE_FIX) from None


def with_token_of_file(data: Any, info: ValidationInfo) -> Any:
    """The members of a section, with the hash of the token in ``token_file`` as its ``token``.

    Secret stores mount a token as a file; writing it anew rotates the token. A section that control
    sends on has both: its hash was read there, and the file is not opened again.
    """
    if not isinstance(data, dict) or data.get("token_file") is None:
        return data
    if data.get("token") is not None:
        if info.context:  # of control: see PLACED in ``models``
            return data
        raise ConfigError("token_file", "is set beside token", "keep one of them")
    path = data["token_file"]
    if not isinstance(path, str | Path):
        return data  # the check of its type says what is wrong
    try:
        return {**data, "token": hash_in(Path(path))}
    except ConfigError as error:
        raise ConfigError("token_file", error.problem, error.fix) from None


def _instant(value: object) -> object:
    """A date, or a time with its zone, in ISO 8601."""
    if isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            fix = "write a day such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z"
            raise ConfigError("expires", f"is {value!r}", fix) from None
    return value


class KeySection(Section):
    """One API key: its hash or the file that holds it, its id, and when it ends."""

    hash: Annotated[str | None, Field(repr=False, description="sha256: and 64 hex digits")] = None
    file: Annotated[Path | None, Field(description="a file with the key or its hash")] = None
    id: Annotated[str, Field(max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._@-]*)?$")] = ""
    expires: Annotated[str | None, BeforeValidator(_instant)] = None

    @property
    def name(self) -> str:
        """What the key is called where people read of it: its id, or the start of its hash."""
        return self.id or (self.hash or "").removeprefix(HASH_PREFIX)[:8]

    @property
    def expires_at(self) -> float:
        """Seconds of the epoch at which the key ends; 0: never. A day counts to its end."""
        if self.expires is None:
            return 0.0
        at = datetime.fromisoformat(self.expires)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return at.timestamp() + (86_400.0 if len(self.expires) <= len("2027-01-31") else 0.0)

    @model_serializer(mode="wrap")
    def _short(self, whole: SerializerFunctionWrapHandler) -> Any:
        """A bare hash as the string that it was: older gateways read nothing else."""
        if not (self.id or self.expires or self.file):
            return self.hash
        return whole(self)


def _only_key(value: object) -> object:
    """A hash, or the members of a key; the key of a file becomes its hash here."""
    if isinstance(value, KeySection):
        return value
    if not isinstance(value, dict):
        return {"hash": _only_hash(value)}
    hashed, file = value.get("hash"), value.get("file")
    if hashed is not None:
        return {**value, "hash": _only_hash(hashed)}
    if not isinstance(file, str):
        raise ConfigError("key", "has neither hash nor file", f"name one of them; {_FIX}")
    return {**value, "hash": hash_in(Path(file))}


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
Key = Annotated[KeySection, BeforeValidator(_only_key, json_schema_input_type=KeyHash | KeySection)]
Name = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]


class TenantSection(Section):
    """One tenant: its keys, quota, priority, and allowed models and regions."""

    name: Annotated[Name, Field(description="the tenant's name", examples=["search-team"])]
    keys: Annotated[
        list[Key],
        BeforeValidator(_only_list, json_schema_input_type=list[KeyHash | KeySection]),
        Field(min_length=1, max_length=64, repr=False, description="hashes of its API keys"),
    ]
    insecure: bool = False  # accept keys that are guessed in no time: for tests on one machine
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
        limits = (quota.requests_per_minute, quota.tokens_per_minute, quota.requests_at_once)
        return any(limit is not None for limit in limits)


__all__ = [
    "ANONYMOUS",
    "HASH_PREFIX",
    "KEY_LENGTH_MAX",
    "KEY_LENGTH_MIN",
    "KEY_LENGTH_STRONG",
    "Key",
    "KeyHash",
    "KeySection",
    "Name",
    "TenantSection",
    "hash_in",
    "hash_key",
    "is_guessed",
    "new_key",
    "with_token_of_file",
]
