"""The leadership in a Lease object of a Kubernetes cluster, as its own controllers have it.

The API server has no clock for leases. Whether one has run out is judged by whoever wants it: its
record must not have changed for as long as it lasts, counted from when this process first saw it.
So a standby that has just started waits for a whole lease, however old the record says it is, and
clocks of machines need not agree. A write names the version that was read; the server refuses it
where somebody wrote in between, so that two standbys never both win.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.core.health.leadership import LeaseAnswer
from holdfast.ports import LeadershipStoreError
from holdfast.sources.kubernetes.api import Json, KubernetesApi, KubernetesApiError

_GROUP: Final = "/apis/coordination.k8s.io/v1"
_MISSING: Final = 404


class KubernetesLeadership:
    """The lease in a ``Lease`` object; it is made by the first claim."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._all = f"{_GROUP}/namespaces/{namespace}/leases"
        self._one = f"{self._all}/{name}"
        self._name = name
        self._clock = clock
        self._seen: tuple[str, float] | None = None  # its version, and when we first saw that

    async def claim(self, holder: str, lease_s: float) -> LeaseAnswer:
        """Take or renew the lease if nobody else holds it; returns who does."""
        try:
            found = await self._read()
            if found is None:
                return await self._write("POST", self._all, {}, {}, holder, lease_s)
            spec = _section(found, "spec")
            known, term = str(spec.get("holderIdentity") or ""), _term(spec)
            if known not in {"", holder} and not self._is_over(found, spec, lease_s):
                return LeaseAnswer(known, term, held=False)
            return await self._write("PUT", self._one, found, spec, holder, lease_s)
        except KubernetesApiError as error:
            raise LeadershipStoreError(str(error)) from error

    async def release(self, holder: str) -> None:
        """Give the lease back, if this holder has it: the next claim is granted."""
        try:
            found = await self._read()
            spec = _section(found or {}, "spec")
            if found is not None and spec.get("holderIdentity") == holder:
                given = {**found, "spec": {**spec, "holderIdentity": ""}}
                await self._api.send("PUT", self._one, given)
        except KubernetesApiError as error:
            raise LeadershipStoreError(str(error)) from error

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._api.close()

    async def _read(self) -> Json | None:
        try:
            found = await self._api.get(self._one)
        except KubernetesApiError as error:
            if error.status == _MISSING:
                return None
            raise
        if not isinstance(found, dict):
            raise KubernetesApiError("the lease is no object")
        return found

    def _is_over(self, found: Json, spec: Json, lease_s: float) -> bool:
        """Whether its holder has not renewed it for as long as it lasts, as we saw it ourselves."""
        version = str(_section(found, "metadata").get("resourceVersion") or "")
        now = self._clock()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        told = spec.get("leaseDurationSeconds")
        lasts = max(lease_s, float(told)) if isinstance(told, int) else lease_s
        return now - self._seen[1] >= lasts

    async def _write(
        self, method: str, path: str, found: Json, spec: Json, holder: str, lease_s: float
    ) -> LeaseAnswer:
        renews = spec.get("holderIdentity") == holder
        term = _term(spec) if renews else _term(spec) + 1
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people; nobody judges by it
        body: Json = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            **found,
            "metadata": {**_section(found, "metadata"), "name": self._name},
            "spec": {
                **spec,
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(lease_s)),
                "leaseTransitions": term,
                "renewTime": now,
                **({} if renews else {"acquireTime": now}),
            },
        }
        answer = _section(await self._api.send(method, path, body), "spec")
        if answer.get("holderIdentity") != holder:
            raise KubernetesApiError("the server answered with another holder than it was told")
        return LeaseAnswer(holder, _term(answer), held=True)


def _section(found: Json, name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _term(spec: Json) -> int:
    """The number of changes of holder; controllers count from zero, a term from one."""
    value = spec.get("leaseTransitions")
    return value if isinstance(value, int) and value >= 0 else 0


__all__ = ["KubernetesLeadership"]
