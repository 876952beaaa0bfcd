"""Chooses the node of a cluster that the next replica of a model is placed on.

    nodes ─► staying ─► with room ─► trusted ─► of the wanted zone, or any ─► fewest of its model

A cluster's own scheduler packs: two replicas of a model on one node are one failure. So the node is
chosen here, and the scheduler only reserves it. Of the nodes with room the one with the fewest
replicas of the same model is taken, then the one whose zone has the fewest of them, then the one
with the fewest of any model, then the one with the most room; ids break ties, so that the same
cluster gives the same choice.

A cluster lists a node as alive for a while after its death, with all its room. Whoever saw it die
says so (``lost``), and it is left out. A node that had room on paper and did not reserve it is
tried again only where no other has room (``FailedReservations``).

A zone is a wish: where it has no room, any other will do. Replicas are spread over zones so that
one that dies takes few along, and one that died must not keep its replicas from coming back
elsewhere.

Rejected: refusing a second replica on a node. With more replicas than nodes nothing would start.
Rejected: the zone before the node. A zone of one node would get as many replicas as one of ten.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.types import nanos, require

# A node that does not reserve is dead or overloaded. Clusters notice a death within a minute.
FAILED_S: Final = 60.0
_FAILED_MAX: Final = 256  # nodes remembered; the one that failed longest ago goes first


@dataclass(slots=True, frozen=True)
class ClusterNode:
    """Figures now of one cluster node: what is free on it, its replicas by model, if it stays."""

    id: str
    address: str
    zone: str = ""  # empty: unknown
    cpus_free: float = 0.0
    gpus_free: float = 0.0
    leaving: bool = False  # drained or about to be taken back
    models: Mapping[str, int] = field(default_factory=dict)  # replicas of each, ours only
    lost: bool = False  # somebody saw that it is dead, whatever its cluster says
    failed: bool = False  # it had room lately and did not reserve it


@dataclass(slots=True, frozen=True)
class NodeRequest:
    """What one replica needs of one node: devices, CPUs, and a preferred zone (empty: any)."""

    model: str
    gpus: int = 0  # tensor × pipeline degree: all on one node
    cpus: float = 0.0
    zone: str = ""

    def __post_init__(self) -> None:
        require(self.gpus >= 0, "node.gpus", f"is {self.gpus}", "use 0 or more devices")
        require(self.cpus >= 0, "node.cpus", f"is {self.cpus}", "use 0 or more CPUs")


@dataclass(slots=True, frozen=True)
class NodeChoice:
    """The chosen ``ClusterNode``, or None if there is none, with the reason in words."""

    node: ClusterNode | None
    reason: str


def choose_node(request: NodeRequest, nodes: Iterable[ClusterNode]) -> NodeChoice:
    """Return the ``NodeChoice`` for one more replica: a node with room, in its zone if possible.

    Of those the one with fewest replicas of its model. Nodes that leave or are lost are left out;
    ones that failed to reserve come last. Without one, ``node`` is None and the reason says what is
    missing. Reserves nothing.
    """
    listed = list(nodes)
    in_zone: dict[str, int] = {}  # replicas of this model
    for node in listed:
        if node.zone and not node.lost:
            in_zone[node.zone] = in_zone.get(node.zone, 0) + node.models.get(request.model, 0)
    present = [node for node in listed if not node.leaving and not node.lost]
    if not present:
        return NodeChoice(None, "the cluster has no node that stays")
    roomy = [
        node
        for node in present
        if node.gpus_free >= request.gpus and node.cpus_free >= request.cpus
    ]
    if not roomy:
        most = max(present, key=lambda node: (node.gpus_free, node.cpus_free))
        told = (
            f"none of {len(present)} nodes has {_amount(request.gpus, request.cpus)} free; "
            f"the most is {_amount(most.gpus_free, most.cpus_free)}, on {most.address}"
        )
        return NodeChoice(None, told)
    roomy = [node for node in roomy if not node.failed] or roomy
    near = [node for node in roomy if node.zone == request.zone] if request.zone else []
    where = f" of {request.zone}" if near else ""
    roomy = near or roomy
    best = min(
        roomy,
        key=lambda node: (
            node.models.get(request.model, 0),
            in_zone.get(node.zone, 0),
            sum(node.models.values()),
            -node.gpus_free,
            -node.cpus_free,
            node.id,
        ),
    )
    beside = best.models.get(request.model, 0)
    told = f"one of {len(roomy)} nodes{where} with room, with {beside} of this model"
    return NodeChoice(best, told)


class FailedReservations:
    """Remembers by node id, for a minute, which nodes had room and did not reserve it."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def add(self, node: str, now: int) -> None:
        """Note that a node did not reserve what it seemed to have free; keeps at most 256 nodes."""
        self._at.pop(node, None)
        self._at[node] = now
        while len(self._at) > _FAILED_MAX:
            del self._at[next(iter(self._at))]

    def clear(self, node: str) -> None:
        """Forget a node's failure: it has reserved what it was asked for."""
        self._at.pop(node, None)

    def failed(self, node: str, now: int) -> bool:
        """Return whether a node failed to reserve in the last minute and has not reserved since.

        False for an unknown node; changes nothing.
        """
        at = self._at.get(node)
        return at is not None and now - at < nanos(FAILED_S)


def _amount(gpus: float, cpus: float) -> str:
    return f"{gpus:g} GPUs and {cpus:g} CPUs"


__all__ = [
    "FAILED_S",
    "ClusterNode",
    "FailedReservations",
    "NodeChoice",
    "NodeRequest",
    "choose_node",
]
