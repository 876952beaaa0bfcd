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
        """Send the fleet's view to all gateways; also called with a view that has not changed."""

    def move(self, action: Move) -> None:
        """Make gateways cut the attempts that run on a replica, to try them elsewhere.

        If ``stalled``, only attempts without progress are cut.
        """

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def saw(self, fact: Fact) -> None:
        """Pass a fact to the investigation of failures, which may open an incident from it."""

    def answered(self, result: CanaryResult, *, slow: bool, inflight: int) -> None:
        """Handle one canary's result: of each finished canary, and early of one that is overdue.

        ``slow``: the fleet judges this replica slow against its peers. ``inflight``: users'
        requests on the replica.
        """


class Platform(Protocol):
    """Starts and stops the replicas that control launches; ``Deployments`` implements it."""

    def launch(self, replica_id: str, delay: int) -> bool:
        """Start a launched replica after a delay (ns), in the background; True if it is one.

        False: control does not launch this replica, and nothing was done.
        """

    def stop(self, replica_id: str) -> bool:
        """Stop a launched replica's process, in the background; True if it is one.

        False: control did not launch this replica, and nothing was done.
        """

    def heard(self, replica_id: str, source: str) -> None:
        """Record a sign of life (``tokens`` or ``canary``) of a replica that control launched.

        Others are ignored.
        """


@dataclass(slots=True, frozen=True)
class Happened:
    """One event that operators read: time of day, model, replica, what happened and why."""

    at: float  # seconds since 1970
    model: str
    replica: str
    what: str
    reason: str
    failure_class: str | None = None  # loading, runtime or routing, where it is a failure


@dataclass(slots=True, frozen=True)
class Asked:
    """One past canary of a replica for operators: verdict, latency, and what canaries cost it."""

    at: float  # seconds since 1970
    verdict: CanaryVerdict
    detail: str
    latency_s: float | None
    share: float | None  # of the replica's tokens that canaries were, lately
    tokens: int = 0  # that its canaries cost since it joined
    users_tokens: int = 0  # that its users got meanwhile
    slow: bool = False  # right, and later than its peers' by the fleet's judgement

    def told(self) -> CanaryVerdict:
        """The verdict to show: SLOW for a right answer that came late, else ``verdict`` itself."""
        return self.verdict.with_lateness(slow=self.slow)


@dataclass(slots=True, frozen=True)
class Earlier:
    """The last fleet view that the previous control process published, and its replicas.

    Their rows are published again until this control has judged them itself.
    """

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
