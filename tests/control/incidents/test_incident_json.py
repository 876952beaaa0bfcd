import json
from collections.abc import Mapping
from dataclasses import fields
from math import inf, isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.incidents import incident_json as module
from holdfast.control.incidents.incident_json import (
    export_head,
    fact_from_plain,
    fact_line,
    incident_from_plain,
    incident_to_plain,
    pack_lines,
    read_export,
    unpack_lines,
)
from holdfast.core.canary import CanarySuspect
from holdfast.core.diagnose.evidence import (
    About,
    Evidence,
    Incident,
    Remedy,
    Sign,
    Stage,
    TimelineEntry,
)
from holdfast.core.diagnose.facts import (
    FACT_NAMES,
    AttemptsSeen,
    CanariesDoubted,
    Fact,
    FinishesSeen,
    Gone,
    Looked,
    OutputSeen,
    ProcessEnded,
)
from holdfast.core.diagnose.replay import IncidentExport
from holdfast.core.failure import Cause, Class, Kind

MAPPINGS = {
    AttemptsSeen: {"failures": st.dictionaries(st.sampled_from(Kind), st.integers())},
    FinishesSeen: {"reasons": st.dictionaries(st.text(), st.integers())},
}
FACTS = st.one_of([st.builds(kind, **MAPPINGS.get(kind, {})) for kind in FACT_NAMES])
ABOUTS = st.builds(About, *[st.text(max_size=5)] * 5)
EVIDENCE = st.builds(
    Evidence,
    st.sampled_from(Sign),
    ABOUTS,
    st.integers(),
    st.text(),
    st.text(),
    st.dictionaries(st.text(), st.floats()),
)
INCIDENTS = st.builds(
    Incident,
    about=ABOUTS,
    evidence=st.lists(EVIDENCE, max_size=3),
    consequences=st.lists(EVIDENCE, max_size=3),
    timeline=st.lists(st.builds(TimelineEntry), max_size=3),
)


def incident(about: About, **given_: object) -> Incident:
    return Incident("inc-000001", Cause.UNDERSIZED, Class.RUNTIME, about, 5, 0.9, **given_)


def lines_of(export: IncidentExport) -> list[bytes]:
    head = export_head(incident_to_plain(export.incident), export.baselines, export.config)
    facts = [fact_line(at, fact) for at, fact in export.facts]
    return [json.dumps(head, allow_nan=False).encode(), *facts]


# --- plain data -----------------------------------------------------------------------------------


@pytest.mark.measured
@pytest.mark.parametrize("kind", FACT_NAMES, ids=lambda kind: FACT_NAMES[kind])
def test_every_kind_of_fact_survives_json(kind: type) -> None:
    @settings(max_examples=25)
    @given(st.builds(kind, **MAPPINGS.get(kind, {})))
    def survives(fact: Fact) -> None:
        assert repr(fact_from_plain(json.loads(fact_line(5, fact)))) == repr(fact)

    survives()


def test_no_fact_has_a_field_of_the_names_that_a_line_adds() -> None:
    names = {one.name for kind in FACT_NAMES for one in fields(kind)}
    assert names.isdisjoint({"kind", "at"})


def test_the_members_of_a_line_are_a_promise() -> None:
    line = fact_line(7, AttemptsSeen("r1", 1.0, failures={Kind.CUT: 2}))
    assert list(json.loads(line).items()) == [
        ("at", 7),
        ("kind", "AttemptsSeen"),
        ("replica", "r1"),
        ("span_s", 1.0),
        ("successes", 0),
        ("backpressure", 0),
        ("inflight", 0),
        ("tokens", 0),
        ("failures", {"cut": 2}),
        ("fast", 0),
        ("share", None),
        ("waits", []),
        ("unread", 0),
        ("explained_s", None),
        ("prompts", None),
    ]
    assert fact_line(7, Looked()) == b'{"at":7,"kind":"Looked"}'


def test_members_with_a_default_may_be_missing_and_the_time_is_no_member() -> None:
    plain = {"at": 3, "kind": "ProcessEnded", "replica": "r1", "code": 137, "oom": True}
    assert fact_from_plain(plain) == ProcessEnded("r1", 137, oom=True)


def test_numbers_that_json_does_not_know_are_written_as_words() -> None:
    plain = json.loads(fact_line(1, OutputSeen("r1", "score", (1.5, inf, -inf, nan))))
    assert plain["values"] == [1.5, "Infinity", "-Infinity", "NaN"]
    again = fact_from_plain(plain)
    assert isinstance(again, OutputSeen)
    assert again.values[:3] == (1.5, inf, -inf)
    assert isnan(again.values[3])


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        ({}, "kind: is None; use one of Declared"),
        ({"kind": "Nonsense"}, "kind: is 'Nonsense'"),
        ({"kind": 7}, "kind: is 7"),
        ({"kind": "Gone"}, "Gone.replica: is missing"),
        ({"kind": "Gone", "replica": 1}, "Gone.replica: expected `str`"),
        ({"kind": "Gone", "replica": "r", "x": 1}, "Gone.x: is unknown; use replica"),
        ({"kind": "ProcessEnded", "replica": "r", "code": "1"}, "ProcessEnded.code: expected"),
        ({"kind": "ProcessEnded", "replica": "r", "code": True}, "ProcessEnded.code: expected"),
        ({"kind": "ProcessEnded", "replica": "r", "oom": 1}, "ProcessEnded.oom: expected `bool`"),
        (
            {"kind": "ProcessEnded", "replica": "r", "uptime_s": "x"},
            "uptime_s: expected",
        ),
        (
            {"kind": "ProcessEnded", "replica": "r", "uptime_s": True},
            "uptime_s: expected",
        ),
        (
            {"kind": "ProcessEnded", "replica": "r", "uptime_s": 10**400},
            "uptime_s: number out",
        ),
        ({"kind": "LineSeen", "replica": "r", "mark": "?"}, "LineSeen.mark: invalid"),
        ({"kind": "LineSeen", "replica": "r", "mark": 1}, "LineSeen.mark: expected"),
        ({"kind": "ChainDeclared", "name": "c", "models": "ab"}, "ChainDeclared.models: expected"),
        (
            {"kind": "ChainDeclared", "name": "c", "models": ["a", 1]},
            "models[1]: expected",
        ),
        (
            {"kind": "FinishesSeen", "replica": "r", "reasons": []},
            "reasons: expected `object`",
        ),
        (
            {"kind": "FinishesSeen", "replica": "r", "reasons": {"s": 1.5}},
            "reasons[...]: exp",
        ),
        (
            {"kind": "AttemptsSeen", "replica": "r", "span_s": 1, "failures": {"?": 1}},
            "AttemptsSeen.failures: invalid enum value '?'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_name_of_its_field(
    plain: Mapping[str, object], told: str
) -> None:
    with pytest.raises(ValueError) as refused:
        fact_from_plain(plain)
    assert told in str(refused.value)
    assert len(str(refused.value)) < 700


@settings(max_examples=50)
@given(INCIDENTS)
def test_an_incident_survives_json(one: Incident) -> None:
    text = json.dumps(incident_to_plain(one), allow_nan=False)
    assert repr(incident_from_plain(json.loads(text))) == repr(one)


def test_the_keys_of_an_incident_are_a_promise() -> None:
    said = Evidence(Sign.QUEUE_GROWS, About(model="m"), 7, "queues", "it grows", {"waiting": 3.0})
    plain = incident_to_plain(
        incident(
            About("r1", "m", "1", "h1", "efs"),
            stage=Stage.MENDING,
            changed_at=8,
            closed_at=9,
            replicas=("r1", "r2"),
            consequences=[said],
            other_causes=(Cause.LEAK,),
            timeline=[TimelineEntry(5, "cause", "r1", "too small", "sizing")],
            remedy=Remedy.PAGE,
            action="paged",
            fix="set 4 GB",
        )
    )
    assert plain == {
        "id": "inc-000001",
        "cause": "undersized",
        "class": "runtime",
        "title": "undersized of r1",
        "stage": "mending",
        "about": {
            "replica": "r1",
            "model": "m",
            "revision": "1",
            "host": "h1",
            "filesystem": "efs",
        },
        "replicas": ["r1", "r2"],
        "other_revisions": [],
        "opened_at": 5,
        "changed_at": 8,
        "closed_at": 9,
        "confidence": 0.9,
        "evidence": [],
        "consequences": [
            {
                "sign": "queue_grows",
                "about": {
                    "replica": "",
                    "model": "m",
                    "revision": "",
                    "host": "",
                    "filesystem": "",
                },
                "at": 7,
                "source": "queues",
                "text": "it grows",
                "numbers": {"waiting": 3.0},
            }
        ],
        "other_causes": ["leak"],
        "timeline": [
            {"at": 5, "what": "cause", "about": "r1", "text": "too small", "source": "sizing"}
        ],
        "remedy": "page",
        "action": "paged",
        "fix": "set 4 GB",
    }


def test_every_field_of_an_incident_is_written() -> None:
    written = set(incident_to_plain(incident(About())))
    assert written == {one.name for one in fields(Incident)} - {"failure_class"} | {
        "class",
        "title",
    }


def test_an_incident_that_cannot_be_read_is_refused_by_the_name_of_its_field() -> None:
    plain = incident_to_plain(incident(About("r1")))
    for change, told in [
        ({"cause": "bad luck"}, r"incident\.cause"),
        ({"about": {"replica": 1}}, r"incident\.about\.replica"),
        ({"evidence": [{}]}, r"incident\.evidence\[0\]\.sign: is missing"),
        ({"weather": "fine"}, r"incident\.weather"),
    ]:
        with pytest.raises(ValueError, match=told):
            incident_from_plain(plain | change)
    del plain["class"]
    with pytest.raises(ValueError, match=r"incident\.class: is missing"):
        incident_from_plain(plain)


# --- the exported file ----------------------------------------------------------------------------


@settings(max_examples=30)
@given(INCIDENTS, st.lists(st.tuples(st.integers(0), FACTS), max_size=5))
def test_an_exported_incident_is_read_as_it_was_written(
    one: Incident, facts: list[tuple[int, Fact]]
) -> None:
    facts.sort(key=lambda row: row[0])
    export = IncidentExport(one, {"m": [1, 2]}, {"drift": {}}, tuple(facts))
    lines = lines_of(export)
    assert b"\n".join(lines).splitlines() == lines
    assert repr(read_export([*lines, "", " \n"])) == repr(export)


def test_facts_of_a_file_come_in_the_order_of_time() -> None:
    export = IncidentExport(incident(About()), {}, {}, ((9, Looked()), (2, Gone("r"))))
    assert [at for at, _ in read_export(lines_of(export)).facts] == [2, 9]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 3: "),
        ("[]", "line 3: line: is []; use an object"),
        ('{"kind": "Looked"}', "line 3: at: is None"),
        ('{"at": 1, "kind": "Gone"}', r"line 3: Gone.replica: is missing"),
        ("[" * 100_000, "line 3: "),
    ],
)
def test_a_damaged_line_is_named(line: str, told: str) -> None:
    good = lines_of(IncidentExport(incident(About()), {}, {}, ((1, Looked()),)))
    with pytest.raises(ValueError) as refused:
        read_export([*good, line])
    assert str(refused.value).startswith(told)


def test_a_file_that_does_not_begin_with_an_incident_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: is missing"):
        read_export([""])
    for head in ({}, {"holdfast_incident": 2}, {"holdfast_incident": 1, "incident": 5}):
        with pytest.raises(ValueError, match="line 1: "):
            read_export([json.dumps(head)])


# --- packed for the store -------------------------------------------------------------------------


def test_packed_lines_come_back_as_they_were() -> None:
    lines = [b'{"at":1}', b'{"at":2}']
    assert unpack_lines(pack_lines(lines) or b"") == lines


def test_too_many_lines_are_not_kept(monkeypatch) -> None:
    monkeypatch.setattr(module, "PACKED_BYTES_MAX", 10)
    assert pack_lines(str(number).encode() * 50_000 for number in range(200)) is None


@pytest.mark.parametrize(
    ("written", "suspect"),
    [
        ({}, CanarySuspect.CHECKER),
        ({"answered": True, "confirmed": False}, CanarySuspect.CHECKER),
        ({"answered": False}, CanarySuspect.SHARED),
        ({"confirmed": True}, CanarySuspect.REPLICAS),
        ({"answered": False, "confirmed": True}, CanarySuspect.REPLICAS),
    ],
)
def test_a_doubt_in_an_old_export_names_its_suspect(written, suspect) -> None:
    fact = fact_from_plain({"kind": "CanariesDoubted", "model": "m", "detail": "why", **written})
    assert fact.suspect is suspect


@pytest.mark.parametrize(
    ("suspect", "written"),
    [
        (CanarySuspect.CHECKER, {}),
        (CanarySuspect.SHARED, {"answered": False}),
        (CanarySuspect.REPLICAS, {"confirmed": True}),
    ],
)
def test_a_doubt_is_written_as_it_always_was(suspect, written) -> None:
    fact = CanariesDoubted.by(suspect, "m", "why")
    plain = {"at": 1, "kind": "CanariesDoubted", "model": "m", "detail": "why", **written}
    assert json.loads(fact_line(1, fact)).items() >= plain.items()
    assert fact.suspect is suspect
