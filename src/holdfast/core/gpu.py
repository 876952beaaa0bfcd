"""The figures of GPUs, in the one form that every source fills and every display reads.

    NVML (this host, agents) ─┐
    dcgm-exporter ────────────┼─► GpuDevice, by host ─► GpuUse, by replica ─► view, facts, exports
    Container Insights ───────┘

``GpuDevice`` is one GPU, or one slice of a GPU. ``GpuUse`` is what a replica has of its GPUs: their
figures taken together and the memory that is its own. ``None`` is unknown everywhere; it is neither
zero nor full.

Of memory two things are kept apart. *Used* is what is taken on the devices, by whomever. *Held* is
what the replica itself has taken. The share that counts against a bound is held ÷ (held + free):
memory that a neighbour took is gone, and yet nothing that this replica did.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

THERMAL: Final = "thermal"  # it is too hot, so it runs slower
POWER_BRAKE: Final = "power brake"  # its power supply asks it to run slower
HARDWARE: Final = "hardware"  # the board slows itself and does not say for which of the two
POWER_CAP: Final = "power cap"  # at its power limit: a healthy busy GPU is there all the time
DEVICES_MAX: Final = 64  # of one host, or of one replica


@dataclass(slots=True, frozen=True)
class GpuDevice:
    """Figures now of one GPU, or one slice of it, as a driver, exporter or platform reports them.

    ``None``: unknown, neither zero nor full.
    """

    id: str  # the driver's UUID; where nobody tells it, the index
    index: int | None = None  # as the host counts
    name: str = ""
    memory_used_bytes: int | None = None  # by whomever, with what the driver keeps
    memory_total_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1: time with work, not how much of the chip works
    temperature_c: float | None = None
    temperature_max_c: float | None = None  # above it, the board's maker does not want it to run
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None  # the limit that the board came with
    ecc_uncorrected: int | None = None  # since the driver was loaded
    ecc_corrected: int | None = None
    remap_pending: bool | None = None  # a bad row of memory is replaced at the next reset
    remap_failed: bool | None = None  # no spare row is left for it
    throttle: tuple[str, ...] | None = None  # why it runs slower than it could; (): it does not
    xid: int | None = None  # the fault that the driver reported last
    xid_fatal: bool = False  # only a reset or new hardware helps
    processes: int | None = None  # that compute on it; in containers this may be unknown

    @property
    def free_bytes(self) -> int | None:
        """Bytes of memory that nobody has taken; ``None`` if total or used is unknown."""
        if self.memory_used_bytes is None or self.memory_total_bytes is None:
            return None
        return max(0, self.memory_total_bytes - self.memory_used_bytes)

    @property
    def label(self) -> str:
        """Return its name for people: ``GPU`` and its index, or its id without one."""
        return f"GPU {self.id if self.index is None else self.index}"


@dataclass(slots=True, frozen=True)
class GpuUse:
    """Figures now of the GPUs of one replica, or of one host, taken together; ``None``: unknown.

    ``held_bytes`` is what this replica itself has taken, ``memory_used_bytes`` what anybody has.
    """

    count: int
    memory_used_bytes: int | None = None  # on these devices, by whomever
    memory_total_bytes: int | None = None
    held_bytes: int | None = None  # of that, what this replica itself has taken
    memory_share: float | None = None  # held of what it could have, on its fullest device
    limit_bytes: int | None = None  # what it could hold in all before one of its devices is full
    utilisation: float | None = None  # mean of the devices
    temperature_c: float | None = None  # of the hottest
    power_w: float | None = None  # of all together
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    xid: int | None = None
    throttle: tuple[str, ...] | None = None
    faults: tuple[str, ...] = ()  # what is wrong with a device, for people


def use_of(devices: Sequence[GpuDevice], held: Sequence[int | None] | None = None) -> GpuUse | None:
    """Return the ``GpuUse`` of several devices taken together; ``None`` where there is no device.

    ``held`` is the bytes that the replica has taken on each; ``None``: unknown. Sums and means are
    over the devices that tell a value, memory only where all of them do: a part of it beside the
    whole would look like room. At most 64 devices count.
    """
    devices = devices[:DEVICES_MAX]
    if not devices:
        return None
    own = list(held[: len(devices)]) if held is not None else [None] * len(devices)
    busy = [one.utilisation for one in devices if one.utilisation is not None]
    whole, share = _all(own), _share(devices, own)
    slowed = [one.throttle for one in devices if one.throttle is not None]
    reasons = tuple(dict.fromkeys(reason for one in slowed for reason in one))
    return GpuUse(
        count=len(devices),
        memory_used_bytes=_all(one.memory_used_bytes for one in devices),
        memory_total_bytes=_all(one.memory_total_bytes for one in devices),
        held_bytes=whole,
        memory_share=None if share is None else round(share, 4),
        limit_bytes=round(whole / share) if whole is not None and share else None,
        utilisation=round(sum(busy) / len(busy), 4) if busy else None,
        temperature_c=max(
            (one.temperature_c for one in devices if one.temperature_c is not None), default=None
        ),
        power_w=_some(one.power_w for one in devices),
        ecc_uncorrected=_counted(one.ecc_uncorrected for one in devices),
        ecc_corrected=_counted(one.ecc_corrected for one in devices),
        xid=next((one.xid for one in devices if one.xid), None),
        throttle=reasons if slowed else None,
        faults=tuple(fault for one in devices for fault in device_faults(one))[:8],
    )


def device_faults(device: GpuDevice) -> Iterable[str]:
    """Yield a short text for each thing that is wrong with a device now; nothing if it is well.

    A fatal Xid, a memory row that is bad, being slowed. A power cap alone is no fault.
    """
    if device.xid is not None and device.xid_fatal:
        yield f"{device.label}: Xid {device.xid}"
    if device.remap_failed:
        yield f"{device.label}: a bad memory row could not be replaced"
    elif device.remap_pending:
        yield f"{device.label}: a bad memory row waits for a reset"
    for reason in device.throttle or ():
        if reason != POWER_CAP:
            yield f"{device.label}: slowed ({reason})"


def _share(devices: Sequence[GpuDevice], held: Sequence[int | None]) -> float | None:
    """Of the fullest device; None where one of them does not tell."""
    shares = []
    for device, own in zip(devices, held, strict=True):
        free = device.free_bytes
        if free is None or own is None:
            return None
        shares.append(own / (own + free) if own + free else 1.0)
    return max(shares)


def _all(values: Iterable[int | None]) -> int | None:
    found = list(values)
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def _some(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return round(sum(known), 1) if known else None


def _counted(values: Iterable[int | None]) -> int | None:
    known = [one for one in values if one is not None]
    return sum(known) if known else None


__all__ = [
    "DEVICES_MAX",
    "HARDWARE",
    "POWER_BRAKE",
    "POWER_CAP",
    "THERMAL",
    "GpuDevice",
    "GpuUse",
    "device_faults",
    "use_of",
]
