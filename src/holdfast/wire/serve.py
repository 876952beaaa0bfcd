"""Builds and runs the processes of ``holdfast serve``: supervisor, control and gateways.

    supervisor ─┬─ control          reads the file, probes, tells gateways; owns the admin port
                ├─ gateway 0 … N-1  serve clients; each inherits one listening socket
                └─ keeps the sockets open, so that what is queued at one outlives its process

Where models are launched, control starts replicas as well, and keeps what it knows of them in a
state directory that outlives all processes; only one ``serve`` at a time can use it.

What runs inside each of them is in ``processes``.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import structlog

from holdfast.acceptor import raise_descriptor_limit
from holdfast.config.files import load
from holdfast.config.fleet_file import Address, FleetFile
from holdfast.config.processes.control import ControlSection
from holdfast.control.gateways.process_report import REPORT_FILE
from holdfast.core.intake.descriptors import CARRIED_MIN, descriptors_needed
from holdfast.core.types import require
from holdfast.wire.batch_secret import write_secret
from holdfast.wire.control_name import own_name
from holdfast.wire.key_stores import open_key_store
from holdfast.wire.link_secret import keep_link_secret
from holdfast.wire.log_output import configure_logging, log_level
from holdfast.wire.message_queues import check_boxes
from holdfast.wire.own_token import announced, keep_token
from holdfast.wire.process_watcher import ProcessWatcher
from holdfast.wire.processes import DESCRIPTORS_WANTED, plain
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
from holdfast.wire.supervisor import Child, Supervisor, Tree

REPLICAS_GRACE_S: Final = 20.0  # for control to end its replicas: each gets 5 s, side by side

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


def _check_descriptors() -> None:
    """Raise the limit on open files as far as allowed; refuse one with which nothing works."""
    limit = raise_descriptor_limit(DESCRIPTORS_WANTED)
    least = descriptors_needed(CARRIED_MIN)
    fix = f"raise it to {least} or more: ulimit -n, LimitNOFILE= in a unit, --ulimit nofile="
    require(limit >= least, "the limit on open files", f"is {limit}", fix)


def serve(
    path: Path,
    *,
    takeover: bool,
    say: Callable[[str], None],
    command: Sequence[str] = (),
    host: ServeOptions = ServeOptions(),  # noqa: B008 frozen
) -> None:
    """Run a fleet file until a signal; raises before starting anything if it cannot work."""
    log_level()  # the children's, too: they see the same environment
    plain()  # likewise
    file = load(path, FleetFile)
    _check_descriptors()
    _join_controls(file.control)
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
        member = path if file.control.members else None
        folder = state_dir or _kept_beside(path, run_dir)
        if file.gateway.idempotency.enabled:
            open_key_store(folder, file.gateway.idempotency.store).close()  # opens nothing yet
        tree = Tree(
            _control_child(ours, path, run_dir, admin[0].fileno(), state_dir, token_file),
            [
                _gateway_child(ours, i, run_dir, sock.fileno(), folder, member)
                for i, sock in enumerate(sockets)
            ],
            sockets,
            admin,
            in_order=not takeover,  # else they listen as their gateways come
        )
        if file.batch.enabled or file.consumers:
            for consumer in file.consumers:
                check_boxes(consumer)
            folder = (state_dir or default_state_dir(path, os.environ)) / "batch"
            write_secret(run_dir)
            tree.batch = _batch_child(ours, path, run_dir, folder, served.data)
        if host.beside is None:
            for line in _banner(file, sockets[0], admin[0]):
                say(line)
        tells = say if host.tells_end else lambda _: None
        watcher = ProcessWatcher(file.watch, run_dir / REPORT_FILE, tells)
        ready = "ready; the predecessor may be stopped now" if takeover else "ready"
        said = ready if host.beside is None else ""
        asyncio.run(_supervise(tree, served, host, say, said, watcher))


def _join_controls(section: ControlSection) -> None:
    """Of several controls: find out which this machine is, and have the secret that they share."""
    if section.members:
        section.own(own_name(os.environ))
        keep_link_secret(section)


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


def _kept_beside(path: Path, run_dir: Path) -> Path:
    """Where gateways of a fleet without a state directory keep what must survive them."""
    try:
        return default_state_dir(path, os.environ)
    except RuntimeError:  # there is no home
        return run_dir


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


def _gateway_child(
    command: Sequence[str],
    index: int,
    run_dir: Path,
    listen_fd: int,
    state_dir: Path,
    member: Path | None,
) -> Child:
    """``member``: the fleet file, where it names several controls that a gateway connects to."""
    arguments = ["gateway-process", "--index", str(index), "--run-dir", str(run_dir)]
    arguments += ["--state-dir", str(state_dir.resolve())]
    if member is not None:
        arguments += ["--config", str(member.resolve())]
    fds = ["--listen-fd", str(listen_fd)]
    return Child(f"gateway-{index}", [*command, *arguments, *fds], (listen_fd,))


def _batch_child(
    command: Sequence[str], path: Path, run_dir: Path, folder: Path, gateway_url: str
) -> Child:
    arguments = ["batch-process", "--config", str(path.resolve()), "--run-dir", str(run_dir)]
    arguments += ["--folder", str(folder.resolve()), "--gateway-url", gateway_url]
    return Child("batch", [*command, *arguments])


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


def _warn_of_plain_text(file: FleetFile) -> None:
    """Log that prompts and keys cross the network readable, unless something in front has TLS."""
    if file.gateway.tls is None and not file.gateway.address.loopback:
        fix = "set gateway.tls, or let a load balancer have it; a later release will ask for one"
        told = "prompts and keys cross the network readable"
        _log.warning("clients without TLS", listen=file.gateway.listen, why=told, fix=fix)


__all__ = ["ServeOptions", "ServedFleet", "serve"]
