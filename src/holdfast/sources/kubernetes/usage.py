"""What is really used: memory as metrics-server tells it, GPUs as dcgm-exporters do.

Both are extras of a cluster. Where metrics-server is not installed or not allowed to us, that is
said once and looked at again after a while; it is no failure. An exporter that is named in the
config and does not answer is one.
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
    """How the last try went, as a part of a reading."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at: float | None = None
        self._error = ""
        self._failing_since: float | None = None
        self._calls = 0
        self._took_s = 0.0

    def good(self, calls: int, took_s: float) -> None:
        """It was read."""
        self._at, self._error, self._failing_since = time.time(), "", None
        self._calls, self._took_s = calls, took_s

    def bad(self, error: str, calls: int) -> None:
        """It was not."""
        self._error, self._calls = error, calls
        if self._failing_since is None:
            self._failing_since = time.time()

    def part(self) -> Part:
        """For a reading."""
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
        self.absent = ""  # why there is nothing to ask

    def parts(self) -> tuple[Part, ...]:
        """None where nobody could be asked: what is not there has no age."""
        return () if self.absent else (self._outcome.part(),)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            wait_s = await self.turn()
            await asyncio.sleep(wait_s)

    async def turn(self) -> float:
        """Ask once; seconds until the next time."""
        began = time.monotonic()
        space = f"namespaces/{self._config.namespace}/" if self._config.namespace else ""
        try:
            hosts = await self._api.get(f"{METRICS}/nodes")
            pods = await self._api.get(f"{METRICS}/{space}pods")
            self.hosts = dict(_used(hosts, self._config.nodes_max))
            self.pods = dict(_used(pods, self._config.pods_max))
        except KubernetesApiError as error:
            if error.status in ABSENT:
                self.absent = f"metrics-server cannot be asked ({error}): memory in use is unknown"
                self.hosts, self.pods = {}, {}
                return LOOK_AGAIN_S
            self._outcome.bad(str(error), 2)
        except (KeyError, TypeError, AttributeError):
            self._outcome.bad("its answer makes no sense", 2)
        else:
            self.absent = ""
            self._outcome.good(2, time.monotonic() - began)
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
    """The GPUs of one host, or those that one pod uses."""

    used_bytes: int = 0
    total_bytes: int = 0
    busy: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    driver: str = ""
    pods: set[str] = field(default_factory=set)


class GpuExporters:
    """GPUs, from the metrics pages of dcgm-exporters."""

    def __init__(self, api: KubernetesApi, config: KubernetesConfig) -> None:
        self._api = api
        self._config = config
        self._outcome = PartOutcome("dcgm")
        self._pages: dict[str, tuple[dict[str, GpuDevices], dict[str, GpuDevices]]] = {}

    def parts(self) -> tuple[Part, ...]:
        """None where no exporter is named."""
        return (self._outcome.part(),) if self._config.dcgm_urls else ()

    async def run(self) -> None:
        """Until it is cancelled."""
        while self._config.dcgm_urls:
            await self.turn()
            await asyncio.sleep(self._config.usage_s)

    async def turn(self) -> None:
        """Ask each once. One that fails keeps what it said before."""
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
        """By the name that the exporters give."""
        return {name: found for hosts, _ in self._pages.values() for name, found in hosts.items()}

    def pods(self) -> dict[str, GpuDevices]:
        """By namespace/name."""
        return {name: found for _, pods in self._pages.values() for name, found in pods.items()}


def read_page(text: str) -> tuple[dict[str, GpuDevices], dict[str, GpuDevices]]:
    """What a page says of hosts, and of pods where the exporter knows them."""
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
