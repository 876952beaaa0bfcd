"""Where a fleet keeps its state, and that one process at a time has it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.wire.state_dir import (
    RunningFleet,
    StateDirTakenError,
    default_state_dir,
    held,
    holder,
    read_running,
    write_running,
)


def test_each_fleet_file_has_its_own_state_dir(tmp_path):
    home = {"XDG_STATE_HOME": "/state"}
    assert default_state_dir(None, home) == Path("/state/holdfast/default")
    first = default_state_dir(tmp_path / "a" / "fleet.yaml", home)
    second = default_state_dir(tmp_path / "b" / "fleet.yaml", home)
    assert first != second
    assert first.parent == Path("/state/holdfast")
    assert re.fullmatch(r"fleet-[0-9a-f]{8}", first.name)
    assert default_state_dir(tmp_path / "b" / ".." / "a" / "fleet.yaml", home) == first


@pytest.mark.parametrize("home", [{}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}])
def test_without_a_usable_wish_state_is_in_the_home_directory(monkeypatch, home):
    monkeypatch.setenv("HOME", "/home/somebody")
    expected = Path("/home/somebody/.local/state/holdfast/default")
    assert default_state_dir(None, home) == expected


def test_one_process_at_a_time_has_a_state_dir(tmp_path):
    where = tmp_path / "state"
    assert holder(where) is None
    with held(where):
        assert holder(where) == os.getpid()
        assert where.stat().st_mode & 0o777 == 0o700
        assert read_running(where) is None  # it has not said yet where it is
        running = RunningFleet(os.getpid(), "http://a", "http://d", "fleet.yaml")
        write_running(where, running)
        assert read_running(where) == running
        with pytest.raises(StateDirTakenError, match=f"pid {os.getpid()}"), held(where):
            pass
        assert holder(where) == os.getpid()
    assert holder(where) is None
    assert not (where / "up.json").exists()
    with held(where):
        assert read_running(where) is None


def test_what_a_crash_left_names_nobody(tmp_path):
    code = (
        "import os; from pathlib import Path\n"
        "from holdfast.wire.state_dir import RunningFleet, held, write_running\n"
        f"where = Path({str(tmp_path)!r})\n"
        "with held(where):\n"
        "    write_running(where, RunningFleet(os.getpid(), 'http://a', 'http://d', 'f'))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert (tmp_path / "up.json").exists()
    assert (tmp_path / "lock").read_text()
    assert holder(tmp_path) is None
    assert read_running(tmp_path) is None
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()
