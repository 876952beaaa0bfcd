"""Models whose replicas are found by a source."""

import pytest
from fleet_file_stage import read, refused
from pydantic import ValidationError

from holdfast.config.fleet_file import FleetFile
from holdfast.config.models import EndpointSection

FOUND = """\
models:
  - name: m
    engine: vllm
    discover: {discover}
sources: [{{type: kubernetes, name: kube}}]
"""
PLACES = [EndpointSection(url="http://10.1.0.1:8000", id="m-abc-1", zone="a")]


def test_a_port_may_have_a_name(tmp_path):
    for said, port in (("http", "http"), ("8001", 8001), ("'8001'", 8001)):
        text = FOUND.format(discover=f"{{source: kube, port: {said}}}")
        assert read(tmp_path, text).models[0].discover.port == port


def test_a_discovered_model_needs_no_more_than_a_source(tmp_path):
    model = read(tmp_path, FOUND.format(discover="{source: kube}")).models[0]
    rule = model.discover
    assert (rule.source, rule.port, rule.scheme, rule.selector) == ("kube", 8000, "http", "")
    assert model.placed_by_control
    assert list(model.deployed()) == []


def test_tasks_of_ecs_can_be_discovered_too_and_what_an_agent_sees_cannot(tmp_path):
    text = FOUND.format(discover="{source: kube}")
    found = read(tmp_path, text.replace("type: kubernetes", "type: aws"))
    assert "task-definition" in found.models[0].discover.revision_from
    told = refused(tmp_path, text.replace("type: kubernetes", "type: local"))
    assert "models[0].discover.source" in told or "models.0.discover.source" in told
    assert "no Kubernetes, AWS or Ray source of this file" in told
    assert "add one under 'sources'" in told


def test_everything_can_be_said(tmp_path):
    said = "{source: kube, selector: 'app in (a, b)', namespace: x, port: 443, scheme: https, "
    rule = (
        read(tmp_path, FOUND.format(discover=said + "region: east, slots: 8}")).models[0].discover
    )
    assert (rule.port, rule.scheme, rule.region, rule.slots) == (443, "https", "east", 8)


def test_control_says_where_they_are_and_a_trip_keeps_it(tmp_path):
    file = read(tmp_path, FOUND.format(discover="{source: kube}"))
    placed = file.with_endpoints({"m": PLACES})
    assert [(one.replica.id, one.url, one.launched) for one in placed.replicas()] == [
        ("m-abc-1", "http://10.1.0.1:8000", False)
    ]
    assert FleetFile.from_json(placed.to_json()) == placed
    assert placed.with_endpoints({"m": []}) == file


@pytest.mark.parametrize(
    ("discover", "told"),
    [
        ("{}", "discover.source: is missing"),
        ("kube", "discover: must be a mapping"),
        ("{source: ''}", "discover.source: "),
        ("{source: kube, port: 0}", "discover.port: "),
        ("{source: kube, port: 70000}", "discover.port: "),
        ("{source: kube, port: -1}", "discover.port: "),
        ("{source: kube, port: ''}", "discover.port: "),
        ("{source: kube, port: '123456'}", "discover.port: "),
        ("{source: kube, port: HTTP}", "discover.port: port is 'HTTP'"),
        ("{source: kube, port: a-name-that-is-too-long}", "discover.port: port is 'a-name-"),
        ("{source: kube, port: true}", "discover.port: port is True; use a number"),
        ("{source: kube, port: 1.5}", "discover.port: port is 1.5; use a number"),
        ("{source: kube, port: [http]}", "discover.port: port is ['http']; use a number"),
        ("{source: kube, scheme: ftp}", "discover.scheme: must be one of 'http' or 'https'"),
        (
            "{source: kube, selector: 'a=,b c'}",
            "discover.selector: selector cannot be read at 'b c'",
        ),
        ("{source: kube, labels: x}", "discover.labels: is not a known key"),
        ("{source: kube, slots: -1}", "discover.slots: "),
    ],
)
def test_bad_rules_are_refused_where_they_stand(tmp_path, discover, told):
    said = refused(tmp_path, FOUND.format(discover=discover))
    assert said.startswith(f"fleet.yaml:4: models[0].{told}"), said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            "endpoints: [http://a:1]",
            "models[0].endpoints: is set beside discover; keep one: 'endpoints' for replicas",
        ),
        ("launch: {weights: w}", "models[0].discover: is set beside launch; keep one"),
        ("scaling: {max: 3}", "models[0].scaling: is set for discovered replicas; remove it"),
    ],
)
def test_what_does_not_go_with_discovery_is_refused(tmp_path, more, told):
    text = FOUND.format(discover="{source: kube}").replace("sources:", f"    {more}\nsources:")
    said = refused(tmp_path, text)
    assert told in said


def test_a_file_of_people_cannot_pretend_to_be_filled_in(tmp_path):
    placed = read(tmp_path, FOUND.format(discover="{source: kube}")).with_endpoints({"m": PLACES})
    assert "endpoints: is set beside discover" in refused(tmp_path, placed.to_json().decode())


def test_what_control_fills_in_is_checked(tmp_path):
    file = read(tmp_path, FOUND.format(discover="{source: kube}"))
    with pytest.raises(ValidationError, match=r"is that of endpoints\[0\] too"):
        file.with_endpoints({"m": [*PLACES, *PLACES]})
