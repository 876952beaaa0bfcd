"""The fleet file: what it refuses of models, ports and policies, with line, field and fix."""

import pytest
from fleet_file_stage import MODELS, PLAIN, read, refused


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
