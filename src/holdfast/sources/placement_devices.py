"""Lists the GPUs of this host as devices that replicas can be placed on, with slices and links.

A GPU that is cut by MIG is no device itself: its slices are. NVLink is asked for each pair of
GPUs; behind a switch all pairs are linked. What the driver does not tell is left out: devices then
have no neighbours, and a GPU that does not answer is no device.

``CUDA_VISIBLE_DEVICES`` of this process bounds the list, as it bounds what an engine would see: by
numbers, by UUIDs or by beginnings of UUIDs, up to the first word that names no device.
"""

from dataclasses import replace
from typing import Any, Final

from holdfast.config.launch import VISIBLE
from holdfast.core.deploy.gpu_placement import DEVICES_MAX, GpuInventory, PlacementDevice
from holdfast.sources.nvml import Gpu, ask, open_library, read_gpus

SLICES_MAX: Final = 16  # of one GPU; hardware has seven
LINKED_MAX: Final = 32  # GPUs whose links are asked for: each pair is a call

_NVLINK: Final = 2  # NVML_P2P_CAPS_INDEX_NVLINK
_ENABLED: Final = 1  # NVML_DEVICE_MIG_ENABLE, and of P2P the status OK is 0


def read_devices(library: Any = None, visible: str | None = None) -> GpuInventory:
    """Read this host's devices once; blocks on the driver, and never raises.

    ``library`` is the module ``pynvml`` or a replacement; ``visible`` the value of
    ``CUDA_VISIBLE_DEVICES``, None where it is not set.
    """
    opened, reason = open_library(library)
    if opened is None:
        return GpuInventory(reason=f"no GPU: {reason}")
    try:
        report = read_gpus(opened)
        if not report.available:
            return GpuInventory(reason=f"no GPU: {report.reason}")
        handles = {
            gpu.uuid: ask(opened, "nvmlDeviceGetHandleByIndex", gpu.index) for gpu in report.gpus
        }
        links = _links(opened, handles)
        found: list[PlacementDevice] = []
        for gpu in report.gpus:
            found += _devices(opened, handles[gpu.uuid], gpu, links)
    finally:
        ask(opened, "nvmlShutdown")
    if not found:
        return GpuInventory(reason="no GPU: the driver sees some, and none of them answers")
    return _visible(found[:DEVICES_MAX], visible)


def _devices(
    library: Any, handle: Any, gpu: Gpu, links: dict[str, frozenset[str]]
) -> list[PlacementDevice]:
    """A GPU as one device, or as its slices; none where it does not answer."""
    if gpu.uuid is None or (gpu.memory_total is None and gpu.problem is not None):
        return []
    mode = ask(library, "nvmlDeviceGetMigMode", handle)
    if mode is not None and mode[0] == _ENABLED:
        return _slices(library, handle, gpu)
    return [
        PlacementDevice(
            gpu.uuid,
            str(gpu.index),
            gpu.name or "",
            gpu.memory_total,
            gpu.memory_used,
            links.get(gpu.uuid, frozenset()),
            processes=tuple(pid for pid, _ in gpu.processes),
        )
    ]


def _slices(library: Any, handle: Any, gpu: Gpu) -> list[PlacementDevice]:
    found = []
    most = ask(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    for place in range(min(most, SLICES_MAX)):
        part = ask(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        uuid = ask(library, "nvmlDeviceGetUUID", part) if part is not None else None
        if uuid is None:  # no slice was made there
            continue
        memory = ask(library, "nvmlDeviceGetMemoryInfo", part)
        found.append(
            PlacementDevice(
                _text(uuid),
                f"{gpu.index}:{place}",
                _text(ask(library, "nvmlDeviceGetName", part) or gpu.name or ""),
                getattr(memory, "total", None),
                getattr(memory, "used", None),
                is_slice=True,
            )
        )
    return found


def _links(library: Any, handles: dict[str | None, Any]) -> dict[str, frozenset[str]]:
    """Whom each GPU reaches over NVLink, by UUID."""
    known = [
        (uuid, handle)
        for uuid, handle in handles.items()
        if uuid is not None and handle is not None
    ][:LINKED_MAX]
    linked: dict[str, set[str]] = {uuid: set() for uuid, _ in known}
    for place, (one, first) in enumerate(known):
        for other, second in known[place + 1 :]:
            if ask(library, "nvmlDeviceGetP2PStatus", first, second, _NVLINK) == 0:
                linked[one].add(other)
                linked[other].add(one)
    return {uuid: frozenset(others) for uuid, others in linked.items()}


def _visible(devices: list[PlacementDevice], value: str | None) -> GpuInventory:
    """The devices that an environment lets engines see."""
    if value is None:
        return GpuInventory(tuple(devices))
    kept: dict[str, PlacementDevice] = {}
    for word in (part.strip() for part in value.split(",")):
        # A number names a GPU in the driver's order; of one that is cut, CUDA takes a slice.
        fits = [
            device
            for device in devices
            if (word.isdigit() and device.label.partition(":")[0] == word)
            or (word.startswith(("GPU-", "MIG-")) and device.uuid.startswith(word))
        ]
        if not fits:
            break
        kept |= {device.uuid: device for device in fits}
    if not kept:
        return GpuInventory(reason=f"no GPU: {VISIBLE} is {value[:80]!r}, which names none here")
    seen = frozenset(kept)
    return GpuInventory(
        tuple(replace(device, neighbours=device.neighbours & seen) for device in kept.values())
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


__all__ = ["LINKED_MAX", "SLICES_MAX", "read_devices"]
