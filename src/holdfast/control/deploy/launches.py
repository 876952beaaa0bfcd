"""Starts and stops processes of launched replicas, one operation at a time for each replica.

    Launch ─► GPUs ─► gate ─► launcher.start ─► log lines and the health page ─► Phase events
    Stop ───► launcher.stop (kindly, then by force)        the process ends ─► Exited

A stop that is under way is waited for before the next start, so that a relaunch finds its port
free. An end that we brought about ourselves is not reported: the fleet asked for it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from holdfast.control.deploy.gpu_placements import GpuPlacements, heir_of
from holdfast.control.deploy.launched_replica import LaunchedReplica, free_port, is_free
from holdfast.control.fetch import FetchError, HttpAnswer, fetch, listens
from holdfast.core.deploy.gpu_placement import GpuPlacement
from holdfast.core.deploy.launches import LaunchGate
from holdfast.core.diagnose.detect.silence import (
    COMPILE,
    LOADING,
    LOG,
    SERVING,
    STARTING,
    Heartbeat,
    SilenceConfig,
)
from holdfast.core.diagnose.facts import (
    Fact,
    HostConditionSeen,
    LineSeen,
    PhaseSeen,
    ProcessEnded,
    ProcessFrozen,
)
from holdfast.core.failure import Kind
from holdfast.core.messages import Exited, FleetEvent, Frozen, Phase
from holdfast.core.types import ConfigError, HostCondition, State, nanos, seconds
from holdfast.engines import Dialect, dialect
from holdfast.engines.log_marks import mark_of
from holdfast.engines.startup_log import fatal_of, nccl_of, phase_of
from holdfast.ports import (
    Ended,
    GpuReader,
    Launcher,
    LaunchError,
    NoRoomError,
    PlacingLauncher,
)

GATE_LOOK_S: Final = 5.0  # at most, before whoever waits for its turn asks again
ROOM_LOOK_S: Final = 2.0  # before a platform without room is asked again
HEALTH_LOOK_S: Final = 0.2  # between looks at the health page of one that loads
HEALTH_S: Final = 1.0
PAGE_DOUBT_S: Final = 10.0  # of errors that do not mean loading: the page is broken, ask a question
UNREADY_DOUBT_S: Final = 60.0  # of a 503 without a word: some engines say so while they warm up
STOP_GRACE_S: Final = 5.0  # nothing of users' is on it by then; engines tidy up in less

_NO_SUCH_PAGE: Final = frozenset({404, 405, 501})  # the server is there and has no such page

_log = structlog.get_logger("holdfast.control.deploy.launches")


class LaunchesPort(Protocol):
    """Receives the reports of ``Launches``; ``Deployments`` implements it."""

    def tell(self, *events: FleetEvent) -> None:
        """Pass events about a replica to the fleet's state machine."""

    def saw(self, fact: Fact) -> None:
        """Pass a fact about a replica to the investigation of failures."""

    def kept(self, unit: LaunchedReplica) -> None:
        """Store a replica whose lasting fields were changed."""

    def moved(self, unit: LaunchedReplica) -> None:
        """Store a replica's new address and announce it."""

    def gone(self, unit: LaunchedReplica) -> None:
        """Forget a removed replica whose process has ended."""

    def leaving(self, unit: LaunchedReplica, reason: str) -> None:
        """Handle that a replica's host is about to go: another replica is to take its place."""

    def queued(self, unit: LaunchedReplica, *, first: bool) -> None:
        """Handle that a replica waits for GPUs or a place; ``first``: the wait begins."""

    def chosen(self, unit: LaunchedReplica, placement: GpuPlacement) -> None:
        """Handle that GPUs were chosen for a replica, or that it starts without a choice."""


class Launches:
    """Starts and stops processes of launched replicas, and reports their phases and ends.

    One operation at a time for each replica, all in the background.
    """

    def __init__(
        self,
        launcher: Launcher,
        gate: LaunchGate,
        units: Mapping[str, LaunchedReplica],
        host: LaunchesPort,
        gpus: GpuReader,
    ) -> None:
        self._launcher = launcher
        self._gate = gate
        self._units = units
        self._host = host
        self._jobs: dict[asyncio.Task[None], tuple[str, bool]] = {}  # whose, and if it starts
        self._turns: dict[str, asyncio.Lock] = {}  # one thing at a time for each replica
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._expected: set[str] = set()  # whose end we brought about
        self._frozen: set[str] = set()  # whose process was said to be suspended
        self._room = asyncio.Event()  # a load ended: whoever waits for its turn may ask again
        self.placements = GpuPlacements(gpus, self)
        self.heartbeats: dict[str, Heartbeat] = {}  # of those that run
        self.deaf: Callable[[str], bool] = lambda _: False  # to one of them, for a game day

    # --- what the fleet asks for -----------------------------------------------------------------

    def launch(self, unit: LaunchedReplica, delay: int) -> None:
        """Start a replica's process in the background, after ``delay`` ns and earlier operations.

        It waits for its GPUs and its turn to load. A process that already runs is only watched; one
        being removed is not started.
        """
        self._begin(unit.id, self._start(unit, seconds(delay)), starts=True)

    def stop(self, unit: LaunchedReplica, after_s: float = 0.0) -> None:
        """Stop a replica's process in the background, after ``after_s``, and cancel pending starts.

        Its end is not reported as a failure. A replica being removed is then forgotten through
        ``gone``.
        """
        for task, (replica_id, starts) in self._jobs.items():
            if starts and replica_id == unit.id:
                task.cancel()
        self._begin(unit.id, self._end(unit, after_s), starts=False)

    def _begin(self, replica_id: str, job: Coroutine[Any, Any, None], *, starts: bool) -> None:
        task = asyncio.create_task(job)
        self._jobs[task] = (replica_id, starts)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        replica_id, _ = self._jobs.pop(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("launch failed", replica=replica_id, exc_info=task.exception())

    def _turn(self, unit: LaunchedReplica) -> asyncio.Lock:
        return self._turns.setdefault(unit.id, asyncio.Lock())

    async def _start(self, unit: LaunchedReplica, delay_s: float) -> None:
        async with self._turn(unit):
            await asyncio.sleep(delay_s)
            if unit.removing:
                return
            pid = self._launcher.pid(unit.id)
            if pid is not None:  # adopted while it loads, or declared anew: it is only watched
                self.started(unit.id, pid)
                return
            self._expected.discard(unit.id)
            if unit.id in self._frozen:  # that was said of the process before this one
                self.stopped(unit.id, stopped=False)
            unit.phase, unit.fatal, unit.heir = "waits for its turn to load", None, ""
            try:
                await self.placements.place(unit)
                await self._wait_for_room(unit)
                await self._find_place(unit)
                await _whole(self._launcher.start(unit.order()))
            except (LaunchError, ConfigError) as error:
                self.placements.release(unit)
                self._loaded(unit, well=False)
                self._host.saw(ProcessEnded(unit.id, phase=STARTING, uptime_s=0.0))
                self._exited(unit, Kind.EXITED, str(error))
            except asyncio.CancelledError:
                if self._launcher.pid(unit.id) is None:  # else its end releases them
                    self.placements.release(unit)
                raise

    async def _wait_for_room(self, unit: LaunchedReplica) -> None:
        while not self._gate.ask(unit.id, unit.spec.weights, time.monotonic_ns()):
            self._room.clear()
            # Who does not ask again loses its place; and of a load that was lost nobody is told.
            again = asyncio.get_running_loop().call_later(GATE_LOOK_S, self._room.set)
            try:
                await self._room.wait()
            finally:
                again.cancel()
        self._gate.began(unit.id)

    async def _find_place(self, unit: LaunchedReplica) -> None:
        """Get the replica a host and a port: of its platform, or a free port of this host."""
        launcher = self._launcher
        if not (isinstance(launcher, PlacingLauncher) and launcher.places(unit.on)):
            self._find_port(unit)
            return
        try:
            while True:
                try:
                    place = await launcher.place(unit.on, unit.place_request())
                    break
                except NoRoomError as error:
                    first, unit.lacks = not unit.lacks, str(error)
                    self.queued(unit, first=first)
                self._loaded(unit, well=False)  # others load meanwhile
                await asyncio.sleep(ROOM_LOOK_S)
                await self._wait_for_room(unit)
        finally:
            unit.lacks = ""
        unit.take_place(place)
        for other in self._units.values():  # platforms give addresses of those that ended to others
            if other is not unit and other.url == unit.url:
                other.leave_place({each.spec.port for each in self._units.values()})
        unit.phase = "waits for its turn to load"
        self._host.moved(unit)

    def _find_port(self, unit: LaunchedReplica) -> None:
        if not is_free(unit.spec.port):
            taken = {one.spec.port for one in self._units.values()}
            unit.spec = replace(unit.spec, port=free_port(taken))
            self._host.moved(unit)

    async def _end(self, unit: LaunchedReplica, after_s: float) -> None:
        async with self._turn(unit):
            if after_s and self._launcher.pid(unit.id) is not None:
                await asyncio.sleep(after_s)
            self._expected.add(unit.id)
            self._unwatch(unit.id)
            self._loaded(unit, well=False)
            if not unit.removing and not unit.held:  # it is started again: its place is kept
                unit.heir = heir_of(unit.model, unit.build)
            await self._launcher.stop(unit.id, STOP_GRACE_S)
            unit.pid, unit.loaded = None, False
            self.placements.release(unit)  # of one whose process did not run
            if unit.removing:
                self._launcher.forget(unit.id)
                self._expected.discard(unit.id)
                self._turns.pop(unit.id, None)
                self._host.gone(unit)

    async def close(self, *, leave_running: bool) -> None:
        """Cancel all operations; the processes run on for the next control, or are stopped."""
        tasks = [*self._jobs, *self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.placements.close()
        self._expected.update(self._units)
        await self._launcher.close(leave_running=leave_running)

    # --- what is heard of them (Watcher) ---------------------------------------------------------

    def adopted(self, unit: LaunchedReplica, pid: int, started_at: float) -> None:
        """Take over the running process of a replica that an earlier control started.

        One that has loaded counts as serving at once.
        """
        unit.pid = pid
        unit.began = time.monotonic_ns() - nanos(max(0.0, time.time() - started_at))
        if unit.loaded:
            self._doing(unit, SERVING)
            self._gate.warm(unit.spec.weights)
            beat = self.heartbeats[unit.id] = Heartbeat(SilenceConfig(), time.monotonic_ns())
            beat.phase(SERVING, time.monotonic_ns())

    def started(self, replica_id: str, pid: int) -> None:
        """Handle the start of a replica's process: report it as loading and watch its health page.

        The launcher calls it; once the page answers, the replica is reported as warming.
        """
        unit = self._units.get(replica_id)
        if unit is None:
            return
        unit.pid, unit.loaded = pid, False
        unit.phase = "starts"
        self._host.kept(unit)
        now = time.monotonic_ns()
        if unit.began is None:  # else it was adopted while it loads
            unit.began = now
        self.heartbeats[unit.id] = Heartbeat(SilenceConfig(), now)
        self._doing(unit, STARTING)
        self._host.tell(Phase(replica_id, State.STARTING), Phase(replica_id, State.LOADING))
        self._unwatch(replica_id)
        self._watching[replica_id] = asyncio.create_task(self._watch_health(unit))

    def heard(self, replica_id: str, source: str, now: int) -> None:
        """Record a sign of life of a running launched replica; others are ignored."""
        beat = self.heartbeats.get(replica_id)
        if beat is not None and not self.deaf(replica_id):
            beat.beat(source, now)

    def line(self, replica_id: str, text: str) -> None:
        """Handle a line of an engine's log: always a sign of life.

        Some lines also report a fact, name a loading phase, a cause of failure or the NCCL version.
        Lines are not stored here.
        """
        unit = self._units.get(replica_id)
        if unit is None:
            return
        now = time.monotonic_ns()
        self.heard(replica_id, LOG, now)
        known = dialect(unit.engine)
        meant = mark_of(known, text)
        if meant is not None:
            self._host.saw(LineSeen(replica_id, *meant))
        unit.nccl = nccl_of(known, text) or unit.nccl
        fatal = fatal_of(known, text)
        if fatal is not None:
            unit.fatal = fatal
        phase = phase_of(known, text)
        if phase is not None and phase.state is State.WARMING:
            unit.fatal = None  # it came up: what it complained of on its way was not its end
        if phase is not None and replica_id in self._watching:
            unit.phase = phase.name
            self._doing(unit, phase.name)
            beat = self.heartbeats.get(replica_id)
            if beat is not None:
                beat.phase(COMPILE if phase.compiling else LOADING, now)

    def ended(self, replica_id: str, ended: Ended) -> None:
        """Handle the end of a replica's process: free its GPUs and report a fact.

        Unless control stopped it, the fleet is told, with the cause that its log named. Restarts
        nothing itself.
        """
        unit = self._units.get(replica_id)
        if unit is None:  # nobody will start it again: what is kept of it can go
            asyncio.get_running_loop().call_soon(self._launcher.forget, replica_id)
            return
        self._saw_end(unit, ended)
        unit.pid, unit.loaded = None, False
        self.placements.release(unit)
        self.heartbeats.pop(replica_id, None)
        self._unwatch(replica_id)
        self._loaded(unit, well=False)
        if replica_id in self._expected:
            return
        kind, told = Kind.EXITED, ended.reason
        if unit.fatal is not None:
            kind, told = unit.fatal[0], f"{told}; its log says: {unit.fatal[1]}"
        self._exited(unit, Kind.OUT_OF_MEMORY if ended.oom else kind, told)
        if unit.removing:  # it ended before its drain did
            self.stop(unit)

    def _saw_end(self, unit: LaunchedReplica, ended: Ended) -> None:
        uptime_s = None
        if unit.began is not None:
            uptime_s = seconds(time.monotonic_ns() - unit.began)
        self._host.saw(
            ProcessEnded(
                unit.id,
                ended.code,
                ended.signal,
                ended.oom,
                asked=ended.asked or unit.id in self._expected,
                phase=unit.doing,
                uptime_s=uptime_s,
                oom_ruled_out=ended.oom_ruled_out,
                reason=ended.reason if ended.host_lost else "",
                host_lost=ended.host_lost,
            )
        )
        unit.began, unit.doing = None, ""

    def _doing(self, unit: LaunchedReplica, phase: str) -> None:
        if unit.doing != phase:
            unit.doing = phase
            self._host.saw(PhaseSeen(unit.id, phase))

    def _exited(self, unit: LaunchedReplica, kind: Kind, told: str) -> None:
        if not unit.was_ready:
            unit.early_exits += 1
        self._host.tell(Exited(unit.id, kind, told))

    def stopped(self, replica_id: str, stopped: bool) -> None:
        """Report that a replica's process was suspended (``stopped``, as by SIGSTOP) or resumed."""
        (self._frozen.add if stopped else self._frozen.discard)(replica_id)
        self._host.saw(ProcessFrozen(replica_id, stopped))
        self._host.tell(Frozen(replica_id, stopped))

    def leaving(self, replica_id: str, reason: str) -> None:
        """Handle that a replica's host is drained or taken back: remove and replace the replica.

        Ignored for unknown replicas and those already being removed.
        """
        unit = self._units.get(replica_id)
        if unit is not None and not unit.removing:
            self._host.leaving(unit, reason)

    def host_seen(self, host: str, condition: HostCondition, reason: str) -> None:
        """Report, as a fact, the condition that a platform gives for one of its hosts."""
        self._host.saw(HostConditionSeen(host, condition, reason, source="its platform"))

    # --- devices (GpuPlacementsPort) -------------------------------------------------------------

    def queued(self, unit: LaunchedReplica, *, first: bool) -> None:
        """Show in its phase why a replica waits for GPUs or a place, and pass it on."""
        unit.phase = f"waits for hardware ({unit.lacks})"  # as its health says it, too
        self._host.queued(unit, first=first)

    def chosen(self, unit: LaunchedReplica, placement: GpuPlacement) -> None:
        """Store a replica whose GPUs were chosen, before its start, and pass the choice on."""
        unit.phase = "waits for its turn to load"
        self._host.kept(unit)
        self._host.chosen(unit, placement)

    # --- loading ---------------------------------------------------------------------------------

    async def _watch_health(self, unit: LaunchedReplica) -> None:
        """Wait until an engine can be asked: its health page says so, or says nothing of use.

        A page that answers errors for a while, none of them in its words for loading, is no reason
        to wait longer: from then on the answers to canaries decide.
        """
        known = dialect(unit.engine)
        odd_since: float | None = None
        while True:
            page = await self._start_page(unit, known)
            if page is None or _waits(known, page):
                odd_since = None
            elif page.status in _NO_SUCH_PAGE or page.status == 200:
                break
            else:
                now = time.monotonic()
                odd_since = now if odd_since is None else odd_since
                doubt_s = UNREADY_DOUBT_S if page.status == 503 else PAGE_DOUBT_S
                if now - odd_since >= doubt_s:
                    _log.info("its page answers errors", replica=unit.id, status=page.status)
                    break
            await asyncio.sleep(HEALTH_LOOK_S)
        unit.phase, unit.loaded = "loaded", True
        self._doing(unit, SERVING)
        self._host.kept(unit)
        self._watching.pop(unit.id, None)
        self._loaded(unit, well=True)
        self._host.tell(Phase(unit.id, State.WARMING))

    async def _start_page(self, unit: LaunchedReplica, known: Dialect) -> HttpAnswer | None:
        """What an engine that starts answers on its page; None: it does not answer yet."""
        path = known.health_path or known.start_path
        if path is None:
            there = await listens(unit.url, HEALTH_S)
            return HttpAnswer(200, {}, b"") if there else None
        try:
            return await fetch(unit.url, path, HEALTH_S)
        except FetchError as error:
            _log.debug("not there yet", replica=unit.id, reason=error.what)
            return None

    def _loaded(self, unit: LaunchedReplica, *, well: bool) -> None:
        self._gate.ended(unit.id, loaded=well)
        self._room.set()
        beat = self.heartbeats.get(unit.id)
        if beat is not None and well:
            beat.phase(SERVING, time.monotonic_ns())

    def _unwatch(self, replica_id: str) -> None:
        task = self._watching.pop(replica_id, None)
        if task is not None:
            task.cancel()


def _waits(known: Dialect, page: HttpAnswer) -> bool:
    """Whether a page says that its engine is on its way, or pushes back: look again."""
    pushes = page.status == 429 or (page.status == 503 and "retry-after" in page.headers)
    loading = known.says_loading(page.status, page.body, page.headers)
    return pushes or loading or known.says_busy(page.status, page.body)


async def _whole(starting: Coroutine[Any, Any, int]) -> None:
    """Await a start to its end even when cancelled, so that a stop finds the process running."""
    task = asyncio.ensure_future(starting)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled() and task.exception() is not None:
            _log.info("did not start, and is not wanted any more", reason=str(task.exception()))
        raise


__all__ = ["GATE_LOOK_S", "HEALTH_LOOK_S", "STOP_GRACE_S", "Launches", "LaunchesPort"]
