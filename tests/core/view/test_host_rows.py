"""What single rows say; whole pictures are in ``test_snapshot_join.py``."""

import pytest

from holdfast.core.view.fleet_records import ReplicaRecord
from holdfast.core.view.host_rows import (
    RowOrigin,
    counted,
    exceeds_reservation,
    group_row,
    host_row,
    misplacements,
    ready,
    replica_row,
    runs,
    size,
    skewed,
    total,
    whole,
)
from holdfast.core.view.layers import Host, Placed
from holdfast.core.view.snapshot import ReplicaRow


def test_sums_know_what_they_do_not_know():
    assert (total([1.5, None, 2.0]), total([None])) == (3.5, None)
    assert (whole([1, None, 2]), whole([])) == (3, None)
    assert size(1_234_000_000) == "1.2 GB"


def test_values_are_counted_where_they_differ():
    assert counted(["spot", "", "spot"]) == "spot"
    assert counted([]) == ""
    assert skewed("CUDA", {"a": "12", "b": "", "c": "12"}) == ()


@pytest.mark.parametrize(
    ("row", "up", "here"),
    [
        (ReplicaRow("a", "m", "ready", routed=True), True, True),
        (ReplicaRow("a", "m", "dead", routed=True), False, True),
        (ReplicaRow("a", "m", "running"), True, True),
        (ReplicaRow("a", "m", "running", phase="loading"), False, True),
        (ReplicaRow("a", "m", "pending"), False, True),
        (ReplicaRow("a", "m", "stopped"), False, False),
    ],
)
def test_who_serves_and_who_counts(row, up, here):
    assert (ready(row), runs(row)) == (up, here)


def test_what_a_platform_does_not_know_the_fleet_may():
    known = ReplicaRecord("m-1", "m", "loading", reserved_bytes=1, limit_bytes=2, phase="compile")
    row = replica_row(known, Placed("t", "m", "running", phase="x"), None, RowOrigin("aws"), 1.0)
    assert (row.reserved_bytes, row.limit_bytes, row.phase) == (1, 2, "compile")


def test_the_reasons_of_a_misplacement_are_among_the_faults_of_the_replica():
    host = Host("h", gpus=0, memory_bytes=1)
    placed = Placed("t", "m", "running", "h", needs_gpu=True, reserved_bytes=2)
    reasons = misplacements(None, placed, host)
    assert len(reasons) == 2
    assert set(reasons) <= set(replica_row(None, placed, host, RowOrigin("aws"), 1.0).faults)


def test_a_replica_that_no_platform_lists_is_misplaced_by_its_record():
    record = ReplicaRecord("m-1", "m", "ready", host="h", needs_gpu=True, reserved_bytes=2)
    assert len(misplacements(record, None, Host("h", gpus=0, memory_bytes=1))) == 1
    assert misplacements(record, None, Host("h", gpus=1, memory_bytes=1)) == ()
    assert misplacements(record, None, None) == ()


def test_a_host_repeats_why_replicas_are_misplaced_and_no_other_fault_of_theirs():
    row = ReplicaRow("a", "m", "running", host="h", faults=("misplaced: says its platform",))
    origin = RowOrigin("aws")
    assert host_row(Host("h"), [row], origin, 1.0, {}).faults == ()
    assert host_row(Host("h"), [row], origin, 1.0, {("a", "h"): ("why",)}).faults == ("m why",)


@pytest.mark.parametrize(
    ("reserved", "used", "exceeds"),
    [(100, 106, True), (100, 105, False), (0, 1, True), (None, 1, False), (1, None, False)],
)
def test_a_reservation_is_exceeded_beyond_a_tolerance(reserved, used, exceeds):
    assert exceeds_reservation(reserved, used) is exceeds


def test_an_unreadable_group_says_so_once():
    row = group_row("g", None, (), RowOrigin("aws", None, ("autoscaling: denied",)))
    assert row.faults == ("autoscaling: denied",)
    assert (row.uptime_s, row.used_bytes, row.desired) == (None, None, None)
