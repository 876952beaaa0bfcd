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
    """Who asks, by the name of the token, and what the caller may do."""

    name: str
    roles: frozenset[Role]
    digest: bytes = field(default=b"", repr=False)  # of the token

    def may(self, needed: frozenset[Role]) -> bool:
        """Whether one of the needed roles is there; whoever may give orders may read."""
        return bool(self.roles & needed) or (Role.READ in needed and bool(self.roles))


ANYBODY: Final = AdminCaller(
    "anybody", frozenset({Role.READ})
)  # of this machine, where reading is open


class TokenTable:
    """Finds the caller of a token."""

    def __init__(self, callers: Iterable[AdminCaller]) -> None:
        self._callers = tuple(callers)

    def find(self, digest: bytes) -> AdminCaller | None:
        """The caller whose token has this hash; None: nobody's has."""
        found = None
        for caller in self._callers:
            if hmac.compare_digest(caller.digest, digest):
                found = caller
        return found


def tokens_of(section: AdminSection) -> TokenTable:
    """The tokens that a fleet file names: ``admin.token`` with all roles, and ``admin.tokens``."""
    callers = [
        AdminCaller(one.name, frozenset(map(Role, one.roles)), digest_of_hash(one.token))
        for one in section.tokens
    ]
    if section.token is not None:
        callers.append(AdminCaller(ADMIN, ALL_ROLES, digest_of_hash(section.token)))
    return TokenTable(callers)


def digest_of(token: str) -> bytes:
    """The SHA-256 of a token, as the table keeps it."""
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
