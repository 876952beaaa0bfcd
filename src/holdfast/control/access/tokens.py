"""The tokens of the admin port: who holds each, and with which roles.

Only hashes are kept, so neither the fleet file nor the memory of this process holds a token. Every
hash of the table is compared, in constant time: how long it takes says nothing of which one fitted.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from holdfast.config.fleet_file import AdminSection
from holdfast.control.access.roles import ALL_ROLES, Role

OWN: Final = "local"  # the holder of the token that lies in the state directory
ADMIN: Final = "admin"  # the holder of admin.token


@dataclass(slots=True, frozen=True)
class AdminCaller:
    """Who asks, by the name of the token, with the caller's roles."""

    name: str
    roles: frozenset[Role]
    digest: bytes = field(default=b"", repr=False)  # of the token

    def may(self, needed: frozenset[Role]) -> bool:
        """Whether the caller has one of the needed roles; any role at all permits reading."""
        return bool(self.roles & needed) or (Role.READ in needed and bool(self.roles))


ANYBODY: Final = AdminCaller(
    "anybody", frozenset({Role.READ})
)  # of this machine, where reading is open


class TokenTable:
    """Maps hashes of admin tokens to their callers, compared in constant time."""

    def __init__(self, callers: Iterable[AdminCaller]) -> None:
        self._callers = tuple(callers)

    def find(self, digest: bytes) -> AdminCaller | None:
        """The caller whose token has this SHA-256 digest; None: nobody's has."""
        found = None
        for caller in self._callers:
            if hmac.compare_digest(caller.digest, digest):
                found = caller
        return found


def tokens_of(section: AdminSection) -> TokenTable:
    """The table of tokens that a fleet file names.

    ``admin.token`` has all roles, each of ``admin.tokens`` its own; the local token is not in it.
    """
    callers = [
        AdminCaller(one.name, frozenset(map(Role, one.roles)), digest_of_hash(one.token))
        for one in section.tokens
    ]
    if section.token is not None:
        callers.append(AdminCaller(ADMIN, ALL_ROLES, digest_of_hash(section.token)))
    return TokenTable(callers)


def digest_of(token: str) -> bytes:
    """The SHA-256 digest (32 bytes) of a token, cookie or code, as it is kept."""
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def digest_of_hash(hashed: str) -> bytes:
    """The bytes of a hash as the fleet file has it: ``sha256:`` and 64 hex digits."""
    return bytes.fromhex(hashed.removeprefix("sha256:"))


__all__ = [
    "ADMIN",
    "ANYBODY",
    "OWN",
    "AdminCaller",
    "TokenTable",
    "digest_of",
    "digest_of_hash",
    "tokens_of",
]
