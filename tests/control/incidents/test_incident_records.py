import asyncio
from math import inf

import orjson
import pytest

from holdfast.control.incidents import incident_records
from holdfast.control.incidents.incident_json import (
    export_head,
    incident_to_plain,
    read_export,
    unpack_lines,
)
from holdfast.control.incidents.incident_records import Packer, for_people, lines_of, moved, number
from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.evidence import About, Evidence, Incident, Sign, TimelineEntry
from holdfast.core.diagnose.fact_log import FactLog
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Declared,
    FinishesSeen,
    LineSeen,
    Looked,
    Mark,
    OutputSeen,
    StateChanged,
)
from holdfast.core.failure import Cause, Class, Kind
from holdfast.core.types import SECOND, State

FACTS = [
    Declared("m-1", "m", managed=True, reserved_bytes=1),
    StateChanged("m-1", State.READY, "passed_enough"),
    AttemptsSeen("m-1", 1.0, 2, failures={Kind.RESET: 3}),
    OutputSeen("m-1", "logprob", (-inf, -0.5)),
    FinishesSeen("m-1", {"stop": 1}),
    CanaryAnswered("m-1", CanaryVerdict.PASS, 0.5, page_ok=True),
    LineSeen("m-1", Mark.WATCHDOG),
    Looked(),
]


@pytest.fixture
def incident():
    about = About("m-1", "m")
    found = Incident("inc-000012", Cause.HUNG, Class.RUNTIME, about, 5 * SECOND, 0.8)
    found.changed_at = 6 * SECOND
    found.evidence.append(Evidence(Sign.CANARY_SILENT, about, 4 * SECOND, "canary", "silent"))
    found.timeline.append(TimelineEntry(5 * SECOND, "cause", "m-1", "hung"))
    return found


def first(incident, baselines=None):
    return export_head(incident_to_plain(incident), baselines or {}, {})


def test_times_become_those_of_the_day_or_of_another_control(incident):
    plain = incident_to_plain(incident)
    shown = for_people(plain, 1_000 * SECOND)
    assert (shown["opened_at"], shown["changed_at"], shown["closed_at"]) == (1005.0, 1006.0, None)
    assert (shown["evidence"][0]["at"], shown["timeline"][0]["at"]) == (1004.0, 1005.0)
    other = moved(plain, -SECOND)
    assert (other["opened_at"], other["evidence"][0]["at"]) == (4 * SECOND, 3 * SECOND)
    assert plain["opened_at"] == 5 * SECOND


def test_ids_have_numbers():
    assert (number("inc-000012"), number("inc-x"), number("")) == (12, 0, 0)


def test_every_fact_is_read_again_as_it_was(incident):
    log = FactLog()
    for at, fact in enumerate(FACTS):
        log.add(fact, at)
    lines = lines_of(log, incident, first(incident), [])
    export = read_export(lines)
    assert [fact for _, fact in export.facts] == FACTS
    assert export.incident == incident


def test_what_is_new_is_put_behind_what_was_kept_before(incident, monkeypatch):
    log = FactLog(max_facts=4)
    for at in range(4):
        log.add(Looked(), at)
    kept = lines_of(log, incident, first(incident, {"b": 1}), [])
    for at in range(4, 10):
        log.add(Looked(), at)
    incident.cause = Cause.STALLED
    lines = lines_of(log, incident, first(incident, {"b": 2}), kept)
    assert [orjson.loads(line)["at"] for line in lines[1:]] == [0, 1, 2, 3, 6, 7, 8, 9]
    told = orjson.loads(lines[0])
    assert (told["incident"]["cause"], told["baselines"]) == ("stalled", {"b": 1})
    monkeypatch.setattr(incident_records, "LINES_MAX", 5)
    lines = lines_of(log, incident, first(incident), kept)
    assert [orjson.loads(line)["at"] for line in lines[1:]] == [0, 1, 2, 3, 9]


def test_of_too_many_facts_its_own_and_those_said_once_are_kept(incident, monkeypatch):
    monkeypatch.setattr(incident_records, "LINES_MAX", 5)
    incident.replicas = ("m-1",)
    log = FactLog()
    log.add(Declared("m-1", "m"), 0)
    log.add(Declared("m-2", "m"), 1)
    for at in range(2, 20):
        log.add(FinishesSeen("m-1" if at == 4 else "m-2", {"stop": at}), at)
    lines = lines_of(log, incident, first(incident), [])
    assert [orjson.loads(line)["at"] for line in lines[1:]] == [0, 1, 4, 18, 19]


def test_facts_are_kept_one_incident_after_the_other_and_mistakes_end_nothing(
    store, incident, world
):
    log = FactLog()
    log.add(FACTS[0], 1)

    class Nameless:
        id = "inc-000001"

    async def with_name():
        packer = Packer(store, log)
        packer.want(Nameless(), {})
        packer.want(incident, first(incident))
        await world.until(lambda: store.incident(incident.id)[1])
        await packer.close()

    asyncio.run(with_name())
    assert len(unpack_lines(store.incident(incident.id)[1])) == 2
    assert store.incident("inc-000001") == (None, None)
