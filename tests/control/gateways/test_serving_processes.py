import os

import pytest

from holdfast.control.gateways.process_report import (
    REPORT_FILE,
    ProcessReport,
    ProcessRow,
    Replacement,
    read_report,
    write_report,
)
from holdfast.control.gateways.serving_processes import ServingProcesses
from holdfast.core.diagnose.facts import ServingProcessFrozen
from holdfast.core.health.process_watch import Condition
from holdfast.testing.store import MemoryStore

WALL = 1_000.0
FIRST = Replacement(1, 900.0, "gateway-1", 71, "stopped", 3.2)
SECOND = Replacement(2, 950.0, "control", 72, "stuck", 30.1)


class Reader:
    """A control that reads reports, and the supervisor that writes them."""

    def __init__(self, folder):
        self.path = folder / REPORT_FILE
        self.store = MemoryStore()
        self.writes = 0
        self.begin()

    def begin(self):
        """Another control."""
        self.facts = []
        self.processes = ServingProcesses(self.path, self.store, self.facts.append, lambda: WALL)

    def told(self, *rows, replaced=(), counts=None, supervisor="s"):
        write_report(self.path, ProcessReport(supervisor, list(rows), list(replaced), counts or {}))
        self.writes += 1
        os.utime(self.path, ns=(self.writes, self.writes))  # clocks of files may be coarse
        self.look()

    def look(self):
        self.facts.clear()
        self.processes.look()


@pytest.fixture
def reader(tmp_path):
    return Reader(tmp_path)


def test_a_replacement_is_told_once_also_by_the_next_control(reader):
    reader.told(replaced=[FIRST])
    first = ServingProcessFrozen("gateway-1", 71, Condition.STOPPED, 3.2, replaced=True)
    assert reader.facts == [first]
    (event,) = reader.store.events(10)
    assert (event.what, event.at) == ("gateway-1 replaced", 900.0)
    assert event.reason == "it was stopped for 3.2 s (pid 71)"
    reader.look()
    assert reader.facts == []
    reader.begin()
    reader.told(replaced=[FIRST, SECOND])
    assert [fact.process for fact in reader.facts] == ["control"]
    reader.told(replaced=[FIRST], supervisor="another")  # whose first one this is
    assert reader.facts == [first]


def test_processes_that_are_late_or_stopped_are_told_while_they_are(reader):
    reader.told(
        ProcessRow("control", 7, "turning", 100.0),
        ProcessRow("gateway-0", 8, "late", 988.0),
        ProcessRow("gateway-1", 9, "starting", 999.0),
    )
    late = ServingProcessFrozen("gateway-0", 8, Condition.LATE, 12.0, replaced=False)
    assert reader.facts == [late]
    reader.look()
    assert reader.facts == [late]
    assert reader.processes.worries() == ["gateway-0 has been late for 12 s"]
    assert reader.processes.rows()[1] == {
        "name": "gateway-0",
        "pid": 8,
        "condition": "late",
        "for_s": 12.0,
    }
    reader.told(ProcessRow("gateway-0", 8, "turning", 1_000.0))
    assert (reader.facts, reader.processes.worries()) == ([], [])


def test_counts_are_there_before_anything_was_replaced(reader):
    series = 'serving_processes_replaced_total{process="gateway",reason="stopped"}'
    counters, gauges = reader.processes.metrics()
    assert len(counters) == 4
    assert set(counters.values()) == {0}
    assert gauges == {}
    reader.told(
        ProcessRow("control", 7, "turning", 100.0),
        ProcessRow("gateway-0", 8, "stopped", 998.0),
        counts={"gateway stopped": 3, "odd": 9},
    )
    counters, gauges = reader.processes.metrics()
    assert counters[series] == 3
    assert sum(counters.values()) == 3
    assert gauges == {
        'serving_process_late_seconds{process="control"}': 0,
        'serving_process_late_seconds{process="gateway-0"}': 2.0,
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"supervisor": 3}'])
def test_a_report_that_makes_no_sense_says_nothing(reader, text):
    reader.told(ProcessRow("gateway-0", 8, "late", 990.0))
    reader.path.write_text(text)
    assert read_report(reader.path) is None
    reader.look()
    assert len(reader.processes.rows()) == 1  # the last that made sense


def test_what_a_newer_supervisor_says_is_shown_and_not_judged(reader):
    reader.told(
        ProcessRow("gateway-0", 8, "dreaming", 990.0),
        replaced=[Replacement(1, 1.0, "gateway-0", 6, "dreaming", 1.0)],
    )
    assert reader.facts == []
    assert reader.processes.rows()[0]["condition"] == "dreaming"
    assert reader.processes.worries() == []


def test_without_a_supervisor_nothing_is_known(reader):
    reader.store.put_setting("processes/told", "nonsense")
    reader.begin()
    reader.look()
    assert (reader.facts, reader.processes.rows()) == ([], [])
