"""Whom the loop of a fleet talks to, and the plain values in which it tells people.

Apart from the loop, because those who listen to it need not know how it turns.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.config.fleet_file import Deployed
from holdfast.core.canary import CanaryVerdict
from holdfast.core.messages import CanaryResult, FleetView, Move, Notice

CANARIES_MAX: Final = 20  # of each replica that are remembered


class Audience(Protocol):
    """Who is told: the gateways, in fact."""

    def publish(self, view: FleetView) -> None:
        """A view, new or said again."""

    def move(self, action: Move) -> None:
        """Cut what runs on a replica."""

    def note(self, notice: Notice) -> None:
        """A fact for people."""

    def answered(self, result: CanaryResult, *, slow: bool, inflight: int) -> None:
        """A canary came back, and whether it is slow in the fleet's eyes."""


class Platform(Protocol):
    """Who starts and ends the replicas that are ours."""

    def launch(self, replica_id: str, delay: int) -> bool:
        """Start it; False: it is not ours."""

    def stop(self, replica_id: str) -> bool:
        """End it; False: it is not ours."""

    def heard(self, replica_id: str, source: str) -> None:
        """It gave a sign of life, ``tokens`` or ``canary``."""


@dataclass(slots=True, frozen=True)
class Happened:
    """A notice with the time of day, for people."""

    at: float  # seconds since 1970
    model: str
    replica: str
    what: str
    reason: str
    failure_class: str | None = None  # loading, runtime or routing, where it is a failure


@dataclass(slots=True, frozen=True)
class Asked:
    """The last canary of a replica, for people."""

    at: float  # seconds since 1970
    verdict: CanaryVerdict
    detail: str
    latency_s: float | None
    share: float | None  # of the replica's tokens that canaries were, lately
    tokens: int = 0  # that its canaries cost since it joined
    users_tokens: int = 0  # that its users got meanwhile
    slow: bool = False  # right, and later than its peers' by the fleet's judgement

    def told(self) -> CanaryVerdict:
        """The verdict with its lateness: a right answer that came late is SLOW."""
        return self.verdict.with_lateness(slow=self.slow)


@dataclass(slots=True, frozen=True)
class Earlier:
    """What the control before this one told gateways, and of whom."""

    view: FleetView
    deployed: tuple[Deployed, ...]


__all__ = [
    "CANARIES_MAX",
    "Asked",
    "Audience",
    "Earlier",
    "Happened",
    "Platform",
]
