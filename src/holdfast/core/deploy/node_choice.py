"""Chooses the node of a cluster that the next replica of a model is placed on.

    nodes ─► not leaving ─► with room ─► of the wanted zone, or any ─► fewest of its model ─► one

A cluster's own scheduler packs: two replicas of a model on one node are one failure. So the node is
chosen here, and the scheduler only reserves it. Of the nodes with room the one with the fewest
replicas of the same model is taken, then the one with the fewest of any, then the one with the most
room; ids break ties, so that the same cluster gives the same choice.

A zone is a wish: where it has no room, any other will do. Replicas are spread over zones so that
one that dies takes few along, and one that died must not keep its replicas from coming back
elsewhere.

Rejected: refusing a second replica on a node. With more replicas than nodes nothing would start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class ClusterNode:
    """A node as its cluster lists it, with what is free on it and which models it runs."""

    id: str
    address: str
    zone: str = ""  # empty: unknown
    cpus_free: float = 0.0
    gpus_free: float = 0.0
    leaving: bool = False  # drained or about to be taken back
    models: Mapping[str, int] = field(default_factory=dict)  # replicas of each, ours only


@dataclass(slots=True, frozen=True)
class NodeRequest:
    """What one replica needs of a node: devices, CPUs, and the zone it should be in."""

    model: str
    gpus: int = 0  # tensor × pipeline degree: all on one node
    cpus: float = 0.0
    zone: str = ""

    def __post_init__(self) -> None:
        require(self.gpus >= 0, "node.gpus", f"is {self.gpus}", "use 0 or more devices")
        require(self.cpus >= 0, "node.cpus", f"is {self.cpus}", "use 0 or more CPUs")


@dataclass(slots=True, frozen=True)
class NodeChoice:
    """The chosen node, or None, with the reason in words."""

    node: ClusterNode | None
    reason: str


def choose_node(request: NodeRequest, nodes: Iterable[ClusterNode]) -> NodeChoice:
    """Choose the node for one more replica: with room, in its zone if possible, least of its model.

    Without one, ``node`` is None and the reason says what is missing. Reserves nothing.
    """
    present = [node for node in nodes if not node.leaving]
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
    near = [node for node in roomy if node.zone == request.zone] if request.zone else []
    where = f" of {request.zone}" if near else ""
    roomy = near or roomy
    best = min(
        roomy,
        key=lambda node: (
            node.models.get(request.model, 0),
            sum(node.models.values()),
            -node.gpus_free,
            -node.cpus_free,
            node.id,
        ),
    )
    beside = best.models.get(request.model, 0)
    told = f"one of {len(roomy)} nodes{where} with room, with {beside} of this model"
    return NodeChoice(best, told)


def _amount(gpus: float, cpus: float) -> str:
    return f"{gpus:g} GPUs and {cpus:g} CPUs"


__all__ = ["ClusterNode", "NodeChoice", "NodeRequest", "choose_node"]
