"""Injects one fault into a running fleet and undoes it, as a context manager.

    signals to processes       crash, zone_loss, region_loss, stop, load_stall
    a proxy before it          hang, slow, drip, cut, wrong_output and all that is done to bytes
    a process beside it        memory, leak
    control's own view         silence, skew, spot_notice, probe_blind

What control is asked to do ends by itself after the time it was asked for, so that a game day that
is killed leaves nothing behind. A stopped process is continued by the process that stopped it; if
that is killed, the fleet restarts a frozen replica anyway.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from holdfast.chaos.proxy import Dose, FaultProxy, Toxic
from holdfast.chaos.target import ChaosError, ChaosTarget
from holdfast.config.chaos import StepSection

RESTART_S: Final = 60.0
SLACK_S: Final = 10.0  # control keeps a disturbance so much longer than we do
_PORTS: Final = {"http": 80, "https": 443}
_LOAD_LOOK_S: Final = 0.2
_STEPS: Final = 50  # of a leak
_PICTURED: Final = ("silence", "skew", "spot_notice", "probe_blind")
# Takes memory at once, or in steps over a time, and lets go of it by itself.
_BALLAST: Final = """
import sys, time
megabytes, lasts, steps = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
held = []
for step in range(steps):
    held.append(bytearray((megabytes << 20) // steps))
    held[-1][::4096] = b"x" * len(held[-1][::4096])
    if not step:
        print("held", flush=True)
    time.sleep(lasts / steps)
"""

_KILLED_WITH: Final = {"crash": "", "zone_loss": "zone", "region_loss": "region"}


@contextlib.asynccontextmanager
async def injected(target: ChaosTarget, step: StepSection, replica: str) -> AsyncIterator[None]:
    """Context manager: the fault is active inside and is undone on exit, also after an error."""
    fault = step.fault
    if fault in _KILLED_WITH:
        await _kill(target, replica, _KILLED_WITH[fault])
        yield  # undone by whoever starts them anew
    elif fault == "stop":
        async with _stopped(await target.process_of(replica)):
            yield
    elif fault == "load_stall":
        async with _stopped(await _restarted(target, replica)):
            yield
    elif fault in ("memory", "leak"):
        async with _ballast(target, replica, step):
            yield
    elif fault in _PICTURED:
        await target.check(replica)
        await target.disturb(replica, fault, step.lasts + SLACK_S)
        try:
            yield
        finally:
            await target.undisturb(replica)
    else:
        async with _proxied(target, replica, step):
            yield


async def _kill(target: ChaosTarget, replica: str, place: str) -> None:
    """Kill a replica, and with a place (zone or region) all that are in the same."""
    row = await target.check(replica)
    victims = [replica]
    if place and row.get(place):
        rows = await target.replicas()
        victims = [str(one["id"]) for one in rows if one.get(place) == row.get(place)]
    for pid in [await target.process_of(victim) for victim in victims]:
        os.kill(pid, signal.SIGKILL)


async def _restarted(target: ChaosTarget, replica: str) -> int:
    """The new process of a replica, as soon as there is one."""
    before = await target.process_of(replica)
    await target.ask(f"/replicas/{quote(replica)}/restart", {})
    loop = asyncio.get_running_loop()
    until = loop.time() + RESTART_S
    while loop.time() < until:
        rows = {row["id"]: row.get("pid") for row in await target.replicas()}
        pid = rows.get(replica)
        if isinstance(pid, int) and pid != before:
            return pid
        await asyncio.sleep(_LOAD_LOOK_S)
    raise ChaosError(f"{replica} was not restarted within {RESTART_S:g} s")


@contextlib.asynccontextmanager
async def _stopped(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was restarted meanwhile
            os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def _proxied(target: ChaosTarget, replica: str, step: StepSection) -> AsyncIterator[None]:
    row = await target.check(replica)
    parts = urlsplit(str(row["endpoint"]))
    pid = await target.process_of(replica) if step.fault == "oom" else 0
    port = parts.port or _PORTS.get(parts.scheme, 80)
    proxy = FaultProxy(parts.hostname or "", port, at_request=lambda: _end(pid))
    await proxy.open()
    try:
        dose = Dose(Toxic(step.fault), step.delay, step.factor, step.pieces, step.share)
        await proxy.set(dose)
        await target.disturb(replica, "detour", step.lasts + SLACK_S, url=proxy.url)
        try:
            yield
        finally:
            await target.undisturb(replica)
    finally:
        await proxy.close()


@contextlib.asynccontextmanager
async def _ballast(target: ChaosTarget, replica: str, step: StepSection) -> AsyncIterator[None]:
    """Memory that somebody else takes, from the replica's own share where it has one."""
    pid = await target.process_of(replica)
    steps = _STEPS if step.fault == "leak" else 1
    how = (str(step.megabytes), str(step.lasts + SLACK_S), str(steps))
    words = [sys.executable, "-c", _BALLAST, *how]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        _share_cgroup(pid, process.pid)
        assert process.stdout is not None, "it was asked for"
        await process.stdout.readline()
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # the kernel may have taken it first
            process.kill()
        await process.wait()


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the first request was enough
        os.kill(pid, signal.SIGKILL)


def _share_cgroup(pid: int, guest: int) -> bool:
    """Put a process where another one is; False where that is not ours to do."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        place = next(line[3:] for line in lines if line.startswith("0::"))
        Path(f"/sys/fs/cgroup{place}/cgroup.procs").write_text(str(guest))
    except (OSError, StopIteration):
        return False
    return True


__all__ = ["injected"]
