"""What ``holdfast render envoy`` promises, kept by a real Envoy in front of stand-in engines."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from proxy_stage import Engine, Envoy, fetch, rendered, stage, validate, wait_until

ROOT = Path(__file__).resolve().parents[2]
LONG = {"breaker": {"cooldown_s": 30.0}}  # ejected for the whole test


def answered(envoy, times):
    return [envoy.ask()[0] for _ in range(times)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fleet.yaml", ["--without-keys"]),
        ("fleet.yaml", ["--without-keys", "--streams-only"]),
        ("minimal.yaml", []),
        ("kubernetes.yaml", ["--service", "llama=llama.ml:8000", "--service", "embed=e.ml:8080"]),
        ("launch.yaml", ["--service", "smollm2=smollm2.ml.svc:8080"]),
    ],
)
def test_envoy_takes_what_is_rendered_from_every_example(tmp_path, name, arguments):
    text = rendered(ROOT / "examples/serving" / name, *arguments)
    assert validate(text, tmp_path, {"LARGE_ENGINE_TOKEN": "t"}) == (0, "")


def test_envoy_takes_tls_paths_and_unusual_figures(tmp_path):
    fleet = {
        "models": [
            {
                "name": "a.b/c",
                "engine": "openai",
                "endpoints": ["https://engines.example.org/base", "https://10.0.0.7/base"],
                "breaker": {"enabled": False},
                "deadlines": {"request_s": 3600},
            }
        ],
        "retry": {"attempts": 1, "budget_ratio": 0.0, "budget_floor_per_s": 0},
        "fleet": {"ejection": {"share_max": 0.29}},
    }
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleet))
    assert validate(rendered(file), tmp_path) == (0, "")


def test_a_configuration_that_is_wrong_would_be_found_out(tmp_path):
    text = rendered(ROOT / "examples/serving/minimal.yaml")
    code, told = validate(text.replace("max_ejection_percent", "most_ejections"), tmp_path)
    assert code != 0
    assert not told or "most_ejections" in told


def test_a_replica_that_fails_is_ejected_after_five_in_a_row_and_no_client_sees_it(tmp_path):
    with stage(tmp_path, model=LONG) as (envoy, engines):
        sick = engines[0]
        sick.ail("status", code=500, instant=True)
        statuses = []
        while not envoy.ejected():
            assert len(statuses) < 200, "it is never ejected"
            statuses.append(envoy.ask()[0])
        assert set(statuses) == {200}
        assert sick.asked() == 5
        assert envoy.stat("outlier_detection.ejections_enforced_consecutive_5xx") == 1
        assert set(answered(envoy, 40)) == {200}
        assert sick.asked() == 5, "an ejected replica is asked no more"


def test_a_replica_that_recovered_comes_back(tmp_path):
    with stage(tmp_path) as (envoy, engines):
        engines[0].ail("status", code=500, instant=True)
        wait_until(lambda: answered(envoy, 5) and envoy.ejected(), "it is ejected")
        engines[0].heal()
        wait_until(lambda: not envoy.ejected(), "it is taken back")
        before = engines[0].asked()
        wait_until(lambda: answered(envoy, 5) and engines[0].asked() > before, "it is asked again")


@pytest.mark.parametrize(
    "polite",
    [
        {"code": 503, "retry_after": True, "instant": True},
        {"code": 429, "instant": True},
    ],
)
def test_a_busy_replica_that_says_so_is_not_ejected_and_its_requests_go_elsewhere(tmp_path, polite):
    with stage(tmp_path, model=LONG) as (envoy, engines):
        engines[0].ail("status", **polite)
        assert set(answered(envoy, 60)) == {200}
        assert engines[0].asked() >= 8
        assert envoy.ejected() == 0


def test_a_clients_mistake_ejects_nobody_and_is_not_tried_again(tmp_path):
    with stage(tmp_path, model=LONG) as (envoy, engines):
        for engine in engines:
            engine.ail("status", code=400, instant=True)
        assert set(answered(envoy, 30)) == {400}
        assert sum(engine.asked() for engine in engines) == 30
        assert envoy.ejected() == 0


def test_never_more_than_half_of_a_pool_is_out(tmp_path):
    with stage(tmp_path, model=LONG) as (envoy, engines):
        for engine in engines[:2]:
            engine.ail("status", code=500, instant=True)
        wait_until(lambda: answered(envoy, 10) and envoy.ejected(), "one is ejected")
        wait_until(
            lambda: answered(envoy, 10) and envoy.stat("outlier_detection.ejections_overflow") >= 1,
            "the second is due",
        )
        assert envoy.ejected() == 1


def test_a_dead_replica_is_ejected_and_no_client_sees_it(tmp_path):
    with stage(tmp_path, model=LONG) as (envoy, engines):
        assert set(answered(envoy, 10)) == {200}
        engines[0].kill()
        statuses = []
        while not envoy.ejected():
            assert len(statuses) < 200, "it is never ejected"
            statuses.append(envoy.ask()[0])
        assert set(statuses) == {200}
        name = "outlier_detection.ejections_enforced_consecutive_local_origin_failure"
        assert envoy.stat(name) == 1


def test_a_replica_that_fails_now_and_then_is_ejected_for_the_share_of_it(tmp_path):
    seldom = {"breaker": {"cooldown_s": 30.0, "consecutive": 1000}}
    with stage(tmp_path, model=seldom) as (envoy, engines):
        engines[0].ail("flaky", probability=0.8)
        # An error that a matcher finds counts among those of the connection, where they are split.
        name = "outlier_detection.ejections_enforced_local_origin_failure_percentage"
        wait_until(lambda: answered(envoy, 30) and envoy.stat(name), "its share ejects it")
        assert envoy.stat("outlier_detection.ejections_enforced_consecutive_5xx") == 0


def test_a_healthy_pool_is_left_alone(tmp_path):
    with stage(tmp_path) as (envoy, engines):
        assert set(answered(envoy, 60)) == {200}
        assert all(engine.asked() for engine in engines)
        assert envoy.stat("outlier_detection.ejections_total") == 0
        assert envoy.stat("upstream_rq_retry") == 0


def test_retries_end_where_their_budget_ends(tmp_path):
    retry = {"budget_ratio": 0.1, "budget_floor_per_s": 1.0}
    off = {"breaker": {"enabled": False}}
    with stage(tmp_path, model=off, retry=retry) as (envoy, engines):
        for engine in engines:
            engine.ail("status", code=500, instant=True)
        gate = threading.Barrier(30)

        def ask():
            gate.wait()
            envoy.ask()

        askers = [threading.Thread(target=ask) for _ in range(30)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert envoy.stat("upstream_rq_retry_overflow") > 0
        assert envoy.stat("upstream_rq_retry") < 30


def test_a_request_ends_at_its_deadline(tmp_path):
    short = {"deadlines": {"request_s": 1.0, "first_token_s": 1.0, "between_tokens_s": 1.0}}
    short["deadlines"]["answer_floor_s"] = 1.0
    with stage(tmp_path, engines=1, model=short) as (envoy, engines):
        engines[0].ail("hang")
        assert envoy.ask()[0] == 504


def test_where_all_stream_a_silent_replica_is_left_for_another(tmp_path):
    short = {"deadlines": {"first_token_s": 1.0, "between_tokens_s": 1.0}} | LONG
    with stage(tmp_path, "--streams-only", model=short) as (envoy, engines):
        engines[0].ail("hang")
        statuses = [envoy.ask(stream=True)[0] for _ in range(6)]
        assert set(statuses) == {200}
        wait_until(lambda: envoy.ask(stream=True) and engines[0].asked(), "the silent one is asked")
        assert envoy.stat("upstream_rq_per_try_idle_timeout") >= 1


def test_requests_go_to_the_model_that_their_body_names(tmp_path):
    first, second = Engine("one"), Engine("two")
    models = [
        {"name": name, "engine": "vllm", "endpoints": [f"http://127.0.0.1:{engine.port}"]}
        for name, engine in (("one", first), ("two", second))
    ]
    envoy = Envoy(tmp_path, {"models": models})
    try:
        assert [envoy.ask(model)[0] for model in ("one", "two", "two", "three")] == [
            *(200, 200, 200),
            404,
        ]
        assert (first.asked(), second.asked()) == (1, 2)
        assert fetch(envoy.port, "GET", "/v1/models")[0] == 404
    finally:
        envoy.end()
        first.end()
        second.end()


class _Echo(BaseHTTPRequestHandler):
    """Answers with the authorization that it was sent."""

    def do_POST(self):
        self.send_response(200)
        self.send_header("content-length", str(len(self.headers["authorization"])))
        self.end_headers()
        self.wfile.write(self.headers["authorization"].encode())

    def log_message(self, *_):
        pass


def test_the_engines_token_comes_from_the_environment(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    model = {"name": "m", "engine": "vllm", "endpoints": [url], "api_key_env": "ENGINE_TOKEN"}
    envoy = Envoy(tmp_path, {"models": [model]}, environment={"ENGINE_TOKEN": "t0k"})
    try:
        assert envoy.ask() == (200, b"Bearer t0k")
        assert "t0k" not in (tmp_path / "envoy.yaml").read_text()
    finally:
        envoy.end()
        server.shutdown()
        server.server_close()
