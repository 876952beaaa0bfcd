"""Joins the launcher of Kubernetes with the client of the Kubernetes source and with manifests."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from holdfast.config.fleet_file import FleetFile
from holdfast.config.platforms.kubernetes import KubernetesLaunchSection
from holdfast.core.deploy.pod_life import PodSight
from holdfast.launchers.kubernetes.client import ClusterAccess, Json, NodeSight, Watched
from holdfast.launchers.kubernetes.launcher import KubernetesLauncher
from holdfast.launchers.kubernetes.workloads import Workloads
from holdfast.manifests.launched_workload import launched_workload
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.nodes import read_node
from holdfast.sources.kubernetes.object_watch import ObjectWatch


def kubernetes_launcher(file: Callable[[], FleetFile], directory: Path) -> KubernetesLauncher:
    """Build the launcher for the cluster of the fleet file; ``file`` is asked at each start."""
    section = file().kubernetes
    cluster = cluster_access(kubernetes_config(section))
    workloads = Workloads(
        cluster.api,
        section.namespace,
        section.owner,
        lambda order, zone: launched_workload(file(), order, zone),
    )
    return KubernetesLauncher(cluster, workloads, directory)


def kubernetes_config(section: KubernetesLaunchSection) -> KubernetesConfig:
    """How the API server of a fleet file's section is reached."""
    return KubernetesConfig(
        kubeconfig=section.kubeconfig,
        context=section.context,
        api_url=section.api_url,
        token_file=section.token_file,
        ca_file=section.ca_file,
        namespace=section.namespace,
    )


def cluster_access(config: KubernetesConfig) -> ClusterAccess:
    """Give the launcher a client of an API server, and its watches of pods and nodes."""
    api = KubernetesApi(config)

    def watch_pods(
        path: str,
        selector: str,
        read: Callable[[Json], PodSight | None],
        changed: Callable[[], None],
    ) -> Watched[PodSight]:
        return ObjectWatch(
            "pods",
            path,
            read,
            api,
            config,
            limit=config.pods_max,
            changed=changed,
            chance=Random(),
            params={"labelSelector": selector},
        )

    def watch_nodes(changed: Callable[[], None]) -> Watched[NodeSight]:
        return ObjectWatch(
            "nodes",
            "/api/v1/nodes",
            _node_sight,
            api,
            config,
            limit=config.nodes_max,
            changed=changed,
            chance=Random(),
        )

    return ClusterAccess(api, watch_pods, watch_nodes)


def _node_sight(thing: Json) -> NodeSight:
    host = read_node(thing).host
    return NodeSight(host.condition, host.condition_reason)


__all__ = [
    "cluster_access",
    "kubernetes_config",
    "kubernetes_launcher",
]
