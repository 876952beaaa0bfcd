"""The rights that Holdfast uses at Kubernetes API servers, as a fleet file asks for them.

    sources        pods, nodes, events, usage and logs, read; InferencePools where they are used
    control.lease  one Lease, by which controls choose their leader
    kubernetes     workloads and pods that models with ``launch.on: kubernetes`` are made of

One list for the whole product: tests compare it with the requests that the code sends and with the
roles that are shipped, and ``holdfast doctor`` asks the API server about each right in it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.config.fleet_file import FleetFile
from holdfast.config.sources import KubernetesSection
from holdfast.launchers.kubernetes.workloads import KINDS
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.inference_pools import GROUP, OLD_GROUP
from holdfast.wire.kubernetes.launcher import kubernetes_config
from holdfast.wire.view_sources import kubernetes_config as source_config

_METRICS: Final = "metrics.k8s.io"
_LEASES: Final = "coordination.k8s.io"
_READ: Final = ("list", "watch")
_WRITE: Final = ("get", "list", "create", "patch", "delete")

_FROM_SOURCE: Final = (
    "bind the roles of examples/kubernetes/rbac.yaml to its account; see docs, Kubernetes"
)
_FROM_POOLS: Final = "kubectl apply -f examples/kubernetes/inference-pools.yaml"
_FROM_LEASE: Final = "apply the Role of deploy/kubernetes/overlays/two-gateways/lease.yaml"
_FROM_LAUNCHING: Final = (
    "kubectl apply -f deploy/kubernetes/components/launching/rbac.yaml, for this namespace"
)
_FROM_BASE: Final = (
    "bind the role holdfast-hosts of deploy/kubernetes/base/rbac.yaml to its account"
)


class KubernetesAction(NamedTuple):
    """One verb on one kind of object: what an API server allows or refuses."""

    group: str
    resource: str  # with its subresource: pods/log
    verb: str
    namespace: str = ""  # empty: at the scope of the cluster
    name: str = ""  # of the one object; empty: any

    def __str__(self) -> str:
        """In words of ``kubectl auth can-i``."""
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {kind}{where}"


@dataclass(slots=True, frozen=True)
class NeededRight:
    """One thing that a part of Holdfast does at an API server, and what is lost without it."""

    action: KubernetesAction
    without: str  # what does not work
    needed: bool = True  # else it is optional
    fix: str = _FROM_SOURCE  # where a role with this right is shipped


@dataclass(slots=True, frozen=True)
class PartRights:
    """What one part of a fleet file needs at one API server."""

    where: str  # the field of the file
    server: KubernetesConfig  # how the API server is reached, and nothing else
    rights: tuple[NeededRight, ...]


def rights_of_file(file: FleetFile) -> list[PartRights]:
    """All rights that a fleet file needs, by the part that needs them; empty: no Kubernetes."""
    parts = []
    for index, section in enumerate(file.sources):
        if isinstance(section, KubernetesSection):
            config = source_config(section)
            parts.append(PartRights(f"sources.{index}", _server(config), source_rights(config)))
    lease = file.control.lease
    if lease is not None and lease.store == "kubernetes":
        needed = lease_rights(lease.namespace, lease.name)
        parts.append(PartRights("control.lease", KubernetesConfig(), needed))
    launched = [model.launch.kubernetes for model in file.models if model.launch is not None]
    used = {pod.kind for pod in launched if pod is not None}
    if used:
        kinds = [kind for kind in KINDS if kind.lower() in used]
        needed = launch_rights(kinds, file.kubernetes.namespace)
        server = _server(kubernetes_config(file.kubernetes))
        parts.append(PartRights("kubernetes", server, needed))
    return parts


def source_rights(config: KubernetesConfig) -> tuple[NeededRight, ...]:
    """What a source of this config asks for."""
    space = config.namespace
    hosts, usage = "hosts, zones and the state of nodes are unknown", "memory in use is unknown"
    late, silent = "lists replace it: changes are seen later", "reasons are those of pods alone"
    optional = (
        (KubernetesAction("", "nodes", "list"), hosts),
        (KubernetesAction("", "nodes", "watch"), late),
        (KubernetesAction("", "events", "list", space), silent),
        (KubernetesAction("", "events", "watch", space), silent),
        (KubernetesAction(_METRICS, "nodes", "list"), usage),
        (KubernetesAction(_METRICS, "pods", "list", space), usage),
    )
    rights = [
        NeededRight(KubernetesAction("", "pods", "list", space), "no pod is found"),
        NeededRight(KubernetesAction("", "pods", "watch", space), late),
        *(NeededRight(action, lost, needed=False) for action, lost in optional),
    ]
    if space:  # bound by namespace, so that only there it can be asked for
        logs = KubernetesAction("", "pods/log", "get", space)
        lost = "'holdfast logs REPLICA' is refused"
        rights.append(NeededRight(logs, lost, needed=False))
    if config.inference_pools:
        rights += _pool_rights(space)
    return tuple(rights)


def _pool_rights(space: str) -> Iterable[NeededRight]:
    lost = "pods of inference pools are not found"
    names = "names of the pool's models are not compared with the fleet file"
    for verb in _READ:
        for group in (GROUP, OLD_GROUP):
            action = KubernetesAction(group, "inferencepools", verb, space)
            yield NeededRight(action, lost, fix=_FROM_POOLS)
        for kind in ("inferencemodels", "inferenceobjectives"):
            action = KubernetesAction(OLD_GROUP, kind, verb, space)
            yield NeededRight(action, names, needed=False, fix=_FROM_POOLS)


def lease_rights(space: str, name: str) -> tuple[NeededRight, ...]:
    """What controls that choose their leader by a Lease ask for."""
    actions = (
        KubernetesAction(_LEASES, "leases", "create", space),  # which can name no object
        KubernetesAction(_LEASES, "leases", "get", space, name),
        KubernetesAction(_LEASES, "leases", "update", space, name),
    )
    return tuple(NeededRight(one, "no control can lead", fix=_FROM_LEASE) for one in actions)


def launch_rights(kinds: Collection[str], space: str) -> tuple[NeededRight, ...]:
    """What launching workloads of these kinds in this namespace asks for."""
    of_pods = {
        ("pods", "list"): "launched replicas are not found",
        ("pods", "watch"): "starts and ends of launched replicas are not seen",
        ("pods", "delete"): "launched replicas cannot be stopped in order",
        ("pods/log", "get"): "phases of loading and causes of an end are unknown",
    }
    rights = [
        NeededRight(KubernetesAction("", *done, space), lost, fix=_FROM_LAUNCHING)
        for done, lost in of_pods.items()
    ]
    leaving = "launched replicas on nodes that leave are not drained"
    nodes = (KubernetesAction("", "nodes", verb) for verb in _READ)
    rights += [NeededRight(action, leaving, fix=_FROM_BASE) for action in nodes]
    for kind, (base, plural) in KINDS.items():
        used = kind in kinds
        of_earlier = f"what an earlier file launched as {kind} is not found"
        lost = f"replicas of kind {kind} cannot be run" if used else of_earlier
        for verb in _WRITE if used else ("list",):
            action = KubernetesAction(base.split("/")[2], plural, verb, space)
            rights.append(NeededRight(action, lost, fix=_FROM_LAUNCHING))
    return tuple(rights)


def _server(config: KubernetesConfig) -> KubernetesConfig:
    """How a config reaches its API server, without what it reads there: parts can be compared."""
    return KubernetesConfig(
        kubeconfig=config.kubeconfig,
        context=config.context,
        api_url=config.api_url,
        token_file=config.token_file,
        ca_file=config.ca_file,
    )


__all__ = [
    "KubernetesAction",
    "NeededRight",
    "PartRights",
    "launch_rights",
    "lease_rights",
    "rights_of_file",
    "source_rights",
]
