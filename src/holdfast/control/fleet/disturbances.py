"""Failures caused on purpose (game day): distort what control sees of a replica, for a time.

    detour        gateways and canaries reach it through another address: a proxy that hurts
    silence       nothing of its log, its metrics and its tokens is heard
    skew          it is said to run on another CUDA version
    spot_notice   the platform is said to take it away
    probe_blind   its canaries fail, whatever it answers

One at a time for a replica, and each ends by itself, because the process that ordered it may be
gone by then. They are recorded as events, so that a history shows which trouble was made on
purpose.

All of it is refused unless the fleet file enables chaos, and a detour never gets the engine's
credential: otherwise anyone who can reach the admin port could divert both prompts and credential.
"""

from dataclasses import dataclass, replace
from typing import Final, Protocol
from urllib.parse import urlsplit

from holdfast.config.fleet_file import Deployed
from holdfast.core.diagnose.facts import (
    Fact,
    LineSeen,
    LoadSeen,
    MemorySeen,
    PhaseSeen,
    VersionsSeen,
)
from holdfast.core.messages import FleetEvent, Notice, SpotNotice
from holdfast.core.types import nanos
from holdfast.frames import DetoursFrame, ToGateway

SECONDS_MAX: Final = 3_700.0  # an hour, and what the one who asks adds for its own undoing
DISTURBED_MAX: Final = 256
DETOUR: Final = "detour"
SILENCE: Final = "silence"
SKEW: Final = "skew"
SPOT_NOTICE: Final = "spot_notice"
PROBE_BLIND: Final = "probe_blind"
KINDS: Final = (DETOUR, SILENCE, SKEW, SPOT_NOTICE, PROBE_BLIND)
_HEARD: Final = (LineSeen, LoadSeen, MemorySeen, PhaseSeen)  # what silence takes away
_SKEWED: Final = "0.0-skewed"  # no engine and no CUDA is called that
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class ChaosDisabledError(Exception):
    """A disturbance was ordered, but the fleet file does not enable chaos; nothing was done."""

    def __init__(self) -> None:
        super().__init__(
            "chaos.enabled is false in the fleet file, so nothing is disturbed on purpose; set "
            "'chaos: {enabled: true}' there and reload, if this fleet's users may be harmed"
        )


@dataclass(slots=True, frozen=True)
class Disturbance:
    """One disturbance of a replica: its kind, when it ends, and the URL of a detour."""

    kind: str
    until: int  # core time
    url: str = ""  # of a detour


class House(Protocol):
    """The methods of control that ``Disturbances`` calls."""

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def broadcast(self, frame: ToGateway) -> None:
        """Send a frame to every gateway."""

    def tell(self, *events: FleetEvent) -> None:
        """Pass events to the fleet's state machine."""

    def saw(self, fact: Fact) -> None:
        """Pass a fact to the investigation of failures."""


class Disturbances:
    """Begins and ends deliberate failures (chaos), at most one per replica, each with a time limit.

    While one lasts, ``reach`` and ``distorted`` give the falsified address or fact.
    """

    def __init__(self, house: House) -> None:
        self._house = house
        self._by_replica: dict[str, Disturbance] = {}
        self._enabled = False

    def follow(self, now: int, *, enabled: bool) -> None:
        """Enable or disable chaos as the fleet file says; disabling ends all that is under way."""
        self._enabled = enabled
        if not enabled:
            for replica in list(self._by_replica):
                self.end(replica, now)

    def begin(
        self, replica: str, kind: str, seconds: float, now: int, url: str = ""
    ) -> tuple[bool, str]:
        """Begin a disturbance, note it as an event, and return (whether it began, a sentence).

        Refused with False: an unknown kind, a time out of range, a detour that is not on loopback,
        a replica that is already disturbed. Raises ``ChaosDisabledError`` where the fleet file does
        not enable chaos. Does not check that the replica exists.
        """
        if not self._enabled:
            raise ChaosDisabledError
        if kind not in KINDS:
            return False, f"kind is one of {', '.join(KINDS)}"
        if not 0 < seconds <= SECONDS_MAX:
            return False, f"seconds are above 0 and at most {SECONDS_MAX:g}"
        if kind == DETOUR and not _is_loopback(url):
            return False, "url is http://127.0.0.1:PORT: a detour leads through this machine only"
        if replica in self._by_replica:
            return False, f"{replica} is disturbed already: {self._by_replica[replica].kind}"
        if len(self._by_replica) >= DISTURBED_MAX:
            return False, f"{DISTURBED_MAX} replicas are disturbed already"
        self._by_replica[replica] = Disturbance(kind, now + nanos(seconds), url)
        told = f"{kind} for {seconds:g} s at most"
        self._house.note(Notice(now, "", replica, "disturbed on purpose", told))
        self._apply(replica, kind, nanos(seconds))
        return True, f"{replica}: {told}"

    def end(self, replica: str, now: int) -> tuple[bool, str]:
        """End the disturbance of a replica, before its time or when that is up, and note it.

        Return whether there was one, and a sentence for people.
        """
        one = self._by_replica.pop(replica, None)
        if one is None:
            return False, f"{replica} is not disturbed"
        self._house.note(Notice(now, "", replica, "no longer disturbed", one.kind))
        self._apply(replica, one.kind, 0)
        return True, f"{replica}: {one.kind} is over"

    def look(self, now: int) -> None:
        """End the disturbances whose time is up; called periodically."""
        for name in [name for name, one in self._by_replica.items() if now >= one.until]:
            self.end(name, now)

    def _apply(self, replica: str, kind: str, lead: int) -> None:
        """Announce a disturbance that begins (``lead`` above 0, in ns) or ends."""
        if kind == DETOUR:
            self._house.broadcast(DetoursFrame(self.detours()))
        elif kind == SPOT_NOTICE and lead:
            self._house.tell(SpotNotice(replica, lead))
        elif kind == SKEW:
            self._house.saw(VersionsSeen(replica))

    # --- what others see of it -------------------------------------------------------------------

    def reach(self, deployed: Deployed) -> Deployed | None:
        """The replica with the address that canaries must use now, unchanged where undisturbed.

        Under a detour its URL is the detour's, without credential and TLS. None (``probe_blind``):
        the canary must fail without being sent.
        """
        one = self._by_replica.get(deployed.replica.id) if self._by_replica else None
        if one is None or one.kind not in (DETOUR, PROBE_BLIND):
            return deployed
        if one.kind == PROBE_BLIND:
            return None
        return replace(deployed, url=one.url, api_key_env=None, api_key_file=None, tls=None)

    def distorted(self, fact: Fact) -> Fact | None:
        """The fact as the investigation should see it, mostly unchanged; None: drop it.

        ``silence`` drops log lines, loads, memory and phases of a replica, ``skew`` falsifies its
        versions.
        """
        one = self._by_replica.get(getattr(fact, "replica", "")) if self._by_replica else None
        if one is None:
            return fact
        if one.kind == SILENCE and isinstance(fact, _HEARD):
            return None
        if one.kind == SKEW and isinstance(fact, VersionsSeen):
            return replace(fact, cuda=_SKEWED, engine=_SKEWED)
        return fact

    def greeting(self) -> list[ToGateway]:
        """The frame with all present detours, for a gateway that has just connected.

        It is sent even if there are none: the gateway may still follow one of an earlier control.
        """
        return [DetoursFrame(self.detours())]

    def is_so(self, replica: str, kind: str) -> bool:
        """Whether a replica is under this kind of disturbance now."""
        one = self._by_replica.get(replica)
        return one is not None and one.kind == kind

    def deaf(self, replica: str) -> bool:
        """Whether a replica is under ``silence``, so that its signs of life must be ignored."""
        return self.is_so(replica, SILENCE)

    def detours(self) -> dict[str, str]:
        """The detour's URL by id of each replica that is under a detour."""
        return {name: one.url for name, one in self._by_replica.items() if one.kind == DETOUR}

    def snapshot(self) -> dict[str, str]:
        """The kind of disturbance by id of each disturbed replica, for ``/status``."""
        return {name: one.kind for name, one in self._by_replica.items()}


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and parts.hostname in _LOOPBACK and bool(parts.port)
    except ValueError:  # a port that is none
        return False


__all__ = [
    "DETOUR",
    "KINDS",
    "PROBE_BLIND",
    "SILENCE",
    "SKEW",
    "SPOT_NOTICE",
    "ChaosDisabledError",
    "Disturbance",
    "Disturbances",
]
