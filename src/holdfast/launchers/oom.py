"""Decides whether the OOM killer ended a process, by the kernel's counts before and after.

A process that ends by SIGKILL cannot say who sent it. The kernel counts its own kills per cgroup
(``memory.events`` in version 2, ``memory.oom_control`` in version 1) and for the whole host
(``/proc/vmstat``). A count that grew within the last seconds of a process is evidence.

The cgroup is looked up while the process lives, since a dead one is in none, and repeatedly,
since a process can be moved. A cgroup may hold several replicas, so the count matters only together
with an end that fits. The count of the host is weaker still: it says that some process was killed.

Rejected: reading the kernel's log, which names the victim, but which containers may not read.

The keeper uses it and must stay small: the standard library only, and of that no ``dataclasses``
and no ``typing``, which would take two of its ten megabytes.
"""

import os

_RECENT_S = 10.0  # an engine outlives a worker of its own that was killed by some seconds
_V1_CONTROLLER = "memory"


class OomVerdict:
    """What the OOM counts say about a process that ended just now."""

    __slots__ = ("in_cgroup", "nobody", "on_host")

    def __init__(self, *, in_cgroup: bool, on_host: bool, nobody: bool = False) -> None:
        self.in_cgroup = in_cgroup
        self.on_host = on_host
        self.nobody = nobody  # the count of the host was watched, and did not move

    @property
    def words(self) -> str:
        """The verdict as a sentence for people; empty if no count grew."""
        if self.in_cgroup:
            return "the kernel's OOM killer was at work in its cgroup"
        if self.on_host:
            return "somebody was OOM-killed on this host just then, perhaps this process"
        return ""


class OomWatch:
    """Follows the OOM counts of one process: look() repeatedly, verdict() at its end."""

    def __init__(self, pid: int, *, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self._pid = pid
        self._proc = proc
        self._cgroups = cgroups
        self._file = ""  # where the count of its cgroup stands
        self._kills: int | None = None
        self._host_kills = host_kills(proc)
        self._grew_at: float | None = None
        self._host_grew_at: float | None = None

    def look(self, now_s: float) -> None:
        """Read the counts while the process lives; now_s is of any monotonic clock."""
        file = count_file(self._pid, self._proc, self._cgroups)
        if file and file != self._file:
            self._count(now_s)  # what happened where it was
            self._file = file
            self._kills = kills_in(file)
        self._count(now_s)

    def verdict(self, now_s: float) -> OomVerdict:
        """Judge the end of the process by the counts of the cgroup it was last seen in."""
        self._count(now_s)
        on_host = _recent(self._host_grew_at, now_s)
        return OomVerdict(
            in_cgroup=_recent(self._grew_at, now_s),
            on_host=on_host,
            nobody=self._host_kills is not None and not on_host,
        )

    def _count(self, now_s: float) -> None:
        kills = kills_in(self._file) if self._file else None
        if kills is not None:
            if self._kills is not None and kills > self._kills:
                self._grew_at = now_s
            self._kills = kills
        host = host_kills(self._proc)
        if host is not None:
            if self._host_kills is not None and host > self._host_kills:
                self._host_grew_at = now_s
            self._host_kills = host


def _recent(grew_at: float | None, now_s: float) -> bool:
    return grew_at is not None and now_s - grew_at <= _RECENT_S


def count_file(pid: int, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> str:
    """The file that counts OOM kills of the process's cgroup; empty where none can be read."""
    unified = ""
    for line in _text(f"{proc}/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if _V1_CONTROLLER in controllers.split(","):
            return _existing(f"{cgroups}/memory", path, "memory.oom_control")
        if number == "0":
            unified = path
    if not unified:
        return ""
    return _existing(cgroups, unified, "memory.events") or _existing(
        f"{cgroups}/unified", unified, "memory.events"
    )


def _existing(mount: str, path: str, name: str) -> str:
    """In a container the path may be the host's, while only the own cgroup is mounted."""
    for file in (f"{mount}{path.rstrip('/')}/{name}", f"{mount}/{name}"):
        if os.access(file, os.R_OK):
            return file
    return ""


def kills_in(file: str) -> int | None:
    """The count of OOM kills in a cgroup's file; None if it has none."""
    for line in _text(file).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdecimal():
            return int(number)
    return None


def host_kills(proc: str = "/proc") -> int | None:
    """OOM kills on this host since it started; None if the kernel does not say."""
    return kills_in(f"{proc}/vmstat")


def _text(file: str) -> str:
    """Kernel files vanish with their process or cgroup; then there is nothing to read."""
    try:
        with open(file, encoding="ascii", errors="replace") as opened:  # noqa: PTH123 small
            return opened.read()
    except OSError:
        return ""


__all__ = ["OomVerdict", "OomWatch", "count_file", "host_kills", "kills_in"]
