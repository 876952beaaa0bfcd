"""The workloads that Holdfast owns on a cluster: made, woken, put to sleep, and removed.

    create ─► awake (1 replica) ◄─ wake ─► asleep (0 replicas, with how it ended) ─ remove ─► gone

Each is marked with its owner, its replica and its order. Nothing without the owner's mark is ever
changed: what has the name of a replica and belongs to somebody else is an error that says so. Every
change names the version that was read, so that of two writers one is refused (409) and looks again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog

from holdfast.core.deploy.pod_life import PodLife
from holdfast.launchers.kubernetes.client import ApiClient, Json
from holdfast.launchers.kubernetes.pod_reader import REPLICA
from holdfast.ports import Ended, LaunchError, NoRoomError, Order, UnreadableError

OWNER: Final = "holdfast.dev/owner"  # a label: which Holdfast may change and remove it
ORDER: Final = "holdfast.dev/order"  # an annotation: what it was made for
ENDED: Final = "holdfast.dev/ended"  # an annotation: how it ended, while it waits for a start

MERGE: Final = "application/merge-patch+json"
_APPS: Final = "/apis/apps/v1"
_LWS: Final = "/apis/leaderworkerset.x-k8s.io/v1"
# Which API and which path the kinds of workloads have.
KINDS: Final = {
    "Deployment": (_APPS, "deployments"),
    "StatefulSet": (_APPS, "statefulsets"),
    "LeaderWorkerSet": (_LWS, "leaderworkersets"),
}
_TRIES: Final = 5  # of one change against other writers; a controller writes the status only
_PAGE: Final = "250"
_MISSING: Final = 404
_CONFLICT: Final = 409
_WRONG: Final = (400, 413, 415, 422)  # what is asked for is wrong, and will be the next time

_log = structlog.get_logger("holdfast.launcher.kubernetes")


class WorkloadGoneError(Exception):
    """A workload was removed by somebody else, or is another one of the same name."""


@dataclass(slots=True)
class Workload:
    """One workload of ours, as it was read or written last."""

    kind: str
    name: str
    uid: str
    version: str
    replicas: int
    order: Order
    ended: tuple[PodLife | None, Ended] | None = None  # while it waits for a start


class Workloads:
    """Writes the workloads of one owner in one namespace."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        owner: str,
        make: Callable[[Order, str], Json],
    ) -> None:
        """``make`` builds the manifest of an order for a zone."""
        self._api = api
        self._namespace = namespace
        self._owner = owner
        self._make = make

    @property
    def pods_path(self) -> str:
        """The path of the namespace's pods."""
        return f"/api/v1/namespaces/{self._namespace}/pods"

    @property
    def selector(self) -> str:
        """Chooses what is ours."""
        return f"{OWNER}={self._owner}"

    def _path(self, kind: str, name: str = "") -> str:
        base, plural = KINDS[kind]
        return f"{base}/namespaces/{self._namespace}/{plural}" + (f"/{name}" if name else "")

    # --- reading ---------------------------------------------------------------------------------

    async def owned(self) -> list[Workload]:
        """All workloads of this owner; kinds that the cluster does not know are left out."""
        found: list[Workload] = []
        for kind in KINDS:
            params = {"labelSelector": self.selector, "limit": _PAGE}
            while True:
                try:
                    page = await self._api.get(self._path(kind), params)
                except UnreadableError as error:
                    if error.status == _MISSING and kind == "LeaderWorkerSet":
                        break  # its controller is not installed
                    raise
                for item in page.get("items") or ():
                    workload = self._read(kind, item)
                    if workload is not None:
                        found.append(workload)
                follows = (page.get("metadata") or {}).get("continue")
                if not follows:
                    break
                params["continue"] = str(follows)
        return found

    def _read(self, kind: str, thing: Json) -> Workload | None:
        """A workload of ours; None: it is being deleted, or has no order that can be read."""
        meta = thing["metadata"]
        if meta.get("deletionTimestamp"):
            return None
        notes = meta.get("annotations") or {}
        try:
            order = order_of(orjson.loads(notes[ORDER]))
            ended = end_of(orjson.loads(notes[ENDED])) if ENDED in notes else None
        except (KeyError, TypeError, ValueError) as error:
            _log.error("workload not understood", name=meta.get("name"), reason=str(error)[:200])
            return None
        replicas = (thing.get("spec") or {}).get("replicas", 1)
        version = str(meta.get("resourceVersion") or "")
        return Workload(kind, meta["name"], str(meta["uid"]), version, replicas, order, ended)

    def _is_ours(self, thing: Json, replica_id: str) -> bool:
        labels = thing["metadata"].get("labels") or {}
        return labels.get(OWNER) == self._owner and labels.get(REPLICA) == replica_id

    # --- writing ---------------------------------------------------------------------------------

    async def create(self, order: Order, zone: str) -> Workload:
        """Make the workload of an order; ``LaunchError`` where its name is somebody else's."""
        body = self._marked(self._make(order, zone), order)
        kind, name = body["kind"], body["metadata"]["name"]
        try:
            made = await self._api.send("POST", self._path(kind), body)
        except UnreadableError as error:
            if error.status != _CONFLICT:
                raise refusal(error, f"create {kind} {name}") from error
            return await self._take_over(kind, name, order)
        workload = self._read(kind, made)
        if workload is None:
            raise LaunchError(f"the API server made another {kind} {name} than it was told")
        return workload

    async def _take_over(self, kind: str, name: str, order: Order) -> Workload:
        """A workload of this name is there: one of ours for the same order is as good as new."""
        try:
            there = await self._api.get(self._path(kind, name))
        except UnreadableError as error:
            raise refusal(error, f"read {kind} {name}") from error
        if not self._is_ours(there, order.replica_id):
            told = f"{kind} {name!r} in namespace {self._namespace} is there and not ours"
            raise LaunchError(f"{told} ({OWNER}={self._owner}): rename it, or the model")
        workload = self._read(kind, there)
        if workload is not None and workload.order == order:
            return workload
        if workload is not None:
            await self.remove(workload)
        raise NoRoomError(f"an older {kind} {name} is being removed")

    def _marked(self, body: Json, order: Order) -> Json:
        labels = {OWNER: self._owner, REPLICA: order.replica_id}
        notes = {ORDER: orjson.dumps(order_data(order)).decode()}
        meta = body["metadata"]
        meta["labels"] = {**(meta.get("labels") or {}), **labels}
        meta["annotations"] = {**(meta.get("annotations") or {}), **notes}
        spec = body["spec"]
        inside = spec.get("leaderWorkerTemplate")
        leader = spec["template"] if inside is None else inside["leaderTemplate"]
        _label(leader, labels)
        if inside is not None and inside.get("size", 1) > 1:
            _label(inside["workerTemplate"], {OWNER: self._owner})
        return body

    async def wake(self, workload: Workload) -> None:
        """Let it run one replica; how the last one ended is forgotten."""
        await self._patch(workload, {"spec": {"replicas": 1}}, {ENDED: None})
        workload.replicas, workload.ended = 1, None

    async def sleep(self, workload: Workload) -> None:
        """Let it run no replica."""
        await self._patch(workload, {"spec": {"replicas": 0}}, {})
        workload.replicas = 0

    async def note_end(self, workload: Workload, life: PodLife | None, ended: Ended) -> None:
        """Keep how its replica ended, until it is woken or removed."""
        workload.ended = (life, ended)
        await self._patch(workload, {}, {ENDED: orjson.dumps(end_data(life, ended)).decode()})

    async def remove(self, workload: Workload) -> None:
        """Delete exactly this workload, and its pods with it; one that is gone is no error."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": workload.uid},
        }
        await self._delete(self._path(workload.kind, workload.name), body)

    async def delete_pod(self, name: str, uid: str, grace_s: int | None = None) -> None:
        """Delete exactly this pod; its own grace holds where none is given."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        await self._delete(f"{self.pods_path}/{name}", body)

    async def _delete(self, path: str, body: Json) -> None:
        try:
            await self._api.send("DELETE", path, body)
        except UnreadableError as error:
            if error.status not in (_MISSING, _CONFLICT):  # 409: it is another one by now
                raise

    async def _patch(self, workload: Workload, change: Json, notes: Mapping[str, Any]) -> None:
        """Merge a change into exactly this workload, whoever else writes it."""
        path = self._path(workload.kind, workload.name)
        for attempt in range(_TRIES):
            meta: Json = {"resourceVersion": workload.version, "uid": workload.uid}
            if notes:
                meta["annotations"] = dict(notes)
            try:
                made = await self._api.send("PATCH", path, {"metadata": meta, **change}, MERGE)
            except UnreadableError as error:
                if error.status == _MISSING:
                    raise WorkloadGoneError(workload.name) from error
                if error.status != _CONFLICT or attempt == _TRIES - 1:
                    raise
                await self._refresh(workload, path)
                continue
            workload.version = str(made["metadata"].get("resourceVersion") or "")
            return

    async def _refresh(self, workload: Workload, path: str) -> None:
        try:
            there = await self._api.get(path)
        except UnreadableError as error:
            if error.status == _MISSING:
                raise WorkloadGoneError(workload.name) from error
            raise
        meta = there["metadata"]
        same = meta.get("uid") == workload.uid
        if not same or not self._is_ours(there, workload.order.replica_id):
            raise WorkloadGoneError(workload.name)
        workload.version = str(meta.get("resourceVersion") or "")


def refusal(error: UnreadableError, what: str) -> LaunchError:
    """What it means for a replica that the API server refused something.

    A wrong manifest stays wrong. All else may pass: a server that is away, a right or a quota that
    is missing (403), a server that is busy (429).
    """
    if error.status in _WRONG:
        return LaunchError(f"cannot {what}: {error}")
    return NoRoomError(f"cannot {what}: {error}")


def _label(template: Json, labels: Mapping[str, str]) -> None:
    meta = template.setdefault("metadata", {})
    meta["labels"] = {**(meta.get("labels") or {}), **labels}


# --- plain data -----------------------------------------------------------------------------------


def order_data(order: Order) -> Json:
    """An order as plain data."""
    return {
        "replica_id": order.replica_id,
        "command": list(order.command),
        "environment": dict(order.environment),
        "port": order.port,
        "note": dict(order.note),
        "pass_env": list(order.pass_env),
        "on": order.on,
        "platform": dict(order.platform),
    }


def order_of(data: Mapping[str, Any]) -> Order:
    """The order that plain data tells of."""
    return Order(
        str(data["replica_id"]),
        tuple(data["command"]),
        dict(data["environment"]),
        int(data["port"]),
        dict(data["note"]),
        tuple(data["pass_env"]),
        str(data.get("on") or ""),
        dict(data.get("platform") or {}),
    )


def end_data(life: PodLife | None, ended: Ended) -> Json:
    """How a replica ended as plain data."""
    told = {
        "code": ended.code,
        "signal": ended.signal,
        "oom": ended.oom,
        "reason": ended.reason,
        "asked": ended.asked,
        "host_lost": ended.host_lost,
    }
    return told if life is None else {**told, "uid": life.uid, "number": life.number}


def end_of(data: Mapping[str, Any]) -> tuple[PodLife | None, Ended]:
    """The end that plain data tells of, and of which life."""
    ended = Ended(
        data["code"],
        data["signal"],
        bool(data["oom"]),
        str(data["reason"]),
        asked=bool(data["asked"]),
        host_lost=bool(data.get("host_lost")),
    )
    life = PodLife(str(data["uid"]), int(data["number"])) if "uid" in data else None
    return life, ended


__all__ = [
    "ENDED",
    "KINDS",
    "MERGE",
    "ORDER",
    "OWNER",
    "Workload",
    "WorkloadGoneError",
    "Workloads",
    "refusal",
]
