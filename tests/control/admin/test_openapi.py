import re

import orjson
import pytest
from starlette.testclient import TestClient

from holdfast.config.fleet_file import AdminSection
from holdfast.control.admin import admin
from holdfast.control.admin.admin import build_admin
from holdfast.control.admin.logs import BYTES_MAX
from holdfast.control.admin.openapi import openapi_document
from holdfast.control.admin.openapi_schemas import ReplicaStatus
from holdfast.control.view.agents import agent_routes
from holdfast.control.view.fleet_summary import STATUS_MEMBERS
from holdfast.control.view.history import history_routes


class NoFacts:
    """Nobody is asked anything here."""

    def __getattr__(self, name):
        return None


@pytest.fixture
def app():
    more = [*agent_routes(lambda: None), *history_routes(NoFacts())]
    return build_admin(NoFacts(), AdminSection(), more)


def operations():
    for path, item in openapi_document()["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def references(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_route_is_described_and_nothing_else(app):
    routes = {
        (re.sub(r":path}", "}", route.path), method.lower())
        for route in app.routes
        for method in route.methods - {"HEAD"}
    }
    assert routes == {(path, method) for path, method, _ in operations()}


def test_the_description_is_served_as_it_is(app):
    with TestClient(app, base_url="http://127.0.0.1:8001") as client:
        answer = client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == openapi_document()
    assert answer.json()["openapi"].startswith("3.1")
    assert orjson.loads(orjson.dumps(openapi_document())) == openapi_document()


def test_each_operation_has_a_name_of_its_own_a_summary_and_answers():
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    for _, method, operation in operations():
        assert operation["summary"]
        statuses = set(operation["responses"])
        assert statuses & {"200", "202"}
        assert all(re.fullmatch("[1-5][0-9][0-9]", status) for status in statuses)
        assert {"401", "421"} <= statuses
        if method == "post":
            assert {"403", "415"} <= statuses


def test_parameters_are_those_of_the_path():
    for path, _, operation in operations():
        declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path))


def test_every_reference_leads_somewhere():
    document = openapi_document()
    found = set(references(document))
    assert found
    for reference in found:
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert place
    unused = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "responses")
        for name in document["components"][kind]
    } - found
    assert not unused


def test_bounds_are_those_of_the_code():
    paths = openapi_document()["paths"]
    limits = {
        one["name"]: (one["schema"].get("maximum"), one["schema"].get("default"))
        for path in ("/events", "/replicas/{replica_id}/logs")
        for one in paths[path]["get"]["parameters"]
    }
    assert limits["limit"] == (admin.EVENTS_MAX, admin.EVENTS_DEFAULT)
    assert limits["lines"] == (admin.LINES_MAX, admin.LINES_DEFAULT)
    scale = openapi_document()["components"]["schemas"]["Scale"]
    assert scale["properties"]["replicas"]["maximum"] == admin.REPLICAS_MAX
    assert BYTES_MAX == 1 << 20


def test_replicas_are_described_as_the_status_tells_them():
    assert list(ReplicaStatus.__annotations__) == [*STATUS_MEMBERS, "exhausted_in_s"]


def test_every_row_of_the_view_is_described_member_by_member():
    found = openapi_document()["components"]["schemas"]
    tables = [one for one in found["View"]["properties"].values() if "$ref" in one.get("items", {})]
    assert len(tables) == 10
    for table in tables:
        row = found[table["items"]["$ref"].rpartition("/")[2]]
        assert row["required"] == list(row["properties"])
