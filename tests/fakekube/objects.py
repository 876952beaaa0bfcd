"""Objects as a Kubernetes API server gives them, with what a test cares about as arguments."""

import time
from typing import Any

Json = dict[str, Any]


def stamp(at: float) -> str:
    """A time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def node(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    cpu: str = "16",
    memory: str = "64Gi",
    gpus: int = 0,
    ready: bool = True,
    created_at: float = 1_000_000.0,
    **status: Any,
) -> Json:
    allocatable: Json = {"cpu": cpu, "memory": memory, "pods": "110"}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    conditions = [
        {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
        {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "KubeletReady" if ready else "KubeletNotReady",
            "message": "" if ready else "container runtime is down",
            "lastTransitionTime": stamp(created_at + 60),
            "lastHeartbeatTime": stamp(created_at + 120),
        },
    ]
    info = {
        "architecture": "arm64",
        "bootID": "b-1",
        "containerRuntimeVersion": "containerd://2.0",
        "kernelVersion": "6.8",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.33.1",
        "machineID": "m-1",
        "operatingSystem": "linux",
        "osImage": "Linux",
        "systemUUID": "s-1",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "creationTimestamp": stamp(created_at),
        },
        "spec": {},
        "status": {
            "allocatable": allocatable,
            "capacity": dict(allocatable),
            "conditions": conditions,
            "nodeInfo": info,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            **status,
        },
    }


def pod(
    name: str,
    *,
    namespace: str = "default",
    model: str = "",
    labels: dict[str, str] | None = None,
    host: str = "node-1",
    ip: str = "10.1.0.1",
    phase: str = "Running",
    ready: bool = True,
    cpu: str = "2",
    memory: str = "8Gi",
    gpus: int = 0,
    restarts: int = 0,
    image: str = "vllm:1",
    created_at: float = 1_000_000.0,
    **spec: Any,
) -> Json:
    requests: Json = {"cpu": cpu, "memory": memory}
    limits: Json = {"memory": memory}
    if gpus:
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = str(gpus)
    running = {"running": {"startedAt": stamp(created_at + 5)}}
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    named = {"app.kubernetes.io/name": model} if model else {}
    made: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**named, **(labels or {})},
            "creationTimestamp": stamp(created_at),
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "resources": {"requests": requests, "limits": limits},
                    "ports": [{"containerPort": 8000, "name": "http", "protocol": "TCP"}],
                }
            ],
            **({"nodeName": host} if host else {}),
            **spec,
        },
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "status": "True" if host else "False"},
                {"type": "Ready", "status": "True" if ready and phase == "Running" else "False"},
            ],
            "startTime": stamp(created_at + 1),
        },
    }
    if ip and phase == "Running":
        made["status"] |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    if host:
        made["status"]["containerStatuses"] = [
            {
                "name": "main",
                "image": image,
                "imageID": f"{image}@sha256:0",
                "ready": ready,
                "started": ready,
                "restartCount": restarts,
                "state": running if phase == "Running" else waiting,
                "lastState": {},
            }
        ]
    return made


def event(
    name: str,
    reason: str,
    message: str,
    *,
    about: str,
    namespace: str = "default",
    kind: str = "Pod",
    at: float = 1_000_100.0,
    count: int = 1,
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": stamp(at)},
        "involvedObject": {"kind": kind, "namespace": namespace, "name": about, "apiVersion": "v1"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet"},
        "firstTimestamp": stamp(at),
        "lastTimestamp": stamp(at),
        "count": count,
    }


def killed_for_memory(made: Json, at: float = 1_000_200.0, restarts: int = 1) -> Json:
    """What a pod's status says after the kernel killed its container and it was started anew."""
    status = dict(made["status"]["containerStatuses"][0])
    ended = {
        "reason": "OOMKilled",
        "exitCode": 137,
        "startedAt": stamp(at - 60),
        "finishedAt": stamp(at),
    }
    status |= {"restartCount": restarts, "lastState": {"terminated": ended}}
    return {"status": {"containerStatuses": [status]}}


__all__ = ["event", "killed_for_memory", "node", "pod", "stamp"]
