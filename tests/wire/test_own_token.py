import json
import os
import stat
import threading

import pytest

from holdfast.wire import own_token, state_dir
from holdfast.wire.own_token import (
    announced,
    find_token,
    hash_in,
    is_exposed,
    keep_token,
    read_token,
)
from holdfast.wire.state_dir import RunningFleet, StateDirError, held, read_running, write_running

ADMIN = "http://127.0.0.1:8001"


def running(pid=None, admin=ADMIN):
    return RunningFleet(pid or os.getpid(), admin, "http://127.0.0.1:8000", "fleet.yaml")


def test_a_token_is_made_once_for_its_owner_alone(tmp_path):
    folder = tmp_path / "state"
    path = keep_token(folder)
    first = read_token(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first) >= 43  # 256 bits
    assert hash_in(keep_token(folder)) == hash_in(path)
    assert read_token(folder) == first
    assert not is_exposed(folder)


def test_a_token_that_others_could_read_is_replaced(tmp_path):
    path = keep_token(tmp_path)
    first = read_token(tmp_path)
    path.chmod(0o640)
    assert is_exposed(tmp_path)
    keep_token(tmp_path)
    assert read_token(tmp_path) != first
    assert not is_exposed(tmp_path)


@pytest.mark.parametrize("text", ["", "\n", "x" * 600, "é"])
def test_a_file_that_holds_no_token_is_replaced(tmp_path, text):
    (tmp_path / own_token.TOKEN_FILE).write_text(text, encoding="utf-8")
    (tmp_path / own_token.TOKEN_FILE).chmod(0o600)
    assert read_token(tmp_path) is None
    keep_token(tmp_path)
    assert read_token(tmp_path).startswith("hf-")


def test_a_place_where_nothing_can_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirError):
        keep_token(tmp_path / "file" / "state")


def test_the_token_of_a_fleet_is_found_by_its_address_while_it_runs(tmp_path):
    home = {"XDG_STATE_HOME": str(tmp_path)}
    folder = tmp_path / "holdfast" / "fleet-1"
    keep_token(folder)
    assert find_token(ADMIN, home) is None  # it does not run: somebody else may have its port
    with held(folder):
        write_running(folder, running())
        assert find_token(f"{ADMIN}/", home) == read_token(folder)
        assert find_token("http://127.0.0.1:8002", home) is None
    assert find_token(ADMIN, home) is None
    assert find_token(ADMIN, {"XDG_STATE_HOME": str(tmp_path / "nobody")}) is None


def wait_for(condition):
    waiting = threading.Event()
    for _ in range(3_000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come true")


def test_a_fleet_without_state_is_found_while_it_runs(tmp_path):
    with announced(tmp_path, running()):
        wait_for(lambda: read_running(tmp_path) == running())
        assert state_dir.holder(tmp_path) == os.getpid()
    assert state_dir.holder(tmp_path) is None
    assert not (tmp_path / state_dir.UP_FILE).exists()


def test_a_successor_is_found_once_its_predecessor_ended(tmp_path):
    before, after = running(4711), running(admin="http://127.0.0.1:9001")
    with held(tmp_path):
        write_running(tmp_path, before)
        beside = announced(tmp_path, after)
        beside.__enter__()
        assert json.loads((tmp_path / state_dir.UP_FILE).read_text())["pid"] == 4711
    wait_for(lambda: read_running(tmp_path) == after)
    beside.__exit__(None, None, None)
    assert read_running(tmp_path) is None
