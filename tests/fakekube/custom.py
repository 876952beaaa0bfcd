"""Kinds that a cluster has only where somebody installed their definition (CRDs)."""

from typing import Any

Json = dict[str, Any]

NEW = "inference.networking.k8s.io"
OLD = "inference.networking.x-k8s.io"
# plural.group: (kind, version); all of them are in namespaces
CUSTOM: dict[str, tuple[str, str]] = {
    f"inferencepools.{NEW}": ("InferencePool", "v1"),
    f"inferencepools.{OLD}": ("InferencePool", "v1alpha2"),
    f"inferencemodels.{OLD}": ("InferenceModel", "v1alpha2"),
    f"inferenceobjectives.{OLD}": ("InferenceObjective", "v1alpha2"),
}


def api_version(resource: str) -> str:
    """What objects of a kind have as their apiVersion."""
    _, _, group = resource.partition(".")
    return f"{group}/{CUSTOM[resource][1]}" if resource in CUSTOM else "v1"


def named(parts: list[str]) -> list[str]:
    """A path below ``/apis`` as one of ``/api/v1``: the kind's name then has its group."""
    if len(parts) < 4:
        return []
    _, group, version, *rest = parts
    at = 2 if rest[:1] == ["namespaces"] and len(rest) > 2 else 0
    resource = f"{rest[at]}.{group}" if len(rest) > at else ""
    if CUSTOM.get(resource, ("", ""))[1] != version:
        return []
    return [*rest[:at], resource, *rest[at + 1 :]]


def pool(
    name: str,
    labels: dict[str, str],
    *ports: int,
    namespace: str = "default",
    group: str = NEW,
    **spec: Any,
) -> Json:
    """An InferencePool, as the group has it."""
    if group == NEW:
        said: Json = {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": f"{name}-epp", "port": {"number": 9002}},
        }
    else:
        said = {
            "selector": labels,
            "targetPortNumber": ports[0],
            "extensionRef": {"name": f"{name}-epp"},
        }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {**said, **spec}}


def of_pool(name: str, pool_name: str, namespace: str = "default", **spec: Any) -> Json:
    """An InferenceModel or InferenceObjective of a pool."""
    said = {"poolRef": {"group": NEW, "kind": "InferencePool", "name": pool_name}, **spec}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": said}


__all__ = ["CUSTOM", "NEW", "OLD", "api_version", "named", "of_pool", "pool"]
