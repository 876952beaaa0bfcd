"""The keeper by itself: its log, its words, its size, and the end of what it keeps."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.launchers import keeper
from holdfast.launchers.keeper import BoundedLog, runs, signal_name, stat, write_whole

STARTED = 'import os, sys; sys.stdout.write("up %d\\n" % os.getpid()); sys.stdout.flush();'


class Kept:
    """A keeper that was started by hand."""

    def __init__(self, folder, command, *, lease_s=60.0, environment=None):
        self.folder = folder
        order = {
            "command": list(command),
            "environment": {"PYTHONUNBUFFERED": "1", **(environment or {})},
            "lease_s": lease_s,
            "token": folder.name,
        }
        (folder / keeper.ORDER).write_text(json.dumps(order))
        (folder / keeper.LEASE).touch()
        self.reading, writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(folder), str(writing)],
            pass_fds=(writing,),
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(writing)

    def notice(self):
        return json.loads(os.read(self.reading, 4096) or b"null")

    def ended(self):
        self.process.wait(20)
        return json.loads((self.folder / keeper.EXIT).read_text())

    def log(self):
        path = self.folder / keeper.LOG
        return path.read_text() if path.exists() else ""

    def close(self):
        os.close(self.reading)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def keep(tmp_path):
    made = []

    def start(*command, **more):
        made.append(Kept(tmp_path, command, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


def python(text):
    return (sys.executable, "-I", "-S", "-c", text)


def test_output_of_both_sorts_is_logged_and_the_exit_written_down(keep):
    kept = keep(
        *python('import sys; print("out", flush=True); print("err", file=sys.stderr); sys.exit(4)')
    )
    engine = kept.notice()["pid"]
    record = kept.ended()
    assert (record["code"], record["signal"], record["oom"]) == (4, None, False)
    assert record["reason"] == "exited with code 4"
    assert kept.log() == "out\nerr\n"
    known = json.loads((kept.folder / keeper.KEEPER).read_text())
    assert known["engine"] == engine
    assert known["keeper"] == kept.process.pid
    assert known["boot"] == keeper.boot()


def test_a_command_that_is_not_there_is_said_on_the_notice_pipe(keep):
    kept = keep("/no/such/engine")
    assert kept.notice() == {"error": "No such file or directory"}
    assert kept.process.wait(20) == 1
    assert not (kept.folder / keeper.EXIT).exists()


@pytest.mark.parametrize(
    ("text", "code", "number", "told"),
    [
        ("import os; os.kill(os.getpid(), 11)", None, 11, "killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", None, 9, "killed by SIGKILL"),
        ("import os; os._exit(137)", 137, None, "something was ended by SIGKILL"),
        ("import os; os._exit(255)", 255, None, "exited with code 255"),
        ("", 0, None, "exited with code 0"),
    ],
)
def test_each_cause_has_its_words(keep, text, code, number, told):
    record = keep(*python(text)).ended()
    assert (record["code"], record["signal"]) == (code, number)
    assert told in record["reason"]
    assert not record["oom"]


def test_the_engine_has_its_own_session_environment_and_no_input(keep):
    text = (
        "import os, sys; print(os.getsid(0) == os.getpid(), os.environ['KEY'], "
        "os.environ['HOLDFAST_LAUNCH'], repr(sys.stdin.read()), len(os.listdir('/proc/self/fd')))"
    )
    kept = keep(*python(text), environment={"KEY": "value"})
    kept.ended()
    assert kept.log() == f"True value {kept.folder.name} '' 4\n"  # and the listing itself


def test_signals_that_python_ignores_have_their_meaning_again(keep):
    kept = keep("sh", "-c", "kill -PIPE $$; echo survived")
    assert kept.ended()["signal"] == signal.SIGPIPE


def test_a_lease_that_nobody_renews_ends_the_engine(keep):
    kept = keep("sleep", "600", lease_s=0.3)
    record = kept.ended()
    assert "nobody renewed its lease for 0.3 s" in record["reason"]
    assert record["signal"] == signal.SIGTERM


def test_a_lease_that_is_renewed_keeps_it(keep, waits_now):
    kept = keep(*python(STARTED + "import time; time.sleep(600)"), lease_s=0.5)
    engine = kept.notice()["pid"]
    renewals = iter(range(150))
    lease = kept.folder / keeper.LEASE

    def renewed_often():
        os.utime(lease)
        return next(renewals, None) is None  # 1.5 s and more: three leases

    waits_now(renewed_often)
    assert stat(engine)[0] in "SR"
    lease.unlink()
    assert "lease" in kept.ended()["reason"]


def test_sigterm_without_a_word_from_control_ends_it_too(keep):
    kept = keep("sleep", "600")
    kept.notice()
    kept.process.terminate()
    assert "its keeper was told to end" in kept.ended()["reason"]


def test_no_grace_means_sigkill_at_once(keep):
    kept = keep("sleep", "600")
    kept.notice()
    write_whole(str(kept.folder / keeper.STOP), {"grace_s": 0})
    kept.process.terminate()
    assert kept.ended()["signal"] == signal.SIGKILL


def test_a_second_word_from_control_may_hurry(keep, waits_now):
    deaf = "import signal; signal.signal(15, signal.SIG_IGN);" + STARTED + "signal.pause()"
    kept = keep(*python(deaf))
    waits_now(lambda: "up" in kept.log())
    for grace_s in (600, 0.1):
        write_whole(str(kept.folder / keeper.STOP), {"grace_s": grace_s})
        kept.process.terminate()
    record = kept.ended()
    assert record["signal"] == signal.SIGKILL
    assert "not ended 0.1 s after SIGTERM" in record["reason"]


def test_what_the_engine_left_behind_ends_with_it_even_out_of_its_group(keep, waits_now):
    text = """
import os, signal, sys
for own_session in (False, True):
    if os.fork() == 0:
        if own_session:
            os.setsid()
            if os.fork():
                os._exit(0)
        print("child", os.getpid(), flush=True)
        signal.pause()
sys.stdin.read()
signal.pause()
"""
    kept = keep(*python(text))
    engine = kept.notice()["pid"]
    waits_now(lambda: kept.log().count("child") == 2)
    children = [int(line.split()[1]) for line in kept.log().splitlines()]
    starts = {pid: stat(pid)[2] for pid in children}
    os.kill(engine, signal.SIGKILL)
    assert kept.ended()["signal"] == signal.SIGKILL
    assert not [pid for pid in children if runs(pid, starts[pid])]


def test_when_the_keeper_is_killed_the_engine_is_too(keep, waits_now):
    kept = keep("sleep", "600")
    engine = kept.notice()["pid"]
    start = stat(engine)[2]
    kept.process.kill()
    waits_now(lambda: not runs(engine, start))


def test_whoever_took_the_order_back_before_the_engine_started_is_obeyed(tmp_path):
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-I", "-S", keeper.__file__, str(tmp_path), str(writing)],
        pass_fds=(writing,),
        capture_output=True,
        check=False,
        timeout=20,
    )
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert done.returncode == 1
    assert b"FileNotFoundError" in done.stderr


def test_an_engine_that_closes_its_output_lives_on(keep, waits_now):
    kept = keep(*python(STARTED + "os.close(1); os.close(2); import signal; signal.pause()"))
    engine = kept.notice()["pid"]
    start = stat(engine)[2]
    waits_now(lambda: "up" in kept.log())
    kept.process.terminate()
    assert kept.ended()["signal"] == signal.SIGTERM
    assert not runs(engine, start)


# --- the log --------------------------------------------------------------------------------------


def test_the_log_is_two_files_of_bounded_size(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old"
    log = BoundedLog(str(new), str(old), bytes_max=1000)
    for number in range(250):
        log.write(b"line %04d\n" % number)
    log.close()
    assert new.stat().st_size <= 1000
    assert old.stat().st_size <= 1000
    assert (old.read_bytes() + new.read_bytes()).endswith(b"line 0248\nline 0249\n")


def test_the_log_goes_on_where_an_earlier_run_ended(tmp_path):
    new = tmp_path / "new"
    new.write_bytes(b"before\n")
    log = BoundedLog(str(new), str(tmp_path / "old"))
    log.write(b"after\n")
    log.close()
    assert new.read_bytes() == b"before\nafter\n"


def test_a_disk_that_refuses_loses_lines_but_nobody_waits_and_it_is_told(tmp_path):
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    log = BoundedLog(str(path), str(tmp_path / "old"))
    log.write(b"x" * 10)
    log.write(b"x" * 5)
    log.close()
    path.unlink()
    log.write(b"back\n")
    log.close()
    assert path.read_bytes() == (b"\n(15 bytes of output were lost: the disk refused them)\nback\n")


# --- small things ---------------------------------------------------------------------------------


def test_a_process_is_known_by_its_start_too():
    state, group, start = stat(os.getpid())
    assert state in "RS"
    assert group == os.getpgrp()
    assert runs(os.getpid(), start)
    assert not runs(os.getpid(), start + 1)
    assert stat(2**22 + 1) is None
    assert not runs(2**22 + 1, 0)


def test_signals_have_names():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(99) == "signal 99"


def test_a_file_is_whole_and_for_its_owner_only(tmp_path):
    path = tmp_path / "data.json"
    write_whole(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["data.json"]


def test_the_keeper_is_small(keep):
    kept = keep("sleep", "600")
    kept.notice()
    status = Path(f"/proc/{kept.process.pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    assert int(resident.split()[1]) < 8192, resident  # kB
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LOADED.format(Path(keeper.__file__).parents[2])],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"asyncio", "dataclasses", "subprocess", "typing"} & set(loaded)


_LOADED = """
import sys
sys.path.append("{}")
import holdfast.launchers.keeper
print(*sys.modules)
"""
