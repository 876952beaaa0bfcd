"""What fills up is told before it is an incident, and once."""

import pytest

from holdfast.core.diagnose.evidence import About, Incident
from holdfast.core.failure import Cause, Class
from holdfast.core.gpu import GpuDevice, use_of
from holdfast.core.types import nanos
from holdfast.core.view.fleet_records import FleetRecords, ReplicaRecord
from holdfast.core.view.layers import Disk, Reading
from holdfast.core.view.snapshot import WarningRow
from holdfast.core.view.snapshot_join import join

NOW, CORE = 1_800_000_000.0, nanos(1_000)


def disk(used, operations=None):
    return Disk("efs", read_bytes_s=used, permitted_bytes_s=100.0, operations_share=operations)


def replica(held, free=100, grows=True):
    device = GpuDevice("GPU-a", 0, memory_used_bytes=held, memory_total_bytes=held + free)
    use = use_of((device,), (held,))
    return ReplicaRecord("m-1", "m", "ready", gpu=use, memory_grows=grows)


def warned(*disks, replicas=(), incidents=()):
    reading = Reading("aws", "aws", NOW, disks=tuple(disks))
    return join([reading], FleetRecords(tuple(replicas)), incidents, NOW, CORE).warnings


def test_three_quarters_of_a_filesystem_are_told():
    (one,) = warned(disk(76.0))
    assert one == WarningRow("filesystem", "efs", 0.76, "bandwidth at 76% of what is permitted")
    (one,) = warned(disk(1.0, operations=0.8))
    assert one.text == "operations at 80% of what is permitted"


def test_three_quarters_of_a_gpu_that_work_fills_are_told():
    (one,) = warned(replicas=[replica(400)])
    assert (one.kind, one.about, one.used_share) == ("replica", "m-1", 0.8)


@pytest.mark.parametrize(
    ("disks", "replicas"),
    [
        ((disk(74.0),), ()),
        ((Disk("efs", read_bytes_s=99.0),), ()),  # nobody knows its ceiling
        ((), (replica(200),)),
        ((), (replica(900, grows=False),)),  # it took its memory at the start
        ((), (ReplicaRecord("m-1", "m", "ready", memory_grows=True),)),
    ],
)
def test_room_and_what_is_unknown_are_no_warning(disks, replicas):
    assert warned(*disks, replicas=replicas) == ()


def test_what_an_incident_names_is_not_warned_of():
    about = About(filesystem="efs")
    found = Incident("inc-1", Cause.COLD_START_CONTENTION, Class.LOADING, about, CORE, 0.9)
    assert warned(disk(95.0), incidents=[found]) == ()
