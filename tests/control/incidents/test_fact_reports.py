import asyncio

import pytest
from starlette.testclient import TestClient

from holdfast.config.fleet_file import AdminSection
from holdfast.config.tenants import hash_key
from holdfast.control.admin.admin import build_admin
from holdfast.control.incidents.fact_reports import (
    BURST,
    FACTS_MAX,
    FACTS_PER_S,
    KINDS,
    REPORT_BYTES_MAX,
    BadReportError,
    FactReports,
    TooMuchError,
)
from holdfast.control.process import Control
from holdfast.core.diagnose.facts import (
    FACT_NAMES,
    FilesystemSeen,
    GpuFault,
    GpuSeen,
    HostSeen,
    LineSeen,
    Mark,
    MemorySeen,
    PhaseSeen,
    ProcessEnded,
    QueueSeen,
    VersionsSeen,
)
from holdfast.core.types import SECOND

EVERY = [
    ({"kind": "HostSeen", "host": "h", "gpus": 2}, HostSeen("h", 2)),
    ({"kind": "VersionsSeen", "replica": "m-1", "cuda": "11.8"}, VersionsSeen("m-1", "11.8")),
    (
        {"kind": "FilesystemSeen", "filesystem": "efs", "readers": 3},
        FilesystemSeen("efs", readers=3),
    ),
    ({"kind": "QueueSeen", "model": "m", "waiting": 7}, QueueSeen("m", 7)),
    (
        {"kind": "MemorySeen", "replica": "m-1", "used_bytes": 5},
        MemorySeen("m-1", 5, reporter="POST /facts"),
    ),
    ({"kind": "PhaseSeen", "replica": "own-1", "phase": "loading"}, PhaseSeen("own-1", "loading")),
    (
        {"kind": "GpuFault", "replica": "m-1", "xid": 79, "fatal": True, "reporter": "me"},
        GpuFault("m-1", 79, True, reporter="POST /facts"),
    ),
    (
        {"kind": "GpuSeen", "host": "h", "gpu": "0", "replicas": ["m-1"], "throttle": ["thermal"]},
        GpuSeen("h", "0", "GPU 0", ("m-1",), throttle=("thermal",), reporter="POST /facts"),
    ),
    (
        {"kind": "LineSeen", "replica": "m-1", "mark": "disk_full"},
        LineSeen("m-1", Mark.DISK_FULL, reporter="POST /facts"),
    ),
    ({"kind": "ProcessEnded", "replica": "m-1", "code": -9}, ProcessEnded("m-1", -9)),
]


class Stage:
    def __init__(self):
        self.facts = []
        self.now = 0
        self.books = FactReports(
            self.facts.append,
            lambda: {"m-1", "m-2", "own-1"},
            {"own-1"},
            lambda: {"m"},
            lambda: self.now,
        )

    def take(self, *rows):
        return self.books.take({"facts": list(rows)})


@pytest.fixture
def stage():
    return Stage()


def test_what_a_host_or_a_platform_can_know_is_taken_in_order(stage):
    assert stage.take(*(row for row, _ in EVERY)) == len(EVERY)
    assert stage.facts == [fact for _, fact in EVERY]
    assert {FACT_NAMES[type(fact)] for fact in stage.facts} == set(KINDS)
    assert (stage.books.taken, stage.books.refused) == (len(EVERY), 0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"kind": "MemorySeen", "replica": "x", "used_bytes": 1}, "MemorySeen.replica: is 'x'"),
        ({"kind": "QueueSeen", "model": "x", "waiting": 1}, "QueueSeen.model: is 'x'"),
        ({"kind": "MemorySeen", "replica": "m-1"}, "MemorySeen.used_bytes: is missing"),
        ({"kind": "MemorySeen", "replica": "m-1", "used_bytes": "1"}, "MemorySeen.used_bytes"),
        ({"kind": "MemorySeen", "replica": "m-1", "used_bytes": -1}, "from 0 to"),
        (
            {"kind": "MemorySeen", "replica": "m-1", "used_bytes": 1, "device": "tape"},
            "host or gpu",
        ),
        ({"kind": "MemorySeen", "replica": "m-1", "used_bytes": 1, "mood": 1}, "MemorySeen.mood"),
        ({"kind": "PhaseSeen", "replica": "m-1", "phase": "idle"}, "PhaseSeen.phase: is 'idle'"),
        ({"kind": "HostSeen", "host": ""}, "HostSeen.host: is empty"),
        ({"kind": "GpuSeen", "host": "h", "gpu": ""}, "GpuSeen.gpu: is empty"),
        ({"kind": "GpuSeen", "host": "h", "gpu": "0", "replicas": ["x"]}, "GpuSeen.replicas: has"),
        (
            {"kind": "GpuSeen", "host": "h", "gpu": "0", "throttle": ["x"] * 65},
            "GpuSeen.throttle: has 65 entries",
        ),
        (
            {"kind": "GpuSeen", "host": "h", "gpu": "0", "temperature_c": -5},
            "GpuSeen.temperature_c",
        ),
        ({"kind": "HostSeen", "host": "h" * 300}, "HostSeen.host: is no short text"),
        ({"kind": "HostSeen", "host": "h\n"}, "HostSeen.host: is no short text"),
        ({"kind": "FilesystemSeen", "filesystem": ""}, "FilesystemSeen.filesystem: is empty"),
        (
            {"kind": "FilesystemSeen", "filesystem": "f", "read_bytes_s": "Infinity"},
            "FilesystemSeen.read_bytes_s: is inf",
        ),
        ({"kind": "LineSeen", "replica": "m-1", "mark": "joy"}, "LineSeen.mark"),
        ({"kind": "ProcessEnded", "replica": "own-1"}, "which Holdfast launched"),
        ({"kind": "HostSeen", "host": "h", "at": 5}, "HostSeen.at: is not taken"),
        ({"kind": "StateChanged", "replica": "m-1", "state": "dead"}, "kind: is 'StateChanged'"),
        ({"kind": "AttemptsSeen", "replica": "m-1", "span_s": 1}, "kind: is 'AttemptsSeen'"),
        ({"kind": ["HostSeen"]}, "kind: is"),
        ({}, "kind: is 'None'"),
        ("HostSeen", "kind: is 'None'"),
    ],
)
def test_one_bad_fact_is_named_by_its_place_and_nothing_is_taken(stage, row, told):
    with pytest.raises(BadReportError, match=r"^facts\[1\]: ") as refused:
        stage.take(EVERY[0][0], row)
    assert told in str(refused.value)
    assert stage.facts == []
    assert stage.books.refused == 1


@pytest.mark.parametrize(
    "report",
    [None, [], {}, {"facts": 1}, {"facts": []}, {"facts": [EVERY[0][0]], "more": 1}, "facts"],
)
def test_a_report_is_a_list_of_facts_and_nothing_else(stage, report):
    with pytest.raises(BadReportError, match="facts"):
        stage.books.take(report)
    assert stage.facts == []


def test_a_report_has_a_bound(stage):
    rows = [EVERY[0][0]] * (FACTS_MAX + 1)
    with pytest.raises(BadReportError, match=f"are {FACTS_MAX + 1}"):
        stage.take(*rows)
    assert stage.take(*rows[1:]) == FACTS_MAX


def test_whoever_tells_too_much_is_told_when_to_come_back(stage):
    rows = [EVERY[0][0]] * FACTS_MAX
    for _ in range(BURST // FACTS_MAX):
        stage.take(*rows)
    with pytest.raises(TooMuchError, match="try again in 1 s") as refused:
        stage.take(*rows)
    assert refused.value.wait_s == 1.0
    assert len(stage.facts) == BURST
    stage.now = FACTS_MAX * SECOND // FACTS_PER_S
    stage.take(*rows)
    stage.now += 3_600 * SECOND  # and what was not used does not pile up
    for _ in range(BURST // FACTS_MAX):
        stage.take(*rows)
    with pytest.raises(TooMuchError):
        stage.take(*rows)


# --- over HTTP ------------------------------------------------------------------------------------


TOKEN = "hf-reporter-" + "r" * 32


class Sender:
    """Control as far as this path asks it."""

    def __init__(self, stage):
        self.report = stage.books.take

    def __getattr__(self, name):
        return None


@pytest.fixture
def client(stage):
    app = build_admin(Sender(stage), AdminSection(token=hash_key(TOKEN)))
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://127.0.0.1:8001", headers=bearer) as made:
        yield made


def test_a_report_is_answered_with_how_many_were_taken(client, stage):
    answer = client.post("/facts", json={"facts": [row for row, _ in EVERY]})
    assert (answer.status_code, answer.json()) == (202, {"taken": len(EVERY)})
    assert len(stage.facts) == len(EVERY)


def test_a_bad_report_is_answered_with_what_is_wrong(client, stage):
    answer = client.post("/facts", json={"facts": [{"kind": "HostSeen"}]})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("facts[0]: HostSeen.host: is missing")
    for body in (b"[", b"[]", b'{"facts": [NaN]}'):
        answer = client.post("/facts", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
    large = b'{"facts": ["' + b"x" * REPORT_BYTES_MAX + b'"]}'
    answer = client.post("/facts", content=large, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert stage.facts == []


def test_too_many_reports_are_answered_with_when_to_come_back(client, stage):
    body = {"facts": [EVERY[0][0]] * FACTS_MAX}
    for _ in range(BURST // FACTS_MAX):
        assert client.post("/facts", json=body).status_code == 202
    answer = client.post("/facts", json=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_control_judges_what_is_reported_of_its_own_replicas(tmp_path, store, world):
    path = tmp_path / "fleet.yaml"
    port = world.free_port()
    path.write_text(f"models: [{{name: m, engine: vllm, endpoints: [http://127.0.0.1:{port}]}}]\n")

    async def main():
        launcher = world.Paper()
        control = Control(path, tmp_path, {}, "control-1", store, launcher)
        stop = asyncio.Event()
        task = asyncio.create_task(control.run(stop))
        await world.until(lambda: control.loop.view is not None or task.done())
        row = {"kind": "VersionsSeen", "replica": "m-1", "image": "engine:latest"}
        assert control.admin.report({"facts": [row]}) == 1
        with pytest.raises(BadReportError, match="no replica is called that"):
            control.admin.report({"facts": [row | {"replica": "m-2"}]})
        await world.until(lambda: "holdfast_facts_reported_total 1\n" in control.admin.metrics())
        assert "holdfast_fact_reports_refused_total 1\n" in control.admin.metrics()
        stop.set()
        await task
        await launcher.rest()

    asyncio.run(main())
