import json
from collections.abc import Mapping
from dataclasses import fields
from math import inf, isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose import factlog as module
from holdfast.core.diagnose.evidence import About, Entry, Evidence, Incident, Remedy, Sign, Stage
from holdfast.core.diagnose.factlog import (
    Export,
    FactLog,
    from_lines,
    from_plain,
    incident_from_plain,
    incident_to_plain,
    to_lines,
    to_plain,
)
from holdfast.core.diagnose.facts import (
    KINDS_OF_FACT,
    AttemptsSeen,
    CanariesDoubted,
    ChainDeclared,
    Compared,
    Declared,
    Fact,
    FilesystemSeen,
    FinishesSeen,
    Gone,
    HostSeen,
    LineSeen,
    Looked,
    Mark,
    MemorySeen,
    OutputSeen,
    ProcessEnded,
    QueueSeen,
    RolloutSeen,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.failure import Cause, Class, Kind
from holdfast.core.types import ConfigError, State

MAPPINGS = {
    AttemptsSeen: {"failures": st.dictionaries(st.sampled_from(Kind), st.integers())},
    FinishesSeen: {"reasons": st.dictionaries(st.text(), st.integers())},
}
FACTS = st.one_of([st.builds(kind, **MAPPINGS.get(kind, {})) for kind in KINDS_OF_FACT])
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
    timeline=st.lists(st.builds(Entry), max_size=3),
)


def incident(about: About, **given_: object) -> Incident:
    return Incident("inc-000001", Cause.UNDERSIZED, Class.RUNTIME, about, 5, 0.9, **given_)


# --- plain data -----------------------------------------------------------------------------------


@pytest.mark.measured
@pytest.mark.parametrize("kind", KINDS_OF_FACT, ids=lambda kind: kind.__name__)
def test_every_kind_of_fact_survives_json(kind: type) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.builds(kind, **MAPPINGS.get(kind, {})))
    def survives(fact: Fact) -> None:
        text = json.dumps(to_plain(fact), allow_nan=False)
        assert repr(from_plain(json.loads(text))) == repr(fact)  # NaN equals nothing

    survives()


def test_no_fact_has_a_field_of_the_names_that_a_line_adds() -> None:
    names = {one.name for kind in KINDS_OF_FACT for one in fields(kind)}
    assert names.isdisjoint({"kind", "at"})


def test_what_has_its_default_is_left_out() -> None:
    assert to_plain(ProcessEnded("r1", 137, oom=True)) == {
        "kind": "ProcessEnded",
        "replica": "r1",
        "code": 137,
        "oom": True,
    }
    assert to_plain(Looked()) == {"kind": "Looked"}
    assert to_plain(AttemptsSeen("r1", 1.0)) == {
        "kind": "AttemptsSeen",
        "replica": "r1",
        "span_s": 1.0,
    }
    seen = AttemptsSeen("r1", 1.0, failures={Kind.CUT: 2})
    assert to_plain(seen)["failures"] == {"cut": 2}


def test_numbers_that_json_does_not_know_are_written_as_words() -> None:
    plain = to_plain(OutputSeen("r1", "score", (1.5, inf, -inf, nan)))
    assert plain["values"] == [1.5, "Infinity", "-Infinity", "NaN"]
    again = from_plain(plain)
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
        ({"kind": "Gone", "replica": 1}, "Gone.replica: is 1; use text"),
        ({"kind": "Gone", "replica": "r", "x": 1}, "Gone.x: is unknown; use replica"),
        ({"kind": "ProcessEnded", "replica": "r", "code": "1"}, "ProcessEnded.code: is '1'"),
        ({"kind": "ProcessEnded", "replica": "r", "code": True}, "ProcessEnded.code: is True"),
        ({"kind": "ProcessEnded", "replica": "r", "oom": 1}, "ProcessEnded.oom: is 1; use true"),
        ({"kind": "ProcessEnded", "replica": "r", "uptime_s": "x"}, "uptime_s: is 'x'; use a num"),
        ({"kind": "ProcessEnded", "replica": "r", "uptime_s": True}, "uptime_s: is True"),
        ({"kind": "ProcessEnded", "replica": "r", "uptime_s": 10**400}, "below 1.8e308"),
        ({"kind": "LineSeen", "replica": "r", "mark": "?"}, "LineSeen.mark: is '?'; use a name of"),
        ({"kind": "LineSeen", "replica": "r", "mark": 1}, "LineSeen.mark: is 1"),
        ({"kind": "ChainDeclared", "name": "c", "models": "ab"}, "ChainDeclared.models: is 'ab'"),
        ({"kind": "ChainDeclared", "name": "c", "models": ["a", 1]}, "models[1]: is 1; use text"),
        ({"kind": "FinishesSeen", "replica": "r", "reasons": []}, "reasons: is []; use an object"),
        ({"kind": "FinishesSeen", "replica": "r", "reasons": {"s": 1.5}}, "reasons.s: is 1.5"),
        (
            {"kind": "AttemptsSeen", "replica": "r", "span_s": 1, "failures": {"?": 1}},
            "AttemptsSeen.failures: is '?'; use a name of Kind",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_name_of_its_field(
    plain: Mapping[str, object], told: str
) -> None:
    with pytest.raises(ValueError) as refused:
        from_plain(plain)
    assert told in str(refused.value)
    assert len(str(refused.value)) < 700


@settings(max_examples=50, deadline=None)
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
            timeline=[Entry(5, "cause", "r1", "too small", "sizing")],
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


@settings(max_examples=30, deadline=None)
@given(INCIDENTS, st.lists(st.tuples(st.integers(0), FACTS), max_size=5))
def test_an_exported_incident_is_read_as_it_was_written(
    one: Incident, facts: list[tuple[int, Fact]]
) -> None:
    facts.sort(key=lambda row: row[0])
    export = Export(one, {"m": [1, 2]}, {"drift": {}}, tuple(facts))
    lines = list(to_lines(export))
    assert "\n".join(lines).splitlines() == lines
    assert repr(from_lines([*lines, "", " \n"])) == repr(export)


def test_facts_of_a_file_come_in_the_order_of_time() -> None:
    export = Export(incident(About()), {}, {}, ((9, Looked()), (2, Gone("r"))))
    assert [at for at, _ in from_lines(to_lines(export)).facts] == [2, 9]


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
    good = list(to_lines(Export(incident(About()), {}, {}, ((1, Looked()),))))
    with pytest.raises(ValueError) as refused:
        from_lines([*good, line])
    assert str(refused.value).startswith(told)


def test_a_file_that_does_not_begin_with_an_incident_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: is missing"):
        from_lines([""])
    for head in ({}, {"holdfast_incident": 2}, {"holdfast_incident": 1, "incident": 5}):
        with pytest.raises(ValueError, match="line 1: "):
            from_lines([json.dumps(head)])


# --- the log --------------------------------------------------------------------------------------


def log_of(*facts: Fact, max_facts: int = 100) -> FactLog:
    log = FactLog(max_facts)
    for at, fact in enumerate(facts):
        log.add(fact, at)
    return log


def concerning(log: FactLog, about: About, **given_: object) -> list[Fact]:
    return [fact for _, fact in log.of(incident(about, **given_))]


def test_an_incident_gets_what_concerns_its_replica_its_peers_and_the_fleet() -> None:
    mine = [
        Declared("r1", "m", host="h1", filesystem="efs"),
        Declared("r2", "m"),
        MemorySeen("r1", 5),
        MemorySeen("r2", 5),
        HostSeen("h1"),
        FilesystemSeen("efs"),
        QueueSeen("m", 3),
        RolloutSeen("m", "2", "began"),
        CanariesDoubted("m"),
        Looked(),
    ]
    others = [
        Declared("x1", "other", host="h2", filesystem="nfs"),
        MemorySeen("x1", 5),
        HostSeen("h2"),
        FilesystemSeen("nfs"),
        QueueSeen("other", 3),
        CanariesDoubted("other"),
        ChainDeclared("c", ("other", "another")),
    ]
    log = log_of(*mine, *others)
    assert concerning(log, About("r1", "m", host="h1", filesystem="efs")) == mine
    assert concerning(log, About(), replicas=("r1",)) == mine
    assert len(log) == 17


def test_replicas_of_its_evidence_belong_to_it() -> None:
    log = log_of(Declared("r1", "m"), Declared("x", "n"), MemorySeen("x", 1))
    said = Evidence(Sign.LOG_TRANSFER, About("x"), 0, "log", "")
    assert len(concerning(log, About("r1"), consequences=[said])) == 3
    assert len(concerning(log, About("r1"))) == 1


def test_the_models_of_its_chain_belong_to_it() -> None:
    facts = [ChainDeclared("c", ("m", "n")), Declared("x", "n"), QueueSeen("n", 5)]
    assert concerning(log_of(*facts), About(model="m")) == facts


def test_a_replica_named_in_its_log_belongs_to_it_and_so_do_comparisons_with_it() -> None:
    facts = [
        LineSeen("r1", Mark.TRANSFER_FAILED, peer="p1"),
        ProcessEnded("p1", 1),
        Compared("z", "r1", agreed=False),
    ]
    assert concerning(log_of(*facts), About("r1")) == facts


def test_an_incident_of_a_filesystem_or_a_host_gets_everybody_there() -> None:
    facts = [
        Declared("a", "m", host="h", filesystem="efs"),
        Declared("b", "n", host="i", filesystem="efs"),
        ProcessEnded("a", 1),
        ProcessEnded("b", 1),
    ]
    assert concerning(log_of(*facts), About(filesystem="efs")) == facts
    assert concerning(log_of(*facts), About(host="h")) == [facts[0], facts[2]]
    assert concerning(log_of(*facts), About("a", filesystem="efs")) == [facts[0], facts[2]]


def test_what_came_after_the_end_is_no_part_of_it() -> None:
    log = log_of(Looked(), Looked(), Looked())
    assert [at for at, _ in log.of(incident(About(), closed_at=1))] == [0, 1]


def test_what_lasts_outlives_the_ring_and_the_latest_counts() -> None:
    facts = [
        Declared("r1", "m", "1"),
        VersionsSeen("r1", cuda="11.8"),
        MemorySeen("r1", 1),
        Declared("r1", "m", "2"),
        StateChanged("r1", State.READY, "canary_pass"),
    ]
    log = log_of(*facts, *[Looked()] * 3, max_facts=3)
    kept = [(1, facts[1]), (3, facts[3]), (4, facts[4])]
    assert log.of(incident(About("r1")))[:3] == kept
    assert log.dropped == 1
    assert len(log) == 6


def test_what_is_kept_of_a_replica_goes_with_it() -> None:
    log = log_of(Declared("r1", "m"), HostSeen("h"), Gone("r1"), Looked(), max_facts=1)
    assert not concerning(log, About("r1"))[1:]
    assert list(log._kept) == [("HostSeen", "h")]


def test_what_is_kept_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)
    log = log_of(*(Declared(f"r{n}", "m") for n in range(5)), max_facts=1)
    assert [fact.replica for fact in concerning(log, About(model="m"))] == ["r2", "r3", "r4"]
    assert log.dropped == 2


def test_a_log_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"factlog\.max_facts"):
        FactLog(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(FACTS, max_size=30), st.integers(1, 5))
def test_whatever_comes_it_stays_in_its_bounds_and_in_the_order_of_time(
    facts: list[Fact], most: int
) -> None:
    log = log_of(*facts, max_facts=most)
    assert len(log._ring) <= most
    assert len(log) + log.dropped <= len(facts)
    times = [at for at, _ in log.of(incident(About("r1", "m")))]
    assert times == sorted(times)
