"""``holdfast render kubernetes``: workloads that keep what the fleet file promises."""

import copy
from math import ceil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.discovered_replica import discovered
from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.view.layers import Reading
from holdfast.planner.memory_plan import MEMORY
from holdfast.sources.kubernetes.pods import read_pod

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden/kubernetes.yaml"
FLEET = ROOT / "examples/serving/kubernetes.yaml"
WORKLOADS = ROOT / "examples/kubernetes/workloads.yaml"
BASE = ROOT / "deploy/kubernetes/base"
DIGEST = "sha256:" + "ab" * 32


def run(workloads, fleet=FLEET):
    arguments = ["render", "kubernetes", "-c", str(fleet), "-w", str(workloads)]
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def written(tmp_path):
    """Writes a workloads file whose first workload differs from that of the example."""

    def write(*, top=None, launch=None, **first):
        data = yaml.safe_load(WORKLOADS.read_text()) | (top or {})
        workload = data["workloads"][0]
        workload["launch"] |= launch or {}
        workload |= first
        for place in (workload, workload["launch"]):
            for name in [name for name, value in place.items() if value is ...]:
                del place[name]
        file = tmp_path / "workloads.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    return write


def printed(workloads=WORKLOADS, fleet=FLEET):
    result = run(workloads, fleet)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def template_of(documents, name="llama"):
    return next(
        one["spec"]["template"]
        for one in documents
        if one["metadata"]["name"] == name and one["kind"] in {"Deployment", "StatefulSet"}
    )


def test_the_text_is_that_of_the_golden_file():
    assert run(WORKLOADS).stdout == GOLDEN.read_text()


def test_liveness_is_the_engines_own_and_no_verdict_has_a_part_in_it():
    spec = template_of(printed())["spec"]
    (engine,), (agent,) = spec["containers"], spec["initContainers"]
    page = {"path": "/health", "port": "engine"}
    assert engine["startupProbe"]["httpGet"] == engine["livenessProbe"]["httpGet"] == page
    assert "readinessProbe" not in engine, "its own page is 200 while it hangs"
    assert "livenessProbe" not in agent
    assert agent["restartPolicy"] == "Always"
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8099}
    startup = engine["startupProbe"]
    patience_s = startup["periodSeconds"] * startup["failureThreshold"]
    assert patience_s >= HealthConfig().load_timeout_s


def engine_of(documents, name="llama"):
    return template_of(documents, name)["spec"]["containers"][0]


@pytest.mark.parametrize("name", ["llama", "embed"])
def test_an_engine_runs_without_root_and_without_rights(name):
    documents = printed()
    engine = engine_of(documents, name)
    assert engine["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 2000,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    # Images that know no such user: libraries ask for its name, and write below its home.
    told = {one["name"]: one.get("value") for one in engine["env"]}
    assert (told["HOME"], told["USER"]) == ("/home/engine", "engine")
    assert {"name": "home", "mountPath": "/home/engine"} in engine["volumeMounts"]
    assert {"name": "home", "emptyDir": {}} in template_of(documents, name)["spec"]["volumes"]


@pytest.mark.parametrize(
    ("said", "context", "level"),
    [
        ({"run_as": 1000}, {"runAsNonRoot": True, "runAsUser": 1000}, ""),
        ({"run_as": 0}, {"runAsNonRoot": False, "runAsUser": 0}, "baseline"),
        ({"run_as": None}, None, "baseline"),
        (
            {"capabilities": ["CHOWN"]},
            {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}},
            "base",
        ),
        (
            {"run_as": 0, "capabilities": ["IPC_LOCK"]},
            {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}},
            "privileged",
        ),
    ],
)
def test_an_engine_that_needs_more_says_so_and_what_its_namespace_must_allow(
    written, said, context, level
):
    result = run(written(**said))
    documents = list(yaml.safe_load_all(result.stdout))
    engine = engine_of(documents)
    if context is None:
        assert "securityContext" not in engine
    else:
        assert engine["securityContext"].items() >= context.items()
        assert engine["securityContext"]["allowPrivilegeEscalation"] is False
    assert ("pod-security.kubernetes.io/enforce" in result.stderr) is bool(level)
    assert level in result.stderr
    homes = [one for one in engine.get("volumeMounts", ()) if one["name"] == "home"]
    assert bool(homes) is bool(said.get("run_as", 2000))


def test_a_home_of_the_files_own_is_kept(written):
    engine = engine_of(printed(written(launch={"environment": {"HOME": "/data"}})))
    assert [one["value"] for one in engine["env"] if one["name"] == "HOME"] == ["/data"]


def test_each_namespace_of_the_base_enforces_what_its_pods_keep():
    found = {
        one["metadata"]["name"]: one["metadata"].get("labels", {})
        for one in yaml.safe_load_all((BASE / "namespace.yaml").read_text())
    }
    label = "pod-security.kubernetes.io/enforce"
    assert {name: labels.get(label) for name, labels in found.items()} == {
        "holdfast": "restricted",
        "inference": "restricted",
    }


def test_grace_exceeds_the_drain_and_the_pod_waits_for_it(tmp_path):
    file = yaml.safe_load(FLEET.read_text()) | {"fleet": {"drain": {"deadline_s": 100.0}}}
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(yaml.safe_dump(file))
    for place, deadline_s in ((FLEET, DrainConfig().deadline_s), (fleet, 100.0)):
        spec = template_of(printed(fleet=place))["spec"]
        waits = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert waits > deadline_s + DrainConfig().move_s
        assert spec["terminationGracePeriodSeconds"] > waits


def test_the_budget_is_that_of_the_spares(written):
    for spares in (0, 1, 3):
        documents = printed(written(spares=spares))
        budget = next(one for one in documents if one["kind"] == "PodDisruptionBudget")
        assert budget["spec"]["maxUnavailable"] == spares
        deployment = documents[1]["spec"]
        rolling = deployment["strategy"]["rollingUpdate"]
        assert rolling == (
            {"maxUnavailable": 1, "maxSurge": 0} if spares else {"maxUnavailable": 0, "maxSurge": 1}
        )
        assert budget["spec"]["selector"] == deployment["selector"]


def test_memory_is_what_the_planner_says():
    engine = template_of(printed())["spec"]["containers"][0]
    asked = {"model": "llama-3.1-8b", "device": "h100-80gb", "context": 8192, "concurrency": 32}
    figures = MEMORY.ask(asked).figures
    mib = ceil(figures["host_reservation_bytes"] / 2**20)
    assert engine["resources"]["requests"]["memory"] == f"{mib}Mi"
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == figures["devices"] == 1


def test_declared_memory_outranks_a_plan_and_unknown_memory_is_said():
    engine = template_of(printed(), "embed")["spec"]["containers"][0]
    assert engine["resources"]["requests"]["memory"] == "4096Mi"
    assert engine["resources"]["limits"]["memory"] == "6144Mi"


def test_unknown_memory_is_told_and_not_guessed(written):
    result = run(written(device=..., planned_as=...))
    assert result.exit_code == 0
    assert "memory is not known" in result.stderr
    engine = template_of(list(yaml.safe_load_all(result.stdout)))["spec"]["containers"][0]
    assert "memory" not in engine["resources"]["requests"]


def test_secrets_are_named_and_never_written(written, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    result = run(WORKLOADS)
    assert "s3cret" not in result.stdout
    variables = template_of(list(yaml.safe_load_all(result.stdout)))["spec"]["containers"][0]["env"]
    where = {"secretKeyRef": {"name": "llama-env", "key": "HF_TOKEN"}}
    assert {"name": "HF_TOKEN", "valueFrom": where} in variables


def test_the_pods_are_replicas_by_the_fleet_file_and_not_drained_for_our_own_verdict():
    template = copy.deepcopy(template_of(printed()))
    template["metadata"] |= {"name": "llama-1", "namespace": "inference", "uid": "u"}
    status = {"phase": "Running", "podIP": "10.0.0.9"}
    status["conditions"] = [{"type": "Ready", "status": "False"}]
    pod = read_pod({**template, "status": status}, "app.kubernetes.io/name", None)
    assert pod.placed.model == "llama"
    reading = Reading("pods", "kubernetes", 1.0, placed=(pod.placed,))
    (found,) = discovered(reading, load(FLEET, FleetFile).models)["llama"]
    assert found.url == "http://10.0.0.9:8000"
    assert (found.ready, found.was_ready) == (None, False)


def test_several_hosts_of_one_replica_are_one_group(written):
    launch = {"command": ["serve", "{port}"], "gpus": 16, "tensor_parallel": 8}
    file = written(
        kind="leaderworkerset",
        hosts=2,
        worker_command=["join"],
        device=...,
        planned_as=...,
        launch=launch | {"pipeline_parallel": 2},
    )
    group = printed(file)[1]
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    assert leader["spec"]["containers"][0]["command"] == ["serve", "8000"]
    assert worker["spec"]["containers"][0]["command"] == ["join"]
    assert worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "app.kubernetes.io/name" not in worker["metadata"]["labels"], "it is no replica"
    assert "initContainers" not in worker["spec"]


@pytest.mark.parametrize(
    ("change", "field", "fix"),
    [
        ({"image": "vllm/vllm-openai:latest"}, "workloads[0].image", "allow_tags"),
        ({"image": "x y"}, "workloads[0].image", "@sha256"),
        ({"top": {"agent_image": "holdfast:1"}}, "agent_image", "allow_tags"),
        ({"model": "other"}, "workloads[0].model", "use one of llama"),
        ({"spares": 4}, "spares", "use fewer"),
        ({"hosts": 2}, "hosts", "leaderworkerset"),
        ({"kind": "leaderworkerset", "hosts": 2}, "worker_command", "launch.command"),
        ({"port": 9000}, "workloads[0].port", "one number"),
        ({"labels": {"app": "else"}}, "workloads[0].labels", "add the labels"),
        ({"planned_as": ...}, "planned_as", "give both"),
        ({"planned_as": "llama-3.1-405b"}, "workloads[0].launch", "tensor_parallel"),
        ({"planned_as": "gpt-9"}, "workloads[0].planned_as", "use one of"),
        ({"device": "abacus"}, "workloads[0].device", "use one of"),
        ({"launch": {"weights": ...}}, "workloads[0].launch.weights", "name a file"),
        ({"launch": {"environment": {"A_TOKEN": "x"}}}, "environment", "pass_env"),
        ({"top": {"namespace": "Not_A_Name"}}, "namespace", ""),
        ({"unknown": 1}, "unknown", ""),
    ],
)
def test_what_would_not_run_is_refused_with_the_field_and_the_fix(written, change, field, fix):
    result = run(written(**change))
    assert result.exit_code == 2, result.output
    assert field in result.output
    assert fix in result.output


def test_a_tag_is_taken_where_that_is_wanted(written):
    documents = printed(written(image="vllm/vllm-openai:v1", top={"allow_tags": True}))
    image = template_of(documents)["spec"]["containers"][0]["image"]
    assert image == "vllm/vllm-openai:v1"


# --- Holdfast itself ------------------------------------------------------------------------------


def test_the_rights_in_the_cluster_are_those_of_the_example():
    example = ROOT / "examples/kubernetes/rbac.yaml"
    assert (BASE / "rbac.yaml").read_text() == example.read_text()


def test_the_fleet_file_of_the_base_loads_where_its_keys_are(tmp_path):
    text = (BASE / "fleet.yaml").read_text().replace("/etc/holdfast/keys", str(tmp_path))
    for name in ("admin-token", "tenant-key"):
        (tmp_path / name).write_text(f"hf-{name}-{'k' * 40}\n")
    place = tmp_path / "fleet.yaml"
    place.write_text(text)
    file = load(place, FleetFile)
    assert file.gateway.address.port == 8000
    deployment = next(yaml.safe_load_all((BASE / "holdfast.yaml").read_text()))
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    prestop_s = 5
    assert grace_s > file.gateway.draining.deadline_s + prestop_s
