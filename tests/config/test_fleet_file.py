"""The fleet file: what it gives to gateways, control and editors."""

import json
from pathlib import Path
from random import Random

import pytest
from fleet_file_stage import MODELS, ONE, TWO, read, refused
from pydantic import ValidationError

from holdfast.config.files import json_schema, load
from holdfast.config.fleet_file import ENGINES, Address, FleetFile
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.flow import Flow
from holdfast.core.request.ladders.degrade import DegradeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.types import Priority, Replica

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serving" / "fleet.yaml"
MINIMAL = """\
gateway: {listen: 127.0.0.1:8000, workers: 1}
admin: {listen: 127.0.0.1:8001}
models:
  - name: m
    engine: vllm            # or openai, sglang, tgi, triton, llamacpp, ollama, trtllm
    endpoints: [http://127.0.0.1:9501, http://127.0.0.1:9502]
"""

# --- what is read ---------------------------------------------------------------------------------


def test_the_smallest_file_is_enough(tmp_path):
    file = read(tmp_path, MINIMAL)
    assert file.gateway.address == Address("127.0.0.1", 8000)
    assert file.admin.address == Address("127.0.0.1", 8001)
    first, second = file.replicas()
    assert first.replica == Replica("m-1", "m")
    assert (first.url, first.engine, first.served_as) == ("http://127.0.0.1:9501", "vllm", "m")
    assert (second.replica.id, second.api_key_env) == ("m-2", None)
    assert file.flow_config().lanes == {"m": LaneConfig()}
    assert file.fleet_config() == FleetConfig()


def test_ports_have_defaults_on_loopback(tmp_path):
    file = read(tmp_path, MODELS)
    assert (file.gateway.listen, file.admin.listen) == ("127.0.0.1:8000", "127.0.0.1:8001")
    assert file.gateway.workers == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_known_by_its_name(tmp_path, engine):
    assert read(tmp_path, MINIMAL.replace("vllm  ", engine)).replicas()[0].engine == engine


def test_a_metrics_page_is_said_of_a_model_and_of_an_endpoint(tmp_path):
    file = read(
        tmp_path,
        """\
models:
  - name: m
    engine: triton
    metrics_url: "http://{host}:8002/metrics"
    endpoints: [http://h1:8000, {url: "http://h2:8000", metrics_url: "http://m2:9/metrics"}]
""",
    )
    assert [one.metrics_url for one in file.replicas()] == [
        "http://{host}:8002/metrics",
        "http://m2:9/metrics",
    ]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://{home}:8002/metrics", "{home} is not known; use one of {host}, {port}"),
        ("{host}:8002/metrics", "write a URL such as http://{host}:8002/metrics"),
        ("http://{host}:8002/metrics?all", "has a query"),
        ("http://me:secret@{host}/metrics", "holds credentials"),
    ],
)
def test_a_metrics_page_that_cannot_be_read_is_refused_where_it_stands(tmp_path, url, problem):
    text = (
        f"models:\n  - {{name: m, engine: triton, endpoints: [http://h], metrics_url: '{url}'}}\n"
    )
    told = refused(tmp_path, text)
    assert problem in told
    assert "metrics_url" in told
    assert "secret" not in told


def test_everything_said_of_a_model_reaches_its_replicas_and_its_lane(tmp_path):
    file = read(
        tmp_path,
        """\
models:
  - name: org/m:8b
    engine: sglang
    revision: r7
    served_as: theirs
    api_key_env: ENGINE_TOKEN
    endpoints:
      - http://h1/
      - {url: "HTTPS://H2:443/base/", id: x, zone: z, region: r, revision: r8, slots: 3, weight: 2}
      - url: http://[::1]:99
    routing: zone_preference
    routing_options: {zone: z, inner: {name: prefix_affinity}}
    queue: {wait_interactive_s: 40s}
    deadlines: {request_s: 20m}
    breaker: {cooldown_s: 2s}
    limit: {enabled: false}
    failover: {home_region: r}
    slo_first_token: 800ms
    context_tokens: 8192
    lacks: [tools, images]
retry: {attempts: 3}
hedge: {enabled: true}
fleet: {health: {canary_s: 2s, canary_suspect_s: 1s}, no_success_s: 20s}
""",
    )
    first, second, third = file.replicas()
    assert first.replica == Replica("org/m:8b-1", "org/m:8b", revision="r7")
    assert (first.served_as, first.api_key_env) == ("theirs", "ENGINE_TOKEN")
    assert second.replica == Replica("x", "org/m:8b", "r8", "z", "r", 3, 2.0)
    assert [d.url for d in (first, second, third)] == [
        "http://h1",
        "https://h2/base",
        "http://[::1]:99",
    ]
    flow = file.flow_config()
    lane = flow.lanes["org/m:8b"]
    assert lane.routing_options == {"zone": "z", "inner": {"name": "prefix_affinity"}}
    assert (lane.queue.wait_interactive_s, lane.breaker.cooldown_s) == (40.0, 2.0)
    assert (lane.limit.enabled, lane.failover.home_region) == (False, "r")
    assert lane.slo_first_token_s == 0.8
    assert (lane.context_tokens, lane.lacks) == (8192, {"tools", "images"})
    assert (flow.retry.attempts, flow.hedge.enabled) == (3, True)
    assert file.fleet_config().health.canary_s == 2.0
    assert file.fleet_config().no_success_s == 20.0


def test_everything_said_of_the_gateway_is_there(tmp_path):
    text = """\
gateway:
  listen: "[::1]:80"
  workers: 64
  http: {header_s: 2s}
  budget: {tenant_share: 0.25, bytes_max: 1000000000}
  limits: {n_max: 2}
  stream: {sign_of_life_s: 5s}
  upstream: {connect_s: 250ms}
  draining: {grace_s: 0, deadline_s: 5s}
  tls: {certificate: c.pem, key: k.pem}
  cors_origins: ["*", https://x.org]
"""
    gateway = read(tmp_path, text + MODELS).gateway
    assert gateway.address == Address("::1", 80)
    assert (gateway.http.header_s, gateway.limits.n_max) == (2.0, 2)
    assert (gateway.stream.sign_of_life_s, gateway.upstream.connect_s) == (5.0, 0.25)
    assert gateway.draining.deadline_s == 5.0
    assert (gateway.budget.tenant_share, gateway.budget.bytes_max) == (0.25, 10**9)
    assert gateway.tls is not None
    assert gateway.tls.certificate == Path("c.pem")
    assert gateway.cors_origins == ["*", "https://x.org"]


def test_tenants_become_quotas_and_weights(tmp_path):
    text = f"""\
gateway: {{listen: "0.0.0.0:8000"}}
tenants:
  - {{name: a, keys: ["{ONE}"], quota: {{requests_per_minute: 60}}, weight: 3}}
  - {{name: b, keys: ["{TWO.upper().replace("SHA", "sha")}"], priority: batch, models: [auto]}}
virtual_models:
  - {{name: auto, rules: [{{when: {{tenant: [b]}}, use: small}}], default: chat}}
  - {{name: chat, ladder: [big, small]}}
"""
    file = read(tmp_path, text + MODELS)
    flow = file.flow_config()
    assert flow.quotas == {"a": QuotaConfig(requests_per_minute=60)}
    assert flow.tenant_weights == {"a": 3.0, "b": 1.0}
    assert flow.degrade == (DegradeConfig(ladder=("big", "small")),)
    assert [tenant.urgency for tenant in file.tenants] == [Priority.INTERACTIVE, Priority.BATCH]
    assert [key.hash for key in file.tenants[1].keys] == [TWO]
    assert ONE not in repr(file)


def test_the_widest_limit_is_that_of_requests_without_one(tmp_path):
    text = MODELS.replace("ollama,", "ollama, deadlines: {request_s: 1h},")
    assert read(tmp_path, text).flow_config().lane.deadlines.request_s == 3600.0


def test_a_flow_can_be_built_from_it(tmp_path):
    flow = Flow(load(EXAMPLE, FleetFile).flow_config(), Random)
    assert set(flow.lanes) == {"large", "small"}  # also those that have no replica yet


# --- to gateways and editors ----------------------------------------------------------------------


def test_a_file_comes_out_of_a_trip_as_it_went_in(tmp_path):
    for file in (read(tmp_path, MINIMAL), load(EXAMPLE, FleetFile)):
        again = FleetFile.from_json(file.to_json())
        assert again == file
        assert again.to_json() == file.to_json()
        assert again.replicas() == file.replicas()
        assert again.flow_config() == file.flow_config()


def test_a_trip_does_not_excuse_what_a_file_may_not_say(tmp_path):
    data = json.loads(read(tmp_path, MINIMAL).to_json())
    data["gateway"]["listen"] = "0.0.0.0:8000"
    with pytest.raises(ValidationError, match="without tenants"):
        FleetFile.from_json(json.dumps(data).encode())


def test_there_is_a_schema_for_editors():
    schema = json_schema(FleetFile)
    json.dumps(schema)
    assert "required" not in schema
    model = schema["$defs"]["ModelSection"]["properties"]
    assert model["engine"]["enum"] == list(ENGINES)
    assert {"type": "string"} in model["endpoints"]["items"]["anyOf"]
    assert "json" in schema["$defs"]["WhenSection"]["properties"]
    assert (
        "sha256"
        in schema["$defs"]["TenantSection"]["properties"]["keys"]["items"]["anyOf"][0]["pattern"]
    )


def test_the_example_shows_most_of_it():
    file = load(EXAMPLE, FleetFile)
    assert file.tenants
    assert file.virtual_models
    assert [d.replica.id for d in file.replicas()][:3] == ["large-east", "large-2", "large-west"]
    assert set(json.loads(file.to_json())) == set(FleetFile.model_fields)
