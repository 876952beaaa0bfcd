"""The state directory of a fleet, and the lock that lets only one run use it.

    state dir ─┬─ lock          held while the fleet runs; its text is the pid of the holder
               ├─ up.json       where the fleet is reached; gone when it ended in good order
               ├─ admin.token   opens its admin port, from this machine (``own_token.py``)
               ├─ holdfast.log  what its processes said
               └─ …             what control keeps: its store, its replicas, their logs

Whether a fleet runs is asked of the lock, which the kernel takes from a dead process. Rejected: a
file with a pid alone; after a crash it names a stranger, and ``down`` would end that one.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

LOCK_FILE: Final = "lock"
UP_FILE: Final = "up.json"
LOG_FILE: Final = "holdfast.log"
_LOOKS: Final = 5
_LOOK_S: Final = 0.02  # who only looks has the lock for microseconds


class StateDirError(Exception):
    """The state directory cannot be used; the text says why."""


class StateDirTakenError(StateDirError):
    """Another fleet runs with this state directory."""

    def __init__(self, state_dir: Path, pid: int) -> None:
        who = f"pid {pid}" if pid else "a process that starts just now"
        super().__init__(
            f"a fleet runs with {state_dir} already ({who}); stop it with 'holdfast down', or "
            "give this one its own --state-dir"
        )
        self.pid = pid


@dataclass(slots=True, frozen=True)
class RunningFleet:
    """A running fleet: the supervisor's pid, its URLs and its fleet file."""

    pid: int
    admin: str  # URL, without a path
    data: str  # URL, without a path
    config: str  # the fleet file
    certificate: str = ""  # of the admin port, where it has TLS


def default_state_dir(config: Path | None, environment: Mapping[str, str]) -> Path:
    """The default state directory of a fleet file; ``config`` None: of the built-in fleet."""
    base = Path(environment.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # also where it is unset; a relative one means nothing
        base = Path.home() / ".local" / "state"
    if config is None:
        return base / "holdfast" / "default"
    whole = str(config.resolve())
    digest = sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return base / "holdfast" / f"{config.stem or 'fleet'}-{digest}"  # two files may share a name


def make(state_dir: Path) -> None:
    """Create the state directory, readable by its owner only: it holds logs and models' answers."""
    with _refusing(state_dir):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def _refusing(state_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise StateDirError(f"{state_dir} cannot be used: {why}; choose a --state-dir") from error


@contextlib.contextmanager
def held(state_dir: Path) -> Iterator[None]:
    """Lock the state directory for this process while the block runs.

    Raises ``StateDirTakenError`` if another process has it.
    """
    make(state_dir)
    with _refusing(state_dir):
        fd = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(fd):
            raise StateDirTakenError(state_dir, _pid_in(fd))
        write_pid(fd, os.getpid())
        try:
            yield
        finally:
            (state_dir / UP_FILE).unlink(missing_ok=True)
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)  # and the lock with it; the file stays, or two could lock two files


def holder(state_dir: Path) -> int | None:
    """The pid of the process that holds the directory: 0 if not written yet, None if free."""
    try:
        fd = os.open(state_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(fd)
    else:
        return None
    finally:
        os.close(fd)


def write_running(state_dir: Path, running: RunningFleet) -> None:
    """Write where the fleet is reached into ``up.json``, atomically, for other commands."""
    draft = state_dir / f"{UP_FILE}.new"
    draft.write_text(json.dumps(asdict(running), indent=2) + "\n", encoding="utf-8")
    draft.replace(state_dir / UP_FILE)


def read_running(state_dir: Path) -> RunningFleet | None:
    """The fleet that runs with this state directory; None: none runs, or it is not up yet."""
    if holder(state_dir) is None:
        return None  # whatever the file says is left over from a crash
    try:
        return RunningFleet(**json.loads((state_dir / UP_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # it starts just now


def _locked(fd: int) -> bool:
    """Take the lock; False: another process holds it for longer than ``holder`` needs to look."""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_S)
        else:
            return True
    return False


def write_pid(fd: int, pid: int) -> None:
    """Write who holds the lock into the lock's own file."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{pid}\n".encode(), 0)


def _pid_in(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


__all__ = [
    "LOCK_FILE",
    "LOG_FILE",
    "UP_FILE",
    "RunningFleet",
    "StateDirError",
    "StateDirTakenError",
    "default_state_dir",
    "held",
    "holder",
    "make",
    "read_running",
    "write_pid",
    "write_running",
]
