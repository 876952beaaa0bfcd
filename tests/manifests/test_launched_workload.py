"""Workloads that control launches: pods as ``render kubernetes`` has them, a workload for each."""

from dataclasses import replace

import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.launched_replica import build_of, new_launched_replica
from holdfast.manifests.launched_workload import launched_workload
from holdfast.manifests.workload_file import WorkloadFile
from holdfast.manifests.workloads import manifests
from holdfast.ports import LaunchError, Order

IMAGE = "vllm/vllm-openai@sha256:" + "ab" * 32
AGENT = "holdfast@sha256:" + "cd" * 32
LAUNCH = {
    "weights": "/models/llama",
    "tensor_parallel": 2,
    "context": 8192,
    "environment": {"VLLM_LOGGING_LEVEL": "INFO"},
    "pass_env": ["HF_TOKEN"],
    "memory": {"reservation": 64 << 30, "limit": 80 << 30},
}
POD = {"image": IMAGE, "claim": "weights", "gpu_product": "NVIDIA-H200", "cuda": 12, "port": 8080}


def file(agent=AGENT, **pod):
    launch = {"on": "kubernetes", "cpus": 4.0, "kubernetes": {**POD, **pod}, **LAUNCH}
    if pod.get("hosts"):
        launch |= {"command": ["lead", "--port", "{port}"], "gpus": 16}
    model = {"name": "llama", "engine": "vllm", "revision": "7", "launch": launch}
    cluster = {"agent_image": agent, "namespace": "models"}
    return FleetFile.model_validate({"kubernetes": cluster, "models": [model]})


def ordered(of):
    unit = new_launched_replica(of.models[0], 3, "zone-b", "/models/llama", "", set())
    return unit.place_request().order


def rendered_template():
    """The template that ``render kubernetes`` makes of the same settings."""
    discovered = FleetFile.model_validate(
        {
            "sources": [{"type": "kubernetes", "name": "pods"}],
            "models": [
                {
                    "name": "llama",
                    "engine": "vllm",
                    "revision": "7",
                    "discover": {"source": "pods", "port": 8080},
                }
            ],
        }
    )
    workload = {"model": "llama", "launch": LAUNCH, "cpus": 4.0, "spares": 0, **POD}
    described = WorkloadFile.model_validate({"agent_image": AGENT, "workloads": [workload]})
    documents, _ = manifests(discovered, described)
    return next(one for one in documents if one["kind"] == "Deployment")["spec"]["template"]


def test_what_is_launched_is_what_is_rendered():
    made = launched_workload(file(), ordered(file()))
    template, like = made["spec"]["template"], rendered_template()
    assert template["metadata"]["labels"].pop("holdfast.dev/replica") == "llama-3"
    agent = template["spec"]["initContainers"][0]["command"]
    agent[agent.index("--replica") + 1] = "$(POD_NAME)"  # a launched one knows its name
    assert template == like


def test_each_replica_has_a_workload_of_its_own_that_knows_its_pod_by_the_replica():
    made = launched_workload(file(), ordered(file()), "zone-b")
    assert (made["kind"], made["metadata"]["name"]) == ("Deployment", "llama-3")
    assert made["metadata"]["namespace"] == "models"
    spec = made["spec"]
    assert spec["replicas"] == 1
    assert spec["selector"] == {"matchLabels": {"holdfast.dev/replica": "llama-3"}}
    assert spec["strategy"] == {"type": "Recreate"}
    (wish,) = spec["template"]["spec"]["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = wish["preference"]["matchExpressions"]
    assert term["values"] == ["zone-b"]
    hook = spec["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > hook


def test_an_old_order_makes_the_pod_that_it_made_before():
    before = ordered(file())
    now = file(image="vllm/vllm-openai@sha256:" + "ef" * 32)
    engine = launched_workload(now, before)["spec"]["template"]["spec"]["containers"][0]
    assert engine["image"] == IMAGE
    assert engine["command"] == list(before.command)
    assert "0.0.0.0" in before.command
    assert before.port == 8080


def test_what_is_launched_runs_without_root_and_without_rights():
    spec = launched_workload(file(), ordered(file()))["spec"]["template"]["spec"]
    context = spec["containers"][0]["securityContext"]
    assert (context["runAsNonRoot"], context["allowPrivilegeEscalation"]) == (True, False)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_an_order_of_before_there_was_a_user_makes_the_pod_that_it_made_before():
    before = ordered(file())
    pod = {key: value for key, value in before.platform["kubernetes"].items() if key != "run_as"}
    del pod["capabilities"]
    order = replace(before, platform={**before.platform, "kubernetes": pod})
    spec = launched_workload(file(), order)["spec"]["template"]["spec"]
    assert "securityContext" not in spec["containers"][0]
    assert {one["name"] for one in spec["volumes"]} == {"shm", "weights"}
    assert "HOME" not in {one["name"] for one in spec["containers"][0]["env"]}


def test_another_user_is_another_build_and_the_image_s_own_is_that_of_before():
    builds = {
        build_of(file(**more).models[0], "")
        for more in ({}, {"run_as": 0}, {"run_as": None}, {"capabilities": ["IPC_LOCK"]})
    }
    assert len(builds) == 4
    how = file(run_as=None).models[0]
    assert build_of(how, "") == "7+e1c2f976"


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"kind": "statefulset"}, "StatefulSet"),
        ({"kind": "leaderworkerset"}, "LeaderWorkerSet"),
        (
            {"kind": "leaderworkerset", "hosts": 2, "worker_command": ["follow"]},
            "LeaderWorkerSet",
        ),
    ],
)
def test_the_file_chooses_the_kind(more, kind):
    made = launched_workload(file(**more), ordered(file(**more)))
    assert made["kind"] == kind
    if kind == "StatefulSet":
        assert made["spec"]["updateStrategy"] == {"type": "OnDelete"}
        return
    inside = made["spec"]["leaderWorkerTemplate"]
    assert inside["size"] == more.get("hosts", 1)
    assert inside["leaderTemplate"]["metadata"]["labels"]["holdfast.dev/replica"] == "llama-3"
    if "hosts" in more:
        (worker,) = inside["workerTemplate"]["spec"]["containers"]
        assert worker["command"] == ["follow"]
        assert worker["resources"]["limits"]["nvidia.com/gpu"] == 8, "16 devices on two hosts"
        assert "holdfast.dev/replica" not in inside["workerTemplate"]["metadata"]["labels"]


def test_without_an_agent_pods_have_none_and_do_not_say_so():
    template = launched_workload(file(agent=""), ordered(file(agent="")))["spec"]["template"]
    assert "initContainers" not in template["spec"]
    assert "holdfast.dev/readiness" not in template["metadata"]["labels"]


def test_an_order_that_the_file_does_not_fit_is_refused():
    with pytest.raises(LaunchError, match="not in the fleet file"):
        launched_workload(file(), Order("x-1", ("serve",), note={"model": "x"}))
    with pytest.raises(LaunchError, match=r"launch\.kubernetes of llama is missing"):
        launched_workload(file(), Order("llama-1", ("serve",), note={"model": "llama"}))
    long = Order("l" * 64, ("serve",), note={"model": "llama"})
    with pytest.raises(LaunchError, match="63 characters"):
        launched_workload(file(), long)
