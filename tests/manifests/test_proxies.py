"""``holdfast render envoy`` and ``istio``: the fleet file's figures in the proxies' words."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.manifests.proxy_rules import IDLE_S_MAX, duration, rules_of

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = ROOT / "examples/serving"


def run(*arguments):
    return CliRunner().invoke(main, ["render", *map(str, arguments)])


def printed(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def written(tmp_path, **fleet):
    place = tmp_path / "fleet.yaml"
    place.write_text(yaml.safe_dump(fleet))
    return place


def one(**model):
    urls = ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"]
    return {"name": "m", "engine": "vllm", "endpoints": urls} | model


@pytest.mark.parametrize("proxy", ["envoy", "istio"])
def test_the_text_is_that_of_the_golden_file(proxy):
    arguments = [proxy, "-c", EXAMPLES / "fleet.yaml"]
    text = printed(*arguments, *(["--without-keys"] if proxy == "envoy" else []))
    golden = GOLDEN / f"{proxy}.yaml"
    told = f"if it is meant: holdfast render {proxy} -c examples/serving/fleet.yaml > {golden.name}"
    assert text == golden.read_text(), told


def test_envoys_cluster_has_the_figures_of_the_file(tmp_path):
    file = written(
        tmp_path,
        models=[
            one(
                breaker={"consecutive": 3, "failure_ratio": 0.25, "minimum": 20, "cooldown_s": 2.0},
                deadlines={"request_s": 120},
                queue={"depth_max": 70, "batch_depth_max": 7},
            )
        ],
        retry={"attempts": 3, "budget_ratio": 0.1, "budget_floor_per_s": 2.5},
        fleet={"ejection": {"share_max": 0.34}, "health": {"slow_start_s": 12.0}},
        gateway={"upstream": {"connect_s": 0.25, "idle_s": 2.0}},
    )
    document = yaml.safe_load(printed("envoy", "-c", file))
    (cluster,) = document["static_resources"]["clusters"]
    outliers = cluster["outlier_detection"]
    assert outliers["consecutive_5xx"] == outliers["consecutive_local_origin_failure"] == 3
    assert outliers["failure_percentage_threshold"] == 25
    assert outliers["failure_percentage_request_volume"] == 20
    assert outliers["base_ejection_time"] == "2s"
    assert outliers["max_ejection_percent"] == 34
    assert outliers["enforcing_success_rate"] == 0
    assert cluster["common_lb_config"] == {"healthy_panic_threshold": {"value": 66}}
    assert cluster["connect_timeout"] == "0.25s"
    assert cluster["least_request_lb_config"]["slow_start_config"]["slow_start_window"] == "12s"
    (threshold,) = cluster["circuit_breakers"]["thresholds"]
    budget = {"budget_percent": {"value": 10.0}, "min_retry_concurrency": 3}
    assert threshold["retry_budget"] == budget
    assert threshold["max_pending_requests"] == 70
    (listener,) = document["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert route["route"]["timeout"] == route["route"]["idle_timeout"] == "120s"
    assert manager["stream_idle_timeout"] == "120s"
    policy = route["route"]["retry_policy"]
    assert policy["num_retries"] == 2
    assert "per_try_timeout" not in policy, "it would cut answers, streams included"
    assert "per_try_idle_timeout" not in policy


def test_the_rules_are_the_defaults_of_the_core():
    file = load(EXAMPLES / "minimal.yaml", FleetFile)
    (rule, *_) = rules_of(file, {})
    assert rule.ejection is not None
    assert (rule.ejection.consecutive, rule.ejection.failure_percent) == (5, 40)
    assert rule.ejection.percent_max == 50
    assert (rule.retry.retries, rule.retry.budget_percent) == (1, 20.0)
    assert rule.retry.statuses == (429,)
    assert rule.timeouts.pooled_s == IDLE_S_MAX, "engines on uvicorn close idle ones after 5 s"


def test_a_silence_is_bounded_where_all_clients_stream(tmp_path):
    file = written(tmp_path, models=[one(deadlines={"first_token_s": 20.0})])
    text = printed("envoy", "-c", file, "--streams-only")
    assert "per_try_idle_timeout: 30s" in text  # between two tokens a pool may be silent longer
    assert "a silent replica holds" not in text
    assert "a silent replica holds" in printed("envoy", "-c", file)


def test_a_breaker_that_is_off_ejects_nobody(tmp_path):
    file = written(tmp_path, models=[one(breaker={"enabled": False})])
    assert "outlier_detection:\n        consecutive" not in printed("envoy", "-c", file)
    assert "outlierDetection" not in printed("istio", "-c", file)


def test_without_a_budget_nothing_is_rendered_for_one(tmp_path):
    file = written(tmp_path, models=[one()], retry={"budget": False})
    assert "retry_budget" not in printed("envoy", "-c", file)
    assert "retryBudget" not in printed("istio", "-c", file)


def test_a_secret_is_named_and_never_read(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_TOKEN", "s3cret")
    file = written(tmp_path, models=[one(api_key_env="ENGINE_TOKEN")])
    text = printed("envoy", "-c", file)
    assert "Bearer %ENVIRONMENT(ENGINE_TOKEN)%" in text
    assert "s3cret" not in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["envoy", "-c", EXAMPLES / "fleet.yaml"], "--without-keys"),
        (["envoy", "-c", EXAMPLES / "kubernetes.yaml"], "--service llama="),
        (["istio", "-c", EXAMPLES / "launch.yaml"], "models[0].launch"),
        (["istio", "-c", EXAMPLES / "minimal.yaml", "--service", "x=a:1"], "no model of the file"),
        (["istio", "-c", EXAMPLES / "launch.yaml", "--service", "smollm2=a"], "smollm2=NAME"),
        (["istio", "-c", EXAMPLES / "launch.yaml", "--service", "smollm2=a:0"], "smollm2=NAME"),
        (["istio", "-c", EXAMPLES / "launch.yaml", "--service", "smollm2"], "MODEL=HOST:PORT"),
        (["envoy", "-c", "missing.yaml"], "does not exist"),
        (["envoy", "-c", EXAMPLES / "minimal.yaml", "--listen", "x"], "host:port"),
        (["envoy", "-c", EXAMPLES / "minimal.yaml", "--admin", "127.0.0.1:8000"], "another port"),
        (["istio", "-c", EXAMPLES / "minimal.yaml", "--namespace", "A"], "namespace"),
    ],
)
def test_what_cannot_be_rendered_is_refused_with_the_fix(arguments, told):
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_replicas_of_one_model_need_one_scheme_and_path(tmp_path):
    urls = ["http://10.0.0.1:8000", "https://10.0.0.2:8000"]
    result = run("envoy", "-c", written(tmp_path, models=[one(endpoints=urls)]))
    assert result.exit_code == 2
    assert "models[0].endpoints" in result.output


def test_models_that_kubernetes_cannot_tell_apart_are_refused(tmp_path):
    other = one(name="M", endpoints=["http://10.0.0.9:8000"])
    result = run("istio", "-c", written(tmp_path, models=[one(), other]))
    assert result.exit_code == 2
    assert "models[1].name" in result.output


@pytest.mark.parametrize(
    ("seconds", "text"), [(600.0, "600s"), (0.05, "0.05s"), (1.0, "1s"), (0.0004, "0s")]
)
def test_times_are_written_as_proxies_read_them(seconds, text):
    assert duration(seconds) == text
