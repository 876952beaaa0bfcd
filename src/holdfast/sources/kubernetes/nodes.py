"""Reads a Kubernetes node as a host: its type, its resources, and what is wrong with it.

What is reserved on it is computed elsewhere, as a sum over pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.view.layers import Host
from holdfast.sources.kubernetes.api import Json
from holdfast.sources.kubernetes.quantities import moment, quantity, whole

# Whoever made the node says in one of these which others are made alike.
GROUP_LABELS: Final = (
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "alpha.eksctl.io/nodegroup-name",
)
GPU_NAMES: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
MIG: Final = "nvidia.com/mig-"  # slices of GPUs, each given to one container as a GPU would be
BOOTSTRAP_S_MAX: Final = 3_600.0  # ready again after so long: it had been ready before

_TYPE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_ZONE_LABELS: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_MARKET_LABELS: Final = ("karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType")
_SPOT_LABELS: Final = {
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node-lifecycle": "spot",
}


@dataclass(slots=True, frozen=True)
class Node:
    """A host, as far as its node object says."""

    host: Host
    grouped: bool  # a label says with whom it belongs


def read_node(thing: Json, group_label: str = "") -> Node:
    """Parse a node object."""
    meta, status = thing["metadata"], thing.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    offered: Mapping[str, Any] = status.get("allocatable") or {}
    name = str(meta["name"])
    group = _first(labels, (group_label, *GROUP_LABELS))
    launched = moment(meta.get("creationTimestamp"))
    host = Host(
        id=name,
        group=group or name,
        kind=_first(labels, _TYPE_LABELS),
        market=_market(labels),
        zone=_first(labels, _ZONE_LABELS),
        state=_state(thing),
        launched_at=launched,
        joined_at=_joined(status, launched),
        cpus=quantity(offered.get("cpu")),
        memory_bytes=whole(offered.get("memory")),
        gpus=gpus_of(offered) if offered else None,
        cuda=_version(labels, "runtime"),
        driver=_version(labels, "driver"),
    )
    return Node(host, bool(group))


def gpus_of(amounts: Mapping[str, Any]) -> int:
    """Number of GPUs, and slices of GPUs, in a map of resources."""
    return sum(
        whole(amount) or 0
        for name, amount in amounts.items()
        if name in GPU_NAMES or name.startswith(MIG)
    )


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _market(labels: Mapping[str, str]) -> str:
    said = _first(labels, _MARKET_LABELS).lower().replace("_", "-")
    if said:
        return said
    if any(labels.get(name) == value for name, value in _SPOT_LABELS.items()):
        return "spot"
    return ""


def _state(thing: Json) -> str:
    """Everything that keeps it from being used, for people; empty where nothing does."""
    wrong: list[str] = []
    ready: str | None = None
    for one in (thing.get("status") or {}).get("conditions") or ():
        kind, holds = one.get("type"), one.get("status")
        if kind == "Ready":
            ready = holds
            if holds != "True":
                reason = one.get("message") or one.get("reason") or ""
                wrong.insert(0, f"NotReady: {reason}"[:160] if reason else "NotReady")
        elif holds == "True":  # every other condition is a complaint, also those of detectors
            wrong.append(str(kind))
    if ready is None:
        wrong.insert(0, "NotReady: its kubelet has not reported")
    if (thing.get("spec") or {}).get("unschedulable"):
        wrong.append("cordoned")
    if thing["metadata"].get("deletionTimestamp"):
        wrong.append("leaving")
    return ", ".join(wrong[:8])


def _joined(status: Json, launched: float | None) -> float | None:
    """When it became ready; unknown where that was not the first time."""
    for one in status.get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") == "True":
            at = moment(one.get("lastTransitionTime"))
            if at is None or launched is None or at - launched > BOOTSTRAP_S_MAX:
                return None
            return at
    return None


def _version(labels: Mapping[str, str], what: str) -> str:
    """What GPU feature discovery wrote: whole, or, by earlier ones, in pieces."""
    stated = labels.get(f"nvidia.com/cuda.{what}-version.full")
    if stated:
        return stated
    pieces = (labels.get(f"nvidia.com/cuda.{what}.{one}") for one in ("major", "minor", "rev"))
    return ".".join(piece for piece in pieces if piece)


__all__ = ["GPU_NAMES", "GROUP_LABELS", "MIG", "Node", "gpus_of", "read_node"]
