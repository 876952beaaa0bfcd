"""Scheduler and kubelets of the fake cluster: pods run as real processes of this machine.

Each pod gets a node and a loopback address of its own (127.1.x.y); the engine's command runs with
``0.0.0.0`` replaced by that address, as a network namespace would have it. What it writes is its
log, how it ends is its status, and it is started again with Kubernetes' back-off. A deletion runs
``preStop``, then SIGTERM, then SIGKILL when the grace is over.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Self

from fakekube.objects import stamp
from fakekube.server import ContainerLog

Json = dict[str, Any]
Key = tuple[str, str]

_ADDRESSES = itertools.count(1)
_LOOK_S = 0.02


class Kubelet:
    """``with Kubelet(kube)``: binds pods to nodes, runs them and tells how they fare."""

    def __init__(self, kube: Any, back_off_s: float = 10.0) -> None:
        self._kube = kube
        self._objects = kube.objects
        self._back_off_s = back_off_s
        self._stopping = False
        self._pods: dict[str, PodProcess] = {}  # by uid
        self._thread = threading.Thread(target=self._run)
        self.missing_images: set[str] = set()
        self.frozen_nodes: set[str] = set()  # their kubelets do nothing any more

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._objects.changed:
            self._stopping = True
            self._objects.changed.notify_all()
        self._thread.join()
        for pod in self._pods.values():
            pod.stop()

    def process(self, name: str) -> "PodProcess":
        """What runs as the pod that has this name, or the only one whose name begins so."""
        with self._objects.changed:
            found = [pod for pod in self._pods.values() if pod.key[1] == name]
            found = found or [
                pod
                for pod in self._pods.values()
                if pod.key[1].startswith(f"{name}-") and not pod.over
            ]
        assert found, f"no pod of {name} runs"
        return found[-1]

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
                pods = dict(self._objects.things["pods"])
                for key, thing in pods.items():
                    uid = thing["metadata"]["uid"]
                    if uid not in self._pods and not thing["metadata"].get("deletionTimestamp"):
                        self._place(key, thing)
                there = {thing["metadata"]["uid"] for thing in pods.values()}
            for uid, pod in list(self._pods.items()):
                if uid not in there:  # deleted by force, or its node was
                    pod.stop()
                    del self._pods[uid]

    def _place(self, key: Key, thing: Json) -> None:
        """What a scheduler does: a node that fits, or the reason why none does."""
        wanted = thing["spec"].get("nodeSelector") or {}
        asked = _gpus(thing["spec"])
        nodes = self._objects.things["nodes"]
        reasons = []
        for (_, name), node in sorted(nodes.items()):
            labels = node["metadata"].get("labels") or {}
            free = int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) - sum(
                _gpus(pod["spec"])
                for pod in self._objects.things["pods"].values()
                if pod["spec"].get("nodeName") == name
            )
            taints = (node.get("spec") or {}).get("taints") or ()
            if any(labels.get(label) != value for label, value in wanted.items()):
                reasons.append("1 node(s) didn't match Pod's node affinity/selector")
            elif taints:
                reasons.append(f"1 node(s) had untolerated taint {{{taints[0]['key']}: }}")
            elif asked > free:
                reasons.append("1 Insufficient nvidia.com/gpu")
            else:
                self._bind(key, thing, name)
                return
        told = f"0/{len(nodes)} nodes are available: {', '.join(reasons) or 'no nodes'}."
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": told,
            "lastTransitionTime": thing["metadata"]["creationTimestamp"],
        }
        if (thing["status"].get("conditions") or [{}])[0].get("message") != told:
            self._objects.patch("pods", key, {"status": {"conditions": [condition]}})

    def _bind(self, key: Key, thing: Json, node: str) -> None:
        number = next(_ADDRESSES)
        address = f"127.1.{number // 250}.{number % 250 + 1}"
        bound = self._objects.patch("pods", key, {"spec": {"nodeName": node}})
        pod = PodProcess(self._kube, key, bound, address, self)
        self._pods[thing["metadata"]["uid"]] = pod
        pod.thread.start()

    @property
    def back_off_s(self) -> float:
        """Before the second restart in a row; doubled for each further one."""
        return self._back_off_s


class PodProcess:
    """One pod: its process, its log and its status."""

    def __init__(self, kube: Any, key: Key, thing: Json, address: str, kubelet: Kubelet) -> None:
        self._kube = kube
        self._objects = kube.objects
        self._kubelet = kubelet
        self.key, self.address = key, address
        self.uid = thing["metadata"]["uid"]
        self._spec = thing["spec"]
        containers = thing["spec"]["containers"]
        self._container = next((c for c in containers if c["name"] == "engine"), containers[0])
        self.process: subprocess.Popen[bytes] | None = None
        self.over = False
        self.ended_as: Json | None = None  # what the next end is told as, such as OOMKilled
        self._stopping = threading.Event()
        self._restarts = 0
        self._last: Json = {}
        self.thread = threading.Thread(target=self._run)

    @property
    def pid(self) -> int:
        """Of the container's process."""
        assert self.process is not None, "it has not begun"
        return self.process.pid

    def stop(self) -> None:
        """End it at once, without a word to the API server."""
        self._stopping.set()
        self._kill(signal.SIGKILL)
        if self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.thread.join()

    # --- life ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._container["image"] in self._kubelet.missing_images:
            told = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            self._tell("Pending", {"waiting": told}, ready=False)
            if self._ends_before_it_began():
                return
        while not self._stopping.is_set():
            self._begin()
            code = self._watch()
            if code is None or not self._wait_to_restart():
                return
            self._restarts += 1  # as a kubelet counts: when the next run begins

    def _ends_before_it_began(self) -> bool:
        if self._stopping.wait(0.1):
            return True
        if self._deleted() is None:
            return False
        self._remove()
        return True

    def _begin(self) -> None:
        words = [word.replace("0.0.0.0", self.address) for word in self._container["command"]]
        words = [sys.executable if word in ("python3", "{python}") else word for word in words]
        told = {one["name"]: one.get("value", "") for one in self._container.get("env") or ()}
        log = self._kube.logs[self.key] = ContainerLog()
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **told},
            start_new_session=True,
        )
        self._began = time.time()
        running = {"running": {"startedAt": stamp(self._began)}}
        self._tell("Running", running, ready=True)
        self._reader = threading.Thread(target=self._read, args=(self.process, log))
        self._reader.start()

    def _read(self, process: "subprocess.Popen[bytes]", log: ContainerLog) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            at = max(time.time(), log[-1][0] + 1e-6 if log else 0.0)
            with self._objects.changed:
                log.append((at, line.decode(errors="replace").rstrip("\n")))
                self._objects.changed.notify_all()

    def _watch(self) -> int | None:
        """Until it ends: its code where it is to be started again, None where it is deleted."""
        process = self.process
        assert process is not None
        asked: float | None = None  # since when it is told to end
        termed = False
        while process.poll() is None and not self._stopping.is_set():
            time.sleep(_LOOK_S)
            meta = self._deleted()
            if meta is None or self._frozen():
                continue
            now = time.monotonic()
            asked = now if asked is None else asked
            grace = meta["deletionGracePeriodSeconds"]
            if not termed and now - asked >= min(self._pre_stop(), grace):
                termed = True
                self._kill(signal.SIGTERM)
            if now - asked >= grace:
                self._kill(signal.SIGKILL)
        if self._stopping.is_set():
            self._kill(signal.SIGKILL)
        process.wait()
        self._reader.join()
        assert process.stdout is not None
        process.stdout.close()
        with self._objects.changed:
            self._kube.logs[self.key].over = True
            self._objects.changed.notify_all()
        if self._stopping.is_set() or self._frozen():
            return None
        self._last = self._end(process.returncode)
        deleted = self._deleted() is not None
        self._tell("Failed" if deleted else "Running", {"terminated": self._last}, ready=False)
        if deleted:
            self._remove()
            return None
        return process.returncode

    def _wait_to_restart(self) -> bool:
        """Whether it is started again: at once the first time, then later and later."""
        if self._restarts == 0:
            return True
        wait_s = self._kubelet.back_off_s * 2.0 ** (self._restarts - 1)
        told = {"reason": "CrashLoopBackOff", "message": f"back-off {wait_s:g}s restarting failed"}
        self._tell("Running", {"waiting": told}, ready=False)
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if self._stopping.wait(_LOOK_S):
                return False
            if self._deleted() is not None:
                self._remove()
                return False
        return True

    def _end(self, returncode: int) -> Json:
        told = {
            "exitCode": 128 - returncode if returncode < 0 else returncode,
            "reason": "Completed" if returncode == 0 else "Error",
            "startedAt": stamp(self._began),
            "finishedAt": stamp(time.time()),
            **(self.ended_as or {}),
        }
        self.ended_as = None
        return told

    # --- the API server --------------------------------------------------------------------------

    def _pre_stop(self) -> float:
        hook = (self._container.get("lifecycle") or {}).get("preStop") or {}
        return float((hook.get("sleep") or {}).get("seconds", 0))

    def _frozen(self) -> bool:
        return self._spec.get("nodeName") in self._kubelet.frozen_nodes

    def _deleted(self) -> Json | None:
        """Its metadata where it was told to end, or is gone."""
        thing = self._objects.get("pods", *self.key)
        if thing is None or thing["metadata"]["uid"] != self.uid:
            return {"deletionGracePeriodSeconds": 0}
        meta: Json = thing["metadata"]
        return meta if meta.get("deletionTimestamp") else None

    def _tell(self, phase: str, state: Json, *, ready: bool) -> None:
        if self._frozen():
            return
        last = {} if "terminated" in state or not self._last else {"terminated": self._last}
        told = "True" if ready else "False"
        status = {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": stamp(time.time()),
            "conditions": [
                {"type": "Ready", "status": told, "lastTransitionTime": stamp(time.time())},
                {"type": "PodScheduled", "status": "True"},
            ],
            "containerStatuses": [
                {
                    "name": self._container["name"],
                    "image": self._container["image"],
                    "imageID": self._container["image"],
                    "ready": ready,
                    "started": ready,
                    "restartCount": self._restarts,
                    "state": state,
                    "lastState": last,
                }
            ],
        }
        with self._objects.changed:
            thing = self._objects.get("pods", *self.key)
            if thing is not None and thing["metadata"]["uid"] == self.uid:
                self._objects.put("pods", {**thing, "status": {**thing["status"], **status}})

    def _remove(self) -> None:
        with self._objects.changed:
            self.over = True
            thing = self._objects.get("pods", *self.key)
            if thing is not None and thing["metadata"]["uid"] == self.uid:
                self._objects.delete("pods", self.key)

    def _kill(self, number: int) -> None:
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.killpg(process.pid, number)


def _gpus(spec: Json) -> int:
    return sum(
        int(((one.get("resources") or {}).get("limits") or {}).get("nvidia.com/gpu", 0))
        for one in spec["containers"]
    )


__all__ = ["Kubelet", "PodProcess"]
