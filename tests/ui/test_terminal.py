import pytest

from holdfast.sim.run import Outcome
from holdfast.sim.scenario import Scenario
from holdfast.ui.terminal.console import duration, money, stdout
from holdfast.ui.terminal.simulation import progress_bar, show_simulation, strip


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0 ms"), (0.0123, "12.3 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (61.25, "61.2 s")],
)
def test_a_duration_has_three_digits_and_the_unit_that_suits_it(seconds, said):
    assert duration(seconds) == said


def test_long_durations_are_in_minutes():
    assert duration(599.0) == "599 s"
    assert duration(900.0) == "15 min"


def test_small_amounts_keep_their_cents():
    assert money(9.5) == "9.50"
    assert money(12345.6) == "12,346"


def test_a_pipe_gets_eighty_columns(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert stdout().width == 80


def test_a_strip_shows_shares_as_blocks_and_silence_as_a_dot():
    assert strip([0.0, 0.5, 1.0, None]) == "▁▅█·"  # half of seven steps rounds to even


def test_the_progress_bar_is_silent_where_nobody_looks(capsys):
    with progress_bar("a run") as progress:
        progress(0, 2)
        progress(2, 2)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")


def account(seed: int, *, detections: int = 0, p99: float | None = 0.5) -> dict:
    phase = {
        "offered": 10,
        "goodput": 1.0,
        "slo_attainment": 0.5,
        "refused": 1,
        "failed": 2,
        "amplification": 1.0,
        "wasted_calls": seed,
        "first_token_s": {"p99": p99},
        "latency_s": {"p99": p99},
    }
    found = [
        {
            "fault": "hang",
            "replica": f"r{number}",
            "began_s": 1.0,
            "time_to_detect_s": None if number == 0 else 0.5,
            "by": "breaker: open",
            "requests_sent": 3,
        }
        for number in range(detections)
    ]
    return {
        "seed": seed,
        "total": phase,
        "phases": {"before": phase},
        "timeline": [1.0, None],
        "detections": found,
    }


def shown(capsys, *runs: dict) -> str:
    models = [{"name": "m", "workload": {}}]
    scenario = Scenario.model_validate({"name": "a test", "models": models})
    show_simulation(scenario, 1, [Outcome("holdfast", runs)])
    return capsys.readouterr().out


def test_a_run_without_faults_has_one_block_and_no_phase_titles(capsys):
    out = shown(capsys, account(1))
    assert "before the faults" not in out
    assert "100.00" in out
    assert "500 ms" in out
    assert "█·" in out


def test_what_was_not_measured_is_a_dash(capsys):
    assert "–" in shown(capsys, account(1, p99=None))


def test_a_fault_nobody_acted_on_is_told_as_such(capsys):
    out = shown(capsys, account(1, detections=2))
    assert "not acted on (3 sent there)" in out
    assert "500 ms  breaker: open (3 sent there)" in out


def test_a_long_list_of_faults_is_cut_and_says_where_the_rest_is(capsys):
    assert "and 8 more (--json has all)" in shown(capsys, account(1, detections=20))


def test_reuse_is_told_where_engines_have_a_prefix_cache(capsys):
    assert "prefix" not in shown(capsys, account(1))
    assert "prefix" not in shown(capsys, account(1) | {"prefix_reuse": None})
    out = shown(capsys, account(1) | {"prefix_reuse": 0.285})
    assert "prompt blocks found in prefix caches: holdfast 28.50 %" in out


def test_over_seeds_counts_carry_their_interval(capsys):
    out = shown(capsys, account(1), account(3))
    assert "seeds 1 to 2" in out
    assert "2 ±13" in out
