"""Reads a Kubernetes node as a host: its type, its resources, and what is wrong with it.

What is reserved on it is computed elsewhere, as a sum over pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.types import HostCondition
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
# Accelerators by their maker. Of names side by side the first that is there counts: they are the
# same chips, counted whole or in cores.
_ACCELERATORS: Final = (
    ("nvidia.com/gpu",),
    ("nvidia.com/gpu.shared",),  # shares of one in time, each given to one container
    ("amd.com/gpu",),
    ("gpu.intel.com/i915",),
    ("gpu.intel.com/xe",),
    ("habana.ai/gaudi",),
    ("google.com/tpu",),
    ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore"),
)
GPU_NAMES: Final = tuple(name for names in _ACCELERATORS for name in names)
MIG: Final = "nvidia.com/mig-"  # slices of GPUs, each given to one container as a GPU would be
BOOTSTRAP_S_MAX: Final = 3_600.0  # ready again after so long: it had been ready before

# Conditions by how their types end: of Kubernetes, EKS's monitoring and node-problem-detector.
_HEALTHY_WHEN_TRUE: Final = ("Ready",)
_FAULTS_WHEN_TRUE: Final = (
    *("Pressure", "Unavailable", "Deadlock", "Filesystem", "Problem", "Unhealthy", "Failure"),
    *("Restart", "Error", "Errors", "Overlay2", "Exhausted", "Shutdown", "Degraded", "Fault"),
)
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"  # a taint of Kubernetes itself
# Taints of those that empty a node: who cordons it, autoscalers, and handlers of a cloud's notice.
_CORDONED: Final = "node.kubernetes.io/unschedulable"
_LEAVING: Final = frozenset(
    {
        _CORDONED,
        "node.kubernetes.io/out-of-service",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "cloud.google.com/impending-node-termination",
        "remediator.kubernetes.azure.com/unschedulable",
        "remediator.aks.microsoft.com/unschedulable",
    }
)
_LEAVING_PREFIX: Final = "aws-node-termination-handler/"
# Of these, the ones after which the machine is gone within seconds or two minutes. The others are
# plans: Karpenter waits minutes for a replacement and may take its taint back, the autoscaler's can
# stay for ever, a cordoned node for days; evictions tell when those become serious.
_TAKEN: Final = (
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "remediator.kubernetes.azure.com/unschedulable",
    "remediator.aks.microsoft.com/unschedulable",
)
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
    condition, reason, since = _condition(thing)
    host = Host(
        id=name,
        group=group or name,
        kind=_first(labels, _TYPE_LABELS),
        market=_market(labels),
        zone=_first(labels, _ZONE_LABELS),
        state=", ".join(_faults(thing)[:8]),
        remarks=", ".join(_remarks(thing)[:8]),
        launched_at=launched,
        joined_at=_joined(status, launched),
        cpus=quantity(offered.get("cpu")),
        memory_bytes=whole(offered.get("memory")),
        gpus=gpus_of(offered) if offered else None,
        cuda=_version(labels, "runtime"),
        driver=_version(labels, "driver"),
        condition=condition,
        condition_reason=reason,
        condition_since=since,
        notice=_notice(thing),
    )
    return Node(host, bool(group))


def gpus_of(amounts: Mapping[str, Any]) -> int:
    """Number of GPUs, and slices of GPUs, in a map of resources."""
    found = [amount for name, amount in amounts.items() if name.startswith(MIG)]
    for names in _ACCELERATORS:
        found += [amounts[name] for name in names if amounts.get(name)][:1]
    return sum(whole(amount) or 0 for amount in found)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _market(labels: Mapping[str, str]) -> str:
    said = _first(labels, _MARKET_LABELS).lower().replace("_", "-")
    if said:
        return said
    if any(labels.get(name) == value for name, value in _SPOT_LABELS.items()):
        return "spot"
    return ""


def _conditions(thing: Json) -> dict[str, Json]:
    told = (thing.get("status") or {}).get("conditions") or ()
    return {str(one.get("type")): one for one in told}


def _faults(thing: Json) -> list[str]:
    """Everything that keeps it from being used, for people; empty where nothing does."""
    wrong: list[str] = []
    conditions = _conditions(thing)
    for kind, one in conditions.items():
        holds = one.get("status")
        if kind.endswith(_HEALTHY_WHEN_TRUE):
            if holds != "True" and (holds == "False" or kind == "Ready"):
                reason = one.get("message") or one.get("reason") or ""
                name = f"Not{kind}" if kind == "Ready" else f"{kind} is False"
                told = f"{name}: {reason}"[:160] if reason else name
                wrong.insert(0 if kind == "Ready" else len(wrong), told)
        elif holds == "True" and kind.endswith(_FAULTS_WHEN_TRUE):
            wrong.append(kind)
    if "Ready" not in conditions:
        wrong.insert(0, "NotReady: its kubelet has not reported")
    if (thing.get("spec") or {}).get("unschedulable"):
        wrong.append("cordoned")
    wrong += [f"leaving: {key}" for key in _leaving(_taints(thing)) if key != _CORDONED]
    if thing["metadata"].get("deletionTimestamp"):
        wrong.append("leaving")
    return wrong


def _taints(thing: Json) -> dict[str, Json]:
    told = (thing.get("spec") or {}).get("taints") or ()
    return {str(one.get("key")): one for one in told}


def _leaving(taints: Mapping[str, Json]) -> list[str]:
    """The taints by which somebody says that it is to be emptied."""
    return [key for key in taints if key in _LEAVING or key.startswith(_LEAVING_PREFIX)]


def _notice(thing: Json) -> str:
    """Why its machine is about to be taken away; empty: nobody says so, or not for soon."""
    if thing["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    taints = _taints(thing)
    return next((f"has the taint {key}" for key in _TAKEN if key in taints), "")


def _condition(thing: Json) -> tuple[HostCondition | None, str, float | None]:
    """Whether it can run pods, why not, and since when; None: its kubelet has never said so.

    What its kubelet says outranks taints: those are written and removed some seconds later.
    """
    ready = _conditions(thing).get("Ready") or {}
    status, since = ready.get("status"), moment(ready.get("lastTransitionTime"))
    reason = " ".join(str(ready.get("message") or ready.get("reason") or "").split())[:160]
    taints = _taints(thing)
    if status == "False":
        return HostCondition.NOT_READY, reason, since
    if status == "Unknown" or (status is None and _UNREACHABLE in taints):
        return HostCondition.UNREACHABLE, reason, since
    leaving = _leaving(taints)
    if leaving:
        return HostCondition.LEAVING, leaving[0], moment(taints[leaving[0]].get("timeAdded"))
    if (thing.get("spec") or {}).get("unschedulable"):
        return HostCondition.LEAVING, "cordoned", None
    if thing["metadata"].get("deletionTimestamp"):
        return HostCondition.LEAVING, "deleted", moment(thing["metadata"]["deletionTimestamp"])
    return (HostCondition.READY, "", since) if status == "True" else (None, "", None)


def _remarks(thing: Json) -> list[str]:
    """Conditions of which nobody here knows whether they are good or bad: shown, not judged."""
    judged = (*_HEALTHY_WHEN_TRUE, *_FAULTS_WHEN_TRUE)
    return [
        kind
        for kind, one in _conditions(thing).items()
        if one.get("status") == "True" and not kind.endswith(judged)
    ]


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
