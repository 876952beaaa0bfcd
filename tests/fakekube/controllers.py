"""The controllers of a cluster, as far as launched workloads need them: workloads to pods.

    Deployment ─► ReplicaSet (by the hash of its template) ─► pods
    StatefulSet ─► pods with numbers          LeaderWorkerSet ─► a leader and its workers

What has an owner that is gone is deleted. Pods are told to end with their own grace, as Kubernetes
tells them; a kubelet removes them.
"""

import copy
import hashlib
import json
import threading
import time
from typing import Any, Self

from fakekube.objects import stamp
from fakekube.store import api_of

Json = dict[str, Any]

_OVER = ("Succeeded", "Failed")


def hash_of(template: Json) -> str:
    """A short hash of a template, as ``pod-template-hash`` has it."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


class Controllers:
    """``with Controllers(kube)``: a thread that does what Kubernetes' controllers do."""

    def __init__(self, kube: Any) -> None:
        self._kube = kube
        self._objects = kube.objects
        self._stopping = False
        self._names = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._objects.changed:
            self._stopping = True
            self._objects.changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        seen = -1
        changed = self._objects.changed
        while True:
            with changed:
                if self._objects.version == seen and not self._stopping:
                    changed.wait(1.0)
                if self._stopping:
                    return
                seen = self._objects.version
                self._reconcile()

    def _reconcile(self) -> None:
        things = self._objects.things
        for key, thing in list(things["deployments"].items()):
            self._deployment(key[0], thing)
        for key, thing in list(things["replicasets"].items()):
            self._replica_set(key[0], thing)
        for key, thing in list(things["statefulsets"].items()):
            self._numbered(key[0], thing, "statefulsets", thing["spec"]["template"], 1)
        for key, thing in list(things["leaderworkersets"].items()):
            inside = thing["spec"]["leaderWorkerTemplate"]
            leader = inside.get("leaderTemplate") or inside["workerTemplate"]
            self._numbered(key[0], thing, "leaderworkersets", leader, inside.get("size", 1))
        self._collect()

    # --- owners ----------------------------------------------------------------------------------

    def _collect(self) -> None:
        things = self._objects.things
        alive = {
            thing["metadata"]["uid"]
            for resource in ("deployments", "replicasets", "statefulsets", "leaderworkersets")
            for thing in things[resource].values()
        }
        for resource in ("replicasets", "pods"):
            for key, thing in list(things[resource].items()):
                owners = thing["metadata"].get("ownerReferences") or ()
                if owners and all(owner["uid"] not in alive for owner in owners):
                    self._end(resource, key, thing)

    def _end(self, resource: str, key: tuple[str, str], thing: Json) -> None:
        if resource != "pods":
            self._objects.delete(resource, key)
        elif "deletionTimestamp" not in thing["metadata"]:
            self._kube.writes._delete_pod(key[0], copy.deepcopy(thing), {})

    def _owned(self, resource: str, uid: str) -> list[tuple[tuple[str, str], Json]]:
        return [
            (key, thing)
            for key, thing in sorted(self._objects.things[resource].items())
            if any(one["uid"] == uid for one in thing["metadata"].get("ownerReferences") or ())
        ]

    def _reference(self, resource: str, thing: Json) -> Json:
        return {
            "apiVersion": api_of(resource),
            "kind": thing["kind"],
            "name": thing["metadata"]["name"],
            "uid": thing["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }

    # --- kinds -----------------------------------------------------------------------------------

    def _deployment(self, namespace: str, thing: Json) -> None:
        meta, spec = thing["metadata"], thing["spec"]
        mark = hash_of(spec["template"])
        sets = self._owned("replicasets", meta["uid"])
        fresh = next((one for _, one in sets if one["metadata"]["labels"].get(_HASH) == mark), None)
        if fresh is None:
            template = copy.deepcopy(spec["template"])
            template.setdefault("metadata", {}).setdefault("labels", {})[_HASH] = mark
            self._objects.put(
                "replicasets",
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "metadata": {
                        "name": f"{meta['name']}-{mark}",
                        "namespace": namespace,
                        "labels": dict(template["metadata"]["labels"]),
                        "annotations": {
                            "deployment.kubernetes.io/desired-replicas": str(spec["replicas"]),
                            "deployment.kubernetes.io/revision": str(len(sets) + 1),
                        },
                        "creationTimestamp": stamp(time.time()),
                        "generation": 1,
                        "ownerReferences": [self._reference("deployments", thing)],
                    },
                    "spec": {
                        "replicas": spec["replicas"],
                        "selector": {
                            "matchLabels": {**spec["selector"]["matchLabels"], _HASH: mark}
                        },
                        "template": template,
                    },
                    "status": {},
                },
            )
            return
        others = [(key, one) for key, one in sets if one is not fresh]
        pods = [pod for _, pod in self._owned("pods", fresh["metadata"]["uid"])]
        ready = sum(_is_ready(pod) for pod in pods)
        self._set_count("replicasets", namespace, fresh, spec["replicas"])
        for _, old in others:  # one goes for each new one that is ready
            self._set_count("replicasets", namespace, old, max(0, spec["replicas"] - ready))
        status = {
            "observedGeneration": meta.get("generation", 1),
            "replicas": len(pods),
            "updatedReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        self._set_status("deployments", namespace, thing, status)

    def _replica_set(self, namespace: str, thing: Json) -> None:
        pods = self._owned("pods", thing["metadata"]["uid"])
        active = [(key, pod) for key, pod in pods if _is_active(pod)]
        wanted = thing["spec"]["replicas"]
        for _ in range(len(active), wanted):
            self._names += 1
            name = f"{thing['metadata']['name']}-{self._names:05x}"
            self._make_pod(namespace, name, thing, "replicasets", thing["spec"]["template"], {})
        for key, pod in active[wanted:]:
            self._end("pods", key, pod)

    def _numbered(
        self, namespace: str, thing: Json, resource: str, template: Json, size: int
    ) -> None:
        """Pods with fixed names: the next of a name comes when the last has gone."""
        meta, wanted = thing["metadata"], thing["spec"].get("replicas", 1)
        owned = {key[1]: pod for key, pod in self._owned("pods", meta["uid"])}
        names: dict[str, tuple[Json, Json]] = {}
        for index in range(wanted):
            names[f"{meta['name']}-{index}"] = (template, _marks(resource, meta, index, 0))
            for worker in range(1, size):
                of_worker = thing["spec"]["leaderWorkerTemplate"]["workerTemplate"]
                marks = _marks(resource, meta, index, worker)
                names[f"{meta['name']}-{index}-{worker}"] = (of_worker, marks)
        for name, pod in owned.items():
            if name not in names or pod["status"].get("phase") in _OVER:
                self._end("pods", (namespace, name), pod)
        for name, (inside, marks) in names.items():
            if name not in owned:
                self._make_pod(namespace, name, thing, resource, inside, marks)
        status = {"replicas": wanted, "readyReplicas": sum(map(_is_ready, owned.values()))}
        self._set_status(resource, namespace, thing, status)

    # --- writes ----------------------------------------------------------------------------------

    def _make_pod(
        self, namespace: str, name: str, owner: Json, resource: str, template: Json, marks: Json
    ) -> None:
        inside = copy.deepcopy(template)
        meta = inside.get("metadata") or {}
        made = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **meta,
                "name": name,
                "namespace": namespace,
                "labels": {**(meta.get("labels") or {}), **marks},
                "creationTimestamp": stamp(time.time()),
                "generation": 1,
                "ownerReferences": [self._reference(resource, owner)],
            },
            "spec": inside["spec"],
            "status": {"phase": "Pending", "qosClass": "Burstable"},
        }
        self._objects.put("pods", made)

    def _set_count(self, resource: str, namespace: str, thing: Json, count: int) -> None:
        if thing["spec"]["replicas"] != count:
            key = (namespace, thing["metadata"]["name"])
            self._objects.patch(resource, key, {"spec": {"replicas": count}})

    def _set_status(self, resource: str, namespace: str, thing: Json, status: Json) -> None:
        if thing.get("status") != status:
            key = (namespace, thing["metadata"]["name"])
            self._objects.put(resource, {**self._objects.things[resource][key], "status": status})


_HASH = "pod-template-hash"


def _marks(resource: str, meta: Json, index: int, worker: int) -> Json:
    if resource == "statefulsets":
        return {"statefulset.kubernetes.io/pod-name": f"{meta['name']}-{index}"}
    return {
        "leaderworkerset.sigs.k8s.io/name": meta["name"],
        "leaderworkerset.sigs.k8s.io/group-index": str(index),
        "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
    }


def _is_active(pod: Json) -> bool:
    over = pod["status"].get("phase") in _OVER
    return not over and "deletionTimestamp" not in pod["metadata"]


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


__all__ = ["Controllers", "hash_of"]
