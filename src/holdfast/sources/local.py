"""The source that reads the host control runs on.

A look reads /proc in a thread of its own, because a process that is being torn down can block
the read. While one look hangs there is no second, and the last result is reported with its age
and the reason. What is looked at stands in ``this_host.py``.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from holdfast.core.view.layers import Part, Reading
from holdfast.sources.nvml import GpuReport
from holdfast.sources.this_host import LocalConfig, LocalHost, LocalReplica, Replicas, Roots


class LocalSource:
    """Reads the host control runs on, for control's loop."""

    kind = "local"

    def __init__(
        self,
        name: str,
        config: LocalConfig,
        *,
        replicas: Replicas = dict,
        gpus: Callable[[], GpuReport | None] | None = None,
        roots: Roots | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.period_s = config.period_s
        self._clock = clock
        self._host = LocalHost(
            name, self.kind, config, replicas, gpus=gpus, roots=roots, clock=clock
        )
        self._last: Reading | None = None
        self._pending: asyncio.Future[Reading] | None = None
        self._began = 0.0

    async def read(self) -> Reading:
        """Look at the host in a thread; while that hangs, return the last result."""
        if self._pending is not None and not self._pending.done():
            return self._late()
        self._began = self._clock()
        self._pending = _in_thread(self._host.look)
        # Shielded: whoever gives up waiting must not let a second look begin beside this one.
        self._last = await asyncio.shield(self._pending)
        return self._last

    def _late(self) -> Reading:
        now = self._clock()
        told = f"no answer for {now - self._began:.0f} s"
        last = self._last or Reading(self.name, self.kind, now, (Part("host"),))
        parts = tuple(replace(part, error=told, failing_since=self._began) for part in last.parts)
        return replace(last, parts=parts)

    async def close(self) -> None:
        """Does nothing: a look that hangs ends with the process."""


def _in_thread(look: Callable[[], Reading]) -> asyncio.Future[Reading]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Reading] = loop.create_future()

    def settle(reading: Reading | None, problem: Exception | None) -> None:
        if answer.done():
            return
        if reading is not None:
            answer.set_result(reading)
        else:
            answer.set_exception(problem or RuntimeError("the look ended without a word"))

    def work() -> None:
        reading, problem = None, None
        try:
            reading = look()
        except Exception as error:  # noqa: BLE001 raised where somebody waits for it
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, reading, problem)

    threading.Thread(target=work, name="local-source", daemon=True).start()
    return answer


__all__ = ["LocalConfig", "LocalHost", "LocalReplica", "LocalSource", "Replicas", "Roots"]
