"""Writes to workloads and pods, as an API server takes and refuses them.

Defaults, conflicts and refusals are those of the recordings of a real server; what they do not show
is left out and not guessed.
"""

import copy
import time
from typing import Any

from fakekube.discovery import status_of
from fakekube.objects import stamp
from fakekube.store import RESOURCES, Objects, _merged, api_of

Json = dict[str, Any]
Answer = tuple[int, Json]

WRITABLE = ("deployments", "statefulsets", "leaderworkersets", "pods")
APPLY = "application/apply-patch+yaml"


class Writes:
    """Takes POST, PUT, PATCH and DELETE of the kinds that are written by whoever asks."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._scaled_by: dict[str, tuple[str, str]] = {}  # uid: manager, subresource

    def answer(
        self,
        method: str,
        resource: str,
        namespace: str,
        rest: list[str],
        body: Json,
        query: dict[str, str],
        kind: str,
    ) -> Answer:
        with self._objects.changed:
            if method == "POST" and not rest:
                return self._create(resource, namespace, body, query)
            name = rest[0]
            known = self._objects.get(resource, namespace, name)
            if known is None:
                return 404, _missing(resource, name)
            if method == "POST" and resource == "pods" and rest[1:] == ["eviction"]:
                self._delete_pod(namespace, known, {})
                return 201, {**_success(), "code": 201}
            if method == "DELETE":
                return self._delete(resource, namespace, known, body)
            if method == "PUT":
                return self._replace(resource, namespace, known, body)
            if kind == APPLY:
                return self._apply(resource, known, body, query)
            if rest[1:] == ["scale"]:
                return self._scale(resource, namespace, known, body)
            return self._patch(resource, namespace, known, body)

    # --- creation --------------------------------------------------------------------------------

    def _create(self, resource: str, namespace: str, body: Json, query: dict[str, str]) -> Answer:
        kind = RESOURCES[resource][0]
        name = body["metadata"]["name"]
        if self._objects.get(resource, namespace, name) is not None:
            group = _group(resource)
            told = f'{resource}.{group} "{name}" already exists'
            details = {"name": name, "group": group, "kind": resource}
            return 409, status_of(409, told, reason="AlreadyExists", details=details)
        cause = _fault(body)
        if cause is not None:
            return 422, _invalid(resource, name, cause)
        made = _defaulted(copy.deepcopy(body))
        meta = {
            **made["metadata"],
            "namespace": namespace,
            "generation": 1,
            "creationTimestamp": stamp(time.time()),
        }
        first = {"kind": kind, "apiVersion": api_of(resource)}
        thing = {**first, **made, "metadata": meta, "status": {}}
        if query.get("dryRun") == "All":
            return 201, thing
        return 201, self._objects.put(resource, thing)

    # --- changes ---------------------------------------------------------------------------------

    def _conflict(self, resource: str, known: Json, meta: Json) -> Answer | None:
        """A write that names another version or another object than the one that is there."""
        name, group = known["metadata"]["name"], _group(resource)
        named = f'{resource}.{group} "{name}"' if group else f'{resource} "{name}"'
        version, uid = meta.get("resourceVersion"), meta.get("uid")
        details = {"name": name, "group": group, "kind": resource}
        if uid and uid != known["metadata"]["uid"]:
            told = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
            told = f"Operation cannot be fulfilled on {named}: {told}{known['metadata']['uid']}"
            return 409, status_of(409, told, details=details)
        if version and version != known["metadata"]["resourceVersion"]:
            told = (
                f"Operation cannot be fulfilled on {named}: the object has been modified; "
                "please apply your changes to the latest version and try again"
            )
            return 409, status_of(409, told, details=details)
        return None

    def _write(self, resource: str, known: Json, made: Json) -> Json:
        if made.get("spec") != known.get("spec"):
            made["metadata"]["generation"] = known["metadata"].get("generation", 1) + 1
        return self._objects.put(resource, made)

    def _replace(self, resource: str, namespace: str, known: Json, body: Json) -> Answer:
        refused = self._conflict(resource, known, body["metadata"])
        if refused is not None:
            return refused
        kept = ("uid", "creationTimestamp", "namespace", "generation")
        meta = {**body["metadata"], **{key: known["metadata"][key] for key in kept}}
        return 200, self._write(resource, known, {**body, "metadata": meta})

    def _patch(self, resource: str, namespace: str, known: Json, body: Json) -> Answer:
        meta = dict(body.get("metadata") or {})
        refused = self._conflict(resource, known, meta)
        if refused is not None:
            return refused
        change = {**body, "metadata": {k: v for k, v in meta.items() if k != "resourceVersion"}}
        made = _merged(known, change)
        cause = _fault(made)
        if cause is not None:
            return 422, _invalid(resource, known["metadata"]["name"], cause)
        if "replicas" in (body.get("spec") or {}):
            self._scaled_by[known["metadata"]["uid"]] = ("unknown", "")
        return 200, self._write(resource, known, made)

    def _scale(self, resource: str, namespace: str, known: Json, body: Json) -> Answer:
        wanted = body["spec"]["replicas"]
        made = _merged(known, {"spec": {"replicas": wanted}})
        thing = self._write(resource, known, made)
        self._scaled_by[known["metadata"]["uid"]] = ("unknown", "scale")
        keys = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        labels = known["spec"]["selector"]["matchLabels"]
        return 200, {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {key: thing["metadata"][key] for key in keys},
            "spec": {"replicas": wanted},
            "status": {
                "replicas": (known.get("status") or {}).get("replicas", 0),
                "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
            },
        }

    def _apply(self, resource: str, known: Json, body: Json, query: dict[str, str]) -> Answer:
        """Server-side apply of ``spec.replicas``, the one field whose manager is known here."""
        wanted = (body.get("spec") or {}).get("replicas")
        uid = known["metadata"]["uid"]
        manager, part = self._scaled_by.get(uid, ("", ""))
        differs = wanted is not None and wanted != known["spec"].get("replicas")
        if differs and manager not in ("", query.get("fieldManager")) and "force" not in query:
            who = f'conflict with "{manager}"'
            who += f' with subresource "{part}"' if part else ""
            told = f"{who} using {api_of(resource)}"
            cause = {"reason": "FieldManagerConflict", "message": told, "field": ".spec.replicas"}
            said = f"Apply failed with 1 conflict: {told}: .spec.replicas"
            return 409, status_of(409, said, details={"causes": [cause]})
        made = _merged(known, {key: value for key, value in body.items() if key == "spec"})
        if query.get("dryRun") == "All":
            return 200, made
        self._scaled_by[uid] = (query.get("fieldManager", ""), "")
        return 200, self._write(resource, known, made)

    # --- deletion --------------------------------------------------------------------------------

    def _delete(self, resource: str, namespace: str, known: Json, body: Json) -> Answer:
        refused = self._conflict(resource, known, (body or {}).get("preconditions") or {})
        if refused is not None:
            return refused
        if resource == "pods":
            return 200, self._delete_pod(namespace, known, body or {})
        self._objects.delete(resource, (namespace, known["metadata"]["name"]))
        return 200, _success()

    def _delete_pod(self, namespace: str, known: Json, options: Json) -> Json:
        """A pod on a node is told to end, and its kubelet removes it; a shorter grace holds."""
        meta, key = known["metadata"], (namespace, known["metadata"]["name"])
        own = known["spec"].get("terminationGracePeriodSeconds", 30)
        grace = options.get("gracePeriodSeconds", own)
        if "deletionGracePeriodSeconds" in meta:
            grace = min(grace, meta["deletionGracePeriodSeconds"])
        if not known["spec"].get("nodeName") or grace == 0:
            self._objects.delete("pods", key)
            return known
        marks = {
            "deletionTimestamp": stamp(time.time() + grace),
            "deletionGracePeriodSeconds": grace,
        }
        return self._objects.patch("pods", key, {"metadata": marks})


def _group(resource: str) -> str:
    return api_of(resource).partition("/")[0] if "/" in api_of(resource) else ""


def _success() -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _missing(resource: str, name: str) -> Json:
    group = _group(resource)
    named = f'{resource}.{group} "{name}"' if group else f'{resource} "{name}"'
    details = {"name": name, **({"group": group} if group else {}), "kind": resource}
    return status_of(404, f"{named} not found", details=details)


def _invalid(resource: str, name: str, cause: tuple[str, str]) -> Json:
    field, told = cause
    kind, group = RESOURCES[resource][0], _group(resource)
    causes = [{"reason": "FieldValueInvalid", "message": told, "field": field}]
    details = {"name": name, "group": group, "kind": kind, "causes": causes}
    said = f'{kind}.{group} "{name}" is invalid: {field}: {told}'
    return status_of(422, said, details=details)


def _templates(body: Json) -> list[tuple[str, Json]]:
    spec = body.get("spec") or {}
    if "template" in spec:
        return [("spec.template", spec["template"])]
    inside = spec.get("leaderWorkerTemplate") or {}
    names = ("leaderTemplate", "workerTemplate")
    return [(f"spec.leaderWorkerTemplate.{n}", inside[n]) for n in names if n in inside]


def _fault(body: Json) -> tuple[str, str] | None:
    """What an API server finds wrong with a template: its field and its words."""
    chosen = ((body.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    for where, template in _templates(body):
        labels = (template.get("metadata") or {}).get("labels") or {}
        if any(labels.get(key) != value for key, value in chosen.items()):
            told = f"Invalid value: {labels!r}: `selector` does not match template `labels`"
            return f"{where}.metadata.labels", told
        for index, container in enumerate(template["spec"]["containers"]):
            amounts = container.get("resources") or {}
            limits = amounts.get("limits") or {}
            for name, wanted in (amounts.get("requests") or {}).items():
                if "/" in name and str(wanted) != str(limits.get(name)):
                    told = f'Invalid value: "{wanted}": must be equal to {name} limit of '
                    field = f"{where}.spec.containers[{index}].resources.requests"
                    return field, f"{told}{limits.get(name)}"
    return None


def _defaulted(body: Json) -> Json:
    for _, template in _templates(body):
        spec = template["spec"]
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("terminationMessagePolicy", "File")
            container.setdefault("imagePullPolicy", "IfNotPresent")
            for port in container.get("ports") or ():
                port.setdefault("protocol", "TCP")
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", 30)
        spec.setdefault("dnsPolicy", "ClusterFirst")
        spec.setdefault("securityContext", {})
        spec.setdefault("schedulerName", "default-scheduler")
    if body["kind"] == "Deployment":
        spec = body["spec"]
        spec.setdefault("replicas", 1)
        spec.setdefault("strategy", {}).setdefault("type", "RollingUpdate")
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)
    return body


__all__ = ["WRITABLE", "Writes"]
