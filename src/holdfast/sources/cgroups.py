"""Reads the cgroup of a process: memory in use, its limit, and the count of OOM kills.

    /proc/PID/cgroup ─► /sys/fs/cgroup/…/memory.current, memory.max, memory.events, cgroup.procs

For processes that are not our children two counts show an OOM kill: that of their cgroup, and that
of the host. The first names the place and is lost when a container's cgroup goes with its last
process; then the second is what is left. *Used* is what counts against the limit less the cold
part of the page cache, which the kernel drops before it kills a process.

Version 2 is read in full; of version 1, whose hosts are dying out, the same three numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.sources.pressure import counted, text_of

_V1_NO_LIMIT: Final = 1 << 60  # version 1 writes a huge number where there is none
PIDS_MAX: Final = 4_096


@dataclass(slots=True, frozen=True)
class Cgroup:
    """Memory figures of one cgroup at one moment; None where the kernel does not say."""

    folder: Path
    inode: int  # of the folder: one that is made anew under the same name counts from zero
    used_bytes: int | None = None
    limit_bytes: int | None = None  # its own; those above it may be narrower
    kills: int | None = None  # OOM kills in it and below since it was made
    pids: tuple[int, ...] = ()  # who is in it


def read_cgroup(
    pid: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> Cgroup | None:
    """Read the cgroup that counts this process's memory; None if it cannot be read."""
    unified = ""
    for line in text_of(proc / str(pid) / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return _first(cgroups / "memory", path, "memory.usage_in_bytes", _version_1)
        if number == "0":
            unified = path
    if not unified:
        return None
    return _first(cgroups, unified, "cgroup.procs", _version_2)


def kills_since(cgroup: Cgroup) -> int | None:
    """OOM kills in a cgroup since it was read; None if it is gone or has no count."""
    if cgroup.kills is None or _inode(cgroup.folder) != cgroup.inode:
        return None
    kills = _kills(cgroup.folder)
    return None if kills is None else kills - cgroup.kills


def _kills(folder: Path) -> int | None:
    told = counted(text_of(folder / "memory.events"), "oom_kill")
    return counted(text_of(folder / "memory.oom_control"), "oom_kill") if told is None else told


def _first(mount: Path, path: str, sign: str, read: Callable[[Path], Cgroup]) -> Cgroup | None:
    """In a container the path may be the host's, while only the own cgroup is mounted."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for folder in (mount.joinpath(*parts), mount):
        if (folder / sign).exists():
            return read(folder)
    return None


def _version_2(folder: Path) -> Cgroup:
    current = _number(folder / "memory.current")
    cold = counted(text_of(folder / "memory.stat"), "inactive_file") or 0
    return Cgroup(
        folder,
        _inode(folder),
        used_bytes=None if current is None else max(0, current - cold),
        limit_bytes=_number(folder / "memory.max"),
        kills=_kills(folder),
        pids=_pids(folder),
    )


def _version_1(folder: Path) -> Cgroup:
    current = _number(folder / "memory.usage_in_bytes")
    cold = counted(text_of(folder / "memory.stat"), "total_inactive_file") or 0
    limit = _number(folder / "memory.limit_in_bytes")
    return Cgroup(
        folder,
        _inode(folder),
        used_bytes=None if current is None else max(0, current - cold),
        limit_bytes=limit if limit is not None and limit < _V1_NO_LIMIT else None,
        kills=_kills(folder),
        pids=_pids(folder),
    )


def _pids(folder: Path) -> tuple[int, ...]:
    words = text_of(folder / "cgroup.procs").split()
    return tuple(int(word) for word in words[:PIDS_MAX] if word.isdecimal())


def _inode(folder: Path) -> int:
    try:
        return folder.stat().st_ino
    except OSError:  # it is gone: no folder has this number
        return 0


def _number(path: Path) -> int | None:
    told = text_of(path).strip()
    return int(told) if told.isdecimal() else None


__all__ = ["PIDS_MAX", "Cgroup", "kills_since", "read_cgroup"]
