"""Runs one gateway process: reads its config, serves clients, follows control, drains at the end.

The process waits for a config from control; if control does not answer within a second, it starts
from the last state that control left on disk, because a gateway that cannot start without control
would make control part of the request path. From then on everything happens in callbacks of one
event loop: connections, attempts, a tick every few milliseconds, frames from control.

Stopping means draining: readiness turns 503, new connections are still accepted for a moment (load
balancers need time to notice), then the listening socket is closed, requests under way are
finished, and requests that still run at the deadline are ended with an error that says so.
"""

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from random import Random
from secrets import token_hex
from time import monotonic_ns
from typing import Final

import structlog
from pydantic import ValidationError

from holdfast.config.certificates import PortCertificate
from holdfast.config.fleet_file import FleetFile
from holdfast.core.health.control_silence import ControlSilence, ControlSilenceConfig
from holdfast.core.intake.descriptors import OwnResource
from holdfast.core.intake.shortages import Shortages
from holdfast.core.messages import FleetView, Leased
from holdfast.core.types import SECOND, ConfigError
from holdfast.frames import (
    BlockFrame,
    ConfigFrame,
    DetoursFrame,
    DrainFrame,
    EpochFrame,
    ExplainAsk,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    LeaseFrame,
    LoadFrame,
    MetricsAsk,
    MoveFrame,
    ViewFrame,
    Welcome,
    frame_to_loads,
    frame_to_view,
)
from holdfast.frames.batch_load import BATCH_SOCKET_FILE, LOAD_SOCKET_FILE, RUNNER_SECRET_FILE
from holdfast.frames.control_links import ControlAddress, ControlLinks, GatewayMember
from holdfast.gateway.control_report import ControlReport
from holdfast.gateway.http.client_port import ClientPort
from holdfast.gateway.http.hot_path import FAST, PLAIN, HotPath
from holdfast.gateway.http.server import Server
from holdfast.gateway.request.batch_relay import BatchRelay
from holdfast.gateway.request.idempotency.key_settings import KeySettings, OpenKeyStore
from holdfast.gateway.request.request_driver import RequestDriver
from holdfast.gateway.request.settings import settings_of
from holdfast.gateway.request.target_table import TargetTable
from holdfast.gateway.telemetry.batch_loads import BatchLoads

_TICK_S: Final = 0.01  # the grain of every timer of the flow
_SWEEP: Final = SECOND // 10
_STATS: Final = SECOND // 10  # shares and trials are lent anew as often
_CONTROL_WAIT_S: Final = 1.0  # then the state on disk must do
_HEAP_KEPT: Final = 32 << 20  # bytes free at the end of the heap; beyond, they are given back
_SHORTAGE_LOGGED: Final = 10 * SECOND  # so often at most, while it lasts

_log = structlog.get_logger("holdfast.gateway")


class Streams:
    """Makes random generators by name from one seed; each gateway process has its own seed."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    def __call__(self, name: str) -> Random:
        """Return a new random generator for this name.

        The same name gives the same numbers again.
        """
        return Random(blake2b(name.encode(), key=self._seed, digest_size=16).digest())


class GatewayProcess:
    """One gateway process: its links to control, its request driver and its HTTP server.

    ``run`` connects and serves; nothing is connected before.
    """

    def __init__(
        self,
        index: int,
        socket_path: str,
        state_path: Path,
        hot_path: HotPath = FAST,
        descriptors: int = 0,
        key_store: OpenKeyStore | None = None,
        member: GatewayMember = GatewayMember(),  # noqa: B008 frozen
    ) -> None:
        self._keys = KeySettings(key_store)
        self._hot_path = hot_path
        self._descriptors = descriptors  # the limit on open files; 0: not known
        self._shortages = Shortages()
        self._shortage_logged = -_SHORTAGE_LOGGED
        self.gateway_id = member.gateway_id(index)
        self._state_path = state_path
        addresses = (ControlAddress(path=socket_path), *member.controls)
        hello = Hello(self.gateway_id, os.getpid())
        self._link = ControlLinks(hello, addresses, self._heard, self._follow_new_leader)
        self._streams = Streams(os.urandom(16))
        self._silence = ControlSilence(ControlSilenceConfig(), monotonic_ns())
        self._epoch = 0
        self._led_anew = False  # by a control that counts its configs from another number
        self._file: FleetFile | None = None
        self._view: FleetView | None = None
        self._lease: LeaseFrame | None = None  # the last one: a new flow has not heard it
        self._secret = b""  # control's: fingerprints of requests and ids of responses
        self._blocked: BlockFrame | None = None  # the last one, if it came before the first config
        self._configured = asyncio.Event()
        self._stop = asyncio.Event()
        self._driver: RequestDriver | None = None
        self._server: Server | None = None
        self._port: ClientPort | None = None
        self._targets = TargetTable(hot_path, self._shortages)
        self._sweep_at = self._stats_at = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._batch_loads: BatchLoads | None = None  # where a batch process runs beside us
        self._runner_secret = _read_secret(state_path.parent / RUNNER_SECRET_FILE)
        self._report = ControlReport(self._link, self._silence, self._shortages, descriptors)

    # --- life ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Make ``run`` drain the gateway and return; only sets an event."""
        self._stop.set()

    async def run(self, listener: socket.socket, accepting: Callable[[], object]) -> None:
        """Get a config, serve clients on ``listener`` until ``stop`` is called, then drain.

        Starts from the state on disk if control does not answer within a second. Calls
        ``accepting`` once, when clients can connect. A drain that control orders stops it, too.
        Returns when requests are done or were cut at the deadline.
        """
        loop = asyncio.get_running_loop()
        keeping = loop.create_task(self._link.keep())
        try:
            await self._first_config()
            if self._stop.is_set():
                return
            file, driver, server = self._build(loop)
            tls = file.gateway.tls
            certificate = None if tls is None else PortCertificate(tls.certificate, tls.key)
            self._port = port = ClientPort(self.gateway_id, listener, certificate)
            self._tick()
            _settle_memory()
            await port.open(server, self._descriptors)
            accepting()
            _log.info("serving", gateway=self.gateway_id, pid=os.getpid(), epoch=self._epoch)
            await self._stop.wait()
            await self._drain(port, driver, server)
        finally:
            if self._ticking is not None:
                self._ticking.cancel()
            keeping.cancel()
            self._link.close()
            if self._batch_loads is not None:
                self._batch_loads.close()
            self._targets.close()
            if self._driver is not None and not self._driver.close_keys():
                _log.warning("idempotency keys not written to the end", gateway=self.gateway_id)

    async def _first_config(self) -> None:
        """Control's, or the last one it left behind."""
        stopping = asyncio.ensure_future(self._stop.wait())
        configured = asyncio.ensure_future(self._configured.wait())
        try:
            while not (self._configured.is_set() or self._stop.is_set()):
                await asyncio.wait(
                    {stopping, configured},
                    timeout=_CONTROL_WAIT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not self._configured.is_set():
                    self._read_state()
        finally:
            stopping.cancel()
            configured.cancel()

    def _read_state(self) -> None:
        """Start without control, from what it last wrote."""
        try:
            raw = self._state_path.read_bytes()
            for frame in FrameReader().feed(raw):
                self._hear(frame)
        except (OSError, FrameError) as error:
            _log.info("no control and no state that helps", reason=type(error).__name__)
        if self._configured.is_set():
            _log.warning("control does not answer; starting from its last state")

    def _build(self, loop: asyncio.AbstractEventLoop) -> tuple[FleetFile, RequestDriver, Server]:
        file = self._file
        assert file is not None, "the first config was awaited"
        hot_path = self._hot_path
        if hot_path is PLAIN:
            _log.warning("fast paths are off: requests cost more CPU", gateway=self.gateway_id)
        self._targets.turn = turn = hot_path.loop_turn(loop)
        driver = RequestDriver(
            settings_of(file, hot_path, self._runner_secret),
            self._targets.follow(file),
            name=f"req_{token_hex(4)}",
            loop=loop,
            now_ns=monotonic_ns,
            streams=self._streams,
            news=self._link.news,
        )
        server = Server(
            driver,
            file.gateway.http,
            cors_origins=tuple(file.gateway.cors_origins),
            own_hosts=_own_hosts(file),
            loop=loop,
            turn=turn,
            hot_path=hot_path,
            budget=driver.budget,
            shortages=self._shortages,
            descriptors=self._descriptors,
        )
        self._driver, self._server = driver, server
        if self._runner_secret:
            folder = self._state_path.parent
            path = str(folder / BATCH_SOCKET_FILE)
            if file.batch.enabled:  # else it runs for queues that others fill
                driver.relay = BatchRelay(path, loop, driver.observer.counters)
            self._batch_loads = BatchLoads(self.gateway_id, str(folder / LOAD_SOCKET_FILE))
        driver.use_secret(self._secret)
        if self._blocked is not None:
            driver.observer.deadly.block(self._blocked.fingerprints, monotonic_ns())
        if self._view is not None:
            driver.view(self._view)
        self._lease_again(driver)
        self._keys.follow(file.gateway.idempotency, driver, starting=True)
        return file, driver, server

    def _look_for_shortages(self, server: Server, now: int) -> dict[OwnResource, int]:
        """What this process lacked since the last look; frees what it can do without."""
        missing = self._shortages.take_new()
        if missing:
            self._targets.trim()
            server.make_place()
            if now - self._shortage_logged >= _SHORTAGE_LOGGED:
                self._shortage_logged = now
                _log.error(
                    f"a shortage of {', '.join(missing)}",
                    gateway=self.gateway_id,
                    times=sum(missing.values()),
                    connections=server.open,
                    limit=self._descriptors,
                )
        return missing

    def _tick(self) -> None:
        """Let time pass for everything that waits."""
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(_TICK_S, self._tick)
        driver, server = self._driver, self._server
        if driver is None or server is None:
            return
        server.turn.catch_up()  # what has come is not late
        driver.tick()
        now = monotonic_ns()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP
            server.sweep(now)
            self._targets.sweep(now)
        if now >= self._stats_at:
            self._stats_at = now + _STATS
            self._note_control_silence(driver, now)
            if self._port is not None:
                self._port.look_at_certificate()
            if self._targets.secrets_changed(now):
                self._retarget(driver)
                _log.info("tokens and certificates of engines read again", gateway=self.gateway_id)
            missing = self._look_for_shortages(server, now)
            self._report.tell_stats(driver, server, self._port, missing, now)
            self._report.tell_evidence(driver)
            if self._batch_loads is not None:
                self._batch_loads.send(driver.port.flows, now)

    async def _drain(self, port: ClientPort, driver: RequestDriver, server: Server) -> None:
        """Leave without breaking anything that was begun."""
        assert self._file is not None, "it is serving"
        draining = self._file.gateway.draining
        driver.readiness.draining = True
        _log.info("draining", gateway=self.gateway_id, requests=driver.busy)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + draining.deadline_s
        await asyncio.sleep(draining.grace_s)
        port.close()
        server.drain()
        while (driver.busy or server.open) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_TICK_S)  # an event would cost every request a check
        if driver.busy:
            _log.warning("the time to drain is over", gateway=self.gateway_id, cut=driver.busy)
            driver.cut_all()
            await asyncio.sleep(_TICK_S)  # the error events are written at the end of this turn
        if driver.relay is not None:
            driver.relay.close()
        server.close()
        _log.info("drained", gateway=self.gateway_id)

    # --- control ---------------------------------------------------------------------------------

    def _note_control_silence(self, driver: RequestDriver, now: int) -> None:
        """Notice whether control is silent; it is told at ``/readyz`` and counted."""
        silent_before = driver.readiness.control_silent_s is not None
        silent = self._silence.look(now)
        driver.readiness.control_silent_s = self._silence.silent_s(now)
        if silent and not silent_before:
            _log.warning("control is silent; serving by its last view", gateway=self.gateway_id)
        elif silent_before and not silent:
            _log.info("control speaks again", gateway=self.gateway_id)

    def _follow_new_leader(self) -> None:
        """Take the next config whatever its number: another control counts anew."""
        self._led_anew = True
        _log.info("another control leads", gateway=self.gateway_id, term=self._link.term)

    def _heard(self, frame: Frame) -> None:
        """One frame over the link to control: it is alive."""
        self._silence.heard(monotonic_ns())
        self._hear(frame)

    def _hear(self, frame: Frame) -> None:
        """One frame of control's, over the link or from the state it left on disk."""
        driver = self._driver
        if isinstance(frame, ConfigFrame):
            self._take_config(frame)
        elif isinstance(frame, ViewFrame):
            self._view = frame_to_view(frame)
            if driver is not None:
                driver.view(self._view)
        elif isinstance(frame, DrainFrame):
            self._stop.set()
        elif isinstance(frame, Welcome):
            self._secret = frame.secret
            if driver is not None:
                driver.use_secret(frame.secret)
        elif isinstance(frame, BlockFrame):
            self._blocked = frame
            if driver is not None:
                driver.observer.deadly.block(frame.fingerprints, monotonic_ns())
        elif isinstance(frame, DetoursFrame):
            if self._targets.detour(frame.detours) and driver is not None:
                self._retarget(driver)
        elif isinstance(frame, LeaseFrame):
            self._lease = frame
            self._lease_again(driver)
        elif driver is not None:
            self._hear_serving(frame, driver)

    def _retarget(self, driver: RequestDriver) -> None:
        """Reach replicas as detours and secrets say now; what runs stays on its connection."""
        assert self._file is not None, "it is serving"
        driver.reconfigure(driver.settings, self._targets.follow(self._file))

    def _lease_again(self, driver: RequestDriver | None) -> None:
        """Tell the flow its part of what all gateways share.

        Of what control never spoke it has an even part: all of it in each would be many times all.
        """
        file, frame = self._file, self._lease
        if driver is None or file is None:
            return
        even = 1.0 / file.gateway.workers
        quota = dict.fromkeys(driver.settings.flow.quotas, even)
        if frame is None:
            driver.lease(Leased(quota, even))
            return
        # One gateway alone needs nobody's leave to try a replica.
        trials = None if frame.gateways <= 1 else frozenset(frame.trial)
        driver.lease(Leased(quota | frame.quota, frame.retry_share, trials))

    def _hear_serving(self, frame: Frame, driver: RequestDriver) -> None:
        if isinstance(frame, LoadFrame):
            for load in frame_to_loads(frame):
                driver.load(load)
        elif isinstance(frame, MoveFrame):
            driver.move(frame.model, frame.replica_id, stalled=frame.stalled)
        elif isinstance(frame, ExplainAsk | MetricsAsk):
            self._report.answer(frame, driver)

    def _take_config(self, frame: ConfigFrame) -> None:
        """Follow a new epoch, or refuse it and keep the old one."""
        if frame.epoch <= self._epoch and self._file is not None and not self._led_anew:
            self._link.send(EpochFrame(self._epoch, accepted=True, reason=""))
            return
        try:
            file = FleetFile.from_json(frame.config)
            if self._driver is not None and self._server is not None:
                self._report.note_key_uses(self._driver)
                settings = settings_of(file, self._hot_path, self._runner_secret)
                self._keys.follow(file.gateway.idempotency, self._driver, starting=False)
                self._driver.reconfigure(settings, self._targets.follow(file))
                self._lease_again(self._driver)
                origins = tuple(file.gateway.cors_origins)
                self._server.reconfigure(file.gateway.http, origins, _own_hosts(file))
            else:
                settings_of(file)
        except (ValidationError, ConfigError) as error:
            reason = str(error) if isinstance(error, ConfigError) else "it does not validate here"
            _log.error("config refused; the old one runs on", epoch=frame.epoch, reason=reason)
            self._link.send(EpochFrame(self._epoch, accepted=False, reason=reason))
            return
        self._file, self._epoch, self._led_anew = file, frame.epoch, False
        self._silence.expect(file.fleet.heartbeat_s)
        self._link.send(EpochFrame(frame.epoch, accepted=True, reason=""))
        self._configured.set()


def _own_hosts(file: FleetFile) -> tuple[str, ...] | None:
    """The names of this machine, where callers need no key and pages must be kept out."""
    return None if file.tenants else tuple(name.lower() for name in file.gateway.hosts)


def _read_secret(path: Path) -> bytes:
    """The secret of the batch runner of this run; empty: no batch process was started."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _settle_memory() -> None:
    """What was built so far stays: let collections look at requests only, and not often.

    Requests leave no cycles behind, so there is next to nothing to collect; at the usual
    thresholds looking for it takes a tenth of the time.

    And let the heap keep what long prompts come to lie in. As it starts, glibc returns the end of
    the heap to the kernel when 128 KB of it are free, and faults it in again for the next prompt:
    twice per request of 32 KB. From a larger piece that is given back it learns to keep twice that.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    bytes(_HEAP_KEPT // 2)  # never touched, so it costs no memory


__all__ = ["GatewayProcess", "Streams"]
