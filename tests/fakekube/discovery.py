"""The documents by which clients find their way, failures as Kubernetes words them, and tables."""

from typing import Any

from fakekube.custom import CUSTOM
from fakekube.store import API_OF, RESOURCES

Json = dict[str, Any]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_METRICS = "metrics.k8s.io"


def status_of(
    code: int, message: str = "", *, reason: str = "", details: Json | None = None
) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason or _REASONS.get(code, "Unknown"),
        **({"details": details} if details is not None else {}),
        "code": code,
    }


def documents(path: str, *, with_metrics: bool) -> Json | None:
    """The discovery document at a path."""
    if path == "/version":
        named = {"major": "1", "minor": "33", "gitVersion": "v1.33.1", "platform": "linux/amd64"}
        return {**named, "gitCommit": "0", "gitTreeState": "clean", "goVersion": "go1.24"}
    if path in {"/openapi/v2", "/swagger.json"}:
        info = {"title": "Kubernetes", "version": "v1.33.1"}
        return {"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}
    if path == "/openapi/v3":
        return {"paths": {}}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    version = {"groupVersion": f"{_METRICS}/v1beta1", "version": "v1beta1"}
    group = {"name": _METRICS, "versions": [version], "preferredVersion": version}
    if path == "/apis":
        groups = [group] if with_metrics else []
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/api/v1":
        own = API_OF.keys() | CUSTOM.keys()
        rows = [_row(plural) for plural in RESOURCES if plural not in own]
        rows.append({**_row("pods"), "name": "pods/log", "shortNames": [], "verbs": ["get"]})
        return {"kind": "APIResourceList", "groupVersion": "v1", "resources": rows}
    if path == f"/apis/{_METRICS}/v1beta1" and with_metrics:
        rows = [
            {"name": "nodes", "kind": "NodeMetrics", "namespaced": False, "verbs": ["get", "list"]},
            {"name": "pods", "kind": "PodMetrics", "namespaced": True, "verbs": ["get", "list"]},
        ]
        return {
            "kind": "APIResourceList",
            "groupVersion": f"{_METRICS}/v1beta1",
            "resources": [{"singularName": "", **row} for row in rows],
        }
    return None


def _row(plural: str) -> Json:
    kind, namespaced, short = RESOURCES[plural]
    return {
        "name": plural,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": namespaced,
        "shortNames": short,
        "verbs": ["get", "list", "watch"],
    }


def table_of(resource: str, items: list[Json], version: str, follows: str = "") -> Json:
    """What kubectl prints: columns chosen by the server."""
    columns, cells = _TABLES[resource]
    definitions = [
        {"name": name, "type": "string", "format": "", "description": name, "priority": 0}
        for name in columns
    ]
    rows = [
        {
            "cells": cells(item),
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"],
            },
        }
        for item in items
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version, **({"continue": follows} if follows else {})},
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _pod_cells(item: Json) -> list[str]:
    status = item.get("status", {})
    inside = status.get("containerStatuses") or []
    ready = sum(bool(one.get("ready")) for one in inside)
    shown = status.get("phase", "")
    for one in inside:
        waiting = (one.get("state") or {}).get("waiting") or {}
        shown = waiting.get("reason") or shown
    if item["metadata"].get("deletionTimestamp"):
        shown = "Terminating"
    restarts = str(sum(one.get("restartCount", 0) for one in inside))
    total = len(item["spec"]["containers"])
    return [item["metadata"]["name"], f"{ready}/{total}", shown, restarts, "1d"]


def _node_cells(item: Json) -> list[str]:
    ready = any(
        one["type"] == "Ready" and one["status"] == "True" for one in item["status"]["conditions"]
    )
    version = item["status"]["nodeInfo"]["kubeletVersion"]
    return [item["metadata"]["name"], "Ready" if ready else "NotReady", "<none>", "1d", version]


_TABLES: dict[str, tuple[list[str], Any]] = {
    "pods": (["Name", "Ready", "Status", "Restarts", "Age"], _pod_cells),
    "nodes": (["Name", "Status", "Roles", "Age", "Version"], _node_cells),
    "events": (
        ["Last Seen", "Type", "Reason", "Object", "Message"],
        lambda item: [
            "1m",
            item["type"],
            item["reason"],
            f"{item['involvedObject']['kind'].lower()}/{item['involvedObject']['name']}",
            item["message"],
        ],
    ),
    "namespaces": (
        ["Name", "Status", "Age"],
        lambda item: [item["metadata"]["name"], item["status"]["phase"], "1d"],
    ),
}

__all__ = ["documents", "status_of", "table_of"]
