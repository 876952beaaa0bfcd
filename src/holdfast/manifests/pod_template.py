"""The template of a replica's pods: its containers, probes, places and its way to end.

    init containers: readiness agent (a sidecar: it begins first and ends last)
    containers:      engine
      startup, liveness ─► the engine's own health page: only itself knows that it is dead
      readiness         ─► the agent: control's verdict, and *ready* while control is away
    end: deletion ─► control drains it at once; preStop waits for that; then SIGTERM; then grace

A verdict of Holdfast has no part in liveness: whatever control says or does not say, no kubelet
ends a process for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Protocol

from holdfast.config.fleet_file import FleetFile
from holdfast.config.models import ModelSection
from holdfast.core.deploy.platform_readiness import READINESS, VERDICT
from holdfast.core.types import ConfigError, require
from holdfast.engines import dialect
from holdfast.engines.launch_command import PYTHON, LaunchSpec, command_line, environment
from holdfast.manifests.pod_resources import PodResources
from holdfast.manifests.workload_file import WorkloadSection

NAME_LABEL: Final = "app.kubernetes.io/name"
ENGINE_PORT: Final = "engine"  # the name of the port, as Services have it
AGENT_PORT: Final = 8099
_PROBE_S: Final = 10  # between two probes of an engine
_PROBE_TIMEOUT_S: Final = 10  # a busy engine's page is slow, and busy is not dead
_DEAD_PROBES: Final = 6  # a minute without an answer of its own page
_READY_PROBE_S: Final = 5
_NOTICE_S: Final = 5  # from a deletion to the moment when no gateway sends anything new there
_END_S: Final = 30  # for the engine to end by itself, after SIGTERM
_CUDA: Final = "nvidia.com/cuda.runtime.major"
_DRIVER: Final = "nvidia.com/cuda.driver.major"
_PRODUCT: Final = "nvidia.com/gpu.product"
_ANNOTATIONS: Final = {
    "kubectl.kubernetes.io/default-container": "engine",
    "holdfast.dev/port": ENGINE_PORT,
}
_SHARED: Final = "/dev/shm"  # noqa: S108 - where processes of one host meet
_AGENT_USER: Final = 65_532  # nobody's, as images without a shell have it
_HOME: Final = "/home/engine"  # writable: caches of weights and of compiled kernels lie below it
_BOUNDED: Final = {
    "allowPrivilegeEscalation": False,
    "seccompProfile": {"type": "RuntimeDefault"},
}


class ClusterSettings(Protocol):
    """What the manifests of all models share: of a workloads file, or of the fleet file."""

    @property
    def namespace(self) -> str:
        """Where the pods are."""
        ...

    @property
    def control(self) -> str:
        """Where the readiness agent asks."""
        ...

    @property
    def agent_image(self) -> str:
        """The image of the readiness agent; empty: pods have none."""
        ...


@dataclass(slots=True, frozen=True)
class PodPlan:
    """Everything that the manifests of one model are made of."""

    file: FleetFile
    cluster: ClusterSettings
    model: ModelSection
    workload: WorkloadSection
    name: str  # of its resources
    port: int
    resources: PodResources
    index: int
    replica: str = ""  # the one replica that it is for, where control launches it
    words: tuple[str, ...] = ()  # its command, where control has made it; empty: made here
    variables: Mapping[str, str] = field(default_factory=dict)  # beside them

    @property
    def labels(self) -> dict[str, str]:
        """The labels of pods that are replicas."""
        verdict = {READINESS: VERDICT} if self.cluster.agent_image else {}
        return {**self.selector, **verdict, **self.workload.labels}

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which a workload knows its own pods; they never change."""
        return {NAME_LABEL: self.model.name, "app.kubernetes.io/part-of": "holdfast"}

    @property
    def prestop_s(self) -> int:
        """Seconds that a pod waits before its engine is told to end: the drain, and its notice."""
        drain = self.file.fleet.drain
        return ceil(_NOTICE_S + drain.deadline_s + drain.move_s)

    @property
    def grace_s(self) -> int:
        """Seconds from a pod's deletion to SIGKILL: above the drain and the engine's own end."""
        return self.prestop_s + _END_S


def leader_template(plan: PodPlan) -> dict[str, Any]:
    """The template of a pod that answers requests."""
    return {
        "metadata": {"labels": plan.labels, "annotations": dict(_ANNOTATIONS)},
        "spec": _spec(plan, _engine(plan), agent=True),
    }


def worker_template(plan: PodPlan) -> dict[str, Any]:
    """The template of a further host of a replica; nobody sends it requests."""
    container = _container(plan, plan.workload.worker_command)
    labels = {"app.kubernetes.io/component": f"{plan.name}-worker"}
    labels["app.kubernetes.io/part-of"] = "holdfast"
    return {"metadata": {"labels": labels}, "spec": _spec(plan, container, agent=False)}


def _spec(plan: PodPlan, container: dict[str, Any], *, agent: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": plan.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "topologySpreadConstraints": [
            _spread(plan, "topology.kubernetes.io/zone"),
            _spread(plan, "kubernetes.io/hostname"),
        ],
    }
    if agent and plan.cluster.agent_image:
        spec["initContainers"] = [_agent(plan)]
    spec["containers"] = [container]
    spec |= _place(plan)
    volumes = _volumes(plan)
    if volumes:
        spec["volumes"] = volumes
    return spec


# --- containers -----------------------------------------------------------------------------------


def _engine(plan: PodPlan) -> dict[str, Any]:
    container = _container(plan, _words(plan))
    probe = _probe(plan)
    load_s = plan.file.fleet.health.load_timeout_s
    container |= {
        "ports": [{"name": ENGINE_PORT, "containerPort": plan.port}],
        "startupProbe": {
            **probe,
            "periodSeconds": _PROBE_S,
            "timeoutSeconds": _PROBE_TIMEOUT_S,
            "failureThreshold": max(1, ceil(load_s / _PROBE_S)),
        },
        "livenessProbe": {
            **probe,
            "periodSeconds": _PROBE_S,
            "timeoutSeconds": _PROBE_TIMEOUT_S,
            "failureThreshold": _DEAD_PROBES,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": plan.prestop_s}}},
    }
    return container


def _container(plan: PodPlan, words: list[str]) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "engine",
        "image": plan.workload.image,
        "command": words,
        "env": _environment(plan),
        "resources": plan.resources.manifest(),
    }
    context = _security_context(plan.workload)
    if context:
        container["securityContext"] = context
    mounts: list[dict[str, Any]] = []
    if plan.workload.run_as:
        mounts.append({"name": "home", "mountPath": _HOME})
    if _shares(plan):
        mounts.append({"name": "shm", "mountPath": _SHARED})
    if plan.workload.claim is not None:
        place = {"mountPath": plan.workload.claim_path, "readOnly": True}
        mounts.append({"name": "weights", **place})
    if mounts:
        container["volumeMounts"] = mounts
    return container


def _security_context(workload: WorkloadSection) -> dict[str, Any]:
    """What an engine's processes may do; empty: what its image and its runtime say."""
    if workload.run_as is None and not workload.capabilities:
        return {}
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if workload.capabilities:
        capabilities["add"] = list(workload.capabilities)
    user: dict[str, Any] = {}
    if workload.run_as is not None:
        user = {"runAsNonRoot": workload.run_as > 0, "runAsUser": workload.run_as}
    return {**user, "capabilities": capabilities, **_BOUNDED}


def _words(plan: PodPlan) -> list[str]:
    if plan.words:
        return [word.replace(PYTHON, "python3") for word in plan.words]
    spec = _launch_spec(plan)
    try:
        words = command_line(dialect(plan.model.engine), spec)
    except ConfigError as error:
        field = f"workloads[{plan.index}].{error.field}"
        raise ConfigError(field, error.problem, error.fix) from error
    return [word.replace(PYTHON, "python3") for word in words]


def _launch_spec(plan: PodPlan) -> LaunchSpec:
    launch = plan.workload.launch
    fix = "remove it: the engine's own image has its own server"
    require(not launch.embedded, f"workloads[{plan.index}].launch.embedded", "is set", fix)
    return LaunchSpec(
        weights=launch.weights,
        served_as=plan.model.served_as or plan.model.name,
        host="0.0.0.0",  # noqa: S104 - of the pod's own network
        port=plan.port,
        tensor_parallel=launch.tensor_parallel,
        pipeline_parallel=launch.pipeline_parallel,
        context=launch.context,
        quantisation=launch.quantisation,
        memory_fraction=launch.memory_fraction,
        slots=launch.slots,
        threads=launch.threads,
        arguments=tuple(launch.arguments),
        command=tuple(launch.command),
        revision=plan.model.revision,
    )


def _environment(plan: PodPlan) -> list[dict[str, Any]]:
    launch = plan.workload.launch
    known: dict[str, str] = dict(plan.variables)
    if not plan.words:
        known = environment(dialect(plan.model.engine), _launch_spec(plan)) | launch.environment
    if plan.workload.run_as:  # whom the image need not know: libraries ask for name and home
        known = {"HOME": _HOME, "USER": "engine", **known}
    variables: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in sorted(known.items())
    ]
    secret = plan.workload.secret or f"{plan.name}-env"
    variables += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
        for name in launch.pass_env
    ]
    return variables


def _probe(plan: PodPlan) -> dict[str, Any]:
    """The engine's own page; where it has none, whether its port is open."""
    known = dialect(plan.model.engine)
    path = known.health_path or known.start_path
    if path is None:
        return {"tcpSocket": {"port": ENGINE_PORT}}
    return {"httpGet": {"path": path, "port": ENGINE_PORT}}


def _agent(plan: PodPlan) -> dict[str, Any]:
    control, replica = plan.cluster.control, plan.replica or "$(POD_NAME)"
    arguments = ["--url", control, "--model", plan.model.name, "--replica", replica]
    arguments += ["--listen", f"0.0.0.0:{AGENT_PORT}"]
    ready = {"httpGet": {"path": "/readyz", "port": AGENT_PORT}}
    return {
        "name": "readiness",
        "image": plan.cluster.agent_image,
        "restartPolicy": "Always",  # a sidecar: it begins before the engine and ends after it
        "command": ["holdfast", "readiness", *arguments],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [{"name": "readiness", "containerPort": AGENT_PORT}],
        "readinessProbe": {
            **ready,
            "periodSeconds": _READY_PROBE_S,
            "timeoutSeconds": _READY_PROBE_S,
            "failureThreshold": 2,  # the verdict was weighed already; one answer may be late
        },
        "resources": {
            "requests": {"cpu": "10m", "memory": "48Mi"},
            "limits": {"memory": "96Mi"},
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _AGENT_USER,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            **_BOUNDED,
        },
    }


# --- places ---------------------------------------------------------------------------------------


def _spread(plan: PodPlan, key: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",  # a zone without a free GPU must not block all
        "labelSelector": {"matchLabels": plan.selector},
    }


def _place(plan: PodPlan) -> dict[str, Any]:
    workload = plan.workload
    place: dict[str, Any] = {}
    selector = dict(workload.node_selector)
    if workload.gpu_product:
        selector[_PRODUCT] = workload.gpu_product
    if selector:
        place["nodeSelector"] = selector
    least = [(_CUDA, workload.cuda), (_DRIVER, workload.driver)]
    terms = [
        {"key": key, "operator": "Gt", "values": [str(version - 1)]}
        for key, version in least
        if version is not None
    ]
    if terms:
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        place["affinity"] = {"nodeAffinity": node}
    if plan.resources.gpus:
        place["tolerations"] = [
            {"key": workload.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}
        ]
    return place


def _shares(plan: PodPlan) -> bool:
    """Whether processes of one host meet in shared memory."""
    return plan.workload.launch.tensor_parallel > 1 or plan.resources.gpus > 1


def _volumes(plan: PodPlan) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = []
    if plan.workload.run_as:
        volumes.append({"name": "home", "emptyDir": {}})
    if _shares(plan):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if plan.workload.claim is not None:
        claim = {"claimName": plan.workload.claim, "readOnly": True}
        volumes.append({"name": "weights", "persistentVolumeClaim": claim})
    return volumes


__all__ = [
    "AGENT_PORT",
    "ENGINE_PORT",
    "NAME_LABEL",
    "ClusterSettings",
    "PodPlan",
    "leader_template",
    "worker_template",
]
