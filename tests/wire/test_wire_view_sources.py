import asyncio
from hashlib import sha256

import pytest
from starlette.testclient import TestClient

from holdfast.config.fleet_file import FleetFile
from holdfast.control.process import Control
from holdfast.core.view.layers import Host, Placed, Reading
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.launcher import FakeHost, FakeLauncher
from holdfast.wire import view_sources
from holdfast.wire.view_sources import admin_app, build_source, read_once

GB = 1_000_000_000


class Fake:
    kind = "aws"
    period_s = 1.0

    def __init__(self, section, answer):
        self.name = section.called
        self.answer = answer
        self.closed = False

    async def read(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer

    async def close(self):
        self.closed = True


def look(file, answers):
    made = []

    def make(section):
        answer = answers[section.called]
        if isinstance(answer, ModuleNotFoundError):
            raise answer
        made.append(Fake(section, answer))
        return made[-1]

    snapshot = asyncio.run(read_once(file, make))
    assert all(one.closed for one in made)
    return snapshot


def aws(name):
    return {"type": "aws", "name": name}


def file_of(*names):
    return FleetFile.model_validate({"sources": [aws(name) for name in names]})


def test_one_look_reads_all_sources_and_finds_what_one_look_can_find():
    small = Placed("t1", "parler", "running", "h", reserved_bytes=GB, used_bytes=3_600_000_000)
    lost = Placed("t2", "llm", "running", "h", needs_gpu=True)
    reading = Reading("a", "aws", 1e9, hosts=(Host("h", "cpu", gpus=0),), placed=(small, lost))
    snapshot = look(file_of("a"), {"a": reading})
    assert [row.name for row in snapshot.groups] == ["cpu"]
    assert snapshot.replicas[0].faults == ("reserves 1.0 GB, uses 3.6 GB",)
    assert {row.cause for row in snapshot.incidents} == {"undersized", "misplaced"}
    assert all(row.incidents for row in snapshot.replicas)
    assert snapshot.took_s > 0
    assert snapshot.version == 1


def test_a_source_that_fails_is_a_row_and_costs_the_others_nothing(monkeypatch):
    monkeypatch.setattr(view_sources, "ONCE_S", 0.05)
    answers = {
        "good": Reading("good", "aws", 1e9, hosts=(Host("h"),)),
        "broken": ValueError("what is this"),
        "hangs": None,
        "missing": ModuleNotFoundError("pip install 'holdfast[aws]'"),
    }
    snapshot = look(file_of(*answers), answers)
    assert [row.id for row in snapshot.hosts] == ["h"]
    assert {row.source: row.error for row in snapshot.sources} == {
        "broken": "what is this",
        "hangs": "no answer for 0 s",
        "missing": "pip install 'holdfast[aws]'",
    }


def test_endpoints_of_the_file_name_the_replicas_of_a_platform():
    file = FleetFile.model_validate(
        {
            "models": [{"name": "m", "engine": "vllm", "endpoints": ["http://10.0.0.1:8000"]}],
            "sources": [aws("a")],
        }
    )
    placed = Placed("t1", "m", "running", endpoint="http://10.0.0.1:8000")
    snapshot = look(file, {"a": Reading("a", "aws", 1e9, placed=(placed,))})
    assert [row.id for row in snapshot.replicas] == ["m-1"]


def sections():
    return FleetFile.model_validate(
        {
            "sources": [
                {"type": "aws", "cluster": "marigold", "queue_names": ["a"]},
                {"type": "kubernetes", "namespace": "inference", "period_s": 7},
                {"type": "local", "host": "box"},
                {"type": "agents", "agents_max": 3},
            ]
        }
    ).sources


@pytest.mark.parametrize("index", range(4))
def test_sources_are_built_from_their_sections(index):
    section = sections()[index]

    async def main():
        source = build_source(section)
        assert (source.name, source.period_s > 0) == (section.type, True)
        await source.close()

    asyncio.run(main())


# --- the operators' port --------------------------------------------------------------------------


@pytest.fixture
def control(tmp_path):
    """Builds one for a config; it does not run."""
    store = SqliteStore(tmp_path / "state.db")

    def build(text):
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        launcher = FakeLauncher(FakeHost())
        return Control(path, tmp_path, {}, "control-1", store, launcher, build_source)

    yield build
    store.close()


def client(control):
    return TestClient(admin_app(control), base_url="http://127.0.0.1:8001")


def test_a_control_without_agents_has_no_place_for_their_reports(control):
    found = client(control("sources: [{type: local, host: box}]\n"))
    assert found.get("/agents").status_code == 404
    assert found.get("/view").json()["sources"][0]["source"] == "local"


def test_agents_report_with_a_token_of_their_own(control):
    token = "sha256:" + sha256(b"hf-agents").hexdigest()
    admin = "sha256:" + sha256(b"hf-admin").hexdigest()
    found = client(
        control(f"admin: {{token: '{admin}'}}\nsources: [{{type: agents, token: '{token}'}}]\n")
    )
    assert found.get("/agents").status_code == 401
    assert found.get("/agents", headers={"authorization": "Bearer hf-admin"}).json() == {
        "agents": []
    }
    refused = found.post(
        "/agents/box",
        content=b"{}",
        headers={"authorization": "Bearer hf-agents", "content-type": "application/json"},
    )
    assert refused.status_code == 400  # it came in, and is no report
    assert found.get("/view", headers={"authorization": "Bearer hf-agents"}).status_code == 401


def test_an_agents_entry_bounds_what_it_may_speak_of():
    entry = {
        "name": "gpu-1",
        "token": "sha256:" + "ab" * 32,
        "replicas": ["r"],
        "groups": ["inference"],
        "disks": ["filer:/models"],
    }
    file = FleetFile.model_validate({"sources": [{"type": "agents", "agents": [entry]}]})
    (grant,) = view_sources._grants(file.sources[0])
    assert (grant.replicas, grant.groups, grant.disks) == (
        ("r",),
        ("inference",),
        ("filer:/models",),
    )
