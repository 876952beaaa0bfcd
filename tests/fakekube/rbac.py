"""Roles and bindings of a manifest, as an API server applies them to one account."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class Right:
    """What may be done to one kind of object; in one namespace, or everywhere."""

    group: str
    resource: str  # with its subresource: pods/log
    verb: str
    namespace: str = ""  # empty: at the scope of the cluster, and so in each namespace

    def __str__(self) -> str:
        named = f"{self.group}/{self.resource}" if self.group else self.resource
        return f"{self.verb} {named}" + (f" in {self.namespace}" if self.namespace else "")

    def covers(self, asked: "Right") -> bool:
        same = (self.group, self.resource, self.verb) == (asked.group, asked.resource, asked.verb)
        return same and self.namespace in ("", asked.namespace)


def rights_of(documents: Iterable[Json], name: str, namespace: str) -> set[Right]:
    """All rights that a manifest's bindings give to a service account."""
    documents = list(documents)
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one["rules"]
        for one in documents
        if one["kind"] in {"ClusterRole", "Role"}
    }
    rights: set[Right] = set()
    for one in documents:
        if one["kind"] not in {"ClusterRoleBinding", "RoleBinding"}:
            continue
        own = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        if own not in one["subjects"]:
            continue
        scope = one["metadata"]["namespace"] if one["kind"] == "RoleBinding" else ""
        role = one["roleRef"]
        home = scope if role["kind"] == "Role" else ""
        for rule in roles[role["kind"], home, role["name"]]:
            rights |= {
                Right(group, resource, verb, scope)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return rights


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def right_for(path: str, query: dict[str, str], method: str = "GET") -> Right | None:
    """The right that a request takes; None: everybody may, such as to find out what there is."""
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return None
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if not rest or group == "authorization.k8s.io":
        return None
    if method != "GET":
        return Right(group, "/".join([rest[0], *rest[2:]]), _VERBS[method], namespace)
    if len(rest) == 1:
        watch = query.get("watch") in {"true", "1"}
        return Right(group, rest[0], "watch" if watch else "list", namespace)
    return Right(group, "/".join([rest[0], *rest[2:]]), "get", namespace)


def review(body: Json, rights: set[Right] | None) -> Json:
    """A SelfSubjectAccessReview with its answer; rights of None: everything."""
    told = body["spec"]["resourceAttributes"]
    part = f"/{told['subresource']}" if told.get("subresource") else ""
    resource = f"{told['resource']}{part}"
    asked = Right(told.get("group", ""), resource, told["verb"], told.get("namespace", ""))
    allowed = rights is None or any(one.covers(asked) for one in rights)
    return {**body, "status": {"allowed": allowed}}


def forbidden(right: Right, user: str) -> str:
    """A real server's words for a right that is missing."""
    where = f'in the namespace "{right.namespace}"' if right.namespace else "at the cluster scope"
    plain = right.resource.partition("/")[0]
    group = f".{right.group}" if right.group else ""
    return (
        f'{plain}{group} is forbidden: User "{user}" cannot {right.verb} resource '
        f'"{right.resource}" in API group "{right.group}" {where}'
    )


__all__ = ["Right", "forbidden", "review", "right_for", "rights_of"]
