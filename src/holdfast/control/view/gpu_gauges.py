"""GPU figures of replicas as Prometheus gauges, as the joined view has them.

Unknown figures are left out. Labels are those of a replica's other gauges, so there are as many
series as replicas.
"""

from collections.abc import Mapping
from typing import Final

from holdfast.core.gpu import POWER_CAP
from holdfast.core.view.snapshot import Snapshot

# A gauge, and the member of ``GpuUse`` that it shows.
_GAUGES: Final = (
    ("replica_gpu_memory_held_bytes", "held_bytes"),
    ("replica_gpu_memory_used_bytes", "memory_used_bytes"),
    ("replica_gpu_memory_total_bytes", "memory_total_bytes"),
    ("replica_gpu_utilisation_ratio", "utilisation"),
    ("replica_gpu_temperature_celsius", "temperature_c"),
    ("replica_gpu_power_watts", "power_w"),
    ("replica_gpu_ecc_uncorrected", "ecc_uncorrected"),
    ("replica_gpu_xid", "xid"),
)
MEMORY_RATIO: Final = "replica_gpu_memory_used_ratio"  # where it says anything of the load


def gpu_gauges(snapshot: Snapshot, device_memory: Mapping[str, float]) -> dict[str, float]:
    """Prometheus gauges of the GPUs of all routed replicas, and the number of early warnings.

    Unknown figures are left out. ``device_memory`` is the share of GPU memory in use by replica id,
    of engines whose memory grows with their work.
    """
    found: dict[str, float] = {"early_warnings": float(len(snapshot.warnings))}
    for row in snapshot.replicas:
        if not row.routed:
            continue
        labels = f'{{model="{row.model}",replica="{row.id}"}}'
        if row.id in device_memory:
            found[MEMORY_RATIO + labels] = device_memory[row.id]
        if row.gpu is None:
            continue
        for name, member in _GAUGES:
            value = getattr(row.gpu, member)
            if value is not None:
                found[name + labels] = float(value)
        if row.gpu.throttle is not None:
            slowed = any(reason != POWER_CAP for reason in row.gpu.throttle)
            found[f"replica_gpu_throttled{labels}"] = float(slowed)
    return found


__all__ = ["MEMORY_RATIO", "gpu_gauges"]
