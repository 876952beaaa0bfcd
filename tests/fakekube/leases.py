"""Leases of an API server: created once, replaced only by who names the version that is there."""

import threading
import time
from typing import Any

from fakekube.discovery import status_of
from fakekube.objects import stamp

Json = dict[str, Any]

PREFIX = ["apis", "coordination.k8s.io", "v1", "namespaces"]


class Leases:
    """The leases of all namespaces, by namespace and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], Json] = {}
        self._version = 1_000

    def answer(self, method: str, parts: list[str], body: Json | None) -> tuple[int, Json]:
        """Status and body for a request below ``/apis/coordination.k8s.io/v1/namespaces``."""
        namespace, _, *rest = parts
        name = rest[0] if rest else str(((body or {}).get("metadata") or {}).get("name") or "")
        key = (namespace, name)
        with self._lock:
            known = self._kept.get(key)
            if method == "POST" and known is not None:
                return 409, status_of(409, f'leases.coordination.k8s.io "{name}" already exists')
            if method != "POST" and known is None:
                return 404, status_of(404, f'leases.coordination.k8s.io "{name}" not found')
            if method == "GET":
                assert known is not None
                return 200, known
            assert body is not None
            told = body["metadata"].get("resourceVersion")
            if known is not None and told and told != known["metadata"]["resourceVersion"]:
                return 409, status_of(409, "the object has been modified")
            self._version += 1
            marks = {"namespace": namespace, "name": name, "resourceVersion": str(self._version)}
            made = {"uid": f"uid-{namespace}-{name}", "creationTimestamp": stamp(time.time())}
            first = made if known is None else known["metadata"]
            self._kept[key] = {
                "kind": "Lease",
                "apiVersion": "coordination.k8s.io/v1",
                **body,
                "metadata": {**first, **body["metadata"], **marks},
            }
            return (201 if method == "POST" else 200), self._kept[key]
