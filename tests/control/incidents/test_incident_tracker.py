import asyncio
from dataclasses import replace

import orjson
import pytest

from holdfast.control.incidents import incident_records
from holdfast.control.incidents import incident_tracker as module
from holdfast.control.incidents.incident_json import read_export
from holdfast.control.incidents.incident_tracker import IncidentTracker
from holdfast.core.diagnose.diagnosis import Changed, Closed, Opened
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
    Declared,
    LineSeen,
    Looked,
    Mark,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.investigation import CallCanaries, InvestigationConfig
from holdfast.core.diagnose.remedy_policy import Act
from holdfast.core.failure import Cause, Class
from holdfast.core.types import SECOND, State


class Hands:
    """Does what it is told, on paper."""

    def __init__(self):
        self.done = []
        self.able = True
        self.blocked = None
        self.notices = []
        self.ladder = ""

    def _do(self, *what):
        self.done.append(what)
        return self.able, "it was done" if self.able else "it cannot be done"

    def restart(self, replica, reason, since):
        return self._do("restart", replica)

    def take_out(self, replica, reason, *, until_right=False):
        return self._do("take_out", replica)

    def put_back(self, replica, reason):
        self._do("put_back", replica)

    def stop_rollout(self, model, reason):
        return self._do("stop_rollout", model)

    def ladder_of(self, model):
        return self.ladder

    def ask_canaries(self, replicas):
        self._do("canaries", *replicas)

    def block(self, fingerprints):
        self.blocked = dict(fingerprints)

    def note(self, notice):
        self.notices.append(notice)


class Notifier:
    pages = True

    def __init__(self):
        self.messages = []

    def tell(self, message):
        self.messages.append(message)

    def counters(self):
        return {}

    def events(self):
        return [(message.event, message.page) for message in self.messages]


class Scripted:
    """An investigation that finds what a test puts into it."""

    def __init__(self):
        self.found = []
        self.error = None
        self.incidents = {}
        self.blocked = {}
        self.evidence_seen = {}
        self.reports = []
        self.adopted = []
        self.acting = self
        self.taken = []

    def take(self, fact, now):
        self.taken.append(fact)
        if self.error is not None:
            raise self.error
        found, self.found = self.found, []
        return found

    def done(self, incident_id, text, now):
        self.reports.append((incident_id, text))
        self.incidents[incident_id].action = text
        return True

    def closed(self, incident):
        self.reports.append((incident.id, "closed"))

    def adopt(self, incident, now):
        self.adopted.append(incident)
        self.incidents[incident.id] = incident

    def baselines(self):
        return {"m": 1}


class World:
    def __init__(self, store, monkeypatch):
        self.store = store
        self.hands = Hands()
        self.notifier = Notifier()
        self.script = Scripted()
        self.arguments = []
        monkeypatch.setattr(module, "Investigation", self._make)

    def _make(self, config, **more):
        self.arguments.append((config, more))
        return self.script

    def build(self):
        return IncidentTracker(InvestigationConfig(), self.store, self.notifier, self.hands)

    def find(self, incidents, *findings, fact=None):
        for finding in findings:
            incident = getattr(finding, "incident", None)
            if incident is not None:
                self.script.incidents[incident.id] = incident
        self.script.found = list(findings)
        incidents.take(fact or Looked())
        incidents.drain()


@pytest.fixture
def stage(store, monkeypatch):
    return World(store, monkeypatch)


def incident(number=1, cause=Cause.LEAK, now=None, **more):
    about = About("m-1", "m")
    at = now if now is not None else module.time.monotonic_ns()
    evidence = [Evidence(Sign.MEMORY_LEAKS, about, at, "leak", "it grows by 5 MB/min")]
    return Incident(
        f"inc-{number:06}", cause, Class.RUNTIME, about, at, 0.9, changed_at=at,
        evidence=evidence, replicas=("m-1",), **more,
    )  # fmt: skip


def act(remedy, *, replica="m-1", dry_run=False):
    return Act("inc-000001", remedy, replica, "m", "because", dry_run)


def play(scene):
    asyncio.run(scene())


# --- what is found -------------------------------------------------------------------------------


def test_what_opens_changes_its_cause_and_closes_is_kept_and_told(stage):
    async def scene():
        incidents = stage.build()
        one = incident()
        stage.find(incidents, Opened(one))
        stage.find(incidents, Changed(one))  # more evidence is no news for people
        one.cause = Cause.UNDERSIZED
        stage.find(incidents, Changed(one))
        assert incidents.listing(10)[0]["cause"] == "undersized"
        assert incidents.open_count == 1
        one.stage, one.closed_at = Stage.CLOSED, one.opened_at + SECOND
        stage.find(incidents, Closed(one))
        assert stage.notifier.events() == [("opened", False), ("changed", False), ("closed", False)]
        assert [notice.what for notice in stage.hands.notices] == [
            "incident opened",
            "incident changed",
            "incident closed",
        ]
        assert incidents.listing(10, "open") == []
        assert incidents.listing(10, "closed")[0]["closed_at"] is not None
        assert incidents.open_count == 0
        await incidents.stop()
        assert incidents.counters()['incidents_total{class="runtime",cause="leak"}'] == 1

    play(scene)


def test_people_see_times_of_day_and_lists_without_their_long_parts(stage):
    async def scene():
        incidents = stage.build()
        stage.find(incidents, Opened(incident()))
        (row,) = incidents.listing(10)
        assert abs(row["opened_at"] - module.time.time()) < 60
        assert (row["evidence_count"], "evidence" in row) == (1, False)
        whole = incidents.get("inc-000001")
        assert abs(whole["evidence"][0]["at"] - module.time.time()) < 60
        assert whole["title"] == "leak of m-1"
        assert incidents.get("inc-000009") is None
        assert incidents.gauges() == {'incidents_open{class="runtime",cause="leak"}': 1}
        await incidents.stop()

    play(scene)


def test_one_that_came_back_says_when(stage):
    async def scene():
        incidents = stage.build()
        one = incident()
        stage.find(incidents, Opened(one))
        (row,) = incidents.listing(10)
        assert row["begun_at"] == row["opened_at"]
        again = one.opened_at + 90 * SECOND
        one.timeline.append(TimelineEntry(again, "reopened", "m-1", "the same failure is back"))
        stage.find(incidents, Opened(one))
        (row,) = incidents.listing(10)
        assert row["begun_at"] == pytest.approx(row["opened_at"] + 90.0, abs=0.01)
        assert incidents.get("inc-000001")["begun_at"] == pytest.approx(row["begun_at"], abs=0.01)
        assert one.begun_at == again
        await incidents.stop()

    play(scene)


def test_mending_ones_can_be_listed_alone(stage):
    async def scene():
        incidents = stage.build()
        stage.find(incidents, Opened(incident(1)), Opened(incident(2, stage=Stage.MENDING)))
        assert [one["id"] for one in incidents.listing(10, "mending")] == ["inc-000002"]
        assert len(incidents.listing(10, "open")) == 2
        await incidents.stop()

    play(scene)


# --- what is done --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remedy", "done"),
    [
        (Remedy.TAKE_OUT, [("take_out", "m-1")]),
        (Remedy.STOP_ROLLOUT, [("stop_rollout", "m")]),
        (Remedy.OBSERVE, []),
    ],
)
def test_an_act_is_done_and_reported(stage, remedy, done):
    async def scene():
        incidents = stage.build()
        stage.find(incidents, Opened(incident()), act(remedy))
        assert stage.hands.done == done
        assert len(stage.script.reports) == 1
        assert incidents.listing(1)[0]["action"] == stage.script.reports[0][1]
        assert not any(page for _, page in stage.notifier.events())
        await incidents.stop()

    play(scene)


def test_a_restart_is_reported_by_the_core_and_stored(stage):
    async def scene():
        incidents = stage.build()
        broken = incident()
        stage.find(incidents, Opened(broken), act(Remedy.DRAIN_AND_RESTART))
        assert (stage.hands.done, stage.script.reports) == ([("restart", "m-1")], [])
        broken.action = "m-1 was restarted and is ready again after 2 s"
        ready = StateChanged("m-1", State.READY, "passed_enough")
        stage.find(incidents, Changed(broken), fact=ready)
        assert incidents.listing(1)[0]["action"] == broken.action
        await incidents.stop()

    play(scene)


@pytest.mark.parametrize("remedy", [Remedy.DRAIN_AND_RESTART, Remedy.TAKE_OUT, Remedy.STOP_ROLLOUT])
def test_what_cannot_be_done_is_said_and_a_person_is_called(stage, remedy):
    async def scene():
        incidents = stage.build()
        stage.hands.able = False
        stage.find(incidents, Opened(incident()), act(remedy))
        told = stage.script.reports[0][1]
        assert told == "it cannot be done; a person is asked to look"
        assert stage.notifier.events() == [("opened", False), ("page", True)]
        one = stage.script.incidents["inc-000001"]
        one.stage, one.closed_at = Stage.CLOSED, one.opened_at
        stage.find(incidents, Closed(one))
        assert stage.notifier.events()[-1] == ("closed", True)  # who was paged hears of the end
        await incidents.stop()

    play(scene)


@pytest.mark.parametrize(
    ("remedy", "ladder", "told"),
    [
        (Remedy.PAGE, "", "a person is asked to look"),
        (Remedy.RELOCATE, "", "another host is the platform's"),
        (Remedy.DEGRADE, "", "a person is asked to look"),
        (Remedy.DEGRADE, "auto", "auto falls to its next model by itself"),
    ],
)
def test_what_is_a_persons_to_do_pages(stage, remedy, ladder, told):
    async def scene():
        incidents = stage.build()
        stage.hands.ladder = ladder
        stage.notifier.pages = bool(ladder)
        stage.find(incidents, Opened(incident()), act(remedy, replica=""))
        said = stage.script.reports[0][1]
        assert told in said
        assert ("nobody is configured" in said) is not bool(ladder)
        assert stage.notifier.events()[-1] == ("page", True)
        await incidents.stop()

    play(scene)


def test_a_dry_run_does_nothing(stage):
    async def scene():
        incidents = stage.build()
        remedies = [act(remedy, dry_run=True) for remedy in Remedy]
        stage.find(incidents, Opened(incident()), *remedies)
        assert (stage.hands.done, stage.script.reports) == ([], [])
        assert stage.notifier.events() == [("opened", False)]
        await incidents.stop()

    play(scene)


def test_canaries_are_called_and_deadly_requests_blocked_when_they_change(stage):
    async def scene():
        incidents = stage.build()
        stage.find(incidents, CallCanaries(("m-1", "m-2"), "they differ"))
        assert stage.hands.done == [("canaries", "m-1", "m-2")]
        assert stage.hands.blocked is None
        stage.script.blocked = {"f": 9}
        stage.find(incidents)
        assert stage.hands.blocked == {"f": 9}
        stage.hands.blocked = None
        stage.find(incidents)
        assert stage.hands.blocked is None
        await incidents.stop()

    play(scene)


def test_an_operator_closes_one_and_who_was_taken_out_for_it_is_judged_again(stage):
    async def scene():
        incidents = stage.build()
        assert incidents.close("inc-000001") == (False, "it is not open")
        stage.find(incidents, Opened(incident()), act(Remedy.TAKE_OUT))
        assert incidents.close("inc-000001")[0]
        assert stage.hands.done[-1] == ("put_back", "m-1")
        assert incidents.listing(10, "closed")[0]["id"] == "inc-000001"
        assert incidents.get("inc-000001")["timeline"][-1]["text"] == "closed by an operator"
        assert not incidents.close("inc-000001")[0]
        await incidents.stop()

    play(scene)


# --- mistakes ------------------------------------------------------------------------------------


def test_a_mistake_costs_one_fact_and_is_logged_once_for_each_kind(stage, capsys):
    async def scene():
        incidents = stage.build()
        stage.script.error = RuntimeError("a bug")
        for _ in range(5):
            incidents.take(Looked())
        incidents.take(Declared("m-1", "m"))
        incidents.drain()
        stage.script.error = None
        stage.find(incidents, Opened(incident()))
        assert (incidents.errors, incidents.open_count) == (6, 1)
        assert incidents.counters()["investigation_errors_total"] == 6
        await incidents.stop()

    play(scene)
    assert capsys.readouterr().out.count("investigation failed") == 2


def test_hands_that_fail_end_nothing(stage, monkeypatch):
    async def scene():
        incidents = stage.build()

        def broken(*_):
            raise RuntimeError("no hands")

        monkeypatch.setattr(stage.hands, "take_out", broken)
        monkeypatch.setattr(stage.hands, "block", broken)
        stage.script.blocked = {"f": 1}
        stage.find(incidents, Opened(incident()), act(Remedy.TAKE_OUT))
        stage.find(incidents, Opened(incident(2)))
        assert (incidents.errors, incidents.open_count) == (2, 2)
        await incidents.stop()

    play(scene)


def test_facts_are_judged_in_turns_and_beyond_the_bound_are_counted(stage, world, monkeypatch):
    monkeypatch.setattr(module, "QUEUE_MAX", 30)
    monkeypatch.setattr(module, "TURN", 0)

    async def scene():
        incidents = stage.build()
        for _ in range(40):
            incidents.take(Looked())
        assert (incidents.facts_seen, incidents.facts_dropped) == (0, 10)
        await asyncio.sleep(0)
        assert 0 < incidents.facts_seen < 30  # others had their turn in between
        await world.until(lambda: incidents.facts_seen == 30)
        await incidents.stop()

    play(scene)


# --- after a restart -----------------------------------------------------------------------------


def test_another_control_adopts_what_is_open_in_its_own_time_and_goes_on_counting(
    stage, monkeypatch
):
    async def scene():
        first = stage.build()
        one, two = incident(7), incident(8, stage=Stage.CLOSED, closed_at=5)
        stage.find(first, Opened(one), Opened(two), Closed(two))
        opened = first.listing(10, "open")[0]["opened_at"]
        await first.stop()
        # The machine was booted meanwhile: core time is another one.
        clock = incident_records.clock()
        monkeypatch.setattr(incident_records, "clock", lambda: clock + 1_000 * SECOND)
        stage.script = Scripted()
        second = stage.build()
        (adopted,) = stage.script.adopted
        assert (adopted.id, adopted.cause) == ("inc-000007", Cause.LEAK)
        assert abs(one.opened_at - 1_000 * SECOND - adopted.opened_at) < SECOND
        assert stage.arguments[-1][1] == {"first_id": 9, "baselines": {"m": 1}}
        assert abs(second.listing(10, "open")[0]["opened_at"] - opened) < 1
        stage.find(second, Changed(adopted))
        assert stage.notifier.events().count(("opened", False)) == 2
        assert stage.notifier.events()[-1][0] == "closed"
        await second.stop()

    play(scene)


def test_what_was_kept_and_makes_no_sense_keeps_nobody_from_looking(stage, monkeypatch):
    async def scene():
        stage.store.put_setting("incidents/baselines", {"odd": 1})
        odd = {"clock": 0, "incident": {"id": "inc-x", "opened_at": 0, "stage": "open"}}
        stage.store.put_incident("inc-x", 1.0, "open", odd)
        made = []

        def make(config, *, first_id, baselines=None):
            made.append(baselines)
            if baselines is not None:
                raise ValueError("not mine")
            return stage.script

        monkeypatch.setattr(module, "Investigation", make)
        incidents = stage.build()
        assert made == [{"odd": 1}, None]
        assert stage.script.adopted == []
        await incidents.stop()

    play(scene)


def test_other_settings_begin_another_investigation_that_knows_what_the_first_knew(stage):
    async def scene():
        incidents = stage.build()
        stage.script.evidence_seen = {Sign.EXITED: 2}
        stage.find(incidents, Opened(incident()))
        config = InvestigationConfig()
        incidents.follow(config)
        assert len(stage.arguments) == 1
        incidents.follow(replace(config, acting=replace(config.acting, dry_run=True)))
        assert [one.id for one in stage.script.adopted] == ["inc-000001"]
        assert incidents.counters()['evidence_total{sign="exited"}'] == 4  # the script keeps its 2
        await incidents.stop()

    play(scene)


def test_a_baseline_is_replaced_kept_at_once_and_told_among_the_events(stage):
    async def scene():
        incidents = stage.build()
        stage.script.describe_baselines = lambda model: [{"statistic": model}]
        stage.script.accept_baselines = lambda _: (0, "nothing accepted")
        stage.script.reset_baselines = lambda _: (2, "2 dropped")
        assert incidents.baselines_of("m") == [{"statistic": "m"}]
        assert incidents.accept_baselines("m", "x") == (False, "nothing accepted")
        assert "incidents/baselines" not in stage.store.settings()
        assert incidents.reset_baselines("m", "bad day") == (True, "2 dropped")
        assert stage.store.settings()["incidents/baselines"] == {"m": 1}
        (notice,) = stage.hands.notices
        assert (notice.model, notice.what) == ("m", "baseline reset")
        assert notice.reason == "2 dropped; because: bad day"
        await incidents.stop()

    play(scene)


def test_one_that_became_part_of_another_is_closed_in_the_books(stage, monkeypatch):
    monkeypatch.setattr(module, "SETTLE", 0)

    async def scene():
        incidents = stage.build()
        stage.find(incidents, Opened(incident(1)), Opened(incident(2)))
        del stage.script.incidents["inc-000001"]
        stage.find(incidents)
        assert [one["id"] for one in incidents.listing(10, "open")] == ["inc-000002"]
        assert incidents.listing(10, "closed")[0]["action"] == "became part of another incident"
        await incidents.stop()

    play(scene)


# --- with the real one ---------------------------------------------------------------------------


def test_a_real_failure_is_found_kept_exported_and_read_again(store, world):
    hands = Hands()

    async def scene():
        incidents = IncidentTracker(InvestigationConfig(), store, Notifier(), hands)
        incidents.take(Declared("m-1", "m", managed=True))
        incidents.take(Declared("m-2", "m", managed=True))
        for name in ("m-1", "m-2"):
            incidents.take(StateChanged(name, State.READY, "passed_enough"))
        incidents.take(LineSeen("m-1", Mark.CUDA_CORRUPTED))
        ended = ProcessEnded("m-1", 1, phase="serving", uptime_s=900.0, served=50)
        incidents.take(ended)
        await world.until(lambda: incidents.facts_seen == 6)
        (row,) = incidents.listing(10)
        assert (row["class"], row["cause"]) == ("runtime", "cuda_corrupted")
        lines = await incidents.export(row["id"])
        export = read_export(lines)
        assert export.incident.cause is Cause.CUDA_CORRUPTED
        assert ended in [fact for _, fact in export.facts]
        await incidents.stop()
        later = IncidentTracker(InvestigationConfig(), store, Notifier(), hands)
        again = await later.export(row["id"])
        assert again[1:] == lines[1:]
        assert orjson.loads(again[0])["incident"]["id"] == row["id"]
        assert later.open_count == 1
        assert await later.export("inc-999999") is None
        await later.stop()

    play(scene)
