import json
from pathlib import Path

import pytest

from fakekube.objects import node
from holdfast.core.types import HostCondition
from holdfast.sources.kubernetes.nodes import gpus_of, read_node

LABELS = {
    "eks.amazonaws.com/nodegroup": "gpu-a10",
    "node.kubernetes.io/instance-type": "g5.4xlarge",
    "karpenter.sh/capacity-type": "spot",
    "topology.kubernetes.io/zone": "eu-west-1a",
    "nvidia.com/cuda.driver-version.full": "570.86.15",
    "nvidia.com/cuda.runtime-version.full": "12.8",
}

RECORDINGS = Path(__file__).parent / "recordings"


def recorded(name):
    return json.loads((RECORDINGS / f"{name}.json").read_text())["response"]["body"]


def test_a_node_is_a_host_with_everything_its_labels_say():
    found = read_node(node("n1", labels=LABELS, gpus=4, cpu="15890m", memory="62Gi"))
    host = found.host
    assert found.grouped
    assert (host.id, host.group, host.kind) == ("n1", "gpu-a10", "g5.4xlarge")
    assert (host.market, host.zone, host.state) == ("spot", "eu-west-1a", "")
    assert (host.cpus, host.memory_bytes, host.gpus) == (15.89, 62 << 30, 4)
    assert (host.driver, host.cuda) == ("570.86.15", "12.8")
    assert (host.launched_at, host.joined_at) == (1_000_000.0, 1_000_060.0)
    assert host.reserved_bytes is None  # a sum over pods


def test_versions_in_pieces_are_put_together():
    pieces = {"major": "535", "minor": "104", "rev": "05"}
    labels = {f"nvidia.com/cuda.driver.{name}": value for name, value in pieces.items()}
    labels |= {"nvidia.com/cuda.runtime.major": "12", "nvidia.com/cuda.runtime.minor": "2"}
    host = read_node(node("n1", labels=labels)).host
    assert (host.driver, host.cuda) == ("535.104.05", "12.2")


@pytest.mark.parametrize(
    ("labels", "group"),
    [
        ({"karpenter.sh/nodepool": "pool"}, "pool"),
        ({"cloud.google.com/gke-nodepool": "gke"}, "gke"),
        ({"rack": "r7", "karpenter.sh/nodepool": "pool"}, "r7"),
        ({}, "n1"),
    ],
)
def test_groups_come_from_whoever_made_the_node(labels, group):
    found = read_node(node("n1", labels=labels), group_label="rack")
    assert found.host.group == group
    assert found.grouped is bool(labels)


@pytest.mark.parametrize(
    ("labels", "market"),
    [
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on-demand"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "capacity-block"),
        ({"karpenter.sh/capacity-type": "reserved"}, "reserved"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        ({}, ""),
    ],
)
def test_markets_are_spelt_alike(labels, market):
    assert read_node(node("n1", labels=labels)).host.market == market


def test_slices_of_gpus_count_and_other_things_do_not():
    made = node("n1")
    made["status"]["allocatable"] |= {
        "nvidia.com/mig-1g.5gb": "7",
        "amd.com/gpu": "1",
        "example.org/gpu-like": "9",
        "nvidia.com/gpu": "0",
    }
    assert read_node(made).host.gpus == 8


def test_what_is_wrong_is_told():
    sick = node("n1", ready=False)
    sick["status"]["conditions"][0]["status"] = "True"
    sick["spec"]["unschedulable"] = True
    sick["metadata"]["deletionTimestamp"] = "2026-11-15T12:00:00Z"
    state = read_node(sick).host.state
    told = "NotReady: container runtime is down, MemoryPressure, cordoned, leaving"
    assert state == told
    assert read_node(sick).host.joined_at is None


def test_a_node_that_never_reported_is_not_taken_for_a_good_one():
    bare = {"metadata": {"name": "n1"}}
    host = read_node(bare).host
    assert host.state == "NotReady: its kubelet has not reported"
    assert (host.cpus, host.memory_bytes, host.gpus) == (None, None, None)


def test_a_node_that_came_back_does_not_show_a_long_start():
    made = node("n1")
    made["status"]["conditions"][1]["lastTransitionTime"] = "1970-02-12T00:00:00Z"
    assert read_node(made).host.joined_at is None


def conditions(**told):
    made = [{"type": "Ready", "status": "True"}]
    made += [{"type": kind, "status": str(holds), "reason": "x"} for kind, holds in told.items()]
    return node("n", conditions=made)


@pytest.mark.parametrize(
    ("told", "state", "remarks"),
    [
        ({"KernelReady": True, "AcceleratedHardwareReady": True}, "", ""),
        ({"AcceleratedHardwareReady": False}, "AcceleratedHardwareReady is False: x", ""),
        ({"MemoryPressure": True}, "MemoryPressure", ""),
        (
            {"KernelDeadlock": True, "ReadonlyFilesystem": True},
            "KernelDeadlock, ReadonlyFilesystem",
            "",
        ),
        ({"FrequentKubeletRestart": True}, "FrequentKubeletRestart", ""),
        ({"MemoryPressure": False, "KernelReady": "Unknown"}, "", ""),
        ({"ImageCacheWarm": True}, "", "ImageCacheWarm"),
        ({"ImageCacheWarm": False}, "", ""),
    ],
)
def test_conditions_are_read_by_what_their_type_means_and_unknown_ones_are_not_judged(
    told, state, remarks
):
    host = read_node(conditions(**told)).host
    assert (host.state, host.remarks) == (state, remarks)


def test_the_same_chips_by_two_names_are_counted_once():
    offered = {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"}
    assert gpus_of(offered) == 16


# --- whether it can run pods ----------------------------------------------------------------------


def tainted(key, **more):
    made = node("n1")
    made["spec"] = {"taints": [{"key": key, "effect": "NoSchedule", **more}]}
    return made


def test_a_node_s_condition_is_what_its_kubelet_says():
    host = read_node(node("n1")).host
    assert (host.condition, host.condition_reason) == (HostCondition.READY, "")
    host = read_node(node("n1", ready=False)).host
    assert host.condition is HostCondition.NOT_READY
    assert host.condition_reason == "container runtime is down"
    assert host.condition_since == 1_000_060.0


def test_a_node_that_stopped_posting_is_unreachable():
    host = read_node(recorded("node-spot-taint")).host
    assert host.condition is HostCondition.UNREACHABLE
    assert host.condition_reason == "Kubelet stopped posting node status."


def test_a_node_whose_kubelet_never_spoke_has_no_condition():
    silent = node("n1")
    silent["status"]["conditions"] = []
    assert read_node(silent).host.condition is None
    silent["spec"] = {"taints": [{"key": "node.kubernetes.io/unreachable"}]}
    assert read_node(silent).host.condition is HostCondition.UNREACHABLE


def test_a_taint_that_was_left_behind_does_not_outrank_the_kubelet():
    """As the real server had it: ready, with the taint of before."""
    for one in recorded("nodes-list")["items"]:
        assert read_node(one).host.condition is HostCondition.READY


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/unschedulable",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "aws-node-termination-handler/spot-itn",
    ],
)
def test_a_node_that_somebody_empties_is_leaving(key):
    host = read_node(tainted(key, timeAdded="1970-01-12T13:50:00Z")).host
    assert (host.condition, host.condition_reason) == (HostCondition.LEAVING, key)
    assert host.condition_since == 1_000_200.0
    assert host.state == ("" if key.endswith("unschedulable") else f"leaving: {key}")


def test_a_node_that_is_cordoned_or_deleted_is_leaving_and_a_tainted_one_is_not():
    cordoned, deleted = node("n1"), node("n2")
    cordoned["spec"]["unschedulable"] = True
    deleted["metadata"]["deletionTimestamp"] = "1970-01-12T13:50:00Z"
    for one in (cordoned, deleted):
        assert read_node(one).host.condition is HostCondition.LEAVING
    assert read_node(tainted("nvidia.com/gpu")).host.condition is HostCondition.READY
