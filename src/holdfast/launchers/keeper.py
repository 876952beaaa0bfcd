"""The small process between control and one engine: outlives control and records the engine's end.

One keeper per replica starts the engine in a session of its own, copies its output into a bounded
log, waits for its end and writes down how it came. Control reads all this from files, so a new
control finds everything again after the last one was killed.

Nothing is orphaned. The engine is killed by the kernel when its keeper dies. A keeper whose lease
is not renewed ends its engine. When the engine ends, all processes that it had started are killed
too, also those that left its process group, since the keeper adopts its orphans.

Rejected: engines as children of control, which die or go unwatched with it; an output file that
the engine writes itself, which grows without bound; one keeper for all engines, whose end would end
them all.

Run as ``python -I -S keeper.py DIRECTORY NOTICE_FD``. There is one per replica, so it stays
small: see ``oom`` for what it does not import. Files in DIRECTORY: ``order.json`` (from control),
``keeper.json`` (the pids), ``lease`` (its change of time renews), ``stop.json`` (how long to wait
after SIGTERM), ``output.log`` and ``output.log.1``, ``exit.json``.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time

if not __package__:  # started as a file: nothing else of the installation is reachable, or needed
    sys.path.append(__file__.rsplit("/", 3)[0])

from holdfast.launchers.oom import OomVerdict, OomWatch

ORDER = "order.json"
KEEPER = "keeper.json"
LEASE = "lease"
STOP = "stop.json"
LOG = "output.log"
OLD_LOG = "output.log.1"
EXIT = "exit.json"
TOKEN = "HOLDFAST_LAUNCH"  # noqa: S105 marks the engine's processes in their environment

_LOG_BYTES_MAX = 4 << 20  # and as much again in the older file
_READ_BYTES = 1 << 16  # what a pipe holds
_LAST_READS = 64  # after its end: more than a pipe holds, and not without end
_LOOK_S = 0.5  # at the lease and at the OOM counts
_GRACE_S = 10.0  # where nobody said another
_SWEEP_S = 3.0  # for what the engine left behind; longer is only waited for in the kernel
_OOM_SCORE = 300  # the engine goes before those who can tell of it
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


# --- what the kernel says of a process ------------------------------------------------------------


def boot() -> str:
    """The kernel's boot id: pids and start times are comparable only within one boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as opened:  # noqa: PTH123
        return opened.read().strip()


def stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, process group and start time in ticks of a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:  # noqa: PTH123
            text = opened.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # a name may hold brackets and spaces
    return fields[0].decode("ascii"), int(fields[2]), int(fields[19])


def runs(pid: int, start: int) -> bool:
    """Whether exactly this process still runs: not dead, and not another with the same pid."""
    found = stat(pid)
    return found is not None and found[2] == start and found[0] not in "ZX"


def signal_name(number: int) -> str:
    """The name of a signal: SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def write_whole(path: str, data: dict[str, object]) -> None:
    """Write a file atomically: a reader sees all of it or nothing, even after a kill."""
    partial = f"{path}.partial"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as opened:  # noqa: PTH123
        json.dump(data, opened)
    os.replace(partial, path)  # noqa: PTH105


# --- the log --------------------------------------------------------------------------------------


class BoundedLog:
    """Two log files of bounded size. Never blocks the engine: what cannot be written is lost."""

    def __init__(self, path: str, old_path: str, bytes_max: int = _LOG_BYTES_MAX) -> None:
        self._path = path
        self._old_path = old_path
        self._bytes_max = bytes_max
        self._descriptor = -1
        self._size = 0
        self._lost = 0

    def write(self, data: bytes) -> None:
        """Append to the log; write errors of the disk are noted at the next write that works."""
        try:
            if self._descriptor < 0:
                self._open()
            if self._size + len(data) > self._bytes_max and self._size > 0:
                os.replace(self._path, self._old_path)  # noqa: PTH105
                self.close()
                self._open()
            if self._lost:
                note = b"\n(%d bytes of output were lost: the disk refused them)\n" % self._lost
                self._size += os.write(self._descriptor, note)
                self._lost = 0
            written = os.write(self._descriptor, data)
            self._size += written
            self._lost += len(data) - written
        except OSError:
            self._lost += len(data)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the file until the next write."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


# --- the engine -----------------------------------------------------------------------------------


def spawn(command: list[str], environment: dict[str, str], output: int) -> int:
    """Start the engine; raises the OSError of exec if that fails."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    keeper = os.getpid()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, environment, output, keeper, prctl)
        except OSError as error:
            os.write(writing, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(writing)
    refused = os.read(reading, 16)  # ends with the exec, which closes its copy
    os.close(reading)
    if refused:
        os.waitpid(pid, 0)
        number = int(refused)
        raise OSError(number, os.strerror(number))
    return pid


def _become(
    command: list[str],
    environment: dict[str, str],
    output: int,
    keeper: int,
    prctl: "ctypes._FuncPointer",
) -> None:
    """In the child, up to the exec."""
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:  # it died before it could take us along
        os._exit(127)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # what is ignored would stay so beyond the exec
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _raised_oom_score()
    os.execvpe(command[0], command, environment)  # noqa: S606 the operator's own command


def _raised_oom_score() -> bool:
    """Whether it was allowed; an engine that may not change it starts all the same."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as opened:  # noqa: PTH123
            if int(opened.read()) < _OOM_SCORE:
                opened.seek(0)
                opened.write(str(_OOM_SCORE))
    except OSError:
        return False
    return True


class Keeper:
    """Watches one engine until it has ended: its output, its lease, and orders to stop it."""

    def __init__(self, directory: str, engine: int, output: int, wakeup: int) -> None:
        self._directory = directory
        self._engine = engine
        self._output = output
        self._wakeup = wakeup
        self._log = BoundedLog(f"{directory}/{LOG}", f"{directory}/{OLD_LOG}")
        self._witness = OomWatch(engine)
        self._status: int | None = None
        self._why = ""  # we end it ourselves, because of that
        self._kill_at: float | None = None
        self._grace_s = 0.0
        self._killed = False

    def run(self, lease_s: float, asked: "list[int]") -> dict[str, object]:
        """Watch the engine until it has ended; returns the exit record."""
        poll = select.poll()
        for descriptor in (self._output, self._wakeup):
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        lease = self._lease()
        renewed_at = look_at = time.monotonic()
        while self._status is None:
            now = time.monotonic()
            if now >= look_at:
                look_at = now + min(_LOOK_S, lease_s / 4)
                self._witness.look(now)
                found = self._lease()
                if found is not None and found != lease:
                    lease, renewed_at = found, now
                if now - renewed_at > lease_s and not self._why:
                    self._end(f"nobody renewed its lease for {lease_s:g} s", _GRACE_S)
            if asked:
                asked.clear()
                self._asked()
            if self._kill_at is not None and now >= self._kill_at and not self._killed:
                self._killed = True
                self._signal(signal.SIGKILL)
            due = look_at if self._kill_at is None else min(look_at, max(self._kill_at, now + 0.05))
            for descriptor, _ in poll.poll(max(0.0, due - time.monotonic()) * 1000 + 1):
                if descriptor == self._output and not self._copy():
                    poll.unregister(descriptor)  # the engine closed its output and lives on
                elif descriptor == self._wakeup:
                    os.read(descriptor, 512)
                    self._reap()
        verdict = self._witness.verdict(time.monotonic())
        left = self._sweep()
        for _ in range(_LAST_READS):
            if not self._copy():
                break
        self._log.close()
        return self._record(self._status, verdict, left)

    def _lease(self) -> int | None:
        """Its time of change. The clock that is compared with is ours: the host's may jump."""
        try:
            return os.stat(f"{self._directory}/{LEASE}").st_mtime_ns  # noqa: PTH116
        except OSError:
            return None

    def _copy(self) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return self._status is None
        if data:
            self._log.write(data)
        return bool(data)

    def _asked(self) -> None:
        """Control wrote how long we may wait, or it was somebody else who sent SIGTERM."""
        try:
            with open(f"{self._directory}/{STOP}", encoding="utf-8") as opened:  # noqa: PTH123
                self._end("stopped as asked", float(json.load(opened)["grace_s"]))
        except (OSError, ValueError, KeyError, TypeError):
            self._end("its keeper was told to end (SIGTERM)", _GRACE_S)

    def _end(self, why: str, grace_s: float) -> None:
        """Ask the engine to end, and mark when it is killed. A later call may only hurry."""
        kill_at = time.monotonic() + max(0.0, grace_s)
        if not self._why:
            self._why = why
            if grace_s > 0:
                self._signal(signal.SIGTERM)
                self._signal(signal.SIGCONT)  # a suspended process takes no SIGTERM
        if self._kill_at is None or kill_at < self._kill_at:
            self._kill_at = kill_at
            self._grace_s = grace_s

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._engine, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _reap(self) -> None:
        """The engine, and those of its descendants that were orphaned and came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._engine:
                self._status = status

    def _sweep(self) -> bool:
        """Kill what it left behind; whether some is still there after a while."""
        own = os.getpid()
        deadline = time.monotonic() + _SWEEP_S
        while True:
            self._signal(signal.SIGKILL)
            for child in _children(own):
                _kill(child)  # nobody else can have its number until we reap it
            self._reap()
            if not _children(own) and not self._signal(0):
                return False
            if time.monotonic() > deadline:
                return True
            time.sleep(0.005)

    def _record(self, status: int, verdict: OomVerdict, left: bool) -> dict[str, object]:
        oom_words, in_cgroup = verdict.words, verdict.in_cgroup
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        by_force = number == signal.SIGKILL or code == 128 + signal.SIGKILL
        parts = [_how(code, number)]
        if self._why:
            parts.insert(0, self._why)
            if self._killed and self._grace_s > 0:
                parts.append(f"it had not ended {self._grace_s:g} s after SIGTERM")
        elif oom_words and (by_force or (in_cgroup and code != 0)):
            parts.append(oom_words)
        if left:
            parts.append("some of its processes cannot be killed")
        return {
            "code": code,
            "signal": number,
            "oom": in_cgroup and not self._why and (by_force or (code is not None and code > 0)),
            # A code of 137 is a wrapper's word about a process that may have been elsewhere.
            "oom_ruled_out": verdict.nobody and not in_cgroup and number == signal.SIGKILL,
            "asked": bool(self._why),
            "reason": "; ".join(parts),
            "at": time.time(),
        }


def _how(code: int | None, number: int | None) -> str:
    if number is not None:
        return f"killed by {signal_name(number)}"
    if code is not None and 128 < code < 128 + signal.NSIG:
        return (
            f"exited with code {code}: inside it something was ended by {signal_name(code - 128)}"
        )
    return f"exited with code {code}"


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:  # it took another user's rights
        return False
    return True


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as opened:  # noqa: PTH123
            return [int(one) for one in opened.read().split()]
    except OSError:
        return []  # a kernel without this list: the group is all that is known


# --- the start ------------------------------------------------------------------------------------


def _tell(notice: int, data: dict[str, object]) -> bool:
    """Whether control was there to hear it; else the lease decides what becomes of us."""
    try:
        os.write(notice, json.dumps(data).encode())
    except BrokenPipeError:
        return False
    finally:
        os.close(notice)
    return True


def main(directory: str, notice: int) -> None:
    """Start the engine, report that on the notice pipe, watch it, and write its exit record."""
    os.set_inheritable(notice, False)
    asked: list[int] = []
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open(f"{directory}/{ORDER}", encoding="utf-8") as opened:  # noqa: PTH123
        order = json.load(opened)
    known: dict[str, object] = {"boot": boot(), "keeper": os.getpid(), "engine": 0}
    known["keeper_start"] = (stat(os.getpid()) or ("", 0, 0))[2]
    write_whole(f"{directory}/{KEEPER}", known)
    os.stat(f"{directory}/{ORDER}")  # noqa: PTH116 whoever gave us up removed it: then we end here
    reading, writing = os.pipe()
    environment = {**os.environ, **order["environment"], TOKEN: order["token"]}
    try:
        engine = spawn(order["command"], environment, writing)
    except OSError as error:
        _tell(notice, {"error": error.strerror})
        raise SystemExit(1) from error
    os.close(writing)
    known.update(engine=engine, started_at=time.time())
    known["engine_start"] = (stat(engine) or ("", 0, 0))[2]
    write_whole(f"{directory}/{KEEPER}", known)
    _tell(notice, {"pid": engine})
    ended = Keeper(directory, engine, reading, wakeup).run(order["lease_s"], asked)
    write_whole(f"{directory}/{EXIT}", ended)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

__all__ = [
    "EXIT",
    "KEEPER",
    "LEASE",
    "LOG",
    "OLD_LOG",
    "ORDER",
    "STOP",
    "TOKEN",
    "BoundedLog",
    "Keeper",
    "boot",
    "main",
    "runs",
    "signal_name",
    "spawn",
    "stat",
    "write_whole",
]
