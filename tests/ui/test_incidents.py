import re
import time

from holdfast.ui.terminal.incidents import show_incident, show_incidents

NOW = time.time()
PARLER = {
    "id": "inc-000007",
    "stage": "open",
    "class": "runtime",
    "cause": "undersized",
    "title": "undersized of parler-1",
    "about": {"replica": "parler-1", "model": "parler"},
    "replicas": ["parler-1"],
    "opened_at": NOW - 120,
    "confidence": 0.93,
    "other_causes": ["out_of_memory"],
    "fix": "memory reservation 1.0 GB, footprint 3.5 GB measured: set 4 GB",
    "action": "paged: the reservation is not ours to change",
    "evidence": [
        {
            "sign": "killed_for_memory",
            "about": {"replica": "parler-1"},
            "at": NOW - 100,
            "source": "launcher",
            "text": "killed for memory after 31 s",
        }
    ],
    "consequences": [
        {
            "sign": "queue_grows",
            "about": {"model": "parler"},
            "at": NOW - 60,
            "source": "gateway",
            "text": "48 requests wait, 12 more than a minute ago",
        }
    ],
    "timeline": [
        {"at": NOW - 100, "what": "killed_for_memory", "about": "parler-1", "text": "exit 137"},
        {"at": NOW - 60, "what": "cause", "about": "", "text": "undersized"},
    ],
}


def test_a_story_tells_cause_proof_consequence_and_what_to_do(capsys):
    show_incident(PARLER)
    out = capsys.readouterr().out
    for words in (
        "inc-000007  undersized of parler-1",
        "runtime failure, open",
        "93% sure (else: out of memory)",
        "what to do",
        "set 4 GB",
        "what was done",
        "how we know",
        "killed for memory after 31 s",
        "what followed from it",
        "48 requests wait",
        "timeline",
    ):
        assert words in out
    assert out.index("how we know") < out.index("what followed from it")


def test_a_story_shows_what_is_there_and_no_more(capsys):
    show_incident({"id": "inc-1", "closed_at": NOW, "opened_at": NOW - 5, "stage": "closed"})
    out = capsys.readouterr().out
    assert "over at" in out
    assert "how we know" not in out
    show_incident({})
    assert "the fleet" in capsys.readouterr().out


def test_the_list_shows_what_is_open_first(capsys):
    closed = {**PARLER, "id": "inc-000001", "stage": "closed"}
    several = {**PARLER, "id": "inc-3", "replicas": [f"p-{n}" for n in range(9)], "about": {}}
    show_incidents([closed, PARLER, several])
    out = capsys.readouterr().out
    assert out.index("inc-000007") < out.index("inc-000001")
    assert "and 3 more" in " ".join(out.split())
    assert re.search(r"parler-1 +\d+(\.\d+)? (s|min) +93%", out)


def test_no_incidents_is_a_sentence(capsys):
    show_incidents([])
    assert capsys.readouterr().out == "no incidents\n"


def test_what_is_missing_is_a_question_mark(capsys):
    show_incidents([{"id": "inc-1"}])
    assert "?" in capsys.readouterr().out
