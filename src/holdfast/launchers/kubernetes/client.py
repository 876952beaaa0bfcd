"""What the launcher needs of a Kubernetes client: requests, streams of lines, and watches.

The client itself is that of the Kubernetes source; whoever builds the launcher joins the two.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.core.deploy.pod_life import PodSight
from holdfast.core.types import HostCondition

Json = dict[str, Any]
RowT_co = TypeVar("RowT_co", covariant=True)


class ApiClient(Protocol):
    """Asks one API server; raises ``UnreadableError`` with the status of a refusal."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """GET a path and return its JSON."""
        ...

    async def send(
        self, method: str, path: str, body: Json, kind: str = "application/json"
    ) -> Json:
        """Write an object and return what the server made of it."""
        ...

    def lines(
        self, path: str, params: Mapping[str, str], quiet_s: float | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a stream and give its lines as they come."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Watched(Protocol[RowT_co]):
    """The objects of one kind, kept as the server has them."""

    @property
    def rows(self) -> Mapping[str, RowT_co]:
        """What is known now; after a failure what was known last."""
        ...

    @property
    def listed(self) -> bool:
        """Whether a first list was read completely."""
        ...

    @property
    def error(self) -> str:
        """Why the last list or watch failed; empty: it did not."""
        ...

    async def run(self) -> None:
        """List and watch until cancelled."""
        ...


@dataclass(slots=True, frozen=True)
class NodeSight:
    """Whether a node can run pods, as it says itself or as those say who empty it."""

    condition: HostCondition | None  # None: nothing is known
    reason: str = ""


@dataclass(slots=True, frozen=True)
class ClusterAccess:
    """An API server, and the two watches that the launcher reads."""

    api: ApiClient
    # Watches pods: the path to list, a label selector, what makes a sight of each pod (None: it is
    # left out), and what is called after each change.
    watch_pods: Callable[
        [str, str, Callable[[Json], PodSight | None], Callable[[], None]], Watched[PodSight]
    ]
    watch_nodes: Callable[[Callable[[], None]], Watched[NodeSight]]


__all__ = ["ApiClient", "ClusterAccess", "Json", "NodeSight", "Watched"]
