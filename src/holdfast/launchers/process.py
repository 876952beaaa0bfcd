"""Launches replicas as processes of this host, each under a keeper that outlives control.

Control talks to keepers through a folder per replica and through signals, and learns of their end
through a pidfd. Control sends no message when it ends itself, so a control that is killed leaves a
fleet that the next one finds: every folder with a living keeper is adopted, every other one is
reported as ended. A pid alone proves nothing, since pids are used again: its start time and the
kernel's boot id must match too.

A look every 200 ms reads the new lines of the logs and whether an engine was suspended.
Rejected: inotify, which would save these reads but does not see /proc and adds a second path.
Engines frozen through a cgroup are not seen as suspended; their canaries find it.

Linux only: pidfds, /proc, and the death signal do not exist elsewhere.
"""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import structlog

from holdfast.launchers import keeper
from holdfast.launchers import replica_folder as folders
from holdfast.launchers.environment import engine_environment
from holdfast.launchers.log_tail import LogTail
from holdfast.ports import Adopted, Ended, LaunchError, Order, Watcher

_LOOK_S: Final = 0.2  # at logs and process states
_RENEW_S: Final = 5.0  # far below any sensible lease
_NOTICE_S: Final = 30.0  # a keeper that says nothing for so long has no chance any more
_NOTICE_BYTES: Final = 4096
_BEYOND_S: Final = 5.0  # after its grace a keeper has so long to tell of the end
_CLOSE_GRACE_S: Final = 5.0  # whoever closes without leaving them running has drained before
_NAME_BYTES_MAX: Final = 200  # a folder's name may have 255
_YIELD_EVERY: Final = 16  # replicas looked at before others get their turn

_log = structlog.get_logger("holdfast.launcher")


class _Running:
    """One replica that has a living keeper."""

    __slots__ = (
        "done",
        "ended",
        "engine",
        "folder",
        "frozen_looks",
        "keeper",
        "order",
        "pidfd",
        "started_at",
        "tail",
        "zombie_looks",
    )

    def __init__(
        self, order: Order, folder: Path, known: Mapping[str, Any], pidfd: int, tail: LogTail
    ) -> None:
        self.order = order
        self.folder = folder
        self.keeper: int = known["keeper"]
        self.engine: int = known["engine"]
        self.started_at: float = known["started_at"]
        self.pidfd = pidfd
        self.tail = tail
        self.frozen_looks = 0  # in a row
        self.zombie_looks = 0
        self.done = asyncio.Event()
        self.ended: Ended | None = None


class ProcessLauncher:
    """The ``Launcher`` port for processes of this host."""

    def __init__(self, directory: Path, lease_s: float = 120.0) -> None:
        if lease_s <= 0:
            raise ValueError(f"lease_s must be positive (is {lease_s})")
        self._directory = directory
        self._lease_s = lease_s
        self._watcher: Watcher | None = None
        self._running: dict[str, _Running] = {}
        self._starting: set[str] = set()
        self._withheld: set[str] = set()  # names of variables, each logged once
        self._tasks: set[asyncio.Task[Any]] = set()  # starts and ends under way
        self._looking: asyncio.Task[None] | None = None

    # --- the port ---

    async def adopt(self, watcher: Watcher) -> list[Adopted]:
        """Take over replicas that run already, and report those that ended; see the port."""
        if not hasattr(os, "pidfd_open"):
            raise LaunchError("starting replicas needs Linux; list running ones as endpoints")
        assert self._watcher is None, "adopt is called once"
        self._watcher = watcher
        alive, gone = await asyncio.to_thread(folders.survey, self._directory)
        adopted = []
        for found in alive:
            pidfd = _open_keeper(found.known)
            if pidfd is None:
                gone.append(found)  # ended since it was looked at
                continue
            tail = LogTail(found.path / keeper.LOG)
            tail.skip_to_end()  # those lines were told to an earlier control
            running = self._watch(found.order, found.path, found.known, pidfd, tail)
            adopted.append(Adopted(found.order, running.engine, running.started_at))
        for found in gone:
            ended = await asyncio.to_thread(folders.how_it_ended, found.path, found.known)
            self._tell(watcher.ended, found.order.replica_id, ended)
        self._renew()
        self._looking = asyncio.get_running_loop().create_task(self._look_on())
        return adopted

    async def start(self, order: Order) -> int:
        """Start a replica under a keeper; a caller that stops waiting does not stop it."""
        assert self._watcher is not None, "adopt comes first"
        name = order.replica_id
        if name in self._running or name in self._starting:
            raise LaunchError(f"replica {name!r} runs already; stop it first")
        if not order.command:
            raise LaunchError(f"replica {name!r} has no command to run")
        folder = self._folder(name)
        self._starting.add(name)
        return await asyncio.shield(self._task(self._start(order, folder, self._watcher)))

    async def stop(self, replica_id: str, grace_s: float) -> Ended | None:
        """Send SIGTERM and SIGCONT, later SIGKILL, to the whole process group."""
        running = self._running.get(replica_id)
        if running is None:
            return None
        stopping = str(running.folder / keeper.STOP)
        await asyncio.to_thread(keeper.write_whole, stopping, {"grace_s": grace_s})
        for number in (signal.SIGTERM, signal.SIGCONT):  # somebody may have suspended the keeper
            _send(running, number)
        if not await _done(running, grace_s + _BEYOND_S):
            _log.warning("its keeper did not end it: both are killed", replica=replica_id)
            _send(running, signal.SIGKILL)  # and the engine with it
            if not await _done(running, _BEYOND_S):
                raise LaunchError(f"process {running.engine} cannot be killed: the kernel holds it")
        return running.ended

    def pid(self, replica_id: str) -> int | None:
        """The pid of a replica's engine; None if it does not run."""
        running = self._running.get(replica_id)
        return None if running is None else running.engine

    def log_path(self, replica_id: str) -> Path | None:
        """The path of a replica's newer log file."""
        path = self._folder(replica_id) / keeper.LOG
        return path if path.exists() else None

    def forget(self, replica_id: str) -> None:
        """Remove a replica's folder, unless it runs."""
        if replica_id not in self._running and replica_id not in self._starting:
            shutil.rmtree(self._folder(replica_id), ignore_errors=True)

    async def close(self, *, leave_running: bool) -> None:
        """Stop watching the replicas, which go on or are ended first."""
        if not leave_running:
            names = list(self._running)
            stops = (self.stop(name, _CLOSE_GRACE_S) for name in names)
            for name, result in zip(
                names, await asyncio.gather(*stops, return_exceptions=True), strict=True
            ):
                if isinstance(result, BaseException):
                    _log.error("could not be stopped", replica=name, reason=str(result))
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for running in self._running.values():
            self._let_go(running)
        self._running.clear()

    # --- starting ---

    def _folder(self, replica_id: str) -> Path:
        name = quote(replica_id, safe="")
        if name.startswith("."):
            name = f"%2E{name[1:]}"
        if not 0 < len(name) <= _NAME_BYTES_MAX:
            raise LaunchError(f"a replica's id has 1 to {_NAME_BYTES_MAX} characters")
        return self._directory / name

    async def _start(self, order: Order, folder: Path, watcher: Watcher) -> int:
        tail = LogTail(folder / keeper.LOG)
        try:
            tail.skip_to_end()
            known, pidfd = await self._launch(order, folder)
        except OSError as error:
            tail.close()
            raise LaunchError(f"cannot use the folder {folder}: {error.strerror}") from error
        except LaunchError:
            tail.close()
            raise
        finally:
            self._starting.discard(order.replica_id)
        running = self._watch(order, folder, known, pidfd, tail)
        self._tell(watcher.started, order.replica_id, running.engine)
        return running.engine

    async def _launch(self, order: Order, folder: Path) -> tuple[dict[str, Any], int]:
        """Start the keeper, hear from it that the engine runs, hold its pidfd."""
        around = self._environment(order)
        reading, writing = os.pipe()
        try:
            pid = await asyncio.to_thread(
                folders.spawn, order, folder, self._lease_s, writing, around
            )
        except (OSError, LaunchError):
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            async with asyncio.timeout(_NOTICE_S):
                said = await _heard(reading)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)  # the engine goes with it, should there be one
            said = b""
        finally:
            os.close(reading)
        notice = json.loads(said) if said else {}
        if "pid" not in notice:
            await asyncio.to_thread(os.waitpid, pid, 0)
            words = folders.last_words(folder)
            why = notice.get("error") or f"its keeper failed{f' ({words})' if words else ''}"
            folders.give_up(folder)
            raise LaunchError(
                f"cannot start {order.command[0]!r}: {why}; check that it is installed and can run"
            )
        known = await asyncio.to_thread(folders.read, folder / keeper.KEEPER)
        assert known is not None, "its keeper wrote it before the notice"
        return known, os.pidfd_open(pid)  # our child: its number is its own until it is reaped

    def _environment(self, order: Order) -> dict[str, str]:
        """What the keeper and the engine inherit; names of the rest are logged once."""
        own = dict(os.environ)
        around = engine_environment(own, order.pass_env)
        withheld = own.keys() - around.keys() - self._withheld
        if withheld:
            self._withheld |= withheld
            fix = "name what an engine needs under launch.pass_env"
            _log.info("variables withheld from engines", names=sorted(withheld), fix=fix)
        unset = [name for name in order.pass_env if name not in own]
        if unset:
            fix = "set them where holdfast is started, or remove them from launch.pass_env"
            _log.warning("variables not set", replica=order.replica_id, names=unset, fix=fix)
        return around

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- watching ---

    def _watch(
        self, order: Order, folder: Path, known: Mapping[str, Any], pidfd: int, tail: LogTail
    ) -> _Running:
        running = _Running(order, folder, known, pidfd, tail)
        self._running[order.replica_id] = running
        asyncio.get_running_loop().add_reader(pidfd, self._on_end, running)
        return running

    def _on_end(self, running: _Running) -> None:
        asyncio.get_running_loop().remove_reader(running.pidfd)
        self._task(self._finish(running))

    async def _finish(self, running: _Running) -> None:
        """Its keeper has ended: the last lines, then the cause."""
        watcher = self._watcher
        assert watcher is not None
        name = running.order.replica_id
        ended = await asyncio.to_thread(_ended_now, running)
        for line in running.tail.lines():
            self._tell(watcher.line, name, line)
        self._let_go(running)
        del self._running[name]
        running.ended = ended
        self._tell(watcher.ended, name, ended)
        running.done.set()

    def _let_go(self, running: _Running) -> None:
        asyncio.get_running_loop().remove_reader(running.pidfd)
        os.close(running.pidfd)
        running.tail.close()

    async def _look_on(self) -> None:
        """Logs and states, and now and then the leases, for as long as control runs."""
        renew_at = time.monotonic() + min(_RENEW_S, self._lease_s / 4)
        while True:
            await asyncio.sleep(_LOOK_S)
            for count, running in enumerate(list(self._running.values()), 1):
                if not running.done.is_set():
                    self._look_safely(running)
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + min(_RENEW_S, self._lease_s / 4)
                self._renew()

    def _look_safely(self, running: _Running) -> None:
        """Whatever is wrong with one must not end the watching: all leases would run out."""
        try:
            self._look_at(running)
        except Exception:  # noqa: BLE001 see above
            _log.exception("cannot be watched", replica=running.order.replica_id)

    def _look_at(self, running: _Running) -> None:
        watcher = self._watcher
        assert watcher is not None
        name = running.order.replica_id
        for line in running.tail.lines():
            self._tell(watcher.line, name, line)
        found = keeper.stat(running.engine)
        state = "" if found is None else found[0]
        # A process that was killed keeps its connections until its memory is freed, which takes
        # seconds where that is much or the machine is busy. Nobody may wait for it meanwhile.
        if state in {"T", "t", "Z", ""}:
            running.frozen_looks += 1
            if running.frozen_looks == 2:  # once may be a debugger that attaches
                self._tell(watcher.stopped, name, True)
        else:
            if running.frozen_looks >= 2:
                self._tell(watcher.stopped, name, False)
            running.frozen_looks = 0
        running.zombie_looks = running.zombie_looks + 1 if state in {"Z", ""} else 0
        if running.zombie_looks == 2:  # it is dead and nobody says so
            _log.warning("its keeper does not notice its end", replica=name)
            _send(running, signal.SIGCONT)

    def _renew(self) -> None:
        for running in self._running.values():
            try:
                os.utime(running.folder / keeper.LEASE)
            except OSError as error:
                _log.error(
                    "its lease cannot be renewed",
                    replica=running.order.replica_id,
                    reason=error.strerror,
                )

    def _tell(self, tell: Callable[..., None], *news: object) -> None:
        """As above: what the watcher does with the news is its own affair."""
        try:
            tell(*news)
        except Exception:  # noqa: BLE001 see above
            _log.exception("the watcher failed", replica=news[0])


# --- one replica ----------------------------------------------------------------------------------


def _open_keeper(known: Mapping[str, Any]) -> int | None:
    """A pidfd of it; None where it ended meanwhile."""
    try:
        pidfd = os.pidfd_open(known["keeper"])
    except ProcessLookupError:
        return None
    if keeper.runs(known["keeper"], known["keeper_start"]):
        return pidfd
    os.close(pidfd)  # asked after opening: only now the number cannot change hands
    return None


def _ended_now(running: _Running) -> Ended:
    """Its keeper has ended just now."""
    try:
        os.waitpid(running.keeper, os.WNOHANG)
    except ChildProcessError:
        _log.debug("reaped by another parent", pid=running.keeper)  # adopted: not our child
    known = folders.read(running.folder / keeper.KEEPER) or {}
    return folders.how_it_ended(running.folder, known)


def _send(running: _Running, number: int) -> None:
    try:
        signal.pidfd_send_signal(running.pidfd, number)
    except ProcessLookupError:
        _log.debug("ended before the signal", replica=running.order.replica_id)


async def _done(running: _Running, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await running.done.wait()
    except TimeoutError:
        return False
    return True


async def _heard(reading: int) -> bytes:
    """What is written into a pipe, once; empty where its other end is closed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(reading, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(reading)
    return os.read(reading, _NOTICE_BYTES)


__all__ = ["ProcessLauncher"]
