"""Reads memory and bytes read of process trees of this host, from /proc and cgroup v2.

    /proc/*/stat ─► parents and children ─► /proc/PID/status, io ─► one Usage for each tree

*Used* is what would be freed if the tree ended: the anonymous memory of all its processes, and of
mapped files and shared memory the largest share of one process, since the others map the same. The
plain sum of resident sizes was rejected: eight ranks that map the same weights would count them
eight times. Proportional sizes (``smaps_rollup``) were rejected too: the kernel walks every page
for them, which takes half a second for a process of 100 GB and holds its lock meanwhile.

A process that ends during the look is left out; a tree without any process is unknown. One look at
a host with 500 processes takes some 10 ms, in the caller's thread.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TREE_MAX: Final = 512  # processes of one replica; a fork bomb is not counted to its end
_DEPTH_MAX: Final = 32  # of cgroups above each other
_PAGE_KB: Final = 1_024


@dataclass(slots=True, frozen=True)
class ProcessTreeUsage:
    """Memory and bytes read of one process tree at one moment."""

    used_bytes: int
    limit_bytes: int | None  # of the narrowest cgroup around it; None: there is none, or no cgroups
    read_bytes: int | None  # since its start, by whichever of several measures shows most
    pids: tuple[int, ...]


def read_trees(
    roots: Iterable[int], proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> dict[int, ProcessTreeUsage]:
    """Usage of the process trees below these roots; trees that are gone are left out."""
    wanted = list(roots)
    if not wanted:
        return {}
    children = _children(proc)
    found: dict[int, ProcessTreeUsage] = {}
    for root in wanted:
        usage = _usage(proc, cgroups, _tree(root, children))
        if usage is not None:
            found[root] = usage
    return found


def host_memory(proc: Path = Path("/proc")) -> int | None:
    """Total memory of this machine, in bytes."""
    return _fields(proc / "meminfo", ("MemTotal",)).get("MemTotal")


def _children(proc: Path) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc):  # noqa: PTH208 a Path for each of thousands costs more than this
        if name.isdecimal():
            parent = _parent(proc / name / "stat")
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    return children


def _parent(stat: Path) -> int | None:
    text = _text(stat)
    if text is None:
        return None
    # The name stands in brackets and may hold brackets and blanks itself: read behind the last.
    rest = text.rpartition(")")[2].split()
    return int(rest[1]) if len(rest) > 1 and rest[1].isdecimal() else None


def _tree(root: int, children: dict[int, list[int]]) -> list[int]:
    tree = [root]
    for pid in tree:  # grows while it is walked
        if len(tree) >= TREE_MAX:
            break
        tree += children.get(pid, [])
    return tree[:TREE_MAX]


def _usage(proc: Path, cgroups: Path, tree: list[int]) -> ProcessTreeUsage | None:
    own = shared = read = mapped = 0
    alive: list[int] = []
    told = False  # whether anybody said what it has read
    for pid in tree:
        rss = _fields(proc / str(pid) / "status", ("RssAnon", "RssFile", "RssShmem"))
        if "RssAnon" not in rss:
            continue  # it has ended, or ends: a zombie has no memory
        alive.append(pid)
        own += rss["RssAnon"]
        files = rss.get("RssFile", 0)
        shared = max(shared, files + rss.get("RssShmem", 0))
        mapped = max(mapped, files)
        io = _counts(proc / str(pid) / "io")
        told = told or bool(io)
        read += max(io.values(), default=0)
    if not alive:
        return None
    # What is mapped from a warm page cache is read by neither of the kernel's counters.
    seen = max(read, mapped) if told else None
    return ProcessTreeUsage(own + shared, _limit(proc, cgroups, alive[0]), seen, tuple(alive))


def _limit(proc: Path, cgroups: Path, pid: int) -> int | None:
    text = _text(proc / str(pid) / "cgroup") or ""
    line = next((line for line in text.splitlines() if line.startswith("0::/")), None)
    if line is None:
        return None
    parts = [part for part in line[4:].split("/") if part not in ("", ".", "..")]
    limits: list[int] = []
    for depth in range(min(len(parts), _DEPTH_MAX), -1, -1):
        told = (_text(cgroups.joinpath(*parts[:depth], "memory.max")) or "").strip()
        if told.isdecimal():
            limits.append(int(told))
    return min(limits, default=None)


def _counts(path: Path) -> dict[str, int]:
    """What a process has read: from anywhere, and from disks."""
    found: dict[str, int] = {}
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(":")
        if name in ("rchar", "read_bytes") and value.strip().isdecimal():
            found[name] = int(value)
    return found


def _fields(path: Path, names: tuple[str, ...]) -> dict[str, int]:
    """Lines of the form ``Name:  123 kB``, in bytes."""
    found: dict[str, int] = {}
    for line in (_text(path) or "").splitlines():
        name, _, rest = line.partition(":")
        if name in names:
            words = rest.split()
            if len(words) == 2 and words[0].isdecimal() and words[1] == "kB":
                found[name] = int(words[0]) * _PAGE_KB
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone meanwhile, or not ours to read: unknown, and the caller says so
        return None


__all__ = ["TREE_MAX", "ProcessTreeUsage", "host_memory", "read_trees"]
