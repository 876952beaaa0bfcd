"""The workload of one replica that control launches on Kubernetes.

It has the pod template of ``holdfast render kubernetes``: probes, its way to end, its resources.
What differs is that there is one workload for each replica, which takes its command and its
environment from control's order, so that a replica of an earlier revision comes back as it was.
"""

from typing import Any, Final

import orjson
from pydantic import ValidationError

from holdfast.config.fleet_file import FleetFile
from holdfast.config.launch import LaunchSection
from holdfast.config.platforms.kubernetes import ENGINE_PORT_DEFAULT
from holdfast.core.types import ConfigError
from holdfast.manifests.istio import resource_name
from holdfast.manifests.pod_resources import resources_of
from holdfast.manifests.pod_template import PodPlan, leader_template, worker_template
from holdfast.manifests.workload_file import WorkloadSection
from holdfast.ports import LaunchError, Order

REPLICA: Final = "holdfast.dev/replica"  # the label by which a workload knows its own pod
_LABEL_MAX: Final = 63
_ZONE: Final = "topology.kubernetes.io/zone"


def launched_workload(file: FleetFile, order: Order, zone: str = "") -> dict[str, Any]:
    """Build the workload that runs one replica; ``LaunchError`` where the file does not fit it.

    ``zone`` is where the replica should be: a wish, so that a full zone does not stop it.
    """
    name = order.note.get("model", "")
    model = next((one for one in file.models if one.name == name), None)
    if model is None:
        raise LaunchError(f"the model {name!r} of {order.replica_id} is not in the fleet file")
    if len(order.replica_id) > _LABEL_MAX:
        told = f"{order.replica_id!r} is longer than the {_LABEL_MAX} characters of a label"
        raise LaunchError(f"{told}: give the model a shorter name, and set served_as to this one")
    try:
        launch = LaunchSection.model_validate_json(orjson.dumps(dict(order.platform)))
        workload = _section(name, launch)
        resources = resources_of(workload, model.engine, 0)
    except (ConfigError, ValidationError) as error:
        raise LaunchError(
            f"{order.replica_id} cannot be described to Kubernetes: {error}"
        ) from error
    plan = PodPlan(
        file=file,
        cluster=file.kubernetes,
        model=model,
        workload=workload,
        name=resource_name(name),
        port=workload.port or ENGINE_PORT_DEFAULT,
        resources=resources,
        index=0,
        replica=order.replica_id,
        words=order.command,
        variables=order.environment,
    )
    template = leader_template(plan)
    _prefer_zone(template["spec"], zone)
    return _workload(plan, template)


def _section(model: str, launch: LaunchSection) -> WorkloadSection:
    pod = launch.kubernetes
    if pod is None:
        raise LaunchError(f"launch.kubernetes of {model} is missing")
    said = {key: getattr(pod, key) for key in type(pod).model_fields}
    if "run_as" not in pod.model_fields_set:
        said["run_as"] = None  # an order of before this key: its pod comes back as it was
    cpus = launch.cpus or None
    return WorkloadSection(model=model, launch=launch, spares=0, cpus=cpus, **said)


def _prefer_zone(spec: dict[str, Any], zone: str) -> None:
    if not zone:
        return
    wish = {"matchExpressions": [{"key": _ZONE, "operator": "In", "values": [zone]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
        {"weight": 100, "preference": wish}
    ]


def _workload(plan: PodPlan, template: dict[str, Any]) -> dict[str, Any]:
    """One replica, and its pod replaced rather than doubled: two would need twice the devices."""
    meta = {
        "name": resource_name(plan.replica),
        "namespace": plan.cluster.namespace,
        "labels": plan.selector,
    }
    own = {REPLICA: plan.replica}
    template["metadata"]["labels"] |= own
    if plan.workload.kind == "leaderworkerset":
        hosts = plan.workload.hosts
        worker = worker_template(plan) if hosts > 1 else template
        inside = {
            "size": hosts,
            "restartPolicy": "RecreateGroupOnPodRestart",  # a half replica answers nobody
            "leaderTemplate": template,
            "workerTemplate": worker,
        }
        spec: dict[str, Any] = {"replicas": 1, "startupPolicy": "LeaderCreated"}
        api = "leaderworkerset.x-k8s.io/v1"
        spec["leaderWorkerTemplate"] = inside
        return {"apiVersion": api, "kind": "LeaderWorkerSet", "metadata": meta, "spec": spec}
    spec = {"replicas": 1, "selector": {"matchLabels": own}, "template": template}
    if plan.workload.kind == "statefulset":
        spec |= {"serviceName": plan.name, "updateStrategy": {"type": "OnDelete"}}
        kind = "StatefulSet"
    else:
        spec |= {"strategy": {"type": "Recreate"}, "revisionHistoryLimit": 0}
        kind = "Deployment"
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}


__all__ = ["launched_workload"]
