"""The folder of one replica: the files through which control and its keeper communicate.

Everything here touches the disk or walks /proc, so callers run it in threads. Files are written
whole or not at all; a folder can be read later, however its writer ended.
"""

import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from holdfast.launchers import keeper
from holdfast.ports import Ended, LaunchError, Order

_ENDED_KEPT_MAX: Final = 256  # folders of ended replicas that nobody forgot
_BEGINNING_S: Final = 5.0  # for a keeper that was started by a control that was killed meanwhile
_ERRORS: Final = "keeper.err"
_ASIDE: Final = "order.aside"

_log = structlog.get_logger("holdfast.launcher")


@dataclass(slots=True, frozen=True)
class FoundReplica:
    """A replica that an earlier control started."""

    order: Order
    path: Path
    known: dict[str, Any]  # what its keeper wrote about itself; empty where it never began


def spawn(
    order: Order, folder: Path, lease_s: float, notice: int, environment: Mapping[str, str]
) -> int:
    """Write the order into the folder and start a keeper for it. Logs of earlier runs stay.

    The engine inherits ``environment`` from its keeper. Values that it holds are written nowhere.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _busy(folder, keeper_of(folder)):
        raise LaunchError(f"replica {order.replica_id!r} runs already, under another control")
    for name in (keeper.KEEPER, keeper.EXIT, keeper.STOP):
        (folder / name).unlink(missing_ok=True)
    (folder / keeper.LEASE).touch(mode=0o600)
    data: dict[str, object] = {
        "replica_id": order.replica_id,
        "command": [sys.executable if word == "{python}" else word for word in order.command],
        "environment": {"PYTHONUNBUFFERED": "1", **order.environment},  # or lines come late
        "port": order.port,
        "note": dict(order.note),
        "ordered": [list(order.command), dict(order.environment)],  # as control gave it
        "pass_env": list(order.pass_env),
        "lease_s": lease_s,
        "token": uuid.uuid4().hex,
    }
    keeper.write_whole(str(folder / keeper.ORDER), data)
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", keeper.__file__, str(folder.absolute()), "3"],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, notice, 3),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(folder / _ERRORS), writing, 0o600),
        ],
        setsid=True,  # Ctrl-C is for control, which ends its replicas in order
        setsigmask=(),
        setsigdef=(signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE),
    )


def give_up(folder: Path) -> None:
    """Remove the order of a failed start; logs stay until the replica is forgotten."""
    (folder / keeper.ORDER).unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any] | None:
    """Read a JSON file of the folder; None if it is missing or was not written by us."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def survey(directory: Path) -> tuple[list[FoundReplica], list[FoundReplica]]:
    """Find the replicas that still run and those that ended; only the newest ends are kept."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    alive: list[FoundReplica] = []
    gone: list[FoundReplica] = []
    for path in sorted(path for path in directory.iterdir() if path.is_dir()):
        if not (path / keeper.ORDER).exists() and not _lives(keeper_of(path)):
            shutil.rmtree(path, ignore_errors=True)  # given up: it never ran
            continue
        order = _order(path)
        if order is None:
            _log.warning("holds no order that can be read: left alone", folder=path.name)
            continue
        found = FoundReplica(order, path, keeper_of(path) or _called_off(path))
        (alive if _busy(path, found.known) else gone).append(found)
    gone.sort(key=lambda found: found.path.stat().st_mtime)
    for found in gone[:-_ENDED_KEPT_MAX]:
        shutil.rmtree(found.path, ignore_errors=True)
    return alive, gone[-_ENDED_KEPT_MAX:]


def _order(folder: Path) -> Order | None:
    data = read(folder / keeper.ORDER)
    if data is None:
        return None
    try:
        command, environment = data["ordered"]
        passed = tuple(data.get("pass_env", ()))  # an older order has none
        told = (data["port"], data["note"], passed)
        return Order(data["replica_id"], tuple(command), environment, *told)
    except (KeyError, TypeError, ValueError):
        return None


def _lives(known: Mapping[str, Any]) -> bool:
    return bool(known) and keeper.runs(known["keeper"], known["keeper_start"])


def _busy(folder: Path, known: Mapping[str, Any]) -> bool:
    """With its exit record a keeper has done its last work, though it may exist for a moment."""
    return _lives(known) and not (folder / keeper.EXIT).exists()


def keeper_of(folder: Path) -> dict[str, Any]:
    """What a keeper wrote about itself and its engine; empty if there is nothing."""
    deadline = time.monotonic() + _BEGINNING_S
    while True:
        known = read(folder / keeper.KEEPER)
        if known is None or known.get("boot") != keeper.boot():
            return {}
        if known["engine"]:
            return known
        if not _lives(known) or time.monotonic() > deadline:
            return {}
        time.sleep(0.02)  # it is about to start its engine


def _called_off(folder: Path) -> dict[str, Any]:
    """No keeper was there. One that begins only now must find no order, or be found itself."""
    order, aside = folder / keeper.ORDER, folder / _ASIDE
    order.rename(aside)
    known = keeper_of(folder)
    aside.rename(order)
    return known


def how_it_ended(folder: Path, known: Mapping[str, Any]) -> Ended:
    """How a replica ended, from its keeper's exit record or from the lack of one."""
    data = read(folder / keeper.EXIT)
    if data is not None:
        return Ended(
            data["code"],
            data["signal"],
            bool(data["oom"]),
            str(data["reason"]),
            oom_ruled_out=bool(data.get("oom_ruled_out")),  # earlier versions did not write it
            asked=bool(data.get("asked")),  # nor this
        )
    if not known:
        return Ended(None, None, oom=False, reason="it ended with this host, or never began")
    order = read(folder / keeper.ORDER) or {}
    parts = ["its keeper was killed, and the engine with it"]
    if not _end_marked(str(order.get("token", ""))):
        parts.append("some of its processes cannot be killed")
    words = last_words(folder)
    if words:
        parts.append(words)
    return Ended(None, signal.SIGKILL, oom=False, reason="; ".join(parts))


def _end_marked(token: str) -> bool:
    """Kill what was started for this launch, whoever is its parent now; whether all is gone."""
    deadline = time.monotonic() + _BEGINNING_S
    while token and (left := _marked(f"{keeper.TOKEN}={token}".encode())):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                _log.debug("ended by itself", pid=pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue  # it ended, or is another user's and so not ours
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def last_words(folder: Path) -> str:
    """The last error line of a keeper that failed."""
    try:
        lines = (folder / _ERRORS).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


__all__ = [
    "FoundReplica",
    "give_up",
    "how_it_ended",
    "keeper_of",
    "last_words",
    "read",
    "spawn",
    "survey",
]
