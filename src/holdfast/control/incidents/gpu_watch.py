"""Reads this host's GPUs in a separate thread: a driver that hangs must not block control.

A hanging read must not delay control's end either, so it runs in a detached thread. While one hangs
no second one is started, and the report says that the driver does not answer instead of repeating
old figures.
"""

import asyncio
import time
from collections import deque
from typing import Any, Final

from holdfast.control.detached_call import detached
from holdfast.sources.nvml import GpuReport, Xid, XidWatch, read_gpus

PERIOD_S: Final = 10.0
ABSENT_S: Final = 300.0  # hardware seldom appears while one waits
XIDS_MAX: Final = 256  # that nobody took yet
PATIENCE_S: Final = 15.0  # with one look; a driver that wakes its GPUs takes seconds


class GpuWatch:
    """Polls this host's GPUs in a thread; holds the last report and Xid faults not yet taken."""

    def __init__(
        self,
        library: Any = None,
        *,
        period_s: float = PERIOD_S,
        absent_s: float = ABSENT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._library = library  # what stands in for the driver's; None = the real one
        self._period_s = period_s
        self._absent_s = absent_s
        self._patience_s = patience_s
        self._report: GpuReport | None = None
        self._xids = XidWatch(library)
        self._fresh: deque[Xid] = deque(maxlen=XIDS_MAX)
        self.read_at: float | None = None  # when the last report came, seconds since 1970

    async def run(self) -> None:
        """Poll the GPUs every 10 s (5 min where there are none), until cancelled.

        A driver that does not answer within 15 s is reported as unavailable until it does.
        """
        look: asyncio.Task[GpuReport] | None = None
        try:
            while True:
                look = asyncio.create_task(detached(self._look))
                done, _ = await asyncio.wait({look}, timeout=self._patience_s)
                if not done:
                    why = f"the driver has not answered for {self._patience_s:g} s"
                    self._report = GpuReport(available=False, reason=why)
                self._report = await look
                self.read_at = time.time()
                await asyncio.sleep(self._period_s if self._report.available else self._absent_s)
        finally:
            if look is not None and look.done():  # else closing would hang as the look does
                self._xids.close()
            elif look is not None:
                look.cancel()

    def _look(self) -> GpuReport:
        if not self._xids.listening:
            self._xids.start()
        self._fresh.extend(self._xids.poll())
        return read_gpus(self._library, self._xids)

    @property
    def last(self) -> GpuReport | None:
        """The last GPU report; None before the first poll.

        It may say that the driver does not answer.
        """
        return self._report

    def take_xids(self) -> list[Xid]:
        """Return, and remove, the Xid faults that the driver reported since the last call."""
        taken = []
        while self._fresh:  # a look may add to it meanwhile, in its thread
            taken.append(self._fresh.popleft())
        return taken

    def need_reset(self) -> set[int]:
        """Numbers of the GPUs with an Xid fault, in the last report, that only a reset ends."""
        gpus = self._report.gpus if self._report is not None else ()
        return {gpu.index for gpu in gpus if any(xid.needs_reset for xid in gpu.xid)}

    def report(self) -> dict[str, Any]:
        """The last GPU report as plain data for the admin port; before the first it says so."""
        if self._report is None:
            return {"available": False, "reason": "not looked yet", "gpus": []}
        return self._report.as_dict()

    def summary(self) -> dict[str, Any]:
        """Whether this host has GPUs, and how many, or why none can be seen."""
        told = self.report()
        return {"available": told["available"], "reason": told["reason"]}

    def gauges(self) -> dict[str, float]:
        """Prometheus gauges of each GPU (memory, utilisation, temperature, power, ECC errors).

        By GPU number, from the last report; unknown figures are left out.
        """
        found: dict[str, float] = {}
        for gpu in self._report.gpus if self._report is not None else ():
            label = f'{{gpu="{gpu.index}"}}'
            for name, value in (
                ("gpu_memory_used_bytes", gpu.memory_used),
                ("gpu_memory_total_bytes", gpu.memory_total),
                ("gpu_utilisation_ratio", gpu.utilisation),
                ("gpu_temperature_celsius", gpu.temperature_c),
                ("gpu_power_watts", gpu.power_w),
                ("gpu_ecc_uncorrected_total", gpu.ecc_uncorrected),
            ):
                if value is not None:
                    found[name + label] = float(value)
        return found


__all__ = ["ABSENT_S", "PATIENCE_S", "PERIOD_S", "GpuWatch"]
