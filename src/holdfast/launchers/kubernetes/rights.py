"""The rights that the launcher uses, and a question to the API server which of them are missing."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from holdfast.launchers.kubernetes.client import ApiClient
from holdfast.launchers.kubernetes.workloads import KINDS

_REVIEW: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WRITES: Final = ("get", "list", "create", "patch", "delete")


@dataclass(slots=True, frozen=True)
class LaunchRight:
    """One thing that the launcher does to one kind of object."""

    group: str
    resource: str  # with its subresource: pods/log
    verb: str
    everywhere: bool = False  # not in one namespace: nodes are in none

    def __str__(self) -> str:
        """As RBAC has it: ``create deployments.apps``."""
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def needed_rights(kinds: Collection[str]) -> list[LaunchRight]:
    """All rights that launching workloads of these kinds takes."""
    rights = [LaunchRight("", "pods", verb) for verb in ("list", "watch", "delete")]
    rights.append(LaunchRight("", "pods/log", "get"))
    rights += [LaunchRight("", "nodes", verb, everywhere=True) for verb in ("list", "watch")]
    for kind, (base, plural) in KINDS.items():
        group = base.split("/")[2]
        verbs = _WRITES if kind in kinds else ("list",)  # what an earlier file launched is found
        rights += [LaunchRight(group, plural, verb) for verb in verbs]
    return rights


async def missing_rights(
    api: ApiClient, namespace: str, rights: Collection[LaunchRight]
) -> list[LaunchRight]:
    """Those of these rights that the account of this client does not have."""
    missing = []
    for right in rights:
        resource, _, part = right.resource.partition("/")
        asked = {"group": right.group, "resource": resource, "verb": right.verb}
        if part:
            asked["subresource"] = part
        if not right.everywhere:
            asked["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = await api.send("POST", _REVIEW, body)
        if not (answer.get("status") or {}).get("allowed"):
            missing.append(right)
    return missing


__all__ = ["LaunchRight", "missing_rights", "needed_rights"]
