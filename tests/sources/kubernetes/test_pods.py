import copy
import json
from pathlib import Path

import pytest

from fakekube.objects import killed_for_memory, pod, stamp
from holdfast.core.view.selectors import parse_selector
from holdfast.sources.kubernetes.pods import read_pod

MODEL = "app.kubernetes.io/name"
GIB = 1 << 30


def read(thing, fits=None):
    return read_pod(named(thing), MODEL, fits)


def named(thing):
    thing = copy.deepcopy(thing)
    thing["metadata"].setdefault("uid", "u-1")
    return thing


def asks(cpu, memory, gpus=None, **more):
    amounts = {"cpu": cpu, "memory": memory} | ({"nvidia.com/gpu": gpus} if gpus else {})
    return {"name": "x", "image": "i", "resources": {"requests": amounts}, **more}


def test_a_pod_that_runs_is_a_placed_replica():
    volumes = [{"name": "w", "persistentVolumeClaim": {"claimName": "weights"}}]
    made = pod("m-1", model="m", gpus=2, labels={"pod-template-hash": "abc"}, volumes=volumes)
    found = read(made)
    placed = found.placed
    assert found.chosen
    assert found.holds
    assert found.ready
    assert (placed.id, placed.model, placed.state) == ("default/m-1", "m", "running")
    assert (placed.host, placed.address, placed.revision) == ("node-1", "10.1.0.1", "abc")
    assert placed.endpoint == "http://10.1.0.1:8000"
    assert (placed.gpus, placed.needs_gpu, placed.limit_bytes) == (2, True, 8 * GIB)
    assert (placed.filesystem, placed.image) == ("default/weights", "vllm:1")
    assert (placed.created_at, placed.started_at) == (1_000_000.0, 1_000_005.0)
    assert (placed.restarts, placed.oom, placed.reason) == (0, False, "")
    assert dict(placed.labels)["pod-template-hash"] == "abc"
    assert placed.uid == "u-1"


def test_reservations_are_counted_as_the_scheduler_counts_them():
    made = pod("m-1", model="m", overhead={"cpu": "250m", "memory": "1Gi"})
    made["spec"]["containers"] = [asks("1", "2Gi"), asks("500m", "1Gi", "1")]
    made["spec"]["initContainers"] = [
        asks("100m", "1Gi", restartPolicy="Always"),
        asks("4", "1Gi"),
        asks("1", "512Mi", "2"),
    ]
    found = read(made)
    assert found.cpus == 4.1 + 0.25  # an init container beside the sidecar before it
    assert found.memory_bytes == 5 * GIB  # both containers and the sidecar, and the runtime
    assert found.gpus == 2
    assert found.placed.limit_bytes is None


def test_what_is_said_of_the_whole_pod_counts_before_its_containers():
    made = pod("m-1", model="m", resources={"requests": {"memory": "3Gi"}})
    assert read(made).memory_bytes == 3 * GIB


def test_a_limit_alone_is_a_request_too():
    made = pod("m-1", model="m")
    made["spec"]["containers"][0]["resources"] = {"limits": {"memory": "2Gi", "amd.com/gpu": "1"}}
    found = read(made)
    assert (found.memory_bytes, found.gpus, found.cpus) == (2 * GIB, 1, 0.0)


def test_one_that_was_killed_for_memory_says_so_while_it_runs_again():
    made = pod("m-1", model="m")
    made["status"] |= killed_for_memory(made, restarts=3)["status"]
    placed = read(made).placed
    assert (placed.oom, placed.exit_code, placed.restarts) == (True, 137, 3)
    assert (placed.state, placed.stopped_at) == ("running", 1_000_200.0)
    assert placed.reason == "last end: OOMKilled, exit code 137"


def test_a_kill_that_the_platform_does_not_ascribe_to_memory_is_not():
    made = pod("m-1", model="m")
    made["status"] |= killed_for_memory(made)["status"]
    end = made["status"]["containerStatuses"][0]["lastState"]["terminated"]
    end["reason"] = "Error"
    placed = read(made).placed
    assert (placed.oom, placed.exit_code) == (False, 137)


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        (
            {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting"},
            "CrashLoopBackOff: back-off 5m0s restarting (last end: OOMKilled, exit code 137)",
        ),
        ({"reason": "ImagePullBackOff"}, "ImagePullBackOff (last end: OOMKilled, exit code 137)"),
        ({"reason": "ContainerCreating"}, "last end: OOMKilled, exit code 137"),
    ],
)
def test_a_container_that_waits_says_why(waiting, told):
    made = pod("m-1", model="m")
    made["status"] |= killed_for_memory(made)["status"]
    made["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    assert read(made).placed.reason == told


def test_one_without_a_host_says_why_and_since_when():
    made = pod("m-1", model="m", host="", phase="Pending")
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    made["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why,
            "lastTransitionTime": stamp(1_000_050),
        }
    ]
    found = read(made)
    assert (found.placed.state, found.placed.reason) == ("pending", why)
    assert (found.unplaced, found.since) == (why, 1_000_050.0)
    assert not found.ready


def test_one_that_is_told_to_end_stops():
    made = pod("m-1", model="m")
    made["metadata"]["deletionTimestamp"] = stamp(1_000_300)
    found = read(made)
    assert (found.placed.state, found.placed.reason) == ("stopping", "told to end")
    assert found.holds  # until it is gone


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_one_that_is_over_holds_nothing(phase):
    made = pod("m-1", model="m", phase=phase)
    made["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
    found = read(made)
    assert (found.placed.state, found.holds) == ("stopped", False)
    assert found.placed.reason == "Evicted: The node was low on resource: memory."


def test_daemon_sets_and_nameless_pods_are_no_replicas_unless_chosen():
    made = pod("d-1", model="exporter")
    made["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d"}]
    assert not read(made).chosen
    assert not read(pod("x-1")).chosen
    assert read(made, parse_selector(f"{MODEL}=exporter")).chosen
    assert read(pod("x-1", labels={"a": "b"}), parse_selector("a=b")).chosen
    assert not read(pod("m-1", model="m"), parse_selector("a=b")).chosen


def test_the_model_may_be_an_annotation():
    made = pod("m-1")
    made["metadata"]["annotations"] = {MODEL: "qwen"}
    assert read(made).placed.model == "qwen"


def test_a_bare_pod_is_understood():
    found = read({"metadata": {"name": "m-1", "namespace": "x"}})
    assert (found.placed.state, found.memory_bytes, found.placed.host) == ("pending", 0, "")


def test_endpoints_are_spelt_as_the_fleet_file_spells_them():
    made = pod("m-1", ip="fd00::1")
    assert read(made).placed.endpoint == "http://[fd00::1]:8000"
    made["spec"]["containers"][0]["ports"][0]["protocol"] = "UDP"
    assert read(made).placed.endpoint == ""


def test_nfs_is_named_by_server_and_path():
    made = pod("m-1", volumes=[{"name": "n", "nfs": {"server": "10.0.0.9", "path": "/w"}}])
    assert read(made).placed.filesystem == "10.0.0.9:/w"


def test_what_is_no_pod_raises_what_the_watch_counts():
    with pytest.raises((KeyError, TypeError, AttributeError)):
        read_pod({"metadata": {"name": "m"}, "spec": []}, MODEL, None)


# --- the life of its container --------------------------------------------------------------------


def recorded(name):
    return json.loads((Path(__file__).parent / "recordings" / f"{name}.json").read_text())


def test_an_end_after_serving_has_its_own_times_and_is_told_as_such():
    """As a real API server gave it: killed after 81 s, ready no more in between, and waiting."""
    placed = read(recorded("pod-oomkilled-after-serving")["response"]["body"]).placed
    assert (placed.state, placed.restarts, placed.started_at) == ("stopping", 1, None)
    assert placed.oom
    assert placed.served
    assert placed.stopped_at - placed.ended_began_at == 81.0
    assert placed.digest == "sha256:" + "a" * 64
    assert placed.ready is False


def ended(seconds_, *, began=1_000_000.0, code=137):
    told = {"exitCode": code, "startedAt": stamp(began), "finishedAt": stamp(began + seconds_)}
    return {"terminated": told}


def with_ready(made, status, at):
    ready = {"type": "Ready", "status": status, "lastTransitionTime": stamp(at)}
    made["status"]["conditions"] = [ready]
    return made


def test_an_end_while_loading_is_not_one_after_serving():
    made = with_ready(pod("m-1", model="m", ready=False), "False", 1_000_000.0)
    made["status"]["containerStatuses"] = [{"name": "x", "lastState": ended(30), "restartCount": 1}]
    assert not read(made).placed.served


def test_an_evicted_pod_had_served_where_it_became_unready_after_its_start():
    made = with_ready(pod("m-1", model="m", phase="Failed"), "False", 1_000_500.0)
    made["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
    made["status"].pop("containerStatuses", None)
    placed = read(made).placed
    assert (placed.state, placed.served, placed.oom) == ("stopped", True, True)
    assert placed.reason.startswith("Evicted")
    made["status"]["message"] = "The node was low on resource: ephemeral-storage."
    assert not read(made).placed.oom


def test_one_that_is_ready_by_now_says_nothing_of_the_life_before():
    made = with_ready(pod("m-1", model="m"), "True", 1_000_500.0)
    made["status"]["containerStatuses"] = [{"name": "x", "lastState": ended(30), "restartCount": 1}]
    assert read(made).placed.served is None


def test_a_container_that_prepares_and_fails_is_an_end_before_the_start_with_its_code():
    made = pod("m-1", model="m", phase="Pending", ready=False)
    made["status"]["initContainerStatuses"] = [
        {"name": "fetch", "lastState": ended(3, code=7), "restartCount": 2}
    ]
    placed = read(made).placed
    assert (placed.exit_code, placed.phase, placed.served) == (7, "starting", False)
    made["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": stamp(1_000_009)}}
    assert read(made).placed.exit_code is None  # it got over that


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"nvidia.com/gpu.shared": "2"}, 2),
        ({"aws.amazon.com/neuron": "1"}, 1),
        ({"aws.amazon.com/neuroncore": "4"}, 4),
        ({"google.com/tpu": "8"}, 8),
        ({"habana.ai/gaudi": "1"}, 1),
    ],
)
def test_every_maker_s_accelerators_are_counted(asked, gpus):
    container = {"name": "x", "image": "i", "resources": {"limits": asked}}
    placed = read(pod("m-1", model="m", containers=[container])).placed
    assert (placed.gpus, placed.needs_gpu) == (gpus, True)


def test_devices_that_are_claimed_are_unknown_and_not_none():
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    placed = read(pod("m-1", model="m", resourceClaims=claims)).placed
    assert (placed.gpus, placed.needs_gpu) == (None, None)


# --- ports ----------------------------------------------------------------------------------------


def test_a_pod_s_ports_have_their_names_and_its_sidecars_come_last():
    made = pod("m-1", model="m")
    inside = made["spec"]["containers"][0]
    inside["ports"] = [
        {"containerPort": 53, "name": "dns", "protocol": "UDP"},
        {"containerPort": 9400, "name": "metrics"},
        {"containerPort": 8001, "name": "http", "protocol": "TCP"},
        {"containerPort": 8002},
    ]
    made["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always", "ports": [{"containerPort": 1, "name": "p"}]},
        {"name": "fetch", "ports": [{"containerPort": 2, "name": "q"}]},
    ]
    placed = read(made).placed
    assert placed.ports == (("metrics", 9400), ("http", 8001), ("", 8002), ("p", 1))
    assert placed.endpoint == "http://10.1.0.1:9400"
    assert placed.port_said == ""


def test_a_pod_says_its_port_by_annotation_else_by_label():
    made = pod("m-1", model="m", labels={"holdfast.dev/port": "8001"})
    assert read(made).placed.port_said == "8001"
    made["metadata"]["annotations"] = {"holdfast.dev/port": "http"}
    assert read(made).placed.port_said == "http"
