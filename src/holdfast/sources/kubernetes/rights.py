"""The rights that Holdfast uses at a Kubernetes API server, and which of them an account lacks.

One list for the whole product: the shipped roles are compared with it by a test, and ``holdfast
doctor --rights`` asks the API server about each. A server answers such questions
(SelfSubjectAccessReview) to everybody who is known to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.inference_pools import GROUP, OLD_GROUP

_METRICS: Final = "metrics.k8s.io"
_LEASES: Final = "coordination.k8s.io"
_READ: Final = ("list", "watch")
_REVIEWS: Final = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(slots=True, frozen=True)
class NeededRight:
    """One verb on one kind of object, and what does not work without it."""

    group: str
    resource: str  # with its subresource: pods/log
    verb: str
    namespace: str = ""  # empty: at the scope of the cluster
    name: str = ""  # of the one object; empty: any
    without: str = ""  # what is lost
    needed: bool = True  # else it is optional

    def __str__(self) -> str:
        """In words of ``kubectl auth can-i``."""
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {kind}{where}"


def source_rights(config: KubernetesConfig) -> tuple[NeededRight, ...]:
    """What a source of this config asks for."""
    space = config.namespace
    hosts, usage = "hosts, zones and the state of nodes are unknown", "memory in use is unknown"
    late, silent = "lists replace it: changes are seen later", "reasons are those of pods alone"
    found = [
        NeededRight("", "pods", "list", space, "", "no pod is found"),
        NeededRight("", "pods", "watch", space, "", late),
        NeededRight("", "nodes", "list", "", "", hosts, needed=False),
        NeededRight("", "nodes", "watch", "", "", late, needed=False),
        *(NeededRight("", "events", verb, space, "", silent, needed=False) for verb in _READ),
        NeededRight(_METRICS, "nodes", "list", "", "", usage, needed=False),
        NeededRight(_METRICS, "pods", "list", space, "", usage, needed=False),
    ]
    if space:  # bound by namespace, so that only there it can be asked for
        told = "'holdfast logs REPLICA' is refused"
        found.append(NeededRight("", "pods/log", "get", space, "", told, needed=False))
    if config.inference_pools:
        found += _pool_rights(space)
    return tuple(found)


def _pool_rights(space: str) -> Iterable[NeededRight]:
    missing = "pods of inference pools are not found"
    names = "names of the pool's models are not compared with the fleet file"
    for verb in _READ:
        for group in (GROUP, OLD_GROUP):
            yield NeededRight(group, "inferencepools", verb, space, "", missing)
        for kind in ("inferencemodels", "inferenceobjectives"):
            yield NeededRight(OLD_GROUP, kind, verb, space, "", names, needed=False)


def lease_rights(namespace: str, name: str) -> tuple[NeededRight, ...]:
    """What controls that choose their leader by a Lease ask for; ``create`` can name no object."""
    told = "no control can lead"
    return (
        NeededRight(_LEASES, "leases", "create", namespace, "", told),
        NeededRight(_LEASES, "leases", "get", namespace, name, told),
        NeededRight(_LEASES, "leases", "update", namespace, name, told),
    )


async def lacking_rights(
    api: KubernetesApi, rights: Iterable[NeededRight]
) -> tuple[NeededRight, ...]:
    """Those that the API server would refuse to us; raises ``KubernetesApiError`` without it."""
    lacking = []
    for right in rights:
        resource, _, part = right.resource.partition("/")
        asked = {
            "group": right.group,
            "resource": resource,
            "verb": right.verb,
            "namespace": right.namespace,
            "name": right.name,
            "subresource": part,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        }
        answer = await api.send("POST", _REVIEWS, body)
        if not (answer.get("status") or {}).get("allowed"):
            lacking.append(right)
    return tuple(lacking)


__all__ = ["NeededRight", "lacking_rights", "lease_rights", "source_rights"]
