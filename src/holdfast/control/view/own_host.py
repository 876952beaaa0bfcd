"""Shows the GPUs of the host that control runs on where no source of the view reads that host.

Control watches its GPUs in any case (``GpuWatch``). A fleet file without a ``local`` source would
hide them: the view would know the replicas, and no host, no GPU and no memory of theirs.
"""

from typing import Final

from holdfast.core.gpu import use_of
from holdfast.core.view.layers import Group, Host, Part, Reading
from holdfast.sources.gpu_devices import devices_of, idle_gpus
from holdfast.sources.nvml import GpuReport

SOURCE: Final = "control"
KIND: Final = "local"


def own_host_reading(host: str, report: GpuReport | None, at: float | None) -> Reading | None:
    """A reading of control's own host with its GPUs, made from the last GPU report.

    None where no GPU can be seen. Asks no driver.
    """
    if report is None or not report.available or at is None:
        return None
    devices = devices_of(report)
    use = use_of(devices)
    assert use is not None, "a report that is available has a GPU"
    shown = Host(
        host,
        host,
        gpus=len(devices),
        gpus_free=idle_gpus(report),
        cuda=report.cuda or "",
        driver=report.driver or "",
        gpu_memory_bytes=use.memory_total_bytes,
        gpu_used_bytes=use.memory_used_bytes,
        gpu_busy=use.utilisation,
        devices=devices,
    )
    return Reading(SOURCE, KIND, at, (Part("gpus", at=at),), (Group(host),), (shown,))


__all__ = ["own_host_reading"]
