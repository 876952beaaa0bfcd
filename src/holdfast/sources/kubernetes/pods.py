"""Reads a pod as a replica: its resources, its state, and why it waits or ended.

Requests are counted as the scheduler counts them: containers run together with sidecars, each init
container runs alone with the sidecars started before it, the larger sum is reserved, and what the
runtime itself needs comes on top.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.view.layers import Placed
from holdfast.core.view.selectors import Selector
from holdfast.sources.kubernetes.api import Json
from holdfast.sources.kubernetes.nodes import GPU_NAMES, MIG, gpus_of
from holdfast.sources.kubernetes.quantities import moment, quantity

REASON_MAX: Final = 240
LABELS_MAX: Final = 64
PORTS_MAX: Final = 32

_OVER: Final = ("Succeeded", "Failed")
# Who makes one pod per host makes no replicas of a model.
_PER_HOST: Final = ("DaemonSet", "Node")
_REVISION_LABELS: Final = (
    "app.kubernetes.io/version",
    "pod-template-hash",
    "controller-revision-hash",
)
_PORT: Final = "holdfast.dev/port"
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_DISRUPTED: Final = "DisruptionTarget"  # a condition; it is taken back where the end was refused
_STARTING: Final = ("ContainerCreating", "PodInitializing")


@dataclass(slots=True, frozen=True)
class Pod:
    """A replica, as far as its pod object says."""

    placed: Placed
    chosen: bool  # it is a replica, or may be one
    holds: bool  # what it asked for is reserved on its host
    cpus: float = 0.0
    memory_bytes: int = 0
    gpus: int = 0
    ready: bool = False  # its own probes say so
    unplaced: str = ""  # why no host was found for it
    since: float | None = None  # for so long
    container: str = ""  # the one whose log is meant, where there are several


def read_pod(thing: Json, model_label: str, fits: Selector | None) -> Pod:
    """Parse a pod object. ``fits`` selects replicas; without it, all pods that name a model."""
    meta, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    labels: dict[str, str] = meta.get("labels") or {}
    model = labels.get(model_label) or (meta.get("annotations") or {}).get(model_label) or ""
    phase = str(status.get("phase") or "Unknown")
    needs = {name: _reserved(spec, name) for name in ("cpu", "memory")}
    gpus = _gpus(spec)
    claims = bool(spec.get("resourceClaims"))  # of devices: a pod does not say which
    before = _failed_before(status)
    ends = _last_end(status) or before
    unplaced, since = _unplaced(status)
    ready = _ready(status).get("status") == "True"
    name = f"{meta['namespace']}/{meta['name']}"
    placed = Placed(
        id=name,
        model=str(model),
        state=_state(meta, phase),
        host=str(spec.get("nodeName") or ""),
        revision=next((labels[one] for one in _REVISION_LABELS if labels.get(one)), ""),
        endpoint=_endpoint(spec, status),
        needs_gpu=gpus > 0 or (None if claims else False),
        gpus=gpus or (None if claims else 0),
        reserved_bytes=round(needs["memory"]),
        limit_bytes=_limit(spec),
        filesystem=_filesystem(spec, str(meta["namespace"])),
        log_stream=name,
        image=str(next((one.get("image") or "" for one in spec.get("containers") or ()), "")),
        created_at=moment(meta.get("creationTimestamp")),
        started_at=_started(status),
        stopped_at=moment(ends.get("finishedAt")),
        exit_code=ends.get("exitCode"),
        oom=ends.get("reason") == "OOMKilled" or _evicted_for_memory(status),
        restarts=sum(int(one.get("restartCount") or 0) for one in _statuses(status)),
        reason=_reason(meta, status, unplaced, ends)[:REASON_MAX],
        address=str(status.get("podIP") or ""),
        labels=tuple(sorted(labels.items())[:LABELS_MAX]),
        uid=str(meta.get("uid") or ""),
        digest=_digest(status),
        ready=ready,
        phase="starting" if before and ends is before else "",
        served=False if before else _served(status, ends),
        ended_began_at=moment(ends.get("startedAt")),
        ports=tuple(_ports(spec))[:PORTS_MAX],
        port_said=str((meta.get("annotations") or {}).get(_PORT) or labels.get(_PORT) or ""),
        notice=_notice(status),
    )
    return Pod(
        placed,
        chosen=_chosen(meta, labels, str(model), fits),
        holds=phase not in _OVER,
        cpus=needs["cpu"],
        memory_bytes=round(needs["memory"]),
        gpus=gpus,
        ready=ready,
        unplaced=unplaced[:REASON_MAX],
        since=since,
        container=_spokesman(meta, spec),
    )


def _spokesman(meta: Json, spec: Json) -> str:
    """An API server refuses to choose: the annotation that kubectl knows does, else the first."""
    names = [str(one.get("name") or "") for one in spec.get("containers") or ()]
    if len(names) < 2:
        return ""
    wished = (meta.get("annotations") or {}).get(_DEFAULT_CONTAINER)
    return str(wished) if wished in names else names[0]


def _chosen(meta: Json, labels: Mapping[str, str], model: str, fits: Selector | None) -> bool:
    if fits is not None:
        return fits(labels)
    owners = {one.get("kind") for one in meta.get("ownerReferences") or ()}
    return bool(model) and owners.isdisjoint(_PER_HOST)


def _state(meta: Json, phase: str) -> str:
    if phase in _OVER:
        return "stopped"
    if meta.get("deletionTimestamp"):
        return "stopping"
    return "running" if phase == "Running" else "pending"


# --- what it asks for -----------------------------------------------------------------------------


def _asked(container: Json, name: str) -> float:
    amounts = container.get("resources") or {}
    asked = (amounts.get("requests") or {}).get(name)
    if asked is None:  # what is limited and not asked for is asked for up to its limit
        asked = (amounts.get("limits") or {}).get(name)
    return quantity(asked) or 0.0


def _reserved(spec: Json, name: str) -> float:
    together = sum(_asked(one, name) for one in spec.get("containers") or ())
    sidecars = most = 0.0
    for one in spec.get("initContainers") or ():
        if one.get("restartPolicy") == "Always":  # it stays beside those that follow
            sidecars += _asked(one, name)
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + _asked(one, name))
    stated = ((spec.get("resources") or {}).get("requests") or {}).get(name)  # of the whole pod
    whole_pod = quantity(stated)
    needed = max(together + sidecars, most) if whole_pod is None else whole_pod
    return needed + (quantity((spec.get("overhead") or {}).get(name)) or 0.0)


def _gpus(spec: Json) -> int:
    inside = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    names = {
        name
        for one in inside
        for amounts in (one.get("resources") or {}).values()
        if isinstance(amounts, dict)
        for name in amounts
        if name in GPU_NAMES or name.startswith(MIG)
    }
    return gpus_of({name: _reserved(spec, name) for name in names})


def _limit(spec: Json) -> int | None:
    """What the kernel enforces; None where one container has no limit, and so the pod none."""
    total = 0.0
    for one in spec.get("containers") or ():
        limit = quantity(((one.get("resources") or {}).get("limits") or {}).get("memory"))
        if limit is None:
            return None
        total += limit
    return round(total) or None


def _filesystem(spec: Json, namespace: str) -> str:
    for volume in spec.get("volumes") or ():
        claim, nfs = volume.get("persistentVolumeClaim"), volume.get("nfs")
        if claim:
            return f"{namespace}/{claim.get('claimName', '')}"
        if nfs:
            return f"{nfs.get('server', '')}:{nfs.get('path', '')}"
    return ""


def _ports(spec: Json) -> Iterator[tuple[str, int]]:
    """Names and numbers of its TCP ports: of its containers, then of sidecars."""
    sidecars = (
        one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"
    )
    for one in (*(spec.get("containers") or ()), *sidecars):
        for port in one.get("ports") or ():
            if port.get("protocol", "TCP") == "TCP" and port.get("containerPort"):
                yield str(port.get("name") or ""), int(port["containerPort"])


def _endpoint(spec: Json, status: Json) -> str:
    """Where it most likely serves, for those whom the fleet file lists by their addresses."""
    address = str(status.get("podIP") or "")
    _, port = next(_ports(spec), ("", 0))
    if not address or not port:
        return ""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


# --- how it fares ---------------------------------------------------------------------------------


def _statuses(status: Json) -> Iterator[Json]:
    for name in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(name) or ()


def _started(status: Json) -> float | None:
    """When the container that came last began: the pod serves from then on at the earliest."""
    began = [
        moment(((one.get("state") or {}).get("running") or {}).get("startedAt"))
        for one in status.get("containerStatuses") or ()
    ]
    known = [at for at in began if at is not None]
    return max(known, default=None)


def _last_end(status: Json, of: str = "containerStatuses") -> Json:
    """How a container last ended, in this life of the pod; a good end only where no bad one is."""
    ends: list[tuple[bool, str, Json]] = []
    for one in status.get(of) or ():
        for key in ("state", "lastState"):
            end: Any = (one.get(key) or {}).get("terminated")
            if end:
                ends.append((bool(end.get("exitCode")), str(end.get("finishedAt") or ""), end))
    return max(ends, key=lambda end: end[:2])[2] if ends else {}


def _failed_before(status: Json) -> Json:
    """How a container failed that prepares the pod, where none that serves has begun."""
    end = _last_end(status, "initContainerStatuses")
    return end if end.get("exitCode") and _started(status) is None else {}


def _ready(status: Json) -> Json:
    """The condition that its own probes make."""
    conditions = status.get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})


def _notice(status: Json) -> str:
    """Who is about to end it: an eviction, a preemption or its kubelet says so before it does."""
    for one in status.get("conditions") or ():
        if one.get("type") == _DISRUPTED and one.get("status") == "True":
            return f"is to end: {one.get('reason') or 'a disruption'}"[:REASON_MAX]
    return ""


def _served(status: Json, ends: Json) -> bool | None:
    """Whether it had been ready in the life that ended: it became unready after that began.

    None where that cannot be known: it is ready by now, and so says nothing of the life before.
    """
    ready, began = _ready(status), moment(ends.get("startedAt") or status.get("startTime"))
    changed = moment(ready.get("lastTransitionTime"))
    if began is None or changed is None or ready.get("status") != "False":
        return None
    return changed > began


def _evicted_for_memory(status: Json) -> bool:
    """Whether its node was short of memory, and the kubelet ended it for that."""
    return status.get("reason") == "Evicted" and "memory" in str(status.get("message") or "")


def _digest(status: Json) -> str:
    """Which bytes its first container runs; a tag can be moved to others."""
    for one in status.get("containerStatuses") or ():
        _, mark, digest = str(one.get("imageID") or "").rpartition("@")
        return digest if mark else ""
    return ""


def _unplaced(status: Json) -> tuple[str, float | None]:
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            reason = one.get("message") or one.get("reason")
            if reason:
                return str(reason), moment(one.get("lastTransitionTime"))
    return "", None


def _reason(meta: Json, status: Json, unplaced: str, ends: Json) -> str:
    """Why it waits, leaves or ended; empty for one that runs as it should."""
    if meta.get("deletionTimestamp"):
        return "told to end"
    if unplaced:
        return unplaced
    for one in _statuses(status):
        waits = (one.get("state") or {}).get("waiting") or {}
        if waits.get("reason") and waits["reason"] not in _STARTING:
            told = f"{waits['reason']}: {waits['message']}" if waits.get("message") else ""
            ended = f" (last end: {_end(ends)})" if ends else ""
            return f"{told or waits['reason']}{ended}"
    if status.get("reason"):
        message = status.get("message")
        return f"{status['reason']}: {message}" if message else str(status["reason"])
    return f"last end: {_end(ends)}" if ends.get("exitCode") else ""


def _end(ends: Json) -> str:
    return f"{ends.get('reason') or 'ended'}, exit code {ends.get('exitCode')}"


__all__ = ["Pod", "read_pod"]
