"""Turns a report of NVML into devices of the view, and says which of them a replica runs on.

A replica is on a GPU where one of its processes computes there. In containers the driver may count
processes by other ids than ours. Where none of a replica's processes is found on any GPU, and the
replica was started for certain devices (``CUDA_VISIBLE_DEVICES``), it is on those; what it holds of
their memory is then known only where a single process computes on the device.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from holdfast.core.gpu import GpuDevice, GpuUse, use_of
from holdfast.sources.nvml import Gpu, GpuReport

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
IDLE_SHARE: Final = 0.05  # of a GPU's memory that the driver keeps for itself at most
_NOT_TOLD: Final = (1 << 64) - 1  # how the driver says of a process that it does not know


@dataclass(slots=True, frozen=True)
class HeldGpus:
    """The GPUs that one replica runs on, and what it has taken of their memory."""

    devices: tuple[GpuDevice, ...] = ()
    held: tuple[int | None, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the devices."""
        return tuple(one.id for one in self.devices)

    @property
    def use(self) -> GpuUse | None:
        """Figures of the devices taken together; None where there is none."""
        return use_of(self.devices, self.held)


NOTHING: Final = HeldGpus()


def device_of(gpu: Gpu) -> GpuDevice:
    """One GPU of a report as a device of the view."""
    last = gpu.xid[-1] if gpu.xid else None
    return GpuDevice(
        id=gpu.uuid or str(gpu.index),
        index=gpu.index,
        name=gpu.name or "",
        memory_used_bytes=gpu.memory_used,
        memory_total_bytes=gpu.memory_total,
        utilisation=gpu.utilisation,
        temperature_c=gpu.temperature_c,
        temperature_max_c=gpu.temperature_max_c,
        power_w=gpu.power_w,
        power_limit_w=gpu.power_limit_w,
        power_default_w=gpu.power_default_w,
        ecc_uncorrected=gpu.ecc_uncorrected,
        ecc_corrected=gpu.ecc_corrected,
        remap_pending=gpu.remap_pending,
        remap_failed=gpu.remap_failed,
        throttle=gpu.throttle,
        xid=last.code if last is not None else None,
        xid_fatal=any(one.needs_reset for one in gpu.xid),
        processes=len(gpu.processes) or None,  # none seen may mean that none is shown
    )


def devices_of(report: GpuReport | None) -> tuple[GpuDevice, ...]:
    """All GPUs of a report as devices of the view."""
    return tuple(device_of(gpu) for gpu in report.gpus) if report is not None else ()


def held_by(pids: Collection[int], report: GpuReport | None, visible: str | None) -> HeldGpus:
    """The GPUs of a replica with these processes; ``visible`` is its CUDA_VISIBLE_DEVICES."""
    if report is None or not report.available:
        return NOTHING
    found: list[tuple[Gpu, int | None]] = []
    for gpu in report.gpus:
        mine = [held for pid, held in gpu.processes if pid in pids]
        if mine:
            known = [held for held in mine if held is not None and held != _NOT_TOLD]
            found.append((gpu, sum(known) if len(known) == len(mine) else None))
    if not found and visible:
        found = [(gpu, _only(gpu)) for gpu in report.gpus if _is_named(gpu, visible)]
    return HeldGpus(tuple(device_of(gpu) for gpu, _ in found), tuple(held for _, held in found))


def idle_gpus(report: GpuReport) -> int | None:
    """GPUs that nobody uses; None where one of them does not tell."""
    idle = 0
    for gpu in report.gpus:
        if gpu.memory_used is None or not gpu.memory_total:
            return None
        idle += not gpu.processes and gpu.memory_used < IDLE_SHARE * gpu.memory_total
    return idle


def _only(gpu: Gpu) -> int | None:
    """What the one process on a GPU holds; None where there are several, or none is shown."""
    held = [one for _, one in gpu.processes]
    return held[0] if len(held) == 1 and held[0] != _NOT_TOLD else None


def _is_named(gpu: Gpu, visible: str) -> bool:
    words = [word.strip() for word in visible.split(",")]
    return str(gpu.index) in words or (gpu.uuid is not None and gpu.uuid in words)


__all__ = [
    "IDLE_SHARE",
    "NOTHING",
    "VISIBLE",
    "HeldGpus",
    "device_of",
    "devices_of",
    "held_by",
    "idle_gpus",
]
