import re
import time
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.incidents.incident_json import incident_to_plain
from holdfast.control.incidents.incident_records import for_people
from holdfast.core.diagnose.causes.rule import names_in
from holdfast.core.diagnose.causes.table import CAUSES
from holdfast.core.diagnose.evidence import About, Evidence, Incident, Sign, TimelineEntry
from holdfast.core.diagnose.incident_case import IncidentCase, SeenEvidence
from holdfast.core.types import nanos
from holdfast.ui.terminal import console
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


# --- no word twice --------------------------------------------------------------------------------


FOOTPRINTS = ("measured", "of_peers", "declared")  # where a footprint comes from: one of them


def assert_no_word_twice(text):
    """No word is there twice in a row."""
    for line in text.splitlines():
        words = re.findall(r"[\w'-]+|[^\w\s]", line.lower())
        assert all(a != b or not a.isalpha() for a, b in pairwise(words)), line


def printed(incident):
    """An incident as it is printed on a screen so wide that no sentence is broken."""
    with patch.object(console, "_PIPE_COLUMNS", 600), redirect_stdout(StringIO()) as out:
        show_incident(incident)
    return out.getvalue()


@pytest.mark.parametrize("cause", CAUSES)
@settings(max_examples=3)  # of each of the 42 causes
@given(data=st.data())
def test_an_explanation_says_nothing_twice_whatever_the_cause(cause, data):
    rule = CAUSES[cause]
    about = About("m-1", "m", "1", "host-a", "efs")
    opening = nanos(1_000)
    case = IncidentCase(Incident("inc-1", cause, rule.failure_class, about, opening, 0.8))
    case.roots["replica", "m-1"] = about
    proof = data.draw(st.sampled_from(rule.proofs))
    followed = data.draw(st.sets(st.sampled_from(sorted(rule.consequences or Sign)), max_size=4))
    measured = data.draw(st.booleans())
    source = data.draw(st.sampled_from(FOOTPRINTS))
    names = names_in(rule.fix).difference(FOOTPRINTS) | {source}
    numbers = dict.fromkeys(names, 3.0) if measured else {}
    for place, sign in enumerate([*sorted(proof.signs), *sorted(followed - proof.signs)]):
        # One event may have many signs and one text, and one sign many sources.
        text = data.draw(st.sampled_from(["it was seen to fail.", f"it was the sign {sign}."]))
        at = opening + data.draw(st.sampled_from([0, place]))
        case.add(SeenEvidence(Evidence(sign, about, at, "log", text, numbers)), at)
    case.write(CAUSES, opening)
    policy = data.draw(st.sampled_from(["observed", "m-1 is started again", ""]))
    for action in filter(None, (policy, "m-1 was restarted and is ready again after 2 s")):
        case.incident.action = action
        case.tell(TimelineEntry(opening + nanos(2), "action", "m-1", action))
    assert {one.sign for one in case.incident.evidence} >= proof.signs
    incident = case.incident
    screen = printed(for_people(incident_to_plain(incident), 0))
    assert_no_word_twice(screen)
    pieces = [one.text for one in (*incident.evidence, *incident.consequences)]
    for text in {incident.fix, *pieces, *(entry.text for entry in incident.timeline)}:
        assert screen.count(text) == 1, screen
    for text in (rule.story, rule.look, incident.fix):
        assert_no_word_twice(text)
        sentences = re.split(r"(?<=[.?!]) +", text)
        assert len(sentences) == len(set(sentences))
