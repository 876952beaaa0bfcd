"""Carries the placement of replicas on GPUs out: reads devices, serves those that wait in order.

    place ─► a look at the host ─► claim ─► the unit's devices
               ▲    └► none ─► the unit waits, with the reason ─► looked again when one is released
               └──────────────────────────────────────────────────  or after a while

Who waited longest is asked first; one whose devices are not free does not hold up the next. Nothing
here is on the way of a request.
"""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from holdfast.control.deploy.launched_replica import LaunchedReplica
from holdfast.core.deploy.gpu_placement import (
    GpuInventory,
    GpuLedger,
    GpuPlacement,
    GpuPlacementConfig,
    GpuRequest,
    Overcommit,
)
from holdfast.core.types import nanos, seconds
from holdfast.ports import GpuReader

LOOK_S: Final = 5.0  # between looks while somebody waits: others' processes end without a word
REPORT_S: Final = 10.0  # between two reports that replicas of a model wait
STALE_S: Final = 10.0  # an older look at the host is not believed when a rollout asks for room

_log = structlog.get_logger("holdfast.control.deploy.gpu_placements")


class GpuPlacementsPort(Protocol):
    """Is told when replicas wait for GPUs or get them; ``Launches`` implements it."""

    def queued(self, unit: LaunchedReplica, *, first: bool) -> None:
        """Handle that a replica still waits for GPUs; ``first``: the wait begins."""

    def chosen(self, unit: LaunchedReplica, placement: GpuPlacement) -> None:
        """Handle that a replica got its GPUs, or goes on without a choice of any."""


@dataclass(slots=True, frozen=True)
class GpuLack:
    """How many replicas of a model wait for GPUs of this host, and since when and why.

    Duration and reason are of the one that waits longest.
    """

    model: str
    pending: int
    waited_s: float  # the one that waits longest
    reason: str


@dataclass(slots=True)
class _Wait:
    unit: LaunchedReplica
    request: GpuRequest
    since: int
    placed: "asyncio.Future[None]"


class GpuPlacements:
    """Gives launched replicas GPUs of this host, in the order in which they asked.

    One whose GPUs are not free does not hold up those after it.
    """

    def __init__(self, reader: GpuReader, host: GpuPlacementsPort) -> None:
        self._reader = reader
        self._host = host
        self._ledger = GpuLedger(GpuPlacementConfig())
        self._waiting: dict[str, _Wait] = {}  # in the order in which they asked
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._seen: GpuInventory | None = None
        self._seen_at = 0
        self._refresh: asyncio.Task[GpuInventory] | None = None
        self._promised: dict[str, str] = {}  # of replicas that leave: for whom
        self._reported: dict[str, int] = {}  # models, as long as replicas of theirs wait

    def lacks_to_report(self, now: int) -> list[GpuLack]:
        """One report for each model whose replicas wait for GPUs now, at most one in 10 s.

        Empty where none waits or no report is due.
        """
        waiting: dict[str, list[_Wait]] = {}
        for wait in self._waiting.values():
            if wait.unit.lacks:
                waiting.setdefault(wait.unit.model, []).append(wait)
        self._reported = {name: at for name, at in self._reported.items() if name in waiting}
        found = []
        for name, waits in waiting.items():
            last = self._reported.get(name)
            if last is None or now - last >= nanos(REPORT_S):
                self._reported[name] = now
                oldest = waits[0]
                lasted_s = seconds(now - oldest.since)
                found.append(GpuLack(name, len(waits), lasted_s, oldest.unit.lacks))
        return found

    async def place(self, unit: LaunchedReplica) -> None:
        """Wait, without a time limit, until a replica has its GPUs, and set them in ``unit``.

        Returns at once for one that needs none. Where no GPU can be read it goes on without a
        choice, if its request allows that.
        """
        request = unit.gpu_request
        if request is None:
            return
        wait = _Wait(unit, request, time.monotonic_ns(), asyncio.get_running_loop().create_future())
        self._waiting[unit.id] = wait
        self._wake.set()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
            self._serving.add_done_callback(_report)
        try:
            await wait.placed
        except asyncio.CancelledError:
            self.release(unit)
            raise
        finally:
            if self._waiting.get(unit.id) is wait:
                del self._waiting[unit.id]
            unit.lacks = ""

    def adopt(self, unit: LaunchedReplica) -> None:
        """Record the GPUs of a replica that already runs as in use; none: do nothing."""
        if unit.gpus:
            share = unit.gpu_request.share if unit.gpu_request is not None else 1.0
            self._ledger.adopt(unit.id, unit.gpus, share)

    def release(self, unit: LaunchedReplica) -> None:
        """Take a replica's GPUs back, and try again to place those that wait.

        They stay reserved for its ``heir``, if it has one.
        """
        unit.gpus, unit.gpu_numbers = [], ()
        self._promised.pop(unit.id, None)
        if self._ledger.release(unit.id, time.monotonic_ns(), unit.heir):
            self._wake.set()

    def promise(self, unit: LaunchedReplica, heir: str) -> None:
        """Name the heir (``heir_of``) that gets the GPUs of a leaving replica once it ends.

        Until then replicas of this heir wait for them instead of overcommitting other GPUs.
        """
        unit.heir = heir
        if heir and unit.gpus:
            self._promised[unit.id] = heir

    def has_room(self, request: GpuRequest | None, heirs: Collection[str]) -> bool | None:
        """Whether one more replica, of any of these heirs, would find GPUs now.

        True where ``request`` is None. None: the GPUs are being read in the background; ask again.
        """
        if request is None:
            return True
        now, seen = time.monotonic_ns(), self._seen
        if seen is None or now - self._seen_at > nanos(STALE_S):
            if self._refresh is None:
                self._refresh = asyncio.create_task(self._read())
            if not self._refresh.done():
                return None
            seen, self._refresh = self._refresh.result(), None
        if not seen.devices:
            return request.overcommit is not Overcommit.NEVER
        devices = seen.devices
        return any(self._ledger.has_room(request, devices, now, heir) for heir in heirs)

    async def close(self) -> None:
        """Stop placing replicas; those that wait go on waiting until they are cancelled."""
        tasks = [task for task in (self._serving, self._refresh) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- serving those that wait -----------------------------------------------------------------

    async def _serve(self) -> None:
        while self._waiting:
            self._wake.clear()
            seen = await self._read()
            for wait in list(self._waiting.values()):
                if not wait.placed.done():
                    self._try(wait, seen)
            if any(not wait.placed.done() for wait in self._waiting.values()):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
            else:
                await asyncio.sleep(0)  # those that were placed go on and leave

    async def _read(self) -> GpuInventory:
        self._seen = await self._reader.read()
        self._seen_at = time.monotonic_ns()
        return self._seen

    def _try(self, wait: _Wait, seen: GpuInventory) -> None:
        unit, request = wait.unit, wait.request
        found = self._claim(unit, request, seen)
        if found.placed or (not seen.devices and request.overcommit is not Overcommit.NEVER):
            labels = {device.uuid: device.label for device in seen.devices}
            unit.gpus = list(found.uuids)
            unit.gpu_numbers = tuple(labels[uuid] for uuid in found.uuids)
            unit.lacks = ""
            wait.placed.set_result(None)
            self._host.chosen(unit, found)
            return
        first, unit.lacks = not unit.lacks, found.reason
        self._host.queued(unit, first=first)

    def _claim(
        self, unit: LaunchedReplica, request: GpuRequest, seen: GpuInventory
    ) -> GpuPlacement:
        if not seen.devices:
            return GpuPlacement((), seen.reason)
        heir = heir_of(unit.model, unit.build)
        if heir in self._promised.values() and request.overcommit is Overcommit.ANYBODY:
            request = replace(request, overcommit=Overcommit.NEVER)
        return self._ledger.claim(unit.id, request, seen.devices, time.monotonic_ns(), heir)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("placement failed", exc_info=task.exception())


def heir_of(model: str, build: str) -> str:
    """The name, ``model/build``, under which GPUs are reserved for the next replica of a build."""
    return f"{model}/{build}"


__all__ = [
    "LOOK_S",
    "REPORT_S",
    "STALE_S",
    "GpuLack",
    "GpuPlacements",
    "GpuPlacementsPort",
    "heir_of",
]
