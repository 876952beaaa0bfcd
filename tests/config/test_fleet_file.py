"""The fleet file: what it gives to others, and what it refuses, with line, field and fix."""

import json
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from pydantic import ValidationError

from holdfast.config.document import ConfigFileError
from holdfast.config.files import json_schema, load
from holdfast.config.fleet_file import ENGINES, Address, FleetFile, parse_listen
from holdfast.config.tenants import TenantSection, hash_key, new_key
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.degrade import DegradeConfig
from holdfast.core.request.flow import Flow
from holdfast.core.request.lane import LaneConfig
from holdfast.core.types import ConfigError, Priority, Replica

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serving" / "fleet.yaml"
PLAIN = "hf-planted-secret"
ONE, TWO = hash_key("one"), hash_key("two")

MINIMAL = """\
gateway: {listen: 127.0.0.1:8000, workers: 1}
admin: {listen: 127.0.0.1:8001}
models:
  - name: m
    engine: vllm            # or openai, sglang, tgi, triton, llamacpp, ollama, trtllm
    endpoints: [http://127.0.0.1:9501, http://127.0.0.1:9502]
"""
MODELS = """\
models:
  - {name: big, engine: vllm, endpoints: [http://a:1]}
  - {name: small, engine: ollama, endpoints: [http://a:1]}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str) -> FleetFile:
    return load(written(folder, text), FleetFile)


def refused(folder: Path, text: str) -> str:
    path = written(folder, text)
    with pytest.raises(ConfigFileError) as caught:
        load(path, FleetFile)
    assert PLAIN not in str(caught.value.__cause__)
    return str(caught.value).replace(f"{folder}/", "")


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


# --- what is refused ------------------------------------------------------------------------------


def model(**changes: str) -> str:
    """A file of one model, one key a line; models[0] begins on line 2."""
    keys = {"name": "m", "engine": "vllm", "endpoints": "[http://a:1]", **changes}
    lines = [f"    {key}: {value}" for key, value in keys.items()]
    return "models:\n" + "\n".join(lines).replace("   ", "  -", 1) + "\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("admin: {}\n", "fleet.yaml:1: models: is missing; add at least one model"),
        ("models: []\n", "fleet.yaml:1: models: has 0 items; use at least 1"),
        (
            model(engine="vlm"),
            (
                "fleet.yaml:3: models[0].engine: must be one of 'openai', 'vllm', 'sglang', 'tgi', "
                "'triton', 'llamacpp', 'ollama' or 'trtllm' (is 'vlm'); did you mean 'vllm'?"
            ),
        ),
        (model(name="a b"), "fleet.yaml:2: models[0].name: does not fit (is 'a b'); use text"),
        (
            model(endpoints="[]"),
            (
                "fleet.yaml:4: models[0].endpoints: is empty; list the URLs of its replicas, or "
                "say under 'launch' how to start them"
            ),
        ),
        (
            "models:\n  - {name: m, engine: vllm}\n",
            "fleet.yaml:2: models[0].endpoints: is missing; list the URLs of its replicas, or say",
        ),
        (
            model(endpoints="[5]"),
            (
                "fleet.yaml:4: models[0].endpoints[0]: endpoint is neither a URL nor a mapping; "
                "write http://host:port or https://host:port, or 'url: …'"
            ),
        ),
        (
            model(endpoints="[127.0.0.1:9501]"),
            (
                "fleet.yaml:4: models[0].endpoints[0].url: address is '127.0.0.1:9501'; "
                "write http://host:port or https://host:port"
            ),
        ),
        (
            model(endpoints="[http://a:1, {urll: http://a:2}]"),
            (
                "fleet.yaml:4: models[0].endpoints[1].url: is missing; add a URL, such as "
                "http://127.0.0.1:9501\n"
                "fleet.yaml:4: models[0].endpoints[1].urll: is not a known key; did you mean 'url'?"
            ),
        ),
        (
            model(endpoints="[http://a:1/v1]"),
            "fleet.yaml:4: models[0].endpoints[0].url: address ends in /v1; leave it out",
        ),
        (
            model(endpoints=f"['http://user:{PLAIN}@a:1']"),
            "fleet.yaml:4: models[0].endpoints[0].url: address holds credentials; remove them",
        ),
        (
            model(endpoints=f"['user:{PLAIN}@a:1']"),
            "fleet.yaml:4: models[0].endpoints[0].url: address holds credentials; remove them",
        ),
        (
            model(endpoints="['http://a:1/?x=1']"),
            "fleet.yaml:4: models[0].endpoints[0].url: address has a query or fragment; remove",
        ),
        (
            model(endpoints="[http://a:1/x%20y]"),
            "fleet.yaml:4: models[0].endpoints[0].url: address has the path '/x%20y'; use letters",
        ),
        (
            model(endpoints="[http://a:0]"),
            "fleet.yaml:4: models[0].endpoints[0].url: address has the port 0; name the engine's",
        ),
        (
            model(endpoints="[{url: http://a:1, weight: 0}]"),
            "fleet.yaml:4: models[0].endpoints[0].weight: must be greater than 0 (is 0); use",
        ),
        (
            model(endpoints="[http://a:1, http://A:1/]"),
            (
                "fleet.yaml:4: models[0].endpoints[1].url: is that of endpoints[0] too; "
                "list each replica of a model once"
            ),
        ),
        (
            model(api_key_env=f"{PLAIN}"),
            (
                "fleet.yaml:5: models[0].api_key_env: variable is not a name (tokens are never "
                "written down); write the name, in capitals, of the environment variable"
            ),
        ),
        (
            model(routing="magic"),
            "fleet.yaml:5: models[0].routing: is 'magic'; use one of power_of_two, round_robin",
        ),
        (
            model(routing_options="{chioces: 3}"),
            "fleet.yaml:5: models[0].routing_options: power_of_two.chioces is no setting of this",
        ),
        (
            model(routing_options="{rng: 3}"),
            "fleet.yaml:5: models[0].routing_options: cannot be used; use settings of power_of_two",
        ),
        (
            model(breaker="{window: 0}"),
            "fleet.yaml:5: models[0].breaker.window: is 0; ",
        ),
        (
            model(slo_first_token="0"),
            "fleet.yaml:5: models[0].slo_first_token: must be greater than 0 (is 0); use seconds",
        ),
    ],
)
def test_a_bad_model_is_refused_where_it_stands(tmp_path, text, told):
    said = refused(tmp_path, text)
    assert said.startswith(told)
    assert PLAIN not in said


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://a b",
        "http://[::1",
        "http://a:x",
        "ftp://a",
        "http://é",
        "http://1.2.3.400",
        "http://-a",
        "//a",
        "a",
    ],
)
def test_what_is_no_url_is_refused(tmp_path, url):
    said = refused(tmp_path, model(endpoints=f"['{url}']"))
    assert said.startswith("fleet.yaml:4: models[0].endpoints[0].url: address is ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "gateway:\n  listen: 8000\n",
            "fleet.yaml:2: gateway.listen: must be text (is 8000); use host:port, in quotes",
        ),
        (
            "gateway:\n  listen: localhost\n",
            "fleet.yaml:2: gateway.listen: address is 'localhost'; write host:port, such as",
        ),
        (
            "gateway:\n  listen: ':8000'\n",
            "fleet.yaml:2: gateway.listen: address has no host; write 0.0.0.0",
        ),
        (
            "gateway:\n  listen: localhost:80000\n",
            "fleet.yaml:2: gateway.listen: address has the port 80000; use a port up to 65535",
        ),
        (
            "gateway:\n  listen: 127.0.0.256:1\n",
            "fleet.yaml:2: gateway.listen: address has the host '127.0.0.256'; write host:port",
        ),
        (
            "gateway:\n  listen: 0.0.0.0:8000\n",
            (
                "fleet.yaml:2: gateway.listen: is 0.0.0.0:8000: without tenants anybody could "
                "use it; listen on 127.0.0.1, or give every caller a key under 'tenants'"
            ),
        ),
        (
            "admin:\n  listen: '[::]:8001'\n",
            (
                "fleet.yaml:2: admin.listen: is [::]:8001: without a token anybody could use it; "
                "listen on 127.0.0.1, or set admin.token (run 'holdfast keys hash')"
            ),
        ),
        (
            f"admin:\n  token: {PLAIN}\n",
            (
                "fleet.yaml:2: admin.token: key is not a hash (keys are never written down); "
                "run 'holdfast keys hash'"
            ),
        ),
        (
            "gateway:\n  listen: localhost:9\nadmin:\n  listen: LOCALHOST:9\n",
            "fleet.yaml:4: admin.listen: clashes: both ports are at localhost:9; use another port",
        ),
        (
            "gateway:\n  listen: 127.0.0.1:8001\n",
            "fleet.yaml:2: gateway.listen: clashes: both ports are at 127.0.0.1:8001; use another",
        ),
        ("gateway:\n  workers: 65\n", "fleet.yaml:2: gateway.workers: must be at most 64 (is 65)"),
        (
            "gateway:\n  tls: {certificate: a}\n",
            "fleet.yaml:2: gateway.tls.key: is missing; add the path of its private key",
        ),
        (
            "gateway:\n  cors_origins: [https://a/b]\n",
            "fleet.yaml:2: gateway.cors_origins[0]: does not fit (is 'https://a/b')",
        ),
        (
            "gateway:\n  http:\n    keepalive_s: 0\n",
            "fleet.yaml:3: gateway.http.keepalive_s: is 0.0; use more than 0",
        ),
        (
            "gateway:\n  http:\n    newcomers_max: -1\n",
            "fleet.yaml:3: gateway.http.newcomers_max: is -1; use 1 or more, or 0 for no bound",
        ),
        (
            "gateway:\n  budget:\n    tenant_share: 2\n",
            "fleet.yaml:3: gateway.budget.tenant_share: is 2.0; use a share above 0, up to 1",
        ),
        (
            "admin:\n  connections:\n    header_s: 0\n",
            "fleet.yaml:3: admin.connections.header_s: is 0.0; use more than 0",
        ),
        ("retry: {attempts: 0}\n", "fleet.yaml:1: retry.attempts: is 0; use 1 (no retry) to 100"),
        ("fleet:\n  ramp_s: 0\n", "fleet.yaml:2: fleet.ramp_s: is 0.0; use seconds above 0"),
        ("model: []\n", "fleet.yaml:1: model: is not a known key; did you mean 'models'?"),
    ],
)
def test_bad_ports_and_policies_are_refused_where_they_stand(tmp_path, text, told):
    said = refused(tmp_path, text + MODELS)
    assert said.startswith(told)
    assert PLAIN not in said


def test_names_and_ids_are_unique(tmp_path):
    said = refused(tmp_path, MODELS.replace("small", "big"))
    assert said.startswith("fleet.yaml:3: models[1].name: is 'big', as that of models[0]; give")
    text = MODELS.replace(
        "ollama, endpoints: [http://a:1]", "ollama, endpoints: [{url: http://b, id: big-1}]"
    )
    told = "fleet.yaml:3: models[1].endpoints[0].id: is 'big-1', as that of models[0].endpoints[0]"
    assert refused(tmp_path, text).startswith(f"{told}; give each replica its own id")


def test_one_server_may_hold_several_models(tmp_path):
    assert len({deployed.url for deployed in read(tmp_path, MODELS).replicas()}) == 1


TENANT = f"tenants:\n  - name: t\n    keys:\n      - {ONE}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            TENANT.replace(ONE, PLAIN),
            (
                "fleet.yaml:4: tenants[0].keys[0]: key is not a hash (keys are never written "
                "down); run 'holdfast keys hash'"
            ),
        ),
        (TENANT.replace(ONE, "12345"), "fleet.yaml:4: tenants[0].keys[0]: key is not a hash"),
        (
            TENANT.replace(ONE, f"sha256:{sha256(b'').hexdigest()}"),
            "fleet.yaml:4: tenants[0].keys[0]: key is the hash of an empty key; run 'holdfast",
        ),
        (TENANT.replace(ONE, ONE[:-1]), "fleet.yaml:4: tenants[0].keys[0]: key is not a hash"),
        (
            f"tenants:\n  - name: t\n    keys: {PLAIN}\n",
            "fleet.yaml:3: tenants[0].keys: keys is not a list; use lines of '- sha256:…'",
        ),
        (
            "tenants:\n  - name: t\n    keys: []\n",
            "fleet.yaml:3: tenants[0].keys: has 0 items; use at least 1",
        ),
        (
            f"tenants:\n  - name: t\n    key: {PLAIN}\n",
            (
                "fleet.yaml:2: tenants[0].keys: is missing; add hashes of its API keys\n"
                "fleet.yaml:3: tenants[0].key: is not a known key; did you mean 'keys'?"
            ),
        ),
        (
            f"{TENANT}      - {ONE}\n",
            "fleet.yaml:5: tenants[0].keys[1]: is the same as tenants[0].keys[0]; give each key",
        ),
        (
            f"{TENANT}  - name: u\n    keys: ['{ONE}']\n",
            "fleet.yaml:6: tenants[1].keys[0]: is the same as tenants[0].keys[0]; give each key",
        ),
        (
            f"{TENANT}  - name: t\n    keys: ['{TWO}']\n",
            "fleet.yaml:5: tenants[1].name: is 't', as that of tenants[0]; list the keys",
        ),
        (
            f"{TENANT}    models: [big, huge]\n",
            (
                "fleet.yaml:5: tenants[0].models[1]: is 'huge', which is in no part of this file; "
                "use one of big, small"
            ),
        ),
        (
            f"{TENANT}    regions: [mars]\n",
            (
                "fleet.yaml:5: tenants[0].regions[0]: is 'mars', which is in no part of this file; "
                "use one of region-a"
            ),
        ),
        (
            f"{TENANT}    quota: {{requests_per_minute: -1}}\n",
            "fleet.yaml:5: tenants[0].quota.requests_per_minute: is -1.0; use a positive number",
        ),
        (
            f"{TENANT}    priority: urgent\n",
            "fleet.yaml:5: tenants[0].priority: must be one of 'interactive' or 'batch'",
        ),
        (
            f"{TENANT}    weight: 0\n",
            "fleet.yaml:5: tenants[0].weight: must be at least 0.001 (is 0); use a share",
        ),
    ],
)
def test_a_bad_tenant_is_refused_where_it_stands(tmp_path, text, told):
    said = refused(tmp_path, text + MODELS)
    assert said.startswith(told)
    assert PLAIN not in said


def virtual(*lines: str) -> str:
    """One virtual model; its second key stands on line 3."""
    return "virtual_models:\n  - name: auto\n" + "".join(f"    {line}\n" for line in lines)


RULES = ("default: big", "rules:")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            virtual("ladder: [big, small]").replace("auto", "big"),
            "fleet.yaml:2: virtual_models[0].name: is 'big', which is a model of this file; use",
        ),
        (
            virtual("ladder: [big, small]", "") + "  - {name: auto, default: big}\n",
            "fleet.yaml:5: virtual_models[1].name: is 'auto', which is a virtual model of this",
        ),
        (
            virtual(),
            "fleet.yaml:2: virtual_models[0]: virtual leads to no model; use one of: ladder",
        ),
        (
            virtual("ladder: [big, small]", "default: big"),
            "fleet.yaml:3: virtual_models[0].ladder: is one way too many; use one of",
        ),
        (
            virtual("ladder: [big, small]", "degrade: {ladder: [big, small]}"),
            "fleet.yaml:4: virtual_models[0].degrade: is one way too many; use one of",
        ),
        (
            virtual("ladder: [big]"),
            "fleet.yaml:3: virtual_models[0].ladder: is 'big'; name at least two models",
        ),
        (
            virtual("ladder: [big, tiny]"),
            (
                "fleet.yaml:3: virtual_models[0].ladder[1]: is 'tiny', which is no model of this "
                "file; use one of big, small"
            ),
        ),
        (
            virtual("degrade:", "  ladder: [big, small]", "  step_s: 0"),
            "fleet.yaml:5: virtual_models[0].degrade.step_s: is 0.0; use finite seconds above 0",
        ),
        (
            virtual("degrade: {ladder: [big, small]}", "")
            + "  - {name: two, ladder: [big, small]}\n",
            "fleet.yaml:5: virtual_models[1].ladder: begins at 'big', as that of 'auto'; begin",
        ),
        (virtual("default: tiny"), "fleet.yaml:3: virtual_models[0].default: is 'tiny', which is"),
        (virtual("default: auto"), "fleet.yaml:3: virtual_models[0].default: is 'auto', which is"),
        (
            virtual("rules:", "  - {when: {tools: true}, use: big}"),
            "fleet.yaml:2: virtual_models[0].default: is missing; name the model for requests",
        ),
        (
            virtual(*RULES, "  - {use: small}"),
            "fleet.yaml:3: virtual_models[0].default: can never be used; remove it, or give",
        ),
        (
            virtual("rules:", "  - {use: small}", "  - {use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[1]: can never match; give the rule before it",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}}"),
            "fleet.yaml:5: virtual_models[0].rules[0].use: is missing; name a model, or a hook",
        ),
        (
            virtual(*RULES, "  - when: {tools: true}", "    use: tiny"),
            "fleet.yaml:6: virtual_models[0].rules[0].use: is 'tiny', which is no model",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: small, check: [json]}"),
            "fleet.yaml:5: virtual_models[0].rules[0].escalate: is missing; name the model to ask",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: small, escalate: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].check: is missing; say in 'check' when",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: big, check: [json], escalate: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].escalate: is 'big', which has just failed",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: big, check: [json], escalate: auto}"),
            "fleet.yaml:5: virtual_models[0].rules[0].escalate: is 'auto', which is no model",
        ),
        (
            virtual(*RULES, "  - {when: {tools: true}, use: big, check: [spelling], escalate: s}"),
            "fleet.yaml:5: virtual_models[0].rules[0].check[0]: must be one of 'length', 'json'",
        ),
        (
            virtual(*RULES, "  - when: {tenant: [t]}", "    use: small"),
            (
                "fleet.yaml:5: virtual_models[0].rules[0].when.tenant[0]: is 't', which is no "
                "tenant of this file; use one of default"
            ),
        ),
        (
            virtual(*RULES, "  - {when: {prompt_tokens_min: 2, prompt_tokens_max: 1}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.prompt_tokens_max: is 1: nothing can",
        ),
        (
            virtual(*RULES, "  - {when: {header: {authorization: x}}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.header: reads 'authorization'; use",
        ),
        (
            virtual(*RULES, "  - {when: {header: {X-Tier: x}}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.header.X-Tier: does not fit",
        ),
        (
            virtual(*RULES, "  - {when: {hook: os.system}}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.hook: does not fit (is 'os.system')",
        ),
        (
            virtual(*RULES, "  - {when: {hook_headers: [x-a]}, use: big}"),
            "fleet.yaml:5: virtual_models[0].rules[0].when.hook_headers: is set without a hook",
        ),
        (
            virtual(*RULES, "  - {when: {jsn: true}, use: big}"),
            (
                "fleet.yaml:5: virtual_models[0].rules[0].when.jsn: is not a known key; did you "
                "mean 'json'?"
            ),
        ),
    ],
)
def test_a_bad_virtual_model_is_refused_where_it_stands(tmp_path, text, told):
    assert refused(tmp_path, text + MODELS).startswith(told)


# --- addresses and keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("gateway.example.org:1", False),
        ("localhost.example.org:1", False),
    ],
)
def test_loopback_is_known_for_what_it_is(text, loopback):
    assert parse_listen(text).loopback is loopback


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("0.0.0.0:8001", "127.0.0.1:8001"),
        ("[::]:8001", "[::1]:8001"),
        ("[::1]:8001", "[::1]:8001"),
        ("10.0.0.7:8001", "10.0.0.7:8001"),
        ("example.org:8001", "example.org:8001"),
    ],
)
def test_every_address_is_reached_at_one(text, reached):
    assert parse_listen(text).reached == reached


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "[::]:1", True),
        ("127.0.0.1:0", "127.0.0.1:0", False),  # any free port: there is one for each
    ],
)
def test_ports_clash_when_both_cannot_be_bound(one, other, clash):
    assert parse_listen(one).overlaps(parse_listen(other)) is clash


@pytest.mark.parametrize(
    "text", ["", ":", "a:", "::1:80", "[::1]", "[x]:1", "a b:1", "*:1", "a:-1"]
)
def test_what_is_no_place_to_listen_is_refused(text):
    with pytest.raises(ConfigError):
        parse_listen(text)


@pytest.mark.parametrize("key", ["a", "~", "zz", "changeme", "EMPTY"])
def test_the_hash_of_a_key_that_is_guessed_at_once_is_refused_by_name(tmp_path, key):
    text = TENANT.replace(ONE, hash_key(key))
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, text + MODELS)
    told = str(caught.value)
    assert "tenants[0].keys[0]" in told
    assert "guessed at once" in told
    assert "holdfast keys new" in told
    assert read(tmp_path, f"{text}    insecure: true\n{MODELS}").tenants[0].insecure


def test_a_key_has_an_id_an_end_and_a_file_of_its_own(tmp_path):
    secret = tmp_path / "key"
    secret.write_text("hf-kept-in-a-file-of-its-own\r\n")
    keys = f"[{{file: {secret}, id: ci, expires: 2027-01-31}}, '{ONE}']"
    file = read(tmp_path, f"tenants: [{{name: t, keys: {keys}}}]\n{MODELS}")
    ours, bare = file.tenants[0].keys
    assert (ours.hash, ours.name) == (hash_key("hf-kept-in-a-file-of-its-own"), "ci")
    assert (bare.name, bare.expires_at, ours.expires_at > 0) == (ONE[7:15], 0.0, True)
    assert file.secret_files == (secret,)
    travelled = FleetFile.from_json(file.to_json())
    secret.unlink()
    assert FleetFile.from_json(file.to_json()) == travelled == file  # read once, by control
    assert json.loads(file.to_json())["tenants"][0]["keys"][1] == ONE


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("{id: x}", "has neither hash nor file"),
        ("{file: key}", "is a relative path"),
        ("{file: /nowhere/at/all}", "cannot be read"),
        ("{file: /dev/zero}", "is larger than 4 KiB"),
        ("{file: /dev/null}", "does not hold one key"),
        (f"{{hash: '{ONE}', expires: soon}}", "write a day such as 2027-01-31"),
        (f"{{hash: '{ONE}', id: 'a b'}}", "id"),
        (f"{{hash: '{ONE}', what: 1}}", "what"),
        ("{hash: my-secret-key}", "is not a hash"),
    ],
)
def test_a_bad_key_is_refused_where_it_stands(tmp_path, key, told):
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, f"tenants:\n  - name: t\n    keys:\n      - {key}\n{MODELS}")
    assert "tenants[0].keys[0]" in str(caught.value)
    assert told in str(caught.value)
    assert "my-secret" not in str(caught.value)


def test_operators_beyond_this_machine_need_tls_or_a_word_that_says_who_has_it(tmp_path):
    admin = f"admin: {{listen: '0.0.0.0:8001', token: '{ONE}'"
    with pytest.raises(ConfigFileError) as caught:
        read(tmp_path, f"{admin}}}\n{MODELS}")
    assert "admin.listen: is 0.0.0.0:8001 without TLS" in str(caught.value)
    assert "admin.insecure: true" in str(caught.value)
    for more in ("insecure: true", "tls: {certificate: /c.pem, key: /c.key}"):
        assert read(tmp_path, f"{admin}, {more}}}\n{MODELS}").admin.token == ONE
    weak = f"admin: {{token: '{hash_key('x')}'}}\n{MODELS}"
    with pytest.raises(ConfigFileError, match="guessed at once"):
        read(tmp_path, weak)


def test_a_new_key_can_be_hashed_and_used():
    key = new_key()
    assert key.startswith("hf-")
    assert len(key) == 46
    assert key != new_key()
    hashed = hash_key(key)
    assert key not in hashed
    assert [key.hash for key in TenantSection(name="t", keys=[hashed]).keys] == [hashed]


def test_the_hash_is_plain_sha256():
    told = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hash_key("abc") == told


@pytest.mark.parametrize("key", ["", "a b", "a,b", "é", "a\n", "x" * 513])
def test_a_key_that_no_header_can_carry_has_no_hash(key):
    with pytest.raises(ValueError, match="visible ASCII") as caught:
        hash_key(key)
    assert not key or key not in str(caught.value)
