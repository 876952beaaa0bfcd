"""``bench/gauntlet_real.py``: what of a game day counts, and what is held against the fleet."""

import pytest

from holdfast.chaos.gameday import GameDayRecord, GameDayRequest, InjectedFault
from holdfast.launchers.weights import WeightsError


@pytest.fixture
def real(bench):
    return bench("gauntlet_real")


def given(real, *argv):
    return real.arguments(list(argv))


def incident(name, cause, replicas, failure_class="runtime"):
    return {"id": name, "cause": cause, "class": failure_class, "replicas": replicas}


def record(real, *incidents):
    plan = real.plan("hang", "m-2", "unary", 1, given(real))
    told = GameDayRecord(plan, began_at=1_000.0)
    told.struck = [InjectedFault(10.0, 50.0, "hang", "m-2")]
    told.asked = [
        GameDayRequest(1.0, 0.5, "late"),  # before
        GameDayRequest(9.0, 16.0, "late"),
        GameDayRequest(12.0, 0.5, ""),
        GameDayRequest(31.0, 0.5, "status 502"),  # long after
    ]
    told.incidents = list(incidents)
    return told


def row(real, fault="hang", **more):
    told = real.row_of(record(real, incident("inc-1", "hung", ["m-2"])), "hang", "m-2", 1_014.5)
    return told | {"fault": fault, "shape": "stream", "run": 0, "harmed": 0} | more


def test_each_shape_is_asked_for_in_its_own_way(real):
    assert real.plan("hang", "m-2", "stream", 1, given(real)).traffic.stream
    assert not real.plan("hang", "m-2", "unary", 1, given(real)).traffic.stream
    assert given(real).shapes == ["stream", "unary"]
    assert given(real, "--shape", "unary").shapes == ["unary"]


def test_a_fault_is_named_when_class_and_cause_were_first_right(real):
    told = real.row_of(record(real, incident("inc-1", "hung", ["m-2"])), "hang", "m-2", 1_014.5)
    assert (told["right"], told["named_s"], told["cause"]) == (True, 4.5, "hung")
    assert (told["requests"], told["harmed"], told["kinds"]) == (2, 1, ["late"])
    assert told["false_alarms"] == []


@pytest.mark.parametrize(("cause", "failure_class"), [("slow", "runtime"), ("hung", "loading")])
def test_another_cause_or_class_is_not_right(real, cause, failure_class):
    found = record(real, incident("inc-1", cause, ["m-2"], failure_class))
    told = real.row_of(found, "hang", "m-2", None)
    assert (told["right"], told["named_s"], told["cause"]) == (False, None, cause)


def test_who_else_is_accused_is_a_false_alarm(real):
    found = record(real, incident("inc-1", "hung", ["m-2"]), incident("inc-2", "slow", ["m-1"]))
    assert real.row_of(found, "hang", "m-2", 1_014.5)["false_alarms"] == ["inc-2"]


def test_rows_within_every_bound_miss_nothing(real):
    assert real.missed([row(real), row(real, named_s=25.0), row(real)]) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"right": False, "cause": "slow"}, "hang (stream, run 1): named slow, not hung"),
        ({"named_s": 25.1}, "hang (stream, run 1): named after 25.1 s"),
        ({"false_alarms": ["inc-2"]}, "hang (stream, run 1): accused others in inc-2"),
        ({"problem": "no such replica"}, "could not be injected: no such replica"),
    ],
)
def test_each_miss_is_told(real, more, told):
    found = real.missed([row(real), row(real), row(real, **more)])
    assert [said for said in found if told in said] == found != []


def test_the_median_and_the_harm_are_over_all_runs_of_a_shape(real):
    assert real.missed([row(real, named_s=11.0)] * 3) == [
        "stream: named after 11.0 s at the median"
    ]
    rows = [row(real, requests=10, harmed=2), row(real, requests=10, harmed=0)]
    assert real.missed(rows) == []
    assert real.missed([row(real, requests=10, harmed=2)]) == [
        "stream: 20.0% of all requests harmed"
    ]


def test_missing_weights_end_it_with_what_to_do(real, monkeypatch, capsys):
    def fetch(_name, _progress):
        raise WeightsError("cannot be reached; set PIP_INDEX_URL")

    monkeypatch.setattr(real, "fetch", fetch)
    monkeypatch.setattr(real.sys, "argv", ["gauntlet_real.py"])
    assert real.main() == 2
    assert "set PIP_INDEX_URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"), [(["--faults", "x"], "--faults: known"), (["--runs", "0"], "--runs: use")]
)
def test_what_makes_no_sense_is_refused_by_its_name(real, argv, told, capsys):
    with pytest.raises(SystemExit):
        real.arguments(argv)
    assert told in capsys.readouterr().err


def test_the_table_has_a_line_for_each_fault(real, capsys):
    rows = [row(real), row(real, run=1, named_s=6.5), row(real, fault="cut", right=False)]
    real.show(rows, "stream", given(real, "--runs", "2"))
    shown = capsys.readouterr().out
    assert "2/2" in shown
    assert "0/1" in shown
