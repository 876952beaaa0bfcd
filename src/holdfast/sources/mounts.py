r"""Reads shared filesystems mounted on this host: their read rates and sizes.

    /proc/self/mountstats ─► bytes and operations since the mount ─► rates between two looks
    statvfs, in the background ─► size and free space

NFS (EFS among it) counts for itself what came over the wire: a file that is in the page cache costs
nothing and is not counted, which is what a ceiling is about. Ceph counts in debugfs, which only
root can read; elsewhere its rate is unknown. ``statvfs`` asks the server and hangs with it, so it
runs in the background, and a mount that does not answer is reported instead of delaying the look.

One filesystem has one name on all hosts, or the joined view would show it once for each of them:
EFS its own id, others ``server:/export``. A mount through a local tunnel (stunnel of the EFS mount
helper) hides its server; it is named by host and mount point, or by the config.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.core.view.layers import Disk
from holdfast.sources.background_call import BackgroundCall
from holdfast.sources.pressure import free_space, text_of

MOUNTS_MAX: Final = 32  # a host with more shared mounts is one for home directories
SIZE_EVERY_S: Final = 60.0
_HUNG_S: Final = 5.0

KINDS: Final = ("nfs", "nfs4", "ceph", "cifs", "smb3", "lustre", "beegfs", "virtiofs", "9p")
_OF_FUSE: Final = (
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.juicefs",
)

_DEVICE: Final = re.compile(r"device (.+) mounted on (.+) with fstype (\S+)")
_EFS: Final = re.compile(r"(fs-[0-9a-f]{8,40})\.efs\.")
_LOCAL: Final = ("127.", "localhost", "[::1]", "::1")
_SERVER_READ: Final = 4  # of the eight numbers behind "bytes:": read from the server
_OPERATION: Final = re.compile(r"\t\s*[A-Z_]+: (\d+) ")


@dataclass(slots=True, frozen=True)
class Mount:
    """One mounted filesystem, with its counts since it was mounted."""

    device: str
    point: str
    kind: str
    read_bytes: int | None = None
    operations: int | None = None


def read_mounts(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> list[Mount]:
    """Read all shared filesystems from mountstats."""
    found: list[Mount] = []
    for line in text_of(proc / "self/mountstats").splitlines():
        told = _DEVICE.match(line)
        if told is not None:
            device, point, kind = _plain(told[1]), _plain(told[2]), told[3]
            found.append(Mount(device, point, kind))
        elif found:
            found[-1] = _counted(found[-1], line)
    shared = [mount for mount in found if mount.kind in (*KINDS, *_OF_FUSE)]
    return [_ceph(mount, sys) if mount.kind == "ceph" else mount for mount in shared[:MOUNTS_MAX]]


def name_of(mount: Mount, host: str) -> str:
    """The name of the filesystem, the same on every host that mounts it."""
    efs = _EFS.search(mount.device)
    if efs is not None:
        return efs[1]
    hidden = mount.device.startswith(_LOCAL) or "/" not in mount.device
    return f"{host}:{mount.point}" if hidden else mount.device


class Mounts:
    """Computes rates of shared filesystems between looks, and reads their sizes."""

    def __init__(
        self,
        host: str,
        wanted: Sequence[str] = (),
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
    ) -> None:
        self._host = host
        self._names = _named(wanted)
        self._proc = proc
        self._sys = sys
        self._before: dict[str, tuple[float, Mount]] = {}
        self._sizes: dict[str, BackgroundCall[tuple[int, int] | None]] = {}
        self.points: dict[str, str] = {}  # filesystems by mount point, as of the last look

    def look(self, now: float) -> tuple[list[Disk], str]:
        """The filesystems and those that do not answer; ``now`` is from a monotonic clock."""
        mounts = [
            mount
            for mount in read_mounts(self._proc, self._sys)
            if not self._names or mount.point in self._names
        ]
        self.points = {mount.point: self._name(mount) for mount in mounts}
        missing = [point for point in self._names if point not in self.points]
        problems = [f"nothing shared is mounted on {point}" for point in missing]
        disks: dict[str, Disk] = {}
        for mount in mounts:
            disk, problem = self._disk(mount, now)
            if problem:
                problems.append(problem)
            # Bind mounts show the counts of one mount again; the first stands for all of them.
            disks.setdefault(disk.id, disk)
        self._before = {mount.point: (now, mount) for mount in mounts}
        self._sizes = {p: aside for p, aside in self._sizes.items() if p in self.points}
        return list(disks.values()), "; ".join(problems)

    def _disk(self, mount: Mount, now: float) -> tuple[Disk, str]:
        before = self._before.get(mount.point)
        read_s = operations_s = None
        if before is not None and before[1].device == mount.device and now > before[0]:
            span = now - before[0]
            read_s = _rate(before[1].read_bytes, mount.read_bytes, span)
            operations_s = _rate(before[1].operations, mount.operations, span)
        aside = self._sizes.get(mount.point)
        if aside is None:
            aside = BackgroundCall(partial(free_space, mount.point), SIZE_EVERY_S)
            self._sizes[mount.point] = aside
        size = aside.poll(0.05)
        hung = aside.hangs_s
        problem = ""
        if hung is not None and hung > _HUNG_S:
            problem = f"{mount.point} has not answered for {hung:.0f} s"
        disk = Disk(
            self._name(mount),
            mode=mount.kind,
            read_bytes_s=read_s,
            size_bytes=size[0] if size else None,
            free_bytes=size[1] if size else None,
            operations_s=operations_s,
        )
        return disk, problem

    def _name(self, mount: Mount) -> str:
        return self._names.get(mount.point) or name_of(mount, self._host)

    def filesystem_of(self, words: Sequence[str]) -> str:
        """The shared filesystem that one of these paths lies on; empty if none."""
        for word in words:
            path = word.rpartition("=")[2]
            for point, name in self.points.items():
                if path == point or path.startswith(f"{point.rstrip('/')}/"):
                    return name
        return ""


def _named(wanted: Sequence[str]) -> dict[str, str]:
    """Mount points with the names they were given: ``/mnt/models`` or ``weights=/mnt/models``."""
    pairs = [("", word) if word.startswith("/") else _pair(word) for word in wanted]
    return {point: name for name, point in pairs}


def _pair(word: str) -> tuple[str, str]:
    name, _, point = word.partition("=")
    return name, point


def _counted(mount: Mount, line: str) -> Mount:
    if line.startswith("\tbytes:"):
        numbers = line.split()[1:]
        if len(numbers) > _SERVER_READ and numbers[_SERVER_READ].isdecimal():
            return replace(mount, read_bytes=int(numbers[_SERVER_READ]))
    elif (told := _OPERATION.match(line)) is not None:
        return replace(mount, operations=(mount.operations or 0) + int(told[1]))
    return mount


def _ceph(mount: Mount, sys: Path) -> Mount:
    """Counts of the kernel's client; several mounts of one Ceph share one."""
    clients = sorted((sys / "kernel/debug/ceph").glob("*.client*/metrics/size"))
    if len(clients) != 1:
        return mount
    for line in text_of(clients[0]).splitlines():
        words = line.split()
        if len(words) == 6 and words[0] == "read" and words[5].isdecimal():
            return replace(mount, read_bytes=int(words[5]))
    return mount


def _rate(before: int | None, now: int | None, span_s: float) -> float | None:
    if before is None or now is None or now < before:  # it was mounted anew
        return None
    return round((now - before) / span_s, 1)


_ESCAPED: Final[Mapping[str, str]] = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def _plain(text: str) -> str:
    for written, meant in _ESCAPED.items():
        text = text.replace(written, meant)
    return text


__all__ = ["KINDS", "MOUNTS_MAX", "SIZE_EVERY_S", "Mount", "Mounts", "name_of", "read_mounts"]
