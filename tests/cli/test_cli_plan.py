import json
import threading
import time

import click
import pytest
import uvicorn
from click.testing import CliRunner
from starlette.applications import Starlette

from holdfast.cli import main
from holdfast.cli.plan import commands as plan_module
from holdfast.cli.plan import fleet
from holdfast.control.view.history import history_routes
from holdfast.storage.history import FILE_NAME, History

MEMORY = ["plan", "memory", "--model", "llama-2-7b", "--device", "l4"]


@pytest.fixture
def run(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments, stdin=None):
        return CliRunner().invoke(main, arguments, prog_name="holdfast", input=stdin)

    return invoke


def test_explain_shows_the_formula_with_its_numbers(run):
    plain, explained = run(*MEMORY).stdout, run(*MEMORY, "--explain").stdout
    assert "2 x 32 x 32 x 128 x 2 = 524,288 B" in explained
    assert "524,288 B" not in plain
    assert "tensor_parallel" in plain


def test_json_has_figures_steps_and_snippets(run):
    told = json.loads(run(*MEMORY, "--json").stdout)
    assert told["plan"] == "memory"
    assert told["steps"][1]["formula"].startswith("2 x layers")
    assert {one["title"] for one in told["snippets"]} > {"Fleet file"}


def test_without_a_terminal_the_missing_flags_are_named(run):
    result = run("plan", "redundancy", "--target", "0.9")
    assert result.exit_code == 2
    assert "missing: --need" in result.stderr
    assert "--availability" in result.stderr
    assert result.stdout == ""


def test_in_a_terminal_the_missing_values_are_asked_for(run, monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    class Sys:
        stdin = stdout = Terminal()

    monkeypatch.setattr(plan_module, "sys", Sys)
    result = run("plan", "redundancy", "--target", "0.999", stdin="20\nalways\n0.995\n")
    assert result.exit_code == 0, result.output
    assert "Replicas that must be up to carry the load" in result.stdout
    assert "is 'always'" in result.stdout + result.stderr  # and asked once more
    assert "Run 22: 20 and 2 spares." in result.stdout


def test_a_plot_is_written_as_its_name_says(run, tmp_path):
    path = tmp_path / "memory.svg"
    result = run(*MEMORY, "--plot", str(path))
    assert result.exit_code == 0
    assert path.read_text().startswith("<svg")
    refused = run(*MEMORY, "--plot", str(tmp_path / "memory.gif"))
    assert refused.exit_code == 2
    assert ".svg or .png" in refused.stderr
    image = tmp_path / "memory.png"
    assert run(*MEMORY, "--plot", str(image)).exit_code == 0
    assert image.read_bytes().startswith(b"\x89PNG")
    nowhere = run(*MEMORY, "--plot", str(tmp_path / "none" / "memory.svg"))
    assert nowhere.exit_code == 1
    assert "No such file" in nowhere.stderr


def test_a_model_that_fits_nowhere_is_told_so_with_status_2(run):
    result = run(
        "plan", "memory", "--model", "deepseek-v3", "--device", "t4", "--devices-per-host", "1"
    )
    assert result.exit_code == 2
    assert "--device does not hold it" in result.stderr


@pytest.fixture
def admin(tmp_path):
    """A port with a day of history: two replicas, of which one died for ten minutes."""
    begin = time.time() // 60 * 60 - 7_200
    now = [0.0]
    path = tmp_path / FILE_NAME
    history = History(path, told=lambda what, reason: None, steady=lambda: now[0])
    for number in range(720):
        now[0] = 10.0 * number
        dead = 300 <= number < 360
        states = {"replica/m-0/state": 3.0, "replica/m-1/state": 8.0 if dead else 3.0}
        history.put(begin + 10 * number, {**states, "replica/m-0/share": 0.5})
    assert history.flush(20)
    app = Starlette(routes=history_routes(history))
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    socket.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    history.close()


def test_the_running_fleet_says_how_often_replicas_fail(run, admin):
    asked = ["plan", "redundancy", "--need", "8", "--target", "0.999", "--from-history"]
    result = run(*asked, "--admin", admin, "--since", "0.5", "--json")
    assert result.exit_code == 0, result.output
    assert "failed 1 times" in result.stderr
    told = json.loads(result.stdout)
    assert told["observed"]["failures"] == 1
    assert told["observed"]["down"] == pytest.approx(600, abs=20)
    assert told["observed"]["low"] < told["replica_availability"] < told["observed"]["high"]


def test_a_fleet_without_a_history_is_told_apart(run, admin):
    asked = ["plan", "redundancy", "--need", "8", "--target", "0.999", "--from-history"]
    result = run(*asked, "--admin", admin, "--replicas", "nobody")
    assert result.exit_code == 1
    assert "no replica that served" in result.stderr


class FakeAdmin:
    def __init__(self, view):
        self.view = view

    def told(self, path):
        assert path == "/view"
        return self.view


def test_the_running_fleet_says_how_fast_a_model_is():
    row = {"model": "m", "tpot_s": 0.02, "inflight": 12}
    view = {
        "replicas": [row, {**row, "tpot_s": 0.03, "inflight": 8}, {"model": "other", "tpot_s": 1}],
        "models": [{"name": "m", "requests_s": 4.0, "tokens_s": 800.0}],
    }
    found = fleet.read_speed(FakeAdmin(view), "m")
    assert found == {"step_ms": 25.0, "batch": 12.0, "rate": 4.0, "output": 200.0}


@pytest.mark.parametrize(
    ("rows", "told"),
    [([], "no replica of m"), ([{"model": "m", "tpot_s": None}], "has answered lately")],
)
def test_a_fleet_that_does_not_know_its_speed_says_so(rows, told):
    with pytest.raises(click.ClickException, match=told):
        fleet.read_speed(FakeAdmin({"replicas": rows, "models": []}), "m")


def test_a_model_that_is_nearly_one_is_answered_with_it():
    view = {"replicas": [], "models": [{"name": "smollm2"}]}
    with pytest.raises(click.ClickException, match=r"did you mean 'smollm2'\?"):
        fleet.read_speed(FakeAdmin(view), "smolm2")
