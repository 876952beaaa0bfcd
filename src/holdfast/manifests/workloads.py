"""Deployments, StatefulSets and LeaderWorkerSets for models, with their Services and budgets.

For each workload: what runs its pods, a headless Service whose addresses are the replicas, and a
PodDisruptionBudget that lets as many be away at once as there are spares. Whoever adds replicas for
a while is left alone by a file that says nothing of ``replicas`` only; these manifests say it.
"""

import re
from typing import Any, Final

from holdfast.config.fleet_file import FleetFile
from holdfast.config.launch import check_launch
from holdfast.config.models import ModelSection
from holdfast.core.types import ConfigError, require
from holdfast.core.view.selectors import parse_selector
from holdfast.manifests.istio import resource_name
from holdfast.manifests.pod_resources import resources_of
from holdfast.manifests.pod_template import (
    ENGINE_PORT,
    NAME_LABEL,
    PodPlan,
    leader_template,
    worker_template,
)
from holdfast.manifests.workload_file import WorkloadFile, WorkloadSection

_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DEFAULT_PORT: Final = 8000
_AFTER_LOAD_S: Final = 300  # a rollout that has not moved for so long after a load has failed
_LEADER: Final = "leaderworkerset.sigs.k8s.io/worker-index"


def manifests(file: FleetFile, workloads: WorkloadFile) -> tuple[list[dict[str, Any]], list[str]]:
    """All manifests in the order in which they are to be applied, and notes on what is missing."""
    documents: list[dict[str, Any]] = []
    notes: list[str] = []
    names: dict[str, str] = {}
    for index, workload in enumerate(workloads.workloads):
        plan = _plan(file, workloads, workload, index)
        first = names.setdefault(plan.name, plan.model.name)
        problem = f"is {plan.model.name!r}, which has the same name in Kubernetes as {first!r}"
        own = first == plan.model.name
        require(own, f"workloads[{index}].model", problem, "rename one of the models")
        notes += plan.resources.notes
        level = workload.pod_security
        if level != "restricted":
            label = f"pod-security.kubernetes.io/enforce: {level}"
            notes.append(f"{plan.model.name} needs the label {label} on its namespace, or none")
        documents += [_service(plan), _workload(plan), _budget(plan)]
    return documents, notes


def _plan(
    file: FleetFile, workloads: WorkloadFile, workload: WorkloadSection, index: int
) -> PodPlan:
    by_name = {model.name: model for model in file.models}
    known = ", ".join(list(by_name)[:6])
    where = f"workloads[{index}]"
    problem = f"is {workload.model!r}, which is no model of the fleet file"
    require(workload.model in by_name, f"{where}.model", problem, f"use one of {known}")
    model = by_name[workload.model]
    try:
        check_launch(workload.launch, model.engine)
    except ConfigError as error:
        field = f"{where}.{error.field.removeprefix('model.')}"
        raise ConfigError(field, error.problem, error.fix) from error
    labelled = _LABEL.fullmatch(model.name) is not None
    problem = f"is {model.name!r}, which cannot be the value of a label: no pod would be found"
    fix = "rename the model to letters, digits, '-', '_' and '.', and set served_as to this"
    require(labelled, f"{where}.model", problem, fix)
    plan = PodPlan(
        file=file,
        cluster=workloads,
        model=model,
        workload=workload,
        name=resource_name(model.name),
        port=_port(model, workload, where),
        resources=resources_of(workload, model.engine, index),
        index=index,
    )
    _check_discovered(plan, where)
    return plan


def _port(model: ModelSection, workload: WorkloadSection, where: str) -> int:
    """The port of the engine: that of the workload, else the one that the fleet file looks at."""
    looked_at = model.discover.port if model.discover is not None else None
    if workload.port is None:
        return looked_at if isinstance(looked_at, int) else _DEFAULT_PORT
    problem = f"is {workload.port}, and the fleet file looks for its pods at {looked_at}"
    agree = not isinstance(looked_at, int) or looked_at == workload.port
    require(agree, f"{where}.port", problem, "use one number, or leave this one out")
    return workload.port


def _check_discovered(plan: PodPlan, where: str) -> None:
    """Refuse pods that the fleet file would not find: they would run, and get no requests."""
    rule = plan.model.discover
    if rule is None:
        return
    namespace = plan.cluster.namespace
    problem = f"is {namespace!r}, and the fleet file looks for {plan.model.name} in another"
    fits = rule.namespace in ("", namespace)
    require(fits, "namespace", problem, f"use {rule.namespace!r} in both")
    fits = not rule.selector or parse_selector(rule.selector)(plan.labels)
    problem = f"do not fit the selector of the fleet file, {rule.selector!r}"
    require(fits, f"{where}.labels", problem, "add the labels that it asks for")


# --- manifests ------------------------------------------------------------------------------------


def _metadata(plan: PodPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "namespace": plan.cluster.namespace,
        "labels": plan.selector,
    }


def _service(plan: PodPlan) -> dict[str, Any]:
    """A Service without an address of its own: its name stands for every ready pod."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan),
        "spec": {
            "clusterIP": "None",
            "selector": plan.selector,
            "ports": [{"name": ENGINE_PORT, "port": plan.port, "targetPort": ENGINE_PORT}],
        },
    }


def _workload(plan: PodPlan) -> dict[str, Any]:
    make = {
        "deployment": _deployment,
        "statefulset": _stateful_set,
        "leaderworkerset": _leader_worker_set,
    }
    return make[plan.workload.kind](plan)


def _deployment(plan: PodPlan) -> dict[str, Any]:
    spares = plan.workload.spares
    load_s = plan.file.fleet.health.load_timeout_s
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(plan),
        "spec": {
            "replicas": plan.workload.launch.replicas,
            "selector": {"matchLabels": plan.selector},
            # With spares no further GPU is needed to roll out; without one, one more is.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": min(1, spares), "maxSurge": 1 - min(1, spares)},
            },
            "minReadySeconds": int(plan.file.fleet.health.slow_start_s),
            "progressDeadlineSeconds": int(load_s) + _AFTER_LOAD_S,
            "template": leader_template(plan),
        },
    }


def _stateful_set(plan: PodPlan) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(plan),
        "spec": {
            "serviceName": plan.name,
            "replicas": plan.workload.launch.replicas,
            "selector": {"matchLabels": plan.selector},
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "minReadySeconds": int(plan.file.fleet.health.slow_start_s),
            "template": leader_template(plan),
        },
    }


def _leader_worker_set(plan: PodPlan) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(plan),
        "spec": {
            "replicas": plan.workload.launch.replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {
                    "maxUnavailable": max(1, min(1, plan.workload.spares)),
                    "maxSurge": 0,
                },
            },
            "leaderWorkerTemplate": {
                "size": plan.workload.hosts,
                "restartPolicy": "RecreateGroupOnPodRestart",  # a half replica answers nobody
                "leaderTemplate": leader_template(plan),
                "workerTemplate": worker_template(plan)
                if plan.workload.hosts > 1
                else leader_template(plan),
            },
        },
    }


def _budget(plan: PodPlan) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(plan),
        "spec": {
            "maxUnavailable": plan.workload.spares,
            "selector": {"matchLabels": plan.selector},
            # A pod that is not ready carries nothing: it must not keep a node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


__all__ = ["NAME_LABEL", "manifests"]
