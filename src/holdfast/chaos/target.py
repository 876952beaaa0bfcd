"""The fleet that faults are injected into: its status, and whether that is allowed.

A fleet is *local* when its admin port is on loopback and the replica's process is one of this
machine. Elsewhere no fault is injected without an explicit option; and signals are never sent to a
process id that another machine reported.
"""

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson

from holdfast.control.fetch import FetchError, HttpAnswer, fetch
from holdfast.core.near_names import fix_of_name

DEADLINE_S: Final = 5.0
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class ChaosError(Exception):
    """A fault was not injected; the text says why."""


def begun_at(incident: Mapping[str, Any]) -> float:
    """When an incident was opened, or reopened because the same failure came back (s since 1970).

    One that comes back within minutes keeps its id: what is new is told by this time.
    """
    return float(incident.get("begun_at", incident["opened_at"]))  # older controls tell none


class KnownIncidents:
    """Incidents that a fleet had at one time, to tell later ones from."""

    def __init__(self, incidents: Iterable[Mapping[str, Any]]) -> None:
        self._known = {one["id"]: one for one in incidents}

    def news(self, incidents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those that began or came back since, have another cause or another replica."""
        return [one for one in incidents if self._is_news(one)]

    def _is_news(self, incident: Mapping[str, Any]) -> bool:
        known = self._known.get(incident["id"])
        if known is None or begun_at(incident) != begun_at(known):
            return True
        grown = not set(known["replicas"]).issuperset(incident["replicas"])
        return grown or incident["cause"] != known["cause"]


@dataclass(slots=True, frozen=True)
class ChaosTarget:
    """The admin port of a fleet, its token, and whether a remote fleet is allowed."""

    admin: str
    token: str | None = None
    elsewhere: bool = False  # said explicitly: this fleet is not on this machine
    tls: ssl.SSLContext | None = None  # whom to believe there

    @property
    def local(self) -> bool:
        """Whether the fleet's control is on this machine."""
        return (urlsplit(self.admin).hostname or "") in _LOOPBACK

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """GET a page, or POST an order with a body; raises ChaosError if it is refused."""
        data = None if body is None else orjson.dumps(body)
        method = None if body is None else "POST"
        try:
            answer: HttpAnswer = await fetch(
                self.admin.rstrip("/"),
                path,
                DEADLINE_S,
                bearer=self.token,
                body=data,
                method=method,
                tls=self.tls,
            )
        except FetchError as error:
            raise ChaosError(f"{self.admin}: {error}") from error
        told = _json(answer.body)
        if answer.status not in {200, 202}:
            why = told.get("error") if isinstance(told, dict) else None
            raise ChaosError(str(why or f"{path}: the admin port answered {answer.status}"))
        return told

    async def replicas(self) -> list[dict[str, Any]]:
        """The replicas of the fleet's status page."""
        found: list[dict[str, Any]] = (await self.ask("/status"))["replicas"]
        return found

    async def incidents(self) -> list[dict[str, Any]]:
        """The newest incidents, closed ones included."""
        found: list[dict[str, Any]] = (await self.ask("/incidents?limit=200"))["incidents"]
        return found

    async def disturb(self, replica: str, kind: str, seconds: float, **how: Any) -> None:
        """Ask control to disturb its own view of a replica for a time."""
        body = {"kind": kind, "seconds": seconds, **how}
        await self.ask(f"/replicas/{quote(replica)}/disturb", body)

    async def undisturb(self, replica: str) -> None:
        """Ask control to end the disturbance of a replica."""
        await self.ask(f"/replicas/{quote(replica)}/undisturb", {})

    async def check(self, replica: str) -> dict[str, Any]:
        """The row of a replica that may be disturbed; raises ChaosError if it may not."""
        rows = {str(row["id"]): row for row in await self.replicas()}
        if replica not in rows:
            fix = fix_of_name(replica, sorted(rows), "replicas")
            raise ChaosError(f"no replica is called {replica!r}; {fix}")
        if not self.local and not self.elsewhere:
            raise ChaosError(
                f"{self.admin} is not on this machine: say --elsewhere if its users may be harmed"
            )
        return rows[replica]

    async def process_of(self, replica: str) -> int:
        """The pid of a replica that Holdfast started on this machine."""
        row = await self.check(replica)
        pid = row.get("pid")
        if not self.local:
            raise ChaosError("signals are sent on the replica's own machine only")
        if not row.get("launched") or not isinstance(pid, int):
            raise ChaosError(f"{replica} was not started by Holdfast: end its process by hand")
        if not _lives(pid):
            raise ChaosError(f"{replica} has no process now; it is {row.get('state')}")
        return pid


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}


__all__ = ["ChaosError", "ChaosTarget"]
