import io
import re

import pytest
from rich.console import Console

from holdfast.ui.terminal.fleet import show_status, style_of
from holdfast.ui.terminal.startup_screen import (
    PersistentConsole,
    PlainScreen,
    TerminalScreen,
    UsageGuide,
    guide_lines,
    screen,
)


def row(number=1, state="ready", **more):
    where = {"id": f"m-{number}", "model": "m", "revision": "1", "zone": "zone-a"}
    return {**where, "state": state, "reason": "", "pid": None, "inflight": 0, **more}


def shown(capsys, status, events=()):
    show_status(status, events)
    return capsys.readouterr().out


# --- status ---------------------------------------------------------------------------------------


def test_a_row_shows_what_is_known_and_dashes_for_the_rest(capsys):
    out = shown(capsys, {"replicas": [row()]})
    assert re.search(r"^m-1 +m +1 +ready +zone-a +– +0 +–$", out, re.MULTILINE)


def test_a_passed_canary_shows_its_latency_and_no_detail(capsys):
    canary = {"verdict": "pass", "detail": "as known", "latency_s": 0.2}
    out = shown(capsys, {"replicas": [row(canary=canary, reason="its canary passed")]})
    assert "pass 200 ms" in out
    assert "  its canary passed" in out
    assert "as known" not in out


def test_a_canary_without_latency_shows_its_verdict(capsys):
    canary = {"verdict": "fail", "detail": "", "latency_s": None}
    out = shown(capsys, {"replicas": [row(canary=canary)]})
    assert "fail\n" in out
    assert "  canary: fail" in out


def test_a_replica_that_loads_tells_its_phase(capsys):
    assert "  reading tensors" in shown(
        capsys, {"replicas": [row(state="loading", phase="reading tensors")]}
    )


def test_control_characters_of_an_engine_do_not_reach_the_terminal(capsys):
    canary = {"verdict": "fail", "detail": "\x1b]0;owned\x07 \x9b2J", "latency_s": None}
    out = shown(capsys, {"replicas": [row(canary=canary, reason="bad\x1b[2J\rgood\x08")]})
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)
    assert "bad·[2J" in out


GPU = {
    "count": 1,
    "memory_used_bytes": 70 * 10**9,
    "memory_total_bytes": 80 * 10**9,
    "held_bytes": 20 * 10**9,
    "utilisation": 0.5,
    "temperature_c": 91,
    "faults": [],
}
NO_GPU = {"available": False, "reason": "the package nvidia-ml-py is not installed"}


def test_gpus_have_columns_where_one_is_known(capsys):
    hot = {**GPU, "faults": ["GPU 0: slowed (thermal)"]}
    rows = [row(gpu=GPU), row(2, gpu=None), row(3, gpu=hot)]
    out = shown(capsys, {"replicas": rows, "gpus": NO_GPU})
    assert re.search(r"^id .* gpu mem +gpu +°C$", out, re.MULTILINE)
    assert re.search(r"^m-1 .* 20\.0/80 GB +50% +91$", out, re.MULTILINE)
    assert re.search(r"^m-2 .* – +– +–$", out, re.MULTILINE)
    assert "m-3: GPU 0: slowed (thermal)" in out
    assert "no GPU" not in out


def test_without_a_gpu_that_is_said_plainly(capsys):
    out = shown(capsys, {"replicas": [row(gpu=None)], "gpus": NO_GPU})
    assert "no GPU on control's host: the package nvidia-ml-py is not installed" in out
    assert "gpu mem" not in out
    unused = {"available": True, "reason": "GPUs: 2"}
    assert "GPUs: 2 on control's host; no replica" in shown(capsys, {"gpus": unused})
    assert "GPU" not in shown(capsys, {"replicas": [row()]})  # an older control


def test_an_empty_fleet_is_said_to_be_empty(capsys):
    out = shown(capsys, {})
    assert "no replicas yet" in out
    assert "no gateway is connected" in out


def test_gateways_that_are_not_ready_say_why(capsys):
    gateways = [
        {"name": "gateway-0", "ready": True},
        {"name": "gateway-1", "ready": False, "reason": "no config yet"},
        {"id": "gateway-2", "ready": False, "refusal": "config refused"},
    ]
    out = shown(capsys, {"gateways": gateways})
    assert "gateway-0 ready, gateway-1 no config yet, gateway-2 config refused" in out


def test_processes_that_are_late_or_stopped_are_named(capsys):
    processes = [
        {"name": "control", "pid": 7, "condition": "turning", "for_s": 90.0},
        {"name": "gateway-0", "pid": 8, "condition": "late", "for_s": 12.0},
        {"name": "gateway-1", "pid": 9, "condition": "starting", "for_s": 1.0},
    ]
    out = shown(capsys, {"processes": processes})
    assert "gateway-0 (pid 8) has been late for 12" in out
    assert "control" not in out
    assert "gateway-1" not in out


def test_a_refused_file_and_a_halted_rollout_stand_first(capsys):
    model = {"wished": 3, "reason": "busy", "rollout": {"halted": "revision 2 was wrong"}}
    status = {
        "replicas": [row(), row(2, "dead")],
        "models": {"m": model},
        "config_problems": ["fleet.yaml:1: models is missing"],
    }
    lines = shown(capsys, status).splitlines()
    assert lines[0] == "the fleet file was refused: fleet.yaml:1: models is missing"
    assert lines[1] == "m: 1 ready of 3 wanted (busy)"
    assert lines[2] == "  its rollout was halted: revision 2 was wrong"


def test_only_the_last_events_are_shown(capsys):
    events = [
        {"at": 1.0 + number, "replica": f"m-{number}", "what": "ready", "reason": None}
        for number in range(10)
    ]
    out = shown(capsys, {}, [*events, {"at": None, "model": "m", "what": "odd"}])
    assert "m-2 " not in out
    assert "m-3 " in out
    assert "odd" in out


def test_lines_fit_eighty_columns(capsys):
    long = "a reason that goes on and on " * 4
    canary = {"verdict": "wrong", "detail": long, "latency_s": 1.5}
    rows = [
        row(number, "quarantined", model="smollm2", pid=4_000_000, reason=long, canary=canary)
        for number in (1, 2)
    ]
    events = [{"at": 1.0, "replica": "smollm2-1", "what": "quarantined", "reason": long}]
    out = shown(capsys, {"replicas": rows}, events)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("state", "style"), [("ready", "green"), ("odd", "cyan")])
def test_states_have_colours(state, style):
    assert style_of({"state": state}) == style


# --- the start ------------------------------------------------------------------------------------

GUIDE = UsageGuide("http://h:1", "http://h:2", "m", True, False, "/log", 42, "-c fleet.yaml")


def told(text):
    return "\n".join(guide_lines(text))


def test_the_guide_names_addresses_commands_and_a_victim():
    text = told(GUIDE)
    assert "http://h:1/v1" in text
    assert "http://h:2/" in text
    assert "kill -9 42" in text
    assert "holdfast status -c fleet.yaml" in text
    assert "YOUR_KEY" not in text


def test_a_guide_for_tenants_leaves_room_for_a_key():
    text = told(UsageGuide("http://h:1", "http://h:2", "m", True, True, "/log", None, ""))
    assert "authorization: Bearer YOUR_KEY" in text
    assert 'api_key="YOUR_KEY"' in text
    assert "kill -9 PID" in text
    assert "holdfast down  #" in text


def test_a_model_that_does_not_chat_gets_no_chat_to_paste():
    assert "curl" not in told(UsageGuide("h", "a", "m", False, False, "/log", None, ""))


def plain():
    out = io.StringIO()
    return PlainScreen(Console(file=out, width=80)), out


def test_plain_lines_tell_every_tenth_of_a_download():
    shows, out = plain()
    for done in (0, 1_000_000, 5_000_000, 100_000_000, 100_000_000):
        shows.fetching("w", done, 100_000_000)
    assert out.getvalue().splitlines() == [
        "weights w: 0 % of 100 MB",
        "weights w: 100 % of 100 MB",
    ]


def test_weights_that_are_there_are_one_line():
    for shows, out in (plain(), terminal()):
        shows.fetching("w", 100, 100)
        assert out.getvalue() == "weights w: in the cache, and whole\n"


def test_plain_lines_tell_each_step_once():
    shows, out = plain()
    for rows in (
        [row(state="loading", phase="a")],
        [row(state="loading", phase="a")],
        [row(state="suspect", reason="slow")],
        [row()],
    ):
        shows.starting(rows)
    shows.changed(row(state="dead", reason="killed"))
    shows.close()
    lines = out.getvalue().splitlines()
    assert lines[:3] == [
        "m-1 (zone-a): loading: a",
        "m-1 (zone-a): suspect: slow",
        "m-1 (zone-a): ready",
    ]
    assert lines[3].endswith("m-1  dead: killed")


def test_long_lines_are_not_broken():
    shows, out = plain()
    shows.say("x" * 200)
    assert out.getvalue() == "x" * 200 + "\n"


def terminal():
    out = io.StringIO()
    return TerminalScreen(Console(file=out, width=80, force_terminal=True, color_system=None)), out


def test_a_terminal_gets_bars_that_are_taken_down():
    shows, out = terminal()
    shows.fetching("w", 1, 2_000_000)
    shows.fetching("w", 2_000_000, 2_000_000)
    shows.starting([row(state="loading", phase="reading " * 9)])
    shows.starting([row(), row(2, "warming")])
    shows.started(GUIDE)
    shows.changed(row(state="dead"))
    shows.close()
    text = out.getvalue()
    assert "weights w" in text
    assert "2.0/2.0 MB" in text
    assert max(len(line) for line in text.split("m-1 zone-a")[0].splitlines()) <= 80
    assert "m-2 zone-a" in text
    assert "curl" in text
    assert text.rstrip().endswith("m-1  dead")


def test_output_that_nobody_takes_ends_nothing():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    class HungUp(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    for shows in (
        PlainScreen(PersistentConsole(file=Gone())),
        PlainScreen(PersistentConsole(file=HungUp())),
        TerminalScreen(PersistentConsole(file=Gone(), force_terminal=True)),
    ):
        shows.say("hello")
        shows.changed(row())
        shows.started(GUIDE)
        shows.close()


def test_a_pipe_gets_lines(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert isinstance(screen(), PlainScreen)
