"""The plans of the command at the operators' port: fields, answers, bad questions, bounds."""

import json
import re

import fleet_server
import pytest
from starlette.testclient import TestClient

from holdfast.planner import PLANS
from holdfast.planner.__main__ import answered
from holdfast.planner.question import FieldKind

QUESTION = {"need": "20", "availability": "0.995", "target": "0.999", "cost_per_hour": "2"}


def client_of(token=None):
    fleet = fleet_server.Fleet(fleet_server.fleets.calm())
    app = fleet_server.build(fleet, token)
    return TestClient(app, base_url="http://127.0.0.1:8001", client=("127.0.0.1", 50_000))


@pytest.fixture
def client():
    with client_of() as found:
        yield found


def test_every_plan_is_listed_with_its_fields_and_without_files(client):
    listed = {one["plan"]: one for one in client.get("/plans").json()["plans"]}
    assert list(listed) == list(PLANS)
    for name, kind in PLANS.items():
        shown = {field["name"] for field in listed[name]["fields"]}
        assert shown == {one.name for one in kind.fields if one.kind is not FieldKind.FILE}


def test_the_port_answers_as_the_command_does(client):
    answer = client.get("/plans/redundancy", params=QUESTION)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    direct = PLANS["redundancy"].ask(QUESTION)
    assert (told["spares"], told["verdict"]) == (2, direct.verdict)
    assert told["tables"][0]["headings"][0] == "spares"
    assert told["charts"][0]["svg"].startswith("<svg")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/plans/redundancy?need=20", 400, "missing: availability, target"),
        ("/plans/redundancy?need=20&availability=1.2&target=0.9", 400, "availability: is 1.2"),
        ("/plans/memory?config_json=/etc/passwd&device=l4", 400, "config_json is no value"),
        ("/plans/horoscope", 404, "there is no plan"),
        ("/plans/memory?model=" + "x" * 400, 400, "too much"),
    ],
)
def test_bad_questions_get_a_plain_answer(client, path, status, said):
    answer = client.get(path)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


def test_a_plan_needs_the_right_to_read():
    with client_of("a-token-of-some-length") as stranger:
        assert stranger.get("/plans").status_code == 401


def test_the_child_reads_and_writes_json():
    told = json.loads(answered(json.dumps({"plan": "coldstart", "values": {}}).encode()))
    assert told["missing"] == ["replicas", "size", "bandwidth"]
    values = {"replicas": 40, "size": "10GB", "bandwidth": "100MB"}
    told = json.loads(answered(json.dumps({"plan": "coldstart", "values": values}).encode()))
    assert told["parallel_cold"] == 1
    assert not re.search(r"\bNaN|Infinity\b", json.dumps(told))
