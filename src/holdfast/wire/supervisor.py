"""Keeps the processes of ``holdfast serve`` running: starts, restarts and stops them.

It waits for signals and for children. A child that dies is started again, at once if it had lived
for a while, else after a growing pause. A few times a second it looks at all children: one that is
frozen is killed (``process_watcher``) and then started again like any other.

A gateway writes to a pipe when it accepts connections, and when it was asked to leave (SIGTERM).
Then its successor is started first, and only when that one accepts is the gateway stopped (SIGINT).
Both accept from the same socket, which stays open here as well, so no queued connection is ever
lost.

At the end gateways go first and control last: where it started replicas it ends them itself, in
order, and is given the time for it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TextIO

import structlog

from holdfast.config.gateway import DrainingConfig
from holdfast.core.health.process_watch import ProcessWatchConfig
from holdfast.wire.process_watcher import BEAT, ProcessWatcher, WatchedProcess
from holdfast.wire.sockets import (
    close_steered,
    listeners_beside,
    steer_around,
    steer_away,
    stop_steering,
)

_RESTART_S: Final = 1.0  # the first pause before a child that died young is started again
_RESTART_MAX_S: Final = 30.0
_SETTLED_S: Final = 3.0  # whoever lived so long is started again at once
_KILL_AFTER_S: Final = 5.0  # beyond its own deadline a child is killed
_HANDSHAKE_S: Final = 0.25  # connections that were half made when new ones were steered away
_SUCCESSOR_S: Final = 20.0  # a leaving gateway waits no longer for its successor
ACCEPTS: Final = b"A"  # what a gateway says on its pipe
LEAVES: Final = b"L"
_HURRY_S: Final = 3.0  # asked twice: control still ends its replicas, the kind way takes less
_BATCH_STOP_S: Final = 10.0  # it gives back what it has not finished: nothing is lost
_ALONE_LOOK_S: Final = 1.0  # how often a successor looks whether its predecessor is gone

_log = structlog.get_logger("holdfast.serve")


@dataclass(slots=True, eq=False)
class Child:
    """One place in the process tree: its command, and the process that runs there now."""

    name: str
    command: Sequence[str]
    fds: tuple[int, ...] = ()  # what it inherits
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    deaths: int = 0  # in a row, each after a short life
    accepts: bool = False  # as it said itself


@dataclass(slots=True)
class Tree:
    """The processes and sockets that a supervisor looks after."""

    control: Child
    gateways: list[Child]
    sockets: list[socket.socket] = field(default_factory=list)  # of the gateways, kept open
    admin: list[socket.socket] = field(default_factory=list)
    in_order: bool = False  # the sockets began to listen in this order, one for each gateway
    batch: Child | None = None  # works batches off; stopped first, while gateways still serve


class Supervisor:
    """Starts control and gateways, restarts those that die or freeze, stops them in order."""

    def __init__(
        self,
        tree: Tree,
        draining: DrainingConfig,
        *,
        settled_s: float = _SETTLED_S,
        on_ready: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
        replicas_grace_s: float = 0.0,
        log: TextIO | None = None,
        hangup_stops: bool = False,
        watcher: ProcessWatcher | None = None,
    ) -> None:
        self._tree = tree
        self._watcher = watcher or ProcessWatcher(ProcessWatchConfig(), None)
        self._on_ready = on_ready  # every gateway accepts, for the first time
        self._say = say  # to people, how the end goes on
        self._replicas_grace_s = replicas_grace_s  # for control to end those it started
        self._log = log  # where children write; None: where we do
        self._hangup_stops = hangup_stops  # the terminal it was started at is the fleet's
        self._was_ready = False
        self._draining = draining
        self._settled_s = settled_s
        self._leaving: dict[subprocess.Popen[bytes], str] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._pipes: set[int] = set()
        self._avoided: frozenset[int] = frozenset()  # sockets that get no new connections
        self._stop = asyncio.Event()
        self._fast = asyncio.Event()
        self._ended = asyncio.Event()  # somebody did, since it was last cleared

    async def run(self) -> None:
        """Run the processes until a signal asks to stop, and then until all have ended."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGCHLD: self._reap,
            signal.SIGHUP: self._asked_to_stop if self._hangup_stops else self._reload,
            signal.SIGTERM: self._asked_to_stop,
            signal.SIGINT: self._asked_to_stop,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        looking = [loop.create_task(one) for one in (self._end_steering(), self._watch_children())]
        try:
            for child in self._children():
                self._start(child)
            await self._stop.wait()
            await self._take_down()
        finally:
            for task in looking:
                task.cancel()
            self._kill_everybody()
            for number in handlers:
                loop.remove_signal_handler(number)

    async def stopping(self) -> None:
        """Wait until a stop was requested."""
        await self._stop.wait()

    def _asked_to_stop(self) -> None:
        if not self._stop.is_set():
            allowed = f"requests that run have {self._draining.deadline_s:g} s to finish"
            self._say(f"stopping: {allowed}; Ctrl-C again stops at once")
        elif not self._fast.is_set():
            _log.warning("asked twice: stopping at once")
            self._say("stopping at once")
            self._fast.set()
        self._stop.set()

    def _reload(self) -> None:
        if self._tree.control.process is not None:
            self._tree.control.process.send_signal(signal.SIGHUP)

    # --- children ---

    def _children(self) -> list[Child]:
        tree = self._tree
        beside = [] if tree.batch is None else [tree.batch]
        return [tree.control, *tree.gateways, *beside]

    def _start(self, child: Child) -> None:
        if self._stop.is_set():
            return
        reading, writing = os.pipe()
        command = [*child.command, "--notice-fd", str(writing)]
        child.started_at = time.monotonic()
        try:
            child.process = subprocess.Popen(  # noqa: S603 our own commands
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(*child.fds, writing),
                start_new_session=True,  # Ctrl-C is for us; we tell them in order
            )
        except OSError as error:
            os.close(reading)
            _log.error("cannot start", child=child.name, reason=error.strerror)
            self._start_later(child)
            return
        finally:
            os.close(writing)
        child.accepts = False
        self._pipes.add(reading)
        process = child.process
        asyncio.get_running_loop().add_reader(reading, self._on_notice, child, process, reading)
        _log.info("started", child=child.name, pid=process.pid)

    def _on_notice(self, child: Child, process: subprocess.Popen[bytes], reading: int) -> None:
        """Handle what a child wrote to its pipe; a closed pipe means that it ended."""
        said = os.read(reading, 64)
        if not said:
            self._close_pipe(reading)
        if BEAT in said:
            self._watcher.beat(process.pid)
        if child.process is not process or self._stop.is_set():
            return
        if ACCEPTS in said:
            child.accepts = True
            _log.info("accepts", child=child.name, pid=process.pid)
            self._release(child.name)
            if not self._was_ready and all(one.accepts for one in self._tree.gateways):
                self._was_ready = True
                self._on_ready()
        if LEAVES in said:
            _log.info("leaves; its successor starts", child=child.name, pid=process.pid)
            self._leaving[process] = child.name
            child.process = None
            child.deaths = 0
            self._start(child)
            self._later(_SUCCESSOR_S, lambda: self._release(child.name))

    def _release(self, name: str) -> None:
        """Stop the predecessor of a gateway that accepts connections now."""
        for process, leaving in self._leaving.items():
            if leaving == name and process.poll() is None:
                process.send_signal(signal.SIGINT)

    def _close_pipe(self, reading: int) -> None:
        asyncio.get_running_loop().remove_reader(reading)
        os.close(reading)
        self._pipes.discard(reading)

    def _reap(self) -> None:
        """Collect children that ended, and start them again; SIGCHLD does not say which."""
        for left in [one for one in self._leaving if one.poll() is not None]:
            name = self._leaving.pop(left)
            _log.info("left", child=name, pid=left.pid, status=left.returncode)
        for child in self._children():
            process = child.process
            if process is None or process.poll() is None:
                continue
            child.process = None
            _log.warning("ended", child=child.name, pid=process.pid, status=process.returncode)
            if time.monotonic() - child.started_at >= self._settled_s:
                child.deaths = 0
                self._start(child)
            else:
                self._start_later(child)
        self._ended.set()

    async def _watch_children(self) -> None:
        """Look for frozen children until stopping begins: the end has deadlines of its own."""
        while not self._stop.is_set():
            await asyncio.sleep(self._watcher.config.look_s)
            here = [(child.name, child.process) for child in self._children()]
            watched = [WatchedProcess(name, process) for name, process in here if process]
            leaving = self._leaving.items()
            watched += [WatchedProcess(name, process, draining=True) for process, name in leaving]
            try:
                self._watcher.look(watched)
                self._steer_around()
            except Exception:  # noqa: BLE001 children must not lose their watch by one mistake
                _log.exception("look at the children failed")

    def _steer_around(self) -> None:
        """Lead new connections past the sockets at which nobody accepts, while others do."""
        tree = self._tree
        places = enumerate(tree.gateways if tree.in_order else ())
        avoided = frozenset(place for place, child in places if not self._accepts(child))
        if avoided == self._avoided or listeners_beside(tree.sockets):
            return
        self._avoided = avoided
        steered = steer_around(tree.sockets, avoided)
        _log.info("new connections", avoid=sorted(avoided) if steered else [])

    def _accepts(self, child: Child) -> bool:
        """Whether somebody accepts at the socket of a gateway: it, or one that leaves its place."""
        frozen = self._watcher.frozen
        if child.process is not None and child.accepts and child.process.pid not in frozen:
            return True
        return any(
            name == child.name and process.pid not in frozen
            for process, name in self._leaving.items()
        )

    def _start_later(self, child: Child) -> None:
        if self._stop.is_set():
            return
        pause_s = min(_RESTART_S * 2.0**child.deaths, _RESTART_MAX_S)
        child.deaths = min(child.deaths + 1, 16)
        _log.info("starts again later", child=child.name, pause_s=pause_s)
        self._later(pause_s, lambda: self._start(child))

    def _later(self, delay_s: float, do: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            do()

        timer = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers.add(timer)

    def _running(self, children: Sequence[Child]) -> list[subprocess.Popen[bytes]]:
        found = [child.process for child in children if child.process is not None]
        return [*found, *self._leaving] if children is self._tree.gateways else found

    # --- the end ---

    async def _take_down(self) -> None:
        tree = self._tree
        for timer in self._timers:
            timer.cancel()
        _log.info("stopping")
        steered = [own for own in (tree.sockets, tree.admin) if own and steer_away(own)]
        if steered:
            _log.info("new connections go to the successor")
            await asyncio.sleep(_HANDSHAKE_S)
        if tree.batch is not None:
            for process in self._running([tree.batch]):
                process.send_signal(signal.SIGTERM)
            await self._gone([tree.batch], _BATCH_STOP_S)
        for process in self._running(tree.gateways):
            process.send_signal(signal.SIGINT)  # SIGTERM would ask for successors
        for own in (tree.sockets, tree.admin):
            if own not in steered:  # nobody would accept what is queued at our copies
                for sock in own:
                    sock.close()
        await self._gone(tree.gateways, self._draining.deadline_s + _KILL_AFTER_S)
        for process in self._running([tree.control]):
            process.send_signal(signal.SIGTERM)
        if self._replicas_grace_s:
            self._say("clients are served out; control ends what it started")
        hurry_s = min(_HURRY_S, self._replicas_grace_s)
        await self._gone([tree.control], max(_KILL_AFTER_S, self._replicas_grace_s), hurry_s)
        if self._replicas_grace_s and self._running([tree.control]):
            self._say("control was killed; replicas that are left end themselves in two minutes")
        for own in steered:
            close_steered(own)
        _log.info("stopped")

    async def _gone(
        self, children: Sequence[Child], deadline_s: float, hurry_s: float = 0.0
    ) -> None:
        """Wait for children to end; kill those left at the deadline or after a second signal."""
        fast = asyncio.ensure_future(self._hurried(hurry_s))
        try:
            async with asyncio.timeout(deadline_s):
                while self._running(children) and not fast.done():
                    self._ended.clear()
                    ended = asyncio.ensure_future(self._ended.wait())
                    await asyncio.wait({fast, ended}, return_when=asyncio.FIRST_COMPLETED)
                    ended.cancel()
        except TimeoutError:
            _log.warning("too slow: killed", processes=len(self._running(children)))
        finally:
            fast.cancel()
        for process in self._running(children):
            process.kill()

    async def _hurried(self, hurry_s: float) -> None:
        await self._fast.wait()
        await asyncio.sleep(hurry_s)

    def _kill_everybody(self) -> None:
        """Kill all children, so that none outlives the supervisor."""
        tree = self._tree
        alone = [tree.control] if tree.batch is None else [tree.control, tree.batch]
        for process in (*self._running(tree.gateways), *self._running(alone)):
            process.kill()
            process.wait()
        for reading in list(self._pipes):
            self._close_pipe(reading)

    async def _end_steering(self) -> None:
        """After a takeover: once the predecessor is gone, let the kernel spread connections."""
        for sockets in (self._tree.sockets, self._tree.admin):
            while sockets and listeners_beside(sockets):  # noqa: ASYNC110 nobody would tell us
                await asyncio.sleep(_ALONE_LOOK_S)
            if sockets:
                stop_steering(sockets)


__all__ = ["ACCEPTS", "LEAVES", "Child", "Supervisor", "Tree"]
