"""GPUs as devices to place replicas on: slices, links, lost boards, and hosts without any."""

import pytest

from holdfast.sources.placement_devices import LINKED_MAX, read_devices
from holdfast.testing.gpu_host import GIB, FakeGpuHost


def test_every_gpu_is_a_device_with_its_links_and_users():
    host = FakeGpuHost(4, links=((0, 1), (2, 3)))
    host.gpus[2].memory_used, host.gpus[2].processes = 31 * GIB, [4711]
    found = read_devices(host)
    assert [(one.uuid, one.label, one.name) for one in found.devices] == [
        (f"GPU-{i}", str(i), "NVIDIA Z9") for i in range(4)
    ]
    assert [sorted(one.neighbours) for one in found.devices] == [
        *(["GPU-1"], ["GPU-0"], ["GPU-3"], ["GPU-2"])
    ]
    third = found.devices[2]
    assert (third.memory_used, third.memory_total) == (31 * GIB, 80 * GIB)
    assert third.processes == (4711,)
    assert host.opened == 0  # what was opened was closed


def test_a_gpu_that_is_cut_is_its_slices():
    host = FakeGpuHost(2, links=((0, 1),))
    host.gpus[1].slices = [40, 20]
    found = read_devices(host)
    assert [(one.uuid, one.label, one.is_slice) for one in found.devices] == [
        ("GPU-0", "0", False),
        ("MIG-1-0", "1:0", True),
        ("MIG-1-1", "1:1", True),
    ]
    assert [one.memory_total for one in found.devices] == [80 * GIB, 40 * GIB, 20 * GIB]


def test_a_gpu_that_fell_off_the_bus_is_no_device_and_hides_no_other():
    host = FakeGpuHost(3)
    host.gpus[1].lost = True
    assert [one.uuid for one in read_devices(host).devices] == ["GPU-0", "GPU-2"]
    host = FakeGpuHost(1)
    host.gpus[0].lost = True
    found = read_devices(host)
    assert not found.devices
    assert found.reason == "no GPU: the driver sees some, and none of them answers"


def test_a_host_without_a_gpu_says_so():
    host = FakeGpuHost(0)
    assert read_devices(host).reason == "no GPU: the driver sees no GPU"
    host.missing = "Driver Not Loaded"
    assert read_devices(host).reason == "no GPU: nvmlInit: Driver Not Loaded"
    assert host.opened == 0


def test_links_of_very_many_are_not_all_asked_for():
    host = FakeGpuHost(LINKED_MAX + 2, links=((0, 1), (0, LINKED_MAX + 1)))
    found = read_devices(host).devices
    assert len(found) == LINKED_MAX + 2
    assert found[0].neighbours == {"GPU-1"}
    assert not found[-1].neighbours


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, ["GPU-0", "GPU-1", "MIG-2-0", "MIG-2-1"]),
        ("1,0", ["GPU-1", "GPU-0"]),
        (" 1 , GPU-0", ["GPU-1", "GPU-0"]),
        ("2", ["MIG-2-0", "MIG-2-1"]),
        ("MIG-2-1", ["MIG-2-1"]),
        ("0,9,1", ["GPU-0"]),  # as CUDA reads it: up to the first that is none
        ("0,-1,1", ["GPU-0"]),
        ("0,0", ["GPU-0"]),
    ],
)
def test_what_this_process_may_not_see_its_engines_do_not_get(value, seen):
    host = FakeGpuHost(3, links=((0, 1),))
    host.gpus[2].slices = [10, 10]
    found = read_devices(host, value)
    assert [one.uuid for one in found.devices] == seen
    assert all(one.neighbours <= set(seen) for one in found.devices)


@pytest.mark.parametrize("value", ["", "-1", "nonsense", "7"])
def test_an_environment_that_hides_all_is_named(value):
    found = read_devices(FakeGpuHost(2), value)
    assert not found.devices
    assert found.reason == f"no GPU: CUDA_VISIBLE_DEVICES is {value!r}, which names none here"
