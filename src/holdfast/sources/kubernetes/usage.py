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

from holdfast.core.view.layers import Part
from holdfast.core.view.staleness import MEMORY
from holdfast.sources.kubernetes.api import KubernetesApi, KubernetesApiError
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.quantities import whole

METRICS: Final = "apis/metrics.k8s.io/v1beta1"
LOOK_AGAIN_S: Final = 600.0  # for a metrics-server where there was none
ABSENT: Final = (403, 404, 503)  # not allowed, not installed, installed and not running
SERIES_MAX: Final = 16_384  # of one exporter: 16 GPUs with all slices are some hundred
MIB: Final = 1 << 20
_FORBIDDEN: Final = 403  # of this alone; with the others there is nobody to ask
_OBJECTS: Final = ("nodes", "pods")

_WANTED: Final = (
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_RESERVED",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_XID_ERRORS",
)
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
    """Memory, load and faults of the GPUs of one host, or of those that one pod uses."""

    used_bytes: int = 0
    total_bytes: int = 0
    busy: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    driver: str = ""
    pods: set[str] = field(default_factory=set)


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
    """Parse an exporter's page into figures by host, and by pod where it names pods."""
    hosts: dict[str, GpuDevices] = {}
    pods: dict[str, GpuDevices] = {}
    for number, line in enumerate(_SERIES.finditer(text)):
        if number >= SERIES_MAX:
            break
        labels = {pair[1]: pair[2] for pair in _PAIR.finditer(line[2])}
        value = _number(line[3])
        # The label was renamed in 2026; an exporter of either age is understood.
        host = labels.get("hostname") or labels.get("Hostname") or ""
        if value is None or not host:
            continue
        devices = hosts.setdefault(host, GpuDevices())
        devices.driver = labels.get("DCGM_FI_DRIVER_VERSION") or devices.driver
        _count(devices, line[1], value, labels)
        name = labels.get("pod") or labels.get("exported_pod")
        space = labels.get("namespace") or labels.get("exported_namespace")
        if name and space:
            devices.pods.add(f"{space}/{name}")
            _count(pods.setdefault(f"{space}/{name}", GpuDevices()), line[1], value, labels)
    return hosts, pods


def _count(devices: GpuDevices, metric: str, value: float, labels: dict[str, str]) -> None:
    if metric.startswith("DCGM_FI_DEV_FB_"):
        amount = round(value * MIB)
        devices.total_bytes += amount
        if not metric.endswith("FREE"):  # what is reserved is as gone as what is used
            devices.used_bytes += amount
    elif metric == "DCGM_FI_DEV_GPU_UTIL":
        devices.busy.append(min(1.0, value / 100))
    elif value:
        devices.faults.append(f"XID {value:.0f} on GPU {labels.get('gpu', '?')}")


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


__all__ = ["ABSENT", "GpuDevices", "GpuExporters", "MemoryUsage", "read_page"]
