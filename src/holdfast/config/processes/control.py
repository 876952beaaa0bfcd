"""Config of several controls of one fleet: who they are, how gateways reach them, who leads.

    control:
      members: [{name: a, address: 'a.example.org:8002'}, {name: b, address: 'b.example.org:8002'}]
      tls: {certificate: own.pem, key: own.key, ca: controls.pem}
      lease: {store: postgres, url_file: /run/secrets/database-url}

On one machine, where all members are on loopback, a secret stands in place of ``tls``: gateways
and controls prove to each other that they know it.

All machines have the same file. Which member one of them is says ``HOLDFAST_CONTROL_NAME``, or else
its host name, so that the file need not differ.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from holdfast.config.addresses import Address, Listen, parse_listen
from holdfast.config.sections import Policy, Section
from holdfast.config.tenants import Name
from holdfast.core.health.leadership import LeadershipConfig
from holdfast.core.types import require

NAME_ENV: Final = "HOLDFAST_CONTROL_NAME"


class ControlMemberSection(Section):
    """One of several controls: its name, and where gateways of other machines reach it."""

    name: Name
    address: Listen

    @property
    def place(self) -> Address:
        """Host and port, as other machines call it."""
        return parse_listen(self.address)


class ControlTlsSection(Section):
    """Certificate and key of control and its gateways, and the authority of those they trust."""

    certificate: Annotated[Path, Field(description="the path of the certificate chain")]
    key: Annotated[Path, Field(description="the path of its private key")]
    ca: Annotated[Path, Field(description="the path of the authority that signed all of them")]


class LeadershipStoreSection(Section):
    """Where the leadership is kept: a database, a cluster, or a file of one machine."""

    store: Literal["postgres", "kubernetes", "sqlite"]
    url_file: Annotated[Path | None, Field(description="of postgres: a file with its URL")] = None
    namespace: Annotated[str, Field(max_length=63, description="of kubernetes")] = ""
    path: Annotated[Path | None, Field(description="of sqlite: a file all controls write")] = None
    name: Name = "holdfast"  # of the lease: one for each fleet

    @model_validator(mode="after")
    def _has_its_place(self) -> Self:
        needed = {"postgres": "url_file", "kubernetes": "namespace", "sqlite": "path"}
        for store, field in needed.items():
            value = getattr(self, field)
            if store == self.store:
                require(bool(value), field, "is missing", f"store: {store} needs it")
            else:
                require(not value, field, f"is set beside store: {self.store}", "remove it")
        return self


class ControlSection(Section):
    """The controls of a fleet that has more than one: one leads, the others stand by."""

    members: Annotated[list[ControlMemberSection], Field(max_length=7)] = Field(
        default_factory=list
    )
    listen: Listen | None = None  # where this one accepts gateways; none: at its own address
    tls: ControlTlsSection | None = None
    secret_file: Annotated[Path | None, Field(description="in place of tls, on loopback")] = None
    lease: LeadershipStoreSection | None = None
    leadership: Annotated[LeadershipConfig, Policy()] = LeadershipConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        members = self.members
        if not members:
            for field in ("lease", "tls", "secret_file", "listen"):
                unused = getattr(self, field) is None
                fix = "name all controls under control.members, or remove it"
                require(unused, field, "is set without members", fix)
            return self
        require(len(members) >= 2, "members", "has one item", "name a second, or remove 'control'")
        names = [member.name for member in members]
        twice = next((name for name in names if names.count(name) > 1), "")
        require(not twice, "members", f"has two of the name {twice!r}", "give each its own")
        fix = "say under control.lease where the leadership is kept"
        require(self.lease is not None, "lease", "is missing", fix)
        self._links_are_authenticated()
        return self

    def _links_are_authenticated(self) -> None:
        if self.tls is not None:
            fix = "remove it: certificates authenticate controls and gateways"
            require(self.secret_file is None, "secret_file", "is set beside tls", fix)
            return
        fix = "give control and gateways a certificate: certificate, key and ca"
        safe = all(member.place.loopback for member in self.members)
        require(safe, "tls", "is missing: orders would cross the network unproven", fix)
        local = self.listen is None or parse_listen(self.listen).loopback
        fix = "listen on loopback, as the members do, or set control.tls"
        require(local, "listen", "is open to other machines, without control.tls", fix)
        fix = "name a file that all controls of this machine can write; the first one makes it"
        require(self.shared_secret is not None, "secret_file", "is missing, and so is tls", fix)

    @property
    def shared_secret(self) -> Path | None:
        """The file of the secret that controls and gateways share; None: they have certificates.

        Without a name of its own it lies beside the lease, which all controls share as well.
        """
        if self.secret_file is not None or self.tls is not None or self.lease is None:
            return self.secret_file
        path = self.lease.path
        return None if path is None else path.with_name(f"{path.name}.secret")

    def own(self, name: str) -> ControlMemberSection:
        """The member of this name; raises where there is none."""
        names = [member.name for member in self.members]
        fix = f"set {NAME_ENV} to one of {', '.join(names)}"
        require(name in names, "control.members", f"has no {name!r}", fix)
        return self.members[names.index(name)]


__all__ = [
    "NAME_ENV",
    "ControlMemberSection",
    "ControlSection",
    "ControlTlsSection",
    "LeadershipStoreSection",
]
