"""Config of the admin port's tokens: who holds each, and with which roles.

    admin:
      tokens:
        - {name: grafana, roles: [read], token: "sha256:…"}
        - {name: oncall, roles: [operate], token: "sha256:…"}
        - {name: gameday, roles: [operate, chaos], token: "sha256:…"}

Names appear in the audit trail, so that a row says who gave an order; tokens appear as hashes, as
everywhere in this file.
"""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from holdfast.config.sections import Section
from holdfast.config.tenants import KeyHash, Name, is_guessed, with_token_of_file
from holdfast.core.types import require

RESERVED_NAMES: Final = ("admin", "anybody", "local", "nobody")  # the audit trail's own words


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        well = False
    else:
        well = True
    fix = "write an address or a network, such as 10.0.0.7 or 10.0.0.0/24"
    require(well, "network", f"is {text[:80]!r}", fix)
    return text


Network = Annotated[
    str, AfterValidator(_network), Field(max_length=64, description="an address or a network")
]


class AdminTokenSection(Section):
    """One token of the admin port: whose it is, and what its holder may do."""

    name: Annotated[Name, Field(description="a name")]
    token: Annotated[KeyHash, Field(repr=False)]
    token_file: Path | None = None  # the file with that token or its hash, in place of it
    roles: Annotated[
        list[Literal["read", "operate", "chaos"]],
        Field(min_length=1, max_length=3, description="read, operate, chaos"),
    ]

    _from_file = model_validator(mode="before")(with_token_of_file)


def check_admin_tokens(tokens: Sequence[AdminTokenSection], admin: str | None) -> None:
    """Refuse a name or a token that is there twice: the audit trail could not tell them apart."""
    names: dict[str, int] = {}
    hashes: dict[str, str] = {} if admin is None else {admin: "admin.token"}
    for index, one in enumerate(tokens):
        where = f"admin.tokens.{index}"
        first = names.setdefault(one.name, index)
        problem = f"is {one.name!r}, as that of admin.tokens[{first}]"
        require(first == index, f"{where}.name", problem, "give each token its own name")
        problem = f"is {one.name!r}, which is a word of the audit trail"
        require(one.name not in RESERVED_NAMES, f"{where}.name", problem, "use another name")
        here = f"admin.tokens[{index}].token"
        holder = hashes.setdefault(one.token, here)
        problem = f"is the same as {holder}"
        require(holder == here, f"{where}.token", problem, "make one for each: 'holdfast keys new'")
        problem, fix = "is the hash of a token that is guessed at once", "run 'holdfast keys new'"
        require(not is_guessed(one.token), f"{where}.token", problem, fix)


__all__ = ["RESERVED_NAMES", "AdminTokenSection", "Network", "check_admin_tokens"]
