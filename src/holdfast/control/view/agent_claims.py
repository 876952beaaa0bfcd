"""Of which host, replicas, groups and filesystems an agent may speak; what else is left out.

    an agent with its own token: what the fleet file gives it
    agents with a shared token: what no other agent has

What an agent says of others' hosts, replicas, groups or filesystems is not believed: rows and
events of it are left out of the report and counted, and the rest is taken. Whoever has one agent's
token can lie about that agent's host, and about nothing else. A host is always in a group of its
own name, and a filesystem whose name begins with the host's is its own. How many hosts a group
wants is its platform's to say.

With a shared token it cannot be known who speaks. There the first agent to show a replica has it
for as long as it reports. That is an accident's bound and not an attacker's: give each agent its
own token.

Rejected: to refuse the whole report. A wrong line in a fleet file would blind a host.
"""

import hmac
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

import msgspec

from holdfast.core.view.layers import Group, Placed
from holdfast.sources.agent_report import AgentReport

_EVENTS: Final = ("lines", "phases", "faults")
_ROWS: Final = ("hosts", "placed", "groups", "disks")


@dataclass(slots=True, frozen=True)
class AgentGrant:
    """What the fleet file grants one agent: its token's hash, and of what it may speak."""

    name: str
    token: str = field(repr=False)
    host: str = ""  # empty: as the agent is called
    replicas: tuple[str, ...] = ()
    certificate: str = ""  # a name that its certificate must have; empty: its token is enough
    groups: tuple[str, ...] = ()  # beside the one that is called as its host
    disks: tuple[str, ...] = ()  # filesystems that other hosts mount as well

    @property
    def host_id(self) -> str:
        """The host that it speaks of."""
        return self.host or self.name

    def has_group(self, name: str) -> bool:
        """Whether its host may be in this group."""
        return name in ("", self.host_id) or name in self.groups

    def has_disk(self, name: str) -> bool:
        """Whether this filesystem is its host's, or one that it may report as well."""
        return name.startswith(f"{self.host_id}:") or name in self.disks


def grant_of(
    bearer: str, shared: str | None, agents: Collection[AgentGrant]
) -> tuple[bool, AgentGrant | None]:
    """Whether a token is an agent's (own or shared), and the grant of its owner.

    The grant is None for the shared token, and for a token that is refused.
    """
    given = sha256(bearer.encode("utf-8", "surrogateescape")).digest()
    found = None
    for agent in agents:  # all of them: how long it takes says nothing of which one fitted
        if hmac.compare_digest(given, _digest(agent.token)):
            found = agent
    if found is not None:
        return True, found
    return shared is not None and hmac.compare_digest(given, _digest(shared)), None


def bounded(
    report: AgentReport,
    grant: AgentGrant | None,
    agents: Collection[AgentGrant],
    others: Iterable[AgentReport],
    launched: Collection[str] = (),
) -> tuple[AgentReport, int]:
    """A copy of an agent's report without rows and events of others; and how many those were.

    With a grant only what it names stays; without, only what no other agent and no launched replica
    has. ``others`` are the last reports of the other agents.
    """
    reading = report.reading
    if grant is not None:
        host, own = grant.host_id, frozenset(grant.replicas)
        hosts = [row for row in reading.hosts if row.id == host]
        rows = [row for row in reading.placed if row.replica in own and row.host in ("", host)]
        things = {kind: _about(report, kind, own.__contains__) for kind in _EVENTS}
        has_group, has_disk = grant.has_group, grant.has_disk
    else:
        taken_hosts = {one.host_id for one in agents}
        taken = {replica for one in agents for replica in one.replicas} | set(launched)
        for other in others:
            taken_hosts.update(row.id for row in other.reading.hosts)
            taken.update(map(_name, other.reading.placed))
        hosts = [row for row in reading.hosts if row.id not in taken_hosts]
        rows = [row for row in reading.placed if _name(row) not in taken]
        things = {kind: _about(report, kind, lambda name: name not in taken) for kind in _EVENTS}

        def has_group(name: str) -> bool:
            return not any(name == one.host_id or name in one.groups for one in agents)

        def has_disk(name: str) -> bool:
            return not any(one.has_disk(name) for one in agents)

    kept = replace(
        reading,
        # A row is a replica's by its name alone: an address could be anybody's.
        placed=tuple(row if row.replica else replace(row, endpoint="") for row in rows),
        hosts=tuple(row if has_group(row.group) else replace(row, group=row.id) for row in hosts),
        groups=tuple(Group(row.name) for row in reading.groups if has_group(row.name)),
        disks=tuple(row for row in reading.disks if has_disk(row.id)),
    )
    refused = sum(len(getattr(reading, kind)) - len(getattr(kept, kind)) for kind in _ROWS)
    refused += sum(len(getattr(report, kind)) - len(rest) for kind, rest in things.items())
    return msgspec.structs.replace(report, reading=kept, **things), refused


def _about(report: AgentReport, kind: str, allowed: Callable[[str], bool]) -> tuple[Any, ...]:
    return tuple(one for one in getattr(report, kind) if allowed(one.replica))


def _name(row: Placed) -> str:
    return row.replica or row.id


def claims_refused(name: str) -> str:
    """The text of the note that an agent spoke of what its entry in the file does not name."""
    what = "a host, replica, group or filesystem that is not its own"
    return f"{name} speaks of {what}; that was left out"


def _digest(hashed: str) -> bytes:
    return bytes.fromhex(hashed.removeprefix("sha256:"))


__all__ = ["AgentGrant", "bounded", "claims_refused", "grant_of"]
