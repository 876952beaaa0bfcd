"""What a game day does to control's own picture of a replica, each with an end.

    detour        gateways and canaries reach it through another address: a proxy that hurts
    silence       nothing of its log, its metrics and its tokens is heard
    skew          it is said to run on another CUDA version
    spot_notice   the platform is said to take it away
    probe_blind   its canaries fail, whatever it answers

One at a time for a replica, and each ends by itself: whoever asked for it may be gone by then. They
are told as events, so that a history shows which trouble was made on purpose.

All of it is refused unless the fleet file enables chaos, and a detour never gets the engine's
credential: whoever may reach the admin port could otherwise lead both prompts and credential away.
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
    """A disturbance was asked for, and the fleet file does not allow any."""

    def __init__(self) -> None:
        super().__init__(
            "chaos.enabled is false in the fleet file, so nothing is disturbed on purpose; set "
            "'chaos: {enabled: true}' there and reload, if this fleet's users may be harmed"
        )


@dataclass(slots=True, frozen=True)
class Disturbance:
    """One of them."""

    kind: str
    until: int  # core time
    url: str = ""  # of a detour


class House(Protocol):
    """The rest of control, as seen from here."""

    def note(self, notice: Notice) -> None:
        """A fact for people."""

    def broadcast(self, frame: ToGateway) -> None:
        """Tell every gateway."""

    def tell(self, *events: FleetEvent) -> None:
        """Tell the fleet."""

    def saw(self, fact: Fact) -> None:
        """Tell whoever looks for failures."""


class Disturbances:
    """Which replicas are disturbed, how, and until when."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._by_replica: dict[str, Disturbance] = {}
        self._enabled = False

    def follow(self, now: int, *, enabled: bool) -> None:
        """Take over what the fleet file says; where it allows none, what holds is ended.

        Rejected: refusing new ones only. Who turns chaos off wants it over, and a detour may have
        an hour left.
        """
        self._enabled = enabled
        if not enabled:
            for replica in list(self._by_replica):
                self.end(replica, now)

    def begin(
        self, replica: str, kind: str, seconds: float, now: int, url: str = ""
    ) -> tuple[bool, str]:
        """Whether it was begun, and why (not); raises where the fleet file allows none."""
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
        """Take it back; whether there was one."""
        one = self._by_replica.pop(replica, None)
        if one is None:
            return False, f"{replica} is not disturbed"
        self._house.note(Notice(now, "", replica, "no longer disturbed", one.kind))
        self._apply(replica, one.kind, 0)
        return True, f"{replica}: {one.kind} is over"

    def look(self, now: int) -> None:
        """End those whose time is up."""
        for name in [name for name, one in self._by_replica.items() if now >= one.until]:
            self.end(name, now)

    def _apply(self, replica: str, kind: str, lead: int) -> None:
        """What has to be told when one begins (``lead`` above 0) or ends."""
        if kind == DETOUR:
            self._house.broadcast(DetoursFrame(self.detours()))
        elif kind == SPOT_NOTICE and lead:
            self._house.tell(SpotNotice(replica, lead))
        elif kind == SKEW:
            self._house.saw(VersionsSeen(replica))

    # --- what others see of it -------------------------------------------------------------------

    def reach(self, deployed: Deployed) -> Deployed | None:
        """How to reach a replica now; ``None``: its canary is to fail unasked.

        The credential is for the engine alone: at a detour it would be anybody's.
        """
        one = self._by_replica.get(deployed.replica.id) if self._by_replica else None
        if one is None or one.kind not in (DETOUR, PROBE_BLIND):
            return deployed
        if one.kind == PROBE_BLIND:
            return None
        return replace(deployed, url=one.url, api_key_env=None)

    def distorted(self, fact: Fact) -> Fact | None:
        """What is seen of a fact; ``None``: nothing."""
        one = self._by_replica.get(getattr(fact, "replica", "")) if self._by_replica else None
        if one is None:
            return fact
        if one.kind == SILENCE and isinstance(fact, _HEARD):
            return None
        if one.kind == SKEW and isinstance(fact, VersionsSeen):
            return replace(fact, cuda=_SKEWED, engine=_SKEWED)
        return fact

    def greeting(self) -> list[ToGateway]:
        """What a gateway that has just come must know.

        Also that there is no detour: it may follow one of an earlier control, which cannot end it.
        """
        return [DetoursFrame(self.detours())]

    def is_so(self, replica: str, kind: str) -> bool:
        """Whether a replica is disturbed in this way."""
        one = self._by_replica.get(replica)
        return one is not None and one.kind == kind

    def deaf(self, replica: str) -> bool:
        """Whether nothing is to be heard of it."""
        return self.is_so(replica, SILENCE)

    def detours(self) -> dict[str, str]:
        """All that lead elsewhere now."""
        return {name: one.url for name, one in self._by_replica.items() if one.kind == DETOUR}

    def snapshot(self) -> dict[str, str]:
        """For status: who is disturbed on purpose, and how."""
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
