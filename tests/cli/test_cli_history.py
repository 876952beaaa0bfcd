"""``holdfast history`` against real routes on a loopback port, and against a state folder."""

import csv
import io
import json
import sys
import threading
import time

import pytest
import uvicorn
from click.testing import CliRunner
from starlette.applications import Starlette

from holdfast.cli import history as module
from holdfast.cli.history import history as command
from holdfast.control.view.history import history_routes
from holdfast.storage.history import FILE_NAME, History

BEGIN = time.time() // 900 * 900 - 7_200


@pytest.fixture
def state(tmp_path):
    """A folder with two hours of two series, a gap in one of them."""
    folder = tmp_path / "state"
    now = [0.0]
    history = History(folder / FILE_NAME, told=lambda what, reason: None, steady=lambda: now[0])
    for number in range(720):
        now[0] = 10.0 * number
        values = {"model/a/x": float(number), "model/b,c/x": None if 100 < number < 200 else 1.5}
        history.put(BEGIN + 10 * number, values)
    assert history.flush(20)
    assert history.close(20)
    return folder


@pytest.fixture
def admin(state):
    history = History(state / FILE_NAME, told=lambda what, reason: None)
    app = Starlette(routes=history_routes(history))
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    socket.listen()  # a client may come before the server does
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    history.close()


def run(*words):
    return CliRunner().invoke(command, [str(word) for word in words])


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_folder_gives_every_point_and_no_row_for_what_was_unknown(state):
    result = run("--state", state, "--since", BEGIN, "--step", "10s")
    assert result.exit_code == 0, result.output
    found = rows(result.output)
    mine = [row for row in found if row["series"] == "model/a/x"]
    assert [float(row["value"]) for row in mine] == [float(number) for number in range(720)]
    assert [row["time"] for row in mine] == sorted({row["time"] for row in mine})
    assert all(row["time"].endswith("Z") for row in mine)
    assert len(found) == 720 + 720 - 99


def test_the_admin_port_gives_the_same(state, admin):
    asked = ("--since", BEGIN, "--step", "10s")
    assert run("--admin", admin, *asked).output == run("--state", state, *asked).output


def test_coarse_rows_can_be_asked_for(state):
    result = run("--state", state, "--since", BEGIN, "--step", "15m", "--value", "max")
    found = [row["value"] for row in rows(result.output) if row["series"] == "model/a/x"]
    assert found == [str(90 * number + 89) for number in range(8)]


def test_long_times_are_asked_for_in_parts(state, monkeypatch):
    monkeypatch.setattr(module, "_POINTS", 50)
    monkeypatch.setattr(module, "_NAMES", 1)
    result = run("--state", state, "--since", BEGIN, "--step", "10s", "--series", "model/a/")
    assert [float(row["value"]) for row in rows(result.output)] == list(range(720))


def test_the_step_is_the_finest_that_is_kept_for_so_long():
    now = time.time()
    assert module._step("auto", now - 3_600) == 10.0
    assert module._step("auto", now - 86_400) == 60.0
    assert module._step("auto", now - 30 * 86_400) == 900.0
    assert module._step("auto", now - 900 * 86_400) == 900.0


def test_parquet_holds_the_same_as_csv(state, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "out.parquet"
    result = run("--state", state, "--since", BEGIN, "--step", "10s", "-o", target)
    assert result.exit_code == 0, result.output
    assert "1341 rows of 2 series" in result.output
    table = parquet.read_table(target)
    assert table.schema.names == ["series", "time", "value"]
    plain = rows(run("--state", state, "--since", BEGIN, "--step", "10s").output)
    assert table.column("series").to_pylist() == [row["series"] for row in plain]
    assert table.column("value").to_pylist() == [float(row["value"]) for row in plain]
    assert table.column("time")[0].as_py().timestamp() == BEGIN
    assert list(tmp_path.glob("*.part")) == []


def test_json_lines_hold_the_same_as_csv(state, tmp_path):
    asked = ("--state", state, "--since", BEGIN, "--step", "10s")
    found = [json.loads(line) for line in run(*asked, "--json").output.splitlines()]
    plain = rows(run(*asked).output)
    assert found == [{**row, "value": float(row["value"])} for row in plain]
    target = tmp_path / "out.json"
    assert "1341 rows of 2 series" in run(*asked, "--json", "-o", target).output
    assert [json.loads(line) for line in target.read_text().splitlines()] == found


def test_without_pyarrow_the_extra_is_named(state, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    result = run("--state", state, "-o", tmp_path / "out.parquet")
    assert result.exit_code == 1
    assert "holdfast[parquet]" in result.output


def test_a_csv_file_takes_its_name_when_it_is_whole(state, tmp_path):
    target = tmp_path / "out.csv"
    result = run("--state", state, "--since", BEGIN, "-o", target)
    assert "rows of 2 series" in result.output
    assert rows(target.read_text())
    nowhere = run("--state", state, "--since", BEGIN, "-o", tmp_path / "no" / "where.csv")
    assert nowhere.exit_code == 1
    assert "No such file" in nowhere.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--since", "yesterday"), "is no time"),
        (("--since", "2x"), "is no time"),
        (("--since", "-5m"), "is no time"),
        (("--since", "99999999w"), "is no time"),
        (("--since", "1h", "--until", "2h"), "--since must be before --until"),
        (("--json", "--format", "parquet"), "--json and --format: choose one"),
        (("--step", "5s"), "is not one of"),
        (("--format", "xlsx"), "is not one of"),
        (("--value", "p99"), "is not one of"),
        (("--format", "parquet"), "needs a file"),
        (("--admin", "nonsense"), "not a URL"),
    ],
)
def test_bad_input_is_a_sentence(words, told):
    result = run(*words)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


@pytest.mark.parametrize(
    "text", ["30m", "7d", "now", "1794000000", "2026-05-01T12:00", "2026-05-01"]
)
def test_times_can_be_written_in_many_ways(text):
    assert module._Moment().convert(text, None, None) > 1.7e9


def test_a_folder_without_a_history_and_a_prefix_without_a_series_are_errors(tmp_path, state):
    empty = run("--state", tmp_path)
    assert empty.exit_code == 1
    assert "there is no history" in empty.output
    assert "there is no history" in run("--state", tmp_path / "nowhere").output
    nobody = run("--state", state, "--series", "nobody/")
    assert nobody.exit_code == 1
    assert "no series begins with 'nobody/'" in nobody.output


def test_a_fleet_that_does_not_run_is_a_sentence():
    result = run("--admin", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "is 'holdfast up' or 'holdfast serve' running?" in result.output
