"""Models of a fleet file: canaries, scaling, rollouts, and where launched replicas are."""

import json

import pytest
from fleet_file_stage import read, refused
from pydantic import ValidationError

from holdfast.config.fleet_file import Deployed, FleetFile
from holdfast.config.models import EndpointSection, ModelSection
from holdfast.core.canary import CanaryConfig, Rule, Shape
from holdfast.core.deploy.autoscale import ScalingConfig
from holdfast.core.deploy.rollout import RolloutConfig
from holdfast.core.types import ConfigError, Replica

LISTED = "models:\n  - name: m\n    engine: {engine}\n    endpoints: [http://a:1]\n    {more}\n"
LAUNCHED = """\
models:
  - name: m
    engine: vllm
    revision: r2
    precision: fp8
    canary: {expect: [one two, "1 2"], rule: similar, slow_floor_s: 500ms}
    scaling: {min: 0, max: 4, slo_first_token_s: 2s}
    rollout: {settle_s: 1m}
    launch: {weights: w, replicas: 2, zones: [a, b], region: east, environment: {A: b}}
  - name: other
    engine: triton
    canary:
      shape: infer
      body: '{"inputs": []}'
      rule: tensor
    endpoints: [http://h:1]
tenants:
  - name: t
    keys: ["sha256:0b9c2a1e5f6d48373a2b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f"]
    regions: [east]
"""
PLACES = [
    EndpointSection(url="http://127.0.0.1:7001", id="m-1", zone="a", revision="r2", slots=2),
    EndpointSection(url="http://127.0.0.1:7004", id="m-4", zone="b", revision="r1"),
]


# --- what is read ---------------------------------------------------------------------------------


def test_everything_said_of_a_launched_model_is_there(tmp_path):
    model, other = read(tmp_path, LAUNCHED).models
    assert model.canary.expect == ("one two", "1 2")
    assert (model.canary.rule, model.canary.slow_floor_s) == (Rule.SIMILAR, 0.5)
    assert model.scaling == ScalingConfig(min=0, max=4, slo_first_token_s=2.0)
    assert model.rollout == RolloutConfig(settle_s=60.0)
    assert model.precision == "fp8"
    assert (other.canary.shape, other.canary.rule) == (Shape.INFER, Rule.TENSOR)
    assert (other.launch, other.scaling) == (None, None)


def test_a_replica_carries_what_its_canary_needs(tmp_path):
    model, other = read(tmp_path, LAUNCHED).models
    assert list(model.deployed()) == []
    assert [(d.launched, d.canary) for d in other.deployed()] == [(False, other.canary)]
    plain = Deployed(Replica("m-1", "m"), "http://a:1", "vllm", "m", None)
    assert (plain.precision, plain.launched, plain.canary) == ("", False, CanaryConfig())


def test_a_file_with_everything_comes_out_of_a_trip_as_it_went_in(tmp_path):
    file = read(tmp_path, LAUNCHED)
    for before in (file, file.with_endpoints({"m": PLACES})):
        again = FleetFile.from_json(before.to_json())
        assert again == before
        assert again.to_json() == before.to_json()
        assert again.models[0].canary == before.models[0].canary
        assert isinstance(again.models[0].canary.expect, tuple)
        assert again.models[0].canary.rule is Rule.SIMILAR
        assert again.replicas() == before.replicas()


@pytest.mark.parametrize(
    ("engine", "canary"),
    [
        ("vllm", "{shape: embedding}"),
        ("vllm", "{shape: embedding, rule: cosine}"),
        ("vllm", "{shape: completion, rule: exact}"),
        ("vllm", "{shape: infer, body: '{}', rule: tensor}"),
        ("triton", "{shape: chat, rule: similar}"),
        ("openai", "{shape: http, path: /x, body: '{}', check: 'p.m:f'}"),
        ("openai", "{shape: http, path: /x, body: '{}', check: 'p.m:f', rule: check}"),
        ("openai", "{shape: http, path: /x, body: '{}', expect: [y], rule: contains}"),
    ],
)
def test_canaries_that_can_be_judged_are_accepted(tmp_path, engine, canary):
    read(tmp_path, LISTED.format(engine=engine, more=f"canary: {canary}"))


# --- where launched replicas are ------------------------------------------------------------------


def test_control_says_where_launched_replicas_are(tmp_path):
    file = read(tmp_path, LAUNCHED)
    placed = file.with_endpoints({"m": PLACES})
    first, second, third = placed.replicas()
    assert first.replica == Replica("m-1", "m", "r2", "a", "region-a", 2)
    assert (first.url, first.launched, first.precision) == ("http://127.0.0.1:7001", True, "fp8")
    assert first.canary == file.models[0].canary
    assert (second.replica.id, second.replica.revision) == ("m-4", "r1")
    assert (third.replica.id, third.launched) == ("other-1", False)
    assert placed.models[0].launch == file.models[0].launch
    assert [d.replica.id for d in file.replicas()] == ["other-1"]
    assert placed.with_endpoints({"m": []}) == file
    assert placed.with_endpoints({}) == placed


def test_what_control_says_is_checked_too(tmp_path):
    file = read(tmp_path, LAUNCHED)
    with pytest.raises(ValidationError, match=r"endpoints\.1\.url: is that of endpoints\[0\] too"):
        file.with_endpoints({"m": [PLACES[0], PLACES[0]]})
    clash = EndpointSection(url="http://b:1", id="other-1")
    with pytest.raises(ValidationError, match=r"is 'other-1', as that of models\[0\]"):
        file.with_endpoints({"m": [clash]})
    with pytest.raises(ConfigError, match="has no 'n' to place replicas of; use one of m, other"):
        file.with_endpoints({"n": PLACES})
    with pytest.raises(ConfigError, match="is not set for 'other'; change the file"):
        file.with_endpoints({"other": PLACES})


def test_only_control_may_fill_endpoints_in(tmp_path):
    placed = read(tmp_path, LAUNCHED).with_endpoints({"m": PLACES})
    text = placed.to_json()
    assert FleetFile.from_json(text) == placed
    assert "endpoints: is set beside launch" in refused(tmp_path, text.decode())
    with pytest.raises(ValidationError, match="is set beside launch"):
        ModelSection.model_validate_json(json.dumps(json.loads(text)["models"][0]))


def test_a_trip_does_not_excuse_a_model_without_replicas():
    with pytest.raises(ValidationError, match=r"model\.endpoints: is missing"):
        FleetFile.from_json(b'{"models": [{"name": "m", "engine": "vllm"}]}')


def test_ids_of_launched_replicas_are_kept_free(tmp_path):
    text = LAUNCHED.replace("[http://h:1]", "[{url: http://h:1, id: m-17}]")
    said = refused(tmp_path, text)
    told = "models[1].endpoints[0].id: is 'm-17', which a replica launched for 'm' may get; use"
    assert said.startswith(f"fleet.yaml:16: {told} another id: launched ones are model-number")
    for fine in ("m-x", "m", "mm-1", "m-1-1"):
        read(tmp_path, LAUNCHED.replace("[http://h:1]", f"[{{url: http://h:1, id: {fine}}}]"))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "more", "told"),
    [
        (
            "vllm",
            "scaling: {max: 3}",
            "scaling: is set for listed endpoints; remove it, or use 'launch'",
        ),
        (
            "vllm",
            "canary: {rule: cosine}",
            "canary.shape: is missing, and cosine compares no text; use shape: embedding",
        ),
        (
            "triton",
            "canary: {rule: tensor}",
            "canary.shape: is missing, and tensor compares no text; use shape: infer",
        ),
        ("vllm", "canary: {shape: embedding, rule: tensor}", "canary.rule: is tensor, for a"),
        ("vllm", "canary: {rule: check}", "canary.rule: is check; use check with canary.check"),
        ("vllm", "canary: {rule: contains}", "canary.expect: is missing; name the texts"),
        ("vllm", "canary: {shape: infer}", "canary.body: is missing or no JSON; give the JSON"),
        (
            "vllm",
            "canary: {shape: chatt}",
            "canary.shape: must be one of 'chat', 'completion', 'embedding', 'infer' or 'http'",
        ),
        ("vllm", "canary: false", "canary: must be a mapping (is false); indent its keys below"),
        ("vllm", "canary: {expect: one}", "canary.expect: must be a list (is 'one'); use lines"),
        ("vllm", "rollout: {settle_s: -1}", "rollout.settle_s: is -1.0; use"),
        ("vllm", "rollout: {settled: 1}", "rollout.settled: is not a known key; did you mean"),
        ("vllm", "scaling: {min: -1}", "scaling.min: is -1; use"),
        ("vllm", "precision: 8", "precision: must be text (is 8); use a precision, in quotes"),
    ],
)
def test_what_does_not_fit_a_model_is_refused_where_it_stands(tmp_path, engine, more, told):
    said = refused(tmp_path, LISTED.format(engine=engine, more=more))
    assert said.startswith(f"fleet.yaml:5: models[0].{told}")
