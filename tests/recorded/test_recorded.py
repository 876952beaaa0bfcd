"""Files that an earlier version wrote, read by this one; what programs rely on may only grow.

The files were made by ``record.py``; README.md says how. One fleet is started on a copy of the
state folder that was recorded, and asked what the earlier one was asked. Nearly all of it goes
through the command line, the admin port and the files, so that modules may be moved and renamed.
"""

import contextlib
import csv
import json
import sqlite3

import msgspec
import pytest

from holdfast.frames import FrameReader, encode
from recorded import record

KEPT = record.HERE
NAMES = sorted(path.stem for path in (KEPT / "json").glob("*.json"))
EXPORTS = sorted(path.name.partition(".")[0] for path in (KEPT / "exports").glob("*.gz"))
NEVER_SHOWN = ("description", "summary", "example", "title", "version")  # of an OpenAPI document
SHAPE_S = 10.0  # until a fleet that just began has something of everything


def kept(name):
    return record.read(KEPT / name)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The state folder that was recorded."""
    folder = tmp_path_factory.mktemp("recorded-state")
    record.open_state(KEPT / "state", folder)
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """This version, begun on a copy of that folder, with a little traffic."""
    folder = tmp_path_factory.mktemp("recorded-fleet")
    record.open_state(KEPT / "state", folder / "state")
    give_free_ports(folder / "state" / "control.sqlite")
    with record.running(folder, serves) as begun, record.Traffic(begun, pause_s=0.3):
        yield begun


def give_free_ports(path):
    """Launched replicas keep their ports; those of the recording may be somebody else's here."""
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        rows = store.execute("SELECT name, value FROM state WHERE kind = 'replica'").fetchall()
        for (name, value), port in zip(rows, record.free_ports(len(rows)), strict=True):
            unit = json.loads(value)
            unit["spec"]["port"] = port
            changed = (json.dumps(unit).encode(), name)
            store.execute("UPDATE state SET value = ? WHERE kind = 'replica' AND name = ?", changed)


def serves(fleet):
    """One replica is drained for good, and another was left in quarantine: not all are ready."""
    return all(record.fetch(f"{fleet.admin}/readyz/{model}") for model in ("chat", "small"))


# --- what is compared -----------------------------------------------------------------------------


def missing(old, new):
    """Members of one shape that another lacks, or that have another type there.

    A list that is empty now says nothing of its items, nor ``null`` of the value that may come.
    """
    lost = []
    for place, types in old.items():
        if place not in new:
            if not any(nothing_in(new, above) for above in above_of(place)):
                lost.append(f"{place} is missing")
            continue
        then, now = {*types} - {"null"}, {*new[place]} - {"null"}
        if then and not now <= then:
            lost.append(f"{place} is {sorted(now)} and was {sorted(then)}")
    return lost


def above_of(place):
    while place:
        place = place[: max(place.rfind("."), place.rfind("["))]
        yield place


def nothing_in(shape, place):
    types = shape.get(place, [])
    if "list" in types:
        return f"{place}[]" not in shape
    return types == ["null"]


def lost(old, new, place=""):
    """What one JSON value has and another lacks; of lists, the items in any order."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name in NEVER_SHOWN and isinstance(value, str):
                continue
            if name in new:
                yield from lost(value, new[name], f"{place}/{name}")
            else:
                yield f"{place}/{name} is missing"
    elif isinstance(old, list) and isinstance(new, list):
        for number, value in enumerate(old):
            if all(list(lost(value, other)) for other in new):
                yield f"{place}[{number}]: {value!r} is missing"
    elif old != new:
        yield f"{place} is {new!r} and was {old!r}"


def inlined(value, document):
    """An OpenAPI document with its references followed, and "or null" written in one way."""
    if isinstance(value, list):
        return [inlined(item, document) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        held = document
        for name in value["$ref"].removeprefix("#/").split("/"):
            held = held[name]
        return inlined(held, document)
    choices = value.get("anyOf")
    if choices and {"type": "null"} in choices and len(choices) == 2:
        (chosen,) = (choice for choice in choices if choice != {"type": "null"})
        merged = {**inlined(chosen, document), **value}
        del merged["anyOf"]
        return {**merged, "type": [merged["type"], "null"]}
    plain = {name: inlined(held, document) for name, held in value.items()}
    if all(isinstance(choice, str) for choice in value.get("enum", [None])):
        plain["type"] = "string"  # an enumeration of texts need not say so
    return plain


# --- the state folder -----------------------------------------------------------------------------


def test_an_earlier_store_is_opened_and_not_set_aside(fleet):
    told = fleet.get("/status")
    for name in ("store", "history"):
        assert told[name]["set_aside"] is None
        assert told[name]["problem"] is None
    assert not list(fleet.state.glob("*.broken-*"))


def test_the_store_keeps_its_version_and_its_tables(fleet):
    then, now = kept("store.json.gz"), record.stored(fleet.state / "control.sqlite")
    assert now["version"] == then["version"]
    assert list(lost(then["tables"], now["tables"])) == []


def test_replicas_are_launched_again_as_they_were(fleet):
    earlier = kept("store.json.gz")["state"]
    units = {name.partition("/")[2]: unit for name, unit in earlier.items() if "replica/" in name}
    present = record.stored(fleet.state / "control.sqlite")["state"]
    assert sorted(units) == sorted(record.LAUNCHED)
    rows = fleet.rows()
    for name, unit in units.items():
        assert rows[name]["launched"] is True
        assert [rows[name][key] for key in ("model", "revision", "zone", "region")] == [
            unit[key] for key in ("model", "revision", "zone", "region")
        ]
        now = present[f"replica/{name}"]
        assert missing(record.shape(unit), record.shape(now)) == []
        assert {key: now[key] for key in ("build", "engine", "held")} == {
            key: unit[key] for key in ("build", "engine", "held")
        }
        assert now["spec"]["command"] == unit["spec"]["command"]


def test_who_was_drained_stays_drained(fleet):
    assert [name for name, row in fleet.rows().items() if row["state"] == "ready"].count(
        "chat-3"
    ) == 0


def test_known_answers_and_settings_are_still_known(fleet):
    earlier = kept("store.json.gz")["state"]
    present = record.stored(fleet.state / "control.sqlite")["state"]
    for name in ("setting/fingerprints/secret", "setting/scale/chat"):
        assert present[name] == earlier[name]
    assert list(lost(texts_of(earlier), texts_of(present))) == []
    passed = {row["canary"]["detail"] for row in fleet.rows().values() if row["canary"]}
    assert any("as this revision is known to answer" in detail for detail in passed)


def texts_of(state):
    """Each page of the book of answers by its key: the answer that was confirmed."""
    pages = state["answers/"]["pages"]
    return {json.dumps(page["key"]): page["confirmed"] for page in pages}


def test_incidents_of_the_earlier_version_are_listed_as_they_were(fleet):
    now = {one["id"]: one for one in fleet.ask("incidents", "--all", "--json")["incidents"]}
    for one in kept("json/incidents.json")["incidents"]:
        found = now[one["id"]]
        if one["stage"] == "closed":
            assert list(lost(one, found)) == []
        else:  # it goes on: somebody may have done something about it by now
            same = ("id", "cause", "class", "replicas", "about", "opened_at")
            assert {key: found[key] for key in same} == {key: one[key] for key in same}


@pytest.mark.parametrize("incident", EXPORTS)
def test_an_earlier_incident_is_told_and_exported_as_it_was(fleet, incident):
    earlier = kept(f"incidents/{incident}.json")
    if earlier["stage"] == "closed":
        assert list(lost(earlier, fleet.ask("explain", incident, "--json"))) == []
        text = record.command("explain", incident, "--admin", fleet.admin)
        assert "how we know" in text
        lines = record.command("incidents", "--admin", fleet.admin, "export", incident)
        assert lines == kept(f"exports/{incident}.jsonl.gz")
    else:
        assert fleet.ask("explain", incident, "--json")["cause"] == earlier["cause"]


def test_events_of_the_earlier_version_are_still_told(fleet):
    assert list(lost(kept("json/events.json"), fleet.get("/events?limit=1000"))) == []


def test_figures_of_an_earlier_history_read_the_same(state):
    then = list(csv.reader(kept("history.csv.gz").splitlines()))
    assert len(then) > 100
    assert list(csv.reader(record.exported_history(state).splitlines())) == then


def test_an_earlier_history_goes_on(fleet):
    kept_series = kept("json/series.json")["series"]
    assert {*kept_series} <= {*fleet.get("/history/series?prefix=replica/small-c/")["series"]}


def begins(now, then):
    """Whether rows have what they had, in the same order; more may follow in each."""
    if not isinstance(then, list):
        return now == then
    return len(now) >= len(then) and all(map(begins, now, then))


def test_frames_of_an_earlier_control_are_read_and_written_the_same():
    raw = record.unpacked(KEPT / "state.frames.gz")
    reader = FrameReader()
    frames = reader.feed(raw)
    assert reader.skipped == 0
    assert len(frames) == 2
    begin = 0
    for frame in frames:
        size = 4 + int.from_bytes(raw[begin : begin + 4])
        then = msgspec.msgpack.decode(raw[begin + 4 : begin + size])
        now = msgspec.msgpack.decode(encode(frame)[4:])
        assert begins(now, then)  # a new field goes to the end
        begin += size
    assert begin == len(raw)


# --- exported incidents ---------------------------------------------------------------------------


@pytest.mark.parametrize("incident", EXPORTS)
def test_an_exported_incident_leads_to_the_same_verdict(incident, tmp_path):
    path = tmp_path / "incident.jsonl"
    path.write_text(kept(f"exports/{incident}.jsonl.gz"), encoding="utf-8")
    told = json.loads(record.command("simulate", "--replay", str(path), "--json"))
    earlier = kept(f"incidents/{incident}.json")
    verdict = {key: earlier[key] for key in ("class", "cause", "replicas")}
    assert told == {"id": incident, "recorded": verdict, "now": verdict, "same": True}


def test_every_cause_and_kind_is_still_read_from_an_export(tmp_path):
    codes = kept("codes.json")
    lines = [json.loads(line) for line in kept(f"exports/{EXPORTS[-1]}.jsonl.gz").splitlines()]
    lines[0]["incident"]["other_causes"] = codes["causes"]
    attempts = next(line for line in lines if line.get("kind") == "AttemptsSeen")
    attempts["failures"] = dict.fromkeys(codes["kinds"], 0)
    path = tmp_path / "incident.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert json.loads(record.command("simulate", "--replay", str(path), "--json"))["same"]


# --- what programs rely on ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh(fleet):
    """An incident that this version opened itself; the others it only read from the store.

    The processes of the launched replicas are gone since the recording: that is a crash.
    """

    def opened():
        new = (one for one in fleet.incidents() if one["id"] not in EXPORTS)
        return next((one["id"] for one in new if one["cause"] == "crashed"), None)

    return record.until(opened, "a crash is told")


@pytest.fixture(scope="module")
def shapes(fleet, fresh):
    """What this version tells, once it tells as much as the earlier one did, or after a while."""

    def whole():
        told = record.answers(fleet, fresh)
        listed = told["incidents"]["incidents"]
        told["incidents"]["incidents"] = [one for one in listed if one["id"] not in EXPORTS]
        found.update({name: record.shape(answer) for name, answer in told.items()})
        return not any(missing(shape_of(name), found[name]) for name in NAMES)

    found = {}
    with contextlib.suppress(TimeoutError):
        record.until(whole, "everything was told", SHAPE_S)
    return found


def shape_of(name):
    return record.shape(kept(f"json/{name}.json"))


@pytest.mark.parametrize("name", NAMES)
def test_members_of_json_are_never_removed_or_retyped(shapes, name):
    assert missing(shape_of(name), shapes[name]) == []


def test_metrics_keep_their_names_types_and_labels(fleet):
    then, documented = kept("metrics.json"), record.documented_metrics()
    assert list(lost(then["documented"], documented)) == []
    now = record.served_metrics(record.fetch(f"{fleet.admin}/metrics").decode())
    assert sorted(now.keys() - documented.keys()) == []  # under another name it is found here
    both = then["served"].keys() & now.keys()  # some are there only once something happened
    assert len(both) > len(then["served"]) / 2
    assert {name: now[name] for name in both} == {name: then["served"][name] for name in both}


def test_paths_of_the_admin_port_keep_what_they_take_and_tell(fleet):
    then, now = kept("openapi.json.gz"), fleet.get("/openapi.json")
    assert list(lost(inlined(then, then), inlined(now, now))) == []


def test_codes_are_never_removed():
    assert list(lost(kept("codes.json"), record.codes())) == []


def test_commands_keep_their_options():
    assert list(lost(kept("commands.json"), record.commands())) == []


def test_keys_of_a_fleet_file_keep_their_types_bounds_and_defaults():
    now = record.fleet_keys()
    assert list(lost(kept("fleet-keys.json.gz"), now)) == []
