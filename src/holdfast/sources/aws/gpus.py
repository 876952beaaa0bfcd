"""GPU figures of ECS hosts, from what the CloudWatch agent publishes of NVIDIA's driver.

Container Insights tells of ECS how many GPUs are reserved, and nothing of their use. The CloudWatch
agent does (``nvidia_gpu`` in its configuration, with ``aggregation_dimensions: [["InstanceId"]]``):
one value for each instance. So it is a device's own value only on an instance with one GPU; of
others it would be a mean, which is no device's, and nothing is told. An agent of Holdfast knows
each of them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.core.gpu import GpuDevice, GpuUse, use_of

NAMESPACE: Final = "CWAgent"
MIB: Final = 1 << 20
USED: Final = "nvidia_smi_memory_used"
TOTAL: Final = "nvidia_smi_memory_total"
BUSY: Final = "nvidia_smi_utilization_gpu"
HEAT: Final = "nvidia_smi_temperature_gpu"
POWER: Final = "nvidia_smi_power_draw"
METRICS: Final = (
    *((USED, "Average"), (TOTAL, "Average"), (BUSY, "Average")),
    *((HEAT, "Maximum"), (POWER, "Average")),
)


def device_of_host(
    host: str, gpu_ids: tuple[str, ...], metrics: Mapping[tuple[str, str], float]
) -> tuple[GpuDevice, ...]:
    """The GPU of a host that has one, where its figures are published; else nothing."""
    found = {name: value for name, _ in METRICS if (value := metrics.get((host, name))) is not None}
    if len(gpu_ids) != 1 or not found:
        return ()
    used, total, busy = found.get(USED), found.get(TOTAL), found.get(BUSY)
    return (
        GpuDevice(
            gpu_ids[0],
            0,
            memory_used_bytes=None if used is None else int(used * MIB),
            memory_total_bytes=None if total is None else int(total * MIB),
            utilisation=None if busy is None else min(1.0, busy / 100),
            temperature_c=found.get(HEAT),
            power_w=found.get(POWER),
        ),
    )


def use_of_task(
    gpu_ids: tuple[str, ...], devices: Iterable[GpuDevice], others: int
) -> GpuUse | None:
    """What a task has of its host's GPU; ``others`` are further tasks on the same GPU.

    Memory of a GPU that tasks share is nobody's own.
    """
    own = [one for one in devices if one.id in gpu_ids]
    return use_of(own, [None if others else one.memory_used_bytes for one in own])


__all__ = ["METRICS", "NAMESPACE", "device_of_host", "use_of_task"]
