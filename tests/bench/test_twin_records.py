"""``bench/twin_faults.py --records``: what it reads, fits and simulates, and what it refuses."""

import json
from dataclasses import replace
from random import Random

import pytest

from holdfast.core.diagnose.evidence import About, Cause, Incident
from holdfast.core.failure import Class
from holdfast.wire.up import built_in_text

FLEET_AT = 1_000_000.0


@pytest.fixture
def twin(bench):
    return bench("twin_records")


@pytest.fixture
def main(bench):
    return bench("twin_faults").main


def sample(number, fault, cause, *, shape="stream", delay_s=3.0, harmed=0, fleet_at=FLEET_AT):
    """A record as gauntlet_real writes it: chats of about a second, one struck replica."""
    began_at, replica = fleet_at + 20.0 + 70.0 * number, f"smollm2-{number % 3 + 1}"
    rng, at, asked = Random(7), 0.0, []
    while (at := at + rng.expovariate(1.0)) < 55.0:
        asked.append([at, 0.8, ""])
    incident = {"id": f"inc-{number}", "cause": cause, "class": "runtime", "replicas": [replica]}
    row = {"fault": fault, "replica": replica, "requests": 20, "harmed": harmed, "problem": ""}
    return {
        "row": row | {"shape": shape, "run": 0, "cause": cause},
        "began_at": began_at,
        "asked": asked,
        "incidents": [incident | {"opened_at": began_at + 10.0 + delay_s}],
        "events": [
            {"at": fleet_at, "what": "loading"},
            {"at": fleet_at + 2.5, "what": "warming"},
            {"at": fleet_at + 5.0, "what": "ready"},
        ],
    }


def write(folder, record, run=1):
    row = record["row"] | {"run": run - 1}
    path = folder / f"{row['shape']}-{run}-{row['fault']}.json"
    path.write_text(json.dumps(record | {"row": row}))
    return path


def test_a_record_is_read_as_the_live_side_of_a_row(twin, tmp_path):
    record = sample(1, "hang", "hung", delay_s=12.5, harmed=2)
    others = {"id": "inc-9", "cause": "slow", "replicas": ["smollm2-3"]}
    later = dict(record["incidents"][0], cause="stalled", opened_at=record["began_at"] + 30.0)
    write(tmp_path, record | {"incidents": [others, later, *record["incidents"]]}, run=4)
    (day,) = twin.read_folder(tmp_path)
    assert (day.shape, day.fault, day.replica, day.run) == ("stream", "hang", "smollm2-2", 4)
    assert (day.trial.share, day.trial.requests) == (0.1, 20)
    assert (day.trial.delay_s, day.trial.cause) == (pytest.approx(12.5), "hung")
    assert day.starts_s == (2.5,)


def test_a_fault_that_nobody_named_has_no_time(twin, tmp_path):
    write(tmp_path, sample(1, "hang", "hung") | {"incidents": []})
    (day,) = twin.read_folder(tmp_path)
    assert (day.trial.delay_s, day.trial.cause) == (None, "none")


def test_a_fleet_that_was_started_later_or_for_the_other_shape_is_another_one(twin, tmp_path):
    write(tmp_path, sample(0, "crash", "crashed"))
    write(tmp_path, sample(1, "hang", "hung"))
    write(tmp_path, sample(0, "crash", "crashed", fleet_at=FLEET_AT + 500.0), run=2)
    write(tmp_path, sample(0, "cut", "truncated", shape="unary", fleet_at=FLEET_AT + 900.0))
    fleets = twin.fleets_of(twin.read_folder(tmp_path))
    told = [[(day.shape, day.fault, day.run) for day in fleet] for fleet in fleets]
    assert told == [
        [("stream", "crash", 1), ("stream", "hang", 1)],
        [("stream", "crash", 2)],
        [("unary", "cut", 1)],
    ]


def test_the_law_is_that_of_chats_before_the_fault_alone_and_beside_others(twin, tmp_path):
    write(tmp_path, sample(0, "crash", "crashed"))
    (day,) = twin.read_folder(tmp_path)
    alone = [(float(at), 0.5, "") for at in range(8)]
    pairs = [(8.0, 0.9, ""), (8.0, 0.9, ""), (30.0, 9.0, ""), (4.6, 0.3, "late")]
    chat = twin.chat_times([replace(day, asked=(*alone, *pairs))])
    assert chat.alone_s == 0.5
    assert chat.neighbour_share == pytest.approx(0.8)
    assert chat.requests == 10
    law = twin.law_of(chat, 16, 2)
    whole_ms = 16 * law.step_ms + twin.PROMPT * law.per_prompt_token_ms
    assert (whole_ms, law.batch_max) == (pytest.approx(500.0), 2)


def test_the_same_arrivals_and_faults_strike_the_twin(twin, tmp_path):
    records = [sample(0, "stop", "frozen"), sample(1, "reset", "connection_lost")]
    for record in records:
        write(tmp_path, record)
    days = twin.read_folder(tmp_path)
    settings = twin.RecordSettings(built_in_text())
    fleet = twin.fleet_of(days, twin.chat_times(days), settings, tmp_path)
    stop, reset = fleet.experiment.faults.faults
    assert (stop.target, reset.target) == ("smollm2-1", "smollm2-2")
    assert reset.at - stop.at == pytest.approx(70e9)
    assert stop.until - stop.at == pytest.approx(40e9)
    assert fleet.experiment.loading.start_s == 2.5
    (trace,) = tmp_path.glob("*.jsonl")
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(rows) == sum(len(day.asked) for day in days) + 2 * twin.QUESTIONS
    assert stop.at / 1e6 - rows[twin.QUESTIONS]["timestamp"] == pytest.approx(
        1e3 * (10.0 - days[0].asked[0][0]), abs=2.0
    )


@pytest.mark.parametrize("shape", ["stream", "unary"])
def test_the_twin_names_what_was_done_to_it(twin, tmp_path, shape):
    causes = {"stop": "frozen", "hang": "hung", "wrong_output": "wrong_output"}
    for number, (fault, cause) in enumerate(causes.items()):
        write(tmp_path, sample(number, fault, cause, shape=shape))
    days = twin.read_folder(tmp_path)
    settings = twin.RecordSettings(built_in_text())
    chats, trials = twin.simulate_records(days, settings, 1)
    assert [chat.alone_s for chat in chats] == [0.8]
    assert {trial.fault: trial.cause for trial in trials} == causes
    assert all(trial.requests > 10 and trial.share < 0.3 for trial in trials)
    assert all(trial.delay_s is not None and 0 <= trial.delay_s < 20 for trial in trials)
    assert twin.simulate_records(days, settings, 1)[1] == trials


def test_a_merged_incident_is_no_incident_of_that_day(twin):
    history = twin.IncidentHistory()
    about = About(replica="m-1")
    slow = Incident("i", Cause.SLOW, Class.RUNTIME, about, 5, 0.7, replicas=("m-1",))
    history.note(slow, 5, listed=True)
    slow.cause = Cause.HUNG
    history.note(slow, 8, listed=True)
    history.note(slow, 20, listed=False)
    assert history.first("m-1", 0, 7).cause == "slow"  # as it stood at the end of the day
    assert history.first("m-1", 0, 9).cause == "hung"
    assert history.first("m-1", 0, 30) is None
    assert history.first("m-2", 0, 9) is None
    assert history.first("m-1", 6, 9) is None


def test_a_table_is_printed_and_what_has_no_model_is_told(main, tmp_path, capsys):
    for run in (1, 2):
        fleet_at = FLEET_AT + 1_000.0 * run
        write(tmp_path, sample(0, "stop", "frozen", delay_s=0.2, fleet_at=fleet_at), run)
    write(tmp_path, sample(0, "drip", "dripping", shape="unary", fleet_at=FLEET_AT + 9_000.0))
    how = ["--records", str(tmp_path), "--simulated", "1", "--faults", "stop,drip,cut"]
    assert main(how) == 0
    out = capsys.readouterr().out
    assert "a chat alone takes 0.80 s" in out
    assert "frozen" in out
    assert "no live run yet: drip, cut" in out
    assert "not compared: unary-1-drip.json" in out
    assert main([*how, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["fault"] for row in told["rows"]] == ["stop"]
    assert told["rows"][0]["simulated_cause"] == "frozen"


def test_another_cause_live_than_simulated_fails(main, tmp_path):
    for run in (1, 2):
        fleet_at = FLEET_AT + 1_000.0 * run
        write(tmp_path, sample(0, "stop", "hung", delay_s=9.0, fleet_at=fleet_at), run)
    assert main(["--records", str(tmp_path), "--simulated", "2", "--json"]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no record of gauntlet_real"),
        ("[1]", "no record of gauntlet_real"),
        ('{"row": {"fault": "hang"}}', "no record of gauntlet_real"),
        (json.dumps(sample(0, "flood", "x")), "a fault 'flood'"),
        (json.dumps(sample(0, "hang", "hung", harmed=21)), "21 harmed of 20 requests"),
    ],
)
def test_a_file_of_another_shape_is_told_by_name(main, tmp_path, capsys, text, said):
    (tmp_path / "stream-1-hang.json").write_text(text)
    assert main(["--records", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "stream-1-hang.json" in err
    assert said in err


def test_no_folder_no_record_too_few_chats_and_another_fleet_are_told(main, tmp_path, capsys):
    assert main(["--records", str(tmp_path / "absent")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["--records", str(tmp_path)]) == 2
    assert "has no record (*.json); make some" in capsys.readouterr().err
    path = write(tmp_path, sample(0, "hang", "hung") | {"asked": [[1.0, 0.5, ""]]})
    assert main(["--records", str(tmp_path)]) == 2
    assert "1 requests were answered before a fault" in capsys.readouterr().err
    path.write_text(json.dumps(sample(0, "hang", "hung")).replace("smollm2-", "m1-"))
    assert main(["--records", str(tmp_path)]) == 2
    assert "struck m1-1, but the fleet file has smollm2-1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--faults", "sigstop"], "--faults: use some of crash, stop"),
        (["--simulated", "0"], "--simulated: use 1 or more"),
        (["--late", "0"], "use seconds above 0"),
        (["--store", "runs.jsonl"], "not allowed with"),
    ],
)
def test_bad_options_are_told(main, tmp_path, capsys, more, said):
    with pytest.raises(SystemExit):
        main(["--records", str(tmp_path), *more])
    assert said in capsys.readouterr().err
