"""Authenticates a request: finds the tenant that the API key in its headers belongs to.

Keys are stored as SHA-256 digests only. A digest finds its entry in a dict and is compared again in
constant time; the dict's own timing reveals something about the digest, and an attacker cannot
choose a key by its digest. Whatever is wrong with a key, the answer is the same. A header sent
twice arrives joined by a comma and a space, which no key contains; an empty key has no tenant.

Rejected: remembering recent keys to save the hash (0.8 µs). It would keep plain keys in memory,
where a dump finds them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final, NoReturn

from holdfast.config.tenants import ANONYMOUS, HASH_PREFIX, KEY_LENGTH_MAX, TenantSection
from holdfast.core.types import Priority
from holdfast.gateway.api.errors import INVALID, ApiError

_OTHERS: Final = (b"api-key", b"x-api-key")  # Azure's clients, and Anthropic's
# Compared with where a digest is not known: both refusals take one way.
_NOBODY: Final[tuple[bytes, "Tenant | None"]] = (bytes(32), None)
_REFUSAL: Final = "The API key is missing or not valid. Send it as 'Authorization: Bearer KEY'."


@dataclass(slots=True, frozen=True)
class Tenant:
    """One tenant: its name, priority, and the models and regions it may use."""

    name: str
    priority: Priority = Priority.INTERACTIVE
    models: frozenset[str] = frozenset()  # public names, virtual ones too; empty = all
    region_names: tuple[str, ...] = ()  # whose replicas may serve it; empty = all

    def may_use(self, model: str) -> bool:
        """Whether the tenant may ask for this public model; a virtual one includes its targets."""
        return not self.models or model in self.models

    def may_be_served_in(self, region: str) -> bool:
        """Whether replicas in this region may serve the tenant's requests."""
        return not self.region_names or region in self.region_names


class TenantDirectory:
    """Finds the tenant of an API key.

    With no tenants configured, every request is ``default``'s.
    """

    __slots__ = ("_anonymous", "_by_digest", "by_name")

    def __init__(self, sections: Sequence[TenantSection]) -> None:
        self.by_name: dict[str, Tenant] = {}
        self._by_digest: dict[bytes, tuple[bytes, Tenant | None]] = {}
        for section in sections:
            tenant = Tenant(
                section.name,
                section.urgency,
                frozenset(section.models),
                tuple(section.regions),
            )
            self.by_name[section.name] = tenant
            for key in section.keys:
                digest = bytes.fromhex(key.removeprefix(HASH_PREFIX))
                self._by_digest[digest] = (digest, tenant)
        self._anonymous: Tenant | None = None
        if not sections:
            self._anonymous = self.by_name[ANONYMOUS] = Tenant(ANONYMOUS)

    def who(self, headers: Mapping[bytes, bytes]) -> Tenant:
        """Return the tenant whose key these headers hold, or raise ``ApiError`` 401. Hot."""
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
        stored, tenant = self._by_digest.get(digest, _NOBODY)
        if not compare_digest(digest, stored) or tenant is None:
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


__all__ = ["Tenant", "TenantDirectory"]
