"""GPU figures of replicas for Prometheus; unknown ones are left out."""

from holdfast.control.view.gpu_gauges import gpu_gauges
from holdfast.core.gpu import POWER_CAP, THERMAL, GpuDevice, use_of
from holdfast.core.view.snapshot import ReplicaRow, Snapshot, WarningRow

DEVICE = GpuDevice("GPU-a", 0, memory_used_bytes=5, memory_total_bytes=9, throttle=(POWER_CAP,))


def gauges(*rows, memory=None, **more):
    return gpu_gauges(Snapshot(0.0, replicas=rows, **more), memory or {})


def row(name="m-1", routed=True, device=DEVICE, held=4):
    return ReplicaRow(name, "m", "ready", routed=routed, gpu=use_of((device,), (held,)))


def test_what_is_known_of_a_routed_replica_is_told():
    labels = '{model="m",replica="m-1"}'
    assert gauges(row(), memory={"m-1": 0.5}) == {
        "early_warnings": 0.0,
        f"replica_gpu_memory_used_ratio{labels}": 0.5,
        f"replica_gpu_memory_held_bytes{labels}": 4.0,
        f"replica_gpu_memory_used_bytes{labels}": 5.0,
        f"replica_gpu_memory_total_bytes{labels}": 9.0,
        f"replica_gpu_throttled{labels}": 0.0,  # at its power limit, as a busy one is
    }


def test_a_slowed_gpu_and_early_warnings_are_counted():
    slow = GpuDevice("GPU-a", 0, throttle=(THERMAL, POWER_CAP))
    found = gauges(row(device=slow, held=None), warnings=(WarningRow("replica", "r", 0.8, "t"),))
    assert found == {
        "early_warnings": 1.0,
        'replica_gpu_throttled{model="m",replica="m-1"}': 1.0,
    }


def test_nothing_is_told_of_others_or_of_replicas_without_a_gpu():
    plain = ReplicaRow("m-2", "m", "ready", routed=True)
    assert gauges(row(routed=False), plain, memory={"m-1": 0.9}) == {"early_warnings": 0.0}
