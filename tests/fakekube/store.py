"""What the fake API server holds, with a history that watches are served from and that expires."""

import base64
import copy
import json
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from fakekube.custom import CUSTOM, api_version
from fakekube.selectors import fits

Json = dict[str, Any]
Selector = str

HISTORY_MAX = 10_000
PAGES_MAX = 64

# plural: (kind, namespaced, short names, verbs)
RESOURCES: dict[str, tuple[str, bool, list[str]]] = {
    "namespaces": ("Namespace", False, ["ns"]),
    "nodes": ("Node", False, ["no"]),
    "pods": ("Pod", True, ["po"]),
    "events": ("Event", True, ["ev"]),
    **{name: (kind, True, []) for name, (kind, _) in CUSTOM.items()},
    "deployments": ("Deployment", True, ["deploy"]),
    "replicasets": ("ReplicaSet", True, ["rs"]),
    "statefulsets": ("StatefulSet", True, ["sts"]),
    "leaderworkersets": ("LeaderWorkerSet", True, ["lws"]),
}
# The API of each kind that is not of the core's.
APPS = "apps/v1"
LWS = "leaderworkerset.x-k8s.io/v1"
API_OF = {"deployments": APPS, "replicasets": APPS, "statefulsets": APPS, "leaderworkersets": LWS}


def api_of(resource: str) -> str:
    """The apiVersion of a kind of object."""
    return API_OF.get(resource) or api_version(resource)


# Not in an API server's watch cache, which is who sends bookmarks.
UNMARKED = frozenset({"events"})


class GoneError(Exception):
    """What is asked for is older than what is kept."""


@dataclass
class Change:
    version: int
    resource: str
    what: str  # ADDED, MODIFIED, DELETED or BOOKMARK
    key: tuple[str, str]
    thing: Json
    before: Json | None = None  # what it replaced


@dataclass
class Objects:
    """Everything, under one lock; ``changed`` wakes up watches."""

    version: int = 100
    oldest: int = 100  # a watch from before this cannot be served
    things: dict[str, dict[tuple[str, str], Json]] = field(
        default_factory=lambda: {name: {} for name in RESOURCES}
    )
    history: deque[Change] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))
    changed: threading.Condition = field(default_factory=threading.Condition)
    pages: OrderedDict[str, tuple[int, list[Json]]] = field(default_factory=OrderedDict)
    uids: int = 0

    def put(self, resource: str, thing: Json) -> Json:
        """Add it, or replace it."""
        with self.changed:
            thing = copy.deepcopy(thing)
            meta = thing["metadata"]
            if RESOURCES[resource][1]:
                meta.setdefault("namespace", "default")
            key = (meta.get("namespace", ""), meta["name"])
            known = self.things[resource].get(key)
            if "uid" not in meta:
                self.uids += 1
                meta["uid"] = known["metadata"]["uid"] if known else f"uid-{self.uids:04d}"
            self._change(resource, "MODIFIED" if known else "ADDED", key, thing, known)
            self.things[resource][key] = thing
            return copy.deepcopy(thing)

    def patch(self, resource: str, key: tuple[str, str], change: Json) -> Json:
        """Merge into it, as a JSON merge patch does."""
        with self.changed:
            return self.put(resource, _merged(self.things[resource][key], change))

    def delete(self, resource: str, key: tuple[str, str]) -> None:
        with self.changed:
            known = self.things[resource].pop(key)
            self._change(resource, "DELETED", key, copy.deepcopy(known), known)

    def bookmark(self) -> None:
        """Let every watch know how far it is."""
        with self.changed:
            self.version += 1
            for resource in RESOURCES.keys() - UNMARKED:
                shell = {"metadata": {"resourceVersion": str(self.version)}}
                self.history.append(Change(self.version, resource, "BOOKMARK", ("", ""), shell))
            self.changed.notify_all()

    def expire(self) -> None:
        """Forget all history: whoever comes back with an older version must list again."""
        with self.changed:
            self.version += 10
            self.oldest = self.version
            self.history.clear()
            self.pages.clear()
            self.changed.notify_all()

    def _change(
        self,
        resource: str,
        what: str,
        key: tuple[str, str],
        thing: Json,
        before: Json | None = None,
    ) -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.history.append(Change(self.version, resource, what, key, thing, before))
        self.changed.notify_all()

    # --- reading ---------------------------------------------------------------------------------

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        with self.changed:
            return copy.deepcopy(self.things[resource].get((namespace, name)))

    def chosen(self, resource: str, namespace: str, query: dict[str, str]) -> list[Json]:
        with self.changed:
            found = sorted(self.things[resource].items())
            return [
                copy.deepcopy(thing)
                for key, thing in found
                if (not namespace or key[0] == namespace) and fits(thing, query)
            ]

    def page(
        self, resource: str, namespace: str, query: dict[str, str]
    ) -> tuple[int, list[Json], str]:
        """Version, items, and how to ask for what follows them."""
        with self.changed:
            token = query.get("continue", "")
            if token:
                if token not in self.pages:
                    raise GoneError
                version, rest = self.pages[token]
            elif self._is_past(query):
                raise GoneError
            else:
                version, rest = self.version, self.chosen(resource, namespace, query)
            limit = int(query.get("limit") or 0) or len(rest)
            follows = ""
            if rest[limit:]:
                said = {"v": version, "n": len(self.pages), "at": rest[limit]["metadata"]["name"]}
                follows = base64.b64encode(json.dumps(said).encode()).decode()
                self.pages[follows] = (version, rest[limit:])
                while len(self.pages) > PAGES_MAX:
                    self.pages.popitem(last=False)
            return version, rest[:limit], follows

    def _is_past(self, query: dict[str, str]) -> bool:
        """Whether exactly a version is asked for that was compacted away."""
        exact = query.get("resourceVersionMatch") == "Exact"
        return exact and int(query.get("resourceVersion") or 0) < self.oldest

    def since(self, resource: str, version: int) -> list[Change]:
        """What happened after a version; under the lock. GoneError where nobody knows any more."""
        if version < self.oldest:
            raise GoneError
        return [one for one in self.history if one.resource == resource and one.version > version]


def _merged(old: Any, change: Any) -> Any:
    if not isinstance(change, dict) or not isinstance(old, dict):
        return copy.deepcopy(change)
    made = dict(old)
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(old.get(name), value)
    return made


__all__ = ["API_OF", "RESOURCES", "UNMARKED", "Change", "GoneError", "Objects", "api_of"]
