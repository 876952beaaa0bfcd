import pytest
from starlette.testclient import TestClient

from holdfast.config.fleet_file import AdminSection
from holdfast.config.tenants import hash_key
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.audit import AuditLog
from holdfast.control.admin.admin import build_admin
from holdfast.testing.store import MemoryStore

TOKEN = "hf-admin-" + "x" * 32
BEARER = {"authorization": f"Bearer {TOKEN}"}
HERE = "http://127.0.0.1:8001"
ROW = {"revision": "1", "statistic": "y.max", "state": "frozen", "version": 1, "samples": 500}


class Incidents:
    def __init__(self):
        self.asked = []
        self.answer = (True, "accepted y.max (version 2)")

    def baselines_of(self, model):
        return [ROW] if model == "org/m" else []

    def accept_baselines(self, model, why):
        self.asked.append(("accept", model, why))
        return self.answer

    def reset_baselines(self, model, why):
        self.asked.append(("reset", model, why))
        return self.answer


class Facts:
    def __init__(self):
        self.incidents = Incidents()

    def __getattr__(self, name):
        return None


@pytest.fixture
def facts():
    return Facts()


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def client(facts, store):
    section = AdminSection(token=hash_key(TOKEN))
    access = AdminAccess(lambda: section, audit=AuditLog(store))
    app = build_admin(facts, section, access=access)
    with TestClient(app, base_url=HERE, headers=BEARER) as client:
        yield client


def test_baselines_of_a_model_are_shown(client):
    assert client.get("/models/org/m/baseline").json() == {"baselines": [ROW]}
    assert client.get("/models/other/baseline").json() == {"baselines": []}


@pytest.mark.parametrize("order", ["accept", "reset"])
def test_an_order_is_carried_out_and_who_and_why_are_in_the_audit_trail(
    client, facts, store, order
):
    answer = client.post(f"/models/org/m/baseline/{order}", json={"why": " new users "})
    assert answer.status_code == 202
    told = "accepted y.max (version 2); because: new users"
    assert answer.json() == {"accepted": True, "reason": told}
    assert facts.incidents.asked == [(order, "org/m", "new users")]
    (row,) = store.orders(10)
    assert (row.who, row.result) == ("admin", told)
    assert row.what == f"POST /models/org/m/baseline/{order}"


def test_an_order_that_cannot_be_carried_out_says_why(client, facts):
    facts.incidents.answer = (False, "m has no baseline")
    answer = client.post("/models/org/m/baseline/reset", json={"why": "x"})
    assert (answer.status_code, answer.json()) == (409, {"error": "m has no baseline"})


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"", 400, "why is missing"),
        (b"{}", 400, "why is missing"),
        (b"[]", 400, "why is missing"),
        (b'{"why": 3}', 400, "why is missing"),
        (b'{"why": "  "}', 400, "why is missing"),
        (b'{"why": "a\\nb"}', 400, "one printable line"),
        (b'{"why": "%b"}' % (b"x" * 201), 400, "up to 200 characters"),
        (b" " * 5_000, 413, "4096 bytes"),
    ],
)
def test_an_order_without_a_proper_reason_is_refused(client, facts, body, status, told):
    kind = {"content-type": "application/json"}
    answer = client.post("/models/m/baseline/accept", content=body, headers=kind)
    assert answer.status_code == status
    assert told in answer.json()["error"]
    assert facts.incidents.asked == []


def test_nobody_orders_without_a_token(client, facts):
    answer = client.post(
        "/models/m/baseline/reset", json={"why": "x"}, headers={"authorization": ""}
    )
    assert answer.status_code in {401, 403}
    assert facts.incidents.asked == []
