"""Where the processes of ``holdfast serve`` are built and joined: the only such place.

    supervisor ─┬─ control          reads the file, probes, tells gateways; owns the admin port
                ├─ gateway 0 … N-1  serve clients; each inherits one listening socket
                └─ keeps the sockets open, so that what is queued at one outlives its process

Control and gateways import what the other does not need, so each is imported where it is run.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
import uvloop

from holdfast.config import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.gateway import DrainingConfig
from holdfast.control.state import SOCKET_FILE, STATE_FILE
from holdfast.wire.sockets import AddressTakenError, open_listeners
from holdfast.wire.supervisor import ACCEPTS, LEAVES, Child, Supervisor, Tree

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def configure_logging() -> None:
    """One JSON object a line on stderr, in every process alike."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _dumps(event: object, **_: object) -> str:
    return orjson.dumps(event, default=str).decode()


def serve(
    path: Path, *, takeover: bool, say: Callable[[str], None], command: Sequence[str] = ()
) -> None:
    """Run a fleet file until a signal; raises before it starts anything that cannot work."""
    file = load(path, FleetFile)
    configure_logging()
    workers = file.gateway.workers
    sockets = open_listeners(file.gateway.address, workers, takeover=takeover)
    try:
        admin = open_listeners(file.admin.address, 1, takeover=takeover)
        run_dir = Path(tempfile.mkdtemp(prefix="holdfast-"))  # readable by us alone
        ours = [*(command or (sys.executable, "-m", "holdfast"))]
        tree = Tree(
            _control_child(ours, path, run_dir, admin[0].fileno()),
            [_gateway_child(ours, i, run_dir, sock.fileno()) for i, sock in enumerate(sockets)],
            sockets,
            admin,
        )
        try:
            for line in _banner(file, sockets[0], admin[0]):
                say(line)
            ready = "ready; the predecessor may be stopped now" if takeover else "ready"
            asyncio.run(_supervise(tree, file.gateway.draining, lambda: say(ready)))
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)
            for sock in admin:
                sock.close()
    finally:
        for sock in sockets:
            sock.close()


async def _supervise(tree: Tree, draining: DrainingConfig, on_ready: Callable[[], None]) -> None:
    await Supervisor(tree, draining, on_ready=on_ready).run()


def _control_child(command: Sequence[str], path: Path, run_dir: Path, admin_fd: int) -> Child:
    arguments = ["control-process", "--config", str(path.resolve()), "--run-dir", str(run_dir)]
    return Child("control", [*command, *arguments, "--admin-fd", str(admin_fd)], (admin_fd,))


def _gateway_child(command: Sequence[str], index: int, run_dir: Path, listen_fd: int) -> Child:
    arguments = ["gateway-process", "--index", str(index), "--run-dir", str(run_dir)]
    fds = ["--listen-fd", str(listen_fd)]
    return Child(f"gateway-{index}", [*command, *arguments, *fds], (listen_fd,))


def _banner(file: FleetFile, data: socket.socket, admin: socket.socket) -> list[str]:
    scheme = "https" if file.gateway.tls else "http"
    endpoints, models, gateways = len(file.replicas()), len(file.models), file.gateway.workers
    return [
        f"clients    {scheme}://{_shown(data)}/v1",
        f"operators  http://{_shown(admin)}/status",
        f"serving    models: {models}, endpoints: {endpoints}, gateway processes: {gateways}",
    ]


def _shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- inside the processes ------------------------------------------------------------------------


def run_control(path: Path, run_dir: Path, admin_fd: int) -> None:
    """The control process: until SIGTERM; SIGHUP reads the file again."""
    configure_logging()
    _die_with_parent()
    uvloop.run(_control(path, run_dir, socket.socket(fileno=admin_fd)))


async def _control(path: Path, run_dir: Path, admin: socket.socket) -> None:
    import uvicorn  # noqa: PLC0415 gateways do without

    from holdfast.control.admin import build_admin  # noqa: PLC0415
    from holdfast.control.process import Control  # noqa: PLC0415

    class AdminServer(uvicorn.Server):
        """uvicorn that leaves signals to us and does not wake ten times a second."""

        def capture_signals(self) -> Any:
            return contextlib.nullcontext()

        async def main_loop(self) -> None:
            while not await self.on_tick(0):
                await asyncio.wait({stopping}, timeout=1.0)

    loop = asyncio.get_running_loop()
    control = Control(path, run_dir, os.environ, f"control-{os.getpid()}")
    stop = asyncio.Event()
    stopping = asyncio.ensure_future(stop.wait())
    reloads: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        task = loop.create_task(control.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    app = build_admin(control, control.file.admin)
    server = AdminServer(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
    )
    serving = loop.create_task(server.serve(sockets=[admin]))
    try:
        await control.run(stop)
    finally:
        stop.set()
        server.should_exit = True
        await serving


def run_gateway(index: int, run_dir: Path, listen_fd: int, notice_fd: int | None) -> None:
    """A gateway process: until SIGINT, or SIGTERM and a successor; then until it is drained."""
    configure_logging()
    _die_with_parent()

    def tell(what: bytes) -> bool:
        """Whether a supervisor was there to hear it."""
        try:
            return notice_fd is not None and os.write(notice_fd, what) > 0
        except BrokenPipeError:
            return False

    uvloop.run(_gateway(index, run_dir, socket.socket(fileno=listen_fd), tell))


async def _gateway(
    index: int, run_dir: Path, listener: socket.socket, tell: Callable[[bytes], bool]
) -> None:
    from holdfast.gateway.process import GatewayProcess  # noqa: PLC0415 control does without

    listener.setblocking(False)
    gateway = GatewayProcess(index, str(run_dir / SOCKET_FILE), run_dir / STATE_FILE)
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
    await gateway.run(listener, lambda: tell(ACCEPTS))


def _die_with_parent() -> None:
    """Drain when the supervisor is killed: nobody would start a successor or hold the port."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        signal.raise_signal(signal.SIGTERM)


__all__ = [
    "AddressTakenError",
    "configure_logging",
    "run_control",
    "run_gateway",
    "serve",
]
