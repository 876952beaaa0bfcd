import pytest

from holdfast.ui.terminal.console import duration, money, stdout
from holdfast.ui.terminal.simulation import progress_bar, strip


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
