"""Reads actual usage: memory from metrics-server, GPUs from dcgm-exporters.

Both are extras of a cluster. Where metrics-server is not installed or not allowed, that is said
once and tried again after a while; it is not an error. An exporter that is named in the config
and does not answer is an error.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from holdfast.core.gpu import GpuDevice, GpuUse, use_of
from holdfast.core.view.layers import Part
from holdfast.core.view.staleness import MEMORY
from holdfast.sources.kubernetes.api import KubernetesApi, KubernetesApiError
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.quantities import whole
from holdfast.sources.nvml import xid_needs_reset
from holdfast.sources.nvml_health import throttle_reasons

METRICS: Final = "apis/metrics.k8s.io/v1beta1"
LOOK_AGAIN_S: Final = 600.0  # for a metrics-server where there was none
ABSENT: Final = (403, 404, 503)  # not allowed, not installed, installed and not running
SERIES_MAX: Final = 16_384  # of one exporter: 16 GPUs with all slices are some hundred
MIB: Final = 1 << 20
_FORBIDDEN: Final = 403  # of this alone; with the others there is nobody to ask
_OBJECTS: Final = ("nodes", "pods")

# Series of a dcgm-exporter, and the member of a GPU that they fill. Memory and faults are below.
_FIGURES: Final = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilisation", 0.01),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_GPU_MAX_OP_TEMP": ("temperature_max_c", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", 1.0),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF": ("power_default_w", 1.0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1.0),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("remap_pending", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("remap_failed", 1.0),
}
_WHOLE: Final = ("ecc_uncorrected", "ecc_corrected")
_FLAGS: Final = ("remap_pending", "remap_failed")
_MEMORY: Final = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
_REASONS: Final = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
_XID: Final = "DCGM_FI_DEV_XID_ERRORS"
_WANTED: Final = (*_FIGURES, *_MEMORY, *_REASONS, _XID)
_SERIES: Final = re.compile(
    rf"^({'|'.join(_WANTED)})"
    r'\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\}[ \t]++(\S{1,64}+)',
    re.MULTILINE,
)
_PAIR: Final = re.compile(r'([a-zA-Z_]\w*+)="((?:[^"\\]|\\.)*+)"')


class PartOutcome:
    """Result of the last try of one part of a reading."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at: float | None = None
        self._error = ""
        self._failing_since: float | None = None
        self._calls = 0
        self._took_s = 0.0

    def good(self, calls: int, took_s: float) -> None:
        """Note that the last try succeeded."""
        self._at, self._error, self._failing_since = time.time(), "", None
        self._calls, self._took_s = calls, took_s

    def bad(self, error: str, calls: int) -> None:
        """Note that the last try failed, and why."""
        self._error, self._calls = error, calls
        if self._failing_since is None:
            self._failing_since = time.time()

    def part(self) -> Part:
        """This outcome as a part of a reading."""
        told = (self._at, self._error, self._failing_since, self._calls, self._took_s)
        return Part(self._name, *told, feeds=(MEMORY,))


class MemoryUsage:
    """Memory in use by nodes and pods, from metrics-server."""

    def __init__(self, api: KubernetesApi, config: KubernetesConfig) -> None:
        self._api = api
        self._config = config
        self._outcome = PartOutcome("usage")
        self.hosts: dict[str, int] = {}
        self.pods: dict[str, int] = {}
        self._absent: dict[str, tuple[str, float]] = {}  # what cannot be asked, why, and until when

    @property
    def absent(self) -> str:
        """Why nothing can be asked of one or of both; empty: nothing stands against it."""
        if not self._absent:
            return ""
        why = next(iter(self._absent.values()))[0]
        both = len(self._absent) == len(_OBJECTS)
        of = "" if both else f" of {next(iter(self._absent))}"
        return f"metrics-server cannot be asked ({why}): memory in use{of} is unknown"

    def parts(self) -> tuple[Part, ...]:
        """The outcome as parts of a reading; empty if metrics-server cannot be asked at all."""
        return () if len(self._absent) == len(_OBJECTS) else (self._outcome.part(),)

    async def run(self) -> None:
        """Ask metrics-server periodically until cancelled."""
        while True:
            wait_s = await self.turn()
            await asyncio.sleep(wait_s)

    async def turn(self) -> float:
        """Ask metrics-server once; returns the seconds until the next time.

        Nodes and pods are asked for apart: whoever may see one namespace may not list nodes.
        """
        began, calls, failed = time.monotonic(), 0, ""
        found: dict[str, dict[str, int]] = {}
        space = f"namespaces/{self._config.namespace}/" if self._config.namespace else ""
        chosen = {"labelSelector": self._config.selector} if self._config.by_server else None
        for what, path, params in (("nodes", "nodes", None), ("pods", f"{space}pods", chosen)):
            if began < self._absent.get(what, ("", began))[1]:
                continue
            calls += 1
            try:
                answer = await self._api.get(f"{METRICS}/{path}", params)
                found[what] = dict(_used(answer, self._config.pods_max))
            except KubernetesApiError as error:
                if error.status not in ABSENT:
                    failed = str(error)
                    continue
                gone = (what,) if error.status == _FORBIDDEN else _OBJECTS
                for one in gone:
                    self._absent[one] = (str(error), began + LOOK_AGAIN_S)
                    found[one] = {}
            except (KeyError, TypeError, AttributeError):
                failed = "its answer makes no sense"
            else:
                self._absent.pop(what, None)
        self.hosts = found.get("nodes", self.hosts)
        self.pods = found.get("pods", self.pods)
        if len(self._absent) == len(_OBJECTS):
            return LOOK_AGAIN_S
        if failed:
            self._outcome.bad(failed, calls)
        else:
            self._outcome.good(calls, time.monotonic() - began)
        return self._config.usage_s


def _used(answer: Any, most: int) -> Iterator[tuple[str, int]]:
    for item in answer["items"][:most]:
        meta = item["metadata"]
        space = meta.get("namespace")
        inside = item.get("containers")
        amounts = [one["usage"] for one in inside] if inside is not None else [item["usage"]]
        used = [whole(amount.get("memory")) for amount in amounts]
        known = [amount for amount in used if amount is not None]
        if known:
            yield f"{space}/{meta['name']}" if space else meta["name"], sum(known)


# --- GPUs -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class GpuDevices:
    """The GPUs of one host, or those that one pod uses, as an exporter's page tells them."""

    devices: dict[str, GpuDevice] = field(default_factory=dict)  # by id, slices apart
    users: dict[str, set[str]] = field(default_factory=dict)  # the pods of each, by its id
    driver: str = ""

    @property
    def pods(self) -> set[str]:
        """All pods that use one of these GPUs."""
        return set().union(*self.users.values())

    def use(self) -> GpuUse | None:
        """All devices taken together; memory is a pod's own where it is the only one there."""
        found = list(self.devices.values())
        alone = [len(self.users.get(one.id, ())) == 1 for one in found]
        memory = [one.memory_used_bytes for one in found]
        return use_of(
            found, [used if own else None for used, own in zip(memory, alone, strict=True)]
        )


class GpuExporters:
    """GPU figures, read from the metrics pages of dcgm-exporters."""

    def __init__(self, api: KubernetesApi, config: KubernetesConfig) -> None:
        self._api = api
        self._config = config
        self._outcome = PartOutcome("dcgm")
        self._pages: dict[str, tuple[dict[str, GpuDevices], dict[str, GpuDevices]]] = {}

    def parts(self) -> tuple[Part, ...]:
        """The outcome as parts of a reading; empty if no exporter is named."""
        return (self._outcome.part(),) if self._config.dcgm_urls else ()

    async def run(self) -> None:
        """Ask all exporters periodically until cancelled."""
        while self._config.dcgm_urls:
            await self.turn()
            await asyncio.sleep(self._config.usage_s)

    async def turn(self) -> None:
        """Ask each exporter once; one that fails keeps its last values."""
        began = time.monotonic()
        failed: list[str] = []
        urls = self._config.dcgm_urls
        for url in urls:
            try:
                page = await self._api.text(url)
            except KubernetesApiError as error:
                failed.append(f"{url}: {error}")
                continue
            self._pages[url] = read_page(page.decode(errors="replace"))
        if failed:
            told = f"{len(failed)} of {len(urls)} exporters failed: {failed[0]}"
            self._outcome.bad(told[:240], len(urls))
        else:
            self._outcome.good(len(urls), time.monotonic() - began)

    def hosts(self) -> dict[str, GpuDevices]:
        """GPU figures by host name, as the exporters write it."""
        return {name: found for hosts, _ in self._pages.values() for name, found in hosts.items()}

    def pods(self) -> dict[str, GpuDevices]:
        """GPU figures by namespace/name of the pod."""
        return {name: found for _, pods in self._pages.values() for name, found in pods.items()}


def read_page(text: str) -> tuple[dict[str, GpuDevices], dict[str, GpuDevices]]:
    """Parse an exporter's page into GPUs by host, and by pod where it names pods."""
    hosts: dict[str, GpuDevices] = {}
    figures: dict[tuple[str, str], dict[str, Any]] = {}
    for number, line in enumerate(_SERIES.finditer(text)):
        if number >= SERIES_MAX:
            break
        labels = {pair[1]: pair[2] for pair in _PAIR.finditer(line[2])}
        value = _number(line[3])
        # The label was renamed in 2026; an exporter of either age is understood.
        host = labels.get("hostname") or labels.get("Hostname") or ""
        if value is None or not host:
            continue
        found = hosts.setdefault(host, GpuDevices())
        found.driver = labels.get("DCGM_FI_DRIVER_VERSION") or found.driver
        device = _device_id(labels)
        said = figures.setdefault((host, device), _new_figures(device, labels))
        name = labels.get("pod") or labels.get("exported_pod")
        space = labels.get("namespace") or labels.get("exported_namespace")
        if name and space:
            found.users.setdefault(device, set()).add(f"{space}/{name}")
        _note(said, line[1], value)
    for (host, device), said in figures.items():
        hosts[host].devices[device] = _device(said)
    return hosts, _by_pod(hosts)


def _by_pod(hosts: dict[str, GpuDevices]) -> dict[str, GpuDevices]:
    pods: dict[str, GpuDevices] = {}
    for found in hosts.values():
        for device, users in found.users.items():
            for pod in users:
                own = pods.setdefault(pod, GpuDevices(driver=found.driver))
                own.devices[device] = found.devices[device]
                own.users[device] = users
    return pods


def _device_id(labels: dict[str, str]) -> str:
    """The GPU's UUID, and which slice of it; a GPU that several pods share is one."""
    whole = labels.get("UUID") or labels.get("gpu", "?")
    slice_of_it = labels.get("GPU_I_ID", "")
    return f"{whole}/{slice_of_it}" if slice_of_it else whole


def _new_figures(device: str, labels: dict[str, str]) -> dict[str, Any]:
    index = labels.get("gpu", "")
    return {
        "id": device,
        "index": int(index) if index.isdecimal() and len(index) < 5 else None,
        "name": labels.get("modelName", ""),
        "memory": {},
    }


def _note(said: dict[str, Any], metric: str, value: float) -> None:
    """Keep one value. A GPU that pods share is told once for each of them, with one value."""
    if metric in _MEMORY:
        said["memory"][metric] = round(value * MIB)
    elif metric in _REASONS:
        said["throttle"] = throttle_reasons(int(value))
    elif metric == _XID:
        said["xid"] = int(value) or None
        said["xid_fatal"] = xid_needs_reset(int(value))
    else:
        member, factor = _FIGURES[metric]
        amount: Any = round(value * factor, 4)
        if member in _WHOLE:
            amount = int(amount)
        said[member] = bool(amount) if member in _FLAGS else amount


def _device(said: dict[str, Any]) -> GpuDevice:
    memory = said.pop("memory")
    if memory:
        said["memory_total_bytes"] = sum(memory.values())
        # What is reserved is as gone as what is used.
        said["memory_used_bytes"] = sum(memory.values()) - memory.get(_MEMORY[1], 0)
    if "utilisation" in said:
        said["utilisation"] = min(1.0, said["utilisation"])
    return GpuDevice(**said)


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


__all__ = ["ABSENT", "GpuDevices", "GpuExporters", "MemoryUsage", "read_page"]
