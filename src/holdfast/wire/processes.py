"""Runs what ``holdfast serve`` starts, inside each process: control, a gateway, the batch process.

Control and gateways import what the other does not need, so each is imported where it is run.
"""

import asyncio
import ctypes
import os
import select
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvloop

from holdfast.acceptor import raise_descriptor_limit
from holdfast.config.certificates import PortCertificate
from holdfast.config.files import load
from holdfast.config.fleet_file import AdminTlsSection, FleetFile
from holdfast.control.gateways.state_file import SOCKET_FILE, STATE_FILE
from holdfast.core.types import require
from holdfast.frames.batch_load import BATCH_SOCKET_FILE, RUNNER_SECRET_FILE
from holdfast.wire.control_name import own_name
from holdfast.wire.key_stores import open_key_store
from holdfast.wire.log_output import configure_logging
from holdfast.wire.own_token import hash_in
from holdfast.wire.process_watcher import BEAT, BEAT_S
from holdfast.wire.supervisor import ACCEPTS, LEAVES

if TYPE_CHECKING:
    import uvicorn

    from holdfast.control.process import Control, LeadingControl
    from holdfast.ports import Launcher
    from holdfast.storage.sqlite import SqliteStore
    from holdfast.wire.election import Election

PLAIN_ENV: Final = "HOLDFAST_PLAIN"
_DEPOSED: Final = 75  # EX_TEMPFAIL: whoever supervises it starts it again
_RENEW_S: Final = 5.0  # certificates are renewed days before they end
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
GATEWAY_DESCRIPTORS_WANTED: Final = 1 << 20  # the usual hard limit: half a million connections
DESCRIPTORS_WANTED: Final = 65_536  # of the supervisor and control, and of engines below it

_log = structlog.get_logger("holdfast.serve")


def plain() -> bool:
    """Whether the environment switches the fast paths of gateways off."""
    value = os.environ.get(PLAIN_ENV) or "0"
    require(value in {"0", "1"}, PLAIN_ENV, f"is {value!r}", "use 1, or do not set it")
    return value == "1"


def run_control(
    path: Path,
    run_dir: Path,
    admin_fd: int,
    state_dir: Path | None = None,
    notice_fd: int | None = None,
    token_file: Path | None = None,
) -> None:
    """Run the control process until SIGTERM; SIGHUP makes it read the fleet file again."""
    configure_logging()
    _keep_from_children(admin_fd, notice_fd)
    _die_with_parent(notice_fd)
    tell = _teller(notice_fd)
    admin = socket.socket(fileno=admin_fd)
    supervisor = os.getppid() if notice_fd is not None else None
    uvloop.run(_control(path, run_dir, admin, state_dir, tell, token_file, supervisor))


async def _control(
    path: Path,
    run_dir: Path,
    admin: socket.socket,
    state_dir: Path | None,
    tell: Callable[[bytes], bool],
    token_file: Path | None = None,
    supervisor: int | None = None,
) -> None:
    from holdfast.control.process import Control  # noqa: PLC0415
    from holdfast.storage.sqlite import SqliteStore  # noqa: PLC0415
    from holdfast.wire.view_sources import build_source  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    _beat(loop, tell)
    election, leads = await _elected(path, run_dir, admin, stop)
    if election is not None and leads is None:
        return
    kept = state_dir or run_dir  # what nobody launched needs to outlive nothing
    store = SqliteStore(kept / "control.sqlite")
    launcher = _launchers(kept, lambda: control)
    own = f"control-{os.getpid()}"
    control = Control(path, run_dir, os.environ, own, store, launcher, build_source, leads=leads)
    if token_file is not None:
        control.access.accept_own(hash_in(token_file))
    if supervisor is not None:
        control.watch_supervisor(supervisor)
    _show_batches(control, run_dir)
    leading = None
    if election is not None and leads is not None:
        leading = loop.create_task(_while_leading(election, leads.term, control))
    try:
        await _run_control(control, store, kept, admin, stop)
    finally:
        if leading is not None and election is not None:
            leading.cancel()
            await election.leave()
        if not await asyncio.to_thread(store.close):
            _log.error("not all that was to be kept is on disk", path=str(kept))


async def _run_control(
    control: "Control", store: "SqliteStore", kept: Path, admin: socket.socket, stop: asyncio.Event
) -> None:
    """Run control, the operators' port and the history until somebody asks to stop."""
    from holdfast.control.admin.connections import AdminConnections  # noqa: PLC0415
    from holdfast.control.admin.server import AdminServer  # noqa: PLC0415
    from holdfast.control.process import settle_memory  # noqa: PLC0415
    from holdfast.control.view.history import keeping  # noqa: PLC0415
    from holdfast.wire.view_sources import admin_app  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    lacked = control.lacked
    lacked.descriptors = raise_descriptor_limit(DESCRIPTORS_WANTED)
    bounds = AdminConnections(control.file.admin.connections, descriptors=lacked.descriptors)
    lacked.port_counters = bounds.counters
    stopping = asyncio.ensure_future(stop.wait())
    reloads: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        task = loop.create_task(control.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    def history_told(what: str, why: str) -> None:
        store.add_event(time.time(), "", "", what, why)

    loop.add_signal_handler(signal.SIGHUP, reload)
    async with keeping(
        kept, control.view.snapshot, control.incidents.drift_series, history_told
    ) as sampler:
        control.sampler = sampler
        tls = control.file.admin.tls
        config = _admin_config(admin_app(control), tls)
        server = AdminServer(config, bounds, stopping, lacked.lacks)
        serving = loop.create_task(server.serve(sockets=[admin]))
        renewing = loop.create_task(_renew(config, tls))
        settle_memory()
        try:
            await control.run(stop)
        finally:
            stop.set()
            renewing.cancel()
            server.should_exit = True
            await serving


async def _elected(
    path: Path, run_dir: Path, admin: socket.socket, stop: asyncio.Event
) -> tuple["Election | None", "LeadingControl | None"]:
    """Stand by until this control leads, where there are several; else nobody is asked.

    Meanwhile the operators' port says who leads.
    """
    file = load(path, FleetFile)
    if not file.control.members:
        return None, None
    from holdfast.wire.election import Election, leadership_store  # noqa: PLC0415
    from holdfast.wire.standby_port import standby_port  # noqa: PLC0415

    store = leadership_store(file.control)
    election = Election(file.control, own_name(os.environ), store, run_dir)
    async with standby_port(admin, file.admin.tls, lambda: election.leader, _admin_config):
        leads = await election.stand_by(stop)
    if leads is None:
        await election.leave()
    return election, leads


async def _while_leading(election: "Election", term: int, control: "Control") -> None:
    """Renew the lease; once it is lost, end this process before anything else can be said."""
    await election.keep(term)
    control.fall_silent()
    _log.error("leads no more; ends, and begins anew as a standby", term=term)
    sys.stderr.flush()
    os._exit(_DEPOSED)  # an orderly end would take time, in which it would act


def _launchers(kept: Path, control: "Callable[[], Control]") -> "Launcher":
    """Build the launcher of this host, which others join when the fleet file asks for them."""
    from holdfast.launchers.launcher_group import LauncherGroup  # noqa: PLC0415
    from holdfast.launchers.process import ProcessLauncher  # noqa: PLC0415

    return LauncherGroup(
        ProcessLauncher(kept / "replicas"),
        build=lambda on: _platform_launcher(on, control(), kept),
        wanted=lambda: control().file.platforms,
    )


def _platform_launcher(on: str, control: "Control", kept: Path) -> "Launcher":
    """Build the launcher of a platform other than this host, when the first replica asks for it."""
    from holdfast.launchers.kubernetes.launcher import KUBERNETES  # noqa: PLC0415 few need it
    from holdfast.launchers.ray.launcher import RAY, RayLauncher  # noqa: PLC0415
    from holdfast.launchers.ray.link import RaySettings  # noqa: PLC0415

    if on == KUBERNETES:
        from holdfast.wire.kubernetes.launcher import kubernetes_launcher  # noqa: PLC0415

        return kubernetes_launcher(lambda: control.file, kept / KUBERNETES)
    assert on == RAY, f"no launcher is built for {on!r}"
    ray = control.file.ray
    settings = RaySettings(ray.address, ray.namespace, ray.zone_label, ray.lease_s)
    return RayLauncher(settings, kept / "ray")


def _show_batches(control: "Control", run_dir: Path) -> None:
    """Let the view read the batch process, where one was started beside this control."""
    if (run_dir / RUNNER_SECRET_FILE).exists():
        from holdfast.sources.batch_process import BatchSource  # noqa: PLC0415 gateways do without

        held = control.summary.held_models
        control.source_poller.add(BatchSource(run_dir / BATCH_SOCKET_FILE, held))


def _admin_config(app: Any, tls: AdminTlsSection | None) -> "uvicorn.Config":
    """How the admin port is served."""
    import uvicorn  # noqa: PLC0415 gateways do without

    authority = None if tls is None or tls.client_ca is None else str(tls.client_ca)
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # admin.trusted_proxies decides whom to believe
        lifespan="off",
        timeout_graceful_shutdown=1,
        ssl_certfile=str(tls.certificate) if tls is not None else None,
        ssl_keyfile=str(tls.key) if tls is not None else None,
        ssl_ca_certs=authority,
        # Operators and browsers have none; of whom one is needed, the paths of agents ask.
        ssl_cert_reqs=ssl.CERT_NONE if authority is None else ssl.CERT_OPTIONAL,
    )


async def _renew(config: Any, tls: AdminTlsSection | None) -> None:
    """Let the admin port (``config``: uvicorn's) follow the files of its certificate."""
    certificate: PortCertificate | None = None
    while tls is not None:
        if certificate is None and config.loaded and config.ssl is not None:
            certificate = PortCertificate(tls.certificate, tls.key, config.ssl, tls.client_ca)
        await asyncio.sleep(_RENEW_S)
        if certificate is not None and await asyncio.to_thread(certificate.refresh):
            _log.info("certificate of the admin port renewed")


def run_gateway(
    index: int,
    run_dir: Path,
    state_dir: Path,
    listen_fd: int,
    notice_fd: int | None,
    path: Path | None = None,
) -> None:
    """Run a gateway process until SIGINT, or SIGTERM and a successor; then drain it.

    ``path``: the fleet file, where it names several controls.
    """
    configure_logging()
    _keep_from_children(listen_fd, notice_fd)
    _die_with_parent(notice_fd)
    listener = socket.socket(fileno=listen_fd)
    uvloop.run(_gateway(index, run_dir, state_dir, listener, _teller(notice_fd), path))


async def _gateway(
    index: int,
    run_dir: Path,
    state_dir: Path,
    listener: socket.socket,
    tell: Callable[[bytes], bool],
    path: Path | None,
) -> None:
    # Control does without.
    from holdfast.frames.control_links import GatewayMember  # noqa: PLC0415
    from holdfast.gateway.http.hot_path import FAST, PLAIN  # noqa: PLC0415
    from holdfast.gateway.process import GatewayProcess  # noqa: PLC0415

    member = GatewayMember()
    if path is not None:
        from holdfast.wire.election import gateway_member  # noqa: PLC0415 few have several controls

        member = gateway_member(load(path, FleetFile).control, own_name(os.environ))
    listener.setblocking(False)
    hot_path = PLAIN if plain() else FAST
    gateway = GatewayProcess(
        index,
        str(run_dir / SOCKET_FILE),
        run_dir / STATE_FILE,
        hot_path,
        raise_descriptor_limit(GATEWAY_DESCRIPTORS_WANTED),
        partial(open_key_store, state_dir),
        member,
    )
    loop = asyncio.get_running_loop()
    asked = 0

    def leave() -> None:
        """Go on until the successor accepts, if there will be one; asked twice, go at once."""
        nonlocal asked
        asked += 1
        if asked > 1 or not tell(LEAVES):
            gateway.stop()

    loop.add_signal_handler(signal.SIGINT, gateway.stop)
    loop.add_signal_handler(signal.SIGTERM, leave)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # control reads the file, not we
    _beat(loop, tell)
    await gateway.run(listener, lambda: tell(ACCEPTS))


def run_batch(
    path: Path, run_dir: Path, folder: Path, gateway_url: str, notice_fd: int | None
) -> None:
    """Run the batch process until SIGTERM; what it has not finished is given back."""
    configure_logging()
    _keep_from_children(notice_fd)
    _die_with_parent(notice_fd)
    uvloop.run(_batch(path, run_dir, folder, gateway_url, _teller(notice_fd)))


async def _batch(
    path: Path, run_dir: Path, folder: Path, gateway_url: str, tell: Callable[[bytes], bool]
) -> None:
    # Control and gateways do without.
    from holdfast.batch.process import BatchPlace, BatchProcess  # noqa: PLC0415
    from holdfast.wire.message_queues import open_boxes  # noqa: PLC0415
    from holdfast.wire.queue_store import open_queue_store  # noqa: PLC0415

    file = load(path, FleetFile)
    process = BatchProcess(
        BatchPlace(folder, run_dir, gateway_url),
        file,
        lambda own: open_queue_store(file.batch.store, own),
        open_boxes,
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, process.stop)
    loop.add_signal_handler(signal.SIGTERM, process.stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the file is read at the start
    _beat(loop, tell)
    await process.run(lambda: tell(ACCEPTS))


def _teller(notice_fd: int | None) -> Callable[[bytes], bool]:
    """Make the function that writes notices to the supervisor; it never waits for a reader."""
    if notice_fd is not None:
        os.set_blocking(notice_fd, False)

    def tell(what: bytes) -> bool:
        """Whether a supervisor was there to hear it."""
        try:
            return notice_fd is not None and os.write(notice_fd, what) > 0
        except (BrokenPipeError, BlockingIOError):  # it is gone, or has not read for hours
            return False

    return tell


def _beat(loop: asyncio.AbstractEventLoop, tell: Callable[[bytes], bool]) -> None:
    """Tell the supervisor from now on, twice a second, that this event loop turns."""
    tell(BEAT)
    loop.call_later(BEAT_S, _beat, loop, tell)


def _keep_from_children(*given: int | None) -> None:
    """Make the inherited descriptors not inheritable: engines would keep the ports open."""
    for descriptor in given:
        if descriptor is not None:
            os.set_inheritable(descriptor, False)


def _die_with_parent(notice_fd: int | None) -> None:
    """Drain when the supervisor is killed: then no successor is started and no port is held.

    The supervisor may have been killed before this call; then the pipe of notices has no reader.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if notice_fd is not None:
        look = select.poll()
        look.register(notice_fd, 0)  # 0: a pipe without a reader is reported whatever is asked
        if look.poll(0):
            signal.raise_signal(signal.SIGTERM)


__all__ = ["DESCRIPTORS_WANTED", "plain", "run_batch", "run_control", "run_gateway"]
