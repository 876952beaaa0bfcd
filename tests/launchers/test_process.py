"""Real processes: what the contract cannot ask of a fake. Each test ends what it starts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from holdfast.launchers import keeper
from holdfast.launchers.keeper import runs, stat
from holdfast.launchers.process import ProcessLauncher
from holdfast.ports import LaunchError, Order

WAITS = ("{python}", "-I", "-S", "-c", "print('up', flush=True); import signal; signal.pause()")


@asynccontextmanager
async def launched(directory, notes, **more):
    launcher = ProcessLauncher(directory, **more)
    await launcher.adopt(notes)
    try:
        yield launcher
    finally:
        await launcher.close(leave_running=False)


def keeper_pid(directory, name):
    return json.loads((directory / name / keeper.KEEPER).read_text())["keeper"]


def test_a_command_that_cannot_run_is_refused_by_name_and_leaves_nothing(tmp_path, notes):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            with pytest.raises(LaunchError, match=r"'no-such-engine': No such file.*installed"):
                await launcher.start(Order("a", ("no-such-engine", "--port", "1")))
            assert launcher.pid("a") is None
            await launcher.start(Order("a", WAITS))
        assert [news[0] for news in notes.all if news[0] != "line"] == ["started", "ended"]

    asyncio.run(main())


def test_a_folder_that_cannot_be_written_is_an_error_with_its_name(tmp_path, notes):
    async def main():
        async with launched(tmp_path / "x", notes) as launcher:
            (tmp_path / "x" / "a").write_text("a file stands where the folder belongs")
            with pytest.raises(LaunchError, match=r"cannot use the folder .*a: Not a directory"):
                await launcher.start(Order("a", WAITS))

    asyncio.run(main())


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "späte Größe", "%2E"])
def test_any_id_stays_inside_the_directory(tmp_path, notes, name):
    async def main():
        inside = tmp_path / "in"
        async with launched(inside, notes) as launcher:
            await launcher.start(Order(name, WAITS))
            await notes.first("line")
            log = launcher.log_path(name)
            assert log.parent.parent == inside
            assert log.read_text() == "up\n"
        launcher.forget(name)
        assert list(inside.iterdir()) == []
        assert list(tmp_path.iterdir()) == [inside]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_an_id_that_makes_no_folder_is_refused(tmp_path, notes, name):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            with pytest.raises(LaunchError, match="1 to 200"):
                await launcher.start(Order(name, WAITS))

    asyncio.run(main())


def test_what_is_written_is_for_the_owner_only(tmp_path, notes):
    async def main():
        async with launched(tmp_path / "own", notes) as launcher:
            await launcher.start(Order("a", WAITS, environment={"SECRET": "s"}))
            await notes.first("line")
            for path in (tmp_path / "own").rglob("*"):
                assert path.stat().st_mode & 0o077 == 0, path

    asyncio.run(main())


def environment_of(pid):
    pairs = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return dict(pair.split("=", 1) for pair in pairs)


def test_secrets_of_control_reach_neither_the_engine_nor_its_keeper(tmp_path, notes, monkeypatch):
    planted = {
        "AWS_SECRET_ACCESS_KEY": "planted-1",
        "HOLDFAST_ADMIN_TOKEN": "planted-2",
        "HF_TOKEN": "planted-3",
        "OTHER_ENGINE": "planted-4",
        "https_proxy": "http://user:planted-5@proxy.example:3128",
    }
    kept = {"CUDA_VISIBLE_DEVICES": "1", "HF_HOME": "/hf", "LC_ALL": "C", "http_proxy": "p:1"}
    for name, value in {**planted, **kept}.items():
        monkeypatch.setenv(name, value)

    async def main():
        async with launched(tmp_path, notes) as launcher:
            engine = await launcher.start(Order("a", WAITS))
            await notes.first("line")
            found = [environment_of(pid) for pid in (engine, keeper_pid(tmp_path, "a"))]
            files = [path.read_text() for path in (tmp_path / "a").iterdir() if path.is_file()]
        return found, files

    found, files = asyncio.run(main())
    for around in found:
        assert "planted" not in str(around)
        assert {name: around.get(name) for name in kept} == kept
        assert around["PATH"] == os.environ["PATH"]
    assert "planted" not in str(files)


def test_what_the_file_names_or_sets_reaches_its_engine_alone(tmp_path, notes, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "planted-1")
    named = Order("a", WAITS, environment={"MODE": "fast"}, pass_env=("HF_TOKEN", "NOT_SET"))

    async def main():
        async with launched(tmp_path, notes) as launcher:
            first = environment_of(await launcher.start(named))
            second = environment_of(await launcher.start(Order("b", WAITS)))
            files = [path.read_text() for path in (tmp_path / "a").iterdir() if path.is_file()]
        return first, second, files

    first, second, files = asyncio.run(main())
    assert (first["HF_TOKEN"], first["MODE"], "NOT_SET" in first) == ("planted-1", "fast", False)
    assert not {"HF_TOKEN", "MODE"} & second.keys()
    assert "planted" not in str(files)


def test_withheld_variables_are_logged_once_by_name(tmp_path, notes, monkeypatch):
    monkeypatch.setenv("OTHER_ENGINE", "planted")

    async def main():
        async with launched(tmp_path, notes) as launcher:
            for name in ("a", "b"):
                await launcher.start(Order(name, WAITS))

    with structlog.testing.capture_logs() as logged:
        asyncio.run(main())
    (told,) = [line for line in logged if line["event"] == "variables withheld from engines"]
    assert "OTHER_ENGINE" in told["names"]
    assert "PATH" not in told["names"]
    assert "planted" not in str(logged)


def test_lines_of_an_earlier_run_are_kept_but_not_told_again(tmp_path, notes, waits):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            for run in (1, 2):
                await launcher.start(Order("a", ("sh", "-c", f"echo run {run}")))
                await waits(lambda run=run: len(notes.of("ended")) == run)
            assert notes.of("line") == ["run 1", "run 2"]
            assert launcher.log_path("a").read_text() == "run 1\nrun 2\n"
            assert launcher.log_path("b") is None

    asyncio.run(main())


def test_several_start_at_once(tmp_path, notes):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            names = [f"r{number}" for number in range(6)]
            pids = await asyncio.gather(*(launcher.start(Order(name, WAITS)) for name in names))
            assert len(set(pids)) == 6
            twice = asyncio.gather(
                launcher.start(Order("b", WAITS)),
                launcher.start(Order("b", WAITS)),
                return_exceptions=True,
            )
            assert sum(isinstance(one, LaunchError) for one in await twice) == 1
        assert len(notes.of("ended")) == 7

    asyncio.run(main())


def test_whoever_gives_up_waiting_for_a_start_finds_it_running(tmp_path, notes, waits):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            starting = asyncio.ensure_future(launcher.start(Order("a", WAITS)))
            await asyncio.sleep(0)
            starting.cancel()
            await waits(lambda: launcher.pid("a"))
            assert notes.of("started") == [launcher.pid("a")]

    asyncio.run(main())


CONTROL = """
import asyncio, structlog, sys
from pathlib import Path
from holdfast.launchers.process import ProcessLauncher
from holdfast.ports import Order

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

class Quiet:
    def started(self, *_): pass
    line = ended = stopped = started

async def main():
    launcher = ProcessLauncher(Path(sys.argv[1]), lease_s=float(sys.argv[2]))
    await launcher.adopt(Quiet())
    for name in sys.argv[3:]:
        print(await launcher.start(Order(name, ("sleep", "600"), note={"zone": "z"})), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def killed_control(directory, lease_s, *names):
    """A control that started these and was then killed with -9."""
    command = [sys.executable, "-c", CONTROL, str(directory), str(lease_s), *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as control:
        pids = [int(control.stdout.readline()) for _ in names]
        control.kill()
    return pids


def test_the_heir_of_a_killed_control_adopts_the_same_processes(tmp_path, notes, waits_now):
    pids = killed_control(tmp_path, 60, "a", "b")
    os.kill(pids[1], signal.SIGKILL)
    waits_now((tmp_path / "b" / keeper.EXIT).exists)

    async def main():
        launcher = ProcessLauncher(tmp_path)
        adopted = await launcher.adopt(notes)
        try:
            found = {one.order.replica_id: one for one in adopted}
            assert found["a"].pid == pids[0]
            assert found["a"].order == Order("a", ("sleep", "600"), note={"zone": "z"})
            told = {news[1]: news[2] for news in notes.all if news[0] == "ended"}
            assert set(found) == {"a"}
            assert set(told) == {"b"}
        finally:
            await launcher.close(leave_running=False)
        assert {news[1]: news[2].signal for news in notes.all if news[0] == "ended"} == {
            "a": signal.SIGTERM,
            "b": signal.SIGKILL,
        }

    asyncio.run(main())


def test_without_an_heir_the_lease_ends_them(tmp_path, notes, waits_now):
    (pid,) = killed_control(tmp_path, 1.0, "a")
    start = stat(pid)[2]
    waits_now(lambda: not runs(pid, start))
    waits_now((tmp_path / "a" / keeper.EXIT).exists)

    async def main():
        async with launched(tmp_path, notes):
            (ended,) = notes.of("ended")
            assert "nobody renewed its lease for 1 s" in ended.reason
            assert ended.asked

    asyncio.run(main())


def test_control_renews_leases_for_as_long_as_it_runs(tmp_path, notes, waits):
    async def main():
        async with launched(tmp_path, notes, lease_s=1.0) as launcher:
            await launcher.start(Order("a", WAITS))
            lease = tmp_path / "a" / keeper.LEASE
            seen = set()
            await waits(lambda: seen.add(lease.stat().st_mtime_ns) or len(seen) >= 8)  # 2 s
            assert launcher.pid("a") is not None

    asyncio.run(main())


def test_a_second_control_cannot_start_what_runs_under_the_first(tmp_path, notes):
    async def main():
        async with launched(tmp_path, notes) as first:
            second = ProcessLauncher(tmp_path)
            await second.adopt(notes)
            await first.start(Order("a", WAITS))
            with pytest.raises(LaunchError, match="under another control"):
                await second.start(Order("a", WAITS))
            await second.close(leave_running=True)

    asyncio.run(main())


def test_a_pid_that_was_used_again_is_neither_adopted_nor_touched(tmp_path, notes):
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        for name, boot, shift in (("a", keeper.boot(), 1), ("b", "an earlier boot", 0)):
            folder = tmp_path / name
            folder.mkdir()
            start = stat(bystander.pid)[2] + shift
            order = {"replica_id": name, "ordered": [["x"], {}], "port": 1, "note": {}}
            (folder / keeper.ORDER).write_text(json.dumps(order))
            known = {"boot": boot, "keeper": bystander.pid, "keeper_start": start}
            known |= {"engine": bystander.pid, "engine_start": start, "started_at": 1.0}
            (folder / keeper.KEEPER).write_text(json.dumps(known))

        async def main():
            async with launched(tmp_path, notes) as launcher:
                assert launcher.pid("a") is launcher.pid("b") is None
                assert len(notes.of("ended")) == 2

        asyncio.run(main())
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_folders_that_make_no_sense_do_not_stop_adoption(tmp_path, notes):
    for name, text in (("torn", '{"replica_id": "to'), ("list", "[]"), ("empty", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / keeper.ORDER).write_text(text)
    (tmp_path / "given-up").mkdir()
    (tmp_path / "a file").touch()

    async def main():
        async with launched(tmp_path, notes) as launcher:
            await launcher.start(Order("a", WAITS))
        assert not (tmp_path / "given-up").exists()

    asyncio.run(main())


def test_one_that_never_began_is_told_as_ended(tmp_path, notes):
    (tmp_path / "a").mkdir()
    order = {"replica_id": "a", "ordered": [["x"], {}], "port": 1, "note": {}}
    (tmp_path / "a" / keeper.ORDER).write_text(json.dumps(order))

    async def main():
        async with launched(tmp_path, notes):
            (ended,) = notes.of("ended")
            assert "never began" in ended.reason
        assert (tmp_path / "a" / keeper.ORDER).exists()

    asyncio.run(main())


FAMILY = (
    "import os, signal\n"
    "if os.fork() == 0: os.setsid()\n"
    "print('pid', os.getpid(), flush=True)\n"
    "signal.pause()"
)


def test_a_killed_keeper_takes_the_engine_and_its_children_along(tmp_path, notes, waits):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            await launcher.start(Order("a", ("{python}", "-I", "-S", "-c", FAMILY)))
            await waits(lambda: len(notes.of("line")) == 2)
            family = [int(line.split()[1]) for line in notes.of("line")]
            starts = {pid: stat(pid)[2] for pid in family}
            os.kill(keeper_pid(tmp_path, "a"), signal.SIGKILL)
            ended = await notes.first("ended")
            assert "its keeper was killed" in ended.reason
            assert ended.signal == signal.SIGKILL
            assert not [pid for pid in family if runs(pid, starts[pid])]

    asyncio.run(main())


def test_a_suspended_keeper_does_not_keep_a_replica_from_being_stopped(tmp_path, notes):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            await launcher.start(Order("a", WAITS))
            await notes.first("line")
            os.kill(keeper_pid(tmp_path, "a"), signal.SIGSTOP)
            ended = await launcher.stop("a", 10.0)
            assert ended.signal == signal.SIGTERM

    asyncio.run(main())


def test_an_end_under_a_suspended_keeper_is_noticed(tmp_path, notes):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            await launcher.start(Order("a", WAITS))
            await notes.first("line")
            os.kill(keeper_pid(tmp_path, "a"), signal.SIGSTOP)
            os.kill(launcher.pid("a"), signal.SIGKILL)
            assert (await notes.first("ended")).reason == "killed by SIGKILL"

    asyncio.run(main())


LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_that_is_dead_but_not_gone_is_told_as_one_that_does_not_run(tmp_path, notes):
    async def main():
        async with launched(tmp_path, notes) as launcher:
            await launcher.start(Order("a", ("{python}", "-I", "-S", "-c", LEADERLESS)))
            assert await notes.first("stopped") is True
            os.kill(launcher.pid("a"), signal.SIGKILL)
            assert (await notes.first("ended")).reason == "killed by SIGKILL"
            assert notes.of("stopped") == [True]

    asyncio.run(main())


def test_a_watcher_that_fails_does_not_end_the_watching(tmp_path, notes, capsys):
    class Failing(type(notes)):
        def line(self, replica_id, text):
            super().line(replica_id, text)
            raise RuntimeError("of the watcher's own")

    failing = Failing()

    async def main():
        async with launched(tmp_path, failing) as launcher:
            await launcher.start(Order("a", ("sh", "-c", "echo one; echo two; exit 3")))
            assert (await failing.first("ended")).code == 3
            assert failing.of("line") == ["one", "two"]

    asyncio.run(main())
    assert "the watcher failed" in capsys.readouterr().out


def test_a_lease_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="lease_s"):
        ProcessLauncher(tmp_path, lease_s=0)


# --- the OOM killer -------------------------------------------------------------------------------


def small_cgroup():
    """A cgroup with 48 MB of memory, or the reason why there is none."""
    lines = dict(
        line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
    )
    base, limit = Path("/sys/fs/cgroup"), "memory.max"
    if "memory" in lines:
        base, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    for parent in (base / lines.get("memory", lines.get("", "/")).strip("/"), base):
        made = parent / f"holdfast-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / limit).write_text(str(48 << 20))
        except OSError:
            made.rmdir()
            continue
        return made
    return None


EATS = """
import sys
print("ready", flush=True)
open(sys.argv[1]).read()
full = [bytearray(1 << 20) for _ in range(400)]
for one in full:
    one[::4096] = b"x" * 256
"""


def test_a_real_oom_kill_is_told_as_one(tmp_path, notes, waits):
    cgroup = small_cgroup()
    if cgroup is None:
        pytest.skip("no cgroup with a memory limit can be made here (needs root and a controller)")
    pipe = tmp_path / "go"
    os.mkfifo(pipe)

    def looks():
        status = Path(f"/proc/{keeper_pid(tmp_path / 'r', 'a')}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    async def main():
        async with launched(tmp_path / "r", notes) as launcher:
            order = Order("a", ("{python}", "-I", "-S", "-c", EATS, str(pipe)))
            pid = await launcher.start(order)
            await notes.first("line")
            (cgroup / "cgroup.procs").write_text(str(pid))
            before = looks()
            await waits(lambda: looks() >= before + 3)  # the keeper has seen where it is now
            pipe.write_text("go")
            ended = await notes.first("ended")
            assert (ended.signal, ended.oom) == (signal.SIGKILL, True)
            assert ended.reason == (
                "killed by SIGKILL; the kernel's OOM killer was at work in its cgroup"
            )

    try:
        asyncio.run(main())
    finally:
        cgroup.rmdir()
