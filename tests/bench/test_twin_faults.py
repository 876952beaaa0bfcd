"""``bench/twin_faults.py``: its simulated side, its interval, its file, and its verdicts."""

import json

import pytest


@pytest.fixture
def twin(bench):
    return bench("twin_faults")


def trial(twin, run=1, share=0.01, delay_s=5.0, cause="hung", fault="hang"):
    return twin.Trial(fault, run, share, 800, delay_s, cause)


def test_a_simulated_hang_harms_few_and_is_named(twin):
    told = twin.simulate("hang", 3)
    assert told.requests > 700
    assert told.share < 0.01
    assert told.cause == "hung"
    assert told.delay_s is not None
    assert 1.0 < told.delay_s < 15.0
    assert twin.simulate("hang", 3) == told


def test_the_simulated_fleet_is_asked_what_the_live_one_is(twin, tmp_path):
    path = twin.trace_of(twin.job_of("cut", 2), tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0]["timestamp"] < 1_000
    assert 54_000 < rows[-1]["timestamp"] < 55_000  # 10 s before the onset, 45 s after it
    assert len(rows) == pytest.approx(40 * 55, rel=0.1)
    assert {row["output_length"] for row in rows} == {20}
    assert min(row["input_length"] for row in rows) >= 6
    setup, _ = twin.experiment_of("cut", 2, path)
    assert [one.id for one in setup.replicas] == ["m-1", "m-2", "m-3", "m-4"]
    assert setup.canary_output == 8  # as the fleet file's canary asks for
    assert 10.0 <= setup.faults.faults[0].at / 1e9 < 11.0


def test_the_interval_is_of_the_difference_of_the_means(bench):
    twin = bench("twin_comparison")
    low, high = twin.interval([0.02, 0.04, 0.03, 0.03], [0.01, 0.02, 0.015, 0.015])
    assert low < 0.015 < high
    assert low + high == pytest.approx(0.03)
    assert twin.interval([0.02] * 3, [0.01] * 3) == (pytest.approx(0.01),) * 2
    assert twin.interval([0.02], [0.01, 0.02]) is None


def test_sides_that_agree_miss_nothing(twin):
    live = [trial(twin, run, share=0.010 + run * 0.001) for run in range(1, 11)]
    simulated = [trial(twin, run, share=0.012 + run * 0.001, delay_s=6.0) for run in range(1, 21)]
    row = twin.compare("hang", live, simulated)
    assert row["missed"] == []
    low, high = row["interval_90"]
    assert -0.02 < low < high < 0.02


@pytest.mark.parametrize(
    ("other", "missed"),
    [
        ({"share": 0.05}, ["share"]),
        ({"delay_s": 7.0}, ["detection"]),
        ({"delay_s": None}, ["detection"]),
        ({"cause": "slow"}, ["cause"]),
        ({"share": 0.2, "delay_s": 0.1, "cause": "none"}, ["share", "detection", "cause"]),
    ],
)
def test_sides_that_differ_are_told(twin, other, missed):
    live = [trial(twin, run) for run in range(1, 4)]
    simulated = [trial(twin, run, **other) for run in range(1, 4)]
    assert twin.compare("hang", live, simulated)["missed"] == missed


def test_less_than_the_live_reading_can_tell_is_no_difference(twin):
    live = [trial(twin, run, delay_s=0.4) for run in (1, 2)]
    simulated = [trial(twin, run, delay_s=0.0) for run in (1, 2)]
    assert twin.compare("crash", live, simulated)["missed"] == []


def test_what_was_run_is_not_run_again_and_what_failed_is(twin, tmp_path, monkeypatch):
    asked = []

    def run_all(jobs, _at_once):
        (job,) = jobs
        asked.append((job.fault, job.seed))
        row = {"gateway": "holdfast", "fault": job.fault, "start": "", "seed": job.seed}
        if job.fault == "hang" and len(asked) == 2:
            return [row | {"problem": "no port was free"}]
        told = {"share": 0.01, "requests": 800, "opened_s": 3.0, "cause": "hung"}
        return [row | told | {"problem": "", "right": True, "expected": "hung"}]

    monkeypatch.setattr(twin, "run_all", run_all)
    path = tmp_path / "runs.jsonl"
    assert twin.run_live(path, ["crash", "hang"], 2) == 1
    assert asked == [("crash", 1), ("hang", 1), ("crash", 2), ("hang", 2)]
    asked.clear()
    assert twin.run_live(path, ["crash", "hang"], 3) == 0
    assert asked == [("hang", 1), ("crash", 3), ("hang", 3)]
    assert len(twin.stored(path)) == 6


def test_a_line_that_was_cut_off_is_run_again_and_the_rest_is_kept(twin, tmp_path):
    path = tmp_path / "runs.jsonl"
    twin.store(path, trial(twin, 1))
    whole = path.read_text()
    path.write_text(whole + '{"fault": "hang", "ru')
    assert set(twin.stored(path)) == {("hang", 1)}
    twin.store(path, trial(twin, 2))
    assert set(twin.stored(path)) == {("hang", 1), ("hang", 2)}


def test_a_file_of_something_else_is_left_alone(twin, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text('{"what": 1}\n')
    with pytest.raises(SystemExit, match="line 1: no run of this benchmark"):
        twin.stored(path)
    assert path.read_text() == '{"what": 1}\n'


def test_a_table_is_printed_of_what_the_file_has(twin, tmp_path, capsys):
    path = tmp_path / "runs.jsonl"
    for run in (1, 2):
        twin.store(path, trial(twin, run, fault="cut", cause="connection_lost", delay_s=3.0))
    more = ["--runs", "0", "--simulated", "2", "--faults", "cut,hang"]
    twin.main(["--store", str(path), *more])
    out = capsys.readouterr().out
    assert "connection_lost" in out
    assert "no live run yet: hang" in out
    more = ["--runs", "0", "--faults", "hang", "--json"]
    assert twin.main(["--store", str(path), *more]) == 0
    assert json.loads(capsys.readouterr().out)["absent"] == ["hang"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--faults", "flood"], "--faults: use some of crash"),
        (["--runs", "-1"], "--runs: use 0 or more"),
    ],
)
def test_bad_input_is_told(twin, tmp_path, capsys, more, said):
    with pytest.raises(SystemExit):
        twin.main(["--store", str(tmp_path / "runs.jsonl"), *more])
    assert said in capsys.readouterr().err
