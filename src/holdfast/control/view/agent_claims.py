"""Of which host and replicas an agent may speak, and what of its report is left out.

    an agent with its own token: the host and the replicas that the fleet file gives it
    agents with a shared token: hosts and replicas that no other agent has

What an agent says of a host or a replica of another is not believed: rows and events of it are left
out of the report and counted, and the rest is taken. Whoever has one agent's token can lie about
that agent's host, and about nothing else.

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

from holdfast.core.view.layers import Placed
from holdfast.sources.agent_report import AgentReport

_EVENTS: Final = ("lines", "phases", "faults")


@dataclass(slots=True, frozen=True)
class AgentGrant:
    """What the fleet file grants one agent: token hash, host, replicas, certificate name."""

    name: str
    token: str = field(repr=False)
    host: str = ""  # empty: as the agent is called
    replicas: tuple[str, ...] = ()
    certificate: str = ""  # a name that its certificate must have; empty: its token is enough


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

    With a grant only its host and replicas stay; without, only those that no other agent and no
    launched replica has. ``others`` are the last reports of the other agents.
    """
    reading = report.reading
    if grant is not None:
        host, own = grant.host or grant.name, frozenset(grant.replicas)
        hosts = tuple(row for row in reading.hosts if row.id == host)
        rows = [row for row in reading.placed if row.replica in own and row.host in ("", host)]
        things = {kind: _about(report, kind, own.__contains__) for kind in _EVENTS}
    else:
        taken_hosts = {one.host or one.name for one in agents}
        taken = {replica for one in agents for replica in one.replicas} | set(launched)
        for other in others:
            taken_hosts.update(row.id for row in other.reading.hosts)
            taken.update(map(_name, other.reading.placed))
        hosts = tuple(row for row in reading.hosts if row.id not in taken_hosts)
        rows = [row for row in reading.placed if _name(row) not in taken]
        things = {kind: _about(report, kind, lambda name: name not in taken) for kind in _EVENTS}
    # A row is a replica's by its name alone: an address could be anybody's.
    placed = tuple(row if row.replica else replace(row, endpoint="") for row in rows)
    refused = len(reading.hosts) - len(hosts) + len(reading.placed) - len(placed)
    refused += sum(len(getattr(report, kind)) - len(kept) for kind, kept in things.items())
    reading = replace(reading, hosts=hosts, placed=placed)
    return msgspec.structs.replace(report, reading=reading, **things), refused


def _about(report: AgentReport, kind: str, allowed: Callable[[str], bool]) -> tuple[Any, ...]:
    return tuple(one for one in getattr(report, kind) if allowed(one.replica))


def _name(row: Placed) -> str:
    return row.replica or row.id


def claims_refused(name: str) -> str:
    """The text of the note that an agent spoke of others' hosts or replicas."""
    return f"{name} speaks of a host or a replica that is not its own; that was left out"


def _digest(hashed: str) -> bytes:
    return bytes.fromhex(hashed.removeprefix("sha256:"))


__all__ = ["AgentGrant", "bounded", "claims_refused", "grant_of"]
