"""Authenticates a request: finds the tenant that the API key in its headers belongs to.

Keys are stored as SHA-256 digests only. A digest finds its entry in a dict and is compared again in
constant time; the dict's own timing reveals something about the digest, and an attacker cannot
choose a key by its digest. Whatever is wrong with a key, the answer is the same. A header sent
twice arrives joined by a comma and a space, which no key contains; an empty key has no tenant.

Rejected: remembering recent keys to save the hash (0.8 µs). It would keep plain keys in memory,
where a dump finds them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import compare_digest
from time import time
from typing import Final, NoReturn

import structlog

from holdfast.config.tenants import (
    ANONYMOUS,
    HASH_PREFIX,
    KEY_LENGTH_MAX,
    KEY_LENGTH_MIN,
    KEY_LENGTH_STRONG,
    TenantSection,
)
from holdfast.core.types import Priority
from holdfast.gateway.api.errors import INVALID, ApiError

_log = structlog.get_logger("holdfast.gateway.keys")
RUNNER_HEADER: Final = b"x-holdfast-runner"  # the batch runner's secret
TENANT_HEADER: Final = b"x-holdfast-tenant"  # in whose name it asks
PRIORITY_HEADER: Final = b"x-holdfast-priority"  # "interactive": that of the tenant, not batch
_OTHERS: Final = (b"api-key", b"x-api-key")  # Azure's clients, and Anthropic's
_EXPIRED: Final = "The API key has expired. Ask the operator of this service for a new one."
_SHORT: Final = (
    f"The API key has fewer than {KEY_LENGTH_MIN} characters and is not accepted any more. Ask the "
    "operator of this service for a new one ('holdfast keys new')."
)
_REFUSAL: Final = "The API key is missing or not valid. Send it as 'Authorization: Bearer KEY'."


@dataclass(slots=True, frozen=True)
class Tenant:
    """One tenant: its name, priority, and the public models and regions it may use. Immutable."""

    name: str
    priority: Priority = Priority.INTERACTIVE
    models: frozenset[str] = frozenset()  # public names, virtual ones too; empty = all
    region_names: tuple[str, ...] = ()  # whose replicas may serve it; empty = all
    insecure: bool = False  # its keys may be of any length
    by_runner: bool = False  # the batch runner asks in its name, and decides what is sent again

    def may_use(self, model: str) -> bool:
        """Whether the tenant may ask for this public model name.

        A virtual one includes its targets. True for all if the tenant lists none.
        """
        return not self.models or model in self.models

    def may_be_served_in(self, region: str) -> bool:
        """Whether replicas in this region may serve the tenant's requests.

        True if it lists none.
        """
        return not self.region_names or region in self.region_names


class _StoredKey:
    """One key: its digest, tenant and end, and whether it let somebody in since the last look."""

    __slots__ = ("digest", "expires", "name", "tenant", "used")

    def __init__(self, digest: bytes, tenant: Tenant | None, expires: float, name: str) -> None:
        self.digest = digest
        self.tenant = tenant
        self.expires = expires
        self.name = name  # its id or the start of its hash, never the key
        self.used = False


# Compared with where a digest is not known: both refusals take one way.
_NOBODY: Final = _StoredKey(bytes(32), None, 0.0, "")


class TenantDirectory:
    """Finds the tenant of an API key; holds digests of keys only.

    With no tenants configured, every request is that of the tenant ``default``, without a key.
    """

    __slots__ = ("_anonymous", "_by_digest", "_warned", "by_name")

    def __init__(self, sections: Sequence[TenantSection]) -> None:
        self.by_name: dict[str, Tenant] = {}
        self._by_digest: dict[bytes, _StoredKey] = {}
        self._warned: set[str] = set()  # names of tenants; bounded: they come from the config
        for section in sections:
            tenant = Tenant(
                section.name,
                section.urgency,
                frozenset(section.models),
                tuple(section.regions),
                section.insecure,
            )
            self.by_name[section.name] = tenant
            for key in section.keys:
                digest = bytes.fromhex((key.hash or "").removeprefix(HASH_PREFIX))
                self._by_digest[digest] = _StoredKey(digest, tenant, key.expires_at, key.name)
        self._anonymous: Tenant | None = None
        if not sections:
            self._anonymous = self.by_name[ANONYMOUS] = Tenant(ANONYMOUS)

    def who(self, headers: Mapping[bytes, bytes]) -> Tenant:
        """Return the tenant whose API key these headers hold.

        Raise ``ApiError`` 401 if none is valid. Missing, unknown, expired and too short keys are
        refused. Marks the key as used; logs one warning for each tenant with a weak key.
        """
        anonymous = self._anonymous
        if anonymous is not None:
            return anonymous
        value = headers.get(b"authorization")
        # What nearly every client sends, without another call; the rest takes the longer way.
        if (
            value is not None
            and value[:7] == b"Bearer "
            and b"api-key" not in headers
            and b"x-api-key" not in headers
        ):
            key = value[7:]
        else:
            key = _key_of(headers)
        if len(key) > KEY_LENGTH_MAX:
            _refuse()
        digest = sha256(key).digest()
        stored = self._by_digest.get(digest, _NOBODY)
        tenant = stored.tenant
        if not compare_digest(digest, stored.digest) or tenant is None:
            _refuse()
        if stored.expires and time() >= stored.expires:
            raise ApiError(401, INVALID, "expired_api_key", _EXPIRED)
        if len(key) < KEY_LENGTH_STRONG and not tenant.insecure:
            self._judge_short(key, tenant)
        stored.used = True
        return tenant

    def take_used(self) -> list[tuple[str, str]]:
        """Return the keys that authenticated a request since the last call, as (tenant, key name).

        The name is the key's id or the start of its hash. Clears the marks.
        """
        taken = []
        for stored in self._by_digest.values():
            if stored.used:
                stored.used = False
                if stored.tenant is not None:
                    taken.append((stored.tenant.name, stored.name))
        return taken

    def _judge_short(self, key: bytes, tenant: Tenant) -> None:
        """Refuse a key that is guessed in no time; warn once of one that may be."""
        if len(key) < KEY_LENGTH_MIN:
            raise ApiError(401, INVALID, "weak_api_key", _SHORT)
        if tenant.name not in self._warned:
            self._warned.add(tenant.name)
            fix = "make a new key with 'holdfast keys new', or set insecure: true for the tenant"
            told = f"a key of fewer than {KEY_LENGTH_STRONG} characters"
            _log.warning("weak API key", tenant=tenant.name, why=told, fix=fix)


class RunnerDirectory(TenantDirectory):
    """A ``TenantDirectory`` that also accepts the batch runner, which asks in tenants' names.

    The runner shows a secret of this run. Its requests have the tenant's rights and quota, and
    batch priority unless they ask for the tenant's own.
    """

    __slots__ = ("_as_batch", "_as_people", "_secret")

    def __init__(self, sections: Sequence[TenantSection], secret: bytes) -> None:
        super().__init__(sections)
        self._secret = secret
        self._as_batch = {
            name.encode(): replace(tenant, priority=Priority.BATCH, by_runner=True)
            for name, tenant in self.by_name.items()
        }
        self._as_people = {
            name.encode(): replace(tenant, by_runner=True) for name, tenant in self.by_name.items()
        }

    def who(self, headers: Mapping[bytes, bytes]) -> Tenant:
        """Return the tenant of an API key, or the one in whose name the batch runner asks.

        Raises ``ApiError`` 401 for a bad key or secret, or an unknown tenant.
        """
        shown = headers.get(RUNNER_HEADER)
        if shown is None:
            return super().who(headers)
        name = headers.get(TENANT_HEADER, b"")
        tenant = self._as_batch.get(name)
        if tenant is not None and headers.get(PRIORITY_HEADER) == b"interactive":
            tenant = self._as_people[name]
        if not compare_digest(shown, self._secret) or tenant is None:
            _refuse()
        return tenant


def _key_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The one key that was sent, in whichever header; empty where there is none, or several."""
    value = headers.get(b"authorization")
    sent = [headers[name] for name in _OTHERS if name in headers]
    if value is not None:
        if value[:7].lower() != b"bearer ":
            return b""
        sent.append(value[7:])
    # Two different keys: whose request it is cannot be known.
    return sent[0] if sent and all(key == sent[0] for key in sent) else b""


def _refuse() -> NoReturn:
    raise ApiError(401, INVALID, "invalid_api_key", _REFUSAL)


__all__ = ["RUNNER_HEADER", "TENANT_HEADER", "RunnerDirectory", "Tenant", "TenantDirectory"]
