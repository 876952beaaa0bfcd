"""Reads this host's GPUs for the placement of replicas, without waiting for a driver that hangs."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.config.launch import VISIBLE
from holdfast.control.detached_call import detached
from holdfast.core.deploy.gpu_placement import GpuInventory
from holdfast.sources.placement_devices import read_devices

PATIENCE_S: Final = 15.0  # with one look; a driver that wakes its GPUs takes seconds


class HostGpus:
    """Reads this host's NVIDIA GPUs for placement, in a thread, since the driver may hang.

    While one read hangs no second one is started.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        library: Any = None,
        *,
        faulty: Callable[[], Collection[int]] = tuple,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._visible = environment.get(VISIBLE)
        self._library = library  # what stands in for the driver's; None = the real one
        self._faulty = faulty  # numbers of GPUs that need a reset
        self._patience_s = patience_s
        self._look: asyncio.Task[GpuInventory] | None = None

    async def read(self) -> GpuInventory:
        """The GPUs of this host now, with those that need a reset marked as faulty.

        No devices, with a reason, if the driver does not answer within 15 s.
        """
        look = self._look  # two may wait for the same one
        if look is None or look.done():
            look = asyncio.create_task(detached(read_devices, self._library, self._visible))
            self._look = look
        done, _ = await asyncio.wait({look}, timeout=self._patience_s)
        if not done:
            why = f"no GPU: the driver has not answered for {self._patience_s:g} s"
            return GpuInventory(reason=why)
        seen, faulty = look.result(), {str(number) for number in self._faulty()}
        devices = (
            replace(device, faulty=device.label.partition(":")[0] in faulty)
            for device in seen.devices
        )
        return replace(seen, devices=tuple(devices))


__all__ = ["PATIENCE_S", "HostGpus"]
