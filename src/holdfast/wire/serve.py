"""Builds and runs the processes of ``holdfast serve``: supervisor, control and gateways.

    supervisor ─┬─ control          reads the file, probes, tells gateways; owns the admin port
                ├─ gateway 0 … N-1  serve clients; each inherits one listening socket
                └─ keeps the sockets open, so that what is queued at one outlives its process

Where models are launched, control starts replicas as well, and keeps what it knows of them in a
state directory that outlives all processes; only one ``serve`` at a time can use it.

Control and gateways import what the other does not need, so each is imported where it is run.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import select
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import orjson
import structlog
import uvloop

from holdfast.acceptor import raise_descriptor_limit
from holdfast.config.certificates import PortCertificate
from holdfast.config.files import load
from holdfast.config.fleet_file import Address, AdminTlsSection, FleetFile
from holdfast.control.gateways.process_report import REPORT_FILE
from holdfast.control.gateways.state_file import SOCKET_FILE, STATE_FILE
from holdfast.core.intake.descriptors import CARRIED_MIN, descriptors_needed
from holdfast.core.types import require
from holdfast.ui.terminal.untrusted_text import escape_json
from holdfast.wire.own_token import announced, hash_in, keep_token
from holdfast.wire.process_watcher import BEAT, BEAT_S, ProcessWatcher
from holdfast.wire.provisions import (
    Fetching,
    check_engines,
    fetch_weights,
    named_weights,
)
from holdfast.wire.sockets import open_listeners
from holdfast.wire.state_dir import (
    RunningFleet,
    StateDirError,
    default_state_dir,
    held,
    write_running,
)
from holdfast.wire.supervisor import ACCEPTS, LEAVES, Child, Supervisor, Tree

if TYPE_CHECKING:
    import uvicorn

    from holdfast.control.process import Control
    from holdfast.ports import Launcher

REPLICAS_GRACE_S: Final = 20.0  # for control to end its replicas: each gets 5 s, side by side
DESCRIPTORS_WANTED: Final = 65_536  # of the supervisor and control, and of engines below it
GATEWAY_DESCRIPTORS_WANTED: Final = 1 << 20  # the usual hard limit: half a million connections
LOG_LEVEL_ENV: Final = "HOLDFAST_LOG_LEVEL"
PLAIN_ENV: Final = "HOLDFAST_PLAIN"
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_RENEW_S: Final = 5.0  # certificates are renewed days before they end
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

_log = structlog.get_logger("holdfast.serve")


@dataclass(slots=True, frozen=True)
class ServedFleet:
    """A running fleet: its file, its URLs and its state directory."""

    file: FleetFile
    data: str  # the URL where clients connect, without a path
    admin: str  # the URL where operators do
    state_dir: Path | None


@dataclass(slots=True, frozen=True)
class ServeOptions:
    """Options of a command that runs a fleet; the defaults are those of ``serve``."""

    state_dir: Path | None = None  # None: the usual one where models are launched, else none
    log: TextIO | None = None  # where every process logs; None: stderr
    fetching: Fetching = lambda *_: None  # hears how far a download is
    beside: Callable[[ServedFleet], Awaitable[None]] | None = (
        None  # runs until somebody asks to stop
    )
    tells_end: bool = False  # the steps of the end are said, too
    hangup_stops: bool = False  # SIGHUP means that the terminal was closed


def configure_logging(log: TextIO | None = None) -> None:
    """Set up logging: one JSON object a line, to stderr or a file, in every process alike."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(_log_level()),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=log or sys.stderr),
        cache_logger_on_first_use=True,
    )


def _log_level() -> int:
    """The log level from the environment; messages below it are not logged."""
    name = os.environ.get(LOG_LEVEL_ENV) or "info"
    known = name.lower() in _LEVELS
    require(known, LOG_LEVEL_ENV, f"is {name!r}", f"use one of {', '.join(_LEVELS)}")
    return _LEVELS[name.lower()]


def _plain() -> bool:
    """Whether the environment switches the fast paths of gateways off."""
    value = os.environ.get(PLAIN_ENV) or "0"
    require(value in {"0", "1"}, PLAIN_ENV, f"is {value!r}", "use 1, or do not set it")
    return value == "1"


def _check_descriptors() -> None:
    """Raise the limit on open files as far as allowed; refuse one with which nothing works."""
    limit = raise_descriptor_limit(DESCRIPTORS_WANTED)
    least = descriptors_needed(CARRIED_MIN)
    fix = f"raise it to {least} or more: ulimit -n, LimitNOFILE= in a unit, --ulimit nofile="
    require(limit >= least, "the limit on open files", f"is {limit}", fix)


def _dumps(event: object, **_: object) -> str:
    return escape_json(orjson.dumps(event, default=str).decode())


def serve(
    path: Path,
    *,
    takeover: bool,
    say: Callable[[str], None],
    command: Sequence[str] = (),
    host: ServeOptions = ServeOptions(),  # noqa: B008 frozen
) -> None:
    """Run a fleet file until a signal; raises before starting anything if it cannot work."""
    _log_level()  # the children's, too: they see the same environment
    _plain()  # likewise
    file = load(path, FleetFile)
    _check_descriptors()
    launched = any(model.launch is not None for model in file.models)
    check_engines(file)
    fix = "stop the other one first: only one control can own the replicas"
    require(not (takeover and launched), "--takeover", "is no use where models are launched", fix)
    state_dir = host.state_dir
    if state_dir is None and launched:
        state_dir = default_state_dir(path, os.environ)
    ours = [*(command or (sys.executable, "-m", "holdfast"))]
    with contextlib.ExitStack() as kept:
        if state_dir is not None:
            kept.enter_context(held(state_dir))
        _provide(file, host.fetching, takeover=takeover)
        sockets = kept.enter_context(_closing(file.gateway.address, file.gateway.workers, takeover))
        admin = kept.enter_context(_closing(file.admin.address, 1, takeover))
        configure_logging(host.log)
        _warn_of_plain_text(file)
        run_dir = Path(tempfile.mkdtemp(prefix="holdfast-"))  # readable by us alone
        kept.callback(shutil.rmtree, run_dir, ignore_errors=True)
        scheme = "https" if file.admin.tls else "http"
        operators = f"{scheme}://{_reached(admin[0])}"
        served = ServedFleet(file, _url(file, sockets[0]), operators, state_dir)
        shown = str(file.admin.tls.certificate.resolve()) if file.admin.tls else ""
        where = (served.admin, served.data, str(path.resolve()), shown)
        told = RunningFleet(os.getpid(), *where)
        if state_dir is not None:
            write_running(state_dir, told)
        token_file = _own_token(path, state_dir, told, kept)
        tree = Tree(
            _control_child(ours, path, run_dir, admin[0].fileno(), state_dir, token_file),
            [_gateway_child(ours, i, run_dir, sock.fileno()) for i, sock in enumerate(sockets)],
            sockets,
            admin,
            in_order=not takeover,  # else they listen as their gateways come
        )
        if host.beside is None:
            for line in _banner(file, sockets[0], admin[0]):
                say(line)
        tells = say if host.tells_end else lambda _: None
        watcher = ProcessWatcher(file.watch, run_dir / REPORT_FILE, tells)
        ready = "ready; the predecessor may be stopped now" if takeover else "ready"
        said = ready if host.beside is None else ""
        asyncio.run(_supervise(tree, served, host, say, said, watcher))


def _own_token(
    path: Path, state_dir: Path | None, told: RunningFleet, kept: contextlib.ExitStack
) -> Path | None:
    """The file of the token that opens the admin port for commands of this machine.

    A fleet that keeps no state has one, too, at the usual place. Where nothing can be written there
    (a container that is read-only), only the tokens of the fleet file open the port.
    """
    folder = state_dir or default_state_dir(path, os.environ)
    try:
        token_file = keep_token(folder)
        if state_dir is None:
            kept.enter_context(announced(folder, told))
    except (StateDirError, OSError, RuntimeError) as error:  # RuntimeError: there is no home
        _log.warning("no token of its own: orders need admin.token", reason=str(error))
        return None
    return token_file


def _provide(file: FleetFile, fetching: Fetching, *, takeover: bool) -> None:
    """Fetch missing weights, but not for a fleet whose ports are taken."""
    if named_weights(file):
        for address in (file.gateway.address, file.admin.address):
            with _closing(address, 1, takeover):
                pass
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            fetch_weights(file, fetching)  # it tidies up when it is left by an exception
        finally:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _closing(address: Address, number: int, takeover: bool) -> Iterator[list[socket.socket]]:
    sockets = open_listeners(address, number, takeover=takeover)
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


async def _supervise(
    tree: Tree,
    served: ServedFleet,
    host: ServeOptions,
    say: Callable[[str], None],
    ready: str,
    watcher: ProcessWatcher,
) -> None:
    supervisor = Supervisor(
        tree,
        served.file.gateway.draining,
        on_ready=lambda: say(ready) if ready else None,
        say=say if host.tells_end else lambda _: None,
        replicas_grace_s=REPLICAS_GRACE_S,
        log=host.log,
        hangup_stops=host.hangup_stops,
        watcher=watcher,
    )
    if host.beside is None:
        await supervisor.run()
        return
    beside = asyncio.ensure_future(_accompany(host.beside(served), supervisor))
    try:
        await supervisor.run()
    finally:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)


async def _accompany(beside: Awaitable[None], supervisor: Supervisor) -> None:
    """Run a task beside the supervisor until stopping begins; its errors are only logged."""
    task = asyncio.ensure_future(beside)
    stopping = asyncio.ensure_future(supervisor.stopping())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, Exception):
            _log.error("what is shown is no longer kept up to date", exc_info=outcome)


def _control_child(
    command: Sequence[str],
    path: Path,
    run_dir: Path,
    admin_fd: int,
    state_dir: Path | None,
    token_file: Path | None,
) -> Child:
    arguments = ["control-process", "--config", str(path.resolve()), "--run-dir", str(run_dir)]
    if state_dir is not None:
        arguments += ["--state-dir", str(state_dir.resolve())]
    if token_file is not None:
        arguments += ["--token-file", str(token_file.resolve())]
    return Child("control", [*command, *arguments, "--admin-fd", str(admin_fd)], (admin_fd,))


def _gateway_child(command: Sequence[str], index: int, run_dir: Path, listen_fd: int) -> Child:
    arguments = ["gateway-process", "--index", str(index), "--run-dir", str(run_dir)]
    fds = ["--listen-fd", str(listen_fd)]
    return Child(f"gateway-{index}", [*command, *arguments, *fds], (listen_fd,))


def _banner(file: FleetFile, data: socket.socket, admin: socket.socket) -> list[str]:
    scheme = "https" if file.gateway.tls else "http"
    started = sum(model.launch.replicas for model in file.models if model.launch is not None)
    endpoints, models, gateways = len(file.replicas()), len(file.models), file.gateway.workers
    replicas = f"endpoints: {endpoints}" + (f", replicas to start: {started}" if started else "")
    return [
        f"clients    {scheme}://{_shown(data)}/v1",
        f"operators  {'https' if file.admin.tls else 'http'}://{_shown(admin)}/status",
        f"serving    models: {models}, {replicas}, gateway processes: {gateways}",
    ]


def _shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _url(file: FleetFile, sock: socket.socket) -> str:
    return f"{'https' if file.gateway.tls else 'http'}://{_reached(sock)}"


def _reached(sock: socket.socket) -> str:
    """The address by which a client on this machine reaches a listening socket."""
    host, port = sock.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # noqa: S104 compared, not bound
        return f"127.0.0.1:{port}" if host == "0.0.0.0" else f"[::1]:{port}"  # noqa: S104
    return _shown(sock)


# --- inside the processes ------------------------------------------------------------------------


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

    from holdfast.control.admin.connections import AdminConnections  # noqa: PLC0415
    from holdfast.control.admin.server import AdminServer  # noqa: PLC0415
    from holdfast.control.process import Control, settle_memory  # noqa: PLC0415
    from holdfast.control.view.history import keeping  # noqa: PLC0415
    from holdfast.storage.sqlite import SqliteStore  # noqa: PLC0415
    from holdfast.wire.view_sources import admin_app, build_source  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    kept = state_dir or run_dir  # what nobody launched needs to outlive nothing
    store = SqliteStore(kept / "control.sqlite")
    launcher = _launchers(kept, lambda: control)
    own = f"control-{os.getpid()}"
    control = Control(path, run_dir, os.environ, own, store, launcher, build_source)
    if token_file is not None:
        control.access.accept_own(hash_in(token_file))
    if supervisor is not None:
        control.watch_supervisor(supervisor)
    lacked = control.lacked
    lacked.descriptors = raise_descriptor_limit(DESCRIPTORS_WANTED)
    bounds = AdminConnections(control.file.admin.connections, descriptors=lacked.descriptors)
    lacked.port_counters = bounds.counters
    stop = asyncio.Event()
    stopping = asyncio.ensure_future(stop.wait())
    reloads: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        task = loop.create_task(control.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    def history_told(what: str, why: str) -> None:
        store.add_event(time.time(), "", "", what, why)

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        async with keeping(
            kept, control.view.snapshot, control.incidents.drift_series, history_told
        ) as sampler:
            control.sampler = sampler
            tls = control.file.admin.tls
            config = _admin_config(admin_app(control), tls)
            server = AdminServer(config, bounds, stopping, lacked.lacks)
            serving = loop.create_task(server.serve(sockets=[admin]))
            renewing = loop.create_task(_renew(config, tls))
            _beat(loop, tell)
            settle_memory()
            try:
                await control.run(stop)
            finally:
                stop.set()
                renewing.cancel()
                server.should_exit = True
                await serving
    finally:
        if not await asyncio.to_thread(store.close):
            _log.error("not all that was to be kept is on disk", path=str(kept))


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
    from holdfast.launchers.ray.launcher import RAY, RayLauncher  # noqa: PLC0415 few need it
    from holdfast.launchers.ray.link import RaySettings  # noqa: PLC0415

    assert on == RAY, f"no launcher is built for {on!r}"
    ray = control.file.ray
    settings = RaySettings(ray.address, ray.namespace, ray.zone_label, ray.lease_s)
    return RayLauncher(settings, kept / "ray")


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


def _warn_of_plain_text(file: FleetFile) -> None:
    """Log that prompts and keys cross the network readable, unless something in front has TLS."""
    if file.gateway.tls is None and not file.gateway.address.loopback:
        fix = "set gateway.tls, or let a load balancer have it; a later release will ask for one"
        told = "prompts and keys cross the network readable"
        _log.warning("clients without TLS", listen=file.gateway.listen, why=told, fix=fix)


async def _renew(config: Any, tls: AdminTlsSection | None) -> None:
    """Let the admin port (``config``: uvicorn's) follow the files of its certificate."""
    certificate: PortCertificate | None = None
    while tls is not None:
        if certificate is None and config.loaded and config.ssl is not None:
            certificate = PortCertificate(tls.certificate, tls.key, config.ssl, tls.client_ca)
        await asyncio.sleep(_RENEW_S)
        if certificate is not None and await asyncio.to_thread(certificate.refresh):
            _log.info("certificate of the admin port renewed")


def run_gateway(index: int, run_dir: Path, listen_fd: int, notice_fd: int | None) -> None:
    """Run a gateway process until SIGINT, or SIGTERM and a successor; then drain it."""
    configure_logging()
    _keep_from_children(listen_fd, notice_fd)
    _die_with_parent(notice_fd)
    uvloop.run(_gateway(index, run_dir, socket.socket(fileno=listen_fd), _teller(notice_fd)))


async def _gateway(
    index: int, run_dir: Path, listener: socket.socket, tell: Callable[[bytes], bool]
) -> None:
    # Control does without.
    from holdfast.gateway.http.hot_path import FAST, PLAIN  # noqa: PLC0415
    from holdfast.gateway.process import GatewayProcess  # noqa: PLC0415

    listener.setblocking(False)
    hot_path = PLAIN if _plain() else FAST
    gateway = GatewayProcess(
        index,
        str(run_dir / SOCKET_FILE),
        run_dir / STATE_FILE,
        hot_path,
        raise_descriptor_limit(GATEWAY_DESCRIPTORS_WANTED),
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
        look.register(notice_fd, 0)  # an end that nobody reads is told without being asked for
        if look.poll(0):
            signal.raise_signal(signal.SIGTERM)


__all__ = [
    "ServeOptions",
    "ServedFleet",
    "configure_logging",
    "run_control",
    "run_gateway",
    "serve",
]
