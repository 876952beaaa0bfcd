"""Reads a pod object of a launched replica as what the core needs to know of its life."""

import signal
from datetime import datetime
from typing import Any, Final

from holdfast.core.deploy.pod_life import PodEnd, PodSight
from holdfast.launchers.keeper import signal_name
from holdfast.launchers.kubernetes.client import Json

REPLICA: Final = "holdfast.dev/replica"  # a label of pods: whose they are
ENGINE: Final = "engine"  # the container that answers requests

_REASON_MAX: Final = 240
_BACK_OFF: Final = "CrashLoopBackOff"
_STARTING: Final = ("ContainerCreating", "PodInitializing")
_BY_SIGNAL: Final = 128  # a shell's way to say that a signal ended a process, and Kubernetes' too
_LOST: Final = ("DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet")
_LOST_REASONS: Final = ("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity")
_NO_STATUS: Final = "ContainerStatusUnknown"  # what a kubelet says that lost sight of a container


def read_pod_sight(thing: Json) -> PodSight | None:
    """A pod of a launched replica; None: another pod, such as a further host of a replica."""
    meta, status = thing["metadata"], thing.get("status") or {}
    replica = (meta.get("labels") or {}).get(REPLICA)
    if not replica:
        return None
    own = _status_of(status.get("containerStatuses"), ENGINE)
    state, before = own.get("state") or {}, (own.get("lastState") or {}).get("terminated")
    running = state.get("running")
    target = _disruption(status)
    ended = state.get("terminated")
    if running is None and ended is None:
        # It waits to be started again: a kubelet counts a restart when that begins, so the end
        # that it shows beside is that of the run with this number.
        ended, before = before, None
    end = _end(ended, status, target) if ended else None
    if end is None and status.get("phase") == "Failed":  # evicted: nothing runs any more
        end = _failed(status, target)
        running = None
    return PodSight(
        replica=str(replica),
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        created_at=moment(meta.get("creationTimestamp")) or 0.0,
        number=int(own.get("restartCount") or 0),
        running=running is not None,
        began_at=moment((running or {}).get("startedAt")),
        address=str(status.get("podIP") or ""),
        node=str((thing.get("spec") or {}).get("nodeName") or ""),
        ended=end,
        before=_end(before, {}, {}) if before else None,
        waits=_waits(status)[:_REASON_MAX],
        backs_off=_backs_off(status),
        leaving=_leaving(meta, target),
    )


def moment(text: Any) -> float | None:
    """A time as Kubernetes writes it, in seconds since 1970."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _status_of(statuses: Any, name: str) -> Json:
    found: Json = next((one for one in statuses or () if one.get("name") == name), {})
    return found


def _disruption(status: Json) -> Json:
    """The condition by which whoever takes a pod away says why."""
    found: Json = next(
        (
            one
            for one in status.get("conditions") or ()
            if one.get("type") == "DisruptionTarget" and one.get("status") == "True"
        ),
        {},
    )
    return found


def _leaving(meta: Json, target: Json) -> str:
    if not meta.get("deletionTimestamp"):
        return ""
    told = target.get("message") or target.get("reason")
    return f"its pod is being deleted: {told}"[:_REASON_MAX] if told else "its pod is being deleted"


def _end(ended: Json, status: Json, target: Json) -> PodEnd:
    """How a container ended. An exit code above 128 means a signal, as the kubelet has it."""
    code, number = ended.get("exitCode"), ended.get("signal") or None
    reason = str(ended.get("reason") or "")
    lost = str(target.get("reason") or "") in _LOST or status.get("reason") in _LOST_REASONS
    if reason == _NO_STATUS or not isinstance(code, int):
        told = str(ended.get("message") or "its node does not know how it ended")
        return PodEnd(reason=told[:_REASON_MAX], host_lost=lost)
    if number is None and code > _BY_SIGNAL and code - _BY_SIGNAL in set(signal.Signals):
        number = code - _BY_SIGNAL
    oom = reason == "OOMKilled" or _evicted_for_memory(status)
    told = f"killed by {signal_name(number)}" if number else f"exited with code {code}"
    if oom:
        told = f"out of memory: {told}"
    elif status.get("reason"):
        told = f"{status['reason']}: {status.get('message') or told}"
    return PodEnd(
        None if number else code, number, oom=oom, reason=told[:_REASON_MAX], host_lost=lost
    )


def _failed(status: Json, target: Json) -> PodEnd:
    """A pod that its kubelet ended as a whole: evicted, or its node was shut down."""
    reason = str(status.get("reason") or target.get("reason") or "Failed")
    message = status.get("message") or target.get("message")
    lost = reason in _LOST_REASONS or str(target.get("reason") or "") in _LOST
    told = f"{reason}: {message}" if message else reason
    return PodEnd(oom=_evicted_for_memory(status), reason=told[:_REASON_MAX], host_lost=lost)


def _evicted_for_memory(status: Json) -> bool:
    return status.get("reason") == "Evicted" and "memory" in str(status.get("message") or "")


def _waits(status: Json) -> str:
    """Why its container does not run: no node, no image, a container before it that fails."""
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return f"no node for it: {one.get('message') or one.get('reason') or 'not scheduled'}"
    for name in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(name) or ():
            waiting = (one.get("state") or {}).get("waiting") or {}
            reason = waiting.get("reason")
            if reason and reason not in _STARTING:
                told = f"{one.get('name')}: {reason}"
                return f"{told}: {waiting['message']}" if waiting.get("message") else told
    return ""


def _backs_off(status: Json) -> bool:
    state = _status_of(status.get("containerStatuses"), ENGINE).get("state") or {}
    return (state.get("waiting") or {}).get("reason") == _BACK_OFF


__all__ = ["ENGINE", "REPLICA", "moment", "read_pod_sight"]
