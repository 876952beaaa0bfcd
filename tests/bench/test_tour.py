"""``bench/tour.py``: what counts as having done what the README says."""

import subprocess
import threading
from types import SimpleNamespace

import pytest


@pytest.fixture
def tour(bench):
    return bench("tour")


@pytest.fixture
def answer(bench):
    """One that came whole."""
    told = bench("real_fleet").Answer(status=200, done=True, finishes=["stop"])
    told.texts.append((1.0, "the sea"))
    return told


def test_a_whole_answer_has_no_flaw(tour, answer):
    assert tour.flaw_of(answer) == ""


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"error": "reset"}, "reset"),
        ({"status": 503}, "status 503"),
        ({"error": "{'code': 'queue_timeout', 'request_id': 'req_1'}"}, "queue_timeout"),
        ({"status": 503, "error": '{"error": {"code": "overloaded"}}'}, "overloaded"),
        ({"done": False}, "an answer without its end"),
        ({"finishes": []}, "an answer without its end"),
        ({"texts": []}, "an answer without a word"),
    ],
)
def test_anything_less_is_told(tour, answer, how, told):
    for name, value in how.items():
        setattr(answer, name, value)
    assert tour.flaw_of(answer) == told


def test_who_chats_complains_of_flaws_and_of_long_waits_once_each(tour, answer):
    chats = tour.Chats(1)
    assert chats.problems() == ["nobody chatted"]
    chats.answers = [(answer, 0.4)] * 3
    assert chats.problems() == []
    answer.error = "reset"
    chats.answers = [(answer, 0.4), (answer, 17.4)]
    assert chats.problems() == ["2 of 2 chats: reset", "a chat took 17.4 s"]


@pytest.fixture
def walk(tour, monkeypatch):
    """A fleet on paper whose replica m-2 hangs; ``seen`` sets what is to be seen of it."""
    fleet = SimpleNamespace(admin="http://admin", incidents=[], looked=threading.Event())
    done = subprocess.CompletedProcess([], 0, "", "   0.0 s  hang on m-2 for 0.1 s\n")

    def command(_self, *_words):
        fleet.incidents = fleet.after
        assert fleet.looked.wait(20.0)  # it takes until its state was looked at
        return done

    monkeypatch.setattr(tour.Round, "command", command)
    monkeypatch.setattr(tour, "call", lambda _url: {"incidents": list(fleet.incidents)})
    monkeypatch.setattr(tour, "NAMED_S", 0.0)
    monkeypatch.setattr(tour, "STATE_LOOK_S", 0.001)
    return tour.Round(fleet, 0.1)


def seen(walk, *incidents, state="suspect"):
    fleet = walk.fleet
    looks = []

    def replicas():
        looks.append(state)
        if len(looks) > 1:  # the first is in the book by now
            fleet.looked.set()
        return {"m-2": {"state": state}}

    fleet.after, fleet.replicas = list(incidents), replicas


def hung(replica="m-2", cause="hung", failure_class="runtime"):
    told = {"id": f"inc-{replica}", "cause": cause, "class": failure_class, "title": cause}
    return told | {"replicas": [replica], "opened_at": 0.0}


def test_a_hang_that_is_named_and_taken_out_is_as_it_should_be(walk):
    seen(walk, hung())
    walk.hang()
    assert set(walk.figures) == {"hang_named_s", "hang_out_s"}


@pytest.mark.parametrize(
    ("incidents", "state", "told"),
    [
        ([], "suspect", "there is nothing"),
        ([hung(cause="slow")], "suspect", "no incident says hung"),
        ([hung(failure_class="loading")], "suspect", "no incident says hung"),
        ([hung()], "ready", "stayed ready"),
        ([hung(), hung("m-1")], "suspect", "m-1 was accused too"),
    ],
)
def test_a_hang_that_passes_unnoticed_is_told(tour, walk, incidents, state, told):
    seen(walk, *incidents, state=state)
    with pytest.raises(tour.TourError, match=told):
        walk.hang()


def test_a_command_that_fails_says_what_it_printed(tour, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Error: no such replica\n")
    monkeypatch.setattr(tour.subprocess, "run", lambda *_, **__: failed)
    made = tour.Round(SimpleNamespace(admin="http://admin", state_dir="state"), 1.0)
    with pytest.raises(tour.TourError, match="no such replica"):
        made.command("drain", "m-9")
    assert tour.attempt(lambda: made.command("drain", "m-9")) == [
        "holdfast drain m-9: Error: no such replica"
    ]


def test_a_pid_that_is_nobodys_gets_no_signal(tour, monkeypatch):
    none = subprocess.CompletedProcess([], 0, "0\n", "")
    monkeypatch.setattr(tour.subprocess, "run", lambda *_, **__: none)
    with pytest.raises(tour.TourError, match="says 0"):
        tour.Round(SimpleNamespace(admin="http://admin", state_dir="state"), 1.0).pid("m-1")


def test_a_line_tells_the_verdict_and_the_times(tour):
    row = {"time": 1, "problems": [], "chats": 9, "load": 0.4, "up_s": 3.0, "longest_wait_s": 1.25}
    told = "1: as the README says (9 chats, load 0.4; up 3.0 s, longest_wait 1.2 s)"
    assert tour.line_of(row) == told
    row["problems"] = ["a chat: reset", "stop: ready for 3.0 s"]
    assert "a chat: reset; stop: ready" in tour.line_of(row)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--steps", "swim"], "--steps: known"),
        (["--times", "0"], "--times: use"),
        (["--browser", "/nowhere/chromium"], "does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(tour, argv, told, capsys):
    with pytest.raises(SystemExit):
        tour.arguments(argv)
    assert told in capsys.readouterr().err
