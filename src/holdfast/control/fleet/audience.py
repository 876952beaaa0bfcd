"""Interfaces that the fleet's loop calls, and the values in which it reports to people.

They are apart from the loop so that their implementers need not import it.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.config.fleet_file import Deployed
from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.facts import Fact
from holdfast.core.messages import CanaryResult, FleetView, Move, Notice

CANARIES_MAX: Final = 20  # of each replica that are remembered


class Audience(Protocol):
    """Receives what the fleet's loop publishes for gateways, people and the investigation."""

    def publish(self, view: FleetView) -> None:
        """Send the fleet's view to gateways; an unchanged view is sent again, too."""

    def move(self, action: Move) -> None:
        """Make gateways cut the attempts that run on a replica; if ``stalled``, only stuck ones."""

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def saw(self, fact: Fact) -> None:
        """Pass a fact to the investigation of failures."""

    def answered(self, result: CanaryResult, *, slow: bool, inflight: int) -> None:
        """Handle a canary's result; ``slow`` is the fleet's judgement of its latency."""


class Platform(Protocol):
    """Starts and stops the replicas that control launched."""

    def launch(self, replica_id: str, delay: int) -> bool:
        """Start a replica after a delay (ns); False: control does not launch this replica."""

    def stop(self, replica_id: str) -> bool:
        """Stop a replica; False: control did not launch this replica."""

    def heard(self, replica_id: str, source: str) -> None:
        """Record a sign of life (``tokens`` or ``canary``) of a replica that control launched.

        Others are ignored.
        """


@dataclass(slots=True, frozen=True)
class Happened:
    """An event of the fleet with its time of day, as operators read it."""

    at: float  # seconds since 1970
    model: str
    replica: str
    what: str
    reason: str
    failure_class: str | None = None  # loading, runtime or routing, where it is a failure


@dataclass(slots=True, frozen=True)
class Asked:
    """The result of one canary of a replica, as operators read it."""

    at: float  # seconds since 1970
    verdict: CanaryVerdict
    detail: str
    latency_s: float | None
    share: float | None  # of the replica's tokens that canaries were, lately
    tokens: int = 0  # that its canaries cost since it joined
    users_tokens: int = 0  # that its users got meanwhile
    slow: bool = False  # right, and later than its peers' by the fleet's judgement

    def told(self) -> CanaryVerdict:
        """The canary's verdict as reported: a right answer that came late is SLOW."""
        return self.verdict.with_lateness(slow=self.slow)


@dataclass(slots=True, frozen=True)
class Earlier:
    """The fleet view that the previous control published, and the replicas of that view."""

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
