"""The token of a fleet's own state directory: made at first start, read by commands.

    state dir ── admin.token   readable by its owner only; opens everything, from this machine

Orders need a token on loopback, too: any process of the machine, of any user, can connect there.
Whoever can read this file could as well signal the processes of the fleet, so nothing is given away
by it, and the commands of the fleet's own user need no argument.

A command sends the token only to a fleet that runs: the lock of the state directory is held, and
its ``up.json`` names that very address. While a fleet is down its port can be taken by anybody.
"""

import contextlib
import fcntl
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from holdfast.wire.state_dir import (
    LOCK_FILE,
    UP_FILE,
    RunningFleet,
    StateDirError,
    default_state_dir,
    make,
    read_running,
    write_pid,
    write_running,
)

TOKEN_FILE: Final = "admin.token"  # noqa: S105 a name, no token
TOKEN_CHARS_MAX: Final = 512
STATE_DIRS_MAX: Final = 512  # that are looked through for the fleet at an address


def keep_token(state_dir: Path) -> Path:
    """Return the path of the state directory's token; makes it where it is missing.

    One that others can read, or that another user put there, is replaced: it may be known.
    Raises ``StateDirError`` where it cannot be written.
    """
    path = state_dir / TOKEN_FILE
    try:
        make(state_dir)
        if _is_private(path) and read_token(state_dir) is not None:
            return path
        draft = state_dir / f"{TOKEN_FILE}.new"
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as opened:
            opened.write(f"hf-{secrets.token_urlsafe(32)}\n")
        draft.replace(path)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise StateDirError(f"{path} cannot be written: {why}") from error
    return path


def is_exposed(state_dir: Path) -> bool:
    """Whether a state directory has a token that others than its owner can read."""
    path = state_dir / TOKEN_FILE
    return path.exists() and not _is_private(path)


def _is_private(path: Path) -> bool:
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return not found.st_mode & 0o077 and found.st_uid == os.geteuid()


def read_token(state_dir: Path) -> str | None:
    """The token of a state directory; None: there is none, or this user cannot read it."""
    try:
        text = (state_dir / TOKEN_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return text if 0 < len(text) <= TOKEN_CHARS_MAX else None


def hash_in(path: Path) -> str:
    """The hash of the token in a file, as a fleet file would have it."""
    return "sha256:" + sha256(path.read_text(encoding="ascii").strip().encode()).hexdigest()


def find_token(url: str, environment: Mapping[str, str]) -> str | None:
    """The token of the fleet of this user that runs at an address; None: none runs there."""
    found = find_running(url, environment)
    return read_token(found[0]) if found is not None else None


def find_running(url: str, environment: Mapping[str, str]) -> tuple[Path, RunningFleet] | None:
    """The fleet of this user that runs with this admin port, and its state directory."""
    base = default_state_dir(None, environment).parent
    try:
        folders = sorted(base.iterdir())[:STATE_DIRS_MAX]
    except OSError:
        return None
    for folder in folders:
        running = read_running(folder)
        if running is not None and running.admin == url.rstrip("/"):
            return folder, running
    return None


@contextlib.contextmanager
def announced(state_dir: Path, running: RunningFleet) -> Iterator[None]:
    """Let commands find a fleet that keeps no state, for as long as the block runs.

    The lock is taken when it is free: a fleet that takes over has its predecessor beside it for a
    while.
    """
    fd = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    has_it = threading.Event()

    def wait() -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
            write_pid(fd, running.pid)
            write_running(state_dir, running)
            has_it.set()

    threading.Thread(target=wait, name="announce", daemon=True).start()
    try:
        yield
    finally:
        if has_it.is_set():
            (state_dir / UP_FILE).unlink(missing_ok=True)
            os.ftruncate(fd, 0)
            os.close(fd)  # else the thread still waits with it, and the process ends anyway


__all__ = [
    "TOKEN_FILE",
    "announced",
    "find_running",
    "find_token",
    "hash_in",
    "is_exposed",
    "keep_token",
    "read_token",
]
