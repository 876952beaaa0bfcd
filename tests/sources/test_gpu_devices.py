"""Replicas on a real H200, as its driver told of them second by second."""

from pathlib import Path

import pytest

from holdfast.core.gpu import POWER_CAP
from holdfast.sources.gpu_devices import devices_of, held_by, idle_gpus
from holdfast.sources.nvml import XidWatch, read_gpus
from holdfast.sources.nvml_health import throttle_reasons
from holdfast.testing.nvml_replay import ReplayedNvml

H200 = Path(__file__).with_name("nvml_h200.json.gz")
GIB = 1 << 30
BALLAST, LEAKING = {502}, {527}


@pytest.fixture
def nvml():
    return ReplayedNvml.read(H200)


def test_an_idle_gpu_is_free_although_its_driver_keeps_some_memory(nvml):
    report = read_gpus(nvml)
    (device,) = devices_of(report)
    assert (device.name, device.index, device.label) == ("NVIDIA H200", 0, "GPU 0")
    assert 0.6 * GIB < device.memory_used_bytes < 0.7 * GIB
    assert (device.utilisation, device.temperature_c, device.power_w) == (0.0, 35, 81.525)
    assert (device.temperature_max_c, device.power_limit_w) == (87, 700.0)
    assert (device.remap_pending, device.ecc_uncorrected, device.throttle) == (False, 0, ())
    assert (report.driver, report.cuda, idle_gpus(report)) == ("580.159.04", "13.0", 1)


def test_a_neighbours_memory_is_not_a_replicas_own(nvml):
    """One holds 20 GiB all the time, the other beside it takes 1 GiB a second."""
    own, theirs, bounds = [], [], []
    for place in nvml.places("b takes 1 GiB a second beside a"):
        report = read_gpus(nvml.at(place))
        ballast, leak = held_by(BALLAST, report, None).use, held_by(LEAKING, report, None).use
        own.append(ballast.held_bytes)
        theirs.append(leak.held_bytes)
        bounds.append(leak.limit_bytes)
        assert ballast.memory_used_bytes == leak.memory_used_bytes
    assert len(set(own)) == 1
    assert theirs == sorted(theirs)
    assert theirs[-1] - theirs[0] == 13 * GIB
    # What it can have is what the ballast left, all the time: its end can be foretold. The first
    # look fell between two of the driver's answers.
    assert max(bounds[1:]) - min(bounds[1:]) < 1 << 20
    assert bounds[-1] == pytest.approx(report.gpus[0].memory_total - own[0], rel=0.01)


def test_a_busy_gpu_at_its_power_limit_is_well(nvml):
    for place in nvml.places("c multiplies without pause")[2:]:
        (device,) = devices_of(read_gpus(nvml.at(place)))
        assert (device.throttle, device.utilisation) == ((POWER_CAP,), 1.0)
        assert held_by({557}, read_gpus(nvml), None).use.faults == ()


def test_faults_that_nobody_can_order_are_laid_over_the_recording(nvml):
    nvml = ReplayedNvml.read(H200, boards=4)
    nvml.overlay[1] = {"nvmlDeviceGetRemappedRows": [0, 1, 1, 0]}
    nvml.overlay[2] = {"nvmlDeviceGetCurrentClocksEventReasons": 0x48}
    nvml.xids = [(3, 79)]
    watch = XidWatch(nvml)
    assert watch.start()
    (xid,) = watch.poll()
    assert (xid.code, xid.index, xid.needs_reset) == (79, 3, True)
    devices = devices_of(read_gpus(nvml, watch))
    assert len({device.id for device in devices}) == 4
    assert [device.remap_pending for device in devices] == [False, True, False, False]
    assert devices[2].throttle == ("thermal",)
    assert (devices[3].xid, devices[3].xid_fatal) == (79, True)


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0, ()),
        (1, ()),  # idle
        (0x4, ("power cap",)),
        (0x20, ("thermal",)),
        (0x8 | 0x40, ("thermal",)),
        (0x8 | 0x80, ("power brake",)),
        (0x8, ("hardware",)),
        (0x44, ("thermal", "power cap")),
    ],
)
def test_bits_of_slowdown(bits, reasons):
    assert throttle_reasons(bits) == reasons


def test_what_cannot_be_seen_belongs_to_nobody(nvml):
    report = read_gpus(nvml.at(nvml.places("a holds 20 GiB")[0]))
    assert held_by({1, 2}, report, None).use is None
    assert held_by({1, 2}, report, "GPU-of-another-host").use is None
    assert held_by({502}, None, "0").use is None
    use = held_by({1, 2}, report, "0").use  # it was started for this one, and one process is there
    assert use.held_bytes == 21_092 << 20
